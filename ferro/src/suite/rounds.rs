//! The rounds: ours and each rival in turn, burst after burst, so that whatever changes on the machine meets both alike.

use std::time::{Duration, Instant};

use super::peer::{self, Peer, Rival, Statistic};
use super::process::Host;
use super::row::{Row, median, minimum};
use super::{Bench, mpi, name_of, ours, probe};
use crate::cli::{MpiOptions, SuiteOptions};
use crate::cores;
use crate::failure::{Failure, Result};
use crate::providers::Path;
use crate::report::print_json;
use crate::sizes::{self, Sizes};

/// Where a suite runs.
struct Suite<'a> {
    name: &'static str,
    /// What the names of its measurements begin with.
    kind: &'static str,
    path: Path,
    benches: &'static [Bench],
    ours: Ours<'a>,
    options: &'a SuiteOptions,
    cores: (usize, usize),
    /// Whether the distance of the cores matters.
    probed: bool,
    /// Good moments are looked for until then.
    deadline: Instant,
}

/// Our side.
enum Ours<'a> {
    /// `ferro bench`.
    Ferro,
    /// MPI over our plugin.
    Mpi(&'a mpi::Run),
}

impl Ours<'_> {
    fn measure(
        &self,
        path: Path,
        bench: Bench,
        size: usize,
        messages: u64,
        on: (usize, usize),
    ) -> Result<ours::OurSample> {
        match self {
            Self::Ferro => ours::measure(path, bench, size, messages, on),
            Self::Mpi(run) => run.measure(bench, size, messages, on),
        }
    }
}

/// Over the first verbs device of this machine.
///
/// # Errors
///
/// When there is no device, or ours did not run.
pub(super) fn verbs(options: &SuiteOptions) -> Result<()> {
    let mut suite = Suite::new("verbs", Path::Verbs, options)?;
    suite.benches = &[
        Bench::Latency,
        Bench::DatagramLatency,
        Bench::Bandwidth,
        Bench::BlockingBandwidth,
        Bench::BothWays,
        Bench::Rate,
    ];
    let device = verbs_device()?;
    let address = device_address(&device)?;
    suite.run(|bench| peer::over_verbs(bench, &device, &address))
}

/// Through shared memory.
///
/// # Errors
///
/// When ours did not run.
pub(super) fn shm(options: &SuiteOptions) -> Result<()> {
    let suite = Suite::new("shm", Path::Shm, options)?;
    let mut hosts = vec![(Host::Here, "this machine's")];
    if let Some(root) = &options.peer_root {
        hosts.push((Host::Root(root.clone()), "Debian 13's"));
    }
    suite.run(|bench| peer::over_shm(bench, &hosts))
}

/// MPI between two processes of this machine: MPICH through shared memory where its folder is given, else Open MPI over
/// the first verbs device.
///
/// # Errors
///
/// When ours did not run.
pub(super) fn mpi(options: &MpiOptions) -> Result<()> {
    let (path, runs) = match &options.mpich {
        Some(folder) => (Path::Shm, mpi::mpich(options, folder)),
        None => (Path::Verbs, mpi::open_mpi(options, &verbs_device()?)),
    };
    let mut suite = Suite::new("mpi", path, &options.suite)?;
    suite.kind = "mpi";
    suite.ours = Ours::Mpi(&runs.ours);
    suite.run(|_| runs.rivals.iter().map(Rival::of_mpi).collect())
}

impl<'a> Suite<'a> {
    fn new(name: &'static str, path: Path, options: &'a SuiteOptions) -> Result<Self> {
        Ok(Self {
            name,
            kind: "tagged",
            path,
            benches: &[Bench::Latency, Bench::Bandwidth],
            ours: Ours::Ferro,
            options,
            cores: cores::pair()?,
            // Over verbs the device takes its time, not the cache.
            probed: path == Path::Shm && cores::allowed()?.len() > 1,
            deadline: Instant::now() + Duration::from_secs(options.budget),
        })
    }

