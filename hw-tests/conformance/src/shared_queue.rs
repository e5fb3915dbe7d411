//! One completion queue for the completions of two transports, which several threads fill and read.
//!
//! A hub sends to two peers and receives from both, one for each transport. Each of four threads
//! does everything: it posts at the hub, drives the peers, and reads the hub's queue. All fields of
//! an entry follow from its context, which shows whether an entry is whole. A bit of each operation
//! shows whether its entry has been there before.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::{Cq, CqAttr, Endpoint, EndpointConfig};

use crate::ends::{BLANK, PATIENCE, any_tagged};
use crate::fabric::Fabric;

const THREADS: usize = 4;

/// Receives and sends that are posted at the hub at a time, and messages that wait for a receive,
/// for each peer.
const POSTED: u64 = 128;
const UNEXPECTED: u64 = 16;

/// Receives that are posted at a peer at a time.
const PEER_RECEIVES: u64 = 64;

/// The longest message.
const LONGEST: usize = 96;

/// The ranks of the peers: over the network, and over shared memory.
const RANKS: [usize; 2] = [1, 2];

/// An operation of the hub by its number: a receive or a send, with one of the peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HubOperation(u64);

impl HubOperation {
    /// The `turn`th of a kind with a peer.
    fn new(is_receive: bool, peer: usize, turn: u64) -> Self {
        Self(4 * turn + 2 * peer as u64 + u64::from(is_receive))
    }

    fn is_receive(self) -> bool {
        self.0 % 2 == 1
    }

    fn peer(self) -> usize {
        (self.0 / 2 % 2) as usize
    }

    /// The lower half is the number, the upper half follows from it.
    fn context(self) -> u64 {
        let number = self.0 as u32;
        u64::from(number) | (u64::from(number.wrapping_mul(0x9e37_79b1)) << 32)
    }

    /// The operation of a context, which has to be one.
    fn of_context(context: u64) -> Self {
        let operation = Self(context & 0xffff_ffff);
        assert_eq!(operation.context(), context, "a context of two operations");
        operation
    }

    fn tag(self) -> u64 {
        self.context().rotate_left(17)
    }

    fn data(self) -> u64 {
        !self.context()
    }

    fn len(self) -> usize {
        (self.context() % (LONGEST as u64 + 1)) as usize
    }
}

/// A peer, and the hub's operations with it so far.
struct SharedQueuePeer {
    at_hub: FiAddr,
    receives: AtomicU64,
    sends: AtomicU64,
    end: Mutex<SharedQueuePeerEnd>,
}

/// The peer's own side.
struct SharedQueuePeerEnd {
    endpoint: Arc<dyn Endpoint>,
    cq: Arc<dyn Cq>,
    hub: FiAddr,
    sent: u64,
    posted: u64,
    received: u64,
}

/// The hub with its queue.
struct SharedQueueHub {
    endpoint: Arc<dyn Endpoint>,
    cq: Arc<dyn Cq>,
    peers: [SharedQueuePeer; 2],
    /// Operations of each kind with each peer.
    turns: u64,
    /// Those that have completed, and a bit for each.
    completed: AtomicU64,
    seen: Vec<AtomicU64>,
    /// Where received messages go, a part for each receive that is posted.
    rooms: Vec<[AtomicU8; LONGEST]>,
    /// The bytes of all messages that are sent.
    message: [u8; LONGEST],
}

/// So many completions come out of one queue, each once and whole.
pub fn completions_of_two_transports(fabric: &Fabric, count: u64) {
    let hub = SharedQueueHub::open(fabric, count / 4);
    std::thread::scope(|threads| {
        for _ in 0..THREADS {
            threads.spawn(|| hub.run());
        }
    });
    hub.check();
}

