//! The objects that an application sees, as traits that every provider implements: provider,
//! domain, endpoint, address vector, completion queue, counter, memory region.
//!
//! Dropping an object closes it. Each object keeps open the objects that it was opened on or bound
//! to.

mod attributes;
mod completion;
mod endpoint;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

pub use crate::wait::DomainWait;
pub use attributes::{CntrAttr, CntrEvents, CqAttr, EndpointConfig, MrAttr, TxConfig};
pub use completion::{Cntr, Cq};
pub use endpoint::Endpoint;
pub use ferrofabric_system::shared_memory::{MemoryBacking, SharedMemory};

use ferrofabric_av::{AvAttr, InsertReport, InsertRequest, Services};
use ferrofabric_contracts::addr::{Address, AuthKey, NativeAddr};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::Info;
use ferrofabric_contracts::peer::PeerEq;
use ferrofabric_contracts::types::{AvType, FiAddr, IoBuf, MrDesc};

/// A source of domains: shared memory, verbs.
pub trait Provider: Send + Sync {
    /// Its name, as `fi_fabric_attr::prov_name`.
    fn name(&self) -> &'static str;

    /// The domains that this provider offers on this machine, best first, and the reasons why there
    /// are no others.
    fn discover(&self, settings: &Settings) -> Discovery;

    /// As [`discover`](Self::discover), with hints that rank the choices: which of a port's
    /// addresses to use, say. Candidates that do not fit the hints are listed all the same.
    fn discover_for(&self, hints: &Info, settings: &Settings) -> Discovery {
        let _ = hints;
        self.discover(settings)
    }

    /// Opens the domain that `info`, one of those discovered, describes.
    ///
    /// # Errors
    ///
    /// If the device is gone or a resource is missing; the error names it.
    fn open(&self, info: &Info, settings: &Settings) -> Result<Arc<dyn Domain>>;

    /// As [`open`](Self::open), for an application that serializes its calls itself
    /// (`FI_THREAD_DOMAIN` of fi_domain(3)): the domain has no lock, whatever threading level
    /// `info` has, and any thread may use it.
    ///
    /// # Safety
    ///
    /// No two calls into the domain and the objects that are opened on it ever overlap, and each
    /// call happens before the next (the threads synchronize between them). Dropping a handle of
    /// any of these objects is such a call, and a call that waits lasts until it returns. Exempt
    /// are [`Cq::signal`], whose purpose is to end a wait, and calls that return constants: `info`,
    /// `name`, `id`.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    unsafe fn open_serialized(&self, info: &Info, settings: &Settings) -> Result<Arc<dyn Domain>>;
}

/// The candidates of a provider.
#[derive(Debug, Default)]
pub struct Discovery {
    /// The domains, each with all its capabilities.
    pub candidates: Vec<Info>,
    /// The missing resources, and how to provide them.
    pub notices: Vec<Error>,
    /// The order of equal domains: which comes first, and why.
    pub choices: Vec<String>,
}

/// A domain (fi_domain(3)): the objects that share a device, its memory registrations and its lock.
pub trait Domain: Send + Sync {
    /// The domain's attributes and capabilities.
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
    /// `ENOMEM` if there is no memory for the requested number of entries; `EINVAL` if the receive
    /// context bits leave too few bits for the rest of an address.
    fn open_av(&self, attr: &AvAttr) -> Result<Arc<dyn Av>>;

    /// Opens an endpoint, bound and enabled: it can receive at once.
    ///
    /// # Errors
    ///
    /// `EDOMAIN` for objects of another domain; `EADDRINUSE` if another endpoint has the source
    /// address; `EINVAL` for a number that is no traffic class; else an error that names the
    /// missing resource of the device or the system.
    fn open_endpoint(&self, config: EndpointConfig) -> Result<Arc<dyn Endpoint>>;

    /// Registers memory (fi_mr(3)) with the access rights in `access` (`SEND`, `RECV`,
    /// `REMOTE_READ`, …).
    ///
    /// # Safety
    ///
    /// The memory stays allocated until the region is dropped, and there are no Rust references to
    /// it while it is registered for remote writes.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the limit of locked memory is too low (the error names it); `EINVAL`, `EFAULT`
    /// for invalid memory.
    unsafe fn register(&self, buf: IoBuf, access: Flags) -> Result<Arc<dyn Mr>> {
        // SAFETY: the caller's contract.
        unsafe { self.register_region(&MrAttr::new(buf, access)) }
    }

