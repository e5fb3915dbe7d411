//! Path records of a subnet manager, down to the address handles and connections that packets take
//! their path from. The device and the manager are fakes: the real connection manager is used by
//! `hw-tests/tests/integration/path_records.rs`, and no InfiniBand network is at hand.

#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ferrofabric_conformance::ends::{PATIENCE, QueuedEndpoint, QueuedPair, any_tagged};
use ferrofabric_conformance::limits::settings;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::{Flags, Mode};
use ferrofabric_contracts::info::EpType;
use ferrofabric_contracts::types::{MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_fake_device::control::{
    FakeDevice, INFINIBAND, LiveObjects, PathView, ROCE, ROUTER_LID,
};
use ferrofabric_fake_manager::control::{self, Answer, FakeManager, RecordRequest};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_verbs::VerbsProvider;
use ferrofabric_verbs_sys::ibv_qp_type;

/// A subnet beside the default one.
const OTHER_SUBNET: [u8; 8] = [0xfe, 0xc0, 0, 0, 0, 0, 0, 7];

/// The path between the subnets, as the manager has it.
const THROUGH_ROUTER: Answer = Answer {
    errno: 0,
    lid: ROUTER_LID,
    service_level: 5,
    rate: 7,
    mtu: 4,
    hop_limit: 3,
    traffic_class: 0x28,
    flow_label: 0x1_2345,
};

/// The LID of the port.
const OWN_LID: u16 = 7;

/// The path within the subnet.
const WITHIN_SUBNET: Answer = Answer {
    lid: OWN_LID,
    service_level: 6,
    rate: 7,
    mtu: 5,
    ..NO_ANSWER
};

const NO_ANSWER: Answer = Answer {
    errno: 0,
    lid: 0,
    service_level: 0,
    rate: 0,
    mtu: 0,
    hop_limit: 0,
    traffic_class: 0,
    flow_label: 0,
};

const fn error(errno: Errno) -> Answer {
    Answer {
        errno: errno.0,
        ..NO_ANSWER
    }
}

/// A domain on the InfiniBand device, in the subnet that the port is in now.
fn domain_of(ep_type: EpType, pairs: &[(&str, &str)]) -> Arc<dyn Domain> {
    let own = [("FERRO_SHM", "off"), ("FERRO_DEVICE", INFINIBAND)];
    let all: Vec<_> = pairs.iter().chain(&own).copied().collect();
    let settings = settings(&all);
    let found = VerbsProvider::new().discover(&settings);
    let mut all = found.candidates.iter();
    let info = all.find(|info| info.ep.ep_type == ep_type && info.mode == Mode::empty());
    VerbsProvider::new().open(info.unwrap(), &settings).unwrap()
}

fn domain(pairs: &[(&str, &str)]) -> Arc<dyn Domain> {
    domain_of(EpType::Rdm, pairs)
}

/// A message each way.
fn exchange(pair: &QueuedPair, tag: u64) {
    let back = SendOp {
        dest: pair.to_a,
        ..pair.tagged(tag)
    };
    for (from, to, send) in [
        (&pair.a, &pair.b, pair.tagged(tag)),
        (&pair.b, &pair.a, back),
    ] {
        let recv = any_tagged(to.context());
        to.recv(&recv, &[to.memory(3000, 0)]).unwrap();
        from.send(to, send, 3000, 1);
        assert_eq!(pair.wait(&to.rx, recv.context).unwrap().tag, tag);
        pair.wait(&from.tx, send.context).unwrap();
    }
}

/// The paths of an endpoint's connections and address handles. It has a domain of its own.
fn paths(device: &FakeDevice, end: &QueuedEndpoint) -> Vec<PathView> {
    let all = device.queue_pairs();
    let number = end.endpoint.name().verbs.unwrap().qpn;
    let pd = all.iter().find(|qp| qp.number == number).unwrap().pd;
    let connections = (all.iter())
        .filter(|qp| qp.pd == pd && qp.kind == ibv_qp_type::IBV_QPT_RC.0)
        .map(|qp| qp.path);
    let handles = device.handles();
    let handles = handles.iter().filter(|handle| handle.pd == pd);
    connections
        .chain(handles.map(|handle| handle.path))
        .collect()
}

fn gid(end: &QueuedEndpoint) -> [u8; 16] {
    end.endpoint.name().verbs.unwrap().gid
}

fn assert_clean(device: &FakeDevice, manager: &FakeManager) {
    // A thread that resolves a path may be on its way out.
    let begun = Instant::now();
    let are_left = || {
        device.live() != LiveObjects::default() || manager.live() != control::LiveObjects::default()
    };
    while are_left() && begun.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    assert_eq!(device.live(), LiveObjects::default(), "objects are left");
    assert_eq!(manager.live(), control::LiveObjects::default());
    assert_eq!(device.misuse(), "");
}

/// The path to a peer in another subnet is the one that the manager has: it leads to the router,
/// with a routing header, and has the other attributes of the record. Both ends send a request for
/// it.
#[test]
fn paths_to_another_subnet_lead_through_the_router() {
    let device = FakeDevice::take();
    let manager = FakeManager::take();
    for (lane, connections) in [("rc", 1), ("ud", 0)] {
        device.reset();
        manager.script(&[THROUGH_ROUTER]);
        let here = domain(&[("FERRO_LANE", lane)]);
        device.move_to_subnet(OTHER_SUBNET);
        let there = domain(&[("FERRO_LANE", lane)]);
        let pair = QueuedPair::open(&*here, &*there);
        exchange(&pair, 1);
        let recorded = PathView {
            is_global: true,
            traffic_class: 0x28,
            hop_limit: 3,
            service_level: 5,
            static_rate: 7,
            lid: ROUTER_LID,
            flow_label: 0x1_2345,
        };
        for end in [&pair.a, &pair.b] {
            assert_eq!(
                paths(&device, end),
                vec![recorded; connections + 1],
                "{lane}"
            );
        }
        let (a, b) = (gid(&pair.a), gid(&pair.b));
        assert_ne!(a[..8], b[..8]);
        let request = |from, to| RecordRequest {
            from,
            to,
            pkey: 0xffff,
        };
        let requests: BTreeSet<_> = manager.requests().into_iter().collect();
        assert_eq!(requests, BTreeSet::from([request(a, b), request(b, a)]));
        drop((pair, here, there));
        assert_clean(&device, &manager);
    }
}

/// A connection has the MTU of the path, where that is smaller than those of both ports.
#[test]
fn a_connection_has_the_mtu_of_its_path() {
    let device = FakeDevice::take();
    let manager = FakeManager::take();
    for (record, expected) in [(4, 4), (5, 5), (0, 5), (63, 5)] {
        device.reset();
        manager.script(&[Answer {
            mtu: record,
            ..THROUGH_ROUTER
        }]);
        let here = domain(&[("FERRO_LANE", "rc")]);
        device.move_to_subnet(OTHER_SUBNET);
        let pair = QueuedPair::open(&*here, &*domain(&[("FERRO_LANE", "rc")]));
        exchange(&pair, 1);
        let all = device.queue_pairs();
        let connections = all.iter().filter(|qp| qp.kind == ibv_qp_type::IBV_QPT_RC.0);
        let mtus: Vec<_> = connections.map(|qp| qp.mtu).collect();
        assert_eq!(mtus, [expected; 2], "a record with an MTU of {record}");
        drop((pair, here));
        assert_clean(&device, &manager);
    }
}

/// Within a subnet the setting decides. Attributes that another setting chooses stay.
#[test]
fn a_setting_requests_records_within_a_subnet() {
    let device = FakeDevice::take();
    let manager = FakeManager::take();
    for (choice, level, requests, expected) in [
        ("auto", "auto", false, 0),
        ("off", "auto", false, 0),
        ("on", "auto", true, 6),
        ("on", "2", true, 2),
    ] {
        for lane in ["rc", "ud"] {
            device.reset();
            manager.script(&[WITHIN_SUBNET]);
            let pairs = [
                ("FERRO_LANE", lane),
                ("FERRO_PATH_RECORDS", choice),
                ("FERRO_SERVICE_LEVEL", level),
            ];
            let pair = QueuedPair::open(&*domain(&pairs), &*domain(&pairs));
            exchange(&pair, 1);
            let what = format!("{choice}, service level {level}, lane {lane}");
            assert_eq!(!manager.requests().is_empty(), requests, "{what}");
            for path in paths(&device, &pair.a) {
                let within = (path.is_global, path.lid, path.service_level);
                assert_eq!(within, (false, OWN_LID, expected), "{what}");
            }
            drop(pair);
            assert_clean(&device, &manager);
        }
    }
}

/// On Ethernet the addresses of peers have all that a path needs.
#[test]
fn paths_on_ethernet_need_no_record() {
    let device = FakeDevice::take();
    let manager = FakeManager::take();
    let pairs = [("FERRO_DEVICE", ROCE)];
    let pair = QueuedPair::open(&*domain(&pairs), &*domain(&pairs));
    exchange(&pair, 1);
    assert_eq!(manager.requests(), []);
    drop(pair);
    assert_clean(&device, &manager);
}

/// A manager that does not answer gets the request again.
#[test]
fn a_request_without_an_answer_is_repeated() {
    let device = FakeDevice::take();
    let manager = FakeManager::take();
    let late = error(Errno::ETIMEDOUT);
    manager.script(&[late, late, late, THROUGH_ROUTER]);
    let here = domain(&[]);
    device.move_to_subnet(OTHER_SUBNET);
    let pair = QueuedPair::open(&*here, &*domain(&[]));
    exchange(&pair, 1);
    assert!(manager.requests().len() >= 5, "{:?}", manager.requests());
    drop((pair, here));
    assert_clean(&device, &manager);
}

/// A send to a peer to which the manager knows no path fails: without the record, packets would go
/// to the port with the peer's LID in this subnet.
#[test]
fn a_send_without_a_path_fails() {
    let device = FakeDevice::take();
    let manager = FakeManager::take();
    for kind in [EpType::Rdm, EpType::Dgram] {
        device.reset();
        manager.script(&[error(Errno::EINVAL)]);
        let here = domain_of(kind, &[]);
        let from = QueuedEndpoint::open(&*here);
        device.move_to_subnet(OTHER_SUBNET);
        let to = QueuedEndpoint::open(&*domain_of(kind, &[]));
        let dest = from.av.insert(&to.endpoint.name().to_bytes()).unwrap();
        let context = from.context();
        from.send_alone(untagged(dest, context), 8, 1);
        let failed = from.tx.next_alone().unwrap_err();
        assert_eq!(failed.errno, Errno::EHOSTUNREACH, "{failed:?}");
        assert!(!manager.requests().is_empty());
        drop((from, to, here));
        assert_clean(&device, &manager);
    }
}

fn untagged(dest: ferrofabric_contracts::types::FiAddr, context: u64) -> SendOp {
    SendOp {
        kind: MsgKind::Msg,
        dest,
        tag: 0,
        data: 0,
        desc: MrDesc::NONE,
        context,
        flags: Flags::COMPLETION,
    }
}

/// Datagram endpoints reach another subnet as others do.
#[test]
fn datagrams_to_another_subnet_lead_through_the_router() {
    let device = FakeDevice::take();
    let manager = FakeManager::take();
    manager.script(&[THROUGH_ROUTER]);
    let here = domain_of(EpType::Dgram, &[]);
    let from = QueuedEndpoint::open(&*here);
    device.move_to_subnet(OTHER_SUBNET);
    let to = QueuedEndpoint::open(&*domain_of(EpType::Dgram, &[]));
    let dest = from.av.insert(&to.endpoint.name().to_bytes()).unwrap();
    let recv = RecvOp {
        kind: MsgKind::Msg,
        ..any_tagged(to.context())
    };
    to.recv(&recv, &[to.memory(8, 0)]).unwrap();
    let context = from.context();
    from.send_alone(untagged(dest, context), 8, 1);
    from.tx.next_alone().unwrap();
    to.rx.next_alone().unwrap();
    let paths = paths(&device, &from);
    assert_eq!(paths.len(), 1);
    assert_eq!((paths[0].lid, paths[0].service_level), (ROUTER_LID, 5));
    drop((from, to, here));
    assert_clean(&device, &manager);
}
