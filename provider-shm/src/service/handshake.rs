//! One connection of a handshake: four records, either side can give up at any of them, and all of
//! it is over before the first message is sent through the segment.
//!
//! ```text
//! initiator                                   acceptor
//!     HELLO  who I am, whom I look for  ──▶
//!                                       ◀──   WELCOME  who I am, or why not
//!     MAP    the segment's descriptor   ──▶
//!                                       ◀──   READY    mapped, or why not
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_contracts::addr::NativeAddr;

use super::frame::{Frame, HELLO, MAP, OK, READY, REFUSED, REGISTERED, WELCOME};
use super::{NewLink, Shared, socket};
use crate::cma::CmaPeer;
use crate::segment::{Segment, Side};

/// Who takes so long to answer was silent.
const SILENCE: Duration = Duration::from_secs(1);

/// Which record a connection waits for.
pub(super) enum Stage {
    /// Acceptor: somebody is there.
    Hello,
    /// Acceptor: welcomed; the segment comes next.
    Map(Met),
    /// Initiator: said hello.
    Welcome(NativeAddr),
    /// Initiator: has handed the segment over.
    Ready(Box<NewLink>),
}

/// Whom an acceptor has met.
pub(super) struct Met {
    native: NativeAddr,
    id: u64,
    cma: Option<CmaPeer>,
    registered: bool,
}

/// A connection.
pub(super) struct Connection {
    pub(super) fd: OwnedFd,
    pub(super) stage: Stage,
    since: Instant,
    /// A client's. Whom we have connected to may be silent for as long as it exists.
    pub(super) deadline: Option<Instant>,
    /// The peer's id, once it is known.
    pub(super) peer: Option<u64>,
    /// As the kernel says; 0 where it can not be seen from here.
    pub(super) pid: i32,
    nonce: u64,
}

/// Why a connection came to nothing.
pub(super) enum Failure {
    /// The other side hung up or is busy: try again.
    Later,
    /// It will not do, ever.
    Never(&'static str),
}

impl Connection {
    /// Somebody has connected.
    pub(super) fn accepted(fd: OwnedFd, pid: i32, deadline: Instant) -> Self {
        Self {
            fd,
            stage: Stage::Hello,
            since: Instant::now(),
            deadline: Some(deadline),
            peer: None,
            pid,
            nonce: 0,
        }
    }

    /// Says hello at `target`.
    pub(super) fn hello(
        fd: OwnedFd,
        pid: i32,
        target: NativeAddr,
        nonce: u64,
        shared: &Shared,
        offer_cma: bool,
    ) -> nix::Result<Self> {
        let mut frame = introduce(HELLO, nonce, shared, offer_cma);
        frame.wanted = target.incarnation;
        socket::send(&fd, &frame, None)?;
        Ok(Self {
            fd,
            stage: Stage::Welcome(target),
            since: Instant::now(),
            deadline: None,
            peer: target.shm,
            pid,
            nonce,
        })
    }

    /// Whether somebody has connected to us.
    pub(super) fn is_client(&self) -> bool {
        self.deadline.is_some()
    }

    /// Whether the peer may count on the link.
    pub(super) fn has_given_segment(&self) -> bool {
        matches!(self.stage, Stage::Ready(_))
    }

    /// When it was made.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Whether the other side took long to do anything, if it is now that it has.
    pub(super) fn was_silent(&self) -> bool {
        self.since.elapsed() > SILENCE
    }

    /// Acceptor: reads a hello. `Err`: it is not one, or it looks for somebody else; the connection
    /// is to be closed.
    pub(super) fn read_hello(&mut self, bytes: &[u8], shared: &Shared) -> Result<Met, ()> {
        let frame = Frame::parse(bytes, HELLO).ok_or(())?;
        self.nonce = frame.nonce;
        let native = NativeAddr::from_bytes(&frame.from).map_err(|_| ())?;
        let id = native.shm.ok_or(())?;
        let own = shared.name();
        if frame.wanted != own.incarnation || !have_one_key(&native, &own) {
            self.answer(WELCOME, REFUSED, shared, false);
            return Err(());
        }
        Ok(Met {
            native,
            id,
            cma: CmaPeer::probe(self.pid, frame.cookie_addr, frame.cookie),
            registered: frame.flags & REGISTERED != 0,
        })
    }

