//! Endpoints of this provider that receive by another provider's shared receive context, over
//! stock libfabric: this program is the owner (fi_peer(3)).

use crate::{client, owner, two};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Instant;

use client::{Info, Opened, close};
use ferro_fi::abi::{
    FI_ADDR_UNSPEC, FI_AV_USER_ID, FI_ENABLE, FI_MSG, FI_PEER, FI_RECV, FI_REMOTE_CQ_DATA,
    FI_TAGGED, FI_TRANSMIT, fi_addr_t, fi_av_attr, fi_av_type, fi_cntr_attr, fi_cq_attr,
    fi_ops_srx_owner, fi_peer_srx_context, fi_progress, fi_rx_attr, fid, fid_av, fid_cntr, fid_cq,
    fid_ep, fid_peer_srx,
};
use owner::receives::{Callback, OwnersReceive, ReceiveOwner, iov_of};
use owner::vector::OwnerVector;
use owner::{OwnerCounter, OwnerQueue, Written, drive};
use two::{
    PATIENCE, Side, alone, control, everywhere, insert, insert_bytes, is_slow, name_of, shape,
};

const EINVAL: c_int = -libc::EINVAL;
const ENOSYS: isize = -(libc::ENOSYS as isize);
/// libfabric's number for a message that is longer than its receive.
const ETRUNC: c_int = 265;

/// The table that an object of libfabric has its own operations in.
fn bind(to: *mut fid_ep, object: *mut fid, flags: u64) -> c_int {
    // SAFETY: both are open.
    unsafe { (*(*to.cast::<fid>()).ops).bind.unwrap()(to.cast(), object, flags) }
}

/// `fi_srx_context`.
fn open_srx(
    opened: &Opened,
    op_flags: u64,
    context: *mut fi_peer_srx_context,
) -> Result<*mut fid_ep, c_int> {
    let mut attr = fi_rx_attr {
        op_flags,
        ..fi_rx_attr::default()
    };
    let mut srx = null_mut();
    let domain = opened.domain;
    // SAFETY: the domain is open; a context is NULL or begins with its size.
    let result = unsafe {
        call!(
            domain,
            ops.srx_ctx(&raw mut attr, &raw mut srx, context.cast())
        )
    };
    match result {
        0 => Ok(srx),
        error => Err(error),
    }
}

/// An endpoint whose receives, queue and counter are those of an owner.
struct ImportingSide {
    ep: *mut fid_ep,
    srx: *mut fid_ep,
    av: *mut fid_av,
    cq: *mut fid_cq,
    cntr: *mut fid_cntr,
    queue: Box<OwnerQueue>,
    counter: Box<OwnerCounter>,
    receives: Box<ReceiveOwner>,
}

impl ImportingSide {
    fn open(opened: &Opened, info: &Info<'_>) -> Self {
        let side = Self::open_disabled(opened, info);
        side.bind_all();
        side
    }

    /// The same with an address vector of an owner.
    fn open_with(opened: &Opened, info: &Info<'_>, vector: &OwnerVector) -> Self {
        let mut side = Self::open_disabled(opened, info);
        let mut of_av = vector.context();
        let mut attr = fi_av_attr {
            flags: FI_PEER,
            ..fi_av_attr::default()
        };
        assert_eq!(close(side.av.cast()), 0);
        let (domain, context) = (opened.domain, (&raw mut of_av).cast());
        // SAFETY: as fi_peer(3) has it.
        let result = unsafe {
            call!(
                domain,
                ops.av_open(&raw mut attr, &raw mut side.av, context)
            )
        };
        assert_eq!((result, attr.type_), (0, fi_av_type::FI_AV_TABLE));
        side.bind_all();
        side
    }

    /// Binds the objects, and enables the endpoint.
    fn bind_all(&self) {
        assert_eq!(bind(self.ep, self.srx.cast(), 0), 0);
        assert_eq!(bind(self.ep, self.cq.cast(), FI_TRANSMIT | FI_RECV), 0);
        assert_eq!(bind(self.ep, self.cntr.cast(), FI_RECV), 0);
        assert_eq!(bind(self.ep, self.av.cast(), 0), 0);
        assert_eq!(control(self.ep.cast(), FI_ENABLE, null_mut()), 0);
    }

