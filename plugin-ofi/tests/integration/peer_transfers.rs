//! Collective operations by the transfers of another provider, over stock libfabric: this program
//! is the owner (fi_peer(3), `FI_PEER_TRANSFER`).

use crate::{client, owner, ranks, transfer_owner, two};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use client::{Info, Opened, close};
use ferro_fi::abi::{
    FI_ADDR_NOTAVAIL, FI_CONTEXT, FI_EAVAIL, FI_EINVAL, FI_ENOCQ, FI_ENOENT, FI_ENOSPC, FI_ENOSYS,
    FI_EOPBADSTATE, FI_MR_LOCAL, FI_ORDER_SAS, FI_PEER, FI_TAGGED, fi_addr_t, fi_av_set_attr,
    fi_collective_attr, fi_collective_op, fi_cq_err_entry, fi_cq_tagged_entry, fi_datatype, fi_op,
    fi_ops_tagged, fi_peer_domain_context, fi_peer_transfer_context, fi_threading, fid_av_set,
    fid_domain, fid_fabric, fid_mc,
};
use owner::events::Closed;
use ranks::{PATIENCE, Rank, Ranks, address_of};
use transfer_owner::{OwnedRanks, OwnerRank, PeerDomain, offer};
use two::{Side, alone, asking_everywhere_with, shape};

/// A member whose endpoint closes is noticed after so long, over verbs, too.
const SOON: &[(&str, &str)] = &[("FERRO_PEER_TIMEOUT", "5s")];

/// Errors of operations and groups whose member has closed its endpoint. A message to it may have
/// been under way.
const GONE: [c_int; 4] = [
    libc::ECONNRESET,
    libc::ECONNABORTED,
    libc::ESHUTDOWN,
    libc::EHOSTUNREACH,
];

/// A member's group, and the set that it has its members from.
type Joined = (usize, *mut fid_mc, *mut fid_av_set);

/// Runs a test with the offer of a collective peer and that of the owner's messages.
fn with_offers(test: &str, body: impl FnOnce(&Info<'_>, &Info<'_>)) {
    asking_everywhere_with(SOON, test, |libfabric, domain| {
        let info = libfabric.discover(domain, fi_threading::FI_THREAD_SAFE);
        body(&offer(libfabric).expect("a collective peer"), &info);
    });
}

/// Has these ranks join a group.
fn join(ranks: &Ranks, members: &[usize]) -> Vec<Joined> {
    let joined = ranks.join(members, None);
    let of = |(&rank, &(group, set)): (&usize, &(_, _))| (rank, group, set);
    members.iter().zip(&joined).map(of).collect()
}

/// Groups as the oracle has them: those of the first ranks.
fn of_first(joined: &[Joined]) -> Vec<(*mut fid_mc, *mut fid_av_set)> {
    joined.iter().map(|&(_, group, set)| (group, set)).collect()
}

/// Each operator on elements of each type, on 2, 3 and 5 ranks.
///
/// Covers: PEER-2, PEER-3, PEER-6, PEER-7, PEER-11
#[test]
fn allreduces_of_each_type_and_operator() {
    with_offers("allreduces_of_each_type_and_operator", |offer, info| {
        for number in [2, 3, 5] {
            let owned = OwnedRanks::open(offer, info, number);
            let joined = join(&owned.ranks, &Vec::from_iter(0..number));
            let domain = owned.ranks.opened.domain;
            let members = owned.ranks.members(&of_first(&joined));
            members.reductions(domain, &[1, 5, 700]);
            owned.close(&joined);
        }
    });
}

/// Barriers, broadcasts, scatters and allgathers with each root, on 1 to 8 ranks, whose owners
/// refuse each third transfer and each second entry for lack of room.
///
/// Covers: PEER-11
#[test]
fn owners_without_room() {
    with_offers("owners_without_room", |offer, info| {
        for number in [1, 2, 3, 8] {
            let owned = OwnedRanks::open(offer, info, number);
            let refuse = |transfers, entries| {
                for owner in &owned.owners {
                    owner.refusals.store(transfers, Ordering::Relaxed);
                    owner.queue.refusals.store(entries, Ordering::Relaxed);
                    owner.events.refusals.store(entries, Ordering::Relaxed);
                }
            };
            refuse(3, 2);
            let joined = join(&owned.ranks, &Vec::from_iter(0..number));
            let members = owned.ranks.members(&of_first(&joined));
            for len in [0, 1, 7, 1000] {
                refuse(5, 3);
                members.data(len);
            }
            for last in 0..number {
                refuse(2, 1);
                members.barrier(last);
            }
            owned.close(&joined);
        }
    });
}

