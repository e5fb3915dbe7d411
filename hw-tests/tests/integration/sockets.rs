//! Endpoints by socket address: found by the connection manager where they listen, by bytes, by
//! name and by range.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use ferrofabric_av::format::endpoint_to_bytes;
use ferrofabric_av::{AvAttr, InsertRequest, Services};
use ferrofabric_conformance::dgram;
use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::unknown_sources;
use ferrofabric_contracts::addr::{AddrFormat, Address, NativeAddr};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::EpType;
use ferrofabric_contracts::peer::Done;
use ferrofabric_contracts::types::{AvType, FiAddr, IoBuf, MrDesc, RmaKind, RmaOp};
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::cm_port::CmPort;
use ferrofabric_hw_tests::cold_link::{ColdLink, address};
use ferrofabric_hw_tests::dgram::PATIENCE;
use ferrofabric_hw_tests::party::PeerProcess;
use ferrofabric_hw_tests::sockets::{
    TYPES, at_port, domain, domain_at, endpoint, hints, insert_services, name, offer, own, resolved,
};
use ferrofabric_protocol::wire::VERSION;
use ferrofabric_runtime::eq::{EventQueue, Reading};
use ferrofabric_runtime::fabric::{Av, Domain, MrAttr};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use ferrofabric_verbs_sys::rdma_cm_event_type;
use serial_test::file_serial;
use zerocopy::FromBytes;

const FORMATS: [AddrFormat; 5] = [
    AddrFormat::SOCKADDR,
    AddrFormat::SOCKADDR_IP,
    AddrFormat::SOCKADDR_IN,
    AddrFormat::SOCKADDR_IN6,
    AddrFormat::SOCKADDR_IB,
];

fn bytes_of(at: SocketAddr) -> Vec<u8> {
    Address::from(at).to_bytes(AddrFormat::SOCKADDR).unwrap()
}

/// Inserts addresses in one call.
fn insert(av: &Arc<dyn Av>, names: &[Vec<u8>]) -> Vec<Result<FiAddr, Errno>> {
    let mut inserted = Vec::new();
    let mut names = names.iter().map(Vec::as_slice);
    let count = av.insert_all(&mut names, &mut |i, one| {
        assert_eq!(i, inserted.len());
        println!("{one:?}");
        inserted.push(one.map_err(|error| error.errno()));
    });
    let good = inserted.iter().filter(|one| one.is_ok()).count();
    assert_eq!(count.unwrap(), good);
    inserted
}

/// Sends a message, which arrives with its sender.
fn exchange(a: &mut OwningEndpoint, b: &mut OwningEndpoint, to: FiAddr, from: FiAddr, text: &[u8]) {
    if from.is_some() {
        // The source of a message that came before is not known.
        assert_eq!(resolved(b.av(), from), Ok(a.name()));
    }
    let room = Buffer::new(200).unwrap();
    b.recv(room, FiAddr::UNSPEC, 1).unwrap();
    let mut buffer = Buffer::new(text.len()).unwrap();
    buffer.copy_from_slice(text);
    a.send(buffer, text.len(), to, None, 2).unwrap();
    let until = Instant::now() + PATIENCE;
    let (mut sent, mut got) = (false, None);
    while !sent || got.is_none() {
        assert!(Instant::now() < until, "sent {sent}, received {got:?}");
        if let Some(done) = a.poll().unwrap() {
            done.outcome.unwrap();
            sent = true;
        }
        got = got.or(b.poll().unwrap());
    }
    let got = got.unwrap();
    let completion = got.outcome.unwrap();
    assert_eq!((completion.len, completion.src), (text.len(), from));
    assert_eq!(&got.buffer[..text.len()], text);
}

