// Made by `regenerate-libfabric-bindings` from libfabric's headers. Do not edit.

pub const FI_ADDR_UNSPEC: fi_addr_t = fi_addr_t::MAX;
pub const FI_ADDR_NOTAVAIL: fi_addr_t = fi_addr_t::MAX;
pub const FI_KEY_NOTAVAIL: u64 = u64::MAX;
use libc::{iovec, pthread_cond_t, pthread_mutex_t};
#[repr(C)]
#[derive(Default)]
pub struct __IncompleteArrayField<T>(::core::marker::PhantomData<T>, [T; 0]);
impl<T> __IncompleteArrayField<T> {
    #[inline]
    pub const fn new() -> Self {
        __IncompleteArrayField(::core::marker::PhantomData, [])
    }
    #[inline]
    pub fn as_ptr(&self) -> *const T {
        self as *const _ as *const T
    }
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self as *mut _ as *mut T
    }
    #[inline]
    pub unsafe fn as_slice(&self, len: usize) -> &[T] {
        ::core::slice::from_raw_parts(self.as_ptr(), len)
    }
    #[inline]
    pub unsafe fn as_mut_slice(&mut self, len: usize) -> &mut [T] {
        ::core::slice::from_raw_parts_mut(self.as_mut_ptr(), len)
    }
}
impl<T> ::core::fmt::Debug for __IncompleteArrayField<T> {
    fn fmt(&self, fmt: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
        fmt.write_str("__IncompleteArrayField")
    }
}
pub const FI_SUCCESS: ::core::ffi::c_int = 0;
pub const FI_EPERM: ::core::ffi::c_int = 1;
pub const FI_ENOENT: ::core::ffi::c_int = 2;
pub const FI_EINTR: ::core::ffi::c_int = 4;
pub const FI_EIO: ::core::ffi::c_int = 5;
pub const FI_E2BIG: ::core::ffi::c_int = 7;
pub const FI_EBADF: ::core::ffi::c_int = 9;
pub const FI_EAGAIN: ::core::ffi::c_int = 11;
pub const FI_ENOMEM: ::core::ffi::c_int = 12;
pub const FI_EACCES: ::core::ffi::c_int = 13;
pub const FI_EFAULT: ::core::ffi::c_int = 14;
pub const FI_EBUSY: ::core::ffi::c_int = 16;
pub const FI_ENODEV: ::core::ffi::c_int = 19;
pub const FI_EINVAL: ::core::ffi::c_int = 22;
pub const FI_EMFILE: ::core::ffi::c_int = 24;
pub const FI_ENOSPC: ::core::ffi::c_int = 28;
pub const FI_ENOSYS: ::core::ffi::c_int = 38;
pub const FI_EWOULDBLOCK: ::core::ffi::c_int = 11;
pub const FI_ENOMSG: ::core::ffi::c_int = 42;
pub const FI_ENODATA: ::core::ffi::c_int = 61;
pub const FI_EPROTO: ::core::ffi::c_int = 71;
pub const FI_EOVERFLOW: ::core::ffi::c_int = 75;
pub const FI_EMSGSIZE: ::core::ffi::c_int = 90;
pub const FI_ENOPROTOOPT: ::core::ffi::c_int = 92;
pub const FI_EOPNOTSUPP: ::core::ffi::c_int = 95;
pub const FI_EADDRINUSE: ::core::ffi::c_int = 98;
pub const FI_EADDRNOTAVAIL: ::core::ffi::c_int = 99;
pub const FI_ENETDOWN: ::core::ffi::c_int = 100;
pub const FI_ENETUNREACH: ::core::ffi::c_int = 101;
pub const FI_ECONNABORTED: ::core::ffi::c_int = 103;
pub const FI_ECONNRESET: ::core::ffi::c_int = 104;
pub const FI_ENOBUFS: ::core::ffi::c_int = 105;
pub const FI_EISCONN: ::core::ffi::c_int = 106;
pub const FI_ENOTCONN: ::core::ffi::c_int = 107;
pub const FI_ESHUTDOWN: ::core::ffi::c_int = 108;
pub const FI_ETIMEDOUT: ::core::ffi::c_int = 110;
pub const FI_ECONNREFUSED: ::core::ffi::c_int = 111;
pub const FI_EHOSTDOWN: ::core::ffi::c_int = 112;
pub const FI_EHOSTUNREACH: ::core::ffi::c_int = 113;
pub const FI_EALREADY: ::core::ffi::c_int = 114;
pub const FI_EINPROGRESS: ::core::ffi::c_int = 115;
pub const FI_EREMOTEIO: ::core::ffi::c_int = 121;
pub const FI_ECANCELED: ::core::ffi::c_int = 125;
pub const FI_EKEYREJECTED: ::core::ffi::c_int = 129;
pub const FI_ERRNO_OFFSET: ::core::ffi::c_int = 256;
pub const FI_MAJOR_VERSION: u32 = 2;
pub const FI_MINOR_VERSION: u32 = 6;
pub const FI_REVISION_VERSION: u32 = 0;
pub const FI_MSG: u64 = 2;
pub const FI_RMA: u64 = 4;
pub const FI_TAGGED: u64 = 8;
pub const FI_ATOMIC: u64 = 16;
pub const FI_ATOMICS: u64 = 16;
pub const FI_MULTICAST: u64 = 32;
pub const FI_COLLECTIVE: u64 = 64;
pub const FI_READ: u64 = 256;
pub const FI_WRITE: u64 = 512;
pub const FI_RECV: u64 = 1024;
pub const FI_SEND: u64 = 2048;
pub const FI_TRANSMIT: u64 = 2048;
pub const FI_REMOTE_READ: u64 = 4096;
pub const FI_REMOTE_WRITE: u64 = 8192;
pub const FI_MULTI_RECV: u64 = 65536;
pub const FI_REMOTE_CQ_DATA: u64 = 131072;
pub const FI_MORE: u64 = 262144;
pub const FI_PEEK: u64 = 524288;
pub const FI_TRIGGER: u64 = 1048576;
pub const FI_FENCE: u64 = 2097152;
pub const FI_COMPLETION: u64 = 16777216;
pub const FI_EVENT: u64 = 16777216;
pub const FI_INJECT: u64 = 33554432;
pub const FI_INJECT_COMPLETE: u64 = 67108864;
pub const FI_TRANSMIT_COMPLETE: u64 = 134217728;
pub const FI_DELIVERY_COMPLETE: u64 = 268435456;
pub const FI_AFFINITY: u64 = 536870912;
pub const FI_COMMIT_COMPLETE: u64 = 1073741824;
pub const FI_MATCH_COMPLETE: u64 = 2147483648;
pub const FI_RESCAN: u64 = 34359738368;
pub const FI_PEER_TRANSFER: u64 = 68719476736;
pub const FI_AV_USER_ID: u64 = 2199023255552;
pub const FI_FIREWALL_ADDR: u64 = 4398046511104;
pub const FI_PEER: u64 = 8796093022208;
pub const FI_TAGGED_DIRECTED_RECV: u64 = 35184372088832;
pub const FI_TAGGED_MULTI_RECV: u64 = 70368744177664;
pub const FI_HMEM: u64 = 140737488355328;
pub const FI_EXACT_DIRECTED_RECV: u64 = 281474976710656;
pub const FI_RMA_PMEM: u64 = 562949953421312;
pub const FI_SOURCE_ERR: u64 = 1125899906842624;
pub const FI_LOCAL_COMM: u64 = 2251799813685248;
pub const FI_REMOTE_COMM: u64 = 4503599627370496;
pub const FI_SHARED_AV: u64 = 9007199254740992;
pub const FI_PROV_ATTR_ONLY: u64 = 18014398509481984;
pub const FI_NUMERICHOST: u64 = 36028797018963968;
pub const FI_RMA_EVENT: u64 = 72057594037927936;
pub const FI_SOURCE: u64 = 144115188075855872;
pub const FI_NAMED_RX_CTX: u64 = 288230376151711744;
pub const FI_DIRECTED_RECV: u64 = 576460752303423488;
pub const FI_CLAIM: u64 = 576460752303423488;
pub const FI_DISCARD: u64 = 288230376151711744;
pub const FI_AUTH_KEY: u64 = 144115188075855872;
pub const FI_SHARED_CONTEXT: usize = 18446744073709551615;
pub const FI_AV_AUTH_KEY: usize = 18446744073709551615;
pub const FI_MR_LOCAL: ::core::ffi::c_int = 4;
pub const FI_MR_RAW: ::core::ffi::c_int = 8;
pub const FI_MR_VIRT_ADDR: ::core::ffi::c_int = 16;
pub const FI_MR_ALLOCATED: ::core::ffi::c_int = 32;
pub const FI_MR_PROV_KEY: ::core::ffi::c_int = 64;
pub const FI_MR_MMU_NOTIFY: ::core::ffi::c_int = 128;
pub const FI_MR_RMA_EVENT: ::core::ffi::c_int = 256;
pub const FI_MR_ENDPOINT: ::core::ffi::c_int = 512;
pub const FI_MR_HMEM: ::core::ffi::c_int = 1024;
pub const FI_MR_COLLECTIVE: ::core::ffi::c_int = 2048;
pub const FI_ORDER_RAR: u64 = 1;
pub const FI_ORDER_RAW: u64 = 2;
pub const FI_ORDER_RAS: u64 = 4;
pub const FI_ORDER_WAR: u64 = 8;
pub const FI_ORDER_WAW: u64 = 16;
pub const FI_ORDER_WAS: u64 = 32;
pub const FI_ORDER_SAR: u64 = 64;
pub const FI_ORDER_SAW: u64 = 128;
pub const FI_ORDER_SAS: u64 = 256;
pub const FI_ORDER_RMA_RAR: u64 = 4294967296;
pub const FI_ORDER_RMA_RAW: u64 = 8589934592;
pub const FI_ORDER_RMA_WAR: u64 = 17179869184;
pub const FI_ORDER_RMA_WAW: u64 = 34359738368;
pub const FI_ORDER_ATOMIC_RAR: u64 = 68719476736;
pub const FI_ORDER_ATOMIC_RAW: u64 = 137438953472;
pub const FI_ORDER_ATOMIC_WAR: u64 = 274877906944;
pub const FI_ORDER_ATOMIC_WAW: u64 = 549755813888;
pub const FI_CONTEXT: u64 = 576460752303423488;
pub const FI_MSG_PREFIX: u64 = 288230376151711744;
pub const FI_ASYNC_IOV: u64 = 144115188075855872;
pub const FI_RX_CQ_DATA: u64 = 72057594037927936;
pub const FI_CONTEXT2: u64 = 4503599627370496;
pub const FI_SELECTIVE_COMPLETION: u64 = 576460752303423488;
pub const FI_VARIABLE_MSG: u64 = 0;
pub const FI_NOTIFY_FLAGS_ONLY: u64 = 0;
pub const FI_RESTRICTED_COMP: u64 = 0;
pub const FI_SYMMETRIC: u64 = 576460752303423488;
pub const FI_SYNC_ERR: u64 = 288230376151711744;
pub const FI_UNIVERSE: u64 = 144115188075855872;
pub const FI_BARRIER_SET: u64 = 1099511627776;
pub const FI_BROADCAST_SET: u64 = 2199023255552;
pub const FI_ALLTOALL_SET: u64 = 4398046511104;
pub const FI_ALLREDUCE_SET: u64 = 8796093022208;
pub const FI_ALLGATHER_SET: u64 = 17592186044416;
pub const FI_REDUCE_SCATTER_SET: u64 = 35184372088832;
pub const FI_REDUCE_SET: u64 = 70368744177664;
pub const FI_SCATTER_SET: u64 = 140737488355328;
pub const FI_GATHER_SET: u64 = 281474976710656;
pub const FI_MR_DMABUF: u64 = 1099511627776;
pub const FI_MR_SINGLE_USE: u64 = 2199023255552;
pub const FI_HMEM_HOST_ALLOC: u64 = 35184372088832;
pub const FI_HMEM_DEVICE_ONLY: u64 = 70368744177664;
pub const FI_SET_OPS_HMEM_OVERRIDE: &::core::ffi::CStr = c"hmem_override_ops";
pub const FI_COLLECTIVE_OFFSET: ::core::ffi::c_int = 256;
pub const FI_FETCH_ATOMIC: u64 = 288230376151711744;
pub const FI_COMPARE_ATOMIC: u64 = 576460752303423488;
pub const FI_LIB_EXTENSION: &::core::ffi::CStr = c"fi";
pub const FI_LIB_SUFFIX: &::core::ffi::CStr = c"fi.so";
pub const FI_PROV_SPECIFIC_EFA: ::core::ffi::c_int = 251265024;
pub const FI_PROV_SPECIFIC_TCP: ::core::ffi::c_int = 130744320;
pub const FI_LOG_PROV_FILTERED: u64 = 1;
pub const FI_EOTHER: ::core::ffi::c_int = 256;
pub const FI_ETOOSMALL: ::core::ffi::c_int = 257;
pub const FI_EOPBADSTATE: ::core::ffi::c_int = 258;
pub const FI_EAVAIL: ::core::ffi::c_int = 259;
pub const FI_EBADFLAGS: ::core::ffi::c_int = 260;
pub const FI_ENOEQ: ::core::ffi::c_int = 261;
pub const FI_EDOMAIN: ::core::ffi::c_int = 262;
pub const FI_ENOCQ: ::core::ffi::c_int = 263;
pub const FI_ECRC: ::core::ffi::c_int = 264;
pub const FI_ETRUNC: ::core::ffi::c_int = 265;
pub const FI_ENOKEY: ::core::ffi::c_int = 266;
pub const FI_ENOAV: ::core::ffi::c_int = 267;
pub const FI_EOVERRUN: ::core::ffi::c_int = 268;
pub const FI_ENORX: ::core::ffi::c_int = 269;
pub const FI_ENOMR: ::core::ffi::c_int = 270;
pub const FI_EFIREWALLADDR: ::core::ffi::c_int = 271;
pub const FI_ERRNO_MAX: ::core::ffi::c_int = 272;
pub const FI_NAME_MAX: ::core::ffi::c_int = 64;
pub const FI_ATOMIC_OP_LAST: ::core::ffi::c_int = 19;
pub const FI_DATATYPE_LAST: ::core::ffi::c_int = 14;
pub type fid_t = *mut fid;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_ioc {
    pub addr: *mut ::core::ffi::c_void,
    pub count: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ioc"][::core::mem::size_of::<fi_ioc>() - 16usize];
    ["Alignment of fi_ioc"][::core::mem::align_of::<fi_ioc>() - 8usize];
    ["Offset of field: fi_ioc::addr"][::core::mem::offset_of!(fi_ioc, addr) - 0usize];
    ["Offset of field: fi_ioc::count"][::core::mem::offset_of!(fi_ioc, count) - 8usize];
};
impl Default for fi_ioc {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const FI_FORMAT_UNSPEC: u32 = 0;
pub const FI_SOCKADDR: u32 = 1;
pub const FI_SOCKADDR_IN: u32 = 2;
pub const FI_SOCKADDR_IN6: u32 = 3;
pub const FI_SOCKADDR_IB: u32 = 4;
pub const FI_ADDR_PSMX: u32 = 5;
pub const FI_ADDR_GNI: u32 = 6;
pub const FI_ADDR_BGQ: u32 = 7;
pub const FI_ADDR_MLX: u32 = 8;
pub const FI_ADDR_STR: u32 = 9;
pub const FI_ADDR_PSMX2: u32 = 10;
pub const FI_ADDR_IB_UD: u32 = 11;
pub const FI_ADDR_EFA: u32 = 12;
pub const FI_ADDR_PSMX3: u32 = 13;
pub const FI_ADDR_OPX: u32 = 14;
pub const FI_ADDR_CXI: u32 = 15;
pub const FI_ADDR_UCX: u32 = 16;
pub const FI_SOCKADDR_IP: u32 = 17;
pub type fi_addr_t = u64;
impl fi_av_type {
    pub const FI_AV_UNSPEC: fi_av_type = fi_av_type(0);
    pub const FI_AV_MAP: fi_av_type = fi_av_type(1);
    pub const FI_AV_TABLE: fi_av_type = fi_av_type(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_av_type(pub ::core::ffi::c_uint);
impl fi_progress {
    pub const FI_PROGRESS_UNSPEC: fi_progress = fi_progress(0);
    pub const FI_PROGRESS_AUTO: fi_progress = fi_progress(1);
    pub const FI_PROGRESS_MANUAL: fi_progress = fi_progress(2);
    pub const FI_PROGRESS_CONTROL_UNIFIED: fi_progress = fi_progress(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_progress(pub ::core::ffi::c_uint);
impl fi_threading {
    pub const FI_THREAD_UNSPEC: fi_threading = fi_threading(0);
    pub const FI_THREAD_SAFE: fi_threading = fi_threading(1);
    pub const FI_THREAD_FID: fi_threading = fi_threading(2);
    pub const FI_THREAD_DOMAIN: fi_threading = fi_threading(3);
    pub const FI_THREAD_COMPLETION: fi_threading = fi_threading(4);
    pub const FI_THREAD_ENDPOINT: fi_threading = fi_threading(5);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_threading(pub ::core::ffi::c_uint);
impl fi_resource_mgmt {
    pub const FI_RM_UNSPEC: fi_resource_mgmt = fi_resource_mgmt(0);
    pub const FI_RM_DISABLED: fi_resource_mgmt = fi_resource_mgmt(1);
    pub const FI_RM_ENABLED: fi_resource_mgmt = fi_resource_mgmt(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_resource_mgmt(pub ::core::ffi::c_uint);
impl fi_ep_type {
    pub const FI_EP_UNSPEC: fi_ep_type = fi_ep_type(0);
    pub const FI_EP_MSG: fi_ep_type = fi_ep_type(1);
    pub const FI_EP_DGRAM: fi_ep_type = fi_ep_type(2);
    pub const FI_EP_RDM: fi_ep_type = fi_ep_type(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_ep_type(pub ::core::ffi::c_uint);
pub const FI_PROTO_UNSPEC: u32 = 0;
pub const FI_PROTO_RDMA_CM_IB_RC: u32 = 1;
pub const FI_PROTO_IWARP: u32 = 2;
pub const FI_PROTO_IB_UD: u32 = 3;
pub const FI_PROTO_PSMX: u32 = 4;
pub const FI_PROTO_UDP: u32 = 5;
pub const FI_PROTO_SOCK_TCP: u32 = 6;
pub const FI_PROTO_MXM: u32 = 7;
pub const FI_PROTO_IWARP_RDM: u32 = 8;
pub const FI_PROTO_IB_RDM: u32 = 9;
pub const FI_PROTO_GNI: u32 = 10;
pub const FI_PROTO_RXM: u32 = 11;
pub const FI_PROTO_RXD: u32 = 12;
pub const FI_PROTO_MLX: u32 = 13;
pub const FI_PROTO_NETWORKDIRECT: u32 = 14;
pub const FI_PROTO_PSMX2: u32 = 15;
pub const FI_PROTO_SHM: u32 = 16;
pub const FI_PROTO_MRAIL: u32 = 17;
pub const FI_PROTO_RSTREAM: u32 = 18;
pub const FI_PROTO_RDMA_CM_IB_XRC: u32 = 19;
pub const FI_PROTO_EFA: u32 = 20;
pub const FI_PROTO_PSMX3: u32 = 21;
pub const FI_PROTO_RXM_TCP: u32 = 22;
pub const FI_PROTO_OPX: u32 = 23;
pub const FI_PROTO_CXI: u32 = 24;
pub const FI_PROTO_XNET: u32 = 25;
pub const FI_PROTO_COLL: u32 = 26;
pub const FI_PROTO_UCX: u32 = 27;
pub const FI_PROTO_SM2: u32 = 28;
pub const FI_PROTO_CXI_RNR: u32 = 29;
pub const FI_PROTO_LPP: u32 = 30;
pub const FI_PROTO_LNX: u32 = 31;
pub const FI_TAG_BITS: ::core::ffi::c_int = 0;
pub const FI_TAG_MPI: ::core::ffi::c_int = 1;
pub const FI_TAG_CCL: ::core::ffi::c_int = 2;
pub const FI_TAG_MAX_FORMAT: ::core::ffi::c_int = 65536;
pub const FI_TC_UNSPEC: u32 = 0;
pub const FI_TC_DSCP: u32 = 256;
pub const FI_TC_LABEL: u32 = 512;
pub const FI_TC_BEST_EFFORT: u32 = 512;
pub const FI_TC_LOW_LATENCY: u32 = 513;
pub const FI_TC_DEDICATED_ACCESS: u32 = 514;
pub const FI_TC_BULK_DATA: u32 = 515;
pub const FI_TC_SCAVENGER: u32 = 516;
pub const FI_TC_NETWORK_CTRL: u32 = 517;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_tx_attr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_tx_attr"][::core::mem::size_of::<fi_tx_attr>() - 80usize];
    ["Alignment of fi_tx_attr"][::core::mem::align_of::<fi_tx_attr>() - 8usize];
    [
        "Offset of field: fi_tx_attr::caps",
    ][::core::mem::offset_of!(fi_tx_attr, caps) - 0usize];
    [
        "Offset of field: fi_tx_attr::mode",
    ][::core::mem::offset_of!(fi_tx_attr, mode) - 8usize];
    [
        "Offset of field: fi_tx_attr::op_flags",
    ][::core::mem::offset_of!(fi_tx_attr, op_flags) - 16usize];
    [
        "Offset of field: fi_tx_attr::msg_order",
    ][::core::mem::offset_of!(fi_tx_attr, msg_order) - 24usize];
    [
        "Offset of field: fi_tx_attr::comp_order",
    ][::core::mem::offset_of!(fi_tx_attr, comp_order) - 32usize];
    [
        "Offset of field: fi_tx_attr::inject_size",
    ][::core::mem::offset_of!(fi_tx_attr, inject_size) - 40usize];
    [
        "Offset of field: fi_tx_attr::size",
    ][::core::mem::offset_of!(fi_tx_attr, size) - 48usize];
    [
        "Offset of field: fi_tx_attr::iov_limit",
    ][::core::mem::offset_of!(fi_tx_attr, iov_limit) - 56usize];
    [
        "Offset of field: fi_tx_attr::rma_iov_limit",
    ][::core::mem::offset_of!(fi_tx_attr, rma_iov_limit) - 64usize];
    [
        "Offset of field: fi_tx_attr::tclass",
    ][::core::mem::offset_of!(fi_tx_attr, tclass) - 72usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_rx_attr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_rx_attr"][::core::mem::size_of::<fi_rx_attr>() - 64usize];
    ["Alignment of fi_rx_attr"][::core::mem::align_of::<fi_rx_attr>() - 8usize];
    [
        "Offset of field: fi_rx_attr::caps",
    ][::core::mem::offset_of!(fi_rx_attr, caps) - 0usize];
    [
        "Offset of field: fi_rx_attr::mode",
    ][::core::mem::offset_of!(fi_rx_attr, mode) - 8usize];
    [
        "Offset of field: fi_rx_attr::op_flags",
    ][::core::mem::offset_of!(fi_rx_attr, op_flags) - 16usize];
    [
        "Offset of field: fi_rx_attr::msg_order",
    ][::core::mem::offset_of!(fi_rx_attr, msg_order) - 24usize];
    [
        "Offset of field: fi_rx_attr::comp_order",
    ][::core::mem::offset_of!(fi_rx_attr, comp_order) - 32usize];
    [
        "Offset of field: fi_rx_attr::total_buffered_recv",
    ][::core::mem::offset_of!(fi_rx_attr, total_buffered_recv) - 40usize];
    [
        "Offset of field: fi_rx_attr::size",
    ][::core::mem::offset_of!(fi_rx_attr, size) - 48usize];
    [
        "Offset of field: fi_rx_attr::iov_limit",
    ][::core::mem::offset_of!(fi_rx_attr, iov_limit) - 56usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_ep_attr {
    pub type_: fi_ep_type,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ep_attr"][::core::mem::size_of::<fi_ep_attr>() - 96usize];
    ["Alignment of fi_ep_attr"][::core::mem::align_of::<fi_ep_attr>() - 8usize];
    [
        "Offset of field: fi_ep_attr::type_",
    ][::core::mem::offset_of!(fi_ep_attr, type_) - 0usize];
    [
        "Offset of field: fi_ep_attr::protocol",
    ][::core::mem::offset_of!(fi_ep_attr, protocol) - 4usize];
    [
        "Offset of field: fi_ep_attr::protocol_version",
    ][::core::mem::offset_of!(fi_ep_attr, protocol_version) - 8usize];
    [
        "Offset of field: fi_ep_attr::max_msg_size",
    ][::core::mem::offset_of!(fi_ep_attr, max_msg_size) - 16usize];
    [
        "Offset of field: fi_ep_attr::msg_prefix_size",
    ][::core::mem::offset_of!(fi_ep_attr, msg_prefix_size) - 24usize];
    [
        "Offset of field: fi_ep_attr::max_order_raw_size",
    ][::core::mem::offset_of!(fi_ep_attr, max_order_raw_size) - 32usize];
    [
        "Offset of field: fi_ep_attr::max_order_war_size",
    ][::core::mem::offset_of!(fi_ep_attr, max_order_war_size) - 40usize];
    [
        "Offset of field: fi_ep_attr::max_order_waw_size",
    ][::core::mem::offset_of!(fi_ep_attr, max_order_waw_size) - 48usize];
    [
        "Offset of field: fi_ep_attr::mem_tag_format",
    ][::core::mem::offset_of!(fi_ep_attr, mem_tag_format) - 56usize];
    [
        "Offset of field: fi_ep_attr::tx_ctx_cnt",
    ][::core::mem::offset_of!(fi_ep_attr, tx_ctx_cnt) - 64usize];
    [
        "Offset of field: fi_ep_attr::rx_ctx_cnt",
    ][::core::mem::offset_of!(fi_ep_attr, rx_ctx_cnt) - 72usize];
    [
        "Offset of field: fi_ep_attr::auth_key_size",
    ][::core::mem::offset_of!(fi_ep_attr, auth_key_size) - 80usize];
    [
        "Offset of field: fi_ep_attr::auth_key",
    ][::core::mem::offset_of!(fi_ep_attr, auth_key) - 88usize];
};
impl Default for fi_ep_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct fi_domain_attr {
    pub domain: *mut fid_domain,
    pub name: *mut ::core::ffi::c_char,
    pub threading: fi_threading,
    pub control_progress: fi_progress,
    pub __bindgen_anon_1: fi_domain_attr__bindgen_ty_1,
    pub resource_mgmt: fi_resource_mgmt,
    pub av_type: fi_av_type,
    pub mr_mode: ::core::ffi::c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
    pub max_ep_auth_key: usize,
    pub max_group_id: u32,
    pub max_cntr_value: u64,
    pub max_err_cntr_value: u64,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union fi_domain_attr__bindgen_ty_1 {
    pub data_progress: fi_progress,
    pub progress: fi_progress,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_domain_attr__bindgen_ty_1",
    ][::core::mem::size_of::<fi_domain_attr__bindgen_ty_1>() - 4usize];
    [
        "Alignment of fi_domain_attr__bindgen_ty_1",
    ][::core::mem::align_of::<fi_domain_attr__bindgen_ty_1>() - 4usize];
    [
        "Offset of field: fi_domain_attr__bindgen_ty_1::data_progress",
    ][::core::mem::offset_of!(fi_domain_attr__bindgen_ty_1, data_progress) - 0usize];
    [
        "Offset of field: fi_domain_attr__bindgen_ty_1::progress",
    ][::core::mem::offset_of!(fi_domain_attr__bindgen_ty_1, progress) - 0usize];
};
impl Default for fi_domain_attr__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_domain_attr"][::core::mem::size_of::<fi_domain_attr>() - 224usize];
    ["Alignment of fi_domain_attr"][::core::mem::align_of::<fi_domain_attr>() - 8usize];
    [
        "Offset of field: fi_domain_attr::domain",
    ][::core::mem::offset_of!(fi_domain_attr, domain) - 0usize];
    [
        "Offset of field: fi_domain_attr::name",
    ][::core::mem::offset_of!(fi_domain_attr, name) - 8usize];
    [
        "Offset of field: fi_domain_attr::threading",
    ][::core::mem::offset_of!(fi_domain_attr, threading) - 16usize];
    [
        "Offset of field: fi_domain_attr::control_progress",
    ][::core::mem::offset_of!(fi_domain_attr, control_progress) - 20usize];
    [
        "Offset of field: fi_domain_attr::resource_mgmt",
    ][::core::mem::offset_of!(fi_domain_attr, resource_mgmt) - 28usize];
    [
        "Offset of field: fi_domain_attr::av_type",
    ][::core::mem::offset_of!(fi_domain_attr, av_type) - 32usize];
    [
        "Offset of field: fi_domain_attr::mr_mode",
    ][::core::mem::offset_of!(fi_domain_attr, mr_mode) - 36usize];
    [
        "Offset of field: fi_domain_attr::mr_key_size",
    ][::core::mem::offset_of!(fi_domain_attr, mr_key_size) - 40usize];
    [
        "Offset of field: fi_domain_attr::cq_data_size",
    ][::core::mem::offset_of!(fi_domain_attr, cq_data_size) - 48usize];
    [
        "Offset of field: fi_domain_attr::cq_cnt",
    ][::core::mem::offset_of!(fi_domain_attr, cq_cnt) - 56usize];
    [
        "Offset of field: fi_domain_attr::ep_cnt",
    ][::core::mem::offset_of!(fi_domain_attr, ep_cnt) - 64usize];
    [
        "Offset of field: fi_domain_attr::tx_ctx_cnt",
    ][::core::mem::offset_of!(fi_domain_attr, tx_ctx_cnt) - 72usize];
    [
        "Offset of field: fi_domain_attr::rx_ctx_cnt",
    ][::core::mem::offset_of!(fi_domain_attr, rx_ctx_cnt) - 80usize];
    [
        "Offset of field: fi_domain_attr::max_ep_tx_ctx",
    ][::core::mem::offset_of!(fi_domain_attr, max_ep_tx_ctx) - 88usize];
    [
        "Offset of field: fi_domain_attr::max_ep_rx_ctx",
    ][::core::mem::offset_of!(fi_domain_attr, max_ep_rx_ctx) - 96usize];
    [
        "Offset of field: fi_domain_attr::max_ep_stx_ctx",
    ][::core::mem::offset_of!(fi_domain_attr, max_ep_stx_ctx) - 104usize];
    [
        "Offset of field: fi_domain_attr::max_ep_srx_ctx",
    ][::core::mem::offset_of!(fi_domain_attr, max_ep_srx_ctx) - 112usize];
    [
        "Offset of field: fi_domain_attr::cntr_cnt",
    ][::core::mem::offset_of!(fi_domain_attr, cntr_cnt) - 120usize];
    [
        "Offset of field: fi_domain_attr::mr_iov_limit",
    ][::core::mem::offset_of!(fi_domain_attr, mr_iov_limit) - 128usize];
    [
        "Offset of field: fi_domain_attr::caps",
    ][::core::mem::offset_of!(fi_domain_attr, caps) - 136usize];
    [
        "Offset of field: fi_domain_attr::mode",
    ][::core::mem::offset_of!(fi_domain_attr, mode) - 144usize];
    [
        "Offset of field: fi_domain_attr::auth_key",
    ][::core::mem::offset_of!(fi_domain_attr, auth_key) - 152usize];
    [
        "Offset of field: fi_domain_attr::auth_key_size",
    ][::core::mem::offset_of!(fi_domain_attr, auth_key_size) - 160usize];
    [
        "Offset of field: fi_domain_attr::max_err_data",
    ][::core::mem::offset_of!(fi_domain_attr, max_err_data) - 168usize];
    [
        "Offset of field: fi_domain_attr::mr_cnt",
    ][::core::mem::offset_of!(fi_domain_attr, mr_cnt) - 176usize];
    [
        "Offset of field: fi_domain_attr::tclass",
    ][::core::mem::offset_of!(fi_domain_attr, tclass) - 184usize];
    [
        "Offset of field: fi_domain_attr::max_ep_auth_key",
    ][::core::mem::offset_of!(fi_domain_attr, max_ep_auth_key) - 192usize];
    [
        "Offset of field: fi_domain_attr::max_group_id",
    ][::core::mem::offset_of!(fi_domain_attr, max_group_id) - 200usize];
    [
        "Offset of field: fi_domain_attr::max_cntr_value",
    ][::core::mem::offset_of!(fi_domain_attr, max_cntr_value) - 208usize];
    [
        "Offset of field: fi_domain_attr::max_err_cntr_value",
    ][::core::mem::offset_of!(fi_domain_attr, max_err_cntr_value) - 216usize];
};
impl Default for fi_domain_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_fabric_attr {
    pub fabric: *mut fid_fabric,
    pub name: *mut ::core::ffi::c_char,
    pub prov_name: *mut ::core::ffi::c_char,
    pub prov_version: u32,
    pub api_version: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_fabric_attr"][::core::mem::size_of::<fi_fabric_attr>() - 32usize];
    ["Alignment of fi_fabric_attr"][::core::mem::align_of::<fi_fabric_attr>() - 8usize];
    [
        "Offset of field: fi_fabric_attr::fabric",
    ][::core::mem::offset_of!(fi_fabric_attr, fabric) - 0usize];
    [
        "Offset of field: fi_fabric_attr::name",
    ][::core::mem::offset_of!(fi_fabric_attr, name) - 8usize];
    [
        "Offset of field: fi_fabric_attr::prov_name",
    ][::core::mem::offset_of!(fi_fabric_attr, prov_name) - 16usize];
    [
        "Offset of field: fi_fabric_attr::prov_version",
    ][::core::mem::offset_of!(fi_fabric_attr, prov_version) - 24usize];
    [
        "Offset of field: fi_fabric_attr::api_version",
    ][::core::mem::offset_of!(fi_fabric_attr, api_version) - 28usize];
};
impl Default for fi_fabric_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_info {
    pub next: *mut fi_info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut ::core::ffi::c_void,
    pub dest_addr: *mut ::core::ffi::c_void,
    pub handle: fid_t,
    pub tx_attr: *mut fi_tx_attr,
    pub rx_attr: *mut fi_rx_attr,
    pub ep_attr: *mut fi_ep_attr,
    pub domain_attr: *mut fi_domain_attr,
    pub fabric_attr: *mut fi_fabric_attr,
    pub nic: *mut fid_nic,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_info"][::core::mem::size_of::<fi_info>() - 120usize];
    ["Alignment of fi_info"][::core::mem::align_of::<fi_info>() - 8usize];
    ["Offset of field: fi_info::next"][::core::mem::offset_of!(fi_info, next) - 0usize];
    ["Offset of field: fi_info::caps"][::core::mem::offset_of!(fi_info, caps) - 8usize];
    ["Offset of field: fi_info::mode"][::core::mem::offset_of!(fi_info, mode) - 16usize];
    [
        "Offset of field: fi_info::addr_format",
    ][::core::mem::offset_of!(fi_info, addr_format) - 24usize];
    [
        "Offset of field: fi_info::src_addrlen",
    ][::core::mem::offset_of!(fi_info, src_addrlen) - 32usize];
    [
        "Offset of field: fi_info::dest_addrlen",
    ][::core::mem::offset_of!(fi_info, dest_addrlen) - 40usize];
    [
        "Offset of field: fi_info::src_addr",
    ][::core::mem::offset_of!(fi_info, src_addr) - 48usize];
    [
        "Offset of field: fi_info::dest_addr",
    ][::core::mem::offset_of!(fi_info, dest_addr) - 56usize];
    [
        "Offset of field: fi_info::handle",
    ][::core::mem::offset_of!(fi_info, handle) - 64usize];
    [
        "Offset of field: fi_info::tx_attr",
    ][::core::mem::offset_of!(fi_info, tx_attr) - 72usize];
    [
        "Offset of field: fi_info::rx_attr",
    ][::core::mem::offset_of!(fi_info, rx_attr) - 80usize];
    [
        "Offset of field: fi_info::ep_attr",
    ][::core::mem::offset_of!(fi_info, ep_attr) - 88usize];
    [
        "Offset of field: fi_info::domain_attr",
    ][::core::mem::offset_of!(fi_info, domain_attr) - 96usize];
    [
        "Offset of field: fi_info::fabric_attr",
    ][::core::mem::offset_of!(fi_info, fabric_attr) - 104usize];
    ["Offset of field: fi_info::nic"][::core::mem::offset_of!(fi_info, nic) - 112usize];
};
impl Default for fi_info {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_device_attr {
    pub name: *mut ::core::ffi::c_char,
    pub device_id: *mut ::core::ffi::c_char,
    pub device_version: *mut ::core::ffi::c_char,
    pub vendor_id: *mut ::core::ffi::c_char,
    pub driver: *mut ::core::ffi::c_char,
    pub firmware: *mut ::core::ffi::c_char,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_device_attr"][::core::mem::size_of::<fi_device_attr>() - 48usize];
    ["Alignment of fi_device_attr"][::core::mem::align_of::<fi_device_attr>() - 8usize];
    [
        "Offset of field: fi_device_attr::name",
    ][::core::mem::offset_of!(fi_device_attr, name) - 0usize];
    [
        "Offset of field: fi_device_attr::device_id",
    ][::core::mem::offset_of!(fi_device_attr, device_id) - 8usize];
    [
        "Offset of field: fi_device_attr::device_version",
    ][::core::mem::offset_of!(fi_device_attr, device_version) - 16usize];
    [
        "Offset of field: fi_device_attr::vendor_id",
    ][::core::mem::offset_of!(fi_device_attr, vendor_id) - 24usize];
    [
        "Offset of field: fi_device_attr::driver",
    ][::core::mem::offset_of!(fi_device_attr, driver) - 32usize];
    [
        "Offset of field: fi_device_attr::firmware",
    ][::core::mem::offset_of!(fi_device_attr, firmware) - 40usize];
};
impl Default for fi_device_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl fi_bus_type {
    pub const FI_BUS_UNSPEC: fi_bus_type = fi_bus_type(0);
    pub const FI_BUS_UNKNOWN: fi_bus_type = fi_bus_type(0);
    pub const FI_BUS_PCI: fi_bus_type = fi_bus_type(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_bus_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_pci_attr {
    pub domain_id: u16,
    pub bus_id: u8,
    pub device_id: u8,
    pub function_id: u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_pci_attr"][::core::mem::size_of::<fi_pci_attr>() - 6usize];
    ["Alignment of fi_pci_attr"][::core::mem::align_of::<fi_pci_attr>() - 2usize];
    [
        "Offset of field: fi_pci_attr::domain_id",
    ][::core::mem::offset_of!(fi_pci_attr, domain_id) - 0usize];
    [
        "Offset of field: fi_pci_attr::bus_id",
    ][::core::mem::offset_of!(fi_pci_attr, bus_id) - 2usize];
    [
        "Offset of field: fi_pci_attr::device_id",
    ][::core::mem::offset_of!(fi_pci_attr, device_id) - 3usize];
    [
        "Offset of field: fi_pci_attr::function_id",
    ][::core::mem::offset_of!(fi_pci_attr, function_id) - 4usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub struct fi_bus_attr {
    pub bus_type: fi_bus_type,
    pub attr: fi_bus_attr__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union fi_bus_attr__bindgen_ty_1 {
    pub pci: fi_pci_attr,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_bus_attr__bindgen_ty_1",
    ][::core::mem::size_of::<fi_bus_attr__bindgen_ty_1>() - 6usize];
    [
        "Alignment of fi_bus_attr__bindgen_ty_1",
    ][::core::mem::align_of::<fi_bus_attr__bindgen_ty_1>() - 2usize];
    [
        "Offset of field: fi_bus_attr__bindgen_ty_1::pci",
    ][::core::mem::offset_of!(fi_bus_attr__bindgen_ty_1, pci) - 0usize];
};
impl Default for fi_bus_attr__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_bus_attr"][::core::mem::size_of::<fi_bus_attr>() - 12usize];
    ["Alignment of fi_bus_attr"][::core::mem::align_of::<fi_bus_attr>() - 4usize];
    [
        "Offset of field: fi_bus_attr::bus_type",
    ][::core::mem::offset_of!(fi_bus_attr, bus_type) - 0usize];
    [
        "Offset of field: fi_bus_attr::attr",
    ][::core::mem::offset_of!(fi_bus_attr, attr) - 4usize];
};
impl Default for fi_bus_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl fi_link_state {
    pub const FI_LINK_UNKNOWN: fi_link_state = fi_link_state(0);
    pub const FI_LINK_DOWN: fi_link_state = fi_link_state(1);
    pub const FI_LINK_UP: fi_link_state = fi_link_state(2);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_link_state(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_link_attr {
    pub address: *mut ::core::ffi::c_char,
    pub mtu: usize,
    pub speed: usize,
    pub state: fi_link_state,
    pub network_type: *mut ::core::ffi::c_char,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_link_attr"][::core::mem::size_of::<fi_link_attr>() - 40usize];
    ["Alignment of fi_link_attr"][::core::mem::align_of::<fi_link_attr>() - 8usize];
    [
        "Offset of field: fi_link_attr::address",
    ][::core::mem::offset_of!(fi_link_attr, address) - 0usize];
    [
        "Offset of field: fi_link_attr::mtu",
    ][::core::mem::offset_of!(fi_link_attr, mtu) - 8usize];
    [
        "Offset of field: fi_link_attr::speed",
    ][::core::mem::offset_of!(fi_link_attr, speed) - 16usize];
    [
        "Offset of field: fi_link_attr::state",
    ][::core::mem::offset_of!(fi_link_attr, state) - 24usize];
    [
        "Offset of field: fi_link_attr::network_type",
    ][::core::mem::offset_of!(fi_link_attr, network_type) - 32usize];
};
impl Default for fi_link_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const FI_CLASS_UNSPEC: usize = 0;
pub const FI_CLASS_FABRIC: usize = 1;
pub const FI_CLASS_DOMAIN: usize = 2;
pub const FI_CLASS_EP: usize = 3;
pub const FI_CLASS_SEP: usize = 4;
pub const FI_CLASS_RX_CTX: usize = 5;
pub const FI_CLASS_SRX_CTX: usize = 6;
pub const FI_CLASS_TX_CTX: usize = 7;
pub const FI_CLASS_STX_CTX: usize = 8;
pub const FI_CLASS_PEP: usize = 9;
pub const FI_CLASS_INTERFACE: usize = 10;
pub const FI_CLASS_AV: usize = 11;
pub const FI_CLASS_MR: usize = 12;
pub const FI_CLASS_EQ: usize = 13;
pub const FI_CLASS_CQ: usize = 14;
pub const FI_CLASS_CNTR: usize = 15;
pub const FI_CLASS_WAIT: usize = 16;
pub const FI_CLASS_POLL: usize = 17;
pub const FI_CLASS_CONNREQ: usize = 18;
pub const FI_CLASS_MC: usize = 19;
pub const FI_CLASS_NIC: usize = 20;
pub const FI_CLASS_AV_SET: usize = 21;
pub const FI_CLASS_MR_CACHE: usize = 22;
pub const FI_CLASS_MEM_MONITOR: usize = 23;
pub const FI_CLASS_PEER_CQ: usize = 24;
pub const FI_CLASS_PEER_SRX: usize = 25;
pub const FI_CLASS_LOG: usize = 26;
pub const FI_CLASS_PEER_AV: usize = 27;
pub const FI_CLASS_PEER_AV_SET: usize = 28;
pub const FI_CLASS_PEER_CNTR: usize = 29;
pub const FI_CLASS_PROFILE: usize = 30;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops {
    pub size: usize,
    pub close: ::core::option::Option<
        unsafe extern "C" fn(fid: *mut fid) -> ::core::ffi::c_int,
    >,
    pub bind: ::core::option::Option<
        unsafe extern "C" fn(
            fid: *mut fid,
            bfid: *mut fid,
            flags: u64,
        ) -> ::core::ffi::c_int,
    >,
    pub control: ::core::option::Option<
        unsafe extern "C" fn(
            fid: *mut fid,
            command: ::core::ffi::c_int,
            arg: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub ops_open: ::core::option::Option<
        unsafe extern "C" fn(
            fid: *mut fid,
            name: *const ::core::ffi::c_char,
            flags: u64,
            ops: *mut *mut ::core::ffi::c_void,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub tostr: ::core::option::Option<
        unsafe extern "C" fn(
            fid: *const fid,
            buf: *mut ::core::ffi::c_char,
            len: usize,
        ) -> ::core::ffi::c_int,
    >,
    pub ops_set: ::core::option::Option<
        unsafe extern "C" fn(
            fid: *mut fid,
            name: *const ::core::ffi::c_char,
            flags: u64,
            ops: *mut ::core::ffi::c_void,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops"][::core::mem::size_of::<fi_ops>() - 56usize];
    ["Alignment of fi_ops"][::core::mem::align_of::<fi_ops>() - 8usize];
    ["Offset of field: fi_ops::size"][::core::mem::offset_of!(fi_ops, size) - 0usize];
    ["Offset of field: fi_ops::close"][::core::mem::offset_of!(fi_ops, close) - 8usize];
    ["Offset of field: fi_ops::bind"][::core::mem::offset_of!(fi_ops, bind) - 16usize];
    [
        "Offset of field: fi_ops::control",
    ][::core::mem::offset_of!(fi_ops, control) - 24usize];
    [
        "Offset of field: fi_ops::ops_open",
    ][::core::mem::offset_of!(fi_ops, ops_open) - 32usize];
    ["Offset of field: fi_ops::tostr"][::core::mem::offset_of!(fi_ops, tostr) - 40usize];
    [
        "Offset of field: fi_ops::ops_set",
    ][::core::mem::offset_of!(fi_ops, ops_set) - 48usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid {
    pub fclass: usize,
    pub context: *mut ::core::ffi::c_void,
    pub ops: *mut fi_ops,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid"][::core::mem::size_of::<fid>() - 24usize];
    ["Alignment of fid"][::core::mem::align_of::<fid>() - 8usize];
    ["Offset of field: fid::fclass"][::core::mem::offset_of!(fid, fclass) - 0usize];
    ["Offset of field: fid::context"][::core::mem::offset_of!(fid, context) - 8usize];
    ["Offset of field: fid::ops"][::core::mem::offset_of!(fid, ops) - 16usize];
};
impl Default for fid {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_fabric {
    pub size: usize,
    pub domain: ::core::option::Option<
        unsafe extern "C" fn(
            fabric: *mut fid_fabric,
            info: *mut fi_info,
            dom: *mut *mut fid_domain,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub passive_ep: ::core::option::Option<
        unsafe extern "C" fn(
            fabric: *mut fid_fabric,
            info: *mut fi_info,
            pep: *mut *mut fid_pep,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub eq_open: ::core::option::Option<
        unsafe extern "C" fn(
            fabric: *mut fid_fabric,
            attr: *mut fi_eq_attr,
            eq: *mut *mut fid_eq,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub wait_open: ::core::option::Option<
        unsafe extern "C" fn(
            fabric: *mut fid_fabric,
            attr: *mut fi_wait_attr,
            waitset: *mut *mut fid_wait,
        ) -> ::core::ffi::c_int,
    >,
    pub trywait: ::core::option::Option<
        unsafe extern "C" fn(
            fabric: *mut fid_fabric,
            fids: *mut *mut fid,
            count: ::core::ffi::c_int,
        ) -> ::core::ffi::c_int,
    >,
    pub domain2: ::core::option::Option<
        unsafe extern "C" fn(
            fabric: *mut fid_fabric,
            info: *mut fi_info,
            dom: *mut *mut fid_domain,
            flags: u64,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_fabric"][::core::mem::size_of::<fi_ops_fabric>() - 56usize];
    ["Alignment of fi_ops_fabric"][::core::mem::align_of::<fi_ops_fabric>() - 8usize];
    [
        "Offset of field: fi_ops_fabric::size",
    ][::core::mem::offset_of!(fi_ops_fabric, size) - 0usize];
    [
        "Offset of field: fi_ops_fabric::domain",
    ][::core::mem::offset_of!(fi_ops_fabric, domain) - 8usize];
    [
        "Offset of field: fi_ops_fabric::passive_ep",
    ][::core::mem::offset_of!(fi_ops_fabric, passive_ep) - 16usize];
    [
        "Offset of field: fi_ops_fabric::eq_open",
    ][::core::mem::offset_of!(fi_ops_fabric, eq_open) - 24usize];
    [
        "Offset of field: fi_ops_fabric::wait_open",
    ][::core::mem::offset_of!(fi_ops_fabric, wait_open) - 32usize];
    [
        "Offset of field: fi_ops_fabric::trywait",
    ][::core::mem::offset_of!(fi_ops_fabric, trywait) - 40usize];
    [
        "Offset of field: fi_ops_fabric::domain2",
    ][::core::mem::offset_of!(fi_ops_fabric, domain2) - 48usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_fabric {
    pub fid: fid,
    pub ops: *mut fi_ops_fabric,
    pub api_version: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_fabric"][::core::mem::size_of::<fid_fabric>() - 40usize];
    ["Alignment of fid_fabric"][::core::mem::align_of::<fid_fabric>() - 8usize];
    [
        "Offset of field: fid_fabric::fid",
    ][::core::mem::offset_of!(fid_fabric, fid) - 0usize];
    [
        "Offset of field: fid_fabric::ops",
    ][::core::mem::offset_of!(fid_fabric, ops) - 24usize];
    [
        "Offset of field: fid_fabric::api_version",
    ][::core::mem::offset_of!(fid_fabric, api_version) - 32usize];
};
impl Default for fid_fabric {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_nic {
    pub fid: fid,
    pub device_attr: *mut fi_device_attr,
    pub bus_attr: *mut fi_bus_attr,
    pub link_attr: *mut fi_link_attr,
    pub prov_attr: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_nic"][::core::mem::size_of::<fid_nic>() - 56usize];
    ["Alignment of fid_nic"][::core::mem::align_of::<fid_nic>() - 8usize];
    ["Offset of field: fid_nic::fid"][::core::mem::offset_of!(fid_nic, fid) - 0usize];
    [
        "Offset of field: fid_nic::device_attr",
    ][::core::mem::offset_of!(fid_nic, device_attr) - 24usize];
    [
        "Offset of field: fid_nic::bus_attr",
    ][::core::mem::offset_of!(fid_nic, bus_attr) - 32usize];
    [
        "Offset of field: fid_nic::link_attr",
    ][::core::mem::offset_of!(fid_nic, link_attr) - 40usize];
    [
        "Offset of field: fid_nic::prov_attr",
    ][::core::mem::offset_of!(fid_nic, prov_attr) - 48usize];
};
impl Default for fid_nic {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_alias {
    pub fid: *mut *mut fid,
    pub flags: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_alias"][::core::mem::size_of::<fi_alias>() - 16usize];
    ["Alignment of fi_alias"][::core::mem::align_of::<fi_alias>() - 8usize];
    ["Offset of field: fi_alias::fid"][::core::mem::offset_of!(fi_alias, fid) - 0usize];
    [
        "Offset of field: fi_alias::flags",
    ][::core::mem::offset_of!(fi_alias, flags) - 8usize];
};
impl Default for fi_alias {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_fid_var {
    pub name: ::core::ffi::c_int,
    pub val: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_fid_var"][::core::mem::size_of::<fi_fid_var>() - 16usize];
    ["Alignment of fi_fid_var"][::core::mem::align_of::<fi_fid_var>() - 8usize];
    [
        "Offset of field: fi_fid_var::name",
    ][::core::mem::offset_of!(fi_fid_var, name) - 0usize];
    [
        "Offset of field: fi_fid_var::val",
    ][::core::mem::offset_of!(fi_fid_var, val) - 8usize];
};
impl Default for fi_fid_var {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_mr_raw_attr {
    pub flags: u64,
    pub base_addr: *mut u64,
    pub raw_key: *mut u8,
    pub key_size: *mut usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_mr_raw_attr"][::core::mem::size_of::<fi_mr_raw_attr>() - 32usize];
    ["Alignment of fi_mr_raw_attr"][::core::mem::align_of::<fi_mr_raw_attr>() - 8usize];
    [
        "Offset of field: fi_mr_raw_attr::flags",
    ][::core::mem::offset_of!(fi_mr_raw_attr, flags) - 0usize];
    [
        "Offset of field: fi_mr_raw_attr::base_addr",
    ][::core::mem::offset_of!(fi_mr_raw_attr, base_addr) - 8usize];
    [
        "Offset of field: fi_mr_raw_attr::raw_key",
    ][::core::mem::offset_of!(fi_mr_raw_attr, raw_key) - 16usize];
    [
        "Offset of field: fi_mr_raw_attr::key_size",
    ][::core::mem::offset_of!(fi_mr_raw_attr, key_size) - 24usize];
};
impl Default for fi_mr_raw_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_mr_map_raw {
    pub flags: u64,
    pub base_addr: u64,
    pub raw_key: *mut u8,
    pub key_size: usize,
    pub key: *mut u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_mr_map_raw"][::core::mem::size_of::<fi_mr_map_raw>() - 40usize];
    ["Alignment of fi_mr_map_raw"][::core::mem::align_of::<fi_mr_map_raw>() - 8usize];
    [
        "Offset of field: fi_mr_map_raw::flags",
    ][::core::mem::offset_of!(fi_mr_map_raw, flags) - 0usize];
    [
        "Offset of field: fi_mr_map_raw::base_addr",
    ][::core::mem::offset_of!(fi_mr_map_raw, base_addr) - 8usize];
    [
        "Offset of field: fi_mr_map_raw::raw_key",
    ][::core::mem::offset_of!(fi_mr_map_raw, raw_key) - 16usize];
    [
        "Offset of field: fi_mr_map_raw::key_size",
    ][::core::mem::offset_of!(fi_mr_map_raw, key_size) - 24usize];
    [
        "Offset of field: fi_mr_map_raw::key",
    ][::core::mem::offset_of!(fi_mr_map_raw, key) - 32usize];
};
impl Default for fi_mr_map_raw {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const FI_GETFIDFLAG: ::core::ffi::c_int = 0;
pub const FI_SETFIDFLAG: ::core::ffi::c_int = 1;
pub const FI_GETOPSFLAG: ::core::ffi::c_int = 2;
pub const FI_SETOPSFLAG: ::core::ffi::c_int = 3;
pub const FI_ALIAS: ::core::ffi::c_int = 4;
pub const FI_GETWAIT: ::core::ffi::c_int = 5;
pub const FI_ENABLE: ::core::ffi::c_int = 6;
pub const FI_BACKLOG: ::core::ffi::c_int = 7;
pub const FI_GET_RAW_MR: ::core::ffi::c_int = 8;
pub const FI_MAP_RAW_MR: ::core::ffi::c_int = 9;
pub const FI_UNMAP_KEY: ::core::ffi::c_int = 10;
pub const FI_QUEUE_WORK: ::core::ffi::c_int = 11;
pub const FI_CANCEL_WORK: ::core::ffi::c_int = 12;
pub const FI_FLUSH_WORK: ::core::ffi::c_int = 13;
pub const FI_REFRESH: ::core::ffi::c_int = 14;
pub const FI_DUP: ::core::ffi::c_int = 15;
pub const FI_GETWAITOBJ: ::core::ffi::c_int = 16;
pub const FI_GET_VAL: ::core::ffi::c_int = 17;
pub const FI_SET_VAL: ::core::ffi::c_int = 18;
pub const FI_EXPORT_FID: ::core::ffi::c_int = 19;
pub const FI_GET_FD: ::core::ffi::c_int = 20;
impl fi_type {
    pub const FI_TYPE_INFO: fi_type = fi_type(0);
    pub const FI_TYPE_EP_TYPE: fi_type = fi_type(1);
    pub const FI_TYPE_CAPS: fi_type = fi_type(2);
    pub const FI_TYPE_OP_FLAGS: fi_type = fi_type(3);
    pub const FI_TYPE_ADDR_FORMAT: fi_type = fi_type(4);
    pub const FI_TYPE_TX_ATTR: fi_type = fi_type(5);
    pub const FI_TYPE_RX_ATTR: fi_type = fi_type(6);
    pub const FI_TYPE_EP_ATTR: fi_type = fi_type(7);
    pub const FI_TYPE_DOMAIN_ATTR: fi_type = fi_type(8);
    pub const FI_TYPE_FABRIC_ATTR: fi_type = fi_type(9);
    pub const FI_TYPE_THREADING: fi_type = fi_type(10);
    pub const FI_TYPE_PROGRESS: fi_type = fi_type(11);
    pub const FI_TYPE_PROTOCOL: fi_type = fi_type(12);
    pub const FI_TYPE_MSG_ORDER: fi_type = fi_type(13);
    pub const FI_TYPE_MODE: fi_type = fi_type(14);
    pub const FI_TYPE_AV_TYPE: fi_type = fi_type(15);
    pub const FI_TYPE_ATOMIC_TYPE: fi_type = fi_type(16);
    pub const FI_TYPE_ATOMIC_OP: fi_type = fi_type(17);
    pub const FI_TYPE_VERSION: fi_type = fi_type(18);
    pub const FI_TYPE_EQ_EVENT: fi_type = fi_type(19);
    pub const FI_TYPE_CQ_EVENT_FLAGS: fi_type = fi_type(20);
    pub const FI_TYPE_MR_MODE: fi_type = fi_type(21);
    pub const FI_TYPE_OP_TYPE: fi_type = fi_type(22);
    pub const FI_TYPE_FID: fi_type = fi_type(23);
    pub const FI_TYPE_COLLECTIVE_OP: fi_type = fi_type(24);
    pub const FI_TYPE_HMEM_IFACE: fi_type = fi_type(25);
    pub const FI_TYPE_CQ_FORMAT: fi_type = fi_type(26);
    pub const FI_TYPE_LOG_LEVEL: fi_type = fi_type(27);
    pub const FI_TYPE_LOG_SUBSYS: fi_type = fi_type(28);
    pub const FI_TYPE_AV_ATTR: fi_type = fi_type(29);
    pub const FI_TYPE_CQ_ATTR: fi_type = fi_type(30);
    pub const FI_TYPE_MR_ATTR: fi_type = fi_type(31);
    pub const FI_TYPE_CNTR_ATTR: fi_type = fi_type(32);
    pub const FI_TYPE_CQ_ERR_ENTRY: fi_type = fi_type(33);
    pub const FI_TYPE_CQ_WAIT_COND: fi_type = fi_type(34);
    pub const FI_TYPE_WAIT_OBJ: fi_type = fi_type(35);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_type(pub ::core::ffi::c_uint);
impl fi_param_type {
    pub const FI_PARAM_STRING: fi_param_type = fi_param_type(0);
    pub const FI_PARAM_INT: fi_param_type = fi_param_type(1);
    pub const FI_PARAM_BOOL: fi_param_type = fi_param_type(2);
    pub const FI_PARAM_SIZE_T: fi_param_type = fi_param_type(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_param_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_param {
    pub name: *const ::core::ffi::c_char,
    pub type_: fi_param_type,
    pub help_string: *const ::core::ffi::c_char,
    pub value: *const ::core::ffi::c_char,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_param"][::core::mem::size_of::<fi_param>() - 32usize];
    ["Alignment of fi_param"][::core::mem::align_of::<fi_param>() - 8usize];
    [
        "Offset of field: fi_param::name",
    ][::core::mem::offset_of!(fi_param, name) - 0usize];
    [
        "Offset of field: fi_param::type_",
    ][::core::mem::offset_of!(fi_param, type_) - 8usize];
    [
        "Offset of field: fi_param::help_string",
    ][::core::mem::offset_of!(fi_param, help_string) - 16usize];
    [
        "Offset of field: fi_param::value",
    ][::core::mem::offset_of!(fi_param, value) - 24usize];
};
impl Default for fi_param {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_context {
    pub internal: [*mut ::core::ffi::c_void; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_context"][::core::mem::size_of::<fi_context>() - 32usize];
    ["Alignment of fi_context"][::core::mem::align_of::<fi_context>() - 8usize];
    [
        "Offset of field: fi_context::internal",
    ][::core::mem::offset_of!(fi_context, internal) - 0usize];
};
impl Default for fi_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_context2 {
    pub internal: [*mut ::core::ffi::c_void; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_context2"][::core::mem::size_of::<fi_context2>() - 64usize];
    ["Alignment of fi_context2"][::core::mem::align_of::<fi_context2>() - 8usize];
    [
        "Offset of field: fi_context2::internal",
    ][::core::mem::offset_of!(fi_context2, internal) - 0usize];
};
impl Default for fi_context2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_recv_context {
    pub ep: *mut fid_ep,
    pub context: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_recv_context"][::core::mem::size_of::<fi_recv_context>() - 16usize];
    [
        "Alignment of fi_recv_context",
    ][::core::mem::align_of::<fi_recv_context>() - 8usize];
    [
        "Offset of field: fi_recv_context::ep",
    ][::core::mem::offset_of!(fi_recv_context, ep) - 0usize];
    [
        "Offset of field: fi_recv_context::context",
    ][::core::mem::offset_of!(fi_recv_context, context) - 8usize];
};
impl Default for fi_recv_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct pollfd {
    pub fd: ::core::ffi::c_int,
    pub events: ::core::ffi::c_short,
    pub revents: ::core::ffi::c_short,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of pollfd"][::core::mem::size_of::<pollfd>() - 8usize];
    ["Alignment of pollfd"][::core::mem::align_of::<pollfd>() - 4usize];
    ["Offset of field: pollfd::fd"][::core::mem::offset_of!(pollfd, fd) - 0usize];
    [
        "Offset of field: pollfd::events",
    ][::core::mem::offset_of!(pollfd, events) - 4usize];
    [
        "Offset of field: pollfd::revents",
    ][::core::mem::offset_of!(pollfd, revents) - 6usize];
};
impl fi_wait_obj {
    pub const FI_WAIT_NONE: fi_wait_obj = fi_wait_obj(0);
    pub const FI_WAIT_UNSPEC: fi_wait_obj = fi_wait_obj(1);
    pub const FI_WAIT_SET: fi_wait_obj = fi_wait_obj(2);
    pub const FI_WAIT_FD: fi_wait_obj = fi_wait_obj(3);
    pub const FI_WAIT_MUTEX_COND: fi_wait_obj = fi_wait_obj(4);
    pub const FI_WAIT_YIELD: fi_wait_obj = fi_wait_obj(5);
    pub const FI_WAIT_POLLFD: fi_wait_obj = fi_wait_obj(6);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_wait_obj(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_wait_attr {
    pub wait_obj: fi_wait_obj,
    pub flags: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_wait_attr"][::core::mem::size_of::<fi_wait_attr>() - 16usize];
    ["Alignment of fi_wait_attr"][::core::mem::align_of::<fi_wait_attr>() - 8usize];
    [
        "Offset of field: fi_wait_attr::wait_obj",
    ][::core::mem::offset_of!(fi_wait_attr, wait_obj) - 0usize];
    [
        "Offset of field: fi_wait_attr::flags",
    ][::core::mem::offset_of!(fi_wait_attr, flags) - 8usize];
};
impl Default for fi_wait_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_wait {
    pub size: usize,
    pub wait: ::core::option::Option<
        unsafe extern "C" fn(
            waitset: *mut fid_wait,
            timeout: ::core::ffi::c_int,
        ) -> ::core::ffi::c_int,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_wait"][::core::mem::size_of::<fi_ops_wait>() - 16usize];
    ["Alignment of fi_ops_wait"][::core::mem::align_of::<fi_ops_wait>() - 8usize];
    [
        "Offset of field: fi_ops_wait::size",
    ][::core::mem::offset_of!(fi_ops_wait, size) - 0usize];
    [
        "Offset of field: fi_ops_wait::wait",
    ][::core::mem::offset_of!(fi_ops_wait, wait) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_wait {
    pub fid: fid,
    pub ops: *mut fi_ops_wait,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_wait"][::core::mem::size_of::<fid_wait>() - 32usize];
    ["Alignment of fid_wait"][::core::mem::align_of::<fid_wait>() - 8usize];
    ["Offset of field: fid_wait::fid"][::core::mem::offset_of!(fid_wait, fid) - 0usize];
    ["Offset of field: fid_wait::ops"][::core::mem::offset_of!(fid_wait, ops) - 24usize];
};
impl Default for fid_wait {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_mutex_cond {
    pub mutex: *mut pthread_mutex_t,
    pub cond: *mut pthread_cond_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_mutex_cond"][::core::mem::size_of::<fi_mutex_cond>() - 16usize];
    ["Alignment of fi_mutex_cond"][::core::mem::align_of::<fi_mutex_cond>() - 8usize];
    [
        "Offset of field: fi_mutex_cond::mutex",
    ][::core::mem::offset_of!(fi_mutex_cond, mutex) - 0usize];
    [
        "Offset of field: fi_mutex_cond::cond",
    ][::core::mem::offset_of!(fi_mutex_cond, cond) - 8usize];
};
impl Default for fi_mutex_cond {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_wait_pollfd {
    pub change_index: u64,
    pub nfds: usize,
    pub fd: *mut pollfd,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_wait_pollfd"][::core::mem::size_of::<fi_wait_pollfd>() - 24usize];
    ["Alignment of fi_wait_pollfd"][::core::mem::align_of::<fi_wait_pollfd>() - 8usize];
    [
        "Offset of field: fi_wait_pollfd::change_index",
    ][::core::mem::offset_of!(fi_wait_pollfd, change_index) - 0usize];
    [
        "Offset of field: fi_wait_pollfd::nfds",
    ][::core::mem::offset_of!(fi_wait_pollfd, nfds) - 8usize];
    [
        "Offset of field: fi_wait_pollfd::fd",
    ][::core::mem::offset_of!(fi_wait_pollfd, fd) - 16usize];
};
impl Default for fi_wait_pollfd {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_poll_attr {
    pub flags: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_poll_attr"][::core::mem::size_of::<fi_poll_attr>() - 8usize];
    ["Alignment of fi_poll_attr"][::core::mem::align_of::<fi_poll_attr>() - 8usize];
    [
        "Offset of field: fi_poll_attr::flags",
    ][::core::mem::offset_of!(fi_poll_attr, flags) - 0usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_poll {
    pub size: usize,
    pub poll: ::core::option::Option<
        unsafe extern "C" fn(
            pollset: *mut fid_poll,
            context: *mut *mut ::core::ffi::c_void,
            count: ::core::ffi::c_int,
        ) -> ::core::ffi::c_int,
    >,
    pub poll_add: ::core::option::Option<
        unsafe extern "C" fn(
            pollset: *mut fid_poll,
            event_fid: *mut fid,
            flags: u64,
        ) -> ::core::ffi::c_int,
    >,
    pub poll_del: ::core::option::Option<
        unsafe extern "C" fn(
            pollset: *mut fid_poll,
            event_fid: *mut fid,
            flags: u64,
        ) -> ::core::ffi::c_int,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_poll"][::core::mem::size_of::<fi_ops_poll>() - 32usize];
    ["Alignment of fi_ops_poll"][::core::mem::align_of::<fi_ops_poll>() - 8usize];
    [
        "Offset of field: fi_ops_poll::size",
    ][::core::mem::offset_of!(fi_ops_poll, size) - 0usize];
    [
        "Offset of field: fi_ops_poll::poll",
    ][::core::mem::offset_of!(fi_ops_poll, poll) - 8usize];
    [
        "Offset of field: fi_ops_poll::poll_add",
    ][::core::mem::offset_of!(fi_ops_poll, poll_add) - 16usize];
    [
        "Offset of field: fi_ops_poll::poll_del",
    ][::core::mem::offset_of!(fi_ops_poll, poll_del) - 24usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_poll {
    pub fid: fid,
    pub ops: *mut fi_ops_poll,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_poll"][::core::mem::size_of::<fid_poll>() - 32usize];
    ["Alignment of fid_poll"][::core::mem::align_of::<fid_poll>() - 8usize];
    ["Offset of field: fid_poll::fid"][::core::mem::offset_of!(fid_poll, fid) - 0usize];
    ["Offset of field: fid_poll::ops"][::core::mem::offset_of!(fid_poll, ops) - 24usize];
};
impl Default for fid_poll {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_eq_attr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: fi_wait_obj,
    pub signaling_vector: ::core::ffi::c_int,
    pub wait_set: *mut fid_wait,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_eq_attr"][::core::mem::size_of::<fi_eq_attr>() - 32usize];
    ["Alignment of fi_eq_attr"][::core::mem::align_of::<fi_eq_attr>() - 8usize];
    [
        "Offset of field: fi_eq_attr::size",
    ][::core::mem::offset_of!(fi_eq_attr, size) - 0usize];
    [
        "Offset of field: fi_eq_attr::flags",
    ][::core::mem::offset_of!(fi_eq_attr, flags) - 8usize];
    [
        "Offset of field: fi_eq_attr::wait_obj",
    ][::core::mem::offset_of!(fi_eq_attr, wait_obj) - 16usize];
    [
        "Offset of field: fi_eq_attr::signaling_vector",
    ][::core::mem::offset_of!(fi_eq_attr, signaling_vector) - 20usize];
    [
        "Offset of field: fi_eq_attr::wait_set",
    ][::core::mem::offset_of!(fi_eq_attr, wait_set) - 24usize];
};
impl Default for fi_eq_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const FI_NOTIFY: u32 = 0;
pub const FI_CONNREQ: u32 = 1;
pub const FI_CONNECTED: u32 = 2;
pub const FI_SHUTDOWN: u32 = 3;
pub const FI_MR_COMPLETE: u32 = 4;
pub const FI_AV_COMPLETE: u32 = 5;
pub const FI_JOIN_COMPLETE: u32 = 6;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_eq_entry {
    pub fid: fid_t,
    pub context: *mut ::core::ffi::c_void,
    pub data: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_eq_entry"][::core::mem::size_of::<fi_eq_entry>() - 24usize];
    ["Alignment of fi_eq_entry"][::core::mem::align_of::<fi_eq_entry>() - 8usize];
    [
        "Offset of field: fi_eq_entry::fid",
    ][::core::mem::offset_of!(fi_eq_entry, fid) - 0usize];
    [
        "Offset of field: fi_eq_entry::context",
    ][::core::mem::offset_of!(fi_eq_entry, context) - 8usize];
    [
        "Offset of field: fi_eq_entry::data",
    ][::core::mem::offset_of!(fi_eq_entry, data) - 16usize];
};
impl Default for fi_eq_entry {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_eq_err_entry {
    pub fid: fid_t,
    pub context: *mut ::core::ffi::c_void,
    pub data: u64,
    pub err: ::core::ffi::c_int,
    pub prov_errno: ::core::ffi::c_int,
    pub err_data: *mut ::core::ffi::c_void,
    pub err_data_size: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_eq_err_entry"][::core::mem::size_of::<fi_eq_err_entry>() - 48usize];
    [
        "Alignment of fi_eq_err_entry",
    ][::core::mem::align_of::<fi_eq_err_entry>() - 8usize];
    [
        "Offset of field: fi_eq_err_entry::fid",
    ][::core::mem::offset_of!(fi_eq_err_entry, fid) - 0usize];
    [
        "Offset of field: fi_eq_err_entry::context",
    ][::core::mem::offset_of!(fi_eq_err_entry, context) - 8usize];
    [
        "Offset of field: fi_eq_err_entry::data",
    ][::core::mem::offset_of!(fi_eq_err_entry, data) - 16usize];
    [
        "Offset of field: fi_eq_err_entry::err",
    ][::core::mem::offset_of!(fi_eq_err_entry, err) - 24usize];
    [
        "Offset of field: fi_eq_err_entry::prov_errno",
    ][::core::mem::offset_of!(fi_eq_err_entry, prov_errno) - 28usize];
    [
        "Offset of field: fi_eq_err_entry::err_data",
    ][::core::mem::offset_of!(fi_eq_err_entry, err_data) - 32usize];
    [
        "Offset of field: fi_eq_err_entry::err_data_size",
    ][::core::mem::offset_of!(fi_eq_err_entry, err_data_size) - 40usize];
};
impl Default for fi_eq_err_entry {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug)]
pub struct fi_eq_cm_entry {
    pub fid: fid_t,
    pub info: *mut fi_info,
    pub data: __IncompleteArrayField<u8>,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_eq_cm_entry"][::core::mem::size_of::<fi_eq_cm_entry>() - 16usize];
    ["Alignment of fi_eq_cm_entry"][::core::mem::align_of::<fi_eq_cm_entry>() - 8usize];
    [
        "Offset of field: fi_eq_cm_entry::fid",
    ][::core::mem::offset_of!(fi_eq_cm_entry, fid) - 0usize];
    [
        "Offset of field: fi_eq_cm_entry::info",
    ][::core::mem::offset_of!(fi_eq_cm_entry, info) - 8usize];
    [
        "Offset of field: fi_eq_cm_entry::data",
    ][::core::mem::offset_of!(fi_eq_cm_entry, data) - 16usize];
};
impl Default for fi_eq_cm_entry {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_eq {
    pub size: usize,
    pub read: ::core::option::Option<
        unsafe extern "C" fn(
            eq: *mut fid_eq,
            event: *mut u32,
            buf: *mut ::core::ffi::c_void,
            len: usize,
            flags: u64,
        ) -> isize,
    >,
    pub readerr: ::core::option::Option<
        unsafe extern "C" fn(
            eq: *mut fid_eq,
            buf: *mut fi_eq_err_entry,
            flags: u64,
        ) -> isize,
    >,
    pub write: ::core::option::Option<
        unsafe extern "C" fn(
            eq: *mut fid_eq,
            event: u32,
            buf: *const ::core::ffi::c_void,
            len: usize,
            flags: u64,
        ) -> isize,
    >,
    pub sread: ::core::option::Option<
        unsafe extern "C" fn(
            eq: *mut fid_eq,
            event: *mut u32,
            buf: *mut ::core::ffi::c_void,
            len: usize,
            timeout: ::core::ffi::c_int,
            flags: u64,
        ) -> isize,
    >,
    pub strerror: ::core::option::Option<
        unsafe extern "C" fn(
            eq: *mut fid_eq,
            prov_errno: ::core::ffi::c_int,
            err_data: *const ::core::ffi::c_void,
            buf: *mut ::core::ffi::c_char,
            len: usize,
        ) -> *const ::core::ffi::c_char,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_eq"][::core::mem::size_of::<fi_ops_eq>() - 48usize];
    ["Alignment of fi_ops_eq"][::core::mem::align_of::<fi_ops_eq>() - 8usize];
    [
        "Offset of field: fi_ops_eq::size",
    ][::core::mem::offset_of!(fi_ops_eq, size) - 0usize];
    [
        "Offset of field: fi_ops_eq::read",
    ][::core::mem::offset_of!(fi_ops_eq, read) - 8usize];
    [
        "Offset of field: fi_ops_eq::readerr",
    ][::core::mem::offset_of!(fi_ops_eq, readerr) - 16usize];
    [
        "Offset of field: fi_ops_eq::write",
    ][::core::mem::offset_of!(fi_ops_eq, write) - 24usize];
    [
        "Offset of field: fi_ops_eq::sread",
    ][::core::mem::offset_of!(fi_ops_eq, sread) - 32usize];
    [
        "Offset of field: fi_ops_eq::strerror",
    ][::core::mem::offset_of!(fi_ops_eq, strerror) - 40usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_eq {
    pub fid: fid,
    pub ops: *mut fi_ops_eq,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_eq"][::core::mem::size_of::<fid_eq>() - 32usize];
    ["Alignment of fid_eq"][::core::mem::align_of::<fid_eq>() - 8usize];
    ["Offset of field: fid_eq::fid"][::core::mem::offset_of!(fid_eq, fid) - 0usize];
    ["Offset of field: fid_eq::ops"][::core::mem::offset_of!(fid_eq, ops) - 24usize];
};
impl Default for fid_eq {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl fi_cq_format {
    pub const FI_CQ_FORMAT_UNSPEC: fi_cq_format = fi_cq_format(0);
    pub const FI_CQ_FORMAT_CONTEXT: fi_cq_format = fi_cq_format(1);
    pub const FI_CQ_FORMAT_MSG: fi_cq_format = fi_cq_format(2);
    pub const FI_CQ_FORMAT_DATA: fi_cq_format = fi_cq_format(3);
    pub const FI_CQ_FORMAT_TAGGED: fi_cq_format = fi_cq_format(4);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_cq_format(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_cq_entry {
    pub op_context: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_cq_entry"][::core::mem::size_of::<fi_cq_entry>() - 8usize];
    ["Alignment of fi_cq_entry"][::core::mem::align_of::<fi_cq_entry>() - 8usize];
    [
        "Offset of field: fi_cq_entry::op_context",
    ][::core::mem::offset_of!(fi_cq_entry, op_context) - 0usize];
};
impl Default for fi_cq_entry {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_cq_msg_entry {
    pub op_context: *mut ::core::ffi::c_void,
    pub flags: u64,
    pub len: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_cq_msg_entry"][::core::mem::size_of::<fi_cq_msg_entry>() - 24usize];
    [
        "Alignment of fi_cq_msg_entry",
    ][::core::mem::align_of::<fi_cq_msg_entry>() - 8usize];
    [
        "Offset of field: fi_cq_msg_entry::op_context",
    ][::core::mem::offset_of!(fi_cq_msg_entry, op_context) - 0usize];
    [
        "Offset of field: fi_cq_msg_entry::flags",
    ][::core::mem::offset_of!(fi_cq_msg_entry, flags) - 8usize];
    [
        "Offset of field: fi_cq_msg_entry::len",
    ][::core::mem::offset_of!(fi_cq_msg_entry, len) - 16usize];
};
impl Default for fi_cq_msg_entry {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_cq_data_entry {
    pub op_context: *mut ::core::ffi::c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut ::core::ffi::c_void,
    pub data: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_cq_data_entry"][::core::mem::size_of::<fi_cq_data_entry>() - 40usize];
    [
        "Alignment of fi_cq_data_entry",
    ][::core::mem::align_of::<fi_cq_data_entry>() - 8usize];
    [
        "Offset of field: fi_cq_data_entry::op_context",
    ][::core::mem::offset_of!(fi_cq_data_entry, op_context) - 0usize];
    [
        "Offset of field: fi_cq_data_entry::flags",
    ][::core::mem::offset_of!(fi_cq_data_entry, flags) - 8usize];
    [
        "Offset of field: fi_cq_data_entry::len",
    ][::core::mem::offset_of!(fi_cq_data_entry, len) - 16usize];
    [
        "Offset of field: fi_cq_data_entry::buf",
    ][::core::mem::offset_of!(fi_cq_data_entry, buf) - 24usize];
    [
        "Offset of field: fi_cq_data_entry::data",
    ][::core::mem::offset_of!(fi_cq_data_entry, data) - 32usize];
};
impl Default for fi_cq_data_entry {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_cq_tagged_entry {
    pub op_context: *mut ::core::ffi::c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut ::core::ffi::c_void,
    pub data: u64,
    pub tag: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_cq_tagged_entry",
    ][::core::mem::size_of::<fi_cq_tagged_entry>() - 48usize];
    [
        "Alignment of fi_cq_tagged_entry",
    ][::core::mem::align_of::<fi_cq_tagged_entry>() - 8usize];
    [
        "Offset of field: fi_cq_tagged_entry::op_context",
    ][::core::mem::offset_of!(fi_cq_tagged_entry, op_context) - 0usize];
    [
        "Offset of field: fi_cq_tagged_entry::flags",
    ][::core::mem::offset_of!(fi_cq_tagged_entry, flags) - 8usize];
    [
        "Offset of field: fi_cq_tagged_entry::len",
    ][::core::mem::offset_of!(fi_cq_tagged_entry, len) - 16usize];
    [
        "Offset of field: fi_cq_tagged_entry::buf",
    ][::core::mem::offset_of!(fi_cq_tagged_entry, buf) - 24usize];
    [
        "Offset of field: fi_cq_tagged_entry::data",
    ][::core::mem::offset_of!(fi_cq_tagged_entry, data) - 32usize];
    [
        "Offset of field: fi_cq_tagged_entry::tag",
    ][::core::mem::offset_of!(fi_cq_tagged_entry, tag) - 40usize];
};
impl Default for fi_cq_tagged_entry {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_cq_err_entry {
    pub op_context: *mut ::core::ffi::c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut ::core::ffi::c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: ::core::ffi::c_int,
    pub prov_errno: ::core::ffi::c_int,
    pub err_data: *mut ::core::ffi::c_void,
    pub err_data_size: usize,
    pub src_addr: fi_addr_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_cq_err_entry"][::core::mem::size_of::<fi_cq_err_entry>() - 88usize];
    [
        "Alignment of fi_cq_err_entry",
    ][::core::mem::align_of::<fi_cq_err_entry>() - 8usize];
    [
        "Offset of field: fi_cq_err_entry::op_context",
    ][::core::mem::offset_of!(fi_cq_err_entry, op_context) - 0usize];
    [
        "Offset of field: fi_cq_err_entry::flags",
    ][::core::mem::offset_of!(fi_cq_err_entry, flags) - 8usize];
    [
        "Offset of field: fi_cq_err_entry::len",
    ][::core::mem::offset_of!(fi_cq_err_entry, len) - 16usize];
    [
        "Offset of field: fi_cq_err_entry::buf",
    ][::core::mem::offset_of!(fi_cq_err_entry, buf) - 24usize];
    [
        "Offset of field: fi_cq_err_entry::data",
    ][::core::mem::offset_of!(fi_cq_err_entry, data) - 32usize];
    [
        "Offset of field: fi_cq_err_entry::tag",
    ][::core::mem::offset_of!(fi_cq_err_entry, tag) - 40usize];
    [
        "Offset of field: fi_cq_err_entry::olen",
    ][::core::mem::offset_of!(fi_cq_err_entry, olen) - 48usize];
    [
        "Offset of field: fi_cq_err_entry::err",
    ][::core::mem::offset_of!(fi_cq_err_entry, err) - 56usize];
    [
        "Offset of field: fi_cq_err_entry::prov_errno",
    ][::core::mem::offset_of!(fi_cq_err_entry, prov_errno) - 60usize];
    [
        "Offset of field: fi_cq_err_entry::err_data",
    ][::core::mem::offset_of!(fi_cq_err_entry, err_data) - 64usize];
    [
        "Offset of field: fi_cq_err_entry::err_data_size",
    ][::core::mem::offset_of!(fi_cq_err_entry, err_data_size) - 72usize];
    [
        "Offset of field: fi_cq_err_entry::src_addr",
    ][::core::mem::offset_of!(fi_cq_err_entry, src_addr) - 80usize];
};
impl Default for fi_cq_err_entry {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl fi_cq_wait_cond {
    pub const FI_CQ_COND_NONE: fi_cq_wait_cond = fi_cq_wait_cond(0);
    pub const FI_CQ_COND_THRESHOLD: fi_cq_wait_cond = fi_cq_wait_cond(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_cq_wait_cond(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_cq_attr {
    pub size: usize,
    pub flags: u64,
    pub format: fi_cq_format,
    pub wait_obj: fi_wait_obj,
    pub signaling_vector: ::core::ffi::c_int,
    pub wait_cond: fi_cq_wait_cond,
    pub wait_set: *mut fid_wait,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_cq_attr"][::core::mem::size_of::<fi_cq_attr>() - 40usize];
    ["Alignment of fi_cq_attr"][::core::mem::align_of::<fi_cq_attr>() - 8usize];
    [
        "Offset of field: fi_cq_attr::size",
    ][::core::mem::offset_of!(fi_cq_attr, size) - 0usize];
    [
        "Offset of field: fi_cq_attr::flags",
    ][::core::mem::offset_of!(fi_cq_attr, flags) - 8usize];
    [
        "Offset of field: fi_cq_attr::format",
    ][::core::mem::offset_of!(fi_cq_attr, format) - 16usize];
    [
        "Offset of field: fi_cq_attr::wait_obj",
    ][::core::mem::offset_of!(fi_cq_attr, wait_obj) - 20usize];
    [
        "Offset of field: fi_cq_attr::signaling_vector",
    ][::core::mem::offset_of!(fi_cq_attr, signaling_vector) - 24usize];
    [
        "Offset of field: fi_cq_attr::wait_cond",
    ][::core::mem::offset_of!(fi_cq_attr, wait_cond) - 28usize];
    [
        "Offset of field: fi_cq_attr::wait_set",
    ][::core::mem::offset_of!(fi_cq_attr, wait_set) - 32usize];
};
impl Default for fi_cq_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_cq {
    pub size: usize,
    pub read: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut fid_cq,
            buf: *mut ::core::ffi::c_void,
            count: usize,
        ) -> isize,
    >,
    pub readfrom: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut fid_cq,
            buf: *mut ::core::ffi::c_void,
            count: usize,
            src_addr: *mut fi_addr_t,
        ) -> isize,
    >,
    pub readerr: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut fid_cq,
            buf: *mut fi_cq_err_entry,
            flags: u64,
        ) -> isize,
    >,
    pub sread: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut fid_cq,
            buf: *mut ::core::ffi::c_void,
            count: usize,
            cond: *const ::core::ffi::c_void,
            timeout: ::core::ffi::c_int,
        ) -> isize,
    >,
    pub sreadfrom: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut fid_cq,
            buf: *mut ::core::ffi::c_void,
            count: usize,
            src_addr: *mut fi_addr_t,
            cond: *const ::core::ffi::c_void,
            timeout: ::core::ffi::c_int,
        ) -> isize,
    >,
    pub signal: ::core::option::Option<
        unsafe extern "C" fn(cq: *mut fid_cq) -> ::core::ffi::c_int,
    >,
    pub strerror: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut fid_cq,
            prov_errno: ::core::ffi::c_int,
            err_data: *const ::core::ffi::c_void,
            buf: *mut ::core::ffi::c_char,
            len: usize,
        ) -> *const ::core::ffi::c_char,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_cq"][::core::mem::size_of::<fi_ops_cq>() - 64usize];
    ["Alignment of fi_ops_cq"][::core::mem::align_of::<fi_ops_cq>() - 8usize];
    [
        "Offset of field: fi_ops_cq::size",
    ][::core::mem::offset_of!(fi_ops_cq, size) - 0usize];
    [
        "Offset of field: fi_ops_cq::read",
    ][::core::mem::offset_of!(fi_ops_cq, read) - 8usize];
    [
        "Offset of field: fi_ops_cq::readfrom",
    ][::core::mem::offset_of!(fi_ops_cq, readfrom) - 16usize];
    [
        "Offset of field: fi_ops_cq::readerr",
    ][::core::mem::offset_of!(fi_ops_cq, readerr) - 24usize];
    [
        "Offset of field: fi_ops_cq::sread",
    ][::core::mem::offset_of!(fi_ops_cq, sread) - 32usize];
    [
        "Offset of field: fi_ops_cq::sreadfrom",
    ][::core::mem::offset_of!(fi_ops_cq, sreadfrom) - 40usize];
    [
        "Offset of field: fi_ops_cq::signal",
    ][::core::mem::offset_of!(fi_ops_cq, signal) - 48usize];
    [
        "Offset of field: fi_ops_cq::strerror",
    ][::core::mem::offset_of!(fi_ops_cq, strerror) - 56usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_cq {
    pub fid: fid,
    pub ops: *mut fi_ops_cq,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_cq"][::core::mem::size_of::<fid_cq>() - 32usize];
    ["Alignment of fid_cq"][::core::mem::align_of::<fid_cq>() - 8usize];
    ["Offset of field: fid_cq::fid"][::core::mem::offset_of!(fid_cq, fid) - 0usize];
    ["Offset of field: fid_cq::ops"][::core::mem::offset_of!(fid_cq, ops) - 24usize];
};
impl Default for fid_cq {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl fi_cntr_events {
    pub const FI_CNTR_EVENTS_COMP: fi_cntr_events = fi_cntr_events(0);
    pub const FI_CNTR_EVENTS_BYTES: fi_cntr_events = fi_cntr_events(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_cntr_events(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_cntr_attr {
    pub events: fi_cntr_events,
    pub wait_obj: fi_wait_obj,
    pub wait_set: *mut fid_wait,
    pub flags: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_cntr_attr"][::core::mem::size_of::<fi_cntr_attr>() - 24usize];
    ["Alignment of fi_cntr_attr"][::core::mem::align_of::<fi_cntr_attr>() - 8usize];
    [
        "Offset of field: fi_cntr_attr::events",
    ][::core::mem::offset_of!(fi_cntr_attr, events) - 0usize];
    [
        "Offset of field: fi_cntr_attr::wait_obj",
    ][::core::mem::offset_of!(fi_cntr_attr, wait_obj) - 4usize];
    [
        "Offset of field: fi_cntr_attr::wait_set",
    ][::core::mem::offset_of!(fi_cntr_attr, wait_set) - 8usize];
    [
        "Offset of field: fi_cntr_attr::flags",
    ][::core::mem::offset_of!(fi_cntr_attr, flags) - 16usize];
};
impl Default for fi_cntr_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_cntr {
    pub size: usize,
    pub read: ::core::option::Option<unsafe extern "C" fn(cntr: *mut fid_cntr) -> u64>,
    pub readerr: ::core::option::Option<
        unsafe extern "C" fn(cntr: *mut fid_cntr) -> u64,
    >,
    pub add: ::core::option::Option<
        unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> ::core::ffi::c_int,
    >,
    pub set: ::core::option::Option<
        unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> ::core::ffi::c_int,
    >,
    pub wait: ::core::option::Option<
        unsafe extern "C" fn(
            cntr: *mut fid_cntr,
            threshold: u64,
            timeout: ::core::ffi::c_int,
        ) -> ::core::ffi::c_int,
    >,
    pub adderr: ::core::option::Option<
        unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> ::core::ffi::c_int,
    >,
    pub seterr: ::core::option::Option<
        unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> ::core::ffi::c_int,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_cntr"][::core::mem::size_of::<fi_ops_cntr>() - 64usize];
    ["Alignment of fi_ops_cntr"][::core::mem::align_of::<fi_ops_cntr>() - 8usize];
    [
        "Offset of field: fi_ops_cntr::size",
    ][::core::mem::offset_of!(fi_ops_cntr, size) - 0usize];
    [
        "Offset of field: fi_ops_cntr::read",
    ][::core::mem::offset_of!(fi_ops_cntr, read) - 8usize];
    [
        "Offset of field: fi_ops_cntr::readerr",
    ][::core::mem::offset_of!(fi_ops_cntr, readerr) - 16usize];
    [
        "Offset of field: fi_ops_cntr::add",
    ][::core::mem::offset_of!(fi_ops_cntr, add) - 24usize];
    [
        "Offset of field: fi_ops_cntr::set",
    ][::core::mem::offset_of!(fi_ops_cntr, set) - 32usize];
    [
        "Offset of field: fi_ops_cntr::wait",
    ][::core::mem::offset_of!(fi_ops_cntr, wait) - 40usize];
    [
        "Offset of field: fi_ops_cntr::adderr",
    ][::core::mem::offset_of!(fi_ops_cntr, adderr) - 48usize];
    [
        "Offset of field: fi_ops_cntr::seterr",
    ][::core::mem::offset_of!(fi_ops_cntr, seterr) - 56usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_cntr {
    pub fid: fid,
    pub ops: *mut fi_ops_cntr,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_cntr"][::core::mem::size_of::<fid_cntr>() - 32usize];
    ["Alignment of fid_cntr"][::core::mem::align_of::<fid_cntr>() - 8usize];
    ["Offset of field: fid_cntr::fid"][::core::mem::offset_of!(fid_cntr, fid) - 0usize];
    ["Offset of field: fid_cntr::ops"][::core::mem::offset_of!(fid_cntr, ops) - 24usize];
};
impl Default for fid_cntr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_av_attr {
    pub type_: fi_av_type,
    pub rx_ctx_bits: ::core::ffi::c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const ::core::ffi::c_char,
    pub map_addr: *mut ::core::ffi::c_void,
    pub flags: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_av_attr"][::core::mem::size_of::<fi_av_attr>() - 48usize];
    ["Alignment of fi_av_attr"][::core::mem::align_of::<fi_av_attr>() - 8usize];
    [
        "Offset of field: fi_av_attr::type_",
    ][::core::mem::offset_of!(fi_av_attr, type_) - 0usize];
    [
        "Offset of field: fi_av_attr::rx_ctx_bits",
    ][::core::mem::offset_of!(fi_av_attr, rx_ctx_bits) - 4usize];
    [
        "Offset of field: fi_av_attr::count",
    ][::core::mem::offset_of!(fi_av_attr, count) - 8usize];
    [
        "Offset of field: fi_av_attr::ep_per_node",
    ][::core::mem::offset_of!(fi_av_attr, ep_per_node) - 16usize];
    [
        "Offset of field: fi_av_attr::name",
    ][::core::mem::offset_of!(fi_av_attr, name) - 24usize];
    [
        "Offset of field: fi_av_attr::map_addr",
    ][::core::mem::offset_of!(fi_av_attr, map_addr) - 32usize];
    [
        "Offset of field: fi_av_attr::flags",
    ][::core::mem::offset_of!(fi_av_attr, flags) - 40usize];
};
impl Default for fi_av_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_av_set_attr {
    pub count: usize,
    pub start_addr: fi_addr_t,
    pub end_addr: fi_addr_t,
    pub stride: u64,
    pub comm_key_size: usize,
    pub comm_key: *mut u8,
    pub flags: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_av_set_attr"][::core::mem::size_of::<fi_av_set_attr>() - 56usize];
    ["Alignment of fi_av_set_attr"][::core::mem::align_of::<fi_av_set_attr>() - 8usize];
    [
        "Offset of field: fi_av_set_attr::count",
    ][::core::mem::offset_of!(fi_av_set_attr, count) - 0usize];
    [
        "Offset of field: fi_av_set_attr::start_addr",
    ][::core::mem::offset_of!(fi_av_set_attr, start_addr) - 8usize];
    [
        "Offset of field: fi_av_set_attr::end_addr",
    ][::core::mem::offset_of!(fi_av_set_attr, end_addr) - 16usize];
    [
        "Offset of field: fi_av_set_attr::stride",
    ][::core::mem::offset_of!(fi_av_set_attr, stride) - 24usize];
    [
        "Offset of field: fi_av_set_attr::comm_key_size",
    ][::core::mem::offset_of!(fi_av_set_attr, comm_key_size) - 32usize];
    [
        "Offset of field: fi_av_set_attr::comm_key",
    ][::core::mem::offset_of!(fi_av_set_attr, comm_key) - 40usize];
    [
        "Offset of field: fi_av_set_attr::flags",
    ][::core::mem::offset_of!(fi_av_set_attr, flags) - 48usize];
};
impl Default for fi_av_set_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_av {
    pub size: usize,
    pub insert: ::core::option::Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            addr: *const ::core::ffi::c_void,
            count: usize,
            fi_addr: *mut fi_addr_t,
            flags: u64,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub insertsvc: ::core::option::Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            node: *const ::core::ffi::c_char,
            service: *const ::core::ffi::c_char,
            fi_addr: *mut fi_addr_t,
            flags: u64,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub insertsym: ::core::option::Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            node: *const ::core::ffi::c_char,
            nodecnt: usize,
            service: *const ::core::ffi::c_char,
            svccnt: usize,
            fi_addr: *mut fi_addr_t,
            flags: u64,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub remove: ::core::option::Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            fi_addr: *mut fi_addr_t,
            count: usize,
            flags: u64,
        ) -> ::core::ffi::c_int,
    >,
    pub lookup: ::core::option::Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            fi_addr: fi_addr_t,
            addr: *mut ::core::ffi::c_void,
            addrlen: *mut usize,
        ) -> ::core::ffi::c_int,
    >,
    pub straddr: ::core::option::Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            addr: *const ::core::ffi::c_void,
            buf: *mut ::core::ffi::c_char,
            len: *mut usize,
        ) -> *const ::core::ffi::c_char,
    >,
    pub av_set: ::core::option::Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            attr: *mut fi_av_set_attr,
            av_set: *mut *mut fid_av_set,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub insert_auth_key: ::core::option::Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            auth_key: *const ::core::ffi::c_void,
            auth_key_size: usize,
            fi_addr: *mut fi_addr_t,
            flags: u64,
        ) -> ::core::ffi::c_int,
    >,
    pub lookup_auth_key: ::core::option::Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            fi_addr: fi_addr_t,
            auth_key: *mut ::core::ffi::c_void,
            auth_key_size: *mut usize,
        ) -> ::core::ffi::c_int,
    >,
    pub set_user_id: ::core::option::Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            fi_addr: fi_addr_t,
            user_id: fi_addr_t,
            flags: u64,
        ) -> ::core::ffi::c_int,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_av"][::core::mem::size_of::<fi_ops_av>() - 88usize];
    ["Alignment of fi_ops_av"][::core::mem::align_of::<fi_ops_av>() - 8usize];
    [
        "Offset of field: fi_ops_av::size",
    ][::core::mem::offset_of!(fi_ops_av, size) - 0usize];
    [
        "Offset of field: fi_ops_av::insert",
    ][::core::mem::offset_of!(fi_ops_av, insert) - 8usize];
    [
        "Offset of field: fi_ops_av::insertsvc",
    ][::core::mem::offset_of!(fi_ops_av, insertsvc) - 16usize];
    [
        "Offset of field: fi_ops_av::insertsym",
    ][::core::mem::offset_of!(fi_ops_av, insertsym) - 24usize];
    [
        "Offset of field: fi_ops_av::remove",
    ][::core::mem::offset_of!(fi_ops_av, remove) - 32usize];
    [
        "Offset of field: fi_ops_av::lookup",
    ][::core::mem::offset_of!(fi_ops_av, lookup) - 40usize];
    [
        "Offset of field: fi_ops_av::straddr",
    ][::core::mem::offset_of!(fi_ops_av, straddr) - 48usize];
    [
        "Offset of field: fi_ops_av::av_set",
    ][::core::mem::offset_of!(fi_ops_av, av_set) - 56usize];
    [
        "Offset of field: fi_ops_av::insert_auth_key",
    ][::core::mem::offset_of!(fi_ops_av, insert_auth_key) - 64usize];
    [
        "Offset of field: fi_ops_av::lookup_auth_key",
    ][::core::mem::offset_of!(fi_ops_av, lookup_auth_key) - 72usize];
    [
        "Offset of field: fi_ops_av::set_user_id",
    ][::core::mem::offset_of!(fi_ops_av, set_user_id) - 80usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_av {
    pub fid: fid,
    pub ops: *mut fi_ops_av,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_av"][::core::mem::size_of::<fid_av>() - 32usize];
    ["Alignment of fid_av"][::core::mem::align_of::<fid_av>() - 8usize];
    ["Offset of field: fid_av::fid"][::core::mem::offset_of!(fid_av, fid) - 0usize];
    ["Offset of field: fid_av::ops"][::core::mem::offset_of!(fid_av, ops) - 24usize];
};
impl Default for fid_av {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_mr {
    pub fid: fid,
    pub mem_desc: *mut ::core::ffi::c_void,
    pub key: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_mr"][::core::mem::size_of::<fid_mr>() - 40usize];
    ["Alignment of fid_mr"][::core::mem::align_of::<fid_mr>() - 8usize];
    ["Offset of field: fid_mr::fid"][::core::mem::offset_of!(fid_mr, fid) - 0usize];
    [
        "Offset of field: fid_mr::mem_desc",
    ][::core::mem::offset_of!(fid_mr, mem_desc) - 24usize];
    ["Offset of field: fid_mr::key"][::core::mem::offset_of!(fid_mr, key) - 32usize];
};
impl Default for fid_mr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl fi_hmem_iface {
    pub const FI_HMEM_SYSTEM: fi_hmem_iface = fi_hmem_iface(0);
    pub const FI_HMEM_CUDA: fi_hmem_iface = fi_hmem_iface(1);
    pub const FI_HMEM_ROCR: fi_hmem_iface = fi_hmem_iface(2);
    pub const FI_HMEM_ZE: fi_hmem_iface = fi_hmem_iface(3);
    pub const FI_HMEM_NEURON: fi_hmem_iface = fi_hmem_iface(4);
    pub const FI_HMEM_SYNAPSEAI: fi_hmem_iface = fi_hmem_iface(5);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_hmem_iface(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_mr_dmabuf {
    pub fd: ::core::ffi::c_int,
    pub offset: u64,
    pub len: usize,
    pub base_addr: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_mr_dmabuf"][::core::mem::size_of::<fi_mr_dmabuf>() - 32usize];
    ["Alignment of fi_mr_dmabuf"][::core::mem::align_of::<fi_mr_dmabuf>() - 8usize];
    [
        "Offset of field: fi_mr_dmabuf::fd",
    ][::core::mem::offset_of!(fi_mr_dmabuf, fd) - 0usize];
    [
        "Offset of field: fi_mr_dmabuf::offset",
    ][::core::mem::offset_of!(fi_mr_dmabuf, offset) - 8usize];
    [
        "Offset of field: fi_mr_dmabuf::len",
    ][::core::mem::offset_of!(fi_mr_dmabuf, len) - 16usize];
    [
        "Offset of field: fi_mr_dmabuf::base_addr",
    ][::core::mem::offset_of!(fi_mr_dmabuf, base_addr) - 24usize];
};
impl Default for fi_mr_dmabuf {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_mr_auth_key {
    pub av: *mut fid_av,
    pub src_addr: fi_addr_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_mr_auth_key"][::core::mem::size_of::<fi_mr_auth_key>() - 16usize];
    ["Alignment of fi_mr_auth_key"][::core::mem::align_of::<fi_mr_auth_key>() - 8usize];
    [
        "Offset of field: fi_mr_auth_key::av",
    ][::core::mem::offset_of!(fi_mr_auth_key, av) - 0usize];
    [
        "Offset of field: fi_mr_auth_key::src_addr",
    ][::core::mem::offset_of!(fi_mr_auth_key, src_addr) - 8usize];
};
impl Default for fi_mr_auth_key {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct fi_mr_attr {
    pub __bindgen_anon_1: fi_mr_attr__bindgen_ty_1,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut ::core::ffi::c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: fi_hmem_iface,
    pub device: fi_mr_attr__bindgen_ty_2,
    pub hmem_data: *mut ::core::ffi::c_void,
    pub page_size: usize,
    pub base_mr: *const fid_mr,
    pub sub_mr_cnt: usize,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union fi_mr_attr__bindgen_ty_1 {
    pub mr_iov: *const iovec,
    pub dmabuf: *const fi_mr_dmabuf,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_mr_attr__bindgen_ty_1",
    ][::core::mem::size_of::<fi_mr_attr__bindgen_ty_1>() - 8usize];
    [
        "Alignment of fi_mr_attr__bindgen_ty_1",
    ][::core::mem::align_of::<fi_mr_attr__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: fi_mr_attr__bindgen_ty_1::mr_iov",
    ][::core::mem::offset_of!(fi_mr_attr__bindgen_ty_1, mr_iov) - 0usize];
    [
        "Offset of field: fi_mr_attr__bindgen_ty_1::dmabuf",
    ][::core::mem::offset_of!(fi_mr_attr__bindgen_ty_1, dmabuf) - 0usize];
};
impl Default for fi_mr_attr__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union fi_mr_attr__bindgen_ty_2 {
    pub reserved: u64,
    pub cuda: ::core::ffi::c_int,
    pub ze: ::core::ffi::c_int,
    pub neuron: ::core::ffi::c_int,
    pub synapseai: ::core::ffi::c_int,
    pub rocr: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_mr_attr__bindgen_ty_2",
    ][::core::mem::size_of::<fi_mr_attr__bindgen_ty_2>() - 8usize];
    [
        "Alignment of fi_mr_attr__bindgen_ty_2",
    ][::core::mem::align_of::<fi_mr_attr__bindgen_ty_2>() - 8usize];
    [
        "Offset of field: fi_mr_attr__bindgen_ty_2::reserved",
    ][::core::mem::offset_of!(fi_mr_attr__bindgen_ty_2, reserved) - 0usize];
    [
        "Offset of field: fi_mr_attr__bindgen_ty_2::cuda",
    ][::core::mem::offset_of!(fi_mr_attr__bindgen_ty_2, cuda) - 0usize];
    [
        "Offset of field: fi_mr_attr__bindgen_ty_2::ze",
    ][::core::mem::offset_of!(fi_mr_attr__bindgen_ty_2, ze) - 0usize];
    [
        "Offset of field: fi_mr_attr__bindgen_ty_2::neuron",
    ][::core::mem::offset_of!(fi_mr_attr__bindgen_ty_2, neuron) - 0usize];
    [
        "Offset of field: fi_mr_attr__bindgen_ty_2::synapseai",
    ][::core::mem::offset_of!(fi_mr_attr__bindgen_ty_2, synapseai) - 0usize];
    [
        "Offset of field: fi_mr_attr__bindgen_ty_2::rocr",
    ][::core::mem::offset_of!(fi_mr_attr__bindgen_ty_2, rocr) - 0usize];
};
impl Default for fi_mr_attr__bindgen_ty_2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_mr_attr"][::core::mem::size_of::<fi_mr_attr>() - 112usize];
    ["Alignment of fi_mr_attr"][::core::mem::align_of::<fi_mr_attr>() - 8usize];
    [
        "Offset of field: fi_mr_attr::iov_count",
    ][::core::mem::offset_of!(fi_mr_attr, iov_count) - 8usize];
    [
        "Offset of field: fi_mr_attr::access",
    ][::core::mem::offset_of!(fi_mr_attr, access) - 16usize];
    [
        "Offset of field: fi_mr_attr::offset",
    ][::core::mem::offset_of!(fi_mr_attr, offset) - 24usize];
    [
        "Offset of field: fi_mr_attr::requested_key",
    ][::core::mem::offset_of!(fi_mr_attr, requested_key) - 32usize];
    [
        "Offset of field: fi_mr_attr::context",
    ][::core::mem::offset_of!(fi_mr_attr, context) - 40usize];
    [
        "Offset of field: fi_mr_attr::auth_key_size",
    ][::core::mem::offset_of!(fi_mr_attr, auth_key_size) - 48usize];
    [
        "Offset of field: fi_mr_attr::auth_key",
    ][::core::mem::offset_of!(fi_mr_attr, auth_key) - 56usize];
    [
        "Offset of field: fi_mr_attr::iface",
    ][::core::mem::offset_of!(fi_mr_attr, iface) - 64usize];
    [
        "Offset of field: fi_mr_attr::device",
    ][::core::mem::offset_of!(fi_mr_attr, device) - 72usize];
    [
        "Offset of field: fi_mr_attr::hmem_data",
    ][::core::mem::offset_of!(fi_mr_attr, hmem_data) - 80usize];
    [
        "Offset of field: fi_mr_attr::page_size",
    ][::core::mem::offset_of!(fi_mr_attr, page_size) - 88usize];
    [
        "Offset of field: fi_mr_attr::base_mr",
    ][::core::mem::offset_of!(fi_mr_attr, base_mr) - 96usize];
    [
        "Offset of field: fi_mr_attr::sub_mr_cnt",
    ][::core::mem::offset_of!(fi_mr_attr, sub_mr_cnt) - 104usize];
};
impl Default for fi_mr_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct fi_mr_modify {
    pub flags: u64,
    pub attr: fi_mr_attr,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_mr_modify"][::core::mem::size_of::<fi_mr_modify>() - 120usize];
    ["Alignment of fi_mr_modify"][::core::mem::align_of::<fi_mr_modify>() - 8usize];
    [
        "Offset of field: fi_mr_modify::flags",
    ][::core::mem::offset_of!(fi_mr_modify, flags) - 0usize];
    [
        "Offset of field: fi_mr_modify::attr",
    ][::core::mem::offset_of!(fi_mr_modify, attr) - 8usize];
};
impl Default for fi_mr_modify {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_hmem_override_ops {
    pub size: usize,
    pub copy_from_hmem_iov: ::core::option::Option<
        unsafe extern "C" fn(
            dest: *mut ::core::ffi::c_void,
            size: usize,
            iface: fi_hmem_iface,
            device: u64,
            hmem_iov: *const iovec,
            hmem_iov_count: usize,
            hmem_iov_offset: u64,
        ) -> isize,
    >,
    pub copy_to_hmem_iov: ::core::option::Option<
        unsafe extern "C" fn(
            iface: fi_hmem_iface,
            device: u64,
            hmem_iov: *const iovec,
            hmem_iov_count: usize,
            hmem_iov_offset: u64,
            src: *const ::core::ffi::c_void,
            size: usize,
        ) -> isize,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_hmem_override_ops",
    ][::core::mem::size_of::<fi_hmem_override_ops>() - 24usize];
    [
        "Alignment of fi_hmem_override_ops",
    ][::core::mem::align_of::<fi_hmem_override_ops>() - 8usize];
    [
        "Offset of field: fi_hmem_override_ops::size",
    ][::core::mem::offset_of!(fi_hmem_override_ops, size) - 0usize];
    [
        "Offset of field: fi_hmem_override_ops::copy_from_hmem_iov",
    ][::core::mem::offset_of!(fi_hmem_override_ops, copy_from_hmem_iov) - 8usize];
    [
        "Offset of field: fi_hmem_override_ops::copy_to_hmem_iov",
    ][::core::mem::offset_of!(fi_hmem_override_ops, copy_to_hmem_iov) - 16usize];
};
impl fi_datatype {
    pub const FI_INT8: fi_datatype = fi_datatype(0);
    pub const FI_UINT8: fi_datatype = fi_datatype(1);
    pub const FI_INT16: fi_datatype = fi_datatype(2);
    pub const FI_UINT16: fi_datatype = fi_datatype(3);
    pub const FI_INT32: fi_datatype = fi_datatype(4);
    pub const FI_UINT32: fi_datatype = fi_datatype(5);
    pub const FI_INT64: fi_datatype = fi_datatype(6);
    pub const FI_UINT64: fi_datatype = fi_datatype(7);
    pub const FI_FLOAT: fi_datatype = fi_datatype(8);
    pub const FI_DOUBLE: fi_datatype = fi_datatype(9);
    pub const FI_FLOAT_COMPLEX: fi_datatype = fi_datatype(10);
    pub const FI_DOUBLE_COMPLEX: fi_datatype = fi_datatype(11);
    pub const FI_LONG_DOUBLE: fi_datatype = fi_datatype(12);
    pub const FI_LONG_DOUBLE_COMPLEX: fi_datatype = fi_datatype(13);
    pub const FI_INT128: fi_datatype = fi_datatype(14);
    pub const FI_UINT128: fi_datatype = fi_datatype(15);
    pub const FI_FLOAT16: fi_datatype = fi_datatype(16);
    pub const FI_BFLOAT16: fi_datatype = fi_datatype(17);
    pub const FI_FLOAT8_E4M3: fi_datatype = fi_datatype(18);
    pub const FI_FLOAT8_E5M2: fi_datatype = fi_datatype(19);
    pub const FI_VOID: fi_datatype = fi_datatype(256);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_datatype(pub ::core::ffi::c_uint);
impl fi_op {
    pub const FI_MIN: fi_op = fi_op(0);
    pub const FI_MAX: fi_op = fi_op(1);
    pub const FI_SUM: fi_op = fi_op(2);
    pub const FI_PROD: fi_op = fi_op(3);
    pub const FI_LOR: fi_op = fi_op(4);
    pub const FI_LAND: fi_op = fi_op(5);
    pub const FI_BOR: fi_op = fi_op(6);
    pub const FI_BAND: fi_op = fi_op(7);
    pub const FI_LXOR: fi_op = fi_op(8);
    pub const FI_BXOR: fi_op = fi_op(9);
    pub const FI_ATOMIC_READ: fi_op = fi_op(10);
    pub const FI_ATOMIC_WRITE: fi_op = fi_op(11);
    pub const FI_CSWAP: fi_op = fi_op(12);
    pub const FI_CSWAP_NE: fi_op = fi_op(13);
    pub const FI_CSWAP_LE: fi_op = fi_op(14);
    pub const FI_CSWAP_LT: fi_op = fi_op(15);
    pub const FI_CSWAP_GE: fi_op = fi_op(16);
    pub const FI_CSWAP_GT: fi_op = fi_op(17);
    pub const FI_MSWAP: fi_op = fi_op(18);
    pub const FI_DIFF: fi_op = fi_op(19);
    pub const FI_NOOP: fi_op = fi_op(256);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_op(pub ::core::ffi::c_uint);
impl fi_collective_op {
    pub const FI_BARRIER: fi_collective_op = fi_collective_op(0);
    pub const FI_BROADCAST: fi_collective_op = fi_collective_op(1);
    pub const FI_ALLTOALL: fi_collective_op = fi_collective_op(2);
    pub const FI_ALLREDUCE: fi_collective_op = fi_collective_op(3);
    pub const FI_ALLGATHER: fi_collective_op = fi_collective_op(4);
    pub const FI_REDUCE_SCATTER: fi_collective_op = fi_collective_op(5);
    pub const FI_REDUCE: fi_collective_op = fi_collective_op(6);
    pub const FI_SCATTER: fi_collective_op = fi_collective_op(7);
    pub const FI_GATHER: fi_collective_op = fi_collective_op(8);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_collective_op(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_domain {
    pub size: usize,
    pub av_open: ::core::option::Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_av_attr,
            av: *mut *mut fid_av,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub cq_open: ::core::option::Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_cq_attr,
            cq: *mut *mut fid_cq,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub endpoint: ::core::option::Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            info: *mut fi_info,
            ep: *mut *mut fid_ep,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub scalable_ep: ::core::option::Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            info: *mut fi_info,
            sep: *mut *mut fid_ep,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub cntr_open: ::core::option::Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_cntr_attr,
            cntr: *mut *mut fid_cntr,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub poll_open: ::core::option::Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_poll_attr,
            pollset: *mut *mut fid_poll,
        ) -> ::core::ffi::c_int,
    >,
    pub stx_ctx: ::core::option::Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_tx_attr,
            stx: *mut *mut fid_stx,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub srx_ctx: ::core::option::Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_rx_attr,
            rx_ep: *mut *mut fid_ep,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub query_atomic: ::core::option::Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            datatype: fi_datatype,
            op: fi_op,
            attr: *mut fi_atomic_attr,
            flags: u64,
        ) -> ::core::ffi::c_int,
    >,
    pub query_collective: ::core::option::Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            coll: fi_collective_op,
            attr: *mut fi_collective_attr,
            flags: u64,
        ) -> ::core::ffi::c_int,
    >,
    pub endpoint2: ::core::option::Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            info: *mut fi_info,
            ep: *mut *mut fid_ep,
            flags: u64,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_domain"][::core::mem::size_of::<fi_ops_domain>() - 96usize];
    ["Alignment of fi_ops_domain"][::core::mem::align_of::<fi_ops_domain>() - 8usize];
    [
        "Offset of field: fi_ops_domain::size",
    ][::core::mem::offset_of!(fi_ops_domain, size) - 0usize];
    [
        "Offset of field: fi_ops_domain::av_open",
    ][::core::mem::offset_of!(fi_ops_domain, av_open) - 8usize];
    [
        "Offset of field: fi_ops_domain::cq_open",
    ][::core::mem::offset_of!(fi_ops_domain, cq_open) - 16usize];
    [
        "Offset of field: fi_ops_domain::endpoint",
    ][::core::mem::offset_of!(fi_ops_domain, endpoint) - 24usize];
    [
        "Offset of field: fi_ops_domain::scalable_ep",
    ][::core::mem::offset_of!(fi_ops_domain, scalable_ep) - 32usize];
    [
        "Offset of field: fi_ops_domain::cntr_open",
    ][::core::mem::offset_of!(fi_ops_domain, cntr_open) - 40usize];
    [
        "Offset of field: fi_ops_domain::poll_open",
    ][::core::mem::offset_of!(fi_ops_domain, poll_open) - 48usize];
    [
        "Offset of field: fi_ops_domain::stx_ctx",
    ][::core::mem::offset_of!(fi_ops_domain, stx_ctx) - 56usize];
    [
        "Offset of field: fi_ops_domain::srx_ctx",
    ][::core::mem::offset_of!(fi_ops_domain, srx_ctx) - 64usize];
    [
        "Offset of field: fi_ops_domain::query_atomic",
    ][::core::mem::offset_of!(fi_ops_domain, query_atomic) - 72usize];
    [
        "Offset of field: fi_ops_domain::query_collective",
    ][::core::mem::offset_of!(fi_ops_domain, query_collective) - 80usize];
    [
        "Offset of field: fi_ops_domain::endpoint2",
    ][::core::mem::offset_of!(fi_ops_domain, endpoint2) - 88usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_mr {
    pub size: usize,
    pub reg: ::core::option::Option<
        unsafe extern "C" fn(
            fid: *mut fid,
            buf: *const ::core::ffi::c_void,
            len: usize,
            access: u64,
            offset: u64,
            requested_key: u64,
            flags: u64,
            mr: *mut *mut fid_mr,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub regv: ::core::option::Option<
        unsafe extern "C" fn(
            fid: *mut fid,
            iov: *const iovec,
            count: usize,
            access: u64,
            offset: u64,
            requested_key: u64,
            flags: u64,
            mr: *mut *mut fid_mr,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub regattr: ::core::option::Option<
        unsafe extern "C" fn(
            fid: *mut fid,
            attr: *const fi_mr_attr,
            flags: u64,
            mr: *mut *mut fid_mr,
        ) -> ::core::ffi::c_int,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_mr"][::core::mem::size_of::<fi_ops_mr>() - 32usize];
    ["Alignment of fi_ops_mr"][::core::mem::align_of::<fi_ops_mr>() - 8usize];
    [
        "Offset of field: fi_ops_mr::size",
    ][::core::mem::offset_of!(fi_ops_mr, size) - 0usize];
    [
        "Offset of field: fi_ops_mr::reg",
    ][::core::mem::offset_of!(fi_ops_mr, reg) - 8usize];
    [
        "Offset of field: fi_ops_mr::regv",
    ][::core::mem::offset_of!(fi_ops_mr, regv) - 16usize];
    [
        "Offset of field: fi_ops_mr::regattr",
    ][::core::mem::offset_of!(fi_ops_mr, regattr) - 24usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_domain {
    pub fid: fid,
    pub ops: *mut fi_ops_domain,
    pub mr: *mut fi_ops_mr,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_domain"][::core::mem::size_of::<fid_domain>() - 40usize];
    ["Alignment of fid_domain"][::core::mem::align_of::<fid_domain>() - 8usize];
    [
        "Offset of field: fid_domain::fid",
    ][::core::mem::offset_of!(fid_domain, fid) - 0usize];
    [
        "Offset of field: fid_domain::ops",
    ][::core::mem::offset_of!(fid_domain, ops) - 24usize];
    [
        "Offset of field: fid_domain::mr",
    ][::core::mem::offset_of!(fid_domain, mr) - 32usize];
};
impl Default for fid_domain {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_msg {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut ::core::ffi::c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub context: *mut ::core::ffi::c_void,
    pub data: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_msg"][::core::mem::size_of::<fi_msg>() - 48usize];
    ["Alignment of fi_msg"][::core::mem::align_of::<fi_msg>() - 8usize];
    [
        "Offset of field: fi_msg::msg_iov",
    ][::core::mem::offset_of!(fi_msg, msg_iov) - 0usize];
    ["Offset of field: fi_msg::desc"][::core::mem::offset_of!(fi_msg, desc) - 8usize];
    [
        "Offset of field: fi_msg::iov_count",
    ][::core::mem::offset_of!(fi_msg, iov_count) - 16usize];
    ["Offset of field: fi_msg::addr"][::core::mem::offset_of!(fi_msg, addr) - 24usize];
    [
        "Offset of field: fi_msg::context",
    ][::core::mem::offset_of!(fi_msg, context) - 32usize];
    ["Offset of field: fi_msg::data"][::core::mem::offset_of!(fi_msg, data) - 40usize];
};
impl Default for fi_msg {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const FI_OPT_ENDPOINT: ::core::ffi::c_int = 0;
pub const FI_OPT_MIN_MULTI_RECV: ::core::ffi::c_int = 0;
pub const FI_OPT_CM_DATA_SIZE: ::core::ffi::c_int = 1;
pub const FI_OPT_BUFFERED_MIN: ::core::ffi::c_int = 2;
pub const FI_OPT_BUFFERED_LIMIT: ::core::ffi::c_int = 3;
pub const FI_OPT_SEND_BUF_SIZE: ::core::ffi::c_int = 4;
pub const FI_OPT_RECV_BUF_SIZE: ::core::ffi::c_int = 5;
pub const FI_OPT_TX_SIZE: ::core::ffi::c_int = 6;
pub const FI_OPT_RX_SIZE: ::core::ffi::c_int = 7;
pub const FI_OPT_FI_HMEM_P2P: ::core::ffi::c_int = 8;
pub const FI_OPT_XPU_TRIGGER: ::core::ffi::c_int = 9;
pub const FI_OPT_CUDA_API_PERMITTED: ::core::ffi::c_int = 10;
pub const FI_OPT_SHARED_MEMORY_PERMITTED: ::core::ffi::c_int = 11;
pub const FI_OPT_MAX_MSG_SIZE: ::core::ffi::c_int = 12;
pub const FI_OPT_MAX_TAGGED_SIZE: ::core::ffi::c_int = 13;
pub const FI_OPT_MAX_RMA_SIZE: ::core::ffi::c_int = 14;
pub const FI_OPT_MAX_ATOMIC_SIZE: ::core::ffi::c_int = 15;
pub const FI_OPT_INJECT_MSG_SIZE: ::core::ffi::c_int = 16;
pub const FI_OPT_INJECT_TAGGED_SIZE: ::core::ffi::c_int = 17;
pub const FI_OPT_INJECT_RMA_SIZE: ::core::ffi::c_int = 18;
pub const FI_OPT_INJECT_ATOMIC_SIZE: ::core::ffi::c_int = 19;
pub const FI_OPT_FIREWALL_ADDR: ::core::ffi::c_int = 20;
pub const FI_HMEM_P2P_ENABLED: ::core::ffi::c_int = 0;
pub const FI_HMEM_P2P_REQUIRED: ::core::ffi::c_int = 1;
pub const FI_HMEM_P2P_PREFERRED: ::core::ffi::c_int = 2;
pub const FI_HMEM_P2P_DISABLED: ::core::ffi::c_int = 3;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_ep {
    pub size: usize,
    pub cancel: ::core::option::Option<
        unsafe extern "C" fn(fid: fid_t, context: *mut ::core::ffi::c_void) -> isize,
    >,
    pub getopt: ::core::option::Option<
        unsafe extern "C" fn(
            fid: fid_t,
            level: ::core::ffi::c_int,
            optname: ::core::ffi::c_int,
            optval: *mut ::core::ffi::c_void,
            optlen: *mut usize,
        ) -> ::core::ffi::c_int,
    >,
    pub setopt: ::core::option::Option<
        unsafe extern "C" fn(
            fid: fid_t,
            level: ::core::ffi::c_int,
            optname: ::core::ffi::c_int,
            optval: *const ::core::ffi::c_void,
            optlen: usize,
        ) -> ::core::ffi::c_int,
    >,
    pub tx_ctx: ::core::option::Option<
        unsafe extern "C" fn(
            sep: *mut fid_ep,
            index: ::core::ffi::c_int,
            attr: *mut fi_tx_attr,
            tx_ep: *mut *mut fid_ep,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub rx_ctx: ::core::option::Option<
        unsafe extern "C" fn(
            sep: *mut fid_ep,
            index: ::core::ffi::c_int,
            attr: *mut fi_rx_attr,
            rx_ep: *mut *mut fid_ep,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub rx_size_left: ::core::option::Option<
        unsafe extern "C" fn(ep: *mut fid_ep) -> isize,
    >,
    pub tx_size_left: ::core::option::Option<
        unsafe extern "C" fn(ep: *mut fid_ep) -> isize,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_ep"][::core::mem::size_of::<fi_ops_ep>() - 64usize];
    ["Alignment of fi_ops_ep"][::core::mem::align_of::<fi_ops_ep>() - 8usize];
    [
        "Offset of field: fi_ops_ep::size",
    ][::core::mem::offset_of!(fi_ops_ep, size) - 0usize];
    [
        "Offset of field: fi_ops_ep::cancel",
    ][::core::mem::offset_of!(fi_ops_ep, cancel) - 8usize];
    [
        "Offset of field: fi_ops_ep::getopt",
    ][::core::mem::offset_of!(fi_ops_ep, getopt) - 16usize];
    [
        "Offset of field: fi_ops_ep::setopt",
    ][::core::mem::offset_of!(fi_ops_ep, setopt) - 24usize];
    [
        "Offset of field: fi_ops_ep::tx_ctx",
    ][::core::mem::offset_of!(fi_ops_ep, tx_ctx) - 32usize];
    [
        "Offset of field: fi_ops_ep::rx_ctx",
    ][::core::mem::offset_of!(fi_ops_ep, rx_ctx) - 40usize];
    [
        "Offset of field: fi_ops_ep::rx_size_left",
    ][::core::mem::offset_of!(fi_ops_ep, rx_size_left) - 48usize];
    [
        "Offset of field: fi_ops_ep::tx_size_left",
    ][::core::mem::offset_of!(fi_ops_ep, tx_size_left) - 56usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_msg {
    pub size: usize,
    pub recv: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *mut ::core::ffi::c_void,
            len: usize,
            desc: *mut ::core::ffi::c_void,
            src_addr: fi_addr_t,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub recvv: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            iov: *const iovec,
            desc: *mut *mut ::core::ffi::c_void,
            count: usize,
            src_addr: fi_addr_t,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub recvmsg: ::core::option::Option<
        unsafe extern "C" fn(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize,
    >,
    pub send: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            len: usize,
            desc: *mut ::core::ffi::c_void,
            dest_addr: fi_addr_t,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub sendv: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            iov: *const iovec,
            desc: *mut *mut ::core::ffi::c_void,
            count: usize,
            dest_addr: fi_addr_t,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub sendmsg: ::core::option::Option<
        unsafe extern "C" fn(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize,
    >,
    pub inject: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            len: usize,
            dest_addr: fi_addr_t,
        ) -> isize,
    >,
    pub senddata: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            len: usize,
            desc: *mut ::core::ffi::c_void,
            data: u64,
            dest_addr: fi_addr_t,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub injectdata: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            len: usize,
            data: u64,
            dest_addr: fi_addr_t,
        ) -> isize,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_msg"][::core::mem::size_of::<fi_ops_msg>() - 80usize];
    ["Alignment of fi_ops_msg"][::core::mem::align_of::<fi_ops_msg>() - 8usize];
    [
        "Offset of field: fi_ops_msg::size",
    ][::core::mem::offset_of!(fi_ops_msg, size) - 0usize];
    [
        "Offset of field: fi_ops_msg::recv",
    ][::core::mem::offset_of!(fi_ops_msg, recv) - 8usize];
    [
        "Offset of field: fi_ops_msg::recvv",
    ][::core::mem::offset_of!(fi_ops_msg, recvv) - 16usize];
    [
        "Offset of field: fi_ops_msg::recvmsg",
    ][::core::mem::offset_of!(fi_ops_msg, recvmsg) - 24usize];
    [
        "Offset of field: fi_ops_msg::send",
    ][::core::mem::offset_of!(fi_ops_msg, send) - 32usize];
    [
        "Offset of field: fi_ops_msg::sendv",
    ][::core::mem::offset_of!(fi_ops_msg, sendv) - 40usize];
    [
        "Offset of field: fi_ops_msg::sendmsg",
    ][::core::mem::offset_of!(fi_ops_msg, sendmsg) - 48usize];
    [
        "Offset of field: fi_ops_msg::inject",
    ][::core::mem::offset_of!(fi_ops_msg, inject) - 56usize];
    [
        "Offset of field: fi_ops_msg::senddata",
    ][::core::mem::offset_of!(fi_ops_msg, senddata) - 64usize];
    [
        "Offset of field: fi_ops_msg::injectdata",
    ][::core::mem::offset_of!(fi_ops_msg, injectdata) - 72usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_ep {
    pub fid: fid,
    pub ops: *mut fi_ops_ep,
    pub cm: *mut fi_ops_cm,
    pub msg: *mut fi_ops_msg,
    pub rma: *mut fi_ops_rma,
    pub tagged: *mut fi_ops_tagged,
    pub atomic: *mut fi_ops_atomic,
    pub collective: *mut fi_ops_collective,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_ep"][::core::mem::size_of::<fid_ep>() - 80usize];
    ["Alignment of fid_ep"][::core::mem::align_of::<fid_ep>() - 8usize];
    ["Offset of field: fid_ep::fid"][::core::mem::offset_of!(fid_ep, fid) - 0usize];
    ["Offset of field: fid_ep::ops"][::core::mem::offset_of!(fid_ep, ops) - 24usize];
    ["Offset of field: fid_ep::cm"][::core::mem::offset_of!(fid_ep, cm) - 32usize];
    ["Offset of field: fid_ep::msg"][::core::mem::offset_of!(fid_ep, msg) - 40usize];
    ["Offset of field: fid_ep::rma"][::core::mem::offset_of!(fid_ep, rma) - 48usize];
    [
        "Offset of field: fid_ep::tagged",
    ][::core::mem::offset_of!(fid_ep, tagged) - 56usize];
    [
        "Offset of field: fid_ep::atomic",
    ][::core::mem::offset_of!(fid_ep, atomic) - 64usize];
    [
        "Offset of field: fid_ep::collective",
    ][::core::mem::offset_of!(fid_ep, collective) - 72usize];
};
impl Default for fid_ep {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_pep {
    pub fid: fid,
    pub ops: *mut fi_ops_ep,
    pub cm: *mut fi_ops_cm,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_pep"][::core::mem::size_of::<fid_pep>() - 40usize];
    ["Alignment of fid_pep"][::core::mem::align_of::<fid_pep>() - 8usize];
    ["Offset of field: fid_pep::fid"][::core::mem::offset_of!(fid_pep, fid) - 0usize];
    ["Offset of field: fid_pep::ops"][::core::mem::offset_of!(fid_pep, ops) - 24usize];
    ["Offset of field: fid_pep::cm"][::core::mem::offset_of!(fid_pep, cm) - 32usize];
};
impl Default for fid_pep {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_stx {
    pub fid: fid,
    pub ops: *mut fi_ops_ep,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_stx"][::core::mem::size_of::<fid_stx>() - 32usize];
    ["Alignment of fid_stx"][::core::mem::align_of::<fid_stx>() - 8usize];
    ["Offset of field: fid_stx::fid"][::core::mem::offset_of!(fid_stx, fid) - 0usize];
    ["Offset of field: fid_stx::ops"][::core::mem::offset_of!(fid_stx, ops) - 24usize];
};
impl Default for fid_stx {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_rma_iov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_rma_iov"][::core::mem::size_of::<fi_rma_iov>() - 24usize];
    ["Alignment of fi_rma_iov"][::core::mem::align_of::<fi_rma_iov>() - 8usize];
    [
        "Offset of field: fi_rma_iov::addr",
    ][::core::mem::offset_of!(fi_rma_iov, addr) - 0usize];
    [
        "Offset of field: fi_rma_iov::len",
    ][::core::mem::offset_of!(fi_rma_iov, len) - 8usize];
    [
        "Offset of field: fi_rma_iov::key",
    ][::core::mem::offset_of!(fi_rma_iov, key) - 16usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_rma_ioc {
    pub addr: u64,
    pub count: usize,
    pub key: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_rma_ioc"][::core::mem::size_of::<fi_rma_ioc>() - 24usize];
    ["Alignment of fi_rma_ioc"][::core::mem::align_of::<fi_rma_ioc>() - 8usize];
    [
        "Offset of field: fi_rma_ioc::addr",
    ][::core::mem::offset_of!(fi_rma_ioc, addr) - 0usize];
    [
        "Offset of field: fi_rma_ioc::count",
    ][::core::mem::offset_of!(fi_rma_ioc, count) - 8usize];
    [
        "Offset of field: fi_rma_ioc::key",
    ][::core::mem::offset_of!(fi_rma_ioc, key) - 16usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_msg_rma {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut ::core::ffi::c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub rma_iov: *const fi_rma_iov,
    pub rma_iov_count: usize,
    pub context: *mut ::core::ffi::c_void,
    pub data: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_msg_rma"][::core::mem::size_of::<fi_msg_rma>() - 64usize];
    ["Alignment of fi_msg_rma"][::core::mem::align_of::<fi_msg_rma>() - 8usize];
    [
        "Offset of field: fi_msg_rma::msg_iov",
    ][::core::mem::offset_of!(fi_msg_rma, msg_iov) - 0usize];
    [
        "Offset of field: fi_msg_rma::desc",
    ][::core::mem::offset_of!(fi_msg_rma, desc) - 8usize];
    [
        "Offset of field: fi_msg_rma::iov_count",
    ][::core::mem::offset_of!(fi_msg_rma, iov_count) - 16usize];
    [
        "Offset of field: fi_msg_rma::addr",
    ][::core::mem::offset_of!(fi_msg_rma, addr) - 24usize];
    [
        "Offset of field: fi_msg_rma::rma_iov",
    ][::core::mem::offset_of!(fi_msg_rma, rma_iov) - 32usize];
    [
        "Offset of field: fi_msg_rma::rma_iov_count",
    ][::core::mem::offset_of!(fi_msg_rma, rma_iov_count) - 40usize];
    [
        "Offset of field: fi_msg_rma::context",
    ][::core::mem::offset_of!(fi_msg_rma, context) - 48usize];
    [
        "Offset of field: fi_msg_rma::data",
    ][::core::mem::offset_of!(fi_msg_rma, data) - 56usize];
};
impl Default for fi_msg_rma {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_rma {
    pub size: usize,
    pub read: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *mut ::core::ffi::c_void,
            len: usize,
            desc: *mut ::core::ffi::c_void,
            src_addr: fi_addr_t,
            addr: u64,
            key: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub readv: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            iov: *const iovec,
            desc: *mut *mut ::core::ffi::c_void,
            count: usize,
            src_addr: fi_addr_t,
            addr: u64,
            key: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub readmsg: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            msg: *const fi_msg_rma,
            flags: u64,
        ) -> isize,
    >,
    pub write: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            len: usize,
            desc: *mut ::core::ffi::c_void,
            dest_addr: fi_addr_t,
            addr: u64,
            key: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub writev: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            iov: *const iovec,
            desc: *mut *mut ::core::ffi::c_void,
            count: usize,
            dest_addr: fi_addr_t,
            addr: u64,
            key: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub writemsg: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            msg: *const fi_msg_rma,
            flags: u64,
        ) -> isize,
    >,
    pub inject: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            len: usize,
            dest_addr: fi_addr_t,
            addr: u64,
            key: u64,
        ) -> isize,
    >,
    pub writedata: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            len: usize,
            desc: *mut ::core::ffi::c_void,
            data: u64,
            dest_addr: fi_addr_t,
            addr: u64,
            key: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub injectdata: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            len: usize,
            data: u64,
            dest_addr: fi_addr_t,
            addr: u64,
            key: u64,
        ) -> isize,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_rma"][::core::mem::size_of::<fi_ops_rma>() - 80usize];
    ["Alignment of fi_ops_rma"][::core::mem::align_of::<fi_ops_rma>() - 8usize];
    [
        "Offset of field: fi_ops_rma::size",
    ][::core::mem::offset_of!(fi_ops_rma, size) - 0usize];
    [
        "Offset of field: fi_ops_rma::read",
    ][::core::mem::offset_of!(fi_ops_rma, read) - 8usize];
    [
        "Offset of field: fi_ops_rma::readv",
    ][::core::mem::offset_of!(fi_ops_rma, readv) - 16usize];
    [
        "Offset of field: fi_ops_rma::readmsg",
    ][::core::mem::offset_of!(fi_ops_rma, readmsg) - 24usize];
    [
        "Offset of field: fi_ops_rma::write",
    ][::core::mem::offset_of!(fi_ops_rma, write) - 32usize];
    [
        "Offset of field: fi_ops_rma::writev",
    ][::core::mem::offset_of!(fi_ops_rma, writev) - 40usize];
    [
        "Offset of field: fi_ops_rma::writemsg",
    ][::core::mem::offset_of!(fi_ops_rma, writemsg) - 48usize];
    [
        "Offset of field: fi_ops_rma::inject",
    ][::core::mem::offset_of!(fi_ops_rma, inject) - 56usize];
    [
        "Offset of field: fi_ops_rma::writedata",
    ][::core::mem::offset_of!(fi_ops_rma, writedata) - 64usize];
    [
        "Offset of field: fi_ops_rma::injectdata",
    ][::core::mem::offset_of!(fi_ops_rma, injectdata) - 72usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_atomic_attr {
    pub count: usize,
    pub size: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_atomic_attr"][::core::mem::size_of::<fi_atomic_attr>() - 16usize];
    ["Alignment of fi_atomic_attr"][::core::mem::align_of::<fi_atomic_attr>() - 8usize];
    [
        "Offset of field: fi_atomic_attr::count",
    ][::core::mem::offset_of!(fi_atomic_attr, count) - 0usize];
    [
        "Offset of field: fi_atomic_attr::size",
    ][::core::mem::offset_of!(fi_atomic_attr, size) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_msg_atomic {
    pub msg_iov: *const fi_ioc,
    pub desc: *mut *mut ::core::ffi::c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub rma_iov: *const fi_rma_ioc,
    pub rma_iov_count: usize,
    pub datatype: fi_datatype,
    pub op: fi_op,
    pub context: *mut ::core::ffi::c_void,
    pub data: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_msg_atomic"][::core::mem::size_of::<fi_msg_atomic>() - 72usize];
    ["Alignment of fi_msg_atomic"][::core::mem::align_of::<fi_msg_atomic>() - 8usize];
    [
        "Offset of field: fi_msg_atomic::msg_iov",
    ][::core::mem::offset_of!(fi_msg_atomic, msg_iov) - 0usize];
    [
        "Offset of field: fi_msg_atomic::desc",
    ][::core::mem::offset_of!(fi_msg_atomic, desc) - 8usize];
    [
        "Offset of field: fi_msg_atomic::iov_count",
    ][::core::mem::offset_of!(fi_msg_atomic, iov_count) - 16usize];
    [
        "Offset of field: fi_msg_atomic::addr",
    ][::core::mem::offset_of!(fi_msg_atomic, addr) - 24usize];
    [
        "Offset of field: fi_msg_atomic::rma_iov",
    ][::core::mem::offset_of!(fi_msg_atomic, rma_iov) - 32usize];
    [
        "Offset of field: fi_msg_atomic::rma_iov_count",
    ][::core::mem::offset_of!(fi_msg_atomic, rma_iov_count) - 40usize];
    [
        "Offset of field: fi_msg_atomic::datatype",
    ][::core::mem::offset_of!(fi_msg_atomic, datatype) - 48usize];
    [
        "Offset of field: fi_msg_atomic::op",
    ][::core::mem::offset_of!(fi_msg_atomic, op) - 52usize];
    [
        "Offset of field: fi_msg_atomic::context",
    ][::core::mem::offset_of!(fi_msg_atomic, context) - 56usize];
    [
        "Offset of field: fi_msg_atomic::data",
    ][::core::mem::offset_of!(fi_msg_atomic, data) - 64usize];
};
impl Default for fi_msg_atomic {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_msg_fetch {
    pub msg_iov: *mut fi_ioc,
    pub desc: *mut *mut ::core::ffi::c_void,
    pub iov_count: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_msg_fetch"][::core::mem::size_of::<fi_msg_fetch>() - 24usize];
    ["Alignment of fi_msg_fetch"][::core::mem::align_of::<fi_msg_fetch>() - 8usize];
    [
        "Offset of field: fi_msg_fetch::msg_iov",
    ][::core::mem::offset_of!(fi_msg_fetch, msg_iov) - 0usize];
    [
        "Offset of field: fi_msg_fetch::desc",
    ][::core::mem::offset_of!(fi_msg_fetch, desc) - 8usize];
    [
        "Offset of field: fi_msg_fetch::iov_count",
    ][::core::mem::offset_of!(fi_msg_fetch, iov_count) - 16usize];
};
impl Default for fi_msg_fetch {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_msg_compare {
    pub msg_iov: *const fi_ioc,
    pub desc: *mut *mut ::core::ffi::c_void,
    pub iov_count: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_msg_compare"][::core::mem::size_of::<fi_msg_compare>() - 24usize];
    ["Alignment of fi_msg_compare"][::core::mem::align_of::<fi_msg_compare>() - 8usize];
    [
        "Offset of field: fi_msg_compare::msg_iov",
    ][::core::mem::offset_of!(fi_msg_compare, msg_iov) - 0usize];
    [
        "Offset of field: fi_msg_compare::desc",
    ][::core::mem::offset_of!(fi_msg_compare, desc) - 8usize];
    [
        "Offset of field: fi_msg_compare::iov_count",
    ][::core::mem::offset_of!(fi_msg_compare, iov_count) - 16usize];
};
impl Default for fi_msg_compare {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Default, Copy, Clone)]
pub struct fi_ops_atomic {
    pub size: usize,
    pub write: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            count: usize,
            desc: *mut ::core::ffi::c_void,
            dest_addr: fi_addr_t,
            addr: u64,
            key: u64,
            datatype: fi_datatype,
            op: fi_op,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub writev: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            iov: *const fi_ioc,
            desc: *mut *mut ::core::ffi::c_void,
            count: usize,
            dest_addr: fi_addr_t,
            addr: u64,
            key: u64,
            datatype: fi_datatype,
            op: fi_op,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub writemsg: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            msg: *const fi_msg_atomic,
            flags: u64,
        ) -> isize,
    >,
    pub inject: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            count: usize,
            dest_addr: fi_addr_t,
            addr: u64,
            key: u64,
            datatype: fi_datatype,
            op: fi_op,
        ) -> isize,
    >,
    pub readwrite: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            count: usize,
            desc: *mut ::core::ffi::c_void,
            result: *mut ::core::ffi::c_void,
            result_desc: *mut ::core::ffi::c_void,
            dest_addr: fi_addr_t,
            addr: u64,
            key: u64,
            datatype: fi_datatype,
            op: fi_op,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub readwritev: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            iov: *const fi_ioc,
            desc: *mut *mut ::core::ffi::c_void,
            count: usize,
            resultv: *mut fi_ioc,
            result_desc: *mut *mut ::core::ffi::c_void,
            result_count: usize,
            dest_addr: fi_addr_t,
            addr: u64,
            key: u64,
            datatype: fi_datatype,
            op: fi_op,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub readwritemsg: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            msg: *const fi_msg_atomic,
            resultv: *mut fi_ioc,
            result_desc: *mut *mut ::core::ffi::c_void,
            result_count: usize,
            flags: u64,
        ) -> isize,
    >,
    pub compwrite: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            count: usize,
            desc: *mut ::core::ffi::c_void,
            compare: *const ::core::ffi::c_void,
            compare_desc: *mut ::core::ffi::c_void,
            result: *mut ::core::ffi::c_void,
            result_desc: *mut ::core::ffi::c_void,
            dest_addr: fi_addr_t,
            addr: u64,
            key: u64,
            datatype: fi_datatype,
            op: fi_op,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub compwritev: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            iov: *const fi_ioc,
            desc: *mut *mut ::core::ffi::c_void,
            count: usize,
            comparev: *const fi_ioc,
            compare_desc: *mut *mut ::core::ffi::c_void,
            compare_count: usize,
            resultv: *mut fi_ioc,
            result_desc: *mut *mut ::core::ffi::c_void,
            result_count: usize,
            dest_addr: fi_addr_t,
            addr: u64,
            key: u64,
            datatype: fi_datatype,
            op: fi_op,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub compwritemsg: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            msg: *const fi_msg_atomic,
            comparev: *const fi_ioc,
            compare_desc: *mut *mut ::core::ffi::c_void,
            compare_count: usize,
            resultv: *mut fi_ioc,
            result_desc: *mut *mut ::core::ffi::c_void,
            result_count: usize,
            flags: u64,
        ) -> isize,
    >,
    pub writevalid: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            datatype: fi_datatype,
            op: fi_op,
            count: *mut usize,
        ) -> ::core::ffi::c_int,
    >,
    pub readwritevalid: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            datatype: fi_datatype,
            op: fi_op,
            count: *mut usize,
        ) -> ::core::ffi::c_int,
    >,
    pub compwritevalid: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            datatype: fi_datatype,
            op: fi_op,
            count: *mut usize,
        ) -> ::core::ffi::c_int,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_atomic"][::core::mem::size_of::<fi_ops_atomic>() - 112usize];
    ["Alignment of fi_ops_atomic"][::core::mem::align_of::<fi_ops_atomic>() - 8usize];
    [
        "Offset of field: fi_ops_atomic::size",
    ][::core::mem::offset_of!(fi_ops_atomic, size) - 0usize];
    [
        "Offset of field: fi_ops_atomic::write",
    ][::core::mem::offset_of!(fi_ops_atomic, write) - 8usize];
    [
        "Offset of field: fi_ops_atomic::writev",
    ][::core::mem::offset_of!(fi_ops_atomic, writev) - 16usize];
    [
        "Offset of field: fi_ops_atomic::writemsg",
    ][::core::mem::offset_of!(fi_ops_atomic, writemsg) - 24usize];
    [
        "Offset of field: fi_ops_atomic::inject",
    ][::core::mem::offset_of!(fi_ops_atomic, inject) - 32usize];
    [
        "Offset of field: fi_ops_atomic::readwrite",
    ][::core::mem::offset_of!(fi_ops_atomic, readwrite) - 40usize];
    [
        "Offset of field: fi_ops_atomic::readwritev",
    ][::core::mem::offset_of!(fi_ops_atomic, readwritev) - 48usize];
    [
        "Offset of field: fi_ops_atomic::readwritemsg",
    ][::core::mem::offset_of!(fi_ops_atomic, readwritemsg) - 56usize];
    [
        "Offset of field: fi_ops_atomic::compwrite",
    ][::core::mem::offset_of!(fi_ops_atomic, compwrite) - 64usize];
    [
        "Offset of field: fi_ops_atomic::compwritev",
    ][::core::mem::offset_of!(fi_ops_atomic, compwritev) - 72usize];
    [
        "Offset of field: fi_ops_atomic::compwritemsg",
    ][::core::mem::offset_of!(fi_ops_atomic, compwritemsg) - 80usize];
    [
        "Offset of field: fi_ops_atomic::writevalid",
    ][::core::mem::offset_of!(fi_ops_atomic, writevalid) - 88usize];
    [
        "Offset of field: fi_ops_atomic::readwritevalid",
    ][::core::mem::offset_of!(fi_ops_atomic, readwritevalid) - 96usize];
    [
        "Offset of field: fi_ops_atomic::compwritevalid",
    ][::core::mem::offset_of!(fi_ops_atomic, compwritevalid) - 104usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_mc {
    pub fid: fid,
    pub fi_addr: fi_addr_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_mc"][::core::mem::size_of::<fid_mc>() - 32usize];
    ["Alignment of fid_mc"][::core::mem::align_of::<fid_mc>() - 8usize];
    ["Offset of field: fid_mc::fid"][::core::mem::offset_of!(fid_mc, fid) - 0usize];
    [
        "Offset of field: fid_mc::fi_addr",
    ][::core::mem::offset_of!(fid_mc, fi_addr) - 24usize];
};
impl Default for fid_mc {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_cm {
    pub size: usize,
    pub setname: ::core::option::Option<
        unsafe extern "C" fn(
            fid: fid_t,
            addr: *mut ::core::ffi::c_void,
            addrlen: usize,
        ) -> ::core::ffi::c_int,
    >,
    pub getname: ::core::option::Option<
        unsafe extern "C" fn(
            fid: fid_t,
            addr: *mut ::core::ffi::c_void,
            addrlen: *mut usize,
        ) -> ::core::ffi::c_int,
    >,
    pub getpeer: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            addr: *mut ::core::ffi::c_void,
            addrlen: *mut usize,
        ) -> ::core::ffi::c_int,
    >,
    pub connect: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            addr: *const ::core::ffi::c_void,
            param: *const ::core::ffi::c_void,
            paramlen: usize,
        ) -> ::core::ffi::c_int,
    >,
    pub listen: ::core::option::Option<
        unsafe extern "C" fn(pep: *mut fid_pep) -> ::core::ffi::c_int,
    >,
    pub accept: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            param: *const ::core::ffi::c_void,
            paramlen: usize,
        ) -> ::core::ffi::c_int,
    >,
    pub reject: ::core::option::Option<
        unsafe extern "C" fn(
            pep: *mut fid_pep,
            handle: fid_t,
            param: *const ::core::ffi::c_void,
            paramlen: usize,
        ) -> ::core::ffi::c_int,
    >,
    pub shutdown: ::core::option::Option<
        unsafe extern "C" fn(ep: *mut fid_ep, flags: u64) -> ::core::ffi::c_int,
    >,
    pub join: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            addr: *const ::core::ffi::c_void,
            flags: u64,
            mc: *mut *mut fid_mc,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_cm"][::core::mem::size_of::<fi_ops_cm>() - 80usize];
    ["Alignment of fi_ops_cm"][::core::mem::align_of::<fi_ops_cm>() - 8usize];
    [
        "Offset of field: fi_ops_cm::size",
    ][::core::mem::offset_of!(fi_ops_cm, size) - 0usize];
    [
        "Offset of field: fi_ops_cm::setname",
    ][::core::mem::offset_of!(fi_ops_cm, setname) - 8usize];
    [
        "Offset of field: fi_ops_cm::getname",
    ][::core::mem::offset_of!(fi_ops_cm, getname) - 16usize];
    [
        "Offset of field: fi_ops_cm::getpeer",
    ][::core::mem::offset_of!(fi_ops_cm, getpeer) - 24usize];
    [
        "Offset of field: fi_ops_cm::connect",
    ][::core::mem::offset_of!(fi_ops_cm, connect) - 32usize];
    [
        "Offset of field: fi_ops_cm::listen",
    ][::core::mem::offset_of!(fi_ops_cm, listen) - 40usize];
    [
        "Offset of field: fi_ops_cm::accept",
    ][::core::mem::offset_of!(fi_ops_cm, accept) - 48usize];
    [
        "Offset of field: fi_ops_cm::reject",
    ][::core::mem::offset_of!(fi_ops_cm, reject) - 56usize];
    [
        "Offset of field: fi_ops_cm::shutdown",
    ][::core::mem::offset_of!(fi_ops_cm, shutdown) - 64usize];
    [
        "Offset of field: fi_ops_cm::join",
    ][::core::mem::offset_of!(fi_ops_cm, join) - 72usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_av_set {
    pub size: usize,
    pub set_union: ::core::option::Option<
        unsafe extern "C" fn(
            dst: *mut fid_av_set,
            src: *const fid_av_set,
        ) -> ::core::ffi::c_int,
    >,
    pub intersect: ::core::option::Option<
        unsafe extern "C" fn(
            dst: *mut fid_av_set,
            src: *const fid_av_set,
        ) -> ::core::ffi::c_int,
    >,
    pub diff: ::core::option::Option<
        unsafe extern "C" fn(
            dst: *mut fid_av_set,
            src: *const fid_av_set,
        ) -> ::core::ffi::c_int,
    >,
    pub insert: ::core::option::Option<
        unsafe extern "C" fn(set: *mut fid_av_set, addr: fi_addr_t) -> ::core::ffi::c_int,
    >,
    pub remove: ::core::option::Option<
        unsafe extern "C" fn(set: *mut fid_av_set, addr: fi_addr_t) -> ::core::ffi::c_int,
    >,
    pub addr: ::core::option::Option<
        unsafe extern "C" fn(
            set: *mut fid_av_set,
            coll_addr: *mut fi_addr_t,
        ) -> ::core::ffi::c_int,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_av_set"][::core::mem::size_of::<fi_ops_av_set>() - 56usize];
    ["Alignment of fi_ops_av_set"][::core::mem::align_of::<fi_ops_av_set>() - 8usize];
    [
        "Offset of field: fi_ops_av_set::size",
    ][::core::mem::offset_of!(fi_ops_av_set, size) - 0usize];
    [
        "Offset of field: fi_ops_av_set::set_union",
    ][::core::mem::offset_of!(fi_ops_av_set, set_union) - 8usize];
    [
        "Offset of field: fi_ops_av_set::intersect",
    ][::core::mem::offset_of!(fi_ops_av_set, intersect) - 16usize];
    [
        "Offset of field: fi_ops_av_set::diff",
    ][::core::mem::offset_of!(fi_ops_av_set, diff) - 24usize];
    [
        "Offset of field: fi_ops_av_set::insert",
    ][::core::mem::offset_of!(fi_ops_av_set, insert) - 32usize];
    [
        "Offset of field: fi_ops_av_set::remove",
    ][::core::mem::offset_of!(fi_ops_av_set, remove) - 40usize];
    [
        "Offset of field: fi_ops_av_set::addr",
    ][::core::mem::offset_of!(fi_ops_av_set, addr) - 48usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_av_set {
    pub fid: fid,
    pub ops: *mut fi_ops_av_set,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_av_set"][::core::mem::size_of::<fid_av_set>() - 32usize];
    ["Alignment of fid_av_set"][::core::mem::align_of::<fid_av_set>() - 8usize];
    [
        "Offset of field: fid_av_set::fid",
    ][::core::mem::offset_of!(fid_av_set, fid) - 0usize];
    [
        "Offset of field: fid_av_set::ops",
    ][::core::mem::offset_of!(fid_av_set, ops) - 24usize];
};
impl Default for fid_av_set {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_collective_attr {
    pub op: fi_op,
    pub datatype: fi_datatype,
    pub datatype_attr: fi_atomic_attr,
    pub max_members: usize,
    pub mode: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_collective_attr",
    ][::core::mem::size_of::<fi_collective_attr>() - 40usize];
    [
        "Alignment of fi_collective_attr",
    ][::core::mem::align_of::<fi_collective_attr>() - 8usize];
    [
        "Offset of field: fi_collective_attr::op",
    ][::core::mem::offset_of!(fi_collective_attr, op) - 0usize];
    [
        "Offset of field: fi_collective_attr::datatype",
    ][::core::mem::offset_of!(fi_collective_attr, datatype) - 4usize];
    [
        "Offset of field: fi_collective_attr::datatype_attr",
    ][::core::mem::offset_of!(fi_collective_attr, datatype_attr) - 8usize];
    [
        "Offset of field: fi_collective_attr::max_members",
    ][::core::mem::offset_of!(fi_collective_attr, max_members) - 24usize];
    [
        "Offset of field: fi_collective_attr::mode",
    ][::core::mem::offset_of!(fi_collective_attr, mode) - 32usize];
};
impl Default for fi_collective_attr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_collective_addr {
    pub set: *const fid_av_set,
    pub coll_addr: fi_addr_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_collective_addr",
    ][::core::mem::size_of::<fi_collective_addr>() - 16usize];
    [
        "Alignment of fi_collective_addr",
    ][::core::mem::align_of::<fi_collective_addr>() - 8usize];
    [
        "Offset of field: fi_collective_addr::set",
    ][::core::mem::offset_of!(fi_collective_addr, set) - 0usize];
    [
        "Offset of field: fi_collective_addr::coll_addr",
    ][::core::mem::offset_of!(fi_collective_addr, coll_addr) - 8usize];
};
impl Default for fi_collective_addr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_msg_collective {
    pub msg_iov: *const fi_ioc,
    pub desc: *mut *mut ::core::ffi::c_void,
    pub iov_count: usize,
    pub coll_addr: fi_addr_t,
    pub root_addr: fi_addr_t,
    pub coll: fi_collective_op,
    pub datatype: fi_datatype,
    pub op: fi_op,
    pub context: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_msg_collective"][::core::mem::size_of::<fi_msg_collective>() - 64usize];
    [
        "Alignment of fi_msg_collective",
    ][::core::mem::align_of::<fi_msg_collective>() - 8usize];
    [
        "Offset of field: fi_msg_collective::msg_iov",
    ][::core::mem::offset_of!(fi_msg_collective, msg_iov) - 0usize];
    [
        "Offset of field: fi_msg_collective::desc",
    ][::core::mem::offset_of!(fi_msg_collective, desc) - 8usize];
    [
        "Offset of field: fi_msg_collective::iov_count",
    ][::core::mem::offset_of!(fi_msg_collective, iov_count) - 16usize];
    [
        "Offset of field: fi_msg_collective::coll_addr",
    ][::core::mem::offset_of!(fi_msg_collective, coll_addr) - 24usize];
    [
        "Offset of field: fi_msg_collective::root_addr",
    ][::core::mem::offset_of!(fi_msg_collective, root_addr) - 32usize];
    [
        "Offset of field: fi_msg_collective::coll",
    ][::core::mem::offset_of!(fi_msg_collective, coll) - 40usize];
    [
        "Offset of field: fi_msg_collective::datatype",
    ][::core::mem::offset_of!(fi_msg_collective, datatype) - 44usize];
    [
        "Offset of field: fi_msg_collective::op",
    ][::core::mem::offset_of!(fi_msg_collective, op) - 48usize];
    [
        "Offset of field: fi_msg_collective::context",
    ][::core::mem::offset_of!(fi_msg_collective, context) - 56usize];
};
impl Default for fi_msg_collective {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_collective {
    pub size: usize,
    pub barrier: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            coll_addr: fi_addr_t,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub broadcast: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *mut ::core::ffi::c_void,
            count: usize,
            desc: *mut ::core::ffi::c_void,
            coll_addr: fi_addr_t,
            root_addr: fi_addr_t,
            datatype: fi_datatype,
            flags: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub alltoall: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            count: usize,
            desc: *mut ::core::ffi::c_void,
            result: *mut ::core::ffi::c_void,
            result_desc: *mut ::core::ffi::c_void,
            coll_addr: fi_addr_t,
            datatype: fi_datatype,
            flags: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub allreduce: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            count: usize,
            desc: *mut ::core::ffi::c_void,
            result: *mut ::core::ffi::c_void,
            result_desc: *mut ::core::ffi::c_void,
            coll_addr: fi_addr_t,
            datatype: fi_datatype,
            op: fi_op,
            flags: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub allgather: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            count: usize,
            desc: *mut ::core::ffi::c_void,
            result: *mut ::core::ffi::c_void,
            result_desc: *mut ::core::ffi::c_void,
            coll_addr: fi_addr_t,
            datatype: fi_datatype,
            flags: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub reduce_scatter: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            count: usize,
            desc: *mut ::core::ffi::c_void,
            result: *mut ::core::ffi::c_void,
            result_desc: *mut ::core::ffi::c_void,
            coll_addr: fi_addr_t,
            datatype: fi_datatype,
            op: fi_op,
            flags: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub reduce: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            count: usize,
            desc: *mut ::core::ffi::c_void,
            result: *mut ::core::ffi::c_void,
            result_desc: *mut ::core::ffi::c_void,
            coll_addr: fi_addr_t,
            root_addr: fi_addr_t,
            datatype: fi_datatype,
            op: fi_op,
            flags: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub scatter: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            count: usize,
            desc: *mut ::core::ffi::c_void,
            result: *mut ::core::ffi::c_void,
            result_desc: *mut ::core::ffi::c_void,
            coll_addr: fi_addr_t,
            root_addr: fi_addr_t,
            datatype: fi_datatype,
            flags: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub gather: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            count: usize,
            desc: *mut ::core::ffi::c_void,
            result: *mut ::core::ffi::c_void,
            result_desc: *mut ::core::ffi::c_void,
            coll_addr: fi_addr_t,
            root_addr: fi_addr_t,
            datatype: fi_datatype,
            flags: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub msg: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            msg: *const fi_msg_collective,
            resultv: *mut fi_ioc,
            result_desc: *mut *mut ::core::ffi::c_void,
            result_count: usize,
            flags: u64,
        ) -> isize,
    >,
    pub barrier2: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            coll_addr: fi_addr_t,
            flags: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_collective"][::core::mem::size_of::<fi_ops_collective>() - 96usize];
    [
        "Alignment of fi_ops_collective",
    ][::core::mem::align_of::<fi_ops_collective>() - 8usize];
    [
        "Offset of field: fi_ops_collective::size",
    ][::core::mem::offset_of!(fi_ops_collective, size) - 0usize];
    [
        "Offset of field: fi_ops_collective::barrier",
    ][::core::mem::offset_of!(fi_ops_collective, barrier) - 8usize];
    [
        "Offset of field: fi_ops_collective::broadcast",
    ][::core::mem::offset_of!(fi_ops_collective, broadcast) - 16usize];
    [
        "Offset of field: fi_ops_collective::alltoall",
    ][::core::mem::offset_of!(fi_ops_collective, alltoall) - 24usize];
    [
        "Offset of field: fi_ops_collective::allreduce",
    ][::core::mem::offset_of!(fi_ops_collective, allreduce) - 32usize];
    [
        "Offset of field: fi_ops_collective::allgather",
    ][::core::mem::offset_of!(fi_ops_collective, allgather) - 40usize];
    [
        "Offset of field: fi_ops_collective::reduce_scatter",
    ][::core::mem::offset_of!(fi_ops_collective, reduce_scatter) - 48usize];
    [
        "Offset of field: fi_ops_collective::reduce",
    ][::core::mem::offset_of!(fi_ops_collective, reduce) - 56usize];
    [
        "Offset of field: fi_ops_collective::scatter",
    ][::core::mem::offset_of!(fi_ops_collective, scatter) - 64usize];
    [
        "Offset of field: fi_ops_collective::gather",
    ][::core::mem::offset_of!(fi_ops_collective, gather) - 72usize];
    [
        "Offset of field: fi_ops_collective::msg",
    ][::core::mem::offset_of!(fi_ops_collective, msg) - 80usize];
    [
        "Offset of field: fi_ops_collective::barrier2",
    ][::core::mem::offset_of!(fi_ops_collective, barrier2) - 88usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_provider {
    pub version: u32,
    pub fi_version: u32,
    pub context: fi_context,
    pub name: *const ::core::ffi::c_char,
    pub getinfo: ::core::option::Option<
        unsafe extern "C" fn(
            version: u32,
            node: *const ::core::ffi::c_char,
            service: *const ::core::ffi::c_char,
            flags: u64,
            hints: *const fi_info,
            info: *mut *mut fi_info,
        ) -> ::core::ffi::c_int,
    >,
    pub fabric: ::core::option::Option<
        unsafe extern "C" fn(
            attr: *mut fi_fabric_attr,
            fabric: *mut *mut fid_fabric,
            context: *mut ::core::ffi::c_void,
        ) -> ::core::ffi::c_int,
    >,
    pub cleanup: ::core::option::Option<unsafe extern "C" fn()>,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_provider"][::core::mem::size_of::<fi_provider>() - 72usize];
    ["Alignment of fi_provider"][::core::mem::align_of::<fi_provider>() - 8usize];
    [
        "Offset of field: fi_provider::version",
    ][::core::mem::offset_of!(fi_provider, version) - 0usize];
    [
        "Offset of field: fi_provider::fi_version",
    ][::core::mem::offset_of!(fi_provider, fi_version) - 4usize];
    [
        "Offset of field: fi_provider::context",
    ][::core::mem::offset_of!(fi_provider, context) - 8usize];
    [
        "Offset of field: fi_provider::name",
    ][::core::mem::offset_of!(fi_provider, name) - 40usize];
    [
        "Offset of field: fi_provider::getinfo",
    ][::core::mem::offset_of!(fi_provider, getinfo) - 48usize];
    [
        "Offset of field: fi_provider::fabric",
    ][::core::mem::offset_of!(fi_provider, fabric) - 56usize];
    [
        "Offset of field: fi_provider::cleanup",
    ][::core::mem::offset_of!(fi_provider, cleanup) - 64usize];
};
impl Default for fi_provider {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl fi_log_subsys {
    pub const FI_LOG_CORE: fi_log_subsys = fi_log_subsys(0);
    pub const FI_LOG_FABRIC: fi_log_subsys = fi_log_subsys(1);
    pub const FI_LOG_DOMAIN: fi_log_subsys = fi_log_subsys(2);
    pub const FI_LOG_EP_CTRL: fi_log_subsys = fi_log_subsys(3);
    pub const FI_LOG_EP_DATA: fi_log_subsys = fi_log_subsys(4);
    pub const FI_LOG_AV: fi_log_subsys = fi_log_subsys(5);
    pub const FI_LOG_CQ: fi_log_subsys = fi_log_subsys(6);
    pub const FI_LOG_EQ: fi_log_subsys = fi_log_subsys(7);
    pub const FI_LOG_MR: fi_log_subsys = fi_log_subsys(8);
    pub const FI_LOG_CNTR: fi_log_subsys = fi_log_subsys(9);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_log_subsys(pub ::core::ffi::c_uint);
impl fi_log_level {
    pub const FI_LOG_WARN: fi_log_level = fi_log_level(0);
    pub const FI_LOG_TRACE: fi_log_level = fi_log_level(1);
    pub const FI_LOG_INFO: fi_log_level = fi_log_level(2);
    pub const FI_LOG_DEBUG: fi_log_level = fi_log_level(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_log_level(pub ::core::ffi::c_uint);
pub const FI_OPT_EFA_RNR_RETRY: ::core::ffi::c_int = -251265024;
pub const FI_OPT_EFA_EMULATED_READ: ::core::ffi::c_int = -251265023;
pub const FI_OPT_EFA_EMULATED_WRITE: ::core::ffi::c_int = -251265022;
pub const FI_OPT_EFA_EMULATED_ATOMICS: ::core::ffi::c_int = -251265021;
pub const FI_OPT_EFA_USE_DEVICE_RDMA: ::core::ffi::c_int = -251265020;
pub const FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES: ::core::ffi::c_int = -251265019;
pub const FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES: ::core::ffi::c_int = -251265018;
pub const FI_OPT_EFA_HOMOGENEOUS_PEERS: ::core::ffi::c_int = -251265017;
pub const FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV: ::core::ffi::c_int = -251265016;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_fid_export {
    pub fid: *mut *mut fid,
    pub flags: u64,
    pub context: *mut ::core::ffi::c_void,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_fid_export"][::core::mem::size_of::<fi_fid_export>() - 24usize];
    ["Alignment of fi_fid_export"][::core::mem::align_of::<fi_fid_export>() - 8usize];
    [
        "Offset of field: fi_fid_export::fid",
    ][::core::mem::offset_of!(fi_fid_export, fid) - 0usize];
    [
        "Offset of field: fi_fid_export::flags",
    ][::core::mem::offset_of!(fi_fid_export, flags) - 8usize];
    [
        "Offset of field: fi_fid_export::context",
    ][::core::mem::offset_of!(fi_fid_export, context) - 16usize];
};
impl Default for fi_fid_export {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_mem_monitor {
    pub size: usize,
    pub start: ::core::option::Option<
        unsafe extern "C" fn(monitor: *mut fid_mem_monitor) -> ::core::ffi::c_int,
    >,
    pub stop: ::core::option::Option<
        unsafe extern "C" fn(monitor: *mut fid_mem_monitor),
    >,
    pub subscribe: ::core::option::Option<
        unsafe extern "C" fn(
            monitor: *mut fid_mem_monitor,
            addr: *const ::core::ffi::c_void,
            len: usize,
        ) -> ::core::ffi::c_int,
    >,
    pub unsubscribe: ::core::option::Option<
        unsafe extern "C" fn(
            monitor: *mut fid_mem_monitor,
            addr: *const ::core::ffi::c_void,
            len: usize,
        ),
    >,
    pub valid: ::core::option::Option<
        unsafe extern "C" fn(
            monitor: *mut fid_mem_monitor,
            addr: *const ::core::ffi::c_void,
            len: usize,
        ) -> bool,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_ops_mem_monitor",
    ][::core::mem::size_of::<fi_ops_mem_monitor>() - 48usize];
    [
        "Alignment of fi_ops_mem_monitor",
    ][::core::mem::align_of::<fi_ops_mem_monitor>() - 8usize];
    [
        "Offset of field: fi_ops_mem_monitor::size",
    ][::core::mem::offset_of!(fi_ops_mem_monitor, size) - 0usize];
    [
        "Offset of field: fi_ops_mem_monitor::start",
    ][::core::mem::offset_of!(fi_ops_mem_monitor, start) - 8usize];
    [
        "Offset of field: fi_ops_mem_monitor::stop",
    ][::core::mem::offset_of!(fi_ops_mem_monitor, stop) - 16usize];
    [
        "Offset of field: fi_ops_mem_monitor::subscribe",
    ][::core::mem::offset_of!(fi_ops_mem_monitor, subscribe) - 24usize];
    [
        "Offset of field: fi_ops_mem_monitor::unsubscribe",
    ][::core::mem::offset_of!(fi_ops_mem_monitor, unsubscribe) - 32usize];
    [
        "Offset of field: fi_ops_mem_monitor::valid",
    ][::core::mem::offset_of!(fi_ops_mem_monitor, valid) - 40usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_mem_notify {
    pub size: usize,
    pub notify: ::core::option::Option<
        unsafe extern "C" fn(
            monitor: *mut fid_mem_monitor,
            addr: *const ::core::ffi::c_void,
            len: usize,
        ),
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_mem_notify"][::core::mem::size_of::<fi_ops_mem_notify>() - 16usize];
    [
        "Alignment of fi_ops_mem_notify",
    ][::core::mem::align_of::<fi_ops_mem_notify>() - 8usize];
    [
        "Offset of field: fi_ops_mem_notify::size",
    ][::core::mem::offset_of!(fi_ops_mem_notify, size) - 0usize];
    [
        "Offset of field: fi_ops_mem_notify::notify",
    ][::core::mem::offset_of!(fi_ops_mem_notify, notify) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_mem_monitor {
    pub fid: fid,
    pub export_ops: *mut fi_ops_mem_monitor,
    pub import_ops: *mut fi_ops_mem_notify,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_mem_monitor"][::core::mem::size_of::<fid_mem_monitor>() - 40usize];
    [
        "Alignment of fid_mem_monitor",
    ][::core::mem::align_of::<fid_mem_monitor>() - 8usize];
    [
        "Offset of field: fid_mem_monitor::fid",
    ][::core::mem::offset_of!(fid_mem_monitor, fid) - 0usize];
    [
        "Offset of field: fid_mem_monitor::export_ops",
    ][::core::mem::offset_of!(fid_mem_monitor, export_ops) - 24usize];
    [
        "Offset of field: fid_mem_monitor::import_ops",
    ][::core::mem::offset_of!(fid_mem_monitor, import_ops) - 32usize];
};
impl Default for fid_mem_monitor {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_log {
    pub size: usize,
    pub enabled: ::core::option::Option<
        unsafe extern "C" fn(
            prov: *const fi_provider,
            level: fi_log_level,
            subsys: fi_log_subsys,
            flags: u64,
        ) -> ::core::ffi::c_int,
    >,
    pub ready: ::core::option::Option<
        unsafe extern "C" fn(
            prov: *const fi_provider,
            level: fi_log_level,
            subsys: fi_log_subsys,
            flags: u64,
            showtime: *mut u64,
        ) -> ::core::ffi::c_int,
    >,
    pub log: ::core::option::Option<
        unsafe extern "C" fn(
            prov: *const fi_provider,
            level: fi_log_level,
            subsys: fi_log_subsys,
            func: *const ::core::ffi::c_char,
            line: ::core::ffi::c_int,
            msg: *const ::core::ffi::c_char,
        ),
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_log"][::core::mem::size_of::<fi_ops_log>() - 32usize];
    ["Alignment of fi_ops_log"][::core::mem::align_of::<fi_ops_log>() - 8usize];
    [
        "Offset of field: fi_ops_log::size",
    ][::core::mem::offset_of!(fi_ops_log, size) - 0usize];
    [
        "Offset of field: fi_ops_log::enabled",
    ][::core::mem::offset_of!(fi_ops_log, enabled) - 8usize];
    [
        "Offset of field: fi_ops_log::ready",
    ][::core::mem::offset_of!(fi_ops_log, ready) - 16usize];
    [
        "Offset of field: fi_ops_log::log",
    ][::core::mem::offset_of!(fi_ops_log, log) - 24usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_logging {
    pub fid: fid,
    pub ops: *mut fi_ops_log,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_logging"][::core::mem::size_of::<fid_logging>() - 32usize];
    ["Alignment of fid_logging"][::core::mem::align_of::<fid_logging>() - 8usize];
    [
        "Offset of field: fid_logging::fid",
    ][::core::mem::offset_of!(fid_logging, fid) - 0usize];
    [
        "Offset of field: fid_logging::ops",
    ][::core::mem::offset_of!(fid_logging, ops) - 24usize];
};
impl Default for fid_logging {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_msg_tagged {
    pub msg_iov: *const iovec,
    pub desc: *mut *mut ::core::ffi::c_void,
    pub iov_count: usize,
    pub addr: fi_addr_t,
    pub tag: u64,
    pub ignore: u64,
    pub context: *mut ::core::ffi::c_void,
    pub data: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_msg_tagged"][::core::mem::size_of::<fi_msg_tagged>() - 64usize];
    ["Alignment of fi_msg_tagged"][::core::mem::align_of::<fi_msg_tagged>() - 8usize];
    [
        "Offset of field: fi_msg_tagged::msg_iov",
    ][::core::mem::offset_of!(fi_msg_tagged, msg_iov) - 0usize];
    [
        "Offset of field: fi_msg_tagged::desc",
    ][::core::mem::offset_of!(fi_msg_tagged, desc) - 8usize];
    [
        "Offset of field: fi_msg_tagged::iov_count",
    ][::core::mem::offset_of!(fi_msg_tagged, iov_count) - 16usize];
    [
        "Offset of field: fi_msg_tagged::addr",
    ][::core::mem::offset_of!(fi_msg_tagged, addr) - 24usize];
    [
        "Offset of field: fi_msg_tagged::tag",
    ][::core::mem::offset_of!(fi_msg_tagged, tag) - 32usize];
    [
        "Offset of field: fi_msg_tagged::ignore",
    ][::core::mem::offset_of!(fi_msg_tagged, ignore) - 40usize];
    [
        "Offset of field: fi_msg_tagged::context",
    ][::core::mem::offset_of!(fi_msg_tagged, context) - 48usize];
    [
        "Offset of field: fi_msg_tagged::data",
    ][::core::mem::offset_of!(fi_msg_tagged, data) - 56usize];
};
impl Default for fi_msg_tagged {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_tagged {
    pub size: usize,
    pub recv: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *mut ::core::ffi::c_void,
            len: usize,
            desc: *mut ::core::ffi::c_void,
            src_addr: fi_addr_t,
            tag: u64,
            ignore: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub recvv: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            iov: *const iovec,
            desc: *mut *mut ::core::ffi::c_void,
            count: usize,
            src_addr: fi_addr_t,
            tag: u64,
            ignore: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub recvmsg: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            msg: *const fi_msg_tagged,
            flags: u64,
        ) -> isize,
    >,
    pub send: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            len: usize,
            desc: *mut ::core::ffi::c_void,
            dest_addr: fi_addr_t,
            tag: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub sendv: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            iov: *const iovec,
            desc: *mut *mut ::core::ffi::c_void,
            count: usize,
            dest_addr: fi_addr_t,
            tag: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub sendmsg: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            msg: *const fi_msg_tagged,
            flags: u64,
        ) -> isize,
    >,
    pub inject: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            len: usize,
            dest_addr: fi_addr_t,
            tag: u64,
        ) -> isize,
    >,
    pub senddata: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            len: usize,
            desc: *mut ::core::ffi::c_void,
            data: u64,
            dest_addr: fi_addr_t,
            tag: u64,
            context: *mut ::core::ffi::c_void,
        ) -> isize,
    >,
    pub injectdata: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *const ::core::ffi::c_void,
            len: usize,
            data: u64,
            dest_addr: fi_addr_t,
            tag: u64,
        ) -> isize,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_tagged"][::core::mem::size_of::<fi_ops_tagged>() - 80usize];
    ["Alignment of fi_ops_tagged"][::core::mem::align_of::<fi_ops_tagged>() - 8usize];
    [
        "Offset of field: fi_ops_tagged::size",
    ][::core::mem::offset_of!(fi_ops_tagged, size) - 0usize];
    [
        "Offset of field: fi_ops_tagged::recv",
    ][::core::mem::offset_of!(fi_ops_tagged, recv) - 8usize];
    [
        "Offset of field: fi_ops_tagged::recvv",
    ][::core::mem::offset_of!(fi_ops_tagged, recvv) - 16usize];
    [
        "Offset of field: fi_ops_tagged::recvmsg",
    ][::core::mem::offset_of!(fi_ops_tagged, recvmsg) - 24usize];
    [
        "Offset of field: fi_ops_tagged::send",
    ][::core::mem::offset_of!(fi_ops_tagged, send) - 32usize];
    [
        "Offset of field: fi_ops_tagged::sendv",
    ][::core::mem::offset_of!(fi_ops_tagged, sendv) - 40usize];
    [
        "Offset of field: fi_ops_tagged::sendmsg",
    ][::core::mem::offset_of!(fi_ops_tagged, sendmsg) - 48usize];
    [
        "Offset of field: fi_ops_tagged::inject",
    ][::core::mem::offset_of!(fi_ops_tagged, inject) - 56usize];
    [
        "Offset of field: fi_ops_tagged::senddata",
    ][::core::mem::offset_of!(fi_ops_tagged, senddata) - 64usize];
    [
        "Offset of field: fi_ops_tagged::injectdata",
    ][::core::mem::offset_of!(fi_ops_tagged, injectdata) - 72usize];
};
impl fi_trigger_event {
    pub const FI_TRIGGER_THRESHOLD: fi_trigger_event = fi_trigger_event(0);
    pub const FI_TRIGGER_XPU: fi_trigger_event = fi_trigger_event(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_trigger_event(pub ::core::ffi::c_uint);
impl fi_op_type {
    pub const FI_OP_RECV: fi_op_type = fi_op_type(0);
    pub const FI_OP_SEND: fi_op_type = fi_op_type(1);
    pub const FI_OP_TRECV: fi_op_type = fi_op_type(2);
    pub const FI_OP_TSEND: fi_op_type = fi_op_type(3);
    pub const FI_OP_READ: fi_op_type = fi_op_type(4);
    pub const FI_OP_WRITE: fi_op_type = fi_op_type(5);
    pub const FI_OP_ATOMIC: fi_op_type = fi_op_type(6);
    pub const FI_OP_FETCH_ATOMIC: fi_op_type = fi_op_type(7);
    pub const FI_OP_COMPARE_ATOMIC: fi_op_type = fi_op_type(8);
    pub const FI_OP_CNTR_SET: fi_op_type = fi_op_type(9);
    pub const FI_OP_CNTR_ADD: fi_op_type = fi_op_type(10);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct fi_op_type(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_trigger_threshold {
    pub cntr: *mut fid_cntr,
    pub threshold: usize,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_trigger_threshold",
    ][::core::mem::size_of::<fi_trigger_threshold>() - 16usize];
    [
        "Alignment of fi_trigger_threshold",
    ][::core::mem::align_of::<fi_trigger_threshold>() - 8usize];
    [
        "Offset of field: fi_trigger_threshold::cntr",
    ][::core::mem::offset_of!(fi_trigger_threshold, cntr) - 0usize];
    [
        "Offset of field: fi_trigger_threshold::threshold",
    ][::core::mem::offset_of!(fi_trigger_threshold, threshold) - 8usize];
};
impl Default for fi_trigger_threshold {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct fi_trigger_var {
    pub datatype: fi_datatype,
    pub count: ::core::ffi::c_int,
    pub addr: *mut ::core::ffi::c_void,
    pub value: fi_trigger_var__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union fi_trigger_var__bindgen_ty_1 {
    pub val8: u8,
    pub val16: u16,
    pub val32: u32,
    pub val64: u64,
    pub data: *mut u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_trigger_var__bindgen_ty_1",
    ][::core::mem::size_of::<fi_trigger_var__bindgen_ty_1>() - 8usize];
    [
        "Alignment of fi_trigger_var__bindgen_ty_1",
    ][::core::mem::align_of::<fi_trigger_var__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: fi_trigger_var__bindgen_ty_1::val8",
    ][::core::mem::offset_of!(fi_trigger_var__bindgen_ty_1, val8) - 0usize];
    [
        "Offset of field: fi_trigger_var__bindgen_ty_1::val16",
    ][::core::mem::offset_of!(fi_trigger_var__bindgen_ty_1, val16) - 0usize];
    [
        "Offset of field: fi_trigger_var__bindgen_ty_1::val32",
    ][::core::mem::offset_of!(fi_trigger_var__bindgen_ty_1, val32) - 0usize];
    [
        "Offset of field: fi_trigger_var__bindgen_ty_1::val64",
    ][::core::mem::offset_of!(fi_trigger_var__bindgen_ty_1, val64) - 0usize];
    [
        "Offset of field: fi_trigger_var__bindgen_ty_1::data",
    ][::core::mem::offset_of!(fi_trigger_var__bindgen_ty_1, data) - 0usize];
};
impl Default for fi_trigger_var__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_trigger_var"][::core::mem::size_of::<fi_trigger_var>() - 24usize];
    ["Alignment of fi_trigger_var"][::core::mem::align_of::<fi_trigger_var>() - 8usize];
    [
        "Offset of field: fi_trigger_var::datatype",
    ][::core::mem::offset_of!(fi_trigger_var, datatype) - 0usize];
    [
        "Offset of field: fi_trigger_var::count",
    ][::core::mem::offset_of!(fi_trigger_var, count) - 4usize];
    [
        "Offset of field: fi_trigger_var::addr",
    ][::core::mem::offset_of!(fi_trigger_var, addr) - 8usize];
    [
        "Offset of field: fi_trigger_var::value",
    ][::core::mem::offset_of!(fi_trigger_var, value) - 16usize];
};
impl Default for fi_trigger_var {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct fi_trigger_xpu {
    pub count: ::core::ffi::c_int,
    pub iface: fi_hmem_iface,
    pub device: fi_trigger_xpu__bindgen_ty_1,
    pub var: *mut fi_trigger_var,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union fi_trigger_xpu__bindgen_ty_1 {
    pub reserved: u64,
    pub cuda: ::core::ffi::c_int,
    pub ze: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_trigger_xpu__bindgen_ty_1",
    ][::core::mem::size_of::<fi_trigger_xpu__bindgen_ty_1>() - 8usize];
    [
        "Alignment of fi_trigger_xpu__bindgen_ty_1",
    ][::core::mem::align_of::<fi_trigger_xpu__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: fi_trigger_xpu__bindgen_ty_1::reserved",
    ][::core::mem::offset_of!(fi_trigger_xpu__bindgen_ty_1, reserved) - 0usize];
    [
        "Offset of field: fi_trigger_xpu__bindgen_ty_1::cuda",
    ][::core::mem::offset_of!(fi_trigger_xpu__bindgen_ty_1, cuda) - 0usize];
    [
        "Offset of field: fi_trigger_xpu__bindgen_ty_1::ze",
    ][::core::mem::offset_of!(fi_trigger_xpu__bindgen_ty_1, ze) - 0usize];
};
impl Default for fi_trigger_xpu__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_trigger_xpu"][::core::mem::size_of::<fi_trigger_xpu>() - 24usize];
    ["Alignment of fi_trigger_xpu"][::core::mem::align_of::<fi_trigger_xpu>() - 8usize];
    [
        "Offset of field: fi_trigger_xpu::count",
    ][::core::mem::offset_of!(fi_trigger_xpu, count) - 0usize];
    [
        "Offset of field: fi_trigger_xpu::iface",
    ][::core::mem::offset_of!(fi_trigger_xpu, iface) - 4usize];
    [
        "Offset of field: fi_trigger_xpu::device",
    ][::core::mem::offset_of!(fi_trigger_xpu, device) - 8usize];
    [
        "Offset of field: fi_trigger_xpu::var",
    ][::core::mem::offset_of!(fi_trigger_xpu, var) - 16usize];
};
impl Default for fi_trigger_xpu {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_op_msg {
    pub ep: *mut fid_ep,
    pub msg: fi_msg,
    pub flags: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_op_msg"][::core::mem::size_of::<fi_op_msg>() - 64usize];
    ["Alignment of fi_op_msg"][::core::mem::align_of::<fi_op_msg>() - 8usize];
    ["Offset of field: fi_op_msg::ep"][::core::mem::offset_of!(fi_op_msg, ep) - 0usize];
    [
        "Offset of field: fi_op_msg::msg",
    ][::core::mem::offset_of!(fi_op_msg, msg) - 8usize];
    [
        "Offset of field: fi_op_msg::flags",
    ][::core::mem::offset_of!(fi_op_msg, flags) - 56usize];
};
impl Default for fi_op_msg {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_op_tagged {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_tagged,
    pub flags: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_op_tagged"][::core::mem::size_of::<fi_op_tagged>() - 80usize];
    ["Alignment of fi_op_tagged"][::core::mem::align_of::<fi_op_tagged>() - 8usize];
    [
        "Offset of field: fi_op_tagged::ep",
    ][::core::mem::offset_of!(fi_op_tagged, ep) - 0usize];
    [
        "Offset of field: fi_op_tagged::msg",
    ][::core::mem::offset_of!(fi_op_tagged, msg) - 8usize];
    [
        "Offset of field: fi_op_tagged::flags",
    ][::core::mem::offset_of!(fi_op_tagged, flags) - 72usize];
};
impl Default for fi_op_tagged {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_op_rma {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_rma,
    pub flags: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_op_rma"][::core::mem::size_of::<fi_op_rma>() - 80usize];
    ["Alignment of fi_op_rma"][::core::mem::align_of::<fi_op_rma>() - 8usize];
    ["Offset of field: fi_op_rma::ep"][::core::mem::offset_of!(fi_op_rma, ep) - 0usize];
    [
        "Offset of field: fi_op_rma::msg",
    ][::core::mem::offset_of!(fi_op_rma, msg) - 8usize];
    [
        "Offset of field: fi_op_rma::flags",
    ][::core::mem::offset_of!(fi_op_rma, flags) - 72usize];
};
impl Default for fi_op_rma {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_op_atomic {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_atomic,
    pub flags: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_op_atomic"][::core::mem::size_of::<fi_op_atomic>() - 88usize];
    ["Alignment of fi_op_atomic"][::core::mem::align_of::<fi_op_atomic>() - 8usize];
    [
        "Offset of field: fi_op_atomic::ep",
    ][::core::mem::offset_of!(fi_op_atomic, ep) - 0usize];
    [
        "Offset of field: fi_op_atomic::msg",
    ][::core::mem::offset_of!(fi_op_atomic, msg) - 8usize];
    [
        "Offset of field: fi_op_atomic::flags",
    ][::core::mem::offset_of!(fi_op_atomic, flags) - 80usize];
};
impl Default for fi_op_atomic {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_op_fetch_atomic {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_atomic,
    pub fetch: fi_msg_fetch,
    pub flags: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_op_fetch_atomic",
    ][::core::mem::size_of::<fi_op_fetch_atomic>() - 112usize];
    [
        "Alignment of fi_op_fetch_atomic",
    ][::core::mem::align_of::<fi_op_fetch_atomic>() - 8usize];
    [
        "Offset of field: fi_op_fetch_atomic::ep",
    ][::core::mem::offset_of!(fi_op_fetch_atomic, ep) - 0usize];
    [
        "Offset of field: fi_op_fetch_atomic::msg",
    ][::core::mem::offset_of!(fi_op_fetch_atomic, msg) - 8usize];
    [
        "Offset of field: fi_op_fetch_atomic::fetch",
    ][::core::mem::offset_of!(fi_op_fetch_atomic, fetch) - 80usize];
    [
        "Offset of field: fi_op_fetch_atomic::flags",
    ][::core::mem::offset_of!(fi_op_fetch_atomic, flags) - 104usize];
};
impl Default for fi_op_fetch_atomic {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_op_compare_atomic {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_atomic,
    pub fetch: fi_msg_fetch,
    pub compare: fi_msg_compare,
    pub flags: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_op_compare_atomic",
    ][::core::mem::size_of::<fi_op_compare_atomic>() - 136usize];
    [
        "Alignment of fi_op_compare_atomic",
    ][::core::mem::align_of::<fi_op_compare_atomic>() - 8usize];
    [
        "Offset of field: fi_op_compare_atomic::ep",
    ][::core::mem::offset_of!(fi_op_compare_atomic, ep) - 0usize];
    [
        "Offset of field: fi_op_compare_atomic::msg",
    ][::core::mem::offset_of!(fi_op_compare_atomic, msg) - 8usize];
    [
        "Offset of field: fi_op_compare_atomic::fetch",
    ][::core::mem::offset_of!(fi_op_compare_atomic, fetch) - 80usize];
    [
        "Offset of field: fi_op_compare_atomic::compare",
    ][::core::mem::offset_of!(fi_op_compare_atomic, compare) - 104usize];
    [
        "Offset of field: fi_op_compare_atomic::flags",
    ][::core::mem::offset_of!(fi_op_compare_atomic, flags) - 128usize];
};
impl Default for fi_op_compare_atomic {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_op_cntr {
    pub cntr: *mut fid_cntr,
    pub value: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_op_cntr"][::core::mem::size_of::<fi_op_cntr>() - 16usize];
    ["Alignment of fi_op_cntr"][::core::mem::align_of::<fi_op_cntr>() - 8usize];
    [
        "Offset of field: fi_op_cntr::cntr",
    ][::core::mem::offset_of!(fi_op_cntr, cntr) - 0usize];
    [
        "Offset of field: fi_op_cntr::value",
    ][::core::mem::offset_of!(fi_op_cntr, value) - 8usize];
};
impl Default for fi_op_cntr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct fi_triggered_context {
    pub event_type: fi_trigger_event,
    pub trigger: fi_triggered_context__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union fi_triggered_context__bindgen_ty_1 {
    pub threshold: fi_trigger_threshold,
    pub xpu: fi_trigger_xpu,
    pub internal: [*mut ::core::ffi::c_void; 3usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_triggered_context__bindgen_ty_1",
    ][::core::mem::size_of::<fi_triggered_context__bindgen_ty_1>() - 24usize];
    [
        "Alignment of fi_triggered_context__bindgen_ty_1",
    ][::core::mem::align_of::<fi_triggered_context__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: fi_triggered_context__bindgen_ty_1::threshold",
    ][::core::mem::offset_of!(fi_triggered_context__bindgen_ty_1, threshold) - 0usize];
    [
        "Offset of field: fi_triggered_context__bindgen_ty_1::xpu",
    ][::core::mem::offset_of!(fi_triggered_context__bindgen_ty_1, xpu) - 0usize];
    [
        "Offset of field: fi_triggered_context__bindgen_ty_1::internal",
    ][::core::mem::offset_of!(fi_triggered_context__bindgen_ty_1, internal) - 0usize];
};
impl Default for fi_triggered_context__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_triggered_context",
    ][::core::mem::size_of::<fi_triggered_context>() - 32usize];
    [
        "Alignment of fi_triggered_context",
    ][::core::mem::align_of::<fi_triggered_context>() - 8usize];
    [
        "Offset of field: fi_triggered_context::event_type",
    ][::core::mem::offset_of!(fi_triggered_context, event_type) - 0usize];
    [
        "Offset of field: fi_triggered_context::trigger",
    ][::core::mem::offset_of!(fi_triggered_context, trigger) - 8usize];
};
impl Default for fi_triggered_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct fi_triggered_context2 {
    pub event_type: fi_trigger_event,
    pub trigger: fi_triggered_context2__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union fi_triggered_context2__bindgen_ty_1 {
    pub threshold: fi_trigger_threshold,
    pub xpu: fi_trigger_xpu,
    pub internal: [*mut ::core::ffi::c_void; 7usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_triggered_context2__bindgen_ty_1",
    ][::core::mem::size_of::<fi_triggered_context2__bindgen_ty_1>() - 56usize];
    [
        "Alignment of fi_triggered_context2__bindgen_ty_1",
    ][::core::mem::align_of::<fi_triggered_context2__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: fi_triggered_context2__bindgen_ty_1::threshold",
    ][::core::mem::offset_of!(fi_triggered_context2__bindgen_ty_1, threshold) - 0usize];
    [
        "Offset of field: fi_triggered_context2__bindgen_ty_1::xpu",
    ][::core::mem::offset_of!(fi_triggered_context2__bindgen_ty_1, xpu) - 0usize];
    [
        "Offset of field: fi_triggered_context2__bindgen_ty_1::internal",
    ][::core::mem::offset_of!(fi_triggered_context2__bindgen_ty_1, internal) - 0usize];
};
impl Default for fi_triggered_context2__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_triggered_context2",
    ][::core::mem::size_of::<fi_triggered_context2>() - 64usize];
    [
        "Alignment of fi_triggered_context2",
    ][::core::mem::align_of::<fi_triggered_context2>() - 8usize];
    [
        "Offset of field: fi_triggered_context2::event_type",
    ][::core::mem::offset_of!(fi_triggered_context2, event_type) - 0usize];
    [
        "Offset of field: fi_triggered_context2::trigger",
    ][::core::mem::offset_of!(fi_triggered_context2, trigger) - 8usize];
};
impl Default for fi_triggered_context2 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct fi_deferred_work {
    pub context: fi_context2,
    pub threshold: u64,
    pub triggering_cntr: *mut fid_cntr,
    pub completion_cntr: *mut fid_cntr,
    pub op_type: fi_op_type,
    pub op: fi_deferred_work__bindgen_ty_1,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union fi_deferred_work__bindgen_ty_1 {
    pub msg: *mut fi_op_msg,
    pub tagged: *mut fi_op_tagged,
    pub rma: *mut fi_op_rma,
    pub atomic: *mut fi_op_atomic,
    pub fetch_atomic: *mut fi_op_fetch_atomic,
    pub compare_atomic: *mut fi_op_compare_atomic,
    pub cntr: *mut fi_op_cntr,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_deferred_work__bindgen_ty_1",
    ][::core::mem::size_of::<fi_deferred_work__bindgen_ty_1>() - 8usize];
    [
        "Alignment of fi_deferred_work__bindgen_ty_1",
    ][::core::mem::align_of::<fi_deferred_work__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: fi_deferred_work__bindgen_ty_1::msg",
    ][::core::mem::offset_of!(fi_deferred_work__bindgen_ty_1, msg) - 0usize];
    [
        "Offset of field: fi_deferred_work__bindgen_ty_1::tagged",
    ][::core::mem::offset_of!(fi_deferred_work__bindgen_ty_1, tagged) - 0usize];
    [
        "Offset of field: fi_deferred_work__bindgen_ty_1::rma",
    ][::core::mem::offset_of!(fi_deferred_work__bindgen_ty_1, rma) - 0usize];
    [
        "Offset of field: fi_deferred_work__bindgen_ty_1::atomic",
    ][::core::mem::offset_of!(fi_deferred_work__bindgen_ty_1, atomic) - 0usize];
    [
        "Offset of field: fi_deferred_work__bindgen_ty_1::fetch_atomic",
    ][::core::mem::offset_of!(fi_deferred_work__bindgen_ty_1, fetch_atomic) - 0usize];
    [
        "Offset of field: fi_deferred_work__bindgen_ty_1::compare_atomic",
    ][::core::mem::offset_of!(fi_deferred_work__bindgen_ty_1, compare_atomic) - 0usize];
    [
        "Offset of field: fi_deferred_work__bindgen_ty_1::cntr",
    ][::core::mem::offset_of!(fi_deferred_work__bindgen_ty_1, cntr) - 0usize];
};
impl Default for fi_deferred_work__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_deferred_work"][::core::mem::size_of::<fi_deferred_work>() - 104usize];
    [
        "Alignment of fi_deferred_work",
    ][::core::mem::align_of::<fi_deferred_work>() - 8usize];
    [
        "Offset of field: fi_deferred_work::context",
    ][::core::mem::offset_of!(fi_deferred_work, context) - 0usize];
    [
        "Offset of field: fi_deferred_work::threshold",
    ][::core::mem::offset_of!(fi_deferred_work, threshold) - 64usize];
    [
        "Offset of field: fi_deferred_work::triggering_cntr",
    ][::core::mem::offset_of!(fi_deferred_work, triggering_cntr) - 72usize];
    [
        "Offset of field: fi_deferred_work::completion_cntr",
    ][::core::mem::offset_of!(fi_deferred_work, completion_cntr) - 80usize];
    [
        "Offset of field: fi_deferred_work::op_type",
    ][::core::mem::offset_of!(fi_deferred_work, op_type) - 88usize];
    [
        "Offset of field: fi_deferred_work::op",
    ][::core::mem::offset_of!(fi_deferred_work, op) - 96usize];
};
impl Default for fi_deferred_work {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_av_owner {
    pub size: usize,
    pub query: ::core::option::Option<
        unsafe extern "C" fn(
            av: *mut fid_peer_av,
            attr: *mut fi_av_attr,
        ) -> ::core::ffi::c_int,
    >,
    pub ep_addr: ::core::option::Option<
        unsafe extern "C" fn(av: *mut fid_peer_av, ep: *mut fid_ep) -> fi_addr_t,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_av_owner"][::core::mem::size_of::<fi_ops_av_owner>() - 24usize];
    [
        "Alignment of fi_ops_av_owner",
    ][::core::mem::align_of::<fi_ops_av_owner>() - 8usize];
    [
        "Offset of field: fi_ops_av_owner::size",
    ][::core::mem::offset_of!(fi_ops_av_owner, size) - 0usize];
    [
        "Offset of field: fi_ops_av_owner::query",
    ][::core::mem::offset_of!(fi_ops_av_owner, query) - 8usize];
    [
        "Offset of field: fi_ops_av_owner::ep_addr",
    ][::core::mem::offset_of!(fi_ops_av_owner, ep_addr) - 16usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_peer_av {
    pub fid: fid,
    pub owner_ops: *mut fi_ops_av_owner,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_peer_av"][::core::mem::size_of::<fid_peer_av>() - 32usize];
    ["Alignment of fid_peer_av"][::core::mem::align_of::<fid_peer_av>() - 8usize];
    [
        "Offset of field: fid_peer_av::fid",
    ][::core::mem::offset_of!(fid_peer_av, fid) - 0usize];
    [
        "Offset of field: fid_peer_av::owner_ops",
    ][::core::mem::offset_of!(fid_peer_av, owner_ops) - 24usize];
};
impl Default for fid_peer_av {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_peer_av_context {
    pub size: usize,
    pub av: *mut fid_peer_av,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_peer_av_context",
    ][::core::mem::size_of::<fi_peer_av_context>() - 16usize];
    [
        "Alignment of fi_peer_av_context",
    ][::core::mem::align_of::<fi_peer_av_context>() - 8usize];
    [
        "Offset of field: fi_peer_av_context::size",
    ][::core::mem::offset_of!(fi_peer_av_context, size) - 0usize];
    [
        "Offset of field: fi_peer_av_context::av",
    ][::core::mem::offset_of!(fi_peer_av_context, av) - 8usize];
};
impl Default for fi_peer_av_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_av_set_owner {
    pub size: usize,
    pub members: ::core::option::Option<
        unsafe extern "C" fn(
            av: *mut fid_peer_av_set,
            addr: *mut fi_addr_t,
            count: *mut usize,
        ) -> ::core::ffi::c_int,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_ops_av_set_owner",
    ][::core::mem::size_of::<fi_ops_av_set_owner>() - 16usize];
    [
        "Alignment of fi_ops_av_set_owner",
    ][::core::mem::align_of::<fi_ops_av_set_owner>() - 8usize];
    [
        "Offset of field: fi_ops_av_set_owner::size",
    ][::core::mem::offset_of!(fi_ops_av_set_owner, size) - 0usize];
    [
        "Offset of field: fi_ops_av_set_owner::members",
    ][::core::mem::offset_of!(fi_ops_av_set_owner, members) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_peer_av_set {
    pub fid: fid,
    pub owner_ops: *mut fi_ops_av_set_owner,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_peer_av_set"][::core::mem::size_of::<fid_peer_av_set>() - 32usize];
    [
        "Alignment of fid_peer_av_set",
    ][::core::mem::align_of::<fid_peer_av_set>() - 8usize];
    [
        "Offset of field: fid_peer_av_set::fid",
    ][::core::mem::offset_of!(fid_peer_av_set, fid) - 0usize];
    [
        "Offset of field: fid_peer_av_set::owner_ops",
    ][::core::mem::offset_of!(fid_peer_av_set, owner_ops) - 24usize];
};
impl Default for fid_peer_av_set {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_peer_av_set_context {
    pub size: usize,
    pub av_set: *mut fi_peer_av_set,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_peer_av_set_context",
    ][::core::mem::size_of::<fi_peer_av_set_context>() - 16usize];
    [
        "Alignment of fi_peer_av_set_context",
    ][::core::mem::align_of::<fi_peer_av_set_context>() - 8usize];
    [
        "Offset of field: fi_peer_av_set_context::size",
    ][::core::mem::offset_of!(fi_peer_av_set_context, size) - 0usize];
    [
        "Offset of field: fi_peer_av_set_context::av_set",
    ][::core::mem::offset_of!(fi_peer_av_set_context, av_set) - 8usize];
};
impl Default for fi_peer_av_set_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_cq_owner {
    pub size: usize,
    pub write: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut fid_peer_cq,
            context: *mut ::core::ffi::c_void,
            flags: u64,
            len: usize,
            buf: *mut ::core::ffi::c_void,
            data: u64,
            tag: u64,
            src: fi_addr_t,
        ) -> isize,
    >,
    pub writeerr: ::core::option::Option<
        unsafe extern "C" fn(
            cq: *mut fid_peer_cq,
            err_entry: *const fi_cq_err_entry,
        ) -> isize,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_cq_owner"][::core::mem::size_of::<fi_ops_cq_owner>() - 24usize];
    [
        "Alignment of fi_ops_cq_owner",
    ][::core::mem::align_of::<fi_ops_cq_owner>() - 8usize];
    [
        "Offset of field: fi_ops_cq_owner::size",
    ][::core::mem::offset_of!(fi_ops_cq_owner, size) - 0usize];
    [
        "Offset of field: fi_ops_cq_owner::write",
    ][::core::mem::offset_of!(fi_ops_cq_owner, write) - 8usize];
    [
        "Offset of field: fi_ops_cq_owner::writeerr",
    ][::core::mem::offset_of!(fi_ops_cq_owner, writeerr) - 16usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_peer_cq {
    pub fid: fid,
    pub owner_ops: *mut fi_ops_cq_owner,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_peer_cq"][::core::mem::size_of::<fid_peer_cq>() - 32usize];
    ["Alignment of fid_peer_cq"][::core::mem::align_of::<fid_peer_cq>() - 8usize];
    [
        "Offset of field: fid_peer_cq::fid",
    ][::core::mem::offset_of!(fid_peer_cq, fid) - 0usize];
    [
        "Offset of field: fid_peer_cq::owner_ops",
    ][::core::mem::offset_of!(fid_peer_cq, owner_ops) - 24usize];
};
impl Default for fid_peer_cq {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_peer_cq_context {
    pub size: usize,
    pub cq: *mut fid_peer_cq,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_peer_cq_context",
    ][::core::mem::size_of::<fi_peer_cq_context>() - 16usize];
    [
        "Alignment of fi_peer_cq_context",
    ][::core::mem::align_of::<fi_peer_cq_context>() - 8usize];
    [
        "Offset of field: fi_peer_cq_context::size",
    ][::core::mem::offset_of!(fi_peer_cq_context, size) - 0usize];
    [
        "Offset of field: fi_peer_cq_context::cq",
    ][::core::mem::offset_of!(fi_peer_cq_context, cq) - 8usize];
};
impl Default for fi_peer_cq_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_cntr_owner {
    pub size: usize,
    pub inc: ::core::option::Option<unsafe extern "C" fn(cntr: *mut fid_peer_cntr)>,
    pub incerr: ::core::option::Option<unsafe extern "C" fn(cntr: *mut fid_peer_cntr)>,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_cntr_owner"][::core::mem::size_of::<fi_ops_cntr_owner>() - 24usize];
    [
        "Alignment of fi_ops_cntr_owner",
    ][::core::mem::align_of::<fi_ops_cntr_owner>() - 8usize];
    [
        "Offset of field: fi_ops_cntr_owner::size",
    ][::core::mem::offset_of!(fi_ops_cntr_owner, size) - 0usize];
    [
        "Offset of field: fi_ops_cntr_owner::inc",
    ][::core::mem::offset_of!(fi_ops_cntr_owner, inc) - 8usize];
    [
        "Offset of field: fi_ops_cntr_owner::incerr",
    ][::core::mem::offset_of!(fi_ops_cntr_owner, incerr) - 16usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_peer_cntr {
    pub fid: fid,
    pub owner_ops: *mut fi_ops_cntr_owner,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_peer_cntr"][::core::mem::size_of::<fid_peer_cntr>() - 32usize];
    ["Alignment of fid_peer_cntr"][::core::mem::align_of::<fid_peer_cntr>() - 8usize];
    [
        "Offset of field: fid_peer_cntr::fid",
    ][::core::mem::offset_of!(fid_peer_cntr, fid) - 0usize];
    [
        "Offset of field: fid_peer_cntr::owner_ops",
    ][::core::mem::offset_of!(fid_peer_cntr, owner_ops) - 24usize];
};
impl Default for fid_peer_cntr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_peer_cntr_context {
    pub size: usize,
    pub cntr: *mut fid_peer_cntr,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_peer_cntr_context",
    ][::core::mem::size_of::<fi_peer_cntr_context>() - 16usize];
    [
        "Alignment of fi_peer_cntr_context",
    ][::core::mem::align_of::<fi_peer_cntr_context>() - 8usize];
    [
        "Offset of field: fi_peer_cntr_context::size",
    ][::core::mem::offset_of!(fi_peer_cntr_context, size) - 0usize];
    [
        "Offset of field: fi_peer_cntr_context::cntr",
    ][::core::mem::offset_of!(fi_peer_cntr_context, cntr) - 8usize];
};
impl Default for fi_peer_cntr_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_peer_domain_context {
    pub size: usize,
    pub domain: *mut fid_domain,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_peer_domain_context",
    ][::core::mem::size_of::<fi_peer_domain_context>() - 16usize];
    [
        "Alignment of fi_peer_domain_context",
    ][::core::mem::align_of::<fi_peer_domain_context>() - 8usize];
    [
        "Offset of field: fi_peer_domain_context::size",
    ][::core::mem::offset_of!(fi_peer_domain_context, size) - 0usize];
    [
        "Offset of field: fi_peer_domain_context::domain",
    ][::core::mem::offset_of!(fi_peer_domain_context, domain) - 8usize];
};
impl Default for fi_peer_domain_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_peer_eq_context {
    pub size: usize,
    pub eq: *mut fid_eq,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_peer_eq_context",
    ][::core::mem::size_of::<fi_peer_eq_context>() - 16usize];
    [
        "Alignment of fi_peer_eq_context",
    ][::core::mem::align_of::<fi_peer_eq_context>() - 8usize];
    [
        "Offset of field: fi_peer_eq_context::size",
    ][::core::mem::offset_of!(fi_peer_eq_context, size) - 0usize];
    [
        "Offset of field: fi_peer_eq_context::eq",
    ][::core::mem::offset_of!(fi_peer_eq_context, eq) - 8usize];
};
impl Default for fi_peer_eq_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_peer_rx_entry {
    pub srx: *mut fid_peer_srx,
    pub addr: fi_addr_t,
    pub msg_size: usize,
    pub tag: u64,
    pub cq_data: u64,
    pub flags: u64,
    pub context: *mut ::core::ffi::c_void,
    pub count: usize,
    pub desc: *mut *mut ::core::ffi::c_void,
    pub peer_context: *mut ::core::ffi::c_void,
    pub owner_context: *mut ::core::ffi::c_void,
    pub iov: *mut iovec,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_peer_rx_entry"][::core::mem::size_of::<fi_peer_rx_entry>() - 96usize];
    [
        "Alignment of fi_peer_rx_entry",
    ][::core::mem::align_of::<fi_peer_rx_entry>() - 8usize];
    [
        "Offset of field: fi_peer_rx_entry::srx",
    ][::core::mem::offset_of!(fi_peer_rx_entry, srx) - 0usize];
    [
        "Offset of field: fi_peer_rx_entry::addr",
    ][::core::mem::offset_of!(fi_peer_rx_entry, addr) - 8usize];
    [
        "Offset of field: fi_peer_rx_entry::msg_size",
    ][::core::mem::offset_of!(fi_peer_rx_entry, msg_size) - 16usize];
    [
        "Offset of field: fi_peer_rx_entry::tag",
    ][::core::mem::offset_of!(fi_peer_rx_entry, tag) - 24usize];
    [
        "Offset of field: fi_peer_rx_entry::cq_data",
    ][::core::mem::offset_of!(fi_peer_rx_entry, cq_data) - 32usize];
    [
        "Offset of field: fi_peer_rx_entry::flags",
    ][::core::mem::offset_of!(fi_peer_rx_entry, flags) - 40usize];
    [
        "Offset of field: fi_peer_rx_entry::context",
    ][::core::mem::offset_of!(fi_peer_rx_entry, context) - 48usize];
    [
        "Offset of field: fi_peer_rx_entry::count",
    ][::core::mem::offset_of!(fi_peer_rx_entry, count) - 56usize];
    [
        "Offset of field: fi_peer_rx_entry::desc",
    ][::core::mem::offset_of!(fi_peer_rx_entry, desc) - 64usize];
    [
        "Offset of field: fi_peer_rx_entry::peer_context",
    ][::core::mem::offset_of!(fi_peer_rx_entry, peer_context) - 72usize];
    [
        "Offset of field: fi_peer_rx_entry::owner_context",
    ][::core::mem::offset_of!(fi_peer_rx_entry, owner_context) - 80usize];
    [
        "Offset of field: fi_peer_rx_entry::iov",
    ][::core::mem::offset_of!(fi_peer_rx_entry, iov) - 88usize];
};
impl Default for fi_peer_rx_entry {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_peer_match_attr {
    pub addr: fi_addr_t,
    pub msg_size: usize,
    pub tag: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_peer_match_attr",
    ][::core::mem::size_of::<fi_peer_match_attr>() - 24usize];
    [
        "Alignment of fi_peer_match_attr",
    ][::core::mem::align_of::<fi_peer_match_attr>() - 8usize];
    [
        "Offset of field: fi_peer_match_attr::addr",
    ][::core::mem::offset_of!(fi_peer_match_attr, addr) - 0usize];
    [
        "Offset of field: fi_peer_match_attr::msg_size",
    ][::core::mem::offset_of!(fi_peer_match_attr, msg_size) - 8usize];
    [
        "Offset of field: fi_peer_match_attr::tag",
    ][::core::mem::offset_of!(fi_peer_match_attr, tag) - 16usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_srx_owner {
    pub size: usize,
    pub get_msg: ::core::option::Option<
        unsafe extern "C" fn(
            srx: *mut fid_peer_srx,
            attr: *mut fi_peer_match_attr,
            entry: *mut *mut fi_peer_rx_entry,
        ) -> ::core::ffi::c_int,
    >,
    pub get_tag: ::core::option::Option<
        unsafe extern "C" fn(
            srx: *mut fid_peer_srx,
            attr: *mut fi_peer_match_attr,
            entry: *mut *mut fi_peer_rx_entry,
        ) -> ::core::ffi::c_int,
    >,
    pub queue_msg: ::core::option::Option<
        unsafe extern "C" fn(entry: *mut fi_peer_rx_entry) -> ::core::ffi::c_int,
    >,
    pub queue_tag: ::core::option::Option<
        unsafe extern "C" fn(entry: *mut fi_peer_rx_entry) -> ::core::ffi::c_int,
    >,
    pub foreach_unspec_addr: ::core::option::Option<
        unsafe extern "C" fn(
            srx: *mut fid_peer_srx,
            get_addr: ::core::option::Option<
                unsafe extern "C" fn(arg1: *mut fi_peer_rx_entry) -> fi_addr_t,
            >,
        ),
    >,
    pub free_entry: ::core::option::Option<
        unsafe extern "C" fn(entry: *mut fi_peer_rx_entry),
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_srx_owner"][::core::mem::size_of::<fi_ops_srx_owner>() - 56usize];
    [
        "Alignment of fi_ops_srx_owner",
    ][::core::mem::align_of::<fi_ops_srx_owner>() - 8usize];
    [
        "Offset of field: fi_ops_srx_owner::size",
    ][::core::mem::offset_of!(fi_ops_srx_owner, size) - 0usize];
    [
        "Offset of field: fi_ops_srx_owner::get_msg",
    ][::core::mem::offset_of!(fi_ops_srx_owner, get_msg) - 8usize];
    [
        "Offset of field: fi_ops_srx_owner::get_tag",
    ][::core::mem::offset_of!(fi_ops_srx_owner, get_tag) - 16usize];
    [
        "Offset of field: fi_ops_srx_owner::queue_msg",
    ][::core::mem::offset_of!(fi_ops_srx_owner, queue_msg) - 24usize];
    [
        "Offset of field: fi_ops_srx_owner::queue_tag",
    ][::core::mem::offset_of!(fi_ops_srx_owner, queue_tag) - 32usize];
    [
        "Offset of field: fi_ops_srx_owner::foreach_unspec_addr",
    ][::core::mem::offset_of!(fi_ops_srx_owner, foreach_unspec_addr) - 40usize];
    [
        "Offset of field: fi_ops_srx_owner::free_entry",
    ][::core::mem::offset_of!(fi_ops_srx_owner, free_entry) - 48usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_srx_peer {
    pub size: usize,
    pub start_msg: ::core::option::Option<
        unsafe extern "C" fn(entry: *mut fi_peer_rx_entry) -> ::core::ffi::c_int,
    >,
    pub start_tag: ::core::option::Option<
        unsafe extern "C" fn(entry: *mut fi_peer_rx_entry) -> ::core::ffi::c_int,
    >,
    pub discard_msg: ::core::option::Option<
        unsafe extern "C" fn(entry: *mut fi_peer_rx_entry) -> ::core::ffi::c_int,
    >,
    pub discard_tag: ::core::option::Option<
        unsafe extern "C" fn(entry: *mut fi_peer_rx_entry) -> ::core::ffi::c_int,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fi_ops_srx_peer"][::core::mem::size_of::<fi_ops_srx_peer>() - 40usize];
    [
        "Alignment of fi_ops_srx_peer",
    ][::core::mem::align_of::<fi_ops_srx_peer>() - 8usize];
    [
        "Offset of field: fi_ops_srx_peer::size",
    ][::core::mem::offset_of!(fi_ops_srx_peer, size) - 0usize];
    [
        "Offset of field: fi_ops_srx_peer::start_msg",
    ][::core::mem::offset_of!(fi_ops_srx_peer, start_msg) - 8usize];
    [
        "Offset of field: fi_ops_srx_peer::start_tag",
    ][::core::mem::offset_of!(fi_ops_srx_peer, start_tag) - 16usize];
    [
        "Offset of field: fi_ops_srx_peer::discard_msg",
    ][::core::mem::offset_of!(fi_ops_srx_peer, discard_msg) - 24usize];
    [
        "Offset of field: fi_ops_srx_peer::discard_tag",
    ][::core::mem::offset_of!(fi_ops_srx_peer, discard_tag) - 32usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fid_peer_srx {
    pub ep_fid: fid_ep,
    pub owner_ops: *mut fi_ops_srx_owner,
    pub peer_ops: *mut fi_ops_srx_peer,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of fid_peer_srx"][::core::mem::size_of::<fid_peer_srx>() - 96usize];
    ["Alignment of fid_peer_srx"][::core::mem::align_of::<fid_peer_srx>() - 8usize];
    [
        "Offset of field: fid_peer_srx::ep_fid",
    ][::core::mem::offset_of!(fid_peer_srx, ep_fid) - 0usize];
    [
        "Offset of field: fid_peer_srx::owner_ops",
    ][::core::mem::offset_of!(fid_peer_srx, owner_ops) - 80usize];
    [
        "Offset of field: fid_peer_srx::peer_ops",
    ][::core::mem::offset_of!(fid_peer_srx, peer_ops) - 88usize];
};
impl Default for fid_peer_srx {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_peer_srx_context {
    pub size: usize,
    pub srx: *mut fid_peer_srx,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_peer_srx_context",
    ][::core::mem::size_of::<fi_peer_srx_context>() - 16usize];
    [
        "Alignment of fi_peer_srx_context",
    ][::core::mem::align_of::<fi_peer_srx_context>() - 8usize];
    [
        "Offset of field: fi_peer_srx_context::size",
    ][::core::mem::offset_of!(fi_peer_srx_context, size) - 0usize];
    [
        "Offset of field: fi_peer_srx_context::srx",
    ][::core::mem::offset_of!(fi_peer_srx_context, srx) - 8usize];
};
impl Default for fi_peer_srx_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_ops_transfer_peer {
    pub size: usize,
    pub complete: ::core::option::Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            buf: *mut fi_cq_tagged_entry,
            src_addr: fi_addr_t,
        ) -> isize,
    >,
    pub comperr: ::core::option::Option<
        unsafe extern "C" fn(ep: *mut fid_ep, buf: *mut fi_cq_err_entry) -> isize,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_ops_transfer_peer",
    ][::core::mem::size_of::<fi_ops_transfer_peer>() - 24usize];
    [
        "Alignment of fi_ops_transfer_peer",
    ][::core::mem::align_of::<fi_ops_transfer_peer>() - 8usize];
    [
        "Offset of field: fi_ops_transfer_peer::size",
    ][::core::mem::offset_of!(fi_ops_transfer_peer, size) - 0usize];
    [
        "Offset of field: fi_ops_transfer_peer::complete",
    ][::core::mem::offset_of!(fi_ops_transfer_peer, complete) - 8usize];
    [
        "Offset of field: fi_ops_transfer_peer::comperr",
    ][::core::mem::offset_of!(fi_ops_transfer_peer, comperr) - 16usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct fi_peer_transfer_context {
    pub size: usize,
    pub info: *mut fi_info,
    pub ep: *mut fid_ep,
    pub peer_ops: *mut fi_ops_transfer_peer,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of fi_peer_transfer_context",
    ][::core::mem::size_of::<fi_peer_transfer_context>() - 32usize];
    [
        "Alignment of fi_peer_transfer_context",
    ][::core::mem::align_of::<fi_peer_transfer_context>() - 8usize];
    [
        "Offset of field: fi_peer_transfer_context::size",
    ][::core::mem::offset_of!(fi_peer_transfer_context, size) - 0usize];
    [
        "Offset of field: fi_peer_transfer_context::info",
    ][::core::mem::offset_of!(fi_peer_transfer_context, info) - 8usize];
    [
        "Offset of field: fi_peer_transfer_context::ep",
    ][::core::mem::offset_of!(fi_peer_transfer_context, ep) - 16usize];
    [
        "Offset of field: fi_peer_transfer_context::peer_ops",
    ][::core::mem::offset_of!(fi_peer_transfer_context, peer_ops) - 24usize];
};
impl Default for fi_peer_transfer_context {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
pub const FI_MR_UNSPEC: ::core::ffi::c_int = 0;
pub const FI_MR_BASIC: ::core::ffi::c_int = 1;
pub const FI_MR_SCALABLE: ::core::ffi::c_int = 2;
pub const FI_ORDER_NONE: u64 = 0;
pub const FI_ORDER_STRICT: u64 = 511;
pub const FI_ORDER_DATA: u64 = 65536;
pub const FI_LOCAL_MR: u64 = 36028797018963968;
pub const FI_REG_MR: u64 = 576460752303423488;
pub const FI_MPI_IGNORE_TAG: u64 = 4294967295;
pub const FI_MPI_IGNORE_PAYLOAD: u64 = 1095216660480;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct fi_peer_av_set {
    pub _address: u8,
}
pub mod fns {
    use super::*;
    pub type fi_strerror = unsafe extern "C" fn(
        errnum: ::core::ffi::c_int,
    ) -> *const ::core::ffi::c_char;
    pub type fi_version = unsafe extern "C" fn() -> u32;
    pub type fi_getinfo = unsafe extern "C" fn(
        version: u32,
        node: *const ::core::ffi::c_char,
        service: *const ::core::ffi::c_char,
        flags: u64,
        hints: *const fi_info,
        info: *mut *mut fi_info,
    ) -> ::core::ffi::c_int;
    pub type fi_freeinfo = unsafe extern "C" fn(info: *mut fi_info);
    pub type fi_dupinfo = unsafe extern "C" fn(info: *const fi_info) -> *mut fi_info;
    pub type fi_fabric = unsafe extern "C" fn(
        attr: *mut fi_fabric_attr,
        fabric: *mut *mut fid_fabric,
        context: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
    pub type fi_open = unsafe extern "C" fn(
        version: u32,
        name: *const ::core::ffi::c_char,
        attr: *mut ::core::ffi::c_void,
        attr_len: usize,
        flags: u64,
        fid: *mut *mut fid,
        context: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
    pub type fi_tostr_r = unsafe extern "C" fn(
        buf: *mut ::core::ffi::c_char,
        len: usize,
        data: *const ::core::ffi::c_void,
        datatype: fi_type,
    ) -> *mut ::core::ffi::c_char;
    pub type fi_param_define = unsafe extern "C" fn(
        provider: *const fi_provider,
        param_name: *const ::core::ffi::c_char,
        type_: fi_param_type,
        help_string_fmt: *const ::core::ffi::c_char,
        ...
    ) -> ::core::ffi::c_int;
    pub type fi_param_get = unsafe extern "C" fn(
        provider: *mut fi_provider,
        param_name: *const ::core::ffi::c_char,
        value: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
    pub type fi_log_enabled = unsafe extern "C" fn(
        prov: *const fi_provider,
        level: fi_log_level,
        subsys: fi_log_subsys,
    ) -> ::core::ffi::c_int;
    pub type fi_log_ready = unsafe extern "C" fn(
        prov: *const fi_provider,
        level: fi_log_level,
        subsys: fi_log_subsys,
        showtime: *mut u64,
    ) -> ::core::ffi::c_int;
    pub type fi_log = unsafe extern "C" fn(
        prov: *const fi_provider,
        level: fi_log_level,
        subsys: fi_log_subsys,
        func: *const ::core::ffi::c_char,
        line: ::core::ffi::c_int,
        fmt: *const ::core::ffi::c_char,
        ...
    );
}
