//! Requests of one-sided operations that a hostile peer with a lane forges.

use std::sync::atomic::Ordering;

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::ends::{QueuedEndpoint, any_tagged};
use ferrofabric_conformance::target::{BOTH, KEY, Target, close_beside};
use ferrofabric_contracts::atomics::AtomicHead;
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RemoteKind, RmaKind, SendOp};
use ferrofabric_fake_device::control::FakeDevice;
use ferrofabric_runtime::fabric::CntrAttr;

use crate::endpoints::forged_grants::{MARK, PART, TAG, forge};
use crate::endpoints::fragments::SMALL_PACKETS;
use crate::endpoints::party::{assert_clean, domain};

/// Sends a tagged message as soon as there is room.
fn send(from: &QueuedEndpoint, dest: FiAddr, tag: u64, payload: IoBuf) {
    let op = SendOp {
        kind: MsgKind::Tagged,
        dest,
        tag,
        data: 0,
        desc: MrDesc::NONE,
        context: from.context(),
        flags: Flags::COMPLETION | Flags::REMOTE_CQ_DATA,
    };
    // SAFETY: the buffers live as long as the endpoint.
    while let Err(error) = unsafe { from.endpoint.send(&op, &[payload]) } {
        assert_eq!(error, OpError::Again);
        from.tx.pump();
    }
}

/// A request for an atomic operation never comes in fragments. A hostile peer sends one so, with
/// the number of the read that another peer is about to begin, and is removed when some of it has
/// come. The answer is for the hostile peer alone, and the other one has its bytes.
#[test]
fn the_answer_to_a_forged_request_reaches_no_other_peer() {
    let device = FakeDevice::take();
    let pairs: Vec<_> = (SMALL_PACKETS.into_iter())
        .chain([("FERRO_LANE", "rc")])
        .collect();
    let domains = [(); 3].map(|()| domain(&pairs));
    // No device gets a grant where a counter counts: each read goes as messages.
    let cntr = domains[1].open_cntr(&CntrAttr::default()).unwrap();
    let target = Target::open_with(
        (&*domains[0], &*domains[1]),
        |_| {},
        |config| config.remote_read_cntr = Some(cntr.clone()),
    );
    let region = target.register(KEY, BOTH);
    let (a, b) = (&target.pair.a, &target.pair.b);
    let hostile = QueuedEndpoint::open_with(&*domains[2], &AvAttr::default(), |_| {});
    let to_b = hostile.av.insert(&b.endpoint.name().to_bytes()).unwrap();
    let request = hostile.memory(AtomicHead::MAX_REQUEST_BYTES, 0);
    PART.store(RemoteKind::Atomic as u8, Ordering::Relaxed);
    TAG.store(KEY, Ordering::Relaxed);
    let receive = || {
        let receive = any_tagged(b.context());
        b.recv(&receive, &[]).unwrap();
        receive.context
    };
    let await_receive = |context| {
        while b.rx.take_of(context).is_none() {
            hostile.tx.pump();
            b.rx.pump();
        }
    };
    device.tamper(Some(forge));
    for read in 1..=8u64 {
        let name = hostile.endpoint.name().to_bytes();
        let address = b.av.insert(&name).unwrap();
        let first = receive();
        send(&hostile, to_b, 1, IoBuf::EMPTY);
        await_receive(first);

        let number = (read << 32).to_le_bytes();
        // SAFETY: the memory is the endpoint's, and nothing uses it.
        unsafe { std::ptr::copy_nonoverlapping(number.as_ptr(), request.as_mut_ptr(), 8) };
        let behind = receive();
        send(&hostile, to_b, MARK, request);
        send(&hostile, to_b, 1, IoBuf::EMPTY);
        for _ in 1..read {
            b.rx.pump();
        }
        b.av.remove(address).unwrap();
        await_receive(behind);
        target.done(&target.op(RmaKind::Read, 0), &[a.memory(8, 0)]);
    }
    device.tamper(None);
    close_beside(region, a);
    drop((target, hostile, cntr));
    drop(domains);
    assert_clean(&device);
}