/// Groups that overlap are joined at once, and their operations do not mix: the members of each add
/// their ranks among all.
///
/// Covers: PEER-3, PEER-11
#[test]
fn groups_that_overlap() {
    with_offers("groups_that_overlap", |offer, info| {
        let owned = OwnedRanks::open(offer, info, 4);
        let groups: [&[usize]; 4] = [&[0, 1, 2], &[0, 1, 3], &[2, 1, 0], &[3]];
        let ranks = &owned.ranks;
        let mut joined = Vec::new();
        for (number, members) in groups.iter().enumerate() {
            for &member in *members {
                let rank = &ranks.ranks[member];
                let set = rank.set(members);
                let group = rank.join(FI_ADDR_NOTAVAIL, set, number).unwrap();
                joined.push((number, (member, group, set)));
            }
        }
        let mut left = joined.len();
        ranks.until("the joins", || {
            let ended = ranks.ranks.iter().filter_map(Rank::event);
            left -= ended.count();
            left == 0
        });
        let mut sums = vec![[0_u8; 4]; joined.len()];
        for (at, &(number, (member, group, _))) in joined.iter().enumerate() {
            let begun = ranks.ranks[member].allreduce(
                (&(10 + member as u32).to_ne_bytes(), &mut sums[at]),
                1,
                (fi_datatype::FI_UINT32, fi_op::FI_SUM),
                address_of(group),
                number,
            );
            assert_eq!(begun, 0);
        }
        let mut left = joined.len();
        ranks.until("the sums", || {
            let ended = ranks.ranks.iter().filter_map(Rank::read);
            left -= ended.count();
            left == 0
        });
        for (&(number, _), sum) in joined.iter().zip(&sums) {
            let expected: u32 = groups[number].iter().map(|&rank| 10 + rank as u32).sum();
            assert_eq!(u32::from_ne_bytes(*sum), expected, "group {number}");
        }
        let joined: Vec<_> = joined.into_iter().map(|(_, one)| one).collect();
        owned.close(&joined);
    });
}

/// A subgroup is joined by the address of its group, and has no member that the group has not.
///
/// Covers: PEER-3, PEER-11
#[test]
fn subgroups() {
    with_offers("subgroups", |offer, info| {
        let owned = OwnedRanks::open(offer, info, 3);
        let all = join(&owned.ranks, &[0, 1, 2]);
        let parents = [all[1].1, all[2].1];
        let below = owned.ranks.join(&[1, 2], Some(&parents));
        let rank = &owned.ranks.ranks[1];
        let (set, subgroup) = (rank.set(&[0, 1]), address_of(below[0].0));
        assert_eq!(rank.join(subgroup, set, 1), Err(-FI_EINVAL), "0 is not in");
        assert_eq!(rank.join(12345, set, 1), Err(-FI_EINVAL), "no group");
        assert_eq!(close(set.cast()), 0);
        let others = rank.set(&[0, 2]);
        let refused = rank.join(FI_ADDR_NOTAVAIL, others, 1);
        assert_eq!(refused, Err(-FI_EINVAL), "this one is not in");
        assert_eq!(close(others.cast()), 0);
        assert_eq!(close(owned.ranks.ranks[0].ep.cast()), -libc::EBUSY);
        let below = [1, 2].iter().zip(below);
        let below = below.map(|(&rank, (group, set))| (rank, group, set));
        let joined: Vec<_> = all.into_iter().chain(below).collect();
        owned.close(&joined);
    });
}

/// A member closes its endpoints within an operation: it ends at the others with an error, and so
/// do later ones.
///
/// Covers: PEER-11
#[test]
fn a_member_closes_within_an_operation() {
    with_offers("a_member_closes_within_an_operation", |offer, info| {
        let mut owned = OwnedRanks::open(offer, info, 3);
        let mut joined = join(&owned.ranks, &[0, 1, 2]);
        for &(rank, group, _) in &joined[..2] {
            assert_eq!(owned.ranks.ranks[rank].barrier(address_of(group), 7), 0);
        }
        close_last(&mut owned, &mut joined);
        for &(rank, group, _) in &joined {
            let until = Instant::now() + PATIENCE;
            let ended = loop {
                let all = &owned.ranks.ranks;
                if let Some(end) = all[rank].end() {
                    break end;
                }
                // The other one, too, makes progress.
                assert!(all[1 - rank].end().is_none_or(|end| end.is_err()));
                assert!(Instant::now() < until, "no end at {rank}");
            };
            assert!(GONE.contains(&ended.unwrap_err()), "{ended:?}");
            let refused = owned.ranks.ranks[rank].barrier(address_of(group), 8);
            assert!(GONE.contains(&(-refused as c_int)), "{refused}");
            if rank == 0 {
                break;
            }
        }
        owned.close(&joined);
    });
}

