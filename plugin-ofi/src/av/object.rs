//! The object of an address vector, and the addresses that C has.

use std::ffi::{CStr, c_void};
use std::sync::{Arc, OnceLock};

use ferrofabric_av::format;
use ferrofabric_contracts::addr::AddrFormats;
use ferrofabric_contracts::info::AddrFormat;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::fabric::Av;

use super::imported::ImportedAv;
use crate::abi::fid_av;
use crate::domain::DomainObject;
use crate::eq::EqObject;
use crate::fid::{SharedObject, object_of};
use crate::srx::{BoundReceives, ForeignReceives};

/// An address vector.
pub(crate) struct AvObject {
    pub(crate) av: Arc<dyn Av>,
    /// The addresses, where they are those of another provider.
    pub(crate) imported: Option<Arc<ImportedAv>>,
    pub(super) format: AddrFormat,
    /// Insertions end with events (`FI_EVENT`).
    pub(super) asynchronous: bool,
    /// Opened for IDs of the application's (`FI_AV_USER_ID`).
    pub(super) user_ids: bool,
    pub(super) eq: OnceLock<SharedObject<EqObject>>,
    /// Messages whose senders may be inserted.
    pub(super) receives: BoundReceives,
    pub(super) domain: SharedObject<DomainObject>,
}

impl AvObject {
    /// Has insertions update the sources of these messages.
    pub(crate) fn add_receives(&self, receives: &Arc<ForeignReceives>) {
        self.receives.add(receives);
    }

    /// The address in the table, of one that C has.
    pub(super) fn in_table(&self, addr: FiAddr) -> FiAddr {
        match &self.imported {
            Some(imported) => imported.find(addr),
            None => addr,
        }
    }

    /// Whether it was opened on that domain.
    pub(crate) fn is_of(&self, domain: &DomainObject) -> bool {
        std::ptr::eq(&**self.domain, domain)
    }
}

/// # Safety
///
/// As C calls us: the address vector is open.
pub(super) unsafe fn av_object<'a>(av: *const fid_av) -> &'a AvObject {
    // SAFETY: as the caller says.
    unsafe { object_of::<AvObject>(av) }
}

/// The bytes of an address that C has in the format of a domain.
///
/// # Safety
///
/// `addr` is an address of that format.
pub(super) unsafe fn address_bytes<'a>(format: AddrFormat, addr: *const c_void) -> &'a [u8] {
    match format {
        AddrFormat::STR if addr.is_null() => &[],
        // SAFETY: text is a string.
        AddrFormat::STR => unsafe { CStr::from_ptr(addr.cast()) }.to_bytes(),
        _ => {
            // SAFETY: a `sockaddr` starts with its family.
            let len = unsafe { address_len(format, addr) }.unwrap_or(size_of::<u16>());
            // SAFETY: an address has that many bytes.
            unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), len) }
        }
    }
}

/// Bytes of an address; `None` for a `sockaddr` of a family that is not known. Those of sockets
/// start with a family.
///
/// # Safety
///
/// `addr` is an address of that format, or starts as one.
pub(super) unsafe fn address_len(format: AddrFormat, addr: *const c_void) -> Option<usize> {
    match AddrFormats::SOCKADDR.has(format) {
        // SAFETY: as the caller says.
        true => format::len(format, unsafe { addr.cast::<u16>().read_unaligned() }),
        false => format.fixed_len(),
    }
}
