//! Changes inputs at random.

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

/// xorshift64*: the same inputs for the same seed, wherever it runs.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, 0 where there is none.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        match end {
            0 => 0,
            end => (self.next() >> 16) as usize % end,
        }
    }
}

/// An input, changed once or several times.
pub(crate) fn mutated(from: &[u8], other: &[u8], words: &[&str], random: &mut Random) -> Vec<u8> {
    let mut bytes = from.to_vec();
    for _ in 0..=random.below(6) {
        change(&mut bytes, other, words, random);
    }
    bytes.truncate(LONGEST);
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], words: &[&str], random: &mut Random) {
    let at = random.below(bytes.len());
    let room = bytes.len() - at;
    match random.below(11) {
        0 if room > 0 => bytes[at] ^= 1 << random.below(8),
        1 if room > 0 => bytes[at] = random.next() as u8,
        2 if room > 0 => bytes[at] = bytes[at].wrapping_add(random.of_sign()),
        3 if room > 0 => {
            let len = 1 + random.below(room.min(16));
            bytes.drain(at..at + len);
        }
        4 => {
            let new: Vec<u8> = (0..1 + random.below(16))
                .map(|_| random.next() as u8)
                .collect();
            bytes.splice(at..at, new);
        }
        5 if room > 0 => {
            let part = bytes[at..at + 1 + random.below(room.min(32))].to_vec();
            let to = random.below(bytes.len());
            bytes.splice(to..to, part);
        }
        6 => {
            let edge = EDGES[random.below(EDGES.len())];
            let width = [1, 2, 4, 8][random.below(4)].min(room);
            let number = match random.below(2) {
                0 => edge.to_le_bytes(),
                _ => edge.rotate_right(8 * width as u32).to_be_bytes(),
            };
            bytes[at..at + width].copy_from_slice(&number[..width]);
        }
        7 => bytes.truncate(at),
        8 if !other.is_empty() => {
            let tail = random.below(other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[tail..]);
        }
        9 if !words.is_empty() => {
            let word = words[random.below(words.len())].bytes();
            bytes.splice(at..at, word);
        }
        _ if !words.is_empty() && room > 0 => {
            let word = words[random.below(words.len())].bytes();
            let len = word.len().min(room);
            bytes.splice(at..at + len, word);
        }
        _ => bytes.push(random.next() as u8),
    }
}

impl Random {
    fn of_sign(&mut self) -> u8 {
        match self.below(2) {
            0 => 1,
            _ => u8::MAX,
        }
    }
}
