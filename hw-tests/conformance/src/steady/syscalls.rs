//! The system calls of a thread: a child process has itself traced (ptrace(2)) for a while, and the
//! parent writes down every call. Each call stops the thread on its way into the kernel, so none is
//! missed, and the thread does the same as without a tracer.

#![allow(
    unsafe_code,
    reason = "ptrace(2), and a system call that there is not, as a mark"
)]

use crate::this_program::name_beside_this_test;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::ends::PATIENCE;

/// No system call has this number: it marks the beginning and the end of the measurement.
const MARK: libc::c_long = 0xfe770;

/// Set in the child.
const CHILD: &str = "FERRO_TEST_TRACED";

/// A system call of the thread that is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemCall {
    /// Its number.
    pub number: u64,
    /// If its first argument is an open descriptor: the file behind it.
    pub file: Option<PathBuf>,
}

/// The record of a thread.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Its system calls, but for those by which a poll that finds nothing yields the processor.
    pub calls: Vec<SystemCall>,
    /// The length of the record: the number of periodic calls grows with it.
    pub took: Duration,
}

fn mark() {
    // SAFETY: there is no such call, and it takes nothing.
    unsafe { libc::syscall(MARK) };
}

/// In the child: does it, with the parent watching.
pub fn measure<R>(body: impl FnOnce() -> R) -> R {
    ptrace::traceme().unwrap();
    raise(Signal::SIGSTOP).unwrap();
    mark();
    let result = body();
    mark();
    result
}

/// Runs the test `name` of this program once more, in a child. There it calls `child`, which is to
/// call [`measure`] once; in the parent this returns what the kernel was called for meanwhile.
pub fn trace(name: &str, child: impl FnOnce()) -> Option<Trace> {
    if std::env::var_os(CHILD).is_some() {
        child();
        return None;
    }
    // The child's parent is this thread, which is the tracer.
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &name_beside_this_test(name),
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CHILD, "1")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let seen = watch(Pid::from_raw(process.id() as i32));
    assert!(process.wait().unwrap().success(), "the child failed");
    Some(seen)
}

/// Watches the thread of a process that has itself traced, from its first stop to the second mark.
/// However long that takes on a busy machine: only a child that does nothing at all for long is
/// ended.
fn watch(process: Pid) -> Trace {
    std::thread::scope(|scope| {
        let (tell, told) = channel();
        scope.spawn(move || end_if_silent(process, &told));
        follow(process, &tell)
    })
}

/// Ends a child that makes no system call for long, so that the thread that waits for it returns.
fn end_if_silent(process: Pid, told: &Receiver<()>) {
    loop {
        match told.recv_timeout(PATIENCE) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                // It may have ended by itself just now.
                let _ = kill(process, Signal::SIGKILL);
                return;
            }
        }
    }
}

fn follow(process: Pid, tell: &Sender<()>) -> Trace {
    let (mut calls, mut marks) = (Vec::new(), 0);
    let mut began = Instant::now();
    loop {
        let stopped = waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD));
        tell.send(()).unwrap();
        match stopped {
            Ok(WaitStatus::Stopped(thread, Signal::SIGSTOP)) if marks == 0 => {
                let options =
                    ptrace::Options::PTRACE_O_TRACESYSGOOD | ptrace::Options::PTRACE_O_EXITKILL;
                ptrace::setoptions(thread, options).unwrap();
                ptrace::syscall(thread, None).unwrap();
            }
            Ok(WaitStatus::Stopped(thread, signal)) => ptrace::syscall(thread, signal).unwrap(),
            Ok(WaitStatus::PtraceSyscall(thread)) => {
                if let Some(call) = entered(thread, process) {
                    if call.number == MARK as u64 {
                        marks += 1;
                        if marks == 1 {
                            began = Instant::now();
                        }
                    } else if marks == 1 && call.number != libc::SYS_sched_yield as u64 {
                        calls.push(call);
                    }
                    if marks == 2 {
                        let took = began.elapsed();
                        ptrace::detach(thread, None).unwrap();
                        return Trace { calls, took };
                    }
                }
                ptrace::syscall(thread, None).unwrap();
            }
            Ok(other) => panic!(
                "the child failed, or did nothing for {PATIENCE:?}: {other:?} after {} calls, the last {:?}",
                calls.len(),
                calls.last()
            ),
            Err(Errno::EINTR) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// The call that the thread is about to make; none on its way back.
fn entered(thread: Pid, process: Pid) -> Option<SystemCall> {
    let mut info = std::mem::MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of_val(&info);
    // SAFETY: the kernel writes no more than that; zeroes are a value of it.
    let info = unsafe {
        let got = libc::ptrace(
            libc::PTRACE_GET_SYSCALL_INFO,
            thread.as_raw(),
            size,
            info.as_mut_ptr(),
        );
        assert!(got > 0, "{}", Errno::last());
        info.assume_init()
    };
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    // SAFETY: on entry it is this part of the union.
    let entry = unsafe { info.u.entry };
    let file = std::fs::read_link(format!("/proc/{process}/fd/{}", entry.args[0])).ok();
    Some(SystemCall {
        number: entry.nr,
        file,
    })
}
