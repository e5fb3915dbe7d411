//! Reads and writes of a peer's memory, as an application of libfabric's calls them: fi_rma(3).

use crate::{client, rma, support, two};
use std::ffi::c_void;
use std::ptr::{null, null_mut};

use client::{Info, Opened, close};
use ferro_fi::abi::{
    FI_ADDR_UNSPEC, FI_COMMIT_COMPLETE, FI_COMPLETION, FI_EACCES, FI_EINVAL, FI_EMSGSIZE,
    FI_ENABLE, FI_ENOCQ, FI_ENOSYS, FI_EOPBADSTATE, FI_EOPNOTSUPP, FI_FENCE, FI_INJECT, FI_MORE,
    FI_MSG, FI_MULTICAST, FI_ORDER_RMA_WAR, FI_ORDER_WAR, FI_READ, FI_REMOTE_CQ_DATA,
    FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA, FI_SELECTIVE_COMPLETION, FI_SEND, FI_SETOPSFLAG,
    FI_SOURCE, FI_TRANSMIT, FI_TRIGGER, FI_WRITE, fi_av_attr, fi_av_type, fi_cq_attr, fi_ep_type,
    fi_msg_rma, fi_rma_iov, fid_av, fid_cq, fid_ep,
};
use rma::{
    ALL, BOTH, End, NOTICED, Pair, READ_DONE, READS, Read, Remote, WRITE_DONE, WRITES, Write, ask,
    bind, filled, key_of, offer, open_counter, register,
};
use support::{has_device, skip};
use two::{asking_everywhere, control, insert, next_from, over_verbs};

/// Of every way that messages take.
const SIZES: [usize; 7] = [0, 1, 8, 1000, 20_000, 300_000, (1 << 20) + 13];

const KEY: u64 = 0x5eed;

/// Each call that writes, and each that reads the same back: content, completions, CQ data at the
/// target. Nothing beside the bytes that are written changes.
///
/// Covers: GI-3, AV-25
#[test]
fn each_call_reads_and_writes() {
    asking_everywhere("each_call_reads_and_writes", |libfabric, domain| {
        let info = offer(libfabric, domain);
        // SAFETY: the offer is there.
        let inject = unsafe { (*(*info.info).tx_attr).inject_size };
        let pair = Pair::open(&info);
        let mut memory = vec![0xee; (1 << 20) + 100];
        let mr = register(&pair.opened, &mut memory, BOTH, KEY).unwrap();
        let (mut seed, mut writes, mut reads) = (0, 0, 0);
        for len in SIZES {
            for call in WRITES {
                if call.injects() && len > inject {
                    continue;
                }
                seed += 1;
                let what = format!("{call:?} of {len}");
                let at = 1 + seed % 50;
                let mut bytes = filled(len, seed);
                let to = Remote {
                    data: 0x1_2345_6789 + seed as u64,
                    context: seed,
                    ..pair.at(at as u64, KEY)
                };
                pair.a.write_soon(call, &bytes, to);
                if call.injects() {
                    bytes.fill(0);
                }
                if call.has_data() {
                    let (done, from) = next_from(pair.b.rx);
                    assert_eq!((done.flags, done.data), (NOTICED, to.data), "{what}");
                    assert_eq!((done.len, from), (len, pair.to_a), "{what}");
                    assert!(memory[at..at + len] == filled(len, seed), "{what}");
                }
                if call.completes() {
                    pair.a.done(seed, WRITE_DONE);
                }
                writes += 1;
                pair.a.counts(FI_WRITE, writes);
                assert!(memory[at..at + len] == filled(len, seed), "{what}");
                assert!(memory[..at].iter().all(|byte| *byte == 0xee), "{what}");
                assert!(
                    memory[at + len..].iter().all(|byte| *byte == 0xee),
                    "{what}"
                );
                for call in READS {
                    let what = format!("{call:?} of {len}");
                    let mut into = vec![0; len + 3];
                    pair.a.read_soon(call, &mut into[..len], to);
                    pair.a.done(seed, READ_DONE);
                    reads += 1;
                    assert!(into[..len] == filled(len, seed), "{what}");
                    assert_eq!(into[len..], [0; 3], "{what}");
                }
                memory.fill(0xee);
            }
        }
        pair.a.counts(FI_READ, reads);
        pair.b.counts(FI_REMOTE_WRITE, writes);
        pair.b.counts(FI_REMOTE_READ, reads);
        pair.a.is_quiet();
        pair.b.is_quiet();
        assert_eq!(close(mr.cast()), 0);
        pair.close();
    });
}

