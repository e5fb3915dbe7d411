//! A buffer that peers reach by one-sided operations, and the accesses of this process to it.
//!
//! Peers write to such memory at any time, so no Rust reference to it may exist, and each access
//! is a copy. There are two kinds of writers:
//!
//! - *Threads of this process*, which move the bytes of one-sided operations. They do that with the
//!   lock of the domain alone, and each copy here holds that lock too: accesses of one process
//!   never race.
//! - *Devices, other processes, and the kernel*, which copies for a peer of this node, in this
//!   process or another (`docs/adr/0062`). Their accesses are outside of this program, as those of
//!   another process to shared memory are. So are those of a peer in this process that has mapped
//!   the memory a second time (`docs/adr/0067`). The copies here are atomic by bytes or words, so
//!   the compiler neither repeats nor invents an access, and each byte that is read is an old one
//!   or a new one.
//!
//! When the region has ended, nothing but this process reaches the memory: then it is a [`Buffer`]
//! again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::Buffer;
use crate::fabric::{Domain, Mr, MrAttr};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::flags::Rights;

const WORD: usize = size_of::<u64>();

/// A buffer that is a region of a domain: peers with its key reach it.
///
/// Dropping it ends the region, and then frees the memory. One that is forgotten keeps both.
pub struct SharedBuffer {
    // The region ends before the memory is freed.
    mr: Arc<dyn Mr>,
    buffer: Buffer,
    rights: Rights,
}

impl SharedBuffer {
    /// Registers a buffer with rights for peers.
    ///
    /// # Errors
    ///
    /// As [`Domain::register`]. `EINVAL` for an empty buffer, without a right, and for other rights.
    pub fn open(domain: &dyn Domain, mut buffer: Buffer, rights: Rights) -> Result<Self> {
        if buffer.is_empty() || rights.is_empty() || !Rights::all().contains(rights) {
            let what = format!("{} bytes for peers", buffer.len());
            return Err(Error::new(Errno::EINVAL, "register", what));
        }
        buffer.mr = None;
        let attr = MrAttr {
            backing: buffer.backing(),
            ..MrAttr::new(buffer.io(usize::MAX), rights.flags())
        };
        // SAFETY: the memory is freed after the region (`drop`, `close`). This value gives out no
        // reference to it, but for shared ones where peers have no right to write (`bytes`).
        let mr = unsafe { domain.register_region(&attr)? };
        Ok(Self { mr, buffer, rights })
    }

    /// The key by which peers reach it. Its places count from 0.
    pub fn key(&self) -> u64 {
        self.mr.key()
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The bytes; `None` if peers may write to them.
    pub fn bytes(&self) -> Option<&[u8]> {
        (!self.rights.contains(Rights::WRITE)).then_some(&self.buffer)
    }

    /// Copies bytes from `at` on. A byte that a peer writes meanwhile is an old one or a new one.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the region has no such bytes. `EBUSY`: the domain belongs to another thread.
    pub fn copy_out(&self, at: usize, into: &mut [u8]) -> Result<()> {
        let from = self.part(at, into.len())?.cast_const();
        self.still(|| {
            // SAFETY: the bytes are in the buffer, and `still` holds the threads of this process.
            unsafe { load_bytes(from, into) }
        })
    }

    /// Copies bytes to `at` and on. A peer that reads meanwhile gets each byte old or new.
    ///
    /// # Errors
    ///
    /// As [`copy_out`](Self::copy_out).
    pub fn copy_in(&mut self, at: usize, from: &[u8]) -> Result<()> {
        let to = self.part(at, from.len())?;
        self.still(|| {
            // SAFETY: as in `copy_out`.
            unsafe { store_bytes(from, to) }
        })
    }

    /// The word of 8 bytes at `at`, as a whole. All that a peer had written before it wrote the
    /// word is read by accesses after this one, where the peer's writes have an order.
    ///
    /// # Errors
    ///
    /// As [`copy_out`](Self::copy_out). `EINVAL` also for a place that is no multiple of 8.
    pub fn load(&self, at: usize) -> Result<u64> {
        let from = self.word(at)?;
        let mut word = 0;
        // SAFETY: the word is in the buffer, and aligned.
        self.still(|| word = unsafe { AtomicU64::from_ptr(from) }.load(Ordering::Acquire))?;
        Ok(word)
    }

    /// Writes the word of 8 bytes at `at`, as a whole.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn store(&mut self, at: usize, word: u64) -> Result<()> {
        let to = self.word(at)?;
        // SAFETY: as in `load`.
        self.still(|| unsafe { AtomicU64::from_ptr(to) }.store(word, Ordering::Release))
    }

