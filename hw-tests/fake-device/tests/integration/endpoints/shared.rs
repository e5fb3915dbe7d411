//! Resources that all lanes of an endpoint share, and that a few lanes use up: bounce buffers,
//! places in the completion queue.

use std::time::Instant;

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::{FakeDevice, QueuePairView};
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs_sys::ibv_qp_type;

use crate::endpoints::breakage::connections;
use crate::endpoints::nic::has_queue_pairs_for;
use crate::endpoints::party::{
    PATIENCE, assert_clean, check, endpoint, first, message, room, stat,
};
use crate::endpoints::revivals::control_queue_pair;

/// Bounce buffers of an endpoint.
const BUFFERS: usize = 256;

/// Of these, the share of a lane, if there are three.
const SHARE: usize = BUFFERS / 2 / 3;

/// The most buffers of a lane: half of those that are in no share.
const MOST: usize = BUFFERS / 4;

/// A peer that is not driven soon has no receive buffer.
const FEW: [(&str, &str); 1] = [("FERRO_RX_BUFFERS", "16")];

/// Of messages that take a bounce buffer each: no device has so much inline data.
const BYTES: usize = 1000;

/// An endpoint that sends to others.
struct HubWithPeers {
    hub: OwningEndpoint,
    spokes: Vec<StarPeer>,
}

/// A peer of the hub: messages that were sent to it, that have completed at the hub, and that have
/// come.
struct StarPeer {
    end: OwningEndpoint,
    at: FiAddr,
    sent: usize,
    over: usize,
    came: usize,
}

impl HubWithPeers {
    fn open(count: usize, others: &[(&str, &str)]) -> Self {
        let hub = endpoint(&[("FERRO_LANE", "rc")]);
        let spoke = |_| {
            let end = endpoint(others);
            let at = hub.av().insert(&end.name().to_bytes()).unwrap();
            StarPeer {
                end,
                at,
                sent: 0,
                over: 0,
                came: 0,
            }
        };
        let spokes = (0..count).map(spoke).collect();
        Self { hub, spokes }
    }

    fn connected(count: usize, others: &[(&str, &str)]) -> Self {
        let mut star = Self::open(count, others);
        (0..count).for_each(|to| star.connect(to));
        star
    }

    fn connect(&mut self, to: usize) {
        self.send(to, 8, 1);
        self.until("the connection", &[to], |star| star.all_over(&[to]));
    }

    fn receive(&mut self, at: usize, bytes: usize) {
        let spoke = &mut self.spokes[at];
        let tag = spoke.sent as u64;
        let posted = spoke.end.trecv(room(bytes), FiAddr::UNSPEC, tag, 0, tag);
        posted.map_err(first).unwrap();
        spoke.sent += 1;
    }

    /// Sends messages for which there are receives.
    fn send(&mut self, to: usize, bytes: usize, count: usize) {
        for _ in 0..count {
            let (tag, at) = (self.spokes[to].sent as u64, self.spokes[to].at);
            self.receive(to, bytes);
            let sent = self
                .hub
                .tsend(message(bytes, tag), bytes, at, tag, to as u64);
            sent.map_err(first).unwrap();
        }
    }

    /// Drives the hub and some of the others.
    fn drive(&mut self, which: &[usize]) {
        if let Some(done) = self.hub.poll().unwrap() {
            assert!(done.outcome.is_ok(), "{}: {:?}", done.token, done.outcome);
            self.spokes[done.token as usize].over += 1;
        }
        self.drive_peers(which);
    }

    fn drive_peers(&mut self, which: &[usize]) {
        for &at in which {
            let spoke = &mut self.spokes[at];
            if let Some(done) = spoke.end.poll().unwrap() {
                let what = format!("message {} to {at}", done.token);
                assert!(done.outcome.is_ok(), "{what}: {:?}", done.outcome);
                check(&done.buffer, done.token, &what);
                spoke.came += 1;
            }
        }
    }

    /// So often that nothing more happens but what a thread brings about.
    fn exhaust(&mut self, which: &[usize]) {
        for _ in 0..4 * BUFFERS {
            self.drive(which);
        }
    }

    fn until(&mut self, what: &str, which: &[usize], so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !so(self) {
            assert!(begun.elapsed() < PATIENCE, "{what}: {}", self.account());
            self.drive(which);
        }
    }

    fn all_over(&self, which: &[usize]) -> bool {
        let mut of_them = which.iter().map(|&at| &self.spokes[at]);
        of_them.all(|spoke| spoke.came == spoke.sent && spoke.over == spoke.sent)
    }

    /// Messages that come to some peers in 1,000 progress calls of the hub, with four under way to
    /// each of them.
    fn messages_per_1000_calls(&mut self, device: &FakeDevice, which: &[usize]) -> usize {
        let came = |star: &Self| -> usize { which.iter().map(|&at| star.spokes[at].came).sum() };
        let before = came(self);
        for _ in 0..1000 {
            for &at in which {
                let spoke = &self.spokes[at];
                let under_way = spoke.sent - spoke.came.min(spoke.over);
                self.send(at, BYTES, 4_usize.saturating_sub(under_way));
            }
            // A call that finds no completion makes progress: it polls the device's queue.
            let polls = device.calls("ibv_poll_cq");
            while device.calls("ibv_poll_cq") == polls {
                self.drive(&[]);
            }
            // Each takes all its messages.
            (0..4).for_each(|_| self.drive_peers(which));
        }
        came(self) - before
    }

