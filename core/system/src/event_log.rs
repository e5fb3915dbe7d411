//! A ring of events that one thread appends to and any number of readers read, each at its own
//! pace, as the watcher of unmapped memory and its caches do.
//!
//! No reader waits for another, and the writer allocates nothing. A reader gets each event once and
//! in order, or learns that it has missed some because the writer was more than a ring ahead.

use std::sync::Arc;

use crate::sync::{AtomicU64, Ordering, fence};

/// Slots of the ring.
const RETAINED: u64 = if cfg!(loom) { 2 } else { 1024 };

/// The most entries of one append.
pub const MOST_AT_ONCE: usize = if cfg!(loom) { 1 } else { 64 };

/// In the state: an append is under way. The bits above it count the entries so far.
const APPENDING: u64 = 1;

#[derive(Debug)]
struct LogState {
    state: AtomicU64,
    slots: Box<[LogSlot]>,
}

/// An entry, two words.
#[derive(Debug)]
struct LogSlot([AtomicU64; 2]);

/// The writing side.
#[derive(Debug)]
pub struct LogWriter {
    shared: Arc<LogState>,
    appended: u64,
}

/// A reading side, with its own place in the log.
#[derive(Clone, Debug)]
pub struct LogReader {
    shared: Arc<LogState>,
    read_to: u64,
}

/// One event as a reader gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// An entry.
    Entry([u64; 2]),
    /// Entries were overwritten before they were read.
    Missed,
}

/// An empty log.
pub fn event_log() -> (LogWriter, LogReader) {
    let slots = (0..RETAINED).map(|_| LogSlot([AtomicU64::new(0), AtomicU64::new(0)]));
    let shared = Arc::new(LogState {
        state: AtomicU64::new(0),
        slots: slots.collect(),
    });
    let writer = LogWriter {
        shared: Arc::clone(&shared),
        appended: 0,
    };
    (writer, LogReader { shared, read_to: 0 })
}

impl LogWriter {
    /// Begins to append. Until that ends, readers see that an append is under way. So an event that
    /// becomes known to others between here and the end is either read or waited for, never
    /// overlooked.
    pub fn begin(&mut self) -> LogAppend<'_> {
        (self.shared.state).store((self.appended << 1) | APPENDING, Ordering::Relaxed);
        // Before the entries, and before any store that makes them known to others.
        fence(Ordering::SeqCst);
        LogAppend {
            from: self.appended,
            writer: self,
        }
    }
}

/// An append that is under way; it ends when this is dropped.
#[derive(Debug)]
pub struct LogAppend<'a> {
    writer: &'a mut LogWriter,
    from: u64,
}

impl LogAppend<'_> {
    /// Appends an entry.
    ///
    /// # Panics
    ///
    /// Above [`MOST_AT_ONCE`].
    pub fn push(&mut self, entry: [u64; 2]) {
        let LogWriter { shared, appended } = &mut *self.writer;
        assert!(
            *appended - self.from < MOST_AT_ONCE as u64,
            "too many at a time"
        );
        let LogSlot(words) = &shared.slots[(*appended % RETAINED) as usize];
        for (word, value) in words.iter().zip(entry) {
            word.store(value, Ordering::Relaxed);
        }
        *appended += 1;
    }
}

impl Drop for LogAppend<'_> {
    fn drop(&mut self) {
        let LogWriter { shared, appended } = &*self.writer;
        shared.state.store(*appended << 1, Ordering::Release);
    }
}

