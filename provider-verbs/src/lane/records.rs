//! Copies of inline data, which the work requests themselves carry. A copy is kept until the packet
//! has arrived, should it have to be sent again.

/// Packets of a lane in the order of posting: a ring of bytes that grows with the data under way.
pub(crate) struct PacketRecords {
    bytes: Box<[u8]>,
    /// The start of the oldest packet and of the next one, counted without wrapping at the ring's
    /// end.
    oldest: u32,
    next: u32,
}

/// A packet in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PacketRecord {
    at: u32,
    len: u32,
}

/// Enough for a run of small messages: most peers of many never have more under way.
const FIRST_BYTES: usize = 4096;

impl Default for PacketRecords {
    fn default() -> Self {
        Self {
            bytes: vec![0; FIRST_BYTES].into(),
            oldest: 0,
            next: 0,
        }
    }
}

impl PacketRecords {
    /// Room for the next packet, of at most `most` bytes: contiguous, and starting at a multiple of
    /// 8 bytes.
    #[inline]
    pub(crate) fn room(&mut self, most: usize) -> &mut [u8] {
        loop {
            let size = self.bytes.len();
            let start = self.next as usize & (size - 1);
            let skipped = if start + most > size { size - start } else { 0 };
            let at = self.next.wrapping_add(skipped as u32);
            let used = at.wrapping_sub(self.oldest) as usize;
            if used + most.next_multiple_of(8) <= size {
                self.next = at;
                let start = at as usize & (size - 1);
                return &mut self.bytes[start..start + most];
            }
            self.grow();
        }
    }

    /// A packet of this length was put at the beginning of the [`room`](Self::room).
    #[inline]
    pub(crate) fn enter(&mut self, len: usize) -> PacketRecord {
        let at = self.next;
        self.next = at.wrapping_add(len.next_multiple_of(8) as u32);
        PacketRecord {
            at,
            len: len as u32,
        }
    }

    /// Whether the next packet, of at most `len` bytes, leaves earlier packets in place.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        // At worst the end of the ring is skipped.
        let used = self.next.wrapping_sub(self.oldest) as usize;
        used + 2 * len.next_multiple_of(8) <= self.bytes.len()
    }

    /// Makes that room.
    pub(crate) fn make_room(&mut self, len: usize) {
        while !self.has_room(len) {
            self.grow();
        }
    }

    /// The packet.
    pub(crate) fn bytes(&self, record: PacketRecord) -> &[u8] {
        let start = record.at as usize & (self.bytes.len() - 1);
        &self.bytes[start..start + record.len as usize]
    }

    /// The packet and all older ones are not needed any more.
    #[inline]
    pub(crate) fn release(&mut self, record: PacketRecord) {
        self.oldest = record.at.wrapping_add(record.len.next_multiple_of(8));
    }

    /// Doubles the room. A record that does not straddle the end of the ring does not straddle the
    /// end of the larger ring.
    #[cold]
    fn grow(&mut self) {
        let old = self.bytes.len();
        let mut bytes = vec![0; 2 * old].into_boxed_slice();
        let mut at = self.oldest;
        while at != self.next {
            let from = at as usize & (old - 1);
            let to = at as usize & (2 * old - 1);
            let len = (old - from).min(self.next.wrapping_sub(at) as usize);
            bytes[to..to + len].copy_from_slice(&self.bytes[from..from + len]);
            at = at.wrapping_add(len as u32);
        }
        self.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// After any pushes and releases, records under way have their first contents.
        #[test]
        fn keeps_what_is_under_way(
            start in prop_oneof![Just(0u32), Just(u32::MAX - 20_000), any::<u32>()],
            steps in proptest::collection::vec((1usize..600, 0usize..4), 1..300),
        ) {
            let mut records = PacketRecords::default();
            (records.oldest, records.next) = (start & !7, start & !7);
            let mut kept: VecDeque<(PacketRecord, Vec<u8>)> = VecDeque::new();
            for (number, (len, releases)) in steps.into_iter().enumerate() {
                let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + number) as u8).collect();
                let room = records.room(len + 8);
                room[..len].copy_from_slice(&bytes);
                let record = records.enter(len);
                kept.push_back((record, bytes));
                for _ in 0..releases.saturating_sub(1) {
                    if let Some((record, _)) = kept.pop_front() {
                        records.release(record);
                    }
                }
                for (record, bytes) in &kept {
                    prop_assert_eq!(records.bytes(*record), &bytes[..]);
                }
            }
        }
    }
}
