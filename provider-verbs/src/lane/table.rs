//! The table of an endpoint's lanes.

use ferrofabric_protocol::wire::SessionId;

use super::{Lane, LaneHead, NewLane, RcLane, UdLane};
use crate::session::SessionState;

/// The lanes of an endpoint, by the name that data packets to this endpoint give them. A lane has
/// the name of the session that begins with it.
#[derive(Default)]
pub(crate) struct LaneTable {
    slots: Vec<Option<Lane>>,
    /// Lanes whose place in the table has another lane already: the service thread uses the place
    /// again as soon as a lane is down, and here a lane stays until all its requests are flushed.
    leaving: Vec<Lane>,
}

impl LaneTable {
    /// Enters a lane.
    pub(crate) fn insert(&mut self, lane: Lane) {
        let at = lane.head().key.session().index();
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        let before = self.slots[at].replace(lane);
        self.leaving.extend(before);
    }

    /// A lane, if it still exists.
    #[inline]
    pub(crate) fn of(&mut self, session: SessionId) -> Option<&mut Lane> {
        match self.slots.get_mut(session.index())? {
            Some(lane) if lane.head().key.session() == session => Some(lane),
            _ => find(&mut self.leaving, session),
        }
    }

    /// A lane whose session an RC queue pair carries.
    #[inline]
    pub(crate) fn rc(&mut self, session: SessionId) -> Option<&mut RcLane> {
        // The kind and the name are compared at once: sends and receives do this.
        match self.slots.get_mut(session.index())? {
            Some(Lane::Rc(lane)) if lane.head.key.session() == session => Some(lane),
            Some(Lane::Ud(lane)) if lane.head.key.session() == session => None,
            _ => match find(&mut self.leaving, session)? {
                Lane::Rc(lane) => Some(lane),
                Lane::New(_) | Lane::Ud(_) => None,
            },
        }
    }

    /// A lane whose session datagrams carry.
    #[inline]
    pub(crate) fn ud(&mut self, session: SessionId) -> Option<&mut UdLane> {
        match self.slots.get_mut(session.index())? {
            Some(Lane::Ud(lane)) if lane.head.key.session() == session => Some(lane),
            Some(Lane::Rc(lane)) if lane.head.key.session() == session => None,
            _ => match find(&mut self.leaving, session)? {
                Lane::Ud(lane) => Some(lane),
                Lane::New(_) | Lane::Rc(_) => None,
            },
        }
    }

    /// A lane that does not carry a session yet.
    pub(crate) fn without_session(&mut self, session: SessionId) -> Option<&mut NewLane> {
        match self.of(session)? {
            Lane::New(lane) => Some(lane),
            Lane::Rc(_) | Lane::Ud(_) => None,
        }
    }

    /// The session that a lane carries.
    pub(crate) fn session(&mut self, session: SessionId) -> Option<&mut SessionState> {
        self.of(session)?.session_mut()
    }

    /// The number of lanes at most, without a count of them.
    pub(crate) fn places(&self) -> usize {
        self.slots.len() + self.leaving.len()
    }

    /// All lanes, to be read.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.slots.iter().flatten().chain(&self.leaving)
    }

    /// The lanes that carry a session, and their sessions.
    pub(crate) fn carried(&self) -> impl Iterator<Item = (&LaneHead, &SessionState)> {
        self.iter()
            .filter_map(|lane| Some((lane.head(), lane.session()?)))
    }

    /// The lanes whose sessions RC queue pairs carry.
    pub(crate) fn rc_lanes(&self) -> impl Iterator<Item = &RcLane> {
        self.iter().filter_map(|lane| match lane {
            Lane::Rc(lane) => Some(&**lane),
            Lane::New(_) | Lane::Ud(_) => None,
        })
    }

    /// The lanes whose sessions datagrams carry.
    pub(crate) fn ud_lanes(&self) -> impl Iterator<Item = &UdLane> {
        self.iter().filter_map(|lane| match lane {
            Lane::Ud(lane) => Some(&**lane),
            Lane::New(_) | Lane::Rc(_) => None,
        })
    }

    /// The lanes that do not carry a session yet.
    pub(crate) fn new_lanes(&self) -> impl Iterator<Item = &NewLane> {
        self.iter().filter_map(|lane| match lane {
            Lane::New(lane) => Some(&**lane),
            Lane::Rc(_) | Lane::Ud(_) => None,
        })
    }

    /// As [`LaneTable::new_lanes`], to be changed.
    pub(crate) fn new_lanes_mut(&mut self) -> impl Iterator<Item = &mut NewLane> {
        let slots = self.slots.iter_mut().flatten();
        slots
            .chain(&mut self.leaving)
            .filter_map(|lane| match lane {
                Lane::New(lane) => Some(&mut **lane),
                Lane::Rc(_) | Lane::Ud(_) => None,
            })
    }

    /// Takes all lanes out.
    pub(crate) fn into_lanes(self) -> impl Iterator<Item = Lane> {
        self.slots.into_iter().flatten().chain(self.leaving)
    }

    /// Takes a lane out.
    pub(crate) fn remove(&mut self, session: SessionId) -> Option<Lane> {
        let is_it = |lane: &Lane| lane.head().key.session() == session;
        let place = self.slots.get_mut(session.index())?;
        if let Some(lane) = place.take_if(|lane| is_it(lane)) {
            return Some(lane);
        }
        let at = self.leaving.iter().position(is_it)?;
        Some(self.leaving.swap_remove(at))
    }

    /// Takes out a lane that does not carry a session yet.
    pub(crate) fn remove_new(&mut self, session: SessionId) -> Option<NewLane> {
        self.without_session(session)?;
        match self.remove(session)? {
            Lane::New(lane) => Some(*lane),
            Lane::Rc(_) | Lane::Ud(_) => None,
        }
    }

    /// Puts back a lane that was taken out to change its kind. Another lane may have its place by
    /// now, and keeps it.
    pub(crate) fn put_back(&mut self, lane: Lane) {
        match self.slots.get_mut(lane.head().key.session().index()) {
            Some(place @ None) => *place = Some(lane),
            _ => self.leaving.push(lane),
        }
    }
}

#[cold]
fn find(leaving: &mut [Lane], session: SessionId) -> Option<&mut Lane> {
    let mut lanes = leaving.iter_mut();
    lanes.find(|lane| lane.head().key.session() == session)
}
