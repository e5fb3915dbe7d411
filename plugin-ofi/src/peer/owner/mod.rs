//! The objects that an endpoint lends to a provider written in C, which is its peer (fi_peer(3)): a
//! shared receive context, a completion queue, and counters of its peers' reads and writes.
//!
//! The contract:
//!
//! - The C provider gets the objects when its endpoint is opened, and has them until its endpoint
//!   is closed. Each endpoint has its own. They lie in memory that is reused and never freed.
//! - Every call into the C provider goes through [`enter`](ForeignObjects::enter), so that the
//!   callbacks in it find the owner. Those of other threads, within other callbacks, or outside of
//!   any call are kept until [`drain`](ForeignObjects::drain).
//! - No callback calls into C, but for the C provider's own function in `foreach_unspec_addr`. The
//!   caller starts the messages that callbacks have matched when its call is over.
//! - An entry that is not this endpoint's, or is in another state, is refused by `-FI_EINVAL` or
//!   does nothing. It is not read.
//! - An entry has memory for the whole message. Bytes beyond the receive go to memory of ours, and
//!   the owner reports the truncation. A list of buffers is received in one piece
//!   ([`PeerSrx::in_one_piece`](ferrofabric_contracts::peer::PeerSrx::in_one_piece)).
//! - The C provider has the IDs of its address vector from its caller (`FI_AV_USER_ID`): dense
//!   numbers of peers, whose addresses are set by [`set_source`](ForeignObjects::set_source).

mod cntr;
mod context;
mod cq;
mod entries;
mod late;
mod mailbox;
mod objects;
mod queued;
mod receives;
mod scope;
mod sends;
mod srx;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::{AnyOwner, SendDone, Start, Token};
use ferrofabric_contracts::types::{FiAddr, MsgKind};

use self::context::OperationContext;
use self::objects::{ObjectBlock, OwnerFunctions};
use crate::abi::{fid_peer_cntr, fid_peer_cq, fid_peer_srx, link_bytes};
use crate::host::Host;

/// The objects of one endpoint. The value is dropped when the C provider's endpoint is closed.
pub(crate) struct ForeignObjects {
    block: &'static ObjectBlock,
    /// One thread at a time has the objects.
    not_shared: PhantomData<Cell<()>>,
}

// A transport moves with its domain from thread to thread.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<ForeignObjects>();
};

impl ForeignObjects {
    /// Objects for an endpoint. Tokens of its messages have the number of its transport.
    pub(crate) fn new(transport: u32) -> Self {
        Self::of_version(transport, Host::get().map_or(u32::MAX, Host::version))
    }

    /// As `new`, with receive entries as a version of libfabric has them.
    fn of_version(transport: u32, version: u32) -> Self {
        let block = ObjectBlock::take();
        block.open(transport, link_bytes(version), owner_functions());
        Self {
            block,
            not_shared: PhantomData,
        }
    }

    /// The shared receive context, for the context of `fi_srx_context`.
    pub(crate) fn srx(&self) -> *mut fid_peer_srx {
        self.block.srx.get()
    }

    /// The completion queue of sends and receives.
    pub(crate) fn cq(&self) -> *mut fid_peer_cq {
        self.block.cq.get()
    }

    /// The counters of peers' reads and of their writes. Nothing counts on them.
    pub(crate) fn remote_cntrs(&self) -> [*mut fid_peer_cntr; 2] {
        let first = self.block.cntrs.get().cast::<fid_peer_cntr>();
        [first, first.wrapping_add(1)]
    }

    /// Runs a call into the C provider in which callbacks find the owner. A call within the call
    /// ends with the outer owner in its place again.
    #[inline]
    pub(crate) fn enter<R>(&self, owner: &mut dyn AnyOwner, call: impl FnOnce() -> R) -> R {
        scope::enter(self.block, owner, call)
    }

    /// Does the work that callbacks without an owner have left, and calls the C provider where that
    /// needs it. Returns how many of them had an effect. Outside of [`enter`](Self::enter).
    #[inline]
    pub(crate) fn drain(&self, owner: &mut dyn AnyOwner) -> usize {
        match self.block.mailbox.has_calls() || !self.block.tables.borrow().due.is_empty() {
            true => late::drain(self.block, owner),
            false => 0,
        }
    }

