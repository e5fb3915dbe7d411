//! Sums of eight processes on two machines that add to the same counters at the same time: run with
//! `scripts/vm --nodes 2`, both run this same program.

use std::io::{ErrorKind, Read, Write};

use ferrofabric_contracts::addr::{NATIVE_LEN, NativeAddr};
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::party::{PeerProcess, meet};
use ferrofabric_hw_tests::sums::CountingHub;
use serial_test::file_serial;

/// Processes of each machine.
const PROCESSES: u64 = 4;
/// The lanes of a process break once in so many additions of its own; those of the hub, once in so
/// many additions of all.
const RARITY: u64 = 200;

#[test]
#[file_serial(verbs)]
fn sums_of_two_machines_are_exact() {
    if Rig::open().is_none() {
        return;
    }
    // Of 32 and of 64 bits each.
    let each = match std::env::var_os("FERRO_SOAK") {
        Some(_) => 12_500,
        None => 250,
    };
    let (node, mut stream) = meet();
    let mut hub = None;
    let (name, numbers) = match node {
        0 => {
            let open = hub.insert(CountingHub::open(&[]));
            let numbers = open.adder(each, RARITY);
            stream.write_all(&open.endpoint.name().to_bytes()).unwrap();
            for number in numbers {
                stream.write_all(&number.to_le_bytes()).unwrap();
            }
            (open.endpoint.name(), numbers)
        }
        _ => {
            let mut name = [0; NATIVE_LEN];
            stream.read_exact(&mut name).unwrap();
            let numbers = [(); 4].map(|()| {
                let mut number = [0; 8];
                stream.read_exact(&mut number).unwrap();
                u64::from_le_bytes(number)
            });
            (NativeAddr::from_bytes(&name).unwrap(), numbers)
        }
    };
    let start = |_| {
        let program = env!("CARGO_BIN_EXE_test-peer");
        PeerProcess::start(program, "adder", &[("FERRO_LANE", "rc")], &numbers, &name)
    };
    let mut adders: Vec<_> = (0..PROCESSES).map(start).collect();
    adders.iter_mut().for_each(PeerProcess::go);
    if let Some(hub) = &mut hub {
        let breaks = hub.count(2 * PROCESSES, 2 * PROCESSES * each, RARITY);
        let resumed = hub.resumed();
        println!("{breaks} breaks of the hub, {resumed} sessions resumed");
        assert!(resumed > 0 && breaks > 0);
        hub.serve_until(|| adders.iter_mut().all(PeerProcess::has_ended));
        // Those of the other machine may still await replies.
        stream.set_nonblocking(true).unwrap();
        hub.serve_until(|| match stream.read_exact(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            read => {
                read.unwrap();
                true
            }
        });
    }
    adders.into_iter().for_each(PeerProcess::finish);
    if node != 0 {
        stream.write_all(b".").unwrap();
    }
}
