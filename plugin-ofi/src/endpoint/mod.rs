//! Endpoints (fi_endpoint(3)): opened, bound, enabled. Only from then on is there one of the Rust
//! API behind it.

mod addresses;
pub(crate) mod atomics;
pub(crate) mod collectives;
mod name;
pub(crate) mod object;
mod options;
mod reserved_tags;
mod rma;
mod tables;
mod transfer;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ferrofabric_contracts::addr::{AUTH_KEY_LEN, Address};
use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::info::Info;
use ferrofabric_contracts::info::{AV_AUTH_KEY, with_all_orders};
use ferrofabric_runtime::fabric::{CqAttr, Endpoint, EndpointConfig, TxConfig};

use crate::abi::{
    FI_CLASS_EP, FI_ENABLE, FI_GETOPSFLAG, FI_READ, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE,
    FI_SELECTIVE_COMPLETION, FI_SEND, FI_SETOPSFLAG, FI_TRANSMIT, FI_WRITE, fi_info, fi_ops, fid,
    fid_ep,
};
use crate::av::object::AvObject;
use crate::cntr::CntrObject;
use crate::collective::endpoint::{CollectiveBinding, Collectives};
use crate::collective::offers;
use crate::cq::CqObject;
use crate::domain::DomainObject;
use crate::eq::EqObject;
use crate::fid::{Object, SharedObject, object_of, ops_of, share_if};
use crate::guard::{Refused, control};
use crate::info::UsedAddresses;
use crate::no_calls;
use crate::srx::{ForeignReceives, SrxObject};
use object::{BoundCounters, EndpointObject, Setup, TransferFlags};

// SAFETY: `fid_ep` starts with the `fid`.
unsafe impl Object for EndpointObject {
    type Raw = fid_ep;
    const CLASS: usize = FI_CLASS_EP;
    const FID_OPS: &'static fi_ops = &FID_OPS;

    fn raw(&self, fid: fid) -> fid_ep {
        fid_ep {
            fid,
            ops: options::OPS.as_ptr(),
            cm: name::OPS.as_ptr(),
            msg: transfer::MSG.as_ptr(),
            rma: match self.domain.has_remote_access() {
                true => rma::RMA.as_ptr(),
                false => no_calls::RMA.as_ptr(),
            },
            tagged: match self.has_collectives() {
                true => reserved_tags::RESERVED_TAGS.as_ptr(),
                false => transfer::TAGGED.as_ptr(),
            },
            atomic: match self.domain.has_remote_access() {
                true => atomics::ATOMIC.as_ptr(),
                false => no_calls::ATOMIC.as_ptr(),
            },
            collective: match self.has_collectives() {
                true => collectives::OPS.as_ptr(),
                false => no_calls::COLLECTIVE.as_ptr(),
            },
        }
    }
}

static FID_OPS: fi_ops = fi_ops {
    bind: Some(bind),
    control: Some(command),
    ..ops_of::<EndpointObject>()
};

/// Takes `FI_SEND` and `FI_RECV` out of one-sided operations without messages: they say nothing
/// then. Sandia OpenSHMEM adds `FI_RECV` to an offer of such operations alone.
fn drop_message_directions(info: &mut Info) {
    let is_one_sided = info.caps.intersects(Flags::RMA | Flags::ATOMIC);
    if is_one_sided && !info.caps.intersects(Flags::MSG | Flags::TAGGED) {
        for caps in [&mut info.caps, &mut info.tx.caps, &mut info.rx.caps] {
            *caps -= Flags::SEND | Flags::RECV;
        }
    }
}

