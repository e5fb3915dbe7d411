//! The host's part in devices: its library, the devices of the kernel, the rights of this process.

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ferrofabric_contracts::error::Result;
use ferrofabric_verbs_sys::Verbs;

use crate::device::{DeviceContext, memory_lock_advice, not_loaded};
use crate::registration;

/// The file of libibverbs that is loaded, with links resolved: its name has the version.
///
/// # Errors
///
/// The library cannot be loaded.
pub fn library() -> Result<PathBuf> {
    let verbs = Verbs::load().map_err(not_loaded)?;
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    let function = verbs.ibv_get_device_list as *const libc::c_void;
    // SAFETY: the function belongs to a loaded library, and there is room for the answer.
    let known = unsafe { libc::dladdr(function, found.as_mut_ptr()) };
    // SAFETY: zeroes are valid, and so is the answer.
    let name = unsafe { found.assume_init() }.dli_fname;
    if known == 0 || name.is_null() {
        return Ok(PathBuf::from(Verbs::FILE));
    }
    // SAFETY: the name of a library that stays loaded.
    let name = unsafe { CStr::from_ptr(name) };
    let path = PathBuf::from(OsStr::from_bytes(name.to_bytes()));
    Ok(path.canonicalize().unwrap_or(path))
}

/// The devices that libibverbs lists, by name.
///
/// # Errors
///
/// The library cannot be loaded, or cannot list.
pub fn devices() -> Result<Vec<String>> {
    DeviceContext::device_names()
}

/// The devices that the kernel has, by name. A library without the driver of a device does not list
/// it.
pub fn kernel_devices() -> Vec<String> {
    let folder = std::fs::read_dir("/sys/class/infiniband");
    let entries = folder.into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

/// The advice for the user where the limit of locked memory is too low to register so many bytes.
pub fn memory_lock(bytes: usize) -> Option<String> {
    memory_lock_advice(bytes)
}

/// Whether the kernel reports unmapped memory to this process, so that registrations can be kept.
///
/// # Errors
///
/// It does not, for this reason.
pub fn unmap_reports() -> Result<()> {
    registration::probe_reports()
}
