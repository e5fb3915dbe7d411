//! Finds the libfabric that called us among the loaded objects of this process.

use std::ffi::{CStr, CString, c_int, c_void};

use libloading::os::unix::Library;

/// The name that distributions give libfabric 1 and 2 alike.
const SONAME: &str = "libfabric.so.1";

/// The loaded objects that may be it, likeliest first: the one that called us, the one with
/// libfabric's name, and all there are (a wheel of Python renames its libraries; a program may have
/// libfabric inside it). A library that is not loaded stays so.
pub(super) fn candidates() -> impl Iterator<Item = Library> {
    caller()
        .into_iter()
        .chain(std::iter::once_with(|| Some(SONAME.to_owned())).flatten())
        .chain(std::iter::once_with(loaded_objects).flatten())
        .filter_map(|name| open(&name))
}

/// The object by that name, if it is loaded; the program and all that its symbols come from, if the
/// name is empty.
fn open(name: &str) -> Option<Library> {
    if name.is_empty() {
        return Some(Library::this());
    }
    // SAFETY: RTLD_NOLOAD: nothing is loaded, so no initialiser runs.
    unsafe { Library::open(Some(name), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }.ok()
}

/// The file of the object whose code called into ours.
fn caller() -> Option<String> {
    struct FrameSearch {
        ours: *mut c_void,
        found: Option<String>,
    }

    /// Stops at the first frame of another object.
    extern "C" fn visit(frame: *mut UnwindContext, walk: *mut c_void) -> c_int {
        // SAFETY: `walk` is the one below, which nobody else looks at meanwhile.
        let walk = unsafe { &mut *walk.cast::<FrameSearch>() };
        // SAFETY: the unwinder hands out a valid frame.
        let address = unsafe { _Unwind_GetIP(frame) };
        match object_at(address as *const c_void) {
            Some((base, _)) if base == walk.ours => URC_NO_REASON,
            Some((_, name)) => {
                walk.found = name.to_str().ok().map(str::to_owned);
                URC_NORMAL_STOP
            }
            None => URC_NORMAL_STOP,
        }
    }

    let (ours, _) = object_at(caller as *const c_void)?;
    let mut walk = FrameSearch { ours, found: None };
    // SAFETY: `visit` has the signature of _Unwind_Trace_Fn, does not unwind, and `walk` lives
    // through the call.
    unsafe { _Unwind_Backtrace(visit, (&raw mut walk).cast()) };
    walk.found
}

/// Base address and file name of the object that an address lies in.
fn object_at(address: *const c_void) -> Option<(*mut c_void, CString)> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` has room for the result.
    if unsafe { libc::dladdr(address, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: filled in, since the result was not 0; and zeros would be valid too.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of an object that is loaded, ended by 0; it is copied at once.
    let name = unsafe { CStr::from_ptr(info.dli_fname) }.to_owned();
    Some((info.dli_fbase, name))
}

/// The names of all loaded objects, in the order of loading; the program's is empty.
fn loaded_objects() -> Vec<String> {
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        names: *mut c_void,
    ) -> c_int {
        // SAFETY: `names` is the one below; the loader holds its lock and hands out a valid entry.
        let (names, name) = unsafe { (&mut *names.cast::<Vec<String>>(), (*info).dlpi_name) };
        if !name.is_null() {
            // SAFETY: the loader's name of the object, ended by 0.
            if let Ok(name) = unsafe { CStr::from_ptr(name) }.to_str() {
                names.push(name.to_owned());
            }
        }
        0
    }

    let mut names: Vec<String> = Vec::new();
    // SAFETY: `visit` has the signature asked for, and `names` lives through the call. Opening them
    // waits until the loader's lock is free again.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut names).cast()) };
    names
}

// The unwinder of the C compiler's support library, which Rust's standard library brings.

/// A frame.
#[repr(C)]
struct UnwindContext {
    _private: [u8; 0],
}

const URC_NO_REASON: c_int = 0;
const URC_NORMAL_STOP: c_int = 4;

unsafe extern "C" {
    fn _Unwind_Backtrace(
        visit: extern "C" fn(*mut UnwindContext, *mut c_void) -> c_int,
        argument: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(frame: *mut UnwindContext) -> usize;
}
