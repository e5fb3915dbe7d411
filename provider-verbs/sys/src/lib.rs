//! Bindings to libibverbs and librdmacm, loaded at run time.
//!
//! A program that uses this crate starts and runs where neither library is installed:
//! [`Verbs::load`] and [`Rdmacm::load`] find them with `dlopen` and say what is missing. The
//! layouts are those of rdma-core 56; the libraries keep them stable and grow only at the ends.
//!
//! | module | what |
//! |---|---|
//! | [`bindings`] | layouts, constants and function types of the pinned headers (generated) |
//! | [`library`] | the loaded libraries: one field per exported symbol |
//! | [`data_path`] | post, poll, arm, memory windows: calls through `ibv_context.ops` |
//! | [`extended`] | `ibv_wr_*`, `ibv_start_poll`, `ibv_wc_read_*`: for `ibv_qp_ex`, `ibv_cq_ex` |
//! | [`control_path`] | inline functions of the C headers on `verbs_context`, with fallbacks |
//!
//! Everything here is raw and keeps the C names; owners, errors and policy are the verbs
//! provider's.

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
#[rustfmt::skip]
pub mod bindings;
pub mod control_path;
pub mod data_path;
pub mod extended;
pub mod library;

pub use bindings::*;
pub use control_path::{verbs_context_of, verbs_context_with};
pub use data_path::*;
pub use extended::*;
pub use library::{LoadError, Rdmacm, Verbs};