    /// All objects, none of which is bound to the endpoint.
    fn open_disabled(opened: &Opened, info: &Info<'_>) -> Self {
        let (queue, counter) = (OwnerQueue::new(), OwnerCounter::new());
        let receives = ReceiveOwner::new(info.version());
        let (mut of_queue, mut of_counter) = (queue.context(), counter.context());
        let mut of_receives = receives.context();
        let srx = open_srx(opened, FI_PEER, &raw mut of_receives).unwrap();
        let (mut ep, mut av, mut cq, mut cntr) = (null_mut(), null_mut(), null_mut(), null_mut());
        let domain = opened.domain;
        let mut of_av = fi_av_attr {
            type_: fi_av_type::FI_AV_TABLE,
            ..fi_av_attr::default()
        };
        let mut of_cq = fi_cq_attr {
            flags: FI_PEER,
            ..shape().cq
        };
        let mut of_cntr = fi_cntr_attr {
            flags: FI_PEER,
            ..shape().cntr
        };
        // SAFETY: as the manual pages have it. The contexts end with the calls.
        let results = unsafe {
            [
                call!(domain, ops.av_open(&raw mut of_av, &raw mut av, null_mut())),
                call!(
                    domain,
                    ops.cq_open(&raw mut of_cq, &raw mut cq, (&raw mut of_queue).cast())
                ),
                call!(
                    domain,
                    ops.cntr_open(
                        &raw mut of_cntr,
                        &raw mut cntr,
                        (&raw mut of_counter).cast()
                    )
                ),
                call!(domain, ops.endpoint(info.info, &raw mut ep, null_mut())),
            ]
        };
        assert_eq!(results, [0; 4]);
        Self {
            ep,
            srx,
            av,
            cq,
            cntr,
            queue,
            counter,
            receives,
        }
    }

    fn receive(&self, tag: Option<u64>, context: usize, iov: &[libc::iovec]) {
        self.receives.receive(&OwnersReceive {
            tagged: tag.is_some(),
            src: FI_ADDR_UNSPEC,
            tag: tag.unwrap_or(0),
            ignore: 0,
            context,
            is_silent: false,
            iov,
        });
    }

    /// Drives the endpoint until a condition holds.
    fn drive_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !holds() {
            assert_eq!(drive(self.cq), 0);
            assert!(Instant::now() < until, "never: {what}");
        }
    }

    fn entries(&self, number: usize) -> Vec<Written> {
        self.queue.await_entries(self.cq, number)
    }

    /// All entries are back with their owner, `freed` of them in all, and all objects close.
    fn close(self, freed: usize) {
        assert_eq!(self.receives.outstanding(), (0, freed));
        assert!(self.queue.written.lock().unwrap().is_empty());
        // An endpoint keeps its context open.
        assert_eq!(close(self.srx.cast()), -libc::EBUSY);
        self.close_objects();
    }

    fn close_objects(&self) {
        for object in [
            self.ep.cast::<fid>(),
            self.srx.cast(),
            self.cq.cast(),
            self.cntr.cast(),
            self.av.cast(),
        ] {
            assert_eq!(close(object), 0);
        }
    }
}

/// A plain endpoint, and one whose receives are an owner's.
struct ReceivingPair {
    opened: Opened,
    a: Side,
    b: ImportingSide,
    to_b: fi_addr_t,
    to_a: fi_addr_t,
}

impl ReceivingPair {
    fn open(info: &Info<'_>) -> Self {
        let opened = Opened::new(info);
        let a = Side::open(&opened, info, shape());
        let b = ImportingSide::open(&opened, info);
        let (to_b, to_a) = (insert(a.av, b.ep), insert(b.av, a.ep));
        Self {
            opened,
            a,
            b,
            to_b,
            to_a,
        }
    }

    /// Sends with a tag and CQ data.
    fn send(&self, bytes: &[u8], data: u64, tag: u64) {
        let meanwhile = || {
            two::count(self.a.sent);
            assert_eq!(drive(self.b.cq), 0);
        };
        (self.a).senddata_beside(bytes, data, (self.to_b, tag), meanwhile);
    }

    /// Drives both ends until a condition holds.
    fn drive_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        self.b.drive_until(what, || {
            two::count(self.a.sent);
            holds()
        });
    }

    /// The next entries of the owner's queue.
    fn entries(&self, number: usize) -> Vec<Written> {
        let is_there = || self.b.queue.written.lock().unwrap().len() >= number;
        self.drive_until("entries", is_there);
        self.b.entries(number)
    }

    fn close(self, freed: usize) {
        self.a.close();
        self.b.close(freed);
        self.opened.close();
    }
}

/// Bytes that differ from place to place.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8) ^ seed).collect()
}

/// Messages of each way of transport go to receives that were posted before, and to those that are
/// posted when the message waits, with tags and without.
///
/// Covers: PEER-9
#[test]
fn messages_go_to_the_owners_receives() {
    everywhere("messages_go_to_the_owners_receives", |info| {
        let pair = ReceivingPair::open(info);
        let mut freed = 0;
        for (round, len) in [0, 8, 300, 5000, 100_000, 1 << 20].into_iter().enumerate() {
            for is_early in [true, false] {
                let bytes = pattern(len, round as u8);
                let mut into = vec![0u8; len + 1];
                // The owner refuses the entry that often.
                pair.b.queue.refusals.store(round % 3, Ordering::Relaxed);
                let iov = iov_of(&mut into);
                if is_early {
                    pair.b.receive(Some(7), 0x70 + round, &iov);
                }
                pair.send(&bytes, 99, 7);
                if !is_early {
                    pair.drive_until("a queued message", || pair.b.receives.queued().0 == 1);
                    assert_eq!(pair.b.receives.queued().1, Some(pair.to_a));
                    pair.b.receive(Some(7), 0x70 + round, &iov);
                }
                let received = Written {
                    context: 0x70 + round,
                    flags: FI_TAGGED | FI_RECV | FI_REMOTE_CQ_DATA,
                    len,
                    buf: into.as_ptr().addr(),
                    data: 99,
                    tag: 7,
                    src: pair.to_a,
                    error: (0, 0),
                };
                assert_eq!(pair.entries(1), [received]);
                assert_eq!(into[..len], bytes[..]);
                freed += 1;
                assert_eq!(pair.b.receives.outstanding(), (0, freed));
            }
        }
        assert_eq!(two::count(pair.b.cntr), 0, "the owner has the value");
        pair.b.counter.await_values(pair.b.cntr, [freed as u64, 0]);
        pair.close(freed);
    });
}

