//! The tables of calls that C finds in each object: which calls they have is read off the bindings,
//! so that none can be left out. Those that are not offered say so; those that no other test tries
//! at its limits are tried here. Each structure that is passed or filled in ends where its memory
//! ends.

use crate::{client, support, two};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::Instant;

use client::close;
use ferro_fi::abi::{
    FI_EBADFLAGS, FI_EINVAL, FI_ENABLE, FI_ENOSYS, FI_ETOOSMALL, FI_GET_RAW_MR, FI_REFRESH,
    FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SEND, fi_addr_t, fi_cq_tagged_entry, fi_msg, fi_msg_tagged,
    fi_wait_obj, fid, fid_mr,
};
use support::edge::GuardedPage;
use two::{EAGAIN, FORMATS, PATIENCE, Two, everywhere, name_of, shape};

const BINDINGS: &str = include_str!("../../src/abi/bindings.rs");

/// The calls that are offered, each of which some test tries.
const OFFERED: &[(&str, &str)] = &[
    ("fi_ops_fabric", "domain domain2 eq_open trywait"),
    (
        "fi_ops_domain",
        "av_open cq_open endpoint endpoint2 cntr_open srx_ctx query_atomic query_collective",
    ),
    ("fi_ops_mr", "reg regv regattr"),
    ("fi_ops_eq", "read readerr write sread strerror"),
    (
        "fi_ops_cq",
        "read readfrom readerr sread sreadfrom signal strerror",
    ),
    ("fi_ops_cntr", "read readerr add set wait adderr seterr"),
    (
        "fi_ops_av",
        "insert insertsvc insertsym remove lookup straddr insert_auth_key lookup_auth_key \
         set_user_id av_set",
    ),
    ("fi_ops_ep", "cancel getopt setopt"),
    ("fi_ops_cm", "getname shutdown join"),
    (
        "fi_ops_msg",
        "recv recvv recvmsg send sendv sendmsg inject senddata injectdata",
    ),
    (
        "fi_ops_tagged",
        "recv recvv recvmsg send sendv sendmsg inject senddata injectdata",
    ),
    (
        "fi_ops_rma",
        "read readv readmsg write writev writemsg inject writedata injectdata",
    ),
    (
        "fi_ops_atomic",
        "write writev writemsg inject readwrite readwritev readwritemsg compwrite compwritev \
         compwritemsg writevalid readwritevalid compwritevalid",
    ),
    ("fi_ops_collective", ""),
];

/// The calls of a table, as the bindings have them.
fn calls_of(table: &str) -> Vec<&'static str> {
    let start = format!("pub struct {table} {{");
    let (_, rest) = BINDINGS.split_once(&start).unwrap();
    let (fields, _) = rest.split_once("\n}").unwrap();
    let named = fields.lines().filter_map(|line| {
        let field = line.strip_prefix("    pub ")?;
        Some(field.split_once(':')?.0)
    });
    let calls: Vec<_> = named.collect();
    assert_eq!(calls[0], "size", "{table}");
    calls[1..].to_vec()
}

/// No entry is empty, for libfabric's inline functions look at few of them before they call; and
/// a call that is not offered returns `-FI_ENOSYS` for any arguments.
#[test]
fn what_is_not_offered_says_so() {
    everywhere("what_is_not_offered_says_so", |info| {
        let two = Two::open(info, shape());
        let opened = &two.opened;
        // SAFETY: the objects are open.
        let tables: [(&str, *const c_void); 14] = unsafe {
            let ep = &*two.a.ep;
            [
                ("fi_ops_fabric", (*opened.fabric).ops.cast()),
                ("fi_ops_domain", (*opened.domain).ops.cast()),
                ("fi_ops_mr", (*opened.domain).mr.cast()),
                ("fi_ops_eq", (*opened.eq).ops.cast()),
                ("fi_ops_cq", (*two.a.tx).ops.cast()),
                ("fi_ops_cntr", (*two.a.sent).ops.cast()),
                ("fi_ops_av", (*two.a.av).ops.cast()),
                ("fi_ops_ep", ep.ops.cast()),
                ("fi_ops_cm", ep.cm.cast()),
                ("fi_ops_msg", ep.msg.cast()),
                ("fi_ops_tagged", ep.tagged.cast()),
                ("fi_ops_rma", ep.rma.cast()),
                ("fi_ops_atomic", ep.atomic.cast()),
                ("fi_ops_collective", ep.collective.cast()),
            ]
        };
        let mut refused = 0;
        for (table, at) in tables {
            let (_, offered) = OFFERED.iter().find(|(name, _)| *name == table).unwrap();
            let calls = calls_of(table);
            for one in offered.split_whitespace() {
                assert!(calls.contains(&one), "{table} has no {one}");
            }
            // SAFETY: a table is its size, then pointers to functions.
            let entries = unsafe {
                let words = at.cast::<usize>();
                assert!(*words >= (calls.len() + 1) * size_of::<usize>(), "{table}");
                std::slice::from_raw_parts(words.add(1), calls.len())
            };
            for (call, entry) in calls.iter().zip(entries) {
                assert_ne!(*entry, 0, "{table} has nothing for {call}");
                if offered.split_whitespace().any(|one| one == *call) {
                    continue;
                }
                assert_eq!(answer(*entry), -FI_ENOSYS, "{call} of {table}");
                refused += 1;
            }
        }
        assert!(refused > 25, "{refused} calls are not offered");
        two.close();
    });
}

