//! The regions of a domain that peers may reach, by key.
//!
//! A region counts the parts of one-sided operations that are on their way to or from it. One that
//! closes accepts no more of them, and is over when the last has come.

use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::region_window::{RegionAccess, RegionWindow};
use ferrofabric_contracts::types::{IoBuf, MrDesc};
use ferrofabric_matching::ReceiveBuffers;
use ferrofabric_system::locks::Mutex;
use ferrofabric_system::own_memory;
use rustc_hash::FxHashMap;
use slab::Slab;

use crate::fabric::{KeptKey, Mr, MrAttr};
use crate::rma::grants::GrantFields;

/// The place of the counter of endpoints and regions that have none.
pub(crate) const NO_CNTR: usize = 0;

/// The regions of a domain.
#[derive(Default)]
pub(crate) struct RegionTable(Mutex<Regions>);

#[derive(Default)]
struct Regions {
    slots: Slab<Region>,
    by_key: FxHashMap<u64, usize>,
    /// Keys of regions for which the application chose none so far.
    drawn: u64,
}

struct Region {
    key: u64,
    /// The first piece, or all of it.
    window: RegionWindow,
    /// The other pieces.
    further: Box<[RegionWindow]>,
    desc: MrDesc,
    /// Some of its addresses may have no memory: the application has registered all from 0 on, or has
    /// unmapped some.
    has_holes: bool,
    /// What has the key by which devices reach it, until it closes.
    device: Option<Arc<dyn Mr>>,
    /// Parts of operations on their way.
    parts: usize,
    /// Grants that peers hold.
    grants: usize,
    /// They are of a key that has ended: nothing is granted until all of them are returned.
    is_revoked: bool,
    /// It closes, or is closed.
    is_closing: bool,
    /// It is closed, and only stays until the last of its grants is returned.
    is_left: bool,
    /// The keys that have ended and that those peers know.
    kept_keys: Vec<Box<dyn KeptKey>>,
    counters: RegionCounters,
}

/// The places of the counters of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionCounters {
    /// Of peers' reads.
    pub(crate) read: usize,
    /// Of their writes.
    pub(crate) write: usize,
}

impl RegionCounters {
    pub(crate) const NONE: Self = Self {
        read: NO_CNTR,
        write: NO_CNTR,
    };
}

/// A part of a region, until it is given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionPart {
    /// The region.
    pub(crate) region: usize,
    /// Several buffers where it goes over the end of a piece.
    pub(crate) bufs: ReceiveBuffers,
    pub(crate) desc: MrDesc,
    pub(crate) counters: RegionCounters,
}

impl Region {
    /// The buffers of `len` bytes from `place` on, if all of them are in the region and the
    /// operation may access them.
    fn range(&self, place: u64, len: u64, access: RegionAccess) -> Option<ReceiveBuffers> {
        match self.window.address_of(place, len, access) {
            Some(address) => Some(ReceiveBuffers::One(buffer_at(address, len))),
            None if self.further.is_empty() || !self.window.allows(access) => None,
            None => self.range_of_pieces(place, len),
        }
    }

    /// The same of several pieces, which all have the rights and the elements of the first.
    fn range_of_pieces(&self, place: u64, len: u64) -> Option<ReceiveBuffers> {
        let pieces = || std::iter::once(&self.window).chain(&self.further);
        let (mut place, mut left) = (place, len);
        let mut bufs = Vec::new();
        while left > 0 {
            let (address, rest) = pieces()
                .filter_map(|piece| piece.rest_from(place))
                .find(|(_, rest)| *rest != 0)?;
            let part = left.min(rest);
            bufs.push(buffer_at(address, part));
            left -= part;
            // It goes beyond the last place only where nothing is left.
            place = place.wrapping_add(part);
        }
        match bufs[..] {
            [] => pieces()
                .any(|piece| piece.rest_from(place).is_some())
                .then_some(ReceiveBuffers::One(IoBuf::EMPTY)),
            [one] => Some(ReceiveBuffers::One(one)),
            _ => Some(ReceiveBuffers::Many(bufs.into())),
        }
    }
}

