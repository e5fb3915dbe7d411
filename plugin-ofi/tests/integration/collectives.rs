//! Collective operations by C calls (fi_collective(3)) over endpoints of one process, against
//! results that are computed in order.

use crate::{client, owner, ranks, two};
use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::Instant;

use client::{Libfabric, close};
use ferro_fi::abi::{
    FI_ADDR_NOTAVAIL, FI_ADDR_UNSPEC, FI_COLLECTIVE, FI_JOIN_COMPLETE, FI_PEER,
    FI_SELECTIVE_COMPLETION, FI_TAGGED, fi_datatype, fi_eq_attr, fi_msg_tagged, fi_op, fid,
};
use owner::events::{Closed, OwnerEvents};
use ranks::{Rank, Ranks, address_of, offer};
use two::{asking_everywhere_with, count};

/// Runs a test with the offer of a domain, where the host's libfabric has `off_coll`.
fn with_offer(test: &str, body: impl FnOnce(&client::Info<'_>)) {
    with_offer_and(&[], test, body);
}

/// As `with_offer`, with settings.
fn with_offer_and(settings: &[(&str, &str)], test: &str, body: impl FnOnce(&client::Info<'_>)) {
    asking_everywhere_with(
        settings,
        test,
        |libfabric: &Libfabric, domain: &str| match offer(libfabric, domain) {
            Ok(info) => body(&info),
            Err(error) => panic!("no offer with FI_COLLECTIVE: {error}"),
        },
    );
}

/// Each operator on elements of each type, as libfabric has them, on 2, 3 and 5 ranks.
///
/// Covers: PEER-2, PEER-7, PEER-11
#[test]
fn allreduces_of_each_type_and_operator() {
    with_offer("allreduces_of_each_type_and_operator", |info| {
        for number in [2, 3, 5] {
            let ranks = Ranks::open(info, number);
            let members: Vec<usize> = (0..number).collect();
            let joined = ranks.join(&members, None);
            let domain = ranks.opened.domain;
            (ranks.members(&joined)).reductions(domain, &[1, 5, 700]);
            let all: Vec<_> = (members.iter().zip(&joined))
                .map(|(&rank, &(group, set))| (rank, group, set))
                .collect();
            ranks.close(&all);
        }
    });
}

/// Two ranks that have each other's addresses. An owner gets the events of the first one.
fn reporting_ranks(
    opened: &client::Opened,
    info: &client::Info<'_>,
    owner: &OwnerEvents,
) -> [Rank; 2] {
    // It may go after the call.
    let mut context = owner.context();
    let of_eq = fi_eq_attr {
        flags: FI_PEER,
        ..fi_eq_attr::default()
    };
    let imported = (&raw mut context).cast();
    let mut ranks = [
        Rank::open_reporting(opened, info, 0, of_eq, imported),
        Rank::open(opened, info),
    ];
    let names = [0, 1].map(|rank: usize| two::name_of(ranks[rank].ep));
    ranks.iter_mut().for_each(|rank| rank.insert(&names));
    ranks
}

/// The events of joins come out of the event queue of an owner, which calls this provider in its
/// own function.
///
/// Covers: PEER-7
#[test]
fn joins_are_events_of_an_owner() {
    with_offer("joins_are_events_of_an_owner", |info| {
        let opened = client::Opened::new(info);
        let owner = OwnerEvents::new();
        let ranks = reporting_ranks(&opened, info, &owner);
        (owner.read_within).store(ranks[0].eq, std::sync::atomic::Ordering::Relaxed);
        // A join of one member is over at once.
        let alone = ranks[0].set(&[0]);
        let own = ranks[0].join(FI_ADDR_NOTAVAIL, alone, 5).unwrap();
        let event = owner.await_events(ranks[0].eq, 1)[0];
        assert_eq!((event.number, event.error), (FI_JOIN_COMPLETE, 0));
        assert_eq!((event.fid, event.context), (own.addr(), 5));
        let sets = [0, 1].map(|rank: usize| ranks[rank].set(&[0, 1]));
        let groups =
            [0, 1].map(|rank: usize| ranks[rank].join(FI_ADDR_NOTAVAIL, sets[rank], 6).unwrap());
        let until = Instant::now() + two::PATIENCE;
        let mut events = (Vec::new(), None);
        while events.0.is_empty() || events.1.is_none() {
            // A read of the completion queue is enough.
            assert!(ranks[0].read().is_none());
            events.0.extend(owner.take());
            events.1 = events.1.or_else(|| ranks[1].event());
            assert!(Instant::now() < until, "no join ends");
        }
        assert_eq!(events.0.len(), 1);
        assert_eq!(
            (events.0[0].fid, events.0[0].context),
            (groups[0].addr(), 6)
        );
        let [first, second] = ranks;
        first.close(&[own, groups[0]], &[alone, sets[0]]);
        second.close(&[groups[1]], &[sets[1]]);
        opened.close();
    });
}

/// An owner closes the endpoint of a join within the call by which it gets the event.
///
/// Covers: PEER-7
#[test]
fn an_owner_closes_an_endpoint_within_an_event() {
    with_offer("an_owner_closes_an_endpoint_within_an_event", |info| {
        let opened = client::Opened::new(info);
        let owner = OwnerEvents::new();
        let ranks = reporting_ranks(&opened, info, &owner);
        let sets = [0, 1].map(|rank: usize| ranks[rank].set(&[0, 1]));
        let groups =
            [0, 1].map(|rank: usize| ranks[rank].join(FI_ADDR_NOTAVAIL, sets[rank], 6).unwrap());
        let closed = [groups[0].cast(), ranks[0].ep.cast()].map(Closed);
        owner.close_within.lock().unwrap().extend(closed);
        let until = Instant::now() + two::PATIENCE;
        let mut event = None;
        while event.is_none() || !is_closed(&owner) {
            assert!(ranks[0].read().is_none());
            event = event.or_else(|| ranks[1].event());
            assert!(Instant::now() < until, "no join ends");
        }
        let [first, second] = ranks;
        let rest: [*mut fid; 5] = [
            first.cq.cast(),
            first.cntr.cast(),
            first.eq.cast(),
            sets[0].cast(),
            first.av.cast(),
        ];
        rest.into_iter()
            .for_each(|fid| assert_eq!(client::close(fid), 0));
        second.close(&[groups[1]], &[sets[1]]);
        opened.close();
    });
}

/// Whether an owner has closed all that it was to close.
fn is_closed(owner: &OwnerEvents) -> bool {
    owner.close_within.lock().unwrap().is_empty()
}

/// Data that moves, with each root and numbers of elements around the number of ranks; a barrier
/// ends when the last one enters.
///
/// Covers: PEER-11
#[test]
fn data_and_barriers() {
    with_offer("data_and_barriers", |info| {
        for number in [1, 2, 3, 5] {
            let ranks = Ranks::open(info, number);
            let members: Vec<usize> = (0..number).collect();
            let joined = ranks.join(&members, None);
            let group = ranks.members(&joined);
            for len in [
                0,
                1,
                2,
                number.max(2) - 1,
                number,
                number + 1,
                1000,
                100_000,
            ] {
                group.data(len);
            }
            members.iter().for_each(|&last| group.barrier(last));
            // Its messages are not the application's.
            ranks
                .ranks
                .iter()
                .for_each(|rank| assert_eq!(count(rank.cntr), 0));
            let all: Vec<_> = (members.iter().zip(&joined))
                .map(|(&rank, &(group, set))| (rank, group, set))
                .collect();
            ranks.close(&all);
        }
    });
}

/// The order of a set is that of the ranks, a group has subgroups, and several groups work at once.
#[test]
fn groups_of_groups() {
    with_offer("groups_of_groups", |info| {
        let ranks = Ranks::open(info, 5);
        let all = [4, 2, 0, 1, 3];
        let world = ranks.join(&all, None);
        let of_world: Vec<_> = world.iter().map(|&(group, _)| group).collect();
        let mut open: Vec<_> = (all.iter().zip(&world))
            .map(|(&rank, &(group, set))| (rank, group, set))
            .collect();

        // Each member joins the subgroup that it is in, all by the messages of the large one.
        let parts = [vec![4, 0], vec![2, 1, 3]];
        let mut subgroups = Vec::new();
        for (at, &rank) in all.iter().enumerate() {
            let this = &ranks.ranks[rank];
            let part = parts.iter().find(|part| part.contains(&rank)).unwrap();
            let set = this.set(part);
            let group = this
                .join(address_of(of_world[at]), set, 2000 + rank)
                .unwrap();
            subgroups.push((rank, group, set));
        }
        let mut events = [None; 5];
        let until = std::time::Instant::now() + ranks::PATIENCE;
        while events.iter().any(Option::is_none) {
            for (rank, event) in events.iter_mut().enumerate() {
                let next = ranks.ranks[rank].event();
                *event = event.or(next.map(|entry| (entry.context as usize, entry.fid as usize)));
            }
            assert!(std::time::Instant::now() < until, "no join");
        }
        for &(rank, group, _) in &subgroups {
            assert_eq!(events[rank], Some((2000 + rank, group as usize)));
        }

        // One operation of each group at once, begun in different orders.
        let mut sums = [[0u64; 2]; 5];
        for (at, &rank) in all.iter().enumerate() {
            let this = &ranks.ranks[rank];
            let sub = subgroups
                .iter()
                .find(|(member, ..)| *member == rank)
                .unwrap()
                .1;
            let input = (1u64 << rank).to_le_bytes();
            let kind = (fi_datatype::FI_UINT64, fi_op::FI_SUM);
            let [large, small] = &mut sums[rank];
            // SAFETY: a number is its bytes.
            let bytes = |sum: &mut u64| unsafe {
                std::slice::from_raw_parts_mut(std::ptr::from_mut(sum).cast::<u8>(), 8)
            };
            let input: &'static [u8] = Box::leak(Box::new(input));
            let (large, small) = ((input, bytes(large)), (input, bytes(small)));
            let world = address_of(of_world[at]);
            let sub = address_of(sub);
            if rank % 2 == 0 {
                assert_eq!(this.allreduce(large, 1, kind, world, 7), 0);
                assert_eq!(this.allreduce(small, 1, kind, sub, 7), 0);
            } else {
                assert_eq!(this.allreduce(small, 1, kind, sub, 7), 0);
                assert_eq!(this.allreduce(large, 1, kind, world, 7), 0);
            }
        }
        let mut missing = [2; 5];
        while missing.iter().any(|&left| left != 0) {
            for (rank, left) in missing.iter_mut().enumerate() {
                *left -= usize::from(ranks.ranks[rank].read().is_some());
            }
            assert!(std::time::Instant::now() < until, "not complete");
        }
        for (rank, sums) in sums.iter().enumerate() {
            let part = parts.iter().find(|part| part.contains(&rank)).unwrap();
            let small = part.iter().map(|&member| 1u64 << member).sum();
            assert_eq!(*sums, [0b11111, small]);
        }
        open.extend(subgroups);
        ranks.close(&open);
    });
}

/// Messages of the application and those of collectives do not meet, and calls that make no sense
/// are refused.
#[test]
fn messages_and_mistakes() {
    with_offer("messages_and_mistakes", |info| {
        let ranks = Ranks::open(info, 2);
        let joined = ranks.join(&[0, 1], None);
        let (a, b) = (&ranks.ranks[0], &ranks.ranks[1]);
        let (mut memory, high) = ([0u8; 8], 1 << 63);
        // SAFETY: as fi_tagged(3) has it.
        unsafe {
            let (at, none) = (memory.as_mut_ptr().cast(), null_mut());
            let any = FI_ADDR_UNSPEC;
            let received = call!(
                b.ep,
                tagged.recv(at, 8, none, any, 0, u64::MAX, 5 as *mut _)
            );
            assert_eq!(received, 0);
            let refused = call!(b.ep, tagged.recv(at, 8, none, any, high, 0, none));
            assert_eq!(refused, -(libc::EINVAL as isize));
            let refused = call!(a.ep, tagged.inject(at, 8, a.addrs[1], high));
            assert_eq!(refused, -(libc::EINVAL as isize));
        }
        // A collective does not take the receive that takes any tag.
        for (rank, &(group, _)) in [a, b].into_iter().zip(&joined) {
            assert_eq!(rank.barrier(address_of(group), 9), 0);
        }
        ranks.complete(&[0, 1], 9);
        let bytes = 77u64.to_le_bytes();
        // SAFETY: as above.
        let sent = unsafe {
            call!(
                a.ep,
                tagged.inject(bytes.as_ptr().cast(), 8, a.addrs[1], high - 1)
            )
        };
        assert_eq!(sent, 0);
        let until = std::time::Instant::now() + ranks::PATIENCE;
        let entry = loop {
            a.read();
            if let Some(entry) = b.read() {
                break entry;
            }
            assert!(std::time::Instant::now() < until, "no message");
        };
        assert_eq!((entry.op_context as usize, entry.tag), (5, high - 1));
        assert_eq!(entry.flags & FI_TAGGED, FI_TAGGED);
        assert_eq!(memory, bytes);

        let group = address_of(joined[0].0);
        let mut out = [0; 64];
        let uint = fi_datatype::FI_UINT8;
        let reduced =
            |kind, group| a.allreduce((&[1; 8], &mut [0; 64]), 8, kind, group, 1) as c_int;
        assert_eq!(
            reduced((fi_datatype::FI_FLOAT, fi_op::FI_BOR), group),
            -libc::EOPNOTSUPP
        );
        assert_eq!(
            reduced((uint, fi_op::FI_ATOMIC_WRITE), group),
            -libc::EOPNOTSUPP
        );
        assert_eq!(reduced((uint, fi_op::FI_SUM), group + 1000), -libc::EINVAL);
        let stranger = (group, 12345);
        assert_eq!(
            a.broadcast(&mut out, 1, uint, stranger, 1) as c_int,
            -libc::EINVAL
        );
        let far = a.broadcast(&mut out, usize::MAX / 2, uint, (group, a.addrs[0]), 1);
        assert_eq!(far as c_int, -libc::EMSGSIZE);
        let alone = a.set(&[1]);
        let not_a_member = a.join(u64::MAX, alone, 0);
        assert_eq!(not_a_member, Err(-libc::EINVAL));
        assert_eq!(close(alone.cast()), 0);
        // A group keeps its endpoint open.
        assert_eq!(close(a.ep.cast()), -libc::EBUSY);

        let all = [(0, joined[0].0, joined[0].1), (1, joined[1].0, joined[1].1)];
        ranks.close(&all);
    });
}

/// A receive with the flag of collectives is the application's all the same.
#[test]
fn a_flag_that_is_not_the_applications() {
    with_offer("a_flag_that_is_not_the_applications", |info| {
        let opened = client::Opened::new(info);
        let flags = FI_SELECTIVE_COMPLETION;
        let mut rank = ranks::Rank::open_with(&opened, info, flags);
        rank.insert(&[two::name_of(rank.ep)]);
        let mut memory = [0u8; 8];
        let iov = libc::iovec {
            iov_base: memory.as_mut_ptr().cast(),
            iov_len: 8,
        };
        let msg = fi_msg_tagged {
            msg_iov: &raw const iov,
            iov_count: 1,
            addr: FI_ADDR_UNSPEC,
            context: 3 as *mut _,
            ..fi_msg_tagged::default()
        };
        // SAFETY: as fi_tagged(3) has it.
        unsafe {
            let received = call!(rank.ep, tagged.recvmsg(&raw const msg, FI_COLLECTIVE));
            assert_eq!(received, 0);
            let bytes = 5u64.to_le_bytes();
            let sent = call!(
                rank.ep,
                tagged.inject(bytes.as_ptr().cast(), 8, rank.addrs[0], 0)
            );
            assert_eq!(sent, 0);
        }
        let until = std::time::Instant::now() + ranks::PATIENCE;
        while count(rank.cntr) < 2 {
            assert!(rank.read().is_none(), "it wants no completion");
            assert!(std::time::Instant::now() < until, "it is not counted");
        }
        rank.close(&[], &[]);
        opened.close();
    });
}

/// A rank for a thread of its own.
struct OwnRank(ranks::Rank);

// SAFETY: any thread may use objects of a domain of `FI_THREAD_SAFE`.
unsafe impl Send for OwnRank {}

/// Threads that each wait at the queue of their rank, in calls of one domain.
#[test]
fn threads_that_wait() {
    with_offer("threads_that_wait", |info| {
        const ROUNDS: usize = 500;
        let mut ranks = Ranks::open(info, 4);
        let joined = ranks.join(&[0, 1, 2, 3], None);
        let threads: Vec<_> = (ranks.ranks.drain(..).zip(&joined).enumerate())
            .map(|(at, (rank, &(group, _)))| {
                let (rank, group) = (OwnRank(rank), address_of(group));
                std::thread::spawn(move || {
                    let rank = rank;
                    for round in 0..ROUNDS {
                        let input = (at * ROUNDS + round) as u64;
                        let mut sum = [0; 8];
                        let kind = (fi_datatype::FI_UINT64, fi_op::FI_SUM);
                        let buffers = (&input.to_le_bytes()[..], &mut sum[..]);
                        assert_eq!(rank.0.allreduce(buffers, 1, kind, group, round + 1), 0);
                        assert_eq!(rank.0.wait_for_end(), Some(Ok(round + 1)));
                        let all: u64 = (0..4).map(|at| (at * ROUNDS + round) as u64).sum();
                        assert_eq!(u64::from_le_bytes(sum), all);
                    }
                    rank
                })
            })
            .collect();
        ranks.ranks = threads
            .into_iter()
            .map(|thread| thread.join().unwrap().0)
            .collect();
        let all: Vec<_> = (joined.iter().enumerate())
            .map(|(rank, &(group, set))| (rank, group, set))
            .collect();
        ranks.close(&all);
    });
}

/// The close of an endpoint waits for a thread that reads its queue: nothing of the endpoint is in
/// use then, and what it was bound to closes, too.
#[test]
fn a_close_waits_for_readers() {
    with_offer("a_close_waits_for_readers", |info| {
        let opened = client::Opened::new(info);
        let reader = ranks::Rank::open(&opened, info);
        let (queue, is_over) = (OwnRank(reader), std::sync::atomic::AtomicBool::new(false));
        let cq = queue.0.cq;
        let queue = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let queue = queue;
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    assert!(queue.0.read().is_none());
                }
                queue
            });
            let closed: Vec<[c_int; 4]> = (0..1000)
                .map(|_| {
                    let rank = ranks::Rank::open_at(&opened, info, cq, 0);
                    let all = [
                        rank.ep.cast(),
                        rank.eq.cast(),
                        rank.av.cast(),
                        rank.cntr.cast(),
                    ];
                    all.map(close)
                })
                .collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            let queue = thread.join().unwrap();
            assert!(
                closed.iter().all(|results| *results == [0; 4]),
                "{closed:?}"
            );
            queue
        });
        queue.0.close(&[], &[]);
        opened.close();
    });
}