/// Covers: PEER-9
#[test]
fn untagged_messages_fill_lists_of_buffers() {
    everywhere("untagged_messages_fill_lists_of_buffers", |info| {
        let pair = ReceivingPair::open(info);
        for is_early in [true, false] {
            let bytes = pattern(1000, 3);
            let (mut front, mut back) = (vec![0u8; 400], vec![0u8; 700]);
            let iov = [iov_of(&mut front)[0], iov_of(&mut back)[0]];
            if is_early {
                pair.b.receive(None, 5, &iov);
            }
            let until = Instant::now() + PATIENCE;
            loop {
                let (ep, at) = (pair.a.ep, bytes.as_ptr().cast());
                // SAFETY: the bytes stay until the message is received.
                let sent = unsafe {
                    let table = &*(*ep).msg;
                    table.send.unwrap()(ep, at, bytes.len(), null_mut(), pair.to_b, null_mut())
                };
                if sent == 0 {
                    break;
                }
                assert_eq!(sent, two::EAGAIN);
                two::count(pair.a.sent);
                assert!(Instant::now() < until, "no room for a message");
            }
            if !is_early {
                pair.drive_until("a queued message", || pair.b.receives.queued().0 == 1);
                pair.b.receive(None, 5, &iov);
            }
            let came = pair.entries(1);
            assert_eq!((came[0].context, came[0].len, came[0].tag), (5, 1000, 0));
            assert_eq!(came[0].flags, FI_MSG | FI_RECV);
            assert_eq!((&front[..], &back[..600]), (&bytes[..400], &bytes[400..]));
        }
        pair.close(2);
    });
}

/// A message that is too long for its receive fails, and so does one whose receive has more buffers
/// than an endpoint takes. A dropped one leaves nothing, and those after it arrive.
///
/// Covers: PEER-9
#[test]
fn receives_that_fail_give_their_entries_back() {
    everywhere("receives_that_fail_give_their_entries_back", |info| {
        let pair = ReceivingPair::open(info);
        let mut into = [0u8; 16];
        let short = [libc::iovec {
            iov_len: 4,
            ..iov_of(&mut into)[0]
        }];
        let many = [libc::iovec {
            iov_len: 1,
            ..iov_of(&mut into)[0]
        }; 15];
        for is_early in [true, false] {
            for (iov, error) in [(&short[..], (ETRUNC, 12)), (&many[..], (libc::EINVAL, 0))] {
                if is_early {
                    pair.b.receive(Some(1), 10, iov);
                }
                pair.send(&[7; 16], 0, 1);
                if !is_early {
                    pair.drive_until("a queued message", || pair.b.receives.queued().0 == 1);
                    pair.b.receive(Some(1), 10, iov);
                }
                let failed = pair.entries(1);
                assert_eq!((failed[0].context, failed[0].error), (10, error));
            }
        }
        pair.b.counter.await_values(pair.b.cntr, [0, 4]);
        // Dropped by the owner, which frees the entry itself.
        pair.send(&[8; 16], 0, 1);
        pair.drive_until("a queued message", || pair.b.receives.queued().0 == 1);
        pair.b.receives.discard_queued();
        pair.b.receive(Some(2), 20, &iov_of(&mut into));
        pair.send(&[9; 16], 0, 2);
        assert_eq!(pair.entries(1)[0].context, 20);
        assert_eq!(into, [9; 16]);
        pair.close(5);
    });
}

