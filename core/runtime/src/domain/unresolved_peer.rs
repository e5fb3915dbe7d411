//! Sends and receives with addresses that are not resolved yet (`docs/adr/0042`).
//!
//! A send to such an address waits in its endpoint, behind earlier sends to the same address. It
//! goes to the transport once the address is resolved, and fails with a completion if the
//! resolution fails.

use std::collections::VecDeque;

use super::owner::EndpointOwner;
use super::{Backend, DomainShared, DomainState};
use ferrofabric_av::{Resolution, Unresolved};
use ferrofabric_contracts::buffers::SendBuffers;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Owner, Routed, SendDone, Transport};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, RecvOp, SendOp, total_len};

/// The sends of an endpoint that wait for addresses.
#[derive(Default)]
pub(super) struct UnresolvedSends {
    queues: Vec<UnresolvedQueue>,
    len: usize,
}

/// The waiting sends to one address, in order.
struct UnresolvedQueue {
    dest: FiAddr,
    of: Resolution,
    sends: VecDeque<UnresolvedSend>,
}

struct UnresolvedSend {
    op: SendOp,
    buffers: SendBuffers,
}

impl UnresolvedSend {
    /// # Safety
    ///
    /// As [`Transport::send`].
    unsafe fn new(op: &SendOp, iov: &[IoBuf]) -> Self {
        // The next send, for which `MORE` would hold this one back, may come much later.
        let op = SendOp {
            flags: op.flags - Flags::MORE,
            ..*op
        };
        // SAFETY: the caller's contract.
        let buffers = unsafe { SendBuffers::new(op.flags, iov) };
        let op = match buffers.copy() {
            // The copy has no descriptor.
            Some(_) => SendOp {
                desc: MrDesc::NONE,
                ..op
            },
            None => op,
        };
        Self { op, buffers }
    }

    fn fail(&self, errno: Errno, why: &'static str, owner: &mut EndpointOwner<'_>) {
        let done = SendDone::of(&self.op, total_len(self.buffers.list()));
        owner.fail_send(&done, errno, 0, why);
    }
}

/// The next step for the sends of a queue.
enum QueueAction {
    Stay,
    Send(FiAddr),
    Fail(Errno, &'static str),
}

/// The state of a queue after that step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    /// It is empty and removed.
    Over,
    /// Its address is not resolved yet.
    Unresolved,
    /// The transport has no room.
    Blocked,
}

impl UnresolvedSends {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Reports the addresses to which injected sends wait, and their number.
    pub(super) fn report_injected(&self, report: &mut dyn FnMut(FiAddr, usize)) {
        let is_injected = |send: &&UnresolvedSend| send.op.kind.is_taken_for_sent(send.op.flags);
        for queue in &self.queues {
            match queue.sends.iter().filter(is_injected).count() {
                0 => {}
                some => report(queue.dest, some),
            }
        }
    }

    fn queue_to(&self, dest: FiAddr) -> Option<usize> {
        self.queues.iter().position(|queue| queue.dest == dest)
    }

    /// # Safety
    ///
    /// As [`Transport::send`].
    unsafe fn push(&mut self, of: Resolution, op: &SendOp, iov: &[IoBuf]) {
        // SAFETY: the caller's contract.
        let send = unsafe { UnresolvedSend::new(op, iov) };
        self.len += 1;
        match self.queue_to(op.dest) {
            Some(at) => self.queues[at].sends.push_back(send),
            None => self.queues.push(UnresolvedQueue {
                dest: op.dest,
                of,
                sends: VecDeque::from([send]),
            }),
        }
    }

    fn fail(&mut self, at: usize, errno: Errno, why: &'static str, owner: &mut EndpointOwner<'_>) {
        let queue = self.queues.remove(at);
        self.len -= queue.sends.len();
        for send in queue.sends {
            send.fail(errno, why, owner);
        }
    }