/// A cancellation hits receives of the application, whatever their contexts, and none of
/// collectives.
#[test]
fn cancellations_are_the_applications() {
    with_offer("cancellations_are_the_applications", |info| {
        let ranks = Ranks::open(info, 2);
        let joined = ranks.join(&[0, 1], None);
        let (a, b) = (&ranks.ranks[0], &ranks.ranks[1]);
        assert_eq!(a.barrier(address_of(joined[0].0), 9), 0);
        let numbers = (1 << 63)..(1 << 63) + 1000;
        let posted = numbers.start + 5;
        let mut memory = [0u8; 8];
        // SAFETY: as fi_tagged(3) and fi_cancel(3) have it.
        unsafe {
            let (at, none) = (memory.as_mut_ptr().cast(), null_mut());
            let context = posted as *mut std::ffi::c_void;
            let received = call!(
                a.ep,
                tagged.recv(at, 8, none, FI_ADDR_UNSPEC, 3, 0, context)
            );
            assert_eq!(received, 0);
            for number in numbers {
                let cancelled = (*(*a.ep).ops).cancel.unwrap()(a.ep.cast(), number as *mut _);
                assert_eq!(cancelled, 0);
            }
        }
        let mut error = ferro_fi::abi::fi_cq_err_entry::default();
        let mut entry = ferro_fi::abi::fi_cq_tagged_entry::default();
        // SAFETY: there is room for one of each.
        unsafe {
            let read = call!(a.cq, ops.read((&raw mut entry).cast(), 1));
            assert_eq!(read, -(ferro_fi::abi::FI_EAVAIL as isize));
            assert_eq!(call!(a.cq, ops.readerr(&raw mut error, 0)), 1);
        }
        assert_eq!(
            (error.op_context as u64, error.err),
            (posted, libc::ECANCELED)
        );
        assert_eq!(b.barrier(address_of(joined[1].0), 9), 0);
        ranks.complete(&[0, 1], 9);
        ranks.close(&[(0, joined[0].0, joined[0].1), (1, joined[1].0, joined[1].1)]);
    });
}

