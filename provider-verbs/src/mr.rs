//! Memory regions: memory that a device may read and write.
//!
//! The memory belongs to the caller. A region names it by address and length and never borrows it:
//! the device writes to it without the compiler's knowledge.

use std::ptr::NonNull;
use std::sync::Arc;

use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_verbs_sys::{ibv_access_flags as RawAccess, ibv_mr, ibv_sge};

use crate::device::{failed, last_errno, memory_lock_advice};
use crate::pd::Pd;

bitflags::bitflags! {
    /// The rights of accesses to a region (`ibv_reg_mr(3)`). Local reads are always allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Receives, reads and atomics of this side write it.
        const LOCAL_WRITE = RawAccess::IBV_ACCESS_LOCAL_WRITE.0;
        /// Peers write it; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = RawAccess::IBV_ACCESS_REMOTE_WRITE.0;
        /// Peers read it.
        const REMOTE_READ = RawAccess::IBV_ACCESS_REMOTE_READ.0;
        /// Peers do atomics on it; needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = RawAccess::IBV_ACCESS_REMOTE_ATOMIC.0;
        /// Windows may be bound to it.
        const WINDOW_BIND = RawAccess::IBV_ACCESS_MW_BIND.0;
        /// Remote addresses count from its start.
        const ZERO_BASED = RawAccess::IBV_ACCESS_ZERO_BASED.0;
        /// Not pinned (on-demand paging).
        const ON_DEMAND = RawAccess::IBV_ACCESS_ON_DEMAND.0;
        /// Lies in huge pages.
        const HUGE_PAGES = RawAccess::IBV_ACCESS_HUGETLB.0;
        /// Peers may flush it to visibility.
        const FLUSH_GLOBAL = RawAccess::IBV_ACCESS_FLUSH_GLOBAL.0;
        /// Peers may flush it to persistence.
        const FLUSH_PERSISTENT = RawAccess::IBV_ACCESS_FLUSH_PERSISTENT.0;
        /// The bus may reorder writes to it; dropped on a device that lacks this right.
        const RELAXED_ORDERING = RawAccess::IBV_ACCESS_RELAXED_ORDERING.0;
    }
}

impl Access {
    /// Rights that a key gives to peers.
    pub(crate) const OF_PEERS: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC)
        .union(Self::WINDOW_BIND)
        .union(Self::FLUSH_GLOBAL)
        .union(Self::FLUSH_PERSISTENT);
}

/// A registered memory region.
#[derive(Debug)]
pub struct Mr {
    raw: NonNull<ibv_mr>,
    addr: *mut u8,
    len: usize,
    access: Access,
    pd: Arc<Pd>,
}

// SAFETY: the handle is used from any thread; the memory is only named, never touched.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers `len` bytes at `addr`.
    ///
    /// # Errors
    ///
    /// When the range is not mapped, the rights contradict each other, or the memory cannot be
    /// pinned. Where the limit of locked memory is to blame, the error gives its value and how to
    /// raise it.
    ///
    /// # Safety
    ///
    /// The range must stay mapped until the region is dropped. With rights to write, nothing may
    /// hold a Rust reference to the range that a write of the device would break.
    pub unsafe fn register(
        pd: &Arc<Pd>,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Self> {
        let verbs = pd.context().verbs();
        let register = || {
            // SAFETY: the protection domain is live; the rest is the caller's promise.
            let raw = unsafe { verbs.reg_mr(pd.as_ptr(), addr.cast(), len, access.bits()) };
            let raw = NonNull::new(raw)
                .ok_or_else(|| not_registered(last_errno(), pd, addr, len, access))?;
            Ok(Self {
                raw,
                addr,
                len,
                access,
                pd: Arc::clone(pd),
            })
        };
        let region = register()?;
        match access.intersects(Access::OF_PEERS) {
            true => region.under_another_key(register),
            false => Ok(region),
        }
    }

    /// The region, by a key that no peer knows from before.
    fn under_another_key(self, register: impl Fn() -> Result<Self>) -> Result<Self> {
        let mut region = self;
        // Devices give none of these keys again while the regions exist.
        let mut by_kept_keys = Vec::new();
        while region.pd.is_kept(region.rkey()) {
            let next = register()?;
            by_kept_keys.push(std::mem::replace(&mut region, next));
        }
        Ok(region)
    }

    /// Where it starts.
    pub fn addr(&self) -> *mut u8 {
        self.addr
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The rights it was registered with.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The key for requests of this side.
    #[inline]
    pub fn lkey(&self) -> u32 {
        // SAFETY: registered, so live.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    /// The key for peers.
    #[inline]
    pub fn rkey(&self) -> u32 {
        // SAFETY: registered, so live.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    /// A scatter/gather entry for `len` bytes from `offset` on; `None` when they do not lie within
    /// the region.
    #[inline]
    pub fn sge(&self, offset: usize, len: u32) -> Option<ibv_sge> {
        let end = offset.checked_add(len as usize)?;
        let base = if self.access.contains(Access::ZERO_BASED) {
            0
        } else {
            self.addr as u64
        };
        (end <= self.len).then(|| ibv_sge {
            addr: base + offset as u64,
            length: len,
            lkey: self.lkey(),
        })
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The raw region. It lives as long as `self`.
    pub fn as_ptr(&self) -> *mut ibv_mr {
        self.raw.as_ptr()
    }

    /// Deregisters it, and returns an error if that fails; a drop only logs it.
    ///
    /// # Errors
    ///
    /// When a window is bound to it. The region is given back.
    pub fn deregister(self) -> std::result::Result<(), (Self, Error)> {
        if !self.pd.context().is_own() {
            // Dropped: a child's own copy of the memory has never been registered.
            return Ok(());
        }
        // SAFETY: deregistered once: on success nothing of `self` is used or dropped again but the
        // parent.
        let rc = unsafe { (self.pd.context().verbs().ibv_dereg_mr)(self.as_ptr()) };
        if rc != 0 {
            let error = not_deregistered(rc, &self);
            return Err((self, error));
        }
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, so the value has no second owner.
        drop(unsafe { std::ptr::read(&raw const this.pd) });
        Ok(())
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if !self.pd.context().is_own() {
            return;
        }
        // SAFETY: deregistered once.
        let rc = unsafe { (self.pd.context().verbs().ibv_dereg_mr)(self.as_ptr()) };
        if rc != 0 {
            tracing::warn!("{}", not_deregistered(rc, self));
        }
    }
}

#[cold]
fn not_registered(errno: i32, pd: &Pd, addr: *mut u8, len: usize, access: Access) -> Error {
    let name = pd.context().name();
    let error = failed(
        errno,
        "register",
        format!("{len} bytes at {addr:p} on {name} for {access:?}"),
    );
    match errno {
        libc::ENOMEM | libc::EAGAIN => match memory_lock_advice(len) {
            Some(advice) => error.mend(advice),
            None => error.mend("kernel or device has no room for so large a region: register it in parts"),
        },
        libc::EFAULT => error.mend("the range is not mapped, or it is read-only and the request needs write access; map the range, or request read access alone"),
        libc::EINVAL => error.mend(
            "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE; the device may lack one of the requested rights",
        ),
        _ => error,
    }
}

#[cold]
fn not_deregistered(rc: i32, region: &Mr) -> Error {
    failed(
        rc,
        "deregister",
        format!(
            "{} bytes at {:p} on {}",
            region.len,
            region.addr,
            region.pd.context().name()
        ),
    )
}
