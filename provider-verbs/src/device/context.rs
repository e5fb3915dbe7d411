//! An opened device.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::cancel::Uncancelled;
use ferrofabric_system::forked::Birth;
use ferrofabric_system::process_number::process_number;
use ferrofabric_verbs_sys::{
    Verbs, ibv_async_event, ibv_context, ibv_device, ibv_device_attr_ex, ibv_event_type, ibv_gid,
    ibv_gid_entry, ibv_port_attr, ibv_wc_status,
};

use super::events::DeviceEvent;
use super::facts::{self, DeviceFacts};
use super::failure::{failed, last_errno, not_loaded};
use super::fork::fork_safety;
use super::gid::{Gid, GidEntry, kind_from_sysfs};
use super::gid_choice::{GidRequest, GidSelection, choose_gid};
use super::inline::InlineLimit;
use super::last_receives::LastReceives;
use super::limits::DeviceLimits;
use super::namespace;
use super::port::{LinkLayer, PortAttributes};
use super::quirks::Quirks;

/// An opened device: the root of all objects that are made on it.
#[derive(Debug)]
pub struct DeviceContext {
    raw: NonNull<ibv_context>,
    verbs: &'static Verbs,
    name: String,
    limits: DeviceLimits,
    facts: DeviceFacts,
    quirks: Quirks,
    inline_limits: InlineLimits,
    last_receives: LastReceives,
    birth: Birth,
}

/// The inline limits of a device's queue pairs by kind, once they were found.
#[derive(Debug, Default)]
pub(crate) struct InlineLimits {
    pub(crate) rc: OnceLock<InlineLimit>,
    pub(crate) ud: OnceLock<InlineLimit>,
}

// SAFETY: libibverbs takes calls on a context from any thread, at the same time.
unsafe impl Send for DeviceContext {}
// SAFETY: as above.
unsafe impl Sync for DeviceContext {}

impl DeviceContext {
    /// The names of all devices of the machine.
    ///
    /// # Errors
    ///
    /// When libibverbs cannot be loaded, or cannot list.
    pub fn device_names() -> Result<Vec<String>> {
        let verbs = Verbs::load().map_err(not_loaded)?;
        fork_safety(verbs);
        Ok(DeviceList::read(verbs)?.names())
    }

    /// Opens a device by name.
    ///
    /// # Errors
    ///
    /// When there is no such device (the error lists those there are), or this user may not open
    /// it.
    pub fn open(name: &str) -> Result<Arc<Self>> {
        let verbs = Verbs::load().map_err(not_loaded)?;
        fork_safety(verbs);
        let list = DeviceList::read(verbs)?;
        let Some(device) = list.find(name) else {
            return Err(no_such_device(name, &list.names()));
        };
        // SAFETY: the device is in a list that is not freed yet.
        let raw = NonNull::new(unsafe { (verbs.ibv_open_device)(device) })
            .ok_or_else(|| failed(last_errno(), "open", format!("device {name}")))?;
        let guard = OpenContext { raw, verbs };
        let mut attributes = ibv_device_attr_ex::default();
        // SAFETY: just opened.
        let rc = unsafe { verbs.query_device_ex(raw.as_ptr(), &raw mut attributes) };
        if rc != 0 {
            return Err(failed(rc, "query", format!("device {name}")));
        }
        // SAFETY: just opened.
        let vectors = unsafe { (*raw.as_ptr()).num_comp_vectors };
        let limits = DeviceLimits::from_raw(&attributes, vectors);
        let facts = DeviceFacts::read(name);
        let quirks = Quirks::of(&limits, &facts);
        std::mem::forget(guard);
        Ok(Arc::new(Self {
            raw,
            verbs,
            name: name.to_owned(),
            limits,
            facts,
            quirks,
            inline_limits: InlineLimits::default(),
            last_receives: LastReceives::default(),
            birth: Birth::here(),
        }))
    }

