//! Address vectors that change between and beside messages, in terms of C (fi_av(3)): growth,
//! removals, user IDs and receive contexts, over shared memory and over verbs.

use crate::{client, two, vector};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use client::{Info, Opened, Party};
use ferro_fi::abi::{
    FI_AV_USER_ID, FI_EADDRNOTAVAIL, FI_EAVAIL, FI_ECANCELED, FI_EINVAL, FI_SEND, FI_SYMMETRIC,
    fi_addr_t, fi_av_attr, fi_av_type, fi_cq_err_entry, fi_cq_tagged_entry, fi_msg, fi_msg_tagged,
};
use two::{EAGAIN, PATIENCE, everywhere};
use vector::{NONE, Vector, names};

const TYPES: [fi_av_type; 2] = [fi_av_type::FI_AV_MAP, fi_av_type::FI_AV_TABLE];

fn of_type(type_: fi_av_type) -> fi_av_attr {
    fi_av_attr {
        type_,
        ..fi_av_attr::default()
    }
}

/// The next completion or error of an endpoint's queue, with the source. The other end is driven,
/// too.
fn next(at: &Party, other: &Party) -> Result<(fi_cq_tagged_entry, fi_addr_t), fi_cq_err_entry> {
    let until = Instant::now() + PATIENCE;
    let (mut entry, mut from) = (fi_cq_tagged_entry::default(), UNTOUCHED);
    loop {
        let out = (&raw mut entry).cast();
        // SAFETY: there is room for one.
        match unsafe { call!(at.cq, ops.readfrom(out, 1, &raw mut from)) } {
            1 => return Ok((entry, from)),
            EAGAIN => {}
            error => {
                assert_eq!(error, -(FI_EAVAIL as isize));
                let mut error = fi_cq_err_entry::default();
                // SAFETY: as above.
                assert_eq!(unsafe { call!(at.cq, ops.readerr(&raw mut error, 0)) }, 1);
                if error.flags & FI_SEND == 0 {
                    return Err(error);
                }
                // Its address was removed while it was under way.
                assert_eq!(error.err, FI_ECANCELED);
            }
        }
        // SAFETY: nothing is read, so nothing is lost.
        unsafe { call!(other.cq, ops.read(null_mut(), 0)) };
        assert!(Instant::now() < until, "nothing completes");
    }
}

/// The value of a result that no call has written.
const UNTOUCHED: fi_addr_t = 0x5555_5555_5555;

/// The tag of messages that arrive.
const TAG: u64 = 3;

/// Injects a message as soon as there is room, and receives it; returns its source.
fn talk(from: &Party, to: fi_addr_t, at: &Party, fill: u8) -> fi_addr_t {
    let mut into = [0u8; 8];
    assert_eq!(at.receive(into.as_mut_ptr(), 8, null_mut(), TAG), 0);
    inject(from, to, at, fill, TAG);
    let (entry, source) = next(at, from).unwrap_or_else(|error| panic!("error {}", error.err));
    assert_eq!((entry.len, entry.tag, into), (8, TAG, [fill; 8]));
    source
}

fn inject(from: &Party, to: fi_addr_t, at: &Party, fill: u8, tag: u64) {
    let until = Instant::now() + PATIENCE;
    loop {
        match from.inject(&[fill; 8], to, tag) {
            0 => return,
            error => assert_eq!(error, EAGAIN),
        }
        assert!(Instant::now() < until, "no room for a message");
        for party in [from, at] {
            // SAFETY: nothing is read, so nothing is lost.
            unsafe { call!(party.cq, ops.read(null_mut(), 0)) };
        }
    }
}

/// An address vector that another thread uses: the domain is for all threads.
#[derive(Clone, Copy)]
struct SharedVector(Vector);

// SAFETY: the domain was opened with FI_THREAD_SAFE.
unsafe impl Send for SharedVector {}
// SAFETY: as above.
unsafe impl Sync for SharedVector {}

impl SharedVector {
    fn get(self) -> Vector {
        self.0
    }
}

