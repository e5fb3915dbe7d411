//! The network, the clock, and the model RC lanes. Ends are numbered; 2k and 2k + 1 are the two of
//! a session.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use fastrand::Rng;

use super::end::{Agreed, DatagramEnd, OutPacket};
use crate::Time;
use crate::datagram_lane::{DatagramLaneConfig, SharedLaneState};
use crate::sim::network::Weather;
use crate::timers::{HasPlace, Timers};
use crate::wire::SessionId;

/// Time of a handshake, or of a question whether a peer lives.
const HANDSHAKE: Duration = Duration::from_micros(60);

/// How long the device of an RC lane tries when nobody is there.
const RC_RETRIES: Duration = Duration::from_millis(1);

/// How long an RC lane takes from one end to the other.
const RC_DELAY: Duration = Duration::from_micros(4);

/// Ends are numbered.
impl HasPlace for usize {
    fn place(self) -> usize {
        self
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DatagramEvent {
    Datagram {
        to: usize,
        bytes: Box<[u8]>,
    },
    RcPacket {
        to: usize,
        epoch: u64,
        bytes: Box<[u8]>,
    },
    RcDone {
        at: usize,
        epoch: u64,
        sequence: u32,
    },
    RcUp {
        at: usize,
        epoch: u64,
        may_send: bool,
    },
    RcReady {
        at: usize,
        epoch: u64,
    },
    RcDown {
        at: usize,
        epoch: u64,
    },
    Handshake {
        pair: usize,
    },
    Ask {
        by: usize,
    },
}

/// Counts of the network's faults on numbered packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fates {
    pub(super) datagrams: u64,
    pub(super) numbered_lost: u64,
    pub(super) overrun: u64,
    pub(super) stray: u64,
}

pub(super) struct DatagramWorld {
    pub(super) now: Time,
    pub(super) ends: Vec<DatagramEnd>,
    pub(super) weather: Weather,
    pub(super) shared: SharedLaneState,
    pub(super) fates: Fates,
    /// Received packets that each end may keep for later.
    pub(super) may_hold: usize,
    /// The node of each end: all packets for a node wait in one line.
    pub(super) node_of: Vec<u32>,
    /// Packets that fit in that line; more are lost.
    pub(super) line: u64,
    busy_until: Vec<Time>,
    pub(super) quota_units: u16,
    pub(super) start: u32,
    serial: u64,
    epoch: u64,
    events: BinaryHeap<Reverse<(Time, u64, DatagramEvent)>>,
    timers: Timers<usize>,
    order: u64,
    rng: Rng,
    out: Vec<OutPacket>,
    /// Messages that each end sends in every session.
    pub(super) plan: Vec<Vec<u32>>,
    done: Vec<bool>,
    pub(super) open: usize,
}

impl DatagramWorld {
    pub(super) fn new(
        pairs: usize,
        config: DatagramLaneConfig,
        weather: Weather,
        seed: u64,
    ) -> Self {
        let shared = SharedLaneState {
            config,
            ..SharedLaneState::default()
        };
        let mut world = DatagramWorld {
            now: Time(1),
            ends: Vec::with_capacity(2 * pairs),
            weather,
            shared,
            fates: Fates::default(),
            may_hold: usize::MAX,
            node_of: Vec::new(),
            line: u64::MAX,
            busy_until: Vec::new(),
            quota_units: 4096,
            start: 0,
            serial: 0,
            epoch: 1,
            events: BinaryHeap::new(),
            timers: Timers::default(),
            order: 0,
            rng: Rng::with_seed(seed),
            out: Vec::new(),
            plan: vec![Vec::new(); 2 * pairs],
            done: vec![true; 2 * pairs],
            open: 0,
        };
        for end in 0..2 * pairs {
            let agreed = world.agreed(end, 0, 0);
            world.ends.push(DatagramEnd::new(agreed, &world.shared));
            world.timers.begin(end);
        }
        world
    }

