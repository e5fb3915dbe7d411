//! Address vectors under traffic: named ones that two domains share, users' own IDs (fi_av(3)).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use ferrofabric_av::{AvAttr, InsertRequest, Resolve, Services};
use ferrofabric_conformance::limits::{PATIENCE, settings};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, Error, OpError};
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{AvType, FiAddr};
use ferrofabric_runtime::eq::EventQueue;
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use ferrofabric_shm::ShmProvider;

fn domain() -> Arc<dyn Domain> {
    let (provider, settings) = (ShmProvider::new(), settings(&[]));
    let found = provider.discover(&settings);
    let info = found.candidates.first().unwrap();
    provider.open(info, &settings).unwrap()
}

fn buffer() -> Buffer {
    Buffer::new(8).unwrap()
}

/// A message from one to the other; returns the receiver's completion.
fn exchange(from: &mut OwningEndpoint, to: FiAddr, at: &mut OwningEndpoint) -> Completion {
    at.trecv(buffer(), FiAddr::UNSPEC, 1, 0, 0).unwrap();
    from.tsend(buffer(), 8, to, 1, 0).unwrap();
    let until = Instant::now() + PATIENCE;
    let (mut sent, mut received) = (false, None);
    while !sent || received.is_none() {
        sent |= from
            .poll()
            .unwrap()
            .map(|done| done.outcome.unwrap())
            .is_some();
        if let Some(done) = at.poll().unwrap() {
            received = Some(done.outcome.unwrap());
        }
        assert!(Instant::now() < until, "sent {sent}, received {received:?}");
    }
    received.unwrap()
}

fn refused(from: &mut OwningEndpoint, to: FiAddr) -> OpError {
    from.tsend(buffer(), 8, to, 1, 0)
        .map_err(|(why, _)| why)
        .unwrap_err()
}

/// Two domains share an address vector. Each can send to a peer that the other inserted, and can
/// not reach one that the other removed, also after both have exchanged messages.
///
/// Covers: AV-4, AV-17
#[test]
fn domains_that_share_an_address_vector_share_its_peers() {
    for av_type in [AvType::Map, AvType::Table] {
        let attr = AvAttr {
            av_type: Some(av_type),
            name: Some(format!("shm {av_type:?} {}", std::process::id())),
            ..AvAttr::default()
        };
        let (mine, yours) = (domain(), domain());
        let mut a = OwningEndpoint::open(&*mine, &attr).unwrap();
        let mut b = OwningEndpoint::open(&*yours, &attr).unwrap();
        let nobody = Err(Errno::EINVAL);
        let lookup = |at: &OwningEndpoint, addr| at.av().lookup(addr).map_err(|e| e.errno());
        let mut last = None;
        for _ in 0..3 {
            let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
            let to_a = a.av().insert(&a.name().to_bytes()).unwrap();
            assert_eq!(b.av().insert(&a.name().to_bytes()).unwrap(), to_a);
            if let Some((stale_b, _)) = last.replace((to_b, to_a)) {
                assert_eq!(stale_b == to_b, av_type == AvType::Table);
            }
            // No insertion was made at b.
            assert_eq!(exchange(&mut b, to_a, &mut a).src, to_b);
            assert_eq!(exchange(&mut a, to_b, &mut b).src, to_a);
            b.av().remove(to_b).unwrap();
            assert_eq!(lookup(&a, to_b), nobody);
            let gone = OpError::Failed(Errno::EADDRNOTAVAIL);
            assert_eq!(refused(&mut a, to_b), gone);
            assert_eq!(exchange(&mut b, to_a, &mut a).src, FiAddr::NOTAVAIL);
            a.av().remove(to_a).unwrap();
            assert_eq!(refused(&mut b, to_a), gone);
        }
    }
}

/// An ID that is given to an address stays, also if another process has just inserted that address
/// in an entry where this process still has another address.
///
/// Covers: AV-4, AV-20
#[test]
fn an_id_stays_with_an_address_of_another_process() {
    for av_type in [AvType::Map, AvType::Table] {
        let attr = AvAttr {
            av_type: Some(av_type),
            name: Some(format!("shm IDs {av_type:?} {}", std::process::id())),
            user_ids: true,
            ..AvAttr::default()
        };
        let (mine, yours) = (domain(), domain());
        let mut a = OwningEndpoint::open(&*mine, &attr).unwrap();
        let mut b = OwningEndpoint::open(&*yours, &attr).unwrap();
        let other = OwningEndpoint::open(&*yours, &attr).unwrap();
        let before = a.av().insert(&other.name().to_bytes()).unwrap();
        b.av().remove(before).unwrap();
        let to_b = b.av().insert(&b.name().to_bytes()).unwrap();
        assert_eq!(to_b.0 as u32, before.0 as u32);
        let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
        a.av().set_user_id(to_b, FiAddr(4711)).unwrap();
        assert_eq!(exchange(&mut b, to_a, &mut a).src, FiAddr(4711));
    }
}

