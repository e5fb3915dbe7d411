mod lost;

use super::*;
use crate::format::{Naming, ParsedAddr};
use crate::resolver_pool::ResolverPool;
use crate::service::{Resolve, Services};
use crate::table::Placed;
use crate::unresolved::SIDE_BY_SIDE;
use crate::{AvAttr, listing};
use ferrofabric_contracts::addr::AddrFormat;
use ferrofabric_contracts::peer::PeerAv;
use ferrofabric_contracts::types::AvType;
use ferrofabric_system::locks::Mutex;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Knows who listens: at each third port nobody, at each third one endpoint for all nodes.
#[derive(Debug, Default)]
struct Rule {
    asked: Mutex<Vec<SocketAddr>>,
}

fn listener(at: &SocketAddr) -> Option<NativeAddr> {
    let node = match at {
        SocketAddr::V4(at) => u64::from(at.ip().to_bits()),
        SocketAddr::V6(_) => 0,
    };
    let incarnation = match at.port() % 3 {
        0 => 1000 * (node & 0xff) + u64::from(at.port()),
        1 => at.port().into(),
        _ => return None,
    };
    Some(name(incarnation))
}

fn name(incarnation: u64) -> NativeAddr {
    NativeAddr {
        incarnation,
        node: 1,
        shm: Some(incarnation),
        verbs: None,
    }
}

impl Resolve for Rule {
    fn resolve(&self, at: SocketAddr) -> Result<NativeAddr> {
        self.asked.lock().push(at);
        let refused = || Error::new(Errno::ECONNREFUSED, "resolve", at.to_string());
        listener(&at).ok_or_else(refused)
    }
}

fn naming() -> Naming {
    Naming {
        format: AddrFormat::SOCKADDR_IN,
        ..Naming::default()
    }
}

fn table(av_type: AvType) -> AvTable {
    table_of(av_type, true)
}

fn table_of(av_type: AvType, symmetric: bool) -> AvTable {
    AvTable::new(&AvAttr {
        av_type: Some(av_type),
        symmetric,
        ..AvAttr::default()
    })
    .unwrap()
}

fn insert_range(
    table: &AvTable,
    node: &str,
    nodes: usize,
    port: u16,
    ports: usize,
) -> Vec<Result<FiAddr, Errno>> {
    let range = Services::range(node, nodes, &port.to_string(), ports).unwrap();
    let nodes = range.nodes(&naming(), &|| false).unwrap();
    let runs = table.insertion().unwrap().insert_range(&nodes, &[]);
    let placed = table.outcomes(runs);
    placed
        .map(|one| one.map_err(|error| error.errno()))
        .collect()
}

fn insert(table: &AvTable, at: SocketAddr) -> Result<Placed, Errno> {
    let sought = naming().target(&at.into()).map(ParsedAddr::from);
    let placed = table.insertion().unwrap().enter(sought, None);
    placed.map_err(|error| error.errno())
}

fn at(node: u8, port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, node), port).into()
}

/// Resolves all entries that are in a queue, and returns those that were found.
fn complete_attempt(table: &AvTable, rule: &Rule) -> Vec<FiAddr> {
    answer_all(table, &table.next_batch().unwrap(), |at| rule.resolve(at))
}

fn answer_all(
    table: &AvTable,
    batch: &ResolutionBatch,
    rule: impl Fn(SocketAddr) -> Result<NativeAddr>,
) -> Vec<FiAddr> {
    let complete_attempt =
        |asked: &ResolutionAttempt| table.complete_attempt(asked, rule(asked.request.at)).new;
    let new = batch.all.iter().filter_map(complete_attempt).collect();
    table.complete_batch(batch);
    new
}

/// The entries that are to be resolved, in order.
fn line(table: &AvTable) -> Vec<u32> {
    let state = table.unresolved.state.lock();
    state
        .queues
        .iter()
        .flat_map(|line| line.values().copied())
        .collect()
}

fn entries(batch: &ResolutionBatch) -> Vec<(u32, SocketAddr)> {
    let one = |asked: &ResolutionAttempt| (asked.entry, asked.request.at);
    batch.all.iter().map(one).collect()
}

fn is_resolving(what: Option<Unresolved>) -> bool {
    matches!(what, Some(Unresolved::Resolving(_)))
}