/// An operation with a key, a range or a right that is not there fails with `EACCES`, by itself
/// alone, and nothing is written. Injected writes fail so, too.
#[test]
fn what_the_target_did_not_allow_fails() {
    asking_everywhere(
        "what_the_target_did_not_allow_fails",
        |libfabric, domain| {
            let info = offer(libfabric, domain);
            let pair = Pair::open(&info);
            let mut memory = vec![0xee; 200_000];
            let size = memory.len() as u64;
            let mut failed = [0, 0];
            for len in [0usize, 8, 5000, 100_000] {
                let rights = [(FI_REMOTE_WRITE, FI_REMOTE_READ), (BOTH, 0), (0, BOTH)];
                for (granted, refused) in rights {
                    let mr = register(&pair.opened, &mut memory, granted | FI_SEND, KEY).unwrap();
                    let mut cases = vec![
                        (pair.at(0, KEY + 1), BOTH),
                        (pair.at(0, u64::MAX), BOTH),
                        (pair.at(size - len as u64 + 1, KEY), BOTH),
                        (pair.at(size + 1, KEY), BOTH),
                        (pair.at(u64::MAX, KEY), BOTH),
                        (pair.at(u64::MAX - len as u64, KEY), BOTH),
                        (pair.at(0, KEY), refused),
                    ];
                    cases.retain(|(_, refused)| *refused != 0);
                    for (to, refused) in cases {
                        if refused & FI_REMOTE_WRITE != 0 {
                            let bytes = filled(len, 1);
                            pair.a.write_soon(Write::Plain, &bytes, to);
                            pair.a.error(77, WRITE_DONE, FI_EACCES);
                            pair.a.write_soon(Write::Data, &bytes, to);
                            pair.a.error(77, WRITE_DONE, FI_EACCES);
                            failed[1] += 2;
                        }
                        if refused & FI_REMOTE_READ != 0 {
                            let mut into = vec![7; len];
                            pair.a.read_soon(Read::Plain, &mut into, to);
                            pair.a.error(77, READ_DONE, FI_EACCES);
                            assert!(into.iter().all(|byte| *byte == 7));
                            failed[0] += 1;
                        }
                    }
                    // The others are not disturbed.
                    if granted == BOTH {
                        let mut into = vec![0; len];
                        pair.a.read_soon(Read::Plain, &mut into, pair.at(3, KEY));
                        pair.a.done(77, READ_DONE);
                        assert!(into.iter().all(|byte| *byte == 0xee));
                    }
                    assert_eq!(close(mr.cast()), 0);
                }
            }
            pair.a.write_soon(Write::Inject, &[1; 8], pair.at(0, KEY));
            pair.a.error(0, WRITE_DONE, FI_EACCES);
            failed[1] += 1;
            assert_eq!([pair.a.failed(FI_READ), pair.a.failed(FI_WRITE)], failed);
            assert!(memory.iter().all(|byte| *byte == 0xee));
            pair.a.is_quiet();
            pair.b.is_quiet();
            pair.close();
        },
    );
}

