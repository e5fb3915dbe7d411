//! One-sided operations that the device carries out (`docs/adr/0063`).

use std::sync::Arc;

use ferrofabric_conformance::target::{BOTH, KEY, REGION, Target, close_beside, filled};
use ferrofabric_conformance::unknown_initiators;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::{Flags, Order};
use ferrofabric_contracts::types::{IoBuf, MrDesc, RmaKind, RmaOp};
use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint};
use ferrofabric_fake_device::profile::DeviceProfile;
use ferrofabric_runtime::fabric::{Domain, EndpointConfig, Mr, MrAttr};
use ferrofabric_verbs_sys::ibv_wc_status;

use crate::endpoints::breakage::connections;
use crate::endpoints::party::{domain, serialized};

/// Bytes of each of the operations here.
const LENGTHS: [usize; 3] = [8, 3000, 100_000];

const LEVELS: [Flags; 3] = [
    Flags::empty(),
    Flags::DELIVERY_COMPLETE,
    Flags::REMOTE_CQ_DATA,
];

/// A write of bytes of its own to a place of its own.
fn write(target: &Target<'_>, number: usize) -> (RmaOp, IoBuf, usize) {
    let len = LENGTHS[number % 3];
    let place = number % 18 * 115_000;
    let op = RmaOp {
        flags: Flags::COMPLETION | LEVELS[number / 3 % 3],
        ..target.op(RmaKind::Write, place)
    };
    (op, target.pair.a.memory(len, number as u8 | 1), place)
}

/// Lanes break while writes and reads are under way: each is carried out, and the memory is as if
/// no lane had broken.
#[test]
fn lanes_that_break() {
    let device = FakeDevice::take();
    let (a, b) = (domain(&[]), domain(&[]));
    let target = Target::open(&*a, &*b);
    let _region = target.register(KEY, BOTH);
    for round in 0..12 {
        target.await_grant();
        let writes: Vec<_> = (0..18).map(|at| write(&target, at + round)).collect();
        // Half of them are not carried out when the lane breaks.
        for (at, (op, from, _)) in writes.iter().enumerate() {
            if at == 9 {
                device.hold(true);
            }
            target.begin(op, &[*from]);
        }
        let into = target.pair.a.memory(64, 0);
        let read = target.op(RmaKind::Read, REGION - 64);
        target.begin(&read, &[into]);
        device.break_queue_pair(connections(&device)[round % 2]);
        device.hold(false);
        for (op, from, place) in &writes {
            target.over(op).unwrap();
            let bytes = target.pair.a.bytes(from.addr, from.len);
            assert_eq!(target.content(*place, from.len), bytes, "round {round}");
        }
        target.over(&read).unwrap();
        let expected = target.content(REGION - 64, 64);
        assert_eq!(target.pair.a.bytes(into.addr, 64), expected);
    }
    assert!(target.stat("verbs_rma_again") > 0);
    drop(target);
    assert_eq!(device.misuse(), "");
}

/// Lanes break among writes that keep their order: those that go again do not overtake each other,
/// and the last one stays.
#[test]
fn lanes_that_break_among_ordered_writes() {
    let device = FakeDevice::take();
    let (a, b) = (domain(&[]), domain(&[]));
    let ordered = |config: &mut EndpointConfig| config.tx.msg_order = Order::WAW;
    let target = Target::open_with((&*a, &*b), ordered, |_| {});
    let _region = target.register(KEY, BOTH);
    for round in 0..12 {
        target.await_grant();
        let mut expected = target.content(0, 3000);
        let mut writes = Vec::new();
        for at in 0..18 {
            if at == 9 {
                device.hold(true);
            }
            let len = [3000, 8][at % 2];
            let op = target.op(RmaKind::Write, at % 3);
            let from = filled(&target.pair.a, len - at % 3, at + round);
            expected[at % 3..len].copy_from_slice(&from.1);
            target.begin(&op, &[from.0]);
            writes.push(op);
        }
        device.break_queue_pair(connections(&device)[round % 2]);
        device.hold(false);
        for op in &writes {
            target.over(op).unwrap();
        }
        assert!(target.content(0, 3000) == expected, "round {round}");
    }
    assert!(target.stat("verbs_rma_again") > 0);
    drop(target);
    assert_eq!(device.misuse(), "");
}

