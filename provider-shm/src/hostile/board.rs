//! Tests of boards with arbitrary content: a doubtful region is not touched, and a later operation
//! on a sound one is carried out.

use std::os::fd::AsRawFd;

use ferrofabric_contracts::atomics::{AtomicTarget, Datatype};
use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::peer::{MappedCall, Shortcut};
use ferrofabric_contracts::region_window::{Elements, RegionWindow};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, RmaKind, RmaOp};
use ferrofabric_system::shared_memory::{MemoryBacking, SharedMemory};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

use super::{HostilePeer, ID};
use crate::board::{BoardMemory, BoardRegion, PeerBoard};
use crate::owner::Ep;
use crate::{Cma, ShmConfig};

const KEY: u64 = 9;

fn open() -> (Ep, BoardMemory, FiAddr, HostilePeer) {
    let mut ep = Ep::open(ShmConfig {
        cma: Cma::On,
        ..ShmConfig::default()
    });
    let board = BoardMemory::create().unwrap();
    let theirs = PeerBoard::accept(board.fd()).unwrap();
    let shown = Some((theirs, Rights::all()));
    let (enemy, addr) = HostilePeer::connect_with(&mut ep, ID, shown);
    // From now on there is a route.
    ep.tsend(addr, 1, &[1; 8], 1).unwrap();
    (ep, board, addr, enemy)
}

fn carry_out(ep: &mut Ep, dest: FiAddr, kind: RmaKind, place: u64, bytes: &mut [u8]) -> Shortcut {
    let op = RmaOp {
        kind,
        dest,
        key: KEY,
        place,
        data: 0,
        desc: MrDesc::NONE,
        context: 1,
        flags: Flags::COMPLETION,
    };
    let buf = IoBuf::new(bytes.as_mut_ptr(), bytes.len());
    // SAFETY: the buffer is there until the operation is over.
    unsafe { ep.shm.shortcut(&op, &[buf], None, &mut ep.owner) }
}

#[test]
fn doubtful_regions_are_not_touched() {
    let (mut ep, board, addr, _enemy) = open();
    let memory = [7u8; 100];
    let there = memory.as_ptr() as u64;
    let both = Rights::all();
    for (at, len, first_place, rights) in [
        // Not the range, not the right, or beyond the last address.
        (there, 49, 0, both),
        (there, 100, 51, both),
        (there, 100, 0, Rights::empty()),
        (there, 100, 0, Rights::from_bits_retain(!3)),
        (there, u64::MAX, u64::MAX, both),
        (u64::MAX - 40, 100, 0, both),
        (u64::MAX, u64::MAX, 0, both),
        // No memory. A pause follows, so these come last.
        (0, 100, 0, both),
        (1, 100, 0, both),
        (0xffff_8000_0000_0000, 100, 0, both),
        (u64::MAX - 50, 100, 0, both),
    ] {
        let region = BoardRegion {
            key: KEY,
            window: RegionWindow {
                address: at,
                len,
                first_place,
                rights,
                elements: Elements::BYTES,
            },
            backing: None,
        };
        let entry = board.show(&region).unwrap();
        for kind in [RmaKind::Read, RmaKind::Write] {
            let mut bytes = [1; 50];
            let done = carry_out(&mut ep, addr, kind, 0, &mut bytes);
            assert_eq!(done, Shortcut::Impossible, "{region:?}");
            assert_eq!(bytes, [1; 50]);
        }
        board.entry(entry).hide();
    }
    assert_eq!(memory, [7; 100]);
    // All doubts are over, and so is the pause after the failed ones.
    board.show(&BoardRegion {
        key: KEY,
        window: RegionWindow {
            address: there,
            len: 100,
            first_place: 0,
            rights: both,
            elements: Elements::BYTES,
        },
        backing: None,
    });
    let mut bytes = [1; 50];
    let done = (0..5000)
        .find(|_| carry_out(&mut ep, addr, RmaKind::Read, 50, &mut bytes) == Shortcut::Done);
    assert!(done.is_some());
    assert_eq!(bytes, [7; 50]);
}

