//! An owner's address vector: attributes, and the addresses that it gives to endpoints.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferro_fi::abi::{
    FI_AV_USER_ID, FI_CLASS_PEER_AV, fi_addr_t, fi_av_attr, fi_ops_av_owner, fi_peer_av_context,
    fid_av, fid_ep, fid_peer_av,
};

/// An owner's address vector.
#[repr(C)]
pub struct OwnerVector {
    pub peer: fid_peer_av,
    pub ops: fi_ops_av_owner,
    /// The number of addresses that `query` returns, or its error, negated.
    pub count: Result<usize, c_int>,
    pub queries: AtomicUsize,
}

impl OwnerVector {
    pub fn new() -> Box<Self> {
        let mut vector = Box::new(Self {
            peer: fid_peer_av::default(),
            ops: fi_ops_av_owner {
                size: size_of::<fi_ops_av_owner>(),
                query: Some(query),
                ep_addr: Some(ep_addr),
            },
            count: Ok(16),
            queries: AtomicUsize::new(0),
        });
        vector.peer.fid.fclass = FI_CLASS_PEER_AV;
        vector.peer.owner_ops = &raw mut vector.ops;
        vector
    }

    pub fn context(&self) -> fi_peer_av_context {
        fi_peer_av_context {
            size: size_of::<fi_peer_av_context>(),
            av: (&raw const self.peer).cast_mut(),
        }
    }
}

unsafe extern "C" fn query(av: *mut fid_peer_av, attr: *mut fi_av_attr) -> c_int {
    // SAFETY: the vector is the first field of an `OwnerVector`; there is room for the attributes.
    unsafe {
        let vector = &*av.cast::<OwnerVector>();
        vector.queries.fetch_add(1, Ordering::Relaxed);
        match vector.count {
            Ok(count) => {
                attr.write(fi_av_attr {
                    count,
                    ..fi_av_attr::default()
                });
                0
            }
            Err(error) => error,
        }
    }
}

unsafe extern "C" fn ep_addr(_av: *mut fid_peer_av, _ep: *mut fid_ep) -> fi_addr_t {
    fi_addr_t::MAX
}

/// Passes one insertion on. Returns its result, and the address as the call leaves it.
pub fn pass_on(av: *mut fid_av, name: &[u8], owners: fi_addr_t) -> (c_int, fi_addr_t) {
    let mut addr = owners;
    // SAFETY: as fi_av(3) has it.
    let inserted = unsafe {
        let at = name.as_ptr().cast();
        call!(
            av,
            ops.insert(at, 1, &raw mut addr, FI_AV_USER_ID, null_mut())
        )
    };
    (inserted, addr)
}

/// Passes one removal on.
pub fn pass_on_removal(av: *mut fid_av, mut owners: fi_addr_t) -> c_int {
    // SAFETY: as fi_av(3) has it.
    unsafe { call!(av, ops.remove(&raw mut owners, 1, 0)) }
}
