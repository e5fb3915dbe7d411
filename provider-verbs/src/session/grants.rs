//! The credit that an endpoint grants its peers: the bound of each peer's unexpected data. All
//! grants together are bounded. Each new peer gets a fraction of the rest, so that some is always
//! left. In the end the fraction rounds down to nothing: then all messages of a new peer go by
//! rendezvous, which costs their sender the memory.

use ferrofabric_protocol::credit::cost_units;

/// Credit of a peer, in units of 64 bytes: 256 KiB.
pub(crate) const QUOTA_UNITS: u16 = 4096;

/// Credit of all peers, with the unexpected data of removed peers: 64 MiB.
const ALL_UNITS: u32 = 1 << 20;

/// A new peer gets this fraction of the rest, as a divisor: some 240 peers get their full credit.
const PARTS: u32 = 16;

/// The grants of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    /// Units granted to sessions, or used by unexpected messages of ended ones.
    in_use: u32,
    /// The last grant that was reported for new peers; `None`: the full credit.
    last_reported: Option<u16>,
}

impl Grants {
    /// The grant of a new peer.
    fn next(&self) -> u16 {
        let part = ALL_UNITS.saturating_sub(self.in_use) / PARTS;
        part.min(u32::from(QUOTA_UNITS)) as u16
    }

    /// Units granted to sessions, or used by unexpected messages of ended ones.
    pub(crate) fn in_use(&self) -> u32 {
        self.in_use
    }

    /// The grant of new peers, if it has changed since the last call.
    pub(crate) fn changed(&mut self) -> Option<u16> {
        let next = self.next();
        let changed = next != self.last_reported.unwrap_or(QUOTA_UNITS);
        changed.then(|| *self.last_reported.insert(next))
    }

    /// A session begins with a grant of `quota_units`.
    pub(crate) fn begin(&mut self, quota_units: u16) {
        self.in_use += u32::from(quota_units);
    }

    /// A session ends; unexpected messages of it still use `held_units`.
    pub(crate) fn end(&mut self, quota_units: u16, held_units: u32) {
        self.give_back(u32::from(quota_units).saturating_sub(held_units));
    }

    /// A parked session goes on; `units` of its credit were lent meanwhile.
    pub(crate) fn take_back(&mut self, units: u32) {
        self.in_use += units;
    }

    /// An unexpected message of an ended session is gone.
    pub(crate) fn release_message(&mut self, payload_bytes: usize) {
        self.give_back(cost_units(payload_bytes as u32));
    }

    fn give_back(&mut self, units: u32) {
        self.in_use = self.in_use.saturating_sub(units);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hundreds_get_the_full_credit_and_all_together_no_more_than_there_is() {
        let mut grants = Grants::default();
        let (mut all, mut full) = (0, 0);
        for _ in 0..100_000 {
            let quota = grants.next();
            grants.begin(quota);
            all += u32::from(quota);
            full += u32::from(quota == QUOTA_UNITS);
        }
        assert!(full >= 240, "{full}");
        assert!(all <= ALL_UNITS, "{all}");
        assert_eq!(grants.next(), 0);
    }

    #[test]
    fn unexpected_messages_of_ended_sessions_count_until_released() {
        let mut grants = Grants::default();
        // Each session leaves as many unexpected messages as its grant allows.
        while grants.next() > 0 {
            let quota = grants.next();
            grants.begin(quota);
            grants.end(quota, u32::from(quota));
        }
        assert_eq!(grants.changed(), Some(0));
        assert_eq!(grants.changed(), None);
        for _ in 0..ALL_UNITS / 2 {
            grants.release_message(64);
        }
        assert_eq!(grants.changed(), Some(QUOTA_UNITS));
        assert_eq!(grants.changed(), None);
    }
}
