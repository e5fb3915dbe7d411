//! The reset of the queue pair, after which all receives are posted anew. Only a reset recalls a
//! receive that the device has, and makes the queue pair work after a request has failed. The queue
//! pair keeps its number; datagrams that arrive meanwhile are lost, as on the wire.

use std::mem::MaybeUninit;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::peer::Owner;
use ferrofabric_verbs_sys::ibv_wc;

use super::receive::CANCELLED;
use super::{DgramTransport, POLL};
use crate::device::device_queue_failed;
use crate::qp::UdFailure;

/// Whether the queue pair works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// It works.
    Well,
    /// Its send queue is in error, and goes on when all sends under way are flushed.
    SendsFailed,
    /// It has to be reset when no send is under way any more.
    ToBeReset,
    /// It cannot be used again.
    Dead,
}

impl DgramTransport {
    /// Whether requests can be posted.
    #[inline]
    pub(super) fn check_usable(&self) -> Result<(), OpError> {
        match self.health {
            Health::Well => Ok(()),
            Health::SendsFailed | Health::ToBeReset => Err(OpError::Again),
            Health::Dead => Err(OpError::Failed(Errno::EIO)),
        }
    }

    /// A request has failed, and with it the queue pair, or its send queue alone.
    #[cold]
    pub(super) fn recover(&mut self) {
        let goes_on = matches!(self.health, Health::Well | Health::SendsFailed);
        if goes_on && self.qp.failure() == Some(UdFailure::Sends) {
            self.sends.queue.post_held_back(&self.qp);
            self.health = Health::SendsFailed;
        } else {
            self.request_reset(true);
        }
    }

    /// Requests a reset of the queue pair, as soon as no send is under way. `broken`: the sends
    /// under way may not end by themselves.
    #[cold]
    pub(super) fn request_reset(&mut self, broken: bool) {
        if self.health == Health::Dead {
            return;
        }
        self.sends.queue.post_held_back(&self.qp);
        if broken && !self.flushing {
            // So that each request under way ends for certain.
            self.flushing = true;
            if let Err(error) = self.qp.to_error() {
                tracing::warn!("{error}");
            }
        }
        self.health = Health::ToBeReset;
    }

    /// Resets the queue pair if it is time to. Returns whether it did.
    #[cold]
    pub(super) fn renew<O: Owner>(&mut self, owner: &mut O) -> usize {
        if self.health == Health::Dead || self.sends.queue.has_signaled() {
            return 0;
        }
        if self.health == Health::SendsFailed {
            match self.qp.resume_sends() {
                Ok(()) => self.health = Health::Well,
                Err(error) => {
                    tracing::warn!("{error}");
                    self.request_reset(true);
                }
            }
            return 1;
        }
        self.counters.resets += 1;
        // The completions still in the queue need no repair of their own: the reset follows.
        self.flushing = true;
        match self.reset(owner) {
            Ok(()) => (self.health, self.flushing) = (Health::Well, false),
            Err(error) => {
                tracing::error!("{} could not be made ready again: {error}", *self.qp);
                self.die(device_queue_failed(self.qp.pd().context().name()), owner);
            }
        }
        1
    }

    fn reset<O: Owner>(&mut self, owner: &mut O) -> Result<(), String> {
        let text = |error: ferrofabric_contracts::error::Error| error.to_string();
        // A reset removes completions that were not taken, or leaves them in the queue.
        self.empty_queue(owner)?;
        self.qp.to_reset().map_err(text)?;
        self.empty_queue(owner)?;
        self.end_posted_sends(owner);
        for receive in self.receives.all_back() {
            self.fail_receive(&receive, Errno::ECANCELED, CANCELLED, owner);
        }
        self.qp.to_init(&self.init).map_err(text)?;
        self.receives
            .post_again(&self.qp)
            .map_err(|e| e.to_string())?;
        self.qp.to_rtr().map_err(text)?;
        self.qp.to_rts(self.init.psn).map_err(text)
    }

    /// Takes what is in the completion queue, however much comes meanwhile.
    fn empty_queue<O: Owner>(&mut self, owner: &mut O) -> Result<(), String> {
        let mut room = [MaybeUninit::<ibv_wc>::uninit(); POLL];
        let cq = self.cq.clone();
        for _ in 0..=cq.depth() as usize / POLL {
            let completions = cq.poll(&mut room).map_err(|e| e.to_string())?;
            if completions.is_empty() {
                break;
            }
            self.completed(completions, owner);
        }
        Ok(())
    }

    /// Ends the endpoint, and all its operations for this reason.
    #[cold]
    pub(super) fn die<O: Owner>(&mut self, why: &'static str, owner: &mut O) {
        if self.health == Health::Dead {
            return;
        }
        tracing::error!("{} is given up: {why}", *self.qp);
        self.sends.queue.post_held_back(&self.qp);
        self.health = Health::Dead;
        // No memory of the application belongs to the device any more.
        let _ = self.qp.to_reset();
        self.fail_posted_sends(why, owner);
        self.fail_waiting(|_| true, Errno::EIO, why, owner);
        for receive in self.receives.take_all() {
            self.fail_receive(&receive, Errno::EIO, why, owner);
        }
    }
}
