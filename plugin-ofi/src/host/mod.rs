//! The libfabric that loaded us, whose functions are looked up in the running process.
//!
//! The plugin is not linked to it (docs/adr/0013): the functions found are those of the very
//! library that called `fi_prov_ini`, in the versions that are its default, so that `fi_dupinfo`
//! makes structures of its own sizes.

mod search;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use ferrofabric_contracts::error::Errno;
use ferrofabric_system::cancel::Uncancelled;
use libloading::os::unix::Library;

use crate::abi::{
    FI_VERSION, fi_fabric_attr, fi_info, fi_log_level, fi_log_subsys, fi_param_type, fi_provider,
    fid_fabric, fns,
};

/// The libfabric that loaded us.
#[derive(Debug)]
pub struct Host {
    functions: Functions,
    /// As whom we call.
    provider: NonNull<fi_provider>,
    version: u32,
    /// Keeps it loaded: threads of ours may log to it at any time.
    _library: Library,
}

// SAFETY: the functions may be called by any thread, and `provider` lives for ever and is only
// passed to them.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

static HOST: OnceLock<Host> = OnceLock::new();

impl Host {
    /// The oldest libfabric whose structures have all fields that we know how to fill in (but those
    /// at the end of `fi_domain_attr`, see `tests/integration/layout.rs`).
    pub const OLDEST: u32 = FI_VERSION(2, 0);

