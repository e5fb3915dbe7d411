//! The link of the port that the handshakes go through. While it is down no packet comes or goes,
//! so the silence of peers means nothing: no peer is given up for it.

use super::super::Time;
use super::Connector;
use super::peer::LanePhase;

impl Connector {
    /// The port carries no packets from now on: the clocks of all peers stand still.
    pub fn port_down(&mut self) {
        self.standing.link_down = true;
    }

    /// The port carries packets again: the silence of each peer, and the wait for its lane, begin
    /// anew, and attempts go on at once.
    pub fn port_active(&mut self, now: Time) {
        if !std::mem::take(&mut self.standing.link_down) {
            return;
        }
        let keys: Vec<_> = self.peers.iter().map(|(key, _)| key).collect();
        for key in keys {
            let Some(peer) = self.peers.get_mut(key) else {
                continue;
            };
            peer.life.mark_alive(now);
            match peer.phase {
                LanePhase::HelloSent | LanePhase::HalfOpen | LanePhase::Waiting => {
                    peer.tries = 0;
                    self.timers.set(key, Some(now));
                }
                LanePhase::Up => self.arm_keep_alive(key, now),
                _ => {}
            }
        }
    }
}
