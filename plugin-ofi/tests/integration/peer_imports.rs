//! Completion queues and counters of another provider, over stock libfabric: this program is the
//! owner (fi_peer(3)).

use crate::{client, owner, two};
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;
use std::time::Instant;

use client::{Info, Opened, close};
use ferro_fi::abi::{
    FI_PEER, FI_RECV, FI_REMOTE_CQ_DATA, FI_SEND, FI_TAGGED, fi_addr_t, fi_cntr_attr, fi_cq_attr,
    fi_cq_err_entry, fi_peer_cntr_context, fi_peer_cq_context, fi_progress, fid, fid_cq,
    fid_domain, fid_peer_cntr, fid_peer_cq,
};
use owner::{OwnerCounter, OwnerQueue, Written, drive};
use two::{PATIENCE, Shape, Side, alone, control, everywhere, insert, is_slow, shape};

const ENOSYS: isize = -(libc::ENOSYS as isize);

/// An endpoint whose queues and counters are those of an owner.
struct ImportingSide {
    side: Side,
    tx: Box<OwnerQueue>,
    rx: Box<OwnerQueue>,
    sent: Box<OwnerCounter>,
    received: Box<OwnerCounter>,
}

impl ImportingSide {
    fn open(opened: &Opened, info: &Info<'_>) -> Self {
        let (tx, rx) = (OwnerQueue::new(), OwnerQueue::new());
        let (sent, received) = (OwnerCounter::new(), OwnerCounter::new());
        let mut queues = [tx.context(), rx.context()];
        let mut counters = [sent.context(), received.context()];
        let contexts: [*mut c_void; 4] = [
            (&raw mut queues[0]).cast(),
            (&raw mut queues[1]).cast(),
            (&raw mut counters[0]).cast(),
            (&raw mut counters[1]).cast(),
        ];
        let shape = Shape {
            cq: fi_cq_attr {
                flags: FI_PEER,
                ..shape().cq
            },
            cntr: fi_cntr_attr {
                flags: FI_PEER,
                ..shape().cntr
            },
            ..shape()
        };
        // The contexts end with this call.
        let side = Side::open_for(opened, info, shape, contexts);
        Self {
            side,
            tx,
            rx,
            sent,
            received,
        }
    }
}

/// A plain endpoint, and one whose completions go to an owner.
struct ImportingPair {
    opened: Opened,
    a: Side,
    b: ImportingSide,
    to_b: fi_addr_t,
    to_a: fi_addr_t,
}

impl ImportingPair {
    fn open(info: &Info<'_>) -> Self {
        let opened = Opened::new(info);
        let a = Side::open(&opened, info, shape());
        let b = ImportingSide::open(&opened, info);
        let (to_b, to_a) = (insert(a.av, b.side.ep), insert(b.side.av, a.ep));
        Self {
            opened,
            a,
            b,
            to_b,
            to_a,
        }
    }

    /// Nothing was written but what the test has taken, and all closes.
    fn close(self) {
        assert!(self.b.tx.written.lock().unwrap().is_empty());
        assert!(self.b.rx.written.lock().unwrap().is_empty());
        self.a.close();
        self.b.side.close();
        self.opened.close();
    }
}

/// Covers: PEER-4
#[test]
fn completions_go_to_the_owner() {
    everywhere("completions_go_to_the_owner", |info| {
        let pair = ImportingPair::open(info);
        let (a, b) = (&pair.a, &pair.b);
        let mut into = [0u8; 16];
        b.side.receive(&mut into, 7, 0x70);
        a.senddata(&[5; 16], 99, pair.to_b, 7);
        let received = Written {
            context: 0x70,
            flags: FI_TAGGED | FI_RECV | FI_REMOTE_CQ_DATA,
            len: 16,
            buf: into.as_ptr().addr(),
            data: 99,
            tag: 7,
            src: pair.to_a,
            error: (0, 0),
        };
        assert_eq!(b.rx.await_entries(b.side.rx, 1), [received]);
        assert_eq!(into, [5; 16]);

        a.receive(&mut into, 8, 1);
        b.side.senddata(&[6; 16], 3, pair.to_a, 8);
        let done = b.tx.await_entries(b.side.tx, 1);
        assert_eq!(done[0].flags, FI_TAGGED | FI_SEND);
        assert_eq!((done[0].context, done[0].error), (3, (0, 0)));
        assert_eq!(two::next(a.rx).unwrap().tag, 8);

        // A failure is in its place among the others.
        let mut short = [0u8; 4];
        b.side.receive(&mut short, 1, 0x10);
        b.side.receive(&mut into, 2, 0x20);
        a.senddata(&[7; 16], 0, pair.to_b, 1);
        a.senddata(&[8; 16], 0, pair.to_b, 2);
        let both = b.rx.await_entries(b.side.rx, 2);
        assert_eq!(both[0].context, 0x10);
        assert_eq!(both[0].error, (ETRUNC, 12));
        assert_eq!((both[1].context, both[1].error), (0x20, (0, 0)));
        pair.close();
    });
}

