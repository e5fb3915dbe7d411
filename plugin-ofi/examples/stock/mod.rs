//! Stock libfabric, loaded where it is installed, through its C interface.

pub(crate) mod endpoint;
pub(crate) mod sides;

use std::ffi::{CStr, c_int};
use std::process::ExitCode;
use std::ptr::{null, null_mut};
use std::str::FromStr;

use ferro_fi::abi::{fi_ep_type, fi_info, fi_threading, fid_domain, fid_fabric, fns};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Calls an entry of an object's table.
macro_rules! call {
    ($object:expr, $table:ident . $entry:ident ( $($argument:expr),* )) => {
        ((*(*$object).$table).$entry.unwrap())($object, $($argument),*)
    };
}
pub(crate) use call;

/// The functions of libfabric that are called by name. Its objects are never closed: the process
/// ends soon.
pub(crate) struct Libfabric {
    version: u32,
    getinfo: fns::fi_getinfo,
    dupinfo: fns::fi_dupinfo,
    freeinfo: fns::fi_freeinfo,
    fabric: fns::fi_fabric,
    _library: Library,
}

impl Libfabric {
    /// Loads it.
    pub(crate) fn load() -> Result<Self, String> {
        let missing = |_| "no libfabric is installed (libfabric1)".to_owned();
        // SAFETY: libfabric's initialisers are made to be run; the signatures are those of its
        // headers.
        unsafe {
            let library =
                Library::open(Some("libfabric.so.1"), RTLD_NOW | RTLD_LOCAL).map_err(missing)?;
            let version = library.get::<fns::fi_version>(b"fi_version\0");
            Ok(Self {
                version: version.map_err(missing)?(),
                getinfo: *library.get(b"fi_getinfo\0").map_err(missing)?,
                dupinfo: *library.get(b"fi_dupinfo\0").map_err(missing)?,
                freeinfo: *library.get(b"fi_freeinfo\0").map_err(missing)?,
                fabric: *library.get(b"fi_fabric\0").map_err(missing)?,
                _library: library,
            })
        }
    }

    /// Whether it is libfabric 1, and not a later one.
    pub(crate) fn is_first(&self) -> bool {
        self.version >> 16 <= 1
    }

    /// The offers of a provider for reliable datagrams, for one thread at a time, with the hints
    /// that `want` fills in.
    pub(crate) fn find(
        &self,
        provider: &CStr,
        want: impl FnOnce(&mut fi_info),
    ) -> Result<Option<*mut fi_info>, String> {
        // SAFETY: as fi_getinfo(3) has it; the string is libc's.
        unsafe {
            let hints = (self.dupinfo)(null());
            if hints.is_null() {
                return Err("fi_allocinfo: no memory".to_owned());
            }
            (*(*hints).ep_attr).type_ = fi_ep_type::FI_EP_RDM;
            (*(*hints).domain_attr).threading = fi_threading::FI_THREAD_DOMAIN;
            (*(*hints).fabric_attr).prov_name = libc::strdup(provider.as_ptr());
            want(&mut *hints);
            let mut info = null_mut();
            let found = (self.getinfo)(self.version, null(), null(), 0, hints, &raw mut info);
            (self.freeinfo)(hints);
            Ok((found == 0).then_some(info))
        }
    }

    /// A domain of an offer that [`Self::find`] returned.
    pub(crate) fn domain(&self, info: *mut fi_info) -> Result<*mut fid_domain, String> {
        let (mut fabric, mut domain): (*mut fid_fabric, _) = (null_mut(), null_mut());
        // SAFETY: as fi_fabric(3) and fi_domain(3) have it.
        unsafe {
            let opened = (self.fabric)((*info).fabric_attr, &raw mut fabric, null_mut());
            done("fi_fabric", opened)?;
            let opened = call!(fabric, ops.domain(info, &raw mut domain, null_mut()));
            done("fi_domain", opened)?;
        }
        Ok(domain)
    }
}

/// The result of a call, by its return code.
pub(crate) fn done(what: &str, code: c_int) -> Result<(), String> {
    match code {
        0 => Ok(()),
        code => Err(format!("{what}: {code}")),
    }
}

/// The end of a program, which prints the reason of a failure.
pub(crate) fn ended(program: &str, ran: Result<(), String>) -> ExitCode {
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{program}: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The number that a text stands for.
pub(crate) fn number<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| format!("\"{text}\" is no number"))
}

/// Bytes as two digits each.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    digits.concat()
}

/// The bytes of such digits.
pub(crate) fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let pairs = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    pairs
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(|| "an address that is not hexadecimal".to_owned())
}
