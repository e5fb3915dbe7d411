//! Entries in pieces: the first has a power of two of them, each further one as many as all before.

/// How entries are divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubling {
    first_log2: u32,
}

impl Doubling {
    /// Pieces the first of which has 2 to the power of `first_log2` entries.
    pub(super) const fn new(first_log2: u32) -> Self {
        Self { first_log2 }
    }

    /// Entries of a piece.
    #[inline]
    pub(super) fn len(self, piece: usize) -> usize {
        match piece {
            0 => 1 << self.first_log2,
            k => 1 << (self.first_log2 as usize + k - 1).min(62),
        }
    }

    /// The first entry of a piece.
    #[inline]
    pub(super) fn first(self, piece: usize) -> usize {
        match piece {
            0 => 0,
            k => self.len(k),
        }
    }

    /// The piece that an entry lies in.
    #[inline]
    pub(super) fn piece(self, entry: u32) -> usize {
        (u32::BITS - (entry >> self.first_log2).leading_zeros()) as usize
    }

    /// The piece that an entry lies in, and where in it.
    #[inline]
    pub(super) fn place(self, entry: u32) -> (usize, usize) {
        let piece = self.piece(entry);
        (piece, entry as usize - self.first(piece))
    }

    /// Entries of so many pieces.
    pub(super) fn total(self, pieces: usize) -> usize {
        self.first(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_follow_each_other_through_the_pieces() {
        for first_log2 in [0, 6, 10] {
            let pieces = Doubling::new(first_log2);
            let mut expected = (0, 0);
            for entry in 0..5000 {
                assert_eq!(pieces.place(entry), expected, "{entry} of {first_log2}");
                expected.1 += 1;
                if expected.1 == pieces.len(expected.0) {
                    expected = (expected.0 + 1, 0);
                    assert_eq!(pieces.total(expected.0), entry as usize + 1);
                }
            }
        }
    }
}
