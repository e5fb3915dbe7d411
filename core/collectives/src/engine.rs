//! The operations of an endpoint's groups.
//!
//! The contract:
//!
//! - The owner of the engine carries out the [actions](Planner::next_action) after each call, in
//!   their order, and reports the end of each message. A piece of memory that an action names is
//!   read before the next call.
//! - An operation fails with its group, and so do all others of the group, at once. The other
//!   members are informed.
//! - Messages of a failed group that still come are discarded, so that long sends end.
//! - Where an operation waits for a message, the sender is probed from time to time: a send to a
//!   dead member fails, but nothing else says that it is dead.

mod failures;
mod probes;
mod reports;
mod retries;

use std::collections::VecDeque;
use std::time::Instant;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;
use rustc_hash::FxHashMap;

use crate::group_id::{GroupId, MAX_GROUPS};
use crate::groups::{GroupState, Joins, Membership};
use crate::planner::{Action, Collective, Combine, MessageBytes, Outcome, Planner};
use crate::schedule::{self, Incoming, MemberSchedule, MessageUse, Round};
use crate::tags::{PROBE, of_join, of_operation};
use probes::{ProbedWait, Probing};
use reports::{AwaitedReport, SentReport};
use retries::{RETRY_DELAY, RetriedMessage, Retries};

/// The groups of an endpoint, and their operations.
#[derive(Default)]
pub struct Engine {
    groups: FxHashMap<GroupId, GroupState>,
    operations: FxHashMap<u64, GroupOperation>,
    messages: FxHashMap<u64, MessagePurpose>,
    joins: Joins,
    retries: Retries,
    next_group: u32,
    next_message: u64,
    actions: VecDeque<Action>,
}

/// A member's part in an operation that is to begin.
struct Work {
    schedule: MemberSchedule,
    /// The first bytes of the memory; the others are 0.
    input: Vec<u8>,
    combine: Option<Combine>,
}

/// An operation that is under way.
struct GroupOperation {
    group: GroupId,
    is_join: bool,
    tag: Tag,
    rounds: std::vec::IntoIter<Round>,
    memory: Vec<u8>,
    rotation: usize,
    result: usize,
    combine: Option<Combine>,
    /// Messages of the present round that are not over.
    pending: usize,
    waits_for: Option<AwaitedMessage>,
}

/// The tags of an operation's messages.
#[derive(Clone, Copy)]
enum Tag {
    /// Those of the keys of the join.
    Join,
    /// The number of the operation; each receiver has its number of the group in the tag.
    Operation(u64),
}

/// The message that an operation waits for.
struct AwaitedMessage {
    message: u64,
    from: FiAddr,
    probing: Probing,
}

/// The reason for a message.
enum MessagePurpose {
    Send { operation: u64, to: FiAddr },
    Receive { operation: u64, receive: Incoming },
    Alarm(AwaitedReport),
    Discard(GroupId),
    AnyProbe,
    Probe(ProbedWait),
    Report(SentReport),
}

impl Engine {
    /// An engine of an endpoint that has just been opened.
    pub fn new() -> Self {
        Self::numbered_from(0)
    }

    /// As [`new`](Self::new), with numbers of messages from `first` on.
    pub fn numbered_from(first: u64) -> Self {
        let mut this = Self {
            next_message: first,
            ..Self::default()
        };
        this.await_probe();
        this
    }

    /// Begins an operation of a group that there is.
    fn start(&mut self, operation: u64, group: GroupId, tag: Tag, work: Work) {
        let Work {
            schedule,
            mut input,
            combine,
        } = work;
        input.resize(schedule.memory.max(schedule.result), 0);
        let begun = GroupOperation {
            group,
            is_join: matches!(tag, Tag::Join),
            tag,
            rounds: schedule.rounds.into_iter(),
            memory: input,
            rotation: schedule.rotation,
            result: schedule.result,
            combine,
            pending: 0,
            waits_for: None,
        };
        self.operations.insert(operation, begun);
        self.go_on(operation);
    }

    /// Begins the next round of an operation, or ends it.
    fn go_on(&mut self, number: u64) {
        let Some(operation) = self.operations.get_mut(&number) else {
            return;
        };
        let Some(round) = operation.rounds.next() else {
            return self.end(number);
        };
        let Some(group) = self.groups.get(&operation.group) else {
            return;
        };
        operation.pending = round.sends.len() + usize::from(round.receive.is_some());
        let (tag, own, addresses) = (operation.tag, operation.group, group.members.addresses());
        // Each receiver has its own number of the group in the tag.
        let tag_of = |receiver: Option<&GroupId>, peer: usize| match tag {
            Tag::Join => of_join(group.keys.with(peer)),
            Tag::Operation(operation) => of_operation(*receiver.unwrap_or(&own), operation),
        };
        let receive = round.receive.map(|receive| {
            let from = addresses[receive.from];
            (from, tag_of(None, receive.from), receive)
        });
        let sends: Vec<_> = (round.sends.into_iter())
            .map(|send| {
                let tag = tag_of(group.numbers.get(send.to), send.to);
                (addresses[send.to], tag, send.piece)
            })
            .collect();
        // A message that comes at once may change the memory.
        for (to, tag, piece) in sends {
            let operation = number;
            let purpose = MessagePurpose::Send { operation, to };
            self.send(to, tag, MessageBytes::Piece(number, piece), purpose);
        }
        if let Some((from, tag, receive)) = receive {
            let len = receive.piece.len();
            let purpose = MessagePurpose::Receive {
                operation: number,
                receive,
            };
            let message = self.receive(from, (tag, 0), len, purpose);
            if let Some(operation) = self.operations.get_mut(&number) {
                operation.waits_for = Some(AwaitedMessage {
                    message,
                    from,
                    probing: Probing::default(),
                });
            }
        }
    }