/// One counter may count several kinds of operations, and an end counts what it is the target of.
/// Messages and one-sided operations are apart.
///
/// Covers: GI-3
#[test]
fn counters_of_each_kind() {
    asking_everywhere("counters_of_each_kind", |libfabric, domain| {
        let info = offer(libfabric, domain);
        let pair = Pair::open(&info);
        let domain = pair.opened.domain;
        let (mut ep, both) = (null_mut(), open_counter(&pair.opened));
        // SAFETY: as fi_endpoint(3) has it.
        let code = unsafe { call!(domain, ops.endpoint(info.info, &raw mut ep, null_mut())) };
        assert_eq!(code, 0);
        for (object, flags) in [
            (pair.a.av.cast(), 0),
            (pair.a.tx.cast(), FI_TRANSMIT),
            (pair.a.rx.cast(), ferro_fi::abi::FI_RECV),
            (both.cast(), FI_READ | FI_WRITE),
        ] {
            assert_eq!(bind(ep, object, flags), 0);
        }
        // There is one in each of these places already, and a refused call binds nothing.
        let other = open_counter(&pair.opened);
        assert_eq!(bind(ep, other.cast(), FI_SEND | FI_WRITE), -FI_EINVAL);
        assert_eq!(bind(ep, other.cast(), FI_SEND), 0);
        assert_eq!(control(ep.cast(), FI_ENABLE, null_mut()), 0);

        let mut memory = vec![0; 64];
        let mr = register(&pair.opened, &mut memory, BOTH, KEY).unwrap();
        let (mut into, to) = ([0; 8], pair.at(0, KEY));
        // SAFETY: as fi_rma(3) has it.
        unsafe {
            let table = &*(*ep).rma;
            let (read, write) = (table.read.unwrap(), table.inject.unwrap());
            let at = into.as_mut_ptr().cast::<c_void>();
            assert_eq!(write(ep, at, 8, to.peer, 0, KEY), 0);
            pair.b.counts(FI_REMOTE_WRITE, 1);
            assert_eq!(read(ep, at, 8, null_mut(), to.peer, 0, KEY, null_mut()), 0);
            pair.b.counts(FI_REMOTE_READ, 1);
        }
        pair.a.done(0, READ_DONE);
        // SAFETY: the counters are open.
        let counted = unsafe { [call!(both, ops.read()), call!(other, ops.read())] };
        assert_eq!(counted, [2, 0]);
        for fid in [ep.cast(), both.cast(), other.cast(), mr.cast()] {
            assert_eq!(close(fid), 0);
        }

        // The application's operations are on `a`, those on its memory come by way of `b`.
        for counted in [FI_SEND, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE] {
            assert_eq!(pair.a.count(counted), 0, "{counted:#x}");
        }
        for counted in [FI_SEND, FI_READ, FI_WRITE] {
            assert_eq!(pair.b.count(counted), 0, "{counted:#x}");
        }
        pair.close();
    });
}

/// Where the queue is bound for selective completion, operations complete if they say so; errors
/// come always. The endpoint's own flags are those of calls that take none.
#[test]
fn completions_on_request() {
    asking_everywhere("completions_on_request", |libfabric, domain| {
        let info = offer(libfabric, domain);
        let pair = Pair::open_as(&info, FI_SELECTIVE_COMPLETION);
        let mut memory = vec![0; 4096];
        let mr = register(&pair.opened, &mut memory, BOTH, KEY).unwrap();
        let (bytes, mut into, to) = ([5; 100], [0; 100], pair.at(0, KEY));
        for call in [Write::Plain, Write::Vector, Write::Message(0), Write::Data] {
            pair.a.write_soon(call, &bytes, to);
        }
        for call in [Read::Plain, Read::Vector, Read::Message(0)] {
            pair.a.read_soon(call, &mut into, to);
        }
        pair.a.counts(FI_WRITE, 4);
        pair.a.counts(FI_READ, 3);
        pair.a.is_quiet();
        pair.a.write_soon(Write::Message(FI_COMPLETION), &bytes, to);
        pair.a.done(77, WRITE_DONE);
        pair.a
            .read_soon(Read::Message(FI_COMPLETION), &mut into, to);
        pair.a.done(77, READ_DONE);
        pair.a.write_soon(Write::Plain, &bytes, pair.at(0, KEY + 1));
        pair.a.error(77, WRITE_DONE, FI_EACCES);
        // Injecting is for writes: a read needs its buffer until it completes.
        let mut flags = FI_SEND | FI_COMPLETION | FI_INJECT;
        let set = control(pair.a.ep.cast(), FI_SETOPSFLAG, (&raw mut flags).cast());
        assert_eq!(set, 0);
        let mut gone = [6; 100];
        pair.a.write_soon(Write::Plain, &gone, to);
        gone.fill(0);
        pair.a.done(77, WRITE_DONE);
        assert_eq!(memory[..100], [6; 100]);
        pair.a.read_soon(Read::Plain, &mut into, to);
        pair.a.done(77, READ_DONE);
        assert_eq!((into, gone), ([6; 100], [0; 100]));
        assert_eq!(close(mr.cast()), 0);
        pair.close();
    });
}

