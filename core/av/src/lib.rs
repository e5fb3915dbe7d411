//! Address vectors (fi_av(3)): tables that map the `FiAddr` of a peer to its address and back.
//!
//! A domain opens one [`AvTable`] for each address vector. Applications change it through
//! `core/runtime/src/domain/av.rs`. Endpoints read it through
//! [`PeerAv`](ferrofabric_contracts::peer::PeerAv), without a lock: at the first send to an
//! address, and to find the source of a message.
//!
//! # The way of an address
//!
//! ```text
//!  insert                                               look-up         reverse look-up
//!  format.rs    bytes → native or socket address        FiAddr          native address
//!  service.rs   node, service → socket addresses          │                  │
//!     │                                                   │ table.rs         │ index.rs
//!     │ in the call, or on a thread (async_insert.rs)     ▼                  ▼
//!  table/insertion.rs ──── in the turn ────────► entry: address and generation (chunk.rs)
//!     │                                             ▲                  │
//!     │ a socket address takes an entry             │ resolved         │ remove, in the turn
//!     │ that has no native address yet              │                  ▼
//!     └► unresolved.rs ─ resolver_pool.rs ─ resolving.rs         generation even again
//!                                                                      │
//!  after the turn: transports are notified                             ▼
//!  (subscriptions.rs; follow.rs for a named table)      table/peer.rs: transports that use the
//!                                                       entry are notified, then it is free
//! ```
//!
//! # Parts and files
//!
//! - *Table*: `table.rs` has [`AvTable`], `table/insertion.rs` an [`Insertion`], `table/turn.rs`
//!   the turn of writers, `table/peer.rs` the calls of endpoints. `attr.rs` has [`AvAttr`], and how
//!   a `FiAddr` is made up of entry and generation.
//! - *Entries*: `storage.rs` is the choice between ordinary (`store.rs`) and symmetric tables.
//!   `chunk.rs` is a piece of entries, each of 64 bytes of address and a generation; `doubling.rs`
//!   counts pieces; `marks.rs` finds the lowest free entry.
//! - *Symmetric vectors* (`FI_SYMMETRIC`): `symmetric.rs` stores the node's part of an address
//!   once; an entry takes 80 bits in `symmetric/entry_lines.rs`.
//! - *Reverse look-up*: from a native address to its entry in `index.rs`, in symmetric tables in
//!   `symmetric/reverse_index.rs`; from a socket address in `sockets.rs`. [`EntryIndex`] is an
//!   index for other owners.
//! - *Many look-ups in one call*: `batch.rs` ([`AvTable::lookup_all`], [`AvTable::find_all`])
//!   overlaps their cache misses.
//! - *Memory*: `words.rs` maps atomic words of the process or of a file, `arena.rs` places pieces
//!   there, `head.rs` is the head of a table, `column.rs` a number for each entry. `words.rs` and
//!   `listing.rs` have the only `unsafe` code.
//! - *Named files*: `named.rs` is a table in `/dev/shm` that the processes of a user share,
//!   `file_lock.rs` its locks, `listing.rs` the array of its `map_addr`, `leftovers.rs` the removal
//!   of files that killed processes have left.
//! - *Names*: [`format`](mod@format) parses the addresses of an application. `service.rs` looks up
//!   nodes ([`Services`]) and has [`Resolve`], which a provider implements.
//! - *Asynchronous insertion* (`FI_EVENT`): [`async_insert`] has up to four threads, which write an
//!   event for each failure and one at the end of a call.
//! - *Unresolved entries*: `unresolved.rs` and `unresolved/` have their state, `resolution.rs`
//!   takes them in, `resolving.rs` starts and ends a resolution, [`ResolverPool`] has the threads.
//! - *Ranges* (N nodes × K ports in O(N + K) memory): `ranges.rs` stores them,
//!   `resolving/insertion.rs` inserts them. The first use of an entry starts its resolution.
//! - *Subscriptions to changes*: `subscriptions.rs` marks the entries that transports of this
//!   process use, and whether they have unknown sources; [`follow`] lists the changes of other
//!   processes.
//! - *Users' IDs* (`FI_AV_USER_ID`): `ids.rs`.
//! - *Authorization keys* (`FI_AV_AUTH_KEY`): [`keys`].
//!
//! # Invariants
//!
//! - *An entry never moves.* A table grows by further pieces, each as long as all before it.
//! - *Generations.* The generation of an entry (24 bits) is odd while a native address is in, and
//!   grows with each insertion and removal. A MAP address holds the generation, so a removed one is not found.
//!   A TABLE address is the bare entry, lowest free one first. Resolution does not change a
//!   `FiAddr`: it is made with the generation that the entry will have once it is resolved. Where
//!   another endpoint replaces a lost one, the incarnation (generation, and a count above it)
//!   changes, and the generation stays.
//! - *Writers take turns.* Only the holder of the turn changes entries and index: one thread, and
//!   for a named table one process. No thread waits for the turn while it holds the domain's lock,
//!   or for that lock in its turn.
//! - *Readers take no lock.* A reader loads the generation, then the address, then the generation
//!   again. If both are equal and odd, the address is whole. A symmetric table counts the removals
//!   of a cache line instead. A search that finds nothing is repeated if a writer was at work
//!   (`version.rs`), and in the end compares each entry, so a stopped writer blocks no reader.
//! - *No change is missed.* A transport marks an entry as used, then looks the entry up again. A
//!   writer removes the address, then reads the mark. A fence stands between the two steps on both
//!   sides, so at least one side sees the other.
//! - *A removed entry is free last.* Transports that use it are notified before another address can
//!   get it.
//! - *A killed writer leaves a table that the next one mends.* A writer enters its entry in the
//!   file's journal (`head.rs`) before it changes that entry.
//! - *Unresolved entries have a lock of their own.* A send to a resolved entry does not take it.
//!
//! # Reasons
//!
//! `docs/adr`: 15 (tables, named files, asynchronous insertion), 32 (symmetric vectors), 36
//! (ranges), 38 (subscriptions), 42 (unresolved entries), 45 (turns and locks), 46 (stopped and
//! killed processes), 87 (lost endpoints). `docs/keys.md` describes the keys.

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
pub use resolving::RefoundEndpoint;
pub use service::{Closing, Resolve, ResolveRequest, Services, cancelled};
pub use table::{AvTable, Insertion, Paused, Placed, Reserved};
pub use unresolved::{Resolution, Unresolved};
