//! A domain and the objects opened on it, over a provider's [`Transport`].
//!
//! Invariant: all state of a domain is in one value behind its [`Serial`] lock; the objects that an
//! application holds are handles into it.

mod auto_progress;
mod av;
mod av_keys;
mod cntr;
mod count;
mod cq;
mod dgram;
mod endpoint;
mod endpoint_state;
mod keyed;
mod keyed_dgram;
mod lists;
mod mover;
mod neighbours;
mod owner;
mod probe;
mod progressor;
mod report;
mod rma;
mod send_calls;
mod srx;
mod unresolved_peer;
mod waiting;

pub use mover::MessageMover;

use std::marker::PhantomData;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use slab::Slab;

use crate::cq::CqQueue;
use crate::fabric::{self, CntrAttr, CqAttr, EndpointConfig, Mr, MrAttr};
use crate::rma::as_target::regions::{NO_CNTR, RegionTable};
use ferrofabric_av::follow::TableFollower;
use ferrofabric_av::{AvAttr, AvTable, HeldKey, RefoundEndpoint, Resolve};
use ferrofabric_contracts::addr::{AuthKey, KeyedAddr, NativeAddr};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::info::{Info, Progress, Threading};
use ferrofabric_contracts::peer::Transport;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::cancel::Uncancelled;
use ferrofabric_system::foreign;
use ferrofabric_system::forked::Birth;
use ferrofabric_system::locks::Mutex;
use ferrofabric_system::pending_flag::PendingFlag;
use ferrofabric_system::serial::{Serial, SerialGuard};
use ferrofabric_system::wait::{WaitSet, WakeBell};

pub use dgram::DgramDomain;
pub use keyed::{Keyed, KeyedBackend, KeyedParts, KeyedRoute};
pub use keyed_dgram::KeyedDgramDomain;

use auto_progress::AutoProgressState;
use count::CounterValues;
use endpoint_state::EndpointState;
use progressor::Progressor;
use rma::region;
use waiting::DomainWaiter;

