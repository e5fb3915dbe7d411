//! The side that decides which messages an operation has.

use std::ops::Range;
use std::time::Instant;

use ferrofabric_contracts::atomics::{AtomicOperator, Datatype};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;

use crate::group_id::GroupId;
use crate::groups::Membership;

/// Combines elements: each of the first piece changes to the operator's result of it and its
/// counterpart of the second.
pub type Combine = Box<dyn Fn(&mut [u8], &[u8]) + Send>;

/// An operation of a group.
pub enum Collective {
    /// No member leaves it before all have entered it.
    Barrier,
    /// All members get the bytes of the root, which has as many as the others have room for.
    Broadcast {
        /// The rank of the root.
        root: usize,
    },
    /// All members get the operator's result of the elements of all.
    Allreduce {
        /// The type of the elements.
        datatype: Datatype,
        /// The operator.
        operator: AtomicOperator,
        /// Applies the operator.
        combine: Combine,
    },
    /// All members get the bytes of all, in the order of their ranks.
    Allgather,
    /// Each member gets as many bytes of the root: the first ones that of rank 0, and so on.
    Scatter {
        /// The rank of the root, which alone has bytes.
        root: usize,
        /// Bytes for a member.
        block: usize,
    },
}

/// A message for the endpoint to send or to receive, or the end of an operation.
#[derive(Debug)]
pub enum Action {
    /// Sends a message, and reports its end by [`Planner::sent`].
    Send {
        /// The message's number.
        message: u64,
        /// The receiver.
        to: FiAddr,
        /// The tag.
        tag: u64,
        /// The bytes, for [`Planner::bytes`].
        bytes: MessageBytes,
        /// Whether the send ends when the message is received (`FI_DELIVERY_COMPLETE`).
        is_probe: bool,
    },
    /// Receives a message, and reports its end by [`Planner::received`], or
    /// [`Planner::refused`].
    Receive {
        /// The message's number.
        message: u64,
        /// The sender, or `FI_ADDR_UNSPEC`.
        from: FiAddr,
        /// The tag.
        tag: u64,
        /// Bits of it that are not compared.
        ignore: u64,
        /// The length of the buffer.
        len: usize,
    },
    /// Cancels a receive. Its end is no news to the engine.
    Cancel {
        /// The message's number.
        message: u64,
    },
    /// An operation is over.
    End {
        /// Its number.
        operation: u64,
        /// Its result, or the errno with which it has failed.
        result: Result<Outcome, Errno>,
    },
}

/// The result of an operation.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Of a join.
    Joined(GroupId),
    /// Of any other one.
    Bytes(Vec<u8>),
}

/// The bytes of a message.
#[derive(Debug)]
pub enum MessageBytes {
    /// None.
    Empty,
    /// A piece of the memory of an operation.
    Piece(u64, Range<usize>),
    /// These.
    Own([u8; 4]),
}

/// Decides which messages the operations of an endpoint have: the [`Engine`](crate::Engine), or
/// what carries out the operations by another library.
pub trait Planner {
    /// Joins a group, which has the number that is returned. All members call this, and those that
    /// join several groups of the same members do so in the same order.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: there are no more numbers of groups.
    fn join(&mut self, operation: u64, members: Membership) -> Result<GroupId, Errno>;

    /// Whether operations of a group can begin.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the endpoint has left the group. That with which the group has failed.
    fn check(&self, group: GroupId) -> Result<(), Errno>;

    /// Begins an operation of a group with some bytes. All members begin the same ones, in the same
    /// order.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check). `EINVAL`: the root is no rank of a member, or the bytes are not as
    /// many as it has for all.
    fn begin(
        &mut self,
        operation: u64,
        group: GroupId,
        collective: Collective,
        bytes: Vec<u8>,
    ) -> Result<(), Errno>;

    /// The endpoint leaves a group. Operations that are under way fail, at the other members, too.
    fn leave(&mut self, group: GroupId);

    /// The next action, if there is one.
    fn next_action(&mut self) -> Option<Action>;

    /// The bytes of a message. `None`: its operation has failed, so it is not sent.
    fn bytes<'a>(&'a self, bytes: &'a MessageBytes) -> Option<&'a [u8]>;

    /// A message that was sent is over.
    fn sent(&mut self, message: u64, result: Result<(), Errno>);

    /// A message was received, or its receive has failed. `from` is the sender: `FI_ADDR_UNSPEC` if
    /// it has no address here.
    fn received(&mut self, message: u64, from: FiAddr, result: Result<&[u8], Errno>);

    /// The endpoint has refused to receive a message.
    fn refused(&mut self, message: u64, errno: Errno);

    /// Does what time has made due. The owner calls this when no end of a message is left to report,
    /// before it sleeps, and at the time of [`next_tick`](Self::next_tick).
    fn tick(&mut self, now: Instant);

    /// The time of the next tick, if there is one to come.
    fn next_tick(&self) -> Option<Instant>;
}
