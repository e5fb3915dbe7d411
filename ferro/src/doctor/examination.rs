//! The examination of a device: everything that is tried out, once, for findings and the report.

use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::Result;
use ferrofabric_verbs::probe::{
    Abilities, ConnectionFindings, DeviceProbe, EndpointInline, FlushFindings, InlineFindings,
    QueuePairFindings,
};

/// Queue pairs that are made at the same time: enough for a few peers.
pub(super) const QUEUE_PAIRS: u32 = 8;

/// Inline bytes of the connection that is tried out, if the device has as many.
const INLINE_BYTES: u32 = 8;

/// The results.
pub(super) struct Examination {
    pub(super) probe: DeviceProbe,
    pub(super) abilities: Abilities,
    pub(super) connections: Result<()>,
    pub(super) datagrams: Result<()>,
    pub(super) shared_receives: Result<()>,
    pub(super) inline: Result<InlineFindings>,
    pub(super) endpoint_inline: EndpointInline,
    pub(super) queue_pairs: Result<QueuePairFindings>,
    pub(super) reuses_keys: Result<bool>,
    /// `None` without an active port.
    pub(super) traffic: Option<Traffic>,
}

/// The results for a port that carries traffic.
pub(super) struct Traffic {
    pub(super) port: u8,
    /// `None` without connections, as in the next ones.
    pub(super) loopback: Option<Result<ConnectionFindings>>,
    pub(super) flush: Option<Result<FlushFindings>>,
    /// `None` also without shared receive queues.
    pub(super) announces_last_receive: Option<Result<bool>>,
    /// `None` without datagrams, as in the next one.
    pub(super) datagram: Option<Result<()>>,
    pub(super) datagram_failure_stops_sends: Option<Result<bool>>,
}

impl Examination {
    /// Examines a device.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub(super) fn of(name: &str, settings: &Settings) -> Result<Self> {
        let probe = DeviceProbe::open(name, settings)?;
        let this = Self {
            abilities: probe.abilities(),
            connections: probe.connections(),
            datagrams: probe.datagrams(),
            shared_receives: probe.shared_receives(),
            inline: probe.inline(),
            endpoint_inline: probe.endpoint_inline(),
            queue_pairs: probe.queue_pairs(QUEUE_PAIRS),
            reuses_keys: probe.reuses_keys(),
            traffic: None,
            probe,
        };
        let port = this.probe.active_port();
        Ok(Self {
            traffic: port.map(|port| this.traffic(port)),
            ..this
        })
    }

    fn traffic(&self, port: u8) -> Traffic {
        let (connections, shared) = (self.connections.is_ok(), self.shared_receives.is_ok());
        let most = self.inline.as_ref().map_or(0, |inline| inline.most);
        let inline = INLINE_BYTES.min(most);
        Traffic {
            port,
            loopback: connections.then(|| self.probe.loopback(port, inline)),
            flush: connections.then(|| self.probe.flush(port)),
            announces_last_receive: (connections && shared)
                .then(|| self.probe.announces_last_receive(port)),
            datagram: (self.datagrams.is_ok()).then(|| self.probe.datagram(port)),
            datagram_failure_stops_sends: (self.datagrams.is_ok())
                .then(|| self.probe.datagram_failure_stops_sends(port)),
        }
    }
}
