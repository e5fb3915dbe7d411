//! The provider structure that libfabric gets when it loads the library.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use ferrofabric_system::cancel::Uncancelled;

use crate::abi::{fi_context, fi_provider};
use crate::guard::value;
use crate::host::Host;
use crate::{calls, discovery};

/// The provider, where libfabric keeps notes of its own too.
struct ProviderEntry(UnsafeCell<fi_provider>);

// SAFETY: we write it once, before libfabric has it; from then on it is libfabric's.
unsafe impl Sync for ProviderEntry {}

static PROVIDER: ProviderEntry = ProviderEntry(UnsafeCell::new(fi_provider {
    version: crate::VERSION,
    fi_version: 0,
    context: fi_context {
        internal: [NOTHING_ON_TOP, null_mut(), null_mut(), null_mut()],
    },
    name: c"ferro".as_ptr(),
    getinfo: Some(discovery::getinfo),
    fabric: Some(calls::fabric::open),
    cleanup: Some(cleanup),
}));

/// libfabric's notes begin with the kind of provider (4 bytes, which it fills in itself), whether
/// its log is off, and whether nothing is to be layered on it: unless the application requests that
/// by name, reliable messages are ours, not those of `ofi_rxd` over our datagrams.
const NOTHING_ON_TOP: *mut c_void =
    std::ptr::without_provenance_mut(usize::from_ne_bytes([0, 0, 0, 0, 0, 1, 0, 0]));

/// The entry point of the library. Returns the provider, or NULL where it can not work.
///
/// # Safety
///
/// Called by libfabric, which is loaded, and one call after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fi_prov_ini() -> *mut fi_provider {
    let _uncancelled = Uncancelled::begin();
    value(null_mut(), || {
        let provider = PROVIDER.0.get();
        // SAFETY: it is a static, and has its name.
        let Some(host) = (unsafe { Host::attach(NonNull::new_unchecked(provider)) }) else {
            return null_mut();
        };
        crate::settings::define(host);
        crate::log::install(host);
        // libfabric passes a provider by whose version is below the one that is requested.
        // SAFETY: libfabric has it from our return on.
        unsafe { (*provider).fi_version = host.version() };
        provider
    })
}

/// All that there is belongs to objects, which are closed; the log is libfabric's.
unsafe extern "C" fn cleanup() {
    let _uncancelled = Uncancelled::begin();
    value((), crate::log::stop);
}
