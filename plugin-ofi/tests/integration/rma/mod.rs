//! One-sided operations as an application calls them (fi_rma(3)): two endpoints of a domain that
//! hints with one-sided operations found, and every call between them.

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::Instant;

use ferro_fi::abi::{
    FI_COMPLETION, FI_ENABLE, FI_INJECT, FI_MSG, FI_READ, FI_RECV, FI_REMOTE_CQ_DATA,
    FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA, FI_RMA_EVENT, FI_SEND, FI_TAGGED, FI_TRANSMIT,
    FI_WRITE, fi_addr_t, fi_av_attr, fi_av_type, fi_cntr_attr, fi_cq_attr, fi_cq_err_entry,
    fi_cq_format, fi_cq_tagged_entry, fi_ep_type, fi_msg_rma, fi_rma_iov, fid, fid_av, fid_cntr,
    fid_cq, fid_ep, fid_mr,
};
use libc::iovec;

use crate::client::{Info, Libfabric, Opened, close};
use crate::two::{EAGAIN, PATIENCE, control, insert, next, read};

/// Messages and one-sided operations of both sides.
pub const ALL: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_RMA_EVENT;

/// Both rights of peers.
pub const BOTH: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;

/// The flags of one-sided completions at the initiator, and of those with CQ data at the target.
pub const READ_DONE: u64 = FI_RMA | FI_READ;
pub const WRITE_DONE: u64 = FI_RMA | FI_WRITE;
pub const NOTICED: u64 = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;

/// Queries for a domain (empty: any) by capabilities, and a mode of registration.
pub fn ask<'a>(
    libfabric: &'a Libfabric,
    (version, domain): (u32, &str),
    caps: u64,
    mr_mode: c_int,
    change: impl FnOnce(&Info<'_>),
) -> Result<Info<'a>, c_int> {
    let hints = libfabric.hints();
    // SAFETY: the hints are the test's; the string is libc's.
    unsafe {
        (*hints.info).caps = caps;
        (*(*hints.info).ep_attr).type_ = fi_ep_type::FI_EP_RDM;
        (*(*hints.info).domain_attr).mr_mode = mr_mode;
        if !domain.is_empty() {
            let name = libc::strndup(domain.as_ptr().cast(), domain.len());
            (*(*hints.info).domain_attr).name = name;
        }
    }
    change(&hints);
    libfabric.ask(version, None, None, 0, Some(&hints))
}

/// An offer of [`ALL`] with regions as `mr_mode` 0 has them.
pub fn offer<'a>(libfabric: &'a Libfabric, domain: &str) -> Info<'a> {
    ask(libfabric, (libfabric.version, domain), ALL, 0, |_| {}).expect("an offer")
}

/// The kinds of operations that the counters of an end count, in their order.
pub const COUNTED: [u64; 6] = [
    FI_SEND,
    FI_RECV,
    FI_READ,
    FI_WRITE,
    FI_REMOTE_READ,
    FI_REMOTE_WRITE,
];

/// An endpoint with a queue for each direction, and a counter for each kind of operation.
pub struct End {
    pub ep: *mut fid_ep,
    pub av: *mut fid_av,
    pub tx: *mut fid_cq,
    pub rx: *mut fid_cq,
    pub counters: [*mut fid_cntr; COUNTED.len()],
    /// The bytes of all writes.
    written_bytes: RefCell<Vec<Box<[u8]>>>,
}

/// A call that writes; a message with its flags.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Write {
    Plain,
    Vector,
    Message(u64),
    Data,
    Inject,
    InjectData,
}

pub const WRITES: [Write; 7] = [
    Write::Plain,
    Write::Vector,
    Write::Message(FI_COMPLETION),
    Write::Message(FI_COMPLETION | FI_INJECT | FI_REMOTE_CQ_DATA),
    Write::Data,
    Write::Inject,
    Write::InjectData,
];

impl Write {
    pub fn has_data(self) -> bool {
        match self {
            Self::Data | Self::InjectData => true,
            Self::Message(flags) => flags & FI_REMOTE_CQ_DATA != 0,
            _ => false,
        }
    }

    pub fn injects(self) -> bool {
        match self {
            Self::Inject | Self::InjectData => true,
            Self::Message(flags) => flags & FI_INJECT != 0,
            _ => false,
        }
    }

