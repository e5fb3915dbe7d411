//! Endpoints (fi_endpoint(3)).

use std::time::Duration;

use ferrofabric_contracts::addr::{Address, NativeAddr};
use ferrofabric_contracts::atomics::{AtomicBuffers, AtomicOp};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::peer::Arrived;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, RecvOp, RmaOp, SendOp};

/// An endpoint (fi_endpoint(3)), unconnected. The domain's info has its type. RDM: messages are
/// reliable and in order for each peer. DGRAM: each message may be lost, a message without a posted
/// receive is lost, and there is no order.
///
/// A DGRAM endpoint has no tags (`ENOSYS`) and no special receives (`EBADFLAGS`). With
/// [`Mode::MSG_PREFIX`] in the domain's info, the first buffer of each send and receive starts with
/// [`msg_prefix_size`](ferrofabric_contracts::info::EpAttr::msg_prefix_size) bytes for the
/// provider, which count in the length of a receive's completion and nowhere else.
///
/// [`Mode::MSG_PREFIX`]: ferrofabric_contracts::flags::Mode::MSG_PREFIX
pub trait Endpoint: Send + Sync {
    /// The endpoint's native address, which is all that a peer needs.
    fn name(&self) -> NativeAddr;

    /// Its address in the domain's `addr_format` (`fi_getname`). If that has addresses of sockets:
    /// the socket address at which the endpoint is found. If the endpoint has the keys of its
    /// address vector ([`AV_AUTH_KEY`](ferrofabric_contracts::info::AV_AUTH_KEY)): the address that
    /// peers insert with each key, while [`name`](Self::name) belongs to the first key.
    fn address(&self) -> Address;

    /// Sends a message.
    ///
    /// # Safety
    ///
    /// The buffers stay valid for reads until the operation completes; with `INJECT` until return.
    ///
    /// # Errors
    ///
    /// `Again`: read the completion queue, then try again. `EMSGSIZE`: longer than the domain's
    /// limit. `EADDRNOTAVAIL`: no such peer. `ENOKEY`: the peer's key came after the endpoint was
    /// enabled. `EOPNOTSUPP`: a completion level or a fence that the domain does not offer. All
    /// other failures are error completions: for a socket address without an endpoint, with the
    /// error of [`Resolve`](ferrofabric_av::Resolve).
    unsafe fn send(&self, op: &SendOp, iov: &[IoBuf]) -> Result<(), OpError>;

