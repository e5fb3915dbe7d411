//! One direction of a segment: a ring of slots of one cache line each, and beside it a ring of payload bytes.
//!
//! The first word of a slot publishes it: it holds the lap, so one release store hands the line over and one acquire
//! load sees it, and a message that fits the line costs one line transfer. Payload never lies where a publish word is
//! looked for, so old data can not pass for a message. The consumer counts the slots that it is done with in a line of
//! its own, which the producer reads only when its last reading says "full".
//!
//! The two sides do not trust each other: each keeps its own position, and reads every shared word once.

use std::ptr::NonNull;

use ferrofabric_system::prefetch::{prefetch, prefetch_to_write};

use crate::sync::{AtomicU64, Ordering, UnsafeCell};

/// Slots of a direction.
#[cfg(not(loom))]
pub(crate) const SLOTS: usize = 64;
#[cfg(loom)]
pub(crate) const SLOTS: usize = 2;

/// Bytes of the payload ring of a direction.
pub(crate) const PAYLOAD_BYTES: usize = 26_368;

/// Slots that only control messages may take: they get through while bulk data fills the ring.
#[cfg(not(loom))]
pub(crate) const CONTROL_SLOTS: usize = 8;
#[cfg(loom)]
pub(crate) const CONTROL_SLOTS: usize = 0;

/// Words of a slot after the publish word.
pub(crate) const BODY_WORDS: usize = 7;

pub(crate) const LINE: usize = 64;
const LAP_SHIFT: u32 = SLOTS.trailing_zeros();
const MASK: u32 = SLOTS as u32 - 1;
const PRESSED: u64 = 1 << 63;

const _: () = assert!(SLOTS.is_power_of_two() && PAYLOAD_BYTES % LINE == 0);

/// A slot. Zeroed memory is a slot that was never published.
#[repr(C, align(64))]
pub(crate) struct Slot {
    word: AtomicU64,
    body: UnsafeCell<[u64; BODY_WORDS]>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == LINE);

/// What the consumer tells the producer: slots done with (low half), whether it is short of memory (top bit).
#[repr(C, align(128))]
pub(crate) struct Progress {
    word: AtomicU64,
}

/// The other side wrote what it can not have meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

/// What the publish word says beside the lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head(u64);

impl Head {
    #[inline(always)]
    pub(crate) const fn new(kind: u8, flags: u8, len: u32) -> Self {
        Self(kind as u64 | ((flags as u64) << 8) | ((len as u64) << 16))
    }

    #[inline(always)]
    pub(crate) const fn kind(self) -> u8 {
        self.0 as u8
    }

    #[inline(always)]
    pub(crate) const fn flags(self) -> u8 {
        (self.0 >> 8) as u8
    }

    #[inline(always)]
    pub(crate) const fn len(self) -> usize {
        (self.0 >> 16) as u32 as usize
    }
}

#[inline(always)]
const fn lap(position: u32) -> u64 {
    ((position >> LAP_SHIFT).wrapping_add(1) & 0xffff) as u64
}

/// A piece of the payload ring that the producer may fill and then publish.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Where it starts, in bytes from the start of the payload ring.
    pub(crate) offset: u32,
    advance: u32,
    next: u32,
}

/// The producer's side.
pub(crate) struct Tx {
    slots: NonNull<Slot>,
    progress: NonNull<Progress>,
    payload: NonNull<u8>,
    /// Slots published, slots known to be consumed.
    head: u32,
    tail: u32,
    /// Next free payload offset; payload bytes taken, and known to be free again, since the start (with what was skipped).
    next: u32,
    taken: u32,
    freed: u32,
    pressed: bool,
    /// `taken` as it was after each slot.
    taken_at: [u32; SLOTS],
}

// SAFETY: the pointers lead into a mapping that outlives the ring (its `Link` holds the segment), and the shared words are
// atomics; the rest is plain data.
unsafe impl Send for Tx {}

impl Tx {
    /// # Safety
    ///
    /// The pointers lead to `SLOTS` slots, a progress line and `PAYLOAD_BYTES` bytes that stay mapped, of which this
    /// is the only producer in this process.
    pub(crate) unsafe fn new(
        slots: NonNull<Slot>,
        progress: NonNull<Progress>,
        payload: NonNull<u8>,
    ) -> Self {
        Self {
            slots,
            progress,
            payload,
            head: 0,
            tail: 0,
            next: 0,
            taken: 0,
            freed: 0,
            pressed: false,
            taken_at: [0; SLOTS],
        }
    }

