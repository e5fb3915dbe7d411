//! Endpoints (fi_endpoint(3)), bound and enabled. Operations with `FI_COMPLETION` have a
//! completion, and no others (`FI_SELECTIVE_COMPLETION`).

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use ferro_fi::abi::{
    FI_DIRECTED_RECV, FI_ENABLE, FI_ETOOSMALL, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, FI_RECV,
    FI_SELECTIVE_COMPLETION, FI_SEND, FI_SOURCE_ERR, FI_TAGGED_DIRECTED_RECV, FI_TRANSMIT, fid,
    fid_ep,
};
use ferrofabric_contracts::addr::{Address, MAX_ADDR_BYTES, NativeAddr};
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::{Endpoint, EndpointConfig};

use super::domain::{BoundObjects, OpenDomain, closed};
use super::transfer::{Transfer, list};
use super::{control, names, op, to_c};
use crate::client::close;

/// An endpoint.
pub struct EndpointByC {
    ep: *mut fid_ep,
    name: NativeAddr,
    /// Its number among the objects of the domain.
    number: usize,
    // Closed after the endpoint.
    _bound: BoundObjects,
    domain: Arc<OpenDomain>,
}

// SAFETY: the domain is opened for calls of any threads (`FI_THREAD_SAFE`).
unsafe impl Send for EndpointByC {}
// SAFETY: as above.
unsafe impl Sync for EndpointByC {}

impl EndpointByC {
    pub fn open(
        domain: &Arc<OpenDomain>,
        number: usize,
        config: &EndpointConfig,
        bound: BoundObjects,
    ) -> Result<Self> {
        let info = domain.offer.list.copy();
        let mut without = 0;
        if !config.directed_recv {
            without |= FI_DIRECTED_RECV | FI_TAGGED_DIRECTED_RECV;
        }
        if !config.source_err {
            without |= FI_SOURCE_ERR;
        }
        let (at, mut ep) = (domain.domain, null_mut());
        // SAFETY: the copy is this function's; else as fi_endpoint(3) has it.
        unsafe {
            (*info.info).caps &= !without;
            (*(*info.info).rx_attr).caps &= !without;
            let opened = call!(at, ops.endpoint(info.info, &raw mut ep, null_mut()));
            control(opened, "fi_endpoint")?;
        }
        let enabled = enable(ep, &bound);
        if enabled.is_err() {
            closed(close(ep.cast()), "endpoint that was not enabled");
        }
        enabled?;
        Ok(Self {
            ep,
            name: names::native(&name_of(ep)),
            number,
            _bound: bound,
            domain: domain.clone(),
        })
    }

    fn fid(&self) -> *mut fid {
        self.ep.cast()
    }
}

/// Binds what an endpoint needs, and enables it.
fn enable(ep: *mut fid_ep, bound: &BoundObjects) -> Result<()> {
    let fid: *mut fid = ep.cast();
    let counters = [(&bound.sent, FI_SEND), (&bound.received, FI_RECV)];
    let counters = counters
        .into_iter()
        .filter_map(|(cntr, flags)| Some((cntr.as_ref()?.cntr.cast(), flags)));
    let objects = [
        (bound.vector.av.cast(), 0),
        (bound.tx.cq.cast(), FI_TRANSMIT | FI_SELECTIVE_COMPLETION),
        (bound.rx.cq.cast(), FI_RECV | FI_SELECTIVE_COMPLETION),
    ];
    // SAFETY: all these objects are open.
    unsafe {
        let ops = &*(*fid).ops;
        for (object, flags) in objects.into_iter().chain(counters) {
            control(ops.bind.unwrap()(fid, object, flags), "fi_ep_bind")?;
        }
        control(
            ops.control.unwrap()(fid, FI_ENABLE, null_mut()),
            "fi_enable",
        )
    }
}

