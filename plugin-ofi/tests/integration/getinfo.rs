//! `fi_getinfo` under stock libfabric: the hints of an application, and the offers that it gets.

use crate::{child, client, support};
use ferrofabric_conformance::this_program::name_beside_this_test;
use std::ffi::{CStr, CString, c_char};
use std::process::Command;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use child::alone;
use client::{Info, Opened, Party, owned_string};
use ferro_fi::abi::{
    FI_ADDR_STR, FI_ASYNC_IOV, FI_ATOMIC, FI_AV_USER_ID, FI_CLASS_PEP, FI_COLLECTIVE, FI_CONTEXT,
    FI_CONTEXT2, FI_DIRECTED_RECV, FI_FENCE, FI_FORMAT_UNSPEC, FI_HMEM, FI_LOCAL_COMM, FI_LOCAL_MR,
    FI_MSG, FI_MSG_PREFIX, FI_MULTI_RECV, FI_MULTICAST, FI_NAMED_RX_CTX, FI_NOTIFY_FLAGS_ONLY,
    FI_NUMERICHOST, FI_PEER, FI_PROV_ATTR_ONLY, FI_READ, FI_RECV, FI_REMOTE_COMM, FI_REMOTE_READ,
    FI_REMOTE_WRITE, FI_RESCAN, FI_RESTRICTED_COMP, FI_RMA, FI_RMA_EVENT, FI_RX_CQ_DATA, FI_SEND,
    FI_SHARED_AV, FI_SOCKADDR_IN, FI_SOURCE, FI_SOURCE_ERR, FI_TAGGED, FI_VERSION, FI_WRITE,
    fi_bus_type, fi_cq_tagged_entry, fi_ep_type, fi_info, fi_link_state, fid,
};
use ferrofabric_contracts::addr::{AddrFormat, Address, NativeAddr};
use ferrofabric_shm::ShmProvider;
use support::has_device;
use support::plugin::Plugin;

const ENODATA: i32 = -libc::ENODATA;
const ENOSYS: i32 = -libc::ENOSYS;

fn domain(info: &fi_info) -> String {
    // SAFETY: an offer has all attributes, and a domain's name.
    unsafe { CStr::from_ptr((*info.domain_attr).name) }
        .to_string_lossy()
        .into_owned()
}

fn fabric(info: &fi_info) -> String {
    // SAFETY: an offer has all attributes, and a fabric's name.
    unsafe { CStr::from_ptr((*info.fabric_attr).name) }
        .to_string_lossy()
        .into_owned()
}

fn address(info: &fi_info, dest: bool) -> Option<Address> {
    let (addr, len) = match dest {
        true => (info.dest_addr, info.dest_addrlen),
        false => (info.src_addr, info.src_addrlen),
    };
    if addr.is_null() {
        return None;
    }
    // SAFETY: the address has that many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), len) };
    Some(Address::from_bytes(AddrFormat(info.addr_format), bytes).unwrap())
}

fn own(info: &fi_info) -> NativeAddr {
    match address(info, false) {
        Some(Address::Native(own)) => own,
        other => panic!("no native address: {other:?}"),
    }
}

/// Covers: GI-1, GI-6, GI-9
#[test]
fn every_version_is_answered_and_a_newer_one_is_not() {
    alone("every_version_is_answered_and_a_newer_one_is_not", |fi| {
        let all = fi.ask(fi.version, None, None, 0, None).unwrap();
        let names: Vec<_> = all.all().map(domain).collect();
        assert_eq!(names.last().unwrap(), ShmProvider::DOMAIN);
        // Version 0 without hints is MPICH's first question.
        for version in [
            0,
            FI_VERSION(1, 0),
            FI_VERSION(1, 4),
            FI_VERSION(1, 20),
            fi.version,
        ] {
            let found = fi.ask(version, None, None, 0, None).unwrap();
            assert_eq!(found.all().map(domain).collect::<Vec<_>>(), names);
            for info in found.all() {
                // SAFETY: an offer has all attributes.
                let fabric = unsafe { &*info.fabric_attr };
                assert_eq!(fabric.api_version, version);
                assert_eq!(fabric.prov_version, FI_VERSION(0, 1));
                assert!(address(info, false).is_some() && info.dest_addr.is_null());
            }
        }
        let newer = fi.ask(FI_VERSION(3, 0), None, None, 0, None).err();
        assert_eq!(newer, Some(ENOSYS));
        let one = fi
            .ask(fi.version, None, None, FI_PROV_ATTR_ONLY, None)
            .unwrap();
        assert!(one.all().any(|info| {
            // SAFETY: as above; the name is a string.
            unsafe { CStr::from_ptr((*info.fabric_attr).prov_name) == c"ferro" }
        }));
    });
}

