//! Two processes that meet at a TCP port, as those of fi_pingpong(1).

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use super::run;

/// Runs fi_pingpong twice, as server and as client; returns the client's output.
pub fn pingpong(program: impl Fn() -> Command, patience: Duration) -> String {
    let port = free_port();
    let at_port = |option: &str| {
        let mut command = program();
        command.args([option, &port.to_string()]);
        command
    };
    let server = run::start(at_port("-B"), patience);
    wait_for_listener(port, patience);
    let mut client = at_port("-P");
    client.arg("127.0.0.1");
    let said = run::run(client, patience).expect_success();
    server.finish().expect_success();
    said
}

/// The number of sizes in fi_pingpong's output: a line each.
///
/// # Panics
///
/// When there are fewer than it has by default.
pub fn sizes(said: &str) -> u64 {
    let is_size = |line: &&str| line.starts_with(char::is_numeric);
    let sizes = said.lines().filter(is_size).count() as u64;
    assert!(sizes >= 5, "{said}");
    sizes
}

/// A port at which nobody listens.
fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// Waits until somebody listens at a TCP port. A connection would be taken for the client's.
fn wait_for_listener(port: u16, patience: Duration) {
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
