//! Every form of send, of every size at which something changes, before and after its receive
//! (fi_msg(3), fi_tagged(3)).

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MsgKind, RecvOp, SendOp};

use crate::ends::{QueuedPair, any_tagged};
use crate::fabric::Fabric;
use crate::memory::MessageMemory;

const KINDS: [MsgKind; 2] = [MsgKind::Msg, MsgKind::Tagged];

/// How a message is sent: the flags by which the calls differ, and the buffers.
#[derive(Clone, Copy, Debug)]
struct SendForm {
    call: &'static str,
    flags: Flags,
    pieces: usize,
}

/// fi_send, fi_sendv, fi_senddata, fi_inject, fi_injectdata, fi_sendmsg, and with a `t` in front
/// the tagged ones.
const FORMS: [SendForm; 6] = [
    SendForm {
        call: "send",
        flags: Flags::COMPLETION,
        pieces: 1,
    },
    SendForm {
        call: "sendv",
        flags: Flags::COMPLETION,
        pieces: 4,
    },
    SendForm {
        call: "senddata",
        flags: Flags::COMPLETION.union(Flags::REMOTE_CQ_DATA),
        pieces: 1,
    },
    SendForm {
        call: "inject",
        flags: Flags::INJECT,
        pieces: 1,
    },
    SendForm {
        call: "injectdata",
        flags: Flags::INJECT.union(Flags::REMOTE_CQ_DATA),
        pieces: 1,
    },
    SendForm {
        call: "sendmsg",
        flags: Flags::COMPLETION
            .union(Flags::INJECT)
            .union(Flags::REMOTE_CQ_DATA),
        pieces: 2,
    },
];

/// Each call delivers what it was given, with source, tag, length and CQ data, whether the receive
/// was there before it or comes after it; a buffer is free when its send completes, that of an
/// inject when the call returns.
///
/// Covers: PEER-8, PEER-9
pub fn each_form_of_send(fabric: &Fabric) {
    for (a, b) in fabric.paths() {
        let pair = QueuedPair::open(fabric.domain(a), fabric.domain(b));
        for kind in KINDS {
            for form in FORMS {
                for early in [true, false] {
                    each_size(fabric, &pair, kind, form, early);
                }
            }
        }
    }
}

fn each_size(fabric: &Fabric, pair: &QueuedPair, kind: MsgKind, form: SendForm, early: bool) {
    let info = fabric.info();
    let limit = match form.flags.contains(Flags::INJECT) {
        true => info.tx.inject_size,
        false => fabric.longest,
    };
    for (number, len) in fabric.edges(limit).into_iter().enumerate() {
        let what = format!(
            "{}: {} of {len} bytes, {kind:?}, receive posted first: {early}",
            fabric.name, form.call
        );
        let recv = RecvOp {
            kind,
            src: pair.to_a,
            ..any_tagged(pair.b.context())
        };
        let room = MessageMemory::for_receive(len);
        if early {
            pair.b.recv(&recv, &room.list(1)).unwrap();
        }
        let out = MessageMemory::of_message(number, len);
        let tag = match kind {
            MsgKind::Msg | MsgKind::Remote(_) => 0,
            MsgKind::Tagged => 0x1234_5678_9abc_def0 ^ len as u64,
        };
        let send = SendOp {
            kind,
            data: u64::MAX - number as u64,
            flags: form.flags,
            ..pair.tagged(tag)
        };
        pair.send_list(&send, &out.list(form.pieces.min(info.tx.iov_limit)));
        if form.flags.contains(Flags::INJECT) {
            out.spoil();
        }
        if !early {
            // It is there before its receive, as far as it ever is.
            let peek = RecvOp {
                flags: Flags::PEEK,
                context: pair.b.context(),
                ..recv
            };
            pair.until(&what, || pair.b.probe(&peek).ok());
            pair.b.recv(&recv, &room.list(1)).unwrap();
        }
        let c = pair.wait(&pair.b.rx, recv.context).expect(&what);
        let data = match form.flags.contains(Flags::REMOTE_CQ_DATA) {
            true => (Flags::REMOTE_CQ_DATA, send.data),
            false => (Flags::empty(), 0),
        };
        assert_eq!((c.len, c.tag, c.src), (len, tag, pair.to_a), "{what}");
        assert_eq!((c.flags - kind.recv_flags(), c.data), data, "{what}");
        assert_eq!(c.buf, room.addr(), "{what}");
        if form.flags.contains(Flags::COMPLETION) {
            let c = pair.wait(&pair.a.tx, send.context).expect(&what);
            assert_eq!(c.flags, kind.send_flags(), "{what}");
            out.spoil();
        }
        let name = (len >= MessageMemory::NAMED_BYTES).then_some(number);
        assert_eq!(room.message(0, len), Ok(name), "{what}");
        assert_eq!(room.untouched_behind(len), Ok(()), "{what}");
        pair.keep([out, room]);
    }
}

