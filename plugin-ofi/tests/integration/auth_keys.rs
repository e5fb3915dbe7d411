//! Authorization keys as an application of libfabric's sees them: fi_av(3), fi_domain(3), fi_mr(3),
//! fi_msg(3).

use crate::{child, client, support, two};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::Instant;

use client::{Info, Libfabric, Opened, close, owned_string};
use ferro_fi::abi::{
    FI_AUTH_KEY, FI_AV_AUTH_KEY, FI_AV_USER_ID, FI_COMPLETION, FI_DIRECTED_RECV, FI_EADDRNOTAVAIL,
    FI_EBADFLAGS, FI_EINVAL, FI_ENABLE, FI_INJECT, FI_MSG, FI_RECV, FI_SEND, FI_SOURCE,
    FI_SOURCE_ERR, fi_addr_t, fi_av_attr, fi_av_type, fi_cq_attr, fi_cq_err_entry, fi_cq_format,
    fi_cq_tagged_entry, fi_ep_type, fi_mr_attr, fi_mr_auth_key, fi_msg, fi_threading, fid, fid_av,
    fid_cq, fid_ep, fid_mr,
};
use ferrofabric_shm::ShmProvider;
use support::{has_device, skip};
use two::{PATIENCE, over_verbs};

const EOPNOTSUPP: c_int = -libc::EOPNOTSUPP;
const ENODATA: c_int = -libc::ENODATA;
const ANY: fi_addr_t = fi_addr_t::MAX;

/// The bytes of a key in the default partition.
fn key(qkey: u32) -> [u8; 8] {
    let [a, b, c, d] = qkey.to_le_bytes();
    [0xff, 0xff, 0, 0, a, b, c, d]
}

#[derive(Clone, Copy)]
struct Vector(*mut fid_av);

impl Vector {
    fn open(opened: &Opened, flags: u64) -> Self {
        let mut attr = fi_av_attr {
            type_: fi_av_type::FI_AV_TABLE,
            flags,
            ..fi_av_attr::default()
        };
        let (domain, mut av) = (opened.domain, null_mut());
        // SAFETY: as fi_av(3) has it.
        let done = unsafe { call!(domain, ops.av_open(&raw mut attr, &raw mut av, null_mut())) };
        assert_eq!(done, 0);
        Self(av)
    }

    fn insert_key(self, key: &[u8], flags: u64) -> Result<fi_addr_t, c_int> {
        let mut handle = 0;
        // SAFETY: as fi_av(3) has it.
        let done = unsafe {
            let (at, len) = (key.as_ptr().cast(), key.len());
            call!(self.0, ops.insert_auth_key(at, len, &raw mut handle, flags))
        };
        if done == 0 { Ok(handle) } else { Err(done) }
    }

    fn key_of(self, addr: fi_addr_t, room: usize) -> Result<(Vec<u8>, usize), c_int> {
        let (mut out, mut len) = (vec![0xaa; 16], room);
        // SAFETY: as fi_av(3) has it.
        let done = unsafe {
            let at = out.as_mut_ptr().cast();
            call!(self.0, ops.lookup_auth_key(addr, at, &raw mut len))
        };
        if done == 0 { Ok((out, len)) } else { Err(done) }
    }

    /// Inserts addresses with the handles that are given, and returns what these have become.
    fn insert(self, names: &[u8], handles: &[fi_addr_t], flags: u64) -> (c_int, Vec<fi_addr_t>) {
        let mut addrs = handles.to_vec();
        // SAFETY: as fi_av(3) has it.
        let done = unsafe {
            let (at, count) = (names.as_ptr().cast(), handles.len());
            call!(
                self.0,
                ops.insert(at, count, addrs.as_mut_ptr(), flags, null_mut())
            )
        };
        (done, addrs)
    }

    /// Inserts one node by name, or as many ports of it as there are handles.
    fn insert_service(
        self,
        node: &CStr,
        service: Option<&CStr>,
        handles: &[fi_addr_t],
        flags: u64,
    ) -> (c_int, Vec<fi_addr_t>) {
        let mut addrs = handles.to_vec();
        let (node, out) = (node.as_ptr(), addrs.as_mut_ptr());
        // SAFETY: as fi_av(3) has it.
        let done = unsafe {
            match service.map(CStr::as_ptr) {
                None => call!(self.0, ops.insertsvc(node, null(), out, flags, null_mut())),
                Some(service) => {
                    let count = handles.len();
                    call!(
                        self.0,
                        ops.insertsym(node, 1, service, count, out, flags, null_mut())
                    )
                }
            }
        };
        (done, addrs)
    }

