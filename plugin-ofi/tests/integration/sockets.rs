//! Endpoints by socket address, as an application of libfabric has them: a server with a service
//! name, and clients that know the server's host and port (fi_getinfo(3), fi_av(3)).

use crate::{child, client, support};
use std::ffi::{CStr, CString, c_char, c_int};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use client::{Info, Libfabric, Opened, Party, close};
use ferro_fi::abi::{
    FI_AV_COMPLETE, FI_ENABLE, FI_EVENT, FI_RECV, FI_SEND, FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOURCE,
    FI_SYMMETRIC, FI_SYNC_ERR, fi_addr_t, fi_av_attr, fi_av_type, fi_cq_err_entry,
    fi_cq_tagged_entry, fi_ep_type, fi_eq_entry, fi_eq_err_entry, fid, fid_av,
};
use ferrofabric_contracts::addr::{AddrFormat, Address};
use support::{has_device, skip};

const PATIENCE: Duration = Duration::from_secs(60);
const NONE: fi_addr_t = fi_addr_t::MAX;
const FI_EAVAIL: isize = 259;

fn alone(test: &str, body: impl FnOnce(&Libfabric)) {
    child::alone(test, |fi| match has_device() {
        true => body(fi),
        false => skip("this machine has no RDMA device"),
    });
}

/// Hints for endpoints of a type with addresses in a format.
fn hints(fi: &Libfabric, ep_type: fi_ep_type, format: u32) -> Info<'_> {
    let hints = fi.hints();
    // SAFETY: the hints are ours.
    unsafe {
        (*hints.info).addr_format = format;
        (*(*hints.info).ep_attr).type_ = ep_type;
    }
    hints
}

fn ask<'a>(
    fi: &'a Libfabric,
    node: Option<&CStr>,
    service: Option<&CStr>,
    flags: u64,
    hints: &Info<'_>,
) -> Info<'a> {
    fi.ask(fi.version, node, service, flags, Some(hints))
        .unwrap()
}

/// The source or the destination of an offer.
fn address(addr: *const std::ffi::c_void, len: usize) -> SocketAddr {
    // SAFETY: an offer's address is as long as it says.
    let bytes = unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), len) };
    socket(bytes)
}

fn socket(bytes: &[u8]) -> SocketAddr {
    let addr = Address::from_bytes(AddrFormat::SOCKADDR, bytes).unwrap();
    addr.socket().unwrap()
}

fn bytes_of(ip: Ipv4Addr, port: u16) -> Vec<u8> {
    let at = SocketAddr::new(ip.into(), port);
    Address::from(at).to_bytes(AddrFormat::SOCKADDR_IN).unwrap()
}

/// One end says who it is by its first message, as programs with a server and clients do.
fn meet(a: &Party, b: &Party, to: fi_addr_t) {
    let mut into = [0u8; 5];
    assert_eq!(b.receive(into.as_mut_ptr(), 5, null_mut(), 3), 0);
    let until = Instant::now() + PATIENCE;
    let mut entry = fi_cq_tagged_entry::default();
    while a.inject(b"hello", to, 3) != 0 {
        assert!(Instant::now() < until, "the message is not sent");
        a.poll(&mut entry);
    }
    while b.poll(&mut entry) != 1 {
        assert!(Instant::now() < until, "the message does not arrive");
        a.poll(&mut entry);
    }
    assert_eq!((entry.len, &into), (5, b"hello"));
}

