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

fn endpoint() -> OwningEndpoint {
    let settings = settings(&[]);
    let found = ShmProvider::new().discover(&settings);
    let domain = ShmProvider::new().open(&found.candidates[0], &settings);
    OwningEndpoint::open(&*domain.unwrap(), &AvAttr::default()).unwrap()
}

/// The peer: injects, and closes at once.
#[test]
#[ignore = "run by the other test, in another process"]
fn party() {
    if role().is_none() {
        return;
    }
    let end = endpoint();
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

/// No thread drives the receiver until the peer has closed.
#[test]
fn messages_come_while_their_receiver_waits_for_the_close() {
    let mut end = endpoint();
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