/// Memory of this process.
fn buffer_at(address: u64, len: u64) -> IoBuf {
    IoBuf {
        addr: address as usize,
        len: len as usize,
    }
}

/// The windows of a region's pieces behind the first one.
fn further_windows(attr: &MrAttr<'_>, first: &RegionWindow) -> Box<[RegionWindow]> {
    let mut next = first.first_place.wrapping_add(first.len);
    let windows = attr.further.iter().map(|piece| {
        let (address, len) = (piece.addr as u64, piece.len as u64);
        let first_place = match attr.places_are_addresses {
            true => address,
            false => next,
        };
        next = next.wrapping_add(len);
        RegionWindow {
            address,
            len,
            first_place,
            ..*first
        }
    });
    windows.collect()
}

impl Regions {
    /// Takes `len` bytes from `place` on of a region, unless it closes.
    fn take(
        &mut self,
        number: usize,
        place: u64,
        len: u64,
        access: RegionAccess,
    ) -> Option<RegionPart> {
        let region = self.slots.get_mut(number)?;
        if region.is_closing {
            return None;
        }
        let bufs = region.range(place, len, access)?;
        let writes = access.rights.contains(Rights::WRITE);
        let is_there = |buf: &IoBuf| own_memory::is_there(buf.addr, buf.len, writes);
        if region.has_holes && !bufs.segments().iter().all(is_there) {
            return None;
        }
        region.parts += 1;
        Some(RegionPart {
            region: number,
            bufs,
            desc: region.desc,
            counters: region.counters,
        })
    }
}

impl Regions {
    /// The region with a key, if it may be granted.
    fn grantable(&mut self, key: u64) -> Option<(usize, &mut Region)> {
        let number = *self.by_key.get(&key)?;
        let region = &mut self.slots[number];
        let is_counted = region.counters != RegionCounters::NONE;
        let is_grantable = region.further.is_empty() && !is_counted && !region.is_revoked;
        is_grantable.then_some((number, region))
    }
}

impl RegionTable {
    /// Adds a region under a key, or under one that no other region has. Returns its number and its
    /// key. It is granted to no peer yet.
    ///
    /// # Errors
    ///
    /// `ENOKEY`: another region has the key, or it is `FI_KEY_NOTAVAIL`, which stands for none.
    /// `EFAULT`: the memory ends beyond the last address.
    pub(crate) fn enter(&self, attr: &MrAttr<'_>, desc: MrDesc) -> Result<(usize, u64)> {
        check_memory(attr)?;
        let regions = &mut *self.0.lock();
        let refused = |key: u64, why| {
            Error::new(Errno::ENOKEY, "register", format!("memory as key {key:#x}")).mend(why)
        };
        let key = match attr.key {
            Some(u64::MAX) => {
                return Err(refused(u64::MAX, "it is FI_KEY_NOTAVAIL: choose another"));
            }
            Some(key) if regions.by_key.contains_key(&key) => {
                return Err(refused(key, "another region of the domain has that key"));
            }
            Some(key) => key,
            None => loop {
                // From the other end than those that applications choose.
                regions.drawn += 1;
                let key = (u64::from(u32::MAX) << 32) | (!regions.drawn & u64::from(u32::MAX));
                if !regions.by_key.contains_key(&key) {
                    break key;
                }
            },
        };
        let window = attr.window();
        let number = regions.slots.insert(Region {
            key,
            window,
            further: further_windows(attr, &window),
            desc,
            has_holes: pieces_of(attr).any(|piece| piece.addr == 0 && piece.len != 0),
            device: None,
            parts: 0,
            grants: 0,
            is_revoked: false,
            is_closing: false,
            is_left: false,
            kept_keys: Vec::new(),
            counters: RegionCounters::NONE,
        });
        regions.by_key.insert(key, number);
        Ok((number, key))
    }

