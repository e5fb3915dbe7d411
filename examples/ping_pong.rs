//! Two endpoints send a message back and forth, each in a thread of its own.
//!
//! `cargo run --example ping_pong`

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use ferrofabric::{Buffer, Error, FiAddr, RdmEndpoint};

const ROUNDS: u32 = 1000;
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

pub(crate) fn main() -> Result<(), Error> {
    let ping = RdmEndpoint::open()?;
    let ping_address = ping.address();
    let (to_ping, from_pong) = channel();
    let pong = std::thread::spawn(move || {
        let pong = RdmEndpoint::open()?;
        to_ping.send(pong.address()).expect("ping waits for it");
        let ping = pong.insert(ping_address)?;
        play(pong, ping, false)
    });
    let pong_address = from_pong.recv().expect("pong sends it");
    let to_pong = ping.insert(pong_address)?;
    let begun = Instant::now();
    play(ping, to_pong, true)?;
    println!("{:?} a round", begun.elapsed() / ROUNDS);
    pong.join().expect("pong does not panic")
}

fn play(mut endpoint: RdmEndpoint, peer: FiAddr, begins: bool) -> Result<(), Error> {
    let (mut message, mut room) = (Buffer::copy_of(b"ball")?, Buffer::new(64)?);
    for round in 0..ROUNDS {
        let received = endpoint.recv(room)?;
        if begins || round > 0 {
            let sent = endpoint.send(peer, message)?;
            message = endpoint.wait_for(sent, TIMEOUT)?;
        }
        let ball = endpoint.wait_for(received, TIMEOUT)?;
        assert_eq!(ball.bytes(), b"ball");
        room = ball.into_buffer();
    }
    if !begins {
        endpoint.send(peer, message)?;
    }
    endpoint.close(Duration::from_secs(10))
}
