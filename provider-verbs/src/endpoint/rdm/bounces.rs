//! The bounce buffers that all lanes of an endpoint share. Each RC lane has a share that no other
//! lane takes, so peers that are stopped, whose lanes hold their buffers for good, leave the others
//! theirs. The rest is for lanes that need more than their share. The fewer lanes there are, the
//! larger their shares; some buffers are kept for lanes that come later. More buffers are
//! registered as more lanes come up.

use std::sync::Arc;

use ferrofabric_contracts::error::Result;

use crate::mr::Access;
use crate::pd::Pd;
use crate::slots::SlotPool;
use crate::tuning::BOUNCES;

/// Buffers beyond the shares of all lanes.
const BY_NEED: usize = BOUNCES / 2;

/// The share of a lane, if there are not many.
const SHARE: usize = 2;

/// If no more than these are free, no lane gets more than [`SHARE`]: the first lanes, whose shares
/// are large, may keep them for good.
const FOR_LATER_LANES: usize = BOUNCES / 4;

/// This number of lanes get that share. Of more lanes each gets less, and one at least.
const FULL_SHARES: usize = 512;

/// The bounce buffers of an endpoint.
pub(super) struct BounceBuffers {
    /// Each has [`BOUNCES`] of them.
    regions: Vec<SlotPool>,
    free: Vec<u32>,
    /// Buffers that are left to the shares.
    reserved: usize,
    /// The share of each lane.
    share: usize,
    lanes: usize,
    pd: Arc<Pd>,
    /// No more could be registered.
    is_limited: bool,
}

impl BounceBuffers {
    /// The buffers of an endpoint without lanes.
    ///
    /// # Errors
    ///
    /// When the memory cannot be had, or not be registered.
    pub(super) fn create(pd: &Arc<Pd>, slot_bytes: usize) -> Result<Self> {
        Ok(Self {
            regions: vec![SlotPool::create(pd, BOUNCES, slot_bytes, Access::empty())?],
            free: (0..BOUNCES as u32).rev().collect(),
            reserved: BOUNCES - BY_NEED,
            share: BOUNCES - BY_NEED,
            lanes: 0,
            pd: pd.clone(),
            is_limited: false,
        })
    }

    /// An RC lane carries a session from now on.
    #[cold]
    pub(super) fn lane_begins(&mut self) {
        self.lanes += 1;
        let is_short = wanted(self.lanes) > self.count() || self.free.len() < SHARE;
        if is_short && !self.is_limited {
            self.grow();
        }
        self.divide();
    }

    /// An RC lane carries no session any more.
    #[cold]
    pub(super) fn lane_ends(&mut self) {
        self.lanes -= 1;
        self.divide();
    }

    fn grow(&mut self) {
        match SlotPool::create(&self.pd, BOUNCES, self.slot_bytes(), Access::empty()) {
            Ok(region) => {
                let first = self.count() as u32;
                self.regions.push(region);
                self.free.splice(..0, (first..self.count() as u32).rev());
            }
            Err(error) => {
                tracing::warn!("lanes share fewer bounce buffers: {error}");
                self.is_limited = true;
            }
        }
    }

    fn divide(&mut self) {
        self.reserved = self.count() - BY_NEED;
        self.share = share(self.reserved, self.lanes);
    }

    /// Buffers in all.
    #[inline]
    fn count(&self) -> usize {
        self.regions.len() * BOUNCES
    }

    /// The most buffers that one message may take.
    pub(super) fn most_of_a_message(&self) -> usize {
        BY_NEED
    }

    /// Whether so few are free that requests which take one have to be signaled: buffers come back
    /// with completions. So it is, too, while lanes may have their shares alone.
    #[inline]
    pub(super) fn are_few(&self) -> bool {
        self.free.len() < self.reserved.max(self.count() / 2)
    }

    /// Whether a lane may have `under_way` packets only as its share: it leaves as many buffers
    /// beyond the shares to others as it has, so a single one does not take them all.
    #[inline]
    pub(super) fn are_scarce(&self, under_way: usize) -> bool {
        self.free.len() < self.reserved + under_way
    }

    /// Buffers that each lane may take where they are scarce.
    #[cold]
    #[inline(never)]
    pub(super) fn share(&self) -> usize {
        let share = match self.free.len() > FOR_LATER_LANES {
            true => self.share,
            false => self.share.min(SHARE),
        };
        share.min(self.free.len())
    }

    /// Whether none is free.
    pub(super) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// The number of those that are not free.
    pub(super) fn taken(&self) -> usize {
        self.count() - self.free.len()
    }

    /// Takes a free one, the one given back last.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Gives one back.
    #[inline]
    pub(super) fn give(&mut self, slot: u32) {
        debug_assert!(!self.free.contains(&slot), "buffer given back twice");
        self.free.push(slot);
    }

    /// The address of one.
    #[inline]
    pub(super) fn address(&self, slot: u32) -> *mut u8 {
        self.region(slot).address(slot % BOUNCES as u32)
    }

    /// Key of the region that one lies in.
    #[inline]
    pub(super) fn lkey(&self, slot: u32) -> u32 {
        self.region(slot).lkey()
    }

    #[inline]
    fn region(&self, slot: u32) -> &SlotPool {
        &self.regions[slot as usize / BOUNCES]
    }

    /// Size of each in bytes.
    pub(super) fn slot_bytes(&self) -> usize {
        self.regions[0].slot_bytes()
    }
}

/// Buffers for so many lanes.
fn wanted(lanes: usize) -> usize {
    BY_NEED + (SHARE * lanes.min(FULL_SHARES)).max(lanes)
}

fn share(reserved: usize, lanes: usize) -> usize {
    (reserved / lanes.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shares of all lanes are there, however many there are, and the memory follows them.
    #[test]
    fn the_shares_of_all_lanes_are_there() {
        for lanes in (1..300).chain([1000, 1024, 1025, 4096, 10_000]) {
            let count = wanted(lanes).next_multiple_of(BOUNCES);
            let reserved = count - BY_NEED;
            let share = share(reserved, lanes);
            assert!(share * lanes <= reserved, "{lanes} lanes");
            assert!(share >= if lanes <= FULL_SHARES { SHARE } else { 1 });
            let most = BY_NEED + (SHARE * FULL_SHARES).max(lanes) + BOUNCES;
            assert!(count <= most, "{count} for {lanes} lanes");
        }
        assert_eq!(wanted(64), BOUNCES);
    }
}
