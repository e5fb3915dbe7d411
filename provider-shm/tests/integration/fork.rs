//! A forked child inherits the endpoints of its parent. It may close them, without an effect on the
//! parent, and open its own.

use crate::{owner, party};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_shm::ShmConfig;
use owner::Ep;
use party::{ChildProcess, holdings, role};

/// Time limit of a child.
const SOON: Duration = Duration::from_secs(30);

#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn party() {
    let before = holdings().0;
    match role().as_deref() {
        Some("closes") => the_parent_goes_on(|pair, _| {
            drop(pair);
            assert_eq!(holdings().0, before, "descriptors that stay open");
        }),
        Some("opens") => the_parent_goes_on(|pair, name| {
            drop(pair);
            let mut own = Ep::open(ShmConfig::default());
            let to = own.insert(&name);
            own.tsend(to, 9, &[9; 8], 1).unwrap();
            own.wait().unwrap();
        }),
        _ => {}
    }
}

#[test]
fn a_child_that_closes_inherited_endpoints_does_no_harm() {
    ChildProcess::start("closes").finish();
}

#[test]
fn a_child_opens_endpoints_of_its_own() {
    ChildProcess::start("opens").finish();
}

/// Two endpoints of a process that have a link.
struct ForkedPair {
    a: Ep,
    b: Ep,
    to_b: FiAddr,
}

impl ForkedPair {
    fn open() -> Self {
        let (mut a, b) = (
            Ep::open(ShmConfig::default()),
            Ep::open(ShmConfig::default()),
        );
        let to_b = a.insert(&b.name());
        Self { a, b, to_b }
    }

    fn exchange(&mut self, tag: u64) {
        let mut into = [0u8; 8];
        self.b.trecv(tag, 0, &mut into, 1);
        self.a.tsend(self.to_b, tag, &[tag as u8; 8], 2).unwrap();
        let end = Instant::now() + SOON;
        let (mut sent, mut came) = (false, false);
        while !(sent && came) {
            sent |= self.a.poll().is_some_and(|end| end.unwrap().context == 2);
            came |= self.b.poll().is_some_and(|end| end.unwrap().context == 1);
            assert!(Instant::now() < end, "{tag}: sent {sent}, came {came}");
            std::thread::yield_now();
        }
        assert_eq!(into, [tag as u8; 8]);
    }
}

/// Forks; the child runs `child_does` on the inherited endpoints.
fn the_parent_goes_on(child_does: impl FnOnce(ForkedPair, NativeAddr)) {
    let own = holdings().0;
    let mut pair = ForkedPair::open();
    pair.exchange(1);
    // The service thread may be about to close the connection of the handshake.
    let end = Instant::now() + SOON;
    while holdings().0 != own + 2 * 5 {
        assert!(
            Instant::now() < end,
            "{} descriptors, {own} before",
            holdings().0
        );
        std::thread::yield_now();
    }
    let name = pair.b.name();
    // SAFETY: the threads of this process are the service threads, which hold no lock that the
    // child takes, and the test harness, which waits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let done = catch_unwind(AssertUnwindSafe(|| child_does(pair, name)));
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let status = end_of(child, &mut pair);
    assert_eq!(status, Some(0), "how the child ended");
    // The sweep has checked the peers several times.
    let end = Instant::now() + 5 * ShmConfig::default().sweep_interval;
    while Instant::now() < end {
        pair.a.progress();
        pair.b.progress();
        std::thread::yield_now();
    }
    let failed = [&pair.a, &pair.b].map(|ep| ep.shm.stats().links_failed);
    // The child's link has ended, if there was one.
    assert!(
        failed.iter().sum::<u64>() < pair.b.shm.stats().links,
        "links failed: {failed:?}"
    );
    pair.exchange(2);
}

/// The child's status; `None` if it does not end, and is killed.
fn end_of(child: i32, pair: &mut ForkedPair) -> Option<i32> {
    let end = Instant::now() + SOON;
    let mut status = 0;
    loop {
        pair.b.progress();
        // SAFETY: our own child, and a place for its status.
        if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
            return Some(libc::WEXITSTATUS(status) + libc::WTERMSIG(status));
        }
        if Instant::now() > end {
            // SAFETY: our own child, which has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            return None;
        }
        std::thread::yield_now();
    }
}
