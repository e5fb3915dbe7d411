//! The calls of one-sided operations (fi_rma(3), fi_atomic(3)): how an endpoint begins them, how the
//! parts of its own and its peers' operations come and go, and the regions that they reach.
//! `core/runtime/src/rma` has what is decided and kept for them.
//!
//! An operation begins in [`rma_calls`] or [`atomic_calls`], in the order that [`ordered_calls`]
//! keeps. The transport may carry it out ([`shortcut_calls`], [`mapped_atomic_calls`]); else it
//! becomes [`parts`]. At the target [`parts`] gives them memory of a [`region`], and
//! [`atomic_target`] carries atomic operations out. [`grant_parts`] are about grants of regions to
//! devices.

pub(super) mod atomic_calls;
mod atomic_target;
mod grant_parts;
mod mapped_atomic_calls;
pub(super) mod ordered_calls;
mod parts;
pub(super) mod region;
pub(super) mod rma_calls;
mod shortcut_calls;
