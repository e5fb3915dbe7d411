//! The completion queue behind `fi_cq_read`: entries in order, errors in their place among them, nothing lost when
//! it overflows (it grows; its size is where back-pressure on new operations starts).

use std::collections::VecDeque;

use crate::error::{Errno, OpError};
use crate::peer::{Completion, CqError, PeerCq};

/// The queue of one completion queue object. The domain's lock guards it.
#[derive(Debug)]
pub struct CqQueue {
    entries: VecDeque<Completion>,
    /// Errors, each with the number of entries that were written before it.
    errors: VecDeque<(u64, CqError)>,
    written: u64,
    read: u64,
}

impl CqQueue {
    /// A queue with room for `size` entries before it has to grow.
    pub fn new(size: usize) -> Self {
        Self {
            entries: VecDeque::with_capacity(size.max(1)),
            errors: VecDeque::new(),
            written: 0,
            read: 0,
        }
    }

    /// Whether there is nothing to read, neither entry nor error.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.errors.is_empty()
    }

    /// Whether there are that many entries, or an error.
    #[inline]
    pub fn holds(&self, least: usize) -> bool {
        !self.errors.is_empty() || self.entries.len() >= least.max(1)
    }

    /// Moves entries to `out`, up to the next error.
    ///
    /// # Errors
    ///
    /// `Again` when there is nothing, `EAVAIL` when an error is next: take it with [`read_error`](Self::read_error).
    #[inline]
    pub fn read(&mut self, out: &mut [Completion]) -> Result<usize, OpError> {
        if let Some((after, _)) = self.errors.front() {
            return self.read_before_error(*after, out);
        }
        self.pop(out)
    }

    /// Takes the error that is next.
    pub fn read_error(&mut self) -> Option<CqError> {
        if self.errors.front()?.0 != self.read {
            return None;
        }
        self.errors.pop_front().map(|(_, error)| error)
    }

    #[cold]
    fn read_before_error(&mut self, after: u64, out: &mut [Completion]) -> Result<usize, OpError> {
        let before = (after - self.read) as usize;
        if before == 0 {
            return Err(OpError::Failed(Errno::EAVAIL));
        }
        let take = before.min(out.len());
        self.pop(&mut out[..take])
    }

    #[inline]
    fn pop(&mut self, out: &mut [Completion]) -> Result<usize, OpError> {
        let mut n = 0;
        while n < out.len() {
            let Some(entry) = self.entries.pop_front() else {
                break;
            };
            out[n] = entry;
            n += 1;
        }
        if n == 0 && !out.is_empty() {
            return Err(OpError::Again);
        }
        self.read += n as u64;
        Ok(n)
    }
}

impl PeerCq for CqQueue {
    #[inline]
    fn write(&mut self, completion: &Completion) {
        self.entries.push_back(*completion);
        self.written += 1;
    }

    #[cold]
    fn write_error(&mut self, error: CqError) {
        self.errors.push_back((self.written, error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::Flags;
    use crate::types::FiAddr;
    use proptest::prelude::*;

    fn entry(context: u64) -> Completion {
        Completion {
            context,
            flags: Flags::RECV,
            len: 0,
            buf: 0,
            data: 0,
            tag: 0,
            src: FiAddr::NOTAVAIL,
        }
    }

    fn error(context: u64) -> CqError {
        CqError {
            completion: entry(context),
            olen: 0,
            errno: Errno::EIO,
            prov_errno: 0,
            why: "test",
            sender: None,
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Write,
        WriteError,
        Read(usize),
    }

    proptest! {
        /// Covers: PEER-4
        #[test]
        fn entries_and_errors_come_out_in_the_order_they_went_in(
            ops in proptest::collection::vec(
                prop_oneof![
                    4 => Just(Op::Write),
                    1 => Just(Op::WriteError),
                    3 => (1usize..5).prop_map(Op::Read),
                ],
                0..200,
            )
        ) {
            let mut cq = CqQueue::new(2);
            let mut model: VecDeque<(bool, u64)> = VecDeque::new();
            let mut next = 0;
            let mut out = [entry(0); 5];
            for op in ops.into_iter().chain(std::iter::repeat_n(Op::Read(4), 200)) {
                match op {
                    Op::Write => {
                        cq.write(&entry(next));
                        model.push_back((true, next));
                        next += 1;
                    }
                    Op::WriteError => {
                        cq.write_error(error(next));
                        model.push_back((false, next));
                        next += 1;
                    }
                    Op::Read(n) => match cq.read(&mut out[..n]) {
                        Ok(got) => {
                            prop_assert!(got > 0);
                            for c in &out[..got] {
                                prop_assert_eq!(model.pop_front(), Some((true, c.context)));
                            }
                        }
                        Err(OpError::Failed(Errno::EAVAIL)) => {
                            let e = cq.read_error().expect("an error is next");
                            prop_assert_eq!(model.pop_front(), Some((false, e.completion.context)));
                        }
                        Err(OpError::Again) => prop_assert!(model.is_empty()),
                        Err(other) => prop_assert!(false, "{:?}", other),
                    },
                }
            }
            prop_assert!(cq.is_empty());
        }
    }

    #[test]
    fn an_error_behind_entries_waits_for_them() {
        let mut cq = CqQueue::new(1);
        cq.write(&entry(1));
        cq.write_error(error(2));
        assert_eq!(cq.read_error(), None);
        let mut out = [entry(0); 4];
        assert_eq!(cq.read(&mut out), Ok(1));
        assert_eq!(cq.read(&mut out), Err(OpError::Failed(Errno::EAVAIL)));
        assert_eq!(cq.read_error().unwrap().completion.context, 2);
        assert_eq!(cq.read(&mut out), Err(OpError::Again));
    }
}