    /// Requests that wait at the hub for a peer to have receive buffers.
    fn waiting(&self, device: &FakeDevice, at: usize) -> usize {
        let all = device.queue_pairs();
        let domain_of = |number| all.iter().find(|qp| qp.number == number).map(|qp| qp.pd);
        let hub = domain_of(control_queue_pair(&self.hub));
        let spoke = domain_of(control_queue_pair(&self.spokes[at].end));
        let is_its = |qp: &&QueuePairView| {
            qp.kind == ibv_qp_type::IBV_QPT_RC.0
                && Some(qp.pd) == hub
                && domain_of(qp.remote) == spoke
        };
        all.iter()
            .filter(is_its)
            .map(|qp| qp.waiting as usize)
            .sum()
    }

    fn account(&self) -> String {
        let of = |s: &StarPeer| format!("{} of {} came, {} over", s.came, s.sent, s.over);
        let all: Vec<_> = self.spokes.iter().map(of).collect();
        all.join("; ")
    }
}

/// A message that found no bounce buffer goes when others have come back: by the completions of a
/// lane that is not its own, whose peer is stopped.
#[test]
fn a_lane_that_found_no_buffer_goes_on_when_there_is_one() {
    let device = FakeDevice::take();
    let mut star = HubWithPeers::connected(3, &FEW);
    star.send(0, BYTES, 200);
    star.exhaust(&[]);
    assert_eq!(star.waiting(&device, 0), MOST);
    star.send(1, BYTES, 200);
    star.exhaust(&[]);
    assert_eq!(star.waiting(&device, 1), SHARE);
    star.until("the first", &[0], |star| star.all_over(&[0]));
    // Once a second something else would have the lane looked at.
    (0..500).for_each(|_| star.drive(&[]));
    assert_eq!(star.waiting(&device, 1), MOST);
    star.until("the second", &[1], |star| star.all_over(&[1]));
    drop(star);
    assert_clean(&device);
}

/// The same of packets that are sent again on another connection.
#[test]
fn a_replay_goes_on_when_another_lane_gives_a_buffer_back() {
    let device = FakeDevice::take();
    let mut star = HubWithPeers::open(3, &FEW);
    star.connect(0);
    let broken = connections(&device);
    (1..3).for_each(|to| star.connect(to));
    // Receivers that are not driven take no more than they have buffers for.
    for to in 0..2 {
        star.send(to, BYTES, 150);
        star.exhaust(&[]);
    }
    assert_eq!(star.waiting(&device, 0), MOST);
    assert_eq!(star.waiting(&device, 1), SHARE);
    for qp in broken {
        device.break_queue_pair(qp);
    }
    star.until("the lane breaks", &[], |star| {
        stat(&star.hub, "verbs_lanes_failed") == 1
    });
    // The other takes all that the broken lane gave back but its share.
    star.exhaust(&[]);
    star.until("the session goes on", &[0], |star| {
        stat(&star.hub, "verbs_sessions_resumed") == 1
    });
    star.exhaust(&[]);
    assert_eq!(star.waiting(&device, 0), SHARE);
    star.until("the other lane", &[1], |star| star.all_over(&[1]));
    star.exhaust(&[]);
    assert!(
        star.waiting(&device, 0) > SHARE,
        "it waits beside free buffers"
    );
    star.until("the rest", &[0], |star| star.all_over(&[0]));
    drop(star);
    assert_clean(&device);
}

/// Messages without a completion, to more peers than the completion queue has room for, while no
/// single lane has a reason of its own for a signaled request: the messages go on all the same.
#[test]
fn many_lanes_without_signaled_requests() {
    if !has_queue_pairs_for(271) {
        return;
    }
    // Of 16,384 places; at least every 64th request of a lane is signaled.
    const PEERS: usize = 270;
    const EACH: usize = 62;
    let device = FakeDevice::take();
    let few = [("FERRO_EAGER", "256"), ("FERRO_RX_BUFFERS", "256")];
    let mut star = HubWithPeers::connected(PEERS, &few);
    let begun = Instant::now();
    for _ in 0..EACH {
        for to in 0..PEERS {
            let tag = star.spokes[to].sent as u64;
            star.receive(to, 8);
            star.spokes[to].over += 1;
            let (text, at) = (message(8, tag), star.spokes[to].at);
            while star.hub.tinject(&text, at, tag) == Err(OpError::Again) {
                star.drive(&[]);
                assert!(begun.elapsed() < PATIENCE, "no room: {}", star.account());
            }
        }
    }
    for to in 0..PEERS {
        star.until("what was injected", &[to], |star| star.all_over(&[to]));
    }
    drop(star);
    assert_clean(&device);
}

/// A peer that stops has no more bounce buffers than the others can spare: their messages go as
/// fast as before.
#[test]
fn a_stopped_peer_leaves_the_others_their_buffers() {
    if !has_queue_pairs_for(101) {
        return;
    }
    const PEERS: usize = 100;
    let device = FakeDevice::take();
    let mut star = HubWithPeers::connected(PEERS, &FEW);
    let (all, others): (Vec<_>, Vec<_>) = ((0..PEERS).collect(), (1..PEERS).collect());
    let before = star.messages_per_1000_calls(&device, &all) * (PEERS - 1) / PEERS;
    star.send(0, BYTES, 2 * BUFFERS);
    star.exhaust(&[]);
    let after = star.messages_per_1000_calls(&device, &others);
    assert!(
        after * 100 >= before * 95,
        "{after} messages in 1,000 calls, {before} before one stopped"
    );
    star.until("the rest", &all, |star| star.all_over(&all));
    drop(star);
    assert_clean(&device);
}
