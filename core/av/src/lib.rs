//! Address vectors: tables that map the `FiAddr` of a peer to its address and back (fi_av(3),
//! `docs/adr/0015`).

#![deny(unsafe_code)]

mod arena;
pub mod async_insert;
mod attr;
mod batch;
mod chunk;
mod column;
mod doubling;
mod entry_index;
mod file_lock;
pub mod follow;
pub mod format;
mod head;
mod ids;
mod index;
pub mod keys;
mod leftovers;
#[allow(unsafe_code, reason = "mapped memory that the application reads")]
mod listing;
mod marks;
mod named;
mod ranges;
mod resolution;
mod resolver_pool;
mod resolving;
mod service;
mod sockets;
mod storage;
mod store;
mod subscriptions;
mod symmetric;
mod table;
mod unresolved;
mod version;
#[allow(unsafe_code, reason = "mapped memory as atomic words")]
mod words;

pub use async_insert::{InsertReport, InsertRequest};
pub use attr::AvAttr;
pub use entry_index::EntryIndex;
pub use keys::{AuthKeys, HeldKey};
pub use resolution::{admit, admit_nodes};
pub use resolver_pool::ResolverPool;
pub use service::{Closing, Resolve, ResolveRequest, Services, cancelled};
pub use table::{AvTable, Insertion, Paused, Placed, Reserved};
pub use unresolved::{Resolution, Unresolved};
