//! Address vectors: tables that map the `FiAddr` of a peer to its address and back (fi_av(3)).

mod table;

pub use table::{AvAttr, AvTable, AvType};
