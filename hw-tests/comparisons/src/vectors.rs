//! Address vectors: `ferro bench av` against the same workload over an address vector of
//! libfabric's, round after round in turn. Each runs alone on one core.

use std::path::Path;
use std::process::Command;

use ferro::cores;
use ferro::failure::{Failure, Result};
use ferro::progress::StepProgress;
use ferro::report::print_json;
use serde::Deserialize;

use crate::PROGRAM;
use crate::cli::PeerSuiteOptions;
use crate::ours::ferro_bench;
use crate::process::run_one;
use crate::row::{Row, median, minimum};

const ENTRIES: [usize; 3] = [1000, 100_000, 1_000_000];

const PEER: &str = "libfabric tcp RDM";

/// The operations of both sides.
const BOTH: [&str; 4] = ["insert", "lookup", "lookup_dependent", "remove"];

/// Look-ups on the way of a message, which libfabric's interface does not have.
const OURS_ALONE: [&str; 4] = [
    "forward_batched",
    "forward_dependent",
    "reverse_batched",
    "reverse_dependent",
];

/// The output of `ferro` for an operation.
#[derive(Deserialize)]
struct OurAvOperation {
    op: String,
    entries: usize,
    ns_per_op: f64,
    bytes_per_entry: f64,
}

/// The output of the peer's program for a number of entries.
#[derive(Deserialize)]
struct Theirs {
    entries: usize,
    insert: f64,
    lookup: f64,
    lookup_dependent: f64,
    remove: f64,
    bytes_per_entry: f64,
}

/// AvFigures of one row, of both sides, in each round.
struct AvFigures {
    bench: &'static str,
    symmetric: bool,
    entries: usize,
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

/// Runs the suite.
///
/// # Errors
///
/// When ours did not run.
pub(crate) fn run(options: &PeerSuiteOptions) -> Result<()> {
    let core = cores::pair()?.0;
    let mut why_not = options
        .peer
        .is_none()
        .then(|| "the program that drives it was not built".to_owned());
    let mut all = Vec::new();
    let mut progress = StepProgress::over(PROGRAM, ENTRIES.len());
    for entries in ENTRIES {
        progress.step(format!("av of {entries}"));
        let mut figures: Vec<AvFigures> = [false, true]
            .into_iter()
            .flat_map(|symmetric| AvFigures::of(entries, symmetric))
            .collect();
        for round in 1..=options.rounds {
            progress.part(format!(
                "av of {entries}: round {round} of {}",
                options.rounds
            ));
            for symmetric in [false, true] {
                let ours = ours(core, entries, symmetric)?;
                for one in figures.iter_mut().filter(|one| one.symmetric == symmetric) {
                    one.ours.push(find(&ours, one.bench, entries)?);
                }
            }
            let (Some(peer), None) = (&options.peer, &why_not) else {
                continue;
            };
            match theirs(peer, core, entries) {
                Ok(theirs) => figures.iter_mut().for_each(|one| {
                    one.theirs.extend(theirs.of(one.bench));
                }),
                Err(failure) => why_not = Some(failure.to_string()),
            }
        }
        all.extend(figures);
    }
    progress.finish();
    let rows: Vec<Row> = all.iter().map(|one| one.row(why_not.as_deref())).collect();
    print_json(&rows)
}

impl AvFigures {
    /// Of all that is measured.
    fn of(entries: usize, symmetric: bool) -> impl Iterator<Item = Self> {
        let names = BOTH.into_iter().chain(OURS_ALONE).chain(["bytes"]);
        names.map(move |bench| Self {
            bench,
            symmetric,
            entries,
            ours: Vec::new(),
            theirs: Vec::new(),
        })
    }

