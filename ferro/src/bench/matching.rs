//! `ferro bench match`: the cost of matching with many receives posted, or many messages
//! unexpected. One thread drives two endpoints, so that the distance of cores has no influence. One
//! run measures all depths in turn, so that the ratio of two depths is meaningful.

pub(super) mod endpoints;

use std::time::Duration;

use ferrofabric_contracts::info::Threading;
use serde::Serialize;

use crate::cli::MatchOptions;
use crate::failure::Result;
use crate::plot::{self, Plotted, Point};
use crate::progress::StepProgress;
use crate::report::{Results, TableColumn, Tabled, significant};
use crate::workload::matching::{self as workload, Queue, sample};
use endpoints::Endpoints;

/// Of one depth at a stretch.
const STRETCH: Duration = Duration::from_millis(10);

/// The cost at one depth.
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

/// Measures each chosen combination of side, kind and order.
///
/// # Errors
///
/// When there is no domain of the path, or a call fails.
pub(crate) fn run(options: &MatchOptions) -> Result<()> {
    let mut combinations = Vec::new();
    for side in chosen(options.side, workload::Side::ALL) {
        for kind in chosen(options.kind, workload::Kind::ALL) {
            for order in chosen(options.order, workload::MatchOrder::ALL) {
                combinations.push((side, kind, order));
            }
        }
    }
    let mut results = Results::new(options.json, combinations.len());
    for what @ (side, kind, order) in combinations {
        let step = format!("match {side} {kind} {order}");
        results.progress().step(step);
        for result in measure(options, what, results.progress())? {
            results.add(result)?;
        }
    }
    let results = results.finish("")?;
    plot::results(&results, options.plot.plot.as_deref())
}

fn chosen<T: Copy>(one: Option<T>, all: &[T]) -> Vec<T> {
    one.map_or_else(|| all.to_vec(), |one| vec![one])
}

fn measure(
    options: &MatchOptions,
    what: (workload::Side, workload::Kind, workload::MatchOrder),
    progress: &StepProgress,
) -> Result<Vec<Matching>> {
    let depths = &options.depths.0;
    let (side, kind, order) = what;
    let mut queues = Vec::new();
    for &depth in depths {
        let endpoints = Endpoints::open(options.path, Threading::Domain)?;
        queues.push((endpoints.carrier(), Queue::fill(endpoints, what, depth)?));
    }
    let mut bursts = vec![Vec::new(); depths.len()];
    let mut ratios = vec![Vec::new(); depths.len()];
    for round in 1..=options.rounds {
        progress.part(format!(
            "match {side} {kind} {order}: round {round} of {}",
            options.rounds
        ));
        let mut first = None;
        for (n, (_, queue)) in queues.iter_mut().enumerate() {
            let mut stretch = sample(queue, STRETCH)?;
            bursts[n].extend_from_slice(&stretch);
            let middle = median(&mut stretch);
            ratios[n].push(middle / *first.get_or_insert(middle));
        }
    }
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

/// The middle value; sorts the values.
pub(super) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Tabled for Matching {
    const COLUMNS: &'static [TableColumn] = &[
        TableColumn::words("SIDE", 10),
        TableColumn::words("KIND", 10),
        TableColumn::words("ORDER", 6),
        TableColumn::number("DEPTH", 7),
        TableColumn::number("NS/ENTRY", 0),
        TableColumn::number("MIN NS", 7),
        TableColumn::number("RATIO", 6),
        TableColumn::number("ENTRIES", 0),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.side.to_owned(),
            self.kind.to_owned(),
            self.order.to_owned(),
            self.depth.to_string(),
            significant(self.ns_per_op),
            significant(self.min_ns),
            format!("{:.2}", self.ratio),
            self.entries.to_string(),
        ]
    }
}

impl Plotted for Matching {
    fn points(&self) -> Vec<Point> {
        vec![Point {
            picture: format!("{}-{}", self.bench, self.side),
            caption: format!("{}: matching, {}", self.path, self.side),
            axes: ("depth".to_owned(), "ns per entry".to_owned()),
            line: format!("{} {}", self.kind, self.order),
            at: (self.depth as f64, self.ns_per_op),
        }]
    }
}