    /// From now on peers are granted what devices reach by the key of `device`.
    pub(crate) fn set_device(&self, region: usize, device: Arc<dyn Mr>) {
        self.0.lock().slots[region].device = Some(device);
    }

    /// Some addresses of a region may have no memory.
    pub(crate) fn note_holes(&self, region: usize) {
        if let Some(region) = self.0.lock().slots.get_mut(region) {
            region.has_holes = true;
        }
    }

    /// A key of a device has ended, since the pages of the region have changed. Returns whether
    /// peers hold grants of it: then it is kept until all of them are returned.
    pub(crate) fn lose_key(&self, region: usize, key: Box<dyn KeptKey>) -> bool {
        let regions = &mut *self.0.lock();
        let Some(region) = regions.slots.get_mut(region) else {
            return false;
        };
        region.has_holes = true;
        region.is_revoked = region.grants != 0;
        if region.is_revoked {
            region.kept_keys.push(key);
        }
        region.is_revoked
    }

    /// Takes `len` bytes from `place` on of the region with a key, for a part of an operation.
    /// `None`: there is no such region, range or right, or the region is for other operations, or
    /// it covers addresses without memory, and these are such.
    pub(crate) fn take(
        &self,
        key: u64,
        place: u64,
        len: u64,
        access: RegionAccess,
    ) -> Option<RegionPart> {
        let regions = &mut *self.0.lock();
        let number = *regions.by_key.get(&key)?;
        regions.take(number, place, len, access)
    }

    /// The same of the region with a number, which was granted. `None`, too: it closes.
    pub(crate) fn take_granted(
        &self,
        region: usize,
        place: u64,
        len: u64,
        access: RegionAccess,
    ) -> Option<RegionPart> {
        let regions = &mut *self.0.lock();
        regions.take(region, place, len, access)
    }

    /// A part is over. Returns the counters of its region, which stay while the lock of the domain
    /// is held.
    pub(crate) fn give(&self, region: usize) -> RegionCounters {
        match self.0.lock().slots.get_mut(region) {
            Some(region) => {
                region.parts -= 1;
                region.counters
            }
            None => RegionCounters::NONE,
        }
    }

    /// From now on the counter at a place counts operations on a region. Returns whether peers hold
    /// grants of it.
    ///
    /// # Errors
    ///
    /// `EINVAL`: another one counts some of them.
    pub(crate) fn count(&self, region: usize, cntr: usize, counted: Flags) -> Result<bool> {
        let regions = &mut *self.0.lock();
        let region = &mut regions.slots[region];
        let mut bound = region.counters;
        for (kind, place) in [
            (Flags::REMOTE_READ, &mut bound.read),
            (Flags::REMOTE_WRITE, &mut bound.write),
        ] {
            if counted.contains(kind) {
                if *place != NO_CNTR {
                    return Err(Error::new(Errno::EINVAL, "bind", "counter of a region")
                        .mend("the region has one already, and keeps it"));
                }
                *place = cntr;
            }
        }
        region.counters = bound;
        Ok(region.grants != 0)
    }

    /// A grant of the region with a key, if devices reach all of it and no counter is to see each
    /// operation on it (no device reaches a region for atomic operations alone). It counts until it
    /// is returned. The rights are those of the region.
    pub(crate) fn grant(&self, key: u64) -> Option<(usize, GrantFields)> {
        // The device may have to register the memory anew, which takes long: without the lock.
        let device = self.0.lock().grantable(key)?.1.device.clone()?;
        device.device_key()?;
        let regions = &mut *self.0.lock();
        let (number, region) = regions.grantable(key)?;
        let fields = GrantFields {
            window: region.window,
            rkey: region.device.as_ref()?.device_key()?,
        };
        region.grants += 1;
        Some((number, fields))
    }

    /// A grant is returned.
    pub(crate) fn ungrant(&self, region: usize) {
        let regions = &mut *self.0.lock();
        if let Some(granted) = regions.slots.get_mut(region) {
            granted.grants -= 1;
            if granted.grants == 0 {
                granted.is_revoked = false;
                granted.kept_keys.clear();
                if granted.is_left {
                    regions.slots.remove(region);
                }
            }
        }
    }

