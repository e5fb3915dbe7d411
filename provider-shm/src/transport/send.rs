//! Sends that do not fit in one slot at once: over a link, or to a peer without a link yet.

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::peer::{Owner, PeerAv, SendDone};
use ferrofabric_contracts::requester::index_of;
use ferrofabric_contracts::send_line::SendLine;
use ferrofabric_contracts::types::{IoBuf, SendOp, total_len};

use super::ShmTransport;
use crate::link::{SendOutcome, ShmLink};
use crate::peers::{PeerState, ShmRoute};
use crate::pending::{PendingSend, has_room};
use crate::segment::ShmSegment;
use crate::service::ServiceCommand;
use crate::stats::ShmStats;

impl ShmTransport {
    /// Sends a message that does not fit in one slot, or not now.
    ///
    /// # Safety
    ///
    /// As for `Transport::send`.
    #[inline(never)]
    pub(super) unsafe fn send_long<O: Owner>(
        &mut self,
        key: usize,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> std::result::Result<(), OpError> {
        let link = &mut *self.links[key];
        let stats = self.receiver.stats_mut();
        // SAFETY: the caller's contract.
        match unsafe { link.send(op, iov, &mut self.outbox, stats) } {
            Ok(SendOutcome::Done) => owner.complete_send(&SendDone::of(op, total_len(iov))),
            Ok(SendOutcome::Later) => self.wake_progress(key),
            Ok(SendOutcome::Again) => return Err(OpError::Again),
            Err(broken) => {
                self.fail_link(key, Errno::EPROTO, broken.0, owner);
                return Err(OpError::Failed(Errno::EPROTO));
            }
        }
        Ok(())
    }

    /// Sends a reply over the link that the request came by.
    ///
    /// # Safety
    ///
    /// As for `Transport::send`.
    #[inline(never)]
    pub(super) unsafe fn send_reply<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> std::result::Result<(), OpError> {
        let key = index_of(op.dest);
        let link = self
            .links
            .get_mut(key)
            .filter(|link| link.requester() == op.dest);
        let Some(link) = link else {
            // SAFETY: the caller's contract.
            return unsafe { self.reply_after_close(op, iov, owner) };
        };
        let len = total_len(iov);
        if !link.has_requested_close() && link.takes_inline(op, len) {
            link.request_is_answered();
            // SAFETY: `takes_inline` returned true; the buffers are the caller's contract.
            unsafe { send_inline(link, op, iov, len, self.receiver.stats_mut()) };
            owner.complete_send(&SendDone::of(op, len));
            return Ok(());
        }
        // SAFETY: the caller's contract.
        let sent = unsafe { self.send_long(key, op, iov, owner) };
        if sent.is_ok() {
            if let Some(link) = self.links.get_mut(key) {
                link.request_is_answered();
            }
        }
        sent
    }

    /// Sends to an address whose route does not lead to a link.
    ///
    /// # Safety
    ///
    /// As for `Transport::send`.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn send_first<O: Owner>(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        route: &mut ShmRoute,
        owner: &mut O,
    ) -> std::result::Result<(), OpError> {
        let id = match self.peers.id(op.dest) {
            Some(id) if !self.peers.needs_link(id) => id,
            _ => {
                let native = owner
                    .av()
                    .lookup(op.dest)
                    .ok_or(OpError::Failed(Errno::EADDRNOTAVAIL))?;
                let id = native.shm.ok_or(OpError::Failed(Errno::EHOSTUNREACH))?;
                if native.node != self.node && native.node != 0 && self.node != 0 {
                    return Err(OpError::Failed(Errno::EHOSTUNREACH));
                }
                self.peers.set_id(op.dest, id);
                if self.peers.needs_link(id) {
                    self.peers
                        .set(id, PeerState::Connecting(SendLine::default()));
                    if let Err(error) = self.connect(id, native, owner) {
                        self.peers.remove(id);
                        return Err(error);
                    }
                }
                id
            }
        };
        match self.peers.get_mut(id) {
            Some(PeerState::Up(key)) => {
                let key = *key;
                if !self.links[key].has_requested_close() {
                    *route = self.peers.route_to(key);
                }
                // SAFETY: the caller's contract.
                unsafe { self.send_long(key, op, iov, owner) }
            }
            Some(PeerState::Connecting(queue)) => {
                if !has_room(queue, op, self.config.queue_sends) {
                    return Err(OpError::Again);
                }
                self.receiver.stats_mut().queued += 1;
                // SAFETY: the caller's contract.
                queue.push(unsafe { PendingSend::new(op, iov) });
                Ok(())
            }
            Some(PeerState::Gone(errno)) => Err(OpError::Failed(*errno)),
            Some(PeerState::IdleClosed(_)) | None => Err(OpError::Again),
        }
    }

    /// Requests a link with a peer in state `Connecting`; a link with oneself is made at once.
    pub(super) fn connect<O: Owner>(
        &mut self,
        id: u64,
        native: NativeAddr,
        owner: &mut O,
    ) -> std::result::Result<(), OpError> {
        if id != self.id {
            self.service.request(ServiceCommand::Connect(native));
            return Ok(());
        }
        let (segment, _) = ShmSegment::create().map_err(|e| OpError::Failed(e.errno()))?;
        let link = ShmLink::loopback(segment, native, id, &self.shared, self.sizes);
        self.link_up(link, owner);
        Ok(())
    }
}

/// Sends a message over a link for which `takes_inline` has returned true.
///
/// # Safety
///
/// As for `Transport::send`, and the buffers are `len` bytes long together.
#[inline(always)]
pub(super) unsafe fn send_inline(
    link: &mut ShmLink,
    op: &SendOp,
    iov: &[IoBuf],
    len: usize,
    stats: &mut ShmStats,
) {
    // SAFETY: the caller's contract.
    unsafe { link.send_inline(op, iov, len, stats) };
    stats.sent += 1;
    stats.sent_bytes += len as u64;
    stats.sent_inline += 1;
}
