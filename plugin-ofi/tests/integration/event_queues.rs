//! Event queues as an application of libfabric's sees them: fi_eq(3).

use crate::{child, client};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use client::{Info, Opened, close};
use ferro_fi::abi::{
    FI_AV_COMPLETE, FI_EAGAIN, FI_EAVAIL, FI_EBADFLAGS, FI_EINVAL, FI_ENODATA, FI_ENOSYS,
    FI_ETOOSMALL, FI_EVENT, FI_GETWAIT, FI_GETWAITOBJ, FI_PEEK, FI_READ, FI_VERSION, FI_WRITE,
    fi_addr_t, fi_av_attr, fi_av_type, fi_eq_attr, fi_eq_entry, fi_eq_err_entry, fi_threading,
    fi_wait_obj, fid, fid_av, fid_eq,
};
use ferrofabric_shm::ShmProvider;

/// The longest wait for an event that must come, in ms.
const PATIENCE: c_int = 30_000;

const ENTRY: isize = size_of::<fi_eq_entry>() as isize;

fn alone(test: &str, body: impl FnOnce(&Info<'_>)) {
    child::alone(test, |libfabric| {
        body(&libfabric.discover(ShmProvider::DOMAIN, fi_threading::FI_THREAD_SAFE));
    });
}

/// An event queue.
#[derive(Clone, Copy)]
struct EventQueue(*mut fid_eq);

// SAFETY: an event queue is for any thread.
unsafe impl Send for EventQueue {}

impl EventQueue {
    fn open(opened: &Opened, flags: u64, wait_obj: fi_wait_obj) -> Result<Self, c_int> {
        let mut attr = fi_eq_attr {
            size: 2,
            flags,
            wait_obj,
            ..fi_eq_attr::default()
        };
        Self::with(opened, &raw mut attr)
    }

    fn with(opened: &Opened, attr: *mut fi_eq_attr) -> Result<Self, c_int> {
        let (fabric, mut eq) = (opened.fabric, null_mut());
        // SAFETY: as fi_eq(3) has it.
        match unsafe { call!(fabric, ops.eq_open(attr, &raw mut eq, null_mut())) } {
            0 => Ok(Self(eq)),
            error => Err(error),
        }
    }

    fn write(self, number: u32, entry: &[u8]) -> isize {
        // SAFETY: as above.
        unsafe {
            call!(
                self.0,
                ops.write(number, entry.as_ptr().cast(), entry.len(), 0)
            )
        }
    }

    /// `fi_eq_read`: the event's number and entry.
    fn read(self, room: usize, flags: u64) -> Result<(u32, Vec<u8>), isize> {
        let (mut number, mut out) = (u32::MAX, vec![0xaa; room + 8]);
        // SAFETY: as above.
        let read = unsafe {
            call!(
                self.0,
                ops.read(&raw mut number, out.as_mut_ptr().cast(), room, flags)
            )
        };
        taken(read, number, out)
    }

    /// `fi_eq_sread`.
    fn sread(self, room: usize, timeout: c_int, flags: u64) -> Result<(u32, Vec<u8>), isize> {
        let (mut number, mut out) = (u32::MAX, vec![0xaa; room + 8]);
        // SAFETY: as above.
        let read = unsafe {
            let at = out.as_mut_ptr().cast();
            call!(self.0, ops.sread(&raw mut number, at, room, timeout, flags))
        };
        taken(read, number, out)
    }

    fn readerr(self, entry: &mut fi_eq_err_entry, flags: u64) -> isize {
        // SAFETY: as above.
        unsafe { call!(self.0, ops.readerr(entry, flags)) }
    }

    fn strerror(self, number: c_int, buf: *mut c_char, len: usize) -> String {
        // SAFETY: as above; the text stays.
        unsafe {
            let said = call!(self.0, ops.strerror(number, null(), buf, len));
            CStr::from_ptr(said).to_str().unwrap().to_owned()
        }
    }

    fn control(self, command: c_int, arg: *mut c_void) -> c_int {
        // SAFETY: as above; `arg` points to the argument of the command.
        unsafe { (*(*self.0).fid.ops).control.unwrap()(self.0.cast(), command, arg) }
    }

    fn close(self) {
        assert_eq!(close(self.0.cast()), 0);
    }
}

fn taken(read: isize, number: u32, mut out: Vec<u8>) -> Result<(u32, Vec<u8>), isize> {
    let len = usize::try_from(read).unwrap_or(0);
    assert!(out[len..].iter().all(|b| *b == 0xaa), "beyond the event");
    out.truncate(len);
    match read < 0 {
        true => Err(read),
        false => Ok((number, out)),
    }
}

fn failed<T>(errno: c_int) -> Result<T, isize> {
    Err(-(errno as isize))
}

/// An asynchronous address vector that is bound to a queue.
fn vector(opened: &Opened, eq: EventQueue) -> *mut fid_av {
    let (domain, mut av) = (opened.domain, null_mut());
    let mut attr = fi_av_attr {
        type_: fi_av_type::FI_AV_TABLE,
        flags: FI_EVENT,
        ..fi_av_attr::default()
    };
    // SAFETY: as fi_av(3) has it.
    unsafe {
        let made = call!(domain, ops.av_open(&raw mut attr, &raw mut av, null_mut()));
        assert_eq!(made, 0);
        let bound = (*(*av).fid.ops).bind.unwrap()(av.cast(), eq.0.cast(), 0);
        assert_eq!(bound, 0);
    }
    av
}

/// Inserts addresses that are none: each gives an error, then the end comes.
fn insert_bad(av: *mut fid_av, bad: &[[u8; 64]], addrs: &mut [fi_addr_t]) {
    // SAFETY: as fi_av(3) has it; the caller keeps the addresses until the end has come.
    let inserted = unsafe {
        let (at, n) = (bad.as_ptr().cast(), bad.len());
        call!(
            av,
            ops.insert(at, n, addrs.as_mut_ptr(), 0, 7 as *mut c_void)
        )
    };
    assert_eq!(inserted, 0);
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

#[test]
fn an_application_writes_events_of_its_own() {
    alone("an_application_writes_events_of_its_own", |info| {
        let opened = Opened::new(info);
        let none = fi_wait_obj::FI_WAIT_NONE;
        let refused = EventQueue::open(&opened, FI_READ, none).err();
        assert_eq!(refused, Some(-FI_EBADFLAGS));
        let deaf = EventQueue::open(&opened, 0, none).unwrap();
        assert_eq!(deaf.write(1, b"x"), -(FI_EINVAL as isize));
        deaf.close();

        let eq = EventQueue::open(&opened, FI_WRITE, none).unwrap();
        assert_eq!(eq.read(64, 0), failed(FI_EAGAIN));
        assert_eq!(
            eq.readerr(&mut fi_eq_err_entry::default(), 0),
            -(FI_EAGAIN as isize)
        );
        let entry = [7; ENTRY as usize];
        assert_eq!(eq.write(1000, &entry), ENTRY);
        assert_eq!(eq.write(1001, b""), 0);
        assert_eq!(eq.write(1002, &[9; 1000]), 1000);
        assert_eq!(
            eq.write(1003, &vec![0; (64 << 10) + 1]),
            -(FI_EINVAL as isize)
        );
        // An event that does not fit stays, and so does one that is only looked at.
        assert_eq!(eq.read(ENTRY as usize - 1, 0), failed(FI_ETOOSMALL));
        for flags in [FI_PEEK, FI_PEEK, 0] {
            assert_eq!(eq.read(64, flags), Ok((1000, entry.to_vec())));
        }
        assert_eq!(eq.read(0, 0), Ok((1001, vec![])));
        assert_eq!(eq.read(1000, 0), Ok((1002, vec![9; 1000])));
        assert_eq!(eq.read(64, 0), failed(FI_EAGAIN));

        // It was opened for two, grows, and loses none; events that are left end with the queue.
        for number in 0..10_000 {
            assert_eq!(eq.write(number, &number.to_ne_bytes()), 4);
        }
        for number in 0..9_000_u32 {
            let bytes = number.to_ne_bytes().to_vec();
            assert_eq!(eq.read(8, 0), Ok((number, bytes)));
        }
        eq.close();
        opened.close();
    });
}

#[test]
fn events_are_waited_for() {
    alone("events_are_waited_for", |info| {
        let opened = Opened::new(info);
        for wait in [fi_wait_obj::FI_WAIT_SET, fi_wait_obj::FI_WAIT_MUTEX_COND] {
            let refused = EventQueue::open(&opened, 0, wait).err();
            assert_eq!(refused, Some(-FI_ENOSYS));
        }
        // Without attributes there is nothing to wait with.
        for eq in [
            EventQueue::with(&opened, null_mut()),
            EventQueue::open(&opened, FI_WRITE, fi_wait_obj::FI_WAIT_NONE),
        ] {
            let eq = eq.unwrap();
            assert_eq!(eq.sread(64, 0, 0), failed(FI_ENOSYS));
            eq.close();
        }
        for wait in [
            fi_wait_obj::FI_WAIT_UNSPEC,
            fi_wait_obj::FI_WAIT_YIELD,
            fi_wait_obj::FI_WAIT_FD,
        ] {
            let eq = EventQueue::open(&opened, FI_WRITE, wait).unwrap();
            let mut object = fi_wait_obj::FI_WAIT_NONE;
            assert_eq!(eq.control(FI_GETWAITOBJ, (&raw mut object).cast()), 0);
            assert_eq!(object, wait);
            for timeout in [0, 20] {
                let start = Instant::now();
                assert_eq!(eq.sread(64, timeout, 0), failed(FI_EAGAIN));
                let least = Duration::from_millis(timeout as u64);
                assert!(start.elapsed() >= least, "{:?}", start.elapsed());
            }
            // A thread that waits for ever has the event as soon as it comes.
            let reader = std::thread::spawn(move || {
                let eq = { eq };
                eq.sread(64, -1, 0)
            });
            assert_eq!(eq.write(5, b"five"), 4);
            assert_eq!(reader.join().unwrap(), Ok((5, b"five".to_vec())));
            assert_eq!(eq.write(6, b"six"), 3);
            for flags in [FI_PEEK, 0] {
                assert_eq!(eq.sread(64, PATIENCE, flags), Ok((6, b"six".to_vec())));
            }
            eq.close();
        }
        opened.close();
    });
}

#[test]
fn the_descriptor_says_when_to_read() {
    alone("the_descriptor_says_when_to_read", |info| {
        let opened = Opened::new(info);
        let eq = EventQueue::open(&opened, FI_WRITE, fi_wait_obj::FI_WAIT_FD).unwrap();
        let try_wait = |eq: EventQueue| {
            let mut fids: [*mut fid; 1] = [eq.0.cast()];
            // SAFETY: a list of one.
            unsafe { call!(opened.fabric, ops.trywait(fids.as_mut_ptr(), 1)) }
        };
        let mut fd = -1;
        assert_eq!(eq.control(FI_GETWAIT, null_mut()), -FI_EINVAL);
        assert_eq!(eq.control(FI_GETWAIT, (&raw mut fd).cast()), 0);
        assert_eq!((readable(fd), try_wait(eq)), (false, 0));
        for number in [1, 2] {
            assert_eq!(eq.write(number, b"x"), 1);
        }
        for number in [1, 2] {
            assert_eq!((readable(fd), try_wait(eq)), (true, -FI_EAGAIN));
            assert_eq!(eq.read(8, FI_PEEK), Ok((number, b"x".to_vec())));
            assert!(readable(fd));
            assert_eq!(eq.read(8, 0), Ok((number, b"x".to_vec())));
        }
        assert_eq!((readable(fd), try_wait(eq)), (false, 0));

        // Errors make it readable as well, and it stays so until they are read.
        let av = vector(&opened, eq);
        let mut addrs = [0];
        insert_bad(av, &[[1; 64]], &mut addrs);
        assert_eq!(eq.sread(64, PATIENCE, 0), failed(FI_EAVAIL));
        assert_eq!((readable(fd), try_wait(eq)), (true, -FI_EAGAIN));
        assert_eq!(close(av.cast()), 0);
        assert!(eq.readerr(&mut fi_eq_err_entry::default(), 0) > 0);
        assert!(readable(fd), "the end is left");
        assert_eq!(eq.read(64, 0).map(|event| event.0), Ok(FI_AV_COMPLETE));
        assert_eq!((readable(fd), try_wait(eq)), (false, 0));
        eq.close();

        let blind = EventQueue::open(&opened, 0, fi_wait_obj::FI_WAIT_UNSPEC).unwrap();
        let asked = blind.control(FI_GETWAIT, (&raw mut fd).cast());
        assert_eq!((asked, try_wait(blind)), (-FI_ENODATA, -FI_EINVAL));
        blind.close();
        opened.close();
    });
}

/// Error data go where the application has room for them, or stay with the queue.
///
/// Covers: AV-7, AV-22
#[test]
fn errors_bring_what_there_is_room_for() {
    alone("errors_bring_what_there_is_room_for", |info| {
        let opened = Opened::new(info);
        let eq = EventQueue::open(&opened, 0, fi_wait_obj::FI_WAIT_UNSPEC).unwrap();
        let av = vector(&opened, eq);
        let mut addrs = [0; 3];
        let bad = [[1; 64]; 3];
        insert_bad(av, &bad, &mut addrs);
        let fid: *mut fid = av.cast();
        // The address vector goes before any of its events is read: they stay.
        assert_eq!(eq.sread(64, PATIENCE, 0), failed(FI_EAVAIL));
        assert_eq!(close(fid), 0);

        let whole = size_of::<fi_eq_err_entry>() as isize;
        let mut entry = fi_eq_err_entry::default();
        assert_eq!(eq.readerr(&mut entry, FI_PEEK), whole);
        assert_eq!((entry.fid, entry.data, entry.err), (fid, 0, FI_EINVAL));
        assert_eq!(entry.context, 7 as *mut c_void);
        // SAFETY: the queue keeps so many bytes until the next error is read.
        let why = unsafe {
            std::slice::from_raw_parts(entry.err_data.cast::<u8>(), entry.err_data_size).to_vec()
        };
        let words = String::from_utf8(why.clone()).unwrap();
        assert!(words.contains("not a native address"), "{words}");
        // The provider's number in words, whole or cut, or in memory that stays.
        let words = eq.strerror(entry.prov_errno, null_mut(), 0);
        assert_eq!(words, "invalid argument");
        let mut text = vec![0x55 as c_char; 512];
        let number = entry.prov_errno;
        assert_eq!(eq.strerror(number, text.as_mut_ptr(), 512), words);
        assert_eq!(eq.strerror(number, text.as_mut_ptr(), 6), words[..5]);

        // Room that is too small is filled; where no room is given for all its size, nothing is
        // written.
        let mut room = [0xaa_u8; 16];
        let mut entry = fi_eq_err_entry {
            err_data: room.as_mut_ptr().cast(),
            err_data_size: 8,
            ..fi_eq_err_entry::default()
        };
        assert_eq!(eq.readerr(&mut entry, 0), whole);
        assert_eq!((entry.data, entry.err_data_size), (0, 8));
        assert_eq!(entry.err_data, room.as_mut_ptr().cast());
        assert_eq!((&room[..8], &room[8..]), (&why[..8], &[0xaa; 8][..]));
        let mut entry = fi_eq_err_entry {
            err_data_size: 8,
            ..fi_eq_err_entry::default()
        };
        assert_eq!(eq.readerr(&mut entry, 0), whole);
        assert_eq!((entry.data, entry.err_data_size), (1, 0));
        let mut large = [0xaa_u8; 512];
        let mut entry = fi_eq_err_entry {
            err_data: large.as_mut_ptr().cast(),
            err_data_size: large.len(),
            ..fi_eq_err_entry::default()
        };
        assert_eq!(eq.readerr(&mut entry, 0), whole);
        assert_eq!((entry.data, entry.err_data_size), (2, why.len()));
        assert!(large[why.len()..].iter().all(|byte| *byte == 0xaa));
        assert_eq!(eq.readerr(&mut entry, 0), -(FI_EAGAIN as isize));
        let (number, end) = eq.read(64, 0).unwrap();
        assert_eq!((number, end.len() as isize), (FI_AV_COMPLETE, ENTRY));
        assert_eq!(addrs, [fi_addr_t::MAX; 3]);
        eq.close();
        opened.close();
    });
}

/// Before version 1.5 the room for error data was the queue's, whatever the entry says of the
/// caller's (fi_eq(3)).
#[test]
fn errors_of_old_applications_bring_their_data() {
    alone("errors_of_old_applications_bring_their_data", |info| {
        // SAFETY: the offer is the test's.
        unsafe { (*(*info.info).fabric_attr).api_version = FI_VERSION(1, 4) };
        let opened = Opened::new(info);
        let eq = EventQueue::open(&opened, 0, fi_wait_obj::FI_WAIT_UNSPEC).unwrap();
        let av = vector(&opened, eq);
        let mut addrs = [0];
        insert_bad(av, &[[1; 64]], &mut addrs);
        assert_eq!(eq.sread(64, PATIENCE, 0), failed(FI_EAVAIL));
        let mut room = [0xaa_u8; 512];
        let mut entry = fi_eq_err_entry {
            err_data: room.as_mut_ptr().cast(),
            err_data_size: 512,
            ..fi_eq_err_entry::default()
        };
        let read = eq.readerr(&mut entry, 0);
        assert_eq!(read, size_of::<fi_eq_err_entry>() as isize);
        assert_eq!(entry.err, FI_EINVAL);
        assert!(entry.err_data_size > 0 && entry.err_data_size < 512);
        assert!(room.iter().all(|byte| *byte == 0xaa));
        assert!(!entry.err_data.is_null() && entry.err_data != room.as_mut_ptr().cast());
        let words = eq.strerror(entry.prov_errno, null_mut(), 0);
        assert_eq!(words, "invalid argument");
        assert_eq!(close(av.cast()), 0);
        eq.close();
        opened.close();
    });
}
