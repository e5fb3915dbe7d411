//! Threads of an application that are cancelled in calls of the provider (pthread_cancel(3)). The
//! threads are those of C code (`cancellation/threads.c`), for Rust has no such thing.

use crate::{child, client, support, two};
use std::ffi::{c_int, c_long, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use client::Info;
use ferro_fi::abi::{fi_cq_err_entry, fi_wait_obj};
use goblin::elf::Elf;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use support::folder::Folder;
use support::has_program;
use support::tool::Tool;
use two::{PATIENCE, Two, count, everywhere, next, shape};

/// As in the C file.
#[repr(C)]
struct Calls {
    cq: *mut c_void,
    cq_read: *const c_void,
    cq_sread: *const c_void,
    eq: *mut c_void,
    eq_sread: *const c_void,
    cntr: *mut c_void,
    cntr_wait: *const c_void,
    ep: *mut c_void,
    send: *const c_void,
    to: u64,
    tag: u64,
    posted: *mut u64,
    read: *mut u64,
}

/// The call that a thread is in when it is cancelled, with the numbers of the C file.
#[derive(Clone, Copy, Debug)]
enum CancelledCall {
    CqSread = 0,
    EqSread = 1,
    CntrWait = 2,
    SendAndRead = 3,
}

/// As C programs are compiled, and as those whose code may be unwound.
const OPTIONS: [&str; 2] = ["-fno-exceptions", "-fexceptions"];

impl CancelledCall {
    const ALL: [Self; 4] = [
        Self::CqSread,
        Self::EqSread,
        Self::CntrWait,
        Self::SendAndRead,
    ];
}

type CancelIn = unsafe extern "C" fn(*const Calls, c_int, c_long) -> c_int;

/// Set where libraries are to be kept for the Soft-RoCE machine.
const KEEP: &str = "FERRO_KEEP_COMPILED";

/// Where it finds them: beside this program, for it sees no other folder of a build for sure.
fn kept(options: &str) -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    program.with_file_name(format!("cancelled-threads{options}.so"))
}

/// The C code, compiled with one of the [`OPTIONS`], and for the tool that this runs under. The
/// Soft-RoCE machine has no compiler, and takes the libraries that the machine around it has
/// compiled.
fn compiled(folder: &Folder, options: &str) -> Library {
    let mut path = kept(options);
    if has_program("cc") {
        path = folder.path().join("threads.so");
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/cancellation/threads.c");
        let status = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-pthread", options])
            .args(Tool::here().compiler_options())
            .arg("-o")
            .args([&path, &source])
            .status()
            .unwrap();
        assert!(status.success());
    }
    // SAFETY: it has no initialisers.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
    library.expect("a C compiler has compiled it")
}

/// For the Soft-RoCE machine, before it starts.
#[test]
fn the_c_code_is_compiled() {
    let folder = Folder::new();
    for options in OPTIONS {
        drop(compiled(&folder, options));
        if has_program("cc") && std::env::var_os(KEEP).is_some() {
            std::fs::copy(folder.path().join("threads.so"), kept(options)).unwrap();
        }
    }
}

/// Pauses before a cancellation: the first until the thread sleeps, in the others it is anywhere.
fn pauses(rounds: usize) -> impl Iterator<Item = c_long> {
    // Any numbers will do that are spread from none to some ten microseconds.
    (0..rounds).map(|round| match round % 4 {
        0 => -1,
        _ => (round * 7919 % 50_000) as c_long,
    })
}

/// The queues of both sides are such that one can wait in calls.
fn open(info: &Info<'_>) -> Two {
    let mut waits = shape();
    waits.cq.wait_obj = fi_wait_obj::FI_WAIT_UNSPEC;
    waits.cntr.wait_obj = fi_wait_obj::FI_WAIT_UNSPEC;
    Two::open(info, waits)
}

/// The work of the threads of a test so far.
#[derive(Default)]
struct ThreadProgress {
    posted: u64,
    read: u64,
}

fn calls(two: &Two, done: &mut ThreadProgress) -> Calls {
    // SAFETY: the objects are open, and their tables full.
    unsafe {
        let (cq, eq, cntr) = (two.a.tx, two.opened.eq, two.a.received);
        let (cq_ops, eq_ops, cntr_ops) = (*(*cq).ops, *(*eq).ops, *(*cntr).ops);
        Calls {
            cq: cq.cast(),
            cq_read: cq_ops.read.unwrap() as *const c_void,
            cq_sread: cq_ops.sread.unwrap() as *const c_void,
            eq: eq.cast(),
            eq_sread: eq_ops.sread.unwrap() as *const c_void,
            cntr: cntr.cast(),
            cntr_wait: cntr_ops.wait.unwrap() as *const c_void,
            ep: two.a.ep.cast(),
            send: (*(*two.a.ep).tagged).send.unwrap() as *const c_void,
            to: two.to_b,
            tag: 1,
            posted: &raw mut done.posted,
            read: &raw mut done.read,
        }
    }
}

