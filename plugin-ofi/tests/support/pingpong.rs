//! Two processes that meet at a TCP port, as those of fi_pingpong(1).

use std::net::TcpListener;
use std::time::{Duration, Instant};

/// A port at which nobody listens.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// Waits until somebody listens at a TCP port. A connection would be taken for the client's.
pub fn wait_for_listener(port: u16, patience: Duration) {
    let until = Instant::now() + patience;
    // proc_net_tcp(5): local address and port, remote address and port, state, all in hexadecimal.
    let local = format!(":{port:04X} ");
    let listens = |line: &str| line.contains(&local) && line.contains(" 0A ");
    while !["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|table| std::fs::read_to_string(table).is_ok_and(|t| t.lines().any(listens)))
    {
        assert!(Instant::now() < until, "nobody listens at port {port}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}
