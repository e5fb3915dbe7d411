//! The objects of `off_coll` that an endpoint has to itself, and the calls of them.
//!
//! `off_coll` has no lock: no two calls of one such endpoint overlap.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::fabric::Av;
use ferrofabric_system::cancel::Uncancelled;

use super::foreign::{bind, checked, close, enable, foreign, opened};
use super::lent::{LentObjects, Record};
use super::lent_set::LentSet;
use super::offload::Offload;
use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_COLLECTIVE, FI_PEER, FI_RECV, FI_SEND, FI_TRANSMIT, fi_addr_t, fi_av_attr,
    fi_av_set_attr, fi_cntr_attr, fi_collective_addr, fi_cq_attr, fi_cq_tagged_entry, fi_eq_attr,
    fi_ops_transfer_peer, fi_peer_av_context, fi_peer_cq_context, fi_peer_eq_context,
    fi_peer_transfer_context, fid, fid_av, fid_av_set, fid_cntr, fid_cq, fid_ep, fid_eq, fid_mc,
};
use crate::av::imported_set::PEER_AV;
use crate::av::members::Members;

/// An endpoint of `off_coll`, with all that it is bound to.
pub(crate) struct OffloadEndpoint {
    ep: NonNull<fid_ep>,
    av: NonNull<fid_av>,
    /// Reading it drives the endpoint.
    driver: NonNull<fid_cntr>,
    transfer_ops: NonNull<fi_ops_transfer_peer>,
    /// All of its objects, in the order in which they close.
    objects: Vec<NonNull<fid>>,
    lent: Box<LentObjects>,
}

// SAFETY: the objects are for any thread, one call at a time.
unsafe impl Send for OffloadEndpoint {}

/// A group of `off_coll`, and the set that it has its members from.
pub(crate) struct OffloadGroup {
    mc: NonNull<fid_mc>,
    set: NonNull<fid_av_set>,
    /// For the set, until that is closed.
    _lent: Box<LentSet>,
}

// SAFETY: as above.
unsafe impl Send for OffloadGroup {}

/// The objects opened so far, which close if the rest fails.
#[derive(Default)]
struct UnfinishedObjects(Vec<NonNull<fid>>);

impl UnfinishedObjects {
    fn add<T>(&mut self, object: NonNull<T>) -> NonNull<T> {
        self.0.push(object.cast());
        object
    }
}

impl Drop for UnfinishedObjects {
    fn drop(&mut self) {
        for object in self.0.drain(..).rev() {
            // SAFETY: opened here, the ones that need others after those.
            unsafe { close(object.as_ptr()) };
        }
    }
}

impl OffloadEndpoint {
    /// Opens an endpoint, and lends it what it works with.
    ///
    /// # Errors
    ///
    /// That of the call that failed.
    pub(crate) fn open(
        offload: &Offload,
        av: &Arc<dyn Av>,
        name: NativeAddr,
    ) -> Result<Self, Errno> {
        let mut lent = LentObjects::new(av.clone(), name);
        let mut all = UnfinishedObjects::default();
        // SAFETY: fabric and domains are open. Contexts are read in the calls alone; the lent
        // objects stay until the others are closed.
        unsafe {
            let eq = all.add(open_eq(offload, &mut lent)?);
            let cq = all.add(open_cq(offload, &mut lent)?);
            let av = all.add(open_av(offload, &mut lent)?);
            let (mut attr, mut driver) = (fi_cntr_attr::default(), null_mut());
            let result = foreign!(
                offload.driver.as_ptr(),
                ops.cntr_open(&raw mut attr, &raw mut driver, null_mut())
            );
            let driver = all.add(opened(result, driver)?);

            let mut ep = null_mut();
            let mut context = fi_peer_transfer_context {
                size: size_of::<fi_peer_transfer_context>(),
                info: offload.info.as_ptr(),
                ep: &raw mut lent.ep,
                peer_ops: null_mut(),
            };
            let result = foreign!(
                offload.domain.as_ptr(),
                ops.endpoint(
                    offload.info.as_ptr(),
                    &raw mut ep,
                    (&raw mut context).cast()
                )
            );
            let ep = all.add(opened(result, ep)?);
            let transfer_ops = NonNull::new(context.peer_ops).ok_or(Errno::EINVAL)?;

            let fid = ep.as_ptr().cast();
            bind(fid, av.as_ptr().cast(), 0)?;
            bind(fid, cq.as_ptr().cast(), FI_TRANSMIT | FI_RECV)?;
            bind(fid, eq.as_ptr().cast(), 0)?;
            bind(fid, driver.as_ptr().cast(), FI_SEND)?;
            enable(fid)?;

            let mut objects = std::mem::take(&mut all.0);
            objects.reverse();
            Ok(Self {
                ep,
                av,
                driver,
                transfer_ops,
                objects,
                lent,
            })
        }
    }

    /// The endpoint, for calls that begin an operation.
    pub(crate) fn ep(&self) -> *mut fid_ep {
        self.ep.as_ptr()
    }

    /// Has it do all the work that it can do now. Returns its calls since the last time.
    pub(crate) fn drive(&self) -> Vec<Record> {
        // SAFETY: the counter is open.
        unsafe { foreign!(self.driver.as_ptr(), ops.read()) };
        self.lent.take_records()
    }

