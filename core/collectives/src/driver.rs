//! Carries out the operations of an endpoint's groups by its messages.
//!
//! A [`Planner`] decides which messages there are. The [`Driver`] gives each its memory, has those
//! wait for which the endpoint has no room, and hands ends on. A [`Carrier`] posts the messages, and
//! [`Reports`] take the ends of operations. Applications' calls in C, Rust programs and members by
//! an owner's transfers have one carrier each (docs/adr/0094).
//!
//! The contract:
//!
//! - The carrier reports the end of each message that it has taken once, by [`Driver::sent`] or
//!   [`Driver::received`], and calls [`carry_out`] after it.
//! - Messages to one peer are posted in their order, and so are receives of one peer.
//! - A probe that has failed counts in a tick for which the carrier began to look for ends of
//!   messages after the failure: the member may have closed its endpoint because it has done its
//!   part, and its message may be here already.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::types::FiAddr;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::message::{Message, MessageMemory};
use crate::planner::{Action, Outcome, Planner};
use crate::waiting::WaitingMessages;

/// The length of memory that is used again, and the number of pieces that are kept.
const SPARE_BYTES: usize = 256;
const SPARES: usize = 64;

/// The time after which a message for which there was no room is tried again: nothing says that
/// there is some.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// The next step of a carrier.
pub(crate) enum Step<M> {
    /// To post a message.
    Post(Message<M>),
    /// To cancel the receive of this number, which the carrier has taken. One that has matched ends
    /// by itself.
    Cancel(u64),
}

/// The way in which the messages of an endpoint are sent and received.
pub trait Carrier {
    /// Memory of its messages.
    type Memory: MessageMemory;
    /// The place to which the ends of operations go.
    type Reports: Reports;

    /// Calls the driver.
    fn with_driver<T>(
        &mut self,
        call: impl FnOnce(&mut Driver<Self::Memory, Self::Reports>) -> T,
    ) -> T;

    /// Begins a message.
    ///
    /// # Errors
    ///
    /// `Again`: there is no room for it. The endpoint's. Each with the message.
    fn post(
        &mut self,
        message: Message<Self::Memory>,
    ) -> Result<(), (OpError, Message<Self::Memory>)>;

    /// Cancels the receive of a number.
    fn cancel(&mut self, number: u64);
}

/// The place to which the ends of operations go.
pub trait Reports {
    /// What is kept of an operation until it is over.
    type Pending;

    /// An operation is over.
    fn end(&mut self, pending: Self::Pending, result: Result<Outcome, Errno>);
}

/// Takes all steps that there are.
pub fn carry_out(carrier: &mut impl Carrier) {
    while let Some(step) = carrier.with_driver(Driver::next_step) {
        match step {
            Step::Post(message) => {
                if let Err((error, message)) = carrier.post(message) {
                    carrier.with_driver(|driver| driver.refuse(message, error));
                }
            }
            Step::Cancel(number) => carrier.cancel(number),
        }
    }
}

/// The operations of an endpoint's groups, and their messages.
pub struct Driver<M, R: Reports> {
    planner: Box<dyn Planner + Send>,
    /// Takes the ends of operations.
    pub reports: R,
    operations: FxHashMap<u64, R::Pending>,
    waiting: WaitingMessages<M>,
    spare: Vec<M>,
    /// Probes that are not over.
    probes: FxHashSet<u64>,
    failed_probes: VecDeque<FailedProbe>,
    /// The time after which a failed probe may count.
    probe_grace: Duration,
    receives: usize,
}

struct FailedProbe {
    counts_from: Instant,
    message: u64,
    errno: Errno,
}

impl<M: MessageMemory, R: Reports> Driver<M, R> {
    /// A driver of an endpoint that has just been opened. A failed probe counts after `probe_grace`
    /// at the earliest.
    pub fn new(planner: Box<dyn Planner + Send>, reports: R, probe_grace: Duration) -> Self {
        Self {
            planner,
            reports,
            operations: FxHashMap::default(),
            waiting: WaitingMessages::default(),
            spare: Vec::new(),
            probes: FxHashSet::default(),
            failed_probes: VecDeque::new(),
            probe_grace,
            receives: 0,
        }
    }

    /// The planner, for calls that begin no operation.
    pub fn planner(&mut self) -> &mut dyn Planner {
        &mut *self.planner
    }

    /// Begins an operation by a call of the planner.
    ///
    /// # Errors
    ///
    /// The call's.
    pub fn begin<T>(
        &mut self,
        operation: u64,
        pending: R::Pending,
        call: impl FnOnce(&mut dyn Planner) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let begun = call(&mut *self.planner)?;
        self.operations.insert(operation, pending);
        Ok(begun)
    }

    /// Whether an operation has begun and is not over.
    pub fn is_under_way(&self, operation: u64) -> bool {
        self.operations.contains_key(&operation)
    }

    /// Forgets operations, whose ends are not reported then.
    pub fn forget(&mut self, is_forgotten: impl Fn(&R::Pending) -> bool) {
        self.operations.retain(|_, pending| !is_forgotten(pending));
    }

    /// Whether there was no room for a message.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The number of receives that are not over.
    pub fn receives(&self) -> usize {
        self.receives
    }

