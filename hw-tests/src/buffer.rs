//! Registered memory for tests.

use std::ptr;
use std::sync::Arc;

use ferrofabric_verbs::raw::mr::{Access, Mr};
use ferrofabric_verbs::raw::pd::Pd;

/// Mapped and registered memory, unmapped after it is deregistered.
pub struct DeviceBuffer {
    /// Its registration; `None` only while it is dropped.
    region: Option<Mr>,
    addr: *mut u8,
    len: usize,
}

impl DeviceBuffer {
    /// Maps and registers `len` bytes.
    pub fn new(pd: &Arc<Pd>, len: usize, access: Access) -> Self {
        // SAFETY: a fresh anonymous mapping.
        let addr = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(addr, libc::MAP_FAILED, "mapping {len} bytes");
        let addr: *mut u8 = addr.cast();
        // SAFETY: mapped until `drop`, where the region goes first; no references to it are made.
        let region = unsafe { Mr::register(pd, addr, len, access) }.unwrap();
        Self {
            region: Some(region),
            addr,
            len,
        }
    }

    /// Its registration.
    pub fn region(&self) -> &Mr {
        self.region.as_ref().unwrap()
    }

    /// Writes bytes at an offset.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        // SAFETY: within the mapping.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.addr.add(offset), bytes.len()) };
    }

    /// A copy of the bytes at an offset.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: within the mapping.
        unsafe { ptr::copy_nonoverlapping(self.addr.add(offset), bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Fills it with one byte.
    pub fn fill(&self, byte: u8) {
        // SAFETY: within the mapping.
        unsafe { ptr::write_bytes(self.addr, byte, self.len) };
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        self.region = None;
        // SAFETY: mapped in `new`, and no longer registered.
        unsafe { libc::munmap(self.addr.cast(), self.len) };
    }
}

impl DeviceBuffer {
    /// Bytes that differ from place to place and from seed to seed.
    pub fn pattern(seed: u32, len: usize) -> Vec<u8> {
        let mut rng = fastrand::Rng::with_seed(seed.into());
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        bytes
    }
}
