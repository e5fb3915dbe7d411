//! Messages in several packets. Packets are small and receive buffers few here, so that a look at
//! the receiver's queue finds some of a message.

use std::time::Instant;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint};
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs_sys::ibv_wc_status as Status;

use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, check, endpoint, first, message, room, run, stat,
};

/// Packets of 512 bytes, of which the receiver takes 16 at a look.
pub(crate) const SMALL_PACKETS: [(&str, &str); 3] = [
    ("FERRO_EAGER", "256"),
    ("FERRO_EAGER_MAX", "64K"),
    ("FERRO_RX_BUFFERS", "16"),
];

/// The credit that an endpoint has granted, also to sessions that have ended.
const GRANTED: &str = "verbs_units_granted";

/// In some 42 packets.
const BYTES: usize = 20_000;

#[test]
fn sends_complete_without_the_receiver() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[("FERRO_EAGER_MAX", "32K")]);
    for (at, bytes) in [8193, 16_440, 16_441, 32_768].into_iter().enumerate() {
        // The receiver does not poll: a send that is over has ended without it.
        pair.a
            .tsend(message(bytes, 1), bytes, pair.to_b, 7, 3)
            .map_err(first)
            .unwrap();
        let done = crate::endpoints::party::run(&mut [&mut pair.a], 1);
        assert!(done[0].outcome.is_ok(), "{done:?}");
        assert_eq!(stat(&pair.a, "verbs_sent_in_parts"), at as u64 + 1);
        pair.b
            .trecv(room(bytes), pair.to_a, 7, 0, 4)
            .map_err(first)
            .unwrap();
        let done = pair.run(1).pop().unwrap();
        assert_eq!(done.outcome.unwrap().len, bytes);
        check(&done.buffer, 1, "received");
    }
    // One more byte is too much; so is a message beyond the credit.
    pair.exchange(32_769, 8);
    for tag in 0..20 {
        pair.a
            .tsend(message(32_768, tag), 32_768, pair.to_b, tag, 3)
            .map_err(first)
            .unwrap();
    }
    let in_parts = stat(&pair.a, "verbs_sent_in_parts");
    assert!((9..14).contains(&in_parts), "{in_parts} of 20 in 256 KiB");
    for tag in 0..20 {
        pair.b
            .trecv(room(32_768), pair.to_a, tag, 0, tag)
            .map_err(first)
            .unwrap();
    }
    for done in pair.run(40) {
        let completion = done.outcome.unwrap();
        if completion.flags.contains(Flags::RECV) {
            check(&done.buffer, completion.tag, "with and without credit");
        }
    }
    drop(pair);
    assert_clean(&device);
}

/// Of the 256 buffers for packets a message takes no more than half: for more of them it might wait
/// for ever.
#[test]
fn messages_of_very_many_packets_go_by_rendezvous() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&SMALL_PACKETS);
    for (bytes, in_parts) in [(59_000, 1), (64 << 10, 1), (59_000, 2)] {
        pair.exchange(bytes, 7);
        assert_eq!(stat(&pair.a, "verbs_sent_in_parts"), in_parts, "{bytes}");
    }
    drop(pair);
    assert_clean(&device);
}

/// The receive comes when nothing, some or all of the message is here, and has room for all of it
/// or not.
#[test]
fn receives_that_come_at_any_moment() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&SMALL_PACKETS);
    for looks in 0..6 {
        for bytes in [BYTES, BYTES - 1, 5000, 100, 0] {
            let tag = 100 * looks + 7;
            pair.a
                .tsend(message(BYTES, tag), BYTES, pair.to_b, tag, 1)
                .map_err(first)
                .unwrap();
            for _ in 0..looks {
                assert!(pair.b.poll().unwrap().is_none());
            }
            pair.b
                .trecv(room(bytes), pair.to_a, tag, 0, 2)
                .map_err(first)
                .unwrap();
            for done in pair.run(2) {
                match (done.token, done.outcome) {
                    (1, Ok(_)) => {}
                    (2, Ok(completion)) => assert_eq!((completion.len, bytes), (BYTES, BYTES)),
                    (2, Err(error)) => {
                        assert_eq!((error.errno, error.olen), (Errno::ETRUNC, BYTES - bytes));
                    }
                    other => panic!("{other:?}"),
                }
                if done.token == 2 {
                    check(&done.buffer[..bytes], tag, "as much as fits");
                }
            }
        }
    }
    drop(pair);
    assert_clean(&device);
}