/// `fi_getname`.
fn name_of(ep: *mut fid_ep) -> Vec<u8> {
    let mut len = MAX_ADDR_BYTES;
    loop {
        let mut name = vec![0u8; len];
        // SAFETY: there is room for `len` bytes.
        let named = unsafe {
            let getname = (*(*ep).cm).getname.unwrap();
            getname(ep.cast(), name.as_mut_ptr().cast(), &raw mut len)
        };
        if named == -FI_ETOOSMALL && len > name.len() {
            continue;
        }
        assert_eq!(named, 0, "fi_getname");
        name.truncate(len);
        return name;
    }
}

impl Endpoint for EndpointByC {
    fn name(&self) -> NativeAddr {
        self.name
    }

    fn address(&self) -> Address {
        Address::Native(self.name)
    }

    unsafe fn send(&self, send: &SendOp, iov: &[IoBuf]) -> Result<(), OpError> {
        if matches!(send.kind, MsgKind::Remote(_)) {
            return Err(OpError::Failed(Errno::ENOSYS));
        }
        let transfer = Transfer {
            kind: send.kind,
            iov: list(iov),
            peer: to_c(send.dest),
            tag: send.tag,
            ignore: 0,
            data: send.data,
            context: self.domain.contexts.pointer(self.number, send.context),
            flags: send.flags,
        };
        // SAFETY: the caller's contract.
        op(unsafe { transfer.send(self.ep) })
    }

    unsafe fn recv(&self, recv: &RecvOp, iov: &[IoBuf]) -> Result<(), OpError> {
        if recv.src == FiAddr::NOTAVAIL {
            return Err(OpError::Failed(Errno::EADDRNOTAVAIL));
        }
        let transfer = Transfer {
            kind: recv.kind,
            iov: list(iov),
            peer: to_c(recv.src),
            tag: recv.tag,
            ignore: recv.ignore,
            data: 0,
            context: self.domain.contexts.pointer(self.number, recv.context),
            flags: recv.flags,
        };
        // SAFETY: the caller's contract.
        op(unsafe { transfer.receive(self.ep) })
    }

    fn cancel(&self, context: u64) -> Result<(), OpError> {
        let context = self.domain.contexts.pointer(self.number, context);
        // SAFETY: the endpoint is open.
        op(unsafe { (*(*self.ep).ops).cancel.unwrap()(self.fid(), context) })
    }

    fn set_min_multi_recv(&self, bytes: usize) -> Result<(), OpError> {
        let (option, len) = (FI_OPT_MIN_MULTI_RECV, size_of::<usize>());
        // SAFETY: the option takes a `size_t`.
        let set = unsafe {
            let setopt = (*(*self.ep).ops).setopt.unwrap();
            setopt(
                self.fid(),
                FI_OPT_ENDPOINT,
                option,
                (&raw const bytes).cast(),
                len,
            )
        };
        op(set as isize)
    }

    fn min_multi_recv(&self) -> Result<usize, OpError> {
        let (option, mut bytes, mut len) = (FI_OPT_MIN_MULTI_RECV, 0usize, size_of::<usize>());
        // SAFETY: the option gives a `size_t`.
        let got: c_int = unsafe {
            let getopt = (*(*self.ep).ops).getopt.unwrap();
            let to = (&raw mut bytes).cast();
            getopt(self.fid(), FI_OPT_ENDPOINT, option, to, &raw mut len)
        };
        op(got as isize).map(|()| bytes)
    }

    fn flush(&self, _: Option<Duration>) -> Result<(), OpError> {
        Err(OpError::Failed(Errno::ENOSYS))
    }

    /// The C interface has no such call.
    fn lose_undelivered(&self) {}

    fn stats(&self) -> Result<Vec<(&'static str, u64)>, OpError> {
        Err(OpError::Failed(Errno::ENOSYS))
    }
}

impl Drop for EndpointByC {
    fn drop(&mut self) {
        closed(close(self.ep.cast()), "endpoint");
    }
}
