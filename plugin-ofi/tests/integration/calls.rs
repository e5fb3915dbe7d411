//! Each call with each pointer NULL that the manual pages let be NULL, with each flag bit, and with
//! each count at its limits. A call has the result of the manual, or returns an error, and does
//! nothing else. At the end of each table messages go as before.

use crate::{client, support, two};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::Instant;

use client::{Info, close};
use ferro_fi::abi::{
    FI_AFFINITY, FI_AUTH_KEY, FI_AV_USER_ID, FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_DOMAIN,
    FI_CLASS_EP, FI_CLASS_EQ, FI_COLLECTIVE, FI_COMMIT_COMPLETE, FI_COMPLETION,
    FI_DELIVERY_COMPLETE, FI_DISCARD, FI_EAGAIN, FI_EBADFLAGS, FI_EINVAL, FI_EMSGSIZE, FI_ENABLE,
    FI_ENODATA, FI_ENOENT, FI_ENOMEM, FI_ENOSYS, FI_EOPNOTSUPP, FI_ETOOSMALL, FI_EVENT,
    FI_GETOPSFLAG, FI_GETWAIT, FI_GETWAITOBJ, FI_INJECT, FI_INJECT_COMPLETE, FI_MAP_RAW_MR,
    FI_MATCH_COMPLETE, FI_MORE, FI_MULTI_RECV, FI_MULTICAST, FI_OPT_ENDPOINT,
    FI_OPT_INJECT_MSG_SIZE, FI_OPT_INJECT_RMA_SIZE, FI_OPT_INJECT_TAGGED_SIZE, FI_OPT_MAX_MSG_SIZE,
    FI_OPT_MAX_RMA_SIZE, FI_OPT_MAX_TAGGED_SIZE, FI_OPT_MIN_MULTI_RECV, FI_PEEK, FI_READ, FI_RECV,
    FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA_EVENT, FI_SELECTIVE_COMPLETION, FI_SEND, FI_SETOPSFLAG,
    FI_SYMMETRIC, FI_SYNC_ERR, FI_TRANSMIT, FI_TRANSMIT_COMPLETE, FI_TRIGGER, FI_UNMAP_KEY,
    FI_WRITE, fi_addr_t, fi_av_attr, fi_av_type, fi_cntr_attr, fi_cq_attr, fi_cq_err_entry,
    fi_eq_attr, fi_mr_attr, fi_msg, fi_msg_tagged, fi_wait_obj, fid, fid_av, fid_cntr, fid_cq,
    fid_domain, fid_ep, fid_eq, fid_mr,
};
use support::edge::GuardedPage;
use two::{EAGAIN, PATIENCE, Side, Two, control, count, everywhere, insert, is_shm, read, shape};

/// Calls with each of the 64 flags. A flag in `known` gives one of the results of its row, any
/// other flag one of `others`.
fn each_flag(call: &str, known: &[(u64, &[c_int])], others: &[c_int], with: impl Fn(u64) -> isize) {
    for flag in (0..64).map(|bit| 1u64 << bit) {
        let row = known.iter().find(|(flags, _)| flags & flag != 0);
        let expected = row.map_or(others, |(_, expected)| expected);
        is_one_of(&format!("{call} with flag {flag:#x}"), expected, with(flag));
    }
}

/// 0 stands for success, with any count.
fn is_one_of(what: &str, expected: &[c_int], got: isize) {
    let code = c_int::try_from(got.min(0)).unwrap();
    assert!(
        expected.iter().any(|expected| -expected == code),
        "{what}: {got}, and not one of {expected:?}"
    );
}

const OK: &[c_int] = &[0];
const NO_FLAGS: &[c_int] = &[FI_EBADFLAGS, FI_EINVAL];
/// A bit that has no meaning for the call is no reason to refuse it (fi_msg(3) names none).
const IGNORED: &[c_int] = &[0];

/// Closes what was opened.
fn opened<T>(code: c_int, object: *mut T) -> isize {
    if code == 0 {
        assert_eq!(close(object.cast()), 0);
    }
    code as isize
}

/// A message there and one back.
fn still_works(two: &Two) {
    for (from, to, addr) in [(&two.a, &two.b, two.to_b), (&two.b, &two.a, two.to_a)] {
        drain(from.tx);
        drain(to.rx);
        let mut room = [0u8; 100];
        to.receive(&mut room, 0x7777, 1);
        from.senddata(&[9; 100], 0, addr, 0x7777);
        let until = Instant::now() + PATIENCE;
        let (mut sent, mut received) = (0, 0);
        while (sent, received) != (1, 1) {
            assert!(Instant::now() < until, "{sent} sent, {received} received");
            sent += usize::from(read(from.tx).is_ok());
            received += usize::from(read(to.rx).is_ok_and(|entry| entry.tag == 0x7777));
        }
        assert_eq!(room, [9; 100]);
    }
}

/// Reads all that is there, errors too.
fn drain(cq: *mut fid_cq) {
    loop {
        match read(cq) {
            Ok(_) => {}
            Err(EAGAIN) => return,
            Err(_) => {
                let mut entry = fi_cq_err_entry::default();
                // SAFETY: there is room for it.
                assert_eq!(unsafe { call!(cq, ops.readerr(&raw mut entry, 0)) }, 1);
            }
        }
    }
}

