//! Time as the state machines see it: given with each event, never read.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time: nanoseconds since an origin that the owner chooses, on a clock that never goes
/// back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The later of time zero and `self - span`.
    #[must_use]
    pub fn back(self, span: Duration) -> Time {
        Time(self.0.saturating_sub(nanoseconds(span)))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, span: Duration) -> Time {
        Time(self.0.saturating_add(nanoseconds(span)))
    }
}

impl Sub for Time {
    type Output = Duration;

    /// The span since `earlier`; zero if that lies ahead.
    fn sub(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        let end = Time(u64::MAX);
        assert_eq!(end + Duration::from_secs(1), end);
        assert_eq!(Time(5) - Time(9), Duration::ZERO);
        assert_eq!(Time(1).back(Duration::MAX), Time(0));
        assert_eq!(Time(1) + Duration::from_nanos(4), Time(5));
    }
}