impl EndpointObject {
    /// Opens an endpoint, which is not enabled yet.
    ///
    /// # Safety
    ///
    /// `info` is one that discovery gave for this domain, perhaps changed, as long as it is in the
    /// version of the fabric.
    pub(crate) unsafe fn open(
        domain: SharedObject<DomainObject>,
        info: *const fi_info,
        flags: u64,
    ) -> Result<Self, Refused> {
        if flags != 0 {
            return Err(Errno::EBADFLAGS.into());
        }
        // SAFETY: as the caller says.
        let mut info = unsafe { crate::info::wanted(domain.version(), info, UsedAddresses::BOTH) }?;
        if info.mode.bits() & Flags::PEER_TRANSFER.bits() != 0 {
            // Its messages go by its own transport: it has nothing to send by the owner's, and no
            // functions for the owner to call.
            let error = Error::new(Errno::EINVAL, "import", "transfers of another provider");
            let mend =
                "open the endpoint without FI_PEER_TRANSFER, which this provider does not need";
            return Err(error.mend(mend).into());
        }
        drop_message_directions(&mut info);
        let collective = offers::take(&mut info);
        if collective && !domain.has_collectives() {
            let error = Error::new(Errno::EINVAL, "open", "endpoint");
            return Err(error.mend("open the domain with FI_COLLECTIVE, too").into());
        }
        crate::info::check_keys(&info)?;
        let offer = ferrofabric_contracts::info::filter(&info, &offer_of(&*domain.domain));
        let offer = offer.map_err(|mismatch| {
            Error::new(Errno::EINVAL, "open", "endpoint").mend(mismatch.to_string())
        })?;
        let setup = Setup {
            caps: match collective {
                true => info.caps | Flags::COLLECTIVE,
                false => info.caps,
            },
            remote_rights: Rights::of(offer.caps),
            source: offer.src_addr.as_ref().and_then(Address::socket),
            auth_key: info.ep.auth_key,
            tclass: info.tx.tclass,
            msg_order: offer.tx.msg_order,
            ..Setup::default()
        };
        Ok(Self {
            endpoint: OnceLock::new(),
            receives: OnceLock::new(),
            collectives: OnceLock::new(),
            tx: TransferFlags::new(info.tx.op_flags),
            rx: TransferFlags::new(info.rx.op_flags),
            setup: Mutex::new(setup),
            min_multi_recv: AtomicU64::new(options::UNSET),
            domain,
            imported_av: OnceLock::new(),
        })
    }

    fn enable(&self) -> Result<(), Refused> {
        // One call at a time: another one finds that there is an endpoint.
        let setup = self.setup();
        if self.endpoint.get().is_some() {
            return Ok(());
        }
        let missing = |what| Error::new(Errno::EINVAL, "enable", "endpoint").mend(what);
        let av = setup
            .av
            .as_ref()
            .ok_or_else(|| missing("bind an address vector first: fi_ep_bind(ep, &av->fid, 0)"))?;
        // An endpoint for one direction alone needs no queue for the other, and a target of
        // one-sided operations needs none: nothing completes there but CQ data, which peers may
        // never send.
        let (sends, receives) = (
            setup.caps.intersects(INITIATES),
            setup.caps.contains(Flags::RECV),
        );
        let hidden = || {
            let attr = CqAttr {
                size: 1,
                discards: true,
            };
            self.domain.domain.open_cq(&attr)
        };
        let no_queue = |what: &'static str| {
            Refused::from(Error::new(Errno::ENOCQ, "enable", "endpoint").mend(what))
        };
        let tx_cq = match &setup.tx_cq {
            Some(cq) => cq.cq.clone(),
            None if sends => {
                return Err(no_queue("bind a completion queue with FI_TRANSMIT first"));
            }
            None => hidden()?,
        };
        let rx_cq = match &setup.rx_cq {
            Some(cq) => cq.cq.clone(),
            None if receives => {
                return Err(no_queue("bind a completion queue with FI_RECV first"));
            }
            None => hidden()?,
        };
        let counter = |bound: &Option<SharedObject<CntrObject>>| {
            bound.as_ref().map(|counter| counter.cntr.clone())
        };
        let counters = &setup.counters;
        let endpoint = self.domain.domain.open_endpoint(EndpointConfig {
            tx_cq,
            tx_cntr: counter(&counters.send),
            rx_cntr: counter(&counters.recv),
            read_cntr: counter(&counters.read),
            write_cntr: counter(&counters.write),
            remote_read_cntr: counter(&counters.remote_read),
            remote_write_cntr: counter(&counters.remote_write),
            remote_rights: setup.remote_rights,
            directed_recv: setup.caps.contains(Flags::DIRECTED_RECV),
            source: setup.source,
            auth_key: setup.auth_key,
            source_err: setup.caps.contains(Flags::SOURCE_ERR),
            tx: TxConfig {
                tclass: setup.tclass,
                msg_order: setup.msg_order,
            },
            ..EndpointConfig::new(&av.av, &rx_cq)
        })?;
        match self.min_multi_recv.load(Ordering::Relaxed) {
            options::UNSET => {}
            bytes => endpoint.set_min_multi_recv(bytes as usize)?,
        }
        if receives {
            self.leave_receives(&setup, &endpoint)?;
        }
        if setup.caps.contains(Flags::COLLECTIVE) {
            self.open_collectives(&setup, &endpoint)?;
        }
        let _ = self.endpoint.set(endpoint);
        Ok(())
    }

    /// Whether the endpoint was opened for collective operations.
    fn has_collectives(&self) -> bool {
        self.setup().caps.contains(Flags::COLLECTIVE)
    }

    /// Opens the collective operations of a new endpoint.
    ///
    /// # Errors
    ///
    /// `ENOCQ`: a queue is missing; that of `off_coll`.
    fn open_collectives(&self, setup: &Setup, endpoint: &Arc<dyn Endpoint>) -> Result<(), Refused> {
        let (Some(av), Some(tx_cq), Some(rx_cq)) = (&setup.av, &setup.tx_cq, &setup.rx_cq) else {
            let error = Error::new(
                Errno::ENOCQ,
                "enable",
                "endpoint with collective operations",
            );
            return Err(error
                .mend("bind queues with FI_TRANSMIT and FI_RECV first")
                .into());
        };
        let binding = CollectiveBinding {
            av: av.clone(),
            tx_cq: tx_cq.clone(),
            rx_cq: rx_cq.clone(),
            eq: setup.eq.clone(),
        };
        let collectives = Collectives::open(endpoint.clone(), binding)?;
        let _ = self.collectives.set(collectives);
        Ok(())
    }
}

