//! The origin that a datagram names: the routing header before it, or the local identifier of its
//! port.

use ferrofabric_verbs_sys::ibv_gid;

/// Bytes before each datagram (IBTA 1.5 section 11.4.1.2).
pub(crate) const HEADER_BYTES: usize = 40;

/// Where the header of RoCE v2 over IPv4 lies in them (IBTA annex A17.4.5.2).
const IPV4_AT: usize = 20;

/// The way of a path's datagrams. Sender and receiver are on the same port.
#[derive(Clone, Copy)]
pub(crate) enum DatagramRoute {
    /// With a routing header.
    Header([u8; HEADER_BYTES]),
    /// Within a subnet of InfiniBand.
    Lid(u16),
}

impl DatagramRoute {
    /// From one GID to another, in a traffic class.
    pub(crate) fn global(from: &ibv_gid, to: &ibv_gid, traffic_class: u8, ethernet: bool) -> Self {
        // SAFETY: all bits are fine in both views of the union.
        let (from, to) = unsafe { (from.raw, to.raw) };
        let mut header = [0; HEADER_BYTES];
        if ethernet {
            ipv4(&mut header[IPV4_AT..], traffic_class, &from[12..]);
        } else {
            // Four bits of the version come first, twenty of the flow label last.
            header[0] = 0x60 | (traffic_class >> 4);
            header[1] = traffic_class << 4;
            header[8..24].copy_from_slice(&from);
            header[24..].copy_from_slice(&to);
        }
        Self::Header(header)
    }

    /// The bytes before the payload; undefined ones are 0.
    pub(crate) fn before(&self) -> [u8; HEADER_BYTES] {
        match self {
            Self::Header(header) => *header,
            Self::Lid(_) => [0; HEADER_BYTES],
        }
    }
}

/// A header of RFC 791 from an address to itself, its words adding up.
fn ipv4(header: &mut [u8], type_of_service: u8, address: &[u8]) {
    header[..2].copy_from_slice(&[0x45, type_of_service]);
    header[8..10].copy_from_slice(&[64, 17]);
    header[12..16].copy_from_slice(address);
    header[16..].copy_from_slice(address);
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    let sum = !(((folded >> 16) + folded) as u16);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}
