//! Verbs as the far transport of a pair, for RDM endpoints.

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::peer::{Owner, Reaches, TakesOver};
use ferrofabric_contracts::types::{IoBuf, SendOp};

use crate::endpoint::rdm::RdmTransport;

impl Reaches for RdmTransport {
    const NAME: &'static str = "Verbs";

    fn takes(&self, name: &NativeAddr) -> bool {
        name.verbs.is_some()
    }
}

impl TakesOver for RdmTransport {
    unsafe fn take_over<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> Result<(), OpError> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_accepted(op, iov, owner) }
    }
}
