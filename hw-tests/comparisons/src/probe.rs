//! Whether this is a good moment to measure: how far apart two cores are, and whether somebody else
//! uses them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ferro::cores;

/// A cache line takes less than this from one core to the other where they are near; on virtual
/// machines that changes within minutes.
const NEAR_NS: f64 = 110.0;

/// No two cores are farther apart than this: somebody took one of them away meanwhile.
const FARTHEST_NS: f64 = 600.0;

const ROUND_TRIPS: u32 = 4000;

/// Enough of the kernel's ticks (10 ms) to see who is busy.
const LOOK: Duration = Duration::from_millis(60);

/// A core that is busy for more than this part of a look is somebody else's.
const BUSY: f64 = 0.2;

/// A line of its own, for those processors that fetch two at a time as well.
#[repr(align(128))]
struct ProbeLine(AtomicU32);

/// How far apart two cores are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Distance {
    /// As cores that share a cache.
    Near,
    /// As cores that do not.
    Far,
}

impl Distance {
    /// Both.
    pub(crate) const ALL: [Self; 2] = [Self::Near, Self::Far];

    /// As tables name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }

    /// The distance at which a cache line takes so many ns one way.
    fn of(one_way_ns: f64) -> Option<Self> {
        match one_way_ns {
            ns if ns < NEAR_NS => Some(Self::Near),
            ns if ns <= FARTHEST_NS => Some(Self::Far),
            _ => None,
        }
    }
}

/// How far apart the two cores are now; nothing where something disturbs the look.
pub(crate) fn distance(cores: (usize, usize)) -> Option<Distance> {
    one_way_ns(cores).and_then(Distance::of)
}

/// The time that a cache line takes from one core to the other, in ns.
fn one_way_ns(on: (usize, usize)) -> Option<f64> {
    let line = Arc::new(ProbeLine(AtomicU32::new(0)));
    let over = Arc::new(AtomicBool::new(false));
    let (far_line, far_over) = (line.clone(), over.clone());
    let far = std::thread::spawn(move || {
        if cores::pin(&[on.1]).is_err() {
            return;
        }
        let mut seen = 0;
        while !far_over.load(Ordering::Relaxed) {
            let now = far_line.0.load(Ordering::Acquire);
            if now != seen && now % 2 == 1 {
                seen = now + 1;
                far_line.0.store(seen, Ordering::Release);
            }
        }
    });
    let near = std::thread::spawn(move || {
        cores::pin(&[on.0]).ok()?;
        let deadline = Instant::now() + Duration::from_secs(1);
        let mut start = Instant::now();
        for trip in 0..2 * ROUND_TRIPS {
            if trip == ROUND_TRIPS {
                start = Instant::now();
            }
            line.0.store(2 * trip + 1, Ordering::Release);
            let mut polls = 0u32;
            while line.0.load(Ordering::Acquire) != 2 * trip + 2 {
                polls = polls.wrapping_add(1);
                if polls % 65_536 == 0 && Instant::now() > deadline {
                    return None;
                }
            }
        }
        Some(start.elapsed().as_nanos() as f64 / f64::from(2 * ROUND_TRIPS))
    });
    let ns = near.join().ok().flatten();
    over.store(true, Ordering::Relaxed);
    let _ = far.join();
    ns
}

/// Whether nobody uses the two cores now.
pub(crate) fn idle(cores: (usize, usize)) -> bool {
    let Some(before) = Ticks::read(cores) else {
        return true;
    };
    std::thread::sleep(LOOK);
    Ticks::read(cores).is_none_or(|after| after.busy_since(before) <= BUSY)
}

/// The kernel's counts for two cores.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    total: u64,
    idle: u64,
}

impl Ticks {
    fn read(cores: (usize, usize)) -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?, cores)
    }

    fn parse(stat: &str, (a, b): (usize, usize)) -> Option<Self> {
        let mut ticks = Self { total: 0, idle: 0 };
        let mut found = 0;
        for line in stat.lines() {
            let mut fields = line.split_ascii_whitespace();
            let core = fields.next().and_then(|f| f.strip_prefix("cpu"));
            let core = core.and_then(|n| n.parse::<usize>().ok());
            if core.is_some_and(|n| n == a || n == b) {
                // user nice system idle iowait irq softirq steal: proc(5).
                let counts: Vec<u64> = fields.take(8).filter_map(|f| f.parse().ok()).collect();
                ticks.total += counts.iter().sum::<u64>();
                ticks.idle += counts.get(3)? + counts.get(4).unwrap_or(&0);
                found += 1;
            }
        }
        (found > 0).then_some(ticks)
    }

    fn busy_since(self, before: Self) -> f64 {
        let total = self.total.saturating_sub(before.total);
        let idle = self.idle.saturating_sub(before.idle);
        match total {
            0 => 0.0,
            _ => total.saturating_sub(idle) as f64 / total as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  300 0 60 1000 40 0 0 0 0 0\ncpu0 100 0 20 500 20 0 0 0 0 0\n\
                        cpu1 200 0 40 500 20 0 0 0 0 0\nintr 1 2 3\n";

    #[test]
    fn the_kernels_counts() {
        let one = Ticks::parse(STAT, (0, 0)).unwrap();
        assert_eq!(
            one,
            Ticks {
                total: 640,
                idle: 520
            }
        );
        let both = Ticks::parse(STAT, (0, 1)).unwrap();
        assert_eq!(
            both,
            Ticks {
                total: 1400,
                idle: 1040
            }
        );
        assert!(Ticks::parse(STAT, (7, 8)).is_none());
        let later = Ticks {
            total: 1410,
            idle: 1045,
        };
        assert_eq!(later.busy_since(both), 0.5);
        assert_eq!(both.busy_since(both), 0.0);
    }

    #[test]
    fn a_time_is_a_distance() {
        for (ns, distance) in [
            (55.0, Some(Distance::Near)),
            (109.0, Some(Distance::Near)),
            (110.0, Some(Distance::Far)),
            (250.0, Some(Distance::Far)),
            (5000.0, None),
            (f64::NAN, None),
        ] {
            assert_eq!(Distance::of(ns), distance, "{ns} ns");
        }
    }

    #[test]
    fn a_cache_line_takes_time() {
        let pair = cores::pair().unwrap();
        if pair.0 != pair.1 {
            // A look ends without a time where others use the cores for long.
            let mut looks = std::iter::repeat_with(|| one_way_ns(pair)).take(60);
            assert!(looks.find_map(|ns| ns).unwrap() > 1.0);
        }
    }
}