/// Covers: AV-10, AV-18, AV-19, AV-23, GI-5
#[test]
#[file_serial(verbs)]
fn endpoints_are_found_by_the_addresses_that_they_give() {
    if Rig::open().is_none() {
        return;
    }
    for ep_type in TYPES {
        for format in FORMATS {
            println!("{ep_type:?} by {format}");
            let domain = domain(ep_type, format, &[]);
            assert_eq!(domain.info().addr_format, format);
            let (mut a, mut b) = (endpoint(&*domain), endpoint(&*domain));
            let (name_a, name_b) = (name(&*domain, &a), name(&*domain, &b));
            assert_ne!(name_a, name_b);
            assert_ne!(b.address().socket().unwrap().port(), 0);
            let to_b = a.av().insert(&name_b).unwrap();
            let to_a = b.av().insert(&name_a).unwrap();
            exchange(&mut a, &mut b, to_b, to_a, b"from a to b");
            exchange(&mut b, &mut a, to_a, to_b, b"and back");
            // An address that is in the vector is found by the address that it was inserted by.
            assert_eq!(a.av().insert(&name_b).unwrap(), to_b);
            assert_eq!(a.av().address(to_b).unwrap(), b.address());
            assert_eq!(a.av().lookup(to_b).unwrap(), b.name());
            let text = b.address().to_string();
            assert_eq!(text.parse::<Address>().unwrap(), b.address());
            a.av().remove(to_b).unwrap();
            let again = a.av().insert(&name_b).unwrap();
            exchange(&mut a, &mut b, again, to_a, b"after a removal");
        }
    }
}

/// `a` reads memory of `b` by another address than its first one.
fn read(
    domain: &dyn Domain,
    a: &mut OwningEndpoint,
    b: &mut OwningEndpoint,
    (first, to): (FiAddr, FiAddr),
) {
    let memory = [7; 8];
    let request = MrAttr::new(
        IoBuf::new(memory.as_ptr(), memory.len()),
        Flags::REMOTE_READ,
    );
    // SAFETY: the memory lives longer than the region.
    let region = unsafe { domain.register_region(&request) }.unwrap();
    let op = RmaOp {
        kind: RmaKind::Read,
        dest: to,
        key: region.key(),
        place: 0,
        data: 0,
        desc: MrDesc::NONE,
        context: 0,
        flags: Flags::empty(),
    };
    let room = Buffer::new(memory.len()).unwrap();
    a.post_rma(room, memory.len(), 3, op).unwrap();
    // A fenced operation waits for it, by each of both addresses.
    for dest in [first, to] {
        let flags = Flags::FENCE;
        let fenced = RmaOp { dest, flags, ..op };
        let room = Buffer::new(memory.len()).unwrap();
        let (error, _) = a.post_rma(room, memory.len(), 4, fenced).unwrap_err();
        assert_eq!(error, OpError::Again);
    }
    let until = Instant::now() + PATIENCE;
    let done = loop {
        assert!(Instant::now() < until, "the read does not complete");
        assert!(b.poll().unwrap().is_none());
        if let Some(done) = a.poll().unwrap() {
            break done;
        }
    };
    done.outcome.unwrap();
    assert_eq!(&done.buffer[..], memory);
}

/// A sender that is not in the address vector need not have a socket, and its messages do not name
/// one: its native address names it, which the address vector takes, and gives back.
///
/// Covers: AV-10, AV-18, AV-25
#[test]
#[file_serial(verbs)]
fn unknown_senders_are_named_by_their_native_addresses() {
    if Rig::open().is_none() {
        return;
    }
    for shm in ["off", "on"] {
        let domain = domain(EpType::Rdm, AddrFormat::SOCKADDR_IN, &[("FERRO_SHM", shm)]);
        unknown_sources::are_named_and_become_peers(&*domain, &*domain);
    }
    for format in FORMATS {
        let fabric = Fabric::new("datagrams by socket", move |_| {
            domain(EpType::Dgram, format, &[])
        });
        dgram::senders::unknown_sources_are_named(&fabric);

        let domain = domain(EpType::Rdm, format, &[]);
        let (mut a, mut b) = (endpoint(&*domain), endpoint(&*domain));
        let native = endpoint_to_bytes(format, &b.name());
        let to_b = a.av().insert(&native).unwrap();
        assert_eq!(a.av().address(to_b).unwrap(), Address::Native(b.name()));
        // By the address at which it listens it is the same endpoint, once that is resolved.
        let alias = a.av().insert(&name(&*domain, &b)).unwrap();
        assert_eq!(resolved(a.av(), alias), Ok(b.name()));
        let to_a = b.av().insert(&name(&*domain, &a)).unwrap();
        exchange(&mut a, &mut b, to_b, to_a, b"by a native address");
        exchange(&mut a, &mut b, alias, to_a, b"by its alias");
        read(&*domain, &mut a, &mut b, (to_b, alias));
        exchange(&mut b, &mut a, to_a, to_b, b"from the first");
        for short in [2, 16, native.len() - 1] {
            let refused = a.av().insert(&native[..short]).unwrap_err();
            assert_eq!(refused.errno(), Errno::EINVAL, "{refused}");
        }
    }
}

