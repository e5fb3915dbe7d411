//! The collective operations of an endpoint, as C calls them (fi_collective(3)).

pub(super) mod group;
mod limits;

use std::ffi::{c_int, c_void};

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::types::FiAddr;

use super::object::EndpointObject;
use crate::abi::{
    Roomy, fi_addr_t, fi_collective_attr, fi_collective_op, fi_datatype, fi_op, fi_ops_collective,
    fid_domain, fid_ep,
};
use crate::collective::broadcast::Bounce;
use crate::collective::foreign::{checked, foreign};
use crate::collective::offload::Offload;
use crate::collective::offload_endpoint::OffloadEndpoint;
use crate::collective::operations::{CollectiveOperation, OperationKind};
use crate::datatypes::size_of_element;
use crate::domain::DomainObject;
use crate::fi_addr::given;
use crate::fid::object_of;
use crate::guard::{control, data};
use crate::unsupported::Unsupported;
use limits::MessagePattern;

/// The operations that `off_coll` has.
pub(super) static OPS: Roomy<fi_ops_collective> = Roomy::new(fi_ops_collective {
    size: size_of::<fi_ops_collective>(),
    barrier: Some(barrier),
    broadcast: Some(broadcast),
    alltoall: Some(Unsupported::ENOSYS),
    allreduce: Some(allreduce),
    allgather: Some(allgather),
    reduce_scatter: Some(Unsupported::ENOSYS),
    reduce: Some(Unsupported::ENOSYS),
    scatter: Some(scatter),
    gather: Some(Unsupported::ENOSYS),
    msg: Some(Unsupported::ENOSYS),
    barrier2: Some(barrier2),
});

/// An operation that is to begin.
struct CollectiveCall<'a> {
    endpoint: &'a EndpointObject,
    group: FiAddr,
    /// `None`: those of the endpoint.
    flags: Option<u64>,
    context: *mut c_void,
    /// Data of the elements of each member.
    count: usize,
    pattern: MessagePattern,
    datatype: Option<fi_datatype>,
    root: Option<FiAddr>,
}

/// The values that an operation begins with.
struct Begun {
    /// The address of the group at `off_coll`.
    group: fi_addr_t,
    /// The rank of the root.
    root: u64,
    members: usize,
    bytes: usize,
    is_root: bool,
}

impl CollectiveCall<'_> {
    /// Checks the operation, and begins it by a call of `off_coll` that `call` makes. That may put
    /// the data into a buffer of ours.
    ///
    /// # Errors
    ///
    /// `ENOSYS`: the endpoint has no collectives. `EINVAL`: it has not joined the group, or the
    /// root is no member. `EOPNOTSUPP`: there is no such type. `EMSGSIZE`: too much data for a
    /// message. The errno by which the group has failed; that of `off_coll`.
    fn begin(
        self,
        call: impl FnOnce(&OffloadEndpoint, &Begun, &mut Option<Bounce>, *mut c_void) -> Option<isize>,
    ) -> Result<isize, OpError> {
        self.try_begin(call)
            .map(|()| 0)
            .map_err(|errno| match errno {
                Errno::EAGAIN => OpError::Again,
                errno => OpError::Failed(errno),
            })
    }

    fn try_begin(
        self,
        call: impl FnOnce(&OffloadEndpoint, &Begun, &mut Option<Bounce>, *mut c_void) -> Option<isize>,
    ) -> Result<(), Errno> {
        let collectives = self.endpoint.collectives().ok_or(Errno::ENOSYS)?;
        let bytes = match self.datatype {
            Some(datatype) => size_of_element(datatype).ok_or(Errno::EOPNOTSUPP)?,
            None => 0,
        };
        let mut guard = collectives.state.lock();
        let state = &mut *guard;
        let group = state.operations.usable(self.group)?;
        let members = group.members.all().len();
        let max_msg = self.endpoint.max_msg_size();
        if self.count > self.pattern.max_elements(members, bytes, max_msg) {
            return Err(Errno::EMSGSIZE);
        }
        let root = match self.root {
            Some(root) => group.members.rank(root).ok_or(Errno::EINVAL)?,
            None => 0,
        };
        let begun = Begun {
            group: group.offload.address(),
            root: root as u64,
            members,
            bytes,
            is_root: group.members.all().get(root) == Some(&group.own),
        };
        let operation = CollectiveOperation {
            group: self.group,
            context: self.context as u64,
            kind: OperationKind::Collective {
                reports: self.endpoint.reports_sends(self.flags),
                bounce: None,
            },
            tag_bits: 0,
            transfers: 0,
            failed: None,
        };
        let mut bounce = None;
        collectives.begin(state, operation, |offload, operations, context| {
            let result = call(offload, &begun, &mut bounce, context);
            checked(result.map(|result| result as c_int))?;
            operations.set_bounce(context as u64, bounce);
            Ok(())
        })
    }
}