/// libfabric's own provider `shm` has a fabric and a domain of that name, and libfabric's `lnx`
/// treats each `shm` as that provider's: in libfabric 2.0 and 2.1 every fabric whose name starts
/// with these letters, in upper or lower case.
#[test]
fn no_name_is_that_of_libfabrics_shm() {
    alone("no_name_is_that_of_libfabrics_shm", |fi| {
        let found = fi.ask(fi.version, None, None, 0, None).unwrap();
        let names: Vec<_> = found
            .all()
            .map(|info| [fabric(info), domain(info)])
            .collect();
        for name in names.iter().flatten() {
            assert!(!name.to_lowercase().starts_with("shm"), "{names:?}");
        }
        assert_eq!(names.last().unwrap(), &["ferro-shm", "ferro-shm"]);
    });
}

/// Covers: GI-5, GI-6, GI-7
#[test]
fn a_node_as_text_becomes_the_destination_or_the_source() {
    alone(
        "a_node_as_text_becomes_the_destination_or_the_source",
        |fi| {
            let hints = fi.hints();
            // SAFETY: the hints are ours.
            unsafe { (*hints.info).caps = FI_MSG | FI_LOCAL_COMM };
            let ask = |node: &CStr, service: Option<&CStr>, flags| {
                fi.ask(fi.version, Some(node), service, flags, Some(&hints))
            };
            let first = fi.ask(fi.version, None, None, 0, Some(&hints)).unwrap();
            let own = own(first.all().next().unwrap());
            let peer = NativeAddr {
                incarnation: 77,
                ..own
            };
            let node = CString::new(peer.to_string()).unwrap();
            for flags in [0, FI_NUMERICHOST] {
                let found = ask(&node, None, flags).unwrap();
                let info = found.all().next().unwrap();
                assert_eq!(info.addr_format, FI_FORMAT_UNSPEC);
                assert_eq!(address(info, true), Some(peer.into()));
                assert_eq!(address(info, false), Some(own.into()));
            }
            let found = ask(&node, None, FI_SOURCE).unwrap();
            let info = found.all().next().unwrap();
            assert_eq!(
                (address(info, false), address(info, true)),
                (Some(own.into()), None)
            );
            // Text and a service, a source without a name, text that is none: nothing found, as
            // libfabric has it.
            assert_eq!(ask(&node, Some(c"5"), 0).err(), Some(ENODATA));
            assert_eq!(ask(c"ferro://", None, 0).err(), Some(ENODATA));
            let none = fi
                .ask(fi.version, None, None, FI_SOURCE, Some(&hints))
                .err();
            assert_eq!(none, Some(ENODATA));
            // Shared memory goes to no IP address.
            assert_eq!(ask(c"10.1.0.9", None, FI_NUMERICHOST).err(), Some(ENODATA));
        },
    );
}

