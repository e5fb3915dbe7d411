//! A partner on the other end of a TCP connection.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

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

/// Waits for a partner; other programs are turned away with a line that says so. Returns the
/// partner's name, too.
///
/// # Errors
///
/// When the address is none or is taken, or no partner comes.
pub(super) fn accept(address: &str, patience: Duration) -> Result<(Channel, String)> {
    let failed = |e| Failure::io(format!("listen at {address}"), e);
    let candidates = resolve(address)?;
    let listener = TcpListener::bind(candidates.as_slice()).map_err(failed)?;
    let own = listener.local_addr().map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    eprintln!("ferro: listening at {own}");
    let deadline = Instant::now() + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failure::new(format!(
                "no partner came to {own} for {} s (--patience waits longer)",
                patience.as_secs()
            )));
        }
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                sleep(&listener, left).map_err(failed)?;
                continue;
            }
            Err(e) => return Err(failed(e)),
        };
        let mut channel = Channel::over_tcp(stream, from.to_string())?;
        match channel.greet() {
            Ok(()) => return Ok((channel, from.to_string())),
            Err(failure) => eprintln!("ferro: {failure}; still listening"),
        }
    }
}

/// Sleeps until a connection comes, at most for a while.
fn sleep(listener: &TcpListener, at_most: Duration) -> std::io::Result<()> {
    let ms = at_most.as_millis().clamp(1, 1000) as u16;
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    match poll(&mut fds, PollTimeout::from(ms)) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(e) => Err(e.into()),
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
