//! The time of an endpoint: the system's clock, or one that is set by hand. Tests take the latter,
//! so that a minute costs no minute.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};

use ferrofabric_contracts::error::Result;

use crate::locks::{Condvar, Mutex};
use crate::wait::WaitSet;

/// A clock that never goes back.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    /// `None`: the system's clock.
    by_hand: Option<Arc<HandState>>,
}

impl Clock {
    /// The system's clock.
    pub const SYSTEM: Self = Self { by_hand: None };

    /// Nanoseconds since an origin that the clock chooses.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        match &self.by_hand {
            None => system_ns(),
            Some(hand) => hand.now_ns(),
        }
    }

    /// For a thread that sleeps on `set` until a time of this clock.
    pub fn sleeper(&self, set: &Arc<WaitSet>) -> ClockSleeper {
        ClockSleeper {
            clock: self.clone(),
            set: set.clone(),
            number: self.by_hand.as_ref().map_or(0, |hand| hand.enter(set)),
        }
    }
}

#[inline]
fn system_ns() -> u64 {
    // `Instant` would take twice as long. This clock always exists.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(TimeSpec::new(0, 0));
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

/// A thread that sleeps until a time of a clock.
pub struct ClockSleeper {
    clock: Clock,
    set: Arc<WaitSet>,
    /// Its number at a clock that is set by hand.
    number: u64,
}

impl ClockSleeper {
    /// Sleeps until the set is woken, the clock shows `until_ns`, or the system's clock shows
    /// `deadline`.
    ///
    /// # Errors
    ///
    /// When the kernel can not wait.
    pub fn sleep(&self, until_ns: Option<u64>, deadline: Option<Instant>) -> Result<()> {
        let Some(hand) = &self.clock.by_hand else {
            let now_ns = self.clock.now_ns();
            let left = |at_ns: u64| Duration::from_nanos(at_ns.saturating_sub(now_ns));
            let until = until_ns.map(|at_ns| Instant::now() + left(at_ns));
            let first = until.into_iter().chain(deadline).min();
            return self.set.sleep(first).map(|_| ());
        };
        if !hand.falls_asleep(self.number, until_ns) {
            return Ok(());
        }
        let slept = self.set.sleep(deadline);
        hand.is_awake(self.number);
        slept.map(|_| ())
    }
}

impl Drop for ClockSleeper {
    fn drop(&mut self) {
        if let Some(hand) = &self.clock.by_hand {
            hand.leave(self.number);
        }
    }
}

/// Sets a clock by hand. An endpoint whose application sleeps does not notice: it has to be driven.
#[derive(Debug, Default)]
pub struct HandClock(Arc<HandState>);

impl HandClock {
    /// A clock that stands still at its origin.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The clock, as endpoints take it.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock {
            by_hand: Some(self.0.clone()),
        }
    }

    /// Sets the clock forward. Returns when each thread that slept until a time that has come has
    /// done its work and sleeps again; of threads in [`HandClock::sleep`], when each has left it.
    pub fn advance(&self, span: Duration) {
        let mut time = self.0.time.lock();
        time.now_ns += u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let now_ns = time.now_ns;
        for sleeper in time.sleepers.values_mut() {
            if sleeper.until_ns.is_some_and(|until_ns| until_ns <= now_ns) {
                sleeper.is_asleep = false;
                sleeper.set.signal();
            }
        }
        self.0.changed.notify_all();
        while time.has_due(now_ns) {
            time = self.0.changed.wait(time);
        }
    }

    /// The calling thread sleeps for a time of this clock.
    pub fn sleep(&self, span: Duration) {
        let mut time = self.0.time.lock();
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = time.now_ns.saturating_add(span_ns);
        *time.sleeps.entry(until_ns).or_default() += 1;
        time.is_asleep(true);
        self.0.changed.notify_all();
        while time.now_ns < until_ns {
            time = self.0.changed.wait(time);
        }
        time.is_asleep(false);
        if let Some(count) = time.sleeps.get_mut(&until_ns) {
            *count -= 1;
            if *count == 0 {
                time.sleeps.remove(&until_ns);
            }
        }
        self.0.changed.notify_all();
    }

    /// The number of threads in [`HandClock::sleep`].
    #[must_use]
    pub fn sleeping(&self) -> usize {
        self.0.time.lock().sleeps.values().sum()
    }
}

/// A clock that is set by hand.
#[derive(Debug, Default)]
struct HandState {
    time: Mutex<HandTime>,
    /// The time, a sleeper or a sleep is another one than before.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct HandTime {
    now_ns: u64,
    sleepers: BTreeMap<u64, HandSleeper>,
    next_number: u64,
    /// Threads in [`HandClock::sleep`], by the time at which they wake.
    sleeps: BTreeMap<u64, usize>,
}

impl HandTime {
    /// The calling thread may be a sleeper, and sleeps otherwise.
    fn is_asleep(&mut self, is_asleep: bool) {
        let this = Some(thread::current().id());
        for sleeper in self.sleepers.values_mut() {
            if sleeper.thread == this {
                (sleeper.until_ns, sleeper.is_asleep) = (None, is_asleep);
            }
        }
    }