/// The address by which an endpoint was inserted may be gone; inserted again it is the same entry
/// all the same.
///
/// Covers: AV-23, GI-6
#[test]
#[file_serial(verbs)]
fn a_port_is_one_endpoints_until_that_closes() {
    if Rig::open().is_none() {
        return;
    }
    for ep_type in TYPES {
        let short = [("FERRO_RESOLVE_TIMEOUT", "500ms")];
        let domain = domain(ep_type, AddrFormat::SOCKADDR_IN, &short);
        let asker = endpoint(&*domain);
        let listener = at_port(&*domain, 5055).unwrap();
        let at = SocketAddr::new(own(&*domain).ip(), 5055);
        assert_eq!(listener.address(), Address::from(at));
        let taken = at_port(&*domain, 5055).map(|_| ()).unwrap_err();
        assert_eq!(taken.errno(), Errno::EADDRINUSE);
        assert!(taken.to_string().contains(&at.to_string()), "{taken}");
        let found = asker.av().insert(&bytes_of(at)).unwrap();
        assert_eq!(resolved(asker.av(), found), Ok(listener.name()));
        drop(listener);
        assert_eq!(asker.av().insert(&bytes_of(at)).unwrap(), found);
        asker.av().remove(found).unwrap();
        let found = asker.av().insert(&bytes_of(at)).unwrap();
        assert_eq!(resolved(asker.av(), found), Err(Errno::ECONNREFUSED));
        // A failure is not final.
        let next = at_port(&*domain, 5055).unwrap();
        assert_eq!(resolved(asker.av(), found), Ok(next.name()));
    }
}

/// Covers: GI-5, GI-6, AV-15
#[test]
#[file_serial(verbs)]
fn a_service_of_this_side_is_where_the_endpoint_listens() {
    if Rig::open().is_none() {
        return;
    }
    for ep_type in TYPES {
        let listening = domain_at(ep_type, "127.0.0.1", "5060");
        assert_eq!(listening.info().addr_format, AddrFormat::SOCKADDR_IN);
        let mut listener = endpoint(&*listening);
        assert_eq!(listener.address(), Address::from(own(&*listening)));
        assert_eq!(own(&*listening).port(), 5060);
        // Found by name in domains of any format.
        for format in [AddrFormat::SOCKADDR_IN, AddrFormat::UNSPEC, AddrFormat::STR] {
            let domain = domain(ep_type, format, &[]);
            let mut asker = endpoint(&*domain);
            for node in ["localhost", "127.0.0.1", &own(&*listening).ip().to_string()] {
                let services = Services::one(node, Some("5060")).unwrap();
                let found = insert_services(asker.av(), &services)[0].unwrap();
                assert_eq!(resolved(asker.av(), found), Ok(listener.name()));
            }
            let to = asker.av().insert(&match format {
                AddrFormat::UNSPEC => listener.name().to_bytes().to_vec(),
                AddrFormat::STR => listener.address().to_string().into_bytes(),
                _ => bytes_of(own(&*listening)),
            });
            listener
                .recv(Buffer::new(8).unwrap(), FiAddr::UNSPEC, 1)
                .unwrap();
            asker.inject(b"hello", to.unwrap(), None).unwrap();
            let until = Instant::now() + PATIENCE;
            let got = loop {
                let _ = asker.poll().unwrap();
                if let Some(done) = listener.poll().unwrap() {
                    break done;
                }
                assert!(Instant::now() < until, "nothing came by {format}");
            };
            assert_eq!(got.outcome.unwrap().len, 5);
        }
    }
}

