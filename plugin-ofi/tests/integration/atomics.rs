//! Atomic operations on a peer's memory, as an application of libfabric's calls them: fi_atomic(3).

use crate::{client, rma, two};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use client::{Info, Libfabric, close};
use ferro_fi::abi::{
    FI_ATOMIC, FI_COMPARE_ATOMIC, FI_COMPLETION, FI_EACCES, FI_EBADFLAGS, FI_EINVAL, FI_EMSGSIZE,
    FI_EOPNOTSUPP, FI_FETCH_ATOMIC, FI_INJECT, FI_ORDER_DATA, FI_READ, FI_REMOTE_CQ_DATA,
    FI_REMOTE_READ, FI_REMOTE_WRITE, FI_TAGGED, FI_WRITE, fi_addr_t, fi_atomic_attr, fi_datatype,
    fi_ioc, fi_msg_atomic, fi_op, fi_ops_atomic, fi_rma_ioc,
};
use rma::{ALL, BOTH, Pair, ask, register};
use two::asking_everywhere;

const KEY: u64 = 0x5eed;

/// The flags of completions.
const BASE_DONE: u64 = FI_ATOMIC | FI_WRITE;
const FETCH_DONE: u64 = FI_ATOMIC | FI_READ;

const U64: fi_datatype = fi_datatype::FI_UINT64;

/// Bytes of one operation's elements at most.
const LIMIT: usize = 4096;

fn offer<'a>(libfabric: &'a Libfabric, domain: &str) -> Info<'a> {
    let asked = (libfabric.version, domain);
    ask(libfabric, asked, ALL | FI_ATOMIC, 0, |_| {}).expect("an offer")
}

/// Memory with the alignment of every element.
#[repr(align(8))]
struct Aligned([u8; 8192]);

impl Aligned {
    fn new() -> Box<Self> {
        Box::new(Self([0; 8192]))
    }

    fn word(&self, at: usize) -> u64 {
        let bytes = std::hint::black_box(&self.0)[8 * at..8 * at + 8].try_into();
        u64::from_ne_bytes(bytes.unwrap())
    }
}

fn ioc(words: &[u64], count: usize) -> fi_ioc {
    fi_ioc {
        addr: words.as_ptr().cast_mut().cast(),
        count,
    }
}

fn words(values: &mut [u64]) -> *mut c_void {
    values.as_mut_ptr().cast()
}

/// Calls with the structure of an operation on two words at the start of the region.
fn with_message(
    (list, peer): (&[fi_ioc], fi_addr_t),
    op: fi_op,
    context: usize,
    change: impl FnOnce(&mut fi_msg_atomic, &mut fi_rma_ioc),
    call: impl FnOnce(*const fi_msg_atomic) -> isize,
) -> isize {
    let mut range = fi_rma_ioc {
        addr: 0,
        count: list.iter().map(|one| one.count).sum(),
        key: KEY,
    };
    let mut msg = fi_msg_atomic {
        msg_iov: list.as_ptr(),
        desc: null_mut(),
        iov_count: list.len(),
        addr: peer,
        rma_iov: null(),
        rma_iov_count: 1,
        datatype: U64,
        op,
        context: context as *mut c_void,
        data: 0,
    };
    change(&mut msg, &mut range);
    msg.rma_iov = &raw const range;
    call(&raw const msg)
}

