//! The sources of requests for reads and atomic operations.
//!
//! A reply goes back to the peer that has sent the request, whatever the address vector has. So a
//! transport names that peer by a number of its own, which is the source of the request and the
//! destination of its reply. The number has the form of an [`FiAddr`], and is that of no entry of
//! an address vector, of no handle and of no key:
//!
//! ```text
//!  63 62 │ 61 … 56 │ 55 … 48   │ 47 … 24 │ 23 … 0
//!   1  1 │ part    │ transport │ life    │ index
//! ```
//!
//! `index` is the place of the peer or link in a table of the transport, and `life` differs from
//! that of the peer that had the place before. The owner of several transports of one kind sets
//! `part`.

use crate::types::FiAddr;

const REQUESTER: u64 = 0b11 << 62;
const PART_SHIFT: u32 = 56;
const PART_MASK: u64 = 0x3f << PART_SHIFT;
const TRANSPORT_SHIFT: u32 = 48;
const LIFE_SHIFT: u32 = 24;
const PLACE_MASK: u64 = (1 << LIFE_SHIFT) - 1;

/// The largest number of parts.
pub const MAX_PARTS: usize = 64;

/// The source of the requests of a peer at a place of a table of a transport.
pub const fn requester(transport: u32, index: usize, life: u64) -> FiAddr {
    FiAddr(
        REQUESTER
            | (((transport & 0x7f) as u64) << TRANSPORT_SHIFT)
            | ((life & PLACE_MASK) << LIFE_SHIFT)
            | (index as u64 & PLACE_MASK),
    )
}

/// Whether a source is that of requests.
#[inline]
pub const fn is_requester(src: FiAddr) -> bool {
    src.is_some() && src.0 & REQUESTER == REQUESTER
}

/// The transport that the source belongs to.
pub const fn transport_of(src: FiAddr) -> u32 {
    (src.0 >> TRANSPORT_SHIFT) as u8 as u32
}

/// The place in the table of the transport.
#[inline]
pub const fn index_of(src: FiAddr) -> usize {
    (src.0 & PLACE_MASK) as usize
}

/// The source, as that of one part of its owner's.
pub const fn with_part(src: FiAddr, part: usize) -> FiAddr {
    FiAddr((src.0 & !PART_MASK) | (((part as u64) << PART_SHIFT) & PART_MASK))
}

/// The part that a source belongs to, and the source as the part has it.
pub const fn take_part(src: FiAddr) -> (usize, FiAddr) {
    let part = (src.0 & PART_MASK) >> PART_SHIFT;
    (part as usize, FiAddr(src.0 & !PART_MASK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{is_key_source, key_source};

    #[test]
    fn a_requester_has_its_parts() {
        let src = requester(3, 0x12_3456, 0x78_9abc);
        assert!(is_requester(src));
        assert_eq!((transport_of(src), index_of(src)), (3, 0x12_3456));
        let of_part = with_part(src, 5);
        assert_ne!(of_part, src);
        assert_eq!(take_part(of_part), (5, src));
        assert_ne!(src, requester(3, 0x12_3456, 0x78_9abd));
    }

    #[test]
    fn a_requester_is_nothing_else() {
        let highest = with_part(requester(u32::MAX, usize::MAX, u64::MAX), MAX_PARTS - 1);
        for src in [highest, requester(0, 0, 0)] {
            assert!(is_requester(src) && src.is_some() && !is_key_source(src));
        }
        for other in [
            FiAddr::NOTAVAIL,
            FiAddr::UNSPEC,
            FiAddr(0),
            // The highest address of an entry.
            FiAddr(0xff_ffff_ffff_ffff),
            key_source(0),
            key_source(u32::MAX),
        ] {
            assert!(!is_requester(other), "{other:?}");
        }
    }
}
