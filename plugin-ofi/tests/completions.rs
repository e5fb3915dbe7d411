//! Completions as an application of libfabric's sees them: fi_cq(3), fi_cntr(3), fi_poll(3), fi_endpoint(3).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[macro_use]
mod client;
mod support;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use client::{Info, Libfabric, Opened, close};
use ferro_fi::abi::{
    FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_EAVAIL, FI_ENABLE, FI_ETRUNC, FI_FENCE, FI_GETOPSFLAG,
    FI_GETWAIT, FI_GETWAITOBJ, FI_NOTIFY, FI_RECV, FI_REMOTE_CQ_DATA, FI_SELECTIVE_COMPLETION,
    FI_SEND, FI_SETOPSFLAG, FI_TAGGED, FI_TRANSMIT, FI_WRITE, fi_addr_t, fi_av_attr, fi_av_type,
    fi_cntr_attr, fi_cq_attr, fi_cq_data_entry, fi_cq_entry, fi_cq_err_entry, fi_cq_format,
    fi_cq_msg_entry, fi_cq_tagged_entry, fi_cq_wait_cond, fi_eq_attr, fi_msg_tagged, fi_progress,
    fi_threading, fi_wait_obj, fid, fid_av, fid_cntr, fid_cq, fid_ep,
};
use support::plugin::Plugin;
use support::skip;

/// A process has one libfabric: each test has one of its own.
const CHILD: &str = "FERRO_TEST_COMPLETIONS";

const PATIENCE: Duration = Duration::from_secs(60);
const EAGAIN: isize = -(libc::EAGAIN as isize);

