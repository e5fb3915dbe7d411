//! The calls of an address vector with each flag, and with events, as fi_av(3) defines them: over
//! shared memory and over verbs.

use crate::{client, two, vector};
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;

use client::{Opened, close};
use ferro_fi::abi::{
    FI_AUTH_KEY, FI_AV_COMPLETE, FI_AV_USER_ID, FI_EACCES, FI_EAGAIN, FI_EAVAIL, FI_EBADFLAGS,
    FI_ECANCELED, FI_EINVAL, FI_ENOEQ, FI_EOPNOTSUPP, FI_EVENT, FI_MORE, FI_PEER, FI_READ,
    FI_SYMMETRIC, FI_SYNC_ERR, fi_addr_t, fi_av_attr, fi_av_type, fi_cq_tagged_entry, fi_eq_entry,
    fi_eq_err_entry,
};
use two::everywhere;
use vector::{NONE, Next, Vector, bad, names, next, queue};

const TYPES: [fi_av_type; 2] = [fi_av_type::FI_AV_MAP, fi_av_type::FI_AV_TABLE];

/// The value of a result that no call has written.
const UNTOUCHED: fi_addr_t = 0x5555_5555_5555;

fn each_bit() -> impl Iterator<Item = u64> {
    (0..64).map(|bit| 1 << bit)
}

fn attr(type_: fi_av_type, flags: u64) -> fi_av_attr {
    fi_av_attr {
        type_,
        flags,
        ..fi_av_attr::default()
    }
}

/// The three calls that insert.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Insertion {
    Array,
    Service,
    Range,
}

const INSERTIONS: [Insertion; 3] = [Insertion::Array, Insertion::Service, Insertion::Range];

impl Insertion {
    /// Inserts one address: that of `name`, whose text is `text`, or, of a range, a node that is
    /// never resolved.
    fn call(
        self,
        av: Vector,
        (name, text): (&[u8], &CString),
        addr: *mut fi_addr_t,
        flags: u64,
        context: *mut c_void,
    ) -> c_int {
        match self {
            Self::Array => av.insert(&[name.to_vec()], addr, flags, context),
            Self::Service => av.insertsvc_with(text, None, addr, flags, context),
            Self::Range => av.insertsym_with((c"127.0.0.1", 1), (c"7471", 1), addr, flags, context),
        }
    }
}

/// Each of the 64 flags with each call that inserts: the flags of fi_av(3) do what it says, and
/// each other flag is refused, with nothing inserted.
///
/// Covers: AV-10, AV-13, AV-14, AV-20
#[test]
fn each_flag_of_each_insertion() {
    everywhere("each_flag_of_each_insertion", |info| {
        let opened = Opened::new(info);
        let party = opened.party(info);
        let name = party.name();
        for type_ in TYPES {
            for asynchronous in [false, true] {
                let flags = if asynchronous { FI_EVENT } else { 0 };
                let av = Vector::open(&opened, &mut attr(type_, flags)).unwrap();
                let eq = queue(&opened);
                assert_eq!(av.bind(eq.cast(), 0), 0);
                let text = CString::new(av.text(&name, 512).0).unwrap();
                for call in INSERTIONS {
                    for flag in each_bit() {
                        one_flag(&av, eq, call, (&name, &text), asynchronous, flag);
                    }
                }
                // Refused calls have left nothing behind.
                let mut addr = UNTOUCHED;
                let fresh = &names(&party, 1)[0];
                let one = std::slice::from_ref(fresh);
                let inserted = av.insert(one, &raw mut addr, 0, null_mut());
                assert_eq!(inserted, c_int::from(!asynchronous));
                if asynchronous {
                    assert!(matches!(next(eq), Next::Done(end) if end.data == 1));
                }
                assert_eq!(av.lookup(addr, 64).unwrap().0[..64], fresh[..]);
                assert_eq!(close(av.0.cast()), 0);
                assert_eq!(close(eq.cast()), 0);
            }
        }
        party.close();
        opened.close();
    });
}