/// A group closes within an operation and within a join: the one has an error, the other no event,
/// and the other members get an error.
///
/// Covers: PEER-11
#[test]
fn groups_that_close_early() {
    with_offers("groups_that_close_early", |offer, info| {
        let owned = OwnedRanks::open(offer, info, 2);
        let joined = join(&owned.ranks, &[0, 1]);
        let ranks = &owned.ranks.ranks;
        let [(_, first, first_set), (_, second, second_set)] = joined[..] else {
            unreachable!("two members")
        };
        assert_eq!(ranks[0].barrier(address_of(first), 7), 0);
        assert_eq!(close(first.cast()), 0);
        assert_eq!(ranks[0].end(), Some(Err(libc::ECANCELED)));
        let refused = ranks[0].barrier(address_of(second), 7);
        assert_eq!(refused, -(FI_EINVAL as isize), "another endpoint's");
        is_aborted(ranks, address_of(second));
        // A join, which the other member has not called yet.
        let set = ranks[0].set(&[1, 0]);
        let early = ranks[0].join(FI_ADDR_NOTAVAIL, set, 9).unwrap();
        assert_eq!(
            ranks[0].barrier(address_of(early), 9),
            -(FI_EINVAL as isize)
        );
        assert_eq!(close(early.cast()), 0);
        let other_set = ranks[1].set(&[1, 0]);
        let late = ranks[1].join(FI_ADDR_NOTAVAIL, other_set, 10).unwrap();
        owned.ranks.until("its end", || {
            assert!(ranks[0].join_end().is_none());
            // The report may come behind the message that the join was complete with.
            match ranks[1].join_end() {
                None => return false,
                Some(Ok(_)) => is_aborted(ranks, address_of(late)),
                Some(Err(error)) => assert_eq!(error, (10, libc::ECONNABORTED)),
            }
            true
        });
        for set in [first_set, set] {
            assert_eq!(close(set.cast()), 0);
        }
        assert_eq!(close(late.cast()), 0);
        assert_eq!(close(other_set.cast()), 0);
        owned.close(&[(1, second, second_set)]);
    });
}

/// The other member has left a group: the second rank is informed, and its operations fail.
fn is_aborted(ranks: &[Rank], group: fi_addr_t) {
    let until = Instant::now() + PATIENCE;
    let mut begun = ranks[1].barrier(group, 8);
    while begun == 0 {
        assert_eq!(ranks[0].end(), None);
        if let Some(end) = ranks[1].end() {
            assert_eq!(end, Err(libc::ECONNABORTED));
            begun = ranks[1].barrier(group, 8);
        }
        assert!(Instant::now() < until, "no report");
    }
    assert_eq!(begun, -(libc::ECONNABORTED as isize));
}

/// Two threads drive the endpoints of all owners, whose functions drive the peer once more.
///
/// Covers: PEER-11
#[test]
fn owners_with_threads_and_calls_within_calls() {
    let test = "owners_with_threads_and_calls_within_calls";
    with_offers(test, |offer, info| {
        let owned = OwnedRanks::open(offer, info, 3);
        for owner in &owned.owners {
            let (queue, events) = (&owner.queue.read_within, &owner.events.read_within);
            queue.store(owner.peer_cq, Ordering::Relaxed);
            events.store(owner.peer_eq, Ordering::Relaxed);
        }
        let is_over = AtomicBool::new(false);
        let pumped = Pumped(&owned);
        let joined = std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    pumped.all();
                }
            });
            let joined = join(&owned.ranks, &[0, 1, 2]);
            let members = owned.ranks.members(&of_first(&joined));
            for len in 0..60 {
                members.data(len);
                members.barrier(len % 3);
            }
            is_over.store(true, Ordering::Relaxed);
            joined
        });
        owned.close(&joined);
    });
}

