//! Tests of the close of regions beside peers that are at work, have died, or claim anything.

#![allow(clippy::unwrap_used, reason = "a test")]

use ferrofabric_contracts::types::IoBuf;

use ferrofabric_contracts::flags::Flags;

use super::*;
use crate::board::PeerBoard;
use crate::doorbell::Doorbell;
use crate::hazard::Protection;

const OWN: u64 = 0x0123_4567_89ab_cd01;

/// A peer with a link to an endpoint of the board's domain. Its doorbell says that it lives.
struct Peer {
    segment: Arc<ShmSegment>,
    id: u64,
    _doorbell: Doorbell,
}

impl Peer {
    /// The peer with this id, unlike those of all tests that run at the same time.
    fn new(id: u64) -> Self {
        let id = (id << 32) | u64::from(std::process::id());
        Self {
            segment: Arc::new(ShmSegment::create().unwrap().0),
            id,
            _doorbell: Doorbell::open(id).unwrap(),
        }
    }

    fn link(&self, board: &Arc<RegionBoard>) -> BoardWatch {
        board.watch(&self.segment, SegmentSide::Initiator, (OWN, self.id))
    }

    /// Another link with the same peer.
    fn link_anew(&mut self, board: &Arc<RegionBoard>) -> BoardWatch {
        self.segment = Arc::new(ShmSegment::create().unwrap().0);
        self.link(board)
    }

    fn works_on(&self, entry: usize) -> Protection<'_> {
        let hazard = self.segment.hazard(SegmentSide::Acceptor);
        hazard.protect(entry, || true).unwrap()
    }
}

/// A board with regions 0 and 1, and the entries of these.
fn board() -> (Arc<RegionBoard>, [usize; 2]) {
    let board = RegionBoard::new(true);
    let memory = IoBuf { addr: 8, len: 8 };
    for number in [0, 1] {
        let attr = MrAttr::new(memory, Flags::REMOTE_READ | Flags::REMOTE_WRITE);
        board.show(number, number as u64 + 100, &attr);
    }
    let mut theirs = PeerBoard::accept(board.fd().unwrap()).unwrap();
    let entries = [100, 101].map(|key| theirs.find(key).unwrap().0);
    (board, entries)
}

#[test]
fn a_region_is_in_use_while_a_peer_works_on_it() {
    let (board, entries) = board();
    let (one, other) = (Peer::new(1), Peer::new(2));
    let _links = [one.link(&board), other.link(&board)];
    let work = one.works_on(entries[0]);
    let elsewhere = other.works_on(entries[1]);
    board.hide(0);
    assert!(board.is_in_use(0));
    drop(work);
    assert!(!board.is_in_use(0));
    // Its number is free for another region, which the other peer does not work on.
    let attr = MrAttr::new(IoBuf { addr: 8, len: 8 }, Flags::REMOTE_READ);
    board.show(0, 100, &attr);
    board.hide(0);
    board.hide(1);
    assert_eq!([0, 1].map(|n| board.is_in_use(n)), [false, true]);
    drop(elsewhere);
    assert!(!board.is_in_use(1));
}

/// A peer that was killed at work has left its hazard, and no doorbell.
#[test]
fn a_peer_that_is_gone_holds_up_no_close() {
    let (board, entries) = board();
    let peer = Peer::new(3);
    let link = peer.link(&board);
    std::mem::forget(peer.works_on(entries[0]));
    board.hide(0);
    assert!(board.is_in_use(0));
    drop(peer);
    assert!(!board.is_in_use(0));
    drop(link);
    board.hide(1);
    assert!(!board.is_in_use(1));
    assert_eq!(board.watched(), 0);
}

/// A link that ends while its peer is at work holds up the close until the work is over.
#[test]
fn work_outlives_its_link() {
    let (board, entries) = board();
    let peer = Peer::new(4);
    let link = peer.link(&board);
    let work = peer.works_on(entries[0]);
    drop(link);
    board.hide(0);
    assert!(board.is_in_use(0));
    drop(work);
    assert!(!board.is_in_use(0));
    assert_eq!(board.watched(), 0);
}

/// The end of a link without work leaves nothing, and is published to the peer.
#[test]
fn the_end_of_an_idle_link_leaves_nothing() {
    let (board, _) = board();
    let peer = Peer::new(5);
    drop(peer.link(&board));
    assert_eq!(board.watched(), 0);
    let status = peer.segment.status(SegmentSide::Initiator);
    assert!(status.has_closed_by_now());
}

/// A peer claims to be at work for ever, in one segment after another: a few of them are kept, and
/// none once it is gone.
#[test]
fn a_hostile_peer_leaves_few_segments() {
    let (board, entries) = board();
    let mut peer = Peer::new(6);
    for _ in 0..100 {
        let link = peer.link_anew(&board);
        std::mem::forget(peer.works_on(entries[0]));
        drop(link);
        assert!(board.watched() <= ENDED_OF_PAIR);
    }
    drop(peer);
    let other = Peer::new(7);
    let _link = other.link(&board);
    assert_eq!(board.watched(), 1);
}

/// Claims about entries that no region has, or that do not exist, hold up nothing.
#[test]
fn claims_about_other_entries_hold_up_nothing() {
    let (board, entries) = board();
    let peer = Peer::new(8);
    let _link = peer.link(&board);
    board.hide(0);
    for entry in [entries[0] + 1, 511, 512, usize::MAX - 1] {
        let _claim = peer.works_on(entry);
        assert!(!board.is_in_use(0), "{entry}");
    }
}

/// Without CMA there is no board.
#[test]
fn a_board_that_is_off_shows_nothing() {
    let board = RegionBoard::new(false);
    let attr = MrAttr::new(IoBuf { addr: 8, len: 8 }, Flags::REMOTE_READ);
    board.show(0, 1, &attr);
    board.hide(0);
    assert!(board.fd().is_none() && !board.is_in_use(0));
}
