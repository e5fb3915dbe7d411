use super::*;
use crate::AvAttr;
use crate::service::Resolve;
use ferrofabric_contracts::addr::{AddrFormat, NativeAddr};
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::peer::PeerAv;
use ferrofabric_contracts::types::AvType;
use ferrofabric_runtime::eq::{EventQueue, Reading};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;
use zerocopy::FromBytes;

const SOURCE: u64 = 0xfeed;

fn name(n: u32) -> NativeAddr {
    NativeAddr {
        incarnation: n.into(),
        node: 1,
        shm: Some(n.into()),
        verbs: None,
    }
}

/// One address: a good one, or bytes that are none.
fn wanted(n: Option<u32>) -> Vec<u8> {
    match n {
        Some(n) => name(n).to_bytes().to_vec(),
        None => vec![7; 64],
    }
}

struct Party {
    later: AsyncInserter,
    table: Arc<AvTable>,
    events: Arc<EventQueue>,
    announced: Arc<Mutex<Vec<FiAddr>>>,
}

impl Party {
    fn new(av_type: AvType, resolver: Option<Arc<dyn Resolve>>) -> Self {
        let table = AvTable::new(&AvAttr {
            av_type: Some(av_type),
            ..AvAttr::default()
        });
        Self::around(table.unwrap(), resolver)
    }

    fn around(table: AvTable, resolver: Option<Arc<dyn Resolve>>) -> Self {
        let table = Arc::new(table);
        let events = Arc::new(EventQueue::new());
        let announced = Arc::<Mutex<Vec<FiAddr>>>::default();
        let place = InsertContext {
            table: table.clone(),
            naming: Naming::default(),
            pool: resolver.map(|resolver| {
                Arc::new(ResolverPool::new(
                    table.clone(),
                    resolver,
                    Box::new(|_, _, _| ()),
                ))
            }),
            keeps_ranges: false,
            announce: Box::new({
                let announced = announced.clone();
                move |new| announced.lock().extend(new)
            }),
        };
        Self {
            later: AsyncInserter::new(place, events.clone(), SOURCE),
            table,
            events,
            announced,
        }
    }

    /// Begins a call, whose results come through the channel.
    fn begin(&self, wanted: InsertRequest, context: u64) -> mpsc::Receiver<Result<FiAddr, Errno>> {
        self.begin_with(wanted, None, context)
    }

    fn begin_with(
        &self,
        wanted: InsertRequest,
        keys: RequestKeys,
        context: u64,
    ) -> mpsc::Receiver<Result<FiAddr, Errno>> {
        let (tx, rx) = mpsc::channel();
        let mut next = 0;
        let report: InsertReport = Box::new(move |i, one| {
            assert_eq!(i, next);
            next += 1;
            tx.send(one).unwrap();
        });
        self.later
            .begin(wanted, keys, Vec::new(), context, report)
            .unwrap();
        rx
    }

    fn next(&self) -> Event {
        let mut out = [0; 24];
        let patience = Some(Duration::from_secs(30));
        match self.events.sread(&mut out, Reading::Take, patience) {
            Ok((number, 24)) => {
                assert_eq!(number, AV_COMPLETE);
                Event::Done(Done::read_from_bytes(&out).unwrap())
            }
            Err(OpError::Failed(Errno::EAVAIL)) => {
                Event::Error(self.events.read_error(Reading::Take).unwrap())
            }
            other => panic!("waited for an event of an insertion, got {other:?}"),
        }
    }
}

enum Event {
    Done(Done),
    Error(EqError),
}

/// Knows no route, and that not before the lock can be had.
#[derive(Debug, Default)]
struct Held(Mutex<()>);

impl Resolve for Held {
    fn resolve(&self, at: SocketAddr) -> Result<NativeAddr> {
        Nobody.resolve(at)
    }

    fn route(&self, at: SocketAddr) -> Result<()> {
        drop(self.0.lock());
        Err(Error::new(Errno::EHOSTUNREACH, "resolve", at.to_string()))
    }
}

/// How the addresses of a call fail that do.
fn failure(context: u64) -> (Errno, &'static str) {
    match context < MOST_THREADS as u64 {
        true => (Errno::EHOSTUNREACH, "127.0.0.1:9"),
        false => (Errno::EINVAL, "not a native address"),
    }
}

