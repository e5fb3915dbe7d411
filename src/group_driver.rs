//! Carries out the messages of an endpoint's groups (docs/adr/0073, docs/adr/0094).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrofabric_collectives::{
    Carrier, Collective, Driver, Engine, GroupId, Membership, Message, MessageMemory, Outcome,
    Reports, carry_out,
};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::owning::{Buffer, OwnedCompletion, OwningEndpoint};

use crate::group::Group;
use crate::operation::{CompletedOperation, FetchedElements};
use crate::operation_error::OperationError;
use crate::operation_id::{CollectiveId, JoinId};

pub(crate) use ferrofabric_collectives::RESERVED_TAG;

/// The bit of an endpoint's token that those of collectives' messages have.
const OWN_TOKEN: u64 = 1 << 63;

/// Why an operation of a group has failed.
const FAILED: &str = "a member is gone, has left, or has begun another operation: its group does \
                      not go on";

/// The groups of an endpoint, and their operations.
pub(crate) struct GroupDriver {
    driver: Driver<MessageBuffer, EndedOperations>,
}

/// Operations that are over, for the application.
struct EndedOperations {
    /// The endpoint's number among those of the process, which its groups have, too.
    endpoint: u64,
    ended: VecDeque<CompletedOperation>,
}

/// An operation that is not over. A join has the members.
enum PendingOperation {
    Join(JoinId, Membership),
    Collective(CollectiveId),
}

impl Reports for EndedOperations {
    type Pending = PendingOperation;

    fn end(&mut self, pending: PendingOperation, result: Result<Outcome, Errno>) {
        self.ended.push_back(match (pending, result) {
            (PendingOperation::Join(join, members), Ok(Outcome::Joined(id))) => {
                CompletedOperation::Joined(join, Group::new(self.endpoint, id, &members))
            }
            (PendingOperation::Collective(id), Ok(Outcome::Bytes(bytes))) => {
                CompletedOperation::Collective(id, FetchedElements::of_collective(bytes))
            }
            (PendingOperation::Join(join, _), result) => {
                let errno = result.err().unwrap_or(Errno::EPROTO);
                CompletedOperation::Failed(OperationError::of_join(Some(join), errno, FAILED))
            }
            (PendingOperation::Collective(id), result) => {
                let errno = result.err().unwrap_or(Errno::EPROTO);
                CompletedOperation::Failed(OperationError::of_collective(Some(id), errno, FAILED))
            }
        });
    }
}

/// The memory of a message.
struct MessageBuffer(Buffer);

impl MessageMemory for MessageBuffer {
    fn allocate(len: usize) -> Result<Self, Errno> {
        let buffer = Buffer::new(len).map_err(|error| error.errno())?;
        Ok(Self(buffer))
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// The endpoint, as it carries out the messages of its groups.
struct EndpointCarrier<'a> {
    inner: &'a mut OwningEndpoint,
    driver: &'a mut Driver<MessageBuffer, EndedOperations>,
}

impl Carrier for EndpointCarrier<'_> {
    type Memory = MessageBuffer;
    type Reports = EndedOperations;

    fn with_driver<T>(
        &mut self,
        call: impl FnOnce(&mut Driver<MessageBuffer, EndedOperations>) -> T,
    ) -> T {
        call(self.driver)
    }

    fn post(
        &mut self,
        message: Message<MessageBuffer>,
    ) -> Result<(), (OpError, Message<MessageBuffer>)> {
        let Message {
            number,
            sends,
            peer,
            tag,
            ignore,
            is_probe,
            len,
            memory: MessageBuffer(buffer),
        } = message;
        let (kind, desc, context) = (MsgKind::Tagged, MrDesc::NONE, 0);
        let posted = match sends {
            true => {
                let flags = match is_probe {
                    true => Flags::DELIVERY_COMPLETE,
                    false => Flags::empty(),
                };
                let op = SendOp {
                    kind,
                    dest: peer,
                    tag,
                    data: 0,
                    desc,
                    context,
                    flags,
                };
                self.inner.post_send(buffer, len, OWN_TOKEN | number, op)
            }
            false => {
                let op = RecvOp {
                    kind,
                    src: peer,
                    tag,
                    ignore,
                    desc,
                    context,
                    flags: Flags::empty(),
                };
                self.inner.post_recv(buffer, OWN_TOKEN | number, op)
            }
        };
        posted.map_err(|(error, buffer)| {
            if let (false, OpError::Failed(errno)) = (sends, error) {
                tracing::warn!("a group gets no messages here: {errno}");
            }
            let refused = Message {
                number,
                sends,
                peer,
                tag,
                ignore,
                is_probe,
                len,
                memory: MessageBuffer(buffer),
            };
            (error, refused)
        })
    }

    fn cancel(&mut self, number: u64) {
        // One that has matched ends by itself.
        let _ = self.inner.cancel(OWN_TOKEN | number);
    }
}

