//! RDM endpoint objects (fi_endpoint(3)): a transport, the receive queue, and what both are bound to.

use std::sync::Arc;

use slab::Slab;

use super::cntr::Count;
use super::owner::{Binding, EndpointOwner};
use super::srx::SharedRx;
use super::{Backend, Inner, NO_CNTR, Object};
use crate::addr::NativeAddr;
use crate::av::AvTable;
use crate::cq::CqQueue;
use crate::error::{Errno, OpError, Result};
use crate::fabric::{Endpoint, EndpointConfig, RecvOp};
use crate::flags::Flags;
use crate::peer::Transport;
use crate::types::{FiAddr, IoBuf, SendOp, total_len};

/// One endpoint's part of the state.
pub(super) struct EndpointState<T> {
    // The transport goes first: it may still use what the others hold.
    pub(super) transport: T,
    srx: SharedRx,
    pub(super) binding: Binding,
}

impl<T: Transport> EndpointState<T> {
    /// The transport, and the owner to drive it with.
    #[inline]
    pub(super) fn split<'a>(
        &'a mut self,
        cqs: &'a mut Slab<CqQueue>,
        cntrs: &'a mut Slab<Count>,
        avs: &'a Slab<AvTable>,
    ) -> (&'a mut T, EndpointOwner<'a>) {
        let owner = EndpointOwner {
            srx: &mut self.srx,
            cqs,
            cntrs,
            av: &avs[self.binding.av],
            binding: self.binding,
        };
        (&mut self.transport, owner)
    }
}

struct EndpointHandle<B: Backend> {
    domain: Arc<Inner<B>>,
    index: usize,
    name: NativeAddr,
    limits: Limits,
    /// Keeps open what the endpoint is bound to.
    _config: EndpointConfig,
}

/// What is checked of every operation.
#[derive(Clone, Copy)]
struct Limits {
    max_msg_bytes: usize,
    inject_bytes: usize,
    tx_iov: usize,
    rx_iov: usize,
    directed_recv: bool,
}

pub(super) fn open<B: Backend>(
    domain: &Arc<Inner<B>>,
    config: EndpointConfig,
) -> Result<Arc<dyn Endpoint>> {
    let binding = Binding {
        tx_cq: domain.own(config.tx_cq.id(), "completion queue for sends")?,
        rx_cq: domain.own(config.rx_cq.id(), "completion queue for receives")?,
        tx_cntr: match &config.tx_cntr {
            Some(cntr) => domain.own(cntr.id(), "counter for sends")?,
            None => NO_CNTR,
        },
        rx_cntr: match &config.rx_cntr {
            Some(cntr) => domain.own(cntr.id(), "counter for receives")?,
            None => NO_CNTR,
        },
        av: domain.own(config.av.id(), "address vector")?,
    };
    let (transport, name) = domain.backend.open_transport(&domain.wait)?;
    let info = domain.backend.info();
    let limits = Limits {
        max_msg_bytes: info.ep.max_msg_size,
        inject_bytes: info.tx.inject_size,
        tx_iov: info.tx.iov_limit,
        rx_iov: info.rx.iov_limit,
        directed_recv: config.directed_recv,
    };
    let mut state = domain.lock_to("open", "endpoint")?;
    let index = state.endpoints.insert(EndpointState {
        transport,
        srx: SharedRx::new(),
        binding,
    });
    drop(state);
    Ok(Arc::new(EndpointHandle {
        domain: domain.clone(),
        index,
        name,
        limits,
        _config: config,
    }))
}

impl<B: Backend> Endpoint for EndpointHandle<B> {
    fn name(&self) -> NativeAddr {
        self.name
    }

    #[inline]
    unsafe fn send(&self, op: &SendOp, iov: &[IoBuf]) -> Result<(), OpError> {
        self.check_send(op, iov)?;
        let mut guard = self.domain.lock()?;
        let state = &mut *guard;
        let (transport, mut owner) =
            state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
        // SAFETY: the caller keeps the buffers as the transport asks.
        let sent = unsafe { transport.send(op, iov, &mut owner) };
        owner.start_deferred(transport);
        sent
    }

    #[inline]
    unsafe fn recv(&self, op: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError> {
        if iov.len() > self.limits.rx_iov {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        let buf = iov.first().copied().unwrap_or(IoBuf::EMPTY);
        let mut guard = self.domain.lock()?;
        let state = &mut *guard;
        let (transport, mut owner) =
            state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
        let start = if self.limits.directed_recv {
            owner.srx.post(op, buf)
        } else {
            let op = RecvOp {
                src: FiAddr::UNSPEC,
                ..*op
            };
            owner.srx.post(&op, buf)
        };
        if let Some(start) = start {
            // SAFETY: the caller keeps the buffer until the completion.
            unsafe { transport.start(start, &mut owner) };
        }
        owner.start_deferred(transport);
        Ok(())
    }

    fn cancel(&self, context: u64) -> Result<(), OpError> {
        let mut guard = self.domain.lock()?;
        let state = &mut *guard;
        let (transport, mut owner) =
            state.endpoints[self.index].split(&mut state.cqs, &mut state.cntrs, &state.avs);
        let found = owner.srx.cancel(context);
        owner.start_deferred(transport);
        match found {
            true => Ok(()),
            false => Err(OpError::Failed(Errno::ENOENT)),
        }
    }

    fn stats(&self) -> Result<Vec<(&'static str, u64)>, OpError> {
        let state = self.domain.lock()?;
        let mut stats = Vec::new();
        state.endpoints[self.index]
            .transport
            .stats(&mut |name, value| stats.push((name, value)));
        Ok(stats)
    }
}

impl<B: Backend> EndpointHandle<B> {
    #[inline]
    fn check_send(&self, op: &SendOp, iov: &[IoBuf]) -> Result<(), OpError> {
        let len = total_len(iov);
        let limit = match op.flags.contains(Flags::INJECT) {
            true => self.limits.inject_bytes,
            false => self.limits.max_msg_bytes,
        };
        if len > limit {
            return Err(OpError::Failed(Errno::EMSGSIZE));
        }
        if iov.len() > self.limits.tx_iov {
            return Err(OpError::Failed(Errno::EINVAL));
        }
        Ok(())
    }
}

impl<B: Backend> Drop for EndpointHandle<B> {
    fn drop(&mut self) {
        self.domain.close(Object::Endpoint(self.index));
    }
}
