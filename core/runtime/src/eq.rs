//! The event queue behind `fi_eq_read` (fi_eq(3)): events of objects and of the application, in
//! order.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use ferrofabric_contracts::error::{Errno, Error, OpError};
use ferrofabric_contracts::peer::{EqError, Event, PeerEq};
use ferrofabric_system::locks::Mutex;

#[derive(Debug)]
enum Item {
    Event(Event),
    Error(EqError),
}

/// A queue of events, for any thread. It grows as events come, so it never overruns and loses none.
#[derive(Debug, Default)]
pub struct EventQueue {
    events: Mutex<VecDeque<Item>>,
    /// Readable while there are events; made at the first request.
    descriptor: OnceLock<EventFd>,
}

/// Whether an event stays after it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It is removed.
    Take,
    /// It stays (`FI_PEEK`).
    Peek,
}

impl PeerEq for EventQueue {
    fn write(&self, event: Event) {
        self.push(Item::Event(event));
    }

    fn write_error(&self, error: EqError) {
        self.push(Item::Error(error));
    }
}

impl EventQueue {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    fn push(&self, item: Item) {
        let mut events = self.events.lock();
        if let (true, Some(fd)) = (events.is_empty(), self.descriptor.get()) {
            let _ = fd.write(1);
        }
        events.push_back(item);
    }

    /// A descriptor that is readable while there are events (`FI_WAIT_FD`).
    ///
    /// # Errors
    ///
    /// If no descriptor can be made.
    pub fn wait_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        let events = self.events.lock();
        if self.descriptor.get().is_none() {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            let fd = EventFd::from_value_and_flags(u32::from(!events.is_empty()), flags)
                .map_err(|e| Error::new(Errno(e as i32), "create", "event descriptor"))?;
            let _ = self.descriptor.set(fd);
        }
        match self.descriptor.get() {
            Some(fd) => Ok(fd.as_fd()),
            None => Err(Error::new(Errno::EINVAL, "create", "event descriptor")),
        }
    }

    /// Prepares a wait on the descriptor (fi_trywait(3)).
    ///
    /// # Errors
    ///
    /// `Again`: there are events to read first.
    pub fn try_wait(&self) -> Result<(), OpError> {
        match self.events.lock().is_empty() {
            true => Ok(()),
            false => Err(OpError::Again),
        }
    }

    /// Copies the first event's entry to `out`; returns its number and length in bytes.
    ///
    /// # Errors
    ///
    /// `Again`: there is none. `EAVAIL`: an error is next. `ETOOSMALL`: the entry is longer than
    /// `out`; the event stays.
    pub fn read(&self, out: &mut [u8], reading: Reading) -> Result<(u32, usize), OpError> {
        self.read_from(&mut self.events.lock(), out, reading)
    }

    /// As [`read`](Self::read), and waits for an event, at most for `timeout` (`None`: for ever).
    ///
    /// # Errors
    ///
    /// As `read`; `Again`: none came in time, or a signal came to the thread; the system's error if
    /// no descriptor to wait on can be made.
    pub fn sread(
        &self,
        out: &mut [u8],
        reading: Reading,
        timeout: Option<Duration>,
    ) -> Result<(u32, usize), OpError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            match self.read(out, reading) {
                Err(OpError::Again) => {}
                read => return read,
            }
            let Some(timeout) = poll_timeout(deadline) else {
                return Err(OpError::Again);
            };
            // Another reader may take the event that made it readable: then this one waits again.
            let fd = self.wait_fd().map_err(|e| OpError::Failed(e.errno()))?;
            match poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout) {
                Ok(_) => {}
                Err(nix::Error::EINTR) => return self.read(out, reading),
                Err(errno) => return Err(OpError::Failed(Errno(errno as i32))),
            }
        }
    }

    /// Takes the error that is next, if one is.
    pub fn read_error(&self, reading: Reading) -> Option<EqError> {
        let mut events = self.events.lock();
        let Some(Item::Error(error)) = events.front() else {
            return None;
        };
        let error = error.clone();
        self.take(&mut events, reading);
        Some(error)
    }

    /// Removes what an object has here that is closed: its errors, and its events of this number,
    /// whose entries begin with the object.
    pub fn forget(&self, number: u32, source: u64) {
        let mut events = self.events.lock();
        let before = events.len();
        events.retain(|item| match item {
            Item::Event(event) => !is_event_of(event, number, source),
            Item::Error(error) => error.source != source,
        });
        if let (true, true, Some(fd)) = (before != 0, events.is_empty(), self.descriptor.get()) {
            let _ = fd.read();
        }
    }

    fn read_from(
        &self,
        events: &mut VecDeque<Item>,
        out: &mut [u8],
        reading: Reading,
    ) -> Result<(u32, usize), OpError> {
        let first = match events.front().ok_or(OpError::Again)? {
            Item::Event(event) => event,
            Item::Error(_) => return Err(OpError::Failed(Errno::EAVAIL)),
        };
        let (number, len) = (first.number, first.entry.len());
        out.get_mut(..len)
            .ok_or(OpError::Failed(Errno::ETOOSMALL))?
            .copy_from_slice(&first.entry);
        self.take(events, reading);
        Ok((number, len))
    }

    fn take(&self, events: &mut VecDeque<Item>, reading: Reading) {
        if reading == Reading::Take {
            events.pop_front();
            if let (true, Some(fd)) = (events.is_empty(), self.descriptor.get()) {
                let _ = fd.read();
            }
        }
    }
}

