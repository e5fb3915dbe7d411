//! Completions as an application of libfabric's sees them: fi_cq(3), fi_cntr(3), fi_poll(3),
//! fi_endpoint(3).

use crate::{client, two};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr::{null, null_mut, without_provenance};
use std::time::{Duration, Instant};

use client::{Info, Opened, close};
use ferro_fi::abi::{
    FI_ADDR_IB_UD, FI_ADDR_STR, FI_AFFINITY, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_EADDRNOTAVAIL,
    FI_EAVAIL, FI_EBADFLAGS, FI_ETRUNC, FI_FENCE, FI_FORMAT_UNSPEC, FI_GETOPSFLAG, FI_GETWAIT,
    FI_GETWAITOBJ, FI_MSG, FI_NOTIFY, FI_RECV, FI_REMOTE_CQ_DATA, FI_SELECTIVE_COMPLETION, FI_SEND,
    FI_SETOPSFLAG, FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOURCE, FI_SOURCE_ERR, FI_TAGGED, FI_TRANSMIT,
    FI_VERSION, FI_WRITE, fi_addr_t, fi_cntr_events, fi_cq_attr, fi_cq_data_entry, fi_cq_entry,
    fi_cq_err_entry, fi_cq_format, fi_cq_msg_entry, fi_cq_tagged_entry, fi_cq_wait_cond,
    fi_ep_type, fi_eq_attr, fi_progress, fi_wait_obj, fid, fid_av, fid_cntr, fid_cq,
};
use ferrofabric_contracts::addr::{NATIVE_FAMILY, NATIVE_LEN};
use two::{
    EAGAIN, FORMATS, PATIENCE, Side, Two, alone, asking_everywhere, control, count, descriptor,
    everywhere, insert_bytes, name_of, next, next_from, read, readable, shape, try_wait,
};

/// Each format has its fields, and nothing is written behind them.
#[test]
fn each_format_has_its_fields() {
    everywhere("each_format_has_its_fields", |info| {
        // A queue of no format in particular has the shortest entries.
        let unspecified = (fi_cq_format::FI_CQ_FORMAT_UNSPEC, size_of::<fi_cq_entry>());
        for (format, size) in std::iter::once(unspecified).chain(FORMATS) {
            let mut wanted = shape();
            wanted.cq.format = format;
            let two = Two::open(info, wanted);
            let mut into = [[0u8; 100]; 3];
            for (i, into) in into.iter_mut().enumerate() {
                two.b.receive(into, i as u64, 70 + i);
                two.a.senddata(&[9; 10], 55, two.to_b, i as u64);
            }
            let (mut out, mut sources) = ([0xeeu8; 512], [0; 4]);
            let until = Instant::now() + PATIENCE;
            let mut got = 0;
            while got < 3 {
                // SAFETY: there is room for four of the longest format.
                let n = unsafe {
                    let to = out.as_mut_ptr().add(got * size).cast();
                    call!(
                        two.b.rx,
                        ops.readfrom(to, 4 - got, sources.as_mut_ptr().add(got))
                    )
                };
                assert!(n > 0 || n == EAGAIN, "{n}");
                got += n.max(0) as usize;
                assert!(Instant::now() < until, "{got} of 3 complete");
            }
            assert!(out[3 * size..].iter().all(|byte| *byte == 0xee));
            assert_eq!(sources[..3], [two.to_a; 3]);
            let word = |i: usize, at: usize| {
                let from = i * size + at;
                u64::from_ne_bytes(out[from..from + 8].try_into().unwrap())
            };
            for (i, into) in into.iter().enumerate() {
                assert_eq!(word(i, offset_of!(fi_cq_entry, op_context)), 70 + i as u64);
                if size >= size_of::<fi_cq_msg_entry>() {
                    let flags = word(i, offset_of!(fi_cq_msg_entry, flags));
                    assert_eq!(flags, FI_TAGGED | FI_RECV | FI_REMOTE_CQ_DATA);
                    assert_eq!(word(i, offset_of!(fi_cq_msg_entry, len)), 10);
                }
                if size >= size_of::<fi_cq_data_entry>() {
                    let buf = word(i, offset_of!(fi_cq_data_entry, buf));
                    assert_eq!(buf, into.as_ptr() as u64);
                    assert_eq!(word(i, offset_of!(fi_cq_data_entry, data)), 55);
                }
                if size >= size_of::<fi_cq_tagged_entry>() {
                    assert_eq!(word(i, offset_of!(fi_cq_tagged_entry, tag)), i as u64);
                }
            }
            two.close();
        }
    });
}

