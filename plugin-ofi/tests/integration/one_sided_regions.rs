//! Regions of memory that peers reach (fi_mr(3)), and the offers of one-sided operations
//! (fi_getinfo(3)).

use crate::{client, rma, two};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::Instant;

use client::{Info, Libfabric, close};
use ferro_fi::abi::{
    FI_EACCES, FI_EINVAL, FI_ENOKEY, FI_MR_ALLOCATED, FI_MR_BASIC, FI_MR_ENDPOINT, FI_MR_LOCAL,
    FI_MR_PROV_KEY, FI_MR_RMA_EVENT, FI_MR_SCALABLE, FI_MR_VIRT_ADDR, FI_MSG, FI_ORDER_RMA_RAR,
    FI_ORDER_SAS, FI_READ, FI_RECV, FI_REMOTE_READ, FI_RMA, FI_SEND, FI_TAGGED, FI_VERSION,
    FI_WRITE, fi_mr_attr, fid, fid_mr,
};
use rma::{
    ALL, BOTH, Pair, READ_DONE, Read, WRITE_DONE, Write, ask, filled, key_of, offer, register,
};
use two::{EAGAIN, PATIENCE, asking_everywhere, read};

const ENODATA: c_int = -libc::ENODATA;

fn mr_mode(info: &Info<'_>) -> c_int {
    // SAFETY: an offer has all attributes.
    unsafe { (*(*info.info).domain_attr).mr_mode }
}

/// Without duties the application chooses the keys, each for one region at a time, and places count
/// from 0: by the present name, and by the old one.
///
/// Covers: GI-2, GI-9
#[test]
fn keys_that_the_application_chooses() {
    asking_everywhere("keys_that_the_application_chooses", |libfabric, domain| {
        let (old, new) = (FI_VERSION(1, 4), libfabric.version);
        // Before 1.5 no mode is either of the old ones.
        for (version, asked, granted) in [
            (new, 0, 0),
            (new, FI_MR_SCALABLE, FI_MR_SCALABLE),
            (old, 0, FI_MR_SCALABLE),
            (old, FI_MR_SCALABLE, FI_MR_SCALABLE),
        ] {
            let info = ask(libfabric, (version, domain), ALL, asked, |_| {}).unwrap();
            assert_eq!(mr_mode(&info), granted);
            let pair = Pair::open(&info);
            let (mut first, mut second) = (vec![1; 100], vec![2; 100]);
            let mr = register(&pair.opened, &mut first, BOTH, 7).unwrap();
            assert_eq!(key_of(mr), 7);
            // One key for two regions, and the number that stands for no key.
            for key in [7, u64::MAX] {
                let refused = register(&pair.opened, &mut second, BOTH, key);
                assert_eq!(refused.err(), Some(-FI_ENOKEY));
            }
            // Memory for messages alone is in nobody's way: peers do not reach it.
            let local = register(&pair.opened, &mut second, FI_SEND | FI_RECV, 7).unwrap();
            assert_eq!(close(local.cast()), 0);
            let other = register(&pair.opened, &mut second, BOTH, 1 << 63).unwrap();
            assert_eq!(key_of(other), 1 << 63);
            let mut into = [0; 100];
            for (key, byte) in [(7, 1), (1 << 63, 2)] {
                pair.a.read_soon(Read::Plain, &mut into, pair.at(0, key));
                pair.a.done(77, READ_DONE);
                assert_eq!(into, [byte; 100]);
            }
            let address = pair.at(first.as_ptr() as u64, 7);
            pair.a.read_soon(Read::Plain, &mut into, address);
            pair.a.error(77, READ_DONE, FI_EACCES);
            // The key is free again, and does not lead to the memory before.
            assert_eq!([close(mr.cast()), close(other.cast())], [0; 2]);
            let mr = register(&pair.opened, &mut second, BOTH, 7).unwrap();
            pair.a.read_soon(Read::Plain, &mut into, pair.at(0, 7));
            pair.a.done(77, READ_DONE);
            assert_eq!(into, [2; 100]);
            assert_eq!(close(mr.cast()), 0);
            pair.close();
        }
    });
}

