//! Messages as an application of libfabric's sends and receives them: fi_msg(3), fi_tagged(3),
//! fi_endpoint(3).

use crate::{support, two};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::Instant;

use ferro_fi::abi::{
    FI_ADDR_UNSPEC, FI_CLAIM, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_DISCARD, FI_ECANCELED,
    FI_ENOMSG, FI_ETRUNC, FI_INJECT, FI_MORE, FI_MSG, FI_MSG_PREFIX, FI_MULTI_RECV,
    FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, FI_PEEK, FI_RECV, FI_REMOTE_CQ_DATA, FI_SEND,
    FI_SETOPSFLAG, FI_SOURCE, FI_TAGGED, FI_TRANSMIT, fi_addr_t, fi_cntr_events, fi_cq_err_entry,
    fi_ep_type, fi_msg, fi_msg_tagged, fid, fid_cq,
};
use libc::iovec;
use support::{has_device, skip};
use two::{
    EAGAIN, PATIENCE, Side, Two, control, count, everywhere, insert, next, next_from, over_verbs,
    read, shape,
};

const KINDS: [u64; 2] = [FI_MSG, FI_TAGGED];

/// A call that sends, with the flags of those calls that take flags.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SendCall {
    Plain,
    Vector,
    Data,
    Inject,
    InjectData,
    Message(u64),
}

const SENDS: [SendCall; 7] = [
    SendCall::Plain,
    SendCall::Vector,
    SendCall::Data,
    SendCall::Inject,
    SendCall::InjectData,
    SendCall::Message(FI_COMPLETION),
    SendCall::Message(FI_COMPLETION | FI_INJECT | FI_REMOTE_CQ_DATA),
];

impl SendCall {
    fn has_data(self) -> bool {
        match self {
            Self::Data | Self::InjectData => true,
            Self::Message(flags) => flags & FI_REMOTE_CQ_DATA != 0,
            _ => false,
        }
    }

    fn injects(self) -> bool {
        match self {
            Self::Inject | Self::InjectData => true,
            Self::Message(flags) => flags & FI_INJECT != 0,
            _ => false,
        }
    }

    fn completes(self) -> bool {
        !matches!(self, Self::Inject | Self::InjectData)
    }
}

/// A message, and what it is sent with.
#[derive(Clone, Copy)]
struct SentMessage<'a> {
    kind: u64,
    bytes: &'a [u8],
    to: fi_addr_t,
    tag: u64,
    data: u64,
    context: usize,
}

/// The messages that a receive matches.
#[derive(Clone, Copy)]
struct ReceiveFilter {
    kind: u64,
    from: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: usize,
}

/// Anything of a kind.
fn any(kind: u64, context: usize) -> ReceiveFilter {
    ReceiveFilter {
        kind,
        from: FI_ADDR_UNSPEC,
        tag: 0,
        ignore: u64::MAX,
        context,
    }
}

/// Memory in two pieces.
fn pieces(ptr: *const u8, len: usize) -> [iovec; 2] {
    let cut = len / 3;
    [(0, cut), (cut, len - cut)].map(|(from, len)| iovec {
        iov_base: ptr.wrapping_add(from).cast_mut().cast(),
        iov_len: len,
    })
}

/// One call of fi_msg(3) or fi_tagged(3), with a copy of the bytes that the side keeps.
fn send(side: &Side, call: SendCall, s: SentMessage<'_>) -> isize {
    let kept = side.keep(s.bytes);
    // SAFETY: the side keeps the bytes until the endpoint is closed.
    unsafe { send_from(side, call, kept, s) }
}