/// A queue reports a failure in its turn, with its fields, and in words; a queue that is smaller
/// than the number of its completions loses none.
#[test]
fn errors_and_overflow() {
    everywhere("errors_and_overflow", |info| {
        const MESSAGES: usize = 300;
        let mut small = shape();
        small.cq.size = 1;
        let two = Two::open(info, small);
        let mut into = vec![[0u8; 8]; MESSAGES];
        for (i, into) in into.iter_mut().enumerate() {
            // One does not fit.
            let room = if i == 100 {
                &mut into[..3]
            } else {
                &mut into[..]
            };
            two.b.receive(room, 1, i + 1);
        }
        for _ in 0..MESSAGES {
            two.a.senddata(&[1; 8], 5, two.to_b, 1);
        }
        let until = Instant::now() + PATIENCE;
        while count(two.b.received) < MESSAGES as u64 - 1 {
            count(two.a.sent);
            assert!(
                Instant::now() < until,
                "{} messages came",
                count(two.b.received)
            );
        }
        for i in 0..MESSAGES {
            if i != 100 {
                assert_eq!(read(two.b.rx).unwrap().op_context as usize, i + 1);
                continue;
            }
            for _ in 0..2 {
                assert_eq!(read(two.b.rx).unwrap_err(), -(FI_EAVAIL as isize));
            }
            let mut data = [0u8; 16];
            let mut error = fi_cq_err_entry {
                err_data: data.as_mut_ptr().cast(),
                err_data_size: data.len(),
                ..fi_cq_err_entry::default()
            };
            // SAFETY: there is room for it.
            let got = unsafe { call!(two.b.rx, ops.readerr(&raw mut error, 0)) };
            assert_eq!(got, 1);
            assert_eq!((error.op_context as usize, error.err), (101, FI_ETRUNC));
            assert_eq!((error.len, error.olen, error.tag, error.data), (3, 5, 1, 5));
            assert_eq!(error.flags & (FI_TAGGED | FI_RECV), FI_TAGGED | FI_RECV);
            assert_eq!(
                (error.err_data, error.err_data_size),
                (data.as_mut_ptr().cast(), 0)
            );
            assert_eq!(error.src_addr, two.to_a);
            let mut text = [0 as c_char; 200];
            // SAFETY: the buffer has that many bytes.
            let words = unsafe {
                let strerror = |buf, len| {
                    let (number, data) = (error.prov_errno, error.err_data.cast_const());
                    CStr::from_ptr(call!(two.b.rx, ops.strerror(number, data, buf, len)))
                };
                assert_eq!(strerror(null_mut(), 0), strerror(text.as_mut_ptr(), 200));
                strerror(text.as_mut_ptr(), 8);
                assert_eq!(CStr::from_ptr(text.as_ptr()).to_bytes().len(), 7);
                strerror(null_mut(), 0).to_str().unwrap().to_owned()
            };
            assert!(words.contains("longer than the receive buffer"), "{words}");
            // SAFETY: there is room for it.
            let more = unsafe { call!(two.b.rx, ops.readerr(&raw mut error, 0)) };
            assert_eq!(more, EAGAIN);
        }
        assert_eq!(read(two.b.rx).unwrap_err(), EAGAIN);
        // SAFETY: the counter is open.
        assert_eq!(unsafe { call!(two.b.received, ops.readerr()) }, 1);
        for _ in 0..MESSAGES {
            next(two.a.tx).unwrap();
        }
        two.close();
    });
}

