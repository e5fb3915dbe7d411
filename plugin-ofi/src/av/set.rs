//! Sets of an address vector (fi_av_set(3)).

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::types::{AvType, FiAddr};
use ferrofabric_system::locks::Mutex;

use super::imported_set::{ImportedSet, PEER_AV};
use super::members::Members;
use crate::abi::{
    FI_ADDR_NOTAVAIL, FI_ALLGATHER_SET, FI_ALLREDUCE_SET, FI_BARRIER_SET, FI_BROADCAST_SET,
    FI_CLASS_AV_SET, FI_SCATTER_SET, Roomy, fi_addr_t, fi_av_set_attr, fi_ops, fi_ops_av_set, fid,
    fid_av, fid_av_set,
};
use crate::av::object::AvObject;
use crate::fi_addr::given;
use crate::fid::{Given, Object, SharedObject, object_of, open_on, ops_of, share_if};
use crate::guard::{Refused, control};

/// The collectives that there are, as flags of a set.
const OFFERED: u64 =
    FI_BARRIER_SET | FI_BROADCAST_SET | FI_ALLREDUCE_SET | FI_ALLGATHER_SET | FI_SCATTER_SET;

/// Members at most: `off_coll` counts ranks in 31 bits.
const MAX_MEMBERS: u64 = (1 << 31) - 1;

/// Members that a set of which this provider does not know the size may have, however few addresses
/// are resolved.
const EXPECTED_MEMBERS: usize = 1 << 20;

/// An address vector's set.
pub(crate) struct SetObject {
    members: Mutex<Members>,
    /// The set of another provider, which has the members.
    imported: Option<ImportedSet>,
    /// The address of the set, which no other set or group ever has.
    number: FiAddr,
    /// Where its members are. It stays open.
    vector: Arc<dyn SetVector>,
}

/// An address vector that has sets.
pub(crate) trait SetVector: Send + Sync {
    /// Whether an address is in, resolved or not.
    fn has(&self, addr: FiAddr) -> bool;

    /// Whether its addresses are those of a table (`FI_AV_TABLE`).
    fn is_table(&self) -> bool;

    /// How many addresses are in.
    fn count(&self) -> usize;
}

impl SetVector for Given<AvObject> {
    fn has(&self, addr: FiAddr) -> bool {
        match self.av.lookup(self.in_table(addr)) {
            Ok(_) => true,
            Err(error) => error.errno() == Errno::EAGAIN,
        }
    }

    fn is_table(&self) -> bool {
        self.av.av_type() == AvType::Table
    }

    fn count(&self) -> usize {
        self.av.count()
    }
}

// SAFETY: `fid_av_set` starts with the `fid`.
unsafe impl Object for SetObject {
    type Raw = fid_av_set;
    const CLASS: usize = FI_CLASS_AV_SET;
    const FID_OPS: &'static fi_ops = &FID_OPS;

    fn raw(&self, fid: fid) -> fid_av_set {
        let ops = OPS.as_ptr();
        fid_av_set { fid, ops }
    }
}

static FID_OPS: fi_ops = ops_of::<SetObject>();

static OPS: Roomy<fi_ops_av_set> = Roomy::new(fi_ops_av_set {
    size: size_of::<fi_ops_av_set>(),
    set_union: Some(set_union),
    intersect: Some(intersect),
    diff: Some(diff),
    insert: Some(insert),
    remove: Some(remove),
    addr: Some(addr),
});

/// A new address of a set or a group.
pub(crate) fn new_address() -> FiAddr {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    FiAddr(NEXT.fetch_add(1, Ordering::Relaxed))
}

impl SetObject {
    /// Opens a set. `context` counts where the attributes have the flag of other providers' sets.
    ///
    /// # Safety
    ///
    /// With that flag, `context` is as fi_peer(3) has it.
    pub(crate) unsafe fn open(
        vector: Arc<dyn SetVector>,
        attr: &fi_av_set_attr,
        context: *const c_void,
    ) -> Result<Self, Refused> {
        let refused = |errno, mend: &'static str| {
            let error = Error::new(errno, "open", "set of an address vector");
            Err(Refused::from(error.mend(mend)))
        };
        if attr.comm_key_size != 0 {
            return refused(Errno::EOPNOTSUPP, "there are no communication keys");
        }
        if attr.flags & !(OFFERED | PEER_AV) != 0 {
            return refused(
                Errno::EOPNOTSUPP,
                "sets have barriers, broadcasts, allreduces, allgathers and scatters",
            );
        }
        let imports = attr.flags & PEER_AV != 0;
        let none = FI_ADDR_NOTAVAIL;
        let members = match (attr.start_addr == none, attr.end_addr == none) {
            (true, true) => Members::default(),
            _ if imports => return refused(Errno::EINVAL, "the owner's set has the members"),
            (false, false) if !vector.is_table() => {
                return refused(Errno::EINVAL, "a range of addresses is one of FI_AV_TABLE");
            }
            (false, false) => members_of_range(&*vector, attr)?,
            _ => return refused(Errno::EINVAL, "set start_addr and end_addr, or neither"),
        };
        Ok(Self {
            members: Mutex::new(members),
            imported: match imports {
                // SAFETY: as the caller says.
                true => Some(unsafe { ImportedSet::of(context.cast()) }?),
                false => None,
            },
            number: new_address(),
            vector,
        })
    }
}

