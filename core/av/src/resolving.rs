//! The resolution of a table's [unresolved entries](super::unresolved): their insertion, the calls
//! of operations that need them resolved, and the batches of the threads that find their endpoints.

mod insertion;

use std::time::{Duration, Instant};

pub(crate) use insertion::AddrRun;

use super::format::reached_with;
use super::service::ResolveRequest;
use super::storage::Storage;
use super::table::AvTable;
use super::unresolved::{
    LONGEST_PAUSE, Refound, Resolution, ResolutionSchedule, ResolutionStage, Unresolved,
    UnresolvedEntries,
};
use ferrofabric_contracts::addr::{AuthKey, NativeAddr};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::peer::PeerAv;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::locks::MutexGuard;

/// How long one attempt to resolve an entry lasts at most. The thread takes others after that.
const ATTEMPT: Duration = Duration::from_secs(1);

/// How long a send waits for others that are at work on unresolved entries. Insertion of a large
/// range takes longer.
const TURN: Duration = Duration::from_millis(10);

/// The operation that needs a resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResolveFor {
    /// A look-up, which reports a failure once.
    LookUp,
    /// A send, which waits.
    Send,
    /// A directed receive: resolution also starts anew when a message comes from an unknown source.
    Receive,
}

/// The entries that a thread resolves at a time.
#[derive(Debug)]
pub(super) struct ResolutionBatch {
    pub(super) all: Vec<ResolutionAttempt>,
    /// Another process has resolved or removed an entry meanwhile, and sends wait for that.
    pub(super) is_awaited: bool,
    /// Senders that were not in and had come before.
    epoch: u64,
}

/// One attempt to resolve an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResolutionAttempt {
    pub(super) entry: u32,
    pub(super) request: ResolveRequest,
    key: Option<AuthKey>,
    generation: u32,
    ticket: u64,
}

/// The outcome of an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AttemptOutcome {
    /// The address that was resolved, unless its endpoint was in by another.
    pub(super) new: Option<FiAddr>,
    /// The resolution is over, and sends wait for that.
    pub(super) is_awaited: bool,
    /// Addresses whose endpoints were lost.
    pub(super) refound: Vec<RefoundEndpoint>,
}

/// The resolution of a lost endpoint's address has ended well. The address stays lost until
/// [`AvTable::note_refound`], so that no transport looks it up before all have left the former
/// endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefoundEndpoint {
    /// The address.
    pub addr: FiAddr,
    /// Whether another endpoint is there now.
    pub is_replaced: bool,
}

impl AvTable {
    /// Whether ranges of socket addresses need not be resolved before they are used.
    pub fn takes_ranges(&self) -> bool {
        matches!(self.store, Storage::Symmetric(_)) && self.auth_keys().is_none()
    }

    /// Whether it may have unresolved entries.
    #[inline]
    pub fn may_be_unresolved(&self) -> bool {
        self.unresolved.any()
    }

    /// The key with which a socket address was inserted.
    pub fn key_of_socket(&self, addr: FiAddr) -> Option<AuthKey> {
        self.socket(addr)?;
        let entry = self.model.entry(addr)?;
        self.unresolved.state.lock().key(&self.store, entry)
    }

    /// Why a look-up finds nothing at an address; `None`: it is not in. An unresolved entry is
    /// resolved from now on.
    pub fn resolve_for_lookup(&self, addr: FiAddr) -> Option<Unresolved> {
        self.resolve(addr, ResolveFor::LookUp, || {
            Some(self.unresolved.state.lock())
        })
    }

    /// Why a send finds nothing at an address; `None`: it is not in. An unresolved entry is
    /// resolved from now on, and transports hear of its removal. `Failed` with `EAGAIN`: others are
    /// at work on what is unresolved for longer than a send waits.
    pub fn resolve_for_send(&self, addr: FiAddr) -> Option<Unresolved> {
        self.resolve(addr, ResolveFor::Send, || {
            self.unresolved.state.try_lock_for(TURN)
        })
    }

    /// The same for a receive, which makes one call only: a failed resolution starts anew, now and
    /// with new unknown sources.
    pub fn resolve_for_recv(&self, addr: FiAddr) -> Option<Unresolved> {
        self.resolve(addr, ResolveFor::Receive, || {
            Some(self.unresolved.state.lock())
        })
    }