/// The same of an ID that comes with an asynchronous insertion.
///
/// Covers: AV-4, AV-7, AV-20
#[test]
fn an_id_of_an_asynchronous_insertion_stays() {
    for av_type in [AvType::Map, AvType::Table] {
        let attr = AvAttr {
            av_type: Some(av_type),
            name: Some(format!("shm later IDs {av_type:?} {}", std::process::id())),
            ..AvAttr::default()
        };
        let asynchronous = AvAttr {
            events: true,
            ..attr.clone()
        };
        let (mine, yours) = (domain(), domain());
        let mut a = OwningEndpoint::open(&*mine, &asynchronous).unwrap();
        let mut b = OwningEndpoint::open(&*yours, &attr).unwrap();
        let other = OwningEndpoint::open(&*yours, &attr).unwrap();
        let events = Arc::new(EventQueue::new());
        a.av().bind_events(events.clone(), 1).unwrap();
        let before = b.av().insert(&other.name().to_bytes()).unwrap();
        let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
        // From here on the first domain has that other address in the entry.
        assert!(a.poll().unwrap().is_none());
        b.av().remove(before).unwrap();
        let listed = InsertRequest::Listed(vec![b.name().to_bytes().to_vec()]);
        let (tell, told) = mpsc::channel();
        let report = Box::new(move |_, one| tell.send(one).unwrap());
        a.av()
            .insert_later(listed, vec![FiAddr(4711)], 2, report)
            .unwrap();
        let to_b = told.recv_timeout(PATIENCE).unwrap().unwrap();
        assert_eq!(to_b.0 as u32, before.0 as u32);
        assert_eq!(exchange(&mut b, to_a, &mut a).src, FiAddr(4711));
        // The ID ends with the address.
        b.av().remove(to_b).unwrap();
        let again = b.av().insert(&b.name().to_bytes()).unwrap();
        assert_eq!(exchange(&mut b, to_a, &mut a).src, again);
    }
}

/// Symmetric address vectors store endpoints of one node by their numbers alone; messages go both
/// ways and report their sources.
///
/// Covers: AV-9, AV-17
#[test]
fn endpoints_find_each_other_in_symmetric_address_vectors() {
    for av_type in [AvType::Map, AvType::Table] {
        let symmetric = AvAttr {
            av_type: Some(av_type),
            symmetric: true,
            ..AvAttr::default()
        };
        let domain = domain();
        let mut hub = OwningEndpoint::open(&*domain, &symmetric).unwrap();
        let mut peers: Vec<_> = (0..8)
            .map(|_| OwningEndpoint::open(&*domain, &symmetric).unwrap())
            .collect();
        let name = hub.name();
        assert_eq!(name.shm, Some(name.incarnation));
        for round in 0..2 {
            for peer in &mut peers {
                let to_hub = peer.av().insert(&name.to_bytes()).unwrap();
                let to_peer = hub.av().insert(&peer.name().to_bytes()).unwrap();
                assert_eq!(hub.av().lookup(to_peer).unwrap(), peer.name());
                assert_eq!(exchange(peer, to_hub, &mut hub).src, to_peer);
                assert_eq!(exchange(&mut hub, to_peer, peer).src, to_hub);
                hub.av().remove(to_peer).unwrap();
                let gone = OpError::Failed(Errno::EADDRNOTAVAIL);
                assert_eq!(refused(&mut hub, to_peer), gone, "round {round}");
                assert_eq!(exchange(peer, to_hub, &mut hub).src, FiAddr::NOTAVAIL);
            }
        }
    }
}

