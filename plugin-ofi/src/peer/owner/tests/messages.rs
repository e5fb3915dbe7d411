//! Messages into receives: expected ones, started ones, and those that do not fit.

use super::*;

/// Covers: PEER-8
#[test]
fn an_expected_message_is_received_in_both_layouts() {
    for version in LAYOUTS {
        let objects = ForeignObjects::of_version(TRANSPORT, version);
        let peer = CPeer::of(&objects);
        assert_eq!(peer.link_bytes, link_bytes(version));
        objects.set_source(3, FiAddr(30));
        let mut owner = RecordingOwner::default();
        let mut memory = [0u8; 16];
        let mut contexts = Vec::new();
        for round in 0..100 {
            let matched = receive(&mut memory, round);
            owner.posted.push_back(matched);
            let entry = objects.enter(&mut owner, || {
                let (code, entry) = peer.get(MsgKind::Tagged, 3, 5, 99);
                assert_eq!(code, 0);
                let fields = peer.fields(entry);
                assert_eq!(
                    (fields.srx, fields.addr, fields.msg_size, fields.tag),
                    (peer.srx, 3, 5, 99)
                );
                assert_eq!(
                    Flags::from_bits_retain(fields.flags),
                    Flags::TAGGED | Flags::RECV | Flags::COMPLETION
                );
                assert!(fields.peer_context.is_null());
                assert_eq!(peer.iov(entry), [matched.buf.part(0, 5)]);
                // `sm2` consumes the pieces, and any peer may write to its entry.
                contexts.push(fields.context.addr());
                fields.peer_context = peer.srx.cast();
                let context = fields.context;
                fields.count = 0;
                let data = Flags::REMOTE_CQ_DATA.bits();
                peer.write_with(context, data, 5, 0xda7a);
                peer.free(entry);
                entry
            });
            let expected = Arrived {
                src: FiAddr(30),
                data: 0xda7a,
                flags: Flags::REMOTE_CQ_DATA,
                ..arrived(5, 99)
            };
            let report = OwnerReport::Received(MsgKind::Tagged, matched, expected);
            assert_eq!(std::mem::take(&mut owner.reports), [report]);
            assert_eq!(objects.take_calls(), 3);
            assert!(!entry.is_null());
        }
        contexts.sort_unstable();
        contexts.dedup();
        assert_eq!(contexts.len(), 100, "no context comes twice");
        assert_eq!(objects.take_calls(), 0);
        assert_eq!(stat(&objects, "peer_received"), 100);
        assert_eq!(stat(&objects, "peer_bytes_received"), 500);
        assert_eq!(refused(&objects), 0);
    }
}

#[test]
fn a_message_without_a_receive_is_queued_and_started() {
    for version in LAYOUTS {
        let objects = ForeignObjects::of_version(TRANSPORT, version);
        let peer = CPeer::of(&objects);
        objects.set_source(1, FiAddr(10));
        let mut owner = RecordingOwner::default();
        let entry = objects.enter(&mut owner, || {
            let (code, entry) = peer.get(MsgKind::Tagged, 1, 4, 5);
            assert_eq!(code, -libc::ENOENT);
            assert_eq!(peer.iov(entry), []);
            let fields = peer.fields(entry);
            fields.peer_context = peer.cq.cast();
            fields.flags |= Flags::REMOTE_CQ_DATA.bits();
            fields.cq_data = 77;
            assert_eq!(peer.queue(MsgKind::Tagged, entry), 0);
            entry
        });
        let expected = Arrived {
            src: FiAddr(10),
            data: 77,
            flags: Flags::REMOTE_CQ_DATA,
            ..arrived(4, 5)
        };
        let (kind, queued, token) = owner.queued[0];
        assert_eq!((kind, queued), (MsgKind::Tagged, expected));
        assert_eq!(token.transport, TRANSPORT);
        assert!(!objects.has_unknown_sources());

        let mut memory = [0u8; 8];
        let matched = receive(&mut memory, 1);
        let start = owner.take_queued(matched);
        starts_with(peer, None, 0);
        objects.start(start, &mut owner);
        assert_eq!(peer_calls(), [("start_tag", entry.addr())]);
        assert_eq!(owner.reports, []);
        let fields = peer.fields(entry);
        assert_eq!(fields.peer_context, peer.cq.cast());
        assert_eq!(
            (fields.cq_data, Flags::from_bits_retain(fields.flags)),
            (
                77,
                Flags::TAGGED | Flags::RECV | Flags::COMPLETION | Flags::REMOTE_CQ_DATA
            )
        );

        // It ends in a later call, with pieces that come one after the other.
        objects.enter(&mut owner, || peer.finish(entry, b"late"));
        let report = OwnerReport::Received(MsgKind::Tagged, matched, expected);
        assert_eq!(owner.reports, [report]);
        assert_eq!(&memory[..5], b"late\0");
        assert_eq!(stat(&objects, "peer_unexpected"), 1);
        assert_eq!(refused(&objects), 0);
    }
}

