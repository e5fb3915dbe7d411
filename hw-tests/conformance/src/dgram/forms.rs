//! Every form of send and of receive, of every size at which something changes (fi_msg(3)).

use ferrofabric_contracts::flags::Flags;

use super::pair::{DatagramForm, DatagramPair, Room, SEND, SENDDATA, any, data_of, send_op};
use crate::fabric::Fabric;
use crate::memory::MessageMemory;

const INJECT: DatagramForm = DatagramForm {
    flags: Flags::INJECT,
    ..SEND
};

/// fi_send, from memory that is registered and such that is not; fi_sendv; fi_senddata; fi_inject;
/// fi_injectdata; fi_sendmsg.
const FORMS: [DatagramForm; 7] = [
    SEND,
    DatagramForm {
        registered: true,
        ..SEND
    },
    DatagramForm { pieces: 3, ..SEND },
    SENDDATA,
    INJECT,
    DatagramForm {
        flags: Flags::INJECT.union(Flags::REMOTE_CQ_DATA),
        ..SEND
    },
    DatagramForm {
        flags: Flags::INJECT
            .union(Flags::COMPLETION)
            .union(Flags::REMOTE_CQ_DATA),
        pieces: 2,
        registered: false,
    },
];

fn sizes(pair: &DatagramPair<'_>, form: DatagramForm) -> Vec<usize> {
    let limit = match form.flags.contains(Flags::INJECT) {
        true => pair.fabric.info().tx.inject_size,
        false => pair.longest,
    };
    let limit = limit.min(pair.longest);
    let mut sizes = pair.fabric.edges(limit);
    sizes.extend([511, 512, 513, limit.saturating_sub(1), limit]);
    // Datagrams that are too short for a number of their own all look alike, so none of them may
    // come late.
    let known = pair.fabric.silence.is_none();
    sizes.retain(|&len| len <= limit && (known || len >= MessageMemory::NAMED_BYTES));
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Each call delivers what it was given, with source, length and CQ data; a buffer is free when its
/// send completes, that of an inject when the call returns.
pub fn each_form_of_send(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    for form in FORMS {
        for len in sizes(&pair, form) {
            let arrival = pair.deliver(form, len, Room::of(pair.longest));
            pair.check(&arrival, form, len);
            pair.keep(arrival.posted.buffer);
        }
    }
    pair.fall_silent();
    pair.quiet();
}

/// Buffers that just fit, longer ones, such as the device gets itself, and lists: the datagram is
/// there, and nothing behind it.
///
/// Covers: AV-25
pub fn each_form_of_receive(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    let limit = fabric.info().rx.iov_limit;
    for len in sizes(&pair, SEND) {
        for registered in [false, true] {
            for room in [len, pair.longest, pair.longest + 100] {
                for pieces in [1, limit] {
                    let room = Room {
                        len: room,
                        pieces,
                        registered: registered && pieces == 1,
                    };
                    let arrival = pair.deliver(SENDDATA, len, room);
                    pair.check(&arrival, SENDDATA, len);
                    pair.keep(arrival.posted.buffer);
                }
            }
        }
    }
}

/// CQ data has as many bytes as `cq_data_size` says; higher bytes are cut off.
pub fn cq_data_has_as_many_bytes_as_offered(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    let bytes = fabric.info().domain.cq_data_size;
    assert!(bytes >= 4, "fi_domain(3): room for 4 bytes at least");
    let mask = u64::MAX >> (64 - 8 * bytes.min(8) as u32);
    for data in [0, 1, 0x89ab_cdef, 0x7_0000_0001, u64::MAX] {
        let posted = pair.post(Room::of(0));
        let out = pair.message(SENDDATA, 0, 0);
        let op = ferrofabric_contracts::types::SendOp {
            data,
            ..send_op(SENDDATA, pair.to_b, pair.a.context(), 0)
        };
        // SAFETY: the buffer is kept until both are over.
        unsafe { pair.a.endpoint.send(&op, &out.list(pair.prefix)) }.unwrap();
        pair.sent(op.context);
        let event = pair.until("it does not arrive", || pair.b.rx.take_of(posted.context));
        let c = event.unwrap();
        assert_eq!(c.flags, Flags::MSG | Flags::RECV | Flags::REMOTE_CQ_DATA);
        assert_eq!(c.data, data & mask);
        pair.keep(out);
        pair.keep(posted.buffer);
    }
}

/// Without `FI_COMPLETION` nothing completes that goes well, and counters count it all the same.
pub fn only_flagged_operations_complete(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    const COUNT: u64 = 10;
    for number in 0..COUNT as usize {
        let buffer = pair.message(SEND, number, 100);
        let op = ferrofabric_contracts::types::RecvOp {
            flags: Flags::empty(),
            ..any(pair.b.context())
        };
        pair.b.recv(&op, &buffer.list(pair.prefix)).unwrap();
        pair.keep(buffer);
        let form = match number % 2 {
            0 => INJECT,
            _ => DatagramForm {
                flags: Flags::empty(),
                ..SEND
            },
        };
        pair.send(form, number, 100);
    }
    pair.until("not all are counted", || {
        let counts = (pair.a.tx.counts(), pair.b.rx.counts());
        (counts == ((COUNT, 0), (COUNT, 0))).then_some(())
    });
    pair.quiet();
    let arrival = pair.deliver(SENDDATA, 8, Room::of(8));
    assert_eq!(arrival.event.unwrap().data, data_of(arrival.number));
    assert_eq!(pair.b.rx.counts(), (COUNT + 1, 0));
}
