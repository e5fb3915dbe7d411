//! The abilities of a device that its attributes do not show, found by trying: the kinds of queue
//! pairs that it makes, and whether they take receives from a shared queue.

use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, Error, Result};

use super::queues::ProbeQueues;
use crate::device::DeviceContext;
use crate::qp::{RcQp, UdQp};
use crate::srq::{Srq, SrqConfig};

/// Whether endpoints can be opened on a device; else the reason.
#[derive(Debug)]
pub struct Abilities {
    /// Endpoints for reliable datagrams (RDM).
    pub reliable_datagrams: Result<()>,
    /// Endpoints for datagrams that may be lost (DGRAM).
    pub datagrams: Result<()>,
}

impl Abilities {
    /// Makes each object that an endpoint needs, as small as there is, and drops it again.
    pub(crate) fn probe(context: &Arc<DeviceContext>) -> Self {
        match ProbeQueues::create(context) {
            Ok(queues) => Self::of(&queues),
            Err(error) => Self {
                reliable_datagrams: Err(error.clone()),
                datagrams: Err(error),
            },
        }
    }

    pub(super) fn of(queues: &ProbeQueues) -> Self {
        let control = UdQp::create(queues.pd(), &queues.smallest(None)).map(drop);
        // A routing header and a datagram lie apart.
        let mut apart = queues.smallest(None);
        apart.caps.recv_entries = 2;
        Self {
            reliable_datagrams: control.and_then(|()| Self::probe_lane(queues)),
            datagrams: UdQp::create(queues.pd(), &apart).map(drop),
        }
    }

    /// Makes the queue pair of a lane. On a device without shared receive queues it has its own.
    fn probe_lane(queues: &ProbeQueues) -> Result<()> {
        let srq = match queues.pd().context().limits().shared_receive_queues {
            0 => None,
            _ => Some(shared_queue(queues, 1)?),
        };
        RcQp::create(queues.pd(), &queues.smallest(srq)).map(drop)
    }
}

/// Makes a shared receive queue.
///
/// # Errors
///
/// The device has none, or no room for one.
pub(super) fn shared_queue(queues: &ProbeQueues, depth: u32) -> Result<Arc<Srq>> {
    let context = queues.pd().context();
    if context.limits().shared_receive_queues == 0 {
        let device = format!("shared receive queue on {}", context.name());
        return Err(Error::new(Errno::EOPNOTSUPP, "create", device)
            .mend("the device has none: each lane has a receive queue of its own"));
    }
    Srq::create(queues.pd(), &SrqConfig { depth, entries: 1 })
}