    pub fn completes(self) -> bool {
        !matches!(self, Self::Inject | Self::InjectData)
    }
}

/// A call that reads; a message with its flags.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Read {
    Plain,
    Vector,
    Message(u64),
}

pub const READS: [Read; 3] = [Read::Plain, Read::Vector, Read::Message(FI_COMPLETION)];

/// The peer's memory of an operation, its CQ data and its context.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    pub peer: fi_addr_t,
    pub addr: u64,
    pub key: u64,
    pub data: u64,
    pub context: usize,
}

/// Memory in two pieces.
fn pieces(ptr: *const u8, len: usize) -> [iovec; 2] {
    let cut = len / 3;
    [(0, cut), (cut, len - cut)].map(|(from, len)| iovec {
        iov_base: ptr.wrapping_add(from).cast_mut().cast(),
        iov_len: len,
    })
}

impl End {
    /// Opens one, bound and enabled.
    pub fn open(opened: &Opened, info: &Info<'_>, tx_flags: u64) -> Self {
        let (mut av, mut ep, mut tx, mut rx) = (null_mut(), null_mut(), null_mut(), null_mut());
        let mut counters = [null_mut(); COUNTED.len()];
        let domain = opened.domain;
        // SAFETY: as the manual pages have it.
        unsafe {
            let mut attr = fi_av_attr {
                type_: fi_av_type::FI_AV_TABLE,
                ..fi_av_attr::default()
            };
            let code = call!(domain, ops.av_open(&raw mut attr, &raw mut av, null_mut()));
            assert_eq!(code, 0);
            let mut attr = fi_cq_attr {
                format: fi_cq_format::FI_CQ_FORMAT_TAGGED,
                ..fi_cq_attr::default()
            };
            for cq in [&raw mut tx, &raw mut rx] {
                assert_eq!(call!(domain, ops.cq_open(&raw mut attr, cq, null_mut())), 0);
            }
            let code = call!(domain, ops.endpoint(info.info, &raw mut ep, null_mut()));
            assert_eq!(code, 0);
            assert_eq!(bind(ep, av.cast(), 0), 0);
            assert_eq!(bind(ep, tx.cast(), FI_TRANSMIT | tx_flags), 0);
            assert_eq!(bind(ep, rx.cast(), FI_RECV), 0);
            for (cntr, counted) in counters.iter_mut().zip(COUNTED) {
                *cntr = open_counter(opened);
                assert_eq!(bind(ep, (*cntr).cast(), counted), 0);
            }
            assert_eq!(control(ep.cast(), FI_ENABLE, null_mut()), 0);
        }
        Self {
            ep,
            av,
            tx,
            rx,
            counters,
            written_bytes: RefCell::default(),
        }
    }

    /// One call that writes a copy of the bytes, which stays until this end is dropped: a write may
    /// go on after its call has returned.
    pub fn write(&self, call: Write, bytes: &[u8], to: Remote) -> isize {
        let mut kept: Box<[u8]> = bytes.into();
        let (ep, none) = (self.ep, null_mut::<c_void>());
        let (ptr, len) = (kept.as_ptr().cast::<c_void>(), kept.len());
        let list = pieces(kept.as_ptr(), len);

        let Remote {
            peer,
            addr,
            key,
            data,
            ..
        } = to;
        let context = to.context as *mut c_void;
        // SAFETY: as fi_rma(3) has it; the endpoint is open.
        let begun = unsafe {
            let table = &*(*ep).rma;
            match call {
                Write::Plain => table.write.unwrap()(ep, ptr, len, none, peer, addr, key, context),
                Write::Vector => {
                    let (list, descs) = (list.as_ptr(), null_mut());
                    table.writev.unwrap()(ep, list, descs, 2, peer, addr, key, context)
                }
                Write::Message(flags) => {
                    with_message(&list, to, |msg| table.writemsg.unwrap()(ep, msg, flags))
                }
                Write::Data => {
                    let writedata = table.writedata.unwrap();
                    writedata(ep, ptr, len, none, data, peer, addr, key, context)
                }
                Write::Inject => table.inject.unwrap()(ep, ptr, len, peer, addr, key),
                Write::InjectData => table.injectdata.unwrap()(ep, ptr, len, data, peer, addr, key),
            }
        };
        if begun == 0 {
            if call.injects() {
                // The provider is done with the bytes (fi_rma(3)).
                kept.fill(0xdd);
            }
            self.written_bytes.borrow_mut().push(kept);
        }
        begun
    }

