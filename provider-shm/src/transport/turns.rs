//! Whose turn it is to be looked at: a few links are all looked at in each call, of more those
//! where something came lately, and one other.

/// So many links are all looked at in each call.
const FEW_LINKS: usize = 4;
/// How often it is looked which links those are.
const COOL_CALLS: u32 = 1024;

/// The keys of the links in the order in which they are looked at.
#[derive(Default)]
pub(super) struct Turns {
    /// Those that are looked at in each call first.
    order: Vec<usize>,
    /// How many these are: all, where there are few.
    hot: usize,
    next_cold: usize,
    calls: u32,
}

impl Turns {
    /// The first that is looked at.
    #[inline(always)]
    pub(super) fn first(&self) -> Option<usize> {
        self.order.first().copied()
    }

    /// The one at this place of those that are looked at in each call.
    #[inline(always)]
    pub(super) fn each_call(&self, at: usize) -> Option<usize> {
        (at < self.hot).then(|| self.order[at])
    }

    /// Whether there are so many that others may have to wait for their turn.
    #[inline(always)]
    pub(super) fn are_many(&self) -> bool {
        self.order.len() > FEW_LINKS
    }

    /// How many links there are.
    #[cfg(feature = "fuzzing")]
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// A link is there.
    pub(super) fn join(&mut self, key: usize) {
        self.order.push(key);
        self.warm(self.order.len() - 1);
    }

    /// A link is no more.
    pub(super) fn leave(&mut self, key: usize) {
        let Some(mut at) = self.order.iter().position(|k| *k == key) else {
            return;
        };
        if at < self.hot {
            self.hot -= 1;
            self.order.swap(at, self.hot);
            at = self.hot;
        }
        self.order.swap_remove(at);
        if !self.are_many() {
            // No turns are taken among so few.
            self.hot = self.order.len();
        }
    }

    /// The next of the others: its place, and its key. Now and then those for which `is_warm` says
    /// no join the others first.
    pub(super) fn next_other(&mut self, is_warm: impl Fn(usize) -> bool) -> Option<(usize, usize)> {
        self.calls = self.calls.wrapping_add(1);
        if self.calls % COOL_CALLS == 0 {
            self.cool(is_warm);
        }
        if self.next_cold < self.hot || self.next_cold >= self.order.len() {
            self.next_cold = self.hot;
        }
        let at = self.next_cold;
        self.next_cold += 1;
        self.order.get(at).map(|key| (at, *key))
    }

    /// Something came from this one of the others: it is looked at in each call from now on, if it
    /// has not ended.
    pub(super) fn warm_up(&mut self, at: usize, key: usize) {
        if at >= self.hot && self.order.get(at) == Some(&key) {
            self.warm(at);
        }
    }

    /// The link at this place is looked at in each call from now on.
    fn warm(&mut self, at: usize) {
        self.order.swap(at, self.hot);
        self.hot += 1;
    }

    /// Leaves in each call those for which `is_warm` says so.
    fn cool(&mut self, is_warm: impl Fn(usize) -> bool) {
        let mut at = 0;
        while at < self.hot {
            if is_warm(self.order[at]) {
                at += 1;
            } else {
                self.hot -= 1;
                self.order.swap(at, self.hot);
            }
        }
    }
}