/// Covers: AV-18, AV-19, AV-23, GI-5, GI-6
#[test]
fn a_server_is_found_by_host_and_port() {
    alone("a_server_is_found_by_host_and_port", |fi| {
        let rdm = fi_ep_type::FI_EP_RDM;
        let here = ask(
            fi,
            None,
            Some(c"5071"),
            FI_SOURCE,
            &hints(fi, rdm, FI_SOCKADDR_IN),
        );
        // SAFETY: there is one.
        let info = unsafe { &*here.info };
        assert_eq!(info.addr_format, FI_SOCKADDR_IN);
        let at = address(info.src_addr, info.src_addrlen);
        assert_eq!(at.port(), 5071);
        let opened = Opened::new(&here);
        let server = opened.party(&here);
        assert_eq!(
            server.name(),
            Address::from(at).to_bytes(AddrFormat::SOCKADDR_IN).unwrap()
        );

        // A client names the server alone: the format is that of its address.
        let node = CString::new(at.ip().to_string()).unwrap();
        let there = ask(fi, Some(&node), Some(c"5071"), 0, &hints(fi, rdm, 0));
        // SAFETY: there is one.
        let info = unsafe { &*there.info };
        assert_eq!(info.addr_format, FI_SOCKADDR_IN);
        assert_eq!(address(info.dest_addr, info.dest_addrlen), at);
        let clients = Opened::new(&there);
        let client = clients.party(&there);
        // SAFETY: as long as it says.
        let dest = unsafe { std::slice::from_raw_parts(info.dest_addr.cast(), info.dest_addrlen) };
        let to_server = client.insert(dest);
        assert_eq!(client.insert(&server.name()), to_server);
        let to_client = server.insert(&client.name());
        meet(&client, &server, to_server);
        meet(&server, &client, to_client);
        for room in [0, 1, 15, 16, 40] {
            let (mut out, mut len) = (vec![0xaa; 64], room);
            // SAFETY: as fi_av(3) has it.
            let found = unsafe {
                let out = out.as_mut_ptr().cast();
                call!(client.av, ops.lookup(to_server, out, &raw mut len))
            };
            assert_eq!((found, len), (0, 16));
            let fit = room.min(16);
            assert_eq!(out[..fit], server.name()[..fit]);
            assert!(out[fit..].iter().all(|byte| *byte == 0xaa));
        }
        let (mut text, mut len) = ([0 as c_char; 100], 100);
        let name = server.name();
        // SAFETY: as fi_av(3) has it.
        let said = unsafe {
            let (name, text) = (name.as_ptr().cast(), text.as_mut_ptr());
            CStr::from_ptr(call!(client.av, ops.straddr(name, text, &raw mut len)))
        };
        assert_eq!(said.to_str().unwrap(), format!("fi_sockaddr_in://{at}"));

        // The port is the server's.
        let second = open_unbound(&opened, &here);
        // SAFETY: as fi_endpoint(3) has it.
        let enabled = unsafe {
            let fid: *mut fid = second.0.cast();
            let ops = *(*fid).ops;
            let bind = ops.bind.unwrap();
            assert_eq!(bind(fid, server.av.cast(), 0), 0);
            assert_eq!(bind(fid, server.cq.cast(), FI_SEND | FI_RECV), 0);
            ops.control.unwrap()(fid, FI_ENABLE, null_mut())
        };
        assert_eq!(enabled, -libc::EADDRINUSE);
        assert_eq!(close(second.0.cast()), 0);
        client.close();
        clients.close();
        server.close();
        opened.close();
        // All kinds of objects, with addresses of this kind.
        client::round(&ask(fi, None, None, 0, &hints(fi, rdm, FI_SOCKADDR)), 7);
    });
}

struct Unbound(*mut ferro_fi::abi::fid_ep);

fn open_unbound(opened: &Opened, info: &Info<'_>) -> Unbound {
    let (domain, mut ep) = (opened.domain, null_mut());
    // SAFETY: as fi_endpoint(3) has it.
    let opened = unsafe { call!(domain, ops.endpoint(info.info, &raw mut ep, null_mut())) };
    assert_eq!(opened, 0);
    Unbound(ep)
}

/// Servers at ports 5080 and 5082, where the first of them is, and its host.
fn two_servers(
    fi: &Libfabric,
    ep_type: fi_ep_type,
) -> ([(Opened, Party); 2], SocketAddrV4, CString) {
    let servers = [c"5080", c"5082"].map(|service| {
        let hints = hints(fi, ep_type, FI_SOCKADDR_IN);
        let here = ask(fi, None, Some(service), FI_SOURCE, &hints);
        let opened = Opened::new(&here);
        let party = opened.uncounted_party(&here);
        (opened, party)
    });
    let SocketAddr::V4(at) = socket(&servers[0].1.name()) else {
        panic!("the query is for an IPv4 address")
    };
    let node = CString::new(at.ip().to_string()).unwrap();
    (servers, at, node)
}

