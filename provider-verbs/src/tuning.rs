//! The choice of a protocol by message size, and the lengths of queues: a table by device, because
//! the best values of one are not the best of another.

use ferrofabric_contracts::config::{LaneChoice, Rendezvous, Settings};
use ferrofabric_protocol::wire::data::{MAX_HEADER_BYTES, MAX_MESSAGE_BYTES, MIN_RECEIVE_BYTES};

use crate::device::{DeviceLimits, PortAttributes, Quirks};

/// The sizes and limits of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// Longest message, in bytes.
    pub(crate) max_message_bytes: usize,
    /// Largest message sent in one packet, in bytes.
    pub(crate) eager_bytes: usize,
    /// Whether a packet takes one network packet at most.
    pub(crate) single_frames: bool,
    /// Largest message that is sent in several packets without a request to send, in bytes, if the
    /// peer's credit allows.
    pub(crate) fragmented_bytes: usize,
    /// Header and payload up to this length travel in the work request itself, in bytes. Until an
    /// endpoint has found the device's limit: the length that it requests.
    pub(crate) inline_bytes: usize,
    /// Pieces of memory that a work request of a lane gathers its packet from: two, or one on a
    /// device that has no more.
    pub(crate) send_entries: usize,
    /// The send queues of the lanes.
    pub(crate) sends: SendTuning,
    /// Receive buffers of the endpoint: those for datagrams and those of the lanes.
    pub(crate) receives: usize,
    /// Those of the lanes are in one queue; else each lane has its own queue.
    pub(crate) shares_receives: bool,
    /// Receive buffers for datagrams, at most.
    pub(crate) datagram_receives: usize,
    /// Receive buffers of a lane with a queue of its own, at most.
    pub(crate) lane_receives: usize,
    /// The parameters of rendezvous.
    pub(crate) rendezvous: RendezvousTuning,
    /// The kind of lane that a peer gets.
    pub(crate) lane: LaneChoice,
    /// RC lanes at most.
    pub(crate) max_lanes: usize,
    /// Sends to one peer that may wait here; beyond it a send fails with `FI_EAGAIN`.
    pub(crate) waiting_sends: usize,
}

/// Limits of the work requests under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendTuning {
    /// Work requests of a lane.
    pub(crate) depth: usize,
    /// Work requests of all lanes together, from which on messages and chunks wait.
    pub(crate) total: usize,
    /// Work requests of all lanes together, from which on a lane posts no more messages than its
    /// share.
    pub(crate) free: usize,
    /// The share of a lane: its work requests under way when places are scarce. A lane with a
    /// signaled request under way waits then.
    pub(crate) share: usize,
    /// Places that the completion queue has for requests. The rest is left to requests that must
    /// not wait.
    pub(crate) places: usize,
}

/// The parameters of rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RendezvousTuning {
    /// Whether the sender writes large messages; else the receiver reads them.
    pub(crate) sender_writes: bool,
    /// A read of several packets may lack some: reads that no protocol checks have one.
    pub(crate) reads_are_torn: bool,
    /// Largest single RDMA read, in bytes.
    pub(crate) read_chunk: u64,
    /// Largest single RDMA write, in bytes.
    pub(crate) write_chunk: u64,
    /// RDMA reads of a lane under way.
    pub(crate) reads_per_lane: u8,
    /// Reads of one message under way.
    pub(crate) reads_per_message: u32,
    /// RDMA writes of a lane under way: a small message behind them waits for all of these.
    pub(crate) writes_per_lane: u32,
}

/// The eager threshold if no better value is known: about where the copy costs as much as the extra
/// round trip.
const EAGER_BYTES: usize = 8192;

/// Messages up to this length go in several packets. Copying twice, the one copy while other
/// packets travel, costs less than the round trip and the registration of both buffers.
const FRAGMENTED_BYTES: usize = 32 << 10;

/// The same on a software device, where each packet has an acknowledgement and a system call of its
/// own (docs/benchmarks.md).
const SOFTWARE_FRAGMENTED_BYTES: usize = 24 << 10;

/// Work requests of a lane. Drivers keep a place free and round up to a power of two.
const SEND_DEPTH: usize = 255;

/// Bounce buffers for the sends of an endpoint, as long as it has few lanes.
pub(crate) const BOUNCES: usize = 256;

/// The part of the receive buffers that is for datagrams, as a divisor, where each lane has its own
/// queue.
const DATAGRAM_PART: usize = 4;

/// The same divisor where lanes share a queue, by the lanes that peers get. No setting gives
/// datagrams more than half: long messages need an RC lane in any case.
const fn datagram_part(lane: LaneChoice) -> usize {
    match lane {
        LaneChoice::Rc => 8,
        LaneChoice::Auto => DATAGRAM_PART,
        LaneChoice::Ud => 2,
    }
}

/// The least number of buffers for datagrams, so that an early packet can be kept.
const LEAST_DATAGRAM_RECEIVES: usize = 4;

