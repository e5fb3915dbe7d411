//! The order in which silent lanes are probed: a few at a time, so that thousands of idle lanes
//! cost little, and each in its turn, so that each dead peer is found.

use ferrofabric_protocol::wire::SessionId;

/// Lanes probed in one look, at most. There is a look each second.
const AT_ONCE: usize = 64;

/// An idle lane is probed once in this number of looks, or more if there are many.
const LOOKS: usize = 4;

/// A lane without a signaled request under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SilentLane {
    pub(crate) session: SessionId,
    /// Requests are under way, whose completion only a later one reports: such a lane goes first.
    pub(crate) has_requests: bool,
}

/// The turns of an endpoint's silent lanes.
#[derive(Debug, Default)]
pub(crate) struct ProbeTurns {
    /// The place of the lane whose turn it is.
    next_place: usize,
    /// Looks that idle lanes have waited for, added up. Each probe takes [`LOOKS`] of them.
    waited_looks: usize,
}

impl ProbeTurns {
    /// Orders the silent lanes, which come in the order of their places, and leaves those that are
    /// to be probed in this look.
    pub(crate) fn choose(&mut self, silent: &mut Vec<SilentLane>) {
        let place = |lane: &SilentLane| lane.session.index();
        let next = silent.partition_point(|lane| place(lane) < self.next_place);
        silent.rotate_left(next);
        silent.sort_by_key(|lane| !lane.has_requests);
        let first_idle = silent.partition_point(|lane| lane.has_requests);
        let idle = silent.len() - first_idle;
        self.waited_looks = (self.waited_looks + idle).min(LOOKS * idle);
        let due = (self.waited_looks / LOOKS).min(AT_ONCE.saturating_sub(first_idle));
        self.waited_looks -= due * LOOKS;
        silent.truncate(AT_ONCE.min(first_idle + due));
        // Lanes with requests take no turn of an idle one.
        let is_cut = due > 0 || first_idle > AT_ONCE;
        if let Some(last) = silent.last().filter(|_| is_cut) {
            self.next_place = place(last) + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(count: usize, has_requests: impl Fn(usize) -> bool) -> Vec<SilentLane> {
        let lane = |place| SilentLane {
            session: SessionId(place as u32),
            has_requests: has_requests(place),
        };
        (0..count).map(lane).collect()
    }

    /// Looks after which each lane was probed, and the highest number of probes in one of them.
    fn looks_for_all(turns: &mut ProbeTurns, count: usize, busy: usize) -> (usize, usize) {
        let (mut probed, mut looks, mut most) = (vec![false; count], 0, 0);
        while probed.contains(&false) {
            let mut silent = lanes(count, |place| place >= count - busy);
            turns.choose(&mut silent);
            most = most.max(silent.len());
            for lane in silent {
                probed[lane.session.index()] = true;
            }
            looks += 1;
            assert!(looks <= 10 * count + 10, "{count} lanes: some are left out");
        }
        (looks, most)
    }

    #[test]
    fn each_lane_has_its_turn_and_few_are_probed_at_once() {
        for count in [1, 2, 3, 4, 5, 63, 64, 65, 255, 256, 257, 1000, 4096, 10_000] {
            let mut turns = ProbeTurns::default();
            for _ in 0..3 {
                let (looks, most) = looks_for_all(&mut turns, count, 0);
                let limit = LOOKS.max(count.div_ceil(AT_ONCE)) + 1;
                assert!(looks <= limit, "{count} lanes took {looks} looks");
                assert!(most <= count.div_ceil(LOOKS).min(AT_ONCE), "{most} at once");
            }
        }
    }

    /// Lanes with requests go first, and the others are not forgotten for them.
    #[test]
    fn lanes_with_requests_go_first() {
        let mut turns = ProbeTurns::default();
        let mut silent = lanes(100, |place| place % 10 == 3);
        turns.choose(&mut silent);
        assert_eq!(silent.len(), 10 + 90 / LOOKS);
        assert!(silent[..10].iter().all(|lane| lane.has_requests));
        for busy in [1, 10, 60] {
            let (looks, most) = looks_for_all(&mut turns, 200, busy);
            assert!(most <= AT_ONCE);
            assert!(
                looks <= 200 / (AT_ONCE - busy) + LOOKS + 1,
                "{busy}: {looks}"
            );
        }
        let (looks, _) = looks_for_all(&mut turns, 4, 1);
        assert!(looks <= 3 * LOOKS, "{looks}");
        // More of them than are probed at once: each has its turn.
        let (looks, most) = looks_for_all(&mut turns, 200, 200);
        assert_eq!((looks, most), (4, AT_ONCE));
    }

    #[test]
    fn no_lane_is_no_probe() {
        let mut turns = ProbeTurns::default();
        turns.choose(&mut lanes(1000, |_| false));
        let mut silent = Vec::new();
        turns.choose(&mut silent);
        assert!(silent.is_empty());
        // The wait of many lanes does not count for a few later ones.
        let probed: usize = (0..LOOKS)
            .map(|_| {
                let mut silent = lanes(1, |_| false);
                turns.choose(&mut silent);
                silent.len()
            })
            .sum();
        assert_eq!(probed, 1);
    }
}
