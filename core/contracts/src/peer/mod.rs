//! Peers: how a provider hands its objects to another one, after fi_peer(3).
//!
//! The *owner* is the provider that the application sees: its completion queues, counters, shared
//! receive context and address vector are used by a *peer*, which carries the traffic that the
//! owner routes to it. One trait for each object's owner side, and [`Transport`] for the peer's
//! side of all of them.
//!
//! Locking is written into the signatures. Every call here is a progress-level call of fi_peer(3)
//! and takes `&mut`: its caller holds the lock of the owner's domain (`Serial`) for the whole of
//! it, so `arrive` and the `queue` that may follow are one step, and nobody else drives the same
//! peer. A peer never calls its owner outside a call that the owner made to it, and no owner call
//! ever calls back into the peer: a message that a receive has just matched is returned by value,
//! and started when the call that matched it is over.

mod any_owner;
mod av;
mod cntr;
mod cq;
#[allow(unsafe_code, reason = "the data path hands buffers over as addresses")]
mod datagram;
#[allow(unsafe_code, reason = "the data path hands buffers over as addresses")]
mod deliver;
mod eq;
#[allow(unsafe_code, reason = "the data path hands buffers over as addresses")]
mod paired;
#[allow(unsafe_code, reason = "the data path hands buffers over as addresses")]
mod routed;
mod srx;
#[allow(unsafe_code, reason = "the data path hands buffers over as addresses")]
mod transport;

pub use any_owner::AnyOwner;
pub use av::PeerAv;
pub use cntr::PeerCntr;
pub use cq::{Completion, CqError, PeerCq};
pub use datagram::DatagramTransport;
pub use deliver::deliver;
pub use eq::{AV_COMPLETE, Done, EqError, Event, PeerEq};
pub use paired::{HandsBack, PairRoute, Paired, Reaches, TakesOver, Unsent};
pub use routed::Routed;
pub use srx::{Arrived, Matched, PeerSrx, Piece, Start, Token};
pub use transport::{MappedCall, SendDone, Shortcut, ShortcutEnd, Transport};

use crate::addr::NativeAddr;
use crate::error::Errno;
use crate::flags::Flags;
use crate::types::{FiAddr, MsgKind, RemoteKind, SendOp};

/// Why a part of a one-sided operation fails that the target refuses.
pub const PART_REFUSED: &str = "the target refuses it: it has no such key, range or right";

/// Why the operations with a peer fail that was removed.
pub const PEER_REMOVED: &str = "the peer was removed from the address vector";

/// Why the operations with a peer fail in whose place another one was found.
pub const PEER_REPLACED: &str = "another endpoint listens at the peer's socket address now";

/// All that an owner lends to the peers of one endpoint.
pub trait Owner {
    /// The shared receive context.
    fn srx(&mut self) -> &mut impl PeerSrx;
    /// The completion queue for sends.
    fn tx_cq(&mut self) -> &mut impl PeerCq;
    /// The completion queue for receives.
    fn rx_cq(&mut self) -> &mut impl PeerCq;
    /// The counter for sends.
    fn tx_cntr(&mut self) -> &mut impl PeerCntr;
    /// The counter for receives.
    fn rx_cntr(&mut self) -> &mut impl PeerCntr;
    /// The address vector.
    fn av(&self) -> &impl PeerAv;

    /// The source that the error for a sender outside of the address vector has: the authorization
    /// key that the message came with, where endpoints have those of their address vectors
    /// (fi_cq(3), `FI_EADDRNOTAVAIL`).
    #[cold]
    fn unknown_source(&self) -> FiAddr {
        FiAddr::NOTAVAIL
    }

