//! `ferro bench rate --threads N`: messages a second of several threads in each of two processes,
//! each with an endpoint of its own domain, and a peer of its own: the sum of all. One message of a
//! thread is under way at a time.

use serde::Serialize;

use super::rate::rate_point;
use super::size::TIME_PER_SIZE;
use crate::cli::RunOptions;
use crate::failure::Result;
use crate::link::Link;
use crate::message::{MAX_ITERS, Stations};
use crate::plot::{Plotted, Point};
use crate::report::{TableColumn, Tabled, significant};
use crate::sizes;
use crate::stations::Asking;

/// Messages of each thread whose content is checked.
const VERIFIED_MESSAGES: u64 = 64;

/// Messages of each thread before those that count, and at least as many count.
const FEWEST: u64 = 1000;

/// The rate of one size.
#[derive(Debug, Serialize)]
pub(super) struct ThreadRate {
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

/// Measures one size.
///
/// # Errors
///
/// When a message is lost or damaged, or the partner is gone.
pub(super) fn measure(
    link: &mut Link,
    size: usize,
    threads: u32,
    options: &RunOptions,
) -> Result<ThreadRate> {
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

impl Tabled for ThreadRate {
    const COLUMNS: &'static [TableColumn] = &[
        TableColumn::number("SIZE", 5),
        TableColumn::number("THREADS", 0),
        TableColumn::number("M MESSAGES/s", 0),
        TableColumn::number("MB/s", 7),
        TableColumn::number("MESSAGES", 10),
        TableColumn::number("PATH", 5),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            sizes::print(self.size),
            self.threads.to_string(),
            significant(self.messages_per_s / 1e6),
            significant(self.megabytes_per_s),
            self.messages.to_string(),
            self.path.to_owned(),
        ]
    }
}

impl Plotted for ThreadRate {
    fn points(&self) -> Vec<Point> {
        let line = format!("{}, {} threads", self.path, self.threads);
        vec![rate_point(self.size, &line, self.messages_per_s)]
    }
}
