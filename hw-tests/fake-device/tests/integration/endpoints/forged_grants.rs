//! Parts about grants (`docs/adr/0063`) that a hostile peer with a lane forges.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::ends::{QueuedEndpoint, any_tagged};
use ferrofabric_conformance::target::{BOTH, KEY, REGION, Target, close_beside};
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RemoteKind, RmaKind, SendOp};
use ferrofabric_fake_device::control::FakeDevice;

use crate::endpoints::party::{assert_clean, domain};

/// The tag of the messages that become parts on their way.
pub(crate) const MARK: u64 = 0xbad0_0bad_bad0_0bad;

/// The number of the part, and its tag.
pub(crate) static PART: AtomicU8 = AtomicU8::new(0);
pub(crate) static TAG: AtomicU64 = AtomicU64::new(0);

/// Makes a part of an eager message with tag and CQ data, or of its first fragment: both have the
/// same fields.
pub(crate) extern "C" fn forge(bytes: *mut u8, len: usize) {
    const FLAGS: usize = 1;
    const PLACE_OF_TAG: usize = 16;
    if len < 32 {
        return;
    }
    // SAFETY: the device lends so many bytes.
    let packet = unsafe { std::slice::from_raw_parts_mut(bytes, len) };
    let tag = &mut packet[PLACE_OF_TAG..][..8];
    if tag == MARK.to_le_bytes() {
        tag.copy_from_slice(&TAG.load(Ordering::Relaxed).to_le_bytes());
        packet[FLAGS] |= PART.load(Ordering::Relaxed) << 3;
    }
}

/// Sends a part to a peer, and a message behind it that the peer receives.
fn send_part(
    hostile: &QueuedEndpoint,
    (victim, to): (&QueuedEndpoint, FiAddr),
    (part, tag, data, payload): (RemoteKind, u64, u64, IoBuf),
    drive: &dyn Fn(),
) {
    PART.store(part as u8, Ordering::Relaxed);
    TAG.store(tag, Ordering::Relaxed);
    let receive = any_tagged(victim.context());
    victim.recv(&receive, &[]).unwrap();
    let forged = SendOp {
        kind: MsgKind::Tagged,
        dest: to,
        tag: MARK,
        data,
        desc: MrDesc::NONE,
        context: hostile.context(),
        flags: Flags::COMPLETION | Flags::REMOTE_CQ_DATA,
    };
    let behind = SendOp {
        tag: 1,
        context: hostile.context(),
        flags: Flags::COMPLETION,
        ..forged
    };
    for (op, iov) in [(&forged, &[payload][..]), (&behind, &[])] {
        // SAFETY: the buffers live as long as the endpoint.
        while let Err(error) = unsafe { hostile.endpoint.send(op, iov) } {
            assert_eq!(error, OpError::Again);
            hostile.tx.pump();
            drive();
        }
    }
    loop {
        hostile.tx.pump();
        drive();
        victim.rx.pump();
        if let Some(came) = victim.rx.take_of(receive.context) {
            return assert_eq!(came.unwrap().tag, behind.tag, "{part:?}");
        }
    }
}

/// Fields of a grant of all memory, with a key that the peers may have.
fn grant_of_everything(rkey: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [0, 1 << 47, 0] {
        bytes.extend_from_slice(&u64::to_le_bytes(word));
    }
    bytes.extend_from_slice(&rkey.to_le_bytes());
    bytes.extend_from_slice(&3u32.to_le_bytes());
    bytes
}

/// A third endpoint forges every part about grants, with the numbers of queries and grants that the
/// victims have and others, in several lengths: no grant is given, taken or lost, nothing is
/// written, no lane breaks, and the region closes.
#[test]
fn forged_parts_about_grants_change_nothing() {
    let device = FakeDevice::take();
    let domains = [(); 3].map(|()| domain(&[("FERRO_LANE", "rc")]));
    let target = Target::open(&*domains[0], &*domains[1]);
    let region = target.register(KEY, BOTH);
    target.await_grant();
    let (a, b) = (&target.pair.a, &target.pair.b);
    let hostile = QueuedEndpoint::open_with(&*domains[2], &AvAttr::default(), |_| {});
    for victim in [a, b] {
        victim
            .av
            .insert(&hostile.endpoint.name().to_bytes())
            .unwrap();
    }
    let before = target.content(0, REGION);
    let guesses = [0, 1, 2, 1 << 32, (1 << 32) | 1, 2 << 32, KEY + 1, u64::MAX];
    let rkeys: Vec<_> = device.queue_pairs().iter().map(|qp| qp.number).collect();
    let payloads: Vec<IoBuf> = (rkeys.first().copied().into_iter().chain([0, 1]))
        .map(|rkey| {
            let bytes = grant_of_everything(rkey);
            let buf = hostile.memory(bytes.len(), 0);
            // SAFETY: the memory is the endpoint's, and nothing uses it yet.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf.as_mut_ptr(), buf.len) };
            buf
        })
        .chain([
            hostile.memory(8, 0xff),
            hostile.memory(200, 0xff),
            IoBuf::EMPTY,
        ])
        .collect();
    let drive = || target.pair.drive();
    device.tamper(Some(forge));
    for victim in [a, b] {
        let to = hostile
            .av
            .insert(&victim.endpoint.name().to_bytes())
            .unwrap();
        for part in [
            RemoteKind::Query,
            RemoteKind::Grant,
            RemoteKind::Revoke,
            RemoteKind::Revoked,
        ] {
            for tag in guesses {
                for data in [0, 1, 1 << 32, u64::MAX] {
                    let payload = payloads[(tag ^ data) as usize % payloads.len()];
                    send_part(&hostile, (victim, to), (part, tag, data, payload), &drive);
                }
                // With the length that the part has.
                for payload in [payloads[0], IoBuf::EMPTY] {
                    send_part(&hostile, (victim, to), (part, tag, 1, payload), &drive);
                }
            }
        }
    }
    device.tamper(None);
    assert!(
        target.content(0, REGION) == before,
        "the region has changed"
    );
    // The grant is valid still.
    let writes = target.by_device();
    target.done(&target.op(RmaKind::Write, 64), &[a.memory(8, 7)]);
    assert_eq!(target.by_device(), writes + 1);
    assert_eq!(target.content(64, 8), [7; 8]);
    for (end, given) in [(a, 0), (b, 1), (&hostile, 0)] {
        let stats = end.endpoint.stats().unwrap();
        let of = |name| stats.iter().find(|(of, _)| *of == name).map(|(_, n)| *n);
        assert_eq!(of("rma_grants_given"), Some(given));
        assert_eq!(of("verbs_lanes_failed"), Some(0));
    }
    // It waits for the grant of `a`, which no forged part has returned.
    close_beside(region, a);
    let stats = b.endpoint.stats().unwrap();
    assert!(stats.contains(&("rma_grants_revoked", 1)), "{stats:?}");
    assert_eq!(target.content(72, REGION - 72), before[72..]);
    drop((target, hostile));
    drop(domains);
    assert_clean(&device);
}
