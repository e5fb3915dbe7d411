//! Two ends of a session and the lanes that carry it, against a plain list of messages: lanes come
//! up at each end by itself, lose any packet, and end at each end by itself. Sessions at rest are
//! forgotten.
//!
//! Every message is delivered once, and in order. Where an end loses its memory of a session that
//! was not at rest, messages may be lost, but none is delivered twice.

use std::collections::{HashMap, VecDeque};

use fastrand::Rng;

use crate::session::{Accept, Origin, ResumeOutcome, ResumeState, Session, SessionStart};
use crate::wire::SessionId;

#[derive(Clone, Copy, Debug)]
enum ResumptionPacket {
    Resume(ResumeState),
    Data { sequence: u32, message: u64 },
    Ack { expected: u32 },
}

/// A lane: the packets on their way to each end, and the ends at which the session has entered it.
#[derive(Default)]
struct ResumptionLane {
    to: [VecDeque<ResumptionPacket>; 2],
    entered: [bool; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionPlace {
    /// The lane of this number is next, once there is one.
    Before(usize),
    /// On a lane that does not carry the session yet.
    Resuming(usize),
    /// On one that does.
    Up(usize),
}

struct ResumptionEnd {
    place: SessionPlace,
    session: Option<Session>,
    /// Sent and not confirmed, with their numbers, oldest first.
    kept: VecDeque<(u32, u64)>,
    /// Not sent yet.
    waiting: VecDeque<u64>,
}

struct ResumptionWorld {
    rng: Rng,
    origin: Origin,
    lanes: Vec<ResumptionLane>,
    ends: [ResumptionEnd; 2],
    next_message: u64,
    /// The last message that each end has delivered.
    delivered: [u64; 2],
    /// The delivered messages whose senders do not know it yet, and where they came to.
    unconfirmed: HashMap<u64, usize>,
    /// Ends lose their memory now and then.
    amnesia: bool,
    lost: u64,
}

fn start(lane: usize) -> SessionStart {
    SessionStart {
        name: lane as u64 + 1,
        remote: SessionId(lane as u32),
        peer_grants_units: 4096,
        we_grant_units: 4096,
    }
}

impl ResumptionWorld {
    fn new(seed: u64, amnesia: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let near = [0, 1 << 31][rng.usize(..2)];
        let origin = Origin {
            sequence: u32::wrapping_sub(near, rng.u32(..20)),
            ..Origin::default()
        };
        let end = || ResumptionEnd {
            place: SessionPlace::Before(0),
            session: None,
            kept: VecDeque::new(),
            waiting: VecDeque::new(),
        };
        Self {
            rng,
            origin,
            lanes: Vec::new(),
            ends: [end(), end()],
            next_message: 1,
            delivered: [0; 2],
            unconfirmed: HashMap::new(),
            amnesia,
            lost: 0,
        }
    }

    /// One event, drawn.
    fn step(&mut self) {
        let at = self.rng.usize(..2);
        match self.rng.u64(..64) {
            0..=1 => self.lane_down(at),
            2..=7 => self.lane_up(at),
            8..=15 => self.send_resume(at),
            16..=21 => drop(self.take_packet(at)),
            22..=26 => self.submit(at),
            27 => self.forget(at),
            28..=31 => self.repeat(at),
            32 if self.amnesia && self.rng.u64(..8) == 0 => self.lose_memory(at),
            _ => self.arrive(at),
        }
    }

    fn submit(&mut self, at: usize) {
        self.ends[at].waiting.push_back(self.next_message);
        self.next_message += 1;
        self.send(at);
    }

    fn lane_up(&mut self, at: usize) {
        let SessionPlace::Before(lane) = self.ends[at].place else {
            return;
        };
        if self.lanes.len() == lane {
            self.lanes.push(ResumptionLane::default());
        }
        self.ends[at].place = SessionPlace::Resuming(lane);
        let origin = self.origin;
        let session = &mut self.ends[at].session;
        session.get_or_insert_with(|| Session::begin(origin, &start(lane)));
        self.send_resume(at);
    }

    /// The lane ends here, if it was ever there: its other end may have come up alone.
    fn lane_down(&mut self, at: usize) {
        let (SessionPlace::Before(lane) | SessionPlace::Resuming(lane) | SessionPlace::Up(lane)) =
            self.ends[at].place;
        if lane < self.lanes.len() {
            self.ends[at].place = SessionPlace::Before(lane + 1);
            self.lanes[lane].to[at].clear();
        }
    }

    /// A session at rest is forgotten: all that either end said was confirmed, and both have left
    /// the same lanes.
    fn forget(&mut self, at: usize) {
        let rests = |end: &ResumptionEnd| {
            end.kept.is_empty() && matches!(end.place, SessionPlace::Before(_))
        };
        if self.ends.iter().all(rests) && self.ends[0].place == self.ends[1].place {
            self.ends[at].session = None;
        }
    }

    /// An end has given its session up, with all that was under way.
    fn lose_memory(&mut self, at: usize) {
        self.lane_down(at);
        self.ends[at].session = None;
        self.lost += std::mem::take(&mut self.ends[at].kept).len() as u64;
    }

    /// Sends a Resume, from a side that has continued as well as from one that has received
    /// nothing.
    fn send_resume(&mut self, at: usize) {
        let end = &mut self.ends[at];
        let said = match (&mut end.session, end.place) {
            (Some(session), SessionPlace::Resuming(_)) => session.offer(),
            _ => return,
        };
        self.post(at, ResumptionPacket::Resume(said));
    }

    fn post(&mut self, at: usize, packet: ResumptionPacket) {
        if let SessionPlace::Resuming(lane) | SessionPlace::Up(lane) = self.ends[at].place {
            self.lanes[lane].to[1 - at].push_back(packet);
        }
    }

    fn send(&mut self, at: usize) {
        while let SessionPlace::Up(_) = self.ends[at].place {
            let end = &mut self.ends[at];
            let (Some(session), Some(message)) = (&mut end.session, end.waiting.pop_front()) else {
                return;
            };
            let sequence = session.stamp().unwrap().sequence;
            end.kept.push_back((sequence, message));
            self.post(at, ResumptionPacket::Data { sequence, message });
        }
    }

    fn repeat(&mut self, at: usize) {
        if let SessionPlace::Up(_) = self.ends[at].place {
            for (sequence, message) in self.ends[at].kept.clone() {
                self.post(at, ResumptionPacket::Data { sequence, message });
            }
        }
    }

    fn take_packet(&mut self, at: usize) -> Option<ResumptionPacket> {
        match self.ends[at].place {
            SessionPlace::Resuming(lane) | SessionPlace::Up(lane) => {
                self.lanes[lane].to[at].pop_front()
            }
            SessionPlace::Before(_) => None,
        }
    }

    fn arrive(&mut self, at: usize) {
        let Some(packet) = self.take_packet(at) else {
            return;
        };
        match (self.ends[at].place, packet) {
            (SessionPlace::Resuming(lane), ResumptionPacket::Resume(received)) => {
                self.meet(at, lane, received)
            }
            (SessionPlace::Up(lane), ResumptionPacket::Resume(_)) => self.answer(at, lane),
            (SessionPlace::Up(_), ResumptionPacket::Data { sequence, message }) => {
                self.deliver(at, sequence, message);
            }
            (SessionPlace::Up(_), ResumptionPacket::Ack { expected }) => self.confirm(at, expected),
            // Before the session has entered the lane nothing counts.
            _ => {}
        }
    }

    /// The other side lacks our Resume: sends it again, with the current session.
    fn answer(&mut self, at: usize, lane: usize) {
        if !self.lanes[lane].entered[1 - at] {
            let session = self.ends[at].session.as_ref().unwrap();
            let (held, expected) = (session.held(), session.expected());
            self.post(at, ResumptionPacket::Resume(ResumeState { held, expected }));
        }
    }

    fn meet(&mut self, at: usize, lane: usize, received: ResumeState) {
        let start = start(lane);
        let session = self.ends[at].session.as_mut().unwrap();
        let before = session.unconfirmed();
        match session.meet(&start, received, 0).unwrap() {
            ResumeOutcome::Continues(replay) => self.arrived(at, before - replay.count),
            ResumeOutcome::BeginsAgain => {}
            ResumeOutcome::Ends(before) => {
                let kept = std::mem::take(&mut self.ends[at].kept);
                assert!(
                    self.amnesia || kept.is_empty(),
                    "{kept:?} lost on lane {lane}"
                );
                self.lost += kept.len() as u64;
                let next = Session::begin_after(before, self.origin, &start);
                self.ends[at].session = Some(next);
            }
        }
        self.lanes[lane].entered[at] = true;
        self.ends[at].place = SessionPlace::Up(lane);
        self.repeat(at);
        self.send(at);
    }

    fn deliver(&mut self, at: usize, sequence: u32, message: u64) {
        let session = self.ends[at].session.as_mut().unwrap();
        if session.accept(sequence) == Accept::Deliver {
            assert!(
                self.delivered[at] < message,
                "{message} is out of order, or twice there"
            );
            self.delivered[at] = message;
            self.unconfirmed.insert(message, at);
        }
        let expected = session.expected();
        self.post(at, ResumptionPacket::Ack { expected });
    }

    fn confirm(&mut self, at: usize, expected: u32) {
        let session = self.ends[at].session.as_mut().unwrap();
        let count = session.confirm(expected).unwrap();
        self.arrived(at, count);
    }

    /// The oldest messages of an end are said to have arrived: so they have.
    fn arrived(&mut self, at: usize, count: u32) {
        for (_, message) in self.ends[at].kept.drain(..count as usize) {
            assert_eq!(
                self.unconfirmed.remove(&message),
                Some(1 - at),
                "message {message}"
            );
        }
    }
}

/// Runs so many events, then a lane that loses nothing, on which all arrives. Returns how many
/// messages there were, and how many of them were lost.
fn run(seed: u64, events: u32, amnesia: bool) -> (u64, u64) {
    let mut world = ResumptionWorld::new(seed, amnesia);
    (0..events).for_each(|_| world.step());
    let last = world.lanes.len() + 1;
    for end in &mut world.ends {
        end.place = SessionPlace::Before(last);
    }
    world.lanes.resize_with(last, ResumptionLane::default);
    let is_busy = |end: &ResumptionEnd| !end.kept.is_empty() || !end.waiting.is_empty();
    for _ in 0..1_000_000 {
        if !world.ends.iter().any(is_busy) {
            return (world.next_message - 1, world.lost);
        }
        for at in [0, 1] {
            world.lane_up(at);
            world.send_resume(at);
            world.repeat(at);
        }
        for at in [0, 1] {
            while !world.lanes[last].to[at].is_empty() {
                world.arrive(at);
            }
        }
    }
    panic!("seed {seed}: some messages never arrive");
}

/// So many runs of 2,000 events, half of them with ends that lose their memory.
fn runs(count: u64) {
    let seed = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_nanos() as u64;
    println!("the first of {count} seeds is {seed}");
    let started = std::time::Instant::now();
    for amnesia in [false, true] {
        let (mut sent, mut lost) = (0, 0);
        for run_seed in (0..count / 2).map(|n| seed.wrapping_add(n)) {
            let (all, gone) = run(run_seed, 2_000, amnesia);
            (sent, lost) = (sent + all, lost + gone);
        }
        println!("amnesia {amnesia}: {sent} messages, {lost} lost");
        assert!(sent > 0 && (lost > 0) == amnesia);
    }
    println!("{} events in {:?}", count * 2_000, started.elapsed());
}

#[test]
fn nothing_is_lost_or_comes_twice() {
    runs(5_000);
}