    /// The kernel's name of the device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limits of the device.
    pub fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// The facts about the device in sysfs.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// Its known defects.
    pub fn quirks(&self) -> Quirks {
        self.quirks
    }

    /// The completion vector of this process's queues: the processes of the node take them in turn.
    pub(crate) fn vector(&self) -> u32 {
        match self.limits.completion_vectors {
            0 | 1 => 0,
            vectors => process_number() as u32 % vectors,
        }
    }

    /// The inline limits that were found so far.
    pub(crate) fn inline_limits(&self) -> &InlineLimits {
        &self.inline_limits
    }

    /// The queue pairs whose last receive an event has reported.
    pub(crate) fn last_receives(&self) -> &LastReceives {
        &self.last_receives
    }

    /// Whether this process opened the device and so owns the objects made on it. A child after
    /// `fork` inherits the context and the descriptors, through which it could destroy the objects;
    /// but the parent owns them.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.birth.is_this_process()
    }

    /// The loaded library, for calls on the control path.
    pub fn verbs(&self) -> VerbsCalls {
        VerbsCalls {
            verbs: self.verbs,
            _uncancelled: Uncancelled::begin(),
        }
    }

    /// The raw context, for calls that this layer does not have. It lives as long as `self`.
    pub fn as_ptr(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// A port's attributes as they are now.
    ///
    /// # Errors
    ///
    /// When the device has no such port.
    pub fn port(&self, number: u8) -> Result<PortAttributes> {
        let mut raw = ibv_port_attr::default();
        // SAFETY: the context is open.
        let rc = unsafe { self.verbs().query_port(self.as_ptr(), number, &raw mut raw) };
        if rc != 0 {
            let error = failed(rc, "query", format!("port {number} of {}", self.name));
            return Err(error.mend(format!("its ports are 1 to {}", self.limits.ports)));
        }
        Ok(PortAttributes::from_raw(number, &raw))
    }

    /// A port's GIDs, empty slots left out, in the order of their slots.
    ///
    /// # Errors
    ///
    /// When the table cannot be read.
    pub fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>> {
        let slots: u32 = (1..=self.limits.ports)
            .map(|number| Ok(self.port(number)?.gid_slots))
            .sum::<Result<u32>>()?;
        let mut raw = vec![ibv_gid_entry::default(); slots as usize];
        // SAFETY: the context is open, and the array has the stated length.
        let count = unsafe {
            self.verbs
                .query_gid_table(self.as_ptr(), raw.as_mut_ptr(), raw.len())
        };
        let Ok(count) = usize::try_from(count) else {
            return self.gid_table_by_slot(port);
        };
        let mut table: Vec<_> = raw
            .iter()
            .take(count)
            .filter(|entry| entry.port_num == u32::from(port))
            .filter_map(GidEntry::from_raw)
            .collect();
        table.sort_by_key(|entry| entry.index);
        namespace::mark(&mut table);
        Ok(table)
    }

    /// The same, slot by slot and with the kinds from sysfs: for libraries and kernels that cannot
    /// hand out the table at once. Interfaces stay unknown.
    ///
    /// # Errors
    ///
    /// When the port does not exist.
    pub fn gid_table_by_slot(&self, port: u8) -> Result<Vec<GidEntry>> {
        let attributes = self.port(port)?;
        let ethernet = attributes.link_layer == LinkLayer::Ethernet;
        let types = facts::folder(&self.name).join(format!("ports/{port}/gid_attrs/types"));
        let entry = |index: u32| {
            let mut raw = ibv_gid::default();
            // SAFETY: the context is open.
            let rc = unsafe {
                (self.verbs().ibv_query_gid)(self.as_ptr(), port, index as i32, &raw mut raw)
            };
            let gid = Gid::from(raw);
            if rc != 0 || gid.is_empty() {
                return None;
            }
            let kind = kind_from_sysfs(&facts::text(types.join(index.to_string()))?, ethernet)?;
            Some(GidEntry {
                index,
                gid,
                kind,
                interface: None,
                is_elsewhere: false,
            })
        };
        Ok((0..attributes.gid_slots).filter_map(entry).collect())
    }

    /// Chooses the GID to speak from.
    ///
    /// # Errors
    ///
    /// When the port has none that can be used, or not the one asked for; the error lists what
    /// there is.
    pub fn choose_gid(&self, port: u8, request: GidRequest) -> Result<GidSelection> {
        let link = self.port(port)?.link_layer;
        choose_gid(&self.gid_table(port)?, link, request).map_err(|none| none.on(&self.name, port))
    }

    /// A slot of a port's P_Key table, in host byte order.
    ///
    /// # Errors
    ///
    /// When there is no such slot.
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16> {
        let mut pkey = 0;
        // SAFETY: the context is open.
        let rc = unsafe {
            (self.verbs().ibv_query_pkey)(self.as_ptr(), port, i32::from(index), &raw mut pkey)
        };
        if rc != 0 {
            // It returns -1, with errno in some versions only.
            return Err(failed(
                libc::EINVAL,
                "query",
                format!("P_Key {index} of {} port {port}", self.name),
            ));
        }
        Ok(u16::from_be(pkey))
    }

    /// A port's P_Key table, in host byte order; an empty slot has key 0.
    ///
    /// # Errors
    ///
    /// When the table cannot be read.
    pub fn pkey_table(&self, port: u8) -> Result<Vec<u16>> {
        let slots = self.port(port)?.pkey_slots;
        (0..slots).map(|slot| self.pkey(port, slot)).collect()
    }

    /// Readable when [`DeviceContext::take_event`] has something.
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the context.
        unsafe { BorrowedFd::borrow_raw((*self.as_ptr()).async_fd) }
    }

    /// Makes [`DeviceContext::events_fd`] not block.
    ///
    /// # Errors
    ///
    /// The system refuses it.
    pub fn set_events_nonblocking(&self) -> Result<()> {
        let fd = self.events_fd().as_raw_fd();
        // SAFETY: changes a flag of the context's own descriptor.
        let rc = unsafe {
            let flags = libc::fcntl(fd, libc::F_GETFL);
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        match rc {
            -1 => Err(failed(
                last_errno(),
                "read events of",
                format!("device {}", self.name),
            )),
            _ => Ok(()),
        }
    }

    /// Takes the next asynchronous event, passes it to `deliver` and then acknowledges it; waits
    /// for one, unless [`DeviceContext::events_fd`] was set not to block. `deliver` must not
    /// destroy the object of the event: that waits for the acknowledgement.
    ///
    /// # Errors
    ///
    /// When the device is gone. `Ok(None)`: nothing there, on a descriptor that does not block.
    pub fn take_event<R>(&self, deliver: impl FnOnce(DeviceEvent) -> R) -> Result<Option<R>> {
        let mut raw = ibv_async_event::default();
        // SAFETY: the context is open.
        if unsafe { (self.verbs().ibv_get_async_event)(self.as_ptr(), &raw mut raw) } != 0 {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => Err(failed(
                    errno,
                    "read events of",
                    format!("device {}", self.name),
                )),
            };
        }
        // SAFETY: just read, acknowledged only below.
        let delivered = deliver(unsafe { DeviceEvent::from_raw(&raw) });
        // SAFETY: each event is acknowledged once.
        unsafe { (self.verbs().ibv_ack_async_event)(&raw mut raw) };
        Ok(Some(delivered))
    }

    /// A completion's status in words.
    pub fn status_text(&self, status: ibv_wc_status) -> &'static str {
        // SAFETY: takes any number, returns a constant.
        unsafe { constant_text((self.verbs.ibv_wc_status_str)(status)) }
    }

    /// An event's kind in words.
    pub fn event_text(&self, kind: ibv_event_type) -> &'static str {
        // SAFETY: as above.
        unsafe { constant_text((self.verbs.ibv_event_type_str)(kind)) }
    }
}

