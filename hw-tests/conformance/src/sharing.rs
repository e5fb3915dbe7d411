//! Endpoints that share a queue, talk to themselves, close and come back.

use std::sync::Arc;
use std::time::Instant;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{FiAddr, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::{Cq, CqAttr, Endpoint, EndpointConfig};

use crate::ends::{BLANK, PATIENCE, QueuedEndpoint, QueuedPair, any_tagged, is_gone};
use crate::fabric::Fabric;
use crate::memory::MessageMemory;

/// Short, eager, in pieces or read by the receiver.
const SIZES: [usize; 4] = [0, 24, 8192, 120_000];

fn to(dest: FiAddr, context: u64, tag: u64) -> SendOp {
    SendOp {
        kind: MsgKind::Tagged,
        dest,
        tag,
        data: 0,
        desc: MrDesc::NONE,
        context,
        flags: Flags::COMPLETION,
    }
}

/// An endpoint sends to itself as to any other (fi_endpoint(3)), before and after the receive.
pub fn an_endpoint_sends_to_itself(fabric: &Fabric) {
    for rank in 0..2 {
        let end = QueuedEndpoint::open(fabric.domain(rank));
        let myself = end.av.insert(&end.endpoint.name().to_bytes()).unwrap();
        for len in fabric.sizes(&SIZES) {
            for early in [true, false] {
                let recv = RecvOp {
                    src: myself,
                    ..any_tagged(end.context())
                };
                let into = end.memory(len, 0);
                if early {
                    end.recv(&recv, &[into]).unwrap();
                }
                let send = to(myself, end.context(), 7);
                end.send_alone(send, len, 0x5a);
                if !early {
                    end.rx.pump();
                    end.recv(&recv, &[into]).unwrap();
                }
                let c = end.next_alone().unwrap();
                assert_eq!((c.context, c.len, c.src), (recv.context, len, myself));
                assert_eq!(end.bytes(into.addr, len), vec![0x5a; len]);
                let until = Instant::now() + PATIENCE;
                while end.tx.take_of(send.context).is_none() {
                    end.tx.pump();
                    assert!(Instant::now() < until, "a send of {len} bytes does not end");
                }
            }
        }
    }
}

/// Several endpoints on one completion queue: each operation completes in it once, and says whose
/// it is by its context (fi_cq(3)).
///
/// Covers: PEER-4
pub fn several_endpoints_on_one_queue(fabric: &Fabric) {
    const ENDS: usize = 4;
    const ROUNDS: u64 = 20;
    let domain = fabric.domain(0);
    let cq: Arc<dyn Cq> = domain
        .open_cq(&CqAttr {
            size: 4,
            ..CqAttr::default()
        })
        .unwrap();
    let av = domain.open_av(&AvAttr::default()).unwrap();
    let ends: Vec<Arc<dyn Endpoint>> = (0..ENDS)
        .map(|_| domain.open_endpoint(EndpointConfig::new(&av, &cq)).unwrap())
        .collect();
    let addrs: Vec<FiAddr> = ends
        .iter()
        .map(|end| av.insert(&end.name().to_bytes()).unwrap())
        .collect();
    let mut memory = Vec::new();
    let mut open: Vec<(u64, Option<usize>)> = Vec::new();
    let mut context = 0;
    let sizes = fabric.sizes(&SIZES);
    for round in 0..ROUNDS {
        let len = sizes[round as usize % sizes.len()];
        for from in 0..ENDS {
            let other = (from + 1 + round as usize % (ENDS - 1)) % ENDS;
            let into = MessageMemory::for_receive(len);
            context += 2;
            let recv = RecvOp {
                src: addrs[from],
                ..any_tagged(context)
            };
            // SAFETY: the memory is kept until the end of the test.
            unsafe { ends[other].recv(&recv, &into.list(1)) }.unwrap();
            open.push((context, Some(memory.len())));
            memory.push((into, len));
            let out = MessageMemory::of_message(memory.len() - 1, len);
            let send = to(addrs[other], context + 1, round);
            let until = Instant::now() + PATIENCE;
            // SAFETY: as above.
            while let Err(error) = unsafe { ends[from].send(&send, &out.list(1)) } {
                assert_eq!(error, OpError::Again);
                read(&*cq, &mut open, &memory);
                assert!(Instant::now() < until, "no room for a send");
            }
            open.push((context + 1, None));
            memory.push((out, len));
        }
    }
    let until = Instant::now() + PATIENCE;
    while !open.is_empty() {
        read(&*cq, &mut open, &memory);
        assert!(Instant::now() < until, "these do not end: {open:?}");
    }
    assert_eq!(cq.read(&mut [BLANK]), Err(OpError::Again));
    drop(ends);
}

fn read(cq: &dyn Cq, open: &mut Vec<(u64, Option<usize>)>, memory: &[(MessageMemory, usize)]) {
    let mut out = [BLANK; 8];
    let n = match cq.read(&mut out) {
        Ok(n) => n,
        Err(OpError::Again) => 0,
        Err(error) => panic!("{error}: {:?}", cq.read_error()),
    };
    for c in &out[..n] {
        let Completion { context, len, .. } = *c;
        let at = open.iter().position(|(of, _)| *of == context);
        let (_, receive) = open.remove(at.unwrap_or_else(|| panic!("whose is {c:?}?")));
        if let Some(receive) = receive {
            assert_eq!(len, memory[receive].1);
            let name = (len >= MessageMemory::NAMED_BYTES).then_some(receive);
            assert_eq!(memory[receive].0.message(0, len), Ok(name));
        }
    }
}

/// A peer that closes fails the operations that only it could end, and no others; an endpoint that
/// opens after it is another peer.
///
/// Covers: AV-17
pub fn a_peer_that_closes_and_one_that_comes_after(fabric: &Fabric) {
    for (a, b) in fabric.paths() {
        let (domain_a, domain_b) = (fabric.domain(a), fabric.domain(b));
        let bystander = QueuedPair::open(domain_a, domain_b);
        let pair = QueuedPair::open(domain_a, domain_b);
        for tag in 0..3 {
            // Nobody will take these; the first has all its data with the peer, the last has not.
            pair.a.send_alone(
                pair.tagged(tag),
                [8, 1000, fabric.longest.min(1 << 20)][tag as usize],
                1,
            );
        }
        let QueuedPair { a, b, to_b, .. } = pair;
        drop(b);
        let until = Instant::now() + PATIENCE;
        let mut events = Vec::new();
        while events.len() < 3 {
            a.tx.pump();
            events.extend(a.tx.take());
            assert!(Instant::now() < until, "these ended: {events:?}");
        }
        assert!(events.iter().any(Result::is_err), "{events:?}");
        for error in events.into_iter().filter_map(Result::err) {
            assert!(is_gone(error.errno), "{error:?}");
        }
        exchange(fabric, &bystander);
        // The same place in the address vector, another peer.
        a.av.remove(to_b).unwrap();
        let b = QueuedEndpoint::open(domain_b);
        let next = a.av.insert(&b.endpoint.name().to_bytes()).unwrap();
        assert_ne!(next, to_b);
        let to_a = b.av.insert(&a.endpoint.name().to_bytes()).unwrap();
        let pair = QueuedPair {
            a,
            b,
            to_a,
            to_b: next,
        };
        exchange(fabric, &pair);
        pair.b.rx.pump();
        assert!(pair.b.rx.take().is_none(), "what was for another");
        exchange(fabric, &bystander);
    }
}

fn exchange(fabric: &Fabric, pair: &QueuedPair) {
    for len in fabric.sizes(&SIZES) {
        let recv = any_tagged(pair.b.context());
        let into = pair.b.memory(len, 0);
        pair.b.recv(&recv, &[into]).unwrap();
        let send = pair.tagged(0xe);
        pair.a.send(&pair.b, send, len, 0x77);
        let c = pair.wait(&pair.b.rx, recv.context).unwrap();
        assert_eq!((c.tag, c.len, c.src), (0xe, len, pair.to_a));
        assert_eq!(pair.b.bytes(into.addr, len), vec![0x77; len]);
        pair.wait(&pair.a.tx, send.context).unwrap();
    }
}

/// Nobody drives a receiver while its sender sends more than there is room for on the way, and the
/// sender does not read its completions. If the sender finds a queue full (`-FI_EAGAIN` of
/// fi_msg(3)), it goes on once there is room. No accepted message is lost, no refused message is
/// sent.
///
/// Covers: PEER-9
pub fn many_sends_before_a_receive(fabric: &Fabric) {
    const MOST: u64 = 2000;
    for (a, b) in fabric.paths() {
        for len in [8, fabric.longest.min(9000)] {
            let pair = QueuedPair::open(fabric.domain(a), fabric.domain(b));
            let buffer = pair.a.memory(len, 3);
            let mut taken = 0;
            let mut refused = 0;
            // After a while nobody drives the sender either.
            while refused < 100 && taken < MOST {
                let send = SendOp {
                    tag: taken,
                    flags: Flags::empty(),
                    ..pair.tagged(0)
                };
                match pair.try_send(&send, &[buffer]) {
                    Ok(()) => taken += 1,
                    Err(OpError::Again) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(taken > 0, "no send is taken");
            for n in 0..taken {
                let recv = any_tagged(pair.b.context());
                pair.b.recv(&recv, &[pair.b.memory(len, 0)]).unwrap();
                let c = pair.wait(&pair.b.rx, recv.context).unwrap();
                assert_eq!((c.tag, c.len), (n, len));
            }
            exchange(fabric, &pair);
            pair.b.rx.pump();
            assert!(pair.b.rx.take().is_none());
        }
    }
}
