//! Programs that end, with all that they start, when their time is over.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// In the environment of a program and of whatever it starts, in process groups and sessions of its
/// own or not.
pub const MARK: &str = "FERRO_TEST_RUN";

/// How long a program may take to end itself when asked to.
const GRACE: Duration = Duration::from_secs(5);

/// A program under way. Dropped, it ends.
pub struct RunningProgram {
    mark: String,
    ended: mpsc::Receiver<ExitStatus>,
    group: i32,
    output: Vec<std::thread::JoinHandle<String>>,
    what: String,
    deadline: Instant,
    over: bool,
}

/// How a program ended.
#[derive(Debug)]
pub struct Finished {
    /// Whether it reported success in time.
    pub success: bool,
    /// The output, standard output first.
    pub output: String,
    /// The command, and how it ended.
    pub what: String,
}

/// Runs a program to its end.
pub fn run(command: Command, patience: Duration) -> Finished {
    start(command, patience).finish()
}

/// Starts a program that has so much time.
pub fn start(mut command: Command, patience: Duration) -> RunningProgram {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let number = RUNS.fetch_add(1, Ordering::Relaxed);
    let mark = format!("{}-{number}", std::process::id());
    let mut child = command
        .env(MARK, &mark)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let output = vec![
        drain(child.stdout.take().unwrap()),
        drain(child.stderr.take().unwrap()),
    ];
    let group = i32::try_from(child.id()).unwrap();
    RunningProgram {
        mark,
        ended: wait(child),
        group,
        output,
        what: format!("{command:?}"),
        deadline: Instant::now() + patience,
        over: false,
    }
}

impl RunningProgram {
    /// Waits for its end, or ends it when its time is over.
    pub fn finish(mut self) -> Finished {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let status = self.ended.recv_timeout(left).ok();
        self.end();
        let output = std::mem::take(&mut self.output);
        let how = status.map_or("its time is over".to_owned(), |s| s.to_string());
        Finished {
            success: status.is_some_and(|s| s.success()),
            output: output.into_iter().map(|o| o.join().unwrap()).collect(),
            what: format!("{} ({how})", self.what),
        }
    }

    /// Ends the processes that are left: SIGTERM makes a launcher end its processes; a process that
    /// goes on is killed.
    fn end(&mut self) {
        if self.over {
            return;
        }
        self.over = true;
        if alive(&self.mark).is_empty() {
            return;
        }
        // SAFETY: a system call without memory.
        unsafe { libc::kill(-self.group, libc::SIGTERM) };
        let _ = self.ended.recv_timeout(GRACE);
        end_marked(&self.mark);
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.end();
    }
}

impl Finished {
    /// Hands out what a program said that ended well.
    ///
    /// # Panics
    ///
    /// When it did not.
    pub fn expect_success(self) -> String {
        assert!(self.success, "{}\n{}", self.what, self.output);
        self.output
    }
}

fn wait(mut child: Child) -> mpsc::Receiver<ExitStatus> {
    let (tell, ended) = mpsc::channel();
    std::thread::spawn(move || {
        if let Ok(status) = child.wait() {
            // Nobody may be interested any more.
            let _ = tell.send(status);
        }
    });
    ended
}

fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut said = Vec::new();
        let _ = pipe.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    })
}

/// Kills all that carry a mark.
pub fn end_marked(mark: &str) {
    loop {
        let left = alive(mark);
        if left.is_empty() {
            return;
        }
        for process in left {
            // SAFETY: a system call without memory.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
        std::thread::yield_now();
    }
}

/// The processes that carry a mark and have not ended: a zombie's environment is empty.
fn alive(mark: &str) -> Vec<i32> {
    let entry = format!("{MARK}={mark}");
    let carries = |process: &Path| {
        std::fs::read(process.join("environ"))
            .is_ok_and(|variables| variables.split(|b| *b == 0).any(|v| v == entry.as_bytes()))
    };
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter(|process| carries(&process.path()))
        .filter_map(|process| process.file_name().to_str()?.parse().ok())
        .collect()
}