/// The loaded library. While this value exists the calling thread is not cancelled: most calls are
/// reads and writes of descriptors.
#[derive(Debug)]
pub struct VerbsCalls {
    verbs: &'static Verbs,
    _uncancelled: Uncancelled,
}

impl std::ops::Deref for VerbsCalls {
    type Target = Verbs;

    fn deref(&self) -> &Verbs {
        self.verbs
    }
}

impl Drop for DeviceContext {
    fn drop(&mut self) {
        if !self.is_own() {
            return;
        }
        drop(OpenContext {
            raw: self.raw,
            verbs: self.verbs,
        });
    }
}

impl AsFd for DeviceContext {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events_fd()
    }
}

/// Closes the device when dropped.
struct OpenContext {
    raw: NonNull<ibv_context>,
    verbs: &'static Verbs,
}

impl Drop for OpenContext {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; the objects made on it held it and are gone.
        let rc = unsafe { (self.verbs.ibv_close_device)(self.raw.as_ptr()) };
        if rc != 0 {
            tracing::warn!(
                "closing a device failed: {}",
                std::io::Error::last_os_error()
            );
        }
    }
}

/// The list returned by `ibv_get_device_list`.
struct DeviceList {
    list: *mut *mut ibv_device,
    count: usize,
    verbs: &'static Verbs,
}