/// Covers: AV-9, AV-16, AV-18
#[test]
fn a_range_is_found_when_it_is_used() {
    for av_type in [AvType::Map, AvType::Table] {
        let (table, rule) = (table(av_type), Rule::default());
        let entered = insert_range(&table, "10.0.0.1", 3, 300, 4);
        let addrs: Vec<_> = entered.into_iter().map(Result::unwrap).collect();
        for (i, addr) in addrs.iter().enumerate() {
            assert_eq!(addr.0 & 0xffff_ffff, i as u64);
            let by = at(1 + (i / 4) as u8, 300 + (i % 4) as u16);
            assert_eq!(table.socket(*addr), Some(by));
            assert_eq!(table.lookup(*addr), None);
        }
        assert_eq!(*rule.asked.lock(), []);
        // Found, refused, and found.
        for used in [addrs[0], addrs[2], addrs[7], addrs[0]] {
            assert!(is_resolving(table.resolve_for_lookup(used)));
        }
        assert_eq!(complete_attempt(&table, &rule), [addrs[0], addrs[7]]);
        assert_eq!(*rule.asked.lock(), [at(1, 300), at(1, 302), at(2, 303)]);
        assert_eq!(table.lookup(addrs[0]), listener(&at(1, 300)));
        assert_eq!(table.find(&listener(&at(2, 303)).unwrap()), addrs[7]);
        assert_eq!(table.socket(addrs[7]), Some(at(2, 303)));
        let refused = Some(Unresolved::Failed(Errno::ECONNREFUSED));
        assert_eq!(table.resolve_for_lookup(addrs[2]), refused);
        assert!(
            is_resolving(table.resolve_for_lookup(addrs[2])),
            "resolved anew"
        );
        // Told again it is what it is.
        let again = insert_range(&table, "10.0.0.1", 3, 300, 4);
        assert_eq!(again, addrs.iter().copied().map(Ok).collect::<Vec<_>>());
        // A neighbour of both edges takes entries of its own.
        let more = insert_range(&table, "10.0.0.3", 2, 302, 4);
        let entries: Vec<_> = more.iter().map(|one| one.unwrap().0 as u32).collect();
        assert_eq!(entries, [10, 11, 12, 13, 14, 15, 16, 17]);
    }
}

/// Covers: AV-11, AV-12
///
/// A receive makes one call: it does so, too, while another thread is at work on the range.
#[test]
fn a_receive_resolves_while_another_thread_is_at_work() {
    let table = table(AvType::Map);
    let addr = insert_range(&table, "10.0.0.1", 1, 9, 1)[0].unwrap();
    let at_work = table.unresolved.state.lock();
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel();
        let table = &table;
        scope.spawn(move || {
            let asked = table.resolve_for_recv(addr);
            done.send(asked).unwrap();
        });
        // It waits, or was turned away by now.
        let early = is_done.recv_timeout(Duration::from_millis(100));
        drop(at_work);
        let asked = early.or_else(|_| is_done.recv()).unwrap();
        assert!(is_resolving(asked));
    });
    assert_eq!(line(&table), [0]);
    assert_eq!(complete_attempt(&table, &Rule::default()), [addr]);
}

/// An entry is removed while it is being resolved, inserted anew, and resolved again: the result of
/// the first attempt is ignored.
///
/// Covers: AV-11, AV-18
#[test]
fn a_reinserted_entry_ignores_an_older_result() {
    let (table, rule) = (table(AvType::Table), Rule::default());
    let addr = insert_range(&table, "10.0.0.1", 1, 302, 1)[0].unwrap();
    table.resolve_for_lookup(addr);
    let before = table.next_batch().unwrap();
    table.remove(addr).unwrap();
    assert_eq!(insert_range(&table, "10.0.0.1", 1, 302, 1), [Ok(addr)]);
    assert!(is_resolving(table.resolve_for_lookup(addr)));
    answer_all(&table, &before, |at| rule.resolve(at));
    assert!(is_resolving(table.resolve_for_lookup(addr)));
    let anew = table.next_batch().unwrap();
    assert_eq!(entries(&anew), entries(&before));
    answer_all(&table, &anew, |at| rule.resolve(at));
    let refused = Unresolved::Failed(Errno::ECONNREFUSED);
    assert_eq!(table.resolve_for_lookup(addr), Some(refused));
}

/// A receive from an endpoint that is not there yet gets its messages once it is: its entry is
/// resolved anew when a message comes from an unknown source, also one that comes during an
/// attempt. An entry that was only sent to is not.
#[test]
fn an_unknown_source_starts_a_failed_resolution_anew() {
    let table = table(AvType::Map);
    let entered: Vec<_> = insert_range(&table, "10.0.0.1", 1, 300, 4)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let refuse = |batch: &ResolutionBatch| {
        let refused =
            |at: SocketAddr| Err(Error::new(Errno::ECONNREFUSED, "resolve", at.to_string()));
        assert_eq!(answer_all(&table, batch, refused), []);
    };
    assert!(is_resolving(table.resolve_for_recv(entered[0])));
    assert!(is_resolving(table.resolve_for_lookup(entered[1])));
    refuse(&table.next_batch().unwrap());
    assert!(line(&table).is_empty());
    let unknown = name(77);
    assert_eq!(table.find(&unknown), FiAddr::NOTAVAIL);
    let awaited = table.next_batch().unwrap();
    assert_eq!(entries(&awaited), [(0, at(1, 300))]);
    // Another unknown source during the attempt, whose result may be older.
    assert_eq!(table.find(&unknown), FiAddr::NOTAVAIL);
    assert!(line(&table).is_empty());
    refuse(&awaited);
    assert_eq!(line(&table), [0]);
    assert_eq!(complete_attempt(&table, &Rule::default()), [entered[0]]);
    // It is there, and no attempt is made on its account any more.
    assert_eq!(table.find(&unknown), FiAddr::NOTAVAIL);
    assert!(line(&table).is_empty());
}