/// Whether it is an event of this number whose entry begins with this object.
pub fn is_event_of(event: &Event, number: u32, source: u64) -> bool {
    event.number == number && event.entry.starts_with(&source.to_ne_bytes())
}

/// Time until `deadline`; `None` if that has passed.
fn poll_timeout(deadline: Option<Instant>) -> Option<PollTimeout> {
    let Some(deadline) = deadline else {
        return Some(PollTimeout::NONE);
    };
    let left = deadline.checked_duration_since(Instant::now())?;
    // Rounded up: a wait that ends early would only be repeated.
    let ms = left.as_nanos().div_ceil(1_000_000);
    match ms {
        0 => None,
        _ => Some(PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrofabric_contracts::peer::{AV_COMPLETE, Done};
    use nix::sys::pthread::pthread_kill;
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use zerocopy::FromBytes;

    fn event(number: u32) -> Event {
        Event {
            number,
            entry: number.to_ne_bytes().into(),
        }
    }

    #[test]
    fn events_come_out_in_order_and_stay_where_they_do_not_fit() {
        let queue = EventQueue::new();
        let mut out = [0; 8];
        assert_eq!(queue.read(&mut out, Reading::Take), Err(OpError::Again));
        queue.write(event(7));
        queue.write(event(8));
        let small = queue.read(&mut out[..3], Reading::Take);
        assert_eq!(small, Err(OpError::Failed(Errno::ETOOSMALL)));
        assert_eq!(queue.read(&mut out, Reading::Peek), Ok((7, 4)));
        assert_eq!(queue.read(&mut out, Reading::Take), Ok((7, 4)));
        assert_eq!(queue.read(&mut out, Reading::Take), Ok((8, 4)));
        assert_eq!(out[..4], 8u32.to_ne_bytes());
        assert_eq!(queue.read(&mut out, Reading::Take), Err(OpError::Again));
    }

    fn error(data: u64) -> EqError {
        EqError {
            source: 1,
            context: 2,
            data,
            errno: Errno::EINVAL,
            prov_errno: 0,
            err_data: b"why".as_slice().into(),
        }
    }

    /// Errors keep their place among the events, and only the call for errors takes them.
    ///
    /// Covers: AV-7
    #[test]
    fn errors_come_out_in_order_by_a_call_of_their_own() {
        let queue = EventQueue::new();
        let mut out = [0; 24];
        assert_eq!(queue.read_error(Reading::Take), None);
        let done = Done {
            source: 1,
            context: 2,
            data: 3,
        };
        queue.write(event(1));
        queue.write_error(error(0));
        queue.write_error(error(1));
        queue.write_done(AV_COMPLETE, &done);
        assert_eq!(queue.read_error(Reading::Take), None);
        assert_eq!(queue.read(&mut out, Reading::Take), Ok((1, 4)));
        let next = Err(OpError::Failed(Errno::EAVAIL));
        assert_eq!(queue.read(&mut out, Reading::Take), next);
        let soon = Some(Duration::from_millis(5));
        assert_eq!(queue.sread(&mut out, Reading::Peek, soon), next);
        assert_eq!(queue.read_error(Reading::Peek), Some(error(0)));
        assert_eq!(queue.read_error(Reading::Take), Some(error(0)));
        assert_eq!(queue.read_error(Reading::Take), Some(error(1)));
        let read = queue.read(&mut out, Reading::Take);
        assert_eq!(read, Ok((AV_COMPLETE, 24)));
        assert_eq!(Done::read_from_bytes(&out), Ok(done));
    }

    #[test]
    fn the_descriptor_is_readable_while_there_are_events() {
        let queue = EventQueue::new();
        queue.write(event(1));
        let fd = queue.wait_fd().unwrap();
        let readable = || {
            let mut fds = [nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)];
            nix::poll::poll(&mut fds, nix::poll::PollTimeout::ZERO).unwrap() == 1
        };
        let mut out = [0; 8];
        assert!(readable());
        assert_eq!(queue.try_wait(), Err(OpError::Again));
        queue.write(event(2));
        for peeked in [1, 2] {
            assert!(readable());
            assert_eq!(queue.read(&mut out, Reading::Peek), Ok((peeked, 4)));
            assert!(readable());
            assert_eq!(queue.read(&mut out, Reading::Take), Ok((peeked, 4)));
        }
        assert!(!readable());
        assert_eq!(queue.try_wait(), Ok(()));
        queue.write_error(error(1));
        assert!(readable());
        assert_eq!(queue.try_wait(), Err(OpError::Again));
        assert!(queue.read_error(Reading::Take).is_some());
        assert!(!readable());
        queue.write(event(3));
        assert!(readable());
    }

    #[test]
    fn events_of_an_object_that_is_closed_are_removed() {
        let queue = EventQueue::new();
        let fd = queue.wait_fd().unwrap();
        let readable = || {
            let mut fds = [nix::poll::PollFd::new(fd, nix::poll::PollFlags::POLLIN)];
            nix::poll::poll(&mut fds, nix::poll::PollTimeout::ZERO).unwrap() == 1
        };
        let done = |source| Done {
            source,
            context: 2,
            data: 3,
        };
        queue.forget(AV_COMPLETE, 1);
        queue.write_done(AV_COMPLETE, &done(1));
        queue.write_done(AV_COMPLETE + 1, &done(1));
        queue.write_error(error(0));
        queue.write_done(AV_COMPLETE, &done(2));
        queue.forget(AV_COMPLETE, 1);
        let mut out = [0; 24];
        let kept = queue.read(&mut out, Reading::Take);
        assert_eq!(kept, Ok((AV_COMPLETE + 1, 24)));
        assert_eq!(queue.read(&mut out, Reading::Peek), Ok((AV_COMPLETE, 24)));
        assert!(readable());
        queue.forget(AV_COMPLETE, 2);
        assert!(!readable());
        assert_eq!(queue.read(&mut out, Reading::Take), Err(OpError::Again));
        queue.write(event(1));
        assert!(readable());
    }

    #[test]
    fn a_reader_waits_for_an_event_or_its_time() {
        let queue = Arc::new(EventQueue::new());
        let mut out = [0; 8];
        let short = Some(Duration::from_millis(5));
        let none = queue.sread(&mut out, Reading::Take, short);
        assert_eq!(none, Err(OpError::Again));
        let reader = std::thread::spawn({
            let queue = queue.clone();
            move || queue.sread(&mut [0; 8], Reading::Take, None)
        });
        queue.write(event(9));
        assert_eq!(reader.join().unwrap(), Ok((9, 4)));
    }

    /// Every event goes to one of the readers that wait, and each of them gets one.
    #[test]
    fn several_readers_wait_at_once() {
        const READERS: u32 = 4;
        let queue = Arc::new(EventQueue::new());
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let queue = queue.clone();
                std::thread::spawn(move || {
                    let timeout = Some(Duration::from_secs(30));
                    queue.sread(&mut [0; 8], Reading::Take, timeout)
                })
            })
            .collect();
        for number in 0..READERS {
            queue.write(event(number));
        }
        let mut read: Vec<_> = readers
            .into_iter()
            .map(|reader| reader.join().unwrap().unwrap().0)
            .collect();
        read.sort_unstable();
        assert_eq!(read, [0, 1, 2, 3]);
        assert_eq!(queue.try_wait(), Ok(()));
    }

    #[test]
    fn a_wait_takes_as_long_as_it_may() {
        let queue = EventQueue::new();
        for ms in [0, 1, 30] {
            let (timeout, start) = (Duration::from_millis(ms), Instant::now());
            let none = queue.sread(&mut [0; 8], Reading::Take, Some(timeout));
            assert_eq!(none, Err(OpError::Again));
            assert!(start.elapsed() >= timeout, "{:?}", start.elapsed());
        }
        // Longer than a system call can wait, and longer than the clock can count.
        for timeout in [Duration::from_secs(1 << 40), Duration::MAX] {
            queue.write(event(1));
            let read = queue.sread(&mut [0; 8], Reading::Take, Some(timeout));
            assert_eq!(read, Ok((1, 4)));
        }
    }

    extern "C" fn nothing(_: i32) {}

    /// fi_eq(3): a thread that waits returns when a signal comes to it, also one that would wait
    /// for ever.
    #[test]
    #[allow(unsafe_code, reason = "signals")]
    fn a_signal_ends_a_wait() {
        let handler = SigHandler::Handler(nothing);
        let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing; nobody else uses this signal.
        unsafe { sigaction(Signal::SIGURG, &action) }.unwrap();
        let queue = Arc::new(EventQueue::new());
        let over = Arc::new(AtomicBool::new(false));
        let reader = std::thread::spawn({
            let (queue, over) = (queue.clone(), over.clone());
            move || {
                let read = queue.sread(&mut [0; 8], Reading::Take, None);
                over.store(true, Ordering::Release);
                read
            }
        });
        // The thread may not wait yet when the first signal comes.
        let until = Instant::now() + Duration::from_secs(30);
        while !over.load(Ordering::Acquire) {
            assert!(Instant::now() < until, "no signal ended the wait");
            pthread_kill(reader.as_pthread_t(), Signal::SIGURG).unwrap();
            std::thread::yield_now();
        }
        assert_eq!(reader.join().unwrap(), Err(OpError::Again));
    }

    #[test]
    fn a_queue_grows_and_loses_nothing() {
        const EVENTS: u32 = 100_000;
        let queue = EventQueue::new();
        (0..EVENTS).for_each(|number| queue.write(event(number)));
        let mut out = [0; 4];
        for number in 0..EVENTS {
            assert_eq!(queue.read(&mut out, Reading::Take), Ok((number, 4)));
        }
        assert_eq!(queue.read(&mut out, Reading::Take), Err(OpError::Again));
    }
}