    /// Sends or fails the messages of a queue, by the state of its address.
    fn settle<T: Transport>(
        &mut self,
        at: usize,
        transport: &mut Routed<T>,
        owner: &mut EndpointOwner<'_>,
    ) -> QueueState {
        let queue = &mut self.queues[at];
        let fate = match owner.avs[owner.binding.av].outcome(queue.dest, queue.of) {
            None => QueueAction::Fail(Errno::EADDRNOTAVAIL, REMOVED),
            Some(Unresolved::Failed(errno)) => {
                QueueAction::Fail(errno, "no endpoint was found at the socket address in time")
            }
            Some(Unresolved::Resolving(of)) => {
                queue.of = of;
                QueueAction::Stay
            }
            Some(Unresolved::Resolved) => QueueAction::Send(queue.dest),
            Some(Unresolved::Same(first)) => QueueAction::Send(first),
        };
        match fate {
            QueueAction::Stay => return QueueState::Unresolved,
            QueueAction::Fail(errno, why) => {
                self.fail(at, errno, why, owner);
                return QueueState::Over;
            }
            QueueAction::Send(dest) => {
                while let Some(send) = queue.sends.front() {
                    let op = SendOp { dest, ..send.op };
                    let remote = &mut owner.srx.remote;
                    if op.kind.is_request() && remote.read(op.context).is_none() {
                        // The operation has failed since: its target's session ended.
                        queue.sends.pop_front();
                        self.len -= 1;
                        continue;
                    }
                    remote.redirect(&op);
                    // SAFETY: by the contract of `push` the buffers stay until the completion.
                    match unsafe { transport.send(&op, send.buffers.list(), owner) } {
                        Ok(()) => {}
                        Err(OpError::Again) => return QueueState::Blocked,
                        Err(OpError::Failed(errno)) => {
                            send.fail(errno, "the message could not be sent", owner);
                        }
                    }
                    queue.sends.pop_front();
                    self.len -= 1;
                }
            }
        }
        self.queues.remove(at);
        QueueState::Over
    }
}

const REMOVED: &str = "the address was removed from the address vector";

impl<B: Backend> DomainShared<B> {
    /// Queues a send if earlier sends to its address wait. Returns whether it waits.
    ///
    /// # Safety
    ///
    /// As [`Transport::send`].
    ///
    /// # Errors
    ///
    /// `Again`: the limit of waiting sends is reached.
    #[cold]
    pub(super) unsafe fn queue_behind(
        &self,
        state: &mut DomainState<B::Transport>,
        index: usize,
        op: &SendOp,
        iov: &[IoBuf],
    ) -> Result<bool, OpError> {
        let (sends, transport, mut owner) = state.split_unresolved(index);
        let Some(at) = sends.queue_to(op.dest) else {
            return Ok(false);
        };
        let before = sends.len();
        let is_over = sends.settle(at, transport, &mut owner) == QueueState::Over;
        let full = sends.len() >= self.backend.info().tx.size;
        if !is_over && !full {
            let of = sends.queues[at].of;
            // SAFETY: the caller's contract.
            unsafe { sends.push(of, op, iov) };
        }
        let after = sends.len();
        state.waiting_sends = state.waiting_sends + after - before;
        match (is_over, full) {
            (true, _) => Ok(false),
            (false, true) => Err(OpError::Again),
            (false, false) => Ok(true),
        }
    }

    /// Handles a send that a transport did not take: a send to an unresolved address waits; a send
    /// to an address whose endpoint is in the vector under another address goes to that one.
    ///
    /// # Safety
    ///
    /// As [`Transport::send`].
    #[cold]
    pub(super) unsafe fn send_to_unresolved(
        &self,
        error: OpError,
        state: &mut DomainState<B::Transport>,
        index: usize,
        op: &SendOp,
        iov: &[IoBuf],
    ) -> Result<(), OpError> {
        // SAFETY: the caller's contract.
        let sent = unsafe { self.send_unresolved(error, state, index, op, iov) };
        let (_, transport, mut owner) = state.split_unresolved(index);
        // A send that has failed or waits does not send the requests that were held back for it.
        transport.flush(&mut owner);
        owner.start_deferred(transport);
        self.wake(state);
        sent
    }

