//! Child processes for tests: the test binary itself, started again to run one ignored test,
//! `party`, in a role that the environment names. Parent and child exchange lines of text.

use ferrofabric_conformance::this_program::name_beside_this_test;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use ferrofabric_contracts::addr::NativeAddr;

const ROLE: &str = "FERRO_TEST_ROLE";
const MARK: &str = "party: ";

/// A child process. Killed when dropped.
pub struct ChildProcess {
    pub child: Child,
    lines: BufReader<ChildStdout>,
}

impl ChildProcess {
    pub fn start(role: &str) -> Self {
        Self::start_with(role, |_| {})
    }

    pub fn start_with(role: &str, change: impl FnOnce(&mut Command)) -> Self {
        let exe = std::env::current_exe().unwrap();
        let mut command = Command::new(exe);
        change(&mut command);
        Self::run(command, role)
    }

    /// Runs the child below another program, whose last argument is the path of the test binary.
    pub fn start_under(program: &str, args: &[&str], role: &str) -> Self {
        let mut command = Command::new(program);
        command.args(args).arg(std::env::current_exe().unwrap());
        Self::run(command, role)
    }

    fn run(mut command: Command, role: &str) -> Self {
        let mut child = command
            .args([
                &name_beside_this_test("party"),
                "--exact",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    pub fn write_line(&mut self, line: &str) {
        let to = self.child.stdin.as_mut().unwrap();
        writeln!(to, "{line}").unwrap();
        to.flush().unwrap();
    }

    /// The next line of the child; skips the lines of the test harness.
    pub fn read_line(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                self.lines.read_line(&mut line).unwrap() > 0,
                "the child has ended"
            );
            if let Some((_, said)) = line.split_once(MARK) {
                return said.trim().to_owned();
            }
        }
    }

    pub fn read_name(&mut self) -> NativeAddr {
        self.read_line().parse().unwrap()
    }

    /// Sends a signal. After SIGSTOP it returns when all threads of the child have stopped.
    pub fn signal(&self, signal: i32) {
        let child = self.child.id() as i32;
        // SAFETY: our own child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(child, signal) }, 0);
        if signal == libc::SIGSTOP {
            let mut status = 0;
            // SAFETY: as above; there is room for the status.
            let stopped = unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) };
            assert_eq!(stopped, child);
            assert!(libc::WIFSTOPPED(status), "the child has ended: {status:#x}");
        }
    }

    pub fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.child.wait().unwrap();
    }

    /// Waits for an orderly end.
    pub fn finish(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The role of this process, if it is a child.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

pub fn print_line(line: impl std::fmt::Display) {
    println!("{MARK}{line}");
}

pub fn await_line() -> String {
    let mut line = String::new();
    assert!(
        std::io::stdin().read_line(&mut line).unwrap() > 0,
        "the parent has ended"
    );
    line.trim().to_owned()
}

/// Open descriptors and bytes of pair segments of this process.
pub fn holdings() -> (usize, usize) {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let bytes = maps
        .lines()
        .filter(|l| l.contains("ferrofabric-pair"))
        .map(|l| {
            let (from, to) = l.split(' ').next().unwrap().split_once('-').unwrap();
            usize::from_str_radix(to, 16).unwrap() - usize::from_str_radix(from, 16).unwrap()
        })
        .sum();
    (fds, bytes)
}