    /// Ends the region. Afterwards nothing reads or writes the memory, so it is the caller's.
    pub fn close(self) -> Buffer {
        let Self { mr, buffer, .. } = self;
        drop(mr);
        buffer
    }

    fn part(&self, at: usize, len: usize) -> Result<*mut u8> {
        let has = self.buffer.len();
        match at.checked_add(len) {
            // The memory's own pointer: a reference would stand for exclusive access.
            Some(end) if end <= has => Ok(self.buffer.ptr.as_ptr().wrapping_add(at)),
            _ => {
                let what = format!("{len} bytes at {at} of a region of {has} bytes");
                Err(Error::new(Errno::EINVAL, "copy", what))
            }
        }
    }

    fn word(&self, at: usize) -> Result<*mut u64> {
        let word = self.part(at, WORD)?;
        if at % WORD != 0 {
            let what = format!("the word at {at} of a region");
            return Err(Error::new(Errno::EINVAL, "copy", what).mend("a multiple of 8 is a place"));
        }
        Ok(word.cast())
    }

    fn still(&self, mut access: impl FnMut()) -> Result<()> {
        (self.mr.with_parts_still(&mut access))
            .map_err(|error| Error::new(error.errno(), "copy", "bytes of a region"))
    }
}

impl std::fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bytes, key) = (self.len_bytes(), self.key());
        write!(f, "SharedBuffer of {bytes} bytes with key {key:#x}")
    }
}

/// The lengths of the pieces of a range: bytes up to the first word, words, the other bytes.
fn pieces(start: *const u8, len: usize) -> (usize, usize) {
    let head = start.align_offset(WORD).min(len);
    (head, head + (len - head) / WORD * WORD)
}

/// # Safety
///
/// As many bytes as `into` has are valid for reads, and no thread of this process writes to them.
unsafe fn load_bytes(from: *const u8, into: &mut [u8]) {
    let from = from.cast_mut();
    let (head, words) = pieces(from, into.len());
    let byte = |at: usize| {
        // SAFETY: the byte is one of the range.
        unsafe { AtomicU8::from_ptr(from.add(at)) }.load(Ordering::Relaxed)
    };
    for (at, to) in into[..head].iter_mut().enumerate() {
        *to = byte(at);
    }
    for (at, to) in into[head..words].chunks_exact_mut(WORD).enumerate() {
        // SAFETY: the word is one of the range, and aligned: the head ends at a word.
        let word = unsafe { AtomicU64::from_ptr(from.add(head + at * WORD).cast()) };
        to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    for (at, to) in into.iter_mut().enumerate().skip(words) {
        *to = byte(at);
    }
}

/// # Safety
///
/// As many bytes as `from` has are valid for writes, and no thread of this process uses them.
unsafe fn store_bytes(from: &[u8], to: *mut u8) {
    let (head, words) = pieces(to, from.len());
    let store = |at: usize, byte: u8| {
        // SAFETY: the byte is one of the range.
        unsafe { AtomicU8::from_ptr(to.add(at)) }.store(byte, Ordering::Relaxed);
    };
    for (at, &byte) in from[..head].iter().enumerate() {
        store(at, byte);
    }
    for (at, bytes) in from[head..words].chunks_exact(WORD).enumerate() {
        let word = bytes.try_into().map_or(0, u64::from_ne_bytes);
        // SAFETY: the word is one of the range, and aligned: the head ends at a word.
        let place = unsafe { AtomicU64::from_ptr(to.add(head + at * WORD).cast()) };
        place.store(word, Ordering::Relaxed);
    }
    for (at, &byte) in from.iter().enumerate().skip(words) {
        store(at, byte);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each byte of a range is copied, and no other.
        #[test]
        fn copies_are_of_their_range(at in 0usize..40, len in 0usize..60) {
            let mut memory = Buffer::copy_of(&[0xee; 128]).unwrap();
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let place = memory.as_mut_ptr().wrapping_add(at);
            // SAFETY: the range is in the buffer, which this thread alone uses.
            unsafe { store_bytes(&bytes, place) };
            prop_assert_eq!(&memory[at..at + len], &bytes[..]);
            prop_assert!(memory[..at].iter().chain(&memory[at + len..]).all(|&byte| byte == 0xee));
            let mut copy = vec![0; len];
            // SAFETY: as above.
            unsafe { load_bytes(memory.as_ptr().wrapping_add(at), &mut copy) };
            prop_assert_eq!(copy, bytes);
        }
    }
}
