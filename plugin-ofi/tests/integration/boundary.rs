//! The arguments that an application written in C may pass, at their limits: structures as long as
//! they were in each version of the interface, constants, pointers that are NULL, numbers that are
//! large. Each call fails or does as the manual says, and nothing else. The letters are those of
//! the faults that the tests have found.

use crate::{client, support, two};
use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, without_provenance};
use std::time::Instant;

use client::{Info, Opened, close};
use ferro_fi::abi::{
    FI_EAVAIL, FI_ECANCELED, FI_EINVAL, FI_ENABLE, FI_ENOMEM, FI_EVENT, FI_RECV, FI_SEND,
    FI_VERSION, fi_addr_t, fi_av_attr, fi_av_type, fi_cntr_attr, fi_cq_attr, fi_cq_err_entry,
    fi_cq_format, fi_cq_tagged_entry, fi_cq_wait_cond, fi_domain_attr, fi_ep_attr, fi_eq_attr,
    fi_eq_err_entry, fi_fabric_attr, fi_hmem_iface, fi_info, fi_mr_attr, fi_rx_attr, fi_tx_attr,
    fi_wait_obj, fid, fid_av, fid_cntr, fid_cq, fid_domain, fid_ep, fid_eq, fid_fabric, fid_mr,
};
use support::edge::GuardedPage;
use two::{
    EAGAIN, FORMATS, PATIENCE, Two, alone, control, count, everywhere, is_shm, next, read, shape,
};

/// Bytes of a structure, from a version on.
type VersionSizes = &'static [((u32, u32), usize)];

// As the headers of libfabric's releases have them on machines of 64 bits.
const INFO: VersionSizes = &[((1, 0), 112), ((1, 7), 120)];
const TX: VersionSizes = &[((1, 0), 72), ((1, 9), 80)];
const RX: VersionSizes = &[((1, 0), 64)];
const EP: VersionSizes = &[((1, 0), 80), ((1, 5), 96)];
const DOMAIN: VersionSizes = &[
    ((1, 0), 120),
    ((1, 5), 184),
    ((1, 9), 192),
    ((1, 20), 200),
    ((2, 0), 208),
    ((2, 5), 224),
];
const FABRIC: VersionSizes = &[((1, 0), 32)];
const MR: VersionSizes = &[
    ((1, 0), 48),
    ((1, 5), 64),
    ((1, 9), 80),
    ((1, 19), 88),
    ((2, 0), 112),
];
const CQ_ERROR: VersionSizes = &[((1, 0), 72), ((1, 5), 80), ((1, 20), 88)];
/// Always the same.
const EQ_ERROR: usize = 48;

/// Every version that had a release.
fn versions(newest: u32) -> impl Iterator<Item = u32> {
    let of_1 = (0..=22).map(|minor| FI_VERSION(1, minor));
    let of_2 = (0..=6).map(|minor| FI_VERSION(2, minor));
    of_1.chain(of_2).filter(move |version| *version <= newest)
}

fn bytes(sizes: VersionSizes, version: u32) -> usize {
    let known = sizes
        .iter()
        .filter(|((major, minor), _)| FI_VERSION(*major, *minor) <= version);
    known.map(|(_, bytes)| *bytes).max().unwrap()
}

/// An offer as an application of a version has it in memory of its own.
struct Truncated {
    info: *mut fi_info,
    _edges: Vec<GuardedPage>,
}