/// A message of a sender that is not in the address vector is an error whose data is that sender's
/// address, in the domain's format: in the caller's memory, cut to its size, or in ours, as
/// fi_cq(3) has it for old and new applications. Inserted as it is, it is the address of later
/// messages.
///
/// Covers: AV-25, GI-3
#[test]
fn unknown_senders_are_named() {
    asking_everywhere("unknown_senders_are_named", |libfabric, domain| {
        for (format, ep_type) in [
            (FI_FORMAT_UNSPEC, fi_ep_type::FI_EP_RDM),
            (FI_ADDR_STR, fi_ep_type::FI_EP_RDM),
            (FI_FORMAT_UNSPEC, fi_ep_type::FI_EP_DGRAM),
            (FI_ADDR_IB_UD, fi_ep_type::FI_EP_DGRAM),
            (FI_ADDR_STR, fi_ep_type::FI_EP_DGRAM),
            (FI_SOCKADDR_IN, fi_ep_type::FI_EP_RDM),
            (FI_SOCKADDR, fi_ep_type::FI_EP_DGRAM),
        ] {
            let verbs_alone = ep_type == fi_ep_type::FI_EP_DGRAM || is_of_sockets(format);
            if verbs_alone && !domain.is_empty() {
                continue;
            }
            let ask = |caps| {
                let hints = libfabric.hints();
                // SAFETY: the hints are the test's; the string is libc's.
                unsafe {
                    (*hints.info).caps = caps;
                    (*hints.info).addr_format = format;
                    (*(*hints.info).ep_attr).type_ = ep_type;
                    if !domain.is_empty() {
                        let name = libc::strndup(domain.as_ptr().cast(), domain.len());
                        (*(*hints.info).domain_attr).name = name;
                    }
                }
                libfabric.ask(libfabric.version, None, None, 0, Some(&hints))
            };
            assert!(ask(FI_MSG | FI_SOURCE_ERR).is_err(), "it needs FI_SOURCE");
            let info = ask(FI_MSG | FI_SOURCE | FI_SOURCE_ERR).unwrap();
            for old in [false, true] {
                if old {
                    // SAFETY: the offer is the test's.
                    unsafe { (*(*info.info).fabric_attr).api_version = FI_VERSION(1, 4) };
                }
                named_by_its_address(&info, format, old);
            }
        }
    });
}

