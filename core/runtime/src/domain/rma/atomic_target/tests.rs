//! Requests and replies as they come, sound and forged.

use std::sync::Arc;

use ferrofabric_av::{AvAttr, AvTable};
use ferrofabric_contracts::atomics::{
    AtomicForm, AtomicHead, AtomicOperator, Datatype, MAX_ATOMIC_BYTES,
};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::{Flags, Rights};
use ferrofabric_contracts::peer::{Arrived, Matched, PeerSrx};
use ferrofabric_contracts::requester::requester;
use ferrofabric_contracts::types::{
    FiAddr, IoBuf, MAX_REQUESTS, MrDesc, MsgKind, RemoteKind, SendOp,
};
use proptest::prelude::*;
use slab::Slab;

use crate::cq::CqQueue;
use crate::domain::count::CounterValues;
use crate::domain::owner::{Binding, EndpointOwner};
use crate::domain::srx::SharedRx;
use crate::fabric::MrAttr;
use crate::rma::as_target::regions::RegionTable;

const SRC: FiAddr = requester(0, 3, 1);
const OTHER: FiAddr = requester(0, 4, 2);
const KEY: u64 = 9;
const BOTH: Flags = Flags::REMOTE_READ.union(Flags::REMOTE_WRITE);

/// An endpoint whose domain has a region of eight words.
struct TargetEnd {
    srx: SharedRx,
    cqs: Slab<CqQueue>,
    cntrs: Slab<CounterValues>,
    avs: Slab<Arc<AvTable>>,
    words: Box<[u64; 8]>,
    regions: Arc<RegionTable>,
}

impl TargetEnd {
    fn new() -> Self {
        let (regions, words) = (Arc::<RegionTable>::default(), Box::new([0; 8]));
        let attr = MrAttr {
            key: Some(KEY),
            ..MrAttr::new(IoBuf::new(words.as_ptr().cast(), 64), BOTH)
        };
        regions.enter(&attr, MrDesc::NONE).unwrap();
        let table = AvTable::new(&AvAttr::default()).unwrap();
        Self {
            srx: SharedRx::new(regions.clone(), Rights::all()),
            cqs: Slab::from_iter([(0, CqQueue::new(4).unwrap())]),
            cntrs: Slab::from_iter([(0, CounterValues::default())]),
            avs: Slab::from_iter([(0, Arc::new(table))]),
            words,
            regions,
        }
    }

    fn arrive(&mut self, a: &Arrived) -> Matched {
        let kind = MsgKind::Remote(RemoteKind::Atomic);
        self.srx.arrive(kind, a).unwrap()
    }

    /// The bytes of a request have come, or will not.
    fn came(&mut self, matched: &Matched, a: &Arrived, bytes: Option<&[u8]>) {
        if let Some(bytes) = bytes {
            assert_eq!(bytes.len(), matched.buf.len);
            // SAFETY: the room is the request's, and has this length.
            unsafe {
                matched
                    .buf
                    .as_mut_ptr()
                    .copy_from(bytes.as_ptr(), bytes.len())
            };
        }
        let failed = bytes.is_none().then_some((Errno::EREMOTEIO, "lost"));
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
        let mut owner = EndpointOwner {
            srx: &mut self.srx,
            cqs: &mut self.cqs,
            cntrs: &mut self.cntrs,
            avs: &self.avs,
            binding: &binding,
        };
        owner.part_came(RemoteKind::Atomic, matched, a, failed);
    }

    /// Takes the replies to a source out: their numbers and states, as when they are sent.
    fn replies(&mut self, to: FiAddr) -> Vec<(u64, u64)> {
        let parts = self.srx.remote.outbox.take_of(to);
        let mut reply = |op: SendOp| {
            assert_eq!(op.kind, MsgKind::Remote(RemoteKind::Reply));
            self.srx.remote.give(op.context);
            (op.tag, op.data)
        };
        parts.into_iter().map(|part| reply(part.op)).collect()
    }

    /// Takes the refusals out: their numbers and errors.
    fn refusals(&mut self) -> Vec<(u64, u64)> {
        let answer = |op: SendOp| {
            assert_eq!(op.kind, MsgKind::Remote(RemoteKind::Reply));
            assert_eq!(op.dest, FiAddr::NOTAVAIL);
            (op.tag, op.data)
        };
        self.srx.take_refusals().into_iter().map(answer).collect()
    }

    /// Nothing of any operation is left.
    fn assert_empty(&self) {
        let remote = &self.srx.remote;
        assert_eq!((remote.atomics.count(), remote.rooms()), (0, 0));
        assert!(remote.outbox.is_empty() && remote.refusals.is_empty());
    }

    fn word(&self) -> u64 {
        std::hint::black_box(&self.words)[0]
    }
}

/// A request to add to the first words, with this number of elements.
fn sum(number: u64, count: u32, operand: u64) -> Vec<u8> {
    let head = AtomicHead {
        number,
        form: AtomicForm::Fetch,
        operator: AtomicOperator::Sum,
        datatype: Datatype::Uint64,
        count,
    };
    let operands = operand.to_ne_bytes().repeat(count as usize);
    [&head.to_bytes()[..], &operands].concat()
}

fn arrived(src: FiAddr, request: &[u8]) -> Arrived {
    Arrived {
        src,
        tag: KEY,
        data: 0,
        len: request.len() as u64,
        flags: Flags::REMOTE_CQ_DATA,
    }
}

