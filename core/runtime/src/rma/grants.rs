//! Grants of regions to peers' devices (`docs/adr/0063`): those that this endpoint holds for its
//! own operations, and those that it has given.
//!
//! Invariant: a grant that is given counts at its region until its holder has returned it, or until
//! the holder's device has no way to this domain's memory any more. A grant that is held is used
//! for the lane alone that the query was for.

use ferrofabric_contracts::flags::Rights;
use ferrofabric_contracts::region_window::{Elements, RegionWindow};
use ferrofabric_contracts::types::{FiAddr, GrantedMemory, RmaOp};
use ferrofabric_system::random;
use rustc_hash::FxHashMap;
use slab::Slab;

/// The number of a grant that there is not.
pub(crate) const NO_GRANT: u64 = 0;

/// Bytes of a grant's message: address (8), length (8), place of the first byte (8), key of the
/// device (4), rights (4: 1 read, 2 write).
pub(crate) const GRANT_BYTES: usize = 32;

/// Keys of peers that an endpoint remembers at most.
const MAX_HELD: usize = 4096;

/// Grants that an endpoint has given at most.
const MAX_GIVEN: usize = 65_536;

/// Operations with a key for which there was no grant, until the peer is queried again.
const USES_BETWEEN_QUERIES: u32 = 1024;

/// A region as a device reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantFields {
    /// Of bytes: no device reaches elements.
    pub(crate) window: RegionWindow,
    pub(crate) rkey: u32,
}

impl GrantFields {
    pub(crate) fn to_bytes(self) -> [u8; GRANT_BYTES] {
        let RegionWindow {
            address,
            len,
            first_place,
            rights,
            ..
        } = self.window;
        let mut bytes = [0; GRANT_BYTES];
        bytes[..8].copy_from_slice(&address.to_le_bytes());
        bytes[8..16].copy_from_slice(&len.to_le_bytes());
        bytes[16..24].copy_from_slice(&first_place.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.rkey.to_le_bytes());
        bytes[28..].copy_from_slice(&u32::from(rights.bits()).to_le_bytes());
        bytes
    }

    /// `None`: the region would end beyond the last address or place, or has an unknown right.
    pub(crate) fn from_bytes(bytes: &[u8; GRANT_BYTES]) -> Option<Self> {
        let long = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let short = |at: usize| bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        let (address, len, first_place) = (long(0), long(8), long(16));
        address.checked_add(len)?;
        first_place.checked_add(len)?;
        let rights = Rights::from_bits(u8::try_from(short(28)).ok()?)?;
        Some(Self {
            window: RegionWindow {
                address,
                len,
                first_place,
                rights,
                elements: Elements::BYTES,
            },
            rkey: short(24),
        })
    }
}

/// The state of a key of a peer.
#[derive(Clone, Copy, Debug)]
enum KeyState {
    /// One operation has used it.
    UsedOnce,
    /// A query with this number is not answered.
    Queried(u64),
    Held {
        number: u64,
        lane: u64,
        fields: GrantFields,
    },
    /// The peer grants nothing, and was queried for this lane.
    NotGranted { lane: u64, uses: u32 },
    /// The peer's device has denied what was granted by this number.
    Denied(u64),
}

/// A query that is not answered.
#[derive(Clone, Copy, Debug)]
struct Query {
    peer: FiAddr,
    key: u64,
    lane: u64,
    /// The number of the grant whose fields are on their way.
    arriving: Option<u64>,
}

/// The grants that this endpoint holds.
#[derive(Default)]
pub(crate) struct HeldGrants {
    keys: FxHashMap<(FiAddr, u64), KeyState>,
    queries: FxHashMap<u64, Query>,
    /// Number of queries so far.
    queried: u64,
    /// Number of grants that came.
    pub(crate) came: u64,
}

impl HeldGrants {
    /// The memory of an operation on `len` bytes, and the number of its grant.
    #[inline]
    pub(crate) fn find(&self, op: &RmaOp, len: u64, number: u64) -> Option<(GrantedMemory, u64)> {
        let KeyState::Held {
            number: grant,
            lane,
            fields,
        } = self.keys.get(&(op.dest, op.key))?
        else {
            return None;
        };
        let access = op.kind.right().into();
        let address = fields.window.address_of(op.place, len, access)?;
        let memory = GrantedMemory {
            lane: *lane,
            address,
            rkey: fields.rkey,
            rights: fields.window.rights,
            number,
        };
        Some((memory, *grant))
    }

