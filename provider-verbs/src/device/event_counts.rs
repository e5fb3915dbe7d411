//! The number of asynchronous events of a device, by kind.

use std::sync::atomic::{AtomicU64, Ordering};

use ferrofabric_verbs_sys::ibv_event_type as Kind;

/// Counts of events since the device was opened.
#[derive(Debug, Default)]
pub(crate) struct EventCounts {
    ports_down: AtomicU64,
    ports_active: AtomicU64,
    path_changes: AtomicU64,
    device_failures: AtomicU64,
    queue_failures: AtomicU64,
    queue_pair_failures: AtomicU64,
    last_receives: AtomicU64,
    others: AtomicU64,
}

impl EventCounts {
    /// Counts an event.
    pub(super) fn count(&self, kind: Kind) {
        let counter = match kind {
            Kind::IBV_EVENT_PORT_ERR => &self.ports_down,
            Kind::IBV_EVENT_PORT_ACTIVE => &self.ports_active,
            Kind::IBV_EVENT_LID_CHANGE
            | Kind::IBV_EVENT_PKEY_CHANGE
            | Kind::IBV_EVENT_SM_CHANGE
            | Kind::IBV_EVENT_CLIENT_REREGISTER
            | Kind::IBV_EVENT_GID_CHANGE => &self.path_changes,
            Kind::IBV_EVENT_DEVICE_FATAL => &self.device_failures,
            Kind::IBV_EVENT_CQ_ERR | Kind::IBV_EVENT_SRQ_ERR => &self.queue_failures,
            Kind::IBV_EVENT_QP_FATAL
            | Kind::IBV_EVENT_QP_REQ_ERR
            | Kind::IBV_EVENT_QP_ACCESS_ERR => &self.queue_pair_failures,
            Kind::IBV_EVENT_QP_LAST_WQE_REACHED => &self.last_receives,
            _ => &self.others,
        };
        // Release pairs with the load: the effects of the event are visible with its count.
        counter.fetch_add(1, Ordering::Release);
    }

    /// Reports each counter by its name.
    pub(crate) fn report(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let mut one = |name, counter: &AtomicU64| report(name, counter.load(Ordering::Acquire));
        one("device_events_port_down", &self.ports_down);
        one("device_events_port_active", &self.ports_active);
        one("device_events_path_change", &self.path_changes);
        one("device_events_device_failed", &self.device_failures);
        one("device_events_queue_failed", &self.queue_failures);
        one("device_events_queue_pair_failed", &self.queue_pair_failures);
        one("device_events_last_receive", &self.last_receives);
        one("device_events_other", &self.others);
    }
}
