//! Rendezvous: a large message moves by one-sided operations, straight from buffer to buffer. Which
//! side does it depends on the sender's device.
//!
//! The receiver reads:
//!
//! ```text
//!   sender  [SendTable]                      receiver  [Transfers of reads]
//!      insert → op   ──── Rts{op, segments} ───►   start(what fits)
//!                    ◄═══ RDMA reads ═══════════   next_chunk … on_chunk
//!      on_fin → T    ◄─── Fin{op, status} ──────   the last is in
//! ```
//!
//! The sender writes:
//!
//! ```text
//!   sender  [SendTable, Transfers of writes]  receiver  [a table of what waits]
//!      insert → op   ──── Rts{op, length} ─────►   matched
//!      start(what fits) ◄─ Cts{op, buffer} ─────   insert → receive
//!      next_chunk …  ════ RDMA writes ═════════►
//!      the last is posted ─ Done{receive} ─────►   remove → T
//! ```
//!
//! Both survive a lane: chunks that were lost with it are handed out again. Reads may be repeated
//! at will. Writes are repeated only once the receiver has fenced the old lane, and before the Done
//! behind them.

use std::collections::VecDeque;

use thiserror::Error;

use super::table::{Key, KeyedTable};
use super::wire::data::MemorySegment;

/// Cuts pieces of a message where the receiver's buffers end, so that no piece goes to two of them.
/// `lens` are the lengths of the buffers in bytes, in order; the rest beyond the last buffer stays
/// whole.
#[must_use]
pub fn cut_at_buffers(
    segments: Vec<MemorySegment>,
    lens: impl IntoIterator<Item = u64>,
) -> Vec<MemorySegment> {
    let mut lens = lens.into_iter();
    let mut room = lens.next().unwrap_or(u64::MAX);
    let mut cut = Vec::with_capacity(segments.len());
    for mut rest in segments {
        while rest.length_bytes > 0 {
            while room == 0 {
                room = lens.next().unwrap_or(u64::MAX);
            }
            let length_bytes = rest.length_bytes.min(room);
            cut.push(MemorySegment {
                length_bytes,
                ..rest
            });
            rest.address += length_bytes;
            rest.length_bytes -= length_bytes;
            room -= length_bytes;
        }
    }
    cut
}

/// The sender's messages of one session that wait for their Fin. A table per session: a peer can
/// end only what was sent to it.
#[derive(Clone, Debug)]
pub struct SendTable<T> {
    ops: KeyedTable<T>,
    limit: usize,
}

/// Messages beyond the limit of a [`SendTable`] that its receiver has pulled: they have receives.
const PULLED: usize = 4096;

/// A Fin for an operation that is not (or no longer) there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the peer ended operation {0:#x}, which does not exist")]
pub struct StaleOp(pub u64);

impl<T> SendTable<T> {
    /// An empty table of at most `limit` messages.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        SendTable {
            ops: KeyedTable::new(limit.saturating_add(PULLED)),
            limit,
        }
    }

    /// Enters a message before its request goes out; returns the number for
    /// [`Request::op`](crate::wire::data::RendezvousRequest::op).
    ///
    /// # Errors
    /// Gives `message` back while the table is full: try again when one has ended.
    pub fn insert(&mut self, message: T) -> Result<u64, T> {
        match self.is_full() {
            true => Err(message),
            false => self.insert_pulled(message),
        }
    }

    /// As [`SendTable::insert`], for a message that the receiver has pulled: it waits for no
    /// message without a receive.
    ///
    /// # Errors
    /// Gives `message` back while too many pulled ones are under way.
    pub fn insert_pulled(&mut self, message: T) -> Result<u64, T> {
        self.ops.insert(message).map(Key::to_bits)
    }

    /// Has it take another number of messages at most. Those that are there stay.
    pub fn change_limit(&mut self, limit: usize) {
        self.ops.change_limit(limit.saturating_add(PULLED));
        self.limit = limit;
    }

    /// Takes out the message that a Fin names.
    ///
    /// # Errors
    /// [`StaleOp`]: the peer is broken or hostile.
    pub fn on_fin(&mut self, op: u64) -> Result<T, StaleOp> {
        self.ops.remove(Key::from_bits(op)).ok_or(StaleOp(op))
    }

    /// All messages.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.ops.iter().map(|(_, message)| message)
    }

    /// Takes out all messages: the session failed.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.ops.drain().into_iter().map(|(_, message)| message)
    }

    /// Messages that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether no other can be entered now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.ops.len() >= self.limit
    }

    /// Whether no pulled one can be entered now.
    #[must_use]
    pub fn is_full_of_pulled(&self) -> bool {
        self.ops.is_full()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

/// How the chunks of a session are cut and shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferLimits {
    /// Largest chunk in bytes: a good one, or the device's largest message if that is less. 0
    /// counts as 1.
    pub chunk_bytes: u64,
    /// Chunks under way in all. 0 counts as 1.
    pub chunks: u32,
    /// Chunks under way per message. 0 counts as 1.
    pub chunks_per_message: u32,
    /// Messages being moved.
    pub messages: usize,
}