/// The owners that another thread drives.
struct Pumped<'a>(&'a OwnedRanks);

// SAFETY: objects of libfabric's are for any thread (`FI_THREAD_SAFE`).
unsafe impl Sync for Pumped<'_> {}

impl Pumped<'_> {
    fn all(&self) {
        self.0.owners.iter().for_each(|owner| owner.pump());
    }
}

/// An owner closes a group and its endpoint within the event of the join.
///
/// Covers: PEER-1, PEER-6, PEER-11
#[test]
fn owners_that_close_within_calls() {
    with_offers("owners_that_close_within_calls", |offer, info| {
        let mut owned = OwnedRanks::open(offer, info, 1);
        let rank = owned.ranks.ranks.pop().unwrap();
        let owner = owned.owners.pop().unwrap();
        let set = rank.set(&[0]);
        // The join of one member ends within the call, unless the owner has no room for its event.
        owner.events.refusals.store(1, Ordering::Relaxed);
        let group = rank.join(FI_ADDR_NOTAVAIL, set, 1).unwrap();
        let closed = [Closed(group.cast()), Closed(rank.ep.cast())];
        owner.events.close_within.lock().unwrap().extend(closed);
        assert_eq!(owner::drive(owner.peer_cq), 0);
        let events = owner.events.take();
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].context, events[0].error), (1, 0));
        assert_eq!(owner::drive(owner.peer_cq), 0);
        for fid in [set.cast(), rank.av.cast(), rank.cntr.cast()] {
            assert_eq!(close(fid), 0);
        }
        owned.owners.push(owner);
        owned.close(&[]);
    });
}

/// An owner without messages that end when they are received: a member that comes late is waited
/// for.
///
/// Covers: PEER-11
#[test]
fn an_owner_without_delivery() {
    with_offers("an_owner_without_delivery", |offer, info| {
        let owned = OwnedRanks::open(offer, info, 2);
        let joined = join(&owned.ranks, &[0, 1]);
        let (ranks, owner) = (&owned.ranks.ranks, &owned.owners[0]);
        owner.has_no_delivery.store(true, Ordering::Relaxed);
        assert_eq!(ranks[0].barrier(address_of(joined[0].1), 7), 0);
        owned.ranks.until("a probe of the best kind", || {
            assert_eq!(ranks[0].end(), None);
            owner.deliveries.load(Ordering::Relaxed) == 1
        });
        let before = owner.sends.load(Ordering::Relaxed);
        owned.ranks.until("one that ends when it is sent", || {
            assert_eq!(ranks[0].end(), None);
            owner.sends.load(Ordering::Relaxed) > before
        });
        assert_eq!(owner.deliveries.load(Ordering::Relaxed), 1);
        assert_eq!(ranks[1].barrier(address_of(joined[1].1), 7), 0);
        owned.ranks.complete(&[0, 1], 7);
        owned.close(&joined);
    });
}

/// Such an owner notices a member that has gone, too, where its messages to that one fail.
///
/// Covers: PEER-11
#[test]
fn a_member_is_gone_at_an_owner_without_delivery() {
    let test = "a_member_is_gone_at_an_owner_without_delivery";
    with_offers(test, |offer, info| {
        let mut owned = OwnedRanks::open(offer, info, 2);
        let mut joined = join(&owned.ranks, &[0, 1]);
        let owner = &owned.owners[0];
        owner.has_no_delivery.store(true, Ordering::Relaxed);
        owner.hides_failed_receives.store(true, Ordering::Relaxed);
        let rank = &owned.ranks.ranks[0];
        let at = (address_of(joined[0].1), rank.addrs[1]);
        let mut data = [0u8; 8];
        let begun = rank.broadcast(&mut data, 8, fi_datatype::FI_UINT8, at, 7);
        assert_eq!(begun, 0);
        close_last(&mut owned, &mut joined);
        let rank = &owned.ranks.ranks[0];
        let mut ended = None;
        owned.ranks.until("its end", || {
            ended = rank.end();
            ended.is_some()
        });
        let errno = ended.unwrap().unwrap_err();
        assert!(GONE.contains(&errno), "{errno}");
        owned.close(&joined);
    });
}

