//! The objects as a C provider uses them: by the functions in their tables.

mod late;
mod messages;
mod sends;
mod sources;
mod states;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{AnyOwner, Arrived, Matched, Piece, SendDone, Start, Token};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind};
use libc::iovec;

use super::ForeignObjects;
use super::mailbox::SourceFn;
use crate::abi::{
    FI_ADDR_UNSPEC, FI_VERSION, Roomy, fi_cq_err_entry, fi_ops_srx_peer, fi_peer_match_attr,
    fi_peer_rx_entry, fid_peer_cq, fid_peer_srx, link_bytes,
};

/// The number of the transport in tokens.
const TRANSPORT: u32 = 7;

/// A version of each layout of entries.
const LAYOUTS: [u32; 2] = [FI_VERSION(2, 1), FI_VERSION(2, 6)];

fn objects() -> ForeignObjects {
    ForeignObjects::new(TRANSPORT)
}

/// A call of an owner's function.
#[derive(Debug, PartialEq)]
enum OwnerReport {
    Sent(SendDone),
    SendFailed(SendDone, Errno, i32),
    Received(MsgKind, Matched, Arrived),
    ReceiveFailed(MsgKind, Matched, Arrived, Errno, u64),
    Resolved(FiAddr, Vec<Token>),
}

/// An owner whose receives match in their order, whatever the message.
#[derive(Default)]
struct RecordingOwner {
    posted: VecDeque<Matched>,
    queued: Vec<(MsgKind, Arrived, Token)>,
    reports: Vec<OwnerReport>,
    /// For a list of buffers.
    one_piece: Option<IoBuf>,
    /// Runs within the next report.
    within: Option<Box<dyn FnOnce()>>,
}

impl RecordingOwner {
    fn report(&mut self, report: OwnerReport) {
        self.reports.push(report);
        if let Some(within) = self.within.take() {
            within();
        }
    }

    /// The oldest queued message, with a receive.
    fn take_queued(&mut self, matched: Matched) -> Start {
        let (kind, arrived, token) = self.queued.remove(0);
        Start {
            kind,
            token,
            arrived,
            matched,
        }
    }
}

impl AnyOwner for RecordingOwner {
    fn arrive(&mut self, _: MsgKind, _: &Arrived) -> Option<Matched> {
        self.posted.pop_front()
    }

    fn in_one_piece(&mut self, matched: &Matched) -> Option<Matched> {
        let buf = self.one_piece?;
        Some(Matched { buf, ..*matched })
    }

    fn queue(&mut self, kind: MsgKind, arrived: Arrived, token: Token) {
        self.queued.push((kind, arrived, token));
    }

    fn resolve(&mut self, src: FiAddr, of: &mut dyn FnMut(Token) -> bool) {
        let mut tokens = Vec::new();
        for (_, arrived, token) in &mut self.queued {
            if !arrived.src.is_some() && of(*token) {
                arrived.src = src;
                tokens.push(*token);
            }
        }
        let elsewhere = Token {
            transport: TRANSPORT + 1,
            value: tokens.first().map_or(0, |token| token.value),
        };
        assert!(!of(elsewhere));
        self.report(OwnerReport::Resolved(src, tokens));
    }

    fn fail_source(
        &mut self,
        _: FiAddr,
        _: Errno,
        _: &'static str,
        _: &mut dyn FnMut(Token) -> bool,
    ) {
        panic!("no callback fails a source");
    }

    fn complete_send(&mut self, done: &SendDone) {
        self.report(OwnerReport::Sent(*done));
    }

    fn fail_send(&mut self, done: &SendDone, errno: Errno, prov_errno: i32, _: &'static str) {
        self.report(OwnerReport::SendFailed(*done, errno, prov_errno));
    }

    fn complete_recv(&mut self, kind: MsgKind, m: &Matched, a: &Arrived) {
        self.report(OwnerReport::Received(kind, *m, *a));
    }

    fn fail_recv(
        &mut self,
        kind: MsgKind,
        m: &Matched,
        a: &Arrived,
        errno: Errno,
        olen: u64,
        _: &'static str,
    ) {
        self.report(OwnerReport::ReceiveFailed(kind, *m, *a, errno, olen));
    }

    fn lookup(&self, _: FiAddr) -> Option<NativeAddr> {
        panic!("no callback looks up an address");
    }

    fn find(&self, _: &NativeAddr) -> FiAddr {
        panic!("no callback looks for an address");
    }
}