impl EndpointObject {
    /// # Errors
    ///
    /// `EINVAL`: the endpoint has an address vector.
    fn bind_av(&self, setup: &mut Setup, av: &SharedObject<AvObject>) -> Result<(), Refused> {
        bind_to(&mut setup.av, av, true, "address vector")?;
        if let Some(imported) = &av.imported {
            let _ = self.imported_av.set(imported.clone());
        }
        Ok(())
    }

    /// # Errors
    ///
    /// `EDOMAIN`: the shared receive context is of another domain. `EINVAL`: the endpoint has one.
    fn bind_srx(&self, setup: &mut Setup, srx: &SharedObject<SrxObject>) -> Result<(), Refused> {
        match srx.is_of(&self.domain) {
            true => bind_to(&mut setup.srx, srx, true, "shared receive context"),
            false => Err(Errno::EDOMAIN.into()),
        }
    }

    /// Leaves the receives of a new endpoint to the owner of its shared receive context, if it has
    /// one.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the queue can not report such receives.
    fn leave_receives(&self, setup: &Setup, endpoint: &Arc<dyn Endpoint>) -> Result<(), Error> {
        if let Some(cq) = &setup.rx_cq {
            cq.check_receives(setup.srx.is_some())?;
        }
        let Some(srx) = &setup.srx else {
            return Ok(());
        };
        let receives = ForeignReceives::new(srx, endpoint.clone());
        (setup.av.iter()).for_each(|av| av.add_receives(&receives));
        (setup.rx_cq.iter()).for_each(|cq| cq.add_receives(&receives));
        (setup.counters.recv.iter()).for_each(|counter| counter.add_receives(&receives));
        let _ = self.receives.set(receives);
        Ok(())
    }
}

/// The offer for endpoints of a domain: with any key, also where the domain has one, and with all
/// orders.
fn offer_of(domain: &dyn ferrofabric_runtime::fabric::Domain) -> ferrofabric_contracts::info::Info {
    let mut info = with_all_orders(domain.info().clone());
    if info.domain.auth_key_size != AV_AUTH_KEY {
        (info.ep.auth_key_size, info.domain.auth_key_size) = (AUTH_KEY_LEN, AUTH_KEY_LEN);
    }
    info
}