/// A vector that was opened for few addresses, or for none, grows a hundred times over while
/// another thread sends through it: no message is lost or goes astray, and every entry stays where
/// it is.
///
/// Covers: AV-2
#[test]
fn a_vector_grows_beside_a_sender() {
    const BATCHES: usize = 20;
    everywhere("a_vector_grows_beside_a_sender", |info| {
        let opened = Opened::new(info);
        for (type_, count, ep_per_node, flags) in [
            (fi_av_type::FI_AV_MAP, 0, 0, 0),
            (fi_av_type::FI_AV_TABLE, 8, 0, 0),
            (fi_av_type::FI_AV_TABLE, 0, 4, 0),
            (fi_av_type::FI_AV_MAP, 32, 16, FI_SYMMETRIC),
            (fi_av_type::FI_AV_TABLE, 1, 1, FI_SYMMETRIC),
        ] {
            let attr = fi_av_attr {
                count,
                ep_per_node,
                flags,
                ..of_type(type_)
            };
            let (a, b) = (opened.party_of(info, attr), opened.party(info));
            let (to_b, to_a) = (a.insert(&b.name()), b.insert(&a.name()));
            let av = SharedVector(Vector(a.av));
            let batches: Vec<_> = (0..BATCHES).map(|n| many(&b, n)).collect();
            let over = AtomicBool::new(false);
            let known = std::thread::scope(|scope| {
                let inserter = scope.spawn(|| {
                    let av = av.get();
                    let insert = |(number, batch): (usize, &Vec<Vec<u8>>)| {
                        let mut addrs = vec![UNTOUCHED; batch.len()];
                        let at = addrs.as_mut_ptr();
                        match number % 2 {
                            0 => {
                                let said = av.insert(batch, at, 0, null_mut());
                                assert_eq!(said as usize, batch.len());
                            }
                            _ => (addrs.iter_mut().zip(batch)).for_each(|(addr, name)| {
                                let one = std::slice::from_ref(name);
                                assert_eq!(av.insert(one, addr, 0, null_mut()), 1);
                            }),
                        }
                        addrs
                    };
                    let known: Vec<_> = batches.iter().enumerate().map(insert).collect();
                    over.store(true, Ordering::Release);
                    known
                });
                let mut messages = 0;
                while !over.load(Ordering::Acquire) || messages < 20 {
                    messages += 1;
                    assert_eq!(talk(&a, to_b, &b, messages as u8), to_a);
                }
                println!("{messages} messages beside {} insertions", BATCHES * 100);
                inserter.join().unwrap()
            });
            assert_eq!(talk(&b, to_a, &a, 1), to_b);
            let found = Vector(a.av);
            assert_eq!(found.lookup(to_b, 64).unwrap().0[..64], b.name()[..]);
            for (addr, name) in known.concat().iter().zip(batches.concat()) {
                assert_eq!(found.lookup(*addr, 64).unwrap().0[..64], name[..]);
            }
            if type_ == fi_av_type::FI_AV_TABLE {
                let indices = 1..=(BATCHES * 100) as u64;
                assert!(known.concat().into_iter().eq(indices), "indices in order");
            }
            a.close();
            b.close();
        }
        opened.close();
    });
}

/// A hundred addresses that nobody has; each batch has its own.
fn many(like: &Party, batch: usize) -> Vec<Vec<u8>> {
    let mut all = names(like, 100);
    for name in &mut all {
        name[39] = batch as u8;
    }
    all
}

