//! The output of each kind of operation, by the id that the operation has.

use ferrofabric_runtime::owning::{Buffer, FetchedValues};

use crate::group::Group;
use crate::operation::{CompletedOperation, ReceivedMessage};
use crate::operation_error::OperationError;
use crate::operation_id::{
    AtomicId, CollectedId, CollectiveId, FetchId, JoinId, ReadId, RecvId, SendId, WriteId,
};

/// The name of an operation: [`SendId`], [`RecvId`], [`ReadId`], [`WriteId`], [`AtomicId`],
/// [`FetchId`], [`JoinId`], [`CollectiveId`] or [`CollectedId`].
pub trait OperationId: Copy + Unpin + sealed::OperationToken {
    /// The output of the operation when it succeeds.
    type Output;
}

impl OperationId for SendId {
    /// The buffer that was sent.
    type Output = Buffer;
}

impl OperationId for RecvId {
    /// The message.
    type Output = ReceivedMessage;
}

impl OperationId for ReadId {
    /// The buffer, which starts with the bytes that were read.
    type Output = Buffer;
}

impl OperationId for WriteId {
    /// The buffer that was written from.
    type Output = Buffer;
}

impl OperationId for AtomicId {
    /// Nothing.
    type Output = ();
}

impl<V: FetchedValues> OperationId for FetchId<V> {
    /// The elements from before the operation.
    type Output = V;
}

impl OperationId for JoinId {
    /// The group.
    type Output = Group;
}

impl OperationId for CollectiveId {
    /// Nothing.
    type Output = ();
}

impl<V: FetchedValues> OperationId for CollectedId<V> {
    /// The elements for this member.
    type Output = V;
}

pub(crate) mod sealed {
    use super::{AtomicId, FetchId, FetchedValues, ReadId, RecvId, SendId, WriteId};
    use super::{CollectedId, CollectiveId, JoinId};
    use super::{CompletedOperation, OperationError, OperationId};

    /// Identifies an operation among those of its endpoint.
    pub trait OperationToken {
        /// The number.
        fn token(self) -> u64;

        /// Whether this completion is the operation's.
        fn names(self, completed: &CompletedOperation) -> bool;

        /// The output in the completion of this operation; `None` for one of another kind.
        fn output(
            completed: CompletedOperation,
        ) -> Option<Result<<Self as OperationId>::Output, OperationError>>
        where
            Self: OperationId;
    }

    /// An id, the variant with the output of its operation, and the id in an error.
    macro_rules! operation_token {
        ($id:ty, $variant:ident, $in_error:ident) => {
            impl OperationToken for $id {
                fn token(self) -> u64 {
                    self.0
                }

                fn names(self, completed: &CompletedOperation) -> bool {
                    match completed {
                        CompletedOperation::$variant(id, _) => *id == self,
                        CompletedOperation::Failed(error) => error.$in_error() == Some(self),
                        _ => false,
                    }
                }

                fn output(
                    completed: CompletedOperation,
                ) -> Option<Result<<Self as OperationId>::Output, OperationError>> {
                    match completed {
                        CompletedOperation::$variant(_, output) => Some(Ok(output)),
                        CompletedOperation::Failed(error) => Some(Err(error)),
                        _ => None,
                    }
                }
            }
        };
    }

    operation_token!(SendId, Sent, send_id);
    operation_token!(RecvId, Received, recv_id);
    operation_token!(ReadId, Read, read_id);
    operation_token!(WriteId, Wrote, write_id);

    operation_token!(JoinId, Joined, join_id);

    /// As above, for operations whose output has elements or not.
    macro_rules! token_of_elements {
        ($id:ident, $with_values:ident, $variant:ident, $in_error:ident) => {
            impl OperationToken for $id {
                fn token(self) -> u64 {
                    self.0
                }

                fn names(self, completed: &CompletedOperation) -> bool {
                    match completed {
                        CompletedOperation::$variant(id, _) => *id == self,
                        CompletedOperation::Failed(error) => error.$in_error() == Some(self),
                        _ => false,
                    }
                }

                fn output(completed: CompletedOperation) -> Option<Result<(), OperationError>> {
                    match completed {
                        CompletedOperation::$variant(..) => Some(Ok(())),
                        CompletedOperation::Failed(error) => Some(Err(error)),
                        _ => None,
                    }
                }
            }

            impl<V: FetchedValues> OperationToken for $with_values<V> {
                fn token(self) -> u64 {
                    self.id.token()
                }

                fn names(self, completed: &CompletedOperation) -> bool {
                    self.id.names(completed)
                }

                fn output(
                    completed: CompletedOperation,
                ) -> Option<Result<<Self as OperationId>::Output, OperationError>> {
                    match completed {
                        CompletedOperation::$variant(_, elements) => Some(Ok(elements.to_values())),
                        CompletedOperation::Failed(error) => Some(Err(error)),
                        _ => None,
                    }
                }
            }
        };
    }

    token_of_elements!(AtomicId, FetchId, Atomic, atomic_id);
    token_of_elements!(CollectiveId, CollectedId, Collective, collective_id);
}