impl Default for TransferLimits {
    fn default() -> Self {
        TransferLimits {
            chunk_bytes: 1 << 20,
            chunks: 16,
            chunks_per_message: 4,
            messages: 1 << 20,
        }
    }
}

/// One read or write to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The transfer it belongs to.
    pub transfer: Key,
    /// Its place in the message, in bytes.
    pub offset_bytes: u64,
    /// The piece of the sender's memory: within one of its segments.
    pub source: MemorySegment,
    /// Nothing of the message is left to be handed out.
    pub is_last: bool,
}

/// The messages that one side of a session moves.
#[derive(Clone, Debug)]
pub struct Transfers<T> {
    limits: TransferLimits,
    transfers: KeyedTable<Transfer<T>>,
    /// Transfers that may post a chunk, in turn.
    runnable: VecDeque<Key>,
    under_way: u32,
    /// Transfers with chunks that were lost and are not handed out again yet.
    broken: usize,
    /// Largest chunk now: less than the limit for a while after [`Transfers::shrink`].
    chunk_bytes: u64,
    /// Chunks that are done.
    moved: u64,
    /// Chunks that were done at the last change of the chunk size.
    moved_before: u64,
}

/// Chunks are not cut smaller than this because they fail, in bytes.
const LEAST_CHUNK_BYTES: u64 = 4096;

/// Chunks that have to succeed before they are cut larger again.
const GROW_AFTER: u64 = 256;

#[derive(Clone, Debug)]
struct Transfer<T> {
    owner: T,
    fit_bytes: u64,
    segments: Vec<MemorySegment>,
    /// Next byte to hand out: in the message, and as segment and offset in it.
    next_offset: u64,
    next_segment: usize,
    next_in_segment: u64,
    /// Chunks that were lost with their lane.
    lost: Vec<(u64, MemorySegment)>,
    under_way: u32,
    queued: bool,
}

impl<T> Transfers<T> {
    /// No transfers yet.
    #[must_use]
    pub fn new(limits: TransferLimits) -> Self {
        let limits = TransferLimits {
            chunk_bytes: limits.chunk_bytes.max(1),
            chunks: limits.chunks.max(1),
            chunks_per_message: limits.chunks_per_message.max(1),
            ..limits
        };
        Transfers {
            limits,
            transfers: KeyedTable::new(limits.messages),
            runnable: VecDeque::new(),
            under_way: 0,
            broken: 0,
            chunk_bytes: limits.chunk_bytes,
            moved: 0,
            moved_before: 0,
        }
    }

    /// Chunks may have been lost for their size: on a network that loses packets a long operation
    /// needs more tries than a device has. They are cut to a quarter from here on, until many have
    /// succeeded.
    pub fn shrink(&mut self) {
        let least = LEAST_CHUNK_BYTES.min(self.limits.chunk_bytes);
        self.chunk_bytes = (self.chunk_bytes / 4).max(least);
        self.moved_before = self.moved;
    }

    /// Chunks that are done, of all transfers so far.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Starts to move the first `fit_bytes` (more than 0, and no more than there are) of a message
    /// that lies in `segments`.
    ///
    /// # Errors
    /// Gives `owner` back while too many transfers are under way.
    pub fn start(
        &mut self,
        owner: T,
        segments: Vec<MemorySegment>,
        fit_bytes: u64,
    ) -> Result<Key, T> {
        let transfer = Transfer {
            owner,
            fit_bytes,
            segments,
            next_offset: 0,
            next_segment: 0,
            next_in_segment: 0,
            lost: Vec::new(),
            under_way: 0,
            queued: true,
        };
        let key = self.transfers.insert(transfer).map_err(|t| t.owner)?;
        self.runnable.push_back(key);
        Ok(key)
    }

    /// The next chunk to post, if the budget allows one; transfers take turns. Each is answered by
    /// [`Transfers::on_chunk`] or [`Transfers::on_lost`].
    pub fn next_chunk(&mut self) -> Option<Chunk> {
        while self.under_way < self.limits.chunks {
            let key = self.runnable.pop_front()?;
            let Some(transfer) = self.transfers.get_mut(key) else {
                continue;
            };
            transfer.queued = false;
            let had_lost = !transfer.lost.is_empty();
            let chunk = transfer
                .cut_lost(self.chunk_bytes)
                .or_else(|| transfer.cut(self.chunk_bytes));
            self.broken -= usize::from(had_lost && transfer.lost.is_empty());
            let Some((offset_bytes, source)) = chunk else {
                continue;
            };
            transfer.under_way += 1;
            self.under_way += 1;
            let is_last = !transfer.has_more();
            self.requeue(key);
            return Some(Chunk {
                transfer: key,
                offset_bytes,
                source,
                is_last,
            });
        }
        None
    }

