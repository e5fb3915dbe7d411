//! Tests of the memory that peers can make an endpoint keep: answers that a peer never takes, and
//! unexpected messages over many links.

use std::time::Instant;

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::IoBuf;

use super::HostilePeer;
use crate::ShmConfig;
use crate::owner::{Ep, TIMEOUT, tagged};
use crate::ring::SLOTS;
use crate::wire::{INLINE, START, TAGGED, UNDER_WAY_MAX, WANTS_DELIVERED};

/// A peer requests `DELIVERED` for each message, and never takes an answer.
#[test]
fn answers_that_are_never_taken_end_the_link() {
    // Two answers to each message that a peer may have under way, and what comes in one call.
    const MOST: usize = 2 * UNDER_WAY_MAX + SLOTS;
    let mut ep = Ep::open(ShmConfig::default());
    let (mut enemy, _) = HostilePeer::connect(&mut ep);
    let mut sent = 0;
    while ep.shm.stats().links_failed == 0 {
        for _ in 0..SLOTS / 2 {
            ep.trecv(1, 0, &mut [], 1);
            enemy.publish(START, TAGGED | WANTS_DELIVERED, 0, [1, 0, 0, 0, 0, 0, 0]);
            sent += 1;
        }
        ep.progress();
        while ep.poll().is_some() {}
        let (answers, _) = ep.shm.burden();
        assert!(
            answers <= MOST,
            "{answers} answers wait after {sent} messages"
        );
    }
}

/// A sender that takes no answers for long stops by itself, and goes on once it takes them.
#[test]
fn a_sender_that_takes_no_answers_stops_in_time() {
    const QUEUE: usize = 1024;
    let config = ShmConfig {
        queue_sends: QUEUE,
        ..ShmConfig::default()
    };
    let (mut a, mut b) = (Ep::open(config.clone()), Ep::open(config));
    let to_b = a.insert(&b.name());
    let out = [7u8; 8];
    let mut into = [0u8; 8];
    let mut op = tagged(to_b, 1, 1);
    let iov = [IoBuf::new(out.as_ptr(), out.len())];
    b.trecv(1, 0, &mut into, 1);
    a.tsend(to_b, 1, &out, 1).unwrap();
    a.wait().unwrap();
    op.flags |= Flags::DELIVERY_COMPLETE;
    let mut sent = 0;
    loop {
        b.trecv(1, 0, &mut into, 1);
        // SAFETY: the buffer outlives the endpoint's use of it.
        match unsafe { a.send_op(&op, &iov) } {
            Ok(()) => sent += 1,
            Err(error) => break assert_eq!(error, OpError::Again),
        }
        while b.poll().is_some() {}
        let most = UNDER_WAY_MAX + QUEUE;
        assert!(sent <= most, "{:?} answers wait", b.shm.burden());
    }
    assert_eq!(sent, UNDER_WAY_MAX + QUEUE);
    let end = Instant::now() + TIMEOUT;
    let mut done = 0;
    while done < sent {
        done += usize::from(a.poll().is_some_and(|end| end.is_ok()));
        while b.poll().is_some() {}
        assert!(Instant::now() < end, "{done} of {sent}");
    }
    let failed = [&a, &b].map(|ep| ep.shm.stats().links_failed);
    assert_eq!(failed, [0, 0]);
}

/// Once there is room, all peers may send whole messages again.
#[test]
fn the_quota_of_an_endpoint_is_given_back_to_all() {
    let mut ep = Ep::open(ShmConfig {
        endpoint_unexpected_messages: 100,
        ..ShmConfig::default()
    });
    let (mut one, _) = HostilePeer::connect_as(&mut ep, 0xbad);
    let (mut other, _) = HostilePeer::connect_as(&mut ep, 0xbae);
    other.publish(INLINE, TAGGED, 8, [6; 7]);
    ep.progress();
    for _ in 0..101 {
        one.publish(INLINE, TAGGED, 8, [5; 7]);
        ep.progress();
    }
    assert!(one.has_back_pressure() && !other.has_back_pressure());
    other.publish(INLINE, TAGGED, 8, [6; 7]);
    ep.progress();
    assert!(other.has_back_pressure(), "it holds little itself");
    let mut into = [0u8; 8];
    for left in (0..101).rev() {
        assert_eq!(
            other.has_back_pressure(),
            left >= 48,
            "{left} of the first one left"
        );
        ep.trecv(5, 0, &mut into, 1);
        ep.poll().unwrap().unwrap();
    }
    assert!(!one.has_back_pressure());
}

/// Each link is within its own quota; all together exceed the quota of the endpoint.
#[test]
fn many_links_share_the_quota_of_their_endpoint() {
    const LINKS: u64 = 40;
    const EACH: u64 = 60;
    let mut ep = Ep::open(ShmConfig::default());
    let enemies = (0..LINKS).map(|id| HostilePeer::connect_as(&mut ep, 0xbad + id).0);
    let mut enemies: Vec<HostilePeer> = enemies.collect();
    let mut back_pressure = 0;
    for id in 0..EACH {
        for enemy in enemies
            .iter_mut()
            .filter(|enemy| !enemy.has_back_pressure())
        {
            let before_go = 65_536;
            enemy.publish(START, TAGGED, 0, [5, id, before_go, 0, before_go, 0, 0]);
        }
        for _ in 0..LINKS {
            ep.progress();
        }
        back_pressure = enemies
            .iter()
            .filter(|enemy| enemy.has_back_pressure())
            .count();
    }
    let (_, bytes) = ep.shm.burden();
    assert_eq!(ep.shm.stats().links_failed, 0);
    // One message of each link may come before the request for envelopes only takes effect.
    let most = (64 << 20) + LINKS as usize * 65_536;
    assert!(
        bytes <= most,
        "{bytes} bytes are held of {LINKS} links, {back_pressure} of them pressed"
    );
    assert_eq!(back_pressure, LINKS as usize);
}