/// An entry that cannot be resolved at once is tried again until its time is over, which starts
/// anew with the first send that waits. Sends that wait get its error, and the next one starts
/// another resolution.
#[test]
fn a_resolution_lasts_as_long_as_it_may() {
    for symmetric in [false, true] {
        let table = table_of(AvType::Map, symmetric);
        let patience = Duration::from_secs(2);
        table.set_patience(patience);
        let rule = Rule::default();
        let addr = insert(&table, at(1, 302)).unwrap().addr;
        assert_eq!(insert(&table, at(1, 302)), Ok(Placed { addr, new: false }));
        assert_eq!(complete_attempt(&table, &rule), []);
        let used = Instant::now();
        let Some(Unresolved::Resolving(first)) = table.resolve_for_send(addr) else {
            panic!("it is being resolved");
        };
        let ends = Instant::now() + patience;
        let asked_before = rule.asked.lock().len();
        let over = loop {
            let batch = table.next_batch().unwrap();
            assert!(batch.all[0].request.until <= ends);
            let outcome = table.complete_attempt(&batch.all[0], rule.resolve(at(1, 302)));
            assert_eq!(outcome.new, None);
            if outcome.is_awaited {
                break used.elapsed();
            }
            assert_eq!(
                table.outcome(addr, first),
                Some(Unresolved::Resolving(first))
            );
        };
        assert!(rule.asked.lock().len() > asked_before + 1);
        assert!(over > patience / 4, "{over:?}");
        let refused = Some(Unresolved::Failed(Errno::ECONNREFUSED));
        assert_eq!(table.outcome(addr, first), refused);
        let Some(Unresolved::Resolving(second)) = table.resolve_for_send(addr) else {
            panic!("it is resolved anew");
        };
        // A send that waits for the first one gets its error.
        assert_eq!(table.outcome(addr, first), refused);
        assert_eq!(
            table.outcome(addr, second),
            Some(Unresolved::Resolving(second))
        );
        let batch = table.next_batch().unwrap();
        let outcome = table.complete_attempt(&batch.all[0], Ok(name(7)));
        assert_eq!((outcome.new, outcome.is_awaited), (Some(addr), true));
        assert_eq!(table.outcome(addr, second), Some(Unresolved::Resolved));
        assert_eq!(table.lookup(addr), Some(name(7)));
        table.remove(addr).unwrap();
        assert_eq!(table.outcome(addr, second), None);
    }
}

/// A host that has answered is known to be there, whatever becomes of the last attempt.
#[test]
fn a_late_attempt_does_not_hide_that_a_host_is_there() {
    for (first, last, reported) in [
        (Errno::ETIMEDOUT, Errno::EHOSTUNREACH, Errno::ETIMEDOUT),
        (
            Errno::EHOSTUNREACH,
            Errno::ECONNREFUSED,
            Errno::ECONNREFUSED,
        ),
        (Errno::ECONNREFUSED, Errno::ETIMEDOUT, Errno::ETIMEDOUT),
    ] {
        let table = table_of(AvType::Map, false);
        table.set_patience(Duration::from_millis(200));
        let addr = insert(&table, at(1, 302)).unwrap().addr;
        let fail = |errno| {
            let batch = table.next_batch().unwrap();
            let failed = |at: SocketAddr| Err(Error::new(errno, "resolve", at.to_string()));
            answer_all(&table, &batch, failed);
        };
        fail(first);
        let over = loop {
            fail(last);
            match table.resolve_for_lookup(addr) {
                Some(Unresolved::Failed(errno)) => break errno,
                other => assert!(is_resolving(other)),
            }
        };
        assert_eq!(over, reported);
    }
}

/// Entries that sends wait for go before all others, whose resolution began with their insertion.
#[test]
fn entries_that_sends_wait_for_go_first() {
    let table = table_of(AvType::Table, false);
    for port in 1..=SIDE_BY_SIDE as u16 + 10 {
        insert(&table, at(1, port)).unwrap();
    }
    let last = FiAddr(SIDE_BY_SIDE as u64 + 9);
    assert!(is_resolving(table.resolve_for_send(last)));
    let batch = table.next_batch().unwrap();
    assert_eq!(batch.all.len(), SIDE_BY_SIDE);
    assert_eq!(batch.all[0].entry, last.0 as u32);
    assert_eq!(table.next_batch().unwrap().all.len(), 10);
}