/// A message of a sender that is not inserted has no source. Once it is, the owner knows it before
/// the insertion returns; with an ID or an address of the owner's by that.
///
/// Covers: PEER-2, PEER-9, PEER-10, AV-20
#[test]
fn sources_become_known_with_the_insertion() {
    everywhere("sources_become_known_with_the_insertion", |info| {
        let vector = OwnerVector::new();
        for (id, imports) in [(None, false), (Some(0xFACE_0001), false), (Some(5), true)] {
            let opened = Opened::new(info);
            let a = Side::open(&opened, info, shape());
            let b = match imports {
                false => ImportingSide::open(&opened, info),
                true => ImportingSide::open_with(&opened, info, &vector),
            };
            let to_b = insert(a.av, b.ep);
            let meanwhile = || {
                two::count(a.sent);
                assert_eq!(drive(b.cq), 0);
            };
            a.senddata_beside(&[1; 8], 0, (to_b, 3), meanwhile);
            b.drive_until("a queued message", || {
                two::count(a.sent);
                b.receives.queued().0 == 1
            });
            assert_eq!(b.receives.queued().1, Some(FI_ADDR_UNSPEC));
            let name = name_of(a.ep);
            let known = match id {
                None => insert_bytes(b.av, name.as_ptr().cast()),
                Some(id) => {
                    let (mut addr, av) = (id, b.av);
                    let at = name.as_ptr().cast();
                    // SAFETY: as fi_av(3) has it.
                    let inserted = unsafe {
                        call!(
                            av,
                            ops.insert(at, 1, &raw mut addr, FI_AV_USER_ID, null_mut())
                        )
                    };
                    assert_eq!(inserted, 1);
                    id
                }
            };
            assert_eq!(b.receives.queued(), (1, Some(known)));
            let mut into = [0u8; 8];
            b.receives.receive(&OwnersReceive {
                tagged: true,
                src: known,
                tag: 3,
                ignore: 0,
                context: 30,
                is_silent: false,
                iov: &iov_of(&mut into),
            });
            assert_eq!(b.entries(1)[0].context, 30);
            assert_eq!(into, [1; 8]);
            // The next one has its source from the start.
            a.senddata_beside(&[2; 8], 0, (to_b, 3), meanwhile);
            b.drive_until("a queued message", || b.receives.queued().0 == 1);
            assert_eq!(b.receives.queued().1, Some(known));
            b.receive(Some(3), 31, &iov_of(&mut into));
            assert_eq!(b.entries(1)[0].context, 31);
            a.close();
            b.close(2);
            opened.close();
        }
    });
}

/// An owner that has no entry, or refuses to queue one, gets the same message again; one that
/// drives in its callbacks, and starts a message where it is queued, gets each once.
///
/// Covers: PEER-9
#[test]
fn an_owner_that_refuses_and_calls_back_loses_no_message() {
    everywhere(
        "an_owner_that_refuses_and_calls_back_loses_no_message",
        |info| {
            const MESSAGES: usize = 40;
            let pair = ReceivingPair::open(info);
            let queue = pair.b.cq.expose_provenance();
            let owner = (&raw const *pair.b.receives).expose_provenance();
            let mut refused = 0;
            for number in 0..MESSAGES {
                pair.b.receives.refuse(number % 3, number % 2);
                *pair.b.receives.within.lock().unwrap() = Some(Box::new(move |callback| {
                    let queue: *mut fid_cq = std::ptr::with_exposed_provenance_mut(queue);
                    assert_eq!(drive(queue), 0);
                    if let Callback::Queue(entry) = callback {
                        let owner: *const ReceiveOwner = std::ptr::with_exposed_provenance(owner);
                        // SAFETY: the owner is there as long as the endpoint.
                        let start = || unsafe { &*owner }.start_queued(entry);
                        assert_eq!([start(), start()], [0, EINVAL], "once");
                    }
                }));
                let is_early = number % 5 == 0;
                let mut into = [0u8; 8];
                if is_early {
                    pair.b.receive(Some(1), number, &iov_of(&mut into));
                } else {
                    refused += number % 2;
                }
                let bytes = pattern(8, number as u8);
                pair.send(&bytes, 0, 1);
                let came = pair.entries(1);
                match is_early {
                    true => {
                        assert_eq!((came[0].context, came[0].error), (number, (0, 0)));
                        assert_eq!(into, bytes[..]);
                    }
                    false => assert_eq!(came[0].error, (ETRUNC, 8)),
                }
                pair.b.receives.refuse(0, 0);
            }
            *pair.b.receives.within.lock().unwrap() = None;
            // An entry that is refused by the queue comes back, besides that of the message.
            pair.close(MESSAGES + refused);
        },
    );
}

/// Entries that are none of this provider's, of the other kind, or of an endpoint that is closed.
///
/// Covers: PEER-9
#[test]
fn entries_of_others_are_refused() {
    everywhere("entries_of_others_are_refused", |info| {
        let pair = ReceivingPair::open(info);
        let provider = pair.b.receives.provider();
        let all = [
            provider.start_msg.unwrap(),
            provider.start_tag.unwrap(),
            provider.discard_msg.unwrap(),
            provider.discard_tag.unwrap(),
        ];
        // SAFETY: entries are NULL or there for ever.
        let call = |entry| all.map(|call| unsafe { call(entry) });
        assert_eq!(call(null_mut()), [EINVAL; 4]);
        for number in [0, 1, usize::MAX] {
            assert_eq!(call(ReceiveOwner::foreign_entry(number)), [EINVAL; 4]);
        }
        pair.send(&[1; 8], 0, 4);
        pair.send(&[2; 8], 0, 4);
        pair.drive_until("queued messages", || pair.b.receives.queued().0 == 2);
        let one = pair.b.receives.take_queued().unwrap();
        // SAFETY: as above.
        unsafe {
            assert_eq!(provider.start_msg.unwrap()(one.0), EINVAL, "it has a tag");
            assert_eq!(provider.discard_msg.unwrap()(one.0), EINVAL);
            assert_eq!(provider.discard_tag.unwrap()(one.0), 0);
        }
        let b_receives = &pair.b.receives;
        let other = b_receives.take_queued().unwrap();
        let forged = ReceiveOwner::foreign_entry(b_receives.number_of(other));
        assert_eq!(call(forged), [EINVAL; 4], "the number of another entry");
        let ReceivingPair { opened, a, b, .. } = pair;
        a.close();
        assert_eq!(b.receives.outstanding().0, 0);
        b.close_objects();
        opened.close();
        assert_eq!(call(other.0), [EINVAL; 4], "its endpoint is closed");
    });
}

