//! Address vectors of another provider, over stock libfabric: this program is the owner
//! (fi_peer(3)).

use crate::{client, owner, rma, two, vector};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use client::{Info, Opened, close};
use ferro_fi::abi::{
    FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC, FI_ATOMIC, FI_AV_USER_ID, FI_EADDRNOTAVAIL, FI_EBADFLAGS,
    FI_EINVAL, FI_EVENT, FI_MSG, FI_PEER, FI_READ, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_SYMMETRIC,
    FI_SYNC_ERR, FI_TAGGED, FI_WRITE, fi_addr_t, fi_av_attr, fi_av_type, fi_datatype, fi_op,
    fi_peer_av_context, fi_progress, fid_av, fid_peer_av,
};
use owner::vector::{OwnerVector, pass_on, pass_on_removal};
use two::{Shape, Side, alone, everywhere, insert, is_slow, name_of, next, next_from, shape};
use vector::Vector;

/// Addresses of an owner: an index, and one as `FI_AV_MAP` has them.
const OWNERS: [fi_addr_t; 2] = [3, 0xffff_8123_4567_89c0];

/// An endpoint with the addresses of an owner.
fn open_importing(opened: &Opened, info: &Info<'_>, owner: &OwnerVector) -> Side {
    let mut context = owner.context();
    let shape = Shape {
        of_av: (&raw mut context).cast(),
        av_flags: FI_PEER,
        ..shape()
    };
    Side::open(opened, info, shape)
}

/// `fi_trecv` of messages of a source.
fn receive_from(side: &Side, into: &mut [u8], src: fi_addr_t, tag: u64) -> isize {
    // SAFETY: the tests keep the memory until it completes.
    unsafe {
        let (at, len) = (into.as_mut_ptr().cast(), into.len());
        let context = 5 as *mut c_void;
        (*(*side.ep).tagged).recv.unwrap()(side.ep, at, len, null_mut(), src, tag, 0, context)
    }
}

/// `fi_tsend` that does not wait for room.
fn send_to(side: &Side, bytes: &[u8], dest: fi_addr_t, tag: u64) -> isize {
    let (at, len) = side.keep(bytes);
    // SAFETY: the side keeps the bytes until it is closed.
    unsafe {
        let context = 6 as *mut c_void;
        (*(*side.ep).tagged).send.unwrap()(side.ep, at, len, null_mut(), dest, tag, context)
    }
}

/// The name of a vector is that of its owner's table: vectors of one name share nothing here, and
/// the owner passes its addresses on to one that the application may read alone.
///
/// Covers: PEER-2
#[test]
fn a_name_is_that_of_the_owners_table() {
    alone("a_name_is_that_of_the_owners_table", |info| {
        let opened = Opened::new(info);
        let side = Side::open(&opened, info, shape());
        let owner = OwnerVector::new();
        let [first, second] = [0, FI_READ].map(|flags| {
            let (domain, mut av) = (opened.domain, null_mut());
            let mut attr = fi_av_attr {
                name: c"a name".as_ptr(),
                ..with_flags(FI_SYMMETRIC | flags)
            };
            let mut context = owner.context();
            let context = (&raw mut context).cast();
            // SAFETY: as fi_peer(3) has it.
            let result = unsafe { call!(domain, ops.av_open(&raw mut attr, &raw mut av, context)) };
            assert_eq!(result, 0);
            av
        });
        let name = name_of(side.ep);
        assert_eq!(pass_on(first, &name, 5), (1, 5));
        assert_eq!(Vector(second).lookup(5, 512), Err(-FI_EINVAL));
        assert_eq!(pass_on(second, &name, 6), (1, 6));
        assert_eq!(Vector(second).lookup(6, 512).unwrap().0[..name.len()], name);
        assert_eq!(pass_on_removal(first, 5), 0);
        assert_eq!(pass_on_removal(second, 6), 0);
        for av in [first, second] {
            assert_eq!(close(av.cast()), 0);
        }
        side.close();
        opened.close();
    });
}