/// Covers: AV-7, AV-10, AV-13, AV-15, AV-16
#[test]
fn names_ranges_and_arrays_find_who_listens_and_nobody_else() {
    let test = "names_ranges_and_arrays_find_who_listens_and_nobody_else";
    alone(test, |fi| {
        for ep_type in [fi_ep_type::FI_EP_RDM, fi_ep_type::FI_EP_DGRAM] {
            let (servers, at, node) = two_servers(fi, ep_type);
            let any = ask(fi, None, None, 0, &hints(fi, ep_type, FI_SOCKADDR));
            let opened = Opened::new(&any);
            let client = opened.uncounted_party(&any);
            let mut one = 0;
            // SAFETY: as fi_av(3) has it; there is room for the results.
            let found = unsafe {
                let (node, service) = (node.as_ptr(), c"5080".as_ptr());
                call!(
                    client.av,
                    ops.insertsvc(node, service, &raw mut one, 0, null_mut())
                )
            };
            assert_eq!((found, one), (1, 0));
            let (mut addrs, mut errors) = ([7; 3], [7 as c_int; 3]);
            // SAFETY: as above.
            let found = unsafe {
                let (node, service) = (node.as_ptr(), c"5080".as_ptr());
                let (addrs, errors) = (addrs.as_mut_ptr(), errors.as_mut_ptr().cast());
                call!(
                    client.av,
                    ops.insertsym(node, 1, service, 3, addrs, FI_SYNC_ERR, errors)
                )
            };
            assert_eq!((found, addrs, errors), (3, [0, 1, 2], [0; 3]));
            // Datagrams have no tags, which these messages have.
            if ep_type == fi_ep_type::FI_EP_RDM {
                fails(&client, 1);
            }

            // Each address of an array is as long as its family says.
            let v6 = Address::from(SocketAddr::new("2001:db8::1".parse().unwrap(), 5080));
            let mut unknown = bytes_of(*at.ip(), 5080);
            unknown[0] = 99;
            let array = [
                bytes_of(*at.ip(), 5082),
                v6.to_bytes(AddrFormat::SOCKADDR).unwrap(),
                bytes_of(*at.ip(), 5081),
                unknown,
                bytes_of(*at.ip(), 5080),
            ];
            let (mut addrs, mut errors) = ([7; 5], [7 as c_int; 5]);
            let array = array.concat();
            // SAFETY: as above.
            let found = unsafe {
                let (array, addrs) = (array.as_ptr().cast(), addrs.as_mut_ptr());
                let errors = errors.as_mut_ptr().cast();
                call!(client.av, ops.insert(array, 5, addrs, FI_SYNC_ERR, errors))
            };
            assert_eq!((found, addrs), (3, [2, NONE, 1, NONE, 0]));
            assert_eq!(errors, [0, libc::EHOSTUNREACH, 0, libc::EINVAL, 0]);
            asynchronous(&opened, &node, 0);
            client.close();
            opened.close();
            for (opened, party) in servers {
                party.close();
                opened.close();
            }
        }
    });
}

