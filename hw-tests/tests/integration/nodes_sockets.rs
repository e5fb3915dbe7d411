//! Endpoints by host name and port on two machines: run with `scripts/vm --nodes 2`, both run this
//! same program.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

use ferrofabric_av::Services;
use ferrofabric_contracts::addr::{AddrFormat, Address};
use ferrofabric_contracts::info::EpType;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::dgram::PATIENCE;
use ferrofabric_hw_tests::party::meet;
use ferrofabric_hw_tests::sockets::{domain, domain_at, endpoint, resolved};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use serial_test::file_serial;

/// Inserts the endpoint of a node.
fn find(endpoint: &OwningEndpoint, node: &str, port: u16) -> FiAddr {
    let services = Services::one(node, Some(&port.to_string())).unwrap();
    let mut found = None;
    let mut report = |_, one| found = Some(one);
    let asked = Instant::now();
    let av = endpoint.av();
    av.insert_services(&services, &mut report).unwrap();
    let found = found.unwrap().unwrap();
    resolved(av, found).unwrap();
    println!("{node}:{port} found in {:?}", asked.elapsed());
    found
}

/// Each machine finds the other by name, and they talk both ways.
///
/// Covers: AV-15, AV-18, AV-25, GI-6
#[test]
#[file_serial(verbs)]
fn machines_find_each_other_by_name() {
    if Rig::open().is_none() {
        return;
    }
    let (node, mut stream) = meet();
    let node = usize::try_from(node).unwrap();
    let (own, peer) = (
        ["10.2.0.1", "10.2.0.2"][node],
        ["10.2.0.2", "10.2.0.1"][node],
    );
    let name = ["ferro1", "ferro0"][node];
    let mut together = || {
        stream.write_all(b"!").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    };
    for (ep_type, port) in [(EpType::Rdm, 5200), (EpType::Dgram, 5201)] {
        let here = domain_at(ep_type, own, &port.to_string());
        let mut party = endpoint(&*here);
        party
            .recv(Buffer::new(8).unwrap(), FiAddr::UNSPEC, 1)
            .unwrap();
        together();
        let other = find(&party, name, port);
        let socket = SocketAddr::new(peer.parse().unwrap(), port);
        assert_eq!(party.av().address(other).unwrap(), Address::from(socket));
        let theirs = resolved(party.av(), other).unwrap();
        assert_ne!(theirs.node, party.name().node);
        // In a domain of native addresses, too.
        let native = endpoint(&*domain(ep_type, AddrFormat::UNSPEC, &[]));
        let same = find(&native, peer, port);
        assert_eq!(resolved(native.av(), same), Ok(theirs));
        together();
        party
            .send(Buffer::new(8).unwrap(), 8, other, None, 2)
            .unwrap();
        let until = Instant::now() + PATIENCE;
        let (mut sent, mut received) = (false, false);
        while !sent || !received {
            assert!(Instant::now() < until, "sent {sent}, received {received}");
            let Some(done) = party.poll().unwrap() else {
                continue;
            };
            let completion = done.outcome.unwrap();
            match done.token {
                1 => {
                    assert_eq!((completion.src, completion.len), (other, 8));
                    received = true;
                }
                _ => sent = true,
            }
        }
        together();
    }
}
