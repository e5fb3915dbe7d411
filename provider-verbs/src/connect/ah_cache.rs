//! Address handles, one for each path. Threads of their own make the handles: on RoCE that waits
//! for the neighbour's hardware address, for a second and more when it does not answer; on
//! InfiniBand it may wait for the subnet manager. Datagrams for the path wait here meanwhile.
//!
//! The cache knows a path as the endpoint derives it from the peer's address. The path of its
//! handle may have more, from the subnet manager.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};

use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_system::threads;

use crate::ah::{Ah, PortPath};
use crate::cm::known_path;
use crate::pd::Pd;
use crate::port::LocalPort;

/// Paths that are resolved at a time; more wait in line.
const MAX_RESOLVERS: usize = 64;

/// Resolvers reserved for paths that this endpoint sends on. An answer to an unknown source uses
/// only the other resolvers.
const RESERVED_RESOLVERS: usize = 32;

/// Paths that the cache keeps, in use or not.
const FEW: usize = 64;

/// Datagrams that wait for one path; older ones are dropped, as on the wire.
const MAX_WAITING: usize = 8;

/// The state of a path: its handle, or the requests that wait for the handle.
enum HandleState<D> {
    Ready(Arc<Ah>),
    Resolving(Vec<D>),
}

/// The handles of one endpoint. `D` is a datagram that waits for a handle.
pub(crate) struct AhCache<D> {
    pd: Arc<Pd>,
    port: LocalPort,
    entries: HashMap<PortPath, HandleState<D>>,
    line: VecDeque<PortPath>,
    /// Counts the changes of the port's addresses: handles from before the last one are not used.
    generation: u64,
    resolvers: usize,
    /// The number of paths from which the cache drops unused ones.
    tidy_at: usize,
    done: (Sender<Resolved>, Receiver<Resolved>),
    wake: Arc<dyn Fn() + Send + Sync>,
}

/// The result of a resolver's work on one path.
pub(crate) struct Resolved {
    path: PortPath,
    generation: u64,
    handle: Result<Ah>,
}

/// The end of the resolution of a path.
pub(crate) enum PathOutcome<D> {
    /// The path's handle, and the requests that waited for it.
    Ready(Arc<Ah>, Vec<D>),
    /// The path has no handle; the datagrams that waited for it are lost.
    Failed(Error, Vec<D>),
}

impl<D> AhCache<D> {
    /// Makes an empty cache for paths from a port. Resolvers call `wake` when
    /// [`AhCache::resolved`] has a result.
    pub(crate) fn new(pd: &Arc<Pd>, port: LocalPort, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self {
            pd: pd.clone(),
            port,
            entries: HashMap::new(),
            line: VecDeque::new(),
            generation: 0,
            resolvers: 0,
            tidy_at: FEW,
            done: unbounded(),
            wake,
        }
    }

    /// Returns the handle of a path together with the datagram; or keeps the datagram until there
    /// is a handle.
    pub(crate) fn handle_for(&mut self, path: PortPath, datagram: D) -> Option<(Arc<Ah>, D)> {
        match self.entries.get_mut(&path) {
            Some(HandleState::Ready(handle)) => Some((handle.clone(), datagram)),
            Some(HandleState::Resolving(waiting)) => {
                if waiting.len() == MAX_WAITING {
                    waiting.remove(0);
                }
                waiting.push(datagram);
                None
            }
            None => {
                self.entries
                    .insert(path, HandleState::Resolving(vec![datagram]));
                self.line.push_back(path);
                self.start_resolvers();
                None
            }
        }
    }

    /// Whether a resolver is free for the path of an unknown source, without a delay for other
    /// paths.
    pub(crate) fn has_spare_resolver(&self, path: &PortPath) -> bool {
        self.entries.contains_key(path)
            || self.line.is_empty() && self.resolvers + RESERVED_RESOLVERS < MAX_RESOLVERS
    }

    /// Whether [`AhCache::tidy`] is due before there is another path.
    pub(crate) fn is_crowded(&self) -> bool {
        self.entries.len() >= self.tidy_at
    }

