//! Memory regions (fi_mr(3)): registration is passed on to the device.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::AV_AUTH_KEY;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::fabric::Mr;
use libc::iovec;

use crate::abi::{
    FI_AUTH_KEY, FI_CLASS_MR, FI_ENABLE, FI_REFRESH, Roomy, fi_mr_attr, fi_mr_auth_key, fi_ops,
    fi_ops_mr, fid, fid_mr, read_as_of,
};
use crate::av::object::AvObject;
use crate::domain::DomainObject;
use crate::fi_addr::given;
use crate::fid::{Object, SharedObject, hand_out, ops_of, share_if};
use crate::guard::{Refused, control};
use crate::memory::buffers;

/// A region.
struct MrObject {
    mr: Arc<dyn Mr>,
    _domain: SharedObject<DomainObject>,
}

// SAFETY: `fid_mr` starts with the `fid`.
unsafe impl Object for MrObject {
    type Raw = fid_mr;
    const CLASS: usize = FI_CLASS_MR;
    const FID_OPS: &'static fi_ops = &fi_ops {
        bind: Some(bind),
        control: Some(command),
        ..ops_of::<Self>()
    };

    fn raw(&self, fid: fid) -> fid_mr {
        fid_mr {
            fid,
            mem_desc: self.mr.desc().number() as usize as *mut c_void,
            key: self.mr.key(),
        }
    }
}

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
    _offset: u64,
    _requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as C calls us; the list has that many entries.
    control(|| unsafe {
        let owner = share_if::<DomainObject>(domain).ok_or(Errno::EINVAL)?;
        if is_keyed(&owner) {
            // A registration has to say which address vector's keys it has.
            return Err(Error::new(Errno::EOPNOTSUPP, "register", "memory")
                .mend("the domain was opened with FI_AV_AUTH_KEY: fi_mr_regattr says which keys")
                .into());
        }
        register(owner, (iov, count), access, flags, context, mr)
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
        // without other flags the union holds a list with that many entries.
        unsafe {
            let owner = share_if::<DomainObject>(domain).ok_or(Errno::EINVAL)?;
            let attr = read_as_of(owner.version(), attr).ok_or(Errno::EINVAL)?;
            let flags = check_key(&owner, &attr, flags)?;
            let (list, count) = (attr.__bindgen_anon_1.mr_iov, attr.iov_count);
            register(owner, (list, count), attr.access, flags, attr.context, mr)
        }
    })
}

/// Whether the domain has the authorization keys of address vectors.
fn is_keyed(domain: &DomainObject) -> bool {
    domain.domain.info().domain.auth_key_size == AV_AUTH_KEY
}

/// Looks at the keys that a region is for, and returns the other flags. Peers reach no region but
/// by messages, which their queue pairs keep apart by key, so there is nothing to restrict further.
///
/// # Safety
///
/// As C calls us.
unsafe fn check_key(domain: &DomainObject, attr: &fi_mr_attr, flags: u64) -> Result<u64, Refused> {
    if !is_keyed(domain) {
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

/// Rights to a region (fi_mr(3)).
const RIGHTS: Flags = Flags::SEND
    .union(Flags::RECV)
    .union(Flags::READ)
    .union(Flags::WRITE)
    .union(Flags::REMOTE_READ)
    .union(Flags::REMOTE_WRITE)
    .union(Flags::COLLECTIVE);

/// # Safety
///
/// The list has that many entries; the memory is the application's until it closes the region.
unsafe fn register(
    domain: SharedObject<DomainObject>,
    (list, count): (*const iovec, usize),
    access: u64,
    flags: u64,
    context: *mut c_void,
    out: *mut *mut fid_mr,
) -> Result<(), Refused> {
    if flags != 0 {
        return Err(Errno::EBADFLAGS.into());
    }
    let access = Flags::from_bits_retain(access);
    if !RIGHTS.contains(access) {
        return Err(Error::new(
            Errno::EINVAL,
            "register",
            format!("memory with access {:#x}", access.bits()),
        )
        .mend("fi_mr(3) lists the bits that are rights")
        .into());
    }
    if count != 1 || list.is_null() {
        return Err(Error::new(
            Errno::EINVAL,
            "register",
            format!("a list of {count} buffers"),
        )
        .mend("a region has one (mr_iov_limit)")
        .into());
    }
    // SAFETY: as the caller says.
    let buf = unsafe { buffers(list, 1) }[0];
    // SAFETY: the application keeps the memory until it closes the region, which drops it.
    let mr = unsafe { domain.domain.register(buf, access) }?;
    let object = MrObject {
        mr,
        _domain: domain,
    };
    // SAFETY: C gives room for the pointer.
    unsafe { hand_out(object, context, out) };
    Ok(())
}

/// Binding to an endpoint or a counter changes nothing: a region belongs to the domain, and there
/// are no remote writes for an endpoint to allow or a counter to count.
unsafe extern "C" fn bind(_mr: *mut fid, _to: *mut fid, _flags: u64) -> c_int {
    0
}

/// A region is enabled from the start, and all of its memory is registered.
unsafe extern "C" fn command(_mr: *mut fid, command: c_int, _arg: *mut c_void) -> c_int {
    match command {
        FI_ENABLE | FI_REFRESH => 0,
        _ => -Errno::ENOSYS.0,
    }
}
