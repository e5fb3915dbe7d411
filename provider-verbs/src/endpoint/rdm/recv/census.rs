//! The search for receive buffers that queue pairs have taken with them.
//!
//! A queue pair that ends in mid-message may keep the receive that the message has taken: the
//! device reports nothing, and the buffer is neither posted nor here. Which buffer that is follows
//! from the order in which a device takes the receives of a shared queue, which is the order of
//! their posting:
//!
//! 1. Once a buffer that was posted during the search completes, all that were posted before the
//!    search are taken ([`Census::has_turned`]). Those that did not come back are lost, or the
//!    messages of live lanes have them.
//! 2. A lane holds one receive at a time. Once a further packet has come on each lane, the live
//!    lanes hold later receives.
//!
//! So the buffers that are still away then are lost. There are no more of them than queue pairs
//! that ended so; else the device takes receives in another order, and they stay where they are.

use ferrofabric_protocol::Time;
use ferrofabric_protocol::wire::SessionId;

/// A search.
pub(super) struct Census {
    places: Vec<BufferPlace>,
    /// A buffer that was posted during the search has come back.
    has_turned: bool,
    /// The second step, once it has begun.
    pub(super) watch: Option<LaneWatch>,
}

/// Lanes that have to receive a packet, or to end.
pub(super) struct LaneWatch {
    /// Each with the number of the packet that is its next.
    pub(super) lanes: Vec<(SessionId, u32)>,
    /// The search lasts until this time at least: a receive that the device flushes late is back.
    pub(super) until: Time,
}

/// The place of a buffer, as far as the search knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BufferPlace {
    /// It did not come back since the search began.
    Away,
    /// It was here when the search began.
    Here,
    /// It was posted during the search.
    Posted,
}

impl Census {
    /// Begins a search among `count` buffers, of which the `spent` ones are here.
    pub(super) fn begin(count: usize, spent: &[u32]) -> Self {
        let mut places = vec![BufferPlace::Away; count];
        for &slot in spent {
            places[slot as usize] = BufferPlace::Here;
        }
        Self {
            places,
            has_turned: false,
            watch: None,
        }
    }

    /// These buffers are being posted.
    pub(super) fn posts(&mut self, slots: &[u32]) {
        for &slot in slots {
            let place = &mut self.places[slot as usize];
            self.has_turned |= *place == BufferPlace::Posted;
            *place = BufferPlace::Posted;
        }
    }

    /// Whether all receives that were posted before the search are taken.
    pub(super) fn has_turned(&self) -> bool {
        self.has_turned
    }

    /// The buffers that did not come back and are not `spent`.
    pub(super) fn away(&self, spent: &[u32]) -> Vec<u32> {
        let places = self.places.iter().zip(0..);
        let away = places.filter(|(place, _)| **place == BufferPlace::Away);
        away.map(|(_, slot)| slot)
            .filter(|slot| !spent.contains(slot))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Census;

    #[test]
    fn a_buffer_is_lost_that_stays_away_while_the_queue_turns() {
        // Buffer 0 is here; 1 to 3 are posted, and 2 is lost.
        let mut census = Census::begin(4, &[0]);
        census.posts(&[0]);
        census.posts(&[1]);
        assert!(!census.has_turned(), "3 may be posted yet");
        census.posts(&[3]);
        assert!(!census.has_turned());
        census.posts(&[0]);
        assert!(census.has_turned());
        assert_eq!(census.away(&[]), [2]);
        assert_eq!(census.away(&[2]), [] as [u32; 0]);
    }
}
