//! Who sent a datagram: the routing header before it, and the way back from path and queue pair to an address of the address
//! vector.

use std::collections::HashMap;

use ferrofabric_core::addr::{GidKind, NativeAddr, VerbsAddr};
use ferrofabric_core::types::FiAddr;

use crate::qp::UdQp;

/// Where the header of RoCE v2 over IPv4 lies, which is shorter (IBTA annex A17.4.5.2); what is before it is undefined.
const IPV4_AT: usize = 20;

/// Where a datagram comes from, as far as it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// With a routing header: always on Ethernet, from other subnets on InfiniBand.
    Gid([u8; 16], u32),
    /// Within a subnet of InfiniBand.
    Lid(u16, u32),
}

impl Source {
    /// The address of the sender, whose datagrams came with this LID, as far as they tell: the rest is as of `own`.
    pub(super) fn name(self, lid: u16, own: &VerbsAddr) -> NativeAddr {
        let (gid, qpn) = match self {
            Self::Gid(gid, qpn) => (gid, qpn),
            // Within the subnet the way goes by LID, whatever the rest of the GID.
            Self::Lid(_, qpn) => {
                let mut gid = [0; 16];
                gid[..8].copy_from_slice(&own.gid[..8]);
                (gid, qpn)
            }
        };
        NativeAddr {
            incarnation: 0,
            node: 0,
            shm: None,
            verbs: Some(VerbsAddr {
                gid,
                lid,
                qpn,
                ..*own
            }),
        }
    }
}

/// The GID of the sender, as the routing header has it; `None` for what is no such header.
pub(super) fn sender_gid(header: &[u8; UdQp::HEADER_BYTES]) -> Option<[u8; 16]> {
    let ipv4 = &header[IPV4_AT..];
    // Undefined bytes may look like version 6 by accident: a checksum that holds tells.
    let is_ipv4 = ipv4[0] == 0x45 && (header[0] >> 4 != 6 || checksum_holds(ipv4));
    let mut gid = [0; 16];
    if is_ipv4 {
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&ipv4[12..16]);
    } else if header[0] >> 4 == 6 {
        gid.copy_from_slice(&header[8..24]);
    } else {
        return None;
    }
    Some(gid)
}

/// Whether the words of an IPv4 header add up (RFC 791 section 3.1).
fn checksum_holds(header: &[u8]) -> bool {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    (folded >> 16) + (folded & 0xffff) == 0xffff
}

/// The addresses of an address vector by where their datagrams come from.
#[derive(Default)]
pub(super) struct Sources {
    by_source: HashMap<Source, FiAddr>,
    peers: HashMap<FiAddr, VerbsAddr>,
}

impl Sources {
    /// `peer` is at `addr` from now on.
    pub(super) fn insert(&mut self, addr: FiAddr, peer: &VerbsAddr) {
        for source in sources_of(peer).into_iter().flatten() {
            self.by_source.insert(source, addr);
        }
        self.peers.insert(addr, *peer);
    }

    /// Nobody is at `addr` any more. Whoever has the queue pair now that was there stays.
    pub(super) fn remove(&mut self, addr: FiAddr) {
        let Some(peer) = self.peers.remove(&addr) else {
            return;
        };
        for source in sources_of(&peer).into_iter().flatten() {
            if self.by_source.get(&source) == Some(&addr) {
                self.by_source.remove(&source);
            }
        }
    }

    /// The address of a sender, [`FiAddr::NOTAVAIL`] when it is not in the address vector.
    #[inline]
    pub(super) fn find(&self, source: Source) -> FiAddr {
        let found = self.by_source.get(&source).copied();
        found.unwrap_or(FiAddr::NOTAVAIL)
    }
}

