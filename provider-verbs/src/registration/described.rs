//! Regions that the application has registered, by the descriptors in its operations.
//!
//! No operation needs a descriptor (`mr_mode` 0, fi_mr(3)), so its value may be arbitrary. A
//! descriptor is the index of a region in a table and the number of regions that had the index
//! before: the table is searched, and no address in a descriptor is ever followed. A descriptor
//! counts if its region is open, contains the buffer and has the rights that the operation needs.
//! Else the operation goes on without it.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ferrofabric_contracts::types::{IoBuf, MrDesc};

use super::MemoryRegion;
use crate::mr::Access;

/// The table of a protection domain.
#[derive(Debug, Default)]
pub(super) struct Described(RwLock<DescriptorSlots>);

#[derive(Debug, Default)]
struct DescriptorSlots {
    places: Vec<DescriptorSlot>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct DescriptorSlot {
    /// The number of regions that have had this index, with the present one.
    generation: u32,
    region: Option<Arc<MemoryRegion>>,
}

impl Described {
    /// Enters a region. Returns its descriptor, which is not [`MrDesc::NONE`].
    pub(super) fn enter(&self, region: Arc<MemoryRegion>) -> MrDesc {
        let DescriptorSlots { places, free } = &mut *self.write();
        let at = free.pop().unwrap_or_else(|| {
            places.push(DescriptorSlot {
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
    pub(super) fn remove(&self, desc: MrDesc) -> Option<Arc<MemoryRegion>> {
        let mut guard = self.write();
        let DescriptorSlots { places, free } = &mut *guard;
        let at = index(desc)?;
        let place = places.get_mut(at)?;
        if place.generation != generation(desc) {
            return None;
        }
        let region = place.region.take()?;
        free.push(at as u32);
        Some(region)
    }

    /// The region of a descriptor, if the descriptor counts for this buffer and these rights.
    pub(super) fn get(
        &self,
        desc: MrDesc,
        buf: IoBuf,
        access: Access,
    ) -> Option<Arc<MemoryRegion>> {
        let guard = self.read();
        let place = guard.places.get(index(desc)?)?;
        let region = place.region.as_ref()?;
        let counts = place.generation == generation(desc)
            && region.mr.access().contains(access)
            && region.contains(buf);
        counts.then(|| Arc::clone(region))
    }

    fn read(&self) -> RwLockReadGuard<'_, DescriptorSlots> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, DescriptorSlots> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The index that a descriptor names.
fn index(desc: MrDesc) -> Option<usize> {
    (desc.number() as u32).checked_sub(1).map(|at| at as usize)
}

fn generation(desc: MrDesc) -> u32 {
    (desc.number() >> 32) as u32
}

impl MemoryRegion {
    /// Whether the region contains all of a buffer.
    fn contains(&self, buf: IoBuf) -> bool {
        let start = self.mr.addr() as usize;
        buf.addr
            .checked_sub(start)
            .and_then(|offset| offset.checked_add(buf.len))
            .is_some_and(|end| end <= self.mr.len())
    }
}
