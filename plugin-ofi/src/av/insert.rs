//! The three calls that insert addresses (fi_av(3)).

use std::ffi::{c_char, c_int, c_void};

use ferrofabric_av::{InsertReport, InsertRequest, Services};
use ferrofabric_contracts::addr::SOCKADDR_IN_LEN;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::info::AddrFormat;
use ferrofabric_contracts::types::{AvType, FiAddr};

use super::object::{AvObject, address_bytes, address_len, av_object};
use crate::abi::{FI_AUTH_KEY, FI_AV_USER_ID, FI_MORE, FI_SYNC_ERR, fi_addr_t, fid_av};
use crate::fi_addr::{given, returned};
use crate::guard::{Refused, counted};
use crate::memory::text;

/// Where a call's results go.
#[derive(Clone, Copy)]
struct InsertResults {
    addrs: *mut fi_addr_t,
    errors: *mut c_int,
    /// The addresses are IDs before they are results (`FI_AV_USER_ID`).
    ids: bool,
    /// They are handles of keys before (`FI_AUTH_KEY`).
    keys: bool,
}

// SAFETY: fi_av(3): the memory is the call's until it is over, whichever thread does it.
unsafe impl Send for InsertResults {}

impl InsertResults {
    /// The application's ID for an address.
    ///
    /// # Safety
    ///
    /// As for `write`, which has not been called for it.
    unsafe fn id(&self, i: usize) -> Option<FiAddr> {
        // SAFETY: as the caller says.
        self.ids.then(|| FiAddr(unsafe { *self.addrs.add(i) }))
    }

    /// The function that writes the result of each address of an asynchronous call.
    fn reporter(self) -> InsertReport {
        Box::new(move |i, one| {
            let results: InsertResults = self;
            // SAFETY: the memory stays until the event, which comes after this.
            unsafe { results.write(i, one) };
        })
    }

    /// Writes what became of one address.
    ///
    /// # Safety
    ///
    /// There is room for it, and the call is not over.
    unsafe fn write(&self, i: usize, one: std::result::Result<FiAddr, Errno>) {
        let (addr, errno) = match one {
            Ok(addr) => (addr, 0),
            Err(errno) => (FiAddr::NOTAVAIL, errno.0),
        };
        // SAFETY: as the caller says.
        unsafe {
            if !self.addrs.is_null() {
                self.addrs.add(i).write(returned(addr));
            }
            if !self.errors.is_null() {
                self.errors.add(i).write(errno);
            }
        }
    }
}

/// A call, after what is common to all three was looked at.
struct InsertCall<'a> {
    this: &'a AvObject,
    results: InsertResults,
    context: *mut c_void,
}

