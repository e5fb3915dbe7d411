//! Event queues of another provider, over stock libfabric: this program is the owner (fi_peer(3)).

use crate::{client, owner, two, vector};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use client::{Opened, Party, close};
use ferro_fi::abi::{
    FI_AV_COMPLETE, FI_EBADFLAGS, FI_EINVAL, FI_ENOMEM, FI_EVENT, FI_PEER, FI_WRITE, fi_addr_t,
    fi_av_attr, fi_eq_attr, fi_eq_entry, fi_eq_err_entry, fi_peer_eq_context, fid_eq,
};
use owner::events::{OwnerEvents, WrittenEvent, drive_events};
use two::{alone, control, everywhere};
use vector::{NONE, Next, Vector};

const ENOSYS: isize = -(libc::ENOSYS as isize);

/// `fi_eq_open` with flags and a context.
fn open(
    opened: &Opened,
    flags: u64,
    context: *mut fi_peer_eq_context,
) -> Result<*mut fid_eq, c_int> {
    let (fabric, mut eq) = (opened.fabric, null_mut());
    let mut attr = fi_eq_attr {
        flags,
        ..fi_eq_attr::default()
    };
    // SAFETY: the fabric is open; the context is NULL or begins with its size.
    match unsafe {
        call!(
            fabric,
            ops.eq_open(&raw mut attr, &raw mut eq, context.cast())
        )
    } {
        0 => Ok(eq),
        error => Err(error),
    }
}

/// The queue of an owner, imported.
fn import(opened: &Opened, owner: &OwnerEvents) -> *mut fid_eq {
    let mut context = owner.context();
    // The context ends with this call.
    open(opened, FI_PEER, &raw mut context).unwrap()
}

/// An address vector for asynchronous insertion, bound to a queue.
fn vector_with(opened: &Opened, eq: *mut fid_eq) -> Vector {
    let mut attr = fi_av_attr {
        flags: FI_EVENT,
        ..fi_av_attr::default()
    };
    let av = Vector::open(opened, &mut attr).unwrap();
    assert_eq!(av.bind(eq.cast(), 0), 0);
    av
}

/// Three addresses, the second of which is none.
fn list(party: &Party) -> Vec<Vec<u8>> {
    let names = vector::names(party, 2);
    vec![names[0].clone(), vector::bad(), names[1].clone()]
}

/// The events of an insertion of [`list`].
fn events_of(av: Vector, context: usize) -> [WrittenEvent; 2] {
    let failed = WrittenEvent {
        number: 0,
        fid: av.0.addr(),
        context,
        data: 1,
        error: FI_EINVAL,
    };
    let done = WrittenEvent {
        number: FI_AV_COMPLETE,
        data: 2,
        error: 0,
        ..failed
    };
    [failed, done]
}

fn insert(av: Vector, list: &[Vec<u8>], addrs: &mut [fi_addr_t; 3], context: usize) {
    let begun = av.insert(list, addrs.as_mut_ptr(), 0, context as *mut c_void);
    assert_eq!(begun, 0);
}

/// The events of asynchronous insertions come out of the owner's queue, without a call of the
/// owner's.
///
/// Covers: PEER-7
#[test]
fn events_of_insertions_go_to_the_owner() {
    everywhere("events_of_insertions_go_to_the_owner", |info| {
        let opened = Opened::new(info);
        let owner = OwnerEvents::new();
        let (eq, party) = (import(&opened, &owner), opened.party(info));
        let av = vector_with(&opened, eq);
        let names = list(&party);
        for context in 1..20 {
            let mut addrs = [7; 3];
            insert(av, &names, &mut addrs, context);
            let until = std::time::Instant::now() + two::PATIENCE;
            while owner.written.lock().unwrap().len() < 2 {
                assert!(std::time::Instant::now() < until, "no event comes");
                std::thread::yield_now();
            }
            assert_eq!(owner.take(), events_of(av, context));
            assert!(addrs[0] != NONE && addrs[1] == NONE && addrs[2] != NONE);
            assert_eq!(av.remove(&mut [addrs[0], addrs[2]], 0), 0);
        }
        assert_eq!(close(eq.cast()), -libc::EBUSY);
        assert_eq!(close(av.0.cast()), 0);
        assert_eq!(close(eq.cast()), 0);
        party.close();
        opened.close();
    });
}

