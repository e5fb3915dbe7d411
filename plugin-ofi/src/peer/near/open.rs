//! The objects of a provider written in C that one endpoint of ours uses: their opening, in the
//! order that `shm` and `sm2` need, and their close.

use std::ffi::{CString, c_void};
use std::fs::File;
use std::mem::offset_of;
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::cancel::Uncancelled;
use ferrofabric_system::forked::Birth;

use super::presence::{SHM, SHM_FILES};
use crate::abi::{
    FI_AV_USER_ID, FI_ENABLE, FI_PEER, FI_RECV, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_TRANSMIT,
    fi_addr_t, fi_av_attr, fi_av_type, fi_cntr_attr, fi_cq_attr, fi_msg, fi_msg_tagged, fi_ops,
    fi_ops_av, fi_ops_cm, fi_ops_cq, fi_ops_domain, fi_ops_fabric, fi_ops_msg, fi_ops_tagged,
    fi_peer_cntr_context, fi_peer_cq_context, fi_peer_srx_context, fi_rx_attr, fid, fid_av,
    fid_cntr, fid_cq, fid_domain, fid_ep,
};
use crate::peer::host_provider::ForeignInfo;
use crate::peer::owner::ForeignObjects;

/// Peers that the vector of a provider has room for.
const VECTOR_SIZE: usize = 256;

/// Most buffers of a send that goes to a provider, whatever it would take.
pub(super) const MOST_BUFFERS: usize = 4;

/// The function of another provider's table. A table of an older libfabric is shorter, one that
/// lacks an operation has NULL for it. To be used where the table is known to be there or NULL: it
/// begins with its size.
macro_rules! function {
    ($table:ident, $ops:expr, $name:ident) => {{
        let ops: *const $table = $ops;
        let end = offset_of!($table, $name) + size_of::<usize>();
        match ops.is_null() || (*ops).size < end {
            true => None,
            false => (*ops).$name,
        }
        .ok_or(Errno::ENOSYS)
    }};
}

type SendMsg = unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize;
type SendTagged = unsafe extern "C" fn(*mut fid_ep, *const fi_msg_tagged, u64) -> isize;
type ReadCq = unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize;
type InsertAv = unsafe extern "C" fn(
    *mut fid_av,
    *const c_void,
    usize,
    *mut fi_addr_t,
    u64,
    *mut c_void,
) -> std::ffi::c_int;
type RemoveAv = unsafe extern "C" fn(*mut fid_av, *mut fi_addr_t, usize, u64) -> std::ffi::c_int;

/// The objects of one endpoint at the provider. The endpoint is enabled.
///
/// Each endpoint has a domain of its own: `shm` keeps the receive context there.
pub(super) struct ForeignEndpoint {
    opened: OpenedObjects,
    send_msg: SendMsg,
    send_tagged: SendTagged,
    read_cq: ReadCq,
    insert_av: InsertAv,
    remove_av: Option<RemoveAv>,
    is_shm: bool,
}

// SAFETY: its calls are made by one thread after the other (the domain's lock is held for them),
// and nothing of it belongs to a thread.
unsafe impl Send for ForeignEndpoint {}

/// The objects that are open so far. They are closed in the order that the fields have.
struct OpenedObjects {
    ep: *mut fid_ep,
    srx: *mut fid_ep,
    /// Ours, which is not the provider's to close.
    lent_srx: *mut fid_ep,
    cq: *mut fid_cq,
    cntrs: [*mut fid_cntr; 2],
    av: *mut fid_av,
    domain: *mut fid_domain,
    /// The endpoint was enabled. `shm` can not close one whose enabling has failed.
    is_enabled: bool,
    birth: Birth,
}

impl Drop for OpenedObjects {
    fn drop(&mut self) {
        // A child of fork shares the memory that these calls would change.
        if !self.birth.is_this_process() {
            return;
        }
        if !self.ep.is_null() && !self.is_enabled {
            tracing::warn!("an endpoint of the local provider stays open: it was not enabled");
            return;
        }
        let _uncancelled = Uncancelled::begin();
        let [read, written] = self.cntrs;
        // The endpoint goes before its address vector: then the vector touches no peer's memory.
        close(self.ep.cast());
        if self.srx != self.lent_srx {
            close(self.srx.cast());
        }
        close(self.cq.cast());
        close(read.cast());
        close(written.cast());
        close(self.av.cast());
        close(self.domain.cast());
    }
}

