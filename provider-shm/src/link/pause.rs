//! The pauses after attempts that failed: twice as long each time.

/// Most operations of a pause.
const MOST_PAUSED: u32 = 1024;

/// Operations that go another way because an earlier one could not go this way. Twice as many each
/// time.
#[derive(Default)]
pub(super) struct Pause {
    left: u32,
    last: u32,
}

impl Pause {
    /// Whether the next operation goes another way.
    pub(super) fn takes_one(&mut self) -> bool {
        let takes = self.left != 0;
        self.left -= u32::from(takes);
        takes
    }

    pub(super) fn begin(&mut self) {
        self.last = (self.last * 2).clamp(1, MOST_PAUSED);
        self.left = self.last;
    }

    /// An operation has gone this way: the next pause is a short one.
    pub(super) fn end(&mut self) {
        self.last = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_get_longer_up_to_a_limit() {
        let mut pause = Pause::default();
        assert!(!pause.takes_one());
        let taken =
            |pause: &mut Pause| std::iter::from_fn(|| pause.takes_one().then_some(())).count();
        for n in [1, 2, 4, 8] {
            pause.begin();
            assert_eq!(taken(&mut pause), n);
        }
        for _ in 0..20 {
            pause.begin();
        }
        assert_eq!(pause.left, MOST_PAUSED);
        pause.end();
        pause.begin();
        assert_eq!(taken(&mut pause), 1);
    }
}
