//! Address vectors (fi_av(3)).

pub(crate) mod imported;
pub(crate) mod imported_set;
mod insert;
mod keys;
pub(crate) mod members;
pub(crate) mod object;
pub(crate) mod set;

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use ferrofabric_av::{AvAttr, format};
use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::types::{AvType, FiAddr};
use ferrofabric_runtime::fabric::Av;

use crate::abi::{
    FI_AUTH_KEY, FI_AV_USER_ID, FI_CLASS_AV, FI_CLASS_MR_CACHE, FI_EVENT, FI_PEER, FI_READ,
    FI_SYMMETRIC, Roomy, fi_addr_t, fi_av_attr, fi_av_type, fi_ops, fi_ops_av, fi_peer_av_context,
    fid, fid_av,
};
use crate::domain::DomainObject;
use crate::eq::EqObject;
use crate::fi_addr::given;
use crate::fid::{Object, SharedObject, ops_of, share_if};
use crate::guard::{Refused, control, value};
use crate::memory::{copy_cut, copy_text, text};
use crate::srx::BoundReceives;
use imported::ImportedAv;
use object::{AvObject, address_bytes, av_object};

// SAFETY: `fid_av` starts with the `fid`.
unsafe impl Object for AvObject {
    type Raw = fid_av;
    const CLASS: usize = FI_CLASS_AV;
    const FID_OPS: &'static fi_ops = &FID_OPS;

    fn raw(&self, fid: fid) -> fid_av {
        let ops = OPS.as_ptr();
        fid_av { fid, ops }
    }
}

static FID_OPS: fi_ops = fi_ops {
    bind: Some(bind),
    ..ops_of::<AvObject>()
};

static OPS: Roomy<fi_ops_av> = Roomy::new(fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert: Some(insert::insert),
    insertsvc: Some(insert::insertsvc),
    insertsym: Some(insert::insertsym),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
    av_set: Some(set::open),
    insert_auth_key: Some(keys::insert_auth_key),
    lookup_auth_key: Some(keys::lookup_auth_key),
    set_user_id: Some(set_user_id),
});

impl AvObject {
    /// Opens an address vector. `context` counts where the attributes have `FI_PEER`.
    ///
    /// # Safety
    ///
    /// `attr` is there or NULL. With `FI_PEER`, `context` is as fi_peer(3) has it.
    pub(crate) unsafe fn open(
        domain: SharedObject<DomainObject>,
        attr: *mut fi_av_attr,
        context: *const c_void,
    ) -> Result<Self, Refused> {
        // SAFETY: as the caller says. The structure is the same in all versions. It may be a
        // constant.
        let given = (!attr.is_null()).then(|| unsafe { attr.read() });
        let mut imported = None;
        let wanted = match &given {
            Some(given) if given.flags & FI_PEER != 0 => {
                imported = Some(Arc::new(ImportedAv::new()));
                // SAFETY: as the caller says.
                unsafe { wanted_of_owner(&domain, given, context.cast()) }?
            }
            // SAFETY: as the caller says.
            Some(given) => unsafe { wanted(given) }?,
            None => AvAttr::default(),
        };
        let av = domain.domain.open_av(&wanted)?;
        let user_ids = wanted.user_ids && imported.is_none();
        if !attr.is_null() {
            // SAFETY: as above. The caller learns the attributes that it left open, and those that
            // differ from its own.
            unsafe { tell(attr, &wanted, &*av) };
        }
        Ok(Self {
            av,
            format: domain.domain.info().addr_format,
            asynchronous: wanted.events,
            user_ids,
            imported,
            eq: OnceLock::new(),
            receives: BoundReceives::default(),
            domain,
        })
    }
}

/// Fills in what the caller does not know of its attributes.
///
/// # Safety
///
/// The attributes are there, and those that are filled in may be written.
unsafe fn tell(attr: *mut fi_av_attr, wanted: &AvAttr, av: &dyn Av) {
    if wanted.av_type != Some(av.av_type()) {
        let type_ = match av.av_type() {
            AvType::Map => fi_av_type::FI_AV_MAP,
            AvType::Table => fi_av_type::FI_AV_TABLE,
        };
        // SAFETY: as the caller says.
        unsafe { (*attr).type_ = type_ };
    }
    if wanted.name.is_some() && wanted.map_addr != av.map_addr() {
        // SAFETY: as above.
        unsafe { (*attr).map_addr = av.map_addr() as *mut c_void };
    }
}

/// The attributes of the table behind an address vector of another provider. It reports no address
/// of its own: each is an ID, which is set after the insertion.
///
/// # Errors
///
/// `EBADFLAGS`: a flag that no address vector has. `EINVAL`: a context that is none, an attribute
/// that such a vector does not have, or a domain that imports none.
///
/// # Safety
///
/// The context is as fi_peer(3) has it.
unsafe fn wanted_of_owner(
    domain: &DomainObject,
    attr: &fi_av_attr,
    context: *const fi_peer_av_context,
) -> Result<AvAttr, Refused> {
    const OBJECT: &str = "address vector of another provider";
    let own = fi_av_attr {
        flags: attr.flags & !FI_PEER,
        ..*attr
    };
    // SAFETY: no name is read.
    unsafe {
        wanted(&fi_av_attr {
            name: std::ptr::null(),
            ..own
        })
    }?;
    let refused = |mend: &'static str| Err(Error::new(Errno::EINVAL, "import", OBJECT).mend(mend));
    domain.check_imports(OBJECT)?;
    // Insertions bring the owner's addresses, which are the same at all endpoints or not. A name is
    // that of the owner's table, which the application may not be allowed to change: the owner
    // passes on what that has, in each process.
    if own.flags & !(FI_SYMMETRIC | FI_READ) != 0 {
        refused("it has no events and no user IDs: those are the owner's")?;
    }
    if domain.is_keyed() {
        refused("its addresses have no authorization keys")?;
    }
    // SAFETY: as the caller says.
    let expected = unsafe { imported::expected_count(context) }?;
    Ok(AvAttr {
        av_type: match own.type_ {
            fi_av_type::FI_AV_UNSPEC => None,
            _ => Some(AvType::Table),
        },
        count: match own.count {
            0 => expected,
            count => count,
        },
        ep_per_node: own.ep_per_node,
        user_ids: true,
        ..AvAttr::default()
    })
}

