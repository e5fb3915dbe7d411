//! Polling that yields the processor: for completion queues and counters that an application polls
//! in a loop.
//!
//! With more threads than processors, the thread that would complete an operation may be waiting
//! for the very processor on which another thread polls for that completion. A poller therefore
//! yields after a bounded number of polls in a row that found nothing (`docs/adr/0041`). The bound
//! adapts:
//!
//! - If the first poll after a yield finds something, the yield was worth it, and the next one
//!   comes after few polls.
//! - If it finds nothing, the next yield comes after twice as many polls.
//! - If the yield took as long as a time slice, the processor may be shared with a thread that
//!   computes. A poller that yields to such a thread loses its own time slices, so the next yield
//!   comes after eight times as many polls, up to a very long time. One such yield says little:
//!   other pollers may have had much to do meanwhile.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Polls before the first yield: a microsecond or two.
const FIRST: u32 = 32;
/// Polls between yields that found another thread.
const FEWEST: u32 = 8;
/// Polls between yields that found none: such a yield then costs less than one percent of the time.
const MOST: u32 = 2048;
/// A yield that takes longer went to a thread that computes.
const TIME_SLICE: Duration = Duration::from_micros(500);
/// Polls between yields that all go to such a thread, at most: some ten milliseconds.
const BESIDE_COMPUTATION: u32 = 1 << 18;

/// Marks the count of a poller that has just yielded.
const YIELDED: u32 = 1 << 31;

/// Counts the polls of one object that found nothing. Threads may share it: a lost count moves a
/// yield by one poll.
#[derive(Debug)]
pub(crate) struct EmptyPolls {
    in_a_row: AtomicU32,
    bound: AtomicU32,
}

impl EmptyPolls {
    pub(crate) const fn new() -> Self {
        Self {
            in_a_row: AtomicU32::new(0),
            bound: AtomicU32::new(FIRST),
        }
    }

    /// Counts a poll. Yields the processor after too many in a row that found nothing; so the
    /// caller holds no lock.
    #[inline]
    pub(crate) fn count(&self, found: bool) {
        let in_a_row = self.in_a_row.load(Ordering::Relaxed);
        if found {
            if in_a_row != 0 {
                self.end_row(in_a_row);
            }
        } else if in_a_row + 1 < self.bound.load(Ordering::Relaxed) {
            self.in_a_row.store(in_a_row + 1, Ordering::Relaxed);
        } else {
            self.end_empty_row(in_a_row);
        }
    }

    #[inline]
    fn end_row(&self, in_a_row: u32) {
        self.in_a_row.store(0, Ordering::Relaxed);
        if in_a_row == YIELDED {
            self.bound.store(FEWEST, Ordering::Relaxed);
        }
    }

    #[cold]
    fn end_empty_row(&self, in_a_row: u32) {
        let bound = self.bound.load(Ordering::Relaxed);
        if in_a_row == YIELDED {
            let next = bound.saturating_mul(2).min(MOST);
            self.bound.store(next, Ordering::Relaxed);
            self.in_a_row.store(1, Ordering::Relaxed);
            return;
        }
        let since = Instant::now();
        std::thread::yield_now();
        self.after_yield(since.elapsed());
    }

    fn after_yield(&self, away: Duration) {
        if away < TIME_SLICE {
            self.in_a_row.store(YIELDED, Ordering::Relaxed);
        } else {
            let bound = self.bound.load(Ordering::Relaxed);
            let next = (8 * bound.max(FIRST)).min(BESIDE_COMPUTATION);
            self.in_a_row.store(0, Ordering::Relaxed);
            self.bound.store(next, Ordering::Relaxed);
        }
    }
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

    /// Polls without result until it yields; the yield takes `away`. Returns the number of polls.
    fn yields(polls: &EmptyPolls, away: Duration) -> u32 {
        let bound = polls.bound.load(Ordering::Relaxed);
        for _ in 1..bound {
            polls.count(false);
        }
        polls.after_yield(away);
        bound
    }

    #[test]
    fn yields_in_vain_come_ever_more_seldom() {
        let polls = EmptyPolls::new();
        let bounds: Vec<u32> = (0..8)
            .map(|_| {
                let bound = yields(&polls, Duration::from_micros(1));
                polls.count(false);
                // The poll after the yield was the first of the next row.
                polls.count(true);
                bound
            })
            .collect();
        assert_eq!(bounds, [32, 64, 128, 256, 512, 1024, 2048, 2048]);
    }

    #[test]
    fn a_yield_that_is_worth_it_brings_the_next_one_soon() {
        let polls = EmptyPolls::new();
        yields(&polls, Duration::from_micros(20));
        polls.count(true);
        assert_eq!(polls.bound.load(Ordering::Relaxed), FEWEST);
        // A completion between two yields does not change the bound.
        polls.count(false);
        polls.count(true);
        assert_eq!(polls.bound.load(Ordering::Relaxed), FEWEST);
    }

    #[test]
    fn a_thread_that_computes_gets_yields_ever_more_seldom() {
        let polls = EmptyPolls::new();
        let bounds: Vec<u32> = (0..7)
            .map(|_| {
                let bound = yields(&polls, TIME_SLICE);
                polls.count(true);
                bound
            })
            .collect();
        let most = BESIDE_COMPUTATION;
        assert_eq!(bounds, [32, 256, 2048, 16_384, 131_072, most, most]);
        // It computes no more.
        yields(&polls, Duration::from_micros(1));
        polls.count(false);
        assert_eq!(polls.bound.load(Ordering::Relaxed), MOST);
    }

    #[test]
    fn a_poll_that_finds_something_starts_the_count_anew() {
        let polls = EmptyPolls::new();
        for _ in 0..10 {
            for _ in 1..FIRST {
                polls.count(false);
            }
            polls.count(true);
        }
        assert_eq!(polls.bound.load(Ordering::Relaxed), FIRST, "it has yielded");
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