    /// One call that reads. The tests keep the memory until it completes.
    pub fn read(&self, call: Read, into: &mut [u8], from: Remote) -> isize {
        let ep = self.ep;
        let (ptr, len) = (into.as_mut_ptr(), into.len());
        let list = pieces(ptr, len);
        let Remote {
            peer, addr, key, ..
        } = from;
        let context = from.context as *mut c_void;
        // SAFETY: as fi_rma(3) has it; the endpoint is open.
        unsafe {
            let table = &*(*ep).rma;
            match call {
                Read::Plain => {
                    let (ptr, desc) = (ptr.cast(), null_mut());
                    table.read.unwrap()(ep, ptr, len, desc, peer, addr, key, context)
                }
                Read::Vector => {
                    let (list, descs) = (list.as_ptr(), null_mut());
                    table.readv.unwrap()(ep, list, descs, 2, peer, addr, key, context)
                }
                Read::Message(flags) => {
                    with_message(&list, from, |msg| table.readmsg.unwrap()(ep, msg, flags))
                }
            }
        }
    }

    /// Writes as soon as there is room.
    pub fn write_soon(&self, call: Write, bytes: &[u8], to: Remote) {
        self.soon(|| self.write(call, bytes, to));
    }

    /// Reads as soon as there is room.
    pub fn read_soon(&self, call: Read, into: &mut [u8], from: Remote) {
        self.soon(|| self.read(call, &mut *into, from));
    }

    fn soon(&self, mut begin: impl FnMut() -> isize) {
        let until = Instant::now() + PATIENCE;
        loop {
            match begin() {
                0 => return,
                error => assert_eq!(error, EAGAIN),
            }
            self.drive();
            assert!(Instant::now() < until, "no room for an operation");
        }
    }

    /// Moves the operations of the domain on.
    pub fn drive(&self) {
        self.count(FI_SEND);
    }

    /// `fi_cntr_read` of the counter for a kind of operation.
    pub fn count(&self, counted: u64) -> u64 {
        let cntr = self.counter(counted);
        // SAFETY: the counter is open.
        unsafe { call!(cntr, ops.read()) }
    }

    /// `fi_cntr_readerr` of the same.
    pub fn failed(&self, counted: u64) -> u64 {
        let cntr = self.counter(counted);
        // SAFETY: the counter is open.
        unsafe { call!(cntr, ops.readerr()) }
    }

    fn counter(&self, counted: u64) -> *mut fid_cntr {
        self.counters[COUNTED.iter().position(|one| *one == counted).unwrap()]
    }

    /// Waits until a counter has a value.
    pub fn counts(&self, counted: u64, value: u64) {
        let until = Instant::now() + PATIENCE;
        while self.count(counted) != value {
            assert!(self.count(counted) <= value, "{counted:#x} counts too much");
            assert!(Instant::now() < until, "{counted:#x} counts too little");
        }
    }

    /// Waits for the completion of an operation.
    pub fn done(&self, context: usize, flags: u64) {
        let done = next(self.tx).unwrap();
        assert_eq!((done.op_context as usize, done.flags), (context, flags));
    }

    /// Waits for the error of an operation.
    pub fn error(&self, context: usize, flags: u64, errno: c_int) {
        let error = failure(self.tx);
        assert_eq!(
            (error.op_context as usize, error.flags, error.err),
            (context, flags, errno)
        );
    }

    /// No completion is left.
    pub fn is_quiet(&self) {
        for cq in [self.tx, self.rx] {
            let left: Result<fi_cq_tagged_entry, isize> = read(cq);
            assert_eq!(left.unwrap_err(), EAGAIN);
        }
    }

    pub fn close(self) {
        let queues = [self.ep.cast(), self.tx.cast(), self.rx.cast()];
        let counters = self.counters.map(<*mut fid_cntr>::cast);
        for fid in queues.into_iter().chain(counters).chain([self.av.cast()]) {
            assert_eq!(close(fid), 0);
        }
    }
}

