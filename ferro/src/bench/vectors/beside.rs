//! `ferro bench av --beside`: the slowdown of a sender at full speed by a thread on another core
//! that inserts and removes addresses in the sender's address vector. One thread drives sender and
//! receiver through shared memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ferrofabric_contracts::addr::NATIVE_LEN;
use ferrofabric_contracts::info::Threading;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::fabric::Av;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::names::name;
use crate::bench::matching::endpoints::Endpoints;
use crate::bench::matching::median;
use crate::cli::VectorOptions;
use crate::cores;
use crate::failure::{Failure, Result};
use crate::plot::{self, Plotted, Point};
use crate::progress::StepProgress;
use crate::report::{Results, TableColumn, Tabled, significant};
use crate::workload::matching::{Pair, Receive};

/// Addresses that come and go while messages are sent.
const ADDRESSES: usize = 100_000;

/// Addresses of one call.
const CALLS: [usize; 3] = [1, 1000, ADDRESSES];

/// Messages of a stretch, at least.
const MESSAGES: usize = 200_000;

/// How long a stretch may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// A message that takes longer counts as one that takes as long.
const LONGEST_NS: u64 = 10_000_000_000;

const PERCENTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

/// A percentile of the times of messages, without insertions and with them.
#[derive(Debug, Serialize)]
struct Noticed {
    bench: &'static str,
    path: &'static str,
    /// Addresses of one call.
    call: usize,
    percentile: &'static str,
    alone_ns: f64,
    beside_ns: f64,
    /// The median of the rounds' ratios.
    ratio: f64,
    /// The longest time of a message in any round.
    longest_ns: f64,
    /// The time of an insertion and its removal in the other thread.
    insert_remove_ns: f64,
}

/// Measures each number of addresses of a call.
///
/// # Errors
///
/// When there is no domain of the path, or a call fails.
pub(super) fn run(options: &VectorOptions) -> Result<()> {
    let (mine, others) = cores::pair()?;
    if mine == others {
        return Err(Failure::new("--beside: two cores are wanted"));
    }
    cores::pin(&[mine])?;
    let names: Vec<_> = (0..ADDRESSES).map(|i| name(i).to_bytes()).collect();
    let mut results = Results::new(options.json, CALLS.len());
    for call in CALLS {
        results.progress().step(step(call));
        for result in measure(options, others, (&names, call), results.progress())? {
            results.add(result)?;
        }
    }
    let results = results.finish("")?;
    plot::results(&results, options.plot.plot.as_deref())
}

fn step(call: usize) -> String {
    format!("av beside a thread with {call} addresses a call")
}

fn measure(
    options: &VectorOptions,
    others: usize,
    (names, call): (&[[u8; NATIVE_LEN]], usize),
    progress: &StepProgress,
) -> Result<Vec<Noticed>> {
    let mut pair = Endpoints::open(options.path, Threading::Safe)?;
    let path = pair.carrier();
    let av = pair.sender_av().clone();
    // The first of everything takes longer.
    stretch(&mut pair, || false)?;
    let (mut alone, mut beside, mut churned) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        progress.part(format!(
            "{}: round {round} of {}",
            step(call),
            options.rounds
        ));
        alone.push(stretch(&mut pair, || false)?);
        let (over, times) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (sent, took) = std::thread::scope(|scope| {
            let churn = scope.spawn(|| {
                cores::pin(&[others])?;
                churn(&*av, names, call, &over, &times)
            });
            let sent = stretch(&mut pair, || {
                times.load(Ordering::Relaxed) == 0 && !churn.is_finished()
            });
            over.store(true, Ordering::Relaxed);
            let took = churn.join();
            (sent, took)
        });
        let took = took.map_err(|_| Failure::new("the inserting thread panicked"))??;
        beside.push(sent?);
        churned.push(took);
    }
    let insert_remove_ns = median(&mut churned);
    let at = |all: &[Histogram<u64>], quantile| -> Vec<f64> {
        let of = |one: &Histogram<u64>| one.value_at_quantile(quantile) as f64;
        all.iter().map(of).collect()
    };
    let longest = beside.iter().map(Histogram::max).max().unwrap_or_default();
    let noticed = |(percentile, quantile): (&'static str, f64)| {
        let (mut without, mut with) = (at(&alone, quantile), at(&beside, quantile));
        let mut ratios: Vec<f64> = with.iter().zip(&without).map(|(w, a)| w / a).collect();
        Noticed {
            bench: "av_beside",
            path,
            call,
            percentile,
            alone_ns: median(&mut without),
            beside_ns: median(&mut with),
            ratio: median(&mut ratios),
            longest_ns: longest as f64,
            insert_remove_ns,
        }
    };
    Ok(PERCENTILES.map(noticed).into())
}

