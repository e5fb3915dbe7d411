//! Takes messages for an application that computes: a peer is about to close, its messages wait for
//! room in a segment, and nobody drives the endpoint that they are for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use ferrofabric_runtime::domain::move_messages_of_idle_domains;
use ferrofabric_system::threads;

/// Calls to progress of one turn: a peer that always has more keeps no thread busy.
const CALLS: usize = 1000;

/// Moves messages in its own thread: a service thread takes no lock of a domain.
#[derive(Default)]
pub(super) struct MessageMover {
    thread: Option<JoinHandle<()>>,
    /// The last turn has moved messages.
    has_moved: Arc<AtomicBool>,
}

impl MessageMover {
    /// Moves the messages of all domains that no thread uses now, unless it is at that. Whether the
    /// turn before moved some: then there may be more soon.
    #[cold]
    pub(super) fn start(&mut self) -> bool {
        if (self.thread.as_ref()).is_some_and(|thread| !thread.is_finished()) {
            return true;
        }
        self.finish();
        let moved_before = self.has_moved.swap(false, Ordering::Relaxed);
        let has_moved = self.has_moved.clone();
        let work = move || {
            for _ in 0..CALLS {
                if !move_messages_of_idle_domains() {
                    break;
                }
                has_moved.store(true, Ordering::Relaxed);
            }
        };
        let named = Builder::new()
            .name("ferro-mover".into())
            .stack_size(256 * 1024);
        match threads::spawn(named, work) {
            Ok(thread) => self.thread = Some(thread),
            // The next sweep tries again.
            Err(error) => tracing::debug!(%error, "no thread for the messages of a closing peer"),
        }
        moved_before
    }

    fn finish(&mut self) {
        if let Some(thread) = self.thread.take() {
            // It has said why it failed.
            let _ = thread.join();
        }
    }
}

impl Drop for MessageMover {
    fn drop(&mut self) {
        self.finish();
    }
}
