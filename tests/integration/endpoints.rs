//! Endpoints of Rust programs, over shared memory.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ferrofabric::info::Progress;
use ferrofabric::{
    Buffer, CompletedOperation, DROP_FLUSH, Errno, FiAddr, Inbound, MessageSource, Outbound,
    PathChoice, RdmEndpoint, RdmEndpointBuilder, ReceivedMessage,
};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

fn options() -> RdmEndpointBuilder {
    RdmEndpoint::builder().path(PathChoice::Shm)
}

fn open() -> RdmEndpoint {
    options().open().unwrap()
}

/// A sender, a receiver, and the receiver as the sender knows it.
fn pair() -> (RdmEndpoint, RdmEndpoint, FiAddr) {
    let (sender, receiver) = (open(), open());
    let to_receiver = sender.insert(receiver.address()).unwrap();
    (sender, receiver, to_receiver)
}

fn room(bytes: usize) -> Buffer {
    Buffer::new(bytes).unwrap()
}

/// Injects a message, which does not wait for later calls of the sender.
fn inject(sender: &mut RdmEndpoint, to: FiAddr, bytes: &[u8]) {
    sender.inject(to, bytes).unwrap();
    sender.flush(PATIENCE.unwrap()).unwrap();
}

fn receive(receiver: &mut RdmEndpoint) -> ReceivedMessage {
    let received = receiver.recv(room(64)).unwrap();
    receiver.wait_for(received, PATIENCE).unwrap()
}

#[test]
fn a_first_message_outlives_the_endpoint_that_is_dropped() {
    for _ in 0..20 {
        let (mut sender, mut receiver, to_receiver) = pair();
        sender.inject(to_receiver, b"goodbye").unwrap();
        drop(sender);
        assert_eq!(receive(&mut receiver).bytes(), b"goodbye");
    }
}

/// Gives the receiver's address to a process.
const RECEIVER: &str = "FERRO_TEST_RECEIVER";

#[test]
fn a_first_message_outlives_its_process() {
    let mut receiver = open();
    let mut sender = Command::new(std::env::current_exe().unwrap());
    let status = sender
        .args(["--exact", "endpoints::the_process_that_ends", "--ignored"])
        .env(RECEIVER, receiver.address().to_string())
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    assert_eq!(receive(&mut receiver).bytes(), b"goodbye");
}

#[test]
#[ignore = "run by another"]
fn the_process_that_ends() {
    let Ok(receiver) = std::env::var(RECEIVER) else {
        return println!("a part of another test, which runs it");
    };
    let mut sender = open();
    let to_receiver = sender.insert(receiver).unwrap();
    sender.inject(to_receiver, b"goodbye").unwrap();
}

#[test]
fn an_endpoint_closes_when_its_messages_are_handed_over() {
    let (mut sender, mut receiver, to_receiver) = pair();
    sender
        .send(to_receiver, Buffer::copy_of(b"one").unwrap())
        .unwrap();
    sender.tinject(to_receiver, 7, b"two").unwrap();
    sender.close(PATIENCE.unwrap()).unwrap();
    assert_eq!(receive(&mut receiver).bytes(), b"one");
    let tagged = receiver.recv(Inbound::from(room(8)).tag(7)).unwrap();
    let tagged = receiver.wait_for(tagged, PATIENCE).unwrap();
    assert_eq!((tagged.bytes(), tagged.tag()), (&b"two"[..], Some(7)));
}

/// A long message that nobody receives holds up neither the close nor the drop of its endpoint.
#[test]
fn a_close_ends_in_time_and_so_does_a_drop() {
    let (mut sender, receiver, to_receiver) = pair();
    sender.send(to_receiver, room(8 << 20)).unwrap();
    let (begun, timeout) = (Instant::now(), Duration::from_millis(20));
    let error = sender.close(timeout).unwrap_err();
    assert_eq!(error.errno(), Errno::ETIMEDOUT);
    let took = begun.elapsed();
    assert!(took < timeout + DROP_FLUSH, "it was flushed twice");

    let mut sender = open();
    let to_receiver = sender.insert(receiver.address()).unwrap();
    sender.send(to_receiver, room(8 << 20)).unwrap();
    let begun = Instant::now();
    drop(sender);
    assert!(begun.elapsed() >= DROP_FLUSH);
}

#[test]
fn a_length_beyond_the_buffer_is_refused() {
    let (mut sender, _receiver, to_receiver) = pair();
    let message = Outbound::from(room(8)).len(100);
    let error = sender.send(to_receiver, message).unwrap_err();
    let text = error.to_string();
    assert_eq!(
        (error.errno(), error.peer()),
        (Errno::EINVAL, Some(to_receiver))
    );
    assert!(text.contains("100 bytes"), "{text}");
    assert!(text.contains("the buffer has fewer"), "{text}");
    assert_eq!(error.into_buffer().unwrap().len(), 8);
}

#[test]
fn a_message_longer_than_its_receive_is_an_error_with_the_buffer() {
    let (mut sender, mut receiver, to_receiver) = pair();
    let received = receiver.recv(room(4)).unwrap();
    inject(&mut sender, to_receiver, b"too long");
    let error = receiver.wait_for(received, PATIENCE).unwrap_err();
    assert_eq!(
        (error.errno(), error.recv_id()),
        (Errno::ETRUNC, Some(received))
    );
    assert_eq!(error.into_buffer().unwrap().len(), 4);
}

