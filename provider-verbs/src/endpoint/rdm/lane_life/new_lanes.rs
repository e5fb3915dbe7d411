//! The lanes that are up and do not carry a session yet.

use std::collections::HashMap;
use std::time::Duration;

use ferrofabric_protocol::handshake::LaneUp;
use ferrofabric_protocol::wire::SessionId;

use super::resume_slots::ResumeSlots;
use crate::connect::{LaneCarrier, UdDestination};

/// A lane that does not carry a session yet.
pub(in super::super) struct NewLane {
    pub(super) up: LaneUp,
    pub(super) carrier: LaneCarrier,
    pub(super) peer: u32,
    /// A Resume was posted.
    pub(super) said: bool,
    /// The Resume, or a probe behind it, is under way: one request at a time.
    pub(super) under_way: bool,
    /// Where that Resume lies, unless in the work request.
    pub(super) slot: Option<u32>,
}

/// All such lanes of an endpoint.
pub(in super::super) struct NewLanes {
    lanes: HashMap<SessionId, NewLane>,
    /// How long a session waits for a lane; `None`: for ever.
    timeout: Option<Duration>,
    /// Where their Resumes lie.
    slots: ResumeSlots,
}

impl NewLanes {
    pub(in super::super) fn new(timeout: Option<Duration>, slots: ResumeSlots) -> Self {
        Self {
            lanes: HashMap::new(),
            timeout,
            slots,
        }
    }

    /// How long a peer may be silent while a lane is made, if that has a limit.
    pub(super) fn timeout(&self, limited: bool) -> Option<Duration> {
        self.timeout.filter(|_| limited)
    }

    pub(super) fn insert(&mut self, lane: NewLane) {
        self.lanes.insert(lane.up.lane.session(), lane);
    }

    pub(super) fn of(&mut self, session: SessionId) -> Option<&mut NewLane> {
        self.lanes.get_mut(&session)
    }

    /// The lane of a session, and where its Resume may lie.
    pub(super) fn of_with_slots(
        &mut self,
        session: SessionId,
    ) -> Option<(&mut NewLane, &mut ResumeSlots)> {
        Some((self.lanes.get_mut(&session)?, &mut self.slots))
    }

    /// The path of a UD lane has another address handle.
    #[cold]
    pub(in super::super) fn renew_path(&mut self, session: SessionId, destination: UdDestination) {
        if let Some(lane) = self.lanes.get_mut(&session) {
            lane.carrier = LaneCarrier::Ud(destination);
        }
    }

    /// The request that read a Resume from this slot is over.
    #[cold]
    pub(in super::super) fn give_slot(&mut self, slot: u32) {
        self.slots.give(slot);
    }

    /// The lane carries a session from now on, or has ended.
    pub(super) fn remove(&mut self, session: SessionId) -> Option<NewLane> {
        self.lanes.remove(&session)
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &NewLane> {
        self.lanes.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut NewLane> {
        self.lanes.values_mut()
    }
}
