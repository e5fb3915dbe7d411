//! RDM endpoint objects (fi_endpoint(3)): a transport, a receive queue, and the objects that both
//! are bound to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::endpoint_state::{EndpointName, Entered, enter};
use super::probe::{self, Probe, Probed};
use super::rma::ordered_calls::in_order;
use super::rma::{atomic_calls, rma_calls};
use super::send_calls::{refuse, send_checked, send_locked};
use super::srx::SharedRx;
use super::{Backend, EndpointKind, Inner};
use crate::fabric::{Endpoint, EndpointConfig};
use crate::rma::orders::{Effects, Orders};
use ferrofabric_av::HeldKey;
use ferrofabric_contracts::addr::{Address, NativeAddr};
use ferrofabric_contracts::atomics::{AtomicBuffers, AtomicOp};
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Arrived, Owner, PeerAv, PeerCq, Transport};
use ferrofabric_contracts::types::{
    FiAddr, IoBuf, MsgKind, RecvOp, RmaKind, RmaOp, SendOp, key_source, total_len,
};
use ferrofabric_matching::ReceiveBuffers;

pub(super) struct EndpointHandle<B: Backend> {
    domain: Arc<Inner<B>>,
    pub(super) index: usize,
    name: EndpointName,
    keys: Vec<HeldKey>,
    limits: OperationLimits,
    /// Its close delivers what the application takes for sent.
    delivers: AtomicBool,
    /// Keeps open the objects that the endpoint is bound to.
    _config: EndpointConfig,
}

/// The limits that every operation is checked against.
#[derive(Clone, Copy)]
struct OperationLimits {
    max_msg_bytes: usize,
    inject_bytes: usize,
    tx_iov: usize,
    rx_iov: usize,
    /// The changes to posted receives; `None`: they are posted unchanged.
    receives: Option<ReceiveAttributes>,
    /// The sources of receives may be unresolved.
    may_be_unresolved: bool,
    /// The flags that a send may not have.
    unsupported: Flags,
    /// Sends wait for one-sided operations before them.
    sends_wait: bool,
}

/// The attributes of an endpoint that change its posted receives.
#[derive(Clone, Copy)]
pub(super) struct ReceiveAttributes {
    /// Receives keep their source (`FI_DIRECTED_RECV`).
    directed: bool,
    /// Receives report unknown sources by name (`FI_SOURCE_ERR`).
    source_err: bool,
}

impl ReceiveAttributes {
    pub(super) fn of(config: &EndpointConfig) -> Option<Self> {
        let usual = config.directed_recv && !config.source_err;
        (!usual).then_some(Self {
            directed: config.directed_recv,
            source_err: config.source_err,
        })
    }

    /// The receive that is posted for the application's receive.
    #[inline]
    pub(super) fn adapt(self, op: &RecvOp) -> RecvOp {
        let mut op = *op;
        if !self.directed {
            op.src = FiAddr::UNSPEC;
        }
        op.flags.set(Flags::SOURCE_ERR, self.source_err);
        op
    }
}

/// Flags of operations that some transports do not offer, and those that none offers (deferred and
/// multicast sends).
pub(super) const OPTIONAL_FLAGS: Flags = Flags::DELIVERY_COMPLETE
    .union(Flags::MATCH_COMPLETE)
    .union(Flags::COMMIT_COMPLETE)
    .union(Flags::FENCE)
    .union(Flags::TRIGGER)
    .union(Flags::MULTICAST);

/// Endpoints of a reliable transport, whose receives are in the domain.
pub struct Rdm;

impl<B: Backend> EndpointKind<B> for Rdm {
    fn open(domain: &Arc<Inner<B>>, config: EndpointConfig) -> Result<Arc<dyn Endpoint>> {
        Ok(Arc::new(open_handle(domain, config)?))
    }
}

pub(super) fn open_handle<B: Backend>(
    domain: &Arc<Inner<B>>,
    config: EndpointConfig,
) -> Result<EndpointHandle<B>> {
    let Entered { index, name, keys } = enter(domain, &config)?;
    let info = domain.backend.info();
    let limits = OperationLimits {
        max_msg_bytes: info.ep.max_msg_size,
        inject_bytes: info.tx.inject_size,
        tx_iov: info.tx.iov_limit,
        rx_iov: info.rx.iov_limit,
        receives: ReceiveAttributes::of(&config),
        may_be_unresolved: config.directed_recv,
        unsupported: OPTIONAL_FLAGS - domain.backend.completion_levels(),
        sends_wait: Orders::of(config.tx.msg_order).hold_sends(),
    };
    Ok(EndpointHandle {
        domain: domain.clone(),
        index,
        name,
        keys,
        limits,
        delivers: AtomicBool::new(true),
        _config: config,
    })
}