/// The board names a file that it must not, or bytes beyond the end: nothing is mapped, and nothing
/// else is touched. Then it names memory as it should be.
#[test]
fn doubtful_memory_is_not_mapped() {
    let (mut ep, board, addr, _enemy) = open();
    let memory = SharedMemory::new(1).unwrap();
    let all = memory.len() as u64;
    let good = memory.backing(0);
    let unsealed = memfd_create(c"test", MFdFlags::MFD_CLOEXEC).unwrap();
    ftruncate(&unsealed, all as i64).unwrap();
    let unsealed = MemoryBacking {
        descriptor: unsealed.as_raw_fd(),
        inode: fstat(&unsealed).unwrap().st_ino,
        offset: 0,
    };
    let stderr = MemoryBacking {
        descriptor: 2,
        ..good
    };
    let no_file = MemoryBacking {
        descriptor: i32::MAX - 1,
        ..good
    };
    let other = MemoryBacking {
        inode: good.inode + 1,
        ..good
    };
    let at = |offset| MemoryBacking { offset, ..good };
    let show = |backing: MemoryBacking| {
        board.show(&BoardRegion {
            key: KEY,
            window: RegionWindow {
                // No memory: the kernel copies nothing there.
                address: 1,
                len: 100,
                first_place: 0,
                rights: Rights::all(),
                elements: Elements::BYTES,
            },
            backing: Some(backing),
        })
    };
    let both = [RmaKind::Read, RmaKind::Write];
    for backing in [
        unsealed,
        stderr,
        no_file,
        other,
        at(all - 49),
        at(all),
        at(u64::MAX - 10),
        at(u64::MAX),
    ] {
        let entry = show(backing).unwrap();
        for kind in both {
            let mut bytes = [1; 50];
            let done = carry_out(&mut ep, addr, kind, 0, &mut bytes);
            assert_eq!(done, Shortcut::Impossible, "{backing:?}");
            assert_eq!(bytes, [1; 50]);
        }
        board.entry(entry).hide();
    }
    let entry = show(at(all - 50)).unwrap();
    for kind in both.into_iter().rev() {
        let mut bytes = [7; 50];
        let done =
            (0..2000).any(|_| carry_out(&mut ep, addr, kind, 0, &mut bytes) == Shortcut::Done);
        assert!(done && bytes == [7; 50]);
        // Beyond the end of the memory, and within the region.
        let done = carry_out(&mut ep, addr, kind, 50, &mut bytes);
        assert_eq!(done, Shortcut::Impossible);
    }
    board.entry(entry).hide();
    assert_eq!(
        carry_out(&mut ep, addr, RmaKind::Write, 0, &mut [1; 50]),
        Shortcut::Impossible
    );
    let last = memory.as_ptr().as_ptr().wrapping_add(memory.len() - 1);
    // SAFETY: a byte of the memory.
    assert_eq!(unsafe { last.read_volatile() }, 7);
}

/// Elements that are not aligned here, or that go over the end, are not touched, whatever the board
/// says, and a region of elements is for atomic operations on them alone.
#[test]
fn doubtful_elements_are_not_touched() {
    let (mut ep, board, addr, _enemy) = open();
    let memory = SharedMemory::new(1).unwrap();
    let all = memory.len() as u64;
    let show = |offset, elements| {
        board.show(&BoardRegion {
            key: KEY,
            window: RegionWindow {
                address: 1 << 20,
                len: all,
                first_place: 0,
                rights: Rights::all(),
                elements,
            },
            backing: Some(memory.backing(offset)),
        })
    };
    let reaches = |ep: &mut Ep, place, datatype| {
        let target = AtomicTarget {
            dest: addr,
            key: KEY,
            place,
            len: 8,
            rights: Rights::all(),
            datatype,
        };
        let mut address = None;
        let call = ep.shm.with_mapped(&target, |at| address = Some(at.addr()));
        let is_reached = call == MappedCall::Made;
        assert_eq!(address.is_some(), is_reached);
        is_reached
    };
    // The owner's addresses are aligned, and those in its memory are not.
    let entry = show(4, Elements::BYTES).unwrap();
    for (place, datatype, is_reached) in [
        (0, Datatype::Uint64, false),
        (4, Datatype::Uint64, true),
        (0, Datatype::Int32, true),
        (1, Datatype::Float, false),
        (1, Datatype::Uint8, true),
        (all - 12, Datatype::Int32, true),
        (all - 8, Datatype::Int32, false),
        (all - 4, Datatype::Int32, false),
        (u64::MAX - 3, Datatype::Int32, false),
    ] {
        assert_eq!(
            reaches(&mut ep, place, datatype),
            is_reached,
            "{place} {datatype:?}"
        );
    }
    board.entry(entry).hide();
    let entry = show(0, Elements::of(Some(Datatype::Uint64))).unwrap();
    assert!(reaches(&mut ep, 0, Datatype::Uint64));
    for datatype in [Datatype::Int64, Datatype::Double, Datatype::Uint8] {
        assert!(!reaches(&mut ep, 0, datatype));
    }
    for kind in [RmaKind::Read, RmaKind::Write] {
        let done = carry_out(&mut ep, addr, kind, 0, &mut [1; 8]);
        assert_eq!(done, Shortcut::Impossible);
    }
    board.entry(entry).hide();
    assert!(!reaches(&mut ep, 0, Datatype::Uint64));
    // No type has that number.
    show(0, Elements::from_number(0xff)).unwrap();
    assert!(!reaches(&mut ep, 0, Datatype::Uint64));
}

/// A peer that closes, or that takes its region away, gets no byte.
#[test]
fn nothing_goes_to_a_region_that_is_gone() {
    let (mut ep, board, addr, enemy) = open();
    let memory = [7u8; 8];
    let region = BoardRegion {
        key: KEY,
        window: RegionWindow {
            address: memory.as_ptr() as u64,
            len: 8,
            first_place: 0,
            rights: Rights::WRITE,
            elements: Elements::BYTES,
        },
        backing: None,
    };
    let entry = board.show(&region).unwrap();
    let write = |ep: &mut Ep| carry_out(ep, addr, RmaKind::Write, 0, &mut [1; 8]);
    assert_eq!(write(&mut ep), Shortcut::Done);
    assert_eq!(std::hint::black_box(memory), [1; 8]);
    board.entry(entry).hide();
    assert_eq!(write(&mut ep), Shortcut::Impossible);
    board.show(&region).unwrap();
    assert_eq!(write(&mut ep), Shortcut::Done);
    enemy
        .segment
        .status(crate::segment::SegmentSide::Acceptor)
        .close();
    assert_eq!(write(&mut ep), Shortcut::Impossible);
}