/// A subgroup of a group has its own members alone, and so do the messages of its join: the others
/// take no part in it.
#[test]
fn some_members_join_a_subgroup() {
    with_offer("some_members_join_a_subgroup", |info| {
        let ranks = Ranks::open(info, 4);
        let world = ranks.join(&[0, 1, 2], None);
        let groups: Vec<_> = world.iter().map(|&(group, _)| group).collect();
        let part = ranks.join(&[2, 1], Some(&[groups[2], groups[1]]));
        for &(rank, at) in &[(1, 1), (2, 0)] {
            let this = &ranks.ranks[rank];
            assert_eq!(this.barrier(address_of(part[at].0), 5), 0);
        }
        ranks.complete(&[1, 2], 5);

        // Others are no members of a subgroup.
        let set = ranks.ranks[1].set(&[1, 3]);
        let joined = ranks.ranks[1].join(address_of(groups[1]), set, 1);
        assert_eq!(joined, Err(-libc::EINVAL));
        assert_eq!(close(set.cast()), 0);

        let mut all: Vec<_> = (world.iter().enumerate())
            .map(|(rank, &(group, set))| (rank, group, set))
            .collect();
        all.extend([(2, part[0].0, part[0].1), (1, part[1].0, part[1].1)]);
        ranks.close(&all);
    });
}