fn close(object: *mut fid) {
    let Some(object) = NonNull::new(object) else {
        return;
    };
    // SAFETY: the object is open, and its structure begins with its `fid`.
    let closed = unsafe {
        function!(fi_ops, (*object.as_ptr()).ops, close).map(|close| close(object.as_ptr()))
    };
    if closed != Ok(0) {
        tracing::warn!("an object of the local provider does not close: {closed:?}");
    }
}

/// The result of a control call of the provider.
fn done(result: std::ffi::c_int, doing: &'static str, provider: &str) -> Result<()> {
    match result {
        0 => Ok(()),
        error => Err(Error::new(
            Errno(error.wrapping_neg()),
            doing,
            format!("the endpoint of provider {provider}"),
        )),
    }
}

/// Checks that `shm` can make the file of an endpoint: where it can not, it goes on without.
fn check_file(name: &str) -> Result<()> {
    let path = Path::new(SHM_FILES).join(name);
    let made = File::create_new(&path).and_then(|_| std::fs::remove_file(&path));
    made.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Error::new(Errno::EADDRINUSE, "create", path.display().to_string())
        }
        _ => Error::from_io(&error, "create", path.display().to_string()),
    })
}

impl ForeignEndpoint {
    /// Opens an endpoint with a name, over objects of ours.
    ///
    /// # Errors
    ///
    /// The provider's. `EADDRINUSE`: the name is taken. `ENOSYS`: it lacks a call.
    pub(super) fn open(
        provider: &'static str,
        info: &ForeignInfo,
        name: &str,
        objects: &ForeignObjects,
    ) -> Result<Self> {
        let _uncancelled = Uncancelled::begin();
        if provider == SHM {
            check_file(name)?;
        }
        let fabric = info.fabric()?.as_ptr();
        let missing = |errno| {
            Error::new(errno, "find", format!("a call of provider {provider}"))
                .mend("use the shm_provider that is the default")
        };
        // SAFETY: the fabric and the info are there, each object is open when it is used, and
        // objects begin with their `fid`. Contexts may go after a call (fi_peer(3)).
        unsafe {
            let mut opened = OpenedObjects {
                ep: null_mut(),
                // `sm2` returns no object of its own: then ours is the one to bind.
                srx: objects.srx().cast(),
                lent_srx: objects.srx().cast(),
                cq: null_mut(),
                cntrs: [null_mut(); 2],
                av: null_mut(),
                domain: null_mut(),
                is_enabled: false,
                birth: Birth::here(),
            };
            let open = function!(fi_ops_fabric, (*fabric).ops, domain).map_err(missing)?;
            done(
                open(fabric, info.as_ptr(), &raw mut opened.domain, null_mut()),
                "open",
                provider,
            )?;
            let of_domain = DomainCalls::of((*opened.domain).ops).map_err(missing)?;
            opened.open_queues(provider, &of_domain, objects)?;
            done(
                (of_domain.endpoint)(opened.domain, info.as_ptr(), &raw mut opened.ep, null_mut()),
                "open",
                provider,
            )?;
            opened.open_srx(provider, &of_domain, info, objects)?;
            opened.enable(provider, name, missing)?;
            Ok(Self {
                send_msg: function!(fi_ops_msg, (*opened.ep).msg, sendmsg).map_err(missing)?,
                send_tagged: function!(fi_ops_tagged, (*opened.ep).tagged, sendmsg)
                    .map_err(missing)?,
                read_cq: function!(fi_ops_cq, (*opened.cq).ops, read).map_err(missing)?,
                insert_av: function!(fi_ops_av, (*opened.av).ops, insert).map_err(missing)?,
                remove_av: function!(fi_ops_av, (*opened.av).ops, remove).ok(),
                is_shm: provider == SHM,
                opened,
            })
        }
    }

    /// Sends a message. Returns the provider's result.
    ///
    /// # Safety
    ///
    /// The buffers are valid for reads until the completion with this context, or with `FI_INJECT`
    /// until return.
    #[inline]
    pub(super) unsafe fn send(
        &self,
        message: &fi_msg_tagged,
        is_tagged: bool,
        flags: u64,
    ) -> isize {
        let _uncancelled = Uncancelled::begin();
        if is_tagged {
            // SAFETY: the endpoint is open, the rest is as the caller says.
            return unsafe { (self.send_tagged)(self.opened.ep, message, flags) };
        }
        let message = fi_msg {
            msg_iov: message.msg_iov,
            desc: message.desc,
            iov_count: message.iov_count,
            addr: message.addr,
            context: message.context,
            data: message.data,
        };
        // SAFETY: as above.
        unsafe { (self.send_msg)(self.opened.ep, &raw const message, flags) }
    }

