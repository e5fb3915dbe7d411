//! Matching at depth: `ferro bench match` against the same workload over libfabric's `shm`
//! provider, round after round in turn. Both sides run on one core each time, so neither distance
//! of cores nor what the other did comes into it.

use std::path::Path;
use std::process::Command;

use ferro::cores;
use ferro::failure::{Failure, Result};
use ferro::progress::StepProgress;
use ferro::report::print_json;
use ferro::workload::matching::{Kind, MatchOrder, Side};
use serde::Deserialize;

use crate::PROGRAM;
use crate::cli::PeerSuiteOptions;
use crate::ours::ferro_bench;
use crate::process::run_one;
use crate::row::{Row, median, minimum};

const DEPTHS: [usize; 3] = [10, 10_000, 100_000];

const PEER: &str = "libfabric shm";

/// The output of both programs for a depth.
#[derive(Deserialize)]
struct DepthMeasured {
    depth: usize,
    ns_per_op: f64,
    min_ns: f64,
}

/// DepthFigures of one depth, of one side.
#[derive(Default)]
struct DepthFigures {
    ns: Vec<f64>,
    min: Vec<f64>,
}

/// Runs the suite.
///
/// # Errors
///
/// When ours did not run.
pub(crate) fn run(options: &PeerSuiteOptions) -> Result<()> {
    let core = cores::pair()?.0;
    let mut rows = Vec::new();
    let combinations = Side::ALL.len() * Kind::ALL.len() * MatchOrder::ALL.len();
    let mut progress = StepProgress::over(PROGRAM, combinations);
    for &side in Side::ALL {
        for &kind in Kind::ALL {
            for &order in MatchOrder::ALL {
                progress.step(format!("match {side} {kind} {order}"));
                rows.extend(compare(
                    options,
                    core,
                    [side.name(), kind.name(), order.name()],
                )?);
            }
        }
    }
    progress.finish();
    print_json(&rows)
}

fn compare(options: &PeerSuiteOptions, core: usize, what: [&str; 3]) -> Result<Vec<Row>> {
    let mut figures = DEPTHS.map(|_| (DepthFigures::default(), DepthFigures::default()));
    let mut why_not = options
        .peer
        .is_none()
        .then(|| "the program that drives it was not built".to_owned());
    for _ in 0..options.rounds {
        let ours = ours(core, what)?;
        let theirs = match &options.peer {
            Some(peer) if why_not.is_none() => match theirs(peer, core, what) {
                Ok(measured) => measured,
                Err(failure) => {
                    why_not = Some(failure.to_string());
                    Vec::new()
                }
            },
            _ => Vec::new(),
        };
        for (depth, (our, their)) in DEPTHS.iter().zip(&mut figures) {
            add(our, &ours, *depth)?;
            // It leaves out what it can not do.
            let _ = add(their, &theirs, *depth);
        }
    }
    let [side, kind, order] = what;
    let row = |(&depth, (ours, theirs)): (&usize, &(DepthFigures, DepthFigures))| {
        // A peer that failed once is compared with in no round.
        let theirs_ns: &[f64] = if why_not.is_none() { &theirs.ns } else { &[] };
        let theirs_min: &[f64] = if why_not.is_none() { &theirs.min } else { &[] };
        let ratios: Vec<f64> = ours.ns.iter().zip(theirs_ns).map(|(o, t)| o / t).collect();
        Row {
            suite: "match".to_owned(),
            bench: format!("match_{side}_{kind}_{order}"),
            path: "shm".to_owned(),
            size: depth,
            peer: PEER.to_owned(),
            metric: "ns_per_op".to_owned(),
            better: "lower".to_owned(),
            ours: median(&ours.ns),
            theirs: median(theirs_ns),
            ratio: median(&ratios),
            rounds: ours.ns.len(),
            near: true,
            ours_min: minimum(&ours.min),
            theirs_min: minimum(theirs_min),
            skipped: match &why_not {
                Some(why) => Some(why.clone()),
                None => theirs_ns
                    .is_empty()
                    .then(|| "its queue does not take as many entries".to_owned()),
            },
        }
    };
    Ok(DEPTHS.iter().zip(&figures).map(row).collect())
}

fn add(figures: &mut DepthFigures, measured: &[DepthMeasured], depth: usize) -> Result<()> {
    let found = measured.iter().find(|m| m.depth == depth);
    let found = found.ok_or_else(|| Failure::new(format!("no figure for a depth of {depth}")))?;
    figures.ns.push(found.ns_per_op);
    figures.min.push(found.min_ns);
    Ok(())
}

fn depths() -> String {
    DEPTHS.map(|depth| depth.to_string()).join(",")
}

fn ours(core: usize, [side, kind, order]: [&str; 3]) -> Result<Vec<DepthMeasured>> {
    let mut command = ferro_bench("match")?;
    command.args([
        "--rounds=5".to_owned(),
        format!("--depths={}", depths()),
        format!("--side={side}"),
        format!("--kind={kind}"),
        format!("--order={order}"),
    ]);
    parse("ferro", &run_one("ferro", command, &[core])?)
}

fn theirs(peer: &Path, core: usize, what: [&str; 3]) -> Result<Vec<DepthMeasured>> {
    let mut command = Command::new(peer);
    command.args(what).args([depths(), "5".to_owned()]);
    parse(PEER, &run_one(PEER, command, &[core])?)
}

fn parse(name: &str, json: &str) -> Result<Vec<DepthMeasured>> {
    serde_json::from_str(json).map_err(|e| Failure::io(format!("read the output of {name}"), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_both_programs_are_read() {
        let peer = r#"[{"depth": 10, "ns_per_op": 90.5, "min_ns": 80}, {"depth": 100000, "ns_per_op": 9e4, "min_ns": 8e4}]"#;
        let measured = parse(PEER, peer).unwrap();
        let mut figures = DepthFigures::default();
        add(&mut figures, &measured, 100_000).unwrap();
        assert_eq!((figures.ns[0], figures.min[0]), (90_000.0, 80_000.0));
        assert!(add(&mut figures, &measured, 7).is_err());
        assert!(parse(PEER, "nothing").is_err());
    }
}
