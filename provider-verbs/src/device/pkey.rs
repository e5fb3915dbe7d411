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
}
