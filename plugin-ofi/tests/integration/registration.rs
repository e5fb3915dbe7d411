//! Regions (fi_mr(3)) of several pieces, within other regions, with counters and with raw keys; and
//! memory that is refused.

use crate::{client, rma, two};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use client::{Libfabric, Opened, close};
use ferro_fi::abi::{
    FI_EACCES, FI_EBADFLAGS, FI_EBUSY, FI_EDOMAIN, FI_EINVAL, FI_ENABLE, FI_ENOSYS, FI_EOPNOTSUPP,
    FI_ETOOSMALL, FI_GET_RAW_MR, FI_HMEM_DEVICE_ONLY, FI_HMEM_HOST_ALLOC, FI_MAP_RAW_MR,
    FI_MR_BASIC, FI_MR_DMABUF, FI_MR_SINGLE_USE, FI_READ, FI_RECV, FI_REFRESH, FI_REMOTE_READ,
    FI_REMOTE_WRITE, FI_RMA_EVENT, FI_RMA_PMEM, FI_SEND, FI_UNMAP_KEY, FI_WRITE, fi_hmem_iface,
    fi_mr_attr, fi_mr_map_raw, fi_mr_raw_attr, fid, fid_mr,
};
use libc::iovec;
use rma::{
    ALL, BOTH, Pair, READ_DONE, READS, Read, WRITE_DONE, WRITES, Write, ask, filled, key_of, offer,
    open_counter, register,
};
use two::{asking_everywhere, control, count, next};

/// `fi_mr_regattr`.
fn register_as(opened: &Opened, attr: &fi_mr_attr, flags: u64) -> Result<*mut fid_mr, c_int> {
    let mut mr = null_mut();
    let domain = opened.domain;
    // SAFETY: as fi_mr(3) has it; the tests keep the memory until they close the region.
    let code = unsafe {
        let regattr = (*(*domain).mr).regattr.unwrap();
        regattr(domain.cast(), attr, flags, &raw mut mr)
    };
    match code {
        0 => Ok(mr),
        error => Err(error),
    }
}

/// Attributes with both rights of peers.
fn attributes(list: &[iovec], key: u64) -> fi_mr_attr {
    // SAFETY: zeros are attributes.
    let mut attr: fi_mr_attr = unsafe { std::mem::zeroed() };
    attr.__bindgen_anon_1.mr_iov = list.as_ptr();
    (attr.iov_count, attr.access) = (list.len(), BOTH);
    attr.requested_key = key;
    attr
}

fn vector(memory: &mut [u8]) -> iovec {
    iovec {
        iov_base: memory.as_mut_ptr().cast(),
        iov_len: memory.len(),
    }
}

/// `fi_mr_bind`.
fn bind(mr: *mut fid_mr, to: *mut fid, flags: u64) -> c_int {
    // SAFETY: the region is open.
    unsafe { (*(*mr).fid.ops).bind.unwrap()(mr.cast(), to, flags) }
}

/// Offsets run over the pieces in order, for each call that reads or writes and for short, longer
/// and long operations; nothing between the pieces or behind them is touched. Where a region is
/// reached by addresses, `one_sided_regions::addresses_of_several_buffers` tests it.
#[test]
fn regions_of_several_pieces() {
    asking_everywhere("regions_of_several_pieces", |libfabric, domain| {
        let version = (libfabric.version, domain);
        let pair = Pair::open(&ask(libfabric, version, ALL, 0, |_| {}).unwrap());
        for len in [9, 6_000, 400_000] {
            pieces_of(&pair, len);
        }
        pair.close();
    });
}

