//! One-sided operations (fi_rma(3), fi_atomic(3)): what is decided and kept for them, without a
//! transport and without the objects of an application. `domain/rma` has the calls.

pub mod plan;