fn named_by_its_address(info: &Info<'_>, format: u32, old: bool) {
    let opened = Opened::new(info);
    let [a, b] = [(); 2].map(|()| Side::open(&opened, info, shape()));
    let to_b = insert_as(format, a.av, name_of(b.ep).as_ptr().cast());
    let exchange = |into: &mut [u8; 8], bytes: &[u8; 8]| {
        // SAFETY: both are there until the message has come.
        let posted = unsafe {
            let recv = (*(*b.ep).msg).recv.unwrap();
            let into = into.as_mut_ptr().cast();
            recv(b.ep, into, 8, null_mut(), u64::MAX, 7 as *mut c_void)
        };
        assert_eq!(posted, 0);
        let until = Instant::now() + PATIENCE;
        loop {
            // SAFETY: as above.
            let sent =
                unsafe { (*(*a.ep).msg).inject.unwrap()(a.ep, bytes.as_ptr().cast(), 8, to_b) };
            if sent == 0 {
                return;
            }
            assert_eq!(sent, EAGAIN);
            assert!(Instant::now() < until, "no room for a send");
            count(a.sent);
        }
    };
    // SAFETY: there is room for the error, and for its data as long as it says.
    let read_error = |error: &mut fi_cq_err_entry| unsafe {
        assert_eq!(call!(b.rx, ops.readerr(error, 0)), 1);
        assert_eq!(
            (error.op_context as usize, error.err),
            (7, FI_EADDRNOTAVAIL)
        );
        assert_eq!((error.len, error.olen), (8, 0));
        assert_eq!(error.flags & (FI_MSG | FI_RECV), FI_MSG | FI_RECV);
    };
    let mut into = [0; 8];
    let stranger = |into: &mut [u8; 8]| {
        exchange(into, &[5; 8]);
        assert_eq!(next(b.rx).unwrap_err(), -(FI_EAVAIL as isize));
    };
    let mut room = [0xeeu8; 512];
    let mut cut = fi_cq_err_entry {
        err_data: room.as_mut_ptr().cast(),
        err_data_size: 10,
        src_addr: 3,
        ..fi_cq_err_entry::default()
    };
    stranger(&mut into);
    read_error(&mut cut);
    assert_eq!(into, [5; 8], "the message itself was received");
    let mut ours = fi_cq_err_entry {
        // Not to be looked at.
        err_data: std::ptr::dangling_mut(),
        err_data_size: 0,
        ..fi_cq_err_entry::default()
    };
    stranger(&mut into);
    read_error(&mut ours);
    // SAFETY: an address has at least that many bytes.
    let start = unsafe { std::slice::from_raw_parts(ours.err_data.cast::<u8>(), 10) };
    if old {
        assert_eq!(ours.err_data_size, 0, "not in their structure");
        assert_eq!((cut.err_data_size, cut.src_addr), (10, 3));
        assert!(room.iter().all(|byte| *byte == 0xee));
    } else {
        // A socket address begins with its family, so a part of one would be no address.
        let fit = if is_of_sockets(format) { 0 } else { 10 };
        assert_eq!((cut.err_data_size, cut.src_addr), (fit, u64::MAX));
        assert_eq!((&room[..fit], room[fit]), (&start[..fit], 0xee));
    }
    let own = name_of(a.ep);
    if format == FI_ADDR_STR {
        // SAFETY: an address in text is a string.
        let text = unsafe { CStr::from_ptr(ours.err_data.cast()) };
        assert!(text.to_bytes().starts_with(b"ferro://"), "{text:?}");
    } else if is_of_sockets(format) {
        assert_eq!(start[..2], NATIVE_FAMILY.to_ne_bytes());
        assert!(old || ours.err_data_size == NATIVE_LEN);
    } else {
        assert_eq!(start[..2], own[..2]);
        assert!(old || ours.err_data_size == own.len());
    }
    let addr = insert_as(format, b.av, ours.err_data);
    if is_of_sockets(format) {
        let (mut back, mut len) = ([0u8; 100], 100);
        // SAFETY: as fi_av(3) has it.
        let found = unsafe {
            let back = back.as_mut_ptr().cast();
            call!(b.av, ops.lookup(addr, back, &raw mut len))
        };
        assert_eq!((found, len), (0, NATIVE_LEN));
        assert_eq!(&back[..10], start);
    }
    exchange(&mut into, &[6; 8]);
    assert_eq!(next_from(b.rx).1, addr);
    assert_eq!(into, [6; 8]);
    a.close();
    b.close();
    opened.close();
}

fn is_of_sockets(format: u32) -> bool {
    [FI_SOCKADDR, FI_SOCKADDR_IN].contains(&format)
}

/// `fi_av_insert` of one address in a format: of text, it takes an array of strings.
fn insert_as(format: u32, av: *mut fid_av, name: *const c_void) -> fi_addr_t {
    match format {
        FI_ADDR_STR => insert_bytes(av, (&raw const name).cast()),
        _ => insert_bytes(av, name),
    }
}