/// Calls of good and bad addresses, all begun before the first event is read; the next batch of
/// calls comes after the last.
fn run(av_type: AvType, batches: Vec<Vec<Vec<Option<u32>>>>) -> usize {
    let held = Arc::new(Held::default());
    let party = Party::new(av_type, Some(held.clone()));
    let mut plain = BTreeMap::<u32, FiAddr>::new();
    let mut calls_made = 0;
    let mut fresh = 1000;
    for batch in batches {
        // Addresses are new in each call, but for those that are there from before: so what is
        // where is certain.
        let before = plain.clone();
        let mut used = plain.values().map(|addr| addr.0 as u32).collect::<Vec<_>>();
        let mut calls = Vec::new();
        // Each thread waits in one of these until all calls are begun: else an index of a call that
        // has ended would come again.
        let holding = held.0.lock();
        for context in 0..MOST_THREADS as u64 {
            let lowest = (0..).find(|i| !used.contains(i)).unwrap();
            used.push(lowest);
            let nobody = Services::range("127.0.0.1", 1, "9", 1).unwrap();
            let results = party.begin(InsertRequest::Services(nobody), context);
            calls.push((vec![None], vec![lowest], results, Vec::new(), false));
        }
        for (context, shape) in (MOST_THREADS as u64..).zip(&batch) {
            let names: Vec<_> = shape
                .iter()
                .map(|one| {
                    one.map(|n| match before.keys().nth(n as usize) {
                        Some(known) if n < 3 => *known,
                        _ => {
                            fresh += 1;
                            fresh
                        }
                    })
                })
                .collect();
            let mut indices = Vec::new();
            for _ in &names {
                let lowest = (0..).find(|i| !used.contains(i)).unwrap();
                used.push(lowest);
                indices.push(lowest);
            }
            let listed = names.iter().map(|n| wanted(*n)).collect();
            let results = party.begin(InsertRequest::Listed(listed), context);
            calls.push((names, indices, results, Vec::new(), false));
        }
        drop(holding);
        for _ in 0..calls.len() {
            // Errors of one call come before its end; those of several may mix.
            loop {
                match party.next() {
                    Event::Error(error) => {
                        let (names, .., errors, done) = &mut calls[error.context as usize];
                        assert!(!*done, "an error after the end of its call");
                        let (errno, reason) = failure(error.context);
                        assert_eq!((error.source, error.errno), (SOURCE, errno));
                        assert_eq!(names[error.data as usize], None);
                        let why = String::from_utf8(error.err_data.into()).unwrap();
                        assert!(why.contains(reason), "{why}");
                        errors.push(error.data as usize);
                    }
                    Event::Done(event) => {
                        let (names, indices, results, errors, done) =
                            &mut calls[event.context as usize];
                        assert!(!std::mem::replace(done, true), "a second end of a call");
                        assert_eq!(event.source, SOURCE);
                        let bad: Vec<_> =
                            (0..names.len()).filter(|i| names[*i].is_none()).collect();
                        assert_eq!(*errors, bad);
                        assert_eq!(event.data as usize, names.len() - bad.len());
                        let results: Vec<_> = results.try_iter().collect();
                        assert_eq!(results.len(), names.len());
                        for (i, n) in names.iter().enumerate() {
                            match n {
                                None => assert_eq!(results[i], Err(failure(event.context).0)),
                                Some(n) => {
                                    let addr = results[i].unwrap();
                                    assert_eq!(party.table.lookup(addr), Some(name(*n)));
                                    match before.get(n) {
                                        Some(known) => assert_eq!(addr, *known),
                                        None if av_type == AvType::Table => {
                                            assert_eq!(addr.0, u64::from(indices[i]));
                                        }
                                        None => {}
                                    }
                                    plain.insert(*n, addr);
                                }
                            }
                        }
                        break;
                    }
                }
            }
        }
        assert_eq!(party.table.len(), plain.len());
        calls_made += batch.len();
    }
    assert_eq!(party.announced.lock().len(), plain.len());
    let mut out = [0; 24];
    let nothing = party.events.read(&mut out, Reading::Peek);
    assert_eq!(nothing, Err(OpError::Again));
    calls_made
}

