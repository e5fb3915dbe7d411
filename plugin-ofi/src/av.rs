//! Address vectors (fi_av(3)).

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use ferrofabric_core::addr::{NATIVE_LEN, NativeAddr};
use ferrofabric_core::av::{AvAttr, AvType};
use ferrofabric_core::error::{Errno, Error};
use ferrofabric_core::fabric::Av;
use ferrofabric_core::types::FiAddr;

use crate::abi::{
    FI_CLASS_AV, FI_MORE, FI_SYMMETRIC, FI_SYNC_ERR, Roomy, fi_addr_t, fi_av_attr, fi_av_type,
    fi_ops, fi_ops_av, fid_av,
};
use crate::domain::DomainObject;
use crate::fid::{Object, new_fid, object, ops_of};
use crate::guard::{Refused, control, counted, value};
use crate::memory::{copy_address, copy_text, text};
use crate::unsupported::Unsupported;

/// An address vector.
#[repr(C)]
pub(crate) struct AvObject {
    raw: UnsafeCell<fid_av>,
    pub(crate) av: Arc<dyn Av>,
    _domain: Arc<DomainObject>,
}

// SAFETY: `raw` is C's to use; nothing of ours reads it after the object is made.
unsafe impl Send for AvObject {}
// SAFETY: as above.
unsafe impl Sync for AvObject {}

// SAFETY: `fid_av` comes first and starts with a `fid`.
unsafe impl Object for AvObject {
    type Raw = fid_av;
    const CLASS: usize = FI_CLASS_AV;
}

static FID_OPS: fi_ops = ops_of::<AvObject>();

static OPS: Roomy<fi_ops_av> = Roomy::new(fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert: Some(insert),
    insertsvc: Some(Unsupported::ENOSYS),
    insertsym: Some(Unsupported::ENOSYS),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
    av_set: Some(Unsupported::ENOSYS),
    insert_auth_key: Some(Unsupported::ENOSYS),
    lookup_auth_key: Some(Unsupported::ENOSYS),
    set_user_id: Some(Unsupported::ENOSYS),
});

impl AvObject {
    /// Opens an address vector.
    ///
    /// # Safety
    ///
    /// `attr` is there or NULL.
    pub(crate) unsafe fn open(
        domain: Arc<DomainObject>,
        attr: *mut fi_av_attr,
        context: *mut c_void,
    ) -> Result<Arc<Self>, Refused> {
        let mut wanted = AvAttr::default();
        // SAFETY: as the caller says.
        if let Some(attr) = unsafe { attr.as_mut() } {
            // SAFETY: a name is a string.
            if let Some(name) = unsafe { text(attr.name) } {
                let named = Error::new(Errno::ENOSYS, "open", format!("address vector {name}"));
                return Err(named
                    .mend("they can not be shared by name; open one of your own")
                    .into());
            }
            if attr.flags & !FI_SYMMETRIC != 0 {
                return Err(Errno::EBADFLAGS.into());
            }
            wanted.count = attr.count;
            wanted.av_type = match attr.type_ {
                fi_av_type::FI_AV_MAP => AvType::Map,
                fi_av_type::FI_AV_TABLE | fi_av_type::FI_AV_UNSPEC => AvType::Table,
                _ => return Err(Errno::EINVAL.into()),
            };
            if attr.type_ == fi_av_type::FI_AV_UNSPEC {
                attr.type_ = fi_av_type::FI_AV_TABLE;
            }
        }
        let av = domain.domain.open_av(&wanted)?;
        Ok(Arc::new(Self {
            raw: UnsafeCell::new(fid_av {
                fid: new_fid::<Self>(context, &FID_OPS),
                ops: OPS.as_ptr(),
            }),
            av,
            _domain: domain,
        }))
    }
}

/// # Safety
///
/// As C calls us: the address vector is open.
unsafe fn of<'a>(av: *const fid_av) -> &'a dyn Av {
    // SAFETY: as the caller says.
    unsafe { object::<AvObject>(av) }.av.as_ref()
}

/// Returns how many were inserted. Where the caller asks for it (`FI_SYNC_ERR`), its context gets an error number for each.
unsafe extern "C" fn insert(
    av: *mut fid_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    counted(|| {
        if flags & !(FI_MORE | FI_SYNC_ERR) != 0 {
            return Err(Errno::EBADFLAGS);
        }
        if addr.is_null() && count != 0 || c_int::try_from(count).is_err() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as C calls us.
        let av = unsafe { of(av) };
        let mut inserted = 0;
        for i in 0..count {
            // SAFETY: there are `count` addresses.
            let name = unsafe {
                std::slice::from_raw_parts(addr.cast::<u8>().add(i * NATIVE_LEN), NATIVE_LEN)
            };
            let (at, errno) = match av.insert(name) {
                Ok(at) => (at, 0),
                Err(error) => {
                    tracing::warn!("address {i} of {count}: {error}");
                    (FiAddr::NOTAVAIL, error.errno().0)
                }
            };
            inserted += c_int::from(errno == 0);
            // SAFETY: there is room for `count` results, and with the flag as many errors.
            unsafe {
                if !fi_addr.is_null() {
                    fi_addr.add(i).write(at.0);
                }
                if flags & FI_SYNC_ERR != 0 && !context.is_null() {
                    context.cast::<c_int>().add(i).write(errno);
                }
            }
        }
        Ok(inserted)
    })
}

/// Removes from the last to the first, so that a table's indices are used again from the lowest.
unsafe extern "C" fn remove(
    av: *mut fid_av,
    fi_addr: *mut fi_addr_t,
    count: usize,
    flags: u64,
) -> c_int {
    control(|| {
        if flags != 0 {
            return Err(Errno::EBADFLAGS.into());
        }
        if fi_addr.is_null() && count != 0 {
            return Err(Errno::EINVAL.into());
        }
        // SAFETY: as C calls us.
        let av = unsafe { of(av) };
        for i in (0..count).rev() {
            // SAFETY: there are `count` of them.
            av.remove(FiAddr(unsafe { *fi_addr.add(i) }))?;
        }
        Ok::<_, Refused>(())
    })
}

unsafe extern "C" fn lookup(
    av: *mut fid_av,
    fi_addr: fi_addr_t,
    addr: *mut c_void,
    addrlen: *mut usize,
) -> c_int {
    control(|| {
        // SAFETY: as C calls us.
        let name = unsafe { of(av) }.lookup(FiAddr(fi_addr))?;
        // What does not fit is cut and no error: the length tells (fi_av(3)).
        // SAFETY: the length says how much room there is.
        match unsafe { copy_address(&name.to_bytes(), addr, addrlen) } {
            Ok(()) | Err(Errno::ETOOSMALL) => Ok(()),
            Err(errno) => Err(Refused(errno)),
        }
    })
}

unsafe extern "C" fn straddr(
    _av: *mut fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    value(std::ptr::null(), || {
        if addr.is_null() || len.is_null() {
            return std::ptr::null();
        }
        // SAFETY: an address has that many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), NATIVE_LEN) };
        let text = match NativeAddr::from_bytes(bytes) {
            Ok(name) => name.to_string(),
            Err(error) => error.to_string(),
        };
        // SAFETY: `len` says how much room there is, and takes how much it would have been.
        unsafe {
            if !buf.is_null() {
                copy_text(&text, buf, *len);
            }
            *len = text.len() + 1;
        }
        buf
    })
}
