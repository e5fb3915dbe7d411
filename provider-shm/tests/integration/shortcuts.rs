//! One-sided operations that the initiator carries out by itself: where they happen, where they do
//! not, and the close of a region beside them.

use crate::party;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::ends::{PATIENCE, QueuedEndpoint, QueuedPair};
use ferrofabric_conformance::limits::settings;
use ferrofabric_conformance::reports::counter;
use ferrofabric_contracts::atomics::{
    AtomicBuffers, AtomicForm, AtomicOp, AtomicOperator, Datatype, MAX_ATOMIC_BYTES,
};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, RmaKind, RmaOp};
use ferrofabric_runtime::fabric::{CntrAttr, Domain, EndpointConfig, Mr, MrAttr, Provider};
use ferrofabric_shm::ShmProvider;
use ferrofabric_system::shared_memory::SharedMemory;
use party::{ChildProcess, await_line, print_line, role};

const KEY: u64 = 0x5eed;
const REGION: usize = 1 << 20;
const BOTH: Flags = Flags::REMOTE_READ.union(Flags::REMOTE_WRITE);

fn domain(cma: &str) -> Arc<dyn Domain> {
    let settings = settings(&[("FERRO_SHM_CMA", cma)]);
    let found = ShmProvider::new().discover(&settings);
    let provider = ShmProvider::new();
    provider.open(&found.candidates[0], &settings).unwrap()
}

fn register(domain: &dyn Domain, memory: IoBuf, key: u64) -> Arc<dyn Mr> {
    let request = MrAttr {
        key: Some(key),
        ..MrAttr::new(memory, BOTH)
    };
    // SAFETY: each test keeps the memory for longer than the region.
    unsafe { domain.register_region(&request) }.unwrap()
}

fn op(end: &QueuedEndpoint, kind: RmaKind, dest: FiAddr, place: usize) -> RmaOp {
    RmaOp {
        kind,
        dest,
        key: KEY,
        place: place as u64,
        data: 0,
        desc: MrDesc::NONE,
        context: end.context(),
        flags: Flags::COMPLETION,
    }
}

/// Bytes of a region, or of a buffer.
fn bytes(buf: IoBuf) -> Vec<u8> {
    // SAFETY: the memory lives as long as the test, and nothing is under way in it.
    unsafe { std::slice::from_raw_parts(std::hint::black_box(buf.as_ptr()), buf.len) }.to_vec()
}

/// The operations that an endpoint has carried out by itself: writes and reads.
fn carried_out(end: &QueuedEndpoint) -> (u64, u64) {
    let stats = end.endpoint.stats().unwrap();
    let of = |name| counter(&stats, name);
    (of("shm_rma_written"), of("shm_rma_read"))
}

/// An operation that is over when the call returns, without a step of the target.
fn alone(end: &QueuedEndpoint, op: &RmaOp, iov: &[IoBuf]) {
    // SAFETY: the buffers live as long as the endpoint.
    unsafe { end.endpoint.rma(op, iov) }.unwrap();
    end.tx.pump();
    let done = end.tx.take_of(op.context).expect("the target is needed");
    done.unwrap();
}

/// An operation that may need the target.
fn together(pair: &QueuedPair, op: &RmaOp, iov: &[IoBuf]) -> Option<Errno> {
    let begin = || {
        // SAFETY: the buffers live as long as the endpoint.
        match unsafe { pair.a.endpoint.rma(op, iov) } {
            Ok(()) => Some(()),
            Err(OpError::Again) => None,
            Err(error) => panic!("{error}"),
        }
    };
    pair.until("no room for an operation", begin);
    pair.wait(&pair.a.tx, op.context).err().map(|e| e.errno)
}

fn connect(
    a: &dyn Domain,
    b: &dyn Domain,
    differ_b: impl FnOnce(&mut EndpointConfig),
) -> QueuedPair {
    let a = QueuedEndpoint::open(a);
    let b = QueuedEndpoint::open_with(b, &AvAttr::default(), differ_b);
    let pair = QueuedPair::connect(a, b);
    // The link is there, and the route to it.
    for _ in 0..3 {
        pair.barrier();
    }
    pair
}

