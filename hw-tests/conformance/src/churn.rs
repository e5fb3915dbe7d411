//! Address vectors that change while messages go.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::types::{AvType, FiAddr};
use ferrofabric_runtime::fabric::{Av, Domain};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};

use crate::ends::PATIENCE;

/// Receives that are posted at a time.
const WINDOW: u64 = 64;

/// Addresses that come and go together.
const GENERATION: usize = 1000;

const TAG: u64 = 3;

/// One thread sends, another inserts and removes addresses: each message comes once, in order, with
/// its sender's address, and none reaches an endpoint whose address was there for a while
/// (fi_av(3)).
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
    ((u128::from(mixed) << 64) | u128::from(number)).to_le_bytes()
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

/// One thread sends to an index, which another thread takes from one receiver and gives to the
/// other, `changes` times. A message that was sent while a receiver had the index comes to this
/// receiver alone, once, unless its send says that the address was removed. A send to an unused
/// index is refused.
///
/// Covers: AV-11, AV-17
pub fn an_index_that_changes_hands_beside_a_sender(a: &dyn Domain, b: &dyn Domain, changes: u64) {
    const INDEX: FiAddr = FiAddr(0);
    let mut traffic = Hands::open(a, b);
    let av = traffic.sender.av().clone();
    let names = (traffic.receivers.each_ref()).map(|(receiver, _)| receiver.name().to_bytes());
    assert_eq!(av.insert(&names[0]).unwrap(), INDEX);
    // Odd while nobody may have the index, else twice the number of changes.
    let moment = AtomicU64::new(0);
    let (go, goes) = mpsc::channel();
    std::thread::scope(|scope| {
        let (av, names, moment) = (&av, &names, &moment);
        let changer = scope.spawn(move || {
            for change in 1..=changes {
                goes.recv().unwrap();
                moment.store(2 * change - 1, Ordering::SeqCst);
                av.remove(INDEX).unwrap();
                let next = &names[change as usize % 2];
                assert_eq!(av.insert(next).unwrap(), INDEX);
                moment.store(2 * change, Ordering::SeqCst);
            }
        });
        while !changer.is_finished() {
            // Some changes come at once, some when the connection is there.
            let ahead = traffic.sent.len() % 5;
            for _ in 0..ahead {
                let _ = go.send(());
            }
            for _ in 0..WINDOW {
                traffic.send(INDEX, moment);
            }
            traffic.drive();
        }
        drop(go);
        changer.join().unwrap();
        traffic.send(INDEX, moment);
    });
    let until = Instant::now() + PATIENCE;
    while !traffic.is_over() {
        assert!(Instant::now() < until, "messages do not come");
        traffic.drive();
    }
    let cancelled = traffic.sent.iter().filter(|sent| sent.cancelled).count();
    let total = traffic.sent.len();
    println!("{total} messages beside {changes} changes, {cancelled} cancelled");
}

/// Messages to an index that is the one receiver's and the other's by turns.
struct Hands {
    sender: OwningEndpoint,
    /// Each receiver, and the sender's address in the address vector of this receiver.
    receivers: [(OwningEndpoint, FiAddr); 2],
    sent: Vec<IndexSend>,
}

struct IndexSend {
    /// The receiver that had the index from before the send until after it; `None`: the index
    /// changed hands during the send.
    to: Option<usize>,
    is_over: bool,
    cancelled: bool,
    arrived: bool,
}

impl Hands {
    fn open(a: &dyn Domain, b: &dyn Domain) -> Self {
        let table = AvAttr {
            av_type: Some(AvType::Table),
            ..AvAttr::default()
        };
        let sender = OwningEndpoint::open(a, &table).unwrap();
        let receivers = [(); 2].map(|()| {
            let mut receiver = open(b);
            let from = insert(&**receiver.av(), &sender.name());
            for _ in 0..WINDOW {
                receive(&mut receiver, Buffer::new(16).unwrap());
            }
            (receiver, from)
        });
        Self {
            sender,
            receivers,
            sent: Vec::new(),
        }
    }

    /// Sends the next message, if there is room and somebody has the index.
    fn send(&mut self, index: FiAddr, moment: &AtomicU64) {
        let number = self.sent.len() as u64;
        let mut buffer = Buffer::new(16).unwrap();
        buffer.copy_from_slice(&content(number));
        let before = moment.load(Ordering::SeqCst);
        let said = self.sender.tsend(buffer, 16, index, TAG, number);
        let is_same = before % 2 == 0 && moment.load(Ordering::SeqCst) == before;
        match said.map_err(|(error, _)| error) {
            Ok(()) => self.sent.push(IndexSend {
                to: is_same.then_some(before as usize / 2 % 2),
                is_over: false,
                cancelled: false,
                arrived: false,
            }),
            Err(OpError::Again) => {}
            Err(error) => {
                assert_eq!(error, OpError::Failed(Errno::EADDRNOTAVAIL));
                assert!(!is_same, "message {number} is refused");
            }
        }
    }

    fn drive(&mut self) {
        while let Some(done) = self.sender.poll().unwrap() {
            let sent = &mut self.sent[done.token as usize];
            assert!(!sent.is_over, "message {} is over twice", done.token);
            sent.is_over = true;
            sent.cancelled = done.outcome.is_err();
            let errno = done
                .outcome
                .map_or_else(|error| error.errno, |_| Errno::ECANCELED);
            assert_eq!(errno, Errno::ECANCELED, "message {}", done.token);
        }
        for (at, (receiver, from)) in self.receivers.iter_mut().enumerate() {
            while let Some(done) = receiver.poll().unwrap() {
                let completion = done.outcome.unwrap();
                assert_eq!((completion.len, completion.src), (16, *from));
                let number = number_of(&done.buffer);
                let sent = &mut self.sent[number as usize];
                assert!(!sent.arrived, "message {number} comes twice");
                sent.arrived = true;
                let to = sent.to.unwrap_or(at);
                assert_eq!(at, to, "who got message {number}");
                receive(receiver, done.buffer);
            }
        }
    }

    fn is_over(&self) -> bool {
        let mut sent = self.sent.iter();
        sent.all(|sent| sent.cancelled || (sent.is_over && sent.arrived))
    }
}

fn receive(receiver: &mut OwningEndpoint, buffer: Buffer) {
    let posted = receiver.trecv(buffer, FiAddr::UNSPEC, TAG, 0, 0);
    posted.map_err(|(error, _)| error).unwrap();
}

/// The number of the message with this content.
fn number_of(found: &[u8]) -> u64 {
    let number = found[..8].try_into().map(u64::from_le_bytes).unwrap();
    assert_eq!(found, content(number), "the content of a message");
    number
}

/// Other threads use the domain while one call inserts many addresses: an operation that another
/// thread begins in the middle of the call is over before the call is. The call gives the same
/// indices and results as without these operations.
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
