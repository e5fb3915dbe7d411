//! The rights of peers: a peer with a lane may guess the keys of registrations.

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::ends::any_tagged;
use ferrofabric_conformance::target::{BOTH, KEY, Target};
use ferrofabric_contracts::atomics::{
    AtomicBuffers, AtomicForm, AtomicHead, AtomicOp, AtomicOperator, Datatype,
};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MrDesc};
use ferrofabric_fake_device::control::FakeDevice;
use ferrofabric_runtime::owning::OwningEndpoint;

use crate::endpoints::party::{PeerPair, assert_clean, domain, first, message, room, stat};

const MESSAGE: usize = 1 << 20;

/// The cached registrations of large messages: peers reach exactly the buffer that they were to
/// read or to write, with that right alone, and no other registration.
#[test]
fn a_guessed_key_opens_no_registration_for_this_side() {
    for rendezvous in ["read", "write"] {
        let device = FakeDevice::take();
        let mut pair =
            PeerPair::connected(&[("FERRO_LANE", "rc"), ("FERRO_RENDEZVOUS", rendezvous)]);
        let receive = pair.b.trecv(room(MESSAGE), pair.to_a, 1, 0, 1);
        receive.map_err(first).unwrap();
        let sent = (pair.a).tsend(message(MESSAGE, 1), MESSAGE, pair.to_b, 1, 2);
        sent.map_err(first).unwrap();
        // As long as the buffers are mapped, their registrations are kept.
        let done = pair.run(2);
        assert!(done.iter().all(|done| done.outcome.is_ok()), "{done:?}");
        let all = device.regions();
        let buffers = all.iter().filter(|region| region.len == MESSAGE as u64);
        let mut rights: Vec<_> = buffers
            .map(|region| (region.readable, region.writable))
            .collect();
        rights.sort_unstable();
        let of_peer = (rendezvous == "read", rendezvous == "write");
        if stat(&pair.a, "verbs_regions_kept") + stat(&pair.b, "verbs_regions_kept") > 0 {
            assert_eq!(rights, [(false, false), of_peer], "{all:?}");
        }
        let others = all.iter().filter(|region| region.len != MESSAGE as u64);
        for region in others {
            assert!(!region.readable && !region.writable, "{region:?}");
        }
        drop(done);
        drop(pair);
        assert_clean(&device);
    }
}

/// A peer that writes a request, or a message for a list of buffers, gets a right on memory that is
/// freed at once. It does not keep that right.
#[test]
fn memory_that_is_freed_is_no_longer_writable() {
    const ELEMENTS: usize = 100;
    let device = FakeDevice::take();
    let settings = [
        ("FERRO_LANE", "rc"),
        ("FERRO_RENDEZVOUS", "write"),
        ("FERRO_EAGER", "64"),
    ];
    let (a, b) = (domain(&settings), domain(&settings));
    let target = Target::open(&*a, &*b);
    let (from, to) = (&target.pair.a, &target.pair.b);
    let region = target.register(KEY, BOTH);
    let operands = from.memory(ELEMENTS * 8, 1);
    let op = AtomicOp {
        form: AtomicForm::Base,
        operator: AtomicOperator::Sum,
        datatype: Datatype::Uint64,
        dest: target.pair.to_b,
        key: KEY,
        place: 0,
        desc: MrDesc::NONE,
        context: from.context(),
        flags: Flags::COMPLETION,
    };
    let buffers = AtomicBuffers {
        operands: &[operands],
        compares: &[],
        results: &[],
    };
    // SAFETY: the buffers live as long as the endpoint.
    unsafe { from.endpoint.atomic(&op, &buffers) }.unwrap();
    let pieces = [to.memory(300, 0), to.memory(400, 0)];
    let receive = any_tagged(to.context());
    to.recv(&receive, &pieces).unwrap();
    let message = target.pair.tagged(7);
    from.send(to, message, 700, 2);
    for (queue, context) in [
        (&from.tx, op.context),
        (&from.tx, message.context),
        (&to.rx, receive.context),
    ] {
        let done = target.pair.wait(queue, context);
        assert!(done.is_ok(), "{done:?}");
    }
    let freed = [(AtomicHead::BYTES + operands.len) as u64, 700];
    let all = device.regions();
    for view in all.iter().filter(|view| view.writable) {
        assert!(!freed.contains(&view.len), "{view:?}");
    }
    drop(region);
    drop(target);
    drop((a, b));
    assert_clean(&device);
}

/// A registration of the application has the rights of peers that it has requested, and no other:
/// not for sends either.
#[test]
fn registered_memory_has_the_requested_rights() {
    const CASES: [(Flags, (bool, bool)); 4] = [
        (Flags::SEND.union(Flags::RECV), (false, false)),
        (Flags::SEND.union(Flags::REMOTE_READ), (true, false)),
        (Flags::REMOTE_WRITE, (false, true)),
        (Flags::REMOTE_READ.union(Flags::REMOTE_WRITE), (true, true)),
    ];
    let device = FakeDevice::take();
    let domains = [(); 2].map(|()| domain(&[("FERRO_LANE", "rc")]));
    let [a, b] =
        [0, 1].map(|at: usize| OwningEndpoint::open(&*domains[at], &AvAttr::default()).unwrap());
    let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
    let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
    let mut pair = PeerPair { a, b, to_b, to_a };
    pair.exchange(8, 0);
    let memory = vec![0_u8; 3 * MESSAGE];
    for (access, rights) in CASES {
        let buf = IoBuf::new(memory.as_ptr(), memory.len());
        // SAFETY: the memory stays until the region is dropped, and nothing writes it.
        let region = unsafe { domains[0].register(buf, access) }.unwrap();
        let all = device.regions();
        let found = all
            .iter()
            .find(|view| view.addr == buf.addr as u64)
            .unwrap();
        assert_eq!((found.readable, found.writable), rights, "{access:?}");
        drop(region);
    }
    drop((pair, domains));
    assert_clean(&device);
}
