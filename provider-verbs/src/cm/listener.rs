//! Listening for resolution requests: the endpoints of one domain, each at an address of its own,
//! and the thread that answers for all of them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_protocol::wire::sidr::{ANSWER_BYTES, ServiceKind};
use ferrofabric_runtime::domain::Listening;
use ferrofabric_system::threads;
use ferrofabric_system::wait::WaitSet;
use ferrofabric_verbs_sys::rdma_cm_event_type;

use super::PortHost;
use super::channel::{CmEvent, CmId, EventChannel, IdKey};

/// The thread that answers requests. It ends with the last endpoint.
pub(crate) struct ListenerThread {
    board: Arc<ListenerBoard>,
    thread: Option<JoinHandle<()>>,
}

/// The endpoints that listen, and the answer that each gives.
struct ListenerBoard {
    service: ServiceKind,
    channel: Arc<EventChannel>,
    answers: Mutex<HashMap<IdKey, Answer>>,
    wait: WaitSet,
    closing: AtomicBool,
}

struct Answer {
    qpn: u32,
    private_data: [u8; ANSWER_BYTES],
}

/// One endpoint that listens, until this value is dropped.
struct EndpointListener {
    id: CmId,
    at: SocketAddr,
    listeners: Arc<ListenerThread>,
}

impl ListenerThread {
    /// Starts the thread; no endpoint listens yet.
    ///
    /// # Errors
    ///
    /// There is no connection manager, or the system has no thread left.
    pub(crate) fn start(service: ServiceKind) -> Result<Arc<Self>> {
        let channel = EventChannel::open()?;
        let wait = WaitSet::new()?;
        wait.add(channel.as_fd())?;
        let board = Arc::new(ListenerBoard {
            service,
            channel,
            answers: Mutex::default(),
            wait,
            closing: AtomicBool::new(false),
        });
        let named = std::thread::Builder::new().name("ferro-listen".to_owned());
        let running = board.clone();
        let thread = threads::spawn(named, move || running.run())
            .map_err(|e| Error::from_io(&e, "start", "thread that listens"))?;
        Ok(Arc::new(Self {
            board,
            thread: Some(thread),
        }))
    }

    /// Makes an endpoint listen at a port of this host; with port 0, at any free one.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`: another process listens there.
    pub(crate) fn listen(
        self: &Arc<Self>,
        host: &PortHost,
        port: u16,
        name: &NativeAddr,
    ) -> Result<Box<dyn Listening>> {
        let id = CmId::create(&self.board.channel)?;
        let port = id.bind(host.socket(port))?;
        let at = host.socket(port);
        let answer = Answer {
            qpn: name.verbs.map_or(0, |verbs| verbs.qpn),
            private_data: self.board.service.answer(name),
        };
        self.board.answers().insert(id.key(), answer);
        let listener = EndpointListener {
            id,
            at,
            listeners: self.clone(),
        };
        listener.id.listen(at)?;
        tracing::debug!("{name} listens at {at}");
        Ok(Box::new(listener))
    }
}

impl Listening for EndpointListener {
    fn at(&self) -> SocketAddr {
        self.at
    }
}

impl Drop for EndpointListener {
    fn drop(&mut self) {
        if !self.listeners.is_own() {
            return;
        }
        self.listeners.board.answers().remove(&self.id.key());
    }
}

impl ListenerThread {
    /// Whether the thread is one of this process: a child after `fork` inherits everything but the
    /// thread.
    pub(crate) fn is_own(&self) -> bool {
        self.board.channel.is_own()
    }
}

impl Drop for ListenerThread {
    fn drop(&mut self) {
        if !self.is_own() {
            std::mem::forget(self.thread.take());
            return;
        }
        self.board.closing.store(true, Ordering::Release);
        self.board.wait.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl ListenerBoard {
    fn answers(&self) -> MutexGuard<'_, HashMap<IdKey, Answer>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // A signal or an event since the last look ends the sleep at once.
        while !self.closing.load(Ordering::Acquire) {
            let next = self.wait.sleep(None).and_then(|_| self.serve());
            if let Err(error) = next {
                tracing::error!("endpoints are not found by socket address any more: {error}");
                return;
            }
        }
    }

    /// Answers the requests that have arrived.
    fn serve(&self) -> Result<()> {
        while let Some(event) = self.channel.event()? {
            if event.kind != rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST {
                tracing::debug!("connection manager: event {}", event.kind.0);
                continue;
            }
            if let Err(error) = self.answer(&event) {
                // The peer repeats its request.
                tracing::debug!("{error}");
            }
        }
        Ok(())
    }

    fn answer(&self, event: &CmEvent) -> Result<()> {
        let Some(request) = &event.request else {
            return Ok(());
        };
        match ServiceKind::parse_question(&event.private_data) {
            Ok(service) if service == self.service => {}
            Ok(other) => {
                tracing::debug!("request refused: for {other:?}, this is {:?}", self.service);
                return request.refuse();
            }
            Err(why) => {
                tracing::debug!("request refused: {why}");
                return request.refuse();
            }
        }
        let answers = self.answers();
        match answers.get(&event.id) {
            Some(answer) => request.answer(answer.qpn, &answer.private_data),
            // The endpoint has just closed.
            None => request.refuse(),
        }
    }
}
