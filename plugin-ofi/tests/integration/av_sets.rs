//! Sets of address vectors by C calls, as fi_av_set(3) has them.

use crate::{client, two, vector};
use std::ffi::c_int;
use std::ptr::null_mut;

use client::{Opened, close};
use ferro_fi::abi::{
    FI_ADDR_NOTAVAIL, FI_ALLTOALL_SET, FI_BARRIER_SET, FI_UNIVERSE, fi_addr_t, fi_av_set_attr,
    fi_av_type, fid_av, fid_av_set,
};
use two::alone;
use vector::{Vector, names};

const EINVAL: c_int = -libc::EINVAL;
const EOPNOTSUPP: c_int = -libc::EOPNOTSUPP;

/// Attributes of an empty set.
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
fn open_set(av: *mut fid_av, mut attr: fi_av_set_attr) -> Result<*mut fid_av_set, c_int> {
    let mut set = null_mut();
    // SAFETY: as fi_av_set(3) has it.
    match unsafe { call!(av, ops.av_set(&raw mut attr, &raw mut set, null_mut())) } {
        0 => Ok(set),
        error => Err(error),
    }
}

fn insert(set: *mut fid_av_set, addr: fi_addr_t) -> c_int {
    // SAFETY: the set is open.
    unsafe { call!(set, ops.insert(addr)) }
}

fn remove(set: *mut fid_av_set, addr: fi_addr_t) -> c_int {
    // SAFETY: the set is open.
    unsafe { call!(set, ops.remove(addr)) }
}

fn address(set: *mut fid_av_set) -> fi_addr_t {
    let mut addr = 0;
    // SAFETY: the set is open.
    assert_eq!(unsafe { call!(set, ops.addr(&raw mut addr)) }, 0);
    addr
}

/// The members among some addresses: the call that removes one says whether it was there.
fn empty(set: *mut fid_av_set, addrs: &[fi_addr_t]) -> Vec<fi_addr_t> {
    let member = |addr: &fi_addr_t| match remove(set, *addr) {
        0 => true,
        error => {
            assert_eq!(error, EINVAL);
            false
        }
    };
    addrs.iter().copied().filter(member).collect()
}

/// A table with some addresses, of which none is an endpoint's.
fn filled(opened: &Opened, name: &[Vec<u8>]) -> (Vector, Vec<fi_addr_t>) {
    let vector = Vector::of_type(opened, fi_av_type::FI_AV_TABLE);
    let mut addrs = vec![0; name.len()];
    assert_eq!(
        vector.insert(name, addrs.as_mut_ptr(), 0, null_mut()),
        name.len() as c_int
    );
    (vector, addrs)
}

