//! The calls of a domain (fi_domain(3)), and how one is opened.

use std::ffi::{c_int, c_void};

use ferrofabric_contracts::error::Errno;

use crate::abi::{
    FI_CLASS_DOMAIN, FI_MAP_RAW_MR, FI_PEER, FI_UNMAP_KEY, Roomy, fi_av_attr, fi_cntr_attr,
    fi_cq_attr, fi_info, fi_ops, fi_ops_domain, fi_rx_attr, fid, fid_av, fid_cntr, fid_cq,
    fid_domain, fid_ep,
};
use crate::av::object::AvObject;
use crate::cntr::CntrObject;
use crate::cq::CqObject;
use crate::domain::{DomainObject, ImportedDomain};
use crate::endpoint::object::EndpointObject;
use crate::endpoint::{atomics, collectives};
use crate::fabric::FabricObject;
use crate::fid::{Object, SharedObject, open_on, ops_of};
use crate::guard::{Refused, control};
use crate::srx::SrxObject;
use crate::unsupported::Unsupported;
use crate::{discovery, mr};

static OPS: Roomy<fi_ops_domain> = Roomy::new(fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: Some(av_open),
    cq_open: Some(cq_open),
    endpoint: Some(endpoint),
    scalable_ep: Some(Unsupported::ENOSYS),
    cntr_open: Some(cntr_open),
    poll_open: Some(Unsupported::ENOSYS),
    stx_ctx: Some(Unsupported::ENOSYS),
    srx_ctx: Some(srx_context),
    query_atomic: Some(atomics::query),
    query_collective: Some(collectives::query),
    endpoint2: Some(endpoint2),
});

// SAFETY: `fid_domain` starts with the `fid`.
unsafe impl Object for DomainObject {
    type Raw = fid_domain;
    const CLASS: usize = FI_CLASS_DOMAIN;
    const FID_OPS: &'static fi_ops = &FID_OPS;

    fn raw(&self, fid: fid) -> fid_domain {
        fid_domain {
            fid,
            ops: OPS.as_ptr(),
            mr: mr::OPS.as_ptr(),
        }
    }
}

static FID_OPS: fi_ops = fi_ops {
    control: Some(command),
    ..ops_of::<DomainObject>()
};

/// Opens the domain that the info describes.
///
/// # Safety
///
/// `info` is one that discovery gave, perhaps changed, as long as it is in the version of the
/// fabric. With `FI_PEER`, `context` is as fi_peer(3) has it.
pub(super) unsafe fn open(
    fabric: SharedObject<FabricObject>,
    info: *const fi_info,
    flags: u64,
    context: *const c_void,
) -> Result<DomainObject, Refused> {
    if flags & !FI_PEER != 0 {
        return Err(Errno::EBADFLAGS.into());
    }
    let imported = match flags & FI_PEER {
        0 => None,
        // SAFETY: as the caller says.
        _ => Some(unsafe { ImportedDomain::of(context.cast()) }?),
    };
    // SAFETY: as the caller says.
    let (domain, collective) = unsafe { discovery::open(fabric.version(), info) }?;
    let domain = DomainObject {
        domain,
        fabric,
        collective,
        imported,
    };
    if domain.imported.is_some() {
        domain.check_imports("a domain of another provider")?;
    }
    Ok(domain)
}

/// `fi_control`, and the calls with the keys of peers' regions (`fi_mr_map_raw`,
/// `fi_mr_unmap_key`).
unsafe extern "C" fn command(_domain: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    control(|| match command {
        // SAFETY: as C calls us: the argument is the structure that belongs to the command.
        FI_MAP_RAW_MR => unsafe { mr::map_raw_key(arg.cast()) },
        // A mapped key takes nothing that is to be given back.
        FI_UNMAP_KEY if arg.is_null() => Err(Errno::EINVAL),
        FI_UNMAP_KEY => Ok(()),
        _ => Err(Errno::ENOSYS),
    })
}

unsafe extern "C" fn av_open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    av: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the domain is ours and open; attributes are there or NULL; there is room for the
    // pointer.
    unsafe {
        open_on(domain, context, av, |domain| {
            AvObject::open(domain, attr, context)
        })
    }
}

unsafe extern "C" fn cq_open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    cq: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as for `av_open`.
    unsafe {
        open_on(domain, context, cq, |domain| {
            CqObject::open(domain, attr, context)
        })
    }
}

unsafe extern "C" fn cntr_open(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    cntr: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as for `av_open`.
    unsafe {
        open_on(domain, context, cntr, |domain| {
            CntrObject::open(domain, attr, context)
        })
    }
}

unsafe extern "C" fn srx_context(
    domain: *mut fid_domain,
    attr: *mut fi_rx_attr,
    srx: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as for `av_open`.
    unsafe {
        open_on(domain, context, srx, |domain| {
            SrxObject::open(domain, attr, context)
        })
    }
}

unsafe extern "C" fn endpoint(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as C calls us.
    unsafe { endpoint2(domain, info, ep, 0, context) }
}

unsafe extern "C" fn endpoint2(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as for `av_open`; the info is as fi_endpoint(3) has it.
    let open = |domain| unsafe { EndpointObject::open(domain, info, flags) };
    // SAFETY: as above.
    unsafe { open_on(domain, context, ep, open) }
}