/// Covers: AV-15, AV-16
#[test]
#[file_serial(verbs)]
fn services_and_ranges_of_ports_are_found() {
    if Rig::open().is_none() {
        return;
    }
    let short = [("FERRO_RESOLVE_TIMEOUT", "2s")];
    let domain = domain(EpType::Rdm, AddrFormat::SOCKADDR_IN, &short);
    let ip = own(&*domain).ip();
    let there: Vec<_> = [5000, 5001, 5003]
        .map(|port| at_port(&*domain, port).unwrap())
        .into();
    let av = domain
        .open_av(&AvAttr {
            av_type: Some(AvType::Table),
            ..AvAttr::default()
        })
        .unwrap();
    let range = Services::range(&ip.to_string(), 1, "5000", 4).unwrap();
    assert_eq!(
        insert_services(&av, &range),
        [0, 1, 2, 3].map(|number| Ok(FiAddr(number)))
    );
    for (addr, port, endpoint) in [(0, 5000, 0), (1, 5001, 1), (3, 5003, 2)] {
        let at = SocketAddr::new(ip, port);
        assert_eq!(av.address(FiAddr(addr)).unwrap(), at.into());
        assert_eq!(resolved(&av, FiAddr(addr)), Ok(there[endpoint].name()));
    }
    let nobody = SocketAddr::new(ip, 5002);
    assert_eq!(av.address(FiAddr(2)).unwrap(), nobody.into());
    assert_eq!(resolved(&av, FiAddr(2)), Err(Errno::ECONNREFUSED));
    // The next node does not exist; the interface of Soft-RoCE here resolves no hardware addresses,
    // so the node is only silent.
    let both = Services::range(&ip.to_string(), 2, "5001", 1).unwrap();
    assert_eq!(insert_services(&av, &both), [Ok(FiAddr(1)), Ok(FiAddr(4))]);
    assert_eq!(resolved(&av, FiAddr(4)), Err(Errno::ETIMEDOUT));
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    if name.trim() == "ferro0" {
        let named = Services::range("ferro0", 1, "5000", 2).unwrap();
        assert_eq!(insert_services(&av, &named), [Ok(FiAddr(0)), Ok(FiAddr(1))]);
    }
}

/// Set where [`alone`] runs a test.
const ALONE: &str = "FERRO_TEST_ALONE";

fn is_alone() -> bool {
    let is_alone = std::env::var_os(ALONE).is_some();
    if !is_alone {
        println!("a part of another test, which runs it");
    }
    is_alone
}

/// Runs a test that is ignored otherwise in a process of its own, behind commands of the shell.
fn alone(test: &str, commands: &str) {
    let run = format!("{commands}\nexec \"$0\" --exact sockets::{test} --ignored --nocapture");
    let output = Command::new("unshare")
        .args(["-m", "sh", "-ec", &run])
        .arg(std::env::current_exe().unwrap())
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let failed = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success(), "{failed}");
    assert!(said.contains("1 passed"));
}

/// Runs a test while there is a device on a link whose far end answers for its addresses and knows
/// nothing of RoCE. librdmacm keeps a device open as long as its process lives, and this one's
/// would never go away.
fn on_a_cold_link(test: &str) {
    if Rig::open().is_none() {
        return;
    }
    let link = ColdLink::up();
    link.answer();
    alone(test, "");
}

