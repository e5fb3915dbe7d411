//! One-sided operations that a target refuses: each ends with an error at its initiator, writes
//! nothing, and disturbs no other.

use std::sync::Arc;

use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::types::{IoBuf, RmaKind, RmaOp};
use ferrofabric_runtime::fabric::{Cntr, Domain, EndpointConfig, MrAttr};

use crate::ends::QueuedPair;
use crate::region_memory::region_of;
use crate::target::{BOTH, KEY, REGION, Target, close_beside, filled};

/// Lengths of every way that messages take.
const LENGTHS: [usize; 3] = [8, 5000, 100_000];

impl Target<'_> {
    /// Has an operation refused, and sees that the session goes on.
    fn refused_alone(&self, op: &RmaOp, iov: &[IoBuf]) {
        self.refused(op, iov);
        self.pair.barrier();
    }

    /// Has a write, one with data and a read of this key and place refused.
    fn all_refused(&self, key: u64, place: u64, buf: IoBuf) {
        for (kind, data) in [
            (RmaKind::Write, Flags::empty()),
            (RmaKind::Write, Flags::REMOTE_CQ_DATA),
            (RmaKind::Read, Flags::empty()),
        ] {
            let op = RmaOp {
                key,
                place,
                flags: Flags::COMPLETION | data,
                ..self.op(kind, 0)
            };
            self.refused_alone(&op, &[buf]);
        }
        assert_eq!(
            self.pair.b.rx.take(),
            None,
            "key {key:#x}, place {place:#x}"
        );
    }
}

/// A key, a range or a right that is not there fails one operation, writes nothing, and disturbs no
/// other.
pub fn keys_ranges_and_rights(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let a = &target.pair.a;
    let all = target.content(0, REGION);
    for len in LENGTHS {
        let (buf, bytes) = filled(a, len, 1);
        // No region has the key yet.
        target.all_refused(KEY, 0, buf);
        for (rights, granted, refused) in [
            (Flags::REMOTE_READ, Some(RmaKind::Read), RmaKind::Write),
            (Flags::REMOTE_WRITE, None, RmaKind::Read),
            (Flags::SEND | Flags::RECV, None, RmaKind::Read),
            (Flags::SEND | Flags::RECV, None, RmaKind::Write),
            // The rights of the application's own operations are none of peers.
            (Flags::READ | Flags::WRITE, None, RmaKind::Read),
            (Flags::READ | Flags::WRITE, None, RmaKind::Write),
        ] {
            let _region = target.register(KEY, rights);
            target.refused_alone(&target.op(refused, 0), &[buf]);
            if let Some(kind) = granted {
                target.done(&target.op(kind, 0), &[a.memory(len, 0)]);
            }
        }
        let _region = target.register(KEY, BOTH);
        let len = len as u64;
        for (key, place) in [
            (KEY + 1, 0),
            (0, 0),
            (KEY | (1 << 32), 0),
            (u64::MAX, 0),
            (KEY, REGION as u64 - len + 1),
            (KEY, REGION as u64),
            (KEY, 1 << 63),
            (KEY, u64::MAX),
            (KEY, u64::MAX - len),
            (KEY, u64::MAX - len + 1),
        ] {
            target.all_refused(key, place, buf);
        }
        assert_eq!(a.bytes(buf.addr, buf.len), bytes, "a refused read wrote");
        assert_eq!(target.content(0, REGION), all);
    }
}

