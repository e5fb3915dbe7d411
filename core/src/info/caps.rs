//! Capabilities (fi_getinfo(3)): which there are, and which of them come with which.

use crate::flags::Flags;

/// Capabilities that apply to sends (fi_endpoint(3), `fi_tx_attr::caps`).
pub const TX_CAPS: Flags = Flags::MSG
    .union(Flags::RMA)
    .union(Flags::TAGGED)
    .union(Flags::ATOMIC)
    .union(Flags::MULTICAST)
    .union(Flags::COLLECTIVE)
    .union(Flags::READ)
    .union(Flags::WRITE)
    .union(Flags::SEND)
    .union(Flags::TRIGGER)
    .union(Flags::FENCE)
    .union(Flags::XPU)
    .union(Flags::HMEM)
    .union(Flags::RMA_PMEM)
    .union(Flags::NAMED_RX_CTX);

/// Capabilities that apply to receives (fi_endpoint(3), `fi_rx_attr::caps`).
pub const RX_CAPS: Flags = Flags::MSG
    .union(Flags::RMA)
    .union(Flags::TAGGED)
    .union(Flags::ATOMIC)
    .union(Flags::COLLECTIVE)
    .union(Flags::RECV)
    .union(Flags::REMOTE_READ)
    .union(Flags::REMOTE_WRITE)
    .union(Flags::MULTI_RECV)
    .union(Flags::TRIGGER)
    .union(Flags::XPU)
    .union(Flags::TAGGED_DIRECTED_RECV)
    .union(Flags::TAGGED_MULTI_RECV)
    .union(Flags::HMEM)
    .union(Flags::EXACT_DIRECTED_RECV)
    .union(Flags::RMA_PMEM)
    .union(Flags::SOURCE_ERR)
    .union(Flags::RMA_EVENT)
    .union(Flags::SOURCE)
    .union(Flags::DIRECTED_RECV);
