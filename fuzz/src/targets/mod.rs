//! The parsers that take bytes of other processes, nodes and users, one module for each kind; and
//! the handshake, which takes packets of third parties.

mod addresses;
mod atomics;
mod forgeries;
mod hints;
mod packets;
mod queries;
mod shared_memory;
mod text;

use crate::FuzzTarget;

/// All of them.
pub const ALL: &[FuzzTarget] = &[
    addresses::BYTES,
    addresses::TEXT,
    hints::HINTS,
    queries::QUERIES,
    text::SETTINGS,
    packets::CONTROL,
    atomics::REQUESTS,
    packets::DATA,
    packets::DATAGRAM,
    packets::PRIVATE_DATA,
    forgeries::FORGERIES,
    shared_memory::HANDSHAKE,
    shared_memory::SEGMENT,
];

/// A seed's name and bytes.
fn seed(name: &str, bytes: impl Into<Vec<u8>>) -> (String, Vec<u8>) {
    (name.to_owned(), bytes.into())
}