#[test]
fn each_flag_of_what_opens_objects() {
    everywhere("each_flag_of_what_opens_objects", |info| {
        let two = Two::open(info, shape());
        let (fabric, domain) = (two.opened.fabric, two.opened.domain);
        // SAFETY: as the manual pages have it, but for the flags.
        unsafe {
            each_flag("fi_domain2", &[], NO_FLAGS, |flags| {
                let mut new: *mut fid_domain = null_mut();
                let ops = &*(*fabric).ops;
                let code = ops.domain2.unwrap()(fabric, info.info, &raw mut new, flags, null_mut());
                opened(code, new)
            });
            each_flag("fi_endpoint2", &[], NO_FLAGS, |flags| {
                let mut new: *mut fid_ep = null_mut();
                let ops = &*(*domain).ops;
                let code =
                    ops.endpoint2.unwrap()(domain, info.info, &raw mut new, flags, null_mut());
                opened(code, new)
            });
            let known = [(FI_WRITE | FI_AFFINITY, OK)];
            each_flag("fi_eq_open", &known, NO_FLAGS, |flags| {
                let mut attr = fi_eq_attr {
                    flags,
                    ..fi_eq_attr::default()
                };
                let mut new: *mut fid_eq = null_mut();
                let code = call!(fabric, ops.eq_open(&raw mut attr, &raw mut new, null_mut()));
                opened(code, new)
            });
            each_flag("fi_cq_open", &[(FI_AFFINITY, OK)], NO_FLAGS, |flags| {
                let mut attr = fi_cq_attr {
                    flags,
                    ..fi_cq_attr::default()
                };
                let mut new: *mut fid_cq = null_mut();
                let code = call!(domain, ops.cq_open(&raw mut attr, &raw mut new, null_mut()));
                opened(code, new)
            });
            each_flag("fi_cntr_open", &[], NO_FLAGS, |flags| {
                let mut attr = fi_cntr_attr {
                    flags,
                    ..fi_cntr_attr::default()
                };
                let mut new: *mut fid_cntr = null_mut();
                let code = call!(
                    domain,
                    ops.cntr_open(&raw mut attr, &raw mut new, null_mut())
                );
                opened(code, new)
            });
            // FI_READ opens one that has a name.
            let known = [
                (FI_EVENT | FI_SYMMETRIC | FI_AV_USER_ID, OK),
                (FI_READ, &[FI_EINVAL]),
            ];
            each_flag("fi_av_open", &known, NO_FLAGS, |flags| {
                let mut attr = fi_av_attr {
                    type_: fi_av_type::FI_AV_TABLE,
                    flags,
                    ..fi_av_attr::default()
                };
                let mut new: *mut fid_av = null_mut();
                let code = call!(domain, ops.av_open(&raw mut attr, &raw mut new, null_mut()));
                opened(code, new)
            });
            // Writable, as rights to write ask for.
            let mut memory = [0u8; 4096];
            let at: *const u8 = memory.as_mut_ptr();
            let register = |access, flags| {
                let mut new: *mut fid_mr = null_mut();
                let (fid, at) = (domain.cast(), at.cast());
                let reg = (*(*domain).mr).reg.unwrap();
                let code = reg(fid, at, 4096, access, 0, 0, flags, &raw mut new, null_mut());
                opened(code, new)
            };
            let known = [(FI_RMA_EVENT, OK)];
            each_flag("fi_mr_reg", &known, NO_FLAGS, |flags| {
                register(FI_SEND, flags)
            });
            let register_by_attributes = |access, flags| {
                let iov = part(at, 4096);
                let mut attr: fi_mr_attr = std::mem::zeroed();
                attr.__bindgen_anon_1.mr_iov = &raw const iov;
                attr.iov_count = 1;
                attr.access = access;
                let mut new: *mut fid_mr = null_mut();
                let regattr = (*(*domain).mr).regattr.unwrap();
                let code = regattr(domain.cast(), &raw const attr, flags, &raw mut new);
                opened(code, new)
            };
            each_flag("fi_mr_regattr", &known, NO_FLAGS, |flags| {
                register_by_attributes(FI_SEND, flags)
            });
            // Each right of fi_mr(3), as it may be granted and never used.
            let rights = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
            let rights = rights | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_COLLECTIVE;
            let (known, refused) = ([(rights, OK)], &[FI_EINVAL]);
            each_flag("fi_mr_reg's access", &known, refused, |access| {
                register(access, 0)
            });
            each_flag("fi_mr_regattr's access", &known, refused, |access| {
                register_by_attributes(access, 0)
            });
        }
        still_works(&two);
        two.close();
    });
}

#[test]
fn each_flag_of_queues_and_address_vectors() {
    everywhere("each_flag_of_queues_and_address_vectors", |info| {
        let two = Two::open(info, shape());
        let (fabric, domain) = (two.opened.fabric, two.opened.domain);
        let name = two::name_of(two.b.ep);
        let name_at: *const c_void = name.as_ptr().cast();
        // SAFETY: as the manual pages have it, but for the flags.
        unsafe {
            let mut attr = fi_eq_attr {
                flags: FI_WRITE,
                wait_obj: fi_wait_obj::FI_WAIT_UNSPEC,
                ..fi_eq_attr::default()
            };
            let mut eq: *mut fid_eq = null_mut();
            let made = call!(fabric, ops.eq_open(&raw mut attr, &raw mut eq, null_mut()));
            assert_eq!(made, 0);
            let (mut event, mut out) = (0u32, [0u8; 64]);
            let (event, out) = (&raw mut event, out.as_mut_ptr());
            let empty: &[c_int] = &[FI_EAGAIN];
            each_flag("fi_eq_read", &[], empty, |flags| {
                call!(eq, ops.read(event, out.cast(), 64, flags))
            });
            each_flag("fi_eq_sread", &[], empty, |flags| {
                call!(eq, ops.sread(event, out.cast(), 64, 0, flags))
            });
            each_flag("fi_eq_readerr", &[], empty, |flags| {
                call!(eq, ops.readerr(out.cast(), flags))
            });
            each_flag("fi_eq_write", &[], IGNORED, |flags| {
                let wrote = call!(eq, ops.write(1, out.cast(), 8, flags));
                assert_eq!(call!(eq, ops.read(event, out.cast(), 64, 0)), 8);
                wrote
            });
            each_flag("fi_cq_readerr", &[], empty, |flags| {
                let mut entry = fi_cq_err_entry::default();
                call!(two.a.rx, ops.readerr(&raw mut entry, flags))
            });
            let mut attr = fi_av_attr {
                type_: fi_av_type::FI_AV_TABLE,
                ..fi_av_attr::default()
            };
            let mut av: *mut fid_av = null_mut();
            let made = call!(domain, ops.av_open(&raw mut attr, &raw mut av, null_mut()));
            assert_eq!(made, 0);
            let no_keys: &[c_int] = &[FI_EINVAL, FI_EOPNOTSUPP, FI_ENOSYS];
            // FI_SYNC_ERR wants room for errors, FI_AUTH_KEY a domain with such keys.
            let known: [(u64, &[c_int]); 3] = [
                (FI_MORE | FI_AV_USER_ID, OK),
                (FI_SYNC_ERR, &[FI_EINVAL]),
                (FI_AUTH_KEY, no_keys),
            ];
            let services: [*const c_char; 2] = [c"127.0.0.1".as_ptr(), c"9".as_ptr()];
            each_flag("fi_av_insert", &known, NO_FLAGS, |flags| {
                let mut addr: fi_addr_t = 7;
                let to = &raw mut addr;
                call!(av, ops.insert(name_at, 1, to, flags, null_mut())) as isize
            });
            // Over shared memory alone a service has no address: the call succeeds, and has
            // inserted none. Over verbs it is inserted, and looked for once it is used. A service
            // that is not known is an error of the call.
            let over_shm = is_shm(info);
            let is_right = |code: c_int, addr: fi_addr_t| match code {
                0 => over_shm && addr == u64::MAX,
                1 => !over_shm && addr != u64::MAX && addr != 77_777,
                _ => code < 0 && addr == 77_777,
            };
            for (service, outcome) in [(services[1], 0), (c"none".as_ptr(), FI_EINVAL)] {
                let node = services[0];
                let outcome: &[c_int] = &[outcome];
                let known: [(u64, &[c_int]); 3] = [
                    (FI_MORE | FI_AV_USER_ID, outcome),
                    (FI_SYNC_ERR, &[FI_EINVAL]),
                    (FI_AUTH_KEY, no_keys),
                ];
                each_flag("fi_av_insertsvc", &known, &[FI_EBADFLAGS], |flags| {
                    let mut addr: fi_addr_t = 77_777;
                    let to = &raw mut addr;
                    let code = call!(av, ops.insertsvc(node, service, to, flags, null_mut()));
                    assert!(is_right(code, addr), "{flags:#x}: {code}, {addr:#x}");
                    code as isize
                });
                each_flag("fi_av_insertsym", &known, &[FI_EBADFLAGS], |flags| {
                    let mut addr: fi_addr_t = 77_777;
                    let to = &raw mut addr;
                    let code = call!(
                        av,
                        ops.insertsym(node, 1, service, 1, to, flags, null_mut())
                    );
                    assert!(is_right(code, addr), "{flags:#x}: {code}, {addr:#x}");
                    code as isize
                });
            }
            let known: [(u64, &[c_int]); 1] = [(FI_AUTH_KEY, &[FI_EOPNOTSUPP, FI_EINVAL])];
            each_flag("fi_av_remove", &known, NO_FLAGS, |flags| {
                let mut addr: fi_addr_t = 0;
                call!(av, ops.remove(&raw mut addr, 1, flags)) as isize
            });
            each_flag("fi_av_set_user_id", &known, NO_FLAGS, |flags| {
                call!(av, ops.set_user_id(0, 1, flags)) as isize
            });
            each_flag("fi_av_insert_auth_key", &[], NO_FLAGS, |flags| {
                let mut addr: fi_addr_t = 0;
                let to = &raw mut addr;
                call!(av, ops.insert_auth_key(name_at, 8, to, flags)) as isize
            });
            each_flag("fi_av_bind", &[], NO_FLAGS, |flags| {
                ((*(*av).fid.ops).bind.unwrap())(av.cast(), eq.cast(), flags) as isize
            });
            assert_eq!(close(av.cast()), 0);
            assert_eq!(close(eq.cast()), 0);
            let shutdown = (*(*two.a.ep).cm).shutdown.unwrap();
            each_flag("fi_shutdown", &[], IGNORED, |flags| {
                shutdown(two.a.ep, flags) as isize
            });
        }
        still_works(&two);
        two.close();
    });
}