/// Queues, counters and event queues with a descriptor: asked for with `fi_trywait`, readable when
/// something comes.
#[test]
fn descriptors() {
    alone("descriptors", |info| {
        let mut waits = shape();
        waits.cq.wait_obj = fi_wait_obj::FI_WAIT_FD;
        waits.cntr.wait_obj = fi_wait_obj::FI_WAIT_FD;
        let two = Two::open(info, waits);
        let (queue, counter): (*mut fid, *mut fid) = (two.b.rx.cast(), two.b.received.cast());
        for fid in [queue, counter] {
            let mut kind = fi_wait_obj::FI_WAIT_NONE;
            assert_eq!(control(fid, FI_GETWAITOBJ, (&raw mut kind).cast()), 0);
            assert_eq!(kind, fi_wait_obj::FI_WAIT_FD);
        }
        let (of_queue, of_counter) = (descriptor(queue), descriptor(counter));
        let mut into = [0u8; 8];
        // The first makes the link.
        two.b.receive(&mut into, 0, 1);
        two.a.senddata(&[1; 8], 0, two.to_b, 0);
        next(two.b.rx).unwrap();
        next(two.a.tx).unwrap();
        count(two.b.received);
        for round in 0..3 {
            two.b.receive(&mut into, 0, 1);
            let mut both = [queue, counter];
            // SAFETY: a list of two.
            let tried = unsafe { call!(two.opened.fabric, ops.trywait(both.as_mut_ptr(), 2)) };
            assert_eq!(tried, 0, "round {round}");
            assert!(!readable(of_queue) && !readable(of_counter));
            two.a.senddata(&[1; 8], 0, two.to_b, 0);
            next(two.a.tx).unwrap();
            assert!(readable(of_queue) && readable(of_counter));
            let again = -libc::EAGAIN;
            assert_eq!(try_wait(&two.opened, queue), again);
            assert_eq!(try_wait(&two.opened, counter), again);
            assert_eq!(count(two.b.received), round + 2);
            next(two.b.rx).unwrap();
        }
        // A signal, too.
        assert_eq!(try_wait(&two.opened, queue), 0);
        // SAFETY: the queue is open.
        assert_eq!(unsafe { call!(two.b.rx, ops.signal()) }, 0);
        assert!(readable(of_queue));

        let mut eq = null_mut();
        let mut attr = fi_eq_attr {
            flags: FI_WRITE,
            wait_obj: fi_wait_obj::FI_WAIT_FD,
            ..fi_eq_attr::default()
        };
        // SAFETY: as fi_eq(3) has it.
        unsafe {
            let opened = call!(
                two.opened.fabric,
                ops.eq_open(&raw mut attr, &raw mut eq, null_mut())
            );
            assert_eq!(opened, 0);
            let fd = descriptor(eq.cast());
            assert_eq!(try_wait(&two.opened, eq.cast()), 0);
            assert!(!readable(fd));
            let (mut event, mut bytes) = (0, [7u8; 4]);
            let wrote = call!(eq, ops.write(FI_NOTIFY, bytes.as_ptr().cast(), 4, 0));
            assert_eq!(wrote, 4);
            assert!(readable(fd));
            assert_eq!(try_wait(&two.opened, eq.cast()), -libc::EAGAIN);
            let read = call!(
                eq,
                ops.read(&raw mut event, bytes.as_mut_ptr().cast(), 4, 0)
            );
            assert_eq!((read, event), (4, FI_NOTIFY));
            assert!(!readable(fd));
        }
        assert_eq!(close(eq.cast()), 0);
        two.close();
        // Of those without one there is none to be had.
        let two = Two::open(info, shape());
        let mut fd = -1;
        for fid in [two.b.rx.cast::<fid>(), two.b.received.cast()] {
            assert_eq!(
                control(fid, FI_GETWAIT, (&raw mut fd).cast()),
                -libc::ENODATA
            );
            assert_eq!(try_wait(&two.opened, fid), -libc::EINVAL);
        }
        two.close();
    });
}

/// The processor that a queue signals is a hint; other flags of a queue there are none.
#[test]
fn an_affinity_is_a_hint() {
    alone("an_affinity_is_a_hint", |info| {
        let opened = Opened::new(info);
        for (flags, code) in [(FI_AFFINITY, 0), (FI_AFFINITY | FI_WRITE, -FI_EBADFLAGS)] {
            let (domain, mut cq) = (opened.domain, null_mut());
            let mut attr = fi_cq_attr {
                flags,
                signaling_vector: 3,
                ..fi_cq_attr::default()
            };
            // SAFETY: as fi_cq(3) has it.
            let opened =
                unsafe { call!(domain, ops.cq_open(&raw mut attr, &raw mut cq, null_mut())) };
            assert_eq!(opened, code);
            if code == 0 {
                assert_eq!(close(cq.cast()), 0);
            }
        }
        opened.close();
    });
}

