//! Asynchronous insertion (`FI_EVENT`, fi_av(3)), for address vectors that are bound to an event
//! queue: threads that resolve the addresses of a call, insert them, and write the call's events.
//!
//! Each call ends with one completion event, after an error event for each address that failed; so
//! do calls that are cancelled because the address vector is closed. In a TABLE the addresses of a
//! call have indices from the moment it begins, so calls that run side by side get theirs in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::format::{self, Naming, ParsedAddr};
use super::resolution::{admit, admit_nodes};
use super::resolver_pool::ResolverPool;
use super::resolving::AddrRun;
use super::service::Services;
use super::table::{AvTable, Reserved};
use ferrofabric_contracts::addr::{Address, AuthKey};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::peer::{AV_COMPLETE, Done, EqError, PeerEq};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::forked::{Birth, end_threads};
use ferrofabric_system::locks::{Condvar, Mutex};
use ferrofabric_system::threads;

/// Calls of one address vector that are worked at at a time; more wait in line.
const MOST_THREADS: usize = 4;

/// Told of each address of a call by its number in the call, before the events of the call.
pub type InsertReport = Box<dyn FnMut(usize, Result<FiAddr, Errno>) + Send>;

/// The addresses that an asynchronous call inserts.
#[derive(Clone, Debug)]
pub enum InsertRequest {
    /// Addresses in the domain's `addr_format`.
    Listed(Vec<Vec<u8>>),
    /// Endpoints by name.
    Services(Services),
}

impl InsertRequest {
    /// The range that this is, if it is one.
    pub(crate) fn range(&self) -> Option<&Services> {
        match self {
            Self::Services(services) if services.is_range() => Some(services),
            _ => None,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Listed(names) => names.len(),
            Self::Services(services) => services.len(),
        }
    }

    /// The addresses of all of them, in order.
    fn addresses<'a>(
        &'a self,
        naming: &'a Naming,
    ) -> Box<dyn Iterator<Item = Result<Address>> + 'a> {
        match self {
            Self::Listed(names) => {
                Box::new(names.iter().map(|name| format::parse(naming.format, name)))
            }
            Self::Services(services) => Box::new(services.addresses(*naming)),
        }
    }
}

/// The authorization keys of a call's addresses, or why they have none; `None` where addresses need
/// none.
pub type RequestKeys = Option<Vec<Result<AuthKey>>>;

/// Called with the addresses that an insertion has added.
pub type OnInserted = Box<dyn Fn(&[FiAddr]) + Send + Sync>;

/// The table that the threads insert into, with all that they need for it.
pub struct InsertContext {
    /// The table.
    pub table: Arc<AvTable>,
    /// How the addresses look.
    pub naming: Naming,
    /// Resolves socket addresses, in the background.
    pub pool: Option<Arc<ResolverPool>>,
    /// Ranges are resolved when they are used.
    pub keeps_ranges: bool,
    /// Called with the addresses that were put in.
    pub announce: OnInserted,
}

/// The insertions of one address vector that are under way.
///
/// Calls begin in order; up to four of them run side by side.
pub struct AsyncInserter {
    work: Arc<InsertWorker>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    birth: Birth,
}

struct InsertWorker {
    place: InsertContext,
    events: Arc<dyn PeerEq>,
    source: u64,
    line: Mutex<CallQueue>,
    came: Condvar,
}

#[derive(Default)]
struct CallQueue {
    calls: VecDeque<QueuedInsert>,
    idle: usize,
    closing: bool,
}

struct QueuedInsert {
    wanted: InsertRequest,
    keys: RequestKeys,
    /// In a table: the entries that the addresses get.
    reserved: Vec<Reserved>,
    /// The IDs that completions report for the addresses; empty where they report the addresses.
    user_ids: Vec<FiAddr>,
    context: u64,
    report: InsertReport,
}

impl AsyncInserter {
    /// Nothing is under way. Events go to `events`, as of the object `source`.
    pub fn new(place: InsertContext, events: Arc<dyn PeerEq>, source: u64) -> Self {
        Self {
            work: Arc::new(InsertWorker {
                place,
                events,
                source,
                line: Mutex::default(),
                came: Condvar::new(),
            }),
            threads: Mutex::default(),
            birth: Birth::here(),
        }
    }

    /// Begins a call. In a table its addresses get the lowest indices that are free now.
    ///
    /// # Errors
    ///
    /// `EACCES`: the table was opened for reading only. `ENOMEM`, `ENOSPC`: it can not grow.
    /// `ETIMEDOUT`: its turn can not be had. `EAGAIN`: no thread can be had.
    pub fn begin(
        &self,
        wanted: InsertRequest,
        keys: RequestKeys,
        user_ids: Vec<FiAddr>,
        context: u64,
        report: InsertReport,
    ) -> Result<()> {
        let table = &self.work.place.table;
        table.check_writable("insert into")?;
        let reserved = match table.is_indexed() {
            true => table.reserve(wanted.len())?,
            false => Vec::new(),
        };
        let mut threads = self.threads.lock();
        let mut line = self.work.line.lock();
        if line.idle <= line.calls.len() && threads.len() < MOST_THREADS {
            let work = self.work.clone();
            let named = std::thread::Builder::new().name("ferro-insert".to_owned());
            let thread = threads::spawn(named, move || work.run());
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => {
                    drop(line);
                    table.release(reserved);
                    return Err(Error::from_io(&error, "start", "thread for insertions"));
                }
                // The others do it.
                Err(_) => {}
            }
        }
        line.calls.push_back(QueuedInsert {
            wanted,
            keys,
            reserved,
            user_ids,
            context,
            report,
        });
        drop(line);
        self.work.came.notify_one();
        Ok(())
    }
}

