//! Sends and receives by addresses that are not resolved yet (`docs/adr/0042`).
//!
//! A send to such an address waits in its endpoint, behind earlier ones to the same address. It
//! goes to the transport once the address is resolved, and fails with a completion where that
//! fails.

use std::collections::VecDeque;

use super::owner::EndpointOwner;
use super::{Backend, Shared, State};
use ferrofabric_av::{Resolution, Unresolved};
use ferrofabric_contracts::buffers::SendBuffers;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Owner, Routed, SendDone, Transport};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, RecvOp, SendOp, total_len};

/// The sends of an endpoint that wait for addresses.
#[derive(Default)]
pub(super) struct UnresolvedSends {
    queues: Vec<SendQueue>,
    len: usize,
}

/// Those to one address, in order.
struct SendQueue {
    dest: FiAddr,
    of: Resolution,
    sends: VecDeque<WaitingSend>,
}

struct WaitingSend {
    op: SendOp,
    buffers: SendBuffers,
}

impl WaitingSend {
    /// # Safety
    ///
    /// As [`Transport::send`].
    unsafe fn new(op: &SendOp, iov: &[IoBuf]) -> Self {
        // Nobody may follow for a while.
        let op = SendOp {
            flags: op.flags - Flags::MORE,
            ..*op
        };
        // SAFETY: the caller's promise.
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

/// What is to become of the sends of a queue.
enum Fate {
    Stay,
    Send(FiAddr),
    Fail(Errno, &'static str),
}

/// What has become of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settled {
    /// It is no more.
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

    fn queue_to(&self, dest: FiAddr) -> Option<usize> {
        self.queues.iter().position(|queue| queue.dest == dest)
    }

    /// # Safety
    ///
    /// As [`Transport::send`].
    unsafe fn push(&mut self, of: Resolution, op: &SendOp, iov: &[IoBuf]) {
        // SAFETY: the caller's promise.
        let send = unsafe { WaitingSend::new(op, iov) };
        self.len += 1;
        match self.queue_to(op.dest) {
            Some(at) => self.queues[at].sends.push_back(send),
            None => self.queues.push(SendQueue {
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

    /// Does with a queue what has become of its address.
    fn settle<T: Transport>(
        &mut self,
        at: usize,
        transport: &mut Routed<T>,
        owner: &mut EndpointOwner<'_>,
    ) -> Settled {
        let queue = &mut self.queues[at];
        let fate = match owner.avs[owner.binding.av].outcome(queue.dest, queue.of) {
            None => Fate::Fail(Errno::EADDRNOTAVAIL, REMOVED),
            Some(Unresolved::Failed(errno)) => {
                Fate::Fail(errno, "no endpoint was found at the socket address in time")
            }
            Some(Unresolved::Resolving(of)) => {
                queue.of = of;
                Fate::Stay
            }
            Some(Unresolved::Resolved) => Fate::Send(queue.dest),
            Some(Unresolved::Same(first)) => Fate::Send(first),
        };
        match fate {
            Fate::Stay => return Settled::Unresolved,
            Fate::Fail(errno, why) => {
                self.fail(at, errno, why, owner);
                return Settled::Over;
            }
            Fate::Send(dest) => {
                while let Some(send) = queue.sends.front() {
                    let op = SendOp { dest, ..send.op };
                    // SAFETY: `push` was promised that the buffers stay until the completion.
                    match unsafe { transport.send(&op, send.buffers.list(), owner) } {
                        Ok(()) => {}
                        Err(OpError::Again) => return Settled::Blocked,
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
        Settled::Over
    }
}

const REMOVED: &str = "the address was removed from the address vector";

impl<B: Backend> Shared<B> {
    /// Has a send wait that goes behind others to its address. Returns whether it waits.
    ///
    /// # Safety
    ///
    /// As [`Transport::send`].
    ///
    /// # Errors
    ///
    /// `Again`: as many wait as may.
    #[cold]
    pub(super) unsafe fn wait_behind(
        &self,
        state: &mut State<B::Transport>,
        index: usize,
        op: &SendOp,
        iov: &[IoBuf],
    ) -> Result<bool, OpError> {
        let (sends, transport, mut owner) = state.split_unresolved(index);
        let Some(at) = sends.queue_to(op.dest) else {
            return Ok(false);
        };
        let before = sends.len();
        let is_over = sends.settle(at, transport, &mut owner) == Settled::Over;
        let full = sends.len() >= self.backend.info().tx.size;
        if !is_over && !full {
            let of = sends.queues[at].of;
            // SAFETY: the caller's promise.
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

    /// What becomes of a send that a transport did not take: one to an unresolved address waits,
    /// one to an address whose endpoint is in by another goes there.
    ///
    /// # Safety
    ///
    /// As [`Transport::send`].
    #[cold]
    pub(super) unsafe fn send_further(
        &self,
        error: OpError,
        state: &mut State<B::Transport>,
        index: usize,
        op: &SendOp,
        iov: &[IoBuf],
    ) -> Result<(), OpError> {
        // SAFETY: the caller's promise.
        let sent = unsafe { self.send_unresolved(error, state, index, op, iov) };
        let (_, transport, mut owner) = state.split_unresolved(index);
        // The send may have failed or wait: then nobody else sends what was held back for it.
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
        state: &mut State<B::Transport>,
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
            // Others are at work on what is unresolved, for longer than a send waits.
            Some(Unresolved::Failed(_)) => return Err(OpError::Again),
            Some(Unresolved::Resolving(of)) => {
                if sends.len() >= self.backend.info().tx.size {
                    return Err(OpError::Again);
                }
                // SAFETY: the caller's promise.
                unsafe { sends.push(of, op, iov) };
                state.waiting_sends += 1;
                return Ok(());
            }
            Some(Unresolved::Resolved) => op.dest,
            Some(Unresolved::Same(first)) => first,
        };
        // SAFETY: the caller's promise.
        unsafe { transport.send(&SendOp { dest, ..*op }, iov, &mut owner) }
    }
}

impl<T: Transport> State<T> {
    fn split_unresolved(
        &mut self,
        index: usize,
    ) -> (&mut UnresolvedSends, &mut Routed<T>, EndpointOwner<'_>) {
        let endpoint = &mut self.endpoints[index];
        endpoint.split_unresolved(&mut self.cqs, &mut self.cntrs, &self.avs)
    }

    /// Lets go what waited for addresses that are resolved by now, or could not be.
    #[cold]
    pub(super) fn settle_unresolved(&mut self) {
        let mut blocked = false;
        self.each_waiting(|sends, transport, owner| {
            let mut at = 0;
            while at < sends.queues.len() {
                match sends.settle(at, transport, owner) {
                    Settled::Over => {}
                    settled => {
                        blocked |= settled == Settled::Blocked;
                        at += 1;
                    }
                }
            }
        });
        self.look_at_waiting = blocked;
    }

    /// An address was removed from an address vector: what waits for it fails.
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

    /// The receive that is posted for one whose source may be unresolved: that is resolved, so that
    /// what comes from it is matched.
    #[cold]
    pub(super) fn directed(&self, op: &RecvOp) -> RecvOp {
        from_first(op, self.avs[self.binding.av].resolve_for_recv(op.src))
    }

    /// The same of a receive that looks for a message once: the application that looks again has it
    /// resolved again.
    #[cold]
    pub(super) fn looked_for(&self, op: &RecvOp) -> RecvOp {
        from_first(op, self.avs[self.binding.av].resolve_for_lookup(op.src))
    }
}

/// A receive from the address by which its source is in.
fn from_first(op: &RecvOp, source: Option<Unresolved>) -> RecvOp {
    let src = match source {
        Some(Unresolved::Same(first)) => first,
        _ => op.src,
    };
    RecvOp { src, ..*op }
}
