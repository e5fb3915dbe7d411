//! Rendezvous: every byte once, or again after it was lost; budgets kept.

use super::*;
use proptest::prelude::*;

const LIMITS: TransferLimits = TransferLimits {
    chunk_bytes: 10,
    chunks: 6,
    chunks_per_message: 2,
    messages: 4,
};

fn segment(address: u64, length_bytes: u64) -> MemorySegment {
    MemorySegment {
        address,
        length_bytes,
        rkey: address as u32,
    }
}

proptest! {
    /// Pieces that are cut at buffers are the same bytes in the same order, and none goes to two
    /// buffers.
    #[test]
    fn cut_pieces_go_to_one_buffer_each(
        lengths in prop::collection::vec(1..40u64, 0..5),
        lens in prop::collection::vec(0..50u64, 0..5),
    ) {
        let segments: Vec<MemorySegment> =
            lengths.iter().zip(1..).map(|(&length, n)| segment(n * 1000, length)).collect();
        let bytes = |segments: &[MemorySegment]| -> Vec<u64> {
            segments.iter().flat_map(|s| s.address..s.address + s.length_bytes).collect()
        };
        let cut = cut_at_buffers(segments.clone(), lens.iter().copied());
        prop_assert_eq!(bytes(&cut), bytes(&segments));
        prop_assert!(cut.iter().all(|piece| piece.length_bytes != 0));
        let ends = |lens: &mut dyn Iterator<Item = u64>| -> Vec<u64> {
            lens.scan(0, |at, len| { *at += len; Some(*at) }).collect()
        };
        let ends_of_pieces = ends(&mut cut.iter().map(|piece| piece.length_bytes));
        let total: u64 = lengths.iter().sum();
        let ends_of_buffers = ends(&mut lens.into_iter());
        for end in ends_of_buffers.into_iter().filter(|end| (1..total).contains(end)) {
            prop_assert!(ends_of_pieces.contains(&end), "{end} in {ends_of_pieces:?}");
        }
    }
}

/// A message: the address of each byte that fits, and how often each has arrived.
struct TestMessage {
    key: Key,
    bytes: Vec<u64>,
    arrived: Vec<u32>,
    handed_out_all: bool,
}

proptest! {
    /// Several transfers share a session; chunks complete in any order, are lost, or are not
    /// posted. Each byte that fits moves from where the sender has it, once as far as is known; no
    /// budget is exceeded; `is_last` says when all is handed out.
    #[test]
    fn each_byte_arrives(
        messages in proptest::collection::vec(
            (proptest::collection::vec(1..60u64, 1..5), 1..200u64), 1..5),
        choices in proptest::collection::vec(any::<u16>(), 400),
    ) {
        let mut transfers = Transfers::new(LIMITS);
        let mut all: Vec<TestMessage> = Vec::new();
        for (index, (lengths, fit)) in messages.iter().enumerate() {
            let mut address = 1000 * (index as u64 + 1);
            let segments: Vec<MemorySegment> = lengths.iter().map(|&length| {
                address += length + 7;
                segment(address, length)
            }).collect();
            let fit = (*fit).min(lengths.iter().sum());
            let bytes: Vec<u64> =
                segments.iter().flat_map(|s| s.address..s.address + s.length_bytes).take(fit as usize).collect();
            let key = transfers.start(index, segments, fit).unwrap();
            all.push(TestMessage { key, arrived: vec![0; bytes.len()], bytes, handed_out_all: false });
        }
        let mut under_way: Vec<Chunk> = Vec::new();
        let mut ended = 0;
        // At the end nothing is lost any more and it runs dry.
        let mut choices = choices.into_iter();
        while !transfers.is_empty() {
            let choice = choices.next();
            let fails = choice.is_some_and(|choice| choice % 7 == 6);
            let complete = choice.is_none_or(|choice| choice % 5 == 4) && !under_way.is_empty();
            if complete {
                let at = usize::from(choice.unwrap_or(0) / 5) % under_way.len();
                let chunk = under_way.swap_remove(at);
                let message = all.iter_mut().find(|m| m.key == chunk.transfer).unwrap();
                if fails {
                    transfers.on_lost(chunk.transfer, chunk.offset_bytes, chunk.source);
                    message.handed_out_all = false;
                    prop_assert!(transfers.has_lost());
                    continue;
                }
                let from = chunk.offset_bytes as usize;
                for arrived in &mut message.arrived[from..from + chunk.source.length_bytes as usize] {
                    *arrived += 1;
                }
                let done = transfers.on_chunk(chunk.transfer);
                prop_assert_eq!(done, message.arrived.iter().all(|&times| times == 1));
                if done {
                    prop_assert!(message.handed_out_all);
                    prop_assert!(transfers.remove(chunk.transfer).is_some());
                    prop_assert!(!transfers.on_chunk(chunk.transfer), "a stale key");
                    ended += 1;
                }
            } else if let Some(chunk) = transfers.next_chunk() {
                let message = all.iter_mut().find(|m| m.key == chunk.transfer).unwrap();
                if fails {
                    transfers.on_lost(chunk.transfer, chunk.offset_bytes, chunk.source);
                    continue;
                }
                prop_assert!((1..=10).contains(&chunk.source.length_bytes));
                let from = chunk.offset_bytes as usize;
                let wanted = &message.bytes[from..from + chunk.source.length_bytes as usize];
                let end = chunk.source.address + chunk.source.length_bytes;
                prop_assert!(wanted.iter().copied().eq(chunk.source.address..end));
                message.handed_out_all = chunk.is_last;
                under_way.push(chunk);
            }
            prop_assert!(under_way.len() <= 6);
            prop_assert_eq!(transfers.under_way() as usize, under_way.len());
            prop_assert!(all.iter().all(|m| under_way.iter().filter(|c| c.transfer == m.key).count() <= 2));
        }
        prop_assert_eq!(ended, messages.len());
        prop_assert!(!transfers.has_lost());
    }
}

