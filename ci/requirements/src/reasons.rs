//! Why a requirement has no test in some place: lines of the document such as
//! `- No test over shared memory: AV-24: an entry there has no address handle.`

use std::collections::BTreeSet;

use crate::document::DocumentError;
use crate::id::{self, RequirementId};
use crate::place::TestPlace;

/// Pairs of a requirement and a place where it needs no test.
pub(crate) type Reasons = BTreeSet<(RequirementId, TestPlace)>;

/// The pairs that a line excuses. A long reason goes on in the next lines.
pub(crate) fn reason(line: usize, text: &str) -> Result<Reasons, DocumentError> {
    let Some(item) = text
        .strip_prefix("- ")
        .filter(|it| it.starts_with("No test "))
    else {
        return Ok(Reasons::new());
    };
    let here = TestPlace::ALL.into_iter().find_map(|place| {
        let rest = item.strip_prefix(place.lacks()?)?;
        Some((place, rest))
    });
    let said = here.and_then(|(place, rest)| Some((place, rest.split_once(": ")?)));
    match said {
        Some((place, (ids, why))) if !why.trim().is_empty() => {
            let ids = id::list(ids).map_err(|source| DocumentError::Id { line, source })?;
            Ok(ids.into_iter().map(|id| (id, place)).collect())
        }
        _ => Err(DocumentError::Reason { line }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_names_place_and_requirements() {
        let found = reason(
            3,
            "- No test on Soft-RoCE: AV-2, GI-7: no device is touched",
        );
        let expected = ["AV-2", "GI-7"].map(|id| (id.parse().expect("an ID"), TestPlace::SoftRoce));
        assert_eq!(found, Ok(Reasons::from(expected)));
        assert_eq!(reason(3, "- No tests at all."), Ok(Reasons::new()));
    }

    #[test]
    fn a_line_without_place_requirement_or_reason_is_refused() {
        for line in [
            "- No test on the moon: AV-2: it is far",
            "- No test on Soft-RoCE: AV-2",
            "- No test on Soft-RoCE: AV-2: ",
            "- No test elsewhere: AV-2: none is needed",
        ] {
            let refused = reason(3, line).expect_err(line);
            assert_eq!(refused, DocumentError::Reason { line: 3 }, "{line}");
        }
        let refused = reason(3, "- No test on Soft-RoCE: AV2: why").expect_err("no ID");
        assert!(refused.to_string().contains("AV2"), "{refused}");
    }
}