    /// Makes progress.
    #[inline]
    pub(super) fn drive(&self) {
        let _uncancelled = Uncancelled::begin();
        // SAFETY: the queue is open. No entry is read: completions come by calls of the owner's.
        unsafe { (self.read_cq)(self.opened.cq, null_mut(), 0) };
    }

    /// Inserts a name. The provider reports `number` as the source of its messages. Returns the
    /// address for sends; `None` if the provider does not take it.
    pub(super) fn insert(&self, name: &str, number: u64) -> Option<fi_addr_t> {
        let _uncancelled = Uncancelled::begin();
        let name = CString::new(name).ok()?;
        let mut addr = number;
        // SAFETY: the vector is open; one name, ended by 0, and room for one address.
        let inserted = unsafe {
            (self.insert_av)(
                self.opened.av,
                name.as_ptr().cast(),
                1,
                &raw mut addr,
                FI_AV_USER_ID,
                null_mut(),
            )
        };
        (inserted == 1).then_some(addr)
    }

    /// Whether the provider takes an endpoint by a second name, as memory of another process.
    pub(super) fn has_second_names(&self) -> bool {
        self.is_shm
    }

    /// Removes the name of an endpoint of this process, whether it was inserted or has sent.
    pub(super) fn forget(&self, name: &str) {
        let Some(remove) = self.remove_av else {
            return;
        };
        let Some(mut addr) = self.insert(name, fi_addr_t::MAX) else {
            return;
        };
        let _uncancelled = Uncancelled::begin();
        // SAFETY: the vector is open, and has just returned the address.
        unsafe { remove(self.opened.av, &raw mut addr, 1, 0) };
    }
}

/// The calls that open objects on a domain.
struct DomainCalls {
    av_open: unsafe extern "C" fn(
        *mut fid_domain,
        *mut fi_av_attr,
        *mut *mut fid_av,
        *mut c_void,
    ) -> std::ffi::c_int,
    cq_open: unsafe extern "C" fn(
        *mut fid_domain,
        *mut fi_cq_attr,
        *mut *mut fid_cq,
        *mut c_void,
    ) -> std::ffi::c_int,
    cntr_open: unsafe extern "C" fn(
        *mut fid_domain,
        *mut fi_cntr_attr,
        *mut *mut fid_cntr,
        *mut c_void,
    ) -> std::ffi::c_int,
    endpoint: unsafe extern "C" fn(
        *mut fid_domain,
        *mut crate::abi::fi_info,
        *mut *mut fid_ep,
        *mut c_void,
    ) -> std::ffi::c_int,
    srx_ctx: unsafe extern "C" fn(
        *mut fid_domain,
        *mut fi_rx_attr,
        *mut *mut fid_ep,
        *mut c_void,
    ) -> std::ffi::c_int,
}

impl DomainCalls {
    /// # Safety
    ///
    /// The table is there or NULL.
    unsafe fn of(ops: *const fi_ops_domain) -> std::result::Result<Self, Errno> {
        // SAFETY: as the caller says.
        unsafe {
            Ok(Self {
                av_open: function!(fi_ops_domain, ops, av_open)?,
                cq_open: function!(fi_ops_domain, ops, cq_open)?,
                cntr_open: function!(fi_ops_domain, ops, cntr_open)?,
                endpoint: function!(fi_ops_domain, ops, endpoint)?,
                srx_ctx: function!(fi_ops_domain, ops, srx_ctx)?,
            })
        }
    }
}