/// One call of fi_msg(3) or fi_tagged(3) that sends these bytes, in place of the message's.
///
/// # Safety
///
/// The bytes stay until the send completes.
unsafe fn send_from(
    side: &Side,
    call: SendCall,
    (ptr, len): (*const c_void, usize),
    s: SentMessage<'_>,
) -> isize {
    let (ep, none) = (side.ep, null_mut());
    let iov = pieces(ptr.cast(), len);
    let list = iov.as_ptr();
    let context = s.context as *mut c_void;
    // SAFETY: as the manual pages have it; the endpoint is open.
    unsafe {
        if s.kind == FI_MSG {
            let table = &*(*ep).msg;
            return match call {
                SendCall::Plain => table.send.unwrap()(ep, ptr, len, none, s.to, context),
                SendCall::Vector => table.sendv.unwrap()(ep, list, null_mut(), 2, s.to, context),
                SendCall::Data => {
                    table.senddata.unwrap()(ep, ptr, len, none, s.data, s.to, context)
                }
                SendCall::Inject => table.inject.unwrap()(ep, ptr, len, s.to),
                SendCall::InjectData => table.injectdata.unwrap()(ep, ptr, len, s.data, s.to),
                SendCall::Message(flags) => {
                    let msg = fi_msg {
                        msg_iov: list,
                        desc: null_mut(),
                        iov_count: 2,
                        addr: s.to,
                        context,
                        data: s.data,
                    };
                    table.sendmsg.unwrap()(ep, &raw const msg, flags)
                }
            };
        }
        let table = &*(*ep).tagged;
        match call {
            SendCall::Plain => table.send.unwrap()(ep, ptr, len, none, s.to, s.tag, context),
            SendCall::Vector => table.sendv.unwrap()(ep, list, null_mut(), 2, s.to, s.tag, context),
            SendCall::Data => {
                table.senddata.unwrap()(ep, ptr, len, none, s.data, s.to, s.tag, context)
            }
            SendCall::Inject => table.inject.unwrap()(ep, ptr, len, s.to, s.tag),
            SendCall::InjectData => table.injectdata.unwrap()(ep, ptr, len, s.data, s.to, s.tag),
            SendCall::Message(flags) => {
                let msg = fi_msg_tagged {
                    msg_iov: list,
                    desc: null_mut(),
                    iov_count: 2,
                    addr: s.to,
                    tag: s.tag,
                    ignore: 0,
                    context,
                    data: s.data,
                };
                table.sendmsg.unwrap()(ep, &raw const msg, flags)
            }
        }
    }
}

/// The same, as soon as there is room.
fn send_soon(side: &Side, call: SendCall, s: SentMessage<'_>) {
    let until = Instant::now() + PATIENCE;
    let kept = side.keep(s.bytes);
    loop {
        // SAFETY: the side keeps the bytes until the endpoint is closed.
        match unsafe { send_from(side, call, kept, s) } {
            0 => return,
            error => assert_eq!(error, EAGAIN, "{call:?}"),
        }
        count(side.sent);
        assert!(Instant::now() < until, "no room for a send");
    }
}

/// One call that receives: plain, of a list, or with flags. The tests keep the memory until it
/// completes.
fn receive(side: &Side, call: SendCall, into: &mut [u8], w: ReceiveFilter) -> isize {
    let (ep, none) = (side.ep, null_mut());
    let (ptr, len) = (into.as_mut_ptr().cast::<c_void>(), into.len());
    let whole = [iovec {
        iov_base: ptr,
        iov_len: len,
    }];
    let iov = pieces(into.as_ptr(), len);
    let context = w.context as *mut c_void;
    // SAFETY: as the manual pages have it; the endpoint is open.
    unsafe {
        if w.kind == FI_MSG {
            let table = &*(*ep).msg;
            return match call {
                SendCall::Vector => {
                    table.recvv.unwrap()(ep, iov.as_ptr(), null_mut(), 2, w.from, context)
                }
                SendCall::Message(flags) => {
                    let msg = fi_msg {
                        msg_iov: whole.as_ptr(),
                        desc: null_mut(),
                        iov_count: 1,
                        addr: w.from,
                        context,
                        data: 0,
                    };
                    table.recvmsg.unwrap()(ep, &raw const msg, flags)
                }
                _ => table.recv.unwrap()(ep, ptr, len, none, w.from, context),
            };
        }
        let table = &*(*ep).tagged;
        match call {
            SendCall::Vector => table.recvv.unwrap()(
                ep,
                iov.as_ptr(),
                null_mut(),
                2,
                w.from,
                w.tag,
                w.ignore,
                context,
            ),
            SendCall::Message(flags) => {
                let msg = fi_msg_tagged {
                    msg_iov: whole.as_ptr(),
                    desc: null_mut(),
                    iov_count: 1,
                    addr: w.from,
                    tag: w.tag,
                    ignore: w.ignore,
                    context,
                    data: 0,
                };
                table.recvmsg.unwrap()(ep, &raw const msg, flags)
            }
            _ => table.recv.unwrap()(ep, ptr, len, none, w.from, w.tag, w.ignore, context),
        }
    }
}