    /// # Safety
    ///
    /// As [`Transport::send`].
    unsafe fn send_unresolved(
        &self,
        error: OpError,
        state: &mut DomainState<B::Transport>,
        index: usize,
        op: &SendOp,
        iov: &[IoBuf],
    ) -> Result<(), OpError> {
        if error != OpError::Failed(Errno::EADDRNOTAVAIL) {
            return Err(error);
        }
        let (sends, transport, mut owner) = state.split_unresolved(index);
        let dest = match owner.avs[owner.binding.av].resolve_for_send(op.dest) {
            None => return Err(error),
            // Other threads hold the table of unresolved entries, for longer than a send waits.
            Some(Unresolved::Failed(_)) => return Err(OpError::Again),
            Some(Unresolved::Resolving(of)) => {
                if sends.len() >= self.backend.info().tx.size {
                    return Err(OpError::Again);
                }
                // SAFETY: the caller's contract.
                unsafe { sends.push(of, op, iov) };
                state.waiting_sends += 1;
                return Ok(());
            }
            Some(Unresolved::Resolved) => op.dest,
            Some(Unresolved::Same(first)) => first,
        };
        let op = SendOp { dest, ..*op };
        owner.srx.remote.redirect(&op);
        // SAFETY: the caller's contract.
        unsafe { transport.send(&op, iov, &mut owner) }
    }
}

impl<T: Transport> DomainState<T> {
    fn split_unresolved(
        &mut self,
        index: usize,
    ) -> (&mut UnresolvedSends, &mut Routed<T>, EndpointOwner<'_>) {
        let endpoint = &mut self.endpoints[index];
        endpoint.split_unresolved(&mut self.cqs, &mut self.cntrs, &self.avs)
    }

    /// Sends or fails messages whose address has been resolved, or could not be.
    #[cold]
    pub(super) fn settle_unresolved(&mut self) {
        let mut blocked = false;
        self.each_waiting(|sends, transport, owner| {
            let mut at = 0;
            while at < sends.queues.len() {
                match sends.settle(at, transport, owner) {
                    QueueState::Over => {}
                    settled => {
                        blocked |= settled == QueueState::Blocked;
                        at += 1;
                    }
                }
            }
        });
        self.look_at_waiting = blocked;
    }

    /// An address was removed from an address vector: the sends that wait for it fail.
    #[cold]
    pub(super) fn fail_unresolved(&mut self, av: usize, addr: FiAddr) {
        self.each_waiting(|sends, _, owner| {
            if owner.binding.av == av {
                if let Some(at) = sends.queue_to(addr) {
                    sends.fail(at, Errno::EADDRNOTAVAIL, REMOVED, owner);
                }
            }
        });
    }

    fn each_waiting(
        &mut self,
        mut each: impl FnMut(&mut UnresolvedSends, &mut Routed<T>, &mut EndpointOwner<'_>),
    ) {
        if self.waiting_sends == 0 {
            return;
        }
        let mut waiting = 0;
        for (_, endpoint) in &mut self.endpoints {
            if endpoint.unresolved_sends() != 0 {
                let (sends, transport, mut owner) =
                    endpoint.split_unresolved(&mut self.cqs, &mut self.cntrs, &self.avs);
                each(sends, transport, &mut owner);
                waiting += sends.len();
                owner.start_deferred(transport);
            }
        }
        self.waiting_sends = waiting;
    }
}

impl EndpointOwner<'_> {
    /// Whether addresses may be unresolved.
    #[inline]
    pub(super) fn may_be_unresolved(&self) -> bool {
        self.avs[self.binding.av].may_be_unresolved()
    }

    /// The address under which the endpoint at another one is in the vector.
    #[cold]
    pub(super) fn first_of(&self, addr: FiAddr) -> Option<FiAddr> {
        match self.avs[self.binding.av].resolve_for_send(addr) {
            Some(Unresolved::Same(first)) => Some(first),
            _ => None,
        }
    }

    /// The receive to post for a receive whose source may be unresolved: starts the resolution of
    /// its source, so that messages from there match.
    #[cold]
    pub(super) fn with_receive_source(&self, op: &RecvOp) -> RecvOp {
        from_first(op, self.avs[self.binding.av].resolve_for_recv(op.src))
    }

    /// The same for a receive that looks for a message once: each look starts the resolution anew.
    #[cold]
    pub(super) fn with_lookup_source(&self, op: &RecvOp) -> RecvOp {
        from_first(op, self.avs[self.binding.av].resolve_for_lookup(op.src))
    }
}

/// The receive with its source replaced by the address under which the endpoint is in the vector.
fn from_first(op: &RecvOp, source: Option<Unresolved>) -> RecvOp {
    let src = match source {
        Some(Unresolved::Same(first)) => first,
        _ => op.src,
    };
    RecvOp { src, ..*op }
}
