//! The asynchronous events of the device that concern an endpoint, and the messages that the reader
//! of events makes of them.

use std::sync::{Arc, Weak};

use crossbeam_channel::Sender;

use ferrofabric_protocol::handshake::LaneKey;
use ferrofabric_system::wait::WaitSet;
use ferrofabric_verbs_sys::ibv_event_type as Kind;

use super::{Inbox, ServiceConfig};
use crate::connect::{ToEngine, ToService};
use crate::device::{
    EventReader, EventSubject, EventSubscription, device_failed, device_queue_failed,
};

/// The queues that the reader of events puts messages into.
#[derive(Clone)]
pub(super) struct EventQueues {
    requests: Sender<ToService>,
    wait: Arc<WaitSet>,
    /// Weak: a message in the inbox may have a lane, and the lane a subscription.
    inbox: Weak<Inbox>,
}

impl EventQueues {
    pub(super) fn new(
        requests: &Sender<ToService>,
        wait: &Arc<WaitSet>,
        inbox: &Arc<Inbox>,
    ) -> Self {
        Self {
            requests: requests.clone(),
            wait: wait.clone(),
            inbox: Arc::downgrade(inbox),
        }
    }

    fn to_service(&self, request: ToService) {
        let _ = self.requests.send(request);
        self.wait.signal();
    }

    fn to_engine(&self, message: ToEngine) {
        if let Some(inbox) = self.inbox.upgrade() {
            inbox.put(message);
        }
    }

    /// Subscribes to the events of an endpoint: of its device, its port, its queues, and of the
    /// completion queue of its control packets.
    pub(super) fn subscribe(
        &self,
        config: &ServiceConfig,
        control_queue: usize,
    ) -> Vec<EventSubscription> {
        let name = config.pd.context().name();
        let (failed, queue_failed) = (device_failed(name), device_queue_failed(name));
        let events = &config.events;
        let of_port = self.clone();
        let port = events.subscribe(EventSubject::Port(config.port.number), move |event| {
            let request = match event.kind {
                Kind::IBV_EVENT_PORT_ERR => ToService::PortDown,
                Kind::IBV_EVENT_PORT_ACTIVE => ToService::PortActive,
                _ => ToService::PathsChanged,
            };
            of_port.to_service(request);
        });
        let of_device = self.clone();
        let device = events.subscribe(EventSubject::Device, move |_| {
            of_device.to_service(ToService::Failed);
            of_device.to_engine(ToEngine::Failed(failed));
        });
        let of_control = self.clone();
        let control = events.subscribe(EventSubject::CompletionQueue(control_queue), move |_| {
            of_control.to_service(ToService::Failed);
        });
        let mut subscriptions = vec![port, device, control];
        let completions = EventSubject::CompletionQueue(config.lane.send_cq.id());
        let receives =
            (config.lane.srq.as_ref()).map(|srq| EventSubject::SharedReceiveQueue(srq.id()));
        for queue in [Some(completions), receives].into_iter().flatten() {
            let of_queue = self.clone();
            subscriptions.push(events.subscribe(queue, move |event| {
                if event.kind != Kind::IBV_EVENT_SRQ_LIMIT_REACHED {
                    of_queue.to_engine(ToEngine::Failed(queue_failed));
                }
            }));
        }
        subscriptions
    }

    /// Subscribes to the failures of a lane's queue pair.
    pub(super) fn subscribe_lane(
        &self,
        events: &Arc<EventReader>,
        number: u32,
        lane: LaneKey,
    ) -> EventSubscription {
        let of_lane = self.clone();
        events.subscribe(EventSubject::QueuePair(number), move |event| {
            if event.is_queue_pair_failure() {
                of_lane.to_engine(ToEngine::LaneFailed(lane));
            }
        })
    }
}

/// Whether the port of an endpoint carries packets now, as far as is known.
pub(super) fn is_port_active(config: &ServiceConfig) -> bool {
    let port = config.pd.context().port(config.port.number);
    port.is_ok_and(|port| port.state.is_usable())
}