/// Sends and directed receives take the owner's addresses, and completions report them.
///
/// Covers: PEER-2
#[test]
fn messages_go_by_the_owners_addresses() {
    everywhere("messages_go_by_the_owners_addresses", |info| {
        let opened = Opened::new(info);
        let owner = OwnerVector::new();
        let (a, c) = (
            Side::open(&opened, info, shape()),
            Side::open(&opened, info, shape()),
        );
        let b = open_importing(&opened, info, &owner);
        assert_eq!(owner.queries.load(Ordering::Relaxed), 1);
        let (to_b, c_to_b) = (insert(a.av, b.ep), insert(c.av, b.ep));
        // The table behind has other numbers: 0 and 1.
        for (owners, peer) in OWNERS.into_iter().zip([&c, &a]) {
            assert_eq!(pass_on(b.av, &name_of(peer.ep), owners), (1, owners));
            let (found, len) = Vector(b.av).lookup(owners, 512).unwrap();
            assert_eq!(found[..len], name_of(peer.ep));
        }
        let [of_c, of_a] = OWNERS;
        let mut into = [0u8; 16];
        for round in 0..50 {
            b.receive(&mut into, 7, 1);
            a.senddata(&[round; 16], 99, to_b, 7);
            let (entry, from) = next_from(b.rx);
            assert_eq!((entry.tag, from, into), (7, of_a, [round; 16]));
            next(a.tx).unwrap();

            a.receive(&mut into, 8, 1);
            b.senddata(&[round + 100; 16], 3, of_a, 8);
            next(b.tx).unwrap();
            next(a.rx).unwrap();
            assert_eq!(into, [round + 100; 16]);
        }
        // A directed receive takes that source's message, and an earlier one of another waits.
        let mut from_c = [0u8; 16];
        assert_eq!(receive_from(&b, &mut from_c, of_c, 9), 0);
        a.senddata(&[1; 16], 0, to_b, 9);
        next(a.tx).unwrap();
        c.senddata(&[2; 16], 0, c_to_b, 9);
        assert_eq!(next_from(b.rx).1, of_c);
        assert_eq!(from_c, [2; 16]);
        assert_eq!(receive_from(&b, &mut into, of_a, 9), 0);
        assert_eq!(next_from(b.rx).1, of_a);
        next(c.tx).unwrap();
        assert_eq!(b.sendmsg(&[3; 16], of_c, 9, 0), 0);
        assert_eq!(receive_from(&c, &mut into, FI_ADDR_UNSPEC, 9), 0);
        next(c.rx).unwrap();
        next(b.tx).unwrap();
        // Neither those of the table nor any other.
        for none in [0, 1, 4, of_a + 1] {
            assert_eq!(send_to(&b, &[0; 4], none, 1), -(FI_EADDRNOTAVAIL as isize));
            let posted = receive_from(&b, &mut into, none, 1);
            assert_eq!(posted, -(FI_EADDRNOTAVAIL as isize));
        }
        b.close();
        a.close();
        c.close();
        opened.close();
    });
}

/// An address that is removed is nobody's until it is passed on again, be it of another endpoint.
///
/// Covers: PEER-2
#[test]
fn removed_addresses_come_again_for_others() {
    everywhere("removed_addresses_come_again_for_others", |info| {
        let opened = Opened::new(info);
        let owner = OwnerVector::new();
        let peers = [0; 3].map(|_| Side::open(&opened, info, shape()));
        let b = open_importing(&opened, info, &owner);
        let mut into = [0u8; 8];
        for round in 0..30usize {
            let peer = &peers[round % 3];
            let owners = OWNERS[round % 2];
            assert_eq!(pass_on(b.av, &name_of(peer.ep), owners), (1, owners));
            peer.receive(&mut into, 1, round);
            b.senddata(&[round as u8; 8], 0, owners, 1);
            next(b.tx).unwrap();
            let entry = next(peer.rx).unwrap();
            assert_eq!((entry.op_context.addr(), into), (round, [round as u8; 8]));
            assert_eq!(pass_on_removal(b.av, owners), 0);
            assert_eq!(pass_on_removal(b.av, owners), -FI_EINVAL);
            assert_eq!(send_to(&b, &[0], owners, 1), -(FI_EADDRNOTAVAIL as isize));
            assert!(Vector(b.av).lookup(owners, 512).is_err());
        }
        b.close();
        peers.into_iter().for_each(Side::close);
        opened.close();
    });
}

