//! libfabric's provider interface as its headers have it.
//!
//! [`bindings`] is generated from libfabric 2.6's public headers and keeps the C names. Enums are
//! newtypes over integers (`fi_ep_type::FI_EP_RDM`), since an application may hand us any number;
//! flags are `u64`, errors and options `c_int`, classes of objects `usize`, as the fields and
//! parameters that take them. Signatures of the functions that libfabric itself offers are in
//! [`bindings::fns`]: it is found at run time.

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
#[rustfmt::skip]
pub mod bindings;
mod grown;
mod room;
mod rx_entry;
mod version;

pub use bindings::*;
pub(crate) use grown::read_as_of;
pub use room::Roomy;
pub(crate) use rx_entry::link_bytes;
pub use version::FI_VERSION;
