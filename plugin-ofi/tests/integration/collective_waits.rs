//! Collective operations of ranks that sleep on descriptors (`FI_WAIT_FD`, fi_trywait(3)).

use crate::{client, ranks, two};
use std::ffi::c_int;

use client::{Libfabric, Opened};
use ferro_fi::abi::{FI_ADDR_NOTAVAIL, fi_addr_t, fi_datatype, fi_op, fid, fid_av_set, fid_mc};
use ranks::{Rank, address_of, offer};
use two::asking_everywhere;

/// The errors of a member when another one is gone.
const GONE: [c_int; 4] = [
    libc::ECONNRESET,
    libc::ECONNABORTED,
    libc::EHOSTUNREACH,
    libc::ESHUTDOWN,
];

/// A rank of a thread, with the objects that it waits on.
struct WaitingRank {
    rank: Rank,
    fabric: client::Opened,
    number: usize,
    group: Option<(*mut fid_mc, *mut fid_av_set)>,
}

// SAFETY: any thread may use objects of a domain of `FI_THREAD_SAFE`.
unsafe impl Send for WaitingRank {}

impl WaitingRank {
    /// Looks until there is something, and sleeps in between, on this object alone.
    fn wait_for<T>(&self, fid: *mut fid, mut look: impl FnMut(&Rank) -> Option<T>) -> T {
        let limit = ranks::PATIENCE.as_millis() as c_int;
        let mut fds = [libc::pollfd {
            fd: two::descriptor(fid),
            events: libc::POLLIN,
            revents: 0,
        }];
        loop {
            match two::try_wait(&self.fabric, fid) {
                // SAFETY: a list of one.
                0 => assert_eq!(unsafe { libc::poll(fds.as_mut_ptr(), 1, limit) }, 1),
                error => assert_eq!(error, -libc::EAGAIN),
            }
            if let Some(found) = look(&self.rank) {
                return found;
            }
        }
    }

    /// Joins the group of all, and sleeps at the event queue.
    fn join(&mut self) -> fi_addr_t {
        let members: Vec<usize> = (0..self.rank.addrs.len()).collect();
        let set = self.rank.set(&members);
        let group = self.rank.join(FI_ADDR_NOTAVAIL, set, 7).unwrap();
        let event = self.wait_for(self.rank.eq.cast(), Rank::event);
        assert_eq!((event.context as usize, event.fid), (7, group.cast()));
        self.group = Some((group, set));
        address_of(group)
    }

    /// The end of a collective, for which it sleeps at the queue of sends.
    fn end(&self) -> Result<usize, c_int> {
        self.wait_for(self.rank.cq.cast(), Rank::end)
    }

    fn close(self) {
        let (groups, sets): (Vec<_>, Vec<_>) = self.group.into_iter().unzip();
        self.rank.close(&groups, &sets);
        self.fabric.close();
    }
}

/// Runs `body` for each of some ranks, which have threads and domains of their own.
fn in_threads(test: &str, number: usize, body: impl Fn(WaitingRank) + Sync) {
    asking_everywhere(test, |libfabric: &Libfabric, domain: &str| {
        let info = offer(libfabric, domain).unwrap();
        let mut all: Vec<WaitingRank> = (0..number)
            .map(|number| {
                let fabric = Opened::new(&info);
                let rank = Rank::open_with_descriptors(&fabric, &info);
                WaitingRank {
                    rank,
                    fabric,
                    number,
                    group: None,
                }
            })
            .collect();
        let names: Vec<_> = all.iter().map(|one| two::name_of(one.rank.ep)).collect();
        all.iter_mut().for_each(|one| one.rank.insert(&names));
        let body = &body;
        std::thread::scope(|scope| {
            all.into_iter().for_each(|one| {
                scope.spawn(move || {
                    let one = one;
                    body(one);
                });
            });
        });
    });
}

/// A sleep at the event queue ends with the join, and one at the queue of sends with each
/// operation, though messages come to the queue of receives.
#[test]
fn sleeps_end_with_joins_and_operations() {
    in_threads("sleeps_end_with_joins_and_operations", 3, |mut this| {
        let group = this.join();
        for round in 0..200 {
            let input = (this.number * 1000 + round).to_le_bytes();
            let mut sum = [0; 8];
            let kind = (fi_datatype::FI_UINT64, fi_op::FI_SUM);
            let buffers = (&input[..], &mut sum[..]);
            assert_eq!(this.rank.allreduce(buffers, 1, kind, group, round), 0);
            assert_eq!(this.end(), Ok(round));
            assert_eq!(usize::from_le_bytes(sum), 3000 + 3 * round);
        }
        this.close();
    });
}

/// The root of a broadcast is gone: the others, which send nothing by themselves, wake up and look
/// for it.
#[test]
fn a_sleep_ends_when_the_root_is_gone() {
    in_threads("a_sleep_ends_when_the_root_is_gone", 3, |mut this| {
        let group = this.join();
        assert_eq!(this.rank.barrier(group, 1), 0);
        assert_eq!(this.end(), Ok(1));
        if this.number != 2 {
            let (mut data, root) = ([0; 8], this.rank.addrs[2]);
            let (bytes, of) = (fi_datatype::FI_UINT8, (group, root));
            assert_eq!(this.rank.broadcast(&mut data, 8, bytes, of, 2), 0);
            let errno = this.end().unwrap_err();
            assert!(GONE.contains(&errno), "{errno}");
        }
        this.close();
    });
}