/// libfabric's number for a message that is longer than its receive.
const ETRUNC: c_int = 265;

/// Covers: PEER-5
#[test]
fn counts_go_to_the_owner() {
    everywhere("counts_go_to_the_owner", |info| {
        let pair = ImportingPair::open(info);
        let (a, b) = (&pair.a, &pair.b);
        (b.received.read_within).store(b.side.received, Ordering::Relaxed);
        let mut into = [0u8; 16];
        for round in 1..=10 {
            b.side.receive(&mut into, 7, 1);
            a.senddata(&[5; 16], 99, pair.to_b, 7);
            b.received.await_values(b.side.received, [round, 0]);
        }
        let mut short = [0u8; 4];
        b.side.receive(&mut short, 1, 2);
        a.senddata(&[7; 16], 0, pair.to_b, 1);
        b.received.await_values(b.side.received, [10, 1]);
        assert_eq!(b.rx.await_entries(b.side.rx, 11).len(), 11);

        a.receive(&mut into, 8, 1);
        b.side.senddata(&[6; 16], 3, pair.to_a, 8);
        b.sent.await_values(b.side.sent, [1, 0]);
        assert_eq!(b.tx.await_entries(b.side.tx, 1).len(), 1);
        pair.close();
    });
}

/// All but the read that drives the provider is the owner's.
///
/// Covers: PEER-4
#[test]
fn other_calls_are_the_owners() {
    alone("other_calls_are_the_owners", |info| {
        let pair = ImportingPair::open(info);
        let (cq, cntr) = (pair.b.side.rx, pair.b.side.received);
        let mut entry = two::read(pair.a.rx).unwrap_or_default();
        let mut error = fi_cq_err_entry::default();
        let (to, mut from) = ((&raw mut entry).cast::<c_void>(), 0);
        // SAFETY: the objects are open, and there is room for an entry of each kind.
        unsafe {
            assert_eq!(call!(cq, ops.read(to, 1)), ENOSYS);
            assert_eq!(call!(cq, ops.readfrom(to, 1, &raw mut from)), ENOSYS);
            assert_eq!(call!(cq, ops.readerr(&raw mut error, 0)), ENOSYS);
            assert_eq!(call!(cq, ops.sread(to, 1, null(), 0)), ENOSYS);
            let read = call!(cq, ops.sreadfrom(to, 1, &raw mut from, null(), 0));
            assert_eq!(read, ENOSYS);
            assert_eq!(call!(cq, ops.signal()), ENOSYS as c_int);
            assert_eq!(call!(cntr, ops.readerr()), ENOSYS as u64);
            assert_eq!(call!(cntr, ops.add(1)), ENOSYS as c_int);
            assert_eq!(call!(cntr, ops.set(1)), ENOSYS as c_int);
            assert_eq!(call!(cntr, ops.adderr(1)), ENOSYS as c_int);
            assert_eq!(call!(cntr, ops.seterr(1)), ENOSYS as c_int);
            assert_eq!(call!(cntr, ops.wait(1, 0)), ENOSYS as c_int);
        }
        let mut fd = -1;
        for object in [cq.cast::<fid>(), cntr.cast()] {
            let command = ferro_fi::abi::FI_GETWAIT;
            assert_ne!(control(object, command, (&raw mut fd).cast()), 0);
        }
        pair.close();
    });
}

/// `fi_cq_open` and `fi_cntr_open` with `FI_PEER`.
fn open_both(domain: *mut fid_domain, contexts: [*mut c_void; 2], flags: u64) -> [c_int; 2] {
    let (mut cq, mut cntr) = (null_mut(), null_mut());
    let mut of_cq = fi_cq_attr {
        flags,
        ..shape().cq
    };
    let mut of_cntr = fi_cntr_attr {
        flags: flags as _,
        ..shape().cntr
    };
    // SAFETY: the domain is open, and the contexts are NULL or begin with their size.
    let opened = unsafe {
        [
            call!(
                domain,
                ops.cq_open(&raw mut of_cq, &raw mut cq, contexts[0])
            ),
            call!(
                domain,
                ops.cntr_open(&raw mut of_cntr, &raw mut cntr, contexts[1])
            ),
        ]
    };
    for (opened, object) in opened.into_iter().zip([cq.cast::<fid>(), cntr.cast()]) {
        if opened == 0 {
            assert_eq!(close(object), 0);
        }
    }
    opened
}

