//! The ring against a queue.

use std::collections::VecDeque;
use std::ptr::NonNull;

use proptest::prelude::*;

use super::{Head, LineSlot, PAYLOAD_BYTES, RingConsumer, RingProducer, RingProgress, SLOTS};

struct TestRing {
    slots: Box<[LineSlot; SLOTS]>,
    progress: Box<RingProgress>,
    payload: Box<[u8; PAYLOAD_BYTES]>,
}

impl TestRing {
    fn new() -> Self {
        Self {
            slots: Box::new(std::array::from_fn(|_| LineSlot::new())),
            progress: Box::new(RingProgress::new()),
            payload: Box::new([0; PAYLOAD_BYTES]),
        }
    }

    fn rings(&mut self) -> (RingProducer, RingConsumer) {
        let slots = NonNull::from(&mut *self.slots).cast();
        let progress = NonNull::from(&mut *self.progress);
        let payload = NonNull::from(&mut *self.payload).cast();
        // SAFETY: the memory outlives the rings in each test.
        unsafe {
            (
                RingProducer::new(slots, progress, payload),
                RingConsumer::new(slots, progress, payload),
            )
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum RingStep {
    Short(u64),
    Piece(usize),
    Some(usize),
    Take(usize),
    Tell,
    Refresh,
}

fn ring_step() -> impl Strategy<Value = RingStep> {
    prop_oneof![
        3 => any::<u64>().prop_map(RingStep::Short),
        3 => (0usize..9000).prop_map(RingStep::Piece),
        2 => (1usize..30_000).prop_map(RingStep::Some),
        4 => (1usize..20).prop_map(RingStep::Take),
        2 => Just(RingStep::Tell),
        2 => Just(RingStep::Refresh),
    ]
}

proptest! {
    /// Against a queue: everything comes out once, in order, unharmed, and there is room whenever
    /// the queue is empty.
    #[test]
    fn a_ring_is_a_queue(steps in prop::collection::vec(ring_step(), 1..400)) {
        let mut memory = TestRing::new();
        let (mut tx, mut rx) = memory.rings();
        let mut model: VecDeque<(u64, usize)> = VecDeque::new();
        let mut count = 0u64;
        let mut unread = 0usize;
        for s in steps {
            match s {
                RingStep::Short(value) => {
                    if tx.has_slot(0) {
                        // SAFETY: a body has this word.
                        tx.publish(Head::new(1, 0, 0), |b| unsafe { *b = value });
                        model.push_back((value, 0));
                        unread += 1;
                    }
                }
                RingStep::Piece(_) | RingStep::Some(_) => {
                    let found = match s {
                        RingStep::Piece(len) => tx.reserve(len).map(|r| (r, len)),
                        RingStep::Some(most) => tx.reserve_some(most),
                        _ => None,
                    };
                    if let Some((record, len)) = found.filter(|_| tx.has_slot(0)) {
                        count += 1;
                        // SAFETY: the record has `len` bytes.
                        unsafe { tx.record_ptr(record).write_bytes(count as u8, len) };
                        let head = Head::new(2, 0, len as u32);
                        // SAFETY: a body has these words.
                        tx.publish_record(head, record, |b| unsafe {
                            *b = count;
                            *b.add(1) = u64::from(record.offset);
                        });
                        model.push_back((count, len));
                        unread += 1;
                    }
                }
                RingStep::Take(n) => {
                    for _ in 0..n {
                        let Some(seen) = rx.peek() else {
                            prop_assert_eq!(unread, 0);
                            break;
                        };
                        let (value, len) = model.pop_front().unwrap();
                        let [first, offset] = seen.words();
                        prop_assert_eq!(first, value);
                        prop_assert_eq!(seen.head.len(), len);
                        if seen.head.kind() == 2 {
                            let at = rx.record(offset as u32, len).unwrap();
                            // SAFETY: `record` has checked it.
                            let bytes = unsafe { std::slice::from_raw_parts(at, len) };
                            prop_assert!(bytes.iter().all(|b| *b == value as u8));
                        }
                        rx.consume(len);
                        unread -= 1;
                    }
                }
                RingStep::Tell => rx.publish_tail(),
                RingStep::Refresh => prop_assert!(tx.refresh().is_ok()),
            }
        }
        while rx.peek().is_some() {
            rx.consume(0);
        }
        rx.publish_tail();
        prop_assert!(tx.refresh().is_ok());
        prop_assert!(tx.has_slot(SLOTS - 1));
        prop_assert!(tx.reserve_some(PAYLOAD_BYTES / 3).is_some());
        prop_assert!(tx.reserve(PAYLOAD_BYTES / 2).is_some());
    }
}

#[test]
fn laps_wrap_around() {
    let mut memory = TestRing::new();
    let (mut tx, mut rx) = memory.rings();
    for i in 0..(SLOTS as u64) * 70_000 {
        // SAFETY: a body has this word.
        tx.publish(Head::new(1, 0, 0), |b| unsafe { *b = i });
        assert_eq!(rx.peek().unwrap().words(), [i]);
        rx.consume(0);
        assert!(rx.peek().is_none());
        rx.publish_tail();
        tx.refresh().unwrap();
    }
}

/// A hostile producer gives a slot the next lap's number again and again.
#[test]
fn a_look_ahead_ends_after_a_lap() {
    let mut memory = TestRing::new();
    let (mut tx, rx) = memory.rings();
    // SAFETY: a body has this word.
    tx.publish(Head::new(1, 0, 0), |b| unsafe { *b = 1 });
    assert!(rx.peek_ahead(0).is_some());
    assert!(rx.peek_ahead(1).is_none());
    for position in 0..2 * SLOTS as u32 {
        memory.slots[LineSlot::index(position)].publish(position, Head::new(1, 0, 0), |_| {});
        let is_near = (position as usize) < SLOTS;
        assert_eq!(rx.peek_ahead(position).is_some(), is_near, "{position}");
    }
}