/// The provider's half of a domain.
pub trait Backend: Send + Sync + 'static {
    /// The transport of its endpoints.
    type Transport: Transport;

    /// The domain's attributes and capabilities.
    fn info(&self) -> &Info;

    /// Opens an endpoint's transport.
    ///
    /// # Errors
    ///
    /// If a resource is missing; the error names it.
    fn open_transport(&self, opening: &Opening<'_>) -> Result<OpenedTransport<Self::Transport>>;

    /// The flags of a send that the transport supports, of `DELIVERY_COMPLETE`, `MATCH_COMPLETE`
    /// and `FENCE`. A send with another of these flags is refused.
    fn completion_levels(&self) -> Flags {
        Flags::empty()
    }

    /// The resolver that finds its endpoints by socket address, if they have socket addresses.
    fn resolver(&self) -> Option<Arc<dyn Resolve>> {
        None
    }

    /// Makes an endpoint reachable at a socket address, for the resolvers of other domains, until
    /// the returned value is dropped. The host of the address is the domain's own; port 0 stands
    /// for any free port.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`: another endpoint listens there. `EOPNOTSUPP`: its endpoints have no socket
    /// addresses. Else the error of the system.
    fn listen(&self, at: SocketAddr, name: &NativeAddr) -> Result<Box<dyn Listening>> {
        Err(
            Error::new(Errno::EOPNOTSUPP, "listen at", at.to_string()).mend(format!(
                "{name} is found by its native address alone: leave the source open"
            )),
        )
    }

    /// The attributes that the queue pairs of all peers share with this domain's own, if the format
    /// of its addresses omits them (`FI_ADDR_IB_UD`): Q_Key, GID type, MTU.
    fn common_address(&self) -> Option<ferrofabric_contracts::addr::VerbsAddr> {
        None
    }

    /// Registers the first piece of a region.
    ///
    /// # Safety
    ///
    /// As [`fabric::Domain::register_region`].
    ///
    /// # Errors
    ///
    /// As [`fabric::Domain::register_region`].
    unsafe fn register(&self, attr: &MrAttr<'_>) -> Result<Arc<dyn Mr>>;

    /// Peers may reach a region from now on, by this key. Its number is that of no other open
    /// region.
    fn show_region(&self, _number: usize, _key: u64, _attr: &MrAttr<'_>) {}

    /// A region is about to close, or to be counted: peers begin no operation on it any more
    /// without the help of this process.
    fn hide_region(&self, _number: usize) {}

    /// Whether a peer is at work on a hidden region without the help of this process. Its close
    /// waits until no peer is.
    fn is_region_in_use(&self, _number: usize) -> bool {
        false
    }
}

/// Keeps an endpoint reachable at a socket address until it is dropped.
pub trait Listening: Send + Sync {
    /// The address.
    fn at(&self) -> SocketAddr;
}

/// The parameters of a new transport.
pub struct Opening<'a> {
    /// The set for the descriptors that wake the transport.
    pub wait: &'a WaitSet,
    /// A counter counts sends: the transport reports sends without a completion as soon as others;
    /// otherwise it may report them later.
    pub counts_sends: bool,
    /// The key of this endpoint alone (`fi_ep_attr::auth_key`).
    pub auth_key: Option<AuthKey>,
    /// Its [traffic class](ferrofabric_contracts::info::traffic_class): its own, or the domain's.
    pub tclass: u32,
    /// The keys of its address vector, if endpoints have those.
    pub keys: &'a [HeldKey],
    /// The rights with which peers reach regions by way of this endpoint, for operations of which
    /// it need not see each: no counter counts them.
    pub unseen_rights: Rights,
}

/// A transport, and the addresses of its endpoint.
pub struct OpenedTransport<T> {
    /// The transport.
    pub transport: T,
    /// The address; for an endpoint with the keys of an address vector, that with the first key.
    pub name: NativeAddr,
    /// The address with all of those keys.
    pub keyed: Option<KeyedAddr>,
}

/// A domain over a provider's backend, whose endpoints are of the kind `E`.
pub struct DomainOf<B: Backend, E> {
    inner: Arc<Inner<B>>,
    kind: PhantomData<fn() -> E>,
}

/// A domain over a provider's backend.
pub type RdmDomain<B> = DomainOf<B, endpoint::Rdm>;

/// A kind of endpoints: how a domain opens them.
pub(crate) trait EndpointKind<B: Backend>: 'static {
    /// As [`fabric::Domain::open_endpoint`].
    fn open(domain: &Arc<Inner<B>>, config: EndpointConfig) -> Result<Arc<dyn fabric::Endpoint>>;
}

/// The part of a domain that its objects keep open.
pub(crate) struct Inner<B: Backend> {
    /// The thread of automatic progress. It ends first.
    _progressor: Option<Progressor<B>>,
    shared: Arc<DomainShared<B>>,
}

impl<B: Backend> Drop for Inner<B> {
    /// In a child of fork everything stays as it is: the transports share their peers with the
    /// parent process.
    fn drop(&mut self) {
        if self.is_inherited() {
            std::mem::forget(self.shared.clone());
        }
    }
}

impl<B: Backend> Deref for Inner<B> {
    type Target = DomainShared<B>;

    #[inline]
    fn deref(&self) -> &DomainShared<B> {
        &self.shared
    }
}

/// The components of a domain.
pub(crate) struct DomainShared<B: Backend> {
    // The state is dropped first: transports use objects of the backend.
    serial: Serial<DomainState<B::Transport>>,
    backend: B,
    wait: WaitSet,
    /// Tasks for the next holder of the lock.
    deferred: Mutex<Vec<DeferredTask>>,
    has_deferred: PendingFlag,
    /// Wakes a thread for the deferred tasks.
    deferred_bell: WakeBell,
    spin: std::time::Duration,
    /// How long the close of an endpoint delivers what the application takes for sent.
    close_timeout: std::time::Duration,
    /// The folder for the counters of closed endpoints.
    stats: Option<PathBuf>,
    birth: Birth,
    regions: Arc<RegionTable>,
}

/// An object of a domain, by its place in the state.
#[derive(Clone, Copy, Debug)]
enum ObjectKey {
    Endpoint(usize),
    Cq(usize),
    Cntr(usize),
    Av(usize),
}