/// `fi_cq_readerr`, if there is one: context, errno, flags.
fn failure(cq: *mut fid_cq) -> Option<fi_cq_err_entry> {
    let mut error = fi_cq_err_entry::default();
    // SAFETY: there is room for it.
    match unsafe { call!(cq, ops.readerr(&raw mut error, 0)) } {
        1 => Some(error),
        _ => None,
    }
}

/// The error that must come next.
fn next_failure(cq: *mut fid_cq) -> fi_cq_err_entry {
    let until = Instant::now() + PATIENCE;
    loop {
        match read(cq) {
            Err(EAGAIN) => assert!(Instant::now() < until, "nothing fails"),
            Err(_) => return failure(cq).expect("an error to read"),
            Ok(done) => panic!("{done:?}"),
        }
    }
}

fn filled(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31) ^ seed)
        .collect()
}

/// Each call that sends, into each that receives, of each kind: content, source, length, tag, CQ
/// data and flags.
///
/// Covers: PEER-8, PEER-9
#[test]
fn each_call_that_sends_and_receives() {
    everywhere("each_call_that_sends_and_receives", |info| {
        // SAFETY: the offer is there.
        let inject = unsafe { (*(*info.info).tx_attr).inject_size };
        let two = Two::open(info, shape());
        let mut seed = 0;
        for kind in KINDS {
            for call in SENDS {
                for len in [0, 8, 1000, 20_000] {
                    if call.injects() && len > inject {
                        continue;
                    }
                    for into in [
                        SendCall::Plain,
                        SendCall::Vector,
                        SendCall::Message(FI_COMPLETION),
                    ] {
                        seed += 1;
                        let what = format!("{kind:#x}, {call:?} of {len} into {into:?}");
                        let mut out = filled(len, seed as u8);
                        let mut room = vec![0xee; len + 5];
                        let wanted = ReceiveFilter {
                            from: two.to_a,
                            ..any(kind, seed)
                        };
                        assert_eq!(receive(&two.b, into, &mut room, wanted), 0, "{what}");
                        let tag = if kind == FI_TAGGED {
                            0xabcd_0000_1234
                        } else {
                            0
                        };
                        let sending = SentMessage {
                            kind,
                            bytes: &out,
                            to: two.to_b,
                            tag,
                            data: 0x1234_5678,
                            context: seed + 1000,
                        };
                        send_soon(&two.a, call, sending);
                        if call.injects() {
                            out.fill(0);
                        }
                        let (done, from) = next_from(two.b.rx);
                        let data = match call.has_data() {
                            true => (FI_REMOTE_CQ_DATA, 0x1234_5678),
                            false => (0, 0),
                        };
                        assert_eq!(done.op_context as usize, seed, "{what}");
                        assert_eq!((done.len, done.tag, from), (len, tag, two.to_a), "{what}");
                        assert_eq!(done.flags, kind | FI_RECV | data.0, "{what}");
                        assert_eq!(done.data, data.1, "{what}");
                        if into != SendCall::Vector {
                            assert_eq!(done.buf.cast_const(), room.as_ptr().cast(), "{what}");
                        }
                        assert!(room[..len] == filled(len, seed as u8), "{what}");
                        assert!(room[len..] == [0xee; 5], "{what}");
                        if call.completes() {
                            let done = next(two.a.tx).unwrap();
                            assert_eq!(done.op_context as usize, seed + 1000, "{what}");
                            assert_eq!(done.flags, kind | FI_SEND, "{what}");
                        }
                    }
                }
            }
        }
        assert_eq!(read(two.a.tx).unwrap_err(), EAGAIN);
        assert_eq!(count(two.b.received), seed as u64);
        two.close();
    });
}

