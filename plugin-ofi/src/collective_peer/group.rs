//! The groups of a collective peer (fi_collective(3)).

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::types::FiAddr;

use super::endpoint::PeerEndpointObject;
use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_CLASS_MC, FI_COLLECTIVE, FI_JOIN_COMPLETE, fi_collective_addr, fi_ops,
    fid, fid_ep, fid_mc,
};
use crate::av::set::{SetObject, new_address};
use crate::fid::{Object, SharedObject, close, hand_out, object_of, ops_of, share, share_if};
use crate::guard::{Refused, control};

/// A group as the application has it.
pub(super) struct PeerGroupObject {
    number: FiAddr,
    /// Keeps the endpoint open.
    endpoint: SharedObject<PeerEndpointObject>,
}

// SAFETY: `fid_mc` starts with the `fid`.
unsafe impl Object for PeerGroupObject {
    type Raw = fid_mc;
    const CLASS: usize = FI_CLASS_MC;
    const FID_OPS: &'static fi_ops = &FID_OPS;

    fn raw(&self, fid: fid) -> fid_mc {
        fid_mc {
            fid,
            fi_addr: self.number.0,
        }
    }
}

static FID_OPS: fi_ops = fi_ops {
    close: Some(close_group),
    ..ops_of::<PeerGroupObject>()
};

/// `fi_join_collective`.
pub(super) unsafe extern "C" fn join(
    ep: *mut fid_ep,
    addr: *const c_void,
    flags: u64,
    mc: *mut *mut fid_mc,
    context: *mut c_void,
) -> c_int {
    control(|| {
        if flags != FI_COLLECTIVE {
            return Err(Refused(Errno::ENOSYS));
        }
        if addr.is_null() || mc.is_null() {
            return Err(Refused(Errno::EINVAL));
        }
        // SAFETY: as C calls us: an endpoint of ours, not closed; the address of a collective, with
        // a set or NULL.
        let (endpoint, set, coll_addr) = unsafe {
            let addr = addr.cast::<fi_collective_addr>().read();
            let set = match addr.set.is_null() {
                true => None,
                false => share_if::<SetObject>(addr.set.cast()),
            };
            (share::<PeerEndpointObject>(ep), set, addr.coll_addr)
        };
        let carrier = endpoint.carrier()?;
        let (set, vector) = set.zip(endpoint.vector()).ok_or(Errno::EINVAL)?;
        if !set.is_of(&vector) {
            return Err(Refused(Errno::EINVAL));
        }
        if carrier.events().is_none() {
            let error = Error::new(Errno::ENOEQ, "join", "collective group");
            return Err(error
                .mend("bind an event queue to the endpoint first")
                .into());
        }
        let parent = match FiAddr(coll_addr) {
            addr if coll_addr == FI_ADDR_NOTAVAIL || addr == set.number() => None,
            addr => Some(addr),
        };
        let members = set.members()?;
        let own = vector.address_of(carrier.transfers.ep());
        let number = new_address();
        let mut new = null_mut();
        // SAFETY: there is room for the pointer.
        unsafe { hand_out(PeerGroupObject { number, endpoint }, context, &raw mut new) };
        let event = (new as u64, context as u64);
        // Before the event of the join, by which the owner may look for the group.
        // SAFETY: C gives room for the pointer.
        unsafe { mc.write(new) };
        match carrier.join(number, parent, members, own, event) {
            Ok(()) => Ok(()),
            Err(errno) => {
                // SAFETY: nobody has it but us.
                unsafe {
                    mc.write(null_mut());
                    close_group(new.cast());
                }
                Err(Refused(errno))
            }
        }
    })
}

/// `fi_close` of a group.
unsafe extern "C" fn close_group(mc: *mut fid) -> c_int {
    let left = control(|| {
        // SAFETY: C gives back what `hand_out` gave it.
        let group = unsafe { object_of::<PeerGroupObject>(mc.cast()) };
        let carrier = group.endpoint.carrier()?;
        carrier.leave(group.number, mc as u64);
        // An event that is not read yet would be of an object that is gone.
        if let Some(events) = carrier.events() {
            events.forget(FI_JOIN_COMPLETE, mc as u64);
        }
        Ok::<_, Errno>(())
    });
    match left {
        // SAFETY: as above.
        0 => unsafe { close::<PeerGroupObject>(mc) },
        error => error,
    }
}
