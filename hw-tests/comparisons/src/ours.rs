//! Our side of a comparison: `ferro bench` as a user runs it.

use std::process::Command;

use ferro::failure::{Failure, Result};
use ferro::providers::Path;
use serde::Deserialize;

use crate::bench::{Bench, name_of};
use crate::process::run_one;

/// One burst of ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OurSample {
    /// Our figure beside a peer's median.
    pub(crate) median: f64,
    /// Our figure beside a peer's mean.
    pub(crate) mean: f64,
}

/// The fields of `ferro bench --json` that count here.
#[derive(Deserialize)]
struct BenchResult {
    path: String,
    median_us: Option<f64>,
    mean_us: Option<f64>,
    polled_us: Option<f64>,
    megabytes_per_s: Option<f64>,
    messages_per_s: Option<f64>,
}

/// `ferro bench BENCH --json`, by the program in the folder of this one.
///
/// # Errors
///
/// When it is not there.
pub(crate) fn ferro_bench(bench: &str) -> Result<Command> {
    let own = std::env::current_exe().map_err(|e| Failure::io("find the own program", e))?;
    let program = own.with_file_name("ferro");
    if !program.is_file() {
        let program = program.display();
        return Err(Failure::new(format!(
            "{program} is missing; build the package ferro with the same profile"
        )));
    }
    let mut command = Command::new(program);
    command.args(["bench", bench, "--json"]);
    Ok(command)
}

/// Measures once.
///
/// # Errors
///
/// When the run fails, or another path carried the messages.
pub(crate) fn measure(
    path: Path,
    bench: Bench,
    size: usize,
    messages: u64,
    on: (usize, usize),
) -> Result<OurSample> {
    let what = match bench {
        Bench::Latency | Bench::DatagramLatency => "lat",
        Bench::Bandwidth | Bench::BlockingBandwidth => "bw",
        Bench::BothWays => "bibw",
        Bench::Rate | Bench::ThreadRate(_) => "rate",
        Bench::PutLatency
        | Bench::DeliveredPutLatency
        | Bench::MappedPutLatency
        | Bench::PutBandwidth => "put",
        Bench::GetLatency | Bench::TrustedGetLatency | Bench::MappedGetLatency => "get",
        Bench::FetchAddLatency | Bench::MappedFetchAddLatency => "atomic",
        Bench::Alltoall(_) | Bench::Allreduce(_) | Bench::OffloadAllreduce(_) => {
            return Err(Failure::new("collectives are measured over MPI"));
        }
    };
    let path = name_of(path);
    let mut command = ferro_bench(what)?;
    command.arg("--spawn").args([
        format!("--path={path}"),
        format!("--sizes={size}"),
        format!("--iters={messages}"),
        format!("--cores={},{}", on.0, on.1),
    ]);
    if bench == Bench::BlockingBandwidth {
        command.arg("--block");
    }
    if let Bench::ThreadRate(threads) = bench {
        command.arg(format!("--threads={threads}"));
    }
    if bench.is_mapped() {
        command.arg("--mapped");
    }
    if bench == Bench::DeliveredPutLatency {
        command.arg("--delivered");
    }
    if bench == Bench::TrustedGetLatency {
        command.env("FERRO_RENDEZVOUS", "read");
    }
    if bench == Bench::DatagramLatency {
        command.env("FERRO_LANE", "ud");
    }
    parse(&run_one("ferro", command, &[on.0, on.1])?, path, bench)
}

fn parse(json: &str, path: &str, bench: Bench) -> Result<OurSample> {
    let results: Vec<BenchResult> =
        serde_json::from_str(json).map_err(|e| Failure::io("read the output of ferro bench", e))?;
    let wrong = || Failure::new("the output of ferro bench has no result");
    let result = results.first().ok_or_else(wrong)?;
    if path != "auto" && result.path != path {
        return Err(Failure::new(format!(
            "asked for path {path}, carried by {}",
            result.path
        )));
    }
    let figure = match bench.in_any_memory() {
        Bench::Latency
        | Bench::DatagramLatency
        | Bench::GetLatency
        | Bench::TrustedGetLatency
        | Bench::FetchAddLatency => result.median_us,
        Bench::PutLatency | Bench::DeliveredPutLatency => result.polled_us,
        Bench::Rate | Bench::ThreadRate(_) => result.messages_per_s,
        _ => result.megabytes_per_s,
    };
    let median = figure.ok_or_else(wrong)?;
    Ok(OurSample {
        median,
        mean: result.mean_us.unwrap_or(median),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_checked() {
        let lat = r#"[{"path": "shm", "median_us": 0.2, "mean_us": 0.3, "size": 8}]"#;
        let sample = parse(lat, "shm", Bench::Latency).unwrap();
        assert_eq!((sample.median, sample.mean), (0.2, 0.3));
        assert!(
            parse(lat, "verbs", Bench::Latency)
                .unwrap_err()
                .to_string()
                .contains("carried by shm")
        );
        let bw = r#"[{"path": "verbs", "megabytes_per_s": 55.5, "messages_per_s": 7.5}]"#;
        for (bench, figure) in [
            (Bench::Bandwidth, 55.5),
            (Bench::BothWays, 55.5),
            (Bench::Rate, 7.5),
            (Bench::ThreadRate(4), 7.5),
        ] {
            assert_eq!(parse(bw, "verbs", bench).unwrap().median, figure);
        }
        assert!(parse(bw, "verbs", Bench::Latency).is_err());
        let put = r#"[{"path": "shm", "median_us": 2.5, "polled_us": 1.5, "megabytes_per_s": 9}]"#;
        for (bench, figure) in [
            (Bench::PutLatency, 1.5),
            (Bench::GetLatency, 2.5),
            (Bench::FetchAddLatency, 2.5),
            (Bench::PutBandwidth, 9.0),
        ] {
            assert_eq!(parse(put, "shm", bench).unwrap().median, figure);
        }
        assert!(parse("[]", "shm", Bench::Latency).is_err());
    }
}