/// A receive takes the first message of those that fit its source and its tag, but for the bits
/// that it ignores.
///
/// Covers: PEER-8
#[test]
fn sources_tags_and_masks() {
    everywhere("sources_tags_and_masks", |info| {
        let two = Two::open(info, shape());
        // Its own messages are from another than those of `a`.
        let own = insert(two.b.av, two.b.ep);
        let send_tag = |side: &Side, to, kind, tag| {
            let sending = SentMessage {
                kind,
                bytes: &[],
                to,
                tag,
                data: tag,
                context: 1,
            };
            send_soon(side, SendCall::InjectData, sending);
        };
        for kind in KINDS {
            for early in [true, false] {
                let post = || {
                    for (context, from) in [(1, two.to_a), (2, own), (3, FI_ADDR_UNSPEC)] {
                        let wanted = ReceiveFilter {
                            from,
                            ..any(kind, context)
                        };
                        assert_eq!(receive(&two.b, SendCall::Plain, &mut [], wanted), 0);
                    }
                };
                if early {
                    post();
                }
                send_tag(&two.b, own, kind, 22);
                send_tag(&two.a, two.to_b, kind, 11);
                send_tag(&two.a, two.to_b, kind, 33);
                if !early {
                    count(two.b.received);
                    post();
                }
                let mut got: Vec<_> = (0..3)
                    .map(|_| {
                        let (done, from) = next_from(two.b.rx);
                        (done.op_context as usize, done.data, from)
                    })
                    .collect();
                got.sort_unstable();
                let wanted = [(1, 11, two.to_a), (2, 22, own), (3, 33, two.to_a)];
                assert_eq!(got, wanted, "posted first: {early}");
            }
        }
        for early in [true, false] {
            let receives = [(0x100, 0xf, 1), (0x105, 0, 2), (0, u64::MAX, 3)];
            let post = || {
                for (tag, ignore, context) in receives {
                    let wanted = ReceiveFilter {
                        tag,
                        ignore,
                        ..any(FI_TAGGED, context)
                    };
                    assert_eq!(receive(&two.b, SendCall::Plain, &mut [], wanted), 0);
                }
            };
            if early {
                post();
            }
            for tag in [0x105, 0x205, 0x105] {
                send_tag(&two.a, two.to_b, FI_TAGGED, tag);
            }
            if !early {
                post();
            }
            let mut got: Vec<_> = (0..3)
                .map(|_| {
                    let (done, _) = next_from(two.b.rx);
                    (done.op_context as usize, done.tag)
                })
                .collect();
            got.sort_unstable();
            assert_eq!(got, [(1, 0x105), (2, 0x105), (3, 0x205)], "{early}");
        }
        two.close();
    });
}

/// One buffer takes message after message (`FI_MULTI_RECV`), until less is left of it than was set
/// (`FI_OPT_MIN_MULTI_RECV`).
///
/// Covers: PEER-8
#[test]
fn multi_receives() {
    everywhere("multi_receives", |info| {
        let two = Two::open(info, shape());
        let fid: *mut fid = two.b.ep.cast();
        let (least, mut said, mut size) = (64usize, 0usize, size_of::<usize>());
        let (level, name) = (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV);
        // SAFETY: the option is a size.
        unsafe {
            let set = (&raw const least).cast();
            let table = &*(*two.b.ep).ops;
            assert_eq!(table.setopt.unwrap()(fid, level, name, set, size), 0);
            let get = (&raw mut said).cast();
            assert_eq!(
                table.getopt.unwrap()(fid, level, name, get, &raw mut size),
                0
            );
        }
        assert_eq!((said, size), (least, size_of::<usize>()));
        for kind in KINDS {
            let mut room = vec![0u8; 300];
            let flags = FI_MULTI_RECV | FI_COMPLETION;
            let posted = receive(&two.b, SendCall::Message(flags), &mut room, any(kind, 7));
            assert_eq!(posted, 0);
            let (start, mut before) = (room.as_ptr() as usize, 0);
            for n in 1..=3u8 {
                let bytes = filled(80 + usize::from(n), n);
                let sending = SentMessage {
                    kind,
                    bytes: &bytes,
                    to: two.to_b,
                    tag: 0,
                    data: 0,
                    context: 1,
                };
                send_soon(&two.a, SendCall::Inject, sending);
                let (done, _) = next_from(two.b.rx);
                assert_eq!((done.op_context as usize, done.len), (7, bytes.len()));
                let at = done.buf as usize - start;
                assert!(at >= before, "pieces lie behind each other");
                before = at + done.len;
                assert!(room[at..before] == bytes);
                let last = if n == 3 { FI_MULTI_RECV } else { 0 };
                assert_eq!(done.flags, kind | FI_RECV | last, "message {n}");
            }
        }
        two.close();
    });
}

