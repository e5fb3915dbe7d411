//! The collective operations of an endpoint.
//!
//! The contract:
//!
//! - `off_coll` is called under the lock of the operations. It does all that it can before the next
//!   call, so that what it does belongs to the operation of the call.
//! - Its messages are tagged ones of the endpoint, with [`RESERVED_TAG`](super::RESERVED_TAG).
//!   Their contexts are numbers.
//! - An operation with a message that fails is over once all its messages are: receives are
//!   cancelled, sends end by themselves. Then the application gets the error, and its buffers.
//! - The lock of the operations comes before that of the domain, and before those of entries.

use std::ffi::c_void;
use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Completion, CqError, Done, EqError, PeerEq};
use ferrofabric_contracts::types::{FiAddr, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::Endpoint;
use ferrofabric_system::locks::Mutex;

use super::RESERVED_TAG;
use super::lent::Record;
use super::offload::Offload;
use super::offload_endpoint::OffloadEndpoint;
use super::operations::{CollectiveOperation, OperationKind, Operations};
use crate::abi::FI_JOIN_COMPLETE;
use crate::av::object::AvObject;
use crate::cq::CqObject;
use crate::cq::collective::TransferHolder;
use crate::eq::{DrivenByEvents, EqObject};
use crate::fid::SharedObject;

/// The words of an error.
const WHY: &str = "a message of the collective operation failed: its group does not go on";

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
    endpoint: Arc<dyn Endpoint>,
    pub(crate) binding: CollectiveBinding,
    pub(crate) state: Mutex<CollectiveState>,
}

/// The state of the operations, which a lock guards.
pub(crate) struct CollectiveState {
    pub(crate) operations: Operations,
    pub(crate) offload: OffloadEndpoint,
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
        let this = Arc::new(Self {
            endpoint,
            binding,
            state: Mutex::new(CollectiveState {
                operations: Operations::default(),
                offload: OffloadEndpoint::open(offload)?,
            }),
        });
        for cq in [&this.binding.tx_cq, &this.binding.rx_cq] {
            let weak = Arc::downgrade(&this);
            (cq.collective.iter()).for_each(|part| part.add(weak.clone()));
        }
        if let Some(eq) = &this.binding.eq {
            let weak = Arc::downgrade(&this);
            eq.add_driven(weak);
        }
        Ok(this)
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

    /// Bits of the tags by which members join by a set, the same at each of them: so joins of
    /// different sets do not mix. `off_coll` leaves them at 0.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: an address is being resolved.
    pub(crate) fn name_bits(&self, members: &[FiAddr]) -> Result<u64, Errno> {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for &member in members {
            let found = self.binding.av.av.lookup(member);
            for byte in found.map_err(|error| error.errno())?.to_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
        Ok((hash ^ (hash >> 16) ^ (hash >> 32) ^ (hash >> 48)) & 0xffff)
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
        let number = state.operations.begin(operation);
        let CollectiveState {
            operations,
            offload,
        } = state;
        if let Err(errno) = call(offload, operations, number as usize as *mut c_void) {
            operations.end(number);
            return Err(errno);
        }
        self.go_on(state, number);
        Ok(())
    }

    /// Has `off_coll` go on with an operation, and carries out its calls.
    pub(crate) fn go_on(&self, state: &mut CollectiveState, number: u64) {
        for record in state.offload.drive() {
            match record {
                Record::Complete(number) => self.complete(state, number),
                Record::Transfer(mut request) => {
                    let Some(operation) = state.operations.under_way.get(&number) else {
                        continue;
                    };
                    request.tag |= RESERVED_TAG | operation.tag_bits;
                    let Some(transfer) = state.operations.add_transfer(number, request) else {
                        continue;
                    };
                    if !state.operations.waiting.is_empty() || !self.post(state, transfer) {
                        state.operations.waiting.push_back(transfer);
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
                    flags: Flags::COMPLETION | Flags::RMA | Flags::COLLECTIVE,
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
                    self.fail(state, operation, errno);
                }
                true
            }
        }
    }

    /// An operation fails, with all others of its group.
    fn fail(&self, state: &mut CollectiveState, operation: u64, errno: Errno) {
        for operation in state.operations.fail(operation, errno) {
            for number in state.operations.transfers_of(operation) {
                let operations = &mut state.operations;
                let before = operations.waiting.len();
                operations.waiting.retain(|&waiting| waiting != number);
                if operations.waiting.len() < before {
                    operations.end_transfer(number);
                } else if operations
                    .transfers
                    .get(&number)
                    .is_some_and(|t| !t.request.sends)
                {
                    // A receive that has matched ends by itself.
                    let _ = self.endpoint.cancel(number);
                }
            }
            self.end_failed(state, operation);
        }
    }

    /// Reports an operation that has failed, once all its messages are over.
    fn end_failed(&self, state: &mut CollectiveState, number: u64) {
        let Some(operation) = state.operations.under_way.get(&number) else {
            return;
        };
        let Some(errno) = operation.failed.filter(|_| operation.transfers == 0) else {
            return;
        };
        let Some(operation) = state.operations.end(number) else {
            return;
        };
        match operation.kind {
            OperationKind::Join { fid } => {
                if let Some(eq) = &self.binding.eq {
                    eq.queue().write_error(EqError {
                        source: fid,
                        context: operation.context,
                        data: 0,
                        errno,
                        prov_errno: 0,
                        err_data: Box::default(),
                    });
                }
            }
            OperationKind::Collective { .. } => {
                let cq = &self.binding.tx_cq;
                let error = CqError {
                    completion: completion_of(operation.context),
                    olen: 0,
                    errno,
                    prov_errno: 0,
                    why: WHY,
                    sender: None,
                };
                (cq.collective.iter()).for_each(|part| part.fail(&*cq.cq, error.clone()));
            }
        }
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
                if let Some(eq) = &self.binding.eq {
                    let done = Done {
                        source: fid,
                        context: operation.context,
                        data: 0,
                    };
                    eq.queue().write_done(FI_JOIN_COMPLETE, &done);
                }
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

fn completion_of(context: u64) -> Completion {
    Completion {
        context,
        flags: Flags::COLLECTIVE,
        ..Completion::BLANK
    }
}

impl TransferHolder for Collectives {
    fn end_transfer(&self, number: u64, result: Result<(), Errno>) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some((number, item)) = state.operations.end_transfer(number) else {
            return false;
        };
        let operation = state.operations.under_way.get(&number);
        match (operation.map(|operation| operation.failed), result) {
            (None, _) => {}
            (Some(Some(_)), _) => self.end_failed(state, number),
            (_, Err(errno)) => self.fail(state, number, errno),
            (_, Ok(())) => {
                state.offload.complete(item);
                self.go_on(state, number);
            }
        }
        true
    }

    fn begin_waiting(&self) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        while let Some(number) = state.operations.waiting.pop_front() {
            if !self.post(state, number) {
                state.operations.waiting.push_front(number);
                return;
            }
        }
    }
}

impl DrivenByEvents for Collectives {
    fn drive(&self) {
        for cq in [&self.binding.tx_cq, &self.binding.rx_cq] {
            if let Some(part) = &cq.collective {
                // The queue has its error for the application.
                let _ = part.drive(&*cq.cq);
            }
        }
    }
}