/// Has threads cancelled in a call, and checks each time that the objects still work.
fn cancel_in(info: &Info<'_>, call: CancelledCall) {
    let rounds = match std::env::var_os("FERRO_MACHINE") {
        // Both are slow.
        Some(_) => 6,
        None if Tool::here() == Tool::Valgrind => 4,
        None => 40,
    };
    for options in OPTIONS {
        let folder = Folder::new();
        let library = compiled(&folder, options);
        // SAFETY: the signature is that of the C file.
        let cancel_in = unsafe {
            *library
                .get::<CancelIn>(b"cancel_in\0")
                .expect("it is there")
        };
        let two = open(info);
        let mut done = ThreadProgress::default();
        let calls = calls(&two, &mut done);
        for pause in pauses(rounds) {
            let pause = match call {
                // It never sleeps.
                CancelledCall::SendAndRead => pause.max(0),
                _ => pause,
            };
            // SAFETY: the objects are open, and used as FI_THREAD_SAFE allows.
            let step = unsafe { cancel_in(&raw const calls, call as c_int, pause) };
            assert_eq!(step, 0, "{call:?} with {options} after {pause}");
            still_works(&two, &calls);
        }
        two.close();
    }
}

/// A message goes through, behind those that the threads have sent, and no completion is lost.
fn still_works(two: &Two, calls: &Calls) {
    const LAST: u64 = 77;
    let mut into = [0u8; 8];
    two.b.receive(&mut into, LAST, 1);
    // The thread may have sent as much as there is room for.
    (two.a).senddata_beside(&[9; 8], 0, (two.to_b, LAST), || drain(two, calls.tag));
    assert_eq!(next(two.b.rx).map(|entry| entry.tag), Ok(LAST));
    assert_eq!(into, [9; 8]);
    // SAFETY: the numbers stay as long as the test, and no thread of the C code runs now.
    let (posted, read) = unsafe {
        // This message is sent and read in the place of a thread.
        *calls.posted += 1;
        (*calls.posted, &mut *calls.read)
    };
    let until = Instant::now() + PATIENCE;
    while count(two.a.sent) < posted {
        // Sends beyond what the other side keeps wait for receives.
        drain(two, calls.tag);
        assert!(Instant::now() < until, "sends do not complete");
    }
    // A thread is cancelled only where a read has found nothing.
    loop {
        match two::read(two.a.tx) {
            Ok(_) => *read += 1,
            Err(error) => break assert_eq!(error, two::EAGAIN),
        }
    }
    assert_eq!((*read, count(two.a.sent)), (posted, posted), "completions");
    // The messages of the threads do not pile up.
    drain(two, calls.tag);
}

/// Receives what has come with a tag.
fn drain(two: &Two, tag: u64) {
    let mut into = [0u8; 8];
    loop {
        two.b.receive(&mut into, tag, 2);
        if two::read(two.b.rx).is_err() {
            break;
        }
    }
    // SAFETY: as fi_endpoint(3) has it.
    let cancelled =
        unsafe { (*(*two.b.ep).ops).cancel.unwrap()(two.b.ep.cast(), 2 as *mut c_void) };
    assert_eq!(cancelled, 0);
    if next(two.b.rx).is_ok() {
        // It came meanwhile.
        return drain(two, tag);
    }
    let mut error = fi_cq_err_entry::default();
    // SAFETY: there is room for it.
    assert_eq!(
        // SAFETY: the queue is open, and there is room for an entry.
        unsafe { call!(two.b.rx, ops.readerr(&raw mut error, 0)) },
        1
    );
}

/// Issue 19 b: a thread that is cancelled in `fi_cq_sread` ends, and nothing else does.
#[test]
fn in_a_wait_for_a_completion() {
    everywhere("in_a_wait_for_a_completion", |info| {
        cancel_in(info, CancelledCall::CqSread);
    });
}

/// Issue 19 b: the same in `fi_eq_sread`.
#[test]
fn in_a_wait_for_an_event() {
    everywhere("in_a_wait_for_an_event", |info| {
        cancel_in(info, CancelledCall::EqSread);
    });
}

/// Issue 19 b: the same in `fi_cntr_wait`.
#[test]
fn in_a_wait_for_a_count() {
    everywhere("in_a_wait_for_a_count", |info| {
        cancel_in(info, CancelledCall::CntrWait);
    });
}

/// Issue 19 b: the same in a loop of `fi_tsend` and `fi_cq_read`, which never sleeps.
#[test]
fn in_a_loop_of_sends_and_polls() {
    let name = "in_a_loop_of_sends_and_polls";
    two::everywhere_as(name, few_waiting_sends, |info| {
        cancel_in(info, CancelledCall::SendAndRead);
    });
}

/// What the threads send without an end is refused soon, and received soon.
fn few_waiting_sends(command: &mut Command) {
    command.env("FERRO_WAITING_SENDS", "1024");
}