/// With `FI_MR_BASIC` the provider chooses the keys, and peers name memory by its address.
///
/// Covers: GI-2, GI-9
#[test]
fn keys_and_addresses_of_the_old_basic_mode() {
    const NAME: &str = "keys_and_addresses_of_the_old_basic_mode";
    asking_everywhere(NAME, |libfabric, domain| {
        for version in [FI_VERSION(1, 4), libfabric.version] {
            let info = ask(libfabric, (version, domain), ALL, FI_MR_BASIC, |_| {}).unwrap();
            assert_eq!(mr_mode(&info), FI_MR_BASIC);
            let pair = Pair::open(&info);
            let (mut first, mut second) = (vec![1; 100], vec![2; 100]);
            // The requested key does not count.
            let mrs = [&mut first, &mut second]
                .map(|memory| register(&pair.opened, memory, BOTH, 7).unwrap());
            let keys = mrs.map(key_of);
            assert!(keys[0] != keys[1], "{keys:?}");
            let mut into = [0; 10];
            for (key, memory) in keys.into_iter().zip([&first, &second]) {
                let at = pair.at(memory[90..].as_ptr() as u64, key);
                pair.a.read_soon(Read::Plain, &mut into, at);
                pair.a.done(77, READ_DONE);
                assert_eq!(into[..], memory[90..]);
            }
            let at = pair.at(first[3..].as_ptr() as u64, keys[0]);
            pair.a.write_soon(Write::Plain, &[9; 5], at);
            pair.a.done(77, WRITE_DONE);
            assert_eq!(first[..9], [1, 1, 1, 9, 9, 9, 9, 9, 1]);
            // Places are no offsets, and each key is for its own memory.
            let beyond = [
                pair.at(0, keys[0]),
                pair.at(first.as_ptr() as u64 - 1, keys[0]),
                pair.at(second.as_ptr() as u64, keys[0]),
            ];
            for at in beyond {
                pair.a.write_soon(Write::Plain, &[8; 5], at);
                pair.a.error(77, WRITE_DONE, FI_EACCES);
            }
            assert!(second == [2; 100]);
            for mr in mrs {
                assert_eq!(close(mr.cast()), 0);
            }
            pair.close();
        }
    });
}

