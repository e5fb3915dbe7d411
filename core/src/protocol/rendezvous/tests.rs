//! Rendezvous: every byte once, budgets kept, errors wait for what is under way.

use super::*;
use proptest::prelude::*;

const LIMITS: FetchLimits = FetchLimits {
    chunk_bytes: 10,
    reads_per_lane: 6,
    reads_per_op: 2,
    ops_per_lane: 4,
};

fn started<T: std::fmt::Debug>(result: Result<Started<T>, T>) -> Key {
    match result.unwrap() {
        Started::Reading(key) => key,
        Started::Done(done) => panic!("{done:?}"),
    }
}

fn segment(address: u64, length_bytes: u64) -> Segment {
    Segment {
        address,
        length_bytes,
        rkey: address as u32,
    }
}

proptest! {
    /// Several fetches share a lane; completions come in any order, posts fail at times. Each byte that fits is read
    /// once, from where the sender has it; no budget is exceeded; every fetch ends once.
    #[test]
    fn each_byte_is_read_once(
        messages in proptest::collection::vec(
            (proptest::collection::vec(1..60u64, 1..5), 1..200u64), 1..5),
        choices in proptest::collection::vec(any::<u16>(), 400),
    ) {
        let mut fetcher = Fetcher::new(LIMITS);
        let mut sources = Vec::new();
        for (index, (lengths, fit)) in messages.iter().enumerate() {
            let mut address = 1000 * (index as u64 + 1);
            let segments: Vec<Segment> = lengths.iter().map(|&length| {
                address += length + 7;
                segment(address, length)
            }).collect();
            started(fetcher.start_segments(index, index as u64, segments.clone(), *fit));
            // The address of each byte of the message that fits.
            let bytes: Vec<u64> =
                segments.iter().flat_map(|s| s.address..s.address + s.length_bytes).take(*fit as usize).collect();
            sources.push((bytes, 0u64));
        }
        let mut under_way: Vec<(usize, Read)> = Vec::new();
        let mut ended = Vec::new();
        let keys: Vec<Key> = fetcher.fetches.iter().map(|(key, _)| key).collect();
        for choice in choices {
            if choice % 5 == 4 && !under_way.is_empty() {
                let (_, read) = under_way.swap_remove(usize::from(choice / 5) % under_way.len());
                if let Some(done) = fetcher.on_read(read.fetch, Ok(())) {
                    ended.push(done);
                }
            } else if let Some(read) = fetcher.next_read() {
                if choice % 7 == 6 {
                    fetcher.not_posted(read);
                    continue;
                }
                let index = keys.iter().position(|&key| key == read.fetch).unwrap();
                let (bytes, next) = &mut sources[index];
                prop_assert_eq!(read.offset_bytes, *next);
                prop_assert!((1..=10).contains(&read.source.length_bytes));
                let wanted = &bytes[*next as usize..(*next + read.source.length_bytes) as usize];
                let end = read.source.address + read.source.length_bytes;
                prop_assert!(wanted.iter().copied().eq(read.source.address..end));
                *next += read.source.length_bytes;
                under_way.push((index, read));
            }
            prop_assert!(under_way.len() <= 6);
            prop_assert_eq!(fetcher.reads_under_way() as usize, under_way.len());
            prop_assert!((0..messages.len()).all(|i| under_way.iter().filter(|(of, _)| *of == i).count() <= 2));
        }
        // Let it run dry.
        loop {
            while let Some(read) = fetcher.next_read() {
                let index = keys.iter().position(|&key| key == read.fetch).unwrap();
                prop_assert_eq!(read.offset_bytes, sources[index].1);
                sources[index].1 += read.source.length_bytes;
                under_way.push((index, read));
            }
            let Some((_, read)) = under_way.pop() else { break };
            ended.extend(fetcher.on_read(read.fetch, Ok(())));
        }
        prop_assert!(fetcher.is_empty());
        ended.sort_by_key(|done| done.receive);
        prop_assert_eq!(ended.len(), messages.len());
        for (done, (lengths, fit)) in ended.iter().zip(&messages) {
            let total: u64 = lengths.iter().sum();
            prop_assert_eq!((done.status, done.total_bytes), (FinStatus::Ok, total));
            prop_assert_eq!(done.fetched_bytes, total.min(*fit));
            prop_assert_eq!(sources[done.receive].1, total.min(*fit));
        }
    }
}

