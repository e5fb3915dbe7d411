//! Random moves of a hostile peer, valid ones among them: its writes, its close messages, and its
//! end.

use ferrofabric_contracts::peer::Transport;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::{HostilePeer, ID};
use crate::ShmConfig;
use crate::link::CloseMessage;
use crate::owner::Ep;
use crate::ring::SLOTS;
use crate::segment::SegmentSide;
use crate::wire::{CHUNK, CLOSE, FLAGS, KINDS, START, TAGGED, pack};

#[derive(Clone, Debug)]
enum Move {
    Publish(u8, u8, u32, [u64; 7]),
    /// The valid start of a message of `1` bytes with tag `0`, with any flags; all of the message
    /// or its first half.
    Begin(u64, u32, u8, bool),
    /// The next valid piece of the oldest message, or one piece too many.
    Piece(u32),
    /// A message about the end of the link.
    CloseMessage(CloseMessage),
    Scribble(Vec<(usize, usize, u64)>),
    Claim(u64),
    Receive(u64, usize),
    Send(usize),
    /// It closes its endpoint.
    Close,
    Go,
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0u64..4,
        3 => 0u64..200,
        2 => (0u32..40).prop_map(|s| 1 << s),
        2 => (0u64..4, 0u64..30_000).prop_map(|(id, at)| id | (at << 32)),
        1 => any::<u64>(),
    ]
}

/// Mostly an existing kind.
fn kind() -> impl Strategy<Value = u8> {
    prop_oneof![20 => select(KINDS), 1 => any::<u8>()]
}

/// Mostly existing flags.
fn flags() -> impl Strategy<Value = u8> {
    let some = subsequence(FLAGS, 0..=FLAGS.len());
    prop_oneof![
        20 => some.prop_map(|some| some.iter().fold(0, |all, flag| all | flag)),
        1 => any::<u8>(),
    ]
}

fn a_move() -> impl Strategy<Value = Move> {
    let body = || prop::array::uniform7(number());
    let len = prop_oneof![4 => 0u32..100, 2 => 0u32..70_000, 1 => any::<u32>()];
    prop_oneof![
        10 => (kind(), flags(), len, body()).prop_map(|(k, f, l, b)| Move::Publish(k, f, l, b)),
        4 => (0u64..4, 1u32..9_000, flags(), any::<bool>())
            .prop_map(|(tag, len, flags, whole)| Move::Begin(tag, len, flags, whole)),
        4 => (1u32..9_000).prop_map(Move::Piece),
        1 => select(CloseMessage::ALL).prop_map(Move::CloseMessage),
        1 => prop::collection::vec((0..SLOTS, 0usize..8, number()), 0..40).prop_map(Move::Scribble),
        2 => prop_oneof![0u64..80, any::<u64>(), (0u64..80).prop_map(|n| n | (1 << 63))].prop_map(Move::Claim),
        3 => (0u64..4, 0usize..40_000).prop_map(|(tag, len)| Move::Receive(tag, len)),
        3 => (0usize..200_000).prop_map(Move::Send),
        1 => Just(Move::Close),
        3 => Just(Move::Go),
    ]
}

fn begin(enemy: &mut HostilePeer, tag: u64, len: u32, flags: u8, whole: bool) {
    let total = u64::from(len);
    let piece = if whole { len } else { len / 2 };
    let body = [tag, pack(0, 0), total, 0, total, 0, 0];
    enemy.publish(START, flags | TAGGED, piece, body);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_writes_do_no_harm(moves in prop::collection::vec(a_move(), 1..60)) {
        let mut ep = Ep::open(ShmConfig { unexpected_bytes: 50_000, ..ShmConfig::default() });
        let (mut enemy, addr) = HostilePeer::connect(&mut ep);
        let out = vec![0u8; 200_000];
        let mut buffers: Vec<(usize, Vec<u8>)> = Vec::new();
        for m in moves {
            match m {
                Move::Publish(kind, flags, len, body) => enemy.publish(kind, flags, len, body),
                Move::Begin(tag, len, flags, whole) => begin(&mut enemy, tag, len, flags, whole),
                Move::Piece(len) => enemy.publish(CHUNK, 0, len, [pack(0, 0), 0, 0, 0, 0, 0, 0]),
                Move::CloseMessage(what) => enemy.publish(CLOSE, 0, 0, [what as u64, 0, 0, 0, 0, 0, 0]),
                Move::Scribble(words) => for (slot, word, value) in words {
                    // SAFETY: words of the mapped slots; nobody else runs.
                    unsafe { enemy.segment.slot_word(SegmentSide::Acceptor, slot, word).write_volatile(value) };
                },
                Move::Claim(word) => enemy.claim_progress(word),
                Move::Receive(tag, len) => {
                    let mut buf = vec![0xaa; len + 64];
                    ep.trecv(tag, 0, &mut buf[..len], 1);
                    buffers.push((len, buf));
                }
                Move::Send(len) => {
                    let _ = ep.tsend(addr, 1, &out[..len], 1);
                }
                Move::Close => {
                    enemy.segment.status(SegmentSide::Acceptor).close();
                    ep.shm.peer_gone(ID, Some(enemy.segment.clone()), true, &mut ep.owner);
                }
                Move::Go => {
                    for _ in 0..3 {
                        ep.progress();
                    }
                }
            }
        }
        for _ in 0..10 {
            ep.progress();
        }
        let _ = ep.shm.arm().unwrap();
        ep.progress();
        while ep.poll().is_some() {}
        for (len, buf) in &buffers {
            prop_assert!(buf[*len..].iter().all(|b| *b == 0xaa), "wrote beyond a receive");
        }
        // Another peer is served as before.
        let own = ep.name();
        let me = ep.insert(&own);
        let mut into = [0u8; 8];
        ep.trecv(0xffff, 0, &mut into, 7);
        ep.tsend(me, 0xffff, &[9; 8], 8).unwrap();
        while ep.poll().is_some() {}
        prop_assert_eq!(into, [9; 8]);
    }
}
