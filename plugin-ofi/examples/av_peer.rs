//! The other side of `scripts/bench av`: the workload of `ferro bench av` over an address vector of
//! stock libfabric's, of its reliable datagrams over TCP, through its C interface.
//!
//!     av_peer ENTRIES,…
//!
//! Prints a JSON array with an object for each number of entries: `entries`, `insert`, `lookup`,
//! `lookup_dependent`, `remove` (ns an operation) and `bytes_per_entry`. Fails where there is no
//! libfabric with such a provider.

#![allow(missing_docs, clippy::unwrap_used, reason = "a program that measures")]

#[allow(dead_code, unreachable_pub, reason = "ours uses all of it")]
#[path = "../../ferro/src/workload/vectors.rs"]
mod workload;

#[allow(dead_code, reason = "the other programs use all of it")]
mod stock;

use std::ffi::CStr;
use std::process::ExitCode;
use std::ptr::null_mut;

use ferro_fi::abi::{
    FI_SOCKADDR_IN, FI_TAGGED, fi_addr_t, fi_av_attr, fi_av_type, fi_info, fid_av, fid_domain,
};
use stock::{Libfabric, call, done, ended, number};
use workload::{NODES, Vector, measure};

/// Of libfabric 1, and of libfabric 2, whose `tcp` has reliable datagrams of its own.
const PROVIDERS: [&CStr; 2] = [c"tcp;ofi_rxm", c"tcp"];

/// The first node, 10.0.0.0, and the first port of each.
const FIRST_NODE: u32 = 10 << 24;
const FIRST_PORT: u16 = 1024;

fn main() -> ExitCode {
    ended("av_peer", run())
}

fn run() -> Result<(), String> {
    let entries = std::env::args().nth(1).ok_or("wanted: ENTRIES,…")?;
    let domain = Domain::open()?;
    let mut rows = Vec::new();
    for text in entries.split(',') {
        let n: usize = number(text)?;
        if n == 0 || n > NODES * usize::from(u16::MAX - FIRST_PORT) {
            return Err(format!("{n}: there are not that many ports"));
        }
        let figures = measure(&mut domain.vector(n)?, n)?;
        rows.push(serde_json::json!({
            "entries": n,
            "insert": figures.insert,
            "lookup": figures.lookup,
            "lookup_dependent": figures.dependent,
            "remove": figures.remove,
            "bytes_per_entry": figures.bytes_per_entry,
        }));
    }
    println!("{}", serde_json::Value::from(rows));
    Ok(())
}

/// A domain of the provider.
struct Domain {
    domain: *mut fid_domain,
    _libfabric: Libfabric,
}

impl Domain {
    fn open() -> Result<Self, String> {
        let libfabric = Libfabric::load()?;
        let want = |hints: &mut fi_info| {
            hints.caps = FI_TAGGED;
            hints.addr_format = FI_SOCKADDR_IN;
            // SAFETY: hints have all of their parts.
            unsafe { (*hints.domain_attr).av_type = fi_av_type::FI_AV_TABLE };
        };
        for provider in PROVIDERS {
            if let Some(info) = libfabric.find(provider, want)? {
                return Ok(Self {
                    domain: libfabric.domain(info)?,
                    _libfabric: libfabric,
                });
            }
        }
        Err("libfabric has no reliable datagrams over TCP here".to_owned())
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