/// A message that is longer than its receive fills it, and the error says by how much it was longer
/// (fi_cq(3), `olen`).
///
/// Covers: PEER-9
pub fn truncation_of_each_size(fabric: &Fabric) {
    for (a, b) in fabric.paths() {
        let pair = QueuedPair::open(fabric.domain(a), fabric.domain(b));
        for kind in KINDS {
            for early in [true, false] {
                for len in fabric
                    .edges(fabric.longest)
                    .into_iter()
                    .filter(|len| *len > 0)
                {
                    for room in [0, len / 2, len - 1] {
                        truncated(&pair, kind, early, len, room);
                    }
                }
            }
        }
    }
}

fn truncated(pair: &QueuedPair, kind: MsgKind, early: bool, len: usize, room: usize) {
    let what = format!("{len} bytes to {room}, {kind:?}, receive posted first: {early}");
    let recv = RecvOp {
        kind,
        ..any_tagged(pair.b.context())
    };
    let into = MessageMemory::for_receive(room);
    let out = MessageMemory::of_message(len, len);
    if early {
        pair.b.recv(&recv, &into.list(1)).unwrap();
    }
    let send = SendOp {
        kind,
        ..pair.tagged(0)
    };
    pair.send_list(&send, &out.list(1));
    if !early {
        pair.drive();
        pair.b.recv(&recv, &into.list(1)).unwrap();
    }
    let error = pair.wait(&pair.b.rx, recv.context).expect_err(&what);
    assert_eq!(
        (error.errno, error.olen),
        (Errno::ETRUNC, len - room),
        "{what}"
    );
    assert_eq!(
        (error.completion.len, error.completion.src),
        (room, pair.to_a),
        "{what}"
    );
    let name = (room >= MessageMemory::NAMED_BYTES).then_some(len);
    assert_eq!(into.message(0, room), Ok(name), "{what}");
    assert_eq!(into.untouched_behind(room), Ok(()), "{what}");
    // The sender's completion is a success.
    pair.wait(&pair.a.tx, send.context).expect(&what);
    pair.keep([out, into]);
}

/// A list of buffers may have empty ones, and one byte too many for a list or an inject is refused
/// before anything is sent.
pub fn a_send_that_is_refused_sends_nothing(fabric: &Fabric) {
    for (a, b) in fabric.paths() {
        let pair = QueuedPair::open(fabric.domain(a), fabric.domain(b));
        let tx = &fabric.info().tx;
        let out = MessageMemory::of_message(1, tx.inject_size + 1);
        let inject = SendOp {
            flags: Flags::INJECT,
            ..pair.tagged(1)
        };
        let refused = |op: &SendOp, iov: &[IoBuf]| pair.try_send(op, iov).unwrap_err().errno();
        assert_eq!(refused(&inject, &out.list(1)), Errno::EMSGSIZE);
        let many = vec![IoBuf::EMPTY; tx.iov_limit + 1];
        assert_eq!(refused(&pair.tagged(1), &many), Errno::EINVAL);
        // The next send is the first to arrive.
        let recv = any_tagged(pair.b.context());
        pair.b.recv(&recv, &[]).unwrap();
        let send = pair.tagged(2);
        pair.send_list(&send, &vec![IoBuf::EMPTY; tx.iov_limit]);
        assert_eq!(pair.wait(&pair.b.rx, recv.context).unwrap().tag, 2);
        pair.wait(&pair.a.tx, send.context).unwrap();
        pair.drive();
        assert!(pair.a.tx.take().is_none() && pair.b.rx.take().is_none());
        pair.keep([out]);
    }
}