/// Covers: GI-5, GI-6
#[test]
fn an_address_that_does_not_count_is_not_looked_at() {
    alone("an_address_that_does_not_count_is_not_looked_at", |fi| {
        let first = fi
            .ask(fi.version, None, None, 0, Some(&fi.hints()))
            .unwrap();
        let is_shm = |info: &&fi_info| domain(info) == ShmProvider::DOMAIN;
        let shm = first.all().find(is_shm).unwrap();
        let node = CString::new(own(shm).to_string()).unwrap();
        let wrong = |source: bool| {
            let hints = fi.hints();
            // SAFETY: the hints are ours; the bytes are libc's.
            unsafe {
                let bytes = libc::malloc(3);
                bytes.cast::<[u8; 3]>().write([1, 2, 3]);
                match source {
                    true => ((*hints.info).src_addr, (*hints.info).src_addrlen) = (bytes, 3),
                    false => ((*hints.info).dest_addr, (*hints.info).dest_addrlen) = (bytes, 3),
                }
            }
            hints
        };
        let ask = |node: Option<&CStr>, flags, hints: &Info<'_>| {
            fi.ask(fi.version, node, None, flags, Some(hints)).err()
        };
        assert_eq!(ask(None, 0, &wrong(true)), Some(ENODATA));
        assert_eq!(ask(None, 0, &wrong(false)), Some(ENODATA));
        assert_eq!(ask(Some(&node), 0, &wrong(false)), None);
        assert_eq!(ask(Some(&node), 0, &wrong(true)), Some(ENODATA));
        assert_eq!(ask(Some(&node), FI_SOURCE, &wrong(true)), None);
        assert_eq!(ask(Some(&node), FI_SOURCE, &wrong(false)), Some(ENODATA));
        // A length without an address says nothing.
        let hints = fi.hints();
        // SAFETY: as above.
        unsafe { (*hints.info).src_addrlen = 7 };
        assert_eq!(ask(None, 0, &hints), None);
    });
}

/// Covers: GI-2, GI-5, GI-8, GI-15
#[test]
fn what_can_not_be_had_is_no_data() {
    alone("what_can_not_be_had_is_no_data", |fi| {
        let ask = |change: &dyn Fn(&mut fi_info), flags| {
            let hints = fi.hints();
            // SAFETY: the hints are ours.
            change(unsafe { &mut *hints.info });
            fi.ask(fi.version, None, None, flags, Some(&hints))
                .map(|found| found.all().map(domain).collect::<Vec<_>>())
        };
        assert_eq!(ask(&|hints| hints.caps = FI_MSG | FI_HMEM, 0), Err(ENODATA));
        assert_eq!(ask(&|hints| hints.addr_format = 5, 0), Err(ENODATA));
        // No flag of fi_getinfo(3), and one of libfabric's own.
        assert_eq!(ask(&|_| (), 1 << 20), Err(ENODATA));
        assert!(ask(&|_| (), 1 << 60).is_ok());
        let local = ask(&|hints| hints.caps = FI_MSG | FI_LOCAL_COMM, 0);
        assert_eq!(local, Ok(vec![ShmProvider::DOMAIN.to_owned()]));
        let remote = ask(&|hints| hints.caps = FI_MSG | FI_REMOTE_COMM, 0);
        match has_device() {
            false => assert_eq!(remote, Err(ENODATA)),
            true => assert!(!remote.unwrap().contains(&ShmProvider::DOMAIN.to_owned())),
        }
        if !has_device() {
            let at_ip = ask(&|hints| hints.addr_format = FI_SOCKADDR_IN, 0);
            assert_eq!(at_ip, Err(ENODATA));
        }
    });
}

/// The capabilities that endpoints of any domain here have.
fn capabilities() -> u64 {
    let reach = match has_device() {
        true => FI_LOCAL_COMM | FI_REMOTE_COMM,
        false => FI_LOCAL_COMM,
    };
    let messages = FI_MSG | FI_TAGGED | FI_SEND | FI_RECV | FI_DIRECTED_RECV | FI_MULTI_RECV;
    let naming = FI_SOURCE | FI_SOURCE_ERR | FI_SHARED_AV | FI_AV_USER_ID | FI_PEER;
    let one_sided = FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_RMA_EVENT;
    messages | one_sided | FI_ATOMIC | FI_COLLECTIVE | naming | FI_FENCE | reach
}

