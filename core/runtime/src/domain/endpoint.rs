//! RDM endpoint objects (fi_endpoint(3)): a transport, the receive queue, and what both are bound to.

use std::sync::Arc;

use slab::Slab;

use super::count::Count;
use super::owner::{Binding, EndpointOwner};
use super::probe::{self, Probe, Probed};
use super::report::Report;
use super::srx::SharedRx;
use super::unresolved_peer::UnresolvedSends;
use super::{Backend, Inner, Listening, NO_CNTR, Object, Opened, Opening, State};
use crate::cq::CqQueue;
use crate::fabric::{Endpoint, EndpointConfig};
use ferrofabric_av::{AuthKeys, AvTable, HeldKey};
use ferrofabric_contracts::addr::{AddrFormat, Address, KeyedAddr, NativeAddr};
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::traffic_class;
use ferrofabric_contracts::peer::{Owner, PeerAv, PeerCq, Transport};
use ferrofabric_contracts::types::{FiAddr, IoBuf, RecvOp, SendOp, key_source, total_len};
use ferrofabric_matching::Buffers;

/// One endpoint's part of the state.
pub(super) struct EndpointState<T: Transport> {
    // The transport goes first: it may still use what the others hold.
    pub(super) transport: T,
    srx: SharedRx,
    pub(super) binding: Binding,
    unresolved: UnresolvedSends,
    report: Option<Box<Report>>,
}

impl<T: Transport> EndpointState<T> {
    /// The transport, and the owner to drive it with.
    #[inline]
    pub(super) fn split<'a>(
        &'a mut self,
        cqs: &'a mut Slab<CqQueue>,
        cntrs: &'a mut Slab<Count>,
        avs: &'a Slab<Arc<AvTable>>,
    ) -> (&'a mut T, EndpointOwner<'a>) {
        let owner = EndpointOwner {
            srx: &mut self.srx,
            cqs,
            cntrs,
            avs,
            binding: &self.binding,
        };
        (&mut self.transport, owner)
    }

    /// The same with the sends that wait for addresses.
    pub(super) fn split_unresolved<'a>(
        &'a mut self,
        cqs: &'a mut Slab<CqQueue>,
        cntrs: &'a mut Slab<Count>,
        avs: &'a Slab<Arc<AvTable>>,
    ) -> (&'a mut UnresolvedSends, &'a mut T, EndpointOwner<'a>) {
        let owner = EndpointOwner {
            srx: &mut self.srx,
            cqs,
            cntrs,
            avs,
            binding: &self.binding,
        };
        (&mut self.unresolved, &mut self.transport, owner)
    }

    /// Number of sends that wait for addresses.
    pub(super) fn unresolved_sends(&self) -> usize {
        self.unresolved.len()
    }
}

impl<T: Transport> Drop for EndpointState<T> {
    fn drop(&mut self) {
        if let Some(report) = &self.report {
            report.write(&stats_of(&self.transport));
        }
    }
}

pub(super) fn stats_of(transport: &impl Transport) -> Vec<(&'static str, u64)> {
    let mut stats = Vec::new();
    transport.stats(&mut |name, value| stats.push((name, value)));
    stats
}

pub(super) struct EndpointHandle<B: Backend> {
    domain: Arc<Inner<B>>,
    pub(super) index: usize,
    name: Name,
    keys: Vec<HeldKey>,
    limits: Limits,
    /// Keeps open what the endpoint is bound to.
    _config: EndpointConfig,
}

/// What is checked of every operation.
#[derive(Clone, Copy)]
struct Limits {
    max_msg_bytes: usize,
    inject_bytes: usize,
    tx_iov: usize,
    rx_iov: usize,
    /// What becomes of receives; `None`: they are taken as they are.
    receives: Option<Receives>,
    /// Their sources may be unresolved.
    may_be_unresolved: bool,
    /// What may not be asked of a send.
    unkept: Flags,
}

/// How an endpoint's receives differ from what is asked of them.
#[derive(Clone, Copy)]
pub(super) struct Receives {
    /// Their source counts (`FI_DIRECTED_RECV`).
    directed: bool,
    /// They name senders that are not in the address vector (`FI_SOURCE_ERR`).
    source_err: bool,
}

