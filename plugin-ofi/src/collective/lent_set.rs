//! A set of addresses that is lent to a provider with collective operations (fi_peer(3)). A
//! provider that imports no sets, as `off_coll`, gets the members by insertions.

use std::ffi::c_int;
use std::ptr::{from_ref, null_mut};

use ferrofabric_contracts::error::Errno;

use crate::abi::{
    FI_CLASS_PEER_AV_SET, FI_ETOOSMALL, Roomy, fi_addr_t, fi_ops, fi_ops_av_set_owner,
    fi_peer_av_set_context, fid, fid_peer_av_set,
};
use crate::av::members::Members;
use crate::guard::value;
use crate::unsupported::Unsupported;

/// A set, with the members that a group has. It stays where it is.
#[repr(C)]
pub(crate) struct LentSet {
    set: fid_peer_av_set,
    members: Members,
}

// SAFETY: nothing changes it.
unsafe impl Send for LentSet {}
// SAFETY: as above.
unsafe impl Sync for LentSet {}

impl LentSet {
    pub(crate) fn new(members: Members) -> Box<Self> {
        Box::new(Self {
            set: fid_peer_av_set {
                fid: fid {
                    fclass: FI_CLASS_PEER_AV_SET,
                    context: null_mut(),
                    ops: from_ref(&FID).cast_mut(),
                },
                owner_ops: OPS.as_ptr(),
            },
            members,
        })
    }

    /// The context of the call that opens the peer's set.
    pub(crate) fn context(self: &mut Box<Self>) -> fi_peer_av_set_context {
        fi_peer_av_set_context {
            size: size_of::<fi_peer_av_set_context>(),
            av_set: (&raw mut **self).cast(),
        }
    }
}

/// The calls of an object that lives as long as its owner: none.
static FID: fi_ops = fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(Unsupported::ENOSYS),
    bind: Some(Unsupported::ENOSYS),
    control: Some(Unsupported::ENOSYS),
    ops_open: Some(Unsupported::ENOSYS),
    tostr: Some(Unsupported::ENOSYS),
    ops_set: Some(Unsupported::ENOSYS),
};

static OPS: Roomy<fi_ops_av_set_owner> = Roomy::new(fi_ops_av_set_owner {
    size: size_of::<fi_ops_av_set_owner>(),
    members: Some(members),
});

/// The members, if there is room for all of them, and in any case their number.
unsafe extern "C" fn members(
    set: *mut fid_peer_av_set,
    addrs: *mut fi_addr_t,
    count: *mut usize,
) -> c_int {
    value(-Errno::EOTHER.0, || {
        // SAFETY: the set is the first field of ours; the number is there or NULL.
        let (this, count) = unsafe { (&*set.cast::<LentSet>(), count.as_mut()) };
        let Some(count) = count else {
            return -Errno::EINVAL.0;
        };
        let members = this.members.all();
        let room = std::mem::replace(count, members.len());
        if room < members.len() {
            return -FI_ETOOSMALL;
        }
        if addrs.is_null() && !members.is_empty() {
            return -Errno::EINVAL.0;
        }
        for (i, member) in members.iter().enumerate() {
            // SAFETY: there is room for all members.
            unsafe { addrs.add(i).write(member.0) };
        }
        0
    })
}

#[cfg(test)]
mod tests {
    use ferrofabric_contracts::types::FiAddr;

    use super::*;

    /// A call as the peer makes it, by the context. Returns its result and the number.
    fn call(lent: &mut Box<LentSet>, room: &mut [fi_addr_t]) -> (c_int, usize) {
        let context = lent.context();
        assert_eq!(context.size, size_of::<fi_peer_av_set_context>());
        let set = context.av_set.cast::<fid_peer_av_set>();
        let mut count = room.len();
        // SAFETY: as fi_peer(3) has it.
        let result = unsafe {
            assert_eq!((*set).fid.fclass, FI_CLASS_PEER_AV_SET);
            let ops = &*(*set).owner_ops;
            assert_eq!(ops.size, size_of::<fi_ops_av_set_owner>());
            let members = ops.members.expect("an operation");
            members(set, room.as_mut_ptr(), &raw mut count)
        };
        (result, count)
    }

    /// Covers: PEER-3
    #[test]
    fn a_lent_set_has_its_members_where_there_is_room_for_all() {
        let addrs = [9, 0, 1 << 40, 7];
        let mut lent = LentSet::new(addrs.into_iter().map(FiAddr).collect());
        for room in 0..4 {
            let mut few = vec![u64::MAX; room];
            assert_eq!(call(&mut lent, &mut few), (-FI_ETOOSMALL, 4));
            assert!(
                few.iter().all(|addr| *addr == u64::MAX),
                "nothing is written"
            );
        }
        for room in 4..7 {
            let mut enough = vec![u64::MAX; room];
            assert_eq!(call(&mut lent, &mut enough), (0, 4));
            assert_eq!(enough[..4], addrs);
            assert!(enough[4..].iter().all(|addr| *addr == u64::MAX));
        }
        let mut none = LentSet::new(Members::default());
        assert_eq!(call(&mut none, &mut []), (0, 0));
        let set = none.context().av_set.cast::<fid_peer_av_set>();
        let mut count = 0;
        // SAFETY: as above; nothing is written without a number, or without room.
        unsafe {
            assert_eq!(members(set, null_mut(), null_mut()), -Errno::EINVAL.0);
            assert_eq!(members(set, null_mut(), &raw mut count), 0);
            let set = lent.context().av_set.cast::<fid_peer_av_set>();
            let mut count = 4;
            let result = members(set, null_mut(), &raw mut count);
            assert_eq!((result, count), (-Errno::EINVAL.0, 4));
        }
    }
}