/// Each key of an endpoint is an entry of its own, and is reached with that key.
///
/// Covers: AV-21, AV-23
#[test]
fn an_unresolved_entry_has_its_key() {
    let table = table_of(AvType::Table, false).with_auth_keys();
    let key = |qkey| AuthKey::new(0xffff, qkey).unwrap();
    let enter = |key| {
        let sought = naming().with_key(&at(1, 9).into(), key);
        table.insertion().unwrap().enter(sought, None).unwrap().addr
    };
    let both = [enter(key(1)), enter(key(2))];
    assert_eq!(both, [FiAddr(0), FiAddr(1)]);
    assert_eq!(enter(key(1)), both[0]);
    let endpoint = "ferro://[::ffff:10.1.0.1]:7?type=roce2&qkey=11111111&lid=0&pkey=ffff&sl=0&port=1&mtu=1024&inc=5&node=5";
    let endpoint: NativeAddr = endpoint.parse().unwrap();
    let batch = table.next_batch().unwrap();
    assert_eq!(answer_all(&table, &batch, |_| Ok(endpoint)), both);
    for (addr, qkey) in both.into_iter().zip([1, 2]) {
        assert_eq!(table.lookup(addr), Some(endpoint.with_auth_key(key(qkey))));
    }
    table.remove(both[0]).unwrap();
    assert_eq!(enter(key(2)), both[1]);
    assert_eq!(enter(key(1)), both[0], "the entry was free");
}

/// The others of a named table see, resolve and use the entries that one process inserts, also one
/// that opened it for reading.
///
/// Covers: AV-4, AV-5, AV-6, AV-23
#[test]
fn an_unresolved_entry_of_a_named_table_is_all_holders() {
    for av_type in [AvType::Map, AvType::Table] {
        let attr = AvAttr {
            av_type: Some(av_type),
            name: Some(format!("unresolved-{av_type:?}-{}", std::process::id())),
            ..AvAttr::default()
        };
        let writer = AvTable::open(&attr, "tests").unwrap();
        let other = AvTable::open(&attr, "tests").unwrap();
        let reading = AvAttr {
            read_only: true,
            ..attr
        };
        let reader = AvTable::open(&reading, "tests").unwrap();
        let (rule, gone) = (Rule::default(), insert(&writer, at(1, 300)).unwrap().addr);
        let addr = insert(&writer, at(1, 303)).unwrap().addr;
        assert_eq!(insert(&other, at(1, 303)), Ok(Placed { addr, new: false }));
        let Some(Unresolved::Resolving(waits)) = reader.resolve_for_send(gone) else {
            panic!("it is resolved by the reader, too");
        };
        writer.remove(gone).unwrap();
        assert_eq!(reader.outcome(gone, waits), None);
        let anew = insert(&other, at(1, 304)).unwrap().addr;
        assert_eq!((anew.0 as u32, anew == gone), (0, av_type == AvType::Table));
        assert_eq!(reader.outcome(gone, waits), None, "it was another's");
        assert_eq!(reader.socket(addr), Some(at(1, 303)));
        assert!(is_resolving(reader.resolve_for_send(addr)));
        let batch = reader.next_batch().unwrap();
        let new = answer_all(&reader, &batch, |at| rule.resolve(at));
        assert_eq!(new, [addr]);
        for table in [&writer, &other, &reader] {
            assert_eq!(table.lookup(addr), listener(&at(1, 303)));
            assert_eq!(table.resolve_for_lookup(addr), Some(Unresolved::Resolved));
        }
        // The writer's own attempt is over then, too.
        assert!(complete_attempt(&writer, &rule).is_empty());
        let listed = || listing::read(reader.map_addr(), 3);
        assert_eq!(listed(), [anew, addr, FiAddr::NOTAVAIL]);
        writer.remove(addr).unwrap();
        assert_eq!(listed(), [anew, FiAddr::NOTAVAIL, FiAddr::NOTAVAIL]);
    }
}

#[test]
fn failed_addresses_of_a_range_leave_holes_for_others() {
    let table = table(AvType::Table);
    let entered = insert_range(&table, "10.0.0.1", 2, 0, 3);
    let addr = |n| Ok(FiAddr(n));
    let none = Err(Errno::EINVAL);
    assert_eq!(entered, [none, addr(1), addr(2), none, addr(4), addr(5)]);
    // They go in the gaps, in order.
    let gaps = insert_range(&table, "10.0.0.3", 1, 10, 4);
    assert_eq!(gaps, [addr(0), addr(3), addr(6), addr(7)]);
    for (entry, port) in [(0, 10), (3, 11), (6, 12), (7, 13)] {
        assert_eq!(table.socket(FiAddr(entry)), Some(at(3, port)));
    }
    let unknown = Services::range("no-such-node0.invalid", 2, "5", 1);
    assert!(unknown.is_err(), "it ends in no number");
    let unknown = Services::range("no-such-node.invalid", 1, "5", 2).unwrap();
    let nodes = unknown.nodes(&naming(), &|| false).unwrap();
    let runs = table.insertion().unwrap().insert_range(&nodes, &[]);
    assert_eq!(runs.len(), 1);
    for one in table.outcomes(runs) {
        assert_eq!(one.unwrap_err().errno(), Errno::ENOENT);
    }
    assert!(table.unresolved.state.lock().ranges.is_tidy());
    assert_eq!(
        insert_range(&table, "10.0.0.4", 1, 1, 2),
        [addr(8), addr(9)]
    );
}