    fn agreed(&self, end: usize, cookie: u32, remote_cookie: u32) -> Agreed {
        Agreed {
            serial: self.serial,
            id: SessionId(end as u32),
            remote_id: SessionId(end as u32 ^ 1),
            cookie,
            remote_cookie,
            quota_units: self.quota_units,
            start: self.start,
        }
    }

    /// A session begins, at both ends: they send what is planned.
    pub(super) fn begin(&mut self, pair: usize) {
        self.serial += 1;
        let cookies = [self.rng.u32(..), self.rng.u32(..)];
        for side in 0..2 {
            let end = 2 * pair + side;
            let agreed = self.agreed(end, cookies[side], cookies[1 - side]);
            let before = &self.ends[end];
            let mut fresh = DatagramEnd::new(agreed, &self.shared);
            (fresh.replies, fresh.consumes) = (before.replies, before.consumes);
            fresh.allowance = before.allowance;
            fresh.to_send = self.plan[end].iter().copied().collect();
            self.ends[end] = fresh;
        }
        for end in [2 * pair, 2 * pair + 1] {
            self.run(end);
        }
    }

    pub(super) fn begin_all(&mut self) {
        (0..self.ends.len() / 2).for_each(|pair| self.begin(pair));
    }

    /// The process at `end` dies; its successor greets the peer if it has something to say.
    pub(super) fn restart(&mut self, end: usize, greets: bool) {
        let agreed = self.agreed(end, 0, 0);
        self.ends[end] = DatagramEnd::new(agreed, &self.shared);
        self.timers.set(end, None);
        self.note(end);
        if greets {
            self.push(HANDSHAKE, DatagramEvent::Handshake { pair: end / 2 });
        }
    }

    /// Gives an end more to send.
    pub(super) fn add(&mut self, end: usize, bytes: u32) {
        self.ends[end].to_send.push_back(bytes);
        self.run(end);
    }

    /// An RC lane comes up, with `first` as the initiator.
    pub(super) fn promote(&mut self, first: usize) {
        self.epoch += 1;
        let epoch = self.epoch;
        let up = |at, may_send| DatagramEvent::RcUp {
            at,
            epoch,
            may_send,
        };
        // As in the handshake: the responder's end is up first and waits for a word; the initiator
        // may send at once.
        self.push(HANDSHAKE, up(first ^ 1, false));
        let jitter = self.rng.u64(..30_000);
        self.push(
            HANDSHAKE + Duration::from_nanos(3_000 + jitter),
            up(first, true),
        );
    }

    /// The RC lane breaks, or is recycled: the ends learn of it one after the other.
    pub(super) fn recycle(&mut self, first: usize) {
        let Some(epoch) = self.ends[first].rc.as_ref().map(|rc| rc.epoch) else {
            return;
        };
        self.push(Duration::ZERO, DatagramEvent::RcDown { at: first, epoch });
        let later = Duration::from_nanos(self.rng.u64(..50_000));
        self.push(
            later,
            DatagramEvent::RcDown {
                at: first ^ 1,
                epoch,
            },
        );
    }

    /// Handles one event; `false` if there is none up to `until`.
    pub(super) fn step(&mut self, until: Time) -> bool {
        let event_at = self.events.peek().map(|Reverse((at, ..))| *at);
        let deadline = self.timers.next().map(|at| at.max(self.now));
        match (event_at, deadline) {
            (Some(at), _) if at <= until && deadline.is_none_or(|deadline| at <= deadline) => {
                let Some(Reverse((_, _, event))) = self.events.pop() else {
                    return false;
                };
                self.now = at;
                self.handle(event);
                true
            }
            (_, Some(at)) if at <= until => {
                self.now = at;
                if let Some(end) = self.timers.pop(at) {
                    self.deadline(end);
                }
                true
            }
            _ => {
                self.now = self.now.max(until);
                false
            }
        }
    }

