//! Threads that resolve the entries of an address vector which were inserted by socket addresses
//! (`docs/adr/0042`).
//!
//! There is no thread before the first such entry. From then on one thread is idle, up to the most
//! threads, so an entry need not wait for the answers to others. Dropping the pool cancels all
//! attempts and joins the threads; a child of fork does neither.

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use super::resolving::{AttemptOutcome, RefoundEndpoint};
use super::service::{Closing, Resolve, ResolveRequest};
use super::table::AvTable;
use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::forked::Birth;
use ferrofabric_system::locks::Mutex;
use ferrofabric_system::threads;

/// Threads of one address vector. Each resolves many entries side by side; entries that come
/// meanwhile are the next one's.
const MOST_THREADS: usize = 4;

/// Called with addresses that threads have put in, the lost ones that they have found again, and
/// whether sends wait for a resolution that is over.
pub(crate) type OnResolved = Box<dyn Fn(&[FiAddr], &[RefoundEndpoint], bool) + Send + Sync>;

/// The resolver threads of one address vector; they end with this.
pub struct ResolverPool(Arc<PoolShared>);

struct PoolShared {
    table: Arc<AvTable>,
    resolver: Arc<dyn Resolve>,
    announce: OnResolved,
    /// Held from before an address is in the table until it is announced.
    publishing: Mutex<()>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    birth: Birth,
    /// There when the first thread is.
    closing: OnceLock<Closing>,
}

impl ResolverPool {
    /// None yet.
    pub fn new(table: Arc<AvTable>, resolver: Arc<dyn Resolve>, announce: OnResolved) -> Self {
        table.set_patience(resolver.patience());
        table.set_served();
        Self(Arc::new(PoolShared {
            table,
            resolver,
            announce,
            publishing: Mutex::default(),
            threads: Mutex::default(),
            birth: Birth::here(),
            closing: OnceLock::new(),
        }))
    }

    /// The resolver that its threads use.
    pub fn resolver(&self) -> &dyn Resolve {
        &*self.0.resolver
    }

    /// Returns once each address that threads have put into the table is announced. So an
    /// application that finds an address there gets the messages of that peer with their source.
    pub fn catch_up(&self) {
        // A child may find the lock held for ever.
        if self.0.birth.is_this_process() {
            drop(self.0.publishing.lock());
        }
    }

    /// Sees to it that there is a thread.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: no thread can be had. When no descriptor can.
    pub fn start(&self) -> Result<()> {
        let mut threads = self.0.threads.lock();
        if !threads.is_empty() {
            return Ok(());
        }
        let closing = Closing::new()?;
        let _ = self.0.closing.set(closing);
        self.0.add_to(&mut threads)
    }
}

impl Drop for ResolverPool {
    fn drop(&mut self) {
        if !self.0.birth.is_this_process() {
            // A child has none of the threads, and may find their locks held for ever.
            std::mem::forget(Arc::clone(&self.0));
            return;
        }
        self.0.table.close_unresolved();
        if let Some(closing) = self.0.closing.get() {
            closing.close();
        }
        // One may have started another before it ended.
        loop {
            let thread = self.0.threads.lock().pop();
            let Some(thread) = thread else {
                return;
            };
            let _ = thread.join();
        }
    }
}

impl PoolShared {
    fn add_to(self: &Arc<Self>, threads: &mut Vec<JoinHandle<()>>) -> Result<()> {
        let work = self.clone();
        let named = std::thread::Builder::new().name("ferro-resolve".to_owned());
        let thread = threads::spawn(named, move || work.run())
            .map_err(|error| Error::from_io(&error, "start", "thread that resolves addresses"))?;
        threads.push(thread);
        Ok(())
    }

    fn run(self: &Arc<Self>) {
        let Some(closing) = self.closing.get() else {
            return;
        };
        while let Some(batch) = self.table.next_batch() {
            self.keep_one_idle();
            if batch.is_awaited {
                (self.announce)(&[], &[], true);
            }
            let requests: Vec<ResolveRequest> = batch.all.iter().map(|one| one.request).collect();
            let mut report = |number: usize, found| {
                let Some(attempt) = batch.all.get(number) else {
                    return;
                };
                let _publishing = self.publishing.lock();
                let AttemptOutcome {
                    new,
                    refound,
                    is_awaited,
                } = self.table.complete_attempt(attempt, found);
                if new.is_some() || !refound.is_empty() || is_awaited {
                    (self.announce)(new.as_slice(), &refound, is_awaited);
                }
            };
            self.resolver.resolve_all(&requests, closing, &mut report);
            self.table.complete_batch(&batch);
        }
    }

    /// Another thread has to resolve entries that come while this one waits for answers.
    fn keep_one_idle(self: &Arc<Self>) {
        let mut threads = self.threads.lock();
        if self.table.idle_threads() == 0 && threads.len() < MOST_THREADS {
            // Without another one it takes longer.
            let _ = self.add_to(&mut threads);
        }
    }
}