    /// A transfer is complete.
    pub(crate) fn complete(&self, item: *mut c_void) {
        let mut entry = fi_cq_tagged_entry {
            op_context: item,
            ..fi_cq_tagged_entry::default()
        };
        let _uncancelled = Uncancelled::begin();
        // SAFETY: the table is one of `off_coll`'s, and the item is that of a transfer that is not
        // complete.
        unsafe {
            let complete = (*self.transfer_ops.as_ptr()).complete;
            complete.map(|complete| complete(self.ep(), &raw mut entry, FI_ADDR_NOTAVAIL));
        }
    }

    /// Joins a new group of these members, of which the endpoint is the one with the address `own`.
    ///
    /// # Errors
    ///
    /// That of the call that failed.
    pub(crate) fn join(
        &self,
        members: &Members,
        own: FiAddr,
        flags: u64,
        context: *mut c_void,
    ) -> Result<OffloadGroup, Errno> {
        let mut lent = LentSet::new(members.clone());
        let mut context_of_set = lent.context();
        let mut all = UnfinishedObjects::default();
        self.lent.set_own_address(own);
        // SAFETY: all are open, and the parent is a group of this endpoint.
        unsafe {
            let mut set = null_mut();
            let mut attr = fi_av_set_attr {
                count: members.all().len(),
                start_addr: FI_ADDR_NOTAVAIL,
                end_addr: FI_ADDR_NOTAVAIL,
                flags: PEER_AV,
                ..fi_av_set_attr::default()
            };
            let result = foreign!(
                self.av.as_ptr(),
                ops.av_set(
                    &raw mut attr,
                    &raw mut set,
                    (&raw mut context_of_set).cast()
                )
            );
            let set = all.add(opened(result, set)?);
            for &member in members.all() {
                match checked(foreign!(set.as_ptr(), ops.insert(member.0))) {
                    // It has imported the set, and looks the members up.
                    Err(Errno::ENOSYS) => break,
                    inserted => inserted?,
                }
            }
            let mut coll_addr: fi_addr_t = FI_ADDR_NOTAVAIL;
            checked(foreign!(set.as_ptr(), ops.addr(&raw mut coll_addr)))?;
            let addr = fi_collective_addr {
                set: set.as_ptr(),
                coll_addr,
            };
            let mut mc = null_mut();
            let result = foreign!(
                self.ep(),
                cm.join(
                    (&raw const addr).cast(),
                    flags | FI_COLLECTIVE,
                    &raw mut mc,
                    context
                )
            );
            let mc = opened(result, mc)?;
            all.0.clear();
            Ok(OffloadGroup {
                mc,
                set,
                _lent: lent,
            })
        }
    }
}

/// # Safety
///
/// The lent objects stay where they are, until the queue is closed.
unsafe fn open_eq(offload: &Offload, lent: &mut LentObjects) -> Result<NonNull<fid_eq>, Errno> {
    let mut eq = null_mut();
    let mut attr = fi_eq_attr {
        flags: FI_PEER,
        ..fi_eq_attr::default()
    };
    let mut context = fi_peer_eq_context {
        size: size_of::<fi_peer_eq_context>(),
        eq: &raw mut lent.eq,
    };
    // SAFETY: the fabric is open; the context is read in the call alone.
    let result = unsafe {
        foreign!(
            offload.fabric.as_ptr(),
            ops.eq_open(&raw mut attr, &raw mut eq, (&raw mut context).cast())
        )
    };
    opened(result, eq)
}

/// # Safety
///
/// As of [`open_eq`].
unsafe fn open_cq(offload: &Offload, lent: &mut LentObjects) -> Result<NonNull<fid_cq>, Errno> {
    let mut cq = null_mut();
    let mut attr = fi_cq_attr {
        flags: FI_PEER,
        ..fi_cq_attr::default()
    };
    let mut context = fi_peer_cq_context {
        size: size_of::<fi_peer_cq_context>(),
        cq: &raw mut lent.cq,
    };
    // SAFETY: the domain is open; the context is read in the call alone.
    let result = unsafe {
        foreign!(
            offload.domain.as_ptr(),
            ops.cq_open(&raw mut attr, &raw mut cq, (&raw mut context).cast())
        )
    };
    opened(result, cq)
}

/// # Safety
///
/// As of [`open_eq`].
unsafe fn open_av(offload: &Offload, lent: &mut LentObjects) -> Result<NonNull<fid_av>, Errno> {
    let mut av = null_mut();
    let mut attr = fi_av_attr {
        flags: FI_PEER,
        ..fi_av_attr::default()
    };
    let mut context = fi_peer_av_context {
        size: size_of::<fi_peer_av_context>(),
        av: &raw mut lent.av,
    };
    // SAFETY: the domain is open; the context is read in the call alone.
    let result = unsafe {
        foreign!(
            offload.domain.as_ptr(),
            ops.av_open(&raw mut attr, &raw mut av, (&raw mut context).cast())
        )
    };
    opened(result, av)
}

impl Drop for OffloadEndpoint {
    fn drop(&mut self) {
        for object in self.objects.drain(..) {
            // SAFETY: they are not used any more, and come in the order in which they close.
            unsafe { close(object.as_ptr()) };
        }
    }
}

impl OffloadGroup {
    /// The address of the group, for operations.
    pub(crate) fn address(&self) -> fi_addr_t {
        // SAFETY: the group is open.
        unsafe { (*self.mc.as_ptr()).fi_addr }
    }
}

impl Drop for OffloadGroup {
    fn drop(&mut self) {
        // SAFETY: no operation refers to the group: it has none, or the endpoint is never driven
        // again.
        unsafe {
            close(self.mc.as_ptr().cast());
            close(self.set.as_ptr().cast());
        }
    }
}