/// Binds an object in its place. A bound object stays: another object for the same place is
/// refused.
///
/// # Errors
///
/// `EINVAL`: there is one already.
fn bind_to<T: Object>(
    to: &mut Option<SharedObject<T>>,
    object: &SharedObject<T>,
    asked: bool,
    what: &str,
) -> Result<(), Refused> {
    if !asked {
        return Ok(());
    }
    if to.is_some() {
        return Err(Error::new(Errno::EINVAL, "bind", what)
            .mend("the endpoint has one already, and keeps it")
            .into());
    }
    *to = Some(object.clone());
    Ok(())
}

/// The capabilities of operations that an endpoint begins.
const INITIATES: Flags = Flags::SEND.union(Flags::READ).union(Flags::WRITE);

/// The flags that a queue is bound with.
const QUEUE: u64 = FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION;

/// Those of a counter.
const COUNTER: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// The bound counters with another one, for the operations that the flags name.
///
/// # Errors
///
/// As of [`bind_to`].
fn with_counter(
    bound: &BoundCounters,
    cntr: &SharedObject<CntrObject>,
    flags: u64,
) -> Result<BoundCounters, Refused> {
    let mut counters = bound.clone();
    for (to, flag, what) in [
        (&mut counters.send, FI_SEND, "counter of sends"),
        (&mut counters.recv, FI_RECV, "counter of receives"),
        (&mut counters.read, FI_READ, "counter of reads"),
        (&mut counters.write, FI_WRITE, "counter of writes"),
        (
            &mut counters.remote_read,
            FI_REMOTE_READ,
            "counter of peers' reads",
        ),
        (
            &mut counters.remote_write,
            FI_REMOTE_WRITE,
            "counter of peers' writes",
        ),
    ] {
        bind_to(to, cntr, flags & flag != 0, what)?;
    }
    Ok(counters)
}

/// An object that an endpoint can be bound to.
enum BindableObject {
    Av(SharedObject<AvObject>),
    Cq(SharedObject<CqObject>),
    Cntr(SharedObject<CntrObject>),
    Eq(SharedObject<EqObject>),
    Srx(SharedObject<SrxObject>),
}

impl BindableObject {
    /// `None`: an endpoint can not be bound to it, or it is another provider's.
    ///
    /// # Safety
    ///
    /// `fid` is that of an object that is not closed.
    unsafe fn of(fid: *const fid) -> Option<Self> {
        // SAFETY: as the caller says.
        unsafe {
            (share_if(fid).map(Self::Av))
                .or_else(|| share_if(fid).map(Self::Cq))
                .or_else(|| share_if(fid).map(Self::Cntr))
                .or_else(|| share_if(fid).map(Self::Eq))
                .or_else(|| share_if(fid).map(Self::Srx))
        }
    }
}

/// `fi_ep_bind`, and `fi_import_fid`: an object of libfabric's or of another provider is not
/// supported, whatever the flags.
unsafe extern "C" fn bind(ep: *mut fid, to: *mut fid, flags: u64) -> c_int {
    control(|| {
        if to.is_null() {
            return Err(Refused(Errno::EINVAL));
        }
        // SAFETY: as C calls us: an endpoint of ours, and an object, neither of them closed.
        let (this, object) = unsafe {
            (
                object_of::<EndpointObject>(ep.cast()),
                BindableObject::of(to).ok_or(Errno::ENOSYS)?,
            )
        };
        let mut setup = this.setup();
        if this.endpoint.get().is_some() {
            return Err(Refused(Errno::EOPBADSTATE));
        }
        let allowed = match &object {
            BindableObject::Cq(_) => QUEUE,
            BindableObject::Cntr(_) => COUNTER,
            _ => 0,
        };
        if flags & !allowed != 0 {
            return Err(Refused(Errno::EBADFLAGS));
        }
        match object {
            BindableObject::Av(av) => this.bind_av(&mut setup, &av)?,
            BindableObject::Cq(cq) => this.bind_queue(&mut setup, &cq, flags)?,
            BindableObject::Cntr(cntr) => {
                setup.counters = with_counter(&setup.counters, &cntr, flags)?;
            }
            BindableObject::Eq(eq) => bind_to(&mut setup.eq, &eq, true, "event queue")?,
            BindableObject::Srx(srx) => this.bind_srx(&mut setup, &srx)?,
        }
        let (leaves_receives, imports_addrs) =
            (setup.srx.is_some(), this.imported_av.get().is_some());
        // SAFETY: the structure is C's, which calls nothing of an endpoint that it binds.
        unsafe { tables::choose_tables(ep.cast(), leaves_receives, imports_addrs) };
        Ok(())
    })
}

