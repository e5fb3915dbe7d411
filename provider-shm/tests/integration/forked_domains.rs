//! Domains and forked processes: an inherited domain belongs to the parent (`docs/adr/0046`).

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_av::{AvAttr, InsertRequest};
use ferrofabric_conformance::limits::{PATIENCE, settings};
use ferrofabric_contracts::info::Progress;
use ferrofabric_contracts::types::{AvType, FiAddr};
use ferrofabric_runtime::eq::EventQueue;
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use ferrofabric_shm::ShmProvider;

/// Set in the process that forks, so that it has no thread of another test.
const SCENARIO: &str = "FERRO_TEST_FORKED_DOMAIN";

fn domain() -> Arc<dyn Domain> {
    let (provider, settings) = (ShmProvider::new(), settings(&[]));
    let found = provider.discover(&settings);
    let mut info = found.candidates.first().unwrap().clone();
    info.domain.data_progress = Progress::Auto;
    provider.open(&info, &settings).unwrap()
}

fn exchange(from: &mut OwningEndpoint, to: FiAddr, at: &mut OwningEndpoint) {
    let buffer = || Buffer::new(8).unwrap();
    at.trecv(buffer(), FiAddr::UNSPEC, 1, 0, 0).unwrap();
    from.tsend(buffer(), 8, to, 1, 0).unwrap();
    let until = Instant::now() + PATIENCE;
    let (mut sent, mut received) = (false, false);
    while !sent || !received {
        let ended = from.poll().unwrap();
        sent |= ended.map(|done| done.outcome.unwrap()).is_some();
        let ended = at.poll().unwrap();
        received |= ended.map(|done| done.outcome.unwrap()).is_some();
        assert!(Instant::now() < until, "sent {sent}, received {received}");
    }
}

/// Runs `child` in a forked process; returns whether it succeeded in time.
fn forked(child: impl FnOnce()) -> bool {
    // SAFETY: the child does what a program may do that forks while it has threads: it relies on no
    // lock of theirs.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: ends the child, with a signal, if it waits for a thread that it does not have.
        unsafe { libc::alarm(60) };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: ends the child without the end of the test harness.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    println!("the child ended with status {status}");
    status == 0
}

/// A child closes all that it has inherited: a domain with a thread for progress, its endpoints,
/// and an address vector whose threads insert and resolve. The parent's objects go on, and its
/// threads end with them.
///
/// Covers: AV-22
#[test]
fn a_child_closes_inherited_objects() {
    if std::env::var(SCENARIO).is_ok() {
        return parent_and_child();
    }
    let test = "forked_domains::a_child_closes_inherited_objects";
    let mut process = Command::new(std::env::current_exe().unwrap());
    process
        .args(["--exact", test, "--nocapture"])
        .env(SCENARIO, "");
    let output = process.output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "it ended with {}", output.status);
}

fn parent_and_child() {
    let attr = AvAttr {
        av_type: Some(AvType::Table),
        events: true,
        name: Some(format!("forked domain {}", std::process::id())),
        ..AvAttr::default()
    };
    let (here, there) = (domain(), domain());
    let mut a = OwningEndpoint::open(&*here, &attr).unwrap();
    let mut b = OwningEndpoint::open(&*there, &AvAttr::default()).unwrap();
    let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
    let events = Arc::new(EventQueue::new());
    a.av().bind_events(events.clone(), 1).unwrap();
    insert_later(
        &a,
        InsertRequest::Listed(vec![b.name().to_bytes().to_vec()]),
        0,
    );
    exchange(&mut b, to_a, &mut a);
    exchange(&mut a, FiAddr(0), &mut b);
    let mut inherited = Some((a, b, here, there, events));
    let closed = forked(|| drop(inherited.take()));
    assert!(closed, "the child did not come to its end");
    let (mut a, mut b, here, there, events) = inherited.unwrap();
    exchange(&mut b, to_a, &mut a);
    exchange(&mut a, FiAddr(0), &mut b);
    // The threads of the address vector still run.
    a.av().remove(FiAddr(0)).unwrap();
    insert_later(
        &a,
        InsertRequest::Listed(vec![b.name().to_bytes().to_vec()]),
        0,
    );
    exchange(&mut a, FiAddr(0), &mut b);
    drop((a, b, here, there, events));
}

/// Inserts addresses by an asynchronous call, at an index.
fn insert_later(at: &OwningEndpoint, wanted: InsertRequest, index: u64) {
    let (tell, told) = std::sync::mpsc::channel();
    let report = Box::new(move |_, one| tell.send(one).unwrap());
    at.av().insert_later(wanted, Vec::new(), 1, report).unwrap();
    let placed = told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(placed, Ok(FiAddr(index)));
}
