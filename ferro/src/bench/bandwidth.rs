//! Bytes and messages a second, one way and both ways.

use std::time::Duration;

use serde::Serialize;

use super::size::{messages_for, verify};
use crate::cli::{BandwidthOptions, RunOptions};
use crate::failure::Result;
use crate::link::Link;
use crate::message::{Pattern, Phase};
use crate::phase::{exchange, stream};
use crate::plot::{Plotted, Point};
use crate::report::{TableColumn, Tabled, significant};
use crate::sizes;

const WINDOW: u64 = 64;

/// Without `--window`, what is under way takes no more than this: beyond, a window measures how
/// fast memory is.
const WINDOW_BYTES: u64 = 4 << 20;

const SMALLEST_WINDOW: u64 = 4;

const WARMUP_TIME: Duration = Duration::from_millis(50);

/// The throughput of one size.
#[derive(Debug, Serialize)]
pub(crate) struct Throughput {
    bench: &'static str,
    pub(super) size: usize,
    pub(super) path: &'static str,
    domain: String,
    pub(super) messages: u64,
    pub(super) window: u64,
    /// 10⁶ bytes a second.
    megabytes_per_s: f64,
    /// 2²⁰ bytes a second.
    mebibytes_per_s: f64,
    pub(super) messages_per_s: f64,
    blocking: bool,
    verified: bool,
}

/// Measures one size. Both ways at once the result is the sum of both, with the count of messages
/// of one.
///
/// # Errors
///
/// When the partner is gone or an operation fails.
pub(super) fn throughput(
    link: &mut Link,
    size: usize,
    options: &BandwidthOptions,
    bench: &'static str,
    pattern: Pattern,
) -> Result<Throughput> {
    let BandwidthOptions { run, window, .. } = options;
    let mut phase = Phase {
        pattern,
        size,
        messages: 1,
        window: window.unwrap_or_else(|| window_for(size)),
        verify: false,
        mapped: false,
    };
    verify(link, &phase, run)?;

    let one = warm_up(link, &mut phase, run)?;
    phase.messages = run
        .iters
        .unwrap_or_else(|| messages_for(one).max(2 * phase.window));
    let took = ask(link, &phase)?.as_secs_f64().max(1e-9);
    let ways = if pattern == Pattern::Exchange { 2 } else { 1 };
    let messages = (ways * phase.messages) as f64;
    let bytes_per_s = size as f64 * messages / took;
    Ok(Throughput {
        bench,
        size,
        path: link.carrier(),
        domain: link.domain_name().to_owned(),
        messages: phase.messages,
        window: phase.window,
        megabytes_per_s: bytes_per_s / 1e6,
        mebibytes_per_s: bytes_per_s / f64::from(1 << 20),
        messages_per_s: messages / took,
        blocking: link.blocks(),
        verified: run.verifies(),
    })
}

fn ask(link: &mut Link, phase: &Phase) -> Result<Duration> {
    match phase.pattern {
        Pattern::Exchange => exchange::ask(link, phase),
        _ => stream::ask(link, phase),
    }
}

pub(super) fn window_for(size: usize) -> u64 {
    (WINDOW_BYTES / size.max(1) as u64).clamp(SMALLEST_WINDOW, WINDOW)
}

/// Warms up, and returns the time that a message takes.
fn warm_up(link: &mut Link, phase: &mut Phase, options: &RunOptions) -> Result<Duration> {
    if let Some(asked) = options.warmup {
        phase.messages = asked.max(1);
        return Ok(ask(link, phase)? / phase.messages.min(u64::from(u32::MAX)) as u32);
    }
    phase.messages = 2 * phase.window;
    let mut total = Duration::ZERO;
    loop {
        let took = ask(link, phase)?;
        total += took;
        if total >= WARMUP_TIME {
            return Ok(took / phase.messages.min(u64::from(u32::MAX)) as u32);
        }
        phase.messages *= 2;
    }
}

impl Tabled for Throughput {
    const COLUMNS: &'static [TableColumn] = &[
        TableColumn::number("SIZE", 5),
        TableColumn::number("MB/s", 7),
        TableColumn::number("MiB/s", 7),
        TableColumn::number("MESSAGES/s", 0),
        TableColumn::number("MESSAGES", 10),
        TableColumn::number("WINDOW", 0),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            sizes::print(self.size),
            significant(self.megabytes_per_s),
            significant(self.mebibytes_per_s),
            significant(self.messages_per_s),
            self.messages.to_string(),
            self.window.to_string(),
        ]
    }
}

impl Plotted for Throughput {
    fn points(&self) -> Vec<Point> {
        vec![Point {
            picture: self.bench.to_owned(),
            caption: format!("{}: {}", self.path, self.bench),
            axes: ("message size".to_owned(), "MB/s".to_owned()),
            line: self.path.to_owned(),
            at: (self.size as f64, self.megabytes_per_s),
        }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_stay_in_the_cache_but_for_the_largest_messages() {
        assert_eq!(
            [0, 8, 64 << 10, 128 << 10, 1 << 20, 1 << 30].map(window_for),
            [64, 64, 64, 32, 4, 4]
        );
    }
}
