//! Asynchronous events: a device's reports outside completions.

use ferrofabric_verbs_sys::{ibv_async_event, ibv_event_type};

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceEvent {
    /// The kind of the event (`ibv_get_async_event(3)`).
    pub kind: ibv_event_type,
    /// The object of the event.
    pub subject: EventSubject,
}

/// The kind of object that an event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventSubject {
    /// The whole device.
    Device,
    /// A port, by number.
    Port(u8),
    /// A queue pair, by its number.
    QueuePair(u32),
    /// A completion queue, by [`crate::cq::Cq::id`].
    CompletionQueue(usize),
    /// A shared receive queue, by [`crate::srq::Srq::id`].
    SharedReceiveQueue(usize),
    /// An event of a kind that is not known.
    Unknown,
}

impl DeviceEvent {
    /// Whether something does not work any more.
    pub(super) fn is_failure(&self) -> bool {
        self.is_queue_pair_failure()
            || matches!(
                self.kind,
                ibv_event_type::IBV_EVENT_DEVICE_FATAL
                    | ibv_event_type::IBV_EVENT_PORT_ERR
                    | ibv_event_type::IBV_EVENT_CQ_ERR
                    | ibv_event_type::IBV_EVENT_SRQ_ERR
            )
    }

    /// Whether a queue pair does not work any more.
    pub(crate) fn is_queue_pair_failure(&self) -> bool {
        matches!(
            self.kind,
            ibv_event_type::IBV_EVENT_QP_FATAL
                | ibv_event_type::IBV_EVENT_QP_REQ_ERR
                | ibv_event_type::IBV_EVENT_QP_ACCESS_ERR
        )
    }

    /// # Safety
    ///
    /// `raw` was just read and is not yet acknowledged, so that the object in it is alive.
    pub(super) unsafe fn from_raw(raw: &ibv_async_event) -> Self {
        let kind = raw.event_type;
        // SAFETY: the kind says which member is set; an object with an event that is not
        // acknowledged cannot go.
        let subject = unsafe {
            match kind {
                ibv_event_type::IBV_EVENT_CQ_ERR => {
                    EventSubject::CompletionQueue(raw.element.cq as usize)
                }
                ibv_event_type::IBV_EVENT_QP_FATAL
                | ibv_event_type::IBV_EVENT_QP_REQ_ERR
                | ibv_event_type::IBV_EVENT_QP_ACCESS_ERR
                | ibv_event_type::IBV_EVENT_COMM_EST
                | ibv_event_type::IBV_EVENT_SQ_DRAINED
                | ibv_event_type::IBV_EVENT_PATH_MIG
                | ibv_event_type::IBV_EVENT_PATH_MIG_ERR
                | ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED => {
                    EventSubject::QueuePair((*raw.element.qp).qp_num)
                }
                ibv_event_type::IBV_EVENT_SRQ_ERR | ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED => {
                    EventSubject::SharedReceiveQueue(raw.element.srq as usize)
                }
                ibv_event_type::IBV_EVENT_PORT_ACTIVE
                | ibv_event_type::IBV_EVENT_PORT_ERR
                | ibv_event_type::IBV_EVENT_LID_CHANGE
                | ibv_event_type::IBV_EVENT_PKEY_CHANGE
                | ibv_event_type::IBV_EVENT_SM_CHANGE
                | ibv_event_type::IBV_EVENT_CLIENT_REREGISTER
                | ibv_event_type::IBV_EVENT_GID_CHANGE => {
                    EventSubject::Port(u8::try_from(raw.element.port_num).unwrap_or(0))
                }
                ibv_event_type::IBV_EVENT_DEVICE_FATAL => EventSubject::Device,
                _ => EventSubject::Unknown,
            }
        };
        Self { kind, subject }
    }
}
