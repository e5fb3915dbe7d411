//! The network that datagrams cross: quiet, or one that loses, repeats and reorders them at random.
//!
//! A delayed datagram waits for other events of the device: datagrams that are sent, and polls that
//! look for some. So the delay has no clock, and also ends on a device that only polls move.

use std::collections::BTreeMap;

use fastrand::Rng;
use ferrofabric_verbs_sys::ibv_qp_type;

use crate::fault::{Crossed, NetworkFaults};
use crate::model::DeviceModel;
use crate::wire::WireMessage;

/// Events that a delayed datagram waits for at most.
const MAX_DELAY: u64 = 16;

/// The datagrams that are under way, and counts of all that were.
pub(crate) struct Crossing {
    network: NetworkFaults,
    rng: Rng,
    /// Counts events.
    now: u64,
    delayed: Vec<Delayed>,
    /// The latest datagram that each queue pair has got.
    latest: BTreeMap<u32, u64>,
    pub(crate) crossed: Crossed,
}

/// A datagram, and to whom it goes.
struct Delayed {
    due: u64,
    /// Counts datagrams.
    number: u64,
    to: u32,
    qkey: u32,
    message: WireMessage,
}

impl Crossing {
    /// A network that delivers all, in order.
    pub(crate) const fn quiet() -> Self {
        Self {
            network: NetworkFaults {
                seed: 0,
                lost: 0,
                repeated: 0,
                delayed: 0,
            },
            rng: Rng::with_seed(0),
            now: 0,
            delayed: Vec::new(),
            latest: BTreeMap::new(),
            crossed: Crossed {
                sent: 0,
                lost: 0,
                repeated: 0,
                overtaken: 0,
            },
        }
    }

    /// As a network that nothing has crossed yet. Datagrams under way on the previous
    /// one are lost.
    pub(crate) fn of(network: NetworkFaults) -> Self {
        Self {
            network,
            rng: Rng::with_seed(network.seed),
            ..Self::quiet()
        }
    }

    fn strikes(&mut self, percent: u32) -> bool {
        self.rng.u32(..100) < percent
    }

    fn is_quiet(&self) -> bool {
        let NetworkFaults {
            lost,
            repeated,
            delayed,
            ..
        } = self.network;
        lost + repeated + delayed == 0
    }
}

impl DeviceModel {
    /// Sends a datagram across the network.
    pub(crate) fn cross(&mut self, to: u32, qkey: u32, message: WireMessage) {
        let crossing = &mut self.crossing;
        let number = crossing.crossed.sent;
        crossing.crossed.sent += 1;
        if crossing.is_quiet() {
            return self.take_in(to, qkey, number, message);
        }
        let copies = if crossing.strikes(crossing.network.lost) {
            crossing.crossed.lost += 1;
            0
        } else if crossing.strikes(crossing.network.repeated) {
            crossing.crossed.repeated += 1;
            2
        } else {
            1
        };
        for _ in 0..copies {
            let message = message.clone();
            let crossing = &mut self.crossing;
            if crossing.strikes(crossing.network.delayed) {
                let due = crossing.now + 1 + crossing.rng.u64(..MAX_DELAY);
                crossing.delayed.push(Delayed {
                    due,
                    number,
                    to,
                    qkey,
                    message,
                });
            } else {
                self.take_in(to, qkey, number, message);
            }
        }
        self.pass_time();
    }

    /// Counts an event, and delivers what has waited for it.
    pub(crate) fn pass_time(&mut self) {
        if self.crossing.delayed.is_empty() {
            return;
        }
        self.crossing.now += 1;
        let now = self.crossing.now;
        while let Some(at) = (self.crossing.delayed.iter()).position(|waits| waits.due <= now) {
            let Delayed {
                number,
                to,
                qkey,
                message,
                ..
            } = self.crossing.delayed.remove(at);
            self.take_in(to, qkey, number, message);
        }
    }

    /// Hands a datagram to a queue pair, if that takes it. Else it is lost, and its sender gets no
    /// error.
    fn take_in(&mut self, to: u32, qkey: u32, number: u64, message: WireMessage) {
        let takes = self.queue_pairs.get(&to).is_some_and(|peer| {
            peer.kind == ibv_qp_type::IBV_QPT_UD && peer.listens() && peer.qkey == qkey
        });
        if takes && self.deliver(to, message).is_ok() {
            let latest = self.crossing.latest.entry(to).or_default();
            self.crossing.crossed.overtaken += u64::from(number < *latest);
            *latest = (*latest).max(number);
        }
    }
}
