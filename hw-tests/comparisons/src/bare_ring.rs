//! The limit of shared memory: two threads, a ring of the size and shape of a pair's in each
//! direction, two copies, and nothing else. No matching, no completions, no addresses, nothing that
//! ends. The time of ours beyond this limit is the time of these parts.

#![allow(
    unsafe_code,
    reason = "memory that two threads use by turns, without a lock"
)]

use std::cell::UnsafeCell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use ferro::cores;
use ferro::failure::{Failure, Result};

use crate::bench::Bench;
use crate::row::median;

/// Slots of a direction, and bytes of payload (`docs/shared-memory.md`).
const SLOTS: usize = 64;
const PAYLOAD: usize = 26_368;
/// The longest piece that a slot holds, and the longest piece of the payload.
const INLINE: usize = 48;
const PIECE: usize = 8_768;
/// Messages up to `FEW` bytes that take turns are copied so many bytes at a time, which is over
/// sooner (docs/benchmarks.md).
const AT_A_TIME: usize = 2_048;
const FEW: usize = 4_096;
/// Parts of a run, of which the median counts.
const BATCHES: u64 = 20;

/// Whether a bench has a known limit.
pub(crate) fn knows(bench: Bench) -> bool {
    matches!(bench, Bench::Latency | Bench::Bandwidth)
}

/// Measures once, in the unit of the bench.
///
/// # Errors
///
/// Where there are no two cores, or one can not be had.
pub(crate) fn measure(bench: Bench, size: usize, messages: u64, on: (usize, usize)) -> Result<f64> {
    if on.0 == on.1 {
        return Err(Failure::new("a bare ring needs two cores"));
    }
    let batch = (messages / BATCHES).max(1);
    let out = vec![1; size];
    let run = |mut side: RingSide<'_>, first: bool| -> Vec<f64> {
        let mut into = vec![0; size];
        let mut took = Vec::new();
        // Two more to begin with, which do not count.
        for _ in 0..BATCHES + 2 {
            let start = Instant::now();
            for _ in 0..batch {
                match (bench, first) {
                    (Bench::Latency, true) => {
                        side.send(&out);
                        side.receive(&mut into);
                    }
                    (Bench::Latency, false) => {
                        side.receive(&mut into);
                        side.send(&out);
                    }
                    (_, true) => side.send(&out),
                    (_, false) => side.receive(&mut into),
                }
            }
            took.push(start.elapsed().as_secs_f64() / batch as f64);
        }
        took.split_off(2)
    };
    let rings = || BareRing::new(size, bench == Bench::Latency);
    let [sender, receiver] = between_two([rings(), rings()], on, run)?;
    let middle = |times: &[f64]| median(times).unwrap_or(f64::NAN);
    Ok(match bench {
        Bench::Latency => middle(&sender) * 1e6 / 2.0,
        // The sender runs ahead by as many messages as the ring holds.
        _ => size as f64 / middle(&receiver) / 1e6,
    })
}

/// Has two threads, each on a core of its own, do something with the sides of two rings.
fn between_two<T: Send>(
    rings: [BareRing; 2],
    on: (usize, usize),
    run: impl Fn(RingSide<'_>, bool) -> T + Sync,
) -> Result<[T; 2]> {
    let (ready, is_alone) = (Barrier::new(2), AtomicBool::new(false));
    let on_core = |core: usize, first: bool| {
        let pinned = cores::pin(&[core]);
        is_alone.fetch_or(pinned.is_err(), Ordering::Relaxed);
        ready.wait();
        pinned?;
        if is_alone.load(Ordering::Relaxed) {
            // Each waits for the other one.
            return Err(Failure::new("the other side of the bare ring has no core"));
        }
        let (there, back) = match first {
            true => (&rings[0], &rings[1]),
            false => (&rings[1], &rings[0]),
        };
        Ok(run(RingSide::new(there, back), first))
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| on_core(on.1, false));
        let own = scope.spawn(|| on_core(on.0, true));
        let joined = |side: std::thread::ScopedJoinHandle<'_, Result<T>>| {
            let gone = |_| Failure::new("a thread of the bare ring is gone");
            side.join().map_err(gone).and_then(|result| result)
        };
        let (own, other) = (joined(own), joined(other));
        Ok([own?, other?])
    })
}

#[repr(align(64))]
struct RingSlot {
    /// Messages and pieces up to this one.
    word: AtomicU64,
    body: UnsafeCell<[u8; INLINE]>,
}

#[repr(align(128))]
struct CounterLine(AtomicU64);

/// One direction.
struct BareRing {
    slots: Vec<RingSlot>,
    taken: CounterLine,
    payload: UnsafeCell<Vec<u8>>,
    /// Bytes of a piece, and how many there are.
    piece: usize,
    pieces: u64,
    /// Bytes that are copied at a time.
    step: usize,
}

// SAFETY: `word` and `taken` say which thread may touch which part of the ring.
unsafe impl Sync for BareRing {}

