//! The suites of messages and collectives: ours and each rival in turn, burst after burst, so that
//! whatever changes on the machine meets both alike.

use std::time::Duration;

use ferro::cores;
use ferro::failure::{Failure, Result};
use ferro::progress::StepProgress;
use ferro::providers::Path;
use ferro::report::print_json;
use ferro::sizes::{self, Sizes};

use crate::PROGRAM;
use crate::bench::Bench;
use crate::cli::{MpiOptions, ShmOptions, SuiteOptions};
use crate::contest::{Contest, Measurement, OurSide};
use crate::moments::Moments;
use crate::mpi;
use crate::peer::{self, FabricPrograms, Rival};
use crate::probe::Distance;
use crate::process::ProgramRoot;
use crate::row::Row;

/// Threads of a process, of which each side has one: 2 and 4 on each core.
const THREADS: [usize; 2] = [2, 4];

/// Ranks on two cores: 1, 2 and 4 on each.
const RANKS: [usize; 3] = [2, 4, 8];

/// The same for collectives of libfabric: 1 and 2 on each.
const OFFLOAD_RANKS: [usize; 2] = [2, 4];

/// Where a suite runs.
struct Suite<'a> {
    name: &'static str,
    path: Path,
    options: &'a SuiteOptions,
    cores: (usize, usize),
    moments: Moments,
}

/// The rows and failures of a suite.
#[derive(Default)]
struct SuiteOutcome {
    rows: Vec<Row>,
    failures: Vec<String>,
}

/// Over the first verbs device of this machine.
///
/// # Errors
///
/// When there is no device, or ours did not run.
pub(crate) fn verbs(options: &SuiteOptions) -> Result<()> {
    let suite = Suite::new("verbs", Path::Verbs, options)?;
    let benches = [
        Bench::Latency,
        Bench::DatagramLatency,
        Bench::Bandwidth,
        Bench::BlockingBandwidth,
        Bench::BothWays,
        Bench::Rate,
        Bench::PutLatency,
        Bench::DeliveredPutLatency,
        Bench::GetLatency,
        Bench::TrustedGetLatency,
        Bench::FetchAddLatency,
        Bench::PutBandwidth,
    ];
    let device = verbs_device()?;
    let address = device_address(&device)?;
    let contests = suite.contests(&benches, OurSide::Ferro, |bench| {
        peer::over_verbs(bench, &device, &address)
    });
    suite.run(contests).finish()
}

/// Through shared memory: messages between two processes, the same of several threads each, and
/// collectives of MPI.
///
/// # Errors
///
/// When ours did not run.
pub(crate) fn shm(options: &ShmOptions) -> Result<()> {
    let suite = Suite::new("shm", Path::Shm, &options.suite)?;
    let mut hosts = vec![(ProgramRoot::Here, "this machine's")];
    if let Some(root) = &options.peer_root {
        hosts.push((ProgramRoot::Root(root.clone()), "Debian 13's"));
    }
    let mut benches = vec![
        Bench::Latency,
        Bench::Bandwidth,
        Bench::PutLatency,
        Bench::GetLatency,
        Bench::FetchAddLatency,
        Bench::PutBandwidth,
        Bench::MappedPutLatency,
        Bench::MappedGetLatency,
        Bench::MappedFetchAddLatency,
    ];
    benches.extend(THREADS.map(Bench::ThreadRate));
    let programs = FabricPrograms {
        threads: options.thread_peer.as_deref(),
        one_sided: options.rma_peer.as_deref(),
    };
    let mut contests = suite.contests(&benches, OurSide::Ferro, |bench| {
        peer::over_shm(bench, &hosts, programs)
    });

    let collectives: Vec<Bench> = [Bench::Alltoall as fn(usize) -> Bench, Bench::Allreduce]
        .into_iter()
        .flat_map(|bench| RANKS.map(bench))
        .collect();
    let mpich = options.mpich.as_ref().zip(options.program.as_ref());
    let runs = mpich
        .zip(options.plugin.as_ref())
        .map(|((folder, program), plugin)| mpi::mpich_collectives(plugin, program, folder));
    if let Some(runs) = &runs {
        contests.extend(suite.contests(&collectives, OurSide::Mpi(&runs.ours), |_| {
            runs.rivals.iter().map(Rival::of_mpi).collect()
        }));
    }
    let offload_benches = OFFLOAD_RANKS.map(Bench::OffloadAllreduce);
    let program = options.allreduce_program.as_deref();
    let offload = (runs.as_ref().zip(program)).map(|(runs, file)| runs.ours.with_program(file));
    if let Some(run) = &offload {
        let rival = |_| vec![Rival::in_same_run(mpi::OWN_ALLREDUCE)];
        contests.extend(suite.contests(&offload_benches, OurSide::Offload(run), rival));
    }
    let mut outcome = suite.run(contests);
    if runs.is_none() {
        eprintln!("{PROGRAM}: without MPICH no collectives are measured");
        let rows = suite.without_mpi(&collectives, "mpi", &mpi::COLLECTIVE_RIVALS);
        outcome.rows.extend(rows);
    }
    if offload.is_none() {
        let rows = suite.without_mpi(&offload_benches, "offload", &[mpi::OWN_ALLREDUCE]);
        outcome.rows.extend(rows);
    }
    outcome.finish()
}

