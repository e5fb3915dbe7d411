//! Collective operations of processes on two machines, by the Rust interface: run with
//! `scripts/vm --nodes 2`, both run this same program.

use std::io::{Read, Write};
use std::net::TcpStream;

use ferrofabric_contracts::addr::{NATIVE_LEN, NativeAddr};
use ferrofabric_hw_tests::party::{PeerProcess, meet};
use ferrofabric_hw_tests::{Rig, groups};
use serial_test::file_serial;

const NEVER: u64 = u64::MAX;

/// Members of even ranks are on the first machine, the others on the second one. The last one is
/// killed in a round, if any. Members of a machine share memory.
fn run((node, stream): (u64, &mut TcpStream), members: u64, rounds: u64, death: u64) {
    let settings = [("FERRO_RECONNECT_TIMEOUT", "2s"), ("FERRO_LANE", "rc")];
    let leader = (node == 0).then(|| groups::endpoint(&settings));
    let name = match &leader {
        Some(leader) => {
            let name = groups::name(leader);
            stream.write_all(&name.to_bytes()).unwrap();
            name
        }
        None => read_name(stream),
    };
    let ranks = (1..members).filter(|rank| rank % 2 == node);
    let mut others: Vec<_> = ranks
        .map(|rank| {
            let numbers: groups::MemberNumbers = [rank, members, rounds, death];
            let program = env!("CARGO_BIN_EXE_test-peer");
            let process = PeerProcess::start(program, "member", &settings, &numbers, &name);
            (rank, process)
        })
        .collect();
    others.iter_mut().for_each(|(_, process)| process.go());
    match leader {
        None => {
            for (_, process) in &others {
                stream.write_all(&process.name.to_bytes()).unwrap();
            }
        }
        Some(leader) => {
            let mut here = others.iter().map(|(_, process)| process.name);
            let mut names = vec![name];
            for rank in 1..members {
                names.push(match rank % 2 {
                    0 => here.next().unwrap(),
                    _ => read_name(stream),
                });
            }
            groups::lead(leader, &names, rounds, death);
        }
    }
    for (rank, process) in others {
        match death < rounds && rank == members - 1 {
            true => process.bury(),
            false => process.finish(),
        }
    }
}

fn read_name(stream: &mut TcpStream) -> NativeAddr {
    let mut name = [0; NATIVE_LEN];
    stream.read_exact(&mut name).unwrap();
    NativeAddr::from_bytes(&name).unwrap()
}

#[test]
#[file_serial(verbs)]
fn operations_of_two_machines() {
    if Rig::open().is_none() {
        return;
    }
    let (node, mut stream) = meet();
    for members in [3, 8] {
        run((node, &mut stream), members, 6, NEVER);
    }
}

#[test]
#[file_serial(verbs)]
fn a_member_on_either_machine_is_killed() {
    if Rig::open().is_none() {
        return;
    }
    let (node, mut stream) = meet();
    // The last rank is on the second machine, or on the first.
    for members in [4, 5] {
        run((node, &mut stream), members, 6, 1);
    }
}