/// Has threads cancelled in each call, with C code and libraries that run under a tool.
fn in_each_call_under(tool: Tool, test: &str) {
    if !child::is_here() && !tool.is_here() {
        return;
    }
    two::under(tool, test, few_waiting_sends, |info| {
        for call in CancelledCall::ALL {
            cancel_in(info, call);
        }
    });
}

/// Issue 19 b: all of it under the address sanitizer.
#[test]
fn in_each_call_under_the_address_sanitizer() {
    in_each_call_under(Tool::Asan, "in_each_call_under_the_address_sanitizer");
}

/// Issue 19 b: all of it in valgrind.
#[test]
fn in_each_call_in_valgrind() {
    in_each_call_under(Tool::Valgrind, "in_each_call_in_valgrind");
}

/// Issue 19 b: the library calls no function that is a cancellation point (pthreads(7)), but where
/// it waits on purpose, or puts cancellation off: threads are joined, names resolved and files
/// made longer in calls on the control path, or in few functions.
#[test]
#[cfg_attr(
    not(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        target_pointer_width = "64"
    )),
    ignore = "there it puts cancellation off on the control path alone"
)]
fn no_system_call_is_a_cancellation_point() {
    const ON_PURPOSE: [&str; 3] = ["epoll_pwait", "ppoll", "pthread_testcancel"];
    const PUT_OFF: [&str; 3] = ["getaddrinfo", "posix_fallocate", "pthread_join"];
    // The list of pthreads(7), and that of glibc's manual ("Cancellation points").
    const POINTS: &str = "
        accept accept4 aio_suspend clock_nanosleep close connect copy_file_range creat
        epoll_pwait epoll_pwait2 epoll_wait fallocate fcntl fdatasync fsync futimes getaddrinfo
        gethostbyname_r getnameinfo getrandom getentropy lockf mq_receive mq_send msgrcv msgsnd msync
        nanosleep open open64 openat openat64 pause poll posix_fallocate ppoll pread pread64 preadv
        preadv2 preadv64 preadv64v2 pselect pthread_cond_clockwait pthread_cond_timedwait
        pthread_cond_wait pthread_join pthread_testcancel pthread_timedjoin_np pwrite pwrite64
        pwritev pwritev2 pwritev64 read readv recv recvfrom recvmmsg recvmsg select sem_clockwait
        sem_timedwait sem_wait send sendmmsg sendmsg sendto sigpause sigsuspend sigtimedwait sigwait
        sigwaitinfo sleep splice sync_file_range system tcdrain tee usleep vmsplice wait wait3 wait4
        waitid waitpid write writev fallocate64 fcntl64 posix_fallocate64
        fopen fopen64 fclose fflush fprintf fputc fputs fread fwrite getc gets perror printf putc
        puts syslog tmpfile vfprintf";
    let program = std::env::current_exe().expect("this program");
    let library = std::fs::read(program.with_file_name("libferro_fi.so")).expect("the library");
    let elf = Elf::parse(&library).expect("an ELF file");
    let imported = elf.dynsyms.iter().filter(|symbol| symbol.is_import());
    let mut points: Vec<&str> = imported
        .filter_map(|symbol| elf.dynstrtab.get_at(symbol.st_name))
        .filter(|name| names_of(name).any(|name| POINTS.split_whitespace().any(|p| p == name)))
        .filter(|name| !PUT_OFF.contains(name))
        .collect();
    points.sort_unstable();
    assert_eq!(points, ON_PURPOSE);
    // Each that the library has in its own way is known here as one, and none of those is imported.
    for redirected in env!("REDIRECTED_CALLS").split(' ') {
        assert!(
            POINTS.split_whitespace().any(|point| point == redirected),
            "{redirected} is missing in the list of this test"
        );
    }
}

/// The names of a function that others are made of: glibc has some for large files, for programs
/// that are fortified, for times of 64 bits, and for itself.
fn names_of(name: &str) -> impl Iterator<Item = &str> {
    let own = name.trim_start_matches("__libc_").trim_start_matches("__");
    let plain = own
        .trim_end_matches("_chk")
        .trim_end_matches("_2")
        .trim_end_matches("_nocancel_nostatus");
    [
        name,
        own,
        plain,
        plain.trim_end_matches("64"),
        plain.trim_end_matches("_time64"),
    ]
    .into_iter()
}

#[test]
fn the_other_names_of_a_function_are_known() {
    for (name, other) in [
        ("__read_chk", "read"),
        ("__open64_2", "open"),
        ("__libc_recv", "recv"),
        ("__ppoll64_chk", "ppoll"),
        ("__recvmmsg_time64", "recvmmsg"),
        ("read", "read"),
    ] {
        assert!(names_of(name).any(|name| name == other), "{name}");
    }
    assert!(names_of("readlink").all(|name| name != "read"));
}
