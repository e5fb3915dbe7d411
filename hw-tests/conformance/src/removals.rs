//! Peers that are removed from the address vector and inserted again while messages go both ways
//! (fi_av(3)).
//!
//! A message that was sent before the removal arrives, or its send ends in an error that says so;
//! it comes once, and to no other peer. [`model::random_removals`](crate::model::random_removals)
//! draws at random the cases that are listed here.

use std::collections::HashMap;
use std::fmt::Debug;
use std::time::Instant;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{AvType, FiAddr, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::Domain;

use crate::ends::{CompletionResult, PATIENCE, QueuedEndpoint, any_tagged, context_of};
use crate::fabric::Fabric;
use crate::memory::MessageMemory;

/// In one packet, in several, too long for that.
const SIZES: [usize; 3] = [8, 9000, 120_000];

const KINDS: [MsgKind; 2] = [MsgKind::Msg, MsgKind::Tagged];

/// Endpoints by number, and all that they send each other.
struct RemovalTraffic<'a> {
    ends: &'a [QueuedEndpoint],
    sent: Vec<RemovalSend>,
    received: Vec<RemovalReceive>,
    /// By the end and the context of the operation.
    sends: HashMap<(usize, u64), usize>,
    receives: HashMap<(usize, u64), usize>,
}

/// A message: its place among all is the number that its content says.
struct RemovalSend {
    from: usize,
    to: usize,
    kind: MsgKind,
    len: usize,
    _memory: MessageMemory,
    outcome: Option<Result<(), Errno>>,
    /// Its address was removed while it was under way.
    removed: bool,
    arrived: bool,
}

struct RemovalReceive {
    kind: MsgKind,
    memory: MessageMemory,
    over: bool,
}

impl<'a> RemovalTraffic<'a> {
    fn among(ends: &'a [QueuedEndpoint]) -> Self {
        Self {
            ends,
            sent: Vec::new(),
            received: Vec::new(),
            sends: HashMap::new(),
            receives: HashMap::new(),
        }
    }

    /// A receive for any message of a kind.
    fn post(&mut self, at: usize, kind: MsgKind) {
        let op = RecvOp {
            kind,
            ..any_tagged(self.ends[at].context())
        };
        let memory = MessageMemory::for_receive(SIZES[2]);
        self.ends[at].recv(&op, &memory.list(1)).unwrap();
        self.receives.insert((at, op.context), self.received.len());
        self.received.push(RemovalReceive {
            kind,
            memory,
            over: false,
        });
    }

    /// Sends as soon as there is room.
    fn send(&mut self, (from, to): (usize, usize), dest: FiAddr, kind: MsgKind, len: usize) {
        let op = send_op(&self.ends[from], dest, kind);
        let memory = MessageMemory::of_message(self.sent.len(), len);
        let until = Instant::now() + PATIENCE;
        // SAFETY: the memory is kept as long as the endpoints are driven.
        while let Err(error) = unsafe { self.ends[from].endpoint.send(&op, &memory.list(1)) } {
            assert_eq!(error, OpError::Again, "{op:?}");
            self.drive();
            assert!(Instant::now() < until, "no room for a send");
        }
        self.sends.insert((from, op.context), self.sent.len());
        self.sent.push(RemovalSend {
            from,
            to,
            kind,
            len,
            _memory: memory,
            outcome: None,
            removed: false,
            arrived: false,
        });
    }

    /// Takes an address out, after which it is refused and leads nowhere.
    fn remove(&mut self, (at, peer): (usize, usize), addr: FiAddr) {
        let end = &self.ends[at];
        end.av.remove(addr).unwrap();
        for sent in &mut self.sent {
            sent.removed |= (sent.from, sent.to) == (at, peer) && sent.outcome.is_none();
        }
        is_refused(end, addr);
    }

    /// Puts an address in, and again, which finds it.
    fn insert(&self, (at, peer): (usize, usize)) -> FiAddr {
        let (av, name) = (&self.ends[at].av, self.ends[peer].endpoint.name());
        let addr = av.insert(&name.to_bytes()).unwrap();
        assert_eq!(av.insert(&name.to_bytes()).unwrap(), addr);
        assert_eq!(av.lookup(addr).unwrap(), name);
        addr
    }

    fn drive(&mut self) {
        for at in 0..self.ends.len() {
            self.drive_one(at);
        }
    }

