//! The number of this process among those of its user on the node: the lowest that no other process
//! has. Local processes choose among equal devices by it, each another one, without communication.
//!
//! A number is the name of a socket: the kernel gives it to one process at a time, takes it back
//! when that process ends, however it ends, and leaves no file behind.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;

use nix::unistd::Uid;

/// More processes than a node has processors.
const MOST: usize = 4096;

/// The number, the same from the first call on. A child of fork has that of its parent.
pub fn process_number() -> usize {
    static NUMBER: OnceLock<NumberHolder> = OnceLock::new();
    let user = || format!("ferro-process-{}", Uid::current());
    NUMBER.get_or_init(|| NumberHolder::take(&user())).number
}

/// A process's number, as long as it is there.
struct NumberHolder {
    number: usize,
    /// `None`: where no socket can be had, several processes may have the number.
    _socket: Option<UnixDatagram>,
}

impl NumberHolder {
    fn take(prefix: &str) -> Self {
        for number in 0..MOST {
            let name = SocketAddr::from_abstract_name(format!("{prefix}-{number}"));
            match name.and_then(|name| UnixDatagram::bind_addr(&name)) {
                Ok(socket) => {
                    return Self {
                        number,
                        _socket: Some(socket),
                    };
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(_) => break,
            }
        }
        // Processes that are started together have numbers in a row.
        Self {
            number: std::process::id() as usize % MOST,
            _socket: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gets_the_lowest_free_number() {
        let prefix = format!("ferro-test-{}", std::process::id());
        let take = || NumberHolder::take(&prefix);
        let (first, second, third) = (take(), take(), take());
        assert_eq!([first.number, second.number, third.number], [0, 1, 2]);
        drop(second);
        let next = take();
        assert_eq!((next.number, take().number), (1, 3));
        assert_eq!(NumberHolder::take(&format!("{prefix}-other")).number, 0);
    }

    #[test]
    fn a_process_keeps_its_number() {
        let number = process_number();
        let threads = [(); 4].map(|()| std::thread::spawn(process_number));
        for thread in threads {
            assert_eq!(thread.join().unwrap(), number);
        }
    }
}