/// The attributes in Rust's types.
///
/// # Safety
///
/// The name is a string or NULL.
unsafe fn wanted(attr: &fi_av_attr) -> Result<AvAttr, Refused> {
    if attr.flags & !(FI_EVENT | FI_READ | FI_SYMMETRIC | FI_AV_USER_ID) != 0 {
        return Err(Errno::EBADFLAGS.into());
    }
    Ok(AvAttr {
        av_type: match attr.type_ {
            fi_av_type::FI_AV_MAP => Some(AvType::Map),
            fi_av_type::FI_AV_TABLE => Some(AvType::Table),
            fi_av_type::FI_AV_UNSPEC => None,
            _ => return Err(Errno::EINVAL.into()),
        },
        rx_ctx_bits: u32::try_from(attr.rx_ctx_bits).map_err(|_| Errno::EINVAL)?,
        count: attr.count,
        ep_per_node: attr.ep_per_node,
        symmetric: attr.flags & FI_SYMMETRIC != 0,
        // SAFETY: as the caller says.
        name: unsafe { text(attr.name) }.map(|name| name.into_owned()),
        read_only: attr.flags & FI_READ != 0,
        map_addr: attr.map_addr as usize,
        user_ids: attr.flags & FI_AV_USER_ID != 0,
        events: attr.flags & FI_EVENT != 0,
        resolver: None,
    })
}

/// Binds an event queue (`fi_av_bind`, `fi_import_fid`).
unsafe extern "C" fn bind(av: *mut fid, to: *mut fid, flags: u64) -> c_int {
    control(|| {
        if to.is_null() {
            return Err(Errno::EINVAL.into());
        }
        // SAFETY: as C calls us.
        let (this, eq, class) = unsafe {
            let eq = share_if::<EqObject>(to);
            (av_object(av.cast()), eq, (*to).fclass)
        };
        // Objects that belong to libfabric or to its providers alone.
        if class >= FI_CLASS_MR_CACHE {
            return Err(Errno::ENOSYS.into());
        }
        let eq = eq.filter(|_| flags == 0).ok_or_else(|| {
            Error::new(Errno::EINVAL, "bind", "address vector")
                .mend("an event queue of this provider, without flags, is all it can be bound to")
        })?;
        this.av.bind_events(eq.events(), av as u64)?;
        // Just bound for the first time.
        let _ = this.eq.set(eq);
        Ok::<_, Refused>(())
    })
}

/// Removes those that are there; the call fails if one was not.
unsafe extern "C" fn remove(
    av: *mut fid_av,
    fi_addr: *mut fi_addr_t,
    count: usize,
    flags: u64,
) -> c_int {
    control(|| {
        if flags & !FI_AUTH_KEY != 0 || fi_addr.is_null() && count != 0 {
            return Err(Errno::EINVAL.into());
        }
        // SAFETY: as C calls us.
        let this = unsafe { av_object(av) };
        let av = &this.av;
        let mut removed = Ok(());
        for i in 0..count {
            // SAFETY: there are `count` of them.
            let addr = given(unsafe { *fi_addr.add(i) });
            let one = match flags & FI_AUTH_KEY {
                0 => match &this.imported {
                    Some(imported) => imported.remove(&**av, addr),
                    None => av.remove(addr),
                },
                _ => av.remove_auth_key(addr),
            };
            removed = removed.and(one.map_err(Refused::from));
        }
        removed
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
        let this = unsafe { av_object(av) };
        let name = format::to_bytes(
            this.format,
            &this.av.address(this.in_table(given(fi_addr)))?,
        );
        // SAFETY: the length says how much room there is.
        unsafe { copy_cut(&name, addr, addrlen) }?;
        Ok::<_, Refused>(())
    })
}

/// Sets the ID that completions report for an address from now on.
unsafe extern "C" fn set_user_id(
    av: *mut fid_av,
    fi_addr: fi_addr_t,
    user_id: fi_addr_t,
    flags: u64,
) -> c_int {
    control(|| {
        if flags & !FI_AUTH_KEY != 0 {
            return Err(Errno::EINVAL.into());
        }
        // SAFETY: as C calls us.
        let this = unsafe { av_object(av) };
        if this.imported.is_some() {
            return Err(Error::new(Errno::EINVAL, "set", "ID of an address")
                .mend("the owner's addresses are the IDs")
                .into());
        }
        match flags & FI_AUTH_KEY {
            0 => this.av.set_user_id(given(fi_addr), FiAddr(user_id))?,
            _ => (this.av).set_auth_key_user_id(given(fi_addr), FiAddr(user_id))?,
        }
        this.receives.look_for_sources();
        Ok::<_, Refused>(())
    })
}

unsafe extern "C" fn straddr(
    av: *mut fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    value(std::ptr::null(), || {
        if addr.is_null() || len.is_null() {
            return std::ptr::null();
        }
        // SAFETY: as C calls us.
        let format = unsafe { av_object(av) }.format;
        // SAFETY: as above.
        let text = match format::parse(format, unsafe { address_bytes(format, addr) }) {
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
