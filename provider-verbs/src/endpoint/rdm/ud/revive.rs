//! Recovery of the data queue pair after a failure.
//!
//! An endpoint that only receives on UD lanes sends nothing but acknowledgements, and with the
//! queue pair in error no packet arrives for which one would be due. So the queue pair is revived
//! as soon as its failure is known, even if nothing has to be sent. A completion reports the
//! failure, or a query of the device: each second while there are UD lanes, and when a lane
//! suspects its peer.

use std::sync::Arc;

use ferrofabric_protocol::Time;

use super::super::RdmTransport;
use super::super::endings::Ending;
use super::super::recv::ReceivingQueuePair;
use crate::lane::Lane;
use crate::qp::UdFailure;

impl RdmTransport {
    /// Queries the state of the data queue pair. It may have failed with nothing under way, so that
    /// no completion reports it.
    #[cold]
    pub(in super::super) fn check_data_queue_pair(&mut self) {
        let uses_it = |lane: &Lane| !matches!(lane, Lane::Rc(_));
        if !self.lanes.iter().any(uses_it) {
            return;
        }
        if let Some(queue_pair) = &mut self.ud.queue_pair {
            queue_pair.check();
        }
        self.recover_data_queue_pair();
    }

    /// Handles a suspected failure of the data queue pair: it is revived once the packets that
    /// arrived on it were taken. A reset would drop them, with the receive buffers that they are
    /// in. Where the send queue alone has failed, packets still arrive, and no reset is due.
    #[cold]
    pub(in super::super) fn recover_data_queue_pair(&mut self) {
        let until = self.last_receive_deadline();
        let Some(queue_pair) = &mut self.ud.queue_pair else {
            return;
        };
        let Some(failure) = queue_pair.failure().filter(|_| !self.ud.reviving) else {
            return;
        };
        if failure == UdFailure::All {
            self.receives.ends(queue_pair.number());
            queue_pair.stop();
        }
        self.ud.reviving = true;
        self.ending.push(Ending::DataQueuePair(until));
    }

    /// Revives the data queue pair, and gives each lane a turn: all that had come was taken. It is
    /// reset once the device has given back the receives, or at the time `until`. If it does not
    /// work then, the next check tries again.
    #[cold]
    pub(in super::super) fn revive_data_queue_pair(&mut self, until: Time) {
        let now = self.ud.now();
        let Some(queue_pair) = &mut self.ud.queue_pair else {
            return;
        };
        queue_pair.check();
        let resets = queue_pair.failure() == Some(UdFailure::All);
        let raw = queue_pair.raw().clone();
        let has_all_back = self.receives.is_empty(raw.number()) == Some(true);
        if resets && !has_all_back && now < until {
            self.receives.ends(raw.number());
            queue_pair.stop();
            return self.ending.push(Ending::DataQueuePair(until));
        }
        self.ud.reviving = false;
        let works = queue_pair.revive(&mut self.poster);
        match resets && works {
            true if has_all_back => self.open_data_receives(),
            // The device may have flushed some between the last poll and the reset.
            true => self.ending.push(Ending::DataReceives),
            false => {}
        }
        if !works {
            if !resets {
                self.recover_data_queue_pair();
            }
            return;
        }
        self.list_stalled();
        let sessions: Vec<_> = (self.lanes.ud_lanes())
            .map(|lane| lane.head.key.session())
            .collect();
        for session in sessions {
            self.list(session);
        }
    }

    /// Gives the data queue pair, which was reset, its receives. The device has none of them, and
    /// what it had flushed was taken.
    #[cold]
    pub(in super::super) fn open_data_receives(&mut self) {
        let Some(queue_pair) = &self.ud.queue_pair else {
            return;
        };
        let (number, receiving) = (
            queue_pair.number(),
            ReceivingQueuePair::Ud(Arc::downgrade(queue_pair.raw())),
        );
        let depth = self.poster.tuning.datagram_receives;
        self.receives.close(number);
        self.receives.open(number, receiving, depth);
    }
}