/// Events for which the owner has no room are kept, in their order; those that it refuses otherwise
/// are lost. The owner may read in its own function.
///
/// Covers: PEER-7
#[test]
fn an_owner_that_refuses_and_calls_back_loses_no_event() {
    alone(
        "an_owner_that_refuses_and_calls_back_loses_no_event",
        |info| {
            let opened = Opened::new(info);
            let owner = OwnerEvents::new();
            let (eq, party) = (import(&opened, &owner), opened.party(info));
            owner.read_within.store(eq, Ordering::Relaxed);
            let av = vector_with(&opened, eq);
            let names = list(&party);
            let mut addrs = [7; 3];
            for (context, error) in (1..30).zip([libc::EAGAIN, FI_ENOMEM].into_iter().cycle()) {
                *owner.refusal.lock().unwrap() = -(error as isize);
                owner.refusals.store(context % 5, Ordering::Relaxed);
                insert(av, &names, &mut addrs, context);
                assert_eq!(owner.await_events(eq, 2), events_of(av, context));
                assert_eq!(av.remove(&mut [addrs[0], addrs[2]], 0), 0);
            }
            for error in [-(FI_EINVAL as isize), isize::MIN] {
                *owner.refusal.lock().unwrap() = error;
                owner.refusals.store(1, Ordering::Relaxed);
                insert(av, &names, &mut addrs, 50);
                assert_eq!(owner.await_events(eq, 1), events_of(av, 50)[1..]);
                assert_eq!(av.remove(&mut [addrs[0], addrs[2]], 0), 0);
            }
            assert_eq!(close(av.0.cast()), 0);
            assert_eq!(close(eq.cast()), 0);
            party.close();
            opened.close();
        },
    );
}

/// Insertions into four address vectors write to one owner's queue: all events come, those of each
/// vector in their order.
///
/// Covers: PEER-7
#[test]
fn four_vectors_write_to_one_owner() {
    const CALLS: usize = 200;

    alone("four_vectors_write_to_one_owner", |info| {
        let opened = Opened::new(info);
        let owner = OwnerEvents::new();
        let (eq, party) = (import(&opened, &owner), opened.party(info));
        let vectors = [0; 4].map(|_| vector_with(&opened, eq));
        let names = list(&party);
        let mut addrs = Box::new([[7; 3]; 4 * CALLS]);
        for (number, addrs) in addrs.iter_mut().enumerate() {
            insert(vectors[number % 4], &names, addrs, number + 1);
        }
        let events = owner.await_events(eq, 2 * 4 * CALLS);
        for (which, av) in vectors.into_iter().enumerate() {
            // Calls of one vector run side by side, so that their ends may change places. The
            // events of each call do not.
            for call in 0..CALLS {
                let context = 4 * call + which + 1;
                let of_call = events.iter().filter(|event| event.context == context);
                let of_call: Vec<_> = of_call.copied().collect();
                assert_eq!(of_call, events_of(av, context));
            }
            assert_eq!(close(av.0.cast()), 0);
        }
        assert!(owner.take().is_empty());
        assert_eq!(close(eq.cast()), 0);
        party.close();
        opened.close();
    });
}

/// This provider on both sides: events and errors come out of the queue of the one that is the
/// owner.
///
/// Covers: PEER-7
#[test]
fn a_queue_of_this_provider_is_imported() {
    alone("a_queue_of_this_provider_is_imported", |info| {
        let opened = Opened::new(info);
        let owners = open_for_waits(&opened);
        let mut context = fi_peer_eq_context {
            size: size_of::<fi_peer_eq_context>(),
            eq: owners,
        };
        let eq = open(&opened, FI_PEER, &raw mut context).unwrap();
        let party = opened.party(info);
        let av = vector_with(&opened, eq);
        let mut addrs = [7; 3];
        insert(av, &list(&party), &mut addrs, 9);
        match vector::next(owners) {
            Next::Error(error) => {
                assert_eq!(error.fid, av.0.cast());
                assert_eq!((error.context.addr(), error.data), (9, 1));
                assert_eq!(error.err, FI_EINVAL);
            }
            Next::Done(_) => panic!("the error comes first"),
        }
        match vector::next(owners) {
            Next::Done(done) => {
                assert_eq!(done.fid, av.0.cast());
                assert_eq!((done.context.addr(), done.data), (9, 2));
            }
            Next::Error(error) => panic!("{}", error.err),
        }
        for fid in [av.0.cast(), eq.cast(), owners.cast()] {
            assert_eq!(close(fid), 0);
        }
        party.close();
        opened.close();
    });
}

