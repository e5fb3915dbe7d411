//! Automatic progress: the choice between the application and the thread as driver of a domain
//! (`docs/adr/0066-automatic-progress.md`).
//!
//! The thread drives the domain unless the application makes calls in quick succession. All times
//! are parameters, so that tests set them.

use std::time::{Duration, Instant};

/// Time between two checks whether the application still drives the domain, when it has just begun
/// to: messages may wait this long after its last call.
const FIRST_LOOK: Duration = Duration::from_micros(50);

/// The same when it has driven the domain for long.
const LAST_LOOK: Duration = Duration::from_millis(1);

/// An application whose calls are further apart leaves the domain to the thread.
const DRIVING_GAP: Duration = Duration::from_micros(25);

/// Calls in quick succession after which the application drives the domain.
const DRIVING_CALLS: u32 = 4;

/// Times in a row that the thread drives the domain without effect before it yields the processor.
const MOST_IN_VAIN: u32 = 4;

/// State that the thread shares with the application's calls.
#[derive(Debug, Default)]
pub(super) struct AutoProgressState {
    /// Whether there is such a thread.
    pub(super) automatic: bool,
    /// Whether the thread sleeps until it is woken, with the transports armed.
    pub(super) sleeps: bool,
    /// Number of calls of the application that drove the domain.
    calls: u64,
    /// Calls in quick succession while the thread slept.
    quick_calls: u32,
    last_call: Option<Instant>,
}

impl AutoProgressState {
    /// Counts a call of the application while the thread does not sleep.
    #[inline]
    pub(super) fn count_call(&mut self) {
        self.calls = self.calls.wrapping_add(1);
    }

    /// A call of the application comes while the thread sleeps. Returns whether the application
    /// drives the domain from now on: the thread is to be woken, and the transports are not armed
    /// again.
    pub(super) fn ends_sleep(&mut self, now: Instant) -> bool {
        self.calls = self.calls.wrapping_add(1);
        let last = self.last_call.replace(now);
        let is_quick = last.is_some_and(|last| now.saturating_duration_since(last) < DRIVING_GAP);
        self.quick_calls = if is_quick { self.quick_calls + 1 } else { 0 };
        if self.quick_calls < DRIVING_CALLS {
            return false;
        }
        self.quick_calls = 0;
        self.sleeps = false;
        true
    }
}

/// The thread's own state.
#[derive(Debug)]
pub(super) struct Attention {
    /// Time until the next check while the application drives the domain.
    interval: Duration,
    /// Number of calls of the application at the last check.
    seen: u64,
    before: Before,
}

/// The last step of the thread.
#[derive(Clone, Copy, Debug)]
enum Before {
    /// It left the domain to the application, from then on; in the beginning, from no time on.
    Waited(Option<Instant>),
    /// It drove the domain, this number of times in a row without effect.
    Drove(u32),
    /// It slept, from then on.
    Slept(Instant),
}

impl Attention {
    pub(super) const fn new() -> Self {
        Self {
            interval: FIRST_LOOK,
            seen: 0,
            before: Before::Waited(None),
        }
    }

    /// Whether the application drives the domain, at a check of the thread. If not, the thread
    /// drives it.
    pub(super) fn is_driven(&mut self, state: &mut AutoProgressState, now: Instant) -> bool {
        let was_asleep = std::mem::take(&mut state.sleeps);
        let calls = state.calls.wrapping_sub(self.seen);
        match self.before {
            Before::Slept(_) if was_asleep => false,
            Before::Slept(since) => {
                // The application's calls ended the sleep.
                self.adapt(now.saturating_duration_since(since) >= LAST_LOOK);
                true
            }
            Before::Drove(_) => calls > u64::from(DRIVING_CALLS),
            Before::Waited(since) => {
                // Other work may have the processor for longer than the thread meant to wait.
                let waited = since.map_or(FIRST_LOOK, |since| now.saturating_duration_since(since));
                let is_driven = u128::from(calls) > waited.as_nanos() / DRIVING_GAP.as_nanos();
                if is_driven {
                    self.adapt(false);
                }
                is_driven
            }
        }
    }

