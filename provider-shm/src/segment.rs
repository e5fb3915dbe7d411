//! The memory that two endpoints share: one memfd for a pair, with both directions in it.
//!
//! The memfd is sealed against shrinking before its descriptor is sent, so no access can fault,
//! whatever the other process does. A hostile peer can damage its own pair only.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::shared_memory::{SIZE_SEALS, allocate};
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::hazard::Hazard;
use crate::ring::{LineSlot, PAYLOAD_BYTES, RingConsumer, RingProducer, RingProgress, SLOTS};
use crate::status::Status;

/// Size of a segment. An active pair, with the heap memory of both sides, takes less than 64 KiB
/// (`tests/integration/memory.rs`).
pub(crate) const SEGMENT_BYTES: usize = 61_440;

/// The memory of one direction.
#[repr(C)]
struct SegmentDirection {
    slots: [LineSlot; SLOTS],
    payload: [u8; PAYLOAD_BYTES],
}

/// The words of one side, each in a line of its own: the peer reads the second one hardly ever.
#[repr(C, align(128))]
struct SideWords {
    status: Status,
    hazard: Hazard,
}

#[repr(C)]
struct Layout {
    side: [SideWords; 2],
    progress: [RingProgress; 2],
    direction: [SegmentDirection; 2],
}

const _: () = assert!(size_of::<Layout>() <= SEGMENT_BYTES);

/// The side of a segment that an endpoint has: it produces in the direction of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentSide {
    /// The endpoint that connected and made the segment.
    Initiator = 0,
    /// The endpoint that accepted the connection.
    Acceptor = 1,
}

impl SegmentSide {
    /// The side of the peer.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Acceptor,
            Self::Acceptor => Self::Initiator,
        }
    }
}

/// A mapped segment.
#[derive(Debug)]
pub(crate) struct ShmSegment {
    map: MmapRaw,
}

impl ShmSegment {
    /// Makes a segment, with the descriptor to hand over.
    pub(crate) fn create() -> Result<(Self, OwnedFd)> {
        let fd = memfd_create(
            c"ferrofabric-pair",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )
        .map_err(|e| fail(e, "create"))?;
        allocate(fd.as_fd(), SEGMENT_BYTES).map_err(|e| fail(e, "size"))?;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SIZE_SEALS)).map_err(|e| fail(e, "seal"))?;
        Ok((Self::map(fd.as_fd())?, fd))
    }

    /// Maps the segment of another process, after a check of its seals and its size.
    pub(crate) fn accept(fd: BorrowedFd<'_>) -> Result<Self> {
        let refuse = |why: &str| {
            Error::new(
                Errno::EPROTO,
                "map",
                format!("a segment from another process: {why}"),
            )
        };
        let has = fcntl(fd, FcntlArg::F_GET_SEALS)
            .map_err(|_| refuse("it is not a memfd"))
            .map(SealFlag::from_bits_retain)?;
        if !has.contains(SIZE_SEALS) || has.intersects(SealFlag::F_SEAL_WRITE) {
            return Err(refuse("it is not sealed as it should be"));
        }
        let size = nix::sys::stat::fstat(fd)
            .map_err(|_| refuse("its size is unknown"))?
            .st_size;
        if size != SEGMENT_BYTES as i64 {
            return Err(refuse("it has the wrong size"));
        }
        allocate(fd, SEGMENT_BYTES).map_err(|e| fail(e, "allocate"))?;
        Self::map(fd)
    }

    fn map(fd: BorrowedFd<'_>) -> Result<Self> {
        MmapOptions::new()
            .len(SEGMENT_BYTES)
            .populate()
            .map_raw(fd.as_raw_fd())
            .map(|map| Self { map })
            .map_err(|e| Error::from_io(&e, "map", "the shared memory of a pair of endpoints"))
    }

    fn layout(&self) -> *mut Layout {
        self.map.as_mut_ptr().cast()
    }

    /// The status word of a side.
    #[inline(always)]
    pub(crate) fn status(&self, side: SegmentSide) -> &Status {
        // SAFETY: the mapping has the layout's size and alignment, lives as long as `self`, and a
        // `Status` is an atomic.
        unsafe { &(*self.layout()).side[side as usize].status }
    }

    /// The hazard word of a side.
    #[inline]
    pub(crate) fn hazard(&self, side: SegmentSide) -> &Hazard {
        // SAFETY: as above; a `Hazard` is an atomic.
        unsafe { &(*self.layout()).side[side as usize].hazard }
    }

    /// The rings as `side` uses them: the ring that it sends in, the ring that it receives from.
    ///
    /// # Safety
    ///
    /// One call for each side that this process is; the segment outlives the rings.
    pub(crate) unsafe fn rings(&self, side: SegmentSide) -> (RingProducer, RingConsumer) {
        let (own, peer) = (side as usize, 1 - side as usize);
        // SAFETY: the caller's contract; the pointers lead into the mapping, which `layout`
        // describes.
        unsafe {
            let (slots, progress, payload) = self.parts(own);
            let tx = RingProducer::new(slots, progress, payload);
            let (slots, progress, payload) = self.parts(peer);
            (tx, RingConsumer::new(slots, progress, payload))
        }
    }

    /// The rings of an endpoint that sends to itself: it receives from the ring that it sends in.
    ///
    /// # Safety
    ///
    /// As for [`Self::rings`].
    pub(crate) unsafe fn loopback(&self) -> (RingProducer, RingConsumer) {
        // SAFETY: the caller's contract.
        unsafe {
            let (slots, progress, payload) = self.parts(0);
            (
                RingProducer::new(slots, progress, payload),
                RingConsumer::new(slots, progress, payload),
            )
        }
    }

    fn parts(&self, direction: usize) -> (NonNull<LineSlot>, NonNull<RingProgress>, NonNull<u8>) {
        let layout = self.layout();
        // SAFETY: `direction` is 0 or 1; the fields lie within the mapping, which is not at
        // address 0.
        unsafe {
            let part = &raw mut (*layout).direction[direction];
            (
                NonNull::new_unchecked((&raw mut (*part).slots).cast()),
                NonNull::new_unchecked(&raw mut (*layout).progress[direction]),
                NonNull::new_unchecked((&raw mut (*part).payload).cast()),
            )
        }
    }
}