    /// From now on no part of the region is taken, and it is not granted. Returns whether peers
    /// hold grants of it.
    pub(crate) fn begin_close(&self, region: usize) -> bool {
        let regions = &mut *self.0.lock();
        let closing = &mut regions.slots[region];
        closing.is_closing = true;
        closing.device = None;
        regions.by_key.remove(&closing.key);
        closing.grants != 0
    }

    /// Whether a region that closes is over, for all its parts and grants are: then it is removed.
    pub(crate) fn is_over(&self, region: usize) -> bool {
        let regions = &mut *self.0.lock();
        let closing = &regions.slots[region];
        let is_over = closing.parts == 0 && closing.grants == 0;
        if is_over {
            regions.slots.remove(region);
        }
        is_over
    }

    /// Leaves a region that closes to the peers that have not returned their grants, with the key
    /// that they know. Returns whether it did: no part may be under way.
    pub(crate) fn leave(
        &self,
        region: usize,
        keep_key: impl FnOnce() -> Option<Box<dyn KeptKey>>,
    ) -> bool {
        let regions = &mut *self.0.lock();
        let closing = &mut regions.slots[region];
        if closing.parts != 0 || closing.grants == 0 {
            return false;
        }
        closing.kept_keys.extend(keep_key());
        closing.is_left = true;
        true
    }

    /// Number of closed regions of which peers hold grants.
    pub(crate) fn left(&self) -> usize {
        let regions = self.0.lock();
        (regions.slots.iter().filter(|(_, one)| one.is_left)).count()
    }
}

fn pieces_of<'a>(attr: &'a MrAttr<'_>) -> impl Iterator<Item = &'a IoBuf> {
    std::iter::once(&attr.memory).chain(attr.further)
}