#[test]
fn more_than_a_table_takes_is_refused_before_anybody_is_looked_up() {
    let range = Services::range("10.0.0.1", 1 << 24, "1", 1 << 10).unwrap();
    let error = range.nodes(&naming(), &|| true).map(drop).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOSPC);
    assert!(error.to_string().contains("1073741824 at most"), "{error}");
}

/// Resolves nothing before the test lets it.
#[derive(Debug)]
struct Gate(Mutex<mpsc::Receiver<()>>, Rule);

impl Resolve for Gate {
    fn resolve(&self, at: SocketAddr) -> Result<NativeAddr> {
        let _ = self.0.lock().recv();
        self.1.resolve(at)
    }
}

/// Covers: AV-9
#[test]
fn threads_resolve_used_entries_and_end_with_the_address_vector() {
    let table = Arc::new(table(AvType::Table));
    let (open, gate) = mpsc::channel();
    let (announced, found) = mpsc::channel();
    let gate = Arc::new(Gate(Mutex::new(gate), Rule::default()));
    let announce = Box::new(move |new: &[FiAddr], _: &[RefoundEndpoint], _| {
        (new.iter()).for_each(|addr| announced.send(*addr).unwrap());
    });
    let pool = ResolverPool::new(table.clone(), gate.clone(), announce);
    pool.start().unwrap();
    insert_range(&table, "10.0.0.1", 1, 300, 30);
    let wait = || found.recv_timeout(Duration::from_secs(30));
    for entry in [0, 3, 6] {
        // While one thread waits for an answer others take what comes.
        assert!(is_resolving(table.resolve_for_lookup(FiAddr(entry))));
        while !line(&table).is_empty() {
            std::thread::yield_now();
        }
        assert!(is_resolving(table.resolve_for_lookup(FiAddr(entry))));
        assert_eq!(table.lookup(FiAddr(entry)), None);
    }
    for _ in 0..3 {
        open.send(()).unwrap();
    }
    let mut new: Vec<_> = (0..3).map(|_| wait().unwrap()).collect();
    new.sort_unstable();
    assert_eq!(new, [FiAddr(0), FiAddr(3), FiAddr(6)]);
    // One is under way when it closes, and comes to its end.
    table.resolve_for_lookup(FiAddr(9));
    // The resolution is under way once its thread waits at the gate. A close before that would
    // cancel it.
    while gate.0.try_lock().is_some() {
        std::thread::yield_now();
    }
    let closing = std::thread::spawn(move || drop(pool));
    while !table.unresolved.state.lock().closing {
        std::thread::yield_now();
    }
    open.send(()).unwrap();
    closing.join().unwrap();
    assert_eq!(wait(), Ok(FiAddr(9)));
    assert!(wait().is_err(), "nobody is left to announce any");
}

/// An address that is found in the table is announced, once its finder has caught up.
#[test]
fn an_address_that_is_found_is_announced() {
    let table = Arc::new(table(AvType::Table));
    let (go, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let announced = Arc::new(AtomicBool::new(false));
    let is_announced = announced.clone();
    let announce = Box::new(move |new: &[FiAddr], _: &[RefoundEndpoint], _| {
        if !new.is_empty() {
            let _ = waits.lock().recv();
            announced.store(true, Ordering::SeqCst);
        }
    });
    let pool = ResolverPool::new(table.clone(), Arc::new(Rule::default()), announce);
    pool.start().unwrap();
    insert_range(&table, "10.0.0.1", 1, 3, 30);
    assert!(is_resolving(table.resolve_for_lookup(FiAddr(0))));
    while table.lookup(FiAddr(0)).is_none() {
        std::thread::yield_now();
    }
    std::thread::scope(|threads| {
        let catches_up = threads.spawn(|| {
            pool.catch_up();
            is_announced.load(Ordering::SeqCst)
        });
        // Enough for one that does not wait.
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        assert!(catches_up.join().unwrap());
    });
}

/// Measured in a process of its own: the memory of other tests would count.
const MEASURED: &str = "resolving::tests::a_range_of_a_million";

/// Set in that process.
const ALONE: &str = "FERRO_TEST_ALONE";

/// Covers: AV-9, AV-16
#[test]
fn a_range_takes_memory_for_its_nodes_and_next_to_none_for_its_entries() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", MEASURED, "--ignored", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"));
}

