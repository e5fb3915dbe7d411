//! Sets of addresses of another provider, over stock libfabric: this program is the owner
//! (fi_peer(3)).

use crate::{client, owner, ranks, two, vector};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use client::{Libfabric, Opened, close};
use ferro_fi::abi::{
    FI_ADDR_NOTAVAIL, FI_EAGAIN, FI_EINVAL, FI_ENOMEM, FI_ENOSYS, FI_ETOOSMALL, fi_addr_t,
    fi_av_set_attr, fi_peer_av_set_context, fid_av, fid_av_set, fid_peer_av_set,
};
use owner::set::OwnerSet;
use ranks::{Rank, Ranks, address_of, offer};
use two::{alone, asking_everywhere};
use vector::{Vector, names};

/// The flag of a set of another provider.
const PEER_AV: u64 = 1 << 62;

const EMPTY: fi_av_set_attr = fi_av_set_attr {
    count: 0,
    start_addr: FI_ADDR_NOTAVAIL,
    end_addr: FI_ADDR_NOTAVAIL,
    stride: 0,
    comm_key_size: 0,
    comm_key: null_mut(),
    flags: 0,
};

/// `fi_av_set`.
fn open(
    av: *mut fid_av,
    mut attr: fi_av_set_attr,
    context: *mut c_void,
) -> Result<*mut fid_av_set, c_int> {
    let mut set = null_mut();
    // SAFETY: as fi_av_set(3) has it; a context is NULL or begins with its size.
    match unsafe { call!(av, ops.av_set(&raw mut attr, &raw mut set, context)) } {
        0 => Ok(set),
        error => Err(error),
    }
}

/// The set of an owner, imported.
fn import(av: *mut fid_av, owner: &OwnerSet) -> *mut fid_av_set {
    let mut context = owner.context();
    let attr = fi_av_set_attr {
        flags: PEER_AV,
        ..EMPTY
    };
    // The context ends with this call.
    open(av, attr, (&raw mut context).cast()).unwrap()
}

/// Members of a join are those that the owner's set has then.
///
/// Covers: PEER-3
#[test]
fn groups_are_joined_by_the_sets_of_owners() {
    asking_everywhere(
        "groups_are_joined_by_the_sets_of_owners",
        |libfabric: &Libfabric, domain: &str| {
            let info = offer(libfabric, domain).expect("an offer with FI_COLLECTIVE");
            // More than there is room for in the first call.
            for number in [2, 18] {
                let ranks = Ranks::open(&info, number);
                let owners: Vec<_> = ranks.ranks.iter().map(|_| OwnerSet::new(&[])).collect();
                let sets: Vec<_> = (ranks.ranks.iter().zip(&owners))
                    .map(|(rank, owner)| import(rank.av, owner))
                    .collect();
                for (rank, owner) in ranks.ranks.iter().zip(&owners) {
                    assert!(owner.rooms.lock().unwrap().is_empty());
                    owner.members.lock().unwrap().clone_from(&rank.addrs);
                }
                let groups: Vec<_> = (ranks.ranks.iter().zip(&sets))
                    .map(|(rank, &set)| rank.join(FI_ADDR_NOTAVAIL, set, 1).unwrap())
                    .collect();
                await_joins(&ranks.ranks);
                for owner in &owners {
                    let rooms = owner.rooms.lock().unwrap();
                    assert_eq!(rooms.len(), if number > 16 { 2 } else { 1 });
                    assert_eq!(*rooms.last().unwrap(), number.max(16));
                }
                for (rank, &group) in ranks.ranks.iter().zip(&groups) {
                    assert_eq!(rank.barrier(address_of(group), 9), 0);
                }
                ranks.complete(&(0..number).collect::<Vec<_>>(), 9);
                let all: Vec<_> = (groups.iter().zip(&sets).enumerate())
                    .map(|(rank, (&group, &set))| (rank, group, set))
                    .collect();
                ranks.close(&all);
            }
        },
    );
}

fn await_joins(ranks: &[Rank]) {
    let until = std::time::Instant::now() + two::PATIENCE;
    let mut joined = vec![false; ranks.len()];
    while joined.contains(&false) {
        for (rank, joined) in ranks.iter().zip(&mut joined) {
            assert!(rank.read().is_none());
            *joined |= rank.event().is_some();
        }
        assert!(std::time::Instant::now() < until, "no join ends");
    }
}

/// Whether an address is a member: it can not be inserted again.
fn is_member(set: *mut fid_av_set, addr: fi_addr_t) -> bool {
    // SAFETY: the set is open.
    unsafe { call!(set, ops.remove(addr)) == 0 && call!(set, ops.insert(addr)) == 0 }
}