impl<B: Backend> Endpoint for EndpointHandle<B> {
    fn name(&self) -> NativeAddr {
        self.name.native
    }

    fn address(&self) -> Address {
        self.name.address
    }

    #[inline]
    unsafe fn send(&self, op: &SendOp, iov: &[IoBuf]) -> Result<(), OpError> {
        if let Err(error) = self.check_send(op, iov) {
            return refuse(&self.domain, self.index, error);
        }
        if self.limits.sends_wait {
            // SAFETY: the caller's contract.
            return unsafe { self.send_in_order(op, iov) };
        }
        // SAFETY: the caller keeps the buffers as the transport requires.
        unsafe { send_checked(&self.domain, self.index, op, iov) }
    }

    #[inline]
    unsafe fn recv(&self, op: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError> {
        let &[buf] = iov else {
            // SAFETY: the caller's contract.
            return unsafe { self.recv_special(op, iov) };
        };
        if op.flags.intersects(SPECIAL) {
            // SAFETY: the caller's contract.
            return unsafe { self.recv_special(op, iov) };
        }
        if op.src == FiAddr::NOTAVAIL {
            // SAFETY: the caller's contract.
            return unsafe { self.recv_special(op, iov) };
        }
        let buf = ReceiveBuffers::One(buf);
        let mut guard = self.domain.lock()?;
        let state = &mut *guard;
        let (transport, mut owner) =
            state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
        let directed;
        let is_directed = self.limits.may_be_unresolved && op.src.is_some();
        let op = match is_directed && owner.may_be_unresolved() {
            true => {
                directed = owner.with_receive_source(op);
                &directed
            }
            false => op,
        };
        let start = match self.limits.receives {
            None => owner.srx.post(op, buf),
            Some(receives) => owner.srx.post(&receives.adapt(op), buf),
        };
        if let Some(start) = start {
            // SAFETY: the caller keeps the buffer until the completion.
            unsafe { transport.start(start, &mut owner) };
        }
        owner.start_deferred(transport);
        self.domain.wake(state);
        Ok(())
    }

    unsafe fn rma(&self, op: &RmaOp, iov: &[IoBuf]) -> Result<(), OpError> {
        const OF_WRITES: Flags = Flags::INJECT.union(Flags::REMOTE_CQ_DATA);
        if op.kind == RmaKind::Read && op.flags.intersects(OF_WRITES) {
            return refuse(&self.domain, self.index, OpError::Failed(Errno::EINVAL));
        }
        if let Err(error) = self.check_sizes(op.flags, iov) {
            return refuse(&self.domain, self.index, error);
        }
        // SAFETY: the caller's contract.
        unsafe { rma_calls::begin(&self.domain, self.index, op, iov) }
    }

    unsafe fn atomic(&self, op: &AtomicOp, buffers: &AtomicBuffers<'_>) -> Result<(), OpError> {
        let buffers = &atomic_calls::used_buffers(op, buffers);
        let checked = atomic_calls::check(op, buffers)
            .and_then(|()| self.check_sizes(op.flags, buffers.operands))
            .and_then(|()| self.check_sizes(op.flags, buffers.compares))
            .and_then(|()| self.check_sizes(op.flags - Flags::INJECT, buffers.results));
        if let Err(error) = checked {
            return refuse(&self.domain, self.index, error);
        }
        // SAFETY: the caller's contract.
        unsafe { atomic_calls::begin(&self.domain, self.index, op, buffers) }
    }

    fn claim_oldest(
        &self,
        kinds: &[MsgKind],
        context: u64,
    ) -> Result<Option<(MsgKind, Arrived)>, OpError> {
        let state = &mut *self.domain.lock()?;
        state.follow_changes();
        let (_, owner) =
            state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
        let mut claim = |kind: MsgKind| {
            let claimed = owner
                .srx
                .matcher(kind)
                .claim(FiAddr::UNSPEC, 0, u64::MAX, context)?;
            Some((kind, claimed.arrived))
        };
        let claimed = kinds.iter().find_map(|kind| claim(*kind));
        let claimed = claimed.map(|(kind, arrived)| {
            let src = owner.av().reported(arrived.src);
            (kind, Arrived { src, ..arrived })
        });
        self.domain.wake(state);
        Ok(claimed)
    }

    fn claimed_source(&self, kind: MsgKind, context: u64) -> Result<Option<FiAddr>, OpError> {
        let state = &mut *self.domain.lock()?;
        state.follow_changes();
        let (_, owner) =
            state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
        let claimed = owner.srx.matcher(kind).claimed(context);
        let source = claimed.map(|message| owner.av().reported(message.arrived.src));
        self.domain.wake(state);
        Ok(source)
    }

    fn cancel(&self, context: u64) -> Result<(), OpError> {
        self.cancel_by(|srx| srx.cancel(context))
    }

    fn cancel_collective(&self, context: u64) -> Result<(), OpError> {
        self.cancel_by(|srx| srx.cancel_collective(context))
    }

    fn set_min_multi_recv(&self, bytes: usize) -> Result<(), OpError> {
        let mut state = self.domain.lock()?;
        state.endpoints[self.index].srx.set_min_multi_recv(bytes);
        Ok(())
    }

    fn min_multi_recv(&self) -> Result<usize, OpError> {
        let state = self.domain.lock()?;
        Ok(state.endpoints[self.index].srx.min_multi_recv())
    }

    fn flush(&self, timeout: Option<Duration>) -> Result<(), OpError> {
        self.domain.wait_until_drained(self.index, timeout)
    }

    fn lose_undelivered(&self) {
        self.delivers.store(false, Ordering::Relaxed);
    }

    fn wait_for_capacity(
        &self,
        timeout: Option<Duration>,
        attempt: &mut dyn FnMut() -> bool,
    ) -> Result<(), OpError> {
        self.domain.wait_for_capacity(timeout, attempt)
    }

    fn stats(&self) -> Result<Vec<(&'static str, u64)>, OpError> {
        let state = self.domain.lock()?;
        Ok(state.endpoints[self.index].stats())
    }
}

/// Flags of a receive that is more than a buffer for one message.
const SPECIAL: Flags = Probe::FLAGS
    .union(Flags::MULTI_RECV)
    .union(Flags::AUTH_KEY)
    .union(Flags::TRIGGER);

/// Largest number of calls to progress in which a probe waits for a message.
const PROBE_ROUNDS: usize = 16;

impl<B: Backend> EndpointHandle<B> {
    /// Cancels a receive, which `cancel` looks for.
    fn cancel_by(&self, cancel: impl FnOnce(&mut SharedRx) -> bool) -> Result<(), OpError> {
        let mut guard = self.domain.lock()?;
        let state = &mut *guard;
        let (transport, mut owner) =
            state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
        let found = cancel(owner.srx);
        owner.start_deferred(transport);
        self.domain.wake(state);
        match found {
            true => Ok(()),
            false => Err(OpError::Failed(Errno::ENOENT)),
        }
    }