/// A range in a symmetric address vector (`FI_SYMMETRIC`) resolves an entry at its first send:
/// sends wait for the resolution, and fail where nobody is.
///
/// Covers: AV-9, AV-15, AV-16
#[test]
fn a_range_of_a_symmetric_address_vector_is_found_as_it_is_used() {
    let test = "a_range_of_a_symmetric_address_vector_is_found_as_it_is_used";
    alone(test, |fi| {
        let rdm = fi_ep_type::FI_EP_RDM;
        let (servers, at, node) = two_servers(fi, rdm);
        let any = ask(fi, None, None, 0, &hints(fi, rdm, FI_SOCKADDR_IN));
        let opened = Opened::new(&any);
        let client = opened.party_with(&any, FI_SYMMETRIC);
        let (mut addrs, mut errors) = ([7; 3], [7 as c_int; 3]);
        // SAFETY: as fi_av(3) has it; there is room for the results.
        let found = unsafe {
            let (node, service) = (node.as_ptr(), c"5080".as_ptr());
            let (addrs, errors) = (addrs.as_mut_ptr(), errors.as_mut_ptr().cast());
            call!(
                client.av,
                ops.insertsym(node, 1, service, 3, addrs, FI_SYNC_ERR, errors)
            )
        };
        assert_eq!((found, addrs, errors), (3, [0, 1, 2], [0; 3]));
        for (addr, port) in addrs.into_iter().zip(5080..) {
            let (mut out, mut len) = ([0u8; 16], 16);
            // SAFETY: as fi_av(3) has it.
            let said = unsafe {
                let out = out.as_mut_ptr().cast();
                call!(client.av, ops.lookup(addr, out, &raw mut len))
            };
            assert_eq!((said, len), (0, 16));
            assert_eq!(out[..], bytes_of(*at.ip(), port));
        }
        for (addr, (_, server)) in [0, 2].into_iter().zip(&servers) {
            meet(&client, server, addr);
            let back = server.insert(&client.name());
            meet(server, &client, back);
        }
        fails(&client, 1);
        asynchronous(&opened, &node, FI_SYMMETRIC);
        client.close();
        opened.close();
        for (opened, party) in servers {
            party.close();
            opened.close();
        }
    });
}

/// A message to an address at which nobody listens is taken, and fails with an error completion in
/// time.
fn fails(client: &Party, to: fi_addr_t) {
    assert_eq!(client.inject(b"hello", to, 3), 0);
    let until = Instant::now() + PATIENCE;
    let mut entry = fi_cq_tagged_entry::default();
    loop {
        match client.poll(&mut entry) as c_int {
            said if said == -libc::EAGAIN => assert!(Instant::now() < until, "no completion"),
            said => {
                assert_eq!(said, -FI_EAVAIL as c_int);
                break;
            }
        }
    }
    let mut error = fi_cq_err_entry::default();
    // SAFETY: there is room for one.
    let read = unsafe { call!(client.cq, ops.readerr(&raw mut error, 0)) };
    assert_eq!(read, 1);
    assert_eq!(error.err, libc::ECONNREFUSED);
}

/// A range whose insertion ends with events.
fn asynchronous(opened: &Opened, node: &CStr, flags: u64) {
    let mut attr = fi_av_attr {
        type_: fi_av_type::FI_AV_TABLE,
        flags: FI_EVENT | flags,
        ..fi_av_attr::default()
    };
    let (domain, mut av) = (opened.domain, null_mut::<fid_av>());
    let mut addrs = [7; 3];
    // SAFETY: as fi_av(3) and fi_eq(3) have it; the results stay until the event.
    unsafe {
        assert_eq!(
            call!(domain, ops.av_open(&raw mut attr, &raw mut av, null_mut())),
            0
        );
        let bind = (*(*av).fid.ops).bind.unwrap();
        assert_eq!(bind(av.cast(), opened.eq.cast(), 0), 0);
        let context = 42 as *mut std::ffi::c_void;
        let (service, at) = (c"5080".as_ptr(), addrs.as_mut_ptr());
        let begun = call!(
            av,
            ops.insertsym(node.as_ptr(), 1, service, 3, at, 0, context)
        );
        assert_eq!(begun, 0);
        let (mut entry, mut failed) = (fi_eq_entry::default(), Vec::new());
        let until = Instant::now() + PATIENCE;
        loop {
            let mut event = 0;
            let out = (&raw mut entry).cast();
            match call!(
                opened.eq,
                ops.read(&raw mut event, out, size_of::<fi_eq_entry>(), 0)
            ) {
                read if read > 0 => {
                    assert_eq!(event, FI_AV_COMPLETE);
                    break;
                }
                error if error == -FI_EAVAIL => {
                    let mut error = fi_eq_err_entry::default();
                    assert!(call!(opened.eq, ops.readerr(&raw mut error, 0)) > 0);
                    failed.push((error.data, error.err));
                }
                _ => assert!(Instant::now() < until, "no event"),
            }
        }
        assert_eq!((entry.data, addrs), (3, [0, 1, 2]));
        assert_eq!(entry.context as usize, 42);
        assert_eq!(failed, [], "nobody need listen");
    }
    assert_eq!(close(av.cast()), 0);
}
