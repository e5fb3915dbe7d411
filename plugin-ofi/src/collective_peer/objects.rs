//! The calls of the domain and of the endpoint of a collective peer.

use std::ffi::{c_int, c_void};

use ferrofabric_contracts::error::Errno;

use super::domain::PeerDomainObject;
use super::endpoint::PeerEndpointObject;
use super::queue::PeerQueueObject;
use super::reports::REPORTS;
use super::vector::PeerVectorObject;
use super::{calls, elements, group};
use crate::abi::{
    FI_CLASS_DOMAIN, FI_CLASS_EP, FI_ENABLE, Roomy, fi_av_attr, fi_collective_attr,
    fi_collective_op, fi_cq_attr, fi_info, fi_ops, fi_ops_cm, fi_ops_domain,
    fi_peer_transfer_context, fid, fid_av, fid_cq, fid_domain, fid_ep,
};
use crate::fid::{Object, close, is_held, object_of, open_on, ops_of};
use crate::guard::control;
use crate::no_calls;
use crate::unsupported::Unsupported;

// SAFETY: `fid_domain` starts with the `fid`.
unsafe impl Object for PeerDomainObject {
    type Raw = fid_domain;
    const CLASS: usize = FI_CLASS_DOMAIN;
    const FID_OPS: &'static fi_ops = &DOMAIN_FID_OPS;

    fn raw(&self, fid: fid) -> fid_domain {
        fid_domain {
            fid,
            ops: DOMAIN_OPS.as_ptr(),
            mr: no_calls::MR.as_ptr(),
        }
    }
}

static DOMAIN_FID_OPS: fi_ops = ops_of::<PeerDomainObject>();

static DOMAIN_OPS: Roomy<fi_ops_domain> = Roomy::new(fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: Some(av_open),
    cq_open: Some(cq_open),
    endpoint: Some(endpoint),
    scalable_ep: Some(Unsupported::ENOSYS),
    cntr_open: Some(Unsupported::ENOSYS),
    poll_open: Some(Unsupported::ENOSYS),
    stx_ctx: Some(Unsupported::ENOSYS),
    srx_ctx: Some(Unsupported::ENOSYS),
    query_atomic: Some(Unsupported::ENOSYS),
    query_collective: Some(query),
    endpoint2: Some(endpoint2),
});

// SAFETY: `fid_ep` starts with the `fid`.
unsafe impl Object for PeerEndpointObject {
    type Raw = fid_ep;
    const CLASS: usize = FI_CLASS_EP;
    const FID_OPS: &'static fi_ops = &ENDPOINT_FID_OPS;

    fn raw(&self, fid: fid) -> fid_ep {
        fid_ep {
            fid,
            ops: no_calls::EP.as_ptr(),
            cm: CM.as_ptr(),
            msg: no_calls::MSG.as_ptr(),
            rma: no_calls::RMA.as_ptr(),
            tagged: no_calls::TAGGED.as_ptr(),
            atomic: no_calls::ATOMIC.as_ptr(),
            collective: calls::OPS.as_ptr(),
        }
    }
}

static ENDPOINT_FID_OPS: fi_ops = fi_ops {
    close: Some(close_endpoint),
    bind: Some(bind),
    control: Some(command),
    ..ops_of::<PeerEndpointObject>()
};

static CM: Roomy<fi_ops_cm> = Roomy::new(fi_ops_cm {
    join: Some(group::join),
    ..no_calls::CM.table
});

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
            PeerVectorObject::open(domain, attr.as_ref(), context.cast())
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
            PeerQueueObject::open(domain, attr.as_ref(), context.cast())
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
    let transfers: *mut fi_peer_transfer_context = context.cast();
    // SAFETY: as for `av_open`; the info and the context are as fi_peer(3) has it.
    unsafe {
        open_on(domain, context, ep, |domain| {
            let opened = PeerEndpointObject::open(domain, info, flags, transfers)?;
            (*transfers).peer_ops = std::ptr::from_ref(&REPORTS).cast_mut();
            Ok(opened)
        })
    }
}

/// `fi_query_collective`.
unsafe extern "C" fn query(
    _domain: *mut fid_domain,
    coll: fi_collective_op,
    attr: *mut fi_collective_attr,
    flags: u64,
) -> c_int {
    control(|| {
        // SAFETY: as C calls us.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::EINVAL)?;
        match flags {
            0 => elements::describe(coll, attr),
            _ => Err(Errno::EINVAL),
        }
    })
}

/// `fi_ep_bind`.
unsafe extern "C" fn bind(ep: *mut fid, object: *mut fid, _flags: u64) -> c_int {
    control(|| {
        if object.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as C calls us: an endpoint of ours, and an object that is open.
        unsafe { object_of::<PeerEndpointObject>(ep.cast()).bind(object) }
    })
}

/// `fi_control`.
unsafe extern "C" fn command(ep: *mut fid, command: c_int, _arg: *mut c_void) -> c_int {
    control(|| match command {
        // SAFETY: as C calls us: an endpoint of ours.
        FI_ENABLE => unsafe { object_of::<PeerEndpointObject>(ep.cast()) }.enable(),
        _ => Err(Errno::ENOSYS.into()),
    })
}

/// `fi_close`. The owner may report ends while its transfers are cancelled.
unsafe extern "C" fn close_endpoint(ep: *mut fid) -> c_int {
    let closed = control(|| {
        // SAFETY: as C calls us: an endpoint of ours, which is open.
        let (is_held, this) = unsafe {
            let raw = ep.cast();
            (
                is_held::<PeerEndpointObject>(raw),
                object_of::<PeerEndpointObject>(raw),
            )
        };
        if is_held {
            return Err(Errno::EBUSY);
        }
        this.close();
        Ok(())
    });
    match closed {
        // SAFETY: as above.
        0 => unsafe { close::<PeerEndpointObject>(ep) },
        error => error,
    }
}