/// Refused addresses are `FI_ADDR_NOTAVAIL` at return, each with its error, and leave nothing.
///
/// Covers: PEER-2
#[test]
fn addresses_that_are_refused() {
    alone("addresses_that_are_refused", |info| {
        let opened = Opened::new(info);
        let owner = OwnerVector::new();
        let a = Side::open(&opened, info, shape());
        let b = open_importing(&opened, info, &owner);
        let party = opened.party(info);
        let names = vector::names(&party, 4);
        let none = FI_ADDR_NOTAVAIL;
        let refused = (0, none);

        assert_eq!(pass_on(b.av, &name_of(a.ep), 5), (1, 5));
        assert_eq!(pass_on(b.av, &name_of(a.ep), 5), (1, 5), "the same again");
        assert_eq!(pass_on(b.av, &name_of(a.ep), 6), refused, "it has another");
        assert_eq!(pass_on(b.av, &names[0], 5), refused, "another has it");
        for owners in [none, none - 1] {
            assert_eq!(pass_on(b.av, &names[0], owners), refused);
        }
        assert_eq!(pass_on(b.av, &vector::bad(), 7), refused);
        // Each with its error; the others are in.
        let mut addrs = [8, 5, 9, 8, 10];
        let mut errors: [c_int; 5] = [-1; 5];
        let list = [&names[..3], &[names[3].clone(), vector::bad()]].concat();
        let flags = FI_AV_USER_ID | FI_SYNC_ERR;
        let errors_at = errors.as_mut_ptr().cast();
        let inserted = Vector(b.av).insert(&list, addrs.as_mut_ptr(), flags, errors_at);
        assert_eq!((inserted, addrs), (2, [8, none, 9, none, none]));
        assert_eq!(errors, [0, FI_EINVAL, 0, FI_EINVAL, FI_EINVAL]);
        // A refused endpoint is not in the table behind: it comes with another address.
        assert_eq!(pass_on(b.av, &names[1], 11), (1, 11));
        assert_eq!(Vector(b.av).remove(&mut [8, 12, 9], 0), -FI_EINVAL);
        assert_eq!(Vector(b.av).remove(&mut [5, 11], 0), 0);
        assert_eq!(Vector(b.av).remove(&mut [8], 0), -FI_EINVAL);

        // Insertions without an address of the owner, and IDs beside it.
        let mut addr = 1;
        let inserted = Vector(b.av).insert(&names[..1], &raw mut addr, 0, null_mut());
        assert_eq!((inserted, addr), (-FI_EINVAL, 1));
        let inserted = Vector(b.av).insert(&names[..1], null_mut(), FI_AV_USER_ID, null_mut());
        assert_eq!(inserted, -FI_EINVAL);
        assert_eq!(pass_on(b.av, &names[0], 1), (1, 1));
        let av = b.av;
        // SAFETY: the vector is open.
        unsafe { assert_eq!(call!(av, ops.set_user_id(1, 2, 0)), -FI_EINVAL) };
        party.close();
        b.close();
        a.close();
        opened.close();
    });
}

