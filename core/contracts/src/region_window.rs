//! The window through which peers reach a region, and the one check of place, length and right.
//!
//! The target checks each part of a message by it, an initiator checks what the target has granted
//! to its device, and a process of the same node checks what the target's board shows. Regions of
//! several pieces are not windows: the table of regions finds the pieces of a part. The rights of an
//! endpoint or a link to all regions are compared before.

use crate::atomics::Datatype;
use crate::flags::Rights;

/// The elements that atomic operations change, as a number: libfabric's number of their type plus
/// 1, or 0 for bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elements(u8);

impl Elements {
    /// A region of bytes, which is for all operations; the bytes of a read or a write.
    pub const BYTES: Self = Self(0);

    /// Elements of a type, or bytes.
    #[inline]
    #[must_use]
    pub const fn of(datatype: Option<Datatype>) -> Self {
        match datatype {
            Some(datatype) => Self(datatype as u8 + 1),
            None => Self::BYTES,
        }
    }

    /// The elements with this number, which may be that of no type: no operation is for those.
    #[inline]
    #[must_use]
    pub const fn from_number(number: u8) -> Self {
        Self(number)
    }

    /// Their number.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// The access of an operation to its part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionAccess {
    /// The rights that it needs.
    pub rights: Rights,
    /// The elements of an atomic operation, else [`Elements::BYTES`].
    pub elements: Elements,
}

/// The access of a read or a write.
impl From<Rights> for RegionAccess {
    #[inline]
    fn from(rights: Rights) -> Self {
        Self {
            rights,
            elements: Elements::BYTES,
        }
    }
}

/// A piece of memory as peers reach it. Any of its numbers may come from a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionWindow {
    /// Address of the first byte, in the process of its owner.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
    /// The place of the first byte.
    pub first_place: u64,
    /// The rights of peers.
    pub rights: Rights,
    /// The elements, where peers reach it only by atomic operations on them.
    pub elements: Elements,
}

impl RegionWindow {
    /// The address of `len` bytes from `place` on, for an operation. `None`: the window does not
    /// contain all of them, lacks a right, is for other operations, or they would end beyond the
    /// last address.
    #[inline(always)]
    #[must_use]
    pub fn address_of(&self, place: u64, len: u64, access: RegionAccess) -> Option<u64> {
        let start = place.checked_sub(self.first_place)?;
        let end = start.checked_add(len)?;
        (end <= self.len && self.allows(access)).then_some(())?;
        self.address.checked_add(end)?;
        Some(self.address + start)
    }

    /// Whether an operation may access it.
    #[inline(always)]
    #[must_use]
    pub fn allows(&self, access: RegionAccess) -> bool {
        let is_for_it = self.elements == Elements::BYTES || self.elements == access.elements;
        is_for_it && self.rights.contains(access.rights)
    }

    /// The address of `place`, and the number of bytes from there to the end of the window. `None`:
    /// the place is before the window or behind its end.
    #[must_use]
    pub fn rest_from(&self, place: u64) -> Option<(u64, u64)> {
        let start = place.checked_sub(self.first_place)?;
        let rest = self.len.checked_sub(start)?;
        Some((self.address.checked_add(start)?, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn elements_have_the_numbers_of_their_types() {
        assert_eq!(Elements::of(None), Elements::BYTES);
        let numbers = Datatype::ALL
            .iter()
            .map(|&of| Elements::of(Some(of)).number());
        let wanted = Datatype::ALL.iter().map(|&of| of as u8 + 1);
        assert!(numbers.eq(wanted));
        assert_eq!(
            Elements::from_number(9),
            Elements::of(Some(Datatype::Float))
        );
    }

    proptest! {
        /// An operation gets an address of the window, and is refused where one of its bytes is
        /// outside, where it lacks a right, and where the window is for other elements; for any
        /// numbers of a window.
        #[test]
        fn operations_stay_within_their_window(
            address in any::<u64>(),
            window_len in prop_oneof![0u64..200, any::<u64>()],
            first_place in prop_oneof![0u64..200, any::<u64>()],
            place in prop_oneof![0u64..400, any::<u64>()],
            len in prop_oneof![0u64..200, any::<u64>()],
            (has, needs) in (0u8..4, 1u8..4),
            (of, with) in (0u8..3, 0u8..3),
        ) {
            let window = RegionWindow {
                address,
                len: window_len,
                first_place,
                rights: Rights::from_bits_retain(has),
                elements: Elements::from_number(of),
            };
            let access = RegionAccess {
                rights: Rights::from_bits_retain(needs),
                elements: Elements::from_number(with),
            };
            let wide = u128::from;
            let last = wide(place) + wide(len);
            let fits = place >= first_place
                && last <= wide(first_place) + wide(window_len)
                && wide(address) + (last - wide(first_place)) <= wide(u64::MAX)
                && has & needs == needs
                && [0, with].contains(&of);
            let found = window.address_of(place, len, access);
            prop_assert_eq!(found.is_some(), fits);
            if let Some(found) = found {
                prop_assert_eq!(wide(found), wide(address) + wide(place - first_place));
                let (from, rest) = window.rest_from(place).unwrap();
                prop_assert_eq!(from, found);
                prop_assert!(len <= rest);
            }
        }
    }
}