    /// A message of an operation is over.
    fn finish_message(&mut self, number: u64) {
        let Some(operation) = self.operations.get_mut(&number) else {
            return;
        };
        operation.pending -= 1;
        if operation.pending == 0 {
            self.go_on(number);
        }
    }

    /// A message of an operation was received.
    fn take_bytes(&mut self, number: u64, receive: &Incoming, bytes: &[u8]) {
        let Some(operation) = self.operations.get_mut(&number) else {
            return;
        };
        operation.waits_for = None;
        let piece = operation.memory.get_mut(receive.piece.clone());
        let Some(piece) = piece.filter(|piece| piece.len() == bytes.len()) else {
            // The members disagree on the number of elements.
            return self.fail(number, Errno::EPROTO, None);
        };
        match (receive.placement, &operation.combine) {
            (MessageUse::BeforeUpper, Some(combine)) => combine(piece, bytes),
            (MessageUse::AfterLower, Some(combine)) => {
                let mut lower = bytes.to_vec();
                combine(&mut lower, piece);
                piece.copy_from_slice(&lower);
            }
            (_, _) => piece.copy_from_slice(bytes),
        }
        self.finish_message(number);
    }

    /// An operation is complete.
    fn end(&mut self, number: u64) {
        let Some(mut operation) = self.operations.remove(&number) else {
            return;
        };
        operation.memory.rotate_right(operation.rotation);
        operation.memory.truncate(operation.result);
        let outcome = match operation.is_join {
            false => Outcome::Bytes(operation.memory),
            true => {
                let numbers = operation.memory.chunks_exact(4).map(GroupId::of_bytes);
                let Some(numbers) = numbers.collect() else {
                    self.operations.insert(number, operation);
                    return self.fail(number, Errno::EPROTO, None);
                };
                if let Some(group) = self.groups.get_mut(&operation.group) {
                    group.numbers = numbers;
                }
                Outcome::Joined(operation.group)
            }
        };
        self.actions.push_back(Action::End {
            operation: number,
            result: Ok(outcome),
        });
    }

    fn send(&mut self, to: FiAddr, tag: u64, bytes: MessageBytes, purpose: MessagePurpose) {
        let is_probe = tag == PROBE;
        let message = self.number(purpose);
        self.actions.push_back(Action::Send {
            message,
            to,
            tag,
            bytes,
            is_probe,
        });
    }

    fn receive(
        &mut self,
        from: FiAddr,
        (tag, ignore): (u64, u64),
        len: usize,
        purpose: MessagePurpose,
    ) -> u64 {
        let message = self.number(purpose);
        self.actions.push_back(Action::Receive {
            message,
            from,
            tag,
            ignore,
            len,
        });
        message
    }

    /// A new message's number.
    fn number(&mut self, purpose: MessagePurpose) -> u64 {
        let message = self.next_message;
        self.next_message += 1;
        self.messages.insert(message, purpose);
        message
    }
}

impl Planner for Engine {
    fn join(&mut self, operation: u64, members: Membership) -> Result<GroupId, Errno> {
        if self.next_group == MAX_GROUPS {
            return Err(Errno::ENOSPC);
        }
        let id = GroupId(self.next_group);
        self.next_group += 1;
        let keys = self.joins.next(&members);
        let alarms = self.await_reports(id, &members, &keys);
        // The members exchange their numbers of the group.
        let number = id.to_bytes().to_vec();
        let schedule = schedule::allgather(members.rank(), members.len(), number.len());
        let group = GroupState {
            members,
            keys,
            numbers: Vec::new(),
            operations: 0,
            failed: None,
            gone: Vec::new(),
            alarms,
        };
        self.groups.insert(id, group);
        let work = Work {
            schedule,
            input: number,
            combine: None,
        };
        self.start(operation, id, Tag::Join, work);
        Ok(id)
    }

    fn check(&self, group: GroupId) -> Result<(), Errno> {
        let group = self.groups.get(&group).ok_or(Errno::EINVAL)?;
        group.failed.map_or(Ok(()), Err)
    }

