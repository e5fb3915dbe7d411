//! Endpoints are bound once. Errors name peers, and give their reasons in words.

use crate::{child, client, support, two};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Barrier;

use client::{Info, Libfabric, Opened, close};
use ferro_fi::abi::{
    FI_AV_USER_ID, FI_EAVAIL, FI_ECANCELED, FI_EINVAL, FI_ENABLE, FI_ENOMSG, FI_ETRUNC, FI_PEEK,
    FI_RECV, FI_SEND, FI_TRANSMIT, fi_addr_t, fi_av_attr, fi_av_type, fi_cq_err_entry, fi_eq_attr,
    fi_msg_tagged, fi_threading, fid, fid_ep,
};
use ferrofabric_shm::ShmProvider;
use support::folder::Folder;
use two::{Two, alone, control, everywhere, insert, name_of, next, shape};

const FI_SUCCESS: c_int = 0;

/// `fi_ep_bind`.
fn bind(ep: *mut fid_ep, to: *mut fid, flags: u64) -> c_int {
    let fid: *mut fid = ep.cast();
    // SAFETY: both are open.
    unsafe { (*(*fid).ops).bind.unwrap()(fid, to, flags) }
}

/// An endpoint that is bound to nothing.
fn bare(opened: &Opened, info: &Info<'_>) -> *mut fid_ep {
    let (domain, mut ep) = (opened.domain, null_mut());
    // SAFETY: as fi_endpoint(3) has it.
    let made = unsafe { call!(domain, ops.endpoint(info.info, &raw mut ep, null_mut())) };
    assert_eq!(made, 0);
    ep
}

/// Issue 19 h: an endpoint keeps its objects. Another one, or the same once more, is refused.
#[test]
fn a_binding_is_not_replaced() {
    alone("a_binding_is_not_replaced", |info| {
        let two = Two::open(info, shape());
        let opened = &two.opened;
        let ep = bare(opened, info);
        let mut eq_attr = fi_eq_attr::default();
        let (mut eq, fabric) = (null_mut(), opened.fabric);
        // SAFETY: as fi_eq(3) has it.
        let made = unsafe {
            call!(
                fabric,
                ops.eq_open(&raw mut eq_attr, &raw mut eq, null_mut())
            )
        };
        assert_eq!(made, 0);
        // Of each kind one, another, and how they are bound.
        let (a, b) = (&two.a, &two.b);
        let all: [(*mut fid, *mut fid, u64); 6] = [
            (a.av.cast(), b.av.cast(), 0),
            (a.tx.cast(), b.tx.cast(), FI_TRANSMIT),
            (a.rx.cast(), b.rx.cast(), FI_RECV),
            (a.sent.cast(), b.sent.cast(), FI_SEND),
            (a.received.cast(), b.received.cast(), FI_RECV),
            (opened.eq.cast(), eq.cast(), 0),
        ];
        for (first, second, flags) in all {
            assert_eq!(bind(ep, first, flags), FI_SUCCESS);
            for again in [second, first] {
                assert_eq!(bind(ep, again, flags), -FI_EINVAL, "{flags:#x}");
            }
        }
        // Refused for one direction, it is bound for neither.
        let other = bare(opened, info);
        assert_eq!(bind(other, a.rx.cast(), FI_RECV), FI_SUCCESS);
        assert_eq!(bind(other, b.tx.cast(), FI_TRANSMIT | FI_RECV), -FI_EINVAL);
        assert_eq!(bind(other, b.tx.cast(), FI_TRANSMIT), FI_SUCCESS);

        // The queue that was bound first has the completions.
        assert_eq!(control(ep.cast(), FI_ENABLE, null_mut()), 0);
        let to_b = insert(two.a.av, two.b.ep);
        let mut into = [0u8; 8];
        two.b.receive(&mut into, 5, 1);
        // SAFETY: as fi_tagged(3) has it.
        let sent = unsafe {
            let send = (*(*ep).tagged).send.unwrap();
            send(
                ep,
                [1u8; 8].as_ptr().cast(),
                8,
                null_mut(),
                to_b,
                5,
                6 as *mut c_void,
            )
        };
        assert_eq!(sent, 0);
        assert_eq!(next(two.a.tx).unwrap().op_context as usize, 6);
        next(two.b.rx).unwrap();
        for fid in [ep.cast(), other.cast(), eq.cast()] {
            assert_eq!(close(fid), 0);
        }
        two.close();
    });
}