    fn resolve<'a>(
        &'a self,
        addr: FiAddr,
        wanted: ResolveFor,
        state: impl FnOnce() -> Option<MutexGuard<'a, ResolutionSchedule>>,
    ) -> Option<Unresolved> {
        if !self.unresolved.any() {
            return None;
        }
        let entry = self.model.entry(addr)?;
        let has_name = || self.store.generation(entry) & 1 == 1;
        // No lock for an entry that is resolved, as most are.
        let is_it = self.addr_when_resolved(entry) == addr;
        if is_it && has_name() && !self.unresolved.is_lost(&self.store, entry) {
            return Some(Unresolved::Resolved);
        }
        let Some(mut state) = state() else {
            return Some(Unresolved::Failed(Errno::EAGAIN));
        };
        let generation = self.store.generation(entry) | 1;
        if self.model.addr(entry, generation) != addr {
            return None;
        }
        if has_name() && !state.is_lost(&self.store, entry) {
            // Just now.
            return Some(Unresolved::Resolved);
        }
        let of_its_own = self.sockets.of(&self.store, entry, generation);
        of_its_own.or_else(|| state.ranges.socket(entry))?;
        match wanted {
            ResolveFor::Receive => drop(state.awaited.insert(entry)),
            ResolveFor::Send => self.subscriptions.subscribe_for_send(entry),
            ResolveFor::LookUp => {}
        }
        if let Some(first) = state.same(&self.store, entry) {
            let round = 0;
            return Some(match state.is_lost(&self.store, first) {
                // It has answered, and transports do not use it yet.
                true => Unresolved::Resolving(Resolution { generation, round }),
                false => Unresolved::Same(self.addr_when_resolved(first)),
            });
        }
        if state.is_refound(&self.store, entry) {
            let round = 0;
            return Some(Unresolved::Resolving(Resolution { generation, round }));
        }
        match state.search(entry, generation) {
            Some(mut search)
                if wanted == ResolveFor::LookUp && search.stage == ResolutionStage::Failed =>
            {
                search.stage = ResolutionStage::Reported;
                state.searches.insert(entry, search);
                return Some(Unresolved::Failed(search.last));
            }
            Some(search) if !search.has_failed() => {
                let is_sooner = match wanted {
                    ResolveFor::Send => state.use_search(entry, search),
                    ResolveFor::LookUp | ResolveFor::Receive => state.hasten(entry, search),
                };
                if is_sooner {
                    self.unresolved.came.notify_one();
                }
            }
            _ => {
                state.start(entry, generation, wanted == ResolveFor::Send);
                self.unresolved.came.notify_one();
            }
        }
        let round = state.searches.get(&entry).map_or(0, |search| search.round);
        Some(Unresolved::Resolving(Resolution { generation, round }))
    }

    /// The state of an entry whose resolution a send waits for; `None`: it was removed.
    pub fn outcome(&self, addr: FiAddr, of: Resolution) -> Option<Unresolved> {
        let entry = self.model.entry(addr)?;
        let mut state = self.unresolved.state.lock();
        let generation = self.store.generation(entry);
        if generation | 1 != of.generation {
            return None;
        }
        if generation & 1 == 1 && !state.is_lost(&self.store, entry) {
            return Some(Unresolved::Resolved);
        }
        if let Some(first) = state.same(&self.store, entry) {
            return Some(match state.is_lost(&self.store, first) {
                true => Unresolved::Resolving(of),
                false => Unresolved::Same(self.addr_when_resolved(first)),
            });
        }
        if state.is_refound(&self.store, entry) {
            return Some(Unresolved::Resolving(of));
        }
        let search = state.search(entry, of.generation);
        if let Some(failed) = search.filter(|search| search.round > of.round) {
            return Some(Unresolved::Failed(failed.last));
        }
        let is_sooner = match search {
            // Nobody waited for it before: its end would not be reported to the domain.
            Some(search) if !search.has_failed() => state.use_search(entry, search),
            // The entry that it was the same as is no more, or its endpoint was lost once more.
            _ => {
                state.start(entry, of.generation, true);
                true
            }
        };
        if is_sooner {
            self.unresolved.came.notify_one();
        }
        let round = state.searches.get(&entry).map_or(0, |search| search.round);
        Some(Unresolved::Resolving(Resolution { round, ..of }))
    }

    /// How long a resolution may take.
    pub(super) fn set_patience(&self, patience: Duration) {
        self.unresolved.state.lock().patience = patience;
    }

    /// There are threads for resolutions, or will be once there is a socket address.
    pub(super) fn set_served(&self) {
        self.unresolved.state.lock().is_served = true;
    }

    /// The endpoint at an address is gone, as its transport knows. Returns whether the address
    /// counts as unresolved from now on, because it was inserted by a socket address at which
    /// another endpoint may listen (`docs/adr/0087`). The next use starts the resolution; it starts
    /// at once if transports have unknown sources, of which one may be the next endpoint. The
    /// transport has to look the address up again.
    #[cold]
    pub fn note_lost(&self, addr: FiAddr, has_unknown_sources: bool) -> bool {
        if !self.unresolved.any() {
            return false;
        }
        let unresolved = &self.unresolved;
        // First: a removal forgets the socket address before it takes this lock, and frees the entry
        // after that.
        let mut state = unresolved.state.lock();
        let Some((entry, _)) = self.entry(addr).filter(|_| state.is_served) else {
            return false;
        };
        let generation = self.store.generation(entry) | 1;
        if self.model.addr(entry, generation) != addr {
            return false;
        }
        let of_its_own = self.sockets.of(&self.store, entry, generation);
        if of_its_own.or_else(|| state.ranges.socket(entry)).is_none() {
            // A socket address may stand for the same endpoint: its next use resolves it.
            state.same.retain(|_, same| same.first != entry);
            return false;
        }
        // The endpoint is an unknown source from now on.
        self.subscriptions.subscribe_to_sources();
        unresolved.lose(&mut state, entry, generation);
        if has_unknown_sources {
            state.restart(entry);
            unresolved.came.notify_one();
        }
        let has_failed = state.failed_awaited().next().is_some();
        let epoch = unresolved.source_epoch.current();
        if unresolved.source_epoch.note_failed(has_failed, epoch) {
            unresolved.restart_failed(&mut state);
        }
        true
    }

    /// The transports have left the former endpoint of a lost address. Returns the endpoint there,
    /// as [`PeerAv::lookup`](ferrofabric_contracts::peer::PeerAv) does from now on.
    #[cold]
    pub fn note_refound(&self, addr: FiAddr) -> Option<NativeAddr> {
        let entry = self.model.entry(addr)?;
        let mut state = self.unresolved.state.lock();
        if state.is_refound(&self.store, entry) {
            self.unresolved.forget_loss(&mut state, entry);
        }
        drop(state);
        self.lookup(addr)
    }

    /// Threads that wait for entries to resolve.
    pub(super) fn idle_threads(&self) -> usize {
        self.unresolved.state.lock().idle
    }

    /// The threads come to their end.
    pub(super) fn close_unresolved(&self) {
        self.unresolved.state.lock().closing = true;
        self.unresolved.came.notify_all();
    }

    /// Waits for entries to resolve; `None` when the address vector is being closed.
    pub(super) fn next_batch(&self) -> Option<ResolutionBatch> {
        let UnresolvedEntries {
            state,
            came,
            source_epoch,
            ..
        } = &self.unresolved;
        let mut state = state.lock();
        state.idle += 1;
        let entries = loop {
            if state.closing {
                break None;
            }
            match state.take() {
                Ok(entries) => break Some(entries),
                Err(Some(next)) => state = came.wait_until(state, next),
                Err(None) => state = came.wait(state),
            }
        };
        state.idle -= 1;
        let epoch = source_epoch.current();
        let now = Instant::now();
        let (mut all, mut is_awaited) = (Vec::new(), false);
        for entry in entries? {
            let is_used = state.searches.get(&entry).is_some_and(|search| search.used);
            let generation = self.store.generation(entry) | 1;
            let of_its_own = self.sockets.of(&self.store, entry, generation);
            let at = of_its_own.or_else(|| state.ranges.socket(entry));
            let is_unresolved =
                self.store.generation(entry) & 1 == 0 || state.is_lost(&self.store, entry);
            let at = at.filter(|_| is_unresolved);
            let (Some(at), Some(mut search)) = (at, state.search(entry, generation)) else {
                is_awaited |= is_used;
                state.end_search(entry);
                continue;
            };
            state.tickets += 1;
            search.stage = ResolutionStage::Attempted(state.tickets);
            state.searches.insert(entry, search);
            all.push(ResolutionAttempt {
                entry,
                request: ResolveRequest {
                    at,
                    until: search.until.min(now + ATTEMPT),
                },
                key: state.key(&self.store, entry),
                generation,
                ticket: state.tickets,
            });
        }
        // Entries may be left for other threads.
        came.notify_one();
        Some(ResolutionBatch {
            all,
            is_awaited,
            epoch,
        })
    }

    /// Takes in what came of an attempt, unless the entry was removed or resolved meanwhile.
    pub(super) fn complete_attempt(
        &self,
        attempt: &ResolutionAttempt,
        found: Result<NativeAddr>,
    ) -> AttemptOutcome {
        let turn = self.turn();
        let mut state = self.unresolved.state.lock();
        let generation = self.store.generation(attempt.entry);
        let searched = state.searches.get(&attempt.entry);
        let is_used = searched.is_some_and(|search| search.used);
        let Some(mut search) = state.search(attempt.entry, generation | 1) else {
            // Another process has removed it.
            return AttemptOutcome {
                is_awaited: is_used,
                ..AttemptOutcome::default()
            };
        };
        if search.stage != ResolutionStage::Attempted(attempt.ticket) {
            return AttemptOutcome::default();
        }
        let is_awaited = is_used;
        let is_lost = state.is_lost(&self.store, attempt.entry);
        if generation & 1 == 1 && !is_lost {
            // By another process.
            state.end_search(attempt.entry);
            return AttemptOutcome {
                is_awaited,
                ..AttemptOutcome::default()
            };
        }
        let keyed = |name| match (attempt.key, self.auth_keys()) {
            (Some(key), _) => reached_with(name, key),
            (None, None) => Ok(name),
            (None, Some(_)) => {
                Err(
                    Error::new(Errno::ENOKEY, "resolve", attempt.request.at.to_string())
                        .mend("the process that inserted the address knows its authorization key"),
                )
            }
        };
        let taken = turn.as_ref().map_err(Error::clone).and(found);
        let addr = self.addr_when_resolved(attempt.entry);
        let placed = taken.and_then(keyed).and_then(|name| {
            let name = name.to_words();
            let refound_here = |is_replaced| Some(RefoundEndpoint { addr, is_replaced });
            let (first, new, refound) = match is_lost {
                false => {
                    let first = state.resolved(&self.store, attempt.entry, &name)?;
                    (first, first.is_none().then_some(addr), None)
                }
                true => match state.refound(&self.store, attempt.entry, &name)? {
                    Refound::Unchanged => (None, None, refound_here(false)),
                    Refound::Replaced(first) => (first, None, refound_here(true)),
                },
            };
            let by_alias = self.refound_by_alias(&mut state, first);
            Ok((new, refound.into_iter().chain(by_alias).collect()))
        });
        match placed {
            Ok((new, refound)) => AttemptOutcome {
                new,
                is_awaited,
                refound,
            },
            Err(error) => {
                search.note(error.errno());
                let again = Instant::now() + search.pause;
                let is_over = again >= search.until;
                if is_over {
                    tracing::warn!("{error}");
                    search.stage = ResolutionStage::Failed;
                    search.last = search.seen.unwrap_or(error.errno());
                    search.used = false;
                    search.round += 1;
                    state.searches.insert(attempt.entry, search);
                } else {
                    search.pause = (2 * search.pause).min(LONGEST_PAUSE);
                    state.enqueue(attempt.entry, search, again);
                    self.unresolved.came.notify_one();
                }
                AttemptOutcome {
                    is_awaited: is_over && is_awaited,
                    ..AttemptOutcome::default()
                }
            }
        }
    }

    /// The endpoint in an entry has answered at another socket address: if it counted as lost, its
    /// resolution has ended, too.
    fn refound_by_alias(
        &self,
        state: &mut ResolutionSchedule,
        first: Option<u32>,
    ) -> Option<RefoundEndpoint> {
        let first = first.filter(|first| state.is_lost(&self.store, *first))?;
        state.end_search(first);
        Some(RefoundEndpoint {
            addr: self.addr_when_resolved(first),
            is_replaced: false,
        })
    }

    /// Each attempt of the batch has its outcome. Starts failed ones anew if an unknown source came
    /// meanwhile.
    pub(super) fn complete_batch(&self, batch: &ResolutionBatch) {
        let mut state = self.unresolved.state.lock();
        let has_failed = state.failed_awaited().next().is_some();
        let source_epoch = &self.unresolved.source_epoch;
        if source_epoch.note_failed(has_failed, batch.epoch) {
            self.unresolved.restart_failed(&mut state);
        }
    }
}

#[cfg(test)]
mod tests;
