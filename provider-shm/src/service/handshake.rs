//! One connection of a handshake: four records. Either side can give up at any of them, and the
//! handshake is over before the first message is sent through the segment.
//!
//! ```text
//! initiator                                   acceptor
//!     HELLO  its address, and the peer  ──▶
//!                                       ◀──   WELCOME  its address, or a refusal
//!     MAP    the segment's descriptor   ──▶
//!                                       ◀──   READY    mapped, or a refusal
//! ```
//!
//! The descriptor of a side's board of regions, if it has one, comes with its last record.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, Error};
use nix::errno::Errno as Sys;

use super::frame::{Frame, HELLO, MAP, OK, READY, REFUSED, REGISTERED, WELCOME};
use super::socket::Record;
use super::{EndpointShared, NewLink, PeerRegions, socket};
use crate::board::PeerBoard;
use crate::cma::CmaPeer;
use crate::segment::{SegmentSide, ShmSegment};

/// A peer counts as silent if it takes longer than this to answer.
const SILENCE: Duration = Duration::from_secs(1);

/// The record that a connection waits for.
pub(super) enum HandshakeStage {
    /// Acceptor: a client has connected.
    Hello,
    /// Acceptor: has sent `WELCOME`; the segment comes next.
    Map(IdentifiedClient),
    /// Initiator: has sent `HELLO`.
    Welcome(NativeAddr),
    /// Initiator: has sent the segment.
    Ready(Box<NewLink>),
}

/// A client whose `HELLO` the acceptor has read.
pub(super) struct IdentifiedClient {
    native: NativeAddr,
    id: u64,
    cma: Option<CmaPeer>,
    registered: bool,
}

/// A connection.
pub(super) struct Connection {
    pub(super) fd: OwnedFd,
    pub(super) stage: HandshakeStage,
    since: Instant,
    /// The deadline of a client. A peer that we have connected to may be silent for as long as it
    /// exists.
    pub(super) deadline: Option<Instant>,
    /// The peer's id, once it is known.
    pub(super) peer: Option<u64>,
    /// Process ID from the kernel; 0 if it can not be seen from here.
    pub(super) pid: i32,
    nonce: u64,
}

