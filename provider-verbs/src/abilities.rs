//! The abilities of a device that its attributes do not show, found by trying: the kinds of queue
//! pairs that it makes, and whether they take receives from a shared queue.

use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, Error, Result};

use crate::cq::{Cq, CqConfig};
use crate::device::DeviceContext;
use crate::pd::Pd;
use crate::qp::{QpCaps, QpConfig, RcQp, UdQp};
use crate::srq::{Srq, SrqConfig};

/// Whether endpoints can be opened on a device; else the reason.
pub(crate) struct Abilities {
    pub(crate) reliable_datagrams: Result<()>,
    pub(crate) datagrams: Result<()>,
}

impl Abilities {
    /// Makes each object that an endpoint needs, as small as there is, and drops it again.
    pub(crate) fn probe(context: &Arc<DeviceContext>) -> Self {
        let queues = Pd::allocate(context).and_then(|pd| {
            let config = CqConfig {
                depth: 2,
                ..CqConfig::default()
            };
            Ok((pd, Cq::create(context, &config)?))
        });
        let (pd, cq) = match queues {
            Ok(queues) => queues,
            Err(error) => {
                return Self {
                    reliable_datagrams: Err(error.clone()),
                    datagrams: Err(error),
                };
            }
        };
        let control = UdQp::create(&pd, &smallest(&cq, None)).map(drop);
        // A routing header and a datagram lie apart.
        let mut apart = smallest(&cq, None);
        apart.caps.recv_entries = 2;
        Self {
            reliable_datagrams: control.and_then(|()| Self::probe_shared(&pd, &cq)),
            datagrams: UdQp::create(&pd, &apart).map(drop),
        }
    }

    fn probe_shared(pd: &Arc<Pd>, cq: &Arc<Cq>) -> Result<()> {
        if pd.context().limits().shared_receive_queues == 0 {
            let device = format!("shared receive queue on {}", pd.context().name());
            return Err(Error::new(Errno::EOPNOTSUPP, "create", device)
                .mend("the device has none, and endpoints for reliable datagrams need one"));
        }
        let config = SrqConfig {
            depth: 1,
            entries: 1,
        };
        let srq = Srq::create(pd, &config)?;
        RcQp::create(pd, &smallest(cq, Some(srq))).map(drop)
    }
}

fn smallest(cq: &Arc<Cq>, srq: Option<Arc<Srq>>) -> QpConfig {
    let receives = u32::from(srq.is_none());
    QpConfig {
        send_cq: cq.clone(),
        recv_cq: cq.clone(),
        srq,
        caps: QpCaps {
            send_depth: 1,
            recv_depth: receives,
            send_entries: 1,
            recv_entries: receives,
            inline_bytes: 0,
        },
        signal_all: false,
        extended: None,
    }
}
