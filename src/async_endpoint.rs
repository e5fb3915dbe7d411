//! Futures over an endpoint, for any executor.
//!
//! One kind of futures posts an operation, and waits until there is capacity for it. The other kind
//! waits for the completion of an operation that was posted. Dropping a future of the second kind
//! does not end the operation: the endpoint keeps its buffer, and the next future that waits for
//! the operation gets its completion.
//!
//! All futures of an endpoint share one waker at its descriptor, which wakes each of them. The
//! first future that is polled takes all completions, and wakes the others once more if there were
//! any. A future that waits for capacity arms the descriptor for that, then tries once more.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use slab::Slab;

use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::owning::{AtomicElement, Buffer, ElementValues};

use crate::atomic_region::RemoteAtomicRegion;
use crate::endpoint::{Patience, RdmEndpoint};
use crate::operation::{CompletedOperation, Inbound, Outbound};
use crate::operation_error::OperationError;
use crate::operation_id::{AtomicId, FetchId, ReadId, RecvId, SendId, WriteId};
use crate::operation_output::OperationId;
use crate::operator::{CompareOperator, Operator};
use crate::region::{AllowsRead, AllowsWrite, RemoteRegion};

/// An executor's registration of a descriptor.
///
/// Over tokio (`examples/with_tokio.rs`, which also passes it to [`AsyncRdmEndpoint::new`]):
///
/// ```
/// use std::io;
/// use std::os::fd::OwnedFd;
/// use std::task::{Context, Poll};
///
/// use ferrofabric::DescriptorReadiness;
/// use tokio::io::unix::AsyncFd;
///
/// struct Tokio(AsyncFd<OwnedFd>);
///
/// impl DescriptorReadiness for Tokio {
///     fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
///         let ready = self.0.poll_read_ready(cx);
///         ready.map_ok(|mut guard| guard.clear_ready())
///     }
/// }
/// ```
pub trait DescriptorReadiness {
    /// Ready when the descriptor has become readable since the last call that was ready, or is
    /// readable now. Else the task of `cx` is woken when it becomes so.
    ///
    /// # Errors
    ///
    /// If the executor can not watch the descriptor.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// An endpoint whose completions, and capacity for operations, are awaited by futures.
///
/// The futures of [`send`](Self::send) and its like post an operation: at once, or when there is
/// capacity ([back-pressure](RdmEndpoint#back-pressure)), without holding up other tasks. They
/// return the operation's id. A future that is dropped before that has posted nothing, and frees
/// the buffer. Tasks that wait at the same time post in any order. The future of
/// [`outcome`](Self::outcome) waits for the operation's end:
///
/// ```
/// # use ferrofabric::{AsyncRdmEndpoint, Buffer, DescriptorReadiness, Error, FiAddr};
/// # async fn example<R: DescriptorReadiness>(
/// #     endpoint: &AsyncRdmEndpoint<R>,
/// #     peer: FiAddr,
/// # ) -> Result<(), Error> {
/// let sent = endpoint.send(peer, Buffer::copy_of(b"a message")?).await?;
/// let buffer = endpoint.outcome(sent).await?;
/// # drop(buffer);
/// # Ok(())
/// # }
/// ```
pub struct AsyncRdmEndpoint<R> {
    state: Mutex<AsyncState<R>>,
    waiters: Arc<WaitingTasks>,
}

struct AsyncState<R> {
    // It uses a copy of the endpoint's descriptor.
    readiness: R,
    endpoint: RdmEndpoint,
}

impl<R: DescriptorReadiness> AsyncRdmEndpoint<R> {
    /// Takes an endpoint. `readiness` gets a descriptor for the executor to watch.
    ///
    /// # Errors
    ///
    /// If the descriptor can not be copied, or watched.
    pub fn new(
        endpoint: RdmEndpoint,
        readiness: impl FnOnce(OwnedFd) -> io::Result<R>,
    ) -> Result<Self> {
        let failed = |error: io::Error| Error::from_io(&error, "watch", "an endpoint's descriptor");
        let descriptor = endpoint.as_fd().try_clone_to_owned().map_err(failed)?;
        Ok(Self {
            state: Mutex::new(AsyncState {
                readiness: readiness(descriptor).map_err(failed)?,
                endpoint,
            }),
            waiters: Arc::default(),
        })
    }

