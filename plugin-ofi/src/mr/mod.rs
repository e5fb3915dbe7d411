//! Memory regions (fi_mr(3)): memory that peers may reach by a key. Registration is passed on to
//! the device.
//!
//! No offer has `FI_MR_ENDPOINT` or `FI_MR_RMA_EVENT` (fi_getinfo(3) clears modes that a provider
//! does without), so a region is enabled from the start, bound or not.

mod commands;

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

pub(crate) use commands::map_raw_key;

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::flags::{Flags, MrMode};
use ferrofabric_contracts::types::{FiAddr, IoBuf};
use ferrofabric_runtime::fabric::{Mr, MrAttr};
use libc::iovec;

use crate::abi::{
    FI_AUTH_KEY, FI_CLASS_MR, FI_HMEM_DEVICE_ONLY, FI_HMEM_HOST_ALLOC, FI_MR_DMABUF, FI_RMA_EVENT,
    Roomy, fi_hmem_iface, fi_mr_attr, fi_mr_auth_key, fi_ops, fi_ops_mr, fid, fid_mr, read_as_of,
};
use crate::av::object::AvObject;
use crate::cntr::CntrObject;
use crate::domain::{DomainObject, OwnersRegion};
use crate::fi_addr::given;
use crate::fid::{Object, SharedObject, hand_out, ops_of, share_if};
use crate::guard::{Refused, control};
use crate::memory::{buffers, key_bytes};

/// A region.
struct MrObject {
    mr: Arc<dyn Mr>,
    /// The region of the owner of an imported domain, which closes after this one.
    _owners: Option<OwnersRegion>,
    key: u64,
    /// The place that peers name for its first byte.
    first_place: u64,
    pieces: Vec<IoBuf>,
    /// Those that count operations on it: they can not be closed before it is.
    counters: Mutex<Vec<SharedObject<CntrObject>>>,
    /// The region that contains it (`base_mr`), which can not be closed before it is.
    _base: Option<SharedObject<Self>>,
    domain: SharedObject<DomainObject>,
}

// SAFETY: `fid_mr` starts with the `fid`.
unsafe impl Object for MrObject {
    type Raw = fid_mr;
    const CLASS: usize = FI_CLASS_MR;
    const FID_OPS: &'static fi_ops = &FID_OPS;

    fn raw(&self, fid: fid) -> fid_mr {
        fid_mr {
            fid,
            mem_desc: self.mr.desc().number() as usize as *mut c_void,
            key: self.key,
        }
    }
}

static FID_OPS: fi_ops = fi_ops {
    bind: Some(commands::bind),
    control: Some(commands::command),
    ..ops_of::<MrObject>()
};

/// Registration, by the domain.
pub(crate) static OPS: Roomy<fi_ops_mr> = Roomy::new(fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: Some(reg),
    regv: Some(regv),
    regattr: Some(regattr),
});

unsafe extern "C" fn reg(
    domain: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let buf = iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    };
    // SAFETY: as C calls us; the list has one entry.
    unsafe {
        regv(
            domain,
            &raw const buf,
            1,
            access,
            offset,
            key,
            flags,
            mr,
            context,
        )
    }
}

unsafe extern "C" fn regv(
    domain: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as C calls us; the list has that many entries.
    control(|| unsafe {
        let owner = share_if::<DomainObject>(domain).ok_or(Errno::EINVAL)?;
        if owner.is_keyed() {
            // A registration has to say which address vector's keys it has.
            return Err(Error::new(Errno::EOPNOTSUPP, "register", "memory")
                .mend("the domain was opened with FI_AV_AUTH_KEY: fi_mr_regattr says which keys")
                .into());
        }
        let region = WantedRegion {
            iov,
            count,
            access: Flags::from_bits_retain(access),
            offset,
            key,
            flags,
            base: None,
        };
        register(owner, &region, context, mr)
    })
}

unsafe extern "C" fn regattr(
    domain: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    control(|| {
        // SAFETY: as C calls us: attributes are NULL, or as long as in the application's version;
        // without other flags the union holds a list with that many entries; the base is a region
        // of ours, not closed, or NULL.
        unsafe {
            let owner = share_if::<DomainObject>(domain).ok_or(Errno::EINVAL)?;
            let attr = read_as_of(owner.version(), attr).ok_or(Errno::EINVAL)?;
            check_interface(&attr, flags)?;
            let base = match attr.base_mr.is_null() {
                true => None,
                false => Some(share_if(attr.base_mr.cast()).ok_or(Errno::EINVAL)?),
            };
            let region = WantedRegion {
                iov: attr.__bindgen_anon_1.mr_iov,
                count: attr.iov_count,
                access: Flags::from_bits_retain(attr.access),
                offset: attr.offset,
                key: attr.requested_key,
                flags: check_key(&owner, &attr, flags)?,
                base,
            };
            register(owner, &region, attr.context, mr)
        }
    })
}