    fn drive_one(&mut self, at: usize) {
        let end = &self.ends[at];
        end.tx.pump();
        end.rx.pump();
        while let Some(event) = end.tx.take() {
            let number = self.sends[&(at, context_of(&event))];
            let sent = &mut self.sent[number];
            assert_eq!(sent.outcome, None, "message {number} completes twice");
            let outcome = event.map(drop).map_err(|error| error.errno);
            match outcome {
                Ok(()) => {}
                Err(Errno::ECANCELED) if sent.removed => {}
                Err(errno) => panic!("message {number} fails: {errno:?}"),
            }
            sent.outcome = Some(outcome);
        }
        while let Some(event) = end.rx.take() {
            self.has_received(at, event);
        }
    }

    fn has_received(&mut self, at: usize, event: CompletionResult) {
        let receive = self.receives[&(at, context_of(&event))];
        let receive = &mut self.received[receive];
        assert!(!receive.over, "a receive completes twice: {event:?}");
        receive.over = true;
        let completion = match event {
            Ok(completion) => completion,
            Err(error) => return assert_eq!(error.errno, Errno::ECANCELED, "{error:?}"),
        };
        let number = receive.memory.message(0, completion.len).unwrap().unwrap();
        receive.memory.untouched_behind(completion.len).unwrap();
        let sent = &mut self.sent[number];
        let seen = (at, receive.kind, completion.len);
        assert_eq!(seen, (sent.to, sent.kind, sent.len), "message {number}");
        assert!(!sent.arrived, "message {number} comes twice");
        sent.arrived = true;
        // The sender may have been removed since, but its index can not belong to another peer.
        if let Ok(name) = self.ends[at].av.lookup(completion.src) {
            assert_eq!(name, self.ends[sent.from].endpoint.name());
        }
    }

    /// Drives all endpoints until every send is over and every message without an error has come;
    /// then cancels the receives that are left.
    fn settle(&mut self) {
        self.until("messages do not come", |traffic| {
            let mut sent = traffic.sent.iter();
            sent.all(|s| s.outcome.is_some_and(|o| s.arrived || o.is_err()))
        });
        for (&(at, context), &receive) in &self.receives {
            if !self.received[receive].over {
                self.ends[at].endpoint.cancel(context).unwrap();
            }
        }
        self.until("receives do not end", |traffic| {
            traffic.received.iter().all(|receive| receive.over)
        });
    }