#[test]
fn each_flag_of_transfers() {
    everywhere("each_flag_of_transfers", |info| {
        let two = Two::open(info, shape());
        // Flags of sends that no endpoint supports here.
        let known: [(u64, &[c_int]); 1] = [(
            FI_TRIGGER | FI_MULTICAST | FI_COMMIT_COMPLETE,
            &[FI_EOPNOTSUPP, FI_EBADFLAGS],
        )];
        for tagged in [true, false] {
            let what = if tagged { "fi_tsendmsg" } else { "fi_sendmsg" };
            each_flag(what, &known, IGNORED, |flags| sent(&two, tagged, flags));
            let what = if tagged { "fi_trecvmsg" } else { "fi_recvmsg" };
            let known: [(u64, &[c_int]); 2] = [
                (FI_TRIGGER, &[FI_EOPNOTSUPP, FI_EBADFLAGS]),
                // A message that was claimed before may be discarded with both; keys are of domains
                // that have them. FI_CLAIM alone completes with an error where there is none.
                (FI_DISCARD | FI_AUTH_KEY, &[FI_EBADFLAGS]),
            ];
            each_flag(what, &known, IGNORED, |flags| received(&two, tagged, flags));
        }
        // As fi_endpoint(3) lists them ("Operation flags"), but for levels that no endpoint of ours
        // has, and as fi_cq(3) does (FI_MATCH_COMPLETE). A call names one direction.
        let sends = FI_COMPLETION
            | FI_INJECT
            | FI_INJECT_COMPLETE
            | FI_TRANSMIT_COMPLETE
            | FI_DELIVERY_COMPLETE
            | FI_MATCH_COMPLETE;
        for (way, other, known) in [
            (FI_SEND, FI_RECV, sends),
            (FI_RECV, FI_SEND, FI_COMPLETION | FI_MULTI_RECV),
        ] {
            let known: [(u64, &[c_int]); 2] = [(known | way, OK), (other, &[FI_EINVAL])];
            let call = format!("fi_control with FI_SETOPSFLAG, {way:#x} and");
            each_flag(&call, &known, &[FI_EBADFLAGS], |flags| {
                let set = |mut flags: u64| {
                    control(two.a.ep.cast(), FI_SETOPSFLAG, (&raw mut flags).cast())
                };
                let code = set(flags | way);
                assert_eq!(set(way), 0);
                code as isize
            });
        }
        still_works(&two);
        two.close();
    });
}

/// Sends a message with flags, and one without behind it; both come.
fn sent(two: &Two, tagged: bool, flags: u64) -> isize {
    let (mut rooms, mut sent) = ([[0u8; 16]; 2], [[7u8; 16]; 2]);
    let [first, second] = &mut rooms;
    let (all, got) = (count(two.a.sent), count(two.b.received));
    let code = post(&two.a, tagged, true, (&mut sent[0], two.to_b), flags);
    let expected = if code == 0 { 2 } else { 1 };
    for room in [first, second].into_iter().take(expected) {
        assert_eq!(post(&two.b, tagged, false, (room, u64::MAX), 0), 0);
    }
    let until = Instant::now() + PATIENCE;
    while post(&two.a, tagged, true, (&mut sent[1], two.to_b), 0) != 0 {
        count(two.a.sent);
        assert!(Instant::now() < until, "no room for a send");
    }
    let expected = expected as u64;
    while count(two.a.sent) < all + expected || count(two.b.received) < got + expected {
        assert!(Instant::now() < until, "with flag {flags:#x}");
    }
    drain(two.a.tx);
    drain(two.b.rx);
    code
}

