//! Regions that the application has registered, by the descriptors that its operations bring.
//!
//! No operation needs a descriptor (`mr_mode` 0, fi_mr(3)), so that one may be anything. A
//! descriptor is the place of a region in a table and the number of regions that had the place
//! before: it is looked up, and never an address that is followed. It counts where its region is
//! open, holds the buffer and has the rights that the operation needs. Elsewhere the operation goes
//! on without.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ferrofabric_contracts::types::{IoBuf, MrDesc};

use super::Region;
use crate::mr::Access;

/// The table of a protection domain.
#[derive(Debug, Default)]
pub(super) struct Described(RwLock<Places>);

#[derive(Debug, Default)]
struct Places {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place {
    /// Regions that have been here, with the one that is.
    generation: u32,
    region: Option<Arc<Region>>,
}

impl Described {
    /// Enters a region. Returns its descriptor, which is not [`MrDesc::NONE`].
    pub(super) fn enter(&self, region: Arc<Region>) -> MrDesc {
        let Places { places, free } = &mut *self.write();
        let at = free.pop().unwrap_or_else(|| {
            places.push(Place {
                generation: 0,
                region: None,
            });
            (places.len() - 1) as u32
        });
        let place = &mut places[at as usize];
        place.generation = place.generation.wrapping_add(1);
        place.region = Some(region);
        MrDesc::from_number((u64::from(place.generation) << 32) | (u64::from(at) + 1))
    }

    /// Takes the region of a descriptor out.
    pub(super) fn remove(&self, desc: MrDesc) -> Option<Arc<Region>> {
        let mut guard = self.write();
        let Places { places, free } = &mut *guard;
        let at = index(desc)?;
        let place = places.get_mut(at)?;
        if place.generation != generation(desc) {
            return None;
        }
        let region = place.region.take()?;
        free.push(at as u32);
        Some(region)
    }

    /// The region of a descriptor, if that counts.
    pub(super) fn get(&self, desc: MrDesc, buf: IoBuf, access: Access) -> Option<Arc<Region>> {
        let guard = self.read();
        let place = guard.places.get(index(desc)?)?;
        let region = place.region.as_ref()?;
        let counts = place.generation == generation(desc)
            && region.mr.access().contains(access)
            && region.holds(buf);
        counts.then(|| Arc::clone(region))
    }

    fn read(&self) -> RwLockReadGuard<'_, Places> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Places> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place that a descriptor names.
fn index(desc: MrDesc) -> Option<usize> {
    (desc.number() as u32).checked_sub(1).map(|at| at as usize)
}

fn generation(desc: MrDesc) -> u32 {
    (desc.number() >> 32) as u32
}

impl Region {
    /// Whether all of a buffer lies in it.
    fn holds(&self, buf: IoBuf) -> bool {
        let start = self.mr.addr() as usize;
        buf.addr
            .checked_sub(start)
            .and_then(|offset| offset.checked_add(buf.len))
            .is_some_and(|end| end <= self.mr.len())
    }
}