#[test]
fn a_start_may_end_the_message_at_once() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    for message in [&b""[..], b"x", b"eight by"] {
        objects.enter(&mut owner, || peer.queued(message.len()));
        let mut memory = [0u8; 8];
        let matched = receive(&mut memory, 1);
        let start = owner.take_queued(matched);
        starts_with(peer, Some(message), 0);
        objects.start(start, &mut owner);
        assert_eq!(owner.reports.len(), 1);
        owner.reports.clear();
        assert_eq!(&memory[..message.len()], message);
    }
    assert_eq!(refused(&objects), 0);
}

#[test]
fn the_rest_of_a_message_that_is_too_long_goes_elsewhere() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    for room in [0, 1, 5] {
        let mut memory = [0u8; 6];
        let matched = receive(&mut memory[..room], 1);
        owner.posted.push_back(matched);
        objects.enter(&mut owner, || {
            let entry = peer.matched(6);
            let iov = peer.iov(entry);
            assert_eq!(iov.len(), if room == 0 { 1 } else { 2 });
            assert_eq!(iov.iter().map(|piece| piece.len).sum::<usize>(), 6);
            assert!(iov.iter().all(|piece| piece.addr != 0));
            peer.finish(entry, b"sixsix");
        });
        // The owner reports the truncation by itself.
        let report = OwnerReport::Received(MsgKind::Msg, matched, arrived(6, 0));
        assert_eq!(std::mem::take(&mut owner.reports), [report]);
        assert_eq!(&memory[..room], &b"sixsix"[..room]);
        assert_eq!(memory[room], 0);
    }
    // As long as the receive, it needs no other memory.
    let mut memory = [0u8; 6];
    owner.posted.push_back(receive(&mut memory, 1));
    objects.enter(&mut owner, || {
        assert_eq!(peer.iov(peer.matched(6)).len(), 1)
    });
}

/// The owner's memory for one.
fn list(len: usize) -> Matched {
    Matched {
        buf: IoBuf { addr: 0, len },
        piece: Piece::of_list(2),
        ..receive(&mut [], 4)
    }
}

#[test]
fn a_list_of_buffers_is_received_in_one_piece() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    for (len, pieces) in [(4, 1), (6, 2)] {
        let mut memory = [0u8; 4];
        let one = IoBuf::new(memory.as_mut_ptr(), 4);
        owner.one_piece = Some(one);
        owner.posted.push_back(list(4));
        objects.enter(&mut owner, || {
            let entry = peer.matched(len);
            assert_eq!(peer.iov(entry).len(), pieces);
            peer.finish(entry, &b"listed"[..len]);
        });
        let matched = Matched {
            buf: one,
            ..list(4)
        };
        let report = OwnerReport::Received(MsgKind::Msg, matched, arrived(len as u64, 0));
        assert_eq!(std::mem::take(&mut owner.reports), [report]);
        assert_eq!(&memory, b"list");
    }
}

#[test]
fn a_list_without_memory_fails_and_its_sender_does_not() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    owner.posted.push_back(list(4));
    objects.enter(&mut owner, || peer.finish(peer.matched(6), b"listed"));
    let of = (list(4), arrived(6, 0));
    let failed = OwnerReport::ReceiveFailed(MsgKind::Msg, of.0, of.1, Errno::ENOMEM, 6);
    assert_eq!(owner.reports, [failed]);
}

#[test]
fn without_memory_for_the_rest_the_provider_truncates() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    let mut memory = [0u8; 4];
    let matched = receive(&mut memory, 1);
    owner.posted.push_back(matched);
    let len = usize::MAX / 2;
    objects.enter(&mut owner, || {
        let entry = peer.matched(len);
        assert_eq!(peer.iov(entry), [matched.buf]);
        peer.fail(peer.context(entry), Errno::ETRUNC.0, -1);
        peer.free(entry);
    });
    let (a, olen) = (arrived(len as u64, 0), len as u64 - 4);
    let failed = OwnerReport::ReceiveFailed(MsgKind::Msg, matched, a, Errno::ETRUNC, olen);
    assert_eq!(owner.reports, [failed]);
}

#[test]
fn failures_of_the_provider_are_reported() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    let mut memory = [0u8; 4];
    let matched = receive(&mut memory, 1);
    let mut failure = |callback: &dyn Fn(CEntry)| {
        owner.posted.push_back(matched);
        objects.enter(&mut owner, || callback(peer.matched(4)));
        let reports = std::mem::take(&mut owner.reports);
        match reports[..] {
            [OwnerReport::ReceiveFailed(MsgKind::Msg, m, a, errno, 0)] => {
                assert_eq!((m, a), (matched, arrived(4, 0)));
                errno
            }
            _ => panic!("{reports:?}"),
        }
    };
    assert_eq!(failure(&|e| peer.fail(peer.context(e), 5, 0)), Errno::EIO);
    let reset = Errno::ECONNRESET;
    assert_eq!(failure(&|e| peer.fail(peer.context(e), reset.0, 0)), reset);
    // Numbers that are no errors.
    assert_eq!(failure(&|e| peer.fail(peer.context(e), 0, 0)), Errno::EIO);
    assert_eq!(failure(&|e| peer.fail(peer.context(e), -3, 0)), Errno::EIO);
    // It has another length than its announcement.
    assert_eq!(failure(&|e| peer.write(peer.context(e), 3)), Errno::EIO);
    assert_eq!(failure(&|e| peer.write(peer.context(e), 5)), Errno::EIO);
    // The entry comes back without an end.
    assert_eq!(failure(&|e| peer.free(e)), Errno::ECANCELED);
    assert_eq!(stat(&objects, "peer_received"), 0);
    assert_eq!(refused(&objects), 0);
}