    /// How many callbacks had an effect since the last call of this.
    #[inline]
    pub(crate) fn take_calls(&self) -> usize {
        std::mem::take(&mut self.block.tables.borrow_mut().calls)
    }

    /// A number for a send to the peer of a number, which the C provider gets as its context. The
    /// completion with that context reports the send to the owner.
    #[inline]
    pub(crate) fn add_send(&self, peer: u64, done: SendDone) -> usize {
        self.block.tables.borrow_mut().sends.add(peer, done).0 as usize
    }

    /// The C provider has refused a send: its context is not valid any more. `None`: it was not.
    pub(crate) fn withdraw_send(&self, context: usize) -> Option<SendDone> {
        let context = OperationContext(context as u64);
        let ended = self.block.tables.borrow_mut().sends.end(context)?;
        (!ended.has_failed).then_some(ended.done)
    }

    /// Sends that the C provider has under way, without those that were
    /// [failed](Self::fail_sends).
    #[inline]
    pub(crate) fn sends_under_way(&self) -> usize {
        self.block.tables.borrow().sends.under_way()
    }

    /// Reports all sends under way to the peer of a number as failed. Their completions do nothing
    /// any more.
    pub(crate) fn fail_sends(
        &self,
        peer: u64,
        errno: Errno,
        why: &'static str,
        owner: &mut dyn AnyOwner,
    ) {
        let mut from = 0;
        let mut next = || {
            let mut tables = self.block.tables.borrow_mut();
            tables.sends.fail_next(peer, &mut from)
        };
        while let Some(done) = next() {
            owner.fail_send(&done, errno, 0, why);
        }
    }

    /// Reports all receives as failed that a message of the peer of a number has met and not ended.
    pub(crate) fn fail_receives(
        &self,
        peer: u64,
        errno: Errno,
        why: &'static str,
        owner: &mut dyn AnyOwner,
    ) {
        receives::fail_all_of(self.block, owner, peer, errno, why);
    }

    /// A queued message has got a receive: the C provider starts it. Its end may come later.
    pub(crate) fn start(&self, start: Start, owner: &mut dyn AnyOwner) {
        queued::start(self.block, owner, &start);
    }

    /// A queued message is dropped. The C provider discards those of up to `inject_size` bytes, and
    /// receives longer ones into memory of ours. Nothing is reported.
    pub(crate) fn discard(
        &self,
        kind: MsgKind,
        token: Token,
        inject_size: usize,
        owner: &mut dyn AnyOwner,
    ) {
        queued::discard(self.block, owner, kind, token, inject_size);
    }

    /// The peer of a number is `src` from now on: so is the source of its queued messages that had
    /// none.
    pub(crate) fn resolve(&self, number: u64, src: FiAddr, owner: &mut dyn AnyOwner) {
        queued::resolve(self.block, owner, number, src);
    }

    /// Whether there are queued messages without a source.
    #[cfg(test)]
    pub(crate) fn has_unknown_sources(&self) -> bool {
        self.block.tables.borrow().unknown != 0
    }

    /// Sets the address of the peer of a number, which later messages of that number have as their
    /// source; [`FiAddr::NOTAVAIL`] when it is removed. Queued messages of its former address have
    /// no source from then on.
    pub(crate) fn set_source(&self, number: u64, src: FiAddr) {
        queued::set_source(self.block, number, src);
    }

    /// Reports the statistics, by name and number.
    pub(crate) fn stats(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let (received, bytes, unexpected) = {
            let tables = self.block.tables.borrow();
            (tables.received, tables.received_bytes, tables.unexpected)
        };
        report("peer_received", received);
        report("peer_bytes_received", bytes);
        report("peer_unexpected", unexpected);
        report("peer_refused_calls", self.block.refused());
        report("peer_thread_calls", self.block.late.load(Ordering::Relaxed));
    }
}

/// The functions that C calls.
fn owner_functions() -> OwnerFunctions {
    OwnerFunctions {
        srx: srx::OPS.as_ptr(),
        cq: cq::OPS.as_ptr(),
        cntr: cntr::OPS.as_ptr(),
    }
}

impl Drop for ForeignObjects {
    fn drop(&mut self) {
        self.block.give_back();
    }
}
