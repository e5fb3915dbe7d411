//! The collective operations that programs call.

use ferrofabric_collectives::Collective;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::owning::{AtomicElement, ElementValues, bytes_of, combine};

use crate::endpoint::RdmEndpoint;
use crate::group::Group;
use crate::operation_error::OperationError;
use crate::operation_id::{CollectedId, CollectiveId, JoinId};
use crate::operator::Operator;

/// # Collective operations
///
/// Endpoints form a [`Group`], and its members call the same operations, in the same order: each
/// call begins one, and [`wait_for`](Self::wait_for) waits for it, as for a message. Endpoints with
/// groups are opened with [`collectives`](crate::RdmEndpointBuilder::collectives). Elements are
/// those of [atomic operations](Self#atomic-operations), and are copied.
///
/// ```
/// use std::time::Duration;
///
/// use ferrofabric::{Operator, PathChoice, RdmEndpoint};
///
/// let timeout = Some(Duration::from_secs(10));
/// let open = || RdmEndpoint::builder().path(PathChoice::Shm).collectives(true).open();
/// let (mut first, mut second) = (open()?, open()?);
/// let addresses = [first.address(), second.address()];
///
/// // The other member, which is a process of its own elsewhere.
/// let other = std::thread::spawn(move || {
///     let members = [second.insert(addresses[0])?, second.insert(addresses[1])?];
///     let join = second.join(&members)?;
///     let group = second.wait_for(join, timeout)?;
///     let sum = second.allreduce(&group, Operator::SUM, &[30, 4])?;
///     assert_eq!(second.wait_for(sum, timeout)?, [31, 6]);
///     let all = second.allgather(&group, 2.5)?;
///     Ok::<_, ferrofabric::Error>(second.wait_for(all, timeout)?)
/// });
///
/// let members = [first.insert(addresses[0])?, first.insert(addresses[1])?];
/// let join = first.join(&members)?;
/// let group = first.wait_for(join, timeout)?;
/// let sum = first.allreduce(&group, Operator::SUM, &[1, 2])?;
/// let all = first.allgather(&group, 1.5)?;
/// assert_eq!(first.wait_for(sum, timeout)?, [31, 6]);
/// assert_eq!(first.wait_for(all, timeout)?, [1.5, 2.5]);
/// # assert_eq!(other.join().expect("no panic")?, [1.5, 2.5]);
/// # Ok::<(), ferrofabric::Error>(())
/// ```
///
/// A group fails as a whole. If a member is gone, leaves the group, or has another number of
/// elements than the others, the operations of all fail, and later ones are refused: those that
/// remain leave the group, and join another one. A call that waits notices the death of a member
/// whose message it waits for, within some seconds through shared memory, and over verbs
/// [as a send does](crate#peers-that-are-gone). A future notices it when another completion comes,
/// and a program that waits on the [descriptor](Self::prepare_wait) when it polls.
///
/// Operations move on in the calls of the members. The messages of one that is over may still be
/// under way: a member flushes them ([`flush`](Self::flush)) before it computes for long.
impl RdmEndpoint {
    /// Joins a group. All members call this with the same endpoints in the same order, this one
    /// among them; the members' places are their ranks. [`wait_for`](Self::wait_for) returns the
    /// [`Group`] once the others have called it, too.
    ///
    /// Members that join several groups of the same endpoints join them in the same order.
    ///
    /// # Errors
    ///
    /// `ENOSYS`: the endpoint was opened without
    /// [`collectives`](crate::RdmEndpointBuilder::collectives). `EINVAL`: this endpoint is not
    /// among the members, or one is there twice. `EADDRNOTAVAIL`: no such peer. `EAGAIN`
    /// ([`OperationError::is_again`]): its address is still being resolved.
    pub fn join(&mut self, members: &[FiAddr]) -> Result<JoinId, OperationError> {
        let refused = |errno| {
            let why = match errno {
                Errno::EINVAL => "members are different endpoints, and this one is among them",
                errno => why_refused(errno),
            };
            OperationError::of_join(None, errno, why)
        };
        let begun = self
            .begin_collective(|collectives, inner, token| collectives.join(inner, token, members));
        begun.map(JoinId).map_err(refused)
    }

    /// Leaves a group. Its operations that are under way fail, at the other members, too.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is a group of another endpoint.
    pub fn leave(&mut self, group: Group) -> Result<()> {
        let left = self.with_collectives(|collectives, inner| collectives.leave(inner, &group));
        left.map_err(|errno| Error::new(errno, "leave", "a group of another endpoint"))
    }

    /// A barrier: it ends at no member before all have called it.
    ///
    /// # Errors
    ///
    /// `EINVAL`: this endpoint has left the group, or it is one of another endpoint. The error with
    /// which the group has failed.
    pub fn barrier(&mut self, group: &Group) -> Result<CollectiveId, OperationError> {
        self.collective(group, Ok((Collective::Barrier, Vec::new())))
    }