/// Closes the endpoints of the last rank, while others have its group.
fn close_last(owned: &mut OwnedRanks, joined: &mut Vec<Joined>) {
    let (_, group, set) = joined.pop().unwrap();
    let rank = owned.ranks.ranks.pop().unwrap();
    rank.close(&[group], &[set]);
    let owner = owned.owners.pop().unwrap();
    assert_eq!(close(owner.peer_cq.cast()), 0);
    assert_eq!(close(owner.peer_eq.cast()), 0);
    let OwnerRank { main, .. } = *owner;
    main.close();
}

/// An owner reports the end of a message of an endpoint that has closed to the one that came after
/// it.
///
/// Covers: PEER-11
#[test]
fn ends_of_an_earlier_endpoint() {
    with_offers("ends_of_an_earlier_endpoint", |offer, info| {
        let mut owned = OwnedRanks::open(offer, info, 1);
        let rank = owned.ranks.ranks.pop().unwrap();
        let mut owner = owned.owners.pop().unwrap();
        rank.close(&[], &[]);
        for fid in [
            owner.peer_cq.cast(),
            owner.peer_eq.cast::<ferro_fi::abi::fid>(),
        ] {
            assert_eq!(close(fid), 0);
        }
        let peer = PeerDomain {
            fabric: owned.ranks.opened.fabric,
            domain: owned.ranks.opened.domain,
        };
        let av = owner.lend(&peer, offer, info);
        // The receive of probes was cancelled.
        let (rx, mut failed) = (owner.main.rx, fi_cq_err_entry::default());
        owned.ranks.until("its end", || {
            let mut entry = fi_cq_tagged_entry::default();
            // SAFETY: there is room for one.
            let read = unsafe { call!(rx, ops.read((&raw mut entry).cast(), 1)) };
            read == -(FI_EAVAIL as isize)
        });
        // SAFETY: as above; the endpoint is open.
        unsafe {
            assert_eq!(call!(rx, ops.readerr(&raw mut failed, 0)), 1);
            let report = (*owner.reports).comperr.unwrap();
            let reported = report(owner.peer_ep, &raw mut failed);
            assert_eq!(reported, -(FI_ENOENT as isize));
        }
        for fid in [owner.peer_ep.cast(), av.cast::<ferro_fi::abi::fid>()] {
            assert_eq!(close(fid), 0);
        }
        owned.owners.push(owner);
        owned.close(&[]);
    });
}

/// A group whose receives the owner has no room for is refused; they would wait for ever.
///
/// Covers: PEER-11
#[test]
fn groups_beyond_the_receives_of_the_owner() {
    with_offers("groups_beyond_the_receives_of_the_owner", |offer, info| {
        // SAFETY: the offer is there.
        unsafe { (*(*info.info).rx_attr).size = 3 };
        let owned = OwnedRanks::open(offer, info, 3);
        let rank = &owned.ranks.ranks[0];
        // One for probes, one for the join, and one for the reports of each other member.
        let set = rank.set(&[0, 1, 2]);
        let refused = rank.join(FI_ADDR_NOTAVAIL, set, 1);
        assert_eq!(refused, Err(-FI_ENOSPC));
        assert_eq!(close(set.cast()), 0);
        let joined = join(&owned.ranks, &[0, 1]);
        owned.close(&joined);
    });
}

/// An owner that closes a group in the function that refuses the event of its join gets no such
/// event any more.
///
/// Covers: PEER-7, PEER-11
#[test]
fn an_event_of_a_closed_group() {
    with_offers("an_event_of_a_closed_group", |offer, info| {
        let owned = OwnedRanks::open(offer, info, 1);
        let (rank, owner) = (&owned.ranks.ranks[0], &owned.owners[0]);
        let set = rank.set(&[0]);
        owner.events.refusals.store(2, Ordering::Relaxed);
        let group = rank.join(FI_ADDR_NOTAVAIL, set, 1).unwrap();
        let closed = Closed(group.cast());
        owner.events.close_within.lock().unwrap().push(closed);
        for _ in 0..5 {
            assert_eq!(owner::drive(owner.peer_cq), 0);
        }
        assert_eq!(owner.events.take(), []);
        assert_eq!(close(set.cast()), 0);
        owned.close(&[]);
    });
}

