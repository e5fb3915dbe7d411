//! Deterministic numbers for nonces, packet sequence numbers and jitter.

/// A SplitMix64 generator: small, seedable, good enough to spread retries and to keep strangers
/// from guessing a nonce by chance. It is no cipher; what keeps strangers out is the Q_Key.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; 0 for a bound of 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number that is not 0.
    pub(crate) fn non_zero(&mut self) -> u64 {
        loop {
            let n = self.next();
            if n != 0 {
                return n;
            }
        }
    }
}