    /// An operation could use a grant for a lane, and there is none that fits. Returns the number
    /// of a query, if it is time for one.
    pub(crate) fn missed(&mut self, peer: FiAddr, key: u64, lane: u64) -> Option<u64> {
        let is_due = match self.keys.get_mut(&(peer, key)) {
            None => {
                self.make_room();
                self.keys.insert((peer, key), KeyState::UsedOnce);
                false
            }
            Some(KeyState::UsedOnce) => true,
            Some(KeyState::Queried(query)) => {
                let of_lane = |query: &Query| query.lane == lane;
                !self.queries.get(query).is_some_and(of_lane)
            }
            Some(KeyState::Held { lane: of, .. }) => *of != lane,
            Some(KeyState::NotGranted { lane: of, uses }) => {
                *uses += 1;
                *of != lane || *uses >= USES_BETWEEN_QUERIES
            }
            Some(KeyState::Denied(_)) => false,
        };
        is_due.then(|| self.query(peer, key, lane))
    }

    fn query(&mut self, peer: FiAddr, key: u64, lane: u64) -> u64 {
        self.queried += 1;
        let number = self.queried;
        let query = Query {
            peer,
            key,
            lane,
            arriving: None,
        };
        self.queries.insert(number, query);
        if let Some(KeyState::Queried(before)) =
            self.keys.insert((peer, key), KeyState::Queried(number))
        {
            self.queries.remove(&before);
        }
        number
    }

    /// Forgets some key if there are too many.
    fn make_room(&mut self) {
        if self.keys.len() < MAX_HELD {
            return;
        }
        if let Some(&(peer, key)) = self.keys.keys().next() {
            self.forget(peer, key);
        }
    }

    fn forget(&mut self, peer: FiAddr, key: u64) {
        if let Some(KeyState::Queried(number)) = self.keys.remove(&(peer, key)) {
            self.queries.remove(&number);
        }
    }

    /// The answer to a query begins to arrive. Returns whether it is awaited.
    pub(crate) fn answer_arrives(&mut self, src: FiAddr, query: u64, grant: u64) -> bool {
        match self.queries.get_mut(&query) {
            Some(query) if query.peer == src && query.arriving.is_none() => {
                query.arriving = Some(grant);
                true
            }
            _ => false,
        }
    }

    /// The answer to a query is there; `None`: nothing is granted.
    pub(crate) fn answered(&mut self, query: u64, grant: u64, fields: Option<GrantFields>) {
        let is_it = |query: &Query| query.arriving == Some(grant);
        if !self.queries.get(&query).is_some_and(is_it) {
            // It was revoked, or the peer removed, while it arrived.
            return;
        }
        let Some(Query {
            peer, key, lane, ..
        }) = self.queries.remove(&query)
        else {
            return;
        };
        let state = match fields {
            Some(fields) => KeyState::Held {
                number: grant,
                lane,
                fields,
            },
            None => KeyState::NotGranted { lane, uses: 0 },
        };
        self.came += u64::from(fields.is_some());
        self.keys.insert((peer, key), state);
    }

    /// A peer revokes a grant.
    pub(crate) fn revoke(&mut self, peer: FiAddr, grant: u64) {
        let queries = &mut self.queries;
        self.keys.retain(|(of, _), state| {
            let is_revoked = *of == peer
                && match state {
                    KeyState::Held { number, .. } | KeyState::Denied(number) => *number == grant,
                    KeyState::Queried(query) => {
                        (queries.get(query)).is_some_and(|query| query.arriving == Some(grant))
                    }
                    _ => false,
                };
            if let (true, KeyState::Queried(query)) = (is_revoked, *state) {
                queries.remove(&query);
            }
            !is_revoked
        });
    }

    /// The peer's device has denied an operation with a key that was granted.
    pub(crate) fn deny(&mut self, peer: FiAddr, key: u64) {
        if let Some(state) = self.keys.get_mut(&(peer, key)) {
            if let KeyState::Held { number, .. } = *state {
                *state = KeyState::Denied(number);
            }
        }
    }

    /// A peer is gone.
    pub(crate) fn forget_peer(&mut self, peer: FiAddr) {
        self.keys.retain(|(of, _), _| *of != peer);
        self.queries.retain(|_, query| query.peer != peer);
    }
}

/// A grant that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GivenGrant {
    pub(crate) number: u64,
    pub(crate) holder: FiAddr,
    pub(crate) region: usize,
}