/// A request that is whole waits for those of its source before it, for those of no other, and not
/// for one that is lost.
#[test]
fn requests_are_carried_out_in_their_order() {
    let mut end = TargetEnd::new();
    let long = sum(1, 8, 10);
    let short = sum(2, 1, 100);
    let (a_long, a_short, a_other) = (
        arrived(SRC, &long),
        arrived(SRC, &short),
        arrived(OTHER, &short),
    );
    let (first, second) = (end.arrive(&a_long), end.arrive(&a_short));
    end.came(&second, &a_short, Some(&short));
    assert_eq!((end.word(), end.replies(SRC)), (0, vec![]));
    let other = end.arrive(&a_other);
    end.came(&other, &a_other, Some(&short));
    assert_eq!((end.word(), end.replies(OTHER)), (100, vec![(2, 0)]));
    end.came(&first, &a_long, Some(&long));
    assert_eq!((end.word(), end.replies(SRC)), (210, vec![(1, 0), (2, 0)]));

    let (first, second) = (end.arrive(&a_long), end.arrive(&a_short));
    end.came(&second, &a_short, Some(&short));
    end.came(&first, &a_long, None);
    assert_eq!((end.word(), end.replies(SRC)), (310, vec![(2, 0)]));
    end.assert_empty();
}

/// The requests of a source are served by its own number, whatever becomes of addresses: those of a
/// source that was removed and those of one that was never inserted.
#[test]
fn no_address_matters_to_requests() {
    let mut end = TargetEnd::new();
    let (long, short) = (sum(1, 8, 10), sum(2, 1, 100));
    let (a_long, a_short) = (arrived(SRC, &long), arrived(SRC, &short));
    let (on_its_way, waits) = (end.arrive(&a_long), end.arrive(&a_short));
    end.came(&waits, &a_short, Some(&short));
    for address in [FiAddr(0), FiAddr(3)] {
        end.srx.forget_source(address);
    }
    end.came(&on_its_way, &a_long, Some(&long));
    assert_eq!(end.refusals(), []);
    assert_eq!((end.word(), end.replies(SRC)), (110, vec![(1, 0), (2, 0)]));
    end.assert_empty();
}

/// The requests and replies that wait for a source are bounded, and another source has room.
#[test]
fn a_source_has_no_more_requests_than_an_initiator() {
    let mut end = TargetEnd::new();
    let request = sum(1, 1, 1);
    let (greedy, other) = (arrived(SRC, &request), arrived(OTHER, &request));
    for number in 0..MAX_REQUESTS {
        let matched = end.arrive(&greedy);
        assert!(!matched.is_refused());
        if number % 2 == 0 {
            end.came(&matched, &greedy, None);
            let matched = end.arrive(&greedy);
            assert!(!matched.is_refused());
        }
    }
    let replies = end.srx.remote.outbox.len_for(SRC);
    let matched = end.arrive(&greedy);
    end.came(&matched, &greedy, Some(&request));
    assert_eq!(end.refusals(), [(1, Errno::EACCES.0 as u64)]);
    assert_eq!(end.srx.remote.outbox.len_for(SRC), replies);
    let matched = end.arrive(&other);
    end.came(&matched, &other, Some(&request));
    assert_eq!(end.refusals(), []);
    assert_eq!(end.replies(OTHER), [(1, 0)]);
}

#[test]
fn messages_that_are_no_requests_get_no_room() {
    let mut end = TargetEnd::new();
    let sound = arrived(SRC, &sum(1, 1, 1));
    let most = AtomicHead::MAX_REQUEST_BYTES as u64;
    for forged in [
        Arrived { len: 0, ..sound },
        Arrived { len: 15, ..sound },
        Arrived {
            len: most + 1,
            ..sound
        },
        Arrived {
            len: u64::MAX,
            ..sound
        },
        Arrived {
            flags: Flags::empty(),
            ..sound
        },
    ] {
        assert!(end.arrive(&forged).is_refused(), "{forged:?}");
    }
    let longest = Arrived { len: most, ..sound };
    assert_eq!(end.arrive(&longest).buf.len, 16 + 2 * MAX_ATOMIC_BYTES);
}

proptest! {
    /// Any bytes get one reply, and a refused request changes nothing. Nothing of it is left.
    #[test]
    fn any_request_has_one_reply(
        change in prop::option::of((0usize..24, any::<u8>())),
        bytes in prop::option::of(prop::collection::vec(any::<u8>(), 16..80)),
        (key, place) in (KEY..KEY + 2, prop_oneof![0u64..80, any::<u64>()]),
    ) {
        let mut end = TargetEnd::new();
        let mut request = bytes.unwrap_or_else(|| sum(1, 1, 5));
        if let Some((at, value)) = change {
            let at = at.min(request.len() - 1);
            request[at] = value;
        }
        let a = Arrived { tag: key, data: place, ..arrived(SRC, &request) };
        let matched = end.arrive(&a);
        end.came(&matched, &a, Some(&request));
        let replies = end.replies(SRC);
        prop_assert_eq!(replies.len(), 1);
        let (number, state) = replies[0];
        prop_assert_eq!(number.to_le_bytes(), &request[..8]);
        if state != 0 {
            let known = [Errno::EACCES, Errno::EINVAL, Errno::EOPNOTSUPP];
            prop_assert!(known.iter().any(|errno| errno.0 as u64 == state));
            prop_assert!(end.words.iter().all(|word| *word == 0));
        }
        end.assert_empty();
        // No part of the region is on its way.
        end.regions.begin_close(0);
        prop_assert!(end.regions.is_over(0));
    }
}
