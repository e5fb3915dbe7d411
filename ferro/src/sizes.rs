//! Message sizes as users write them: `8`, `4K`, `1M`, lists, and ranges by powers of two.

use std::str::FromStr;

/// Larger messages are refused before memory for them is asked for.
pub(crate) const MAX_BYTES: usize = 1 << 30;

/// A list of message sizes in bytes, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<usize>);

impl FromStr for Sizes {
    type Err = String;

    /// Reads `8,4K,64K-1M`: a range has its ends and the powers of two between them.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut sizes = Vec::new();
        for part in text.split(',') {
            match part.trim().split_once('-') {
                None => sizes.push(size(part)?),
                Some((low, high)) => range(size(low)?, size(high)?, &mut sizes)?,
            }
        }
        Ok(Self(sizes))
    }
}

fn range(low: usize, high: usize, into: &mut Vec<usize>) -> Result<(), String> {
    if low > high {
        return Err(format!("the range {low}-{high} is empty"));
    }
    into.push(low);
    let mut next = (low + 1).next_power_of_two();
    while next < high {
        into.push(next);
        next *= 2;
    }
    if high > low {
        into.push(high);
    }
    Ok(())
}

fn size(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let wrong = || format!("\"{text}\" is no size: a number of bytes, with K, M or G where wanted");
    let (digits, shift) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let bytes = digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(1 << shift))
        .filter(|n| *n <= MAX_BYTES as u64);
    bytes
        .map(|n| n as usize)
        .ok_or_else(|| format!("{text} is too large: messages of up to 1G are measured"))
}

/// A size as in [`Sizes`], the shortest form.
pub(crate) fn print(bytes: usize) -> String {
    for (unit, shift) in [("G", 30), ("M", 20), ("K", 10)] {
        if bytes >> shift != 0 && bytes % (1 << shift) == 0 {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<usize> {
        text.parse::<Sizes>().unwrap().0
    }

    #[test]
    fn lists_units_and_ranges() {
        assert_eq!(read("8,4K, 1m"), [8, 4096, 1 << 20]);
        assert_eq!(read("0"), [0]);
        assert_eq!(read("8-64"), [8, 16, 32, 64]);
        assert_eq!(read("0-4"), [0, 1, 2, 4]);
        assert_eq!(read("3-20,1G"), [3, 4, 8, 16, 20, 1 << 30]);
        assert_eq!(read("5-5"), [5]);
        assert_eq!(read("1M-1M"), [1 << 20]);
    }

    #[test]
    fn what_is_no_size_is_named() {
        for (text, names) in [
            ("", "\"\""),
            ("8,", "\"\""),
            ("x", "\"x\""),
            ("4KB", "\"4KB\""),
            ("K", "\"K\""),
            ("+8", "\"+8\""),
            ("8-4", "8-4"),
            ("2G", "2G"),
            ("99999999999999999999", "too large"),
            ("17179869184G", "too large"),
            ("é", "é"),
        ] {
            let error = text.parse::<Sizes>().unwrap_err();
            assert!(error.contains(names), "{text}: {error}");
        }
    }

    #[test]
    fn printing_is_the_inverse() {
        for bytes in [0, 1, 8, 1000, 1024, 1536, 4096, 1 << 20, 3 << 20, 1 << 30] {
            assert_eq!(read(&print(bytes)), [bytes]);
        }
        assert_eq!(print(1 << 20), "1M");
        assert_eq!(print(1500), "1500");
    }
}