/// # Safety
///
/// As C calls us: an endpoint of ours, not closed.
unsafe fn call_of<'a>(
    ep: *mut fid_ep,
    coll_addr: fi_addr_t,
    flags: Option<u64>,
    context: *mut c_void,
) -> CollectiveCall<'a> {
    CollectiveCall {
        // SAFETY: as the caller says.
        endpoint: unsafe { object_of::<EndpointObject>(ep) },
        group: FiAddr(coll_addr),
        flags,
        context,
        count: 0,
        pattern: MessagePattern::OneMember,
        datatype: None,
        root: None,
    }
}

unsafe extern "C" fn barrier(ep: *mut fid_ep, coll_addr: fi_addr_t, context: *mut c_void) -> isize {
    // SAFETY: as C calls us.
    unsafe { enter(call_of(ep, coll_addr, None, context)) }
}

unsafe extern "C" fn barrier2(
    ep: *mut fid_ep,
    coll_addr: fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: as C calls us.
    unsafe { enter(call_of(ep, coll_addr, Some(flags), context)) }
}

/// A barrier.
fn enter(call: CollectiveCall<'_>) -> isize {
    data(|| {
        call.begin(|offload, begun, _, context| {
            // SAFETY: the endpoint and the group are open.
            unsafe { foreign!(offload.ep(), collective.barrier2(begun.group, 0, context)) }
        })
    })
}

unsafe extern "C" fn broadcast(
    ep: *mut fid_ep,
    buf: *mut c_void,
    count: usize,
    _desc: *mut c_void,
    coll_addr: fi_addr_t,
    root_addr: fi_addr_t,
    datatype: fi_datatype,
    flags: u64,
    context: *mut c_void,
) -> isize {
    data(|| {
        // SAFETY: as C calls us; the application keeps its buffer until the operation is complete.
        unsafe {
            let call = CollectiveCall {
                count,
                pattern: MessagePattern::TreeOfPieces,
                datatype: Some(datatype),
                root: Some(given(root_addr)),
                ..call_of(ep, coll_addr, Some(flags), context)
            };
            call.begin(|offload, begun, bounce, context| {
                let room = count.next_multiple_of(begun.members);
                let bytes = (count * begun.bytes, room * begun.bytes);
                let data = Bounce::new(buf.cast(), bytes.0, bytes.1, begun.is_root);
                let memory = bounce.insert(data).memory().cast();
                foreign!(
                    offload.ep(),
                    collective.broadcast(
                        memory,
                        room,
                        std::ptr::null_mut(),
                        begun.group,
                        begun.root,
                        datatype,
                        0,
                        context
                    )
                )
            })
        }
    })
}

