//! Messages that wait at their sender: lanes that break below them, packets about them that a hostile
//! peer forges, and ends that close with them.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use ferrofabric_conformance::ends::{QueuedEndpoint, QueuedPair, any_tagged};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, RecvOp, SendOp};
use ferrofabric_fake_device::control::FakeDevice;

use crate::endpoints::breakage::connections;
use crate::endpoints::party::{PATIENCE, assert_clean, domain};

/// Requests to send that a peer may have open: beyond them messages wait.
const REQUESTS: u64 = 4096;

/// The sender writes long messages.
const RC_WRITES: &[(&str, &str)] = &[("FERRO_LANE", "rc"), ("FERRO_RENDEZVOUS", "write")];
const RC: &[(&str, &str)] = &[("FERRO_LANE", "rc")];

/// Messages of each test that wait.
const WAITING: u64 = 500;

fn stat(end: &QueuedEndpoint, wanted: &str) -> u64 {
    let stats = end.endpoint.stats().unwrap();
    stats.iter().find(|(name, _)| *name == wanted).unwrap().1
}

/// Two ends, and the memory of messages that wait at the first: message number `n` has the tag `n`,
/// and the bytes of `n`.
fn with_waiting_messages(settings: &[(&str, &str)]) -> (QueuedPair, IoBuf) {
    const ALL: u64 = REQUESTS + WAITING;
    let pair = QueuedPair::open(&*domain(settings), &*domain(settings));
    let memory = pair.a.memory(8 * ALL as usize, 0);
    for n in 0..ALL {
        let from = memory.part(8 * n as usize, 8);
        // SAFETY: the memory is the endpoint's, and no send has this part.
        unsafe { from.as_mut_ptr().cast::<u64>().write_unaligned(n.to_le()) };
        let send = SendOp {
            context: n,
            flags: Flags::COMPLETION | Flags::DELIVERY_COMPLETE,
            ..pair.tagged(n)
        };
        // SAFETY: the memory lives as long as the endpoint.
        pair.until("a message is refused", || unsafe {
            pair.a.endpoint.send(&send, &[from]).ok()
        });
    }
    pair.until("an envelope does not come", || {
        (stat(&pair.b, "verbs_unexpected_now") == ALL).then_some(())
    });
    assert_eq!(stat(&pair.a, "verbs_sends_enveloped_now"), WAITING);
    (pair, memory)
}

fn post(pair: &QueuedPair, n: u64) -> (u64, IoBuf) {
    let receive = RecvOp {
        tag: n,
        ignore: 0,
        ..any_tagged(pair.b.context())
    };
    let into = pair.b.memory(8, 0);
    pair.b.recv(&receive, &[into]).unwrap();
    (receive.context, into)
}

/// The lane breaks with envelopes at the receiver, and again and again with pulls and answers under
/// way: each message comes once.
#[test]
fn waiting_messages_survive_their_lanes() {
    let device = FakeDevice::take();
    let (pair, _memory) = with_waiting_messages(RC);
    for lane in connections(&device) {
        device.break_queue_pair(lane);
    }
    let all: Vec<u64> = (0..REQUESTS + WAITING).rev().collect();
    for (round, some) in all.chunks(100).enumerate() {
        let posted: Vec<_> = some.iter().map(|n| (*n, post(&pair, *n))).collect();
        if round < 8 {
            if round % 2 == 1 {
                pair.b.rx.pump();
                pair.a.tx.pump();
            }
            for lane in connections(&device) {
                device.break_queue_pair(lane);
            }
        }
        for (n, (context, into)) in posted {
            assert_eq!(pair.wait(&pair.b.rx, context).unwrap().tag, n);
            assert_eq!(pair.b.bytes(into.addr, 8), n.to_le_bytes());
        }
    }
    for n in all {
        pair.wait(&pair.a.tx, n).unwrap();
    }
    assert_eq!(stat(&pair.a, "verbs_sends_enveloped_now"), 0);
    assert!(stat(&pair.a, "verbs_sessions_resumed") > 0);
    assert_eq!(stat(&pair.b, "verbs_receives_moved_now"), 0);
    assert_eq!(stat(&pair.b, "verbs_unexpected_now"), 0);
}

/// The kind of packets that are forged, and the byte of them that is changed.
static KIND: AtomicU8 = AtomicU8::new(0);
static PLACE: AtomicU8 = AtomicU8::new(0);

extern "C" fn forge(bytes: *mut u8, len: usize) {
    // SAFETY: the device lends so many bytes.
    let packet = unsafe { std::slice::from_raw_parts_mut(bytes, len) };
    let place = usize::from(PLACE.load(Ordering::Relaxed));
    if packet.first() == Some(&KIND.load(Ordering::Relaxed)) && place < len {
        packet[place] ^= 0x55;
    }
}

/// A peer pulls a message that does not wait, ends one, or sends a message that nobody has pulled:
/// the session ends with an error, and with it all operations that wait for the peer.
#[test]
fn forged_packets_about_waiting_messages_end_the_session() {
    const PULL: u8 = 12;
    const PULLED_RTS: u8 = 14;
    // The number of the operation, its generation, and the total length.
    for (kind, place) in [(PULL, 17), (PULL, 20), (PULLED_RTS, 16), (PULLED_RTS, 32)] {
        println!("kind {kind}, byte {place}");
        let device = FakeDevice::take();
        let (pair, _memory) = with_waiting_messages(RC_WRITES);
        KIND.store(kind, Ordering::Relaxed);
        PLACE.store(place, Ordering::Relaxed);
        device.tamper(Some(forge));
        let last = REQUESTS + WAITING - 1;
        let (context, _) = post(&pair, last);
        let error = pair.wait(&pair.b.rx, context).unwrap_err();
        println!("{}", error.why);
        // The side that the packet reaches says what is wrong.
        let ended = pair.wait(&pair.a.tx, 0).unwrap_err();
        let seen = match kind {
            PULL => ended,
            _ => error,
        };
        assert_eq!(seen.errno, Errno::EPROTO, "{}", seen.why);
        for n in 1..=last {
            pair.wait(&pair.a.tx, n).unwrap_err();
        }
        device.tamper(None);
        assert_eq!(stat(&pair.a, "verbs_sends_enveloped_now"), 0);
        let begun = "the unexpected messages stay";
        pair.until(begun, || {
            (stat(&pair.b, "verbs_unexpected_now") == 0).then_some(())
        });
        // The two speak again.
        let (context, _) = post(&pair, 7);
        pair.a.send(&pair.b, pair.tagged(7), 8, 7);
        assert_eq!(pair.wait(&pair.b.rx, context).unwrap().tag, 7);
        drop(pair);
        assert_clean(&device);
    }
}

/// An end closes with messages that wait at it, or with their envelopes: the other side's operations
/// end, and nothing is left.
#[test]
fn ends_close_with_waiting_messages() {
    let device = FakeDevice::take();
    let (QueuedPair { a, b, .. }, _memory) = with_waiting_messages(&[]);
    drop(b.endpoint);
    for _ in 0..REQUESTS + WAITING {
        assert!(a.tx.next_alone().is_err());
    }
    drop((a, b.av, b.tx, b.rx));
    assert_clean(&device);

    let (QueuedPair { a, b, .. }, _memory) = with_waiting_messages(&[]);
    drop(a.endpoint);
    let begun = Instant::now();
    while stat(&b, "verbs_unexpected_now") > 0 {
        b.rx.pump();
        assert!(begun.elapsed() < PATIENCE, "the envelopes stay");
    }
    drop((a.av, a.tx, a.rx, b));
    assert_clean(&device);
}