#[test]
fn transfers_take_turns() {
    let mut transfers = Transfers::new(LIMITS);
    let a = transfers.start('a', vec![segment(0, 100)], 100).unwrap();
    let b = transfers.start('b', vec![segment(0, 100)], 100).unwrap();
    let turns: Vec<Key> = std::iter::from_fn(|| transfers.next_chunk())
        .map(|chunk| chunk.transfer)
        .collect();
    assert_eq!(turns, [a, b, a, b]);
    assert!(!transfers.on_chunk(a));
    assert_eq!(
        transfers
            .next_chunk()
            .map(|chunk| (chunk.transfer, chunk.offset_bytes)),
        Some((a, 20))
    );
}

#[test]
fn lost_chunks_come_before_new_ones() {
    let mut transfers = Transfers::new(LIMITS);
    let key = transfers.start((), vec![segment(50, 100)], 100).unwrap();
    let first = transfers.next_chunk().unwrap();
    let second = transfers.next_chunk().unwrap();
    assert_eq!(transfers.next_chunk(), None, "two at a time");
    transfers.on_lost(key, first.offset_bytes, first.source);
    assert_eq!(transfers.next_chunk(), Some(first));
    assert!(!transfers.has_lost());
    assert!(!transfers.on_chunk(second.transfer));
    assert_eq!(
        transfers.next_chunk().map(|chunk| chunk.offset_bytes),
        Some(20)
    );
}

#[test]
fn chunks_that_fail_are_cut_smaller_until_many_succeed() {
    let mut transfers = Transfers::new(TransferLimits {
        chunk_bytes: 65_536,
        ..LIMITS
    });
    let total = 400 * 65_536;
    let key = transfers.start((), vec![segment(0, total)], total).unwrap();
    let first = transfers.next_chunk().unwrap();
    transfers.on_lost(key, 0, first.source);
    transfers.shrink();
    transfers.shrink();
    transfers.shrink();
    let (mut next, mut sizes) = (0, Vec::new());
    while let Some(chunk) = transfers.next_chunk() {
        assert_eq!(
            chunk.offset_bytes, next,
            "the lost one first, then the rest"
        );
        next += chunk.source.length_bytes;
        sizes.push(chunk.source.length_bytes);
        transfers.on_chunk(key);
    }
    assert_eq!(next, total);
    assert_eq!((sizes[0], sizes[255], sizes[300]), (4096, 4096, 8192));
    assert_eq!(sizes[256 * 4 + 10], 65_536, "as large as ever again");
}

#[test]
fn a_transfer_that_is_taken_out_leaves_no_trace() {
    let mut transfers = Transfers::new(LIMITS);
    let key = transfers.start((), vec![segment(0, 100)], 100).unwrap();
    let chunk = transfers.next_chunk().unwrap();
    transfers.next_chunk().unwrap();
    transfers.on_lost(key, chunk.offset_bytes, chunk.source);
    assert_eq!(transfers.remove(key), Some(()));
    assert_eq!((transfers.under_way(), transfers.has_lost()), (0, false));
    assert_eq!(transfers.next_chunk(), None);
    transfers.on_lost(key, chunk.offset_bytes, chunk.source);
    assert_eq!((transfers.under_way(), transfers.has_lost()), (0, false));
}

#[test]
fn a_full_table_gives_the_owner_back_and_drain_empties_it() {
    let mut transfers = Transfers::new(LIMITS);
    for i in 0..4 {
        transfers.start(i, vec![segment(0, 5)], 5).unwrap();
    }
    assert_eq!(transfers.start(4, vec![segment(0, 5)], 5), Err(4));
    let chunk = transfers.next_chunk().unwrap();
    let drained: Vec<i32> = transfers.drain().collect();
    assert_eq!(drained, [0, 1, 2, 3]);
    assert_eq!(transfers.next_chunk(), None);
    assert!(!transfers.on_chunk(chunk.transfer));
    transfers.start(4, vec![segment(0, 5)], 5).unwrap();
}

#[test]
fn a_fin_ends_its_message_once() {
    let mut sends = SendTable::new(2);
    let op = sends.insert("one").unwrap();
    sends.insert("two").unwrap();
    assert_eq!(sends.insert("three"), Err("three"));
    assert_eq!(sends.on_fin(op), Ok("one"));
    assert_eq!(sends.on_fin(op), Err(StaleOp(op)));
    assert_eq!(sends.on_fin(u64::MAX), Err(StaleOp(u64::MAX)));
    let again = sends.insert("three").unwrap();
    assert_ne!(again, op);
    assert_eq!(
        sends.on_fin(op),
        Err(StaleOp(op)),
        "the position is in use again"
    );
    assert_eq!(sends.drain().collect::<Vec<_>>().len(), 2);
    assert!(sends.is_empty());
}
