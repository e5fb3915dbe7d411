//! A plain owner for tests and benches: the matcher, queue and address vector of the core, and
//! nothing around them, so that the transport is driven directly.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test uses a part"
)]

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use ferrofabric_av::{AvAttr, AvTable, Placed};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{
    Arrived, Completion, CqError, Matched, Owner, PeerAv, PeerCntr, PeerCq, PeerSrx, Piece, Routed,
    Start, Token, Transport,
};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RemoteKind, SendOp};
use ferrofabric_matching as matching;
use ferrofabric_matching::{
    Matcher, MultiReceiveState, PostedReceive, ReceiveBuffers, WithdrawnReceive,
};
use ferrofabric_runtime::cq::CqQueue;
use ferrofabric_shm::{ShmConfig, ShmTransport, node_id};

/// A wait that takes longer hangs.
pub const TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Default)]
pub struct PlainCounter {
    pub ok: u64,
    pub err: u64,
}

impl PeerCntr for PlainCounter {
    fn inc(&mut self, _bytes: usize) {
        self.ok += 1;
    }
    fn inc_error(&mut self) {
        self.err += 1;
    }
}

pub struct Srx {
    tagged: Matcher<Token>,
    untagged: Matcher<Token>,
    starts: VecDeque<Start>,
    failed: Vec<CqError>,
    region: Box<[u8]>,
    /// Parts of one-sided operations on their way into the region.
    pub parts: usize,
}

/// Bytes of the region.
const REGION: usize = 4096;

fn buf_of(buffers: &ReceiveBuffers) -> IoBuf {
    buffers.segments()[0]
}

fn matched_of(m: matching::MatchedReceive) -> Matched {
    Matched {
        buf: buf_of(&m.buf),
        desc: m.desc,
        context: m.context,
        flags: m.flags,
        piece: m.piece,
    }
}

fn start_of(kind: MsgKind, s: matching::Match<Token>) -> Start {
    Start {
        kind,
        token: s.message.token,
        arrived: s.message.arrived,
        matched: matched_of(s.matched),
    }
}

impl Srx {
    fn of(&mut self, kind: MsgKind) -> &mut Matcher<Token> {
        match kind {
            MsgKind::Tagged => &mut self.tagged,
            MsgKind::Msg | MsgKind::Remote(_) => &mut self.untagged,
        }
    }

    /// The memory for a part of a one-sided operation. The region has any key, and each right.
    #[cold]
    fn arrive_part(&mut self, arrived: &Arrived) -> Matched {
        let end = arrived.data.checked_add(arrived.len);
        if end.is_none_or(|end| end > REGION as u64) {
            return Matched::REFUSED;
        }
        self.parts += 1;
        let whole = IoBuf::new(self.region.as_mut_ptr(), REGION);
        Matched {
            buf: whole.part(arrived.data as usize, arrived.len as usize),
            flags: Flags::empty(),
            ..Matched::REFUSED
        }
    }
}

impl PeerSrx for Srx {
    #[inline]
    fn arrive(&mut self, kind: MsgKind, arrived: &Arrived) -> Option<Matched> {
        if matches!(kind, MsgKind::Remote(_)) {
            return Some(self.arrive_part(arrived));
        }
        self.of(kind).arrive(arrived).map(matched_of)
    }

    fn complete_piece(&mut self, kind: MsgKind, piece: Piece) -> Flags {
        match self.of(kind).complete_piece(piece) {
            MultiReceiveState::Released => Flags::MULTI_RECV,
            _ => Flags::empty(),
        }
    }

    fn queue(&mut self, kind: MsgKind, arrived: Arrived, token: Token) {
        self.of(kind).queue(arrived, token);
    }

    fn resolve(&mut self, src: FiAddr, mut of: impl FnMut(Token) -> bool) {
        for kind in [MsgKind::Tagged, MsgKind::Msg] {
            let mut starts = Vec::new();
            self.of(kind).resolve(
                |m| match of(m.token) {
                    true => src,
                    false => FiAddr::NOTAVAIL,
                },
                &mut starts,
            );
            self.starts
                .extend(starts.into_iter().map(|s| start_of(kind, s)));
        }
    }

    fn forget_source(&mut self, src: FiAddr) {
        self.tagged.forget_source(src);
        self.untagged.forget_source(src);
    }

    fn fail_source(
        &mut self,
        src: FiAddr,
        errno: Errno,
        why: &'static str,
        mut lost: impl FnMut(Token) -> bool,
    ) {
        for kind in [MsgKind::Tagged, MsgKind::Msg] {
            let (mut receives, mut messages) = (Vec::new(), Vec::new());
            self.of(kind)
                .fail_source(src, |m| lost(m.token), &mut receives, &mut messages);
            for WithdrawnReceive { posted, .. } in receives {
                self.failed.push(CqError {
                    completion: Completion {
                        context: posted.context,
                        flags: kind.recv_flags(),
                        len: 0,
                        buf: buf_of(&posted.buf).addr,
                        data: 0,
                        tag: posted.tag,
                        src: posted.src,
                    },
                    olen: 0,
                    errno,
                    prov_errno: 0,
                    why,
                    sender: None,
                });
            }
        }
    }
}