/// Each of the 64 flags of fi_writemsg and fi_readmsg: the operation is done, or refused; a bit
/// without a meaning is ignored. Nothing that was held back for a refused call stays behind.
#[test]
fn flags_of_operations() {
    asking_everywhere("flags_of_operations", |libfabric, domain| {
        let info = offer(libfabric, domain);
        let pair = Pair::open(&info);
        let mut memory = vec![0; 4096];
        let mr = register(&pair.opened, &mut memory, BOTH, KEY).unwrap();
        let to = pair.at(0, KEY);
        let mut into = [0; 40];
        for flag in (0..64).map(|bit| 1u64 << bit).chain([0]) {
            let bytes = [flag.trailing_zeros() as u8; 40];
            // Flags that no endpoint supports here.
            let nowhere = FI_TRIGGER | FI_MULTICAST | FI_COMMIT_COMPLETE;
            if flag & nowhere != 0 {
                let refused = -FI_EOPNOTSUPP as isize;
                let code = pair.a.write(Write::Message(flag), &bytes, to);
                assert_eq!(code, refused, "{flag:#x}");
                let code = pair.a.read(Read::Message(flag), &mut into, to);
                assert_eq!(code, refused, "{flag:#x}");
                continue;
            }
            pair.a.write_soon(Write::Message(flag), &bytes, to);
            if flag == FI_MORE {
                pair.a.write_soon(Write::Message(0), &bytes, to);
                pair.a.done(77, WRITE_DONE);
            }
            pair.a.done(77, WRITE_DONE);
            // However it completes, the bytes are there by then.
            assert_eq!(memory[..40], bytes, "{flag:#x}");
            if flag == FI_REMOTE_CQ_DATA {
                assert_eq!(next_from(pair.b.rx).0.flags, NOTICED);
            }
            if flag & (FI_INJECT | FI_REMOTE_CQ_DATA) != 0 {
                let code = pair.a.read(Read::Message(flag), &mut into, to);
                assert_eq!(code, -FI_EINVAL as isize, "{flag:#x}");
                continue;
            }
            pair.a.read_soon(Read::Message(flag), &mut into, to);
            if flag == FI_MORE {
                pair.a.read_soon(Read::Message(0), &mut into, to);
                pair.a.done(77, READ_DONE);
            }
            pair.a.done(77, READ_DONE);
            assert_eq!(into, bytes, "{flag:#x}");
        }
        // A refused call sends what was held back for it.
        let bytes = [0x77; 40];
        pair.a.write_soon(Write::Message(FI_MORE), &bytes, to);
        // SAFETY: a call without a message is refused.
        let code = unsafe { (*(*pair.a.ep).rma).writemsg.unwrap()(pair.a.ep, null(), 0) };
        assert_eq!(code, -FI_EINVAL as isize);
        pair.a.done(77, WRITE_DONE);
        assert_eq!(memory[..40], bytes);
        pair.a.is_quiet();
        assert_eq!(close(mr.cast()), 0);
        pair.close();
    });
}

/// A fenced write waits for the reads before it: they get what was there before (fi_endpoint(3),
/// `FI_FENCE`), and complete first.
#[test]
fn a_fence_waits_for_reads() {
    asking_everywhere("a_fence_waits_for_reads", |libfabric, domain| {
        write_behind_reads(&offer(libfabric, domain), Write::Message(FI_FENCE));
    });
}

/// So does each write of an endpoint that orders writes after reads (fi_endpoint(3), `msg_order`),
/// and the offer says up to which length. Endpoints of a domain have such an order if their own
/// attributes say so.
///
/// Covers: GI-2
#[test]
fn an_order_waits_for_reads() {
    asking_everywhere("an_order_waits_for_reads", |libfabric, domain| {
        let plain = offer(libfabric, domain);
        let asked = (libfabric.version, domain);
        for order in [FI_ORDER_WAR, FI_ORDER_RMA_WAR] {
            // SAFETY: the hints have attributes.
            let name = |hints: &Info<'_>| unsafe { (*(*hints.info).tx_attr).msg_order = order };
            let info = ask(libfabric, asked, ALL, 0, name).expect("an offer");
            // SAFETY: both offers are there.
            let [(had, _), (has, size)] = [&plain, &info].map(|info| unsafe {
                let (tx, ep) = (&*(*info.info).tx_attr, &*(*info.info).ep_attr);
                (tx.msg_order, (ep.max_order_war_size, ep.max_msg_size))
            });
            assert_eq!((had & order, has & order), (0, order));
            assert_eq!(size.0, size.1);
            write_behind_reads(&info, Write::Plain);
            let pair = Pair::open(&plain);
            End::open(&pair.opened, &info, 0).close();
            pair.close();
        }
    });
}

