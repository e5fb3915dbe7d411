//! The UD lane: a session's numbered packets over datagrams that get lost, repeated and reordered.
//!
//! ```text
//!   sender                                        receiver
//!     [`DatagramLane::next_packet`] ── n, n+1 ──►  [`DatagramLane::arrive`]: deliver, hold, drop
//!     [`DatagramLane::on_ack`]   ◄── next, held ──  [`DatagramLane::ack`], in every datagram
//! ```
//!
//! The numbers are the session's ([`crate::session`]), not the lane's. The lane that brings a
//! packet first delivers it; a packet that comes again, on any lane, is a repeat. So a session
//! moves from this lane to RC and back with nothing but [`DatagramLane::pause`] and
//! [`DatagramLane::resume`]: it sends its unconfirmed packets again.
//!
//! * *Window.* Starts small, grows with each arrival, is halved once per round trip that loses
//!   something.
//! * *Loss* is seen from acknowledgements: packets sent later have arrived, by a margin that grows
//!   where the network is seen to reorder. Only where nothing arrives a timeout sends the oldest
//!   packet again, as a probe.
//! * *Acknowledgements* ride on what goes the other way. One alone goes out after a delay, every
//!   few packets, and at once where the sender waits for it or something is missing.
//! * *Silence is not death.* Probes go on for ever, at a capped interval.
//! * *Distrust.* Each claim of the peer is checked against the packets that were sent, before
//!   anything changes.

mod congestion;
mod flights;
mod lane;
mod loss;
mod receiver;
mod sender;

pub use lane::DatagramLane;
pub use receiver::{HeldPacket, PacketArrival};
pub use sender::OutgoingPacket;

use std::time::Duration;

/// How UD lanes behave; the same for all lanes of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct DatagramLaneConfig {
    /// Packets under way at the start, and after a long silence.
    pub initial_window: u32,
    /// Packets under way at most; not more than [`super::wire::datagram::SPAN`].
    pub max_window: u32,
    /// Wait for an acknowledgement before a round trip was measured: about that of the handshake.
    pub initial_timeout: Duration,
    /// Shortest wait for an acknowledgement, [`DatagramLaneConfig::ack_delay`] not included.
    pub min_timeout: Duration,
    /// Longest wait between probes.
    pub max_interval: Duration,
    /// How long an acknowledgement waits for a packet to ride on.
    pub ack_delay: Duration,
    /// Packets upon which it waits no longer.
    pub ack_every: u32,
    /// Unanswered probes in a row after which the peer may be gone.
    pub suspect_after: u32,
}

impl Default for DatagramLaneConfig {
    fn default() -> Self {
        DatagramLaneConfig {
            initial_window: 8,
            max_window: 64,
            initial_timeout: Duration::from_millis(20),
            min_timeout: Duration::from_millis(1),
            max_interval: Duration::from_secs(1),
            ack_delay: Duration::from_micros(250),
            ack_every: 8,
            suspect_after: 4,
        }
    }
}

/// State that all UD lanes of an endpoint share.
#[derive(Clone, Debug, Default)]
pub struct SharedLaneState {
    /// How they behave.
    pub config: DatagramLaneConfig,
    /// Sums over the lanes of the endpoint.
    pub counters: DatagramLaneCounters,
}

/// Counts of the events on lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramLaneCounters {
    /// Numbered packets sent, repeats included.
    pub sent: u64,
    /// Of those, repeats.
    pub repeated: u64,
    /// Of those, repeats that only a timeout called for.
    pub probes: u64,
    /// Packets taken for lost that then turned out not to be.
    pub needless: u64,
    /// Numbered packets that had arrived before.
    pub duplicates: u64,
    /// Numbered packets that were too far ahead, or for which there was no room.
    pub dropped: u64,
}

#[cfg(test)]
mod tests;