/// Bytes of its own that this process has touched.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: usize = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib << 10
}

#[test]
#[ignore = "a_range_takes_memory_for_its_nodes_and_next_to_none_for_its_entries runs it"]
fn a_range_of_a_million() {
    const N: usize = 1000;
    if std::env::var_os(ALONE).is_none() {
        return println!("a part of another test, which runs it");
    }
    for av_type in [AvType::Map, AvType::Table] {
        let table = table(av_type);
        let rule = Rule::default();
        let range = Services::range("10.0.0.1", N, "3000", N).unwrap();
        let before = resident_bytes();
        let nodes = range.nodes(&naming(), &|| false).unwrap();
        let runs = table.insertion().unwrap().insert_range(&nodes, &[]);
        drop(nodes);
        assert_eq!(runs.len(), 1);
        let last = table.outcomes(runs).last().unwrap().unwrap();
        let taken = resident_bytes().saturating_sub(before);
        println!("{taken} bytes for {N} nodes of {N} ports ({av_type:?})");
        // 125 kB of marks, about 80 for each node, and the overhead of pages and allocator. Large
        // pages come whole.
        let large = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        let pages_are_large = large.is_ok_and(|which| which.contains("[always]"));
        assert!(taken < if pages_are_large { 16 << 20 } else { 512 << 10 });
        assert_eq!(table.socket(last).unwrap().port(), 3999);
        table.resolve_for_lookup(last);
        assert_eq!(complete_attempt(&table, &rule), [last]);
        assert_eq!(*rule.asked.lock(), [table.socket(last).unwrap()]);
        assert_eq!(table.lookup(last), listener(&table.socket(last).unwrap()));
    }
}

#[derive(Clone, Debug)]
enum Op {
    Tell {
        node: u8,
        nodes: u8,
        port: u16,
        ports: u8,
    },
    /// An endpoint by its native address.
    Insert(u64),
    /// By its socket address.
    InsertAt(u8, u16),
    /// Somebody looks one up.
    LookUp(usize),
    /// A send waits for one.
    Send(usize),
    /// A receive waits for messages of one.
    Receive(usize),
    /// Somebody comes who is not in.
    Stranger,
    /// Threads take a batch from the queues.
    Take,
    /// And have the answers.
    Answer,
    Remove(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let port = || 3u16..12;
    let op = prop_oneof![
        3 => (1u8..4, 1u8..4, port(), 1u8..5)
            .prop_map(|(node, nodes, port, ports)| Op::Tell { node, nodes, port, ports }),
        1 => (0u64..12).prop_map(Op::Insert),
        3 => (1u8..6, port()).prop_map(|(node, port)| Op::InsertAt(node, port)),
        5 => any::<usize>().prop_map(Op::LookUp),
        5 => any::<usize>().prop_map(Op::Send),
        3 => any::<usize>().prop_map(Op::Receive),
        2 => Just(Op::Stranger),
        3 => Just(Op::Take),
        3 => Just(Op::Answer),
        6 => any::<usize>().prop_map(Op::Remove),
    ];
    proptest::collection::vec(op, 0..120)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    /// Of a range, and not used yet.
    Entered,
    /// In line, or asked for; a send waits for it or not.
    Attempted {
        taken: bool,
        used: bool,
    },
    InVain {
        reported: bool,
    },
    Found(NativeAddr),
    Same(FiAddr),
}

/// The entries, in plain form.
#[derive(Default)]
struct Plain {
    entries: BTreeMap<u32, (FiAddr, Option<SocketAddr>, Where)>,
    /// Those that sends wait for, and the others.
    lines: [Vec<u32>; 2],
    taken: Option<ResolutionBatch>,
    removed: Vec<FiAddr>,
    /// Those that messages may come from.
    awaited: BTreeSet<u32>,
    /// Somebody came who is not in, since the line was taken.
    unknown_sources: bool,
}

impl Plain {
    fn at(&self, at: SocketAddr) -> Option<u32> {
        let mut all = self.entries.iter();
        all.find(|(_, one)| one.1 == Some(at))
            .map(|(entry, _)| *entry)
    }

    fn named(&self, name: NativeAddr) -> Option<u32> {
        let mut all = self.entries.iter();
        all.find(|(_, one)| one.2 == Where::Found(name))
            .map(|(entry, _)| *entry)
    }

    fn lowest_free(&self) -> u32 {
        (0..)
            .find(|entry| !self.entries.contains_key(entry))
            .unwrap()
    }

    /// The one of those that are in and those that were.
    fn pick(&self, n: usize) -> Option<FiAddr> {
        let all: Vec<_> = self
            .entries
            .values()
            .map(|one| one.0)
            .chain(self.removed.iter().rev().take(3).copied())
            .collect();
        (!all.is_empty()).then(|| all[n % all.len()])
    }

