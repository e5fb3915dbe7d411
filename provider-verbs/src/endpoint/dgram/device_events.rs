//! The asynchronous events of the device that concern an endpoint, and their effects.

use std::sync::Arc;

use crossbeam_channel::{Receiver, unbounded};

use ferrofabric_contracts::peer::Owner;
use ferrofabric_verbs_sys::ibv_event_type as Kind;

use super::DgramTransport;
use crate::device::{
    EventReader, EventSubject, EventSubscription, device_failed, device_queue_failed,
};
use crate::qp::UdQp;

/// An event, as the endpoint needs it.
#[derive(Clone, Copy, Debug)]
pub(super) enum DgramEvent {
    /// The addresses of the port, or the paths from it, may have changed.
    PathsChanged,
    /// The queue pair has failed.
    QueuePairFailed,
    /// The device, or the completion queue, has failed for good, for this reason.
    Failed(&'static str),
}

/// The events that the endpoint has not handled yet, and its subscriptions to them.
pub(super) struct DeviceEvents {
    queue: Receiver<DgramEvent>,
    reader: Arc<EventReader>,
    _subscriptions: [EventSubscription; 4],
}

impl DeviceEvents {
    /// Subscribes to the events of an endpoint. The reader calls `ring` after each.
    pub(super) fn subscribe(
        reader: &Arc<EventReader>,
        qp: &UdQp,
        port: u8,
        ring: impl Fn() + Clone + Send + 'static,
    ) -> Self {
        let (sender, queue) = unbounded();
        let put = move |event| {
            let _ = sender.send(event);
            ring();
        };
        let name = qp.pd().context().name();
        let (failed, queue_failed) = (device_failed(name), device_queue_failed(name));
        let [of_port, of_device, of_queue] = [(); 3].map(|()| put.clone());
        let subscriptions = [
            reader.subscribe(EventSubject::Port(port), move |event| match event.kind {
                Kind::IBV_EVENT_PORT_ERR | Kind::IBV_EVENT_PORT_ACTIVE => {}
                _ => of_port(DgramEvent::PathsChanged),
            }),
            reader.subscribe(EventSubject::Device, move |_| {
                of_device(DgramEvent::Failed(failed));
            }),
            reader.subscribe(
                EventSubject::CompletionQueue(qp.send_cq().id()),
                move |_| {
                    of_queue(DgramEvent::Failed(queue_failed));
                },
            ),
            reader.subscribe(EventSubject::QueuePair(qp.number()), move |event| {
                if event.is_queue_pair_failure() {
                    put(DgramEvent::QueuePairFailed);
                }
            }),
        ];
        Self {
            queue,
            reader: reader.clone(),
            _subscriptions: subscriptions,
        }
    }

    /// The events since the last call.
    pub(super) fn take(&self) -> Vec<DgramEvent> {
        self.queue.try_iter().collect()
    }

    /// Reports the number of events of the device.
    pub(super) fn report(&self, report: &mut dyn FnMut(&'static str, u64)) {
        self.reader.counts().report(report);
    }
}

impl DgramTransport {
    /// Handles the events since the last call. Returns their number.
    #[cold]
    pub(super) fn take_events<O: Owner>(&mut self, owner: &mut O) -> usize {
        let events = self.handles.events.take();
        for &event in &events {
            match event {
                DgramEvent::PathsChanged => self.renew_paths(),
                DgramEvent::QueuePairFailed => self.request_reset(true),
                DgramEvent::Failed(why) => self.die(why, owner),
            }
        }
        events.len()
    }

    /// All address handles are made anew, each by the next send to its peer. Posted sends keep the
    /// old ones.
    fn renew_paths(&mut self) {
        self.port = self.port.refreshed(self.qp.pd().context());
        self.handles.renew(self.port);
        self.routes.renew(self.port.gid_index);
    }
}
