//! A completion queue of another provider, into which completions of this one go.
//!
//! The contract (fi_peer(3)):
//!
//! - The owner allocates the `fid_peer_cq` and its operations. They exist for longer than the queue
//!   that is opened here. The context structure is read in that call alone.
//! - The owner reads no entries (`fi_cq_read(cq, NULL, 0)`) to drive this provider. In these calls
//!   alone, `write` and `writeerr` get what has completed: in its order, and by one thread at a
//!   time. No lock of the domain is held meanwhile, so they may call this provider. A read within
//!   them does nothing.
//! - An entry that the owner refuses is kept, and is the first one in the next read.
//! - The owner locks its queue, wakes its waiters and sees to room. So this queue has no wait
//!   object, and a domain with automatic progress has no such queue: nobody would read it.

use std::collections::VecDeque;
use std::ffi::c_void;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Completion, CqError};

use super::owners::OwnersCq;
use super::{CqObject, strerror};
use crate::abi::{Roomy, fi_cq_err_entry, fi_ops_cq, fi_peer_cq_context, fid_cq};
use crate::fid::object_of;
use crate::guard::data;
use crate::srx::{EndedReceive, ForeignReceives, ReceiveReport};
use crate::turn::TurnLock;
use crate::unsupported::Unsupported;

/// Completions that are taken at a time.
const BATCH: usize = 16;

/// The owner's queue, and the entries that wait for it.
pub(crate) struct ImportedCq {
    owner: OwnersCq,
    /// The thread that passes entries on has it.
    kept: TurnLock<KeptEntries>,
}

/// Entries that the owner has not taken yet.
type KeptEntries = VecDeque<KeptEntry>;

/// An entry for the owner.
enum KeptEntry {
    Completion(Completion),
    Error(CqError),
    /// The end of a message that another provider's receive took.
    Received(EndedReceive),
}

/// The operations of such a queue.
pub(crate) static OPS: Roomy<fi_ops_cq> = Roomy::new(fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(drive),
    readfrom: Some(Unsupported::ENOSYS),
    readerr: Some(Unsupported::ENOSYS),
    sread: Some(Unsupported::ENOSYS),
    sreadfrom: Some(Unsupported::ENOSYS),
    signal: Some(Unsupported::ENOSYS),
    strerror: Some(strerror),
});

impl ImportedCq {
    /// The queue that a context names.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the context is too short, or has no queue with both operations.
    ///
    /// # Safety
    ///
    /// `context` is NULL, or a context as fi_peer(3) has it.
    pub(crate) unsafe fn of(context: *const fi_peer_cq_context) -> Result<Self, Errno> {
        Ok(Self {
            // SAFETY: as the caller says.
            owner: unsafe { OwnersCq::of(context) }?,
            kept: TurnLock::default(),
        })
    }

    /// Drives the domain of a queue, and passes on what has completed.
    fn drive(&self, queue: &CqObject) -> Result<(), OpError> {
        // Another thread does it, or the owner reads in a call of `pass_on`.
        let Some(mut kept) = self.kept.try_take() else {
            return Ok(());
        };
        while self.pass_on(queue, &mut kept) {
            let mut batch = [Completion::BLANK; BATCH];
            match queue.cq.read(&mut batch) {
                Ok(got) => kept.extend(batch[..got].iter().filter_map(|done| queue.kept(done))),
                // Messages that have arrived may be complete as soon as they have a receive.
                Err(OpError::Again) => match queue.receives.announce()? {
                    true => {}
                    false => return Ok(()),
                },
                Err(other) => match queue.cq.read_error()? {
                    Some(error) => kept.extend(queue.kept_error(error)),
                    None => return Err(other),
                },
            }
        }
        Ok(())
    }

    /// Passes entries on. Returns whether the owner has taken all.
    fn pass_on(&self, queue: &CqObject, kept: &mut KeptEntries) -> bool {
        while let Some(entry) = kept.front() {
            let is_taken = match entry {
                KeptEntry::Completion(done) => self.owner.write(done),
                KeptEntry::Error(error) => self.write_error(queue, error),
                KeptEntry::Received(end) if end.is_closed() => true,
                KeptEntry::Received(end) => match &end.report {
                    ReceiveReport::Nothing => true,
                    ReceiveReport::Completion(done) => self.owner.write(done),
                    ReceiveReport::Error(error) => self.write_error(queue, error),
                },
            };
            if !is_taken {
                return false;
            }
            kept.pop_front();
        }
        true
    }

    /// Waits until no other thread passes entries on, and drops those of a closed endpoint.
    pub(crate) fn forget(&self, receives: &ForeignReceives) {
        if let Some(mut kept) = self.kept.take() {
            kept.retain(|entry| match entry {
                KeptEntry::Received(end) => !end.is_of(receives),
                _ => true,
            });
        }
    }

    /// Writes an error. Returns whether the owner has taken it.
    fn write_error(&self, queue: &CqObject, error: &CqError) -> bool {
        let mut entry = fi_cq_err_entry::default();
        // SAFETY: the entry is whole.
        unsafe { queue.write_error(error, &raw mut entry) };
        self.owner.write_error(&entry)
    }
}

impl CqObject {
    /// A completion as it is kept for the owner; `None` if it is not for the owner.
    fn kept(&self, done: &Completion) -> Option<KeptEntry> {
        match self.is_foreign(done) {
            true => EndedReceive::of(done).map(KeptEntry::Received),
            false => Some(KeptEntry::Completion(*done)),
        }
    }

    /// As [`kept`](Self::kept), of an error.
    fn kept_error(&self, error: CqError) -> Option<KeptEntry> {
        match self.is_foreign(&error.completion) {
            true => EndedReceive::of_error(error).map(KeptEntry::Received),
            false => Some(KeptEntry::Error(error)),
        }
    }

    /// Whether it is of a message that another provider's receive took.
    fn is_foreign(&self, done: &Completion) -> bool {
        self.has_foreign.get() == Some(&true) && done.flags.contains(Flags::RECV)
    }
}

/// `fi_cq_read`, of no entries: all others are read from the owner.
unsafe extern "C" fn drive(cq: *mut fid_cq, _buf: *mut c_void, count: usize) -> isize {
    data(|| {
        // SAFETY: as C calls us.
        let queue = unsafe { object_of::<CqObject>(cq) };
        match &queue.imported {
            Some(imported) if count == 0 => imported.drive(queue).map(|()| 0),
            _ => Err(OpError::Failed(Errno::ENOSYS)),
        }
    })
}
