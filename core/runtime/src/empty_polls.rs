//! Polling that yields the processor: for completion queues and counters that an application polls
//! in a loop.
//!
//! With more threads than processors, the thread that would complete an operation may be waiting
//! for the very processor on which another thread polls for that completion. A poller therefore
//! yields after a bounded number of polls in a row that found nothing (`docs/adr/0041`). Polls that
//! take long count as several. The bound adapts:
//!
//! - If the first poll after a yield finds something, the yield was worth it, and the next one
//!   comes after few polls.
//! - If it finds nothing, the next yield comes after twice as many polls.
//! - If the yield took as long as a time slice, the processor may be shared with a thread that
//!   computes. A poller that yields to such a thread loses its own time slices, so the next yield
//!   comes after eight times as many polls, up to a very long time. One such yield says little:
//!   other pollers may have had much to do meanwhile.
//! - If the thread lost its processor between two polls, and something came in that row, a yield
//!   might have brought it earlier: the next one comes after an eighth of the polls.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ferrofabric_system::clock::Clock;

/// Polls before the first yield: a microsecond or two.
const FIRST: u32 = 32;
/// Polls between yields that found another thread.
const FEWEST: u32 = 8;
/// Polls between yields that found none: such a yield then costs less than one percent of the time.
const MOST: u32 = 2048;
/// Polls between yields that all go to such a thread, at most: some ten milliseconds.
const BESIDE_COMPUTATION: u32 = 1 << 18;

/// A yield that takes longer went to a thread that computes. A thread that was away for longer
/// between two polls had lost its processor.
const TIME_SLICE_NS: u64 = 500_000;
/// A poll that takes longer counts as several.
const POLL_NS: u64 = 50;
/// Polls between two looks at the clock.
const LOOK: u32 = 64;

/// Marks the count of a poller that has just yielded.
const YIELDED: u32 = 1 << 31;

/// Counts the polls of one object that found nothing. Threads may share it: a lost count moves a
/// yield by a few polls.
#[derive(Debug)]
pub(crate) struct EmptyPolls {
    in_a_row: AtomicU32,
    /// The count at which there is something to decide.
    next_look: AtomicU32,
    bound: AtomicU32,
    /// The time of the last look of this row, from the first [`LOOK`] polls on.
    looked_at_ns: AtomicU64,
    /// The time that the polls between looks of this row took.
    polled_ns: AtomicU64,
}

impl EmptyPolls {
    pub(crate) const fn new() -> Self {
        Self {
            in_a_row: AtomicU32::new(0),
            next_look: AtomicU32::new(FIRST),
            bound: AtomicU32::new(FIRST),
            looked_at_ns: AtomicU64::new(0),
            polled_ns: AtomicU64::new(0),
        }
    }

    /// Counts a poll. Yields the processor after too many in a row that found nothing; so the
    /// caller holds no lock.
    #[inline]
    pub(crate) fn count(&self, found: bool) {
        if self.is_enough(found, now_ns) {
            self.give_way();
        }
    }

    /// Counts a poll, and says whether the row was too long.
    #[inline]
    fn is_enough(&self, found: bool, now_ns: impl FnOnce() -> u64) -> bool {
        let in_a_row = self.in_a_row.load(Ordering::Relaxed);
        if found {
            if in_a_row != 0 {
                self.end_row(in_a_row, now_ns);
            }
            false
        } else if in_a_row + 1 < self.next_look.load(Ordering::Relaxed) {
            self.in_a_row.store(in_a_row + 1, Ordering::Relaxed);
            false
        } else {
            self.look(in_a_row, now_ns)
        }
    }

    /// A poll has found something after others that did not.
    #[inline]
    fn end_row(&self, in_a_row: u32, now_ns: impl FnOnce() -> u64) {
        if in_a_row < LOOK {
            self.in_a_row.store(0, Ordering::Relaxed);
        } else if in_a_row == YIELDED {
            self.begin_row(0, FEWEST);
        } else {
            self.end_long_row(now_ns());
        }
    }

    #[cold]
    fn end_long_row(&self, now_ns: u64) {
        let bound = self.bound.load(Ordering::Relaxed);
        match is_away(self.looked_at_ns.load(Ordering::Relaxed), now_ns) {
            true => self.begin_row(0, (bound / 8).max(FIRST)),
            false => self.begin_row(0, bound),
        }
    }

    fn begin_row(&self, in_a_row: u32, bound: u32) {
        self.in_a_row.store(in_a_row, Ordering::Relaxed);
        self.bound.store(bound, Ordering::Relaxed);
        self.next_look.store(bound.min(LOOK), Ordering::Relaxed);
    }

