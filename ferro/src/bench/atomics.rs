//! `ferro bench atomic`: the time of an atomic operation on the other process's memory, until its
//! completion, and operations a second with a window of them under way. Each ends with the target's
//! reply, those without a result too. In mapped memory it is over when its call returns.

use std::time::Duration;

use serde::Serialize;

use super::bandwidth::window_for;
use super::one_sided::{rate, times};
use super::size::verify;
use crate::cli::AtomicOptions;
use crate::failure::Result;
use crate::link::Link;
use crate::message::{AtomicKind, Pattern, Phase};
use crate::phase::atomics::ask;
use crate::plot::{Plotted, Point};
use crate::report::{TableColumn, Tabled, significant};
use crate::sizes;

/// The cost of an operation of one size.
#[derive(Debug, Serialize)]
pub(super) struct AtomicCost {
    bench: &'static str,
    operation: AtomicKind,
    size: usize,
    path: &'static str,
    domain: String,
    operations: u64,
    min_us: f64,
    median_us: f64,
    p99_us: f64,
    window: u64,
    operations_per_s: f64,
    blocking: bool,
    /// Time between two calls of a target that is outside of the library, in microseconds; 0: it
    /// makes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    outside_us: Option<u64>,
    verified: bool,
}

/// Measures one size.
///
/// # Errors
///
/// When the partner is gone, an operation fails, or the sum of all is wrong.
pub(super) fn measure(link: &mut Link, size: usize, options: &AtomicOptions) -> Result<AtomicCost> {
    let (run, operation) = (&options.window.run, options.operation);
    let mapped = options.memory.mapped;
    let window = options.window.window.unwrap_or_else(|| window_for(size));
    let one = Phase {
        pattern: Pattern::Atomic(operation),
        size,
        messages: 1,
        window: 1,
        verify: false,
        mapped,
    };
    let windowed = Phase { window, ..one };
    verify(link, &windowed, run)?;

    let mut timing = |phase: &Phase, batch, record: &mut dyn FnMut(Duration, u64)| {
        ask(link, phase, operation, batch, record)
    };
    let alone = times(one, run, 1, &mut timing)?;
    let operations_per_s = rate(windowed, run, &alone, &mut timing)?;
    Ok(AtomicCost {
        bench: if mapped { "atomic_mapped" } else { "atomic" },
        operation,
        size,
        path: link.carrier(),
        domain: link.domain_name().to_owned(),
        operations: alone.operations,
        min_us: alone.us(0.0),
        median_us: alone.us(0.5),
        p99_us: alone.us(0.99),
        window,
        operations_per_s,
        blocking: run.block,
        outside_us: options.outside,
        verified: run.verifies(),
    })
}

impl Tabled for AtomicCost {
    const COLUMNS: &'static [TableColumn] = &[
        TableColumn::words("OPERATION", 12),
        TableColumn::number("SIZE", 5),
        TableColumn::number("MIN µs", 0),
        TableColumn::number("MEDIAN µs", 0),
        TableColumn::number("P99 µs", 0),
        TableColumn::number("OPERATIONS/s", 0),
        TableColumn::number("WINDOW", 0),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.operation.name().to_owned(),
            sizes::print(self.size),
            significant(self.min_us),
            significant(self.median_us),
            significant(self.p99_us),
            significant(self.operations_per_s),
            self.window.to_string(),
        ]
    }
}

impl Plotted for AtomicCost {
    fn points(&self) -> Vec<Point> {
        let point = |picture: &str, unit: &str, line: &str, value| Point {
            picture: picture.to_owned(),
            caption: format!("{}: {}", self.path, self.operation.name()),
            axes: ("size".to_owned(), unit.to_owned()),
            line: line.to_owned(),
            at: (self.size as f64, value),
        };
        vec![
            point("atomic-time", "µs", "median", self.median_us),
            point("atomic", "operations/s", self.path, self.operations_per_s),
        ]
    }
}
