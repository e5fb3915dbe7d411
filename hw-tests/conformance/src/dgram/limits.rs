//! Limits are those of the offer (fi_getinfo(3), fi_endpoint(3)): a request beyond a limit is
//! refused, a request within it works.

use std::time::Instant;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf};

use super::pair::{DatagramForm, DatagramPair, PostedReceive, Room, SEND, SENDDATA, any, send_op};
use crate::ends::PATIENCE;
use crate::fabric::Fabric;

/// A datagram is as long as `max_msg_size` says; one byte more is refused, by each call, and
/// nothing is sent.
///
/// Covers: GI-4
pub fn longer_than_the_limit(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    let posted = pair.post(Room::of(pair.longest + 100));
    let inject = fabric.info().tx.inject_size;
    for (flags, len) in [
        (Flags::COMPLETION, pair.longest + 1),
        (Flags::COMPLETION | Flags::REMOTE_CQ_DATA, pair.longest + 1),
        (Flags::INJECT, inject + 1),
        (Flags::INJECT, pair.longest + 1),
        (Flags::COMPLETION, 1 << 20),
    ] {
        for pieces in [1, 2] {
            for registered in [false, true] {
                let form = DatagramForm {
                    flags,
                    pieces,
                    registered: registered && pieces == 1,
                };
                let out = pair.message(form, 1, len);
                let op = send_op(form, pair.to_b, pair.a.context(), 1);
                // SAFETY: nothing of it is used.
                let refused = unsafe { pair.a.endpoint.send(&op, &out.list(pair.prefix)) };
                let too_long = Err(OpError::Failed(Errno::EMSGSIZE));
                assert_eq!(refused, too_long, "{len} bytes, {form:?}");
            }
        }
    }
    pair.quiet();
    assert_eq!(pair.a.tx.counts(), (0, 0));
    // The next datagram goes into a receive of its own, since the network may lose it.
    pair.b.endpoint.cancel(posted.context).unwrap();
    let event = pair.until("it is not cancelled", || pair.b.rx.take_of(posted.context));
    assert_eq!(event.unwrap_err().errno, Errno::ECANCELED);
    assert_eq!(posted.buffer.memory.untouched_behind(0), Ok(()));
    pair.keep(posted.buffer);
    let arrival = pair.deliver(SENDDATA, pair.longest, Room::of(pair.longest + 100));
    pair.check(&arrival, SENDDATA, pair.longest);
}

/// Sends that others were to follow (`FI_MORE` of fi_msg(3)) are not held back any longer when one
/// of those is refused.
pub fn an_error_ends_a_run(fabric: &Fabric) {
    const RUN: usize = 3;
    let pair = DatagramPair::open(fabric);
    // Once its path is known a datagram goes at once.
    pair.deliver(SEND, 8, Room::of(8));
    let more = DatagramForm {
        flags: Flags::COMPLETION | Flags::MORE,
        ..SEND
    };
    let nobody = FiAddr(1 << 20);
    for (flags, to, len, errno) in [
        (Flags::MORE, pair.to_b, pair.longest + 1, Errno::EMSGSIZE),
        (Flags::empty(), nobody, 8, Errno::EADDRNOTAVAIL),
        (Flags::DELIVERY_COMPLETE, pair.to_b, 8, Errno::EOPNOTSUPP),
    ] {
        let run: Vec<PostedReceive> = (0..RUN).map(|_| pair.post(Room::of(8))).collect();
        let sent: Vec<u64> = (0..RUN).map(|n| pair.send(more, n, 8)).collect();
        let form = DatagramForm {
            flags: SEND.flags | flags,
            ..SEND
        };
        let out = pair.message(form, RUN, len);
        let op = send_op(form, to, pair.a.context(), RUN);
        // SAFETY: nothing of it is used.
        let refused = unsafe { pair.a.endpoint.send(&op, &out.list(pair.prefix)) };
        assert_eq!(refused, Err(OpError::Failed(errno)));
        // Their sender is not driven.
        let until = Instant::now() + PATIENCE;
        for posted in run {
            while pair.b.rx.take_of(posted.context).is_none() {
                assert!(Instant::now() < until, "held back after {errno:?}");
                pair.b.rx.pump();
            }
            pair.keep(posted.buffer);
        }
        for context in sent {
            pair.sent(context);
        }
    }
}

