//! Two machines that run the same test program at the same time (scripts/vm --nodes 2): how they
//! meet, and how one starts programs on the other.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use super::run::{MARK, end_marked};

/// How long one waits for the other.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where the first node waits for the second one, and the second one for commands.
const MEETING_PORT: u16 = 7481;
/// See above.
pub const COMMAND_PORT: u16 = 7482;

/// This node, and a stream to the other.
#[derive(Debug)]
pub struct Meeting {
    /// 0 or 1.
    pub node: u64,
    stream: TcpStream,
}

impl Meeting {
    /// Waits for the other node to come to the same place; `None` where there is one node alone.
    pub fn wait() -> Option<Self> {
        let node: u64 = std::env::var("FERRO_NODE").ok()?.parse().unwrap();
        let peer = std::env::var("FERRO_PEER_IP").unwrap();
        let stream = match node {
            0 => {
                TcpListener::bind(("0.0.0.0", MEETING_PORT))
                    .unwrap()
                    .accept()
                    .unwrap()
                    .0
            }
            _ => connect(&peer),
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut meeting = Self { node, stream };
        meeting.both_are_here();
        Some(meeting)
    }

    /// Returns when the other node is here, too.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn both_are_here(&mut self) {
        self.stream
            .write_all(b".")
            .expect("the other node is there");
        self.stream
            .read_exact(&mut [0])
            .expect("the other node comes");
    }

    /// Sends a line to the other node, and returns the one that it sends at the same place.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn exchange(&mut self, line: &str) -> String {
        writeln!(self.stream, "{line}").expect("the other node is there");
        let (mut theirs, mut byte) = (Vec::new(), [0]);
        loop {
            // The bytes behind the line are not read here.
            self.stream
                .read_exact(&mut byte)
                .expect("the other node comes");
            match byte[0] {
                b'\n' => return String::from_utf8(theirs).unwrap(),
                other => theirs.push(other),
            }
        }
    }

    /// Runs each program that mpi/remote.py requests, until the other node has come to its end.
    pub fn serve(&mut self) {
        // For all tests of this process: nothing stops a listener.
        static LISTENING: Once = Once::new();
        LISTENING.call_once(|| {
            let listener = TcpListener::bind(("0.0.0.0", COMMAND_PORT)).unwrap();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let stream = stream.unwrap();
                    std::thread::spawn(move || execute(stream));
                }
            });
        });
        self.both_are_here();
        // It has its own patience with what it runs.
        self.stream.set_read_timeout(None).unwrap();
        self.both_are_here();
        end_marked(&mark());
    }
}

/// In the environment of all commands.
fn mark() -> String {
    format!("remote-{}", std::process::id())
}

fn connect(peer: &str) -> TcpStream {
    let until = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect((peer, MEETING_PORT)) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "connect to {peer}: {error}"),
        }
        // The other one is not there yet; a refused connection comes back at once.
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

/// Reads a command up to a zero byte, runs it with the stream as its output, and sends its exit
/// code as the last byte.
fn execute(mut stream: TcpStream) {
    let mut command = Vec::new();
    let mut byte = [0];
    while stream.read_exact(&mut byte).is_ok() && byte[0] != 0 {
        command.push(byte[0]);
    }
    let output = || Stdio::from(OwnedFd::from(stream.try_clone().unwrap()));
    let status = Command::new("sh")
        .arg("-c")
        .arg(String::from_utf8(command).unwrap())
        .env(MARK, mark())
        .stdin(Stdio::null())
        .stdout(output())
        .stderr(output())
        .status()
        .unwrap();
    let code = u8::try_from(status.code().unwrap_or(255)).unwrap_or(255);
    // The client may be gone.
    let _ = stream.write_all(&[code]);
    // Processes that the command left running may hold the stream, too.
    let _ = stream.shutdown(Shutdown::Both);
}
