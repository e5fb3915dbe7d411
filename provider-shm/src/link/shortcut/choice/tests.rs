use std::cell::Cell;
use std::collections::VecDeque;

use super::*;

const COPY: Duration = Duration::from_nanos(2500);
const WRITE: (RmaKind, usize) = (RmaKind::Write, 8);
const ANSWER: PartAnswer = PartAnswer::Delivered(5);

/// A link whose peer answers a message after some time, with a clock of its own.
struct Link {
    choice: ShortcutChoice,
    now: Cell<Instant>,
    waited: Duration,
    copies: usize,
}

impl Link {
    fn new() -> Self {
        Self {
            choice: ShortcutChoice::default(),
            now: Cell::new(Instant::now()),
            waited: Duration::ZERO,
            copies: 0,
        }
    }

    /// Operations one after the other. A message is over when its answer comes.
    fn run(&mut self, operations: usize, answer: impl Fn(Instant) -> Duration) {
        for _ in 0..operations {
            let path = choose(self);
            let took = match path {
                MessagePath::Ring => answer(self.now.get()),
                MessagePath::Cma => COPY,
            };
            self.now.set(self.now.get() + took);
            self.waited += took;
            match path {
                MessagePath::Ring => self.choice.answered(ANSWER, || self.now.get()),
                MessagePath::Cma => {
                    self.copies += 1;
                    self.choice.copied(WRITE, took);
                }
            }
        }
    }
}

/// An operation that starts as it was chosen, with this answer, beside as many others.
fn start(
    choice: &mut ShortcutChoice,
    op: (RmaKind, usize),
    (answer, beside): (PartAnswer, usize),
    behind: usize,
    now: Instant,
) -> MessagePath {
    let path = choice.choose(op, beside, behind, || now);
    choice.started(answer);
    path
}

fn choose(link: &mut Link) -> MessagePath {
    start(&mut link.choice, WRITE, (ANSWER, 0), 0, link.now.get())
}

#[test]
fn the_faster_path_is_taken_nearly_always() {
    for (answer, copies) in [(300, 0..200), (5000, 9800..10_000)] {
        let mut link = Link::new();
        link.run(10_000, |_| Duration::from_nanos(answer));
        assert!(copies.contains(&link.copies), "{answer}: {}", link.copies);
    }
}

/// A peer that polls for a short time and then computes for long costs a small share more than
/// copies alone.
#[test]
fn a_peer_that_computes_now_and_then_costs_little() {
    const POLLS: Duration = Duration::from_micros(200);
    const ALL: Duration = Duration::from_millis(5);
    const MANY: usize = 400_000;

    let mut link = Link::new();
    let begun = link.now.get();
    link.run(MANY, |now| {
        let at = Duration::from_nanos((now - begun).as_nanos() as u64 % ALL.as_nanos() as u64);
        let answer = Duration::from_nanos(300);
        match at < POLLS {
            true => answer,
            false => ALL - at + answer,
        }
    });
    let by_copies = COPY * MANY as u32;
    assert!(link.waited < by_copies * 11 / 10, "{:?}", link.waited);
}

/// While the answer to a part does not come, operations are copies; a part whose answer never
/// comes is forgotten.
#[test]
fn nothing_piles_up_behind_a_part_that_waits() {
    let mut link = Link::new();
    link.run(100, |_| Duration::from_nanos(300));
    let mut messages = 0;
    for _ in 0..1000 {
        messages += usize::from(choose_later(&mut link) == MessagePath::Ring);
    }
    assert!(messages <= 120, "{messages}");
    link.now.set(link.now.get() + LOST * 2);
    assert_eq!(choose_later(&mut link), MessagePath::Cma);
    link.now.set(link.now.get() + LOST * 100);
    for _ in 0..LOOK_OF {
        choose_later(&mut link);
    }
    let again = (0..10).filter(|_| choose_later(&mut link) == MessagePath::Ring);
    assert!(again.count() > 0);

    fn choose_later(link: &mut Link) -> MessagePath {
        link.now.set(link.now.get() + Duration::from_micros(1));
        choose(link)
    }
}

