//! libfabric's `off_coll`, as the host has it, and the counters that drive it.
//!
//! `off_coll` works where `util_ep::progress` of its endpoint is called, and offers no call that
//! does so. A counter of another provider of libfabric's does: reading it calls `progress` of each
//! endpoint that is bound to it. So there is a domain of such a provider, with counters alone.

use std::ffi::CStr;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use ferrofabric_contracts::error::Errno;

use super::foreign::{foreign, opened};
use crate::abi::{
    FI_PEER, FI_PEER_TRANSFER, fi_atomic_attr, fi_datatype, fi_info, fi_op, fi_peer_domain_context,
    fid_domain, fid_fabric,
};
use crate::host::Host;

/// Providers with counters that drive endpoints of `off_coll`, and with libfabric's own table of
/// atomic operations.
const DRIVERS: [&CStr; 2] = [c"shm", c"sm2"];

/// `off_coll`, open for the process.
pub(crate) struct Offload {
    pub(crate) info: NonNull<fi_info>,
    pub(crate) fabric: NonNull<fid_fabric>,
    pub(crate) domain: NonNull<fid_domain>,
    /// The domain of the counters.
    pub(crate) driver: NonNull<fid_domain>,
}

// SAFETY: fabrics, domains and offers of libfabric's are for any thread (`FI_THREAD_SAFE`), and
// stay open.
unsafe impl Send for Offload {}
// SAFETY: as above.
unsafe impl Sync for Offload {}

impl Offload {
    /// `off_coll` of the host. `None`: the host has none, or no counters that drive it; the log has
    /// the reason.
    pub(crate) fn of_host() -> Option<&'static Self> {
        static OFFLOAD: OnceLock<Option<Offload>> = OnceLock::new();
        let offload = OFFLOAD.get_or_init(|| {
            let offload = Self::open(Host::get()?);
            if let Err(errno) = &offload {
                tracing::info!("no collective operations: off_coll of libfabric: {errno}");
            }
            offload.ok()
        });
        offload.as_ref()
    }

    fn open(host: &Host) -> Result<Self, Errno> {
        let driver = DRIVERS.iter().find_map(|name| open_driver(host, name).ok());
        let driver = driver.ok_or(Errno::ENODATA)?;
        let info = offer_of(host, c"off_coll", FI_PEER_TRANSFER)?;
        // SAFETY: the offer is not freed; the fabric and the driver's domain are open. `off_coll`
        // inquires at that domain which operators there are.
        unsafe {
            let fabric = open_fabric(host, info)?;
            let mut context = fi_peer_domain_context {
                size: size_of::<fi_peer_domain_context>(),
                domain: driver.as_ptr(),
            };
            let mut domain = null_mut();
            let result = foreign!(
                fabric.as_ptr(),
                ops.domain2(
                    info.as_ptr(),
                    &raw mut domain,
                    FI_PEER,
                    (&raw mut context).cast()
                )
            );
            Ok(Self {
                info,
                fabric,
                domain: opened(result, domain)?,
                driver,
            })
        }
    }

    /// Whether elements of a type can be reduced by an operator.
    pub(crate) fn reduces(&self, datatype: fi_datatype, operator: fi_op) -> bool {
        let mut attr = fi_atomic_attr::default();
        let is_reduction = operator.0 <= fi_op::FI_BXOR.0;
        // SAFETY: the domain is open; there is room for the attributes.
        let found = unsafe {
            foreign!(
                self.driver.as_ptr(),
                ops.query_atomic(datatype, operator, &raw mut attr, 0)
            )
        };
        is_reduction && found == Some(0)
    }
}

/// Opens a domain with counters of a provider. Its offer and its fabric stay.
fn open_driver(host: &Host, name: &CStr) -> Result<NonNull<fid_domain>, Errno> {
    let info = offer_of(host, name, 0)?;
    let mut domain = null_mut();
    // SAFETY: the offer is not freed; there is room for the pointer.
    unsafe {
        let fabric = open_fabric(host, info)?;
        let result = foreign!(
            fabric.as_ptr(),
            ops.domain(info.as_ptr(), &raw mut domain, null_mut())
        );
        opened(result, domain)
    }
}

/// The first offer of a provider, by its exact name, to an application with these modes. It is
/// never freed.
///
/// # Errors
///
/// `ENODATA`: there is none. `ENOMEM`. The provider's.
fn offer_of(host: &Host, provider: &CStr, mode: u64) -> Result<NonNull<fi_info>, Errno> {
    let hints = host.new_info().ok_or(Errno::ENOMEM)?;
    // SAFETY: the hints are new, with all attributes. libfabric frees the copy of the name.
    let list = unsafe {
        (*hints.as_ptr()).mode = mode;
        (*(*hints.as_ptr()).fabric_attr).prov_name = libc::strdup(provider.as_ptr());
        let list = match mode & FI_PEER_TRANSFER {
            0 => host.offers(hints),
            _ => host.offload_offers(hints),
        };
        host.free_info(hints);
        list?
    };
    // The list has the offers of providers that are layered on it, too.
    let mut next = Some(list);
    while let Some(info) = next {
        // SAFETY: each has all attributes, and names are strings or NULL.
        unsafe {
            let name = (*(*info.as_ptr()).fabric_attr).prov_name;
            if !name.is_null() && CStr::from_ptr(name) == provider {
                return Ok(info);
            }
            next = NonNull::new((*info.as_ptr()).next);
        }
    }
    // SAFETY: nothing refers to the list.
    unsafe { host.free_info(list) };
    Err(Errno::ENODATA)
}

/// # Safety
///
/// The offer is one of the host's, and not freed.
unsafe fn open_fabric(host: &Host, offer: NonNull<fi_info>) -> Result<NonNull<fid_fabric>, Errno> {
    // SAFETY: as the caller says.
    unsafe {
        let attr = NonNull::new((*offer.as_ptr()).fabric_attr);
        host.open_fabric(attr.ok_or(Errno::EINVAL)?)
    }
}