    /// Whether `spare + 1` slots are free, as far as known without looking at the shared line.
    #[inline(always)]
    pub(crate) fn has_slot(&self, spare: usize) -> bool {
        (self.head.wrapping_sub(self.tail) as usize) < SLOTS - spare
    }

    /// Whether the consumer asked for envelopes only, as far as known.
    #[inline(always)]
    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed
    }

    /// Reads how far the consumer is.
    #[cold]
    #[inline(never)]
    pub(crate) fn refresh(&mut self) -> Result<(), Broken> {
        // SAFETY: mapped as long as `self` (see `new`). Acquire pairs with the release in `Rx::tell`: what the consumer
        // read from a slot or record, it has read before it is written again.
        let word = unsafe { self.progress.as_ref() }
            .word
            .load(Ordering::Acquire);
        let consumed = word as u32;
        if consumed.wrapping_sub(self.tail) > self.head.wrapping_sub(self.tail) {
            return Err(Broken("it consumed more than it was sent"));
        }
        self.pressed = word & PRESSED != 0;
        if consumed != self.tail {
            self.tail = consumed;
            self.freed = self.taken_at[(consumed.wrapping_sub(1) & MASK) as usize];
        }
        Ok(())
    }

    /// Whether the consumer is further than it was known to be; also when what it says makes no sense, for `refresh` to find.
    pub(crate) fn moved(&mut self) -> bool {
        let before = (self.tail, self.pressed);
        self.refresh().is_err() || (self.tail, self.pressed) != before
    }

    /// Payload room for exactly `len` bytes in one piece; `None` when there is none now.
    #[inline]
    pub(crate) fn reserve(&self, len: usize) -> Option<Record> {
        let need = (len + LINE - 1) & !(LINE - 1);
        let free = PAYLOAD_BYTES - self.taken.wrapping_sub(self.freed) as usize;
        let to_end = PAYLOAD_BYTES - self.next as usize;
        let (offset, advance) = if need <= to_end {
            (self.next as usize, need)
        } else {
            (0, to_end + need)
        };
        (advance <= free).then(|| Record {
            offset: offset as u32,
            advance: advance as u32,
            next: (offset + need) as u32,
        })
    }

    /// Payload room for up to `most` bytes, but no tiny leftovers; `None` when there is none now.
    #[inline]
    pub(crate) fn reserve_some(&self, most: usize) -> Option<(Record, usize)> {
        const WORTHWHILE: usize = 2048;
        let free = PAYLOAD_BYTES - self.taken.wrapping_sub(self.freed) as usize;
        let here = free.min(PAYLOAD_BYTES - self.next as usize);
        let len = if here >= most.min(WORTHWHILE) {
            most.min(here)
        } else {
            most.min(free.saturating_sub(PAYLOAD_BYTES - self.next as usize))
        };
        if len < most.min(WORTHWHILE) {
            return None;
        }
        self.reserve(len).map(|record| (record, len))
    }

    /// Has the lines brought here that a record as long as this will be filled in if it comes next.
    pub(crate) fn expect(&self, len: usize) {
        if let Some(record) = self.reserve(len) {
            let start = self.record_ptr(record);
            for line in (0..len).step_by(LINE) {
                prefetch_to_write(start.wrapping_add(line));
            }
        }
    }

    /// Where a record is filled.
    #[inline(always)]
    pub(crate) fn record_ptr(&self, record: Record) -> *mut u8 {
        // SAFETY: `reserve` keeps offset and length within the payload ring.
        unsafe { self.payload.as_ptr().add(record.offset as usize) }
    }

    /// Slots published so far, modulo 2³².
    pub(crate) fn published(&self) -> u32 {
        self.head
    }

    /// Publishes a slot: `fill` writes what it needs of the body. The caller has seen a free slot.
    #[inline(always)]
    pub(crate) fn publish(&mut self, head: Head, fill: impl FnOnce(*mut u64)) {
        debug_assert!(self.has_slot(0));
        let position = self.head;
        self.taken_at[(position & MASK) as usize] = self.taken;
        // SAFETY: the index is masked; the slots stay mapped (see `new`).
        let slot = unsafe { &*self.slots.as_ptr().add((position & MASK) as usize) };
        slot.body.with_mut(|body| fill(body.cast()));
        self.head = position.wrapping_add(1);
        // Release pairs with the acquire in `Rx::peek`: the body, and the record that it names, are there.
        slot.word
            .store((head.0 << 16) | lap(position), Ordering::Release);
    }

    /// Publishes a slot that gives a record away.
    #[inline(always)]
    pub(crate) fn publish_record(
        &mut self,
        head: Head,
        record: Record,
        fill: impl FnOnce(*mut u64),
    ) {
        self.taken = self.taken.wrapping_add(record.advance);
        self.next = record.next;
        self.publish(head, fill);
    }
}

