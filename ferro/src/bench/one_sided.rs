//! `ferro bench put` and `ferro bench get`: the time of a write to the other process's memory, or
//! of a read of it, and bytes a second with a window of them under way.
//!
//! The time of an operation ends with its completion; writes have `FI_DELIVERY_COMPLETE` on
//! request.
//! The time of a polled write has no completion in it: each side waits for the bytes of the
//! other's write in its own memory, and half the round trip is taken, as by perftest's
//! `ib_write_lat`.

use std::time::Duration;

use ferrofabric_contracts::types::RmaKind;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::bandwidth::window_for;
use super::latency::{MAX_PS, batch_for};
use super::size::{messages_for, verify};
use crate::cli::{BandwidthOptions, RunOptions};
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::message::{Pattern, Phase, WriteLevel};
use crate::phase::one_sided::{ask, ask_polled};
use crate::plot::{Plotted, Point};
use crate::report::{TableColumn, Tabled, significant};
use crate::sizes;

/// Operations before those that count, and for at least the time.
const WARMUP_OPERATIONS: u64 = 20;
const WARMUP_TIME: Duration = Duration::from_millis(50);

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Put(WriteLevel),
    Get,
}

impl Operation {
    /// Its name in results.
    fn name(self, mapped: bool) -> &'static str {
        match (self, mapped) {
            (Self::Put(WriteLevel::Usual), false) => "put",
            (Self::Put(WriteLevel::Usual), true) => "put_mapped",
            (Self::Put(WriteLevel::Delivered), false) => "put_delivered",
            (Self::Put(WriteLevel::Delivered), true) => "put_delivered_mapped",
            (Self::Get, false) => "get",
            (Self::Get, true) => "get_mapped",
        }
    }
}

/// The cost of one size.
#[derive(Debug, Serialize)]
pub(super) struct OneSided {
    bench: &'static str,
    size: usize,
    path: &'static str,
    domain: String,
    operations: u64,
    min_us: f64,
    median_us: f64,
    p99_us: f64,
    /// Half the round trip of polled writes; of `put` alone, without `--block`.
    #[serde(skip_serializing_if = "Option::is_none")]
    polled_us: Option<f64>,
    window: u64,
    /// 10⁶ bytes a second.
    megabytes_per_s: f64,
    /// 2²⁰ bytes a second.
    mebibytes_per_s: f64,
    operations_per_s: f64,
    blocking: bool,
    verified: bool,
}

/// Measures one size. `mapped`: the memory is such that peers map it.
///
/// # Errors
///
/// When the partner is gone or an operation fails.
pub(super) fn measure(
    link: &mut Link,
    size: usize,
    (operation, mapped): (Operation, bool),
    options: &BandwidthOptions,
) -> Result<OneSided> {
    let (pattern, kind) = match operation {
        Operation::Put(level) => (Pattern::Put(level), RmaKind::Write),
        Operation::Get => (Pattern::Get, RmaKind::Read),
    };
    let run = &options.run;
    let window = options.window.unwrap_or_else(|| window_for(size));
    let one = Phase {
        pattern,
        size,
        messages: 1,
        window: 1,
        verify: false,
        mapped,
    };
    let windowed = Phase { window, ..one };
    verify(link, &windowed, run)?;

    let mut timing = |phase: &Phase, batch, record: &mut dyn FnMut(Duration, u64)| {
        ask(link, phase, kind, batch, record)
    };
    let alone = times(one, run, 1, &mut timing)?;
    let per_s = rate(windowed, run, &alone, &mut timing)?;
    let polled_us = match operation {
        Operation::Put(level) if size != 0 && !run.block => {
            let phase = Phase {
                pattern: Pattern::PolledPut(level),
                ..one
            };
            let polled = times(phase, run, 2, &mut |phase, batch, record| {
                ask_polled(link, phase, batch, record)
            })?;
            Some(polled.us(0.5))
        }
        _ => None,
    };
    Ok(OneSided {
        bench: operation.name(mapped),
        size,
        path: link.carrier(),
        domain: link.domain_name().to_owned(),
        operations: alone.operations,
        min_us: alone.us(0.0),
        median_us: alone.us(0.5),
        p99_us: alone.us(0.99),
        polled_us,
        window,
        megabytes_per_s: size as f64 * per_s / 1e6,
        mebibytes_per_s: size as f64 * per_s / f64::from(1 << 20),
        operations_per_s: per_s,
        blocking: run.block,
        verified: run.verifies(),
    })
}

