//! DGRAM endpoints: what the calls of the object model do.

#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_core::addr::{NATIVE_LEN, NativeAddr, VerbsAddr};
use ferrofabric_core::av::AvAttr;
use ferrofabric_core::error::{Errno, OpError};
use ferrofabric_core::fabric::{Av, Cq, CqAttr, Domain, Endpoint, EndpointConfig, RecvOp};
use ferrofabric_core::flags::Flags;
use ferrofabric_core::info::Progress;
use ferrofabric_core::owning::{Buffer, Done, OwningEndpoint};
use ferrofabric_core::peer::Completion;
use ferrofabric_core::types::{FiAddr, IoBuf, MsgKind, SendOp};
use ferrofabric_hw_tests::dgram::{
    self, PATIENCE, Prefix, count, domain, endpoint, info, next, open, quiet,
};
use ferrofabric_hw_tests::{Rig, party};
use serial_test::file_serial;

const BOTH: [Prefix; 2] = [Prefix::None, Prefix::Room];

/// Two endpoints that know each other.
struct Pair {
    domain: Arc<dyn Domain>,
    a: OwningEndpoint,
    b: OwningEndpoint,
    to_a: FiAddr,
    to_b: FiAddr,
    prefix: usize,
    mtu: usize,
}

impl Pair {
    fn open(prefix: Prefix) -> Option<Self> {
        Rig::open()?;
        let domain = domain(&[], prefix);
        let (a, b) = (endpoint(&*domain), endpoint(&*domain));
        let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
        let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
        Some(Self {
            mtu: domain.info().ep.max_msg_size,
            domain,
            a,
            b,
            to_a,
            to_b,
            prefix: prefix.bytes(),
        })
    }

    /// A buffer for so long a message, and what is before it.
    fn buffer(&self, len: usize, registered: bool) -> Buffer {
        let mut buffer = Buffer::new(self.prefix + len).unwrap();
        if registered {
            buffer.register(&*self.domain).unwrap();
        }
        buffer
    }

    fn message(&self, len: usize, seed: u64, registered: bool) -> Buffer {
        let mut buffer = self.buffer(len, registered);
        party::fill(&mut buffer[self.prefix..], seed);
        buffer
    }

    /// `a` sends so much, which arrives in a receive of `b` that is posted.
    fn deliver(&mut self, len: usize, seed: u64, registered: bool) -> Done {
        let out = self.message(len, seed, registered);
        let (prefix, to_b) = (self.prefix, self.to_b);
        self.a.send(out, prefix + len, to_b, None, seed).unwrap();
        let sent = next(&mut self.a, "the send");
        assert_eq!(sent.token, seed);
        party::check(&sent.buffer[prefix..], seed, "what was sent");
        let completion = sent.outcome.unwrap();
        assert_eq!(completion.flags, Flags::MSG | Flags::SEND);
        next(&mut self.b, "the receive")
    }
}

/// What arrived is the message, from this address.
fn check(done: &Done, prefix: usize, len: usize, seed: u64, src: FiAddr) {
    let completion = done.outcome.as_ref().unwrap();
    assert_eq!(completion.len, prefix + len);
    assert_eq!(completion.flags, Flags::MSG | Flags::RECV);
    assert_eq!(completion.src, src);
    party::check(&done.buffer[prefix..prefix + len], seed, "what arrived");
}

/// Covers: GI-4, AV-25
#[test]
#[file_serial(verbs)]
fn datagrams_of_every_size_arrive() {
    for prefix in BOTH {
        let Some(mut pair) = Pair::open(prefix) else {
            return;
        };
        let mtu = pair.mtu;
        let mut seed = 0;
        for len in [0, 1, 7, 64, 511, 512, 513, 1000, mtu - 1, mtu] {
            // Buffers that just fit, and such as the device gets itself.
            for (room, registered) in [(len, false), (len, true), (mtu, true), (mtu + 100, true)] {
                seed += 1;
                let into = pair.buffer(room, registered);
                pair.b.recv(into, FiAddr::UNSPEC, seed).unwrap();
                let done = pair.deliver(len, seed, registered);
                assert_eq!(done.token, seed);
                check(&done, pair.prefix, len, seed, pair.to_a);
                let behind = &done.buffer[pair.prefix + len..];
                assert!(behind.iter().all(|byte| *byte == 0), "{len} of {room}");
            }
        }
        assert_eq!(count(&pair.a, "dgram_messages_sent"), seed);
        assert_eq!(count(&pair.b, "dgram_messages_received"), seed);
        assert_eq!(count(&pair.b, "dgram_resets"), 0);
    }
}