/// Where a call has one endpoint twice, the first of its addresses may be refused, and the second
/// one is not.
///
/// Covers: PEER-2
#[test]
fn one_endpoint_twice_in_a_call() {
    alone("one_endpoint_twice_in_a_call", |info| {
        let opened = Opened::new(info);
        let owner = OwnerVector::new();
        let a = Side::open(&opened, info, shape());
        let b = open_importing(&opened, info, &owner);
        let party = opened.party(info);
        let names = vector::names(&party, 2);
        assert_eq!(pass_on(b.av, &name_of(a.ep), 5), (1, 5));
        let none = FI_ADDR_NOTAVAIL;
        for (refused, owners) in [(none, 6), (5, 7)] {
            let list = [names[0].clone(), names[0].clone(), names[1].clone()];
            let (mut addrs, mut errors) = ([refused, owners, none], [-1; 3]);
            let flags = FI_AV_USER_ID | FI_SYNC_ERR;
            let errors_at = errors.as_mut_ptr().cast();
            let inserted = Vector(b.av).insert(&list, addrs.as_mut_ptr(), flags, errors_at);
            assert_eq!((inserted, addrs), (1, [none, owners, none]));
            assert_eq!(errors, [FI_EINVAL, 0, FI_EINVAL]);
            let (found, len) = Vector(b.av).lookup(owners, 512).unwrap();
            assert!(found[..len] == names[0]);
            assert_eq!(pass_on_removal(b.av, owners), 0);
        }
        // Nothing is left of one that was refused twice.
        let mut addrs = [none, 5];
        let list = [names[0].clone(), names[0].clone()];
        let inserted = Vector(b.av).insert(&list, addrs.as_mut_ptr(), FI_AV_USER_ID, null_mut());
        assert_eq!((inserted, addrs), (0, [none, none]));
        assert_eq!(pass_on(b.av, &names[0], 8), (1, 8));
        party.close();
        b.close();
        a.close();
        opened.close();
    });
}

/// `fi_av_open` with these attributes.
fn try_open(opened: &Opened, mut attr: fi_av_attr, context: *mut c_void) -> c_int {
    let (domain, mut av) = (opened.domain, null_mut());
    // SAFETY: the domain is open; the context is NULL or begins with its size.
    let result = unsafe { call!(domain, ops.av_open(&raw mut attr, &raw mut av, context)) };
    if result == 0 {
        assert_eq!(close(av.cast()), 0);
    }
    result
}

fn with_flags(flags: u64) -> fi_av_attr {
    fi_av_attr {
        type_: fi_av_type::FI_AV_MAP,
        flags: FI_PEER | flags,
        ..fi_av_attr::default()
    }
}

/// Covers: PEER-1, PEER-2, PEER-12
#[test]
fn vectors_that_are_not_imported() {
    alone("vectors_that_are_not_imported", |info| {
        let opened = Opened::new(info);
        let mut owner = OwnerVector::new();
        let attr = with_flags(0);
        let with = |change: &dyn Fn(&mut fi_peer_av_context), owner: &OwnerVector| {
            let mut context = owner.context();
            change(&mut context);
            try_open(&opened, attr, (&raw mut context).cast())
        };
        assert_eq!(with(&|_| (), &owner), 0);
        assert_eq!(with(&|context| context.size += 64, &owner), 0);
        assert_eq!(with(&|context| context.size -= 1, &owner), -FI_EINVAL);
        assert_eq!(with(&|context| context.size = 0, &owner), -FI_EINVAL);
        assert_eq!(with(&|context| context.av = null_mut(), &owner), -FI_EINVAL);
        let mut bare = fid_peer_av::default();
        let bare = &raw mut bare;
        assert_eq!(with(&|context| context.av = bare, &owner), -FI_EINVAL);
        assert_eq!(try_open(&opened, attr, null_mut()), -FI_EINVAL);
        // Its functions, and their answers.
        let whole = owner.ops;
        owner.ops.size -= 1;
        assert_eq!(with(&|_| (), &owner), -FI_EINVAL);
        owner.ops = whole;
        owner.ops.query = None;
        assert_eq!(with(&|_| (), &owner), -FI_EINVAL);
        owner.ops = whole;
        owner.ops.ep_addr = None;
        assert_eq!(with(&|_| (), &owner), -FI_EINVAL);
        owner.ops = whole;
        for (count, expected) in [
            (Err(-FI_EBADFLAGS), -FI_EBADFLAGS),
            (Err(7), -FI_EINVAL),
            (Err(c_int::MIN), -FI_EINVAL),
            (Ok(0), 0),
            (Ok(usize::MAX), 0),
        ] {
            owner.count = count;
            assert_eq!(with(&|_| (), &owner), expected, "{count:?}");
        }
        // Attributes that such a vector does not have.
        let mut context = owner.context();
        let context = (&raw mut context).cast();
        for flags in [FI_EVENT, FI_AV_USER_ID] {
            let refused = try_open(&opened, with_flags(flags), context);
            assert_eq!(refused, -FI_EINVAL, "{flags:#x}");
        }
        // Insertions come with the owner's addresses, which are the same everywhere or not.
        assert_eq!(try_open(&opened, with_flags(FI_SYMMETRIC), context), 0);
        let refused = try_open(&opened, with_flags(1 << 40), context);
        assert_eq!(refused, -FI_EBADFLAGS);
        opened.close();

        // SAFETY: the offer is there.
        unsafe {
            let domain = (*info.info).domain_attr;
            (*domain).__bindgen_anon_1.data_progress = fi_progress::FI_PROGRESS_AUTO;
        }
        let opened = Opened::new(info);
        assert_eq!(try_open(&opened, attr, context), -FI_EINVAL);
        opened.close();
    });
}