/// Each of the ten calls changes two words of the target, and returns those from before.
#[test]
fn each_call_changes_the_target() {
    asking_everywhere("each_call_changes_the_target", |libfabric, domain| {
        let pair = Pair::open(&offer(libfabric, domain));
        let mut memory = Aligned::new();
        let mr = register(&pair.opened, &mut memory.0, BOTH, KEY).unwrap();
        let (ep, to_b) = (pair.a.ep, pair.to_b);
        // SAFETY: the endpoint is open.
        let table: &fi_ops_atomic = unsafe { &*(*ep).atomic };
        let none = null_mut::<c_void>();
        let (ones, mut got) = ([1u64, 2], [0u64; 2]);
        let parts = [ioc(&ones[..1], 1), ioc(&ones[1..], 1)];
        let (sum, swap) = (fi_op::FI_SUM, fi_op::FI_CSWAP);
        let buf = ones.as_ptr().cast::<c_void>();
        let context = |number: usize| number as *mut c_void;
        // SAFETY: as fi_atomic(3) has it, here and below; the memory stays.
        unsafe {
            let write = table.write.unwrap();
            assert_eq!(
                write(ep, buf, 2, none, to_b, 0, KEY, U64, sum, context(1)),
                0
            );
            pair.a.done(1, BASE_DONE);
            assert_eq!([memory.word(0), memory.word(1)], [1, 2]);
            let (writev, list) = (table.writev.unwrap(), parts.as_ptr());
            let code = writev(ep, list, null_mut(), 2, to_b, 0, KEY, U64, sum, context(2));
            assert_eq!(code, 0);
            pair.a.done(2, BASE_DONE);
            let code = with_message(
                (&parts, to_b),
                sum,
                3,
                |_, _| {},
                |msg| table.writemsg.unwrap()(ep, msg, FI_COMPLETION | FI_INJECT),
            );
            assert_eq!(code, 0);
            pair.a.done(3, BASE_DONE);
            assert_eq!(table.inject.unwrap()(ep, buf, 2, to_b, 0, KEY, U64, sum), 0);
            pair.a.counts(FI_WRITE, 4);
            assert_eq!([memory.word(0), memory.word(1)], [4, 8]);
            pair.a.is_quiet();

            let readwrite = table.readwrite.unwrap();
            let code = readwrite(
                ep,
                buf,
                2,
                none,
                words(&mut got),
                none,
                to_b,
                0,
                KEY,
                U64,
                sum,
                context(5),
            );
            assert_eq!(code, 0);
            pair.a.done(5, FETCH_DONE);
            assert_eq!((got, memory.word(1)), ([4, 8], 10));
            let mut into = [ioc(&got[..1], 1), ioc(&got[1..], 1)];
            let results = into.as_mut_ptr();
            let readwritev = table.readwritev.unwrap();
            let code = readwritev(
                ep,
                list,
                null_mut(),
                2,
                results,
                null_mut(),
                2,
                to_b,
                0,
                KEY,
                U64,
                sum,
                context(6),
            );
            assert_eq!(code, 0);
            pair.a.done(6, FETCH_DONE);
            assert_eq!(std::hint::black_box(got), [5, 10]);
            let code = with_message(
                (&parts, to_b),
                sum,
                7,
                |_, _| {},
                |msg| {
                    let call = table.readwritemsg.unwrap();
                    call(ep, msg, results, null_mut(), 2, FI_COMPLETION)
                },
            );
            assert_eq!(code, 0);
            pair.a.done(7, FETCH_DONE);
            assert_eq!(std::hint::black_box(got), [6, 12]);
            // The operands of a read do not count.
            let read = fi_op::FI_ATOMIC_READ;
            let code = readwrite(
                ep,
                null(),
                2,
                none,
                words(&mut got),
                none,
                to_b,
                0,
                KEY,
                U64,
                read,
                context(8),
            );
            assert_eq!(code, 0);
            pair.a.done(8, FETCH_DONE);
            assert_eq!((got, memory.word(0)), ([7, 14], 7));

            let (expected, swapped) = ([7u64, 99], [100u64, 200]);
            let compwrite = table.compwrite.unwrap();
            let code = compwrite(
                ep,
                swapped.as_ptr().cast(),
                2,
                none,
                expected.as_ptr().cast(),
                none,
                words(&mut got),
                none,
                to_b,
                0,
                KEY,
                U64,
                swap,
                context(9),
            );
            assert_eq!(code, 0);
            pair.a.done(9, FETCH_DONE);
            assert_eq!(
                ([memory.word(0), memory.word(1)], got),
                ([100, 14], [7, 14])
            );
            let (from, compares) = ([ioc(&ones, 2)], [ioc(&swapped, 2)]);
            let (from_at, compares) = (from.as_ptr(), compares.as_ptr());
            let compwritev = table.compwritev.unwrap();
            let code = compwritev(
                ep,
                from_at,
                null_mut(),
                1,
                compares,
                null_mut(),
                1,
                results,
                null_mut(),
                2,
                to_b,
                0,
                KEY,
                U64,
                swap,
                context(10),
            );
            assert_eq!(code, 0);
            pair.a.done(10, FETCH_DONE);
            assert_eq!([memory.word(0), memory.word(1)], [1, 14]);
            let code = with_message(
                (&from, to_b),
                fi_op::FI_CSWAP_NE,
                11,
                |_, _| {},
                |msg| {
                    let call = table.compwritemsg.unwrap();
                    let none = null_mut();
                    call(ep, msg, compares, none, 1, results, none, 2, FI_COMPLETION)
                },
            );
            assert_eq!(code, 0);
            pair.a.done(11, FETCH_DONE);
            assert_eq!([memory.word(0), memory.word(1)], [1, 2]);
            assert_eq!(std::hint::black_box(got), [1, 14]);
        }
        pair.a.counts(FI_READ, 7);
        pair.b.counts(FI_REMOTE_WRITE, 4);
        pair.b.counts(FI_REMOTE_READ, 7);
        assert_eq!(memory.word(2), 0);
        pair.a.is_quiet();
        pair.b.is_quiet();
        assert_eq!(close(mr.cast()), 0);
        pair.close();
    });
}

