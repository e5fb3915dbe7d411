//! A named table between processes that are killed.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::*;
use crate::store::tests::ended_after;
use ferrofabric_contracts::peer::PeerAv;

/// Set in the processes of the test: their number, and the name of the address vector.
const CHILD: &str = "FERRO_TEST_NAMED_AV";
const CHILD_TEST: &str = "table::processes::a_process_of_the_others";

/// Set in those that fork a child in their turn.
const LEAVES_CHILD: &str = "FERRO_TEST_LEAVES_CHILD";

const DOMAIN: &str = "test";

/// Names that a process uses, and nobody else.
const NAMES: u64 = 150;

const INSERT: &str = "insert";
const REMOVE: &str = "remove";
const STOPPED: &str = "stopped";
const PAST: &str = "past";

fn attr(name: String) -> AvAttr {
    AvAttr {
        name: Some(name),
        ..AvAttr::default()
    }
}

/// Every word of it says which one it is.
fn name(n: u64) -> NativeAddr {
    NativeAddr {
        incarnation: n,
        node: n ^ 0x5555,
        shm: Some(n.wrapping_mul(3)),
        verbs: None,
    }
}

/// Every entry is whole.
fn check_entries(av: &AvTable) {
    for (addr, found) in av.iter() {
        assert_eq!(found, name(found.incarnation), "half an entry at {addr:?}");
    }
}

/// So it is, and both ways lead to it.
fn check(av: &AvTable) {
    check_entries(av);
    for (addr, found) in av.iter() {
        let back = av.find(&found);
        // Its owner may have removed it, and inserted it elsewhere, meanwhile.
        if let Some(there) = av.lookup(back) {
            assert!(there == found || back != addr, "{back:?} is of another");
        }
    }
}

/// The operation and the step at which a process is to stop.
struct Order {
    operation: String,
    step: u32,
}

impl Order {
    /// The orders that come.
    fn all() -> Receiver<Self> {
        let (sender, orders) = channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lines() {
                let line = line.unwrap();
                let (operation, step) = line.split_once(' ').unwrap();
                let order = Self {
                    operation: operation.to_owned(),
                    step: step.parse().unwrap(),
                };
                if sender.send(order).is_err() {
                    return;
                }
            }
        });
        orders
    }

    /// Carries an order out, if it is about this operation: there it stops, or says that it has
    /// come past its last step.
    fn obey(order: &mut Option<Self>, operation: &str, act: impl FnOnce()) {
        match order.take_if(|order| order.operation == operation) {
            Some(Self { step, .. }) => {
                assert!(!ended_after(step, stop, act), "it goes on after its end");
                println!("{PAST}");
            }
            None => act(),
        }
    }
}

/// Says that it has come so far, and waits to be killed. Some leave a child behind.
fn stop() {
    if std::env::var_os(LEAVES_CHILD).is_some() {
        leave_child();
    }
    println!("{STOPPED}");
    loop {
        std::thread::park();
    }
}

/// Forks a child that lives until the test has given up the orders, and does nothing.
#[allow(unsafe_code, reason = "forks")]
fn leave_child() {
    use nix::libc;
    // SAFETY: the child makes nothing but system calls.
    unsafe {
        if libc::fork() == 0 {
            let mut byte = 0u8;
            while libc::read(0, (&raw mut byte).cast(), 1) > 0 {}
            libc::_exit(0);
        }
    }
}