/// An own set is combined with that of an owner, which may answer anything.
///
/// Covers: PEER-3
#[test]
fn answers_of_owners() {
    alone("answers_of_owners", |info| {
        let opened = Opened::new(info);
        let party = opened.party(info);
        let mut addrs = [0; 40];
        let av = Vector(party.av);
        assert_eq!(
            av.insert(&names(&party, 40), addrs.as_mut_ptr(), 0, null_mut()),
            40
        );
        let owner = OwnerSet::new(&addrs[10..]);
        let imported = import(party.av, &owner);
        let own = open(party.av, EMPTY, null_mut()).unwrap();
        // SAFETY: both sets are open.
        let union = || unsafe { call!(own, ops.set_union(imported)) };
        assert_eq!(union(), 0);
        assert_eq!(*owner.rooms.lock().unwrap(), [16, 30]);
        assert!(addrs[10..].iter().all(|&addr| is_member(own, addr)));
        assert!(!is_member(own, addrs[9]));
        // The owner's set may be empty, and has another size each time.
        owner.members.lock().unwrap().clear();
        assert_eq!(union(), 0);
        owner.members.lock().unwrap().push(addrs[3]);
        assert_eq!(union(), 0);
        assert!(is_member(own, addrs[3]));
        // Addresses that are in no vector, and one that is there twice.
        for members in [vec![addrs[1], 1 << 40], vec![addrs[1], addrs[1]]] {
            *owner.members.lock().unwrap() = members;
            assert_eq!(union(), -FI_EINVAL);
        }
        assert!(!is_member(own, addrs[1]));
        for ((result, number), expected) in [
            ((-FI_ENOMEM, 0), -FI_ENOMEM),
            ((-FI_ETOOSMALL, 16), -FI_EINVAL),
            ((-FI_ETOOSMALL, usize::MAX), -FI_EINVAL),
            ((0, 17), -FI_EINVAL),
            ((0, usize::MAX), -FI_EINVAL),
            ((5, 1), -FI_EINVAL),
            ((c_int::MIN, 1), -FI_EINVAL),
            ((c_int::MAX, 1), -FI_EINVAL),
        ] {
            owner.lies.lock().unwrap().push((result, number));
            assert_eq!(union(), expected, "{result}, {number}");
        }
        *owner.grows.lock().unwrap() = true;
        assert_eq!(union(), -FI_EAGAIN);

        // Its changes are the owner's.
        // SAFETY: both sets are open.
        unsafe {
            assert_eq!(call!(imported, ops.insert(addrs[0])), -FI_ENOSYS);
            assert_eq!(call!(imported, ops.remove(addrs[0])), -FI_ENOSYS);
            assert_eq!(call!(imported, ops.set_union(own)), -FI_ENOSYS);
            assert_eq!(call!(imported, ops.intersect(own)), -FI_ENOSYS);
            assert_eq!(call!(imported, ops.diff(own)), -FI_ENOSYS);
            let mut addr = FI_ADDR_NOTAVAIL;
            assert_eq!(call!(imported, ops.addr(&raw mut addr)), 0);
            assert_ne!(addr, FI_ADDR_NOTAVAIL);
        }
        assert_eq!(close(own.cast()), 0);
        assert_eq!(close(imported.cast()), 0);
        party.close();
        opened.close();
    });
}

/// Covers: PEER-1, PEER-3, PEER-12
#[test]
fn sets_that_are_not_imported() {
    alone("sets_that_are_not_imported", |info| {
        let opened = Opened::new(info);
        let party = opened.party(info);
        let mut owner = OwnerSet::new(&[]);
        let attr = fi_av_set_attr {
            flags: PEER_AV,
            ..EMPTY
        };
        let with = |owner: &OwnerSet, change: &dyn Fn(&mut fi_peer_av_set_context)| {
            let mut context = owner.context();
            change(&mut context);
            let set = open(party.av, attr, (&raw mut context).cast())?;
            assert_eq!(close(set.cast()), 0);
            Ok::<_, c_int>(())
        };
        let refused = Err(-FI_EINVAL);
        assert_eq!(with(&owner, &|_| ()), Ok(()));
        assert_eq!(with(&owner, &|context| context.size += 64), Ok(()));
        assert_eq!(with(&owner, &|context| context.size -= 1), refused);
        assert_eq!(
            with(&owner, &|context| context.av_set = null_mut()),
            refused
        );
        let mut bare = fid_peer_av_set::default();
        let bare = (&raw mut bare).cast();
        assert_eq!(with(&owner, &|context| context.av_set = bare), refused);
        assert_eq!(open(party.av, attr, null_mut()).err(), refused.err());
        owner.ops.size -= 1;
        assert_eq!(with(&owner, &|_| ()), refused);
        owner.ops.size += 1;
        owner.ops.members = None;
        assert_eq!(with(&owner, &|_| ()), refused);
        let mut context = owner.context();
        let range = fi_av_set_attr {
            start_addr: 0,
            end_addr: 0,
            stride: 1,
            ..attr
        };
        let ranged = open(party.av, range, (&raw mut context).cast());
        assert_eq!(ranged.err(), refused.err());
        party.close();
        opened.close();
    });
}
