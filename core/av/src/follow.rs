//! The changes that other processes make in a named table, for the transports of this process.
//!
//! A follower reports each entry that changed, in its last state, once the writer is done or dead.
//! Removals come before insertions.

use super::chunk::GENERATION;
use super::table::AvTable;
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::types::FiAddr;

/// The state of a table as a process has seen it last.
pub struct TableFollower {
    seen: u64,
    entries: Vec<KnownEntry>,
}

/// An entry as this process knows it.
#[derive(Clone, Copy, Default)]
struct KnownEntry {
    incarnation: u32,
    /// Whether an address of its generation was in. It stays where the entry was emptied for the
    /// next endpoint.
    has_address: bool,
}

/// The changes of a table. All removals come before all insertions: an address may have moved to
/// another entry.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TableChanges {
    /// The addresses that are no more.
    pub removed: Vec<FiAddr>,
    /// The addresses whose endpoints were replaced by others (`docs/adr/0087`).
    pub replaced: Vec<FiAddr>,
    /// Those that are there since.
    pub inserted: Vec<(FiAddr, NativeAddr)>,
    /// The entries that have changed, with their generations now. The IDs of earlier generations go
    /// once the transports are notified of the removals.
    pub changed: Vec<(u32, u32)>,
}

impl TableFollower {
    /// Knows all that is there now.
    pub fn new(table: &AvTable) -> Self {
        let mut follower = Self {
            seen: 0,
            entries: Vec::new(),
        };
        follower.changes(table);
        follower
    }

    /// Whether there are changes that it does not know of. Costs a load.
    #[inline]
    pub fn is_behind(&self, table: &AvTable) -> bool {
        table.changes() != self.seen
    }

    /// The changes since the last call. The follower stays behind as long as a writer is at work: a
    /// writer that is killed does not list its change again.
    pub fn changes(&mut self, table: &AvTable) -> TableChanges {
        let (now, entries) = table.changed_since(self.seen);
        if table.has_no_writer() {
            self.seen = now;
        }
        let mut changes = TableChanges::default();
        for entry in entries {
            self.look(table, entry, &mut changes);
        }
        changes
    }