    /// Another poll that found nothing, of a row that may be too long by it.
    #[cold]
    fn look(&self, in_a_row: u32, now_ns: impl FnOnce() -> u64) -> bool {
        let bound = self.bound.load(Ordering::Relaxed);
        if in_a_row == YIELDED {
            self.begin_row(1, (2 * bound).min(MOST));
            return false;
        }
        let in_a_row = in_a_row + 1;
        if in_a_row >= bound || self.polled_ns(in_a_row, now_ns()) >= u64::from(bound) * POLL_NS {
            return true;
        }
        self.in_a_row.store(in_a_row, Ordering::Relaxed);
        let next = bound.min(in_a_row + LOOK);
        self.next_look.store(next, Ordering::Relaxed);
        false
    }

    /// The time that the polls of this row took from its first look on, without that for which the
    /// thread had lost its processor.
    fn polled_ns(&self, in_a_row: u32, now_ns: u64) -> u64 {
        let since_ns = self.looked_at_ns.swap(now_ns, Ordering::Relaxed);
        let polled_ns = match in_a_row > LOOK {
            // The last look was of an earlier row.
            false => 0,
            true if is_away(since_ns, now_ns) => self.polled_ns.load(Ordering::Relaxed),
            true => self.polled_ns.load(Ordering::Relaxed) + now_ns.saturating_sub(since_ns),
        };
        self.polled_ns.store(polled_ns, Ordering::Relaxed);
        polled_ns
    }

    /// Yields the processor.
    #[cold]
    fn give_way(&self) {
        let since_ns = now_ns();
        std::thread::yield_now();
        self.after_yield(now_ns().saturating_sub(since_ns));
    }

    fn after_yield(&self, away_ns: u64) {
        if away_ns < TIME_SLICE_NS {
            self.in_a_row.store(YIELDED, Ordering::Relaxed);
        } else {
            let bound = self.bound.load(Ordering::Relaxed);
            self.begin_row(0, (8 * bound.max(FIRST)).min(BESIDE_COMPUTATION));
        }
    }
}

/// Whether a thread that looked at a time and looks now had lost its processor meanwhile.
fn is_away(since_ns: u64, now_ns: u64) -> bool {
    now_ns.saturating_sub(since_ns) >= TIME_SLICE_NS
}