/// One call for many addresses returns the same as one call for each: for present addresses, for
/// removed ones, and for those that were never inserted.
///
/// Covers: AV-18
#[test]
fn many_addresses_are_looked_up_by_one_call() {
    for (av_type, symmetric) in [
        (AvType::Map, false),
        (AvType::Table, false),
        (AvType::Map, true),
        (AvType::Table, true),
    ] {
        let domain = domain();
        let av = domain.open_av(&AvAttr {
            av_type: Some(av_type),
            symmetric,
            ..AvAttr::default()
        });
        let av = av.unwrap();
        let name = |n| NativeAddr {
            incarnation: n,
            node: 1,
            shm: Some(n),
            verbs: None,
        };
        let mut addrs: Vec<_> = (0..100)
            .map(|n| av.insert(&name(n).to_bytes()).unwrap())
            .collect();
        for gone in addrs.iter().step_by(7) {
            av.remove(*gone).unwrap();
        }
        addrs.extend([FiAddr(4711), FiAddr::NOTAVAIL]);
        let mut found = Vec::new();
        av.lookup_all(&addrs, &mut |number, one| {
            assert_eq!(number, found.len());
            found.push(one.map_err(|e| e.errno()));
        })
        .unwrap();
        let expected: Vec<_> = (0..102)
            .map(|n| match n < 100 && n % 7 != 0 {
                true => Ok(name(n)),
                false => Err(Errno::EINVAL),
            })
            .collect();
        assert_eq!(found, expected);
        av.lookup_all(&[], &mut |_, _| panic!("a report without an address"))
            .unwrap();
    }
}

/// Covers: AV-20
#[test]
fn completions_report_the_users_ids() {
    let domain = domain();
    let with = AvAttr {
        user_ids: true,
        ..AvAttr::default()
    };
    let mut hub = OwningEndpoint::open(&*domain, &with).unwrap();
    let mut peer = OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap();
    let to_hub = peer.av().insert(&hub.name().to_bytes()).unwrap();
    let to_peer = hub.av().insert(&peer.name().to_bytes()).unwrap();
    assert_eq!(exchange(&mut peer, to_hub, &mut hub).src, FiAddr::NOTAVAIL);
    let av = hub.av().clone();
    av.set_user_id(to_peer, FiAddr(4711)).unwrap();
    assert_eq!(exchange(&mut peer, to_hub, &mut hub).src, FiAddr(4711));
    // All other calls take the address.
    assert_eq!(av.lookup(to_peer).unwrap(), peer.name());
    assert_eq!(
        refused(&mut hub, FiAddr(4711)),
        OpError::Failed(Errno::EADDRNOTAVAIL)
    );
    assert_eq!(exchange(&mut hub, to_peer, &mut peer).src, to_hub);
    // The ID ends with the address.
    av.remove(to_peer).unwrap();
    let again = av.insert(&peer.name().to_bytes()).unwrap();
    assert_eq!(exchange(&mut peer, to_hub, &mut hub).src, FiAddr::NOTAVAIL);
    let errno = |e: ferrofabric_contracts::error::Error| e.errno();
    let stale = av.set_user_id(to_peer, FiAddr(1)).map_err(errno);
    assert_eq!(stale, Err(Errno::EINVAL));
    let both = av.tag_inserted(again, FiAddr(1)).map_err(errno);
    assert_eq!(both, Err(Errno::EINVAL));
    let plain = peer.av().set_user_id(to_hub, FiAddr(1)).map_err(errno);
    assert_eq!(plain, Err(Errno::EINVAL));
    peer.av().tag_inserted(to_hub, FiAddr(12)).unwrap();
    assert_eq!(exchange(&mut hub, again, &mut peer).src, FiAddr(12));
}

/// Resolves the ports of endpoints, as soon as these have been entered.
#[derive(Debug, Default)]
struct Ports {
    there: Mutex<HashMap<u16, NativeAddr>>,
    patience: Duration,
    questions: AtomicUsize,
}

impl Ports {
    fn new(patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            patience,
            ..Self::default()
        })
    }

    fn listen(&self, port: u16, endpoint: &OwningEndpoint) {
        self.there.lock().unwrap().insert(port, endpoint.name());
    }
}