fn pieces_of(pair: &Pair, len: usize) {
    // Not in the order of their addresses, and each with a byte behind it.
    let cuts = [len / 3, 0, len / 2, len - len / 3 - len / 2];
    let mut memory: Vec<_> = cuts.map(|len| vec![0u8; len + 1]).into();
    let mut list: Vec<_> = memory.iter_mut().map(|one| vector(one)).collect();
    (list.iter_mut()).for_each(|one| one.iov_len -= 1);
    let mr = register_as(&pair.opened, &attributes(&list, 5), 0).unwrap();
    let at = |offset: usize| pair.at(offset as u64, key_of(mr));
    let shown = |memory: &[Vec<u8>]| -> Vec<u8> {
        let of = memory.iter().flat_map(|one| &one[..one.len() - 1]);
        of.copied().collect()
    };
    let mut expected = vec![0; len];
    for (seed, call) in WRITES.into_iter().enumerate() {
        // All of it, and from within the first piece to within the last.
        for range in [0..len, len / 4..len - 1] {
            if call.injects() && range.len() > 16 {
                continue;
            }
            let bytes = filled(range.len(), seed + range.start);
            let writes = pair.a.count(FI_WRITE);
            pair.a.write_soon(call, &bytes, at(range.start));
            if call.has_data() {
                assert_eq!(next(pair.b.rx).unwrap().len, range.len());
            }
            if call.completes() {
                pair.a.done(77, WRITE_DONE);
            }
            pair.a.counts(FI_WRITE, writes + 1);
            expected[range].copy_from_slice(&bytes);
            assert!(shown(&memory) == expected, "{call:?} of {len} bytes");
        }
    }
    for call in READS {
        for range in [0..len, len / 4..len - 1, len / 3..len / 3 + 2] {
            let mut into = vec![0; range.len()];
            pair.a.read_soon(call, &mut into, at(range.start));
            pair.a.done(77, READ_DONE);
            assert!(into == expected[range], "{call:?} of {len} bytes");
        }
    }
    let mut into = [0; 2];
    pair.a.read_soon(Read::Plain, &mut into, at(len - 1));
    pair.a.error(77, READ_DONE, FI_EACCES);
    pair.a.write_soon(Write::Plain, &into, at(len - 1));
    pair.a.error(77, WRITE_DONE, FI_EACCES);
    assert!(shown(&memory) == expected);
    assert!(memory.iter().all(|one| one.last() == Some(&0)));
    assert_eq!(close(mr.cast()), 0);
}

/// A region may have memory that is not there yet, and more than a device registers (fi_mr(3),
/// `FI_MR_ALLOCATED`). The `fi_rma_bw` of libfabric registers a window of its longest messages.
#[test]
fn regions_of_memory_that_comes_later() {
    const BYTES: usize = 1 << 32;
    asking_everywhere("regions_of_memory_that_comes_later", |libfabric, domain| {
        let pair = Pair::open(&offer(libfabric, domain));
        // SAFETY: any place, which nothing else has.
        let at = unsafe {
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(null_mut(), BYTES, libc::PROT_NONE, kind, -1, 0)
        };
        assert!(at != libc::MAP_FAILED);
        let list = [iovec {
            iov_base: at,
            iov_len: BYTES,
        }];
        let mr = register_as(&pair.opened, &attributes(&list, 5), 0).unwrap();
        let place = BYTES - (1 << 20);
        // SAFETY: its end, from then on for everybody.
        let made = unsafe {
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            libc::mprotect(at.wrapping_byte_add(place), 1 << 20, rights)
        };
        assert_eq!(made, 0);
        for len in [8, 6_000, 400_000] {
            let (bytes, mut into) = (filled(len, 3), vec![0; len]);
            let to = pair.at(place as u64, 5);
            pair.a.write_soon(Write::Plain, &bytes, to);
            pair.a.done(77, WRITE_DONE);
            pair.a.read_soon(Read::Plain, &mut into, to);
            pair.a.done(77, READ_DONE);
            assert!(into == bytes, "{len} bytes");
        }
        assert_eq!(close(mr.cast()), 0);
        // SAFETY: the region is closed.
        assert_eq!(unsafe { libc::munmap(at, BYTES) }, 0);
        pair.close();
    });
}

