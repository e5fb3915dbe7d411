//! The traffic class of an endpoint, down to the address handles and connections that its packets
//! take it from.

use std::sync::Arc;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Mode;
use ferrofabric_contracts::info::{EpType, traffic_class};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::{FakeDevice, INFINIBAND, PathView, ROCE};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs::VerbsProvider;
use ferrofabric_verbs_sys::ibv_qp_type;

use crate::endpoints::nic::has_plain_datagrams;
use crate::endpoints::party::{PeerPair, assert_clean, first, message, room, run, settings};

/// A DSCP, and the byte of the routing header that it makes: congestion may be marked.
const DSCP: u8 = 10;
const MARK: u8 = (10 << 2) | 2;

/// The byte on RoCE v2 if nobody chooses another.
const DEFAULT: u8 = 106;

/// A domain for endpoints of a type, whose class of traffic is this one.
fn domain(ep_type: EpType, mode: Mode, tclass: u32, pairs: &[(&str, &str)]) -> Arc<dyn Domain> {
    let settings = settings(pairs);
    let found = VerbsProvider::new().discover(&settings);
    let wanted =
        |info: &&ferrofabric_contracts::info::Info| info.ep.ep_type == ep_type && info.mode == mode;
    let mut info = found.candidates.iter().find(wanted).unwrap().clone();
    info.domain.tclass = tclass;
    VerbsProvider::new().open(&info, &settings).unwrap()
}

/// An endpoint of a class of its own, or (`UNSPEC`) its domain's.
fn endpoint(domain: &dyn Domain, tclass: u32) -> OwningEndpoint {
    let of_class =
        |config: &mut ferrofabric_runtime::fabric::EndpointConfig| config.tx.tclass = tclass;
    OwningEndpoint::open_with(domain, &AvAttr::default(), of_class).unwrap()
}

/// Two endpoints that know each other.
fn acquainted(a: OwningEndpoint, b: OwningEndpoint) -> PeerPair {
    let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
    let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
    PeerPair { a, b, to_b, to_a }
}

/// Traffic classes of an endpoint's connections and of its address handles. It has a domain of its
/// own.
fn marks(device: &FakeDevice, end: &OwningEndpoint) -> (Vec<u8>, Vec<u8>) {
    let (connections, handles) = paths(device, end);
    let marks = |paths: Vec<PathView>| paths.iter().map(|path| path.traffic_class).collect();
    (marks(connections), marks(handles))
}

/// The paths of an endpoint's connections and of its address handles. It has a domain of its own.
fn paths(device: &FakeDevice, end: &OwningEndpoint) -> (Vec<PathView>, Vec<PathView>) {
    let all = device.queue_pairs();
    let number = end.name().verbs.unwrap().qpn;
    let pd = all.iter().find(|qp| qp.number == number).unwrap().pd;
    let connections = all
        .iter()
        .filter(|qp| qp.pd == pd && qp.kind == ibv_qp_type::IBV_QPT_RC.0)
        .map(|qp| qp.path)
        .collect();
    let handles = device.handles();
    let handles = handles.iter().filter(|handle| handle.pd == pd);
    (connections, handles.map(|handle| handle.path).collect())
}

/// The class of the endpoint, or without one that of its domain, is on what it sends, and not on
/// what its peer does.
///
/// Covers: GI-2
#[test]
fn an_endpoint_marks_what_it_sends() {
    let (dscp, unspec) = (traffic_class::of_dscp(DSCP), traffic_class::UNSPEC);
    let best_effort = traffic_class::BEST_EFFORT;
    for (of_domain, own, expected) in [
        (dscp, unspec, MARK),
        (best_effort, dscp, MARK),
        (traffic_class::of_dscp(8), dscp, MARK),
        (dscp, best_effort, DEFAULT),
        (best_effort, traffic_class::LOW_LATENCY, DEFAULT),
        (best_effort, traffic_class::of_dscp(63), (63 << 2) | 2),
        (unspec, unspec, DEFAULT),
    ] {
        for (lane, connections) in [("rc", 1), ("ud", 0)] {
            println!("{of_domain:#x}, {own:#x}, {lane}");
            let device = FakeDevice::take();
            let lane = [("FERRO_LANE", lane)];
            let open = |class| domain(EpType::Rdm, Mode::empty(), class, &lane);
            let mut pair = acquainted(
                endpoint(&*open(of_domain), own),
                endpoint(&*open(best_effort), unspec),
            );
            pair.exchange(8, 0);
            pair.exchange(3000, 1);
            assert_eq!(
                marks(&device, &pair.a),
                (vec![expected; connections], vec![expected])
            );
            assert_eq!(
                marks(&device, &pair.b),
                (vec![DEFAULT; connections], vec![DEFAULT])
            );
            drop(pair);
            assert_clean(&device);
        }
    }
}

