//! Collective operations of a group of endpoints (docs/adr/0073, docs/adr/0094), without I/O.
//!
//! An [`Engine`] has the groups of one endpoint, and their operations: a state machine that says
//! which messages the endpoint sends and receives, by [`Action`]s, and gets their ends. The module
//! `schedule` has the rounds of each operation. The [`Driver`] carries the actions out, by a
//! [`Carrier`] for the messages and [`Reports`] for the ends of operations.

mod driver;
mod engine;
mod group_id;
mod groups;
mod message;
mod planner;
mod schedule;
mod tags;
mod waiting;

pub use driver::{Carrier, Driver, Reports, carry_out};
pub use engine::Engine;
pub use group_id::GroupId;
pub use groups::Membership;
pub use message::{Message, MessageMemory};
pub use planner::{Action, Collective, Combine, MessageBytes, Outcome, Planner};
pub use tags::RESERVED_TAG;