impl Receives {
    pub(super) fn of(config: &EndpointConfig) -> Option<Self> {
        let usual = config.directed_recv && !config.source_err;
        (!usual).then_some(Self {
            directed: config.directed_recv,
            source_err: config.source_err,
        })
    }

    /// The receive that is posted for one that is asked for.
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
pub(super) const PROMISES: Flags = Flags::DELIVERY_COMPLETE
    .union(Flags::MATCH_COMPLETE)
    .union(Flags::COMMIT_COMPLETE)
    .union(Flags::FENCE)
    .union(Flags::TRIGGER)
    .union(Flags::MULTICAST);

pub(super) fn open<B: Backend>(
    domain: &Arc<Inner<B>>,
    config: EndpointConfig,
) -> Result<Arc<dyn Endpoint>> {
    Ok(Arc::new(open_handle(domain, config)?))
}

pub(super) fn open_handle<B: Backend>(
    domain: &Arc<Inner<B>>,
    config: EndpointConfig,
) -> Result<EndpointHandle<B>> {
    let Entered { index, name, keys } = enter(domain, &config)?;
    let info = domain.backend.info();
    let limits = Limits {
        max_msg_bytes: info.ep.max_msg_size,
        inject_bytes: info.tx.inject_size,
        tx_iov: info.tx.iov_limit,
        rx_iov: info.rx.iov_limit,
        receives: Receives::of(&config),
        may_be_unresolved: config.directed_recv,
        unkept: PROMISES - domain.backend.promises(),
    };
    Ok(EndpointHandle {
        domain: domain.clone(),
        index,
        name,
        keys,
        limits,
        _config: config,
    })
}

/// An endpoint that is part of its domain's state.
pub(super) struct Entered {
    pub(super) index: usize,
    pub(super) name: Name,
    /// The keys it was enabled with.
    pub(super) keys: Vec<HeldKey>,
}

/// How others name an endpoint.
pub(super) struct Name {
    pub(super) native: NativeAddr,
    /// In the domain's format.
    pub(super) address: Address,
    /// Has it found at a socket address.
    listening: Option<Box<dyn Listening>>,
}

impl Name {
    fn new(
        native: NativeAddr,
        keyed: Option<KeyedAddr>,
        listening: Option<Box<dyn Listening>>,
        format: AddrFormat,
    ) -> Self {
        let socket = listening
            .as_ref()
            .and_then(|listening| Address::of_socket(listening.at(), format));
        Self {
            native,
            address: keyed
                .map(Address::Keyed)
                .or(socket)
                .or_else(|| Address::of_endpoint(native, format))
                .unwrap_or(Address::Native(native)),
            listening,
        }
    }

    /// The endpoint is about to close. The listener of an inherited one is its parent's.
    pub(super) fn stop_listening(&mut self, is_inherited: bool) {
        let listening = self.listening.take();
        if is_inherited {
            std::mem::forget(listening);
        }
    }
}

/// Opens an endpoint's transport, and enters it in the state of the domain.
pub(super) fn enter<B: Backend>(
    domain: &Arc<Inner<B>>,
    config: &EndpointConfig,
) -> Result<Entered> {
    let binding = Binding {
        tx_cq: domain.own(config.tx_cq.id(), "completion queue for sends")?,
        rx_cq: domain.own(config.rx_cq.id(), "completion queue for receives")?,
        tx_cntr: match &config.tx_cntr {
            Some(cntr) => domain.own(cntr.id(), "counter for sends")?,
            None => NO_CNTR,
        },
        rx_cntr: match &config.rx_cntr {
            Some(cntr) => domain.own(cntr.id(), "counter for receives")?,
            None => NO_CNTR,
        },
        av: domain.own(config.av.id(), "address vector")?,
    };
    let table = domain.lock_to("open", "endpoint")?.avs[binding.av].clone();
    let keys = table
        .auth_keys()
        .map(AuthKeys::hold_all)
        .unwrap_or_default();
    let info = domain.backend.info();
    let Opened {
        transport,
        name,
        keyed,
    } = domain.backend.open_transport(&Opening {
        wait: &domain.wait,
        counts_sends: binding.tx_cntr != NO_CNTR,
        auth_key: config.auth_key,
        tclass: traffic_class::grant("tclass", config.tclass, info.domain.tclass)
            .map_err(|why| Error::new(Errno::EINVAL, "open", "endpoint").mend(why.to_string()))?,
        keys: &keys,
    })?;
    let source = info.src_addr.as_ref().and_then(Address::socket);
    let listening = match config.source.or(source) {
        Some(at) => Some(domain.backend.listen(at, &name)?),
        None => None,
    };
    let report = domain
        .stats
        .as_ref()
        .map(|folder| Box::new(Report::new(folder, &info.domain.name, &name)));
    let mut srx = SharedRx::new();
    if !keys.is_empty() {
        srx.know_keys();
    }
    let mut state = domain.lock_to("open", "endpoint")?;
    let index = state.endpoints.insert(EndpointState {
        transport,
        srx,
        binding,
        unresolved: UnresolvedSends::default(),
        report,
    });
    // Who sleeps already is to be woken by this one, too.
    domain.tend(&mut state);
    domain.call_out(&mut state);
    drop(state);
    let name = Name::new(name, keyed, listening, info.addr_format);
    Ok(Entered { index, name, keys })
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
        // SAFETY: the caller keeps the buffers as the transport asks.
        unsafe { send_checked(&self.domain, self.index, op, iov) }
    }