/// The numbers of operators that each form has for a type, as fi_atomic(3) lists them.
fn offered(form: u64, datatype: c_int) -> Vec<c_int> {
    let (floats, complex) = (
        datatype == 8 || datatype == 9,
        datatype == 10 || datatype == 11,
    );
    let lacks = |op: &c_int| match op {
        0 | 1 | 14..=17 => complex,
        6 | 7 | 9 | 18 => floats || complex,
        _ => false,
    };
    let all: Vec<c_int> = match (datatype, form) {
        (12 | 13, _) => Vec::new(),
        (_, 0) => (0..10).chain([11, 19]).collect(),
        (_, FI_FETCH_ATOMIC) => (0..12).chain([19]).collect(),
        _ => (12..19).collect(),
    };
    all.into_iter().filter(|op| !lacks(op)).collect()
}

/// `fi_atomicvalid`, its sisters and `fi_query_atomic` agree about every type and operator.
#[test]
fn each_operation_is_offered_or_not() {
    const SIZES: [usize; 16] = [1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16, 0, 0, 16, 16];

    asking_everywhere("each_operation_is_offered_or_not", |libfabric, domain| {
        let pair = Pair::open(&offer(libfabric, domain));
        let (ep, at) = (pair.a.ep, pair.opened.domain);
        // SAFETY: endpoint and domain are open.
        let (table, query) = unsafe { (&*(*ep).atomic, (*(*at).ops).query_atomic.unwrap()) };
        let forms = [
            (0, table.writevalid),
            (FI_FETCH_ATOMIC, table.readwritevalid),
            (FI_COMPARE_ATOMIC, table.compwritevalid),
        ];
        let numbers = || (0..25).chain([256, 266, u32::MAX]);
        let mut found = 0;
        for (form, valid) in forms {
            for (datatype, op) in numbers().flat_map(|a| numbers().map(move |b| (a, b))) {
                let (mut count, mut attr) = (0, fi_atomic_attr { count: 0, size: 0 });
                let there = (datatype as usize) < SIZES.len()
                    && offered(form, datatype as c_int).contains(&(op as c_int));
                let code = if there { 0 } else { -FI_EOPNOTSUPP };
                let (kind, op) = (fi_datatype(datatype), fi_op(op));
                // SAFETY: as fi_atomic(3) has it.
                let codes = unsafe {
                    let valid = valid.unwrap()(ep, kind, op, &raw mut count);
                    let tagged = query(at, kind, op, &raw mut attr, form | FI_TAGGED);
                    assert_eq!(tagged, -FI_EOPNOTSUPP);
                    [valid, query(at, kind, op, &raw mut attr, form)]
                };
                assert_eq!(codes, [code; 2], "{form:#x} {kind:?} {op:?}");
                if there {
                    let size = SIZES[datatype as usize];
                    assert_eq!(
                        (attr.size, attr.count, count),
                        (size, LIMIT / size, LIMIT / size)
                    );
                    found += 1;
                }
            }
        }
        assert_eq!(
            found,
            10 * (12 + 13 + 7) + 2 * (9 + 10 + 6) + 2 * (7 + 8 + 2)
        );
        let mut attr = fi_atomic_attr { count: 0, size: 0 };
        // SAFETY: as above; a query without room is an error.
        unsafe {
            let sum = fi_op::FI_SUM;
            let both = FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC;
            assert_eq!(query(at, U64, sum, &raw mut attr, both), -FI_EINVAL);
            assert_eq!(query(at, U64, sum, &raw mut attr, 1 << 20), -FI_EBADFLAGS);
            assert_eq!(query(at, U64, sum, null_mut(), 0), -FI_EINVAL);
            let valid = table.writevalid.unwrap();
            assert_eq!(valid(ep, U64, sum, null_mut()), 0);
            let read = fi_op::FI_ATOMIC_READ;
            assert_eq!(valid(ep, U64, read, null_mut()), -FI_EOPNOTSUPP);
        }
        pair.close();
    });
}

