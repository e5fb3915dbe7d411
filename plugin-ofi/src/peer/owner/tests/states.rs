//! Every call in every state of an entry, entries that are not ours, and objects that are closed.

use super::super::objects::ObjectBlock;
use super::*;

/// A state of an entry, as C brings it about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brought {
    Freed,
    Matched,
    Reported,
    Unexpected,
    Queued,
}

const ALL: [Brought; 5] = [
    Brought::Freed,
    Brought::Matched,
    Brought::Reported,
    Brought::Unexpected,
    Brought::Queued,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Queue(MsgKind),
    Free,
    Write,
    Fail,
}

const CALLS: [Call; 5] = [
    Call::Queue(MsgKind::Msg),
    Call::Queue(MsgKind::Tagged),
    Call::Free,
    Call::Write,
    Call::Fail,
];

struct Fixture {
    objects: ForeignObjects,
    peer: CPeer,
    owner: RecordingOwner,
    memory: [u8; 4],
}

impl Fixture {
    fn new() -> Self {
        let objects = objects();
        let peer = CPeer::of(&objects);
        Self {
            objects,
            peer,
            owner: RecordingOwner::default(),
            memory: [0; 4],
        }
    }

    /// An entry in a state, and the context that it has or had.
    fn bring(&mut self, state: Brought) -> (CEntry, *mut c_void) {
        let peer = self.peer;
        if !matches!(state, Brought::Unexpected | Brought::Queued) {
            self.owner.posted.push_back(receive(&mut self.memory, 1));
        }
        let brought = self.objects.enter(&mut self.owner, || match state {
            Brought::Unexpected => (peer.unexpected(4), null_mut()),
            Brought::Queued => (peer.queued(4), null_mut()),
            _ => {
                let entry = peer.matched(4);
                let context = peer.context(entry);
                if state != Brought::Matched {
                    peer.write(context, 4);
                }
                if state == Brought::Freed {
                    peer.free(entry);
                }
                (entry, context)
            }
        });
        self.owner.reports.clear();
        brought
    }

    /// Calls, and returns whether the call was refused.
    fn call(&mut self, call: Call, (entry, context): (CEntry, *mut c_void)) -> bool {
        let (peer, before) = (self.peer, refused(&self.objects));
        let result = self.objects.enter(&mut self.owner, || match call {
            Call::Queue(kind) => Some(peer.queue(kind, entry)),
            Call::Free => {
                peer.free(entry);
                None
            }
            Call::Write => {
                peer.write(context, 4);
                None
            }
            Call::Fail => {
                peer.fail(context, libc::EIO, 0);
                None
            }
        });
        let is_refused = refused(&self.objects) - before == 1;
        assert_eq!(refused(&self.objects) - before, u64::from(is_refused));
        assert!(
            result.is_none_or(|code| code == if is_refused { -libc::EINVAL } else { 0 }),
            "{result:?}"
        );
        is_refused
    }
}

#[test]
fn each_call_is_for_its_states() {
    for state in ALL {
        for call in CALLS {
            let mut f = Fixture::new();
            let entry = f.bring(state);
            let is_refused = f.call(call, entry);
            let reports = f.owner.reports.len();
            let expected = match (state, call) {
                (Brought::Unexpected, Call::Queue(MsgKind::Msg)) => (false, 0),
                (Brought::Unexpected | Brought::Reported | Brought::Queued, Call::Free) => {
                    (false, 0)
                }
                // A receive that was not ended is reported as failed.
                (Brought::Matched, Call::Free | Call::Write | Call::Fail) => (false, 1),
                _ => (true, 0),
            };
            assert_eq!((is_refused, reports), expected, "{call:?} of {state:?}");

            // A second one is refused, but for the end of a use by `free_entry`.
            let again = f.call(call, entry);
            assert!(again, "{call:?} again, of {state:?}");
            assert_eq!(f.owner.reports.len(), reports);

            // The slots are whole: each message gets one of its own.
            let mut entries: Vec<_> = (0..200).map(|_| f.bring(Brought::Unexpected).0).collect();
            entries.sort_unstable();
            entries.dedup();
            assert_eq!(entries.len(), 200, "{call:?} of {state:?}");
        }
    }
}

#[test]
fn an_entry_that_c_frees_in_the_queue_is_a_lost_message() {
    let mut f = Fixture::new();
    let (entry, _) = f.bring(Brought::Queued);
    assert!(f.objects.has_unknown_sources());
    assert!(!f.call(Call::Free, (entry, null_mut())));
    assert!(!f.objects.has_unknown_sources());
    let start = f.owner.take_queued(receive(&mut f.memory, 1));
    starts_with(f.peer, None, 0);
    f.objects.start(start, &mut f.owner);
    assert_eq!(peer_calls(), []);
    match f.owner.reports[..] {
        [OwnerReport::ReceiveFailed(_, m, _, Errno::ECONNRESET, 0)] => assert_eq!(m.context, 1),
        _ => panic!("{:?}", f.owner.reports),
    }
}

