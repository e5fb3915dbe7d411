//! The objects that an application sees, as traits that every provider's objects have: provider,
//! domain, endpoint, address vector, completion queue, counter, memory region.
//!
//! Objects are closed by dropping them; each keeps open what it was opened on or bound to.

mod completion;

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use crate::wait::Wait;
pub use completion::{Cntr, Cq};

use ferrofabric_av::{AvAttr, InsertReport, InsertRequest, Services};
use ferrofabric_contracts::addr::{Address, AuthKey, NativeAddr};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{Info, traffic_class};
use ferrofabric_contracts::peer::PeerEq;
use ferrofabric_contracts::types::{AvType, FiAddr, IoBuf, MrDesc, RecvOp, SendOp};

/// A source of domains: shared memory, verbs.
pub trait Provider: Send + Sync {
    /// Its name, as `fi_fabric_attr::prov_name`.
    fn name(&self) -> &'static str;

    /// What this machine offers through it, best first, and why there is not more.
    fn discover(&self, settings: &Settings) -> Discovery;

    /// As [`discover`](Self::discover), for hints with which some choices are better than with
    /// others: which of a port's addresses to speak from, say. Nothing is left out that does not
    /// fit them.
    fn discover_for(&self, hints: &Info, settings: &Settings) -> Discovery {
        let _ = hints;
        self.discover(settings)
    }

    /// Opens the domain that `info`, one of those discovered, describes.
    ///
    /// # Errors
    ///
    /// When the device is gone or a resource can not be had; the error names it.
    fn open(&self, info: &Info, settings: &Settings) -> Result<Arc<dyn Domain>>;

    /// As [`open`](Self::open), for an application that serializes its calls itself
    /// (`FI_THREAD_DOMAIN` of fi_domain(3)): the domain takes no lock at all, whatever `info` says
    /// of threading, and any thread may use it.
    ///
    /// # Safety
    ///
    /// No two calls into the domain and the objects that are opened on it ever overlap, and each
    /// call happens before the next (the threads synchronize between them). Dropping a handle of
    /// any of these objects is such a call, and a call that waits lasts until it returns. Exempt
    /// are [`Cq::signal`], which is there to end a wait, and what tells of things that never
    /// change: `info`, `name`, `id`.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    unsafe fn open_serialized(&self, info: &Info, settings: &Settings) -> Result<Arc<dyn Domain>>;
}

/// What a provider has found.
#[derive(Debug, Default)]
pub struct Discovery {
    /// Each with all that it can do.
    pub candidates: Vec<Info>,
    /// What is missing, and how it may be had.
    pub notices: Vec<Error>,
}

/// A domain (fi_domain(3)): what shares a device, its memory registrations and its lock.
pub trait Domain: Send + Sync {
    /// What it offers.
    fn info(&self) -> &Info;

    /// Opens a completion queue.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an impossible size.
    fn open_cq(&self, attr: &CqAttr) -> Result<Arc<dyn Cq>>;

    /// Opens a counter.
    ///
    /// # Errors
    ///
    /// `EBUSY` when the domain belongs to another thread.
    fn open_cntr(&self, attr: &CntrAttr) -> Result<Arc<dyn Cntr>>;

    /// Opens an address vector.
    ///
    /// # Errors
    ///
    /// `ENOMEM` when there is no room for the entries that are asked for; `EINVAL` when the receive
    /// context bits leave too few for the rest of an address.
    fn open_av(&self, attr: &AvAttr) -> Result<Arc<dyn Av>>;

    /// Opens an endpoint, bound and enabled: it receives from now on.
    ///
    /// # Errors
    ///
    /// `EDOMAIN` for objects of another domain; `EADDRINUSE` when another endpoint is found at its
    /// source; `EINVAL` for a number that is no traffic class; what the device or the system lacks.
    fn open_endpoint(&self, config: EndpointConfig) -> Result<Arc<dyn Endpoint>>;

    /// Registers memory (fi_mr(3)) with the access that `access` asks for (`SEND`, `RECV`,
    /// `REMOTE_READ`, …).
    ///
    /// # Safety
    ///
    /// The memory stays allocated until the region is dropped, and while it is registered for
    /// remote writes nobody holds Rust references to it.
    ///
    /// # Errors
    ///
    /// `ENOMEM` when the limit of locked memory is too low (the error names it); `EINVAL`, `EFAULT`
    /// for memory that is none.
    unsafe fn register(&self, buf: IoBuf, access: Flags) -> Result<Arc<dyn Mr>>;
}

