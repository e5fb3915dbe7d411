//! The workers of a domain: threads that carry out control verbs. A NIC takes about a millisecond
//! for each, so that one thread would connect a thousand peers in four seconds.
//!
//! Service threads have the queue pairs of their lanes made and connected, and get the results as
//! events; an engine has queue pairs destroyed without the domain's lock. A verb that was requested
//! is carried out, and an endpoint that closes waits for its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use ferrofabric_system::forked::{Birth, end_threads};
use ferrofabric_system::locks::{Condvar, Mutex};
use ferrofabric_system::threads;

use crate::qp::RcQp;

/// A verb, and the delivery of its result.
type VerbCall = Box<dyn FnOnce() + Send>;

/// The workers of a domain. They start as verbs need them, and end with the domain.
pub(crate) struct VerbWorkers {
    queue: Arc<VerbQueue>,
    birth: Birth,
}

/// Verbs that wait for a worker, in the order of their requests.
struct VerbQueue {
    state: Mutex<VerbQueueState>,
    changed: Condvar,
}

struct VerbQueueState {
    waiting: VecDeque<VerbCall>,
    threads: Vec<JoinHandle<()>>,
    /// Workers that wait for a verb.
    idle: usize,
    /// Workers at most; 0 since the domain closed.
    limit: usize,
}

impl VerbWorkers {
    /// At most `limit` workers, none of which runs yet.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            queue: Arc::new(VerbQueue {
                state: Mutex::new(VerbQueueState {
                    waiting: VecDeque::new(),
                    threads: Vec::new(),
                    idle: 0,
                    limit,
                }),
                changed: Condvar::new(),
            }),
            birth: Birth::here(),
        }
    }

    /// The access of an endpoint to the workers.
    pub(crate) fn of_endpoint(&self) -> EndpointVerbs {
        EndpointVerbs {
            queue: Arc::clone(&self.queue),
            under_way: Arc::default(),
        }
    }
}

impl std::fmt::Debug for VerbWorkers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("VerbWorkers")
    }
}

impl Drop for VerbWorkers {
    fn drop(&mut self) {
        if !self.birth.is_this_process() {
            // In a child, a thread that does not exist there may hold the lock.
            std::mem::forget(Arc::clone(&self.queue));
            return;
        }
        let threads = self.queue.close();
        end_threads(self.birth, threads, || {
            self.queue.changed.notify_all();
        });
    }
}

impl VerbQueue {
    /// Has a worker carry out a call. Without any worker, the caller carries it out.
    fn submit(self: &Arc<Self>, call: VerbCall) {
        let mut state = self.state.lock();
        if state.waiting.len() >= state.idle && state.threads.len() < state.limit {
            let queue = Arc::clone(self);
            let named = Builder::new().name("ferro-verbs".to_owned());
            match threads::spawn(named, move || queue.work()) {
                Ok(thread) => state.threads.push(thread),
                Err(error) => tracing::debug!("a worker for verbs can not start: {error}"),
            }
        }
        if state.threads.is_empty() {
            drop(state);
            return call();
        }
        state.waiting.push_back(call);
        self.changed.notify_one();
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(call) = state.waiting.pop_front() {
                drop(state);
                call();
                state = self.state.lock();
            } else if state.limit == 0 {
                return;
            } else {
                state.idle += 1;
                state = self.changed.wait(state);
                state.idle -= 1;
            }
        }
    }

    /// No worker starts any more, and those that there are end with the last call that waits.
    fn close(&self) -> Vec<JoinHandle<()>> {
        let mut state = self.state.lock();
        state.limit = 0;
        std::mem::take(&mut state.threads)
    }
}

/// The verbs that an endpoint has requested.
#[derive(Clone)]
pub(crate) struct EndpointVerbs {
    queue: Arc<VerbQueue>,
    under_way: Arc<VerbsUnderWay>,
}

#[derive(Default)]
struct VerbsUnderWay {
    count: Mutex<usize>,
    none: Condvar,
}