impl SharedQueueHub {
    fn open(fabric: &Fabric, turns: u64) -> Self {
        let domain = fabric.domain(0);
        let (av, cq) = (
            domain.open_av(&AvAttr::default()).unwrap(),
            domain.open_cq(&CqAttr::default()).unwrap(),
        );
        let endpoint = domain.open_endpoint(EndpointConfig::new(&av, &cq)).unwrap();
        let peers = RANKS.map(|rank| {
            let domain = fabric.domain(rank);
            let (peers, cq) = (
                domain.open_av(&AvAttr::default()).unwrap(),
                domain.open_cq(&CqAttr::default()).unwrap(),
            );
            let end = domain.open_endpoint(EndpointConfig::new(&peers, &cq));
            let end = end.unwrap();
            SharedQueuePeer {
                at_hub: av.insert(&end.name().to_bytes()).unwrap(),
                receives: AtomicU64::new(0),
                sends: AtomicU64::new(0),
                end: Mutex::new(SharedQueuePeerEnd {
                    hub: peers.insert(&endpoint.name().to_bytes()).unwrap(),
                    endpoint: end,
                    cq,
                    sent: 0,
                    posted: 0,
                    received: 0,
                }),
            }
        });
        let rooms = 2 * (POSTED + PEER_RECEIVES);
        Self {
            endpoint,
            cq,
            peers,
            turns,
            completed: AtomicU64::new(0),
            seen: (0..(4 * turns).div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect(),
            rooms: (0..rooms)
                .map(|_| [const { AtomicU8::new(0) }; LONGEST])
                .collect(),
            message: [7; LONGEST],
        }
    }

    /// Does a thread's part until all operations have completed.
    fn run(&self) {
        let (mut seen, mut since) = (0, Instant::now());
        while !self.is_over() {
            for peer in 0..self.peers.len() {
                self.post_receive(peer);
                self.post_send(peer);
                self.drive_peer(peer);
            }
            self.read();
            let completed = self.completed.load(Ordering::Relaxed);
            if completed != seen {
                (seen, since) = (completed, Instant::now());
            }
            assert!(since.elapsed() < PATIENCE, "{completed} have completed");
        }
    }

    /// The peers have received all, too.
    fn is_over(&self) -> bool {
        let is_done = |peer: &SharedQueuePeer| {
            let end = peer.end.try_lock();
            end.is_ok_and(|end| end.received == self.turns)
        };
        self.completed.load(Ordering::Acquire) == 4 * self.turns && self.peers.iter().all(is_done)
    }

    /// The next operation of a kind, if the one in whose place it comes has completed, and no other
    /// thread takes it.
    fn take(&self, is_receive: bool, peer: usize) -> Option<HubOperation> {
        let turns = match is_receive {
            true => &self.peers[peer].receives,
            false => &self.peers[peer].sends,
        };
        let turn = turns.load(Ordering::Acquire);
        let of_turn = |turn| HubOperation::new(is_receive, peer, turn);
        let before = turn.checked_sub(POSTED).map(of_turn);
        let is_free = turn < self.turns && before.is_none_or(|before| self.was_seen(before));
        let next = is_free.then_some(turn + 1)?;
        let taken = turns.compare_exchange(turn, next, Ordering::AcqRel, Ordering::Relaxed);
        taken.ok().map(of_turn)
    }

    fn was_seen(&self, operation: HubOperation) -> bool {
        let word = self.seen[(operation.0 / 64) as usize].load(Ordering::Acquire);
        word & (1 << (operation.0 % 64)) != 0
    }

    /// Posts a receive in the place of one that has completed.
    fn post_receive(&self, peer: usize) {
        let Some(operation) = self.take(true, peer) else {
            return;
        };
        let op = RecvOp {
            src: self.peers[peer].at_hub,
            tag: operation.tag(),
            ignore: 0,
            ..any_tagged(operation.context())
        };
        // SAFETY: the room is there until all is over, and for one receive at a time.
        self.until_posted(|| unsafe { self.endpoint.recv(&op, &[self.room_of(operation)]) });
    }

    fn room_of(&self, operation: HubOperation) -> IoBuf {
        self.room(operation.0 / 4 % POSTED * 2 + operation.peer() as u64)
    }

    fn room(&self, place: u64) -> IoBuf {
        let room = &self.rooms[place as usize];
        IoBuf::new(room.as_ptr().cast(), room.len())
    }

    fn post_send(&self, peer: usize) {
        let Some(operation) = self.take(false, peer) else {
            return;
        };
        let op = SendOp {
            dest: self.peers[peer].at_hub,
            flags: Flags::COMPLETION | Flags::REMOTE_CQ_DATA,
            ..send_of(operation)
        };
        let bytes = IoBuf::new(self.message.as_ptr(), operation.len());
        // SAFETY: the message is there until all is over.
        self.until_posted(|| unsafe { self.endpoint.send(&op, &[bytes]) });
    }

    fn until_posted(&self, mut post: impl FnMut() -> Result<(), OpError>) {
        let since = Instant::now();
        while let Err(error) = post() {
            assert_eq!(error, OpError::Again);
            assert!(since.elapsed() < PATIENCE, "no room");
            self.read();
            (0..self.peers.len()).for_each(|peer| self.drive_peer(peer));
        }
    }

    /// Reads completions, and looks at each.
    fn read(&self) {
        let mut out = [BLANK; 16];
        match self.cq.read(&mut out) {
            Ok(count) => out[..count].iter().for_each(|done| self.look_at(done)),
            Err(error) => assert_eq!(error, OpError::Again),
        }
    }

    fn look_at(&self, done: &Completion) {
        let operation = HubOperation::of_context(done.context);
        assert!(operation.0 < 4 * self.turns, "{done:?}");
        let expected = match operation.is_receive() {
            true => Completion {
                context: done.context,
                flags: Flags::TAGGED | Flags::RECV | Flags::REMOTE_CQ_DATA,
                len: operation.len(),
                buf: self.room_of(operation).addr,
                data: operation.data(),
                tag: operation.tag(),
                src: self.peers[operation.peer()].at_hub,
            },
            false => Completion {
                context: done.context,
                flags: Flags::TAGGED | Flags::SEND,
                ..*done
            },
        };
        assert_eq!(*done, expected);
        let bit = 1 << (operation.0 % 64);
        let word = &self.seen[(operation.0 / 64) as usize];
        let before = word.fetch_or(bit, Ordering::AcqRel);
        assert_eq!(before & bit, 0, "{operation:?} completes twice");
        self.completed.fetch_add(1, Ordering::AcqRel);
    }

    /// Drives a peer, unless another thread does it.
    fn drive_peer(&self, peer: usize) {
        if let Ok(mut end) = self.peers[peer].end.try_lock() {
            end.post_receives(self, peer);
            end.send(self, peer);
            end.read();
        }
    }

    /// All have completed, half of them by each transport, and nothing comes after them.
    fn check(&self) {
        self.read();
        assert_eq!(self.completed.load(Ordering::Acquire), 4 * self.turns);
        let stats = self.endpoint.stats().unwrap();
        for transport in ["verbs", "shm"] {
            for counter in ["messages_sent", "messages_received"] {
                let name = format!("{transport}_{counter}");
                let value = stats.iter().find(|(found, _)| *found == name);
                assert_eq!(value.map(|(_, value)| *value), Some(self.turns), "{name}");
            }
        }
    }
}

/// The message of an operation.
fn send_of(operation: HubOperation) -> SendOp {
    SendOp {
        kind: MsgKind::Tagged,
        dest: FiAddr::UNSPEC,
        tag: operation.tag(),
        data: operation.data(),
        desc: MrDesc::NONE,
        context: operation.context(),
        flags: Flags::REMOTE_CQ_DATA,
    }
}

impl SharedQueuePeerEnd {
    /// Receives for any of the hub's messages.
    fn post_receives(&mut self, hub: &SharedQueueHub, peer: usize) {
        let until = hub.turns.min(self.received + PEER_RECEIVES);
        while self.posted < until {
            let place = 2 * POSTED + self.posted % PEER_RECEIVES * 2 + peer as u64;
            let op = any_tagged(self.posted);
            // SAFETY: the room is there until all is over.
            match unsafe { self.endpoint.recv(&op, &[hub.room(place)]) } {
                Ok(()) => self.posted += 1,
                Err(error) => return assert_eq!(error, OpError::Again),
            }
        }
    }