impl Truncated {
    fn of(info: &Info<'_>, version: u32) -> Self {
        fn part<T>(
            of: *const T,
            sizes: VersionSizes,
            version: u32,
            edges: &mut Vec<GuardedPage>,
        ) -> *mut T {
            let edge = GuardedPage::new();
            // SAFETY: the library's structures are there, and the test's.
            let at = edge.first_bytes(unsafe { &*of }, bytes(sizes, version));
            edges.push(edge);
            at
        }
        let mut edges = Vec::new();
        // SAFETY: the offer is the test's, with all its attributes.
        unsafe {
            let mut whole = *info.info;
            whole.next = null_mut();
            whole.tx_attr = part::<fi_tx_attr>(whole.tx_attr, TX, version, &mut edges);
            whole.rx_attr = part::<fi_rx_attr>(whole.rx_attr, RX, version, &mut edges);
            whole.ep_attr = part::<fi_ep_attr>(whole.ep_attr, EP, version, &mut edges);
            // libfabric's own may be shorter than the newest.
            let domain = bytes(DOMAIN, version).min(208);
            let edge = GuardedPage::new();
            whole.domain_attr = edge.first_bytes::<fi_domain_attr>(&*whole.domain_attr, domain);
            edges.push(edge);
            whole.fabric_attr =
                part::<fi_fabric_attr>(whole.fabric_attr, FABRIC, version, &mut edges);
            let info = part::<fi_info>(&raw const whole, INFO, version, &mut edges);
            Self {
                info,
                _edges: edges,
            }
        }
    }
}

/// Calls are made with structures that end, each, where the memory does, and are as long as in the
/// application's version. Attributes that are only read are constants.
///
/// Item e.
#[test]
fn structures_of_each_version_are_read_to_their_end() {
    everywhere("structures_of_each_version_are_read_to_their_end", |info| {
        for version in versions(info.version()) {
            println!("version {}.{}", version >> 16, version & 0xffff);
            // SAFETY: the offer is the test's.
            unsafe { (*(*info.info).fabric_attr).api_version = version };
            with_structures_of(info, version);
        }
    });
}

fn with_structures_of(info: &Info<'_>, version: u32) {
    let offer = Truncated::of(info, version);
    let mut fabric: *mut fid_fabric = null_mut();
    let mut domain: *mut fid_domain = null_mut();
    let (mut eq, mut av): (*mut fid_eq, *mut fid_av) = (null_mut(), null_mut());
    let (mut cq, mut cntr): (*mut fid_cq, *mut fid_cntr) = (null_mut(), null_mut());
    let mut ep: *mut fid_ep = null_mut();
    // SAFETY: as the manual pages have it, with structures of that version.
    unsafe {
        let made = info.open_fabric((*offer.info).fabric_attr, &raw mut fabric);
        assert_eq!(made, 0);
        let made = call!(fabric, ops.domain(offer.info, &raw mut domain, null_mut()));
        assert_eq!(made, 0);

        let edge = GuardedPage::new();
        let attr = edge.constant(&fi_eq_attr {
            wait_obj: fi_wait_obj::FI_WAIT_UNSPEC,
            ..fi_eq_attr::default()
        });
        assert_eq!(call!(fabric, ops.eq_open(attr, &raw mut eq, null_mut())), 0);
        let edge = GuardedPage::new();
        let attr = edge.constant(&fi_av_attr {
            type_: fi_av_type::FI_AV_TABLE,
            flags: FI_EVENT,
            ..fi_av_attr::default()
        });
        assert_eq!(call!(domain, ops.av_open(attr, &raw mut av, null_mut())), 0);
        let edge = GuardedPage::new();
        let attr = edge.constant(&fi_cntr_attr::default());
        assert_eq!(
            call!(domain, ops.cntr_open(attr, &raw mut cntr, null_mut())),
            0
        );
        let edge = GuardedPage::new();
        let attr = edge.constant(&fi_cq_attr {
            format: fi_cq_format::FI_CQ_FORMAT_TAGGED,
            ..fi_cq_attr::default()
        });
        assert_eq!(call!(domain, ops.cq_open(attr, &raw mut cq, null_mut())), 0);

        register(domain, version);

        let made = call!(domain, ops.endpoint(offer.info, &raw mut ep, null_mut()));
        assert_eq!(made, 0);
        let fid: *mut fid = ep.cast();
        let bind = (*(*fid).ops).bind.unwrap();
        assert_eq!(((*(*av).fid.ops).bind.unwrap())(av.cast(), eq.cast(), 0), 0);
        assert_eq!(bind(fid, av.cast(), 0), 0);
        assert_eq!(bind(fid, cq.cast(), FI_SEND | FI_RECV), 0);
        assert_eq!(bind(fid, cntr.cast(), FI_RECV), 0);
        assert_eq!(control(fid, FI_ENABLE, null_mut()), 0);
        cancelled(ep, cq, version);
        not_inserted(av, eq);
        for fid in [
            fid,
            cntr.cast(),
            cq.cast(),
            av.cast(),
            eq.cast(),
            domain.cast(),
            fabric.cast(),
        ] {
            assert_eq!(close(fid), 0);
        }
    }
}

