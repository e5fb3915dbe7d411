//! Sizes as users write and read them: a number of bytes, with `K`, `M` or `G` for powers of 1024.
//! Settings, options and tables all go through [`Size`], so that each size that one of them prints
//! can be given to another.

use std::fmt;
use std::str::FromStr;

/// A size, or another number that may be written with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Why a text is no size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// There is no number, or something else beside it.
    #[error("not a number, with K, M or G where wanted")]
    Malformed,
    /// The number has more than 64 bits.
    #[error("too large")]
    TooLarge,
}

const UNITS: [(char, u32); 3] = [('G', 30), ('M', 20), ('K', 10)];

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let (digits, shift) = UNITS
            .into_iter()
            .find_map(|(unit, shift)| {
                let digits = text.strip_suffix([unit, unit.to_ascii_lowercase()])?;
                Some((digits, shift))
            })
            .unwrap_or((text, 0));
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(SizeError::Malformed);
        }
        let number = digits.parse::<u64>().ok();
        number
            .and_then(|n| n.checked_mul(1 << shift))
            .map(Self)
            .ok_or(SizeError::TooLarge)
    }
}

impl fmt::Display for Size {
    /// The shortest exact form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in UNITS {
            if self.0 >> shift != 0 && self.0 % (1 << shift) == 0 {
                return write!(f, "{}{unit}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_size_reads_as_itself() {
        for bytes in [0, 1, 8, 1000, 1024, 1536, 4096, 1 << 20, 3 << 30, u64::MAX] {
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
        assert_eq!(Size(1 << 30).to_string(), "1G");
        assert_eq!(Size(64 << 10).to_string(), "64K");
        assert_eq!(Size(1500).to_string(), "1500");
        assert_eq!("64k".parse(), Ok(Size(64 << 10)));
    }

    #[test]
    fn a_text_that_is_no_size_is_refused() {
        for text in ["", "K", "x", "+8", "-8", "4KB", "4 K", "é", "0x10", "1.5K"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::Malformed), "{text}");
        }
        for text in ["99999999999999999999", "17179869184G"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::TooLarge), "{text}");
        }
    }
}