    /// As [`register`](Self::register), with all that can be chosen. The descriptor of a region of
    /// several pieces counts for its first one. A region with rights for peers has none where the
    /// device does not register the memory: its bytes go by messages.
    ///
    /// # Safety
    ///
    /// As there. A [`backing`](MrAttr::backing) is that of the memory: peers write to the bytes
    /// that it names.
    ///
    /// # Errors
    ///
    /// As there. `ENOKEY`: another region that peers reach has the key. `EINVAL`: more pieces than
    /// the domain's limit
    /// ([`mr_iov_limit`](ferrofabric_contracts::info::DomainAttr::mr_iov_limit)).
    unsafe fn register_region(&self, attr: &MrAttr<'_>) -> Result<Arc<dyn Mr>>;
}

/// The identity of an object and of its domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectId {
    pub(crate) domain: usize,
    pub(crate) index: usize,
}

impl ObjectId {
    /// The identity of object `index` of domain `domain`, for domains that are not this crate's:
    /// their own numbers, which they compare with each other alone.
    pub const fn new(domain: usize, index: usize) -> Self {
        Self { domain, index }
    }
}

/// The default of `FI_OPT_MIN_MULTI_RECV` (fi_endpoint(3)), in bytes: a multi-receive buffer with
/// less space left takes no more messages.
pub const MIN_MULTI_RECV: usize = 64;

/// An address vector (fi_av(3)).
pub trait Av: Send + Sync {
    /// Type of its addresses, also if the provider chose it.
    fn av_type(&self) -> AvType;

    /// The number of addresses that are in. Those that are not resolved yet may be missing.
    fn count(&self) -> usize;

    /// For a named address vector: the location at which this process reads its addresses, an array
    /// of `FiAddr` by order of insertion, which lives as long as the address vector. All processes
    /// use the same `FiAddr` for a peer, whatever location each chose. 0 without a name.
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
    /// returns them, or text, or a `sockaddr`, in whose place those bytes may stand. Calls `report`
    /// for each by its number in the call, in order, and returns the number of insertions. The
    /// domain is not locked meanwhile; `report` may do anything but insert into the same address
    /// vector. An address that is in the vector already keeps its `FiAddr`. A failed address
    /// occupies an index of a table until the call is over, so that the others' indices are known.
    ///
    /// # Errors
    ///
    /// Of the call: `EBUSY` if the domain belongs to another thread; `EINVAL` if the address vector
    /// is for asynchronous insertion. Of an address: `EINVAL` if it is invalid, with the reason;
    /// `EHOSTUNREACH` for a socket address without a route, `ENOSYS` if endpoints have none;
    /// `ENOMEM` and `ENOSPC` if the vector can not grow. Of an address in a named vector,
    /// `ETIMEDOUT`: another process that changes the vector does not finish. An insertion does not
    /// check whether an endpoint listens at a socket address (`docs/adr/0042`).
    fn insert_all(
        &self,
        names: &mut dyn Iterator<Item = &[u8]>,
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize>;

    /// Inserts endpoints by name, as `insert_all` does. The caller's thread resolves the names of
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

    /// Begins an asynchronous insertion ([`AvAttr::events`]), on threads of the address vector.
    /// Each address is reported; then for each that failed comes an error event
    /// ([`EqError`](ferrofabric_contracts::peer::EqError)) with the call's context and the number
    /// of the address, then always one event
    /// [`AV_COMPLETE`](ferrofabric_contracts::peer::AV_COMPLETE).
    ///
    /// In a table the addresses get the lowest indices that are free when the call is made. Unless
    /// `user_ids` is empty, each address gets the ID of the same number
    /// ([`tag_inserted`](Self::tag_inserted)).
    ///
    /// # Errors
    ///
    /// In case of an error nothing is inserted, and no event comes. `EINVAL`: the address vector is
    /// not for asynchronous insertion. `EACCES`: it was opened for reading only. `ENOEQ`: no queue
    /// is bound. `ENOMEM`, `ENOSPC`: the table can not grow. `ETIMEDOUT`: as of `insert_all`.
    /// `EAGAIN`: no thread could be started.
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
    /// `EINVAL` if it is not in the vector; `EACCES` if the address vector was opened for reading
    /// only. In a named vector, `ETIMEDOUT`: another process that changes the vector does not
    /// finish.
    fn remove(&self, addr: FiAddr) -> Result<()>;

    /// The endpoint that an address stands for.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not in the vector. `EAGAIN`: the address is being resolved.
    fn lookup(&self, addr: FiAddr) -> Result<NativeAddr>;

    /// The endpoints that addresses stand for, as [`lookup`](Self::lookup) of each: calls `report`
    /// for each by its number in the call, in order. In a vector too large for the processor's
    /// caches such a look-up takes a fraction of the time of a single one, best with 32 addresses
    /// or more in a call: the cache misses of many overlap.
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

    /// An address in the domain's `addr_format`. If that has addresses of sockets: the socket
    /// address of its insertion, or the native address if it was inserted by that.
    ///
    /// # Errors
    ///
    /// `EINVAL` when it is not there.
    fn address(&self, addr: FiAddr) -> Result<Address>;

    /// Gives an address an ID of the application's, which completions and errors report as the
    /// Gives an address an ID of the application's, which completions and errors report as the
    /// source of its messages from now on. Sends, directed receives, lookups and removals still
    /// take the address.
    /// # Errors
    ///
    /// `EINVAL` when the address is not there, or the address vector was not opened for IDs
    /// ([`AvAttr::user_ids`]).
    fn set_user_id(&self, addr: FiAddr, id: FiAddr) -> Result<()>;

    /// As [`set_user_id`](Self::set_user_id), for an insertion with IDs (the flag `FI_AV_USER_ID`
    /// of fi_av(3)), on an address vector that was opened without. If another thread or process has
    /// removed the address since, the call has no effect.
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
    /// `EINVAL` if it is neither.
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

    /// As [`insert_all`](Self::insert_all), with an authorization key's handle for each address. In
    /// a domain with keys, all addresses need one.
    ///
    /// # Errors
    ///
    /// As there; of an address also `EINVAL` for a handle without a key.
    fn insert_all_with_keys(
        &self,
        names: &mut dyn Iterator<Item = (&[u8], FiAddr)>,
        report: &mut dyn FnMut(usize, Result<FiAddr>),
    ) -> Result<usize>;

    /// As [`insert_services`](Self::insert_services), with a key's handle for each endpoint.
    ///
    /// # Errors
    ///
    /// As there; of an endpoint also `EINVAL` for a handle without a key, and for no handle.
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
    /// As there; of an address also `EINVAL` for a handle without a key, and for no handle.
    fn insert_later_with_keys(
        &self,
        wanted: InsertRequest,
        handles: &[FiAddr],
        context: u64,
        report: InsertReport,
    ) -> Result<()>;

    /// The identity of this object.
    fn id(&self) -> ObjectId;
}

/// A key of a device that is kept from other memory until this is dropped.
pub trait KeptKey: fmt::Debug + Send + Sync {}

/// What [`Mr::on_lost_key`] calls.
pub type LostKeyReport = Box<dyn Fn(Box<dyn KeptKey>) + Send + Sync>;

/// Registered memory (fi_mr(3)).
pub trait Mr: Send + Sync + Any {
    /// The descriptor that operations on the memory carry.
    fn desc(&self) -> MrDesc;

