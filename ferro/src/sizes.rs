//! Lists of message sizes and of counts as users write them: `8`, `4K`, `1M`, and ranges by powers
//! of two.

use std::fmt;
use std::str::FromStr;

use ferrofabric_contracts::size::{Size, SizeError};

/// The largest message. A larger one is refused before the run allocates memory for it.
pub(crate) const MAX_BYTES: usize = 1 << 30;

/// The largest count of receives, messages or addresses.
const MAX_COUNT: usize = 1 << 30;

/// A list of message sizes in bytes, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<usize>);

/// A list of counts, each at least `LEAST`, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counts<const LEAST: usize>(pub(crate) Vec<usize>);

impl FromStr for Sizes {
    type Err = String;

    /// Reads `8,4K,64K-1M`: a range has its ends and the powers of two between them.
    fn from_str(text: &str) -> Result<Self, String> {
        list(text, "size", |n| match n <= MAX_BYTES {
            true => Ok(()),
            false => Err("is too large: messages of up to 1G are measured".to_owned()),
        })
        .map(Self)
    }
}

impl<const LEAST: usize> FromStr for Counts<LEAST> {
    type Err = String;

    /// Reads the same as [`Sizes`] does.
    fn from_str(text: &str) -> Result<Self, String> {
        list(text, "number", |n| match (LEAST..=MAX_COUNT).contains(&n) {
            true => Ok(()),
            false => Err(format!("is not between {LEAST} and 1G")),
        })
        .map(Self)
    }
}

fn list(
    text: &str,
    noun: &str,
    check: impl Fn(usize) -> Result<(), String>,
) -> Result<Vec<usize>, String> {
    let one = |text: &str| {
        let n = number(text, noun)?;
        check(n).map_err(|why| format!("{} {why}", text.trim()))?;
        Ok::<usize, String>(n)
    };
    let mut all = Vec::new();
    for part in text.split(',') {
        match part.trim().split_once('-') {
            None => all.push(one(part)?),
            Some((low, high)) => range(one(low)?, one(high)?, &mut all)?,
        }
    }
    Ok(all)
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

fn number(text: &str, noun: &str) -> Result<usize, String> {
    let text = text.trim();
    match text.parse::<Size>() {
        Ok(Size(n)) => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
        Err(SizeError::Malformed) => Err(format!(
            "\"{text}\" is no {noun}: digits are wanted, with K, M or G behind them where wanted"
        )),
        Err(SizeError::TooLarge) => Err(format!("{text} is too large")),
    }
}

/// The value of an option that takes one size.
pub(crate) fn one_size(text: &str) -> Result<usize, String> {
    number(text, "size")
}

/// The value of an option that takes one count.
pub(crate) fn one_count(text: &str) -> Result<usize, String> {
    match number(text, "number")? {
        n if n <= MAX_COUNT => Ok(n),
        _ => Err(format!("{text} is more than 1G")),
    }
}

/// A size in the shortest exact form, which [`Sizes`] reads.
pub fn print(bytes: usize) -> String {
    Size(bytes as u64).to_string()
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(|size| print(*size)).collect();
        f.write_str(&all.join(","))
    }
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
    fn a_count_has_a_least_value() {
        assert_eq!("8,1K".parse(), Ok(Counts::<8>(vec![8, 1024])));
        for wrong in ["7", "8,0", "2G", "x", "-8"] {
            assert!(wrong.parse::<Counts<8>>().is_err(), "{wrong}");
        }
        assert_eq!(one_count("0"), Ok(0));
        assert!(one_count("2G").is_err());
    }

    #[test]
    fn printing_is_the_inverse() {
        for bytes in [0, 1, 8, 1000, 1024, 1536, 4096, 1 << 20, 3 << 20, 1 << 30] {
            assert_eq!(read(&print(bytes)), [bytes]);
        }
        assert_eq!(print(1 << 20), "1M");
        assert_eq!(print(1500), "1500");
        assert_eq!(Sizes(vec![8, 4096]).to_string(), "8,4K");
    }
}