/// The key of a region that has closed is no key, also of memory that has another key by now; nor
/// is that of a region in another domain.
pub fn keys_of_other_regions(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const OTHER: u64 = 0xfeed;

    let target = Target::open(domain_a, domain_b);
    let a = &target.pair.a;
    // The initiator's own domain.
    let (ours, kept) = filled(a, REGION, 9);
    let request = MrAttr {
        key: Some(OTHER),
        ..region_of(ours, BOTH)
    };
    // SAFETY: the memory lives as long as the endpoint, which outlives the region.
    let of_a = unsafe { domain_a.register_region(&request) }.unwrap();
    let all = target.content(0, REGION);
    for len in LENGTHS {
        let (buf, bytes) = filled(a, len, 2);
        target.all_refused(of_a.key(), 0, buf);
        let mut before: Option<u64> = None;
        for generation in 0..4 {
            let request = MrAttr {
                key: (generation % 2 == 0).then_some(KEY + generation),
                ..region_of(target.memory, BOTH)
            };
            // SAFETY: as above.
            let region = unsafe { domain_b.register_region(&request) }.unwrap();
            let read = RmaOp {
                key: region.key(),
                ..target.op(RmaKind::Read, 0)
            };
            target.done(&read, &[a.memory(len, 0)]);
            if let Some(key) = before.replace(region.key()) {
                target.all_refused(key, 0, buf);
            }
            drop(region);
            target.all_refused(read.key, 0, buf);
        }
        assert_eq!(a.bytes(buf.addr, buf.len), bytes, "a refused read wrote");
        assert_eq!(target.content(0, REGION), all);
    }
    assert_eq!(a.bytes(ours.addr, REGION), kept);
}

/// Places are addresses of the target where it asked for that.
pub fn virtual_addresses(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let a = &target.pair.a;
    let first = target.memory.addr;
    // Places that end with the last number there is count as well.
    for first_place in [first as u64, u64::MAX - REGION as u64] {
        let request = MrAttr {
            first_place,
            ..region_of(target.memory, BOTH)
        };
        // SAFETY: the memory lives as long as the endpoint, which outlives the region.
        let region = unsafe { domain_b.register_region(&request) }.unwrap();
        let op = |kind, place| RmaOp {
            key: region.key(),
            place,
            ..target.op(kind, 0)
        };
        let (from, bytes) = filled(a, 70, 5);
        let last = first_place + REGION as u64 - 70;
        for place in [first_place, first_place + 9, last] {
            target.done(&op(RmaKind::Write, place), &[from]);
            let at = (place - first_place) as usize;
            assert_eq!(target.content(at, 70), bytes);
            target.done(&op(RmaKind::Read, place), &[a.memory(70, 0)]);
        }
        let all = target.content(0, REGION);
        for place in [0, first_place - 1, last + 1, u64::MAX, u64::MAX - 69] {
            target.all_refused(region.key(), place, from);
        }
        assert_eq!(target.content(0, REGION), all);
    }
}

/// Where places are addresses, each byte of a region of several pieces has its own, in whatever
/// order the pieces are. What lies between two pieces is not reached.
pub fn addresses_of_pieces(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const LEN: usize = 70;
    let target = Target::open(domain_a, domain_b);
    let a = &target.pair.a;
    // The second ends where the third begins.
    let pieces = [(8192, 4096), (0, 2048), (2048, 2048), (6000, 100)];
    let pieces = pieces.map(|(at, len)| target.memory.part(at, len));
    let request = MrAttr {
        further: &pieces[1..],
        first_place: pieces[0].addr as u64,
        places_are_addresses: true,
        ..region_of(pieces[0], BOTH)
    };
    // SAFETY: the memory lives as long as the endpoint, which outlives the region.
    let region = unsafe { domain_b.register_region(&request) }.unwrap();
    let address = |at: usize| (target.memory.addr + at) as u64;
    let op = |kind, at| RmaOp {
        key: region.key(),
        place: address(at),
        ..target.op(kind, 0)
    };
    for (seed, at) in [
        8192,
        8192 + 4096 - LEN,
        0,
        2048 - LEN / 2,
        4096 - LEN,
        6000,
        6030,
    ]
    .into_iter()
    .enumerate()
    {
        let (from, bytes) = filled(a, LEN, seed);
        target.done(&op(RmaKind::Write, at), &[from]);
        assert_eq!(target.content(at, LEN), bytes, "at {at}");
        let into = a.memory(LEN, 0);
        target.done(&op(RmaKind::Read, at), &[into]);
        assert_eq!(a.bytes(into.addr, LEN), bytes, "at {at}");
    }
    let all = target.content(0, REGION);
    let (from, _) = filled(a, LEN, 9);
    for at in [
        4096 - LEN + 1,
        4096,
        5000,
        6000 - 1,
        6031,
        8192 - 1,
        12_288 - LEN + 1,
        12_288,
    ] {
        target.all_refused(region.key(), address(at), from);
    }
    assert_eq!(target.content(0, REGION), all);
}

