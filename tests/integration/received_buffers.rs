//! The buffer of a received message: what it sends on, and what it receives into.

use std::time::Duration;

use ferrofabric::info::Progress;
use ferrofabric::{
    Buffer, CompletedOperation, Errno, FiAddr, MessageSource, PathChoice, PeersRead, PeersWrite,
    RdmEndpoint,
};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

fn open() -> RdmEndpoint {
    let options = RdmEndpoint::builder().path(PathChoice::Shm);
    options.open().unwrap()
}

/// Answers each message with the message, from one buffer, until `count` answers are sent.
fn echo(mut server: RdmEndpoint, bytes: usize, count: usize) {
    server.recv(Buffer::new(bytes).unwrap()).unwrap();
    let mut answered = 0;
    while answered < count {
        match server.wait(PATIENCE).unwrap() {
            Some(CompletedOperation::Received(_, question)) => {
                let client = match *question.source() {
                    MessageSource::Known(client) => client,
                    MessageSource::Unknown(Some(address)) => server.insert(address).unwrap(),
                    MessageSource::Unknown(None) => unreachable!("all sources have addresses"),
                };
                server.send(client, question.into_buffer()).unwrap();
            }
            Some(CompletedOperation::Sent(_, buffer)) => {
                answered += 1;
                server.recv(buffer).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    server.close(PATIENCE.unwrap()).unwrap();
}

fn ask(client: &mut RdmEndpoint, server: FiAddr, question: &[u8]) -> Vec<u8> {
    let answer = client.recv(Buffer::new(256).unwrap()).unwrap();
    client.inject(server, question).unwrap();
    let answer = client.wait_for(answer, PATIENCE).unwrap();
    answer.bytes().to_vec()
}

/// A client gets its own bytes back: none of an earlier, longer message of another client, and all
/// of a longer one, though the buffer had a shorter one before.
#[test]
fn an_echo_server_gives_no_client_the_bytes_of_another() {
    let server = open();
    let (mut first, mut second) = (open(), open());
    let from_first = first.insert(server.address()).unwrap();
    let from_second = second.insert(server.address()).unwrap();
    let server = std::thread::spawn(move || echo(server, 64, 5));
    let secret = b"the password of the first client";
    assert_eq!(ask(&mut first, from_first, secret), secret);
    assert_eq!(ask(&mut second, from_second, b"hi"), b"hi");
    assert_eq!(ask(&mut second, from_second, b""), b"");
    let long = [0x5a; 64];
    assert_eq!(ask(&mut second, from_second, &long), long);
    assert_eq!(ask(&mut first, from_first, b"bye"), b"bye");
    server.join().unwrap();
}

/// A buffer of 64 bytes that a message of 2 bytes was received into, after one that filled it.
fn with_a_short_message(receiver: &mut RdmEndpoint) -> Buffer {
    let mut sender = open();
    let to_receiver = sender.insert(receiver.address()).unwrap();
    let mut buffer = Buffer::new(64).unwrap();
    for message in [&[0x5a; 64][..], b"hi"] {
        sender.inject(to_receiver, message).unwrap();
        sender.flush(PATIENCE.unwrap()).unwrap();
        let received = receiver.recv(buffer).unwrap();
        let received = receiver.wait_for(received, PATIENCE).unwrap();
        assert_eq!(received.bytes(), message);
        buffer = received.into_buffer();
        assert_eq!((&buffer[..], buffer.capacity()), (message, 64));
    }
    buffer
}

/// A longer message needs a call, and shows nothing of the earlier one either.
#[test]
fn bytes_that_a_buffer_gains_are_zeros() {
    let mut buffer = with_a_short_message(&mut open());
    buffer.resize(4).unwrap();
    assert_eq!(buffer[..], *b"hi\0\0");
    buffer.resize(1).unwrap();
    buffer.resize(64).unwrap();
    assert_eq!((buffer[0], &buffer[1..]), (b'h', &[0; 63][..]));
    let error = buffer.resize(65).unwrap_err();
    assert_eq!((error.errno(), buffer.len()), (Errno::EINVAL, 64));
}

/// A receive that fails has no message: its buffer comes back as it was posted, or with the first
/// bytes of a message that was too long.
#[test]
fn buffers_of_failed_receives_have_no_bytes_of_earlier_messages() {
    let mut receiver = open();
    let buffer = with_a_short_message(&mut receiver);
    let cancelled = receiver.recv(buffer).unwrap();
    receiver.cancel(cancelled).unwrap();
    let error = receiver.wait_for(cancelled, PATIENCE).unwrap_err();
    assert!(error.is_canceled(), "{error}");
    let buffer = error.into_buffer().unwrap();
    assert_eq!((&buffer[..], buffer.capacity()), (&b"hi"[..], 64));

    // By each way of messages: in a slot, in a record, in pieces or by a copy of the kernel.
    for len in [65, 4000, 1 << 20] {
        let buffer = with_a_short_message(&mut receiver);
        let received = receiver.recv(buffer).unwrap();
        let address = receiver.address();
        let sender = std::thread::spawn(move || {
            let mut sender = open();
            let to_receiver = sender.insert(address).unwrap();
            let message = Buffer::copy_of(&vec![0x77; len]).unwrap();
            sender.send(to_receiver, message).unwrap();
            sender.close(PATIENCE.unwrap()).unwrap();
        });
        let error = receiver.wait_for(received, PATIENCE).unwrap_err();
        assert_eq!(error.errno(), Errno::ETRUNC);
        assert_eq!(error.into_buffer().unwrap()[..], [0x77; 64]);
        receiver.flush(PATIENCE.unwrap()).unwrap();
        while !sender.is_finished() {
            assert!(receiver.poll().unwrap().is_none());
        }
        sender.join().unwrap();
    }
}

/// Neither a write nor a region has more than the message, and a read has room in all of the memory.
#[test]
fn one_sided_operations_have_the_bytes_of_the_message() {
    let server = RdmEndpoint::builder().path(PathChoice::Shm);
    let server = server.progress(Progress::Auto).open().unwrap();
    let mut client = open();
    let to_server = client.insert(server.address()).unwrap();
    server.insert(client.address()).unwrap();

    let region = server
        .share::<PeersWrite>(Buffer::new(64).unwrap())
        .unwrap();
    let message = with_a_short_message(&mut client);
    let write = client.write(to_server, region.remote(), message).unwrap();
    let message = client.wait_for(write, PATIENCE).unwrap();
    assert_eq!((&message[..], message.capacity()), (&b"hi"[..], 64));
    let written = region.close();
    assert_eq!((&written[..2], &written[2..]), (&b"hi"[..], &[0; 62][..]));

    let region = server
        .share::<PeersRead>(with_a_short_message(&mut client))
        .unwrap();
    assert_eq!((region.len(), region.bytes()), (2, &b"hi"[..]));
    let read = client.read(to_server, region.remote(), message).unwrap();
    assert_eq!(client.wait_for(read, PATIENCE).unwrap()[..], *b"hi");

    let region = server
        .share::<PeersRead>(Buffer::copy_of(&[0x33; 64]).unwrap())
        .unwrap();
    let message = with_a_short_message(&mut client);
    let read = client.read(to_server, region.remote(), message).unwrap();
    let bytes = client.wait_for(read, PATIENCE).unwrap();
    assert_eq!(bytes[..], [0x33; 64]);
    // A read that is refused or fails shows nothing either.
    let remote = region.remote();
    drop(region);
    let message = with_a_short_message(&mut client);
    let read = client.read(to_server, remote, message).unwrap();
    let error = client.wait_for(read, PATIENCE).unwrap_err();
    let buffer = error.into_buffer().unwrap();
    assert_eq!((&buffer[..2], &buffer[2..]), (&b"hi"[..], &[0; 62][..]));
}
