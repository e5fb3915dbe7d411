//! Groups: joins, and the objects of the application (fi_collective(3)).

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::types::FiAddr;

use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_CLASS_MC, FI_COLLECTIVE, FI_JOIN_COMPLETE, fi_collective_addr, fi_ops,
    fid, fid_ep, fid_mc,
};
use crate::av::members::Members;
use crate::av::set::{SetObject, new_address};
use crate::collective::endpoint::Collectives;
use crate::collective::operations::{Join, JoinEnd};
use crate::cq::collective::TransferHolder;
use crate::endpoint::object::EndpointObject;
use crate::fid::{Object, SharedObject, hand_out, object_of, ops_of, share, share_if};
use crate::guard::{Refused, control};

/// A group as the application has it.
pub(crate) struct GroupObject {
    number: FiAddr,
    /// Keeps the endpoint open.
    endpoint: SharedObject<EndpointObject>,
}

// SAFETY: `fid_mc` starts with the `fid`.
unsafe impl Object for GroupObject {
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
    close: Some(close),
    ..ops_of::<GroupObject>()
};

/// `fi_join_collective`.
pub(in crate::endpoint) unsafe extern "C" fn join(
    ep: *mut fid_ep,
    addr: *const c_void,
    flags: u64,
    mc: *mut *mut fid_mc,
    context: *mut c_void,
) -> c_int {
    control(|| {
        // SAFETY: as C calls us: an endpoint of ours, not closed.
        let endpoint = unsafe { share::<EndpointObject>(ep) };
        let collectives = endpoint.collectives().ok_or(Errno::ENOSYS)?.clone();
        if flags & FI_COLLECTIVE == 0 {
            return Err(Refused(Errno::ENOSYS));
        }
        if addr.is_null() || mc.is_null() {
            return Err(Refused(Errno::EINVAL));
        }
        // SAFETY: as fi_collective(3) has it: the address of a collective, with a set or NULL.
        let (set, coll_addr) = unsafe {
            let addr = addr.cast::<fi_collective_addr>().read();
            let set = match addr.set.is_null() {
                true => None,
                false => share_if::<SetObject>(addr.set.cast()),
            };
            (set.ok_or(Errno::EINVAL)?, addr.coll_addr)
        };
        if !set.is_of(&collectives.binding.av) {
            return Err(Refused(Errno::EINVAL));
        }
        if collectives.binding.eq.is_none() {
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
        let number = new_address();
        let mut new = null_mut();
        // SAFETY: there is room for the pointer.
        unsafe { hand_out(GroupObject { number, endpoint }, context, &raw mut new) };
        let join = JoinCall {
            number,
            parent,
            members,
            flags: flags & !FI_COLLECTIVE,
            end: JoinEnd {
                fid: new as u64,
                context: context as u64,
            },
        };
        match join.begin(&collectives) {
            Ok(()) => {
                // SAFETY: C gives room for the pointer.
                unsafe { mc.write(new) };
                (collectives.imported_events().iter()).for_each(|eq| eq.pass_on());
                Ok(())
            }
            Err(errno) => {
                // SAFETY: nobody has it but us.
                unsafe { close(new.cast()) };
                Err(Refused(errno))
            }
        }
    })
}

/// A call to join a group.
struct JoinCall {
    number: FiAddr,
    /// The group of which this is a subgroup.
    parent: Option<FiAddr>,
    members: Members,
    flags: u64,
    end: JoinEnd,
}

impl JoinCall {
    /// # Errors
    ///
    /// `EAGAIN`: an address of the set is being resolved. `EINVAL`: the endpoint is no member, or
    /// has not joined the group by which it joins, or a member is none of that group. `ENOSPC`: the
    /// endpoint has joined as many groups as it can. The errno by which the other group has failed.
    fn begin(self, collectives: &Collectives) -> Result<(), Errno> {
        let own = collectives.own_address(self.members.all())?;
        let hash = collectives.hash_of_names(self.members.all())?;
        let mut guard = collectives.state.lock();
        let state = &mut *guard;
        if let Some(parent) = self.parent {
            // The members of the subgroup alone take part in the join, by messages of their own.
            let parent = state.operations.usable(parent)?;
            if !parent.members.contains_all(&self.members) {
                return Err(Errno::EINVAL);
            }
        }
        collectives.join(state, hash, |name| Join {
            group: self.number,
            members: self.members,
            own,
            name,
            flags: self.flags,
            end: self.end,
        })
    }
}

/// `fi_close` of a group.
unsafe extern "C" fn close(mc: *mut fid) -> c_int {
    control(|| {
        // SAFETY: C gives back what `hand_out` gave it.
        let group = unsafe { object_of::<GroupObject>(mc.cast()) };
        if let Some(collectives) = group.endpoint.collectives() {
            collectives.leave_group(group.number);
            // An event that is not read yet would name an object that is gone.
            (collectives.binding.eq.iter()).for_each(|eq| eq.forget(FI_JOIN_COMPLETE, mc as u64));
        }
        // SAFETY: as above; nothing of ours holds it.
        drop(unsafe { Arc::from_raw(mc.cast::<crate::fid::Given<GroupObject>>().cast_const()) });
        Ok::<_, Errno>(())
    })
}