/// The grants that this endpoint has given.
#[derive(Default)]
pub(crate) struct GivenGrants {
    given: Slab<GivenGrant>,
    by_holder: FxHashMap<(FiAddr, usize), usize>,
    /// Number of grants so far.
    pub(crate) count: u32,
    /// Number of those that were revoked.
    pub(crate) revoked: u64,
}

impl GivenGrants {
    /// Gives a grant of a region, or the same again. Returns its number, and whether it is new.
    /// `None`: there are too many, or the kernel has no random number.
    pub(crate) fn give(&mut self, holder: FiAddr, region: usize) -> Option<(u64, bool)> {
        if let Some(&at) = self.by_holder.get(&(holder, region)) {
            return Some((self.given[at].number, false));
        }
        if self.given.len() >= MAX_GIVEN {
            return None;
        }
        // Who knows the number may name the region by it, so nobody can guess it. No grant has
        // `NO_GRANT`.
        let drawn = (random::number().ok()? >> 32).max(1);
        self.count = self.count.wrapping_add(1);
        let entry = self.given.vacant_entry();
        let number = (drawn << 32) | entry.key() as u64;
        self.by_holder.insert((holder, region), entry.key());
        entry.insert(GivenGrant {
            number,
            holder,
            region,
        });
        Some((number, true))
    }

    /// The grants of a region.
    pub(crate) fn of_region(&self, region: usize) -> Vec<GivenGrant> {
        let given = self.given.iter().map(|(_, grant)| *grant);
        given.filter(|grant| grant.region == region).collect()
    }

    /// A holder returns a grant. Returns the region.
    pub(crate) fn take(&mut self, number: u64, holder: FiAddr) -> Option<usize> {
        let at = number as u32 as usize;
        let grant = self.given.get(at)?;
        if grant.number != number || grant.holder != holder {
            return None;
        }
        let region = self.given.remove(at).region;
        self.by_holder.remove(&(holder, region));
        Some(region)
    }

    /// The region of a grant.
    pub(crate) fn region_of(&self, number: u64) -> Option<usize> {
        let grant = self.given.get(number as u32 as usize)?;
        (grant.number == number).then_some(grant.region)
    }

    /// Whether a peer holds a grant.
    pub(crate) fn has_holder(&self, holder: FiAddr) -> bool {
        self.given.iter().any(|(_, grant)| grant.holder == holder)
    }

    /// A holder is gone. Returns the regions of its grants.
    pub(crate) fn take_of(&mut self, holder: FiAddr) -> Vec<usize> {
        let of_holder = self
            .given
            .iter()
            .filter(|(_, grant)| grant.holder == holder);
        let numbers: Vec<_> = of_holder.map(|(_, grant)| grant.number).collect();
        let regions = numbers.into_iter().map(|number| self.take(number, holder));
        regions.flatten().collect()
    }

