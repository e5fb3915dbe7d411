//! Collective operations between processes, over shared memory: by C calls (fi_collective(3)).

#![allow(missing_docs, clippy::unwrap_used)]

mod child;
#[macro_use]
mod client;
mod ranks;
mod support;
mod two;

use std::ffi::c_int;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use client::{Libfabric, Opened};
use ferro_fi::abi::{fi_datatype, fi_op};
use ranks::{PATIENCE, Rank, address_of, offer};
use support::plugin::Plugin;
use support::skip;

/// The rank of a process, and the number of ranks.
const RANK: &str = "FERRO_TEST_RANK";
const RANKS: &str = "FERRO_TEST_RANKS";

/// Runs `body` in processes that have each other's addresses and have joined one group.
fn in_processes(test: &str, number: usize, body: impl FnOnce(&Rank, usize, u64)) {
    if let Ok(rank) = std::env::var(RANK) {
        return be_rank(rank.parse().unwrap(), body);
    }
    if child::is_here() {
        if Libfabric::load().is_none() {
            skip("there is no libfabric 2 here (libfabric1, or ci/mpi)");
        }
        return;
    }
    child::run(test, &[]);
    let plugin = Plugin::new();
    let mut all: Vec<Child> = (0..number)
        .map(|rank| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let (rank, number) = (rank.to_string(), number.to_string());
            child::again(&mut command, test, &[(RANK, &rank), (RANKS, &number)]);
            plugin.choose(&mut command);
            let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
            piped.spawn().unwrap()
        })
        .collect();
    let mut outputs: Vec<_> = all
        .iter_mut()
        .map(|one| BufReader::new(one.stdout.take().unwrap()))
        .collect();
    let names: Vec<Option<String>> = outputs.iter_mut().map(name_in).collect();
    let Some(names) = names.into_iter().collect::<Option<Vec<_>>>() else {
        // There is no libfabric, which the first process says.
        all.iter_mut()
            .for_each(|one| assert!(one.wait().unwrap().success()));
        return;
    };
    for one in &mut all {
        writeln!(one.stdin.as_mut().unwrap(), "{}", names.join(" ")).unwrap();
    }
    for (rank, mut one) in all.into_iter().enumerate() {
        let status = one.wait().unwrap();
        let is_killed = test.contains("killed") && rank == number - 1;
        assert_eq!(status.success(), !is_killed, "rank {rank}: {status}");
    }
}

/// The address that a process prints.
fn name_in(output: &mut impl BufRead) -> Option<String> {
    let lines = output.lines().map(Result::unwrap);
    let mut names = lines.filter_map(|line| Some(line.split_once("NAME ")?.1.to_owned()));
    names.next()
}

fn be_rank(rank: usize, body: impl FnOnce(&Rank, usize, u64)) {
    let Some(libfabric) = Libfabric::load() else {
        return;
    };
    let info = offer(&libfabric, ferrofabric_shm::ShmProvider::DOMAIN).unwrap();
    let opened = Opened::new(&info);
    let mut this = Rank::open(&opened, &info);
    let name = two::name_of(this.ep);
    let bytes: Vec<String> = name.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("\nNAME {}", bytes.concat());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let names: Vec<Vec<u8>> = (line.split_whitespace())
        .map(|name| {
            let byte = |at: usize| u8::from_str_radix(&name[at * 2..at * 2 + 2], 16).unwrap();
            (0..name.len() / 2).map(byte).collect()
        })
        .collect();
    this.insert(&names);
    let set = this.set(&(0..names.len()).collect::<Vec<_>>());
    let mut addr = 0;
    // SAFETY: the set is open.
    assert_eq!(unsafe { call!(set, ops.addr(&raw mut addr)) }, 0);
    let group = this.join(addr, set, 1).unwrap();
    let until = Instant::now() + PATIENCE;
    while this.event().is_none() {
        assert!(Instant::now() < until, "no join");
    }
    body(&this, rank, address_of(group));
    this.close(&[group], &[set]);
    opened.close();
}

/// An allreduce of the ranks' numbers plus that of the round. `Err`: it failed.
fn sum(this: &Rank, rank: usize, group: u64, round: usize) -> Result<Vec<u32>, c_int> {
    let input: Vec<u8> = (0..1000u32)
        .flat_map(|at| (at + (rank + round) as u32).to_le_bytes())
        .collect();
    let mut output = vec![0; input.len()];
    let kind = (fi_datatype::FI_UINT32, fi_op::FI_SUM);
    let begun = this.allreduce((&input, &mut output), 1000, kind, group, round + 1);
    if begun != 0 {
        return Err(-begun as c_int);
    }
    let until = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < until, "round {round} does not end");
        match this.end() {
            None => {}
            Some(Ok(context)) => {
                assert_eq!(context, round + 1);
                let numbers = output.chunks(4);
                let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
                return Ok(numbers.map(number).collect());
            }
            Some(Err(error)) => return Err(error),
        }
    }
}

/// The results of each round are those of all ranks.
#[test]
fn allreduces_between_processes() {
    in_processes("allreduces_between_processes", 5, |this, rank, group| {
        let number: u32 = std::env::var(RANKS).unwrap().parse().unwrap();
        for round in 0..100 {
            let sums = sum(this, rank, group, round).unwrap();
            for (at, sum) in sums.iter().enumerate() {
                let rest = at as u32 + round as u32;
                assert_eq!(*sum, number * rest + number * (number - 1) / 2);
            }
        }
    });
}

/// The root of a broadcast is killed before it begins: nobody sends to it, and all the others get
/// an error.
#[test]
fn a_root_is_killed() {
    in_processes("a_root_is_killed", 3, |this, rank, group| {
        if rank == 2 {
            // SAFETY: the process ends.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let mut data = [0; 400];
        let root = (group, this.addrs[2]);
        let begun = this.broadcast(&mut data, 100, fi_datatype::FI_UINT32, root, 1);
        let until = Instant::now() + PATIENCE;
        let mut end = (begun != 0).then_some(Err(-begun as c_int));
        while end.is_none() {
            // One rank polls, the other one sleeps.
            end = match rank {
                0 => this.end(),
                _ => this.wait_for_end(),
            };
            assert!(Instant::now() < until, "the broadcast does not end");
        }
        let errors = [libc::ECONNRESET, libc::ECONNABORTED, libc::EHOSTUNREACH];
        assert!(errors.map(Err).contains(&end.unwrap()), "{end:?}");
    });
}

/// A rank is killed while the others are in a collective: each of them gets an error, and no
/// further operation of the group begins.
#[test]
fn a_rank_is_killed() {
    in_processes("a_rank_is_killed", 5, |this, rank, group| {
        let number: usize = std::env::var(RANKS).unwrap().parse().unwrap();
        let mut round = 0;
        let error = loop {
            if rank == number - 1 && round == 100 {
                let input = [0; 4000];
                let kind = (fi_datatype::FI_UINT32, fi_op::FI_SUM);
                this.allreduce((&input, &mut [0; 4000]), 1000, kind, group, 1);
                // SAFETY: the process ends.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            }
            match sum(this, rank, group, round) {
                Ok(_) => round += 1,
                Err(error) => break error,
            }
        };
        assert!(
            [libc::ECONNRESET, libc::ECONNABORTED, libc::EHOSTUNREACH].contains(&error),
            "{error}"
        );
        assert!([100, 101].contains(&round), "{round}");
        assert!(this.barrier(group, 1) < 0, "the group has failed");
    });
}