/// Posts a receive with flags, and takes it back.
fn received(two: &Two, tagged: bool, flags: u64) -> isize {
    let mut room = [0u8; 16];
    let code = post(&two.b, tagged, false, (&mut room, u64::MAX), flags);
    let ep: *mut fid = two.b.ep.cast();
    // SAFETY: the endpoint is open.
    let cancelled = unsafe { (*(*two.b.ep).ops).cancel.unwrap()(ep, 6 as *mut c_void) };
    assert_eq!(cancelled, 0);
    drain(two.b.rx);
    code
}

/// `fi_sendmsg`, `fi_recvmsg` and their like, of 16 bytes. The bytes stay until the call returns;
/// the other callers wait for the operations that they have posted.
fn post(
    side: &Side,
    tagged: bool,
    sends: bool,
    (bytes, addr): (&mut [u8; 16], fi_addr_t),
    flags: u64,
) -> isize {
    let iov = part(bytes.as_ptr(), 16);
    let (msg_iov, desc, iov_count, context) = (&raw const iov, null_mut(), 1, 6 as *mut c_void);
    let ep = side.ep;
    // SAFETY: as fi_msg(3) and fi_tagged(3) have it.
    unsafe {
        if tagged {
            let msg = fi_msg_tagged {
                msg_iov,
                desc,
                iov_count,
                addr,
                tag: 5,
                ignore: 0,
                context,
                data: 0,
            };
            let table = &*(*ep).tagged;
            return match sends {
                true => table.sendmsg.unwrap()(ep, &raw const msg, flags),
                false => table.recvmsg.unwrap()(ep, &raw const msg, flags),
            };
        }
        let msg = fi_msg {
            msg_iov,
            desc,
            iov_count,
            addr,
            context,
            data: 0,
        };
        let table = &*(*ep).msg;
        match sends {
            true => table.sendmsg.unwrap()(ep, &raw const msg, flags),
            false => table.recvmsg.unwrap()(ep, &raw const msg, flags),
        }
    }
}

fn part(at: *const u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: at.cast_mut().cast(),
        iov_len: len,
    }
}

#[test]
fn each_flag_of_bindings() {
    everywhere("each_flag_of_bindings", |info| {
        let two = Two::open(info, shape());
        let domain = two.opened.domain;
        let bound = |to: *mut fid, flags| {
            let mut ep: *mut fid_ep = null_mut();
            // SAFETY: as fi_endpoint(3) has it, but for the flags.
            unsafe {
                let made = call!(domain, ops.endpoint(info.info, &raw mut ep, null_mut()));
                assert_eq!(made, 0);
                let bind = (*(*ep).fid.ops).bind.unwrap();
                let code = bind(ep.cast(), to, flags);
                assert_eq!(close(ep.cast()), 0);
                code as isize
            }
        };
        let refused: &[c_int] = &[FI_EBADFLAGS];
        let (queue, counter) = (two.a.tx.cast(), two.a.sent.cast());
        // FI_SELECTIVE_COMPLETION goes with a direction.
        let directions = FI_TRANSMIT | FI_RECV;
        each_flag(
            "fi_ep_bind of a queue",
            &[(directions, OK)],
            refused,
            |flags| bound(queue, flags),
        );
        let known = [(directions | FI_SELECTIVE_COMPLETION, OK)];
        for way in [FI_TRANSMIT, FI_RECV] {
            let call = format!("fi_ep_bind of a queue with {way:#x} and");
            each_flag(&call, &known, refused, |flags| bound(queue, flags | way));
        }
        let accesses = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        let known = [(directions | accesses, OK)];
        each_flag("fi_ep_bind of a counter", &known, refused, |flags| {
            bound(counter, flags)
        });
        for (what, object) in [
            ("an address vector", two.a.av.cast()),
            ("an event queue", two.opened.eq.cast()),
        ] {
            let call = format!("fi_ep_bind of {what}");
            each_flag(&call, &[], refused, |flags| bound(object, flags));
            assert_eq!(bound(object, 0), 0, "{call}");
        }
        // Bound objects are held no longer than the endpoints were.
        still_works(&two);
        two.close();
    });
}

/// The options of endpoints that `getopt` returns, and those that `setopt` takes (fi_endpoint(3)).
/// Any other option fails with `ENOPROTOOPT`.
const GOT: [c_int; 7] = [
    FI_OPT_MIN_MULTI_RECV,
    FI_OPT_MAX_MSG_SIZE,
    FI_OPT_MAX_TAGGED_SIZE,
    FI_OPT_MAX_RMA_SIZE,
    FI_OPT_INJECT_MSG_SIZE,
    FI_OPT_INJECT_TAGGED_SIZE,
    FI_OPT_INJECT_RMA_SIZE,
];
const SET: [c_int; 1] = [FI_OPT_MIN_MULTI_RECV];

const NOT_CALLED: c_int = c_int::MAX;

/// The error numbers of a command without an argument, and with a word that is 0. There is no
/// descriptor to wait for: the event queue has `FI_WAIT_UNSPEC`, the other objects `FI_WAIT_NONE`.
///
/// [`NOT_CALLED`] stands for a call that would read beyond a word.
fn outcomes_of_command(class: usize, command: c_int) -> (c_int, c_int) {
    match (class, command) {
        // The endpoint is enabled already.
        (FI_CLASS_EP, FI_ENABLE) => (0, 0),
        // No key holds anything.
        (FI_CLASS_DOMAIN, FI_UNMAP_KEY) => (FI_EINVAL, 0),
        // Its argument is longer than a word.
        (FI_CLASS_DOMAIN, FI_MAP_RAW_MR) => (FI_EINVAL, NOT_CALLED),
        // The word has to name a direction.
        (FI_CLASS_EP, FI_GETOPSFLAG | FI_SETOPSFLAG) => (FI_EINVAL, FI_EINVAL),
        (FI_CLASS_EQ | FI_CLASS_CQ | FI_CLASS_CNTR, FI_GETWAIT) => (FI_EINVAL, FI_ENODATA),
        (FI_CLASS_EQ | FI_CLASS_CQ | FI_CLASS_CNTR, FI_GETWAITOBJ) => (FI_EINVAL, 0),
        (FI_CLASS_EQ | FI_CLASS_CQ | FI_CLASS_CNTR, _) => (FI_EINVAL, FI_ENOSYS),
        _ => (FI_ENOSYS, FI_ENOSYS),
    }
}

