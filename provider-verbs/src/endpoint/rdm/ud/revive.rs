//! Recovery of the data queue pair after a failure.
//!
//! An endpoint that only receives on UD lanes sends nothing but acknowledgements, and with the
//! queue pair in error no packet arrives for which one would be due. So the queue pair is revived
//! as soon as its failure is known, even if nothing has to be sent. A completion reports the
//! failure, or a query of the device: each second while there are UD lanes, and when a lane
//! suspects its peer.

use super::super::RdmTransport;
use super::super::endings::Ending;

impl RdmTransport {
    /// Queries the state of the data queue pair. It may have failed with nothing under way, so that
    /// no completion reports it.
    #[cold]
    pub(in super::super) fn check_data_queue_pair(&mut self) {
        if self.ud.lanes.count() == 0 && self.new_lanes.is_empty() {
            return;
        }
        if let Some(queue_pair) = &mut self.ud.queue_pair {
            queue_pair.check();
        }
        self.recover_data_queue_pair();
    }

    /// Handles a suspected failure of the data queue pair: it is revived once the packets that
    /// arrived on it were taken. A reset would drop them, with the receive buffers that they are
    /// in.
    #[cold]
    pub(in super::super) fn recover_data_queue_pair(&mut self) {
        let queue_pair = self.ud.queue_pair.as_mut();
        let broken = queue_pair.filter(|queue_pair| queue_pair.is_broken());
        if let (Some(queue_pair), false) = (broken, self.ud.reviving) {
            queue_pair.stop();
            self.ud.reviving = true;
            self.ending.push(Ending::DataQueuePair);
        }
    }

    /// Revives the data queue pair, and gives each lane a turn. If that fails, the next check tries
    /// again.
    #[cold]
    pub(in super::super) fn revive_data_queue_pair(&mut self) {
        self.ud.reviving = false;
        let Some(queue_pair) = &mut self.ud.queue_pair else {
            return;
        };
        if !queue_pair.revive(&mut self.poster) {
            return;
        }
        self.list_stalled();
        let sessions: Vec<_> = (self.ud.lanes.iter_mut())
            .map(|lane| lane.key.session())
            .collect();
        for session in sessions {
            self.list(session);
        }
    }
}
