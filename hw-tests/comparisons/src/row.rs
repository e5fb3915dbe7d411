//! One comparison, as `scripts/bench --json` writes it.

use serde::{Deserialize, Serialize};

/// Ours against one peer, at one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) suite: String,
    pub(crate) bench: String,
    pub(crate) path: String,
    pub(crate) size: usize,
    pub(crate) peer: String,
    pub(crate) metric: String,
    pub(crate) better: String,
    pub(crate) ours: Option<f64>,
    pub(crate) theirs: Option<f64>,
    /// Ours ÷ theirs: the median of the rounds' ratios, for each round meets both in the same mood
    /// of the machine.
    pub(crate) ratio: Option<f64>,
    pub(crate) rounds: usize,
    /// Whether the cores were near each other, and not far, in all rounds that count.
    pub(crate) near: bool,
    pub(crate) ours_min: Option<f64>,
    pub(crate) theirs_min: Option<f64>,
    /// Why there are no figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) skipped: Option<String>,
}

/// The middle one; of an even number the mean of the two in the middle. `None` of none.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    match sorted.len() % 2 {
        1 => Some(upper),
        _ => Some((sorted[sorted.len() / 2 - 1] + upper) / 2.0),
    }
}

/// The smallest, `None` of none.
pub(crate) fn minimum(values: &[f64]) -> Option<f64> {
    values.iter().copied().min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(minimum(&[4.0, 1.5, 2.0]), Some(1.5));
    }

    #[test]
    fn a_skipped_row_has_null_and_a_reason() {
        let row = Row {
            suite: "shm".into(),
            bench: "tagged_latency".into(),
            path: "shm".into(),
            size: 8,
            peer: "UCX".into(),
            metric: "latency_us".into(),
            better: "lower".into(),
            ours: Some(0.1),
            theirs: None,
            ratio: None,
            rounds: 7,
            near: true,
            ours_min: Some(0.1),
            theirs_min: None,
            skipped: Some("not installed".into()),
        };
        let json = serde_json::to_value(&row).unwrap();
        assert!(json["theirs"].is_null());
        assert_eq!(json["skipped"], "not installed");
        assert_eq!(serde_json::from_value::<Row>(json).unwrap(), row);
    }
}