impl DeviceList {
    fn read(verbs: &'static Verbs) -> Result<Self> {
        let mut count = 0;
        // SAFETY: writes the count.
        let list = unsafe { (verbs.ibv_get_device_list)(&raw mut count) };
        if list.is_null() {
            match last_errno() {
                // The kernel has no RDMA, or its modules are not loaded.
                libc::ENOSYS | libc::ENOENT | libc::ENODEV => count = 0,
                errno => return Err(failed(errno, "list", "RDMA devices")),
            }
        }
        Ok(Self {
            list,
            count: usize::try_from(count).unwrap_or(0),
            verbs,
        })
    }

    fn devices(&self) -> impl Iterator<Item = *mut ibv_device> + '_ {
        // SAFETY: the list holds `count` entries.
        (0..self.count).map(|index| unsafe { *self.list.add(index) })
    }

    fn name(&self, device: *mut ibv_device) -> String {
        // SAFETY: a device of the list has a name that lives as long.
        unsafe { CStr::from_ptr((self.verbs.ibv_get_device_name)(device)) }
            .to_string_lossy()
            .into_owned()
    }

    fn names(&self) -> Vec<String> {
        self.devices().map(|device| self.name(device)).collect()
    }

    fn find(&self, name: &str) -> Option<*mut ibv_device> {
        self.devices().find(|&device| self.name(device) == name)
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if !self.list.is_null() {
            // SAFETY: freed once; opened devices hold their own reference.
            unsafe { (self.verbs.ibv_free_device_list)(self.list) };
        }
    }
}

fn no_such_device(name: &str, there: &[String]) -> Error {
    let error = Error::new(Errno::ENODEV, "open", format!("device {name}"));
    if there.is_empty() {
        error.mend(
            "this machine has no RDMA device; `rdma link add rxe0 type rxe netdev eth0` makes a Soft-RoCE one, where the \
             kernel has rdma_rxe",
        )
    } else {
        error.mend(format!("there are: {}", there.join(", ")))
    }
}

/// # Safety
///
/// `text` is null or a string that is never freed.
unsafe fn constant_text(text: *const std::ffi::c_char) -> &'static str {
    if text.is_null() {
        return "unknown";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }
        .to_str()
        .unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_device_is_refused_with_those_there_are() {
        let text = no_such_device("mlx9_0", &["rxe0".into(), "rxe1".into()]).to_string();
        assert!(
            text.contains("mlx9_0") && text.contains("rxe0, rxe1"),
            "{text}"
        );
        assert!(
            no_such_device("mlx9_0", &[])
                .to_string()
                .contains("no RDMA device")
        );
    }
}
