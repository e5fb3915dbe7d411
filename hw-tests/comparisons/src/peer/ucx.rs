//! UCX: `ucx_perftest`.

use crate::bench::Bench;
use crate::process::Program;

/// The program.
pub(super) const PROGRAM: &str = "ucx_perftest";

/// Server and client. A build with MPI takes it that mpirun has started it, unless a terminal is
/// its input.
pub(super) fn programs(
    bench: Bench,
    address: &str,
    size: usize,
    messages: u64,
    port: u16,
) -> (Program, Program) {
    let test = match bench.in_any_memory() {
        Bench::Latency => "tag_lat",
        Bench::PutLatency | Bench::DeliveredPutLatency => "ucp_put_lat",
        Bench::GetLatency | Bench::TrustedGetLatency => "ucp_get",
        Bench::FetchAddLatency => "ucp_fadd",
        Bench::PutBandwidth => "ucp_put_bw",
        _ => "tag_bw",
    };
    let warmup = (messages / 10).clamp(10, 1000);
    let on_terminal = |program: Program| Program {
        on_terminal: true,
        ..program
    };
    (
        on_terminal(Program::new(PROGRAM, format!("-p {port}"))),
        on_terminal(Program::new(
            PROGRAM,
            format!("{address} -p {port} -t {test} -s {size} -n {messages} -w {warmup}"),
        )),
    )
}

/// The same where each side has so many threads, each with a worker of its own.
pub(super) fn of_threads(
    threads: usize,
    address: &str,
    size: usize,
    messages: u64,
    port: u16,
) -> (Program, Program) {
    let (server, mut client) = programs(Bench::Rate, address, size, messages, port);
    let options = ["-T", &threads.to_string(), "-M", "multi"].map(str::to_owned);
    client.arguments.extend(options);
    (server, client)
}

/// Messages a second of all threads: the last figure of the last line, which has no averages.
pub(super) fn rate_of_threads(printed: &str) -> Option<f64> {
    let last = printed
        .lines()
        .rev()
        .find(|l| l.trim_start().starts_with("Final:"))?;
    last.split_ascii_whitespace().last()?.parse().ok()
}

/// The median half round trip, read, or fetch-and-add, in µs, or the overall bandwidth in 10⁶ bytes
/// a second.
pub(super) fn figure(bench: Bench, printed: &str) -> Option<f64> {
    let last = printed
        .lines()
        .rev()
        .find(|l| l.trim_start().starts_with("Final:"))?;
    let fields: Vec<&str> = last.split_ascii_whitespace().collect();
    match bench.in_any_memory() {
        // Final: iterations, then 50 %, average, overall
        Bench::Latency
        | Bench::PutLatency
        | Bench::DeliveredPutLatency
        | Bench::GetLatency
        | Bench::TrustedGetLatency
        | Bench::FetchAddLatency => fields.get(2)?.parse().ok(),
        Bench::Rate => fields.get(8)?.parse().ok(),
        // average, overall, in MiB a second
        _ => Some(fields.get(6)?.parse::<f64>().ok()? * f64::from(1 << 20) / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_ucx_1_18() {
        let latency = "\
|    Stage     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
Final:                100000      0.100     0.691     0.691       11.05      11.05     1448077     1448077
";
        assert_eq!(figure(Bench::Latency, latency), Some(0.1));
        let bandwidth = "Final:                 10000      5.560    99.133    99.133      630.47     630.47       10087       10087\n";
        assert_eq!(figure(Bench::Rate, bandwidth), Some(10087.0));
        let mbs = figure(Bench::Bandwidth, bandwidth).unwrap();
        assert!((mbs - 661.096).abs() < 1e-2, "{mbs}");
        let threads = "\
[thread 3]             79010      0.261    45.780    26.576        1.33       2.30       21843       37627
Final:                100000                        23.285                  10.49                  171786
";
        assert_eq!(rate_of_threads(threads), Some(171_786.0));
        assert_eq!(
            rate_of_threads("ucx_perftest: invalid option -- 'T'\n"),
            None
        );
        assert_eq!(figure(Bench::Latency, "perftest.c:716  UCX  ERROR\n"), None);
    }
}