/// A range of an owner's table has no more addresses than there may be.
///
/// Covers: PEER-2
#[test]
fn ranges_of_an_owner() {
    with_offers("ranges_of_an_owner", |offer, info| {
        let owned = OwnedRanks::open(offer, info, 1);
        let av = owned.ranks.ranks[0].av;
        for (end_addr, expected) in [
            (3, 0),
            (0x7fff_fffd, -FI_EINVAL),
            (u64::MAX - 1, -FI_EINVAL),
        ] {
            let mut attr = fi_av_set_attr {
                start_addr: 0,
                end_addr,
                stride: 1,
                ..fi_av_set_attr::default()
            };
            let mut set = null_mut();
            // SAFETY: as fi_av_set(3) has it.
            let opened = unsafe { call!(av, ops.av_set(&raw mut attr, &raw mut set, null_mut())) };
            assert_eq!(opened, expected, "{end_addr}");
            if opened == 0 {
                assert_eq!(close(set.cast::<ferro_fi::abi::fid>()), 0);
            }
        }
        owned.close(&[]);
    });
}

/// Ends of messages that there are not, and entries that are none.
///
/// Covers: PEER-11
#[test]
fn hostile_reports() {
    with_offers("hostile_reports", |offer, info| {
        let owned = OwnedRanks::open(offer, info, 2);
        let joined = join(&owned.ranks, &[0, 1]);
        let owner = &owned.owners[0];
        let ep = owner.peer_ep;
        // SAFETY: the endpoint is open; entries are whole or NULL.
        unsafe {
            let complete = (*owner.reports).complete.unwrap();
            let fail = (*owner.reports).comperr.unwrap();
            for context in [1 << 20, usize::MAX, 0] {
                let op_context = context as *mut c_void;
                let expected = if context == 0 { FI_EINVAL } else { FI_ENOENT };
                let mut entry = fi_cq_tagged_entry {
                    op_context,
                    len: usize::MAX,
                    ..fi_cq_tagged_entry::default()
                };
                let result = complete(ep, &raw mut entry, u64::MAX);
                assert_eq!(result, -(expected as isize), "{context}");
                let mut entry = fi_cq_err_entry {
                    op_context,
                    err: -7,
                    ..fi_cq_err_entry::default()
                };
                assert_eq!(fail(ep, &raw mut entry), -(expected as isize), "{context}");
            }
            assert_eq!(complete(ep, null_mut(), 0), -(FI_EINVAL as isize));
            assert_eq!(fail(ep, null_mut()), -(FI_EINVAL as isize));
        }
        // The end of a message that the owner has refused.
        owner.refusals.store(1, Ordering::Relaxed);
        for &(rank, group, _) in &joined {
            assert_eq!(owned.ranks.ranks[rank].barrier(address_of(group), 9), 0);
        }
        let mut entry = fi_cq_tagged_entry {
            op_context: owner.refused.load(Ordering::Relaxed) as *mut c_void,
            ..fi_cq_tagged_entry::default()
        };
        // SAFETY: as above.
        let result = unsafe { (*owner.reports).complete.unwrap()(ep, &raw mut entry, 0) };
        assert_eq!(result, -(FI_ENOENT as isize));
        owned.ranks.complete(&[0, 1], 9);
        // The group is whole.
        owned.ranks.members(&of_first(&joined)).data(5);
        owned.close(&joined);
    });
}