fn one_flag(
    av: &Vector,
    eq: *mut ferro_fi::abi::fid_eq,
    call: Insertion,
    who: (&[u8], &CString),
    asynchronous: bool,
    flag: u64,
) {
    let what = format!("{call:?} with flag {flag:#x}, asynchronous: {asynchronous}");
    let (mut addr, mut error): (fi_addr_t, c_int) = (UNTOUCHED, -1);
    let context = (&raw mut error).cast();
    let said = call.call(*av, who, &raw mut addr, flag, context);
    let refused = match flag {
        FI_MORE | FI_AV_USER_ID => None,
        FI_SYNC_ERR if asynchronous => Some(FI_EINVAL),
        FI_SYNC_ERR => None,
        // Keys are of domains that were opened for them.
        FI_AUTH_KEY => Some(FI_EOPNOTSUPP),
        _ => Some(FI_EBADFLAGS),
    };
    if let Some(errno) = refused {
        assert_eq!((said, addr, error), (-errno, UNTOUCHED, -1), "{what}");
        return;
    }
    let inserted = match asynchronous {
        false => said as u64,
        true => {
            assert_eq!(said, 0, "{what}");
            let mut failed = 0;
            loop {
                match next(eq) {
                    Next::Error(error) => {
                        assert_eq!((error.context, error.data), (context, 0), "{what}");
                        failed += 1;
                    }
                    Next::Done(end) => {
                        assert_eq!((end.context, end.data), (context, 1 - failed), "{what}");
                        break end.data;
                    }
                }
            }
        }
    };
    assert!(call == Insertion::Range || inserted == 1, "{what}");
    assert_eq!(addr == NONE, inserted == 0, "{what}");
    assert!(addr != UNTOUCHED, "{what}: no result");
    let told = flag == FI_SYNC_ERR;
    assert_eq!(error == -1, !told, "{what}: {error}");
    assert!(!told || (error == 0) == (inserted == 1), "{what}: {error}");
    if call != Insertion::Range {
        assert_eq!(av.lookup(addr, 64).unwrap().0[..64], *who.0, "{what}");
    }
}

/// `FI_MORE` defers nothing that anybody sees: results and errors of each call are there at its
/// return, and its peers are reached, though no call without the flag follows.
///
/// Covers: AV-14
#[test]
fn calls_with_more_are_complete_at_their_return() {
    everywhere("calls_with_more_are_complete_at_their_return", |info| {
        let opened = Opened::new(info);
        for type_ in TYPES {
            for flags in [FI_MORE | FI_SYNC_ERR, FI_MORE, 0] {
                let a = opened.party_of(info, attr(type_, 0));
                let b = opened.party(info);
                let to_a = b.insert(&a.name());
                let av = Vector(a.av);
                let other = names(&b, 2);
                let (mut addrs, mut errors) = ([UNTOUCHED; 3], [-1; 3]);
                let mixed = [other[0].clone(), bad(), b.name()];
                let context = errors.as_mut_ptr().cast();
                assert_eq!(av.insert(&mixed, addrs.as_mut_ptr(), flags, context), 2);
                if flags & FI_SYNC_ERR != 0 {
                    assert_eq!(errors, [0, FI_EINVAL, 0]);
                }
                assert_eq!(addrs[1], NONE);
                for (addr, name) in [(addrs[0], &mixed[0]), (addrs[2], &mixed[2])] {
                    assert_eq!(av.lookup(addr, 64).unwrap().0[..64], name[..]);
                }
                let text = CString::new(av.text(&other[1], 512).0).unwrap();
                let mut one = UNTOUCHED;
                let said = av.insertsvc_with(&text, None, &raw mut one, flags, context);
                assert_eq!(said, 1);
                assert_eq!(av.lookup(one, 64).unwrap().0[..64], other[1][..]);
                let mut range = [UNTOUCHED; 4];
                let at = range.as_mut_ptr();
                let (nodes, services) = ((c"127.0.0.1", 2), (c"7471", 2));
                let mut told = [-1; 4];
                let context = told.as_mut_ptr().cast();
                let said = av.insertsym_with(nodes, services, at, flags, context);
                let good = range.iter().filter(|addr| **addr != NONE).count();
                assert_eq!(said, good as c_int);
                assert!(!range.contains(&UNTOUCHED));
                if flags & FI_SYNC_ERR != 0 {
                    let of_good = told.iter().filter(|error| **error == 0).count();
                    assert_eq!(of_good, good);
                }
                let mut into = [0u8; 8];
                assert_eq!(b.receive(into.as_mut_ptr(), 8, null_mut(), 3), 0);
                let mut entry = fi_cq_tagged_entry::default();
                while a.inject(&[5; 8], addrs[2], 3) != 0 {
                    a.poll(&mut entry);
                }
                let (_, from) = meet(&a, &b);
                assert_eq!((from, into), (to_a, [5; 8]));
                a.close();
                b.close();
            }
        }
        opened.close();
    });
}

