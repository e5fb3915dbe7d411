//! Memory that goes between messages and is there anew at the same address: what counts is what lies there when a message is sent.

use std::ptr;

use ferrofabric_core::fabric::RecvOp;
use ferrofabric_core::types::{IoBuf, MsgKind};

use crate::ends::{Pair, any_tagged};
use crate::fabric::Fabric;

/// Long enough for what is not copied on its way.
const LONG: usize = 640 << 10;

/// What a receive's buffer holds before.
const EMPTY: u8 = 0xee;

/// Memory from the system, in whole pages.
struct Mapping {
    at: *mut u8,
    len: usize,
}

/// How memory goes and is there anew, all zero, at the same place, unless another thread takes it between.
type Renewal = (&'static str, fn(&mut Mapping));

const RENEWALS: [Renewal; 5] = [
    ("is not", |_| {}),
    ("is unmapped and mapped", |memory| {
        memory.unmap();
        memory.map(0);
    }),
    ("is mapped over", |memory| memory.map(libc::MAP_FIXED)),
    ("is given up", |memory| {
        // SAFETY: the mapping is ours, and nobody refers to it.
        let done = unsafe { libc::madvise(memory.at.cast(), memory.len, libc::MADV_DONTNEED) };
        assert_eq!(done, 0);
    }),
    ("is moved away and mapped", |memory| {
        let elsewhere = Mapping::new(memory.len);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (from, to) = (memory.at.cast(), elsewhere.at.cast::<libc::c_void>());
        // SAFETY: both mappings are ours, and nobody refers to them.
        let at = unsafe { libc::mremap(from, memory.len, memory.len, flags, to) };
        assert_eq!(at, to);
        memory.map(0);
    }),
];

impl Mapping {
    fn new(len: usize) -> Self {
        let mut memory = Self {
            at: ptr::null_mut(),
            len,
        };
        memory.map(0);
        memory
    }

    fn map(&mut self, flags: i32) {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
        // SAFETY: new memory, or in place of our own, to which nobody refers.
        let at = unsafe { libc::mmap(self.at.cast(), self.len, rights, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        self.at = at.cast();
    }

    fn unmap(&self) {
        // SAFETY: the mapping is ours, and nobody refers to it.
        assert_eq!(unsafe { libc::munmap(self.at.cast(), self.len) }, 0);
    }

    fn fill(&self, byte: u8) {
        // SAFETY: mapped, and nobody uses it now.
        unsafe { ptr::write_bytes(self.at, byte, self.len) };
    }

    /// Where it first holds something else.
    fn differs(&self, byte: u8) -> Option<usize> {
        // SAFETY: mapped, and nobody writes it now.
        let bytes = unsafe { std::slice::from_raw_parts(self.at, self.len) };
        bytes.iter().position(|b| *b != byte)
    }

    fn whole(&self) -> IoBuf {
        IoBuf::new(self.at, self.len)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.unmap();
    }
}

/// Message after message between the same addresses, of memory that goes in between in each way there is, at the sender, at the
/// receiver: each brings what lay there when it was sent to where its receive is.
///
/// Covers: PEER-8
pub fn memory_that_goes_between_messages(fabric: &Fabric) {
    let len = LONG.min(fabric.longest) / 4096 * 4096;
    for (a, b) in fabric.paths() {
        let pair = Pair::open(fabric.domain(a), fabric.domain(b));
        let (mut from, mut into) = (Mapping::new(len), Mapping::new(len));
        let mut number = 0u8;
        for (way, renew) in RENEWALS {
            for senders in [true, false, false, true] {
                number += 1;
                renew(if senders { &mut from } else { &mut into });
                from.fill(number);
                into.fill(EMPTY);
                let recv = RecvOp {
                    kind: MsgKind::Tagged,
                    ..any_tagged(pair.b.context())
                };
                pair.b.recv(&recv, &[into.whole()]).unwrap();
                let send = pair.tagged(u64::from(number));
                pair.send_list(&send, &[from.whole()]);
                pair.wait(&pair.a.tx, send.context).unwrap();
                let received = pair.wait(&pair.b.rx, recv.context).unwrap();
                let what = format!("{way} anew before message {number} of {len} bytes");
                assert_eq!(
                    (received.tag, received.len),
                    (u64::from(number), len),
                    "{what}"
                );
                assert_eq!(into.differs(number), None, "{what}");
            }
        }
    }
}