/// The lane breaks at any packet, which arrives or not, with the receive posted before or after:
/// nothing is lost.
#[test]
fn lanes_that_break_in_the_middle() {
    for status in [Status::IBV_WC_RETRY_EXC_ERR, Status::IBV_WC_GENERAL_ERR] {
        for effect in [
            FaultEffect::Fail(status),
            FaultEffect::FailAfterwards(status),
        ] {
            for after in [0, 1, 15, 16, 17, 40, 41, 42] {
                for (posted_before, looks) in [(true, 0), (false, 1), (false, 2), (false, 5)] {
                    let device = FakeDevice::take();
                    let mut pair = PeerPair::connected(&SMALL_PACKETS);
                    device.script(Fault::new(FaultPoint::Send, effect).after(after));
                    let receive = |pair: &mut PeerPair| {
                        pair.b
                            .trecv(room(BYTES), pair.to_a, 9, 0, 2)
                            .map_err(first)
                            .unwrap();
                    };
                    if posted_before {
                        receive(&mut pair);
                    }
                    pair.a
                        .tsend(message(BYTES, 5), BYTES, pair.to_b, 9, 1)
                        .map_err(first)
                        .unwrap();
                    let mut all = Vec::new();
                    for _ in 0..looks {
                        all.extend(pair.a.poll().unwrap());
                        assert!(pair.b.poll().unwrap().is_none());
                    }
                    if !posted_before {
                        receive(&mut pair);
                    }
                    all.extend(pair.run(2 - all.len()));
                    for done in all {
                        let outcome = done.outcome;
                        assert!(outcome.is_ok(), "{effect:?} after {after}: {outcome:?}");
                        if done.token == 2 {
                            check(&done.buffer, 5, "over two lanes");
                        }
                    }
                    pair.settle(&device);
                    pair.exchange(8, 1);
                    pair.exchange(BYTES, 2);
                    drop(pair);
                    assert_clean(&device);
                }
            }
        }
    }
}

/// The session ends when half a message has arrived: a receive that matched it fails, a receive
/// that did not match gets the next message. The session's credit can be granted to others again.
#[test]
fn sessions_that_end_in_the_middle() {
    for posted_before in [true, false] {
        let device = FakeDevice::take();
        let mut pair = PeerPair::connected(&SMALL_PACKETS);
        let granted = stat(&pair.b, GRANTED);
        // The sender's own fault: it gives the session up.
        device.script(
            Fault::new(
                FaultPoint::Send,
                FaultEffect::Fail(Status::IBV_WC_LOC_PROT_ERR),
            )
            .after(20),
        );
        if posted_before {
            pair.b
                .trecv(room(BYTES), pair.to_a, 9, 0, 2)
                .map_err(first)
                .unwrap();
        }
        pair.a
            .tsend(message(BYTES, 5), BYTES, pair.to_b, 9, 1)
            .map_err(first)
            .unwrap();
        for done in pair.run(1 + usize::from(posted_before)) {
            assert_eq!(done.outcome.unwrap_err().errno, Errno::ECONNRESET);
        }
        pair.settle(&device);
        pair.exchange(300, 9);
        pair.exchange(BYTES, 9);
        assert_eq!(stat(&pair.b, GRANTED), granted, "{posted_before}");
        drop(pair);
        assert_clean(&device);
    }
}