/// The kernel copies: the target takes no part, whatever the length and the buffers are.
#[test]
fn an_initiator_needs_no_step_of_the_target() {
    let (a, b) = (domain("on"), domain("auto"));
    let pair = connect(&*a, &*b, |_| {});
    let memory = pair.b.memory(REGION, 9);
    let _region = register(&*b, memory, KEY);
    let mut written = 0;
    for len in [0, 1, 8, 4096, 70_000, REGION - 5] {
        let from = pair.a.memory(len, len as u8 | 1);
        let cut = len / 3;
        let parts = [from.part(0, cut), from.part(cut, len - cut)];
        alone(&pair.a, &op(&pair.a, RmaKind::Write, pair.to_b, 5), &parts);
        assert_eq!(
            pair.b.bytes(memory.addr + 5, len),
            pair.a.bytes(from.addr, len)
        );
        let into = pair.a.memory(len, 0xee);
        let parts = [into.part(0, cut), into.part(cut, len - cut)];
        alone(&pair.a, &op(&pair.a, RmaKind::Read, pair.to_b, 5), &parts);
        assert_eq!(pair.a.bytes(into.addr, len), pair.a.bytes(from.addr, len));
        written += 1;
    }
    assert_eq!(carried_out(&pair.a), (written, written));
}

/// Messages carry the operations where the setting says so at either side, where the target counts
/// them, and where the memory is not that of the process alone.
#[test]
fn messages_carry_the_rest() {
    for (cma_a, cma_b) in [("off", "on"), ("on", "off")] {
        let (a, b) = (domain(cma_a), domain(cma_b));
        let pair = connect(&*a, &*b, |_| {});
        both_kinds(&pair, &*b, pair.b.memory(REGION, 9), (0, 0));
    }
    let (a, b) = (domain("on"), domain("on"));
    let cntr = b.open_cntr(&CntrAttr::default()).unwrap();
    let counts_writes = |config: &mut EndpointConfig| config.remote_write_cntr = Some(cntr.clone());
    let pair = connect(&*a, &*b, counts_writes);
    both_kinds(&pair, &*b, pair.b.memory(REGION, 9), (0, 1));
    assert_eq!(cntr.read().unwrap(), 2);

    // A file system could let the writer wait.
    let fd = nix::sys::memfd::memfd_create(c"test", nix::sys::memfd::MFdFlags::MFD_CLOEXEC);
    let fd = std::fs::File::from(fd.unwrap());
    fd.set_len(REGION as u64).unwrap();
    let map = memmap2::MmapOptions::new().populate().map_raw(&fd).unwrap();
    let pair = connect(&*a, &*b, |_| {});
    both_kinds(&pair, &*b, IoBuf::new(map.as_mut_ptr(), REGION), (0, 1));
}

/// A write and a read, of which the initiator carries out as many by itself.
fn both_kinds(pair: &QueuedPair, b: &dyn Domain, memory: IoBuf, by_itself: (u64, u64)) {
    let region = register(b, memory, KEY);
    let from = pair.a.memory(5000, 7);
    for kind in [RmaKind::Write, RmaKind::Read] {
        let op = op(&pair.a, kind, pair.to_b, 100);
        assert_eq!(together(pair, &op, &[from]), None);
        assert_eq!(bytes(memory.part(100, 5000)), [7; 5000]);
        // After a write that had to go as a message, so does the next operation.
        together(pair, &op, &[from]);
    }
    let (written, read) = carried_out(&pair.a);
    assert_eq!((written.min(1), read.min(1)), by_itself);
    drop(region);
}

/// A page that is not in memory comes by messages, and later operations do without again.
#[test]
fn missing_pages_come_by_messages() {
    let (a, b) = (domain("on"), domain("on"));
    let pair = connect(&*a, &*b, |_| {});
    let map = memmap2::MmapOptions::new().len(REGION).map_anon().unwrap();
    let memory = IoBuf::new(map.as_ptr(), REGION);
    let _region = register(&*b, memory, KEY);
    let from = pair.a.memory(100, 7);
    let write = || op(&pair.a, RmaKind::Write, pair.to_b, 0);
    assert_eq!(together(&pair, &write(), &[from]), None);
    assert_eq!(carried_out(&pair.a), (0, 0));
    // The message has brought the page, and one more goes behind it.
    together(&pair, &write(), &[from]);
    let begun = Instant::now();
    while carried_out(&pair.a) == (0, 0) {
        together(&pair, &write(), &[from]);
        assert!(begun.elapsed() < PATIENCE, "messages for ever");
    }
    assert_eq!(bytes(memory.part(0, 100)), [7; 100]);
}

