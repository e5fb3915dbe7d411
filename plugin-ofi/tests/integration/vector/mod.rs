//! An address vector and its event queue in terms of C, as fi_av(3) and fi_eq(3) have them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use ferro_fi::abi::{
    FI_AV_COMPLETE, FI_EAVAIL, fi_addr_t, fi_av_attr, fi_av_type, fi_eq_attr, fi_eq_entry,
    fi_eq_err_entry, fi_wait_obj, fid, fid_av, fid_eq,
};

use crate::client::{Opened, Party};

/// `FI_ADDR_NOTAVAIL`.
pub const NONE: fi_addr_t = fi_addr_t::MAX;

/// Room for any address. One that is a string has no fixed length.
pub const LONGEST_NAME: usize = 512;

/// An address vector.
#[derive(Clone, Copy)]
pub struct Vector(pub *mut fid_av);

impl Vector {
    pub fn open(opened: &Opened, attr: &mut fi_av_attr) -> Result<Self, c_int> {
        let (domain, mut av) = (opened.domain, null_mut());
        // SAFETY: as fi_av(3) has it.
        match unsafe { call!(domain, ops.av_open(attr, &raw mut av, null_mut())) } {
            0 => Ok(Self(av)),
            error => Err(error),
        }
    }

    pub fn of_type(opened: &Opened, type_: fi_av_type) -> Self {
        let mut attr = fi_av_attr {
            type_,
            ..fi_av_attr::default()
        };
        Self::open(opened, &mut attr).unwrap()
    }

    pub fn insert(
        self,
        names: &[Vec<u8>],
        addrs: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> c_int {
        let bytes = names.concat();
        assert_eq!(bytes.len(), names.len() * 64);
        // SAFETY: as fi_av(3) has it; the tests have room for the results.
        unsafe {
            let (at, count) = (bytes.as_ptr().cast(), names.len());
            call!(self.0, ops.insert(at, count, addrs, flags, context))
        }
    }

    pub fn insertsvc(self, node: &CStr, service: Option<&CStr>, addr: *mut fi_addr_t) -> c_int {
        self.insertsvc_with(node, service, addr, 0, null_mut())
    }

    pub fn insertsvc_with(
        self,
        node: &CStr,
        service: Option<&CStr>,
        addr: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> c_int {
        let (node, service) = (node.as_ptr(), service.map_or(null(), CStr::as_ptr));
        // SAFETY: as above.
        unsafe { call!(self.0, ops.insertsvc(node, service, addr, flags, context)) }
    }

    pub fn insertsym(
        self,
        nodes: (&CStr, usize),
        services: (&CStr, usize),
        addrs: *mut fi_addr_t,
    ) -> c_int {
        self.insertsym_with(nodes, services, addrs, 0, null_mut())
    }

    pub fn insertsym_with(
        self,
        (node, nodes): (&CStr, usize),
        (service, services): (&CStr, usize),
        addrs: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> c_int {
        // SAFETY: as above.
        unsafe {
            let (node, service) = (node.as_ptr(), service.as_ptr());
            call!(
                self.0,
                ops.insertsym(node, nodes, service, services, addrs, flags, context)
            )
        }
    }

    pub fn remove(self, addrs: &mut [fi_addr_t], flags: u64) -> c_int {
        // SAFETY: as above.
        unsafe { call!(self.0, ops.remove(addrs.as_mut_ptr(), addrs.len(), flags)) }
    }

    pub fn lookup(self, addr: fi_addr_t, room: usize) -> Result<(Vec<u8>, usize), c_int> {
        let (mut out, mut len) = (vec![0xaa; LONGEST_NAME], room);
        // SAFETY: as above.
        match unsafe {
            call!(
                self.0,
                ops.lookup(addr, out.as_mut_ptr().cast(), &raw mut len)
            )
        } {
            0 => Ok((out, len)),
            error => Err(error),
        }
    }

    pub fn text(self, name: &[u8], room: usize) -> (String, usize) {
        let mut out = vec![0x55 as c_char; 512];
        let mut len = room;
        // SAFETY: as above.
        unsafe {
            let said = call!(
                self.0,
                ops.straddr(name.as_ptr().cast(), out.as_mut_ptr(), &raw mut len)
            );
            assert_eq!(said, out.as_ptr());
            assert!(out[room..].iter().all(|c| *c == 0x55), "beyond the room");
            let text = match room {
                0 => "",
                _ => CStr::from_ptr(out.as_ptr()).to_str().unwrap(),
            };
            (text.to_owned(), len)
        }
    }

    pub fn bind(self, to: *mut fid, flags: u64) -> c_int {
        // SAFETY: as above.
        unsafe { (*(*self.0).fid.ops).bind.unwrap()(self.0.cast(), to, flags) }
    }
}

/// Addresses that nobody has, but that are well-formed: made of a real one.
pub fn names(party: &Party, n: u8) -> Vec<Vec<u8>> {
    (0..n)
        .map(|i| {
            let mut name = party.name();
            // The incarnation.
            name[32..40].copy_from_slice(&[i + 1; 8]);
            name
        })
        .collect()
}

pub fn bad() -> Vec<u8> {
    vec![7; 64]
}

/// The next event or error of an event queue.
pub enum Next {
    Done(fi_eq_entry),
    Error(fi_eq_err_entry),
}

pub fn next(eq: *mut fid_eq) -> Next {
    let (mut number, mut entry) = (0, fi_eq_entry::default());
    // SAFETY: as fi_eq(3) has it.
    unsafe {
        let at = (&raw mut entry).cast();
        let read = call!(
            eq,
            ops.sread(&raw mut number, at, size_of::<fi_eq_entry>(), 30_000, 0)
        );
        if read == -(FI_EAVAIL as isize) {
            let mut error = fi_eq_err_entry::default();
            let read = call!(eq, ops.readerr(&raw mut error, 0));
            assert_eq!(read, size_of::<fi_eq_err_entry>() as isize);
            return Next::Error(error);
        }
        assert_eq!(read, size_of::<fi_eq_entry>() as isize, "no event in time");
    }
    assert_eq!(number, FI_AV_COMPLETE);
    Next::Done(entry)
}

pub fn queue(opened: &Opened) -> *mut fid_eq {
    let mut eq = null_mut();
    let mut attr = fi_eq_attr {
        wait_obj: fi_wait_obj::FI_WAIT_FD,
        ..fi_eq_attr::default()
    };
    // SAFETY: as fi_eq(3) has it.
    let made = unsafe {
        let fabric = opened.fabric;
        call!(fabric, ops.eq_open(&raw mut attr, &raw mut eq, null_mut()))
    };
    assert_eq!(made, 0);
    eq
}
