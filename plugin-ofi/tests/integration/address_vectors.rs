//! Address vectors and their events as an application of libfabric's sees them: fi_av(3), fi_eq(3).

use crate::{child, client, vector};
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;

use client::{Info, Opened, close};
use ferro_fi::abi::{
    FI_AV_USER_ID, FI_EBADFLAGS, FI_EINVAL, FI_ENOEQ, FI_EVENT, FI_MORE, FI_READ, FI_SYMMETRIC,
    FI_SYNC_ERR, FI_TAGGED, fi_addr_t, fi_av_attr, fi_av_type, fi_cq_tagged_entry, fi_threading,
};
use ferrofabric_shm::ShmProvider;
use vector::{NONE, Next, Vector, bad, names, next, queue};

fn alone(test: &str, body: impl FnOnce(&Info<'_>)) {
    child::alone(test, |libfabric| {
        body(&libfabric.discover(ShmProvider::DOMAIN, fi_threading::FI_THREAD_SAFE));
    });
}

/// Covers: AV-1, AV-2, AV-3, AV-5
#[test]
fn attributes_say_what_is_opened() {
    alone("attributes_say_what_is_opened", |info| {
        let opened = Opened::new(info);
        for (asked, given) in [
            (fi_av_type::FI_AV_MAP, fi_av_type::FI_AV_MAP),
            (fi_av_type::FI_AV_TABLE, fi_av_type::FI_AV_TABLE),
            (fi_av_type::FI_AV_UNSPEC, fi_av_type::FI_AV_TABLE),
        ] {
            for (count, ep_per_node, bits, flags) in [
                (0, 0, 0, 0),
                (1000, 16, 8, FI_SYMMETRIC),
                (1, 0, 24, FI_EVENT),
                (10, 2, 0, FI_EVENT | FI_SYMMETRIC),
            ] {
                let mut attr = fi_av_attr {
                    type_: asked,
                    count,
                    ep_per_node,
                    rx_ctx_bits: bits,
                    flags,
                    ..fi_av_attr::default()
                };
                let av = Vector::open(&opened, &mut attr).unwrap();
                assert_eq!(attr.type_, given);
                assert_eq!(close(av.0.cast()), 0);
            }
        }
        for (bits, flags, errno) in [
            (33, 0, FI_EINVAL),
            (-1, 0, FI_EINVAL),
            (0, FI_READ, FI_EINVAL),
            (0, 1 << 39, FI_EBADFLAGS),
        ] {
            let mut attr = fi_av_attr {
                rx_ctx_bits: bits,
                flags,
                ..fi_av_attr::default()
            };
            assert_eq!(Vector::open(&opened, &mut attr).err(), Some(-errno));
        }
        opened.close();
    });
}

/// Covers: AV-10, AV-11, AV-12, AV-13, AV-14, AV-23
#[test]
fn a_malformed_address_fails_alone() {
    alone("a_malformed_address_fails_alone", |info| {
        let opened = Opened::new(info);
        let party = opened.party(info);
        let good = names(&party, 6);
        for type_ in [fi_av_type::FI_AV_MAP, fi_av_type::FI_AV_TABLE] {
            let av = Vector::of_type(&opened, type_);
            let mixed = [good[0].clone(), bad(), good[1].clone(), bad()];
            let mut addrs = [0; 4];
            let mut errors: [c_int; 4] = [-1; 4];
            let context = errors.as_mut_ptr().cast();
            for flags in [FI_SYNC_ERR, FI_SYNC_ERR | FI_MORE, FI_MORE, 0] {
                // Those that are there stay what they are.
                assert_eq!(av.insert(&mixed, addrs.as_mut_ptr(), flags, context), 2);
                assert_eq!(errors, [0, FI_EINVAL, 0, FI_EINVAL]);
                assert_eq!([addrs[1], addrs[3]], [NONE; 2]);
                let found = av.lookup(addrs[2], 64).unwrap();
                assert_eq!((&found.0[..64], found.1), (&good[1][..], 64));
            }
            if type_ == fi_av_type::FI_AV_TABLE {
                // A failed address keeps its index until the call is over, then the next insertion
                // has it.
                assert_eq!([addrs[0], addrs[2]], [0, 2]);
                assert_eq!(av.lookup(1, 64), Err(-FI_EINVAL));
                assert_eq!(av.insert(&good[2..5], null_mut(), 0, null_mut()), 3);
                for (index, n) in [(1, 2), (3, 3), (4, 4)] {
                    assert_eq!(av.lookup(index, 64).unwrap().0[..64], good[n][..]);
                }
            } else {
                // Nobody would know what they are.
                let refused = av.insert(&good[2..5], null_mut(), 0, null_mut());
                assert_eq!(refused, -FI_EINVAL);
            }
            let none = av.insert(&[], addrs.as_mut_ptr(), 0, null_mut());
            assert_eq!(none, 0);
            let addrs = addrs.as_mut_ptr();
            let unknown = av.insert(&good[5..], addrs, FI_TAGGED, null_mut());
            assert_eq!(unknown, -FI_EBADFLAGS);
            let nowhere = av.insert(&good[5..], addrs, FI_SYNC_ERR, null_mut());
            assert_eq!(nowhere, -FI_EINVAL);
            assert_eq!(close(av.0.cast()), 0);
        }
        party.close();
        opened.close();
    });
}

/// Covers: AV-17, AV-23
#[test]
fn what_is_not_there_is_refused_and_the_others_are_removed() {
    alone(
        "what_is_not_there_is_refused_and_the_others_are_removed",
        |info| {
            let opened = Opened::new(info);
            let party = opened.party(info);
            let all = names(&party, 4);
            for type_ in [fi_av_type::FI_AV_MAP, fi_av_type::FI_AV_TABLE] {
                let av = Vector::of_type(&opened, type_);
                let mut addrs = [0; 4];
                let inserted = av.insert(&all, addrs.as_mut_ptr(), 0, null_mut());
                assert_eq!(inserted, 4);
                assert_eq!(av.remove(&mut addrs[..1], FI_MORE), -FI_EINVAL);
                assert!(av.lookup(addrs[0], 64).is_ok());
                let mut some = [addrs[3], 1 << 31, addrs[1]];
                assert_eq!(av.remove(&mut some, 0), -FI_EINVAL);
                for (i, gone) in [false, true, false, true].into_iter().enumerate() {
                    assert_eq!(av.lookup(addrs[i], 64).is_err(), gone);
                }
                let mut again = 0;
                let inserted = av.insert(&all[3..], &raw mut again, 0, null_mut());
                assert_eq!(inserted, 1);
                match type_ == fi_av_type::FI_AV_TABLE {
                    true => assert_eq!(again, 1),
                    false => assert!(!addrs.contains(&again)),
                }
                assert_eq!(close(av.0.cast()), 0);
            }
            party.close();
            opened.close();
        },
    );
}

/// Covers: AV-18, AV-19
#[test]
fn what_does_not_fit_is_cut_and_its_length_told() {
    alone("what_does_not_fit_is_cut_and_its_length_told", |info| {
        let opened = Opened::new(info);
        let party = opened.party(info);
        let name = party.name();
        let av = Vector(party.av);
        let addr = party.insert(&name);
        for room in [0, 1, 63, 64, 100] {
            let (out, len) = av.lookup(addr, room).unwrap();
            let fit = room.min(64);
            assert_eq!(len, 64);
            assert_eq!(out[..fit], name[..fit]);
            assert!(out[fit..].iter().all(|b| *b == 0xaa));
        }
        // Not inserted, and printed all the same.
        let other = &names(&party, 1)[0];
        let (whole, needed) = av.text(other, 512);
        assert_eq!(needed, whole.len() + 1);
        for room in [0, 1, 2, needed - 1, needed] {
            let (text, len) = av.text(other, room);
            assert_eq!(
                (text.as_str(), len),
                (&whole[..room.saturating_sub(1)], needed)
            );
        }
        // The printed text gives the address back.
        let text = CString::new(whole).unwrap();
        let mut again = 0;
        assert_eq!(av.insertsvc(&text, None, &raw mut again), 1);
        assert_eq!(av.lookup(again, 64).unwrap().0[..64], other[..]);
        party.close();
        opened.close();
    });
}

/// Covers: AV-15, AV-16
#[test]
fn names_that_are_none_are_refused_and_insert_nothing() {
    alone(
        "names_that_are_none_are_refused_and_insert_nothing",
        |info| {
            let opened = Opened::new(info);
            let party = opened.party(info);
            let av = Vector(party.av);
            let text = CString::new(av.text(&party.name(), 512).0).unwrap();
            let mut addrs = [5; 4];
            let at = addrs.as_mut_ptr();
            assert_eq!(av.insertsvc(&text, Some(c"5000"), at), -FI_EINVAL);
            assert_eq!(av.insertsvc(c"10.0.0.1", None, at), -FI_EINVAL);
            for (node, service) in [
                ((c"host", 2), (c"5000", 1)),
                ((c"host1", 1), (c"no-such-service", 1)),
                ((c"host1", 1), (c"65535", 2)),
                ((c"host1", 0), (c"5000", 1)),
                ((c"host1", 1), (c"5000", 0)),
            ] {
                assert_eq!(av.insertsym(node, service, at), -FI_EINVAL);
            }
            assert_eq!(addrs, [5; 4]);
            // Nobody resolves socket addresses to shared memory: each fails by itself.
            let at = addrs.as_mut_ptr();
            assert_eq!(av.insertsym((c"127.0.0.1", 2), (c"5000", 2), at), 0);
            assert_eq!(addrs, [NONE; 4]);
            assert_eq!(party.insert(&party.name()), 0);
            party.close();
            opened.close();
        },
    );
}

/// MPICH first looks for a named address vector, and goes on without one.
///
/// Covers: AV-4, AV-5, AV-6
#[test]
fn a_named_one_is_made_by_who_may_and_found_by_the_others() {
    alone(
        "a_named_one_is_made_by_who_may_and_found_by_the_others",
        |info| {
            let opened = Opened::new(info);
            let party = opened.party(info);
            let name = CString::new(format!("plugin test {}", std::process::id())).unwrap();
            let mut to_read = fi_av_attr {
                type_: fi_av_type::FI_AV_TABLE,
                name: name.as_ptr(),
                flags: FI_READ,
                ..fi_av_attr::default()
            };
            let missing = Vector::open(&opened, &mut to_read).err();
            assert_eq!(missing, Some(-libc::ENOENT));
            let mut to_make = fi_av_attr {
                flags: 0,
                ..to_read
            };
            let made = Vector::open(&opened, &mut to_make).unwrap();
            assert!(!to_make.map_addr.is_null());
            let read = Vector::open(&opened, &mut to_read).unwrap();
            assert_eq!(to_read.map_addr, to_make.map_addr);
            let all = names(&party, 3);
            let mut addrs = [0; 3];
            assert_eq!(made.insert(&all, addrs.as_mut_ptr(), 0, null_mut()), 3);
            for (addr, name) in addrs.iter().zip(&all) {
                assert_eq!(read.lookup(*addr, 64).unwrap().0[..64], name[..]);
            }
            // The array that stock programs read: the addresses by order of insertion.
            // SAFETY: it is there as long as the address vector, and nobody writes now.
            let listed = || unsafe {
                std::slice::from_raw_parts(to_read.map_addr.cast::<fi_addr_t>(), 4).to_vec()
            };
            assert_eq!(listed(), [addrs[0], addrs[1], addrs[2], NONE]);
            let denied = -libc::EACCES;
            assert_eq!(read.insert(&all, addrs.as_mut_ptr(), 0, null_mut()), denied);
            assert_eq!(read.remove(&mut addrs, 0), denied);
            assert_eq!(made.remove(&mut addrs[..1], 0), 0);
            assert_eq!(read.lookup(addrs[0], 64), Err(-FI_EINVAL));
            assert_eq!(listed(), [NONE, addrs[1], addrs[2], NONE]);
            for av in [made, read] {
                assert_eq!(close(av.0.cast()), 0);
            }
            let gone = Vector::open(&opened, &mut to_read).err();
            assert_eq!(gone, Some(-libc::ENOENT));
            party.close();
            opened.close();
        },
    );
}

/// Covers: AV-20
#[test]
fn ids_are_asked_for_at_opening_or_at_insertion_and_not_at_both() {
    alone(
        "ids_are_asked_for_at_opening_or_at_insertion_and_not_at_both",
        |info| {
            let opened = Opened::new(info);
            let party = opened.party(info);
            let all = names(&party, 2);
            let set = |av: Vector, addr, id, flags| {
                // SAFETY: as fi_av(3) has it.
                unsafe { call!(av.0, ops.set_user_id(addr, id, flags)) }
            };
            let mut attr = fi_av_attr {
                flags: FI_AV_USER_ID,
                ..fi_av_attr::default()
            };
            let with = Vector::open(&opened, &mut attr).unwrap();
            let mut addrs = [70, 71];
            let at = addrs.as_mut_ptr();
            let both = with.insert(&all, at, FI_AV_USER_ID, null_mut());
            assert_eq!(both, -FI_EINVAL);
            assert_eq!(with.insert(&all, at, 0, null_mut()), 2);
            assert_eq!(set(with, addrs[1], 9, 0), 0);
            assert_eq!(set(with, addrs[1], 9, 1), -FI_EINVAL);
            assert_eq!(set(with, 1 << 20, 9, 0), -FI_EINVAL);
            let without = Vector::of_type(&opened, fi_av_type::FI_AV_TABLE);
            addrs = [70, 71];
            let at = addrs.as_mut_ptr();
            let nowhere = without.insert(&all, null_mut(), FI_AV_USER_ID, null_mut());
            assert_eq!(nowhere, -FI_EINVAL);
            assert_eq!(without.insert(&all, at, FI_AV_USER_ID, null_mut()), 2);
            assert_eq!(addrs, [0, 1]);
            assert_eq!(set(without, 0, 9, 0), -FI_EINVAL);
            for av in [with, without] {
                assert_eq!(close(av.0.cast()), 0);
            }

            // A message from itself says who it is by the ID that was given on the way in.
            let name = party.name();
            let mut me = 4711;
            let own = Vector(party.av);
            let insert = own.insert(&[name], &raw mut me, FI_AV_USER_ID, null_mut());
            assert_eq!((insert, me), (1, 0));
            let mut into = [0u8; 8];
            assert_eq!(party.receive(into.as_mut_ptr(), 8, null_mut(), 3), 0);
            assert_eq!(party.inject(&[1; 8], me, 3), 0);
            let mut entry = fi_cq_tagged_entry::default();
            let mut from = 0;
            // SAFETY: as fi_cq(3) has it.
            while unsafe {
                let entry = (&raw mut entry).cast();
                call!(party.cq, ops.readfrom(entry, 1, &raw mut from)) != 1
            } {
                std::thread::yield_now();
            }
            assert_eq!((from, into), (4711, [1; 8]));
            party.close();
            opened.close();
        },
    );
}

/// Covers: AV-7, AV-8, AV-13, AV-22
#[test]
fn asynchronous_insertions_end_with_events() {
    alone("asynchronous_insertions_end_with_events", |info| {
        let opened = Opened::new(info);
        let party = opened.party(info);
        let mut attr = fi_av_attr {
            type_: fi_av_type::FI_AV_TABLE,
            flags: FI_EVENT,
            ..fi_av_attr::default()
        };
        let av = Vector::open(&opened, &mut attr).unwrap();
        let good = names(&party, 3);
        let mut addrs = [5; 3];
        let context = 0xc0 as *mut c_void;
        let early = av.insert(&good, addrs.as_mut_ptr(), 0, context);
        assert_eq!((early, addrs), (-FI_ENOEQ, [5; 3]));
        let (eq, other) = (queue(&opened), queue(&opened));
        assert_eq!(av.bind(eq.cast(), 1), -FI_EINVAL);
        assert_eq!(av.bind(party.cq.cast(), 0), -FI_EINVAL);
        assert_eq!(av.bind(eq.cast(), 0), 0);
        assert_eq!(av.bind(other.cast(), 0), -FI_EINVAL);
        assert_eq!(close(eq.cast()), -libc::EBUSY);
        let tell = av.insert(&good, addrs.as_mut_ptr(), FI_SYNC_ERR, context);
        assert_eq!(tell, -FI_EINVAL);

        let mixed = [bad(), good[0].clone(), bad()];
        assert_eq!(av.insert(&mixed, addrs.as_mut_ptr(), FI_MORE, context), 0);
        for number in [0, 2] {
            let Next::Error(error) = next(eq) else {
                panic!("the end came before the errors");
            };
            assert_eq!(error.fid, av.0.cast());
            assert_eq!((error.context, error.data), (context, number));
            assert_eq!(error.err, FI_EINVAL);
            // SAFETY: the queue keeps it until the next error.
            let why = unsafe {
                std::slice::from_raw_parts(error.err_data.cast::<u8>(), error.err_data_size)
            };
            let why = String::from_utf8_lossy(why).into_owned();
            assert!(why.contains("not a native address"), "{why}");
        }
        let Next::Done(end) = next(eq) else {
            panic!("two addresses fail");
        };
        assert_eq!((end.fid, end.context, end.data), (av.0.cast(), context, 1));
        assert_eq!(addrs, [NONE, 1, NONE]);

        // The end comes also when all fail, and when there is none; ends are counted in calls.
        let text = CString::new(av.text(&good[1], 512).0).unwrap();
        let mut one = 5;
        assert_eq!(av.insert(&[], null_mut(), 0, std::ptr::dangling_mut()), 0);
        assert!(matches!(next(eq), Next::Done(end) if end.data == 0));
        assert_eq!(av.insertsvc(&text, None, &raw mut one), 0);
        assert!(matches!(next(eq), Next::Done(end) if end.data == 1));
        assert_eq!(one, 0);
        let at = addrs.as_mut_ptr();
        assert_eq!(av.insertsym((c"127.0.0.1", 1), (c"5000", 2), at), 0);
        assert!(matches!(next(eq), Next::Error(error) if error.data == 0));
        assert!(matches!(next(eq), Next::Error(error) if error.data == 1));
        // The address vector may go before its events are read.
        assert_eq!(close(av.0.cast()), 0);
        assert!(matches!(next(eq), Next::Done(end) if end.data == 0));
        assert_eq!(addrs[..2], [NONE; 2]);
        for eq in [eq, other] {
            assert_eq!(close(eq.cast()), 0);
        }
        party.close();
        opened.close();
    });
}