    /// Calls the endpoint. Futures do not get a completion that the call takes, and a call that
    /// waits holds up the thread, and all tasks of the endpoint: use those with `try_` in their
    /// names.
    pub fn with<T>(&self, call: impl FnOnce(&mut RdmEndpoint) -> T) -> T {
        call(&mut self.state().endpoint)
    }

    /// As [`RdmEndpoint::send`]: waits for capacity. [`outcome`](Self::outcome) waits for the
    /// buffer.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn send(
        &self,
        to: FiAddr,
        message: impl Into<Outbound>,
    ) -> Result<SendId, OperationError> {
        let message = message.into();
        let (form, mut buffer) = (message.form, Some(message.buffer));
        self.post(|endpoint| {
            let message = Outbound {
                buffer: buffer.take()?,
                form,
            };
            keep_refused(&mut buffer, endpoint.try_send(to, message))
        })
        .await
    }

    /// As [`RdmEndpoint::inject`]: waits for capacity.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn inject(&self, to: FiAddr, bytes: &[u8]) -> Result<(), OperationError> {
        self.post(|endpoint| unless_again(endpoint.try_inject(to, bytes)))
            .await
    }

    /// As [`RdmEndpoint::tinject`]: waits for capacity.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn tinject(&self, to: FiAddr, tag: u64, bytes: &[u8]) -> Result<(), OperationError> {
        self.post(|endpoint| unless_again(endpoint.try_tinject(to, tag, bytes)))
            .await
    }

    /// As [`RdmEndpoint::recv`]. [`outcome`](Self::outcome) waits for the message.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn recv(&self, into: impl Into<Inbound>) -> Result<RecvId, OperationError> {
        self.with(|endpoint| endpoint.recv(into))
    }

    /// As [`RdmEndpoint::read`]: waits for capacity. [`outcome`](Self::outcome) waits for the
    /// bytes.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn read<A: AllowsRead>(
        &self,
        from: FiAddr,
        remote: RemoteRegion<A>,
        into: Buffer,
    ) -> Result<ReadId, OperationError> {
        let mut buffer = Some(into);
        self.post(|endpoint| {
            let into = buffer.take()?;
            keep_refused(&mut buffer, endpoint.try_read(from, remote, into))
        })
        .await
    }

    /// As [`RdmEndpoint::write`]: waits for capacity. [`outcome`](Self::outcome) waits for the
    /// buffer.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn write<A: AllowsWrite>(
        &self,
        to: FiAddr,
        remote: RemoteRegion<A>,
        bytes: Buffer,
    ) -> Result<WriteId, OperationError> {
        let mut buffer = Some(bytes);
        self.post(|endpoint| {
            let bytes = buffer.take()?;
            keep_refused(&mut buffer, endpoint.try_write(to, remote, bytes))
        })
        .await
    }

    /// As [`RdmEndpoint::write_with_data`]: waits for capacity. [`outcome`](Self::outcome) waits
    /// for the buffer.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn write_with_data<A: AllowsWrite>(
        &self,
        to: FiAddr,
        remote: RemoteRegion<A>,
        bytes: Buffer,
        data: u64,
    ) -> Result<WriteId, OperationError> {
        let mut buffer = Some(bytes);
        self.post(|endpoint| {
            let bytes = buffer.take()?;
            let posted = endpoint.try_write_with_data(to, remote, bytes, data);
            keep_refused(&mut buffer, posted)
        })
        .await
    }

    /// As [`RdmEndpoint::atomic`]: waits for capacity. [`outcome`](Self::outcome) waits for its
    /// end.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn atomic<T: AtomicElement, A: AllowsWrite>(
        &self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, A>,
        operator: Operator<T>,
        values: impl ElementValues<T>,
    ) -> Result<AtomicId, OperationError> {
        self.post(|endpoint| {
            let posted = endpoint.post_atomic(to, remote, operator, &values, Patience::Tries);
            unless_again(posted)
        })
        .await
    }

    /// As [`RdmEndpoint::fetch_atomic`]: waits for capacity. [`outcome`](Self::outcome) waits for
    /// the elements.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn fetch_atomic<
        T: AtomicElement,
        A: AllowsRead + AllowsWrite,
        V: ElementValues<T>,
    >(
        &self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, A>,
        operator: Operator<T>,
        values: V,
    ) -> Result<FetchId<V::Fetched>, OperationError> {
        self.post(|endpoint| {
            let tries = Patience::Tries;
            unless_again(endpoint.post_fetch_atomic(to, remote, operator, &values, tries))
        })
        .await
    }

    /// As [`RdmEndpoint::compare_atomic`]: waits for capacity. [`outcome`](Self::outcome) waits for
    /// the elements.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn compare_atomic<
        T: AtomicElement,
        A: AllowsRead + AllowsWrite,
        V: ElementValues<T>,
    >(
        &self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, A>,
        operator: CompareOperator<T>,
        compares: V,
        values: V,
    ) -> Result<FetchId<V::Fetched>, OperationError> {
        self.post(|endpoint| {
            let (of, tries) = ((&compares, &values), Patience::Tries);
            unless_again(endpoint.post_compare_atomic(to, remote, operator, of.0, of.1, tries))
        })
        .await
    }

    /// As [`RdmEndpoint::atomic_read`]: waits for capacity. [`outcome`](Self::outcome) waits for
    /// the elements.
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn atomic_read<T: AtomicElement, A: AllowsRead>(
        &self,
        from: FiAddr,
        remote: RemoteAtomicRegion<T, A>,
    ) -> Result<FetchId<Vec<T>>, OperationError> {
        self.post(|endpoint| unless_again(endpoint.try_atomic_read(from, remote)))
            .await
    }

    /// Waits until closing the endpoint loses no message, as [`RdmEndpoint::flush`] does: messages
    /// move on while a task waits for something of the endpoint.
    ///
    /// # Errors
    ///
    /// `EBUSY`: the endpoint belongs to another thread.
    pub async fn flush(&self) -> Result<()> {
        let flushed = self.post(|endpoint| {
            let flushed = endpoint.is_flushed();
            flushed.map(|flushed| flushed.map_err(OperationError::not_posted))
        });
        let failed = |error: OperationError| Error::new(error.errno(), "flush", "endpoint");
        flushed.await.map_err(failed)
    }

    /// Waits for an operation, as [`RdmEndpoint::wait_for`] does. If the future is dropped the
    /// operation goes on, and may be waited for again.
    pub fn outcome<I: OperationId>(&self, operation: I) -> OutcomeFuture<'_, R, I> {
        OutcomeFuture {
            endpoint: self,
            operation,
            waiter: None,
        }
    }

    /// Waits for the next operation to end, except operations that an [`outcome`](Self::outcome)
    /// waits for.
    #[allow(clippy::should_implement_trait, reason = "an iterator does not wait")]
    pub fn next(&self) -> NextFuture<'_, R> {
        NextFuture {
            endpoint: self,
            waiter: None,
        }
    }

    /// Returns the endpoint.
    pub fn into_inner(self) -> RdmEndpoint {
        let state = self.state.into_inner();
        state.unwrap_or_else(PoisonError::into_inner).endpoint
    }

    fn state(&self) -> MutexGuard<'_, AsyncState<R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts an operation: makes `attempt` until it is not refused for want of capacity (`None`),
    /// each time that the endpoint has moved.
    async fn post<T>(
        &self,
        mut attempt: impl FnMut(&mut RdmEndpoint) -> Option<Result<T, OperationError>>,
    ) -> Result<T, OperationError> {
        if let Some(posted) = self.with(&mut attempt) {
            return posted;
        }
        let mut place = WaitingPlace {
            tasks: &self.waiters,
            place: None,
        };
        poll_fn(|cx| {
            self.poll_until(
                &mut place.place,
                WaitsFor::Capacity,
                cx,
                |endpoint, _| attempt(endpoint).map_or(Poll::Pending, Poll::Ready),
                |error| Err(OperationError::not_posted(error.errno())),
            )
        })
        .await
    }

    /// Takes completions until `done` returns a value, or there are none: then the descriptor wakes
    /// this task.
    fn poll_until<T>(
        &self,
        waiter: &mut Option<usize>,
        waits_for: WaitsFor,
        cx: &mut Context<'_>,
        mut done: impl FnMut(&mut RdmEndpoint, &WaitingTasks) -> Poll<T>,
        failed: impl Fn(Error) -> T,
    ) -> Poll<T> {
        let mut state = self.state();
        let AsyncState {
            readiness,
            endpoint,
        } = &mut *state;
        self.waiters.enter(waiter, waits_for, cx.waker());
        loop {
            match endpoint.collect() {
                Ok(false) => {}
                Ok(true) => self.waiters.wake_others(*waiter),
                Err(error) => return Poll::Ready(failed(error)),
            }
            if let Poll::Ready(found) = done(endpoint, &self.waiters) {
                return Poll::Ready(found);
            }
            // One call arms the descriptor for all tasks.
            let for_capacity = self.waiters.wait_for_capacity();
            match endpoint.may_sleep(for_capacity) {
                Ok(true) => {}
                Ok(false) if endpoint.has_waiting_sends() => {
                    // The descriptor does not say when there is room.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Ok(false) => {
                    if for_capacity {
                        self.waiters.wake_for_capacity(*waiter);
                    }
                    continue;
                }
                Err(error) => return Poll::Ready(failed(error)),
            }
            if waits_for == WaitsFor::Capacity {
                // It may have come before the descriptor was armed for it.
                if let Poll::Ready(found) = done(endpoint, &self.waiters) {
                    return Poll::Ready(found);
                }
            }
            let all = Waker::from(self.waiters.clone());
            match readiness.poll_readable(&mut Context::from_waker(&all)) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    let error = Error::from_io(&error, "watch", "an endpoint's descriptor");
                    return Poll::Ready(failed(error));
                }
            }
        }
    }
}