/// `fi_cq_sread` of a queue with `FI_CQ_COND_THRESHOLD` waits for the number of entries that the
/// caller gives, by value or by a pointer to it.
#[test]
fn thresholds() {
    everywhere("thresholds", |info| {
        let mut waits = shape();
        waits.cq.wait_obj = fi_wait_obj::FI_WAIT_UNSPEC;
        waits.cq.wait_cond = fi_cq_wait_cond::FI_CQ_COND_THRESHOLD;
        let two = Two::open(info, waits);
        let mut into = [[0u8; 8]; 4];
        let send = |n: usize, into: &mut [[u8; 8]; 4]| {
            for into in &mut into[..n] {
                two.b.receive(into, 0, 1);
                two.a.senddata(&[1; 8], 0, two.to_b, 0);
            }
        };
        let wait_for = |cond: *const c_void, timeout: c_int| {
            let mut out = [fi_cq_tagged_entry::default(); 4];
            let since = Instant::now();
            // SAFETY: there is room for four; the condition is a number, or where one is.
            let n = unsafe {
                let to = out.as_mut_ptr().cast();
                call!(two.b.rx, ops.sread(to, 4, cond, timeout))
            };
            (
                n,
                since.elapsed() >= Duration::from_millis(timeout.max(0) as u64),
            )
        };
        let by_value = |least: usize, timeout| wait_for(without_provenance(least), timeout);
        let by_address = |least: usize, timeout| wait_for((&raw const least).cast(), timeout);
        let ways: [&dyn Fn(usize, c_int) -> (isize, bool); 2] = [&by_value, &by_address];
        for wait in ways {
            send(3, &mut into);
            assert_eq!(wait(3, -1).0, 3);
            send(2, &mut into);
            assert_eq!(wait(3, 20), (2, true));
            assert_eq!(wait(3, 20), (EAGAIN, true));
        }
        // Without a condition, one is enough.
        send(1, &mut into);
        let mut out = [fi_cq_tagged_entry::default(); 4];
        // SAFETY: there is room for four.
        let n = unsafe { call!(two.b.rx, ops.sread(out.as_mut_ptr().cast(), 4, null(), -1)) };
        assert_eq!(n, 1);
        two.close();
    });
}

/// With `FI_SELECTIVE_COMPLETION` only operations complete that request it, by a flag of theirs or
/// of the endpoint; all count.
#[test]
fn selective_completion() {
    everywhere("selective_completion", |info| {
        let mut selective = shape();
        selective.tx_flags = FI_SELECTIVE_COMPLETION;
        let two = Two::open(info, selective);
        let mut into = vec![[0u8; 8]; 8];
        for into in &mut into {
            two.b.receive(into, 0, 1);
        }
        let bytes = [1u8; 8];
        let mut sent = 0;
        let mut counted = |asks: bool| {
            sent += 1;
            let until = Instant::now() + PATIENCE;
            while count(two.a.sent) < sent {
                assert!(Instant::now() < until, "a send is not counted");
            }
            match asks {
                true => assert_eq!(next(two.a.tx).unwrap().flags & FI_SEND, FI_SEND),
                false => assert_eq!(read(two.a.tx).unwrap_err(), EAGAIN),
            }
        };
        two.a.senddata(&bytes, 0, two.to_b, 0);
        counted(false);
        assert_eq!(two.a.sendmsg(&bytes, two.to_b, 0, FI_COMPLETION), 0);
        counted(true);
        assert_eq!(two.a.sendmsg(&bytes, two.to_b, 0, 0), 0);
        counted(false);
        let fid: *mut fid = two.a.ep.cast();
        let mut flags = FI_TRANSMIT;
        assert_eq!(control(fid, FI_GETOPSFLAG, (&raw mut flags).cast()), 0);
        assert_eq!(flags & FI_COMPLETION, 0);
        flags = FI_TRANSMIT | FI_COMPLETION;
        assert_eq!(control(fid, FI_SETOPSFLAG, (&raw mut flags).cast()), 0);
        flags = FI_TRANSMIT;
        assert_eq!(control(fid, FI_GETOPSFLAG, (&raw mut flags).cast()), 0);
        assert_eq!(flags, FI_COMPLETION);
        two.a.senddata(&bytes, 0, two.to_b, 0);
        counted(true);
        // Calls that take flags do not look at those of the endpoint.
        assert_eq!(two.a.sendmsg(&bytes, two.to_b, 0, 0), 0);
        counted(false);
        two.close();
    });
}

