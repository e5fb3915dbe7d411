//! Regions that the application has registered, by the descriptors in its operations.
//!
//! No operation needs a descriptor (`mr_mode` 0, fi_mr(3)), so its value may be arbitrary. A
//! descriptor is the index of a region in a table and the number of regions that had the index
//! before: the table is searched, and no address in a descriptor is ever followed. A descriptor
//! counts if its region is open, contains the buffer and has the rights that the operation needs.
//! Else the operation goes on without it.
//!
//! A region whose pages have changed has the descriptor that it had, and no registration until
//! somebody makes another one.

use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use ferrofabric_contracts::types::{IoBuf, MrDesc};
use ferrofabric_runtime::fabric::LostKeyReport;

use super::MemoryRegion;
use super::watcher::Unmapped;
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
    memory: Option<DescribedMemory>,
}

/// Memory that the application has registered.
struct DescribedMemory {
    wanted: WantedMemory,
    state: RegistrationState,
    lost: Option<Arc<LostKeyReport>>,
}

/// What the application registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedMemory {
    pub(super) buf: IoBuf,
    pub(super) access: Access,
    /// Its pages may change, and it is registered anew where they have.
    pub(super) may_change: bool,
}

#[derive(Debug)]
enum RegistrationState {
    /// A thread registers it. Its pages may have changed meanwhile, as in `Changed`.
    Begun { changed: Option<Option<Instant>> },
    /// It is registered. Requests of this side name it if it is pinned.
    Made {
        region: Arc<MemoryRegion>,
        is_pinned: bool,
    },
    /// Its pages have changed since, or change until some time: registered before that, it might
    /// keep the pages that are given up.
    Changed { until: Option<Instant> },
    /// It could not be registered anew.
    Refused,
}

/// Who wants memory registered anew that is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// A request of this side: one attempt after each change.
    ForRequest,
    /// A peer, which asks seldom: after each refusal, too.
    ForPeer,
    /// The application, which has changed the pages before.
    Refresh,
}

/// How long pages may take to go that are given up, after the report. The thread that gives them up
/// is awake by then, and does nothing in between.
const GIVING_UP: Duration = Duration::from_millis(10);

/// What the table has for an operation.
#[derive(Debug)]
pub(super) enum Found {
    /// This region.
    Region(Arc<MemoryRegion>),
    /// One whose pages have changed, or that was refused.
    Changed,
    /// One that a thread registers now.
    Begun,
    /// Nothing that counts.
    Nothing,
}

/// A registration that has ended because its pages have changed.
pub(super) struct LostRegion {
    pub(super) region: Arc<MemoryRegion>,
    pub(super) report: Option<Arc<LostKeyReport>>,
}

impl std::fmt::Debug for DescribedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DescribedMemory")
            .field("wanted", &self.wanted)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl DescribedMemory {
    /// Ends the registration, if there is one, since pages change until some time, or have changed.
    fn lose(&mut self, until: Option<Instant>) -> Option<LostRegion> {
        let changed = RegistrationState::Changed { until };
        match std::mem::replace(&mut self.state, changed) {
            RegistrationState::Made { region, .. } => Some(LostRegion {
                region,
                report: self.lost.clone(),
            }),
            RegistrationState::Begun { .. } => {
                self.state = RegistrationState::Begun {
                    changed: Some(until),
                };
                None
            }
            RegistrationState::Changed { until: before } => {
                self.state = RegistrationState::Changed {
                    until: before.max(until),
                };
                None
            }
            RegistrationState::Refused => None,
        }
    }

    /// Whether its device finds the pages by itself, or nobody wants it to follow them.
    fn stays(&self) -> bool {
        let is_paged = matches!(
            self.state,
            RegistrationState::Made {
                is_pinned: false,
                ..
            }
        );
        is_paged || !self.wanted.may_change
    }
}

impl Described {
    /// Enters memory that is about to be registered. Returns its descriptor, which is not
    /// [`MrDesc::NONE`].
    pub(super) fn enter(&self, wanted: WantedMemory) -> MrDesc {
        let DescriptorSlots { places, free } = &mut *self.write();
        let at = free.pop().unwrap_or_else(|| {
            places.push(DescriptorSlot {
                generation: 0,
                memory: None,
            });
            (places.len() - 1) as u32
        });
        let place = &mut places[at as usize];
        place.generation = place.generation.wrapping_add(1);
        place.memory = Some(DescribedMemory {
            wanted,
            state: RegistrationState::Begun { changed: None },
            lost: None,
        });
        MrDesc::from_number((u64::from(place.generation) << 32) | (u64::from(at) + 1))
    }

    /// Begins to register memory another time, if it is not registered and may be.
    pub(super) fn begin_again(&self, desc: MrDesc, again: Again) -> Option<WantedMemory> {
        let mut slots = self.write();
        let memory = slots.memory_mut(desc)?;
        let is_due = match memory.state {
            RegistrationState::Changed { until } => {
                again == Again::Refresh || until.is_none_or(|until| until <= Instant::now())
            }
            RegistrationState::Refused => again != Again::ForRequest,
            RegistrationState::Begun { .. } | RegistrationState::Made { .. } => false,
        };
        is_due.then(|| {
            memory.state = RegistrationState::Begun { changed: None };
            memory.wanted
        })
    }

