//! For random input (`fuzz/`): what a process that means harm can hand to this one. Each function panics where a promise is
//! broken, and returns what it saw in small numbers.

use std::sync::Arc;

use ferrofabric_core::addr::NativeAddr;
use ferrofabric_core::peer::Transport;
use ferrofabric_core::types::MsgKind;
use zerocopy::IntoBytes;

use crate::ShmConfig;
use crate::cma::CmaPeer;
use crate::link::Farewell;
use crate::owner::Ep;
use crate::ring::SLOTS;
use crate::segment::{Segment, Side};
use crate::service::NewLink;
use crate::service::frame::{Frame, KINDS, VERDICTS};
use crate::wire;

/// A record of the handshake that is as it should be, of each kind.
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

/// A record of the handshake: the kind that is due, then the record.
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

/// Each kind of message with each flag that there is: the kind, the flags, and a first word.
pub fn slots() -> Vec<(u8, u8, u8)> {
    let mut slots = Vec::new();
    for &kind in wire::KINDS {
        for flags in wire::FLAGS.iter().copied().chain([0]) {
            slots.push((kind, flags, 1));
        }
    }
    slots.extend(
        Farewell::ALL
            .iter()
            .map(|what| (wire::FAREWELL, 0, *what as u8)),
    );
    slots
}

/// What the other side of a segment writes into it, step by step: a byte says what, and what it needs follows.
pub fn segment(bytes: &[u8]) -> u64 {
    let mut steps = Steps(bytes);
    let mut ep = Ep::open(ShmConfig {
        unexpected_bytes: 50_000,
        ..ShmConfig::default()
    });
    let native = NativeAddr {
        incarnation: 1,
        node: ep.name().node,
        shm: Some(0x0bad_0bad),
        verbs: None,
    };
    let addr = ep.insert(&native);
    let Ok((segment, _fd)) = Segment::create() else {
        return 0;
    };
    let segment = Arc::new(segment);
    let cookie = [1; 16];
    let link = NewLink {
        native,
        id: 0x0bad_0bad,
        segment: Arc::clone(&segment),
        side: Side::Initiator,
        cma: CmaPeer::probe(std::process::id() as i32, &raw const cookie as u64, cookie),
        offers_cma: true,
        fence: false,
    };
    ep.shm.new_link(link, &mut ep.owner);
    let out = vec![0u8; 200_000];
    let mut buffers: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut tags = Vec::new();
    let (mut position, mut steps_left) = (0u64, 64);
    while !steps.0.is_empty() && steps_left > 0 {
        steps_left -= 1;
        match steps.byte() % 9 {
            0..=2 => {
                let (kind, flags) = (steps.kind(), steps.byte());
                let len = steps.number() as u32;
                let lap = position / SLOTS as u64 + 1;
                let head = lap & 0xffff
                    | (u64::from(kind) << 16)
                    | (u64::from(flags) << 24)
                    | (u64::from(len) << 32);
                let slot = position as usize % SLOTS;
                for word in 1..8 {
                    write(
                        segment.slot_word(Side::Acceptor, slot, word),
                        steps.number(),
                    );
                }
                write(segment.slot_word(Side::Acceptor, slot, 0), head);
                position += 1;
            }
            3 => {
                let (slot, word) = (steps.byte() as usize % SLOTS, steps.byte() as usize % 8);
                write(
                    segment.slot_word(Side::Acceptor, slot, word),
                    steps.number(),
                );
            }
            4 => write(segment.progress_word(Side::Initiator), steps.number()),
            5 => {
                let (tag, len) = (steps.number(), steps.number() as usize % 40_000);
                let mut buffer = vec![0xaa; len + 64];
                ep.trecv(tag, 0, &mut buffer[..len], 1);
                buffers.push((len, buffer));
                tags.push(tag);
            }
            6 => {
                let _ = ep.tsend(addr, 1, &out[..steps.number() as usize % out.len()], 1);
            }
            7 => {
                ep.progress();
            }
            _ => {
                segment.status(Side::Acceptor).close();
                let closed = Some(Arc::clone(&segment));
                ep.shm
                    .gone(native.shm.unwrap_or_default(), closed, true, &mut ep.owner);
            }
        }
    }
    for _ in 0..10 {
        ep.progress();
    }
    let _ = ep.shm.arm();
    ep.progress();
    let mut ended = 0;
    while let Some(end) = ep.poll() {
        ended = (ended * 2 + u64::from(end.is_ok())) & 0xff;
    }
    for (len, buffer) in &buffers {
        assert!(
            buffer[*len..].iter().all(|byte| *byte == 0xaa),
            "wrote beyond a receive"
        );
    }
    // Another peer is served as ever. (A receive from anybody might match what the enemy has sent, and one of before what we send.)
    let own = ep.name();
    let me = ep.insert(&own);
    let mut into = [0u8; 8];
    let tag = (0..).find(|tag| !tags.contains(tag)).unwrap_or_default();
    ep.recv_from(MsgKind::Tagged, me, tag, 0, &mut into, 7);
    assert!(ep.tsend(me, tag, &[9; 8], 8).is_ok());
    while ep.poll().is_some() {}
    assert_eq!(into, [9; 8]);
    (ep.shm.stats().links_failed << 8) | ended
}

fn write(word: *mut u64, value: u64) {
    // SAFETY: a word of the mapped segment; nobody else runs.
    unsafe { word.write_volatile(value) };
}

/// Bytes as choices; where they end, everything is 0.
struct Steps<'a>(&'a [u8]);

impl Steps<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    /// One of the kinds of messages, or 0, which is none. A kind in the range stands for itself.
    fn kind(&mut self) -> u8 {
        let largest = wire::KINDS.iter().copied().max().unwrap_or(0);
        self.byte() % (largest + 1)
    }

    /// Mostly small: the first byte says how many follow.
    fn number(&mut self) -> u64 {
        let width = [0, 1, 1, 2, 4, 8][usize::from(self.byte() % 6)];
        (0..width).fold(0, |number, _| (number << 8) | u64::from(self.byte()))
    }
}