    /// The endpoint is closed. Returns the regions of all grants.
    pub(crate) fn take_all(&mut self) -> Vec<usize> {
        self.by_holder.clear();
        self.given.drain().map(|grant| grant.region).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use ferrofabric_contracts::flags::Flags;
    use ferrofabric_contracts::types::{MrDesc, RmaKind};
    use proptest::prelude::*;

    const BOTH: Rights = Rights::all();

    fn fields(len: u64, first_place: u64, rights: Rights) -> GrantFields {
        GrantFields {
            window: RegionWindow {
                address: 0x10_0000,
                len,
                first_place,
                rights,
                elements: Elements::BYTES,
            },
            rkey: 7,
        }
    }

    fn op(kind: RmaKind, peer: u64, key: u64, place: u64) -> RmaOp {
        RmaOp {
            kind,
            dest: FiAddr(peer),
            key,
            place,
            data: 0,
            desc: MrDesc::NONE,
            context: 0,
            flags: Flags::empty(),
        }
    }

    /// Gets a grant of a key, by two uses and the answer.
    fn hold(held: &mut HeldGrants, key: u64, grant: u64, fields: GrantFields) {
        assert_eq!(held.missed(FiAddr(1), key, 5), None);
        let query = held.missed(FiAddr(1), key, 5).unwrap();
        assert!(held.answer_arrives(FiAddr(1), query, grant));
        held.answered(query, grant, Some(fields));
    }

    #[test]
    fn bytes_of_a_grant() {
        let sound = fields(0x20, 3, Rights::WRITE);
        let bytes = sound.to_bytes();
        let golden = [
            0, 0, 0x10, 0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0,
            0, 2, 0, 0, 0,
        ];
        assert_eq!(bytes, golden);
        assert_eq!(GrantFields::from_bytes(&bytes), Some(sound));
    }

    #[test]
    fn answers_that_nobody_awaits_grant_nothing() {
        let mut held = HeldGrants::default();
        assert_eq!(held.missed(FiAddr(1), 9, 5), None);
        let query = held.missed(FiAddr(1), 9, 5).unwrap();
        // Of another peer, to another query; and none has two queries on one lane.
        assert!(!held.answer_arrives(FiAddr(2), query, 1));
        assert!(!held.answer_arrives(FiAddr::NOTAVAIL, query, 1));
        assert!(!held.answer_arrives(FiAddr(1), query + 1, 1));
        assert_eq!(held.missed(FiAddr(1), 9, 5), None);
        assert!(held.answer_arrives(FiAddr(1), query, 1));
        assert!(!held.answer_arrives(FiAddr(1), query, 2));
        // Another grant than the one that began to arrive.
        held.answered(query, 2, Some(fields(8, 0, BOTH)));
        assert_eq!(held.find(&op(RmaKind::Read, 1, 9, 0), 8, 0), None);
        // Revoked while it arrives.
        held.revoke(FiAddr(1), 1);
        held.answered(query, 1, Some(fields(8, 0, BOTH)));
        assert_eq!(held.find(&op(RmaKind::Read, 1, 9, 0), 8, 0), None);
        hold(&mut held, 9, 3, fields(8, 0, BOTH));
        assert!(held.find(&op(RmaKind::Read, 1, 9, 0), 8, 0).is_some());
        // Another peer revokes nothing.
        held.revoke(FiAddr(2), 3);
        assert!(held.find(&op(RmaKind::Read, 1, 9, 0), 8, 0).is_some());
        held.revoke(FiAddr(1), 3);
        assert_eq!(held.find(&op(RmaKind::Read, 1, 9, 0), 8, 0), None);
        assert!(held.queries.is_empty() && held.keys.is_empty());
    }

    #[test]
    fn queries_are_repeated_for_new_lanes_and_after_many_uses() {
        let mut held = HeldGrants::default();
        hold(&mut held, 9, 3, fields(8, 0, BOTH));
        assert_eq!(held.missed(FiAddr(1), 9, 5), None);
        let query = held.missed(FiAddr(1), 9, 6).unwrap();
        assert!(held.answer_arrives(FiAddr(1), query, 0));
        held.answered(query, 0, None);
        for _ in 1..USES_BETWEEN_QUERIES {
            assert_eq!(held.missed(FiAddr(1), 9, 6), None);
        }
        let query = held.missed(FiAddr(1), 9, 6).unwrap();
        assert!(held.answer_arrives(FiAddr(1), query, 4));
        held.answered(query, 4, Some(fields(8, 0, BOTH)));
        held.deny(FiAddr(1), 9);
        for lane in 0..9 {
            assert_eq!(held.missed(FiAddr(1), 9, lane), None);
        }
    }

    #[test]
    fn an_endpoint_remembers_a_bounded_number_of_keys() {
        let mut held = HeldGrants::default();
        for key in 0..2 * MAX_HELD as u64 {
            held.missed(FiAddr(1), key, 5);
            held.missed(FiAddr(1), key, 5);
        }
        assert_eq!((held.keys.len(), held.queries.len()), (MAX_HELD, MAX_HELD));
        held.forget_peer(FiAddr(1));
        assert!(held.queries.is_empty() && held.keys.is_empty());
    }

    #[test]
    fn a_holder_has_one_grant_of_a_region_until_it_returns_it() {
        let mut given = GivenGrants::default();
        let (first, is_new) = given.give(FiAddr(1), 4).unwrap();
        assert!(is_new);
        assert_eq!(given.give(FiAddr(1), 4), Some((first, false)));
        let (other, _) = given.give(FiAddr(2), 4).unwrap();
        assert_eq!(given.of_region(4).len(), 2);
        for (number, holder) in [(first, 2), (other, 1), (first ^ (1 << 32), 1), (0, 1)] {
            assert_eq!(given.take(number, FiAddr(holder)), None);
        }
        assert_eq!(given.take(first, FiAddr(1)), Some(4));
        assert_eq!(given.take(first, FiAddr(1)), None);
        let (again, is_new) = given.give(FiAddr(1), 4).unwrap();
        assert!(is_new && again != first);
        given.give(FiAddr(1), 5).unwrap();
        let mut regions = given.take_of(FiAddr(1));
        regions.sort_unstable();
        assert_eq!(regions, [4, 5]);
        assert!(!given.has_holder(FiAddr(1)) && given.has_holder(FiAddr(2)));
        assert_eq!(given.take_all(), [4]);
    }

    proptest! {
        /// An operation finds memory of the granted region alone, where it lies in it, and with the
        /// right for it; for any fields of a grant.
        #[test]
        fn operations_lie_in_the_region(
            address in prop_oneof![0u64..300, any::<u64>()],
            region in prop_oneof![0u64..300, any::<u64>()],
            first_place in prop_oneof![0u64..300, any::<u64>()],
            place in prop_oneof![0u64..300, any::<u64>()],
            len in prop_oneof![0u64..300, any::<u64>()],
            bits in 0u32..5,
            kind in prop::sample::select(vec![RmaKind::Read, RmaKind::Write]),
        ) {
            let mut bytes = fields(region, first_place, BOTH).to_bytes();
            bytes[..8].copy_from_slice(&address.to_le_bytes());
            bytes[28..].copy_from_slice(&bits.to_le_bytes());
            let ends = [address.checked_add(region), first_place.checked_add(region)];
            let parsed = GrantFields::from_bytes(&bytes);
            prop_assert_eq!(parsed.is_some(), ends.iter().all(Option::is_some) && bits < 4);
            if let Some(parsed) = parsed {
                let mut held = HeldGrants::default();
                hold(&mut held, 9, 3, parsed);
                let found = held.find(&op(kind, 1, 9, place), len, 77);
                let bit = if kind == RmaKind::Read { 1 } else { 2 };
                let end = u128::from(place) + u128::from(len);
                let fits = place >= first_place
                    && end <= u128::from(first_place) + u128::from(region)
                    && bits & bit != 0;
                prop_assert_eq!(found.is_some(), fits);
                if let Some((memory, grant)) = found {
                    prop_assert_eq!((memory.lane, memory.rkey, memory.number, grant), (5, 7, 77, 3));
                    prop_assert_eq!(memory.address, address + (place - first_place));
                    prop_assert_eq!(u32::from(memory.rights.bits()), bits);
                }
            }
        }

        /// In any order of events, an operation finds the grant of a plain model: the last one that
        /// the peer has given and not revoked.
        #[test]
        fn grants_come_and_go(
            steps in prop::collection::vec((0u8..6, 0u64..2, 0u64..3, 0u64..2), 1..80),
        ) {
            let mut held = HeldGrants::default();
            let mut model: FxHashMap<(u64, u64), (u64, u64)> = FxHashMap::default();
            let mut open: Vec<(u64, u64, u64, u64)> = Vec::new();
            let mut grants = 0;
            for (step, peer, key, lane) in steps {
                match step {
                    0 | 1 => {
                        if let Some(query) = held.missed(FiAddr(peer), key, lane) {
                            open.retain(|(p, k, ..)| (*p, *k) != (peer, key));
                            open.push((peer, key, lane, query));
                            model.remove(&(peer, key));
                        }
                    }
                    2 | 3 => {
                        if let Some(at) = open.iter().position(|(p, ..)| *p == peer) {
                            let (peer, key, lane, query) = open.remove(at);
                            grants += 1;
                            prop_assert!(held.answer_arrives(FiAddr(peer), query, grants));
                            held.answered(query, grants, Some(fields(8, 0, BOTH)));
                            model.insert((peer, key), (grants, lane));
                        }
                    }
                    4 => {
                        if let Some((grant, _)) = model.remove(&(peer, key)) {
                            held.revoke(FiAddr(peer), grant);
                        }
                    }
                    _ => {
                        held.forget_peer(FiAddr(peer));
                        model.retain(|(p, _), _| *p != peer);
                        open.retain(|(p, ..)| *p != peer);
                    }
                }
                for peer in 0..2 {
                    for key in 0..3 {
                        let found = held.find(&op(RmaKind::Read, peer, key, 0), 8, 0);
                        let found = found.map(|(memory, grant)| (grant, memory.lane));
                        prop_assert_eq!(found, model.get(&(peer, key)).copied());
                    }
                }
            }
        }
    }
}