/// Contexts that lack something, and owners whose messages do not suffice.
///
/// Covers: PEER-1, PEER-11
#[test]
fn contexts_that_are_refused() {
    with_offers("contexts_that_are_refused", |offer, info| {
        let main = Opened::new(info);
        let peer = PeerDomain::open(offer, main.domain);
        let mut owner = OwnerRank::new(Side::open(&main, info, shape()));
        let with = |owner: &mut OwnerRank, spoil: &dyn Fn(&mut fi_peer_transfer_context)| {
            let mut context = owner.transfer_context(info);
            spoil(&mut context);
            peer.endpoint(offer, &raw mut context).map(|ep| {
                assert!(!context.peer_ops.is_null());
                assert_eq!(close(ep.cast()), 0);
            })
        };
        let refused = Err(-FI_EINVAL);
        assert_eq!(with(&mut owner, &|_| ()), Ok(()));
        assert_eq!(with(&mut owner, &|context| context.size += 64), Ok(()));
        assert_eq!(
            with(&mut owner, &|context| context.info = null_mut()),
            Ok(())
        );
        assert_eq!(with(&mut owner, &|context| context.size -= 1), refused);
        assert_eq!(
            with(&mut owner, &|context| context.ep = null_mut()),
            refused
        );
        assert_eq!(peer.endpoint(offer, null_mut()).err(), Some(-FI_EINVAL));
        let lent = (owner.transfers.tagged, owner.transfers.ops);
        // SAFETY: the tables are the owner's.
        let (all, mut no_cancel) = unsafe { (*lent.0, *lent.1) };
        for (sendmsg, recvmsg) in [(None, all.recvmsg), (all.sendmsg, None)] {
            let mut without = fi_ops_tagged {
                sendmsg,
                recvmsg,
                ..all
            };
            owner.transfers.tagged = &raw mut without;
            assert_eq!(with(&mut owner, &|_| ()), refused);
        }
        no_cancel.cancel = None;
        owner.transfers.tagged = null_mut();
        assert_eq!(with(&mut owner, &|_| ()), refused);
        owner.transfers.tagged = lent.0;
        owner.transfers.ops = &raw mut no_cancel;
        assert_eq!(with(&mut owner, &|_| ()), refused);
        owner.transfers.ops = lent.1;

        // Attributes of the owner's endpoint.
        let attributes: [&dyn Fn(&Info<'_>); 6] = [
            // SAFETY: an info has all attributes.
            &|info| unsafe { (*info.info).caps &= !FI_TAGGED },
            // SAFETY: as above.
            &|info| unsafe { (*info.info).mode |= FI_CONTEXT },
            // SAFETY: as above.
            &|info| unsafe { (*(*info.info).domain_attr).mr_mode |= FI_MR_LOCAL },
            // SAFETY: as above.
            &|info| unsafe { (*(*info.info).ep_attr).mem_tag_format = 0xff },
            // SAFETY: as above.
            &|info| unsafe { (*(*info.info).tx_attr).msg_order &= !FI_ORDER_SAS },
            // SAFETY: as above.
            &|info| unsafe { (*(*info.info).rx_attr).msg_order &= !FI_ORDER_SAS },
        ];
        for (at, spoil) in attributes.iter().enumerate() {
            let other = info.copy();
            spoil(&other);
            let opened = with(&mut owner, &|context| context.info = other.info);
            assert_eq!(opened, refused, "attribute {at}");
        }

        for fid in [peer.domain.cast(), peer.fabric.cast::<ferro_fi::abi::fid>()] {
            assert_eq!(close(fid), 0);
        }
        let OwnerRank { main: side, .. } = *owner;
        side.close();
        main.close();
    });
}

/// Objects without their owners', calls in the wrong order, and operations that there are not.
///
/// Covers: PEER-1, PEER-6, PEER-7
#[test]
fn calls_that_are_refused() {
    with_offers("calls_that_are_refused", |offer, info| {
        let owned = OwnedRanks::open(offer, info, 1);
        let (fabric, domain) = (owned.ranks.opened.fabric, owned.ranks.opened.domain);
        let (imported, none) = (domains(fabric, offer, domain), -FI_EINVAL);
        assert_eq!(imported, [0, none, none, none, none]);
        let (mut av, mut cq) = (null_mut(), null_mut());
        // SAFETY: as the manual pages have it.
        unsafe {
            let null = null_mut();
            assert_eq!(
                call!(domain, ops.av_open(null_mut(), &raw mut av, null)),
                none
            );
            assert_eq!(
                call!(domain, ops.cq_open(null_mut(), &raw mut cq, null)),
                none
            );
        }
        let mut context = fi_peer_transfer_context {
            size: size_of::<fi_peer_transfer_context>(),
            info: null_mut(),
            ep: (&raw const owned.owners[0].transfers).cast_mut(),
            peer_ops: null_mut(),
        };
        let peer = PeerDomain { fabric, domain };
        let ep = peer.endpoint(offer, &raw mut context).unwrap();
        let rank = &owned.ranks.ranks[0];
        // SAFETY: as the manual pages have it.
        unsafe {
            let ops = &*(*ep).fid.ops;
            let (bind, control) = (ops.bind.unwrap(), ops.control.unwrap());
            let enable = || control(ep.cast(), ferro_fi::abi::FI_ENABLE, null_mut());
            assert_eq!(enable(), none, "no address vector");
            assert_eq!(bind(ep.cast(), rank.av.cast(), 0), 0);
            assert_eq!(bind(ep.cast(), rank.av.cast(), 0), none, "twice");
            assert_eq!(bind(ep.cast(), null_mut(), 0), none);
            assert_eq!(bind(ep.cast(), rank.cntr.cast(), 0), none, "no counters");
            assert_eq!(enable(), -FI_ENOCQ);
            let barrier = call!(ep, collective.barrier(1, null_mut()));
            assert_eq!(barrier, -(FI_EOPBADSTATE as isize), "not enabled");
            let alltoall = call!(
                ep,
                collective.alltoall(
                    null_mut(),
                    0,
                    null_mut(),
                    null_mut(),
                    null_mut(),
                    1,
                    fi_datatype::FI_UINT8,
                    0,
                    null_mut()
                )
            );
            assert_eq!(alltoall, -(FI_ENOSYS as isize));
        }
        assert_eq!(close(ep.cast()), 0);
        let asked = |coll, datatype, op| {
            let mut attr = fi_collective_attr {
                op,
                datatype,
                datatype_attr: ferro_fi::abi::fi_atomic_attr::default(),
                max_members: 0,
                mode: 0,
            };
            // SAFETY: the domain is open.
            let found = unsafe { call!(domain, ops.query_collective(coll, &raw mut attr, 0)) };
            (found, attr.datatype_attr.size)
        };
        let (op, float) = (fi_op::FI_BAND, fi_datatype::FI_FLOAT);
        let unsupported = -libc::EOPNOTSUPP;
        let cases = [
            (fi_collective_op::FI_ALLREDUCE, float, fi_op::FI_SUM, (0, 4)),
            (fi_collective_op::FI_ALLREDUCE, float, op, (unsupported, 0)),
            (fi_collective_op::FI_SCATTER, float, op, (0, 4)),
            (fi_collective_op::FI_ALLTOALL, float, op, (unsupported, 0)),
            (
                fi_collective_op::FI_BROADCAST,
                fi_datatype(77),
                op,
                (unsupported, 0),
            ),
        ];
        for (coll, datatype, op, expected) in cases {
            assert_eq!(asked(coll, datatype, op), expected, "{coll:?} {datatype:?}");
        }
        owned.close(&[]);
    });
}

/// The results of openings of a domain: as it is to be, and four others.
fn domains(fabric: *mut fid_fabric, info: &Info<'_>, owner: *mut fid_domain) -> [c_int; 5] {
    let good = fi_peer_domain_context {
        size: size_of::<fi_peer_domain_context>(),
        domain: owner,
    };
    let short = fi_peer_domain_context {
        size: good.size - 1,
        ..good
    };
    let empty = fi_peer_domain_context {
        domain: null_mut(),
        ..good
    };
    let cases = [
        (FI_PEER, Some(good)),
        (0, Some(good)),
        (FI_PEER, None),
        (FI_PEER, Some(short)),
        (FI_PEER, Some(empty)),
    ];
    cases.map(|(flags, context)| {
        let mut context = context;
        let context = context.as_mut().map_or(null_mut(), |context| {
            std::ptr::from_mut::<fi_peer_domain_context>(context).cast()
        });
        let mut domain = null_mut();
        // SAFETY: as fi_domain(3) has it.
        let opened = unsafe {
            call!(
                fabric,
                ops.domain2(info.info, &raw mut domain, flags, context)
            )
        };
        if opened == 0 {
            assert_eq!(close(domain.cast()), 0);
        }
        opened
    })
}

/// Hints that are none of an owner's get no such offer.
///
/// Covers: PEER-11, GI-4
#[test]
fn owners_alone_get_the_offer() {
    alone("owners_alone_get_the_offer", |info| {
        let found = info.copy();
        // SAFETY: an info has all attributes.
        unsafe {
            (*found.info).caps = FI_PEER | ferro_fi::abi::FI_COLLECTIVE;
            (*found.info).mode = u64::MAX;
            libc::free((*(*found.info).domain_attr).name.cast());
            (*(*found.info).domain_attr).name = null_mut();
            libc::free((*(*found.info).fabric_attr).name.cast());
            (*(*found.info).fabric_attr).name = null_mut();
        }
        let has_transfers = |hints: &Info<'_>| {
            let found = info.ask_as(hints);
            found.map(|list| {
                list.all()
                    .any(|one| one.mode & ferro_fi::abi::FI_PEER_TRANSFER != 0)
            })
        };
        assert_eq!(has_transfers(&found), Ok(true));
        // SAFETY: as above.
        unsafe { (*found.info).caps |= FI_TAGGED };
        assert_ne!(has_transfers(&found), Ok(true));
        // SAFETY: as above.
        unsafe { (*found.info).caps = ferro_fi::abi::FI_COLLECTIVE };
        assert_ne!(has_transfers(&found), Ok(true));
    });
}
