//! Completion queues of domains with collective operations.
//!
//! The contract:
//!
//! - The queue of the domain has the completions of the application's operations, and those of
//!   messages of collectives (`COLLECTIVE`). A read or a wait takes all of them: the first are kept
//!   here, the others go to the endpoint that has begun them.
//! - Completions of collectives are put in by the endpoint, at any time.
//! - Entries and errors keep their order.
//! - One thread at a time takes completions out of the queue of the domain.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrofabric_contracts::error::{Errno, Error, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Completion, CqError};
use ferrofabric_runtime::fabric::{Cq, DomainWait};
use ferrofabric_system::locks::Mutex;
use ferrofabric_system::wait::WaitFd;

use super::{CqObject, strerror};
use crate::abi::{Roomy, fi_addr_t, fi_cq_err_entry, fi_ops_cq, fid_cq};
use crate::cancel::{self, Looked, Waiter, testing, unwinding};
use crate::eq::EqObject;
use crate::fid::{SharedObject, object_of};
use crate::guard::{control, data};
use crate::uses::{ObjectUse, UsableObject};
use crate::wait::timeout;

/// Completions that are taken at a time.
const BATCH: usize = 16;

/// The longest sleep at such a queue, in ms.
const LONGEST_NAP_MS: i32 = 10;

/// An endpoint with collective operations.
pub(crate) trait TransferHolder: Send + Sync {
    /// The message of this number is over, with its tag or an error. Returns whether it is one of
    /// this endpoint.
    fn end_transfer(&self, number: u64, result: Result<u64, Errno>) -> bool;

    /// Drives its queues, if it has two: a completion in the one waits for messages in the other.
    fn drive_queues(&self);

    /// Begins messages for which there was no room, and those that are due.
    fn begin_waiting(&self);

    /// The time until a message is due.
    fn time_to_next(&self) -> Option<Duration>;

    /// Has a descriptor become readable when the endpoint needs another call.
    ///
    /// # Errors
    ///
    /// `Again`: it needs one now.
    fn watch(&self, descriptor: &WaitFd) -> Result<(), OpError>;

    /// The event queue whose events another provider gets, if it is one. The caller has it
    /// [passed on](EqObject::pass_on) when it has no lock and uses no endpoint: its owner may close
    /// the endpoint then.
    fn imported_events(&self) -> Option<SharedObject<EqObject>>;
}

/// The part of a queue that ordinary queues do not have.
#[derive(Default)]
pub(crate) struct CollectiveCq {
    /// The thread that takes completions out of the domain's queue has it.
    turn: Mutex<()>,
    /// How often that has begun, and up to which time it has left the domain's queue empty.
    begun_drives: AtomicU64,
    drained_drives: AtomicU64,
    /// Entries for the application.
    kept: Mutex<VecDeque<CollectiveEntry>>,
    /// The endpoints that are bound to it.
    bound: Mutex<Vec<UsableObject<dyn TransferHolder>>>,
    /// Signals of the application, and up to which of them they have ended a wait on a descriptor.
    signals: AtomicU64,
    answered: AtomicU64,
    /// The descriptor to wait on, made at the first request.
    descriptor: OnceLock<WaitFd>,
}

/// An entry for the application.
enum CollectiveEntry {
    Completion(Completion),
    Error(CqError),
}

pub(super) static OPS: Roomy<fi_ops_cq> = Roomy::new(fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(unwinding!(
        read as fn(*mut fid_cq, *mut c_void, usize) -> isize
    )),
    readfrom: Some(unwinding!(
        readfrom as fn(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t) -> isize
    )),
    readerr: Some(readerr),
    sread: Some(unwinding!(
        sread as fn(*mut fid_cq, *mut c_void, usize, *const c_void, c_int) -> isize
    )),
    sreadfrom: Some(unwinding!(
        sreadfrom
            as fn(*mut fid_cq, *mut c_void, usize, *mut fi_addr_t, *const c_void, c_int) -> isize
    )),
    signal: Some(signal),
    strerror: Some(strerror),
});

impl CollectiveCq {
    /// Has the queue report the messages of an endpoint to it.
    pub(crate) fn add(&self, holder: UsableObject<dyn TransferHolder>) {
        let mut bound = self.bound.lock();
        bound.retain(UsableObject::is_there);
        bound.push(holder);
        drop(bound);
        // A sleeper does not wait for this one yet.
        self.ring();
    }

    /// An endpoint is closed that has this other queue, too. It may be that of more endpoints: a
    /// sleeper looks again.
    pub(crate) fn unwatch(&self, other: &dyn Cq) {
        if let Some(fd) = self.descriptor.get() {
            other.unwatch(fd);
            fd.bell().ring();
        }
    }

