//! The collective operations of an endpoint.
//!
//! The contract:
//!
//! - `off_coll` is called under the lock of the operations. It does all that it can before the next
//!   call, so that what it does belongs to the operation of the call.
//! - Its messages are tagged ones of the endpoint, with [`RESERVED_TAG`](super::RESERVED_TAG).
//!   Their contexts are numbers.
//! - An operation fails with its first message that fails ([`failures`](super::failures)).
//! - The lock of the operations comes before that of the domain, and before those of entries.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::Endpoint;
use ferrofabric_system::locks::Mutex;
use ferrofabric_system::wait::WaitFd;

use super::RESERVED_TAG;
use super::lent::{Record, TransferRequest};
use super::offload::Offload;
use super::offload_endpoint::OffloadEndpoint;
use super::operations::{CollectiveOperation, JoinEnd, OperationKind, Operations, new_number};
use super::probes::{ProbedPeer, Probes};
use super::tags::{PROBE, group_number};
use super::timer::CallTimer;
use super::waiting::Room;
use crate::av::object::AvObject;
use crate::cq::CqObject;
use crate::cq::collective::TransferHolder;
use crate::eq::{DrivenByEvents, EqObject};
use crate::fid::SharedObject;
use crate::uses::{UsableObject, Uses};

/// The time after which a message is posted again for which there was no room: nothing wakes a
/// sleeper when there is.
const REPOST_AFTER: Duration = Duration::from_millis(1);

/// The objects that an endpoint with collectives is bound to.
pub(crate) struct CollectiveBinding {
    pub(crate) av: SharedObject<AvObject>,
    pub(crate) tx_cq: SharedObject<CqObject>,
    pub(crate) rx_cq: SharedObject<CqObject>,
    pub(crate) eq: Option<SharedObject<EqObject>>,
}

/// The collective operations of an endpoint.
pub(crate) struct Collectives {
    // Dropped first: no message comes for the operations after that.
    pub(super) endpoint: Arc<dyn Endpoint>,
    pub(crate) binding: CollectiveBinding,
    pub(crate) state: Mutex<CollectiveState>,
    /// Those by threads that read its queues.
    uses: Arc<Uses>,
}

/// The state of the operations, which a lock guards.
pub(crate) struct CollectiveState {
    pub(crate) operations: Operations,
    probes: Probes,
    timer: CallTimer,
    pub(crate) offload: OffloadEndpoint,
}

impl CollectiveState {
    /// When the endpoint needs a call though nothing comes.
    fn next_call(&self) -> Option<Instant> {
        let repost = (!self.operations.waiting.is_empty()).then(|| Instant::now() + REPOST_AFTER);
        self.probes.next().into_iter().chain(repost).min()
    }

    /// Has sleepers wake up for that call.
    pub(super) fn set_timer(&mut self) {
        if self.timer.is_there() {
            self.timer.set(self.next_call());
        }
    }
}

impl Collectives {
    /// Opens the collective operations of an endpoint that has just been enabled.
    ///
    /// # Errors
    ///
    /// `ENOSYS`: the host has no `off_coll`; or its own error.
    pub(crate) fn open(
        endpoint: Arc<dyn Endpoint>,
        binding: CollectiveBinding,
    ) -> Result<Arc<Self>, Errno> {
        let offload = Offload::of_host().ok_or(Errno::ENOSYS)?;
        let own = OffloadEndpoint::open(offload, &binding.av.av, endpoint.name())?;
        let this = Arc::new(Self {
            endpoint,
            binding,
            state: Mutex::new(CollectiveState {
                operations: Operations::default(),
                probes: Probes::default(),
                timer: CallTimer::default(),
                offload: own,
            }),
            uses: Uses::new(),
        });
        for cq in [&this.binding.tx_cq, &this.binding.rx_cq] {
            let weak = Arc::downgrade(&this);
            (cq.collective.iter())
                .for_each(|part| part.add(UsableObject::new(weak.clone(), this.uses.clone())));
        }
        this.await_probe(&mut this.state.lock());
        if let Some(eq) = &this.binding.eq {
            let weak = Arc::downgrade(&this);
            eq.add_driven(UsableObject::new(weak, this.uses.clone()));
        }
        Ok(this)
    }

