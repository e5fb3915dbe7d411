//! Entries of ranges that were told and not found yet: who uses one has it asked for (`docs/adr/0036`).
//!
//! An entry that was told is taken and has no address. Where it leads is found by threads of the address vector, see
//! [`Askers`](super::askers::Askers); then it is an entry as any other, whose socket address is told by its range.

mod comers;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

use comers::Comers;

use super::chunk::Name;
use super::ranges::{Host, Ranges};
use super::service::{Nodes, cancelled};
use super::storage::Storage;
use super::store::Placement;
use super::table::{AvTable, Insertion, Placed, Reserved};
use crate::addr::NativeAddr;
use crate::error::{Errno, Error, Result};
use crate::types::FiAddr;

/// Why an address that is in leads nowhere yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unresolved {
    /// It is being asked for.
    Asked,
    /// It was, in vain. Who uses it once more has it asked for anew.
    Failed(Errno),
    /// Its endpoint is in by this address, too.
    Same(FiAddr),
}

/// What a table was told of.
#[derive(Default)]
pub(super) struct Told {
    /// Whether it ever was told of anything.
    any: AtomicBool,
    state: Mutex<State>,
    came: Condvar,
    /// Senders that are not in, and entries that somebody waits to hear from and that were asked for in vain.
    comers: Comers,
}

#[derive(Default)]
struct State {
    ranges: Ranges,
    asked: HashMap<u32, Asked>,
    /// Entries that somebody waits to hear from: when one is not there yet, it is asked for anew with the next sender that is not
    /// in, for it may be that one.
    awaited: BTreeSet<u32>,
    /// Entries whose endpoints are in by others, and those.
    same: HashMap<u32, u32>,
    /// Entries that nobody has begun to ask for.
    line: Vec<u32>,
    /// Threads that wait for some.
    idle: usize,
    closing: bool,
}

/// What is asked for at a time.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) entries: Vec<(u32, SocketAddr)>,
    /// Senders that were not in and had come before.
    since: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Now,
    InVain(Errno),
}

/// Addresses of a call whose entries follow each other, or that failed for one reason.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    len: usize,
    first: Result<u32>,
}

impl Run {
    /// All of a call, for one reason.
    pub(crate) fn failed(len: usize, error: Error) -> Self {
        Self {
            len,
            first: Err(error),
        }
    }
}

impl State {
    /// Puts in what was found for an entry. Returns whether it was not in by another.
    fn found(&mut self, store: &Storage, entry: u32, name: &Name) -> Result<bool> {
        self.ask_no_more(entry);
        match store.place(name, Some(entry))? {
            Placement::New(_) => Ok(true),
            Placement::Found(first) => {
                self.same.insert(entry, first);
                Ok(false)
            }
        }
    }

    /// What was asked for an entry is of no use any more.
    fn ask_no_more(&mut self, entry: u32) {
        self.awaited.remove(&entry);
        if self.asked.remove(&entry).is_some() {
            self.line.retain(|waiting| *waiting != entry);
        }
    }

    /// Entries that somebody waits to hear from, and that were asked for in vain.
    fn in_vain(&self) -> impl Iterator<Item = u32> + '_ {
        let in_vain = |entry: &u32| self.asked.get(entry) != Some(&Asked::Now);
        self.awaited.iter().copied().filter(in_vain)
    }
}

impl Told {
    fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The socket address of an entry, if it is one of a range.
    pub(super) fn socket(&self, entry: u32) -> Option<SocketAddr> {
        self.any().then(|| self.state.lock().ranges.socket(entry))?
    }

    /// The entry that the endpoint at a socket address is in by, if a range has told of it; it may not have been found yet.
    pub(super) fn entry(&self, at: &SocketAddr) -> Option<u32> {
        if !self.any() {
            return None;
        }
        let state = self.state.lock();
        let entry = state.ranges.entry(at)?;
        Some(state.same.get(&entry).copied().unwrap_or(entry))
    }

    /// An entry was removed.
    pub(super) fn forget(&self, entry: u32) {
        if self.any() {
            let mut state = self.state.lock();
            state.ranges.remove(entry);
            state.ask_no_more(entry);
            state.same.remove(&entry);
            // What was in by it is told again.
            state.same.retain(|_, first| *first != entry);
        }
    }

    /// A sender came that is not in: it may be one that was asked for before it was there.
    #[cold]
    pub(super) fn stranger(&self) {
        if self.any() && self.comers.come() {
            self.ask_anew(&mut self.state.lock());
        }
    }

    fn ask_anew(&self, state: &mut State) {
        let anew: Vec<_> = state.in_vain().collect();
        for entry in &anew {
            state.asked.insert(*entry, Asked::Now);
        }
        state.line.extend(anew);
        self.comers.ask_anew();
        self.came.notify_one();
    }

    /// Threads that wait for entries to be asked for.
    pub(super) fn idle(&self) -> usize {
        self.state.lock().idle
    }

    pub(super) fn is_closing(&self) -> bool {
        self.state.lock().closing
    }