/// A read of memory and a write to it right behind, for each length: both complete, and the read
/// has what was there before.
fn write_behind_reads(info: &Info<'_>, write: Write) {
    let pair = Pair::open(info);
    for len in [8, 5000, 100_000, 1 << 20] {
        let mut memory = vec![0; len];
        let mr = register(&pair.opened, &mut memory, BOTH, KEY).unwrap();
        let to = pair.at(0, KEY);
        for round in 0..8u8 {
            memory.fill(2 * round);
            let (mut into, new) = (vec![0xee; len], vec![2 * round + 1; len]);
            pair.a.read_soon(Read::Plain, &mut into, to);
            pair.a.write_soon(write, &new, to);
            pair.a.done(77, READ_DONE);
            pair.a.done(77, WRITE_DONE);
            assert!(into.iter().all(|byte| *byte == 2 * round), "{len} bytes");
            assert!(memory == new);
        }
        assert_eq!(close(mr.cast()), 0);
    }
    pair.close();
}

/// A transfer of 0 bytes needs no list of buffers, whatever its count says.
#[test]
fn transfers_of_nothing_need_no_list() {
    asking_everywhere("transfers_of_nothing_need_no_list", |libfabric, domain| {
        let info = offer(libfabric, domain);
        let pair = Pair::open(&info);
        let mut memory = vec![0xee; 64];
        let mr = register(&pair.opened, &mut memory, BOTH, KEY).unwrap();
        let range = fi_rma_iov {
            addr: 0,
            len: 0,
            key: KEY,
        };
        for iov_count in [0, 1, 2, usize::MAX] {
            let msg = fi_msg_rma {
                msg_iov: null(),
                desc: null_mut(),
                iov_count,
                addr: pair.to_b,
                rma_iov: &raw const range,
                rma_iov_count: 1,
                context: std::ptr::without_provenance_mut(77),
                data: 0,
            };
            // SAFETY: as fi_rma(3) has it; there are no bytes.
            let (write, read) = unsafe {
                let table = &*(*pair.a.ep).rma;
                (table.writemsg.unwrap(), table.readmsg.unwrap())
            };
            // SAFETY: as above.
            assert_eq!(unsafe { write(pair.a.ep, &raw const msg, 0) }, 0);
            pair.a.done(77, WRITE_DONE);
            // SAFETY: as above.
            assert_eq!(unsafe { read(pair.a.ep, &raw const msg, 0) }, 0);
            pair.a.done(77, READ_DONE);
        }
        assert_eq!(memory, [0xee; 64]);
        pair.a.is_quiet();
        assert_eq!(close(mr.cast()), 0);
        pair.close();
    });
}