/// What the datagrams of a peer may say.
fn sources_of(peer: &VerbsAddr) -> [Option<Source>; 2] {
    let by_lid = peer.gid_kind == GidKind::Ib && peer.lid != 0;
    [
        Some(Source::Gid(peer.gid, peer.qpn)),
        by_lid.then_some(Source::Lid(peer.lid, peer.qpn)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ipv4_header(from: [u8; 4], to: [u8; 4], id: u16) -> [u8; 20] {
        let mut header = [0; 20];
        header[0] = 0x45;
        header[2..4].copy_from_slice(&68u16.to_be_bytes());
        header[4..6].copy_from_slice(&id.to_be_bytes());
        header[8..10].copy_from_slice(&[64, 17]);
        header[12..16].copy_from_slice(&from);
        header[16..].copy_from_slice(&to);
        let sum: u32 = header
            .chunks(2)
            .map(|w| u32::from(w[0]) << 8 | u32::from(w[1]))
            .sum();
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = !(((sum >> 16) + (sum & 0xffff)) as u16);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header
    }

    fn peer(gid_kind: GidKind, gid: u8, lid: u16, qpn: u32) -> VerbsAddr {
        VerbsAddr {
            gid: [gid; 16],
            gid_kind,
            qpn,
            qkey: 0,
            lid,
            pkey: 0xffff,
            sl: 0,
            port: 1,
            mtu_bytes: 1024,
        }
    }

    /// Covers: AV-25
    #[test]
    fn who_is_inserted_by_the_name_that_a_datagram_gives_is_known() {
        for (kind, lid) in [(GidKind::RoceV2, 0), (GidKind::Ib, 5)] {
            let own = peer(kind, 1, lid, 20);
            let by_lid = (lid != 0).then_some(Source::Lid(7, 17));
            for source in by_lid.into_iter().chain([Source::Gid([1; 16], 17)]) {
                let slid = if lid == 0 { 0 } else { 7 };
                let name = source.name(slid, &own);
                assert_eq!(NativeAddr::from_bytes(&name.to_bytes()), Ok(name));
                let mut sources = Sources::default();
                sources.insert(FiAddr(3), &name.verbs.unwrap());
                assert_eq!(sources.find(source), FiAddr(3), "{source:?}");
                assert_eq!(sources.find(Source::Gid([1; 16], 18)), FiAddr::NOTAVAIL);
            }
        }
    }

    proptest! {
        /// Covers: AV-25
        #[test]
        fn an_ipv4_header_names_its_sender_whatever_is_before_it(
            junk in any::<[u8; 20]>(),
            from in any::<[u8; 4]>(),
            to in any::<[u8; 4]>(),
            id in any::<u16>(),
        ) {
            let mut header = [0; 40];
            header[..20].copy_from_slice(&junk);
            header[20..].copy_from_slice(&ipv4_header(from, to, id));
            let mapped = std::net::Ipv4Addr::from(from).to_ipv6_mapped().octets();
            prop_assert_eq!(sender_gid(&header), Some(mapped));
        }

        /// Covers: AV-25
        #[test]
        fn a_routing_header_names_its_sender(
            mut header in any::<[u8; 40]>(),
            gid in any::<[u8; 16]>(),
        ) {
            header[0] = 0x60 | header[0] & 0xf;
            header[8..24].copy_from_slice(&gid);
            prop_assume!(!(header[20] == 0x45 && checksum_holds(&header[20..])));
            prop_assert_eq!(sender_gid(&header), Some(gid));
        }
    }

    #[test]
    fn a_checksum_is_of_all_words_and_their_carries() {
        let mut header = ipv4_header([10, 1, 0, 1], [10, 1, 0, 2], 0xfffe);
        assert!(checksum_holds(&header));
        for at in 0..20 {
            header[at] ^= 1;
            assert!(!checksum_holds(&header), "byte {at}");
            header[at] ^= 1;
        }
    }

    #[test]
    fn what_is_no_header_names_nobody() {
        assert_eq!(sender_gid(&[0; 40]), None);
        let mut other = [0; 40];
        (other[0], other[20]) = (0x50, 0x46);
        assert_eq!(sender_gid(&other), None);
    }

    /// Covers: AV-25
    #[test]
    fn the_last_that_has_a_queue_pair_is_its_owner() {
        let mut sources = Sources::default();
        let (old, new, other) = (FiAddr(1), FiAddr(2), FiAddr(3));
        let at = peer(GidKind::RoceV2, 7, 0, 17);
        sources.insert(old, &at);
        sources.insert(new, &at);
        sources.insert(other, &peer(GidKind::RoceV2, 7, 0, 18));
        let source = Source::Gid([7; 16], 17);
        assert_eq!(sources.find(source), new);
        sources.remove(old);
        assert_eq!(sources.find(source), new);
        sources.remove(new);
        assert_eq!(sources.find(source), FiAddr::NOTAVAIL);
        assert_eq!(sources.find(Source::Gid([7; 16], 18)), other);
        assert_eq!(sources.find(Source::Gid([8; 16], 18)), FiAddr::NOTAVAIL);
    }

    #[test]
    fn infiniband_has_two_ways_to_say_it_and_ethernet_one() {
        let mut sources = Sources::default();
        let (ib, roce) = (peer(GidKind::Ib, 1, 5, 17), peer(GidKind::RoceV1, 2, 5, 18));
        sources.insert(FiAddr(1), &ib);
        sources.insert(FiAddr(2), &roce);
        assert_eq!(sources.find(Source::Lid(5, 17)), FiAddr(1));
        assert_eq!(sources.find(Source::Gid([1; 16], 17)), FiAddr(1));
        assert_eq!(sources.find(Source::Lid(5, 18)), FiAddr::NOTAVAIL);
        assert_eq!(sources.find(Source::Gid([2; 16], 18)), FiAddr(2));
        sources.remove(FiAddr(1));
        assert_eq!(sources.find(Source::Lid(5, 17)), FiAddr::NOTAVAIL);
        assert_eq!(sources.find(Source::Gid([1; 16], 17)), FiAddr::NOTAVAIL);
    }
}