impl Drop for AsyncInserter {
    /// A call that is under way comes to its end, one that has not begun is cancelled; both write
    /// their events.
    fn drop(&mut self) {
        let Self {
            work,
            threads,
            birth,
        } = self;
        end_threads(*birth, threads.get_mut().drain(..), || {
            work.line.lock().closing = true;
            work.came.notify_all();
        });
    }
}

impl InsertWorker {
    fn run(&self) {
        loop {
            let mut line = self.line.lock();
            line.idle += 1;
            while line.calls.is_empty() && !line.closing {
                line = self.came.wait(line);
            }
            line.idle -= 1;
            let Some(call) = line.calls.pop_front() else {
                return;
            };
            drop(line);
            self.insert(call);
        }
    }

    fn insert(&self, mut call: QueuedInsert) {
        let table = &self.place.table;
        let range = call.wanted.range().filter(|_| self.place.keeps_ranges);
        let inserted: Box<dyn Iterator<Item = Result<FiAddr>>> = match (range, &self.place.pool) {
            (Some(range), Some(pool)) => Box::new(self.insert_range(range, pool, &call.reserved)),
            _ => {
                let found = self.find(&call.wanted, call.keys.take());
                Box::new(self.enter(found, &call.reserved).into_iter())
            }
        };
        let mut count = 0;
        let mut failed = Vec::new();
        for (i, one) in inserted.enumerate() {
            let one = one.and_then(|addr| match call.user_ids.get(i) {
                Some(id) => table.tag(addr, *id).map(|()| addr),
                None => Ok(addr),
            });
            (call.report)(i, one.as_ref().map(|addr| *addr).map_err(Error::errno));
            match one {
                Ok(_) => count += 1,
                Err(error) => failed.push((i as u64, error)),
            }
        }
        let (source, context) = (self.source, call.context);
        for (data, error) in failed {
            self.events.write_error(EqError {
                source,
                context,
                data,
                errno: error.errno(),
                prov_errno: error.errno().0,
                err_data: error.to_string().into_bytes().into(),
            });
        }
        let done = Done {
            source,
            context,
            data: count,
        };
        self.events.write_done(AV_COMPLETE, &done);
    }

    /// Enters a range, whose endpoints are resolved when they are used.
    fn insert_range<'a>(
        &'a self,
        range: &Services,
        pool: &ResolverPool,
        reserved: &[Reserved],
    ) -> impl Iterator<Item = Result<FiAddr>> + use<'a> {
        let closing = || self.line.lock().closing;
        let table = &self.place.table;
        let runs = range
            .nodes(&self.place.naming, &closing)
            .and_then(|mut nodes| {
                pool.start()?;
                admit_nodes(&mut nodes, pool.resolver());
                Ok(table.insertion()?.insert_range(&nodes, reserved))
            });
        let runs = runs.unwrap_or_else(|error| {
            table.release(reserved.iter().copied());
            vec![AddrRun::failed(range.len(), error)]
        });
        table.outcomes(runs)
    }

    /// Resolves the request to endpoints; an address whose turn has not come when the address
    /// vector is being closed is cancelled.
    fn find(&self, wanted: &InsertRequest, keys: RequestKeys) -> Vec<Result<ParsedAddr>> {
        let closing = || self.line.lock().closing;
        let naming = &self.place.naming;
        let mut addresses = wanted.addresses(naming);
        let mut keys = keys.map(Vec::into_iter);
        let pool = self.place.pool.as_ref();
        let resolver = pool.map(|pool| pool.resolver());
        let sought = (0..wanted.len()).map(|i| {
            if closing() {
                return Err(
                    Error::new(Errno::ECANCELED, "insert", format!("address {i}"))
                        .mend("the address vector is being closed"),
                );
            }
            let none = || Err(Error::new(Errno::EINVAL, "insert", format!("address {i}")));
            let addr = addresses.next().unwrap_or_else(none);
            let sought = match &mut keys {
                None => naming.target(&addr?).map(ParsedAddr::from),
                Some(keys) => {
                    let key = keys.next().unwrap_or_else(|| Err(keyless()))?;
                    naming.with_key(&addr?, key)
                }
            };
            let sought = admit(sought?, resolver)?;
            if let (None, Some(pool)) = (sought.target.endpoint(), pool) {
                pool.start()?;
            }
            Ok(sought)
        });
        sought.collect()
    }

    /// Enters what was found, all in one turn.
    fn enter(&self, found: Vec<Result<ParsedAddr>>, reserved: &[Reserved]) -> Vec<Result<FiAddr>> {
        let mut insertion = match self.place.table.insertion() {
            Ok(insertion) => insertion,
            Err(error) => {
                self.place.table.release(reserved.iter().copied());
                return found.iter().map(|_| Err(error.clone())).collect();
            }
        };
        let mut new = Vec::new();
        let mut entered = Vec::new();
        for (i, found) in found.into_iter().enumerate() {
            let placed = insertion.enter(found, reserved.get(i).copied());
            new.extend(placed.as_ref().ok().filter(|p| p.new).map(|p| p.addr));
            entered.push(placed.map(|placed| placed.addr));
        }
        // The call is over: the entries of addresses that failed are free again, and others may
        // insert.
        drop(insertion);
        (self.place.announce)(&new);
        entered
    }
}

/// There are more addresses than keys.
pub fn keyless() -> Error {
    Error::new(
        Errno::EINVAL,
        "insert",
        "address without an authorization key",
    )
    .mend("give a key for each address")
}

#[cfg(test)]
mod tests;