/// Covers: AV-22
#[test]
fn sets_have_the_addresses_that_calls_name() {
    alone("sets_have_the_addresses_that_calls_name", |info| {
        let opened = Opened::new(info);
        let party = opened.party(info);
        let (vector, addrs) = filled(&opened, &names(&party, 8));
        let range = |from: usize, to: usize, stride| fi_av_set_attr {
            start_addr: addrs[from],
            end_addr: addrs[to],
            stride,
            ..EMPTY
        };

        let odd = open_set(vector.0, range(1, 7, 2)).unwrap();
        let low = open_set(vector.0, range(0, 3, 1)).unwrap();
        let both = open_set(vector.0, EMPTY).unwrap();
        // SAFETY: all are open.
        unsafe {
            assert_eq!(call!(both, ops.set_union(odd)), 0);
            assert_eq!(call!(both, ops.set_union(low)), 0);
        }
        assert_eq!(insert(both, addrs[5]), EINVAL, "it is a member");
        assert_eq!(empty(both, &addrs), [0, 1, 2, 3, 5, 7].map(|i| addrs[i]));

        let common = open_set(vector.0, range(1, 7, 2)).unwrap();
        let rest = open_set(vector.0, range(1, 7, 2)).unwrap();
        // SAFETY: as above.
        unsafe {
            assert_eq!(call!(common, ops.intersect(low)), 0);
            assert_eq!(call!(rest, ops.diff(low)), 0);
            assert_eq!(call!(odd, ops.diff(odd)), 0);
        }
        assert_eq!(empty(common, &addrs), [1, 3].map(|i| addrs[i]));
        assert_eq!(empty(rest, &addrs), [5, 7].map(|i| addrs[i]));
        assert!(empty(odd, &addrs).is_empty());

        // An address vector stays as long as it has sets.
        assert_eq!(close(vector.0.cast()), -libc::EBUSY);
        for set in [odd, low, both, common, rest] {
            assert_eq!(close(set.cast()), 0);
        }
        assert_eq!(close(vector.0.cast()), 0);
        party.close();
        opened.close();
    });
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    alone("calls_that_make_no_sense_are_refused", |info| {
        let opened = Opened::new(info);
        let party = opened.party(info);
        let (vector, mut addrs) = filled(&opened, &names(&party, 4));
        let map = Vector::of_type(&opened, fi_av_type::FI_AV_MAP);
        let all = fi_av_set_attr {
            start_addr: addrs[0],
            end_addr: addrs[3],
            stride: 1,
            ..EMPTY
        };

        for (attr, error) in [
            (fi_av_set_attr { stride: 0, ..all }, EINVAL),
            (fi_av_set_attr { count: 3, ..all }, EINVAL),
            (
                fi_av_set_attr {
                    start_addr: addrs[3],
                    end_addr: addrs[0],
                    ..all
                },
                EINVAL,
            ),
            (
                fi_av_set_attr {
                    start_addr: 0,
                    ..EMPTY
                },
                EINVAL,
            ),
            (
                fi_av_set_attr {
                    end_addr: FI_ADDR_NOTAVAIL - 1,
                    ..all
                },
                EINVAL,
            ),
            (
                fi_av_set_attr {
                    comm_key_size: 8,
                    ..EMPTY
                },
                EOPNOTSUPP,
            ),
            (
                fi_av_set_attr {
                    flags: FI_ALLTOALL_SET,
                    ..EMPTY
                },
                EOPNOTSUPP,
            ),
            (
                fi_av_set_attr {
                    flags: FI_UNIVERSE,
                    ..EMPTY
                },
                EOPNOTSUPP,
            ),
            (fi_av_set_attr { flags: 1, ..EMPTY }, EOPNOTSUPP),
        ] {
            assert_eq!(open_set(vector.0, attr), Err(error), "{attr:?}");
        }
        assert_eq!(open_set(map.0, all), Err(EINVAL), "a range of a map");

        // Addresses that are not in the vector are left out of a range, and are not inserted.
        assert_eq!(vector.remove(&mut addrs[1..2], 0), 0);
        let attr = fi_av_set_attr {
            count: 4,
            flags: FI_BARRIER_SET,
            ..all
        };
        let set = open_set(vector.0, attr).unwrap();
        assert_eq!(insert(set, addrs[1]), EINVAL);
        let other = open_set(map.0, EMPTY).unwrap();
        // SAFETY: both are open.
        unsafe {
            assert_eq!(
                call!(set, ops.set_union(other)),
                EINVAL,
                "of another vector"
            );
            assert_eq!(call!(set, ops.intersect(std::ptr::null())), EINVAL);
            assert_eq!(call!(set, ops.addr(null_mut())), EINVAL);
        }
        assert_eq!(empty(set, &addrs), [0, 2, 3].map(|i| addrs[i]));
        assert_ne!(address(set), address(other));
        assert_eq!(address(set), address(set));

        for fid in [set.cast(), other.cast(), map.0.cast(), vector.0.cast()] {
            assert_eq!(close(fid), 0);
        }
        party.close();
        opened.close();
    });
}
