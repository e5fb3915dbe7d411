//! The requests that post receive buffers.

use ferrofabric_verbs_sys::ibv_sge;

use crate::lane::receive_wr_id;
use crate::post::RecvRequest;
use crate::slots::SlotPool;

/// A receive into a buffer.
#[inline]
pub(super) fn request(slots: &SlotPool, slot: u32) -> RecvRequest<1> {
    let entry = ibv_sge {
        addr: slots.address(slot) as u64,
        length: slots.slot_bytes() as u32,
        lkey: slots.lkey(),
    };
    RecvRequest::new(receive_wr_id(slot), [entry])
}