/// The reason why a connection made no link.
pub(super) enum HandshakeFailure {
    /// The attempt is repeated. The words are for the time when there were too many.
    Later(&'static str),
    /// No attempt can succeed.
    Never(&'static str),
}

/// The other side is there, and hung up or is busy.
pub(super) const REFUSES: HandshakeFailure = HandshakeFailure::Later("it refuses every connection");

/// This process can have no other descriptor at the moment.
pub(super) const NO_DESCRIPTOR: &str =
    "this process has no descriptor left for a link: raise its limit (ulimit -n)";

/// Why this process has no memory for a link.
fn no_segment(error: &Error) -> HandshakeFailure {
    tracing::warn!(%error, "no shared-memory link");
    match Sys::from_raw(error.errno().0) {
        Sys::EPERM | Sys::EACCES | Sys::ENOSYS => HandshakeFailure::Never(
            "this process may not make shared memory: allow it memfd_create(2) and fallocate(2)",
        ),
        Sys::EFBIG => HandshakeFailure::Never(
            "the limit of file sizes is below a link's memory: raise it (ulimit -f)",
        ),
        Sys::EMFILE | Sys::ENFILE => HandshakeFailure::Later(NO_DESCRIPTOR),
        _ => HandshakeFailure::Later("there is no memory for a link: free some"),
    }
}

/// Why an acceptor made no link of a segment.
pub(super) enum Unmapped {
    /// Descriptors or memory are short here: the other side tries again.
    Busy,
    /// It is no segment.
    Refused,
}

impl Connection {
    /// A connection of a client.
    pub(super) fn accepted(fd: OwnedFd, pid: i32, deadline: Instant) -> Self {
        Self {
            fd,
            stage: HandshakeStage::Hello,
            since: Instant::now(),
            deadline: Some(deadline),
            peer: None,
            pid,
            nonce: 0,
        }
    }

    /// Connects to `target`, and sends `HELLO`.
    pub(super) fn hello(
        fd: OwnedFd,
        pid: i32,
        target: NativeAddr,
        nonce: u64,
        shared: &EndpointShared,
        offer_cma: bool,
    ) -> nix::Result<Self> {
        let mut frame = introduce(HELLO, nonce, shared, offer_cma);
        frame.wanted = target.incarnation;
        socket::send(&fd, &frame, &[])?;
        Ok(Self {
            fd,
            stage: HandshakeStage::Welcome(target),
            since: Instant::now(),
            deadline: None,
            peer: target.shm,
            pid,
            nonce,
        })
    }

    /// Whether a client made this connection.
    pub(super) fn is_client(&self) -> bool {
        self.deadline.is_some()
    }

    /// Whether the peer has the segment, and may use the link.
    pub(super) fn has_given_segment(&self) -> bool {
        matches!(self.stage, HandshakeStage::Ready(_))
    }

    /// The time of the connection.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Whether the other side took long to act, if it acts now.
    pub(super) fn was_silent(&self) -> bool {
        self.since.elapsed() > SILENCE
    }

    /// Acceptor: reads a `HELLO`. `Err`: the record is not valid, or is meant for another endpoint;
    /// the caller must close the connection.
    pub(super) fn read_hello(
        &mut self,
        bytes: &[u8],
        shared: &EndpointShared,
    ) -> Result<IdentifiedClient, ()> {
        let frame = Frame::parse(bytes, HELLO).ok_or(())?;
        self.nonce = frame.nonce;
        let native = NativeAddr::from_bytes(&frame.from).map_err(|_| ())?;
        let id = native.shm.ok_or(())?;
        let own = shared.name();
        if frame.wanted != own.incarnation || !have_one_key(&native, &own) {
            self.answer(WELCOME, REFUSED, shared, false);
            return Err(());
        }
        Ok(IdentifiedClient {
            native,
            id,
            cma: CmaPeer::probe(self.pid, frame.cookie_addr, frame.cookie),
            registered: frame.flags & REGISTERED != 0,
        })
    }

    /// Acceptor: sends an answer.
    pub(super) fn answer(
        &self,
        kind: u8,
        verdict: u8,
        shared: &EndpointShared,
        offer_cma: bool,
    ) -> bool {
        let mut frame = introduce(kind, self.nonce, shared, offer_cma);
        frame.verdict = verdict;
        socket::send(&self.fd, &frame, &[]).is_ok()
    }

    /// Acceptor: sends the last record, once the segment is mapped.
    pub(super) fn ready(&self, shared: &EndpointShared) {
        let mut frame = introduce(READY, self.nonce, shared, false);
        let board = show(&mut frame, shared);
        // If it fails, the initiator finds its connection closed.
        let _ = socket::send(&self.fd, &frame, board.as_slice());
    }

    /// Initiator: reads `WELCOME`, makes the segment and sends it.
    pub(super) fn read_welcome(
        &mut self,
        bytes: &[u8],
        target: &NativeAddr,
        shared: &EndpointShared,
        offers_cma: bool,
    ) -> Result<(), HandshakeFailure> {
        let frame = self.read_answer(bytes, WELCOME)?;
        let native = NativeAddr::from_bytes(&frame.from)
            .map_err(|_| HandshakeFailure::Never("its address is not valid"))?;
        if native.shm != target.shm || native.incarnation != target.incarnation {
            return Err(HandshakeFailure::Never("another endpoint has its name"));
        }
        if !have_one_key(&native, &shared.name()) {
            return Err(HandshakeFailure::Never("it has another authorization key"));
        }
        let (segment, fd) = ShmSegment::create().map_err(|error| no_segment(&error))?;
        let (segment, id) = (Arc::new(segment), target.shm.unwrap_or_default());
        let watch = shared.watch(&segment, SegmentSide::Initiator, id);
        let mut frame_out = introduce(MAP, self.nonce, shared, false);
        let board = show(&mut frame_out, shared);
        let given: Vec<_> = [fd.as_fd()].into_iter().chain(board).collect();
        socket::send(&self.fd, &frame_out, &given).map_err(|_| REFUSES)?;
        self.stage = HandshakeStage::Ready(Box::new(NewLink {
            native: *target,
            id,
            segment,
            side: SegmentSide::Initiator,
            regions: None,
            watch,
            cma: CmaPeer::probe(self.pid, frame.cookie_addr, frame.cookie),
            offers_cma,
            fence: !(shared.registered && frame.flags & REGISTERED != 0),
        }));
        Ok(())
    }

    /// Initiator: reads the last record.
    pub(super) fn read_ready(
        &self,
        record: &Record,
        link: &mut NewLink,
    ) -> Result<(), HandshakeFailure> {
        let frame = self.read_answer(&record.bytes, READY)?;
        link.regions = record
            .fds
            .first()
            .and_then(|fd| self.regions_of(&frame, fd));
        Ok(())
    }

    /// Acceptor: maps the segment.
    pub(super) fn read_map(
        &self,
        record: &Record,
        met: IdentifiedClient,
        shared: &EndpointShared,
        offers_cma: bool,
    ) -> Result<NewLink, Unmapped> {
        if record.lacks_descriptors {
            tracing::warn!(peer = %met.native, "no descriptor left for a shared-memory link");
            return Err(Unmapped::Busy);
        }
        let frame = Frame::parse(&record.bytes, MAP).ok_or(Unmapped::Refused)?;
        let (fd, board) = match &record.fds[..] {
            [fd] => (fd, None),
            [fd, board] => (fd, Some(board)),
            _ => return Err(Unmapped::Refused),
        };
        if frame.nonce != self.nonce {
            return Err(Unmapped::Refused);
        }
        let segment = ShmSegment::accept(fd.as_fd()).map_err(|error| {
            tracing::warn!(%error, peer = %met.native, "refused a shared-memory link");
            match error.errno() {
                Errno::EPROTO => Unmapped::Refused,
                _ => Unmapped::Busy,
            }
        })?;
        let segment = Arc::new(segment);
        let watch = shared.watch(&segment, SegmentSide::Acceptor, met.id);
        Ok(NewLink {
            native: met.native,
            id: met.id,
            segment,
            side: SegmentSide::Acceptor,
            regions: board.and_then(|fd| self.regions_of(&frame, fd)),
            watch,
            cma: met.cma,
            offers_cma,
            fence: !(shared.registered && met.registered),
        })
    }

    /// The regions that the other side shows, whose board has come with a record. Without it,
    /// one-sided operations go as messages.
    fn regions_of(&self, frame: &Frame, fd: &OwnedFd) -> Option<PeerRegions> {
        match PeerBoard::accept(fd.as_fd()) {
            Ok(board) => Some(PeerRegions {
                board,
                rights: frame.board_rights(),
                pid: self.pid,
            }),
            Err(error) => {
                tracing::warn!(%error, "refused a board of regions");
                None
            }
        }
    }

    fn read_answer(&self, bytes: &[u8], due: u8) -> Result<Frame, HandshakeFailure> {
        let frame = Frame::parse(bytes, due).ok_or(HandshakeFailure::Never(
            "it speaks another version of the protocol",
        ))?;
        if frame.nonce != self.nonce {
            return Err(HandshakeFailure::Never("it does not repeat our nonce"));
        }
        match frame.verdict {
            OK => Ok(frame),
            REFUSED => Err(HandshakeFailure::Never("it refused")),
            _ => Err(REFUSES),
        }
    }
}

impl IdentifiedClient {
    pub(super) fn id(&self) -> u64 {
        self.id
    }
}

/// Whether two endpoints may communicate: endpoints that also use a device have the same
/// authorization key or both none, and are in one partition, as members of either kind.
fn have_one_key(one: &NativeAddr, other: &NativeAddr) -> bool {
    const PARTITION: u16 = 0x7fff;
    let no_key = one.has_drawn_qkey() && other.has_drawn_qkey();
    match (&one.verbs, &other.verbs) {
        (Some(one), Some(other)) => {
            (no_key || one.qkey == other.qkey) && (one.pkey ^ other.pkey) & PARTITION == 0
        }
        _ => true,
    }
}

fn introduce(kind: u8, nonce: u64, shared: &EndpointShared, offer_cma: bool) -> Frame {
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

/// Says in a record that the sender's board comes with it.
fn show<'a>(frame: &mut Frame, shared: &'a EndpointShared) -> Option<BorrowedFd<'a>> {
    let (board, flags) = shared.shown()?;
    frame.flags |= flags;
    Some(board)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrofabric_contracts::addr::{GidKind, VerbsAddr};

    /// Covers: AV-21
    #[test]
    fn endpoints_communicate_with_one_key_or_none() {
        let name = |random: u64, key: Option<u32>| {
            let verbs = VerbsAddr {
                gid: [0; 16],
                gid_kind: GidKind::RoceV2,
                qpn: 17,
                qkey: key.unwrap_or(NativeAddr::drawn_qkey(random)),
                lid: 0,
                pkey: 0xffff,
                sl: 0,
                port: 1,
                mtu_bytes: 4096,
            };
            NativeAddr::of_new(1, Some(verbs), true, random)
        };
        let (none, other_none) = (name(5, None), name(6, None));
        let (one, same, other) = (name(7, Some(1)), name(8, Some(1)), name(9, Some(2)));
        assert!(have_one_key(&none, &other_none) && have_one_key(&one, &same));
        for (left, right) in [(none, one), (one, none), (one, other)] {
            assert!(!have_one_key(&left, &right));
        }
    }
}