    #[inline]
    unsafe fn recv(&self, op: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError> {
        let &[buf] = iov else {
            // SAFETY: the caller's promise.
            return unsafe { self.recv_special(op, iov) };
        };
        if op.flags.intersects(SPECIAL) {
            // SAFETY: the caller's promise.
            return unsafe { self.recv_special(op, iov) };
        }
        let buf = Buffers::One(buf);
        let mut guard = self.domain.lock()?;
        let state = &mut *guard;
        let (transport, mut owner) =
            state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
        let directed;
        let is_directed = self.limits.may_be_unresolved && op.src.is_some();
        let op = match is_directed && owner.may_be_unresolved() {
            true => {
                directed = owner.directed(op);
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

    fn cancel(&self, context: u64) -> Result<(), OpError> {
        let mut guard = self.domain.lock()?;
        let state = &mut *guard;
        let (transport, mut owner) =
            state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
        let found = owner.srx.cancel(context);
        owner.start_deferred(transport);
        self.domain.wake(state);
        match found {
            true => Ok(()),
            false => Err(OpError::Failed(Errno::ENOENT)),
        }
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

    fn stats(&self) -> Result<Vec<(&'static str, u64)>, OpError> {
        let state = self.domain.lock()?;
        Ok(stats_of(&state.endpoints[self.index].transport))
    }
}

/// Flags by which a receive is more than a buffer for one message.
const SPECIAL: Flags = Probe::FLAGS
    .union(Flags::MULTI_RECV)
    .union(Flags::AUTH_KEY)
    .union(Flags::TRIGGER);

/// Calls to progress in which a probe looks for a message, at most.
const PROBE_ROUNDS: usize = 16;

/// For a transport that nobody might drive until it is woken: what is held back wakes nobody.
#[cold]
fn without_more(op: &SendOp) -> SendOp {
    SendOp {
        flags: op.flags - Flags::MORE,
        ..*op
    }
}

/// Sends what an endpoint of this number may send. What others before have left to a call that fails goes all the same.
///
/// # Safety
///
/// As [`Endpoint::send`].
#[inline(always)]
pub(super) unsafe fn send_checked<B: Backend>(
    domain: &Inner<B>,
    index: usize,
    op: &SendOp,
    iov: &[IoBuf],
) -> Result<(), OpError> {
    let mut guard = domain.lock()?;
    let state = &mut *guard;
    if !state.followed.is_empty() {
        state.follow();
    }
    let last;
    let op = match op.flags.contains(Flags::MORE) && state.is_watched() {
        true => {
            last = without_more(op);
            &last
        }
        false => op,
    };
    if state.waiting_sends != 0 {
        // SAFETY: the caller's promise.
        match unsafe { domain.wait_behind(state, index, op, iov) } {
            Ok(false) => {}
            waits => {
                flush(state, index);
                domain.wake(state);
                return waits.map(drop);
            }
        }
    }
    let (transport, mut owner) =
        state.endpoints[index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
    // SAFETY: the caller's promise.
    if let Err(error) = unsafe { transport.send(op, iov, &mut owner) } {
        // SAFETY: the same.
        return unsafe { domain.send_further(error, state, index, op, iov) };
    }
    owner.start_deferred(transport);
    domain.wake(state);
    Ok(())
}

/// Sends what others before have left to a send that the transport does not get (fi_msg(3),
/// `FI_MORE`).
#[cold]
fn flush<T: Transport>(state: &mut State<T>, index: usize) {
    let (transport, mut owner) =
        state.endpoints[index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
    transport.flush(&mut owner);
    owner.start_deferred(transport);
}

/// A send is not even tried. What others before it have left to it goes now (fi_msg(3), `FI_MORE`).
#[cold]
pub(super) fn refuse<B: Backend>(
    domain: &Inner<B>,
    index: usize,
    error: OpError,
) -> Result<(), OpError> {
    let mut guard = domain.lock()?;
    flush(&mut guard, index);
    domain.wake(&mut guard);
    Err(error)
}

impl<B: Backend> EndpointHandle<B> {
    /// A receive that is not of one buffer for one message: a multi-receive, a probe, a list.
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
        if op.flags.intersects(Probe::FLAGS) {
            let probe = Probe::of(op.flags)?;
            // SAFETY: the caller's promise.
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
            true => owner.directed(&op),
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

    /// A receive that takes only messages which came with one authorization key.
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

    /// Looks for a message that is there, or deals with one that was claimed.
    ///
    /// # Safety
    ///
    /// As [`Endpoint::recv`].
    unsafe fn probe(&self, probe: Probe, op: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError> {
        let buffers = match probe {
            Probe::Claimed => self.buffers(iov)?,
            _ => Buffers::One(IoBuf::EMPTY),
        };
        let mut guard = self.domain.lock()?;
        let state = &mut *guard;
        let named;
        let op = match probe.looks() && self.limits.may_be_unresolved && op.src.is_some() {
            true => {
                let (_, owner) =
                    state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
                named = owner.looked_for(op);
                &named
            }
            false => op,
        };
        let srx = &mut state.endpoints[self.index].srx;
        let mut probed = srx.probe(probe, op, buffers);
        let mut rounds = 0;
        while probed == Probed::Missing && probe.looks() && rounds < PROBE_ROUNDS {
            // A message may be here that nobody has looked at yet.
            rounds = match self.domain.progress(state) {
                true => rounds + 1,
                false => PROBE_ROUNDS,
            };
            let srx = &mut state.endpoints[self.index].srx;
            probed = srx.probe(probe, op, Buffers::One(IoBuf::EMPTY));
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

    fn buffers(&self, iov: &[IoBuf]) -> Result<Buffers, OpError> {
        match iov {
            [] => Ok(Buffers::One(IoBuf::EMPTY)),
            &[one] => Ok(Buffers::One(one)),
            many if many.len() > self.limits.rx_iov => Err(OpError::Failed(Errno::EINVAL)),
            many => Ok(Buffers::Many(many.into())),
        }
    }

    #[inline]
    fn check_send(&self, op: &SendOp, iov: &[IoBuf]) -> Result<(), OpError> {
        let len = total_len(iov);
        let limit = match op.flags.contains(Flags::INJECT) {
            true => self.limits.inject_bytes,
            false => self.limits.max_msg_bytes,
        };
        if len > limit {
            return Err(OpError::Failed(Errno::EMSGSIZE));
        }
        if iov.len() > self.limits.tx_iov {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        if op.flags.intersects(self.limits.unkept) {
            return Err(OpError::Failed(Errno::EOPNOTSUPP));
        }
        Ok(())
    }
}

impl<B: Backend> Drop for EndpointHandle<B> {
    fn drop(&mut self) {
        self.name.stop_listening(self.domain.is_inherited());
        self.domain.close(Object::Endpoint(self.index));
    }
}