pub struct PlainOwner {
    pub srx: Srx,
    pub cq: CqQueue,
    pub tx: PlainCounter,
    pub rx: PlainCounter,
    pub av: AvTable,
}

impl Owner for PlainOwner {
    #[inline]
    fn srx(&mut self) -> &mut impl PeerSrx {
        &mut self.srx
    }
    #[inline]
    fn tx_cq(&mut self) -> &mut impl PeerCq {
        &mut self.cq
    }
    #[inline]
    fn rx_cq(&mut self) -> &mut impl PeerCq {
        &mut self.cq
    }
    #[inline]
    fn tx_cntr(&mut self) -> &mut impl PeerCntr {
        &mut self.tx
    }
    #[inline]
    fn rx_cntr(&mut self) -> &mut impl PeerCntr {
        &mut self.rx
    }
    #[inline]
    fn av(&self) -> &impl PeerAv {
        &self.av
    }
    fn remote_part_came(
        &mut self,
        _: RemoteKind,
        m: &Matched,
        _: &Arrived,
        _: Option<(Errno, &'static str)>,
    ) {
        if !m.is_refused() {
            self.srx.parts -= 1;
        }
    }
}

/// An endpoint: the transport and its owner.
pub struct Ep {
    pub shm: Routed<ShmTransport>,
    pub owner: PlainOwner,
    /// The bytes of all sends of [`Ep::tsend`].
    sent: Vec<Box<[u8]>>,
}

impl Ep {
    pub fn open(config: ShmConfig) -> Self {
        Self {
            shm: Routed::new(ShmTransport::open(config, node_id(), 3).unwrap()),
            owner: PlainOwner {
                srx: Srx {
                    tagged: Matcher::new(64),
                    untagged: Matcher::new(64),
                    starts: VecDeque::new(),
                    failed: Vec::new(),
                    region: vec![0; REGION].into(),
                    parts: 0,
                },
                cq: CqQueue::new(4096).unwrap(),
                tx: PlainCounter::default(),
                rx: PlainCounter::default(),
                av: AvTable::new(&AvAttr::default()).unwrap(),
            },
            sent: Vec::new(),
        }
    }

    pub fn name(&self) -> NativeAddr {
        self.shm.native()
    }

    pub fn insert(&mut self, name: &NativeAddr) -> FiAddr {
        let Placed { addr, new } = self.owner.av.insert(name).unwrap();
        if new {
            self.shm.peer_inserted(addr, name, &mut self.owner);
            self.after();
        }
        addr
    }

    pub fn remove(&mut self, addr: FiAddr) {
        self.owner.av.remove(addr).unwrap();
        self.shm.peer_removed(addr, &mut self.owner);
        self.after();
    }

    #[inline]
    fn after(&mut self) {
        if !self.owner.srx.starts.is_empty() || !self.owner.srx.failed.is_empty() {
            self.run_deferred();
        }
    }

    #[cold]
    fn run_deferred(&mut self) {
        while let Some(start) = self.owner.srx.starts.pop_front() {
            // SAFETY: the poster of the receive keeps its buffer.
            unsafe { self.shm.start(start, &mut self.owner) };
        }
        for error in std::mem::take(&mut self.owner.srx.failed) {
            self.owner.cq.write_error(error);
            self.owner.rx.inc_error();
        }
    }

    /// # Safety
    ///
    /// As for the transport.
    #[inline]
    pub unsafe fn send_op(&mut self, op: &SendOp, iov: &[IoBuf]) -> Result<(), OpError> {
        // SAFETY: the caller's contract.
        let sent = unsafe { self.shm.send(op, iov, &mut self.owner) };
        self.after();
        sent
    }

    /// Tagged, with a completion. Sends a copy, which this endpoint keeps: a send may wait for its
    /// first link after its call has returned.
    pub fn tsend(
        &mut self,
        dest: FiAddr,
        tag: u64,
        bytes: &[u8],
        context: u64,
    ) -> Result<(), OpError> {
        let copy: Box<[u8]> = bytes.into();
        // SAFETY: the copy stays as long as the endpoint.
        unsafe { self.tsend_from(dest, tag, &copy, context) }?;
        self.sent.push(copy);
        Ok(())
    }