/// An endpoint that is closed in the middle gives the entries with a receive back, and calls its
/// owner no more.
///
/// Covers: PEER-9
#[test]
fn an_endpoint_that_closes_gives_its_entries_back() {
    everywhere("an_endpoint_that_closes_gives_its_entries_back", |info| {
        let pair = ReceivingPair::open(info);
        // More than a sender writes by itself: the transfer waits for the receiver.
        let bytes = pattern(4 << 20, 1);
        let mut into = vec![0u8; bytes.len()];
        pair.send(&bytes, 0, 1);
        pair.drive_until("a queued message", || pair.b.receives.queued().0 == 1);
        pair.send(&[1; 8], 0, 2);
        pair.drive_until("queued messages", || pair.b.receives.queued().0 == 2);
        pair.b.receive(Some(1), 1, &iov_of(&mut into));
        let (started, freed) = pair.b.receives.outstanding();
        assert_eq!((started, freed), (1, 0), "a read of the owner ends it");
        let ReceivingPair { opened, a, b, .. } = pair;
        b.close_objects();
        assert_eq!(b.receives.outstanding(), (0, 1));
        assert_eq!(b.receives.queued().0, 1, "the owner's");
        a.close();
        opened.close();
    });
}

/// Covers: PEER-1, PEER-9, PEER-12
#[test]
fn contexts_and_bindings_that_can_not_be_are_refused() {
    alone(
        "contexts_and_bindings_that_can_not_be_are_refused",
        |info| {
            let opened = Opened::new(info);
            let receives = ReceiveOwner::new(info.version());
            let with = |change: &dyn Fn(&mut fi_peer_srx_context)| {
                let mut context = receives.context();
                change(&mut context);
                open_srx(&opened, FI_PEER, &raw mut context).map(|srx| close(srx.cast()))
            };
            assert_eq!(with(&|_| ()), Ok(0));
            assert_eq!(with(&|context| context.size += 64), Ok(0));
            assert_eq!(with(&|context| context.size -= 1), Err(EINVAL));
            assert_eq!(with(&|context| context.srx = null_mut()), Err(EINVAL));
            assert_eq!(open_srx(&opened, FI_PEER, null_mut()), Err(EINVAL));
            assert_eq!(
                open_srx(&opened, 0, null_mut()),
                Err(ENOSYS as c_int),
                "none of our own"
            );
            // Each function is necessary.
            let words = size_of::<fi_ops_srx_owner>() / size_of::<usize>();
            for missing in 0..words {
                // SAFETY: the owner's table; a function may be missing.
                let mut ops = unsafe { receives.peer.owner_ops.read() };
                // SAFETY: a size and functions: as many words.
                unsafe { (&raw mut ops).cast::<usize>().add(missing).write(0) };
                let mut peer = fid_peer_srx {
                    owner_ops: &raw mut ops,
                    ..fid_peer_srx::default()
                };
                let peer = &raw mut peer;
                assert_eq!(
                    with(&|context| context.srx = peer),
                    Err(EINVAL),
                    "{missing}"
                );
            }

            // A queue of its own, and one with receives of the other kind.
            let side = ImportingSide::open_disabled(&opened, info);
            let plain = Side::open(&opened, info, shape());
            assert_eq!(bind(side.ep, side.srx.cast(), 0), 0);
            assert_eq!(bind(side.ep, side.srx.cast(), 0), EINVAL, "it has one");
            assert_eq!(
                bind(side.ep, side.srx.cast(), FI_RECV),
                -ferro_fi::abi::FI_EBADFLAGS
            );
            assert_eq!(bind(side.ep, side.av.cast(), 0), 0);
            assert_eq!(bind(side.ep, plain.rx.cast(), FI_TRANSMIT | FI_RECV), 0);
            assert_eq!(control(side.ep.cast(), FI_ENABLE, null_mut()), EINVAL);
            // Receives and cancellations are the owner's.
            let (ep, srx) = (side.ep, side.srx);
            let mut into = [0u8; 8];
            let at: *mut c_void = into.as_mut_ptr().cast();
            for ep in [ep, srx] {
                // SAFETY: nothing is posted.
                unsafe {
                    let (msg, tagged) = (&*(*ep).msg, &*(*ep).tagged);
                    assert_eq!(
                        msg.recv.unwrap()(ep, at, 8, null_mut(), 0, null_mut()),
                        ENOSYS
                    );
                    let posted = tagged.recv.unwrap()(ep, at, 8, null_mut(), 0, 0, 0, null_mut());
                    assert_eq!(posted, ENOSYS);
                }
            }
            side.close_objects();

            let both = ImportingSide::open(&opened, info);
            // SAFETY: the endpoint is open.
            let cancelled =
                unsafe { (*(*both.ep).ops).cancel.unwrap()(both.ep.cast(), null_mut()) };
            assert_eq!(cancelled, ENOSYS);
            let other = ImportingSide::open_disabled(&opened, info);
            assert_eq!(bind(other.ep, other.av.cast(), 0), 0);
            assert_eq!(bind(other.ep, both.cq.cast(), FI_TRANSMIT | FI_RECV), 0);
            let enabled = control(other.ep.cast(), FI_ENABLE, null_mut());
            assert_eq!(enabled, EINVAL, "posted receives beside those of an owner");
            other.close_objects();
            both.close(0);
            plain.close();
            opened.close();
        },
    );
}

