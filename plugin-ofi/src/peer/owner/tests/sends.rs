//! Completions of sends.

use super::*;

pub(super) fn send(dest: u64, context: u64) -> SendDone {
    SendDone {
        kind: MsgKind::Tagged,
        dest: FiAddr(dest),
        tag: 3,
        context,
        flags: Flags::COMPLETION,
        len: 8,
    }
}

#[test]
fn sends_complete_in_any_order_and_once() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    let contexts: Vec<_> = (0..100)
        .map(|number| objects.add_send(1, send(1, number)) as *mut c_void)
        .collect();
    assert_eq!(objects.sends_under_way(), 100);
    objects.enter(&mut owner, || {
        for context in contexts.iter().rev() {
            peer.write(*context, 0);
            peer.write(*context, 0);
        }
    });
    let sent: Vec<_> = (0..100)
        .rev()
        .map(|n| OwnerReport::Sent(send(1, n)))
        .collect();
    assert_eq!(owner.reports, sent);
    assert_eq!(objects.sends_under_way(), 0);
    assert_eq!((objects.take_calls(), refused(&objects)), (100, 100));
}

#[test]
fn a_failure_has_the_numbers_of_the_provider() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    let context = objects.add_send(1, send(1, 2)) as *mut c_void;
    objects.enter(&mut owner, || peer.fail(context, Errno::ETRUNC.0, -265));
    let failed = OwnerReport::SendFailed(send(1, 2), Errno::ETRUNC, -265);
    assert_eq!(owner.reports, [failed]);
}

#[test]
fn a_send_that_the_provider_refuses_is_withdrawn() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    let context = objects.add_send(1, send(1, 2));
    assert_eq!(objects.withdraw_send(context), Some(send(1, 2)));
    assert_eq!(objects.withdraw_send(context), None);
    assert_eq!(objects.sends_under_way(), 0);
    objects.enter(&mut owner, || peer.write(context as *mut c_void, 0));
    assert_eq!(owner.reports, []);
}

#[test]
fn sends_to_a_dead_peer_fail_and_complete_without_a_report() {
    let objects = objects();
    let peer = CPeer::of(&objects);
    let mut owner = RecordingOwner::default();
    let sends = [(1, 1), (2, 2), (1, 3)]
        .map(|(dest, context)| objects.add_send(dest, send(dest, context)) as *mut c_void);
    objects.fail_sends(1, Errno::ECONNRESET, "it is gone", &mut owner);
    let failed = |context| OwnerReport::SendFailed(send(1, context), Errno::ECONNRESET, 0);
    // Slots are in use again, in any order.
    let reports = std::mem::take(&mut owner.reports);
    assert!(
        reports.len() == 2
            && [1, 3]
                .iter()
                .all(|&context| reports.contains(&failed(context))),
        "{reports:?}"
    );
    assert_eq!(objects.sends_under_way(), 1);
    objects.enter(&mut owner, || {
        for context in sends {
            peer.write(context, 0);
        }
    });
    assert_eq!(owner.reports, [OwnerReport::Sent(send(2, 2))]);
    assert_eq!((objects.take_calls(), refused(&objects)), (3, 0));
}
