//! Endpoints of ranges of socket addresses, which are found when they are used.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ferrofabric_av::format::endpoint_to_bytes;
use ferrofabric_av::{AvAttr, Services};
use ferrofabric_conformance::ends::QueuedEndpoint;
use ferrofabric_contracts::addr::AddrFormat;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::EpType;
use ferrofabric_contracts::types::{AvType, FiAddr, MrDesc, MsgKind, RecvOp};
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::dgram::PATIENCE;
use ferrofabric_hw_tests::sockets::{
    TYPES, domain, domain_at, endpoint, insert_services, name, resolved,
};
use ferrofabric_runtime::fabric::{Av, Domain};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use serial_test::file_serial;

/// Sends to an address that may be unresolved. The message waits until it is resolved, or fails
/// with an error completion.
fn send(from: &mut OwningEndpoint, to: FiAddr, text: &[u8]) -> Result<(), Errno> {
    let mut buffer = Buffer::new(text.len()).unwrap();
    buffer.copy_from_slice(text);
    from.send(buffer, text.len(), to, None, 3)
        .map_err(|(error, _)| error)
        .unwrap();
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(done) = from.poll().unwrap() {
            return done.outcome.map(drop).map_err(|error| error.errno);
        }
        assert!(Instant::now() < until, "no completion");
        std::thread::yield_now();
    }
}

/// The next message that comes to an endpoint while both are driven.
fn next_message(at: &mut OwningEndpoint, other: &mut OwningEndpoint) -> (Vec<u8>, FiAddr) {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(done) = at.poll().unwrap() {
            let came = done.outcome.unwrap();
            return (done.buffer[..came.len].to_vec(), came.src);
        }
        assert!(other.poll().unwrap().is_none());
        assert!(Instant::now() < until, "nothing came");
    }
}

/// Addresses at which nobody is are to fail soon.
const SHORT: [(&str, &str); 1] = [("FERRO_RESOLVE_TIMEOUT", "1s")];

/// An endpoint whose address vector has endpoints of ranges found when they are used.
fn for_ranges(domain: &dyn Domain, av_type: AvType) -> OwningEndpoint {
    let attr = AvAttr {
        av_type: Some(av_type),
        symmetric: true,
        ..AvAttr::default()
    };
    OwningEndpoint::open(domain, &attr).unwrap()
}

/// The first address of a range of two nodes.
fn told_of(a: &OwningEndpoint, first: SocketAddr) -> FiAddr {
    let (ip, port) = (first.ip().to_string(), first.port().to_string());
    let range = Services::range(&ip, 2, &port, 1).unwrap();
    insert_services(a.av(), &range)[0].unwrap()
}

/// An end with such an address vector, an endpoint of a range of two nodes that is in it, and its
/// address there.
fn one_for_ranges_and_one_of_a_range(
    domain: &dyn Domain,
) -> (QueuedEndpoint, OwningEndpoint, FiAddr) {
    let attr = AvAttr {
        av_type: Some(AvType::Table),
        symmetric: true,
        ..AvAttr::default()
    };
    let a = QueuedEndpoint::open_with(domain, &attr, |_| {});
    let b = endpoint(domain);
    let listens = b.address().socket().unwrap();
    let (ip, port) = (listens.ip().to_string(), listens.port().to_string());
    let range = Services::range(&ip, 2, &port, 1).unwrap();
    let from_b = insert_services(&a.av, &range)[0].unwrap();
    (a, b, from_b)
}

/// An end in the address vector of an endpoint.
fn to_end(from: &OwningEndpoint, end: &QueuedEndpoint) -> FiAddr {
    let name = end.endpoint.address().to_bytes(AddrFormat::SOCKADDR_IN);
    from.av().insert(&name.unwrap()).unwrap()
}

/// A receive of an untagged message.
fn receive_from(src: FiAddr) -> RecvOp {
    RecvOp {
        kind: MsgKind::Msg,
        src,
        tag: 0,
        ignore: 0,
        desc: MrDesc::NONE,
        context: 7,
        flags: Flags::COMPLETION,
    }
}