    /// Puts in the completion of a collective, and wakes threads that wait.
    pub(crate) fn complete(&self, queue: &dyn Cq, completion: Completion) {
        self.keep(CollectiveEntry::Completion(completion));
        self.wake(queue);
    }

    /// Puts in the failure of a collective, and wakes threads that wait.
    pub(crate) fn fail(&self, queue: &dyn Cq, error: CqError) {
        self.keep(CollectiveEntry::Error(error));
        self.wake(queue);
    }

    /// Wakes threads that wait, in calls or on the descriptor.
    fn wake(&self, queue: &dyn Cq) {
        queue.signal();
        self.ring();
    }

    fn ring(&self) {
        (self.descriptor.get().iter()).for_each(|fd| fd.bell().ring());
    }

    /// The descriptor to wait on.
    ///
    /// # Errors
    ///
    /// When none can be had.
    pub(super) fn wait_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        if self.descriptor.get().is_none() {
            let _ = self.descriptor.set(WaitFd::new()?);
        }
        match self.descriptor.get() {
            Some(fd) => Ok(fd.as_fd()),
            None => Err(Error::new(Errno::EINVAL, "open", "wait descriptor")),
        }
    }

    /// Drives the endpoints that are bound to the queue, and has what they wait for, be it at
    /// another queue, end a wait on the descriptor.
    ///
    /// # Errors
    ///
    /// `Again`: there is something to read, or to do. The queue's.
    pub(super) fn try_wait(&self, queue: &dyn Cq) -> Result<(), OpError> {
        let fd = self.descriptor.get();
        let fd = fd.ok_or(OpError::Failed(Errno::EINVAL))?;
        // A completion from here on rings it.
        fd.bell().clear();
        self.drive_all(queue)?;
        queue.watch(fd)?;
        (self.holders().iter()).try_for_each(|holder| holder.watch(fd))?;
        let signals = self.signals.load(Ordering::Relaxed);
        let is_signaled = self.answered.swap(signals, Ordering::Relaxed) != signals;
        match self.has_entry() || is_signaled {
            true => Err(OpError::Again),
            false => Ok(()),
        }
    }

    /// Whether there is an entry to be read.
    fn has_entry(&self) -> bool {
        !self.kept.lock().is_empty()
    }

    fn keep(&self, entry: CollectiveEntry) {
        self.kept.lock().push_back(entry);
    }

    /// The open endpoints that are bound to it. None of them closes before the caller drops them.
    fn holders(&self) -> Vec<ObjectUse<dyn TransferHolder>> {
        let bound = self.bound.lock();
        bound.iter().filter_map(UsableObject::enter).collect()
    }

    /// The time until a message of an endpoint is due.
    fn time_to_next(&self) -> Option<Duration> {
        let holders = self.holders();
        holders
            .iter()
            .filter_map(|holder| holder.time_to_next())
            .min()
    }

    /// The number of the last call that has begun to take completions out of the domain's queue.
    pub(crate) fn begun_drives(&self) -> u64 {
        self.begun_drives.load(Ordering::SeqCst)
    }

    /// The number of the last call that has left that queue empty.
    pub(crate) fn drained_drives(&self) -> u64 {
        self.drained_drives.load(Ordering::SeqCst)
    }

    /// Drives the endpoints that are bound to the queue, with all their queues.
    ///
    /// # Errors
    ///
    /// As of [`drive`](Self::drive).
    fn drive_all(&self, queue: &dyn Cq) -> Result<(), OpError> {
        self.drive(queue)?;
        let mut events = Vec::new();
        for holder in self.holders() {
            holder.drive_queues();
            events.extend(holder.imported_events());
        }
        events.iter().for_each(|eq| eq.pass_on());
        Ok(())
    }

    /// As [`drive`](Self::drive), for a caller that does not read the entries: wakes threads that
    /// wait for those.
    ///
    /// # Errors
    ///
    /// As of `drive`.
    pub(crate) fn drive_for_others(&self, queue: &dyn Cq) -> Result<(), OpError> {
        let driven = self.drive(queue);
        if !matches!(driven, Ok(false)) {
            self.wake(queue);
        }
        driven.map(|_| ())
    }

    /// Takes what has completed out of the queue of the domain. Returns whether there were entries
    /// for the application among it.
    ///
    /// # Errors
    ///
    /// Those of the queue, but for `Again`.
    fn drive(&self, queue: &dyn Cq) -> Result<bool, OpError> {
        let _turn = self.turn.lock();
        let drive = self.begun_drives.fetch_add(1, Ordering::SeqCst) + 1;
        let mut batch = [Completion::BLANK; BATCH];
        let mut has_kept = false;
        loop {
            match queue.read(&mut batch) {
                Ok(got) => has_kept |= self.sort(&batch[..got]),
                Err(OpError::Again) => break,
                Err(other) => match queue.read_error()? {
                    Some(error) => has_kept |= self.sort_error(error),
                    None => return Err(other),
                },
            }
        }
        self.drained_drives.store(drive, Ordering::SeqCst);
        self.holders()
            .iter()
            .for_each(|holder| holder.begin_waiting());
        Ok(has_kept)
    }

    /// Has each completion go where it belongs. Returns whether one is for the application.
    fn sort(&self, completions: &[Completion]) -> bool {
        let mut has_kept = false;
        for done in completions {
            if done.flags.contains(Flags::COLLECTIVE) {
                self.end_transfer(done.context, Ok(done.tag));
            } else {
                self.keep(CollectiveEntry::Completion(*done));
                has_kept = true;
            }
        }
        has_kept
    }

    fn sort_error(&self, error: CqError) -> bool {
        let is_of_collective = error.completion.flags.contains(Flags::COLLECTIVE);
        match is_of_collective {
            true => self.end_transfer(error.completion.context, Err(error.errno)),
            false => self.keep(CollectiveEntry::Error(error)),
        }
        !is_of_collective
    }

    /// A message of an endpoint that is closed is nobody's.
    fn end_transfer(&self, number: u64, result: Result<u64, Errno>) {
        let holders = self.holders();
        let _ = (holders.iter()).any(|holder| holder.end_transfer(number, result));
    }

    /// Takes entries, at most as many as there is room for.
    ///
    /// # Errors
    ///
    /// `Again`: there is none. `EAVAIL`: an error is the first.
    fn take(&self, out: &mut [Completion]) -> Result<usize, OpError> {
        let mut kept = self.kept.lock();
        let mut got = 0;
        while let (Some(room), Some(CollectiveEntry::Completion(done))) =
            (out.get_mut(got), kept.front())
        {
            *room = *done;
            kept.pop_front();
            got += 1;
        }
        match (got, kept.front()) {
            (0, None) => Err(OpError::Again),
            (0, Some(CollectiveEntry::Error(_))) => Err(OpError::Failed(Errno::EAVAIL)),
            _ => Ok(got),
        }
    }
}

