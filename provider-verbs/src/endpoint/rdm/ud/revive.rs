//! The data queue pair when it has failed.
//!
//! An endpoint that only receives on lanes of the UD kind sends nothing but acknowledgements, and
//! with the queue pair in error nothing comes for which one would fall due. So it is made to work
//! again as soon as its failure is known, whoever has something to send: from a completion, or by a
//! question to the device, each second that there are such lanes, and when a lane suspects its
//! peer.

use super::super::RdmTransport;
use super::super::endings::Ending;

impl RdmTransport {
    /// Asks the device whether the data queue pair works. It may have failed with nothing under
    /// way, so that no completion says so.
    #[cold]
    pub(in super::super) fn check_data_queue_pair(&mut self) {
        if self.ud.lanes.count() == 0 && self.new_lanes.is_empty() {
            return;
        }
        if let Some(queue_pair) = &mut self.ud.queue_pair {
            queue_pair.check();
        }
        self.look_after_data_queue_pair();
    }

    /// The data queue pair may have failed: then it is made to work again once what came by it was
    /// taken. A reset would drop that, and the receive buffers in which it lies.
    #[cold]
    pub(in super::super) fn look_after_data_queue_pair(&mut self) {
        let queue_pair = self.ud.queue_pair.as_mut();
        let broken = queue_pair.filter(|queue_pair| queue_pair.is_broken());
        if let (Some(queue_pair), false) = (broken, self.ud.reviving) {
            queue_pair.stop();
            self.ud.reviving = true;
            self.ending.push(Ending::DataQueuePair);
        }
    }

    /// Makes the data queue pair work again, and gives each lane a turn. If that fails, the next
    /// check tries once more.
    #[cold]
    pub(in super::super) fn revive_data_queue_pair(&mut self) {
        self.ud.reviving = false;
        let Some(queue_pair) = &mut self.ud.queue_pair else {
            return;
        };
        if !queue_pair.revive(&mut self.poster) {
            return;
        }
        self.go_on_stalled();
        let sessions: Vec<_> = (self.ud.lanes.iter_mut())
            .map(|lane| lane.key.session())
            .collect();
        for session in sessions {
            self.list(session);
        }
    }
}