/// A delivered message is there, and a fence waits; the offer lists the levels of the domain.
#[test]
fn levels_and_fences() {
    everywhere("levels_and_fences", |info| {
        let two = Two::open(info, shape());
        let (slow, fast) = (vec![1u8; 100_000], [2u8; 8]);
        let level = FI_COMPLETION | FI_DELIVERY_COMPLETE;
        assert_eq!(two.a.sendmsg(&fast, two.to_b, 1, level), 0);
        assert_eq!(two.a.sendmsg(&slow, two.to_b, 2, FI_COMPLETION), 0);
        let fenced = FI_COMPLETION | FI_FENCE;
        assert_eq!(two.a.sendmsg(&fast, two.to_b, 3, fenced), 0);
        for _ in 0..300 {
            assert_eq!(read(two.a.tx).unwrap_err(), EAGAIN);
            assert_eq!(read(two.b.rx).unwrap_err(), EAGAIN);
        }
        let (mut third, mut second, mut first) = ([0u8; 8], vec![0u8; 100_000], [0u8; 8]);
        two.b.receive(&mut third, 3, 33);
        two.b.receive(&mut second, 2, 32);
        for _ in 0..300 {
            // The last delivered message keeps the fence shut.
            if let Ok(done) = read(two.b.rx) {
                assert_eq!(done.op_context as usize, 32);
            }
        }
        assert_eq!(third, [0; 8]);
        two.b.receive(&mut first, 1, 31);
        let mut done: Vec<usize> = Vec::new();
        while !done.contains(&33) {
            done.push(next(two.b.rx).unwrap().op_context as usize);
        }
        assert!(done.contains(&31), "{done:?}");
        for _ in 0..3 {
            next(two.a.tx).unwrap();
        }
        assert_eq!((first, third), (fast, fast));
        assert!(second == slow);
        two.close();
    });
}

/// An application that requests automatic progress gets it in the offer and in the domain.
#[test]
fn automatic_progress() {
    alone("automatic_progress", |info| {
        // SAFETY: the offer is the test's; both views of the union are the same number.
        unsafe {
            let domain = &mut *(*info.info).domain_attr;
            domain.__bindgen_anon_1.data_progress = fi_progress::FI_PROGRESS_AUTO;
        }
        let two = Two::open(info, shape());
        let mut into = vec![0u8; 300_000];
        two.b.receive(&mut into, 1, 1);
        let bytes = vec![8u8; 300_000];
        assert_eq!(two.a.sendmsg(&bytes, two.to_b, 1, FI_COMPLETION), 0);
        let until = Instant::now() + PATIENCE;
        // With no call: the last bytes come last.
        let last = &raw const into[299_999];
        // SAFETY: it is a byte of the buffer.
        while unsafe { last.read_volatile() } != 8 {
            assert!(Instant::now() < until, "nothing goes on without a call");
            std::thread::yield_now();
        }
        next(two.b.rx).unwrap();
        next(two.a.tx).unwrap();
        two.close();
    });
}

