//! The service thread of an endpoint. It sleeps until a control packet, a request of the engine, a
//! resolved path or a timer wakes it, so peers get their answers while the application computes.

mod events;
mod lanes;
mod paths;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use nix::sys::eventfd::{EfdFlags, EventFd};

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_protocol::handshake::{
    ConnectLane, Connector, EndReason, HandshakeAction, HandshakeConfig, LaneKey,
};
use ferrofabric_protocol::wire::control::{CONTROL_BYTES, LaneKind};
use ferrofabric_protocol::{PeerKey, Time};
use ferrofabric_runtime::domain::MessageMover;
use ferrofabric_system::clock::{Clock, ClockSleeper};
use ferrofabric_system::forked::Birth;
use ferrofabric_system::pending_flag::PendingFlag;
use ferrofabric_system::threads;
use ferrofabric_system::wait::WaitSet;

use super::ah_cache::AhCache;
use super::datagrams::{ControlQueuePair, LOOKS};
use super::{LaneCarrier, ToEngine, ToService, UdDestination};
use crate::ah::PortPath;
use crate::device::{EventReader, EventSubscription};
use crate::pd::Pd;
use crate::port::LocalPort;
use crate::qp::{QpConfig, RcQp};
use crate::workers::EndpointVerbs;

use events::EventQueues;
use lanes::LaneVerbs;

/// The interval at which the service thread requests a probe of idle lanes from the engine.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// How often the thread polls when a wake-up may be missing because a queue or a descriptor failed.
const WATCH_INTERVAL: Duration = Duration::from_millis(5);

/// The least time between two requests of peers to drive the endpoint that count.
const BETWEEN_DRIVES: Duration = Duration::from_millis(1);

/// The resources and settings of the service thread.
pub(crate) struct ServiceConfig {
    /// The protection domain of the endpoint.
    pub(crate) pd: Arc<Pd>,
    /// The reader of the device's events.
    pub(crate) events: Arc<EventReader>,
    /// The port that the endpoint sends from.
    pub(crate) port: LocalPort,
    /// The configuration of each lane's queue pair.
    pub(crate) lane: QpConfig,
    /// RC queue pairs at most.
    pub(crate) max_lanes: usize,
    /// Number of the queue pair that lanes of the UD kind go through, if there is one.
    pub(crate) data_qpn: Option<u32>,
    /// The rights of peers through a lane.
    pub(crate) access: crate::mr::Access,
    /// The clock of its timers.
    pub(crate) clock: Clock,
    /// The workers that carry out its control verbs.
    pub(crate) verbs: EndpointVerbs,
    /// The settings of the handshake.
    pub(crate) handshake: HandshakeConfig,
}

/// The engine's end of the service thread. Closing or dropping it closes the endpoint's lanes,
/// sends the last messages to the peers (for at most the close timeout) and ends the thread.
pub(crate) struct ServiceHandle {
    requests: Sender<ToService>,
    wait: Arc<WaitSet>,
    inbox: Arc<Inbox>,
    thread: Option<JoinHandle<()>>,
    /// The number of packets that the session with each peer has received, for the last message to
    /// the peer.
    received: HashMap<PeerKey, u32>,
    /// The request to close was passed on.
    is_closing: bool,
    events: Arc<EventReader>,
    _subscriptions: Vec<EventSubscription>,
    verbs: EndpointVerbs,
    birth: Birth,
}

/// Messages from the service thread, and from the reader of events, that the engine has not read
/// yet.
struct Inbox {
    messages: (Sender<ToEngine>, Receiver<ToEngine>),
    filled: PendingFlag,
    wake: EventFd,
    /// RC queue pairs made so far.
    queue_pairs: AtomicU64,
}