/// The times of operations, one at a time.
pub(super) struct OperationTimes {
    ps: Histogram<u64>,
    pub(super) operations: u64,
    mean: Duration,
}

impl OperationTimes {
    pub(super) fn us(&self, quantile: f64) -> f64 {
        self.ps.value_at_quantile(quantile) as f64 / 1e6
    }
}

/// A phase, its batch, and the function that gets the time of each batch.
pub(super) type Timing<'a> =
    &'a mut dyn FnMut(&Phase, u64, &mut dyn FnMut(Duration, u64)) -> Result<()>;

/// Warms up, then takes the times of the phase's operations, each of which is one of `ways` ways.
pub(super) fn times(
    mut phase: Phase,
    run: &RunOptions,
    ways: u32,
    timing: Timing<'_>,
) -> Result<OperationTimes> {
    let (mut total, mut each) = (Duration::ZERO, Duration::ZERO);
    phase.messages = run.warmup.unwrap_or(WARMUP_OPERATIONS).max(1);
    loop {
        timing(&phase, phase.messages, &mut |time, count| {
            total += time;
            each = time / count.min(u64::from(u32::MAX)) as u32;
        })?;
        if run.warmup.is_some() || total >= WARMUP_TIME {
            break;
        }
        phase.messages *= 2;
    }
    phase.messages = run.iters.unwrap_or_else(|| messages_for(each));
    let batch = batch_for(each).min(phase.messages);
    let mut ps = Histogram::<u64>::new_with_bounds(1, MAX_PS, 3)
        .map_err(|e| Failure::io("make a histogram", e))?;
    let mut total = Duration::ZERO;
    timing(&phase, batch, &mut |time, count| {
        total += time;
        // The last batch may be a short one: few operations say less.
        if count == batch {
            let one = time.as_nanos() * 1000 / u128::from(u64::from(ways) * count);
            ps.saturating_record(one as u64);
        }
    })?;
    Ok(OperationTimes {
        ps,
        operations: phase.messages,
        mean: total / (phase.messages.min(u64::from(u32::MAX)) as u32),
    })
}

/// Operations a second with the window of the phase under way.
pub(super) fn rate(
    windowed: Phase,
    run: &RunOptions,
    alone: &OperationTimes,
    timing: Timing<'_>,
) -> Result<f64> {
    let window = windowed.window;
    let messages = (run.iters).unwrap_or_else(|| messages_for(alone.mean).max(2 * window));
    let mut took = Duration::ZERO;
    for count in [messages.min(4 * window), messages] {
        let phase = Phase {
            messages: count,
            ..windowed
        };
        // The first of the two warms up.
        timing(&phase, count, &mut |time, _| took = time)?;
    }
    Ok(messages as f64 / took.as_secs_f64().max(1e-9))
}

impl Tabled for OneSided {
    const COLUMNS: &'static [TableColumn] = &[
        TableColumn::number("SIZE", 5),
        TableColumn::number("MIN µs", 0),
        TableColumn::number("MEDIAN µs", 0),
        TableColumn::number("P99 µs", 0),
        TableColumn::number("POLLED µs", 0),
        TableColumn::number("MB/s", 7),
        TableColumn::number("MiB/s", 7),
        TableColumn::number("OPERATIONS/s", 0),
        TableColumn::number("WINDOW", 0),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            sizes::print(self.size),
            significant(self.min_us),
            significant(self.median_us),
            significant(self.p99_us),
            self.polled_us.map_or("-".to_owned(), significant),
            significant(self.megabytes_per_s),
            significant(self.mebibytes_per_s),
            significant(self.operations_per_s),
            self.window.to_string(),
        ]
    }
}

impl Plotted for OneSided {
    fn points(&self) -> Vec<Point> {
        let mut lines = vec![("completed", self.median_us)];
        lines.extend(self.polled_us.map(|us| ("polled, half a round trip", us)));
        let time = lines.into_iter().map(|(line, us)| Point {
            picture: format!("{}-time", self.bench),
            caption: format!("{}: {}", self.path, self.bench),
            axes: ("size".to_owned(), "µs".to_owned()),
            line: line.to_owned(),
            at: (self.size as f64, us),
        });
        let bandwidth = Point {
            picture: self.bench.to_owned(),
            caption: format!("{}: {}", self.path, self.bench),
            axes: ("size".to_owned(), "MB/s".to_owned()),
            line: self.path.to_owned(),
            at: (self.size as f64, self.megabytes_per_s),
        };
        time.chain([bandwidth]).collect()
    }
}
