//! Users with the same number in different namespaces must not be confused.

use crate::{owner, party};
use ferrofabric_contracts::error::Errno;
use ferrofabric_shm::ShmConfig;
use owner::Ep;
use party::{ChildProcess, await_line, print_line, role};

/// The roles of the child processes.
#[test]
#[ignore = "run by the other test, in processes of their own"]
fn party() {
    let Some(user) = role() else { return };
    // Only a process with one thread can enter a user namespace.
    // SAFETY: the test harness waits, and holds no lock that the child takes.
    let child = unsafe { libc::fork() };
    if child != 0 {
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        return;
    }
    if !become_unmapped(user.parse().unwrap()) {
        print_line("can not");
    } else {
        let mut ep = Ep::open(ShmConfig::default());
        print_line(ep.name());
        let to = ep.insert(&await_line().parse().unwrap());
        ep.tsend(to, 1, &[1; 8], 1).unwrap();
        match ep.wait() {
            Ok(_) => print_line("sent"),
            Err(error) => print_line(error.errno.0),
        }
        // The other process may still try to connect.
        let _ = std::io::stdin().read_line(&mut String::new());
    }
    // SAFETY: ends the child without running what belongs to the harness.
    unsafe { libc::_exit(0) };
}

/// Becomes a user, in a user namespace that maps no user.
fn become_unmapped(user: u32) -> bool {
    // SAFETY: takes numbers.
    unsafe { libc::setresuid(user, user, user) == 0 && libc::unshare(libc::CLONE_NEWUSER) == 0 }
}

/// Both processes read the same number for themselves and for each other.
#[test]
fn users_with_the_overflow_id_are_not_confused() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: not root");
        return;
    }
    let mut parties = ["12345", "54321"].map(ChildProcess::start);
    let names = parties.each_mut().map(ChildProcess::read_line);
    if names.iter().any(|name| name == "can not") {
        eprintln!("skipped: no user namespaces");
        return;
    }
    parties[0].write_line(&names[1]);
    parties[1].write_line(&names[0]);
    let refused = Errno::EHOSTUNREACH.0.to_string();
    assert_eq!(
        parties.each_mut().map(ChildProcess::read_line),
        [refused.clone(), refused]
    );
}
