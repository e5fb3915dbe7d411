//! The workload of several threads, each with an endpoint and a peer of its own: messages go one
//! way, and each thread sends the next one when its endpoint is done with the last. Our
//! side and the program that drives others share it.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the calling thread looks after something else while the others work.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The endpoint of a thread, and its peer.
pub(crate) trait Party: 'static {
    /// The error of an operation.
    type Error: Send;

    /// Sends a message, and waits until it is over for this side.
    fn send(&mut self) -> Result<(), Self::Error>;

    /// Receives a message, waiting for it.
    fn receive(&mut self) -> Result<(), Self::Error>;

    /// The error for a thread that ended too early.
    fn thread_ended() -> Self::Error;
}

type Task<P> = Box<dyn FnOnce(&mut P) + Send>;

/// Threads, each with a party that no other thread ever uses: it is opened, used and closed there.
pub(crate) struct Crew<P> {
    workers: Vec<Worker<P>>,
}

struct Worker<P> {
    /// Nothing once no more is to be done.
    tasks: Option<Sender<Task<P>>>,
    thread: Option<JoinHandle<()>>,
}

impl<P: Party> Crew<P> {
    /// Starts so many threads, one after the other, and has each open its party.
    pub(crate) fn start(
        count: usize,
        open: impl Fn() -> Result<P, P::Error> + Clone + Send + 'static,
    ) -> Result<Self, P::Error> {
        let mut crew = Self {
            workers: Vec::new(),
        };
        for _ in 0..count {
            let ((tasks, to_do), (tell, opened)) = (channel::<Task<P>>(), channel());
            let open = open.clone();
            let work = move || match open() {
                Ok(mut party) => {
                    let _ = tell.send(Ok(()));
                    to_do.into_iter().for_each(|task| task(&mut party));
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                }
            };
            let thread = std::thread::Builder::new().spawn(work);
            crew.workers.push(Worker {
                tasks: Some(tasks),
                thread: Some(thread.map_err(|_| P::thread_ended())?),
            });
            opened.recv().map_err(|_| P::thread_ended())??;
        }
        Ok(crew)
    }

    /// Has each thread do something with its party, none before all are there; `work` also gets the
    /// thread's number. `meanwhile` is called now and then until all are done.
    pub(crate) fn each<T: Send + 'static>(
        &self,
        mut meanwhile: impl FnMut(),
        work: impl Fn(usize, &mut P) -> Result<T, P::Error> + Send + Sync + 'static,
    ) -> Result<Vec<T>, P::Error> {
        let count = self.workers.len();
        let (start, work) = (Arc::new(Barrier::new(count)), Arc::new(work));
        let (tell, results) = channel();
        for (number, worker) in self.workers.iter().enumerate() {
            let (start, work, tell) = (start.clone(), work.clone(), tell.clone());
            let task = move |party: &mut P| {
                start.wait();
                let _ = tell.send((number, work(number, party)));
            };
            let tasks = worker.tasks.as_ref().ok_or_else(P::thread_ended)?;
            tasks.send(Box::new(task)).map_err(|_| P::thread_ended())?;
        }
        drop(tell);
        let mut done: Vec<Option<Result<T, P::Error>>> = (0..count).map(|_| None).collect();
        while done.iter().any(Option::is_none) {
            match results.recv_timeout(LOOK_EVERY) {
                Ok((number, result)) => done[number] = Some(result),
                Err(RecvTimeoutError::Timeout) => meanwhile(),
                Err(RecvTimeoutError::Disconnected) => return Err(P::thread_ended()),
            }
        }
        done.into_iter().flatten().collect()
    }

    /// Each party sends so many messages, and then waits for one that says that all have come.
    /// Returns the time from the first message of all until the last answer.
    pub(crate) fn send_all(
        &self,
        messages: u64,
        meanwhile: impl FnMut(),
    ) -> Result<Duration, P::Error> {
        let times = self.each(meanwhile, move |_, party| {
            let start = Instant::now();
            for _ in 0..messages {
                party.send()?;
            }
            party.receive()?;
            Ok((start, Instant::now()))
        })?;
        let first = times.iter().map(|(start, _)| *start).min();
        let last = times.iter().map(|(_, end)| *end).max();
        Ok(first.zip(last).map_or(Duration::ZERO, |(a, b)| b - a))
    }

    /// The other side of [`send_all`](Self::send_all).
    pub(crate) fn receive_all(
        &self,
        messages: u64,
        meanwhile: impl FnMut(),
    ) -> Result<(), P::Error> {
        self.each(meanwhile, move |_, party| {
            for _ in 0..messages {
                party.receive()?;
            }
            party.send()
        })?;
        Ok(())
    }
}

