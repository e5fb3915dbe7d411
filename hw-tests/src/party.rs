//! Tests with several processes: `test-peer` is the program of the others, told over its standard
//! input what to be.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use ferrofabric_av::AvAttr;
use ferrofabric_contracts::addr::{NATIVE_LEN, NativeAddr};
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::peer::{Completion, CqError};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::fabric::Domain;
use ferrofabric_runtime::owning::{Buffer, OwnedCompletion, OwningEndpoint};

use crate::offers;

/// A wait that takes so long hangs.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// An RDM endpoint, with the settings of the environment but for those given.
pub fn endpoint(overrides: &[(&str, &str)]) -> OwningEndpoint {
    OwningEndpoint::open(&*domain(overrides), &AvAttr::default()).unwrap()
}

/// A domain of RDM endpoints, with the settings of the environment but for those given. Without
/// verbs, one of shared memory alone.
pub fn domain(overrides: &[(&str, &str)]) -> Arc<dyn Domain> {
    let settings = offers::settings(overrides);
    match settings.verbs {
        false => offers::local_domain(&settings),
        true => offers::domain(&settings),
    }
}

/// The port at which the first of two machines waits for the other.
const PORT: u16 = 7471;

/// The number of this machine, the first or the second of two, and a stream to the other.
///
/// # Panics
///
/// When the other does not come in time.
pub fn meet() -> (u64, TcpStream) {
    let node: u64 = std::env::var("FERRO_NODE")
        .expect("FERRO_NODE")
        .parse()
        .unwrap();
    let peer = std::env::var("FERRO_PEER_IP").expect("FERRO_PEER_IP");
    if node == 0 {
        return (
            node,
            TcpListener::bind(("0.0.0.0", PORT))
                .unwrap()
                .accept()
                .unwrap()
                .0,
        );
    }
    let until = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect((peer.as_str(), PORT)) {
            Ok(stream) => return (node, stream),
            Err(error) => assert!(Instant::now() < until, "connect to {peer}: {error}"),
        }
        // The other machine may still be booting; a refused connection comes back at once.
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

/// Another process with an endpoint of its own. Killed when dropped.
pub struct PeerProcess {
    process: Child,
    control: UnixStream,
    /// Its endpoint's address.
    pub name: NativeAddr,
}

impl PeerProcess {
    /// Starts `program` (`env!("CARGO_BIN_EXE_test-peer")`) in a role, with the numbers and the
    /// address that the role needs.
    pub fn start(
        program: &str,
        role: &str,
        environment: &[(&str, &str)],
        numbers: &[u64],
        hub: &NativeAddr,
    ) -> Self {
        let mut command = Command::new(program);
        command
            .arg(role)
            .args(numbers.iter().map(u64::to_string))
            .envs(environment.iter().copied());
        Self::run(command, hub)
    }

    /// Starts a program that calls [`report`].
    pub fn run(mut command: Command, hub: &NativeAddr) -> Self {
        let (mut control, theirs) = UnixStream::pair().unwrap();
        let process = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn();
        let process = process.unwrap();
        control.write_all(&hub.to_bytes()).unwrap();
        control.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut name = [0; NATIVE_LEN];
        control
            .read_exact(&mut name)
            .expect("the peer says its name");
        Self {
            process,
            control,
            name: NativeAddr::from_bytes(&name).unwrap(),
        }
    }

    /// Starts senders to `hub`, which have numbers from 0 on: the even ones are local, the odd ones
    /// have shared memory switched off. Each takes `numbers` after its own: messages, shortest and
    /// longest in bytes, messages under way. Returns the senders and their addresses at the hub.
    pub fn start_senders(
        program: &str,
        count: u64,
        numbers: [u64; 4],
        hub: &OwningEndpoint,
    ) -> (Vec<Self>, Vec<FiAddr>) {
        let [messages, low, high, window] = numbers;
        let start = |me| {
            let shm = if me % 2 == 0 { "on" } else { "off" };
            let numbers = [me, messages, low, high, window];
            let environment = [("FERRO_SHM", shm)];
            Self::start(program, "sender", &environment, &numbers, &hub.name())
        };
        let senders: Vec<Self> = (0..count).map(start).collect();
        let insert = |sender: &Self| hub.av().insert(&sender.name.to_bytes()).unwrap();
        let addrs = senders.iter().map(insert).collect();
        (senders, addrs)
    }

    /// Lets the peer begin.
    pub fn go(&mut self) {
        self.control.write_all(b"!").unwrap();
    }

    /// Sends a signal. After SIGSTOP it returns when all threads of the process have stopped.
    pub fn signal(&self, signal: i32) {
        let process = self.process.id() as i32;
        // SAFETY: the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(process, signal) }, 0);
        if signal == libc::SIGSTOP {
            let mut status = 0;
            // SAFETY: as above; there is room for the status.
            let stopped = unsafe { libc::waitpid(process, &raw mut status, libc::WUNTRACED) };
            assert_eq!(stopped, process);
            assert!(libc::WIFSTOPPED(status), "it has ended: {status:#x}");
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Waits for its end, which must be a success.
    pub fn finish(mut self) {
        assert!(self.process.wait().unwrap().success(), "the peer failed");
    }

    /// Waits for its end, however it came.
    pub fn bury(mut self) {
        self.process.wait().unwrap();
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The other side of [`PeerProcess::start`]: takes the hub's address, reports its own, waits for
/// the start.
pub fn report(name: &NativeAddr) -> NativeAddr {
    let stdin = std::io::stdin();
    let mut control = UnixStream::from(stdin.as_fd().try_clone_to_owned().unwrap());
    let mut hub = [0; NATIVE_LEN];
    control.read_exact(&mut hub).unwrap();
    control.write_all(&name.to_bytes()).unwrap();
    control.read_exact(&mut [0]).unwrap();
    NativeAddr::from_bytes(&hub).unwrap()
}

/// An operation that is over, waited for asleep.
pub fn wait(endpoint: &mut OwningEndpoint) -> OwnedCompletion {
    endpoint
        .wait(Some(PATIENCE))
        .unwrap()
        .expect("something completes in time")
}

/// Sends, with as many tries as that takes; operations that complete meanwhile go to `done`.
pub fn tsend(
    endpoint: &mut OwningEndpoint,
    mut buffer: Buffer,
    len: usize,
    dest: FiAddr,
    tag: u64,
    token: u64,
    mut done: impl FnMut(OwnedCompletion),
) {
    loop {
        match endpoint.tsend(buffer, len, dest, tag, token) {
            Ok(()) => return,
            Err((OpError::Again, back)) => buffer = back,
            Err((error, _)) => panic!("send refused: {error}"),
        }
        while let Some(d) = endpoint.poll().unwrap() {
            done(d);
        }
    }
}

/// The token of an operation, and its result.
pub type TokenResult = (u64, Result<Completion, Box<CqError>>);

/// The outcome of an operation that must have succeeded.
pub fn succeeded(outcome: Result<Completion, Box<CqError>>) -> Completion {
    outcome.unwrap_or_else(|e| panic!("{} ({}): {e:?}", e.errno, e.why))
}

/// Draws a size from `low` to `high` bytes, each power of two as likely as the next.
pub fn size(rng: &mut Rng, low: usize, high: usize) -> usize {
    let (from, to) = ((low + 1) as f64, (high + 1) as f64);
    let size = from * (to / from).powf(rng.f64());
    (size as usize - 1).clamp(low, high)
}

/// Fills a message with content that depends on its seed.
pub fn fill(message: &mut [u8], seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut chunks = message.chunks_exact_mut(8);
    let mut word = rng.u64(..);
    for chunk in &mut chunks {
        word = word
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(seed | 1);
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    for byte in chunks.into_remainder() {
        *byte = seed as u8;
    }
}

/// Checks that a message is as [`fill`] made it.
///
/// # Panics
///
/// If not; says where it differs, and whether what is there is of another message.
pub fn check(message: &[u8], seed: u64, what: &str) {
    if is_filled(message, seed) {
        return;
    }
    let mut expected = vec![0; message.len()];
    fill(&mut expected, seed);
    let wrong: Vec<usize> = (0..message.len())
        .filter(|&i| message[i] != expected[i])
        .collect();
    let (first, last) = (wrong[0], wrong[wrong.len() - 1]);
    let at = &message[first..message.len().min(first + 16)];
    panic!(
        "{what}: {} of {} bytes differ, from {first} to {last}; there is {at:02x?}, expected {:02x?}",
        wrong.len(),
        message.len(),
        &expected[first..first + at.len()]
    );
}

/// Whether a message is as [`fill`] made it.
pub fn is_filled(message: &[u8], seed: u64) -> bool {
    let mut rng = Rng::with_seed(seed);
    let mut chunks = message.chunks_exact(8);
    let mut word = rng.u64(..);
    for chunk in &mut chunks {
        word = word
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(seed | 1);
        if chunk != word.to_le_bytes() {
            return false;
        }
    }
    chunks.remainder().iter().all(|&b| b == seed as u8)
}
