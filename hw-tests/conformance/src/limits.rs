//! Tests of every domain with impossible arguments, and with more operations than it has room for.
//! The tests of shared memory and of verbs devices call these.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ends::BLANK;
pub use crate::ends::PATIENCE;
use ferrofabric_av::AvAttr;
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, Error, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{Info, Threading};
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{AvType, FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::{
    Av, CntrAttr, Cq, CqAttr, Domain, Endpoint, EndpointConfig, Provider,
};
use ferrofabric_runtime::owning::{Buffer, OwnedCompletion, OwningEndpoint};

/// Turned away for so long, nothing moves any more.
const STUCK: Duration = Duration::from_millis(500);

/// Nobody keeps so many messages of a few bytes for a peer that takes none.
const TOO_MANY: usize = 20_000;

/// Settings that are taken from the environment where a test does not give them: each test can be
/// run over each kind of lane.
pub const FROM_OUTSIDE: [&str; 2] = ["FERRO_LANE", "FERRO_MAX_LANES"];

/// The settings of these variables, and none but those of [`FROM_OUTSIDE`] besides.
pub fn settings(pairs: &[(&str, &str)]) -> Settings {
    Settings::read(|name| {
        let found = pairs.iter().find(|(n, _)| *n == name);
        let given = found.map(|(_, value)| (*value).to_owned());
        given.or_else(|| {
            let outside = FROM_OUTSIDE.contains(&name);
            outside.then(|| std::env::var(name).ok()).flatten()
        })
    })
    .unwrap()
}

/// An error with this number and all of these words.
pub fn says(error: &Error, errno: Errno, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.errno(), errno, "{text}");
    for word in words {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
}

/// The error of a call that has to fail.
pub fn refused<T>(result: Result<T, Error>) -> Error {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error,
    }
}

/// Two endpoints that know each other.
pub struct OwningPair {
    /// Mostly the sender.
    pub a: OwningEndpoint,
    /// Mostly the receiver.
    pub b: OwningEndpoint,
    /// `a` in the address vector of `b`.
    pub to_a: FiAddr,
    /// `b` in the address vector of `a`.
    pub to_b: FiAddr,
}

impl OwningPair {
    /// Opens them.
    pub fn open(domain_a: &dyn Domain, domain_b: &dyn Domain) -> Self {
        let a = OwningEndpoint::open(domain_a, &AvAttr::default()).unwrap();
        let b = OwningEndpoint::open(domain_b, &AvAttr::default()).unwrap();
        let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
        let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
        Self { a, b, to_a, to_b }
    }

    /// A message from `a` to `b`, whole. Other completions at `a` go to `other`.
    pub fn exchange(&mut self, len: usize, mut other: impl FnMut(OwnedCompletion)) {
        const TAG: u64 = 0xe1c4;
        const TOKEN: u64 = 1 << 60;
        let mut out = Buffer::new(len).unwrap();
        out.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
        let into = Buffer::new(len).unwrap();
        self.b.trecv(into, self.to_a, TAG, 0, TOKEN).unwrap();
        self.a.tsend(out, len, self.to_b, TAG, TOKEN).unwrap();
        let (mut sent, mut received) = (false, false);
        let until = Instant::now() + PATIENCE;
        while !(sent && received) {
            match self.a.poll().unwrap() {
                Some(done) if done.token == TOKEN => {
                    done.outcome.unwrap();
                    sent = true;
                }
                Some(done) => other(done),
                None => {}
            }
            if let Some(done) = self.b.poll().unwrap() {
                assert_eq!(done.outcome.unwrap().len, len);
                assert!(done.buffer.iter().enumerate().all(|(i, b)| *b == i as u8));
                received = true;
            }
            assert!(Instant::now() < until, "sent {sent}, received {received}");
        }
    }
}

/// An endpoint with the bare calls.
struct Bare {
    endpoint: Arc<dyn Endpoint>,
    cq: Arc<dyn Cq>,
    av: Arc<dyn Av>,
}

impl Bare {
    fn open(domain: &dyn Domain) -> Self {
        let attr = AvAttr {
            av_type: Some(AvType::Table),
            ..AvAttr::default()
        };
        let av = domain.open_av(&attr).unwrap();
        let cq = domain.open_cq(&CqAttr::default()).unwrap();
        let endpoint = domain.open_endpoint(EndpointConfig::new(&av, &cq)).unwrap();
        Self { endpoint, cq, av }
    }

