//! Moments at which a burst counts: nobody else uses the cores, and they are as far apart after the
//! burst as before it.

use std::time::{Duration, Instant};

use ferro::failure::Result;

use crate::probe::{self, Distance};

/// Between two looks at cores whose distance is not the one that is waited for.
const PAUSE: Duration = Duration::from_millis(500);

/// One burst may wait for a good moment for this part of the budget.
const BURST_SHARE: u32 = 50;

/// How the moments of two cores are found.
pub(crate) struct Moments {
    /// Nothing where distance does not matter, or there is one core only: each moment is as good as
    /// the next.
    looks: Option<Looks>,
    budget: Duration,
    /// Good moments are looked for until then.
    deadline: Instant,
}

/// The readings of the machine. Tests put figures of their own in their place.
pub(crate) struct Looks {
    pub(crate) is_idle: Box<dyn Fn() -> bool>,
    pub(crate) distance: Box<dyn Fn() -> Option<Distance>>,
}

impl Looks {
    /// The distance of the cores, where nobody else uses them.
    fn at_idle_cores(&self) -> Option<Distance> {
        match (self.is_idle)() {
            true => (self.distance)(),
            false => None,
        }
    }
}

impl Moments {
    /// Moments of two cores whose distance matters.
    pub(crate) fn of(cores: (usize, usize), budget: Duration) -> Self {
        let looks = Looks {
            is_idle: Box::new(move || probe::idle(cores)),
            distance: Box::new(move || probe::distance(cores)),
        };
        Self::with(Some(looks), budget)
    }

    /// Moments that all count; they are called near.
    pub(crate) fn all() -> Self {
        Self::with(None, Duration::ZERO)
    }

    pub(crate) fn with(looks: Option<Looks>, budget: Duration) -> Self {
        Self {
            looks,
            budget,
            deadline: Instant::now() + budget,
        }
    }

    /// Whether the distance of the cores is looked at.
    pub(crate) fn are_probed(&self) -> bool {
        self.looks.is_some()
    }

    /// The rest of the budget.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// One measurement, at a good moment if there is one before this burst's share of the budget is
    /// spent. Also says how far apart the cores were; nothing for a moment that was not good.
    ///
    /// # Errors
    ///
    /// When the measurement fails.
    pub(crate) fn burst<T>(
        &self,
        mut measure: impl FnMut() -> Result<T>,
    ) -> Result<(T, Option<Distance>)> {
        let Some(looks) = &self.looks else {
            return Ok((measure()?, Some(Distance::Near)));
        };
        let until = self
            .deadline
            .min(Instant::now() + self.budget / BURST_SHARE);
        loop {
            let before = looks.at_idle_cores();
            if before.is_none() && Instant::now() < until {
                continue;
            }
            let value = measure()?;
            if before.is_some() && (looks.distance)() == before {
                return Ok((value, before));
            }
            if Instant::now() >= until {
                return Ok((value, None));
            }
        }
    }

    /// Waits until the cores are idle and `wanted` takes their distance; nothing once the budget is
    /// spent.
    pub(crate) fn wait_for(&self, wanted: impl Fn(Distance) -> bool) -> Option<Distance> {
        let looks = self.looks.as_ref()?;
        while !self.left().is_zero() {
            let distance = looks.at_idle_cores();
            match distance.filter(|distance| wanted(*distance)) {
                Some(distance) => return Some(distance),
                None => std::thread::sleep(PAUSE.min(self.left())),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::Distance::{Far, Near};
    use super::*;

    /// Moments of idle cores. Their distances are those of `looks`, one after the other, and then
    /// the last one for ever.
    fn seen(looks: &[Option<Distance>], budget: Duration) -> Moments {
        let looks = RefCell::new(looks.iter().rev().copied().collect::<Vec<_>>());
        let distance = move || {
            let mut looks = looks.borrow_mut();
            match looks.len() {
                1 => looks[0],
                _ => looks.pop().flatten(),
            }
        };
        let looks = Looks {
            is_idle: Box::new(|| true),
            distance: Box::new(distance),
        };
        Moments::with(Some(looks), budget)
    }

    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn a_burst_counts_for_the_distance_on_both_of_its_sides() {
        let mut bursts = 0;
        let mut burst = |moments: &Moments| {
            let burst = moments.burst(|| {
                bursts += 1;
                Ok(bursts)
            });
            burst.unwrap()
        };
        assert_eq!(burst(&seen(&[Some(Near)], LONG)), (1, Some(Near)));
        assert_eq!(burst(&seen(&[Some(Far)], LONG)), (2, Some(Far)));
        // Near before and far after it: another one.
        let changes = seen(&[Some(Near), Some(Far), Some(Far)], LONG);
        assert_eq!(burst(&changes), (4, Some(Far)));
        // A disturbed look is no distance, and the burst is not made.
        let disturbed = seen(&[None, Some(Near)], LONG);
        assert_eq!(burst(&disturbed), (5, Some(Near)));
    }

    #[test]
    fn a_burst_does_not_wait_longer_than_its_budget() {
        let changes = seen(&[Some(Near), Some(Far)], Duration::ZERO);
        assert_eq!(changes.burst(|| Ok(7)).unwrap(), (7, None));
        let busy = Moments::with(
            Some(Looks {
                is_idle: Box::new(|| false),
                distance: Box::new(|| Some(Near)),
            }),
            Duration::ZERO,
        );
        assert_eq!(busy.burst(|| Ok(7)).unwrap(), (7, None));
        assert_eq!(busy.wait_for(|_| true), None);
    }

    #[test]
    fn the_other_distance_is_waited_for() {
        let moments = seen(&[Some(Near), None, Some(Far)], LONG);
        assert_eq!(moments.wait_for(|distance| distance == Far), Some(Far));
        let never = seen(&[Some(Near)], Duration::from_millis(20));
        assert_eq!(never.wait_for(|distance| distance == Far), None);
    }

    #[test]
    fn moments_that_are_not_looked_at_all_count() {
        let moments = Moments::all();
        assert_eq!(moments.burst(|| Ok(1)).unwrap(), (1, Some(Near)));
        assert_eq!(moments.wait_for(|_| true), None);
    }
}