/// One-sided and atomic operations take the owner's addresses, too.
///
/// Covers: PEER-2
#[test]
fn one_sided_operations_go_by_the_owners_addresses() {
    two::asking_everywhere(
        "one_sided_operations_go_by_the_owners_addresses",
        |libfabric, domain| {
            let caps = FI_MSG | FI_TAGGED | ferro_fi::abi::FI_RMA | FI_ATOMIC;
            let info = rma::ask(libfabric, (libfabric.version, domain), caps, 0, |_| {}).unwrap();
            let opened = Opened::new(&info);
            let owner = OwnerVector::new();
            let a = Side::open(&opened, &info, shape());
            let b = open_importing(&opened, &info, &owner);
            insert(a.av, b.ep);
            let owners = OWNERS[1];
            assert_eq!(pass_on(b.av, &name_of(a.ep), owners), (1, owners));
            let mut memory = [1u64, 2, 3];
            let mut mr = null_mut();
            let rights = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
            // SAFETY: as fi_mr(3), fi_rma(3) and fi_atomic(3) have it; the memory stays.
            unsafe {
                let at = memory.as_mut_ptr().cast::<c_void>();
                let registered = ((*(*opened.domain).mr).reg.unwrap())(
                    opened.domain.cast(),
                    at,
                    24,
                    rights,
                    0,
                    7,
                    0,
                    &raw mut mr,
                    null_mut(),
                );
                assert_eq!(registered, 0);
                let key = (*mr).key;
                let drive = || while two::read(a.rx).is_ok() {};
                let until_done = || {
                    loop {
                        drive();
                        match two::read(b.tx) {
                            Ok(_) => return,
                            Err(error) => assert_eq!(error, two::EAGAIN),
                        }
                    }
                };
                let value = 40u64;
                let from = (&raw const value).cast::<c_void>();
                let (rma, atomic) = (&*(*b.ep).rma, &*(*b.ep).atomic);
                let write =
                    |dest| rma.write.unwrap()(b.ep, from, 8, null_mut(), dest, 8, key, null_mut());
                assert_eq!(write(0), -(FI_EADDRNOTAVAIL as isize));
                while write(owners) != 0 {
                    drive();
                }
                until_done();
                let add = |dest| {
                    let (kind, sum) = (fi_datatype::FI_UINT64, fi_op::FI_SUM);
                    let null = null_mut();
                    atomic.write.unwrap()(b.ep, from, 1, null, dest, 8, key, kind, sum, null)
                };
                assert_eq!(add(0), -(FI_EADDRNOTAVAIL as isize));
                while add(owners) != 0 {
                    drive();
                }
                until_done();
                let mut read = 0u64;
                let into = (&raw mut read).cast::<c_void>();
                while rma.read.unwrap()(b.ep, into, 8, null_mut(), owners, 8, key, null_mut()) != 0
                {
                    drive();
                }
                until_done();
                assert_eq!((std::ptr::read_volatile(into.cast::<u64>())), 80);
            }
            assert_eq!(close(mr.cast()), 0);
            assert_eq!(memory, [1, 80, 3]);
            b.close();
            a.close();
            opened.close();
        },
    );
}

/// An open endpoint's name with other numbers in it: well-formed, and nobody's.
fn nobodys(name: &[u8], number: u64) -> Vec<u8> {
    let mut name = name.to_vec();
    name[32..40].copy_from_slice(&(number + 1).to_ne_bytes());
    name
}