/// Inserts and removes names that nobody else uses, and finds exactly those that it should, until
/// it is killed.
#[test]
fn a_process_of_the_others() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let (number, shared) = what.split_once(' ').unwrap();
    let own = number.parse::<u64>().unwrap() * 1_000_000;
    let av = AvTable::open(&attr(shared.to_owned()), DOMAIN).unwrap();
    // It waits for the process that the test stops.
    av.set_turn_patience(Duration::from_secs(300));
    println!("ready");
    let orders = Order::all();
    let mut order = None;
    // The test ends long before.
    let end = Instant::now() + Duration::from_secs(300);
    for round in 0u64.. {
        order = order.or_else(|| orders.try_recv().ok());
        // Most of its time it changes the table: there it is to be killed.
        let mine = (own..own + NAMES).filter(|n| (n ^ round) % 3 != 0);
        let mine: BTreeSet<_> = mine.collect();
        let mut call = av.insertion().unwrap();
        for n in &mine {
            Order::obey(&mut order, INSERT, || {
                assert!(call.place(Ok(name(*n).to_bytes())).unwrap().new);
            });
        }
        drop(call);
        if round % 8 == 0 {
            let names: Vec<_> = (own..own + NAMES).map(name).collect();
            av.find_all(&names, |number, addr| {
                let n = own + number as u64;
                assert_eq!(addr.is_some(), mine.contains(&n), "{n}");
                assert_eq!(addr, av.find(&name(n)), "{n}");
            });
            check(&av);
            assert!(Instant::now() < end, "nobody ended this process");
        }
        for n in mine {
            let addr = av.find(&name(n));
            Order::obey(&mut order, REMOVE, || {
                av.remove(addr).unwrap();
            });
        }
    }
}

/// Another process.
struct Other {
    child: Child,
    orders: ChildStdin,
    says: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start(number: u64, shared: &str) -> Self {
        Self::start_as(number, shared, |_| {})
    }

    fn start_as(number: u64, shared: &str, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        prepare(&mut command);
        let mut child = command
            .args(["--exact", CHILD_TEST, "--nocapture"])
            .env(CHILD, format!("{number} {shared}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let mut says = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = says.any(|line| line.unwrap().ends_with("ready"));
        assert!(ready, "process {number} did not begin");
        Self {
            child,
            orders,
            says,
        }
    }

    /// Has it stop at a step of its next operation. False: that has fewer.
    fn stops(&mut self, operation: &str, step: u32) -> bool {
        writeln!(self.orders, "{operation} {step}").unwrap();
        let said = self.says.next().expect("it ended by itself").unwrap();
        assert!(said == STOPPED || said == PAST, "it says {said}");
        said == STOPPED
    }

    /// Its process ID.
    fn id(&self) -> u32 {
        self.child.id()
    }

    fn kill(self) {
        drop(self.kill_without_child());
    }

    /// Kills it, and not a child of it, which lives until what this returns is dropped.
    fn kill_without_child(mut self) -> ChildStdin {
        assert_eq!(self.child.try_wait().unwrap(), None, "it ended by itself");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.orders
    }
}

/// Sixteen processes share a table. One after the other is killed: at each step of insertion and of
/// removal, then wherever it happens to be; another one comes in the place of each of the first.
/// The rest never sees a half entry, and when all are gone so is the table.
///
/// Covers: AV-4
#[test]
fn killed_writers_leave_nothing_half_done() {
    const PROCESSES: u64 = 16;
    let shared = format!("killed-{}", std::process::id());
    let mut number = 0;
    let mut start = || {
        number += 1;
        Other::start(number, &shared)
    };
    let mut others: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    let reading = AvAttr {
        read_only: true,
        ..attr(shared.clone())
    };
    let av = AvTable::open(&reading, DOMAIN).unwrap();
    for operation in [INSERT, REMOVE] {
        let mut steps = 0;
        while others[0].stops(operation, steps) {
            // The others wait for its turn meanwhile.
            let is_torn = av.store.is_torn();
            assert!(is_torn, "{operation} is whole at step {steps}");
            check_entries(&av);
            others.remove(0).kill();
            check(&av);
            others.push(start());
            steps += 1;
        }
        assert!(steps >= 5, "{operation} has {steps} steps");
    }
    for (nth, other) in (0..).zip(others) {
        // The others go on meanwhile: it is a different point each time.
        let until = Instant::now() + Duration::from_millis(20 + 7 * nth % 31);
        while Instant::now() < until {
            check(&av);
        }
        other.kill();
        check(&av);
    }
    // The next process mends the table, and can change it.
    let writer = AvTable::open(&attr(shared), DOMAIN).unwrap();
    let left: Vec<_> = writer.iter().collect();
    assert_eq!(left.len(), writer.len());
    for (addr, found) in left {
        assert_eq!(
            (writer.find(&found), found),
            (addr, name(found.incarnation))
        );
        writer.remove(addr).unwrap();
    }
    assert!(writer.is_empty());
    // No index was lost with those who died.
    for n in 0..1000 {
        let addr = writer.insert(&name(n)).unwrap().addr;
        assert_eq!(addr.0 & 0xffff_ffff, n);
    }
    drop((av, writer));
    let gone = AvTable::open(&reading, DOMAIN).err().map(|e| e.errno());
    assert_eq!(gone, Some(Errno::ENOENT));
}

/// A writer is killed in its turn, and a child that it has forked then lives on: the next writer
/// waits for nobody.
///
/// Covers: AV-4
#[test]
fn a_child_of_a_killed_writer_has_no_turn() {
    let shared = format!("left-{}", std::process::id());
    let av = AvTable::open(&attr(shared.clone()), DOMAIN).unwrap();
    let mut children = Vec::new();
    for (number, operation) in (1..).zip([INSERT, REMOVE, INSERT]) {
        let mut other = Other::start_as(number, &shared, |command| {
            command.env(LEAVES_CHILD, "1");
        });
        assert!(other.stops(operation, 1));
        children.push(other.kill_without_child());
        let placed = av.insert(&name(number)).unwrap();
        av.remove(placed.addr).unwrap();
    }
    drop(children);
}

/// The result of `act`; it fails where that takes so long that it waits for a process that does
/// nothing.
fn without_waiting<T: Send>(what: &str, act: impl FnOnce() -> T + Send) -> T {
    let (done, came) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || done.send(act()));
        match came.recv_timeout(Duration::from_secs(60)) {
            Ok(value) => value,
            Err(_) => {
                eprintln!("{what} waits for a writer that is stopped");
                // The thread would never end.
                std::process::abort();
            }
        }
    })
}