impl SetObject {
    /// The members at this moment. The caller has no lock.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the owner of an imported set has members that are not in the address vector, or
    /// one of them twice. `EAGAIN`: its set does not stop to grow. The owner's.
    pub(crate) fn members(&self) -> Result<Members, Errno> {
        let Some(imported) = &self.imported else {
            return Ok(self.members.lock().clone());
        };
        let addrs = imported.members(most_members(&*self.vector))?;
        let known = |addr: &&fi_addr_t| self.vector.has(given(**addr));
        let members: Members = addrs
            .iter()
            .filter(known)
            .map(|&addr| given(addr))
            .collect();
        match members.all().len() == addrs.len() {
            true => Ok(members),
            false => Err(Errno::EINVAL),
        }
    }

    /// Changes the members.
    ///
    /// # Errors
    ///
    /// `ENOSYS`: they are another provider's. Those of `change`.
    fn change(&self, change: impl FnOnce(&mut Members) -> Result<(), Errno>) -> Result<(), Errno> {
        match &self.imported {
            Some(_) => Err(Errno::ENOSYS),
            None => change(&mut self.members.lock()),
        }
    }

    /// The address of the set.
    pub(crate) fn number(&self) -> FiAddr {
        self.number
    }

    /// Whether it is a set of that address vector.
    pub(crate) fn is_of<V: SetVector>(&self, vector: &Arc<V>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.vector), Arc::as_ptr(vector))
    }
}

/// Members at most of a set of unknown size.
fn most_members(vector: &dyn SetVector) -> usize {
    vector.count().max(EXPECTED_MEMBERS)
}

/// Those addresses of a range that are in the address vector.
///
/// # Errors
///
/// `EINVAL`: the range ends before it starts, has no stride, or more addresses than the set is for.
fn members_of_range(vector: &dyn SetVector, attr: &fi_av_set_attr) -> Result<Members, Errno> {
    let distance = (attr.end_addr).checked_sub(attr.start_addr);
    let steps = distance.and_then(|distance| distance.checked_div(attr.stride));
    let steps = steps.ok_or(Errno::EINVAL)?;
    let most = MAX_MEMBERS.min(most_members(vector) as u64);
    let limit = match attr.count {
        0 => most,
        count => most.min(count as u64),
    };
    if steps >= limit {
        return Err(Errno::EINVAL);
    }
    let range = (0..=steps).map(|step| given(attr.start_addr + step * attr.stride));
    Ok(range.filter(|&addr| vector.has(addr)).collect())
}

/// `fi_av_set`.
pub(super) unsafe extern "C" fn open(
    av: *mut fid_av,
    attr: *mut fi_av_set_attr,
    set: *mut *mut fid_av_set,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as C calls us: the address vector is open, attributes are there or NULL; there is
    // room for the pointer.
    unsafe {
        open_on(av, context, set, |av: SharedObject<AvObject>| {
            SetObject::open(av, attr.as_ref().ok_or(Errno::EINVAL)?, context)
        })
    }
}

/// Changes a set by another one.
///
/// # Safety
///
/// As C calls us: both are open.
unsafe fn combine(
    dst: *mut fid_av_set,
    src: *const fid_av_set,
    change: impl FnOnce(&mut Members, &Members),
) -> c_int {
    control(|| {
        if src.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as the caller says.
        let (dst, src) = unsafe {
            (
                object_of::<SetObject>(dst),
                share_if::<SetObject>(src.cast()),
            )
        };
        let src = src.ok_or(Errno::EINVAL)?;
        if !std::ptr::addr_eq(Arc::as_ptr(&dst.vector), Arc::as_ptr(&src.vector)) {
            return Err(Errno::EINVAL);
        }
        // A copy: both may be one set, and no lock is held while another is waited for.
        let other = src.members()?;
        dst.change(|members| {
            change(members, &other);
            Ok(())
        })
    })
}

unsafe extern "C" fn set_union(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    // SAFETY: as C calls us.
    unsafe { combine(dst, src, Members::unite) }
}

unsafe extern "C" fn intersect(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    // SAFETY: as C calls us.
    unsafe { combine(dst, src, Members::intersect) }
}

unsafe extern "C" fn diff(dst: *mut fid_av_set, src: *const fid_av_set) -> c_int {
    // SAFETY: as C calls us.
    unsafe { combine(dst, src, Members::subtract) }
}

unsafe extern "C" fn insert(set: *mut fid_av_set, addr: fi_addr_t) -> c_int {
    control(|| {
        // SAFETY: as C calls us.
        let set = unsafe { object_of::<SetObject>(set) };
        match set.vector.has(given(addr)) {
            true => set.change(|members| members.insert(given(addr))),
            false => Err(Errno::EINVAL),
        }
    })
}

unsafe extern "C" fn remove(set: *mut fid_av_set, addr: fi_addr_t) -> c_int {
    control(|| {
        // SAFETY: as C calls us.
        let set = unsafe { object_of::<SetObject>(set) };
        set.change(|members| members.remove(given(addr)))
    })
}

unsafe extern "C" fn addr(set: *mut fid_av_set, coll_addr: *mut fi_addr_t) -> c_int {
    control(|| {
        if coll_addr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as C calls us: there is room for the address.
        unsafe { coll_addr.write(object_of::<SetObject>(set).number.0) };
        Ok(())
    })
}
