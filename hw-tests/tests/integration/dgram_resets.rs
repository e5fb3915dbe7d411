//! DGRAM endpoints whose queue pair is reset, to take back a receive that the device has; and stale
//! descriptors, for which it is not.

use std::time::{Duration, Instant};

use ferrofabric_conformance::ends::{CompletionResult, QueuedEndpoint};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::Progress;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::dgram::{
    self, PATIENCE, PrefixRoom, count, domain, endpoint, info, next, open, pair, quiet, send_op,
};
use ferrofabric_runtime::owning::Buffer;
use serial_test::file_serial;

const BOTH: [PrefixRoom; 2] = [PrefixRoom::None, PrefixRoom::Room];

fn recv_op(context: u64) -> RecvOp {
    RecvOp {
        kind: MsgKind::Msg,
        src: FiAddr::UNSPEC,
        tag: 0,
        ignore: 0,
        desc: MrDesc::NONE,
        context,
        flags: Flags::COMPLETION,
    }
}

/// The operation that failed, and why.
fn failed(event: CompletionResult) -> (u64, Errno) {
    let error = event.unwrap_err();
    (error.completion.context, error.errno)
}

fn io(bytes: &mut [u8]) -> IoBuf {
    IoBuf::new(bytes.as_mut_ptr(), bytes.len())
}

#[test]
#[file_serial(verbs)]
fn only_what_the_device_has_costs_a_reset() {
    for prefix in BOTH {
        let Some(mut pair) = pair(prefix) else {
            return;
        };
        // Those that the device has are had back by a reset, the others at once.
        for (registered, resets) in [(false, 0), (true, 1)] {
            for token in 1..=4 {
                let into = pair.buffer(pair.mtu, registered);
                pair.b.recv(into, FiAddr::UNSPEC, token).unwrap();
            }
            pair.b.cancel(2).unwrap();
            let done = next(&mut pair.b, "the cancelled receive");
            assert_eq!(done.token, 2);
            assert_eq!(done.outcome.unwrap_err().errno, Errno::ECANCELED);
            for token in [1, 3, 4] {
                assert_eq!(pair.deliver(50, token), token);
            }
            // The device may still hold the cancelled receive: that receive alone may take this
            // datagram.
            pair.a
                .inject(&vec![0; pair.prefix + 9], pair.to_b, None)
                .unwrap();
            quiet(&mut [&mut pair.a, &mut pair.b]);
            assert_eq!(count(&pair.b, "dgram_resets"), resets);
        }
    }
}

/// Sends from before a cancellation succeed, and later sends go on.
#[test]
#[file_serial(verbs)]
fn a_reset_ends_no_send_in_failure() {
    let Some(mut pair) = pair(PrefixRoom::None) else {
        return;
    };
    for round in 0..10 {
        let into = pair.buffer(pair.mtu, true);
        pair.a.recv(into, FiAddr::UNSPEC, 1000).unwrap();
        for token in 0..40 {
            let into = pair.buffer(pair.mtu, false);
            pair.b.recv(into, FiAddr::UNSPEC, token).unwrap();
        }
        for token in 0..20 {
            let out = pair.message(pair.mtu, token, true);
            pair.a.inject(b"no completion", pair.to_b, None).unwrap();
            pair.a.send(out, pair.mtu, pair.to_b, None, token).unwrap();
        }
        pair.a.cancel(1000).unwrap();
        let (mut sent, mut cancelled) = (0, false);
        while sent < 20 || !cancelled {
            let done = next(&mut pair.a, "a send or the cancellation");
            match done.token {
                1000 => {
                    assert_eq!(done.outcome.unwrap_err().errno, Errno::ECANCELED);
                    cancelled = true;
                }
                token => {
                    done.outcome.unwrap();
                    assert_eq!(token, sent);
                    sent += 1;
                }
            }
        }
        assert_eq!(count(&pair.a, "dgram_resets"), round + 1);
        for token in 0..40 {
            let done = next(&mut pair.b, "a message from before the reset");
            let completion = done.outcome.unwrap();
            let wanted = if token % 2 == 0 { 13 } else { pair.mtu };
            assert_eq!((done.token, completion.len), (token, wanted));
        }
    }
    let into = pair.buffer(100, false);
    pair.b.recv(into, FiAddr::UNSPEC, 1).unwrap();
    assert_eq!(pair.deliver(100, 5), 1);
}

