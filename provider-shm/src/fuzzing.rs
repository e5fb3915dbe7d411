//! Entry points for fuzzing (`fuzz/`), with the input that a hostile process can send to this one.
//! Each function panics if an invariant is broken, and returns a summary in small numbers.

mod segment;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::types::RemoteKind;
use zerocopy::IntoBytes;

pub use self::segment::segment;
use crate::link::CloseMessage;
use crate::service::frame::{Frame, KINDS, VERDICTS};
use crate::wire;

/// A valid record of the handshake, of each kind.
pub fn records() -> Vec<Vec<u8>> {
    let name = NativeAddr {
        incarnation: 1,
        node: 2,
        shm: Some(3),
        verbs: None,
    };
    KINDS
        .iter()
        .map(|&kind| Frame::new(kind, 4, name.to_bytes()).as_bytes().to_vec())
        .collect()
}

/// A record of the handshake: the expected kind, then the record.
pub fn handshake(bytes: &[u8]) -> u64 {
    let Some((due, bytes)) = bytes.split_first() else {
        return 0;
    };
    match Frame::parse(bytes, *due) {
        Some(frame) => {
            assert_eq!(frame.as_bytes(), bytes);
            assert!(VERDICTS.contains(&frame.verdict));
            let named = NativeAddr::from_bytes(&frame.from).is_ok();
            2 + u64::from(frame.kind) * 2 + u64::from(named)
        }
        None => 1,
    }
}

/// Each kind of message with each flag: the kind, the flags, and a first word.
pub fn slots() -> Vec<(u8, u8, u8)> {
    let mut slots = Vec::new();
    for &kind in wire::KINDS {
        for flags in wire::FLAGS.iter().copied().chain([0]) {
            slots.push((kind, flags, 1));
        }
    }
    for part in RemoteKind::ALL {
        for kind in [wire::INLINE, wire::EAGER, wire::START, wire::SHORT] {
            slots.push((kind, wire::DATA | ((*part as u8) << wire::PART_SHIFT), 1));
        }
    }
    slots.extend(
        CloseMessage::ALL
            .iter()
            .map(|what| (wire::CLOSE, 0, *what as u8)),
    );
    slots
}