impl OpenedObjects {
    /// Opens the queue and the counters over ours, and the address vector.
    ///
    /// # Safety
    ///
    /// The domain is open, and the calls are its own.
    unsafe fn open_queues(
        &mut self,
        provider: &str,
        calls: &DomainCalls,
        objects: &ForeignObjects,
    ) -> Result<()> {
        let mut queue = fi_peer_cq_context {
            size: size_of::<fi_peer_cq_context>(),
            cq: objects.cq(),
        };
        let mut attr = fi_cq_attr {
            flags: FI_PEER,
            ..Default::default()
        };
        // SAFETY: as the caller says; contexts and attributes live through each call.
        let opened = unsafe {
            (calls.cq_open)(
                self.domain,
                &raw mut attr,
                &raw mut self.cq,
                (&raw mut queue).cast(),
            )
        };
        done(opened, "open", provider)?;
        for (place, cntr) in self.cntrs.iter_mut().zip(objects.remote_cntrs()) {
            let mut counter = fi_peer_cntr_context {
                size: size_of::<fi_peer_cntr_context>(),
                cntr,
            };
            let mut attr = fi_cntr_attr {
                flags: FI_PEER,
                ..Default::default()
            };
            // SAFETY: as above.
            let opened = unsafe {
                (calls.cntr_open)(self.domain, &raw mut attr, place, (&raw mut counter).cast())
            };
            done(opened, "open", provider)?;
        }
        let mut attr = fi_av_attr {
            type_: fi_av_type::FI_AV_TABLE,
            count: VECTOR_SIZE,
            ..Default::default()
        };
        // SAFETY: as above.
        let opened =
            unsafe { (calls.av_open)(self.domain, &raw mut attr, &raw mut self.av, null_mut()) };
        done(opened, "open", provider)
    }

    /// Opens the receive context over ours.
    ///
    /// # Safety
    ///
    /// As [`open_queues`](Self::open_queues), and the info has attributes of receives.
    unsafe fn open_srx(
        &mut self,
        provider: &str,
        calls: &DomainCalls,
        info: &ForeignInfo,
        objects: &ForeignObjects,
    ) -> Result<()> {
        let mut context = fi_peer_srx_context {
            size: size_of::<fi_peer_srx_context>(),
            srx: objects.srx(),
        };
        // SAFETY: as the caller says.
        unsafe {
            let mut attr = *(*info.as_ptr()).rx_attr;
            attr.op_flags |= FI_PEER;
            done(
                (calls.srx_ctx)(
                    self.domain,
                    &raw mut attr,
                    &raw mut self.srx,
                    (&raw mut context).cast(),
                ),
                "open",
                provider,
            )
        }
    }

    /// Names, binds and enables the endpoint.
    ///
    /// # Safety
    ///
    /// All objects are open.
    unsafe fn enable(
        &mut self,
        provider: &str,
        name: &str,
        missing: impl Fn(Errno) -> Error + Copy,
    ) -> Result<()> {
        let c_name =
            CString::new(name).map_err(|_| Error::new(Errno::EINVAL, "name", "an endpoint"))?;
        // SAFETY: as the caller says; an object begins with its `fid`.
        unsafe {
            let ep: *mut fid = self.ep.cast();
            let setname = function!(fi_ops_cm, (*self.ep).cm, setname).map_err(missing)?;
            let (at, len) = (c_name.as_ptr(), c_name.as_bytes_with_nul().len());
            done(setname(ep, at.cast_mut().cast(), len), "name", provider)?;
            let bind = function!(fi_ops, (*ep).ops, bind).map_err(missing)?;
            let [read, written] = self.cntrs;
            let bindings: [(*mut fid, u64); 5] = [
                (self.av.cast(), 0),
                (self.srx.cast(), 0),
                (self.cq.cast(), FI_TRANSMIT | FI_RECV),
                (read.cast(), FI_REMOTE_READ),
                (written.cast(), FI_REMOTE_WRITE),
            ];
            for (object, flags) in bindings {
                done(bind(ep, object, flags), "bind", provider)?;
            }
            let control = function!(fi_ops, (*ep).ops, control).map_err(missing)?;
            done(control(ep, FI_ENABLE, null_mut()), "enable", provider)?;
            self.is_enabled = true;
            // `shm` takes another name if this one is in use.
            let getname = function!(fi_ops_cm, (*self.ep).cm, getname).map_err(missing)?;
            let mut actual = [0u8; 256];
            let mut len = actual.len();
            done(
                getname(ep, actual.as_mut_ptr().cast(), &raw mut len),
                "name",
                provider,
            )?;
            match actual.starts_with(c_name.as_bytes_with_nul()) {
                true => Ok(()),
                false => Err(Error::new(
                    Errno::EADDRINUSE,
                    "name",
                    format!("{name} at provider {provider}"),
                )),
            }
        }
    }
}