#[test]
#[file_serial(verbs)]
fn many_are_under_way_both_ways() {
    for prefix in BOTH {
        let Some(mut pair) = Pair::open(prefix) else {
            return;
        };
        const WINDOW: u64 = 32;
        for round in 0..20 {
            let first = round * WINDOW + 1;
            let len = |seed: u64| (seed as usize * 131) % (pair.mtu + 1);
            for seed in first..first + WINDOW {
                let registered = seed % 3 == 0;
                let (for_a, for_b) = (
                    pair.buffer(pair.mtu, registered),
                    pair.buffer(pair.mtu, !registered),
                );
                pair.a.recv(for_a, FiAddr::UNSPEC, seed).unwrap();
                pair.b.recv(for_b, FiAddr::UNSPEC, seed).unwrap();
            }
            for seed in first..first + WINDOW {
                let (of_a, of_b) = (
                    pair.message(len(seed), seed, seed % 5 == 0),
                    pair.message(len(seed), seed, seed % 2 == 0),
                );
                let bytes = pair.prefix + len(seed);
                let token = 1 << 32 | seed;
                pair.a.send(of_a, bytes, pair.to_b, None, token).unwrap();
                pair.b.send(of_b, bytes, pair.to_a, None, token).unwrap();
            }
            // Soft-RoCE on one device loses none, and keeps their order.
            for (end, src) in [(&mut pair.a, pair.to_b), (&mut pair.b, pair.to_a)] {
                let mut arrived = first;
                for _ in 0..2 * WINDOW {
                    let done = next(end, "a message");
                    if done.token < 1 << 32 {
                        assert_eq!(done.token, arrived);
                        let bytes = (arrived as usize * 131) % (pair.mtu + 1);
                        check(&done, pair.prefix, bytes, arrived, src);
                        arrived += 1;
                    } else {
                        done.outcome.unwrap();
                    }
                }
                assert_eq!(arrived, first + WINDOW);
            }
        }
    }
}

/// Covers: GI-4
#[test]
#[file_serial(verbs)]
fn injected_messages_and_cq_data() {
    for prefix in BOTH {
        let Some(mut pair) = Pair::open(prefix) else {
            return;
        };
        for (i, len) in [0, 30, 600, pair.mtu].into_iter().enumerate() {
            let data = 0x89ab_cdef - i as u64;
            for data in [None, Some(data), Some(data | 0x7 << 40)] {
                let mut message = vec![0xaa; pair.prefix + len];
                party::fill(&mut message[pair.prefix..], len as u64);
                let into = pair.buffer(pair.mtu, len == 600);
                pair.b.recv(into, FiAddr::UNSPEC, 1).unwrap();
                pair.a.inject(&message, pair.to_b, data).unwrap();
                message.fill(0x55);
                let done = next(&mut pair.b, "the receive");
                let completion = done.outcome.as_ref().unwrap();
                // What the datagram has room for: 4 bytes (`cq_data_size`).
                let (flags, data) = match data {
                    None => (Flags::empty(), 0),
                    Some(data) => (Flags::REMOTE_CQ_DATA, data & 0xffff_ffff),
                };
                assert_eq!(completion.flags, Flags::MSG | Flags::RECV | flags);
                assert_eq!(completion.data, data);
                let payload = &done.buffer[pair.prefix..completion.len];
                assert_eq!(payload.len(), len);
                party::check(payload, len as u64, "an injected message");
            }
        }
        // Injected messages do not complete.
        quiet(&mut [&mut pair.a, &mut pair.b]);
        let into = pair.buffer(8, false);
        pair.b.recv(into, FiAddr::UNSPEC, 2).unwrap();
        let out = pair.message(8, 3, false);
        pair.a
            .send(out, pair.prefix + 8, pair.to_b, Some(77), 4)
            .unwrap();
        next(&mut pair.a, "the send").outcome.unwrap();
        let done = next(&mut pair.b, "the receive");
        assert_eq!(done.outcome.unwrap().data, 77);
    }
}