/// MPI between two processes of this machine: MPICH through shared memory where its folder is
/// given, else Open MPI over the first verbs device.
///
/// # Errors
///
/// When ours did not run.
pub(crate) fn mpi(options: &MpiOptions) -> Result<()> {
    let (path, runs) = match &options.mpich {
        Some(folder) => (
            Path::Shm,
            mpi::mpich(&options.plugin, &options.program, folder),
        ),
        None => (Path::Verbs, mpi::open_mpi(options, &verbs_device()?)),
    };
    let suite = Suite::new("mpi", path, &options.suite)?;
    let benches = [Bench::Latency, Bench::Bandwidth];
    let contests = suite.contests(&benches, OurSide::Mpi(&runs.ours), |_| {
        runs.rivals.iter().map(Rival::of_mpi).collect()
    });
    suite.run(contests).finish()
}

impl<'a> Suite<'a> {
    fn new(name: &'static str, path: Path, options: &'a SuiteOptions) -> Result<Self> {
        let cores = cores::pair()?;
        // Over verbs the device takes its time, not the cache.
        let moments = match path == Path::Shm && cores.0 != cores.1 {
            true => Moments::of(cores, Duration::from_secs(options.budget)),
            false => Moments::all(),
        };
        Ok(Self {
            name,
            path,
            options,
            cores,
            moments,
        })
    }