/// With automatic progress (fi_domain(3)): a send that waits for its handle, and a cancellation
/// that waits for the queue pair.
#[test]
#[file_serial(verbs)]
fn an_application_that_does_not_call_is_served() {
    if Rig::open().is_none() {
        return;
    }
    let mut auto = info(&[], PrefixRoom::None);
    auto.domain.data_progress = Progress::Auto;
    let domain = open(&auto);
    let sender = QueuedEndpoint::open(&*domain);
    let mut receiver = endpoint(&*dgram::domain(&[], PrefixRoom::None));
    receiver
        .recv(Buffer::new(9).unwrap(), FiAddr::UNSPEC, 1)
        .unwrap();
    let to = sender.av.insert(&receiver.name().to_bytes()).unwrap();
    let op = SendOp {
        flags: Flags::INJECT,
        ..send_op(to, 1)
    };
    // SAFETY: an inject is copied.
    unsafe { sender.endpoint.send(&op, &[io(&mut [7; 9])]).unwrap() };
    assert_eq!(next(&mut receiver, "the receive").outcome.unwrap().len, 9);

    let resets = || {
        let stats = sender.endpoint.stats().unwrap();
        stats.iter().find(|(n, _)| *n == "dgram_resets").unwrap().1
    };
    let mut memory = vec![0; auto.ep.max_msg_size];
    // SAFETY: the memory outlives the region, and the operation.
    let region = unsafe { domain.register(io(&mut memory), Flags::RECV) }.unwrap();
    let recv = RecvOp {
        desc: region.desc(),
        ..recv_op(2)
    };
    // SAFETY: as above.
    unsafe { sender.endpoint.recv(&recv, &[io(&mut memory)]).unwrap() };
    // Longer than the thread looks whether the application drives the domain itself: now it sleeps.
    std::thread::sleep(Duration::from_millis(50));
    sender.endpoint.cancel(2).unwrap();
    let until = Instant::now() + PATIENCE;
    while resets() == 0 {
        assert!(Instant::now() < until, "nobody sees to the cancellation");
        std::thread::yield_now();
    }
    let cancelled = failed(sender.rx.next_alone());
    assert_eq!(cancelled, (2, Errno::ECANCELED));
}

/// A descriptor that is none any more counts as none (fi_mr(3), `FI_MR_LOCAL`): no operation fails
/// by it, and the queue pair stays as it is.
#[test]
#[file_serial(verbs)]
fn a_descriptor_of_a_closed_region_counts_as_none() {
    if Rig::open().is_none() {
        return;
    }
    let domain = domain(&[], PrefixRoom::None);
    let mtu = domain.info().ep.max_msg_size;
    let (a, b) = (
        QueuedEndpoint::open(&*domain),
        QueuedEndpoint::open(&*domain),
    );
    let to_b = a.av.insert(&b.endpoint.name().to_bytes()).unwrap();
    let mut memory = vec![0u8; mtu];
    let stale = {
        // SAFETY: the memory outlives the region.
        let region = unsafe { domain.register(io(&mut memory), Flags::SEND | Flags::RECV) };
        region.unwrap().desc()
    };
    let mut into = vec![0u8; mtu];
    for round in 1..4 {
        memory.fill(round);
        let recv = RecvOp {
            desc: stale,
            ..recv_op(2)
        };
        let send = SendOp {
            desc: stale,
            ..send_op(to_b, 1)
        };
        // SAFETY: the memory stays until the completions.
        unsafe {
            b.endpoint.recv(&recv, &[io(&mut into)]).unwrap();
            a.endpoint.send(&send, &[io(&mut memory)]).unwrap();
        }
        assert_eq!(a.tx.next_alone().unwrap().context, 1);
        assert_eq!(b.rx.next_alone().unwrap().context, 2);
        assert!(into == memory);
    }
}