    fn begin(
        &mut self,
        operation: u64,
        group: GroupId,
        collective: Collective,
        bytes: Vec<u8>,
    ) -> Result<(), Errno> {
        self.check(group)?;
        let of = self.groups.get_mut(&group).ok_or(Errno::EINVAL)?;
        let work = Work::of(collective, bytes, &of.members)?;
        let tag = Tag::Operation(of.operations);
        of.operations += 1;
        self.start(operation, group, tag, work);
        Ok(())
    }

    fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn bytes<'a>(&'a self, bytes: &'a MessageBytes) -> Option<&'a [u8]> {
        match bytes {
            MessageBytes::Empty => Some(&[]),
            MessageBytes::Own(bytes) => Some(bytes),
            MessageBytes::Piece(operation, range) => {
                let operation = self.operations.get(operation)?;
                operation.memory.get(range.clone())
            }
        }
    }

    fn sent(&mut self, message: u64, result: Result<(), Errno>) {
        match self.messages.remove(&message) {
            Some(MessagePurpose::Send { operation, to }) => match result {
                Ok(()) => self.finish_message(operation),
                Err(errno) => self.fail(operation, errno, Some(to)),
            },
            Some(MessagePurpose::Probe(probed)) => self.take_probe_end(&probed, result),
            Some(MessagePurpose::Report(report)) => self.take_report_end(report, result),
            _ => {}
        }
    }

    fn received(&mut self, message: u64, from: FiAddr, result: Result<&[u8], Errno>) {
        match self.messages.remove(&message) {
            Some(MessagePurpose::Receive { operation, receive }) => match result {
                Ok(bytes) => self.take_bytes(operation, &receive, bytes),
                // The error may have no source.
                Err(errno) => {
                    let of = self.operations.get(&operation);
                    let group = of.and_then(|of| self.groups.get(&of.group));
                    let members = group.map(|group| group.members.addresses());
                    let member = members.and_then(|members| members.get(receive.from).copied());
                    self.fail(operation, errno, member);
                }
            },
            Some(MessagePurpose::Alarm(awaited)) => {
                self.take_alarm(message, awaited, from, result);
            }
            // A message that is longer than the receive is over, too. Another error may be that of
            // an endpoint that ends all its receives.
            Some(MessagePurpose::Discard(group)) => match result {
                Ok(_) | Err(Errno::ETRUNC) => self.discard(group),
                Err(_) => self
                    .retries
                    .add(RetriedMessage::Discard(group), RETRY_DELAY),
            },
            Some(MessagePurpose::AnyProbe) => match result {
                Ok(_) | Err(Errno::ETRUNC) => self.await_probe(),
                Err(_) => self.retries.add(RetriedMessage::AnyProbe, RETRY_DELAY),
            },
            _ => {}
        }
    }

    fn refused(&mut self, message: u64, errno: Errno) {
        match self.messages.remove(&message) {
            Some(MessagePurpose::Receive { operation, .. }) => self.fail(operation, errno, None),
            Some(MessagePurpose::Alarm(awaited)) => self.retry_alarm(message, awaited),
            Some(MessagePurpose::Discard(group)) => {
                self.retries
                    .add(RetriedMessage::Discard(group), RETRY_DELAY);
            }
            Some(MessagePurpose::AnyProbe) => {
                self.retries.add(RetriedMessage::AnyProbe, RETRY_DELAY)
            }
            _ => {}
        }
    }

    fn leave(&mut self, group: GroupId) {
        self.leave_group(group);
    }

    fn tick(&mut self, now: Instant) {
        self.retry(now);
        self.probe(now);
    }

    fn next_tick(&self) -> Option<Instant> {
        (self.next_probe().into_iter())
            .chain(self.retries.next())
            .min()
    }
}

impl Work {
    /// # Errors
    ///
    /// As [`Planner::begin`].
    fn of(collective: Collective, mut input: Vec<u8>, members: &Membership) -> Result<Self, Errno> {
        let (rank, count, bytes) = (members.rank(), members.len(), input.len());
        let checked = |root: usize| (root < count).then_some(root).ok_or(Errno::EINVAL);
        let of_all = |block: usize| block.checked_mul(count).ok_or(Errno::EINVAL);
        let mut combine_by = None;
        let schedule = match collective {
            Collective::Barrier => schedule::barrier(rank, count),
            Collective::Broadcast { root } => {
                schedule::broadcast(rank, count, checked(root)?, bytes)
            }
            Collective::Allreduce {
                datatype, combine, ..
            } => {
                combine_by = Some(combine);
                schedule::allreduce(rank, count, bytes, datatype.size())
            }
            Collective::Allgather => {
                of_all(bytes)?;
                schedule::allgather(rank, count, bytes)
            }
            Collective::Scatter { root, block } => {
                let (root, all) = (checked(root)?, of_all(block)?);
                match rank == root {
                    true if bytes == all => input.rotate_left(root * block),
                    true => return Err(Errno::EINVAL),
                    false => input.clear(),
                }
                schedule::scatter(rank, count, root, block)
            }
        };
        Ok(Self {
            schedule,
            input,
            combine: combine_by,
        })
    }
}