/// A receive into a buffer.
fn receive(into: &mut [u8], context: u64) -> Matched {
    Matched {
        buf: IoBuf::new(into.as_mut_ptr(), into.len()),
        desc: MrDesc::NONE,
        context,
        flags: Flags::COMPLETION,
        piece: Piece::NONE,
    }
}

/// A message of `len` bytes from an unknown source.
fn arrived(len: u64, tag: u64) -> Arrived {
    Arrived {
        src: FiAddr::NOTAVAIL,
        tag,
        len,
        data: 0,
        flags: Flags::empty(),
    }
}

/// A C provider with the objects of an endpoint.
#[derive(Clone, Copy)]
struct CPeer {
    srx: *mut fid_peer_srx,
    cq: *mut fid_peer_cq,
    link_bytes: usize,
}

// SAFETY: the objects are there for ever, and any thread may call their functions.
unsafe impl Send for CPeer {}
// SAFETY: as above.
unsafe impl Sync for CPeer {}

/// An entry that C has.
type CEntry = *mut fi_peer_rx_entry;

impl CPeer {
    fn of(objects: &ForeignObjects) -> Self {
        let (srx, cq) = (objects.srx(), objects.cq());
        // SAFETY: the C provider sets its functions.
        unsafe { (*srx).peer_ops = PEER_OPS.as_ptr() };
        Self {
            srx,
            cq,
            link_bytes: objects.block.chunks.link_bytes(),
        }
    }

    fn get(&self, kind: MsgKind, number: u64, len: usize, tag: u64) -> (c_int, CEntry) {
        let mut attr = fi_peer_match_attr {
            addr: number,
            msg_size: len,
            tag,
        };
        let mut entry = null_mut();
        // SAFETY: as fi_peer(3) has it.
        let code = unsafe {
            let ops = &*(*self.srx).owner_ops;
            let get = match kind {
                MsgKind::Tagged => ops.get_tag,
                _ => ops.get_msg,
            };
            get.unwrap()(self.srx, &raw mut attr, &raw mut entry)
        };
        (code, entry)
    }

    /// The entry of a message that has a receive.
    fn matched(&self, len: usize) -> CEntry {
        let (code, entry) = self.get(MsgKind::Msg, FI_ADDR_UNSPEC, len, 0);
        assert_eq!(code, 0);
        entry
    }

    /// The entry of a message that has none.
    fn unexpected(&self, len: usize) -> CEntry {
        let (code, entry) = self.get(MsgKind::Msg, FI_ADDR_UNSPEC, len, 0);
        assert_eq!(code, -libc::ENOENT);
        entry
    }

    /// The entry of a message in the owner's queue.
    fn queued(&self, len: usize) -> CEntry {
        let entry = self.unexpected(len);
        assert_eq!(self.queue(MsgKind::Msg, entry), 0);
        entry
    }

    fn queue(&self, kind: MsgKind, entry: CEntry) -> c_int {
        // SAFETY: entries of any kind are refused where they are not ours.
        unsafe {
            let ops = &*(*self.srx).owner_ops;
            let queue = match kind {
                MsgKind::Tagged => ops.queue_tag,
                _ => ops.queue_msg,
            };
            queue.unwrap()(entry)
        }
    }

    fn free(&self, entry: CEntry) {
        // SAFETY: as above.
        unsafe { (*(*self.srx).owner_ops).free_entry.unwrap()(entry) };
    }

    fn find_sources(&self, source: SourceFn) {
        // SAFETY: as fi_peer(3) has it.
        unsafe { (*(*self.srx).owner_ops).foreach_unspec_addr.unwrap()(self.srx, Some(source)) };
    }

    fn write_with(&self, context: *mut c_void, flags: u64, len: usize, data: u64) {
        // SAFETY: as fi_peer(3) has it; contexts are numbers.
        let written = unsafe {
            let write = (*(*self.cq).owner_ops).write.unwrap();
            write(
                self.cq,
                context,
                flags,
                len,
                null_mut(),
                data,
                0,
                FI_ADDR_UNSPEC,
            )
        };
        assert_eq!(written, 0);
    }

    fn write(&self, context: *mut c_void, len: usize) {
        self.write_with(context, 0, len, 0);
    }

    fn fail(&self, context: *mut c_void, errno: i32, prov_errno: i32) {
        let error = fi_cq_err_entry {
            op_context: context,
            err: errno,
            prov_errno,
            ..fi_cq_err_entry::default()
        };
        // SAFETY: as fi_peer(3) has it.
        let written = unsafe {
            let write_error = (*(*self.cq).owner_ops).writeerr.unwrap();
            assert_eq!(write_error(self.cq, null()), 0);
            write_error(self.cq, &raw const error)
        };
        assert_eq!(written, 0);
    }

