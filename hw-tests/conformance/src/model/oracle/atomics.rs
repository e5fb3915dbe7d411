//! The outcomes of atomic operations that are allowed: a search for an order in which they explain
//! the bytes that each one fetched, and those that they leave.
//!
//! The operations of an initiator on a target are carried out in their order, those of several in
//! any order, but for those that begin after another one has completed. Each element changes in one
//! step; an array as a whole does not (fi_atomic(3)). An operation whose end is unknown is carried
//! out once, or not at all, at any time after it has begun.

use std::collections::HashSet;
use std::ops::Range;

use ferrofabric_contracts::atomics::{AtomicForm, AtomicOperator, Datatype};

use super::super::history::NodeNumber;
use super::elements::{changed, is_integer, is_same};

/// Operations of a history, at most.
const MAX_OPS: usize = 64;

/// States of an element that a search looks at, at most.
const MAX_STATES: usize = 20_000;

/// An atomic operation that has begun.
#[derive(Clone, Debug)]
pub struct AtomicCall {
    /// Its number: an operation that begins later has a higher one.
    pub number: usize,
    /// Initiator and target.
    pub by: (NodeNumber, NodeNumber),
    /// The bytes of the target's region.
    pub place: Range<usize>,
    /// The form.
    pub form: AtomicForm,
    /// The operator.
    pub operator: AtomicOperator,
    /// The type of the elements.
    pub datatype: Datatype,
    /// The operands; empty if the operator has none.
    pub operands: Vec<u8>,
    /// The compare values; empty if the form has none.
    pub compares: Vec<u8>,
    /// It is a fenced read, and no atomic operation: those that begin later may overtake it.
    pub is_plain: bool,
}

/// How an atomic operation ended.
#[derive(Clone, Debug, PartialEq)]
pub enum AtomicEnd {
    /// It succeeded before the operation with the number `before` began, with these elements from
    /// before it; empty if its form fetches none.
    Done {
        /// The first number of an operation that began later.
        before: usize,
        /// The elements that came back.
        fetched: Vec<u8>,
    },
    /// The target refused it, and did not carry it out.
    Refused,
    /// It failed, and may have been carried out or may be later.
    Unknown,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq)]
pub enum AtomicVerdict {
    /// There is an order that explains everything; it leaves these bytes.
    Allowed(Vec<u8>),
    /// There is none.
    Forbidden(String),
    /// It would take too long to find out.
    Undecided,
}

/// Atomic operations on bytes that nothing else uses meanwhile.
#[derive(Clone, Debug)]
pub struct AtomicHistory {
    /// All bytes that they use.
    pub place: Range<usize>,
    /// The content after all of them, where it is known before they have ended.
    pub after: Option<Vec<u8>>,
    ops: Vec<(AtomicCall, Option<AtomicEnd>)>,
}

impl AtomicCall {
    /// A read that begins when all operations before it are over.
    pub fn read(number: usize, by: (NodeNumber, NodeNumber), place: Range<usize>) -> Self {
        Self {
            number,
            by,
            place,
            form: AtomicForm::Fetch,
            operator: AtomicOperator::Read,
            datatype: Datatype::Uint8,
            operands: Vec::new(),
            compares: Vec::new(),
            is_plain: true,
        }
    }

    /// Whether it may be under way at the same time as an operation that uses some of its bytes.
    fn may_share(&self, other: &Self, is_ordered: bool) -> bool {
        let is_one_word = self.datatype == other.datatype
            && self.place.start.abs_diff(other.place.start) % self.datatype.size() == 0;
        let are_bits = is_integer(self.datatype) && is_integer(other.datatype);
        is_one_word || (are_bits && is_ordered && self.by == other.by)
    }
}

impl AtomicHistory {
    /// The history of one operation.
    pub fn new(call: AtomicCall) -> Self {
        Self {
            place: call.place.clone(),
            after: None,
            ops: vec![(call, None)],
        }
    }

    /// Whether it has some of these bytes.
    pub fn overlaps(&self, place: &Range<usize>) -> bool {
        self.place.start < place.end && place.start < self.place.end
    }

    /// Whether all its operations have this initiator and target.
    pub fn is_by(&self, by: (NodeNumber, NodeNumber)) -> bool {
        self.ops.iter().all(|(call, _)| call.by == by)
    }

