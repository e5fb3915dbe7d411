//! Bytes that a malicious process can hand over through shared memory (`docs/shared-memory.md`):
//! records of the handshake, and the contents of a segment.

use ferrofabric_shm::fuzzing;

use super::seed;
use crate::FuzzTarget;

/// The kind of record that is due, then a record of the handshake.
pub(super) const HANDSHAKE: FuzzTarget = FuzzTarget {
    name: "shm_handshake",
    take: fuzzing::handshake,
    seeds: records,
    words: &[],
};

/// Writes of the other side of a segment.
pub(super) const SEGMENT: FuzzTarget = FuzzTarget {
    name: "shm_segment",
    take: fuzzing::segment,
    seeds: steps,
    words: &[],
};

fn records() -> Vec<(String, Vec<u8>)> {
    let records = fuzzing::records().into_iter().zip(1u8..);
    records
        .map(|(record, kind)| seed(&format!("kind_{kind}"), [&[kind], &record[..]].concat()))
        .collect()
}

/// Each kind of slot with each flag, between progress and receives. A number is a byte for its
/// width, then as many bytes.
fn steps() -> Vec<(String, Vec<u8>)> {
    let flagged = |kind: u8, flags: u8, first: u8, len: u8| {
        let mut bytes = vec![0, kind, flags, 1, len];
        for word in [first, 2, 3, 4, 5, 6, 7] {
            bytes.extend([1, word]);
        }
        bytes.push(7);
        bytes
    };
    let slot = |kind: u8, len: u8| flagged(kind, 1, 1, len);
    let mut all: Vec<_> = fuzzing::slots()
        .into_iter()
        .map(|(kind, flags, first)| {
            let name = format!("kind_{kind}_flags_{flags}_word_{first}");
            seed(&name, flagged(kind, flags, first, 40))
        })
        .collect();
    // One that is all here, and whose sender awaits `DELIVERED`; then more of it.
    let told = [0, 3, 5, 1, 40, 1, 1, 0, 1, 40, 0, 1, 40, 0, 0, 7];
    let more = [0, 4, 0, 1, 40, 0, 0, 0, 0, 0, 0, 0, 7];
    let close = [11, 7];
    all.push(seed("told", [&told[..], &more, &close].concat()));
    let receive = [5, 1, 1, 3, 4, 0];
    let send = [6, 4, 0, 1, 0, 0];
    let claim = [4, 1, 3];
    let both = [
        &receive[..],
        &slot(1, 8),
        &send,
        &[7],
        &claim,
        &slot(3, 100),
        &slot(4, 50),
    ];
    all.push(seed("exchange", both.concat()));
    // A region on the peer's board, word by word, and reads of it; then claims about our own.
    let entry = |word: u8, value: u8| [8, 1, 0, word, 1, value];
    let region: Vec<_> = [(1, 1), (2, 9), (3, 200), (4, 0), (5, 3), (0, 1)]
        .iter()
        .flat_map(|(word, value)| entry(*word, *value))
        .collect();
    let reads = [9, 1, 1, 5, 1, 40, 9, 1, 1, 190, 1, 40];
    let claims = [10, 1, 7, 1, 9, 10, 0, 1, 1];
    all.push(seed(
        "board",
        [&send[..], &region, &reads, &claims].concat(),
    ));
    all
}
