//! Signals of the system (signal(7)), which belong to the application: no thread of ours takes one,
//! and one that comes to a thread in a wait ends that. And those of `fi_cq_signal`.

use crate::{client, support, two};
use std::collections::HashSet;
use std::ffi::c_int;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Instant;

use ferro_fi::abi::{fi_cq_tagged_entry, fi_progress, fi_wait_obj, fid_cntr, fid_cq, fid_eq};
use support::tool::Tool;
use two::{EAGAIN, PATIENCE, Two, everywhere, everywhere_as, next, shape};

/// An object of libfabric's, which a thread may use that did not open it (`FI_THREAD_SAFE`).
#[derive(Clone, Copy)]
struct SharedFid(usize);

impl SharedFid {
    fn get<T>(self) -> *mut T {
        self.0 as *mut T
    }
}

fn open(info: &client::Info<'_>) -> Two {
    let mut waits = shape();
    waits.cq.wait_obj = fi_wait_obj::FI_WAIT_UNSPEC;
    waits.cntr.wait_obj = fi_wait_obj::FI_WAIT_UNSPEC;
    Two::open(info, waits)
}

/// Opens two endpoints with automatic progress, which has a thread of its own, and exchanges a
/// message. A message that has arrived proves that all threads for its peer have started.
fn open_with_all_threads(info: &client::Info<'_>) -> Two {
    // The send may complete after this function returns.
    static MESSAGE: [u8; 100_000] = [1; 100_000];
    // SAFETY: the offer is the test's; both views of the union are the same number.
    unsafe {
        let domain = &mut *(*info.info).domain_attr;
        domain.__bindgen_anon_1.data_progress = fi_progress::FI_PROGRESS_AUTO;
    }
    let two = open(info);
    let mut into = [0u8; MESSAGE.len()];
    two.b.receive(&mut into, 0, 1);
    two.a.senddata(&MESSAGE, 0, two.to_b, 0);
    next(two.b.rx).unwrap();
    two
}

/// The threads of this process.
fn threads() -> HashSet<String> {
    let all = std::fs::read_dir("/proc/self/task").unwrap();
    all.map(|one| one.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// A line of the status of a thread; `None`: it has ended.
fn status(thread: &str, line: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let value = text.lines().find_map(|all| all.strip_prefix(line));
    Some(value.unwrap().trim().to_owned())
}

/// Issue 19 c: a signal of the process goes to any thread that does not block it; so ours block
/// all. Those that no mask can hold are SIGKILL and SIGSTOP, and the two that glibc keeps for
/// itself.
#[test]
fn no_thread_of_ours_takes_a_signal() {
    if Tool::asked_for() == Tool::Valgrind {
        println!("valgrind shows the kernel other masks than those of the program");
        return;
    }
    everywhere("no_thread_of_ours_takes_a_signal", |info| {
        const NEVER_BLOCKED: [u32; 4] = [9, 19, 32, 33];
        let all = NEVER_BLOCKED
            .iter()
            .fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)));
        let before = threads();
        let two = open_with_all_threads(info);
        let ours: Vec<String> = threads().difference(&before).cloned().collect();
        assert!(ours.len() > 1, "{ours:?}");
        for thread in &ours {
            let (Some(name), Some(mask)) = (status(thread, "Name:"), status(thread, "SigBlk:"))
            else {
                continue;
            };
            let mask = u64::from_str_radix(&mask, 16).unwrap();
            assert_eq!(mask & all, all, "{name} blocks {mask:x} alone");
        }
        two.close();
    });
}

/// All signals.
fn all_signals() -> libc::sigset_t {
    // SAFETY: a number in each field, then the system's set.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        all
    }
}

/// Has the threads of a process start with all signals blocked: those of the test harness take
/// none.
fn start_with_signals_blocked(command: &mut Command) {
    let block = || {
        let all = all_signals();
        // SAFETY: the set is there; nobody wants the one before.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, null_mut()) } {
            0 => Ok(()),
            error => Err(std::io::Error::from_raw_os_error(error)),
        }
    };
    // SAFETY: pthread_sigmask may be called in a forked child.
    unsafe { command.pre_exec(block) };
}

/// Issue 19 c: an application that opens endpoints, then blocks all signals and takes them with
/// sigwait(3), ends in its own way when it is sent SIGTERM. A thread that does not block it would
/// take it, and the process would be killed.
#[test]
fn an_application_takes_its_signals_with_sigwait() {
    let test = "an_application_takes_its_signals_with_sigwait";
    everywhere_as(test, start_with_signals_blocked, |info| {
        let all = all_signals();
        let change = |how| {
            // SAFETY: the set is there; nobody wants the one before.
            let changed = unsafe { libc::pthread_sigmask(how, &raw const all, null_mut()) };
            assert_eq!(changed, 0);
        };
        // As an application begins. Threads have the mask of the one that starts them.
        change(libc::SIG_UNBLOCK);
        let two = open_with_all_threads(info);
        change(libc::SIG_BLOCK);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGUSR1] {
            let mut taken = 0;
            // SAFETY: the signal is for this process, and the set and the number are there.
            unsafe {
                assert_eq!(libc::kill(libc::getpid(), signal), 0);
                assert_eq!(libc::sigwait(&raw const all, &raw mut taken), 0);
            }
            assert_eq!(taken, signal);
        }
        two.close();
    });
}