/// Each way in which nobody is found fails alone, in time, and by events where those are wanted.
///
/// Covers: AV-7, AV-10, AV-12
#[test]
#[file_serial(verbs)]
fn a_missing_listener_fails_alone_and_in_time() {
    on_a_cold_link("missing_listeners");
}

#[test]
#[ignore = "a_missing_listener_fails_alone_and_in_time runs it"]
fn missing_listeners() {
    if !is_alone() {
        return;
    }
    let domain = on_cold_link(EpType::Rdm, "4s");
    let listener = endpoint(&*domain);
    let own = own(&*domain);
    let good = bytes_of(listener.address().socket().unwrap());
    let at = |ip: &str, port| bytes_of(SocketAddr::new(ip.parse().unwrap(), port));
    let mut bad = good.clone();
    bad[0] = 77;
    let names = [
        // It is there, and knows nothing of RoCE.
        at(&address(1).to_string(), 5000),
        good.clone(),
        // Nobody listens.
        bytes_of(SocketAddr::new(own.ip(), 1)),
        // Nobody has the address; there is no way to the other.
        at("10.9.250.250", 5000),
        at("203.0.113.1", 5000),
        bad,
        bytes_of(SocketAddr::new(own.ip(), 0)),
        good.clone(),
    ];
    // Only what can never be reached is refused.
    let expected = [
        Ok(FiAddr(0)),
        Ok(FiAddr(1)),
        Ok(FiAddr(2)),
        Ok(FiAddr(3)),
        Err(Errno::EHOSTUNREACH),
        Err(Errno::EINVAL),
        Err(Errno::EINVAL),
        Ok(FiAddr(1)),
    ];
    let attr = AvAttr {
        av_type: Some(AvType::Table),
        ..AvAttr::default()
    };
    let av = domain.open_av(&attr).unwrap();
    let begun = Instant::now();
    assert_eq!(insert(&av, &names), expected);
    let returned = begun.elapsed();
    assert_eq!(resolved(&av, FiAddr(1)), Ok(listener.name()));
    for (addr, errno) in [
        (0, Errno::ETIMEDOUT),
        (2, Errno::ECONNREFUSED),
        (3, Errno::EHOSTUNREACH),
    ] {
        assert_eq!(resolved(&av, FiAddr(addr)), Err(errno));
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(12), "{took:?}");
    assert!(returned < took / 2, "the caller waits: {returned:?}");
    let later = domain
        .open_av(&AvAttr {
            events: true,
            ..attr
        })
        .unwrap();
    let events = Arc::new(EventQueue::new());
    later.bind_events(events.clone(), 0xfeed).unwrap();
    let (tx, rx) = mpsc::channel();
    let begun = Instant::now();
    later
        .insert_later(
            InsertRequest::Listed(names.to_vec()),
            Vec::new(),
            42,
            Box::new(move |_, one| tx.send(one).unwrap()),
        )
        .unwrap();
    assert!(begun.elapsed() < took / 2, "the caller waits");
    let mut out = [0; 24];
    let mut failed = Vec::new();
    let done = loop {
        match events.read(&mut out, Reading::Take) {
            Ok(_) => break Done::read_from_bytes(&out).unwrap(),
            Err(OpError::Failed(Errno::EAVAIL)) => {
                let error = events.read_error(Reading::Take).unwrap();
                assert_eq!(error.context, 42);
                failed.push((error.data, error.errno));
            }
            Err(_) => assert!(begun.elapsed() < PATIENCE, "no end"),
        }
        std::thread::yield_now();
    };
    assert_eq!((done.context, done.data), (42, 5));
    assert_eq!(rx.try_iter().collect::<Vec<_>>(), expected);
    let wrong = (0..)
        .zip(expected)
        .filter_map(|(i, one)| Some((i, one.err()?)));
    assert_eq!(failed, wrong.collect::<Vec<_>>());
}