/// Work that needs the lock, from a thread that could not take it.
#[derive(Clone, Copy, Debug)]
enum DeferredTask {
    /// An object's handle was dropped.
    Close(ObjectKey),
    /// An address came to an address vector, by its place.
    Announce(usize, FiAddr),
    /// The endpoint of an address that had lost its own was found, in the address vector of a place.
    Refound(usize, RefoundEndpoint),
    /// The resolution of an address with waiting sends is over.
    Resolved,
    /// A region closes: its grants are revoked.
    Revoke(usize),
    /// A region closes, and grants are not returned: the processes of their holders are requested
    /// to drive their endpoints.
    RequestDrive(usize),
    /// A region closes, and parts of operations stay on their way: they are ended.
    EndParts(usize),
}

struct DomainState<T: Transport> {
    endpoints: Slab<EndpointState<T>>,
    cqs: Slab<CqQueue>,
    cntrs: Slab<CounterValues>,
    avs: Slab<Arc<AvTable>>,
    /// The changes of named address vectors that the transports have been informed of.
    followed: Vec<(usize, TableFollower)>,
    /// Number of sends that wait for addresses, and whether one of those may be resolved by now.
    waiting_sends: usize,
    look_at_waiting: bool,
    waiters: Slab<DomainWaiter>,
    /// Something moved, or addresses changed, since the waiters were last looked at: a send that
    /// was refused for want of capacity may be accepted.
    may_have_capacity: bool,
    auto_progress: AutoProgressState,
}

impl<B: Backend, E> DomainOf<B, E> {
    /// A domain whose info says how its calls are serialized. A domain with automatic progress has
    /// a thread of its own, and a lock between that and all others.
    ///
    /// # Errors
    ///
    /// If no descriptor to wait on can be made.
    pub fn open(backend: B, settings: &Settings) -> Result<Self> {
        let domain = &backend.info().domain;
        let threading = match domain.data_progress {
            Progress::Auto => Threading::Safe,
            _ => domain.threading,
        };
        let serial = Serial::new(threading, DomainState::new());
        Self::over(backend, serial, settings)
    }

    /// A domain without a lock, for callers that serialize their calls themselves; a domain with
    /// automatic progress has its lock all the same.
    ///
    /// # Safety
    ///
    /// As [`fabric::Provider::open_serialized`].
    ///
    /// # Errors
    ///
    /// As [`DomainOf::open`].
    pub unsafe fn open_serialized(backend: B, settings: &Settings) -> Result<Self> {
        if backend.info().domain.data_progress == Progress::Auto {
            return Self::open(backend, settings);
        }
        // SAFETY: the caller of this function has the same contract.
        let serial = unsafe { Serial::unchecked(DomainState::new()) };
        Self::over(backend, serial, settings)
    }

    fn over(
        backend: B,
        serial: Serial<DomainState<B::Transport>>,
        settings: &Settings,
    ) -> Result<Self> {
        let automatic = backend.info().domain.data_progress == Progress::Auto;
        let wait = WaitSet::new()?;
        let shared = Arc::new(DomainShared {
            serial,
            backend,
            deferred_bell: wait.bell()?,
            wait,
            deferred: Mutex::new(Vec::new()),
            has_deferred: PendingFlag::new(),
            spin: settings.spin.0.unwrap_or_default(),
            close_timeout: settings.close_timeout.0.unwrap_or_default(),
            birth: Birth::here(),
            stats: (!settings.stats.is_empty()).then(|| PathBuf::from(&settings.stats)),
            regions: Arc::default(),
        });
        neighbours::enter(&shared);
        let progressor = match automatic {
            true => Some(Progressor::start(&shared)?),
            false => None,
        };
        Ok(Self {
            inner: Arc::new(Inner {
                _progressor: progressor,
                shared,
            }),
            kind: PhantomData,
        })
    }
}

impl<B: Backend, E: EndpointKind<B>> fabric::Domain for DomainOf<B, E> {
    fn info(&self) -> &Info {
        self.inner.backend.info()
    }