    fn run(&self, rivals: impl Fn(Bench) -> Vec<Rival>) -> Result<()> {
        let sizes = match &self.options.sizes {
            Some(Sizes(sizes)) => sizes.clone(),
            None => vec![8, 4 << 10, 64 << 10, 1 << 20],
        };
        let (mut rows, mut failures) = (Vec::new(), Vec::new());
        for &bench in self.benches {
            for &size in sizes.iter().filter(|&&size| bench.suits(size)) {
                eprintln!(
                    "bench: {} {} of {}",
                    self.name,
                    bench.name(),
                    sizes::print(size)
                );
                match self.compare(bench, size, rivals(bench)) {
                    Ok(new) => rows.extend(new),
                    Err(failure) => {
                        eprintln!("bench: {failure}");
                        failures.push(failure.to_string());
                    }
                }
            }
        }
        print_json(&rows)?;
        match failures.first() {
            None => Ok(()),
            Some(first) => Err(Failure::new(format!(
                "{} of the measurements did not run; the first: {first}",
                failures.len()
            ))),
        }
    }

    fn compare(&self, bench: Bench, size: usize, rivals: Vec<Rival>) -> Result<Vec<Row>> {
        let messages = self.messages(size);
        let mut contenders: Vec<Contender> = rivals
            .into_iter()
            .map(|rival| self.qualify(rival, bench, size, messages))
            .collect();
        let mut ours = Vec::new();
        for _ in 0..self.options.rounds {
            ours.push(self.burst(|| {
                self.ours
                    .measure(self.path, bench, size, messages, self.cores)
            })?);
            for contender in &mut contenders {
                contender
                    .round(|peer| self.burst(|| peer.measure(bench, size, messages, self.cores)));
            }
        }
        Ok(contenders
            .into_iter()
            .map(|contender| contender.row(self, bench, size, &ours))
            .collect())
    }

    /// The rival's fastest variant at this size.
    fn qualify(&self, rival: Rival, bench: Bench, size: usize, messages: u64) -> Contender {
        let mut contender = Contender {
            name: rival.name.to_owned(),
            peer: None,
            results: Vec::new(),
            why_not: format!("{} is not installed", rival.program),
        };
        if let [_] = rival.variants.as_slice() {
            contender.peer = rival.variants.into_iter().next();
            return contender;
        }
        let mut best: Option<f64> = None;
        for peer in rival.variants {
            match self.burst(|| peer.measure(bench, size, messages, self.cores)) {
                Ok((value, _)) if best.is_none_or(|b| bench.is_better(value, b)) => {
                    best = Some(value);
                    contender.peer = Some(peer);
                }
                Ok(_) => {}
                Err(failure) => contender.why_not = failure.to_string(),
            }
        }
        contender
    }

    /// One measurement, at a good moment if there is one before the budget is spent; whether it was one.
    fn burst<T>(&self, mut measure: impl FnMut() -> Result<T>) -> Result<(T, bool)> {
        if !self.probed {
            return Ok((measure()?, true));
        }
        let now = Instant::now();
        let share = Duration::from_secs(self.options.budget) / 50;
        let until = self.deadline.min(now + share);
        let mut spare = None;
        while Instant::now() < until {
            if !probe::idle(self.cores) || !probe::near(self.cores) {
                continue;
            }
            let value = measure()?;
            if probe::near(self.cores) {
                return Ok((value, true));
            }
            spare = Some(value);
        }
        match spare {
            Some(value) => Ok((value, false)),
            None => Ok((measure()?, false)),
        }
    }

    /// Messages of a burst: enough to say something, few enough to be over before the machine changes.
    fn messages(&self, size: usize) -> u64 {
        let (bytes, least, most) = match self.path {
            Path::Verbs => (4u64 << 20, 20, 500),
            _ => (1 << 30, 100, 100_000),
        };
        (bytes / size.max(8 << 10) as u64).clamp(least, most)
    }
}

/// A rival at one size.
struct Contender {
    name: String,
    peer: Option<Peer>,
    /// Of each round, and whether the moment was good.
    results: Vec<Option<(f64, bool)>>,
    why_not: String,
}

impl Contender {
    fn round(&mut self, measure: impl FnOnce(&Peer) -> Result<(f64, bool)>) {
        let result = self.peer.as_ref().map(measure);
        self.results.push(match result {
            None => None,
            Some(Ok(result)) => Some(result),
            Some(Err(failure)) => {
                self.why_not = failure.to_string();
                None
            }
        });
    }

