//! Groups of processes, and their collective operations by the Rust interface.

use std::time::Duration;

use fastrand::Rng;
use ferrofabric::addr::{Address, NATIVE_LEN, NativeAddr};
use ferrofabric::{Buffer, Errno, FiAddr, Group, Inbound, OperationError, Operator, Outbound};
use ferrofabric::{OperationId, RdmEndpoint};

use crate::party::PeerProcess;
use crate::{offers, party};

const PATIENCE: Option<Duration> = Some(party::PATIENCE);

/// The tag of the message with the names of all members.
const NAMES: u64 = 1;

/// The members' errors after the death of another one.
const ERRORS: [Errno; 3] = [Errno::ECONNRESET, Errno::ECONNABORTED, Errno::EHOSTUNREACH];

/// The numbers of the role `member`: the rank, the number of members, rounds of operations, and the
/// round in which the last member is killed (none of them: nobody is). All have joined by the end
/// of the first round.
pub type MemberNumbers = [u64; 4];

/// An endpoint for a member, with the settings of the environment but for those given.
pub fn endpoint(overrides: &[(&str, &str)]) -> RdmEndpoint {
    let options = RdmEndpoint::builder().settings(offers::settings(overrides));
    options.collectives(true).open().unwrap()
}

/// The name of an endpoint.
///
/// # Panics
///
/// If its address is not native.
pub fn name(endpoint: &RdmEndpoint) -> NativeAddr {
    match endpoint.address() {
        Address::Native(name) => name,
        other => panic!("{other} is not native"),
    }
}

/// Runs a group on this machine. Member 0 is in this process, the others are `program`
/// (`env!("CARGO_BIN_EXE_test-peer")`), each with the settings of its rank. The last one is killed
/// in a round, if any.
pub fn run<'a, const N: usize>(
    program: &str,
    settings: impl Fn(u64) -> [(&'a str, &'a str); N],
    [members, rounds, death]: [u64; 3],
) {
    let leader = endpoint(&settings(0));
    let own = name(&leader);
    let start = |rank| {
        let numbers: MemberNumbers = [rank, members, rounds, death];
        PeerProcess::start(program, "member", &settings(rank), &numbers, &own)
    };
    let mut others: Vec<_> = (1..members).map(start).collect();
    let mut names = vec![own];
    names.extend(others.iter().map(|other| other.name));
    others.iter_mut().for_each(PeerProcess::go);
    lead(leader, &names, rounds, death);
    if death < rounds {
        others.pop().into_iter().for_each(PeerProcess::bury);
    }
    others.into_iter().for_each(PeerProcess::finish);
}

/// The member of rank 0: passes the names of all on, the first of which is its own, and takes part.
pub fn lead(mut endpoint: RdmEndpoint, names: &[NativeAddr], rounds: u64, death: u64) {
    let all: Vec<_> = names.iter().flat_map(NativeAddr::to_bytes).collect();
    let peers = insert(&endpoint, &all);
    for &peer in &peers[1..] {
        let message = Outbound::from(Buffer::copy_of(&all).unwrap()).tag(NAMES);
        let sent = endpoint.send(peer, message).unwrap();
        endpoint.wait_for(sent, PATIENCE).unwrap();
    }
    Member::join(endpoint, peers, 0).run(rounds, death);
}

/// The role `member`.
///
/// # Panics
///
/// If an operation has a wrong result, or an error without a death.
pub fn member(numbers: &[u64]) {
    let &[rank, members, rounds, death] = numbers else {
        panic!("member RANK MEMBERS ROUNDS DEATH");
    };
    let mut endpoint = endpoint(&[]);
    let leader = party::report(&name(&endpoint));
    endpoint.insert(Address::Native(leader)).unwrap();
    let room = Buffer::new(members as usize * NATIVE_LEN).unwrap();
    let names = endpoint.recv(Inbound::from(room).tag(NAMES)).unwrap();
    let names = endpoint.wait_for(names, PATIENCE).unwrap();
    let peers = insert(&endpoint, names.bytes());
    Member::join(endpoint, peers, rank as usize).run(rounds, death);
}

