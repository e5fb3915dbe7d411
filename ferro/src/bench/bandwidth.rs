//! Bytes and messages a second, one way and both ways.

use std::time::Duration;

use serde::Serialize;

use super::size::{messages_for, verify};
use crate::cli::RunOptions;
use crate::failure::Result;
use crate::link::Link;
use crate::message::{Pattern, Phase};
use crate::phase::{exchange, stream};
use crate::report::{Table, significant};
use crate::sizes;

const WINDOW: u64 = 64;

/// Without `--window`, what is under way takes no more than this: beyond, a window measures how
/// fast memory is.
const WINDOW_BYTES: u64 = 4 << 20;

const SMALLEST_WINDOW: u64 = 4;

const WARMUP_TIME: Duration = Duration::from_millis(50);

/// What one size gives.
#[derive(Debug, Serialize)]
pub(crate) struct Throughput {
    bench: &'static str,
    pub(super) size: usize,
    path: &'static str,
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

/// Measures one size.
///
/// # Errors
///
/// When the partner is gone or an operation fails.
pub(super) fn measure(link: &mut Link, size: usize, options: &RunOptions) -> Result<Throughput> {
    throughput(link, size, options, "bandwidth", Pattern::Stream)
}

/// The same both ways at once: the sum of both, and the messages of one.
///
/// # Errors
///
/// As [`measure`].
pub(super) fn measure_both_ways(
    link: &mut Link,
    size: usize,
    options: &RunOptions,
) -> Result<Throughput> {
    throughput(link, size, options, "bidirectional", Pattern::Exchange)
}

pub(super) fn throughput(
    link: &mut Link,
    size: usize,
    options: &RunOptions,
    bench: &'static str,
    pattern: Pattern,
) -> Result<Throughput> {
    let mut phase = Phase {
        pattern,
        size,
        messages: 1,
        window: options.window.unwrap_or_else(|| window_for(size)),
        verify: false,
    };
    verify(link, &phase, options)?;

    let one = warm_up(link, &mut phase, options)?;
    phase.messages = options
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
        verified: options.verifies(),
    })
}

fn ask(link: &mut Link, phase: &Phase) -> Result<Duration> {
    match phase.pattern {
        Pattern::Exchange => exchange::ask(link, phase),
        _ => stream::ask(link, phase),
    }
}

fn window_for(size: usize) -> u64 {
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

/// All sizes in a table.
pub(super) fn table(results: &[Throughput]) -> Table {
    let mut table = Table::new(
        &["SIZE", "MB/s", "MiB/s", "MESSAGES/s", "MESSAGES", "WINDOW"],
        0,
    );
    for r in results {
        table.row(vec![
            sizes::print(r.size),
            significant(r.megabytes_per_s),
            significant(r.mebibytes_per_s),
            significant(r.messages_per_s),
            r.messages.to_string(),
            r.window.to_string(),
        ]);
    }
    table
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
