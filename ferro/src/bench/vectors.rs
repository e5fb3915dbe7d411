//! `ferro bench av`: the cost of an address: its insertion, its look-up in either direction, its
//! removal, and its memory. A pointer chase over as many bytes, in turn with the look-ups, is the
//! limit to compare with.

mod beside;
mod names;

use std::sync::Arc;

use ferrofabric_av::{AvAttr, AvTable};
use ferrofabric_contracts::addr::{NATIVE_LEN, NativeAddr};
use ferrofabric_contracts::info::Threading;
use ferrofabric_contracts::peer::PeerAv;
use ferrofabric_contracts::types::{AvType, FiAddr};
use ferrofabric_runtime::fabric::{Av, Domain};
use serde::Serialize;

use super::matching::median;
use crate::bound::carrier_of;
use crate::cli::VectorOptions;
use crate::failure::{Failure, Result};
use crate::plot::{self, Plotted, Point};
use crate::progress::StepProgress;
use crate::report::{Results, TableColumn, Tabled, significant};
use crate::workload::vectors::{
    self as workload, NODES, Vector, Walk, at_once, batched, dependent,
};
use names::name;

/// Bytes that a processor fetches at once.
const LINE: usize = 64;

/// The time of one operation, at one number of entries.
#[derive(Debug, Serialize)]
struct AvOperation {
    bench: &'static str,
    op: &'static str,
    symmetric: bool,
    entries: usize,
    /// The number of entries that the address vector was opened for.
    count: usize,
    nodes: usize,
    path: &'static str,
    ns_per_op: f64,
    min_ns: f64,
    /// To a step of a pointer chase over as many bytes: the median of the rounds' ratios. Of
    /// look-ups in the table alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    chase_ratio: Option<f64>,
    bytes_per_entry: f64,
}

/// Measures each number of entries.
///
/// # Errors
///
/// When there is no domain of the path, or a call fails.
pub(crate) fn run(options: &VectorOptions) -> Result<()> {
    if options.beside {
        return beside::run(options);
    }
    let entries = &options.entries.0;
    let mut results = Results::new(options.json, entries.len());
    for &n in entries {
        results.progress().step(format!("av of {n}"));
        for result in measure(options, n, results.progress())? {
            results.add(result)?;
        }
    }
    let results = results.finish("")?;
    plot::results(&results, options.plot.plot.as_deref())
}

fn attr(options: &VectorOptions, n: usize) -> AvAttr {
    AvAttr {
        av_type: Some(AvType::Table),
        count: options.count.unwrap_or(n),
        symmetric: options.symmetric,
        ..AvAttr::default()
    }
}

/// An address vector of a domain, as applications use it.
struct BenchedAv {
    names: Vec<[u8; NATIVE_LEN]>,
    av: Arc<dyn Av>,
}

impl Vector for BenchedAv {
    type Error = Failure;

    fn insert(&mut self) -> Result<()> {
        let mut names = self.names.iter().map(|name| &name[..]);
        let mut out_of_place = 0;
        let inserted = self.av.insert_all(&mut names, &mut |i, one| {
            out_of_place += usize::from(!matches!(one, Ok(addr) if addr == FiAddr(i as u64)));
        })?;
        if inserted != self.names.len() || out_of_place != 0 {
            return Err(Failure::new("addresses did not get their indices in order"));
        }
        Ok(())
    }

    #[inline]
    fn lookup(&self, index: usize) -> Result<usize> {
        Ok(self.av.lookup(FiAddr(index as u64))?.incarnation as usize)
    }

    fn remove(&mut self, index: usize) -> Result<()> {
        Ok(self.av.remove(FiAddr(index as u64))?)
    }
}

/// Look-ups in the table itself, as messages need them, and the pointer chase.
const DATA_PATH: [&str; 7] = [
    "forward_batched",
    "forward_independent",
    "forward_dependent",
    "reverse_batched",
    "reverse_independent",
    "reverse_dependent",
    "pointer_chase",
];

fn measure(options: &VectorOptions, n: usize, progress: &StepProgress) -> Result<Vec<AvOperation>> {
    let (domain, attr) = (options.path.open(Threading::Domain)?, attr(options, n));
    let path = carrier_of(&*domain);
    let mut calls = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    let mut bytes = Vec::new();
    for round in 1..=options.rounds {
        progress.part(format!("av of {n}: round {round} of {}", options.rounds));
        let figures = workload::measure(&mut benched(&*domain, n, &attr)?, n)?;
        let took = [
            figures.insert,
            figures.lookup,
            figures.dependent,
            figures.remove,
        ];
        for (all, one) in calls.iter_mut().zip(took) {
            all.push(one);
        }
        bytes.push(figures.bytes_per_entry);
    }
    let bytes_per_entry = median(&mut bytes);
    let operation = |op, ns: &mut [f64], chase_ratio| AvOperation {
        bench: "av",
        op,
        symmetric: attr.symmetric,
        entries: n,
        count: attr.count,
        nodes: NODES.min(n),
        path,
        ns_per_op: median(ns),
        min_ns: ns.first().copied().unwrap_or_default(),
        chase_ratio,
        bytes_per_entry,
    };
    let mut results = Vec::new();
    let names = ["insert", "lookup", "lookup_dependent", "remove"];
    for (op, ns) in names.into_iter().zip(&mut calls) {
        results.push(operation(op, ns, None));
    }
    let bytes = (bytes_per_entry * n as f64) as usize;
    progress.part(format!("av of {n}: look-ups in the table"));
    let mut rounds = data_path(n, &attr, bytes, options.rounds)?;
    let chase = rounds[DATA_PATH.len() - 1].clone();
    for (op, ns) in DATA_PATH.into_iter().zip(&mut rounds) {
        let mut ratios: Vec<f64> = ns.iter().zip(&chase).map(|(ns, c)| ns / c).collect();
        let ratio = median(&mut ratios);
        results.push(operation(op, ns, Some(ratio)));
    }
    Ok(results)
}

