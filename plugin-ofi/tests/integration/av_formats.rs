//! Addresses in each format that domains have: printed, read back, in arrays of strings, and by
//! node and service as fi_getinfo(3) finds them.

use crate::{child, client, support, two, vector};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use client::{Info, Libfabric, Opened};
use ferro_fi::abi::{
    FI_ADDR_IB_UD, FI_ADDR_STR, FI_EINVAL, FI_EVENT, FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IB,
    FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR_IP, FI_SYNC_ERR, fi_addr_t, fi_av_attr,
    fi_av_type, fi_ep_type,
};
use ferrofabric_contracts::addr::{NativeAddr, VerbsAddr};
use support::counters::EndpointCounters;
use support::folder::Folder;
use two::{Side, asking_everywhere, over_verbs, shape};
use vector::{LONGEST_NAME, NONE, Next, Vector, next, queue};

const RDM: fi_ep_type = fi_ep_type::FI_EP_RDM;
const DGRAM: fi_ep_type = fi_ep_type::FI_EP_DGRAM;

/// An offer of endpoints of a type, with addresses in a format.
fn ask<'a>(fi: &'a Libfabric, domain: &str, ep_type: fi_ep_type, format: u32) -> Info<'a> {
    found(fi, domain, ep_type, format, None, None).unwrap()
}

fn found<'a>(
    fi: &'a Libfabric,
    domain: &str,
    ep_type: fi_ep_type,
    format: u32,
    node: Option<&CStr>,
    service: Option<&CStr>,
) -> Result<Info<'a>, c_int> {
    let hints = fi.hints();
    // SAFETY: the hints are ours; the string is libc's.
    unsafe {
        (*hints.info).addr_format = format;
        (*(*hints.info).ep_attr).type_ = ep_type;
        if !domain.is_empty() {
            let name = libc::strndup(domain.as_ptr().cast(), domain.len());
            (*(*hints.info).domain_attr).name = name;
        }
    }
    fi.ask(fi.version, node, service, 0, Some(&hints))
}

/// An endpoint's address as `fi_av_lookup` returns it.
fn looked_up(av: Vector, addr: fi_addr_t) -> Vec<u8> {
    let (bytes, len) = av.lookup(addr, LONGEST_NAME).unwrap();
    bytes[..len].to_vec()
}

/// Each format is printed whether the address is in the vector or not, cut to the room that there
/// is; and the printed text gives the same address.
///
/// Covers: AV-15, AV-18, AV-19
#[test]
fn each_format_is_printed_and_read_back() {
    asking_everywhere("each_format_is_printed_and_read_back", |fi, domain| {
        let mut formats = vec![(RDM, FI_FORMAT_UNSPEC, ""), (RDM, FI_ADDR_STR, "ferro://")];
        if domain.is_empty() {
            formats.extend([
                (RDM, FI_SOCKADDR, "fi_sockaddr_in://"),
                (RDM, FI_SOCKADDR_IP, "fi_sockaddr_in://"),
                (RDM, FI_SOCKADDR_IN, "fi_sockaddr_in://"),
                (RDM, FI_SOCKADDR_IN6, "fi_sockaddr_in6://"),
                (RDM, FI_SOCKADDR_IB, "fi_sockaddr_ib://"),
                (DGRAM, FI_FORMAT_UNSPEC, ""),
                (DGRAM, FI_ADDR_STR, ""),
                (DGRAM, FI_ADDR_IB_UD, "fi_addr_ib_ud://"),
                (DGRAM, FI_SOCKADDR_IN, "fi_sockaddr_in://"),
            ]);
        }
        for (ep_type, format, scheme) in formats {
            let info = ask(fi, domain, ep_type, format);
            let opened = Opened::new(&info);
            let [a, b] = [(); 2].map(|()| Side::open(&opened, &info, shape()));
            let (av, name) = (Vector(a.av), two::name_of(b.ep));
            // An address in text is as long as its string.
            let name = match format {
                FI_ADDR_STR => CStr::from_bytes_until_nul(&name)
                    .unwrap()
                    .to_bytes_with_nul(),
                _ => &name[..],
            };
            let (whole, needed) = av.text(name, 512);
            println!("{format}: {whole}");
            assert!(
                whole.starts_with(scheme) && whole.contains("://"),
                "{whole}"
            );
            assert_eq!(needed, whole.len() + 1);
            cut(av, name, &whole);
            let text = CString::new(whole.clone()).unwrap();
            let mut addr = 7;
            assert_eq!(av.insertsvc(&text, None, &raw mut addr), 1, "{whole}");
            assert_eq!(looked_up(av, addr), name, "{whole}");
            assert_eq!(
                two::insert_bytes(a.av, as_array(format, &name.as_ptr())),
                addr
            );
            assert_eq!(av.text(name, 512), (whole, needed), "now it is in");
            let mut other = 7;
            let beside = av.insertsvc(text.as_c_str(), Some(c"5000"), &raw mut other);
            assert_eq!((beside, other), (-FI_EINVAL, 7), "a service beside it");
            // Bytes that are no address are printed, too: the call never fails.
            let none = [0u8; 128];
            let (said, needed) = av.text(&none, 512);
            assert_eq!(needed, said.len() + 1);
            a.close();
            b.close();
            opened.close();
        }
    });
}