    /// Posts a receive, or with one of these flags handles messages that have arrived
    /// (fi_tagged(3)), tagged or untagged:
    ///
    /// - `PEEK`: completes with length, tag, source and CQ data of the oldest message that a
    ///   receive would match, and no buffer. It stays. If there is none, the completion is an
    ///   error, `ENOMSG`.
    /// - `PEEK | CLAIM`: as `PEEK`, and nothing but an operation with `CLAIM` and the same context
    ///   gets the message.
    /// - `CLAIM`: receives that message.
    /// - `PEEK | DISCARD`, `CLAIM | DISCARD`: completes as `PEEK` does, and the message is dropped.
    ///
    /// All but `CLAIM` by itself ignore the buffers, complete before the call returns, complete
    /// with or without `COMPLETION`, and are not counted. A `CLAIM` without a claimed message, or
    /// of a message that is lost with its sender, completes with `ENOMSG`.
    ///
    /// With `MULTI_RECV` one buffer takes message after message, each with a completion of its own.
    /// The last completion of a buffer has `MULTI_RECV`, and comes also without `COMPLETION`.
    ///
    /// # Safety
    ///
    /// The buffers stay valid for writes, with no other access to them, until the operation
    /// completes (a multi-receive: until its completion with `MULTI_RECV`).
    ///
    /// # Errors
    ///
    /// `EINVAL`: more buffers than the limit; not one buffer for a multi-receive. `EBADFLAGS`: a
    /// combination of flags without a meaning, or a key on an endpoint without keys or directed
    /// receives. `ENOKEY`: a key that the endpoint was not enabled with.
    unsafe fn recv(&self, op: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError>;

    /// Reads or writes memory that the peer has registered. A write completes when its bytes are
    /// there; its CQ data comes to the peer's completion queue after that.
    ///
    /// # Safety
    ///
    /// The buffers stay valid until the operation completes, those of a read for writes, with no
    /// other access to them; those of a write with `INJECT` until return.
    ///
    /// # Errors
    ///
    /// As of [`send`](Self::send). `EINVAL`: a read with CQ data or `INJECT`. `ENOSYS`: the
    /// endpoint has no one-sided operations. A key, a range or a right that the peer refuses is an
    /// error completion, `EACCES`.
    unsafe fn rma(&self, op: &RmaOp, iov: &[IoBuf]) -> Result<(), OpError> {
        let _ = (op, iov);
        Err(OpError::Failed(Errno::ENOSYS))
    }

    /// Changes memory that the peer has registered, each element in one step (fi_atomic(3)). The
    /// operation completes when it is done; the elements from before it are then in the buffers for
    /// results.
    ///
    /// The processor of the peer carries it out: it is atomic with other such operations on
    /// elements of the same type and, unless these are integers of 128 bits or complex numbers,
    /// with the processor's own atomic instructions. It is not with [reads and writes](Self::rma)
    /// of the same elements at the same time, whoever carries those out.
    ///
    /// # Safety
    ///
    /// The buffers for results stay valid for writes until the operation completes, with no other
    /// access to them; the others until return.
    ///
    /// # Errors
    ///
    /// As of [`send`](Self::send). `EOPNOTSUPP`: there is no such operation
    /// ([`AtomicForm::has`]). `EMSGSIZE`: more elements than [`Datatype::max_count`]. `EINVAL`: no
    /// elements, buffers of different lengths or of none that the form has, or CQ data. `ENOSYS`:
    /// the endpoint has no one-sided operations. Error completions: `EACCES` for a key, a range or
    /// a right that the peer refuses, `EINVAL` for an address at the peer without the alignment of
    /// the elements, or where an element goes over the end of a piece of the region. Nothing is
    /// changed then. `ECANCELED`: the reply is lost, because this endpoint or the peer has removed
    /// the other one's address. The memory may be changed.
    ///
    /// [`AtomicForm::has`]: ferrofabric_contracts::atomics::AtomicForm::has
    /// [`Datatype::max_count`]: ferrofabric_contracts::atomics::Datatype::max_count
    unsafe fn atomic(&self, op: &AtomicOp, buffers: &AtomicBuffers<'_>) -> Result<(), OpError> {
        let _ = (op, buffers);
        Err(OpError::Failed(Errno::ENOSYS))
    }

    /// Claims the oldest message that is here, of the first of these kinds that has one, and that
    /// nobody has claimed: for a receive with `CLAIM` and this context. `None`: there is none. No
    /// progress is made. The source is as completions report it, [`FiAddr::NOTAVAIL`] as long as it
    /// is unknown.
    ///
    /// It is for receives that another provider has (fi_peer(3), `fid_peer_srx`): no receive is
    /// posted here, so that each message waits to be claimed.
    ///
    /// # Errors
    ///
    /// `ENOSYS`: the endpoint keeps no messages (a datagram endpoint). `EBUSY` when the domain
    /// belongs to another thread.
    fn claim_oldest(
        &self,
        kinds: &[MsgKind],
        context: u64,
    ) -> Result<Option<(MsgKind, Arrived)>, OpError> {
        let _ = (kinds, context);
        Err(OpError::Failed(Errno::ENOSYS))
    }

    /// The source of the message that was claimed with this context, as completions report it:
    /// [`FiAddr::NOTAVAIL`] as long as it is unknown. `None`: no message is claimed with it (any
    /// more).
    ///
    /// # Errors
    ///
    /// As of [`claim_oldest`](Self::claim_oldest).
    fn claimed_source(&self, kind: MsgKind, context: u64) -> Result<Option<FiAddr>, OpError> {
        let _ = (kind, context);
        Err(OpError::Failed(Errno::ENOSYS))
    }

    /// Cancels a receive that has not matched; it completes with `ECANCELED`. A multi-receive
    /// completes once more, with `ECANCELED` and `MULTI_RECV`, as soon as no message is on its way
    /// into its buffer.
    ///
    /// # Errors
    ///
    /// `ENOENT`: none is posted with that context.
    fn cancel(&self, context: u64) -> Result<(), OpError>;

    /// Cancels a receive of a collective operation (`COLLECTIVE`), which [`cancel`](Self::cancel)
    /// does not.
    ///
    /// # Errors
    ///
    /// `ENOSYS`: the endpoint has no collective operations. Those of `cancel`.
    fn cancel_collective(&self, context: u64) -> Result<(), OpError> {
        let _ = context;
        Err(OpError::Failed(Errno::ENOSYS))
    }

    /// Sets the space that must be left in a multi-receive buffer (`FI_OPT_MIN_MULTI_RECV` of
    /// fi_endpoint(3)), in bytes: with less left it takes no more messages. At least 1;
    /// [`MIN_MULTI_RECV`](super::MIN_MULTI_RECV) at first. Applies to posted buffers, too.
    ///
    /// # Errors
    ///
    /// `EBUSY` when the domain belongs to another thread.
    fn set_min_multi_recv(&self, bytes: usize) -> Result<(), OpError>;

    /// The present limit, set or default.
    ///
    /// # Errors
    ///
    /// As [`set_min_multi_recv`](Self::set_min_multi_recv).
    fn min_multi_recv(&self) -> Result<usize, OpError>;

    /// Waits until closing the endpoint loses no message, at most for `timeout` (`None`: for ever).
    /// Then each message, and each answer to a peer's message, is where the peer finds it, or has
    /// failed. Without this call, closing loses sends that are not complete. A DGRAM endpoint waits
    /// until the device has all datagrams. Completions stay in their queues.
    ///
    /// # Errors
    ///
    /// `Again`: not in time. `EINTR`: a signal came to the thread while it slept. `EBUSY` when the
    /// domain belongs to another thread.
    fn flush(&self, timeout: Option<Duration>) -> Result<(), OpError>;

    /// Closing loses at once what is not delivered. Otherwise it first delivers, for as long as the
    /// setting [`close_timeout`](ferrofabric_contracts::config::Settings::close_timeout) says, what
    /// the application takes for sent: messages that were injected, and answers to messages that
    /// were received.
    fn lose_undelivered(&self);

    /// Waits until a call of this endpoint that was refused with `Again` is accepted: drives the
    /// domain, and calls `attempt` whenever the call may be accepted, until it returns true. Sleeps
    /// between, until a peer or the device has made capacity. Completions stay in their queues.
    ///
    /// A call that fails is accepted for this purpose: `attempt` returns true.
    ///
    /// # Errors
    ///
    /// `Again`: not in time (`None`: for ever). `EINTR`: a signal came to the thread while it
    /// slept. `EBUSY` when the domain belongs to another thread. `ENOSYS`: an endpoint that is not
    /// of this crate.
    fn wait_for_capacity(
        &self,
        timeout: Option<Duration>,
        attempt: &mut dyn FnMut() -> bool,
    ) -> Result<(), OpError> {
        let _ = (timeout, attempt);
        Err(OpError::Failed(Errno::ENOSYS))
    }

    /// The counters of its transports, by name.
    ///
    /// # Errors
    ///
    /// `EBUSY` when the domain belongs to another thread.
    fn stats(&self) -> Result<Vec<(&'static str, u64)>, OpError>;
}
