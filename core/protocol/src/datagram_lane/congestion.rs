//! How many packets may be under way.

/// Never fewer: one that is lost must have a follower that shows it.
const MIN_WINDOW: u32 = 2;

/// Not fewer for a loss that followers have shown: three of them show the next one at once, so that
/// heavy loss does not come down to waiting for timeouts.
const LOSS_WINDOW: u32 = 4;

/// A window in packets: doubled each round trip up to a threshold, then grown by one; halved by a
/// loss.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    window: u32,
    max: u32,
    threshold: u32,
    /// Packets acknowledged since the window grew last, beyond the threshold.
    credit: u32,
    /// Losses of transmissions before this one belong to a halving that was done.
    recovery: u64,
    /// The window before the last halving, to go back to if that was needless.
    before: Option<(u32, u32)>,
}

impl Congestion {
    pub(super) fn new(initial: u32, max: u32) -> Self {
        let max = max.max(MIN_WINDOW);
        Congestion {
            window: initial.clamp(MIN_WINDOW, max),
            max,
            threshold: max,
            credit: 0,
            recovery: 0,
            before: None,
        }
    }

    #[inline]
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// `packets` were acknowledged; `limited`: while the window kept more from going out.
    #[inline]
    pub(super) fn on_acked(&mut self, packets: u32, limited: bool) {
        if !limited || self.window >= self.max {
            return;
        }
        if self.window < self.threshold {
            self.window = (self.window + packets).min(self.max);
            return;
        }
        self.credit += packets;
        while self.credit >= self.window && self.window < self.max {
            self.credit -= self.window;
            self.window += 1;
        }
    }

    /// Transmission number `lost` was lost; `next` is the number of the next one.
    pub(super) fn on_loss(&mut self, lost: u64, next: u64) {
        if lost < self.recovery {
            return;
        }
        self.recovery = next;
        self.before = Some((self.window, self.threshold));
        self.window = (self.window / 2).max(LOSS_WINDOW.min(self.window));
        self.threshold = self.window;
        self.credit = 0;
    }

    /// The packets that had caused the last halving were not lost after all.
    pub(super) fn on_needless(&mut self) {
        if let Some((window, threshold)) = self.before.take() {
            self.window = self.window.max(window);
            self.threshold = self.threshold.max(threshold);
        }
    }

    /// A probe went unanswered: start again from little.
    pub(super) fn on_silence(&mut self, next: u64) {
        if self.window > MIN_WINDOW {
            self.threshold = (self.window / 2).max(MIN_WINDOW);
        }
        self.window = MIN_WINDOW;
        self.credit = 0;
        self.recovery = next;
        self.before = None;
    }

    /// Nothing went out for a long time, so the estimate of the path is old.
    pub(super) fn on_idle(&mut self, initial: u32) {
        self.window = self.window.min(initial.clamp(MIN_WINDOW, self.max));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_fast_then_slowly_and_halves_once_per_round() {
        let mut congestion = Congestion::new(8, 64);
        congestion.on_acked(8, true);
        assert_eq!(congestion.window(), 16);
        congestion.on_acked(16, false);
        assert_eq!(
            congestion.window(),
            16,
            "it was not the window that limited"
        );
        congestion.on_loss(20, 30);
        congestion.on_loss(21, 31);
        assert_eq!(congestion.window(), 8);
        congestion.on_acked(8, true);
        congestion.on_acked(8, true);
        assert_eq!(congestion.window(), 9);
        congestion.on_loss(30, 40);
        assert_eq!(congestion.window(), 4);
        (0..1000).for_each(|_| congestion.on_acked(64, true));
        assert_eq!(congestion.window(), 64);
    }

    #[test]
    fn a_needless_halving_is_taken_back_once() {
        let mut congestion = Congestion::new(32, 64);
        congestion.on_loss(1, 5);
        congestion.on_needless();
        assert_eq!(congestion.window(), 32);
        congestion.on_silence(9);
        congestion.on_needless();
        assert_eq!(congestion.window(), 2);
    }

    #[test]
    fn never_below_two() {
        for (initial, least) in [(0, 2), (3, 3), (64, 4)] {
            let mut congestion = Congestion::new(initial, initial);
            (0..10).for_each(|number| congestion.on_loss(number, number + 1));
            assert_eq!(congestion.window(), least);
            congestion.on_silence(20);
            assert_eq!(congestion.window(), 2);
        }
    }
}
