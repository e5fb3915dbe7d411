//! The fabrics and domains that the application has open. Offers name them, and hints that name
//! them restrict offers to them (fi_fabric(3), fi_domain(3)).
//!
//! An object is listed from the call that opens it until it is closed. The application may not use
//! a name from an offer while another thread closes the object.

use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::info::Info;

use crate::abi::{fi_info, fid_domain, fid_fabric};

/// An open fabric.
struct OpenFabric {
    fid: NonNull<fid_fabric>,
    name: String,
}

/// An open domain.
struct OpenDomain {
    fid: NonNull<fid_domain>,
    fabric: NonNull<fid_fabric>,
    name: String,
}

/// Both lists are in the order of opening.
struct OpenObjects {
    fabrics: Vec<OpenFabric>,
    domains: Vec<OpenDomain>,
}

// SAFETY: nothing is read by the pointers, which are compared and given to C.
unsafe impl Send for OpenObjects {}

static OPEN: Mutex<OpenObjects> = Mutex::new(OpenObjects {
    fabrics: Vec::new(),
    domains: Vec::new(),
});

fn open_objects() -> MutexGuard<'static, OpenObjects> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lists a fabric that was opened by its name.
pub(crate) fn add_fabric(fid: NonNull<fid_fabric>, name: String) {
    open_objects().fabrics.push(OpenFabric { fid, name });
}

/// Takes a fabric out of the list.
pub(crate) fn remove_fabric(fid: NonNull<fid_fabric>) {
    open_objects().fabrics.retain(|open| open.fid != fid);
}

/// Lists a domain that was opened on a fabric.
pub(crate) fn add_domain(fid: NonNull<fid_domain>, fabric: NonNull<fid_fabric>, name: String) {
    open_objects()
        .domains
        .push(OpenDomain { fid, fabric, name });
}

/// Takes a domain out of the list.
pub(crate) fn remove_domain(fid: NonNull<fid_domain>) {
    open_objects().domains.retain(|open| open.fid != fid);
}

/// The open objects that hints name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedObjects {
    fabric: Option<NonNull<fid_fabric>>,
    domain: Option<NonNull<fid_domain>>,
}

impl NamedObjects {
    /// Those of an application's hints, which may be NULL.
    ///
    /// # Safety
    ///
    /// The attributes of the hints are there or NULL.
    pub(crate) unsafe fn of(hints: *const fi_info) -> Self {
        // SAFETY: as the caller says. Every version has these fields, at the same places.
        unsafe {
            let hints = hints.as_ref();
            let fabric = hints.and_then(|hints| hints.fabric_attr.as_ref());
            let domain = hints.and_then(|hints| hints.domain_attr.as_ref());
            Self {
                fabric: fabric.and_then(|attr| NonNull::new(attr.fabric)),
                domain: domain.and_then(|attr| NonNull::new(attr.domain)),
            }
        }
    }

    /// Restricts hints to the names of the objects, and names the fabric of a domain.
    ///
    /// # Errors
    ///
    /// `ENODATA`: an object is not open, or there is no offer for all that the hints name.
    pub(crate) fn restrict(&mut self, hints: &mut Info) -> Result<(), Error> {
        let open = open_objects();
        if let Some(domain) = self.domain {
            let found = open.domains.iter().find(|open| open.fid == domain);
            let found = found.ok_or_else(|| no_offer("domain_attr->domain is not open"))?;
            if *self.fabric.get_or_insert(found.fabric) != found.fabric {
                return Err(no_offer(
                    "domain_attr->domain is on another fabric than fabric_attr->fabric",
                ));
            }
            restrict_name(&mut hints.domain.name, &found.name, "domain_attr->name")?;
        }
        if let Some(fabric) = self.fabric {
            let found = open.fabrics.iter().find(|open| open.fid == fabric);
            let found = found.ok_or_else(|| no_offer("fabric_attr->fabric is not open"))?;
            restrict_name(&mut hints.fabric.name, &found.name, "fabric_attr->name")?;
        }
        Ok(())
    }

    /// What an offer names: the objects of the hints, or else the first open fabric of its name, and
    /// the first open domain of its name on that fabric.
    pub(crate) fn in_offer(&self, offer: &Info) -> (*mut fid_fabric, *mut fid_domain) {
        let open = open_objects();
        let is_its_fabric = |at: &&OpenFabric| at.name == offer.fabric.name;
        let first_fabric = || open.fabrics.iter().find(is_its_fabric).map(|at| at.fid);
        let fabric = self.fabric.or_else(first_fabric);
        let is_its_domain =
            |at: &&OpenDomain| Some(at.fabric) == fabric && at.name == offer.domain.name;
        let first_domain = || open.domains.iter().find(is_its_domain).map(|at| at.fid);
        let domain = self.domain.or_else(first_domain);
        (
            fabric.map_or(null_mut(), NonNull::as_ptr),
            domain.map_or(null_mut(), NonNull::as_ptr),
        )
    }
}

/// Restricts a name of the hints to that of an open object, which may have none.
fn restrict_name(wanted: &mut String, name: &str, field: &str) -> Result<(), Error> {
    if wanted.is_empty() {
        name.clone_into(wanted);
    }
    match name.is_empty() || wanted == name {
        true => Ok(()),
        false => Err(no_offer(&format!("{field} is not that of the open object"))),
    }
}

fn no_offer(why: &str) -> Error {
    Error::new(Errno::ENODATA, "find", format!("an offer: {why}"))
}