    /// A chunk is done, in any order. Says whether that was the last of its transfer. A stale key
    /// changes nothing.
    pub fn on_chunk(&mut self, transfer: Key) -> bool {
        let Some(state) = self.transfers.get_mut(transfer) else {
            return false;
        };
        let Some(under_way) = state.under_way.checked_sub(1) else {
            return false;
        };
        state.under_way = under_way;
        self.under_way -= 1;
        self.moved += 1;
        if self.chunk_bytes < self.limits.chunk_bytes
            && self.moved - self.moved_before >= GROW_AFTER
        {
            self.chunk_bytes = (2 * self.chunk_bytes).min(self.limits.chunk_bytes);
            self.moved_before = self.moved;
        }
        let done = under_way == 0 && !state.has_more();
        self.requeue(transfer);
        done
    }

    /// A chunk was lost with its lane: it comes again, before what was not handed out yet. A stale
    /// key changes nothing.
    pub fn on_lost(&mut self, transfer: Key, offset_bytes: u64, source: MemorySegment) {
        let Some(state) = self.transfers.get_mut(transfer) else {
            return;
        };
        let Some(under_way) = state.under_way.checked_sub(1) else {
            return;
        };
        state.under_way = under_way;
        self.under_way -= 1;
        if state.lost.is_empty() {
            self.broken += 1;
        }
        state.lost.push((offset_bytes, source));
        if !state.queued {
            state.queued = true;
            self.runnable.push_front(transfer);
        }
    }

    /// Whether lost chunks wait to be handed out again.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.broken != 0
    }

    /// Ends a transfer.
    pub fn remove(&mut self, transfer: Key) -> Option<T> {
        let state = self.transfers.remove(transfer)?;
        self.under_way -= state.under_way;
        self.broken -= usize::from(!state.lost.is_empty());
        Some(state.owner)
    }

    /// The session is over, and all that was posted is flushed: no device touches the memory any
    /// more. Takes all out.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        self.runnable.clear();
        self.under_way = 0;
        self.broken = 0;
        self.transfers
            .drain()
            .into_iter()
            .map(|(_, transfer)| transfer.owner)
    }

    /// The owner's value for a transfer.
    #[must_use]
    pub fn owner(&self, transfer: Key) -> Option<&T> {
        self.transfers.get(transfer).map(|t| &t.owner)
    }

    /// The owner's values for all transfers.
    pub fn owners(&self) -> impl Iterator<Item = &T> {
        self.transfers.iter().map(|(_, transfer)| &transfer.owner)
    }

    /// As [`Transfers::owner`], to be changed.
    pub fn owner_mut(&mut self, transfer: Key) -> Option<&mut T> {
        self.transfers.get_mut(transfer).map(|t| &mut t.owner)
    }

    /// The transfer whose owner passes `test`, if there is one.
    #[cfg(test)]
    pub(crate) fn find(&self, test: impl Fn(&T) -> bool) -> Option<Key> {
        let mut all = self.transfers.iter();
        all.find(|(_, transfer)| test(&transfer.owner))
            .map(|(key, _)| key)
    }

    /// Transfers under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.transfers.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Chunks that were given out and are not done.
    #[must_use]
    pub fn under_way(&self) -> u32 {
        self.under_way
    }

    /// Puts a transfer back in line if it may post another chunk.
    fn requeue(&mut self, key: Key) {
        let Some(transfer) = self.transfers.get_mut(key) else {
            return;
        };
        if !transfer.queued
            && transfer.has_more()
            && transfer.under_way < self.limits.chunks_per_message
        {
            transfer.queued = true;
            self.runnable.push_back(key);
        }
    }
}

impl<T> Transfer<T> {
    fn has_more(&self) -> bool {
        !self.lost.is_empty() || self.next_offset < self.fit_bytes
    }

    /// As [`Transfer::cut`], for the chunks that were lost last.
    fn cut_lost(&mut self, chunk_bytes: u64) -> Option<(u64, MemorySegment)> {
        let (offset, mut source) = self.lost.pop()?;
        if source.length_bytes > chunk_bytes {
            let rest = MemorySegment {
                address: source.address.wrapping_add(chunk_bytes),
                length_bytes: source.length_bytes - chunk_bytes,
                rkey: source.rkey,
            };
            self.lost.push((offset + chunk_bytes, rest));
            source.length_bytes = chunk_bytes;
        }
        Some((offset, source))
    }

    /// Cuts the next chunk: at most `chunk_bytes`, within one segment and within what fits.
    fn cut(&mut self, chunk_bytes: u64) -> Option<(u64, MemorySegment)> {
        if self.next_offset >= self.fit_bytes {
            return None;
        }
        let segment = *self.segments.get(self.next_segment)?;
        let offset = self.next_offset;
        let left = segment.length_bytes - self.next_in_segment;
        let length_bytes = left.min(chunk_bytes).min(self.fit_bytes - offset);
        let source = MemorySegment {
            address: segment.address.wrapping_add(self.next_in_segment),
            length_bytes,
            rkey: segment.rkey,
        };
        self.next_offset += length_bytes;
        self.next_in_segment += length_bytes;
        if self.next_in_segment == segment.length_bytes {
            self.next_segment += 1;
            self.next_in_segment = 0;
        }
        Some((offset, source))
    }
}

#[cfg(test)]
mod tests;