    /// The thread has driven the domain. Returns whether the application does from now on: an event
    /// woke the thread, and a call of the application has done all that was to do.
    pub(super) fn was_needless(&mut self, state: &AutoProgressState, moved: bool) -> bool {
        if moved {
            self.adapt(true);
            return false;
        }
        let calls = state.calls.wrapping_sub(self.seen);
        let is_needless = matches!(self.before, Before::Slept(_)) && calls != 0;
        if is_needless {
            self.adapt(false);
        }
        is_needless
    }

    /// The transports can not be armed, so that the thread can not sleep. Returns the time until
    /// the next attempt.
    pub(super) fn cannot_sleep(&mut self, state: &AutoProgressState, now: Instant) -> Duration {
        self.adapt(false);
        self.waits(state, now)
    }

    /// Checks come soon where they find work, and else ever more seldom.
    fn adapt(&mut self, was_worth_it: bool) {
        self.interval = match was_worth_it {
            true => FIRST_LOOK,
            false => (2 * self.interval).min(LAST_LOOK),
        };
    }

    /// The thread leaves the domain to the application. Returns for how long.
    pub(super) fn waits(&mut self, state: &AutoProgressState, now: Instant) -> Duration {
        self.seen = state.calls;
        self.before = Before::Waited(Some(now));
        self.interval
    }

    /// The thread drives the domain once more. Returns whether at once: work came in between, and
    /// is not held up by others.
    pub(super) fn goes_on(&mut self, state: &AutoProgressState, moved: bool) -> bool {
        let in_vain = match (moved, self.before) {
            (true, _) => 0,
            (false, Before::Drove(in_vain)) => in_vain + 1,
            (false, _) => 1,
        };
        self.seen = state.calls;
        self.before = Before::Drove(in_vain);
        in_vain < MOST_IN_VAIN
    }