/// Lanes to an initiator break that the target does not have in its address vector.
#[test]
fn lanes_of_an_unknown_initiator_that_break() {
    let device = FakeDevice::take();
    let (a, b) = (domain(&[]), domain(&[]));
    let mut broken = 0;
    unknown_initiators::whose_lanes_break(&*a, &*b, |round| {
        let lanes = connections(&device);
        if let Some(lane) = lanes.get(round % 2) {
            device.break_queue_pair(*lane);
            broken += 1;
        }
    });
    assert!(broken > 6, "{broken}");
    assert_eq!(device.misuse(), "");
}

/// Memory that can not be pinned: a device that pages it in on demand carries operations on it out.
/// With another one they go as messages.
#[test]
fn memory_that_is_not_pinned() {
    for (nic, pages_on_demand) in [("mlx5-roce", true), ("bnxt", false)] {
        let device = FakeDevice::take();
        device.become_nic(nic);
        let (a, b) = (domain(&[]), domain(&[]));
        let target = Target::open(&*a, &*b);
        device.fail_call("ibv_reg_mr", 0, 1, libc::ENOMEM);
        let region = target.register(KEY, BOTH);
        assert_eq!(device.faults_left(), 0);
        if pages_on_demand {
            target.await_grant();
        }
        for len in LENGTHS {
            let (from, bytes) = filled(&target.pair.a, len, len);
            target.done(&target.op(RmaKind::Write, 11), &[from]);
            assert_eq!(target.content(11, len), bytes);
            let into = target.pair.a.memory(len, 0);
            target.done(&target.op(RmaKind::Read, 11), &[into]);
            assert_eq!(target.pair.a.bytes(into.addr, len), bytes);
        }
        assert_eq!(target.by_device() > 0, pages_on_demand, "{nic}");
        // Its descriptor is for no request of the target's own.
        assert_eq!(region.desc(), MrDesc::NONE);
        close_beside(region, &target.pair.a);
        drop(target);
        assert_eq!(device.misuse(), "");
    }
}

/// A region closes while the device writes to it: each operation ends, and no byte arrives behind
/// the close.
#[test]
fn a_close_among_writes() {
    let device = FakeDevice::take();
    let (a, b) = (domain(&[]), domain(&[]));
    let target = Target::open(&*a, &*b);
    for round in 0..20 {
        let region = target.register(KEY, BOTH);
        target.await_grant();
        let before = target.by_device();
        let writes: Vec<_> = (0..18).map(|at| write(&target, at + round)).collect();
        for (op, from, _) in &writes {
            target.begin(op, &[*from]);
        }
        assert!(target.by_device() > before);
        close_beside(region, &target.pair.a);
        let after = target.content(0, REGION);
        for (op, ..) in &writes {
            // A refused one came as messages.
            let _ = target.over(op);
        }
        assert_eq!(target.content(0, REGION), after);
    }
    drop(target);
    assert_eq!(device.misuse(), "");
}

/// The thread that closes a region drives its holder, too: the close drives the holder's domain,
/// so that the grant comes back, and so do the parts of operations under way.
#[test]
fn a_close_by_the_thread_of_the_holder() {
    let device = FakeDevice::take();
    let (a, b) = (domain(&[]), domain(&[]));
    let target = Target::open(&*a, &*b);
    for round in 0..20 {
        let region = target.register(KEY, BOTH);
        target.await_grant();
        let writes: Vec<_> = (0..18).map(|at| write(&target, at + round)).collect();
        for (op, from, _) in &writes {
            target.begin(op, &[*from]);
        }
        drop(region);
        let after = target.content(0, REGION);
        for (op, ..) in &writes {
            let _ = target.over(op);
        }
        assert_eq!(target.content(0, REGION), after);
    }
    let of_b = target.pair.b.endpoint.stats().unwrap();
    assert!(of_b.contains(&("rma_regions_left_now", 0)), "{of_b:?}");
    assert_eq!(target.stat("verbs_lanes_failed"), 0);
    drop(target);
    assert_eq!(device.misuse(), "");
}