#[test]
fn each_command_and_option() {
    everywhere("each_command_and_option", |info| {
        let two = Two::open(info, shape());
        let (opened, side) = (&two.opened, &two.a);
        let objects: [*mut fid; 7] = [
            opened.fabric.cast(),
            opened.domain.cast(),
            opened.eq.cast(),
            side.av.cast(),
            side.tx.cast(),
            side.sent.cast(),
            side.ep.cast(),
        ];
        let edge = GuardedPage::new();
        for (at, &object) in objects.iter().enumerate() {
            // SAFETY: the object is open.
            let class = unsafe { (*object).fclass };
            for command in (-2..80).chain([c_int::MIN, c_int::MAX]) {
                let (without, with) = outcomes_of_command(class, command);
                let what = format!("fi_control {command} of object {at}");
                assert_eq!(control(object, command, null_mut()), -without, "{what}");
                // The longest argument of a command that is taken here is a word.
                if with != NOT_CALLED {
                    let room = edge.whole(&0u64);
                    assert_eq!(control(object, command, room.cast()), -with, "{what}");
                }
            }
        }
        // SAFETY: the endpoint is open, and there is room for a word.
        unsafe {
            let ops = &*(*side.ep).ops;
            let (getopt, setopt) = (ops.getopt.unwrap(), ops.setopt.unwrap());
            let fid: *mut fid = side.ep.cast();
            for (level, name) in (-1..4).flat_map(|level| (-2..40).map(move |name| (level, name))) {
                let is_known = |names: &[c_int]| level == FI_OPT_ENDPOINT && names.contains(&name);
                for room in [0usize, 1, 4, 8, 9, usize::MAX] {
                    let what = format!("option {name} of level {level} with {room} bytes");
                    let (null_value, got) = match room {
                        _ if !is_known(&GOT) => (libc::ENOPROTOOPT, libc::ENOPROTOOPT),
                        0..8 => (FI_EINVAL, FI_ETOOSMALL),
                        _ => (FI_EINVAL, 0),
                    };
                    let value: *mut c_void = edge.whole(&0u64).cast();
                    let mut len = room;
                    assert_eq!(
                        getopt(fid, level, name, value, &raw mut len),
                        -got,
                        "{what}"
                    );
                    let code = getopt(fid, level, name, null_mut(), &raw mut len);
                    assert_eq!(code, -null_value, "{what}");
                    let code = getopt(fid, level, name, value, null_mut());
                    assert_eq!(code, -null_value, "{what}");
                    let (null_value, set) = match room {
                        _ if !is_known(&SET) => (libc::ENOPROTOOPT, libc::ENOPROTOOPT),
                        8 => (FI_EINVAL, 0),
                        _ => (FI_EINVAL, FI_EINVAL),
                    };
                    let value: *const c_void = edge.whole(&64u64).cast();
                    assert_eq!(setopt(fid, level, name, value, room), -set, "{what}");
                    let code = setopt(fid, level, name, null(), room);
                    assert_eq!(code, -null_value, "{what}");
                }
            }
            for bytes in [0, 1, usize::MAX] {
                let (value, len) = ((&raw const bytes).cast(), size_of::<usize>());
                let (level, name) = (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV);
                assert_eq!(setopt(fid, level, name, value, len), 0, "{bytes} bytes");
            }
        }
        still_works(&two);
        two.close();
    });
}

/// Pointers that may be NULL, for there is nothing to say or nobody wants to know.
#[test]
fn pointers_that_may_be_null() {
    everywhere("pointers_that_may_be_null", |info| {
        let two = Two::open(info, shape());
        let (fabric, domain) = (two.opened.fabric, two.opened.domain);
        // SAFETY: as the manual pages have it.
        unsafe {
            // Attributes: the defaults.
            let (mut eq, mut av) = (null_mut(), null_mut());
            let (mut cq, mut cntr) = (null_mut(), null_mut());
            let mut map = null_mut();
            let mut table = fi_av_attr {
                type_: fi_av_type::FI_AV_TABLE,
                ..fi_av_attr::default()
            };
            let made = [
                call!(fabric, ops.eq_open(null_mut(), &raw mut eq, null_mut())),
                call!(domain, ops.av_open(null_mut(), &raw mut map, null_mut())),
                call!(domain, ops.av_open(&raw mut table, &raw mut av, null_mut())),
                call!(domain, ops.cq_open(null_mut(), &raw mut cq, null_mut())),
                call!(domain, ops.cntr_open(null_mut(), &raw mut cntr, null_mut())),
            ];
            assert_eq!(made, [0; 5]);
            // Event queues.
            let mut event = 0;
            let none = null_mut::<c_void>();
            let got = call!(eq, ops.read(&raw mut event, none, 0, 0));
            assert_eq!(got, EAGAIN);
            assert!(!call!(eq, ops.strerror(0, null(), null_mut(), 0)).is_null());
            assert!(!call!(eq, ops.strerror(5, null(), null_mut(), 80)).is_null());
            // Completion queues.
            let got = call!(cq, ops.read(none, 0));
            assert!(got == 0 || got == EAGAIN, "{got}");
            let got = call!(cq, ops.readfrom(none, 0, null_mut()));
            assert!(got == 0 || got == EAGAIN, "{got}");
            let mut out = [0u64; 8];
            let to: *mut c_void = out.as_mut_ptr().cast();
            assert_eq!(call!(cq, ops.readfrom(to, 1, null_mut())), EAGAIN);
            let got = call!(cq, ops.sread(to, 1, null(), 0));
            is_one_of("fi_cq_sread", &[FI_EAGAIN, FI_EINVAL, FI_ENOSYS], got);
            assert!(!call!(cq, ops.strerror(0, null(), null_mut(), 0)).is_null());
            assert!(!call!(cq, ops.strerror(5, null(), null_mut(), 80)).is_null());
            // Address vectors: nobody wants to know where an address is, or there is none. In a map
            // nobody would know it otherwise.
            let name = two::name_of(two.b.ep);
            let name: *const c_void = name.as_ptr().cast();
            assert_eq!(call!(av, ops.insert(name, 1, null_mut(), 0, none)), 1);
            assert_eq!(
                call!(map, ops.insert(name, 1, null_mut(), 0, none)),
                -FI_EINVAL
            );
            assert_eq!(call!(av, ops.insert(null(), 0, null_mut(), 0, none)), 0);
            assert_eq!(call!(av, ops.remove(null_mut(), 0, 0)), 0);
            let mut len = 0;
            assert_eq!(call!(av, ops.lookup(0, none, &raw mut len)), 0);
            assert!(len > 0);
            let mut len = 0;
            assert!(call!(av, ops.straddr(name, null_mut(), &raw mut len)).is_null());
            assert!(len > 1);
            // No service, and a host that nobody knows, whose address could not be inserted.
            let node = c"none.invalid".as_ptr();
            for (service, outcome) in [(null(), -FI_EINVAL), (c"7".as_ptr(), 0)] {
                let code = call!(av, ops.insertsvc(node, service, null_mut(), 0, none));
                assert_eq!(code, outcome);
            }
            for object in [eq.cast(), map.cast(), av.cast(), cq.cast(), cntr.cast()] {
                assert_eq!(close(object), 0);
            }
            // The address of an endpoint: its length alone.
            let mut len = 0;
            let getname = (*(*two.a.ep).cm).getname.unwrap();
            let code = getname(two.a.ep.cast(), none, &raw mut len);
            assert_eq!((code, len > 0), (-FI_ETOOSMALL, true));
            assert_eq!(getname(two.a.ep.cast(), none, null_mut()), -FI_EINVAL);
            // No objects to wait for.
            assert_eq!(call!(fabric, ops.trywait(null_mut(), 0)), 0);
        }
        messages_of_nothing(&two);
        still_works(&two);
        two.close();
    });
}