/// Two joins of an endpoint at once: messages of the two groups are those of two groups.
#[test]
fn joins_at_once() {
    with_offer("joins_at_once", |info| {
        let ranks = Ranks::open(info, 3);
        let members: [&[usize]; 2] = [&[0, 1], &[0, 1, 2]];
        let mut joined: [Vec<(usize, *mut ferro_fi::abi::fid_mc, _)>; 2] = [vec![], vec![]];
        for (at, &of) in members.iter().enumerate() {
            for &rank in of {
                let this = &ranks.ranks[rank];
                let set = this.set(of);
                joined[at].push((rank, this.join(u64::MAX, set, at).unwrap(), set));
            }
        }
        let mut missing = [2, 2, 1];
        ranks.until("all joins", || {
            for (rank, left) in missing.iter_mut().enumerate() {
                *left -= usize::from(ranks.ranks[rank].event().is_some());
            }
            missing == [0; 3]
        });

        // One operation of each at once, in another order at each member.
        let inputs = [[[1u8; 8], [2; 8], [0; 8]], [[3; 8], [4; 8], [5; 8]]];
        let mut outputs = [[[0u8; 24]; 2]; 3];
        for (rank, [small, large]) in outputs.iter_mut().enumerate() {
            let this = &ranks.ranks[rank];
            let gather = |at: usize, output: &mut [u8]| {
                let group = address_of(joined[at][rank].1);
                let buffers = (&inputs[at][rank][..], output);
                let begun = this.allgather(buffers, 8, fi_datatype::FI_UINT8, group, at);
                assert_eq!(begun, 0);
            };
            match rank {
                0 => {
                    gather(0, &mut small[..]);
                    gather(1, &mut large[..]);
                }
                1 => {
                    gather(1, &mut large[..]);
                    gather(0, &mut small[..]);
                }
                _ => gather(1, &mut large[..]),
            }
        }
        let mut missing = [2, 2, 1];
        ranks.until("all gathers", || {
            for (rank, left) in missing.iter_mut().enumerate() {
                *left -= usize::from(ranks.ranks[rank].read().is_some());
            }
            missing == [0; 3]
        });
        for (rank, outputs) in outputs.iter().enumerate() {
            let small = if rank == 2 {
                vec![0; 16]
            } else {
                inputs[0][..2].concat()
            };
            assert_eq!(outputs[0][..16], small, "{rank}");
            assert_eq!(outputs[1][..], inputs[1].concat(), "{rank}");
        }
        ranks.close(&joined.concat());
    });
}