/// A region that peers may read and write.
fn registered(domain: &dyn Domain, memory: IoBuf, key: Option<u64>) -> Arc<dyn Mr> {
    let request = MrAttr {
        key,
        ..MrAttr::new(memory, BOTH)
    };
    // SAFETY: the memory lives as long as its endpoint, which outlives the region.
    unsafe { domain.register_region(&request) }.unwrap()
}

/// Closes a region while the domain of another one makes no progress, as if its process computed.
fn close_without(computing: &dyn Mr, region: Arc<dyn Mr>) {
    let mut region = Some(region);
    computing
        .with_parts_still(&mut || {
            std::thread::scope(|threads| threads.spawn(|| drop(region.take())).join().unwrap());
        })
        .unwrap();
}

/// A holder of a grant computes while the region closes, again and again: the close takes nothing
/// from it but the memory. No lane breaks, and no other memory gets the key that the holder knows.
#[test]
fn a_holder_that_computes() {
    for nic in ["mlx5-ib", "worst-with-srq"] {
        let device = FakeDevice::take();
        device.become_nic(nic);
        let (a, b) = (domain(&[]), domain(&[]));
        let target = Target::open(&*a, &*b);
        let of_a = registered(&*a, target.pair.a.memory(8, 0), None);
        let of_b = |name: &str| {
            let stats = target.pair.b.endpoint.stats().unwrap();
            stats.iter().find(|(of, _)| *of == name).unwrap().1
        };
        for round in 0..10 {
            let region = target.register(KEY, BOTH);
            target.await_grant();
            let known = region.device_key().unwrap();
            close_without(&*of_a, region);
            assert_eq!(of_b("rma_regions_left_now"), 1, "{nic}, {round}");
            let next = target.register(KEY, BOTH);
            assert_ne!(next.device_key(), Some(known), "{nic}, {round}");
            // It computes no longer.
            let left = || (of_b("rma_regions_left_now") == 0).then_some(());
            target.pair.until("a grant is not returned", left);
            close_beside(next, &target.pair.a);
        }
        assert_eq!(target.stat("verbs_lanes_failed"), 0, "{nic}");
        assert_eq!(of_b("verbs_lanes_failed"), 0, "{nic}");
        drop(of_a);
        drop(target);
        assert_eq!(device.misuse(), "");
    }
}

/// The kinds of NICs that make lanes of reliable connections.
fn with_lanes() -> impl Iterator<Item = &'static str> {
    let has_lanes = |nic: &DeviceProfile| nic.carries_reliable_datagrams();
    DeviceProfile::names().filter(move |name| DeviceProfile::named(name).is_some_and(has_lanes))
}

/// A holder computes and makes no call while the region closes, again and again. It returns its
/// grant all the same, and no lane breaks, though a write is under way of which it has not heard.
#[test]
fn a_holder_that_makes_no_calls() {
    const CLOSES: u64 = 16;
    for nic in with_lanes() {
        let device = FakeDevice::take();
        device.become_nic(nic);
        let (a, b) = (serialized(&[]), domain(&[]));
        let target = Target::open(&*a, &*b);
        let of_b = |name: &str| {
            let stats = target.pair.b.endpoint.stats().unwrap();
            stats.iter().find(|(of, _)| *of == name).unwrap().1
        };
        let mut left = 0;
        for round in 0..CLOSES {
            let region = target.register(KEY, BOTH);
            target.await_grant();
            let (op, from) = (target.op(RmaKind::Write, 8), target.pair.a.memory(8, 3));
            if round % 2 == 1 {
                target.begin(&op, &[from]);
            }
            drop(region);
            left += of_b("rma_regions_left_now");
            if round % 2 == 1 {
                target.over(&op).unwrap();
                assert_eq!(target.content(8, 8), [3; 8], "{nic}");
            }
            let all = || (of_b("rma_regions_left_now") == 0).then_some(());
            target.pair.until("a grant is not returned", all);
        }
        // On a machine that does other work, some may take longer than a close waits.
        assert!(
            left <= CLOSES / 2,
            "{nic}: {left} of {CLOSES} closes left a grant"
        );
        assert_eq!(target.stat("verbs_lanes_failed"), 0, "{nic}");
        assert_eq!(of_b("verbs_lanes_failed"), 0, "{nic}");
        drop(target);
        assert_eq!(device.misuse(), "");
    }
}