impl LogReader {
    /// Whether there are events that it has not read, or an append is under way.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.has_entries_since(self.read_to)
    }

    /// How far it has read.
    pub fn position(&self) -> u64 {
        self.read_to
    }

    /// Whether there are events that a reader at this position has not read, or an append is under
    /// way.
    #[inline]
    pub fn has_entries_since(&self, position: u64) -> bool {
        self.shared.state.load(Ordering::Relaxed) != position << 1
    }

    /// Passes on the events since the last call. Returns `false` without any while the writer is
    /// appending.
    #[must_use]
    pub fn read(&mut self, mut handle: impl FnMut(LogEvent)) -> bool {
        let state = self.shared.state.load(Ordering::Acquire);
        if state & APPENDING != 0 {
            return false;
        }
        let (from, appended) = (self.read_to, state >> 1);
        self.read_to = appended;
        if Self::is_overwritten(from, appended) {
            handle(LogEvent::Missed);
            return true;
        }
        for number in from..appended {
            let LogSlot(words) = &self.shared.slots[(number % RETAINED) as usize];
            let [a, b] = words;
            handle(LogEvent::Entry([
                a.load(Ordering::Relaxed),
                b.load(Ordering::Relaxed),
            ]));
        }
        // The writer may have overwritten the slots meanwhile: their words may be of two entries.
        fence(Ordering::Acquire);
        let now = self.shared.state.load(Ordering::Relaxed) >> 1;
        if from != appended && Self::is_overwritten(from, now) {
            handle(LogEvent::Missed);
        }
        true
    }

    /// Whether the entry may have been overwritten, after `appended` entries and perhaps further
    /// ones that have begun.
    fn is_overwritten(entry: u64, appended: u64) -> bool {
        appended - entry > RETAINED - MOST_AT_ONCE as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn events(follower: &mut LogReader) -> Vec<LogEvent> {
        let mut events = Vec::new();
        assert!(follower.read(|what| events.push(what)));
        events
    }

    #[test]
    fn each_reader_gets_each_event_once() {
        let (mut writer, mut one) = event_log();
        let mut other = one.clone();
        let mut append = writer.begin();
        append.push([1, 2]);
        assert!(one.is_behind());
        assert!(!one.read(|_| panic!("events before it is whole")));
        append.push([3, 4]);
        drop(append);
        let all = [LogEvent::Entry([1, 2]), LogEvent::Entry([3, 4])];
        assert_eq!(events(&mut one), all);
        assert_eq!(events(&mut one), []);
        assert!(!one.is_behind());
        writer.begin().push([5, 6]);
        assert_eq!(events(&mut one), [LogEvent::Entry([5, 6])]);
        assert_eq!(
            events(&mut other),
            [&all[..], &[LogEvent::Entry([5, 6])]].concat()
        );
    }

    #[test]
    fn a_reader_that_is_far_behind_learns_that_it_missed_events() {
        let (mut writer, mut follower) = event_log();
        for number in 0..RETAINED {
            writer.begin().push([number, number]);
        }
        assert_eq!(events(&mut follower), [LogEvent::Missed]);
        writer.begin().push([7, 7]);
        assert_eq!(events(&mut follower), [LogEvent::Entry([7, 7])]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::sync::explore;

    /// A reader gets every event that was appended before it read, or learns that it missed some,
    /// even while the writer overwrites slots. Fails without either fence, and without the second
    /// load of the count.
    #[test]
    fn no_entry_is_torn_or_missed() {
        explore(3, || {
            let (mut writer, mut follower) = event_log();
            writer.begin().push([1, 1]);
            let append = thread::spawn(move || (2..=4).for_each(|n| writer.begin().push([n, n])));
            let (mut last, mut missed, mut torn) = (0, false, false);
            let looked = follower.read(|events| match events {
                LogEvent::Missed => missed = true,
                LogEvent::Entry([a, b]) => {
                    torn |= a != b || a != last + 1;
                    last = a;
                }
            });
            assert!(missed || !torn);
            assert!(!looked || missed || last >= 1);
            append.join().unwrap();
            let mut missed_later = false;
            let looked_later = follower.read(|events| match events {
                LogEvent::Missed => missed_later = true,
                LogEvent::Entry([a, _]) => last = a,
            });
            assert!(looked_later && (missed_later || last == 4));
        });
    }

    /// An event that others know of through the writer is there for a reader: the writer publishes
    /// it between beginning and end, as the kernel does when an event is read. Fails if a reader
    /// ignores that an append is under way.
    #[test]
    fn an_event_that_is_known_is_read_or_waited_for() {
        explore(3, || {
            let (mut writer, mut follower) = event_log();
            let known = loom::sync::Arc::new(AtomicU64::new(0));
            let theirs = loom::sync::Arc::clone(&known);
            let append = thread::spawn(move || {
                let mut append = writer.begin();
                theirs.store(1, Ordering::Release);
                append.push([1, 1]);
            });
            let is_known = known.load(Ordering::Acquire) == 1;
            let mut events = 0;
            let looked = follower.read(|_| events += 1);
            assert!(!is_known || !looked || events == 1);
            append.join().unwrap();
        });
    }
}
