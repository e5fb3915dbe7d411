//! The source of a datagram (`FI_SOURCE` and `FI_SOURCE_ERR` of fi_getinfo(3)).

use std::time::Instant;

use ferrofabric_av::format;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf};

use super::pair::{DatagramForm, DatagramPair, Room, SEND, any, send_op};
use crate::ends::{PATIENCE, QueuedEndpoint};
use crate::fabric::Fabric;

/// A completion names a sender that is in the address vector when the datagram is received, by its
/// address in this vector. For another sender it says `FI_ADDR_NOTAVAIL`. It never names the wrong
/// sender.
///
/// Covers: AV-17, AV-25
pub fn known_and_unknown(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    let others = [0, 2].map(|rank| QueuedEndpoint::open(fabric.domain(rank)));
    let to_b: Vec<FiAddr> = others
        .iter()
        .map(|other| other.av.insert(&pair.b.endpoint.name().to_bytes()).unwrap())
        .collect();
    let names = others
        .each_ref()
        .map(|other| other.endpoint.name().to_bytes());
    // The content is the sender's number: a late datagram is not mistaken for that of the other
    // sender.
    let ask = |which: usize| {
        pair.fall_silent();
        let mut posted = pair.post(Room::of(8));
        let out = pair.message(SEND, which, 8);
        let form = DatagramForm {
            flags: Flags::INJECT | Flags::COMPLETION,
            ..SEND
        };
        let sender = &others[which];
        let until = Instant::now() + PATIENCE;
        loop {
            let op = send_op(form, to_b[which], sender.context(), 0);
            // SAFETY: an inject is copied.
            unsafe { sender.endpoint.send(&op, &out.list(pair.prefix)) }.unwrap();
            sender.tx.next_alone().unwrap();
            let since = Instant::now();
            while since.elapsed() < fabric.silence.unwrap_or(PATIENCE) {
                pair.b.rx.pump();
                let Some(event) = pair.b.rx.take_of(posted.context) else {
                    continue;
                };
                let said = posted.buffer.memory.message(pair.prefix, 8);
                pair.keep(posted.buffer);
                if said == Ok(Some(which)) {
                    return event.unwrap().src;
                }
                assert!(fabric.silence.is_some(), "{which}: {said:?}");
                posted = pair.post(Room::of(8));
            }
            assert!(Instant::now() < until, "nothing arrives");
        }
    };
    let av = &pair.b.av;
    assert_eq!(ask(0), FiAddr::NOTAVAIL);
    let known = names.each_ref().map(|name| av.insert(name).unwrap());
    for which in [0, 1, 0] {
        assert_eq!(ask(which), known[which]);
    }
    av.remove(known[0]).unwrap();
    assert_eq!(ask(0), FiAddr::NOTAVAIL);
    assert_eq!(ask(1), known[1]);
    let again = av.insert(&names[0]).unwrap();
    assert_eq!((ask(0), ask(1)), (again, known[1]));
    assert_ne!(again, known[0], "a removed address comes back another");
    // A receive that names its source is one from anybody: datagrams match nothing.
    let op = ferrofabric_contracts::types::RecvOp {
        src: known[1],
        ..any(pair.b.context())
    };
    if fabric.silence.is_none() && !fabric.offers(Flags::DIRECTED_RECV) {
        let room = pair.b.memory(pair.prefix + 8, 0);
        pair.b.recv(&op, &[room]).unwrap();
        let form = DatagramForm {
            flags: Flags::INJECT,
            ..SEND
        };
        let out: IoBuf = others[0].memory(pair.prefix + 8, 1);
        let send = send_op(form, to_b[0], 0, 0);
        // SAFETY: an inject is copied.
        unsafe { others[0].endpoint.send(&send, &[out]) }.unwrap();
        let c = pair.until("it does not arrive", || {
            others[0].tx.pump();
            pair.b.rx.take_of(op.context)
        });
        assert_eq!(c.unwrap().src, again);
    }
}

/// The datagram of an unknown source lies in the buffer of a receiver with `FI_SOURCE_ERR`. Its
/// completion is an error that names the source. Inserted by that name the source is a peer, which
/// the completions of later datagrams name.
///
/// Covers: AV-25
pub fn unknown_sources_are_named(fabric: &Fabric) {
    let pair = DatagramPair::open_with(fabric, |config| config.source_err = true);
    let format = pair.fabric.info().addr_format;
    let own = pair.a.endpoint.name().verbs.unwrap();
    pair.b.av.remove(pair.to_a).unwrap();
    let into_slot = Room::of(8);
    let direct = Room {
        len: pair.longest,
        registered: true,
        ..into_slot
    };
    for room in [into_slot, direct] {
        let arrival = pair.deliver(SEND, 8, room);
        let error = arrival.event.unwrap_err();
        assert_eq!(error.errno, Errno::EADDRNOTAVAIL, "{error:?}");
        let c = &error.completion;
        assert_eq!(
            (c.context, c.src),
            (arrival.posted.context, FiAddr::NOTAVAIL)
        );
        assert_eq!((c.len, error.olen), (pair.prefix + 8, 0));
        let memory = &arrival.posted.buffer.memory;
        assert_eq!(memory.message(pair.prefix, 8), Ok(Some(arrival.number)));
        pair.keep(arrival.posted.buffer);
        let sender = error.sender.expect("the name of the sender");
        let verbs = sender.verbs.unwrap();
        // Within a subnet of InfiniBand a datagram carries the LID in place of the GID.
        let path = verbs.gid == own.gid || own.lid != 0 && verbs.lid == own.lid;
        assert!(
            path && verbs.qpn == own.qpn,
            "{verbs:?} in place of {own:?}"
        );

        let addr = pair
            .b
            .av
            .insert(&format::endpoint_to_bytes(format, &sender))
            .unwrap();
        let arrival = pair.deliver(SEND, 8, room);
        assert_eq!(arrival.event.unwrap().src, addr);
        pair.keep(arrival.posted.buffer);
        pair.b.av.remove(addr).unwrap();
    }
}
