//! A server answers three clients that are not in its address vector: each message brings the
//! address of its sender.
//!
//! `cargo run --example server`

use std::time::Duration;

use ferrofabric::{Buffer, Error, FiAddr, MessageSource, RdmEndpoint, ReceivedMessage};

const CLIENTS: usize = 3;
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

pub(crate) fn main() -> Result<(), Error> {
    let server = RdmEndpoint::open()?;
    let address = server.address().to_string();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let address = address.clone();
            std::thread::spawn(move || ask(&address, number))
        })
        .collect();
    serve(server)?;
    clients
        .into_iter()
        .try_for_each(|client| client.join().expect("a client does not panic"))
}

fn serve(mut server: RdmEndpoint) -> Result<(), Error> {
    for _ in 0..CLIENTS {
        let question = server.recv(Buffer::new(4096)?)?;
        let question = server.wait_for(question, TIMEOUT)?;
        let client = known(&server, &question)?;
        let text = String::from_utf8_lossy(question.bytes());
        server.inject(client, format!("you said: {text}").as_bytes())?;
    }
    server.close(Duration::from_secs(10))
}

/// The sender of a message, which is in the address vector afterwards.
fn known(server: &RdmEndpoint, question: &ReceivedMessage) -> Result<FiAddr, Error> {
    match question.source() {
        MessageSource::Known(client) => Ok(*client),
        MessageSource::Unknown(Some(address)) => server.insert(address),
        MessageSource::Unknown(None) => unreachable!("the endpoint has addresses of all sources"),
    }
}

fn ask(server: &str, number: usize) -> Result<(), Error> {
    let mut client = RdmEndpoint::open()?;
    let server = client.insert(server)?;
    let question = format!("I am client {number}");
    client.inject(server, question.as_bytes())?;
    let answer = client.recv(Buffer::new(4096)?)?;
    let answer = client.wait_for(answer, TIMEOUT)?;
    assert_eq!(answer.bytes(), format!("you said: {question}").as_bytes());
    println!("{}", String::from_utf8_lossy(answer.bytes()));
    Ok(())
}
