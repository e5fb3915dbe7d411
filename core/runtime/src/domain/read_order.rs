//! The order in which reads complete (`docs/adr/0082`): those of one peer's memory in the order of
//! their calls. One that is over sooner is kept back until those before it are over.

use std::collections::VecDeque;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, RmaOp};
use rustc_hash::FxHashMap;

/// Why an operation fails: an errno, the transport's own number, and words.
pub(super) type Why = (Errno, i32, &'static str);

/// A read that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadOver {
    pub(super) context: u64,
    pub(super) peer: FiAddr,
    pub(super) flags: Flags,
    /// Its length, or why it failed.
    pub(super) outcome: Result<usize, Why>,
}

impl ReadOver {
    pub(super) fn new(op: &RmaOp, outcome: Result<usize, Why>) -> Self {
        Self {
            context: op.context,
            peer: op.dest,
            flags: op.flags - Flags::ATOMIC,
            outcome,
        }
    }
}

/// A read in its line.
enum LinedRead {
    UnderWay,
    Over(ReadOver),
    /// It never began.
    Withdrawn,
}

/// The reads of one peer, from the oldest one that is under way.
#[derive(Default)]
struct Line {
    /// The place of the first one.
    first: u32,
    reads: VecDeque<LinedRead>,
}

/// The reads that are under way, in a line for each peer. While no request of a read is under way,
/// the reads of a device stand in no line: the device keeps their order.
#[derive(Default)]
pub(super) struct ReadOrder {
    lines: FxHashMap<FiAddr, Line>,
    /// Reads in all lines.
    lined: usize,
    /// Reads by devices that stand in no line.
    pub(super) unlined: usize,
}

impl ReadOrder {
    /// Whether a read may have to wait for others.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.lined == 0
    }

    /// A read begins. Returns its place.
    pub(super) fn begin(&mut self, peer: FiAddr) -> u32 {
        let line = self.lines.entry(peer).or_default();
        let place = line.first.wrapping_add(line.reads.len() as u32);
        line.reads.push_back(LinedRead::UnderWay);
        self.lined += 1;
        place
    }

    /// A read is over. Returns it if those before it are over; the next ones that are over then
    /// come from [`next_over`](Self::next_over).
    pub(super) fn end(&mut self, place: u32, over: ReadOver) -> Option<ReadOver> {
        let line = self.lines.get_mut(&over.peer)?;
        let at = place.wrapping_sub(line.first) as usize;
        if at != 0 {
            *line.reads.get_mut(at)? = LinedRead::Over(over);
            return None;
        }
        line.reads.pop_front()?;
        line.first = line.first.wrapping_add(1);
        self.lined -= 1;
        Some(over)
    }

    /// Takes out the next read of a peer if that is over.
    pub(super) fn next_over(&mut self, peer: FiAddr) -> Option<ReadOver> {
        if self.is_empty() {
            return None;
        }
        let line = self.lines.get_mut(&peer)?;
        loop {
            let over = match line.reads.front()? {
                LinedRead::UnderWay => return None,
                LinedRead::Over(over) => Some(*over),
                LinedRead::Withdrawn => None,
            };
            line.reads.pop_front();
            line.first = line.first.wrapping_add(1);
            self.lined -= 1;
            if over.is_some() {
                return over;
            }
        }
    }

    /// A peer is gone: the lines in which no read stands go, too.
    pub(super) fn forget_empty_lines(&mut self) {
        self.lines.retain(|_, line| !line.reads.is_empty());
    }

    /// A read never began after all.
    pub(super) fn withdraw(&mut self, peer: FiAddr, place: u32) {
        let Some(line) = self.lines.get_mut(&peer) else {
            return;
        };
        let at = place.wrapping_sub(line.first) as usize;
        if at + 1 == line.reads.len() {
            line.reads.pop_back();
            self.lined -= 1;
        } else if let Some(read) = line.reads.get_mut(at) {
            *read = LinedRead::Withdrawn;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const PEERS: u64 = 3;

    fn over(peer: FiAddr, context: u64) -> ReadOver {
        ReadOver {
            context,
            peer,
            flags: Flags::empty(),
            outcome: Ok(0),
        }
    }

    proptest! {
        /// Each read comes out once, after those of its peer that began before it, and as soon as
        /// they are over; none is left.
        #[test]
        fn reads_come_out_in_the_order_of_their_calls(
            steps in proptest::collection::vec((0..PEERS, 0..4_u8, any::<prop::sample::Index>()), 0..200),
        ) {
            let mut order = ReadOrder::default();
            // The reads of each peer that have not come out: context, place, and whether one is over.
            let mut model: HashMap<u64, VecDeque<(u64, u32, bool)>> = HashMap::new();
            let end = |order: &mut ReadOrder, line: &mut VecDeque<_>, peer, at: usize| {
                let (context, place, is_over): &mut (u64, u32, bool) = &mut line[at];
                if std::mem::replace(is_over, true) {
                    return Ok(());
                }
                let mut found = Vec::new();
                if let Some(first) = order.end(*place, over(FiAddr(peer), *context)) {
                    found.push(first.context);
                    while let Some(next) = order.next_over(FiAddr(peer)) {
                        found.push(next.context);
                    }
                }
                let mut wanted = Vec::new();
                while let Some((context, _, true)) = line.front() {
                    wanted.push(*context);
                    line.pop_front();
                }
                prop_assert_eq!(found, wanted);
                Ok(())
            };
            for (number, (peer, kind, index)) in (0..).zip(steps) {
                let line = model.entry(peer).or_default();
                match kind {
                    0 | 1 => line.push_back((number, order.begin(FiAddr(peer)), false)),
                    2 => {
                        let place = order.begin(FiAddr(peer));
                        order.withdraw(FiAddr(peer), place);
                    }
                    _ if line.is_empty() => {}
                    _ => {
                        let at = index.index(line.len());
                        end(&mut order, line, peer, at)?;
                    }
                }
            }
            for (peer, mut line) in model {
                while !line.is_empty() {
                    let last = line.len() - 1;
                    // From the back, and those that are over already stay until the first ends.
                    for at in (0..=last).rev() {
                        if at < line.len() {
                            end(&mut order, &mut line, peer, at)?;
                        }
                    }
                }
            }
            prop_assert!(order.is_empty());
            order.forget_empty_lines();
            prop_assert!(order.lines.is_empty());
        }
    }

    /// A read that never began stands in nobody's way, others behind it or not.
    #[test]
    fn withdrawn_reads_hold_up_nobody() {
        let (mut order, peer) = (ReadOrder::default(), FiAddr(7));
        let places = [0, 1, 2].map(|_| order.begin(peer));
        order.withdraw(peer, places[1]);
        assert_eq!(order.end(places[2], over(peer, 2)), None);
        assert_eq!(order.end(places[0], over(peer, 0)), Some(over(peer, 0)));
        assert_eq!(order.next_over(peer), Some(over(peer, 2)));
        assert_eq!(order.next_over(peer), None);
        assert!(order.is_empty());
    }
}