extern "C" fn nothing(_: c_int) {}

/// Makes a thread wait, sends it signals of the system until it returns, and returns the wait's
/// result.
fn interrupted(wait: impl FnOnce() -> isize + Send) -> isize {
    // SAFETY: the handler does nothing, and no other thread has this signal.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(c_int) as usize;
        // As signal(3) installs handlers.
        action.sa_flags = libc::SA_RESTART;
        let installed = libc::sigaction(libc::SIGUSR1, &raw const action, null_mut());
        assert_eq!(installed, 0);
    }
    let (id, over) = (AtomicI32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            // SAFETY: returns a number.
            id.store(unsafe { libc::gettid() }, Ordering::Release);
            let returned = wait();
            over.store(true, Ordering::Release);
            returned
        });
        let until = Instant::now() + PATIENCE;
        while !over.load(Ordering::Acquire) {
            assert!(Instant::now() < until, "no signal ends the wait");
            // It may not sleep yet when the first one comes.
            let thread = id.load(Ordering::Acquire);
            if thread != 0 {
                // SAFETY: a thread of this process, which is not joined yet.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
            }
            std::thread::yield_now();
        }
        waiter.join().unwrap()
    })
}

/// Issue 19 d: a thread that waits returns when a signal comes to it, with the number that fi_cq(3)
/// and fi_eq(3) give; fi_cntr(3) gives none, where libfabric's own providers have that of the
/// signal.
#[test]
fn a_signal_ends_a_wait() {
    everywhere("a_signal_ends_a_wait", |info| {
        let two = open(info);
        let [cq, eq, cntr] = [
            SharedFid(two.a.tx as usize),
            SharedFid(two.opened.eq as usize),
            SharedFid(two.a.received as usize),
        ];
        let of_cq = interrupted(move || {
            let (cq, mut out): (*mut fid_cq, _) = (cq.get(), fi_cq_tagged_entry::default());
            // SAFETY: there is room for one.
            unsafe { call!(cq, ops.sread((&raw mut out).cast(), 1, null(), -1)) }
        });
        assert_eq!(of_cq, EAGAIN);
        let of_eq = interrupted(move || {
            let (eq, mut event, mut out): (*mut fid_eq, _, _) = (eq.get(), 0, [0u8; 64]);
            let at = out.as_mut_ptr().cast();
            // SAFETY: there is room for as much.
            unsafe { call!(eq, ops.sread(&raw mut event, at, 64, -1, 0)) }
        });
        assert_eq!(of_eq, EAGAIN);
        let of_cntr = interrupted(move || {
            let cntr: *mut fid_cntr = cntr.get();
            // SAFETY: the counter is open.
            unsafe { call!(cntr, ops.wait(u64::MAX, -1)) as isize }
        });
        assert_eq!(of_cntr, -(libc::EINTR as isize));
        two.close();
    });
}

/// Issue 19 h: `fi_cq_signal` ends the waits of all threads, and is not left for later waits then.
#[test]
fn a_signal_of_the_queue_ends_all_waits() {
    const WAITERS: usize = 4;
    everywhere("a_signal_of_the_queue_ends_all_waits", |info| {
        let two = open(info);
        let queue = SharedFid(two.b.rx as usize);
        let sread = move |timeout| {
            let (cq, mut out): (*mut fid_cq, _) = (queue.get(), fi_cq_tagged_entry::default());
            // SAFETY: there is room for one.
            unsafe { call!(cq, ops.sread((&raw mut out).cast(), 1, null(), timeout)) }
        };
        let since = Instant::now();
        let ids: [AtomicI32; WAITERS] = Default::default();
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (ids.iter())
                .map(|id| {
                    scope.spawn(move || {
                        // SAFETY: returns a number.
                        id.store(unsafe { libc::gettid() }, Ordering::Release);
                        sread(60_000)
                    })
                })
                .collect();
            for id in &ids {
                let is_asleep = || {
                    let thread = id.load(Ordering::Acquire);
                    let state = status(&thread.to_string(), "State:");
                    thread != 0 && state.is_some_and(|state| state.starts_with('S'))
                };
                while !is_asleep() {
                    assert!(since.elapsed() < PATIENCE / 2, "a waiter does not sleep");
                    std::thread::yield_now();
                }
            }
            // SAFETY: the queue is open.
            assert_eq!(unsafe { call!(two.b.rx, ops.signal()) }, 0);
            for waiter in waiters {
                assert_eq!(waiter.join().unwrap(), EAGAIN);
            }
        });
        assert!(since.elapsed() < PATIENCE / 2, "the signal freed only some");
        let later = Instant::now();
        assert_eq!(sread(20), EAGAIN);
        assert!(later.elapsed().as_millis() >= 20, "a signal was left over");
        two.close();
    });
}
