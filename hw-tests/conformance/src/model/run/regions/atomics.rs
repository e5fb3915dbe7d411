//! The words of a region that atomic operations change. Nothing else uses them until all of these
//! have ended; then the oracle judges them, and the model goes on with the content of the memory.

use std::ops::Range;

use super::RunRegion;
use crate::model::history::NodeNumber;
use crate::model::oracle::atomics::{AtomicCall, AtomicEnd, AtomicHistory, AtomicVerdict};
use crate::model::run::Wrong;

/// Bytes of a read behind atomic operations, at most: each is judged by itself.
const MOST_READ: usize = 256;

impl RunRegion {
    /// Whether an atomic operation may begin that has this place: no read and no write uses it, but
    /// for those of the same initiator and target if it is `fenced`, and the atomic operations
    /// there may be under way at the same time.
    pub(in super::super) fn takes_atomic(&self, call: &AtomicCall, fenced: bool) -> bool {
        let mut used = self.uses.iter().filter(|used| used.overlaps(&call.place));
        let mut open = (self.atomics.iter()).filter(|history| history.overlaps(&call.place));
        used.all(|used| fenced && used.by == call.by && !used.is_lost)
            // The content of memory that is not here follows from one order alone.
            && open.all(|history| history.takes(call, self.elsewhere))
    }

    /// The place of the atomic operations under way of an initiator and a target, if a fenced read
    /// of `len` bytes may begin there.
    pub(in super::super) fn place_behind_atomics(
        &self,
        within: &Range<usize>,
        by: (NodeNumber, NodeNumber),
        len: usize,
    ) -> Option<usize> {
        let histories = self.atomics.iter().filter(|history| history.is_by(by));
        let mut starts = histories.map(|history| history.place.start);
        starts.find(|&start| {
            let read = AtomicCall::read(usize::MAX, by, start..start + len);
            let is_inside = within.contains(&start) && read.place.end <= within.end;
            is_inside && (1..=MOST_READ).contains(&len) && self.takes_atomic(&read, false)
        })
    }

    /// Places where operations under way end.
    pub(in super::super) fn ends_of_uses(&self) -> impl Iterator<Item = usize> {
        let ends = self.uses.iter().map(|used| used.place.end);
        ends.chain(self.atomics.iter().map(|history| history.place.end))
    }

    /// Whether the model has no content for these bytes yet, since atomic operations change them.
    pub(in super::super) fn has_open_atomics(&self, place: &Range<usize>) -> bool {
        (self.atomics.iter()).any(|history| history.overlaps(place))
    }

    /// An atomic operation begins.
    pub(in super::super) fn begin_atomic(&mut self, call: AtomicCall) {
        let mut new = AtomicHistory::new(call);
        let (joined, apart) = std::mem::take(&mut self.atomics)
            .into_iter()
            .partition(|history| history.overlaps(&new.place));
        self.atomics = apart;
        let joined: Vec<AtomicHistory> = joined;
        joined.into_iter().for_each(|history| new.join(history));
        self.atomics.push(new);
    }

    /// An atomic operation is over. After the last one on their bytes, all are judged.
    pub(in super::super) fn end_atomic(
        &mut self,
        number: usize,
        end: AtomicEnd,
    ) -> Result<(), Wrong> {
        let at = (self.atomics.iter()).position(|history| history.has(number));
        let at = at.ok_or("an atomic operation completes that has been judged")?;
        self.atomics[at].end(number, end)?;
        match self.atomics[at].is_over() {
            true => {
                let history = self.atomics.swap_remove(at);
                self.judge_atomics(&history)
            }
            false => Ok(()),
        }
    }

    /// Judges the atomic operations that may be carried out at any time, or not at all.
    ///
    /// # Errors
    ///
    /// No order of them explains the memory.
    pub(in super::super) fn judge_open_atomics(&mut self) -> Result<(), Wrong> {
        let histories = self.atomics.clone();
        let mut ended = histories.iter().filter(|history| !history.is_open());
        ended.try_for_each(|history| self.judge_atomics(history))
    }

    /// The content at the end of the region's life is the result of all operations on it.
    pub(super) fn close_atomics(&mut self) {
        for history in &mut self.atomics {
            history.after = Some(self.memory.bytes(history.place.clone()));
        }
    }

    /// Atomic operations that nobody can judge have ended. The model goes on with the content of
    /// the memory. If that is not here, nobody uses these bytes any more.
    fn adopt(&mut self, place: &Range<usize>) {
        if !self.elsewhere {
            self.image[place.clone()].copy_from_slice(&self.memory.bytes(place.clone()));
            return;
        }
        let uses = self.uses.iter_mut();
        for used in uses.filter(|used| used.is_lost && used.overlaps(place)) {
            let (start, end) = (used.place.start, used.place.end);
            used.place = start.min(place.start)..end.max(place.end);
        }
    }

    fn judge_atomics(&mut self, history: &AtomicHistory) -> Result<(), Wrong> {
        let place = history.place.clone();
        // Behind a fence, the write before it may have failed.
        if place.clone().any(|at| self.is_lost(at)) {
            self.adopt(&place);
            return Ok(());
        }
        let mut after = history.after.clone();
        if after.is_none() && !self.elsewhere {
            after = Some(self.memory.bytes(place.clone()));
        }
        match history.judge(&self.image[place.clone()], after.as_deref()) {
            AtomicVerdict::Forbidden(why) => Err(format!("region {:#x}: {why}", self.key)),
            AtomicVerdict::Allowed(bytes) => {
                self.image[place].copy_from_slice(after.as_ref().unwrap_or(&bytes));
                Ok(())
            }
            AtomicVerdict::Undecided => {
                let after = after.ok_or("one order has too many states")?;
                self.image[place].copy_from_slice(&after);
                Ok(())
            }
        }
    }
}
