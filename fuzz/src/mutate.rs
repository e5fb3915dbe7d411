//! Changes inputs at random.

use fastrand::Rng;

/// Numbers at which things tip over.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    u64::MAX >> 1,
    u64::MAX,
];

/// Longest input in bytes.
const LONGEST: usize = 4096;

/// An input, changed once or several times.
pub(crate) fn mutated(from: &[u8], other: &[u8], words: &[&str], random: &mut Rng) -> Vec<u8> {
    let mut bytes = from.to_vec();
    for _ in 0..=below(random, 6) {
        change(&mut bytes, other, words, random);
    }
    bytes.truncate(LONGEST);
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], words: &[&str], random: &mut Rng) {
    let at = below(random, bytes.len());
    let room = bytes.len() - at;
    match below(random, 11) {
        0 if room > 0 => bytes[at] ^= 1 << below(random, 8),
        1 if room > 0 => bytes[at] = random.u8(..),
        2 if room > 0 => bytes[at] = bytes[at].wrapping_add(sign(random)),
        3 if room > 0 => {
            let len = 1 + below(random, room.min(16));
            bytes.drain(at..at + len);
        }
        4 => {
            let new: Vec<u8> = (0..1 + below(random, 16)).map(|_| random.u8(..)).collect();
            bytes.splice(at..at, new);
        }
        5 if room > 0 => {
            let part = bytes[at..at + 1 + below(random, room.min(32))].to_vec();
            let to = below(random, bytes.len());
            bytes.splice(to..to, part);
        }
        6 => {
            let edge = EDGES[below(random, EDGES.len())];
            let width = [1, 2, 4, 8][below(random, 4)].min(room);
            let number = match below(random, 2) {
                0 => edge.to_le_bytes(),
                _ => edge.rotate_right(8 * width as u32).to_be_bytes(),
            };
            bytes[at..at + width].copy_from_slice(&number[..width]);
        }
        7 => bytes.truncate(at),
        8 if !other.is_empty() => {
            let tail = below(random, other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[tail..]);
        }
        9 if !words.is_empty() => {
            let word = words[below(random, words.len())].bytes();
            bytes.splice(at..at, word);
        }
        _ if !words.is_empty() && room > 0 => {
            let word = words[below(random, words.len())].bytes();
            let len = word.len().min(room);
            bytes.splice(at..at + len, word);
        }
        _ => bytes.push(random.u8(..)),
    }
}

/// A number below `end`, 0 where there is none.
pub(crate) fn below(random: &mut Rng, end: usize) -> usize {
    match end {
        0 => 0,
        end => random.usize(..end),
    }
}

/// 1 or -1.
fn sign(random: &mut Rng) -> u8 {
    random.choice([1, u8::MAX]).unwrap_or(1)
}
