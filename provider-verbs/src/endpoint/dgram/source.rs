//! The source of a datagram: the routing header before it, and the map from path and queue pair to
//! an entry of the address vector.

use ferrofabric_av::EntryIndex;
use ferrofabric_contracts::addr::{GidKind, NativeAddr, VerbsAddr};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::prefetch::prefetch;

use super::POLL;
use crate::qp::UdQp;

/// The offset of the header of RoCE v2 over IPv4, which is shorter (IBTA annex A17.4.5.2); the
/// bytes before it are undefined.
const IPV4_AT: usize = 20;

/// The source of a datagram, as far as the datagram names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum DatagramSource {
    /// With a routing header: always on Ethernet, from other subnets on InfiniBand.
    Gid([u8; 16], u32),
    /// Within a subnet of InfiniBand.
    Lid(u16, u32),
}

impl DatagramSource {
    /// The address of the sender, whose datagrams came with this LID, as far as they identify it;
    /// the other fields are those of `own`.
    pub(super) fn name(self, lid: u16, own: &VerbsAddr) -> NativeAddr {
        let (gid, qpn) = match self {
            Self::Gid(gid, qpn) => (gid, qpn),
            // Within the subnet packets are routed by LID, whatever the rest of the GID.
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

/// The GID of the sender, from the routing header; `None` if the bytes are no such header.
pub(super) fn sender_gid(header: &[u8; UdQp::HEADER_BYTES]) -> Option<[u8; 16]> {
    let ipv4 = &header[IPV4_AT..];
    // Undefined bytes may look like version 6 by accident: a correct checksum decides.
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

/// The facts about a peer that identify its datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SourcePeer {
    addr: FiAddr,
    gid: [u8; 16],
    qpn: u32,
    /// The LID of the peer's datagrams in its subnet; 0 if there is none.
    lid: u16,
}

const NOBODY: SourcePeer = SourcePeer {
    addr: FiAddr::NOTAVAIL,
    gid: [0; 16],
    qpn: 0,
    lid: 0,
};

impl SourcePeer {
    /// The sources that the peer's datagrams may name.
    fn sources(&self) -> impl Iterator<Item = DatagramSource> + use<> {
        let by_lid = (self.lid != 0).then_some(DatagramSource::Lid(self.lid, self.qpn));
        std::iter::once(DatagramSource::Gid(self.gid, self.qpn)).chain(by_lid)
    }

    #[inline]
    fn says(&self, source: &DatagramSource) -> bool {
        match *source {
            DatagramSource::Gid(gid, qpn) => self.qpn == qpn && self.gid == gid,
            DatagramSource::Lid(lid, qpn) => self.qpn == qpn && self.lid == lid && lid != 0,
        }
    }
}

/// The entries of an address vector by the source of their datagrams.
#[derive(Default)]
pub(super) struct Sources {
    index: EntryIndex,
    /// Peers by the low 32 bits of their `FiAddr`.
    peers: Vec<SourcePeer>,
}

impl Sources {
    /// `peer` is at `addr` from now on.
    pub(super) fn insert(&mut self, addr: FiAddr, peer: &VerbsAddr) {
        let entry = addr.0 as u32;
        self.take_out(entry);
        let at = entry as usize;
        if self.peers.len() <= at {
            self.peers.resize(at + 1, NOBODY);
        }
        let by_lid = peer.gid_kind == GidKind::Ib;
        let peer = SourcePeer {
            addr,
            gid: peer.gid,
            qpn: peer.qpn,
            lid: if by_lid { peer.lid } else { 0 },
        };
        for source in peer.sources() {
            let hash = self.hash(&source);
            // A queue pair belongs to the peer that was inserted last with it.
            let is_it = |entry| self.at(entry).is_some_and(|p| p.says(&source));
            if let Some(before) = self.index.find(hash, |entry| is_it(entry).then_some(entry)) {
                self.index.remove(hash, before);
            }
            self.index.insert(hash, entry);
        }
        self.peers[at] = peer;
    }

    /// Removes the entry of `addr`. Another peer that has the queue pair now keeps it.
    pub(super) fn remove(&mut self, addr: FiAddr) {
        if self.at(addr.0 as u32).is_some_and(|peer| peer.addr == addr) {
            self.take_out(addr.0 as u32);
        }
    }

    fn take_out(&mut self, entry: u32) {
        let Some(peer) = self.peers.get_mut(entry as usize) else {
            return;
        };
        let gone = std::mem::replace(peer, NOBODY);
        if gone != NOBODY {
            for source in gone.sources() {
                self.index.remove(self.hash(&source), entry);
            }
        }
    }

    #[inline]
    fn at(&self, entry: u32) -> Option<&SourcePeer> {
        self.peers.get(entry as usize)
    }

    #[inline]
    fn hash(&self, source: &DatagramSource) -> u32 {
        let (high, low, qpn) = match source {
            DatagramSource::Gid(gid, qpn) => {
                let gid = u128::from_ne_bytes(*gid);
                ((gid >> 64) as u64, gid as u64, qpn)
            }
            DatagramSource::Lid(lid, qpn) => (0, u64::from(*lid), qpn),
        };
        self.index.hash([high, low, u64::from(*qpn)])
    }

    #[inline]
    fn find_hashed(&self, hash: u32, source: &DatagramSource) -> FiAddr {
        let held = |entry| {
            let peer = self.at(entry)?;
            peer.says(source).then_some(peer.addr)
        };
        self.index.find(hash, held).unwrap_or(FiAddr::NOTAVAIL)
    }

    /// Finds the entries of senders whose datagrams came together: in a large address vector the
    /// waits for memory of their look-ups overlap.
    #[inline]
    pub(super) fn find_all(&self, senders: &mut [DatagramSender]) {
        for senders in senders.chunks_mut(POLL) {
            let mut hashes = [0; POLL];
            for (hash, sender) in hashes.iter_mut().zip(&*senders) {
                if let Some(source) = &sender.source {
                    *hash = self.hash(source);
                    self.index.prefetch(*hash);
                }
            }
            if senders.len() > 1 {
                for (hash, _) in hashes.iter().zip(&*senders) {
                    if let Some(entry) = self.index.find(*hash, Some) {
                        prefetch(self.peers.as_ptr().wrapping_add(entry as usize));
                    }
                }
            }
            for (hash, sender) in hashes.iter().zip(senders) {
                if let Some(source) = &sender.source {
                    sender.addr = self.find_hashed(*hash, source);
                }
            }
        }
    }
}

/// The sender of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DatagramSender {
    /// The source that the datagram names.
    pub(super) source: Option<DatagramSource>,
    /// The entry of the address vector; [`FiAddr::NOTAVAIL`] when there is none.
    pub(super) addr: FiAddr,
}

impl DatagramSender {
    /// A sender that is not known yet.
    pub(super) const UNKNOWN: Self = Self {
        source: None,
        addr: FiAddr::NOTAVAIL,
    };

    /// A sender that has to be found.
    #[inline]
    pub(super) fn at(source: Option<DatagramSource>) -> Self {
        Self {
            source,
            ..Self::UNKNOWN
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

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
            .map(|w| (u32::from(w[0]) << 8) | u32::from(w[1]))
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
    fn a_peer_inserted_by_the_source_of_a_datagram_is_known() {
        for (kind, lid) in [(GidKind::RoceV2, 0), (GidKind::Ib, 5)] {
            let own = peer(kind, 1, lid, 20);
            let by_lid = (lid != 0).then_some(DatagramSource::Lid(7, 17));
            for source in by_lid.into_iter().chain([DatagramSource::Gid([1; 16], 17)]) {
                let slid = if lid == 0 { 0 } else { 7 };
                let name = source.name(slid, &own);
                assert_eq!(NativeAddr::from_bytes(&name.to_bytes()), Ok(name));
                let mut sources = Sources::default();
                sources.insert(FiAddr(3), &name.verbs.unwrap());
                assert_eq!(sources.find(source), FiAddr(3), "{source:?}");
                assert_eq!(
                    sources.find(DatagramSource::Gid([1; 16], 18)),
                    FiAddr::NOTAVAIL
                );
            }
        }
    }

    impl Sources {
        fn find(&self, source: DatagramSource) -> FiAddr {
            let mut senders = [DatagramSender::at(Some(source))];
            self.find_all(&mut senders);
            senders[0].addr
        }
    }

    proptest! {
        /// Peers are inserted, take over queue pairs of others, and are removed: a map by source
        /// gives the same senders, one at a time and many at once.
        ///
        /// Covers: AV-25
        #[test]
        fn senders_are_found_as_in_a_map(
            ops in prop::collection::vec((any::<bool>(), 0u64..40, 0u32..20, 0u8..2, 0u16..3), 0..150),
        ) {
            let (mut sources, mut by_source) = (Sources::default(), HashMap::new());
            let mut peers: HashMap<u64, VerbsAddr> = HashMap::new();
            let says = |at: &VerbsAddr| {
                let by_lid = at.gid_kind == GidKind::Ib && at.lid != 0;
                let by_lid = by_lid.then_some(DatagramSource::Lid(at.lid, at.qpn));
                [Some(DatagramSource::Gid(at.gid, at.qpn)), by_lid].into_iter().flatten()
            };
            for (comes, addr, qpn, gid, lid) in ops {
                // Generations of an entry are above its number.
                let addr = (addr % 20) | ((addr / 20) << 32);
                let one = |other: &u64| other & 0xffff_ffff == addr & 0xffff_ffff;
                let there = peers.keys().copied().find(one);
                match (comes, there) {
                    (true, None) => {
                        let kind = [GidKind::Ib, GidKind::RoceV2][usize::from(gid)];
                        let at = peer(kind, gid, lid, qpn);
                        sources.insert(FiAddr(addr), &at);
                        by_source.extend(says(&at).map(|source| (source, FiAddr(addr))));
                        peers.insert(addr, at);
                    }
                    (true, Some(_)) => {}
                    (false, _) => {
                        sources.remove(FiAddr(addr));
                        if peers.remove(&addr).is_some() {
                            by_source.retain(|_, owner| *owner != FiAddr(addr));
                        }
                    }
                }
            }
            let lids = (0..3).flat_map(|lid| (0..20).map(move |qpn| DatagramSource::Lid(lid, qpn)));
            let gids = (0..2).flat_map(|gid| (0..20).map(move |qpn| DatagramSource::Gid([gid; 16], qpn)));
            let wanted = || lids.clone().chain(gids.clone());
            let mut senders: Vec<_> = wanted().map(|source| DatagramSender::at(Some(source))).collect();
            senders.insert(5, DatagramSender::UNKNOWN);
            sources.find_all(&mut senders);
            prop_assert_eq!(senders.remove(5), DatagramSender::UNKNOWN);
            for (sender, source) in senders.iter().zip(wanted()) {
                let known = by_source.get(&source).copied().unwrap_or(FiAddr::NOTAVAIL);
                prop_assert_eq!((sender.addr, sources.find(source)), (known, known));
            }
        }

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
    fn invalid_headers_name_no_sender() {
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
        let source = DatagramSource::Gid([7; 16], 17);
        assert_eq!(sources.find(source), new);
        sources.remove(old);
        assert_eq!(sources.find(source), new);
        sources.remove(new);
        assert_eq!(sources.find(source), FiAddr::NOTAVAIL);
        assert_eq!(sources.find(DatagramSource::Gid([7; 16], 18)), other);
        assert_eq!(
            sources.find(DatagramSource::Gid([8; 16], 18)),
            FiAddr::NOTAVAIL
        );
    }

    #[test]
    fn infiniband_has_two_ways_to_say_it_and_ethernet_one() {
        let mut sources = Sources::default();
        let (ib, roce) = (peer(GidKind::Ib, 1, 5, 17), peer(GidKind::RoceV1, 2, 5, 18));
        sources.insert(FiAddr(1), &ib);
        sources.insert(FiAddr(2), &roce);
        assert_eq!(sources.find(DatagramSource::Lid(5, 17)), FiAddr(1));
        assert_eq!(sources.find(DatagramSource::Gid([1; 16], 17)), FiAddr(1));
        assert_eq!(sources.find(DatagramSource::Lid(5, 18)), FiAddr::NOTAVAIL);
        assert_eq!(sources.find(DatagramSource::Gid([2; 16], 18)), FiAddr(2));
        sources.remove(FiAddr(1));
        assert_eq!(sources.find(DatagramSource::Lid(5, 17)), FiAddr::NOTAVAIL);
        assert_eq!(
            sources.find(DatagramSource::Gid([1; 16], 17)),
            FiAddr::NOTAVAIL
        );
    }
}