    fn send(&self, dest: FiAddr, flags: Flags, context: u64, iov: &[IoBuf]) -> Result<(), OpError> {
        let op = SendOp {
            kind: MsgKind::Tagged,
            dest,
            tag: context,
            data: 0,
            desc: MrDesc::NONE,
            context,
            flags: match flags.contains(Flags::INJECT) {
                true => flags,
                false => flags | Flags::COMPLETION,
            },
        };
        // SAFETY: callers keep what they send until the end of the test, or have it refused unread.
        unsafe { self.endpoint.send(&op, iov) }
    }

    fn recv(&self, context: u64, iov: &[IoBuf]) -> Result<(), OpError> {
        let op = RecvOp {
            kind: MsgKind::Tagged,
            src: FiAddr::UNSPEC,
            tag: context,
            ignore: 0,
            desc: MrDesc::NONE,
            context,
            flags: Flags::COMPLETION,
        };
        // SAFETY: callers keep the buffer until the end of the test, and look at it after the
        // completion.
        unsafe { self.endpoint.recv(&op, iov) }
    }

    fn next(&self, timeout: Duration) -> Result<Completion, OpError> {
        let mut one = [BLANK];
        self.cq.sread(&mut one, Some(timeout)).map(|_| one[0])
    }
}

/// Sizes, counts and lists beyond the limits are refused, those at the limits are served.
pub fn impossible_sizes(domain: &dyn Domain) {
    let info = domain.info();
    let size = usize::MAX;
    says(
        &refused(domain.open_cq(&CqAttr {
            size,
            ..CqAttr::default()
        })),
        Errno::ENOMEM,
        &["completion queue", &size.to_string(), "ask for fewer"],
    );
    for count in [usize::MAX, 1 << 44] {
        let attr = AvAttr {
            count,
            ..AvAttr::default()
        };
        says(
            &refused(domain.open_av(&attr)),
            Errno::ENOMEM,
            &["address vector", &count.to_string(), "a smaller one works"],
        );
    }
    says(
        &Buffer::new(usize::MAX).unwrap_err(),
        Errno::EINVAL,
        &[&usize::MAX.to_string()],
    );
    let cntr = domain.open_cntr(&CntrAttr::default()).unwrap();
    cntr.set(u64::MAX).unwrap();
    cntr.add(2).unwrap();
    assert_eq!(cntr.read(), Ok(1), "counters wrap");

    let (a, b) = (Bare::open(domain), Bare::open(domain));
    let to_b = a.av.insert(&b.endpoint.name().to_bytes()).unwrap();
    let bytes: Vec<u8> = (0..info.tx.inject_size.max(256)).map(|i| i as u8).collect();
    let start = bytes.as_ptr();
    let too_long = OpError::Failed(Errno::EMSGSIZE);
    let all = IoBuf::new(start, info.ep.max_msg_size + 1);
    assert_eq!(a.send(to_b, Flags::empty(), 1, &[all]), Err(too_long));
    // The sum of the lengths is more than a length can be.
    let wraps = [IoBuf::new(start, usize::MAX), IoBuf::new(start, 2)];
    assert_eq!(a.send(to_b, Flags::empty(), 1, &wraps), Err(too_long));
    assert_eq!(a.send(to_b, Flags::INJECT, 1, &wraps), Err(too_long));
    let inject = IoBuf::new(start, info.tx.inject_size + 1);
    assert_eq!(a.send(to_b, Flags::INJECT, 1, &[inject]), Err(too_long));
    let many = |count| vec![IoBuf::new(start, 3); count];
    let invalid = OpError::Failed(Errno::EINVAL);
    assert_eq!(
        a.send(to_b, Flags::empty(), 1, &many(info.tx.iov_limit + 1)),
        Err(invalid)
    );
    assert_eq!(b.recv(1, &many(info.rx.iov_limit + 1)), Err(invalid));

    let mut gathered = [0u8; 256];
    let mut injected = vec![0u8; info.tx.inject_size];
    b.recv(2, &[IoBuf::new(gathered.as_mut_ptr(), 256)])
        .unwrap();
    b.recv(3, &[IoBuf::new(injected.as_mut_ptr(), injected.len())])
        .unwrap();
    a.send(to_b, Flags::empty(), 2, &many(info.tx.iov_limit))
        .unwrap();
    let inject = IoBuf::new(start, info.tx.inject_size);
    a.send(to_b, Flags::INJECT, 3, &[inject]).unwrap();
    // Refused operations have no completion, and nothing arrives. `Duration::MAX` is a valid
    // timeout, too.
    let seen = [PATIENCE, Duration::MAX].map(|timeout| b.next(timeout).unwrap());
    let sent = a.next(PATIENCE).unwrap();
    assert_eq!(
        (sent.context, a.cq.read(&mut [BLANK])),
        (2, Err(OpError::Again))
    );
    assert_eq!(b.cq.read(&mut [BLANK]), Err(OpError::Again));
    assert_eq!((seen[0].context, seen[0].len), (2, 3 * info.tx.iov_limit));
    assert_eq!((seen[1].context, seen[1].len), (3, info.tx.inject_size));
    assert_eq!(gathered[..6], [0, 1, 2, 0, 1, 2]);
    assert_eq!(injected, bytes[..injected.len()]);
}

