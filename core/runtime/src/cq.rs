//! The completion queue behind `fi_cq_read`: entries in order, with errors at their places among
//! them. The queue grows beyond its size, so that no entry is lost while there is memory.
//!
//! If there is no memory for one more entry, the queue is overrun: that entry and all later ones
//! are lost. Reading returns the entries before, and from then on `ENOMEM` (fi_cq(3), overrun
//! queues).

use std::collections::VecDeque;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::peer::{Completion, CqError, PeerCq};

/// The queue of one completion queue object. The domain's lock guards it.
#[derive(Debug)]
pub struct CqQueue {
    entries: EntryRing,
    /// Errors, each with the number of entries that were written before it.
    errors: VecDeque<(u64, CqError)>,
    written: u64,
    read: u64,
    /// Entries that there is room for; 0 once an entry was lost for lack of memory.
    room: usize,
}

/// Entries, oldest first. Each message writes one and reads one.
#[derive(Debug)]
struct EntryRing {
    /// A power of two of them, or none.
    slots: Box<[Completion]>,
    first: usize,
    len: usize,
}

impl EntryRing {
    /// Room for a number of entries that is a power of two. `None`: there is no memory for them.
    fn with_room(entries: usize) -> Option<Self> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(entries).ok()?;
        slots.resize(entries, Completion::BLANK);
        Some(Self {
            slots: slots.into_boxed_slice(),
            first: 0,
            len: 0,
        })
    }

    #[inline(always)]
    fn place(&self, number: usize) -> usize {
        (self.first + number) & self.slots.len().wrapping_sub(1)
    }

    /// Adds an entry, for which there is room.
    #[inline(always)]
    fn push(&mut self, entry: &Completion) {
        let at = self.place(self.len);
        self.slots[at] = *entry;
        self.len += 1;
    }

    #[inline(always)]
    fn pop(&mut self) -> Option<&Completion> {
        self.len = self.len.checked_sub(1)?;
        let next = self.place(1);
        Some(&self.slots[std::mem::replace(&mut self.first, next)])
    }

    /// Makes room for more entries. Returns the new room; `None`: there is no memory.
    fn grow(&mut self) -> Option<usize> {
        let room = self.slots.len().checked_mul(2)?;
        let mut grown = Self::with_room(room)?;
        while let Some(entry) = self.pop() {
            grown.push(entry);
        }
        *self = grown;
        Some(room)
    }
}

/// Largest number of entries that a new queue has room for at once.
const FIRST_ROOM: usize = 1024;

impl CqQueue {
    /// A queue for `size` entries and more.
    ///
    /// # Errors
    ///
    /// There is no memory for a queue, or the size exceeds all memory.
    pub fn new(size: usize) -> Result<Self, Errno> {
        match size.checked_mul(size_of::<Completion>()) {
            Some(bytes) if isize::try_from(bytes).is_ok() => {}
            _ => return Err(Errno::ENOMEM),
        }
        let first = size.clamp(1, FIRST_ROOM).next_power_of_two();
        let entries = EntryRing::with_room(first).ok_or(Errno::ENOMEM)?;
        Ok(Self {
            room: first,
            entries,
            errors: VecDeque::new(),
            written: 0,
            read: 0,
        })
    }

    /// A queue that nobody reads, and that keeps no entry: as one that is overrun.
    pub fn that_keeps_nothing() -> Self {
        Self {
            entries: EntryRing {
                slots: Box::default(),
                first: 0,
                len: 0,
            },
            errors: VecDeque::new(),
            written: 0,
            read: 0,
            room: 0,
        }
    }