/// Each of the 64 bits is a capability that is granted, or no data.
///
/// Covers: GI-3, GI-8
#[test]
fn each_capability_is_granted_or_no_data() {
    const PRIMARY: u64 = FI_MSG
        | FI_RMA
        | FI_TAGGED
        | FI_ATOMIC
        | FI_MULTICAST
        | FI_COLLECTIVE
        | FI_HMEM
        | FI_NAMED_RX_CTX
        | FI_DIRECTED_RECV
        | FI_AV_USER_ID
        | FI_PEER;
    const MESSAGES: u64 = FI_MSG | FI_TAGGED;
    const DIRECTIONS: u64 = FI_SEND | FI_RECV;
    const ONE_SIDED: u64 = FI_RMA | FI_ATOMIC;
    const ACCESSES: u64 = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    alone("each_capability_is_granted_or_no_data", |fi| {
        let offered = capabilities();
        for bit in 0..64 {
            let flag = 1 << bit;
            let asked = match flag {
                FI_TAGGED | FI_ATOMIC => flag,
                FI_SOURCE_ERR => flag | FI_MSG | FI_SOURCE,
                FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE => flag | FI_MSG | FI_RMA,
                FI_RMA_EVENT => flag | FI_MSG | FI_RMA,
                _ => flag | FI_MSG,
            };
            let hints = fi.hints();
            // SAFETY: the hints are ours.
            unsafe { (*hints.info).caps = asked };
            let answer = fi.ask(fi.version, None, None, 0, Some(&hints));
            if offered & flag == 0 {
                assert_eq!(answer.err(), Some(ENODATA), "bit {bit}");
                continue;
            }
            let found = answer.unwrap_or_else(|error| panic!("bit {bit}: {error}"));
            for info in found.all() {
                let caps = info.caps;
                assert_eq!(caps & asked, asked, "bit {bit}: {caps:#x}");
                assert_eq!(caps & PRIMARY, asked & PRIMARY, "bit {bit}: {caps:#x}");
                let directions = match (asked & MESSAGES, asked & DIRECTIONS) {
                    (0, _) => 0,
                    (_, 0) => DIRECTIONS,
                    (_, named) => named,
                };
                assert_eq!(caps & DIRECTIONS, directions, "bit {bit}: {caps:#x}");
                let accesses = match (asked & ONE_SIDED, asked & ACCESSES) {
                    (0, _) => 0,
                    (_, 0) => ACCESSES,
                    (_, named) => named,
                };
                assert_eq!(caps & ACCESSES, accesses, "bit {bit}: {caps:#x}");
            }
        }
    });
}

/// Without `FI_DIRECTED_RECV` a receive that names one peer takes the message of another.
///
/// Covers: GI-3
#[test]
fn the_source_of_a_receive_is_ignored_unless_asked_for() {
    const NAME: &str = "the_source_of_a_receive_is_ignored_unless_asked_for";
    alone(NAME, |fi| {
        for caps in [FI_TAGGED, FI_TAGGED | FI_DIRECTED_RECV] {
            let hints = fi.hints();
            // SAFETY: the hints are ours; strings are libc's.
            unsafe {
                (*hints.info).caps = caps;
                (*(*hints.info).domain_attr).name = owned_string(ShmProvider::DOMAIN);
            }
            let shm = fi.ask(fi.version, None, None, 0, Some(&hints)).unwrap();
            let opened = Opened::new(&shm);
            let [a, b, other] = [(); 3].map(|()| opened.party(&shm));
            let (to_b, named) = (a.insert(&b.name()), b.insert(&other.name()));
            b.insert(&a.name());
            let counts = caps & FI_DIRECTED_RECV != 0;
            let mut into = [0u8; 5];
            // SAFETY: as fi_tagged(3) has it; the memory is there until the endpoint is closed.
            let posted = unsafe {
                let table = &*(*b.ep).tagged;
                let (at, len) = (into.as_mut_ptr().cast(), into.len());
                let context = 9 as *mut std::ffi::c_void;
                table.recv.unwrap()(b.ep, at, len, null_mut(), named, 3, 0, context)
            };
            assert_eq!(posted, 0);
            let until = Instant::now() + Duration::from_secs(60);
            let mut entry = fi_cq_tagged_entry::default();
            let send = |from: &Party, to| {
                let mut entry = fi_cq_tagged_entry::default();
                while from.inject(b"hello", to, 3) != 0 {
                    assert!(Instant::now() < until, "the message is not sent");
                    from.poll(&mut entry);
                }
            };
            send(&a, to_b);
            if counts {
                // It waits for its source. Its source sends behind the other.
                send(&other, other.insert(&b.name()));
            }
            while b.poll(&mut entry) != 1 {
                assert!(Instant::now() < until, "the message does not arrive");
                a.poll(&mut fi_cq_tagged_entry::default());
            }
            assert_eq!((&into, entry.len), (b"hello", 5));
            // With directed receives the other message is still there, without it there was none.
            let posted = b.receive(into.as_mut_ptr(), 5, null_mut(), 3);
            assert_eq!(posted, 0);
            if counts {
                while b.poll(&mut entry) != 1 {
                    assert!(Instant::now() < until, "the first message is lost");
                    a.poll(&mut fi_cq_tagged_entry::default());
                }
            } else {
                assert_ne!(b.poll(&mut entry), 1, "a message that nobody has sent");
            }
            for party in [a, b, other] {
                party.close();
            }
            opened.close();
        }
    });
}