    /// The endpoint closes: waits until no thread drives it.
    pub(crate) fn close(&self) {
        self.uses.close();
        let (tx_cq, rx_cq) = (&self.binding.tx_cq, &self.binding.rx_cq);
        if let Some(eq) = &self.binding.eq {
            eq.unwatch(&[&*tx_cq.cq, &*rx_cq.cq]);
        }
        if !self.has_one_queue() {
            for (cq, other) in [(tx_cq, rx_cq), (rx_cq, tx_cq)] {
                (cq.collective.iter()).for_each(|part| part.unwatch(&*other.cq));
            }
        }
    }

    /// Whether one queue has the completions of sends and of receives.
    fn has_one_queue(&self) -> bool {
        std::ptr::eq(&*self.binding.tx_cq, &*self.binding.rx_cq)
    }

    /// The rank of this endpoint among the members of a set, and its address there.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: an address is being resolved. `EINVAL`: it is no member.
    pub(crate) fn own_address(&self, members: &[FiAddr]) -> Result<FiAddr, Errno> {
        let name = self.endpoint.name();
        for &member in members {
            let found = self.binding.av.av.lookup(member);
            if found.map_err(|error| error.errno())? == name {
                return Ok(member);
            }
        }
        Err(Errno::EINVAL)
    }