/// Owners insert an address in the functions that get a message, each in its own thread: both
/// endpoints have one address vector.
///
/// Covers: PEER-9
#[test]
fn owners_insert_addresses_where_messages_come() {
    everywhere("owners_insert_addresses_where_messages_come", |info| {
        let opened = Opened::new(info);
        let [a, stranger] = [(); 2].map(|()| Side::open(&opened, info, shape()));
        let mut both = [(); 2].map(|()| ImportingSide::open_disabled(&opened, info));
        assert_eq!(close(both[1].av.cast()), 0);
        both[1].av = both[0].av;
        both.iter().for_each(ImportingSide::bind_all);
        let to = both.each_ref().map(|one| insert(a.av, one.ep));
        insert(both[0].av, a.ep);
        let is_inside = Arc::new(Barrier::new(both.len()));
        for one in &both {
            let (is_inside, name) = (is_inside.clone(), name_of(stranger.ep));
            let (av, mut is_first) = (one.av.expose_provenance(), true);
            *one.receives.within.lock().unwrap() = Some(Box::new(move |callback| {
                if callback == Callback::Get && std::mem::take(&mut is_first) {
                    is_inside.wait();
                    let av: *mut fid_av = std::ptr::with_exposed_provenance_mut(av);
                    insert_bytes(av, name.as_ptr().cast());
                }
            }));
        }
        let (sender, queued) = mpsc::channel();
        for one in &both {
            let (cq, sender) = (one.cq.expose_provenance(), sender.clone());
            let owner = (&raw const *one.receives).expose_provenance();
            // A thread that hangs does not keep the process from its end.
            std::thread::spawn(move || {
                let cq: *mut fid_cq = std::ptr::with_exposed_provenance_mut(cq);
                let owner: *const ReceiveOwner = std::ptr::with_exposed_provenance(owner);
                // SAFETY: the owner is there until this thread has sent.
                while unsafe { &*owner }.queued().0 == 0 {
                    assert_eq!(drive(cq), 0);
                }
                sender.send(()).unwrap();
            });
        }
        for to in to {
            a.senddata_beside(&[1; 8], 0, (to, 3), || {
                two::count(a.sent);
            });
        }
        for _ in &both {
            (queued.recv_timeout(PATIENCE)).expect("an owner's function does not return");
        }
        for one in &both {
            let mut into = [0u8; 8];
            one.receive(Some(3), 1, &iov_of(&mut into));
            assert_eq!((one.entries(1)[0].context, into), (1, [1; 8]));
            assert_eq!(one.receives.outstanding(), (0, 1));
            for object in [
                one.ep.cast::<fid>(),
                one.srx.cast(),
                one.cq.cast(),
                one.cntr.cast(),
            ] {
                assert_eq!(close(object), 0);
            }
        }
        assert_eq!(close(both[0].av.cast()), 0);
        stranger.close();
        a.close();
        opened.close();
    });
}

