//! An endpoint that closes while its peer's application waits by other means.

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::ends::PATIENCE;
use ferrofabric_conformance::limits::settings;
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::OpError;
use ferrofabric_runtime::fabric::Provider;
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use ferrofabric_shm::ShmProvider;
use std::time::Instant;

use crate::party::{ChildProcess, await_line, print_line, role};

/// More than fit in a segment.
const MESSAGES: u64 = 1000;
const BYTES: usize = 1024;

/// On a domain whose calls are serialized by a lock, or by the application.
fn endpoint(has_lock: bool) -> OwningEndpoint {
    let settings = settings(&[]);
    let provider = ShmProvider::new();
    let info = &provider.discover(&settings).candidates[0];
    let domain = match has_lock {
        true => provider.open(info, &settings),
        // SAFETY: only the thread of the test uses it.
        false => unsafe { provider.open_serialized(info, &settings) },
    };
    OwningEndpoint::open(&*domain.unwrap(), &AvAttr::default()).unwrap()
}

/// The peer: injects, and closes at once.
#[test]
#[ignore = "run by the other test, in another process"]
fn party() {
    if role().is_none() {
        return;
    }
    let end = endpoint(true);
    print_line(end.name());
    let parent: NativeAddr = await_line().parse().unwrap();
    let parent = end.av().insert(&parent.to_bytes()).unwrap();
    for number in 0..MESSAGES {
        let message = [number as u8; BYTES];
        while let Err(error) = end.tinject(&message, parent, number) {
            assert_eq!(error, OpError::Again);
        }
    }
    drop(end);
    print_line("closed");
    await_line();
}

#[test]
fn messages_come_while_their_receiver_waits_for_the_close() {
    receive_after_the_close(true);
}

/// As MPI libraries open their domains.
#[test]
fn messages_come_to_a_domain_without_a_lock() {
    receive_after_the_close(false);
}

/// No thread drives the receiver until the peer has closed.
fn receive_after_the_close(has_lock: bool) {
    let mut end = endpoint(has_lock);
    let mut child = ChildProcess::start("inject");
    let from = end.av().insert(&child.read_name().to_bytes()).unwrap();
    child.write_line(&end.name().to_string());
    assert_eq!(child.read_line(), "closed");
    for number in 0..MESSAGES {
        let room = Buffer::new(BYTES).unwrap();
        let posted = end.trecv(room, from, number, 0, number);
        assert!(posted.is_ok(), "message {number}");
    }
    let (begun, mut came) = (Instant::now(), 0);
    while came < MESSAGES {
        assert!(begun.elapsed() < PATIENCE, "{came} of {MESSAGES} came");
        if let Some(done) = end.poll().unwrap() {
            assert!(
                done.outcome.is_ok(),
                "message {}: {:?}",
                done.token,
                done.outcome
            );
            assert_eq!(done.buffer[..], [done.token as u8; BYTES]);
            came += 1;
        }
    }
    child.write_line("done");
    child.finish();
}