/// A message of no bytes has no buffer, no list and no descriptors (fi_msg(3)).
fn messages_of_nothing(two: &Two) {
    let none = null_mut::<c_void>();
    let (a, b) = (two.a.ep, two.b.ep);
    let before = count(two.b.received);
    let until = Instant::now() + PATIENCE;
    let mut expected = before;
    // SAFETY: as fi_tagged(3) has it.
    unsafe {
        let (from, to) = (&*(*a).tagged, &*(*b).tagged);
        let msg = |addr, msg_iov: *const libc::iovec, iov_count| fi_msg_tagged {
            msg_iov,
            desc: null_mut(),
            iov_count,
            addr,
            tag: 1,
            ignore: 0,
            context: none,
            data: 0,
        };
        let empty = part(null(), 0);
        let listed = [(null(), 0), (null(), 1), (&raw const empty, 1)];
        let (list, dest, any) = (null::<libc::iovec>(), two.to_b, u64::MAX);
        for form in 0..6 {
            let posted = match form {
                0 => to.recv.unwrap()(b, none, 0, none, any, 1, 0, none),
                1 => to.recvv.unwrap()(b, list, null_mut(), 0, any, 1, 0, none),
                2 => to.recv.unwrap()(b, none, 0, none, any, 1, 0, none),
                n => {
                    let (iov, count) = listed[n - 3];
                    to.recvmsg.unwrap()(b, &msg(any, iov, count), 0)
                }
            };
            assert_eq!(posted, 0, "form {form}");
            let send = || match form {
                0 => from.send.unwrap()(a, none, 0, none, dest, 1, none),
                1 => from.sendv.unwrap()(a, list, null_mut(), 0, dest, 1, none),
                2 => from.inject.unwrap()(a, none, 0, dest, 1),
                n => {
                    let (iov, count) = listed[n - 3];
                    from.sendmsg.unwrap()(a, &msg(dest, iov, count), 0)
                }
            };
            let mut code = send();
            while code == EAGAIN && Instant::now() < until {
                count(two.a.sent);
                code = send();
            }
            assert_eq!(code, 0, "form {form}");
            expected += 1;
            while count(two.b.received) < expected {
                assert!(Instant::now() < until, "form {form}");
                count(two.a.sent);
            }
        }
    }
    drain(two.a.tx);
    drain(two.b.rx);
}

/// Lengths and counts, at and beyond what there may be.
#[test]
fn counts_at_their_limits() {
    everywhere("counts_at_their_limits", |info| {
        let two = Two::open(info, shape());
        queues_at_their_limits(&two);
        vectors_at_their_limits(&two);
        regions_at_their_limits(info, &two);
        transfers_at_their_limits(info, &two);
        still_works(&two);
        two.close();
    });
}

fn queues_at_their_limits(two: &Two) {
    let (fabric, domain) = (two.opened.fabric, two.opened.domain);
    // SAFETY: as the manual pages have it, but for the numbers.
    unsafe {
        for size in [0, 1, usize::MAX] {
            let mut attr = fi_eq_attr {
                size,
                flags: FI_WRITE,
                signaling_vector: c_int::MIN,
                ..fi_eq_attr::default()
            };
            let mut eq: *mut fid_eq = null_mut();
            let made = call!(fabric, ops.eq_open(&raw mut attr, &raw mut eq, null_mut()));
            assert_eq!(made, 0);
            let entry = vec![0u8; 64 << 10];
            let at: *const c_void = entry.as_ptr().cast();
            for (len, code) in [
                (0, 0),
                (1, 1),
                (64 << 10, 64 << 10),
                ((64 << 10) + 1, -FI_EINVAL as isize),
                (usize::MAX, -FI_EINVAL as isize),
            ] {
                assert_eq!(call!(eq, ops.write(9, at, len, 0)), code, "{len} bytes");
            }
            let (mut event, mut out) = (0u32, [0u64; 1]);
            let to: *mut c_void = out.as_mut_ptr().cast();
            assert_eq!(call!(eq, ops.read(&raw mut event, to, 8, 0)), 0);
            let got = call!(eq, ops.read(&raw mut event, to, 0, 0));
            assert_eq!(got, -FI_ETOOSMALL as isize);
            assert_eq!(call!(eq, ops.read(&raw mut event, to, 8, 0)), 1);
            let got = call!(eq, ops.read(&raw mut event, to, 8, FI_PEEK));
            assert_eq!(got, -FI_ETOOSMALL as isize);
            assert_eq!(close(eq.cast()), 0);
        }
        let mut out = [0u64; 8];
        let to: *mut c_void = out.as_mut_ptr().cast();
        for most in [1, 16, 17, isize::MAX as usize, usize::MAX] {
            assert_eq!(call!(two.a.rx, ops.read(to, most)), EAGAIN);
            let got = call!(two.a.rx, ops.sread(to, most, null(), 0));
            is_one_of("fi_cq_sread", &[FI_EAGAIN, FI_ENOSYS, FI_EINVAL], got);
        }
        // As many as there are objects.
        for count in [-1, c_int::MIN] {
            let mut fids: [*mut fid; 1] = [two.a.rx.cast()];
            let code = call!(fabric, ops.trywait(fids.as_mut_ptr(), count));
            assert_eq!(code, -FI_EINVAL);
        }
        let mut cntr: *mut fid_cntr = null_mut();
        let made = call!(domain, ops.cntr_open(null_mut(), &raw mut cntr, null_mut()));
        assert_eq!(made, 0);
        for value in [u64::MAX, 1 << 63, 0] {
            assert_eq!(call!(cntr, ops.set(value)), 0);
            assert_eq!(call!(cntr, ops.add(u64::MAX)), 0);
            assert_eq!(call!(cntr, ops.read()), value.wrapping_sub(1));
            assert_eq!(call!(cntr, ops.seterr(value)), 0);
            assert_eq!(call!(cntr, ops.adderr(u64::MAX)), 0);
            assert_eq!(call!(cntr, ops.readerr()), value.wrapping_sub(1));
        }
        assert_eq!(call!(cntr, ops.set(0)), 0);
        let waited = [
            call!(cntr, ops.wait(0, 0)),
            call!(cntr, ops.wait(u64::MAX, 0)),
        ];
        assert_eq!(waited, [0, -libc::ETIMEDOUT]);
        assert_eq!(close(cntr.cast()), 0);
    }
}

