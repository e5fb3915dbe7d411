//! `ferro bench match`: what matching costs with many receives posted, or many messages unexpected.
//! Two endpoints of one thread, so that no distance of cores comes into it; all depths are measured
//! in turn in one run, so that the ratio of two counts.

pub(super) mod endpoints;

use std::time::Duration;

use ferrofabric_contracts::info::Threading;
use serde::Serialize;

use crate::cli::MatchOptions;
use crate::failure::Result;
use crate::report::{Table, print_json, print_text, significant};
use crate::sizes::Sizes;
use crate::workload::matching::{self as workload, Queue, sample};
use endpoints::Endpoints;

const DEPTHS: [usize; 4] = [10, 1000, 10_000, 100_000];

/// Of one depth at a stretch.
const STRETCH: Duration = Duration::from_millis(10);

/// What one depth gives.
#[derive(Debug, Serialize)]
struct Matching {
    bench: &'static str,
    side: &'static str,
    kind: &'static str,
    order: &'static str,
    depth: usize,
    path: &'static str,
    entries: usize,
    ns_per_op: f64,
    min_ns: f64,
    /// To the first depth: the median of the rounds' ratios.
    ratio: f64,
}

/// Measures all that is asked for.
///
/// # Errors
///
/// When there is no domain of the path, or a call fails.
pub(crate) fn run(options: &MatchOptions) -> Result<()> {
    let depths = match &options.depths {
        Some(Sizes(depths)) => depths.clone(),
        None => DEPTHS.to_vec(),
    };
    let mut results = Vec::new();
    for side in chosen(options.side, workload::Side::ALL) {
        for kind in chosen(options.kind, workload::Kind::ALL) {
            for order in chosen(options.order, workload::Order::ALL) {
                results.extend(measure(options, (side, kind, order), &depths)?);
            }
        }
    }
    if options.json {
        return print_json(&results);
    }
    print_text(&table(&results).to_string())
}

fn chosen<T: Copy>(one: Option<T>, all: &[T]) -> Vec<T> {
    one.map_or_else(|| all.to_vec(), |one| vec![one])
}

fn measure(
    options: &MatchOptions,
    what: (workload::Side, workload::Kind, workload::Order),
    depths: &[usize],
) -> Result<Vec<Matching>> {
    let mut queues = Vec::new();
    for &depth in depths {
        let endpoints = Endpoints::open(options.path, Threading::Domain)?;
        queues.push((endpoints.carrier(), Queue::fill(endpoints, what, depth)?));
    }
    let mut bursts = vec![Vec::new(); depths.len()];
    let mut ratios = vec![Vec::new(); depths.len()];
    for _ in 0..options.rounds {
        let mut first = None;
        for (n, (_, queue)) in queues.iter_mut().enumerate() {
            let mut stretch = sample(queue, STRETCH)?;
            bursts[n].extend_from_slice(&stretch);
            let middle = median(&mut stretch);
            ratios[n].push(middle / *first.get_or_insert(middle));
        }
    }
    let (side, kind, order) = what;
    let results = queues.iter().zip(depths).enumerate();
    Ok(results
        .map(|(n, ((path, _), &depth))| Matching {
            bench: "match",
            side: side.name(),
            kind: kind.name(),
            order: order.name(),
            depth,
            path,
            entries: bursts[n].len() * workload::BURST,
            ns_per_op: median(&mut bursts[n]),
            min_ns: bursts[n].first().copied().unwrap_or_default(),
            ratio: median(&mut ratios[n]),
        })
        .collect())
}

/// The middle one; sorts them.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn table(results: &[Matching]) -> Table {
    let mut table = Table::new(
        &[
            "SIDE", "KIND", "ORDER", "DEPTH", "NS/ENTRY", "MIN NS", "RATIO", "ENTRIES",
        ],
        2,
    );
    for r in results {
        table.row(vec![
            r.side.to_owned(),
            r.kind.to_owned(),
            r.order.to_owned(),
            r.depth.to_string(),
            significant(r.ns_per_op),
            significant(r.min_ns),
            format!("{:.2}", r.ratio),
            r.entries.to_string(),
        ]);
    }
    table
}
