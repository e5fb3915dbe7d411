//! Tests of boards: the regions that peers find, and the boards that they refuse.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use memmap2::MmapOptions;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use proptest::prelude::*;

use super::*;

fn region(key: u64) -> BoardRegion {
    BoardRegion {
        key,
        window: RegionWindow {
            address: key % 1000 + 0x1000,
            len: 100,
            first_place: 0,
            rights: Rights::all(),
            elements: Elements::from_number((key % 3 * 7) as u8),
        },
        backing: (key % 2 == 1).then_some(MemoryBacking {
            descriptor: (key % 100) as i32,
            inode: key << 40,
            offset: key,
        }),
    }
}

/// The same region at another address.
fn at(address: u64, region: BoardRegion) -> BoardRegion {
    let window = RegionWindow {
        address,
        ..region.window
    };
    BoardRegion { window, ..region }
}

fn pair() -> (BoardMemory, PeerBoard) {
    let ours = BoardMemory::create().unwrap();
    let theirs = PeerBoard::accept(ours.fd()).unwrap();
    (ours, theirs)
}

#[test]
fn a_peer_finds_what_is_shown_and_nothing_else() {
    let (ours, mut theirs) = pair();
    assert_eq!(theirs.find(0), None);
    let entry = ours.show(&region(7)).unwrap();
    let (found, generation, seen) = theirs.find(7).unwrap();
    assert_eq!((found, seen), (entry, region(7)));
    assert!(theirs.entry(entry).is_still(generation));
    assert_eq!(theirs.find(8), None);
    ours.entry(entry).hide();
    assert!(!theirs.entry(entry).is_still(generation));
    assert_eq!(theirs.find(7), None);
    // Another region has the entry now.
    let other = at(5, region(7));
    assert_eq!(ours.show(&other), Some(entry));
    assert!(!theirs.entry(entry).is_still(generation));
    assert_eq!(theirs.find(7).unwrap().2, other);
}

/// A board that is full shows no more, and shows the next region once there is room.
#[test]
fn a_board_holds_a_bounded_number_of_regions() {
    let (ours, mut theirs) = pair();
    let shown: Vec<_> = (0..10_000)
        .filter_map(|key| Some((key, ours.show(&region(key))?)))
        .collect();
    assert_eq!(shown.len(), ENTRIES);
    for (key, entry) in &shown {
        assert_eq!(theirs.find(*key).unwrap().0, *entry);
    }
    let (key, entry) = shown[100];
    ours.entry(entry).hide();
    assert_eq!(ours.show(&region(key)), Some(entry));
}

/// Keys that applications choose, and those that a domain draws, spread over the buckets.
#[test]
fn keys_spread_over_the_buckets() {
    let drawn = |n: u64| (u64::from(u32::MAX) << 32) | (!n & u64::from(u32::MAX));
    for keys in [
        (0..200).collect::<Vec<u64>>(),
        (0..200).map(|n| n << 12).collect(),
        (1..=200).map(drawn).collect(),
    ] {
        let (ours, _) = pair();
        let shown = keys
            .iter()
            .filter(|key| ours.show(&region(**key)).is_some());
        assert!(shown.count() >= 190);
    }
}

/// Neither a peer nor another mapping of this process can write to a board, cut it, or free its
/// pages.
#[test]
fn peers_can_not_change_a_board() {
    let (ours, _) = pair();
    let fd = ours.fd().try_clone_to_owned().unwrap();
    let writable = MmapOptions::new().len(4096).map_raw(fd.as_raw_fd());
    assert!(writable.is_err(), "a peer can write");
    assert!(nix::unistd::write(&fd, &[1; 8]).is_err());
    assert!(nix::unistd::ftruncate(&fd, 0).is_err());
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    assert!(fallocate(&fd, hole, 0, 4096).is_err());
}

#[test]
fn memory_that_may_change_its_size_is_no_board() {
    let memfd = |size: usize, seal: SealFlag| -> OwnedFd {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let fd = memfd_create(c"test", flags).unwrap();
        nix::unistd::ftruncate(&fd, size as i64).unwrap();
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seal)).unwrap();
        fd
    };
    let size = ENTRIES * size_of::<BoardEntry>();
    let all = SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_SEAL
        | SealFlag::from_bits_retain(0x10);
    assert!(PeerBoard::accept(memfd(size, all).as_fd()).is_ok());
    for (fd, why) in [
        (memfd(size, all - SealFlag::F_SEAL_SHRINK), "sealed"),
        (memfd(size, SealFlag::empty()), "sealed"),
        (memfd(size - 64, all), "size"),
        (memfd(size * 2, all), "size"),
        (std::fs::File::open("/dev/zero").unwrap().into(), "memfd"),
    ] {
        let error = PeerBoard::accept(fd.as_fd()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

proptest! {
    /// A part is where its region is, in the memory that peers may map, too.
    #[test]
    fn parts_lie_in_the_backing_of_their_region(
        (descriptor, inode) in (0..i32::MAX, any::<u64>()),
        offset in prop_oneof![0u64..200, any::<u64>()],
        (addr, start) in (0u64..1000, 0u64..100),
    ) {
        let backing = MemoryBacking { descriptor, inode, offset };
        let region = BoardRegion { backing: Some(backing), ..at(addr, region(7)) };
        let (ours, mut theirs) = pair();
        ours.show(&region).unwrap();
        let (_, _, seen) = theirs.find(7).unwrap();
        prop_assert_eq!(seen, region);
        let part = seen.backing_at(addr + start);
        let expected = offset.checked_add(start).map(|offset| MemoryBacking { offset, ..backing });
        prop_assert_eq!(part, expected);
        prop_assert_eq!(BoardRegion { backing: None, ..region }.backing_at(addr), None);
    }

    /// Peers find the regions that are open, with their words, after any openings and closes.
    #[test]
    fn a_board_has_the_open_regions(steps in prop::collection::vec((0u64..40, any::<bool>()), 1..200)) {
        let (ours, mut theirs) = pair();
        let mut open = std::collections::HashMap::new();
        for (n, (key, opens)) in steps.into_iter().enumerate() {
            match (opens, open.remove(&key)) {
                (_, Some((entry, _))) => ours.entry(entry).hide(),
                (true, None) => {
                    let shown = at(n as u64, region(key));
                    if let Some(entry) = ours.show(&shown) {
                        open.insert(key, (entry, shown));
                    }
                }
                (false, None) => {}
            }
            for key in 0..40 {
                let found = theirs.find(key).map(|(entry, _, region)| (entry, region));
                prop_assert_eq!(found.as_ref(), open.get(&key));
            }
        }
    }
}
