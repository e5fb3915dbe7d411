//! A hostile peer that writes arbitrary data into its segment, step by step.
//!
//! To open an endpoint takes far longer than an input does: it starts a thread and binds sockets.
//! So one endpoint serves [`BATCH`] inputs. Each input adds a peer with its own name, segment and
//! link, and removes them all again; then the tables of the endpoint must be as empty as those of a
//! new one. So an input hardly ever depends on earlier inputs, and neither the clock nor the
//! service thread decides its result. An input that breaks an invariant ends the endpoint: a second
//! run of that input meets a new endpoint. If the second run finds nothing, a run with the same
//! seed repeats the input and those before it.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::peer::{Shortcut, Transport};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RmaKind, RmaOp};
use ferrofabric_runtime::fabric::MrAttr;

use crate::ShmConfig;
use crate::board::{BoardMemory, ENTRIES, PeerBoard, bucket_of};
use crate::cma::CmaPeer;
use crate::owner::Ep;
use crate::regions::RegionBoard;
use crate::ring::SLOTS;
use crate::segment::{SegmentSide, ShmSegment};
use crate::service::{NewLink, PeerRegions};
use crate::wire;

/// Inputs that one endpoint serves.
const BATCH: u64 = 1000;

/// Largest number of steps of an input.
const STEPS: usize = 64;

/// The ID of the first hostile peer of an endpoint. Each peer has its own ID, so that late reports
/// of the service thread about one peer do not concern the next.
const FIRST_ID: u64 = 0x0bad_0bad;

/// Longest send in bytes.
const LONGEST_SEND: usize = 200_000;

/// The value of the bytes beyond a receive.
const BEYOND: u8 = 0xaa;
/// Context of the receives for the hostile peer.
const RECEIVE: u64 = 1;

/// The proof that the hostile peer's memory, which is that of this process, belongs to the peer.
static COOKIE: [u8; 16] = [1; 16];

thread_local! {
    static VICTIM: Cell<Option<Victim>> = const { Cell::new(None) };
}

/// The writes of the other side of a segment: a byte chooses the step, its operands follow.
pub fn segment(bytes: &[u8]) -> u64 {
    let mut victim = VICTIM.take().unwrap_or_else(Victim::open);
    // A panic drops the victim.
    let saw = victim.take(bytes);
    if victim.inputs < BATCH {
        VICTIM.set(Some(victim));
    }
    saw
}

/// The endpoint that is attacked.
struct Victim {
    ep: Ep,
    /// Inputs served so far.
    inputs: u64,
    /// The data of its sends.
    out: Vec<u8>,
    /// The regions of its domain.
    regions: Arc<RegionBoard>,
    /// The board of the hostile peers.
    board: Arc<BoardMemory>,
}

impl Victim {
    fn open() -> Self {
        Self {
            ep: Ep::open(ShmConfig {
                unexpected_bytes: 50_000,
                // No sweep, so that the clock does not decide an input's result.
                sweep_interval: Duration::from_secs(24 * 60 * 60),
                ..ShmConfig::default()
            }),
            inputs: 0,
            out: vec![0; LONGEST_SEND],
            regions: RegionBoard::new(true),
            board: Arc::new(BoardMemory::create().expect("a board")),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> u64 {
        let Ok((segment, _fd)) = ShmSegment::create() else {
            return 0;
        };
        let failed_before = self.ep.shm.stats().links_failed;
        let id = FIRST_ID + self.inputs;
        self.inputs += 1;
        let boards = (Arc::clone(&self.regions), Arc::clone(&self.board));
        let mut attack = Attack::begin(&mut self.ep, id, segment, boards);
        let mut steps = Steps(bytes);
        for _ in 0..STEPS {
            if steps.0.is_empty() {
                break;
            }
            attack.step(&mut steps, &self.out);
        }
        let ended = attack.settle();
        let me = attack.serve_another();
        let failed = attack.ep.shm.stats().links_failed - failed_before;
        attack.end(me);
        (failed << 8) | ended
    }
}

/// An input under way: the hostile peer, and the operations of the endpoint that it can affect.
struct Attack<'a> {
    ep: &'a mut Ep,
    id: u64,
    addr: FiAddr,
    segment: Arc<ShmSegment>,
    /// Slots that the peer has published.
    position: u64,
    /// Buffers of receives, each with the length that was posted.
    buffers: Vec<(usize, Vec<u8>)>,
    tags: Vec<u64>,
    /// Operations that have not completed.
    under_way: usize,
    /// The regions of the endpoint, and the board of the peer.
    boards: (Arc<RegionBoard>, Arc<BoardMemory>),
    /// The entries that the peer has written to.
    entries: Vec<usize>,
}

impl<'a> Attack<'a> {
    fn begin(
        ep: &'a mut Ep,
        id: u64,
        segment: ShmSegment,
        boards: (Arc<RegionBoard>, Arc<BoardMemory>),
    ) -> Self {
        let native = NativeAddr {
            incarnation: 1,
            node: ep.name().node,
            shm: Some(id),
            verbs: None,
        };
        let addr = ep.insert(&native);
        let segment = Arc::new(segment);
        let link = NewLink {
            native,
            id,
            segment: Arc::clone(&segment),
            side: SegmentSide::Initiator,
            cma: CmaPeer::probe(std::process::id() as i32, COOKIE.as_ptr() as u64, COOKIE),
            offers_cma: true,
            fence: false,
            // The peer's memory is that of this process, so nothing is to be written there.
            regions: (PeerBoard::accept(boards.1.fd()).ok()).map(|board| PeerRegions {
                board,
                rights: Rights::READ,
                pid: std::process::id() as i32,
            }),
            watch: Some(boards.0.watch(&segment, SegmentSide::Initiator, (1, id))),
        };
        ep.shm.new_link(link, &mut ep.owner);
        Self {
            ep,
            id,
            addr,
            segment,
            position: 0,
            buffers: Vec::new(),
            tags: Vec::new(),
            under_way: 0,
            boards,
            entries: Vec::new(),
        }
    }

