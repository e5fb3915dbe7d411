//! Ranges of nodes and services over shared memory (`fi_av_insertsym` of fi_av(3)). A resolver of
//! the test finds the endpoint of each socket address, and messages show which endpoint each entry
//! reaches.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ferrofabric_av::{AvAttr, Resolve, Services};
use ferrofabric_conformance::limits::{PATIENCE, settings};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::types::{AvType, FiAddr};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use ferrofabric_shm::ShmProvider;

fn domain() -> Arc<dyn Domain> {
    let (provider, settings) = (ShmProvider::new(), settings(&[]));
    let found = provider.discover(&settings);
    let info = found.candidates.first().unwrap();
    provider.open(info, &settings).unwrap()
}

/// The endpoints by their socket addresses.
#[derive(Debug)]
struct SocketListeners(HashMap<SocketAddr, NativeAddr>);

impl Resolve for SocketListeners {
    fn resolve(&self, at: SocketAddr) -> Result<NativeAddr, Error> {
        let found = self.0.get(&at).copied();
        found.ok_or_else(|| Error::new(Errno::ECONNREFUSED, "resolve", at.to_string()))
    }
}

/// Inserts a range; the results in order.
fn insert(from: &OwningEndpoint, range: &Services) -> Vec<FiAddr> {
    let mut addrs = Vec::new();
    let inserted = from.av().insert_services(range, &mut |number, one| {
        assert_eq!(number, addrs.len());
        addrs.push(one.unwrap());
    });
    assert_eq!(inserted.unwrap(), addrs.len());
    addrs
}

/// The index of the endpoint that a message to an address reaches.
fn reaches(from: &mut OwningEndpoint, to: FiAddr, peers: &mut [OwningEndpoint]) -> usize {
    from.tsend(Buffer::new(8).unwrap(), 8, to, 1, 0).unwrap();
    let (until, mut sent, mut at) = (Instant::now() + PATIENCE, false, None);
    while !sent || at.is_none() {
        if let Some(done) = from.poll().unwrap() {
            done.outcome.unwrap();
            sent = true;
        }
        for (number, peer) in peers.iter_mut().enumerate() {
            if let Some(done) = peer.poll().unwrap() {
                done.outcome.unwrap();
                assert!(at.replace(number).is_none(), "the message comes twice");
                receive(peer);
            }
        }
        assert!(Instant::now() < until, "sent {sent}, received at {at:?}");
    }
    at.unwrap()
}

fn receive(peer: &mut OwningEndpoint) {
    let buffer = Buffer::new(8).unwrap();
    peer.trecv(buffer, FiAddr::UNSPEC, 1, 0, 0).unwrap();
}

/// All services of a node come before the next node, and octets carry over: each entry leads to the
/// endpoint at its place, in a table by its index.
///
/// Covers: AV-9, AV-15, AV-16
#[test]
fn a_range_leads_to_its_endpoints_in_order() {
    for (node, places) in [
        (
            "10.1.1.255",
            [
                "10.1.1.255:65534",
                "10.1.1.255:65535",
                "10.1.2.0:65534",
                "10.1.2.0:65535",
            ],
        ),
        (
            "fd00::ffff",
            [
                "[fd00::ffff]:65534",
                "[fd00::ffff]:65535",
                "[fd00::1:0]:65534",
                "[fd00::1:0]:65535",
            ],
        ),
    ] {
        for (av_type, symmetric) in [
            (AvType::Map, false),
            (AvType::Table, false),
            (AvType::Map, true),
            (AvType::Table, true),
        ] {
            let domain = domain();
            let open = || OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap();
            let mut peers: Vec<_> = places.iter().map(|_| open()).collect();
            peers.iter_mut().for_each(receive);
            let names = peers.iter().map(OwningEndpoint::name);
            let sockets = places.iter().map(|place| place.parse().unwrap());
            let listeners = Arc::new(SocketListeners(sockets.zip(names).collect()));
            let attr = AvAttr {
                av_type: Some(av_type),
                symmetric,
                resolver: Some(listeners),
                ..AvAttr::default()
            };
            let mut hub = OwningEndpoint::open(&*domain, &attr).unwrap();
            for (none, nodes, service, services) in [
                (node, 2, "65535", 2),
                (node, 0, "65534", 2),
                (node, 2, "65534", 0),
                (node, 2, "no-such-service", 2),
                ("host", 2, "65534", 2),
            ] {
                let refused = Services::range(none, nodes, service, services);
                assert_eq!(refused.unwrap_err().errno(), Errno::EINVAL);
            }
            let range = Services::range(node, 2, "65534", 2).unwrap();
            let addrs = insert(&hub, &range);
            if av_type == AvType::Table {
                assert!((0..4).map(FiAddr).eq(addrs.iter().copied()));
            }
            for (number, addr) in addrs.iter().enumerate() {
                let at = reaches(&mut hub, *addr, &mut peers);
                assert_eq!(at, number, "{:?}", places[number]);
            }
            // The same endpoint, inserted by itself, has the same entry.
            let one = Services::one(&node.replace('[', ""), Some("65535")).unwrap();
            assert_eq!(insert(&hub, &one), [addrs[1]]);
        }
    }
}

/// An endpoint was inserted by its native address, and has a second entry by its socket address.
/// Once that is resolved, a receive from either entry takes its messages, which name the first
/// entry. (A receive from the second one that was posted before stays: docs/adr/0042.)
///
/// Covers: AV-23
#[test]
fn a_receive_from_the_second_name_of_an_endpoint_takes_its_messages() {
    let domain = domain();
    let mut peer = OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap();
    let at = "10.1.1.1:5000".parse().unwrap();
    let attr = AvAttr {
        resolver: Some(Arc::new(SocketListeners(HashMap::from([(
            at,
            peer.name(),
        )])))),
        ..AvAttr::default()
    };
    let mut hub = OwningEndpoint::open(&*domain, &attr).unwrap();
    let first = hub.av().insert(&peer.name().to_bytes()).unwrap();
    let one = Services::one("10.1.1.1", Some("5000")).unwrap();
    let second = insert(&hub, &one)[0];
    assert_ne!(first, second);
    let until = Instant::now() + PATIENCE;
    while let Err(error) = hub.av().lookup(second) {
        assert_eq!(error.errno(), Errno::EAGAIN);
        assert!(Instant::now() < until, "not resolved");
        std::thread::yield_now();
    }
    assert_eq!(hub.av().lookup(second).unwrap(), peer.name());
    let to_hub = peer.av().insert(&hub.name().to_bytes()).unwrap();
    for (token, source) in [(1, second), (2, first), (3, second)] {
        let room = Buffer::new(8).unwrap();
        hub.trecv(room, source, 1, 0, token).unwrap();
        peer.tsend(Buffer::new(8).unwrap(), 8, to_hub, 1, 9)
            .unwrap();
        let (mut sent, mut came) = (false, None);
        while !sent || came.is_none() {
            sent |= peer.poll().unwrap().is_some();
            came = came.or(hub.poll().unwrap());
            assert!(Instant::now() < until, "message {token}: sent {sent}");
        }
        let came = came.unwrap();
        assert_eq!((came.token, came.outcome.unwrap().src), (token, first));
    }
}
