//! Providers of the libfabric that loaded this plugin, as peers: their offers, and their fabrics.
//!
//! `efa`, the owner in libfabric, finds `shm` in the same way: by its name, with hints that a peer
//! meets.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::ptr::NonNull;

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::flags::{Flags, MrMode, Order};
use ferrofabric_contracts::info::{
    DomainAttr, EpAttr, EpType, FabricAttr, Info, Progress, RxAttr, Threading, TxAttr,
};
use ferrofabric_contracts::types::AvType;
use ferrofabric_system::foreign::{self, ForeignCall};
use ferrofabric_system::locks::Mutex;

use crate::abi::{fi_info, fid_fabric};
use crate::host::Host;
use crate::info::{UsedAddresses, offered, wanted};
use crate::memory::text;

/// The capabilities that a peer is to have, as far as the owner's endpoint has them.
const CAPS: Flags = Flags::MSG
    .union(Flags::TAGGED)
    .union(Flags::SEND)
    .union(Flags::RECV)
    .union(Flags::SOURCE)
    .union(Flags::DIRECTED_RECV)
    .union(Flags::MULTI_RECV);

/// The capabilities that its domain is to have.
fn domain_caps(name: &str) -> Flags {
    let abilities = match name {
        // It has them, and offers none of them: no offer of it answers hints that name one.
        "sm2" => Flags::empty(),
        _ => Flags::PEER | Flags::AV_USER_ID,
    };
    Flags::LOCAL_COMM | abilities
}

/// An offer of another provider, as long as it is held.
#[derive(Debug)]
pub struct ForeignInfo {
    host: &'static Host,
    list: NonNull<fi_info>,
    /// The offer, of the list.
    offer: NonNull<fi_info>,
    info: Info,
}

// SAFETY: nothing writes to the list before it is dropped.
unsafe impl Send for ForeignInfo {}
// SAFETY: as above.
unsafe impl Sync for ForeignInfo {}

/// The offer of the provider of a name for messages between the processes of this node, by the
/// capabilities of the owner's endpoint: at `FI_THREAD_DOMAIN`, with manual progress and sends in
/// order, as a peer whose address vector has the owner's IDs.
///
/// # Errors
///
/// `EALREADY`: another provider is being called, which inquires about this one. `ENODATA`: there is
/// no such provider, or it does not offer that. `ENOMEM`. Any that the provider
/// returns.
pub fn offer(name: &str, owner: &Info) -> Result<ForeignInfo, Error> {
    let failed = |errno: Errno| {
        Error::new(errno, "find", format!("the provider {name}"))
            .mend("use a libfabric that has it (`fi_info -l`), or shm_provider=own")
    };
    // That of a provider which inquires about this one would have no end.
    if foreign::is_inside() {
        return Err(failed(Errno::EALREADY));
    }
    let _call = ForeignCall::begin();
    let host = Host::get().ok_or_else(|| failed(Errno::ENODATA))?;
    let provider = CString::new(name).map_err(|_| failed(Errno::EINVAL))?;
    let hints = offered(&hints(name, owner), host).map_err(failed)?;
    // SAFETY: the hints are new, with all attributes. libfabric frees the copy of the name.
    let found = unsafe {
        (*(*hints.as_ptr()).fabric_attr).prov_name = libc::strdup(provider.as_ptr());
        let found = host.offers(hints);
        host.free_info(hints);
        found
    };
    let list = found.map_err(failed)?;
    // SAFETY: as `offers` returns it, and not freed before the value is dropped.
    let offer = unsafe { first_of(name, list) };
    let mut foreign = ForeignInfo {
        host,
        list,
        offer: offer.unwrap_or(list),
        info: Info::default(),
    };
    offer.ok_or_else(|| failed(Errno::ENODATA))?;
    // Its addresses are in a format of its own.
    let addresses = UsedAddresses {
        src: false,
        dest: false,
    };
    // SAFETY: as above.
    let info = unsafe { wanted(host.version(), foreign.as_ptr(), addresses) };
    foreign.info = info.map_err(|refused| failed(refused.0))?;
    Ok(foreign)
}

/// The hints for a provider.
fn hints(name: &str, owner: &Info) -> Info {
    Info {
        caps: owner.caps & CAPS,
        tx: TxAttr {
            msg_order: Order::SAS,
            ..TxAttr::default()
        },
        rx: RxAttr {
            msg_order: Order::SAS,
            ..RxAttr::default()
        },
        ep: EpAttr {
            ep_type: EpType::Rdm,
            ..EpAttr::default()
        },
        domain: DomainAttr {
            caps: domain_caps(name),
            threading: Threading::Domain,
            control_progress: Progress::Manual,
            data_progress: Progress::Manual,
            av_type: Some(AvType::Table),
            mr_mode: MrMode::VIRT_ADDR,
            ..DomainAttr::default()
        },
        fabric: FabricAttr {
            name: name.to_owned(),
            ..FabricAttr::default()
        },
        ..Info::default()
    }
}

/// The first offer of that provider alone: libfabric lists those of providers layered over it, too.
///
/// # Safety
///
/// The list is one of libfabric's.
unsafe fn first_of(name: &str, list: NonNull<fi_info>) -> Option<NonNull<fi_info>> {
    let mut next = Some(list);
    while let Some(info) = next {
        // SAFETY: as the caller says: each has all attributes, and names are strings or NULL.
        unsafe {
            if text((*(*info.as_ptr()).fabric_attr).prov_name).as_deref() == Some(name) {
                return Some(info);
            }
            next = NonNull::new((*info.as_ptr()).next);
        }
    }
    None
}

impl ForeignInfo {
    /// The offer, for calls that open objects. They change nothing of it.
    pub fn as_ptr(&self) -> *mut fi_info {
        self.offer.as_ptr()
    }

    /// The offer's limits and capabilities, in our form, without addresses.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The fabric of the offer's provider. A process has one of each name, which stays open.
    ///
    /// # Errors
    ///
    /// The provider's.
    pub fn fabric(&self) -> Result<NonNull<fid_fabric>, Error> {
        static OPEN: Mutex<BTreeMap<String, OpenFabric>> = Mutex::new(BTreeMap::new());
        let name = &self.info.fabric.name;
        let mut open = OPEN.lock();
        if let Some(fabric) = open.get(name) {
            return Ok(fabric.0);
        }
        // SAFETY: the offer has all attributes.
        let opened = unsafe {
            let attr = NonNull::new((*self.as_ptr()).fabric_attr);
            attr.map_or(Err(Errno::EINVAL), |attr| self.host.open_fabric(attr))
        };
        let fabric =
            opened.map_err(|errno| Error::new(errno, "open", format!("the fabric {name}")))?;
        open.insert(name.clone(), OpenFabric(fabric));
        Ok(fabric)
    }
}

impl Drop for ForeignInfo {
    fn drop(&mut self) {
        // SAFETY: the list is libfabric's, and this value's.
        unsafe { self.host.free_info(self.list) };
    }
}

struct OpenFabric(NonNull<fid_fabric>);

// SAFETY: any thread may use a fabric (fi_fabric(3)).
unsafe impl Send for OpenFabric {}