/// A close waits for a thread that announces a message, and entries go back after that: also that
/// of a long message on its way.
///
/// Covers: PEER-9
#[test]
fn a_close_waits_for_announcements() {
    /// A message is announced; the close begins; the close is over.
    static STEPS: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

    everywhere("a_close_waits_for_announcements", |info| {
        let pair = ReceivingPair::open(info);
        let bytes = pattern(4 << 20, 1);
        let mut into = vec![0u8; bytes.len()];
        pair.b.receive(Some(1), 1, &iov_of(&mut into));
        pair.send(&bytes, 0, 1);
        pair.drive_until("a transfer", || pair.b.receives.outstanding() == (1, 0));
        let ReceivingPair {
            opened, a, b, to_b, ..
        } = pair;
        let [announces, closes, is_closed] = STEPS.each_ref();
        let owner = (&raw const *b.receives).expose_provenance();
        *b.receives.within.lock().unwrap() = Some(Box::new(move |callback| {
            if callback != Callback::Get || announces.swap(true, Ordering::AcqRel) {
                return;
            }
            while !closes.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            let owner: *const ReceiveOwner = std::ptr::with_exposed_provenance(owner);
            // SAFETY: the owner is there as long as the test.
            let owner = unsafe { &*owner };
            let before = owner.outstanding();
            for _ in 0..1000 {
                std::thread::yield_now();
                assert!(!is_closed.load(Ordering::Acquire), "the close waits");
                assert_eq!(owner.outstanding(), before);
            }
        }));
        a.senddata_beside(&[2; 8], 0, (to_b, 2), || {
            two::count(a.sent);
        });
        // A read of the counter announces, and holds nothing of the queue.
        let counter = b.cntr.expose_provenance();
        std::thread::scope(|threads| {
            threads.spawn(move || {
                let counter: *mut fid_cntr = std::ptr::with_exposed_provenance_mut(counter);
                let until = Instant::now() + PATIENCE;
                while !announces.load(Ordering::Acquire) {
                    assert_eq!(two::count(counter), 0);
                    assert!(Instant::now() < until, "nothing is announced");
                }
            });
            let until = Instant::now() + PATIENCE;
            while !announces.load(Ordering::Acquire) {
                two::count(a.sent);
                assert!(Instant::now() < until, "nothing is announced");
            }
            closes.store(true, Ordering::Release);
            assert_eq!(close(b.ep.cast()), 0);
            is_closed.store(true, Ordering::Release);
            // That of the announced message had no receive.
            assert_eq!(b.receives.outstanding(), (0, 2));
        });
        for object in [b.srx.cast::<fid>(), b.cq.cast(), b.cntr.cast(), b.av.cast()] {
            assert_eq!(close(object), 0);
        }
        a.close();
        opened.close();
    });
}

/// Receives for no completion are given back without one, unless there are CQ data. A message of no
/// bytes needs no buffer.
///
/// Covers: PEER-9
#[test]
fn receives_for_no_completion_report_none() {
    everywhere("receives_for_no_completion_report_none", |info| {
        let pair = ReceivingPair::open(info);
        let mut into = [0u8; 8];
        let post = |context, iov: &[libc::iovec]| {
            pair.b.receives.receive(&OwnersReceive {
                tagged: true,
                src: FI_ADDR_UNSPEC,
                tag: 1,
                ignore: 0,
                context,
                is_silent: true,
                iov,
            });
        };
        post(1, &iov_of(&mut into));
        let until = Instant::now() + PATIENCE;
        while pair.a.sendmsg(&[5; 8], pair.to_b, 1, 0) != 0 {
            two::count(pair.a.sent);
            assert_eq!(drive(pair.b.cq), 0);
            assert!(Instant::now() < until, "no room for a send");
        }
        pair.drive_until("an entry back", || pair.b.receives.outstanding() == (0, 1));
        assert_eq!(into, [5; 8]);
        assert!(pair.b.queue.written.lock().unwrap().is_empty());
        post(2, &[]);
        pair.send(&[], 77, 1);
        let came = pair.entries(1);
        assert_eq!(
            (came[0].context, came[0].data, came[0].error),
            (2, 77, (0, 0))
        );
        pair.close(2);
    });
}

/// Two endpoints of one queue have their own owners' contexts. An owner that drives by its counter
/// alone gets their messages, too; one that closes an endpoint in its own function has its entries
/// back, and gets nothing more.
///
/// Covers: PEER-5, PEER-9
#[test]
fn endpoints_share_a_queue_and_close_within_a_call() {
    everywhere("endpoints_share_a_queue_and_close_within_a_call", |info| {
        let opened = Opened::new(info);
        let a = Side::open(&opened, info, shape());
        let b = ImportingSide::open(&opened, info);
        let mut c = ImportingSide::open_disabled(&opened, info);
        assert_eq!(close(c.cq.cast()), 0);
        c.cq = b.cq;
        c.bind_all();
        for side in [&b, &c] {
            insert(side.av, a.ep);
        }
        let mut into = [[0u8; 8]; 2];
        for ((side, memory), context) in [&b, &c].into_iter().zip(&mut into).zip([10, 20]) {
            side.receive(Some(1), context, &iov_of(memory));
            let to = insert(a.av, side.ep);
            let meanwhile = || {
                two::count(a.sent);
                two::count(side.cntr);
            };
            a.senddata_beside(&[context as u8; 8], 0, (to, 1), meanwhile);
            let until = Instant::now() + PATIENCE;
            while side.counter.values() != [1, 0] {
                meanwhile();
                assert!(Instant::now() < until, "nothing is counted");
            }
        }
        let mut contexts: Vec<_> = b.entries(2).iter().map(|one| one.context).collect();
        contexts.sort_unstable();
        assert_eq!(contexts, [10, 20]);
        assert_eq!(into, [[10; 8], [20; 8]]);

        // The endpoint of `c` closes where its owner looks for a receive.
        c.receive(Some(2), 30, &iov_of(&mut into[0]));
        let to_c = insert(a.av, c.ep);
        let ep = c.ep.expose_provenance();
        *c.receives.within.lock().unwrap() = Some(Box::new(move |callback| {
            if callback == Callback::Get {
                let ep: *mut fid = std::ptr::with_exposed_provenance_mut(ep);
                assert_eq!(close(ep), 0);
            }
        }));
        a.senddata_beside(&[3; 8], 0, (to_c, 2), || {
            two::count(a.sent);
            assert_eq!(drive(b.cq), 0);
        });
        b.drive_until("the end of the endpoint", || {
            two::count(a.sent);
            c.receives.outstanding() == (0, 2)
        });
        *c.receives.within.lock().unwrap() = None;
        assert!(b.queue.written.lock().unwrap().is_empty());
        for object in [c.srx.cast::<fid>(), c.cntr.cast(), c.av.cast()] {
            assert_eq!(close(object), 0);
        }
        a.close();
        b.close(1);
        opened.close();
    });
}

