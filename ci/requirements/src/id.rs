//! Names of requirements: a group and a number, as in `AV-11`.

use std::fmt;
use std::str::FromStr;

/// A requirement's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequirementId {
    group: String,
    number: u32,
}

/// A text that names no requirement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no requirement's name: capitals, a hyphen and a number were expected, as in AV-11"
)]
pub struct NotAnId(pub String);

impl FromStr for RequirementId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let id = text.split_once('-').and_then(|(group, number)| {
            let capitals = !group.is_empty() && group.bytes().all(|b| b.is_ascii_uppercase());
            let digits = number.bytes().all(|b| b.is_ascii_digit());
            let number = number.parse().ok()?;
            (capitals && digits).then(|| RequirementId {
                group: group.to_owned(),
                number,
            })
        });
        id.ok_or_else(|| NotAnId(text.to_owned()))
    }
}

impl RequirementId {
    /// Its group, as `AV`.
    pub fn group(&self) -> &str {
        &self.group
    }
}

impl fmt::Display for RequirementId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.group, self.number)
    }
}

/// Reads `AV-1, AV-2`.
///
/// # Errors
/// The first part that is no name.
pub fn list(text: &str) -> Result<Vec<RequirementId>, NotAnId> {
    text.split(',').map(|part| part.trim().parse()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_and_print_alike() {
        for name in ["AV-1", "PEER-13", "RMR-11"] {
            assert_eq!(
                name.parse::<RequirementId>().map(|id| id.to_string()),
                Ok(name.to_owned())
            );
        }
        for name in ["", "AV", "AV-", "-1", "av-1", "AV-+1", "AV-1x", "AV 1"] {
            assert_eq!(name.parse::<RequirementId>(), Err(NotAnId(name.to_owned())));
        }
    }

    #[test]
    fn they_sort_by_number() {
        let mut ids = list("AV-10, AV-9, AV-11").unwrap_or_default();
        ids.sort();
        assert_eq!(ids, list("AV-9,AV-10,AV-11").unwrap_or_default());
    }
}
