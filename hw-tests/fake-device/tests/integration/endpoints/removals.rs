//! Peers that are removed from an address vector: the connection goes with the entry, the session
//! does not.

use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint};
use ferrofabric_runtime::owning::OwningEndpoint;

use crate::endpoints::breakage::{connections, data_queue_pair};
use crate::endpoints::nic::has_queue_pairs_for;
use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, check, domain, endpoint, first, message, pending_operations,
    room, run, stat,
};

fn lanes_left(end: &OwningEndpoint) -> u64 {
    let stats = end.stats().unwrap().into_iter();
    stats
        .filter(|(name, _)| *name == "verbs_lanes_left")
        .map(|(_, value)| value)
        .sum()
}

/// Drives all, which have nothing to do, until it is so.
fn idle_until(
    ends: &mut [&mut OwningEndpoint],
    what: &str,
    reached: impl Fn(&[&mut OwningEndpoint]) -> bool,
) {
    let begun = Instant::now();
    while !reached(ends) {
        for end in ends.iter_mut() {
            assert!(end.poll().unwrap().is_none(), "nothing was to complete");
        }
        let all = || pending_operations(ends.iter().map(|end| &**end));
        assert!(begun.elapsed() < PATIENCE, "{what}: {}", all());
    }
}

/// Until `a` has left so many lanes and no queue pair is connected.
pub(crate) fn until_left(pair: &mut PeerPair, device: &FakeDevice, lanes: u64) {
    idle_until(
        &mut [&mut pair.a, &mut pair.b],
        "the connection stays",
        |ends| lanes_left(ends[0]) >= lanes && connections(device).is_empty(),
    );
}

/// `b` sends to `a`, which does not know it.
fn from_unknown_source(pair: &mut PeerPair, bytes: usize, tag: u64) {
    (pair.a)
        .trecv(room(bytes), FiAddr::UNSPEC, tag, 0, 1)
        .map_err(first)
        .unwrap();
    (pair.b)
        .tsend(message(bytes, tag), bytes, pair.to_a, tag, 2)
        .map_err(first)
        .unwrap();
    for done in pair.run(2) {
        let completion = done.outcome.unwrap();
        if done.token == 1 {
            assert_eq!(completion.src, FiAddr::NOTAVAIL);
            check(&done.buffer[..bytes], tag, "a stranger's message");
        }
    }
}

/// The connection to a removed peer goes once nothing happens on it, whichever lane that is. The
/// peer can still send, over another one, which goes as well; inserted again, it is there as
/// before.
///
/// Covers: AV-17
#[test]
fn a_removed_peer_loses_its_connection() {
    for lane in ["rc", "ud"] {
        let device = FakeDevice::take();
        let mut pair = PeerPair::connected(&[("FERRO_LANE", lane)]);
        assert_eq!(connections(&device).is_empty(), lane == "ud");
        let mut lanes = 0;
        for (round, bytes) in [8, 80_000].into_iter().enumerate() {
            println!("{lane}, {bytes} bytes");
            let tag = 100 * round as u64;
            pair.a.av().remove(pair.to_b).unwrap();
            lanes += 1;
            until_left(&mut pair, &device, lanes);
            from_unknown_source(&mut pair, bytes, tag + 10);
            lanes += 1;
            until_left(&mut pair, &device, lanes);
            pair.to_b = pair.a.av().insert(&pair.b.name().to_bytes()).unwrap();
            pair.exchange(bytes, tag + 11);
            pair.exchange(8, tag + 12);
        }
        assert_eq!(lanes_left(&pair.b), 0, "who removes nobody leaves nobody");
        drop(pair);
        assert_clean(&device);
    }
}

/// Both remove each other at once.
///
/// Covers: AV-17
#[test]
fn peers_that_remove_each_other() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[]);
    for tag in 0..2 {
        pair.a.av().remove(pair.to_b).unwrap();
        pair.b.av().remove(pair.to_a).unwrap();
        until_left(&mut pair, &device, 0);
        pair.to_b = pair.a.av().insert(&pair.b.name().to_bytes()).unwrap();
        pair.to_a = pair.b.av().insert(&pair.a.name().to_bytes()).unwrap();
        pair.exchange(8, 10 + tag);
        pair.exchange(80_000, 20 + tag);
    }
    drop(pair);
    assert_clean(&device);
}