/// A holder computed while the region closed, and goes on with a write by the key that it knows:
/// the device refuses it, and the write goes to the region that has the application's key then.
#[test]
fn a_holder_that_knows_nothing_of_the_close() {
    for nic in ["mlx5-ib", "worst-with-srq"] {
        let device = FakeDevice::take();
        device.become_nic(nic);
        let (a, b) = (domain(&[]), domain(&[]));
        let target = Target::open(&*a, &*b);
        let region = target.register(KEY, BOTH);
        target.await_grant();
        let (op, from, _) = write(&target, 0);
        let of_a = registered(&*a, target.pair.a.memory(8, 0), None);
        close_without(&*of_a, region);
        drop(of_a);
        let before = target.content(0, REGION);
        let other = target.pair.b.memory(4096, 0);
        let region = registered(&*b, other, Some(KEY));
        target.begin(&op, &[from]);
        target.over(&op).unwrap();
        assert_eq!(target.content(0, REGION), before, "{nic}");
        let bytes = target.pair.a.bytes(from.addr, from.len);
        assert_eq!(target.pair.b.bytes(other.addr, from.len), bytes, "{nic}");
        // And by the device again, with a grant of its own.
        target.await_grant();
        close_beside(region, &target.pair.a);
        drop(target);
        assert_eq!(device.misuse(), "");
    }
}

