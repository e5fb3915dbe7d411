//! Partitions of a port (IBTA 1.5 §10.9): a queue pair names the slot of the port's P_Key table
//! that its packets use.

/// Bit of a P_Key: full member of the partition.
const FULL_MEMBER: u16 = 1 << 15;

/// The slot of a P_Key in a port's table: the exact key, or else the port's other membership in
/// that partition.
pub(crate) fn slot_of(table: &[u16], pkey: u16) -> Option<u16> {
    let same_partition = |there: &u16| (there ^ pkey) & !FULL_MEMBER == 0;
    let exact = table.iter().position(|there| *there == pkey);
    let slot = exact.or_else(|| table.iter().position(same_partition))?;
    u16::try_from(slot).ok()
}

/// The slot of the P_Key to use where nobody names one: the first full membership, or else the
/// first membership. A slot may be empty, the first one of a virtual function, too.
pub(crate) fn default_slot(table: &[u16]) -> u16 {
    let is_full = |pkey: &u16| pkey & FULL_MEMBER != 0;
    let is_member = |pkey: &u16| pkey & !FULL_MEMBER != 0;
    let full = (table.iter()).position(|pkey| is_full(pkey) && is_member(pkey));
    let slot = full.or_else(|| table.iter().position(is_member));
    slot.and_then(|slot| u16::try_from(slot).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: AV-21
    #[test]
    fn a_partition_is_found_by_its_number_and_the_membership_if_there_is_a_choice() {
        let table = [0xffff, 0x0001, 0x8002, 0, 0x8001];
        assert_eq!(slot_of(&table, 0xffff), Some(0));
        assert_eq!(slot_of(&table, 0x7fff), Some(0));
        assert_eq!(slot_of(&table, 0x8001), Some(4));
        assert_eq!(slot_of(&table, 0x0001), Some(1));
        assert_eq!(slot_of(&table, 0x0002), Some(2));
        assert_eq!(slot_of(&table, 0x8003), None);
        assert_eq!(slot_of(&[], 0xffff), None);
    }

    #[test]
    fn full_memberships_come_first_and_empty_slots_never() {
        assert_eq!(default_slot(&[0xffff]), 0);
        assert_eq!(default_slot(&[0, 0x7fff, 0x8001]), 2);
        assert_eq!(default_slot(&[0, 0x7fff]), 1);
        assert_eq!(default_slot(&[0, 0x8000, 0x7fff]), 2);
        assert_eq!(default_slot(&[0, 0]), 0);
        assert_eq!(default_slot(&[]), 0);
    }
}
