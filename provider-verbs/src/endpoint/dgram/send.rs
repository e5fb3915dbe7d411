//! Sending: a message goes at once if the peer's path has a handle and the queue has room; else it
//! waits in line.

use ferrofabric_contracts::buffers::SendBuffers;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::peer::{Owner, PeerAv, SendDone};
use ferrofabric_contracts::types::{FiAddr, IoBuf, SendOp, total_len};
use ferrofabric_verbs_sys::ibv_wc_status;

use super::DgramTransport;
use super::handles::PathResult;
use super::send_queue::DgramSendQueue;
use super::waiting::{SendPayload, WaitingDatagram, WaitingSends};

/// The sends of an endpoint.
pub(super) struct Sends {
    /// Posted sends.
    pub(super) queue: DgramSendQueue,
    /// Sends that wait for an address handle or for room.
    pub(super) waiting: WaitingSends,
}

impl DgramTransport {
    /// Sends a message, or puts it in line.
    ///
    /// # Safety
    ///
    /// As [`ferrofabric_contracts::peer::Transport::send`].
    #[inline]
    pub(super) unsafe fn send_message<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        route: &mut Option<u32>,
        owner: &mut O,
    ) -> Result<(), OpError> {
        let payload = SendPayload::behind(self.prefix, iov)?;
        let at = match *route {
            Some(at) => at as usize,
            None => {
                let at = self.find_or_add_route(op.dest, owner)?;
                *route = Some(at as u32);
                at
            }
        };
        let len = total_len(payload.buffers());
        let route = self.routes.at(at);
        if len > route.max_bytes {
            return Err(OpError::Failed(Errno::EMSGSIZE));
        }
        self.check_usable()?;
        let route = self.routes.at(at);
        let Some(handle) = &route.handle else {
            // SAFETY: the caller's promise.
            return unsafe { self.send_first(at, op, payload) };
        };
        let to = (route.qpn, route.qkey);
        // SAFETY: the caller's promise.
        unsafe {
            self.sends
                .queue
                .post(&self.qp, handle, to, op, payload.buffers())?;
        }
        self.counters.sent(len);
        Ok(())
    }

    #[cold]
    fn find_or_add_route<O: Owner>(&mut self, addr: FiAddr, owner: &O) -> Result<usize, OpError> {
        if let Some(at) = self.routes.find(addr) {
            return Ok(at);
        }
        let name = owner
            .av()
            .lookup(addr)
            .ok_or(OpError::Failed(Errno::EADDRNOTAVAIL))?;
        name.verbs
            .and_then(|peer| self.routes.add(addr, &peer, &self.port))
            .ok_or(OpError::Failed(Errno::EHOSTUNREACH))
    }

    /// Sends to a peer whose route has no handle yet; or queues the message until there is one.
    ///
    /// # Safety
    ///
    /// As [`send_message`](Self::send_message).
    #[cold]
    unsafe fn send_first(
        &mut self,
        at: usize,
        op: &SendOp,
        payload: SendPayload,
    ) -> Result<(), OpError> {
        let path = self.routes.at(at).path;
        let asked = self.sends.waiting.awaits(&path);
        if !asked {
            if let Some(handle) = self.handles.of(path) {
                let route = self.routes.at(at);
                route.handle = Some(handle.clone());
                let to = (route.qpn, route.qkey);
                // SAFETY: the caller's promise.
                unsafe {
                    self.sends
                        .queue
                        .post(&self.qp, &handle, to, op, payload.buffers())?;
                }
                self.counters.sent(total_len(payload.buffers()));
                return Ok(());
            }
        }
        if self.sends.waiting.is_full() {
            if !asked {
                // No send waits for the handle, but a resolver makes it. Its result needs no
                // report.
                self.sends.waiting.await_without_send(path);
            }
            return Err(OpError::Again);
        }
        // SAFETY: the caller's promise.
        let buffers = unsafe { SendBuffers::new(op.flags, payload.buffers()) };
        self.sends
            .waiting
            .wait_for(path, WaitingDatagram { op: *op, buffers });
        Ok(())
    }

    /// Sends that were posted up to this number are over.
    #[inline]
    pub(super) fn sent<O: Owner>(&mut self, number: u32, status: ibv_wc_status, owner: &mut O) {
        if !self.sends.queue.has(number) {
            // The send was ended when the queue pair was reset.
            return;
        }
        while let Some(wqe) = self.sends.queue.pop() {
            let last = wqe.number == number;
            if last && status != ibv_wc_status::IBV_WC_SUCCESS {
                self.send_failed(&wqe.done, status, owner);
            } else {
                owner.complete_send(&wqe.done);
            }
            if last {
                break;
            }
        }
    }

    #[cold]
    fn send_failed<O: Owner>(&mut self, done: &SendDone, status: ibv_wc_status, owner: &mut O) {
        let text = self.qp.pd().context().status_text(status);
        tracing::debug!("datagram from {} failed: {text}", *self.qp);
        self.counters.failed += 1;
        owner.fail_send(
            done,
            Errno::EIO,
            status.0 as i32,
            "the device could not send the datagram: its memory may not be registered (any more)",
        );
        // The device accepts no more requests after that.
        self.recover();
    }

    /// Ends the held-back sends that the device then rejected.
    #[cold]
    pub(super) fn fail_refused<O: Owner>(&mut self, owner: &mut O) -> usize {
        let refused = self.sends.queue.take_refused();
        for (done, errno) in &refused {
            self.counters.failed += 1;
            owner.fail_send(done, *errno, 0, "the device did not take the datagram");
        }
        // The last accepted send before them was not signaled.
        self.request_reset(false);
        refused.len()
    }

    /// Takes the resolvers' results, and the events of the device.
    #[cold]
    pub(super) fn take_results<O: Owner>(&mut self, owner: &mut O) -> usize {
        let results = self.handles.results();
        let done = results.len() + self.take_events(owner);
        for one in results {
            match one {
                PathResult::Ready(path) => self.sends.waiting.has_handle(&path),
                PathResult::Failed(path, error) => {
                    tracing::debug!("{error}");
                    for waiting in self.sends.waiting.take(&path) {
                        self.counters.failed += 1;
                        owner.fail_send(
                            &SendDone::of(&waiting.op, 0),
                            Errno::EHOSTUNREACH,
                            error.errno().0,
                            "the peer's address does not resolve: its host may be down",
                        );
                    }
                }
            }
        }
        done
    }

    /// Posts the sends that wait for room alone. Returns their number.
    #[cold]
    pub(super) fn send_ready<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut done = 0;
        while let Some(waiting) = self.sends.waiting.pop_ready() {
            let payload = waiting.buffers.list();
            // A peer that was removed meanwhile has no sends in line.
            let Some(at) = self.routes.find(waiting.op.dest) else {
                continue;
            };
            let route = self.routes.at(at);
            let handle = match &route.handle {
                Some(handle) => handle.clone(),
                None => match self.handles.of(route.path) {
                    Some(handle) => route.handle.insert(handle).clone(),
                    None => {
                        let path = route.path;
                        self.sends.waiting.wait_for(path, waiting);
                        continue;
                    }
                },
            };
            let to = (route.qpn, route.qkey);
            // SAFETY: the sender keeps its buffers until the completion; a copy has flag INJECT,
            // and is copied again.
            let posted = unsafe {
                self.sends
                    .queue
                    .post(&self.qp, &handle, to, &waiting.op, payload)
            };
            match posted {
                Ok(()) => self.counters.sent(total_len(payload)),
                Err(OpError::Again) => {
                    self.sends.waiting.put_back(waiting);
                    break;
                }
                Err(OpError::Failed(errno)) => {
                    let why = "the device did not take the datagram";
                    owner.fail_send(&SendDone::of(&waiting.op, 0), errno, 0, why);
                }
            }
            done += 1;
        }
        done
    }

    /// Fails the waiting sends that `which` selects.
    pub(super) fn fail_waiting<O: Owner>(
        &mut self,
        which: impl Fn(&SendOp) -> bool,
        errno: Errno,
        why: &'static str,
        owner: &mut O,
    ) {
        for waiting in self.sends.waiting.take_those(which) {
            owner.fail_send(&SendDone::of(&waiting.op, 0), errno, 0, why);
        }
    }

    /// The queue pair is given up: posted sends fail.
    pub(super) fn fail_posted_sends<O: Owner>(&mut self, why: &'static str, owner: &mut O) {
        while let Some(wqe) = self.sends.queue.pop() {
            self.counters.failed += 1;
            owner.fail_send(&wqe.done, Errno::EIO, 0, why);
        }
        self.sends.queue.restart();
    }

    /// The queue pair was reset: posted sends are over, and their fate is unknown.
    pub(super) fn end_posted_sends<O: Owner>(&mut self, owner: &mut O) {
        while let Some(wqe) = self.sends.queue.pop() {
            owner.complete_send(&wqe.done);
        }
        self.sends.queue.restart();
    }
}