    /// Sends a message whose limits were checked, once the operations on the memory of its peer are
    /// over that it has to come after.
    ///
    /// # Safety
    ///
    /// As [`Endpoint::send`].
    #[cold]
    #[inline(never)]
    unsafe fn send_in_order(&self, op: &SendOp, iov: &[IoBuf]) -> Result<(), OpError> {
        let state = &mut *self.domain.lock()?;
        if let Err(error) = in_order(state, self.index, Effects::SEND, op.dest) {
            self.domain.wake(state);
            return Err(error);
        }
        // SAFETY: the caller's contract.
        unsafe { send_locked(&self.domain, state, self.index, op, iov) }
    }

    /// Posts a special receive: a multi-receive, a probe, one of a list of buffers, or one that may
    /// be refused for its source.
    ///
    /// # Safety
    ///
    /// As [`Endpoint::recv`].
    #[inline(never)]
    unsafe fn recv_special(&self, op: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError> {
        if op.flags.contains(Flags::TRIGGER) {
            return Err(OpError::Failed(Errno::EOPNOTSUPP));
        }
        let op = match (op.flags.contains(Flags::AUTH_KEY), self.limits.receives) {
            (true, receives) => {
                let mut keyed = self.by_key(op)?;
                let source_err = receives.is_some_and(|receives| receives.source_err);
                keyed.flags.set(Flags::SOURCE_ERR, source_err);
                keyed
            }
            (false, Some(receives)) => receives.adapt(op),
            (false, None) => *op,
        };
        if op.src == FiAddr::NOTAVAIL {
            return Err(OpError::Failed(Errno::EADDRNOTAVAIL));
        }
        if op.flags.intersects(Probe::FLAGS) {
            let probe = Probe::of(op.flags)?;
            // SAFETY: the caller's contract.
            return unsafe { self.probe(probe, &op, iov) };
        }
        let multi = op.flags.contains(Flags::MULTI_RECV);
        if multi && iov.len() != 1 {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        let buffers = self.buffers(iov)?;
        let mut guard = self.domain.lock()?;
        let state = &mut *guard;
        let (transport, mut owner) =
            state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
        let is_directed = self.limits.may_be_unresolved && op.src.is_some();
        let op = match is_directed && owner.may_be_unresolved() {
            true => owner.with_receive_source(&op),
            false => op,
        };
        if multi {
            owner.srx.post_multi(&op, iov[0]);
        } else if let Some(start) = owner.srx.post(&op, buffers) {
            // SAFETY: the caller keeps the buffers until the completion.
            unsafe { transport.start(start, &mut owner) };
        }
        owner.start_deferred(transport);
        self.domain.wake(state);
        Ok(())
    }

    /// Restricts a receive to messages with one authorization key.
    fn by_key(&self, op: &RecvOp) -> Result<RecvOp, OpError> {
        let directed = self
            .limits
            .receives
            .is_none_or(|receives| receives.directed);
        if !directed || self.keys.is_empty() {
            return Err(OpError::Failed(Errno::EBADFLAGS));
        }
        let src = match op.src {
            FiAddr::UNSPEC => op.src,
            handle => {
                let mut keys = self.keys.iter();
                let key = keys.find(|key| key.handle == handle);
                key_source(key.ok_or(OpError::Failed(Errno::ENOKEY))?.number())
            }
        };
        Ok(RecvOp {
            src,
            flags: op.flags - Flags::AUTH_KEY,
            ..*op
        })
    }

    /// Looks for a message that has arrived, or handles a claimed one.
    ///
    /// # Safety
    ///
    /// As [`Endpoint::recv`].
    unsafe fn probe(&self, probe: Probe, op: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError> {
        let buffers = match probe {
            Probe::Claimed => self.buffers(iov)?,
            _ => ReceiveBuffers::One(IoBuf::EMPTY),
        };
        let mut guard = self.domain.lock()?;
        let state = &mut *guard;
        let named;
        let op = match probe.searches_unclaimed()
            && self.limits.may_be_unresolved
            && op.src.is_some()
        {
            true => {
                let (_, owner) =
                    state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
                named = owner.with_lookup_source(op);
                &named
            }
            false => op,
        };
        let srx = &mut state.endpoints[self.index].srx;
        let mut probed = srx.probe(probe, op, buffers);
        let mut rounds = 0;
        while probed == Probed::Missing && probe.searches_unclaimed() && rounds < PROBE_ROUNDS {
            // A message may have arrived that no call to progress has taken yet.
            rounds = match self.domain.progress(state) {
                true => rounds + 1,
                false => PROBE_ROUNDS,
            };
            let srx = &mut state.endpoints[self.index].srx;
            probed = srx.probe(probe, op, ReceiveBuffers::One(IoBuf::EMPTY));
        }
        let (transport, mut owner) =
            state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
        match probed {
            Probed::Missing => {
                let mut error = probe::missing(probe, op);
                error.completion.src = owner.av().reported_source(op.src);
                owner.rx_cq().write_error(error);
            }
            Probed::Found(arrived) => {
                let src = owner.av().reported(arrived.src);
                owner.rx_cq().write(&probe::found(op, &arrived, src));
            }
            Probed::Dropped(arrived, token) => {
                transport.discard(op.kind, token, &mut owner);
                let src = owner.av().reported(arrived.src);
                owner.rx_cq().write(&probe::found(op, &arrived, src));
            }
            // SAFETY: the caller keeps the buffer until the completion.
            Probed::Delivered(start) => unsafe { transport.start(start, &mut owner) },
        }
        owner.start_deferred(transport);
        self.domain.wake(state);
        Ok(())
    }

    fn buffers(&self, iov: &[IoBuf]) -> Result<ReceiveBuffers, OpError> {
        match iov {
            [] => Ok(ReceiveBuffers::One(IoBuf::EMPTY)),
            &[one] => Ok(ReceiveBuffers::One(one)),
            many if many.len() > self.limits.rx_iov => Err(OpError::Failed(Errno::EINVAL)),
            many => Ok(ReceiveBuffers::Many(many.into())),
        }
    }

    #[inline]
    fn check_send(&self, op: &SendOp, iov: &[IoBuf]) -> Result<(), OpError> {
        if op.kind.is_part() {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        self.check_sizes(op.flags, iov)
    }

    #[inline]
    fn check_sizes(&self, flags: Flags, iov: &[IoBuf]) -> Result<(), OpError> {
        let len = total_len(iov);
        let limit = match flags.contains(Flags::INJECT) {
            true => self.limits.inject_bytes,
            false => self.limits.max_msg_bytes,
        };
        if len > limit {
            return Err(OpError::Failed(Errno::EMSGSIZE));
        }
        if iov.len() > self.limits.tx_iov {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        if flags.intersects(self.limits.unsupported) {
            return Err(OpError::Failed(Errno::EOPNOTSUPP));
        }
        Ok(())
    }
}

impl<B: Backend> Drop for EndpointHandle<B> {
    fn drop(&mut self) {
        self.name.stop_listening(self.domain.is_inherited());
        let delivers = self.delivers.load(Ordering::Relaxed);
        self.domain.close_endpoint(self.index, delivers);
    }
}
