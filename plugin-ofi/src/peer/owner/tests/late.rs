//! Callbacks without an owner: of other threads, within callbacks, outside of calls.

use std::thread;

use super::*;

#[test]
fn a_message_of_another_thread_waits_for_the_drain() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    objects.set_source(4, FiAddr(40));
    let mut owner = RecordingOwner::default();
    objects.enter(&mut owner, || {
        thread::scope(|threads| {
            threads.spawn(|| {
                let (code, entry) = peer.get(MsgKind::Tagged, 4, 4, 9);
                assert_eq!(code, -libc::ENOENT);
                let fields = peer.fields(entry);
                fields.flags |= Flags::REMOTE_CQ_DATA.bits();
                fields.cq_data = 5;
                assert_eq!(peer.queue(MsgKind::Msg, entry), -libc::EINVAL);
                assert_eq!(peer.queue(MsgKind::Tagged, entry), 0);
                assert_eq!(peer.queue(MsgKind::Tagged, entry), -libc::EINVAL);
            });
        });
    });
    assert!(owner.queued.is_empty() && objects.take_calls() == 0);
    assert_eq!(objects.drain(&mut owner), 1);
    let expected = Arrived {
        src: FiAddr(40),
        data: 5,
        flags: Flags::REMOTE_CQ_DATA,
        ..arrived(4, 9)
    };
    assert_eq!(owner.queued[0].1, expected);
    assert_eq!(objects.drain(&mut owner), 0);
    assert_eq!(stat(&objects, "peer_thread_calls"), 2);
    assert_eq!(refused(&objects), 2);

    // It is started as any other.
    let mut memory = [0u8; 4];
    let start = owner.take_queued(receive(&mut memory, 1));
    starts_with(peer, Some(b"four"), 0);
    objects.start(start, &mut owner);
    assert_eq!(owner.reports.len(), 1);
    assert_eq!(&memory, b"four");
}

#[test]
fn a_receive_that_is_there_by_the_drain_takes_the_message() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    // Outside of any call, on the thread that drives the endpoint.
    let entry = peer.queued(4);
    let mut memory = [0u8; 4];
    owner.posted.push_back(receive(&mut memory, 1));
    starts_with(peer, Some(b"four"), 0);
    assert_eq!(objects.drain(&mut owner), 2, "it is matched and started");
    assert_eq!(peer_calls(), [("start_msg", entry.addr())]);
    assert!(owner.queued.is_empty() && owner.reports.len() == 1);
    assert_eq!(&memory, b"four");
    assert!(!objects.has_unknown_sources());
}

#[test]
fn earlier_messages_match_first() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    let early = peer.queued(4);
    let mut memory = [[0u8; 4]; 2];
    for (context, memory) in memory.iter_mut().enumerate() {
        owner.posted.push_back(receive(memory, context as u64));
    }
    starts_with(peer, Some(b"one\0"), 0);
    objects.enter(&mut owner, || {
        let second = peer.matched(4);
        assert_eq!(peer_calls(), [], "a callback calls nothing");
        peer.finish(second, b"two\0");
    });
    assert_eq!(objects.drain(&mut owner), 1);
    assert_eq!(peer_calls(), [("start_msg", early.addr())]);
    assert_eq!(memory, [*b"one\0", *b"two\0"]);
    assert_eq!(owner.reports.len(), 2);
}

#[test]
fn ends_of_another_thread_are_reported_by_the_drain() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    let mut memory = [0u8; 4];
    owner.posted.push_back(receive(&mut memory, 1));
    let send = objects.add_send(1, super::sends::send(1, 1));
    let failing = objects.add_send(1, super::sends::send(1, 2));
    let entry = objects.enter(&mut owner, || peer.matched(4)).addr();
    thread::scope(|threads| {
        threads.spawn(|| {
            let entry = entry as CEntry;
            peer.finish(entry, b"four");
            peer.write(send as *mut c_void, 0);
            peer.fail(failing as *mut c_void, libc::EIO, 0);
            peer.write(send as *mut c_void, 0);
        });
    });
    assert_eq!(owner.reports, []);
    assert_eq!(objects.sends_under_way(), 2);
    assert_eq!(objects.drain(&mut owner), 4, "one of the five is refused");
    assert_eq!(owner.reports.len(), 3);
    assert_eq!((refused(&objects), objects.sends_under_way()), (1, 0));
    assert_eq!(&memory, b"four");
}

#[test]
fn sources_that_another_thread_brings_are_found_by_the_drain() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    objects.enter(&mut owner, || peer.queued(4));
    unsafe extern "C" fn seven(_: CEntry) -> u64 {
        7
    }
    objects.set_source(7, FiAddr(70));
    thread::scope(|threads| {
        threads.spawn(|| peer.find_sources(seven));
    });
    assert_eq!(owner.reports, []);
    assert!(objects.drain(&mut owner) > 0);
    assert_eq!(owner.queued[0].1.src, FiAddr(70));
}

