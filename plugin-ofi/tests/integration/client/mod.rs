//! An application of libfabric's: it loads the stock library, which loads the plugin, and calls
//! objects through their tables, as the inline functions of the headers do.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test program uses a part of it for itself, and a test may panic"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::{null, null_mut};

use ferro_fi::abi::{
    FI_DIRECTED_RECV, FI_ENABLE, FI_RECV, FI_SEND, FI_TAGGED, FI_VERSION, fi_addr_t, fi_av_attr,
    fi_av_type, fi_cntr_attr, fi_cq_attr, fi_cq_format, fi_cq_tagged_entry, fi_ep_type, fi_eq_attr,
    fi_fabric_attr, fi_info, fi_threading, fi_wait_obj, fid, fid_av, fid_cntr, fid_cq, fid_domain,
    fid_ep, fid_eq, fid_fabric, fid_mr, fns,
};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Calls an entry of an object's table.
macro_rules! call {
    ($object:expr, $table:ident . $entry:ident ( $($argument:expr),* )) => {
        ((*(*$object).$table).$entry.unwrap())($object, $($argument),*)
    };
}

/// Stock libfabric, loaded.
pub struct Libfabric {
    getinfo: fns::fi_getinfo,
    freeinfo: fns::fi_freeinfo,
    dupinfo: fns::fi_dupinfo,
    fabric: fns::fi_fabric,
    tostr: unsafe extern "C" fn(*const c_void, u32) -> *const c_char,
    /// Its version.
    pub version: u32,
    /// Where it is.
    pub path: PathBuf,
    _library: Library,
}

/// The libraries that may be there: the system's, and the one that MPICH brings.
fn candidates() -> Vec<PathBuf> {
    let made = std::env::var_os("FERRO_MPI")
        .map(PathBuf::from)
        .or_else(|| {
            let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
            let script = above
                .map(|folder| folder.join("ci/mpi"))
                .find(|f| f.exists())?;
            let found = Command::new(script).arg("--find").output().ok()?;
            let folder = String::from_utf8(found.stdout).ok()?;
            (found.status.success()).then(|| PathBuf::from(folder.trim()))
        });
    let mut all = vec![PathBuf::from("libfabric.so.1")];
    all.extend(made.map(|folder| folder.join("mpich/lib/mpich/libfabric.so.1")));
    all
}

impl Libfabric {
    /// Loads the first that is new enough. `None`: there is none here.
    ///
    /// The caller has set where it finds the plugin.
    pub fn load() -> Option<Self> {
        candidates().iter().find_map(|path| {
            // SAFETY: libfabric's initialisers are made to be run.
            let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.ok()?;
            // SAFETY: the signatures are those of its headers.
            unsafe {
                let get_version = *library.get::<fns::fi_version>(b"fi_version\0").ok()?;
                let version = get_version();
                (version >= FI_VERSION(2, 0)).then_some(())?;
                Some(Self {
                    getinfo: *library.get(b"fi_getinfo\0").ok()?,
                    freeinfo: *library.get(b"fi_freeinfo\0").ok()?,
                    dupinfo: *library.get(b"fi_dupinfo\0").ok()?,
                    fabric: *library.get(b"fi_fabric\0").ok()?,
                    tostr: *library.get(b"fi_tostr\0").ok()?,
                    version,
                    // Another thread of the tests may have loaded one, which has the name, too.
                    path: path_of(get_version as *const c_void),
                    _library: library,
                })
            }
        })
    }

    /// The first offer for reliable tagged messages, of a domain or (empty) of any.
    pub fn discover(&self, domain: &str, threading: fi_threading) -> Info<'_> {
        // SAFETY: as fi_getinfo(3) has it; the strings are libc's.
        unsafe {
            let hints = (self.dupinfo)(null());
            assert!(!hints.is_null());
            (*hints).caps = FI_TAGGED | FI_DIRECTED_RECV;
            (*(*hints).ep_attr).type_ = fi_ep_type::FI_EP_RDM;
            (*(*hints).domain_attr).threading = threading;
            if !domain.is_empty() {
                (*(*hints).domain_attr).name = owned_string(domain);
            }
            (*(*hints).fabric_attr).prov_name = libc::strdup(c"ferro".as_ptr());
            let mut info = null_mut();
            let found = (self.getinfo)(self.version, null(), null(), 0, hints, &raw mut info);
            (self.freeinfo)(hints);
            assert_eq!(found, 0, "no offer of {domain}");
            Info {
                library: self,
                info,
            }
        }
    }
}

/// The library that has a function.
fn path_of(function: *const c_void) -> PathBuf {
    let mut found = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: there is room for the result, whose name is there as long as the library.
    unsafe {
        assert_ne!(libc::dladdr(function, found.as_mut_ptr()), 0);
        let name = CStr::from_ptr(found.assume_init().dli_fname);
        PathBuf::from(name.to_str().unwrap())
    }
}