/// A counter of operations and one of bytes (`FI_CNTR_EVENTS_BYTES`) count successes, failures and
/// the application's own additions, and threads wait for them (fi_cntr(3)).
#[test]
fn counters() {
    everywhere("counters", |info| {
        for events in [
            fi_cntr_events::FI_CNTR_EVENTS_COMP,
            fi_cntr_events::FI_CNTR_EVENTS_BYTES,
        ] {
            let mut counted = shape();
            counted.cntr.events = events;
            counted.cntr.wait_obj = fi_wait_obj::FI_WAIT_UNSPEC;
            let two = Two::open(info, counted);
            let of = |operations: u64, bytes: u64| match events {
                fi_cntr_events::FI_CNTR_EVENTS_COMP => operations,
                _ => bytes,
            };
            let mut bytes = 0;
            for (n, len) in [0usize, 8, 1000, 20_000].into_iter().enumerate() {
                let mut into = vec![0u8; len];
                two.b.receive(&mut into, 1, 1);
                two.a.senddata(&vec![1; len], 5, two.to_b, 1);
                next(two.b.rx).unwrap();
                next(two.a.tx).unwrap();
                bytes += len as u64;
                let sum = of(n as u64 + 1, bytes);
                assert_eq!((count(two.a.sent), count(two.b.received)), (sum, sum));
            }
            let sum = count(two.b.received);
            assert_eq!(wait(two.b.received, sum, -1), 0);
            assert_eq!(wait(two.b.received, sum + 1, 5), -libc::ETIMEDOUT);
            // A failure is one error, whatever its size, and ends a wait that has begun.
            let waits = Address(two.b.received as usize);
            let mut failed = 0;
            std::thread::scope(|scope| {
                let waiter = scope.spawn(move || wait(waits.get(), sum + 1, 60_000));
                let until = Instant::now() + PATIENCE / 2;
                while !waiter.is_finished() {
                    let mut short = [0u8; 3];
                    two.b.receive(&mut short, 1, 1);
                    two.a.senddata(&[1; 8], 5, two.to_b, 1);
                    failed += 1;
                    while errors(two.b.received) < failed {
                        assert!(Instant::now() < until, "a failure is not counted");
                    }
                    assert!(Instant::now() < until, "no failure ends the wait");
                    std::thread::yield_now();
                }
                assert_eq!(waiter.join().unwrap(), -FI_EAVAIL);
            });
            assert_eq!(count(two.b.received), sum);
            let cntr = two.b.received;
            // SAFETY: the counter is open.
            unsafe {
                assert_eq!(call!(cntr, ops.add(5)), 0);
                assert_eq!(call!(cntr, ops.adderr(7)), 0);
                assert_eq!((count(cntr), errors(cntr)), (sum + 5, failed + 7));
                assert_eq!(call!(cntr, ops.set(u64::MAX)), 0);
                assert_eq!(call!(cntr, ops.seterr(0)), 0);
                assert_eq!((count(cntr), errors(cntr)), (u64::MAX, 0));
            }
            two.close();
        }
    });
}

/// `fi_cq_signal` ends a wait of another thread, and one that comes later.
#[test]
fn signals() {
    everywhere("signals", |info| {
        let mut waits = shape();
        waits.cq.wait_obj = fi_wait_obj::FI_WAIT_UNSPEC;
        let two = Two::open(info, waits);
        let queue = Address(two.b.rx as usize);
        let sleep = move || {
            let mut out = fi_cq_tagged_entry::default();
            let cq: *mut fid_cq = queue.get();
            // SAFETY: there is room for one.
            unsafe { call!(cq, ops.sread((&raw mut out).cast(), 1, null(), 60_000)) }
        };
        for _ in 0..5 {
            let since = Instant::now();
            let sleeper = std::thread::spawn(sleep);
            // SAFETY: the queue is open.
            assert_eq!(unsafe { call!(two.b.rx, ops.signal()) }, 0);
            assert_eq!(sleeper.join().unwrap(), EAGAIN);
            assert!(since.elapsed() < PATIENCE / 2, "the signal woke nobody");
        }
        two.close();
    });
}

/// An object of libfabric's, which a thread may use that did not open it (`FI_THREAD_SAFE`).
#[derive(Clone, Copy)]
struct Address(usize);

impl Address {
    fn get<T>(self) -> *mut T {
        self.0 as *mut T
    }
}

/// `fi_cntr_wait`.
fn wait(cntr: *mut fid_cntr, threshold: u64, timeout_ms: c_int) -> c_int {
    // SAFETY: the counter is open.
    unsafe { call!(cntr, ops.wait(threshold, timeout_ms)) }
}

/// `fi_cntr_readerr`.
fn errors(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: the counter is open.
    unsafe { call!(cntr, ops.readerr()) }
}