fn benched(domain: &dyn Domain, n: usize, attr: &AvAttr) -> Result<BenchedAv> {
    Ok(BenchedAv {
        names: (0..n).map(|i| name(i).to_bytes()).collect(),
        av: domain.open_av(attr)?,
    })
}

/// Nanoseconds of each of [`DATA_PATH`], in each round.
fn data_path(
    n: usize,
    attr: &AvAttr,
    bytes: usize,
    rounds: u32,
) -> Result<[Vec<f64>; DATA_PATH.len()]> {
    let table = AvTable::new(attr)?;
    for i in 0..n {
        table.insert(&name(i))?;
    }
    let missing = || Failure::new("an address is not where it was put");
    let forward = |i: usize| {
        let found = table.lookup(FiAddr(i as u64)).ok_or_else(missing)?;
        Ok(found.incarnation as usize)
    };
    let reverse = |i: usize| match table.find(&name(i)) {
        FiAddr::NOTAVAIL => Err(missing()),
        addr => Ok(addr.0 as usize),
    };
    let forward_all = |addrs: &[FiAddr]| {
        let (mut sum, mut lost) = (0, false);
        table.lookup_all(addrs, |_, found| match found {
            Some(found) => sum += found.incarnation as usize,
            None => lost = true,
        });
        if lost { Err(missing()) } else { Ok(sum) }
    };
    let reverse_all = |names: &[NativeAddr]| {
        let (mut sum, mut lost) = (0, false);
        table.find_all(names, |_, addr| match addr {
            FiAddr::NOTAVAIL => lost = true,
            addr => sum += addr.0 as usize,
        });
        if lost { Err(missing()) } else { Ok(sum) }
    };
    let walk = Walk::over(n);
    let chain = Chain::of(bytes);
    let mut took: [Vec<f64>; DATA_PATH.len()] = Default::default();
    // The first round finds the caches full of something else.
    for round in 0..=rounds {
        let one: [Result<f64>; DATA_PATH.len()] = [
            at_once(walk, |i| FiAddr(i as u64), forward_all),
            batched(walk, forward),
            dependent(walk, forward),
            at_once(walk, name, reverse_all),
            batched(walk, reverse),
            dependent(walk, reverse),
            Ok(chain.chase()),
        ];
        for (all, one) in took.iter_mut().zip(one) {
            let one = one?;
            if round != 0 {
                all.push(one);
            }
        }
    }
    Ok(took)
}

/// Lines of memory, each of which says which is the next.
struct Chain(Vec<[u64; LINE / 8]>);

impl Chain {
    fn of(bytes: usize) -> Self {
        let n = (bytes / LINE).max(1);
        let walk = Walk::over(n);
        Self((0..n).map(|i| [walk.after(i) as u64; LINE / 8]).collect())
    }

    /// Nanoseconds of a step.
    fn chase(&self) -> f64 {
        let start = std::time::Instant::now();
        let mut at = 0;
        for _ in 0..workload::STRETCH {
            at = self.0[at][0] as usize;
        }
        std::hint::black_box(at);
        start.elapsed().as_nanos() as f64 / workload::STRETCH as f64
    }
}

impl Tabled for AvOperation {
    const COLUMNS: &'static [TableColumn] = &[
        TableColumn::words("OPERATION", 19),
        TableColumn::number("ENTRIES", 0),
        TableColumn::number("NS", 7),
        TableColumn::number("MIN NS", 7),
        TableColumn::number("TO A CHASE", 0),
        TableColumn::number("BYTES/ENTRY", 0),
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.op.to_owned(),
            self.entries.to_string(),
            significant(self.ns_per_op),
            significant(self.min_ns),
            self.chase_ratio
                .map_or("-".to_owned(), |x| format!("{x:.2}")),
            format!("{:.1}", self.bytes_per_entry),
        ]
    }
}

impl Plotted for AvOperation {
    fn points(&self) -> Vec<Point> {
        let kind = if self.symmetric { "symmetric " } else { "" };
        vec![Point {
            picture: match self.symmetric {
                true => "av-symmetric".to_owned(),
                false => "av".to_owned(),
            },
            caption: format!("{kind}address vector"),
            axes: ("addresses".to_owned(), "ns".to_owned()),
            line: self.op.replace('_', " "),
            at: (self.entries as f64, self.ns_per_op),
        }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_a_thousand_nodes_and_tell_their_index() {
        let names: Vec<_> = (0..3000).map(name).collect();
        let nodes: std::collections::BTreeSet<_> = names.iter().map(|name| name.node).collect();
        assert_eq!(nodes.len(), NODES);
        let gids = names.iter().filter_map(|name| Some(name.verbs?.gid));
        assert_eq!(gids.collect::<std::collections::BTreeSet<_>>().len(), NODES);
        for (i, name) in names.iter().enumerate() {
            let read = NativeAddr::from_bytes(&name.to_bytes()).unwrap();
            assert_eq!((read, read.incarnation), (*name, i as u64));
        }
    }

    #[test]
    fn each_operation_has_its_time() {
        for symmetric in [false, true] {
            let attr = AvAttr {
                av_type: Some(AvType::Table),
                symmetric,
                ..AvAttr::default()
            };
            let took = data_path(100, &attr, 10_000, 2).unwrap();
            assert!(
                took.iter()
                    .all(|ns| ns.len() == 2 && ns.iter().all(|ns| *ns > 0.0))
            );
        }
    }
}