/// Removing and inserting the same address between messages, any number of times, loses none and
/// makes no connection after another.
///
/// Covers: AV-17
#[test]
fn an_address_that_comes_and_goes_under_traffic() {
    for lane in ["rc", "ud"] {
        let device = FakeDevice::take();
        let mut pair = PeerPair::connected(&[("FERRO_LANE", lane)]);
        for tag in 0..100 {
            for _ in 0..3 {
                pair.a.av().remove(pair.to_b).unwrap();
                pair.to_b = pair.a.av().insert(&pair.b.name().to_bytes()).unwrap();
            }
            pair.exchange([8, 3000, 80_000][tag as usize % 3], 10 + tag);
            assert!(
                connections(&device).len() <= 2,
                "{:?}",
                connections(&device)
            );
        }
        drop(pair);
        assert_clean(&device);
    }
}

/// A removed peer that sends a message whenever its connection has gone gets it back each time, and
/// keeps it longer each time: its messages never make a storm of connections.
///
/// Covers: AV-17
#[test]
fn a_removed_peer_that_talks_keeps_its_connection() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[]);
    pair.a.av().remove(pair.to_b).unwrap();
    let begun = Instant::now();
    let mut messages = 0;
    while begun.elapsed() < Duration::from_secs(8) {
        let left = lanes_left(&pair.a);
        while lanes_left(&pair.a) == left && begun.elapsed() < Duration::from_secs(8) {
            assert!(pair.a.poll().unwrap().is_none());
            assert!(pair.b.poll().unwrap().is_none());
        }
        from_unknown_source(&mut pair, 3000, 10 + messages);
        messages += 1;
    }
    // Looks are a second apart or more: after one, two and four of them.
    assert!(
        (1..=3).contains(&lanes_left(&pair.a)),
        "{}",
        lanes_left(&pair.a)
    );
    drop(pair);
    assert_clean(&device);
}

/// An attempt to reach a peer ends when that is removed, also if nobody is there to answer.
///
/// Covers: AV-17
#[test]
fn an_attempt_ends_with_the_entry() {
    let device = FakeDevice::take();
    let (mut a, b) = (endpoint(&[]), endpoint(&[]));
    let before = device.live();
    let mut nobody = b.name();
    if let Some(verbs) = &mut nobody.verbs {
        verbs.qpn ^= 0x80_0000;
    }
    let to = a.av().insert(&nobody.to_bytes()).unwrap();
    a.tsend(message(8, 1), 8, to, 1, 1).map_err(first).unwrap();
    idle_until(&mut [&mut a], "no attempt", |_| {
        !connections(&device).is_empty()
    });
    a.av().remove(to).unwrap();
    let done = run(&mut [&mut a], 1);
    assert!(done[0].outcome.is_err());
    idle_until(&mut [&mut a], "the attempt goes on", |_| {
        device.live() == before
    });
    drop((a, b));
    assert_clean(&device);
}

/// Fifty peers, each inserted, spoken to, and removed, on both sides: of all that the device counts
/// nothing is left of them, and once more.
///
/// Covers: AV-17
#[test]
fn resources_of_fifty_peers_are_given_back() {
    if !has_queue_pairs_for(51) {
        return;
    }
    for lane in ["rc", "ud"] {
        let device = FakeDevice::take();
        let mut ends: Vec<_> = (0..51).map(|_| endpoint(&[("FERRO_LANE", lane)])).collect();
        let before = device.live();
        let hub = ends[0].name().to_bytes();
        for round in 0..2 {
            for peer in 1..ends.len() {
                let name = ends[peer].name().to_bytes();
                let (to_peer, to_hub) = (ends[0].av().insert(&name), ends[peer].av().insert(&hub));
                let (to_peer, to_hub) = (to_peer.unwrap(), to_hub.unwrap());
                let (hub, others) = ends.split_first_mut().unwrap();
                let end = &mut others[peer - 1];
                end.trecv(room(8), to_hub, round, 0, 1)
                    .map_err(first)
                    .unwrap();
                hub.tsend(message(8, 1), 8, to_peer, round, 2)
                    .map_err(first)
                    .unwrap();
                for done in run(&mut [hub, end], 2) {
                    assert!(done.outcome.is_ok(), "{:?}", done.outcome);
                }
                hub.av().remove(to_peer).unwrap();
                end.av().remove(to_hub).unwrap();
            }
            println!("{lane}: {before:?} before, {:?} after", device.live());
            let mut all: Vec<_> = ends.iter_mut().collect();
            idle_until(&mut all, "something is left", |_| device.live() == before);
        }
        drop(ends);
        assert_clean(&device);
    }
}

