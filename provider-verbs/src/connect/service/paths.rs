//! The paths of the service thread: their address handles, and the lanes and control packets that
//! wait for one.

use ferrofabric_contracts::error::Errno;
use ferrofabric_protocol::PeerKey;

use super::lanes::lane_error;
use super::{ControlDatagram, JoiningCarrier, JoiningLane, Made, ServiceWorker};
use crate::ah::PortPath;
use crate::connect::ah_cache::PathOutcome;
use crate::connect::native_addr;

/// Retired paths that the thread remembers.
const MAX_RETIRED: usize = 1024;

impl ServiceWorker {
    pub(super) fn path_resolved(&mut self, path: PortPath, outcome: PathOutcome<ControlDatagram>) {
        let (joining, others) = std::mem::take(&mut self.joining)
            .into_iter()
            .partition::<Vec<_>, _>(|waiting| waiting.path == path);
        self.joining = others;
        for waiting in joining {
            let lane = waiting.lane;
            let connected = match &outcome {
                PathOutcome::Ready(handle, _) => self.connect_along(waiting, handle),
                PathOutcome::Failed(error, _) => Some(Err(lane_error(error))),
            };
            if let Some(connected) = connected {
                self.drive(|c, now, out| c.lane_connected(now, lane, connected, out));
            }
        }
        match outcome {
            PathOutcome::Ready(handle, waiting) => {
                for d in waiting {
                    self.datagrams.send(handle.clone(), d.qpn, d.qkey, &d.bytes);
                }
            }
            PathOutcome::Failed(error, waiting) => {
                tracing::debug!("{error}");
                // A neighbour that is silent now may answer the next try; a path without a route or
                // a handle stays that way.
                if !matches!(
                    error.errno(),
                    Errno::ETIMEDOUT | Errno::EAGAIN | Errno::ENOMEM
                ) {
                    for d in waiting {
                        self.drive(|c, now, out| c.unreachable(now, &d.peer, out));
                    }
                }
            }
        }
    }

    /// The engine has closed its last lane to a removed peer: the handle of the path goes with its
    /// last holder. (RC queue pairs hold none: a later control packet to the peer makes the handle
    /// anew.)
    pub(super) fn retire_path(&mut self, peer: &PeerKey) {
        if let Some((path, ..)) = self.control_route(peer) {
            if !self.retiring.contains(&path) {
                self.retiring.push(path);
            }
        }
    }

    /// The engine has a lane to a peer, or waits for one: it reports when it retires the peer.
    pub(super) fn keep_path(&mut self, peer: &PeerKey) {
        if let Some((path, ..)) = self.control_route(peer) {
            self.retired.remove(&path);
        }
    }

    pub(super) fn release_handles(&mut self) {
        let (handles, retired) = (&mut self.handles, &mut self.retired);
        self.retiring.retain(|path| {
            let released = handles.release_unused(path);
            if released {
                if retired.len() >= MAX_RETIRED {
                    // Handles that are made for them again go with those of other unknown sources,
                    // once there are many.
                    retired.clear();
                }
                retired.insert(*path);
            }
            !released
        });
    }

    /// From time to time, drops the handles of endpoints that are not peers any more, or never
    /// were.
    pub(super) fn tidy_handles(&mut self) {
        if !self.handles.is_crowded() {
            return;
        }
        let peers = (self.connector.peers()).filter_map(|peer| Some(self.control_route(peer)?.0));
        let joining = self.joining.iter().map(|waiting| waiting.path);
        let wanted = peers.chain(joining).collect();
        self.handles.tidy(&wanted);
    }

    /// The path to a peer, and the number and key of the queue pair for its control packets.
    pub(super) fn control_route(&self, peer: &PeerKey) -> Option<(PortPath, u32, u32)> {
        let verbs = native_addr(peer, 0)?.verbs?;
        Some((self.config.port.path_to(&verbs)?, verbs.qpn, verbs.qkey))
    }

    /// The addresses of the port, or the paths from it, may have changed: all address handles are
    /// made anew, those of UD lanes at once.
    #[cold]
    pub(super) fn renew_paths(&mut self) {
        self.config.port = self.config.port.refreshed(self.config.pd.context());
        self.handles.renew(self.config.port);
        let gid_index = self.config.port.gid_index;
        let mut paths = Vec::new();
        for (&lane, made) in &self.lanes {
            if let Made::Ud(Some((path, destination))) = made {
                paths.push(JoiningLane {
                    path: PortPath { gid_index, ..*path },
                    lane,
                    carrier: JoiningCarrier::Ud(destination.qkey),
                });
            }
        }
        for waiting in paths {
            match self.handles.handle(waiting.path) {
                Some(handle) => {
                    let _ = self.connect_along(waiting, &handle);
                }
                None => self.joining.push(waiting),
            }
        }
    }
}
