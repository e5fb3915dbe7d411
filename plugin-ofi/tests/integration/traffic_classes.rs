//! Traffic classes as applications of libfabric's ask for them: benchmarks in their transmit
//! attributes, fi_endpoint(3); others in the domain's, fi_domain(3).

use crate::{child, client, support, two};
use std::ptr::null_mut;
use std::time::Instant;

use client::{Info, Libfabric, Opened, Party};
use ferro_fi::abi::{
    FI_MSG, FI_MSG_PREFIX, FI_TAGGED, FI_TC_BEST_EFFORT, FI_TC_BULK_DATA, FI_TC_DEDICATED_ACCESS,
    FI_TC_DSCP, FI_TC_LOW_LATENCY, FI_TC_NETWORK_CTRL, FI_TC_SCAVENGER, FI_TC_UNSPEC, fi_addr_t,
    fi_cq_tagged_entry, fi_ep_type, fi_info,
};
use support::has_device;
use two::{PATIENCE, alone, asking_everywhere, over_verbs};

/// Where a header of IP version 4 says its class: the room before a datagram starts with 20 bytes
/// that say nothing.
const TYPE_OF_SERVICE: usize = 21;

/// Every label, and a few DSCPs.
const CLASSES: [u32; 9] = [
    FI_TC_BEST_EFFORT,
    FI_TC_LOW_LATENCY,
    FI_TC_DEDICATED_ACCESS,
    FI_TC_BULK_DATA,
    FI_TC_SCAVENGER,
    FI_TC_NETWORK_CTRL,
    FI_TC_DSCP,
    FI_TC_DSCP | 26,
    FI_TC_DSCP | 63,
];

/// Those of endpoints and of domains that messages are sent in.
const OPENED: [(u32, u32); 4] = [
    (FI_TC_LOW_LATENCY, FI_TC_UNSPEC),
    (FI_TC_BULK_DATA, FI_TC_UNSPEC),
    (FI_TC_DSCP | 26, FI_TC_UNSPEC),
    (FI_TC_UNSPEC, FI_TC_DSCP | 63),
];

/// The offers for hints that `change` completes.
fn ask<'a>(
    libfabric: &'a Libfabric,
    domain: &str,
    change: impl FnOnce(&mut fi_info),
) -> Result<Info<'a>, i32> {
    let hints = libfabric.hints();
    // SAFETY: the hints are ours; the string is libc's.
    unsafe {
        let hints = &mut *hints.info;
        if !domain.is_empty() {
            let name = libc::strndup(domain.as_ptr().cast(), domain.len());
            (*hints.domain_attr).name = name;
        }
        change(hints);
    }
    libfabric.ask(libfabric.version, None, None, 0, Some(&hints))
}

/// Sets the classes that an info requests: the endpoint's, the domain's.
fn set(info: &mut fi_info, (own, of_domain): (u32, u32)) {
    // SAFETY: hints and offers have all attributes.
    unsafe {
        (*info.tx_attr).tclass = own;
        (*info.domain_attr).tclass = of_domain;
    }
}

fn classes(info: &fi_info) -> (u32, u32) {
    // SAFETY: as above.
    unsafe { ((*info.tx_attr).tclass, (*info.domain_attr).tclass) }
}

/// As benchmarks of ping-pong (low latency) and bandwidth (bulk data) do: `fi_getinfo` with a
/// class, and the offer opened as it is.
///
/// Covers: GI-2
#[test]
fn each_class_is_granted_and_opened() {
    asking_everywhere("each_class_is_granted_and_opened", |libfabric, domain| {
        for class in CLASSES {
            for (asked, given) in [
                ((class, FI_TC_UNSPEC), (class, FI_TC_BEST_EFFORT)),
                ((FI_TC_UNSPEC, class), (class, class)),
            ] {
                let found = ask(libfabric, domain, |hints| {
                    hints.caps = FI_TAGGED;
                    // SAFETY: the hints are ours.
                    unsafe { (*hints.ep_attr).type_ = fi_ep_type::FI_EP_RDM };
                    set(hints, asked);
                })
                .unwrap();
                assert!(found.all().all(|info| classes(info) == given));
                // Endpoints take a second each where the machine is emulated.
                if !OPENED.contains(&asked) {
                    continue;
                }
                let opened = Opened::new(&found);
                let (a, b) = (opened.party(&found), opened.party(&found));
                let to_b = a.insert(&b.name());
                let mut into = [0u8; 5];
                assert_eq!(b.receive(into.as_mut_ptr(), 5, null_mut(), 3), 0);
                until("the send", &[&a, &b], || a.inject(b"hello", to_b, 3) == 0);
                arrives(&a, &b);
                assert_eq!(&into, b"hello");
                a.close();
                b.close();
                opened.close();
            }
        }
    });
}

