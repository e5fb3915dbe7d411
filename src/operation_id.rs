//! The ids that an endpoint gives to posted operations, for callers that match completions.

use std::fmt;
use std::marker::PhantomData;

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

/// An atomic operation on a peer's memory that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicId(pub(crate) u64);

/// An atomic operation that was posted, from which elements come back as a `V`: one element, or a
/// vector of them.
pub struct FetchId<V> {
    pub(crate) id: AtomicId,
    values: PhantomData<fn() -> V>,
}

impl<V> FetchId<V> {
    pub(crate) fn new(id: AtomicId) -> Self {
        Self {
            id,
            values: PhantomData,
        }
    }

    /// The operation, as its [completion](crate::CompletedOperation::Atomic) names it.
    pub fn id(self) -> AtomicId {
        self.id
    }
}

impl<V> Clone for FetchId<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for FetchId<V> {}

impl<V> fmt::Debug for FetchId<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FetchId({})", self.id.0)
    }
}