/// Covers: AV-7, AV-11
#[test]
fn ten_thousand_calls_of_good_and_bad_addresses() {
    use proptest::collection::vec;
    use proptest::strategy::ValueTree;
    use proptest::test_runner::{Config, TestRunner};
    let mut runner = TestRunner::new(Config::default());
    let call = vec(proptest::option::weighted(0.6, 0u32..6), 0..5);
    let batches = vec(vec(call, 1..12), 1..8);
    let mut calls = 0;
    let mut table = false;
    while calls < 10_000 {
        let shape = batches.new_tree(&mut runner).unwrap().current();
        table = !table;
        calls += run(if table { AvType::Table } else { AvType::Map }, shape);
    }
}

/// Finds nobody.
#[derive(Debug)]
struct Nobody;

impl Resolve for Nobody {
    fn resolve(&self, at: SocketAddr) -> Result<NativeAddr> {
        Err(Error::new(Errno::ECONNREFUSED, "resolve", at.to_string()))
    }
}

/// Looks for routes when the test lets it; there is none for port 9. It finds no endpoint.
#[derive(Debug)]
struct Gate(Mutex<mpsc::Receiver<()>>);

impl Resolve for Gate {
    fn resolve(&self, at: SocketAddr) -> Result<NativeAddr> {
        Nobody.resolve(at)
    }

    fn route(&self, at: SocketAddr) -> Result<()> {
        let waited = self.0.lock().recv_timeout(Duration::from_secs(30));
        if at.port() == 9 || waited.is_err() {
            return Err(Error::new(Errno::EHOSTUNREACH, "resolve", at.to_string()));
        }
        Ok(())
    }
}

fn gate() -> (mpsc::Sender<()>, Arc<dyn Resolve>) {
    let (open, closed) = mpsc::channel();
    (open, Arc::new(Gate(Mutex::new(closed))))
}

/// A call that takes its time holds up neither its caller nor other calls, and keeps its indices.
/// Nobody need listen.
///
/// Covers: AV-7, AV-11, AV-15, AV-16
#[test]
fn calls_end_out_of_order_and_keep_their_indices() {
    let (open, resolver) = gate();
    let party = Party::new(AvType::Table, Some(resolver));
    let range = Services::range("127.0.0.1", 2, "8", 2).unwrap();
    let slow = party.begin(InsertRequest::Services(range), 1);
    let fast = party.begin(InsertRequest::Listed(vec![wanted(Some(77))]), 2);
    let Event::Done(done) = party.next() else {
        panic!("the second call has no bad address");
    };
    assert_eq!((done.context, done.data), (2, 1));
    assert_eq!(fast.try_iter().collect::<Vec<_>>(), [Ok(FiAddr(4))]);
    assert_eq!(slow.try_iter().count(), 0);
    for _ in 0..4 {
        open.send(()).unwrap();
    }
    for number in [1, 3] {
        let Event::Error(error) = party.next() else {
            panic!("port 9 is not there");
        };
        assert_eq!((error.context, error.data), (1, number));
        assert_eq!(error.errno, Errno::EHOSTUNREACH);
    }
    let Event::Done(done) = party.next() else {
        panic!("the first call ends");
    };
    assert_eq!((done.context, done.data), (1, 2));
    let failed = Err(Errno::EHOSTUNREACH);
    let expected = [Ok(FiAddr(0)), failed, Ok(FiAddr(2)), failed];
    assert_eq!(slow.try_iter().collect::<Vec<_>>(), expected);
    // Their indices are free again.
    assert_eq!(party.table.insert(&name(5)).unwrap().addr, FiAddr(1));
}