/// A counter that is bound to a region counts peers' operations on that region alone, of the kinds
/// that it is bound for, by way of any endpoint; the endpoint's own counters count as before.
///
/// Covers: GI-3
#[test]
fn counters_of_a_region() {
    asking_everywhere("counters_of_a_region", |libfabric, domain| {
        let pair = Pair::open(&offer(libfabric, domain));
        let mut memory = vec![vec![0u8; 20_000]; 3];
        let mut counted = Vec::new();
        for (key, memory) in (1..).zip(&mut memory) {
            let list = [vector(memory)];
            // With and without word of it beforehand.
            let flags = [0, FI_RMA_EVENT][key as usize % 2];
            let mr = register_as(&pair.opened, &attributes(&list, key), flags).unwrap();
            let (writes, reads) = (open_counter(&pair.opened), open_counter(&pair.opened));
            assert_eq!(bind(mr, writes.cast(), FI_REMOTE_WRITE), 0);
            if key != 3 {
                assert_eq!(bind(mr, reads.cast(), FI_REMOTE_READ), 0);
            }
            assert_eq!(control(mr.cast(), FI_ENABLE, null_mut()), 0);
            counted.push((mr, writes, reads));
        }
        let mut into = vec![0; 20_000];
        for (key, times) in [(1, 3), (2, 5), (3, 2)] {
            for len in [8, 20_000].into_iter().cycle().take(times) {
                pair.a
                    .write_soon(Write::Plain, &filled(len, 1), pair.at(0, key));
                pair.a.done(77, WRITE_DONE);
                pair.a
                    .read_soon(Read::Plain, &mut into[..len], pair.at(0, key));
                pair.a.done(77, READ_DONE);
            }
            // Refused.
            pair.a
                .write_soon(Write::Plain, &[1; 8], pair.at(19_999, key));
            pair.a.error(77, WRITE_DONE, FI_EACCES);
        }
        let counts: Vec<_> = (counted.iter())
            .map(|&(_, writes, reads)| (count(writes), count(reads)))
            .collect();
        assert_eq!(counts, [(3, 3), (5, 5), (2, 0)]);
        pair.b.counts(FI_REMOTE_WRITE, 10);
        pair.b.counts(FI_REMOTE_READ, 10);
        for (mr, writes, reads) in counted {
            // Its region needs it.
            assert_eq!(close(writes.cast()), -FI_EBUSY);
            assert_eq!(close(mr.cast()), 0);
            assert_eq!([close(writes.cast()), close(reads.cast())], [0; 2]);
        }
        pair.close();
    });
}

/// Regions may be bound to endpoints, which changes nothing, and to counters, one for each kind of
/// operations; they are enabled from the start.
#[test]
fn regions_that_are_bound() {
    asking_everywhere("regions_that_are_bound", |libfabric, domain| {
        let info = offer(libfabric, domain);
        let (pair, other) = (Pair::open(&info), Pair::open(&info));
        let mut memory = vec![3; 100];
        let mr = register(&pair.opened, &mut memory, BOTH, 5).unwrap();
        assert_eq!(bind(mr, pair.b.ep.cast(), 0), 0);
        assert_eq!(bind(mr, pair.b.ep.cast(), FI_REMOTE_WRITE), 0);
        assert_eq!(bind(mr, other.b.ep.cast(), 0), -FI_EDOMAIN);
        assert_eq!(bind(mr, pair.b.rx.cast(), 0), -FI_ENOSYS);
        assert_eq!(bind(mr, null_mut(), 0), -FI_EINVAL);
        let [own, another] = [(); 2].map(|()| open_counter(&pair.opened));
        let foreign = other.a.counters[0];
        assert_eq!(bind(mr, foreign.cast(), FI_REMOTE_WRITE), -FI_EDOMAIN);
        for flags in [0, FI_WRITE, FI_SEND, FI_REMOTE_WRITE | FI_RECV] {
            assert_eq!(bind(mr, own.cast(), flags), -FI_EBADFLAGS);
        }
        assert_eq!(bind(mr, own.cast(), FI_REMOTE_WRITE), 0);
        for flags in [FI_REMOTE_WRITE, BOTH] {
            assert_eq!(bind(mr, another.cast(), flags), -FI_EINVAL);
        }
        // It was not bound in part.
        assert_eq!(close(another.cast()), 0);
        assert_eq!(control(mr.cast(), FI_ENABLE, null_mut()), 0);
        assert_eq!(control(mr.cast(), 77, null_mut()), -FI_ENOSYS);
        let mut into = [0; 100];
        pair.a.read_soon(Read::Plain, &mut into, pair.at(0, 5));
        pair.a.done(77, READ_DONE);
        assert_eq!(into[..], memory[..]);
        // A region that peers do not reach has nothing to count.
        let local = register(&pair.opened, &mut memory, FI_READ | FI_WRITE, 6).unwrap();
        assert_eq!(bind(local, own.cast(), FI_REMOTE_WRITE), 0);
        for fid in [mr.cast(), local.cast(), own.cast()] {
            assert_eq!(close(fid), 0);
        }
        pair.close();
        other.close();
    });
}