fn now_ns() -> u64 {
    Clock::SYSTEM.now_ns()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    use nix::unistd::Pid;
    use std::sync::atomic::AtomicBool;

    /// Binds the calling thread to one processor that it may use.
    fn bind_to_one_processor() {
        let this = Pid::from_raw(0);
        let allowed = sched_getaffinity(this).unwrap();
        let first = (0..CpuSet::count()).find(|at| allowed.is_set(*at).unwrap());
        let mut one = CpuSet::new();
        one.set(first.unwrap()).unwrap();
        sched_setaffinity(this, &one).unwrap();
    }

    /// A short yield.
    const SHORT_NS: u64 = 1000;

    /// A poller with a clock of its own.
    struct Poller {
        polls: EmptyPolls,
        now_ns: u64,
        poll_ns: u64,
    }

    impl Poller {
        /// One whose polls take no time.
        fn new() -> Self {
            Self {
                polls: EmptyPolls::new(),
                now_ns: 0,
                poll_ns: 0,
            }
        }

        fn poll(&mut self, found: bool) -> bool {
            self.now_ns += self.poll_ns;
            self.polls.is_enough(found, || self.now_ns)
        }

        /// Polls without result until it yields; the yield takes `away_ns`. Returns the number of
        /// polls.
        fn yields(&mut self, away_ns: u64) -> u32 {
            let mut polls = 1;
            while !self.poll(false) {
                polls += 1;
            }
            self.now_ns += away_ns;
            self.polls.after_yield(away_ns);
            polls
        }

        /// Polls without result so often, and then with one. None of them yields. Returns the bound
        /// of the next row.
        fn row(&mut self, in_vain: u32) -> u32 {
            for _ in 0..in_vain {
                assert!(!self.poll(false));
            }
            assert!(!self.poll(true));
            self.polls.bound.load(Ordering::Relaxed)
        }

        /// Shares its processor with a thread that computes until it hardly yields any more.
        fn beside_computation() -> Self {
            let mut this = Self::new();
            while this.yields(TIME_SLICE_NS) < BESIDE_COMPUTATION {
                assert!(!this.poll(true));
            }
            this
        }
    }

    #[test]
    fn yields_in_vain_come_ever_more_seldom() {
        let mut poller = Poller::new();
        let bounds = [(); 8].map(|()| {
            let polls = poller.yields(SHORT_NS);
            // The poll after the yield was the first of the next row.
            poller.row(1);
            polls
        });
        assert_eq!(bounds, [32, 64, 128, 256, 512, 1024, 2048, 2048]);
    }

    #[test]
    fn a_yield_that_is_worth_it_brings_the_next_one_soon() {
        let mut poller = Poller::new();
        poller.yields(20 * SHORT_NS);
        assert_eq!(poller.row(0), FEWEST);
        // A completion between two yields does not change the bound.
        assert_eq!(poller.row(1), FEWEST);
    }

    #[test]
    fn a_thread_that_computes_gets_yields_ever_more_seldom() {
        let mut poller = Poller::new();
        let bounds = [(); 7].map(|()| {
            let polls = poller.yields(TIME_SLICE_NS);
            poller.row(0);
            polls
        });
        let most = BESIDE_COMPUTATION;
        assert_eq!(bounds, [32, 256, 2048, 16_384, 131_072, most, most]);
        // It computes no more.
        poller.yields(SHORT_NS);
        assert_eq!(poller.row(1), MOST);
    }

    #[test]
    fn a_poll_that_finds_something_starts_the_count_anew() {
        let mut poller = Poller::new();
        for _ in 0..10 {
            assert_eq!(poller.row(FIRST - 1), FIRST);
        }
    }

    /// A row ends by its time, of which the polls before the first look are no part.
    #[test]
    fn polls_that_take_long_count_as_several() {
        let mut poller = Poller::new();
        poller.poll_ns = 10 * POLL_NS;
        let bounds = [(); 10].map(|()| {
            let polls = poller.yields(SHORT_NS);
            poller.row(1);
            polls
        });
        let longest = (LOOK + MOST / 10).next_multiple_of(LOOK);
        assert_eq!(bounds[..4], [32, 64, 128, 128]);
        assert_eq!(bounds[7..], [longest; 3]);
        // The next row begins anew.
        for _ in 0..10 {
            poller.row(longest - 1);
        }
    }

    /// The time for which the thread had lost its processor is none that it has polled.
    #[test]
    fn time_without_the_processor_ends_no_row() {
        let mut poller = Poller::beside_computation();
        poller.poll(true);
        for _ in 1..BESIDE_COMPUTATION / LOOK {
            for _ in 0..LOOK {
                assert!(!poller.poll(false));
            }
            poller.now_ns += 4_000_000;
        }
    }

    /// Pollers that took each other for threads that compute do not wait for each other's time
    /// slices for ever.
    #[test]
    fn waits_without_the_processor_bring_the_next_yield_closer() {
        let mut poller = Poller::beside_computation();
        // Waits for a thread on another processor.
        assert_eq!(poller.row(0), BESIDE_COMPUTATION);
        assert_eq!(poller.row(10 * LOOK), BESIDE_COMPUTATION);
        let mut bound = BESIDE_COMPUTATION;
        while bound > LOOK {
            for _ in 0..LOOK + 1 {
                assert!(!poller.poll(false));
            }
            poller.now_ns += 4_000_000;
            let next = poller.row(0);
            assert_eq!(next, (bound / 8).max(FIRST));
            bound = next;
        }
    }

    /// Two threads on one processor pass a token to and fro. A poller keeps the other thread from
    /// running until it yields. Without a yield, each round takes two time slices of the scheduler,
    /// which is millions of polls that find nothing. With yields it is some ten, and on a processor
    /// that other programs use at most two times `BESIDE_COMPUTATION`.
    #[test]
    fn a_poller_lets_the_thread_run_that_it_waits_for() {
        const ROUNDS: u32 = 500;
        static TURN: AtomicU32 = AtomicU32::new(0);
        static DONE: AtomicBool = AtomicBool::new(false);
        // All turns of a parity belong to one thread; returns the empty polls of all its rounds.
        let take_turns = |parity: u32| {
            bind_to_one_processor();
            let (polls, mut in_vain) = (EmptyPolls::new(), 0u64);
            while !DONE.load(Ordering::Relaxed) {
                let turn = TURN.load(Ordering::Acquire);
                let mine = turn % 2 == parity;
                if mine {
                    DONE.store(turn >= 2 * ROUNDS, Ordering::Relaxed);
                    TURN.store(turn + 1, Ordering::Release);
                } else {
                    in_vain += 1;
                }
                polls.count(mine);
            }
            in_vain
        };
        let other = std::thread::spawn(move || take_turns(1));
        let in_vain = std::thread::spawn(move || take_turns(0)).join().unwrap();
        let in_vain = in_vain + other.join().unwrap();
        let most = u64::from(ROUNDS * 2 * BESIDE_COMPUTATION);
        assert!(
            in_vain < most,
            "{in_vain} polls in vain in {ROUNDS} rounds, at most {most}"
        );
    }
}