/// Drives both until the second has received, and returns its completion.
fn meet(a: &client::Party, b: &client::Party) -> (fi_cq_tagged_entry, fi_addr_t) {
    let until = std::time::Instant::now() + two::PATIENCE;
    let (mut entry, mut own, mut from) = (
        fi_cq_tagged_entry::default(),
        fi_cq_tagged_entry::default(),
        0,
    );
    loop {
        a.poll(&mut own);
        let out = (&raw mut entry).cast();
        // SAFETY: there is room for one.
        match unsafe { call!(b.cq, ops.readfrom(out, 1, &raw mut from)) } {
            1 => return (entry, from),
            error => assert_eq!(error, two::EAGAIN),
        }
        assert!(std::time::Instant::now() < until, "the message is lost");
    }
}

/// Before a queue is bound each call of each sort and size is refused, and writes nothing.
/// Afterwards each call ends by one event, and has an error event before for each address that
/// failed, also where all fail, and with `FI_MORE` and no call after it.
///
/// Covers: AV-7, AV-14
#[test]
fn each_asynchronous_call_ends_by_events() {
    everywhere("each_asynchronous_call_ends_by_events", |info| {
        let opened = Opened::new(info);
        let party = opened.party(info);
        for type_ in TYPES {
            let av = Vector::open(&opened, &mut attr(type_, FI_EVENT)).unwrap();
            let name = party.name();
            let text = CString::new(av.text(&name, 512).0).unwrap();
            let mut addrs = [UNTOUCHED; 4];
            let (at, context) = (addrs.as_mut_ptr(), 0xc1 as *mut c_void);
            for flags in [0, FI_MORE] {
                for call in INSERTIONS {
                    let said = call.call(av, (&name, &text), at, flags, context);
                    assert_eq!(said, -FI_ENOEQ, "{call:?}");
                }
                assert_eq!(av.insert(&[], at, flags, context), -FI_ENOEQ);
            }
            assert_eq!(addrs, [UNTOUCHED; 4]);
            let eq = queue(&opened);
            assert_eq!(av.bind(eq.cast(), 0), 0);
            let at = addrs.as_mut_ptr();
            for flags in [0, FI_MORE] {
                for (list, failing) in [
                    (vec![bad(), name.clone(), bad(), bad()], vec![0, 2, 3]),
                    (vec![bad(), bad()], vec![0, 1]),
                    (Vec::new(), Vec::new()),
                    (names(&party, 4), Vec::new()),
                ] {
                    // SAFETY: there is room for four.
                    unsafe { at.copy_from([UNTOUCHED; 4].as_ptr(), 4) };
                    assert_eq!(av.insert(&list, at, flags, context), 0);
                    for number in &failing {
                        let Next::Error(error) = next(eq) else {
                            panic!("the end comes before an error");
                        };
                        assert_eq!((error.fid, error.context), (av.0.cast(), context));
                        assert_eq!((error.data, error.err), (*number, FI_EINVAL));
                    }
                    let Next::Done(end) = next(eq) else {
                        panic!("more errors than addresses that fail");
                    };
                    assert_eq!((end.fid, end.context), (av.0.cast(), context));
                    assert_eq!(end.data as usize, list.len() - failing.len());
                    // SAFETY: the call is over.
                    let got = unsafe { std::slice::from_raw_parts(at, 4) };
                    for (number, addr) in got.iter().enumerate() {
                        match list.get(number) {
                            None => assert_eq!(*addr, UNTOUCHED),
                            Some(_) if failing.contains(&(number as u64)) => {
                                assert_eq!(*addr, NONE);
                            }
                            Some(name) => {
                                assert_eq!(av.lookup(*addr, 64).unwrap().0[..64], name[..]);
                            }
                        }
                    }
                }
            }
            assert_eq!(close(av.0.cast()), 0);
            assert_eq!(close(eq.cast()), 0);
        }
        party.close();
        opened.close();
    });
}

