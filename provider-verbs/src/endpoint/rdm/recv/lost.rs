//! Receive buffers that were lost with their queue pairs, and come back
//! ([`census`](super::census)).

use super::super::RdmTransport;
use super::super::endings::Ending;
use super::census::LaneWatch;
use crate::lane::RcLane;

impl RdmTransport {
    /// A queue pair has ended without word of the receives that it had taken.
    pub(in super::super) fn suspect_lost_receive(&mut self) {
        self.receives.suspect();
    }

    /// Continues the search for lost receives as soon as the completion queue was emptied.
    #[cold]
    pub(in super::super) fn request_search(&mut self) {
        self.ending.push(Ending::Search);
    }

    /// Continues the search for lost receives; the completion queue was emptied.
    pub(in super::super) fn search_lost_receives(&mut self) {
        // Lanes that begin or end may hold a receive, and have no count of packets to compare.
        if self.lanes.new_lanes().next().is_some() || self.ending.has_queue_pair() {
            return;
        }
        let now = self.ud.now();
        let until = self.last_receive_deadline();
        let Some(census) = self.receives.turned_census() else {
            return;
        };
        let Some(watch) = &mut census.watch else {
            let next = |lane: &RcLane| (lane.head.key.session(), lane.session.numbers.expected());
            let lanes = self.lanes.rc_lanes().map(next).collect();
            census.watch = Some(LaneWatch { lanes, until });
            return;
        };
        let lanes = &mut self.lanes;
        watch.lanes.retain(|(session, next)| {
            let lane = lanes.rc(*session);
            lane.is_some_and(|lane| lane.session.numbers.expected() == *next)
        });
        if watch.lanes.is_empty() && now >= watch.until {
            self.receives.end_search();
        }
    }
}
