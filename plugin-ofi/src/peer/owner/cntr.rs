//! The owner's functions of counters, which C calls.
//!
//! The owner counts where it reports an operation, and endpoints have no one-sided operations by a
//! C provider. So a C provider has nothing to count: its calls are refused.

use super::objects::ObjectBlock;
use crate::abi::{Roomy, fi_ops_cntr_owner, fid_peer_cntr};
use crate::guard::value;

pub(super) static OPS: Roomy<fi_ops_cntr_owner> = Roomy::new(fi_ops_cntr_owner {
    size: size_of::<fi_ops_cntr_owner>(),
    inc: Some(count),
    incerr: Some(count),
});

unsafe extern "C" fn count(cntr: *mut fid_peer_cntr) {
    value((), || {
        // SAFETY: as C calls us: the counter is ours, or NULL.
        if let Some(cntr) = unsafe { cntr.as_ref() } {
            if let Some(block) = ObjectBlock::at(cntr.fid.context) {
                block.refuse();
            }
        }
    });
}