/// Waits for the end of a join at each of these ranks.
fn join_ends(ranks: &Ranks, members: &[usize]) -> Vec<Result<usize, (usize, c_int)>> {
    let mut ends = vec![None; members.len()];
    ranks.until("all joins end", || {
        for (end, &member) in ends.iter_mut().zip(members) {
            *end = end.or_else(|| ranks.ranks[member].join_end());
        }
        ends.iter().all(Option::is_some)
    });
    ends.into_iter()
        .map(|end| end.unwrap().map(|entry| entry.context as usize))
        .collect()
}

/// A group that a live member does not join closes. The other one's join fails then, and no other
/// group of the same members does, nor a later join of them.
#[test]
fn a_join_is_given_up() {
    with_offer("a_join_is_given_up", |info| {
        let ranks = Ranks::open(info, 2);
        let (a, b) = (&ranks.ranks[0], &ranks.ranks[1]);
        let old = ranks.join(&[0, 1], None);
        let set = a.set(&[0, 1]);
        let given_up = a.join(u64::MAX, set, 3).unwrap();
        for _ in 0..100 {
            assert!(a.event().is_none() && b.event().is_none());
        }
        assert_eq!(close(given_up.cast()), 0);
        assert_eq!(close(set.cast()), 0);

        let set = b.set(&[0, 1]);
        let failed = b.join(u64::MAX, set, 4).unwrap();
        assert_eq!(join_ends(&ranks, &[1]), [Err((4, libc::ECONNABORTED))]);
        assert!(a.join_end().is_none());
        assert_eq!(
            b.barrier(address_of(failed), 1),
            -(libc::ECONNABORTED as isize)
        );
        assert_eq!(close(failed.cast()), 0);
        assert_eq!(close(set.cast()), 0);

        let new = ranks.join(&[0, 1], None);
        for joined in [&old, &new] {
            assert_eq!(a.barrier(address_of(joined[0].0), 7), 0);
            assert_eq!(b.barrier(address_of(joined[1].0), 7), 0);
            ranks.complete(&[0, 1], 7);
        }
        let all: Vec<_> = (old.iter().chain(&new).enumerate())
            .map(|(at, &(group, set))| (at % 2, group, set))
            .collect();
        ranks.close(&all);
    });
}