/// What a completion queue is opened with.
#[derive(Clone, Copy, Debug, Default)]
pub struct CqAttr {
    /// Entries that the queue is for; 0 takes the default. Memory is taken as entries come, and for
    /// more entries than these, too: nothing is lost as long as there is memory.
    pub size: usize,
}

/// What a counter is opened with.
#[derive(Clone, Copy, Debug, Default)]
pub struct CntrAttr {
    /// What it counts.
    pub events: CntrEvents,
}

/// What a counter counts of what succeeds (`fi_cntr_events`). What fails counts as one error,
/// whatever its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CntrEvents {
    /// Operations (`FI_CNTR_EVENTS_COMP`).
    #[default]
    Completions,
    /// The application's bytes that they have moved: without CQ data, and without what is the
    /// provider's of a buffer with a prefix (`FI_CNTR_EVENTS_BYTES`).
    Bytes,
}

/// What an endpoint is bound to.
#[derive(Clone)]
pub struct EndpointConfig {
    /// Where peers are looked up.
    pub av: Arc<dyn Av>,
    /// Where sends complete.
    pub tx_cq: Arc<dyn Cq>,
    /// Where receives complete.
    pub rx_cq: Arc<dyn Cq>,
    /// What counts sends.
    pub tx_cntr: Option<Arc<dyn Cntr>>,
    /// What counts receives.
    pub rx_cntr: Option<Arc<dyn Cntr>>,
    /// Whether receives may name their source (`FI_DIRECTED_RECV`); without it the source of a
    /// receive is ignored.
    pub directed_recv: bool,
    /// Where the endpoint is to be found, in a domain whose addresses are those of sockets; port 0
    /// is any that is free. `None`: where the domain's info says.
    pub source: Option<SocketAddr>,
    /// Its authorization key (`fi_ep_attr::auth_key`); `None` for the domain's. Where endpoints
    /// have the keys of their address vectors it can have none of its own.
    pub auth_key: Option<AuthKey>,
    /// Whether a message of a sender that is not in the address vector completes with
    /// `EADDRNOTAVAIL` and that sender's name (`FI_SOURCE_ERR`); without it, with no source.
    pub source_err: bool,
    /// Its [traffic class](traffic_class) (`fi_tx_attr::tclass`); [`traffic_class::UNSPEC`] for the
    /// domain's.
    pub tclass: u32,
}

impl EndpointConfig {
    /// One completion queue for everything, no counters, directed receives, no errors for unknown
    /// senders, the domain's traffic class.
    pub fn new(av: &Arc<dyn Av>, cq: &Arc<dyn Cq>) -> Self {
        Self {
            av: av.clone(),
            tx_cq: cq.clone(),
            rx_cq: cq.clone(),
            tx_cntr: None,
            rx_cntr: None,
            directed_recv: true,
            source: None,
            auth_key: None,
            source_err: false,
            tclass: traffic_class::UNSPEC,
        }
    }
}

/// An object of a domain, to tell it from those of other domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectId {
    pub(crate) domain: usize,
    pub(crate) index: usize,
}

/// Left of a multi-receive buffer, below this it is done (fi_endpoint(3), `FI_OPT_MIN_MULTI_RECV`),
/// in bytes, unless the application says otherwise.
pub const MIN_MULTI_RECV: usize = 64;

/// An endpoint (fi_endpoint(3)), unconnected. The domain's info says of what type: with RDM,
/// messages are reliable and kept in order for each peer; with DGRAM each may be lost, one that
/// finds no receive posted is, and there is no order.
///
/// A DGRAM endpoint has no tags (`ENOSYS`) and no special receives (`EBADFLAGS`). With
/// [`Mode::MSG_PREFIX`] in the domain's info, the first buffer of each send and receive starts with
/// [`msg_prefix_size`](ferrofabric_contracts::info::EpAttr::msg_prefix_size) bytes for the
/// provider, which count in the length of a receive's completion and nowhere else.
///
/// [`Mode::MSG_PREFIX`]: ferrofabric_contracts::flags::Mode::MSG_PREFIX
pub trait Endpoint: Send + Sync {
    /// All that a peer has to know of it.
    fn name(&self) -> NativeAddr;

