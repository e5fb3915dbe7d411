//! Claimed messages: set apart for a receive with the same context (`FI_CLAIM`).

use crate::index::{Fifo, ListLink, NIL, Seed, SideIndex};

#[derive(Default)]
pub(super) struct Claims {
    list: Fifo,
    index: SideIndex,
    /// By message.
    contexts: Vec<u64>,
}

impl Claims {
    /// A message that is on no list was claimed.
    pub(super) fn add(&mut self, seed: Seed, links: &mut [ListLink], id: u32, context: u64) {
        self.list.push_back(links, id);
        if self.contexts.len() <= id as usize {
            self.contexts.resize(links.len(), 0);
        }
        self.contexts[id as usize] = context;
        let contexts = &self.contexts;
        let same = |other: u32| contexts[other as usize] == context;
        let hash_of = |id: u32| seed.hash(contexts[id as usize], 0);
        self.index.insert(hash_of(id), id, same, |_| false, hash_of);
    }

    /// A claimed message is taken.
    #[cold]
    pub(super) fn remove(&mut self, seed: Seed, links: &mut [ListLink], id: u32) {
        self.list.unlink(links, id);
        let hash = seed.hash(self.contexts[id as usize], 0);
        self.index.remove(hash, id);
    }

    /// The first that was claimed with a context, or [`NIL`].
    pub(super) fn first(&self, seed: Seed, context: u64) -> u32 {
        let same = |other: u32| self.contexts[other as usize] == context;
        let hash = seed.hash(context, 0);
        self.index.first(hash, same).unwrap_or(NIL)
    }

    /// All, by order of claim.
    pub(super) fn ids<'a>(&self, links: &'a [ListLink]) -> impl Iterator<Item = u32> + use<'a> {
        let some = |id: u32| (id != NIL).then_some(id);
        std::iter::successors(some(self.list.head), move |&id| {
            some(links[id as usize].next)
        })
    }
}