/// A string for an info, which frees it.
pub fn owned_string(text: &str) -> *mut c_char {
    // Of a constant without a NUL, LLVM makes a `strndup` that fits a `strdup`, which reads on.
    let text = CString::new(text).unwrap();
    // SAFETY: the text ends with a NUL.
    unsafe { libc::strdup(text.as_ptr()) }
}

impl Libfabric {
    /// Hints of this provider, that request nothing else and support nothing (`fi_allocinfo`).
    pub fn hints(&self) -> Info<'_> {
        self.hints_of(c"ferro")
    }

    /// The same of another provider.
    pub fn hints_of(&self, provider: &CStr) -> Info<'_> {
        // SAFETY: as fi_getinfo(3) has it; the strings are libc's.
        let info = unsafe {
            let hints = (self.dupinfo)(null());
            assert!(!hints.is_null());
            (*(*hints).fabric_attr).prov_name = libc::strdup(provider.as_ptr());
            hints
        };
        Info {
            library: self,
            info,
        }
    }

    /// `fi_getinfo`: a list, or the error.
    pub fn ask(
        &self,
        version: u32,
        node: Option<&CStr>,
        service: Option<&CStr>,
        flags: u64,
        hints: Option<&Info<'_>>,
    ) -> Result<Info<'_>, c_int> {
        let mut info = null_mut();
        let string = |text: Option<&CStr>| text.map_or(null(), CStr::as_ptr);
        let hints = hints.map_or(null(), |hints| hints.info.cast_const());
        // SAFETY: as fi_getinfo(3) has it.
        let found = unsafe {
            (self.getinfo)(
                version,
                string(node),
                string(service),
                flags,
                hints,
                &raw mut info,
            )
        };
        assert_eq!(found != 0, info.is_null(), "{found}");
        match found {
            0 => Ok(Info {
                library: self,
                info,
            }),
            error => Err(error),
        }
    }
}

/// An offer, or a list of them, or hints.
pub struct Info<'a> {
    library: &'a Libfabric,
    pub info: *mut fi_info,
}

impl<'a> Info<'a> {
    /// One that the library made.
    pub fn of(library: &'a Libfabric, info: *mut fi_info) -> Self {
        Self { library, info }
    }

    /// `fi_dupinfo`.
    pub fn copy(&self) -> Self {
        // SAFETY: as fi_getinfo(3) has it.
        let info = unsafe { (self.library.dupinfo)(self.info) };
        assert!(!info.is_null());
        Self {
            library: self.library,
            info,
        }
    }

    /// `fi_getinfo` with these hints.
    pub fn ask_as(&self, hints: &Info<'_>) -> Result<Info<'a>, c_int> {
        (self.library).ask(self.library.version, None, None, 0, Some(hints))
    }

    /// The version of the library.
    pub fn version(&self) -> u32 {
        self.library.version
    }

    /// `fi_fabric`.
    ///
    /// # Safety
    ///
    /// As fi_fabric(3) has it.
    pub unsafe fn open_fabric(
        &self,
        attr: *mut fi_fabric_attr,
        fabric: *mut *mut fid_fabric,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { (self.library.fabric)(attr, fabric, null_mut()) }
    }

    /// `fi_tostr`, which has one text for all threads.
    pub fn text(&self) -> String {
        // SAFETY: 0 is an info's kind (`FI_TYPE_INFO`); the text stays until the next call.
        unsafe { CStr::from_ptr((self.library.tostr)(self.info.cast(), 0)) }
            .to_string_lossy()
            .into_owned()
    }

    /// Each of the list.
    pub fn all(&self) -> impl Iterator<Item = &fi_info> {
        // SAFETY: the list is there as long as `self`.
        std::iter::successors(unsafe { self.info.as_ref() }, |info| unsafe {
            info.next.as_ref()
        })
    }
}

impl Drop for Info<'_> {
    fn drop(&mut self) {
        // SAFETY: it is ours.
        unsafe { (self.library.freeinfo)(self.info) };
    }
}

/// A fabric, a domain and an event queue.
pub struct Opened {
    pub fabric: *mut fid_fabric,
    pub domain: *mut fid_domain,
    pub eq: *mut fid_eq,
}

/// An endpoint with the objects that are bound to it.
pub struct Party {
    pub ep: *mut fid_ep,
    pub av: *mut fid_av,
    pub cq: *mut fid_cq,
    pub cntr: *mut fid_cntr,
}

/// Attributes of a table.
fn table(flags: u64) -> fi_av_attr {
    fi_av_attr {
        type_: fi_av_type::FI_AV_TABLE,
        flags,
        ..fi_av_attr::default()
    }
}