    /// Its address in the domain's `addr_format` (`fi_getname`): where that has addresses of
    /// sockets, the one at which it is found; of an endpoint with the keys of its address vector
    /// ([`AV_AUTH_KEY`](ferrofabric_contracts::info::AV_AUTH_KEY)), the one that peers insert with
    /// each key, where [`name`](Self::name) is the way to it with the first.
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
    /// enabled. `EOPNOTSUPP`: a completion level or a fence that the domain does not keep. Whatever
    /// else goes wrong comes as an error completion: for a socket address at which no endpoint was
    /// found in time, what [`Resolve`](ferrofabric_av::Resolve) said.
    unsafe fn send(&self, op: &SendOp, iov: &[IoBuf]) -> Result<(), OpError>;

    /// Posts a receive, or with one of these flags asks about messages that are here
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
    /// with or without `COMPLETION`, and are not counted. A `CLAIM` of what is not claimed, or lost
    /// with its sender, completes with `ENOMSG`.
    ///
    /// With `MULTI_RECV` one buffer takes message after message, each with a completion of its own.
    /// What completes last, of a buffer that takes no more, has `MULTI_RECV` in its completion,
    /// which then comes also without `COMPLETION`.
    ///
    /// # Safety
    ///
    /// The buffers stay valid for writes, and nobody else uses them, until the operation completes
    /// (a multi-receive: until its completion with `MULTI_RECV`).
    ///
    /// # Errors
    ///
    /// `EINVAL`: more buffers than the limit; not one buffer for a multi-receive. `EBADFLAGS`:
    /// flags that mean nothing together, or a key on an endpoint without keys or directed receives.
    /// `ENOKEY`: a key that the endpoint was not enabled with.
    unsafe fn recv(&self, op: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError>;

    /// Takes back a receive that has not matched; it completes with `ECANCELED`. Of a
    /// multi-receive, what is left of it: it completes once more, with `ECANCELED` and
    /// `MULTI_RECV`, when no message is on its way into its buffer any more.
    ///
    /// # Errors
    ///
    /// `ENOENT`: none is posted with that context.
    fn cancel(&self, context: u64) -> Result<(), OpError>;

    /// Sets how many bytes have to be left of a multi-receive buffer (`FI_OPT_MIN_MULTI_RECV` of
    /// fi_endpoint(3)): with fewer left it takes no more messages. At least 1; [`MIN_MULTI_RECV`]
    /// at first. Buffers that are posted already follow.
    ///
    /// # Errors
    ///
    /// `EBUSY` when the domain belongs to another thread.
    fn set_min_multi_recv(&self, bytes: usize) -> Result<(), OpError>;

    /// The number of bytes that was set, or is by default.
    ///
    /// # Errors
    ///
    /// As [`set_min_multi_recv`](Self::set_min_multi_recv).
    fn min_multi_recv(&self) -> Result<usize, OpError>;

    /// Waits until closing the endpoint loses no message, as long as `timeout` says (`None`: for
    /// ever): each message that was sent, and each answer to a peer's message, lies where the peer
    /// finds it, or has failed. Without it the messages are lost that wait for a connection, for
    /// room, or for a receive at the peer. Of a DGRAM endpoint: until the device has them.
    /// Completions stay in their queues.
    ///
    /// # Errors
    ///
    /// `Again`: not in time. `EINTR`: a signal came to the thread while it slept. `EBUSY` when the
    /// domain belongs to another thread.
    fn flush(&self, timeout: Option<Duration>) -> Result<(), OpError>;

    /// What its transports have done so far, by name and number.
    ///
    /// # Errors
    ///
    /// `EBUSY` when the domain belongs to another thread.
    fn stats(&self) -> Result<Vec<(&'static str, u64)>, OpError>;
}

/// An address vector (fi_av(3)).
pub trait Av: Send + Sync {
    /// Type of its addresses, also where the provider chose it.
    fn av_type(&self) -> AvType;

    /// Of a named one: where this process reads its addresses, an array of `FiAddr` by order of
    /// insertion, which goes with the address vector. Processes use the same `FiAddr` for a peer,
    /// whatever address each gave. 0 without a name.
    fn map_addr(&self) -> usize;

    /// Inserts one address as [`insert_all`](Self::insert_all) does.
    ///
    /// # Errors
    ///
    /// As there, of the call and of the address.
    fn insert(&self, name: &[u8]) -> Result<FiAddr> {
        let mut inserted = Err(Error::new(Errno::EINVAL, "insert", "address"));
        self.insert_all(&mut std::iter::once(name), &mut |_, one| inserted = one)?;
        inserted
    }

    /// Inserts addresses, each in the domain's `addr_format`: 64 bytes as [`NativeAddr::to_bytes`]
    /// gives them, or text, or a `sockaddr`, in whose place those bytes may stand. Tells `report`
    /// of each by its number in the call, in order, and returns how many are in. The domain is not
    /// locked meanwhile; `report` may do anything but insert into the same address vector. One that
    /// was there already keeps its `FiAddr`. One that fails takes an index of a table until the
    /// call is over, so that those of the others are known.
    ///
    /// # Errors
    ///
    /// Of the call: `EBUSY` when the domain belongs to another thread; `EINVAL` when the address
    /// vector is for asynchronous insertion. Of an address: `EINVAL` for what is none, with the
    /// reason; `EHOSTUNREACH` for a socket address without a route, `ENOSYS` where endpoints have
    /// none; `ENOMEM` and `ENOSPC` when the vector can not grow; of one with a name, `ETIMEDOUT`:
    /// the process that changes it just now does not come to an end. Whether an endpoint listens at
    /// a socket address is no matter of the insertion (`docs/adr/0042`).
    fn insert_all(
        &self,
        names: &mut dyn Iterator<Item = &[u8]>,
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize>;

    /// Inserts endpoints by name, as `insert_all` does. The caller's thread looks up the names of
    /// nodes.
    ///
    /// # Errors
    ///
    /// As there; of an endpoint also `ENOENT` for a node that the system's resolver does not know.
    fn insert_services(
        &self,
        services: &Services,
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize>;

    /// Binds the queue for the events of asynchronous insertions; `source` names the address vector
    /// in them.
    ///
    /// # Errors
    ///
    /// `EINVAL`: one is bound.
    fn bind_events(&self, events: Arc<dyn PeerEq>, source: u64) -> Result<()>;

    /// Begins an asynchronous insertion ([`AvAttr::events`]), which is done by threads of the
    /// address vector's own. Each address is reported, then for each that failed comes an error
    /// event ([`EqError`](ferrofabric_contracts::peer::EqError)) with the call's context and the
    /// number of the address, then one event
    /// [`AV_COMPLETE`](ferrofabric_contracts::peer::AV_COMPLETE), always.
    ///
    /// In a table the addresses get the lowest indices that are free when the call is made. Unless
    /// `user_ids` is empty, each address gets the ID of the same number
    /// ([`tag_inserted`](Self::tag_inserted)).
    ///
    /// # Errors
    ///
    /// Nothing is inserted then, and no event comes. `EINVAL`: the address vector is not for
    /// asynchronous insertion. `EACCES`: it was opened for reading only. `ENOEQ`: no queue is
    /// bound. `ENOMEM`, `ENOSPC`: the table can not grow. `ETIMEDOUT`: as of `insert_all`.
    /// `EAGAIN`: no thread can be had.
    fn insert_later(
        &self,
        wanted: InsertRequest,
        user_ids: Vec<FiAddr>,
        context: u64,
        report: InsertReport,
    ) -> Result<()>;

    /// Removes an address.
    ///
    /// # Errors
    ///
    /// `EINVAL` when it is not there; `EACCES` when the address vector was opened for reading only.
    /// Of one with a name, `ETIMEDOUT`: the process that changes it just now does not come to an
    /// end.
    fn remove(&self, addr: FiAddr) -> Result<()>;

    /// The endpoint that an address stands for.
    ///
    /// # Errors
    ///
    /// `EINVAL` when it is not there. `EAGAIN`: it is of a range, and being resolved.
    fn lookup(&self, addr: FiAddr) -> Result<NativeAddr>;

    /// The endpoints that addresses stand for, as [`lookup`](Self::lookup) of each: tells `report`
    /// of each by its number in the call, in order. In a vector too large for the processor's
    /// caches a look-up takes a fraction of the time that it takes alone, best where a call has 32
    /// addresses or more: the memory of many is waited for at once.
    ///
    /// # Errors
    ///
    /// Of the call, before anything is reported: `EBUSY` when the domain belongs to another thread.
    /// Of an address: as of `lookup`.
    fn lookup_all(
        &self,
        addrs: &[FiAddr],
        report: &mut dyn FnMut(usize, Result<NativeAddr>),
    ) -> Result<()>;

    /// An address in the domain's `addr_format`: where that has addresses of sockets, the one that
    /// it was inserted by, or the native one if it was by that.
    ///
    /// # Errors
    ///
    /// `EINVAL` when it is not there.
    fn address(&self, addr: FiAddr) -> Result<Address>;

    /// Gives an address an ID of the application's, which completions and errors report as the
    /// source of its messages from now on. Sends, directed receives, lookups and removals take the
    /// address as ever.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the address is not there, or the address vector was not opened for IDs
    /// ([`AvAttr::user_ids`]).
    fn set_user_id(&self, addr: FiAddr, id: FiAddr) -> Result<()>;

    /// As [`set_user_id`](Self::set_user_id), for an insertion that brings IDs with it (the flag
    /// `FI_AV_USER_ID` of fi_av(3)): on an address vector that was opened without. Where another
    /// thread or process has removed the address since, there is nothing to do.
    ///
    /// # Errors
    ///
    /// `EINVAL` when the address vector was opened for IDs.
    fn tag_inserted(&self, addr: FiAddr, id: FiAddr) -> Result<()>;

    /// Inserts an authorization key of [`AUTH_KEY_LEN`](ferrofabric_contracts::addr::AUTH_KEY_LEN)
    /// bytes; the handle stands for it. Endpoints that are enabled later have it.
    ///
    /// # Errors
    ///
    /// Of all calls with keys, `EOPNOTSUPP`: the domain was not opened for them
    /// ([`AV_AUTH_KEY`](ferrofabric_contracts::info::AV_AUTH_KEY)). `EINVAL`: bytes that are no
    /// key.
    fn insert_auth_key(&self, key: &[u8]) -> Result<FiAddr>;

    /// The key of a handle, or of an address.
    ///
    /// # Errors
    ///
    /// `EINVAL` when it is neither.
    fn lookup_auth_key(&self, addr: FiAddr) -> Result<AuthKey>;

    /// Removes a key. Addresses that were inserted with it stay.
    ///
    /// # Errors
    ///
    /// `EBUSY` while an endpoint is open that was enabled with it; `EINVAL` when it is not there.
    fn remove_auth_key(&self, handle: FiAddr) -> Result<()>;

    /// As [`set_user_id`](Self::set_user_id), of a key.
    ///
    /// # Errors
    ///
    /// As there.
    fn set_auth_key_user_id(&self, handle: FiAddr, id: FiAddr) -> Result<()>;

    /// As [`insert_all`](Self::insert_all), of addresses which are each to be reached with the key
    /// that a handle stands for. Where keys are, all addresses need one.
    ///
    /// # Errors
    ///
    /// As there; of an address also `EINVAL` for a handle that is none.
    fn insert_all_with_keys(
        &self,
        names: &mut dyn Iterator<Item = (&[u8], FiAddr)>,
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize>;

    /// As [`insert_services`](Self::insert_services), of endpoints which are each to be reached
    /// with the key of a handle.
    ///
    /// # Errors
    ///
    /// As there; of an endpoint also `EINVAL` for a handle that is none, and without one.
    fn insert_services_with_keys(
        &self,
        services: &Services,
        handles: &[FiAddr],
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize>;

    /// As [`insert_later`](Self::insert_later), with a key for each address.
    ///
    /// # Errors
    ///
    /// As there; of an address also `EINVAL` for a handle that is none, and without one.
    fn insert_later_with_keys(
        &self,
        wanted: InsertRequest,
        handles: &[FiAddr],
        context: u64,
        report: InsertReport,
    ) -> Result<()>;

    /// Which object this is.
    fn id(&self) -> ObjectId;
}

/// Registered memory (fi_mr(3)).
pub trait Mr: Send + Sync + Any {
    /// The descriptor that operations on the memory carry.
    fn desc(&self) -> MrDesc;

    /// The key by which peers reach it.
    fn key(&self) -> u64;
}
