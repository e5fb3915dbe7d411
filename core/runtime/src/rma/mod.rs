//! One-sided operations (fi_rma(3), fi_atomic(3)): what is decided and kept for them, without a
//! transport and without the objects of an application. `domain/rma` has the calls.
//!
//! [`plan`] decides how an operation is carried out. `operations` is what an endpoint keeps:
//! `as_initiator` for its own operations, `as_target` for those of its peers, and for both the
//! `grants` of regions to devices, the `orders` that operations keep, and the `outbox` of parts.
//! `atomics` has the instructions of atomic operations.

pub(crate) mod as_initiator;
pub(crate) mod as_target;
pub(crate) mod atomics;
pub(crate) mod grants;
pub(crate) mod operations;
pub(crate) mod ordering;
pub(crate) mod orders;
pub(crate) mod outbox;
pub mod plan;

pub use atomics::combine;
