//! Tries a device out: the objects that it makes, the inline data that it grants, and what it does
//! with requests. Discovery uses the abilities; `ferro info` and `ferro doctor` use all of it.
//!
//! A probe holds two queue pairs at most at a time, except [`DeviceProbe::queue_pairs`], and each
//! of its objects goes with the call that made it.

mod abilities;
mod datagrams;
mod host;
mod inline;
mod memory;
mod pair;
mod queues;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Error, Result};

pub use abilities::Abilities;
pub use host::{devices, kernel_devices, library, memory_lock, unmap_reports};
pub use inline::{BeyondInline, InlineFindings};
pub use pair::{FlushFindings, FlushedRequest, LateSend};

use self::abilities::shared_queue;
use self::inline::TriedKind;
use self::memory::ProbeMemory;
use self::pair::LoopbackPair;
use self::queues::{DEPTH, ProbeQueues};
use crate::device::{
    DeviceContext, DeviceFacts, DeviceLimits, GidEntry, GidRequest, GidSelection, GidWish,
    PortAttributes, PortState, inline_limit,
};
use crate::domain::local_port;
use crate::mr::Access;
use crate::pd::Pd;
use crate::port::LocalPort;
use crate::qp::{RcQp, UdQp};
use crate::tuning::Tuning;

/// An open device that is tried out.
#[derive(Debug)]
pub struct DeviceProbe {
    context: Arc<DeviceContext>,
    settings: Settings,
}

/// The inline data that endpoints get, in bytes, by the kind of their queue pairs.
#[derive(Debug)]
pub struct EndpointInline {
    /// The bytes that endpoints request.
    pub requested: u32,
    /// The bytes that RC queue pairs get.
    pub connections: Result<u32>,
    /// The bytes that UD queue pairs get.
    pub datagrams: Result<u32>,
}

/// Queue pairs that were there at the same time.
#[derive(Debug)]
pub struct QueuePairFindings {
    /// How many.
    pub made: u32,
    /// Why one more could not be made, if it was tried.
    pub refusal: Option<Error>,
    /// The shortest time that it took to make one.
    pub shortest: Option<Duration>,
}

/// The abilities of a connection between two queue pairs of the same device.
#[derive(Debug)]
pub struct ConnectionFindings {
    /// A write of nothing completes.
    pub write_nothing: Result<()>,
    /// An atomic adds; `None` where the device states that it has no atomics.
    pub atomics: Option<Result<()>>,
    /// Inline data travels in the request; `None` where there is no inline data.
    pub takes_inline: Result<Option<bool>>,
}

impl DeviceProbe {
    /// Opens a device by name, to use it as the settings say.
    ///
    /// # Errors
    ///
    /// There is no such device, or this user may not open it.
    pub fn open(name: &str, settings: &Settings) -> Result<Self> {
        Ok(Self {
            context: DeviceContext::open(name)?,
            settings: settings.clone(),
        })
    }

    /// The kernel's name of the device.
    pub fn name(&self) -> &str {
        self.context.name()
    }

    /// The limits that the device states.
    pub fn limits(&self) -> &DeviceLimits {
        self.context.limits()
    }

    /// The facts about the device in sysfs.
    pub fn facts(&self) -> &DeviceFacts {
        self.context.facts()
    }

    /// A port's attributes.
    ///
    /// # Errors
    ///
    /// The device has no such port.
    pub fn port(&self, number: u8) -> Result<PortAttributes> {
        self.context.port(number)
    }

    /// The ports that the settings allow, from number 1 on.
    pub fn port_numbers(&self) -> impl Iterator<Item = u8> + use<> {
        let wanted = self.settings.port;
        let all = 1..=self.limits().ports;
        all.filter(move |number| wanted == 0 || wanted == u64::from(*number))
    }