    fn open_cq(&self, attr: &CqAttr) -> Result<Arc<dyn fabric::Cq>> {
        cq::open(&self.inner, attr)
    }

    fn open_cntr(&self, attr: &CntrAttr) -> Result<Arc<dyn fabric::Cntr>> {
        cntr::open(&self.inner, attr)
    }

    fn open_av(&self, attr: &AvAttr) -> Result<Arc<dyn fabric::Av>> {
        av::open(&self.inner, attr)
    }

    fn open_endpoint(&self, config: EndpointConfig) -> Result<Arc<dyn fabric::Endpoint>> {
        E::open(&self.inner, config)
    }

    unsafe fn register_region(&self, attr: &MrAttr<'_>) -> Result<Arc<dyn Mr>> {
        let MrAttr { memory, access, .. } = *attr;
        region::check_pieces(attr, self.info().domain.mr_iov_limit)?;
        let has_holes = memory.addr == 0 && memory.len != 0;
        if attr.elements.is_some() || has_holes {
            // No device is to reach it, or can.
            return region::open(&self.inner, Arc::new(fabric::Unregistered), attr);
        }
        // SAFETY: the caller of this function has the same contract.
        let mr = unsafe { self.inner.backend.register(attr) };
        if Rights::of(access).is_empty() {
            return mr;
        }
        // Messages reach it all the same, and it may be memory that comes later, or that is more
        // than the device takes.
        let mr = mr.unwrap_or_else(|error| {
            tracing::warn!("peers reach a region by messages alone: {error}");
            Arc::new(fabric::Unregistered)
        });
        region::open(&self.inner, mr, attr)
    }
}

impl<B: Backend> DomainShared<B> {
    /// The state, for a data-path call.
    #[inline]
    fn lock(&self) -> Result<SerialGuard<'_, DomainState<B::Transport>>, OpError> {
        self.serial.lock().map_err(OpError::Failed)
    }

    /// The state, for a control-path call.
    fn lock_to(
        &self,
        doing: &'static str,
        object: &str,
    ) -> Result<SerialGuard<'_, DomainState<B::Transport>>> {
        let lock = self.serial.lock();
        lock.map_err(|errno| not_admitted(errno, doing, object))
    }

    /// Admits a call that needs no lock: a domain with one thread refuses all others. One that is
    /// inside a call to another provider refuses that provider's calls.
    fn admit_to(&self, doing: &'static str, object: &str) -> Result<()> {
        let admitted = self.serial.admit();
        admitted.map_err(|errno| not_admitted(errno, doing, object))
    }

    /// Drives every endpoint for a call of the application, and wakes sleeping threads whose
    /// condition it fulfils. Returns whether anything moved.
    #[inline]
    fn progress(&self, state: &mut DomainState<B::Transport>) -> bool {
        self.notify_progress_thread(state);
        self.drive(state)
    }

    #[inline]
    fn drive(&self, state: &mut DomainState<B::Transport>) -> bool {
        if self.has_deferred.is_raised() {
            self.run_deferred(state);
        }
        state.follow_changes();
        if state.look_at_waiting {
            state.settle_unresolved();
        }
        let moved = state.progress() != 0;
        self.rearm(state, moved);
        moved
    }

    /// Closes an endpoint whose handle is dropped, after it has delivered what the application takes
    /// for sent if it `delivers`.
    fn close_endpoint(&self, index: usize, delivers: bool) {
        // The transports of the parent process send what a child does not.
        if delivers && !self.is_inherited() {
            self.deliver_before_close(index);
        }
        self.close(ObjectKey::Endpoint(index));
    }

    /// Closes an object whose handle is dropped: at once, or later on the thread that the domain
    /// belongs to.
    fn close(&self, object: ObjectKey) {
        if self.is_inherited() {
            // The lock may be held by a thread that does not exist in this process.
            return;
        }
        let removed = match self.serial.lock() {
            Ok(mut state) => state.remove(object),
            Err(_) => {
                self.deferred.lock().push(DeferredTask::Close(object));
                self.has_deferred.raise();
                None
            }
        };
        // Without the lock: closing an endpoint may take a while.
        drop(removed);
    }

    /// Whether this process is a child of the one that opened the domain.
    fn is_inherited(&self) -> bool {
        !self.birth.is_this_process()
    }

    /// Defers tasks to the next holder of the lock, and wakes sleepers so that one of them takes
    /// it.
    fn defer(&self, tasks: impl Iterator<Item = DeferredTask>) {
        self.deferred.lock().extend(tasks);
        self.has_deferred.raise();
        self.deferred_bell.ring();
    }

    #[cold]
    fn run_deferred(&self, state: &mut DomainState<B::Transport>) {
        // Closing endpoints wait for their threads, and write their counters to files.
        let _uncancelled = Uncancelled::begin();
        self.has_deferred.lower();
        self.deferred_bell.clear();
        let tasks = std::mem::take(&mut *self.deferred.lock());
        state.may_have_capacity = true;
        for task in tasks {
            match task {
                DeferredTask::Close(object) => drop(state.remove(object)),
                DeferredTask::Announce(av, addr) => state.announce_new(av, addr),
                DeferredTask::Refound(av, refound) => state.refound(av, refound),
                DeferredTask::Resolved => state.look_at_waiting = true,
                DeferredTask::Revoke(region) => state.revoke(region),
                DeferredTask::RequestDrive(region) => state.request_drive(region),
                DeferredTask::EndParts(region) => state.end_parts(region),
            }
        }
    }

    /// The identity of this domain, which its objects' IDs contain.
    fn id(&self) -> usize {
        std::ptr::from_ref(self) as *const () as usize
    }

    /// The place of a bound object, if it is of this domain.
    fn own(&self, handle: fabric::ObjectId, what: &str) -> Result<usize> {
        if handle.domain != self.id() {
            return Err(Error::new(Errno::EDOMAIN, "bind", what)
                .mend("it was opened on another domain than the endpoint"));
        }
        Ok(handle.index)
    }
}