fn alone(test: &str, body: impl FnOnce(&Info<'_>)) {
    if std::env::var_os(CHILD).is_some() {
        let Some(libfabric) = Libfabric::load() else {
            return skip("there is no libfabric 2 here (libfabric1, or ci/mpich)");
        };
        return body(&libfabric.discover("shm", fi_threading::FI_THREAD_SAFE));
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1");
    let plugin = Plugin::new();
    plugin.choose(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(line) = text.lines().find(|line| line.starts_with("SKIP")) {
        println!("{line}");
    }
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// An endpoint with a queue and a counter for each direction, as attributes and flags say.
struct Side {
    ep: *mut fid_ep,
    av: *mut fid_av,
    tx: *mut fid_cq,
    rx: *mut fid_cq,
    sent: *mut fid_cntr,
    received: *mut fid_cntr,
}

#[derive(Clone, Copy)]
struct Shape {
    cq: fi_cq_attr,
    cntr: fi_cntr_attr,
    /// Of the binding of the queue of sends.
    tx_flags: u64,
}

fn shape() -> Shape {
    Shape {
        cq: fi_cq_attr {
            format: fi_cq_format::FI_CQ_FORMAT_TAGGED,
            ..fi_cq_attr::default()
        },
        cntr: fi_cntr_attr::default(),
        tx_flags: 0,
    }
}

impl Side {
    fn open(opened: &Opened, info: &Info<'_>, mut shape: Shape) -> Self {
        let (mut av, mut ep) = (null_mut(), null_mut());
        let (mut tx, mut rx, mut sent, mut received) =
            (null_mut(), null_mut(), null_mut(), null_mut());
        // SAFETY: as the manual pages have it.
        unsafe {
            let domain = opened.domain;
            let mut attr = fi_av_attr {
                type_: fi_av_type::FI_AV_TABLE,
                ..fi_av_attr::default()
            };
            assert_eq!(
                call!(domain, ops.av_open(&raw mut attr, &raw mut av, null_mut())),
                0
            );
            for cq in [&raw mut tx, &raw mut rx] {
                assert_eq!(
                    call!(domain, ops.cq_open(&raw mut shape.cq, cq, null_mut())),
                    0
                );
            }
            for cntr in [&raw mut sent, &raw mut received] {
                let opened = call!(domain, ops.cntr_open(&raw mut shape.cntr, cntr, null_mut()));
                assert_eq!(opened, 0);
            }
            assert_eq!(
                call!(domain, ops.endpoint(info.info, &raw mut ep, null_mut())),
                0
            );
            let fid: *mut fid = ep.cast();
            let bind = (*(*fid).ops).bind.unwrap();
            assert_eq!(bind(fid, av.cast(), 0), 0);
            assert_eq!(bind(fid, tx.cast(), FI_TRANSMIT | shape.tx_flags), 0);
            assert_eq!(bind(fid, rx.cast(), FI_RECV), 0);
            assert_eq!(bind(fid, sent.cast(), FI_SEND), 0);
            assert_eq!(bind(fid, received.cast(), FI_RECV), 0);
            assert_eq!(control(fid, FI_ENABLE, null_mut()), 0);
        }
        Self {
            ep,
            av,
            tx,
            rx,
            sent,
            received,
        }
    }

    fn receive(&self, into: &mut [u8], tag: u64, context: usize) {
        // SAFETY: the tests keep the memory until it completes.
        let posted = unsafe {
            let table = &*(*self.ep).tagged;
            let (ptr, len) = (into.as_mut_ptr().cast(), into.len());
            table.recv.unwrap()(
                self.ep,
                ptr,
                len,
                null_mut(),
                u64::MAX,
                tag,
                0,
                context as *mut c_void,
            )
        };
        assert_eq!(posted, 0);
    }

    fn senddata(&self, bytes: &[u8], data: u64, to: fi_addr_t, tag: u64) {
        let until = Instant::now() + PATIENCE;
        loop {
            // SAFETY: the tests keep the bytes until it completes.
            let sent = unsafe {
                let table = &*(*self.ep).tagged;
                let (ptr, len) = (bytes.as_ptr().cast(), bytes.len());
                table.senddata.unwrap()(
                    self.ep,
                    ptr,
                    len,
                    null_mut(),
                    data,
                    to,
                    tag,
                    3 as *mut c_void,
                )
            };
            if sent == 0 {
                return;
            }
            assert_eq!(sent, EAGAIN);
            assert!(Instant::now() < until, "no room for a send");
            count(self.sent);
        }
    }

    fn sendmsg(&self, bytes: &[u8], to: fi_addr_t, tag: u64, flags: u64) -> isize {
        let iov = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let msg = fi_msg_tagged {
            msg_iov: &raw const iov,
            desc: null_mut(),
            iov_count: 1,
            addr: to,
            tag,
            ignore: 0,
            context: 4 as *mut c_void,
            data: 0,
        };
        // SAFETY: the tests keep the bytes until it completes.
        unsafe { (*(*self.ep).tagged).sendmsg.unwrap()(self.ep, &raw const msg, flags) }
    }

    fn close(self) {
        for fid in [
            self.ep.cast(),
            self.tx.cast(),
            self.rx.cast(),
            self.sent.cast(),
            self.received.cast(),
            self.av.cast(),
        ] {
            assert_eq!(close(fid), 0);
        }
    }
}

struct Two {
    opened: Opened,
    a: Side,
    b: Side,
    to_b: fi_addr_t,
    to_a: fi_addr_t,
}

impl Two {
    fn open(info: &Info<'_>, shape: Shape) -> Self {
        let opened = Opened::new(info);
        let (a, b) = (
            Side::open(&opened, info, shape),
            Side::open(&opened, info, shape),
        );
        let to_b = insert(a.av, b.ep);
        let to_a = insert(b.av, a.ep);
        Self {
            opened,
            a,
            b,
            to_b,
            to_a,
        }
    }

    fn close(self) {
        self.a.close();
        self.b.close();
        self.opened.close();
    }
}

fn insert(av: *mut fid_av, of: *mut fid_ep) -> fi_addr_t {
    let (mut name, mut len, mut addr) = ([0u8; 64], 64, 0);
    // SAFETY: as fi_getname(3) and fi_av(3) have it.
    unsafe {
        let getname = (*(*of).cm).getname.unwrap();
        assert_eq!(
            getname(of.cast(), name.as_mut_ptr().cast(), &raw mut len),
            0
        );
        let inserted = call!(
            av,
            ops.insert(name.as_ptr().cast(), 1, &raw mut addr, 0, null_mut())
        );
        assert_eq!(inserted, 1);
    }
    addr
}

/// `fi_control`.
fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: the object is open, the argument what the command asks for.
    unsafe { (*(*fid).ops).control.unwrap()(fid, command, arg) }
}

/// `fi_cntr_read`.
fn count(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: the counter is open.
    unsafe { call!(cntr, ops.read()) }
}

/// `fi_cq_read` of one tagged entry.
fn read(cq: *mut fid_cq) -> Result<fi_cq_tagged_entry, isize> {
    let mut entry = fi_cq_tagged_entry::default();
    // SAFETY: there is room for one of the longest format.
    match unsafe { call!(cq, ops.read((&raw mut entry).cast(), 1)) } {
        1 => Ok(entry),
        error => Err(error),
    }
}

fn next(cq: *mut fid_cq) -> Result<fi_cq_tagged_entry, isize> {
    let until = Instant::now() + PATIENCE;
    loop {
        match read(cq) {
            Err(EAGAIN) => assert!(Instant::now() < until, "nothing completes"),
            other => return other,
        }
    }
}

/// `fi_trywait` of one.
fn try_wait(opened: &Opened, fid: *mut fid) -> c_int {
    let mut fids = [fid];
    // SAFETY: a list of one.
    unsafe { call!(opened.fabric, ops.trywait(fids.as_mut_ptr(), 1)) }
}

fn descriptor(fid: *mut fid) -> c_int {
    let mut fd = -1;
    assert_eq!(control(fid, FI_GETWAIT, (&raw mut fd).cast()), 0);
    fd
}

fn readable(fd: c_int) -> bool {
    let mut fds = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut fds, 1, 0) == 1 }
}

/// Each format has its fields, and nothing is written behind them.
#[test]
fn each_format_has_its_fields() {
    alone("each_format_has_its_fields", |info| {
        for (format, size) in [
            (fi_cq_format::FI_CQ_FORMAT_UNSPEC, size_of::<fi_cq_entry>()),
            (fi_cq_format::FI_CQ_FORMAT_CONTEXT, size_of::<fi_cq_entry>()),
            (fi_cq_format::FI_CQ_FORMAT_MSG, size_of::<fi_cq_msg_entry>()),
            (
                fi_cq_format::FI_CQ_FORMAT_DATA,
                size_of::<fi_cq_data_entry>(),
            ),
            (
                fi_cq_format::FI_CQ_FORMAT_TAGGED,
                size_of::<fi_cq_tagged_entry>(),
            ),
        ] {
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

/// A failure is told in its turn, with its fields, and in words; a queue that is too small for what comes loses nothing.
#[test]
fn errors_and_overflow() {
    alone("errors_and_overflow", |info| {
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

/// Queues, counters and event queues with a descriptor: asked for with `fi_trywait`, readable when something comes.
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

/// `fi_cq_sread` of a queue with `FI_CQ_COND_THRESHOLD` waits for as many entries as it is told.
#[test]
fn thresholds() {
    alone("thresholds", |info| {
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
        let wait = |least: usize, timeout: c_int| {
            let mut out = [fi_cq_tagged_entry::default(); 4];
            let since = Instant::now();
            // SAFETY: there is room for four; the condition is a number.
            let n = unsafe {
                let (to, cond) = (out.as_mut_ptr().cast(), (&raw const least).cast());
                call!(two.b.rx, ops.sread(to, 4, cond, timeout))
            };
            (
                n,
                since.elapsed() >= Duration::from_millis(timeout.max(0) as u64),
            )
        };
        send(3, &mut into);
        assert_eq!(wait(3, -1).0, 3);
        send(2, &mut into);
        assert_eq!(wait(3, 20), (2, true));
        assert_eq!(wait(3, 20), (EAGAIN, true));
        // Without a condition, one is enough.
        send(1, &mut into);
        let mut out = [fi_cq_tagged_entry::default(); 4];
        // SAFETY: there is room for four.
        let n = unsafe { call!(two.b.rx, ops.sread(out.as_mut_ptr().cast(), 4, null(), -1)) };
        assert_eq!(n, 1);
        two.close();
    });
}

/// With `FI_SELECTIVE_COMPLETION` only operations complete that ask for it, by a flag of theirs or of the endpoint; all count.
#[test]
fn selective_completion() {
    alone("selective_completion", |info| {
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

/// A delivered message is there, a fence waits; what the domain knows is in its offer.
#[test]
fn levels_and_fences() {
    alone("levels_and_fences", |info| {
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
            // What is delivered last keeps the fence shut.
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

/// Automatic progress is offered to who asks for it, and kept.
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
