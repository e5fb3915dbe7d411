//! The regions of a domain that peers reach by themselves, and the end of such a region.
//!
//! The peers of all endpoints of a domain read one [board](crate::board). Each of their segments
//! has a hazard word, which the close of a region looks at. So each segment that was handed over
//! with the board is listed here: from before its hand-over until its link has ended, and longer if
//! the peer is at work at that moment.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ferrofabric_runtime::fabric::MrAttr;
use ferrofabric_system::forked::Birth;
use ferrofabric_system::locks::Mutex;

use crate::board::{BoardMemory, BoardRegion};
use crate::liveness::Liveness;
use crate::segment::{SegmentSide, ShmSegment};
use crate::sync::{Ordering, fence};

/// Segments of one pair of endpoints that have ended while their peer seemed to be at work. A peer
/// works on one at a time, and each look takes it for two at most.
const ENDED_OF_PAIR: usize = 4;

/// The regions of a domain on its board.
#[derive(Debug)]
pub struct RegionBoard {
    birth: Birth,
    /// `None`: processes are not to copy, or the kernel can not make it.
    memory: Option<BoardMemory>,
    state: Mutex<BoardState>,
}

#[derive(Debug, Default)]
struct BoardState {
    /// The entries of regions, by the numbers that the domain gave them. `true`: still shown.
    entries: HashMap<usize, (usize, bool)>,
    segments: Vec<WatchedSegment>,
}

/// A segment whose peer may read the board.
#[derive(Debug)]
struct WatchedSegment {
    segment: Arc<ShmSegment>,
    /// The side of the peer.
    peer_side: SegmentSide,
    /// The ids of the own endpoint and of the peer's.
    pair: (u64, u64),
    has_ended: bool,
}

impl WatchedSegment {
    fn names(&self, entry: Option<usize>) -> bool {
        self.segment.hazard(self.peer_side).names(entry)
    }
}

impl RegionBoard {
    /// The board of a new domain. If it is not on, processes are not to copy from each other's
    /// memory.
    pub fn new(is_on: bool) -> Arc<Self> {
        let make = || match BoardMemory::create() {
            Ok(memory) => Some(memory),
            Err(error) => {
                tracing::info!(%error, "one-sided operations of peers go as messages");
                None
            }
        };
        Arc::new(Self {
            birth: Birth::here(),
            memory: is_on.then(make).flatten(),
            state: Mutex::default(),
        })
    }

    /// The descriptor for peers, if there is a board.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.memory.as_ref().map(BoardMemory::fd)
    }

    /// Shows a region to peers. Its number is that of no other region that is shown. If there is no
    /// place for it, it is not shown, and peers reach it by messages.
    pub fn show(&self, number: usize, key: u64, attr: &MrAttr<'_>) {
        let Some(memory) = &self.memory else { return };
        let state = &mut *self.state.lock();
        state.entries.remove(&number);
        let shown = memory.show(&BoardRegion {
            key,
            window: attr.window(),
            backing: attr.backing,
        });
        if let Some(entry) = shown {
            state.entries.insert(number, (entry, true));
        }
    }

    /// Takes a region off the board. Peers begin no operation on it any more; those under way go
    /// on as long as it [is in use](Self::is_in_use).
    pub fn hide(&self, number: usize) {
        let state = &mut *self.state.lock();
        let Some((entry, is_shown)) = state.entries.get_mut(&number) else {
            return;
        };
        // Another region may have the entry of one that is hidden.
        if let (true, Some(memory)) = (std::mem::take(is_shown), &self.memory) {
            memory.entry(*entry).hide();
        }
    }

    /// Whether a peer is at work on a region that is hidden. A peer that is gone is not.
    pub fn is_in_use(&self, number: usize) -> bool {
        let state = &mut *self.state.lock();
        state.drop_idle();
        let Some(&(entry, _)) = state.entries.get(&number) else {
            return false;
        };
        let mut named = (state.segments.iter())
            .filter(|watched| watched.names(Some(entry)))
            .peekable();
        // Nothing is opened for it while no peer is at work.
        if named.peek().is_none() {
            return false;
        }
        match Liveness::new() {
            Ok(liveness) => named.any(|watched| liveness.exists(watched.pair.1)),
            Err(_) => true,
        }
    }

    /// Lists a segment, before it is handed over.
    pub(crate) fn watch(
        self: &Arc<Self>,
        segment: &Arc<ShmSegment>,
        own_side: SegmentSide,
        pair: (u64, u64),
    ) -> BoardWatch {
        let state = &mut *self.state.lock();
        state.drop_idle();
        state.segments.push(WatchedSegment {
            segment: segment.clone(),
            peer_side: own_side.other(),
            pair,
            has_ended: false,
        });
        BoardWatch {
            board: self.clone(),
            segment: segment.clone(),
            own_side,
        }
    }

    /// Segments that are listed.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn watched(&self) -> usize {
        self.state.lock().segments.len()
    }
}

impl BoardState {
    /// Drops the segments of ended links whose peers are at work no more, or are gone.
    fn drop_idle(&mut self) {
        self.segments
            .retain(|watched| !watched.has_ended || watched.names(None));
        if !self.segments.iter().any(|watched| watched.has_ended) {
            return;
        }
        if let Ok(liveness) = Liveness::new() {
            self.segments
                .retain(|watched| !watched.has_ended || liveness.exists(watched.pair.1));
        }
    }

    /// The link of a segment has ended, and the peer begins nothing any more.
    fn end(&mut self, segment: &Arc<ShmSegment>) {
        let is_it = |watched: &&mut WatchedSegment| Arc::ptr_eq(&watched.segment, segment);
        let Some(ended) = self.segments.iter_mut().find(is_it) else {
            return;
        };
        ended.has_ended = true;
        let pair = ended.pair;
        self.drop_idle();
        // A peer may claim to be at work for ever, in any number of segments.
        let of_pair = |watched: &WatchedSegment| watched.has_ended && watched.pair == pair;
        let ended = self.segments.iter().filter(|one| of_pair(one)).count();
        if ended > ENDED_OF_PAIR {
            if let Some(first) = self.segments.iter().position(of_pair) {
                self.segments.remove(first);
            }
        }
    }
}

/// A segment on the list. Its end is that of the link.
#[derive(Debug)]
pub(crate) struct BoardWatch {
    board: Arc<RegionBoard>,
    segment: Arc<ShmSegment>,
    own_side: SegmentSide,
}

impl Drop for BoardWatch {
    fn drop(&mut self) {
        // The links that a child has inherited go on.
        if !self.board.birth.is_this_process() {
            return;
        }
        self.segment.status(self.own_side).close();
        // Pairs with the fence of `Hazard::protect`: either the peer sees that the link is closed,
        // or the look below sees its hazard.
        fence(Ordering::SeqCst);
        self.board.state.lock().end(&self.segment);
    }
}

#[cfg(test)]
mod tests;