unsafe extern "C" fn allreduce(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    coll_addr: fi_addr_t,
    datatype: fi_datatype,
    op: fi_op,
    flags: u64,
    context: *mut c_void,
) -> isize {
    data(|| {
        if !Offload::of_host().is_some_and(|offload| offload.reduces(datatype, op)) {
            return Err(OpError::Failed(Errno::EOPNOTSUPP));
        }
        // SAFETY: as C calls us; the application keeps its buffers until the operation is complete.
        unsafe {
            let call = CollectiveCall {
                count,
                datatype: Some(datatype),
                ..call_of(ep, coll_addr, Some(flags), context)
            };
            call.begin(|offload, begun, _, context| {
                let none = std::ptr::null_mut();
                foreign!(
                    offload.ep(),
                    collective.allreduce(
                        buf,
                        count,
                        none,
                        result,
                        none,
                        begun.group,
                        datatype,
                        op,
                        0,
                        context
                    )
                )
            })
        }
    })
}

unsafe extern "C" fn allgather(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    coll_addr: fi_addr_t,
    datatype: fi_datatype,
    flags: u64,
    context: *mut c_void,
) -> isize {
    data(|| {
        // SAFETY: as C calls us; the application keeps its buffers until the operation is complete.
        unsafe {
            let call = CollectiveCall {
                count,
                datatype: Some(datatype),
                ..call_of(ep, coll_addr, Some(flags), context)
            };
            call.begin(|offload, begun, _, context| {
                let none = std::ptr::null_mut();
                foreign!(
                    offload.ep(),
                    collective.allgather(
                        buf,
                        count,
                        none,
                        result,
                        none,
                        begun.group,
                        datatype,
                        0,
                        context
                    )
                )
            })
        }
    })
}

unsafe extern "C" fn scatter(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    coll_addr: fi_addr_t,
    root_addr: fi_addr_t,
    datatype: fi_datatype,
    flags: u64,
    context: *mut c_void,
) -> isize {
    data(|| {
        // SAFETY: as C calls us; the application keeps its buffers until the operation is complete.
        unsafe {
            let call = CollectiveCall {
                count,
                pattern: MessagePattern::Tree,
                datatype: Some(datatype),
                root: Some(given(root_addr)),
                ..call_of(ep, coll_addr, Some(flags), context)
            };
            call.begin(|offload, begun, _, context| {
                let none = std::ptr::null_mut();
                foreign!(
                    offload.ep(),
                    collective.scatter(
                        buf,
                        count,
                        none,
                        result,
                        none,
                        begun.group,
                        begun.root,
                        datatype,
                        0,
                        context
                    )
                )
            })
        }
    })
}

/// `fi_query_collective`.
pub(crate) unsafe extern "C" fn query(
    domain: *mut fid_domain,
    coll: fi_collective_op,
    attr: *mut fi_collective_attr,
    flags: u64,
) -> c_int {
    control(|| {
        // SAFETY: as C calls us.
        let (domain, attr) = unsafe { (object_of::<DomainObject>(domain), attr.as_mut()) };
        let attr = attr.ok_or(Errno::EINVAL)?;
        let offload = Offload::of_host().filter(|_| domain.has_collectives());
        let offload = offload.ok_or(Errno::ENOSYS)?;
        // SAFETY: the domain of `off_coll` is open.
        checked(unsafe {
            let found = &raw mut *attr;
            foreign!(
                offload.domain.as_ptr(),
                ops.query_collective(coll, found, flags)
            )
        })?;
        if coll != fi_collective_op::FI_BARRIER {
            let bytes = size_of_element(attr.datatype).ok_or(Errno::EOPNOTSUPP)?;
            let pattern = match coll {
                fi_collective_op::FI_BROADCAST => MessagePattern::TreeOfPieces,
                fi_collective_op::FI_SCATTER => MessagePattern::Tree,
                _ => MessagePattern::OneMember,
            };
            let max_msg = domain.domain.info().ep.max_msg_size;
            attr.datatype_attr.size = bytes;
            attr.datatype_attr.count = pattern.max_elements_of_any(bytes, max_msg);
        }
        Ok::<_, Errno>(())
    })
}
