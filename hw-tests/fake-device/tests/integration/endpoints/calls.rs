//! Calls of the library that fail.

use std::ops::RangeInclusive;
use std::time::Instant;

use ferrofabric_av::AvAttr;
use ferrofabric_fake_device::control::FakeDevice;
use ferrofabric_runtime::fabric::Provider;
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs::VerbsProvider;

use crate::endpoints::nic::nic;
use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, check, domain, first, message, room, run, settings, stat,
};

/// Calls of the opening of a domain and an endpoint that may fail.
const OPENING: [&str; 14] = [
    "ibv_get_device_list",
    "ibv_open_device",
    "ibv_query_device",
    "ibv_query_port",
    "_ibv_query_gid_table",
    "ibv_query_pkey",
    "ibv_alloc_pd",
    "ibv_create_comp_channel",
    "ibv_create_cq",
    "ibv_reg_mr",
    "ibv_create_srq",
    "ibv_create_qp",
    "ibv_modify_qp",
    "ibv_post_recv",
];

/// An endpoint opens, or it does not, and leaves nothing behind, at each call that may fail, and at
/// each repetition of it.
#[test]
fn an_endpoint_that_does_not_open_leaves_nothing() {
    let device = FakeDevice::take();
    let info = {
        let found = VerbsProvider::new().discover(&settings(&[]));
        found.candidates[0].clone()
    };
    let open = || {
        let domain = VerbsProvider::new().open(&info, &settings(&[]))?;
        OwningEndpoint::open(&*domain, &AvAttr::default())
    };
    for call in OPENING {
        if call == "ibv_create_srq" && !nic().shared_receives {
            continue;
        }
        device.reset();
        drop(open().unwrap());
        let calls = device.calls(call);
        assert!(calls > 0, "{call} is not among what opening calls");
        let mut refused = 0;
        for after in 0..(calls as u32).min(6) {
            for errno in [libc::ENOMEM, libc::EINVAL, libc::EPERM, libc::ENODEV] {
                device.fail_call(call, after, 1, errno);
                match open() {
                    Ok(opened) => drop(opened),
                    Err(error) => {
                        refused += 1;
                        let text = error.to_string();
                        assert!(text.len() > 10, "{call}: {text}");
                    }
                }
                assert_clean(&device);
            }
        }
        // Posting a datagram's receive is tried again, and a table that can not be had is read slot
        // by slot.
        let tolerated = ["ibv_post_recv", "_ibv_query_gid_table"];
        assert!(
            refused > 0 || tolerated.contains(&call),
            "{call} may fail unnoticed"
        );
    }
}

/// Discovery says what is wrong, and offers what works.
#[test]
fn a_device_that_does_not_answer_is_not_offered() {
    let device = FakeDevice::take();
    for call in [
        "ibv_get_device_list",
        "ibv_open_device",
        "ibv_query_device",
        "ibv_query_port",
    ] {
        device.reset();
        device.fail_call(call, 0, u32::MAX, libc::EIO);
        let found = VerbsProvider::new().discover(&settings(&[]));
        assert!(
            found.candidates.is_empty(),
            "{call}: {:?}",
            found.candidates
        );
        assert!(!found.notices.is_empty(), "{call}");
        device.reset();
        assert_clean(&device);
    }
    assert_eq!(domain(&[]).info().domain.name, "fake_roce0:1");
}

/// Calls of the making of a connection fail for a while, as on a device that is short of resources.
#[test]
fn a_connection_that_is_made_at_a_later_try() {
    for (call, errno) in [
        ("ibv_create_qp", libc::ENOMEM),
        ("ibv_modify_qp", libc::ENOMEM),
        ("ibv_create_ah", libc::ETIMEDOUT),
        ("ibv_create_ah", libc::ENOMEM),
        ("ibv_post_send", libc::ENOMEM),
        ("ibv_poll_cq", 0),
    ] {
        for after in [0, 1] {
            let device = FakeDevice::take();
            let mut pair = PeerPair::open(&[]);
            if errno != 0 {
                device.fail_call(call, after, 2, errno);
            }
            pair.exchange(8, 3);
            pair.exchange(50_000, 4);
            drop(pair);
            assert_clean(&device);
        }
    }
}

/// A queue pair that can not be made at all is an error for the operations that wait for it: they
/// do not wait for ever.
#[test]
fn a_connection_that_can_not_be_made() {
    for (call, errno) in [
        ("ibv_create_qp", libc::EINVAL),
        ("ibv_modify_qp", libc::EINVAL),
        ("ibv_create_ah", libc::EINVAL),
    ] {
        let device = FakeDevice::take();
        let mut pair = PeerPair::open(&[]);
        device.fail_call(call, 0, u32::MAX, errno);
        let traffic = pair.traffic(0, 5, || ());
        assert_eq!(
            (traffic.sent, traffic.send_errors.len()),
            (0, 10),
            "{call}: {traffic:?}"
        );
        device.reset();
        pair.settle(&device);
        pair.exchange(8, 100);
        drop(pair);
        assert_clean(&device);
    }
}