impl Resolve for Ports {
    fn resolve(&self, at: SocketAddr) -> Result<NativeAddr, Error> {
        self.questions.fetch_add(1, Ordering::Relaxed);
        let there = self.there.lock().unwrap().get(&at.port()).copied();
        there.ok_or_else(|| Error::new(Errno::ECONNREFUSED, "resolve", at.to_string()))
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

fn by_ports(domain: &dyn Domain, ports: &Arc<Ports>, attr: AvAttr) -> OwningEndpoint {
    let attr = AvAttr {
        resolver: Some(ports.clone()),
        ..attr
    };
    OwningEndpoint::open(domain, &attr).unwrap()
}

fn insert_port(at: &OwningEndpoint, port: u16) -> FiAddr {
    let one = Services::one("127.0.0.1", Some(&port.to_string())).unwrap();
    let mut inserted = None;
    let count = at
        .av()
        .insert_services(&one, &mut |_, one| inserted = Some(one.unwrap()));
    assert_eq!(count.unwrap(), 1);
    inserted.unwrap()
}

/// The result of the next send of an endpoint.
fn sent(from: &mut OwningEndpoint) -> Result<u64, Errno> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(done) = from.poll().unwrap() {
            let token = done.token;
            return done.outcome.map(|_| token).map_err(|error| error.errno);
        }
        assert!(Instant::now() < until, "no completion");
    }
}

/// Messages to a socket address without an endpoint wait, those with a copy too, and arrive in
/// order once an endpoint listens there.
///
/// Covers: AV-7, AV-10, AV-15, AV-23
#[test]
fn sends_wait_until_the_endpoint_listens() {
    for (symmetric, av_type) in [(false, AvType::Map), (true, AvType::Table)] {
        let attr = AvAttr {
            av_type: Some(av_type),
            symmetric,
            ..AvAttr::default()
        };
        let ports = Ports::new(PATIENCE);
        let domain = domain();
        let mut a = by_ports(&*domain, &ports, attr);
        let mut b = OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap();
        let to_b = insert_port(&a, 7);
        assert_eq!(insert_port(&a, 7), to_b);
        let resolving = a.av().lookup(to_b).unwrap_err();
        assert_eq!(resolving.errno(), Errno::EAGAIN);
        for tag in 0..10 {
            b.trecv(buffer(), FiAddr::UNSPEC, tag, 0, tag).unwrap();
        }
        for tag in 0..10u64 {
            match tag % 2 {
                0 => a.tsend(buffer(), 8, to_b, tag, tag).unwrap(),
                _ => a.tinject(&tag.to_le_bytes(), to_b, tag).unwrap(),
            }
        }
        assert!(a.poll().unwrap().is_none());
        ports.listen(7, &b);
        let until = Instant::now() + PATIENCE;
        let (mut completed, mut came) = (Vec::new(), Vec::new());
        while completed.len() < 5 || came.len() < 10 {
            if let Some(done) = a.poll().unwrap() {
                done.outcome.unwrap();
                completed.push(done.token);
            }
            if let Some(done) = b.poll().unwrap() {
                let tag = done.outcome.unwrap().tag;
                if tag % 2 == 1 {
                    assert_eq!(done.buffer[..8], tag.to_le_bytes());
                }
                came.push(tag);
            }
            assert!(Instant::now() < until, "{completed:?} {came:?}");
        }
        assert_eq!(completed, [0, 2, 4, 6, 8]);
        assert_eq!(came, (0..10).collect::<Vec<_>>());
        assert_eq!(a.av().lookup(to_b).unwrap(), b.name());
        // The source of the answer is in the address vector.
        let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
        assert_eq!(exchange(&mut b, to_a, &mut a).src, to_b);
    }
}

/// If no endpoint listens in time, sends fail with completions. A later send resolves the address
/// again, and succeeds if an endpoint listens by then.
///
/// Covers: AV-10, AV-17
#[test]
fn sends_to_missing_endpoints_fail_in_time_and_can_be_repeated() {
    let patience = Duration::from_millis(200);
    let ports = Ports::new(patience);
    let domain = domain();
    let mut a = by_ports(&*domain, &ports, AvAttr::default());
    let mut b = OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap();
    let to_b = insert_port(&a, 7);
    for round in 0..2 {
        let begun = Instant::now();
        a.tsend(buffer(), 8, to_b, 1, 1).unwrap();
        a.tsend(buffer(), 8, to_b, 1, 2).unwrap();
        for _ in 0..2 {
            assert_eq!(sent(&mut a), Err(Errno::ECONNREFUSED), "round {round}");
        }
        let took = begun.elapsed();
        assert!(took > patience / 4 && took < PATIENCE, "{took:?}");
    }
    ports.listen(7, &b);
    assert_eq!(exchange(&mut a, to_b, &mut b).src, FiAddr::NOTAVAIL);
}