    /// The key by which peers reach it.
    fn key(&self) -> u64;

    /// Calls `access` while no thread of this process moves bytes of a peer's one-sided operation
    /// to or from the memory; devices and other processes may. `access` makes no call into the
    /// domain.
    ///
    /// # Errors
    ///
    /// `EBUSY` when the domain belongs to another thread.
    fn with_parts_still(&self, access: &mut dyn FnMut()) -> Result<(), OpError> {
        access();
        Ok(())
    }

    /// The key by which peers' devices reach it, at the addresses of this process; `None` if it is
    /// not one registration of a device. Memory whose pages have changed is registered anew for
    /// that, by another key.
    fn device_key(&self) -> Option<u32> {
        None
    }

    /// From now on `lost` is called with each key of a device that ends because the pages of the
    /// memory have changed: no device reaches anything by it once the operations of this side on the
    /// memory have ended, and it is kept from other memory until it is dropped. `lost` is called by any thread, and only defers work.
    fn on_lost_key(&self, lost: LostKeyReport) {
        let _ = lost;
    }

    /// The pages of the memory may have changed (`fi_mr_refresh`): from now on devices reach those
    /// that are there.
    ///
    /// # Errors
    ///
    /// As [`Domain::register`]. Devices reach the memory no more then; messages do.
    fn refresh(&self) -> Result<()> {
        Ok(())
    }

    /// Keeps the device's key of the memory, which may be deregistered before: the device reaches no
    /// other memory of this domain by it until the result is dropped.
    fn keep_device_key(&self) -> Option<Box<dyn KeptKey>> {
        None
    }

    /// Has a counter count peers' operations on the region from now on, by way of any endpoint:
    /// those of the kinds in `counted`, `REMOTE_READ` and `REMOTE_WRITE`. The region keeps the
    /// counter open. A region that peers do not reach has nothing to count.
    ///
    /// # Errors
    ///
    /// `EDOMAIN`: a counter of another domain. `EINVAL`: a counter counts one of the kinds already.
    fn count_remote(&self, cntr: &Arc<dyn Cntr>, counted: Flags) -> Result<()> {
        let _ = (cntr, counted);
        Ok(())
    }
}

/// Memory that no device has registered: it has no descriptor, and no key.
pub struct Unregistered;

impl Mr for Unregistered {
    fn desc(&self) -> MrDesc {
        MrDesc::NONE
    }

    fn key(&self) -> u64 {
        0
    }
}