/// No mode that an application supports stays set but that of a prefix, which datagrams may have:
/// then it has a size, of a multiple of 8 bytes.
///
/// Covers: GI-4
#[test]
fn no_mode_is_asked_of_the_application() {
    // Headers of libfabric 2 have no name for it.
    const FI_BUFFERED_RECV: u64 = 1 << 51;
    const ALL: [u64; 9] = [
        FI_CONTEXT,
        FI_CONTEXT2,
        FI_MSG_PREFIX,
        FI_ASYNC_IOV,
        FI_RX_CQ_DATA,
        FI_LOCAL_MR,
        FI_NOTIFY_FLAGS_ONLY,
        FI_RESTRICTED_COMP,
        FI_BUFFERED_RECV,
    ];
    alone("no_mode_is_asked_of_the_application", |fi| {
        let all = ALL.iter().fold(0, |modes, mode| modes | mode);
        for mode in ALL.into_iter().chain([0, all]) {
            // Before 1.5 registration of local buffers was a mode.
            for version in [FI_VERSION(1, 4), fi.version] {
                let hints = fi.hints();
                // SAFETY: the hints are ours.
                unsafe { (*hints.info).mode = mode };
                let found = fi.ask(version, None, None, 0, Some(&hints)).unwrap();
                check_modes(&found, mode);
            }
        }
        check_modes(&fi.ask(fi.version, None, None, 0, None).unwrap(), all);
    });
}

fn check_modes(found: &Info<'_>, supported: u64) {
    for info in found.all() {
        // SAFETY: an offer has all attributes.
        let (tx, rx, ep, of_domain) = unsafe {
            (
                &*info.tx_attr,
                &*info.rx_attr,
                &*info.ep_attr,
                &*info.domain_attr,
            )
        };
        let prefix = ep.msg_prefix_size;
        let expected = if prefix > 0 { FI_MSG_PREFIX } else { 0 };
        assert_eq!((info.mode, of_domain.mode), (expected, 0));
        assert_eq!((tx.mode, rx.mode), (expected, expected));
        assert!(expected & !supported == 0 && prefix % 8 == 0);
        assert!(prefix == 0 || ep.type_ == fi_ep_type::FI_EP_DGRAM);
    }
}

/// Each of the 64 bits: flags of fi_getinfo(3) find what there is; others are no data, as libfabric
/// has it, and so is a source without a name.
///
/// Covers: GI-8
#[test]
fn each_flag_finds_something_or_nothing() {
    alone("each_flag_finds_something_or_nothing", |fi| {
        for bit in 0..64 {
            let flag = 1 << bit;
            let found = fi.ask(fi.version, None, None, flag, Some(&fi.hints()));
            match flag {
                FI_NUMERICHOST | FI_PROV_ATTR_ONLY | FI_RESCAN => {
                    assert!(found.is_ok(), "bit {bit}: {:?}", found.err());
                }
                // By these libfabric chooses among providers before it calls one.
                _ if bit >= 58 => assert!([None, Some(ENODATA)].contains(&found.err())),
                _ => assert_eq!(found.err(), Some(ENODATA), "bit {bit}"),
            }
        }
    });
}

