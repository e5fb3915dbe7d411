//! Turns of a table's writers, and the way of readers while a writer is at work (`docs/adr/0045`).
//!
//! One thread of one process has the turn. No thread waits for it with a domain locked, and none
//! locks a domain in its turn. A process that dies in its turn loses it, and the next writer mends
//! the table.

#[cfg(test)]
use std::time::Duration;

use super::AvTable;
use crate::chunk::NameWords;
use crate::head::TableHead;
use crate::named::NamedTable;
use ferrofabric_contracts::error::Result;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::lock_order::{self, InTurn};
use ferrofabric_system::sync::MutexGuard;

/// Rounds in which a look-up tries for the turn, and for a moment without a writer, before it looks
/// at each entry.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 4 };

/// The right to change a table: of one thread of one process.
pub(crate) struct WriterTurn<'a> {
    of_processes: Option<(&'a NamedTable, &'a TableHead)>,
    _order: InTurn,
    _thread: MutexGuard<'a, ()>,
}

impl Drop for WriterTurn<'_> {
    fn drop(&mut self) {
        if let Some((named, head)) = self.of_processes {
            named.end_turn(head);
        }
    }
}

impl AvTable {
    /// Waits for the turn to change the table, which no caller does with the domain locked; nor
    /// does a caller lock the domain in its turn (`docs/adr/0045`).
    pub(crate) fn turn(&self) -> Result<WriterTurn<'_>> {
        lock_order::about_to_wait_for_a_turn();
        let thread = self.writers.lock();
        if let Some((named, head)) = self.of_processes() {
            named.take_turn(head)?;
        }
        Ok(self.begin_turn(thread))
    }

    /// Takes the turn if nobody has it.
    pub(super) fn try_turn(&self) -> Option<WriterTurn<'_>> {
        let thread = self.writers.try_lock()?;
        let had = self
            .of_processes()
            .is_none_or(|(named, head)| named.try_turn(head));
        had.then(|| self.begin_turn(thread))
    }

    /// The file, and the words that processes share.
    fn of_processes(&self) -> Option<(&NamedTable, &TableHead)> {
        let (_, head) = self.store.shared()?;
        Some((self.named.as_ref()?, head))
    }

    /// How long this waits for a turn while the process that has it changes nothing.
    #[cfg(test)]
    pub(crate) fn set_turn_patience(&self, patience: Duration) {
        if let Some(named) = &self.named {
            named.set_patience(patience);
        }
    }

    fn begin_turn<'a>(&'a self, thread: MutexGuard<'a, ()>) -> WriterTurn<'a> {
        let turn = WriterTurn {
            of_processes: self.of_processes(),
            _order: lock_order::in_turn(),
            _thread: thread,
        };
        let is_in = |entry| {
            let generation = self.store.generation(entry);
            let has_socket = || {
                self.sockets
                    .of(&self.store, entry, generation | 1)
                    .is_some()
            };
            generation & 1 == 1 || has_socket()
        };
        if let Some(entry) = self.store.mend(is_in) {
            let addr = match is_in(entry) {
                true => self.addr_when_resolved(entry),
                false => FiAddr::NOTAVAIL,
            };
            self.list(entry, addr);
        }
        if let Some(named) = &self.named {
            named
                .take_left()
                .into_iter()
                .for_each(|entry| self.store.give_back(entry));
        }
        turn
    }

    /// Searches where a writer was at work whenever somebody looked. It may be stopped, and
    /// transports look up names with their domain locked: so nobody waits for the turn here
    /// (`docs/adr/0045`).
    #[cold]
    pub(super) fn find_beside_writers(&self, name: &NameWords) -> Option<(u32, u32)> {
        for _ in 0..LOOKS {
            if let Some(_turn) = self.try_turn() {
                return self.store.search(name);
            }
            #[cfg(not(loom))]
            std::thread::yield_now();
            if let Ok(found) = self.store.find(name) {
                return found;
            }
        }
        self.find_by_entries(name)
    }

    /// Compares each entry. An entry is whole or has no address at any moment, whatever its writer
    /// does. An address that goes from one entry to another while this looks is in none of them in
    /// between.
    pub(super) fn find_by_entries(&self, name: &NameWords) -> Option<(u32, u32)> {
        let mut entries = self.store.entries();
        entries
            .find_map(|(entry, generation, found)| (found == *name).then_some((entry, generation)))
    }

    /// Whether nobody was changing the table just now. The changes of a writer that is dead are
    /// mended, and listed.
    pub(crate) fn has_no_writer(&self) -> bool {
        if !self.store.is_torn() {
            return true;
        }
        drop(self.try_turn());
        false
    }
}