/// Of ten thousand addresses, only those that are used are resolved.
///
/// Covers: AV-9, AV-16, AV-17, AV-18, AV-23
#[test]
#[file_serial(verbs)]
fn a_range_is_found_when_it_is_used() {
    if Rig::open().is_none() {
        return;
    }
    for (ep_type, av_type) in TYPES.into_iter().zip([AvType::Map, AvType::Table]) {
        let domain = domain(ep_type, AddrFormat::SOCKADDR_IN, &SHORT);
        let mut a = for_ranges(&*domain, av_type);
        let mut b = endpoint(&*domain);
        let to_a = b.av().insert(&name(&*domain, &a)).unwrap();
        assert_eq!(resolved(b.av(), to_a), Ok(a.name()));
        let listens = b.address().socket().unwrap();
        let base = listens.port() / 1000 * 1000;
        let range = Services::range(&listens.ip().to_string(), 10, &base.to_string(), 1000);
        let range = range.unwrap();
        let tell = |av: &Arc<dyn Av>| {
            let mut told = Vec::with_capacity(range.len());
            let begun = Instant::now();
            let count = av.insert_services(&range, &mut |_, one| told.push(one.unwrap()));
            println!("{} addresses in {:?}", told.len(), begun.elapsed());
            assert_eq!(count.unwrap(), 10_000);
            told
        };
        let told = tell(a.av());
        assert_eq!(tell(a.av()), told, "what is in is in");
        let last = a.av().address(told[9999]).unwrap().socket().unwrap();
        assert_eq!(last.port(), base + 999);

        let to_b = told[usize::from(listens.port() - base)];
        assert_eq!(a.av().address(to_b).unwrap(), b.address());
        b.recv(Buffer::new(8).unwrap(), FiAddr::UNSPEC, 1).unwrap();
        send(&mut a, to_b, b"found").unwrap();
        assert_eq!(next_message(&mut b, &mut a), (b"found".to_vec(), to_a));
        assert_eq!(a.av().lookup(to_b).unwrap(), b.name());
        assert_eq!(a.av().address(to_b).unwrap(), b.address());
        // It is known when it sends.
        a.recv(Buffer::new(8).unwrap(), FiAddr::UNSPEC, 1).unwrap();
        b.inject(b"back", to_a, None).unwrap();
        assert_eq!(next_message(&mut a, &mut b), (b"back".to_vec(), to_b));

        let nobody = told
            .iter()
            .position(|addr| *addr == to_b)
            .unwrap()
            .abs_diff(1);
        for _ in 0..2 {
            let refused = send(&mut a, told[nobody], b"?");
            assert_eq!(refused, Err(Errno::ECONNREFUSED));
        }
        // Each is removed as it is: found, in vain, told.
        let gone = OpError::Failed(Errno::EADDRNOTAVAIL);
        for addr in [to_b, told[nobody], told[5000]] {
            a.av().remove(addr).unwrap();
            // While a thread has just to do with the range, it is turned away.
            let refusals = std::iter::repeat_with(|| a.inject(b"?", addr, None).unwrap_err());
            let told = refusals.take(1000).find(|error| *error != OpError::Again);
            assert_eq!(told, Some(gone));
            assert!(a.av().address(addr).is_err());
            assert_eq!(a.av().remove(addr).unwrap_err().errno(), Errno::EINVAL);
        }
        // The range is inserted again where there is room, and its addresses are found again.
        let again = tell(a.av());
        let to_b = again[usize::from(listens.port() - base)];
        b.recv(Buffer::new(8).unwrap(), FiAddr::UNSPEC, 1).unwrap();
        send(&mut a, to_b, b"again").unwrap();
        assert_eq!(next_message(&mut b, &mut a), (b"again".to_vec(), to_a));
    }
}

/// An endpoint that is in already is found for an address of a range, too: each of the two leads to
/// it, and goes alone.
///
/// Covers: AV-9, AV-17, AV-23
#[test]
#[file_serial(verbs)]
fn an_endpoint_that_is_in_is_found_for_a_range_too() {
    if Rig::open().is_none() {
        return;
    }
    for ep_type in TYPES {
        let domain = domain(ep_type, AddrFormat::SOCKADDR_IN, &[]);
        let mut a = for_ranges(&*domain, AvType::Table);
        let mut b = endpoint(&*domain);
        let to_a = b.av().insert(&name(&*domain, &a)).unwrap();
        let native = endpoint_to_bytes(AddrFormat::SOCKADDR_IN, &b.name());
        let first = a.av().insert(&native).unwrap();
        let second = told_of(&a, b.address().socket().unwrap());
        assert_ne!(first, second);
        assert_eq!(resolved(b.av(), to_a), Ok(a.name()));
        let mut send = |a: &mut OwningEndpoint, to, text: &[u8]| {
            b.recv(Buffer::new(8).unwrap(), FiAddr::UNSPEC, 1).unwrap();
            send(a, to, text).unwrap();
            assert_eq!(next_message(&mut b, a), (text.to_vec(), to_a));
        };
        send(&mut a, second, b"second");
        send(&mut a, first, b"first");
        assert_eq!(a.av().lookup(second), a.av().lookup(first));
        a.av().remove(first).unwrap();
        send(&mut a, second, b"alone");
        let by_native = a.av().insert(&native).unwrap();
        assert_eq!(by_native, second, "it is in by its own now");
        a.av().remove(second).unwrap();
        assert!(a.av().address(second).is_err());
    }
}