/// `fi_mr_regattr`. Where nobody asked for `FI_HMEM`, the interface of the memory is not looked at
/// (fi_mr(3)).
unsafe fn register(domain: *mut fid_domain, version: u32) {
    let memory = [0u8; 4096];
    let iov = libc::iovec {
        iov_base: memory.as_ptr().cast_mut().cast(),
        iov_len: memory.len(),
    };
    // SAFETY: every number is one of each field's.
    let mut attr: fi_mr_attr = unsafe { std::mem::zeroed() };
    attr.__bindgen_anon_1.mr_iov = &raw const iov;
    attr.iov_count = 1;
    attr.access = FI_SEND | FI_RECV;
    attr.auth_key = 3 as *mut u8;
    attr.iface = fi_hmem_iface(77);
    attr.device.reserved = u64::MAX;
    let edge = GuardedPage::new();
    let attr = edge.first_bytes(&attr, bytes(MR, version));
    let mut mr: *mut fid_mr = null_mut();
    // SAFETY: the domain is open, the memory stays until the region is closed.
    let made = unsafe { ((*(*domain).mr).regattr.unwrap())(domain.cast(), attr, 0, &raw mut mr) };
    assert_eq!(made, 0);
    assert_eq!(close(mr.cast()), 0);
}

/// The error of a receive that was taken back, in an entry of that version.
unsafe fn cancelled(ep: *mut fid_ep, cq: *mut fid_cq, version: u32) {
    let mut room = [0u8; 8];
    let context = 5 as *mut c_void;
    // SAFETY: the objects are open, and the memory stays until the receive is over.
    unsafe {
        let recv = (*(*ep).tagged).recv.unwrap();
        let into = room.as_mut_ptr().cast();
        assert_eq!(recv(ep, into, 8, null_mut(), u64::MAX, 1, 0, context), 0);
        let cancel = (*(*ep).ops).cancel.unwrap();
        assert_eq!(cancel(ep.cast(), context), 0);
        assert_eq!(next(cq).unwrap_err(), -(FI_EAVAIL as isize));
        let edge = GuardedPage::new();
        let entry = edge.first_bytes(&fi_cq_err_entry::default(), bytes(CQ_ERROR, version));
        assert_eq!(call!(cq, ops.readerr(entry, 0)), 1);
        assert_eq!(((*entry).err, (*entry).op_context), (FI_ECANCELED, context));
    }
}

/// The error of an address that is none, in an entry.
unsafe fn not_inserted(av: *mut fid_av, eq: *mut fid_eq) {
    let (bad, mut addr) = ([1u8; 64], 0 as fi_addr_t);
    // SAFETY: the objects are open, and the memory stays until the end has come.
    unsafe {
        let inserted = call!(
            av,
            ops.insert(bad.as_ptr().cast(), 1, &raw mut addr, 0, null_mut())
        );
        assert_eq!(inserted, 0);
        let (mut event, mut out) = (0, [0u8; 64]);
        let mut read = |timeout| {
            let (event, out) = (&raw mut event, out.as_mut_ptr().cast());
            call!(eq, ops.sread(event, out, 64, timeout, 0))
        };
        assert_eq!(read(60_000), -(FI_EAVAIL as isize));
        let edge = GuardedPage::new();
        let entry = edge.whole(&fi_eq_err_entry::default());
        let got = call!(eq, ops.readerr(entry, 0));
        assert_eq!(
            got, EQ_ERROR as isize,
            "a whole entry, whatever the version"
        );
        assert_eq!(((*entry).err, (*entry).fid), (FI_EINVAL, av.cast()));
        assert!(read(60_000) > 0, "and the end of the insertion");
    }
}

