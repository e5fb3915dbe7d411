//! The peer's side: one endpoint's way of carrying messages.

use std::ptr::NonNull;

use super::{Owner, Start, Token};
use crate::addr::NativeAddr;
use crate::atomics::AtomicTarget;
use crate::error::{Errno, OpError, Result};
use crate::flags::Flags;
use crate::types::{FiAddr, GrantedMemory, IoBuf, MsgKind, RmaOp, SendOp};

/// The fields of a send operation that its completion needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendDone {
    /// Tagged or not.
    pub kind: MsgKind,
    /// The peer.
    pub dest: FiAddr,
    /// The tag.
    pub tag: u64,
    /// The operation's context.
    pub context: u64,
    /// The operation's flags.
    pub flags: Flags,
    /// Bytes of the message, for counters of bytes; no matter for one that failed.
    pub len: usize,
}

/// The result of a one-sided operation that a transport was to carry out by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortcut {
    /// The bytes are where they belong.
    Done,
    /// The transport has begun the operation, and reports its end by
    /// [`Owner::shortcut_over`]. Until then the buffers are in use.
    UnderWay,
    /// The transport would do it with a grant for this lane. Nothing has happened.
    NeedsGrant {
        /// A number of the transport's own, for [`GrantedMemory::lane`].
        lane: u64,
    },
    /// There is no room now, and operations under way will make some: nothing has happened, and
    /// the operation is to be begun again.
    Again,
    /// This transport does not do it, or not now: nothing has happened, and the operation goes as
    /// messages.
    Impossible,
}

/// Whether a part of a peer's region that this process has mapped was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedCall {
    /// The call was made.
    Made,
    /// It was not made, because messages to the peer wait in line. Later it can be.
    InLine,
    /// It was not made: the memory is not mapped, or is not for the operation.
    Impossible,
}

/// The end of a one-sided operation that was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortcutEnd {
    /// The bytes are where they belong.
    Done,
    /// It was not carried out, or there is no report of it. It may be issued again as messages:
    /// nothing of it happens any more once a later message has arrived.
    Lost,
    /// It was not carried out, because the peer's device does not accept its key, range or right.
    /// It may be issued again.
    Denied,
    /// It was not carried out, because the device has refused one before it. It may be issued
    /// again.
    NotBegun,
}