fn fail(e: nix::Error, doing: &'static str) -> Error {
    Error::new(
        Errno(e as i32),
        doing,
        "the shared memory of a pair of endpoints",
    )
    .mend("free memory, or turn shared memory off")
}

#[cfg(any(test, feature = "fuzzing"))]
impl ShmSegment {
    /// A word of a slot, for tests that play the other side.
    pub(crate) fn slot_word(&self, side: SegmentSide, slot: usize, word: usize) -> *mut u64 {
        assert!(slot < SLOTS && word < 8);
        let (slots, ..) = self.parts(side as usize);
        // SAFETY: just checked.
        unsafe { slots.as_ptr().add(slot).cast::<u64>().add(word) }
    }

    /// The hazard word of a side.
    pub(crate) fn hazard_word(&self, side: SegmentSide) -> *mut u64 {
        std::ptr::from_ref(self.hazard(side)).cast_mut().cast()
    }

    /// The word in which the consumer publishes its progress in the ring that `side` sends in.
    pub(crate) fn progress_word(&self, side: SegmentSide) -> *mut u64 {
        self.parts(side as usize).1.as_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memfd(size: i64, seal: SealFlag) -> OwnedFd {
        let fd =
            memfd_create(c"test", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&fd, size).unwrap();
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seal)).unwrap();
        fd
    }

    #[test]
    fn a_segment_is_shared_by_its_descriptor() {
        let (ours, fd) = ShmSegment::create().unwrap();
        let theirs = ShmSegment::accept(fd.as_fd()).unwrap();
        ours.status(SegmentSide::Initiator).close();
        assert_eq!(
            theirs.status(SegmentSide::Initiator).load(),
            crate::status::CLOSED
        );
        assert_eq!(theirs.status(SegmentSide::Acceptor).load(), 0);
    }

    /// From now on the kernel finds no memory for the files of the calling thread.
    fn take_memory_away() {
        let code = |code: u32, jt, jf, k| libc::sock_filter {
            code: code as u16,
            jt,
            jf,
            k,
        };
        let no_memory = libc::SECCOMP_RET_ERRNO | libc::ENOSPC as u32;
        let mut program = [
            // The number of the call lies first.
            code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            code(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                0,
                1,
                libc::SYS_fallocate as u32,
            ),
            code(libc::BPF_RET | libc::BPF_K, 0, 0, no_memory),
            code(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let filter = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_mut_ptr(),
        };
        // SAFETY: sets a flag of the calling thread.
        let unprivileged = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        // SAFETY: the kernel copies the program, which is there during the call.
        let filtered = unsafe {
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const filter,
            )
        };
        assert_eq!((unprivileged, filtered), (0, 0));
    }

    #[test]
    fn missing_memory_is_detected_before_the_first_access() {
        let thread = std::thread::spawn(|| {
            let theirs = memfd(SEGMENT_BYTES as i64, SIZE_SEALS);
            take_memory_away();
            [
                ShmSegment::create().map(drop),
                ShmSegment::accept(theirs.as_fd()).map(drop),
            ]
        });
        for outcome in thread.join().unwrap() {
            assert_eq!(outcome.map_err(|e| e.errno()), Err(Errno::ENOSPC));
        }
    }

    #[test]
    fn memory_that_could_fault_later_is_refused() {
        let size = SEGMENT_BYTES as i64;
        for (fd, why) in [
            (memfd(size, SealFlag::F_SEAL_GROW), "sealed"),
            (memfd(size, SIZE_SEALS | SealFlag::F_SEAL_WRITE), "sealed"),
            (memfd(size - 4096, SIZE_SEALS), "size"),
            (memfd(size * 2, SIZE_SEALS), "size"),
            (std::fs::File::open("/dev/zero").unwrap().into(), "memfd"),
        ] {
            let error = ShmSegment::accept(fd.as_fd()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