/// Opening a queue with attributes that are constants changes none, where there is no choice to
/// return.
///
/// Item h.
#[test]
fn constant_attributes_stay() {
    alone("constant_attributes_stay", |info| {
        let opened = Opened::new(info);
        let domain = opened.domain;
        for (format, _) in FORMATS {
            let edge = GuardedPage::new();
            let attr = edge.constant(&fi_cq_attr {
                format,
                ..fi_cq_attr::default()
            });
            open_cq(domain, attr).unwrap();
        }
        for type_ in [fi_av_type::FI_AV_TABLE, fi_av_type::FI_AV_MAP] {
            let edge = GuardedPage::new();
            let attr = edge.constant(&fi_av_attr {
                type_,
                ..fi_av_attr::default()
            });
            let mut av = null_mut();
            // SAFETY: as fi_av(3) has it.
            let made = unsafe { call!(domain, ops.av_open(attr, &raw mut av, null_mut())) };
            assert_eq!(made, 0);
            assert_eq!(close(av.cast()), 0);
        }
        // Where the provider chooses, it returns its choice.
        let mut attr = fi_av_attr::default();
        let mut av = null_mut();
        // SAFETY: as fi_av(3) has it.
        let made = unsafe { call!(domain, ops.av_open(&raw mut attr, &raw mut av, null_mut())) };
        assert_eq!((made, attr.type_), (0, fi_av_type::FI_AV_TABLE));
        assert_eq!(close(av.cast()), 0);
        let mut attr = fi_cq_attr::default();
        open_cq(domain, &raw mut attr).unwrap();
        assert_eq!(attr.format, fi_cq_format::FI_CQ_FORMAT_CONTEXT);
        opened.close();
    });
}

/// Opens a completion queue and closes it.
fn open_cq(domain: *mut fid_domain, attr: *mut fi_cq_attr) -> Result<(), c_int> {
    let mut cq = null_mut();
    // SAFETY: as fi_cq(3) has it.
    match unsafe { call!(domain, ops.cq_open(attr, &raw mut cq, null_mut())) } {
        0 => {
            assert_eq!(close(cq.cast()), 0);
            Ok(())
        }
        error => Err(error),
    }
}

/// How a queue is waited for counts only where it is (fi_cq(3), `wait_cond`).
///
/// Item h.
#[test]
fn no_wait_has_no_condition() {
    alone("no_wait_has_no_condition", |info| {
        let opened = Opened::new(info);
        let open = |wait_obj, wait_cond| {
            let mut attr = fi_cq_attr {
                wait_obj,
                wait_cond: fi_cq_wait_cond(wait_cond),
                signaling_vector: -5,
                wait_set: std::ptr::dangling_mut(),
                ..fi_cq_attr::default()
            };
            open_cq(opened.domain, &raw mut attr)
        };
        assert_eq!(open(fi_wait_obj::FI_WAIT_NONE, 99), Ok(()));
        assert_eq!(open(fi_wait_obj::FI_WAIT_UNSPEC, 1), Ok(()));
        assert_eq!(open(fi_wait_obj::FI_WAIT_UNSPEC, 99), Err(-FI_EINVAL));
        opened.close();
    });
}

/// A threshold is a number, or the address of one. A value at which no memory is mapped counts as a
/// number.
///
/// Item h.
#[test]
fn large_thresholds_are_numbers() {
    alone("large_thresholds_are_numbers", |info| {
        let mut waits = shape();
        waits.cq.wait_obj = fi_wait_obj::FI_WAIT_UNSPEC;
        waits.cq.wait_cond = fi_cq_wait_cond::FI_CQ_COND_THRESHOLD;
        let two = Two::open(info, waits);
        let edge = GuardedPage::new();
        let forbidden = edge.forbidden().as_ptr().addr();
        let mut room = [0u8; 8];
        for number in [1 << 16, (1 << 16) + 1, 1 << 20, forbidden, usize::MAX] {
            let mut out = fi_cq_tagged_entry::default();
            let mut wait = || {
                let to = (&raw mut out).cast();
                // SAFETY: there is room for one; the condition is a number.
                unsafe { call!(two.b.rx, ops.sread(to, 1, without_provenance(number), 20)) }
            };
            assert_eq!(wait(), EAGAIN, "{number:#x}");
            two.b.receive(&mut room, 0, 1);
            two.a.senddata(&[1; 8], 0, two.to_b, 0);
            // Fewer than it waits for come when its time is over, or before.
            let until = Instant::now() + PATIENCE;
            let mut got = wait();
            while got == EAGAIN && Instant::now() < until {
                got = wait();
            }
            assert_eq!(got, 1, "{number:#x}");
        }
        two.close();
    });
}

