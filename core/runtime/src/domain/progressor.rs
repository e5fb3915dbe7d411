//! The thread of automatic progress (`FI_PROGRESS_AUTO`, fi_domain(3)), which drives a domain while
//! the application does not.
//!
//! The thread sleeps on the descriptors that wake all sleepers, with the transports armed. An
//! application that polls ends the sleep and drives the domain itself. The thread then checks now
//! and then whether it still does. [`Attention`] decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::auto_progress::{Attention, AutoProgressState};
use super::{Backend, DomainShared, DomainState};
use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_system::forked::{Birth, end_threads};
use ferrofabric_system::threads;
use ferrofabric_system::wait::Sleeper;

/// Time until the next attempt after an error of the system.
const RETRY: Duration = Duration::from_millis(1);

/// The thread. It ends when this is dropped.
pub(super) struct Progressor<B: Backend> {
    shared: Arc<DomainShared<B>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    birth: Birth,
}

impl<B: Backend> Progressor<B> {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If no thread or no descriptor can be made.
    pub(super) fn start(shared: &Arc<DomainShared<B>>) -> Result<Self> {
        // Makes the descriptor that the thread will take.
        drop(shared.wait.sleeper()?);
        shared.lock_to("open", "domain")?.auto_progress.automatic = true;
        let stop = Arc::new(AtomicBool::new(false));
        let named = std::thread::Builder::new().name("ferro-progress".to_owned());
        let attending = {
            let (shared, stop) = (shared.clone(), stop.clone());
            move || run_progress(&shared, &stop)
        };
        let thread = threads::spawn(named, attending)
            .map_err(|e| Error::from_io(&e, "start", "thread for automatic progress"))?;
        Ok(Self {
            shared: shared.clone(),
            stop,
            thread: Some(thread),
            birth: Birth::here(),
        })
    }
}

impl<B: Backend> Drop for Progressor<B> {
    fn drop(&mut self) {
        let thread = self.thread.take();
        let sleeper = thread.as_ref().map(|thread| thread.thread().clone());
        end_threads(self.birth, thread, || {
            self.stop.store(true, Ordering::Release);
            self.shared.wait.signal();
            if let Some(sleeper) = sleeper {
                sleeper.unpark();
            }
        });
    }
}

fn run_progress<B: Backend>(shared: &DomainShared<B>, stop: &AtomicBool) {
    threads::wake_in_time();
    let mut sleeper = shared.wait.sleeper();
    let mut attention = Attention::new();
    while !stop.load(Ordering::Acquire) {
        match (look(shared, &mut attention), &sleeper) {
            (ProgressStep::Again, _) => {}
            (ProgressStep::Yield, _) => std::thread::yield_now(),
            (ProgressStep::Sleep, Ok(sleeper)) => sleep(sleeper),
            (ProgressStep::Sleep, Err(_)) => {
                std::thread::park_timeout(RETRY);
                sleeper = shared.wait.sleeper();
            }
            (ProgressStep::Wait(time), _) => std::thread::park_timeout(time),
        }
    }
}

fn sleep(sleeper: &Sleeper<'_>) {
    if sleeper.sleep(None).is_err() {
        std::thread::park_timeout(RETRY);
    }
}

/// The next step of the thread after a check.
enum ProgressStep {
    /// There is more work.
    Again,
    /// There is more work, which others hold up. Beside a thread that computes, a yield may cost a
    /// time slice of some milliseconds.
    Yield,
    /// No work until the thread is woken.
    Sleep,
    /// The application does the work for so long, or the domain is in error.
    Wait(Duration),
}

fn look<B: Backend>(shared: &DomainShared<B>, attention: &mut Attention) -> ProgressStep {
    let Ok(mut guard) = shared.lock() else {
        return ProgressStep::Wait(RETRY);
    };
    let state = &mut *guard;
    let now = Instant::now();
    if attention.is_driven(&mut state.auto_progress, now) {
        return ProgressStep::Wait(attention.waits(&state.auto_progress, now));
    }
    let moved = shared.drive(state);
    if attention.was_needless(&state.auto_progress, moved) {
        return ProgressStep::Wait(attention.waits(&state.auto_progress, Instant::now()));
    }
    match state.arm() {
        Ok(true) => {
            attention.sleeps(&mut state.auto_progress, Instant::now());
            ProgressStep::Sleep
        }
        Ok(false) => {
            let goes_on = attention.goes_on(&state.auto_progress, moved);
            // A call of the application may wait for the lock.
            guard.hand_over();
            match goes_on {
                true => ProgressStep::Again,
                false => ProgressStep::Yield,
            }
        }
        Err(_) => ProgressStep::Wait(attention.cannot_sleep(&state.auto_progress, Instant::now())),
    }
}

impl<B: Backend> DomainShared<B> {
    /// Counts a call of the application that drives the domain.
    #[inline]
    pub(super) fn notify_progress_thread(&self, state: &mut DomainState<B::Transport>) {
        let auto_progress = &mut state.auto_progress;
        if auto_progress.automatic {
            match auto_progress.sleeps {
                false => auto_progress.count_call(),
                true => self.call_beside_sleeper(auto_progress),
            }
        }
    }

    /// A call of the application comes while the thread sleeps: it wakes the thread if the
    /// application drives the domain from now on. If not, the transports are armed again after the
    /// call.
    #[cold]
    fn call_beside_sleeper(&self, auto_progress: &mut AutoProgressState) {
        if auto_progress.ends_sleep(Instant::now()) {
            self.wait.signal();
        }
    }
}
