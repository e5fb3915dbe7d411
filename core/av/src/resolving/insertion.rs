//! Insertion of addresses that are resolved later: socket addresses one by one, and ranges of them.

use std::net::SocketAddr;

use crate::format::no_endpoint;
use crate::ranges::RangeHost;
use crate::service::Nodes;
use crate::table::{AvTable, Insertion, Placed, Reserved};
use crate::unresolved::ResolutionSchedule;
use ferrofabric_contracts::addr::AuthKey;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::types::FiAddr;

/// Addresses of a call whose entries follow each other, or that failed for one reason.
#[derive(Debug, PartialEq, Eq)]
pub struct AddrRun {
    len: usize,
    first: Result<u32>,
}

impl AddrRun {
    /// All of a call, for one reason.
    pub(crate) fn failed(len: usize, error: Error) -> Self {
        Self {
            len,
            first: Err(error),
        }
    }
}

impl AvTable {
    /// The addresses of a call, in order.
    pub fn outcomes(&self, runs: Vec<AddrRun>) -> impl Iterator<Item = Result<FiAddr>> + use<'_> {
        runs.into_iter().flat_map(move |run| {
            (0..run.len as u32).map(move |ahead| match &run.first {
                Ok(first) => Ok(self.addr_when_resolved(first + ahead)),
                Err(error) => Err(error.clone()),
            })
        })
    }
}

impl Insertion<'_> {
    /// Puts in a range, whose endpoints are not resolved yet. An entry that is in already stays as
    /// it is.
    ///
    /// In a table, `reserved` has the entries of a call that were taken before.
    pub fn insert_range(&mut self, nodes: &Nodes, reserved: &[Reserved]) -> Vec<AddrRun> {
        let Nodes {
            ref hosts,
            first_port,
            ports,
        } = *nodes;
        let table = self.table;
        let known = hosts
            .iter()
            .map(|host| host.as_ref().ok().map(RangeHost::of));
        let mut inserting = RangeInsertion {
            range: 0,
            state: &mut table.unresolved.state.lock(),
            insertion: self,
            reserved,
            runs: Vec::new(),
        };
        inserting.range = inserting
            .state
            .ranges
            .begin(known.collect(), first_port, ports);
        for (node, host) in (0..).zip(hosts) {
            match host {
                Ok(host) => inserting.node(node, &RangeHost::of(host), first_port, ports),
                Err(error) => inserting.unknown_node(node, error, ports),
            }
        }
        inserting.state.ranges.end(inserting.range);
        table.unresolved.begin();
        inserting.runs
    }

    /// Puts in the endpoint at a socket address, which is resolved from now on; with a key, where
    /// addresses need one.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC`: the table can not grow.
    pub(crate) fn enter_socket(
        &mut self,
        at: &SocketAddr,
        key: Option<AuthKey>,
        reserved: Option<Reserved>,
    ) -> Result<Placed> {
        let table = self.table;
        let AvTable { store, sockets, .. } = table;
        let reserved = reserved.map(|Reserved(entry)| entry);
        let mut state = table.unresolved.state.lock();
        let known = match key {
            Some(key) => state.entry_by_key(store, *at, key),
            None => (state.ranges.entry(at)).or_else(|| Some(sockets.find(store, at)?.0)),
        };
        if let Some(entry) = known {
            self.holes.extend(reserved);
            let is_resolved = store.generation(entry) & 1 == 1 && !state.is_lost(store, entry);
            let is_over = is_resolved || state.is_refound(store, entry);
            if !is_over && state.same(store, entry).is_none() {
                state.awaited.insert(entry);
                let generation = store.generation(entry) | 1;
                let search = state.search(entry, generation);
                let is_sooner = match search {
                    Some(search) if !search.has_failed() => state.hasten(entry, search),
                    _ => {
                        state.start(entry, generation, false);
                        true
                    }
                };
                if is_sooner {
                    table.unresolved.came.notify_one();
                }
            }
            let addr = table.addr_when_resolved(entry);
            return Ok(Placed { addr, new: false });
        }
        let entry = match reserved {
            Some(entry) => entry,
            None => store.take()?,
        };
        let generation = store.generation(entry) | 1;
        if let Err(error) = sockets.set(store, entry, generation, at) {
            self.holes.push(entry);
            return Err(error);
        }
        store.list_change(entry);
        if let Some(key) = key {
            state.set_key(store, entry, *at, key);
        }
        state.awaited.insert(entry);
        state.start(entry, generation, false);
        table.unresolved.begin();
        table.unresolved.came.notify_one();
        let addr = table.addr_when_resolved(entry);
        table.list(entry, addr);
        Ok(Placed { addr, new: true })
    }
}

/// A range that is being put in.
struct RangeInsertion<'a, 'b, 'c> {
    range: u32,
    state: &'a mut ResolutionSchedule,
    insertion: &'a mut Insertion<'b>,
    reserved: &'c [Reserved],
    runs: Vec<AddrRun>,
}

impl RangeInsertion<'_, '_, '_> {
    fn node(&mut self, node: u32, host: &RangeHost, first_port: u16, ports: usize) {
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
        if let Some(why) = no_endpoint(at) {
            self.leave_hole(position);
            return Err(Error::new(Errno::EINVAL, "insert", at.to_string()).mend(why));
        }
        let reserved = self.reserved(position);
        let AvTable { store, sockets, .. } = self.insertion.table;
        if !is_fresh {
            let known_entry = self.state.ranges.entry(at);
            if let Some(entry) = known_entry.or_else(|| Some(sockets.find(store, at)?.0)) {
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
        self.runs.push(AddrRun { len, first });
    }
}
