//! Rendezvous: the receiver fetches a message by RDMA read, in chunks, and tells the sender that it is done.
//!
//! ```text
//!   sender  [SendTable]                      receiver  [Fetcher, one per lane]
//!      insert → op   ──── Rts{op, segments} ───►   start(what fits)
//!                    ◄═══ RDMA reads ═══════════   next_read … on_read
//!      on_fin → T    ◄─── Fin{op, status} ──────   Fetched
//! ```
//!
//! A fetch that fails waits for its reads under way before it ends: until then the device may write to the buffer.

use std::collections::VecDeque;

use thiserror::Error;

use super::table::{Key, Table};
use super::wire::data::{FinStatus, Request, Segment};

/// The sender's messages of one session that wait for their Fin. A table per session: a peer can end only what was
/// sent to it.
#[derive(Clone, Debug)]
pub struct SendTable<T> {
    ops: Table<T>,
}

/// A Fin for an operation that is not (or no longer) there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the peer ended operation {0:#x}, which is not there")]
pub struct StaleOp(pub u64);

impl<T> SendTable<T> {
    /// An empty table of at most `limit` messages.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        SendTable {
            ops: Table::new(limit),
        }
    }

    /// Enters a message before its request goes out; returns the number for [`Request::op`].
    ///
    /// # Errors
    /// Gives `message` back while the table is full: try again when one has ended.
    pub fn insert(&mut self, message: T) -> Result<u64, T> {
        self.ops.insert(message).map(Key::to_bits)
    }

    /// Takes out the message that a Fin names.
    ///
    /// # Errors
    /// [`StaleOp`]: the peer is broken or hostile.
    pub fn on_fin(&mut self, op: u64) -> Result<T, StaleOp> {
        self.ops.remove(Key::from_bits(op)).ok_or(StaleOp(op))
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

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

/// How a lane's reads are cut and shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchLimits {
    /// Largest read in bytes: a good chunk, or the device's largest message if that is less. 0 counts as 1.
    pub chunk_bytes: u64,
    /// Reads under way per lane. 0 counts as 1.
    pub reads_per_lane: u32,
    /// Reads under way per message. 0 counts as 1.
    pub reads_per_op: u32,
    /// Messages being fetched per lane.
    pub ops_per_lane: usize,
}

impl Default for FetchLimits {
    fn default() -> Self {
        FetchLimits {
            chunk_bytes: 1 << 20,
            reads_per_lane: 16,
            reads_per_op: 4,
            ops_per_lane: 1 << 20,
        }
    }
}

/// A read to post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The fetch it belongs to.
    pub fetch: Key,
    /// Where it goes: offset in the message in bytes.
    pub offset_bytes: u64,
    /// Where it comes from, within one segment of the sender.
    pub source: Segment,
}

/// A read failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("RDMA read failed")]
pub struct ReadFailed;

/// A fetch that has ended: send a Fin and complete the receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched<T> {
    /// What the owner gave to [`Fetcher::start`].
    pub receive: T,
    /// The sender's operation, for the Fin.
    pub op: u64,
    /// How it went, for the Fin and the completion.
    pub status: FinStatus,
    /// Length of the sender's message in bytes.
    pub total_bytes: u64,
    /// How much of it was fetched; less than the total if the buffer was too small (truncation).
    pub fetched_bytes: u64,
}

/// What [`Fetcher::start`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Started<T> {
    /// Reads are to be had from [`Fetcher::next_read`].
    Reading(Key),
    /// There is nothing to read: the message, or the buffer, is empty.
    Done(Fetched<T>),
}

/// The receiver's fetches over one lane.
#[derive(Clone, Debug)]
pub struct Fetcher<T> {
    limits: FetchLimits,
    fetches: Table<Fetch<T>>,
    /// Fetches that may post a read, in turn.
    runnable: VecDeque<Key>,
    reads_under_way: u32,
}

