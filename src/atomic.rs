//! Atomic operations of an endpoint on elements of its peers.

use ferrofabric_contracts::atomics::{AtomicForm, AtomicOp, AtomicOperator};
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, MrDesc};
use ferrofabric_runtime::owning::{AtomicElement, AtomicValues, ElementValues, SharedElements};

use crate::atomic_region::{AtomicRegion, RemoteAtomicRegion};
use crate::endpoint::{Patience, RdmEndpoint};
use crate::operation_error::OperationError;
use crate::operation_id::{AtomicId, FetchId};
use crate::operator::{CompareOperator, Operator};
use crate::region::{AllowsRead, AllowsWrite, RegionRights};

/// # Atomic operations
///
/// A peer [shares](Self::share_atomic) elements: integers of 8 to 128 bits, `f32` or `f64`. This
/// endpoint then changes them, each in one step: [`atomic`](Self::atomic) returns nothing,
/// [`fetch_atomic`](Self::fetch_atomic) and [`compare_atomic`](Self::compare_atomic) return the
/// elements from before, [`atomic_read`](Self::atomic_read) changes none. The values are one
/// element or a slice of them, and are copied.
///
/// ```
/// use std::time::Duration;
///
/// use ferrofabric::info::Progress;
/// use ferrofabric::{AtomicRegion, CompareOperator, Operator, PathChoice, RdmEndpoint};
///
/// let timeout = Some(Duration::from_secs(10));
/// let options = || RdmEndpoint::builder().path(PathChoice::Shm);
/// // A thread of its domain carries the peer's operations out.
/// let server = options().progress(Progress::Auto).open()?;
/// let mut client = options().open()?;
/// let to_server = client.insert(server.address())?;
///
/// let region: AtomicRegion<u64> = server.share_atomic(&[1, 2, 3])?;
/// let remote = region.remote();
///
/// // Several elements, and nothing comes back.
/// let sums = client.atomic(to_server, remote, Operator::SUM, &[10, 20, 30])?;
/// client.wait_for(sums, timeout)?;
/// assert_eq!(region.load(2)?, 33);
///
/// // One element: fetch-and-add, then compare-and-swap.
/// let first = remote.element(0)?;
/// let before = client.fetch_atomic(to_server, first, Operator::SUM, 1)?;
/// assert_eq!(client.wait_for(before, timeout)?, 11);
/// let swap = client.compare_atomic(to_server, first, CompareOperator::EQUAL, 12, 7)?;
/// assert_eq!(client.wait_for(swap, timeout)?, 12);
///
/// let all = client.atomic_read(to_server, remote)?;
/// assert_eq!(client.wait_for(all, timeout)?, [7, 22, 33]);
/// # Ok::<(), ferrofabric::Error>(())
/// ```
impl RdmEndpoint {
    /// Lets peers reach a copy of these elements by atomic operations, with the rights of `R`,
    /// until the region is closed.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there are no elements.
    pub fn share_atomic<T: AtomicElement, R: RegionRights>(
        &self,
        elements: &[T],
    ) -> Result<AtomicRegion<T, R>> {
        let elements = SharedElements::open(&**self.domain(), elements, R::RIGHTS)?;
        Ok(AtomicRegion::over(elements))
    }

    /// As [`share_atomic`](Self::share_atomic), in memory that processes of this node can map, as
    /// [`Buffer::shared`](crate::Buffer::shared) describes it. A peer on this node changes elements
    /// of 64 bits at most by itself, by instructions of its processor, without a call of this side.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there are no elements. Else as [`Buffer::shared`](crate::Buffer::shared).
    pub fn share_atomic_mapped<T: AtomicElement, R: RegionRights>(
        &self,
        elements: &[T],
    ) -> Result<AtomicRegion<T, R>> {
        let elements = SharedElements::open_mapped(&**self.domain(), elements, R::RIGHTS)?;
        Ok(AtomicRegion::over(elements))
    }