fn not_admitted(errno: Errno, doing: &'static str, object: &str) -> Error {
    Error::new(errno, doing, object).mend(match foreign::is_inside() {
        true => "the domain is inside a call to another provider, which makes this call: make it later",
        false => "the domain was opened for one thread and another has used it: open it with threading level Safe",
    })
}

impl<T: Transport> DomainState<T> {
    fn new() -> Self {
        let mut cntrs = Slab::new();
        cntrs.insert(CounterValues::default());
        Self {
            endpoints: Slab::new(),
            cqs: Slab::new(),
            cntrs,
            avs: Slab::new(),
            followed: Vec::new(),
            waiting_sends: 0,
            look_at_waiting: false,
            waiters: Slab::new(),
            may_have_capacity: false,
            auto_progress: AutoProgressState::default(),
        }
    }

    #[inline]
    fn progress(&mut self) -> usize {
        let mut done = 0;
        for (_, endpoint) in &mut self.endpoints {
            let (transport, mut owner) = endpoint.split(&mut self.cqs, &mut self.cntrs, &self.avs);
            done += transport.progress(&mut owner);
            owner.start_deferred(transport);
        }
        done
    }

    /// Whether a thread sleeps that relies on being woken when there is work.
    #[inline]
    fn is_watched(&self) -> bool {
        !self.waiters.is_empty() || self.auto_progress.sleeps
    }

    /// Takes an object out. Returns an endpoint for the caller to drop, since that is slow.
    fn remove(&mut self, object: ObjectKey) -> Option<EndpointState<T>> {
        self.waiters.retain(|_, one| !one.is_on(object));
        match object {
            ObjectKey::Endpoint(i) => {
                let removed = self.endpoints.try_remove(i);
                let waited = removed.as_ref().map_or(0, EndpointState::unresolved_sends);
                self.waiting_sends -= waited;
                return removed;
            }
            ObjectKey::Cq(i) => drop(self.cqs.try_remove(i)),
            ObjectKey::Cntr(i) => drop(self.cntrs.try_remove(i)),
            ObjectKey::Av(i) => {
                self.followed.retain(|(av, _)| *av != i);
                drop(self.avs.try_remove(i));
            }
        }
        None
    }
}