impl BareRing {
    /// One for messages of a size, which take turns with those of the other direction, or follow
    /// each other.
    fn new(size: usize, takes_turns: bool) -> Self {
        let piece = size.clamp(1, PIECE).next_multiple_of(64);
        let slot = || RingSlot {
            word: AtomicU64::new(0),
            body: UnsafeCell::new([0; INLINE]),
        };
        Self {
            slots: (0..SLOTS).map(|_| slot()).collect(),
            taken: CounterLine(AtomicU64::new(0)),
            payload: UnsafeCell::new(vec![0; PAYLOAD]),
            piece,
            pieces: match size <= INLINE {
                true => SLOTS as u64,
                false => (PAYLOAD / piece).min(SLOTS) as u64,
            },
            step: match takes_turns && size <= FEW {
                true => AT_A_TIME,
                false => PIECE,
            },
        }
    }

    /// Where the `n`th piece lies.
    fn place(&self, n: u64, len: usize) -> *mut u8 {
        if len <= INLINE {
            return self.slots[n as usize % SLOTS].body.get().cast();
        }
        let at = (n % self.pieces) as usize * self.piece;
        debug_assert!(at + len <= PAYLOAD);
        // SAFETY: nobody has a reference to the vector, which is never changed; `at` is within it.
        unsafe { (*self.payload.get()).as_mut_ptr().add(at) }
    }
}

/// The part of the rings that one thread uses.
struct RingSide<'a> {
    to: &'a BareRing,
    sent: u64,
    free: u64,
    from: &'a BareRing,
    received: u64,
    told: u64,
}

impl<'a> RingSide<'a> {
    fn new(to: &'a BareRing, from: &'a BareRing) -> Self {
        Self {
            to,
            sent: 0,
            free: to.pieces,
            from,
            received: 0,
            told: 0,
        }
    }

    #[inline]
    fn send(&mut self, message: &[u8]) {
        for piece in message.chunks(PIECE) {
            while self.sent == self.free {
                self.free = self.to.taken.0.load(Ordering::Acquire) + self.to.pieces;
            }
            let into = self.to.place(self.sent, piece.len());
            // SAFETY: the piece has the length, and its reader is done with what it held.
            unsafe { copy(piece.as_ptr(), into, piece.len(), self.to.step) };
            let slot = &self.to.slots[self.sent as usize % SLOTS];
            self.sent += 1;
            slot.word.store(self.sent, Ordering::Release);
        }
    }

    #[inline]
    fn receive(&mut self, message: &mut [u8]) {
        for piece in message.chunks_mut(PIECE) {
            let slot = &self.from.slots[self.received as usize % SLOTS];
            while slot.word.load(Ordering::Acquire) != self.received + 1 {
                std::hint::spin_loop();
            }
            let from = self.from.place(self.received, piece.len());
            // SAFETY: the piece has the length, and its writer is done with it.
            unsafe { copy(from, piece.as_mut_ptr(), piece.len(), self.from.step) };
            self.received += 1;
            let untold = self.received - self.told;
            if untold >= self.from.pieces / 4 || untold as usize * self.from.piece >= PAYLOAD / 8 {
                self.told = self.received;
                self.from.taken.0.store(self.told, Ordering::Release);
            }
        }
    }
}

/// Copies a piece, `step` bytes at a time.
///
/// # Safety
///
/// `from` is valid for reads and `to` for writes of `len` bytes.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize, step: usize) {
    if len == 8 {
        // SAFETY: the caller's promise.
        return unsafe {
            to.cast::<u64>()
                .write_unaligned(from.cast::<u64>().read_unaligned())
        };
    }
    for at in (0..len).step_by(step) {
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from.add(at), to.add(at), step.min(len - at)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out() {
        let on = cores::pair().unwrap();
        if on.0 == on.1 {
            eprintln!("SKIP: this process may use one core only");
            return;
        }
        for size in [1, 8, 48, 49, 4096, 8768, 8769, 65_536, 100_001] {
            let message = |n: usize| -> Vec<u8> { (0..size).map(|at| (at + n) as u8).collect() };
            // A thread that panicked would leave the other one waiting.
            let run = |mut side: RingSide<'_>, first: bool| {
                let mut into = vec![0; size];
                let is_spoilt = |n: &usize| match first {
                    true => {
                        side.send(&message(*n));
                        false
                    }
                    false => {
                        side.receive(&mut into);
                        into != message(*n)
                    }
                };
                (0..200).filter(is_spoilt).count()
            };
            let spoilt = between_two(
                [false, true].map(|turns| BareRing::new(size, turns)),
                on,
                run,
            )
            .unwrap();
            assert_eq!(spoilt, [0, 0], "messages of {size} bytes");
        }
    }

    #[test]
    fn a_round_trip_takes_time() {
        let on = cores::pair().unwrap();
        let half = measure(Bench::Latency, 8, 1000, on);
        assert_eq!(half.is_ok(), on.0 != on.1);
        assert!(half.is_err() || half.is_ok_and(|us| us > 0.001));
    }
}
