//! The domains of this process. The close of a region waits for its peers: some of them may be on
//! domains that the closing thread alone drives, so the close drives those, too.

use std::sync::{Arc, Weak};

use ferrofabric_system::locks::Mutex;

use super::{Backend, DomainShared};

static DOMAINS: Mutex<Vec<Weak<dyn Neighbour>>> = Mutex::new(Vec::new());

/// A domain that others may drive.
trait Neighbour: Send + Sync {
    /// Drives it, unless a thread uses it now, or may use it without a lock.
    fn drive_if_free(&self);
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
    let domains = DOMAINS.lock().clone();
    for domain in domains {
        if let Some(domain) = domain.upgrade() {
            domain.drive_if_free();
        }
    }
}