    /// A message for the next receive of the hub's, or for one that is still to be posted.
    fn send(&mut self, hub: &SharedQueueHub, peer: usize) {
        let posted = hub.peers[peer].receives.load(Ordering::Acquire);
        if self.sent >= hub.turns.min(posted + UNEXPECTED) {
            return;
        }
        let operation = HubOperation::new(true, peer, self.sent);
        let op = SendOp {
            dest: self.hub,
            ..send_of(operation)
        };
        let bytes = IoBuf::new(hub.message.as_ptr(), operation.len());
        // SAFETY: the message is there until all is over.
        match unsafe { self.endpoint.send(&op, &[bytes]) } {
            Ok(()) => self.sent += 1,
            Err(error) => assert_eq!(error, OpError::Again),
        }
    }

    /// Takes the messages that have come. Those of several threads have no order.
    fn read(&mut self) {
        let mut out = [BLANK; 16];
        match self.cq.read(&mut out) {
            Ok(count) => {
                for done in &out[..count] {
                    assert!(done.flags.contains(Flags::RECV | Flags::REMOTE_CQ_DATA));
                    let operation = HubOperation::of_context(!done.data);
                    assert!(!operation.is_receive());
                    let fields = (operation.tag(), operation.len(), self.hub);
                    assert_eq!((done.tag, done.len, done.src), fields);
                    self.received += 1;
                }
            }
            Err(error) => assert_eq!(error, OpError::Again),
        }
    }
}
