//! The other side of `scripts/bench av`: the workload of `ferro bench av` over an address vector of stock libfabric's, of its
//! reliable datagrams over TCP, through its C interface.
//!
//!     av_peer ENTRIES,…
//!
//! Prints a JSON array with an object for each number of entries: `entries`, `insert`, `lookup`, `lookup_dependent`, `remove` (ns
//! an operation) and `bytes_per_entry`. Fails where there is no libfabric with such a provider.

#![allow(missing_docs, clippy::unwrap_used, reason = "a program that measures")]

#[allow(dead_code, unreachable_pub, reason = "ours uses all of it")]
#[path = "../../ferro/src/bench/vectors/workload.rs"]
mod workload;

use std::ffi::{CStr, c_int};
use std::process::ExitCode;
use std::ptr::{null, null_mut};

use ferro_fi::abi::{
    FI_SOCKADDR_IN, FI_TAGGED, fi_addr_t, fi_av_attr, fi_av_type, fi_ep_type, fi_threading, fid_av,
    fid_domain, fid_fabric, fns,
};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use workload::{NODES, Vector, measure};

/// Calls an entry of an object's table.
macro_rules! call {
    ($object:expr, $table:ident . $entry:ident ( $($argument:expr),* )) => {
        ((*(*$object).$table).$entry.unwrap())($object, $($argument),*)
    };
}

/// Of libfabric 1, and of libfabric 2, whose `tcp` has reliable datagrams of its own.
const PROVIDERS: [&CStr; 2] = [c"tcp;ofi_rxm", c"tcp"];

/// The first node, 10.0.0.0, and the first port of each.
const FIRST_NODE: u32 = 10 << 24;
const FIRST_PORT: u16 = 1024;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("av_peer: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let entries = std::env::args().nth(1).ok_or("wanted: ENTRIES,…")?;
    let domain = Domain::open()?;
    let mut rows = Vec::new();
    for text in entries.split(',') {
        let n: usize = text
            .parse()
            .map_err(|_| format!("\"{text}\" is no number"))?;
        if n == 0 || n > NODES * usize::from(u16::MAX - FIRST_PORT) {
            return Err(format!("{n}: there are not that many ports"));
        }
        let figures = measure(&mut domain.vector(n)?, n)?;
        rows.push(format!(
            "{{\"entries\": {n}, \"insert\": {}, \"lookup\": {}, \"lookup_dependent\": {}, \"remove\": {}, \"bytes_per_entry\": {}}}",
            figures.insert,
            figures.lookup,
            figures.dependent,
            figures.remove,
            figures.bytes_per_entry,
        ));
    }
    println!("[{}]", rows.join(", "));
    Ok(())
}

/// A domain of the provider. What is opened stays open: the process ends soon.
struct Domain {
    domain: *mut fid_domain,
    _library: Library,
}

impl Domain {
    fn open() -> Result<Self, String> {
        let missing = |_| "no libfabric is installed (libfabric1)".to_owned();
        // SAFETY: libfabric's initialisers are made to be run.
        let library = unsafe { Library::open(Some("libfabric.so.1"), RTLD_NOW | RTLD_LOCAL) }
            .map_err(missing)?;
        // SAFETY: the signatures are those of its headers; calls and objects as the manual pages have it, the strings libc's.
        unsafe {
            let version = *library
                .get::<fns::fi_version>(b"fi_version\0")
                .map_err(missing)?;
            let getinfo = *library
                .get::<fns::fi_getinfo>(b"fi_getinfo\0")
                .map_err(missing)?;
            let dupinfo = *library
                .get::<fns::fi_dupinfo>(b"fi_dupinfo\0")
                .map_err(missing)?;
            let freeinfo = *library
                .get::<fns::fi_freeinfo>(b"fi_freeinfo\0")
                .map_err(missing)?;
            let open = *library
                .get::<fns::fi_fabric>(b"fi_fabric\0")
                .map_err(missing)?;
            let mut info = null_mut();
            for provider in PROVIDERS {
                let hints = dupinfo(null());
                if hints.is_null() {
                    return Err("fi_allocinfo: no memory".to_owned());
                }
                (*hints).caps = FI_TAGGED;
                (*hints).addr_format = FI_SOCKADDR_IN;
                (*(*hints).ep_attr).type_ = fi_ep_type::FI_EP_RDM;
                (*(*hints).domain_attr).threading = fi_threading::FI_THREAD_DOMAIN;
                (*(*hints).domain_attr).av_type = fi_av_type::FI_AV_TABLE;
                (*(*hints).fabric_attr).prov_name = libc::strdup(provider.as_ptr());
                let found = getinfo(version(), null(), null(), 0, hints, &raw mut info);
                freeinfo(hints);
                if found == 0 {
                    break;
                }
                info = null_mut();
            }
            if info.is_null() {
                return Err("libfabric has no reliable datagrams over TCP here".to_owned());
            }
            let (mut fabric, mut domain): (*mut fid_fabric, _) = (null_mut(), null_mut());
            let opened = open((*info).fabric_attr, &raw mut fabric, null_mut());
            done("fi_fabric", opened)?;
            let opened = call!(fabric, ops.domain(info, &raw mut domain, null_mut()));
            done("fi_domain", opened)?;
            Ok(Self {
                domain,
                _library: library,
            })
        }
    }