    /// Finds the library that called us: to be called by `fi_prov_ini`, which it has called. `None`
    /// when there is nothing to be a provider of; that is said on standard error if no libfabric
    /// can be found, and else in its log: it is too old, or we serve one already (a process may
    /// have several, or name our folder twice).
    ///
    /// # Safety
    ///
    /// `provider` lives for ever, and has its name.
    pub unsafe fn attach(provider: NonNull<fi_provider>) -> Option<&'static Self> {
        let found = search::candidates().find_map(|library| {
            let functions = Functions::of(&library)?;
            // SAFETY: it takes nothing.
            let version = unsafe { (functions.fi_version)() };
            Some(Self {
                functions,
                provider,
                version,
                _library: library,
            })
        });
        let Some(host) = found else {
            eprintln!("libferro-fi.so: no libfabric in this process offers what a provider calls");
            return None;
        };
        if host.version < Self::OLDEST {
            host.refuse("needs libfabric 2.0 or newer");
            return None;
        }
        match HOST.set(host) {
            Ok(()) => HOST.get(),
            Err(late) => {
                late.refuse("serves a libfabric of this process already");
                None
            }
        }
    }

    /// The library that [`attach`](Self::attach) found.
    #[inline]
    pub fn get() -> Option<&'static Self> {
        HOST.get()
    }

    fn refuse(&self, why: &str) {
        let (warn, core) = (fi_log_level::FI_LOG_WARN, fi_log_subsys::FI_LOG_CORE);
        if self.log_enabled(warn, core) {
            self.log(warn, core, "fi_prov_ini", line!(), why);
        }
    }

    /// Its version, as [`FI_VERSION`] puts it together.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// An `fi_info` with all that it points to, of the library's own sizes, filled with zeros:
    /// `fi_dupinfo(NULL)`. `None` when there is no memory.
    pub fn new_info(&self) -> Option<NonNull<fi_info>> {
        // SAFETY: NULL requests a new one.
        NonNull::new(unsafe { (self.functions.fi_dupinfo)(std::ptr::null()) })
    }

    /// Frees a list of `fi_info`s, with all they point to.
    ///
    /// # Safety
    ///
    /// The list was made by this library, or of parts from the C allocator, and is not used
    /// afterwards.
    pub unsafe fn free_info(&self, info: NonNull<fi_info>) {
        // SAFETY: as the caller says.
        unsafe { (self.functions.fi_freeinfo)(info.as_ptr()) };
    }

    /// The offers of this library's providers for hints, in the form that an application of
    /// [`OLDEST`](Self::OLDEST) gets: a list with at least one `fi_info`, for
    /// [`free_info`](Self::free_info). Providers that `FI_PROVIDER` excludes are among them.
    ///
    /// # Errors
    ///
    /// `ENODATA`: nothing is offered. Any that a provider returns.
    ///
    /// # Safety
    ///
    /// `hints` and all that it points to are of the library's own sizes, as
    /// [`new_info`](Self::new_info) makes them.
    pub unsafe fn offers(&self, hints: NonNull<fi_info>) -> Result<NonNull<fi_info>, Errno> {
        // SAFETY: the caller's contract.
        unsafe { self.offers_by(hints, HIDDEN) }
    }

    /// As [`offers`](Self::offers), with those of providers that work for an owner alone.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn offload_offers(
        &self,
        hints: NonNull<fi_info>,
    ) -> Result<NonNull<fi_info>, Errno> {
        // SAFETY: the caller's contract.
        unsafe { self.offers_by(hints, HIDDEN | OFFLOAD) }
    }

    /// # Safety
    ///
    /// As of [`offers`](Self::offers).
    unsafe fn offers_by(
        &self,
        hints: NonNull<fi_info>,
        flags: u64,
    ) -> Result<NonNull<fi_info>, Errno> {
        // It opens devices and files.
        let _uncancelled = Uncancelled::begin();
        let (any, mut list) = (std::ptr::null(), std::ptr::null_mut());
        // SAFETY: as the caller says; `list` has room for the result.
        let result = unsafe {
            (self.functions.fi_getinfo)(
                Self::OLDEST,
                any,
                any,
                flags,
                hints.as_ptr(),
                &raw mut list,
            )
        };
        match (result, NonNull::new(list)) {
            (0, Some(list)) => Ok(list),
            (0, None) => Err(Errno::ENODATA),
            (error, _) => Err(Errno(error.wrapping_neg())),
        }
    }

    /// Opens the fabric that an offer of another provider describes.
    ///
    /// # Errors
    ///
    /// The provider's.
    ///
    /// # Safety
    ///
    /// The attributes are those of an offer of this library.
    pub unsafe fn open_fabric(
        &self,
        attr: NonNull<fi_fabric_attr>,
    ) -> Result<NonNull<fid_fabric>, Errno> {
        let _uncancelled = Uncancelled::begin();
        let mut fabric = std::ptr::null_mut();
        // SAFETY: as the caller says; `fabric` has room for the result.
        let result = unsafe {
            (self.functions.fi_fabric)(attr.as_ptr(), &raw mut fabric, std::ptr::null_mut())
        };
        match (result, NonNull::new(fabric)) {
            (0, Some(fabric)) => Ok(fabric),
            (0, None) => Err(Errno::ENODATA),
            (error, _) => Err(Errno(error.wrapping_neg())),
        }
    }

    /// Has the library know and show a parameter of type string, `FI_FERRO_NAME`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn define_param(&self, name: &str, help: &str) -> Result<(), Errno> {
        let (name, help) = (c_string(name), c_string(help));
        // SAFETY: strings ended by 0, which are copied; the help is the one argument that the
        // format has.
        let result = unsafe {
            (self.functions.fi_param_define)(
                self.provider.as_ptr(),
                name.as_ptr(),
                fi_param_type::FI_PARAM_STRING,
                c"%s".as_ptr(),
                help.as_ptr(),
            )
        };
        match result {
            0 => Ok(()),
            error => Err(Errno(error.wrapping_neg())),
        }
    }

    /// The value of a defined parameter, if the environment or libfabric's configuration file has
    /// one.
    pub fn param(&self, name: &str) -> Option<String> {
        let name = c_string(name);
        let mut value: *const c_char = std::ptr::null();
        // SAFETY: the parameter was defined as a string, so libfabric writes a pointer, for which
        // `value` has room.
        let result = unsafe {
            (self.functions.fi_param_get)(
                self.provider.as_ptr(),
                name.as_ptr(),
                (&raw mut value).cast::<c_void>(),
            )
        };
        if result != 0 || value.is_null() {
            return None;
        }
        // SAFETY: a string of the environment or the configuration, ended by 0; it is copied at
        // once.
        let value = unsafe { CStr::from_ptr(value) };
        Some(value.to_string_lossy().into_owned())
    }

    /// Whether the log shows what we say at that level about that subsystem.
    #[inline]
    pub fn log_enabled(&self, level: fi_log_level, subsystem: fi_log_subsys) -> bool {
        // SAFETY: the provider is there.
        unsafe { (self.functions.fi_log_enabled)(self.provider.as_ptr(), level, subsystem) != 0 }
    }

    /// Writes a line to the log, whether it is enabled or not. libfabric truncates a line that is
    /// too long for its own buffer.
    pub fn log(
        &self,
        level: fi_log_level,
        subsystem: fi_log_subsys,
        function: &str,
        line: u32,
        text: &str,
    ) {
        // It writes to a stream, also within a call on the data path.
        let _uncancelled = Uncancelled::begin();
        let (function, text) = (c_string(function), c_string(&one_line(text)));
        // SAFETY: strings ended by 0; the text is the one argument that the format has.
        unsafe {
            (self.functions.fi_log)(
                self.provider.as_ptr(),
                level,
                subsystem,
                function.as_ptr(),
                c_int::try_from(line).unwrap_or(0),
                c"%s\n".as_ptr(),
                text.as_ptr(),
            );
        }
    }
}

