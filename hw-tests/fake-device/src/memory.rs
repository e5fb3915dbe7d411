//! Memory regions: which memory requests may name.

use ferrofabric_verbs_sys::{ibv_access_flags as Access, ibv_sge};

use crate::model::DeviceModel;

/// A registered region. Local and remote key are the same.
pub(crate) struct FakeRegion {
    pub(crate) handle: usize,
    pub(crate) pd: usize,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: u32,
}

impl FakeRegion {
    fn allows(&self, pd: usize, addr: u64, len: u64, access: Access) -> bool {
        let end = addr.checked_add(len);
        self.pd == pd
            && addr >= self.addr
            && end.is_some_and(|end| end <= self.addr + self.len)
            && self.access & access.0 == access.0
    }
}

/// Reading a region from this side needs no right.
pub(crate) const NO_ACCESS: Access = Access(0);

impl DeviceModel {
    /// Whether a key gives this access to a range.
    pub(crate) fn allowed(&self, pd: usize, key: u32, addr: u64, len: u64, access: Access) -> bool {
        self.regions
            .get(&key)
            .is_some_and(|region| region.allows(pd, addr, len, access))
    }

    /// The bytes that entries name; `None` where one names what it must not.
    pub(crate) fn gather(&self, pd: usize, entries: &[ibv_sge]) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for entry in entries.iter().filter(|entry| entry.length != 0) {
            let len = u64::from(entry.length);
            if !self.allowed(pd, entry.lkey, entry.addr, len, NO_ACCESS) {
                return None;
            }
            read(entry.addr, entry.length as usize, &mut bytes);
        }
        Some(bytes)
    }

    /// Writes bytes to where entries say, which have room for them; false where one names what it
    /// must not.
    pub(crate) fn scatter(&self, pd: usize, entries: &[ibv_sge], bytes: &[u8]) -> bool {
        let mut rest = bytes;
        for entry in entries {
            let (now, later) = rest.split_at(rest.len().min(entry.length as usize));
            let len = now.len() as u64;
            if now.is_empty() {
                break;
            }
            if !self.allowed(
                pd,
                entry.lkey,
                entry.addr,
                len,
                Access::IBV_ACCESS_LOCAL_WRITE,
            ) {
                return false;
            }
            write(entry.addr, now);
            rest = later;
        }
        true
    }
}

/// Bytes that entries have room for.
pub(crate) fn room(entries: &[ibv_sge]) -> usize {
    entries.iter().map(|entry| entry.length as usize).sum()
}

/// Adds bytes of registered memory, or of an inline payload.
pub(crate) fn read(addr: u64, len: usize, into: &mut Vec<u8>) {
    // An empty entry may have no address.
    if len == 0 {
        return;
    }
    into.reserve(len);
    let end = into.len();
    // SAFETY: the application that posted the request keeps the memory valid until the request is
    // over, and has registered it; there is room for `len` bytes, which are initialized then.
    unsafe {
        std::ptr::copy_nonoverlapping(addr as *const u8, into.as_mut_ptr().add(end), len);
        into.set_len(end + len);
    }
}

/// Writes registered memory.
pub(crate) fn write(addr: u64, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    // SAFETY: as above; and memory with the right to write is the device's until the request is
    // over.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
}