/// Malformed addresses are not inserted, and the endpoint goes on working.
pub fn malformed_addresses(domain: &dyn Domain) {
    let (a, b) = (Bare::open(domain), Bare::open(domain));
    let good = b.endpoint.name().to_bytes();
    let changed = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        bytes.to_vec()
    };
    let mut no_path = vec![0; 64];
    no_path[..3].copy_from_slice(&good[..3]);
    let mut bad: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "this has 0"),
        (good[..63].to_vec(), "this has 63"),
        ([&good[..], &[0]].concat(), "this has 65"),
        (vec![0xff; 64], "it starts with 0xffff"),
        (vec![0; 64], "it starts with 0x0000"),
        (changed(2, 9), "version 9"),
        (changed(3, 0x80), "set of flags"),
        (changed(59, 1), "reserved field"),
        (no_path, "set of paths (none)"),
        (b"ferro://inc=1".to_vec(), "this has 13"),
    ];
    if b.endpoint.name().verbs.is_some() {
        bad.extend([
            (changed(7, 1), "24 bits"),
            (changed(16, 0xff), "multicast"),
            (changed(56, 16), "service level"),
            (changed(57, 0), "port"),
            (changed(58, 7), "GID type"),
            (changed(60, 3), "MTU"),
        ]);
    }
    for (bytes, reason) in &bad {
        says(
            &refused(a.av.insert(bytes)),
            Errno::EINVAL,
            &["insert", reason],
        );
        says(&refused(a.av.lookup(FiAddr(0))), Errno::EINVAL, &["not in"]);
    }
    says(&refused(a.av.remove(FiAddr(7))), Errno::EINVAL, &["not in"]);
    let out = *b"good";
    let iov = [IoBuf::new(out.as_ptr(), out.len())];
    let nobody = [FiAddr::NOTAVAIL, FiAddr::UNSPEC];
    for dest in [FiAddr(0), FiAddr(7), FiAddr(1 << 40)]
        .into_iter()
        .chain(nobody)
    {
        assert_eq!(
            a.send(dest, Flags::empty(), 1, &iov),
            Err(OpError::Failed(Errno::EADDRNOTAVAIL)),
            "{dest:?}"
        );
    }

    let to_b = a.av.insert(&good).unwrap();
    assert_eq!(to_b, FiAddr(0), "the bad ones took no place");
    let mut into = [0u8; 4];
    b.recv(1, &[IoBuf::new(into.as_mut_ptr(), 4)]).unwrap();
    a.send(to_b, Flags::empty(), 1, &iov).unwrap();
    assert_eq!(b.next(PATIENCE).unwrap().len, 4);
    assert_eq!(into, out);
}

