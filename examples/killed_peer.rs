//! A peer is killed: the operations with it fail, and those with other peers go on.
//!
//! `cargo run --example killed_peer`

use std::process::Command;
use std::time::Duration;

use ferrofabric::{Buffer, Error, Inbound, MessageSource, RdmEndpoint};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));

/// The environment variable that makes a process the peer of the endpoint at this address.
const SURVIVOR: &str = "FERRO_EXAMPLE_SURVIVOR";

#[allow(dead_code, reason = "a test calls the two parts")]
pub(crate) fn main() -> Result<(), Error> {
    if std::env::var_os(SURVIVOR).is_some() {
        return die();
    }
    let program = std::env::current_exe().map_err(|e| Error::from_io(&e, "find", "program"))?;
    survive(Command::new(program))
}

/// Starts a peer with the command, and kills it.
pub(crate) fn survive(mut peer: Command) -> Result<(), Error> {
    let mut survivor = RdmEndpoint::open()?;
    peer.env(SURVIVOR, survivor.address().to_string());
    let child = peer.spawn();
    let mut child = child.map_err(|e| Error::from_io(&e, "start", "the peer"))?;
    let hello = survivor.recv(Buffer::new(64)?)?;
    let hello = survivor.wait_for(hello, TIMEOUT)?;
    let MessageSource::Unknown(Some(address)) = hello.source() else {
        unreachable!("the address vector is empty");
    };
    let doomed = survivor.insert(address)?;
    let mut other = RdmEndpoint::open()?;
    let to_survivor = other.insert(survivor.address())?;
    let to_other = survivor.insert(other.address())?;

    let from_doomed = survivor.recv(Inbound::from(Buffer::new(64)?).source(doomed))?;
    let from_other = survivor.recv(Inbound::from(Buffer::new(64)?).source(to_other))?;
    child
        .kill()
        .and_then(|()| child.wait())
        .map_err(|e| Error::from_io(&e, "kill", "the peer"))?;
    let Err(error) = survivor.wait_for(from_doomed, TIMEOUT) else {
        unreachable!("the peer sends one message");
    };
    assert_eq!(error.peer(), Some(doomed));
    println!("the error that was expected: {error}");

    other.inject(to_survivor, b"I am still here")?;
    other.close(Duration::from_secs(10))?;
    let message = survivor.wait_for(from_other, TIMEOUT)?;
    println!("{}", String::from_utf8_lossy(message.bytes()));
    Ok(())
}

/// The peer: sends a greeting, and waits until it is killed.
pub(crate) fn die() -> Result<(), Error> {
    let mut doomed = RdmEndpoint::open()?;
    let survivor = doomed.insert(std::env::var(SURVIVOR).unwrap_or_default())?;
    doomed.inject(survivor, b"hello")?;
    loop {
        doomed.wait(None)?;
    }
}