    /// Changes the first elements of a peer's region, as many as there are values: each to the
    /// operator's result of it and its value.
    ///
    /// The peer's endpoint has this endpoint's address in its address vector: it sends the reply
    /// there. Atomic operations on a peer are carried out in the order in which they were posted;
    /// they have no order with reads, writes and messages. Waits until there is capacity for the
    /// operation: see [above](Self#back-pressure). 1024 reads and atomic operations are under way
    /// at most.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there are no values, or more of them than elements in the piece. `EMSGSIZE`: more
    /// than [`MAX_ELEMENTS`](RemoteAtomicRegion::MAX_ELEMENTS). Else as [`send`](Self::send).
    ///
    /// The operation itself fails with `EACCES` if the region is closed, has no such elements or
    /// gives no such right: then no element is changed. It fails with `ECANCELED` if this endpoint
    /// removes the peer's address before the reply is here: the elements may be changed.
    pub fn atomic<T: AtomicElement, R: AllowsWrite>(
        &mut self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, R>,
        operator: Operator<T>,
        values: impl ElementValues<T>,
    ) -> Result<AtomicId, OperationError> {
        self.post_atomic(to, remote, operator, &values, Patience::Waits)
    }

    /// As [`atomic`](Self::atomic), without a wait.
    ///
    /// # Errors
    ///
    /// As there. `EAGAIN` ([`OperationError::is_again`]): there is no capacity now.
    pub fn try_atomic<T: AtomicElement, R: AllowsWrite>(
        &mut self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, R>,
        operator: Operator<T>,
        values: impl ElementValues<T>,
    ) -> Result<AtomicId, OperationError> {
        self.post_atomic(to, remote, operator, &values, Patience::Tries)
    }

    pub(crate) fn post_atomic<T: AtomicElement, R: AllowsWrite>(
        &mut self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, R>,
        operator: Operator<T>,
        values: &impl ElementValues<T>,
        patience: Patience,
    ) -> Result<AtomicId, OperationError> {
        let values = AtomicValues {
            operands: values.as_elements(),
            compares: &[],
            results: 0,
        };
        let op = operation(AtomicForm::Base, operator.operator, to, &remote);
        self.post_checked(op, values, remote.len(), patience)
    }