    /// A hash of the names of members, the same at each of them: so joins of different sets do not
    /// mix.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: an address is being resolved.
    pub(crate) fn hash_of_names(&self, members: &[FiAddr]) -> Result<u64, Errno> {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for &member in members {
            let found = self.binding.av.av.lookup(member);
            for byte in found.map_err(|error| error.errno())?.to_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        Ok(hash)
    }

    /// Begins an operation by a call of `off_coll`, which gets the context of the operation. The
    /// group is one of the endpoint's.
    ///
    /// # Errors
    ///
    /// The call's. Nothing has begun then.
    pub(crate) fn begin(
        &self,
        state: &mut CollectiveState,
        operation: CollectiveOperation,
        call: impl FnOnce(&OffloadEndpoint, &mut Operations, *mut c_void) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let joined = operation.is_join().then_some(operation.group);
        let number = state.operations.begin(operation);
        let CollectiveState {
            operations,
            offload,
            ..
        } = state;
        if let Err(errno) = call(offload, operations, number as usize as *mut c_void) {
            operations.end(number);
            return Err(errno);
        }
        let group = joined.and_then(|group| Some((group, operations.groups.get(&group)?)));
        if let Some((number, group)) = group {
            let reports = group.name.reports();
            self.await_failure(state, number, reports);
        }
        if state.timer.is_there() {
            state.probes.begin(number);
        }
        self.go_on(state, number);
        state.set_timer();
        Ok(())
    }

    /// Has `off_coll` go on with an operation, and carries out its calls, up to one that fails.
    pub(crate) fn go_on(&self, state: &mut CollectiveState, number: u64) {
        for record in state.offload.drive() {
            let operation = state.operations.under_way.get(&number);
            let Some(operation) = operation.filter(|operation| operation.failed.is_none()) else {
                continue;
            };
            match record {
                Record::Complete(number) => self.complete(state, number),
                Record::Transfer(mut request) => {
                    let (group, is_join) = (operation.group, operation.is_join());
                    let in_tag = group_number(request.tag);
                    request.tag |= RESERVED_TAG | operation.tag_bits;
                    let of = state.operations.groups.get_mut(&group);
                    if let Some(unnamed) = of.filter(|of| !is_join && of.number.is_none()) {
                        unnamed.number = Some(in_tag);
                        let reports = (unnamed.name.failed_group(in_tag), 0);
                        self.await_failure(state, group, reports);
                    }
                    let room = request.room();
                    let Some(transfer) = state.operations.add_transfer(number, request) else {
                        continue;
                    };
                    if state.operations.waiting.has(room) || !self.post(state, transfer) {
                        state.operations.waiting.push(room, transfer);
                    }
                }
            }
        }
    }

    /// Posts a message. Returns false if there is no room for it now.
    fn post(&self, state: &mut CollectiveState, number: u64) -> bool {
        let Some(transfer) = state.operations.transfers.get(&number) else {
            return true;
        };
        let request = &transfer.request;
        let (kind, desc, iov) = (MsgKind::Tagged, MrDesc::NONE, [request.buf]);
        // A send without it may complete though the peer is gone.
        let level = match request.tag == PROBE {
            true => Flags::DELIVERY_COMPLETE,
            false => Flags::empty(),
        };
        let posted = match request.sends {
            // SAFETY: `off_coll` keeps the buffer until it has the report, which it gets when the
            // message is over. An operation that fails ends after its messages.
            true => unsafe {
                let op = SendOp {
                    kind,
                    dest: request.peer,
                    tag: request.tag,
                    data: 0,
                    desc,
                    context: number,
                    flags: Flags::COMPLETION | Flags::RMA | Flags::COLLECTIVE | level,
                };
                self.endpoint.send(&op, &iov)
            },
            // SAFETY: as above.
            false => unsafe {
                let op = RecvOp {
                    kind,
                    src: request.peer,
                    tag: request.tag,
                    ignore: 0,
                    desc,
                    context: number,
                    flags: Flags::COLLECTIVE,
                };
                self.endpoint.recv(&op, &iov)
            },
        };
        match posted {
            Ok(()) => true,
            Err(OpError::Again) => false,
            Err(OpError::Failed(errno)) => {
                if let Some((operation, _)) = state.operations.end_transfer(number) {
                    match state.probes.under_way.remove(&number) {
                        Some(probed) => self.fail_probe(state, probed, errno),
                        None => self.fail(state, operation, errno),
                    }
                }
                true
            }
        }
    }

    /// Posts the messages for which there was no room, and those that are due.
    fn post_waiting(&self, state: &mut CollectiveState) {
        for room in state.operations.waiting.rooms() {
            while let Some(number) = state.operations.waiting.pop(room) {
                if !self.post(state, number) {
                    state.operations.waiting.put_back(room, number);
                    break;
                }
            }
        }
        self.probe(state);
    }

    /// Sends an empty message of no operation. `probes`: it is a probe of this one.
    pub(super) fn send_lone_message(
        &self,
        state: &mut CollectiveState,
        peer: FiAddr,
        tag: u64,
        probes: Option<ProbedPeer>,
    ) {
        let request = TransferRequest {
            sends: true,
            buf: IoBuf::EMPTY,
            peer,
            tag,
            item: std::ptr::null_mut(),
        };
        let room = request.room();
        let number = state.operations.add_lone_message(request);
        if let Some(probed) = probes {
            state.probes.under_way.insert(number, probed);
        }
        if !self.post(state, number) {
            state.operations.waiting.push(room, number);
        }
    }

    /// Probes the peers for whose messages operations have waited for a while. A message that waits
    /// for room fails as a probe does.
    fn probe(&self, state: &mut CollectiveState) {
        for (operation, peers) in state.probes.take_due(&state.operations) {
            for peer in peers {
                if state.operations.waiting.has(Room { peer, sends: true }) {
                    continue;
                }
                let probed = ProbedPeer { operation, peer };
                self.send_lone_message(state, peer, PROBE, Some(probed));
            }
        }
    }

    fn fail_probe(&self, state: &mut CollectiveState, probed: ProbedPeer, errno: Errno) {
        let receives = self.binding.rx_cq.collective.as_ref();
        let begun = receives.map_or(0, |receives| receives.begun_drives());
        state.probes.fail(probed, errno, begun);
    }

    /// Fails the operations that wait for messages of peers that are gone.
    fn take_failed_probes(&self, state: &mut CollectiveState) {
        let receives = self.binding.rx_cq.collective.as_ref();
        let drained = receives.map_or(u64::MAX, |receives| receives.drained_drives());
        for (probed, errno) in state.probes.take_failed(drained) {
            if state.operations.awaits(probed.operation, probed.peer) {
                self.fail(state, probed.operation, errno);
            }
        }
    }

    /// Receives a probe of a peer.
    fn await_probe(&self, state: &mut CollectiveState) {
        let number = self.receive_report(PROBE, 0);
        state.operations.probe = number;
    }

    /// Receives an empty message of no operation. Returns its number.
    pub(super) fn receive_report(&self, tag: u64, ignore: u64) -> u64 {
        let number = new_number();
        let op = RecvOp {
            kind: MsgKind::Tagged,
            src: FiAddr::UNSPEC,
            tag,
            ignore,
            desc: MrDesc::NONE,
            context: number,
            flags: Flags::COLLECTIVE,
        };
        // SAFETY: there is no buffer.
        if let Err(error) = unsafe { self.endpoint.recv(&op, &[IoBuf::EMPTY]) } {
            let errno = error.errno();
            tracing::warn!("failures of collectives at other members go unnoticed: {errno}");
        }
        number
    }

    /// `off_coll` has completed an operation.
    fn complete(&self, state: &mut CollectiveState, number: u64) {
        let Some(operation) = state.operations.end(number) else {
            return;
        };
        match operation.kind {
            OperationKind::Join { fid } => {
                if let Some(group) = state.operations.groups.get_mut(&operation.group) {
                    group.is_joined = true;
                }
                let context = operation.context;
                self.complete_join(JoinEnd { fid, context });
            }
            OperationKind::Collective { reports, bounce } => {
                if let Some(bounce) = bounce {
                    bounce.finish();
                }
                let cq = &self.binding.tx_cq;
                if let (true, Some(part)) = (reports, &cq.collective) {
                    part.complete(&*cq.cq, completion_of(operation.context));
                }
            }
        }
    }
}

pub(super) fn completion_of(context: u64) -> Completion {
    Completion {
        context,
        flags: Flags::COLLECTIVE,
        ..Completion::BLANK
    }
}

impl TransferHolder for Collectives {
    fn drive_queues(&self) {
        if !self.has_one_queue() {
            self.drive();
        }
    }