    /// The peer has taken a part of a one-sided operation, or the part has failed: with an errno,
    /// the transport's own number, and words.
    #[cold]
    fn remote_part_sent(
        &mut self,
        kind: RemoteKind,
        done: &SendDone,
        failed: Option<(Errno, i32, &'static str)>,
    ) {
        let _ = (kind, done, failed);
    }

    /// A part of a one-sided operation has come whole, into the memory that [`PeerSrx::arrive`]
    /// returned for it, or has failed: with an errno, and words.
    #[cold]
    fn remote_part_came(
        &mut self,
        kind: RemoteKind,
        m: &Matched,
        a: &Arrived,
        failed: Option<(Errno, &'static str)>,
    ) {
        let _ = (kind, m, a, failed);
    }

    /// A one-sided operation is over that was under way at the transport
    /// ([`Shortcut::UnderWay`]). The number is that of its [`GrantedMemory`]. The transport does
    /// not use its buffers any more.
    ///
    /// [`GrantedMemory`]: crate::types::GrantedMemory
    #[cold]
    fn shortcut_over(&mut self, number: u64, end: ShortcutEnd) {
        let _ = (number, end);
    }

    /// The endpoint at an address is gone, and its operations have failed. If the address was
    /// inserted by a socket address, the owner looks for the endpoint that listens there now, and
    /// calls [`Transport::peer_replaced`] at the end of this call into the transport.
    #[cold]
    fn peer_gone(&mut self, addr: FiAddr) {
        let _ = addr;
    }

    /// Reports a send that is done.
    #[inline(always)]
    fn complete_send(&mut self, done: &SendDone) {
        let how = done.flags & (Flags::COMPLETION | Flags::RMA);
        if how == Flags::COMPLETION {
            self.tx_cq().write(&Completion {
                context: done.context,
                flags: done.kind.send_flags(),
                len: 0,
                buf: 0,
                data: 0,
                tag: 0,
                src: FiAddr::NOTAVAIL,
            });
        } else if how.contains(Flags::RMA) {
            // A copy, so that messages need no memory for their fields.
            return self.complete_part_or_send(&{ *done });
        }
        self.tx_cntr().inc(done.len);
    }

    /// As `complete_send`, with [`Flags::RMA`]. Each part of a one-sided operation has it, so that
    /// messages need no look at their kind, and so has each message of a collective operation. It
    /// says nothing of another message.
    #[cold]
    #[inline(never)]
    fn complete_part_or_send(&mut self, done: &SendDone) {
        match done.kind {
            MsgKind::Remote(kind) => self.remote_part_sent(kind, done, None),
            _ if done.flags.contains(Flags::COLLECTIVE) => self.tx_cq().write(&Completion {
                context: done.context,
                flags: done.kind.send_flags() | Flags::COLLECTIVE,
                len: 0,
                buf: 0,
                data: 0,
                tag: 0,
                src: FiAddr::NOTAVAIL,
            }),
            _ => self.complete_send(&SendDone {
                flags: done.flags - Flags::RMA,
                ..*done
            }),
        }
    }

    /// Reports a send that failed; errors are reported with or without a completion.
    #[cold]
    fn fail_send(&mut self, done: &SendDone, errno: Errno, prov_errno: i32, why: &'static str) {
        if let MsgKind::Remote(kind) = done.kind {
            return self.remote_part_sent(kind, done, Some((errno, prov_errno, why)));
        }
        let src = self.av().reported(done.dest);
        self.tx_cq().write_error(CqError {
            completion: Completion {
                context: done.context,
                flags: done.kind.send_flags() | (done.flags & Flags::COLLECTIVE),
                len: 0,
                buf: 0,
                data: 0,
                tag: done.tag,
                src,
            },
            olen: 0,
            errno,
            prov_errno,
            why,
            sender: None,
        });
        if !done.flags.contains(Flags::COLLECTIVE) {
            self.tx_cntr().inc_error();
        }
    }

    /// Reports a received message of `len` bytes, all of which arrived. `sender` names its sender;
    /// it is called only for an unknown source, and where the receive reports it (`FI_SOURCE_ERR`).
    #[inline(always)]
    fn complete_recv(
        &mut self,
        kind: MsgKind,
        m: &Matched,
        a: &Arrived,
        sender: impl FnOnce() -> Option<NativeAddr>,
    ) {
        self.complete_recv_behind(0, kind, m, a, sender);
    }

    /// As `complete_recv`, where the first `prefix` bytes of the `len` are not the application's
    /// (`FI_MSG_PREFIX`).
    #[inline(always)]
    fn complete_recv_behind(
        &mut self,
        prefix: usize,
        kind: MsgKind,
        m: &Matched,
        a: &Arrived,
        sender: impl FnOnce() -> Option<NativeAddr>,
    ) {
        const UNUSUAL: Flags = Flags::MULTI_RECV.union(Flags::SOURCE_ERR);
        if a.len > m.buf.len as u64 {
            return self.truncate_recv(kind, &{ *m }, &{ *a });
        }
        if m.flags & (Flags::COMPLETION | UNUSUAL) != Flags::COMPLETION {
            // Copies, here and above: the common fields then need neither in memory, where a load
            // would wait for fields that were written one by one.
            let (m, a) = (&{ *m }, &{ *a });
            let named = m.flags & (Flags::SOURCE_ERR | Flags::COLLECTIVE) == Flags::SOURCE_ERR;
            if named && !a.src.is_some() {
                return self.complete_from_unknown_source(prefix, kind, m, a, sender());
            }
            return self.complete_quiet_or_piece(prefix, kind, m, a);
        }
        let src = self.av().reported(a.src);
        self.rx_cq()
            .write(&recv_completion(kind, m, a, src, Flags::empty()));
        self.rx_cntr().inc(a.len as usize - prefix);
    }

    /// As `complete_recv`, of a receive that wants no completion, or of a piece: the last piece of
    /// a multi-receive always has a completion, which says that the buffer is free (fi_msg(3),
    /// `FI_MULTI_RECV`). A message of a collective operation has one, too, and is not counted.
    #[inline(never)]
    fn complete_quiet_or_piece(&mut self, prefix: usize, kind: MsgKind, m: &Matched, a: &Arrived) {
        if let MsgKind::Remote(kind) = kind {
            return self.remote_part_came(kind, m, a, None);
        }
        let more = self.complete_piece(kind, m);
        let collective = m.flags & Flags::COLLECTIVE;
        let reports = (m.flags | more).intersects(Flags::COMPLETION | Flags::COLLECTIVE);
        if reports || more.contains(Flags::MULTI_RECV) {
            let src = self.av().reported(a.src);
            self.rx_cq().write(&Completion {
                buf: place(m),
                ..recv_completion(kind, m, a, src, more | collective)
            });
        }
        if collective.is_empty() {
            self.rx_cntr().inc(a.len as usize - prefix);
        }
    }

    /// Reports a message that was received whole from a sender that was not in the address vector
    /// when it came: an error that names it (fi_cq(3), `FI_EADDRNOTAVAIL`), unless it was inserted
    /// meanwhile.
    #[cold]
    fn complete_from_unknown_source(
        &mut self,
        prefix: usize,
        kind: MsgKind,
        m: &Matched,
        a: &Arrived,
        sender: Option<NativeAddr>,
    ) {
        let src = sender.map_or(FiAddr::NOTAVAIL, |name| self.av().find(&name));
        if src.is_some() {
            return self.complete_quiet_or_piece(prefix, kind, m, &Arrived { src, ..*a });
        }
        let more = self.complete_piece(kind, m);
        let src = self.unknown_source();
        self.rx_cq().write_error(CqError {
            completion: Completion {
                buf: place(m),
                ..recv_completion(kind, m, a, src, more)
            },
            olen: 0,
            errno: Errno::EADDRNOTAVAIL,
            prov_errno: 0,
            why: "the message was received, from a sender that is not in the address vector",
            sender: sender.map(Box::new),
        });
        self.rx_cntr().inc_error();
    }

    /// The further flags of a receive's completion.
    #[inline]
    fn complete_piece(&mut self, kind: MsgKind, m: &Matched) -> Flags {
        match m.piece {
            Piece::NONE => Flags::empty(),
            piece => self.srx().complete_piece(kind, piece),
        }
    }

    /// Reports a message that was longer than the buffer which it met: the buffer is full, the rest
    /// is lost.
    #[cold]
    fn truncate_recv(&mut self, kind: MsgKind, m: &Matched, a: &Arrived) {
        if let MsgKind::Remote(kind) = kind {
            let failed = (Errno::ETRUNC, "it is longer than its memory");
            return self.remote_part_came(kind, m, a, Some(failed));
        }
        let olen = a.len - (m.buf.len as u64).min(a.len);
        self.fail_recv(
            kind,
            m,
            a,
            Errno::ETRUNC,
            olen,
            "the message is longer than the receive buffer",
        );
    }

    /// Reports a receive that failed after it had matched.
    #[cold]
    fn fail_recv(
        &mut self,
        kind: MsgKind,
        m: &Matched,
        a: &Arrived,
        errno: Errno,
        olen: u64,
        why: &'static str,
    ) {
        if let MsgKind::Remote(kind) = kind {
            return self.remote_part_came(kind, m, a, Some((errno, why)));
        }
        let collective = m.flags & Flags::COLLECTIVE;
        let more = self.complete_piece(kind, m) | collective;
        let src = self.av().reported(a.src);
        self.rx_cq().write_error(CqError {
            completion: Completion {
                len: (m.buf.len as u64).min(a.len) as usize,
                buf: place(m),
                ..recv_completion(kind, m, a, src, more)
            },
            olen: olen as usize,
            errno,
            prov_errno: 0,
            why,
            sender: None,
        });
        if collective.is_empty() {
            self.rx_cntr().inc_error();
        }
    }
}

#[inline(always)]
fn recv_completion(
    kind: MsgKind,
    m: &Matched,
    a: &Arrived,
    src: FiAddr,
    more: Flags,
) -> Completion {
    Completion {
        context: m.context,
        flags: kind.recv_flags() | a.flags | (more & (Flags::MULTI_RECV | Flags::COLLECTIVE)),
        len: a.len as usize,
        buf: m.buf.addr,
        data: a.data,
        tag: a.tag,
        src,
    }
}

/// Where a message lies, as far as that is one place of the application's.
fn place(m: &Matched) -> usize {
    match m.piece.list() {
        Some(_) => 0,
        None => m.buf.addr,
    }
}

impl SendDone {
    /// The fields that the completion of a message of `len` bytes needs.
    #[inline]
    pub fn of(op: &SendOp, len: usize) -> Self {
        Self {
            kind: op.kind,
            dest: op.dest,
            tag: op.tag,
            context: op.context,
            flags: op.flags,
            len,
        }
    }
}