/// A join that waits for another one begins when that one is given up. One that is given up while
/// it waits fails at the other members.
#[test]
fn joins_that_wait_for_another() {
    with_offer("joins_that_wait_for_another", |info| {
        let ranks = Ranks::open(info, 3);
        let join = |rank: usize, members: &[usize], context: usize| {
            let this = &ranks.ranks[rank];
            let set = this.set(members);
            (rank, this.join(u64::MAX, set, context).unwrap(), set)
        };
        let first = join(0, &[0, 1], 1);
        let second = join(0, &[0, 2], 2);
        let third = join(0, &[0, 1, 2], 3);
        let of_second = join(2, &[0, 2], 4);
        let of_third = join(2, &[0, 1, 2], 5);
        for _ in 0..100 {
            assert!(ranks.ranks.iter().all(|rank| rank.join_end().is_none()));
        }
        for (_, group, set) in [third, first] {
            assert_eq!(close(group.cast()), 0);
            assert_eq!(close(set.cast()), 0);
        }
        assert_eq!(join_ends(&ranks, &[0, 2]), [Ok(2), Ok(4)]);
        assert_eq!(join_ends(&ranks, &[2]), [Err((5, libc::ECONNABORTED))]);
        for (rank, group, _) in [second, of_second] {
            assert_eq!(ranks.ranks[rank].barrier(address_of(group), 6), 0);
        }
        ranks.complete(&[0, 2], 6);
        ranks.close(&[second, of_second, of_third]);
    });
}

/// A group closes though an operation of it is under way, with a long message that nobody receives:
/// the operation is cancelled, and fails at the other members.
#[test]
fn an_operation_is_given_up() {
    with_offer("an_operation_is_given_up", |info| {
        let ranks = Ranks::open(info, 3);
        let (a, b) = (&ranks.ranks[0], &ranks.ranks[1]);
        let joined = ranks.join(&[0, 1, 2], None);
        let input = vec![1u8; 1 << 20];
        let mut outputs = [vec![0u8; 3 << 20], vec![0u8; 3 << 20]];
        for (at, (rank, output)) in [a, b].into_iter().zip(&mut outputs).enumerate() {
            let (buffers, group) = ((&input[..], &mut output[..]), address_of(joined[at].0));
            let begun = rank.allgather(buffers, 1 << 20, fi_datatype::FI_UINT8, group, 5);
            assert_eq!(begun, 0);
        }
        for _ in 0..100 {
            assert!(a.read().is_none() && b.read().is_none());
        }
        assert_eq!(close(joined[1].0.cast()), 0);
        assert_eq!(b.end(), Some(Err(libc::ECANCELED)));
        let mut end = None;
        ranks.until("the other member's end", || {
            end = a.end();
            end.is_some()
        });
        assert_eq!(end, Some(Err(libc::ECONNABORTED)));
        let closed = b.barrier(address_of(joined[0].0), 1);
        assert_eq!(closed, -(libc::EINVAL as isize));
        assert_eq!(close(joined[1].1.cast()), 0);
        ranks.close(&[(0, joined[0].0, joined[0].1), (2, joined[2].0, joined[2].1)]);
    });
}

/// A member is gone, and another one has not entered: its group discards the long message that
/// nobody receives, so that the operation ends and has its buffers back.
#[test]
fn a_long_message_that_nobody_receives() {
    // Over verbs the death of a member that is reached by datagrams shows after a minute else.
    let soon = [
        ("FERRO_PEER_TIMEOUT", "5s"),
        ("FERRO_RECONNECT_TIMEOUT", "2s"),
    ];
    with_offer_and(&soon, "a_long_message_that_nobody_receives", |info| {
        let mut ranks = Ranks::open(info, 3);
        let joined = ranks.join(&[0, 1, 2], None);
        let gone = ranks.ranks.pop().unwrap();
        gone.close(&[joined[2].0], &[joined[2].1]);
        let (a, b) = (&ranks.ranks[0], &ranks.ranks[1]);
        let (input, mut output) = (vec![1u8; 1 << 20], vec![0u8; 3 << 20]);
        let group = address_of(joined[0].0);
        let buffers = (&input[..], &mut output[..]);
        let begun = a.allgather(buffers, 1 << 20, fi_datatype::FI_UINT8, group, 5);
        assert_eq!(begun, 0);
        let mut end = None;
        ranks.until("the gather ends", || {
            assert!(b.end().is_none());
            end = a.end();
            end.is_some()
        });
        assert!(matches!(end, Some(Err(_))), "{end:?}");
        drop((input, output));
        let failed = b.barrier(address_of(joined[1].0), 6);
        assert_eq!(failed, -(libc::ECONNABORTED as isize));
        ranks.close(&[(0, joined[0].0, joined[0].1), (1, joined[1].0, joined[1].1)]);
    });
}