/// Issue 19 h: of two calls that enable an endpoint at a time one opens its transport, and both
/// succeed. Each transport leaves its counters in a file.
#[test]
fn racing_calls_enable_an_endpoint_once() {
    const ROUNDS: usize = 200;
    const TEST: &str = "racing_calls_enable_an_endpoint_once";
    if !child::is_here() {
        let folder = Folder::new();
        let stats = folder.path().to_str().unwrap();
        child::run(TEST, &[("FERRO_STATS", stats)]);
        let files = std::fs::read_dir(folder.path()).unwrap().count();
        let expected = Libfabric::load().map_or(0, |_| ROUNDS);
        assert_eq!(files, expected, "transports");
        return;
    }
    child::alone(TEST, |libfabric| {
        let info = &libfabric.discover(ShmProvider::DOMAIN, fi_threading::FI_THREAD_SAFE);
        let two = Two::open(info, shape());
        let before = two::name_of(two.a.ep);
        assert!(!before.is_empty());
        for _ in 0..ROUNDS - 2 {
            let ep = bare(&two.opened, info);
            assert_eq!(bind(ep, two.a.av.cast(), 0), 0);
            assert_eq!(bind(ep, two.a.tx.cast(), FI_TRANSMIT | FI_RECV), 0);
            let (start, address) = (Barrier::new(2), ep as usize);
            let enable = || {
                start.wait();
                control(address as *mut fid, FI_ENABLE, null_mut())
            };
            std::thread::scope(|scope| {
                let other = scope.spawn(enable);
                assert_eq!(enable(), 0);
                assert_eq!(other.join().unwrap(), 0);
            });
            assert_eq!(close(ep.cast()), 0);
        }
        two.close();
    });
}

/// The error that is next.
fn error_of(cq: *mut ferro_fi::abi::fid_cq) -> fi_cq_err_entry {
    assert_eq!(next(cq).unwrap_err(), -(FI_EAVAIL as isize));
    let mut error = fi_cq_err_entry::default();
    // SAFETY: there is room for it.
    assert_eq!(unsafe { call!(cq, ops.readerr(&raw mut error, 0)) }, 1);
    error
}

/// `fi_cq_strerror`.
fn words(
    cq: *mut ferro_fi::abi::fid_cq,
    number: c_int,
    buf: *mut c_char,
    len: usize,
) -> &'static CStr {
    // SAFETY: the words stay, and the tests do not change what they are copied to while they look.
    unsafe { CStr::from_ptr(call!(cq, ops.strerror(number, null(), buf, len))) }
}

/// Issue 19 f: `fi_cq_strerror` has the words of the number that is passed, whatever was read
/// since.
#[test]
fn words_are_those_of_the_number() {
    everywhere("words_are_those_of_the_number", |info| {
        let two = Two::open(info, shape());
        let mut short = [0u8; 3];
        two.b.receive(&mut short, 1, 11);
        two.a.senddata(&[1; 8], 0, two.to_b, 1);
        let truncated = error_of(two.b.rx);
        assert_eq!(truncated.err, FI_ETRUNC);
        let of_truncated = words(two.b.rx, truncated.prov_errno, null_mut(), 0);
        assert_eq!(
            of_truncated,
            c"the message is longer than the receive buffer"
        );

        two.b.receive(&mut short, 2, 12);
        cancel(two.b.ep, 12);
        let cancelled = error_of(two.b.rx);
        assert_eq!(cancelled.err, FI_ECANCELED);
        let of_cancelled = words(two.b.rx, cancelled.prov_errno, null_mut(), 0);
        assert_eq!(of_cancelled, c"cancelled");

        // The first text is where it was, and its number still means it; of another queue, too.
        assert_eq!(
            of_truncated,
            c"the message is longer than the receive buffer"
        );
        for cq in [two.b.rx, two.a.tx] {
            assert_eq!(words(cq, truncated.prov_errno, null_mut(), 0), of_truncated);
            let mut text = [0x55 as c_char; 8];
            let cut = words(cq, truncated.prov_errno, text.as_mut_ptr(), text.len());
            assert_eq!(cut, c"the mes");
        }
        // Any number has words.
        for number in [0, 1, -1, 255, 256, c_int::MAX, c_int::MIN] {
            assert!(
                !words(two.b.rx, number, null_mut(), 0).is_empty(),
                "{number}"
            );
        }
        next(two.a.tx).unwrap();
        two.close();
    });
}

/// `fi_cancel`.
fn cancel(ep: *mut fid_ep, context: usize) {
    let fid: *mut fid = ep.cast();
    // SAFETY: the endpoint is open.
    let cancelled = unsafe { (*(*ep).ops).cancel.unwrap()(fid, context as *mut c_void) };
    assert_eq!(cancelled, 0);
}

/// Issue 19 h: with `FI_AV_USER_ID`, errors name a peer by the ID that the user gave it, as
/// completions do: of a receive that was cancelled, of a look that found nothing, and of a send to
/// a peer that is removed.
#[test]
fn errors_name_peers_by_the_users_ids() {
    everywhere("errors_name_peers_by_the_users_ids", |info| {
        let shared = format!("ferro-ids-{}", std::process::id());
        let shared = CString::new(shared).unwrap();
        let (table, map) = (fi_av_type::FI_AV_TABLE, fi_av_type::FI_AV_MAP);
        errors_name_a_peer_by_its_id(info, table, None);
        errors_name_a_peer_by_its_id(info, table, Some(&shared));
        errors_name_a_peer_by_its_id(info, map, None);
    });
}