    /// Drops the unused paths: those that are not `wanted` and whose handles nobody else holds.
    /// Paths that are being resolved stay.
    pub(crate) fn tidy(&mut self, wanted: &HashSet<PortPath>) {
        let unwanted = |path: &PortPath| !wanted.contains(path);
        let in_line: HashSet<PortPath> = self.line.iter().copied().filter(unwanted).collect();
        self.line.retain(|path| !in_line.contains(path));
        self.entries.retain(|path, entry| {
            wanted.contains(path)
                || match entry {
                    HandleState::Ready(handle) => Arc::strong_count(handle) > 1,
                    HandleState::Resolving(_) => !in_line.contains(path),
                }
        });
        self.tidy_at = FEW.max(2 * self.entries.len());
    }

    /// The handle of a path. `None`: a resolver makes it, and [`AhCache::resolved`] returns it
    /// later.
    pub(crate) fn handle(&mut self, path: PortPath) -> Option<Arc<Ah>> {
        match self.entries.get(&path) {
            Some(HandleState::Ready(handle)) => Some(handle.clone()),
            Some(HandleState::Resolving(_)) => None,
            None => {
                self.entries
                    .insert(path, HandleState::Resolving(Vec::new()));
                self.line.push_back(path);
                self.start_resolvers();
                None
            }
        }
    }

    /// The next path that a resolver has finished.
    pub(crate) fn resolved(&mut self) -> Option<(PortPath, PathOutcome<D>)> {
        let (path, handle) = loop {
            let Resolved {
                path,
                generation,
                handle,
            } = self.done.1.try_recv().ok()?;
            self.resolvers -= 1;
            let is_current = generation == self.generation;
            if !is_current {
                self.line.push_back(path);
            }
            self.start_resolvers();
            if is_current {
                break (path, handle);
            }
        };
        let waiting = match self.entries.remove(&path) {
            Some(HandleState::Resolving(waiting)) => waiting,
            _ => Vec::new(),
        };
        let outcome = match handle {
            Ok(handle) => {
                let handle = Arc::new(handle);
                self.entries
                    .insert(path, HandleState::Ready(handle.clone()));
                PathOutcome::Ready(handle, waiting)
            }
            // The failure is not stored: the next call resolves the path anew.
            Err(error) => PathOutcome::Failed(error, waiting),
        };
        Some((path, outcome))
    }

    /// Drops the handle of a path if nobody else holds it. Returns false if it is in use, or still
    /// being made.
    pub(crate) fn release_unused(&mut self, path: &PortPath) -> bool {
        let unused = match self.entries.get(path) {
            Some(HandleState::Ready(handle)) => Arc::strong_count(handle) == 1,
            Some(HandleState::Resolving(_)) => false,
            None => true,
        };
        if unused {
            self.entries.remove(path);
        }
        unused
    }

    /// The addresses of the port may have changed: all handles are made anew, from the port as it
    /// is now, when they are used next. Holders of the old ones keep them.
    #[cold]
    pub(crate) fn renew(&mut self, port: LocalPort) {
        self.port = port;
        self.generation += 1;
        let is_under_way =
            |_: &PortPath, entry: &mut HandleState<D>| matches!(entry, HandleState::Resolving(_));
        self.entries.retain(is_under_way);
    }

    /// The number of handles that are ready.
    pub(crate) fn ready(&self) -> usize {
        let ready = |entry: &&HandleState<D>| matches!(entry, HandleState::Ready(_));
        self.entries.values().filter(ready).count()
    }

    fn start_resolvers(&mut self) {
        while self.resolvers < MAX_RESOLVERS {
            let Some(path) = self.line.pop_front() else {
                return;
            };
            let (pd, done, wake) = (self.pd.clone(), self.done.0.clone(), self.wake.clone());
            let (port, generation) = (self.port, self.generation);
            let resolve = move || {
                let handle = known_path(&port, &path).and_then(|known| Ah::along(&pd, &known));
                // The cache may be gone by now; the handle then goes too.
                let _ = done.send(Resolved {
                    path,
                    generation,
                    handle,
                });
                wake();
            };
            let named = std::thread::Builder::new().name("ferro-resolve".to_owned());
            self.resolvers += 1;
            if let Err(error) = threads::spawn(named, resolve) {
                let handle = Err(Error::from_io(&error, "start", "resolver thread"));
                let _ = self.done.0.send(Resolved {
                    path,
                    generation,
                    handle,
                });
                (self.wake)();
            }
        }
    }
}
