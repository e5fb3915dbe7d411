//! What others change in a named table, for the transports of this process.

use super::table::AvTable;
use crate::addr::NativeAddr;
use crate::types::FiAddr;

/// How far a process knows of the changes of a table.
pub(crate) struct Follower {
    seen: u64,
    /// Of each entry, as this process knows it.
    generations: Vec<u32>,
}

/// What became of one entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// The address that is no more.
    pub(crate) removed: Option<FiAddr>,
    /// The one that is there instead.
    pub(crate) inserted: Option<(FiAddr, NativeAddr)>,
}

impl Follower {
    /// Knows all that is there now.
    pub(crate) fn new(table: &AvTable) -> Self {
        let mut follower = Self {
            seen: 0,
            generations: Vec::new(),
        };
        follower.changes(table);
        follower
    }

    /// Whether there are changes that it does not know of. Costs a load.
    #[inline]
    pub(crate) fn is_behind(&self, table: &AvTable) -> bool {
        table.changes() != self.seen
    }

    /// What has changed since the last call.
    pub(crate) fn changes(&mut self, table: &AvTable) -> Vec<Change> {
        let (now, entries) = table.changed_since(self.seen);
        self.seen = now;
        let mut changes = Vec::new();
        for entry in entries {
            changes.extend(self.look(table, entry));
        }
        changes
    }

    fn look(&mut self, table: &AvTable, entry: u32) -> Option<Change> {
        let at = entry as usize;
        let before = self.generations.get(at).copied().unwrap_or(0);
        let (now, there) = table.entry_now(entry);
        if now == before {
            return None;
        }
        if self.generations.len() <= at {
            self.generations.resize(at + 1, 0);
        }
        self.generations[at] = now;
        if before & 1 == 1 {
            table.forget_id(entry);
        }
        Some(Change {
            removed: (before & 1 == 1).then(|| table.addr_of(entry, before)),
            inserted: there,
        })
    }
}