fn vectors_at_their_limits(two: &Two) {
    let domain = two.opened.domain;
    let open = |attr: &mut fi_av_attr| {
        let mut av: *mut fid_av = null_mut();
        // SAFETY: as fi_av(3) has it, but for the numbers.
        let code = unsafe { call!(domain, ops.av_open(attr, &raw mut av, null_mut())) };
        opened(code, av)
    };
    let beyond: &[c_int] = &[FI_ENOMEM];
    // It depends on the machine whether there is memory for so many addresses.
    let large: &[c_int] = &[0, FI_ENOMEM];
    for (count, outcome) in [
        (0, OK),
        (1, OK),
        (1 << 30, large),
        (1 << 40, beyond),
        (usize::MAX, beyond),
    ] {
        let mut attr = fi_av_attr {
            count,
            ..fi_av_attr::default()
        };
        is_one_of(&format!("{count} addresses"), outcome, open(&mut attr));
        // A hint, for which no room is made.
        let mut attr = fi_av_attr {
            ep_per_node: count,
            ..fi_av_attr::default()
        };
        assert_eq!(open(&mut attr), 0, "{count} endpoints a node");
    }
    // The rest of an address numbers the entry, and in a map its generation.
    let refused = [63, 64, 65, c_int::MAX, -1, c_int::MIN];
    for (type_, most) in [
        (fi_av_type::FI_AV_UNSPEC, 32),
        (fi_av_type::FI_AV_TABLE, 32),
        (fi_av_type::FI_AV_MAP, 24),
    ] {
        let taken = [0, 1, most].map(|bits| (bits, 0));
        let refused = refused.iter().map(|&bits| (bits, -FI_EINVAL as isize));
        let beyond = (most + 1, -FI_EINVAL as isize);
        for (rx_ctx_bits, code) in taken.into_iter().chain([beyond]).chain(refused) {
            let mut attr = fi_av_attr {
                type_,
                rx_ctx_bits,
                ..fi_av_attr::default()
            };
            assert_eq!(open(&mut attr), code, "{rx_ctx_bits} bits in {type_:?}");
        }
    }
    for number in [3, 4, u32::MAX] {
        let mut attr = fi_av_attr {
            type_: fi_av_type(number),
            ..fi_av_attr::default()
        };
        is_one_of(&format!("type {number}"), &[FI_EINVAL], open(&mut attr));
    }
    let av = two.a.av;
    let (name, mut addr) = (two::name_of(two.b.ep), 0 as fi_addr_t);
    // SAFETY: as fi_av(3) has it, but for the numbers.
    unsafe {
        let at: *const c_void = name.as_ptr().cast();
        for count in [1 << 31, 1 << 32, usize::MAX] {
            let code = call!(av, ops.insert(at, count, &raw mut addr, 0, null_mut()));
            assert_eq!(code, -FI_EINVAL, "{count} addresses");
        }
        let (node, service) = (c"10.0.0.1".as_ptr(), c"7".as_ptr());
        for (nodes, services) in [
            (0, 1),
            (1, 0),
            (1 << 31, 1),
            (usize::MAX, 1),
            (1, usize::MAX),
            (usize::MAX, usize::MAX),
            (1 << 40, 1 << 40),
        ] {
            let to = &raw mut addr;
            let code = call!(
                av,
                ops.insertsym(node, nodes, service, services, to, 0, null_mut())
            );
            assert_eq!(code, -FI_EINVAL, "{nodes} nodes and {services} services");
        }
        // Addresses that are none.
        for none in [1 << 20, 1 << 62, u64::MAX - 1, u64::MAX] {
            let mut removed = none;
            let mut len = 0;
            for code in [
                call!(av, ops.remove(&raw mut removed, 1, 0)),
                call!(av, ops.lookup(none, null_mut(), &raw mut len)),
                call!(av, ops.set_user_id(none, 5, 0)),
            ] {
                is_one_of(
                    &format!("{none:#x}"),
                    &[FI_EINVAL, FI_ENOENT],
                    code as isize,
                );
            }
        }
        // Room that is exactly enough, said to be more.
        let edge = GuardedPage::new();
        let whole = {
            let mut len = 0;
            assert_eq!(call!(av, ops.lookup(two.to_b, null_mut(), &raw mut len)), 0);
            len
        };
        let mut len = usize::MAX;
        let room = edge.forbidden().as_ptr().wrapping_sub(whole);
        let code = call!(av, ops.lookup(two.to_b, room.cast(), &raw mut len));
        assert_eq!((code, len), (0, whole));
    }
}