    /// Runs until all that is planned is sent, received and confirmed, at most for `limit`; says
    /// whether it got there.
    pub(super) fn finish(&mut self, limit: Duration) -> bool {
        let end = self.now + limit;
        while self.open > 0 {
            if !self.step(end) {
                return false;
            }
        }
        true
    }

    /// Runs until nothing happens any more, at most for `limit`; says whether it got there.
    pub(super) fn calm_down(&mut self, limit: Duration) -> bool {
        let end = self.now + limit;
        while self.step(end) {}
        self.events.is_empty() && self.timers.next().is_none()
    }

    fn handle(&mut self, event: DatagramEvent) {
        match event {
            DatagramEvent::Datagram { to, bytes } => {
                let end = &mut self.ends[to];
                let may_hold = end.held < self.may_hold;
                if !end.datagram_came(&mut self.shared, &bytes, may_hold, self.now) {
                    self.fates.stray += 1;
                    return;
                }
                self.run(to);
            }
            DatagramEvent::RcPacket { to, epoch, bytes } => {
                let arrives = self.ends[to]
                    .rc
                    .as_ref()
                    .is_some_and(|rc| rc.epoch == epoch);
                if !arrives {
                    // The device tries again until it gives the lane up.
                    self.push(RC_RETRIES, DatagramEvent::RcDown { at: to ^ 1, epoch });
                    return;
                }
                self.ends[to].rc_came(epoch, &bytes);
                let sequence = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
                self.push(
                    RC_DELAY,
                    DatagramEvent::RcDone {
                        at: to ^ 1,
                        epoch,
                        sequence,
                    },
                );
                self.run(to);
            }
            DatagramEvent::RcDone {
                at,
                epoch,
                sequence,
            } => {
                self.ends[at].rc_done(epoch, sequence);
                self.run(at);
            }
            DatagramEvent::RcUp {
                at,
                epoch,
                may_send,
            } => {
                let newest = self.ends[at].rc.as_ref().map_or(0, |rc| rc.epoch);
                let both_alive = self.is_joined(at);
                if epoch <= newest || !both_alive {
                    return;
                }
                if may_send
                    && self.ends[at ^ 1]
                        .rc
                        .as_ref()
                        .is_none_or(|rc| rc.epoch != epoch)
                {
                    return; // the other end is gone already: the handshake finds that
                }
                self.ends[at].rc_up(epoch, may_send);
                self.run(at);
                if may_send {
                    // The Ready of the handshake; the first packet may overtake it.
                    let after = Duration::from_nanos(self.rng.u64(..20_000));
                    self.push(after, DatagramEvent::RcReady { at: at ^ 1, epoch });
                }
            }
            DatagramEvent::RcReady { at, epoch } => {
                self.ends[at].rc_may_send(epoch);
                self.run(at);
            }
            DatagramEvent::RcDown { at, epoch } => {
                if self.ends[at]
                    .rc
                    .as_ref()
                    .is_some_and(|rc| rc.epoch == epoch)
                {
                    self.ends[at].rc_gone();
                    self.run(at);
                }
            }
            DatagramEvent::Handshake { pair } => {
                if !self.is_joined(2 * pair) {
                    self.begin(pair);
                }
            }
            DatagramEvent::Ask { by } => {
                if !self.is_joined(by) {
                    self.push(HANDSHAKE, DatagramEvent::Handshake { pair: by / 2 });
                }
            }
        }
    }

    /// Whether both processes are those that began the session.
    pub(super) fn is_joined(&self, end: usize) -> bool {
        let (a, b) = (&self.ends[end].agreed, &self.ends[end ^ 1].agreed);
        a.serial == b.serial && a.cookie == b.remote_cookie && b.cookie == a.remote_cookie
    }