    /// A message that was sent is over.
    pub fn sent(&mut self, message: u64, result: Result<(), Errno>) {
        match (self.probes.remove(&message), result) {
            // The level of a probe is not supported, so it says nothing of the member.
            (true, Err(errno)) if errno != Errno::EOPNOTSUPP => {
                self.failed_probes.push_back(FailedProbe {
                    counts_from: Instant::now() + self.probe_grace,
                    message,
                    errno,
                });
            }
            (_, result) => self.planner.sent(message, result),
        }
    }

    /// A message was received, or its receive has failed. `from` is the sender: `FI_ADDR_UNSPEC` if
    /// it has no address here.
    pub fn received(&mut self, message: u64, from: FiAddr, result: Result<&[u8], Errno>) {
        self.receives -= 1;
        self.planner.received(message, from, result);
    }

    /// Keeps the memory of a message that is over for the next one.
    pub fn keep_spare(&mut self, mut memory: M) {
        if memory.bytes_mut().len() == SPARE_BYTES && self.spare.len() < SPARES {
            self.spare.push(memory);
        }
    }

    /// Tries messages again for which there was no room.
    pub fn try_again(&mut self) {
        self.waiting.try_again();
    }

    /// Does what time has made due. No end of a message was left to report at some time after
    /// `now`.
    pub fn tick(&mut self, now: Instant) {
        while let Some(failed) = self.failed_probes.pop_front() {
            if failed.counts_from >= now {
                self.failed_probes.push_front(failed);
                break;
            }
            self.planner.sent(failed.message, Err(failed.errno));
        }
        self.planner.tick(now);
        self.try_again();
    }

    /// The time of the next [`tick`](Self::tick), if no end of a message comes before.
    pub fn next_tick(&self) -> Option<Instant> {
        let failed = (self.failed_probes.front()).map(|failed| failed.counts_from);
        let retry = (self.has_waiting()).then(|| Instant::now() + RETRY_DELAY);
        let times = [self.planner.next_tick(), failed, retry];
        times.into_iter().flatten().min()
    }

    /// The next step, if there is one. Ends of operations are reported before it.
    fn next_step(&mut self) -> Option<Step<M>> {
        loop {
            if let Some(message) = self.waiting.next_tried() {
                return Some(Step::Post(message));
            }
            let message = match self.planner.next_action()? {
                Action::Send {
                    message,
                    to,
                    tag,
                    bytes,
                    is_probe,
                } => {
                    let made = match self.planner.bytes(&bytes) {
                        Some(bytes) => copied(&mut self.spare, bytes),
                        None => Err(Errno::ECANCELED),
                    };
                    let (memory, len) = match made {
                        Ok(made) => made,
                        Err(errno) => {
                            self.planner.sent(message, Err(errno));
                            continue;
                        }
                    };
                    if is_probe {
                        self.probes.insert(message);
                    }
                    Message {
                        number: message,
                        sends: true,
                        peer: to,
                        tag,
                        ignore: 0,
                        is_probe,
                        len,
                        memory,
                    }
                }
                Action::Receive {
                    message,
                    from,
                    tag,
                    ignore,
                    len,
                } => {
                    let memory = match memory_of(&mut self.spare, len) {
                        Ok(memory) => memory,
                        Err(errno) => {
                            self.planner.refused(message, errno);
                            continue;
                        }
                    };
                    self.receives += 1;
                    Message {
                        number: message,
                        sends: false,
                        peer: from,
                        tag,
                        ignore,
                        is_probe: false,
                        len,
                        memory,
                    }
                }
                Action::Cancel { message } => match self.waiting.remove(message) {
                    Some(message) => {
                        self.receives -= usize::from(!message.sends);
                        self.keep_spare(message.memory);
                        continue;
                    }
                    None => return Some(Step::Cancel(message)),
                },
                Action::End { operation, result } => {
                    if let Some(pending) = self.operations.remove(&operation) {
                        self.reports.end(pending, result);
                    }
                    continue;
                }
            };
            if let Some(message) = self.waiting.queue_behind(message) {
                return Some(Step::Post(message));
            }
        }
    }

    /// The carrier has refused a message.
    fn refuse(&mut self, message: Message<M>, error: OpError) {
        let errno = match error {
            OpError::Again => return self.waiting.put_back(message),
            OpError::Failed(errno) => errno,
        };
        match message.sends {
            true => self.sent(message.number, Err(errno)),
            false => {
                self.receives -= 1;
                self.planner.refused(message.number, errno);
            }
        }
        self.keep_spare(message.memory);
    }
}

/// Memory for a number of bytes.
fn memory_of<M: MessageMemory>(spare: &mut Vec<M>, len: usize) -> Result<M, Errno> {
    match len {
        // A message without bytes takes none.
        0 => M::allocate(0),
        1..=SPARE_BYTES => spare.pop().map_or_else(|| M::allocate(SPARE_BYTES), Ok),
        _ => M::allocate(len),
    }
}

/// A copy of some bytes, and their number.
fn copied<M: MessageMemory>(spare: &mut Vec<M>, bytes: &[u8]) -> Result<(M, usize), Errno> {
    let mut memory = memory_of(spare, bytes.len())?;
    if let Some(place) = memory.bytes_mut().get_mut(..bytes.len()) {
        place.copy_from_slice(bytes);
    }
    Ok((memory, bytes.len()))
}
