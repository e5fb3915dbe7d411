//! Traffic classes of messages, as the network sees them: packets of an endpoint are captured on
//! their way between two devices. Run with `scripts/vm --netem`.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::info::traffic_class;
use ferrofabric_hw_tests::dgram::PATIENCE;
use ferrofabric_hw_tests::{Rig, offers, party};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use serial_test::file_serial;

/// UDP port of RoCE v2 (IBTA annex A17.8).
const PORT: u16 = 4791;

/// Opcodes of datagrams are from here on, those of reliable connections are below (IBTA 1.5 table
/// 38).
const DATAGRAMS: u8 = 0x60;

/// A socket that gets a copy of every packet of this machine.
struct Capture(OwnedFd);

/// The host that a packet comes from (the last byte of its address), the type of service in its IP
/// header, and whether it is of a connection.
type SeenPacket = (u8, u8, bool);

impl Capture {
    fn open() -> Self {
        let every = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: takes numbers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, every.into()) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: it is new, and nobody else's.
        Self(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Adds packets of RoCE that have come since the last call.
    fn collect(&self, seen: &mut BTreeSet<SeenPacket>) {
        let mut packet = [0u8; 64];
        loop {
            // SAFETY: there is room for as many bytes as is said.
            let len = unsafe {
                libc::recv(
                    self.0.as_raw_fd(),
                    packet.as_mut_ptr().cast(),
                    packet.len(),
                    0,
                )
            };
            if len < 0 {
                return;
            }
            // A header of IP version 4 without options, one of UDP, and the first byte of RoCE's.
            let port = u16::from_be_bytes([packet[22], packet[23]]);
            let is_udp = packet[0] == 0x45 && packet[9] == libc::IPPROTO_UDP as u8;
            if len > 28 && is_udp && port == PORT {
                seen.insert((packet[15], packet[1], packet[28] < DATAGRAMS));
            }
        }
    }
}

fn endpoint(device: &str, lane: &str, class: u32) -> OwningEndpoint {
    let settings = [
        ("FERRO_SHM", "off"),
        ("FERRO_DEVICE", device),
        ("FERRO_LANE", lane),
    ];
    let domain = offers::domain(&offers::settings(&settings));
    let of_class =
        |config: &mut ferrofabric_runtime::fabric::EndpointConfig| config.tx.tclass = class;
    OwningEndpoint::open_with(&*domain, &AvAttr::default(), of_class).unwrap()
}

/// All packets of an endpoint have its class: the handshake, messages, acknowledgements, and the
/// data that a peer reads from it.
///
/// Covers: GI-2
#[test]
#[file_serial(verbs)]
fn every_packet_of_an_endpoint_has_its_class() {
    if Rig::open().is_none() {
        return;
    }
    for lane in ["rc", "ud"] {
        let capture = Capture::open();
        let mut a = endpoint("ferro_rxe0", lane, traffic_class::of_dscp(10));
        let mut b = endpoint("ferro_rxe1", lane, traffic_class::BULK_DATA);
        let hosts = [&a, &b].map(|end| end.name().verbs.unwrap().gid[15]);
        let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
        let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
        let mut seen = BTreeSet::new();
        for (tag, len) in [(0, 8), (1, 3000)] {
            let mut out = Buffer::new(len).unwrap();
            party::fill(&mut out, tag);
            b.trecv(Buffer::new(len).unwrap(), to_a, tag, 0, 1).unwrap();
            a.trecv(Buffer::new(len).unwrap(), to_b, tag, 0, 2).unwrap();
            a.tsend(out, len, to_b, tag, 3).unwrap();
            b.tsend(Buffer::new(len).unwrap(), len, to_a, tag, 4)
                .unwrap();
            let (mut left, until) = (4, Instant::now() + PATIENCE);
            while left > 0 {
                assert!(Instant::now() < until, "{lane}: message {tag}: {seen:?}");
                capture.collect(&mut seen);
                for end in [&mut a, &mut b] {
                    let Some(done) = end.poll().unwrap() else {
                        continue;
                    };
                    left -= 1;
                    done.outcome.unwrap();
                    if done.token == 1 {
                        party::check(&done.buffer[..len], tag, "the message");
                    }
                }
            }
        }
        capture.collect(&mut seen);
        // Each has the bits for congestion; a label has the class that is the default on RoCE v2.
        let marks = [(hosts[0], (10 << 2) | 2), (hosts[1], 106)];
        // Packets of the endpoints before may still be on their way.
        let wrong = seen.iter().find(|one| !marks.contains(&(one.0, one.1)));
        assert_eq!(wrong, None, "{lane}: {seen:?}");
        for (host, mark) in marks {
            assert!(seen.contains(&(host, mark, false)), "{lane}: {seen:?}");
            assert!(
                lane == "ud" || seen.contains(&(host, mark, true)),
                "{lane}: {seen:?}"
            );
        }
    }
}
