//! libfabric: `fi_pingpong`, which prints means, and programs of ours for several threads and for
//! one-sided operations.

use std::path::Path;

use crate::bench::Bench;
use crate::process::Program;

/// The program.
pub(super) const PROGRAM: &str = "fi_pingpong";

/// Server and client.
pub(super) fn programs(
    provider: &str,
    address: &str,
    size: usize,
    messages: u64,
    port: u16,
) -> (Program, Program) {
    let common = format!("-p {provider} -e rdm -m tagged -I {messages} -S {size}");
    (
        Program::new(PROGRAM, format!("{common} -B {port}")),
        Program::new(PROGRAM, format!("{common} -P {port} {address}")),
    )
}

/// Server and client of `plugin-ofi/examples/threads_peer.rs`.
pub(super) fn of_threads(
    file: &Path,
    threads: usize,
    address: &str,
    size: usize,
    messages: u64,
    port: u16,
) -> (Program, Program) {
    let run = |arguments: String| Program {
        file: Some(file.to_owned()),
        ..Program::new("threads_peer", arguments)
    };
    (
        run(format!("listen {port}")),
        run(format!("{address}:{port} {threads} {size} {messages}")),
    )
}

/// Server and client of `plugin-ofi/examples/rma_peer.rs`.
pub(super) fn of_one_sided(
    file: &Path,
    bench: Bench,
    address: &str,
    size: usize,
    operations: u64,
    port: u16,
) -> (Program, Program) {
    let run = |arguments: String| Program {
        file: Some(file.to_owned()),
        ..Program::new("rma_peer", arguments)
    };
    let test = match bench {
        Bench::PutLatency => "put_lat",
        Bench::GetLatency => "get",
        Bench::FetchAddLatency => "fetch_add",
        _ => "put_bw",
    };
    (
        run(format!("listen {port}")),
        run(format!("{address}:{port} {test} {size} {operations}")),
    )
}

/// Half the round trip of writes, or the time of a read or a fetch-and-add, in µs, or 10⁶ bytes a
/// second.
pub(super) fn one_sided_figure(bench: Bench, printed: &str) -> Option<f64> {
    match bench {
        Bench::PutBandwidth => field(printed, "megabytes_per_s"),
        _ => field(printed, "median_us"),
    }
}

/// Messages a second of all threads.
pub(super) fn rate_of_threads(printed: &str) -> Option<f64> {
    field(printed, "messages_per_s")
}

/// A number of the object that a program of ours prints.
fn field(printed: &str, name: &str) -> Option<f64> {
    let (_, rest) = printed.split_once(&format!("\"{name}\":"))?;
    rest.split([',', '}']).next()?.trim().parse().ok()
}

/// The mean half round trip in µs.
pub(super) fn figure(printed: &str) -> Option<f64> {
    let mut lines = printed.lines().skip_while(|l| !l.starts_with("bytes"));
    let column = lines
        .next()?
        .split_ascii_whitespace()
        .position(|name| name == "usec/xfer")?;
    lines
        .next()?
        .split_ascii_whitespace()
        .nth(column)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_libfabric_2_1() {
        let printed = "\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
8       200     =200     3.1k        0.73s      0.00    1824.54       0.00
";
        assert_eq!(figure(printed), Some(1824.54));
        assert_eq!(
            figure("[error] util/pingpong.c:411 : failed to connect: Connection refused\n"),
            None
        );
        assert_eq!(figure(""), None);
        let threads = "{\"threads\": 4, \"messages_per_s\": 2500000.5}\n";
        assert_eq!(rate_of_threads(threads), Some(2_500_000.5));
        assert_eq!(rate_of_threads("no libfabric\n"), None);
        let put = "{\"median_us\":1.25,\"operations\":9,\"size\":8,\"test\":\"put_lat\"}\n";
        assert_eq!(one_sided_figure(Bench::PutLatency, put), Some(1.25));
        assert_eq!(one_sided_figure(Bench::PutBandwidth, put), None);
    }
}