/// Receive buffers of a lane with a queue of its own.
const LANE_RECEIVES: usize = 8;

impl Tuning {
    /// Bytes of a receive or bounce buffer: the longest packet.
    pub(crate) fn slot_bytes(&self) -> usize {
        (MAX_HEADER_BYTES + self.eager_bytes)
            .max(MIN_RECEIVE_BYTES as usize)
            .next_multiple_of(64)
    }

    /// Bytes that an endpoint registers, and the kernel locks, for itself.
    pub(crate) fn registered_bytes(&self) -> usize {
        (self.receives + BOUNCES) * self.slot_bytes()
    }

    /// No read or write is longer than a message of the port may be, if the port states that.
    pub(crate) fn on_port(mut self, port: &PortAttributes) -> Self {
        if port.message_bytes > 0 {
            for chunk in [
                &mut self.rendezvous.read_chunk,
                &mut self.rendezvous.write_chunk,
            ] {
                *chunk = (*chunk).min(u64::from(port.message_bytes));
            }
        }
        self
    }

    pub(crate) fn of(limits: &DeviceLimits, quirks: Quirks, settings: &Settings) -> Self {
        // Receives and sends share a completion queue.
        let shares_receives = limits.shared_receive_queues > 0;
        let queue_depth = limits.queue_depth as usize;
        let wanted = (settings.rx_buffers as usize).min(limits.completion_depth as usize / 2);
        let (wanted, part, shared_depth) = match shares_receives {
            true => {
                let depth = limits.shared_receive_depth as usize;
                (wanted, datagram_part(settings.lane), depth)
            }
            false => (wanted.min(queue_depth), DATAGRAM_PART, usize::MAX),
        };
        let datagram_receives = (wanted / part)
            .max(LEAST_DATAGRAM_RECEIVES)
            .min(queue_depth);
        let for_lanes = wanted.saturating_sub(datagram_receives).min(shared_depth);
        let receives = datagram_receives + for_lanes;
        let send_places = (limits.completion_depth as usize)
            .saturating_sub(receives)
            .min(20_480);
        let send_total = send_places - send_places / 5;
        let send_depth = SEND_DEPTH.min(queue_depth);
        let send_free = send_total / 2;
        let lane_receives = LANE_RECEIVES.min(for_lanes / 2).max(1);
        let max_lanes = match shares_receives {
            true => settings.max_lanes as usize,
            false => (settings.max_lanes as usize).min(for_lanes / lane_receives),
        };
        // The data queue pair takes its requests from the rest.
        let shared = (send_total - send_free).saturating_sub(send_depth);
        // A software device copies in the kernel in any case, so requests of its own size cost
        // nothing more.
        let software = quirks.contains(Quirks::LONG_DATAGRAM_LOST);
        Self {
            // A long message takes a region for each piece, and many requests.
            max_message_bytes: MAX_MESSAGE_BYTES.min(limits.region_bytes) as usize,
            eager_bytes: settings.eager.0.map_or(EAGER_BYTES, |bytes| bytes as usize),
            single_frames: quirks.contains(Quirks::LONG_SEND_CRASHES),
            fragmented_bytes: match (settings.eager_max.0, settings.eager.0) {
                (Some(bytes), _) | (None, Some(bytes)) => bytes as usize,
                (None, None) if software => SOFTWARE_FRAGMENTED_BYTES,
                (None, None) => FRAGMENTED_BYTES,
            },
            inline_bytes: if software { 512 } else { 220 },
            send_entries: limits.entries.clamp(1, 2) as usize,
            sends: SendTuning {
                depth: send_depth,
                total: send_total,
                free: send_free,
                share: (shared / max_lanes.max(1)).clamp(1, send_depth),
                places: send_places,
            },
            receives,
            shares_receives,
            datagram_receives,
            lane_receives,
            rendezvous: RendezvousTuning {
                sender_writes: match settings.rendezvous {
                    Rendezvous::Read => false,
                    Rendezvous::Write => true,
                    Rendezvous::Auto => quirks.contains(Quirks::LONG_READ_TORN),
                },
                reads_are_torn: quirks.contains(Quirks::LONG_READ_TORN)
                    && settings.rendezvous != Rendezvous::Read,
                read_chunk: settings.read_chunk,
                // A software device sends all of a request before any other thread on its processor
                // has a turn; with too little under way it has nothing to do until the sender has a
                // turn.
                write_chunk: match software {
                    true => settings.read_chunk.min(64 << 10),
                    false => settings.read_chunk,
                },
                reads_per_lane: 16
                    .min(limits.reads_as_initiator)
                    .min(limits.reads_as_target)
                    .max(1),
                reads_per_message: 4,
                writes_per_lane: 4,
            },
            lane: settings.lane,
            max_lanes,
            waiting_sends: settings.waiting_sends as usize,
        }
    }
}