    /// An address vector, and the addresses that are to go in.
    fn vector(&self, n: usize) -> Result<Theirs, String> {
        let (domain, mut av) = (self.domain, null_mut());
        let mut attr = fi_av_attr {
            type_: fi_av_type::FI_AV_TABLE,
            count: n,
            ..fi_av_attr::default()
        };
        // SAFETY: as fi_av(3) has it.
        let opened = unsafe { call!(domain, ops.av_open(&raw mut attr, &raw mut av, null_mut())) };
        done("fi_av_open", opened)?;
        Ok(Theirs {
            names: (0..n).map(name).collect(),
            // Written to, so that its memory is there before the insertions.
            addrs: (0..n as u64).map(|i| !i).collect(),
            av,
        })
    }
}

fn done(what: &str, code: c_int) -> Result<(), String> {
    match code {
        0 => Ok(()),
        code => Err(format!("{what}: {code}")),
    }
}

/// The address with index `i`.
fn name(i: usize) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: (FIRST_PORT + (i / NODES) as u16).to_be(),
        sin_addr: libc::in_addr {
            s_addr: (FIRST_NODE + (i % NODES) as u32).to_be(),
        },
        sin_zero: [0; 8],
    }
}

/// The index of an address.
fn index_of(name: &libc::sockaddr_in) -> usize {
    let endpoint = usize::from(u16::from_be(name.sin_port).wrapping_sub(FIRST_PORT));
    let node = u32::from_be(name.sin_addr.s_addr).wrapping_sub(FIRST_NODE) as usize;
    endpoint * NODES + node
}

struct Theirs {
    names: Vec<libc::sockaddr_in>,
    addrs: Vec<fi_addr_t>,
    av: *mut fid_av,
}

impl Vector for Theirs {
    type Error = String;

    fn insert(&mut self) -> Result<(), String> {
        let (n, to) = (self.names.len(), self.addrs.as_mut_ptr());
        let names = self.names.as_ptr().cast();
        // SAFETY: as fi_av(3) has it; there is room for so many results.
        let inserted = unsafe { call!(self.av, ops.insert(names, n, to, 0, null_mut())) };
        if usize::try_from(inserted) != Ok(n) {
            return Err(format!("fi_av_insert: {inserted}"));
        }
        match self.addrs.iter().zip(0..).all(|(addr, i)| *addr == i) {
            true => Ok(()),
            false => Err("addresses did not get their indices in order".to_owned()),
        }
    }

    #[inline]
    fn lookup(&self, index: usize) -> Result<usize, String> {
        let mut found = name(0);
        let mut len = size_of_val(&found);
        let to = (&raw mut found).cast();
        // SAFETY: as fi_av(3) has it; there is room for an address.
        let code = unsafe { call!(self.av, ops.lookup(index as u64, to, &raw mut len)) };
        done("fi_av_lookup", code)?;
        Ok(index_of(&found))
    }

    fn remove(&mut self, index: usize) -> Result<(), String> {
        let mut addr = index as u64;
        // SAFETY: as fi_av(3) has it.
        let code = unsafe { call!(self.av, ops.remove(&raw mut addr, 1, 0)) };
        done("fi_av_remove", code)
    }
}