    /// The medians of the rounds in which both ran (of the figures, and of the rounds' ratios): those of good moments,
    /// where there are any.
    fn row(
        self,
        suite: &Suite,
        bench: Bench,
        size: usize,
        ours: &[(ours::OurSample, bool)],
    ) -> Row {
        let statistic = self
            .peer
            .as_ref()
            .map_or(Statistic::Median, |p| p.statistic);
        let own = |sample: &ours::OurSample| match statistic {
            Statistic::Median => sample.median,
            Statistic::Mean => sample.mean,
        };
        let pairs: Vec<(f64, f64, bool)> = ours
            .iter()
            .zip(&self.results)
            .filter_map(|((sample, near), theirs)| {
                let (theirs, theirs_near) = (*theirs)?;
                Some((own(sample), theirs, *near && theirs_near))
            })
            .collect();
        let near = pairs.iter().any(|p| p.2);
        let counted: Vec<_> = pairs.iter().filter(|p| p.2 == near).collect();
        let theirs: Vec<f64> = counted.iter().map(|p| p.1).collect();
        let ratios: Vec<f64> = counted.iter().map(|p| p.0 / p.1).collect();
        let our_values: Vec<f64> = match counted.is_empty() {
            true => ours.iter().map(|(sample, _)| own(sample)).collect(),
            false => counted.iter().map(|p| p.0).collect(),
        };
        let (our_median, their_median) = (median(&our_values), median(&theirs));
        Row {
            suite: suite.name.to_owned(),
            bench: format!("{}_{}", suite.kind, bench.name()),
            path: match bench {
                Bench::DatagramLatency => "ud".to_owned(),
                _ => name_of(suite.path).to_owned(),
            },
            size,
            peer: self.peer.map_or(self.name, |p| p.name),
            metric: bench.metric().to_owned(),
            better: bench.better().to_owned(),
            ours: our_median,
            theirs: their_median,
            ratio: median(&ratios),
            rounds: our_values.len(),
            near: near || (counted.is_empty() && ours.iter().all(|o| o.1)),
            ours_min: minimum(&our_values),
            theirs_min: minimum(&theirs),
            skipped: their_median.is_none().then_some(self.why_not),
        }
    }
}

/// The first verbs device: what ours takes, too, where there is one.
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

    fn suite(options: &SuiteOptions) -> Suite<'_> {
        Suite {
            name: "shm",
            kind: "tagged",
            benches: &[],
            path: Path::Shm,
            ours: Ours::Ferro,
            options,
            cores: (0, 0),
            probed: false,
            deadline: Instant::now(),
        }
    }

    fn options() -> SuiteOptions {
        SuiteOptions {
            sizes: None,
            rounds: 3,
            peer_root: None,
            budget: 1,
        }
    }

    fn sample(value: f64) -> ours::OurSample {
        ours::OurSample {
            median: value,
            mean: 10.0 * value,
        }
    }

    fn contender(results: Vec<Option<(f64, bool)>>) -> Contender {
        Contender {
            name: "rival".to_owned(),
            peer: None,
            results,
            why_not: "it is not there".to_owned(),
        }
    }

    #[test]
    fn only_good_moments_count_where_there_are_any() {
        let options = options();
        let ours = [
            (sample(1.0), true),
            (sample(8.0), true),
            (sample(3.0), true),
        ];
        let rival = contender(vec![
            Some((2.0, true)),
            Some((8.0, false)),
            Some((4.0, true)),
        ]);
        let row = rival.row(&suite(&options), Bench::Latency, 8, &ours);
        assert_eq!(
            (row.ours, row.theirs, row.rounds, row.near),
            (Some(2.0), Some(3.0), 2, true)
        );
        // Of 1/2 and 3/4.
        assert_eq!(row.ratio, Some(0.625));
        assert_eq!(
            (row.ours_min, row.theirs_min, row.skipped),
            (Some(1.0), Some(2.0), None)
        );

        let far = contender(vec![Some((2.0, false)), Some((8.0, false)), None]);
        let row = far.row(&suite(&options), Bench::Latency, 8, &ours);
        assert_eq!((row.rounds, row.near, row.theirs), (2, false, Some(5.0)));
    }

    #[test]
    fn a_rival_that_is_not_there_is_a_row_that_says_so() {
        let options = options();
        let ours = [(sample(1.0), true)];
        let row = contender(vec![None]).row(&suite(&options), Bench::Bandwidth, 8, &ours);
        assert_eq!((row.ours, row.theirs, row.ratio), (Some(1.0), None, None));
        assert_eq!(row.skipped.as_deref(), Some("it is not there"));
    }

    #[test]
    fn addresses_of_gids() {
        let gid = "0000:0000:0000:0000:0000:ffff:0a01:0001";
        assert_eq!(ipv4_of_gid(gid).as_deref(), Some("10.1.0.1"));
        assert_eq!(ipv4_of_gid("fe80:0000:0000:0000:0011:22ff:fe33:4455"), None);
    }
}