/// Covers: GI-4
#[test]
#[file_serial(verbs)]
fn more_than_the_mtu_is_refused() {
    for prefix in BOTH {
        let Some(mut pair) = Pair::open(prefix) else {
            return;
        };
        let too_long = OpError::Failed(Errno::EMSGSIZE);
        let bytes = pair.prefix + pair.mtu + 1;
        let out = pair.buffer(pair.mtu + 1, true);
        let refused = pair.a.send(out, bytes, pair.to_b, None, 1);
        assert_eq!(refused.unwrap_err().0, too_long);
        assert_eq!(
            pair.a.inject(&vec![0; bytes], pair.to_b, None),
            Err(too_long)
        );
        // A peer whose port takes less.
        let name = pair.b.name();
        let smaller = NativeAddr {
            verbs: name.verbs.map(|v| VerbsAddr {
                mtu_bytes: 256,
                ..v
            }),
            ..name
        };
        let to_b = pair.a.av().insert(&smaller.to_bytes()).unwrap();
        let bytes = pair.prefix + 257;
        assert_eq!(pair.a.inject(&vec![0; bytes], to_b, None), Err(too_long));
        let into = pair.buffer(256, false);
        pair.b.recv(into, FiAddr::UNSPEC, 2).unwrap();
        pair.a.inject(&vec![0; bytes - 1], to_b, None).unwrap();
        assert_eq!(
            next(&mut pair.b, "the receive").outcome.unwrap().len,
            bytes - 1
        );
        quiet(&mut [&mut pair.a, &mut pair.b]);
    }
}

/// Covers: GI-4
#[test]
#[file_serial(verbs)]
fn buffers_without_room_for_the_prefix_are_refused() {
    let Some(mut pair) = Pair::open(Prefix::Room) else {
        return;
    };
    let invalid = OpError::Failed(Errno::EINVAL);
    assert_eq!(pair.a.inject(&[0; 39], pair.to_b, None), Err(invalid));
    let short = Buffer::new(39).unwrap();
    assert_eq!(
        pair.b.recv(short, FiAddr::UNSPEC, 1).unwrap_err().0,
        invalid
    );
    // No more than the room: an empty message.
    let just = Buffer::new(40).unwrap();
    pair.b.recv(just, FiAddr::UNSPEC, 2).unwrap();
    pair.a.inject(&[0; 40], pair.to_b, None).unwrap();
    assert_eq!(next(&mut pair.b, "the receive").outcome.unwrap().len, 40);
}

#[test]
#[file_serial(verbs)]
fn what_does_not_fit_is_truncated() {
    for prefix in BOTH {
        let Some(mut pair) = Pair::open(prefix) else {
            return;
        };
        for (len, room) in [(1, 0), (100, 60), (pair.mtu, pair.mtu - 1)] {
            let into = pair.buffer(room, true);
            pair.b.recv(into, FiAddr::UNSPEC, 1).unwrap();
            let done = pair.deliver(len, 9, false);
            let error = done.outcome.unwrap_err();
            assert_eq!((error.errno, error.olen), (Errno::ETRUNC, len - room));
            assert_eq!(error.completion.len, pair.prefix + room);
            let mut whole = vec![0; len];
            party::fill(&mut whole, 9);
            assert!(done.buffer[pair.prefix..] == whole[..room]);
        }
    }
}

/// Covers: AV-17, AV-25
#[test]
#[file_serial(verbs)]
fn completions_name_the_sender_if_it_is_known() {
    let Some(mut pair) = Pair::open(Prefix::None) else {
        return;
    };
    let others = [endpoint(&*pair.domain), endpoint(&*pair.domain)];
    let to_b: Vec<FiAddr> = others
        .iter()
        .map(|other| other.av().insert(&pair.b.name().to_bytes()).unwrap())
        .collect();
    let ask = |b: &mut OwningEndpoint, which: usize| {
        b.recv(Buffer::new(8).unwrap(), FiAddr::UNSPEC, 1).unwrap();
        others[which].inject(b"who?", to_b[which], None).unwrap();
        next(b, "the receive").outcome.unwrap().src
    };
    assert_eq!(ask(&mut pair.b, 0), FiAddr::NOTAVAIL);
    assert_eq!(count(&pair.b, "dgram_unknown_senders"), 1);
    let known: Vec<FiAddr> = others
        .iter()
        .map(|other| pair.b.av().insert(&other.name().to_bytes()).unwrap())
        .collect();
    for which in [0, 1, 0] {
        assert_eq!(ask(&mut pair.b, which), known[which]);
    }
    pair.b.av().remove(known[0]).unwrap();
    assert_eq!(ask(&mut pair.b, 0), FiAddr::NOTAVAIL);
    assert_eq!(ask(&mut pair.b, 1), known[1]);
    let again = pair.b.av().insert(&others[0].name().to_bytes()).unwrap();
    assert_eq!(ask(&mut pair.b, 0), again);
    assert_ne!(again, known[0]);
}