/// A receive from an address of a range has it found, and takes what came from it before that was
/// over, too.
///
/// Covers: AV-9, AV-25
#[test]
#[file_serial(verbs)]
fn a_receive_from_a_range_has_its_source_found() {
    if Rig::open().is_none() {
        return;
    }
    let domain = domain(EpType::Rdm, AddrFormat::SOCKADDR_IN, &[]);
    let mut a = for_ranges(&*domain, AvType::Table);
    let mut b = endpoint(&*domain);
    let to_a = b.av().insert(&name(&*domain, &a)).unwrap();
    let from_b = told_of(&a, b.address().socket().unwrap());
    b.inject(b"before", to_a, None).unwrap();
    a.recv(Buffer::new(8).unwrap(), from_b, 1).unwrap();
    assert_eq!(next_message(&mut a, &mut b), (b"before".to_vec(), from_b));
    b.inject(b"after", to_a, None).unwrap();
    a.recv(Buffer::new(8).unwrap(), from_b, 2).unwrap();
    assert_eq!(next_message(&mut a, &mut b), (b"after".to_vec(), from_b));
}

/// A receiver that looks for a message from an address of a range again and again finds it, though
/// the address was not used before.
///
/// Covers: AV-9, AV-25
#[test]
#[file_serial(verbs)]
fn a_peek_at_a_range_has_its_source_found() {
    if Rig::open().is_none() {
        return;
    }
    let domain = domain(EpType::Rdm, AddrFormat::SOCKADDR_IN, &[]);
    let (a, mut b, from_b) = one_for_ranges_and_one_of_a_range(&*domain);
    let to_a = to_end(&b, &a);
    b.inject(b"there", to_a, None).unwrap();
    let receive = receive_from(from_b);
    let peek = RecvOp {
        flags: receive.flags | Flags::PEEK,
        ..receive
    };
    let until = Instant::now() + PATIENCE;
    let found = loop {
        a.recv(&peek, &[]).unwrap();
        match a.next_alone() {
            Ok(found) => break found,
            Err(error) => assert_eq!(error.errno, Errno::ENOMSG),
        }
        assert!(b.poll().unwrap().is_none());
        assert!(Instant::now() < until, "the message is not found");
    };
    assert_eq!((found.len, found.src), (5, from_b));
    let room = a.memory(8, 0);
    a.recv(&receive, &[room]).unwrap();
    let came = a.next_alone().unwrap();
    assert_eq!((came.len, came.src), (5, from_b));
    assert_eq!(a.bytes(room.addr, 5), b"there");
}

/// A receive from an address of a range takes what comes from there also if nobody was there when
/// it was posted.
///
/// Covers: AV-9, AV-25
#[test]
#[file_serial(verbs)]
fn a_receive_from_a_range_waits_for_a_later_endpoint() {
    if Rig::open().is_none() {
        return;
    }
    let domain = domain(EpType::Rdm, AddrFormat::SOCKADDR_IN, &SHORT);
    let mut a = for_ranges(&*domain, AvType::Table);
    // Where nobody is any more.
    let place = endpoint(&*domain).address().socket().unwrap();
    let from_b = told_of(&a, place);
    a.recv(Buffer::new(8).unwrap(), from_b, 1).unwrap();
    assert_eq!(send(&mut a, from_b, b"?"), Err(Errno::ECONNREFUSED));
    let (ip, port) = (place.ip().to_string(), place.port().to_string());
    let mut b = endpoint(&*domain_at(EpType::Rdm, &ip, &port));
    assert_eq!(b.address().socket(), Some(place));
    let to_a = b.av().insert(&name(&*domain, &a)).unwrap();
    b.inject(b"later", to_a, None).unwrap();
    assert_eq!(next_message(&mut a, &mut b), (b"later".to_vec(), from_b));
}
