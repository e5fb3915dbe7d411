//! Transports that are informed of all addresses of their node
//! ([`INFORMED_OF_ALL`](ferrofabric_contracts::peer::Transport::INFORMED_OF_ALL)).

use crate::recorder;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ferrofabric_av::{AvAttr, AvTable, InsertRequest, Resolve, Services};
use ferrofabric_contracts::addr::{AddrFormat, NativeAddr};
use ferrofabric_contracts::error::{OpError, Result};
use ferrofabric_contracts::peer::{AV_COMPLETE, Completion};
use ferrofabric_contracts::types::AvType;
use ferrofabric_runtime::eq::{EventQueue, Reading};
use ferrofabric_runtime::fabric::{Av, Cq, CqAttr, Domain, Endpoint, EndpointConfig};

use recorder::{NODE, Recorder, SharedRecord, domain_of, name};

/// A domain, and the records of the transports that it opens, in order.
struct TestDomain {
    domain: Arc<dyn Domain>,
    records: Arc<Mutex<Vec<SharedRecord>>>,
    cq: Arc<dyn Cq>,
}

impl TestDomain {
    fn open<const ALL: bool>(addr_format: AddrFormat, has_unknown_sources: bool) -> Self {
        let records = Arc::<Mutex<Vec<SharedRecord>>>::default();
        let opened = records.clone();
        let domain = domain_of(addr_format, move || {
            let record = SharedRecord::default();
            opened.lock().unwrap().push(record.clone());
            Recorder::<ALL> {
                record,
                has_unknown_sources,
                ..Recorder::default()
            }
        });
        let cq = domain.open_cq(&CqAttr::default()).unwrap();
        Self {
            domain,
            records,
            cq,
        }
    }

    fn informed() -> Self {
        Self::open::<true>(AddrFormat::UNSPEC, true)
    }

    /// An endpoint, and the record of its transport.
    fn endpoint(&self, av: &Arc<dyn Av>) -> (Arc<dyn Endpoint>, SharedRecord) {
        let config = EndpointConfig::new(av, &self.cq);
        let endpoint = self.domain.open_endpoint(config).unwrap();
        let record = self.records.lock().unwrap().last().unwrap().clone();
        (endpoint, record)
    }

    fn progress(&self) {
        let read = self.cq.read(&mut [Completion::BLANK]);
        assert_eq!(read, Err(OpError::Again));
    }
}

fn on_node(record: &SharedRecord) -> Vec<u64> {
    record.lock().unwrap().on(NODE)
}

/// The kinds of address vectors.
fn kinds(test: &str) -> [AvAttr; 4] {
    let of_type = |av_type| AvAttr {
        av_type: Some(av_type),
        ..AvAttr::default()
    };
    [
        of_type(AvType::Map),
        of_type(AvType::Table),
        AvAttr {
            symmetric: true,
            ..AvAttr::default()
        },
        AvAttr {
            name: Some(format!("{test}-{}", std::process::id())),
            ..AvAttr::default()
        },
    ]
}

/// Covers: AV-17, PEER-13
#[test]
fn a_transport_knows_the_addresses_of_its_node() {
    for attr in kinds("informed") {
        let test = TestDomain::informed();
        let av = test.domain.open_av(&attr).unwrap();
        let insert = |node, incarnation| av.insert(&name(node, incarnation).to_bytes()).unwrap();
        let [first, second] = [insert(NODE, 1), insert(NODE, 2)];
        insert(NODE + 1, 3);
        av.remove(first).unwrap();
        let (endpoint, record) = test.endpoint(&av);
        let peers = record.lock().unwrap().peers.clone();
        assert_eq!(
            peers.into_iter().collect::<Vec<_>>(),
            [(second, name(NODE, 2))]
        );
        let fourth = insert(NODE, 4);
        insert(NODE, 5);
        assert_eq!(on_node(&record), [2, 4, 5]);
        av.remove(second).unwrap();
        av.remove(fourth).unwrap();
        assert_eq!(on_node(&record), [5]);
        insert(NODE, 4);
        // The next one goes on when this one is gone.
        let (next, next_record) = test.endpoint(&av);
        drop(endpoint);
        insert(NODE, 6);
        assert_eq!(on_node(&next_record), [4, 5, 6]);
        drop(next);
    }
}

