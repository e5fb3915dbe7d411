//! Tests of the histories of atomic operations that the oracle allows, and of those that it
//! forbids.

use ferrofabric_contracts::atomics::{AtomicForm, AtomicOperator as Operator, Datatype};

use super::super::elements::elements;
use super::*;

const WORD: Datatype = Datatype::Uint32;

/// Operations on one word.
struct Story {
    history: Option<AtomicHistory>,
    number: usize,
    before: Vec<u8>,
}

fn word(value: i8) -> Vec<u8> {
    elements(WORD, [value].into_iter())
}

impl Story {
    fn new(before: i8) -> Self {
        Self {
            history: None,
            number: 0,
            before: word(before),
        }
    }

    /// An operation begins. Returns its number.
    fn begun(&mut self, from: usize, (form, operator): (AtomicForm, Operator), by: i8) -> usize {
        self.number += 1;
        let call = AtomicCall {
            number: self.number,
            by: (from, 9),
            place: 8..8 + WORD.size(),
            form,
            operator,
            datatype: WORD,
            operands: word(by),
            compares: match form {
                AtomicForm::Compare => word(0),
                _ => Vec::new(),
            },
            is_plain: false,
        };
        let new = AtomicHistory::new(call);
        match &mut self.history {
            Some(history) => history.join(new),
            None => self.history = Some(new),
        }
        self.number
    }

    fn sums(&mut self, from: usize, by: i8) -> usize {
        self.begun(from, (AtomicForm::Fetch, Operator::Sum), by)
    }

    fn adds(&mut self, from: usize, by: i8) -> usize {
        self.begun(from, (AtomicForm::Base, Operator::Sum), by)
    }

    fn ended(&mut self, number: usize, end: AtomicEnd) -> Result<(), String> {
        self.history.as_mut().unwrap().end(number, end)
    }

    /// It succeeds, before all that begin from now on.
    fn fetched(&mut self, number: usize, value: i8) {
        self.done(number, word(value));
    }

    fn done(&mut self, number: usize, fetched: Vec<u8>) {
        let before = self.number + 1;
        self.ended(number, AtomicEnd::Done { before, fetched })
            .unwrap();
    }

    fn allows(&self, after: i8) -> bool {
        let history = self.history.as_ref().unwrap();
        match history.judge(&self.before, Some(&word(after))) {
            AtomicVerdict::Allowed(bytes) => {
                assert_eq!(bytes, word(after));
                true
            }
            AtomicVerdict::Forbidden(_) => false,
            AtomicVerdict::Undecided => panic!("undecided"),
        }
    }
}

#[test]
fn an_addition_is_carried_out_once() {
    let mut story = Story::new(5);
    for from in 0..3 {
        let number = story.adds(from, 10);
        story.done(number, Vec::new());
    }
    assert!(story.allows(35));
    assert!(!story.allows(25), "one is lost");
    assert!(!story.allows(45), "one is doubled");
    assert!(!story.allows(5), "all are lost");
}

#[test]
fn fetched_values_follow_from_an_order() {
    let run = |values: [i8; 3]| {
        let mut story = Story::new(0);
        let numbers = [0, 1, 2].map(|from| story.sums(from, 1));
        for (number, value) in numbers.into_iter().zip(values) {
            story.fetched(number, value);
        }
        story.allows(3)
    };
    assert!(run([0, 1, 2]));
    assert!(run([2, 0, 1]));
    assert!(!run([0, 0, 2]), "fetched twice");
    assert!(!run([0, 1, 3]), "never there");
}

#[test]
fn operations_of_one_initiator_keep_their_order() {
    let run = |from: [usize; 2], values: [i8; 2]| {
        let mut story = Story::new(0);
        let numbers = from.map(|from| story.sums(from, 1));
        // Their completions may come in any order.
        story.fetched(numbers[1], values[1]);
        story.fetched(numbers[0], values[0]);
        story.allows(2)
    };
    assert!(run([0, 0], [0, 1]));
    assert!(!run([0, 0], [1, 0]), "the later one overtakes");
    assert!(run([0, 1], [1, 0]));
}

#[test]
fn an_operation_sees_those_that_completed_before_it_began() {
    let mut story = Story::new(0);
    let first = story.sums(0, 1);
    story.fetched(first, 1);
    let second = story.sums(1, 1);
    story.fetched(second, 0);
    assert!(!story.allows(2));
}

