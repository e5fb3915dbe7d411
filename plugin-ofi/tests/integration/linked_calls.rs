//! `lnx`, which links this provider with libfabric's `shm`, by C calls without an event queue: that
//! of libfabric 2.1 has none, so fi_pingpong(1) does not run over it.

use crate::{by_c, child, client, support};
use std::sync::Arc;
use std::time::{Duration, Instant};

use by_c::{DomainByC, Offer};
use client::Libfabric;
use ferro_fi::abi::FI_VERSION;
use ferrofabric_av::AvAttr;
use ferrofabric_conformance::ends;
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{AvType, FiAddr, IoBuf, MrDesc, MsgKind, SendOp};
use ferrofabric_runtime::fabric::{Av, Cq, CqAttr, Domain, Endpoint, EndpointConfig};
use support::counters::EndpointCounters;
use support::folder::Folder;
use support::plugin::Plugin;
use support::run::run;
use support::skip;
use support::tool::Tool;

const PATIENCE: Duration = Duration::from_secs(60);
/// Messages in each direction.
const MESSAGES: u64 = 100;
/// Switches `shm` off for `lnx`.
const DISABLE_SHM: &str = "FI_LNX_DISABLE_SHM";
/// Bytes of a message.
const LEN: usize = 200;

/// An endpoint of `lnx`, with a domain of its own.
struct LinkedEnd {
    endpoint: Arc<dyn Endpoint>,
    cq: Arc<dyn Cq>,
    av: Arc<dyn Av>,
    // Closed last.
    _domain: DomainByC,
}

impl LinkedEnd {
    fn open(libfabric: &'static Libfabric) -> Self {
        let offer = Offer::find(libfabric, "lnx", "", true).expect("an offer of lnx");
        let domain = DomainByC::open(offer).unwrap();
        let table = AvAttr {
            av_type: Some(AvType::Table),
            ..AvAttr::default()
        };
        let av = domain.open_av(&table).unwrap();
        let cq = domain.open_cq(&CqAttr::default()).unwrap();
        let endpoint = domain.open_endpoint(EndpointConfig::new(&av, &cq)).unwrap();
        Self {
            endpoint,
            cq,
            av,
            _domain: domain,
        }
    }

    fn insert(&self, peer: &Self) -> FiAddr {
        self.av.insert(&peer.endpoint.name().to_bytes()).unwrap()
    }

    /// Sends a message with this number to a peer, which drives meanwhile.
    fn send(&self, (to, peer): (FiAddr, &Self), number: u64, bytes: &[u8]) {
        let op = SendOp {
            kind: MsgKind::Tagged,
            dest: to,
            tag: number,
            data: 0,
            desc: MrDesc::NONE,
            context: number,
            flags: Flags::COMPLETION,
        };
        let try_once = || {
            // SAFETY: the bytes outlive the operation, which `exchange` waits for.
            match unsafe { self.endpoint.send(&op, &[buffer(bytes)]) } {
                Ok(()) => Some(()),
                Err(error) => {
                    assert_eq!(error, OpError::Again);
                    assert_eq!([self.next(), peer.next()], [None, None]);
                    None
                }
            }
        };
        until(try_once);
    }

    /// The context of the next completion.
    fn next(&self) -> Option<u64> {
        let mut out = [ends::BLANK];
        match self.cq.read(&mut out) {
            Ok(1) => Some(out[0].context),
            Ok(_) | Err(OpError::Again) => None,
            Err(error) => panic!("{error}: {:?}", self.cq.read_error()),
        }
    }
}

fn buffer(bytes: &[u8]) -> IoBuf {
    IoBuf {
        addr: bytes.as_ptr() as usize,
        len: bytes.len(),
    }
}

fn until<R>(mut answer: impl FnMut() -> Option<R>) -> R {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(Instant::now() < end, "it does not end");
        std::thread::yield_now();
    }
}

/// A message with this number, from one end to the other.
fn exchange(from: &LinkedEnd, (to, address): (&LinkedEnd, FiAddr), number: u64) {
    let sent: Vec<u8> = (0..LEN as u64).map(|at| (at + number) as u8).collect();
    let mut received = vec![0; LEN];
    let receive = ends::any_tagged(number);
    // SAFETY: the buffer outlives the receive, which ends below.
    let posted = unsafe { to.endpoint.recv(&receive, &[buffer(&received)]) };
    posted.unwrap();
    from.send((address, to), number, &sent);
    let mut open = [true; 2];
    until(|| {
        for (open, end) in open.iter_mut().zip([from, to]) {
            if let Some(context) = end.next() {
                assert!(*open && context == number, "{context} in {number}");
                *open = false;
            }
        }
        (open == [false; 2]).then_some(())
    });
    // The library has written them.
    std::hint::black_box(&mut received);
    assert_eq!(received, sent);
}

/// Whether two endpoints of a process end it: in libfabric 2.5.1 progress of `lnx` crashes where
/// both are linked with `shm`, beside this provider, beside `tcp` and by itself.
fn ends_beside_shm(libfabric: &Libfabric) -> bool {
    let is_on = std::env::var_os(DISABLE_SHM).is_none();
    is_on && libfabric.version >= FI_VERSION(2, 3)
}

/// Runs messages both ways in a process with these links. Returns the counters of this provider.
fn linked(test: &str, variables: &[(&str, &str)]) -> Option<EndpointCounters> {
    if child::is_here() {
        let Some(libfabric) = Libfabric::load() else {
            skip("there is no libfabric 2 here (libfabric1, or ci/mpi)");
            return None;
        };
        if ends_beside_shm(&libfabric) {
            println!("SKIP: lnx over shm alone crashes in this libfabric, too [C]");
            return None;
        }
        let libfabric: &'static Libfabric = Box::leak(Box::new(libfabric));
        let [a, b] = [LinkedEnd::open(libfabric), LinkedEnd::open(libfabric)];
        let (to_b, to_a) = (a.insert(&b), b.insert(&a));
        for number in 1..=MESSAGES {
            exchange(&a, (&b, to_b), number);
            exchange(&b, (&a, to_a), number);
        }
        return None;
    }
    let (plugin, stats) = (Plugin::new(), Folder::new());
    let mut command = Tool::asked_for().run(&std::env::current_exe().unwrap());
    child::again(&mut command, test, variables);
    plugin.choose(&mut command);
    // That names this provider alone.
    command.env_remove("FI_PROVIDER");
    command.env("FERRO_STATS", stats.path());
    let said = run(command, PATIENCE).expect_success();
    if let Some(line) = said.lines().find(|line| line.starts_with("SKIP")) {
        println!("{line}");
        return None;
    }
    Some(EndpointCounters::read(stats.path()))
}

/// `lnx` has the messages of one node by `shm`.
#[test]
fn libfabrics_shared_memory_beside() {
    let links = [("FI_LNX_PROV_LINKS", "shm+ferro")];
    if let Some(counters) = linked("libfabrics_shared_memory_beside", &links) {
        assert_eq!(counters.sum("shm_messages_sent"), 0, "{counters:?}");
    }
}

/// The same without `shm`, so that this provider has them.
///
/// Covers: PEER-4, PEER-9
#[test]
fn without_libfabrics_shared_memory() {
    let links = [("FI_LNX_PROV_LINKS", "shm+ferro"), (DISABLE_SHM, "1")];
    if let Some(counters) = linked("without_libfabrics_shared_memory", &links) {
        let sent = counters.sum("shm_messages_sent") + counters.sum("verbs_messages_sent");
        assert!(sent >= 2 * MESSAGES, "{counters:?}");
    }
}
