//! The domains of this process. A close waits for peers: some of them may be on domains that only
//! the closing thread drives, so the close drives those, too. And a peer of another process that
//! closes may wait for a domain that no thread of this one drives now.

use std::sync::{Arc, Weak};
use std::thread::Builder;

use ferrofabric_system::locks::Mutex;
use ferrofabric_system::threads;

use super::{Backend, DomainShared};

static DOMAINS: Mutex<Vec<Weak<dyn Neighbour>>> = Mutex::new(Vec::new());

/// A domain that others may drive.
trait Neighbour: Send + Sync {
    /// Drives it, unless a thread uses it now, or may use it without a lock.
    fn drive_if_free(&self);

    /// Moves messages, unless a thread uses it now. Whether any moved.
    fn move_if_free(&self) -> bool;

    /// Ends the use of it. If its handles are gone by now, another thread ends the domain: that
    /// waits for the domain's threads, of which this may be one.
    fn release(self: Arc<Self>);
}

impl<B: Backend> Neighbour for DomainShared<B> {
    fn drive_if_free(&self) {
        if self.is_inherited() {
            return;
        }
        if let Some(mut state) = self.serial.try_lock() {
            self.progress(&mut state);
        }
    }

    fn move_if_free(&self) -> bool {
        if self.is_inherited() {
            return false;
        }
        let Some(mut state) = self.serial.visit() else {
            return false;
        };
        // Without the deferred tasks: the close of an endpoint ends the thread that asks for this.
        state.follow_changes();
        let moved = state.progress() != 0;
        self.rearm(&mut state, moved);
        moved
    }

    fn release(self: Arc<Self>) {
        if let Some(last) = Arc::into_inner(self) {
            let named = Builder::new().name("ferro-ending".into());
            let ending = threads::spawn(named, move || drop(last));
            if let Err(error) = ending {
                tracing::debug!(%error, "no thread for the end of a domain");
            }
        }
    }
}

/// Enters a domain.
pub(super) fn enter<B: Backend>(domain: &Arc<DomainShared<B>>) {
    let domain: Weak<DomainShared<B>> = Arc::downgrade(domain);
    let mut domains = DOMAINS.lock();
    domains.retain(|domain| domain.strong_count() != 0);
    domains.push(domain);
}

/// Drives all domains that can be driven safely. The caller holds no lock of a domain.
pub(super) fn drive() {
    for domain in all() {
        domain.drive_if_free();
        domain.release();
    }
}

/// Moves messages on all domains of this process that no thread uses now, with a lock or without.
/// Whether any moved. The caller holds no lock of a domain.
pub(super) fn move_messages_of_idle_domains() -> bool {
    let mut moved = false;
    for domain in all() {
        moved |= domain.move_if_free();
        domain.release();
    }
    moved
}

fn all() -> impl Iterator<Item = Arc<dyn Neighbour>> {
    let domains = DOMAINS.lock().clone();
    domains.into_iter().filter_map(|domain| domain.upgrade())
}
