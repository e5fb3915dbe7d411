//! The objects that an endpoint lends to `off_coll` (fi_peer(3)): an event queue, a completion
//! queue, an address vector, and an endpoint for transfers.
//!
//! `off_coll` calls them within calls of ours alone, under the lock of the endpoint's collectives.
//! Each call leaves a record, which is carried out when the call of ours is over.

use std::ffi::{c_int, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::{AvType, FiAddr, IoBuf};
use ferrofabric_runtime::fabric::Av;
use ferrofabric_system::locks::Mutex;

use super::waiting::Room;
use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_CLASS_EP, FI_CLASS_EQ, FI_CLASS_PEER_AV, FI_CLASS_PEER_CQ,
    FI_JOIN_COMPLETE, Roomy, fi_addr_t, fi_av_attr, fi_av_type, fi_cq_err_entry, fi_eq_entry,
    fi_msg_tagged, fi_ops, fi_ops_av_owner, fi_ops_cq_owner, fi_ops_eq, fi_ops_tagged, fid, fid_ep,
    fid_eq, fid_peer_av, fid_peer_cq,
};
use crate::guard::value;
use crate::no_calls;
use crate::unsupported::Unsupported;

/// A call of `off_coll`.
#[derive(Debug)]
pub(crate) enum Record {
    /// It sends or receives.
    Transfer(TransferRequest),
    /// The operation of this number is complete, a join or another one.
    Complete(u64),
}

/// A message that `off_coll` sends or receives.
#[derive(Debug)]
pub(crate) struct TransferRequest {
    pub(crate) sends: bool,
    pub(crate) buf: IoBuf,
    pub(crate) peer: FiAddr,
    pub(crate) tag: u64,
    /// Its own object, for the report of the end.
    pub(crate) item: *mut c_void,
}

impl TransferRequest {
    /// The room that it needs.
    pub(crate) fn room(&self) -> Room {
        let (peer, sends) = (self.peer, self.sends);
        Room { peer, sends }
    }
}

/// The lent objects of an endpoint. They stay where they are.
pub(crate) struct LentObjects {
    pub(crate) eq: fid_eq,
    pub(crate) cq: fid_peer_cq,
    pub(crate) av: fid_peer_av,
    pub(crate) ep: fid_ep,
    records: Mutex<Vec<Record>>,
    /// The address of the endpoint, among the members of a set.
    own: AtomicU64,
    /// The vector of the endpoint.
    addrs: Arc<dyn Av>,
    /// The endpoint's own name.
    name: NativeAddr,
}

impl LentObjects {
    pub(crate) fn new(addrs: Arc<dyn Av>, name: NativeAddr) -> Box<Self> {
        let mut lent = Box::new(Self {
            eq: fid_eq {
                fid: fid_of(FI_CLASS_EQ),
                ops: EQ.as_ptr(),
            },
            cq: fid_peer_cq {
                fid: fid_of(FI_CLASS_PEER_CQ),
                owner_ops: CQ.as_ptr(),
            },
            av: fid_peer_av {
                fid: fid_of(FI_CLASS_PEER_AV),
                owner_ops: AV.as_ptr(),
            },
            ep: fid_ep {
                fid: fid_of(FI_CLASS_EP),
                ops: no_calls::EP.as_ptr(),
                cm: no_calls::CM.as_ptr(),
                msg: no_calls::MSG.as_ptr(),
                rma: no_calls::RMA.as_ptr(),
                tagged: TRANSFERS.as_ptr(),
                atomic: no_calls::ATOMIC.as_ptr(),
                collective: no_calls::COLLECTIVE.as_ptr(),
            },
            records: Mutex::new(Vec::new()),
            own: AtomicU64::new(FiAddr::NOTAVAIL.0),
            addrs,
            name,
        });
        let this: *mut c_void = (&raw mut *lent).cast();
        lent.eq.fid.context = this;
        lent.cq.fid.context = this;
        lent.av.fid.context = this;
        lent.ep.fid.context = this;
        lent
    }

    /// The calls since the last look, in their order.
    pub(crate) fn take_records(&self) -> Vec<Record> {
        std::mem::take(&mut *self.records.lock())
    }

    /// Sets the address of the endpoint, among the members of a set that it joins.
    pub(crate) fn set_own_address(&self, own: FiAddr) {
        self.own.store(own.0, Ordering::Relaxed);
    }

    fn record(&self, record: Record) {
        self.records.lock().push(record);
    }
}

/// A `fid` whose context is not set yet.
fn fid_of(fclass: usize) -> fid {
    fid {
        fclass,
        context: null_mut(),
        ops: from_ref(&FID).cast_mut(),
    }
}