/// A send that waits for an address fails when that address is removed, and does not go to the next
/// address in the entry; other sends go on.
///
/// Covers: AV-17
#[test]
fn removal_fails_sends_that_wait_for_the_address() {
    for (symmetric, av_type) in [
        (false, AvType::Table),
        (true, AvType::Table),
        (false, AvType::Map),
    ] {
        let attr = AvAttr {
            av_type: Some(av_type),
            symmetric,
            ..AvAttr::default()
        };
        let ports = Ports::new(PATIENCE);
        let domain = domain();
        let mut a = by_ports(&*domain, &ports, attr);
        let mut b = OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap();
        let gone = insert_port(&a, 7);
        a.tsend(buffer(), 8, gone, 1, 4711).unwrap();
        a.av().remove(gone).unwrap();
        let next = insert_port(&a, 8);
        assert_eq!(next == gone, av_type == AvType::Table);
        ports.listen(8, &b);
        assert_eq!(sent(&mut a), Err(Errno::EADDRNOTAVAIL));
        exchange(&mut a, next, &mut b);
        b.trecv(buffer(), FiAddr::UNSPEC, 1, 0, 0).unwrap();
        assert!(b.poll().unwrap().is_none());
    }
}

/// The end of a resolution, good or bad, wakes a thread that sleeps until a completion comes.
#[test]
fn the_end_of_a_resolution_wakes_a_sleeper() {
    let ports = Ports::new(Duration::from_millis(300));
    let domain = domain();
    let mut a = by_ports(&*domain, &ports, AvAttr::default());
    let b = OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap();
    let (to_b, to_nobody) = (insert_port(&a, 7), insert_port(&a, 8));
    a.tsend(buffer(), 8, to_nobody, 1, 1).unwrap();
    let failed = a.wait(Some(PATIENCE)).unwrap().unwrap();
    assert_eq!(failed.outcome.unwrap_err().errno, Errno::ECONNREFUSED);
    a.tsend(buffer(), 8, to_b, 1, 2).unwrap();
    ports.listen(7, &b);
    let done = a.wait(Some(PATIENCE)).unwrap().unwrap();
    done.outcome.unwrap();
    assert_eq!(done.token, 2);
}

/// One process inserts a peer by its socket address; the others can send to that peer, also a
/// process that opened the address vector for reading.
///
/// Covers: AV-4, AV-5
#[test]
fn a_reader_sends_to_what_another_inserts_by_its_socket_address() {
    let attr = AvAttr {
        name: Some(format!("shm sockets {}", std::process::id())),
        ..AvAttr::default()
    };
    let ports = Ports::new(PATIENCE);
    let (mine, yours) = (domain(), domain());
    let a = by_ports(&*mine, &ports, attr.clone());
    let reading = AvAttr {
        read_only: true,
        ..attr
    };
    let mut reader = by_ports(&*yours, &ports, reading);
    let mut b = OwningEndpoint::open(&*mine, &AvAttr::default()).unwrap();
    let (gone, to_b) = (insert_port(&a, 6), insert_port(&a, 7));
    reader.tsend(buffer(), 8, gone, 1, 1).unwrap();
    a.av().remove(gone).unwrap();
    assert_eq!(sent(&mut reader), Err(Errno::EADDRNOTAVAIL));
    ports.listen(7, &b);
    exchange(&mut reader, to_b, &mut b);
    assert_eq!(a.av().lookup(to_b).unwrap(), b.name());
}

/// A name for an address vector that no other test uses.
fn named(of: &str) -> AvAttr {
    AvAttr {
        name: Some(format!("shm {of} {}", std::process::id())),
        ..AvAttr::default()
    }
}

/// A sender sleeps until an entry is resolved, and another process resolves it.
///
/// Covers: AV-4, AV-23
#[test]
fn a_resolution_by_another_process_wakes_a_sleeper() {
    let (found, unknown) = (Ports::new(PATIENCE), Ports::new(PATIENCE));
    let (mine, yours) = (domain(), domain());
    let a = by_ports(&*mine, &found, named("sleeper"));
    let mut sleeper = by_ports(&*yours, &unknown, named("sleeper"));
    let b = OwningEndpoint::open(&*mine, &AvAttr::default()).unwrap();
    let to_b = insert_port(&a, 7);
    sleeper.tsend(buffer(), 8, to_b, 1, 1).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The sleeper's own resolver does not find it.
            while unknown.questions.load(Ordering::Relaxed) < 2 {
                std::thread::yield_now();
            }
            found.listen(7, &b);
        });
        let done = sleeper.wait(Some(PATIENCE)).unwrap().expect("it sleeps on");
        done.outcome.unwrap();
    });
}