/// An address that fails, or that has no key, takes no other's.
///
/// Covers: AV-7, AV-21
#[test]
fn each_address_gets_its_own_key() {
    let table = AvTable::new(&AvAttr {
        av_type: Some(AvType::Table),
        ..AvAttr::default()
    });
    let party = Party::around(table.unwrap().with_auth_keys(), None);
    let key = |qkey| AuthKey::new(0xffff, qkey).unwrap();
    let endpoint = "ferro://[::ffff:10.1.0.1]:7?type=roce2&qkey=11111111&lid=0&pkey=ffff&sl=0&port=1&mtu=1024&inc=5&node=5";
    let endpoint: NativeAddr = endpoint.parse().unwrap();
    let good = endpoint.to_bytes().to_vec();
    let names = vec![
        good.clone(),
        wanted(None),
        wanted(Some(1)),
        good.clone(),
        good.clone(),
        good,
    ];
    let none = || Err(Error::new(Errno::EINVAL, "insert", "address"));
    let keys = vec![Ok(key(1)), Ok(key(2)), Ok(key(3)), none(), Ok(key(4))];
    let results = party.begin_with(InsertRequest::Listed(names), Some(keys), 1);
    for number in [1, 2, 3, 5] {
        let Event::Error(error) = party.next() else {
            panic!("address {number} is none, or has no key");
        };
        assert_eq!((error.data, error.errno), (number, Errno::EINVAL));
    }
    let Event::Done(done) = party.next() else {
        panic!("the call ends");
    };
    assert_eq!(done.data, 2);
    let refused = Err(Errno::EINVAL);
    let expected = [
        Ok(FiAddr(0)),
        refused,
        refused,
        refused,
        Ok(FiAddr(4)),
        refused,
    ];
    assert_eq!(results.try_iter().collect::<Vec<_>>(), expected);
    for (at, qkey) in [(0, 1), (4, 4)] {
        let there = party.table.lookup(FiAddr(at)).unwrap();
        assert_eq!(there, endpoint.with_auth_key(key(qkey)));
    }
}

/// A call that has not begun when the address vector is closed is cancelled, and its events come.
///
/// Covers: AV-7, AV-22
#[test]
fn closing_cancels_calls_that_have_not_begun() {
    let (open, resolver) = gate();
    let party = Party::new(AvType::Table, Some(resolver));
    let mut waiting = Vec::new();
    for context in 0..2 * MOST_THREADS as u64 {
        let range = Services::range("127.0.0.1", 1, "1", 3).unwrap();
        waiting.push(party.begin(InsertRequest::Services(range), context));
    }
    // Each thread has one address under way when the end comes.
    let Party { later, events, .. } = party;
    let closing = std::thread::spawn(move || drop(later));
    let work = waiting.len();
    for _ in 0..3 * work {
        let _ = open.send(());
    }
    closing.join().unwrap();
    let mut out = [0; 24];
    let (mut ends, mut cancelled, mut inserted) = (0, 0, 0);
    loop {
        match events.read(&mut out, Reading::Take) {
            Ok(_) => {
                ends += 1;
                inserted += Done::read_from_bytes(&out).unwrap().data;
            }
            Err(OpError::Failed(Errno::EAVAIL)) => {
                let error = events.read_error(Reading::Take).unwrap();
                assert_eq!(error.errno, Errno::ECANCELED);
                cancelled += 1;
            }
            Err(error) => {
                assert_eq!(error, OpError::Again);
                break;
            }
        }
    }
    assert_eq!((ends, cancelled + inserted), (work, 3 * work as u64));
}

/// Covers: AV-7, AV-9, AV-11, AV-16
#[test]
fn a_range_that_is_found_later_ends_with_events_like_any_call() {
    let table = Arc::new(
        AvTable::new(&AvAttr {
            av_type: Some(AvType::Table),
            symmetric: true,
            ..AvAttr::default()
        })
        .unwrap(),
    );
    let pool = ResolverPool::new(table.clone(), Arc::new(Nobody), Box::new(|_, _, _| ()));
    let place = InsertContext {
        table: table.clone(),
        naming: Naming {
            format: AddrFormat::SOCKADDR_IN,
            ..Naming::default()
        },
        pool: Some(Arc::new(pool)),
        keeps_ranges: true,
        announce: Box::new(|new| assert_eq!(new, [], "found by nobody")),
    };
    let events = Arc::new(EventQueue::new());
    let party = Party {
        later: AsyncInserter::new(place, events.clone(), SOURCE),
        table: table.clone(),
        events,
        announced: Arc::default(),
    };
    // Nobody listens at port 0.
    let range = Services::range("10.0.0.1", 2, "0", 3).unwrap();
    let results = party.begin(InsertRequest::Services(range), 7);
    for number in [0, 3] {
        let Event::Error(error) = party.next() else {
            panic!("address {number} has failed");
        };
        assert_eq!((error.data, error.errno), (number, Errno::EINVAL));
    }
    let Event::Done(done) = party.next() else {
        panic!("two have failed");
    };
    assert_eq!((done.context, done.data), (7, 4));
    let (bad, addr) = (Err(Errno::EINVAL), |n| Ok(FiAddr(n)));
    let expected = [bad, addr(1), addr(2), bad, addr(4), addr(5)];
    assert_eq!(results.iter().collect::<Vec<_>>(), expected);
    assert_eq!(table.socket(FiAddr(4)), Some(([10, 0, 0, 2], 1).into()));
    assert_eq!(table.lookup(FiAddr(4)), None);
    // The holes are free when the call is over.
    assert_eq!(table.insert(&name(1)).unwrap().addr, FiAddr(0));
}