/// An application that finds completions of copies may not poll for the answer that is awaited, so
/// each operation looks for it.
#[test]
fn operations_look_for_the_answer_that_they_wait_for() {
    let mut link = Link::new();
    link.run(100, |_| Duration::from_nanos(300));
    while choose(&mut link) == MessagePath::Cma {}
    link.now.set(link.now.get() + LEAST_WAIT * 2);
    while choose(&mut link) == MessagePath::Ring {}
    for _ in 0..3 * LOOK_OF {
        assert!(link.choice.looks());
        assert_eq!(choose(&mut link), MessagePath::Cma);
    }
}

/// Operations of an application that looks for completions only when a window of them is under
/// way. The peer takes `serves` for each message. Returns the number of copies.
fn stream(kind: RmaKind, len: usize, copy: Duration, serves: Duration, window: usize) -> u32 {
    const POST: Duration = Duration::from_nanos(200);

    let mut choice = ShortcutChoice::default();
    let now = Cell::new(Instant::now());
    let mut answers = VecDeque::new();
    let mut last_at = now.get();
    let (mut copies, mut seen) = (0, 0);
    for number in 0..10_000 {
        let behind = (answers.iter()).filter(|&&(_, at)| at <= now.get()).count();
        for &(answer, _) in answers.range(seen..behind) {
            choice.answered(answer, || now.get());
        }
        seen = behind;
        let answer = PartAnswer::Delivered(number);
        let part = (answer, answers.len());
        match start(&mut choice, (kind, len), part, behind, now.get()) {
            MessagePath::Ring => {
                last_at = last_at.max(now.get() + POST) + serves;
                answers.push_back((answer, last_at));
                now.set(now.get() + POST);
            }
            MessagePath::Cma => {
                copies += 1;
                now.set(now.get() + copy);
                choice.copied((kind, len), copy);
            }
        }
        if answers.len() == window {
            now.set(now.get().max(answers[0].1));
            let there = (answers.iter()).filter(|(_, at)| *at <= now.get()).count();
            for (number, (answer, _)) in answers.drain(..there).enumerate() {
                if number >= seen {
                    choice.answered(answer, || now.get());
                }
            }
            seen = 0;
        }
    }
    copies
}

/// Streams go the way that has the higher rate, though one message takes longer than one copy.
#[test]
fn streams_go_the_way_of_the_higher_rate() {
    const SHORT: Duration = Duration::from_nanos(1500);
    const LONG: Duration = Duration::from_nanos(6500);

    for window in [8, 64, 1000] {
        let copies = stream(RmaKind::Write, 8, SHORT, Duration::from_nanos(300), window);
        assert!(copies < 300, "short {window}: {copies}");
        let copies = stream(RmaKind::Write, 8, SHORT, Duration::from_nanos(1800), window);
        assert!(copies > 9000, "slow {window}: {copies}");
    }
    for (serves, expected) in [(5300, 0..1000), (7000, 9000..10_000)] {
        let serves = Duration::from_nanos(serves);
        let copies = stream(RmaKind::Read, 65_536, LONG, serves, 16);
        assert!(expected.contains(&copies), "{serves:?}: {copies}");
    }
}

/// The replies that come before that of a read share its time.
#[test]
fn a_read_shares_its_time_with_those_before_it() {
    let mut choice = ShortcutChoice::default();
    let now = Instant::now();
    let read = (RmaKind::Read, 8);
    for _ in 0..100 {
        let reply = |number: u64| PartAnswer::Reply(number << 32);
        if start(&mut choice, read, (reply(100), 0), 0, now) == MessagePath::Ring {
            // Those of later ones do not.
            for number in (1..100).chain(200..300).chain([100]) {
                choice.answered(reply(number), || now + Duration::from_micros(50));
            }
        } else {
            choice.copied(read, COPY);
        }
    }
    let classes = choice.classes.unwrap();
    assert!(classes[class_of(RmaKind::Read, 8)].prefers_messages);
    assert!(!classes[class_of(RmaKind::Write, 8)].prefers_messages);
}