/// The result of a post; `None` for one that is refused for want of capacity, whose buffer is kept.
fn keep_refused<T>(
    buffer: &mut Option<Buffer>,
    posted: Result<T, OperationError>,
) -> Option<Result<T, OperationError>> {
    match posted {
        Err(error) if error.is_again() => {
            *buffer = error.into_buffer();
            None
        }
        posted => Some(posted),
    }
}

/// As [`keep_refused`], for an operation without a buffer.
fn unless_again<T>(posted: Result<T, OperationError>) -> Option<Result<T, OperationError>> {
    keep_refused(&mut None, posted)
}

/// Waits for an operation: [`AsyncRdmEndpoint::outcome`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct OutcomeFuture<'a, R: DescriptorReadiness, I: OperationId> {
    endpoint: &'a AsyncRdmEndpoint<R>,
    operation: I,
    waiter: Option<usize>,
}

impl<R: DescriptorReadiness, I: OperationId> Future for OutcomeFuture<'_, R, I> {
    type Output = Result<I::Output, OperationError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (operation, token) = (this.operation, this.operation.token());
        this.endpoint.poll_until(
            &mut this.waiter,
            WaitsFor::Operation(token),
            cx,
            |endpoint, _| match endpoint.take_finished(operation) {
                Ok(Some(output)) => Poll::Ready(Ok(output)),
                Ok(None) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
            |error| Err(OperationError::not_waited(token, error.errno(), "")),
        )
    }
}

