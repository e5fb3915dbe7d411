//! Receives that are taken back (fi_cancel of fi_endpoint(3)).

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;

use super::pair::{DatagramForm, DatagramPair, PostedReceive, Room, SEND, SENDDATA};
use crate::fabric::Fabric;

/// A receive that is taken back completes with `ECANCELED` and takes no datagram; the others take
/// theirs.
pub fn cancelled_receives_take_nothing(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    // Such as the device has, such as it has not, and both by turns.
    for registered in [[false; 4], [true; 4], [true, false, true, false]] {
        let mut posted: Vec<PostedReceive> = registered
            .into_iter()
            .map(|registered| {
                pair.post(Room {
                    registered,
                    ..Room::of(pair.longest)
                })
            })
            .collect();
        let cancelled = posted.remove(1);
        pair.b.endpoint.cancel(cancelled.context).unwrap();
        let event = pair.until("it is not cancelled", || pair.b.rx.take());
        let error = event.unwrap_err();
        assert_eq!(error.errno, Errno::ECANCELED);
        assert_eq!(error.completion.context, cancelled.context);
        assert_eq!(error.completion.flags, Flags::MSG | Flags::RECV);
        let over = Err(OpError::Failed(Errno::ENOENT));
        assert_eq!(pair.b.endpoint.cancel(cancelled.context), over);
        let mut left: Vec<u64> = posted.iter().map(|posted| posted.context).collect();
        for number in 0..3 {
            let context = pair.send(SENDDATA, number, 50);
            pair.sent(context);
            let c = pair.until("it does not arrive", || pair.b.rx.take());
            let c = c.unwrap();
            let at = left.iter().position(|&context| context == c.context);
            left.remove(at.expect("one of those that are left"));
            let into = posted.iter().find(|posted| posted.context == c.context);
            let memory = &into.unwrap().buffer.memory;
            assert_eq!(memory.message(pair.prefix, 50), Ok(Some(number)));
        }
        // The device may still hold the cancelled receive: that receive alone may take this
        // datagram.
        let context = pair.send(SEND, 9, 9);
        pair.sent(context);
        pair.quiet();
        assert_eq!(cancelled.buffer.memory.untouched_behind(0), Ok(()));
        for posted in posted {
            pair.keep(posted.buffer);
        }
        pair.keep(cancelled.buffer);
    }
    let none = pair.b.endpoint.cancel(u64::MAX);
    assert_eq!(none, Err(OpError::Failed(Errno::ENOENT)));
}

/// Datagrams are sent and complete, both those from before and those from after a cancellation of a
/// receive of their sender.
pub fn sends_around_a_cancellation(fabric: &Fabric) {
    const SENDS: usize = 20;
    let pair = DatagramPair::open(fabric);
    let quiet = DatagramForm {
        flags: Flags::INJECT,
        ..SEND
    };
    for round in 0..5 {
        let domain = fabric.domain(0);
        let memory = crate::memory::MessageMemory::for_receive(pair.prefix + pair.longest);
        let own = super::pair::OperationBuffer::new(domain, memory, 1, true);
        let op = ferrofabric_contracts::types::RecvOp {
            desc: own.desc(),
            ..super::pair::any(pair.a.context())
        };
        pair.a.recv(&op, &own.list(pair.prefix)).unwrap();
        let posted: Vec<PostedReceive> = (0..2 * SENDS)
            .map(|_| pair.post(Room::of(pair.longest)))
            .collect();
        let mut sends = Vec::new();
        for number in 0..SENDS {
            pair.send(quiet, 2 * number, 13);
            let form = DatagramForm {
                registered: true,
                ..SEND
            };
            sends.push(pair.send(form, 2 * number + 1, pair.longest));
        }
        pair.a.endpoint.cancel(op.context).unwrap();
        let event = pair.until("it is not cancelled", || pair.a.rx.take_of(op.context));
        assert_eq!(event.unwrap_err().errno, Errno::ECANCELED);
        for context in sends {
            pair.sent(context);
        }
        for (number, posted) in posted.into_iter().enumerate() {
            let event = pair.until("not all arrive", || pair.b.rx.take_of(posted.context));
            let len = event.unwrap().len - pair.prefix;
            assert_eq!(len, [13, pair.longest][number % 2], "round {round}");
            let memory = &posted.buffer.memory;
            assert_eq!(memory.message(pair.prefix, len), Ok(Some(number)));
            pair.keep(posted.buffer);
        }
        pair.keep(own);
    }
    let arrival = pair.deliver(SENDDATA, 100, Room::of(100));
    pair.check(&arrival, SENDDATA, 100);
}