/// The consumer's side.
pub(crate) struct Rx {
    slots: NonNull<Slot>,
    progress: NonNull<Progress>,
    payload: NonNull<u8>,
    /// Slots consumed, and how many of them the producer was told of.
    head: u32,
    told: u32,
    /// Payload bytes consumed since.
    untold_bytes: u32,
    pressed: bool,
}

// SAFETY: as for `Tx`.
unsafe impl Send for Rx {}

/// A slot that the producer has published.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    /// What its publish word says.
    pub(crate) head: Head,
    slot: NonNull<Slot>,
}

impl Seen {
    /// The body, to copy out of; valid until the slot is consumed. The other process may write to it at any time.
    #[inline(always)]
    pub(crate) fn with_body<R>(&self, f: impl FnOnce(*const u64) -> R) -> R {
        // SAFETY: the slot stays mapped (see `Rx::new`).
        unsafe { self.slot.as_ref() }
            .body
            .with(|body| f(body.cast()))
    }

    /// The first `N` words of the body, each read once.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self) -> [u64; N] {
        const { assert!(N <= BODY_WORDS) };
        self.with_body(|body| {
            // SAFETY: a slot has `BODY_WORDS` words; volatile, for the other process may write to them.
            std::array::from_fn(|i| unsafe { body.add(i).read_volatile() })
        })
    }
}

impl Rx {
    /// # Safety
    ///
    /// As for [`Tx::new`], and this is the only consumer.
    pub(crate) unsafe fn new(
        slots: NonNull<Slot>,
        progress: NonNull<Progress>,
        payload: NonNull<u8>,
    ) -> Self {
        Self {
            slots,
            progress,
            payload,
            head: 0,
            told: 0,
            untold_bytes: 0,
            pressed: false,
        }
    }

