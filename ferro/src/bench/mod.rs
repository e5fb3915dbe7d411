//! `ferro bench`: how fast? For each size first some messages whose content is checked and whose
//! time is not taken, then a warm-up, then those that count.

mod atomics;
mod bandwidth;
mod latency;
pub(crate) mod matching;
mod one_sided;
mod rate;
pub(crate) mod regions;
mod size;
mod threads;
pub(crate) mod vectors;

use serde::Serialize;

use crate::cli::{
    AtomicOptions, BandwidthOptions, GetOptions, LatencyOptions, PlotOptions, PutOptions,
    RateOptions, RunOptions,
};
use crate::failure::Result;
use crate::link::Link;
use crate::message::{Outside, Pattern, WriteLevel};
use crate::partner;
use crate::plot::{self, Plotted};
use crate::report::{Results, Tabled};
use crate::sizes;
use one_sided::Operation;

/// Half the round trip; either side.
///
/// # Errors
///
/// When there is no partner, or a message is lost or damaged.
pub(crate) fn latency(options: &LatencyOptions) -> Result<()> {
    each_size("latency", &options.run, &options.plot, |link, size| {
        latency::measure(link, size, &options.run)
    })
}

/// Bytes a second; either side.
///
/// # Errors
///
/// As [`latency()`].
pub(crate) fn one_way(options: &BandwidthOptions) -> Result<()> {
    each_size("bandwidth", &options.run, &options.plot, |link, size| {
        bandwidth::throughput(link, size, options, "bandwidth", Pattern::Stream)
    })
}

/// Bytes a second both ways at once, the sum of both; either side.
///
/// # Errors
///
/// As [`latency()`].
pub(crate) fn both_ways(options: &BandwidthOptions) -> Result<()> {
    let what = "bidirectional bandwidth";
    each_size(what, &options.run, &options.plot, |link, size| {
        bandwidth::throughput(link, size, options, "bidirectional", Pattern::Exchange)
    })
}

/// The time of writes to the other side's memory, and bytes a second; either side.
///
/// # Errors
///
/// As [`latency()`].
pub(crate) fn put(options: &PutOptions) -> Result<()> {
    let level = match options.delivered {
        true => WriteLevel::Delivered,
        false => WriteLevel::Usual,
    };
    let BandwidthOptions { run, plot, .. } = &options.window;
    let mapped = options.memory.mapped;
    each_size("put", run, plot, |link, size| {
        one_sided::measure(link, size, (Operation::Put(level), mapped), &options.window)
    })
}

/// As [`put`], of reads.
///
/// # Errors
///
/// As [`latency()`].
pub(crate) fn get(options: &GetOptions) -> Result<()> {
    let BandwidthOptions { run, plot, .. } = &options.window;
    let mapped = options.memory.mapped;
    each_size("get", run, plot, |link, size| {
        one_sided::measure(link, size, (Operation::Get, mapped), &options.window)
    })
}

/// The time of atomic operations on the other side's memory, and operations a second; either side.
///
/// # Errors
///
/// As [`latency()`].
pub(crate) fn atomic(options: &AtomicOptions) -> Result<()> {
    let BandwidthOptions { run, plot, .. } = &options.window;
    let (what, outside) = (options.operation.name(), options.outside());
    each_size_with(what, run, plot, outside, |link, size| {
        atomics::measure(link, size, options)
    })
}

/// Messages a second; either side.
///
/// # Errors
///
/// As [`latency()`].
pub(crate) fn rate(options: &RateOptions) -> Result<()> {
    let BandwidthOptions { run, plot, .. } = &options.stream;
    match options.threads {
        Some(count) => each_size("rate", run, plot, |link, size| {
            threads::measure(link, size, count, run)
        }),
        None => each_size("rate", run, plot, |link, size| {
            rate::measure(link, size, &options.stream)
        }),
    }
}

fn each_size<R: Serialize + Tabled + Plotted>(
    what: &str,
    options: &RunOptions,
    pictures: &PlotOptions,
    measure: impl Fn(&mut Link, usize) -> Result<R>,
) -> Result<()> {
    each_size_with(what, options, pictures, None, measure)
}

/// As [`each_size`], with a partner that is outside of the library if there is an `outside`.
fn each_size_with<R: Serialize + Tabled + Plotted>(
    what: &str,
    options: &RunOptions,
    pictures: &PlotOptions,
    outside: Option<Outside>,
    measure: impl Fn(&mut Link, usize) -> Result<R>,
) -> Result<()> {
    if let Some(address) = &options.listen {
        return partner::listen(address, options.patience);
    }
    let sizes = &options.sizes.0;
    let mut results = Results::new(options.json, sizes.len());
    let mut route = String::new();
    partner::with(options, outside, |link| {
        for &size in sizes {
            let step = format!("{what} of {}", sizes::print(size));
            results.progress().step(step);
            results.add(measure(link, size)?)?;
        }
        route = link.route();
        Ok(())
    })?;
    let data = match options.verifies() {
        true => "verified",
        false => "not checked",
    };
    let waits = if options.block { "blocking" } else { "polling" };
    let results = results.finish(&format!("over {route}, {waits}, data {data}"))?;
    plot::results(&results, pictures.plot.as_deref())
}