    /// The GIDs of a port that are in use.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>> {
        self.context.gid_table(port)
    }

    /// The GID that endpoints send from, and the others, each with the reason.
    ///
    /// # Errors
    ///
    /// The port has no GID that can be used, or not the one that the settings name.
    pub fn chosen_gid(&self, port: u8) -> Result<GidSelection> {
        let request = match self.settings.gid_index.0 {
            Some(index) => GidRequest::Index(index as u32),
            None => GidRequest::Best,
        };
        self.context.choose_gid(port, request)
    }

    /// A port's table of partition keys; an empty slot has key 0.
    ///
    /// # Errors
    ///
    /// The table cannot be read.
    pub fn partition_keys(&self, port: u8) -> Result<Vec<u16>> {
        self.context.pkey_table(port)
    }

    /// The slot and the P_Key of endpoints that have no authorization key.
    ///
    /// # Errors
    ///
    /// The table cannot be read, or the port has no GID that can be used.
    pub fn partition(&self, port: u8) -> Result<(u16, u16)> {
        let local = self.local(port)?;
        Ok((local.pkey_index, local.pkey))
    }

    /// Whether endpoints can be opened.
    pub fn abilities(&self) -> Abilities {
        Abilities::probe(&self.context)
    }

    /// Whether an RC queue pair can be made, with receives of its own.
    ///
    /// # Errors
    ///
    /// The device has no connections.
    pub fn connections(&self) -> Result<()> {
        let queues = ProbeQueues::create(&self.context)?;
        RcQp::create(queues.pd(), &queues.smallest(None)).map(drop)
    }

    /// Whether a shared receive queue can be made.
    ///
    /// # Errors
    ///
    /// The device has none.
    pub fn shared_receives(&self) -> Result<()> {
        shared_queue(&ProbeQueues::create(&self.context)?, 1).map(drop)
    }

    /// Whether a UD queue pair can be made, with receives of its own.
    ///
    /// # Errors
    ///
    /// The device has no datagrams.
    pub fn datagrams(&self) -> Result<()> {
        let queues = ProbeQueues::create(&self.context)?;
        UdQp::create(queues.pd(), &queues.smallest(None)).map(drop)
    }

    /// The inline data that endpoints get.
    pub fn endpoint_inline(&self) -> EndpointInline {
        let requested =
            Tuning::of(self.limits(), self.context.quirks(), &self.settings).inline_bytes;
        let known = self.context.inline_limits();
        let usable = |known, kind: TriedKind| {
            let queues = ProbeQueues::create(&self.context)?;
            let limit = inline_limit(known, requested as u32, |bytes| {
                kind.inline_of(&queues, bytes)
            })?;
            Ok(limit.usable)
        };
        EndpointInline {
            requested: requested as u32,
            connections: usable(&known.rc, TriedKind::Rc),
            datagrams: usable(&known.ud, TriedKind::Ud),
        }
    }

    /// The rules by which the device grants inline data, to RC queue pairs if it has some.
    ///
    /// # Errors
    ///
    /// The device makes no queue pair.
    pub fn inline(&self) -> Result<InlineFindings> {
        let queues = ProbeQueues::create(&self.context)?;
        inline::find(&queues, self.kind())
    }

    /// Makes queue pairs until there are as many as wanted, or the device refuses.
    ///
    /// # Errors
    ///
    /// No queue for them can be made.
    pub fn queue_pairs(&self, wanted: u32) -> Result<QueuePairFindings> {
        let queues = ProbeQueues::create(&self.context)?;
        let (kind, config) = (self.kind(), queues.smallest(None));
        let (mut connections, mut datagrams) = (Vec::new(), Vec::new());
        let mut found = QueuePairFindings {
            made: 0,
            refusal: None,
            shortest: None,
        };
        while found.made < wanted {
            let since = Instant::now();
            let made = match kind {
                TriedKind::Rc => RcQp::create(queues.pd(), &config).map(|qp| connections.push(qp)),
                TriedKind::Ud => UdQp::create(queues.pd(), &config).map(|qp| datagrams.push(qp)),
            };
            let took = since.elapsed();
            if let Err(refusal) = made {
                found.refusal = Some(refusal);
                break;
            }
            found.made += 1;
            found.shortest = Some(found.shortest.map_or(took, |shortest| shortest.min(took)));
        }
        Ok(found)
    }

    /// Connects the device with itself and tries the connection out. Its queue pairs request a
    /// number of inline bytes.
    ///
    /// # Errors
    ///
    /// The connection cannot be made.
    pub fn loopback(&self, port: u8, inline_bytes: u32) -> Result<ConnectionFindings> {
        let local = self.local(port)?;
        let queues = ProbeQueues::for_requests(&self.context)?;
        let pair = LoopbackPair::connect(&queues, &local, None, inline_bytes)?;
        Ok(ConnectionFindings {
            write_nothing: pair.write_nothing(),
            atomics: self.limits().atomics.then(|| pair.add()),
            // It goes last: a refused write breaks the connection.
            takes_inline: pair.takes_inline(),
        })
    }

    /// Moves a queue pair to the error state, with requests under way.
    ///
    /// # Errors
    ///
    /// The connection cannot be made, or a request cannot be posted.
    pub fn flush(&self, port: u8) -> Result<FlushFindings> {
        let local = self.local(port)?;
        let queues = ProbeQueues::for_requests(&self.context)?;
        LoopbackPair::connect(&queues, &local, None, 0)?.flush()
    }

    /// Whether the device reports that a queue pair in error has taken its last shared receive.
    ///
    /// # Errors
    ///
    /// The connection cannot be made with a shared receive queue.
    pub fn announces_last_receive(&self, port: u8) -> Result<bool> {
        let local = self.local(port)?;
        let queues = ProbeQueues::for_requests(&self.context)?;
        let srq = shared_queue(&queues, DEPTH)?;
        LoopbackPair::connect(&queues, &local, Some(&srq), 0)?.announces_last_receive()
    }

    /// Whether a region gets the key of the one that ended just before it.
    ///
    /// # Errors
    ///
    /// The device registers no memory.
    pub fn reuses_keys(&self) -> Result<bool> {
        let pd = Pd::allocate(&self.context)?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let key = || Ok(ProbeMemory::register(&pd, rights)?.key());
        Ok(key()? == key()?)
    }

    /// Sends a datagram to the port itself, and receives it.
    ///
    /// # Errors
    ///
    /// The datagram does not arrive, or a step fails.
    pub fn datagram(&self, port: u8) -> Result<()> {
        let local = self.local(port)?;
        let queues = ProbeQueues::for_requests(&self.context)?;
        datagrams::loopback(&queues, &local)
    }

    /// Whether a datagram that fails at its sender stops the send queue alone.
    ///
    /// # Errors
    ///
    /// The device has no datagrams, or a step fails.
    pub fn datagram_failure_stops_sends(&self, port: u8) -> Result<bool> {
        let local = self.local(port)?;
        let queues = ProbeQueues::for_requests(&self.context)?;
        datagrams::failure_stops_sends(&queues, &local)
    }

    /// The advice for the user where the limit of locked memory is too low for an endpoint.
    pub fn memory_lock(&self) -> Option<String> {
        let tuning = Tuning::of(self.limits(), self.context.quirks(), &self.settings);
        memory_lock(tuning.registered_bytes())
    }

    fn local(&self, port: u8) -> Result<LocalPort> {
        local_port(&self.context, port, GidWish::Any, &self.settings)
    }

    fn kind(&self) -> TriedKind {
        match self.connections() {
            Ok(()) => TriedKind::Rc,
            Err(_) => TriedKind::Ud,
        }
    }

    /// The first port that carries traffic, of those that the settings allow.
    pub fn active_port(&self) -> Option<u8> {
        self.port_numbers().find(|number| {
            let port = self.port(*number);
            port.is_ok_and(|port| port.state == PortState::Active)
        })
    }
}