    /// The fields of an entry.
    #[expect(clippy::mut_from_ref, reason = "C has the entry")]
    fn fields(&self, entry: CEntry) -> &mut fi_peer_rx_entry {
        // SAFETY: the entry is one of the layout.
        unsafe { &mut *entry.wrapping_byte_add(self.link_bytes) }
    }

    fn context(&self, entry: CEntry) -> *mut c_void {
        self.fields(entry).context
    }

    /// The memory of an entry.
    fn iov(&self, entry: CEntry) -> Vec<IoBuf> {
        let fields = self.fields(entry);
        assert!(!fields.iov.is_null() && !fields.desc.is_null());
        let pieces = 0..fields.count;
        pieces
            .map(|piece| {
                // SAFETY: the lists have that many parts.
                let (desc, iov): (_, iovec) =
                    unsafe { (*fields.desc.add(piece), *fields.iov.add(piece)) };
                assert!(desc.is_null());
                IoBuf::new(iov.iov_base.cast(), iov.iov_len)
            })
            .collect()
    }

    /// Copies a message into the memory of an entry, as far as there is room, and ends it.
    fn finish(&self, entry: CEntry, message: &[u8]) {
        let mut rest = message;
        for to in self.iov(entry) {
            let (now, later) = rest.split_at(to.len.min(rest.len()));
            // SAFETY: the memory of the receive.
            unsafe { to.as_mut_ptr().copy_from(now.as_ptr(), now.len()) };
            rest = later;
        }
        assert!(rest.is_empty(), "the entry has room for the message");
        self.write(self.context(entry), message.len());
        self.free(entry);
    }
}

/// The behaviour of the C provider's functions on this thread, and their calls.
struct CPeerCalls {
    peer: Option<CPeer>,
    /// The message that a start copies. `None`: it is for later.
    message: Option<Vec<u8>>,
    result: c_int,
    calls: Vec<(&'static str, usize)>,
}

thread_local! {
    static CALLS: RefCell<CPeerCalls> = const {
        RefCell::new(CPeerCalls { peer: None, message: None, result: 0, calls: Vec::new() })
    };
}

/// Sets the behaviour of starts.
fn starts_with(peer: CPeer, message: Option<&[u8]>, result: c_int) {
    CALLS.with_borrow_mut(|calls| {
        *calls = CPeerCalls {
            peer: Some(peer),
            message: message.map(<[u8]>::to_vec),
            result,
            calls: Vec::new(),
        };
    });
}

fn peer_calls() -> Vec<(&'static str, usize)> {
    CALLS.with_borrow_mut(|calls| std::mem::take(&mut calls.calls))
}

static PEER_OPS: Roomy<fi_ops_srx_peer> = Roomy::new(fi_ops_srx_peer {
    size: size_of::<fi_ops_srx_peer>(),
    start_msg: Some(start_msg),
    start_tag: Some(start_tag),
    discard_msg: Some(discard_msg),
    discard_tag: Some(discard_tag),
});

fn called(name: &'static str, entry: CEntry) -> c_int {
    let (peer, message, result) = CALLS.with_borrow_mut(|calls| {
        calls.calls.push((name, entry.addr()));
        (calls.peer, calls.message.clone(), calls.result)
    });
    if let (Some(peer), Some(message), true) = (peer, message, name.starts_with("start")) {
        peer.finish(entry, &message);
    }
    result
}

unsafe extern "C" fn start_msg(entry: CEntry) -> c_int {
    called("start_msg", entry)
}

unsafe extern "C" fn start_tag(entry: CEntry) -> c_int {
    called("start_tag", entry)
}

unsafe extern "C" fn discard_msg(entry: CEntry) -> c_int {
    called("discard_msg", entry)
}

unsafe extern "C" fn discard_tag(entry: CEntry) -> c_int {
    called("discard_tag", entry)
}

/// A statistic of the objects.
fn stat(objects: &ForeignObjects, name: &str) -> u64 {
    let mut found = None;
    objects.stats(&mut |stat, value| {
        if stat == name {
            found = Some(value);
        }
    });
    found.unwrap()
}

fn refused(objects: &ForeignObjects) -> u64 {
    stat(objects, "peer_refused_calls")
}