impl EndpointObject {
    fn bind_queue(
        &self,
        setup: &mut Setup,
        cq: &SharedObject<CqObject>,
        flags: u64,
    ) -> Result<(), Refused> {
        let (sends, receives) = (flags & FI_SEND != 0, flags & FI_RECV != 0);
        let selective = flags & FI_SELECTIVE_COMPLETION != 0;
        if !sends && !receives {
            return Err(Errno::EBADFLAGS.into());
        }
        let (mut tx_cq, mut rx_cq) = (setup.tx_cq.clone(), setup.rx_cq.clone());
        bind_to(&mut tx_cq, cq, sends, "completion queue of sends")?;
        bind_to(&mut rx_cq, cq, receives, "completion queue of receives")?;
        (setup.tx_cq, setup.rx_cq) = (tx_cq, rx_cq);
        if sends {
            self.tx.bind(selective);
        }
        if receives {
            self.rx.bind(selective);
        }
        Ok(())
    }
}

/// The flags that an endpoint can have for all its sends.
const SEND_FLAGS: Flags = Flags::COMPLETION
    .union(Flags::INJECT)
    .union(Flags::INJECT_COMPLETE)
    .union(Flags::TRANSMIT_COMPLETE)
    .union(Flags::DELIVERY_COMPLETE)
    .union(Flags::MATCH_COMPLETE);

/// Those for all its receives.
const RECEIVE_FLAGS: Flags = Flags::COMPLETION.union(Flags::MULTI_RECV);

/// `fi_control` and `fi_enable`.
unsafe extern "C" fn command(ep: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    control(|| {
        // SAFETY: as C calls us: an endpoint of ours, not closed.
        let this = unsafe { object_of::<EndpointObject>(ep.cast()) };
        match command {
            FI_ENABLE => this.enable(),
            // SAFETY: the argument of these is a word of flags.
            FI_GETOPSFLAG => unsafe { this.get_op_flags(arg.cast()) },
            // SAFETY: as above.
            FI_SETOPSFLAG => unsafe { this.set_op_flags(arg.cast()) },
            _ => Err(Refused(Errno::ENOSYS)),
        }
    })
}

impl EndpointObject {
    /// The direction that flags name: one of the two.
    fn direction(&self, flags: Flags) -> Result<&TransferFlags, Refused> {
        match (flags.contains(Flags::SEND), flags.contains(Flags::RECV)) {
            (true, false) => Ok(&self.tx),
            (false, true) => Ok(&self.rx),
            _ => Err(Refused(Errno::EINVAL)),
        }
    }

    /// # Safety
    ///
    /// `flags` is there or NULL.
    unsafe fn get_op_flags(&self, flags: *mut u64) -> Result<(), Refused> {
        // SAFETY: as the caller says.
        let flags = unsafe { flags.as_mut() }.ok_or(Errno::EINVAL)?;
        let direction = self.direction(Flags::from_bits_retain(*flags))?;
        *flags = direction.op_flags.load(Ordering::Relaxed);
        Ok(())
    }

    /// # Safety
    ///
    /// As above.
    unsafe fn set_op_flags(&self, flags: *const u64) -> Result<(), Refused> {
        // SAFETY: as the caller says.
        let flags = Flags::from_bits_retain(*unsafe { flags.as_ref() }.ok_or(Errno::EINVAL)?);
        let direction = self.direction(flags)?;
        let kept = flags - (Flags::SEND | Flags::RECV);
        // All flags that there are, more than the domain was opened with. Datagram endpoints refuse
        // the levels that they do not have at the operation.
        let offered = match flags.contains(Flags::SEND) {
            true => SEND_FLAGS,
            false => RECEIVE_FLAGS,
        };
        if !offered.contains(kept) {
            return Err(Refused(Errno::EBADFLAGS));
        }
        direction.op_flags.store(kept.bits(), Ordering::Relaxed);
        Ok(())
    }
}
