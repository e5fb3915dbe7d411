//! The way of one-sided operations to a transport that carries them out by itself
//! (`docs/adr/0063`), and their end. Those that are lost go again as messages.

use std::collections::VecDeque;

use ferrofabric_contracts::buffers::SendBuffers;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::part::{RegionName, RemotePlace};
use ferrofabric_contracts::peer::{Routed, Shortcut, ShortcutEnd, Transport};
use ferrofabric_contracts::types::{FiAddr, IoBuf, RmaKind, RmaOp, total_len};

use crate::domain::owner::EndpointOwner;
use crate::domain::rma::parts::failure;
use crate::domain::{Backend, DomainState, Inner};
use crate::rma::as_initiator::shortcuts::ShortcutUnderWay;
use crate::rma::grants::NO_GRANT;
use crate::rma::operations::{RemoteOperations, place_of};
use crate::rma::orders::effects_of;

/// Has the transport carry out a one-sided operation by itself. Returns whether it did, or does.
///
/// # Safety
///
/// As [`Endpoint::rma`](crate::fabric::Endpoint::rma).
///
/// # Errors
///
/// `Again`: the transport has no room now.
pub(in crate::domain) unsafe fn took_shortcut<B: Backend>(
    domain: &Inner<B>,
    state: &mut DomainState<B::Transport>,
    index: usize,
    op: &RmaOp,
    iov: &[IoBuf],
) -> Result<bool, OpError> {
    let at_once;
    let mut op = op;
    // A request that is held back would wake no thread that sleeps.
    if op.flags.contains(Flags::MORE) && state.is_watched() {
        at_once = without_more(op);
        op = &at_once;
    }
    let (transport, mut owner) =
        state.endpoints[index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
    let remote = &mut owner.srx.remote;
    let number = remote.shortcuts.under_way.vacant_key() as u64;
    let found = (remote.held).find(op, total_len(iov) as u64, number);
    let (memory, grant) = found.unzip();
    // SAFETY: the caller's contract.
    match unsafe { transport.shortcut(op, iov, memory.as_ref(), &mut owner) } {
        Shortcut::Impossible => return Ok(false),
        Shortcut::NeedsGrant { lane } => {
            owner.srx.query_if_due(op, lane);
            return Ok(false);
        }
        Shortcut::Again => {
            transport.flush(&mut owner);
            return Err(OpError::Again);
        }
        Shortcut::Done => {
            let remote = &mut owner.srx.remote;
            let place = (op.kind == RmaKind::Read && !remote.read_order.is_empty())
                .then(|| remote.read_order.begin(op.dest));
            owner.shortcut_done(op, place, total_len(iov));
        }
        Shortcut::UnderWay => {
            let remote = &mut owner.srx.remote;
            let mut place = None;
            if op.kind == RmaKind::Read {
                match remote.read_order.is_empty() {
                    true => remote.read_order.unlined += 1,
                    false => place = Some(remote.read_order.begin(op.dest)),
                }
            }
            let one = ShortcutUnderWay {
                op: without_more(op),
                // SAFETY: the caller's contract.
                buffers: unsafe { SendBuffers::new(op.flags, iov) },
                grant: grant.unwrap_or(NO_GRANT),
                place,
                is_in_doubt: false,
                ended: None,
            };
            let at = remote.shortcuts.under_way.insert(one);
            debug_assert_eq!(at as u64, number);
        }
    }
    if !op.flags.contains(Flags::MORE) {
        transport.flush(&mut owner);
    }
    owner.start_deferred(transport);
    domain.wake(state);
    Ok(true)
}

/// An operation whose request is not held back.
#[inline]
fn without_more(op: &RmaOp) -> RmaOp {
    RmaOp {
        flags: op.flags - Flags::MORE,
        ..*op
    }
}

impl EndpointOwner<'_> {
    /// As [`Owner::shortcut_over`](ferrofabric_contracts::peer::Owner::shortcut_over).
    pub(in crate::domain) fn end_shortcut(&mut self, number: u64, end: ShortcutEnd) {
        let RemoteOperations {
            shortcuts,
            read_order,
            ..
        } = &mut self.srx.remote;
        let Some(mut one) = shortcuts.under_way.try_remove(number as usize) else {
            return;
        };
        let is_unlined = one.op.kind == RmaKind::Read && one.place.is_none();
        read_order.unlined -= usize::from(is_unlined);
        let (peer, grant) = (one.op.dest, one.grant);
        match (end, one.ended.take()) {
            (ShortcutEnd::Done, _) => {
                self.shortcut_done(&one.op, one.place, total_len(one.buffers.list()));
            }
            (_, Some(why)) => self.fail_shortcut(&one, *why),
            (end, None) => {
                if is_unlined {
                    one.place = Some(self.srx.remote.read_order.begin(peer));
                }
                if end == ShortcutEnd::Denied {
                    self.srx.remote.held.deny(peer, one.op.key);
                }
                one.is_in_doubt = end == ShortcutEnd::Lost && grant != NO_GRANT;
                self.srx.send_again(one);
            }
        }
        if self.srx.remote.shortcuts.was_last(peer, grant) {
            self.srx.send_revoked(peer, grant);
        }
    }

    fn fail_shortcut(&mut self, one: &ShortcutUnderWay, (errno, why): (Errno, &'static str)) {
        let (op, why) = (&one.op, (errno, 0, why));
        match one.place {
            Some(place) => self.end_read(place, op, Err(why)),
            None => self.rma_failed(op.kind, failure(op.kind, op.context, op.dest, why)),
        }
    }

    /// Issues the lost operations again as messages, as far as the transport takes them. Those to
    /// one peer keep their order.
    pub(in crate::domain) fn send_lost<T: Transport>(&mut self, transport: &mut Routed<T>) {
        let lost = std::mem::take(&mut self.srx.remote.shortcuts.lost);
        let mut full: Vec<FiAddr> = Vec::new();
        let mut waiting = VecDeque::new();
        let mut gone = Vec::new();
        for one in lost {
            let peer = one.op.dest;
            let effects = effects_of(&one.op);
            let waits = full.contains(&peer)
                || (self.srx.remote).waits_for_messages(effects, (peer, self.first_of(peer)));
            let sent = match waits {
                true => Err(OpError::Again),
                false => self.send_one_again(transport, &one),
            };
            match sent {
                Ok(()) => gone.push((peer, one.grant)),
                Err(OpError::Again) => {
                    full.push(peer);
                    waiting.push_back(one);
                }
                Err(OpError::Failed(errno)) => {
                    gone.push((peer, one.grant));
                    self.fail_shortcut(&one, (errno, "the peer is not reached"));
                }
            }
        }
        let since = std::mem::replace(&mut self.srx.remote.shortcuts.lost, waiting);
        self.srx.remote.shortcuts.lost.extend(since);
        // Behind the operations that were begun by the grant.
        for (peer, grant) in gone {
            if self.srx.remote.shortcuts.was_last(peer, grant) {
                self.srx.send_revoked(peer, grant);
            }
        }
    }

    fn send_one_again<T: Transport>(
        &mut self,
        transport: &mut Routed<T>,
        one: &ShortcutUnderWay,
    ) -> Result<(), OpError> {
        let (op, list) = (&one.op, one.buffers.list());
        let remote = &mut self.srx.remote;
        let at = match one.is_in_doubt {
            true => RemotePlace {
                region: RegionName::Grant(one.grant),
                place: op.place,
            },
            false => place_of(op),
        };
        match op.kind {
            RmaKind::Write => {
                let part = match one.is_in_doubt {
                    true => remote.begin_noticed_write(op, at),
                    false => remote.begin_write(op),
                };
                // SAFETY: the application keeps the buffers until the operation completes; a copy
                // is copied again (`INJECT`).
                let sent = unsafe { transport.send(&part, list, self) };
                if sent.is_err() {
                    self.srx.remote.forget(part.kind, part.context);
                }
                sent
            }
            RmaKind::Read => {
                let (part, request) = remote.begin_read_at(at, op, list, one.place)?;
                let from = [IoBuf::new(request.as_ptr(), request.len())];
                // SAFETY: a request is copied (`INJECT`).
                let sent = unsafe { transport.send(&part, &from, self) };
                let remote = &mut self.srx.remote;
                match sent {
                    Ok(()) => remote.set_requested(part.context),
                    // It keeps its place.
                    Err(_) => drop(remote.take_read(part.context)),
                }
                sent
            }
        }
    }
}