impl CqObject {
    /// The part of a queue of a domain with collectives.
    fn collective(&self) -> Result<&CollectiveCq, OpError> {
        let part = self.collective.as_ref();
        part.ok_or(OpError::Failed(Errno::ENOSYS))
    }

    /// Takes what has completed, and gives out entries.
    ///
    /// # Safety
    ///
    /// There is room for `count` entries, and sources where those are wanted.
    unsafe fn take_kept(
        &self,
        (buf, count, sources): (*mut c_void, usize, *mut fi_addr_t),
    ) -> Result<isize, OpError> {
        let mut done = 0;
        loop {
            let mut batch = [Completion::BLANK; BATCH];
            let want = (count - done).min(BATCH);
            let got = match self.collective()?.take(&mut batch[..want]) {
                Ok(got) => got,
                Err(_) if done != 0 => return Ok(done as isize),
                Err(error) => return Err(error),
            };
            // SAFETY: as the caller says.
            unsafe {
                let at = buf.cast::<u8>().add(done * self.entry_bytes);
                let sources = match sources.is_null() {
                    true => sources,
                    false => sources.add(done),
                };
                self.write_out(&batch[..got], at, sources);
            }
            done += got;
            if got < want || done == count {
                return Ok(done as isize);
            }
        }
    }

    /// # Safety
    ///
    /// As of [`take_kept`](Self::take_kept).
    unsafe fn read_kept(&self, to: (*mut c_void, usize, *mut fi_addr_t)) -> Result<isize, OpError> {
        let part = self.collective()?;
        part.drive_all(&*self.cq)?;
        // SAFETY: as the caller says.
        let read = unsafe { self.take_kept(to) };
        if part.has_entry() {
            // For other threads.
            part.wake(&*self.cq);
        }
        read
    }
}

unsafe extern "C-unwind" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: as C calls us; the thread may be cancelled.
    unsafe { readfrom(cq, buf, count, std::ptr::null_mut()) }
}

