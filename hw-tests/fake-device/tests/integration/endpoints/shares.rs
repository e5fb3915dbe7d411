//! The places for completions and the buffers that all lanes of an endpoint share, and stopped
//! peers that keep many of them: their receive buffers are full.

use std::time::Instant;

use ferrofabric_conformance::ends::{self, any_tagged};
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_fake_device::control::{FakeDevice, QueuePairView};
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs_sys::ibv_qp_type;

use crate::endpoints::nic::{has_lanes_for, nic};
use crate::endpoints::party::{
    PATIENCE, PeerPair, check, domain, endpoint, first, message, room, run, stat,
};

/// Few receive buffers: a peer that is stopped soon has none.
const FEW: [(&str, &str); 2] = [("FERRO_RX_BUFFERS", "16"), ("FERRO_LANE", "rc")];

/// More than the send queue of a lane takes.
const MANY: u64 = 300;

/// Token of a message by which two ends get to know each other.
const GREETING: u64 = u64::MAX;

/// This number of stopped peers could fill the room for requests of one endpoint.
const STOPPED: usize = 70;

/// Requests of all lanes of an endpoint for whose completions there are places.
const PLACES: u32 = 20_480;

/// Requests of connections that an endpoint has under way, as the device counts them.
fn under_way(device: &FakeDevice, control: u32) -> u32 {
    let all = device.queue_pairs();
    let domain = all.iter().find(|qp| qp.number == control).unwrap().pd;
    let is_its = |qp: &&QueuePairView| qp.pd == domain && qp.kind == ibv_qp_type::IBV_QPT_RC.0;
    all.iter().filter(is_its).map(|qp| qp.occupied).sum()
}

/// A message from one to the other, received.
fn greet(a: &mut OwningEndpoint, b: &mut OwningEndpoint, to_b: FiAddr, tag: u64) {
    let receive = b.trecv(room(8), FiAddr::UNSPEC, tag, 0, GREETING);
    receive.map_err(first).unwrap();
    let sent = a.tsend(message(8, tag), 8, to_b, tag, GREETING);
    sent.map_err(first).unwrap();
    // Others may end meanwhile.
    let mut over = 0;
    while over < 2 {
        for done in run(&mut [a, b], 1) {
            assert!(done.outcome.is_ok(), "{:?}", done.outcome);
            over += usize::from(done.token == GREETING);
        }
    }
}

/// However many peers are stopped, the others get their messages.
#[test]
fn stopped_peers_leave_room_for_others() {
    let _device = FakeDevice::take();
    others_get_their_messages();
}

/// The same where each message takes a bounce buffer.
#[test]
fn stopped_peers_leave_bounce_buffers_for_others() {
    let device = FakeDevice::take();
    device.become_nic("inline-32");
    others_get_their_messages();
}

fn others_get_their_messages() {
    let mut a = endpoint(&[]);
    let mut stopped = Vec::new();
    let queue_pairs = nic().queue_pairs as usize;
    for _ in 0..STOPPED.min(queue_pairs / 5) {
        let mut peer = endpoint(&FEW);
        let to_peer = a.av().insert(&peer.name().to_bytes()).unwrap();
        greet(&mut a, &mut peer, to_peer, 1);
        for tag in 0..MANY {
            let sent = a.tsend(message(8, tag), 8, to_peer, tag, tag);
            sent.map_err(first).unwrap();
        }
        stopped.push(peer);
    }
    while a.poll().unwrap().is_some() {}
    let mut other = endpoint(&[]);
    let to_other = a.av().insert(&other.name().to_bytes()).unwrap();
    for tag in 0..3 {
        greet(&mut a, &mut other, to_other, tag);
    }
    // They go on, and get everything.
    for peer in &mut stopped {
        for tag in 0..MANY {
            let receive = peer.trecv(room(8), FiAddr::UNSPEC, tag, 0, tag);
            receive.map_err(first).unwrap();
        }
    }
    for peer in &mut stopped {
        let begun = Instant::now();
        let mut received = 0;
        while received < MANY {
            assert!(begun.elapsed() < PATIENCE, "{received} messages");
            a.poll().unwrap();
            if let Some(done) = peer.poll().unwrap() {
                assert!(done.outcome.is_ok(), "{:?}", done.outcome);
                check(&done.buffer, done.token, "received late");
                received += 1;
            }
        }
    }
}