/// The objects of a `fid` among them.
///
/// # Safety
///
/// It is one of ours.
unsafe fn lent_of<'a>(fid: *const fid) -> &'a LentObjects {
    // SAFETY: as the caller says; the objects stay where they are.
    unsafe { &*(*fid).context.cast::<LentObjects>() }
}

/// The calls of an object that lives as long as its owner: none.
static FID: fi_ops = fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(Unsupported::ENOSYS),
    bind: Some(Unsupported::ENOSYS),
    control: Some(Unsupported::ENOSYS),
    ops_open: Some(Unsupported::ENOSYS),
    tostr: Some(Unsupported::ENOSYS),
    ops_set: Some(Unsupported::ENOSYS),
};

static EQ: Roomy<fi_ops_eq> = Roomy::new(fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(Unsupported::ENOSYS),
    readerr: Some(Unsupported::ENOSYS),
    write: Some(joined),
    sread: Some(Unsupported::ENOSYS),
    strerror: Some(no_words),
});

static CQ: Roomy<fi_ops_cq_owner> = Roomy::new(fi_ops_cq_owner {
    size: size_of::<fi_ops_cq_owner>(),
    write: Some(completed),
    writeerr: Some(failed),
});

static AV: Roomy<fi_ops_av_owner> = Roomy::new(fi_ops_av_owner {
    size: size_of::<fi_ops_av_owner>(),
    query: Some(query),
    ep_addr: Some(ep_addr),
});

/// Transfers (`FI_PEER_TRANSFER`).
static TRANSFERS: Roomy<fi_ops_tagged> = Roomy::new(fi_ops_tagged {
    recvmsg: Some(recvmsg),
    sendmsg: Some(sendmsg),
    ..no_calls::TAGGED.table
});

unsafe extern "C" fn no_words(
    _eq: *mut fid_eq,
    _prov_errno: c_int,
    _err_data: *const c_void,
    _buf: *mut std::ffi::c_char,
    _len: usize,
) -> *const std::ffi::c_char {
    c"".as_ptr()
}

/// An event: a join is complete. Its fid is not that of the new group.
unsafe extern "C" fn joined(
    eq: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    _flags: u64,
) -> isize {
    value(-(Errno::EOTHER.0 as isize), || {
        if event != FI_JOIN_COMPLETE || len < size_of::<fi_eq_entry>() || buf.is_null() {
            return -(Errno::EINVAL.0 as isize);
        }
        // SAFETY: the queue is ours; the entry is whole.
        unsafe {
            let entry = buf.cast::<fi_eq_entry>().read_unaligned();
            lent_of(eq.cast()).record(Record::Complete(entry.context as u64));
        }
        len as isize
    })
}

unsafe extern "C" fn completed(
    cq: *mut fid_peer_cq,
    context: *mut c_void,
    _flags: u64,
    _len: usize,
    _buf: *mut c_void,
    _data: u64,
    _tag: u64,
    _src: fi_addr_t,
) -> isize {
    value(-(Errno::EOTHER.0 as isize), || {
        // SAFETY: the queue is ours.
        unsafe { lent_of(cq.cast()) }.record(Record::Complete(context as u64));
        0
    })
}

/// `off_coll` reports no errors.
unsafe extern "C" fn failed(_cq: *mut fid_peer_cq, _entry: *const fi_cq_err_entry) -> isize {
    -(Errno::ENOSYS.0 as isize)
}

/// The attributes that the address vector has now. Sets are opened for a number of members of their
/// own.
unsafe extern "C" fn query(av: *mut fid_peer_av, attr: *mut fi_av_attr) -> c_int {
    value(-Errno::EOTHER.0, || {
        if attr.is_null() {
            return -Errno::EINVAL.0;
        }
        // SAFETY: the address vector is ours; there is room for the attributes.
        unsafe {
            let addrs = &lent_of(av.cast()).addrs;
            attr.write(fi_av_attr {
                type_: match addrs.av_type() {
                    AvType::Map => fi_av_type::FI_AV_MAP,
                    AvType::Table => fi_av_type::FI_AV_TABLE,
                },
                count: addrs.count(),
                ..fi_av_attr::default()
            });
        }
        0
    })
}