/// Covers: GI-5
#[test]
fn addresses_as_text_are_strings() {
    alone("addresses_as_text_are_strings", |fi| {
        let hints = fi.hints();
        // SAFETY: the hints are ours.
        unsafe { (*hints.info).addr_format = FI_ADDR_STR };
        let found = fi.ask(fi.version, None, None, 0, Some(&hints)).unwrap();
        for info in found.all() {
            assert_eq!(info.addr_format, FI_ADDR_STR);
            // SAFETY: a string of libfabric's.
            let text = unsafe { CStr::from_ptr(info.src_addr.cast::<c_char>()) };
            assert_eq!(text.to_bytes_with_nul().len(), info.src_addrlen);
            assert!(text.to_str().unwrap().starts_with("ferro://"), "{text:?}");
        }
        assert!(found.all().count() >= 1);

        // Names of endpoints are strings too, and address vectors take arrays of them.
        let hints = fi.hints();
        // SAFETY: the hints are ours; strings are libc's.
        unsafe {
            (*hints.info).addr_format = FI_ADDR_STR;
            (*hints.info).caps = FI_TAGGED;
            (*(*hints.info).domain_attr).name = owned_string(ShmProvider::DOMAIN);
        }
        let shm = fi.ask(fi.version, None, None, 0, Some(&hints)).unwrap();
        let opened = Opened::new(&shm);
        let (a, b) = (opened.party(&shm), opened.party(&shm));
        let name = CString::from_vec_with_nul(b.name()).unwrap();
        let Address::Native(named) = name.to_str().unwrap().parse().unwrap() else {
            panic!("{name:?} is no native address")
        };
        assert!(named.shm.is_some() && named.incarnation != 0);
        let to_b = a.insert(&(name.as_ptr() as usize).to_ne_bytes());
        let mut into = [0u8; 5];
        assert_eq!(b.receive(into.as_mut_ptr(), 5, null_mut(), 3), 0);
        let until = Instant::now() + Duration::from_secs(60);
        let mut entry = fi_cq_tagged_entry::default();
        while a.inject(b"hello", to_b, 3) != 0 {
            assert!(Instant::now() < until, "the message is not sent");
            a.poll(&mut entry);
        }
        while b.poll(&mut entry) != 1 {
            assert!(Instant::now() < until, "the message does not arrive");
            a.poll(&mut entry);
        }
        assert_eq!(&into, b"hello");
        a.close();
        b.close();
        opened.close();
    });
}

/// Covers: GI-2
#[test]
fn the_log_names_the_field_that_ruled_a_candidate_out() {
    const NAME: &str = "the_log_names_the_field_that_ruled_a_candidate_out";
    if child::is_here() {
        return alone(NAME, |fi| {
            let hints = fi.hints();
            // SAFETY: the hints are ours.
            unsafe { (*(*hints.info).ep_attr).max_msg_size = usize::MAX };
            let found = fi.ask(fi.version, None, None, 0, Some(&hints)).err();
            assert_eq!(found, Some(ENODATA));
        });
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &name_beside_this_test(NAME), "--nocapture"])
        .env(child::CHILD, "1")
        .env("FI_LOG_LEVEL", "debug");
    let plugin = Plugin::new();
    plugin.choose(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{log}");
    if let Some(line) = text.lines().find(|line| line.starts_with("SKIP")) {
        return println!("{line}");
    }
    // Distributions build libfabric without the debug level: then at the level of information, all
    // of them in a line.
    let said = |line: &&str| line.contains("ferro-shm: ep_attr->max_msg_size asked for is");
    assert!(log.lines().any(|line| said(&line)), "{log}");
}

/// Covers: GI-11
#[test]
fn a_passive_endpoint_is_handed_on_and_nothing_else_is() {
    alone(
        "a_passive_endpoint_is_handed_on_and_nothing_else_is",
        |fi| {
            let mut object = fid {
                fclass: FI_CLASS_PEP,
                context: null_mut(),
                ops: null_mut(),
            };
            let handle = &raw mut object;
            let hints = fi.hints();
            // SAFETY: the hints are ours, the object outlives them.
            unsafe { (*hints.info).handle = handle };
            let found = fi.ask(fi.version, None, None, 0, Some(&hints)).unwrap();
            assert!(found.all().all(|info| info.handle == handle));
            // A copy refers to the same, and freeing it lets that be: it has no way to be closed.
            // SAFETY: a copy is one entry.
            assert_eq!(unsafe { (*found.copy().info).handle }, handle);
            // SAFETY: as above.
            unsafe { (*handle).fclass = FI_CLASS_PEP + 1 };
            let found = fi.ask(fi.version, None, None, 0, Some(&hints)).unwrap();
            assert!(found.all().all(|info| info.handle.is_null()));
        },
    );
}