/// The result of each call that sends to an address.
fn sends(party: &Party, to: fi_addr_t) -> [isize; 14] {
    let bytes = [1u8; 8];
    let (at, none): (*const c_void, _) = (bytes.as_ptr().cast(), null_mut());
    let iov = libc::iovec {
        iov_base: at.cast_mut(),
        iov_len: 8,
    };
    let msg = fi_msg {
        msg_iov: &raw const iov,
        desc: null_mut(),
        iov_count: 1,
        addr: to,
        context: null_mut(),
        data: 0,
    };
    let tagged = fi_msg_tagged {
        msg_iov: &raw const iov,
        desc: null_mut(),
        iov_count: 1,
        addr: to,
        tag: 3,
        ignore: 0,
        context: null_mut(),
        data: 0,
    };
    let ep = party.ep;
    // SAFETY: as fi_msg(3) and fi_tagged(3) have it; a refused call uses no memory.
    unsafe {
        let (m, t) = (&*(*ep).msg, &*(*ep).tagged);
        [
            m.send.unwrap()(ep, at, 8, none, to, none),
            m.sendv.unwrap()(ep, &raw const iov, null_mut(), 1, to, none),
            m.sendmsg.unwrap()(ep, &raw const msg, 0),
            m.inject.unwrap()(ep, at, 8, to),
            m.senddata.unwrap()(ep, at, 8, none, 9, to, none),
            m.injectdata.unwrap()(ep, at, 8, 9, to),
            t.send.unwrap()(ep, at, 8, none, to, 3, none),
            t.sendv.unwrap()(ep, &raw const iov, null_mut(), 1, to, 3, none),
            t.sendmsg.unwrap()(ep, &raw const tagged, 0),
            t.inject.unwrap()(ep, at, 8, to, 3),
            t.senddata.unwrap()(ep, at, 8, none, 9, to, 3, none),
            t.injectdata.unwrap()(ep, at, 8, 9, to, 3),
            // An empty message goes nowhere, either.
            m.inject.unwrap()(ep, at, 0, to),
            t.inject.unwrap()(ep, at, 0, to, 3),
        ]
    }
}

/// No call sends to a removed address, and no message reaches a peer by it: a map's is never handed
/// out again, a table's is invalid until the next insertion has its index. The same peer comes and
/// goes any number of times, with messages under way.
///
/// Covers: AV-17, AV-23
#[test]
fn removed_addresses_lead_nowhere() {
    everywhere("removed_addresses_lead_nowhere", |info| {
        let opened = Opened::new(info);
        for type_ in TYPES {
            let a = opened.party_of(info, of_type(type_));
            let [b, c] = [(); 2].map(|()| opened.party(info));
            let av = Vector(a.av);
            let [from_b, from_c] = [&b, &c].map(|party| party.insert(&a.name()));
            let mut stale: Vec<fi_addr_t> = Vec::new();
            for round in 0..10u8 {
                let to_b = a.insert(&b.name());
                assert_eq!(a.insert(&b.name()), to_b, "it is there");
                if type_ == fi_av_type::FI_AV_MAP {
                    assert!(!stale.contains(&to_b), "an address is handed out again");
                }
                assert_eq!(talk(&a, to_b, &b, round), from_b);
                assert_eq!(talk(&b, from_b, &a, round), to_b);
                // A message is under way when its address goes. It may arrive after its receive was
                // cancelled, so no other receive may take its tag.
                let mut into = [0u8; 8];
                let tag = TAG + 1 + u64::from(round);
                assert_eq!(b.receive(into.as_mut_ptr(), 8, null_mut(), tag), 0);
                inject(&a, to_b, &b, round, tag);
                assert_eq!(av.remove(&mut [to_b], 0), 0);
                let no = -(FI_EADDRNOTAVAIL as isize);
                assert_eq!(sends(&a, to_b), [no; 14]);
                assert_eq!(av.lookup(to_b, 64), Err(-FI_EINVAL));
                assert_eq!(av.remove(&mut [to_b], 0), -FI_EINVAL);
                // Another has the entry now. In a map the removed address is still nobody's.
                let to_c = a.insert(&c.name());
                assert_eq!(to_c == to_b, type_ == fi_av_type::FI_AV_TABLE);
                if to_c != to_b {
                    assert_eq!(sends(&a, to_b), [no; 14]);
                    assert_eq!(av.lookup(to_b, 64), Err(-FI_EINVAL));
                }
                assert_eq!(talk(&a, to_c, &c, !round), from_c);
                assert_eq!(talk(&c, from_c, &a, !round), to_c);
                assert_eq!(talk(&b, from_b, &a, round), NONE, "a sender that is not in");
                assert_eq!(av.remove(&mut [to_c], 0), 0);
                stale.extend([to_b, to_c]);
                taken_back(&b, &a, round, &into);
            }
            for addr in &stale {
                assert_eq!(av.lookup(*addr, 64), Err(-FI_EINVAL));
            }
            for party in [a, b, c] {
                party.close();
            }
        }
        opened.close();
    });
}

