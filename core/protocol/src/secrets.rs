//! Numbers of which none can be computed from the others: a party that has seen some of them cannot
//! guess the next one, nor those before.

use std::fmt;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The beginning of a row of secret numbers: 256 bits from the system's random source.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct SecretSeed(pub [u8; 32]);

impl From<u64> for SecretSeed {
    /// A seed that anybody can guess, for tests.
    fn from(number: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        SecretSeed(bytes)
    }
}

impl fmt::Debug for SecretSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretSeed(…)")
    }
}

/// A row of secret numbers.
#[derive(Clone)]
pub(crate) struct SecretNumbers(ChaCha20Rng);

impl SecretNumbers {
    pub(crate) fn new(seed: SecretSeed) -> Self {
        SecretNumbers(ChaCha20Rng::from_seed(seed.0))
    }

    /// The next number; not 0.
    pub(crate) fn number(&mut self) -> u64 {
        loop {
            match self.0.next_u64() {
                0 => {}
                number => return number,
            }
        }
    }

    /// A number of 24 bits.
    pub(crate) fn packet_sequence_number(&mut self) -> u32 {
        self.0.next_u32() >> 8
    }
}

/// How many were drawn. The row itself stays secret.
impl fmt::Debug for SecretNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SecretNumbers")
            .field(&self.0.get_word_pos())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_row_and_each_seed_another() {
        let row = |seed: u64| {
            let mut numbers = SecretNumbers::new(seed.into());
            [(); 4].map(|()| numbers.number())
        };
        assert_eq!(row(1), row(1));
        let all = [row(1), row(2)].concat();
        for (at, number) in all.iter().enumerate() {
            assert!(!all[..at].contains(number), "{all:x?}");
        }
    }

    #[test]
    fn a_printed_configuration_has_no_secret() {
        let seed = SecretSeed([0xa5; 32]);
        assert_eq!(format!("{seed:?}"), "SecretSeed(…)");
        let mut numbers = SecretNumbers::new(seed);
        numbers.number();
        assert_eq!(format!("{numbers:?}"), "SecretNumbers(2)");
    }

    #[test]
    fn a_packet_sequence_number_has_24_bits() {
        let mut numbers = SecretNumbers::new(7.into());
        let seen = (0..1000).fold(0, |seen, _| seen | numbers.packet_sequence_number());
        assert_eq!(seen, (1 << 24) - 1);
    }
}
