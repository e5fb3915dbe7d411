//! The script, and the objects that there are.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrofabric_verbs_sys::rdma_cm_event_type;

use crate::control::{Answer, LiveObjects, RecordRequest};

/// The state of the manager.
pub(crate) struct State {
    /// The answers to come; the last one stays.
    pub(crate) answers: VecDeque<Answer>,
    pub(crate) requests: Vec<RecordRequest>,
    /// The events of each channel that nobody has taken, by the channel's address.
    pub(crate) events: BTreeMap<usize, VecDeque<Event>>,
    pub(crate) live: LiveObjects,
}

/// An event that waits.
pub(crate) struct Event {
    /// The address of its identifier.
    pub(crate) id: usize,
    pub(crate) kind: rdma_cm_event_type,
    pub(crate) status: i32,
}

impl State {
    const EMPTY: Self = Self {
        answers: VecDeque::new(),
        requests: Vec::new(),
        events: BTreeMap::new(),
        live: LiveObjects {
            channels: 0,
            identifiers: 0,
            events: 0,
        },
    };

    /// The answer to the next request.
    pub(crate) fn next_answer(&mut self) -> Option<Answer> {
        match self.answers.len() {
            0 | 1 => self.answers.front().copied(),
            _ => self.answers.pop_front(),
        }
    }
}

/// All of it, behind one lock.
pub(crate) fn state() -> MutexGuard<'static, State> {
    static STATE: Mutex<State> = Mutex::new(State::EMPTY);
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}
