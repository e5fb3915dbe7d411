//! The ids that an endpoint gives to posted operations, for callers that match completions.

/// A send that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SendId(pub(crate) u64);

/// A receive that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecvId(pub(crate) u64);

/// A read of a peer's memory that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadId(pub(crate) u64);

/// A write to a peer's memory that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WriteId(pub(crate) u64);