/// A transport of one RDM endpoint: shared memory, verbs, or both paired. The owner drives it,
/// always with the domain's lock held; it reports through the [`Owner`] that it is given, and only
/// then.
pub trait Transport: Send + 'static {
    /// The route to a destination ([`routes`](crate::routes)). The default leads nowhere.
    type Route: Copy + Default + Send + 'static;
    /// Whether the owner informs the transport of all addresses of its node, by
    /// [`peer_inserted`](Self::peer_inserted): when the endpoint is enabled, of those that are in
    /// the address vector; then of each that is inserted. For a transport that has an address
    /// vector of its own. It has [unknown sources](Self::has_unknown_sources) as long as it is to
    /// be informed: one that has none when the endpoint is enabled is not informed of all.
    const INFORMED_OF_ALL: bool = false;

    /// Sends a message gathered from `iov`, or takes it over whole: it may still be queued behind
    /// others at return. With [`Flags::INJECT`] the buffers are free at return. With
    /// [`Flags::MORE`] it may be held back until the next send without, the next call to progress,
    /// or [`flush`](Self::flush).
    ///
    /// `route` is the destination's: as the last send to it left it, or the default for the first
    /// send. An owner keeps routes in [`Routed`](super::Routed) until the destination is removed
    /// from the address vector.
    ///
    /// # Safety
    ///
    /// The buffers stay valid for reads until the operation completes (with `INJECT`: until
    /// return).
    ///
    /// # Errors
    ///
    /// [`OpError::Again`] when there is no room now; nothing was sent. `EADDRNOTAVAIL`: no such
    /// peer in the address vector. `EHOSTUNREACH`: the peer has no path that this transport knows.
    /// `EMSGSIZE`: above the limit.
    unsafe fn send<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        route: &mut Self::Route,
        owner: &mut O,
    ) -> Result<(), OpError>;

    /// Sends a reply to the peer whose request had `op.dest` as its source
    /// ([`requester`](crate::requester)), gathered from `iov`. Whether the peer is in the address
    /// vector does not matter. The default serves transports that bring no requests.
    ///
    /// # Safety
    ///
    /// As [`send`](Self::send).
    ///
    /// # Errors
    ///
    /// [`OpError::Again`] when there is no room now; nothing was sent. `ECONNRESET`: the peer is
    /// gone.
    #[cold]
    unsafe fn reply<O: Owner>(
        &mut self,
        _op: &SendOp,
        _iov: &[IoBuf],
        _owner: &mut O,
    ) -> Result<(), OpError> {
        Err(OpError::Failed(Errno::ECONNRESET))
    }

    /// Carries out a one-sided operation without the target's help, if it can. The default can not.
    ///
    /// `memory` is set if the target has granted it for devices, once the transport has named the
    /// lane ([`Shortcut::NeedsGrant`]).
    ///
    /// # Safety
    ///
    /// The buffers of `iov` stay valid until the operation completes: for reads if the operation is
    /// a write, for writes if it is a read.
    unsafe fn shortcut<O: Owner>(
        &mut self,
        _op: &RmaOp,
        _iov: &[IoBuf],
        _memory: Option<&GrantedMemory>,
        _route: &mut Self::Route,
        _owner: &mut O,
    ) -> Shortcut {
        Shortcut::Impossible
    }

    /// Calls `act` with the first byte of a part of a peer's region, where this process has that
    /// memory mapped: the bytes are there during the call, the elements are aligned, the peer gives
    /// the rights, and the region does not close meanwhile. Threads and processes change the
    /// elements at the same time, by atomic instructions. The default has no memory mapped.
    fn with_mapped(
        &mut self,
        _target: &AtomicTarget,
        _route: &mut Self::Route,
        _act: impl FnOnce(NonNull<u8>),
    ) -> MappedCall {
        MappedCall::Impossible
    }

    /// Takes from a peer's device every way to the memory of this endpoint's domain that grants
    /// have opened, by breaking its lane. Sessions go on over another one. Returns whether it is
    /// done: else the owner drives the transport and calls again. The default has no such ways.
    #[cold]
    fn cut_off<O: Owner>(&mut self, _peer: FiAddr, _owner: &mut O) -> bool {
        true
    }

    /// Requests from the process of a peer that it drives the peer's endpoint, if the application
    /// there does not: this side waits for an answer. The request may get lost, and the caller
    /// repeats it. The default makes none.
    #[cold]
    fn request_drive(&mut self, _peer: FiAddr) {}

    /// Ends parts of one-sided operations that are on their way into the memory of regions that
    /// close, or out of it, by the contexts of their receives and of the replies. Each of them fails
    /// at once, or when the transport has been driven; then nothing uses the memory any more. If
    /// nothing less will do, this breaks the connection to the peer and all that is under way on it.
    /// The default is for transports that carry no such parts.
    #[cold]
    fn end_parts<O: Owner>(&mut self, _parts: &[u64], _owner: &mut O) {}

    /// Sends what was held back for more to come. For [`Owner`]s after a send that failed, and
    /// before they leave the transport alone.
    fn flush<O: Owner>(&mut self, _owner: &mut O) {}

    /// Has peers acknowledge the messages whose sends asked for no completion, and take those that
    /// wait for room there. An owner that waits until the transport
    /// [is drained](Self::is_drained) calls this after each call to progress.
    fn drain<O: Owner>(&mut self, owner: &mut O) {
        self.flush(owner);
    }

    /// Whether closing the endpoint now loses no message: each one that was sent, and each answer
    /// to a peer's message, lies where the peer finds it, or has failed.
    fn is_drained(&self) -> bool;

    /// Reports each peer for which there are messages that the application has done with and that
    /// do not lie where the peer finds them, and their number: messages that were injected, and
    /// answers to messages of the peer that were received. Closing the endpoint now loses them. The
    /// peer is `NOTAVAIL` if it is not in the address vector.
    fn report_undelivered(&self, report: &mut dyn FnMut(FiAddr, usize));

    /// Whether there are such messages. A transport that may have very many looks at the first one.
    fn has_undelivered(&self) -> bool {
        let mut has_some = false;
        self.report_undelivered(&mut |_, _| has_some = true);
        has_some
    }

    /// Delivers an unexpected message into the receive that now matches it (`start_msg`,
    /// `start_tag`).
    ///
    /// # Safety
    ///
    /// The matched buffer stays valid for writes until its completion is reported.
    unsafe fn start<O: Owner>(&mut self, start: Start, owner: &mut O);

    /// Drops an unexpected message (`discard_msg`, `discard_tag`); its sender's operation completes
    /// as if it had been received.
    fn discard<O: Owner>(&mut self, kind: MsgKind, token: Token, owner: &mut O);

    /// Moves everything that can move: takes what has arrived, sends what is queued, reports what
    /// is done. Returns how many things it did; 0 says that the caller may sleep if it wants.
    fn progress<O: Owner>(&mut self, owner: &mut O) -> usize;

    /// `name` is in the address vector as `addr` from now on. The call may come twice. It comes for
    /// no new peer as long as the transport has no
    /// [unknown sources](Self::has_unknown_sources) and has found all that it looked up, unless it
    /// is [informed of all](Self::INFORMED_OF_ALL).
    fn peer_inserted<O: Owner>(&mut self, addr: FiAddr, name: &NativeAddr, owner: &mut O);

    /// Whether it knows peers that are not in the address vector, or were removed from it. If it
    /// does not, insertions need no call.
    fn has_unknown_sources(&self) -> bool;

    /// `addr` was removed from the address vector: sends to it fail, nothing sent before reaches
    /// whoever gets the number next.
    fn peer_removed<O: Owner>(&mut self, addr: FiAddr, owner: &mut O);

    /// The endpoint that `addr` leads to is gone, and another one may come in its place
    /// (`docs/adr/0087`): operations to `addr` that wait for it fail with `ECONNRESET`, those that
    /// are under way end with their session, and later ones look `addr` up again. Messages that have
    /// arrived keep `addr` as their source.
    fn peer_replaced<O: Owner>(&mut self, addr: FiAddr, owner: &mut O) {
        self.peer_removed(addr, owner);
    }

    /// Arms the domain's wait descriptor: the next event wakes. Returns false when something is
    /// there already: the caller drives progress once more before it sleeps.
    ///
    /// # Errors
    ///
    /// When the device can not be armed.
    fn arm(&mut self) -> Result<bool>;

    /// Reports the transport's statistics, by name and number; names start with the transport's
    /// own.
    fn stats(&self, report: &mut dyn FnMut(&'static str, u64));
}
