//! The credit that an endpoint grants its peers: the bound of each peer's unexpected data. The
//! credit of all peers together is bounded. Each new peer gets a fraction of the rest, so that some
//! is always left, but never less than small messages need. So all unexpected data is bounded by
//! twice [`ALL_UNITS`], once for live sessions and once for ended ones, and [`LEAST_UNITS`] for
//! each session.

use ferrofabric_protocol::credit::cost_units;

/// Credit of a peer, in units of 64 bytes: 256 KiB.
pub(crate) const QUOTA_UNITS: u16 = 4096;

/// Credit of all peers beyond the least, with the unexpected data of ended sessions: 64 MiB.
const ALL_UNITS: u32 = 1 << 20;

/// A new peer gets this fraction of the rest, as a divisor: some 240 peers get their full credit.
const PARTS: u32 = 16;

/// The least credit of a peer: 4 KiB, or 32 messages of 8 bytes. A peer may have as many requests
/// to send open, whatever its credit.
const LEAST_UNITS: u32 = 64;

/// The grants of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    /// Units granted to sessions, except those that are lent.
    granted: u32,
    /// Units used by unexpected messages of ended sessions.
    left: u32,
    /// The last grant that was reported for new peers; `None`: the full credit.
    last_reported: Option<u16>,
}

impl Grants {
    /// The grant of a new peer. While ended sessions have left too much, it may be none: otherwise
    /// peers that come and go would leave ever more.
    fn next(&self) -> u16 {
        let part = ALL_UNITS.saturating_sub(self.in_use()) / PARTS;
        let least = match self.left < ALL_UNITS {
            true => LEAST_UNITS,
            false => 0,
        };
        part.max(least).min(u32::from(QUOTA_UNITS)) as u16
    }

    /// Units granted to sessions, or used by unexpected messages of ended ones.
    pub(crate) fn in_use(&self) -> u32 {
        self.granted.saturating_add(self.left)
    }

    /// Units granted to sessions, except those that are lent.
    pub(crate) fn granted(&self) -> u32 {
        self.granted
    }

    /// The grant of new peers, if it has changed since the last call.
    pub(crate) fn changed(&mut self) -> Option<u16> {
        let next = self.next();
        let changed = next != self.last_reported.unwrap_or(QUOTA_UNITS);
        changed.then(|| *self.last_reported.insert(next))
    }

    /// A session begins with a grant of `quota_units`.
    pub(crate) fn begin(&mut self, quota_units: u16) {
        self.granted += u32::from(quota_units);
    }

    /// A session ends; unexpected messages of it still use `held_units`.
    pub(crate) fn end(&mut self, quota_units: u16, held_units: u32) {
        self.lend(u32::from(quota_units));
        self.left += held_units;
    }

    /// A session is parked: other sessions may have `units` of its credit.
    pub(crate) fn lend(&mut self, units: u32) {
        self.granted = self.granted.saturating_sub(units);
    }

    /// A parked session goes on; `units` of its credit were lent meanwhile.
    pub(crate) fn take_back(&mut self, units: u32) {
        self.granted += units;
    }

    /// An unexpected message of an ended session is gone.
    pub(crate) fn release_message(&mut self, payload_bytes: usize) {
        let units = cost_units(payload_bytes as u32);
        self.left = self.left.saturating_sub(units);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hundreds_get_the_full_credit_and_each_enough_for_small_messages() {
        const PEERS: u32 = 20_000;
        let mut grants = Grants::default();
        let (mut all, mut full) = (0, 0);
        for _ in 0..PEERS {
            let quota = grants.next();
            assert!(u32::from(quota) >= 16 * cost_units(8));
            grants.begin(quota);
            all += u32::from(quota);
            full += u32::from(quota == QUOTA_UNITS);
        }
        assert!(full >= 240, "{full}");
        assert!(all <= ALL_UNITS + PEERS * LEAST_UNITS, "{all}");
        assert_eq!(grants.in_use(), all);
    }

    /// Credit of parked sessions goes to others, and each gets its own back.
    #[test]
    fn lent_credit_is_granted_to_others() {
        let mut grants = Grants::default();
        for _ in 0..10_000 {
            grants.begin(grants.next());
        }
        assert_eq!(u32::from(grants.next()), LEAST_UNITS);
        let lent = grants.in_use();
        grants.lend(lent);
        assert_eq!(grants.next(), QUOTA_UNITS);
        grants.take_back(lent);
        assert_eq!(u32::from(grants.next()), LEAST_UNITS);
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
        assert!(grants.in_use() < ALL_UNITS + LEAST_UNITS);
        assert_eq!(grants.changed(), Some(0));
        assert_eq!(grants.changed(), None);
        for _ in 0..ALL_UNITS / 2 {
            grants.release_message(64);
        }
        assert_eq!(grants.changed(), Some(QUOTA_UNITS));
        assert_eq!(grants.changed(), None);
    }
}