/// `FI_PEEK`, with `FI_CLAIM` and `FI_DISCARD`, and without.
///
/// Covers: PEER-8, PEER-9
#[test]
fn probes() {
    everywhere("probes", |info| {
        let two = Two::open(info, shape());
        let probe = |kind, flags, context| {
            let asked = receive(
                &two.b,
                SendCall::Message(flags),
                &mut [],
                any(kind, context),
            );
            assert_eq!(asked, 0);
            match read(two.b.rx) {
                Ok(done) => {
                    assert_eq!(done.op_context as usize, context);
                    Ok((done.len, done.data))
                }
                Err(_) => {
                    let error = failure(two.b.rx).expect("a probe completes at once");
                    assert_eq!(error.op_context as usize, context);
                    Err(error.err)
                }
            }
        };
        let until_found = |kind, flags, context| {
            let until = Instant::now() + PATIENCE;
            loop {
                match probe(kind, flags, context) {
                    Ok(found) => return found,
                    Err(error) => assert_eq!(error, FI_ENOMSG),
                }
                assert!(Instant::now() < until, "the message does not come");
            }
        };
        for kind in KINDS {
            for flags in [FI_PEEK, FI_PEEK | FI_CLAIM, FI_PEEK | FI_DISCARD] {
                assert_eq!(probe(kind, flags, 5), Err(FI_ENOMSG), "{flags:#x}");
            }
            let messages = [1u8, 2, 3].map(|n| filled(50 * usize::from(n), n));
            for (n, bytes) in messages.iter().enumerate() {
                let sending = SentMessage {
                    kind,
                    bytes,
                    to: two.to_b,
                    tag: 9,
                    data: n as u64,
                    context: 1,
                };
                send_soon(&two.a, SendCall::InjectData, sending);
            }
            assert_eq!(until_found(kind, FI_PEEK, 1), (50, 0));
            assert_eq!(until_found(kind, FI_PEEK, 2), (50, 0), "it stays");
            assert_eq!(until_found(kind, FI_PEEK | FI_CLAIM, 3), (50, 0));
            assert_eq!(until_found(kind, FI_PEEK | FI_DISCARD, 4), (100, 1));
            let mut room = vec![0; 200];
            assert_eq!(receive(&two.b, SendCall::Plain, &mut room, any(kind, 6)), 0);
            let (done, _) = next_from(two.b.rx);
            assert_eq!((done.op_context as usize, done.len), (6, 150));
            assert!(room[..150] == messages[2]);
            let mut room = vec![0; 200];
            let flags = FI_CLAIM | FI_COMPLETION;
            assert_eq!(
                receive(&two.b, SendCall::Message(flags), &mut room, any(kind, 3)),
                0
            );
            let (done, _) = next_from(two.b.rx);
            assert_eq!((done.op_context as usize, done.len, done.data), (3, 50, 0));
            assert!(room[..50] == messages[0]);
            assert_eq!(probe(kind, FI_PEEK, 7), Err(FI_ENOMSG));
        }
        two.close();
    });
}