    /// `fi_av_straddr`.
    fn text(self, name: &[u8]) -> CString {
        let (mut text, mut len) = ([0 as c_char; 400], 400);
        // SAFETY: as fi_av(3) has it.
        unsafe {
            let (name, text) = (name.as_ptr().cast(), text.as_mut_ptr());
            CStr::from_ptr(call!(self.0, ops.straddr(name, text, &raw mut len))).to_owned()
        }
    }

    fn lookup(self, addr: fi_addr_t) -> Vec<u8> {
        let (mut out, mut len) = (vec![0; 64], 64);
        // SAFETY: as fi_av(3) has it.
        let done = unsafe {
            let at = out.as_mut_ptr().cast();
            call!(self.0, ops.lookup(addr, at, &raw mut len))
        };
        assert_eq!((done, len), (0, 64));
        out
    }

    fn remove(self, addr: fi_addr_t, flags: u64) -> c_int {
        let mut addr = addr;
        // SAFETY: as fi_av(3) has it.
        unsafe { call!(self.0, ops.remove(&raw mut addr, 1, flags)) }
    }

    fn set_user_id(self, addr: fi_addr_t, id: fi_addr_t, flags: u64) -> c_int {
        // SAFETY: as fi_av(3) has it.
        unsafe { call!(self.0, ops.set_user_id(addr, id, flags)) }
    }
}

/// An endpoint, enabled.
struct KeyedParty {
    ep: *mut fid_ep,
    cq: *mut fid_cq,
    room: Box<[u8; 64]>,
}

impl KeyedParty {
    fn open(opened: &Opened, info: &Info<'_>, av: Vector) -> Self {
        let (mut ep, mut cq) = (null_mut(), null_mut());
        let domain = opened.domain;
        // SAFETY: as the manual pages have it.
        unsafe {
            let mut attr = fi_cq_attr {
                format: fi_cq_format::FI_CQ_FORMAT_TAGGED,
                ..fi_cq_attr::default()
            };
            let done = call!(domain, ops.cq_open(&raw mut attr, &raw mut cq, null_mut()));
            assert_eq!(done, 0);
            let done = call!(domain, ops.endpoint(info.info, &raw mut ep, null_mut()));
            assert_eq!(done, 0);
            let fid: *mut fid = ep.cast();
            let ops = *(*fid).ops;
            assert_eq!(ops.bind.unwrap()(fid, av.0.cast(), 0), 0);
            assert_eq!(ops.bind.unwrap()(fid, cq.cast(), FI_SEND | FI_RECV), 0);
            assert_eq!(ops.control.unwrap()(fid, FI_ENABLE, null_mut()), 0);
        }
        let room = Box::new([0; 64]);
        Self { ep, cq, room }
    }

    fn name(&self) -> Vec<u8> {
        let (mut name, mut len) = (vec![0; 64], 64);
        // SAFETY: as fi_getname(3) has it.
        unsafe {
            let getname = (*(*self.ep).cm).getname.unwrap();
            let got = getname(self.ep.cast(), name.as_mut_ptr().cast(), &raw mut len);
            assert_eq!((got, len), (0, 64));
        }
        name
    }

    /// `fi_recvmsg`.
    fn receive(&mut self, src: fi_addr_t, flags: u64, context: usize) -> isize {
        let iov = libc::iovec {
            iov_base: self.room.as_mut_ptr().cast(),
            iov_len: 64,
        };
        let msg = fi_msg {
            msg_iov: &raw const iov,
            desc: null_mut(),
            iov_count: 1,
            addr: src,
            context: context as *mut c_void,
            data: 0,
        };
        // SAFETY: as fi_msg(3) has it; nobody looks into the room.
        unsafe { (*(*self.ep).msg).recvmsg.unwrap()(self.ep, &raw const msg, flags) }
    }

    fn send(&self, to: fi_addr_t, len: usize) {
        let bytes = [3u8; 64];
        let until = Instant::now() + PATIENCE;
        // SAFETY: as fi_msg(3) has it.
        while unsafe {
            let inject = (*(*self.ep).msg).inject.unwrap();
            inject(self.ep, bytes.as_ptr().cast(), len, to)
        } != 0
        {
            assert!(self.poll().is_none() && Instant::now() < until);
        }
    }