impl ServiceHandle {
    /// Starts the thread for the endpoint `me`, which owns `datagrams`.
    ///
    /// # Errors
    ///
    /// The system has no thread or descriptor left.
    pub(crate) fn start(
        me: PeerKey,
        datagrams: ControlQueuePair,
        config: ServiceConfig,
    ) -> Result<Self> {
        let wait = Arc::new(WaitSet::new()?);
        wait.add(datagrams.fd())?;
        let (requests, requested) = unbounded();
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| Error::new(Errno(e as i32), "create", "event descriptor"))?;
        let inbox = Arc::new(Inbox {
            messages: unbounded(),
            filled: PendingFlag::new(),
            wake,
            queue_pairs: AtomicU64::new(0),
        });
        let waker = {
            let wait = wait.clone();
            Arc::new(move || wait.signal())
        };
        let handles = AhCache::new(&config.pd, config.port, waker);
        let sleeper = config.clock.sleeper(&wait);
        let queues = EventQueues::new(&requests, &wait, &inbox);
        let subscriptions = queues.subscribe(&config, datagrams.queue_id());
        if !events::is_port_active(&config) {
            // It went down before the subscription.
            let _ = requests.send(ToService::PortDown);
        }
        let events = config.events.clone();
        let verbs = config.verbs.clone();
        let worker = ServiceWorker {
            verbs: LaneVerbs::new(&verbs, &wait, config.events.context()),
            lanes: HashMap::new(),
            rc_lanes: 0,
            joining: Vec::new(),
            retiring: Vec::new(),
            retired: HashSet::new(),
            connector: Connector::new(me, config.handshake),
            config,
            datagrams,
            handles,
            actions: VecDeque::new(),
            requests: requested,
            queues,
            inbox: inbox.clone(),
            mover: MessageMover::default(),
            drive_due: None,
            sleeper,
        };
        let named = std::thread::Builder::new().name("ferro-service".to_owned());
        let thread = threads::spawn(named, move || worker.run())
            .map_err(|e| Error::from_io(&e, "start", "service thread"))?;
        Ok(Self {
            requests,
            wait,
            inbox,
            thread: Some(thread),
            received: HashMap::new(),
            is_closing: false,
            events,
            _subscriptions: subscriptions,
            verbs,
            birth: Birth::here(),
        })
    }

    /// Passes a request to the thread.
    pub(crate) fn request(&self, request: ToService) {
        // The thread ends only at a request to close.
        let _ = self.requests.send(request);
        self.wait.signal();
    }

    /// Stores how many packets the session with a peer has received, before all lanes close.
    pub(crate) fn received(&mut self, peer: PeerKey, expected: u32) {
        self.received.insert(peer, expected);
    }

    /// The reader of the device's events.
    pub(crate) fn events(&self) -> &EventReader {
        &self.events
    }

    /// The endpoint's access to the workers.
    pub(crate) fn verbs(&self) -> &EndpointVerbs {
        &self.verbs
    }

    /// RC queue pairs made so far.
    pub(crate) fn queue_pairs(&self) -> u64 {
        self.inbox.queue_pairs.load(Ordering::Relaxed)
    }

    /// Whether [`ServiceHandle::message`] would return a message. Costs one load.
    #[inline]
    pub(crate) fn has_messages(&self) -> bool {
        self.inbox.filled.is_raised()
    }

    /// Closes the endpoint's lanes, and ends the thread. Queue pairs that the engine does not hold
    /// are destroyed from now on.
    pub(crate) fn close(&mut self) {
        let thread = self.thread.take();
        if !self.birth.is_this_process() {
            // A child has inherited the thread's wake-up, but not the thread.
            std::mem::forget(thread);
        } else if let Some(thread) = thread {
            self.begin_close();
            // A thread that panicked has logged it; its queue pairs are gone with it.
            let _ = thread.join();
        }
    }

    /// Closes the endpoint's lanes, and takes no new ones. The thread ends once the peers know.
    pub(crate) fn begin_close(&mut self) {
        if !std::mem::replace(&mut self.is_closing, true) {
            let received = std::mem::take(&mut self.received);
            self.request(ToService::Close(received));
        }
    }

    /// The next message, if there is one.
    pub(crate) fn message(&self) -> Option<ToEngine> {
        // The flag is cleared first: a message that arrives in between sets it again.
        self.inbox.filled.lower();
        let message = self.inbox.messages.1.try_recv().ok();
        if message.is_some() {
            self.inbox.filled.raise();
        }
        message
    }

    /// Prepares for a sleep on the descriptor. The caller must check
    /// [`has_messages`](Self::has_messages) after it.
    pub(crate) fn drain_wakeup(&self) {
        // The engine does not clear the wake-up when it reads messages: that would cost a system
        // call each time, and only a sleeping engine needs it.
        let _ = self.inbox.wake.read();
    }

    /// Readable since the last message arrived; it stays readable until
    /// [`drain_wakeup`](Self::drain_wakeup), even if the messages were taken.
    pub(crate) fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.inbox.wake)
    }
}

