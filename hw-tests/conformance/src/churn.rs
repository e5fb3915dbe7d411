//! Address vectors that change while messages go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use ferrofabric_core::addr::NativeAddr;
use ferrofabric_core::av::{AvAttr, AvType};
use ferrofabric_core::error::{Errno, OpError};
use ferrofabric_core::fabric::{Av, Domain};
use ferrofabric_core::owning::{Buffer, OwningEndpoint};
use ferrofabric_core::types::FiAddr;

use crate::ends::PATIENCE;

/// Receives that are posted at a time.
const WINDOW: u64 = 64;

/// Addresses that come and go together.
const GENERATION: usize = 1000;

const TAG: u64 = 3;

/// One thread sends, another inserts and removes addresses: each message comes once, in order, with its sender's address, and
/// none reaches an endpoint whose address was there for a while (fi_av(3)).
///
/// Covers: AV-2, AV-17
pub fn insertions_beside_a_sender(
    a: &dyn Domain,
    b: &dyn Domain,
    messages: u64,
    insertions: usize,
) {
    let mut sender = open(a);
    let (mut receiver, mut decoy) = (open(b), open(b));
    let to = insert(&**sender.av(), &receiver.name());
    let from = insert(&**receiver.av(), &sender.name());
    decoy
        .trecv(Buffer::new(16).unwrap(), FiAddr::UNSPEC, TAG, 0, 0)
        .unwrap();
    let (av, decoy_name) = (sender.av().clone(), decoy.name());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            let mut inserted = 0;
            while inserted < insertions || !over.load(Ordering::Relaxed) {
                come_and_go(&*av, &decoy_name);
                inserted += GENERATION;
            }
            inserted
        });
        exchange(&mut sender, to, &mut receiver, from, messages);
        over.store(true, Ordering::Relaxed);
        let inserted = churn.join().unwrap();
        println!("{messages} messages beside {inserted} insertions and as many removals");
    });
    assert!(matches!(decoy.poll(), Ok(None)), "the decoy got a message");
    assert_eq!(decoy.in_flight(), 1);
}

fn open(domain: &dyn Domain) -> OwningEndpoint {
    OwningEndpoint::open(domain, &AvAttr::default()).unwrap()
}

fn insert(av: &dyn Av, name: &NativeAddr) -> FiAddr {
    av.insert(&name.to_bytes()).unwrap()
}

/// Inserts many addresses, one that is somebody's among them, and removes them all.
fn come_and_go(av: &dyn Av, decoy: &NativeAddr) {
    let name = |i: usize| NativeAddr {
        incarnation: decoy.incarnation.wrapping_add(i as u64),
        ..*decoy
    };
    let addrs: Vec<FiAddr> = (0..GENERATION).map(|i| insert(av, &name(i))).collect();
    for addr in &addrs {
        av.remove(*addr).unwrap();
    }
    assert_eq!(
        av.remove(addrs[0]).map_err(|e| e.errno()),
        Err(Errno::EINVAL)
    );
}

fn content(number: u64) -> [u8; 16] {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    (u128::from(mixed) << 64 | u128::from(number)).to_le_bytes()
}

/// Sends so many messages, of which each is checked.
fn exchange(
    sender: &mut OwningEndpoint,
    to: FiAddr,
    receiver: &mut OwningEndpoint,
    from: FiAddr,
    messages: u64,
) {
    for token in 0..WINDOW {
        let buffer = Buffer::new(16).unwrap();
        receiver
            .trecv(buffer, FiAddr::UNSPEC, TAG, 0, token)
            .unwrap();
    }
    let (mut sent, mut received) = (0, 0);
    let mut until = Instant::now() + PATIENCE;
    while received < messages {
        let in_time = Instant::now() < until;
        assert!(
            in_time,
            "message {received} does not come; {sent} were sent"
        );
        while sent < messages && sent < received + WINDOW {
            match sender.tinject(&content(sent), to, TAG) {
                Ok(()) => sent += 1,
                Err(OpError::Again) => break,
                Err(error) => panic!("message {sent}: {error}"),
            }
        }
        // Progress is manual, the sender's too.
        assert!(matches!(sender.poll(), Ok(None)));
        while let Some(done) = receiver.poll().unwrap() {
            let completion = done.outcome.unwrap();
            assert_eq!((completion.len, completion.src), (16, from));
            assert_eq!(done.buffer[..], content(received), "message {received}");
            received += 1;
            until = Instant::now() + PATIENCE;
            receiver
                .trecv(done.buffer, FiAddr::UNSPEC, TAG, 0, done.token)
                .unwrap();
        }
    }
    assert_eq!(sent, messages);
}

/// While one call inserts many addresses, others use the domain: what another thread begins in the middle of the call is over
/// before the call is. Neither indices nor results of the call are others for that.
///
/// Covers: AV-11, AV-12
pub fn operations_between_the_addresses_of_a_call(domain: &dyn Domain) {
    const ADDRESSES: usize = 100_000;
    /// A malformed one: its index stays a hole until the call is over.
    const BAD: usize = 70_001;
    let mut other = open(domain);
    let own = other.name();
    let table = AvAttr {
        av_type: Some(AvType::Table),
        ..AvAttr::default()
    };
    let av = domain.open_av(&table).unwrap();
    let names: Vec<_> = (0..ADDRESSES)
        .map(|i| NativeAddr {
            incarnation: own.incarnation.wrapping_add(i as u64 + 1),
            ..own
        })
        .map(|name| name.to_bytes())
        .collect();
    let (ask, asked) = mpsc::channel();
    let (answer, answered) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for first in asked {
                assert!(matches!(other.poll(), Ok(None)));
                answer.send(first).unwrap();
            }
        });
        let mut given = names.iter().enumerate().map(|(i, name)| {
            if i % 10_000 == 5_000 {
                ask.send(i).unwrap();
                let done = answered.recv_timeout(PATIENCE);
                assert_eq!(done, Ok(i), "the domain is locked all through the call");
            }
            match i {
                BAD => &name[1..],
                _ => &name[..],
            }
        });
        let mut results = Vec::new();
        let inserted = av.insert_all(&mut given, &mut |i, one| {
            assert_eq!(i, results.len());
            results.push(one.ok());
        });
        assert_eq!(inserted.unwrap(), ADDRESSES - 1);
        for (i, one) in results.into_iter().enumerate() {
            let addr = (i != BAD).then_some(FiAddr(i as u64));
            assert_eq!(one, addr, "address {i}");
        }
        drop(given);
        drop(ask);
    });
    let next = insert(&*av, &own);
    assert_eq!(next, FiAddr(BAD as u64), "the hole is free again");
}