fn named(name: &str, av_type: AvType) -> AvAttr {
    AvAttr {
        av_type: Some(av_type),
        name: Some(format!("{name}-{av_type:?}-{}", std::process::id())),
        ..AvAttr::default()
    }
}

/// A call that could never insert anything is refused, and no events come.
///
/// Covers: AV-5, AV-7
#[test]
fn a_reader_is_refused_at_once() {
    for av_type in [AvType::Map, AvType::Table] {
        let attr = named("later reads", av_type);
        let _writer = AvTable::open(&attr, "test").unwrap();
        let reading = AvAttr {
            read_only: true,
            ..attr
        };
        let party = Party::around(AvTable::open(&reading, "test").unwrap(), None);
        let listed = InsertRequest::Listed(vec![wanted(Some(1)), wanted(Some(2))]);
        let begun = party
            .later
            .begin(listed, None, Vec::new(), 1, Box::new(|_, _| ()));
        let refused = begun.map_err(|error| error.errno());
        assert_eq!(refused, Err(Errno::EACCES), "{av_type:?}");
        let mut out = [0; 24];
        let nothing = party.events.read(&mut out, Reading::Take);
        assert_eq!(nothing, Err(OpError::Again));
    }
}

/// A call that can not have the turn fails, and the next turn of the process frees the entries that
/// were reserved for it.
///
/// Covers: AV-7, AV-16
#[test]
fn entries_of_a_call_that_can_not_have_the_turn_are_free_again() {
    let attr = named("later released", AvType::Table);
    let (open, resolver) = gate();
    let party = Party::around(AvTable::open(&attr, "test").unwrap(), Some(resolver));
    party.table.set_turn_patience(Duration::from_millis(50));
    let range = Services::range("127.0.0.1", 1, "10", 1).unwrap();
    let results = party.begin(InsertRequest::Services(range), 1);
    let other = AvTable::open(&attr, "test").unwrap();
    let turn = other.insertion().unwrap();
    // Only now does the call come to the point where it needs the turn.
    open.send(()).unwrap();
    let Event::Error(error) = party.next() else {
        panic!("it had the turn while another had it");
    };
    assert_eq!((error.data, error.errno), (0, Errno::ETIMEDOUT));
    assert!(matches!(party.next(), Event::Done(done) if done.data == 0));
    assert_eq!(
        results.try_iter().collect::<Vec<_>>(),
        [Err(Errno::ETIMEDOUT)]
    );
    drop(turn);
    assert_eq!(party.table.insert(&name(1)).unwrap().addr, FiAddr(0));
}

/// A call that is closed before it has the turn frees the entries that were reserved for it at the
/// end of its table.
#[test]
fn entries_of_the_last_call_are_free_for_others() {
    let attr = named("later closed", AvType::Table);
    let table = AvTable::open(&attr, "test").unwrap();
    table.set_turn_patience(Duration::from_millis(50));
    let reserved = table.reserve(3).unwrap();
    let other = AvTable::open(&attr, "test").unwrap();
    let turn = other.insertion().unwrap();
    table.release(reserved);
    drop(turn);
    drop(table);
    assert_eq!(other.insert(&name(1)).unwrap().addr, FiAddr(0));
}