impl<R: DescriptorReadiness, I: OperationId> Drop for OutcomeFuture<'_, R, I> {
    fn drop(&mut self) {
        self.endpoint.waiters.leave(self.waiter);
    }
}

/// Waits for the next operation to end: [`AsyncRdmEndpoint::next`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct NextFuture<'a, R: DescriptorReadiness> {
    endpoint: &'a AsyncRdmEndpoint<R>,
    waiter: Option<usize>,
}

impl<R: DescriptorReadiness> Future for NextFuture<'_, R> {
    type Output = Result<CompletedOperation>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.endpoint.poll_until(
            &mut this.waiter,
            WaitsFor::Any,
            cx,
            |endpoint, waiters| {
                let next = endpoint.take_first_finished(|token| waiters.await_token(token));
                next.map_or(Poll::Pending, |next| Poll::Ready(Ok(next)))
            },
            Err,
        )
    }
}

impl<R: DescriptorReadiness> Drop for NextFuture<'_, R> {
    fn drop(&mut self) {
        self.endpoint.waiters.leave(self.waiter);
    }
}

/// The waiting tasks, and the operations that they wait for.
#[derive(Default)]
struct WaitingTasks(Mutex<Slab<WaitingTask>>);

struct WaitingTask {
    waker: Waker,
    waits_for: WaitsFor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsFor {
    /// The completion of this operation.
    Operation(u64),
    /// Any completion.
    Any,
    /// Capacity for an operation.
    Capacity,
}

/// The place of a task that waits for capacity, until its future ends or is dropped.
struct WaitingPlace<'a> {
    tasks: &'a WaitingTasks,
    place: Option<usize>,
}

