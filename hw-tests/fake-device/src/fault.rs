//! Faults, as the test names them and the device takes them.

use ferrofabric_verbs_sys::{ibv_ah_attr, ibv_wc_status};

/// Where a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FaultPoint {
    /// A message of a reliable connection, at its sender.
    Send,
    /// An RDMA read.
    Read,
    /// An RDMA write.
    Write,
    /// A datagram, at its sender.
    Datagram,
    /// The completion of a receive, of a connection.
    Receive,
    /// The completion of a datagram's receive.
    DatagramReceive,
}

impl FaultPoint {
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        [
            Self::Send,
            Self::Read,
            Self::Write,
            Self::Datagram,
            Self::Receive,
            Self::DatagramReceive,
        ]
        .into_iter()
        .find(|point| *point as u32 == code)
    }
}

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultEffect {
    /// The request is not carried out and completes with this status, and its queue pair fails; if
    /// the status says that the other side refused the request, that side's queue pair fails as
    /// well.
    Fail(ibv_wc_status),
    /// The request is carried out, and completes as if it were not: its acknowledgement is lost.
    FailAfterwards(ibv_wc_status),
    /// It completes with success, and nothing arrives: a datagram that is lost.
    Lose,
    /// The message stops in its middle: its receive is taken, and the request completes with this
    /// status. The receiver's queue pair holds the receive until it goes to error.
    StopInside(ibv_wc_status),
    /// The completion has this work request ID.
    WrId(u64),
    /// The completion has this length in bytes.
    ByteLen(u32),
    /// The completion names this queue pair.
    QpNum(u32),
    /// The byte at this place of the message arrives with its bits inverted. Beyond the message's
    /// end: none.
    Corrupt(u32),
}

impl FaultEffect {
    pub(crate) fn to_code(self) -> (u32, u64) {
        match self {
            Self::Fail(status) => (0, u64::from(status.0)),
            Self::FailAfterwards(status) => (1, u64::from(status.0)),
            Self::Lose => (2, 0),
            Self::WrId(wr_id) => (3, wr_id),
            Self::ByteLen(bytes) => (4, u64::from(bytes)),
            Self::QpNum(number) => (5, u64::from(number)),
            Self::Corrupt(at) => (6, u64::from(at)),
            Self::StopInside(status) => (7, u64::from(status.0)),
        }
    }

    pub(crate) fn from_code(code: u32, value: u64) -> Option<Self> {
        let low = value as u32;
        Some(match code {
            0 => Self::Fail(ibv_wc_status(low)),
            1 => Self::FailAfterwards(ibv_wc_status(low)),
            2 => Self::Lose,
            3 => Self::WrId(value),
            4 => Self::ByteLen(low),
            5 => Self::QpNum(low),
            6 => Self::Corrupt(low),
            7 => Self::StopInside(ibv_wc_status(low)),
            _ => return None,
        })
    }
}

/// A fault.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Where.
    pub point: FaultPoint,
    /// Its effect.
    pub effect: FaultEffect,
    /// On the queue pair of this number; 0 for any.
    pub qp: u32,
    /// The number of requests that pass before the first fault.
    pub after: u32,
    /// The number of requests that fail.
    pub count: u32,
}

impl Fault {
    /// Strikes the next one, on any queue pair.
    pub fn new(point: FaultPoint, effect: FaultEffect) -> Self {
        Self {
            point,
            effect,
            qp: 0,
            after: 0,
            count: 1,
        }
    }

    /// On one queue pair alone.
    #[must_use]
    pub fn on(self, qp: u32) -> Self {
        Self { qp, ..self }
    }

    /// Lets this number of requests pass first.
    #[must_use]
    pub fn after(self, after: u32) -> Self {
        Self { after, ..self }
    }

    /// Strikes this number of requests.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        Self { count, ..self }
    }
}

/// How a network treats datagrams: the parts of them that each thing happens to, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NetworkFaults {
    /// Of the pseudo-random numbers that choose them.
    pub seed: u64,
    /// Never arrive.
    pub lost: u32,
    /// Arrive twice.
    pub repeated: u32,
    /// Arrive later, so that others overtake them.
    pub delayed: u32,
}

/// Counts of the datagrams on a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Crossed {
    /// That were sent.
    pub sent: u64,
    /// That it has lost.
    pub lost: u64,
    /// That it has sent twice.
    pub repeated: u64,
    /// That arrived after a later one.
    pub overtaken: u64,
}

/// A queue pair, as the device has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct QueuePairView {
    /// Its number.
    pub number: u32,
    /// That of the queue pair it is connected to; 0 for datagrams.
    pub remote: u32,
    /// The path to that one.
    pub path: PathView,
    /// The MTU of the connection, as `ibv_mtu` has it; 0 for datagrams.
    pub mtu: u32,
    /// `ibv_qp_type`.
    pub kind: u32,
    /// `ibv_qp_state`.
    pub state: u32,
    /// Names its protection domain.
    pub pd: u64,
    /// Requests that are not carried out yet.
    pub waiting: u32,
    /// Slots of its send queue that are taken.
    pub occupied: u32,
    /// Receives posted to its own queue.
    pub receives: u32,
    /// Receives whose message has begun and has not ended.
    pub held: u32,
}

/// An address handle, as the device has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HandleView {
    /// Names its protection domain.
    pub pd: u64,
    /// Its path.
    pub path: PathView,
}

/// A path, as the device has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PathView {
    /// It has a routing header; without one, the next three mean nothing.
    pub is_global: bool,
    /// Traffic class.
    pub traffic_class: u8,
    /// Routers that packets may pass.
    pub hop_limit: u8,
    /// Service level.
    pub service_level: u8,
    /// Rate limit.
    pub static_rate: u8,
    /// LID that packets go to.
    pub lid: u16,
    /// Flow label.
    pub flow_label: u32,
}

impl PathView {
    pub(crate) fn of(attributes: &ibv_ah_attr) -> Self {
        Self {
            is_global: attributes.is_global != 0,
            traffic_class: attributes.grh.traffic_class,
            hop_limit: attributes.grh.hop_limit,
            service_level: attributes.sl,
            static_rate: attributes.static_rate,
            lid: attributes.dlid,
            flow_label: attributes.grh.flow_label,
        }
    }
}

/// A memory region, as the device has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RegionView {
    /// Where it begins.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// A peer of some queue pair that guesses its key can read it.
    pub readable: bool,
    /// A peer of some queue pair that guesses its key can write it.
    pub writable: bool,
}

/// How many objects there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LiveObjects {
    /// Opened devices.
    pub contexts: u32,
    /// Protection domains.
    pub domains: u32,
    /// Memory regions.
    pub regions: u32,
    /// Address handles.
    pub handles: u32,
    /// Completion channels.
    pub channels: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Shared receive queues.
    pub shared_receive_queues: u32,
    /// Queue pairs.
    pub queue_pairs: u32,
}