/// A writer stops at each step of insertion and of removal, and is not killed: others find every
/// address and look for absent ones, alone and many at a time, and wait for nobody. A process that
/// wants to change the table gets an error that names the process with the turn. They go on when
/// the writer is gone.
///
/// Covers: AV-4, AV-17, AV-18
#[test]
fn a_stopped_writer_stops_no_reader() {
    const KNOWN: u64 = 500;
    let shared = format!("stopped-{}", std::process::id());
    let av = AvTable::open(&attr(shared.clone()), DOMAIN).unwrap();
    let known: Vec<_> = (0..KNOWN).map(name).collect();
    let addrs: Vec<_> = known.iter().map(|n| av.insert(n).unwrap().addr).collect();
    let absent: Vec<_> = (KNOWN..KNOWN + 20).map(name).collect();
    let mut number = 0;
    for operation in [INSERT, REMOVE] {
        let mut steps = 0;
        loop {
            // Each process has a table of its own.
            number += 1;
            let mut other = Other::start(number, &shared);
            if !other.stops(operation, steps) {
                other.kill();
                break;
            }
            let at = format!("step {steps} of {operation}");
            without_waiting(&format!("a look-up at {at}"), || {
                for (name, addr) in known.iter().zip(&addrs) {
                    assert_eq!((av.find(name), av.lookup(*addr)), (*addr, Some(*name)));
                }
                for name in &absent {
                    assert_eq!(av.find(name), FiAddr::NOTAVAIL);
                }
                av.find_all(&known, |number, addr| assert_eq!(addr, addrs[number]));
                av.find_all(&absent, |_, addr| assert_eq!(addr, FiAddr::NOTAVAIL));
                assert!(!av.has_no_writer());
            });
            av.set_turn_patience(Duration::from_millis(20));
            let errors = without_waiting(&format!("a change at {at}"), || {
                let inserted = av.insert(&absent[0]).map(drop).unwrap_err();
                [inserted, av.remove(addrs[0]).unwrap_err()]
            });
            for error in errors {
                assert_eq!(error.errno(), Errno::ETIMEDOUT);
                let holder = format!("process {}", other.id());
                assert!(error.to_string().contains(&holder), "{error}");
            }
            other.kill();
            av.set_turn_patience(Duration::from_secs(60));
            let placed = without_waiting(&format!("a change after {at}"), || {
                let placed = av.insert(&absent[0]).unwrap();
                av.remove(placed.addr).unwrap();
                placed
            });
            assert!(placed.new);
            steps += 1;
        }
        assert!(steps >= 5, "{operation} has {steps} steps");
    }
}
