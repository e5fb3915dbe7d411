//! Carries out the operations of an endpoint by messages of its owner.

mod messages;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrofabric_collectives::{Action, Collective, Engine, GroupId, Membership, Outcome, Planner};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Completion, Done, EqError};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::locks::Mutex;
use rustc_hash::FxHashMap;

use super::transfers::{OwnersTransfers, TransferCall, TransferMemory};
use crate::abi::{FI_JOIN_COMPLETE, fi_cq_err_entry};
use crate::av::members::Members;
use crate::cq::owners::OwnersCq;
use crate::eq::EqObject;
use crate::fid::SharedObject;
use crate::reasons::number_of;
use crate::turn::SharedWork;
use messages::{CarriedMessages, ReadyMessage};

/// Why an operation has failed.
const FAILED: &str = "a member is gone, has left, or has begun another operation: its group does \
                      not go on";

/// Messages of an endpoint have numbers below the first one of the next endpoint: an owner may
/// report the ends of an earlier one to a later one.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The messages of an endpoint.
const NUMBERS: u64 = 1 << 40;

/// A probe that has failed counts after so long: by then the owner has reported the messages that
/// came before.
const PROBE_GRACE: Duration = Duration::from_millis(500);

thread_local! {
    /// How many owners the thread calls, each in a function of the one before.
    static WITHIN: Cell<usize> = const { Cell::new(0) };
}

/// A frame that calls an owner.
struct OwnersFrame;

impl OwnersFrame {
    fn begin() -> Self {
        WITHIN.set(WITHIN.get() + 1);
        Self
    }
}

impl Drop for OwnersFrame {
    fn drop(&mut self) {
        WITHIN.set(WITHIN.get() - 1);
    }
}

/// Whether the thread is in a function of an owner.
fn is_within_owner() -> bool {
    WITHIN.get() != 0
}

/// Whether an error of a send is that of a receiver that is gone.
fn says_gone(errno: Errno) -> bool {
    let gone = [
        Errno::ECONNRESET,
        Errno::ECONNREFUSED,
        Errno::ECONNABORTED,
        Errno(libc::ENOTCONN),
        Errno::ESHUTDOWN,
        Errno::EHOSTUNREACH,
        Errno::ENETUNREACH,
        Errno::ETIMEDOUT,
    ];
    gone.contains(&errno)
}

/// The operations of an endpoint.
pub(super) struct Carrier {
    pub(super) transfers: OwnersTransfers,
    queue: Arc<OwnersCq>,
    state: Mutex<CarrierState>,
    /// The calls of the owner.
    work: SharedWork,
}

#[derive(Default)]
struct CarrierState {
    engine: Engine,
    messages: CarriedMessages,
    operations: FxHashMap<u64, CarriedOperation>,
    groups: FxHashMap<FiAddr, CarriedGroup>,
    /// Where joins are reported.
    events: Option<SharedObject<EqObject>>,
    /// Entries for the owner's queue.
    entries: VecDeque<CarriedEntry>,
    failed_probes: VecDeque<(Instant, u64, Errno)>,
    /// The owner has no messages that end when they are received. One that ends when it is sent
    /// fails, too, where the owner notices that a member is gone.
    has_no_delivery: bool,
    next_operation: u64,
    is_closed: bool,
}

/// An operation that is not over.
struct CarriedOperation {
    context: u64,
    end: OperationEnd,
}

/// The place to which the end of an operation goes.
pub(super) enum OperationEnd {
    /// The event of a join, of the group's object.
    Event(u64),
    /// The result goes to memory of the application.
    Result(ResultMemory),
}

/// Memory of the application, which is there until its operation is over.
#[derive(Clone, Copy)]
pub(super) struct ResultMemory {
    pub(super) at: *mut u8,
    pub(super) len: usize,
}

// SAFETY: the application leaves the memory to the operation, in whichever thread that ends.
unsafe impl Send for ResultMemory {}

/// A group of the endpoint.
struct CarriedGroup {
    id: GroupId,
    members: Members,
    rank: usize,
    is_joined: bool,
}

/// The rank of this endpoint in a group, and the number of members.
#[derive(Clone, Copy)]
pub(super) struct RankPlace {
    pub(super) rank: usize,
    pub(super) members: usize,
}