#[test]
fn other_transports_are_not_informed() {
    let test = [
        TestDomain::open::<false>(AddrFormat::UNSPEC, false),
        TestDomain::open::<true>(AddrFormat::UNSPEC, false),
    ];
    for test in test {
        let av = test.domain.open_av(&AvAttr::default()).unwrap();
        let insert = |incarnation| av.insert(&name(NODE, incarnation).to_bytes()).unwrap();
        insert(1);
        let (_endpoint, record) = test.endpoint(&av);
        insert(2);
        assert!(on_node(&record).is_empty());
    }
}

/// Covers: AV-7
#[test]
fn asynchronous_insertions_reach_a_transport() {
    let test = TestDomain::informed();
    let attr = AvAttr {
        events: true,
        ..AvAttr::default()
    };
    let av = test.domain.open_av(&attr).unwrap();
    let events = Arc::new(EventQueue::new());
    av.bind_events(events.clone(), 1).unwrap();
    let (_endpoint, record) = test.endpoint(&av);
    let names = (1..=3).map(|n| name(NODE, n).to_bytes().to_vec()).collect();
    let wanted = InsertRequest::Listed(names);
    av.insert_later(wanted, Vec::new(), 2, Box::new(|_, _| {}))
        .unwrap();
    let mut event = [0; 64];
    let patience = Some(Duration::from_secs(60));
    let (number, _) = events.sread(&mut event, Reading::Take, patience).unwrap();
    assert_eq!(number, AV_COMPLETE);
    test.progress();
    assert_eq!(on_node(&record), [1, 2, 3]);
}

/// The endpoint at a port is that of the port's number.
#[derive(Debug)]
struct ByPort;

impl Resolve for ByPort {
    fn resolve(&self, at: SocketAddr) -> Result<NativeAddr> {
        Ok(name(NODE, at.port().into()))
    }
}

/// Covers: AV-16
#[test]
fn an_address_of_a_range_reaches_a_transport_once_it_is_resolved() {
    let test = TestDomain::open::<true>(AddrFormat::SOCKADDR_IN, true);
    let attr = AvAttr {
        symmetric: true,
        resolver: Some(Arc::new(ByPort)),
        ..AvAttr::default()
    };
    let av = test.domain.open_av(&attr).unwrap();
    let range = Services::range("10.0.0.1", 1, "5000", 4).unwrap();
    let mut addrs = Vec::new();
    av.insert_services(&range, &mut |_, addr| addrs.push(addr.unwrap()))
        .unwrap();
    let resolve = |number: usize| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while av.lookup(addrs[number]).is_err() {
            assert!(Instant::now() < deadline, "it is not resolved");
            std::thread::yield_now();
        }
        test.progress();
    };
    resolve(1);
    let (_endpoint, record) = test.endpoint(&av);
    assert_eq!(on_node(&record), [5001]);
    resolve(3);
    assert_eq!(on_node(&record), [5001, 5003]);
}

/// Another process changes a named address vector.
///
/// Covers: AV-4, AV-17
#[test]
fn changes_by_other_processes_reach_a_transport() {
    let test = TestDomain::informed();
    let [.., attr] = kinds("changed");
    let av = test.domain.open_av(&attr).unwrap();
    let other = AvTable::open(&attr, "recorder").unwrap();
    let [first, second] = [1, 2].map(|n| other.insert(&name(NODE, n)).unwrap().addr);
    let (_endpoint, record) = test.endpoint(&av);
    other.remove(first).unwrap();
    other.insert(&name(NODE, 3)).unwrap();
    test.progress();
    assert_eq!(on_node(&record), [2, 3]);
    other.remove(second).unwrap();
    test.progress();
    assert_eq!(on_node(&record), [3]);
}

/// A thread inserts while an endpoint is enabled: each address is in when the endpoint looks, or
/// comes later.
#[test]
fn no_insertion_is_missed_while_an_endpoint_is_enabled() {
    const ADDRESSES: u64 = 40;
    for _ in 0..100 {
        let test = TestDomain::informed();
        let av = test.domain.open_av(&AvAttr::default()).unwrap();
        let record = std::thread::scope(|threads| {
            let inserter = threads.spawn(|| {
                for n in 0..ADDRESSES {
                    av.insert(&name(NODE, n).to_bytes()).unwrap();
                }
            });
            let endpoint = test.endpoint(&av);
            inserter.join().unwrap();
            endpoint.1
        });
        assert_eq!(on_node(&record), (0..ADDRESSES).collect::<Vec<_>>());
    }
}