/// Insertions and removals by four threads, while messages run by other addresses: each address
/// ends where it should, and none is left.
///
/// Covers: PEER-2
#[test]
fn four_threads_pass_changes_on_while_messages_run() {
    const THREADS: u64 = 4;
    /// Exchanges while the addresses change, at least.
    const EXCHANGES: u64 = 10;

    everywhere("four_threads_pass_changes_on_while_messages_run", |info| {
        // An emulated processor has less time.
        let changes: u64 = if is_slow() { 10_000 } else { 100_000 };
        let each = changes / THREADS;
        let opened = Opened::new(info);
        let owner = OwnerVector::new();
        let a = Side::open(&opened, info, shape());
        let b = open_importing(&opened, info, &owner);
        let to_b = insert(a.av, b.ep);
        let name = name_of(a.ep);
        let to_a = 1 << 50;
        assert_eq!(pass_on(b.av, &name, to_a), (1, to_a));
        let (finished, exchanged) = (AtomicU64::new(0), AtomicU64::new(0));
        let av = b.av.expose_provenance();
        let vector_of = || Vector(std::ptr::with_exposed_provenance_mut::<fid_av>(av));
        let mut messages = 0u64;
        std::thread::scope(|threads| {
            let changers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (name, finished, exchanged) = (&name, &finished, &exchanged);
                    threads.spawn(move || {
                        let av = vector_of().0;
                        // A sixteenth of them stay for a while; the address of one is used again.
                        let mut stay = std::collections::VecDeque::new();
                        for i in 0.. {
                            if i >= each && exchanged.load(Ordering::Relaxed) >= EXCHANGES {
                                break;
                            }
                            let number = (thread << 32) | i;
                            let owners = (thread << 32) | ((i % 5000) << 4);
                            let one = nobodys(name, number);
                            assert_eq!(pass_on(av, &one, owners), (1, owners), "{number}");
                            let (found, len) = Vector(av).lookup(owners, 512).unwrap();
                            assert!(found[..len] == one, "{number}");
                            match i % 16 {
                                0 => stay.push_back((owners, one)),
                                _ => assert_eq!(pass_on_removal(av, owners), 0),
                            }
                            if stay.len() > 64 {
                                let (owners, one) = stay.pop_front().unwrap();
                                let (found, len) = Vector(av).lookup(owners, 512).unwrap();
                                assert!(found[..len] == one);
                                assert_eq!(pass_on_removal(av, owners), 0);
                            }
                        }
                        finished.fetch_add(1, Ordering::Relaxed);
                        stay
                    })
                })
                .collect();
            let mut into = [0u8; 8];
            while finished.load(Ordering::Relaxed) < THREADS {
                b.receive(&mut into, 1, 1);
                a.senddata(&messages.to_ne_bytes(), 0, to_b, 1);
                let (_, from) = next_from(b.rx);
                assert_eq!((from, into), (to_a, messages.to_ne_bytes()));
                next(a.tx).unwrap();
                a.receive(&mut into, 2, 1);
                b.senddata(&messages.to_ne_bytes(), 0, to_a, 2);
                next(b.tx).unwrap();
                next(a.rx).unwrap();
                messages += 1;
                exchanged.store(messages, Ordering::Relaxed);
            }
            for changer in changers {
                for (owners, one) in changer.join().unwrap() {
                    let (found, len) = vector_of().lookup(owners, 512).unwrap();
                    assert!(found[..len] == one);
                    assert_eq!(pass_on_removal(b.av, owners), 0);
                    assert!(vector_of().lookup(owners, 512).is_err());
                }
            }
        });
        assert!(messages >= EXCHANGES, "{messages}");
        // All are gone but one: their owner's addresses are free for others.
        for number in 0..1000 {
            let owners = number << 4;
            assert_eq!(pass_on_removal(b.av, owners), -FI_EINVAL);
            assert_eq!(pass_on(b.av, &nobodys(&name, number), owners), (1, owners));
        }
        b.close();
        a.close();
        opened.close();
    });
}