/// Covers: GI-10, GI-12
#[test]
fn copies_are_whole_and_nothing_is_left_of_them() {
    const ROUNDS: usize = 200;
    alone("copies_are_whole_and_nothing_is_left_of_them", |fi| {
        // SAFETY: a new one is ours.
        let new = fi.hints();
        // SAFETY: as above.
        unsafe {
            let info = &*new.info;
            assert!((*info.tx_attr).caps == 0 && (*info.rx_attr).caps == 0);
            assert!((*info.ep_attr).max_msg_size == 0 && (*info.domain_attr).name.is_null());
            assert!(info.nic.is_null() && info.next.is_null());
        }
        let found = fi.ask(fi.version, None, None, 0, None).unwrap();
        for info in found.all() {
            let one = Info::of(fi, std::ptr::from_ref(info).cast_mut());
            let copy = one.copy();
            std::mem::forget(one);
            // SAFETY: the copy is ours.
            let copied = unsafe { &*copy.info };
            assert!(copied.next.is_null());
            assert_eq!(domain(copied), domain(info));
            assert_eq!(address(copied, false), address(info, false));
            assert_ne!(copied.src_addr, info.src_addr);
            assert_eq!(copied.nic.is_null(), info.nic.is_null());
            if !info.nic.is_null() {
                check_nic(copied);
                assert_ne!(copied.nic, info.nic);
            }
        }
        drop((new, found));
        let round = || {
            let found = fi.ask(fi.version, None, None, 0, None).unwrap();
            drop(found.copy());
        };
        for _ in 0..50 {
            round();
        }
        let growth = || {
            let before = in_use();
            for _ in 0..ROUNDS {
                round();
            }
            in_use().saturating_sub(before)
        };
        // One string of each round would be as much at least: the allocator hands out no less than
        // 32 bytes. Such strings are left by each series, other memory of the process by one.
        let grown = [growth(), growth(), growth()];
        assert!(
            grown.iter().any(|bytes| *bytes < ROUNDS * 32),
            "{grown:?} bytes more after {ROUNDS} rounds each"
        );
    });
}

/// Bytes of the C allocator that are in use.
fn in_use() -> usize {
    // SAFETY: it takes nothing.
    unsafe { libc::mallinfo2() }.uordblks
}

/// Checks the fields of Soft-RoCE, and those that every device has.
fn check_nic(info: &fi_info) {
    let text = |text: *mut c_char| {
        // SAFETY: a string of the structure's, or NULL.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned())
    };
    // SAFETY: the structures are there as long as the info.
    let (device, bus, link) = unsafe {
        let nic = &*info.nic;
        (&*nic.device_attr, &*nic.bus_attr, &*nic.link_attr)
    };
    let name = text(device.name).unwrap();
    assert!(domain(info).starts_with(&format!("{name}:")), "{name}");
    assert!(text(device.vendor_id).unwrap().starts_with("0x"));
    assert!(text(device.device_id).unwrap().starts_with("0x"));
    assert!(
        text(link.address)
            .unwrap()
            .parse::<std::net::Ipv6Addr>()
            .is_ok()
    );
    assert!(
        [256, 512, 1024, 2048, 4096].contains(&link.mtu),
        "{}",
        link.mtu
    );
    assert!(link.speed > 0);
    assert_eq!(link.state, fi_link_state::FI_LINK_UP);
    assert!(["Ethernet", "InfiniBand"].contains(&text(link.network_type).unwrap().as_str()));
    if name.contains("rxe") {
        assert_eq!(bus.bus_type, fi_bus_type::FI_BUS_UNKNOWN);
        assert_eq!(text(link.network_type).unwrap(), "Ethernet");
    }
}

/// Covers: GI-13
#[test]
fn many_threads_ask_at_once() {
    alone("many_threads_ask_at_once", |fi| {
        let names = || {
            let found = fi.ask(fi.version, None, None, 0, None).unwrap();
            found.all().map(domain).collect::<Vec<_>>()
        };
        let alone = names();
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..25).all(|_| names() == alone)))
                .collect();
            assert!(all.into_iter().all(|one| one.join().unwrap()));
        });
    });
}
