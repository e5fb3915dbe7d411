//! Shared modules of the tests of Ferrofabric on a real verbs device.
//!
//! Every test takes the device for itself (`#[file_serial(verbs)]`) and starts with [`Rig::open`],
//! which skips visibly where there is no device, or fails where FERRO_REQUIRE_DEVICE=1 says that
//! there must be one. FERRO_DEVICE names a device other than the first usable one.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod buffer;
pub mod cm_port;
pub mod cold_link;
pub mod dgram;
pub mod groups;
pub mod offers;
pub mod party;
mod rig;
pub mod sockets;
pub mod sums;
pub mod unprivileged;

pub use buffer::DeviceBuffer;
pub use rig::{Rig, completions, one_completion, psn_of};
