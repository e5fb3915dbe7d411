//! Collectives of a group with a member whose process is killed.

use std::ffi::c_int;
use std::time::Instant;

use ferro_fi::abi::{fi_addr_t, fi_datatype, fi_op};

use super::oracle::Members;
use super::{PATIENCE, Rank};

/// The errors of a member after the death of another one.
const ERRORS: [c_int; 3] = [libc::ECONNRESET, libc::ECONNABORTED, libc::EHOSTUNREACH];

/// Elements of an operation.
const LEN: usize = 1000;

/// A member in one sum after the other, up to its error.
struct Sums<'a> {
    rank: usize,
    this: &'a Rank,
    group: fi_addr_t,
    round: usize,
    input: Vec<u8>,
    output: Vec<u8>,
    error: Option<c_int>,
    /// How many members there are, and how many sums they have before the last one is killed.
    number: usize,
    sums: usize,
}

/// The last rank is killed while it and all others are in a collective, behind some others: each of
/// the others gets an error, and no further operation of the group begins.
pub fn a_rank_is_killed(members: &Members<'_>, number: usize, sums: usize) {
    let mut all: Vec<Sums<'_>> = (members.here().iter())
        .map(|&(rank, this, group)| Sums {
            rank,
            this,
            group,
            round: 0,
            input: Vec::new(),
            output: vec![0; LEN * 4],
            error: None,
            number,
            sums,
        })
        .collect();
    all.iter_mut().for_each(|one| one.begin());
    let until = Instant::now() + PATIENCE;
    while all.iter().any(|one| one.error.is_none()) {
        all.iter_mut().for_each(|one| one.drive());
        let at = || Vec::from_iter(all.iter().map(|one| (one.rank, one.round, one.error)));
        assert!(Instant::now() < until, "no error: {:?}", at());
        // Others may have the same processor.
        std::thread::yield_now();
    }
    for one in &all {
        let (rank, error) = (one.rank, one.error.unwrap());
        assert!(ERRORS.contains(&error), "{error} at {rank}");
        // The last rank began the last sum, so it had completed the one before. That means no more
        // than that the others had begun that one.
        assert!((sums - 1..=sums + 1).contains(&one.round), "{}", one.round);
        let begun = one.this.barrier(one.group, 1);
        assert!(begun < 0, "the group has failed");
    }
}

impl Sums<'_> {
    /// Begins the sum of the ranks' numbers plus those of the round and of the element.
    fn begin(&mut self) {
        let (rank, round) = (self.rank, self.round);
        self.input = (0..LEN)
            .flat_map(|at| ((at + rank + round) as u32).to_le_bytes())
            .collect();
        let kind = (fi_datatype::FI_UINT32, fi_op::FI_SUM);
        let buffers = (&*self.input, &mut *self.output);
        let begun = (self.this).allreduce(buffers, LEN, kind, self.group, round + 1);
        if begun != 0 {
            self.error = Some(-begun as c_int);
        }
        if rank == self.number - 1 && round == self.sums {
            kill_this_process();
        }
    }

    /// Looks for its end, and begins the next one.
    fn drive(&mut self) {
        match self.error.is_none().then(|| self.this.end()).flatten() {
            None => {}
            Some(Err(error)) => self.error = Some(error),
            Some(Ok(context)) => {
                assert_eq!(context, self.round + 1);
                let number = self.number;
                for (at, sum) in self.output.chunks(4).enumerate() {
                    let expected = number * (at + self.round) + number * (number - 1) / 2;
                    assert_eq!(sum, (expected as u32).to_le_bytes());
                }
                self.round += 1;
                self.begin();
            }
        }
    }
}

/// The last one of three members, the root of a broadcast, is killed before it begins: nobody sends
/// to it, and the others get an error. The first one polls, the second one sleeps.
pub fn a_root_is_killed(members: &Members<'_>) {
    let &[(rank, this, group)] = members.here() else {
        panic!("each member has a process");
    };
    if rank == 2 {
        kill_this_process();
    }
    let mut data = [0; 400];
    let root = (group, this.addrs[2]);
    let begun = this.broadcast(&mut data, 100, fi_datatype::FI_UINT32, root, 1);
    let until = Instant::now() + PATIENCE;
    let mut end = (begun != 0).then_some(Err(-begun as c_int));
    while end.is_none() {
        end = match rank {
            0 => this.end(),
            _ => this.wait_for_end(),
        };
        assert!(Instant::now() < until, "the broadcast does not end");
        std::thread::yield_now();
    }
    assert!(ERRORS.map(Err).contains(&end.unwrap()), "{end:?}");
}

fn kill_this_process() {
    // SAFETY: the process ends.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}