/// A vector that closes with calls under way aborts what has not begun: each call still ends by one
/// event, each aborted address has `FI_ECANCELED` and `FI_ADDR_NOTAVAIL`, and the events stay.
///
/// Covers: AV-7, AV-22
#[test]
fn what_a_closing_vector_aborts_is_cancelled() {
    const CALLS: usize = 100;
    const ADDRESSES: usize = 50;
    everywhere("what_a_closing_vector_aborts_is_cancelled", |info| {
        let opened = Opened::new(info);
        let party = opened.party(info);
        let some = names(&party, ADDRESSES as u8);
        for type_ in TYPES {
            let av = Vector::open(&opened, &mut attr(type_, FI_EVENT)).unwrap();
            let eq = queue(&opened);
            assert_eq!(av.bind(eq.cast(), 0), 0);
            let mut addrs = vec![[UNTOUCHED; ADDRESSES]; CALLS];
            let at = addrs.as_mut_ptr();
            for call in 0..CALLS {
                // SAFETY: each call has a row of its own, which stays until its event.
                let row = unsafe { at.add(call) };
                assert_eq!(
                    av.insert(&some, row.cast(), 0, (call + 1) as *mut c_void),
                    0
                );
            }
            assert_eq!(close(av.0.cast()), 0);
            let (mut ended, mut cancelled) = (vec![false; CALLS], vec![Vec::new(); CALLS]);
            let mut aborted = 0;
            // All events are there: nobody is left to write another.
            loop {
                let (mut number, mut entry) = (0, fi_eq_entry::default());
                let (out, len) = ((&raw mut entry).cast(), size_of::<fi_eq_entry>());
                // SAFETY: as fi_eq(3) has it.
                let read = unsafe { call!(eq, ops.read(&raw mut number, out, len, 0)) } as c_int;
                if read == -FI_EAGAIN {
                    break;
                }
                if read == -FI_EAVAIL {
                    let mut error = fi_eq_err_entry::default();
                    // SAFETY: as above.
                    assert!(unsafe { call!(eq, ops.readerr(&raw mut error, 0)) } > 0);
                    assert_eq!(error.err, FI_ECANCELED);
                    let call = error.context as usize - 1;
                    assert!(!ended[call], "an error after the end of its call");
                    cancelled[call].push(error.data as usize);
                    aborted += 1;
                    continue;
                }
                assert_eq!((read as usize, number), (len, FI_AV_COMPLETE));
                let call = entry.context as usize - 1;
                assert!(!std::mem::replace(&mut ended[call], true), "ends twice");
                assert_eq!(entry.data as usize, ADDRESSES - cancelled[call].len());
            }
            println!("{aborted} of {} addresses were aborted", CALLS * ADDRESSES);
            assert!(ended.iter().all(|ended| *ended), "calls that never ended");
            for (row, cancelled) in addrs.iter().zip(&cancelled) {
                for (number, addr) in row.iter().enumerate() {
                    assert_ne!(*addr, UNTOUCHED);
                    assert_eq!(*addr == NONE, cancelled.contains(&number));
                }
            }
            assert_eq!(close(eq.cast()), 0);
        }
        party.close();
        opened.close();
    });
}