#[test]
fn fetches_take_turns() {
    let mut fetcher = Fetcher::new(LIMITS);
    let a = started(fetcher.start_segments('a', 1, vec![segment(0, 100)], 100));
    let b = started(fetcher.start_segments('b', 2, vec![segment(0, 100)], 100));
    let turns: Vec<Key> = std::iter::from_fn(|| fetcher.next_read())
        .map(|read| read.fetch)
        .collect();
    assert_eq!(turns, [a, b, a, b]);
    assert_eq!(fetcher.on_read(a, Ok(())), None);
    assert_eq!(
        fetcher
            .next_read()
            .map(|read| (read.fetch, read.offset_bytes)),
        Some((a, 20))
    );
}

#[test]
fn a_failed_fetch_waits_for_its_reads() {
    let mut fetcher = Fetcher::new(LIMITS);
    let key = started(fetcher.start_segments((), 9, vec![segment(0, 100)], 100));
    assert!(fetcher.next_read().is_some() && fetcher.next_read().is_some());
    assert_eq!(fetcher.on_read(key, Err(ReadFailed)), None);
    assert_eq!(fetcher.next_read(), None);
    let done = fetcher.on_read(key, Ok(())).unwrap();
    assert_eq!(
        (done.status, done.op, done.fetched_bytes),
        (FinStatus::ReadFailed, 9, 0)
    );
    assert_eq!(fetcher.on_read(key, Ok(())), None, "a stale key");
    assert_eq!(fetcher.reads_under_way(), 0);
}

#[test]
fn cancel_ends_now_or_with_the_last_read() {
    let mut fetcher = Fetcher::new(LIMITS);
    let idle = started(fetcher.start_segments('a', 1, vec![segment(0, 100)], 100));
    assert_eq!(
        fetcher.cancel(idle).map(|done| done.status),
        Some(FinStatus::Cancelled)
    );
    assert_eq!(fetcher.next_read(), None);
    let busy = started(fetcher.start_segments('b', 2, vec![segment(0, 100)], 100));
    fetcher.next_read().unwrap();
    assert_eq!(fetcher.cancel(busy), None);
    assert_eq!(
        fetcher.on_read(busy, Ok(())).map(|done| done.status),
        Some(FinStatus::Cancelled)
    );
}

#[test]
fn nothing_to_read_is_done_at_once() {
    let mut fetcher = Fetcher::new(LIMITS);
    for (segments, fit, total) in [(vec![], 100, 0), (vec![segment(0, 50)], 0, 50)] {
        match fetcher.start_segments((), 3, segments, fit) {
            Ok(Started::Done(done)) => {
                assert_eq!(
                    (done.status, done.total_bytes, done.fetched_bytes),
                    (FinStatus::Ok, total, 0)
                );
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(fetcher.is_empty());
}

#[test]
fn a_full_table_gives_the_receive_back_and_drain_empties_it() {
    let mut fetcher = Fetcher::new(LIMITS);
    for i in 0..4 {
        started(fetcher.start_segments(i, 0, vec![segment(0, 5)], 5));
    }
    assert_eq!(fetcher.start_segments(4, 0, vec![segment(0, 5)], 5), Err(4));
    let read = fetcher.next_read().unwrap();
    let drained: Vec<i32> = fetcher.drain().map(|done| done.receive).collect();
    assert_eq!(drained, [0, 1, 2, 3]);
    assert_eq!(
        (fetcher.next_read(), fetcher.on_read(read.fetch, Ok(()))),
        (None, None)
    );
    started(fetcher.start_segments(4, 0, vec![segment(0, 5)], 5));
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
