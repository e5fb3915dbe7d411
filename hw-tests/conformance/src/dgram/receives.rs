//! Receives: those that are too short, datagrams without a receive, many receives at once.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::SendOp;

use super::pair::{DatagramForm, DatagramPair, Room, SEND, SENDDATA, any, send_op};
use crate::counters;
use crate::fabric::Fabric;
use crate::memory::MessageMemory;

/// A datagram that is longer than its receive fills it, and the error says by how much it was
/// longer (fi_cq(3), `olen`).
pub fn truncation(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    for (len, room) in [
        (1, 0),
        (100, 60),
        (100, 8),
        (pair.longest, 0),
        (pair.longest, pair.longest - 1),
    ] {
        for (registered, pieces) in [(false, 1), (true, 1), (false, 2)] {
            let room = Room {
                len: room,
                pieces,
                registered,
            };
            let arrival = pair.deliver(SENDDATA, len, room);
            let error = arrival.event.unwrap_err();
            let what = format!("{len} bytes into {room:?}: {error:?}");
            let lost = len - room.len;
            assert_eq!((error.errno, error.olen), (Errno::ETRUNC, lost), "{what}");
            let c = error.completion;
            assert_eq!(c.context, arrival.posted.context, "{what}");
            assert_eq!(c.len, pair.prefix + room.len, "{what}");
            assert!(c.flags.contains(Flags::MSG | Flags::RECV), "{what}");
            assert_eq!(c.src, pair.to_a, "{what}");
            let memory = &arrival.posted.buffer.memory;
            let name = (room.len >= MessageMemory::NAMED_BYTES).then_some(arrival.number);
            assert_eq!(memory.message(pair.prefix, room.len), Ok(name), "{what}");
            assert_eq!(memory.untouched_behind(c.len), Ok(()), "{what}");
            pair.keep(arrival.posted.buffer);
        }
    }
}

/// A datagram that finds no receive is lost; its send completes as any other; a receive that is
/// posted later gets a later one.
pub fn a_datagram_without_a_receive_is_lost(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    for number in 0..20 {
        let context = pair.send(SEND, number, 100);
        pair.sent(context);
    }
    pair.quiet();
    assert_eq!(pair.a.tx.counts(), (20, 0));
    for registered in [false, true] {
        let room = Room {
            registered,
            ..Room::of(pair.longest)
        };
        let posted = pair.post(room);
        pair.quiet();
        pair.send(
            DatagramForm {
                flags: Flags::INJECT,
                ..SEND
            },
            77,
            100,
        );
        let event = pair.until("it does not arrive", || pair.b.rx.take_of(posted.context));
        assert_eq!(event.unwrap().len, pair.prefix + 100);
        let memory = &posted.buffer.memory;
        assert_eq!(memory.message(pair.prefix, 100), Ok(Some(77)));
        pair.keep(posted.buffer);
    }
}

/// Both send to each other as many as have receives: all arrive, each once.
pub fn both_ways_at_once(fabric: &Fabric) {
    const WINDOW: usize = 32;
    let pair = DatagramPair::open(fabric);
    let len = |number: usize| 8 + number * 131 % (pair.longest - 7);
    for round in 0..10 {
        let mut posted = Vec::new();
        let mut back = Vec::new();
        for at in 0..WINDOW {
            let room = Room {
                registered: at % 3 == 0,
                ..Room::of(pair.longest)
            };
            posted.push(pair.post(room));
            let memory = MessageMemory::for_receive(pair.prefix + pair.longest);
            let context = pair.a.context();
            pair.a.recv(&any(context), &[memory.whole()]).unwrap();
            back.push((context, memory));
        }
        for at in 0..WINDOW {
            let number = round * WINDOW + at;
            let form = DatagramForm {
                flags: Flags::empty(),
                pieces: 1,
                registered: at % 5 == 0,
            };
            pair.send(form, number, len(number));
            let out = pair.message(SEND, number, len(number));
            let op = SendOp {
                flags: Flags::empty(),
                ..send_op(SEND, pair.to_a, 0, number)
            };
            let list = out.list(pair.prefix);
            pair.until("no room for a send", || {
                // SAFETY: the buffer is kept as long as the endpoints.
                unsafe { pair.b.endpoint.send(&op, &list) }.ok()
            });
            pair.keep(out);
        }
        let mut seen = [[false; WINDOW]; 2];
        let mut see = |side: usize, memory: &MessageMemory, bytes: usize| {
            let number = memory.message(pair.prefix, bytes - pair.prefix);
            let number = number.unwrap().unwrap();
            assert_eq!(bytes, pair.prefix + len(number));
            let at = number.checked_sub(round * WINDOW).expect("of this round");
            assert!(!std::mem::replace(&mut seen[side][at], true), "twice");
        };
        for posted in posted {
            let event = pair.until("not all arrive", || pair.b.rx.take_of(posted.context));
            see(0, &posted.buffer.memory, event.unwrap().len);
            pair.keep(posted.buffer);
        }
        for (context, memory) in back {
            let event = pair.until("not all come back", || pair.a.rx.take_of(context));
            see(1, &memory, event.unwrap().len);
        }
    }
}

/// Counters of bytes count what datagrams hold, without prefixes.
pub fn counters_of_bytes(fabric: &Fabric) {
    counters::of_bytes(fabric.domain(0), fabric.domain(1));
}

/// Receives that fail count as errors, those that are served as successes (fi_cntr(3)).
pub fn failed_receives_are_counted(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    pair.deliver(SEND, 50, Room::of(50)).event.unwrap();
    pair.deliver(SEND, 50, Room::of(9)).event.unwrap_err();
    let posted = pair.post(Room::of(50));
    pair.b.endpoint.cancel(posted.context).unwrap();
    let event = pair.until("it is not cancelled", || pair.b.rx.take_of(posted.context));
    assert_eq!(event.unwrap_err().errno, Errno::ECANCELED);
    assert_eq!(pair.b.rx.counts(), (1, 2));
    let (cntr, before) = (&pair.b.rx.cntr, 1);
    cntr.add_errors(5).unwrap();
    assert_eq!(pair.b.rx.counts(), (before, 7));
    assert_eq!(pair.a.tx.counts().1, 0);
}