/// One of them, until its result is delivered.
struct VerbUnderWay(Arc<VerbsUnderWay>);

impl VerbUnderWay {
    fn begin(all: &Arc<VerbsUnderWay>) -> Self {
        *all.count.lock() += 1;
        Self(Arc::clone(all))
    }
}

impl Drop for VerbUnderWay {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

impl EndpointVerbs {
    /// Has a worker call a verb and deliver its result. The caller does not wait.
    pub(crate) fn request(&self, verb: impl FnOnce() + Send + 'static) {
        let under_way = VerbUnderWay::begin(&self.under_way);
        self.queue.submit(Box::new(move || {
            verb();
            drop(under_way);
        }));
    }

    /// Has a worker destroy a queue pair, if the caller is its last holder. The device may read the
    /// memory of its requests until then, unless they were flushed.
    pub(crate) fn destroy(&self, qp: Arc<RcQp>) {
        if let Some(qp) = Arc::into_inner(qp) {
            self.request(move || drop(qp));
        }
    }

    /// Waits until all verbs are over, and their results are delivered.
    pub(crate) fn wait(&self) {
        let mut count = self.under_way.count.lock();
        while *count > 0 {
            count = self.under_way.none.wait(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Each verb waits for seven others: they are over only if eight run at the same time.
    #[test]
    fn verbs_run_at_the_same_time_as_many_as_there_are_workers() {
        let workers = VerbWorkers::new(8);
        let endpoint = workers.of_endpoint();
        let (together, running) = (Arc::new(Barrier::new(8)), Arc::new(AtomicUsize::new(0)));
        let most = Arc::new(AtomicUsize::new(0));
        for _ in 0..8 * 20 {
            let (together, running, most) = (together.clone(), running.clone(), most.clone());
            endpoint.request(move || {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                together.wait();
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        endpoint.wait();
        assert_eq!(most.load(Ordering::SeqCst), 8);
        assert_eq!(workers.queue.state.lock().threads.len(), 8);
    }

    /// One worker carries verbs out in the order of their requests.
    #[test]
    fn one_worker_keeps_the_order() {
        let workers = VerbWorkers::new(1);
        let endpoint = workers.of_endpoint();
        let seen = Arc::new(Mutex::new(Vec::new()));
        for number in 0..100 {
            let seen = seen.clone();
            endpoint.request(move || seen.lock().push(number));
        }
        endpoint.wait();
        assert_eq!(*seen.lock(), (0..100).collect::<Vec<_>>());
    }

    /// An endpoint waits for its own verbs, also for those that a verb of it requests, and for no
    /// other endpoint's.
    #[test]
    fn an_endpoint_waits_for_its_own_verbs() {
        let workers = VerbWorkers::new(2);
        let (one, other) = (workers.of_endpoint(), workers.of_endpoint());
        let gate = Arc::new(Barrier::new(2));
        other.request({
            let gate = gate.clone();
            move || {
                gate.wait();
            }
        });
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let (again, done) = (one.clone(), done.clone());
            one.request(move || {
                again.request(move || {
                    done.fetch_add(1, Ordering::SeqCst);
                });
            });
        }
        one.wait();
        assert_eq!(done.load(Ordering::SeqCst), 100);
        gate.wait();
        other.wait();
    }

    /// The domain closes: earlier requests are carried out, and later ones, too.
    #[test]
    fn no_verb_is_lost_when_the_domain_closes() {
        for workers in [0, 1, 3] {
            let workers = VerbWorkers::new(workers);
            let endpoint = workers.of_endpoint();
            let done = Arc::new(AtomicUsize::new(0));
            let request = || {
                let done = done.clone();
                endpoint.request(move || {
                    done.fetch_add(1, Ordering::SeqCst);
                });
            };
            (0..50).for_each(|_| request());
            drop(workers);
            assert_eq!(done.load(Ordering::SeqCst), 50);
            request();
            assert_eq!(done.load(Ordering::SeqCst), 51);
        }
    }
}
