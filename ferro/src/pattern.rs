//! The content of messages that are checked: every word depends on the message's number, its
//! direction, and its place.

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The side that initiates.
    There,
    /// The side that answers.
    Back,
}

/// A byte that is not what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    /// Where, in bytes from the start.
    pub(crate) offset: usize,
    /// The byte that was sent.
    pub(crate) expected: u8,
    /// The byte that came.
    pub(crate) found: u8,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "byte {} is {:#04x} and should be {:#04x}",
            self.offset, self.found, self.expected
        )
    }
}

/// Writes the content of a message.
pub(crate) fn fill(bytes: &mut [u8], number: u64, direction: Direction) {
    let seed = seed(number, bytes.len(), direction);
    for (i, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(seed, i).to_le_bytes()[..chunk.len()]);
    }
}

/// Looks for the first byte of a message that is wrong.
///
/// # Errors
///
/// The first wrong byte.
pub(crate) fn check(bytes: &[u8], number: u64, direction: Direction) -> Result<(), Damage> {
    let seed = seed(number, bytes.len(), direction);
    for (i, chunk) in bytes.chunks(8).enumerate() {
        let expected = word(seed, i).to_le_bytes();
        if *chunk != expected[..chunk.len()] {
            let at = chunk
                .iter()
                .zip(&expected)
                .position(|(a, b)| a != b)
                .unwrap_or(0);
            return Err(Damage {
                offset: i * 8 + at,
                expected: expected[at],
                found: chunk[at],
            });
        }
    }
    Ok(())
}

fn seed(number: u64, len: usize, direction: Direction) -> u64 {
    scramble(number ^ ((len as u64) << 40) ^ ((direction as u64) << 63))
}

fn word(seed: u64, index: usize) -> u64 {
    scramble(seed.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// The finalizer of splitmix64: every bit of the result depends on every bit of `x`.
fn scramble(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_matches_itself_alone() {
        let mut bytes = vec![0; 1003];
        fill(&mut bytes, 7, Direction::There);
        assert_eq!(check(&bytes, 7, Direction::There), Ok(()));
        assert!(check(&bytes, 8, Direction::There).is_err());
        assert!(check(&bytes, 7, Direction::Back).is_err());
        assert!(check(&bytes[..1002], 7, Direction::There).is_err());
        assert_eq!(check(&[], 7, Direction::There), Ok(()));
    }

    #[test]
    fn each_damaged_byte_is_found() {
        let mut bytes = vec![0; 100];
        for at in 0..100 {
            fill(&mut bytes, 1, Direction::Back);
            bytes[at] ^= 0x10;
            assert_eq!(check(&bytes, 1, Direction::Back).unwrap_err().offset, at);
        }
    }
}