/// Declares the functions that we call, by libfabric's names for them.
macro_rules! functions {
    ($($name:ident)*) => {
        /// Functions of the library, whose signatures are those of its headers.
        #[derive(Debug)]
        struct Functions {
            $($name: fns::$name,)*
        }

        impl Functions {
            /// `None` if a function is missing: then it is no libfabric.
            fn of(library: &Library) -> Option<Self> {
                Some(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0").as_bytes();
                        // SAFETY: a library with all of these names is libfabric, whose functions
                        // keep their signatures.
                        *unsafe { library.get::<fns::$name>(name) }.ok()?
                    },)*
                })
            }
        }
    };
}

functions! {
    fi_version fi_getinfo fi_fabric fi_dupinfo fi_freeinfo fi_param_define fi_param_get
    fi_log_enabled fi_log
}

/// The flag of `fi_getinfo` by which providers find those that `FI_PROVIDER` excludes. It stands in
/// no public header, and has this number in libfabric 2.0 to 2.6 (`OFI_GETINFO_HIDDEN`).
const HIDDEN: u64 = 1 << 60;

/// As [`HIDDEN`], for providers that work for an owner alone (`OFI_OFFLOAD_PROV_ONLY`).
const OFFLOAD: u64 = 1 << 61;

/// libfabric cuts a longer line without ending it (its buffer has 1024 bytes).
const LINE_BYTES: usize = 1000;

/// The text as one line that fits.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(LINE_BYTES));
    for c in text.chars() {
        if line.len() + c.len_utf8() > LINE_BYTES - "...".len() {
            line.push_str("...");
            break;
        }
        line.push(if c == '\n' { ' ' } else { c });
    }
    line
}

/// For C, without the zeros that would end it early.
fn c_string(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().filter(|&byte| byte != 0).collect();
    // A conversion fails for a zero byte alone, and none is left.
    CString::new(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_fits_and_is_one() {
        assert_eq!(one_line("a\nb"), "a b");
        let cut = one_line(&"\u{e4}".repeat(600));
        assert!(cut.ends_with("\u{e4}..."), "{cut}");
        assert!(cut.len() <= LINE_BYTES && cut.len() > LINE_BYTES - 5);
        assert_eq!(one_line(&"a".repeat(997)).len(), 997);
    }

    #[test]
    fn a_zero_does_not_end_a_string() {
        assert_eq!(c_string("a\0b").as_c_str(), c"ab");
    }
}
