//! A named address vector and the lock of a domain, used by many threads at once (`docs/adr/0045`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::limits::settings;
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::{AvType, FiAddr};
use ferrofabric_runtime::fabric::{Av, Domain, Provider};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use ferrofabric_shm::ShmProvider;

fn domain() -> Arc<dyn Domain> {
    let (provider, settings) = (ShmProvider::new(), settings(&[]));
    let found = provider.discover(&settings);
    let info = found.candidates.first().unwrap();
    provider.open(info, &settings).unwrap()
}

fn name(n: u64) -> NativeAddr {
    NativeAddr {
        incarnation: n,
        node: 1,
        shm: Some(n),
        verbs: None,
    }
}

/// The number of rounds of each thread of a test.
struct Rounds {
    all: Vec<(&'static str, AtomicU64)>,
    over: AtomicBool,
}

/// After this long without any round the threads are deadlocked.
const STANDSTILL: Duration = Duration::from_secs(60);

impl Rounds {
    fn new(threads: &[&'static str]) -> Self {
        let all = threads.iter().map(|name| (*name, AtomicU64::new(0)));
        Self {
            all: all.collect(),
            over: AtomicBool::new(false),
        }
    }

    fn count(&self, thread: usize) {
        self.all[thread].1.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> Vec<(&'static str, u64)> {
        let count =
            |(name, rounds): &(&'static str, AtomicU64)| (*name, rounds.load(Ordering::Relaxed));
        self.all.iter().map(count).collect()
    }

    /// Ends the process if no thread does a round any more: deadlocked threads can not be ended.
    fn watch(&self) {
        let (mut seen, mut since) = (self.now(), Instant::now());
        let mut told = Instant::now();
        while !self.over.load(Ordering::Relaxed) {
            std::thread::park_timeout(Duration::from_millis(100));
            let now = self.now();
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() > STANDSTILL {
                eprintln!("all threads stand still after these rounds: {seen:?}");
                std::process::abort();
            }
            if told.elapsed() > Duration::from_secs(5) {
                println!("rounds so far: {seen:?}");
                told = Instant::now();
            }
        }
    }
}

/// Inserts an address with an ID, as `fi_av_insert` with `FI_AV_USER_ID` does.
fn insert_with_id(av: &dyn Av, n: u64) -> FiAddr {
    let name = name(n).to_bytes();
    let mut inserted = None;
    let mut names = std::iter::once(&name[..]);
    av.insert_all(&mut names, &mut |_, one| {
        let addr = one.unwrap();
        av.tag_inserted(addr, FiAddr(n)).unwrap();
        inserted = Some(addr);
    })
    .unwrap();
    inserted.unwrap()
}

/// While the addresses of a call are reported to its caller, another thread removes one, and the
/// caller gives another one its ID. Neither waits for the other.
///
/// Covers: AV-17, AV-20
#[test]
fn a_removal_during_the_report_of_an_insertion_goes_on() {
    let attr = AvAttr {
        av_type: Some(AvType::Table),
        name: Some(format!("reports {}", std::process::id())),
        ..AvAttr::default()
    };
    let domain = domain();
    let here = OwningEndpoint::open(&*domain, &attr).unwrap();
    let av = here.av().clone();
    let before = av.insert(&name(1).to_bytes()).unwrap();
    let rounds = Rounds::new(&["insertion", "removal"]);
    std::thread::scope(|scope| {
        let (av, rounds) = (&*av, &rounds);
        scope.spawn(|| rounds.watch());
        let new = name(2).to_bytes();
        let mut names = std::iter::once(&new[..]);
        av.insert_all(&mut names, &mut |_, one| {
            let (gone, removed) = std::sync::mpsc::channel();
            scope.spawn(move || {
                av.remove(before).unwrap();
                rounds.count(1);
                let _ = gone.send(());
            });
            // The removal is done, or it has the domain locked and waits for the end of this call.
            let _ = removed.recv_timeout(Duration::from_secs(5));
            av.tag_inserted(one.unwrap(), FiAddr(7)).unwrap();
            rounds.count(0);
        })
        .unwrap();
        while rounds.now() != [("insertion", 1), ("removal", 1)] {
            std::thread::yield_now();
        }
        rounds.over.store(true, Ordering::Relaxed);
    });
    assert_eq!(av.lookup(before).map_err(|e| e.errno()), Err(Errno::EINVAL));
}

/// Threads insert addresses with IDs into a named address vector, and remove them, while another
/// process's holder does so as well, and while messages of unknown sources are looked up by name in
/// the domain's progress. None of them waits for ever.
///
/// Covers: AV-4, AV-20
#[test]
fn concurrent_insertions_removals_and_lookups_go_on() {
    const ROUNDS: u64 = 20_000;
    let attr = AvAttr {
        av_type: Some(AvType::Table),
        name: Some(format!("order {}", std::process::id())),
        ..AvAttr::default()
    };
    let (mine, yours) = (domain(), domain());
    let mut here = OwningEndpoint::open(&*mine, &attr).unwrap();
    let mut there = OwningEndpoint::open(&*yours, &AvAttr::default()).unwrap();
    let to_here = there.av().insert(&here.name().to_bytes()).unwrap();
    // A second holder, as in another process.
    let beside = OwningEndpoint::open(&*yours, &attr).unwrap();
    let rounds = Rounds::new(&["first", "second", "beside", "messages"]);
    let av = here.av().clone();
    std::thread::scope(|scope| {
        let rounds = &rounds;
        scope.spawn(|| rounds.watch());
        let changes = |number: usize, av: Arc<dyn Av>| {
            move || {
                for round in 0..ROUNDS {
                    let addr = insert_with_id(&*av, 1000 * (number as u64 + 1) + round % 100);
                    av.remove(addr).unwrap();
                    rounds.count(number);
                }
            }
        };
        let writers = [
            scope.spawn(changes(0, av.clone())),
            scope.spawn(changes(1, av)),
            scope.spawn(changes(2, beside.av().clone())),
        ];
        // The sender is in no address vector here: each message of a new sender is a look-up that
        // misses.
        let buffer = || Buffer::new(8).unwrap();
        while !writers.iter().all(|writer| writer.is_finished()) {
            here.trecv(buffer(), FiAddr::UNSPEC, 1, 0, 0).unwrap();
            there.tsend(buffer(), 8, to_here, 1, 0).unwrap();
            let (mut sent, mut received) = (false, false);
            while !sent || !received {
                sent |= there.poll().unwrap().is_some();
                if let Some(done) = here.poll().unwrap() {
                    assert_eq!(done.outcome.unwrap().src, FiAddr::NOTAVAIL);
                    received = true;
                }
            }
            rounds.count(3);
        }
        rounds.over.store(true, Ordering::Relaxed);
    });
    println!("rounds: {:?}", rounds.now());
    // The result is as one thread would leave it.
    let gone = beside.av().lookup(FiAddr(0)).map_err(|e| e.errno());
    assert_eq!(gone, Err(Errno::EINVAL));
}
