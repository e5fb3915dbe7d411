//! Which way large messages go: through the ring, or read out of the sender's memory. Measured on real transfers, for each
//! size class, for it differs from machine to machine by factors.

use std::time::{Duration, Instant};

/// The two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Two copies, through the payload ring.
    Pipe,
    /// One copy, by the kernel.
    Cma,
}

/// What was moved so far, by all links of an endpoint: messages share the ring, and one that is read keeps others waiting, so
/// the time from a message's start to its end says nothing by itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// Bytes that came through rings.
    pub(crate) ring_bytes: u64,
    /// Bytes that were read, and the time that it took.
    pub(crate) read_bytes: u64,
    pub(crate) reading: Duration,
}

/// A message whose way is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    path: Path,
    since: Instant,
    before: Moved,
}

impl Trial {
    pub(crate) fn begin(path: Path, since: Instant, before: Moved) -> Self {
        Self {
            path,
            since,
            before,
        }
    }

    /// What its way has moved since it began, and in what time.
    fn end(&self, now: Instant, moved: Moved) -> (u64, Duration) {
        let reading = moved.reading.saturating_sub(self.before.reading);
        match self.path {
            Path::Pipe => (
                moved.ring_bytes - self.before.ring_bytes,
                now.saturating_duration_since(self.since)
                    .saturating_sub(reading),
            ),
            Path::Cma => (moved.read_bytes - self.before.read_bytes, reading),
        }
    }
}

const CLASSES: usize = 32;
/// After so many transfers the slower way is tried again; doubled each time that it stays slower.
const FIRST_RETRY: u32 = 16;
const LAST_RETRY: u32 = 4096;
/// First transfers of a class, taken in turns.
const TRIALS: u32 = 4;

#[derive(Clone, Copy)]
struct Class {
    /// Picoseconds per byte of each way, the best of late; 0 when not measured yet.
    cost: [u64; 2],
    transfers: u32,
    retry_at: u32,
    retry_after: u32,
}

/// What was measured so far.
pub(crate) struct Paths {
    class: [Class; CLASSES],
}

impl Paths {
    pub(crate) fn new() -> Self {
        Self {
            class: [Class {
                cost: [0; 2],
                transfers: 0,
                retry_at: FIRST_RETRY,
                retry_after: FIRST_RETRY,
            }; CLASSES],
        }
    }

    /// The way for a message of `len` bytes.
    pub(crate) fn choose(&mut self, len: usize) -> Path {
        let class = &mut self.class[class_of(len)];
        class.transfers = class.transfers.wrapping_add(1);
        if class.transfers <= TRIALS {
            return if class.transfers % 2 == 1 {
                Path::Pipe
            } else {
                Path::Cma
            };
        }
        let (better, worse) = if class.cost[1] != 0 && class.cost[1] < class.cost[0] {
            (Path::Cma, Path::Pipe)
        } else {
            (Path::Pipe, Path::Cma)
        };
        if class.transfers == class.retry_at {
            class.retry_after = (class.retry_after * 2).min(LAST_RETRY);
            class.retry_at = class.transfers.wrapping_add(class.retry_after);
            return worse;
        }
        better
    }

    /// A message of `len` bytes is there whose way was measured.
    pub(crate) fn record(&mut self, trial: &Trial, len: usize, now: Instant, moved: Moved) {
        let (bytes, took) = trial.end(now, moved);
        if bytes != 0 {
            self.learn(trial.path, len, bytes, took);
        }
    }

    fn learn(&mut self, path: Path, len: usize, bytes: u64, took: Duration) {
        let cost = &mut self.class[class_of(len)].cost[path as usize];
        let now = (took.as_nanos() as u64 * 1000 / bytes).max(1);
        // The best of late: one transfer that was held up, however long, says next to nothing; a change for the worse does in
        // the end. (The way that is in use is measured all the time, the other one seldom: it would not come back soon.)
        *cost = if *cost == 0 || now < *cost {
            now
        } else {
            *cost + ((now - *cost) / 16).min(*cost / 16 + 1)
        };
    }
}