/// A vector opens with the flags that fi_av(3) has, takes no flag when it is bound, and one queue.
/// A removal takes `FI_AUTH_KEY` alone, which is for keys: with any flag nothing is removed.
///
/// Covers: AV-1, AV-8, AV-17, AV-20
#[test]
fn each_flag_of_the_other_calls() {
    everywhere("each_flag_of_the_other_calls", |info| {
        let opened = Opened::new(info);
        let party = opened.party(info);
        for type_ in TYPES {
            for flag in each_bit() {
                let said = Vector::open(&opened, &mut attr(type_, flag));
                let expected = match flag {
                    FI_EVENT | FI_SYMMETRIC | FI_AV_USER_ID => None,
                    // They want a name, and the context of an owner.
                    FI_READ | FI_PEER => Some(-FI_EINVAL),
                    _ => Some(-FI_EBADFLAGS),
                };
                assert_eq!(said.as_ref().err(), expected.as_ref(), "{flag:#x}");
                if let Ok(av) = said {
                    assert_eq!(close(av.0.cast()), 0);
                }
            }
            let av = Vector::open(&opened, &mut attr(type_, FI_EVENT)).unwrap();
            let (eq, other) = (queue(&opened), queue(&opened));
            for flag in each_bit() {
                assert_eq!(av.bind(eq.cast(), flag), -FI_EINVAL);
            }
            assert_eq!(av.bind(null_mut(), 0), -FI_EINVAL);
            assert_eq!(av.bind(eq.cast(), 0), 0);
            for second in [other, eq] {
                assert_eq!(av.bind(second.cast(), 0), -FI_EINVAL);
            }
            assert_eq!(close(av.0.cast()), 0);
            assert_eq!(close(eq.cast()), 0);
            assert_eq!(close(other.cast()), 0);

            let with_ids = Vector::open(&opened, &mut attr(type_, FI_AV_USER_ID)).unwrap();
            let name = [party.name()];
            let mut addr = UNTOUCHED;
            assert_eq!(with_ids.insert(&name, &raw mut addr, 0, null_mut()), 1);
            for flag in each_bit() {
                // SAFETY: as fi_av(3) has it.
                let said = unsafe { call!(with_ids.0, ops.set_user_id(addr, 9, flag)) };
                let expected = match flag {
                    FI_AUTH_KEY => -FI_EOPNOTSUPP,
                    _ => -FI_EINVAL,
                };
                assert_eq!(said, expected, "an ID with flag {flag:#x}");
                let said = with_ids.remove(&mut [addr], flag);
                assert_eq!(said, expected, "a removal with flag {flag:#x}");
                assert_eq!(with_ids.lookup(addr, 64).unwrap().0[..64], name[0][..]);
            }
            assert_eq!(with_ids.remove(&mut [], 0), 0);
            // Once it is gone it is not there.
            assert_eq!(with_ids.remove(&mut [addr, addr], 0), -FI_EINVAL);
            assert_eq!(with_ids.lookup(addr, 64), Err(-FI_EINVAL));
            assert_eq!(with_ids.remove(&mut [NONE], 0), -FI_EINVAL);
            assert_eq!(close(with_ids.0.cast()), 0);
        }
        party.close();
        opened.close();
    });
}

/// A vector that was opened for reading refuses each call that would change it, with each flag,
/// also an asynchronous one at once.
///
/// Covers: AV-5
#[test]
fn a_reader_changes_nothing() {
    everywhere("a_reader_changes_nothing", |info| {
        let opened = Opened::new(info);
        let party = opened.party(info);
        for type_ in TYPES {
            let number = type_.0;
            let name = CString::new(format!("reader {number} {}", std::process::id())).unwrap();
            let named = |flags| fi_av_attr {
                name: name.as_ptr(),
                ..attr(type_, flags)
            };
            let missing = Vector::open(&opened, &mut named(FI_READ)).err();
            assert_eq!(missing, Some(-libc::ENOENT));
            let maker = Vector::open(&opened, &mut named(0)).unwrap();
            let reader = Vector::open(&opened, &mut named(FI_READ)).unwrap();
            let later = Vector::open(&opened, &mut named(FI_READ | FI_EVENT)).unwrap();
            let eq = queue(&opened);
            assert_eq!(later.bind(eq.cast(), 0), 0);
            let own = party.name();
            let text = CString::new(reader.text(&own, 512).0).unwrap();
            let mut there = UNTOUCHED;
            assert_eq!(
                maker.insert(&names(&party, 1), &raw mut there, 0, null_mut()),
                1
            );
            let mut addr = UNTOUCHED;
            for av in [reader, later] {
                for flags in [0, FI_MORE, FI_AV_USER_ID] {
                    for call in INSERTIONS {
                        let said = call.call(av, (&own, &text), &raw mut addr, flags, null_mut());
                        assert_eq!(said, -FI_EACCES, "{call:?} with {flags:#x}");
                    }
                }
                assert_eq!(av.remove(&mut [there], 0), -FI_EACCES);
                assert_eq!(av.lookup(there, 64), maker.lookup(there, 64));
            }
            assert_eq!(addr, UNTOUCHED);
            let (mut number, mut out) = (0, [0u8; 64]);
            let out = out.as_mut_ptr().cast();
            // SAFETY: as fi_eq(3) has it.
            let nothing = unsafe { call!(eq, ops.read(&raw mut number, out, 64, 0)) };
            assert_eq!(nothing, two::EAGAIN, "a refused call has no event");
            for object in [maker.0, reader.0, later.0] {
                assert_eq!(close(object.cast()), 0);
            }
            assert_eq!(close(eq.cast()), 0);
        }
        party.close();
        opened.close();
    });
}