/// A domain that was opened for one thread refuses another, and goes on serving the first.
pub fn a_second_thread(provider: &dyn Provider, info: &Info, settings: &Settings) {
    let mut info = info.clone();
    info.domain.threading = Threading::Domain;
    let domain = provider.open(&info, settings).unwrap();
    let mut pair = OwningPair::open(&*domain, &*domain);
    let bare = Bare::open(&*domain);
    let cntr = domain.open_cntr(&CntrAttr::default()).unwrap();
    let name = pair.b.name().to_bytes();
    let to_b = bare.av.insert(&name).unwrap();
    let busy = OpError::Failed(Errno::EBUSY);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mend = "open it with threading level Safe";
            let all = [
                refused(domain.open_cq(&CqAttr::default())),
                refused(domain.open_av(&AvAttr::default())),
                refused(domain.open_cntr(&CntrAttr::default())),
                refused(domain.open_endpoint(EndpointConfig::new(&bare.av, &bare.cq))),
                refused(bare.av.insert(&name)),
                refused(bare.av.lookup(to_b)),
                refused(bare.av.remove(to_b)),
            ];
            for error in &all {
                says(error, Errno::EBUSY, &[mend]);
            }
            let iov = [IoBuf::EMPTY];
            assert_eq!(bare.send(to_b, Flags::empty(), 1, &iov), Err(busy));
            assert_eq!(bare.recv(1, &iov), Err(busy));
            assert_eq!(bare.endpoint.cancel(1), Err(busy));
            assert_eq!(bare.next(PATIENCE).err(), Some(busy));
            assert_eq!(bare.cq.read(&mut [BLANK]), Err(busy));
            assert_eq!(bare.cq.read_error().err(), Some(busy));
            assert_eq!(cntr.read(), Err(busy));
            assert_eq!(cntr.wait(1, None), Err(busy));
        });
        other.join().unwrap();
    });
    pair.exchange(100, |done| panic!("{done:?}"));
}

/// A domain whose calls the application serializes serves any thread, also when `info` speaks of
/// one.
pub fn threads_that_take_turns(provider: &dyn Provider, info: &Info, settings: &Settings) {
    let mut info = info.clone();
    info.domain.threading = Threading::Domain;
    // SAFETY: each thread below ends before the next call.
    let domain = unsafe { provider.open_serialized(&info, settings) }.unwrap();
    let mut pair = OwningPair::open(&*domain, &*domain);
    for len in [0, 8, 5000, 300_000] {
        let turn = std::thread::scope(|scope| {
            let turn = scope.spawn(|| pair.exchange(len, |done| panic!("{done:?}")));
            turn.join()
        });
        turn.unwrap();
        pair.exchange(len, |done| panic!("{done:?}"));
    }
    std::thread::spawn(move || drop(pair)).join().unwrap();
    let mut pair = OwningPair::open(&*domain, &*domain);
    pair.exchange(100, |done| panic!("{done:?}"));
    std::thread::spawn(move || drop((domain, pair)))
        .join()
        .unwrap();
}

/// An endpoint takes objects of its own domain only.
pub fn objects_of_two_domains(ours: &dyn Domain, theirs: &dyn Domain) {
    let attr = AvAttr::default();
    let (av, cq) = (
        ours.open_av(&attr).unwrap(),
        ours.open_cq(&CqAttr::default()).unwrap(),
    );
    let (other_av, other_cq) = (
        theirs.open_av(&attr).unwrap(),
        theirs.open_cq(&CqAttr::default()).unwrap(),
    );
    let other_cntr = theirs.open_cntr(&CntrAttr::default()).unwrap();
    let config = EndpointConfig::new(&av, &cq);
    let mixed = [
        ("address vector", {
            let av = other_av.clone();
            EndpointConfig {
                av,
                ..config.clone()
            }
        }),
        ("completion queue for sends", {
            let tx_cq = other_cq.clone();
            EndpointConfig {
                tx_cq,
                ..config.clone()
            }
        }),
        ("completion queue for receives", {
            let rx_cq = other_cq.clone();
            EndpointConfig {
                rx_cq,
                ..config.clone()
            }
        }),
        ("counter for sends", {
            let tx_cntr = Some(other_cntr.clone());
            EndpointConfig {
                tx_cntr,
                ..config.clone()
            }
        }),
        ("counter for receives", {
            let rx_cntr = Some(other_cntr.clone());
            EndpointConfig {
                rx_cntr,
                ..config.clone()
            }
        }),
    ];
    for (what, config) in mixed {
        says(
            &refused(ours.open_endpoint(config)),
            Errno::EDOMAIN,
            &[what, "another domain"],
        );
    }
    ours.open_endpoint(config).unwrap();
}

