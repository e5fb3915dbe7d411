//! Shared memory as the near transport of a pair.

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::peer::{HandsBack, Reaches, Unsent};
use ferrofabric_contracts::types::{FiAddr, IoBuf, SendOp};

use crate::{PendingSend, ShmRoute, ShmTransport};

impl Reaches for ShmTransport {
    const NAME: &'static str = "Shm";

    fn takes(&self, name: &NativeAddr) -> bool {
        name.shm.is_some() && name.node == self.native().node
    }
}

impl HandsBack for ShmTransport {
    type Unsent = PendingSend;
    const TRANSPORT: u32 = 1;

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