/// An entry was a second name of an endpoint; another process gives the entry to another address.
///
/// Covers: AV-4, AV-23
#[test]
fn a_reused_entry_loses_its_old_meaning() {
    let ports = Ports::new(PATIENCE);
    let (mine, yours) = (domain(), domain());
    let attr = AvAttr {
        av_type: Some(AvType::Table),
        ..named("reused")
    };
    let mut a = by_ports(&*mine, &ports, attr.clone());
    let c = by_ports(&*yours, &ports, attr);
    let mut b = OwningEndpoint::open(&*mine, &AvAttr::default()).unwrap();
    let mut d = OwningEndpoint::open(&*mine, &AvAttr::default()).unwrap();
    a.av().insert(&b.name().to_bytes()).unwrap();
    ports.listen(7, &b);
    let other_name = insert_port(&a, 7);
    exchange(&mut a, other_name, &mut b);
    c.av().remove(other_name).unwrap();
    let to_d = insert_port(&c, 8);
    assert_eq!(to_d, other_name, "the entry was not reused");
    a.tsend(buffer(), 8, to_d, 2, 1).unwrap();
    ports.listen(8, &d);
    d.trecv(buffer(), FiAddr::UNSPEC, 2, 0, 2).unwrap();
    let done = d.wait(Some(PATIENCE)).unwrap();
    assert!(
        done.is_some_and(|done| done.outcome.is_ok()),
        "a message reaches d"
    );
}

/// Sends until a message has arrived; returns the errors of the sends before. A send may complete
/// that the former endpoint got as it closed.
fn send_until_one_arrives(
    from: &mut OwningEndpoint,
    to: FiAddr,
    at: &mut OwningEndpoint,
) -> Vec<Errno> {
    at.trecv(buffer(), FiAddr::UNSPEC, 1, 0, 0).unwrap();
    let until = Instant::now() + PATIENCE;
    let (mut errors, mut is_under_way, mut has_arrived) = (Vec::new(), false, false);
    while is_under_way || !has_arrived {
        if !is_under_way && !has_arrived {
            match from.tsend(buffer(), 8, to, 1, 0) {
                Ok(()) => is_under_way = true,
                Err((OpError::Again, _)) => {}
                Err((OpError::Failed(errno), _)) => errors.push(errno),
            }
        }
        if let Some(done) = from.poll().unwrap() {
            is_under_way = false;
            errors.extend(done.outcome.err().map(|error| error.errno));
        }
        has_arrived |= at.poll().unwrap().is_some();
        assert!(
            Instant::now() < until,
            "nothing arrives: {:?}",
            errors.last()
        );
    }
    errors
}

/// An endpoint closes and another one opens at its socket address. Sends reach that one, by the
/// address of before, and its messages come from there. So it is each time.
///
/// Covers: AV-10, AV-15, AV-23
#[test]
fn sends_reach_the_next_endpoint_at_the_socket_address() {
    for (symmetric, av_type) in [
        (false, AvType::Map),
        (false, AvType::Table),
        (true, AvType::Map),
        (true, AvType::Table),
    ] {
        let attr = AvAttr {
            av_type: Some(av_type),
            symmetric,
            ..AvAttr::default()
        };
        let ports = Ports::new(PATIENCE);
        let domain = domain();
        let mut a = by_ports(&*domain, &ports, attr);
        let (mut to_b, mut former) = (None, None);
        for _ in 0..3 {
            let mut b = OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap();
            ports.listen(7, &b);
            let addr = insert_port(&a, 7);
            assert_eq!(*to_b.get_or_insert(addr), addr);
            let errors = send_until_one_arrives(&mut a, addr, &mut b);
            let is_of_its_end = |errno| [Errno::ESHUTDOWN, Errno::ECONNRESET].contains(errno);
            assert!(errors.iter().all(is_of_its_end), "{errors:?}");
            assert_eq!(a.av().lookup(addr).unwrap(), b.name());
            assert_ne!(former.replace(b.name()), Some(b.name()));
            let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
            assert_eq!(exchange(&mut b, to_a, &mut a).src, addr);
        }
    }
}