fn regions_at_their_limits(info: &Info<'_>, two: &Two) {
    let domain = two.opened.domain;
    let memory = [0u8; 64];
    // Shared memory registers nothing, and so looks at no memory. A device refuses memory that is
    // not there, by an error of its own.
    // SAFETY: the offer has a domain's name.
    let no_memory: &[c_int] = match unsafe { is_shm(info) } {
        true => OK,
        false => &[FI_EINVAL, FI_ENOMEM, libc::EFAULT],
    };
    // SAFETY: as fi_mr(3) has it, but for the numbers.
    unsafe {
        let ops = &*(*domain).mr;
        let mut mr: *mut fid_mr = null_mut();
        for (at, len, outcome) in [
            (memory.as_ptr(), 0, OK),
            (null(), 0, no_memory),
            (memory.as_ptr(), usize::MAX, no_memory),
            (memory.as_ptr(), isize::MAX as usize, no_memory),
            (usize::MAX as *const u8, 1, no_memory),
        ] {
            let reg = ops.reg.unwrap();
            let (fid, at) = (domain.cast(), at.cast());
            let code = reg(fid, at, len, FI_SEND, 0, 0, 0, &raw mut mr, null_mut());
            let got = opened(code, mr);
            is_one_of(&format!("{len} bytes at {at:p}"), outcome, got);
        }
        let edge = GuardedPage::new();
        let list = edge.whole(&part(memory.as_ptr(), 64));
        for (list, count) in [
            (null_mut(), 0),
            (null_mut(), 1),
            (list, 0),
            (list, 5),
            (list, usize::MAX),
        ] {
            let regv = ops.regv.unwrap();
            let fid = domain.cast();
            let code = regv(fid, list, count, FI_SEND, 0, 0, 0, &raw mut mr, null_mut());
            assert_eq!(code, -FI_EINVAL, "{count} entries at {list:p}");
            let mut attr: fi_mr_attr = std::mem::zeroed();
            attr.__bindgen_anon_1.mr_iov = list;
            attr.iov_count = count;
            let code = ops.regattr.unwrap()(fid, &raw const attr, 0, &raw mut mr);
            assert_eq!(code, -FI_EINVAL, "{count} entries at {list:p}");
        }
        let code = ops.regattr.unwrap()(domain.cast(), null(), 0, &raw mut mr);
        assert_eq!(code, -FI_EINVAL);
    }
}

fn transfers_at_their_limits(info: &Info<'_>, two: &Two) {
    let (a, b) = (two.a.ep, two.b.ep);
    let none = null_mut::<c_void>();
    let (dest, any) = (two.to_b, u64::MAX);
    let bytes = [0u8; 64];
    let at: *const c_void = bytes.as_ptr().cast();
    let too_long: &[c_int] = &[FI_EMSGSIZE, FI_EINVAL];
    // SAFETY: as fi_msg(3) has it, but for the numbers; a refused call reads nothing.
    unsafe {
        let (longest, most_injected) = (
            (*(*info.info).ep_attr).max_msg_size,
            (*(*info.info).tx_attr).inject_size,
        );
        let (tagged, untagged) = (&*(*a).tagged, &*(*a).msg);
        for len in [longest + 1, isize::MAX as usize + 1, usize::MAX] {
            let codes = [
                untagged.send.unwrap()(a, at, len, none, dest, none),
                untagged.senddata.unwrap()(a, at, len, none, 1, dest, none),
                tagged.send.unwrap()(a, at, len, none, dest, 1, none),
                tagged.senddata.unwrap()(a, at, len, none, 1, dest, 1, none),
            ];
            for code in codes {
                is_one_of(&format!("a send of {len} bytes"), too_long, code);
            }
        }
        for len in [most_injected + 1, longest, usize::MAX] {
            let codes = [
                untagged.inject.unwrap()(a, at, len, dest),
                untagged.injectdata.unwrap()(a, at, len, 1, dest),
                tagged.inject.unwrap()(a, at, len, dest, 1),
                tagged.injectdata.unwrap()(a, at, len, 1, dest, 1),
            ];
            for code in codes {
                is_one_of(&format!("{len} injected bytes"), too_long, code);
            }
        }
        // Lists: as long as they may be, longer, and with lengths that no number holds together. A
        // list that is said to be longer than any is looked at no further than the longest.
        let edge = GuardedPage::new();
        let entries = |len| [part(bytes.as_ptr(), len); 16];
        let iov: *const libc::iovec = edge.whole(&entries(usize::MAX)).cast();
        for count in [2, 4, 5, 16, 17, 1 << 32, usize::MAX] {
            let codes = [
                untagged.sendv.unwrap()(a, iov, null_mut(), count, dest, none),
                tagged.sendv.unwrap()(a, iov, null_mut(), count, dest, 1, none),
            ];
            for code in codes {
                is_one_of(&format!("{count} endless entries"), too_long, code);
            }
        }
        let iov: *const libc::iovec = edge.whole(&entries(1)).cast();
        let (from, to) = ((&*(*b).msg), (&*(*b).tagged));
        let of_descs = GuardedPage::new();
        let descs: *mut *mut c_void = of_descs.whole(&[3 as *mut c_void; 16]).cast();
        for desc in [null_mut(), descs] {
            for count in [5, 16, 17, 1 << 32, usize::MAX] {
                let codes = [
                    untagged.sendv.unwrap()(a, iov, desc, count, dest, none),
                    tagged.sendv.unwrap()(a, iov, desc, count, dest, 1, none),
                    from.recvv.unwrap()(b, iov, desc, count, any, none),
                    to.recvv.unwrap()(b, iov, desc, count, any, 1, 0, none),
                ];
                for code in codes {
                    is_one_of(&format!("{count} entries"), &[FI_EINVAL], code);
                }
            }
        }
        // Peers that are none.
        for peer in [1 << 20, 1 << 62, u64::MAX - 1, u64::MAX] {
            let codes = [
                untagged.send.unwrap()(a, at, 8, none, peer, none),
                untagged.inject.unwrap()(a, at, 8, peer),
                tagged.send.unwrap()(a, at, 8, none, peer, 1, none),
                tagged.inject.unwrap()(a, at, 8, peer, 1),
            ];
            for code in codes {
                let refused: &[c_int] = &[FI_EINVAL, FI_ENOENT, libc::EADDRNOTAVAIL];
                is_one_of(&format!("a send to {peer:#x}"), refused, code);
            }
        }
        // A receive may have more room than there is memory: it is taken back.
        let cancel = (*(*b).ops).cancel.unwrap();
        for len in [longest, usize::MAX] {
            let context = 11 as *mut c_void;
            let multi = fi_msg {
                msg_iov: &part(bytes.as_ptr(), len),
                desc: null_mut(),
                iov_count: 1,
                addr: any,
                context,
                data: 0,
            };
            let posted = [
                to.recv.unwrap()(b, at.cast_mut(), len, none, any, 0x55, 0, context),
                from.recvmsg.unwrap()(b, &raw const multi, FI_MULTI_RECV),
            ];
            for code in posted {
                assert_eq!(code, 0, "room for {len} bytes");
                assert_eq!(cancel(b.cast(), context), 0);
            }
        }
        assert_eq!(cancel(b.cast(), usize::MAX as *mut c_void), 0, "none such");
    }
    drain(two.a.tx);
    drain(two.b.rx);
    // The same address a second time is the same or another one, never a failure.
    insert(two.a.av, two.b.ep);
}