impl Drop for ServiceHandle {
    fn drop(&mut self) {
        self.close();
        if self.birth.is_this_process() {
            // Lanes in messages that nobody has read end here, and not with the last holder of the
            // inbox: that may be the reader of events, for which the end of a queue pair waits.
            while self.message().is_some() {}
        }
    }
}

impl Inbox {
    fn put(&self, message: ToEngine) {
        // It has a receiver of its own: it does not fail.
        let _ = self.messages.0.send(message);
        self.filled.raise();
        let _ = self.wake.write(1);
    }
}

/// A control packet and where it goes.
struct ControlDatagram {
    qpn: u32,
    qkey: u32,
    bytes: [u8; CONTROL_BYTES],
    peer: PeerKey,
}

/// A lane in the state that it has reached: once a worker has made its queue pair, or its path is
/// resolved, there is something behind it.
enum Made {
    Rc(Option<LaneQueuePair>),
    /// The path is as the endpoint derives it from the peer's address.
    Ud(Option<(PortPath, UdDestination)>),
}

/// A queue pair that a worker has made.
struct LaneQueuePair {
    qp: Arc<RcQp>,
    /// To the failures of the queue pair.
    _events: EventSubscription,
}

/// A lane that waits for its path, or for another handle of it.
struct JoiningLane {
    path: PortPath,
    lane: LaneKey,
    carrier: JoiningCarrier,
}

/// The things that a lane needs besides its path.
enum JoiningCarrier {
    /// The queue pair that is to be connected.
    Rc(ConnectLane),
    /// Queue key of the peer.
    Ud(u32),
}

struct ServiceWorker {
    // Lanes go first: their queue pairs use the other fields.
    lanes: HashMap<LaneKey, Made>,
    /// The number of RC lanes.
    rc_lanes: usize,
    /// The verbs of RC lanes, which workers carry out.
    verbs: LaneVerbs,
    /// Lanes that wait for their path.
    joining: Vec<JoiningLane>,
    /// Paths of removed peers: their handles go as soon as nobody holds them.
    retiring: Vec<PortPath>,
    /// Paths that were retired since: if a late control packet makes a handle again, that goes,
    /// too.
    retired: HashSet<PortPath>,
    connector: Connector,
    config: ServiceConfig,
    datagrams: ControlQueuePair,
    handles: AhCache<ControlDatagram>,
    actions: VecDeque<HandshakeAction>,
    requests: Receiver<ToService>,
    queues: EventQueues,
    inbox: Arc<Inbox>,
    /// For peers that close while the application computes.
    mover: MessageMover,
    /// When the next request of a peer to drive the endpoint counts.
    drive_due: Option<Time>,
    sleeper: ClockSleeper,
}