/// The flags of a message of a collective operation, for its send.
const COLLECTIVE_SEND: Flags = Flags::COMPLETION.union(Flags::RMA).union(Flags::COLLECTIVE);

/// The completions of messages of collective operations have the flag that says so, whatever their
/// end, and no counter counts them.
pub fn messages_of_collectives(fabric: &Fabric) {
    for (a, b) in fabric.paths() {
        let pair = QueuedPair::open(fabric.domain(a), fabric.domain(b));
        let counts = || (pair.a.tx.counts(), pair.b.rx.counts());
        let before = counts();
        for len in fabric.edges(fabric.longest) {
            for (early, room) in [(true, len), (false, len), (true, len / 2)] {
                of_collective(&pair, len, room, early);
            }
        }
        let recv = RecvOp {
            flags: Flags::COLLECTIVE,
            ..any_tagged(pair.b.context())
        };
        pair.b.recv(&recv, &[IoBuf::EMPTY]).unwrap();
        // The application's cancellations are for its own receives.
        let missing = Err(OpError::Failed(Errno::ENOENT));
        assert_eq!(pair.b.endpoint.cancel(recv.context), missing);
        pair.b.endpoint.cancel_collective(recv.context).unwrap();
        let error = pair.wait(&pair.b.rx, recv.context).unwrap_err();
        let flags = recv.kind.recv_flags() | Flags::COLLECTIVE;
        let cancelled = (error.errno, error.completion.flags);
        assert_eq!(cancelled, (Errno::ECANCELED, flags));
        assert_eq!(counts(), before);
    }
}

fn of_collective(pair: &QueuedPair, len: usize, room: usize, early: bool) {
    let what = format!("{len} bytes to {room}, receive posted first: {early}");
    let recv = RecvOp {
        flags: Flags::COLLECTIVE,
        ..any_tagged(pair.b.context())
    };
    let (into, out) = (
        MessageMemory::for_receive(room),
        MessageMemory::of_message(len, len),
    );
    if early {
        pair.b.recv(&recv, &into.list(1)).unwrap();
    }
    let send = SendOp {
        flags: COLLECTIVE_SEND,
        ..pair.tagged(1 << 63)
    };
    pair.send_list(&send, &out.list(1));
    if !early {
        pair.drive();
        pair.b.recv(&recv, &into.list(1)).unwrap();
    }
    let flags = recv.kind.recv_flags() | Flags::COLLECTIVE;
    match pair.wait(&pair.b.rx, recv.context) {
        Ok(c) => assert_eq!((c.flags, c.tag, room), (flags, send.tag, len), "{what}"),
        Err(error) => {
            let truncated = (error.errno, error.completion.flags, room < len);
            assert_eq!(truncated, (Errno::ETRUNC, flags, true), "{what}");
        }
    }
    let c = pair.wait(&pair.a.tx, send.context).expect(&what);
    assert_eq!(
        c.flags,
        send.kind.send_flags() | Flags::COLLECTIVE,
        "{what}"
    );
    let whole = room.min(len);
    let name = (whole >= MessageMemory::NAMED_BYTES).then_some(len);
    assert_eq!(into.message(0, whole), Ok(name), "{what}");
    pair.keep([out, into]);
}
