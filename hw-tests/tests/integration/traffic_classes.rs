//! Traffic classes on a device: datagrams show in their header what their sender was to mark them
//! with, and messages go through lanes of a class.

use std::time::Instant;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::info::traffic_class;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::dgram::{self, PrefixRoom, next};
use ferrofabric_hw_tests::{Rig, offers, party};
use ferrofabric_runtime::fabric::Domain;
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use serial_test::file_serial;

/// The place of the traffic class in a header of IP version 4: of the 40 bytes, those before the
/// header are undefined.
const TYPE_OF_SERVICE: usize = 21;

/// The byte on RoCE v2 if nobody chooses a class, and its two bits for congestion, which it has in
/// any class.
const DEFAULT: u8 = 106;
const CONGESTION: u8 = 2;

/// The class that the header before a datagram shows, as a device has it.
fn shown(header: &[u8], ipv4: bool) -> u8 {
    match ipv4 {
        true => header[TYPE_OF_SERVICE],
        false => (header[0] << 4) | (header[1] >> 4),
    }
}

fn of_class(domain: &dyn Domain, class: u32) -> OwningEndpoint {
    OwningEndpoint::open_with(domain, &AvAttr::default(), |config| {
        config.tx.tclass = class
    })
    .unwrap()
}

/// Covers: GI-2
#[test]
#[file_serial(verbs)]
fn a_datagram_shows_the_class_of_its_sender() {
    let Some(rig) = Rig::open() else { return };
    let ipv4 = rig.gid.0[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
    let dscp = traffic_class::of_dscp;
    for (of_domain, own, mark) in [
        (traffic_class::UNSPEC, traffic_class::UNSPEC, DEFAULT),
        (dscp(10), traffic_class::UNSPEC, (10 << 2) | CONGESTION),
        (traffic_class::BEST_EFFORT, dscp(46), (46 << 2) | CONGESTION),
        (dscp(10), dscp(1), (1 << 2) | CONGESTION),
        (dscp(10), traffic_class::LOW_LATENCY, DEFAULT),
    ] {
        let mut info = dgram::info(&[], PrefixRoom::Room);
        info.domain.tclass = of_domain;
        let domain = dgram::open(&info);
        let mut to = of_class(&*domain, traffic_class::UNSPEC);
        let mut from = of_class(&*domain, own);
        let dest = from.av().insert(&to.name().to_bytes()).unwrap();
        let known = to.av().insert(&from.name().to_bytes()).unwrap();
        let len = PrefixRoom::Room.bytes() + 8;
        to.recv(Buffer::new(len).unwrap(), FiAddr::UNSPEC, 1)
            .unwrap();
        from.send(Buffer::new(len).unwrap(), len, dest, None, 2)
            .unwrap();
        next(&mut from, "the send").outcome.unwrap();
        let done = next(&mut to, "the datagram");
        let src = done.outcome.unwrap().src;
        assert_eq!((shown(&done.buffer, ipv4), src), (mark, known));
    }
}

/// Messages of both kinds of lane, some of which a peer reads by itself, between endpoints of
/// different classes.
///
/// Covers: GI-2
#[test]
#[file_serial(verbs)]
fn messages_go_between_endpoints_of_different_classes() {
    let Some(_rig) = Rig::open() else { return };
    for lane in ["rc", "ud", "auto"] {
        let settings = offers::settings(&[("FERRO_SHM", "off"), ("FERRO_LANE", lane)]);
        let open = |class| of_class(&*offers::domain(&settings), class);
        let mut a = open(traffic_class::of_dscp(26));
        let mut b = open(traffic_class::BULK_DATA);
        let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
        let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
        for (tag, len) in [(0, 8), (1, 3000), (2, 1 << 20)] {
            let mut out = Buffer::new(len).unwrap();
            party::fill(&mut out, tag);
            b.trecv(Buffer::new(len).unwrap(), to_a, tag, 0, 1).unwrap();
            a.tsend(out, len, to_b, tag, 2).unwrap();
            let (mut left, until) = (2, Instant::now() + dgram::PATIENCE);
            while left > 0 {
                assert!(Instant::now() < until, "{lane}: message {tag}");
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
    }
}
