//! Address vectors: tables that map the `FiAddr` of a peer to its address and back (fi_av(3), `docs/adr/0015`).

#[allow(dead_code, reason = "tables in files use the rest")]
mod arena;
#[allow(dead_code, reason = "tables in files use the rest")]
mod attr;
mod chunk;
pub mod format;
#[allow(dead_code, reason = "tables in files use the rest")]
mod head;
mod index;
pub(crate) mod later;
mod service;
#[allow(dead_code, reason = "tables in files use the rest")]
mod store;
mod table;
#[allow(unsafe_code, reason = "mapped memory as atomic words")]
mod words;

pub use attr::{AvAttr, AvType};
pub use later::{Report, Wanted};
pub use service::{Resolve, Services};
pub use table::{AvTable, Insertion, Placed, Reserved};