/// Calls with lists, lengths and peers that are none are refused, and touch nothing.
#[test]
fn malformed_calls_are_refused() {
    asking_everywhere("malformed_calls_are_refused", |libfabric, domain| {
        let info = offer(libfabric, domain);
        let pair = Pair::open(&info);
        let mut memory = vec![0xee; 4096];
        let mr = register(&pair.opened, &mut memory, BOTH, KEY).unwrap();
        let ep = pair.a.ep;
        let mut room = [1u8; 64];
        let at = room.as_mut_ptr().cast::<c_void>();
        let piece = libc::iovec {
            iov_base: at,
            iov_len: 8,
        };
        let nowhere = libc::iovec {
            iov_base: null_mut(),
            ..piece
        };
        let (list, lost) = ([piece; 16], [piece, nowhere]);
        let (invalid, peer, none) = (-FI_EINVAL as isize, pair.to_b, null_mut::<c_void>());
        // SAFETY: as fi_rma(3) has it, but for the refused calls, which read nothing.
        unsafe {
            let table = &*(*ep).rma;
            let (read, write) = (table.read.unwrap(), table.write.unwrap());
            let (readv, writev) = (table.readv.unwrap(), table.writev.unwrap());
            let (readmsg, writemsg) = (table.readmsg.unwrap(), table.writemsg.unwrap());
            assert_eq!(read(ep, none, 8, none, peer, 0, KEY, none), invalid);
            assert_eq!(write(ep, none, 8, none, peer, 0, KEY, none), invalid);
            let lists = [(list.as_ptr(), 5), (list.as_ptr(), 16), (list.as_ptr(), 17)];
            let endless = [(list.as_ptr(), usize::MAX), (null(), 1), (lost.as_ptr(), 2)];
            for (list, count) in lists.into_iter().chain(endless) {
                let codes = [
                    readv(ep, list, null_mut(), count, peer, 0, KEY, none),
                    writev(ep, list, null_mut(), count, peer, 0, KEY, none),
                ];
                assert_eq!(codes, [invalid; 2], "{count} of {list:p}");
            }
            let ranges = [fi_rma_iov {
                addr: 0,
                len: 8,
                key: KEY,
            }; 2];
            let good = fi_msg_rma {
                msg_iov: list.as_ptr(),
                desc: null_mut(),
                iov_count: 1,
                addr: peer,
                rma_iov: ranges.as_ptr(),
                rma_iov_count: 1,
                context: none,
                data: 0,
            };
            let bad = [
                fi_msg_rma {
                    rma_iov_count: 0,
                    ..good
                },
                fi_msg_rma {
                    rma_iov_count: 2,
                    ..good
                },
                fi_msg_rma {
                    rma_iov_count: usize::MAX,
                    ..good
                },
                fi_msg_rma {
                    rma_iov: null(),
                    ..good
                },
                fi_msg_rma {
                    msg_iov: null(),
                    ..good
                },
                // The ranges are not as long as the buffers.
                fi_msg_rma {
                    iov_count: 0,
                    ..good
                },
                fi_msg_rma {
                    iov_count: 2,
                    ..good
                },
                fi_msg_rma {
                    iov_count: usize::MAX,
                    ..good
                },
            ];
            for (number, msg) in bad
                .iter()
                .map(std::ptr::from_ref)
                .chain([null()])
                .enumerate()
            {
                assert_eq!(readmsg(ep, msg, 0), invalid, "message {number}");
                assert_eq!(writemsg(ep, msg, 0), invalid, "message {number}");
            }
            let longest = (*(*info.info).ep_attr).max_msg_size;
            let injected = (*(*info.info).tx_attr).inject_size;
            let too_long = -FI_EMSGSIZE as isize;
            for len in [longest + 1, usize::MAX] {
                assert_eq!(read(ep, at, len, none, peer, 0, KEY, none), too_long);
                assert_eq!(write(ep, at, len, none, peer, 0, KEY, none), too_long);
            }
            let (inject, injectdata) = (table.inject.unwrap(), table.injectdata.unwrap());
            for len in [injected + 1, usize::MAX] {
                assert_eq!(inject(ep, at, len, peer, 0, KEY), too_long);
                assert_eq!(injectdata(ep, at, len, 1, peer, 0, KEY), too_long);
            }
            for peer in [FI_ADDR_UNSPEC, FI_ADDR_UNSPEC - 1, 1 << 20, 1 << 62] {
                for code in [
                    read(ep, at, 8, none, peer, 0, KEY, none),
                    write(ep, at, 8, none, peer, 0, KEY, none),
                    inject(ep, at, 8, peer, 0, KEY),
                ] {
                    let known = [libc::EADDRNOTAVAIL, libc::EINVAL];
                    assert!(known.contains(&(-code as i32)), "{code} of {peer:#x}");
                }
            }
            // A range without a byte, of no buffer.
            let nothing = fi_rma_iov {
                len: 0,
                ..ranges[0]
            };
            let msg = fi_msg_rma {
                msg_iov: null(),
                iov_count: 0,
                rma_iov: &raw const nothing,
                ..good
            };
            assert_eq!(writemsg(ep, &raw const msg, 0), 0);
            pair.a.done(0, WRITE_DONE);
            assert_eq!(readmsg(ep, &raw const msg, 0), 0);
            pair.a.done(0, READ_DONE);
            // An endpoint that is not enabled.
            let (mut idle, domain) = (null_mut(), pair.opened.domain);
            let code = call!(domain, ops.endpoint(info.info, &raw mut idle, null_mut()));
            assert_eq!(code, 0);
            let early = -FI_EOPBADSTATE as isize;
            assert_eq!(read(idle, at, 8, none, peer, 0, KEY, none), early);
            assert_eq!(writemsg(idle, null(), 0), early);
            assert_eq!(close(idle.cast()), 0);
        }
        assert!(memory.iter().all(|byte| *byte == 0xee) && room == [1; 64]);
        pair.a.is_quiet();
        assert_eq!(close(mr.cast()), 0);
        pair.close();
    });
}

