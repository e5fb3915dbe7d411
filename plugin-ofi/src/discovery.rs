//! `fi_getinfo`, and the domain that an info describes.

use std::ffi::{c_char, c_int};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::info::{Info, SystemResolver, Threading};
use ferrofabric_runtime::discovery::{DiscoveryQuery, QueryFlags, find, getinfo as discover};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_shm::ShmProvider;
use ferrofabric_verbs::{VerbsProvider, VerbsProviderWith};

use crate::abi::{FI_CLASS_PEP, fi_info, fid_t};
use crate::collective::offers;
use crate::collective_peer::offer::{is_asked, offer};
use crate::guard::{Refused, control};
use crate::host::Host;
use crate::info::{UsedAddresses, check_keys, offered, wanted};
use crate::memory::text;
use crate::peer::near::ForeignShm;
use crate::settings::settings;

static VERBS: VerbsProvider = VerbsProvider::new();
static VERBS_BESIDE_OTHERS: VerbsProviderWith<ForeignShm> = VerbsProviderWith::new();
static SHM: ShmProvider = ShmProvider::new();

/// Every source of domains, best first.
fn providers(settings: &Settings) -> [&'static dyn Provider; 2] {
    match settings.has_own_shm() {
        true => [&VERBS, &SHM],
        false => [&VERBS_BESIDE_OTHERS, &SHM],
    }
}

/// `fi_getinfo`, as libfabric calls it of each provider.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    control(|| {
        let host = Host::get().ok_or(Errno::ENODATA)?;
        crate::log::refresh(host);
        // SAFETY: strings are there or NULL.
        let (node, service) = unsafe { (text(node), text(service)) };
        let mut query = DiscoveryQuery {
            version,
            node: node.as_deref(),
            service: service.as_deref(),
            flags: QueryFlags::from_bits_retain(flags),
            hints: None,
        };
        let counting = UsedAddresses {
            src: query.uses_src_addr(),
            dest: query.uses_dest_addr(),
        };
        let mut wanted = match hints.is_null() {
            true => None,
            // SAFETY: libfabric passes hints as long as they are in its own version, whatever the
            // application's.
            false => Some(unsafe { wanted(host.version(), hints, counting) }?),
        };
        if let Some(hints) = wanted.as_ref().filter(|hints| is_asked(hints)) {
            let offer = offer(hints).ok_or(Errno::ENODATA)?;
            let mut list = InfoList::new(host);
            list.add(&offer, null_mut())?;
            // SAFETY: there is room for the pointer.
            unsafe { info.write(list.take()) };
            return Ok(());
        }
        let collective = wanted.as_mut().is_some_and(offers::take);
        if let (true, Some(hints)) = (collective, &wanted) {
            if let Err(error) = offers::check(hints) {
                tracing::info!("{error}");
                return Err(Refused(Errno::ENODATA));
            }
        }
        query.hints = wanted.as_ref();
        // SAFETY: as above.
        let handle = unsafe { passive_endpoint(hints) };
        let settings = settings()?;
        let found = match find(&providers(&settings), &query, &SystemResolver, &settings) {
            Ok(found) => found,
            Err(error) => {
                // Not a warning: libfabric sends each query to each provider.
                tracing::info!("{error}");
                return Err(Refused(error.errno()));
            }
        };
        for notice in &found.notices {
            tracing::info!("{notice}");
        }
        let infos = match (collective, &wanted) {
            (true, Some(hints)) => offers::with_collectives(found.infos, hints),
            _ => found.infos,
        };
        if infos.is_empty() {
            return Err(Refused(Errno::ENODATA));
        }
        let mut list = InfoList::new(host);
        for mut offer in infos {
            offer.fabric.api_version = version;
            list.add(&offer, handle)?;
        }
        // SAFETY: there is room for the pointer.
        unsafe { info.write(list.take()) };
        Ok(())
    })
}

/// The passive endpoint whose address offers are to have, which they hand on.
///
/// # Safety
///
/// Hints are there or NULL, and their handle is an object or NULL.
unsafe fn passive_endpoint(hints: *const fi_info) -> fid_t {
    // SAFETY: as the caller says.
    unsafe {
        if hints.is_null() || (*hints).handle.is_null() {
            return null_mut();
        }
        match (*(*hints).handle).fclass {
            FI_CLASS_PEP => (*hints).handle,
            _ => null_mut(),
        }
    }
}

/// Infos in a chain, freed unless it is taken.
struct InfoList<'a> {
    host: &'a Host,
    first: *mut fi_info,
    last: *mut fi_info,
}

impl<'a> InfoList<'a> {
    fn new(host: &'a Host) -> Self {
        Self {
            host,
            first: null_mut(),
            last: null_mut(),
        }
    }

    fn add(&mut self, info: &Info, handle: fid_t) -> Result<(), Errno> {
        let new = offered(info, self.host)?.as_ptr();
        // SAFETY: it is new, and ours.
        unsafe { (*new).handle = handle };
        match self.last.is_null() {
            true => self.first = new,
            // SAFETY: the last is one of ours.
            false => unsafe { (*self.last).next = new },
        }
        self.last = new;
        Ok(())
    }

    fn take(mut self) -> *mut fi_info {
        std::mem::replace(&mut self.first, null_mut())
    }
}

impl Drop for InfoList<'_> {
    fn drop(&mut self) {
        if let Some(first) = NonNull::new(self.first) {
            // SAFETY: the chain is ours.
            unsafe { self.host.free_info(first) };
        }
    }
}

/// Opens the domain that an info describes. The fields of the info are checked again: an
/// application may have changed them. Returns whether the domain is for collective operations, too.
///
/// # Safety
///
/// The info is as [`wanted`] requires of one of that version.
///
/// # Errors
///
/// When the info describes no domain of ours, or the device or the system cannot open it.
pub(crate) unsafe fn open(
    version: u32,
    info: *const fi_info,
) -> Result<(Arc<dyn Domain>, bool), Refused> {
    // SAFETY: as the caller says.
    let mut info = unsafe { wanted(version, info, UsedAddresses::BOTH) }?;
    let collective = offers::take(&mut info);
    if collective {
        offers::check(&info)?;
    }
    check_keys(&info)?;
    let settings = settings()?;
    let providers = providers(&settings);
    for provider in providers {
        let Ok(found) = discover(&[provider], Some(&info), &settings) else {
            continue;
        };
        if let Some(best) = found.infos.first() {
            if info.domain.threading == Threading::Domain {
                // SAFETY: at this level the application sees to it that no two calls into the
                // domain overlap (fi_domain(3)).
                let domain = unsafe { provider.open_serialized(best, &settings) }?;
                return Ok((domain, collective));
            }
            return Ok((provider.open(best, &settings)?, collective));
        }
    }
    // Each provider's reason for the refusal.
    let refused = match discover(&providers, Some(&info), &settings) {
        Err(error) => error,
        Ok(_) => Error::new(
            Errno::ENODEV,
            "open",
            format!("domain {}", info.domain.name),
        ),
    };
    Err(refused.into())
}