    fn poll(&self) -> Option<(usize, usize, fi_addr_t)> {
        let (mut entry, mut src) = (fi_cq_tagged_entry::default(), 0);
        // SAFETY: there is room for one.
        let read = unsafe {
            let at = std::ptr::from_mut(&mut entry).cast();
            call!(self.cq, ops.readfrom(at, 1, &raw mut src))
        };
        assert!(read == 1 || read == -(libc::EAGAIN as isize), "{read}");
        (read == 1).then_some((entry.op_context as usize, entry.len, src))
    }

    /// The next message, while the sender makes progress.
    fn next(&self, sender: &Self) -> (usize, usize, fi_addr_t) {
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(sender.poll().is_none());
            if let Some(done) = self.poll() {
                return done;
            }
            assert!(Instant::now() < until, "nothing comes");
        }
    }

    /// The error that is next, `FI_EADDRNOTAVAIL`: its source address and its data.
    fn error(&self, sender: &Self) -> (fi_addr_t, Vec<u8>) {
        let until = Instant::now() + PATIENCE;
        let mut error = fi_cq_err_entry::default();
        // SAFETY: as fi_cq(3) has it.
        while unsafe { call!(self.cq, ops.readerr(&raw mut error, 0)) } != 1 {
            assert!(sender.poll().is_none());
            let mut entry = fi_cq_tagged_entry::default();
            // SAFETY: there is room for one.
            let read = unsafe {
                let at = std::ptr::from_mut(&mut entry).cast();
                call!(self.cq, ops.read(at, 1))
            };
            assert!(read < 0, "the sender is known");
            assert!(Instant::now() < until, "no error comes");
        }
        assert_eq!(error.err, FI_EADDRNOTAVAIL);
        // SAFETY: it is there until the next error is read.
        let data =
            unsafe { std::slice::from_raw_parts(error.err_data.cast::<u8>(), error.err_data_size) };
        (error.src_addr, data.to_vec())
    }

    fn close(self) {
        assert_eq!(close(self.ep.cast()), 0);
        assert_eq!(close(self.cq.cast()), 0);
    }
}

/// Hints for messages.
fn hints(libfabric: &Libfabric, ep_type: fi_ep_type) -> Info<'_> {
    let hints = libfabric.hints();
    // SAFETY: the hints are the test's.
    unsafe {
        (*hints.info).caps = FI_MSG | FI_SOURCE | FI_DIRECTED_RECV;
        (*(*hints.info).ep_attr).type_ = ep_type;
        (*(*hints.info).domain_attr).threading = fi_threading::FI_THREAD_SAFE;
    }
    hints
}

/// Covers: AV-21
#[test]
fn a_domain_without_keys_refuses_them() {
    child::alone("a_domain_without_keys_refuses_them", |libfabric| {
        let hints = libfabric.hints();
        for size in [8, FI_AV_AUTH_KEY] {
            // SAFETY: the hints are the test's.
            unsafe {
                (*(*hints.info).domain_attr).name = owned_string(ShmProvider::DOMAIN);
                (*(*hints.info).domain_attr).auth_key_size = size;
            }
            let found = libfabric.ask(libfabric.version, None, None, 0, Some(&hints));
            assert_eq!(found.map(drop), Err(ENODATA), "keys of {size} bytes");
        }
        let info = libfabric.discover(ShmProvider::DOMAIN, fi_threading::FI_THREAD_SAFE);
        let opened = Opened::new(&info);
        let party = opened.party(&info);
        let av = Vector(party.av);
        assert_eq!(av.insert_key(&key(1), 0), Err(EOPNOTSUPP));
        assert_eq!(av.key_of(0, 8), Err(EOPNOTSUPP));
        assert_eq!(av.insert(&party.name(), &[0], FI_AUTH_KEY).0, EOPNOTSUPP);
        assert_eq!(av.remove(0, FI_AUTH_KEY), EOPNOTSUPP);
        assert_eq!(av.set_user_id(0, 1, FI_AUTH_KEY), EOPNOTSUPP);
        let user_id = FI_AUTH_KEY | FI_AV_USER_ID;
        assert_eq!(av.insert(&party.name(), &[0], user_id).0, -FI_EINVAL);
        party.close();
        opened.close();
    });
}