/// The address of the endpoint, which is the only one here. It is looked up: the application may
/// have removed it since the join.
unsafe extern "C" fn ep_addr(av: *mut fid_peer_av, _ep: *mut fid_ep) -> fi_addr_t {
    value(FI_ADDR_NOTAVAIL, || {
        // SAFETY: the address vector is ours.
        let lent = unsafe { lent_of(av.cast()) };
        let own = FiAddr(lent.own.load(Ordering::Relaxed));
        match lent.addrs.lookup(own) {
            Ok(name) if name == lent.name => own.0,
            _ => FI_ADDR_NOTAVAIL,
        }
    })
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, _flags: u64) -> isize {
    // SAFETY: as `off_coll` calls it.
    unsafe { transfer(ep, msg, true) }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, _flags: u64) -> isize {
    // SAFETY: as `off_coll` calls it.
    unsafe { transfer(ep, msg, false) }
}

/// # Safety
///
/// The endpoint is ours; the message is whole.
unsafe fn transfer(ep: *mut fid_ep, msg: *const fi_msg_tagged, sends: bool) -> isize {
    value(-(Errno::EOTHER.0 as isize), || {
        // SAFETY: as the caller says.
        unsafe {
            let msg = &*msg;
            if msg.iov_count != 1 {
                return -(Errno::EINVAL.0 as isize);
            }
            lent_of(ep.cast()).record(Record::Transfer(TransferRequest {
                sends,
                buf: IoBuf::new((*msg.msg_iov).iov_base.cast(), (*msg.msg_iov).iov_len),
                peer: FiAddr(msg.addr),
                tag: msg.tag,
                item: msg.context,
            }));
        }
        0
    })
}

#[cfg(test)]
mod tests {
    use ferrofabric_av::AvAttr;
    use ferrofabric_contracts::config::Settings;
    use ferrofabric_runtime::fabric::{CqAttr, Domain, EndpointConfig, Provider};
    use ferrofabric_shm::ShmProvider;

    use super::*;

    fn domain() -> Arc<dyn Domain> {
        let (provider, settings) = (ShmProvider, Settings::read(|_| None).expect("defaults"));
        let found = provider.discover(&settings);
        provider
            .open(&found.candidates[0], &settings)
            .expect("a domain")
    }

    /// `query`, as the peer calls it.
    fn queried(lent: &mut LentObjects) -> fi_av_attr {
        let mut attr = fi_av_attr {
            count: usize::MAX,
            ..fi_av_attr::default()
        };
        let av = &raw mut lent.av;
        // SAFETY: as fi_peer(3) has it.
        let result = unsafe {
            (*(*av).owner_ops)
                .query
                .map(|query| query(av, &raw mut attr))
        };
        assert_eq!(result, Some(0));
        attr
    }

    /// `ep_addr`, as the peer calls it.
    fn own_addr(lent: &mut LentObjects) -> Option<fi_addr_t> {
        let (av, ep) = (&raw mut lent.av, &raw mut lent.ep);
        // SAFETY: as above.
        unsafe { (*(*av).owner_ops).ep_addr.map(|ep_addr| ep_addr(av, ep)) }
    }

    /// Covers: PEER-2
    #[test]
    fn a_lent_vector_says_what_is_in_it() {
        let domain = domain();
        let cq = domain.open_cq(&CqAttr::default()).expect("a queue");
        for (av_type, type_) in [
            (AvType::Map, fi_av_type::FI_AV_MAP),
            (AvType::Table, fi_av_type::FI_AV_TABLE),
        ] {
            let attr = AvAttr {
                av_type: Some(av_type),
                ..AvAttr::default()
            };
            let av = domain.open_av(&attr).expect("an address vector");
            let open = || domain.open_endpoint(EndpointConfig::new(&av, &cq));
            let (own, other) = (open().expect("an endpoint"), open().expect("an endpoint"));
            let mut lent = LentObjects::new(av.clone(), own.name());
            assert_eq!(
                (queried(&mut lent).count, queried(&mut lent).type_),
                (0, type_)
            );
            assert_eq!(own_addr(&mut lent), Some(FI_ADDR_NOTAVAIL), "it is not in");

            let insert = |name: NativeAddr| av.insert(&name.to_bytes()).expect("an address");
            let (of_other, of_own) = (insert(other.name()), insert(own.name()));
            assert_eq!(queried(&mut lent).count, 2);
            lent.set_own_address(of_own);
            assert_eq!(own_addr(&mut lent), Some(of_own.0));
            lent.set_own_address(of_other);
            assert_eq!(
                own_addr(&mut lent),
                Some(FI_ADDR_NOTAVAIL),
                "it is another's"
            );
            lent.set_own_address(of_own);
            av.remove(of_own).expect("a removal");
            assert_eq!(own_addr(&mut lent), Some(FI_ADDR_NOTAVAIL), "it is removed");
            assert_eq!(queried(&mut lent).count, 1);
        }
    }
}
