//! Path records (IBTA 1.5 §15.2.5.16): the path from a port to another one, as the connection
//! manager finds it (rdma_resolve_route(3)). On InfiniBand the subnet manager has chosen it. On
//! RoCE the path follows from the route and from the administrator's settings of the port.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrofabric_contracts::addr::GidKind;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::wait::WaitSet;
use ferrofabric_verbs_sys::rdma_cm_event_type as Kind;

use super::channel::{CmAddr, CmId, EventChannel};
use super::host;
use crate::ah::{KnownPath, PathRecord, PortPath};
use crate::device::Gid;
use crate::port::LocalPort;

/// How long the first request waits for its answer; each further one waits twice as long as the one
/// before.
const FIRST_WAIT: Duration = Duration::from_millis(500);

/// The path as packets take it: with its record, if the port wants one. That may take as long as
/// the port's setting allows: a thread that must make progress must not call it.
///
/// # Errors
///
/// `ETIMEDOUT`: nobody answers the request for the record. `EHOSTUNREACH`: there is no path. Else
/// there is no connection manager.
pub(crate) fn known_path(port: &LocalPort, path: &PortPath) -> Result<KnownPath> {
    let Some(to) = path.remote_gid.filter(|gid| port.wants_record(*gid)) else {
        return Ok(KnownPath {
            path: *path,
            mtu: None,
        });
    };
    let record = find(port, to).inspect_err(|error| {
        static WARNED: AtomicBool = AtomicBool::new(false);
        if !WARNED.swap(true, Ordering::Relaxed) {
            tracing::warn!("no packet goes to {to} without a record of its path: {error}");
        }
    })?;
    if let Some(mtu) = record.mtu.filter(|mtu| *mtu < port.mtu) {
        tracing::warn!(
            "the path to {to} takes packets of {mtu} bytes, and port {} sends up to {}: longer \
             datagrams get lost; lower the MTU of the ports to that of the path",
            port.number,
            port.mtu
        );
    }
    Ok(KnownPath {
        path: port.with_record(*path, &record),
        mtu: record.mtu,
    })
}

/// Repeats the request until there is an answer, or the time is over.
fn find(port: &LocalPort, to: Gid) -> Result<PathRecord> {
    let channel = EventChannel::open()?;
    let wait = WaitSet::new()?;
    wait.add(channel.as_fd())?;
    let deadline = Instant::now() + port.path_records.timeout;
    let mut patience = FIRST_WAIT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match RecordSearch::begin(port, to, &channel, patience.min(left))?.run(&wait) {
            Err(error) if error.errno() == Errno::ETIMEDOUT && Instant::now() < deadline => {
                patience *= 2;
            }
            outcome => return outcome,
        }
    }
}

/// One request under way.
struct RecordSearch<'a> {
    from: Gid,
    to: Gid,
    channel: &'a Arc<EventChannel>,
    id: CmId,
    /// How long the answer may take.
    patience: Duration,
}

impl<'a> RecordSearch<'a> {
    fn begin(
        port: &LocalPort,
        to: Gid,
        channel: &'a Arc<EventChannel>,
        patience: Duration,
    ) -> Result<Self> {
        let id = CmId::create(channel)?;
        let (from, at) = ends(port, to)?;
        id.resolve_addr(from, at, patience)?;
        Ok(Self {
            from: port.gid,
            to,
            channel,
            id,
            patience,
        })
    }

    fn run(self, wait: &WaitSet) -> Result<PathRecord> {
        // The connection manager keeps the time itself; this is for one that does not.
        let until = Instant::now() + 2 * self.patience + FIRST_WAIT;
        loop {
            while let Some(event) = self.channel.event()? {
                if event.id != self.id.key() {
                    continue;
                }
                match event.kind {
                    Kind::RDMA_CM_EVENT_ADDR_RESOLVED => self.id.resolve_route(self.patience)?,
                    Kind::RDMA_CM_EVENT_ROUTE_RESOLVED => {
                        let found = self.id.path_record();
                        return found.ok_or_else(|| self.failed(Errno::EHOSTUNREACH));
                    }
                    _ => return Err(self.failed(Errno(event.status.abs()))),
                }
            }
            if Instant::now() >= until {
                return Err(self.failed(Errno::ETIMEDOUT));
            }
            wait.sleep(Some(until))?;
        }
    }

    fn failed(&self, errno: Errno) -> Error {
        let (errno, why) = match errno {
            Errno::ETIMEDOUT => (errno, "no answer came"),
            _ => (Errno::EHOSTUNREACH, "there is none"),
        };
        let path = format!("path from {} to {}", self.from, self.to);
        Error::new(errno, "find", path).mend(format!(
            "{why}: check the subnet manager (sminfo, saquery) or the route (ip route), or set \
             path_records to off"
        ))
    }
}

/// Both ends of a path, as the connection manager takes them.
///
/// # Errors
///
/// `EADDRNOTAVAIL`: the port is on Ethernet, and its GID is no IP address.
fn ends(port: &LocalPort, to: Gid) -> Result<(CmAddr, CmAddr)> {
    match port.gid_kind {
        GidKind::Ib => {
            let end = |gid| CmAddr::Port {
                gid,
                pkey: port.pkey,
            };
            Ok((end(port.gid), end(to)))
        }
        GidKind::RoceV1 | GidKind::RoceV2 => {
            let host = host(port)?;
            let ip = IpAddr::from(to.0).to_canonical();
            let at = host.reach(SocketAddr::new(ip, 0));
            Ok((CmAddr::Socket(host.socket(0)), CmAddr::Socket(at)))
        }
    }
}
