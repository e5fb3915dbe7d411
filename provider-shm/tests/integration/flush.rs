//! Messages that were flushed reach their peers, though the endpoint closes at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::limits::{PATIENCE, settings};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use ferrofabric_shm::ShmProvider;

/// More than the ring of a link holds.
const LONG: usize = 4 << 20;

fn domain() -> Arc<dyn Domain> {
    let settings = settings(&[]);
    let found = ShmProvider::new().discover(&settings);
    ShmProvider::new()
        .open(&found.candidates[0], &settings)
        .unwrap()
}

/// An endpoint, and another one that has its address.
fn ends() -> (OwningEndpoint, OwningEndpoint, FiAddr) {
    let open = || OwningEndpoint::open(&*domain(), &AvAttr::default()).unwrap();
    let (receiver, sender) = (open(), open());
    let to_receiver = sender.av().insert(&receiver.name().to_bytes()).unwrap();
    (receiver, sender, to_receiver)
}

fn receive(receiver: &mut OwningEndpoint, bytes: usize) -> Vec<u8> {
    let posted = receiver.recv(Buffer::new(bytes).unwrap(), FiAddr::UNSPEC, 1);
    posted.unwrap();
    let done = receiver.wait(Some(PATIENCE)).unwrap();
    let done = done.expect("the message is lost");
    let len = done.outcome.unwrap().len;
    done.buffer[..len].to_vec()
}

#[test]
fn a_first_message_that_was_flushed_outlives_its_sender() {
    for _ in 0..50 {
        let (mut receiver, sender, to_receiver) = ends();
        sender.inject(b"goodbye", to_receiver, None).unwrap();
        sender.flush(Some(PATIENCE)).unwrap();
        drop(sender);
        assert_eq!(receive(&mut receiver, 64), b"goodbye");
    }
}

/// The receiver takes it piece by piece, or reads it out of the sender's memory.
#[test]
fn a_flush_waits_for_a_long_message() {
    let (mut receiver, mut sender, to_receiver) = ends();
    let mut message = Buffer::new(LONG).unwrap();
    message.fill(7);
    sender.send(message, LONG, to_receiver, None, 1).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            sender.flush(Some(PATIENCE)).unwrap();
            drop(sender);
        });
        assert_eq!(receive(&mut receiver, LONG), vec![7; LONG]);
    });
}

/// No receive takes the message.
#[test]
fn a_flush_ends_in_time() {
    let (_receiver, mut sender, to_receiver) = ends();
    let message = Buffer::new(LONG).unwrap();
    sender.send(message, LONG, to_receiver, None, 1).unwrap();
    let begun = Instant::now();
    let timeout = Duration::from_millis(30);
    assert_eq!(sender.flush(Some(timeout)), Err(OpError::Again));
    assert!(begun.elapsed() >= timeout);
}

#[test]
fn a_length_beyond_the_buffer_is_refused() {
    let (mut receiver, mut sender, to_receiver) = ends();
    for tagged in [false, true] {
        let buffer = Buffer::new(8).unwrap();
        let sent = match tagged {
            false => sender.send(buffer, 100, to_receiver, None, 1),
            true => sender.tsend(buffer, 100, to_receiver, 7, 1),
        };
        let (error, buffer) = sent.unwrap_err();
        assert_eq!(error, OpError::Failed(Errno::EINVAL));
        assert_eq!(buffer.len(), 8);
    }
    let exact = Buffer::copy_of(b"12345678").unwrap();
    sender.send(exact, 8, to_receiver, None, 2).unwrap();
    sender.flush(Some(PATIENCE)).unwrap();
    assert_eq!(receive(&mut receiver, 64), b"12345678");
}