/// Covers: AV-15, AV-16, AV-18, AV-20, AV-21, AV-25
#[test]
fn keys_of_an_address_vector() {
    if !has_device() {
        return skip("this machine has no RDMA device");
    }
    over_verbs("keys_of_an_address_vector", |libfabric| {
        for ep_type in [fi_ep_type::FI_EP_DGRAM, fi_ep_type::FI_EP_RDM] {
            let hints = hints(libfabric, ep_type);
            // SAFETY: the hints are the test's.
            unsafe { (*(*hints.info).domain_attr).auth_key_size = FI_AV_AUTH_KEY };
            let info = libfabric.ask(libfabric.version, None, None, 0, Some(&hints));
            let info = info.expect("an offer with keys");
            // SAFETY: the offer is there.
            let domain = unsafe { &*(*info.info).domain_attr };
            assert_eq!(
                (domain.auth_key_size, domain.max_ep_auth_key),
                (FI_AV_AUTH_KEY, 4)
            );
            exchange(&info);
            // SAFETY: the hints are the test's.
            unsafe { (*hints.info).caps |= FI_SOURCE_ERR };
            let info = libfabric.ask(libfabric.version, None, None, 0, Some(&hints));
            strangers(&info.expect("an offer with keys and FI_SOURCE_ERR"));
        }
    });
}

/// The error for an unknown sender names the key with which its message came. The address in the
/// error, inserted, leads to the sender; also as a text.
fn strangers(info: &Info<'_>) {
    let opened = Opened::new(info);
    for ids in [0, FI_AV_USER_ID] {
        let (of_a, of_b) = (Vector::open(&opened, 0), Vector::open(&opened, ids));
        let a_keys = [1, 2].map(|n| of_a.insert_key(&key(n), 0).unwrap());
        let b_keys = [2, 1].map(|n| of_b.insert_key(&key(n), 0).unwrap());
        let (a, mut b) = (
            KeyedParty::open(&opened, info, of_a),
            KeyedParty::open(&opened, info, of_b),
        );
        let text = of_a.text(&b.name());
        let (done, to_b) = of_a.insert_service(&text, None, &a_keys[..1], FI_AUTH_KEY);
        assert_eq!((done, &to_b), (1, &vec![0]));
        assert_eq!(of_a.insert(&b.name(), &a_keys[..1], FI_AUTH_KEY).1, to_b);
        for (flags, handle) in [(FI_AUTH_KEY, 0), (0, a_keys[0])] {
            let refused = of_a.insert_service(&text, None, &[handle], flags).0;
            let none = if flags == 0 { -FI_EINVAL } else { 0 };
            assert_eq!(refused, none, "no key of {handle:#x}");
        }
        // Nobody listens there yet, which is no failure of the insertion.
        let absent = of_a.insert_service(c"127.0.0.1", Some(c"9"), &a_keys, FI_AUTH_KEY);
        assert_eq!(absent, (2, vec![1, 2]));
        let mut stranger = |reported| {
            assert_eq!(b.receive(ANY, FI_COMPLETION, 7), 0);
            a.send(to_b[0], 10);
            let (src, data) = b.error(&a);
            assert_eq!(src, reported, "IDs: {ids:#x}");
            data
        };
        let data = match ids {
            0 => stranger(b_keys[1]),
            _ => {
                stranger(ANY);
                assert_eq!(of_b.set_user_id(b_keys[1], 4712, FI_AUTH_KEY), 0);
                stranger(4712)
            }
        };
        let (inserted, from_a) = of_b.insert(&data, &b_keys[1..], FI_AUTH_KEY);
        assert_eq!(inserted, 1);
        assert_eq!(b.receive(ANY, FI_COMPLETION, 8), 0);
        a.send(to_b[0], 11);
        let known = if ids == 0 { from_a[0] } else { ANY };
        assert_eq!(b.next(&a), (8, 11, known));
        a.close();
        b.close();
        for av in [of_a, of_b] {
            assert_eq!(close(av.0.cast()), 0);
        }
    }
    opened.close();
}

