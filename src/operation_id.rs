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

/// A join of a group that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct JoinId(pub(crate) u64);

/// A collective operation that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CollectiveId(pub(crate) u64);

/// A collective operation that has begun, whose elements for this member are a `V`: one element, or
/// a vector of them.
pub struct CollectedId<V> {
    pub(crate) id: CollectiveId,
    values: PhantomData<fn() -> V>,
}

/// An atomic operation that was posted, from which elements come back as a `V`: one element, or a
/// vector of them.
pub struct FetchId<V> {
    pub(crate) id: AtomicId,
    values: PhantomData<fn() -> V>,
}

/// An id of an operation with values.
macro_rules! id_with_values {
    ($name:ident, $id:ty, $completion:literal) => {
        impl<V> $name<V> {
            pub(crate) fn new(id: $id) -> Self {
                Self {
                    id,
                    values: PhantomData,
                }
            }

            #[doc = concat!("The operation, as its [completion](", $completion, ") names it.")]
            pub fn id(self) -> $id {
                self.id
            }
        }

        impl<V> Clone for $name<V> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<V> Copy for $name<V> {}

        impl<V> fmt::Debug for $name<V> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.id.0)
            }
        }
    };
}

id_with_values!(FetchId, AtomicId, "crate::CompletedOperation::Atomic");
id_with_values!(
    CollectedId,
    CollectiveId,
    "crate::CompletedOperation::Collective"
);
