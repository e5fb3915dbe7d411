//! A partner on the other end of a TCP connection.

use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::channel::Channel;
use crate::failure::{Failure, Result};

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Connects to a partner that listens.
///
/// # Errors
///
/// When the address is none, or nobody listens there.
pub(super) fn connect(address: &str) -> Result<Channel> {
    let mut why = Failure::new(format!("connect to {address}: the name has no address"));
    for candidate in resolve(address)? {
        match TcpStream::connect_timeout(&candidate, CONNECT_PATIENCE) {
            Ok(stream) => return Channel::over_tcp(stream, address.to_owned()),
            Err(e) => why = Failure::io(format!("connect to {address}"), e),
        }
    }
    Err(why)
}

/// Waits for a partner; strangers are turned away with a line that says so. Returns the partner's
/// name, too.
///
/// # Errors
///
/// When the address is none, or is taken.
pub(super) fn accept(address: &str) -> Result<(Channel, String)> {
    let failed = |e| Failure::io(format!("listen at {address}"), e);
    let candidates = resolve(address)?;
    let listener = TcpListener::bind(candidates.as_slice()).map_err(failed)?;
    eprintln!(
        "ferro: listening at {}",
        listener.local_addr().map_err(failed)?
    );
    loop {
        let (stream, from) = listener.accept().map_err(failed)?;
        let mut channel = Channel::over_tcp(stream, from.to_string())?;
        match channel.greet() {
            Ok(()) => return Ok((channel, from.to_string())),
            Err(failure) => eprintln!("ferro: {failure}; still listening"),
        }
    }
}

fn resolve(address: &str) -> Result<Vec<SocketAddr>> {
    match address.to_socket_addrs() {
        Ok(found) => Ok(found.collect()),
        Err(e) => Err(Failure::new(format!(
            "\"{}\" is no address: {e}; HOST:PORT is wanted",
            address.escape_debug()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_address_is_named() {
        for wrong in ["", "10.1.0.1", "10.1.0.1:99999", ":", "a b:1", "[::1:5"] {
            let text = resolve(wrong).unwrap_err().to_string();
            assert!(
                text.contains(&format!("\"{wrong}\" is no address")),
                "{text}"
            );
        }
    }
}