fn exchange(info: &Info<'_>) {
    let opened = Opened::new(info);
    let (of_a, of_b) = (
        Vector::open(&opened, 0),
        Vector::open(&opened, FI_AV_USER_ID),
    );
    // Keys: of the right size, without flags, each once.
    assert_eq!(of_a.insert_key(&key(1)[..6], 0), Err(-FI_EINVAL));
    assert_eq!(of_a.insert_key(&key(1), 1), Err(-FI_EINVAL));
    let a_keys = [1, 2].map(|n| of_a.insert_key(&key(n), 0).unwrap());
    let b_keys = [2, 1].map(|n| of_b.insert_key(&key(n), 0).unwrap());
    assert_eq!(of_a.insert_key(&key(1), 0), Ok(a_keys[0]));
    let (a, mut b) = (
        KeyedParty::open(&opened, info, of_a),
        KeyedParty::open(&opened, info, of_b),
    );
    // Addresses: handles in, addresses out.
    let (name_a, name_b) = (a.name(), b.name());
    let both = [&name_b[..], &name_b[..]].concat();
    let (inserted, to_b) = of_a.insert(&both, &a_keys, FI_AUTH_KEY);
    assert_eq!((inserted, &to_b[..]), (2, &[0, 1][..]));
    assert_eq!(of_a.insert(&name_b, &[0], 0).0, -FI_EINVAL);
    assert_eq!(of_a.insert(&name_b, &[0], FI_AV_USER_ID).0, -FI_EINVAL);
    assert_eq!(of_a.insert(&name_b, &[0], FI_AUTH_KEY), (0, vec![ANY]));
    assert_eq!(of_a.lookup(to_b[0]), name_b);
    // The keys with which they are reached, truncated to the room.
    for (addr, n) in [(a_keys[0], 1), (to_b[0], 1), (a_keys[1], 2), (to_b[1], 2)] {
        assert_eq!(of_a.key_of(addr, 8).unwrap().0[..8], key(n));
        let (cut, len) = of_a.key_of(addr, 5).unwrap();
        assert_eq!((&cut[..6], len), (&[&key(n)[..5], &[0xaa]].concat()[..], 8));
    }
    // A receive for one key, then one for any.
    assert_eq!(b.receive(b_keys[0], FI_AUTH_KEY | FI_COMPLETION, 7), 0);
    assert_eq!(b.receive(ANY, FI_COMPLETION, 8), 0);
    a.send(to_b[0], 10);
    assert_eq!(b.next(&a), (8, 10, ANY), "b does not know a");
    let (inserted, from_a) = of_b.insert(&name_a, &b_keys[..1], FI_AUTH_KEY);
    assert_eq!(inserted, 1);
    assert_eq!(of_b.set_user_id(from_a[0], 4711, 0), 0);
    assert_eq!(of_b.set_user_id(b_keys[0], 4712, FI_AUTH_KEY), 0);
    assert_eq!(of_a.set_user_id(a_keys[0], 1, FI_AUTH_KEY), -FI_EINVAL);
    a.send(to_b[1], 11);
    assert_eq!(b.next(&a), (7, 11, 4711), "with the second key");
    regions(&opened, of_b, b_keys[0], from_a[0]);
    // Keys stay as long as endpoints that have them.
    assert_eq!(of_a.remove(a_keys[0], FI_AUTH_KEY), -libc::EBUSY);
    assert_eq!(of_a.remove(a_keys[0], 0), -FI_EINVAL, "it is no address");
    assert_eq!(
        of_a.remove(to_b[0], FI_AUTH_KEY),
        -FI_EINVAL,
        "it is no key"
    );
    a.close();
    b.close();
    assert_eq!(of_a.remove(a_keys[0], FI_AUTH_KEY), 0);
    assert_eq!(of_a.remove(to_b[0], 0), 0);
    for av in [of_a, of_b] {
        assert_eq!(close(av.0.cast()), 0);
    }
    opened.close();
}