    /// A contest for each bench and each size that suits it.
    fn contests<'b>(
        &self,
        benches: &[Bench],
        ours: OurSide<'b>,
        rivals: impl Fn(Bench) -> Vec<Rival>,
    ) -> Vec<Contest<'b>> {
        let contest = |bench| {
            let sizes = self.sizes(bench).into_iter();
            sizes.map(move |size| (bench, self.measurement(bench, size, ours.kind())))
        };
        let all = self.chosen(benches).flat_map(contest);
        all.map(|(bench, what)| Contest::new(what, ours, rivals(bench)))
            .collect()
    }

    /// Those of the benches that are to run.
    fn chosen(&self, benches: &[Bench]) -> impl Iterator<Item = Bench> {
        let only = &self.options.only;
        let wanted = |bench: &Bench| only.is_empty() || only.contains(&bench.name());
        benches.iter().copied().filter(wanted)
    }

    fn sizes(&self, bench: Bench) -> Vec<usize> {
        let mut sizes = match &self.options.sizes {
            Some(Sizes(sizes)) => sizes.clone(),
            None => bench.default_sizes().to_vec(),
        };
        sizes.retain(|size| bench.suits(*size));
        sizes
    }

    fn measurement(&self, bench: Bench, size: usize, kind: &'static str) -> Measurement {
        Measurement {
            suite: self.name,
            kind: if bench.is_one_sided() { "rma" } else { kind },
            path: self.path,
            bench,
            size,
            messages: self.messages(bench, size),
            cores: self.cores,
        }
    }

    /// Runs all contests. While the budget lasts it repeats those that lack rounds at one of the
    /// distances.
    fn run(&self, mut contests: Vec<Contest<'_>>) -> SuiteOutcome {
        let mut failures = Vec::new();
        if contests.is_empty() {
            let only = self.options.only.join(", ");
            failures.push(format!("the suite {} has no bench named {only}", self.name));
        }
        let mut progress = StepProgress::over(PROGRAM, contests.len());
        contests.retain_mut(|contest| {
            let Measurement { bench, size, .. } = contest.what;
            let (name, size) = (bench.name(), sizes::print(size));
            let step = format!("{} {name} of {size}", self.name);
            progress.step(&step);
            let rounds = self.options.rounds;
            let ran = (1..=rounds).try_for_each(|round| {
                progress.part(format!("{step}: round {round} of {rounds}"));
                contest.round(&self.moments)
            });
            if let Err(failure) = &ran {
                progress.aside(|| eprintln!("{PROGRAM}: {failure}"));
                failures.push(failure.to_string());
            }
            ran.is_ok()
        });
        progress.finish();
        if self.moments.are_probed() {
            failures.extend(self.complete(&mut contests));
            self.say_what_was_seen(&contests);
        }
        SuiteOutcome {
            rows: contests.iter().flat_map(Contest::rows).collect(),
            failures,
        }
    }

    /// Runs rounds at the distance that most rounds did not see, until all have enough of both or
    /// the budget is spent. Returns what failed.
    fn complete(&self, contests: &mut [Contest<'_>]) -> Vec<String> {
        let rounds = self.options.rounds as usize;
        let mut failures = Vec::new();
        let (mut done, mut said) = (vec![false; contests.len()], false);
        loop {
            let lacks = |at: usize, distance| {
                let counted = |contest: &Contest<'_>| contest.rounds_at(distance);
                !done[at] && counted(&contests[at]) < rounds
            };
            let next = |distance| {
                let lacking = (0..contests.len()).filter(|&at| lacks(at, distance));
                lacking.min_by_key(|&at| contests[at].rounds_at(distance))
            };
            let left = self.moments.left();
            if left.is_zero() || Distance::ALL.into_iter().all(|d| next(d).is_none()) {
                return failures;
            }
            if !said {
                said = true;
                eprintln!(
                    "{PROGRAM}: {}: rounds at the distance of the cores that is missing, for at most {} s",
                    self.name,
                    left.as_secs()
                );
            }
            let moment = self.moments.wait_for(|distance| next(distance).is_some());
            let Some(at) = moment.and_then(next) else {
                return failures;
            };
            if let Err(failure) = contests[at].round(&self.moments) {
                eprintln!("{PROGRAM}: {failure}");
                failures.push(failure.to_string());
                done[at] = true;
            }
        }
    }

    /// Says which distance no round counts for.
    fn say_what_was_seen(&self, contests: &[Contest<'_>]) {
        for distance in Distance::ALL {
            if contests.iter().all(|c| c.rounds_at(distance) == 0) {
                eprintln!(
                    "{PROGRAM}: {}: no round counts for {} cores",
                    self.name,
                    distance.name()
                );
            }
        }
    }

    /// Messages of a burst: enough to say something, few enough to be over before the machine
    /// changes.
    fn messages(&self, bench: Bench, size: usize) -> u64 {
        let (bytes, least, most) = match (self.path, bench) {
            (Path::Verbs, _) => (4u64 << 20, 20, 500),
            // The program itself stops after half a second.
            (_, Bench::Alltoall(_) | Bench::Allreduce(_) | Bench::OffloadAllreduce(_)) => {
                (1 << 30, 100, 20_000)
            }
            _ => (1 << 30, 100, 100_000),
        };
        (bytes / size.max(8 << 10) as u64).clamp(least, most)
    }

    /// The rows that are not measured on a machine without MPICH, or without a program for it.
    fn without_mpi(&self, benches: &[Bench], kind: &'static str, rivals: &[&str]) -> Vec<Row> {
        let row = |bench: Bench, size| {
            let what = self.measurement(bench, size, kind);
            let figures = bench.figures(size).into_iter();
            let rows = figures.flat_map(move |figure| {
                rivals.iter().map(move |rival| Row {
                    skipped: Some("MPICH, our plugin or a program is not there".to_owned()),
                    ..what.empty_row(&figure, rival, Distance::Near)
                })
            });
            rows.collect::<Vec<_>>()
        };
        let sizes = |bench: Bench| self.sizes(bench).into_iter().map(move |size| (bench, size));
        let all = self.chosen(benches).flat_map(sizes);
        all.flat_map(|(bench, size)| row(bench, size)).collect()
    }
}

impl SuiteOutcome {
    /// Prints the rows.
    fn finish(self) -> Result<()> {
        print_json(&self.rows)?;
        match self.failures.first() {
            None => Ok(()),
            Some(first) => Err(Failure::new(format!(
                "{} of the measurements did not run; the first: {first}",
                self.failures.len()
            ))),
        }
    }
}

/// The first verbs device, which our provider takes as well.
fn verbs_device() -> Result<String> {
    let folder = "/sys/class/infiniband";
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .map(|entries| {
            entries
                .flatten()
                .map(|e| e.file_name().to_string_lossy().into_owned())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    names.into_iter().next().ok_or_else(|| {
        Failure::new(
            "this machine has no verbs device; ./scripts/vm runs a command in one that has",
        )
    })
}

/// The IPv4 address of a RoCE device, from its GID 1.
fn device_address(device: &str) -> Result<String> {
    let file = format!("/sys/class/infiniband/{device}/ports/1/gids/1");
    let gid = std::fs::read_to_string(&file).map_err(|e| Failure::io(format!("read {file}"), e))?;
    ipv4_of_gid(gid.trim()).ok_or_else(|| {
        Failure::new(format!(
            "GID 1 of {device} is {}, not one of an IPv4 address",
            gid.trim()
        ))
    })
}

fn ipv4_of_gid(gid: &str) -> Option<String> {
    let address: std::net::Ipv6Addr = gid.parse().ok()?;
    address.to_ipv4_mapped().map(|v4| v4.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(sizes: Option<Sizes>) -> SuiteOptions {
        SuiteOptions {
            sizes,
            only: Vec::new(),
            rounds: 3,
            budget: 1,
        }
    }

    #[test]
    fn each_bench_has_sizes_of_its_own() {
        let options = options(None);
        let suite = Suite::new("shm", Path::Shm, &options).unwrap();
        assert_eq!(suite.sizes(Bench::Latency), [8, 4096, 65_536, 1 << 20]);
        assert_eq!(suite.sizes(Bench::ThreadRate(4)), [64]);
        assert_eq!(suite.sizes(Bench::FetchAddLatency), [8]);
        assert_eq!(suite.sizes(Bench::Alltoall(8)), [8, 65_536]);
        let options = super::tests::options(Some(Sizes(vec![4, 64, 1 << 20])));
        let suite = Suite::new("shm", Path::Shm, &options).unwrap();
        assert_eq!(suite.sizes(Bench::ThreadRate(4)), [4, 64]);
        assert_eq!(suite.sizes(Bench::Allreduce(2)), [64, 1 << 20]);
        assert!(suite.sizes(Bench::OffloadAllreduce(2)).is_empty());
    }

    #[test]
    fn collectives_that_are_not_measured_are_rows_that_say_so() {
        let options = options(None);
        let suite = Suite::new("shm", Path::Shm, &options).unwrap();
        let rows = suite.without_mpi(&[Bench::Alltoall(8)], "mpi", &mpi::COLLECTIVE_RIVALS);
        assert_eq!(rows.len(), 2 * mpi::COLLECTIVE_RIVALS.len());
        assert_eq!(rows[0].bench, "mpi_alltoall_8_ranks");
        assert!(
            rows.iter()
                .all(|row| row.ours.is_none() && row.theirs.is_none())
        );
        assert!(rows.iter().all(|row| row.skipped.is_some()));
    }

    #[test]
    fn benches_by_name() {
        let options = SuiteOptions {
            only: vec!["get_latency".to_owned(), "nothing".to_owned()],
            ..options(Some(Sizes(vec![8])))
        };
        let suite = Suite::new("verbs", Path::Verbs, &options).unwrap();
        let benches = [Bench::Latency, Bench::PutLatency, Bench::GetLatency];
        let chosen: Vec<Bench> = suite.chosen(&benches).collect();
        assert_eq!(chosen, [Bench::GetLatency]);
        let nothing = suite.run(Vec::new()).finish().unwrap_err();
        assert!(
            nothing.to_string().contains("get_latency, nothing"),
            "{nothing}"
        );
    }

    #[test]
    fn addresses_of_gids() {
        let gid = "0000:0000:0000:0000:0000:ffff:0a01:0001";
        assert_eq!(ipv4_of_gid(gid).as_deref(), Some("10.1.0.1"));
        assert_eq!(ipv4_of_gid("fe80:0000:0000:0000:0011:22ff:fe33:4455"), None);
    }
}
