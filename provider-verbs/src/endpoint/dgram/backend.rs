//! A DGRAM domain: what RDM domains have, with other endpoints.

use std::net::SocketAddr;
use std::sync::Arc;

use ferrofabric_core::addr::{NativeAddr, VerbsAddr};
use ferrofabric_core::av::Resolve;
use ferrofabric_core::domain::{Backend, Listening};
use ferrofabric_core::error::Result;
use ferrofabric_core::fabric;
use ferrofabric_core::flags::{Flags, Mode};
use ferrofabric_core::info::Info;
use ferrofabric_core::types::IoBuf;
use ferrofabric_core::wait::WaitSet;
use ferrofabric_shm::node_id;

use super::{DgramConfig, DgramTransport, QKEY};
use crate::domain::{VerbsBackend, random};

/// What is under a DGRAM domain.
pub(crate) struct DgramBackend(pub(crate) VerbsBackend);

impl Backend for DgramBackend {
    type Transport = DgramTransport;

    fn info(&self) -> &Info {
        &self.0.info
    }

    fn common_address(&self) -> Option<VerbsAddr> {
        Some(self.0.port.address(0, QKEY))
    }

    fn open_transport(
        &self,
        wait: &WaitSet,
        counts_sends: bool,
    ) -> Result<(DgramTransport, NativeAddr)> {
        let VerbsBackend {
            pd,
            port,
            tuning,
            info,
            ..
        } = &self.0;
        let config = DgramConfig {
            send_depth: info.tx.size.max(1),
            recv_depth: info.rx.size.max(1),
            inline_bytes: tuning.inline_bytes,
            prefix: match info.mode.contains(Mode::MSG_PREFIX) {
                true => info.ep.msg_prefix_size,
                false => 0,
            },
        };
        let mut transport = DgramTransport::open(pd, *port, &config, wait)?;
        if counts_sends {
            transport.count_sends();
        }
        let queue_pair = Some(port.address(transport.number(), QKEY));
        let name = NativeAddr::of_new(node_id(), queue_pair, false, random());
        Ok((transport, name))
    }

    fn listen(&self, at: SocketAddr, name: &NativeAddr) -> Result<Box<dyn Listening>> {
        self.0.listen(at, name)
    }

    fn resolver(&self) -> Option<Arc<dyn Resolve>> {
        self.0.resolver()
    }

    unsafe fn register(&self, buf: IoBuf, access: Flags) -> Result<Arc<dyn fabric::Mr>> {
        // SAFETY: the caller's promise.
        unsafe { self.0.register(buf, access) }
    }
}