/// The size of a queue is what it holds at least (fi_cq(3)): memory is taken as entries come,
/// however large it is.
///
/// Items g and h.
#[test]
fn large_queues_take_no_memory_at_once() {
    alone("large_queues_take_no_memory_at_once", |info| {
        let opened = Opened::new(info);
        let open = |size| {
            let mut attr = fi_cq_attr {
                size,
                ..fi_cq_attr::default()
            };
            open_cq(opened.domain, &raw mut attr)
        };
        limit_memory(64 << 20);
        for size in [0, 1, 1 << 24, (1 << 24) + 1, 1 << 32] {
            assert_eq!(open(size), Ok(()), "{size} entries");
        }
        // As many as no memory holds.
        for size in [1 << 60, usize::MAX] {
            assert_eq!(open(size), Err(-FI_ENOMEM), "{size} entries");
        }
        opened.close();
    });
}

/// A queue for which there is no more memory says so when it is read, after all that it has kept.
/// The process goes on.
///
/// Item g.
#[test]
fn a_queue_without_memory_says_so() {
    alone("a_queue_without_memory_says_so", |info| {
        let mut quiet = shape();
        quiet.cq.size = 8;
        let two = Two::open(info, quiet);
        let mut room = [0u8; 8];
        let exchange = |room: &mut [u8; 8]| {
            static BYTES: [u8; 8] = [1; 8];
            two.b.receive(room, 0, 1);
            let bytes = (BYTES.as_ptr().cast(), BYTES.len());
            // SAFETY: the bytes stay until the process ends.
            unsafe {
                two.a.senddata_from(bytes, 0, (two.to_b, 0), || {
                    count(two.a.sent);
                });
            }
            while next(two.a.tx).is_err() {}
        };
        for _ in 0..64 {
            exchange(&mut room);
        }
        limit_memory(24 << 20);
        // Each entry takes more than 40 bytes.
        let sent = 600_000;
        for _ in 64..sent {
            exchange(&mut room);
        }
        let until = Instant::now() + PATIENCE;
        while count(two.b.received) < sent {
            assert!(Instant::now() < until, "not all messages came");
        }
        let (mut read, mut out) = (0u64, [fi_cq_tagged_entry::default(); 16]);
        let end = loop {
            // SAFETY: there is room for as many.
            let got = unsafe { call!(two.b.rx, ops.read(out.as_mut_ptr().cast(), 16)) };
            match got {
                1.. => read += got as u64,
                end => break end,
            }
        };
        assert_eq!(end, -(FI_ENOMEM as isize), "after {read} of {sent} entries");
        assert!(read < sent && read > 8192, "{read} of {sent} entries");
        two.close();
    });
}