    fn step(&mut self, steps: &mut Steps<'_>, out: &[u8]) {
        match steps.byte() % 12 {
            0..=2 => self.publish(steps),
            3 => {
                let (slot, word) = (steps.byte() as usize % SLOTS, steps.byte() as usize % 8);
                let word = self.segment.slot_word(SegmentSide::Acceptor, slot, word);
                write(word, steps.number());
            }
            4 => write(
                self.segment.progress_word(SegmentSide::Initiator),
                steps.number(),
            ),
            5 => {
                let (tag, len) = (steps.number(), steps.number() as usize % 40_000);
                let mut buffer = vec![BEYOND; len + 64];
                self.under_way += 1;
                self.ep.trecv(tag, 0, &mut buffer[..len], RECEIVE);
                self.buffers.push((len, buffer));
                self.tags.push(tag);
            }
            6 => {
                let bytes = &out[..steps.number() as usize % out.len()];
                // SAFETY: they stay until all operations of this input are over.
                let sent = unsafe { self.ep.tsend_from(self.addr, 1, bytes, 1) };
                self.under_way += usize::from(sent.is_ok());
            }
            7 => {
                self.ep.progress();
            }
            8 => self.write_board(steps),
            9 => self.read_region(steps),
            10 => self.close_region(steps),
            _ => {
                self.segment.status(SegmentSide::Acceptor).close();
                let closed = Some(Arc::clone(&self.segment));
                let Ep { shm, owner, .. } = &mut *self.ep;
                shm.peer_gone(self.id, closed, true, owner);
                // After both sides agreed to close the link, the peer's process may end, too.
                shm.peer_gone(self.id, None, false, owner);
            }
        }
        self.await_answer();
    }

    /// The peer writes to an entry in which a key may be looked for.
    fn write_board(&mut self, steps: &mut Steps<'_>) {
        let bucket = bucket_of(u64::from(steps.byte()));
        let number = bucket.start + usize::from(steps.byte()) % bucket.len();
        let word = usize::from(steps.byte()) % 8;
        self.boards.1.entry(number).write_word(word, steps.number());
        self.entries.push(number);
    }

    /// The endpoint reads a region of the peer, where that needs no help.
    fn read_region(&mut self, steps: &mut Steps<'_>) {
        let op = RmaOp {
            kind: RmaKind::Read,
            dest: self.addr,
            key: u64::from(steps.byte()),
            place: steps.number(),
            data: 0,
            desc: MrDesc::NONE,
            context: 1,
            flags: Flags::empty(),
        };
        let len = steps.number() as usize % 5000;
        let mut into = vec![BEYOND; len + 64];
        let buf = IoBuf::new(into.as_mut_ptr(), len);
        let Ep { shm, owner, .. } = &mut *self.ep;
        // SAFETY: the buffer lives until the operation is over, which it is at return.
        let read = unsafe { shm.shortcut(&op, &[buf], None, owner) };
        assert!(matches!(read, Shortcut::Done | Shortcut::Impossible));
        assert!(into[len..].iter().all(|byte| *byte == BEYOND));
    }

    /// The endpoint's domain closes a region. The peer claims to be at work, and is not there.
    fn close_region(&mut self, steps: &mut Steps<'_>) {
        let memory = IoBuf { addr: 8, len: 8 };
        let regions = &self.boards.0;
        regions.show(
            0,
            steps.number(),
            &MrAttr::new(memory, Rights::all().flags()),
        );
        let claim = self.segment.hazard_word(SegmentSide::Acceptor);
        write(claim, steps.number() % (ENTRIES as u64 + 2));
        regions.hide(0);
        assert!(!regions.is_in_use(0), "a close waits for a dead peer");
    }