    fn deadline(&mut self, at: usize) {
        let end = &mut self.ends[at];
        if end.lane.on_deadline(&self.shared, &end.session, self.now) {
            self.push(HANDSHAKE, DatagramEvent::Ask { by: at });
        }
        self.run(at);
    }

    fn run(&mut self, at: usize) {
        let mut out = std::mem::take(&mut self.out);
        self.ends[at].choose_lane();
        self.ends[at].run(&mut self.shared, self.now, &mut out);
        for out in out.drain(..) {
            match out {
                OutPacket::Datagram { bytes, numbered } => {
                    self.send(at ^ 1, bytes.into(), numbered)
                }
                OutPacket::Rc { epoch, bytes } => {
                    let to = at ^ 1;
                    self.push(
                        RC_DELAY,
                        DatagramEvent::RcPacket {
                            to,
                            epoch,
                            bytes: bytes.into(),
                        },
                    );
                }
            }
        }
        self.out = out;
        self.timers.set(at, self.ends[at].lane.deadline());
        self.note(at);
    }

    fn note(&mut self, at: usize) {
        let end = &self.ends[at];
        let done = end.is_done();
        if done != self.done[at] {
            self.done[at] = done;
            match done {
                true => self.open -= 1,
                false => self.open += 1,
            }
        }
    }

    fn send(&mut self, to: usize, bytes: Box<[u8]>, numbered: bool) {
        self.fates.datagrams += 1;
        let weather = self.weather;
        if self.rng.u64(..1_000_000) < weather.loss_ppm {
            self.fates.numbered_lost += u64::from(numbered);
            return;
        }
        let copies = 1 + usize::from(self.rng.u64(..1_000_000) < weather.repeat_ppm);
        for copy in 0..copies {
            let mut delay = weather.delay
                + Duration::from_nanos(self.rng.u64(..=weather.jitter.as_nanos() as u64));
            if self.rng.u64(..1_000_000) < weather.late_ppm {
                delay += Duration::from_nanos(self.rng.u64(..1_000_000_000));
            }
            let Some(delay) = self.wait_in_line(to, delay) else {
                self.fates.overrun += 1;
                self.fates.numbered_lost += u64::from(numbered && copy == 0);
                continue;
            };
            self.push(
                delay,
                DatagramEvent::Datagram {
                    to,
                    bytes: bytes.clone(),
                },
            );
        }
    }

    /// A node takes its arrivals one after the other. A packet that finds no room in the line is
    /// lost.
    fn wait_in_line(&mut self, to: usize, delay: Duration) -> Option<Duration> {
        if self.line == u64::MAX {
            return Some(delay);
        }
        let node = self.node_of[to] as usize;
        if self.busy_until.len() <= node {
            self.busy_until.resize(node + 1, Time(0));
        }
        let step = self.weather.step.as_nanos() as u64;
        let arrives = self.now + delay;
        let start = self.busy_until[node].max(arrives);
        if (start - arrives).as_nanos() as u64 / step.max(1) >= self.line {
            return None;
        }
        self.busy_until[node] = start + self.weather.step;
        Some(start - self.now)
    }

    fn push(&mut self, after: Duration, event: DatagramEvent) {
        self.order += 1;
        self.events
            .push(Reverse((self.now + after, self.order, event)));
    }

    /// Each end has received all that the other has sent in their session, and keeps nothing.
    pub(super) fn assert_complete(&self) {
        for (at, end) in self.ends.iter().enumerate() {
            assert!(
                end.is_done(),
                "end {at} has not finished: {:?}",
                end.session
            );
            assert_eq!(end.received, self.ends[at ^ 1].sent, "end {at}");
            assert_eq!(end.held, 0, "end {at} keeps packets");
        }
    }

    /// Repeats beyond the packets that were lost, per packet.
    pub(super) fn excess(&self) -> f64 {
        let counters = &self.shared.counters;
        let first = counters.sent - counters.repeated;
        (counters.repeated as f64 - self.fates.numbered_lost as f64) / first as f64
    }
}