/// The target has the bytes of a write whose acknowledgement is lost, closes the region, and
/// registers other memory by the same key. The write does not go there, and the read of such a
/// region has no bytes from there.
#[test]
fn operations_in_doubt_stay_with_their_region() {
    for kind in [RmaKind::Write, RmaKind::Read] {
        let device = FakeDevice::take();
        let (a, b) = (domain(&[]), domain(&[]));
        let target = Target::open(&*a, &*b);
        let other = target.pair.b.memory(4096, 3);
        let region = target.register(KEY, BOTH);
        target.await_grant();
        let of_a = registered(&*a, target.pair.a.memory(8, 0), None);
        let point = match kind {
            RmaKind::Write => FaultPoint::Write,
            RmaKind::Read => FaultPoint::Read,
        };
        let lost = FaultEffect::FailAfterwards(ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
        device.script(Fault::new(point, lost));
        let (buf, bytes) = filled(&target.pair.a, 8, 5);
        let op = target.op(kind, 0);
        target.begin(&op, &[buf]);
        assert_eq!(device.faults_left(), 0);
        if kind == RmaKind::Write {
            assert_eq!(target.content(0, 8), bytes);
        }
        close_without(&*of_a, region);
        let region = registered(&*b, other, Some(KEY));
        let over = target.over(&op);
        assert_eq!(over.map_err(|error| error.errno).err(), Some(Errno::EACCES));
        assert_eq!(target.pair.b.bytes(other.addr, 8), [3; 8]);
        assert!(kind == RmaKind::Write || target.pair.a.bytes(buf.addr, 8) != [3; 8]);
        // A new operation reaches the new region.
        target.done(&target.op(RmaKind::Write, 0), &[buf]);
        close_beside(region, &target.pair.a);
        drop(of_a);
        drop(target);
        assert_eq!(device.misuse(), "");
    }
}

/// A device that denies what the peer has granted: the operation goes as messages, and so do later
/// ones with that key.
#[test]
fn a_device_that_denies() {
    for level in [Flags::empty(), Flags::DELIVERY_COMPLETE] {
        let device = FakeDevice::take();
        let (a, b) = (domain(&[]), domain(&[]));
        let target = Target::open(&*a, &*b);
        let region = target.register(KEY, BOTH);
        target.await_grant();
        let denied = FaultEffect::Fail(ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
        device.script(Fault::new(FaultPoint::Write, denied));
        let (op, from, place) = write(&target, 0);
        let op = RmaOp {
            flags: Flags::COMPLETION | level,
            ..op
        };
        target.begin(&op, &[from]);
        target.over(&op).unwrap();
        let bytes = target.pair.a.bytes(from.addr, from.len);
        assert_eq!(target.content(place, from.len), bytes);
        assert_eq!(device.faults_left(), 0);
        assert_eq!(target.stat("verbs_rma_again"), 1);
        let before = target.by_device();
        for number in 0..9 {
            let (op, from, _) = write(&target, number);
            target.begin(&op, &[from]);
            target.over(&op).unwrap();
        }
        assert_eq!(target.by_device(), before);
        close_beside(region, &target.pair.a);
    }
}

/// A write whose acknowledgement is lost is written once more, before it completes.
#[test]
fn an_acknowledgement_that_is_lost() {
    let device = FakeDevice::take();
    let (a, b) = (domain(&[]), domain(&[]));
    let target = Target::open(&*a, &*b);
    let _region = target.register(KEY, BOTH);
    for number in 0..9 {
        target.await_grant();
        let lost = FaultEffect::FailAfterwards(ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
        device.script(Fault::new(FaultPoint::Write, lost));
        let (op, from, place) = write(&target, number);
        target.begin(&op, &[from]);
        target.over(&op).unwrap();
        let bytes = target.pair.a.bytes(from.addr, from.len);
        assert_eq!(target.content(place, from.len), bytes);
        assert_eq!(target.stat("verbs_rma_again"), number as u64 + 1);
    }
}

/// A write with CQ data whose acknowledgement is lost comes once more before its data, and not after
/// them: what the target then puts into the memory stays.
#[test]
fn a_write_comes_no_more_after_its_data() {
    const PLACE: usize = 64;
    let device = FakeDevice::take();
    let (a, b) = (domain(&[]), domain(&[]));
    let target = Target::open(&*a, &*b);
    let _region = target.register(KEY, BOTH);
    target.await_grant();
    let lost = FaultEffect::FailAfterwards(ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
    device.script(Fault::new(FaultPoint::Write, lost));
    let (from, bytes) = filled(&target.pair.a, 8, 5);
    let op = RmaOp {
        data: 77,
        flags: Flags::COMPLETION | Flags::REMOTE_CQ_DATA,
        ..target.op(RmaKind::Write, PLACE)
    };
    target.begin(&op, &[from]);
    assert_eq!(device.faults_left(), 0);
    assert_eq!(target.content(PLACE, 8), bytes, "by the device");
    target.put(PLACE, &[1; 8]);
    let data = target.pair.next(&target.pair.b.rx).unwrap();
    let of_writes = Flags::RMA | Flags::REMOTE_WRITE | Flags::REMOTE_CQ_DATA;
    assert_eq!((data.flags, data.data), (of_writes, 77));
    assert_eq!(target.content(PLACE, 8), bytes, "by a message");
    target.put(PLACE, &[2; 8]);
    target.over(&op).unwrap();
    target.done(&target.op(RmaKind::Write, 0), &[from]);
    assert_eq!(target.content(PLACE, 8), [2; 8]);
    assert!(target.pair.b.rx.take().is_none(), "no second data");
}

/// A peer that is removed at either end: operations under way end, and the region closes.
///
/// Covers: AV-17
#[test]
fn a_peer_that_is_removed() {
    for removes_target in [true, false] {
        let device = FakeDevice::take();
        let (a, b) = (domain(&[]), domain(&[]));
        let target = Target::open(&*a, &*b);
        let region = target.register(KEY, BOTH);
        target.await_grant();
        let writes: Vec<_> = (0..9).map(|at| write(&target, at)).collect();
        device.hold(true);
        for (op, from, _) in &writes {
            target.begin(op, &[*from]);
        }
        let pair = &target.pair;
        match removes_target {
            true => pair.a.av.remove(pair.to_b).unwrap(),
            false => pair.b.av.remove(pair.to_a).unwrap(),
        }
        device.hold(false);
        if removes_target {
            for (op, ..) in &writes {
                let _ = target.over(op);
            }
        }
        close_beside(region, &pair.a);
        let after = target.content(0, REGION);
        target.pair.drive();
        assert_eq!(target.content(0, REGION), after);
        drop(target);
        assert_eq!(device.misuse(), "");
    }
}
