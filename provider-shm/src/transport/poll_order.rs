//! The order in which links are polled. Each call polls all links if they are few; of many links it
//! polls those with recent traffic, and one other.

/// Up to this number of links, each call polls all of them.
const FEW_LINKS: usize = 4;
/// Calls between two checks which links have recent traffic.
const COOL_CALLS: u32 = 1024;

/// The keys of the links in the order in which they are polled.
#[derive(Default)]
pub(super) struct PollOrder {
    /// The links of each call come first.
    order: Vec<usize>,
    /// Number of links of each call: all, if there are few.
    hot: usize,
    next_cold: usize,
    calls: u32,
}

impl PollOrder {
    /// The key of the link that is polled first.
    #[inline(always)]
    pub(super) fn first(&self) -> Option<usize> {
        self.order.first().copied()
    }

    /// The key at this place of the links of each call.
    #[inline(always)]
    pub(super) fn each_call(&self, at: usize) -> Option<usize> {
        (at < self.hot).then(|| self.order[at])
    }

    /// Whether there are more than [`FEW_LINKS`] links, so that some may wait for their turn.
    #[inline(always)]
    pub(super) fn are_many(&self) -> bool {
        self.order.len() > FEW_LINKS
    }

    /// Number of links.
    #[cfg(feature = "fuzzing")]
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Adds a link.
    pub(super) fn add(&mut self, key: usize) {
        self.order.push(key);
        self.warm(self.order.len() - 1);
    }

    /// Removes a link.
    pub(super) fn remove(&mut self, key: usize) {
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
            // So few links need no turns.
            self.hot = self.order.len();
        }
    }

    /// The next idle link: its place, and its key. Now and then, idle links for which `is_warm`
    /// returns true join the links of each call first.
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

    /// An idle link had a message: each call polls it from now on, if it has not ended.
    pub(super) fn warm_up(&mut self, at: usize, key: usize) {
        if at >= self.hot && self.order.get(at) == Some(&key) {
            self.warm(at);
        }
    }

    /// Each call polls the link at this place from now on.
    fn warm(&mut self, at: usize) {
        self.order.swap(at, self.hot);
        self.hot += 1;
    }

    /// Each call goes on polling only the links for which `is_warm` returns true.
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
