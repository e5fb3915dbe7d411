//! A partner started by ourselves: the same executable, on a core of its own, with a socket to us
//! as its standard input.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ferrofabric_contracts::config::variables;

use crate::channel::Channel;
use crate::cores;
use crate::failure::{Failure, Result};

/// How long a partner that has closed its end may take to be gone.
const EXIT_PATIENCE: Duration = Duration::from_secs(5);

/// The child; ended with us.
pub(super) struct SpawnedPartner(Child);

/// Starts the partner on the second of two cores, and moves this process to the first.
///
/// # Errors
///
/// When the cores are not to be had, or the process can not be started.
pub(super) fn start(on: Option<(usize, usize)>) -> Result<(SpawnedPartner, Channel)> {
    let (ours, theirs) = match on {
        Some(pair) => {
            let allowed = cores::allowed()?;
            if let Some(core) = [pair.0, pair.1].iter().find(|c| !allowed.contains(c)) {
                return Err(Failure::usage(format!(
                    "--cores: this process may not use core {core}, so it can not pin to core {core}"
                )));
            }
            pair
        }
        None => cores::pair()?,
    };
    if ours == theirs {
        eprintln!(
            "ferro: both sides share one core, so polling takes time from the other side; --block is faster"
        );
    }
    let failed = |e| Failure::io("start the partner", e);
    let (near, far) = UnixStream::pair().map_err(failed)?;
    let program = std::env::current_exe().map_err(failed)?;
    // A child inherits the cores of the thread that starts it.
    cores::pin(&[theirs])?;
    let mut command = Command::new(program);
    for unknown in variables::unknown_of_environment() {
        // This process has named it.
        command.env_remove(unknown.name);
    }
    let child = command
        .arg("partner")
        .stdin(Stdio::from(OwnedFd::from(far)))
        .stdout(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let child = SpawnedPartner(child);
    cores::pin(&[ours])?;
    Ok((child, Channel::over_pair(near)?))
}

/// The socket to the process that started this one.
///
/// # Errors
///
/// When standard input is no socket.
pub(super) fn inherited() -> Result<Channel> {
    let fd = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|e| Failure::io("take standard input", e))?;
    let stream = UnixStream::from(fd);
    stream
        .peer_addr()
        .map_err(|e| Failure::io("talk to the parent: standard input is no socket", e))?;
    Channel::over_pair(stream)
}

impl SpawnedPartner {
    /// Waits for the partner to end as it should.
    ///
    /// # Errors
    ///
    /// When it ends otherwise.
    pub(super) fn finish(&mut self) -> Result<()> {
        match self.exit_status() {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(Failure::new(format!("the partner ended with {status}"))),
            None => Err(Failure::new("the partner did not end when it should")),
        }
    }

    /// Adds to a failure how the partner died, where that is the cause.
    pub(super) fn explain(&mut self, failure: Failure, closed: bool) -> Failure {
        if !closed {
            return failure;
        }
        match self.exit_status() {
            Some(status) if !status.success() => {
                Failure::new(format!("{failure}; the partner ended with {status}"))
            }
            _ => failure,
        }
    }

    /// How it ended, waiting for that a little: a process closes its files before it is gone.
    fn exit_status(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + EXIT_PATIENCE;
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                _ => return None,
            }
        }
    }
}

impl Drop for SpawnedPartner {
    fn drop(&mut self) {
        // Both fail when it is gone already, as it should be.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