/// Refuses memory of devices. An interface counts where `FI_HMEM` was granted alone (fi_mr(3)),
/// which nothing offers; memory of one that is known would all the same be taken for the host's.
fn check_interface(attr: &fi_mr_attr, flags: u64) -> Result<(), Refused> {
    const DEVICES: std::ops::RangeInclusive<u32> =
        fi_hmem_iface::FI_HMEM_CUDA.0..=fi_hmem_iface::FI_HMEM_SYNAPSEAI.0;
    const FLAGS: u64 = FI_HMEM_DEVICE_ONLY | FI_HMEM_HOST_ALLOC | FI_MR_DMABUF;
    let refused = |errno, what: String| {
        Refused::from(
            Error::new(errno, "register", what)
                .mend("this provider has no FI_HMEM: copy to memory of the host (FI_HMEM_SYSTEM)"),
        )
    };
    if DEVICES.contains(&attr.iface.0) {
        let what = format!("memory of a device (fi_mr_attr.iface {})", attr.iface.0);
        return Err(refused(Errno::EOPNOTSUPP, what));
    }
    if flags & FLAGS != 0 {
        let what = format!("memory with flags {:#x}", flags & FLAGS);
        return Err(refused(Errno::EBADFLAGS, what));
    }
    Ok(())
}

/// Looks at the authorization keys that a region is for, and returns the other flags. Peers reach
/// no region of a domain with the keys of address vectors but by messages, which their queue pairs
/// keep apart by key, so there is nothing to restrict further.
///
/// # Safety
///
/// As C calls us.
unsafe fn check_key(domain: &DomainObject, attr: &fi_mr_attr, flags: u64) -> Result<u64, Refused> {
    if !domain.is_keyed() {
        // SAFETY: the caller's contract.
        unsafe { check_own_key(domain, attr) }?;
        return Ok(flags);
    }
    let refused = |why: &str| {
        Refused::from(
            Error::new(Errno::EINVAL, "register", "memory with authorization keys").mend(why),
        )
    };
    if attr.auth_key_size != size_of::<fi_mr_auth_key>() || attr.auth_key.is_null() {
        return Err(refused("auth_key is a struct fi_mr_auth_key"));
    }
    // SAFETY: as the size says.
    let key = unsafe { attr.auth_key.cast::<fi_mr_auth_key>().read_unaligned() };
    if key.av.is_null() {
        return Err(refused("fi_mr_auth_key.av is NULL"));
    }
    // SAFETY: the named object is one of ours, not closed.
    let av = unsafe { share_if::<AvObject>(key.av.cast()) };
    let Some(av) = av.filter(|av| av.is_of(domain)) else {
        return Err(refused(
            "fi_mr_auth_key.av is an address vector of this domain",
        ));
    };
    let (by_key, src) = (flags & FI_AUTH_KEY != 0, given(key.src_addr));
    let restricts = domain
        .domain
        .info()
        .domain
        .caps
        .contains(Flags::DIRECTED_RECV);
    if restricts && src != FiAddr::UNSPEC {
        let is_address = av.av.lookup(src).is_ok();
        let known = match by_key {
            true => !is_address && av.av.lookup_auth_key(src).is_ok(),
            false => is_address,
        };
        if !known {
            return Err(refused(match by_key {
                true => "fi_mr_auth_key.src_addr is no key of the address vector",
                false => "fi_mr_auth_key.src_addr is no address of the address vector",
            }));
        }
    }
    Ok(flags & !FI_AUTH_KEY)
}

/// Refuses a region that only some of the domain's peers may reach.
///
/// # Safety
///
/// As C calls us.
unsafe fn check_own_key(domain: &DomainObject, attr: &fi_mr_attr) -> Result<(), Refused> {
    let rights = Flags::from_bits_retain(attr.access);
    if attr.auth_key_size == 0 || !rights.intersects(REMOTE_RIGHTS) {
        return Ok(());
    }
    // SAFETY: the caller's contract.
    let key = unsafe { key_bytes(attr.auth_key.cast(), attr.auth_key_size) }?;
    let of_domain = domain.domain.info().domain.auth_key;
    match of_domain.is_some_and(|own| own.to_bytes() == key) {
        true => Ok(()),
        false => Err(
            Error::new(Errno::EOPNOTSUPP, "register", "memory with its own key")
                .mend("all endpoints of a domain serve its regions: open a domain with that key")
                .into(),
        ),
    }
}

