//! Automatic progress (`FI_PROGRESS_AUTO`, fi_domain(3)): a thread that drives a domain while the
//! application does not.
//!
//! While the application reads queues and counters it drives the domain itself; the thread only
//! checks now and then whether it still does. Once the application has stopped, the thread takes
//! over: it drives the domain until there is no more work, and sleeps on the descriptors that wake
//! all sleepers. The next call of the application that drives the domain ends that sleep, once, and
//! the thread goes back to its checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Backend, DomainShared, DomainState};
use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_system::forked::{Birth, end_threads};
use ferrofabric_system::threads;
use ferrofabric_system::wait::Sleeper;

/// Time between two checks whether the application still drives the domain: messages may wait this
/// long after the application has stopped.
const LOOK: Duration = Duration::from_millis(1);

/// State that the progress thread shares with the application's calls.
#[derive(Debug, Default)]
pub(super) struct AutoProgressState {
    /// Whether there is such a thread.
    pub(super) automatic: bool,
    /// Whether the thread sleeps until it is woken.
    pub(super) sleeps: bool,
    /// Number of calls of the application that drove the domain.
    calls: u64,
}

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
    let mut sleeper = shared.wait.sleeper();
    let mut seen = 0;
    while !stop.load(Ordering::Acquire) {
        let next = look(shared, &mut seen);
        match (next, &sleeper) {
            (ProgressStep::Again, _) => std::thread::yield_now(),
            (ProgressStep::Sleep, Ok(sleeper)) => sleep(sleeper),
            (ProgressStep::Sleep, Err(_)) => {
                std::thread::park_timeout(LOOK);
                sleeper = shared.wait.sleeper();
            }
            (ProgressStep::Wait, _) => std::thread::park_timeout(LOOK),
        }
    }
}

fn sleep(sleeper: &Sleeper<'_>) {
    if sleeper.sleep(None).is_err() {
        std::thread::park_timeout(LOOK);
    }
}

/// The next step of the thread after a check.
enum ProgressStep {
    /// There is more work.
    Again,
    /// No work until the thread is woken.
    Sleep,
    /// The application does the work.
    Wait,
}

fn look<B: Backend>(shared: &DomainShared<B>, seen: &mut u64) -> ProgressStep {
    let Ok(mut state) = shared.lock() else {
        return ProgressStep::Wait;
    };
    state.auto_progress.sleeps = false;
    if state.auto_progress.calls != *seen {
        *seen = state.auto_progress.calls;
        return ProgressStep::Wait;
    }
    let state = &mut *state;
    shared.drive(state);
    match state.arm() {
        Ok(true) => {
            state.auto_progress.sleeps = true;
            ProgressStep::Sleep
        }
        Ok(false) => ProgressStep::Again,
        Err(_) => ProgressStep::Wait,
    }
}

impl<B: Backend> DomainShared<B> {
    /// Counts a call of the application, and wakes the thread if it sleeps.
    #[inline]
    pub(super) fn notify_progress_thread(&self, state: &mut DomainState<B::Transport>) {
        if state.auto_progress.automatic {
            self.wake_progress_thread(state);
        }
    }

    /// The application has driven the domain: from now on the transports wake no sleeper, so this
    /// wakes the thread if it sleeps.
    #[cold]
    pub(super) fn wake_progress_thread(&self, state: &mut DomainState<B::Transport>) {
        let auto_progress = &mut state.auto_progress;
        auto_progress.calls = auto_progress.calls.wrapping_add(1);
        if std::mem::take(&mut auto_progress.sleeps) {
            self.wait.signal();
        }
    }
}
