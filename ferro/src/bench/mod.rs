//! `ferro bench`: how fast? For each size first some messages whose content is checked and whose
//! time is not taken, then a warm-up, then those that count.

mod bandwidth;
mod latency;
pub(crate) mod matching;
mod rate;
mod size;
mod threads;
pub(crate) mod vectors;

use crate::cli::{RateOptions, RunOptions};
use crate::failure::Result;
use crate::link::Link;
use crate::partner;
use crate::report::{print_json, print_text};
use crate::sizes::Sizes;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Half the round trip.
    Latency,
    /// Bytes a second.
    Bandwidth,
    /// Bytes a second, both ways at once.
    BothWays,
    /// Messages a second.
    Rate,
}

/// Runs either side.
///
/// # Errors
///
/// When there is no partner, or a message is lost or damaged.
pub(crate) fn run(measure: Measure, options: &RunOptions) -> Result<()> {
    if options.listen.is_some() {
        return partner::listen(options);
    }
    match measure {
        Measure::Latency => measured(
            options,
            &[8, 4 << 10, 64 << 10, 1 << 20],
            latency::measure,
            latency::table,
        ),
        Measure::Bandwidth => measured(
            options,
            &[4 << 10, 64 << 10, 1 << 20],
            bandwidth::measure,
            bandwidth::table,
        ),
        Measure::BothWays => measured(
            options,
            &[4 << 10, 64 << 10, 1 << 20],
            bandwidth::measure_both_ways,
            bandwidth::table,
        ),
        Measure::Rate => measured(options, &[8], rate::measure, rate::table),
    }
}

/// Runs either side of a measurement of messages a second.
///
/// # Errors
///
/// As [`run`].
pub(crate) fn rate(options: &RateOptions) -> Result<()> {
    match options.threads {
        Some(count) if options.run.listen.is_none() => threads::run(options, count),
        _ => run(Measure::Rate, &options.run),
    }
}

fn measured<R: serde::Serialize>(
    options: &RunOptions,
    default_sizes: &[usize],
    measure: fn(&mut Link, usize, &RunOptions) -> Result<R>,
    table: fn(&[R]) -> crate::report::Table,
) -> Result<()> {
    let sizes = match &options.sizes {
        Some(Sizes(sizes)) => sizes,
        None => default_sizes,
    };
    let mut results = Vec::new();
    let mut route = String::new();
    partner::with(options, |link| {
        for size in sizes {
            results.push(measure(link, *size, options)?);
        }
        route = link.route();
        Ok(())
    })?;
    if options.json {
        return print_json(&results);
    }
    let data = if options.verifies() {
        "verified"
    } else {
        "not checked"
    };
    let waits = if options.block { "blocking" } else { "polling" };
    print_text(&format!(
        "{}over {route}, {waits}, data {data}\n",
        table(&results)
    ))
}