/// The same with an address vector of a type, and with a name if other processes may share it.
fn errors_name_a_peer_by_its_id(info: &Info<'_>, type_: fi_av_type, name: Option<&CStr>) {
    const ID: fi_addr_t = 4711;
    let two = Two::open(info, shape());
    let (domain, mut av) = (two.opened.domain, null_mut());
    let mut attr = fi_av_attr {
        type_,
        flags: FI_AV_USER_ID,
        name: name.map_or_else(null, CStr::as_ptr),
        ..fi_av_attr::default()
    };
    // SAFETY: as fi_av(3) has it.
    unsafe {
        let made = call!(domain, ops.av_open(&raw mut attr, &raw mut av, null_mut()));
        assert_eq!(made, 0);
    }
    let ep = bare(&two.opened, info);
    assert_eq!(bind(ep, av.cast(), 0), 0);
    assert_eq!(bind(ep, two.a.tx.cast(), FI_TRANSMIT), 0);
    assert_eq!(bind(ep, two.a.rx.cast(), FI_RECV), 0);
    assert_eq!(control(ep.cast(), FI_ENABLE, null_mut()), 0);
    let name = name_of(two.b.ep);
    let peer = two::insert_bytes(av, name.as_ptr().cast());
    assert_ne!(peer, ID);
    // SAFETY: as fi_av(3) has it.
    assert_eq!(unsafe { call!(av, ops.set_user_id(peer, ID, 0)) }, 0);

    let mut into = [0u8; 8];
    // SAFETY: as fi_tagged(3) has it; the memory stays.
    unsafe {
        let recv = (*(*ep).tagged).recv.unwrap();
        let at = into.as_mut_ptr().cast();
        assert_eq!(
            recv(ep, at, 8, null_mut(), peer, 1, 0, 21 as *mut c_void),
            0
        );
    }
    cancel(ep, 21);
    let error = error_of(two.a.rx);
    assert_eq!((error.err, error.src_addr), (FI_ECANCELED, ID));

    let looked = fi_msg_tagged {
        msg_iov: null(),
        desc: null_mut(),
        iov_count: 0,
        addr: peer,
        tag: 1,
        ignore: 0,
        context: 22 as *mut c_void,
        data: 0,
    };
    // SAFETY: as fi_tagged(3) has it.
    unsafe {
        let recvmsg = (*(*ep).tagged).recvmsg.unwrap();
        assert_eq!(recvmsg(ep, &raw const looked, FI_PEEK), 0);
    }
    let error = error_of(two.a.rx);
    assert_eq!((error.err, error.src_addr), (FI_ENOMSG, ID));

    // Nobody receives it, so it is under way when the peer is removed.
    let large = vec![1u8; 4 << 20];
    // SAFETY: as fi_tagged(3) has it; the bytes stay.
    unsafe {
        let send = (*(*ep).tagged).send.unwrap();
        let (at, len) = (large.as_ptr().cast(), large.len());
        while send(ep, at, len, null_mut(), peer, 2, 23 as *mut c_void) != 0 {
            two::count(two.a.sent);
        }
        let (recv, at) = ((*(*ep).tagged).recv.unwrap(), into.as_mut_ptr().cast());
        for context in [24, 25] {
            let context = context as *mut c_void;
            assert_eq!(recv(ep, at, 8, null_mut(), peer, 3, 0, context), 0);
        }
        let mut removed = peer;
        assert_eq!(call!(av, ops.remove(&raw mut removed, 1, 0)), 0);
    }
    let error = error_of(two.a.tx);
    assert_eq!((error.op_context as usize, error.src_addr), (23, ID));
    assert_eq!(error.err, FI_ECANCELED);
    if type_ == fi_av_type::FI_AV_MAP {
        // Another peer gets the entry, and an ID of its own. (In a table it would have the same
        // address as well.)
        let name = name_of(two.a.ep);
        let next = two::insert_bytes(av, name.as_ptr().cast());
        assert_eq!(next as u32, peer as u32, "not the same entry");
        cancel(ep, 24);
        let error = error_of(two.a.rx);
        assert_eq!((error.err, error.src_addr), (FI_ECANCELED, ID));
        // SAFETY: as fi_av(3) has it.
        assert_eq!(unsafe { call!(av, ops.set_user_id(next, 7, 0)) }, 0);
        cancel(ep, 25);
        let error = error_of(two.a.rx);
        assert_eq!((error.err, error.src_addr), (FI_ECANCELED, u64::MAX));
    }
    for fid in [ep.cast(), av.cast()] {
        assert_eq!(close(fid), 0);
    }
    two.close();
}
