//! The parts of one-sided operations, without a transport.

#![allow(clippy::unwrap_used, reason = "a test")]

use super::*;
use std::sync::Arc;

use ferrofabric_av::{AvAttr, AvTable};
use ferrofabric_contracts::flags::Order;
use ferrofabric_contracts::peer::PeerSrx;
use ferrofabric_contracts::requester::requester;
use ferrofabric_contracts::types::SendOp;
use slab::Slab;

use crate::cq::CqQueue;
use crate::domain::count::CounterValues;
use crate::domain::owner::Binding;
use crate::rma::orders::{Orders, effects_of};
use crate::rma::plan;

const TARGET: FiAddr = FiAddr(3);
const READER: FiAddr = requester(0, 3, 1);
const LEN: u64 = 40;

/// The objects that an owner lends, all at place 0.
struct Lent {
    srx: SharedRx,
    cqs: Slab<CqQueue>,
    cntrs: Slab<CounterValues>,
    avs: Slab<Arc<AvTable>>,
}

impl Lent {
    fn new() -> Self {
        let table = AvTable::new(&AvAttr::default()).unwrap();
        Self {
            srx: SharedRx::new(Arc::default(), Rights::all()),
            cqs: Slab::from_iter([(0, CqQueue::new(4).unwrap())]),
            cntrs: Slab::from_iter([(0, CounterValues::default())]),
            avs: Slab::from_iter([(0, Arc::new(table))]),
        }
    }