impl Drop for WaitingPlace<'_> {
    /// Other tasks that wait for capacity were woken together with this one.
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.tasks.all().try_remove(place);
        }
    }
}

impl WaitingTasks {
    fn all(&self) -> MutexGuard<'_, Slab<WaitingTask>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a waiting task, at its place if it has one.
    fn enter(&self, place: &mut Option<usize>, waits_for: WaitsFor, waker: &Waker) {
        let mut all = self.all();
        match place.and_then(|place| all.get_mut(place)) {
            Some(waiter) => waiter.waker.clone_from(waker),
            None => {
                let waker = waker.clone();
                *place = Some(all.insert(WaitingTask { waker, waits_for }));
            }
        }
    }

    /// The future was dropped. Futures that wait for any operation get the completion that this
    /// one alone waited for.
    fn leave(&self, place: Option<usize>) {
        if let Some(place) = place {
            self.all().try_remove(place);
            self.wake_others(None);
        }
    }

    /// Whether a task waits for this operation.
    fn await_token(&self, token: u64) -> bool {
        let waits_for = WaitsFor::Operation(token);
        self.all().iter().any(|(_, one)| one.waits_for == waits_for)
    }

    /// Whether a task waits for capacity.
    fn wait_for_capacity(&self) -> bool {
        let all = self.all();
        all.iter()
            .any(|(_, one)| one.waits_for == WaitsFor::Capacity)
    }

    fn wake_others(&self, but: Option<usize>) {
        self.wake_those(|place, _| Some(place) != but);
    }

    /// Wakes the others that wait for capacity.
    fn wake_for_capacity(&self, but: Option<usize>) {
        self.wake_those(|place, one| Some(place) != but && one.waits_for == WaitsFor::Capacity);
    }

    fn wake_those(&self, which: impl Fn(usize, &WaitingTask) -> bool) {
        // Without the lock: a waker may poll at once.
        let all = self.all();
        let these = all.iter().filter(|(place, one)| which(*place, one));
        let wakers: Vec<Waker> = these.map(|(_, one)| one.waker.clone()).collect();
        drop(all);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Wake for WaitingTasks {
    fn wake(self: Arc<Self>) {
        self.wake_others(None);
    }
}