/// The prefix has to be whole in the first buffer (`FI_MSG_PREFIX` of fi_msg(3)); with nothing
/// behind it, the message is empty.
///
/// Covers: GI-4
pub fn too_short_for_the_prefix(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    if pair.prefix > 0 {
        let short = [pair.a.memory(pair.prefix - 1, 0), pair.a.memory(100, 0)];
        let invalid = Err(OpError::Failed(Errno::EINVAL));
        for list in [&short[..1], &short[..], &[]] {
            for flags in [Flags::COMPLETION, Flags::INJECT] {
                let op = send_op(DatagramForm { flags, ..SEND }, pair.to_b, 1, 1);
                // SAFETY: nothing of it is used.
                let refused = unsafe { pair.a.endpoint.send(&op, list) };
                assert_eq!(refused, invalid, "{flags:?}");
            }
            assert_eq!(pair.b.recv(&any(1), list), invalid);
        }
    }
    let arrival = pair.deliver(SENDDATA, 0, Room::of(0));
    pair.check(&arrival, SENDDATA, 0);
}

/// So many receives can be posted as `rx_attr->size` says, whatever their buffers, and each gets a
/// datagram.
pub fn as_many_receives_as_offered(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    let depth = fabric.info().rx.size;
    let room = |at: usize| Room {
        registered: at % 2 == 0,
        ..Room::of(pair.longest)
    };
    let all: Vec<PostedReceive> = (0..depth).map(|at| pair.post(room(at))).collect();
    let one = [IoBuf::EMPTY; 1];
    let list = match pair.prefix {
        0 => one,
        prefix => [pair.b.memory(prefix, 0)],
    };
    assert_eq!(pair.b.recv(&any(1), &list), Err(OpError::Again));
    for (at, posted) in all.into_iter().enumerate() {
        let context = pair.send(SENDDATA, at, 20);
        pair.sent(context);
        // On a network that loses nothing, and reorders nothing on one path.
        let event = pair.until("it does not arrive", || pair.b.rx.take());
        let c = event.unwrap();
        assert_eq!(c.context, posted.context, "datagram {at}");
        assert_eq!(posted.buffer.memory.message(pair.prefix, 20), Ok(Some(at)));
        pair.keep(posted.buffer);
    }
}

/// As many sends as `tx_attr->size` says find room; those that find none are refused with `EAGAIN`,
/// and can be sent later.
pub fn more_sends_than_there_is_room_for(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    let count = 4 * fabric.info().tx.size;
    let list = [pair.a.memory(pair.prefix + 8, 1)];
    let mut sent = 0;
    for context in 0..count as u64 {
        let op = send_op(SEND, pair.to_b, context, 0);
        // SAFETY: the memory lives as long as the endpoint.
        match unsafe { pair.a.endpoint.send(&op, &list) } {
            Ok(()) => sent += 1,
            Err(OpError::Again) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(sent >= fabric.info().tx.size, "{sent} sends find room");
    pair.until("the sends are not over", || {
        (pair.a.tx.counts().0 == sent as u64).then_some(())
    });
    for _ in 0..sent {
        let event = pair.until("a send does not complete", || pair.a.tx.take());
        event.unwrap();
    }
    // Some datagrams may still be on their way, and meet the receives of the next check.
    let flood = usize::from_le_bytes([1; 8]);
    let delivered = (0..=sent).any(|_| {
        let arrival = pair.deliver(SEND, 8, Room::of(8));
        let name = arrival.posted.buffer.memory.message(pair.prefix, 8);
        name.unwrap() != Some(flood)
    });
    assert!(delivered, "nothing is delivered behind {sent} datagrams");
}