/// Checks that a region that is to be consists of addresses.
fn check_memory(attr: &MrAttr<'_>) -> Result<()> {
    let mut all = 0usize;
    for &IoBuf { addr, len } in pieces_of(attr) {
        let whole = all.checked_add(len);
        if len != 0 && addr.checked_add(len).is_none() || whole.is_none() {
            let bytes = format!("{len} bytes at {addr:#x}");
            return Err(Error::new(Errno::EFAULT, "register", bytes)
                .mend("there are not so many addresses: register less"));
        }
        all = whole.unwrap_or(all);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use ferrofabric_contracts::atomics::Datatype;
    use ferrofabric_contracts::region_window::Elements;
    use proptest::prelude::*;

    const MEMORY: IoBuf = IoBuf {
        addr: 0x1000,
        len: 100,
    };
    const BOTH: Flags = Flags::REMOTE_READ.union(Flags::REMOTE_WRITE);

    impl KeptKey for Arc<()> {}

    /// Memory that devices reach by this key.
    struct OnDevice(u32);

    impl Mr for OnDevice {
        fn desc(&self) -> MrDesc {
            MrDesc::NONE
        }

        fn key(&self) -> u64 {
            self.0.into()
        }

        fn device_key(&self) -> Option<u32> {
            Some(self.0)
        }
    }

    fn enter(table: &RegionTable, key: Option<u64>) -> Result<(usize, u64)> {
        let attr = MrAttr {
            key,
            ..MrAttr::new(MEMORY, BOTH)
        };
        let (number, key) = table.enter(&attr, MrDesc::NONE)?;
        table.set_device(number, Arc::new(OnDevice(9)));
        Ok((number, key))
    }

    #[test]
    fn a_key_is_for_one_region_at_a_time() {
        let table = RegionTable::default();
        let (first, key) = enter(&table, Some(7)).unwrap();
        assert_eq!(key, 7);
        let taken = enter(&table, Some(7));
        assert_eq!(taken.unwrap_err().errno(), Errno::ENOKEY);
        let none = enter(&table, Some(u64::MAX));
        assert_eq!(none.unwrap_err().errno(), Errno::ENOKEY);
        assert!(!table.begin_close(first));
        assert!(enter(&table, Some(7)).is_ok());
        let keys: Vec<_> = (0..3).map(|_| enter(&table, None).unwrap().1).collect();
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && !keys.contains(&7));
    }

    #[test]
    fn a_region_ends_at_the_last_address() {
        let table = RegionTable::default();
        let attr = MrAttr::new(
            IoBuf {
                addr: 0x1000,
                len: usize::MAX - 0xffe,
            },
            BOTH,
        );
        let entered = table.enter(&attr, MrDesc::NONE);
        assert_eq!(entered.unwrap_err().errno(), Errno::EFAULT);
        let empty = MrAttr::new(IoBuf { addr: 0, len: 0 }, BOTH);
        assert!(table.enter(&empty, MrDesc::NONE).is_ok());
    }

    /// Of all addresses those are taken where memory is.
    #[test]
    fn all_addresses_are_a_region() {
        let table = RegionTable::default();
        let all = IoBuf {
            addr: 0,
            len: usize::MAX,
        };
        let (region, key) = table.enter(&MrAttr::new(all, BOTH), MrDesc::NONE).unwrap();
        let memory = [0u8; 100];
        let place = memory.as_ptr().addr() as u64;
        for rights in [Rights::READ, Rights::WRITE] {
            let part = table.take(key, place, 100, rights.into()).unwrap();
            let bufs = ReceiveBuffers::One(IoBuf::new(memory.as_ptr(), 100));
            assert_eq!(part.bufs, bufs);
            table.give(region);
            for (place, len) in [(16, 8), (u64::MAX - 8, 8), (place, 1 << 62)] {
                assert_eq!(
                    table.take(key, place, len, rights.into()),
                    None,
                    "{place:#x}"
                );
            }
        }
        assert!(!table.begin_close(region) && table.is_over(region));
    }

    #[test]
    fn a_region_is_over_with_its_last_part() {
        let table = RegionTable::default();
        let (region, key) = enter(&table, None).unwrap();
        let part = table.take(key, 10, 20, Rights::WRITE.into()).unwrap();
        let bufs = ReceiveBuffers::One(MEMORY.part(10, 20));
        assert_eq!((part.region, part.bufs), (region, bufs));
        assert!(!table.begin_close(region));
        assert_eq!(table.take(key, 10, 20, Rights::WRITE.into()), None);
        assert!(!table.is_over(region));
        table.give(region);
        assert!(table.is_over(region));
    }

    #[test]
    fn a_region_is_over_with_its_last_grant() {
        let table = RegionTable::default();
        let attr = MrAttr::new(MEMORY, BOTH);
        let (_, of_no_device) = table.enter(&attr, MrDesc::NONE).unwrap();
        assert_eq!(table.grant(of_no_device), None);
        let (region, key) = enter(&table, None).unwrap();
        let (granted, fields) = table.grant(key).unwrap();
        assert_eq!((granted, fields.rkey), (region, 9));
        assert_eq!((fields.window.address, fields.window.len), (0x1000, 100));
        assert!(table.begin_close(region));
        assert_eq!(table.grant(key), None);
        assert!(!table.is_over(region));
        table.ungrant(region);
        assert!(table.is_over(region));
    }

    /// The key of a closed region is kept until the last grant is returned.
    #[test]
    fn a_region_is_left_to_its_holders() {
        let kept = Arc::new(());
        let keep = || Some(Box::new(kept.clone()) as Box<dyn KeptKey>);
        let table = RegionTable::default();
        let (region, key) = enter(&table, None).unwrap();
        for _ in 0..2 {
            assert_eq!(table.grant(key).unwrap().0, region);
        }
        assert!(table.take(key, 0, 1, Rights::READ.into()).is_some());
        assert!(table.begin_close(region));
        assert!(!table.leave(region, keep), "with a part under way");
        table.give(region);
        assert!(table.leave(region, keep));
        assert_eq!((table.left(), Arc::strong_count(&kept)), (1, 2));
        table.ungrant(region);
        assert_eq!((table.left(), Arc::strong_count(&kept)), (1, 2));
        table.ungrant(region);
        assert_eq!((table.left(), Arc::strong_count(&kept)), (0, 1));
        // Without a grant there is nobody to leave it to.
        let (region, _) = enter(&table, None).unwrap();
        assert!(!table.begin_close(region) && !table.leave(region, keep));
    }

    /// Nothing is granted of a key that has ended, nor of the next one while peers hold the grants of
    /// the first: a holder that returns one and one that gets one would not be told apart.
    #[test]
    fn a_lost_key_is_kept_until_its_grants_are_returned() {
        let table = RegionTable::default();
        let (region, key) = enter(&table, None).unwrap();
        let kept = Arc::new(());
        assert!(!table.lose_key(region, Box::new(kept.clone())), "no holder");
        assert_eq!(Arc::strong_count(&kept), 1);
        for _ in 0..2 {
            assert!(table.grant(key).is_some());
        }
        assert!(table.lose_key(region, Box::new(kept.clone())));
        for held in [2, 1] {
            assert_eq!(
                (table.grant(key), Arc::strong_count(&kept)),
                (None, 2),
                "{held}"
            );
            table.ungrant(region);
        }
        assert_eq!(Arc::strong_count(&kept), 1);
        assert!(table.grant(key).is_some());
        assert!(!table.lose_key(region + 1, Box::new(kept)), "no region");
    }

    #[test]
    fn a_kind_of_operations_has_one_counter() {
        let table = RegionTable::default();
        let (region, key) = enter(&table, None).unwrap();
        assert!(table.grant(key).is_some());
        let is_granted = table.count(region, 3, Flags::REMOTE_WRITE).unwrap();
        assert!(is_granted && table.grant(key).is_none());
        let taken = table.count(region, 4, BOTH).unwrap_err();
        assert_eq!(taken.errno(), Errno::EINVAL);
        table.count(region, 4, Flags::REMOTE_READ).unwrap();
        let part = table.take(key, 0, 1, Rights::READ.into()).unwrap();
        let counters = RegionCounters { read: 4, write: 3 };
        assert_eq!((part.counters, table.give(region)), (counters, counters));
        assert_eq!(table.give(region + 1), RegionCounters::NONE);
    }

    #[test]
    fn all_pieces_end_at_the_last_address() {
        let table = RegionTable::default();
        let max = usize::MAX;
        for (addr, len) in [(max, 2), (1, max - 1), (0x1000, max / 2 + 1)] {
            let further = [IoBuf { addr, len }; 2];
            let attr = MrAttr {
                further: &further,
                ..MrAttr::new(MEMORY, BOTH)
            };
            let entered = table.enter(&attr, MrDesc::NONE);
            assert_eq!(entered.unwrap_err().errno(), Errno::EFAULT);
        }
    }

    #[test]
    fn a_region_of_elements_is_for_atomic_operations_on_them() {
        let table = RegionTable::default();
        let attr = MrAttr {
            elements: Some(Datatype::Uint64),
            ..MrAttr::new(MEMORY, Flags::REMOTE_WRITE)
        };
        let (_, key) = table.enter(&attr, MrDesc::NONE).unwrap();
        let (_, of_bytes) = enter(&table, None).unwrap();
        let access = |rights, elements| RegionAccess {
            rights,
            elements: Elements::of(elements),
        };
        let fits = |key, access| table.take(key, 0, 8, access).is_some();
        let write = Rights::WRITE;
        assert!(fits(key, access(write, Some(Datatype::Uint64))));
        for refused in [
            access(write, None),
            access(write, Some(Datatype::Int64)),
            access(write, Some(Datatype::Uint32)),
            access(Rights::all(), Some(Datatype::Uint64)),
        ] {
            assert!(!fits(key, refused), "{refused:?}");
        }
        assert!(fits(
            of_bytes,
            access(Rights::all(), Some(Datatype::Uint32))
        ));
    }

    proptest! {
        /// A part lies in the region, and is refused where it would not, or without the right.
        #[test]
        fn parts_lie_in_their_region(
            place in prop_oneof![0u64..200, any::<u64>()],
            len in prop_oneof![0u64..200, any::<u64>()],
            first_place in prop::sample::select(vec![0, 60, 0x1000]),
            rights in prop::sample::select(vec![Flags::REMOTE_READ, Flags::REMOTE_WRITE, BOTH, Flags::SEND]),
            right in prop::sample::select(vec![Rights::READ, Rights::WRITE]),
        ) {
            let table = RegionTable::default();
            let attr = MrAttr { first_place, ..MrAttr::new(MEMORY, rights) };
            let (_, key) = table.enter(&attr, MrDesc::NONE).unwrap();
            let last = u128::from(place) + u128::from(len);
            let in_range = place >= first_place && last <= u128::from(first_place) + 100;
            let fits = in_range && Rights::of(rights).contains(right);
            let part = table.take(key, place, len, right.into());
            prop_assert_eq!(part.is_some(), fits);
            if let Some(part) = part {
                let buf = MEMORY.part((place - first_place) as usize, len as usize);
                prop_assert_eq!(part.bufs, ReceiveBuffers::One(buf));
            }
            prop_assert_eq!(table.take(key.wrapping_add(1), 0, 0, right.into()), None);
        }

        /// Where places are addresses, a part has the bytes at its addresses, and is refused where
        /// one of them lies in no piece. Pieces touch, overlap, and come in any order.
        #[test]
        fn places_that_are_addresses(
            pieces in prop::collection::vec((0x1000usize..0x1040, 0usize..20), 1..=4),
            place in 0xff0u64..0x1060,
            len in 1u64..40,
        ) {
            let pieces: Vec<_> = pieces.iter().map(|&(addr, len)| IoBuf { addr, len }).collect();
            let attr = MrAttr {
                further: &pieces[1..],
                first_place: pieces[0].addr as u64,
                places_are_addresses: true,
                ..MrAttr::new(pieces[0], BOTH)
            };
            let table = RegionTable::default();
            let (_, key) = table.enter(&attr, MrDesc::NONE).unwrap();
            let each = |buf: &IoBuf| buf.addr..buf.addr + buf.len;
            let wanted: Vec<_> = (place as usize..(place + len) as usize).collect();
            let is_there = |at: &usize| pieces.iter().any(|piece| each(piece).contains(at));
            let part = table.take(key, place, len, Rights::WRITE.into());
            prop_assert_eq!(part.is_some(), wanted.iter().all(is_there));
            if let Some(part) = part {
                let bytes: Vec<_> = part.bufs.segments().iter().flat_map(each).collect();
                prop_assert_eq!(bytes, wanted);
            }
        }

        /// A part of several pieces has their bytes in order.
        #[test]
        fn places_count_on_from_piece_to_piece(
            lens in prop::collection::vec(0usize..20, 1..=4),
            place in 0u64..90,
            len in 0u64..90,
        ) {
            let pieces: Vec<_> = (1..)
                .zip(&lens)
                .map(|(at, &len)| IoBuf { addr: at * 0x1000, len })
                .collect();
            let attr = MrAttr { further: &pieces[1..], ..MrAttr::new(pieces[0], BOTH) };
            let table = RegionTable::default();
            let (_, key) = table.enter(&attr, MrDesc::NONE).unwrap();
            let each = |buf: &IoBuf| buf.addr..buf.addr + buf.len;
            let all: Vec<_> = pieces.iter().flat_map(each).collect();
            let part = table.take(key, place, len, Rights::READ.into());
            prop_assert_eq!(part.is_some(), place + len <= all.len() as u64);
            if let Some(part) = part {
                let bufs = part.bufs.segments();
                let bytes: Vec<_> = bufs.iter().flat_map(each).collect();
                prop_assert_eq!(&bytes[..], &all[place as usize..][..len as usize]);
                prop_assert!(bufs.len() == 1 || bufs.iter().all(|buf| buf.len != 0));
            }
        }
    }
}