    /// Copies the values of a member, the root, to all. The others pass as many values, which are
    /// ignored.
    ///
    /// # Errors
    ///
    /// As [`barrier`](Self::barrier). `EINVAL`: the root is no member. `EMSGSIZE`: more bytes than
    /// a message has, `ep.max_msg_size` of the domain's [`info`](crate::fabric::Domain::info).
    pub fn broadcast<T: AtomicElement, V: ElementValues<T>>(
        &mut self,
        group: &Group,
        root: FiAddr,
        values: V,
    ) -> Result<CollectedId<V::Fetched>, OperationError> {
        let root = group.rank_of(root).ok_or(Errno::EINVAL);
        let collective = root.map(|root| (Collective::Broadcast { root }, bytes(values)));
        self.collective(group, collective).map(CollectedId::new)
    }

    /// Combines the values of all members, the first ones of each, the second ones of each, and so
    /// on, in the order of ranks. All get the same bits, of floats too.
    ///
    /// # Errors
    ///
    /// As [`broadcast`](Self::broadcast). `EOPNOTSUPP`: the order of the members changes the
    /// operator's result ([`Operator::DIFFERENCE`]).
    pub fn allreduce<T: AtomicElement, V: ElementValues<T>>(
        &mut self,
        group: &Group,
        operator: Operator<T>,
        values: V,
    ) -> Result<CollectedId<V::Fetched>, OperationError> {
        let collective = match operator.reduces() {
            false => Err(Errno::EOPNOTSUPP),
            true => {
                let operator = operator.operator;
                let collective = Collective::Allreduce {
                    datatype: T::DATATYPE,
                    operator,
                    combine: Box::new(move |lower, upper| combine::<T>(operator, lower, upper)),
                };
                Ok((collective, bytes(values)))
            }
        };
        self.collective(group, collective).map(CollectedId::new)
    }

    /// Collects the values of all members, which have as many each, in the order of ranks.
    ///
    /// # Errors
    ///
    /// As [`broadcast`](Self::broadcast).
    pub fn allgather<T: AtomicElement, V: ElementValues<T>>(
        &mut self,
        group: &Group,
        values: V,
    ) -> Result<CollectedId<Vec<T>>, OperationError> {
        let collective = Ok((Collective::Allgather, bytes(values)));
        self.collective(group, collective).map(CollectedId::new)
    }

    /// Hands `count` values of the root to each member: the first ones to that of rank 0, and so
    /// on. The root's values are as many for all members; those of others are ignored.
    ///
    /// # Errors
    ///
    /// As [`broadcast`](Self::broadcast). `EINVAL`: the root has more or fewer values.
    pub fn scatter<T: AtomicElement>(
        &mut self,
        group: &Group,
        root: FiAddr,
        values: &[T],
        count: usize,
    ) -> Result<CollectedId<Vec<T>>, OperationError> {
        let block = count.checked_mul(size_of::<T>());
        let root = group.rank_of(root).ok_or(Errno::EINVAL);
        let collective = root.and_then(|root| {
            let block = block.ok_or(Errno::EMSGSIZE)?;
            Ok((Collective::Scatter { root, block }, bytes(values)))
        });
        self.collective(group, collective).map(CollectedId::new)
    }

    /// Begins an operation on some bytes.
    fn collective(
        &mut self,
        group: &Group,
        operation: Result<(Collective, Vec<u8>), Errno>,
    ) -> Result<CollectiveId, OperationError> {
        let max_msg = self.domain().info().ep.max_msg_size;
        let begun = operation.and_then(|(collective, bytes)| {
            let members = group.members().len();
            let largest = match collective {
                Collective::Allgather => bytes.len().checked_mul(members),
                Collective::Scatter { block, .. } => block.checked_mul(members),
                _ => Some(bytes.len()),
            };
            if largest.is_none_or(|largest| largest > max_msg) {
                return Err(Errno::EMSGSIZE);
            }
            self.begin_collective(|collectives, inner, token| {
                collectives.begin(inner, token, group, collective, bytes)
            })
        });
        let refused = |errno| OperationError::of_collective(None, errno, why_refused(errno));
        begun.map(CollectiveId).map_err(refused)
    }
}

fn bytes<T: AtomicElement>(values: impl ElementValues<T>) -> Vec<u8> {
    bytes_of(values.as_elements())
}

/// The reason of a refusal, where the errno alone does not say it.
fn why_refused(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOSYS => "open the endpoint with RdmEndpointBuilder::collectives",
        Errno::EAGAIN => "an address is still being resolved: call again",
        Errno::EINVAL => {
            "it is a group that this endpoint has joined and not left, its root is a member, and \
             has the values of all"
        }
        Errno::EMSGSIZE => "a message has fewer bytes",
        Errno::EOPNOTSUPP => "its result depends on the order of the members",
        Errno::ECONNABORTED | Errno::ECONNRESET | Errno::ESHUTDOWN | Errno::EHOSTUNREACH => {
            "the group has failed: leave it"
        }
        _ => "",
    }
}
