//! The sources of messages.

use super::*;

/// The provider does not find the source.
pub(super) unsafe extern "C" fn none(_: CEntry) -> u64 {
    FI_ADDR_UNSPEC
}

/// The number is the one that the test has put into the peer's context.
unsafe extern "C" fn by_context(entry: CEntry) -> u64 {
    // SAFETY: an entry of the later layout.
    unsafe { (*entry).peer_context.addr() as u64 }
}

/// Queues a message of a peer.
fn queue_from(peer: &CPeer, number: u64, tag: u64) -> CEntry {
    let (code, entry) = peer.get(MsgKind::Tagged, number, 4, tag);
    assert_eq!(code, -libc::ENOENT);
    assert_eq!(peer.queue(MsgKind::Tagged, entry), 0);
    entry
}

/// The sources of the queued messages, by their tags.
fn sources(owner: &RecordingOwner) -> Vec<(u64, FiAddr)> {
    let queued = owner.queued.iter();
    queued.map(|(_, a, _)| (a.tag, a.src)).collect()
}

#[test]
fn the_source_is_the_address_of_the_peers_number() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    objects.set_source(2, FiAddr(20));
    let mut owner = RecordingOwner::default();
    objects.enter(&mut owner, || {
        for (tag, number) in [2, 1, 3, FI_ADDR_UNSPEC, u64::MAX - 1]
            .into_iter()
            .enumerate()
        {
            queue_from(&peer, number, tag as u64);
        }
    });
    let unknown = (1..5).map(|tag| (tag, FiAddr::NOTAVAIL));
    let expected: Vec<_> = std::iter::once((0, FiAddr(20))).chain(unknown).collect();
    assert_eq!(sources(&owner), expected);
    assert!(objects.has_unknown_sources());
}

#[test]
fn queued_messages_get_the_address_of_their_number() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    objects.enter(&mut owner, || {
        for (tag, number) in [1, 2, 1].into_iter().enumerate() {
            queue_from(&peer, number, tag as u64);
        }
    });
    objects.set_source(1, FiAddr(10));
    objects.resolve(1, FiAddr::NOTAVAIL, &mut owner);
    assert_eq!(owner.reports, []);
    objects.resolve(1, FiAddr(10), &mut owner);
    // In one call: their order is that of the queue.
    let tokens = [owner.queued[0].2, owner.queued[2].2].to_vec();
    let resolved = OwnerReport::Resolved(FiAddr(10), tokens);
    assert_eq!(std::mem::take(&mut owner.reports), [resolved]);
    let other = (1, FiAddr::NOTAVAIL);
    assert_eq!(sources(&owner), [(0, FiAddr(10)), other, (2, FiAddr(10))]);
    assert!(objects.has_unknown_sources());
    objects.resolve(1, FiAddr(10), &mut owner);
    assert_eq!(owner.reports, []);
    objects.resolve(2, FiAddr(30), &mut owner);
    assert!(!objects.has_unknown_sources());
}

#[test]
fn the_provider_finds_sources_later() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    objects.enter(&mut owner, || {
        for tag in 0..4 {
            let entry = queue_from(&peer, FI_ADDR_UNSPEC, tag);
            // Of the peers 6 and 5, by turns.
            let number = 6 - tag as usize % 2;
            peer.fields(entry).peer_context = std::ptr::without_provenance_mut(number);
        }
        peer.find_sources(none);
        peer.find_sources(by_context);
    });
    // The numbers are known from now on, but have no addresses.
    assert_eq!(owner.reports, []);
    objects.set_source(5, FiAddr(50));
    objects.enter(&mut owner, || peer.find_sources(by_context));
    let of = |tags: [usize; 2]| tags.map(|tag| owner.queued[tag].2).to_vec();
    let expected = OwnerReport::Resolved(FiAddr(50), of([1, 3]));
    assert_eq!(owner.reports, [expected]);
    objects.resolve(6, FiAddr(60), &mut owner);
    let expected = OwnerReport::Resolved(
        FiAddr(60),
        [0, 2].map(|tag: usize| owner.queued[tag].2).to_vec(),
    );
    assert_eq!(owner.reports.last(), Some(&expected));
    assert!(!objects.has_unknown_sources());
}

#[test]
fn messages_of_a_removed_peer_are_of_its_next_address() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    objects.set_source(1, FiAddr(10));
    objects.set_source(2, FiAddr(20));
    let mut owner = RecordingOwner::default();
    objects.enter(&mut owner, || {
        queue_from(&peer, 1, 0);
        queue_from(&peer, 2, 1);
    });
    assert!(!objects.has_unknown_sources());
    objects.set_source(1, FiAddr::NOTAVAIL);
    assert!(objects.has_unknown_sources());
    // The runtime forgets it in the queue.
    owner.queued[0].1.src = FiAddr::NOTAVAIL;
    objects.enter(&mut owner, || queue_from(&peer, 1, 2));
    objects.set_source(1, FiAddr(11));
    objects.resolve(1, FiAddr(11), &mut owner);
    let expected = [(0, FiAddr(11)), (1, FiAddr(20)), (2, FiAddr(11))];
    assert_eq!(sources(&owner), expected);
    assert!(!objects.has_unknown_sources());
}

#[test]
fn a_started_message_has_the_source_of_the_queue() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    objects.enter(&mut owner, || queue_from(&peer, 1, 0));
    owner.queued[0].1.src = FiAddr(9);
    let mut memory = [0u8; 4];
    let start = owner.take_queued(receive(&mut memory, 1));
    starts_with(peer, Some(b"four"), 0);
    objects.start(start, &mut owner);
    match owner.reports[..] {
        [OwnerReport::Received(_, _, a)] => assert_eq!(a.src, FiAddr(9)),
        _ => panic!("{:?}", owner.reports),
    }
    assert!(!objects.has_unknown_sources());
}