/// The array that `fi_av_insert` takes: of text, one of strings.
fn as_array(format: u32, name: &*const u8) -> *const c_void {
    match format {
        FI_ADDR_STR => std::ptr::from_ref(name).cast(),
        _ => name.cast(),
    }
}

/// A text in less room than it needs.
fn cut(av: Vector, name: &[u8], whole: &str) {
    for room in 0..=whole.len() + 1 {
        let (text, needed) = av.text(name, room);
        let fit = &whole[..room.saturating_sub(1).min(whole.len())];
        assert_eq!((text.as_str(), needed), (fit, whole.len() + 1), "{room}");
    }
    let mut len = 0;
    // SAFETY: as fi_av(3) has it: there is no room, which `len` says.
    let none = unsafe {
        call!(
            av.0,
            ops.straddr(name.as_ptr().cast(), null_mut(), &raw mut len)
        )
    };
    assert_eq!((none, len), (null(), whole.len() + 1));
}

/// With `FI_ADDR_STR` an insertion takes an array of strings. A string that is no address, and a
/// NULL, fail alone; the others are in.
///
/// Covers: AV-7, AV-10, AV-12, AV-13
#[test]
fn strings_of_an_array_fail_alone() {
    asking_everywhere("strings_of_an_array_fail_alone", |fi, domain| {
        let info = ask(fi, domain, RDM, FI_ADDR_STR);
        let opened = Opened::new(&info);
        let [a, b] = [(); 2].map(|()| Side::open(&opened, &info, shape()));
        let [own, its] = [a.ep, b.ep].map(|ep| {
            let name = two::name_of(ep);
            CStr::from_bytes_until_nul(&name).unwrap().to_owned()
        });
        let strings: [*const c_char; 7] = [
            c"".as_ptr(),
            own.as_ptr(),
            null(),
            c"ferro://".as_ptr(),
            c"no address at all".as_ptr(),
            its.as_ptr(),
            own.as_ptr(),
        ];
        let fails = [true, false, true, true, true, false, false];
        for type_ in [fi_av_type::FI_AV_MAP, fi_av_type::FI_AV_TABLE] {
            for flags in [0, FI_EVENT] {
                let mut attr = fi_av_attr {
                    type_,
                    flags,
                    ..fi_av_attr::default()
                };
                let av = Vector::open(&opened, &mut attr).unwrap();
                let eq = queue(&opened);
                assert_eq!(av.bind(eq.cast(), 0), 0);
                let (mut addrs, mut errors) = ([7; 7], [-1; 7]);
                let (told, context): (_, *mut c_void) = match flags {
                    FI_EVENT => (0, null_mut()),
                    _ => (FI_SYNC_ERR, errors.as_mut_ptr().cast()),
                };
                // SAFETY: as fi_av(3) has it.
                let said = unsafe {
                    let (at, to) = (strings.as_ptr().cast(), addrs.as_mut_ptr());
                    call!(av.0, ops.insert(at, 7, to, told, context))
                };
                if flags == FI_EVENT {
                    assert_eq!(said, 0);
                    for number in (0..7).filter(|number| fails[*number]) {
                        let Next::Error(error) = next(eq) else {
                            panic!("the end comes before an error");
                        };
                        assert_eq!((error.data, error.err), (number as u64, FI_EINVAL));
                    }
                    assert!(matches!(next(eq), Next::Done(end) if end.data == 3));
                } else {
                    assert_eq!(said, 3);
                    assert_eq!(errors, fails.map(|fails| if fails { FI_EINVAL } else { 0 }));
                }
                assert_eq!(addrs.map(|addr| addr == NONE), fails);
                assert_eq!(addrs[6], addrs[1], "the same address twice");
                for (addr, name) in [(addrs[1], &own), (addrs[5], &its)] {
                    assert_eq!(looked_up(av, addr), name.to_bytes_with_nul());
                }
                assert_eq!(client::close(av.0.cast()), 0);
                assert_eq!(client::close(eq.cast()), 0);
            }
        }
        a.close();
        b.close();
        opened.close();
    });
}