/// A receive that is taken back (`fi_cancel`) ends with `FI_ECANCELED`, and takes nothing; one that
/// is too short with `FI_ETRUNC`.
///
/// Covers: PEER-8, PEER-9
#[test]
fn cancellation_and_truncation() {
    everywhere("cancellation_and_truncation", |info| {
        let two = Two::open(info, shape());
        let cancel = |context: usize| {
            let fid: *mut fid = two.b.ep.cast();
            // SAFETY: the endpoint is open.
            unsafe { (*(*two.b.ep).ops).cancel.unwrap()(fid, context as *mut c_void) }
        };
        for kind in KINDS {
            let (mut first, mut second) = ([0u8; 8], [0u8; 8]);
            assert_eq!(
                receive(&two.b, SendCall::Plain, &mut first, any(kind, 1)),
                0
            );
            assert_eq!(
                receive(&two.b, SendCall::Plain, &mut second, any(kind, 2)),
                0
            );
            assert_eq!(cancel(1), 0);
            let error = next_failure(two.b.rx);
            assert_eq!((error.op_context as usize, error.err), (1, FI_ECANCELED));
            assert_eq!(error.flags & (kind | FI_RECV), kind | FI_RECV);
            // Whether it was there still, the application sees by its completion.
            assert_eq!(cancel(1), 0);
            assert_eq!(read(two.b.rx).unwrap_err(), EAGAIN);
            let bytes = filled(100, 4);
            let sending = SentMessage {
                kind,
                bytes: &bytes,
                to: two.to_b,
                tag: 1,
                data: 3,
                context: 1,
            };
            send_soon(&two.a, SendCall::InjectData, sending);
            let error = next_failure(two.b.rx);
            assert_eq!((error.op_context as usize, error.err), (2, FI_ETRUNC));
            assert_eq!((error.len, error.olen, error.data), (8, 92, 3));
            assert_eq!(error.src_addr, two.to_a);
            assert!(first == [0; 8] && second == bytes[..8]);
        }
        two.close();
    });
}

/// Sends with `FI_MORE` go at the latest with the first without, in order, or when the application
/// looks.
///
/// Covers: PEER-9
#[test]
fn more_to_come() {
    everywhere("more_to_come", |info| {
        const COUNT: usize = 40;
        let two = Two::open(info, shape());
        for kind in KINDS {
            for last in [0, FI_MORE] {
                let messages: Vec<_> = (0..COUNT).map(|n| filled(n * 37, n as u8)).collect();
                let mut rooms = vec![vec![0u8; COUNT * 37]; COUNT];
                for (n, room) in rooms.iter_mut().enumerate() {
                    assert_eq!(receive(&two.b, SendCall::Plain, room, any(kind, n)), 0);
                }
                for (n, bytes) in messages.iter().enumerate() {
                    let more = if n + 1 < COUNT { FI_MORE } else { last };
                    let sending = SentMessage {
                        kind,
                        bytes,
                        to: two.to_b,
                        tag: n as u64,
                        data: 0,
                        context: n,
                    };
                    send_soon(&two.a, SendCall::Message(FI_COMPLETION | more), sending);
                }
                for (n, bytes) in messages.iter().enumerate() {
                    let (done, _) = next_from(two.b.rx);
                    assert_eq!((done.op_context as usize, done.len), (n, bytes.len()));
                    assert!(rooms[n][..bytes.len()] == *bytes);
                }
                for n in 0..COUNT {
                    assert_eq!(next(two.a.tx).unwrap().op_context as usize, n);
                }
            }
        }
        two.close();
    });
}