/// The event of a join goes with its group, and so does its error.
#[test]
fn events_of_groups_that_are_closed() {
    with_offer("events_of_groups_that_are_closed", |info| {
        let ranks = Ranks::open(info, 2);
        let (a, b) = (&ranks.ranks[0], &ranks.ranks[1]);
        let join = |context: usize| {
            [a, b].map(|rank| {
                let set = rank.set(&[0, 1]);
                (rank.join(u64::MAX, set, context).unwrap(), set)
            })
        };
        let joined = join(3);
        let mut left = vec![(a, joined[0].0), (b, joined[1].0)];
        ranks.until("both have joined", || {
            left.retain(|(rank, group)| {
                assert!(rank.read().is_none());
                rank.barrier(address_of(*group), 5) != 0
            });
            left.is_empty()
        });
        ranks.complete(&[0, 1], 5);
        assert_eq!(close(joined[0].0.cast()), 0);
        assert!(a.join_end().is_none(), "its group is closed");
        assert_eq!(b.event().unwrap().context as usize, 3);

        // A join of the one alone, which the other one gives up.
        let set = a.set(&[0, 1]);
        let given_up = a.join(u64::MAX, set, 4).unwrap();
        assert_eq!(close(given_up.cast()), 0);
        assert_eq!(close(set.cast()), 0);
        let set = b.set(&[0, 1]);
        let failed = b.join(u64::MAX, set, 4).unwrap();
        ranks.until("the join fails", || {
            assert!(b.read().is_none());
            b.barrier(address_of(failed), 6) == -(libc::ECONNABORTED as isize)
        });
        assert_eq!(close(failed.cast()), 0);
        assert_eq!(close(set.cast()), 0);
        assert!(b.join_end().is_none(), "its group is closed");

        let again = ranks.join(&[0, 1], None);
        let mut all: Vec<_> = (again.iter().enumerate())
            .map(|(rank, &(group, set))| (rank, group, set))
            .collect();
        assert_eq!(close(joined[0].1.cast()), 0);
        all.push((1, joined[1].0, joined[1].1));
        ranks.close(&all);
    });
}

/// A join fails at a member while another one's is complete. The number of that group may be that
/// of the next one at the former, to which messages of the failed group are nothing.
#[test]
fn the_number_of_a_failed_join_comes_again() {
    with_offer("the_number_of_a_failed_join_comes_again", |info| {
        let ranks = Ranks::open(info, 3);
        let (a, b, c) = (&ranks.ranks[0], &ranks.ranks[1], &ranks.ranks[2]);
        let sets = [a, b].map(|rank| rank.set(&[0, 1]));
        let given_up = a.join(u64::MAX, sets[0], 3).unwrap();
        let complete = b.join(u64::MAX, sets[1], 4).unwrap();
        ranks.until("one member's join", || b.event().is_some());
        // Its number is in messages now.
        assert_eq!(b.barrier(address_of(complete), 5), 0);
        assert_eq!(close(given_up.cast()), 0);
        assert_eq!(close(sets[0].cast()), 0);
        let mut end = None;
        ranks.until("the barrier fails", || {
            end = b.end();
            end.is_some()
        });
        assert_eq!(end, Some(Err(libc::ECONNABORTED)));

        let next = ranks.join(&[0, 2], None);
        for context in 6..10 {
            for (rank, &(group, _)) in [a, c].into_iter().zip(&next) {
                assert_eq!(rank.barrier(address_of(group), context), 0);
            }
            ranks.complete(&[0, 2], context);
        }
        let of_next = [(0, next[0].0, next[0].1), (2, next[1].0, next[1].1)];
        ranks.close(&[&of_next[..], &[(1, complete, sets[1])]].concat());
    });
}

/// The first message of an operation can not be sent: the operation fails, and begins no others.
#[test]
fn a_first_message_that_fails() {
    with_offer("a_first_message_that_fails", |info| {
        let ranks = Ranks::open(info, 3);
        let joined = ranks.join(&[0, 1, 2], None);
        let a = &ranks.ranks[0];
        let (av, mut gone) = (a.av, [a.addrs[1]]);
        // SAFETY: as fi_av(3) has it.
        assert_eq!(unsafe { call!(av, ops.remove(gone.as_mut_ptr(), 1, 0)) }, 0);
        let (input, mut output) = ([1u8; 8], [0u8; 24]);
        let (buffers, group) = ((&input[..], &mut output[..]), address_of(joined[0].0));
        let begun = a.allgather(buffers, 8, fi_datatype::FI_UINT8, group, 5);
        assert_eq!(begun, 0);
        let mut end = None;
        ranks.until("the gather fails", || {
            end = a.end();
            end.is_some()
        });
        assert!(matches!(end, Some(Err(_))), "{end:?}");
        let all: Vec<_> = (joined.iter().enumerate())
            .map(|(rank, &(group, set))| (rank, group, set))
            .collect();
        ranks.close(&all);
    });
}