#[test]
fn an_operation_completes_once() {
    let mut story = Story::new(0);
    let number = story.sums(0, 1);
    story.fetched(number, 0);
    for end in [
        AtomicEnd::Refused,
        AtomicEnd::Unknown,
        AtomicEnd::Done {
            before: 9,
            fetched: word(0),
        },
    ] {
        let why = story.ended(number, end).unwrap_err();
        assert!(why.contains("twice"), "{why}");
    }
    let number = story.adds(0, 1);
    let end = AtomicEnd::Done {
        before: 9,
        fetched: word(1),
    };
    assert!(story.ended(number, end).is_err(), "nothing comes back");
}

#[test]
fn a_failed_operation_is_carried_out_once_at_most() {
    let story = |end: AtomicEnd| {
        let mut story = Story::new(0);
        let numbers = [story.adds(0, 10), story.adds(0, 1)];
        story.ended(numbers[0], end).unwrap();
        story.done(numbers[1], Vec::new());
        story
    };
    let refused = story(AtomicEnd::Refused);
    assert!(refused.allows(1));
    assert!(!refused.allows(11));
    let unknown = story(AtomicEnd::Unknown);
    assert!(unknown.allows(1));
    assert!(unknown.allows(11));
    assert!(!unknown.allows(21), "twice");
    assert!(!unknown.allows(10), "the other is lost");
}

#[test]
fn swaps_of_several_initiators_have_one_winner() {
    let run = |values: [i8; 2], after| {
        let mut story = Story::new(0);
        let swap = (AtomicForm::Compare, Operator::Cswap);
        let numbers = [3, 4].map(|to| story.begun(to, swap, to as i8));
        for (number, value) in numbers.into_iter().zip(values) {
            story.fetched(number, value);
        }
        story.allows(after)
    };
    assert!(run([0, 3], 3));
    assert!(run([4, 0], 4));
    assert!(!run([0, 0], 4), "both win");
    assert!(!run([0, 3], 4));
}

/// Each element of an array has an order of its own. Those of several sizes are judged together.
#[test]
fn elements_are_judged_apart() {
    let call = |number: usize, by: usize, datatype: Datatype, place: Range<usize>, add: i8| {
        let count = place.len() / datatype.size();
        AtomicCall {
            number,
            by: (by, 9),
            place,
            form: AtomicForm::Base,
            operator: Operator::Write,
            datatype,
            operands: elements(datatype, (0..count).map(|_| add)),
            compares: Vec::new(),
            is_plain: false,
        }
    };
    let done = || AtomicEnd::Done {
        before: 9,
        fetched: Vec::new(),
    };
    let judged = |calls: [AtomicCall; 2], after: &[u8]| {
        let [first, second] = calls;
        let mut history = AtomicHistory::new(first);
        assert!(history.takes(&second, false));
        history.join(AtomicHistory::new(second));
        history.end(1, done()).unwrap();
        history.end(2, done()).unwrap();
        let verdict = history.judge(&vec![0; after.len()], Some(after));
        matches!(verdict, AtomicVerdict::Allowed(_))
    };
    let bytes = || [1, 2].map(|number| call(number, number, Datatype::Uint8, 0..2, number as i8));
    for after in [[1, 1], [1, 2], [2, 1], [2, 2]] {
        assert!(judged(bytes(), &after));
    }
    assert!(!judged(bytes(), &[1, 0]));
    let mixed = || {
        [
            call(1, 1, Datatype::Uint16, 0..2, -1),
            call(2, 1, Datatype::Uint8, 1..2, 3),
        ]
    };
    assert!(judged(mixed(), &[255, 3]));
    assert!(!judged(mixed(), &[255, 255]));
    let [word, byte] = mixed();
    let other = AtomicCall { by: (2, 9), ..byte };
    assert!(!AtomicHistory::new(word).takes(&other, false));
}

/// A read behind a fence sees all operations before it, and none may overtake it.
#[test]
fn a_fenced_read_comes_last() {
    let run = |read: i8| {
        let mut story = Story::new(0);
        let number = story.adds(0, 1);
        story.number += 1;
        let call = AtomicCall::read(story.number, (0, 9), 8..8 + WORD.size());
        let history = story.history.as_mut().unwrap();
        assert!(history.takes(&call, false));
        history.join(AtomicHistory::new(call.clone()));
        assert!(!history.takes(&call, false));
        story.done(number, Vec::new());
        story.done(story.number, word(read));
        story.allows(1)
    };
    assert!(run(1));
    assert!(!run(0), "it does not wait");
}
