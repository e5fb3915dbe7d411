//! Threads that find who listens at the socket addresses of ranges, when one of them is used for the first time
//! (`docs/adr/0036`).

use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;

use super::service::Resolve;
use super::table::AvTable;
use crate::error::{Error, Result};
use crate::types::FiAddr;

/// Threads of one address vector. Each asks for all that have come side by side; what comes meanwhile is the next one's.
const MOST_THREADS: usize = 4;

/// Is told of addresses that threads have put in.
pub(crate) type Announce = Box<dyn Fn(&[FiAddr]) + Send + Sync>;

/// Those of one address vector; they end with this.
pub(crate) struct Askers(Arc<Work>);

struct Work {
    table: Arc<AvTable>,
    resolver: Arc<dyn Resolve>,
    announce: Announce,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Askers {
    /// None yet.
    pub(crate) fn new(table: Arc<AvTable>, resolver: Arc<dyn Resolve>, announce: Announce) -> Self {
        Self(Arc::new(Work {
            table,
            resolver,
            announce,
            threads: Mutex::default(),
        }))
    }

    /// Sees to it that there is one.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: no thread can be had.
    pub(crate) fn start(&self) -> Result<()> {
        let mut threads = self.0.threads.lock();
        match threads.is_empty() {
            true => self.0.add_to(&mut threads),
            false => Ok(()),
        }
    }
}

impl Drop for Askers {
    fn drop(&mut self) {
        self.0.table.told.close();
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

impl Work {
    fn add_to(self: &Arc<Self>, threads: &mut Vec<JoinHandle<()>>) -> Result<()> {
        let work = self.clone();
        let thread = std::thread::Builder::new()
            .name("ferro-ask".to_owned())
            .spawn(move || work.run())
            .map_err(|error| Error::from_io(&error, "start", "thread that resolves addresses"))?;
        threads.push(thread);
        Ok(())
    }

    fn run(self: &Arc<Self>) {
        let told = &self.table.told;
        while let Some(asked) = told.next() {
            self.leave_one_idle();
            let sockets: Vec<_> = asked.entries.iter().map(|(_, at)| *at).collect();
            let found = self.resolver.resolve_all(&sockets, &|| told.is_closing());
            (self.announce)(&self.table.answer(&asked, found));
        }
    }

    /// Somebody is to ask for what comes while this thread waits for answers.
    fn leave_one_idle(self: &Arc<Self>) {
        let mut threads = self.threads.lock();
        if self.table.told.idle() == 0 && threads.len() < MOST_THREADS {
            // Without another one it takes longer.
            let _ = self.add_to(&mut threads);
        }
    }
}
