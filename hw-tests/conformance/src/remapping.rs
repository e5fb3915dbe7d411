//! Memory that is unmapped between operations and mapped anew at the same address: each send, write
//! and read transmits the content at its time.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MsgKind, RecvOp, RmaKind, RmaOp, SendOp};
use ferrofabric_runtime::fabric::{Domain, Mr, MrAttr};

use crate::ends::{QueuedPair, any_tagged};
use crate::fabric::Fabric;
use crate::target::{BOTH, KEY, Target, close_beside};

/// Long enough for zero copy.
const LONG: usize = 640 << 10;

/// The content of a receive's buffer before the receive.
const EMPTY: u8 = 0xee;

/// The backing of a mapping.
enum Backing {
    /// Nothing: it is this process's alone.
    Private,
    /// It is a shared mapping of a file.
    File(File),
    /// A segment of System V's, which is no more when it is detached.
    Segment,
}

/// Memory from the system, in whole pages.
struct RemappableMemory {
    at: *mut u8,
    len: usize,
    backing: Backing,
}

/// How memory goes and is there anew, all zero, at the same place, unless another thread takes it
/// between.
type Renewal = (&'static str, fn(&mut RemappableMemory));

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
        let elsewhere = RemappableMemory::new(memory.len);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (from, to) = (memory.at.cast(), elsewhere.at.cast::<libc::c_void>());
        // SAFETY: both mappings are ours, and nobody refers to them.
        let at = unsafe { libc::mremap(from, memory.len, memory.len, flags, to) };
        assert_eq!(at, to);
        memory.map(0);
    }),
];

/// The ways in which memory stays where it is.
const OF_REGISTERED: [Renewal; 3] = [RENEWALS[0], RENEWALS[2], RENEWALS[3]];