#[test]
#[file_serial(verbs)]
fn datagrams_that_find_no_receive_are_lost() {
    for prefix in BOTH {
        let Some(mut pair) = Pair::open(prefix) else {
            return;
        };
        for seed in 1..=20 {
            let out = pair.message(100, seed, false);
            let bytes = pair.prefix + 100;
            pair.a.send(out, bytes, pair.to_b, None, seed).unwrap();
            // All the same they were sent.
            next(&mut pair.a, "the send").outcome.unwrap();
        }
        quiet(&mut [&mut pair.a, &mut pair.b]);
        let into = pair.buffer(100, false);
        pair.b.recv(into, FiAddr::UNSPEC, 1).unwrap();
        quiet(&mut [&mut pair.b]);
        let done = pair.deliver(100, 77, false);
        check(&done, pair.prefix, 100, 77, pair.to_a);
    }
}

/// The limits are what the offer says.
#[test]
#[file_serial(verbs)]
fn as_many_receives_as_offered_can_be_posted() {
    for prefix in BOTH {
        let Some(mut pair) = Pair::open(prefix) else {
            return;
        };
        let depth = pair.domain.info().rx.size as u64;
        for seed in 0..depth {
            let into = pair.buffer(pair.mtu, seed % 2 == 0);
            pair.b.recv(into, FiAddr::UNSPEC, seed).unwrap();
        }
        for registered in [true, false] {
            let into = pair.buffer(pair.mtu, registered);
            let refused = pair.b.recv(into, FiAddr::UNSPEC, depth).unwrap_err();
            assert_eq!(refused.0, OpError::Again);
        }
        for seed in 0..depth {
            let done = pair.deliver(20, seed, false);
            assert_eq!(done.token, seed);
            check(&done, pair.prefix, 20, seed, pair.to_a);
        }
    }
}

#[test]
#[file_serial(verbs)]
fn receives_are_taken_back() {
    for prefix in BOTH {
        let Some(mut pair) = Pair::open(prefix) else {
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
            let error = done.outcome.unwrap_err();
            assert_eq!(error.errno, Errno::ECANCELED);
            assert_eq!(error.completion.flags, Flags::MSG | Flags::RECV);
            assert_eq!(
                pair.b.cancel(2),
                Err(OpError::Failed(Errno::ENOENT)),
                "it is over"
            );
            for token in [1, 3, 4] {
                let done = pair.deliver(50, token, false);
                assert_eq!(done.token, token);
                check(&done, pair.prefix, 50, token, pair.to_a);
            }
            // Whatever is left of it in the queue: nobody gets a datagram.
            pair.a
                .inject(&vec![0; pair.prefix + 9], pair.to_b, None)
                .unwrap();
            quiet(&mut [&mut pair.a, &mut pair.b]);
            assert_eq!(count(&pair.b, "dgram_resets"), resets);
        }
    }
}