#[test]
fn a_start_that_fails_fails_the_receive() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    let mut memory = [0u8; 4];
    let matched = receive(&mut memory, 1);
    let failed = |errno| {
        [OwnerReport::ReceiveFailed(
            MsgKind::Msg,
            matched,
            arrived(4, 0),
            errno,
            0,
        )]
    };

    let entry = objects.enter(&mut owner, || peer.queued(4));
    let start = owner.take_queued(matched);
    starts_with(peer, None, -libc::EINVAL);
    objects.start(start, &mut owner);
    assert_eq!(std::mem::take(&mut owner.reports), failed(Errno::EINVAL));
    // The provider may still end it and free it: neither is reported.
    objects.enter(&mut owner, || peer.write(peer.context(entry), 4));
    assert_eq!(refused(&objects), 1);
    objects.enter(&mut owner, || peer.free(entry));
    assert_eq!(refused(&objects), 1);

    // The message has ended, whatever the result.
    objects.enter(&mut owner, || peer.queued(4));
    let start = owner.take_queued(matched);
    starts_with(peer, Some(b"four"), -libc::EINVAL);
    objects.start(start, &mut owner);
    let report = OwnerReport::Received(MsgKind::Msg, matched, arrived(4, 0));
    assert_eq!(std::mem::take(&mut owner.reports), [report]);
    // It does not wait any more.
    objects.start(start, &mut owner);
    let lost = failed(Errno::ECONNRESET);
    assert_eq!(std::mem::take(&mut owner.reports), lost);

    // There are no functions to start it.
    objects.enter(&mut owner, || peer.queued(4));
    let start = owner.take_queued(matched);
    // SAFETY: no call is under way.
    unsafe { (*peer.srx).peer_ops = null_mut() };
    objects.start(start, &mut owner);
    assert_eq!(owner.reports, failed(Errno::ENOSYS));
}

#[test]
fn short_messages_are_discarded_and_long_ones_received_unseen() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    starts_with(peer, Some(b"four"), 0);
    let mut drop_one = |inject_size| {
        let entry = objects.enter(&mut owner, || peer.queued(4));
        let (kind, _, token) = owner.queued.remove(0);
        objects.discard(kind, token, inject_size, &mut owner);
        // It is dropped once.
        objects.discard(kind, token, inject_size, &mut owner);
        (peer_calls(), entry.addr())
    };
    let (calls, entry) = drop_one(4);
    assert_eq!(calls, [("discard_msg", entry)]);
    let (calls, entry) = drop_one(3);
    assert_eq!(calls, [("start_msg", entry)]);
    assert!(!objects.has_unknown_sources());
    assert_eq!(owner.reports, []);
    assert_eq!(stat(&objects, "peer_received"), 0);
    assert_eq!(refused(&objects), 0);
}

/// Receives that messages of a peer have met fail when it dies; those of another peer go on. Calls
/// that come later change nothing.
///
/// Covers: PEER-8
#[test]
fn receives_under_way_from_a_dead_peer_fail_once() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    for number in [1, 2] {
        objects.set_source(number, FiAddr(10 * number));
    }
    let mut memory = [0u8; 16];
    let matched = [1, 2].map(|context| receive(&mut memory, context));
    owner.posted.extend(matched);
    let entries = objects.enter(&mut owner, || {
        [1, 2].map(|number| peer.get(MsgKind::Tagged, number, 8, 5).1)
    });
    let contexts = entries.map(|entry| peer.context(entry));
    objects.fail_receives(1, Errno::ECONNRESET, "it is gone", &mut owner);
    objects.fail_receives(1, Errno::ECONNRESET, "it is gone", &mut owner);
    let reports = std::mem::take(&mut owner.reports);
    assert!(
        matches!(&reports[..], [OwnerReport::ReceiveFailed(_, m, ..)] if *m == matched[0]),
        "{reports:?}"
    );
    objects.enter(&mut owner, || {
        for (entry, context) in entries.into_iter().zip(contexts) {
            peer.write(context, 8);
            peer.free(entry);
        }
    });
    let reports = std::mem::take(&mut owner.reports);
    assert!(
        matches!(&reports[..], [OwnerReport::Received(_, m, _)] if *m == matched[1]),
        "{reports:?}"
    );
}