    /// Acceptor: answers.
    pub(super) fn answer(&self, kind: u8, verdict: u8, shared: &Shared, offer_cma: bool) -> bool {
        let mut frame = introduce(kind, self.nonce, shared, offer_cma);
        frame.verdict = verdict;
        socket::send(&self.fd, &frame, None).is_ok()
    }

    /// Initiator: reads the welcome, makes the segment and hands it over.
    pub(super) fn read_welcome(
        &mut self,
        bytes: &[u8],
        target: &NativeAddr,
        shared: &Shared,
        offers_cma: bool,
    ) -> Result<(), Failure> {
        let frame = self.read_answer(bytes, WELCOME)?;
        let native = NativeAddr::from_bytes(&frame.from)
            .map_err(|_| Failure::Never("its address makes no sense"))?;
        if native.shm != target.shm || native.incarnation != target.incarnation {
            return Err(Failure::Never("somebody else has its name"));
        }
        if !have_one_key(&native, &shared.name()) {
            return Err(Failure::Never("it has another authorization key"));
        }
        let (segment, fd) = Segment::create().map_err(|_| Failure::Later)?;
        let frame_out = introduce(MAP, self.nonce, shared, false);
        socket::send(&self.fd, &frame_out, Some(fd.as_fd())).map_err(|_| Failure::Later)?;
        self.stage = Stage::Ready(Box::new(NewLink {
            native: *target,
            id: target.shm.unwrap_or_default(),
            segment: Arc::new(segment),
            side: Side::Initiator,
            cma: CmaPeer::probe(self.pid, frame.cookie_addr, frame.cookie),
            offers_cma,
            fence: !(shared.registered && frame.flags & REGISTERED != 0),
        }));
        Ok(())
    }

    /// Initiator: reads the last record.
    pub(super) fn read_ready(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.read_answer(bytes, READY).map(drop)
    }

    /// Acceptor: takes the segment.
    pub(super) fn read_map(
        &self,
        bytes: &[u8],
        fds: &[OwnedFd],
        met: Met,
        shared: &Shared,
        offers_cma: bool,
    ) -> Result<NewLink, ()> {
        let frame = Frame::parse(bytes, MAP).ok_or(())?;
        let [fd] = fds else { return Err(()) };
        if frame.nonce != self.nonce {
            return Err(());
        }
        let segment = Segment::accept(fd.as_fd()).map_err(|error| {
            tracing::warn!(%error, peer = %met.native, "refused a shared-memory link");
        })?;
        Ok(NewLink {
            native: met.native,
            id: met.id,
            segment: Arc::new(segment),
            side: Side::Acceptor,
            cma: met.cma,
            offers_cma,
            fence: !(shared.registered && met.registered),
        })
    }

    fn read_answer(&self, bytes: &[u8], due: u8) -> Result<Frame, Failure> {
        let frame = Frame::parse(bytes, due)
            .ok_or(Failure::Never("it speaks another version of the protocol"))?;
        if frame.nonce != self.nonce {
            return Err(Failure::Never("it does not repeat our nonce"));
        }
        match frame.verdict {
            OK => Ok(frame),
            REFUSED => Err(Failure::Never("it refused")),
            _ => Err(Failure::Later),
        }
    }
}

impl Met {
    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

/// Whether both may speak to each other: endpoints that also speak over a device have keys, which
/// are the same then, but for the kind of membership of the partition.
fn have_one_key(one: &NativeAddr, other: &NativeAddr) -> bool {
    const PARTITION: u16 = 0x7fff;
    match (&one.verbs, &other.verbs) {
        (Some(one), Some(other)) => {
            one.qkey == other.qkey && (one.pkey ^ other.pkey) & PARTITION == 0
        }
        _ => true,
    }
}

fn introduce(kind: u8, nonce: u64, shared: &Shared, offer_cma: bool) -> Frame {
    let mut frame = Frame::new(kind, nonce, shared.name().to_bytes());
    if offer_cma {
        frame.cookie_addr = shared.cookie.as_ptr() as u64;
        frame.cookie = shared.cookie;
    }
    if shared.registered {
        frame.flags |= REGISTERED;
    }
    frame
}
