//! Two endpoints of a process, as attributes and flags say, and tests that have a process of their
//! own.

use std::cell::RefCell;
use std::ffi::{CStr, c_int, c_void};
use std::process::Command;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use ferro_fi::abi::{
    FI_ENABLE, FI_GETWAIT, FI_RECV, FI_SEND, FI_TRANSMIT, fi_addr_t, fi_av_attr, fi_av_type,
    fi_cntr_attr, fi_cq_attr, fi_cq_data_entry, fi_cq_entry, fi_cq_format, fi_cq_msg_entry,
    fi_cq_tagged_entry, fi_msg_tagged, fi_threading, fid, fid_av, fid_cntr, fid_cq, fid_ep,
};
use ferrofabric_shm::ShmProvider;

use crate::child;
use crate::client::{Info, Libfabric, Opened, close};
use crate::support::has_device;
use crate::support::tool::Tool;

/// A wait that takes so long hangs.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// A data path call with this result is to be tried again.
pub const EAGAIN: isize = -(libc::EAGAIN as isize);

/// The formats of completions, each with the bytes of an entry.
pub const FORMATS: [(fi_cq_format, usize); 4] = [
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
];

/// Says to the process of a test which domain it is to have; nothing: any.
pub const DOMAIN: &str = "FERRO_TEST_DOMAIN";
pub const SHM: &[(&str, &str)] = &[(DOMAIN, ShmProvider::DOMAIN)];
const VERBS: &[(&str, &str)] = &[(DOMAIN, ""), ("FERRO_SHM", "off")];

