//! Whose turn it is to be looked at: a few links are all looked at in each call, of more those where something came lately, and
//! one other.

use ferrofabric_contracts::peer::Owner;

use super::ShmTransport;

/// So many links are all looked at in each call.
const FEW_LINKS: usize = 4;
/// Calls without a message after which a link is looked at in turns only.
const IDLE_CALLS: u32 = 10_000;
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

    /// The place of the next of the others.
    fn next_other(&mut self) -> usize {
        if self.next_cold < self.hot || self.next_cold >= self.order.len() {
            self.next_cold = self.hot;
        }
        self.next_cold += 1;
        self.next_cold - 1
    }

    /// The link at this place is looked at in each call from now on.
    fn warm(&mut self, at: usize) {
        self.order.swap(at, self.hot);
        self.hot += 1;
    }

    /// Leaves in each call those for which `is_busy` says so.
    fn cool(&mut self, is_busy: impl Fn(usize) -> bool) {
        let mut at = 0;
        while at < self.hot {
            if is_busy(self.order[at]) {
                at += 1;
            } else {
                self.hot -= 1;
                self.order.swap(at, self.hot);
            }
        }
    }
}

impl ShmTransport {
    /// Looks at one of the links where nothing came lately, and lets others join them.
    #[cold]
    #[inline(never)]
    pub(super) fn poll_others<O: Owner>(&mut self, owner: &mut O) -> usize {
        self.turns.calls = self.turns.calls.wrapping_add(1);
        if self.turns.calls % COOL_CALLS == 0 {
            let links = &self.links;
            self.turns.cool(|key| {
                let link = &links[key];
                link.busy || link.idle < IDLE_CALLS
            });
        }
        let at = self.turns.next_other();
        let Some(&key) = self.turns.order.get(at) else {
            return 0;
        };
        let did = self.poll(key, owner);
        // Still at that place, if it has not ended.
        if did > 0 && at >= self.turns.hot && self.turns.order.get(at) == Some(&key) {
            self.turns.warm(at);
        }
        did
    }
}