#[test]
fn entries_that_are_not_ours_are_not_read() {
    let mut f = Fixture::new();
    let (ours, _) = f.bring(Brought::Unexpected);
    let mut elsewhere = fi_peer_rx_entry::default();
    let elsewhere = &raw mut elsewhere;
    let aside = ours.wrapping_byte_add(8);
    for wild in [
        null_mut(),
        1 as CEntry,
        usize::MAX as CEntry,
        aside,
        elsewhere,
    ] {
        for call in [
            Call::Queue(MsgKind::Msg),
            Call::Queue(MsgKind::Tagged),
            Call::Free,
        ] {
            assert!(f.call(call, (wild, null_mut())), "{call:?} of {wild:?}");
        }
    }
    for context in [0, 1, 2, usize::MAX, ours.addr()] {
        for call in [Call::Write, Call::Fail] {
            assert!(f.call(call, (ours, context as *mut c_void)), "{context:#x}");
        }
    }
    assert!(!f.call(Call::Queue(MsgKind::Msg), (ours, null_mut())));
    assert_eq!(f.owner.queued.len(), 1);
}

#[test]
fn calls_without_objects_do_nothing() {
    let f = Fixture::new();
    // SAFETY: NULL is refused.
    unsafe {
        let ops = &*(*f.peer.srx).owner_ops;
        let mut attr = fi_peer_match_attr::default();
        let mut entry = null_mut();
        let get = ops.get_msg.unwrap();
        let null_srx = get(null_mut(), &raw mut attr, &raw mut entry);
        let null_attr = get(f.peer.srx, null_mut(), &raw mut entry);
        let null_entry = get(f.peer.srx, &raw mut attr, null_mut());
        assert_eq!([null_srx, null_attr, null_entry], [-libc::EINVAL; 3]);
        ops.foreach_unspec_addr.unwrap()(f.peer.srx, None);
        ops.foreach_unspec_addr.unwrap()(null_mut(), None);
        let cq = &*(*f.peer.cq).owner_ops;
        let null = null_mut();
        assert_eq!(cq.write.unwrap()(null_mut(), null, 0, 0, null, 0, 0, 0), 0);
    }
}

/// `sm2` passes a copy of the context.
#[test]
fn a_copy_of_the_context_is_as_good() {
    let mut f = Fixture::new();
    // SAFETY: the structure is there.
    let mut copy = unsafe { *f.peer.srx };
    let peer = CPeer {
        srx: &raw mut copy,
        ..f.peer
    };
    f.owner.posted.push_back(receive(&mut f.memory, 1));
    f.objects
        .enter(&mut f.owner, || peer.finish(peer.matched(4), b"copy"));
    assert_eq!(f.owner.reports.len(), 1);
    assert_eq!(&f.memory, b"copy");
}

#[test]
fn counters_have_nothing_to_count() {
    let f = Fixture::new();
    for cntr in f.objects.remote_cntrs() {
        // SAFETY: the counters are there.
        unsafe {
            let ops = &*(*cntr).owner_ops;
            ops.inc.unwrap()(cntr);
            ops.incerr.unwrap()(cntr);
            ops.inc.unwrap()(null_mut());
        }
    }
    assert_eq!(refused(&f.objects), 4);
}

/// Closes objects, whose block no other test gets.
fn close(objects: ForeignObjects) -> &'static ObjectBlock {
    let block = std::mem::ManuallyDrop::new(objects).block;
    block.close();
    block
}

#[test]
fn objects_of_a_closed_endpoint_refuse_all_calls() {
    let mut f = Fixture::new();
    let brought: Vec<_> = ALL.iter().map(|state| f.bring(*state)).collect();
    let send = f.objects.add_send(1, super::sends::send(1, 1)) as *mut c_void;
    let peer = f.peer;
    let block = close(f.objects);
    let refused = block.refused();
    for (entry, context) in brought {
        assert_eq!(peer.queue(MsgKind::Msg, entry), -libc::EINVAL);
        peer.free(entry);
        peer.write(context, 4);
    }
    peer.write(send, 0);
    peer.find_sources(super::sources::none);
    let (code, entry) = peer.get(MsgKind::Msg, 0, 4, 0);
    assert_eq!((code, entry), (-libc::EINVAL, null_mut()));
    assert_eq!(block.refused() - refused, 5 * 3 + 3);
}

#[test]
fn objects_are_used_again_with_other_contexts() {
    let mut f = Fixture::new();
    let (entry, context) = f.bring(Brought::Matched);
    f.bring(Brought::Queued);
    let send = f.objects.add_send(1, super::sends::send(1, 1)) as *mut c_void;
    f.objects.set_source(0, FiAddr(1));
    // A record in the mailbox belongs to the endpoint that is closed.
    f.peer.queued(4);
    let peer = f.peer;
    let block = close(f.objects);

    let functions = super::super::owner_functions();
    block.open(TRANSPORT, 0, functions);
    let objects = ForeignObjects {
        block,
        not_shared: std::marker::PhantomData,
    };
    let mut owner = RecordingOwner::default();
    assert_eq!((objects.take_calls(), refused(&objects)), (0, 0));
    assert_eq!(objects.drain(&mut owner), 0);
    assert!(!objects.has_unknown_sources() && objects.sends_under_way() == 0);
    objects.enter(&mut owner, || {
        peer.write(context, 4);
        peer.write(send, 0);
        peer.free(entry);
        peer.get(MsgKind::Msg, 0, 4, 0);
    });
    assert_eq!(refused(&objects), 3);
    assert_eq!(owner.reports, []);
}

#[test]
fn objects_that_are_dropped_are_used_again() {
    let before = ObjectBlock::count();
    for _ in 0..1000 {
        drop(objects());
    }
    // Other tests make some at the same time.
    assert!(ObjectBlock::count() - before < 500);
}