/// The receive of a message whose address was removed ends once, whether the message arrived or
/// not: with the message, or because it is cancelled.
fn taken_back(at: &Party, other: &Party, fill: u8, into: &[u8; 8]) {
    // SAFETY: as fi_endpoint(3) has it.
    unsafe {
        let cancel = (*(*at.ep).ops).cancel.unwrap();
        cancel(at.ep.cast(), 9 as *mut c_void);
    }
    match next(at, other) {
        Ok(_) => {
            // SAFETY: the transport has written there behind the compiler's back.
            let came = unsafe { std::ptr::from_ref(into).read_volatile() };
            assert_eq!(came, [fill; 8]);
        }
        Err(error) => assert_eq!(error.err, FI_ECANCELED),
    }
}

/// With IDs of its own the application sees them as sources, in completions and in errors, and
/// `FI_ADDR_NOTAVAIL` until it has set one. Everything else takes the address, never the ID: sends,
/// directed receives, look-ups and removals.
///
/// Covers: AV-20
#[test]
fn sources_are_told_by_the_users_ids() {
    everywhere("sources_are_told_by_the_users_ids", |info| {
        let opened = Opened::new(info);
        for type_ in TYPES {
            let attr = fi_av_attr {
                flags: FI_AV_USER_ID,
                ..of_type(type_)
            };
            at_opening(&opened, info, attr);
            at_insertion(&opened, info, of_type(type_));
        }
        opened.close();
    });
}

fn set_id(party: &Party, addr: fi_addr_t, id: fi_addr_t) -> i32 {
    // SAFETY: as fi_av(3) has it.
    unsafe { call!(party.av, ops.set_user_id(addr, id, 0)) }
}

fn at_opening(opened: &Opened, info: &Info<'_>, attr: fi_av_attr) {
    let (a, b) = (opened.party(info), opened.party_of(info, attr));
    let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
    assert_eq!(talk(&a, to_b, &b, 1), NONE, "no ID was set");
    for id in [4711, 0, u64::MAX - 1, 4712] {
        assert_eq!(set_id(&b, from_a, id), 0);
        assert_eq!(talk(&a, to_b, &b, 2), id);
    }
    let av = Vector(b.av);
    assert_eq!(av.lookup(4712, 64), Err(-FI_EINVAL));
    assert_eq!(av.remove(&mut [4712], 0), -FI_EINVAL);
    assert_eq!(set_id(&b, 4712, 1), -FI_EINVAL);
    let no = -(FI_EADDRNOTAVAIL as isize);
    assert_eq!(sends(&b, 4712), [no; 14]);
    assert_eq!(talk(&b, from_a, &a, 3), to_b);
    // A receive that names the ID as its source meets no message; one that names the address does.
    let mut nothing = [0u8; 8];
    receive_from(&b, &mut nothing, 4712, 21);
    let mut into = [0u8; 8];
    receive_from(&b, &mut into, from_a, 22);
    inject(&a, to_b, &b, 5, TAG);
    let (entry, source) = next(&b, &a).unwrap_or_else(|error| panic!("error {}", error.err));
    assert_eq!((entry.op_context as usize, source), (22, 4712));
    assert_eq!(into, [5; 8]);
    // SAFETY: as fi_endpoint(3) has it.
    unsafe { (*(*b.ep).ops).cancel.unwrap()(b.ep.cast(), 21 as *mut c_void) };
    let error = next(&b, &a).unwrap_err();
    assert_eq!((error.op_context as usize, error.err), (21, FI_ECANCELED));
    assert_eq!(nothing, [0; 8]);
    assert_eq!(set_id(&a, to_b, 1), -FI_EINVAL, "a vector without IDs");
    // The ID goes with the address.
    assert_eq!(av.remove(&mut [from_a], 0), 0);
    b.insert(&a.name());
    assert_eq!(talk(&a, to_b, &b, 6), NONE);
    a.close();
    b.close();
}