/// Memory to be registered, as its caller describes it.
struct WantedRegion {
    iov: *const iovec,
    count: usize,
    access: Flags,
    offset: u64,
    key: u64,
    flags: u64,
    base: Option<SharedObject<MrObject>>,
}

/// The rights of peers.
const REMOTE_RIGHTS: Flags = Flags::REMOTE_READ.union(Flags::REMOTE_WRITE);

/// Rights to a region (fi_mr(3)).
const RIGHTS: Flags = Flags::SEND
    .union(Flags::RECV)
    .union(Flags::READ)
    .union(Flags::WRITE)
    .union(Flags::REMOTE_READ)
    .union(Flags::REMOTE_WRITE)
    .union(Flags::COLLECTIVE);

/// An error about the memory or the list of a caller.
fn refused(what: String, why: &str) -> Refused {
    Error::new(Errno::EINVAL, "register", what).mend(why).into()
}

/// # Errors
///
/// `EBADFLAGS`: a flag that no region has. `EINVAL`: rights that there are not, an offset, or more
/// buffers than a region of the domain has.
fn check(domain: &DomainObject, wanted: &WantedRegion) -> Result<(), Refused> {
    // A region that counters count is as any other.
    if wanted.flags & !FI_RMA_EVENT != 0 {
        return Err(Errno::EBADFLAGS.into());
    }
    if !RIGHTS.contains(wanted.access) {
        return Err(refused(
            format!("memory with access {:#x}", wanted.access.bits()),
            "fi_mr(3) lists the bits that are rights",
        ));
    }
    if wanted.offset != 0 {
        return Err(refused(
            format!("memory at offset {}", wanted.offset),
            "fi_mr(3) reserves the offset: it is 0",
        ));
    }
    let limit = domain.domain.info().domain.mr_iov_limit;
    if wanted.count > limit {
        return Err(refused(
            format!("a list of {} buffers", wanted.count),
            "mr_iov_limit of the domain is the longest that a region has",
        ));
    }
    Ok(())
}

/// # Safety
///
/// The list has that many entries; the memory is the application's until it closes the region.
unsafe fn register(
    domain: SharedObject<DomainObject>,
    wanted: &WantedRegion,
    context: *mut c_void,
    out: *mut *mut fid_mr,
) -> Result<(), Refused> {
    check(&domain, wanted)?;
    // SAFETY: as the caller says.
    let pieces = unsafe { buffers(wanted.iov, wanted.count) };
    let Some((&memory, further)) = pieces.split_first() else {
        return Err(refused(
            "a list of no buffers".to_owned(),
            "a region has one at least",
        ));
    };
    if let Some(base) = &wanted.base {
        let is_of = std::ptr::eq(&**base.domain, &**domain);
        if !is_of || !pieces.iter().all(|piece| base.contains(piece)) {
            return Err(refused(
                "a part of a region".to_owned(),
                "base_mr is a region of this domain, and contains each buffer",
            ));
        }
    }
    let places_are_addresses = domain.requires(MrMode::VIRT_ADDR);
    let request = MrAttr {
        memory,
        further,
        access: match domain.has_remote_access() {
            true => wanted.access,
            false => wanted.access - REMOTE_RIGHTS,
        },
        key: (!domain.requires(MrMode::PROV_KEY)).then_some(wanted.key),
        first_place: match places_are_addresses {
            true => memory.addr as u64,
            false => 0,
        },
        places_are_addresses,
        elements: None,
        backing: None,
        pages_may_change: !domain.requires(MrMode::ALLOCATED),
    };
    let (access, key) = (wanted.access.bits(), wanted.key);
    let owners = match &domain.imported {
        None => None,
        // SAFETY: as the caller says.
        Some(owner) => unsafe { owner.register(wanted.iov, wanted.count, access, key) }?,
    };
    // SAFETY: the application keeps the memory until it closes the region, which drops it.
    let mr = unsafe { domain.domain.register_region(&request) }?;
    let object = MrObject {
        // Peers do not reach a region without their rights, whatever its key.
        key: request.key.unwrap_or_else(|| mr.key()),
        mr,
        _owners: owners,
        first_place: request.first_place,
        pieces: pieces.to_vec(),
        counters: Mutex::default(),
        _base: wanted.base.clone(),
        domain,
    };
    // SAFETY: C gives room for the pointer.
    unsafe { hand_out(object, context, out) };
    Ok(())
}

impl MrObject {
    /// Whether one of its pieces contains all of a buffer.
    fn contains(&self, buf: &IoBuf) -> bool {
        let within = |piece: &IoBuf| {
            let offset = buf.addr.checked_sub(piece.addr)?;
            Some(offset.checked_add(buf.len)? <= piece.len)
        };
        self.pieces.iter().any(|piece| within(piece) == Some(true))
    }
}
