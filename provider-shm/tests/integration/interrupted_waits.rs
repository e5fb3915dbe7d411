//! Waits of threads to which signals come.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::limits::{PATIENCE, settings};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use ferrofabric_shm::ShmProvider;

/// Signals that have come.
static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

fn domain() -> Arc<dyn Domain> {
    let (provider, settings) = (ShmProvider::new(), settings(&[]));
    let found = provider.discover(&settings);
    provider.open(&found.candidates[0], &settings).unwrap()
}

/// Whether a thread of this process sleeps. One that has ended does not.
fn is_asleep(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    let stat = stat.unwrap_or_default();
    // The name before it may have spaces.
    stat.rsplit(") ").next().unwrap().starts_with('S')
}

/// A wait ends by a completion or its time, whatever signals come meanwhile.
#[test]
fn a_signal_ends_no_wait() {
    // SAFETY: the handler counts, which is allowed there. Without SA_RESTART system calls end.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()),
            0
        );
    }
    let (here, there) = (domain(), domain());
    let mut receiver = OwningEndpoint::open(&*here, &AvAttr::default()).unwrap();
    let mut sender = OwningEndpoint::open(&*there, &AvAttr::default()).unwrap();
    let to_receiver = sender.av().insert(&receiver.name().to_bytes()).unwrap();
    let buffer = || Buffer::new(8).unwrap();
    receiver.trecv(buffer(), FiAddr::UNSPEC, 1, 0, 7).unwrap();
    let waiting = AtomicI32::new(0);
    std::thread::scope(|scope| {
        let received = scope.spawn(|| {
            // SAFETY: takes nothing.
            waiting.store(unsafe { libc::gettid() }, Ordering::SeqCst);
            receiver.wait(Some(PATIENCE)).unwrap()
        });
        let until = Instant::now() + PATIENCE;
        let wait_for = |what: &dyn Fn() -> bool| {
            while !what() && !received.is_finished() {
                assert!(Instant::now() < until);
                std::thread::yield_now();
            }
        };
        wait_for(&|| waiting.load(Ordering::SeqCst) != 0);
        let thread = waiting.load(Ordering::SeqCst);
        for number in 0..10 {
            wait_for(&|| is_asleep(thread));
            if received.is_finished() {
                break;
            }
            // SAFETY: a thread of this process.
            let sent = unsafe { libc::tgkill(libc::getpid(), thread, libc::SIGUSR1) };
            assert_eq!(sent, 0);
            wait_for(&|| SIGNALS.load(Ordering::SeqCst) > number);
        }
        sender.tsend(buffer(), 8, to_receiver, 1, 9).unwrap();
        while !received.is_finished() {
            sender.poll().unwrap();
            std::thread::yield_now();
        }
        let done = received.join().unwrap();
        assert_eq!(done.expect("a signal ended the wait").token, 7);
    });
    assert_eq!(SIGNALS.load(Ordering::SeqCst), 10);
    // Its time ends a wait.
    let nothing = receiver.wait(Some(Duration::from_millis(1))).unwrap();
    assert!(nothing.is_none());
}