    /// Whether a thread has yet to notice that its time has come.
    fn has_due(&self, now_ns: u64) -> bool {
        self.sleepers.values().any(|sleeper| !sleeper.is_asleep)
            || self.sleeps.range(..=now_ns).next().is_some()
    }
}

struct HandSleeper {
    set: Arc<WaitSet>,
    /// The thread that has slept.
    thread: Option<ThreadId>,
    until_ns: Option<u64>,
    is_asleep: bool,
}

impl std::fmt::Debug for HandSleeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandSleeper")
            .field("until_ns", &self.until_ns)
            .field("is_asleep", &self.is_asleep)
            .finish_non_exhaustive()
    }
}

impl HandState {
    #[cold]
    fn now_ns(&self) -> u64 {
        self.time.lock().now_ns
    }

    fn enter(&self, set: &Arc<WaitSet>) -> u64 {
        let mut time = self.time.lock();
        time.next_number += 1;
        let number = time.next_number;
        let sleeper = HandSleeper {
            set: set.clone(),
            thread: None,
            until_ns: None,
            is_asleep: false,
        };
        time.sleepers.insert(number, sleeper);
        number
    }

    fn leave(&self, number: u64) {
        self.time.lock().sleepers.remove(&number);
        self.changed.notify_all();
    }

    /// A sleeper sleeps from now on, unless its time has come.
    fn falls_asleep(&self, number: u64, until_ns: Option<u64>) -> bool {
        let mut time = self.time.lock();
        if until_ns.is_some_and(|until_ns| until_ns <= time.now_ns) {
            return false;
        }
        if let Some(sleeper) = time.sleepers.get_mut(&number) {
            (sleeper.until_ns, sleeper.is_asleep) = (until_ns, true);
            sleeper.thread = Some(thread::current().id());
        }
        self.changed.notify_all();
        true
    }

    fn is_awake(&self, number: u64) {
        if let Some(sleeper) = self.time.lock().sleepers.get_mut(&number) {
            sleeper.is_asleep = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Each time that has come is handled when the call returns that has set the clock forward.
    #[test]
    fn a_sleeper_has_done_its_work_when_the_time_has_come() {
        const SECOND: Duration = Duration::from_secs(1);
        let hand = HandClock::new();
        let clock = hand.clock();
        let set = Arc::new(WaitSet::new().unwrap());
        let (ticks, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let sleeper = clock.sleeper(&set);
        let thread = std::thread::spawn({
            let (ticks, done) = (ticks.clone(), done.clone());
            move || {
                let mut next_ns = 1_000_000_000;
                while done.load(Ordering::SeqCst) == 0 {
                    if sleeper.clock.now_ns() >= next_ns {
                        next_ns += 1_000_000_000;
                        ticks.fetch_add(1, Ordering::SeqCst);
                    }
                    sleeper.sleep(Some(next_ns), None).unwrap();
                }
            }
        });
        for tick in 0..100 {
            hand.advance(SECOND / 2);
            assert_eq!(ticks.load(Ordering::SeqCst), tick);
            hand.advance(SECOND / 2);
            assert_eq!(ticks.load(Ordering::SeqCst), tick + 1);
        }
        hand.advance(10 * SECOND);
        assert_eq!(ticks.load(Ordering::SeqCst), 110);
        assert_eq!(clock.now_ns(), 110_000_000_000);
        done.store(1, Ordering::SeqCst);
        set.signal();
        thread.join().unwrap();
        // Nobody has to be waited for.
        hand.advance(SECOND);
    }

    /// Threads that sleep at the same time cost the time of one, and none wakes early.
    #[test]
    fn threads_sleep_until_the_clock_has_passed_their_time() {
        const SPAN: Duration = Duration::from_millis(1);
        let hand = Arc::new(HandClock::new());
        let done = Arc::new(AtomicU64::new(0));
        let sleepers: Vec<_> = (0..4)
            .map(|_| {
                let (hand, done) = (hand.clone(), done.clone());
                std::thread::spawn(move || {
                    for _ in 0..10 {
                        hand.sleep(SPAN);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for step in 0..10 {
            while hand.sleeping() < 4 {
                std::thread::yield_now();
            }
            hand.advance(SPAN / 2);
            assert_eq!(
                (hand.sleeping(), done.load(Ordering::SeqCst)),
                (4, 4 * step)
            );
            hand.advance(SPAN / 2);
        }
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
        assert_eq!((hand.sleeping(), done.load(Ordering::SeqCst)), (0, 40));
        assert_eq!(hand.clock().now_ns(), 10_000_000);
    }

    #[test]
    fn the_clock_of_the_system_ends_a_sleep() {
        let set = Arc::new(WaitSet::new().unwrap());
        let clock = Clock::SYSTEM;
        let until_ns = clock.now_ns() + 1_000_000;
        let sleeper = clock.sleeper(&set);
        while clock.now_ns() < until_ns {
            sleeper.sleep(Some(until_ns), None).unwrap();
        }
    }
}