/// Offers have `FI_PEER` for hints that name it, but not with automatic progress. An owner's hints
/// may have a destination in a form of its own.
///
/// Covers: PEER-1
#[test]
fn objects_of_others_are_offered_with_manual_progress() {
    alone(
        "objects_of_others_are_offered_with_manual_progress",
        |info| {
            // SAFETY: the offer is there.
            let (caps, of_domain) =
                unsafe { ((*info.info).caps, (*(*info.info).domain_attr).caps) };
            assert_eq!(caps & FI_PEER, 0, "hints did not name it");
            assert_eq!(of_domain & FI_PEER, 0);
            for (progress, is_offered) in [
                (fi_progress::FI_PROGRESS_MANUAL, true),
                (fi_progress::FI_PROGRESS_AUTO, false),
            ] {
                let hints = info.copy();
                // SAFETY: the copy is ours.
                unsafe {
                    (*hints.info).caps |= FI_PEER;
                    (*(*hints.info).domain_attr).caps |= FI_PEER;
                    (*(*hints.info).domain_attr).__bindgen_anon_1.data_progress = progress;
                }
                let foreign = [9u8; 100];
                // SAFETY: libfabric frees memory that libc has allocated.
                unsafe {
                    let at = libc::malloc(foreign.len());
                    at.cast::<u8>().copy_from(foreign.as_ptr(), foreign.len());
                    (*hints.info).dest_addr = at;
                    (*hints.info).dest_addrlen = foreign.len();
                }
                let found = info.ask_as(&hints);
                assert_eq!(found.is_ok(), is_offered, "{progress:?}");
                if let Ok(found) = found {
                    // SAFETY: the offer is there.
                    unsafe {
                        assert_ne!((*found.info).caps & FI_PEER, 0);
                        assert_ne!((*(*found.info).domain_attr).caps & FI_PEER, 0);
                    }
                }
            }
        },
    );
}

/// Threads that drive an endpoint at the same time announce each message once, and in order.
///
/// Covers: PEER-4, PEER-9
#[test]
fn four_threads_announce_each_message_once() {
    everywhere("four_threads_announce_each_message_once", |info| {
        // The threads leave the sender little of an emulated processor.
        let messages = if is_slow() { 500 } else { 20_000 };
        let pair = ReceivingPair::open(info);
        let (b, queue) = (&pair.b, pair.b.cq.expose_provenance());
        let bytes: Vec<_> = (0..messages).map(usize::to_ne_bytes).collect();
        let mut into = vec![[0u8; 8]; messages];
        for (number, memory) in into.iter_mut().enumerate().step_by(2) {
            b.receive(Some(1), number, &iov_of(memory));
        }
        std::thread::scope(|threads| {
            let written = &b.queue.written;
            let is_there = move |number| written.lock().unwrap().len() >= number;
            for _ in 0..4 {
                threads.spawn(move || {
                    let queue: *mut fid_cq = std::ptr::with_exposed_provenance_mut(queue);
                    let until = Instant::now() + PATIENCE;
                    while !is_there(messages) {
                        assert_eq!(drive(queue), 0);
                        assert!(Instant::now() < until, "entries are missing");
                    }
                });
            }
            for (number, bytes) in bytes.iter().enumerate() {
                let tag = 1 + number as u64 % 2;
                pair.a.senddata(bytes, number as u64, pair.to_b, tag);
            }
            // The second half waits for receives, which take it from another thread.
            for (number, memory) in into.iter_mut().enumerate().skip(1).step_by(2) {
                b.receive(Some(2), number, &iov_of(memory));
            }
        });
        let written = std::mem::take(&mut *b.queue.written.lock().unwrap());
        let by_context: BTreeMap<_, _> = (written.iter())
            .map(|one| (one.context, (one.data, one.error)))
            .collect();
        let expected = (0..messages).map(|number| (number, (number as u64, (0, 0))));
        assert!(by_context == expected.collect(), "{}", by_context.len());
        assert_eq!(written.len(), messages);
        let differs = into
            .iter()
            .zip(&bytes)
            .position(|(into, from)| into != from);
        assert_eq!(differs.map(|at| (at, into[at], bytes[at])), None);
        pair.close(messages);
    });
}
