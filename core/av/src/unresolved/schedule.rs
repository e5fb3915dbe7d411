//! The schedule of the unresolved entries of a table: the resolution of each entry, from its start
//! to its end, and the queues in which entries wait for a thread. The lock of
//! [`UnresolvedEntries`](super::UnresolvedEntries) guards all of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::chunk::NameWords;
use crate::ranges::Ranges;
use crate::storage::Storage;
use crate::store::Placement;
use ferrofabric_contracts::addr::AuthKey;
use ferrofabric_contracts::error::{Errno, Result};

/// Entries that one thread resolves at a time.
pub(crate) const SIDE_BY_SIDE: usize = 256;

/// The pause after the first attempt. Each further one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often the pause doubles between two resolutions of a lost entry that nobody uses.
const MOST_DOUBLINGS: u32 = 9;

/// The resolutions of a table that are not over, and those that failed.
///
/// An entry has at most one resolution. It is queued, or attempted by one thread with a ticket, or
/// has failed; a resolved or removed entry has none. A result counts only if entry, generation and
/// ticket still agree.
#[derive(Default)]
pub(crate) struct ResolutionSchedule {
    pub(crate) ranges: Ranges,
    pub(crate) searches: HashMap<u32, PendingResolution>,
    /// Entries that are to be resolved, by time: first those that sends wait for, then all others.
    pub(crate) queues: [BTreeMap<(Instant, u64), u32>; 2],
    pub(crate) tickets: u64,
    /// Entries that messages may come from. One whose resolution failed is resolved anew with the
    /// next unknown source, since it may be that one.
    pub(crate) awaited: BTreeSet<u32>,
    /// Entries whose endpoints are in by other entries.
    pub(crate) same: HashMap<u32, SameEndpoint>,
    /// Entries whose endpoints are gone, and the generations of these entries.
    pub(crate) lost: HashMap<u32, u32>,
    /// Whether there are threads that resolve entries.
    pub(crate) is_served: bool,
    /// Keys of entries, in address vectors with authorization keys; and the entries by both.
    keys: HashMap<u32, EntryKey>,
    by_key: HashMap<(SocketAddr, AuthKey), u32>,
    /// How long a resolution may take.
    pub(crate) patience: Duration,
    /// Threads that wait for entries.
    pub(crate) idle: usize,
    pub(crate) closing: bool,
}

/// An entry whose endpoint is in by another entry. Another process may give either of them to
/// another address, or replace the endpoint; then its incarnation differs.
pub(crate) struct SameEndpoint {
    /// The entry's own generation once it is resolved.
    generation: u32,
    pub(crate) first: u32,
    incarnation_of_first: u32,
}

/// What the resolution of a lost entry has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refound {
    /// The endpoint that the entry has already.
    Unchanged,
    /// Another one, which is in the entry now, or is in by this other entry.
    Replaced(Option<u32>),
}

/// The key of an entry, and the entry's generation once it is resolved.
struct EntryKey {
    at: SocketAddr,
    key: AuthKey,
    generation: u32,
}

/// A place in a line: which line, when it is time, a ticket.
pub(crate) type QueuePosition = (usize, Instant, u64);

/// One entry's resolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingResolution {
    pub(crate) stage: ResolutionStage,
    /// The entry's generation once it is resolved: another process may have given the entry to
    /// another address.
    pub(crate) generation: u32,
    /// When it has failed.
    pub(crate) until: Instant,
    /// How long it waits after the next attempt.
    pub(crate) pause: Duration,
    /// A send waits for it.
    pub(crate) used: bool,
    /// Why the attempts of this resolution have failed.
    pub(crate) seen: Option<Errno>,
    /// Resolutions that have failed, and why the last one has.
    pub(crate) round: u32,
    pub(crate) last: Errno,
}