fn class_of(len: usize) -> usize {
    (len.max(1).ilog2() as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(paths: &mut Paths, transfers: usize, pipe_ns: u64, cma_ns: u64) -> usize {
        (0..transfers)
            .filter(|_| {
                let path = paths.choose(1 << 20);
                let ns = [pipe_ns, cma_ns][path as usize];
                paths.learn(path, 1 << 20, 1 << 20, Duration::from_nanos(ns));
                path == Path::Cma
            })
            .count()
    }

    #[test]
    fn the_faster_way_is_taken_and_the_slower_one_tried_ever_less() {
        let mut paths = Paths::new();
        let cma = run(&mut paths, 10_000, 20_000, 72_000);
        assert!((2..=14).contains(&cma), "{cma} of 10000 by CMA");
        let mut paths = Paths::new();
        let cma = run(&mut paths, 10_000, 72_000, 20_000);
        assert!((9_980..=9_998).contains(&cma), "{cma} of 10000 by CMA");
    }

    #[test]
    fn a_change_is_noticed() {
        let mut paths = Paths::new();
        run(&mut paths, 1_000, 20_000, 40_000);
        let cma = run(&mut paths, 10_000, 80_000, 40_000);
        assert!(cma > 8_000, "{cma} of 10000 by CMA");
    }

    #[test]
    fn one_slow_transfer_changes_nothing() {
        let mut paths = Paths::new();
        run(&mut paths, 100, 20_000, 72_000);
        paths.learn(Path::Pipe, 1 << 20, 1 << 20, Duration::from_micros(500));
        assert_eq!(paths.choose(1 << 20), Path::Pipe);
        // The processor was somebody else's in between.
        paths.learn(Path::Pipe, 1 << 20, 1 << 20, Duration::from_millis(20));
        assert_eq!(paths.choose(1 << 20), Path::Pipe);
    }

    /// Messages of 1 MiB, `window` of them under way at a time. The ring moves 256 KiB of each in turn, and while one is
    /// read all others wait. Returns how many of 2000 were read.
    fn stream(window: usize, pipe_ns: u64, cma_ns: u64) -> usize {
        const LEN: u64 = 1 << 20;
        let (mut paths, mut moved) = (Paths::new(), Moved::default());
        let mut now = Instant::now();
        let mut under_way: Vec<(Trial, u64)> = Vec::new();
        let (mut by_cma, mut turn) = (0, 0);
        for _ in 0..2000 {
            while under_way.len() < window {
                let path = paths.choose(LEN as usize);
                by_cma += usize::from(path == Path::Cma);
                under_way.push((Trial::begin(path, now, moved), LEN));
            }
            loop {
                turn = (turn + 1) % under_way.len();
                let (trial, left) = &mut under_way[turn];
                match trial.path {
                    Path::Pipe => {
                        now += Duration::from_nanos(pipe_ns / 4);
                        moved.ring_bytes += LEN / 4;
                        *left -= LEN / 4;
                    }
                    Path::Cma => {
                        now += Duration::from_nanos(cma_ns);
                        moved.reading += Duration::from_nanos(cma_ns);
                        moved.read_bytes += LEN;
                        *left = 0;
                    }
                }
                if *left == 0 {
                    let (trial, _) = under_way.remove(turn);
                    paths.record(&trial, LEN as usize, now, moved);
                    break;
                }
            }
        }
        by_cma
    }

    #[test]
    fn messages_that_share_the_ring_do_not_make_it_look_slow() {
        for window in [1, 2, 4, 16] {
            let cma = stream(window, 20_000, 72_000);
            assert!(cma < 60, "{cma} of 2000 by CMA, {window} at a time");
            let cma = stream(window, 72_000, 20_000);
            assert!(cma > 1900, "{cma} of 2000 by CMA, {window} at a time");
        }
    }
}