fn insert(endpoint: &RdmEndpoint, names: &[u8]) -> Vec<FiAddr> {
    let names = names.chunks_exact(NATIVE_LEN);
    let names = names.map(|name| NativeAddr::from_bytes(name).unwrap());
    names
        .map(|name| endpoint.insert(Address::Native(name)).unwrap())
        .collect()
}

struct Member {
    endpoint: RdmEndpoint,
    peers: Vec<FiAddr>,
    rank: usize,
    group: Group,
}

impl Member {
    fn join(mut endpoint: RdmEndpoint, peers: Vec<FiAddr>, rank: usize) -> Self {
        let join = endpoint.join(&peers).unwrap();
        let group = endpoint.wait_for(join, PATIENCE).unwrap();
        assert_eq!(group.rank(), rank);
        Self {
            endpoint,
            peers,
            rank,
            group,
        }
    }

    fn run(mut self, rounds: u64, death: u64) {
        let last = self.peers.len() - 1;
        for round in 0..rounds {
            if round == death && self.rank == last {
                // SAFETY: it ends this process.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            match self.round(round) {
                Ok(()) => assert!(round < death || self.rank == last, "round {round}"),
                Err(error) => {
                    assert!(round >= death, "round {round}: {error}");
                    assert!(ERRORS.contains(&error.errno()), "{error}");
                    return self.go_on_without_the_last();
                }
            }
        }
        assert!(death >= rounds, "nobody noticed the death");
        self.close();
    }

    /// Those that remain join another group.
    fn go_on_without_the_last(mut self) {
        self.endpoint.leave(self.group).unwrap();
        self.peers.pop();
        let mut rest = Self::join(self.endpoint, self.peers, self.rank);
        for round in 0..3 {
            rest.round(round).unwrap();
        }
        rest.close();
    }

    fn close(mut self) {
        self.endpoint.leave(self.group).unwrap();
        self.endpoint.close(party::PATIENCE).unwrap();
    }

    /// Operations of each kind. The sum of all members comes last, which needs each of them.
    fn round(&mut self, round: u64) -> Result<(), OperationError> {
        let mut random = Rng::with_seed(round);
        let (rank, size) = (self.rank, self.peers.len());
        // Short, long, and longer than a message that is sent without a receive.
        let count = random.usize(1..=[8, 1000, 60_000][round as usize % 3]);
        let root = random.usize(..size);
        let at_root = self.peers[root];
        let of = |rank: usize| values(round, rank, count);

        let barrier = self.endpoint.barrier(&self.group)?;
        let all = self.endpoint.allgather(&self.group, &of(rank))?;
        let copied = (self.endpoint).broadcast(&self.group, at_root, &of(rank))?;
        let for_all = match rank == root {
            true => values(round, rank, count * size),
            false => Vec::new(),
        };
        let handed = (self.endpoint).scatter(&self.group, at_root, &for_all, count)?;
        let sums = (self.endpoint).allreduce(&self.group, Operator::SUM, &of(rank))?;

        self.wait_for(barrier)?;
        let expected: Vec<_> = (0..size).flat_map(of).collect();
        assert!(self.wait_for(all)? == expected, "allgather of {count}");
        assert!(self.wait_for(copied)? == of(root), "broadcast of {count}");
        let expected = &values(round, root, count * size)[rank * count..(rank + 1) * count];
        assert!(self.wait_for(handed)? == expected, "scatter of {count}");
        let expected: Vec<u64> = (1..size).fold(of(0), |sums, rank| {
            let pairs = sums.into_iter().zip(of(rank));
            pairs.map(|(a, b)| a.wrapping_add(b)).collect()
        });
        assert!(self.wait_for(sums)? == expected, "allreduce of {count}");
        Ok(())
    }

    fn wait_for<I: OperationId>(&mut self, operation: I) -> Result<I::Output, OperationError> {
        let result = self.endpoint.wait_for(operation, PATIENCE);
        if let Err(error) = &result {
            assert!(!error.is_timeout(), "rank {}: {error}", self.rank);
        }
        result
    }
}

fn values(round: u64, rank: usize, count: usize) -> Vec<u64> {
    let mut random = Rng::with_seed((round << 8) | rank as u64);
    (0..count).map(|_| random.u64(..)).collect()
}