/// Memory says whose keys it is for.
fn regions(opened: &Opened, av: Vector, handle: fi_addr_t, addr: fi_addr_t) {
    let memory = vec![0u8; 4096];
    let iov = libc::iovec {
        iov_base: memory.as_ptr().cast_mut().cast(),
        iov_len: memory.len(),
    };
    let register = |key: Option<fi_mr_auth_key>, flags| {
        let mut key = key;
        // SAFETY: zeros are attributes that request nothing.
        let mut attr: fi_mr_attr = unsafe { std::mem::zeroed() };
        attr.__bindgen_anon_1.mr_iov = &raw const iov;
        attr.iov_count = 1;
        attr.access = FI_SEND | FI_RECV;
        if let Some(key) = &mut key {
            attr.auth_key_size = size_of::<fi_mr_auth_key>();
            attr.auth_key = std::ptr::from_mut(key).cast();
        }
        let mut mr: *mut fid_mr = null_mut();
        // SAFETY: as fi_mr(3) has it.
        let done = unsafe {
            let regattr = (*(*opened.domain).mr).regattr.unwrap();
            regattr(opened.domain.cast(), &raw const attr, flags, &raw mut mr)
        };
        if done == 0 {
            assert_eq!(close(mr.cast()), 0);
        }
        done
    };
    let of = |src_addr| Some(fi_mr_auth_key { av: av.0, src_addr });
    assert_eq!(register(of(ANY), 0), 0);
    assert_eq!(register(of(handle), FI_AUTH_KEY), 0);
    assert_eq!(register(of(addr), 0), 0);
    assert_eq!(register(of(handle), 0), -FI_EINVAL, "not an address");
    assert_eq!(register(of(addr), FI_AUTH_KEY), -FI_EINVAL, "not a key");
    assert_eq!(register(None, 0), -FI_EINVAL);
    assert_eq!(register(of(ANY), FI_INJECT), -FI_EBADFLAGS);
    let mut mr: *mut fid_mr = null_mut();
    // SAFETY: as fi_mr(3) has it.
    let plain = unsafe {
        let reg = (*(*opened.domain).mr).reg.unwrap();
        let (at, len) = (memory.as_ptr().cast(), memory.len());
        reg(
            opened.domain.cast(),
            at,
            len,
            FI_SEND,
            0,
            0,
            0,
            &raw mut mr,
            null_mut(),
        )
    };
    assert_eq!(plain, EOPNOTSUPP);
}

/// Covers: AV-21, GI-2, GI-10
#[test]
fn a_key_of_the_domain() {
    if !has_device() {
        return skip("this machine has no RDMA device");
    }
    over_verbs("a_key_of_the_domain", |libfabric| {
        let hints = hints(libfabric, fi_ep_type::FI_EP_RDM);
        let bytes = key(0x1234);
        // SAFETY: the hints are the test's, and libfabric frees what they have.
        unsafe {
            let domain = (*hints.info).domain_attr;
            let at: *mut u8 = libc::malloc(8).cast();
            at.copy_from(bytes.as_ptr(), 8);
            ((*domain).auth_key, (*domain).auth_key_size) = (at, 8);
        }
        let info = libfabric.ask(libfabric.version, None, None, 0, Some(&hints));
        // A copy has a key of its own.
        let info = info.expect("an offer with a key").copy();
        // SAFETY: the offer is there.
        let shown = unsafe {
            let domain = &*(*info.info).domain_attr;
            assert_eq!(domain.auth_key_size, 8);
            std::slice::from_raw_parts(domain.auth_key, 8)
        };
        assert_eq!(shown, bytes);
        let opened = Opened::new(&info);
        let (of_a, of_b) = (Vector::open(&opened, 0), Vector::open(&opened, 0));
        let (a, mut b) = (
            KeyedParty::open(&opened, &info, of_a),
            KeyedParty::open(&opened, &info, of_b),
        );
        assert_eq!(of_b.insert(&a.name(), &[0], 0).0, 1);
        let (_, to_b) = of_a.insert(&b.name(), &[0], 0);
        let by_key = b.receive(0, FI_AUTH_KEY, 1);
        assert_eq!(by_key, -(FI_EBADFLAGS as isize), "one key is no choice");
        assert_eq!(b.receive(ANY, FI_COMPLETION, 2), 0);
        a.send(to_b[0], 12);
        assert_eq!(b.next(&a), (2, 12, 0));
        // A size without a key opens nothing.
        let keyless = info.copy();
        // SAFETY: the copy is the test's.
        unsafe {
            let domain = (*keyless.info).domain_attr;
            libc::free((*domain).auth_key.cast());
            (*domain).auth_key = null_mut();
            let (fabric, mut none) = (opened.fabric, null_mut());
            let refused = call!(fabric, ops.domain(keyless.info, &raw mut none, null_mut()));
            assert_eq!((refused, none.cast_const()), (-FI_EINVAL, null()));
        }
        a.close();
        b.close();
        for av in [of_a, of_b] {
            assert_eq!(close(av.0.cast()), 0);
        }
        opened.close();
    });
}
