//! perftest: `ib_send_lat`, `ib_send_bw`, `ib_write_lat`, `ib_write_bw`, `ib_read_lat`,
//! `ib_atomic_lat`.

use crate::bench::Bench;
use crate::process::Program;

/// The GID index of the device's IPv4 address.
const GID_INDEX: u32 = 1;

/// A program with its arguments beside device, size and count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PerftestProgram {
    /// Messages there and back.
    SendLat,
    /// The same by datagrams.
    DatagramLat,
    /// Messages one way.
    SendBw,
    /// Messages both ways at once.
    SendBothWays,
    /// RDMA writes one way; the other side does nothing.
    WriteBw,
    /// RDMA writes there and back: each side waits for the bytes.
    WriteLat,
    /// RDMA reads.
    ReadLat,
    /// Fetch-and-adds of 8 bytes, which the device carries out.
    FetchAddLat,
}

impl PerftestProgram {
    /// The program.
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::SendLat | Self::DatagramLat => "ib_send_lat",
            Self::SendBw | Self::SendBothWays => "ib_send_bw",
            Self::WriteBw => "ib_write_bw",
            Self::WriteLat => "ib_write_lat",
            Self::ReadLat => "ib_read_lat",
            Self::FetchAddLat => "ib_atomic_lat",
        }
    }
}

/// Server and client.
pub(super) fn programs(
    test: PerftestProgram,
    device: &str,
    address: &str,
    size: usize,
    messages: u64,
    port: u16,
) -> (Program, Program) {
    let own = match test {
        PerftestProgram::SendBothWays => format!("-b -s {size}"),
        // It has no size.
        PerftestProgram::FetchAddLat => "-A FETCH_AND_ADD".to_owned(),
        _ => format!("-s {size}"),
    };
    let kind = match test {
        PerftestProgram::DatagramLat => "UD",
        _ => "RC",
    };
    let common = format!("{own} -d {device} -x {GID_INDEX} -c {kind} -F -n {messages} -p {port}");
    let name = test.program();
    (
        Program::new(name, common.clone()),
        Program::new(name, format!("{common} {address}")),
    )
}

/// The typical half round trip, read, or fetch-and-add, in µs; the average bandwidth in 10⁶ bytes a
/// second (of both ways the sum); or messages a second.
pub(super) fn figure(bench: Bench, printed: &str) -> Option<f64> {
    // The row under the header `#bytes #iterations …`.
    let row = printed
        .lines()
        .skip_while(|l| !l.trim_start().starts_with("#bytes"))
        .nth(1)?;
    let fields: Vec<&str> = row.split_ascii_whitespace().collect();
    match bench {
        // t_min t_max t_typical
        Bench::Latency
        | Bench::DatagramLatency
        | Bench::PutLatency
        | Bench::DeliveredPutLatency
        | Bench::GetLatency
        | Bench::TrustedGetLatency
        | Bench::FetchAddLatency => fields.get(4)?.parse().ok(),
        // in 10⁶ a second
        Bench::Rate => Some(fields.get(4)?.parse::<f64>().ok()? * 1e6),
        // peak, average, in MiB a second
        _ => Some(fields.get(3)?.parse::<f64>().ok()? * f64::from(1 << 20) / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: &str = "\
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:01:00:01
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 8       200          244.96         12588.02      1586.80  	       1908.60     	1389.14		9539.06 		12588.02
---------------------------------------------------------------------------------------
";
    const BANDWIDTH: &str = "\
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      100              39.19              39.19  		     0.000627
---------------------------------------------------------------------------------------
";

    #[test]
    fn figures_of_perftest_24() {
        for bench in [
            Bench::Latency,
            Bench::PutLatency,
            Bench::GetLatency,
            Bench::FetchAddLatency,
        ] {
            assert_eq!(figure(bench, LATENCY), Some(1586.80));
        }
        let mbs = figure(Bench::Bandwidth, BANDWIDTH).unwrap();
        assert!((mbs - 41.0937).abs() < 1e-3, "{mbs}");
        assert_eq!(figure(Bench::Rate, BANDWIDTH), Some(627.0));
        assert_eq!(
            figure(Bench::Latency, "Couldn't connect to 10.1.0.1:18515\n"),
            None
        );
    }
}
