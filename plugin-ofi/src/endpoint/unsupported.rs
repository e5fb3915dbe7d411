//! Tables for the operations that endpoints do not offer: collectives, and for datagrams and
//! endpoints with the keys of address vectors also one-sided operations. Each call returns
//! `-FI_ENOSYS`.

use crate::abi::{Roomy, fi_ops_atomic, fi_ops_collective, fi_ops_rma};
use crate::unsupported::Unsupported;

pub(super) static RMA: Roomy<fi_ops_rma> = Roomy::new(fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(Unsupported::ENOSYS),
    readv: Some(Unsupported::ENOSYS),
    readmsg: Some(Unsupported::ENOSYS),
    write: Some(Unsupported::ENOSYS),
    writev: Some(Unsupported::ENOSYS),
    writemsg: Some(Unsupported::ENOSYS),
    inject: Some(Unsupported::ENOSYS),
    writedata: Some(Unsupported::ENOSYS),
    injectdata: Some(Unsupported::ENOSYS),
});

pub(super) static ATOMIC: Roomy<fi_ops_atomic> = Roomy::new(fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(Unsupported::ENOSYS),
    writev: Some(Unsupported::ENOSYS),
    writemsg: Some(Unsupported::ENOSYS),
    inject: Some(Unsupported::ENOSYS),
    readwrite: Some(Unsupported::ENOSYS),
    readwritev: Some(Unsupported::ENOSYS),
    readwritemsg: Some(Unsupported::ENOSYS),
    compwrite: Some(Unsupported::ENOSYS),
    compwritev: Some(Unsupported::ENOSYS),
    compwritemsg: Some(Unsupported::ENOSYS),
    writevalid: Some(Unsupported::ENOSYS),
    readwritevalid: Some(Unsupported::ENOSYS),
    compwritevalid: Some(Unsupported::ENOSYS),
});

pub(super) static COLLECTIVE: Roomy<fi_ops_collective> = Roomy::new(fi_ops_collective {
    size: size_of::<fi_ops_collective>(),
    barrier: Some(Unsupported::ENOSYS),
    broadcast: Some(Unsupported::ENOSYS),
    alltoall: Some(Unsupported::ENOSYS),
    allreduce: Some(Unsupported::ENOSYS),
    allgather: Some(Unsupported::ENOSYS),
    reduce_scatter: Some(Unsupported::ENOSYS),
    reduce: Some(Unsupported::ENOSYS),
    scatter: Some(Unsupported::ENOSYS),
    gather: Some(Unsupported::ENOSYS),
    msg: Some(Unsupported::ENOSYS),
    barrier2: Some(Unsupported::ENOSYS),
});