impl<'a> InsertCall<'a> {
    /// # Safety
    ///
    /// As C calls us: the address vector is open, the memory is that of the call.
    ///
    /// # Errors
    ///
    /// As fi_av(3) has it.
    unsafe fn new(
        av: *mut fid_av,
        fi_addr: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> std::result::Result<Self, Refused> {
        // SAFETY: as the caller says.
        let this: &'a AvObject = unsafe { av_object(av) };
        let ids = flags & FI_AV_USER_ID != 0;
        let keys = flags & FI_AUTH_KEY != 0;
        if flags & !(FI_MORE | FI_SYNC_ERR | FI_AV_USER_ID | FI_AUTH_KEY) != 0 {
            return Err(Errno::EBADFLAGS.into());
        }
        // IDs come in the place of results; an address vector that was opened for IDs has them set
        // one by one.
        if ids && (this.user_ids || keys || fi_addr.is_null()) {
            return Err(Errno::EINVAL.into());
        }
        if keys && fi_addr.is_null() {
            return Err(Errno::EINVAL.into());
        }
        if this.imported.is_some() && !ids {
            let error = Error::new(Errno::EINVAL, "insert", "addresses of another provider");
            let mend = "pass the owner's addresses in fi_addr, with FI_AV_USER_ID";
            return Err(error.mend(mend).into());
        }
        let tells = flags & FI_SYNC_ERR != 0;
        if tells && (context.is_null() || this.asynchronous) {
            return Err(Errno::EINVAL.into());
        }
        Ok(Self {
            this,
            results: InsertResults {
                addrs: fi_addr,
                errors: match tells {
                    true => context.cast(),
                    false => std::ptr::null_mut(),
                },
                ids,
                keys,
            },
            context,
        })
    }

    /// # Errors
    ///
    /// `EINVAL`: more addresses than a count has room for, or addresses that the caller would never
    /// learn.
    fn check(&self, count: usize) -> std::result::Result<(), Refused> {
        let unknown = self.this.av.av_type() == AvType::Map && self.results.addrs.is_null();
        match c_int::try_from(count) {
            Ok(count) if count == 0 || !unknown => Ok(()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// Inserts by `insert`, which reports each address to the function that it gets. Returns how
    /// many are in.
    fn insert_by(
        &self,
        insert: impl FnOnce(&mut dyn FnMut(usize, Result<FiAddr>)) -> Result<usize>,
    ) -> Result<usize> {
        let Some(imported) = &self.this.imported else {
            return insert(&mut self.report());
        };
        let results = self.results;
        // SAFETY: C has an address of the owner for each one of the call, which is read before the
        // result takes its place.
        let owners_of = |i| given(unsafe { *results.addrs.add(i) });
        let mut report = |i, one: Result<FiAddr>| {
            let one = one.map_err(|error| {
                tracing::warn!("address {i}: {error}");
                error.errno()
            });
            // SAFETY: C has room for a result of each address of the call.
            unsafe { results.write(i, one) };
        };
        imported.insert(&*self.this.av, &owners_of, &mut report, insert)
    }

    /// The function that gives C the result of each address of the call.
    fn report(&self) -> impl FnMut(usize, Result<FiAddr>) + use<'a> {
        let (results, av) = (self.results, &self.this.av);
        move |i, one| {
            // SAFETY: C has room for a result of each address of the call.
            let id = unsafe { results.id(i) };
            let one = match (one, id) {
                (Ok(addr), Some(id)) => av.tag_inserted(addr, id).map(|()| addr),
                (one, _) => one,
            };
            let one = one.map_err(|error| {
                tracing::warn!("address {i}: {error}");
                error.errno()
            });
            // SAFETY: C has room for a result of each address of the call.
            unsafe { results.write(i, one) };
        }
    }

    /// Begins an asynchronous call.
    fn begin(&self, wanted: InsertRequest, count: usize) -> std::result::Result<c_int, Refused> {
        let (av, context) = (&self.this.av, self.context as u64);
        let report = self.results.reporter();
        // SAFETY: there are as many handles as addresses, or none.
        match unsafe { self.handles(count) } {
            Some(handles) => av.insert_later_with_keys(wanted, &handles, context, report)?,
            None => {
                // SAFETY: there are as many IDs as addresses, or none.
                let ids = (0..count).filter_map(|i| unsafe { self.results.id(i) });
                av.insert_later(wanted, ids.collect(), context, report)?;
            }
        }
        Ok(0)
    }

    /// The handles of keys where the results go (`FI_AUTH_KEY`), none of which has been written.
    ///
    /// # Safety
    ///
    /// There are as many.
    unsafe fn handles(&self, count: usize) -> Option<Vec<FiAddr>> {
        let addrs = self.results.addrs;
        // SAFETY: as the caller says.
        let handle = |i| given(unsafe { *addrs.add(i) });
        (self.results.keys).then(|| (0..count).map(handle).collect())
    }

    fn services(&self, services: Services) -> std::result::Result<c_int, Refused> {
        let count = services.len();
        self.check(count)?;
        if self.this.asynchronous {
            return self.begin(InsertRequest::Services(services), count);
        }
        let av = &self.this.av;
        // SAFETY: there are as many handles as endpoints, or none.
        let handles = unsafe { self.handles(count) };
        let inserted = self.insert_by(|report| match &handles {
            Some(handles) => av.insert_services_with_keys(&services, handles, report),
            None => av.insert_services(&services, report),
        })?;
        self.this.receives.look_for_sources();
        Ok(inserted as c_int)
    }
}

/// The addresses of an array. Where they are a `sockaddr` of any family, each is as long as its own
/// says; one of a family that is not known, as long as the one before it (the first: as a
/// `sockaddr_in`).
///
/// # Safety
///
/// There are `count`, for as long as the iterator.
unsafe fn each<'a>(
    format: AddrFormat,
    mut addr: *const c_void,
    count: usize,
) -> impl Iterator<Item = &'a [u8]> {
    let mut known = SOCKADDR_IN_LEN;
    (0..count).map(move |_| match format {
        AddrFormat::STR => {
            // SAFETY: as the caller says: an array of pointers.
            let text = unsafe { *addr.cast::<*const c_void>() };
            addr = addr.wrapping_byte_add(size_of::<*const c_void>());
            // SAFETY: as the caller says.
            unsafe { address_bytes(format, text) }
        }
        _ => {
            let one = addr;
            // SAFETY: as the caller says.
            known = unsafe { address_len(format, one) }.unwrap_or(known);
            addr = addr.wrapping_byte_add(known);
            // SAFETY: as the caller says.
            unsafe { address_bytes(format, one) }
        }
    })
}

/// Returns how many were inserted, or 0 where events report it. With `FI_SYNC_ERR` the caller's
/// context gets an error number for each.
pub(super) unsafe extern "C" fn insert(
    av: *mut fid_av,
    addr: *const c_void,
    count: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    counted(|| {
        // SAFETY: as C calls us.
        let call = unsafe { InsertCall::new(av, fi_addr, flags, context) }?;
        if addr.is_null() && count != 0 {
            return Err(Errno::EINVAL.into());
        }
        call.check(count)?;
        let format = call.this.format;
        // SAFETY: there are `count` addresses.
        let mut names = unsafe { each(format, addr, count) };
        if call.this.asynchronous {
            // The caller's array is its own again at return.
            let listed = InsertRequest::Listed(names.map(<[u8]>::to_vec).collect());
            return call.begin(listed, count);
        }
        let av = &call.this.av;
        // SAFETY: there are as many handles as addresses, or none.
        let handles = unsafe { call.handles(count) };
        let inserted = call.insert_by(|report| match handles {
            Some(handles) => av.insert_all_with_keys(&mut names.zip(handles), report),
            None => av.insert_all(&mut names, report),
        })?;
        call.this.receives.look_for_sources();
        Ok::<_, Refused>(inserted as c_int)
    })
}

pub(super) unsafe extern "C" fn insertsvc(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    counted(|| {
        // SAFETY: as C calls us.
        let call = unsafe { InsertCall::new(av, fi_addr, flags, context) }?;
        // SAFETY: both are strings or NULL.
        let (node, service) = unsafe { (text(node), text(service)) };
        let node = node.ok_or(Errno::EINVAL)?;
        call.services(Services::one(&node, service.as_deref())?)
    })
}

pub(super) unsafe extern "C" fn insertsym(
    av: *mut fid_av,
    node: *const c_char,
    nodecnt: usize,
    service: *const c_char,
    svccnt: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    counted(|| {
        // SAFETY: as C calls us.
        let call = unsafe { InsertCall::new(av, fi_addr, flags, context) }?;
        // SAFETY: both are strings or NULL.
        let (node, service) = unsafe { (text(node), text(service)) };
        let (node, service) = (node.ok_or(Errno::EINVAL)?, service.ok_or(Errno::EINVAL)?);
        call.services(Services::range(&node, nodecnt, &service, svccnt)?)
    })
}