/// The result of a function that looks at no argument.
fn answer(entry: usize) -> c_int {
    type Any = unsafe extern "C" fn(
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
    ) -> isize;
    // SAFETY: the calling convention has callers make room for arguments, and clean up.
    let returned = unsafe {
        let call = std::mem::transmute::<usize, Any>(entry);
        call(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    };
    // Some return an int, of which the lower half counts.
    returned as c_int
}

/// The calls that all objects have: those that an object does not offer say so.
#[test]
fn calls_of_all_objects() {
    everywhere("calls_of_all_objects", |info| {
        let two = Two::open(info, shape());
        let (opened, side) = (&two.opened, &two.a);
        let memory = [0u8; 4096];
        let mut mr: *mut fid_mr = null_mut();
        // SAFETY: as the manual pages have it.
        unsafe {
            let reg = (*(*opened.domain).mr).reg.unwrap();
            let (fid, at) = (opened.domain.cast(), memory.as_ptr().cast());
            let made = reg(fid, at, 4096, FI_SEND, 0, 0, 0, &raw mut mr, null_mut());
            assert_eq!(made, 0);
            let objects: [(&str, *mut fid, bool); 8] = [
                ("fabric", opened.fabric.cast(), false),
                ("domain", opened.domain.cast(), false),
                ("event queue", opened.eq.cast(), false),
                ("completion queue", side.tx.cast(), false),
                ("counter", side.sent.cast(), false),
                ("address vector", side.av.cast(), true),
                ("endpoint", side.ep.cast(), true),
                ("region", mr.cast(), true),
            ];
            for (what, object, binds) in objects {
                let ops = &*(*object).ops;
                let mut out = null_mut();
                let open = ops.ops_open.unwrap();
                let code = open(object, c"none".as_ptr(), 0, &raw mut out, null_mut());
                assert_eq!((code, out.is_null()), (-FI_ENOSYS, true), "{what}");
                let set = ops.ops_set.unwrap();
                let code = set(object, c"none".as_ptr(), 0, null_mut(), null_mut());
                assert_eq!(code, -FI_ENOSYS, "{what}");
                let mut text = [7i8; 16];
                let tostr = ops.tostr.unwrap();
                for room in [0, 1, 16] {
                    let code = tostr(object, text.as_mut_ptr().cast(), room);
                    assert_eq!(code, -FI_ENOSYS, "{what}");
                }
                assert_eq!(text, [7; 16]);
                if !binds {
                    let code = ops.bind.unwrap()(object, side.tx.cast(), 0);
                    assert_eq!(code, -FI_ENOSYS, "{what}");
                }
            }
            // A region is enabled from the start, bound to an endpoint or not.
            let ops = &*(*mr).fid.ops;
            for flags in (0..64).map(|bit| 1 << bit) {
                let counts = [FI_REMOTE_READ, FI_REMOTE_WRITE].contains(&flags);
                for (to, code) in [
                    (side.ep.cast(), 0),
                    (side.sent.cast(), if counts { 0 } else { -FI_EBADFLAGS }),
                    (side.tx.cast(), -FI_ENOSYS),
                    (null_mut(), -FI_EINVAL),
                ] {
                    assert_eq!(ops.bind.unwrap()(mr.cast(), to, flags), code);
                }
            }
            for command in (-2..80).chain([c_int::MIN, c_int::MAX]) {
                let code = ops.control.unwrap()(mr.cast(), command, null_mut());
                let expected = match command {
                    FI_ENABLE => 0,
                    FI_REFRESH | FI_GET_RAW_MR => -FI_EINVAL,
                    _ => -FI_ENOSYS,
                };
                assert_eq!(code, expected, "{command}");
            }
            assert_eq!(close(mr.cast()), 0);
        }
        two.close();
    });
}

/// `fi_cq_sreadfrom`, `fi_cq_signal` and `fi_av_lookup_auth_key`, which have their own pointers and
/// counts.
#[test]
fn the_rest_of_queues_and_vectors() {
    everywhere("the_rest_of_queues_and_vectors", |info| {
        let mut waits = shape();
        waits.cq.wait_obj = fi_wait_obj::FI_WAIT_UNSPEC;
        let two = Two::open(info, waits);
        let quiet = Two::open(info, shape());
        // SAFETY: as fi_cq(3) and fi_av(3) have it, but for the counts.
        unsafe {
            let edge = GuardedPage::new();
            let to: *mut c_void = edge.whole(&fi_cq_tagged_entry::default()).cast();
            let from_edge = GuardedPage::new();
            let from = from_edge.whole(&7u64);
            for (from, most) in [(from, 1), (null_mut(), 1), (null_mut(), usize::MAX)] {
                let got = call!(two.a.rx, ops.sreadfrom(to, most, from, null(), 0));
                assert_eq!(got, EAGAIN, "{most} entries");
            }
            let got = call!(
                two.a.rx,
                ops.sreadfrom(null_mut(), 0, null_mut(), null(), 0)
            );
            assert!(got == 0 || got == EAGAIN, "{got}");
            // One that was opened for no waits (fi_cq(3), FI_WAIT_NONE) is read all the same.
            let got = call!(quiet.a.rx, ops.sreadfrom(to, 1, from, null(), 0));
            assert_eq!(got, EAGAIN);
            // A signal before a wait ends that (fi_cq(3), fi_cq_signal).
            let since = Instant::now();
            assert_eq!(call!(two.a.rx, ops.signal()), 0);
            let got = call!(two.a.rx, ops.sreadfrom(to, 1, from, null(), 60_000));
            assert_eq!(got, EAGAIN);
            assert!(since.elapsed() < PATIENCE / 2, "it waited for its time");
            assert_eq!(call!(quiet.a.rx, ops.signal()), 0);
            // No key was inserted, and no address with one.
            let room = edge.whole(&[0u8; 8]);
            for addr in [0, two.to_b, 1 << 20, 1 << 62, u64::MAX] {
                let mut len = 8;
                for code in [
                    call!(
                        two.a.av,
                        ops.lookup_auth_key(addr, room.cast(), &raw mut len)
                    ),
                    call!(
                        two.a.av,
                        ops.lookup_auth_key(addr, null_mut(), &raw mut len)
                    ),
                    call!(two.a.av, ops.lookup_auth_key(addr, room.cast(), null_mut())),
                ] {
                    assert!(code < 0, "{addr:#x}: {code}");
                }
            }
            for (key, size) in [
                (null(), 0),
                (null(), 8),
                (null(), usize::MAX),
                (room.cast_const().cast(), 0),
                (room.cast_const().cast(), 7),
                (room.cast_const().cast(), usize::MAX),
            ] {
                let mut addr: fi_addr_t = 7;
                let to = &raw mut addr;
                let code = call!(two.a.av, ops.insert_auth_key(key, size, to, 0));
                assert!(code < 0 && addr == 7, "{size} bytes: {code}");
                let code = call!(two.a.av, ops.insert_auth_key(key, size, null_mut(), 0));
                assert!(code < 0, "{size} bytes: {code}");
            }
        }
        quiet.close();
        two.close();
    });
}

/// Messages that are constants, addresses, and results of calls: each ends where the memory does.
#[test]
fn what_is_passed_ends_where_the_memory_does() {
    everywhere("what_is_passed_ends_where_the_memory_does", |info| {
        for (format, bytes) in FORMATS {
            let mut formatted = shape();
            formatted.cq.format = format;
            let two = Two::open(info, formatted);
            for tagged in [true, false] {
                exchange(&two, tagged, bytes);
            }
            names(&two);
            two.close();
        }
    });
}

/// Sends a message from constants to constants, and reads both ends into entries of so many bytes.
fn exchange(two: &Two, tagged: bool, entry_bytes: usize) {
    let edges: [GuardedPage; 6] = std::array::from_fn(|_| GuardedPage::new());
    let sent = edges[0].constant(&[9u8; 40]);
    let received = edges[1].whole(&[0u8; 40]);
    let part = |at: *mut [u8; 40]| libc::iovec {
        iov_base: at.cast(),
        iov_len: 40,
    };
    // The list, and behind it the message, each at the end of a page that nobody may write to.
    let post = |sends: bool, list: &GuardedPage, message: &GuardedPage| {
        let (side, at, addr) = match sends {
            true => (&two.a, sent, two.to_b),
            false => (&two.b, received, u64::MAX),
        };
        let (msg_iov, desc): (*const _, _) = (list.constant(&part(at)), null_mut());
        let context = 6 as *mut c_void;
        // SAFETY: as fi_msg(3) and fi_tagged(3) have it.
        unsafe {
            if tagged {
                let msg = message.constant(&fi_msg_tagged {
                    msg_iov,
                    desc,
                    iov_count: 1,
                    addr,
                    tag: 5,
                    ignore: 0,
                    context,
                    data: 0,
                });
                let table = &*(*side.ep).tagged;
                return match sends {
                    true => table.sendmsg.unwrap()(side.ep, msg, 0),
                    false => table.recvmsg.unwrap()(side.ep, msg, 0),
                };
            }
            let msg = message.constant(&fi_msg {
                msg_iov,
                desc,
                iov_count: 1,
                addr,
                context,
                data: 0,
            });
            let table = &*(*side.ep).msg;
            match sends {
                true => table.sendmsg.unwrap()(side.ep, msg, 0),
                false => table.recvmsg.unwrap()(side.ep, msg, 0),
            }
        }
    };
    assert_eq!(post(false, &edges[2], &edges[3]), 0);
    assert_eq!(post(true, &edges[4], &edges[5]), 0);
    let room = GuardedPage::new();
    let at = room.forbidden().as_ptr().wrapping_sub(entry_bytes);
    let from_edge = GuardedPage::new();
    let from = from_edge.whole(&7u64);
    let until = Instant::now() + PATIENCE;
    for (cq, with_source) in [(two.a.tx, false), (two.b.rx, true)] {
        loop {
            // SAFETY: there is room for one entry of the format.
            let got = unsafe {
                match with_source {
                    true => call!(cq, ops.readfrom(at.cast(), 1, from)),
                    false => call!(cq, ops.read(at.cast(), 1)),
                }
            };
            if got == 1 {
                break;
            }
            assert_eq!(got, EAGAIN);
            assert!(Instant::now() < until, "nothing completes");
        }
    }
    // SAFETY: it has been written, and nobody writes to it any more.
    assert_eq!(unsafe { *received }, [9; 40]);
}

/// The address of an endpoint, and its text, with as much room as they take.
fn names(two: &Two) {
    let name = name_of(two.b.ep);
    let (edge, result) = (GuardedPage::new(), GuardedPage::new());
    let end = edge.forbidden().as_ptr();
    let at = end.wrapping_sub(name.len());
    let addr = result.whole(&7u64);
    // SAFETY: there is room for each length that is passed.
    unsafe {
        let getname = (*(*two.b.ep).cm).getname.unwrap();
        for less in [0, 1, name.len()] {
            let (mut len, from) = (name.len() - less, at.wrapping_add(less));
            let code = getname(two.b.ep.cast(), from.cast(), &raw mut len);
            let expected = if less == 0 { 0 } else { -FI_ETOOSMALL };
            assert_eq!((code, len), (expected, name.len()), "{less} bytes less");
        }
        let code = getname(two.b.ep.cast(), at.cast(), &mut { name.len() });
        assert_eq!(code, 0);
        assert_eq!(std::slice::from_raw_parts(at, name.len()), name);
        let inserted = call!(two.a.av, ops.insert(at.cast(), 1, addr, 0, null_mut()));
        assert_eq!((inserted, *addr), (1, two.to_b));
        let mut len = 0;
        let text = call!(two.a.av, ops.straddr(at.cast(), null_mut(), &raw mut len));
        assert!(text.is_null() && len > 1, "{len}");
        let text_edge = GuardedPage::new();
        for room in 1..=len {
            let to = text_edge.forbidden().as_ptr().wrapping_sub(room);
            let mut needs = room;
            let text = call!(two.a.av, ops.straddr(at.cast(), to.cast(), &raw mut needs));
            assert_eq!((text.cast_mut().cast(), needs), (to, len), "{room} bytes");
            assert_eq!(std::ffi::CStr::from_ptr(text).count_bytes(), room - 1);
        }
    }
}