/// Hints with one-sided operations: duties of registration are none, whichever the application can
/// take on; orders and lists of ranges are not offered.
///
/// Covers: GI-2, GI-3
#[test]
fn offers_of_one_sided_operations() {
    asking_everywhere("offers_of_one_sided_operations", |libfabric, domain| {
        let version = (libfabric.version, domain);
        let asked = |mode, change: &dyn Fn(&Info<'_>)| ask(libfabric, version, ALL, mode, change);
        let basic = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        for mode in [
            0,
            basic,
            FI_MR_PROV_KEY,
            basic | FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_RMA_EVENT,
        ] {
            assert_eq!(mr_mode(&asked(mode, &|_| {}).unwrap()), 0);
        }
        // The old names stand alone.
        for mode in [FI_MR_BASIC | FI_MR_LOCAL, FI_MR_BASIC | FI_MR_SCALABLE] {
            assert_eq!(asked(mode, &|_| {}).err(), Some(ENODATA));
        }
        let info = asked(0, &|_| {}).unwrap();
        let accesses = FI_READ | FI_WRITE | BOTH;
        for info in info.all() {
            // SAFETY: an offer has all attributes.
            let (tx, rx, domain) = unsafe { (&*info.tx_attr, &*info.rx_attr, &*info.domain_attr) };
            assert_eq!(info.caps & (ALL | accesses), ALL | accesses);
            assert_eq!(tx.caps & (FI_RMA | accesses), FI_RMA | FI_READ | FI_WRITE);
            assert_eq!(rx.caps & (FI_RMA | accesses), FI_RMA | BOTH);
            assert_eq!((tx.rma_iov_limit, domain.mr_iov_limit), (1, 4));
            assert_eq!(tx.msg_order & ORDERS, 0);
            assert_eq!(rx.msg_order & ORDERS, 0);
            assert!(domain.mr_key_size == 8 && domain.mr_cnt > 0 && tx.inject_size > 0);
        }
        // SAFETY: the hints are the test's.
        let refused: [&dyn Fn(&Info<'_>); 3] = unsafe {
            [
                &|hints| (*(*hints.info).tx_attr).rma_iov_limit = 2,
                &|hints| (*(*hints.info).domain_attr).mr_iov_limit = 5,
                &|hints| (*(*hints.info).domain_attr).mr_key_size = 9,
            ]
        };
        for change in refused {
            assert_eq!(asked(0, change).err(), Some(ENODATA));
        }
        for bit in (0..36).map(|bit| 1 << bit).filter(|bit| ORDERS & bit != 0) {
            // SAFETY: as above.
            let found = asked(0, &|hints| unsafe {
                (*(*hints.info).tx_attr).msg_order = bit
            });
            let granted = found.map(|info| {
                // SAFETY: as above.
                let orders = info.all().map(|info| unsafe { (*info.tx_attr).msg_order });
                orders.fold(0, |all, order| all | order) & ORDERS
            });
            let expected = match bit & ON_REQUEST {
                0 => Err(ENODATA),
                bit => Ok(bit),
            };
            assert_eq!(granted, expected, "order {bit:#x}");
        }
        // Messages alone have no access, and none of it without one-sided operations.
        let messages = ask(libfabric, version, FI_MSG | FI_TAGGED, 0, |_| {}).unwrap();
        assert!(
            messages
                .all()
                .all(|info| info.caps & (FI_RMA | accesses) == 0)
        );
        let without = ask(libfabric, version, FI_MSG | FI_REMOTE_READ, 0, |_| {});
        assert_eq!(without.err(), Some(ENODATA));
    });
}

/// The bits of orders, but for those of messages and of atomic operations among each other.
const ORDERS: u64 = ((1 << 36) - 1) & !FI_ORDER_SAS;

/// Those that offers have if the hints name them: between reads, writes and sends, and between the
/// reads and writes that are not atomic.
const ON_REQUEST: u64 = (FI_ORDER_SAS - 1) | (0xf * FI_ORDER_RMA_RAR);

/// A region that closes waits for the operations on it: each is done, or is refused, and nothing is
/// written or read any more.
#[test]
fn a_region_closes_under_its_operations() {
    const EACH: usize = 24;
    asking_everywhere(
        "a_region_closes_under_its_operations",
        |libfabric, domain| {
            let pair = Pair::open(&offer(libfabric, domain));
            for len in [8, 5000, 300_000] {
                let mut memory = vec![0xee; len + EACH];
                let mr = register(&pair.opened, &mut memory, BOTH, 5).unwrap();
                let mut rooms: Vec<_> = (0..EACH).map(|seed| filled(len, seed)).collect();
                for (context, room) in rooms.iter_mut().enumerate() {
                    let to = rma::Remote {
                        context,
                        ..pair.at(context as u64, 5)
                    };
                    match context % 2 {
                        0 => pair.a.write_soon(Write::Plain, room, to),
                        _ => pair.a.read_soon(Read::Plain, room, to),
                    }
                }
                assert_eq!(close(mr.cast()), 0);
                let after = memory.clone();
                let until = Instant::now() + PATIENCE;
                let mut over = [false; EACH];
                while over.contains(&false) {
                    let context = match read(pair.a.tx) {
                        Ok(done) => done.op_context as usize,
                        Err(EAGAIN) => {
                            assert!(Instant::now() < until, "operations are lost: {over:?}");
                            continue;
                        }
                        Err(_) => {
                            let error = pending_error(&pair);
                            assert_eq!(error.0, FI_EACCES);
                            error.1
                        }
                    };
                    assert!(!over[context], "operation {context} is over twice");
                    over[context] = true;
                }
                assert!(memory == after, "{len} bytes were written after the close");
                pair.a.write_soon(Write::Plain, &[1; 8], pair.at(0, 5));
                pair.a.error(77, WRITE_DONE, FI_EACCES);
                assert!(memory == after);
            }
            pair.a.is_quiet();
            pair.close();
        },
    );
}

/// `fi_cq_readerr` of an error that is there: its number and its context.
fn pending_error(pair: &Pair) -> (c_int, usize) {
    let error = rma::failure(pair.a.tx);
    (error.err, error.op_context as usize)
}

/// With virtual addresses a region of several buffers has the addresses of each, in whatever order
/// they are registered. What lies between two buffers is not reached.
#[test]
fn addresses_of_several_buffers() {
    asking_everywhere("addresses_of_several_buffers", |libfabric, domain| {
        let version = (libfabric.version, domain);
        let pair = Pair::open(&ask(libfabric, version, ALL, FI_MR_BASIC, |_| {}).unwrap());
        let mut memory = vec![1u8; 16_384];
        let buffers = [(8192, 4096), (0, 4096), (6144, 1024)];
        let list = buffers.map(|(at, len)| libc::iovec {
            iov_base: memory[at..][..len].as_mut_ptr().cast(),
            iov_len: len,
        });
        let mut mr = null_mut();
        // SAFETY: the domain is open; the memory outlives its region.
        let registered = unsafe {
            let regv = (*(*pair.opened.domain).mr).regv.unwrap();
            let fid: *mut fid = pair.opened.domain.cast();
            regv(
                fid,
                list.as_ptr(),
                3,
                BOTH,
                0,
                7,
                0,
                &raw mut mr,
                null_mut(),
            )
        };
        assert_eq!(registered, 0);
        let at = |place: usize| pair.at(memory.as_ptr() as u64 + place as u64, key_of(mr));
        for (byte, place) in (2..).zip([8192, 12_280, 0, 4088, 6144, 7160]) {
            pair.a.write_soon(Write::Plain, &[byte; 8], at(place));
            pair.a.done(77, WRITE_DONE);
            assert_eq!(memory[place..][..8], [byte; 8], "at {place}");
            let mut into = [0; 8];
            pair.a.read_soon(Read::Plain, &mut into, at(place));
            pair.a.done(77, READ_DONE);
            assert_eq!(into, [byte; 8], "at {place}");
        }
        let before = memory.clone();
        for place in [4089, 4096, 6140, 7161, 8190, 12_281, 12_288] {
            pair.a.write_soon(Write::Plain, &[9; 8], at(place));
            pair.a.error(77, WRITE_DONE, FI_EACCES);
        }
        // One that takes many messages: nothing of it is written.
        let long = vec![9; 4096 + 8];
        pair.a.write_soon(Write::Plain, &long, at(0));
        pair.a.error(77, WRITE_DONE, FI_EACCES);
        assert!(memory == before);
        assert_eq!(close(mr.cast()), 0);
        pair.close();
    });
}

/// Each call that registers takes the key; an offset, and lists that are too long or empty, are
/// refused.
#[test]
fn each_call_that_registers() {
    asking_everywhere("each_call_that_registers", each_registration);
}

fn each_registration(libfabric: &Libfabric, domain: &str) {
    let pair = Pair::open(&offer(libfabric, domain));
    let fid: *mut fid = pair.opened.domain.cast();
    // SAFETY: the domain is open.
    let table = unsafe { &*(*pair.opened.domain).mr };
    let mut memory = vec![3u8; 100];
    let piece = libc::iovec {
        iov_base: memory.as_mut_ptr().cast(),
        iov_len: 100,
    };
    let list = [piece; 5];
    let vector = |count, offset, key, out: *mut *mut fid_mr| {
        let (regv, at) = (table.regv.unwrap(), list.as_ptr());
        // SAFETY: as fi_mr(3) has it; the memory outlives its region.
        unsafe { regv(fid, at, count, BOTH, offset, key, 0, out, null_mut()) }
    };
    let attributes = |count, offset, key, out: *mut *mut fid_mr| {
        // SAFETY: zeros are attributes.
        let mut attr: fi_mr_attr = unsafe { std::mem::zeroed() };
        attr.__bindgen_anon_1.mr_iov = list.as_ptr();
        (attr.iov_count, attr.access) = (count, BOTH);
        (attr.offset, attr.requested_key) = (offset, key);
        // SAFETY: as above.
        unsafe { table.regattr.unwrap()(fid, &raw const attr, 0, out) }
    };
    let calls: [&dyn Fn(usize, u64, u64, *mut *mut fid_mr) -> c_int; 2] = [&vector, &attributes];
    for (key, call) in (20..).zip(calls) {
        let mut mr = null_mut();
        let refused =
            [(5, 0), (0, 0), (1, 1)].map(|(count, offset)| call(count, offset, key, &raw mut mr));
        assert_eq!((refused, mr), ([-FI_EINVAL; 3], null_mut()));
        assert_eq!(call(1, 0, key, &raw mut mr), 0);
        assert_eq!(key_of(mr), key);
        let mut into = [0; 90];
        pair.a.read_soon(Read::Plain, &mut into, pair.at(10, key));
        pair.a.done(77, READ_DONE);
        assert_eq!(into, [3; 90]);
        assert_eq!(close(mr.cast()), 0);
    }
    pair.close();
}