/// Whether the sender is known is the message's, never an error.
#[test]
fn messages_have_their_source() {
    let (mut sender, mut receiver, to_receiver) = pair();
    inject(&mut sender, to_receiver, b"who?");
    let message = receive(&mut receiver);
    let address = sender.address();
    assert_eq!(message.source(), &MessageSource::Unknown(Some(address)));
    let from_sender = receiver.insert(address).unwrap();
    inject(&mut sender, to_receiver, b"me");
    let message = receive(&mut receiver);
    assert_eq!(message.source(), &MessageSource::Known(from_sender));

    let mut incurious = options().unknown_sources(false).open().unwrap();
    let to_incurious = sender.insert(incurious.address()).unwrap();
    inject(&mut sender, to_incurious, b"who?");
    let message = receive(&mut incurious);
    assert_eq!(message.source(), &MessageSource::Unknown(None));
    assert_eq!(message.bytes(), b"who?");
}

#[test]
fn a_wait_for_one_operation_keeps_the_others() {
    let (mut sender, mut receiver, to_receiver) = pair();
    let ids: Vec<_> = (0..3)
        .map(|tag| receiver.recv(Inbound::from(room(8)).tag(tag)).unwrap())
        .collect();
    for tag in 0..3 {
        sender.tinject(to_receiver, tag, &[tag as u8]).unwrap();
    }
    sender.flush(PATIENCE.unwrap()).unwrap();
    let last = receiver.wait_for(ids[2], PATIENCE).unwrap();
    assert_eq!(last.bytes(), [2]);
    let first = receiver.wait_for(ids[0], PATIENCE).unwrap();
    assert_eq!(first.bytes(), [0]);
    let left: Vec<_> = receiver.completions(Some(Duration::ZERO)).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let again = receiver.wait_for(ids[1], PATIENCE).unwrap_err();
    assert_eq!(again.errno(), Errno::ENOENT);
}

#[test]
fn a_wait_that_is_over_leaves_the_operation() {
    let (mut sender, mut receiver, to_receiver) = pair();
    let received = receiver.recv(room(8)).unwrap();
    let begun = Instant::now();
    let timeout = Duration::from_millis(30);
    let error = receiver.wait_for(received, Some(timeout)).unwrap_err();
    assert!(error.is_timeout() && begun.elapsed() >= timeout);
    inject(&mut sender, to_receiver, b"late");
    let message = receiver.wait_for(received, PATIENCE).unwrap();
    assert_eq!(message.bytes(), b"late");
}

#[test]
fn a_send_completes_on_delivery_where_that_is_asked_for() {
    let mut sender = options().delivery_complete(true).open().unwrap();
    let mut receiver = options().progress(Progress::Auto).open().unwrap();
    let to_receiver = sender.insert(receiver.address()).unwrap();
    let message = Outbound::from(Buffer::copy_of(b"read me").unwrap()).data(5);
    let sent = sender.send(to_receiver, message).unwrap();
    let soon = Some(Duration::from_millis(30));
    assert!(sender.wait_for(sent, soon).unwrap_err().is_timeout());
    let received = receiver.recv(room(8)).unwrap();
    assert_eq!(&sender.wait_for(sent, PATIENCE).unwrap()[..], b"read me");
    let message = receiver.wait_for(received, PATIENCE).unwrap();
    assert_eq!(
        (message.bytes(), message.data()),
        (&b"read me"[..], Some(5))
    );
}

#[test]
fn text_that_is_no_address_says_what_one_looks_like() {
    let endpoint = open();
    for text in ["", "localhost:80", "ferro://", "ferro://?inc=zz&node=1"] {
        let error = endpoint.insert(text).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL);
        let said = error.to_string();
        assert!(
            said.contains("an address looks like ferro://?inc="),
            "{said}"
        );
    }
    let example = "ferro://?inc=5f3c&node=91a0&shm=27d4";
    assert!(endpoint.insert(example).is_ok(), "the example is one");
}

/// `main` prints the error that it returns by `Debug`.
#[test]
fn errors_are_sentences_in_debug_too() {
    fn failing() -> Result<(), ferrofabric::Error> {
        let mut endpoint = open();
        endpoint.send(FiAddr(77), room(8))?;
        Ok(())
    }
    let error = failing().unwrap_err();
    let printed = format!("{error:?}");
    assert_eq!(printed, error.to_string());
    assert!(
        printed.starts_with("send 8 bytes to fi_addr 0x4d: "),
        "{printed}"
    );
}

/// An inject fails for its peer, and nobody else.
#[test]
fn a_failed_inject_names_its_peer() {
    let mut sender = open();
    let gone = open();
    let to_gone = sender.insert(gone.address()).unwrap();
    drop(gone);
    sender.inject(to_gone, b"hello?").unwrap();
    match sender.wait(PATIENCE).unwrap() {
        Some(CompletedOperation::Failed(error)) => {
            assert_eq!(error.peer(), Some(to_gone), "{error}");
            assert!(error.send_id().is_none() && error.into_buffer().is_none());
        }
        other => panic!("{other:?}"),
    }
}