/// `fi_mr_refresh`: with no range it is about the whole region; each range lies in it.
#[test]
fn regions_that_are_refreshed() {
    asking_everywhere("regions_that_are_refreshed", |libfabric, domain| {
        let info = offer(libfabric, domain);
        let pair = Pair::open(&info);
        let mut memory = vec![3; 100];
        let list = [vector(&mut memory[..40]), vector(&mut memory[50..])];
        let mr = register_as(&pair.opened, &attributes(&list, 5), 0).unwrap();
        let refresh = |ranges: &[iovec], flags: u64| {
            let at = ranges.as_ptr() as u64;
            let request = [flags, at, ranges.len() as u64];
            control(mr.cast(), FI_REFRESH, request.as_ptr().cast_mut().cast())
        };
        assert_eq!(refresh(&[], 0), 0);
        assert_eq!(refresh(&list, 0), 0);
        let beyond = [(0, 41), (39, 2), (45, 1), (60, usize::MAX)].map(|(from, len)| iovec {
            iov_base: memory.as_mut_ptr().wrapping_add(from).cast::<c_void>(),
            iov_len: len,
        });
        for range in beyond {
            assert_eq!(refresh(&[list[0], range], 0), -FI_EINVAL);
        }
        assert_eq!(refresh(&list, 1), -FI_EBADFLAGS);
        assert_eq!(control(mr.cast(), FI_REFRESH, null_mut()), -FI_EINVAL);
        assert_eq!(close(mr.cast()), 0);
        pair.close();
    });
}

/// `fi_mr_raw_attr`, `fi_mr_map_raw`, `fi_mr_unmap_key`: a raw key has eight bytes, and leads to
/// the region once it is mapped.
#[test]
fn raw_keys() {
    asking_everywhere("raw_keys", |libfabric, domain| {
        let version = (libfabric.version, domain);
        for mode in [0, FI_MR_BASIC] {
            let info = ask(libfabric, version, ALL, mode, |_| {}).unwrap();
            let pair = Pair::open(&info);
            raw_keys_of(&pair, mode);
            pair.close();
        }
    });
}

fn raw_keys_of(pair: &Pair, mode: c_int) {
    let mut memory = vec![3; 100];
    let mr = register(&pair.opened, &mut memory, BOTH, 1 << 40).unwrap();
    let (mut base, mut raw, mut size) = (77, [0u8; 9], 9);
    let mut request = fi_mr_raw_attr {
        flags: 0,
        base_addr: &raw mut base,
        raw_key: raw.as_mut_ptr(),
        key_size: &raw mut size,
    };
    let raw_of = |request: &mut fi_mr_raw_attr| {
        control(mr.cast(), FI_GET_RAW_MR, (&raw mut *request).cast())
    };
    assert_eq!((raw_of(&mut request), size), (0, 8));
    let expected = match mode {
        0 => 0,
        _ => memory.as_ptr() as u64,
    };
    assert_eq!((base, raw[8]), (expected, 0));
    // The size is said where there is no room.
    for room in [0, 7] {
        size = room;
        assert_eq!((raw_of(&mut request), size), (-FI_ETOOSMALL, 8));
    }
    request.base_addr = null_mut();
    assert_eq!(raw_of(&mut request), 0);
    request.flags = 1;
    assert_eq!(raw_of(&mut request), -FI_EBADFLAGS);
    for missing in [
        fi_mr_raw_attr {
            flags: 0,
            raw_key: null_mut(),
            ..request
        },
        fi_mr_raw_attr {
            flags: 0,
            key_size: null_mut(),
            ..request
        },
    ] {
        assert_eq!(raw_of(&mut { missing }), -FI_EINVAL);
    }
    assert_eq!(control(mr.cast(), FI_GET_RAW_MR, null_mut()), -FI_EINVAL);

    let domain: *mut fid = pair.opened.domain.cast();
    let mut key = 0u64;
    let map = |flags, key_size, raw_key: *mut u8, key: *mut u64| {
        let mut request = fi_mr_map_raw {
            flags,
            base_addr: base,
            raw_key,
            key_size,
            key,
        };
        control(domain, FI_MAP_RAW_MR, (&raw mut request).cast())
    };
    let at = raw.as_mut_ptr();
    for size in [0, 7, 9, usize::MAX] {
        assert_eq!(map(0, size, at, &raw mut key), -FI_EINVAL);
    }
    assert_eq!(map(1, 8, at, &raw mut key), -FI_EBADFLAGS);
    assert_eq!(map(0, 8, null_mut(), &raw mut key), -FI_EINVAL);
    assert_eq!(map(0, 8, at, null_mut()), -FI_EINVAL);
    assert_eq!(control(domain, FI_MAP_RAW_MR, null_mut()), -FI_EINVAL);
    assert_eq!((map(0, 8, at, &raw mut key), key), (0, key_of(mr)));
    let mut into = [0; 90];
    pair.a
        .read_soon(Read::Plain, &mut into, pair.at(base + 10, key));
    pair.a.done(77, READ_DONE);
    assert_eq!(into, [3; 90]);
    assert_eq!(control(domain, FI_UNMAP_KEY, (&raw mut key).cast()), 0);
    assert_eq!(control(domain, 77, null_mut()), -FI_ENOSYS);
    assert_eq!(close(mr.cast()), 0);
}