/// The same with an unknown source: its incomplete message takes no receive from the messages of
/// other senders.
#[test]
fn an_unknown_source_that_ends_in_the_middle_takes_no_receive() {
    let device = FakeDevice::take();
    let (mut a, mut b, mut c) = (
        endpoint(&SMALL_PACKETS),
        endpoint(&SMALL_PACKETS),
        endpoint(&SMALL_PACKETS),
    );
    let [from_a, from_c] = [&a, &c].map(|from| from.av().insert(&b.name().to_bytes()).unwrap());
    let send = |from: &mut OwningEndpoint, to, bytes, tag| {
        let sent = from.tsend(message(bytes, tag), bytes, to, tag, tag);
        sent.map_err(first).unwrap();
    };
    let receive = |b: &mut OwningEndpoint, tag| {
        let posted = b.trecv(room(BYTES), FiAddr::UNSPEC, tag, 0, tag);
        posted.map_err(first).unwrap();
    };
    for from in [(&mut a, from_a), (&mut c, from_c)] {
        receive(&mut b, 1);
        send(from.0, from.1, 8, 1);
        assert!(
            run(&mut [from.0, &mut b], 2)
                .iter()
                .all(|done| done.outcome.is_ok())
        );
    }
    device.script(
        Fault::new(
            FaultPoint::Send,
            FaultEffect::Fail(Status::IBV_WC_LOC_PROT_ERR),
        )
        .after(20),
    );
    send(&mut a, from_a, BYTES, 9);
    let failed = run(&mut [&mut a, &mut b], 1).pop().unwrap();
    assert_eq!(failed.outcome.unwrap_err().errno, Errno::ECONNRESET);
    // Another session: the one before has ended at both ends.
    receive(&mut b, 2);
    send(&mut a, from_a, 8, 2);
    run(&mut [&mut a, &mut b], 2);
    receive(&mut b, 9);
    send(&mut c, from_c, 8, 9);
    for done in run(&mut [&mut b, &mut c], 2) {
        let done = done.outcome.unwrap();
        assert!(!done.flags.contains(Flags::RECV) || done.len == 8);
    }
    drop((a, b, c));
    assert_clean(&device);
}

/// The same with a peer that was removed from the address vector by the time that its session ends:
/// the credit that it was granted is given back.
#[test]
fn a_message_that_will_never_be_whole() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&SMALL_PACKETS);
    let granted = stat(&pair.b, GRANTED);
    device.script(
        Fault::new(
            FaultPoint::Send,
            FaultEffect::Fail(Status::IBV_WC_LOC_PROT_ERR),
        )
        .after(20),
    );
    pair.a
        .tsend(message(BYTES, 5), BYTES, pair.to_b, 9, 1)
        .map_err(first)
        .unwrap();
    let begun = Instant::now();
    while stat(&pair.b, "verbs_unexpected_now") == 0 {
        assert!(pair.b.poll().unwrap().is_none());
        assert!(begun.elapsed() < PATIENCE, "nothing comes");
    }
    pair.b.av().remove(pair.to_a).unwrap();
    let done = pair.run(1).pop().unwrap();
    assert_eq!(done.outcome.unwrap_err().errno, Errno::ECONNRESET);
    pair.settle(&device);
    assert_eq!(stat(&pair.b, "verbs_unexpected_now"), 0);
    pair.to_a = pair.b.av().insert(&pair.a.name().to_bytes()).unwrap();
    pair.exchange(8, 10);
    assert_eq!(stat(&pair.b, GRANTED), granted);
    drop(pair);
    assert_clean(&device);
}

/// Headers with wrong bytes, of any packet of a message: every operation ends, and the endpoints go
/// on afterwards.
#[test]
fn fragments_that_make_no_sense() {
    for at in (0..28).chain([31, 35]) {
        for after in [0, 1, 2, 20] {
            let device = FakeDevice::take();
            let mut pair = PeerPair::connected(&SMALL_PACKETS);
            device.script(Fault::new(FaultPoint::Receive, FaultEffect::Corrupt(at)).after(after));
            pair.corrupt_traffic(100, 9);
            assert_eq!(device.faults_left(), 0);
            device.reset();
            pair.settle(&device);
            pair.exchange(8, 1);
            pair.exchange(BYTES, 2);
            drop(pair);
            assert_clean(&device);
        }
    }
}

/// A lane that breaks again and again, under messages of all kinds.
#[test]
fn all_kinds_over_lanes_that_break() {
    for after in [0, 3, 30, 100] {
        let device = FakeDevice::take();
        let mut pair = PeerPair::connected(&SMALL_PACKETS);
        let fault = FaultEffect::Fail(Status::IBV_WC_RETRY_EXC_ERR);
        device.script(Fault::new(FaultPoint::Send, fault).after(after).times(2));
        let traffic = pair.traffic(100, 20, || ());
        assert_eq!((traffic.sent, traffic.received), (40, 40), "{traffic:?}");
        pair.settle(&device);
        drop(pair);
        device.reset();
        assert_clean(&device);
    }
}
