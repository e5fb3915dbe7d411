//! Polling that yields the processor: for completion queues and counters that an application polls in a loop.
//!
//! With more threads than processors, the thread that would complete an operation may be waiting for the very
//! processor on which another thread polls for that completion. A poller therefore yields after a bounded number of
//! polls in a row that found nothing. The bound adapts. If another thread ran during the yield, the processor is
//! shared, and the next yield comes after few polls. If none did, the yield was wasted, and the next one comes after
//! twice as many polls.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::resource::{UsageWho, getrusage};

/// Polls before the first yield: a microsecond or two.
const FIRST: u32 = 32;
/// Polls between yields while other threads run on this processor.
const FEWEST: u32 = 8;
/// Polls between yields while no other thread does: a yield then costs less than one percent of the time.
const MOST: u32 = 2048;
/// Yields to other threads after which it is looked whether there still are any: the look costs a system call.
const YIELDS_BETWEEN_LOOKS: u32 = 16;

/// Counts the polls of one object that found nothing. Threads may share it: a lost count moves a yield by one poll.
#[derive(Debug)]
pub(super) struct EmptyPolls {
    in_a_row: AtomicU32,
    bound: AtomicU32,
    /// Yields since the processor was last found to be shared.
    yields: AtomicU32,
}

impl EmptyPolls {
    pub(super) const fn new() -> Self {
        Self {
            in_a_row: AtomicU32::new(0),
            bound: AtomicU32::new(FIRST),
            yields: AtomicU32::new(0),
        }
    }

    /// Counts a poll. Yields the processor after too many in a row that found nothing; so the caller holds no lock.
    #[inline]
    pub(super) fn count(&self, found: bool) {
        if found {
            self.in_a_row.store(0, Ordering::Relaxed);
            return;
        }
        let in_a_row = self.in_a_row.load(Ordering::Relaxed) + 1;
        if in_a_row < self.bound.load(Ordering::Relaxed) {
            self.in_a_row.store(in_a_row, Ordering::Relaxed);
        } else {
            self.yield_processor();
        }
    }

    #[cold]
    fn yield_processor(&self) {
        self.in_a_row.store(0, Ordering::Relaxed);
        std::thread::yield_now();
        let bound = self.bound.load(Ordering::Relaxed);
        if bound == FEWEST {
            let yields = self.yields.load(Ordering::Relaxed) + 1;
            self.yields.store(yields, Ordering::Relaxed);
            if yields < YIELDS_BETWEEN_LOOKS {
                return;
            }
        }
        let bound = next_bound(bound, another_thread_ran());
        self.bound.store(bound, Ordering::Relaxed);
        self.yields.store(0, Ordering::Relaxed);
    }
}

fn next_bound(bound: u32, shared: bool) -> u32 {
    match shared {
        true => FEWEST,
        false => (bound * 2).min(MOST),
    }
}

/// Whether another thread had this thread's processor since the last call: a yield that switches to another thread
/// counts as an involuntary context switch, one that returns at once does not (getrusage(2)).
fn another_thread_ran() -> bool {
    thread_local!(static SWITCHES: Cell<i64> = const { Cell::new(0) });
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else {
        return false;
    };
    let switches = usage.involuntary_context_switches();
    SWITCHES.replace(switches) != switches
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

    #[test]
    fn the_bound_grows_while_nobody_else_runs_and_falls_at_once() {
        let bounds: Vec<u32> = std::iter::successors(Some(FIRST), |bound| {
            (*bound < MOST).then(|| next_bound(*bound, false))
        })
        .collect();
        assert_eq!(bounds, [32, 64, 128, 256, 512, 1024, 2048]);
        assert_eq!(next_bound(MOST, false), MOST);
        assert_eq!(next_bound(MOST, true), FEWEST);
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

    /// Two threads on one processor hand a token to and fro. A poller keeps the other thread from running until it
    /// yields. Without a yield, each round takes two time slices of the scheduler, which is hundreds of thousands of
    /// polls that find nothing.
    #[test]
    fn a_poller_lets_the_thread_run_that_it_waits_for() {
        const ROUNDS: u32 = 2_000;
        static TURN: AtomicU32 = AtomicU32::new(0);
        static DONE: AtomicBool = AtomicBool::new(false);
        // All turns of a parity belong to one thread; returns the polls in vain of all its rounds.
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
        let most = u64::from(ROUNDS) * 500;
        assert!(
            in_vain < most,
            "{in_vain} polls in vain in {ROUNDS} rounds, at most {most}"
        );
    }
}
