//! The collective operations of a collective peer's endpoint (fi_collective(3)).

use std::ffi::c_void;

use ferrofabric_collectives::Collective;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::rma::combine;

use super::carrier::{RankPlace, ResultMemory};
use super::elements::{MAX_BYTES, reduction};
use super::endpoint::PeerEndpointObject;
use crate::abi::{Roomy, fi_addr_t, fi_datatype, fi_op, fi_ops_collective, fid_ep};
use crate::av::members::Members;
use crate::datatypes::size_of_element;
use crate::fi_addr::given;
use crate::fid::object_of;
use crate::guard::data;
use crate::unsupported::Unsupported;

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

/// Elements of a call.
#[derive(Clone, Copy)]
struct CallElements {
    buf: *const c_void,
    result: *mut c_void,
    count: usize,
    datatype: fi_datatype,
}

/// The bytes of a call: of its elements, in one message at most, and of all members.
struct CallBytes {
    own: usize,
    all: usize,
}

impl CallElements {
    /// # Errors
    ///
    /// `EOPNOTSUPP`: there is no such type. `EMSGSIZE`: more bytes than a message or an operation
    /// has.
    fn bytes(&self, members: usize, max_msg: usize) -> Result<CallBytes, Errno> {
        let element = size_of_element(self.datatype).ok_or(Errno::EOPNOTSUPP)?;
        let own = self.count.checked_mul(element).ok_or(Errno::EMSGSIZE)?;
        let all = own.checked_mul(members).ok_or(Errno::EMSGSIZE)?;
        match all <= max_msg.min(MAX_BYTES) {
            true => Ok(CallBytes { own, all }),
            false => Err(Errno::EMSGSIZE),
        }
    }

    /// A copy of the first elements.
    ///
    /// # Safety
    ///
    /// There are as many bytes.
    unsafe fn copy(&self, bytes: usize) -> Vec<u8> {
        match bytes {
            0 => Vec::new(),
            // SAFETY: as the caller says.
            _ => unsafe { std::slice::from_raw_parts(self.buf.cast::<u8>(), bytes) }.to_vec(),
        }
    }

    fn result(&self, len: usize) -> ResultMemory {
        let at = self.result.cast();
        ResultMemory { at, len }
    }
}

/// Begins an operation, which `describe` has for the endpoint's place in the group and the longest
/// message.
///
/// # Safety
///
/// As C calls us: an endpoint of ours, not closed.
unsafe fn begin(
    ep: *mut fid_ep,
    group: fi_addr_t,
    context: *mut c_void,
    describe: impl FnOnce(
        RankPlace,
        &Members,
        usize,
    ) -> Result<(Collective, Vec<u8>, ResultMemory), Errno>,
) -> isize {
    data(|| {
        // SAFETY: as the caller says.
        let endpoint = unsafe { object_of::<PeerEndpointObject>(ep) };
        let carrier = endpoint.carrier().map_err(OpError::Failed)?;
        let max_msg = carrier.transfers.max_msg_size;
        let begun = carrier.begin(FiAddr(group), context as u64, |place, members| {
            describe(place, members, max_msg)
        });
        begun.map(|()| 0).map_err(OpError::Failed)
    })
}

/// The rank of a root.
///
/// # Errors
///
/// `EINVAL`: it is no member.
fn rank_of(root: fi_addr_t, members: &Members) -> Result<usize, Errno> {
    members.rank(given(root)).ok_or(Errno::EINVAL)
}

unsafe extern "C" fn barrier(ep: *mut fid_ep, group: fi_addr_t, context: *mut c_void) -> isize {
    // SAFETY: as C calls us.
    unsafe { barrier2(ep, group, 0, context) }
}

unsafe extern "C" fn barrier2(
    ep: *mut fid_ep,
    group: fi_addr_t,
    _flags: u64,
    context: *mut c_void,
) -> isize {
    let nothing = ResultMemory {
        at: std::ptr::NonNull::dangling().as_ptr(),
        len: 0,
    };
    // SAFETY: as C calls us.
    unsafe {
        begin(ep, group, context, |_, _, _| {
            Ok((Collective::Barrier, Vec::new(), nothing))
        })
    }
}

unsafe extern "C" fn broadcast(
    ep: *mut fid_ep,
    buf: *mut c_void,
    count: usize,
    _desc: *mut c_void,
    group: fi_addr_t,
    root_addr: fi_addr_t,
    datatype: fi_datatype,
    _flags: u64,
    context: *mut c_void,
) -> isize {
    let elements = CallElements {
        buf,
        result: buf,
        count,
        datatype,
    };
    // SAFETY: as C calls us; the application keeps its buffer until the operation is complete.
    unsafe {
        begin(ep, group, context, |place, members, max_msg| {
            let root = rank_of(root_addr, members)?;
            let CallBytes { own, .. } = elements.bytes(1, max_msg)?;
            let (bytes, len) = match root == place.rank {
                true => (elements.copy(own), 0),
                false => (vec![0; own], own),
            };
            Ok((Collective::Broadcast { root }, bytes, elements.result(len)))
        })
    }
}

unsafe extern "C" fn allreduce(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    group: fi_addr_t,
    datatype: fi_datatype,
    op: fi_op,
    _flags: u64,
    context: *mut c_void,
) -> isize {
    let elements = CallElements {
        buf,
        result,
        count,
        datatype,
    };
    // SAFETY: as C calls us; the application keeps its buffers until the operation is complete.
    unsafe {
        begin(ep, group, context, |_, _, max_msg| {
            let (datatype, operator) = reduction(datatype, op)?;
            let CallBytes { own, .. } = elements.bytes(1, max_msg)?;
            let collective = Collective::Allreduce {
                datatype,
                operator,
                combine: Box::new(move |lower, upper| combine(datatype, operator, lower, upper)),
            };
            Ok((collective, elements.copy(own), elements.result(own)))
        })
    }
}

unsafe extern "C" fn allgather(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    group: fi_addr_t,
    datatype: fi_datatype,
    _flags: u64,
    context: *mut c_void,
) -> isize {
    let elements = CallElements {
        buf,
        result,
        count,
        datatype,
    };
    // SAFETY: as C calls us; the application keeps its buffers until the operation is complete.
    unsafe {
        begin(ep, group, context, |place, _, max_msg| {
            let CallBytes { own, all } = elements.bytes(place.members, max_msg)?;
            let bytes = elements.copy(own);
            Ok((Collective::Allgather, bytes, elements.result(all)))
        })
    }
}

unsafe extern "C" fn scatter(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    group: fi_addr_t,
    root_addr: fi_addr_t,
    datatype: fi_datatype,
    _flags: u64,
    context: *mut c_void,
) -> isize {
    let elements = CallElements {
        buf,
        result,
        count,
        datatype,
    };
    // SAFETY: as C calls us; the application keeps its buffers until the operation is complete.
    unsafe {
        begin(ep, group, context, |place, members, max_msg| {
            let root = rank_of(root_addr, members)?;
            let CallBytes { own, all } = elements.bytes(place.members, max_msg)?;
            let bytes = match root == place.rank {
                true => elements.copy(all),
                false => Vec::new(),
            };
            let collective = Collective::Scatter { root, block: own };
            Ok((collective, bytes, elements.result(own)))
        })
    }
}