impl<P> Drop for Crew<P> {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            worker.tasks = None;
        }
        for thread in self.workers.iter_mut().filter_map(|w| w.thread.take()) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::thread::ThreadId;

    use super::*;

    struct Pipe {
        to: SyncSender<u64>,
        from: Receiver<u64>,
        sent: u64,
        received: u64,
        opened_by: ThreadId,
    }

    impl Party for Pipe {
        type Error = String;

        fn send(&mut self) -> Result<(), String> {
            assert_eq!(self.opened_by, std::thread::current().id());
            self.sent += 1;
            self.to.send(self.sent).map_err(|e| e.to_string())
        }

        fn receive(&mut self) -> Result<(), String> {
            assert_eq!(self.opened_by, std::thread::current().id());
            self.received += 1;
            let number = self.from.recv().map_err(|e| e.to_string())?;
            match number == self.received {
                true => Ok(()),
                false => Err(format!("message {number} out of order")),
            }
        }

        fn thread_ended() -> String {
            "a thread ended".to_owned()
        }
    }

    type Ends = (SyncSender<u64>, Receiver<u64>);

    fn crew(ends: Vec<Ends>) -> Crew<Pipe> {
        let (count, ends) = (ends.len(), Arc::new(Mutex::new(ends)));
        let open = move || {
            let (to, from) = ends.lock().unwrap().remove(0);
            Ok(Pipe {
                to,
                from,
                sent: 0,
                received: 0,
                opened_by: std::thread::current().id(),
            })
        };
        Crew::start(count, open).unwrap()
    }

    fn pipes(count: usize) -> (Vec<Ends>, Vec<Ends>) {
        let pair = |_| {
            let ((to, there), (back, from)) = (sync_channel(4), sync_channel(4));
            ((to, from), (back, there))
        };
        (0..count).map(pair).unzip()
    }

    #[test]
    fn all_messages_of_all_threads_come_and_are_answered() {
        let (senders, receivers) = pipes(3);
        let (senders, receivers) = (crew(senders), crew(receivers));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                receivers.receive_all(100, || ())?;
                receivers.receive_all(7, || ())
            });
            assert!(senders.send_all(100, || ()).unwrap() > Duration::ZERO);
            senders.send_all(7, || ()).unwrap();
            other.join().unwrap().unwrap();
        });
        let counts = |crew: &Crew<Pipe>| crew.each(|| (), |_, p| Ok((p.sent, p.received))).unwrap();
        assert_eq!(counts(&senders), [(107, 2); 3]);
        assert_eq!(counts(&receivers), [(2, 107); 3]);
        let numbers = senders.each(|| (), |number, _| Ok(number)).unwrap();
        assert_eq!(numbers, [0, 1, 2]);
    }

    #[test]
    fn one_that_fails_fails_all() {
        let (senders, mut receivers) = pipes(2);
        // The other side of this one goes away.
        receivers.truncate(1);
        let (senders, receivers) = (crew(senders), crew(receivers));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| receivers.receive_all(10, || ()));
            assert!(senders.send_all(10, || ()).is_err());
            other.join().unwrap().unwrap();
        });
        let failed = Crew::<Pipe>::start(2, || Err("no endpoint".to_owned())).err();
        assert_eq!(failed.as_deref(), Some("no endpoint"));
    }
}
