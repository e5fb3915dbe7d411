//! The round-trip estimate, and the timeouts that follow from it.

use std::time::Duration;

use fastrand::Rng;

/// Round-trip estimator in the manner of RFC 6298, one for all peers of an endpoint: most peers are
/// shaken hands with once, so a peer's own estimate would always come too late. A round trip
/// includes the making of the queue pair.
#[derive(Clone, Debug)]
pub(crate) struct RttEstimator {
    smoothed: Option<Duration>,
    variation: Duration,
    initial: Duration,
    min: Duration,
    max: Duration,
}

impl RttEstimator {
    pub(crate) fn new(initial: Duration, min: Duration, max: Duration) -> Self {
        RttEstimator {
            smoothed: None,
            variation: Duration::ZERO,
            initial,
            min,
            max,
        }
    }

    pub(crate) fn sample(&mut self, rtt: Duration) {
        let rtt = rtt.min(self.max);
        match self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variation = rtt / 2;
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(rtt)) / 4;
                self.smoothed = Some((smoothed * 7 + rtt) / 8);
            }
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        match self.smoothed {
            // Twice the textbook's: a lost packet is rare on a fabric, a needless retry at scale is
            // a storm.
            Some(smoothed) => ((smoothed + self.variation * 4) * 2).clamp(self.min, self.max),
            None => self.initial,
        }
    }

    /// Within that most answers come.
    pub(crate) fn usual(&self) -> Duration {
        match self.smoothed {
            Some(smoothed) => smoothed + self.variation,
            None => self.initial,
        }
    }

    /// Time after which an answer is late: the textbook's timeout, without the bounds of timers.
    pub(crate) fn late(&self) -> Duration {
        match self.smoothed {
            Some(smoothed) => smoothed + (self.variation * 4).max(smoothed / 4),
            None => self.initial,
        }
    }

    /// The wait before try number `tries + 1`: doubled each time up to the cap, spread by a quarter
    /// either way.
    pub(crate) fn backoff(&self, base: Duration, tries: u32, rng: &mut Rng) -> Duration {
        let wait = base.saturating_mul(1 << tries.min(20)).min(self.max);
        let quarter = u64::try_from(wait.as_nanos() / 4).unwrap_or(u64::MAX / 4);
        wait - Duration::from_nanos(quarter) + Duration::from_nanos(rng.u64(..=2 * quarter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn timeout_follows_the_measured_round_trip_within_its_bounds() {
        let mut rtt = RttEstimator::new(200 * MS, 5 * MS, 1000 * MS);
        assert_eq!((rtt.timeout(), rtt.late()), (200 * MS, 200 * MS));
        for _ in 0..100 {
            rtt.sample(Duration::from_micros(10));
        }
        assert_eq!(rtt.timeout(), 5 * MS);
        assert!(rtt.usual() < Duration::from_micros(11));
        let late = rtt.late();
        assert!(late > Duration::from_micros(11) && late < Duration::from_micros(14));
        for _ in 0..100 {
            rtt.sample(300 * MS);
        }
        assert!(rtt.timeout() >= 600 * MS);
        rtt.sample(Duration::MAX);
        assert!(rtt.timeout() <= 1000 * MS);
    }

    #[test]
    fn backoff_doubles_to_the_cap_and_spreads() {
        let rtt = RttEstimator::new(100 * MS, MS, 1000 * MS);
        let mut rng = Rng::with_seed(1);
        for tries in 0..100 {
            let nominal = (100 * MS).saturating_mul(1 << tries.min(20)).min(1000 * MS);
            let wait = rtt.backoff(100 * MS, tries, &mut rng);
            assert!(
                wait >= nominal * 3 / 4 && wait <= nominal * 5 / 4,
                "{tries}: {wait:?}"
            );
        }
        let spread: std::collections::HashSet<_> = (0..50)
            .map(|_| rtt.backoff(100 * MS, 0, &mut rng))
            .collect();
        assert!(spread.len() > 40);
    }
}