/// A call that describes no operation is refused; an operation that the target refuses fails by
/// itself, and changes nothing.
#[test]
fn calls_and_operations_that_are_refused() {
    asking_everywhere(
        "calls_and_operations_that_are_refused",
        |libfabric, domain| {
            let pair = Pair::open(&offer(libfabric, domain));
            let mut memory = Aligned::new();
            let size = memory.0.len() as u64;
            let mr = register(&pair.opened, &mut memory.0, BOTH, KEY).unwrap();
            let (ep, to_b) = (pair.a.ep, pair.to_b);
            // SAFETY: the endpoint is open.
            let table: &fi_ops_atomic = unsafe { &*(*ep).atomic };
            let (operands, mut got) = (vec![1u64; 1024], vec![0u64; 1024]);
            let write = |count, addr, key, op, kind| {
                let (buf, none) = (operands.as_ptr().cast(), null_mut());
                // SAFETY: as fi_atomic(3) has it; the memory stays.
                unsafe {
                    let write = table.write.unwrap();
                    write(
                        ep,
                        buf,
                        count,
                        none,
                        to_b,
                        addr,
                        key,
                        kind,
                        op,
                        7 as *mut c_void,
                    )
                }
            };
            let sum = fi_op::FI_SUM;
            for (count, op, kind, errno) in [
                (0, sum, U64, FI_EINVAL),
                (513, sum, U64, FI_EMSGSIZE),
                (usize::MAX, sum, U64, FI_EMSGSIZE),
                (1, fi_op::FI_CSWAP, U64, FI_EOPNOTSUPP),
                (1, fi_op::FI_ATOMIC_READ, U64, FI_EOPNOTSUPP),
                (1, fi_op(20), U64, FI_EOPNOTSUPP),
                (1, fi_op(u32::MAX), U64, FI_EOPNOTSUPP),
                (1, sum, fi_datatype::FI_LONG_DOUBLE, FI_EOPNOTSUPP),
                (1, sum, fi_datatype(1000), FI_EOPNOTSUPP),
                (1, fi_op::FI_BOR, fi_datatype::FI_DOUBLE, FI_EOPNOTSUPP),
            ] {
                let code = write(count, 0, KEY, op, kind);
                assert_eq!(code, -(errno as isize), "{count} {op:?} {kind:?}");
            }
            // SAFETY: as above; missing buffers and lists are refused.
            unsafe {
                let (none, context) = (null_mut(), null_mut());
                let code =
                    table.write.unwrap()(ep, null(), 1, none, to_b, 0, KEY, U64, sum, context);
                assert_eq!(code, -(FI_EINVAL as isize));
                let writev = table.writev.unwrap();
                let code = writev(ep, null(), null_mut(), 1, to_b, 0, KEY, U64, sum, context);
                assert_eq!(code, -(FI_EINVAL as isize));
                let many = vec![ioc(&operands, 1); 40];
                let code = writev(
                    ep,
                    many.as_ptr(),
                    null_mut(),
                    40,
                    to_b,
                    0,
                    KEY,
                    U64,
                    sum,
                    context,
                );
                assert_eq!(code, -(FI_EINVAL as isize));
                assert_eq!(
                    table.writemsg.unwrap()(ep, null(), 0),
                    -(FI_EINVAL as isize)
                );
                let readwrite = table.readwrite.unwrap();
                let (buf, none) = (operands.as_ptr().cast(), null_mut());
                let code = readwrite(
                    ep, buf, 1, none, none, none, to_b, 0, KEY, U64, sum, context,
                );
                assert_eq!(code, -(FI_EINVAL as isize));
                let list = [ioc(&operands, 2)];
                let changes: [fn(&mut fi_msg_atomic, &mut fi_rma_ioc); 4] = [
                    |msg, _| msg.rma_iov_count = 0,
                    |msg, _| msg.rma_iov_count = 2,
                    |_, range| range.count = 1,
                    |_, range| range.count = 3,
                ];
                for change in changes {
                    let code = with_message((&list, to_b), sum, 1, change, |msg| {
                        table.writemsg.unwrap()(ep, msg, FI_COMPLETION)
                    });
                    assert_eq!(code, -(FI_EINVAL as isize));
                }
                for (flags, errno) in [(FI_REMOTE_CQ_DATA, FI_EINVAL), (FI_TAGGED, FI_EOPNOTSUPP)] {
                    let code = with_message(
                        (&list, to_b),
                        sum,
                        1,
                        |_, _| {},
                        |msg| table.writemsg.unwrap()(ep, msg, flags),
                    );
                    assert_eq!(code, -(errno as isize));
                }
            }
            let mut failed = 0;
            for (addr, key, errno) in [
                (0, KEY + 1, FI_EACCES),
                (size - 8, KEY, FI_EACCES),
                (size, KEY, FI_EACCES),
                (u64::MAX - 7, KEY, FI_EACCES),
                (4, KEY, FI_EINVAL),
                (1, KEY, FI_EINVAL),
            ] {
                assert_eq!(write(2, addr, key, sum, U64), 0);
                pair.a.error(7, BASE_DONE, errno);
                failed += 1;
            }
            assert_eq!(pair.a.failed(FI_WRITE), failed);
            assert_eq!(close(mr.cast()), 0);
            for rights in [FI_REMOTE_READ, FI_REMOTE_WRITE] {
                let mr = register(&pair.opened, &mut memory.0, rights, KEY).unwrap();
                let (buf, none) = (operands.as_ptr().cast(), null_mut());
                let context = 8 as *mut c_void;
                // SAFETY: as above.
                unsafe {
                    let readwrite = table.readwrite.unwrap();
                    let into = words(&mut got);
                    let code = readwrite(
                        ep, buf, 2, none, into, none, to_b, 0, KEY, U64, sum, context,
                    );
                    assert_eq!(code, 0);
                }
                pair.a.error(8, FETCH_DONE, FI_EACCES);
                assert_eq!(close(mr.cast()), 0);
            }
            assert!(memory.0.iter().all(|byte| *byte == 0));
            pair.a.is_quiet();
            pair.close();
        },
    );
}