/// Covers: GI-2, GI-8
#[test]
fn a_malformed_class_is_no_data() {
    alone("a_malformed_class_is_no_data", |info| {
        let wrong = [
            1,
            FI_TC_DSCP | 64,
            FI_TC_NETWORK_CTRL + 1,
            FI_TC_DSCP | FI_TC_BEST_EFFORT,
        ];
        for class in wrong {
            let copy = info.copy();
            // SAFETY: the copy is ours.
            set(unsafe { &mut *copy.info }, (FI_TC_UNSPEC, FI_TC_UNSPEC));
            let opened = Opened::new(&copy);
            // SAFETY: as above; and as fi_endpoint(3) and fi_domain(3) have it.
            unsafe {
                set(&mut *copy.info, (class, FI_TC_UNSPEC));
                let (mut ep, mut domain) = (null_mut(), null_mut());
                let refused = call!(
                    opened.domain,
                    ops.endpoint(copy.info, &raw mut ep, null_mut())
                );
                assert_eq!(refused, -libc::EINVAL, "{class:#x}");
                let refused = call!(
                    opened.fabric,
                    ops.domain(copy.info, &raw mut domain, null_mut())
                );
                assert_eq!(refused, -libc::ENODATA, "{class:#x}");
            }
            opened.close();
        }
    });
}

/// The class of an endpoint is on its packets: on RoCE the receiver of a datagram sees it in the
/// header, where the application has left room for that.
///
/// Covers: GI-2
#[test]
fn a_dscp_is_on_the_wire() {
    if !child::is_here() && !has_device() {
        return support::skip("this machine has no RDMA device");
    }
    over_verbs("a_dscp_is_on_the_wire", |libfabric| {
        let best_effort = FI_TC_BEST_EFFORT;
        for (asked, mark) in [
            // The bits for congestion are those of the default class on RoCE v2, 106.
            ((FI_TC_DSCP | 10, best_effort), (10 << 2) | 2),
            ((FI_TC_UNSPEC, FI_TC_DSCP | 8), (8 << 2) | 2),
            ((FI_TC_LOW_LATENCY, FI_TC_DSCP | 8), 106),
            ((FI_TC_UNSPEC, FI_TC_UNSPEC), 106),
        ] {
            let found = ask(libfabric, "", |hints| {
                (hints.caps, hints.mode) = (FI_MSG, FI_MSG_PREFIX);
                // SAFETY: the hints are ours.
                unsafe { (*hints.ep_attr).type_ = fi_ep_type::FI_EP_DGRAM };
                set(hints, asked);
            })
            .unwrap();
            // SAFETY: an offer has all attributes.
            let prefix = unsafe { (*(*found.info).ep_attr).msg_prefix_size };
            assert_eq!(prefix, 40);
            let opened = Opened::new(&found);
            // The class is the sender's to choose: an endpoint that has not requested one has its
            // domain's.
            let own = found.copy();
            // SAFETY: the copy is ours.
            unsafe { (*(*own.info).tx_attr).tclass = asked.0 };
            let (a, b) = (opened.party(&own), opened.party(&found));
            let to_b = a.insert(&b.name());
            let out = [7u8; 48];
            let mut into = [0u8; 48];
            receive(&b, &mut into);
            until("the send", &[&a, &b], || send(&a, &out, to_b) == 0);
            arrives(&a, &b);
            assert_eq!((into[TYPE_OF_SERVICE], &into[40..]), (mark, &out[40..]));
            a.close();
            b.close();
            opened.close();
        }
    });
}

/// `fi_send`.
fn send(from: &Party, bytes: &[u8], to: fi_addr_t) -> isize {
    // SAFETY: as fi_msg(3) has it; the tests keep the bytes.
    unsafe {
        let send = (*(*from.ep).msg).send.unwrap();
        let (ptr, len) = (bytes.as_ptr().cast(), bytes.len());
        send(from.ep, ptr, len, null_mut(), to, null_mut())
    }
}

/// `fi_recv` from anybody.
fn receive(at: &Party, into: &mut [u8]) {
    // SAFETY: as fi_msg(3) has it; the tests keep the memory.
    let posted = unsafe {
        let recv = (*(*at.ep).msg).recv.unwrap();
        let (ptr, len) = (into.as_mut_ptr().cast(), into.len());
        recv(at.ep, ptr, len, null_mut(), u64::MAX, null_mut())
    };
    assert_eq!(posted, 0);
}

/// Tries until it is so, and drives endpoints on which nothing completes but sends.
fn until(what: &str, parties: &[&Party], so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    let mut entry = fi_cq_tagged_entry::default();
    while !so() {
        assert!(Instant::now() < until, "{what} is not done");
        for party in parties {
            party.poll(&mut entry);
        }
    }
}

/// Waits for the one receive of `to`.
fn arrives(from: &Party, to: &Party) {
    let until = Instant::now() + PATIENCE;
    let mut entry = fi_cq_tagged_entry::default();
    while to.poll(&mut entry) != 1 {
        assert!(Instant::now() < until, "the message does not arrive");
        from.poll(&mut entry);
    }
}