impl ServiceWorker {
    fn run(mut self) {
        let mut closing: Option<Instant> = None;
        let mut next_probe = self.now() + PROBE_INTERVAL;
        loop {
            while let Ok(request) = self.requests.try_recv() {
                closing = self.serve(request, closing);
            }
            while let Some(outcome) = self.verbs.outcome() {
                self.verb_is_over(outcome);
            }
            while let Some((path, outcome)) = self.handles.resolved() {
                self.path_resolved(path, outcome);
            }
            // At most one full queue, whatever arrives meanwhile: a flood of packets must not delay
            // requests and timers.
            for _ in 0..LOOKS {
                if !self.receive() {
                    break;
                }
            }
            if self.datagrams.is_broken() && !self.datagrams.is_dead() {
                self.datagrams.revive();
            }
            self.release_handles();
            let now = self.now();
            if self.connector.next_timeout().is_some_and(|at| at <= now) {
                self.drive(|connector, now, out| connector.timeout(now, out));
            }
            if now >= next_probe {
                next_probe = now + PROBE_INTERVAL;
                self.request_probes();
            }
            if closing.is_some_and(|until| self.connector.is_idle() || Instant::now() >= until) {
                return self.release_lanes();
            }
            self.datagrams.arm();
            if self.receive() {
                continue;
            }
            let looks = !self.lanes.is_empty() || !self.retiring.is_empty();
            // A queue pair that could not be revived is tried again then.
            let looks = looks || self.datagrams.is_broken() || self.verbs.shortage.is_own();
            let probe = looks.then_some(next_probe);
            let watched = self.datagrams.is_to_be_watched();
            let watch = watched.then(|| Instant::now() + WATCH_INTERVAL);
            let timer = [self.connector.next_timeout(), probe].into_iter().flatten();
            let until_ns = timer.min().map(|at| at.0);
            // These two are for failures of the system, and for a caller that waits.
            let deadline = [closing, watch].into_iter().flatten().min();
            if let Err(error) = self.sleeper.sleep(until_ns, deadline) {
                tracing::error!("service thread can not sleep: {error}");
                std::thread::sleep(WATCH_INTERVAL);
            }
        }
    }

    fn now(&self) -> Time {
        Time(self.config.clock.now_ns())
    }

    /// Passes an event to the connector, then carries out its actions.
    fn drive(&mut self, event: impl FnOnce(&mut Connector, Time, &mut Vec<HandshakeAction>)) {
        let mut out = Vec::new();
        let now = self.now();
        event(&mut self.connector, now, &mut out);
        self.actions.extend(out);
        while let Some(action) = self.actions.pop_front() {
            self.carry_out(action);
        }
    }

    /// As `drive`, for events that follow from an action: the outer loop carries out their actions.
    fn answer(&mut self, event: impl FnOnce(&mut Connector, Time, &mut Vec<HandshakeAction>)) {
        let mut out = Vec::new();
        let now = self.now();
        event(&mut self.connector, now, &mut out);
        self.actions.extend(out);
    }

    fn serve(&mut self, request: ToService, closing: Option<Instant>) -> Option<Instant> {
        match request {
            ToService::Connect {
                peer,
                kind,
                timeout,
            } => {
                self.keep_path(&peer);
                self.drive(|c, now, out| c.connect(now, peer, kind, timeout, out));
            }
            ToService::Promote {
                peer,
                lane,
                timeout,
            } => self.drive(|c, now, out| {
                c.change_lane(now, (lane, peer), LaneKind::Rc, timeout, out);
            }),
            ToService::Recycled(lane) => self.drive(|c, now, out| c.lane_recycled(now, lane, out)),
            ToService::Left(lane) => self.drive(|c, now, out| c.lane_left(now, lane, out)),
            ToService::Cancel(peer) => self.drive(|c, now, out| c.cancel(now, &peer, out)),
            ToService::PathRetired(peer) => self.retire_path(&peer),
            ToService::ProbePeer(lane) => self.drive(|c, now, out| c.check_lane(now, lane, out)),
            ToService::RequestDrive(peer) => self.drive(|c, _, out| c.request_drive(&peer, out)),
            ToService::SessionEnded { peer, lane } => self.connector.session_ended(&peer, lane),
            ToService::Grant(quota_units) => self.connector.grant(quota_units),
            ToService::LaneHeard(lane) => self.drive(|c, now, out| c.lane_received(now, lane, out)),
            ToService::LaneBroken(lane) => self.drive(|c, now, out| c.lane_broken(now, lane, out)),
            ToService::PortDown => self.connector.port_down(),
            ToService::PortActive => self.connector.port_active(self.now()),
            ToService::PathsChanged => self.renew_paths(),
            ToService::Failed => self.datagrams.fail_for_good(),
            ToService::Close(received) => {
                self.drive(|c, now, out| c.shutdown(now, &received, out));
                return Some(Instant::now() + self.config.handshake.intervals.close_timeout);
            }
        }
        closing
    }

