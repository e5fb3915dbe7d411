//! Resources that all lanes of an endpoint share, and that a few lanes use up: bounce buffers,
//! places in the completion queue.

use std::time::Instant;

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::FakeDevice;
use ferrofabric_runtime::owning::OwningEndpoint;

use crate::breakage::connections;
use crate::party::{PATIENCE, assert_clean, check, endpoint, first, message, room, stat};

/// Bounce buffers of an endpoint.
const BUFFERS: usize = 256;

/// Messages that the queue of a lane takes.
const AT_A_LANE: usize = 247;

/// Of messages that take a bounce buffer each.
const BYTES: usize = 300;

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

    fn account(&self) -> String {
        let of = |s: &StarPeer| format!("{} of {} came, {} over", s.came, s.sent, s.over);
        let all: Vec<_> = self.spokes.iter().map(of).collect();
        all.join("; ")
    }
}

/// A message that found no bounce buffer goes when others have come back: by the word of a lane
/// that is not its own.
#[test]
fn a_lane_that_found_no_buffer_goes_on_when_there_is_one() {
    for _ in 0..3 {
        let device = FakeDevice::take();
        let mut star = HubWithPeers::connected(3, &[]);
        device.hold(true);
        star.send(0, BYTES, AT_A_LANE);
        star.send(1, BYTES, BUFFERS - AT_A_LANE);
        star.send(2, BYTES, 1);
        // The last is tried, in vain.
        star.exhaust(&[0, 1, 2]);
        device.hold(false);
        star.until("the others", &[0, 1, 2], |star| star.all_over(&[0, 1]));
        // Once a second something else would have the last looked at.
        let mut looks = 0;
        while !star.all_over(&[2]) {
            star.drive(&[2]);
            looks += 1;
            assert!(looks < 500, "the last waits, with all buffers there");
        }
        drop(star);
        assert_clean(&device);
    }
}

/// The same of packets that are sent again on another connection.
#[test]
fn a_replay_goes_on_when_another_lane_gives_a_buffer_back() {
    let device = FakeDevice::take();
    let mut star = HubWithPeers::open(3, &[("FERRO_RX_BUFFERS", "16")]);
    star.connect(0);
    let broken = connections(&device);
    (1..3).for_each(|to| star.connect(to));
    // Receivers that are not driven take no more than they have buffers for. The first has some
    // messages yet to take, the second as many as its lane holds, the third has the rest of the
    // buffers, and more in line.
    star.send(0, BYTES, 20);
    star.exhaust(&[]);
    assert!(star.spokes[0].over < star.spokes[0].sent);
    star.send(1, BYTES, AT_A_LANE + 30);
    star.exhaust(&[]);
    star.send(2, BYTES, 60);
    star.exhaust(&[]);
    for qp in broken {
        device.break_queue_pair(qp);
    }
    star.until("the lane breaks", &[], |star| {
        stat(&star.hub, "verbs_lanes_failed") == 1
    });
    star.exhaust(&[]);
    // It takes what the broken lane gave back.
    star.send(2, BYTES, 1);
    star.exhaust(&[]);
    star.until("the session goes on", &[0], |star| {
        stat(&star.hub, "verbs_sessions_resumed") == 1
    });
    star.exhaust(&[0]);
    assert!(
        star.spokes[0].came < star.spokes[0].sent,
        "a buffer was left"
    );
    star.until("the rest", &[0, 1, 2], |star| star.all_over(&[0, 1, 2]));
    drop(star);
    assert_clean(&device);
}

/// Messages without a completion, to more peers than the completion queue has room for, while no
/// single lane has a reason of its own for a signaled request: the messages go on all the same.
#[test]
fn many_lanes_without_signaled_requests() {
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