    fn until(&mut self, what: &str, reached: impl Fn(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !reached(self) {
            self.drive();
            assert!(Instant::now() < until, "{what}");
            std::thread::yield_now();
        }
    }
}

fn send_op(end: &QueuedEndpoint, dest: FiAddr, kind: MsgKind) -> SendOp {
    SendOp {
        kind,
        dest,
        tag: 0,
        data: 0,
        desc: MrDesc::NONE,
        context: end.context(),
        flags: Flags::COMPLETION,
    }
}

/// Checks that this address is unused: each call with it is refused, and nothing is sent.
fn is_refused(end: &QueuedEndpoint, addr: FiAddr) {
    let not_there = Err(Errno::EINVAL);
    assert_eq!(end.av.lookup(addr).map_err(|e| e.errno()), not_there);
    assert_eq!(
        end.av.remove(addr).map_err(|e| e.errno()),
        Err(Errno::EINVAL)
    );
    for kind in KINDS {
        let memory = MessageMemory::of_message(0, 8);
        let op = send_op(end, addr, kind);
        let refused = Err(OpError::Failed(Errno::EADDRNOTAVAIL));
        // SAFETY: a refused send does not use its memory; if it is not refused, the assertion ends
        // the test.
        let said = unsafe { end.endpoint.send(&op, &memory.list(1)) };
        assert_eq!(said, refused, "{op:?}");
    }
}

fn open(domain: &dyn Domain, av_type: AvType) -> QueuedEndpoint {
    let av = AvAttr {
        av_type: Some(av_type),
        ..AvAttr::default()
    };
    QueuedEndpoint::open_with(domain, &av, |_| {})
}

/// A message that was sent to an address before its removal never comes to the peer that gets the
/// index next, with a connection and while one is being made. Nor does a message to the new peer
/// come to the former one.
///
/// Covers: AV-11, AV-17, AV-23
pub fn a_reused_index(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const SENDER: usize = 0;
    const FORMER: usize = 1;
    const NEXT: usize = 2;
    for (av_type, connected) in [
        (AvType::Table, true),
        (AvType::Table, false),
        (AvType::Map, true),
        (AvType::Map, false),
    ] {
        let ends = [domain_a, domain_b, domain_b].map(|domain| open(domain, av_type));
        let mut traffic = RemovalTraffic::among(&ends);
        let former = traffic.insert((SENDER, FORMER));
        if connected {
            traffic.post(FORMER, MsgKind::Msg);
            traffic.send((SENDER, FORMER), former, MsgKind::Msg, 8);
            traffic.settle();
        }
        for (kind, len) in KINDS
            .into_iter()
            .flat_map(|kind| SIZES.map(|len| (kind, len)))
        {
            for at in [FORMER, NEXT, NEXT, FORMER] {
                traffic.post(at, kind);
            }
            traffic.send((SENDER, FORMER), former, kind, len);
        }
        traffic.remove((SENDER, FORMER), former);
        let next = traffic.insert((SENDER, NEXT));
        assert_eq!(next == former, av_type == AvType::Table);
        if next != former {
            is_refused(&ends[SENDER], former);
        }
        for len in SIZES {
            traffic.send((SENDER, NEXT), next, MsgKind::Tagged, len);
        }
        let again = traffic.insert((SENDER, FORMER));
        assert!(![former, next].contains(&again));
        traffic.send((SENDER, FORMER), again, MsgKind::Msg, 8);
        traffic.settle();
    }
}

/// One endpoint with a table and `peers` others with maps, on each kind of path by turns: for so
/// many rounds each two insert each other, send messages both ways, are removed at one side or at
/// both with messages under way, and are back at once or never were away for long. At last all are
/// removed, and `held` counts what it did at first: of connections, handles, descriptors nothing is
/// left. And once more.
///
/// Covers: AV-17, AV-23
pub fn come_and_go<H: PartialEq + Debug>(
    fabric: &Fabric,
    peers: usize,
    rounds: usize,
    held: impl Fn() -> H,
) {
    let paths = fabric.paths();
    let hub = open(fabric.domain(paths[0].0), AvType::Table);
    let others = paths.iter().cycle().take(peers);
    let others = others.map(|(_, rank)| open(fabric.domain(*rank), AvType::Map));
    let ends: Vec<_> = [hub].into_iter().chain(others).collect();
    let before = held();
    for _ in 0..2 {
        for round in 0..rounds {
            for peer in 1..ends.len() {
                meet(&ends, peer, round);
            }
        }
        until_given_back(&ends, &before, &held);
    }
}

/// Drives all, which have nothing to do, until no more is held than before.
fn until_given_back<H: PartialEq + Debug>(
    ends: &[QueuedEndpoint],
    before: &H,
    held: &impl Fn() -> H,
) {
    let mut idle = RemovalTraffic::among(ends);
    let until = Instant::now() + PATIENCE;
    loop {
        let now = held();
        if now == *before {
            return;
        }
        idle.drive();
        assert!(Instant::now() < until, "{before:?} before, {now:?} left");
    }
}

/// The round of one peer with the hub.
fn meet(ends: &[QueuedEndpoint], peer: usize, round: usize) {
    const HUB: usize = 0;
    let mut traffic = RemovalTraffic::among(ends);
    let ways = [(HUB, peer), (peer, HUB)];
    let mut addrs = ways.map(|way| traffic.insert(way));
    for (n, kind) in (round..).zip(KINDS) {
        for (way, addr) in ways.into_iter().zip(addrs) {
            // Half of the receives are there first.
            if n % 2 == 0 {
                traffic.post(way.1, kind);
            }
            traffic.send(way, addr, kind, SIZES[(n + way.0) % SIZES.len()]);
        }
    }
    for _ in 0..round % 5 {
        traffic.drive_one(HUB);
        traffic.drive_one(peer);
    }
    let removed = [round % 3 != 0, round % 3 != 1];
    for at in [0, 1] {
        if removed[at] {
            traffic.remove(ways[at], addrs[at]);
        }
    }
    for _ in 0..round % 4 {
        traffic.drive_one(peer);
    }
    for at in [0, 1] {
        if removed[at] {
            addrs[at] = traffic.insert(ways[at]);
        }
        traffic.send(ways[at], addrs[at], MsgKind::Tagged, SIZES[round % 2]);
    }
    for kind in KINDS {
        for way in ways {
            traffic.post(way.1, kind);
            traffic.post(way.1, kind);
        }
    }
    traffic.settle();
    for (way, addr) in ways.into_iter().zip(addrs) {
        traffic.remove(way, addr);
    }
}