    /// The addresses that are in, as far as changes were reported: of each of them a later call
    /// reports the removal.
    pub fn known<'a>(
        &'a self,
        table: &'a AvTable,
    ) -> impl Iterator<Item = (FiAddr, NativeAddr)> + 'a {
        (0..).zip(&self.entries).filter_map(|(entry, known)| {
            let (now, there) = table.entry_now(entry);
            there.filter(|_| now == known.incarnation)
        })
    }

    fn look(&mut self, table: &AvTable, entry: u32, changes: &mut TableChanges) {
        let at = entry as usize;
        let before = self.entries.get(at).copied().unwrap_or_default();
        let (now, there) = table.entry_now(entry);
        if now == before.incarnation {
            return;
        }
        if self.entries.len() <= at {
            self.entries.resize(at + 1, KnownEntry::default());
        }
        // The lowest bit says whether an endpoint is in.
        let is_same_address = (now ^ before.incarnation) & GENERATION <= 1;
        self.entries[at] = KnownEntry {
            incarnation: now,
            has_address: there.is_some() || (before.has_address && is_same_address),
        };
        changes.changed.push((entry, now & GENERATION));
        let addr = table.addr_of(entry, before.incarnation | 1);
        if before.has_address && !is_same_address {
            changes.removed.push(addr);
        } else if before.incarnation & 1 == 1 {
            changes.replaced.push(addr);
        }
        changes.inserted.extend(there);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AvAttr;
    use crate::store::tests::{die, ended_after};
    use ferrofabric_contracts::peer::PeerAv;
    use ferrofabric_contracts::types::AvType;

    /// Two holders of a table, and the follower of the second.
    fn shared(name: &str, av_type: AvType) -> (AvTable, AvTable, TableFollower) {
        let attr = AvAttr {
            av_type: Some(av_type),
            name: Some(format!("{name}-{av_type:?}-{}", std::process::id())),
            ..AvAttr::default()
        };
        let [writer, reader] = [(); 2].map(|()| AvTable::open(&attr, "followed").unwrap());
        let follower = TableFollower::new(&reader);
        (writer, reader, follower)
    }

    fn name(n: u64) -> NativeAddr {
        NativeAddr {
            incarnation: n,
            node: n,
            shm: Some(n),
            verbs: None,
        }
    }

    /// Covers: AV-17
    #[test]
    fn an_address_that_moves_is_removed_before_it_is_there() {
        for av_type in [AvType::Table, AvType::Map] {
            let (writer, reader, mut follower) = shared("moves", av_type);
            let before = [1, 2].map(|n| writer.insert(&name(n)).unwrap().addr);
            follower.changes(&reader);
            for addr in before {
                writer.remove(addr).unwrap();
            }
            let after = writer.insert(&name(2)).unwrap().addr;
            assert!(follower.is_behind(&reader));
            let changes = TableChanges {
                removed: before.to_vec(),
                replaced: vec![],
                inserted: vec![(after, name(2))],
                changed: vec![],
            };
            let seen = follower.changes(&reader);
            assert!(!seen.changed.is_empty());
            assert_eq!(
                TableChanges {
                    changed: vec![],
                    ..seen
                },
                changes
            );
            assert!(!follower.is_behind(&reader));
        }
    }

    /// An address that was not reported as inserted would not be reported as removed.
    ///
    /// Covers: AV-17
    #[test]
    fn known_are_the_addresses_whose_removal_will_be_reported() {
        let (writer, reader, mut follower) = shared("known", AvType::Map);
        let [first, second] = [1, 2].map(|n| writer.insert(&name(n)).unwrap().addr);
        assert_eq!(follower.known(&reader).count(), 0);
        follower.changes(&reader);
        writer.remove(first).unwrap();
        writer.insert(&name(3)).unwrap();
        let known: Vec<_> = follower.known(&reader).collect();
        assert_eq!(known, [(second, name(2))]);
        let changes = follower.changes(&reader);
        assert_eq!((changes.removed, changes.inserted.len()), (vec![first], 1));
        let known = follower.known(&reader).map(|(_, name)| name.incarnation);
        assert_eq!(known.sum::<u64>(), 5);
    }

    /// A writer is killed at each of its steps: a follower learns of its change, though nobody
    /// changes the table after that.
    ///
    /// Covers: AV-17
    #[test]
    fn changes_of_a_killed_writer_are_followed() {
        for inserts in [false, true] {
            let mut steps = 0;
            loop {
                let (writer, reader, mut follower) = shared("killed", AvType::Map);
                let addr = writer.insert(&name(1)).unwrap().addr;
                follower.changes(&reader);
                let killed = ended_after(steps, die, || match inserts {
                    true => drop(writer.insert(&name(2)).unwrap()),
                    false => writer.remove(addr).unwrap(),
                });
                let mut seen = TableChanges::default();
                for _ in 0..3 {
                    // As the thread that drives a domain does.
                    if !follower.is_behind(&reader) {
                        break;
                    }
                    let more = follower.changes(&reader);
                    seen.removed.extend(more.removed);
                    seen.inserted.extend(more.inserted);
                }
                assert!(!follower.is_behind(&reader), "step {steps}");
                let is_gone = reader.lookup(addr).is_none();
                assert_eq!(seen.removed.len(), usize::from(is_gone), "step {steps}");
                let is_in = reader.find(&name(2)).is_some();
                assert_eq!(seen.inserted.len(), usize::from(is_in), "step {steps}");
                if !killed {
                    assert_eq!((is_gone, is_in), (!inserts, inserts));
                    break;
                }
                steps += 1;
            }
            assert!(steps >= 3, "{steps} steps");
        }
    }
}
