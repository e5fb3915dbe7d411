//! The lanes on which a session has yet to be taken up.

use std::collections::HashMap;
use std::time::Duration;

use ferrofabric_protocol::handshake::LaneUp;
use ferrofabric_protocol::session::Said;
use ferrofabric_protocol::wire::SessionId;

use crate::connect::Carrier;

/// A lane that does not carry the session yet.
pub(super) struct Resuming {
    pub(super) up: LaneUp,
    pub(super) carrier: Carrier,
    pub(super) peer: u32,
    pub(super) may_send: bool,
    /// The Resume was posted.
    pub(super) said: bool,
    /// It, or a probe behind it, is under way: one request at a time.
    pub(super) under_way: bool,
    /// Times that it was said: over datagrams it may get lost.
    pub(super) tries: u32,
    /// The peer's session and what it has taken of it.
    pub(super) heard: Option<Said>,
}

/// All such lanes of an endpoint.
pub(super) struct Resumptions {
    lanes: HashMap<SessionId, Resuming>,
    /// For so long a session waits for a lane; `None`: for as long as it takes.
    patience: Option<Duration>,
}

impl Resumptions {
    pub(super) fn new(patience: Option<Duration>) -> Self {
        Self {
            lanes: HashMap::new(),
            patience,
        }
    }

    pub(super) fn patience(&self) -> Option<Duration> {
        self.patience
    }

    pub(super) fn begin(&mut self, lane: Resuming) {
        self.lanes.insert(lane.up.lane.session(), lane);
    }

    pub(super) fn of(&mut self, session: SessionId) -> Option<&mut Resuming> {
        self.lanes.get_mut(&session)
    }

    /// The lane carries the session from here on, or is no more.
    pub(super) fn end(&mut self, session: SessionId) -> Option<Resuming> {
        self.lanes.remove(&session)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Resuming> {
        self.lanes.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Resuming> {
        self.lanes.values_mut()
    }
}