    /// Sends that need another link with the peer wait until the service thread reports that none
    /// can be made. This function waits for the report, so that the order of steps is fixed.
    fn await_answer(&mut self) {
        while self.ep.shm.awaits_answer(self.id) {
            std::thread::yield_now();
        }
    }

    /// The peer fills the next slot.
    fn publish(&mut self, steps: &mut Steps<'_>) {
        let (kind, flags) = (steps.kind(), steps.byte());
        let len = steps.number() as u32;
        let lap = self.position / SLOTS as u64 + 1;
        let head = lap & 0xffff
            | (u64::from(kind) << 16)
            | (u64::from(flags) << 24)
            | (u64::from(len) << 32);
        let slot = self.position as usize % SLOTS;
        for word in 1..8 {
            let word = self.segment.slot_word(SegmentSide::Acceptor, slot, word);
            write(word, steps.number());
        }
        write(self.segment.slot_word(SegmentSide::Acceptor, slot, 0), head);
        self.position += 1;
    }

    /// Lets the endpoint process everything that was written. Returns a hash of the completions.
    fn settle(&mut self) -> u64 {
        for _ in 0..10 {
            self.ep.progress();
            self.await_answer();
        }
        let _ = self.ep.shm.arm();
        self.ep.progress();
        let mut ended = 0;
        self.reap(|is_ok| ended = (ended * 2 + u64::from(is_ok)) & 0xff);
        ended
    }

    /// Sends a message of another peer, here the endpoint itself. Returns its address. (A receive
    /// from any source might match a message of the hostile peer, and an older one might match the
    /// message sent here.)
    fn serve_another(&mut self) -> FiAddr {
        let own = self.ep.name();
        let me = self.ep.insert(&own);
        let mut into = [0u8; 8];
        let unused = |tag: &u64| !self.tags.contains(tag);
        let tag = (0..).find(unused).unwrap_or_default();
        self.ep.recv_from(MsgKind::Tagged, me, tag, 0, &mut into, 7);
        static SENT: [u8; 8] = [9; 8];
        // SAFETY: they stay.
        let sent = unsafe { self.ep.tsend_from(me, tag, &SENT, 8) };
        assert!(sent.is_ok());
        self.under_way += 2;
        self.reap(|_| {});
        assert_eq!(into, [9; 8]);
        me
    }

    /// Removes the peers and all their messages.
    fn end(mut self, me: FiAddr) {
        self.ep.shm.end_links(&mut self.ep.owner);
        self.ep.remove(self.addr);
        self.ep.remove(me);
        let taken_back = self.ep.drain(RECEIVE);
        self.reap(|_| {});
        assert_eq!(self.under_way, taken_back, "operations never end");
        assert_eq!(self.ep.owner.srx.parts, 0, "parts of operations never end");
        for (len, buffer) in &self.buffers {
            let is_whole = buffer[*len..].iter().all(|byte| *byte == BEYOND);
            assert!(is_whole, "wrote beyond a receive");
        }
        assert_eq!(
            self.ep.shm.table_sizes(),
            Default::default(),
            "something is left"
        );
        assert!(self.ep.owner.av.is_empty());
        let (regions, board) = &self.boards;
        regions.is_in_use(0);
        assert_eq!(regions.watched(), 0, "a segment is left");
        for number in self.entries {
            (0..6).for_each(|word| board.entry(number).write_word(word, 0));
        }
    }

    /// Takes all completions and errors; `take` gets whether each is a success.
    fn reap(&mut self, mut take: impl FnMut(bool)) {
        while let Some(end) = self.ep.poll() {
            self.await_answer();
            assert_ne!(self.under_way, 0, "an operation ends twice");
            self.under_way -= 1;
            take(end.is_ok());
        }
    }
}

fn write(word: *mut u64, value: u64) {
    // SAFETY: a word of the mapped segment; nobody else runs.
    unsafe { word.write_volatile(value) };
}

/// Bytes as choices; after the last byte, every choice is 0.
struct Steps<'a>(&'a [u8]);

impl Steps<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// One of the kinds of messages, or 0, which is no kind. A valid kind stands for itself.
    fn kind(&mut self) -> u8 {
        let largest = wire::KINDS.iter().copied().max().unwrap_or(0);
        self.byte() % (largest + 1)
    }

    /// Mostly a small number: the first byte gives the number of bytes that follow.
    fn number(&mut self) -> u64 {
        let width = [0, 1, 1, 2, 4, 8][usize::from(self.byte() % 6)];
        (0..width).fold(0, |number, _| (number << 8) | u64::from(self.byte()))
    }
}