    /// The same without a copy.
    ///
    /// # Safety
    ///
    /// The bytes stay until the send completes.
    #[inline]
    pub unsafe fn tsend_from(
        &mut self,
        dest: FiAddr,
        tag: u64,
        bytes: &[u8],
        context: u64,
    ) -> Result<(), OpError> {
        let op = tagged(dest, tag, context);
        // SAFETY: the caller's contract.
        unsafe { self.send_op(&op, &[IoBuf::new(bytes.as_ptr(), bytes.len())]) }
    }

    #[inline]
    pub fn recv_from(
        &mut self,
        kind: MsgKind,
        src: FiAddr,
        tag: u64,
        ignore: u64,
        buf: &mut [u8],
        context: u64,
    ) {
        let posted = PostedReceive {
            src,
            tag,
            ignore,
            buf: ReceiveBuffers::One(IoBuf::new(buf.as_mut_ptr(), buf.len())),
            desc: MrDesc::NONE,
            context,
            flags: Flags::COMPLETION,
        };
        let start = self.owner.srx.of(kind).post(posted);
        if let Some(start) = start {
            // SAFETY: tests keep their buffers.
            unsafe { self.shm.start(start_of(kind, start), &mut self.owner) };
        }
        self.after();
    }

    #[inline]
    pub fn trecv(&mut self, tag: u64, ignore: u64, buf: &mut [u8], context: u64) {
        self.recv_from(MsgKind::Tagged, FiAddr::UNSPEC, tag, ignore, buf, context);
    }

    /// Drops the oldest unexpected message with this tag.
    pub fn discard(&mut self, tag: u64) -> bool {
        let Some(message) = self.owner.srx.tagged.discard(FiAddr::UNSPEC, tag, 0) else {
            return false;
        };
        self.shm
            .discard(MsgKind::Tagged, message.token, &mut self.owner);
        self.after();
        true
    }

    /// Cancels all receives with this context and discards all unexpected messages, as a closing
    /// endpoint does. Returns the number of receives.
    pub fn drain(&mut self, context: u64) -> usize {
        let mut receives = 0;
        for kind in [MsgKind::Tagged, MsgKind::Msg] {
            while self.owner.srx.of(kind).cancel(context).is_some() {
                receives += 1;
            }
            while let Some(message) = (self.owner.srx.of(kind)).discard(FiAddr::UNSPEC, 0, u64::MAX)
            {
                self.shm.discard(kind, message.token, &mut self.owner);
            }
        }
        self.after();
        receives
    }

    #[inline]
    pub fn progress(&mut self) -> usize {
        let did = self.shm.progress(&mut self.owner);
        self.after();
        did
    }

    /// The next completion or error, if there is one after one call to progress.
    #[inline]
    pub fn poll(&mut self) -> Option<Result<Completion, CqError>> {
        let mut out = [Completion::BLANK];
        match self.owner.cq.read(&mut out) {
            Ok(_) => return Some(Ok(out[0])),
            Err(OpError::Again) => {}
            Err(_) => return self.owner.cq.read_error().map(Err),
        }
        self.progress();
        match self.owner.cq.read(&mut out) {
            Ok(_) => Some(Ok(out[0])),
            Err(OpError::Again) => None,
            Err(_) => self.owner.cq.read_error().map(Err),
        }
    }

    /// Reads as an application does: completions into `out`, after progress if there are none.
    /// Errors end the process.
    #[inline]
    pub fn read(&mut self, out: &mut [Completion]) -> usize {
        if self.owner.cq.is_empty() {
            self.progress();
            if self.owner.cq.is_empty() {
                return 0;
            }
        }
        self.owner.cq.read(out).unwrap()
    }

    /// The next completion or error. Yields the core between polls.
    pub fn wait(&mut self) -> Result<Completion, CqError> {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = self.poll() {
                return found;
            }
            assert!(
                Instant::now() < end,
                "nothing happens: {:?}",
                self.shm.stats()
            );
            std::thread::yield_now();
        }
    }

    /// As `wait`, asleep while there is no work.
    pub fn wait_asleep(&mut self) -> Result<Completion, CqError> {
        loop {
            if let Some(found) = self.poll() {
                return found;
            }
            self.sleep(TIMEOUT);
        }
    }

    /// Sleeps until the transport is woken, unless there is work. Panics if it is not woken in
    /// time.
    pub fn sleep(&mut self, most: Duration) {
        if self.shm.arm().unwrap() {
            let mut fd = libc::pollfd {
                fd: self.shm.wait_fd().as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one entry, ours.
            let n = unsafe { libc::poll(&raw mut fd, 1, most.as_millis() as i32) };
            assert_eq!(n, 1, "no wake-up within {most:?}: {:?}", self.shm.stats());
        }
    }
}

pub fn tagged(dest: FiAddr, tag: u64, context: u64) -> SendOp {
    SendOp {
        kind: MsgKind::Tagged,
        dest,
        tag,
        data: 0,
        desc: MrDesc::NONE,
        context,
        flags: Flags::COMPLETION,
    }
}
