//! Futures over an endpoint, for any executor.
//!
//! A future waits for the completion of an operation that was posted by a plain call. Dropping the
//! future does not end the operation: the endpoint keeps its buffer, and the next future that waits
//! for the operation gets its completion.
//!
//! All futures of an endpoint share one waker at its descriptor, which wakes each of them. The
//! first future that is polled takes all completions, and wakes the others once more if there were
//! any.

use std::future::Future;
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
use crate::endpoint::RdmEndpoint;
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

/// An endpoint whose completions are awaited by futures.
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

    /// Calls the endpoint. Futures do not get a completion that the call takes.
    pub fn with<T>(&self, call: impl FnOnce(&mut RdmEndpoint) -> T) -> T {
        call(&mut self.state().endpoint)
    }

    /// As [`RdmEndpoint::send`]. [`outcome`](Self::outcome) waits for the buffer.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn send(&self, to: FiAddr, message: impl Into<Outbound>) -> Result<SendId, OperationError> {
        self.with(|endpoint| endpoint.send(to, message))
    }

    /// As [`RdmEndpoint::recv`]. [`outcome`](Self::outcome) waits for the message.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn recv(&self, into: impl Into<Inbound>) -> Result<RecvId, OperationError> {
        self.with(|endpoint| endpoint.recv(into))
    }

    /// As [`RdmEndpoint::read`]. [`outcome`](Self::outcome) waits for the bytes.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn read<A: AllowsRead>(
        &self,
        from: FiAddr,
        remote: RemoteRegion<A>,
        into: Buffer,
    ) -> Result<ReadId, OperationError> {
        self.with(|endpoint| endpoint.read(from, remote, into))
    }

    /// As [`RdmEndpoint::write`]. [`outcome`](Self::outcome) waits for the buffer.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write<A: AllowsWrite>(
        &self,
        to: FiAddr,
        remote: RemoteRegion<A>,
        bytes: Buffer,
    ) -> Result<WriteId, OperationError> {
        self.with(|endpoint| endpoint.write(to, remote, bytes))
    }

    /// As [`RdmEndpoint::atomic`]. [`outcome`](Self::outcome) waits for its end.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn atomic<T: AtomicElement, A: AllowsWrite>(
        &self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, A>,
        operator: Operator<T>,
        values: impl ElementValues<T>,
    ) -> Result<AtomicId, OperationError> {
        self.with(|endpoint| endpoint.atomic(to, remote, operator, values))
    }

    /// As [`RdmEndpoint::fetch_atomic`]. [`outcome`](Self::outcome) waits for the elements.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn fetch_atomic<T: AtomicElement, A: AllowsRead + AllowsWrite, V: ElementValues<T>>(
        &self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, A>,
        operator: Operator<T>,
        values: V,
    ) -> Result<FetchId<V::Fetched>, OperationError> {
        self.with(|endpoint| endpoint.fetch_atomic(to, remote, operator, values))
    }

    /// As [`RdmEndpoint::compare_atomic`]. [`outcome`](Self::outcome) waits for the elements.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn compare_atomic<T: AtomicElement, A: AllowsRead + AllowsWrite, V: ElementValues<T>>(
        &self,
        to: FiAddr,
        remote: RemoteAtomicRegion<T, A>,
        operator: CompareOperator<T>,
        compares: V,
        values: V,
    ) -> Result<FetchId<V::Fetched>, OperationError> {
        self.with(|endpoint| endpoint.compare_atomic(to, remote, operator, compares, values))
    }

    /// As [`RdmEndpoint::atomic_read`]. [`outcome`](Self::outcome) waits for the elements.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn atomic_read<T: AtomicElement, A: AllowsRead>(
        &self,
        from: FiAddr,
        remote: RemoteAtomicRegion<T, A>,
    ) -> Result<FetchId<Vec<T>>, OperationError> {
        self.with(|endpoint| endpoint.atomic_read(from, remote))
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

    /// Takes completions until `done` returns a value, or there are none: then the descriptor wakes
    /// this task.
    fn poll_until<T>(
        &self,
        waiter: &mut Option<usize>,
        token: Option<u64>,
        cx: &mut Context<'_>,
        mut done: impl FnMut(&mut RdmEndpoint, &WaitingTasks) -> Poll<T>,
        failed: impl Fn(Error) -> T,
    ) -> Poll<T> {
        let mut state = self.state();
        let AsyncState {
            readiness,
            endpoint,
        } = &mut *state;
        self.waiters.enter(waiter, token, cx.waker());
        loop {
            match endpoint.collect() {
                Ok(false) => {}
                Ok(true) => self.waiters.wake_others(*waiter),
                Err(error) => return Poll::Ready(failed(error)),
            }
            if let Poll::Ready(found) = done(endpoint, &self.waiters) {
                return Poll::Ready(found);
            }
            match endpoint.may_sleep() {
                Ok(true) => {}
                Ok(false) if endpoint.has_waiting_sends() => {
                    // The descriptor does not say when there is room.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Ok(false) => continue,
                Err(error) => return Poll::Ready(failed(error)),
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
            Some(token),
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
            None,
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
    /// The operation; `None` for a task that waits for any.
    token: Option<u64>,
}

impl WaitingTasks {
    fn all(&self) -> MutexGuard<'_, Slab<WaitingTask>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a waiting task, at its place if it has one.
    fn enter(&self, place: &mut Option<usize>, token: Option<u64>, waker: &Waker) {
        let mut all = self.all();
        match place.and_then(|place| all.get_mut(place)) {
            Some(waiter) => waiter.waker.clone_from(waker),
            None => {
                let waker = waker.clone();
                *place = Some(all.insert(WaitingTask { waker, token }));
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
        self.all().iter().any(|(_, one)| one.token == Some(token))
    }

    fn wake_others(&self, but: Option<usize>) {
        // Without the lock: a waker may poll at once.
        let all = self.all();
        let others = all.iter().filter(|(place, _)| Some(*place) != but);
        let wakers: Vec<Waker> = others.map(|(_, one)| one.waker.clone()).collect();
        drop(all);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Wake for WaitingTasks {
    fn wake(self: Arc<Self>) {
        self.wake_others(None);
    }
}
