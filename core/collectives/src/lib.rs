//! Collective operations of a group of endpoints (docs/adr/0073): a state machine without I/O.
//!
//! An [`Engine`] has the groups of one endpoint, and their operations. It says which messages the
//! endpoint sends and receives, by [`Action`]s, and gets their ends. The module
//! `schedule` has the rounds of each operation.

mod engine;
mod group_id;
mod groups;
mod schedule;
mod tags;

pub use engine::{Action, Collective, Combine, Engine, MessageBytes, Outcome};
pub use group_id::GroupId;
pub use groups::Membership;
pub use tags::RESERVED_TAG;