    fn entry_of(&self, addr: FiAddr) -> Option<u32> {
        let entry = addr.0 as u32;
        self.entries
            .get(&entry)
            .filter(|one| one.0 == addr)
            .map(|_| entry)
    }

    fn add(&mut self, addr: FiAddr, at: Option<SocketAddr>, is: Where) {
        let entry = self.lowest_free();
        assert_eq!(addr.0 as u32, entry, "the lowest free index");
        self.entries.insert(entry, (addr, at, is));
    }

    fn set(&mut self, entry: u32, is: Where) {
        for line in &mut self.lines {
            line.retain(|other| *other != entry);
        }
        if matches!(is, Where::Found(_) | Where::Same(_)) {
            self.awaited.remove(&entry);
        }
        if let Where::Attempted { taken: false, used } = is {
            self.lines[usize::from(!used)].push(entry);
        }
        self.entries.get_mut(&entry).unwrap().2 = is;
    }

    fn start(&mut self, entry: u32, used: bool) {
        let taken = false;
        self.set(entry, Where::Attempted { taken, used });
    }

    fn restart_failed(&mut self) {
        for entry in self.awaited.clone() {
            if matches!(self.entries[&entry].2, Where::InVain { .. }) {
                self.start(entry, false);
            }
        }
    }

    /// An endpoint was found for an entry. Returns whether it is new.
    fn found(&mut self, entry: u32, name: NativeAddr) -> bool {
        let first = self.named(name).map(|first| self.entries[&first].0);
        self.set(entry, first.map_or(Where::Found(name), Where::Same));
        first.is_none()
    }
}

struct Pair {
    table: AvTable,
    plain: Plain,
    rule: Rule,
}

impl Pair {
    fn run(&mut self, op: &Op) {
        match *op {
            Op::Tell {
                node,
                nodes,
                port,
                ports,
            } => {
                let entered = insert_range(
                    &self.table,
                    &Ipv4Addr::new(10, 0, 0, node).to_string(),
                    nodes.into(),
                    port,
                    ports.into(),
                );
                for (i, one) in entered.into_iter().enumerate() {
                    let by = at(node + i as u8 / ports, port + u16::from(i as u8 % ports));
                    match self.plain.at(by) {
                        Some(entry) => assert_eq!(one, Ok(self.plain.entries[&entry].0)),
                        None => self.plain.add(one.unwrap(), Some(by), Where::Entered),
                    }
                }
            }
            Op::Insert(n) => {
                let placed = self.table.insert(&name(n)).unwrap();
                match self.plain.named(name(n)) {
                    Some(entry) => assert_eq!(placed.addr, self.plain.entries[&entry].0),
                    None => self.plain.add(placed.addr, None, Where::Found(name(n))),
                }
            }
            Op::InsertAt(node, port) => self.insert_at(at(node, port)),
            Op::LookUp(n) => self.resolve(n, ResolveFor::LookUp),
            Op::Send(n) => self.resolve(n, ResolveFor::Send),
            Op::Receive(n) => self.resolve(n, ResolveFor::Receive),
            Op::Stranger => {
                assert_eq!(self.table.find(&name(5000)), FiAddr::NOTAVAIL);
                self.plain.unknown_sources = true;
                self.plain.restart_failed();
            }
            Op::Take => self.take(),
            Op::Answer => self.complete_attempt(),
            Op::Remove(n) => {
                let Some(addr) = self.plain.pick(n) else {
                    return;
                };
                let entry = self.plain.entry_of(addr);
                let removed = self.table.remove(addr).map_err(|error| error.errno());
                assert_eq!(removed.is_ok(), entry.is_some(), "{removed:?}");
                if let Some(entry) = entry {
                    self.plain.set(entry, Where::Entered);
                    self.plain.awaited.remove(&entry);
                    self.plain.entries.remove(&entry);
                    self.plain.removed.push(addr);
                    for one in self.plain.entries.values_mut() {
                        if one.2 == Where::Same(addr) {
                            one.2 = Where::Entered;
                        }
                    }
                }
            }
        }
    }

    fn take(&mut self) {
        let entries_in_line = self.plain.lines.concat();
        if self.plain.taken.is_some() || entries_in_line.is_empty() {
            return;
        }
        let mut expected = Vec::new();
        for entry in entries_in_line {
            let (_, at, is) = self.plain.entries[&entry];
            let Where::Attempted { used, .. } = is else {
                panic!("{is:?} in line");
            };
            self.plain
                .set(entry, Where::Attempted { taken: true, used });
            expected.push((entry, at.unwrap()));
        }
        let taken = self.table.next_batch().unwrap();
        assert_eq!(entries(&taken), expected);
        self.plain.taken = Some(taken);
        self.plain.unknown_sources = false;
    }

