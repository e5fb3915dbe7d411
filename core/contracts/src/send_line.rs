//! The sends that wait for a peer, in the order of their calls. Parts of one-sided operations that
//! wait for no fence ([`passes_fences`](crate::types::MsgKind::passes_fences)) pass the sends that do.

use std::collections::VecDeque;

use crate::flags::Flags;
use crate::types::SendOp;

/// A send that waits in a line.
pub trait WaitingSend {
    /// The operation.
    fn op(&self) -> &SendOp;
}

/// A line of sends. A send takes its place in a time that does not depend on how many wait without
/// a fence: a peer may have a million of them.
#[derive(Debug)]
pub struct SendLine<S> {
    line: VecDeque<S>,
    /// The place of the first send with a fence.
    first_fence: Option<usize>,
}

impl<S> Default for SendLine<S> {
    fn default() -> Self {
        Self {
            line: VecDeque::new(),
            first_fence: None,
        }
    }
}

impl<S> SendLine<S> {
    /// The number of sends.
    #[inline]
    pub fn len(&self) -> usize {
        self.line.len()
    }

    /// Whether no send waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// The sends that it has memory for.
    pub fn capacity(&self) -> usize {
        self.line.capacity()
    }

    /// The first one.
    #[inline]
    pub fn front(&self) -> Option<&S> {
        self.line.front()
    }

    /// All, from the first one on.
    pub fn iter(&self) -> impl Iterator<Item = &S> {
        self.line.iter()
    }
}

impl<S: WaitingSend> SendLine<S> {
    /// Puts a send in line: at the end, or before the first fence if it waits for none.
    pub fn push(&mut self, send: S) {
        match self.first_fence {
            Some(fence) if send.op().kind.passes_fences() => {
                self.line.insert(fence, send);
                self.first_fence = Some(fence + 1);
            }
            _ => {
                if self.first_fence.is_none() && has_fence(&send) {
                    self.first_fence = Some(self.line.len());
                }
                self.line.push_back(send);
            }
        }
    }

    /// Puts a send back that was the first one.
    pub fn push_front(&mut self, send: S) {
        self.first_fence = match has_fence(&send) {
            true => Some(0),
            false => self.first_fence.map(|fence| fence + 1),
        };
        self.line.push_front(send);
    }

    /// Takes the first send out.
    #[inline]
    pub fn pop_front(&mut self) -> Option<S> {
        let send = self.line.pop_front()?;
        if let Some(fence) = self.first_fence {
            self.first_fence = match fence {
                0 => self.line.iter().position(has_fence),
                _ => Some(fence - 1),
            };
        }
        Some(send)
    }

    /// Takes the sends out of which this holds, in their order.
    pub fn take(&mut self, mut is_taken: impl FnMut(&S) -> bool) -> Vec<S> {
        let (mut taken, mut kept) = (Vec::new(), VecDeque::new());
        for send in std::mem::take(&mut self.line) {
            match is_taken(&send) {
                true => taken.push(send),
                false => kept.push_back(send),
            }
        }
        self.first_fence = kept.iter().position(has_fence);
        self.line = kept;
        taken
    }

    /// Takes all sends out. The memory of the line stays.
    pub fn drain(&mut self) -> impl Iterator<Item = S> {
        self.first_fence = None;
        self.line.drain(..)
    }
}

fn has_fence<S: WaitingSend>(send: &S) -> bool {
    send.op().flags.contains(Flags::FENCE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::{FiAddr, MrDesc, MsgKind, RemoteKind};

    struct Numbered(SendOp);

    impl WaitingSend for Numbered {
        fn op(&self) -> &SendOp {
            &self.0
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum LineStep {
        Push {
            passes: bool,
            fenced: bool,
        },
        Pop,
        PopAndPutBack,
        /// The numbers that leave a rest.
        Take(u64),
        Drain,
    }

    fn step() -> impl Strategy<Value = LineStep> {
        prop_oneof![
            12 => (any::<bool>(), prop::bool::weighted(0.2))
                .prop_map(|(passes, fenced)| LineStep::Push { passes, fenced: fenced && !passes }),
            4 => Just(LineStep::Pop),
            3 => Just(LineStep::PopAndPutBack),
            1 => (2..4u64).prop_map(LineStep::Take),
            1 => Just(LineStep::Drain),
        ]
    }

    fn send(number: u64, passes: bool, fenced: bool) -> Numbered {
        Numbered(SendOp {
            kind: match passes {
                true => MsgKind::Remote(RemoteKind::Reply),
                false => MsgKind::Msg,
            },
            dest: FiAddr(0),
            tag: 0,
            data: 0,
            desc: MrDesc::NONE,
            context: number,
            flags: match fenced {
                true => Flags::FENCE,
                false => Flags::empty(),
            },
        })
    }

    fn number(send: &Numbered) -> u64 {
        send.0.context
    }

    proptest! {
        /// Against a list in which each send looks for its place.
        #[test]
        fn a_line_is_as_a_list(steps in prop::collection::vec(step(), 0..200)) {
            let mut line = SendLine::default();
            let mut list: Vec<(u64, bool)> = Vec::new();
            for (at, step) in (0..).zip(steps) {
                match step {
                    LineStep::Push { passes, fenced } => {
                        line.push(send(at, passes, fenced));
                        let place = list.iter().position(|(_, fenced)| *fenced);
                        list.insert(place.filter(|_| passes).unwrap_or(list.len()), (at, fenced));
                    }
                    LineStep::Pop => {
                        let first = (!list.is_empty()).then(|| list.remove(0).0);
                        prop_assert_eq!(line.pop_front().as_ref().map(number), first);
                    }
                    LineStep::PopAndPutBack => {
                        if let Some(send) = line.pop_front() {
                            line.push_front(send);
                        }
                    }
                    LineStep::Take(rest) => {
                        let taken = line.take(|send| number(send) % rest == 0);
                        let is_taken = |(of, _): &(u64, bool)| of % rest == 0;
                        let expected: Vec<_> =
                            list.iter().filter(|one| is_taken(one)).map(|one| one.0).collect();
                        prop_assert_eq!(taken.iter().map(number).collect::<Vec<_>>(), expected);
                        list.retain(|one| !is_taken(one));
                    }
                    LineStep::Drain => {
                        let all: Vec<_> = line.drain().map(|send| number(&send)).collect();
                        let expected: Vec<_> = list.drain(..).map(|one| one.0).collect();
                        prop_assert_eq!(all, expected);
                    }
                }
                prop_assert_eq!(line.len(), list.len());
                let order: Vec<_> = line.iter().map(number).collect();
                prop_assert_eq!(order, list.iter().map(|one| one.0).collect::<Vec<_>>());
                prop_assert_eq!(line.front().map(number), list.first().map(|one| one.0));
            }
        }
    }
}