    /// Memory is registered. Nothing is kept if its pages have changed since that began.
    pub(super) fn end(&self, desc: MrDesc, made: Arc<MemoryRegion>, is_pinned: bool) {
        let mut slots = self.write();
        let Some(memory) = slots.memory_mut(desc) else {
            return;
        };
        let changed = match memory.state {
            RegistrationState::Begun { changed } if is_pinned => changed,
            _ => None,
        };
        memory.state = match changed {
            None => RegistrationState::Made {
                region: made,
                is_pinned,
            },
            Some(until) => RegistrationState::Changed { until },
        };
    }

    /// Memory could not be registered.
    pub(super) fn refuse(&self, desc: MrDesc) {
        if let Some(memory) = self.write().memory_mut(desc) {
            memory.state = RegistrationState::Refused;
        }
    }

    /// Whom to inform when a key of the memory ends.
    pub(super) fn set_report(&self, desc: MrDesc, report: LostKeyReport) {
        if let Some(memory) = self.write().memory_mut(desc) {
            memory.lost = Some(Arc::new(report));
        }
    }

    /// Takes the memory of a descriptor out. The last operation that uses its region ends it.
    pub(super) fn remove(&self, desc: MrDesc) {
        let mut slots = self.write();
        let Some(at) = slots.place_of(desc) else {
            return;
        };
        let removed = slots.places[at].memory.take();
        slots.free.push(at as u32);
        drop(slots);
        drop(removed);
    }

    /// The region of a descriptor, if the descriptor counts for this buffer and these rights.
    #[inline]
    pub(super) fn get(&self, desc: MrDesc, buf: IoBuf, access: Access) -> Found {
        let slots = self.read();
        match slots.memory(desc).map(|memory| &memory.state) {
            Some(RegistrationState::Made {
                region,
                is_pinned: true,
            }) if region.mr.access().contains(access) && region.contains(buf) => {
                Found::Region(Arc::clone(region))
            }
            Some(RegistrationState::Changed { .. }) => Found::Changed,
            _ => Found::Nothing,
        }
    }

    /// The registration of a descriptor's memory.
    pub(super) fn region(&self, desc: MrDesc) -> Found {
        match self.read().memory(desc).map(|memory| &memory.state) {
            Some(RegistrationState::Made { region, .. }) => Found::Region(Arc::clone(region)),
            Some(RegistrationState::Changed { .. } | RegistrationState::Refused) => Found::Changed,
            Some(RegistrationState::Begun { .. }) => Found::Begun,
            None => Found::Nothing,
        }
    }

    /// Ends the registrations whose pages have changed, of all that may.
    pub(super) fn lose_changed(&self, gone: &[Unmapped]) -> Vec<LostRegion> {
        let going_until = Instant::now() + GIVING_UP;
        let mut slots = self.write();
        let memories = slots
            .places
            .iter_mut()
            .filter_map(|place| place.memory.as_mut());
        let lost = memories
            .filter(|memory| !memory.stays())
            .filter_map(|memory| {
                let buf = memory.wanted.buf;
                let hits = gone.iter().filter_map(|gone| hit(buf, gone, going_until));
                memory.lose(hits.max()?)
            });
        lost.collect()
    }

    /// Ends the registration of a descriptor's memory, unless its device finds the pages by itself.
    pub(super) fn lose(&self, desc: MrDesc) -> Option<LostRegion> {
        let mut slots = self.write();
        let memory = slots.memory_mut(desc)?;
        match memory.state {
            RegistrationState::Made {
                is_pinned: false, ..
            } => None,
            _ => memory.lose(None),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, DescriptorSlots> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, DescriptorSlots> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DescriptorSlots {
    /// The index of a descriptor's memory.
    fn place_of(&self, desc: MrDesc) -> Option<usize> {
        let at = (desc.number() as u32).checked_sub(1)? as usize;
        let place = self.places.get(at)?;
        let is_it = place.generation == (desc.number() >> 32) as u32 && place.memory.is_some();
        is_it.then_some(at)
    }

    fn memory(&self, desc: MrDesc) -> Option<&DescribedMemory> {
        self.places[self.place_of(desc)?].memory.as_ref()
    }

    fn memory_mut(&mut self, desc: MrDesc) -> Option<&mut DescribedMemory> {
        let at = self.place_of(desc)?;
        self.places[at].memory.as_mut()
    }
}

/// Whether some of a buffer's memory is gone, or goes until this time.
fn hit(buf: IoBuf, gone: &Unmapped, going_until: Instant) -> Option<Option<Instant>> {
    let overlaps = |range: &Range<u64>| {
        let from = buf.addr as u64;
        from < range.end && range.start < from.saturating_add(buf.len as u64)
    };
    match gone {
        Unmapped::Range(range) => overlaps(range).then_some(None),
        Unmapped::Soon(range) => overlaps(range).then_some(Some(going_until)),
        Unmapped::Much => Some(Some(going_until)),
    }
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