/// What was sent before a cancellation is over, and sends go on after it.
#[test]
#[file_serial(verbs)]
fn a_reset_ends_no_send_in_failure() {
    let Some(mut pair) = Pair::open(Prefix::None) else {
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
    check(&pair.deliver(100, 5, false), 0, 100, 5, pair.to_a);
}

/// An endpoint with the bare calls.
struct Bare {
    endpoint: Arc<dyn Endpoint>,
    cq: Arc<dyn Cq>,
    av: Arc<dyn Av>,
}

const BLANK: Completion = Completion {
    context: 0,
    flags: Flags::empty(),
    len: 0,
    buf: 0,
    data: 0,
    tag: 0,
    src: FiAddr::NOTAVAIL,
};

impl Bare {
    fn open(domain: &dyn Domain) -> Self {
        let av = domain.open_av(&AvAttr::default()).unwrap();
        let cq = domain.open_cq(&CqAttr::default()).unwrap();
        let endpoint = domain.open_endpoint(EndpointConfig::new(&av, &cq)).unwrap();
        Self { endpoint, cq, av }
    }

    fn next(&self) -> Result<Completion, OpError> {
        next_of(&*self.cq)
    }
}

fn next_of(cq: &dyn Cq) -> Result<Completion, OpError> {
    let mut one = [BLANK];
    let until = Instant::now() + PATIENCE;
    loop {
        match cq.read(&mut one) {
            Ok(_) => return Ok(one[0]),
            Err(OpError::Again) => {}
            Err(error) => return Err(error),
        }
        assert!(Instant::now() < until, "nothing completes in time");
    }
}

fn send_op(dest: FiAddr, context: u64) -> SendOp {
    SendOp {
        kind: MsgKind::Msg,
        dest,
        tag: 0,
        data: 0,
        desc: 0,
        context,
        flags: Flags::COMPLETION,
    }
}

fn recv_op(context: u64) -> RecvOp {
    RecvOp {
        kind: MsgKind::Msg,
        src: FiAddr::UNSPEC,
        tag: 0,
        ignore: 0,
        desc: 0,
        context,
        flags: Flags::COMPLETION,
    }
}

fn io(bytes: &mut [u8]) -> IoBuf {
    IoBuf::new(bytes.as_mut_ptr(), bytes.len())
}

#[test]
#[file_serial(verbs)]
fn lists_of_buffers() {
    if Rig::open().is_none() {
        return;
    }
    for prefix in BOTH {
        let domain = domain(&[], prefix);
        let (a, b) = (Bare::open(&*domain), Bare::open(&*domain));
        let to_b = a.av.insert(&b.endpoint.name().to_bytes()).unwrap();
        let room = prefix.bytes();
        for total in [0, 10, 700, 1000] {
            let mut message = vec![0; total];
            party::fill(&mut message, 5);
            let cut = total / 3;
            // The prefix by itself, or before the first part.
            let mut parts = [
                vec![0xbb; room],
                message[..cut].to_vec(),
                message[cut..].to_vec(),
                vec![],
            ];
            let mut into = [vec![0; room + 3], vec![0; 0], vec![0; 500], vec![0; 497]];
            let out = parts.each_mut().map(|part| io(part));
            let to = into.each_mut().map(|part| io(part));
            // SAFETY: the memory stays until both completions are read, below.
            unsafe {
                b.endpoint.recv(&recv_op(1), &to).unwrap();
                a.endpoint.send(&send_op(to_b, 2), &out).unwrap();
            }
            assert_eq!(a.next().unwrap().context, 2);
            let completion = b.next().unwrap();
            assert_eq!((completion.context, completion.buf), (1, 0));
            assert_eq!(completion.len, room + total);
            assert_eq!(into.concat()[room..room + total], message[..]);
        }
        let five = [IoBuf::EMPTY; 5];
        let invalid = Err(OpError::Failed(Errno::EINVAL));
        // SAFETY: there is no memory.
        unsafe {
            assert_eq!(b.endpoint.recv(&recv_op(1), &five), invalid);
            assert_eq!(a.endpoint.send(&send_op(to_b, 2), &five), invalid);
        }
    }
}

#[test]
#[file_serial(verbs)]
fn what_datagrams_do_not_have_is_refused() {
    if Rig::open().is_none() {
        return;
    }
    let domain = domain(&[], Prefix::None);
    let a = Bare::open(&*domain);
    let own = a.av.insert(&a.endpoint.name().to_bytes()).unwrap();
    let failed = |errno| Err(OpError::Failed(errno));
    let tagged = MsgKind::Tagged;
    // SAFETY: there is no memory.
    unsafe {
        let send = SendOp {
            kind: tagged,
            ..send_op(own, 1)
        };
        assert_eq!(a.endpoint.send(&send, &[]), failed(Errno::ENOSYS));
        let recv = RecvOp {
            kind: tagged,
            ..recv_op(1)
        };
        assert_eq!(a.endpoint.recv(&recv, &[]), failed(Errno::ENOSYS));
        for flag in [Flags::PEEK, Flags::MULTI_RECV, Flags::CLAIM, Flags::DISCARD] {
            let recv = RecvOp {
                flags: flag,
                ..recv_op(1)
            };
            assert_eq!(a.endpoint.recv(&recv, &[]), failed(Errno::EBADFLAGS));
        }
        for promise in [Flags::DELIVERY_COMPLETE, Flags::FENCE] {
            let send = SendOp {
                flags: promise,
                ..send_op(own, 1)
            };
            assert_eq!(a.endpoint.send(&send, &[]), failed(Errno::EOPNOTSUPP));
        }
        let nobody = send_op(FiAddr(12345), 1);
        assert_eq!(a.endpoint.send(&nobody, &[]), failed(Errno::EADDRNOTAVAIL));
    }
    // Who has no queue pair of this network is out of reach.
    let name = a.endpoint.name();
    let elsewhere = NativeAddr {
        shm: Some(1),
        verbs: None,
        ..name
    };
    let elsewhere = a.av.insert(&elsewhere.to_bytes()).unwrap();
    // SAFETY: there is no memory.
    let refused = unsafe { a.endpoint.send(&send_op(elsewhere, 1), &[]) };
    assert_eq!(refused, failed(Errno::EHOSTUNREACH));
    assert_eq!(a.endpoint.set_min_multi_recv(1), failed(Errno::EOPNOTSUPP));
    // A counter counts what nobody wants to be told of, and is no reason for completions.
    let av = domain.open_av(&AvAttr::default()).unwrap();
    let cq = domain.open_cq(&CqAttr::default()).unwrap();
    let (sends, receives) = (domain.open_cntr().unwrap(), domain.open_cntr().unwrap());
    let counted = domain
        .open_endpoint(EndpointConfig {
            tx_cntr: Some(sends.clone()),
            rx_cntr: Some(receives.clone()),
            ..EndpointConfig::new(&av, &cq)
        })
        .unwrap();
    let own = av.insert(&counted.name().to_bytes()).unwrap();
    for _ in 0..5 {
        let (send, recv) = (
            SendOp {
                flags: Flags::empty(),
                ..send_op(own, 1)
            },
            RecvOp {
                flags: Flags::empty(),
                ..recv_op(1)
            },
        );
        // SAFETY: there is no memory.
        unsafe {
            counted.recv(&recv, &[]).unwrap();
            counted.send(&send, &[]).unwrap();
        }
    }
    assert_eq!(sends.wait(5, Some(PATIENCE)), Ok(5));
    assert_eq!(receives.wait(5, Some(PATIENCE)), Ok(5));
    assert_eq!(cq.read(&mut [BLANK]), Err(OpError::Again));
}

/// Covers: AV-24
#[test]
#[file_serial(verbs)]
fn many_peers_share_a_queue_an_address_vector_and_a_path() {
    if Rig::open().is_none() {
        return;
    }
    const PEERS: usize = 12;
    let domain = domain(&[], Prefix::None);
    let av = domain.open_av(&AvAttr::default()).unwrap();
    let cq = domain.open_cq(&CqAttr::default()).unwrap();
    let open = || domain.open_endpoint(EndpointConfig::new(&av, &cq)).unwrap();
    // The first half is in the address vector before the second half is there.
    let mut peers: Vec<Arc<dyn Endpoint>> = (0..PEERS / 2).map(|_| open()).collect();
    let insert = |peer: &Arc<dyn Endpoint>| av.insert(&peer.name().to_bytes()).unwrap();
    let mut addrs: Vec<FiAddr> = peers.iter().map(insert).collect();
    let late: Vec<Arc<dyn Endpoint>> = (PEERS / 2..PEERS).map(|_| open()).collect();
    addrs.extend(late.iter().map(insert));
    peers.extend(late);
    let mut memory = vec![[0u8; 8]; PEERS * PEERS];
    for (to, peer) in peers.iter().enumerate() {
        for from in 0..PEERS {
            let context = to * PEERS + from;
            let into = io(&mut memory[context]);
            // SAFETY: the memory stays until all completions are read, below.
            unsafe { peer.recv(&recv_op(context as u64), &[into]).unwrap() };
        }
    }
    for (from, peer) in peers.iter().enumerate() {
        for (to, addr) in addrs.iter().enumerate() {
            let mut message = [(from * PEERS + to) as u8; 8];
            let op = SendOp {
                flags: Flags::INJECT | Flags::COMPLETION,
                ..send_op(*addr, u64::MAX)
            };
            // SAFETY: an inject is copied.
            unsafe { peer.send(&op, &[io(&mut message)]).unwrap() };
        }
    }
    let (mut sent, mut seen) = (0, vec![[false; PEERS]; PEERS]);
    for _ in 0..2 * PEERS * PEERS {
        let done = next_of(&*cq).unwrap();
        if done.context == u64::MAX {
            assert_eq!(done.flags, Flags::MSG | Flags::SEND);
            sent += 1;
            continue;
        }
        let to = done.context as usize / PEERS;
        let from = addrs.iter().position(|addr| *addr == done.src).unwrap();
        assert_eq!(
            memory[done.context as usize],
            [(from * PEERS + to) as u8; 8]
        );
        assert!(!seen[to][from], "twice from {from} to {to}");
        seen[to][from] = true;
    }
    assert_eq!(sent, PEERS * PEERS);
    for peer in &peers {
        let stats = peer.stats().unwrap();
        let handles = stats.iter().find(|(name, _)| *name == "dgram_handles_now");
        assert_eq!(handles.unwrap().1, 1, "one path, one handle");
    }
    // The handle goes with the last that has it.
    let handles = |peer: &Arc<dyn Endpoint>| {
        let stats = peer.stats().unwrap();
        let handles = stats.iter().find(|(name, _)| *name == "dgram_handles_now");
        handles.unwrap().1
    };
    for addr in &addrs[1..] {
        av.remove(*addr).unwrap();
    }
    assert_eq!(cq.read(&mut [BLANK]), Err(OpError::Again));
    assert_eq!(handles(&peers[0]), 1);
    av.remove(addrs[0]).unwrap();
    assert_eq!(cq.read(&mut [BLANK]), Err(OpError::Again));
    assert_eq!(handles(&peers[0]), 0);
    let op = send_op(addrs[0], 1);
    // SAFETY: there is no memory.
    let removed = unsafe { peers[0].send(&op, &[]) };
    assert_eq!(removed, Err(OpError::Failed(Errno::EADDRNOTAVAIL)));
}

/// Whose address does not resolve is an error of its own sends; others do not wait for it.
#[test]
#[file_serial(verbs)]
fn a_peer_that_can_not_be_reached_fails_by_itself() {
    let Some(mut pair) = Pair::open(Prefix::None) else {
        return;
    };
    let name = pair.b.name();
    let nowhere = |qpn: u32| NativeAddr {
        verbs: name.verbs.map(|v| VerbsAddr {
            gid: [0; 16],
            qpn,
            ..v
        }),
        ..name
    };
    let addr = pair.a.av().insert(&nowhere(1).to_bytes()).unwrap();
    for token in 0..3 {
        let out = pair.message(100, token, false);
        pair.a.send(out, 100, addr, None, token).unwrap();
    }
    pair.b
        .recv(Buffer::new(9).unwrap(), FiAddr::UNSPEC, 1)
        .unwrap();
    pair.a.inject(b"meanwhile", pair.to_b, None).unwrap();
    assert_eq!(next(&mut pair.b, "the receive").outcome.unwrap().len, 9);
    for token in 0..3 {
        let done = next(&mut pair.a, "the failure");
        let error = done.outcome.unwrap_err();
        assert_eq!((done.token, error.errno), (token, Errno::EHOSTUNREACH));
    }
    // What waits for who is removed ends, and soon.
    let addr = pair.a.av().insert(&nowhere(2).to_bytes()).unwrap();
    let out = pair.message(100, 7, false);
    pair.a.send(out, 100, addr, None, 7).unwrap();
    pair.a.av().remove(addr).unwrap();
    let error = next(&mut pair.a, "the cancellation").outcome.unwrap_err();
    assert!(
        [Errno::ECANCELED, Errno::EHOSTUNREACH].contains(&error.errno),
        "{error:?}"
    );
    quiet(&mut [&mut pair.a, &mut pair.b]);
}

/// Covers: GI-13
#[test]
#[file_serial(verbs)]
fn a_sleeper_is_woken_by_a_datagram() {
    let Some(mut pair) = Pair::open(Prefix::None) else {
        return;
    };
    pair.b
        .recv(Buffer::new(9).unwrap(), FiAddr::UNSPEC, 1)
        .unwrap();
    let mut b = pair.b;
    assert!(b.wait(Some(Duration::from_millis(50))).unwrap().is_none());
    let sleeper = std::thread::spawn(move || {
        let done = b.wait(Some(PATIENCE)).unwrap();
        done.expect("woken in time").outcome.unwrap().len
    });
    pair.a.inject(b"good morn", pair.to_b, None).unwrap();
    assert_eq!(sleeper.join().unwrap(), 9);
    // The handle of a first send, too, wakes who waits for its completion.
    let fresh = endpoint(&*pair.domain);
    let own = fresh.av().insert(&fresh.name().to_bytes()).unwrap();
    let mut fresh = fresh;
    fresh
        .send(Buffer::new(8).unwrap(), 8, own, None, 5)
        .unwrap();
    let done = fresh.wait(Some(PATIENCE)).unwrap();
    assert_eq!(done.expect("sent in time").token, 5);
}

/// With automatic progress (fi_domain(3)): a send that waits for its handle, and a cancellation that waits for the queue pair.
#[test]
#[file_serial(verbs)]
fn an_application_that_does_not_call_is_served() {
    if Rig::open().is_none() {
        return;
    }
    let mut auto = info(&[], Prefix::None);
    auto.domain.data_progress = Progress::Auto;
    let domain = open(&auto);
    let sender = Bare::open(&*domain);
    let mut receiver = endpoint(&*dgram::domain(&[], Prefix::None));
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
    assert_eq!(sender.next(), Err(OpError::Failed(Errno::EAVAIL)));
}

/// A descriptor that is none any more fails the operation that has it, and no other.
#[test]
#[file_serial(verbs)]
fn memory_that_is_not_registered_fails_its_own_operation() {
    if Rig::open().is_none() {
        return;
    }
    let domain = domain(&[], Prefix::None);
    let mtu = domain.info().ep.max_msg_size;
    let (a, b) = (Bare::open(&*domain), Bare::open(&*domain));
    let to_b = a.av.insert(&b.endpoint.name().to_bytes()).unwrap();
    let mut memory = vec![0u8; mtu];
    let stale = {
        // SAFETY: the memory outlives the region.
        let region = unsafe { domain.register(io(&mut memory), Flags::SEND | Flags::RECV) };
        region.unwrap().desc()
    };
    let mut into = vec![0u8; mtu];
    for round in 0..3 {
        let bad = SendOp {
            desc: stale,
            ..send_op(to_b, 1)
        };
        // SAFETY: the memory stays until the completions.
        unsafe {
            b.endpoint.recv(&recv_op(2), &[io(&mut into)]).unwrap();
            a.endpoint.send(&bad, &[io(&mut memory)]).unwrap();
        }
        assert_eq!(a.next(), Err(OpError::Failed(Errno::EAVAIL)));
        let error = a.cq.read_error().unwrap().unwrap();
        assert_eq!((error.completion.context, error.errno), (1, Errno::EIO));
        assert_ne!(error.prov_errno, 0);
        memory.fill(round + 1);
        let until = Instant::now() + PATIENCE;
        loop {
            // SAFETY: as above.
            match unsafe { a.endpoint.send(&send_op(to_b, 3), &[io(&mut memory)]) } {
                Ok(()) => break,
                Err(OpError::Again) => {
                    assert_eq!(a.cq.read(&mut [BLANK]), Err(OpError::Again));
                }
                Err(error) => panic!("{error}"),
            }
            assert!(Instant::now() < until, "it does not send any more");
        }
        assert_eq!(a.next().unwrap().context, 3);
        assert_eq!(b.next().unwrap().context, 2);
        assert!(into == memory);
    }
    // The same for a receive; another that is posted besides goes on.
    let bad = RecvOp {
        desc: stale,
        ..recv_op(4)
    };
    // SAFETY: as above.
    unsafe {
        b.endpoint.recv(&bad, &[io(&mut into)]).unwrap();
        b.endpoint.recv(&recv_op(5), &[io(&mut memory)]).unwrap();
        let op = SendOp {
            flags: Flags::INJECT,
            ..send_op(to_b, 0)
        };
        a.endpoint.send(&op, &[io(&mut [7u8; 900])]).unwrap();
    }
    assert_eq!(b.next(), Err(OpError::Failed(Errno::EAVAIL)));
    let error = b.cq.read_error().unwrap().unwrap();
    assert_eq!((error.completion.context, error.errno), (4, Errno::EIO));
    let until = Instant::now() + PATIENCE;
    let mut one = [BLANK];
    // What is sent before the queue pair is ready again is lost.
    while b.cq.read(&mut one) == Err(OpError::Again) {
        let op = SendOp {
            flags: Flags::INJECT,
            ..send_op(to_b, 0)
        };
        // SAFETY: an inject is copied.
        let _ = unsafe { a.endpoint.send(&op, &[io(&mut [8u8; 900])]) };
        let _ = a.cq.read(&mut [BLANK]);
        assert!(Instant::now() < until, "the other receive got nothing");
    }
    assert_eq!((one[0].context, one[0].len), (5, 900));
    assert!(memory[..900].iter().all(|byte| *byte == 8));
}

/// Covers: GI-4
#[test]
#[file_serial(verbs)]
fn names_and_offers() {
    if Rig::open().is_none() {
        return;
    }
    let plain = info(&[], Prefix::None);
    let room = info(&[], Prefix::Room);
    assert_eq!((plain.ep.msg_prefix_size, room.ep.msg_prefix_size), (0, 40));
    assert_eq!(plain.ep.max_msg_size, room.ep.max_msg_size);
    assert_eq!(plain.tx.inject_size, room.tx.inject_size);
    let domain = domain(&[], Prefix::None);
    let (a, b) = (endpoint(&*domain), endpoint(&*domain));
    let (of_a, of_b) = (a.name(), b.name());
    assert_eq!(of_a.to_bytes().len(), NATIVE_LEN);
    assert_ne!(of_a.verbs.unwrap().qpn, of_b.verbs.unwrap().qpn);
    assert_ne!(of_a.incarnation, of_b.incarnation);
    assert_eq!(of_a.shm, None);
    let mtu = usize::from(of_a.verbs.unwrap().mtu_bytes);
    assert_eq!(mtu, plain.ep.max_msg_size);
}