    /// The threads come to their end.
    pub(super) fn close(&self) {
        self.state.lock().closing = true;
        self.came.notify_all();
    }

    /// Waits for entries to be asked for; `None` when the address vector is being closed.
    pub(super) fn next(&self) -> Option<Asking> {
        let mut state = self.state.lock();
        state.idle += 1;
        while state.line.is_empty() && !state.closing {
            self.came.wait(&mut state);
        }
        state.idle -= 1;
        if state.closing {
            return None;
        }
        let line = std::mem::take(&mut state.line);
        let socket = |entry| Some((entry, state.ranges.socket(entry)?));
        Some(Asking {
            entries: line.into_iter().filter_map(socket).collect(),
            since: self.comers.so_far(),
        })
    }
}

impl AvTable {
    /// Whether ranges of socket addresses need not be resolved when they are inserted.
    pub(crate) fn takes_ranges(&self) -> bool {
        matches!(self.store, Storage::Symmetric(_)) && self.auth_keys().is_none()
    }

    /// Where an entry is, or will be when it is found.
    pub(super) fn addr_when_found(&self, entry: u32) -> FiAddr {
        self.model.addr(entry, self.store.generation(entry) | 1)
    }

    /// The entry of an address that was told and is not found.
    pub(super) fn told_entry(&self, addr: FiAddr) -> Option<u32> {
        let entry = self.model.entry(addr)?;
        let told = self.addr_when_found(entry) == addr && self.told.socket(entry).is_some();
        told.then_some(entry)
    }

    /// Why an address leads nowhere that is in; `None`: it is not in. One that was told is asked for from now on, unless others
    /// are at work on what was told: nobody is waited for, and who is told that it is being asked for tries again.
    pub(crate) fn ask(&self, addr: FiAddr) -> Option<Unresolved> {
        self.unresolved(addr, true, || self.told.state.try_lock())
    }

    /// The same for one who waits to hear from there, and does not ask again: others are waited for, and the entry is asked for anew
    /// if it was in vain, now and whenever somebody comes who is not in.
    pub(crate) fn ask_to_hear(&self, addr: FiAddr) -> Option<Unresolved> {
        self.unresolved(addr, false, || Some(self.told.state.lock()))
    }

    fn unresolved<'a>(
        &'a self,
        addr: FiAddr,
        reports: bool,
        state: impl FnOnce() -> Option<MutexGuard<'a, State>>,
    ) -> Option<Unresolved> {
        if !self.told.any() {
            return None;
        }
        let entry = self.model.entry(addr)?;
        let is_found = || self.store.generation(entry) & 1 == 1;
        // No lock for an entry that was found, as most are.
        if is_found() && self.addr_when_found(entry) == addr {
            return Some(Unresolved::Asked);
        }
        let Some(mut state) = state() else {
            return Some(Unresolved::Asked);
        };
        if self.addr_when_found(entry) != addr {
            return None;
        }
        if is_found() {
            // Just now.
            return Some(Unresolved::Asked);
        }
        state.ranges.socket(entry)?;
        if let Some(first) = state.same.get(&entry) {
            return Some(Unresolved::Same(self.addr_when_found(*first)));
        }
        if !reports {
            state.awaited.insert(entry);
        }
        match state.asked.get(&entry) {
            Some(Asked::Now) => {}
            Some(Asked::InVain(errno)) if reports => {
                let errno = *errno;
                state.asked.remove(&entry);
                return Some(Unresolved::Failed(errno));
            }
            _ => {
                state.asked.insert(entry, Asked::Now);
                state.line.push(entry);
                self.told.came.notify_one();
            }
        }
        Some(Unresolved::Asked)
    }

    /// Takes in what was found for entries, unless they were removed or found meanwhile. Returns those that are new.
    pub(super) fn answer(&self, asked: &Asking, found: Vec<Result<NativeAddr>>) -> Vec<FiAddr> {
        let turn = self.insertion();
        let mut state = self.told.state.lock();
        let mut found = found.into_iter();
        let mut new = Vec::new();
        for (entry, at) in &asked.entries {
            let found = found.next().unwrap_or_else(|| Err(cancelled(at)));
            let wanted = state.ranges.socket(*entry) == Some(*at)
                && state.asked.get(entry) == Some(&Asked::Now);
            if !wanted {
                continue;
            }
            let taken = turn.as_ref().map_err(Error::clone).and(found);
            match taken.and_then(|name| state.found(&self.store, *entry, &name.to_words())) {
                Ok(true) => new.push(self.addr_when_found(*entry)),
                Ok(false) => {}
                // Removed and told anew meanwhile: it is asked for once more, as it may be there by now.
                Err(_) if state.line.contains(entry) => {}
                Err(error) => {
                    tracing::warn!("{error}");
                    state.asked.insert(*entry, Asked::InVain(error.errno()));
                }
            }
        }
        let in_vain = state.in_vain().count();
        if self.told.comers.asked_in_vain(in_vain, asked.since) {
            self.told.ask_anew(&mut state);
        }
        new
    }

    /// The addresses of a call, in order.
    pub(crate) fn outcomes(
        &self,
        runs: Vec<Run>,
    ) -> impl Iterator<Item = Result<FiAddr>> + use<'_> {
        runs.into_iter().flat_map(move |run| {
            (0..run.len as u32).map(move |ahead| match &run.first {
                Ok(first) => Ok(self.addr_when_found(first + ahead)),
                Err(error) => Err(error.clone()),
            })
        })
    }
}