/// Covers: PEER-1, PEER-12
#[test]
fn contexts_that_are_no_contexts_are_refused() {
    const EINVAL: c_int = -libc::EINVAL;

    alone("contexts_that_are_no_contexts_are_refused", |info| {
        let opened = Opened::new(info);
        let (queue, counter) = (OwnerQueue::new(), OwnerCounter::new());
        let open = |change: &dyn Fn(&mut fi_peer_cq_context, &mut fi_peer_cntr_context)| {
            let (mut cq, mut cntr) = (queue.context(), counter.context());
            change(&mut cq, &mut cntr);
            let contexts = [(&raw mut cq).cast(), (&raw mut cntr).cast()];
            open_both(opened.domain, contexts, FI_PEER)
        };
        assert_eq!(open(&|_, _| ()), [0; 2]);
        let resize = |by: isize| {
            move |cq: &mut fi_peer_cq_context, cntr: &mut fi_peer_cntr_context| {
                cq.size = cq.size.wrapping_add_signed(by);
                cntr.size = cntr.size.wrapping_add_signed(by);
            }
        };
        assert_eq!(open(&resize(64)), [0; 2]);
        assert_eq!(open(&resize(-1)), [EINVAL; 2]);
        let no_object = |cq: &mut fi_peer_cq_context, cntr: &mut fi_peer_cntr_context| {
            (cq.cq, cntr.cntr) = (null_mut(), null_mut());
        };
        assert_eq!(open(&no_object), [EINVAL; 2]);
        let (mut bare_queue, mut bare_counter) = (fid_peer_cq::default(), fid_peer_cntr::default());
        let (bare_queue, bare_counter) = (&raw mut bare_queue, &raw mut bare_counter);
        let no_operations = |cq: &mut fi_peer_cq_context, cntr: &mut fi_peer_cntr_context| {
            (cq.cq, cntr.cntr) = (bare_queue, bare_counter);
        };
        assert_eq!(open(&no_operations), [EINVAL; 2]);
        assert_eq!(
            open_both(opened.domain, [null_mut(); 2], FI_PEER),
            [EINVAL; 2]
        );
        let other_flags = open_both(opened.domain, [null_mut(); 2], FI_PEER | (1 << 40));
        assert_eq!(other_flags, [-ferro_fi::abi::FI_EBADFLAGS; 2]);
        opened.close();
    });
}

/// Their owner would have to be woken, and only its own calls drive this provider.
#[test]
fn a_domain_with_automatic_progress_imports_nothing() {
    alone("a_domain_with_automatic_progress_imports_nothing", |info| {
        // SAFETY: the offer is there.
        unsafe {
            let domain = (*info.info).domain_attr;
            (*domain).__bindgen_anon_1.data_progress = fi_progress::FI_PROGRESS_AUTO;
        }
        let opened = Opened::new(info);
        let (queue, counter) = (OwnerQueue::new(), OwnerCounter::new());
        let (mut cq, mut cntr) = (queue.context(), counter.context());
        let contexts = [(&raw mut cq).cast(), (&raw mut cntr).cast()];
        let refused = open_both(opened.domain, contexts, FI_PEER);
        assert_eq!(refused, [-libc::EINVAL; 2]);
        opened.close();
    });
}

/// An owner that reads in its own callback, and refuses entries, loses none, and gets none twice.
///
/// Covers: PEER-4
#[test]
fn an_owner_that_refuses_and_calls_back_loses_nothing() {
    everywhere(
        "an_owner_that_refuses_and_calls_back_loses_nothing",
        |info| {
            const MESSAGES: usize = 50;
            let pair = ImportingPair::open(info);
            let (a, b) = (&pair.a, &pair.b);
            b.rx.read_within.store(b.side.rx, Ordering::Relaxed);
            let mut short = [0u8; 2];
            let mut into = [0u8; 8];
            for number in 0..MESSAGES {
                let fails = number % 7 == 3;
                let memory = if fails { &mut short[..] } else { &mut into[..] };
                b.side.receive(memory, number as u64, number);
                a.senddata(&[1; 8], 0, pair.to_b, number as u64);
                b.rx.refusals.store(number % 3, Ordering::Relaxed);
                let came = b.rx.await_entries(b.side.rx, 1);
                assert_eq!(came.len(), 1);
                assert_eq!(came[0].context, number);
                assert_eq!(came[0].error.0 != 0, fails);
            }
            pair.close();
        },
    );
}

/// Threads that drive the queue at the same time pass each completion on once, in order.
///
/// Covers: PEER-4
#[test]
fn four_threads_pass_each_completion_on_once() {
    everywhere("four_threads_pass_each_completion_on_once", |info| {
        // The threads leave the sender little of an emulated processor.
        let messages = if is_slow() { 500 } else { 20_000 };
        let pair = ImportingPair::open(info);
        let (b, queue) = (&pair.b, pair.b.side.rx.expose_provenance());
        let mut into = [0u8; 8];
        std::thread::scope(|threads| {
            let written = &b.rx.written;
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
            for number in 0..messages {
                b.side.receive(&mut into, 1, number);
                pair.a.senddata(&[1; 8], number as u64, pair.to_b, 1);
            }
        });
        let written = std::mem::take(&mut *b.rx.written.lock().unwrap());
        let numbers: Vec<_> = written.iter().map(|one| (one.context, one.data)).collect();
        let expected: Vec<_> = (0..messages)
            .map(|number| (number, number as u64))
            .collect();
        assert!(numbers == expected, "{} entries", numbers.len());
        pair.close();
    });
}