    /// Whether an operation may begin in the midst of it. With `alone`, only one of the initiator
    /// and target that all others have.
    pub fn takes(&self, call: &AtomicCall, alone: bool) -> bool {
        let mut ops = self.ops.iter();
        self.ops.len() < MAX_OPS
            && ops.all(|(other, end)| {
                let is_known = *end != Some(AtomicEnd::Unknown);
                let shares = other.place.start < call.place.end
                    && call.place.start < other.place.end
                    && *end != Some(AtomicEnd::Refused);
                let is_overtaken = other.is_plain && end.is_none();
                (!alone || (is_known && other.by == call.by))
                    && !(shares && is_overtaken)
                    && (!shares || call.may_share(other, is_known))
            })
    }

    /// Adds the operations of another history.
    pub fn join(&mut self, other: Self) {
        self.place = self.place.start.min(other.place.start)..self.place.end.max(other.place.end);
        self.ops.extend(other.ops);
        self.ops.sort_unstable_by_key(|(call, _)| call.number);
    }

    /// Whether it has this operation.
    pub fn has(&self, number: usize) -> bool {
        self.ops.iter().any(|(call, _)| call.number == number)
    }

    /// Whether an operation of it is under way.
    pub fn is_open(&self) -> bool {
        self.ops.iter().any(|(_, end)| end.is_none())
    }

    /// Whether nothing of it can change a byte any more.
    pub fn is_over(&self) -> bool {
        let mut ops = self.ops.iter();
        ops.all(|(_, end)| end.as_ref().is_some_and(|end| *end != AtomicEnd::Unknown))
    }

    /// An operation is over.
    ///
    /// # Errors
    ///
    /// It was over already, or has fetched elements of another number than it changes.
    pub fn end(&mut self, number: usize, end: AtomicEnd) -> Result<(), String> {
        let mut ops = self.ops.iter_mut();
        let op = ops.find(|(call, _)| call.number == number);
        let (call, before) = op.ok_or("an atomic operation that is none completes")?;
        if let AtomicEnd::Done { fetched, .. } = &end {
            let len = match call.form {
                AtomicForm::Base => 0,
                AtomicForm::Fetch | AtomicForm::Compare => call.place.len(),
            };
            if fetched.len() != len {
                return Err(format!("{} of {len} bytes are fetched", fetched.len()));
            }
        }
        match before.replace(end) {
            None => Ok(()),
            Some(_) => Err(format!("an atomic operation completes twice: {call:?}")),
        }
    }

    /// Whether the operations explain how `before` became `after`, the bytes of the place; none for
    /// `after`: nobody here can see them. Operations that have not ended do not count.
    pub fn judge(&self, before: &[u8], after: Option<&[u8]>) -> AtomicVerdict {
        let mut left = before.to_vec();
        for element in self.elements() {
            let (start, end) = (
                element.start - self.place.start,
                element.end - self.place.start,
            );
            let mut search = ElementSearch {
                ops: self.ops_on(&element),
                after: after.map(|after| &after[start..end]),
                seen: HashSet::new(),
                furthest: 0,
                why: String::new(),
            };
            match search.explains(0, &before[start..end]) {
                Some(value) => left[start..end].copy_from_slice(&value),
                None if search.seen.len() >= MAX_STATES => return AtomicVerdict::Undecided,
                None => {
                    return AtomicVerdict::Forbidden(format!(
                        "no order of atomic operations explains bytes {element:?}, which were \
                         {:02x?} and became {:02x?}: {}{}",
                        &before[start..end],
                        search.after,
                        search.why,
                        self.in_words(&element),
                    ));
                }
            }
        }
        AtomicVerdict::Allowed(left)
    }

    /// The bytes that belong to one element each. Where those of several operations overlap without
    /// being the same, that is one.
    fn elements(&self) -> Vec<Range<usize>> {
        let mut is_inside = vec![false; self.place.len() + 1];
        for (call, _) in &self.ops {
            let first = call.place.start - self.place.start;
            for at in 0..call.place.len() {
                is_inside[first + at] |= at % call.datatype.size() != 0;
            }
        }
        let cuts = (0..is_inside.len()).filter(|&at| !is_inside[at]);
        let cuts: Vec<_> = cuts.map(|at| self.place.start + at).collect();
        cuts.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }

    /// The operations that may have changed an element.
    fn ops_on(&self, element: &Range<usize>) -> Vec<ElementOp<'_>> {
        let mut ops: Vec<ElementOp<'_>> = Vec::new();
        for (call, end) in &self.ops {
            let is_in = call.place.start < element.end && element.start < call.place.end;
            let (fetched, before) = match end {
                Some(AtomicEnd::Done { fetched, before }) => (&fetched[..], *before),
                Some(AtomicEnd::Unknown) => (&[][..], usize::MAX),
                Some(AtomicEnd::Refused) | None => continue,
            };
            if !is_in {
                continue;
            }
            let must = before != usize::MAX;
            let comes_first = |op: &ElementOp<'_>| {
                op.must && (op.before <= call.number || (must && op.call.by == call.by))
            };
            let behind = (0..ops.len()).filter(|&at| comes_first(&ops[at]));
            ops.push(ElementOp {
                call,
                fetched,
                must,
                before,
                behind: behind.fold(0, |all, at| all | (1 << at)),
                from: element.start.max(call.place.start) - call.place.start,
                to: element.end.min(call.place.end) - call.place.start,
                at: call.place.start.saturating_sub(element.start),
            });
        }
        ops
    }

    fn in_words(&self, element: &Range<usize>) -> String {
        let ops = self.ops_on(element);
        let ops = ops.iter().map(|op| {
            format!(
                "\n  {} by {:?}: {:?} {:?} {:?}, operands {:02x?}, compare values {:02x?}, fetched \
                 {:02x?}, {}",
                op.call.number,
                op.call.by,
                op.call.form,
                op.call.operator,
                op.call.datatype,
                op.part(&op.call.operands),
                op.part(&op.call.compares),
                op.part(op.fetched),
                if op.must {
                    format!("before {}", op.before)
                } else {
                    "perhaps".into()
                },
            )
        });
        ops.collect()
    }
}

/// The part of an operation that is about one element.
struct ElementOp<'a> {
    call: &'a AtomicCall,
    fetched: &'a [u8],
    /// It was carried out.
    must: bool,
    /// The first number of an operation that began after its end.
    before: usize,
    /// The operations that were carried out before it, a bit for each.
    behind: u64,
    /// The bytes in its arrays.
    from: usize,
    to: usize,
    /// The place in the element.
    at: usize,
}

impl ElementOp<'_> {
    fn part<'b>(&self, array: &'b [u8]) -> &'b [u8] {
        array.get(self.from..self.to).unwrap_or_default()
    }

    /// The element after it, if it may have found this one.
    fn on(&self, value: &[u8]) -> Option<Vec<u8>> {
        let (datatype, operator) = (self.call.datatype, self.call.operator);
        let size = datatype.size();
        let place = self.at..self.at + self.to - self.from;
        let fetched = self.part(self.fetched);
        if !fetched.is_empty() && !is_same(datatype, fetched, &value[place.clone()]) {
            return None;
        }
        let mut after = value.to_vec();
        let mut operands = self.part(&self.call.operands).chunks(size);
        let mut compares = self.part(&self.call.compares).chunks(size);
        for target in after[place].chunks_mut(size) {
            let operand = operands.next().unwrap_or_default();
            let compare = compares.next().unwrap_or_default();
            target.copy_from_slice(&changed(operator, datatype, target, operand, compare));
        }
        Some(after)
    }
}

struct ElementSearch<'a> {
    ops: Vec<ElementOp<'a>>,
    after: Option<&'a [u8]>,
    seen: HashSet<(u64, Vec<u8>)>,
    furthest: u32,
    why: String,
}

impl ElementSearch<'_> {
    /// Whether the operations that are not `done` explain how the value becomes the last one, which
    /// is returned.
    fn explains(&mut self, done: u64, value: &[u8]) -> Option<Vec<u8>> {
        let mut ops = self.ops.iter().enumerate();
        let are_all = ops.all(|(at, op)| !op.must || (done >> at) & 1 == 1);
        let is_last = |after: &[u8]| match self.ops.first() {
            Some(op) => is_same(op.call.datatype, after, value),
            None => after == value,
        };
        if are_all && self.after.is_none_or(is_last) {
            return Some(value.to_vec());
        }
        if self.seen.len() >= MAX_STATES || !self.seen.insert((done, value.to_vec())) {
            return None;
        }
        let is_next =
            |(at, op): (usize, &ElementOp<'_>)| (done >> at) & 1 == 0 && op.behind & !done == 0;
        let next = (0..self.ops.len()).filter(|&at| is_next((at, &self.ops[at])));
        for at in next.collect::<Vec<_>>() {
            if let Some(after) = self.ops[at].on(value) {
                if let Some(last) = self.explains(done | (1 << at), &after) {
                    return Some(last);
                }
            }
        }
        if self.why.is_empty() || done.count_ones() > self.furthest {
            self.furthest = done.count_ones();
            self.why = format!("{value:02x?} behind {} of them", self.furthest);
        }
        None
    }
}

#[cfg(test)]
mod tests;