/// A node and a service are found as fi_getinfo(3) finds them: the same address, or a failure where
/// that fails.
///
/// Covers: AV-15
#[test]
fn nodes_and_services_are_those_of_getinfo() {
    if !child::is_here() && !support::has_device() {
        return support::skip("this machine has no RDMA device");
    }
    over_verbs("nodes_and_services_are_those_of_getinfo", |fi| {
        for (ep_type, format) in [
            (RDM, FI_SOCKADDR_IN),
            (DGRAM, FI_SOCKADDR_IN),
            (RDM, FI_SOCKADDR),
        ] {
            let info = ask(fi, "", ep_type, format);
            let opened = Opened::new(&info);
            let side = Side::open(&opened, &info, shape());
            let av = Vector(side.av);
            let own = two::name_of(side.ep);
            let ip = std::net::Ipv4Addr::new(own[4], own[5], own[6], own[7]);
            let number = CString::new(ip.to_string()).unwrap();
            let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
            let host = CString::new(host.trim()).unwrap();
            let text = CString::new(format!("fi_sockaddr_in://{ip}:5099")).unwrap();
            let mut good = 0;
            for (node, service) in [
                (number.as_c_str(), Some(c"5099")),
                (host.as_c_str(), Some(c"5099")),
                (number.as_c_str(), Some(c"http")),
                (number.as_c_str(), Some(c"no-such-service")),
                (number.as_c_str(), Some(c"65536")),
                (number.as_c_str(), Some(c"-1")),
                (c"no-such-host.invalid", Some(c"5099")),
                (text.as_c_str(), None),
                (text.as_c_str(), Some(c"5099")),
            ] {
                let offer = found(fi, "", ep_type, format, Some(node), service);
                let mut addr = 7;
                let said = av.insertsvc(node, service, &raw mut addr);
                println!("{node:?} {service:?}: {said}, {:?}", offer.as_ref().err());
                match offer {
                    Ok(offer) => {
                        good += 1;
                        assert_eq!(said, 1, "{node:?} {service:?}");
                        // SAFETY: an offer's address is as long as it says.
                        let dest = unsafe {
                            let info = &*offer.info;
                            std::slice::from_raw_parts(
                                info.dest_addr.cast::<u8>(),
                                info.dest_addrlen,
                            )
                        };
                        assert_eq!(looked_up(av, addr), dest, "{node:?} {service:?}");
                    }
                    Err(_) => {
                        assert!(said <= 0, "{node:?} {service:?}: {said}");
                        assert!(addr == NONE || addr == 7);
                    }
                }
            }
            assert!(good >= 2, "the number and its text at least");
            side.close();
            opened.close();
        }
    });
}

/// Entries behind one path share its address handle: hundreds of peers of a node, each of which is
/// sent to, have one between them, which goes with the last of them.
///
/// Covers: AV-17, AV-24
#[test]
fn entries_of_a_node_share_a_handle() {
    const ENTRIES: u32 = 300;
    let test = "entries_of_a_node_share_a_handle";
    if !child::is_here() {
        let folder = Folder::new();
        if !support::has_device() {
            return support::skip("this machine has no RDMA device");
        }
        for removed in ["none", "all but one", "all"] {
            let inner = folder.path().join(removed);
            std::fs::create_dir_all(&inner).unwrap();
            let inner = inner.to_str().unwrap();
            child::run(
                test,
                &[("FERRO_STATS", inner), ("FERRO_TEST_REMOVED", removed)],
            );
            let handles = EndpointCounters::read(inner.as_ref()).sum("dgram_handles_now");
            assert_eq!(handles, u64::from(removed != "all"), "{removed} removed");
        }
        return;
    }
    child::alone(test, |fi| {
        let info = ask(fi, "", DGRAM, FI_FORMAT_UNSPEC);
        let opened = Opened::new(&info);
        let side = Side::open(&opened, &info, shape());
        let name = two::name_of(side.ep);
        let mut addrs: Vec<fi_addr_t> = (0..ENTRIES)
            .map(|n| {
                // As far as the device knows an endpoint is its queue pair.
                let peer = NativeAddr::from_bytes(&name).unwrap();
                let verbs = peer.verbs.map(|verbs| VerbsAddr {
                    qpn: 0x10_0000 + n,
                    ..verbs
                });
                let peer = NativeAddr { verbs, ..peer };
                two::insert_bytes(side.av, peer.to_bytes().as_ptr().cast())
            })
            .collect();
        for addr in &addrs {
            let bytes = [1u8; 8];
            // SAFETY: as fi_msg(3) has it.
            let send = || unsafe {
                let inject = (*(*side.ep).msg).inject.unwrap();
                inject(side.ep, bytes.as_ptr().cast(), 8, *addr)
            };
            let until = std::time::Instant::now() + two::PATIENCE;
            while send() != 0 {
                assert!(std::time::Instant::now() < until, "no room for a datagram");
                two::count(side.sent);
            }
        }
        let until = std::time::Instant::now() + two::PATIENCE;
        while two::count(side.sent) < u64::from(ENTRIES) {
            assert!(std::time::Instant::now() < until, "datagrams are not sent");
        }
        let removed = match std::env::var("FERRO_TEST_REMOVED").as_deref() {
            Ok("all") => &mut addrs[..],
            Ok("all but one") => &mut addrs[1..],
            _ => &mut [],
        };
        assert_eq!(Vector(side.av).remove(removed, 0), 0);
        two::count(side.sent);
        side.close();
        opened.close();
    });
}