/// An endpoint that is in the address vector twice: removing one entry ends the messages that were
/// sent to that entry, and none that was sent to the other, though both wait for the same
/// connection.
///
/// Covers: AV-17
#[test]
fn one_of_two_entries_is_removed() {
    let device = FakeDevice::take();
    let mut a = endpoint(&[]);
    let shared = domain(&[("FERRO_SHM", "on")]);
    let mut b = OwningEndpoint::open(&*shared, &AvAttr::default()).unwrap();
    let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
    // They differ in the name of the shared-memory endpoint, which an endpoint over verbs alone
    // does not use.
    let name = b.name();
    let other = NativeAddr {
        shm: name.shm.map(|shm| shm ^ 1),
        ..name
    };
    assert_ne!(other, name);
    let entries = [name, other].map(|name| a.av().insert(&name.to_bytes()).unwrap());
    // No word of the connection arrives until one of them is removed.
    let control = a.name().verbs.unwrap().qpn;
    let lose = Fault::new(FaultPoint::Datagram, FaultEffect::Lose).on(control);
    device.script(lose.times(u32::MAX));
    for (token, to) in (0..).zip(entries) {
        (a.tsend(message(8, token), 8, to, token, token))
            .map_err(first)
            .unwrap();
    }
    a.av().remove(entries[0]).unwrap();
    let done = run(&mut [&mut a], 1).pop().unwrap();
    let error = done.outcome.unwrap_err();
    assert_eq!((done.token, error.errno), (0, Errno::ECANCELED));
    device.reset();
    (b.trecv(room(8), to_a, 1, 0, 2)).map_err(first).unwrap();
    for done in run(&mut [&mut a, &mut b], 2) {
        assert!(done.outcome.is_ok(), "{:?}", done.outcome);
        if done.token == 2 {
            check(&done.buffer, 1, "to the other entry");
        }
    }
    drop((a, b, shared));
    assert_clean(&device);
}

/// One end has a session that the other end has not. `a` accepts a handshake of `b`, begins another
/// session, and sends in it; but the packets of `a` are lost, and so is the lane. They are sent
/// again, whichever end had the session.
///
/// Covers: AV-17
#[test]
fn a_session_begins_that_one_end_alone_has() {
    for a_holds in [true, false] {
        println!("a holds a session: {a_holds}");
        let device = FakeDevice::take();
        let mut pair = PeerPair::open(&[("FERRO_LANE", "ud")]);
        hold_a_session(&mut pair, &device, a_holds);
        begin_with_losses(&mut pair, &device);
        device.reset();
        drop(pair);
        assert_clean(&device);
    }
}

/// One end begins a session on a lane that the other end gives up before it has learnt that the
/// lane is up.
fn hold_a_session(pair: &mut PeerPair, device: &FakeDevice, a_holds: bool) {
    let PeerPair { a, b, to_a, to_b } = pair;
    let (holder, asks, to) = match a_holds {
        true => (a, b, to_a),
        false => (b, a, to_b),
    };
    let all = Fault::new(FaultPoint::Datagram, FaultEffect::Lose).times(u32::MAX);
    device.script(all.on(holder.name().verbs.unwrap().qpn));
    (asks.tsend(message(8, 1), 8, *to, 1, 1))
        .map_err(first)
        .unwrap();
    idle_until(&mut [holder, asks], "no lane", |ends| {
        stat(ends[0], "verbs_ud_lanes") == 1
    });
    asks.av().remove(*to).unwrap();
    assert!(run(&mut [asks], 1)[0].outcome.is_err());
    device.reset();
    *to = asks.av().insert(&holder.name().to_bytes()).unwrap();
}

fn begin_with_losses(pair: &mut PeerPair, device: &FakeDevice) {
    let lost = Fault::new(FaultPoint::Datagram, FaultEffect::Lose).times(u32::MAX);
    device.script(lost.on(data_queue_pair(device, &pair.a)));
    // The second goes by writes, over another lane: the first moves there with it.
    let messages = [(2, 8), (3, 600_000)];
    for (tag, bytes) in messages {
        (pair.b.trecv(room(bytes), pair.to_a, tag, 0, tag))
            .map_err(first)
            .unwrap();
        (pair.a.tsend(message(bytes, tag), bytes, pair.to_b, tag, 4))
            .map_err(first)
            .unwrap();
    }
    (pair.b.tsend(message(8, 5), 8, pair.to_a, 5, 5))
        .map_err(first)
        .unwrap();
    (pair.a.trecv(room(8), pair.to_b, 5, 0, 6))
        .map_err(first)
        .unwrap();
    for done in pair.run(6) {
        assert!(done.outcome.is_ok(), "{}: {:?}", done.token, done.outcome);
        if let Some((tag, bytes)) = messages.into_iter().find(|(tag, _)| *tag == done.token) {
            check(&done.buffer[..bytes], tag, "what was sent again");
        }
    }
    assert_eq!(stat(&pair.a, "verbs_ud_promotions"), 1);
}
