//! Verbs and shared memory as the two transports of an RDM endpoint.

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::peer::Owner;
use ferrofabric_contracts::types::{FiAddr, IoBuf, SendOp};
use ferrofabric_shm::{PendingSend, ShmRoute, ShmTransport};

use crate::endpoint::rdm::{self, RdmTransport};
use crate::pairing::{self, HandsBack, Reaches, TakesOver, Unsent};

/// Both transports of an endpoint.
pub(crate) type RdmPair = pairing::Paired<RdmTransport, ShmTransport>;

/// The transport number in tokens of the shared-memory transport.
pub(super) const SHM_TRANSPORT: u32 = rdm::TRANSPORT + 1;

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

impl Reaches for ShmTransport {
    const NAME: &'static str = "Shm";

    fn takes(&self, name: &NativeAddr) -> bool {
        name.shm.is_some() && name.node == self.native().node
    }
}

impl HandsBack for ShmTransport {
    type Unsent = PendingSend;
    const TRANSPORT: u32 = SHM_TRANSPORT;

    #[inline(always)]
    fn is_current(&self, route: &ShmRoute) -> bool {
        ShmTransport::is_current(self, route)
    }

    #[inline]
    fn handed_back(&mut self) -> Option<(FiAddr, Vec<PendingSend>)> {
        self.take_unreachable()
    }
}

// SAFETY: a pending send has the buffers of its operation, or with `INJECT` a copy of its own.
unsafe impl Unsent for PendingSend {
    fn op(&self) -> &SendOp {
        &self.op
    }

    fn iov(&self) -> &[IoBuf] {
        PendingSend::iov(self)
    }
}