/// More regions than the board has entries: each is reached, by one way or the other, and none
/// after its close.
#[test]
fn regions_beyond_the_board_are_reached() {
    let (a, b) = (domain("on"), domain("on"));
    let pair = connect(&*a, &*b, |_| {});
    let memory = pair.b.memory(1000, 0);
    let from = pair.a.memory(1, 1);
    let write = |key: usize| RmaOp {
        key: key as u64,
        ..op(&pair.a, RmaKind::Write, pair.to_b, 0)
    };
    let mut regions: Vec<_> = (0..1000)
        .map(|key| Some(register(&*b, memory.part(key, 1), key as u64)))
        .collect();
    for key in 0..1000 {
        assert_eq!(together(&pair, &write(key), &[from]), None);
    }
    assert_eq!(pair.b.bytes(memory.addr, 1000), [1; 1000]);
    let (written, _) = carried_out(&pair.a);
    assert!((300..=512).contains(&written), "{written}");
    for key in (0..1000).step_by(7) {
        regions[key] = None;
        assert_eq!(together(&pair, &write(key), &[from]), Some(Errno::EACCES));
    }
}

/// The roles of the child processes.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn party() {
    let by_atomics = match role().as_deref() {
        Some("writer") => false,
        Some("atomic writer") => true,
        _ => return,
    };
    let domain = domain("on");
    let end = QueuedEndpoint::open(&*domain);
    print_line(end.endpoint.name());
    let parent: ferrofabric_contracts::addr::NativeAddr = await_line().parse().unwrap();
    let dest = end.av.insert(&parent.to_bytes()).unwrap();
    let from = end.memory(REGION, 0xff);
    // From round to round, until a write is refused.
    loop {
        let ended = loop {
            let write = op(&end, RmaKind::Write, dest, 0);
            let begun = match by_atomics {
                // SAFETY: the memory lives as long as the endpoint.
                false => unsafe { end.endpoint.rma(&write, &[from]) },
                true => write_last_words(&end, &write, from),
            };
            match begun {
                Ok(()) => {}
                Err(OpError::Again) => {
                    end.tx.pump();
                    continue;
                }
                Err(error) => panic!("{error}"),
            }
            let done = loop {
                match end.tx.take_of(write.context) {
                    Some(done) => break done,
                    None => end.tx.pump(),
                }
            };
            if let Err(error) = done {
                break error;
            }
        };
        assert_eq!(ended.errno, Errno::EACCES);
        let stats = end.endpoint.stats().unwrap();
        let of = |name| counter(&stats, name);
        let atomics = of("atomics_mapped");
        print_line(format!(
            "{} {}",
            of("shm_rma_written") + atomics,
            of("shm_rma_mapped") + atomics
        ));
        if await_line() == "end" {
            return;
        }
    }
}

/// Writes to the last words of the region by an atomic operation.
fn write_last_words(end: &QueuedEndpoint, write: &RmaOp, from: IoBuf) -> Result<(), OpError> {
    let op = AtomicOp {
        form: AtomicForm::Base,
        operator: AtomicOperator::Write,
        datatype: Datatype::Uint64,
        dest: write.dest,
        key: write.key,
        place: (REGION - MAX_ATOMIC_BYTES) as u64,
        desc: MrDesc::NONE,
        context: write.context,
        flags: write.flags,
    };
    let buffers = AtomicBuffers {
        operands: &[from.part(0, MAX_ATOMIC_BYTES)],
        ..AtomicBuffers::default()
    };
    // SAFETY: the memory lives as long as the endpoint.
    unsafe { end.endpoint.atomic(&op, &buffers) }
}

struct Writer {
    child: ChildProcess,
    end: QueuedEndpoint,
    domain: Arc<dyn Domain>,
    memory: IoBuf,
    /// That memory, if the writer maps it.
    shared: Option<SharedMemory>,
}