unsafe extern "C-unwind" fn readfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
) -> isize {
    // SAFETY: as C calls us; the thread may be cancelled.
    unsafe {
        testing(data(|| {
            object_of::<CqObject>(cq).read_kept((buf, count, sources))
        }))
    }
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, _flags: u64) -> isize {
    data(|| {
        // SAFETY: as C calls us.
        let this = unsafe { object_of::<CqObject>(cq) };
        if buf.is_null() {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        let mut kept = this.collective()?.kept.lock();
        if !matches!(kept.front(), Some(CollectiveEntry::Error(_))) {
            return Err(OpError::Again);
        }
        if let Some(CollectiveEntry::Error(error)) = kept.pop_front() {
            // SAFETY: C has room for the entry, as long as it is in the application's version.
            unsafe { this.write_error(&error, buf) };
        }
        Ok(1)
    })
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    control(|| {
        // SAFETY: as C calls us.
        let this = unsafe { object_of::<CqObject>(cq) };
        let part = this.collective().map_err(|error| error.errno())?;
        part.signals.fetch_add(1, Ordering::Relaxed);
        part.wake(&*this.cq);
        Ok::<_, Errno>(())
    })
}

unsafe extern "C-unwind" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout_ms: c_int,
) -> isize {
    // SAFETY: as C calls us; the thread may be cancelled.
    unsafe { sreadfrom(cq, buf, count, std::ptr::null_mut(), cond, timeout_ms) }
}

/// A wait ends with the first entry, whatever condition the caller has.
unsafe extern "C-unwind" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
    _cond: *const c_void,
    timeout_ms: c_int,
) -> isize {
    let mut reader = MaybeUninit::<CollectiveWait>::uninit();
    // SAFETY: as C calls us; the thread may be cancelled.
    unsafe {
        let part = match object_of::<CqObject>(cq).collective.as_ref() {
            Some(part) => std::ptr::from_ref(part),
            None => return -(Errno::ENOSYS.0 as isize),
        };
        reader.write(CollectiveWait {
            cq: object_of::<CqObject>(cq),
            part,
            to: (buf, count, sources),
            deadline: timeout(timeout_ms).and_then(|timeout| Instant::now().checked_add(timeout)),
            signals_before: (*part).signals.load(Ordering::Relaxed),
            wait: None,
            is_interrupted: false,
        });
        cancel::wait(reader.as_mut_ptr())
    }
}

/// A wait for entries.
struct CollectiveWait {
    cq: *const CqObject,
    part: *const CollectiveCq,
    to: (*mut c_void, usize, *mut fi_addr_t),
    deadline: Option<Instant>,
    signals_before: u64,
    /// A wait at the queue of the domain.
    wait: Option<DomainWait>,
    is_interrupted: bool,
}

impl CollectiveWait {
    /// Takes entries, or returns the descriptor to sleep on.
    fn look_once(&mut self) -> Result<Looked, OpError> {
        // SAFETY: C does not close a queue in a call that waits for it.
        let (this, part) = unsafe { (&*self.cq, &*self.part) };
        loop {
            // SAFETY: C has room for the entries.
            match unsafe { this.read_kept(self.to) } {
                Err(OpError::Again) => {}
                over => return over.map(Looked::Over),
            }
            let is_late = self.deadline.is_some_and(|at| Instant::now() >= at);
            let is_signaled = part.signals.load(Ordering::Relaxed) != self.signals_before;
            if is_late || is_signaled || self.is_interrupted {
                return Err(OpError::Again);
            }
            let wait = match &mut self.wait {
                Some(wait) => wait,
                none => {
                    let left = self.deadline.map(|at| at - Instant::now());
                    none.insert(this.cq.begin_wait(1, left)?)
                }
            };
            let mut batch = [Completion::BLANK; BATCH];
            let _turn = part.turn.lock();
            match this.cq.look(wait, &mut batch) {
                Ok(None) => {
                    let mut nap = wait.nap().ok_or(OpError::Failed(Errno::EINVAL))?;
                    // Other queues and other threads put in entries that nothing here shows.
                    let ms = part.time_to_next().map_or(LONGEST_NAP_MS, |time| {
                        i32::try_from(time.as_millis() + 1)
                            .map_or(LONGEST_NAP_MS, |ms| ms.min(LONGEST_NAP_MS))
                    });
                    nap.timeout_ms = match nap.timeout_ms < 0 {
                        true => ms,
                        false => nap.timeout_ms.min(ms),
                    };
                    return Ok(Looked::Sleep(nap));
                }
                Ok(Some(got)) => {
                    part.sort(&batch[..got]);
                }
                // An error is next, the time is over, or another thread has put an entry in.
                Err(_) => {}
            }
            if let Some(mut wait) = self.wait.take() {
                this.cq.end_wait(&mut wait);
            }
        }
    }
}

impl Waiter for CollectiveWait {
    fn look(&mut self) -> Looked {
        match self.look_once() {
            Ok(looked) => looked,
            Err(error) => Looked::Over(-(error.errno().0 as isize)),
        }
    }

    fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    fn end(&mut self) {
        if let Some(mut wait) = self.wait.take() {
            // SAFETY: as above.
            unsafe { &*self.cq }.cq.end_wait(&mut wait);
        }
    }
}