/// A connection that takes the place of a broken one has its class.
///
/// Covers: GI-2
#[test]
fn a_class_outlives_a_connection() {
    let device = FakeDevice::take();
    let open = |class| domain(EpType::Rdm, Mode::empty(), class, &[("FERRO_LANE", "rc")]);
    let classes = [traffic_class::of_dscp(DSCP), traffic_class::BEST_EFFORT];
    let [a, b] = classes.map(|class| endpoint(&*open(class), traffic_class::UNSPEC));
    let mut pair = acquainted(a, b);
    pair.exchange(8, 0);
    let before = crate::endpoints::breakage::connections(&device);
    before.iter().for_each(|&qp| device.break_queue_pair(qp));
    pair.exchange(8, 1);
    pair.settle(&device);
    let after = crate::endpoints::breakage::connections(&device);
    assert!(after.iter().all(|qp| !before.contains(qp)), "the old ones");
    assert_eq!(marks(&device, &pair.a).0, [MARK]);
    assert_eq!(marks(&device, &pair.b).0, [DEFAULT]);
    drop(pair);
    assert_clean(&device);
}

/// Endpoints of one domain, each of a class of its own: a datagram shows in its header which sent
/// it.
///
/// Covers: GI-2
#[test]
fn datagrams_of_endpoints_of_one_domain_differ() {
    if !has_plain_datagrams() {
        return;
    }
    // Version 4 has the byte whole, behind the undefined bytes.
    const TYPE_OF_SERVICE: usize = 21;
    let device = FakeDevice::take();
    let own = domain(
        EpType::Dgram,
        Mode::MSG_PREFIX,
        0,
        &[("FERRO_DEVICE", ROCE)],
    );
    let mut to = endpoint(&*own, traffic_class::UNSPEC);
    for (class, mark) in [
        (traffic_class::UNSPEC, DEFAULT),
        (traffic_class::of_dscp(DSCP), MARK),
        (traffic_class::BULK_DATA, DEFAULT),
        (traffic_class::of_dscp(1), 4 | 2),
    ] {
        let mut from = endpoint(&*own, class);
        let dest = from.av().insert(&to.name().to_bytes()).unwrap();
        let known = to.av().insert(&from.name().to_bytes()).unwrap();
        let prefix = own.info().ep.msg_prefix_size;
        to.recv(room(prefix + 8), FiAddr::UNSPEC, 1)
            .map_err(first)
            .unwrap();
        from.send(message(prefix + 8, 1), prefix + 8, dest, None, 2)
            .map_err(first)
            .unwrap();
        for done in run(&mut [&mut to, &mut from], 2) {
            let completion = done.outcome.unwrap();
            if done.token == 1 {
                assert_eq!(
                    (done.buffer[TYPE_OF_SERVICE], completion.src),
                    (mark, known)
                );
            }
        }
    }
    drop((to, own));
    assert_clean(&device);
}