    /// Whether there is nothing to read, neither entry nor error.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.len == 0 && self.errors.is_empty()
    }

    /// Whether there are `least` entries, or an error, or no more will come.
    #[inline]
    pub fn is_ready(&self, least: usize) -> bool {
        !self.errors.is_empty() || self.entries.len >= least.max(1) || self.is_overrun()
    }

    /// Moves entries to `out`, up to the next error.
    ///
    /// # Errors
    ///
    /// `Again` if there is nothing, `EAVAIL` if an error is next: take it with
    /// [`read_error`](Self::read_error). `ENOMEM` if all is read of a queue that is overrun.
    #[inline]
    pub fn read(&mut self, out: &mut [Completion]) -> Result<usize, OpError> {
        if let Some((after, _)) = self.errors.front() {
            return self.read_before_error(*after, out);
        }
        self.pop(out)
    }

    /// Takes the next item, if it is an error.
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
        if self.entries.len == 0 && !out.is_empty() {
            return Err(match self.is_overrun() {
                true => OpError::Failed(Errno::ENOMEM),
                false => OpError::Again,
            });
        }
        let mut n = 0;
        while n < out.len() {
            let Some(entry) = self.entries.pop() else {
                break;
            };
            out[n] = *entry;
            n += 1;
        }
        self.read += n as u64;
        Ok(n)
    }

    /// Makes room for one more entry. False: this entry and all later ones are lost.
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> bool {
        if self.is_overrun() {
            return false;
        }
        match self.entries.grow() {
            Some(room) => self.room = room,
            None => self.overrun(),
        }
        !self.is_overrun()
    }

    /// Whether an entry was lost for lack of memory.
    fn is_overrun(&self) -> bool {
        self.room == 0
    }

    fn overrun(&mut self) {
        self.room = 0;
        tracing::error!(
            "a completion queue has {} entries and there is no memory for more: completions are lost",
            self.entries.len
        );
    }
}

impl PeerCq for CqQueue {
    #[inline(always)]
    fn write(&mut self, completion: &Completion) {
        // An overrun queue has no room, so that no other check is needed here.
        if self.entries.len >= self.room && !self.grow() {
            return;
        }
        self.entries.push(completion);
        self.written += 1;
    }

    #[cold]
    fn write_error(&mut self, error: CqError) {
        if self.is_overrun() {
            return;
        }
        match self.errors.try_reserve(1) {
            Ok(()) => self.errors.push_back((self.written, error)),
            Err(_) => self.overrun(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrofabric_contracts::flags::Flags;
    use ferrofabric_contracts::types::FiAddr;
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
    enum QueueOp {
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
                    4 => Just(QueueOp::Write),
                    1 => Just(QueueOp::WriteError),
                    3 => (1usize..5).prop_map(QueueOp::Read),
                ],
                0..200,
            )
        ) {
            let mut cq = CqQueue::new(2).unwrap();
            let mut model: VecDeque<(bool, u64)> = VecDeque::new();
            let mut next = 0;
            let mut out = [entry(0); 5];
            for op in ops.into_iter().chain(std::iter::repeat_n(QueueOp::Read(4), 200)) {
                match op {
                    QueueOp::Write => {
                        cq.write(&entry(next));
                        model.push_back((true, next));
                        next += 1;
                    }
                    QueueOp::WriteError => {
                        cq.write_error(error(next));
                        model.push_back((false, next));
                        next += 1;
                    }
                    QueueOp::Read(n) => match cq.read(&mut out[..n]) {
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
    fn an_overrun_queue_gives_what_it_has_kept_and_no_more() {
        let mut cq = CqQueue::new(1).unwrap();
        for context in 1..=3 {
            cq.write(&entry(context));
        }
        cq.write_error(error(4));
        // As if there were no memory for a fourth entry.
        cq.overrun();
        cq.write(&entry(5));
        cq.write_error(error(6));
        assert!(
            cq.is_ready(100),
            "a wait for 100 entries ends, which can not come any more"
        );
        let mut out = [entry(0); 8];
        assert_eq!(cq.read(&mut out), Ok(3));
        cq.write(&entry(7));
        assert_eq!(cq.read(&mut out), Err(OpError::Failed(Errno::EAVAIL)));
        assert_eq!(cq.read_error().unwrap().completion.context, 4);
        for _ in 0..2 {
            assert_eq!(cq.read(&mut out), Err(OpError::Failed(Errno::ENOMEM)));
        }
        assert_eq!(cq.read(&mut []), Ok(0), "a call for progress alone");
    }

    #[test]
    fn a_size_takes_no_memory_at_once() {
        assert!(CqQueue::new(1 << 40).unwrap().room < 1 << 20);
        for size in [usize::MAX, usize::MAX / 8] {
            assert_eq!(CqQueue::new(size).err(), Some(Errno::ENOMEM));
        }
        let mut cq = CqQueue::new(0).unwrap();
        for context in 0..10_000 {
            cq.write(&entry(context));
        }
        let mut out = vec![entry(0); 20_000];
        assert_eq!(cq.read(&mut out), Ok(10_000));
        assert!((0..).zip(&out[..10_000]).all(|(n, e)| e.context == n));
    }

    #[test]
    fn an_error_behind_entries_waits_for_them() {
        let mut cq = CqQueue::new(1).unwrap();
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