/// A member that stands still has messages wait for room, and those alone that are for it.
#[test]
fn a_member_that_stands_still() {
    with_offer("a_member_that_stands_still", |info| {
        // More than there is room for, and fewer than a group has numbers for.
        const OPERATIONS: usize = 20_000;
        let apart: Vec<_> = (0..3)
            .map(|_| {
                let opened = client::Opened::new(info);
                let rank = Rank::open(&opened, info);
                (opened, rank)
            })
            .collect();
        let (fabrics, mut ranks): (Vec<_>, Vec<_>) = apart.into_iter().unzip();
        let names: Vec<_> = ranks.iter().map(|rank| two::name_of(rank.ep)).collect();
        ranks.iter_mut().for_each(|rank| rank.insert(&names));
        let join = |members: [usize; 2]| {
            let joined = members.map(|member| {
                let rank = &ranks[member];
                let set = rank.set(&members);
                (rank.join(u64::MAX, set, 1).unwrap(), set)
            });
            let (until, mut left) = (Instant::now() + two::PATIENCE, members.to_vec());
            while !left.is_empty() {
                left.retain(|&member| ranks[member].event().is_none());
                assert!(Instant::now() < until, "no join ends");
            }
            joined
        };
        let (of_still, of_others) = (join([0, 1]), join([0, 2]));

        // The root sends, and waits for nothing.
        let (input, mut output) = ([1u8; 16], [0u8; 8]);
        let root = (address_of(of_still[0].0), ranks[0].addrs[0]);
        for _ in 0..OPERATIONS {
            let buffers = (Some(&input[..]), &mut output[..]);
            let begun = ranks[0].scatter(buffers, 8, fi_datatype::FI_UINT8, root, 2);
            assert_eq!(begun, 0);
        }
        let (until, mut left) = (Instant::now() + two::PATIENCE, vec![0, 2]);
        for (member, &(group, _)) in [0, 2].into_iter().zip(&of_others) {
            assert_eq!(ranks[member].barrier(address_of(group), 3), 0);
        }
        let mut sent = 0;
        while !left.is_empty() {
            left.retain(|&member| match ranks[member].read() {
                Some(entry) if entry.op_context as usize == 3 => false,
                Some(entry) => {
                    assert_eq!((member, entry.op_context as usize), (0, 2));
                    sent += 1;
                    true
                }
                None => true,
            });
            assert!(Instant::now() < until, "those wait at {left:?}");
        }
        assert!(sent < OPERATIONS, "there is room for all");
        let groups = [
            vec![of_still[0], of_others[0]],
            vec![of_still[1]],
            vec![of_others[1]],
        ];
        for (rank, groups) in ranks.into_iter().zip(groups) {
            let (groups, sets): (Vec<_>, Vec<_>) = groups.into_iter().unzip();
            rank.close(&groups, &sets);
        }
        fabrics.into_iter().for_each(client::Opened::close);
    });
}

/// Each operation has limits of its own, which calls keep.
#[test]
fn limits_of_operations() {
    use ferro_fi::abi::{fi_atomic_attr, fi_collective_attr, fi_collective_op};
    with_offer("limits_of_operations", |info| {
        let ranks = Ranks::open(info, 3);
        let joined = ranks.join(&[0, 1, 2], None);
        let domain = ranks.opened.domain;
        let uint8 = fi_datatype::FI_UINT8;
        let limit = |coll: fi_collective_op| {
            let mut attr = fi_collective_attr {
                op: match coll {
                    fi_collective_op::FI_ALLREDUCE => fi_op::FI_SUM,
                    _ => fi_op::FI_NOOP,
                },
                datatype: uint8,
                datatype_attr: fi_atomic_attr::default(),
                max_members: 0,
                mode: 0,
            };
            // SAFETY: the domain is open.
            let found = unsafe { call!(domain, ops.query_collective(coll, &raw mut attr, 0)) };
            assert_eq!((found, attr.datatype_attr.size), (0, 1));
            attr.datatype_attr.count
        };
        // SAFETY: the offer has the attributes of endpoints.
        let max_msg = unsafe { (*(*info.info).ep_attr).max_msg_size };
        let most = i32::MAX as usize;
        assert_eq!(limit(fi_collective_op::FI_ALLREDUCE), most.min(max_msg));
        assert_eq!(limit(fi_collective_op::FI_ALLGATHER), most.min(max_msg));
        assert_eq!(limit(fi_collective_op::FI_SCATTER), (most / 2).min(max_msg));
        assert_eq!(
            limit(fi_collective_op::FI_BROADCAST),
            (most / 2).min(max_msg)
        );

        // A scatter of three has a third. Beyond their limits all calls are refused.
        let (this, group) = (&ranks.ranks[0], address_of(joined[0].0));
        let root = (group, this.addrs[0]);
        let refused = -(libc::EMSGSIZE as isize);
        let mut none: [u8; 0] = [];
        let third = (most / 3).min(max_msg);
        let scatter = this.scatter((None, &mut none), third + 1, uint8, root, 1);
        assert_eq!(scatter, refused);
        let broadcast = this.broadcast(&mut none, 3 * third + 1, uint8, root, 1);
        assert_eq!(broadcast, refused);
        let most = most.min(max_msg);
        let sum = (uint8, fi_op::FI_SUM);
        let allreduce = this.allreduce((&[], &mut none), most + 1, sum, group, 1);
        assert_eq!(allreduce, refused);
        let all: Vec<_> = (joined.iter().enumerate())
            .map(|(rank, &(group, set))| (rank, group, set))
            .collect();
        ranks.close(&all);
    });
}