/// A message fills the buffers of a list where they are (fi_msg(3), `fi_recvv`). Where a device can
/// not, and there is no memory for a copy, the receive fails, and the process goes on.
///
/// Item g.
#[test]
fn lists_of_buffers_are_filled_in_place() {
    everywhere("lists_of_buffers_are_filled_in_place", |info| {
        // More than an arena of the C library may still have. An emulated processor takes minutes
        // for it.
        let largest = match std::env::var_os("FERRO_MACHINE") {
            None => 96 << 20,
            Some(_) => 1 << 20,
        };
        // SAFETY: the offer has a domain's name.
        let over_shm = unsafe { is_shm(info) };
        let two = Two::open(info, shape());
        let message: Vec<u8> = (0..largest).map(|n| (n * 3 + n / 1021) as u8).collect();
        let mut memory = vec![0u8; largest + 64];
        // Memory that every length needs once is there before there is no more.
        for limited in [false, true] {
            if limited {
                limit_memory(16 << 20);
            }
            for len in [0, 1, 40, 64, 200, 2_000, 9_000, 100_000, 1 << 20, largest] {
                if len > 1 << 20 && !limited {
                    continue;
                }
                let memory = &mut memory[..len + 64];
                for posted_first in [true, false] {
                    memory.fill(0xee);
                    let outcome = into_list(&two, &message[..len], memory, posted_first);
                    let what = format!("{len} bytes, posted first: {posted_first}");
                    if outcome == Err(FI_ENOMEM) {
                        assert!(limited && !over_shm && len == largest, "{what}");
                        continue;
                    }
                    assert_eq!(outcome, Ok(len), "{what}");
                    // Between the buffers and behind them nothing is written.
                    assert!(memory[..len / 3] == message[..len / 3], "{what}");
                    let (from, gap) = (len / 3, 16);
                    assert!(
                        memory[from..from + gap].iter().all(|x| *x == 0xee),
                        "{what}"
                    );
                    assert!(
                        memory[from + gap..len + gap] == message[from..len],
                        "{what}"
                    );
                    assert!(memory[len + gap..].iter().all(|x| *x == 0xee), "{what}");
                }
            }
        }
        two.close();
    });
}

/// Sends a message into a list of three buffers, one of them empty, with a gap of 16 bytes.
fn into_list(
    two: &Two,
    message: &[u8],
    memory: &mut [u8],
    posted_first: bool,
) -> Result<usize, c_int> {
    let third = message.len() / 3;
    let at = memory.as_mut_ptr();
    let part = |from: usize, len: usize| libc::iovec {
        // SAFETY: within the memory.
        iov_base: unsafe { at.add(from) }.cast(),
        iov_len: len,
    };
    let list = [
        part(0, third),
        part(third, 0),
        part(third + 16, message.len() - third),
    ];
    let post = || {
        let ep = two.b.ep;
        // SAFETY: the memory stays until the receive is over.
        let posted = unsafe {
            let recvv = (*(*ep).tagged).recvv.unwrap();
            let at = list.as_ptr();
            recvv(ep, at, null_mut(), 3, u64::MAX, 5, 0, null_mut())
        };
        assert_eq!(posted, 0);
    };
    if posted_first {
        post();
    }
    let bytes = (message.as_ptr().cast(), message.len());
    // SAFETY: the message stays until its completion is read, below.
    unsafe {
        two.a.senddata_from(bytes, 0, (two.to_b, 5), || {
            count(two.a.sent);
        });
    }
    if !posted_first {
        // It may be here before anybody waits for it.
        for _ in 0..100 {
            count(two.b.received);
        }
        post();
    }
    let until = Instant::now() + PATIENCE;
    let (mut sent, mut received) = (false, None);
    while !sent || received.is_none() {
        assert!(
            Instant::now() < until,
            "{} bytes do not come",
            message.len()
        );
        match read(two.a.tx) {
            Ok(_) => sent = true,
            Err(EAGAIN) => {}
            Err(_) => sent = failure(two.a.tx) != 0,
        }
        match read(two.b.rx) {
            Ok(entry) => received = Some(Ok(entry.len)),
            Err(EAGAIN) => {}
            Err(_) => received = Some(Err(failure(two.b.rx))),
        }
    }
    received.unwrap()
}

/// The number of the error that is next.
fn failure(cq: *mut fid_cq) -> c_int {
    let mut entry = fi_cq_err_entry::default();
    // SAFETY: there is room for it.
    assert_eq!(unsafe { call!(cq, ops.readerr(&raw mut entry, 0)) }, 1);
    entry.err
}

/// Limits the memory of the process to this many bytes more.
fn limit_memory(more: u64) {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').next().unwrap().parse().unwrap();
    // SAFETY: system calls with memory of this function's.
    unsafe {
        let most = pages * libc::sysconf(libc::_SC_PAGESIZE) as u64 + more;
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &raw const limit), 0);
    }
}