/// `fi_close`.
pub fn close(fid: *mut fid) -> c_int {
    // SAFETY: every object of the tests is open until it is closed here.
    unsafe { ((*(*fid).ops).close.unwrap())(fid) }
}

impl Opened {
    /// Opens the three.
    pub fn new(info: &Info<'_>) -> Self {
        let (mut fabric, mut domain, mut eq) = (null_mut(), null_mut(), null_mut());
        // SAFETY: as the manual pages have it, with an offer of the library's.
        unsafe {
            let open = info.library.fabric;
            assert_eq!(
                open((*info.info).fabric_attr, &raw mut fabric, null_mut()),
                0
            );
            let opened = call!(fabric, ops.domain(info.info, &raw mut domain, null_mut()));
            assert_eq!(opened, 0);
            let mut attr = fi_eq_attr {
                wait_obj: fi_wait_obj::FI_WAIT_UNSPEC,
                ..fi_eq_attr::default()
            };
            let opened = call!(fabric, ops.eq_open(&raw mut attr, &raw mut eq, null_mut()));
            assert_eq!(opened, 0);
        }
        Self { fabric, domain, eq }
    }

    /// Closes them, the innermost first.
    pub fn close(self) {
        for fid in [self.eq.cast(), self.domain.cast(), self.fabric.cast()] {
            assert_eq!(close(fid), 0);
        }
    }

    /// Opens an endpoint, bound and enabled.
    pub fn party(&self, info: &Info<'_>) -> Party {
        self.open_party(info, true, table(0))
    }

    /// The same with no counter bound to the endpoint, as MPI libraries have it.
    pub fn uncounted_party(&self, info: &Info<'_>) -> Party {
        self.open_party(info, false, table(0))
    }

    /// The same with an address vector that is opened with flags.
    pub fn party_with(&self, info: &Info<'_>, av_flags: u64) -> Party {
        self.open_party(info, false, table(av_flags))
    }

    /// The same with an address vector that has these attributes.
    pub fn party_of(&self, info: &Info<'_>, av_attr: fi_av_attr) -> Party {
        self.open_party(info, false, av_attr)
    }

    fn open_party(&self, info: &Info<'_>, counted: bool, mut av_attr: fi_av_attr) -> Party {
        let mut party = Party {
            ep: null_mut(),
            av: null_mut(),
            cq: null_mut(),
            cntr: null_mut(),
        };
        // SAFETY: as the manual pages have it.
        unsafe {
            let domain = self.domain;
            let opened = call!(
                domain,
                ops.av_open(&raw mut av_attr, &raw mut party.av, null_mut())
            );
            assert_eq!(opened, 0);
            let mut cq_attr = fi_cq_attr {
                format: fi_cq_format::FI_CQ_FORMAT_TAGGED,
                ..fi_cq_attr::default()
            };
            let opened = call!(
                domain,
                ops.cq_open(&raw mut cq_attr, &raw mut party.cq, null_mut())
            );
            assert_eq!(opened, 0);
            let mut cntr_attr = fi_cntr_attr::default();
            let opened = call!(
                domain,
                ops.cntr_open(&raw mut cntr_attr, &raw mut party.cntr, null_mut())
            );
            assert_eq!(opened, 0);
            let opened = call!(
                domain,
                ops.endpoint(info.info, &raw mut party.ep, null_mut())
            );
            assert_eq!(opened, 0);
            let fid: *mut fid = party.ep.cast();
            let ops = *(*fid).ops;
            let bind = ops.bind.unwrap();
            assert_eq!(bind(fid, party.av.cast(), 0), 0);
            assert_eq!(bind(fid, party.cq.cast(), FI_SEND | FI_RECV), 0);
            if counted {
                assert_eq!(bind(fid, party.cntr.cast(), FI_SEND | FI_RECV), 0);
            }
            assert_eq!(ops.control.unwrap()(fid, FI_ENABLE, null_mut()), 0);
        }
        party
    }

    /// Registers memory for messages.
    pub fn register(&self, memory: &mut [u8]) -> *mut fid_mr {
        let mut mr = null_mut();
        // SAFETY: as fi_mr(3) has it; the tests keep the memory.
        let registered = unsafe {
            ((*(*self.domain).mr).reg.unwrap())(
                self.domain.cast(),
                memory.as_ptr().cast(),
                memory.len(),
                FI_SEND | FI_RECV,
                0,
                0,
                0,
                &raw mut mr,
                null_mut(),
            )
        };
        assert_eq!(registered, 0);
        mr
    }
}

