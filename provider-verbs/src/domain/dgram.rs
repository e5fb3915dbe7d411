//! A DGRAM domain: a port with datagram endpoints.

use std::net::SocketAddr;
use std::sync::Arc;

use ferrofabric_av::Resolve;
use ferrofabric_contracts::addr::{AuthKey, NativeAddr, VerbsAddr};
use ferrofabric_contracts::error::Result;
use ferrofabric_contracts::flags::Mode;
use ferrofabric_contracts::info::Info;
use ferrofabric_runtime::domain::{Backend, KeyedParts, Listening, OpenedTransport, Opening};
use ferrofabric_runtime::fabric::{self, MrAttr};
use ferrofabric_shm::node_id;
use ferrofabric_system::random;

use super::opened_port::OpenedPort;
use crate::endpoint::dgram::{DgramConfig, DgramTransport, QKEY, ReceiveMode};
use crate::port::LocalPort;

/// The backend of a DGRAM domain.
pub(crate) struct DgramBackend(pub(crate) OpenedPort);

impl Backend for DgramBackend {
    type Transport = DgramTransport;

    fn info(&self) -> &Info {
        &self.0.info
    }

    fn common_address(&self) -> Option<VerbsAddr> {
        let key = self.0.info.domain.auth_key;
        Some(self.0.port.address(0, key.map_or(QKEY, AuthKey::qkey)))
    }

    fn open_transport(&self, opening: &Opening<'_>) -> Result<OpenedTransport<DgramTransport>> {
        let key = self.0.key_of(opening);
        let port = self.0.port_for(opening, key)?;
        let (transport, name) =
            self.open_on(opening, port, key, ReceiveMode::Posted, random::number()?)?;
        Ok(OpenedTransport {
            transport,
            name,
            keyed: None,
        })
    }

    fn listen(&self, at: SocketAddr, name: &NativeAddr) -> Result<Box<dyn Listening>> {
        self.0.listen(at, name)
    }

    fn resolver(&self) -> Option<Arc<dyn Resolve>> {
        self.0.resolver()
    }

    unsafe fn register(&self, attr: &MrAttr<'_>) -> Result<Arc<dyn fabric::Mr>> {
        // SAFETY: the caller's promise.
        unsafe { self.0.register(attr) }
    }
}

impl KeyedParts for DgramBackend {
    fn open_part(
        &self,
        opening: &Opening<'_>,
        key: AuthKey,
        drawn: u64,
    ) -> Result<(DgramTransport, NativeAddr)> {
        let port = LocalPort {
            // The P_Key as peers have it in their addresses.
            pkey: key.in_addresses().pkey(),
            ..self.0.port_for(opening, Some(key))?
        };
        self.open_on(opening, port, Some(key), ReceiveMode::Matched, drawn)
    }

    fn random(&self) -> Result<u64> {
        random::number()
    }
}

impl DgramBackend {
    fn open_on(
        &self,
        opening: &Opening<'_>,
        port: LocalPort,
        key: Option<AuthKey>,
        receiving: ReceiveMode,
        drawn: u64,
    ) -> Result<(DgramTransport, NativeAddr)> {
        let OpenedPort {
            events,
            registry,
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
            key,
            receiving,
        };
        let mut transport = DgramTransport::open(registry, port, &config, events, opening.wait)?;
        if opening.counts_sends {
            transport.count_sends();
        }
        let queue_pair = Some(port.address(transport.number(), config.qkey()));
        let name = NativeAddr::of_new(node_id(), queue_pair, false, drawn);
        Ok((transport, name))
    }
}