fn on_cold_link(ep_type: EpType, resolve_timeout: &str) -> Arc<dyn Domain> {
    let settings = [
        ("FERRO_DEVICE", "ferro_cold"),
        ("FERRO_RESOLVE_TIMEOUT", resolve_timeout),
    ];
    domain(ep_type, AddrFormat::SOCKADDR_IN, &settings)
}

/// All addresses of a call are resolved side by side.
///
/// Covers: AV-16
#[test]
#[file_serial(verbs)]
fn sixty_four_are_resolved_side_by_side() {
    on_a_cold_link("sixty_four");
}

#[test]
#[ignore = "sixty_four_are_resolved_side_by_side runs it"]
fn sixty_four() {
    if !is_alone() {
        return;
    }
    let domain = on_cold_link(EpType::Dgram, "2s");
    let endpoints: Vec<_> = (0..64).map(|_| at_port(&*domain, 0).unwrap()).collect();
    let names: Vec<_> = endpoints
        .iter()
        .map(|one| bytes_of(one.address().socket().unwrap()))
        .collect();
    let av = domain.open_av(&AvAttr::default()).unwrap();
    let begun = Instant::now();
    let found = insert(&av, &names);
    let different: HashSet<_> = found.iter().map(|one| one.unwrap()).collect();
    assert_eq!(different.len(), 64);
    for (found, endpoint) in found.iter().zip(&endpoints) {
        assert_eq!(resolved(&av, found.unwrap()), Ok(endpoint.name()));
    }
    println!("64 endpoints found in {:?}", begun.elapsed());
    // Nobody answers: one after the other that would take 128 s.
    let range = Services::range(&address(1).to_string(), 64, "5000", 1).unwrap();
    let begun = Instant::now();
    let silent = insert_services(&av, &range);
    for silent in silent {
        let silent = resolved(&av, silent.unwrap());
        assert_eq!(silent, Err(Errno::ETIMEDOUT));
    }
    let took = begun.elapsed();
    println!("64 silent hosts given up in {took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// Covers: AV-17
#[test]
#[file_serial(verbs)]
fn a_listener_that_dies_is_found_no_more_and_its_successor_is() {
    if Rig::open().is_none() {
        return;
    }
    let short = [("FERRO_RESOLVE_TIMEOUT", "1s")];
    let domain = domain(EpType::Rdm, AddrFormat::SOCKADDR_IN, &short);
    let asker = endpoint(&*domain);
    let at = SocketAddr::new(own(&*domain).ip(), 5099);
    let program = env!("CARGO_BIN_EXE_test-peer");
    let start = || PeerProcess::start(program, "listen", &[], &[5099], &asker.name());
    let first = start();
    let found = asker.av().insert(&bytes_of(at)).unwrap();
    assert_eq!(resolved(asker.av(), found), Ok(first.name));
    first.signal(libc::SIGKILL);
    first.bury();
    asker.av().remove(found).unwrap();
    let found = asker.av().insert(&bytes_of(at)).unwrap();
    assert_eq!(resolved(asker.av(), found), Err(Errno::ECONNREFUSED));
    let second = start();
    let until = Instant::now() + PATIENCE;
    while resolved(asker.av(), found) != Ok(second.name) {
        assert!(Instant::now() < until, "its successor is not found");
    }
    second.signal(libc::SIGKILL);
    second.bury();
}

/// Sends until a message has gone to an endpoint; returns the errors of those before. A message to
/// the former endpoint may complete without an error before its end is known.
fn send_until_one_goes_to(
    from: &mut OwningEndpoint,
    to: FiAddr,
    endpoint: &NativeAddr,
) -> Vec<Errno> {
    let until = Instant::now() + PATIENCE;
    let mut errors = Vec::new();
    loop {
        let is_it = from.av().lookup(to).is_ok_and(|name| name == *endpoint);
        let failed = match from.send(Buffer::new(8).unwrap(), 8, to, None, 1) {
            Ok(()) => loop {
                assert!(Instant::now() < until, "a send does not end");
                if let Some(done) = from.poll().unwrap() {
                    break done.outcome.err().map(|error| error.errno);
                }
            },
            Err((OpError::Again, _)) => continue,
            Err((OpError::Failed(errno), _)) => Some(errno),
        };
        match failed {
            None if is_it => return errors,
            failed => errors.extend(failed),
        }
        assert!(Instant::now() < until, "nothing goes there: {errors:?}");
    }
}

/// A process is killed, and another one listens at its port. The operations of a client that kept
/// the address end, and later ones reach the next process.
///
/// Covers: AV-15, AV-23
#[test]
#[file_serial(verbs)]
fn sends_reach_the_successor_of_a_killed_process() {
    if Rig::open().is_none() {
        return;
    }
    for lane in ["rc", "ud"] {
        let short = [
            ("FERRO_LANE", lane),
            ("FERRO_RECONNECT_TIMEOUT", "1s"),
            ("FERRO_PEER_TIMEOUT", "2s"),
        ];
        let domain = domain(EpType::Rdm, AddrFormat::SOCKADDR_IN, &short);
        let mut client = endpoint(&*domain);
        let at = SocketAddr::new(own(&*domain).ip(), 5098);
        let program = env!("CARGO_BIN_EXE_test-peer");
        let mut server = PeerProcess::start(program, "listen", &[], &[5098], &client.name());
        let to = client.av().insert(&bytes_of(at)).unwrap();
        assert_eq!(resolved(client.av(), to), Ok(server.name));
        assert_eq!(send_until_one_goes_to(&mut client, to, &server.name), []);
        for _ in 0..2 {
            server.signal(libc::SIGKILL);
            server.bury();
            server = PeerProcess::start(program, "listen", &[], &[5098], &client.name());
            let errors = send_until_one_goes_to(&mut client, to, &server.name);
            println!("{lane}: {errors:?} until the next one was reached");
            assert_eq!(client.av().address(to).unwrap().socket(), Some(at));
        }
        server.signal(libc::SIGKILL);
        server.bury();
    }
}

/// Private data of a client that is no endpoint is refused, and the listener goes on; so are
/// answers of a listener that is no endpoint.
#[test]
#[file_serial(verbs)]
fn hostile_private_data_is_refused() {
    if Rig::open().is_none() {
        return;
    }
    let short = [("FERRO_RESOLVE_TIMEOUT", "500ms")];
    let domain = domain(EpType::Rdm, AddrFormat::SOCKADDR_IN, &short);
    let (asker, listener) = (endpoint(&*domain), endpoint(&*domain));
    let at = listener.address().socket().unwrap();
    let question = [b'F', b'F', b'n', 1, VERSION, 1, 0, 0];
    let mut all: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"who?".to_vec(),
        vec![0xff; 180],
        question[..7].to_vec(),
    ];
    for (byte, value) in [
        (0, 0),
        (3, 2),
        (4, 0),
        (4, VERSION - 1),
        (4, VERSION + 1),
        (5, 0),
        (5, 2),
        (5, 255),
        (7, 1),
    ] {
        let mut other = question;
        other[byte] = value;
        all.push(other.to_vec());
    }
    // A question of seven bytes is filled up with a zero, which makes it a valid one.
    for (i, private_data) in all.iter().enumerate() {
        let client = CmPort::new();
        client.resolve(at);
        client.ask(private_data);
        client.next(|event| match i {
            3 => assert_eq!(event.event, rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED),
            _ => {
                let refused = rdma_cm_event_type::RDMA_CM_EVENT_UNREACHABLE;
                assert_eq!(event.event, refused, "{private_data:?}");
                assert!(event.status > 0, "{private_data:?}: {}", event.status);
            }
        });
    }
    let good = asker.av().insert(&bytes_of(at)).unwrap();
    assert_eq!(resolved(asker.av(), good), Ok(listener.name()));

    let mut answer = question.to_vec();
    answer.extend(listener.name().to_bytes());
    let mut answers = vec![
        (Vec::new(), false),
        (vec![0xff; 136], false),
        (answer.clone(), true),
    ];
    for (byte, value) in [(0, 0), (4, 9), (5, 2), (8, 0), (10, 7), (11, 0xff)] {
        let mut other = answer.clone();
        other[byte] = value;
        answers.push((other, false));
    }
    for (private_data, good) in answers {
        let server = CmPort::new();
        let at = server.listen(own(&*domain));
        let av = asker.av().clone();
        let asked = std::thread::spawn(move || {
            let addr = av.insert(&bytes_of(at)).unwrap();
            let found = resolved(&av, addr);
            av.remove(addr).unwrap();
            found
        });
        server.request(|_| ()).answer(17, &private_data);
        match asked.join().unwrap() {
            Ok(_) => assert!(good, "{private_data:?}"),
            Err(errno) => {
                assert!(!good, "{errno:?}");
                // The last attempt counts, which nobody has answered.
                let expected = [Errno::ECONNREFUSED, Errno::ETIMEDOUT];
                assert!(expected.contains(&errno), "{errno:?} {private_data:?}");
            }
        }
    }
    // Datagrams and reliable messages do not find each other.
    let dgram =
        ferrofabric_hw_tests::sockets::domain(EpType::Dgram, AddrFormat::SOCKADDR_IN, &short);
    let asker = endpoint(&*dgram);
    let other = asker.av().insert(&bytes_of(at)).unwrap();
    assert_eq!(resolved(asker.av(), other), Err(Errno::ECONNREFUSED));
}

/// A process that shares an address vector by name has the socket addresses that another process
/// inserted.
///
/// Covers: AV-4, AV-18
#[test]
#[file_serial(verbs)]
fn a_named_address_vector_has_them_too() {
    if Rig::open().is_none() {
        return;
    }
    let domain = domain(EpType::Rdm, AddrFormat::SOCKADDR, &[]);
    let attr = AvAttr {
        name: Some(format!("sockets-{}", std::process::id())),
        ..AvAttr::default()
    };
    let one = OwningEndpoint::open(&*domain, &attr).unwrap();
    let mut other = OwningEndpoint::open(&*domain, &attr).unwrap();
    let mut target = endpoint(&*domain);
    let found = one.av().insert(&name(&*domain, &target)).unwrap();
    assert_eq!(other.av().address(found).unwrap(), target.address());
    assert_eq!(other.av().insert(&name(&*domain, &target)).unwrap(), found);
    let back = target.av().insert(&name(&*domain, &other)).unwrap();
    exchange(&mut other, &mut target, found, back, b"by another's entry");
}

/// Covers: GI-2, GI-5
#[test]
#[file_serial(verbs)]
fn a_missing_connection_manager_is_named() {
    if Rig::open().is_none() {
        return;
    }
    // Hints without an address format get a native address.
    let native = hints(EpType::Rdm, AddrFormat::UNSPEC);
    assert_eq!(offer(&native, &[]).unwrap().addr_format, AddrFormat::UNSPEC);
    let wanted = hints(EpType::Rdm, AddrFormat::SOCKADDR_IN);
    assert!(offer(&wanted, &[]).is_ok());
    alone(
        "without_a_connection_manager",
        "mount --bind /dev/null /dev/infiniband/rdma_cm",
    );
}

#[test]
#[ignore = "a_missing_connection_manager_is_named hides the connection manager from it"]
fn without_a_connection_manager() {
    if !is_alone() {
        return;
    }
    let missing = offer(&hints(EpType::Rdm, AddrFormat::SOCKADDR_IN), &[]).unwrap_err();
    assert_eq!(missing.errno(), Errno::ENODATA);
    let said = missing.to_string();
    assert!(said.contains("/dev/infiniband/rdma_cm"), "{said}");
    assert!(said.contains("FI_SOCKADDR_IN"), "{said}");
    // All else is there.
    let native = hints(EpType::Rdm, AddrFormat::UNSPEC);
    assert_eq!(offer(&native, &[]).unwrap().addr_format, AddrFormat::UNSPEC);
}