/// Of an endpoint that nobody drives, not even the sender: sends are taken up to a limit, and all
/// of them arrive.
pub fn a_queue_before_the_connection(pair: &mut OwningPair) {
    let mut taken = 0;
    loop {
        let bytes = (taken as u64).to_le_bytes();
        match pair.a.tinject(&bytes, pair.to_b, taken as u64) {
            Ok(()) => taken += 1,
            Err(OpError::Again) => break,
            Err(error) => panic!("{error}"),
        }
        assert!(taken < TOO_MANY, "no end of the queue");
    }
    assert!(taken >= 16, "only {taken} messages are taken");
    in_order(pair, taken, 0);
    pair.exchange(100, |done| panic!("{done:?}"));
}

/// Of a peer that does nothing though it is connected: the same.
pub fn a_queue_to_a_peer_that_does_nothing(pair: &mut OwningPair, len: usize) {
    pair.exchange(len, |done| panic!("{done:?}"));
    let (mut taken, mut completed) = (0, 0);
    let mut moved = Instant::now();
    while moved.elapsed() < STUCK {
        let mut buffer = Buffer::new(len).unwrap();
        buffer[..8].copy_from_slice(&(taken as u64).to_le_bytes());
        match pair
            .a
            .tsend(buffer, len, pair.to_b, taken as u64, taken as u64)
        {
            Ok(()) => {
                taken += 1;
                moved = Instant::now();
            }
            Err((OpError::Again, _)) => {}
            Err((error, _)) => panic!("{error}"),
        }
        if let Some(done) = pair.a.poll().unwrap() {
            done.outcome.unwrap();
            completed += 1;
            moved = Instant::now();
        }
        assert!(taken < TOO_MANY, "no end of the queue");
    }
    assert!(completed < taken, "nothing waits");
    in_order(pair, taken, taken - completed);
    pair.exchange(len, |done| panic!("{done:?}"));
}

/// Of a peer that drives its endpoint but receives nothing: the same, or all of them are taken.
pub fn a_queue_to_a_peer_that_does_not_receive(pair: &mut OwningPair, len: usize) {
    const COUNT: usize = 3000;
    let (mut taken, mut completed) = (0, 0);
    let mut moved = Instant::now();
    while taken < COUNT && moved.elapsed() < STUCK {
        let mut buffer = Buffer::new(len).unwrap();
        buffer[..8].copy_from_slice(&(taken as u64).to_le_bytes());
        match pair.a.tsend(buffer, len, pair.to_b, taken as u64, 0) {
            Ok(()) => {
                taken += 1;
                moved = Instant::now();
            }
            Err((OpError::Again, _)) => {}
            Err((error, _)) => panic!("{error}"),
        }
        if let Some(done) = pair.a.poll().unwrap() {
            done.outcome.unwrap();
            completed += 1;
            moved = Instant::now();
        }
        assert!(pair.b.poll().unwrap().is_none());
    }
    in_order(pair, taken, taken - completed);
    pair.exchange(len, |done| panic!("{done:?}"));
}

/// Receives `count` messages, whose tags are their numbers, with receives for anything; and sees
/// `sends` completions at the sender.
fn in_order(pair: &mut OwningPair, count: usize, mut sends: usize) {
    let room = 1 << 16;
    let any = u64::MAX;
    let into = Buffer::new(room).unwrap();
    pair.b.trecv(into, FiAddr::UNSPEC, 0, any, 0).unwrap();
    let mut received = 0;
    let until = Instant::now() + PATIENCE;
    while received < count || sends > 0 {
        if let Some(done) = pair.a.poll().unwrap() {
            done.outcome.unwrap();
            sends = sends.checked_sub(1).expect("no more sends than were made");
        }
        if let Some(done) = pair.b.poll().unwrap() {
            let completion = done.outcome.unwrap();
            let number = received as u64;
            assert_eq!((completion.tag, completion.src), (number, pair.to_a));
            assert_eq!(done.buffer[..8], number.to_le_bytes());
            received += 1;
            if received < count {
                pair.b
                    .trecv(done.buffer, FiAddr::UNSPEC, 0, any, 0)
                    .unwrap();
            }
        }
        assert!(
            Instant::now() < until,
            "{received} of {count} came, {sends} sends wait"
        );
    }
}

/// The address of an endpoint that does not exist: `like` with another incarnation, and with the
/// changes of `change`.
pub fn nobody(like: &NativeAddr, change: impl FnOnce(&mut NativeAddr)) -> NativeAddr {
    let mut name = *like;
    name.incarnation ^= 0x5a5a;
    change(&mut name);
    name
}