impl Party {
    /// Its address.
    pub fn name(&self) -> Vec<u8> {
        let mut len = 0;
        // SAFETY: as fi_getname(3) has it.
        unsafe {
            let getname = (*(*self.ep).cm).getname.unwrap();
            assert_eq!(getname(self.ep.cast(), null_mut(), &raw mut len), -257);
            let mut name = vec![0; len];
            let got = getname(self.ep.cast(), name.as_mut_ptr().cast(), &raw mut len);
            assert_eq!(got, 0);
            name
        }
    }

    /// Inserts a peer's address.
    pub fn insert(&self, name: &[u8]) -> fi_addr_t {
        let mut addr = 0;
        // SAFETY: as fi_av(3) has it.
        let inserted = unsafe {
            call!(
                self.av,
                ops.insert(name.as_ptr().cast(), 1, &raw mut addr, 0, null_mut())
            )
        };
        assert_eq!(inserted, 1);
        addr
    }

    /// `fi_tinject`.
    #[inline]
    pub fn inject(&self, bytes: &[u8], to: fi_addr_t, tag: u64) -> isize {
        // SAFETY: as fi_tagged(3) has it.
        unsafe {
            let table = &*(*self.ep).tagged;
            table.inject.unwrap()(self.ep, bytes.as_ptr().cast(), bytes.len(), to, tag)
        }
    }

    /// `fi_tsend`.
    ///
    /// # Safety
    ///
    /// The bytes stay until the send completes.
    pub unsafe fn send(&self, bytes: &[u8], desc: *mut c_void, to: fi_addr_t, tag: u64) -> isize {
        // SAFETY: as fi_tagged(3) has it.
        unsafe {
            let table = &*(*self.ep).tagged;
            let (ptr, len) = (bytes.as_ptr().cast(), bytes.len());
            table.send.unwrap()(self.ep, ptr, len, desc, to, tag, 7 as *mut c_void)
        }
    }

    /// `fi_trecv` from anybody. The tests keep the memory until it completes.
    #[inline]
    pub fn receive(&self, memory: *mut u8, len: usize, desc: *mut c_void, tag: u64) -> isize {
        // SAFETY: as fi_tagged(3) has it.
        unsafe {
            let table = &*(*self.ep).tagged;
            let context = 9 as *mut c_void;
            table.recv.unwrap()(self.ep, memory.cast(), len, desc, u64::MAX, tag, 0, context)
        }
    }

    /// `fi_cq_read` of one completion.
    #[inline]
    pub fn poll(&self, entry: &mut fi_cq_tagged_entry) -> isize {
        // SAFETY: there is room for one.
        unsafe { call!(self.cq, ops.read(std::ptr::from_mut(entry).cast(), 1)) }
    }

    /// Closes all of it, the endpoint first.
    pub fn close(self) {
        let all = [
            self.ep.cast(),
            self.cntr.cast(),
            self.cq.cast(),
            self.av.cast(),
        ];
        for fid in all {
            assert_eq!(close(fid), 0);
        }
    }
}

/// Opens every kind of object, has two endpoints of this process exchange a small and a large
/// message, and closes all.
pub fn round(info: &Info<'_>, seed: u8) {
    const LARGE: usize = 100_000;
    let opened = Opened::new(info);
    let (a, b) = (opened.party(info), opened.party(info));
    let to_b = a.insert(&b.name());
    b.insert(&a.name());
    let (sent, mut received) = (vec![seed; LARGE], vec![0u8; LARGE]);
    let mr = opened.register(&mut received);
    // SAFETY: the region is open.
    let desc = unsafe { (*mr).mem_desc };
    for (len, tag) in [(8, 1), (LARGE, 2)] {
        received.fill(!seed);
        let at = received.as_mut_ptr();
        assert_eq!(b.receive(at, LARGE, desc, tag), 0);
        let mut entry = fi_cq_tagged_entry::default();
        // SAFETY: the bytes stay until the end of this function, after the completion.
        while unsafe { a.send(&sent[..len], std::ptr::null_mut(), to_b, tag) } != 0 {
            a.poll(&mut entry);
        }
        let (mut sends, mut receives) = (0, 0);
        while sends + receives < 2 {
            sends += usize::from(a.poll(&mut entry) == 1);
            if b.poll(&mut entry) == 1 {
                receives += 1;
                assert_eq!((entry.len, entry.tag), (len, tag));
            }
        }
        assert!(received[..len] == sent[..len] && received[len..].iter().all(|x| *x == !seed));
    }
    let busy: [*mut fid; 4] = [
        opened.fabric.cast(),
        opened.domain.cast(),
        a.cq.cast(),
        b.av.cast(),
    ];
    for held in busy {
        assert_eq!(close(held), -libc::EBUSY);
    }
    assert_eq!(close(mr.cast()), 0);
    a.close();
    b.close();
    opened.close();
}