impl PendingResolution {
    /// Whether no thread is to make an attempt.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(
            self.stage,
            ResolutionStage::Failed | ResolutionStage::Reported
        )
    }

    /// An attempt has failed. The last one counts, but that a host answers is known from then on: a
    /// late attempt may be too short to find the way to it.
    pub(crate) fn note(&mut self, errno: Errno) {
        if errno != Errno::EHOSTUNREACH || self.seen.is_none() {
            self.seen = Some(errno);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResolutionStage {
    Queued(QueuePosition),
    /// A thread makes an attempt, with this ticket.
    Attempted(u64),
    Failed,
    /// And the application has seen that.
    Reported,
}

impl ResolutionSchedule {
    /// Puts in the endpoint of an entry. Returns the other entry by which it was in.
    pub(crate) fn resolved(
        &mut self,
        store: &Storage,
        entry: u32,
        name: &NameWords,
    ) -> Result<Option<u32>> {
        let first = match store.place(name, Some(entry))? {
            Placement::New(_) => None,
            Placement::Found(first) => {
                let same = SameEndpoint {
                    generation: store.generation(entry) | 1,
                    first,
                    incarnation_of_first: store.incarnation(first),
                };
                self.same.insert(entry, same);
                Some(first)
            }
        };
        self.end_search(entry);
        Ok(first)
    }

    /// Whether the endpoint in an entry is lost. Another process may have given the entry to another
    /// address.
    pub(crate) fn is_lost(&self, store: &Storage, entry: u32) -> bool {
        let lost = self.lost.get(&entry);
        lost.is_some_and(|generation| *generation == store.generation(entry) | 1)
    }

    /// Whether the resolution of a lost entry has ended well, and transports have not all left the
    /// former endpoint yet.
    pub(crate) fn is_refound(&self, store: &Storage, entry: u32) -> bool {
        self.is_lost(store, entry) && !self.searches.contains_key(&entry)
    }

    /// The endpoint in an entry is gone. The next use of the entry starts a resolution, and so does
    /// a message from an unknown source.
    pub(crate) fn lose(&mut self, entry: u32, generation: u32) {
        self.lost.insert(entry, generation);
        // Entries that shared its endpoint are unresolved again.
        self.same.retain(|_, same| same.first != entry);
        self.awaited.insert(entry);
        if self.search(entry, generation).is_none() {
            let failed = PendingResolution {
                stage: ResolutionStage::Reported,
                generation,
                until: Instant::now(),
                pause: FIRST_PAUSE,
                used: false,
                seen: None,
                round: 0,
                last: Errno::ECONNRESET,
            };
            self.searches.insert(entry, failed);
        }
    }

    /// Puts the endpoint that was found for a lost entry in the place of the former one.
    pub(crate) fn refound(
        &mut self,
        store: &Storage,
        entry: u32,
        name: &NameWords,
    ) -> Result<Refound> {
        match store.read(entry) {
            Some((there, _)) if there == *name => {
                self.end_search(entry);
                return Ok(Refound::Unchanged);
            }
            Some(_) => store.vacate(entry),
            // An earlier attempt found no room.
            None => {}
        }
        self.resolved(store, entry, name).map(Refound::Replaced)
    }

    /// The entry by which the endpoint of another one is in.
    pub(crate) fn same(&mut self, store: &Storage, entry: u32) -> Option<u32> {
        let same = self.same.get(&entry)?;
        if store.generation(entry) | 1 == same.generation
            && store.incarnation(same.first) == same.incarnation_of_first
        {
            return Some(same.first);
        }
        self.same.remove(&entry);
        None
    }

    /// The key with which the socket address of an entry was inserted in this process.
    pub(crate) fn key(&self, store: &Storage, entry: u32) -> Option<AuthKey> {
        let keyed = self.keys.get(&entry)?;
        (store.generation(entry) | 1 == keyed.generation).then_some(keyed.key)
    }

    /// The entry of a socket address that was inserted with a key in this process.
    pub(crate) fn entry_by_key(
        &self,
        store: &Storage,
        at: SocketAddr,
        key: AuthKey,
    ) -> Option<u32> {
        let entry = *self.by_key.get(&(at, key))?;
        self.key(store, entry).map(|_| entry)
    }

    pub(crate) fn set_key(&mut self, store: &Storage, entry: u32, at: SocketAddr, key: AuthKey) {
        self.forget_key(entry);
        let generation = store.generation(entry) | 1;
        let keyed = EntryKey {
            at,
            key,
            generation,
        };
        self.keys.insert(entry, keyed);
        self.by_key.insert((at, key), entry);
    }

    pub(crate) fn forget_key(&mut self, entry: u32) {
        if let Some(EntryKey { at, key, .. }) = self.keys.remove(&entry) {
            if self.by_key.get(&(at, key)) == Some(&entry) {
                self.by_key.remove(&(at, key));
            }
        }
    }

    /// An entry is resolved, or no more.
    pub(crate) fn end_search(&mut self, entry: u32) {
        self.awaited.remove(&entry);
        if let Some(PendingResolution {
            stage: ResolutionStage::Queued(position),
            ..
        }) = self.searches.remove(&entry)
        {
            self.dequeue(position);
        }
    }

    pub(crate) fn dequeue(&mut self, (queue, at, ticket): QueuePosition) {
        self.queues[queue].remove(&(at, ticket));
    }

    /// The resolution of an entry for this generation. One for an earlier address of the entry is
    /// dropped.
    pub(crate) fn search(&mut self, entry: u32, generation: u32) -> Option<PendingResolution> {
        let search = *self.searches.get(&entry)?;
        if search.generation == generation {
            return Some(search);
        }
        self.end_search(entry);
        None
    }

    /// Starts to resolve an entry, for the first time or anew.
    pub(crate) fn start(&mut self, entry: u32, generation: u32, used: bool) {
        let now = Instant::now();
        let (round, last) = match self.search(entry, generation) {
            Some(search) => (search.round, search.last),
            None => (0, Errno::EAGAIN),
        };
        let search = PendingResolution {
            stage: ResolutionStage::Attempted(0),
            generation,
            until: now + self.patience,
            pause: FIRST_PAUSE,
            used,
            seen: None,
            round,
            last,
        };
        self.enqueue(entry, search, now);
    }

    /// An unknown source may be the endpoint that was not found for an entry: starts to resolve it
    /// anew. A lost entry's endpoint may have gone for good, so it is asked for once, and after a
    /// pause that doubles with each failure.
    pub(crate) fn restart(&mut self, entry: u32) {
        let search = self.searches.get(&entry).copied();
        let Some(search) = search.filter(PendingResolution::has_failed) else {
            return;
        };
        if self.lost.get(&entry) != Some(&search.generation) {
            return self.start(entry, search.generation, false);
        }
        let now = Instant::now();
        let at = match search.round {
            0 => now,
            failed => now.max(search.until + FIRST_PAUSE * (1 << failed.min(MOST_DOUBLINGS))),
        };
        let search = PendingResolution {
            until: at + LONGEST_PAUSE.min(self.patience),
            pause: FIRST_PAUSE,
            seen: None,
            ..search
        };
        self.enqueue(entry, search, at);
    }

    /// A receive or a look-up waits for an entry. Returns whether that makes its resolution sooner.
    pub(crate) fn hasten(&mut self, entry: u32, search: PendingResolution) -> bool {
        match search.stage {
            ResolutionStage::Queued(position @ (_, at, _))
                if at > Instant::now() + LONGEST_PAUSE =>
            {
                self.dequeue(position);
                self.start(entry, search.generation, false);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn enqueue(&mut self, entry: u32, search: PendingResolution, at: Instant) {
        self.tickets += 1;
        let position = (usize::from(!search.used), at, self.tickets);
        self.queues[position.0].insert((at, self.tickets), entry);
        let stage = ResolutionStage::Queued(position);
        self.searches
            .insert(entry, PendingResolution { stage, ..search });
    }

    /// A send waits for an entry from now on: its time starts anew, and it goes before those that
    /// nobody waits for. Returns whether that makes its resolution sooner.
    pub(crate) fn use_search(&mut self, entry: u32, mut search: PendingResolution) -> bool {
        if search.used {
            return false;
        }
        let now = Instant::now();
        search.used = true;
        search.until = now + self.patience;
        search.pause = FIRST_PAUSE;
        match search.stage {
            ResolutionStage::Queued(position) => {
                self.dequeue(position);
                self.enqueue(entry, search, now);
            }
            _ => drop(self.searches.insert(entry, search)),
        }
        true
    }

    /// Entries that messages may come from, and that could not be resolved.
    pub(crate) fn failed_awaited(&self) -> impl Iterator<Item = u32> + '_ {
        let failed = |entry: &u32| {
            let search = self.searches.get(entry);
            search.is_some_and(PendingResolution::has_failed)
        };
        self.awaited.iter().copied().filter(failed)
    }

    /// Takes entries out of the lines whose time has come.
    ///
    /// # Errors
    ///
    /// When that will be; `None`: there are none.
    pub(crate) fn take(&mut self) -> Result<Vec<u32>, Option<Instant>> {
        let now = Instant::now();
        let (mut taken, mut next) = (Vec::new(), None);
        for queue in &mut self.queues {
            while let Some(first) = queue.first_entry() {
                let at = first.key().0;
                if at > now {
                    next = next.map_or(Some(at), |other: Instant| Some(other.min(at)));
                    break;
                }
                if taken.len() == SIDE_BY_SIDE {
                    break;
                }
                taken.push(first.remove());
            }
        }
        match taken.is_empty() {
            true => Err(next),
            false => Ok(taken),
        }
    }
}