impl GroupDriver {
    pub(crate) fn new(inner: &mut OwningEndpoint) -> Self {
        static ENDPOINTS: AtomicU64 = AtomicU64::new(0);
        let reports = EndedOperations {
            endpoint: ENDPOINTS.fetch_add(1, Ordering::Relaxed),
            ended: VecDeque::new(),
        };
        let mut this = Self {
            driver: Driver::new(Box::new(Engine::new()), reports, Duration::ZERO),
        };
        this.carry_out(inner);
        this
    }

    /// Whether an operation has begun and is not over.
    pub(crate) fn is_under_way(&self, operation: u64) -> bool {
        self.driver.is_under_way(operation)
    }

    /// Whether an operation is over that the application has not got.
    pub(crate) fn has_ended(&self) -> bool {
        !self.driver.reports.ended.is_empty()
    }

    /// Whether there was no room for a message.
    pub(crate) fn has_waiting_sends(&self) -> bool {
        self.driver.has_waiting()
    }

    /// The next operation that is over.
    pub(crate) fn take_ended(&mut self) -> Option<CompletedOperation> {
        self.driver.reports.ended.pop_front()
    }

    /// Whether an operation of the endpoint is a message of a collective one.
    pub(crate) fn is_own(done: &OwnedCompletion) -> bool {
        done.token & OWN_TOKEN != 0
    }

    /// A message is over.
    pub(crate) fn take(&mut self, inner: &mut OwningEndpoint, done: OwnedCompletion) {
        let (message, driver) = (done.token & !OWN_TOKEN, &mut self.driver);
        match &done.outcome {
            Ok(completion) if completion.flags.contains(Flags::RECV) => {
                let bytes = done.buffer.get(..completion.len);
                let bytes = bytes.ok_or(Errno::ETRUNC);
                driver.received(message, completion.src, bytes);
            }
            Ok(_) => driver.sent(message, Ok(())),
            // A receive may report the message of an unknown source as an error.
            Err(failed) if failed.completion.flags.contains(Flags::RECV) => {
                let unknown = failed.errno == Errno::EADDRNOTAVAIL;
                let bytes = done.buffer.get(..failed.completion.len);
                let bytes = bytes.filter(|_| unknown).ok_or(failed.errno);
                let source = match unknown {
                    true => FiAddr::UNSPEC,
                    false => failed.completion.src,
                };
                driver.received(message, source, bytes);
            }
            Err(failed) => driver.sent(message, Err(failed.errno)),
        }
        driver.keep_spare(MessageBuffer(done.buffer));
        self.carry_out(inner);
    }

    /// Does what time has made due. The endpoint has no completions left.
    pub(crate) fn tick(&mut self, inner: &mut OwningEndpoint) {
        self.driver.tick(Instant::now());
        self.carry_out(inner);
    }

    /// The time of the next [`tick`](Self::tick), if no completion comes before.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        self.driver.next_tick()
    }

    fn carry_out(&mut self, inner: &mut OwningEndpoint) {
        let driver = &mut self.driver;
        carry_out(&mut EndpointCarrier { inner, driver });
    }

    /// Begins a join of these members.
    ///
    /// # Errors
    ///
    /// `EINVAL`: this endpoint is no member, or an endpoint is one twice. `EAGAIN`: an address is
    /// being resolved. `ENOSPC`: there are no more numbers of groups.
    pub(crate) fn join(
        &mut self,
        inner: &mut OwningEndpoint,
        operation: u64,
        members: &[FiAddr],
    ) -> Result<(), Errno> {
        let names = members.iter().map(|&member| {
            let name = inner.av().lookup(member).map_err(|error| error.errno())?;
            Ok(name.to_bytes())
        });
        let names = names.collect::<Result<Vec<_>, Errno>>()?;
        let members = Membership::new(Arc::from(members), &names, &inner.name().to_bytes())?;
        let pending = PendingOperation::Join(JoinId(operation), members.clone());
        self.driver.begin(operation, pending, |planner| {
            planner.join(operation, members)
        })?;
        self.carry_out(inner);
        Ok(())
    }

    /// Begins an operation of a group.
    pub(crate) fn begin(
        &mut self,
        inner: &mut OwningEndpoint,
        operation: u64,
        group: &Group,
        collective: Collective,
        bytes: Vec<u8>,
    ) -> Result<(), Errno> {
        let id = self.id_of(group)?;
        let pending = PendingOperation::Collective(CollectiveId(operation));
        self.driver.begin(operation, pending, |planner| {
            planner.begin(operation, id, collective, bytes)
        })?;
        self.carry_out(inner);
        Ok(())
    }

    pub(crate) fn leave(&mut self, inner: &mut OwningEndpoint, group: &Group) -> Result<(), Errno> {
        let id = self.id_of(group)?;
        self.driver.planner().leave(id);
        self.carry_out(inner);
        Ok(())
    }

    fn id_of(&self, group: &Group) -> Result<GroupId, Errno> {
        let endpoint = self.driver.reports.endpoint;
        group.id_at(endpoint).ok_or(Errno::EINVAL)
    }
}