    fn end_transfer(&self, number: u64, result: Result<u64, Errno>) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if number == state.operations.probe {
            if result.is_ok() {
                self.await_probe(state);
            }
            return true;
        }
        if let Some(probed) = state.probes.under_way.remove(&number) {
            state.operations.end_transfer(number);
            if let Err(errno) = result {
                self.fail_probe(state, probed, errno);
            }
            return true;
        }
        if let Some(group) = state.operations.alarms.remove(&number) {
            self.take_report(state, group, result);
            return true;
        }
        if let Some(group_number) = state.operations.discards.remove(&number) {
            // An error is that of a message that is longer than the buffer.
            if result != Err(Errno::ECANCELED) {
                self.discard_next(state, group_number);
            }
            return true;
        }
        let Some((number, item)) = state.operations.end_transfer(number) else {
            return false;
        };
        let operation = state.operations.under_way.get(&number);
        match (operation.map(|operation| operation.failed), result) {
            (None, _) => {}
            (Some(Some(_)), _) => self.end_failed(state, number),
            (_, Err(errno)) => self.fail(state, number, errno),
            (_, Ok(_)) => {
                state.offload.complete(item);
                self.go_on(state, number);
            }
        }
        true
    }

    fn begin_waiting(&self) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        self.begin_joins(state);
        self.take_failed_probes(state);
        self.post_waiting(state);
        state.set_timer();
    }

    fn time_to_next(&self) -> Option<Duration> {
        let at = self.state.lock().next_call()?;
        Some(at.saturating_duration_since(Instant::now()))
    }

    fn watch(&self, descriptor: &WaitFd) -> Result<(), OpError> {
        {
            let state = &mut *self.state.lock();
            let timer = state.timer.descriptor().map_err(OpError::Failed)?;
            let joined = descriptor.add(timer);
            joined.map_err(|error| OpError::Failed(error.errno()))?;
            state.set_timer();
        }
        self.binding.tx_cq.cq.watch(descriptor)?;
        match self.has_one_queue() {
            true => Ok(()),
            false => self.binding.rx_cq.cq.watch(descriptor),
        }
    }

    fn imported_events(&self) -> Option<SharedObject<EqObject>> {
        let eq = self.binding.eq.as_ref();
        eq.filter(|eq| eq.is_imported()).cloned()
    }
}

impl DrivenByEvents for Collectives {
    fn drive(&self) {
        for cq in [&self.binding.tx_cq, &self.binding.rx_cq] {
            if let Some(part) = &cq.collective {
                // The queue has its error for the application.
                let _ = part.drive_for_others(&*cq.cq);
            }
        }
    }

    fn watch(&self, descriptor: &WaitFd) -> Result<(), OpError> {
        TransferHolder::watch(self, descriptor)
    }
}