/// An endpoint takes messages of peers that are stopped then and want to know of their delivery:
/// the words of that take no more places for completions than there are.
#[test]
fn messages_to_stopped_peers_leave_places_for_completions() {
    // As many as a lane takes in one go: the send queue, or where they do not go inline, the bounce
    // buffers.
    let requests = match nic().inline.most {
        0..64 => 120,
        _ => 240,
    };
    // More of them at all peers together than there are places.
    let count = PLACES as usize / (requests - 16) + 1;
    if !has_lanes_for(count) {
        return;
    }

    let device = FakeDevice::take();
    let a = ends::QueuedEndpoint::open(&*domain(&[]));
    let control = a.endpoint.name().verbs.unwrap().qpn;
    let mut peers = Vec::new();
    for _ in 0..count {
        let peer = ends::QueuedEndpoint::open(&*domain(&FEW));
        let to_a = peer.av.insert(&a.endpoint.name().to_bytes()).unwrap();
        let greeting = RecvOp {
            kind: MsgKind::Msg,
            ..any_tagged(a.context())
        };
        a.recv(&greeting, &[]).unwrap();
        let op = |kind, flags| SendOp {
            kind,
            dest: to_a,
            tag: 0,
            data: 0,
            desc: MrDesc::NONE,
            context: peer.context(),
            flags,
        };
        peer.send(&a, op(MsgKind::Msg, Flags::COMPLETION), 0, 0);
        let begun = Instant::now();
        let (mut received, mut sent) = (false, false);
        while !(received && sent) {
            assert!(begun.elapsed() < ends::PATIENCE, "no connection");
            peer.tx.pump();
            a.rx.pump();
            received |= a.rx.take_of(greeting.context).is_some();
            sent |= peer.tx.take().is_some();
        }
        for _ in 0..requests {
            // Only the receiver can complete these, so that they go as requests. There is nothing
            // to be read.
            let wanted = op(
                MsgKind::Tagged,
                Flags::COMPLETION | Flags::DELIVERY_COMPLETE,
            );
            // SAFETY: no memory is named.
            unsafe { peer.endpoint.send(&wanted, &[]) }.unwrap();
        }
        peers.push(peer);
    }
    let all = (count * requests) as u64;
    let (mut posted, mut most) = (0, 0);
    let begun = Instant::now();
    let mut taken = 0;
    while taken < all {
        assert!(begun.elapsed() < ends::PATIENCE, "{taken} of {all}");
        while posted < all {
            match a.recv(&any_tagged(a.context()), &[]) {
                Ok(()) => posted += 1,
                Err(error) => {
                    assert_eq!(error, OpError::Again);
                    break;
                }
            }
        }
        a.rx.pump();
        while let Some(came) = a.rx.take() {
            came.unwrap();
            taken += 1;
        }
        most = most.max(under_way(&device, control));
    }
    for _ in 0..10 {
        a.rx.pump();
        most = most.max(under_way(&device, control));
    }
    // A fifth of the places is kept for the requests that end lanes.
    let limit = PLACES - PLACES / 5;
    assert!(
        most <= limit,
        "{most} requests are under way, and {limit} may be"
    );
    // The peers go on, and hear of the end of each.
    let mut over = 0;
    while over < all {
        assert!(begun.elapsed() < 3 * ends::PATIENCE, "{over} of {all}");
        a.tx.pump();
        for peer in &peers {
            peer.tx.pump();
            while let Some(done) = peer.tx.take() {
                done.unwrap();
                over += 1;
            }
        }
    }
}

/// Peers that are stopped have as many bounce buffers as they may. A lane over datagrams that wants
/// one gets it in the same call.
#[test]
fn stopped_peers_leave_buffers_to_a_lane_over_datagrams() {
    const BYTES: usize = 700;

    let _device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[("FERRO_LANE", "ud")]);
    let mut stopped: Vec<_> = (0..2)
        .map(|_| {
            let mut peer = endpoint(&FEW);
            let to_peer = pair.a.av().insert(&peer.name().to_bytes()).unwrap();
            let to_a = peer.av().insert(&pair.a.name().to_bytes()).unwrap();
            greet(&mut peer, &mut pair.a, to_a, 1);
            greet(&mut pair.a, &mut peer, to_peer, 1);
            (peer, to_peer)
        })
        .collect();
    pair.rest(|_| true);
    for tag in 0..MANY {
        for (_, to_peer) in &stopped {
            let sent = pair.a.tsend(message(BYTES, tag), BYTES, *to_peer, tag, 3);
            sent.map_err(first).unwrap();
        }
    }
    while pair.a.poll().unwrap().is_some() {}
    assert!(stat(&pair.a, "verbs_sends_in_line_now") > MANY);
    let receive = pair.b.trecv(room(BYTES), pair.to_a, 9, 0, 1);
    receive.map_err(first).unwrap();
    let before = stat(&pair.b, "verbs_packets_received");
    let sent = pair.a.tsend(message(BYTES, 9), BYTES, pair.to_b, 9, 2);
    sent.map_err(first).unwrap();
    pair.b.poll().unwrap();
    assert!(stat(&pair.b, "verbs_packets_received") > before);
    stopped.clear();
}