/// The way in which the writer carries its writes out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Kernel,
    Mapping,
    AtomicMapping,
}

impl Writer {
    fn start(way: Way) -> Self {
        let domain = domain("on");
        let end = QueuedEndpoint::open(&*domain);
        let shared = (way != Way::Kernel).then(|| SharedMemory::new(REGION).unwrap());
        let memory = match &shared {
            None => end.memory(REGION, 0),
            Some(shared) => IoBuf::new(shared.as_ptr().as_ptr(), REGION),
        };
        let mut child = ChildProcess::start(match way {
            Way::Kernel | Way::Mapping => "writer",
            Way::AtomicMapping => "atomic writer",
        });
        end.av.insert(&child.read_name().to_bytes()).unwrap();
        Self {
            child,
            end,
            domain,
            memory,
            shared,
        }
    }

    fn begin(&mut self) -> Arc<dyn Mr> {
        let request = MrAttr {
            key: Some(KEY),
            backing: self.shared.as_ref().map(|shared| shared.backing(0)),
            ..MrAttr::new(self.memory, BOTH)
        };
        // SAFETY: the memory is there for longer than the region.
        let region = unsafe { self.domain.register_region(&request) }.unwrap();
        self.child.write_line(&self.end.endpoint.name().to_string());
        region
    }

    /// Drives the target until the writer has written to the last byte of a region.
    fn until_written(&self) {
        let begun = Instant::now();
        let last = (self.memory.addr + REGION - 1) as *const u8;
        // SAFETY: a byte of the memory, which another process changes.
        while unsafe { last.read_volatile() } != 0xff {
            self.end.rx.pump();
            assert!(begun.elapsed() < PATIENCE, "it does not write");
        }
    }

    fn fill(&self, with: u8) {
        // SAFETY: the memory is the endpoint's own, and no region has it.
        unsafe { self.memory.as_mut_ptr().write_bytes(with, REGION) };
    }

    /// Drives the target until the writer prints its next line.
    fn next_line(&mut self) -> String {
        let (end, child) = (&self.end, &mut self.child);
        std::thread::scope(|threads| {
            let line = threads.spawn(|| child.read_line());
            while !line.is_finished() {
                end.rx.pump();
            }
            line.join().unwrap()
        })
    }
}

/// A peer writes all the time, while regions close: not one byte comes after a close.
#[test]
fn no_byte_comes_after_the_close_of_a_region() {
    close_beside_a_writer(Way::Kernel);
}

#[test]
fn no_byte_comes_after_the_close_of_a_mapped_region() {
    close_beside_a_writer(Way::Mapping);
}

#[test]
fn no_element_changes_after_the_close_of_a_mapped_region() {
    close_beside_a_writer(Way::AtomicMapping);
}

fn close_beside_a_writer(way: Way) {
    let mut writer = Writer::start(way);
    for round in 0..60u64 {
        let region = writer.begin();
        writer.until_written();
        // At another moment of a copy each time.
        let until = Instant::now() + Duration::from_micros(round * 37 % 500);
        while Instant::now() < until {
            writer.end.rx.pump();
        }
        drop(region);
        writer.fill(1);
        let line = writer.next_line();
        let (written, mapped) = line.split_once(' ').unwrap();
        let written: u64 = written.parse().unwrap();
        assert_eq!(mapped != "0", way != Way::Kernel && written > 0);
        let memory = bytes(writer.memory);
        assert!(memory.iter().all(|byte| *byte == 1), "round {round}");
        writer.fill(0);
        assert!(round == 0 || written > 0, "each write was a message");
    }
    writer.child.write_line("end");
    writer.child.finish();
}

/// A peer is killed, most often in the middle of a copy: the region closes.
#[test]
fn a_killed_writer_holds_up_no_close() {
    for way in [Way::Kernel, Way::Mapping, Way::AtomicMapping].repeat(8) {
        let mut writer = Writer::start(way);
        let region = writer.begin();
        writer.until_written();
        writer.child.kill();
        drop(region);
        writer.fill(1);
        let memory = bytes(writer.memory);
        assert!(memory.iter().all(|byte| *byte == 1));
    }
}