/// The order of atomic operations among each other is offered, up to the longest.
///
/// Covers: GI-2, GI-3
#[test]
fn offers_name_the_order_of_atomic_operations() {
    const RAR: u64 = 1 << 36;
    const ORDERS: u64 = RAR | (RAR << 1) | (RAR << 2) | (RAR << 3);

    let name = "offers_name_the_order_of_atomic_operations";
    asking_everywhere(name, |libfabric, domain| {
        let ordered = |orders: u64, size: usize| {
            let asked = (libfabric.version, domain);
            // SAFETY: the hints are the test's.
            ask(libfabric, asked, ALL | FI_ATOMIC, 0, |hints| unsafe {
                (*(*hints.info).tx_attr).msg_order = orders;
                (*(*hints.info).ep_attr).max_order_waw_size = size;
            })
        };
        for info in ordered(ORDERS, LIMIT).unwrap().all() {
            // SAFETY: an offer has all attributes.
            let (tx, rx, ep) = unsafe { (&*info.tx_attr, &*info.rx_attr, &*info.ep_attr) };
            assert_eq!(info.caps & FI_ATOMIC, FI_ATOMIC);
            assert_eq!(
                [tx.msg_order, rx.msg_order].map(|order| order & ORDERS),
                [ORDERS; 2]
            );
            let sizes = [ep.max_order_raw_size, ep.max_order_war_size];
            assert_eq!((sizes, ep.max_order_waw_size), ([LIMIT; 2], LIMIT));
        }
        // An order within a message is none of operations, and no operation is so long.
        assert!(ordered(ORDERS | FI_ORDER_DATA, 0).is_err());
        assert!(ordered(ORDERS, usize::MAX).is_err());
    });
}