/// Runs a test over shared memory, in a process of its own.
pub fn alone(test: &str, body: impl FnOnce(&Info<'_>)) {
    if !child::is_here() {
        return child::run(test, SHM);
    }
    let domain = std::env::var(DOMAIN).unwrap();
    child::alone(test, |libfabric| {
        body(&libfabric.discover(&domain, fi_threading::FI_THREAD_SAFE));
    });
}

/// Runs a test over shared memory, and over verbs: on the device of this machine, or else on the
/// fake device.
pub fn everywhere(test: &str, body: impl FnOnce(&Info<'_>)) {
    everywhere_as(test, |_| {}, body);
}

/// Runs a test over shared memory under a tool, in a process of its own that is prepared.
pub fn under(
    tool: Tool,
    test: &str,
    prepare: impl FnOnce(&mut Command),
    body: impl FnOnce(&Info<'_>),
) {
    match child::is_here() {
        true => alone(test, body),
        false => child::run_under(tool, test, SHM, prepare),
    }
}

/// As `everywhere`, in processes that are prepared.
pub fn everywhere_as(test: &str, prepare: fn(&mut Command), body: impl FnOnce(&Info<'_>)) {
    under(Tool::asked_for(), test, prepare, body);
    if !child::is_here() {
        child::run_over_verbs(Tool::asked_for(), test, VERBS, prepare);
    }
}

/// As `everywhere`, for tests that select their domain themselves: by name, none for any.
pub fn asking_everywhere(test: &str, body: impl FnOnce(&Libfabric, &str)) {
    asking_everywhere_with(&[], test, body);
}

/// As `asking_everywhere`, with settings.
pub fn asking_everywhere_with(
    settings: &[(&str, &str)],
    test: &str,
    body: impl FnOnce(&Libfabric, &str),
) {
    if child::is_here() {
        let domain = std::env::var(DOMAIN).unwrap();
        return child::alone(test, |libfabric| body(libfabric, &domain));
    }
    child::run(test, &[SHM, settings].concat());
    child::run_over_verbs(Tool::asked_for(), test, &[VERBS, settings].concat(), |_| {});
}

/// Runs a test over verbs alone.
pub fn over_verbs(test: &str, body: impl FnOnce(&Libfabric)) {
    match child::is_here() {
        true => child::alone(test, body),
        false => child::run(test, VERBS),
    }
}

/// Whether this process is to be quick: an emulated processor, or the fake device, needs long for
/// a message.
pub fn is_slow() -> bool {
    has_device() || std::env::var(DOMAIN).as_deref() != Ok(ShmProvider::DOMAIN)
}

/// Whether the domain is the one of shared memory.
///
/// # Safety
///
/// The offer has a domain's name.
pub unsafe fn is_shm(info: &Info<'_>) -> bool {
    // SAFETY: as the caller says.
    let name = unsafe { CStr::from_ptr((*(*info.info).domain_attr).name) };
    name.to_bytes() == ShmProvider::DOMAIN.as_bytes()
}

/// An endpoint with a queue and a counter for each direction, as attributes and flags say.
pub struct Side {
    pub ep: *mut fid_ep,
    pub av: *mut fid_av,
    pub tx: *mut fid_cq,
    pub rx: *mut fid_cq,
    pub sent: *mut fid_cntr,
    pub received: *mut fid_cntr,
    /// The bytes of all sends, which stay until the endpoint is closed: a send may wait for its
    /// first link after its call has returned.
    sent_bytes: RefCell<Vec<Box<[u8]>>>,
}

#[derive(Clone, Copy)]
pub struct Shape {
    pub cq: fi_cq_attr,
    pub cntr: fi_cntr_attr,
    /// Of the binding of the queue of sends.
    pub tx_flags: u64,
    /// The context of the address vector.
    pub of_av: *mut c_void,
    pub av_flags: u64,
}

pub fn shape() -> Shape {
    Shape {
        cq: fi_cq_attr {
            format: fi_cq_format::FI_CQ_FORMAT_TAGGED,
            ..fi_cq_attr::default()
        },
        cntr: fi_cntr_attr::default(),
        tx_flags: 0,
        of_av: null_mut(),
        av_flags: 0,
    }
}

impl Side {
    pub fn open(opened: &Opened, info: &Info<'_>, shape: Shape) -> Self {
        Self::open_for(opened, info, shape, [null_mut(); 4])
    }

    /// As `open`, with the contexts of both queues and of both counters.
    pub fn open_for(
        opened: &Opened,
        info: &Info<'_>,
        mut shape: Shape,
        contexts: [*mut c_void; 4],
    ) -> Self {
        let [of_tx, of_rx, of_sent, of_received] = contexts;
        let (mut av, mut ep) = (null_mut(), null_mut());
        let (mut tx, mut rx, mut sent, mut received) =
            (null_mut(), null_mut(), null_mut(), null_mut());
        // SAFETY: as the manual pages have it.
        unsafe {
            let domain = opened.domain;
            let mut attr = fi_av_attr {
                type_: fi_av_type::FI_AV_TABLE,
                flags: shape.av_flags,
                ..fi_av_attr::default()
            };
            let opened = call!(domain, ops.av_open(&raw mut attr, &raw mut av, shape.of_av));
            assert_eq!(opened, 0);
            for (cq, context) in [(&raw mut tx, of_tx), (&raw mut rx, of_rx)] {
                assert_eq!(
                    call!(domain, ops.cq_open(&raw mut shape.cq, cq, context)),
                    0
                );
            }
            for (cntr, context) in [(&raw mut sent, of_sent), (&raw mut received, of_received)] {
                let opened = call!(domain, ops.cntr_open(&raw mut shape.cntr, cntr, context));
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
            sent_bytes: RefCell::default(),
        }
    }

    /// A copy of the bytes of a send, which stays until the endpoint is closed.
    pub fn keep(&self, bytes: &[u8]) -> (*const c_void, usize) {
        let kept: Box<[u8]> = bytes.into();
        let place = (kept.as_ptr().cast(), kept.len());
        self.sent_bytes.borrow_mut().push(kept);
        place
    }

    pub fn receive(&self, into: &mut [u8], tag: u64, context: usize) {
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

    pub fn senddata(&self, bytes: &[u8], data: u64, to: fi_addr_t, tag: u64) {
        self.senddata_beside(bytes, data, (to, tag), || {
            count(self.sent);
        });
    }

    /// Sends, and does something else while there is no room.
    pub fn senddata_beside(
        &self,
        bytes: &[u8],
        data: u64,
        to: (fi_addr_t, u64),
        meanwhile: impl FnMut(),
    ) {
        let kept = self.keep(bytes);
        // SAFETY: this side keeps the bytes until the endpoint is closed.
        unsafe { self.senddata_from(kept, data, to, meanwhile) };
    }

    /// As `senddata_beside`, without a copy of the bytes.
    ///
    /// # Safety
    ///
    /// The bytes stay until the send completes.
    pub unsafe fn senddata_from(
        &self,
        (ptr, len): (*const c_void, usize),
        data: u64,
        (to, tag): (fi_addr_t, u64),
        mut meanwhile: impl FnMut(),
    ) {
        let until = Instant::now() + PATIENCE;
        loop {
            // SAFETY: the endpoint is open; the caller keeps the bytes.
            let sent = unsafe {
                let table = &*(*self.ep).tagged;
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
            meanwhile();
        }
    }

    pub fn sendmsg(&self, bytes: &[u8], to: fi_addr_t, tag: u64, flags: u64) -> isize {
        let (ptr, len) = self.keep(bytes);
        let iov = libc::iovec {
            iov_base: ptr.cast_mut(),
            iov_len: len,
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
        // SAFETY: the endpoint is open, and this side keeps the bytes until it is closed.
        unsafe { (*(*self.ep).tagged).sendmsg.unwrap()(self.ep, &raw const msg, flags) }
    }

    pub fn close(self) {
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

pub struct Two {
    pub opened: Opened,
    pub a: Side,
    pub b: Side,
    pub to_b: fi_addr_t,
    pub to_a: fi_addr_t,
}

impl Two {
    pub fn open(info: &Info<'_>, shape: Shape) -> Self {
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

    pub fn close(self) {
        self.a.close();
        self.b.close();
        self.opened.close();
    }
}

pub fn insert(av: *mut fid_av, of: *mut fid_ep) -> fi_addr_t {
    insert_bytes(av, name_of(of).as_ptr().cast())
}

/// `fi_getname`.
pub fn name_of(ep: *mut fid_ep) -> Vec<u8> {
    let (mut name, mut len) = ([0u8; 512], 512);
    // SAFETY: as fi_cm(3) has it.
    let named = unsafe {
        let getname = (*(*ep).cm).getname.unwrap();
        getname(ep.cast(), name.as_mut_ptr().cast(), &raw mut len)
    };
    assert_eq!(named, 0);
    name[..len].to_vec()
}

/// `fi_av_insert` of one address.
pub fn insert_bytes(av: *mut fid_av, name: *const c_void) -> fi_addr_t {
    let mut addr = 0;
    // SAFETY: as fi_av(3) has it.
    let inserted = unsafe { call!(av, ops.insert(name, 1, &raw mut addr, 0, null_mut())) };
    assert_eq!(inserted, 1);
    addr
}

/// `fi_control`.
pub fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: the object is open, the argument one that the command takes.
    unsafe { (*(*fid).ops).control.unwrap()(fid, command, arg) }
}

/// `fi_cntr_read`.
pub fn count(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: the counter is open.
    unsafe { call!(cntr, ops.read()) }
}

/// `fi_cq_read` of one tagged entry.
pub fn read(cq: *mut fid_cq) -> Result<fi_cq_tagged_entry, isize> {
    let mut entry = fi_cq_tagged_entry::default();
    // SAFETY: there is room for one of the longest format.
    match unsafe { call!(cq, ops.read((&raw mut entry).cast(), 1)) } {
        1 => Ok(entry),
        error => Err(error),
    }
}

pub fn next(cq: *mut fid_cq) -> Result<fi_cq_tagged_entry, isize> {
    let until = Instant::now() + PATIENCE;
    loop {
        match read(cq) {
            Err(EAGAIN) => assert!(Instant::now() < until, "nothing completes"),
            other => return other,
        }
    }
}

/// `fi_cq_readfrom` of one that must come.
pub fn next_from(cq: *mut fid_cq) -> (fi_cq_tagged_entry, fi_addr_t) {
    let until = Instant::now() + PATIENCE;
    let (mut entry, mut from) = (fi_cq_tagged_entry::default(), 0);
    loop {
        // SAFETY: there is room for one.
        match unsafe { call!(cq, ops.readfrom((&raw mut entry).cast(), 1, &raw mut from)) } {
            1 => return (entry, from),
            error => assert_eq!(error, EAGAIN),
        }
        assert!(Instant::now() < until, "nothing completes");
    }
}

/// `fi_trywait` of one.
pub fn try_wait(opened: &Opened, fid: *mut fid) -> c_int {
    let mut fids = [fid];
    // SAFETY: a list of one.
    unsafe { call!(opened.fabric, ops.trywait(fids.as_mut_ptr(), 1)) }
}

pub fn descriptor(fid: *mut fid) -> c_int {
    let mut fd = -1;
    assert_eq!(control(fid, FI_GETWAIT, (&raw mut fd).cast()), 0);
    fd
}

pub fn readable(fd: c_int) -> bool {
    let mut fds = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut fds, 1, 0) == 1 }
}