#[derive(Clone, Debug)]
struct Fetch<T> {
    receive: T,
    op: u64,
    total_bytes: u64,
    fit_bytes: u64,
    segments: Vec<Segment>,
    /// Next byte to read: in the message, and as segment and offset in it.
    next_offset: u64,
    next_segment: usize,
    next_in_segment: u64,
    reads_under_way: u32,
    queued: bool,
    failed: Option<FinStatus>,
}

impl<T> Fetcher<T> {
    /// A fetcher with nothing to do.
    #[must_use]
    pub fn new(limits: FetchLimits) -> Self {
        let limits = FetchLimits {
            chunk_bytes: limits.chunk_bytes.max(1),
            reads_per_lane: limits.reads_per_lane.max(1),
            reads_per_op: limits.reads_per_op.max(1),
            ..limits
        };
        Fetcher {
            limits,
            fetches: Table::new(limits.ops_per_lane),
            runnable: VecDeque::new(),
            reads_under_way: 0,
        }
    }

    /// Starts to fetch a message into a buffer of `fit_bytes`.
    ///
    /// # Errors
    /// Gives `receive` back while too many fetches are under way: keep the request and try when one has ended.
    pub fn start(
        &mut self,
        receive: T,
        request: &Request<'_>,
        fit_bytes: u64,
    ) -> Result<Started<T>, T> {
        self.start_segments(receive, request.op, request.segments().collect(), fit_bytes)
    }

    /// As [`Fetcher::start`], for a request that was kept.
    ///
    /// # Errors
    /// As [`Fetcher::start`].
    pub fn start_segments(
        &mut self,
        receive: T,
        op: u64,
        segments: Vec<Segment>,
        fit_bytes: u64,
    ) -> Result<Started<T>, T> {
        let total_bytes = segments
            .iter()
            .fold(0u64, |sum, s| sum.saturating_add(s.length_bytes));
        let fit_bytes = fit_bytes.min(total_bytes);
        if fit_bytes == 0 {
            let status = FinStatus::Ok;
            return Ok(Started::Done(Fetched {
                receive,
                op,
                status,
                total_bytes,
                fetched_bytes: 0,
            }));
        }
        let fetch = Fetch {
            receive,
            op,
            total_bytes,
            fit_bytes,
            segments,
            next_offset: 0,
            next_segment: 0,
            next_in_segment: 0,
            reads_under_way: 0,
            queued: true,
            failed: None,
        };
        let key = self.fetches.insert(fetch).map_err(|fetch| fetch.receive)?;
        self.runnable.push_back(key);
        Ok(Started::Reading(key))
    }

    /// The next read to post, if the budget allows one; fetches take turns. Each read is answered by
    /// [`Fetcher::on_read`], or undone by [`Fetcher::not_posted`] at once.
    pub fn next_read(&mut self) -> Option<Read> {
        while self.reads_under_way < self.limits.reads_per_lane {
            let key = self.runnable.pop_front()?;
            let Some(fetch) = self.fetches.get_mut(key) else {
                continue;
            };
            fetch.queued = false;
            let Some((offset_bytes, source)) = fetch.cut(self.limits.chunk_bytes) else {
                continue;
            };
            fetch.reads_under_way += 1;
            self.reads_under_way += 1;
            self.requeue(key);
            return Some(Read {
                fetch: key,
                offset_bytes,
                source,
            });
        }
        None
    }

    /// The read that [`Fetcher::next_read`] gave last could not be posted (a full send queue): it comes again.
    pub fn not_posted(&mut self, read: Read) {
        let Some(fetch) = self.fetches.get_mut(read.fetch) else {
            return;
        };
        fetch.rewind(read.offset_bytes);
        fetch.reads_under_way -= 1;
        self.reads_under_way -= 1;
        if !fetch.queued {
            fetch.queued = true;
            self.runnable.push_front(read.fetch);
        }
    }