    fn complete_attempt(&mut self) {
        let Some(taken) = self.plain.taken.take() else {
            return;
        };
        for asked in &taken.all {
            let outcome = self
                .table
                .complete_attempt(asked, self.rule.resolve(asked.request.at));
            let mut expected = AttemptOutcome::default();
            let one = self.plain.entries.get(&asked.entry).copied();
            if let Some((addr, Some(at), Where::Attempted { taken: true, used })) = one {
                expected.is_awaited = used;
                match listener(&at) {
                    Some(name) => {
                        let is_new = self.plain.found(asked.entry, name);
                        expected.new = is_new.then_some(addr);
                    }
                    None => (self.plain).set(asked.entry, Where::InVain { reported: false }),
                }
            }
            assert_eq!(outcome, expected);
        }
        self.table.complete_batch(&taken);
        if self.plain.unknown_sources {
            self.plain.restart_failed();
        }
    }

    fn insert_at(&mut self, by: SocketAddr) {
        let placed = insert(&self.table, by).unwrap();
        let Some(entry) = self.plain.at(by) else {
            self.plain.add(placed.addr, Some(by), Where::Entered);
            let entry = placed.addr.0 as u32;
            self.plain.start(entry, false);
            self.plain.awaited.insert(entry);
            assert!(placed.new);
            return;
        };
        let (addr, _, is) = self.plain.entries[&entry];
        assert_eq!(placed, Placed { addr, new: false });
        if !matches!(is, Where::Found(_) | Where::Same(_)) {
            self.plain.awaited.insert(entry);
        }
        if matches!(is, Where::Entered | Where::InVain { .. }) {
            self.plain.start(entry, false);
        }
    }

    fn resolve(&mut self, n: usize, what: ResolveFor) {
        let Some(addr) = self.plain.pick(n) else {
            return;
        };
        let asked = match what {
            ResolveFor::LookUp => self.table.resolve_for_lookup(addr),
            ResolveFor::Send => self.table.resolve_for_send(addr),
            ResolveFor::Receive => self.table.resolve_for_recv(addr),
        };
        let Some(entry) = self.plain.entry_of(addr) else {
            assert_eq!(asked, None);
            return;
        };
        let refused = Some(Unresolved::Failed(Errno::ECONNREFUSED));
        match self.plain.entries[&entry].2 {
            Where::Found(name) => {
                assert_eq!(self.table.lookup(addr), Some(name));
                // A table without anything unresolved says nothing.
                assert!(asked.is_none_or(|is| is == Unresolved::Resolved));
                return;
            }
            Where::Same(first) => {
                assert_eq!(asked, Some(Unresolved::Same(first)));
                return;
            }
            Where::InVain { reported: false } if what == ResolveFor::LookUp => {
                self.plain.set(entry, Where::InVain { reported: true });
                assert_eq!(asked, refused);
                return;
            }
            Where::Entered | Where::InVain { .. } => {
                self.plain.start(entry, what == ResolveFor::Send)
            }
            Where::Attempted { taken, used: false } if what == ResolveFor::Send => {
                self.plain
                    .set(entry, Where::Attempted { taken, used: true });
            }
            Where::Attempted { .. } => {}
        }
        assert!(is_resolving(asked), "{asked:?}");
        if what == ResolveFor::Receive {
            self.plain.awaited.insert(entry);
        }
    }

    fn check(&self) {
        for (addr, by, is) in self.plain.entries.values() {
            assert_eq!(self.table.socket(*addr), *by);
            let found = match is {
                Where::Found(name) => Some(*name),
                _ => None,
            };
            assert_eq!(self.table.lookup(*addr), found);
            assert!(found.is_none_or(|name| self.table.find(&name) == *addr));
        }
        for addr in &self.plain.removed {
            if self.plain.entry_of(*addr).is_none() {
                assert_eq!(self.table.lookup(*addr), None);
                assert_eq!(self.table.socket(*addr), None);
            }
        }
        assert_eq!(line(&self.table), self.plain.lines.concat());
        assert!(self.table.unresolved.state.lock().ranges.is_tidy());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// Covers: AV-9, AV-11, AV-16, AV-17, AV-18, AV-23
    #[test]
    fn unresolved_entries_do_as_plain_ones(indexed in any::<bool>(), symmetric in any::<bool>(), ops in ops()) {
        let av_type = if indexed { AvType::Table } else { AvType::Map };
        let mut run = Pair {
            table: table_of(av_type, symmetric),
            plain: Plain::default(),
            rule: Rule::default(),
        };
        for op in &ops {
            run.run(op);
            run.check();
        }
        // With its last address a range goes whole.
        for (addr, ..) in run.plain.entries.values() {
            run.table.remove(*addr).unwrap();
        }
        prop_assert_eq!(run.table.unresolved.state.lock().ranges.len(), 0);
        prop_assert!(run.table.unresolved.state.lock().ranges.is_tidy());
    }
}