#[test]
fn what_comes_within_a_callback_waits() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut memory = [0u8; 4];
    let mut owner = RecordingOwner {
        within: Some(Box::new(move || {
            peer.queued(8);
            peer.write(null_mut(), 0);
        })),
        ..RecordingOwner::default()
    };
    owner.posted.push_back(receive(&mut memory, 1));
    objects.enter(&mut owner, || {
        peer.finish(peer.matched(4), b"four");
        // The callback is over: this one has the owner again.
        peer.queued(5);
    });
    let lens: Vec<_> = owner.queued.iter().map(|(_, a, _)| a.len).collect();
    assert_eq!(lens, [8, 5], "the earlier one was first");
    assert_eq!(refused(&objects), 1);
    assert_eq!(objects.drain(&mut owner), 0);
}

#[test]
fn a_call_within_a_call_has_its_own_owner() {
    let (outer, inner) = (objects(), objects());
    let (peer, other) = (CPeer::of(&outer), CPeer::of(&inner));
    let (mut owner, mut second) = (RecordingOwner::default(), RecordingOwner::default());
    outer.enter(&mut owner, || {
        inner.enter(&mut second, || {
            other.queued(1);
            // The outer one's owner is not that of the innermost call.
            peer.queued(2);
        });
        peer.queued(3);
        // Its own entry, by the other's functions.
        let entry = peer.unexpected(4);
        assert_eq!(other.queue(MsgKind::Msg, entry), 0);
    });
    assert_eq!(second.queued.len(), 1);
    let lens: Vec<_> = owner.queued.iter().map(|(_, a, _)| a.len).collect();
    assert_eq!(lens, [2, 3, 4]);
    assert_eq!(inner.drain(&mut second) + outer.drain(&mut owner), 0);
}

#[test]
fn a_panic_ends_in_the_callback_and_leaves_the_owner_in_its_place() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner {
        within: Some(Box::new(|| panic!("on purpose"))),
        ..RecordingOwner::default()
    };
    let send = objects.add_send(1, super::sends::send(1, 1));
    objects.enter(&mut owner, || {
        peer.write(send as *mut c_void, 0);
        peer.queued(4);
    });
    assert_eq!(owner.queued.len(), 1);

    // So does one of the call itself.
    let call = std::panic::AssertUnwindSafe(|| {
        objects.enter(&mut owner, || panic!("on purpose"));
    });
    assert!(std::panic::catch_unwind(call).is_err());
    peer.queued(5);
    assert_eq!(owner.queued.len(), 1, "no call is under way any more");
    assert_eq!(objects.drain(&mut owner), 1);
}

#[test]
fn four_threads_leave_calls_and_none_is_lost() {
    const EACH: usize = 500;
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    let mut memory = [0u8; 4];
    starts_with(peer, Some(b"four"), 0);
    thread::scope(|threads| {
        for thread in 0..4 {
            threads.spawn(move || {
                for message in 0..EACH {
                    let tag = (thread * EACH + message) as u64;
                    let (code, entry) = peer.get(MsgKind::Tagged, FI_ADDR_UNSPEC, 4, tag);
                    assert_eq!(code, -libc::ENOENT);
                    if message % 10 == 0 {
                        // The provider has no memory for the message.
                        peer.free(entry);
                    } else {
                        assert_eq!(peer.queue(MsgKind::Tagged, entry), 0);
                    }
                }
            });
        }
        // Meanwhile this thread receives, and drains.
        for _ in 0..EACH {
            objects.drain(&mut owner);
            owner.posted.push_back(receive(&mut memory, 1));
            objects.enter(&mut owner, || {
                let (code, entry) = peer.get(MsgKind::Msg, FI_ADDR_UNSPEC, 4, 0);
                match code {
                    0 => peer.finish(entry, b"four"),
                    // A message of another thread has taken the receive.
                    _ => assert_eq!(peer.queue(MsgKind::Msg, entry), 0),
                }
            });
        }
    });
    objects.drain(&mut owner);
    let mut seen: Vec<_> = (owner.queued.iter().map(|(_, a, _)| *a))
        .chain(owner.reports.iter().map(|report| match report {
            OwnerReport::Received(_, _, a) => *a,
            other => panic!("{other:?}"),
        }))
        .map(|a| a.tag)
        .collect();
    // Those of this thread have no tag, nor has the first message of all, which was freed.
    seen.retain(|tag| *tag != 0);
    seen.sort_unstable();
    let expected: Vec<_> = (0..4 * EACH as u64).filter(|tag| tag % 10 != 0).collect();
    assert_eq!(seen, expected);
    assert_eq!(
        owner.queued.len() + owner.reports.len(),
        expected.len() + EACH
    );
    assert_eq!(refused(&objects), 0);
}