impl Insertion<'_> {
    /// Puts in a range, of which nobody is asked for yet. What is in already stays what it is.
    ///
    /// In a table, `reserved` has the entries of a call that were taken before.
    pub(crate) fn tell(&mut self, nodes: &Nodes, reserved: &[Reserved]) -> Vec<Run> {
        let Nodes {
            ref hosts,
            first_port,
            ports,
        } = *nodes;
        let table = self.table;
        let known = hosts.iter().map(|host| host.as_ref().ok().map(Host::of));
        let mut telling = Telling {
            range: 0,
            state: &mut table.told.state.lock(),
            insertion: self,
            reserved,
            runs: Vec::new(),
        };
        telling.range = telling
            .state
            .ranges
            .begin(known.collect(), first_port, ports);
        for (node, host) in (0..).zip(hosts) {
            match host {
                Ok(host) => telling.node(node, &Host::of(host), first_port, ports),
                Err(error) => telling.unknown_node(node, error, ports),
            }
        }
        telling.state.ranges.end(telling.range);
        table.told.any.store(true, Ordering::Release);
        telling.runs
    }

    /// Puts in what listens at a socket address that a range has told of; `None`: none has.
    pub(super) fn enter_told(
        &mut self,
        at: &SocketAddr,
        name: &NativeAddr,
    ) -> Result<Option<Placed>> {
        let table = self.table;
        if !table.told.any() {
            return Ok(None);
        }
        let mut state = table.told.state.lock();
        let Some(entry) = state.ranges.entry(at) else {
            return Ok(None);
        };
        let there = table.store.generation(entry) & 1 == 1 || state.same.contains_key(&entry);
        let new = !there && state.found(&table.store, entry, &name.to_words())?;
        let addr = table.addr_when_found(entry);
        Ok(Some(Placed { addr, new }))
    }
}

/// A range that is being put in.
struct Telling<'a, 'b, 'c> {
    range: u32,
    state: &'a mut State,
    insertion: &'a mut Insertion<'b>,
    reserved: &'c [Reserved],
    runs: Vec<Run>,
}

impl Telling<'_, '_, '_> {
    fn node(&mut self, node: u32, host: &Host, first_port: u16, ports: usize) {
        let is_fresh = self.state.ranges.is_fresh(*host, self.range, node)
            && self.insertion.table.sockets.is_empty();
        for ahead in 0..ports {
            let at = host.at(first_port + ahead as u16);
            let position = u64::from(node) * ports as u64 + ahead as u64;
            let placed = self.place(&at, position, is_fresh);
            self.note(placed, 1);
        }
    }

    fn unknown_node(&mut self, node: u32, error: &Error, ports: usize) {
        let first = u64::from(node) * ports as u64;
        for position in first..first + ports as u64 {
            self.leave_hole(position);
        }
        self.note(Err(error.clone()), ports);
    }

    /// The entry of an address: the one it has, or one of its own.
    fn place(&mut self, at: &SocketAddr, position: u64, is_fresh: bool) -> Result<u32> {
        if at.port() == 0 {
            self.leave_hole(position);
            return Err(Error::new(Errno::EINVAL, "insert", at.to_string())
                .mend("nobody listens at port 0"));
        }
        let reserved = self.reserved(position);
        let AvTable { store, sockets, .. } = self.insertion.table;
        if !is_fresh {
            let told = self.state.ranges.entry(at);
            if let Some(entry) = told.or_else(|| Some(sockets.find(store, at)?.0)) {
                self.insertion.holes.extend(reserved);
                return Ok(entry);
            }
        }
        let entry = match reserved {
            Some(entry) => entry,
            None => store.take()?,
        };
        self.state.ranges.put(self.range, entry, position);
        Ok(entry)
    }

    fn reserved(&self, position: u64) -> Option<u32> {
        let Reserved(entry) = self.reserved.get(position as usize)?;
        Some(*entry)
    }

    /// The index of an address that failed is nobody's until the call is over.
    fn leave_hole(&mut self, position: u64) {
        let table = self.insertion.table;
        let hole = match (self.reserved(position), table.is_indexed()) {
            (None, true) => table.store.take().ok(),
            (reserved, _) => reserved,
        };
        self.insertion.holes.extend(hole);
    }

    fn note(&mut self, first: Result<u32>, len: usize) {
        if let Some(last) = self.runs.last_mut() {
            let follows = match (&last.first, &first) {
                (Ok(before), Ok(entry)) => *before as usize + last.len == *entry as usize,
                (Err(before), Err(error)) => before == error,
                _ => false,
            };
            if follows {
                last.len += len;
                return;
            }
        }
        self.runs.push(Run { len, first });
    }
}

#[cfg(test)]
mod tests;