/// The same for shared memory: its pages go for all who map them.
const OF_REGISTERED_SHARED: [Renewal; 3] = [
    RENEWALS[0],
    RENEWALS[2],
    ("is removed", |memory| {
        // SAFETY: the mapping is ours, and nobody refers to it.
        let done = unsafe { libc::madvise(memory.at.cast(), memory.len, libc::MADV_REMOVE) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }),
];

/// How the pages of a file go, all of them, while it stays mapped.
const PUNCHES: [Renewal; 3] = [
    ("is not", |_| {}),
    ("is punched through its descriptor", |memory| {
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the descriptor is our own, and there are no references into the mapping.
        let rc = unsafe { libc::fallocate(memory.descriptor(), how, 0, memory.len as i64) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }),
    (
        "is cut short through its descriptor, and as long as before",
        |memory| {
            for len in [0, memory.len as i64] {
                // SAFETY: the descriptor is our own, and there are no references into the mapping.
                assert_eq!(unsafe { libc::ftruncate(memory.descriptor(), len) }, 0);
            }
        },
    ),
];

/// How a segment goes, and another one is there at its place.
const DETACHMENTS: [Renewal; 3] = [
    ("is not", |_| {}),
    ("is detached, and another attached", |memory| {
        memory.unmap();
        memory.map(0);
    }),
    ("is attached over", |memory| memory.map(libc::MAP_FIXED)),
];

impl RemappableMemory {
    fn new(len: usize) -> Self {
        Self::backed(len, Backing::Private)
    }

    fn backed(len: usize, backing: Backing) -> Self {
        let mut memory = Self {
            at: ptr::null_mut(),
            len,
            backing,
        };
        memory.map(0);
        memory
    }

    /// A segment of System V's.
    fn segment(len: usize) -> Self {
        Self::backed(len, Backing::Segment)
    }

    /// Memory of a file without a name, shared with all holders of its descriptor.
    fn shared(len: usize) -> Self {
        // SAFETY: takes a name and flags, and what it gives is nobody else's.
        let file = unsafe {
            let file = libc::memfd_create(c"shared".as_ptr(), libc::MFD_CLOEXEC);
            assert!(file >= 0, "{}", std::io::Error::last_os_error());
            File::from_raw_fd(file)
        };
        file.set_len(len as u64).unwrap();
        Self::backed(len, Backing::File(file))
    }

    fn descriptor(&self) -> i32 {
        match &self.backing {
            Backing::File(file) => file.as_raw_fd(),
            Backing::Private | Backing::Segment => -1,
        }
    }

    /// Attaches a new segment.
    fn attach(&mut self, flags: i32) {
        let over = match flags & libc::MAP_FIXED {
            0 => 0,
            _ => libc::SHM_REMAP,
        };
        // SAFETY: a new segment, which goes with its last attachment, at a free place or in place
        // of our own, to which nobody refers.
        let at = unsafe {
            let segment = libc::shmget(libc::IPC_PRIVATE, self.len, 0o600);
            assert!(segment >= 0, "{}", std::io::Error::last_os_error());
            let mut at = libc::shmat(segment, self.at.cast(), over);
            if at as isize == -1 && over == 0 {
                // Another thread has taken the place.
                at = libc::shmat(segment, ptr::null(), 0);
            }
            libc::shmctl(segment, libc::IPC_RMID, ptr::null_mut());
            at
        };
        assert_ne!(at as isize, -1, "{}", std::io::Error::last_os_error());
        self.at = at.cast();
    }

    fn map(&mut self, flags: i32) {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags
            | match self.backing {
                Backing::Private => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                Backing::File(_) => libc::MAP_SHARED,
                Backing::Segment => return self.attach(flags),
            };
        let file = self.descriptor();
        // SAFETY: new memory, or in place of our own, to which nobody refers.
        let at = unsafe { libc::mmap(self.at.cast(), self.len, rights, flags, file, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        self.at = at.cast();
    }

    fn unmap(&self) {
        // SAFETY: the mapping is ours, and nobody refers to it.
        let rc = unsafe {
            match self.backing {
                Backing::Segment => libc::shmdt(self.at.cast()),
                Backing::Private | Backing::File(_) => libc::munmap(self.at.cast(), self.len),
            }
        };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
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

impl Drop for RemappableMemory {
    fn drop(&mut self) {
        self.unmap();
    }
}

/// Message after message between the same addresses, of memory that goes in between in each way
/// there is, at the sender, at the receiver: each brings what lay there when it was sent to where
/// its receive is.
///
/// Covers: PEER-8
pub fn memory_that_goes_between_messages(fabric: &Fabric) {
    messages_between(fabric, RemappableMemory::new, &RENEWALS);
}

/// The same for memory that is shared, whose pages anybody takes away who has its descriptor.
///
/// Covers: PEER-8
pub fn shared_memory_that_is_punched_between_messages(fabric: &Fabric) {
    messages_between(fabric, RemappableMemory::shared, &PUNCHES);
}

/// The same for segments of System V's.
///
/// Covers: PEER-8
pub fn segments_that_are_detached_between_messages(fabric: &Fabric) {
    messages_between(fabric, RemappableMemory::segment, &DETACHMENTS);
}

fn messages_between(fabric: &Fabric, map: fn(usize) -> RemappableMemory, renewals: &[Renewal]) {
    let len = LONG.min(fabric.longest) / 4096 * 4096;
    for (a, b) in fabric.paths() {
        let pair = QueuedPair::open(fabric.domain(a), fabric.domain(b));
        let (mut from, mut into) = (map(len), map(len));
        let mut number = 0u8;
        for (way, renew) in renewals {
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

/// One-sided operations that a scenario has on each path.
const OPERATIONS: usize = 150;

/// Of so many operations, one has a child of a fork beside it, which has the same pages.
const BETWEEN_FORKS: usize = 50;

/// As `memory_that_goes_between_messages`, of reads and writes, whose local buffer or region goes.
pub fn memory_that_goes_between_one_sided_operations(fabric: &Fabric) {
    operations_between(fabric, RemappableMemory::new, &RENEWALS, OPERATIONS);
}

/// As `shared_memory_that_is_punched_between_messages`, of reads and writes.
pub fn shared_memory_that_is_punched_between_one_sided_operations(fabric: &Fabric) {
    operations_between(fabric, RemappableMemory::shared, &PUNCHES, OPERATIONS);
}

/// As `segments_that_are_detached_between_messages`, of reads and writes.
pub fn segments_that_are_detached_between_one_sided_operations(fabric: &Fabric) {
    operations_between(fabric, RemappableMemory::segment, &DETACHMENTS, OPERATIONS);
}

/// So many operations on memory that goes, a third of them of each kind of memory.
pub fn one_sided_operations_on_memory_that_goes(fabric: &Fabric, operations: usize) {
    operations_between(fabric, RemappableMemory::new, &RENEWALS, operations / 3);
    operations_between(fabric, RemappableMemory::shared, &PUNCHES, operations / 3);
    operations_between(
        fabric,
        RemappableMemory::segment,
        &DETACHMENTS,
        operations / 3,
    );
}

/// Operation after operation between memory of the same addresses, most of them short, while
/// another thread maps and unmaps, too.
fn operations_between(
    fabric: &Fabric,
    map: fn(usize) -> RemappableMemory,
    renewals: &[Renewal],
    operations: usize,
) {
    if !fabric.offers(Flags::RMA) {
        return println!("NOT OFFERED: {}: FI_RMA", fabric.name);
    }
    let long = LONG.min(fabric.longest) / 4096 * 4096;
    for (a, b) in fabric.paths() {
        let (a, b) = (fabric.domain(a), fabric.domain(b));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let _ends = EndOfChurn(&is_over);
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let memory = RemappableMemory::new(8192);
                    memory.fill(0xaa);
                    drop(memory);
                    std::thread::yield_now();
                }
            });
            for (len, share) in [(8192, 90), (65_536, 9), (long, 1)] {
                let mut between = OperationsBetween::open(a, b, map, len.min(long));
                let count = (operations * share / 100).max(4 * renewals.len());
                (0..count).for_each(|number| between.operate(renewals, number));
            }
        });
    }
}

/// As `memory_that_goes_between_one_sided_operations`, of memory that stays registered meanwhile, at
/// the target and at the initiator, whose operations name its descriptor.
///
/// Covers: GI-2
pub fn registered_memory_that_goes_between_operations(fabric: &Fabric) {
    registered_between(fabric, RemappableMemory::new, &OF_REGISTERED);
    registered_between(fabric, RemappableMemory::shared, &OF_REGISTERED_SHARED);
}

/// Operations on memory of each length, each with its region, some of which a device carries out:
/// the region of the target is granted to it between two changes.
fn registered_between(fabric: &Fabric, map: fn(usize) -> RemappableMemory, renewals: &[Renewal]) {
    if !fabric.offers(Flags::RMA) {
        return println!("NOT OFFERED: {}: FI_RMA", fabric.name);
    }
    for (a, b) in fabric.paths() {
        let (a, b) = (fabric.domain(a), fabric.domain(b));
        for len in [8192, 65_536.min(fabric.longest)] {
            let mut between = OperationsBetween::open(a, b, map, len);
            let local = between.register_local(a);
            for (number, (way, renew)) in
                renewals.iter().cycle().take(4 * renewals.len()).enumerate()
            {
                between.await_device(!local.desc().is_none());
                let kind = [RmaKind::Write, RmaKind::Read][number / renewals.len() % 2];
                match number / renewals.len() < 2 {
                    true => renew(&mut between.remote),
                    false => renew(&mut between.local),
                }
                // The peers of an application that has made no call since may be faster than its
                // threads.
                between.target.pair.b.rx.pump();
                let byte = number as u8 + 1;
                let (from, into) = match kind {
                    RmaKind::Write => (&between.local, &between.remote),
                    RmaKind::Read => (&between.remote, &between.local),
                };
                from.fill(byte);
                into.fill(EMPTY);
                let op = RmaOp {
                    desc: local.desc(),
                    ..between.target.op(kind, 0)
                };
                between.target.done(&op, &[between.local.whole()]);
                let what =
                    format!("{kind:?} {number} of {len} bytes, whose registered memory {way} anew");
                assert_eq!(into.differs(byte), None, "{what}");
                assert_eq!(from.differs(byte), None, "{what}");
                between.send_described(&local, byte, &what);
            }
            let changed = between.target.stat("verbs_regions_changed");
            assert!(local.desc().is_none() || changed > 0, "registered once");
            drop(local);
        }
    }
}

/// Ends the other thread, also when an operation fails.
struct EndOfChurn<'a>(&'a AtomicBool);

impl Drop for EndOfChurn<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Memory of an initiator and of a target.
struct OperationsBetween<'a> {
    // Closed before its memory goes.
    region: Option<Arc<dyn Mr>>,
    target: Target<'a>,
    local: RemappableMemory,
    remote: RemappableMemory,
}

impl<'a> OperationsBetween<'a> {
    fn open(
        a: &dyn Domain,
        b: &'a dyn Domain,
        map: fn(usize) -> RemappableMemory,
        len: usize,
    ) -> Self {
        let mut between = Self {
            region: None,
            target: Target::open(a, b),
            local: map(len),
            remote: map(len),
        };
        between.register();
        between
    }

    /// Registers the target's memory anew.
    fn register(&mut self) {
        let request = MrAttr {
            key: Some(KEY),
            pages_may_change: true,
            ..MrAttr::new(self.remote.whole(), BOTH)
        };
        // SAFETY: the memory is unmapped after the region has closed, and lives that long.
        let region = unsafe { self.target.domain.register_region(&request) };
        self.region = Some(region.unwrap());
    }

    /// Registers the initiator's memory for its own operations.
    fn register_local(&self, domain: &dyn Domain) -> Arc<dyn Mr> {
        let rights = Flags::SEND | Flags::RECV | Flags::READ | Flags::WRITE;
        let request = MrAttr {
            pages_may_change: true,
            ..MrAttr::new(self.local.whole(), rights)
        };
        // SAFETY: the memory lives longer than the region; what is unmapped of it is there again
        // before an operation names it.
        unsafe { domain.register_region(&request) }.unwrap()
    }

    /// Writes until a device does it, where the endpoints have a connection. A query that came while
    /// pages went is repeated after 1024 operations.
    fn await_device(&self, is_registered: bool) {
        let before = self.target.by_device();
        for _ in 0..10_000 {
            let op = self.target.op(RmaKind::Write, 0);
            self.target.done(&op, &[self.local.whole().part(0, 8)]);
            let has_lane = self.target.stat("verbs_rc_lanes_now") > 0;
            if self.target.by_device() > before || !is_registered || !has_lane {
                return;
            }
            self.target.pair.drive();
        }
        panic!("no operation went by a device");
    }

    /// Sends the initiator's memory by its descriptor, and receives into it.
    fn send_described(&self, local: &Arc<dyn Mr>, byte: u8, what: &str) {
        let pair = &self.target.pair;
        let recv = RecvOp {
            kind: MsgKind::Tagged,
            ..any_tagged(pair.b.context())
        };
        let into = pair.b.memory(self.local.len, 0);
        pair.b.recv(&recv, &[into]).unwrap();
        let send = SendOp {
            desc: local.desc(),
            ..pair.tagged(u64::from(byte))
        };
        self.local.fill(byte);
        pair.send_list(&send, &[self.local.whole()]);
        pair.wait(&pair.a.tx, send.context).unwrap();
        pair.wait(&pair.b.rx, recv.context).unwrap();
        let bytes = pair.b.bytes(into.addr, into.len);
        assert!(bytes.iter().all(|at| *at == byte), "sent after: {what}");
    }

    /// Renews one side's memory, and has an operation bring what lies there then.
    fn operate(&mut self, renewals: &[Renewal], number: usize) {
        let (way, renew) = renewals[number / 4 % renewals.len()];
        let kind = [RmaKind::Write, RmaKind::Read][number % 2];
        if number / 2 % 2 == 0 {
            renew(&mut self.local);
        } else {
            if let Some(region) = self.region.take() {
                close_beside(region, &self.target.pair.a);
            }
            renew(&mut self.remote);
            self.register();
        }
        let child = (number % BETWEEN_FORKS == 0).then(StoppedChild::fork);
        let byte = (number % 200) as u8 + 1;
        let (from, into) = match kind {
            RmaKind::Write => (&self.local, &self.remote),
            RmaKind::Read => (&self.remote, &self.local),
        };
        from.fill(byte);
        into.fill(EMPTY);
        let op = self.target.op(kind, 0);
        self.target.done(&op, &[self.local.whole()]);
        let len = self.local.len;
        let what = format!("{kind:?} {number} of {len} bytes, whose memory {way} anew");
        assert_eq!(into.differs(byte), None, "{what}");
        assert_eq!(from.differs(byte), None, "{what}");
        drop(child);
    }
}

/// A child of this process that does nothing. Killed when dropped.
struct StoppedChild(libc::pid_t);

impl StoppedChild {
    fn fork() -> Self {
        // SAFETY: the child calls nothing but `pause`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", std::io::Error::last_os_error());
        if child == 0 {
            loop {
                // SAFETY: no arguments.
                unsafe { libc::pause() };
            }
        }
        Self(child)
    }
}

impl Drop for StoppedChild {
    fn drop(&mut self) {
        // SAFETY: the child is ours, and not waited for yet.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, ptr::null_mut(), 0);
        }
    }
}