/// Answers that this side has not taken are no sign of a peer that waits.
#[test]
fn a_side_that_is_behind_does_not_blame_its_peer() {
    let mut link = Link::new();
    link.run(100, |_| Duration::from_nanos(300));
    for is_behind in [true, false] {
        link.now.set(link.now.get() + LEAST_WAIT * 2);
        let paths = (0..2 * LOOK_OF).map(|_| {
            let behind = usize::from(is_behind);
            start(&mut link.choice, WRITE, (ANSWER, 0), behind, link.now.get())
        });
        let copies = paths.filter(|path| *path == MessagePath::Cma).count();
        assert_eq!(copies > RARE, !is_behind, "{copies}");
    }

    /// Copies among messages that try the other path.
    const RARE: usize = 4;
}

/// A message behind others of the link is not slow for that.
#[test]
fn a_message_shares_its_time_with_those_before_it() {
    let mut choice = ShortcutChoice::default();
    let now = Instant::now();
    for _ in 0..100 {
        if start(&mut choice, WRITE, (ANSWER, 99), 0, now) == MessagePath::Ring {
            choice.answered(ANSWER, || now + Duration::from_micros(50));
        } else {
            choice.copied(WRITE, COPY);
        }
    }
    let classes = choice.classes.unwrap();
    assert!(classes[class_of(RmaKind::Write, 8)].prefers_messages);
}

/// Long messages take turns, so a shorter one behind them may be answered first.
#[test]
fn answers_of_a_run_come_in_any_order() {
    for order in [[1, 2, 3], [3, 2, 1], [2, 3, 1]] {
        let mut choice = ShortcutChoice::default();
        let now = Instant::now();
        for id in 1..=3 {
            let part = (PartAnswer::Delivered(id), 0);
            assert_eq!(start(&mut choice, WRITE, part, 0, now), MessagePath::Ring);
        }
        for id in order {
            assert!(choice.timed.is_some(), "{order:?} before {id}");
            choice.answered(PartAnswer::Delivered(id), || now + COPY);
        }
        assert!(choice.timed.is_none(), "{order:?}");
    }
}

/// An operation that waits in line gets its id later, and others may have got the next one.
#[test]
fn an_operation_in_line_is_not_timed() {
    let mut choice = ShortcutChoice::default();
    let now = Instant::now();
    assert_eq!(choice.choose(WRITE, 0, 0, || now), MessagePath::Ring);
    choice.waits_in_line();
    choice.started(PartAnswer::Delivered(7));
    assert!(choice.timed.is_none());
}

/// A run whose answer is lost does not make a peer slow that answers other messages.
#[test]
fn a_peer_that_answers_others_is_not_blamed_for_a_lost_answer() {
    let mut choice = ShortcutChoice::default();
    let mut now = Instant::now();
    start(&mut choice, WRITE, (PartAnswer::Delivered(1), 0), 0, now);
    let end = now + LOST;
    while now <= end {
        assert!(choice.timed.is_some());
        now += LEAST_WAIT / 4;
        choice.answered(PartAnswer::Delivered(2), || now);
        choice.choose(WRITE, 0, 0, || now);
    }
    for _ in 0..LOOK_OF {
        choice.choose(WRITE, 0, 0, || now);
    }
    assert!(choice.timed.is_none() && choice.copies_until.is_none());
}

#[test]
fn each_length_has_a_class() {
    let classes = [0, 1, 127, 128, 255, 256, usize::MAX].map(|len| class_of(RmaKind::Read, len));
    assert_eq!(classes, [0, 0, 0, 1, 1, 2, CLASSES - 1]);
}