/// Sends [`MESSAGES`], and more while `more` returns true. Returns the time of each, from the call
/// until its receipt.
fn stretch(pair: &mut Endpoints, more: impl Fn() -> bool) -> Result<Histogram<u64>> {
    let mut times = Histogram::<u64>::new_with_max(LONGEST_NS, 3)
        .map_err(|e| Failure::io("make a histogram", e))?;
    let until = Instant::now() + PATIENCE;
    let mut sent = 0;
    while sent < MESSAGES || more() {
        pair.post(Receive {
            any_source: false,
            tag: 1,
            ignore: 0,
        })?;
        let start = Instant::now();
        pair.send(1)?;
        pair.reap(1)?;
        times.saturating_record(start.elapsed().as_nanos() as u64);
        sent += 1;
        if sent % MESSAGES == 0 && Instant::now() > until {
            return Err(Failure::new("the insertions did not come to their end"));
        }
    }
    Ok(times)
}

/// Inserts all addresses and removes them, again and again until it is over, once at least. Returns
/// the nanoseconds of an address.
fn churn(
    av: &dyn Av,
    names: &[[u8; NATIVE_LEN]],
    call: usize,
    over: &AtomicBool,
    times: &AtomicUsize,
) -> Result<f64> {
    let mut addrs = Vec::with_capacity(names.len());
    let start = Instant::now();
    let mut done = 0;
    while done == 0 || !over.load(Ordering::Relaxed) {
        for names in names.chunks(call) {
            let mut names = names.iter().map(|name| &name[..]);
            let mut failed = None;
            av.insert_all(&mut names, &mut |_, one| match one {
                Ok(addr) => addrs.push(addr),
                Err(error) => failed = Some(error),
            })?;
            if let Some(error) = failed {
                return Err(error.into());
            }
        }
        remove(av, &mut addrs)?;
        done = times.fetch_add(1, Ordering::Relaxed) + 1;
    }
    Ok(start.elapsed().as_nanos() as f64 / (done * names.len()) as f64)
}

fn remove(av: &dyn Av, addrs: &mut Vec<FiAddr>) -> Result<()> {
    for addr in addrs.drain(..) {
        av.remove(addr)?;
    }
    Ok(())
}

impl Tabled for Noticed {
    const COLUMNS: &'static [TableColumn] = &[
        TableColumn::number("PERCENTILE", 0),
        TableColumn::number("A CALL", 0),
        TableColumn::number("ALONE NS", 0),
        TableColumn::number("BESIDE NS", 0),
        TableColumn::number("RATIO", 6),
        TableColumn::number("LONGEST NS", 0),
        TableColumn::number("INS+REM NS", 0),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.percentile.to_owned(),
            self.call.to_string(),
            significant(self.alone_ns),
            significant(self.beside_ns),
            format!("{:.2}", self.ratio),
            significant(self.longest_ns),
            significant(self.insert_remove_ns),
        ]
    }
}

impl Plotted for Noticed {
    fn points(&self) -> Vec<Point> {
        let point = |(when, ns): (&str, f64)| Point {
            picture: "av-beside".to_owned(),
            caption: format!("{}: a message beside insertions", self.path),
            axes: ("addresses of a call".to_owned(), "ns".to_owned()),
            line: format!("{}, {when}", self.percentile),
            at: (self.call as f64, ns),
        };
        [("alone", self.alone_ns), ("beside", self.beside_ns)]
            .map(point)
            .into()
    }
}
