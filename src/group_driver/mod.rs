//! Carries out the messages of an endpoint's groups (docs/adr/0073).

mod messages;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrofabric_collectives::{Action, Collective, Engine, GroupId, Membership, Outcome};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::owning::{OwnedCompletion, OwningEndpoint};
use rustc_hash::FxHashMap;

use crate::group::Group;
use crate::operation::{CompletedOperation, FetchedElements};
use crate::operation_error::OperationError;
use crate::operation_id::{CollectiveId, JoinId};
use messages::{Messages, OWN_TOKEN};

pub(crate) use ferrofabric_collectives::RESERVED_TAG;

/// Why an operation of a group has failed.
const FAILED: &str = "a member is gone, has left, or has begun another operation: its group does \
                      not go on";

/// The time after which a send for which there was no room is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// The groups of an endpoint, and their operations.
pub(crate) struct GroupDriver {
    /// The endpoint's number among those of the process, which its groups have, too.
    endpoint: u64,
    engine: Engine,
    messages: Messages,
    /// Members of the groups that are being joined, by the number of the join.
    joining: FxHashMap<u64, Membership>,
    ended: VecDeque<CompletedOperation>,
}

impl GroupDriver {
    pub(crate) fn new(inner: &mut OwningEndpoint) -> Self {
        static ENDPOINTS: AtomicU64 = AtomicU64::new(0);
        let mut this = Self {
            endpoint: ENDPOINTS.fetch_add(1, Ordering::Relaxed),
            engine: Engine::new(),
            messages: Messages::default(),
            joining: FxHashMap::default(),
            ended: VecDeque::new(),
        };
        this.carry_out(inner);
        this
    }

    /// Whether an operation has begun and is not over.
    pub(crate) fn is_under_way(&self, operation: u64) -> bool {
        self.engine.is_under_way(operation)
    }

    /// Whether an operation is over that the application has not got.
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Whether there was no room for a message.
    pub(crate) fn has_waiting_sends(&self) -> bool {
        self.messages.are_waiting()
    }

    /// The next operation that is over.
    pub(crate) fn take_ended(&mut self) -> Option<CompletedOperation> {
        self.ended.pop_front()
    }

    /// Whether an operation of the endpoint is a message of a collective one.
    pub(crate) fn is_own(done: &OwnedCompletion) -> bool {
        done.token & OWN_TOKEN != 0
    }

    /// A message is over.
    pub(crate) fn take(&mut self, inner: &mut OwningEndpoint, done: OwnedCompletion) {
        let message = done.token & !OWN_TOKEN;
        match &done.outcome {
            Ok(completion) if completion.flags.contains(Flags::RECV) => {
                let bytes = done.buffer.get(..completion.len);
                let bytes = bytes.ok_or(Errno::ETRUNC);
                self.engine.received(message, completion.src, bytes);
            }
            Ok(_) => self.engine.sent(message, Ok(())),
            // A receive may report the message of an unknown source as an error.
            Err(failed) if failed.completion.flags.contains(Flags::RECV) => {
                let unknown = failed.errno == Errno::EADDRNOTAVAIL;
                let bytes = done.buffer.get(..failed.completion.len);
                let bytes = bytes.filter(|_| unknown).ok_or(failed.errno);
                let source = match unknown {
                    true => FiAddr::UNSPEC,
                    false => failed.completion.src,
                };
                self.engine.received(message, source, bytes);
            }
            Err(failed) => self.engine.sent(message, Err(failed.errno)),
        }
        self.messages.keep_spare(done.buffer);
        self.carry_out(inner);
    }

    /// Does what time has made due. The endpoint has no completions left.
    pub(crate) fn tick(&mut self, inner: &mut OwningEndpoint) {
        self.engine.tick(Instant::now());
        self.messages.post_waiting(inner, &mut self.engine);
        self.carry_out(inner);
    }

    /// The time of the next [`tick`](Self::tick), if no completion comes before.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        match self.has_waiting_sends() {
            // No completion says that there is room.
            true => Some(Instant::now() + RETRY_DELAY),
            false => self.engine.next_tick(),
        }
    }

    fn carry_out(&mut self, inner: &mut OwningEndpoint) {
        while let Some(action) = self.engine.next_action() {
            match action {
                Action::Send {
                    message,
                    to,
                    tag,
                    bytes,
                    is_probe,
                } => {
                    let Some(bytes) = self.engine.bytes(&bytes) else {
                        self.engine.sent(message, Err(Errno::ECANCELED));
                        continue;
                    };
                    let sent = self
                        .messages
                        .send(inner, (message, to, tag), bytes, is_probe);
                    if let Err(errno) = sent {
                        self.engine.sent(message, Err(errno));
                    }
                }
                Action::Receive {
                    message,
                    from,
                    tag,
                    ignore,
                    len,
                } => {
                    let posted = self
                        .messages
                        .receive(inner, (message, from), (tag, ignore), len);
                    if let Err(errno) = posted {
                        tracing::warn!("a group gets no messages here: {errno}");
                        self.engine.refused(message, errno);
                    }
                }
                Action::Cancel { message } => {
                    // One that has matched ends by itself.
                    let _ = inner.cancel(OWN_TOKEN | message);
                }
                Action::End { operation, result } => self.end(operation, result),
            }
        }
    }

    fn end(&mut self, operation: u64, result: Result<Outcome, Errno>) {
        let joining = self.joining.remove(&operation);
        let completed = match (result, joining) {
            (Ok(Outcome::Joined(id)), Some(members)) => {
                let group = Group::new(self.endpoint, id, &members);
                CompletedOperation::Joined(JoinId(operation), group)
            }
            (Ok(Outcome::Bytes(bytes)), _) => CompletedOperation::Collective(
                CollectiveId(operation),
                FetchedElements::of_collective(bytes),
            ),
            (Ok(_), None) => return,
            (Err(errno), Some(_)) => {
                let id = Some(JoinId(operation));
                CompletedOperation::Failed(OperationError::of_join(id, errno, FAILED))
            }
            (Err(errno), None) => {
                let id = Some(CollectiveId(operation));
                CompletedOperation::Failed(OperationError::of_collective(id, errno, FAILED))
            }
        };
        self.ended.push_back(completed);
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
        self.engine.join(operation, members.clone())?;
        self.joining.insert(operation, members);
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
        self.engine.begin(operation, id, collective, bytes)?;
        self.carry_out(inner);
        Ok(())
    }

    pub(crate) fn leave(&mut self, inner: &mut OwningEndpoint, group: &Group) -> Result<(), Errno> {
        let id = self.id_of(group)?;
        self.engine.leave(id);
        self.carry_out(inner);
        Ok(())
    }

    fn id_of(&self, group: &Group) -> Result<GroupId, Errno> {
        group.id_at(self.endpoint).ok_or(Errno::EINVAL)
    }
}
