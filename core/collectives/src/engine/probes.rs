//! Probes of members for whose messages operations wait.

use std::time::{Duration, Instant};

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;

use super::{Engine, MessagePurpose};
use crate::planner::MessageBytes;
use crate::tags::PROBE;

/// The time for which an operation waits for a message before it probes the sender.
const FIRST_DELAY: Duration = Duration::from_millis(500);

/// The time between two probes at most. It doubles from the first delay on.
const MAX_DELAY: Duration = Duration::from_secs(8);

/// The probes of one wait.
#[derive(Default)]
pub(super) struct Probing {
    /// The time of the next one, once the wait has been seen, and the delay before it.
    next: Option<(Instant, Duration)>,
    /// The last one is not over.
    is_under_way: bool,
    /// The error of one.
    failed: Option<Errno>,
}

/// The wait that a probe is for.
pub(super) struct ProbedWait {
    operation: u64,
    message: u64,
}

impl Engine {
    /// Probes the senders for whose messages operations have waited for a while, and fails the
    /// operations whose probes have failed.
    pub(super) fn probe(&mut self, now: Instant) {
        let (mut due, mut failed) = (Vec::new(), Vec::new());
        for (&operation, state) in &mut self.operations {
            let Some(awaited) = &mut state.waits_for else {
                continue;
            };
            let probing = &mut awaited.probing;
            if let Some(errno) = probing.failed {
                failed.push((operation, errno, awaited.from));
                continue;
            }
            let (time, delay) = *probing.next.get_or_insert((now + FIRST_DELAY, FIRST_DELAY));
            if time <= now {
                let delay = (2 * delay).min(MAX_DELAY);
                probing.next = Some((now + delay, delay));
                if !std::mem::replace(&mut probing.is_under_way, true) {
                    let message = awaited.message;
                    due.push((awaited.from, ProbedWait { operation, message }));
                }
            }
        }
        for (operation, errno, member) in failed {
            self.fail(operation, errno, Some(member));
        }
        for (member, probed) in due {
            let purpose = MessagePurpose::Probe(probed);
            self.send(member, PROBE, MessageBytes::Empty, purpose);
        }
    }

    /// The time of the next probe, if an operation waits for a message.
    pub(super) fn next_probe(&self) -> Option<Instant> {
        let awaited = (self.operations.values()).filter_map(|one| one.waits_for.as_ref());
        let probes = awaited.filter_map(|awaited| Some(awaited.probing.next?.0));
        probes.min()
    }

    /// A probe is over. Its member may have closed its endpoint because it has done its part: its
    /// message may be here already.
    pub(super) fn take_probe_end(&mut self, probed: &ProbedWait, result: Result<(), Errno>) {
        let operation = self.operations.get_mut(&probed.operation);
        let awaited = operation.and_then(|operation| operation.waits_for.as_mut());
        if let Some(awaited) = awaited.filter(|awaited| awaited.message == probed.message) {
            awaited.probing.is_under_way = false;
            // The level of a probe is not supported here, so it says nothing of the member.
            awaited.probing.failed = result.err().filter(|&errno| errno != Errno::EOPNOTSUPP);
        }
    }

    /// Receives the next probe of any member.
    pub(super) fn await_probe(&mut self) {
        self.receive(FiAddr::UNSPEC, (PROBE, 0), 0, MessagePurpose::AnyProbe);
    }
}