/// An endpoint that begins operations needs a queue for their completions alone, a target none.
///
/// Covers: GI-3
#[test]
fn endpoints_for_one_side() {
    asking_everywhere("endpoints_for_one_side", |libfabric, domain| {
        let ask = |caps| {
            let version = (libfabric.version, domain);
            ask(libfabric, version, caps, 0, |_| {}).expect("an offer")
        };
        let (to_begin, to_be_target) = (ask(FI_RMA | FI_READ | FI_WRITE), ask(FI_RMA | BOTH));
        let opened = Opened::new(&ask(FI_RMA | FI_READ | FI_WRITE | BOTH));
        let domain = opened.domain;
        let (mut av, mut cq): (*mut fid_av, *mut fid_cq) = (null_mut(), null_mut());
        let (mut begins, mut target): (*mut fid_ep, *mut fid_ep) = (null_mut(), null_mut());
        let mut av_attr = fi_av_attr {
            type_: fi_av_type::FI_AV_TABLE,
            ..fi_av_attr::default()
        };
        let mut cq_attr = fi_cq_attr::default();
        // SAFETY: as the manual pages have it.
        let codes = unsafe {
            [
                call!(
                    domain,
                    ops.av_open(&raw mut av_attr, &raw mut av, null_mut())
                ),
                call!(
                    domain,
                    ops.cq_open(&raw mut cq_attr, &raw mut cq, null_mut())
                ),
                call!(
                    domain,
                    ops.endpoint(to_begin.info, &raw mut begins, null_mut())
                ),
                call!(
                    domain,
                    ops.endpoint(to_be_target.info, &raw mut target, null_mut())
                ),
            ]
        };
        assert_eq!(codes, [0; 4]);
        let enable = |ep: *mut fid_ep| control(ep.cast(), FI_ENABLE, null_mut());
        assert_eq!(
            [bind(begins, av.cast(), 0), bind(target, av.cast(), 0)],
            [0; 2]
        );
        assert_eq!(enable(begins), -FI_ENOCQ);
        assert_eq!(bind(begins, cq.cast(), FI_TRANSMIT), 0);
        assert_eq!([enable(begins), enable(target)], [0; 2]);

        let mut memory = vec![0; 64];
        let mr = register(&opened, &mut memory, BOTH, KEY).unwrap();
        let (peer, bytes) = (insert(av, target), [3u8; 8]);
        insert(av, begins);
        // SAFETY: as fi_rma(3) has it.
        let code = unsafe {
            let (at, none) = (bytes.as_ptr().cast(), null_mut());
            let write = (*(*begins).rma).writedata.unwrap();
            write(begins, at, 8, none, 9, peer, 8, key_of(mr), none)
        };
        assert_eq!(code, 0);
        assert_eq!(two::next(cq).unwrap().op_context, null_mut());
        assert_eq!((&memory[..8], &memory[8..16]), (&[0; 8][..], &bytes[..]));
        for fid in [
            begins.cast(),
            target.cast(),
            cq.cast(),
            av.cast(),
            mr.cast(),
        ] {
            assert_eq!(close(fid), 0);
        }
        opened.close();
    });
}

/// Datagrams have no one-sided operations, and neither have hints for them an offer.
///
/// Covers: GI-3
#[test]
fn datagrams_have_none() {
    if !has_device() {
        return skip("this machine has no RDMA device");
    }
    over_verbs("datagrams_have_none", |libfabric| {
        let find = |caps| {
            let hints = libfabric.hints();
            // SAFETY: the hints are the test's.
            unsafe {
                (*hints.info).caps = caps;
                (*(*hints.info).ep_attr).type_ = fi_ep_type::FI_EP_DGRAM;
            }
            libfabric.ask(libfabric.version, None, None, 0, Some(&hints))
        };
        assert_eq!(find(ALL).err(), Some(-libc::ENODATA));
        let info = find(FI_MSG | FI_SOURCE).expect("an offer of datagrams");
        let opened = Opened::new(&info);
        let party = opened.party(&info);
        // SAFETY: the calls look at no argument.
        let code = unsafe {
            let write = (*(*party.ep).rma).write.unwrap();
            write(party.ep, null(), 0, null_mut(), 0, 0, 0, null_mut())
        };
        assert_eq!(code, -FI_ENOSYS as isize);
        party.close();
        opened.close();
    });
}