    /// The next slot, if it has been published.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<Seen> {
        // SAFETY: the index is masked; the slots stay mapped (see `new`).
        let slot = unsafe { self.slots.add((self.head & MASK) as usize) };
        // SAFETY: as above. Acquire pairs with the release in `Tx::publish`.
        let word = unsafe { slot.as_ref() }.word.load(Ordering::Acquire);
        (word & 0xffff == lap(self.head)).then_some(Seen {
            head: Head(word >> 16),
            slot,
        })
    }

    /// The record of `len` bytes at `offset`, checked to lie in the payload ring.
    #[inline(always)]
    pub(crate) fn record(&self, offset: u32, len: usize) -> Result<*const u8, Broken> {
        let offset = offset as usize;
        if offset > PAYLOAD_BYTES || len > PAYLOAD_BYTES - offset {
            return Err(Broken("it sent a record outside its payload ring"));
        }
        // SAFETY: just checked.
        Ok(unsafe { self.payload.as_ptr().add(offset) })
    }

    /// The slot of the last `peek`, and `record_bytes` of payload, are done with. True when the producer should be
    /// told soon.
    #[inline(always)]
    pub(crate) fn consume(&mut self, record_bytes: usize) -> bool {
        self.head = self.head.wrapping_add(1);
        self.untold_bytes += record_bytes as u32;
        self.head.wrapping_sub(self.told) as usize >= SLOTS / 4
            || self.untold_bytes as usize >= PAYLOAD_BYTES / 8
    }

    /// Slots consumed so far, modulo 2³².
    pub(crate) fn consumed(&self) -> u32 {
        self.head
    }

    /// Whether there is something that the producer was not told.
    #[inline(always)]
    pub(crate) fn owes(&self) -> bool {
        self.head != self.told
    }

    /// Asks for envelopes only, or lifts that again; takes effect with the next `tell`.
    pub(crate) fn press(&mut self, pressed: bool) {
        self.pressed = pressed;
    }

    /// Tells the producer how far the consumer is.
    #[inline(always)]
    pub(crate) fn tell(&mut self) {
        self.told = self.head;
        self.untold_bytes = 0;
        let pressed = if self.pressed { PRESSED } else { 0 };
        // SAFETY: mapped as long as `self`. Release pairs with the acquire in `Tx::refresh`.
        unsafe { self.progress.as_ref() }
            .word
            .store(self.head as u64 | pressed, Ordering::Release);
    }

    /// Brings a slot that will be looked at soon closer, if one message has just been there: in a stream of them it has been
    /// written already. (In a ping-pong it was read a lap ago and lies in our cache: no harm.)
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        let ahead = self.head.wrapping_add(SLOTS as u32 / 8) & MASK;
        prefetch(self.slots.as_ptr().wrapping_add(ahead as usize));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    struct Memory {
        slots: Box<[Slot; SLOTS]>,
        progress: Box<Progress>,
        payload: Box<[u8; PAYLOAD_BYTES]>,
    }

    impl Memory {
        fn new() -> Self {
            Self {
                slots: Box::new(std::array::from_fn(|_| Slot {
                    word: AtomicU64::new(0),
                    body: UnsafeCell::new([0; BODY_WORDS]),
                })),
                progress: Box::new(Progress {
                    word: AtomicU64::new(0),
                }),
                payload: Box::new([0; PAYLOAD_BYTES]),
            }
        }

        fn rings(&mut self) -> (Tx, Rx) {
            let slots = NonNull::from(&mut *self.slots).cast();
            let progress = NonNull::from(&mut *self.progress);
            let payload = NonNull::from(&mut *self.payload).cast();
            // SAFETY: the memory outlives the rings in each test.
            unsafe {
                (
                    Tx::new(slots, progress, payload),
                    Rx::new(slots, progress, payload),
                )
            }
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Short(u64),
        Record(usize),
        Some(usize),
        Take(usize),
        Tell,
        Refresh,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => any::<u64>().prop_map(Step::Short),
            3 => (0usize..9000).prop_map(Step::Record),
            2 => (1usize..30_000).prop_map(Step::Some),
            4 => (1usize..20).prop_map(Step::Take),
            2 => Just(Step::Tell),
            2 => Just(Step::Refresh),
        ]
    }

    proptest! {
        /// Against a queue: everything comes out once, in order, unharmed, and there is room whenever the queue is empty.
        #[test]
        fn a_ring_is_a_queue(steps in prop::collection::vec(step(), 1..400)) {
            let mut memory = Memory::new();
            let (mut tx, mut rx) = memory.rings();
            let mut model: VecDeque<(u64, usize)> = VecDeque::new();
            let mut count = 0u64;
            let mut unread = 0usize;
            for s in steps {
                match s {
                    Step::Short(value) => {
                        if tx.has_slot(0) {
                            // SAFETY: a body has this word.
                            tx.publish(Head::new(1, 0, 0), |b| unsafe { *b = value });
                            model.push_back((value, 0));
                            unread += 1;
                        }
                    }
                    Step::Record(_) | Step::Some(_) => {
                        let found = match s {
                            Step::Record(len) => tx.reserve(len).map(|r| (r, len)),
                            Step::Some(most) => tx.reserve_some(most),
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
                    Step::Take(n) => {
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
                    Step::Tell => rx.tell(),
                    Step::Refresh => prop_assert!(tx.refresh().is_ok()),
                }
            }
            while rx.peek().is_some() {
                rx.consume(0);
            }
            rx.tell();
            prop_assert!(tx.refresh().is_ok());
            prop_assert!(tx.has_slot(SLOTS - 1));
            prop_assert!(tx.reserve_some(PAYLOAD_BYTES / 3).is_some());
            prop_assert!(tx.reserve(PAYLOAD_BYTES / 2).is_some());
        }
    }

    #[test]
    fn laps_go_on_beyond_their_number() {
        let mut memory = Memory::new();
        let (mut tx, mut rx) = memory.rings();
        for i in 0..(SLOTS as u64) * 70_000 {
            // SAFETY: a body has this word.
            tx.publish(Head::new(1, 0, 0), |b| unsafe { *b = i });
            assert_eq!(rx.peek().unwrap().words(), [i]);
            rx.consume(0);
            assert!(rx.peek().is_none());
            rx.tell();
            tx.refresh().unwrap();
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::status::{SLEEPS, Status, WANTS_ROOM, waker_fence};
    use crate::sync::fence;
    use loom::sync::Arc;
    use loom::thread;

    struct Memory {
        slots: [Slot; SLOTS],
        progress: Progress,
    }

    // SAFETY: shared as the segment is; loom checks the accesses.
    unsafe impl Send for Memory {}
    // SAFETY: as above.
    unsafe impl Sync for Memory {}

    impl Memory {
        fn new() -> Self {
            Self {
                slots: std::array::from_fn(|_| Slot {
                    word: AtomicU64::new(0),
                    body: UnsafeCell::new([0; BODY_WORDS]),
                }),
                progress: Progress {
                    word: AtomicU64::new(0),
                },
            }
        }

        /// # Safety
        ///
        /// The memory outlives both, and of each there is one.
        unsafe fn tx(&self) -> Tx {
            let (slots, progress) = (NonNull::from(&self.slots), NonNull::from(&self.progress));
            // SAFETY: the caller's promise; no records are used.
            unsafe { Tx::new(slots.cast(), progress, NonNull::dangling()) }
        }

        /// # Safety
        ///
        /// As above.
        unsafe fn rx(&self) -> Rx {
            let (slots, progress) = (NonNull::from(&self.slots), NonNull::from(&self.progress));
            // SAFETY: as above.
            unsafe { Rx::new(slots.cast(), progress, NonNull::dangling()) }
        }
    }

    /// A producer that found the ring full and goes to sleep is woken by the consumer, or has seen the room itself; and a
    /// consumer that sleeps, by what is then published. (With fences on both sides, as in the model of the status word.)
    #[test]
    fn who_waits_for_room_is_woken() {
        loom::model(|| {
            let shared = Arc::new((Memory::new(), Status::new()));
            // SAFETY: `shared` outlives it.
            let mut tx = unsafe { shared.0.tx() };
            for i in 0..SLOTS as u64 {
                // SAFETY: a body has this word.
                tx.publish(Head::new(1, 0, 0), |b| unsafe { *b = i });
            }
            let theirs = Arc::clone(&shared);
            let consumer = thread::spawn(move || {
                // SAFETY: `theirs` outlives it.
                let mut rx = unsafe { theirs.0.rx() };
                assert!(rx.peek().is_some(), "published before the thread began");
                rx.consume(0);
                rx.tell();
                waker_fence(true);
                theirs.1.load() & WANTS_ROOM != 0 && theirs.1.take_wish()
            });
            shared.1.sleep(SLEEPS | WANTS_ROOM);
            fence(Ordering::SeqCst);
            let sleeps = !tx.moved();
            let rang = consumer.join().unwrap();
            assert!(!sleeps || rang, "asleep with room, and nobody rings");
            assert!(tx.moved() || tx.has_slot(0));
        });
    }

    /// Every order in which two threads can run publish, consume and the count of what is consumed: each slot is read as
    /// it was written, and never written while it is read.
    #[test]
    fn slots_are_handed_over_whole() {
        loom::model(|| {
            let memory = Arc::new(Memory::new());
            const MESSAGES: u64 = 3;
            let theirs = Arc::clone(&memory);
            let consumer = thread::spawn(move || {
                // SAFETY: `theirs` outlives it.
                let mut rx = unsafe { theirs.rx() };
                for i in 0..MESSAGES {
                    while rx.peek().is_none() {
                        thread::yield_now();
                    }
                    let seen = rx.peek().unwrap();
                    // SAFETY: a body has this word.
                    assert_eq!(seen.with_body(|b| unsafe { *b }), i + 10);
                    rx.consume(0);
                    rx.tell();
                }
            });
            // SAFETY: `memory` outlives it.
            let mut tx = unsafe { memory.tx() };
            for i in 0..MESSAGES {
                while !tx.has_slot(0) {
                    tx.refresh().unwrap();
                    thread::yield_now();
                }
                // SAFETY: a body has this word.
                tx.publish(Head::new(1, 0, 0), |b| unsafe { *b = i + 10 });
            }
            consumer.join().unwrap();
        });
    }
}
