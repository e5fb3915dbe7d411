//! Other providers of the same libfabric as peers of this one (fi_peer(3)), which is their owner.

pub mod host_provider;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the transport over it is not there yet")
)]
pub(crate) mod owner;