/// A queue that can be written, and waited at.
fn open_for_waits(opened: &Opened) -> *mut fid_eq {
    let (fabric, mut eq) = (opened.fabric, null_mut());
    let mut attr = fi_eq_attr {
        flags: FI_WRITE,
        wait_obj: ferro_fi::abi::fi_wait_obj::FI_WAIT_UNSPEC,
        ..fi_eq_attr::default()
    };
    // SAFETY: the fabric is open.
    let result = unsafe { call!(fabric, ops.eq_open(&raw mut attr, &raw mut eq, null_mut())) };
    assert_eq!(result, 0);
    eq
}

/// Covers: PEER-1, PEER-7, PEER-12
#[test]
fn queues_that_are_not_imported_and_calls_that_are_the_owners() {
    alone(
        "queues_that_are_not_imported_and_calls_that_are_the_owners",
        |info| {
            let opened = Opened::new(info);
            let mut owner = OwnerEvents::new();
            let with = |owner: &OwnerEvents, change: &dyn Fn(&mut fi_peer_eq_context)| {
                let mut context = owner.context();
                change(&mut context);
                let eq = open(&opened, FI_PEER, &raw mut context)?;
                assert_eq!(close(eq.cast()), 0);
                Ok::<_, c_int>(())
            };
            let refused = Err(-FI_EINVAL);
            assert_eq!(with(&owner, &|_| ()), Ok(()));
            assert_eq!(with(&owner, &|context| context.size += 64), Ok(()));
            assert_eq!(with(&owner, &|context| context.size -= 1), refused);
            assert_eq!(with(&owner, &|context| context.eq = null_mut()), refused);
            let mut bare = fid_eq::default();
            let bare = &raw mut bare;
            assert_eq!(with(&owner, &|context| context.eq = bare), refused);
            assert_eq!(open(&opened, FI_PEER, null_mut()), Err(-FI_EINVAL));
            let mut context = owner.context();
            let other = open(&opened, FI_PEER | (1 << 40), &raw mut context);
            assert_eq!(other, Err(-FI_EBADFLAGS));
            let whole = owner.ops;
            owner.ops.size -= 1;
            assert_eq!(with(&owner, &|_| ()), refused);
            owner.ops = fi_ops_without_write(whole);
            assert_eq!(with(&owner, &|_| ()), refused);
            owner.ops = whole;

            let eq = import(&opened, &owner);
            assert_eq!(drive_events(eq), 0);
            let (mut number, mut entry) = (0, fi_eq_entry::default());
            let (mut error, mut fd) = (fi_eq_err_entry::default(), -1);
            let at: *mut c_void = (&raw mut entry).cast();
            // SAFETY: the queue is open, and there is room.
            unsafe {
                let len = size_of::<fi_eq_entry>();
                assert_eq!(call!(eq, ops.read(&raw mut number, at, len, 0)), ENOSYS);
                assert_eq!(call!(eq, ops.sread(&raw mut number, at, len, 0, 0)), ENOSYS);
                assert_eq!(call!(eq, ops.readerr(&raw mut error, 0)), ENOSYS);
                assert_eq!(call!(eq, ops.write(1, at, len, 0)), ENOSYS);
            }
            let command = ferro_fi::abi::FI_GETWAIT;
            assert_ne!(control(eq.cast(), command, (&raw mut fd).cast()), 0);
            assert_eq!(close(eq.cast()), 0);
            assert!(owner.take().is_empty());
            opened.close();
        },
    );
}

fn fi_ops_without_write(whole: ferro_fi::abi::fi_ops_eq) -> ferro_fi::abi::fi_ops_eq {
    ferro_fi::abi::fi_ops_eq {
        write: None,
        ..whole
    }
}
