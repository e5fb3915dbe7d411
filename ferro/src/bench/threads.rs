//! `ferro bench rate --threads N`: messages a second of several threads in each of two processes,
//! each with an endpoint of its own domain, and a peer of its own: the sum of all. One message of a
//! thread is under way at a time.

use std::time::Duration;

use serde::Serialize;

use crate::cli::{RateOptions, RunOptions};
use crate::failure::Result;
use crate::link::Link;
use crate::message::{MAX_ITERS, Stations};
use crate::partner;
use crate::report::{Table, print_json, print_text, significant};
use crate::sizes::{self, Sizes};
use crate::stations::Asking;

/// Messages of each thread whose content is checked.
const VERIFIED_MESSAGES: u64 = 64;

/// Messages of each thread before those that count, and at least as many count.
const FEWEST: u64 = 1000;

/// How long one size takes where the user does not say how many messages.
const TIME_PER_SIZE: Duration = Duration::from_millis(500);

/// What one size gives.
#[derive(Debug, Serialize)]
struct ThreadRate {
    bench: &'static str,
    size: usize,
    threads: u32,
    path: &'static str,
    domain: String,
    /// Of each thread.
    messages: u64,
    /// 10⁶ bytes a second.
    megabytes_per_s: f64,
    messages_per_s: f64,
    blocking: bool,
    verified: bool,
}

/// Measures all that is asked for.
///
/// # Errors
///
/// When there is no partner, or a message is lost or damaged.
pub(super) fn run(options: &RateOptions, threads: u32) -> Result<()> {
    let run = &options.run;
    let sizes = match &run.sizes {
        Some(Sizes(sizes)) => sizes.clone(),
        None => vec![64],
    };
    let mut results = Vec::new();
    partner::with(run, |link| {
        for size in sizes {
            results.push(measure(link, size, threads, run)?);
        }
        Ok(())
    })?;
    match run.json {
        true => print_json(&results),
        false => print_text(&table(&results).to_string()),
    }
}

fn measure(link: &mut Link, size: usize, threads: u32, options: &RunOptions) -> Result<ThreadRate> {
    let asked = Stations {
        path: options.path,
        block: options.block,
        patience_s: options.patience,
        size,
        addresses: Vec::new(),
    };
    let mut asking = Asking::begin(link, asked, threads as usize)?;
    if options.verifies() {
        asking.stretch(VERIFIED_MESSAGES, true)?;
    }
    let warm_up = options.warmup.unwrap_or(FEWEST).max(1);
    let each_s = asking.stretch(warm_up, false)?.as_secs_f64() / warm_up as f64;
    let messages = options.iters.unwrap_or_else(|| {
        let fit = TIME_PER_SIZE.as_secs_f64() / each_s.max(1e-9);
        (fit as u64).clamp(FEWEST, MAX_ITERS)
    });
    let took = asking.stretch(messages, false)?.as_secs_f64().max(1e-9);
    let (path, domain) = (asking.carrier, asking.domain.clone());
    asking.finish()?;
    let messages_per_s = messages as f64 * f64::from(threads) / took;
    Ok(ThreadRate {
        bench: "rate",
        size,
        threads,
        path,
        domain,
        messages,
        megabytes_per_s: messages_per_s * size as f64 / 1e6,
        messages_per_s,
        blocking: options.block,
        verified: options.verifies(),
    })
}

fn table(results: &[ThreadRate]) -> Table {
    let header = [
        "SIZE",
        "THREADS",
        "M MESSAGES/s",
        "MB/s",
        "MESSAGES",
        "PATH",
    ];
    let mut table = Table::new(&header, 0);
    for r in results {
        table.row(vec![
            sizes::print(r.size),
            r.threads.to_string(),
            significant(r.messages_per_s / 1e6),
            significant(r.megabytes_per_s),
            r.messages.to_string(),
            r.path.to_owned(),
        ]);
    }
    table
}