    /// A read has completed, in any order. Returns the fetch if that ended it. A stale key changes nothing.
    pub fn on_read(&mut self, fetch: Key, result: Result<(), ReadFailed>) -> Option<Fetched<T>> {
        let state = self.fetches.get_mut(fetch)?;
        state.reads_under_way = state.reads_under_way.checked_sub(1)?;
        self.reads_under_way -= 1;
        if result.is_err() {
            state.failed = state.failed.or(Some(FinStatus::ReadFailed));
        }
        self.requeue(fetch);
        self.end_if_done(fetch)
    }

    /// Stops a fetch: no more reads; it ends as cancelled when those under way have. Returns it if that is now.
    pub fn cancel(&mut self, fetch: Key) -> Option<Fetched<T>> {
        let state = self.fetches.get_mut(fetch)?;
        state.failed = state.failed.or(Some(FinStatus::Cancelled));
        self.end_if_done(fetch)
    }

    /// The lane is gone and all its work requests are flushed: no device writes any more. Takes out every fetch.
    pub fn drain(&mut self) -> impl Iterator<Item = Fetched<T>> + use<T> {
        self.runnable.clear();
        self.reads_under_way = 0;
        self.fetches
            .drain()
            .into_iter()
            .map(|(_, fetch)| fetch.ended(FinStatus::ReadFailed))
    }

    /// What the owner gave for a fetch; `None` once it has ended.
    #[must_use]
    pub fn receive(&self, fetch: Key) -> Option<&T> {
        self.fetches.get(fetch).map(|fetch| &fetch.receive)
    }

    /// Fetches under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fetches.len()
    }

    /// Whether there is no fetch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fetches.is_empty()
    }

    /// Reads that were given out and have not completed.
    #[must_use]
    pub fn reads_under_way(&self) -> u32 {
        self.reads_under_way
    }

    /// Puts a fetch back in line if it may post another read.
    fn requeue(&mut self, key: Key) {
        let Some(fetch) = self.fetches.get_mut(key) else {
            return;
        };
        if !fetch.queued && fetch.has_more() && fetch.reads_under_way < self.limits.reads_per_op {
            fetch.queued = true;
            self.runnable.push_back(key);
        }
    }

    fn end_if_done(&mut self, key: Key) -> Option<Fetched<T>> {
        let fetch = self.fetches.get(key)?;
        if fetch.reads_under_way > 0 || fetch.has_more() {
            return None;
        }
        self.fetches.remove(key).map(|fetch| {
            let status = fetch.failed.unwrap_or(FinStatus::Ok);
            fetch.ended(status)
        })
    }
}

impl<T> Fetch<T> {
    fn has_more(&self) -> bool {
        self.failed.is_none() && self.next_offset < self.fit_bytes
    }

    /// Cuts the next chunk: at most `chunk_bytes`, within one segment and within what fits.
    fn cut(&mut self, chunk_bytes: u64) -> Option<(u64, Segment)> {
        if !self.has_more() {
            return None;
        }
        while self.segments.get(self.next_segment)?.length_bytes == 0 {
            self.next_segment += 1;
        }
        let segment = self.segments[self.next_segment];
        let offset = self.next_offset;
        let left = segment.length_bytes - self.next_in_segment;
        let length_bytes = left.min(chunk_bytes).min(self.fit_bytes - offset);
        let source = Segment {
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

    /// Goes back to `offset`, the start of the chunk cut last.
    fn rewind(&mut self, offset: u64) {
        self.next_offset = offset;
        let mut start = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            if offset - start < segment.length_bytes {
                self.next_segment = index;
                self.next_in_segment = offset - start;
                return;
            }
            start += segment.length_bytes;
        }
    }

    fn ended(self, status: FinStatus) -> Fetched<T> {
        let fetched_bytes = if status == FinStatus::Ok {
            self.fit_bytes
        } else {
            0
        };
        Fetched {
            receive: self.receive,
            op: self.op,
            status,
            total_bytes: self.total_bytes,
            fetched_bytes,
        }
    }
}

#[cfg(test)]
mod tests;
