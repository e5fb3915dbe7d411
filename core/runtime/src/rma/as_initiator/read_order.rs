//! The order in which reads complete (`docs/adr/0082`): those of one peer's memory in the order of
//! their calls. One that ends sooner is kept back until those before it have ended.

use std::collections::VecDeque;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::{FiAddr, RmaOp};
use rustc_hash::FxHashMap;
use slab::Slab;

/// Why an operation fails: an errno, the transport's own number, and words.
pub(crate) type Why = (Errno, i32, &'static str);

/// The place of a read in the line of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadPlace {
    line: u32,
    number: u32,
}

/// A read that has ended: its length, or why it failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedRead {
    pub(crate) op: RmaOp,
    pub(crate) outcome: Result<usize, Why>,
}

/// The reads of one peer, from the oldest one that is under way.
struct Line {
    peer: FiAddr,
    /// The number of the first one.
    first: u32,
    /// Those that have ended are kept here.
    reads: VecDeque<Option<Box<EndedRead>>>,
}

/// The reads that are under way, in a line for each peer. While no request of a read is under way,
/// the reads of a device stand in no line: the device keeps their order.
#[derive(Default)]
pub(crate) struct ReadOrder {
    lines: Slab<Line>,
    by_peer: FxHashMap<FiAddr, usize>,
    /// The line of the read that began last.
    last: usize,
    /// Reads in all lines.
    lined: usize,
    /// Reads by devices that stand in no line.
    pub(crate) unlined: usize,
}

impl ReadOrder {
    /// Whether no read stands in a line.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.lined == 0
    }

    /// A read begins.
    #[inline]
    pub(crate) fn begin(&mut self, peer: FiAddr) -> ReadPlace {
        if (self.lines.get(self.last)).is_none_or(|line| line.peer != peer) {
            self.last = self.line_of(peer);
        }
        let line = &mut self.lines[self.last];
        let number = line.first.wrapping_add(line.reads.len() as u32);
        line.reads.push_back(None);
        self.lined += 1;
        ReadPlace {
            line: self.last as u32,
            number,
        }
    }

    #[cold]
    fn line_of(&mut self, peer: FiAddr) -> usize {
        let lines = &mut self.lines;
        *(self.by_peer.entry(peer)).or_insert_with(|| {
            lines.insert(Line {
                peer,
                first: 0,
                reads: VecDeque::new(),
            })
        })
    }

    /// A read ends. Returns whether those before it have: then it leaves its line, and the next ones
    /// that have ended come from [`next_ended`](Self::next_over). Otherwise it is to be
    /// [kept](Self::keep).
    #[inline]
    pub(crate) fn end(&mut self, place: ReadPlace) -> bool {
        let Some(line) = self.lines.get_mut(place.line as usize) else {
            return false;
        };
        if line.first != place.number {
            return false;
        }
        line.reads.pop_front();
        line.first = line.first.wrapping_add(1);
        self.lined -= 1;
        true
    }

    /// Keeps a read that has ended until those before it have.
    #[cold]
    pub(crate) fn keep(&mut self, place: ReadPlace, over: EndedRead) {
        let Some(line) = self.lines.get_mut(place.line as usize) else {
            return;
        };
        let at = place.number.wrapping_sub(line.first) as usize;
        if let Some(read) = line.reads.get_mut(at) {
            *read = Some(Box::new(over));
        }
    }

    /// Takes the read that is now first in the line of another out, if it has ended.
    pub(crate) fn next_ended(&mut self, before: ReadPlace) -> Option<EndedRead> {
        let line = self.lines.get_mut(before.line as usize)?;
        let over = line.reads.front_mut()?.take()?;
        line.reads.pop_front();
        line.first = line.first.wrapping_add(1);
        self.lined -= 1;
        Some(*over)
    }

    /// A peer is gone: the lines in which no read stands go, too.
    pub(crate) fn forget_empty_lines(&mut self) {
        let lines = &mut self.lines;
        self.by_peer.retain(|_, line| {
            let is_empty = lines[*line].reads.is_empty();
            if is_empty {
                lines.remove(*line);
            }
            !is_empty
        });
    }

    /// The read that began last in its line did not begin after all.
    pub(crate) fn withdraw(&mut self, place: ReadPlace) {
        if let Some(line) = self.lines.get_mut(place.line as usize) {
            let next = place.number.wrapping_add(1).wrapping_sub(line.first);
            debug_assert_eq!(next as usize, line.reads.len(), "a read began since");
            line.reads.pop_back();
            self.lined -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ferrofabric_contracts::flags::Flags;
    use ferrofabric_contracts::types::{MrDesc, RmaKind};
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;

    fn over(peer: FiAddr, context: u64) -> EndedRead {
        let op = RmaOp {
            kind: RmaKind::Read,
            dest: peer,
            key: 0,
            place: 0,
            data: 0,
            desc: MrDesc::NONE,
            context,
            flags: Flags::empty(),
        };
        EndedRead { op, outcome: Ok(0) }
    }

    /// Ends a read, and returns the contexts of those that come out.
    fn end(order: &mut ReadOrder, peer: FiAddr, place: ReadPlace, context: u64) -> Vec<u64> {
        if !order.end(place) {
            order.keep(place, over(peer, context));
            return Vec::new();
        }
        let mut out = vec![context];
        while let Some(next) = order.next_ended(place) {
            assert_eq!(next.op.dest, peer);
            out.push(next.op.context);
        }
        out
    }

    /// A read of the model: its context, its place, and whether it has ended.
    type ModelRead = (u64, ReadPlace, bool);

    /// Ends a read in the model, and returns the contexts of those that come out.
    fn end_in_model(line: &mut VecDeque<ModelRead>, at: usize) -> Vec<u64> {
        line[at].2 = true;
        let mut out = Vec::new();
        while let Some(&(context, _, true)) = line.front() {
            out.push(context);
            line.pop_front();
        }
        out
    }

    proptest! {
        /// Each read comes out once, after those of its peer that began before it and as soon as
        /// they have ended, and no line is left.
        #[test]
        fn reads_come_out_in_the_order_of_their_calls(
            steps in proptest::collection::vec((0..3_u64, 0..4_u8, any::<Index>()), 0..200),
        ) {
            let mut order = ReadOrder::default();
            let mut model: BTreeMap<u64, VecDeque<ModelRead>> = BTreeMap::new();
            for (context, (peer, kind, index)) in (0..).zip(steps) {
                let line = model.entry(peer).or_default();
                let peer = FiAddr(peer);
                let going: Vec<usize> = (0..line.len()).filter(|at| !line[*at].2).collect();
                match kind {
                    0 | 1 => line.push_back((context, order.begin(peer), false)),
                    2 => {
                        let place = order.begin(peer);
                        order.withdraw(place);
                    }
                    _ if going.is_empty() => order.forget_empty_lines(),
                    _ => {
                        let at = *index.get(&going);
                        let (context, place, _) = line[at];
                        let out = end(&mut order, peer, place, context);
                        prop_assert_eq!(out, end_in_model(line, at));
                    }
                }
            }
            for (peer, mut line) in model {
                // From the back.
                let going: Vec<ModelRead> = line.iter().copied().filter(|read| !read.2).collect();
                for (context, place, _) in going.into_iter().rev() {
                    let at = line.iter().position(|read| read.0 == context).unwrap();
                    let out = end(&mut order, FiAddr(peer), place, context);
                    prop_assert_eq!(out, end_in_model(&mut line, at));
                }
            }
            prop_assert!(order.is_empty());
            order.forget_empty_lines();
            prop_assert!(order.lines.is_empty() && order.by_peer.is_empty());
        }
    }
}