/// A completion of the application's, or an error.
#[derive(Clone, Copy)]
struct CarriedEntry {
    context: u64,
    failed: Option<Errno>,
}

/// A call of the owner.
enum OwnerCall {
    Begin(TransferCall, TransferMemory),
    Cancel(u64),
}

impl Carrier {
    pub(super) fn new(
        transfers: OwnersTransfers,
        queue: Arc<OwnersCq>,
        events: Option<SharedObject<EqObject>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            transfers,
            queue,
            state: Mutex::new(CarrierState {
                engine: Engine::numbered_from(NEXT_NUMBER.fetch_add(NUMBERS, Ordering::Relaxed)),
                events,
                ..CarrierState::default()
            }),
            work: SharedWork::default(),
        })
    }

    /// Begins its first receives.
    pub(super) fn start(&self) {
        self.carry_out();
    }

    /// The event queue of joins, up to the close.
    pub(super) fn events(&self) -> Option<SharedObject<EqObject>> {
        self.state.lock().events.clone()
    }

    /// Makes progress that needs no end of a message. Within the owner's functions there is none:
    /// one that refuses something for lack of room has none yet. Nor is there any while another
    /// thread calls the owner.
    pub(super) fn drive(&self) {
        if is_within_owner() {
            return;
        }
        let time_passes = || {
            let state = &mut *self.state.lock();
            if !state.is_closed {
                state.time_passes(Instant::now());
            }
        };
        self.work.run_unless_busy(time_passes, || self.call_owner());
    }

    /// Begins a join of these members, of which this endpoint has the address `own`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is no member, or a member is none of the parent. `ENOSPC`: there are no more
    /// numbers of groups, or the owner has no room for the receives of this one: one for the
    /// reports of each other member, and one for the join.
    pub(super) fn join(
        &self,
        number: FiAddr,
        parent: Option<FiAddr>,
        members: Members,
        own: FiAddr,
        (object, context): (u64, u64),
    ) -> Result<(), Errno> {
        {
            let state = &mut *self.state.lock();
            if let Some(parent) = parent {
                let parent = state.groups.get(&parent).filter(|parent| parent.is_joined);
                if !parent.is_some_and(|parent| parent.members.contains_all(&members)) {
                    return Err(Errno::EINVAL);
                }
            }
            let membership = Membership::unnamed(Arc::from(members.all()), own)?;
            let receives = state.messages.receives() + members.all().len();
            if receives > self.transfers.most_receives {
                return Err(Errno::ENOSPC);
            }
            let rank = membership.rank();
            let operation = state.new_operation(context, OperationEnd::Event(object));
            let id = match state.engine.join(operation, membership) {
                Ok(id) => id,
                Err(errno) => {
                    state.operations.remove(&operation);
                    return Err(errno);
                }
            };
            let group = CarriedGroup {
                id,
                members,
                rank,
                is_joined: false,
            };
            state.groups.insert(number, group);
        }
        self.carry_out();
        Ok(())
    }

    /// Leaves a group. Its operations fail, and no event of a join comes any more.
    pub(super) fn leave(&self, number: FiAddr, object: u64) {
        {
            let state = &mut *self.state.lock();
            state.operations.retain(
                |_, operation| !matches!(operation.end, OperationEnd::Event(of) if of == object),
            );
            if let Some(group) = state.groups.remove(&number) {
                state.engine.leave(group.id);
            }
        }
        self.carry_out();
    }

    /// Begins an operation of a group. `describe` has it for this endpoint's place there: the
    /// operation, the bytes that it begins with, and where the result goes.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the endpoint has not joined the group. Those of `describe`; that with which the
    /// group has failed.
    pub(super) fn begin(
        &self,
        group: FiAddr,
        context: u64,
        describe: impl FnOnce(RankPlace, &Members) -> Result<(Collective, Vec<u8>, ResultMemory), Errno>,
    ) -> Result<(), Errno> {
        {
            let state = &mut *self.state.lock();
            let found = state.groups.get(&group).filter(|group| group.is_joined);
            let found = found.ok_or(Errno::EINVAL)?;
            let place = RankPlace {
                rank: found.rank,
                members: found.members.all().len(),
            };
            let (collective, bytes, result) = describe(place, &found.members)?;
            let id = found.id;
            let operation = state.new_operation(context, OperationEnd::Result(result));
            if let Err(errno) = state.engine.begin(operation, id, collective, bytes) {
                state.operations.remove(&operation);
                return Err(errno);
            }
        }
        self.carry_out();
        Ok(())
    }

    /// A message is over: the number of bytes that were received, or an error.
    ///
    /// # Errors
    ///
    /// `ENOENT`: the owner has no such message.
    pub(super) fn end_transfer(
        &self,
        number: u64,
        from: FiAddr,
        result: Result<usize, Errno>,
    ) -> Result<(), Errno> {
        {
            let state = &mut *self.state.lock();
            let ended = state.messages.take_posted(number).ok_or(Errno::ENOENT)?;
            if state.is_closed {
                return Ok(());
            }
            match ended.call.sends {
                true => state.end_send(&ended.call, result.map(drop)),
                false => {
                    let bytes = result.and_then(|len| ended.memory.get(..len).ok_or(Errno::ETRUNC));
                    state.engine.received(number, from, bytes);
                }
            }
        }
        self.carry_out();
        Ok(())
    }

    /// Ends everything: receives are cancelled, and the owner is not called any more. Returns the
    /// memory of messages that it has not reported.
    pub(super) fn close(&self) -> Vec<Box<[u8]>> {
        self.state.lock().is_closed = true;
        self.work.wait();
        let receives = self.state.lock().messages.posted_receives();
        for number in receives {
            self.transfers.cancel(number);
        }
        let closed = CarrierState {
            is_closed: true,
            ..CarrierState::default()
        };
        let state = std::mem::replace(&mut *self.state.lock(), closed);
        state.messages.into_memory()
    }

    /// Calls the owner for all that there is to do, unless another thread does.
    fn carry_out(&self) {
        self.work.run(|| self.call_owner());
    }

    /// Calls the owner for all that there is to do. Returns whether it has taken all entries.
    fn call_owner(&self) -> bool {
        let _within = OwnersFrame::begin();
        while let Some(call) = self.next_call() {
            match call {
                OwnerCall::Begin(call, memory) => {
                    // SAFETY: the memory stays with the message, which is there until its end.
                    let begun = unsafe { self.transfers.begin(&call, memory) };
                    if let Err(error) = begun {
                        self.refuse(&call, error);
                    }
                }
                OwnerCall::Cancel(number) => self.transfers.cancel(number),
            }
        }
        self.report()
    }

    /// The next call of the owner, if there is one.
    fn next_call(&self) -> Option<OwnerCall> {
        let state = &mut *self.state.lock();
        if state.is_closed {
            return None;
        }
        loop {
            if let Some(ReadyMessage { call, memory }) = state.messages.next_ready() {
                return Some(OwnerCall::Begin(call, memory));
            }
            match state.engine.next_action()? {
                Action::Send {
                    message,
                    to,
                    tag,
                    bytes,
                    is_probe,
                } => match state.engine.bytes(&bytes) {
                    None => state.engine.sent(message, Err(Errno::ECANCELED)),
                    Some(bytes) => state.messages.add(
                        TransferCall {
                            number: message,
                            sends: true,
                            peer: to,
                            tag,
                            ignore: 0,
                            is_probe,
                            is_confirmed: is_probe && !state.has_no_delivery,
                        },
                        bytes.into(),
                    ),
                },
                Action::Receive {
                    message,
                    from,
                    tag,
                    ignore,
                    len,
                } => state.messages.add(
                    TransferCall {
                        number: message,
                        sends: false,
                        peer: from,
                        tag,
                        ignore,
                        is_probe: false,
                        is_confirmed: false,
                    },
                    vec![0; len].into(),
                ),
                Action::Cancel { message } => {
                    if state.messages.cancel(message) {
                        return Some(OwnerCall::Cancel(message));
                    }
                }
                Action::End { operation, result } => state.end(operation, result),
            }
        }
    }

    /// The owner has refused a message.
    fn refuse(&self, call: &TransferCall, error: OpError) {
        let state = &mut *self.state.lock();
        match error {
            OpError::Again => state.messages.put_back(call.number),
            OpError::Failed(errno) => {
                if state.messages.take_posted(call.number).is_none() || state.is_closed {
                    return;
                }
                match call.sends {
                    // The owner does not have such messages, so it says nothing of the member.
                    true if call.is_probe && !says_gone(errno) => {
                        state.has_no_delivery = true;
                        state.engine.sent(call.number, Err(Errno::EOPNOTSUPP));
                    }
                    true => state.end_send(call, Err(errno)),
                    false => {
                        tracing::warn!("the owner receives no message of a group: {errno}");
                        state.engine.refused(call.number, errno);
                    }
                }
            }
        }
    }

    /// Writes entries to the owner's queues, as far as they take them. Returns whether they have
    /// taken all.
    fn report(&self) -> bool {
        let events = {
            let state = self.state.lock();
            if state.is_closed {
                return true;
            }
            state.events.clone()
        };
        if let Some(events) = events {
            events.pass_on();
        }
        loop {
            let entry = {
                let state = &mut *self.state.lock();
                state.entries.pop_front().filter(|_| !state.is_closed)
            };
            let Some(entry) = entry else { return true };
            if !self.write(entry) {
                self.state.lock().entries.push_front(entry);
                return false;
            }
        }
    }

    /// Writes an entry. Returns whether the owner has taken it.
    fn write(&self, entry: CarriedEntry) -> bool {
        let CarriedEntry { context, failed } = entry;
        match failed {
            None => self.queue.write(&Completion {
                context,
                flags: Flags::COLLECTIVE,
                ..Completion::BLANK
            }),
            Some(errno) => self.queue.write_error(&fi_cq_err_entry {
                op_context: context as usize as *mut _,
                flags: Flags::COLLECTIVE.bits(),
                err: errno.0,
                prov_errno: number_of(FAILED, 0),
                ..fi_cq_err_entry::default()
            }),
        }
    }
}

