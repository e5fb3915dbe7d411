//! Half the round trip. Where reading the clock is not small beside a message, the clock is read
//! around batches of round trips: a sample is the mean of a batch, and the statistics are those of
//! the samples.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::size::{messages_for, verify};
use crate::cli::RunOptions;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::message::{Pattern, Phase};
use crate::phase::echo;
use crate::plot::{Plotted, Point};
use crate::report::{TableColumn, Tabled, significant};
use crate::sizes;

/// Round trips before those that count, without `--warmup`: at least these, and for at least the
/// time.
const WARMUP_MESSAGES: u64 = 20;
const WARMUP_TIME: Duration = Duration::from_millis(50);

/// The clock may take this part of a sample at most.
const CLOCK_SHARE: f64 = 0.01;

const MAX_BATCH: u64 = 100;

/// The histogram's longest half round trip: a minute.
pub(super) const MAX_PS: u64 = 60_000_000_000_000;

/// The latency of one size, in µs for half a round trip.
#[derive(Debug, Serialize)]
pub(crate) struct Latency {
    bench: &'static str,
    size: usize,
    path: &'static str,
    domain: String,
    round_trips: u64,
    batch: u64,
    min_us: f64,
    median_us: f64,
    mean_us: f64,
    p99_us: f64,
    blocking: bool,
    verified: bool,
}

/// Measures one size.
///
/// # Errors
///
/// When the partner is gone or an operation fails.
pub(super) fn measure(link: &mut Link, size: usize, options: &RunOptions) -> Result<Latency> {
    let mut phase = Phase {
        pattern: Pattern::Echo,
        size,
        messages: WARMUP_MESSAGES,
        window: 1,
        verify: false,
        mapped: false,
    };
    verify(link, &phase, options)?;

    let round_trip = warm_up(link, &mut phase, options)?;
    phase.messages = options.iters.unwrap_or_else(|| messages_for(round_trip));
    let batch = batch_for(round_trip).min(phase.messages);

    let mut half_ps = Histogram::<u64>::new_with_bounds(1, MAX_PS, 3)
        .map_err(|e| Failure::io("make a histogram", e))?;
    let mut total = Duration::ZERO;
    echo::ask(link, &phase, batch, &mut |took, count| {
        total += took;
        // The last batch may be a short one: few round trips say less.
        if count == batch {
            half_ps.saturating_record((took.as_nanos() * 1000 / u128::from(2 * count)) as u64);
        }
    })?;
    let us = |ps: u64| ps as f64 / 1e6;
    Ok(Latency {
        bench: "latency",
        size,
        path: link.carrier(),
        domain: link.domain_name().to_owned(),
        round_trips: phase.messages,
        batch,
        min_us: us(half_ps.min()),
        median_us: us(half_ps.value_at_quantile(0.5)),
        mean_us: total.as_secs_f64() * 1e6 / (2 * phase.messages) as f64,
        p99_us: us(half_ps.value_at_quantile(0.99)),
        blocking: link.blocks(),
        verified: options.verifies(),
    })
}

/// Warms up, and returns the time of a round trip.
fn warm_up(link: &mut Link, phase: &mut Phase, options: &RunOptions) -> Result<Duration> {
    let asked = options.warmup.map(|n| n.max(1));
    let (mut took, mut count) = (Duration::ZERO, 0);
    phase.messages = asked.unwrap_or(WARMUP_MESSAGES);
    loop {
        let (mut last, mut n) = (Duration::ZERO, 0);
        echo::ask(link, phase, phase.messages, &mut |t, c| (last, n) = (t, c))?;
        took += last;
        count += n;
        if asked.is_some() || took >= WARMUP_TIME {
            // The first ones may have waited for a connection: the last lot says how long it takes
            // now.
            return Ok(last / n.max(1) as u32);
        }
        phase.messages = count;
    }
}

/// Round trips between two looks at the clock.
pub(super) fn batch_for(round_trip: Duration) -> u64 {
    const LOOKS: u32 = 1000;
    let start = Instant::now();
    for _ in 0..LOOKS {
        std::hint::black_box(Instant::now());
    }
    let clock = start.elapsed() / LOOKS;
    batch_of(clock, round_trip)
}

fn batch_of(clock: Duration, round_trip: Duration) -> u64 {
    let share = clock.as_secs_f64() / round_trip.as_secs_f64().max(1e-9);
    ((share / CLOCK_SHARE).ceil() as u64).clamp(1, MAX_BATCH)
}

impl Tabled for Latency {
    const COLUMNS: &'static [TableColumn] = &[
        TableColumn::number("SIZE", 5),
        TableColumn::number("MIN µs", 0),
        TableColumn::number("MEDIAN µs", 0),
        TableColumn::number("MEAN µs", 0),
        TableColumn::number("P99 µs", 0),
        TableColumn::number("ROUND TRIPS", 0),
        TableColumn::number("BATCH", 0),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            sizes::print(self.size),
            significant(self.min_us),
            significant(self.median_us),
            significant(self.mean_us),
            significant(self.p99_us),
            self.round_trips.to_string(),
            self.batch.to_string(),
        ]
    }
}

impl Plotted for Latency {
    fn points(&self) -> Vec<Point> {
        let statistics = [
            ("minimum", self.min_us),
            ("median", self.median_us),
            ("99th percentile", self.p99_us),
        ];
        let point = |(line, us): (&str, f64)| Point {
            picture: self.bench.to_owned(),
            caption: format!("{}: half a round trip", self.path),
            axes: ("message size".to_owned(), "µs".to_owned()),
            line: line.to_owned(),
            at: (self.size as f64, us),
        };
        statistics.map(point).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_stays_small_beside_a_sample() {
        let ns = Duration::from_nanos;
        assert_eq!(batch_of(ns(25), ns(120)), 21);
        assert_eq!(batch_of(ns(25), ns(50_000)), 1);
        assert_eq!(batch_of(ns(1000), ns(100)), MAX_BATCH);
        assert_eq!(batch_of(ns(25), ns(0)), MAX_BATCH);
    }
}