    /// As [`atomic`](Self::atomic), and returns the elements from before: as `T` for one value, as
    /// `Vec<T>` for a slice.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn fetch_atomic<T: AtomicElement, R: AllowsRead + AllowsWrite, V: ElementValues<T>>(
        &mut self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, R>,
        operator: Operator<T>,
        values: V,
    ) -> Result<FetchId<V::Fetched>, OperationError> {
        self.post_fetch_atomic(to, remote, operator, &values, Patience::Waits)
    }

    /// As [`fetch_atomic`](Self::fetch_atomic), without a wait.
    ///
    /// # Errors
    ///
    /// As there. `EAGAIN` ([`OperationError::is_again`]): there is no capacity now.
    pub fn try_fetch_atomic<T: AtomicElement, R: AllowsRead + AllowsWrite, V: ElementValues<T>>(
        &mut self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, R>,
        operator: Operator<T>,
        values: V,
    ) -> Result<FetchId<V::Fetched>, OperationError> {
        self.post_fetch_atomic(to, remote, operator, &values, Patience::Tries)
    }

    pub(crate) fn post_fetch_atomic<
        T: AtomicElement,
        R: AllowsRead + AllowsWrite,
        V: ElementValues<T>,
    >(
        &mut self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, R>,
        operator: Operator<T>,
        values: &V,
        patience: Patience,
    ) -> Result<FetchId<V::Fetched>, OperationError> {
        let operands = values.as_elements();
        let values = AtomicValues {
            operands,
            compares: &[],
            results: operands.len(),
        };
        let op = operation(AtomicForm::Fetch, operator.operator, to, &remote);
        self.post_checked(op, values, remote.len(), patience)
            .map(FetchId::new)
    }

    /// Changes the first elements of a peer's region to `values`, each if its compare value meets
    /// the operator, and returns the elements from before, as
    /// [`fetch_atomic`](Self::fetch_atomic) does.
    ///
    /// # Errors
    ///
    /// As [`atomic`](Self::atomic). `EINVAL`: there are not as many compare values as values.
    pub fn compare_atomic<T: AtomicElement, R: AllowsRead + AllowsWrite, V: ElementValues<T>>(
        &mut self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, R>,
        operator: CompareOperator<T>,
        compares: V,
        values: V,
    ) -> Result<FetchId<V::Fetched>, OperationError> {
        self.post_compare_atomic(to, remote, operator, &compares, &values, Patience::Waits)
    }

    /// As [`compare_atomic`](Self::compare_atomic), without a wait.
    ///
    /// # Errors
    ///
    /// As there. `EAGAIN` ([`OperationError::is_again`]): there is no capacity now.
    pub fn try_compare_atomic<
        T: AtomicElement,
        R: AllowsRead + AllowsWrite,
        V: ElementValues<T>,
    >(
        &mut self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, R>,
        operator: CompareOperator<T>,
        compares: V,
        values: V,
    ) -> Result<FetchId<V::Fetched>, OperationError> {
        self.post_compare_atomic(to, remote, operator, &compares, &values, Patience::Tries)
    }

    pub(crate) fn post_compare_atomic<
        T: AtomicElement,
        R: AllowsRead + AllowsWrite,
        V: ElementValues<T>,
    >(
        &mut self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, R>,
        operator: CompareOperator<T>,
        compares: &V,
        values: &V,
        patience: Patience,
    ) -> Result<FetchId<V::Fetched>, OperationError> {
        let operands = values.as_elements();
        let values = AtomicValues {
            operands,
            compares: compares.as_elements(),
            results: operands.len(),
        };
        let op = operation(AtomicForm::Compare, operator.operator, to, &remote);
        self.post_checked(op, values, remote.len(), patience)
            .map(FetchId::new)
    }

    /// Reads all elements of a peer's region, or of a [piece](RemoteAtomicRegion::slice) of it,
    /// each in one step.
    ///
    /// # Errors
    ///
    /// As [`atomic`](Self::atomic).
    pub fn atomic_read<T: AtomicElement, R: AllowsRead>(
        &mut self,
        from: FiAddr,
        remote: RemoteAtomicRegion<T, R>,
    ) -> Result<FetchId<Vec<T>>, OperationError> {
        self.post_atomic_read(from, remote, Patience::Waits)
    }

    /// As [`atomic_read`](Self::atomic_read), without a wait.
    ///
    /// # Errors
    ///
    /// As there. `EAGAIN` ([`OperationError::is_again`]): there is no capacity now.
    pub fn try_atomic_read<T: AtomicElement, R: AllowsRead>(
        &mut self,
        from: FiAddr,
        remote: RemoteAtomicRegion<T, R>,
    ) -> Result<FetchId<Vec<T>>, OperationError> {
        self.post_atomic_read(from, remote, Patience::Tries)
    }

    pub(crate) fn post_atomic_read<T: AtomicElement, R: AllowsRead>(
        &mut self,
        from: FiAddr,
        remote: RemoteAtomicRegion<T, R>,
        patience: Patience,
    ) -> Result<FetchId<Vec<T>>, OperationError> {
        let values = AtomicValues::<T> {
            operands: &[],
            compares: &[],
            results: remote.len(),
        };
        let op = operation(AtomicForm::Fetch, AtomicOperator::Read, from, &remote);
        self.post_checked(op, values, remote.len(), patience)
            .map(FetchId::new)
    }

    /// Posts an operation on the first elements of a piece that has `room` of them.
    fn post_checked<T: AtomicElement>(
        &mut self,
        op: AtomicOp,
        values: AtomicValues<'_, T>,
        room: usize,
        patience: Patience,
    ) -> Result<AtomicId, OperationError> {
        let (to, len) = (op.dest, values.operands.len().max(values.results));
        let has_compares = op.form == AtomicForm::Compare;
        let refused = |error, why| {
            let bytes = len * size_of::<T>();
            Err(OperationError::refused_atomic(to, bytes, error, why))
        };
        let invalid = OpError::Failed(Errno::EINVAL);
        match () {
            () if len == 0 => refused(invalid, "an operation has one element at least"),
            () if len > room => refused(invalid, "the region has fewer elements than that"),
            () if has_compares && values.compares.len() != len => {
                refused(invalid, "each value has a compare value")
            }
            () => match self.post_atomic_op(op, values, patience) {
                Ok(token) => Ok(AtomicId(token)),
                Err(error) if error.errno() == Errno::EMSGSIZE => refused(
                    error,
                    "the elements of an operation have 4096 bytes at most",
                ),
                Err(error) => refused(error, ""),
            },
        }
    }
}

/// An operation on the first elements of a piece.
fn operation<T: AtomicElement, R>(
    form: AtomicForm,
    operator: AtomicOperator,
    dest: FiAddr,
    remote: &RemoteAtomicRegion<T, R>,
) -> AtomicOp {
    AtomicOp {
        form,
        operator,
        datatype: T::DATATYPE,
        dest,
        key: remote.bytes.key,
        place: remote.bytes.place,
        desc: MrDesc::NONE,
        context: 0,
        flags: Flags::empty(),
    }
}