    fn with(&mut self, call: impl FnOnce(&mut EndpointOwner<'_>)) {
        let binding = Binding {
            tx_cq: 0,
            rx_cq: 0,
            tx_cntr: 0,
            rx_cntr: 0,
            read_cntr: 0,
            write_cntr: 0,
            remote_read_cntr: 0,
            remote_write_cntr: 0,
            av: 0,
        };
        call(&mut EndpointOwner {
            srx: &mut self.srx,
            cqs: &mut self.cqs,
            cntrs: &mut self.cntrs,
            avs: &self.avs,
            binding: &binding,
        });
    }

    /// The error that is next in the queue.
    fn error(&mut self) -> Option<Errno> {
        self.cqs[0].read_error().map(|error| error.errno)
    }
}

fn read_of(into: &mut [u8]) -> (RmaOp, IoBuf) {
    let op = RmaOp {
        kind: RmaKind::Read,
        dest: TARGET,
        key: 1,
        place: 0,
        data: 0,
        desc: MrDesc::NONE,
        context: 7,
        flags: Flags::COMPLETION,
    };
    (op, IoBuf::new(into.as_ptr(), into.len()))
}

/// A read that is requested, and the number of it.
fn requested(lent: &mut Lent, into: &mut [u8]) -> SendOp {
    let (op, into) = read_of(into);
    let (part, _) = lent.srx.remote.begin_read(&op, &[into]).unwrap();
    lent.srx.remote.set_requested(part.context);
    part
}

fn reply(number: u64) -> Arrived {
    Arrived {
        src: TARGET,
        tag: number,
        data: 0,
        len: LEN,
        flags: Flags::REMOTE_CQ_DATA,
    }
}

#[test]
fn a_reply_that_nobody_waits_for_gets_no_memory() {
    let (mut lent, mut into) = (Lent::new(), [0; LEN as usize]);
    let sound = reply(requested(&mut lent, &mut into).context);
    let data = Errno::EACCES.0 as u64;
    for forged in [
        Arrived {
            tag: sound.tag + 1,
            ..sound
        },
        Arrived {
            tag: sound.tag ^ (1 << 32),
            ..sound
        },
        Arrived {
            tag: u64::MAX,
            ..sound
        },
        Arrived {
            src: FiAddr(4),
            ..sound
        },
        Arrived {
            src: FiAddr::NOTAVAIL,
            ..sound
        },
        Arrived {
            len: LEN - 1,
            ..sound
        },
        Arrived {
            len: LEN + 1,
            ..sound
        },
        Arrived { data, ..sound },
        Arrived {
            flags: Flags::empty(),
            ..sound
        },
    ] {
        let matched = lent.srx.arrive_remote(RemoteKind::Reply, &forged);
        assert_eq!(matched, Matched::REFUSED, "{forged:?}");
    }
    let matched = lent.srx.arrive_remote(RemoteKind::Reply, &sound);
    assert_eq!(matched.buf, IoBuf::new(into.as_ptr(), into.len()));
    let again = lent.srx.arrive_remote(RemoteKind::Reply, &sound);
    assert_eq!(again, Matched::REFUSED);
}

/// Its buffers are the application's again when it has ended, so it ends with its bytes.
#[test]
fn a_read_whose_bytes_are_on_their_way_ends_with_them() {
    let (mut lent, mut into) = (Lent::new(), [0; LEN as usize]);
    let part = requested(&mut lent, &mut into);
    let arrived = reply(part.context);
    let matched = lent.srx.arrive_remote(RemoteKind::Reply, &arrived);
    let lost = (Errno::ECONNRESET, 0, "lost");
    lent.with(|owner| {
        owner.part_sent(RemoteKind::Read, &SendDone::of(&part, 0), Some(lost));
        owner.srx.fail_remote(TARGET, Errno::ECONNRESET, "lost");
    });
    assert_eq!(lent.error(), None);
    let failed = Some((Errno::EREMOTEIO, "half"));
    lent.with(|owner| owner.part_came(RemoteKind::Reply, &matched, &arrived, failed));
    assert_eq!(lent.error(), Some(Errno::EREMOTEIO));
    assert!(!lent.srx.has_deferred());
}

/// A read by another address of the target waits for a reply from its first one. It is in the way
/// of fences of both addresses, ends when one of them is removed, and has its own in the error.
#[test]
fn a_read_by_another_address_belongs_to_both() {
    const ALIAS: FiAddr = FiAddr(5);
    for removed in [TARGET, ALIAS] {
        let (mut lent, mut into) = (Lent::new(), [0; LEN as usize]);
        let (op, into) = read_of(&mut into);
        let op = RmaOp { dest: ALIAS, ..op };
        let remote = &mut lent.srx.remote;
        let (part, _) = remote.begin_read(&op, &[into]).unwrap();
        remote.redirect(&SendOp {
            dest: TARGET,
            ..part
        });
        remote.set_requested(part.context);
        assert!(remote.is_busy_with(ALIAS) && remote.is_busy_with(TARGET));
        let by_alias = Arrived {
            src: ALIAS,
            ..reply(part.context)
        };
        let refused = lent.srx.arrive_remote(RemoteKind::Reply, &by_alias);
        assert_eq!(refused, Matched::REFUSED);
        lent.srx.fail_remote(removed, Errno::ECANCELED, "removed");
        let remote = &lent.srx.remote;
        assert!(!remote.is_busy_with(ALIAS) && !remote.is_busy_with(TARGET));
        let failed = lent.srx.take_deferred();
        let is_its = |task: &Deferred| matches!(task, Deferred::FailRead(_, over) if (over.op.dest, over.op.context) == (ALIAS, op.context));
        assert!(failed.as_ref().is_some_and(is_its), "{failed:?}");
    }
}

/// The call that begins the read returns the error.
#[test]
fn a_read_that_is_not_requested_yet_has_no_error_of_its_peer() {
    let (mut lent, mut into) = (Lent::new(), [0; LEN as usize]);
    let (op, into) = read_of(&mut into);
    let (part, _) = lent.srx.remote.begin_read(&op, &[into]).unwrap();
    lent.srx.fail_remote(TARGET, Errno::ECONNRESET, "lost");
    assert!(!lent.srx.has_deferred());
    lent.srx.remote.set_requested(part.context);
    lent.srx.fail_remote(TARGET, Errno::ECONNRESET, "lost");
    assert!(lent.srx.has_deferred());
}

/// A notice takes no posted receive, so an endpoint that nobody may write by has none.
#[test]
fn a_notice_of_a_write_needs_the_right_to_write() {
    let notice = Arrived {
        len: 0,
        ..reply(LEN)
    };
    let mut lent = Lent::new();
    let accepted = lent.srx.arrive_remote(RemoteKind::Notice, &notice);
    assert!(!accepted.is_refused());
    let mut reads_alone = SharedRx::new(Arc::default(), Rights::READ);
    let refused = reads_alone.arrive_remote(RemoteKind::Notice, &notice);
    assert!(refused.is_refused());
}

#[test]
fn a_source_that_takes_no_replies_gets_no_more_than_its_reads() {
    let mut lent = Lent::new();
    let request = |src| Arrived {
        src,
        tag: 1,
        data: 0,
        len: REQUEST_BYTES as u64,
        flags: Flags::REMOTE_CQ_DATA,
    };
    let (greedy, other) = (request(READER), request(requester(0, 4, 2)));
    for _ in 0..MAX_REQUESTS {
        let matched = lent.srx.arrive_remote(RemoteKind::Read, &greedy);
        assert!(!matched.is_refused());
        lent.with(|owner| owner.part_came(RemoteKind::Read, &matched, &greedy, None));
    }
    for (request, refusals) in [(&greedy, 1), (&other, 0)] {
        let matched = lent.srx.arrive_remote(RemoteKind::Read, request);
        lent.with(|owner| owner.part_came(RemoteKind::Read, &matched, request, None));
        let refused = lent.srx.take_refusals();
        assert_eq!(refused.len(), refusals);
        let errno = Errno::EACCES.0 as u64;
        assert!(refused.iter().all(|refusal| refusal.data == errno));
        assert_eq!(lent.srx.remote.outbox.len_for(READER), MAX_REQUESTS);
    }
}

/// A reply goes to the source of its request, and stays when an address is removed.
#[test]
fn the_reads_of_a_source_that_is_removed_are_answered() {
    let mut lent = Lent::new();
    let request = Arrived {
        src: READER,
        tag: 1,
        data: 0,
        len: REQUEST_BYTES as u64,
        flags: Flags::REMOTE_CQ_DATA,
    };
    let came = |lent: &mut Lent, number: u8| {
        let matched = lent.srx.arrive_remote(RemoteKind::Read, &request);
        // SAFETY: the room is as long.
        unsafe { matched.buf.as_mut_ptr().write(number) };
        matched
    };
    let waits = came(&mut lent, 5);
    lent.with(|owner| owner.part_came(RemoteKind::Read, &waits, &request, None));
    let arrives = came(&mut lent, 6);
    lent.srx.forget_source(TARGET);
    lent.with(|owner| owner.part_came(RemoteKind::Read, &arrives, &request, None));
    assert!(lent.srx.take_refusals().is_empty());
    let replies = lent.srx.remote.outbox.take_of(READER);
    let numbers: Vec<_> = replies.iter().map(|part| part.op.tag).collect();
    assert_eq!(numbers, [5, 6]);
}

/// A write, and a read whose bytes are on their way, do not hold up the operations with another
/// peer that has the address after their target.
#[test]
fn operations_with_a_removed_target_hold_no_others_up() {
    let (mut lent, mut into) = (Lent::new(), [0; LEN as usize]);
    lent.srx.remote.orders = Orders::of(Order::WAR | Order::WAW);
    let sound = reply(requested(&mut lent, &mut into).context);
    let (read, _) = read_of(&mut into);
    let write = RmaOp {
        kind: RmaKind::Write,
        ..read
    };
    lent.srx.remote.begin_write(&write);
    let matched = lent.srx.arrive_remote(RemoteKind::Reply, &sound);
    assert!(!matched.is_refused());
    let way = |lent: &Lent| (lent.srx.remote).behind_of(effects_of(&write), (TARGET, None));
    assert_eq!(way(&lent), None);
    assert!(lent.srx.remote.is_busy_with(TARGET));
    lent.srx.forget_source(TARGET);
    assert_eq!(way(&lent), Some(plan::Behind::Nothing));
    assert!(!lent.srx.remote.is_busy_with(TARGET));
}

/// A reply that can not be sent with its bytes goes without them, once: its initiator waits.
#[test]
fn a_reply_that_fails_is_sent_as_an_error() {
    let mut lent = Lent::new();
    let failed = Some((Errno::ENOMEM, 0, "no memory"));
    for (bytes, replies) in [(Ok((0, MrDesc::NONE)), 1), (Err(Errno::EIO), 0)] {
        let op = reply_to(READER, 7, bytes);
        let done = SendDone::of(&op, 0);
        lent.with(|owner| owner.part_sent(RemoteKind::Reply, &done, failed));
        let sent = lent.srx.remote.outbox.take_of(READER);
        let of = |part: &RemoteSend| (part.op.tag, part.op.data);
        let expected = vec![(7, Errno::EIO.0 as u64); replies];
        assert_eq!(sent.iter().map(of).collect::<Vec<_>>(), expected);
    }
}

/// A source that is not in the address vector is granted nothing, and gets to know that.
#[test]
fn an_unknown_source_is_granted_nothing() {
    let mut lent = Lent::new();
    let query = Arrived {
        src: FiAddr::NOTAVAIL,
        len: 0,
        data: 9,
        ..reply(1)
    };
    let matched = lent.srx.arrive_remote(RemoteKind::Query, &query);
    assert!(!matched.is_refused());
    lent.with(|owner| owner.part_came(RemoteKind::Query, &matched, &query, None));
    let refusals = lent.srx.take_refusals();
    let of = |op: &SendOp| (op.kind, op.tag, op.data);
    let none = (MsgKind::Remote(RemoteKind::Grant), 9, 0);
    assert_eq!(refusals.iter().map(of).collect::<Vec<_>>(), [none]);
    assert!(lent.srx.remote.outbox.is_empty());
    let revoke = lent.srx.arrive_remote(RemoteKind::Revoke, &query);
    assert!(revoke.is_refused());
}

/// The number of an error in a reply is that of the operation's error, if it is one that targets
/// send.
#[test]
fn a_refused_operation_has_the_error_of_its_reply() {
    let (mut lent, mut into) = (Lent::new(), [0; LEN as usize]);
    for (kind, number, errno) in [
        (Flags::ATOMIC, Errno::EACCES, Errno::EACCES),
        (Flags::ATOMIC, Errno::EINVAL, Errno::EINVAL),
        (Flags::ATOMIC, Errno::EOPNOTSUPP, Errno::EOPNOTSUPP),
        (Flags::ATOMIC, Errno(i32::MAX), Errno::EACCES),
        (Flags::empty(), Errno::EINVAL, Errno::EACCES),
        (Flags::empty(), Errno::EACCES, Errno::EACCES),
    ] {
        let (op, into) = read_of(&mut into);
        let flags = op.flags | kind;
        let op = RmaOp { flags, ..op };
        let read = (lent.srx.remote).enter_read(&op, &[into], LEN as usize);
        let arrived = Arrived {
            data: number.0 as u64,
            len: 0,
            ..reply(read.unwrap())
        };
        let matched = lent.srx.arrive_remote(RemoteKind::Reply, &arrived);
        lent.with(|owner| owner.part_came(RemoteKind::Reply, &matched, &arrived, None));
        assert_eq!(lent.error(), Some(errno), "{number:?}");
    }
}
