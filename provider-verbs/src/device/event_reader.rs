//! The reader of a device's asynchronous events: a thread for each open device that has endpoints.
//!
//! The thread sleeps until the device has an event, and passes it to the subscribers of the event's
//! subject. Subscribers only put a message into a queue of their own, so the thread never waits for
//! an endpoint, and no endpoint waits for the thread. The event is acknowledged after that: the
//! destruction of its object waits for as long, so that no subscriber gets the event of an earlier
//! object with the same number.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_system::forked::{Birth, end_threads};
use ferrofabric_system::threads;
use ferrofabric_system::wait::WaitSet;
use ferrofabric_verbs_sys::ibv_event_type;

use super::DeviceContext;
use super::event_counts::EventCounts;
use super::events::{DeviceEvent, EventSubject};

/// The reader of an open device. The thread ends when this value is dropped.
pub(crate) struct EventReader {
    board: Arc<EventBoard>,
    thread: Option<JoinHandle<()>>,
    birth: Birth,
}

/// The state that the thread and the subscribers share.
struct EventBoard {
    context: Arc<DeviceContext>,
    subscribers: Mutex<Subscribers>,
    counts: EventCounts,
    wait: WaitSet,
    closing: AtomicBool,
}

/// The function that gets the events of a subscription. The reader's thread calls it, with the
/// table of subscribers locked: it neither waits nor subscribes, and owns no object of the device.
type Notify = Box<dyn Fn(DeviceEvent) + Send>;

#[derive(Default)]
struct Subscribers {
    by_subject: HashMap<EventSubject, Vec<(u64, Notify)>>,
    next_id: u64,
}

/// A subscription to the events of one subject, until it is dropped. After that no call is under
/// way, and none comes.
pub(crate) struct EventSubscription {
    reader: Arc<EventReader>,
    subject: EventSubject,
    id: u64,
}

impl EventReader {
    /// Starts the reader of a device. Nobody else may read its events.
    ///
    /// # Errors
    ///
    /// The system has no thread or descriptor left.
    pub(crate) fn start(context: &Arc<DeviceContext>) -> Result<Arc<Self>> {
        context.set_events_nonblocking()?;
        let wait = WaitSet::new()?;
        wait.add(context.events_fd())?;
        let board = Arc::new(EventBoard {
            context: context.clone(),
            subscribers: Mutex::default(),
            counts: EventCounts::default(),
            wait,
            closing: AtomicBool::new(false),
        });
        let named = std::thread::Builder::new().name("ferro-events".to_owned());
        let running = board.clone();
        let thread = threads::spawn(named, move || running.run())
            .map_err(|e| Error::from_io(&e, "start", "thread that reads events"))?;
        Ok(Arc::new(Self {
            board,
            thread: Some(thread),
            birth: Birth::here(),
        }))
    }

    /// Calls `notify` with each event of `subject` from now on. A queue pair is named by its number
    /// ([`EventSubject::QueuePair`]); subscribe before it can have an event. `notify` only puts a
    /// message into a queue: it neither waits nor subscribes, and owns no object of the device.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        subject: EventSubject,
        notify: impl Fn(DeviceEvent) + Send + 'static,
    ) -> EventSubscription {
        let mut subscribers = self.board.subscribers();
        let id = subscribers.next_id;
        subscribers.next_id += 1;
        let of_subject = subscribers.by_subject.entry(subject).or_default();
        of_subject.push((id, Box::new(notify)));
        EventSubscription {
            reader: self.clone(),
            subject,
            id,
        }
    }

    /// The device whose events are read.
    pub(crate) fn context(&self) -> &Arc<DeviceContext> {
        &self.board.context
    }

    /// The number of events so far, by kind.
    pub(crate) fn counts(&self) -> &EventCounts {
        &self.board.counts
    }
}

impl std::fmt::Debug for EventReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "reader of the events of {}", self.context().name())
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        end_threads(self.birth, self.thread.take(), || {
            self.board.closing.store(true, Ordering::Release);
            self.board.wait.signal();
        });
    }
}

impl Drop for EventSubscription {
    fn drop(&mut self) {
        // A child of fork has no reader, and its copy of the lock may be taken for ever.
        if !self.reader.birth.is_this_process() {
            return;
        }
        let mut subscribers = self.reader.board.subscribers();
        let Some(of_subject) = subscribers.by_subject.get_mut(&self.subject) else {
            return;
        };
        let at = of_subject.iter().position(|(id, _)| *id == self.id);
        let gone = at.map(|at| of_subject.swap_remove(at));
        if of_subject.is_empty() {
            subscribers.by_subject.remove(&self.subject);
        }
        drop(subscribers);
        drop(gone);
    }
}

impl EventBoard {
    fn subscribers(&self) -> MutexGuard<'_, Subscribers> {
        (self.subscribers.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // A signal or an event since the last look ends the sleep at once.
        while !self.closing.load(Ordering::Acquire) {
            let taken = self.wait.sleep(None).and_then(|_| self.take_events());
            if let Err(error) = taken {
                tracing::error!("no events any more: {error}");
                // A device that was taken out of the machine has no events to read.
                self.deliver(DeviceEvent {
                    kind: ibv_event_type::IBV_EVENT_DEVICE_FATAL,
                    subject: EventSubject::Device,
                });
                return;
            }
        }
    }

    fn take_events(&self) -> Result<()> {
        let deliver = |event| self.deliver(event);
        while self.context.take_event(deliver)?.is_some() {}
        Ok(())
    }

    fn deliver(&self, event: DeviceEvent) {
        let (name, text) = (self.context.name(), self.context.event_text(event.kind));
        match event.is_failure() {
            true => tracing::warn!("event of {name}: {text}, {:?}", event.subject),
            false => tracing::debug!("event of {name}: {text}, {:?}", event.subject),
        }
        if let (ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED, EventSubject::QueuePair(number)) =
            (event.kind, event.subject)
        {
            self.context.last_receives().reached(number);
        }
        let subscribers = self.subscribers();
        let of_subject = subscribers.by_subject.get(&event.subject);
        for (_, notify) in of_subject.into_iter().flatten() {
            notify(event);
        }
        // Last, so that an event that was counted is in the queues of its subscribers.
        self.counts.count(event.kind);
    }
}