impl CarrierState {
    fn time_passes(&mut self, now: Instant) {
        while let Some(&(at, number, errno)) = self.failed_probes.front() {
            if now < at {
                break;
            }
            self.failed_probes.pop_front();
            self.engine.sent(number, Err(errno));
        }
        self.engine.tick(now);
        self.messages.try_again();
    }

    /// A message that was sent is over.
    fn end_send(&mut self, call: &TransferCall, result: Result<(), Errno>) {
        match result {
            Err(errno) if call.is_probe => {
                let counts_at = Instant::now() + PROBE_GRACE;
                self.failed_probes
                    .push_back((counts_at, call.number, errno));
            }
            result => self.engine.sent(call.number, result),
        }
    }

    fn new_operation(&mut self, context: u64, end: OperationEnd) -> u64 {
        let number = self.next_operation;
        self.next_operation += 1;
        let operation = CarriedOperation { context, end };
        self.operations.insert(number, operation);
        number
    }

    /// An operation is over.
    fn end(&mut self, number: u64, result: Result<Outcome, Errno>) {
        // A join whose group was left has none.
        let Some(operation) = self.operations.remove(&number) else {
            return;
        };
        let context = operation.context;
        match (operation.end, result) {
            (OperationEnd::Event(object), Ok(Outcome::Joined(id))) => {
                let joined = self.groups.values_mut().find(|group| group.id == id);
                if let Some(group) = joined {
                    group.is_joined = true;
                }
                if let Some(events) = &self.events {
                    let done = Done {
                        source: object,
                        context,
                        data: 0,
                    };
                    events.keep_done(FI_JOIN_COMPLETE, &done);
                }
            }
            (OperationEnd::Event(object), result) => {
                if let Some(events) = &self.events {
                    events.keep_error(EqError {
                        source: object,
                        context,
                        data: 0,
                        errno: result.err().unwrap_or(Errno::EPROTO),
                        prov_errno: 0,
                        err_data: Box::default(),
                    });
                }
            }
            (OperationEnd::Result(memory), Ok(outcome)) => {
                if let Outcome::Bytes(bytes) = outcome {
                    let len = bytes.len().min(memory.len);
                    // SAFETY: the application keeps the memory until the operation is complete.
                    unsafe { memory.at.copy_from(bytes.as_ptr(), len) };
                }
                let failed = None;
                self.entries.push_back(CarriedEntry { context, failed });
            }
            (OperationEnd::Result(_), Err(errno)) => {
                let failed = Some(errno);
                self.entries.push_back(CarriedEntry { context, failed });
            }
        }
    }
}