fn receive_from(at: &Party, into: &mut [u8; 8], source: fi_addr_t, context: usize) {
    // SAFETY: as fi_tagged(3) has it; the memory stays until the receive is over.
    let posted = unsafe {
        let recv = (*(*at.ep).tagged).recv.unwrap();
        let (into, context) = (into.as_mut_ptr().cast(), context as *mut c_void);
        recv(at.ep, into, 8, null_mut(), source, 3, 0, context)
    };
    assert_eq!(posted, 0);
}

fn at_insertion(opened: &Opened, info: &Info<'_>, attr: fi_av_attr) {
    let (a, b) = (opened.party(info), opened.party_of(info, attr));
    let to_b = a.insert(&b.name());
    let av = Vector(b.av);
    let mut addrs = [4711, 4712];
    let some = [names(&a, 1)[0].clone(), a.name()];
    let at = addrs.as_mut_ptr();
    assert_eq!(av.insert(&some, at, FI_AV_USER_ID, null_mut()), 2);
    let from_a = addrs[1];
    assert_ne!(from_a, 4712, "the result is an address");
    assert_eq!(av.lookup(from_a, 64).unwrap().0[..64], a.name()[..]);
    assert_eq!(talk(&a, to_b, &b, 1), 4712);
    assert_eq!(talk(&b, from_a, &a, 2), to_b);
    assert_eq!(set_id(&b, from_a, 1), -FI_EINVAL);
    // By text, and with an ID anew.
    let text = std::ffi::CString::new(av.text(&a.name(), 512).0).unwrap();
    let mut again = 99;
    let said = av.insertsvc_with(&text, None, &raw mut again, FI_AV_USER_ID, null_mut());
    assert_eq!((said, again), (1, from_a));
    assert_eq!(talk(&a, to_b, &b, 3), 99);
    assert_eq!(av.remove(&mut [from_a], 0), 0);
    let plain = b.insert(&a.name());
    assert_eq!(talk(&a, to_b, &b, 4), plain, "an ID goes with its address");
    a.close();
    b.close();
}

/// As `fi_rx_addr` makes it: receive context 0 is the endpoint, no other is anybody.
///
/// Covers: AV-3
#[test]
fn receive_contexts_in_the_high_bits() {
    everywhere("receive_contexts_in_the_high_bits", |info| {
        let opened = Opened::new(info);
        for (type_, bits) in [
            (fi_av_type::FI_AV_MAP, 8),
            (fi_av_type::FI_AV_MAP, 24),
            (fi_av_type::FI_AV_TABLE, 32),
        ] {
            let attr = fi_av_attr {
                rx_ctx_bits: bits,
                ..of_type(type_)
            };
            let (a, b) = (opened.party_of(info, attr), opened.party(info));
            let (to_b, from_a) = (a.insert(&b.name()), b.insert(&a.name()));
            let rx_addr = |index: u64| to_b | (index << (64 - bits));
            assert_eq!(to_b >> (64 - bits), 0, "the bits are the application's");
            assert_eq!(talk(&a, rx_addr(0), &b, 1), from_a);
            for index in [1, 2, (1 << bits) - 1] {
                let no = -(FI_EADDRNOTAVAIL as isize);
                assert_eq!(sends(&a, rx_addr(index)), [no; 14], "context {index}");
            }
            assert_eq!(talk(&a, to_b, &b, 2), from_a);
            a.close();
            b.close();
        }
        for (type_, bits) in [(fi_av_type::FI_AV_MAP, 25), (fi_av_type::FI_AV_TABLE, 33)] {
            let mut attr = fi_av_attr {
                rx_ctx_bits: bits,
                ..of_type(type_)
            };
            let refused = Vector::open(&opened, &mut attr).err();
            assert_eq!(refused, Some(-FI_EINVAL), "{bits} bits");
        }
        opened.close();
    });
}