    fn receive(&mut self) -> bool {
        let mut packets: Vec<Vec<u8>> = Vec::new();
        let any = self
            .datagrams
            .receive(|packet| packets.push(packet.to_vec()));
        for packet in packets {
            self.drive(|c, now, out| c.receive(now, &packet, out));
        }
        any
    }

    fn carry_out(&mut self, action: HandshakeAction) {
        match action {
            HandshakeAction::SendControl { to, bytes } => self.send(to, bytes),
            HandshakeAction::MakeLane { lane, kind, .. } => match kind {
                LaneKind::Rc => self.make_lane(lane),
                LaneKind::Ud => self.make_datagram_lane(lane),
            },
            HandshakeAction::ConnectLane(connect) => self.connect_lane(connect),
            HandshakeAction::LaneUp(up) => {
                let carrier = match self.lanes.get(&up.lane) {
                    Some(Made::Rc(Some(made))) => LaneCarrier::Rc(made.qp.clone()),
                    Some(Made::Ud(Some((_, destination)))) => LaneCarrier::Ud(destination.clone()),
                    _ => return,
                };
                self.keep_path(&up.peer);
                self.tell(ToEngine::LaneUp { up, carrier });
            }
            HandshakeAction::MaySend { lane } => self.tell(ToEngine::MaySend(lane)),
            HandshakeAction::LaneDown { lane, peer, reason } => {
                let reason = self.local_reason(reason);
                self.tell(ToEngine::LaneDown { lane, peer, reason });
            }
            HandshakeAction::ReleaseLane { lane } => self.release_lane(lane),
            HandshakeAction::NoRoom { peer, here } => {
                let peer = Some(peer);
                self.tell(ToEngine::NoRoom { peer, here });
            }
            HandshakeAction::ConnectFailed { peer, reason } => {
                let reason = self.local_reason(reason);
                self.tell(ToEngine::ConnectFailed { peer, reason });
            }
            HandshakeAction::Drive => {
                // Peers repeat it, and one that sends it all the time takes no processor for that.
                let now = self.now();
                if self.drive_due.is_none_or(|due| due <= now) {
                    self.drive_due = Some(now + BETWEEN_DRIVES);
                    self.mover.start();
                }
            }
            HandshakeAction::Closed { .. } => {}
        }
    }

    fn tell(&mut self, message: ToEngine) {
        self.inbox.put(message);
    }

    /// Requests a probe of idle lanes, and a lane for others of the device that get none, unless
    /// the engine has yet to read its earlier messages.
    fn request_probes(&mut self) {
        if !self.lanes.is_empty() && !self.inbox.filled.is_raised() {
            self.tell(ToEngine::Probe);
            if self.rc_lanes > 0 && self.verbs.shortage.takes_a_lane() {
                let (peer, here) = (None, true);
                self.tell(ToEngine::NoRoom { peer, here });
            }
        }
        let now = self.now();
        self.verbs.shortage.expire(now);
    }

    /// The reason why a peer cannot be reached. If no packets arrive here at all, a missing path is
    /// not the cause.
    fn local_reason(&self, reason: EndReason) -> EndReason {
        match reason {
            EndReason::Unreachable if self.datagrams.is_dead() => EndReason::Local(Errno::EIO.0),
            reason => reason,
        }
    }

    fn send(&mut self, to: PeerKey, bytes: [u8; CONTROL_BYTES]) {
        if self.datagrams.is_dead() {
            // No answer would arrive.
            return self.answer(|c, now, out| c.unreachable(now, &to, out));
        }
        let Some((path, qpn, qkey)) = self.control_route(&to) else {
            return self.answer(|c, now, out| c.unreachable(now, &to, out));
        };
        // Dropped if there is no room, as on the wire: an unknown source can repeat its request.
        if !self.connector.has_peer(&to) && !self.handles.has_spare_resolver(&path) {
            return;
        }
        self.tidy_handles();
        let datagram = ControlDatagram {
            qpn,
            qkey,
            bytes,
            peer: to,
        };
        if let Some((handle, d)) = self.handles.handle_for(path, datagram) {
            self.datagrams.send(handle, d.qpn, d.qkey, &d.bytes);
        }
        if self.retired.remove(&path) {
            self.retiring.push(path);
        }
    }
}