/// The subnet manager of InfiniBand assigns classes, and there is no routing header within a
/// subnet.
///
/// Covers: GI-2
#[test]
fn infiniband_is_not_marked() {
    let device = FakeDevice::take();
    let class = traffic_class::of_dscp(DSCP);
    let of_infiniband = [("FERRO_DEVICE", INFINIBAND), ("FERRO_LANE", "rc")];
    let open = || domain(EpType::Rdm, Mode::empty(), class, &of_infiniband);
    let mut pair = acquainted(endpoint(&*open(), class), endpoint(&*open(), class));
    pair.exchange(8, 0);
    assert_eq!(marks(&device, &pair.a), (vec![0], vec![0]));
    drop(pair);
    assert_clean(&device);
}

/// Covers: GI-2
#[test]
fn a_number_that_is_no_class_opens_no_endpoint() {
    let device = FakeDevice::take();
    let own = domain(EpType::Rdm, Mode::empty(), 0, &[]);
    let wrong = OwningEndpoint::open_with(&*own, &AvAttr::default(), |config| {
        config.tx.tclass = traffic_class::of_dscp(64);
    });
    let error = wrong.err().unwrap();
    assert_eq!(error.errno(), Errno::EINVAL);
    assert!(error.to_string().contains("0x140"), "{error}");
    drop(own);
    assert_clean(&device);
}

/// The settings choose the attributes of all paths: those of connections and of address handles. A
/// code point of the application takes the place of the one of the settings, and leaves the two
/// bits for congestion as they are.
#[test]
fn settings_choose_the_attributes_of_paths() {
    let dscp = traffic_class::of_dscp(DSCP);
    for (lane, connections) in [("rc", 1), ("ud", 0)] {
        for (class, expected) in [(traffic_class::UNSPEC, 0x85), (dscp, (DSCP << 2) | 1)] {
            let device = FakeDevice::take();
            let chosen = [
                ("FERRO_LANE", lane),
                ("FERRO_SERVICE_LEVEL", "5"),
                ("FERRO_TRAFFIC_CLASS", "133"),
                ("FERRO_FLOW_LABEL", "1048575"),
                ("FERRO_HOP_LIMIT", "7"),
            ];
            let open = |settings: &[(&str, &str)], class| {
                endpoint(&*domain(EpType::Rdm, Mode::empty(), 0, settings), class)
            };
            let of_defaults = open(&[("FERRO_LANE", lane)], traffic_class::UNSPEC);
            let mut pair = acquainted(open(&chosen, class), of_defaults);
            pair.exchange(3000, 1);
            let path = PathView {
                is_global: true,
                traffic_class: expected,
                hop_limit: 7,
                service_level: 5,
                flow_label: 0xf_ffff,
                ..PathView::default()
            };
            let of_defaults = PathView {
                is_global: true,
                traffic_class: DEFAULT,
                hop_limit: 255,
                service_level: 0,
                flow_label: 0,
                ..PathView::default()
            };
            assert_eq!(
                paths(&device, &pair.a),
                (vec![path; connections], vec![path])
            );
            assert_eq!(
                paths(&device, &pair.b),
                (vec![of_defaults; connections], vec![of_defaults])
            );
            drop(pair);
            assert_clean(&device);
        }
    }
}

/// On InfiniBand a service level is all that a path within a subnet has, unless the port requires
/// routing headers: then the path has the rest, too.
#[test]
fn a_port_may_require_routing_headers() {
    for lane in ["rc", "ud"] {
        for (nic, is_global) in [("generous", false), ("mlx5-vf", true)] {
            let device = FakeDevice::take();
            device.become_nic(nic);
            let settings = [
                ("FERRO_DEVICE", INFINIBAND),
                ("FERRO_LANE", lane),
                ("FERRO_SERVICE_LEVEL", "3"),
                ("FERRO_TRAFFIC_CLASS", "8"),
            ];
            let open = || endpoint(&*domain(EpType::Rdm, Mode::empty(), 0, &settings), 0);
            let mut pair = acquainted(open(), open());
            pair.exchange(3000, 1);
            let (connections, handles) = paths(&device, &pair.a);
            for path in connections.into_iter().chain(handles) {
                assert_eq!((path.is_global, path.service_level), (is_global, 3));
                assert_eq!(path.traffic_class, if is_global { 8 } else { 0 });
            }
            drop(pair);
            assert_clean(&device);
        }
    }
}