    /// The thread goes to sleep, with the transports armed.
    pub(super) fn sleeps(&mut self, state: &mut AutoProgressState, now: Instant) {
        self.seen = state.calls;
        self.before = Before::Slept(now);
        state.sleeps = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A domain whose thread sleeps, at a time.
    struct Asleep {
        state: AutoProgressState,
        thread: Attention,
        now: Instant,
    }

    impl Asleep {
        fn new() -> Self {
            let mut asleep = Self {
                state: AutoProgressState {
                    automatic: true,
                    ..AutoProgressState::default()
                },
                thread: Attention::new(),
                now: Instant::now(),
            };
            assert!(asleep.takes_over(), "a new domain belongs to the thread");
            asleep
        }

        /// The thread checks. If it takes over it finds nothing to do, and sleeps.
        fn takes_over(&mut self) -> bool {
            if self.thread.is_driven(&mut self.state, self.now) {
                self.now += self.thread.waits(&self.state, self.now);
                return false;
            }
            assert!(!self.thread.was_needless(&self.state, false));
            self.thread.sleeps(&mut self.state, self.now);
            true
        }

        /// The application calls so often, at these distances.
        fn calls(&mut self, count: u32, gap: Duration) {
            for _ in 0..count {
                self.now += gap;
                match self.state.sleeps {
                    true => drop(self.state.ends_sleep(self.now)),
                    false => self.state.count_call(),
                }
            }
        }

        /// The application drives the domain at least for this time. Returns the time from its last
        /// call until the thread has taken over.
        fn driven_for(&mut self, time: Duration) -> Duration {
            let step = Duration::from_micros(1);
            let until = self.now + time;
            self.calls(DRIVING_CALLS + 1, step);
            assert!(
                !self.state.sleeps,
                "calls in quick succession end the sleep"
            );
            assert!(!self.takes_over());
            loop {
                // The last call comes right before the check.
                self.state.calls += 1000;
                let last = self.now;
                assert!(!self.takes_over());
                if last >= until {
                    while !self.takes_over() {}
                    return self.now - last;
                }
            }
        }
    }

    #[test]
    fn calls_far_apart_leave_the_domain_to_the_thread() {
        let mut domain = Asleep::new();
        domain.calls(1000, DRIVING_GAP);
        // A few that follow another at once do not matter.
        for _ in 0..1000 {
            domain.calls(1, DRIVING_GAP);
            domain.calls(DRIVING_CALLS - 1, Duration::ZERO);
        }
        assert!(domain.state.sleeps);
    }

    #[test]
    fn the_thread_takes_over_soon_after_a_few_calls_and_later_after_many() {
        for (driven_us, least_us, most_us) in [(1, 50, 100), (300, 100, 500), (50_000, 1000, 1000)]
        {
            let mut domain = Asleep::new();
            domain.now += LAST_LOOK;
            let wait = domain.driven_for(Duration::from_micros(driven_us));
            let (least, most) = (
                Duration::from_micros(least_us),
                Duration::from_micros(most_us),
            );
            assert!(least <= wait && wait <= most, "{driven_us} us: {wait:?}");
        }
    }

    #[test]
    fn short_sleeps_for_nothing_come_seldom() {
        let mut domain = Asleep::new();
        for interval_us in [100, 200, 400, 800, 1000, 1000] {
            domain.now += LAST_LOOK / 2;
            domain.calls(DRIVING_CALLS + 1, Duration::ZERO);
            assert!(!domain.takes_over());
            assert_eq!(domain.thread.interval, Duration::from_micros(interval_us));
            assert!(domain.takes_over());
        }
    }

    #[test]
    fn work_that_the_thread_finds_brings_it_back_soon() {
        let mut domain = Asleep::new();
        domain.driven_for(Duration::from_millis(50));
        assert_eq!(domain.thread.interval, LAST_LOOK);
        assert!(!domain.thread.is_driven(&mut domain.state, domain.now));
        assert!(!domain.thread.was_needless(&domain.state, true));
        assert_eq!(domain.thread.interval, FIRST_LOOK);
    }

    #[test]
    fn a_long_sleep_brings_it_back_soon() {
        let mut domain = Asleep::new();
        domain.driven_for(Duration::from_millis(50));
        domain.now += LAST_LOOK;
        domain.calls(DRIVING_CALLS + 1, Duration::ZERO);
        assert!(!domain.takes_over());
        assert_eq!(domain.thread.interval, FIRST_LOOK);
    }

    #[test]
    fn wake_ups_beside_an_application_that_does_the_work_come_seldom() {
        let mut domain = Asleep::new();
        let intervals: Vec<_> = (0..6)
            .map(|_| {
                domain.calls(1, DRIVING_GAP);
                // An event wakes the thread, and the call has done all.
                assert!(!domain.thread.is_driven(&mut domain.state, domain.now));
                assert!(domain.thread.was_needless(&domain.state, false));
                let interval = domain.thread.waits(&domain.state, domain.now);
                domain.now += interval;
                assert!(domain.takes_over());
                interval.as_micros()
            })
            .collect();
        assert_eq!(intervals, [100, 200, 400, 800, 1000, 1000]);
    }

    /// Other work has the processor, so the check comes late.
    #[test]
    fn a_late_check_counts_the_calls_of_all_its_time() {
        let mut domain = Asleep::new();
        domain.driven_for(Duration::from_millis(50));
        domain.calls(DRIVING_CALLS + 1, Duration::ZERO);
        assert!(!domain.takes_over());
        domain.calls(100, 4 * DRIVING_GAP);
        assert!(domain.takes_over());
    }

    #[test]
    fn a_thread_that_drives_without_effect_yields() {
        let mut domain = Asleep::new();
        let at_once: Vec<_> = [false, false, false, true, false, false, false, false]
            .map(|moved| domain.thread.goes_on(&domain.state, moved))
            .into();
        assert_eq!(at_once, [true, true, true, true, true, true, true, false]);
    }
}