    fn row(&self, why_not: Option<&str>) -> Row {
        // A peer that failed once is compared with in no round.
        let theirs = match why_not {
            None => &self.theirs[..],
            Some(_) => &[],
        };
        let pairs = self.ours.iter().zip(theirs);
        let ratios: Vec<f64> = pairs.map(|(o, t)| o / t).collect();
        let skipped = match (OURS_ALONE.contains(&self.bench), why_not) {
            (true, _) => Some("its interface has no such call"),
            (false, why) => why,
        };
        let metric = match self.bench {
            "bytes" => "bytes_per_entry",
            _ => "ns_per_op",
        };
        Row {
            suite: "av".to_owned(),
            bench: match self.symmetric {
                false => format!("av_{}", self.bench),
                true => format!("av_symmetric_{}", self.bench),
            },
            path: "shm".to_owned(),
            size: self.entries,
            peer: PEER.to_owned(),
            metric: metric.to_owned(),
            better: "lower".to_owned(),
            ours: median(&self.ours),
            theirs: median(theirs),
            ratio: median(&ratios),
            rounds: self.ours.len(),
            near: true,
            ours_min: minimum(&self.ours),
            theirs_min: minimum(theirs),
            skipped: skipped.map(str::to_owned),
        }
    }
}

impl Theirs {
    fn of(&self, bench: &str) -> Option<f64> {
        match bench {
            "insert" => Some(self.insert),
            "lookup" => Some(self.lookup),
            "lookup_dependent" => Some(self.lookup_dependent),
            "remove" => Some(self.remove),
            "bytes" => Some(self.bytes_per_entry),
            _ => None,
        }
    }
}

fn find(ours: &[OurAvOperation], bench: &str, entries: usize) -> Result<f64> {
    let mut of = ours.iter().filter(|one| one.entries == entries);
    let found = match bench {
        "bytes" => of.next().map(|one| one.bytes_per_entry),
        _ => of.find(|one| one.op == bench).map(|one| one.ns_per_op),
    };
    found.ok_or_else(|| Failure::new(format!("no figure for {bench} of {entries}")))
}

fn ours(core: usize, entries: usize, symmetric: bool) -> Result<Vec<OurAvOperation>> {
    let mut command = ferro_bench("av")?;
    command
        .arg("--rounds=1")
        .arg(format!("--entries={entries}"))
        .args(symmetric.then_some("--symmetric"));
    parse("ferro", &run_one("ferro", command, &[core])?)
}

fn theirs(peer: &Path, core: usize, entries: usize) -> Result<Theirs> {
    let mut command = Command::new(peer);
    command.arg(entries.to_string());
    let rows: Vec<Theirs> = parse(PEER, &run_one(PEER, command, &[core])?)?;
    let found = rows.into_iter().find(|row| row.entries == entries);
    found.ok_or_else(|| Failure::new(format!("{PEER}: no figure for {entries}")))
}

fn parse<T: serde::de::DeserializeOwned>(name: &str, json: &str) -> Result<Vec<T>> {
    serde_json::from_str(json).map_err(|e| Failure::io(format!("read the output of {name}"), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_both_programs_make_rows() {
        let ours = r#"[{"op": "insert", "entries": 10, "ns_per_op": 50, "bytes_per_entry": 80, "more": 1}]"#;
        let ours: Vec<OurAvOperation> = parse("ferro", ours).unwrap();
        let theirs = r#"[{"entries": 10, "insert": 100, "lookup": 1, "lookup_dependent": 2, "remove": 3, "bytes_per_entry": 160}]"#;
        let theirs: Vec<Theirs> = parse(PEER, theirs).unwrap();
        for (bench, metric) in [("insert", "ns_per_op"), ("bytes", "bytes_per_entry")] {
            let figures = AvFigures {
                bench,
                symmetric: false,
                entries: 10,
                ours: vec![find(&ours, bench, 10).unwrap()],
                theirs: theirs[0].of(bench).into_iter().collect(),
            };
            let row = figures.row(None);
            assert_eq!((row.ratio, row.metric.as_str()), (Some(0.5), metric));
            let row = figures.row(Some("it died"));
            assert_eq!((row.ratio, row.skipped.as_deref()), (None, Some("it died")));
        }
        assert!(find(&ours, "remove", 10).is_err() && find(&ours, "insert", 11).is_err());
        assert!(parse::<Theirs>(PEER, "nothing").is_err());
    }
}