/// `fi_ep_bind`.
pub fn bind(ep: *mut fid_ep, to: *mut fid, flags: u64) -> c_int {
    // SAFETY: both are open.
    unsafe { (*(*ep).fid.ops).bind.unwrap()(ep.cast(), to, flags) }
}

/// `fi_cntr_open`.
pub fn open_counter(opened: &Opened) -> *mut fid_cntr {
    let (mut attr, mut cntr) = (fi_cntr_attr::default(), null_mut());
    let domain = opened.domain;
    // SAFETY: as fi_cntr(3) has it.
    let code = unsafe {
        call!(
            domain,
            ops.cntr_open(&raw mut attr, &raw mut cntr, null_mut())
        )
    };
    assert_eq!(code, 0);
    cntr
}

/// Calls with the structure of an operation on one range of the peer's memory.
pub fn with_message(
    list: &[iovec],
    remote: Remote,
    call: impl FnOnce(*const fi_msg_rma) -> isize,
) -> isize {
    let range = fi_rma_iov {
        addr: remote.addr,
        len: list.iter().map(|one| one.iov_len).sum(),
        key: remote.key,
    };
    let msg = fi_msg_rma {
        msg_iov: list.as_ptr(),
        desc: null_mut(),
        iov_count: list.len(),
        addr: remote.peer,
        rma_iov: &raw const range,
        rma_iov_count: 1,
        context: remote.context as *mut c_void,
        data: remote.data,
    };
    call(&raw const msg)
}

/// The error that must come next.
pub fn failure(cq: *mut fid_cq) -> fi_cq_err_entry {
    let until = Instant::now() + PATIENCE;
    loop {
        match read(cq) {
            Err(EAGAIN) => assert!(Instant::now() < until, "nothing fails"),
            Err(_) => break,
            Ok(done) => panic!("{done:?}"),
        }
    }
    let mut error = fi_cq_err_entry::default();
    // SAFETY: there is room for it.
    let got = unsafe { call!(cq, ops.readerr(&raw mut error, 0)) };
    assert_eq!(got, 1);
    error
}

/// Two ends in a domain.
pub struct Pair {
    pub opened: Opened,
    pub a: End,
    pub b: End,
    pub to_a: fi_addr_t,
    pub to_b: fi_addr_t,
}

impl Pair {
    pub fn open(info: &Info<'_>) -> Self {
        Self::open_as(info, 0)
    }

    /// The queues of sends are bound with these flags besides.
    pub fn open_as(info: &Info<'_>, tx_flags: u64) -> Self {
        let opened = Opened::new(info);
        let (a, b) = (
            End::open(&opened, info, tx_flags),
            End::open(&opened, info, tx_flags),
        );
        Self {
            to_b: insert(a.av, b.ep),
            to_a: insert(b.av, a.ep),
            opened,
            a,
            b,
        }
    }

    /// `b`'s memory from `addr` on, by a key, with a context that says so.
    pub fn at(&self, addr: u64, key: u64) -> Remote {
        Remote {
            peer: self.to_b,
            addr,
            key,
            data: 0,
            context: 77,
        }
    }

    pub fn close(self) {
        self.a.close();
        self.b.close();
        self.opened.close();
    }
}

/// `fi_mr_reg` with a key, or the error.
pub fn register(
    opened: &Opened,
    memory: &mut [u8],
    access: u64,
    key: u64,
) -> Result<*mut fid_mr, c_int> {
    let mut mr = null_mut();
    let (at, len) = (memory.as_mut_ptr().cast_const().cast(), memory.len());
    let domain = opened.domain;
    // SAFETY: as fi_mr(3) has it; the tests keep the memory until they close the region.
    let code = unsafe {
        let reg = (*(*domain).mr).reg.unwrap();
        reg(
            domain.cast(),
            at,
            len,
            access,
            0,
            key,
            0,
            &raw mut mr,
            null_mut(),
        )
    };
    match code {
        0 => Ok(mr),
        error => Err(error),
    }
}

/// `fi_mr_key`.
pub fn key_of(mr: *mut fid_mr) -> u64 {
    // SAFETY: the region is open.
    unsafe { (*mr).key }
}

/// Bytes that only this seed has.
pub fn filled(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| ((at * 31) ^ (at >> 8) ^ (seed * 7)) as u8)
        .collect()
}