/// By way of an endpoint without a right for peers, no region has that right.
///
/// Covers: GI-3
pub fn rights_of_endpoints(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for (right, granted, refused) in [
        (Rights::READ, RmaKind::Read, RmaKind::Write),
        (Rights::WRITE, RmaKind::Write, RmaKind::Read),
    ] {
        let only = |config: &mut EndpointConfig| config.remote_rights = right;
        let target = Target::open_with((domain_a, domain_b), |_| {}, only);
        let _region = target.register(KEY, BOTH);
        let buf = target.pair.a.memory(100, 1);
        target.done(&target.op(granted, 0), &[buf]);
        target.refused_alone(&target.op(refused, 0), &[buf]);
    }
}

/// Operations without a byte succeed wherever a region has a place, its end included: they
/// complete, count, and bring CQ data. Buffers that are empty, or none at all, are the same.
pub fn operations_without_bytes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let (target, of_a, of_b) = Target::open_counted(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let QueuedPair { a, b, to_a, .. } = &target.pair;
    let all = target.content(0, REGION);
    let counts = |cntr: &Arc<dyn Cntr>| (cntr.read().unwrap(), cntr.read_errors().unwrap());
    let empty = [a.memory(16, 1).part(8, 0), IoBuf::EMPTY];
    let (mut reads, mut writes) = (0, 0);
    for place in [0, 1, REGION - 1, REGION] {
        for iov in [&empty[..], &empty[..1], &[]] {
            target.done(&target.op(RmaKind::Read, place), iov);
            target.done(&target.op(RmaKind::Write, place), iov);
            let op = RmaOp {
                data: place as u64,
                flags: Flags::COMPLETION | Flags::REMOTE_CQ_DATA,
                ..target.op(RmaKind::Write, place)
            };
            target.done(&op, iov);
            let notice = target.pair.next(&b.rx).unwrap();
            let flags = Flags::RMA | Flags::REMOTE_WRITE | Flags::REMOTE_CQ_DATA;
            let came = (notice.flags, notice.data, notice.len, notice.src);
            assert_eq!(came, (flags, op.data, 0, *to_a));
            reads += 1;
            writes += 2;
            target.pair.until("the operations do not count", || {
                let counted = [&of_a[0], &of_b[0], &of_a[1], &of_b[1]].map(counts);
                let both = [(reads, 0), (reads, 0), (writes, 0), (writes, 0)];
                (counted == both).then_some(())
            });
        }
    }
    // Beyond the end there is no place.
    target.refused_alone(&target.op(RmaKind::Write, REGION + 1), &empty);
    target.refused_alone(&target.op(RmaKind::Read, REGION + 1), &empty);
    assert_eq!(target.content(0, REGION), all);
    assert_eq!(b.rx.take(), None);
}

/// A region of all addresses, as dynamic windows of MPI register: peers reach the memory that is
/// there, and an operation on any other address is refused.
pub fn all_addresses(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let a = &target.pair.a;
    let all = IoBuf {
        addr: 0,
        len: usize::MAX,
    };
    let request = MrAttr {
        key: Some(KEY),
        ..MrAttr::new(all, BOTH)
    };
    // SAFETY: peers reach only memory of the target, which lives as long as the endpoint.
    let region = unsafe { domain_b.register_region(&request) }.unwrap();
    let at = target.memory.addr;
    for len in LENGTHS {
        let (from, bytes) = filled(a, len, len);
        target.done(&target.op(RmaKind::Write, at + 100), &[from]);
        assert!(target.content(100, len) == bytes, "a write of {len} bytes");
        let into = a.memory(len, 0);
        target.done(&target.op(RmaKind::Read, at + 100), &[into]);
        assert!(a.bytes(into.addr, len) == bytes, "a read of {len} bytes");
        for kind in [RmaKind::Write, RmaKind::Read] {
            target.refused_alone(&target.op(kind, 16), &[from]);
        }
    }
    close_beside(region, a);
}