/// `in_a_row` registrations for large messages fail: an error for one message alone, or for none if
/// other registrations in the cache could make way.
fn registrations_fail(cache: &str, in_a_row: u32, errors: RangeInclusive<usize>) {
    for after in 0..4 {
        let device = FakeDevice::take();
        let mut pair = PeerPair::connected(&[("FERRO_MR_CACHE", cache)]);
        device.fail_call("ibv_reg_mr", after, in_a_row, libc::ENOMEM);
        let traffic = pair.traffic(0, 10, || ());
        assert_eq!(device.faults_left(), 0, "registered less often");
        let failed = traffic.send_errors.len() + traffic.receive_errors.len();
        assert!(errors.contains(&failed), "{traffic:?}");
        pair.exchange(50_000, 100);
        drop(pair);
        assert_clean(&device);
    }
}

#[test]
fn memory_that_can_not_be_registered() {
    registrations_fail("off", 1, 1..=2);
}

#[test]
fn memory_that_can_not_be_registered_at_first() {
    let device = FakeDevice::take();
    let settings = settings(&[("FERRO_MR_CACHE", "on")]);
    let found = VerbsProvider::new().discover(&settings);
    if let Err(error) = VerbsProvider::new().open(&found.candidates[0], &settings) {
        return println!("SKIP {error}");
    }
    drop(device);
    registrations_fail("on", 1, 0..=0);
    registrations_fail("on", 2, 0..=0);
    registrations_fail("on", 3, 1..=2);
}

/// Posting fails, in the middle of things.
fn posting_fails(call: &str, errno: i32, after: u32) {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[("FERRO_RX_BUFFERS", "16")]);
    device.fail_call(call, after, 1, errno);
    pair.traffic(100, 40, || ());
    assert_eq!(device.faults_left(), 0, "{call} was not called so often");
    pair.settle(&device);
    pair.exchange(8, 1);
    pair.exchange(50_000, 2);
    drop(pair);
    assert_clean(&device);
}

#[test]
fn receives_that_can_not_be_posted() {
    let call = match nic().shared_receives {
        true => "ibv_post_srq_recv",
        false => "ibv_post_recv",
    };
    for errno in [libc::ENOMEM, libc::EINVAL] {
        for after in 0..3 {
            posting_fails(call, errno, after);
        }
    }
}

/// All messages that had come over a connection before a post failed there are received, however
/// many they are: their sender has completions for them.
#[test]
fn messages_from_before_a_failed_post_are_received() {
    // As many as one connection has receive buffers for, where the receiver posts none meanwhile.
    let count = match nic().shared_receives {
        true => 40,
        false => 8,
    };
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[]);
    for tag in 0..count {
        let sent = pair.b.tsend(message(8, tag), 8, pair.to_a, tag, tag);
        sent.map_err(first).unwrap();
    }
    // Nobody looks at what has come.
    let sent = run(&mut [&mut pair.b], count as usize);
    assert!(sent.iter().all(|done| done.outcome.is_ok()));
    device.fail_call("ibv_post_send", 0, 1, libc::ENOMEM);
    let sent = pair.a.tsend(message(8, 7), 8, pair.to_b, 7, 2);
    sent.map_err(first).unwrap();
    // Nor until the threads have made another connection.
    let begun = Instant::now();
    while stat(&pair.a, "verbs_queue_pairs_made") < 2 {
        assert!(pair.b.poll().unwrap().is_none());
        assert!(begun.elapsed() < PATIENCE, "the connection stays");
    }
    pair.b
        .trecv(room(8), pair.to_a, 7, 0, 3)
        .map_err(first)
        .unwrap();
    for tag in 0..count {
        let posted = pair.a.trecv(room(8), pair.to_b, tag, 0, 100 + tag);
        posted.map_err(first).unwrap();
    }
    for done in pair.run(count as usize + 2) {
        assert!(done.outcome.is_ok(), "{done:?}");
        if done.token >= 100 {
            check(&done.buffer, done.token - 100, "received");
        }
    }
    pair.settle(&device);
    drop(pair);
    assert_clean(&device);
}

/// A message that was not posted, or whose read was not, goes over the next connection.
#[test]
fn requests_that_can_not_be_posted() {
    for (bytes, after) in [(8, 0), (4000, 0), (20_000, 0), (20_000, 1)] {
        for errno in [libc::ENOMEM, libc::EINVAL, -libc::ENOMEM] {
            let device = FakeDevice::take();
            let mut pair = PeerPair::connected(&[]);
            pair.b
                .trecv(room(bytes), pair.to_a, 7, 0, 1)
                .map_err(first)
                .unwrap();
            device.fail_call("ibv_post_send", after, 1, errno);
            pair.a
                .tsend(message(bytes, 7), bytes, pair.to_b, 7, 2)
                .map_err(first)
                .unwrap();
            let what = format!("{bytes} bytes, request {after}: {errno}");
            for done in pair.run(2) {
                match done.outcome {
                    Ok(_) if done.token == 1 => check(&done.buffer, 7, &what),
                    Ok(_) => {}
                    Err(error) => panic!("{what}: {}", error.why),
                }
            }
            pair.settle(&device);
            pair.exchange(8, 1);
            pair.exchange(50_000, 2);
            drop(pair);
            assert_clean(&device);
        }
    }
}