/// A region within another one (`base_mr`) has a key and rights of its own, and keeps the other one
/// open.
#[test]
fn regions_within_regions() {
    asking_everywhere("regions_within_regions", |libfabric, domain| {
        let info = offer(libfabric, domain);
        let (pair, other) = (Pair::open(&info), Pair::open(&info));
        let mut memory = vec![3; 100];
        let base = register(&pair.opened, &mut memory, FI_REMOTE_WRITE, 5).unwrap();
        let within = |opened: &Opened, from: usize, len: usize, key| {
            let list = [iovec {
                iov_base: memory.as_ptr().wrapping_add(from).cast_mut().cast(),
                iov_len: len,
            }];
            let attr = fi_mr_attr {
                access: FI_REMOTE_READ,
                base_mr: base,
                ..attributes(&list, key)
            };
            register_as(opened, &attr, 0)
        };
        for (from, len) in [
            (0, 101),
            (99, 2),
            (usize::MAX, 2),
            (101, 1),
            (1, usize::MAX),
        ] {
            let refused = within(&pair.opened, from, len, 6);
            assert_eq!(refused.err(), Some(-FI_EINVAL));
        }
        assert_eq!(within(&other.opened, 0, 10, 6).err(), Some(-FI_EINVAL));
        let sub = within(&pair.opened, 10, 20, 6).unwrap();
        let innermost = {
            let list = [vector(&mut memory[15..17])];
            let attr = fi_mr_attr {
                base_mr: sub,
                ..attributes(&list, 7)
            };
            register_as(&pair.opened, &attr, 0).unwrap()
        };
        memory[15..17].copy_from_slice(&[8, 9]);
        let mut into = [0; 2];
        for (place, key) in [(5, 6), (0, 7)] {
            pair.a
                .read_soon(Read::Plain, &mut into, pair.at(place, key));
            pair.a.done(77, READ_DONE);
            assert_eq!(into, [8, 9]);
        }
        pair.a.read_soon(Read::Plain, &mut into, pair.at(0, 5));
        pair.a.error(77, READ_DONE, FI_EACCES);
        pair.a.write_soon(Write::Plain, &into, pair.at(0, 6));
        pair.a.error(77, WRITE_DONE, FI_EACCES);
        assert_eq!([close(base.cast()), close(sub.cast())], [-FI_EBUSY; 2]);
        for mr in [innermost, sub, base] {
            assert_eq!(close(mr.cast()), 0);
        }
        pair.close();
        other.close();
    });
}

/// Memory of devices is refused, and so is each flag of something that is not offered.
#[test]
fn memory_that_is_refused() {
    asking_everywhere("memory_that_is_refused", refused_memory);
}

fn refused_memory(libfabric: &Libfabric, domain: &str) {
    let pair = Pair::open(&offer(libfabric, domain));
    let mut memory = vec![3; 100];
    let list = [vector(&mut memory)];
    for iface in 1..=5 {
        let attr = fi_mr_attr {
            iface: fi_hmem_iface(iface),
            ..attributes(&list, 5)
        };
        let refused = register_as(&pair.opened, &attr, 0);
        assert_eq!(refused.err(), Some(-FI_EOPNOTSUPP));
    }
    // The device does not count for memory of the system (fi_mr(3)).
    let mut attr = attributes(&list, 5);
    attr.device.reserved = u64::MAX;
    assert_eq!(
        close(register_as(&pair.opened, &attr, 0).unwrap().cast()),
        0
    );
    for flags in [
        FI_HMEM_DEVICE_ONLY,
        FI_HMEM_HOST_ALLOC,
        FI_MR_DMABUF,
        FI_MR_SINGLE_USE,
        FI_RMA_PMEM,
        FI_RMA_EVENT | (1 << 63),
    ] {
        let refused = register_as(&pair.opened, &attributes(&list, 5), flags);
        assert_eq!(refused.err(), Some(-FI_EBADFLAGS), "{flags:#x}");
    }
    let foreign = fi_mr_attr {
        base_mr: pair.b.ep.cast(),
        ..attributes(&list, 5)
    };
    let refused = register_as(&pair.opened, &foreign, 0);
    assert_eq!(refused.err(), Some(-FI_EINVAL));
    pair.close();
}