/// Flags that an endpoint has for all its operations (`FI_SETOPSFLAG`) hold for calls that take
/// none.
///
/// Covers: PEER-9
#[test]
fn delivery_complete_by_default() {
    everywhere("delivery_complete_by_default", |info| {
        let two = Two::open(info, shape());
        let fid: *mut fid = two.a.ep.cast();
        let mut flags = FI_TRANSMIT | FI_COMPLETION | FI_DELIVERY_COMPLETE;
        assert_eq!(control(fid, FI_SETOPSFLAG, (&raw mut flags).cast()), 0);
        let bytes = filled(500, 1);
        let sending = SentMessage {
            kind: FI_TAGGED,
            bytes: &bytes,
            to: two.to_b,
            tag: 1,
            data: 0,
            context: 8,
        };
        send_soon(&two.a, SendCall::Plain, sending);
        for _ in 0..300 {
            assert_eq!(read(two.a.tx).unwrap_err(), EAGAIN);
        }
        let mut room = vec![0; 500];
        assert_eq!(
            receive(&two.b, SendCall::Plain, &mut room, any(FI_TAGGED, 1)),
            0
        );
        assert_eq!(next(two.a.tx).unwrap().op_context as usize, 8);
        assert!(
            room == bytes,
            "delivered, though nobody has read its completion"
        );
        next(two.b.rx).unwrap();
        two.close();
    });
}

/// Datagrams, with room for a prefix and without.
///
/// Covers: GI-4, AV-25
#[test]
fn datagrams() {
    if !has_device() {
        return skip("this machine has no RDMA device");
    }
    over_verbs("datagrams", |libfabric| {
        for mode in [0, FI_MSG_PREFIX] {
            let hints = libfabric.hints();
            // SAFETY: the hints are the test's.
            unsafe {
                (*hints.info).caps = FI_MSG | FI_SOURCE;
                (*hints.info).mode = mode;
                (*(*hints.info).ep_attr).type_ = fi_ep_type::FI_EP_DGRAM;
            }
            let info = libfabric.ask(libfabric.version, None, None, 0, Some(&hints));
            let info = info.expect("an offer of datagrams");
            // SAFETY: the offer is there.
            let (prefix, longest, offered) = unsafe {
                let ep = &*(*info.info).ep_attr;
                (ep.msg_prefix_size, ep.max_msg_size, (*info.info).mode)
            };
            assert_eq!((offered, prefix > 0), (mode, mode == FI_MSG_PREFIX));
            let mut counted = shape();
            counted.cntr.events = fi_cntr_events::FI_CNTR_EVENTS_BYTES;
            let two = Two::open(&info, counted);
            let mut sum = 0;
            for (n, call) in SENDS.into_iter().enumerate() {
                let len = [0, 8, 600, longest][n % 4];
                let bytes = filled(prefix + len, n as u8);
                let mut room = vec![0; prefix + longest];
                assert_eq!(
                    receive(&two.b, SendCall::Plain, &mut room, any(FI_MSG, n)),
                    0
                );
                let sending = SentMessage {
                    kind: FI_MSG,
                    bytes: &bytes,
                    to: two.to_b,
                    tag: 0,
                    data: 77,
                    context: 9,
                };
                // The first piece of a list is a third of it.
                let is_list = matches!(call, SendCall::Vector | SendCall::Message(_));
                let call = match is_list && prefix + len < 3 * prefix {
                    true => {
                        let refused = send(&two.a, call, sending);
                        assert_eq!(refused, -(libc::EINVAL as isize), "no room for the prefix");
                        SendCall::Data
                    }
                    false => call,
                };
                send_soon(&two.a, call, sending);
                let (done, from) = next_from(two.b.rx);
                assert_eq!((done.op_context as usize, done.len), (n, prefix + len));
                assert_eq!(from, two.to_a);
                assert!(room[prefix..prefix + len] == bytes[prefix..]);
                let data = if call.has_data() { 77 } else { 0 };
                assert_eq!(done.data, data, "{call:?}");
                if call.completes() {
                    next(two.a.tx).unwrap();
                }
                sum += len as u64;
                assert_eq!(count(two.b.received), sum, "bytes without the prefix");
            }
            let bytes = filled(prefix + longest + 1, 1);
            let sending = SentMessage {
                kind: FI_MSG,
                bytes: &bytes,
                to: two.to_b,
                tag: 0,
                data: 0,
                context: 9,
            };
            let refused = send(&two.a, SendCall::Plain, sending);
            assert_eq!(refused, -(libc::EMSGSIZE as isize));
            two.close();
        }
    });
}
