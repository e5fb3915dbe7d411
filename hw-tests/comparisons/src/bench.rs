//! The benches of a suite, and the names of their figures.

use ferro::providers::Path;

/// As rows and options name it.
pub(crate) fn name_of(path: Path) -> &'static str {
    match path {
        Path::Verbs => "verbs",
        Path::Shm => "shm",
        Path::Auto => "auto",
    }
}

/// A bench of a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bench {
    /// Half the round trip, in µs.
    Latency,
    /// The same over lanes of the UD kind.
    DatagramLatency,
    /// One way, in 10⁶ bytes a second.
    Bandwidth,
    /// The same by processes that sleep in place of polling.
    BlockingBandwidth,
    /// Both ways at once, the sum, in 10⁶ bytes a second.
    BothWays,
    /// Messages a second, one way.
    Rate,
    /// Half the round trip of writes to the other side's memory, in which each side waits for the
    /// bytes, in µs.
    PutLatency,
    /// The same of writes that complete once their bytes are visible.
    DeliveredPutLatency,
    /// A read of the other side's memory, in µs.
    GetLatency,
    /// The same where the device is trusted to read more than a packet at a time.
    TrustedGetLatency,
    /// A fetch-and-add on the other side's memory, in µs.
    FetchAddLatency,
    /// As `PutLatency`, in memory that both sides map.
    MappedPutLatency,
    /// As `GetLatency`, in memory that both sides map.
    MappedGetLatency,
    /// As `FetchAddLatency`, in memory that both sides map.
    MappedFetchAddLatency,
    /// Writes to the other side's memory, in 10⁶ bytes a second.
    PutBandwidth,
    /// The same of so many threads in each process, each with an endpoint of its own: the sum.
    ThreadRate(usize),
    /// A call of MPI's alltoall of so many ranks, in µs.
    Alltoall(usize),
    /// A call of MPI's allreduce of so many ranks, in µs.
    Allreduce(usize),
    /// A call of libfabric's allreduce (fi_collective(3)) of so many ranks, in µs.
    OffloadAllreduce(usize),
}

/// A figure of a row.
pub(crate) struct Figure {
    /// The bench, as rows name it.
    pub(crate) name: String,
    pub(crate) metric: &'static str,
    /// The factor from a measured value to the figure.
    scale: f64,
}

impl Figure {
    /// The figure of a measured value.
    pub(crate) fn of(&self, measured: f64) -> f64 {
        measured * self.scale
    }
}

impl Bench {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Latency | Self::DatagramLatency => "latency".to_owned(),
            Self::Bandwidth => "bandwidth".to_owned(),
            Self::BlockingBandwidth => "blocking_bandwidth".to_owned(),
            Self::BothWays => "bidirectional_bandwidth".to_owned(),
            Self::Rate => "rate".to_owned(),
            Self::PutLatency => "put_latency".to_owned(),
            Self::DeliveredPutLatency => "put_latency_delivered".to_owned(),
            Self::GetLatency => "get_latency".to_owned(),
            Self::TrustedGetLatency => "get_latency_trusted".to_owned(),
            Self::FetchAddLatency => "fetch_add_latency".to_owned(),
            Self::MappedPutLatency => "put_latency_mapped".to_owned(),
            Self::MappedGetLatency => "get_latency_mapped".to_owned(),
            Self::MappedFetchAddLatency => "fetch_add_latency_mapped".to_owned(),
            Self::PutBandwidth => "put_bandwidth".to_owned(),
            Self::ThreadRate(threads) => format!("rate_{threads}_threads"),
            Self::Alltoall(ranks) => format!("alltoall_{ranks}_ranks"),
            Self::Allreduce(ranks) => format!("allreduce_{ranks}_ranks"),
            Self::OffloadAllreduce(ranks) => format!("fi_allreduce_{ranks}_ranks"),
        }
    }

    /// The same operation in memory of any kind.
    pub(crate) fn in_any_memory(self) -> Self {
        match self {
            Self::MappedPutLatency => Self::PutLatency,
            Self::MappedGetLatency => Self::GetLatency,
            Self::MappedFetchAddLatency => Self::FetchAddLatency,
            other => other,
        }
    }

    /// Whether the memory is such that both sides map it.
    pub(crate) fn is_mapped(self) -> bool {
        self.in_any_memory() != self
    }

    /// Whether it is of one-sided operations, whose names begin with `rma`.
    pub(crate) fn is_one_sided(self) -> bool {
        matches!(
            self.in_any_memory(),
            Self::PutLatency
                | Self::DeliveredPutLatency
                | Self::GetLatency
                | Self::TrustedGetLatency
                | Self::FetchAddLatency
                | Self::PutBandwidth
        )
    }

    /// The figures that a measurement gives, each a row of its own.
    pub(crate) fn figures(self, size: usize) -> Vec<Figure> {
        let figure = |name, metric, scale| Figure {
            name,
            metric,
            scale,
        };
        let mut figures = vec![figure(self.name(), self.metric(), 1.0)];
        if let Self::ThreadRate(threads) = self {
            let name = format!("bandwidth_{threads}_threads");
            figures.push(figure(name, "bandwidth_mbs", size as f64 / 1e6));
        }
        figures
    }

    pub(crate) fn metric(self) -> &'static str {
        match self {
            Self::Latency
            | Self::DatagramLatency
            | Self::PutLatency
            | Self::DeliveredPutLatency
            | Self::GetLatency
            | Self::TrustedGetLatency
            | Self::FetchAddLatency
            | Self::MappedPutLatency
            | Self::MappedGetLatency
            | Self::MappedFetchAddLatency
            | Self::Alltoall(_)
            | Self::Allreduce(_)
            | Self::OffloadAllreduce(_) => "latency_us",
            Self::Bandwidth | Self::BlockingBandwidth | Self::BothWays | Self::PutBandwidth => {
                "bandwidth_mbs"
            }
            Self::Rate | Self::ThreadRate(_) => "rate_mps",
        }
    }

    pub(crate) fn better(self) -> &'static str {
        match self.metric() {
            "latency_us" => "lower",
            _ => "higher",
        }
    }

    /// Whether `a` is a better result than `b`.
    pub(crate) fn is_better(self, a: f64, b: f64) -> bool {
        match self.better() {
            "lower" => a < b,
            _ => a > b,
        }
    }

    /// The sizes that are measured where nobody says which.
    pub(crate) fn default_sizes(self) -> &'static [usize] {
        match self {
            Self::ThreadRate(_) => &[64],
            Self::FetchAddLatency | Self::MappedFetchAddLatency | Self::OffloadAllreduce(_) => &[8],
            // Of the others one packet holds all bytes.
            Self::TrustedGetLatency => &[64 << 10, 1 << 20],
            Self::Alltoall(_) | Self::Allreduce(_) => &[8, 64 << 10],
            _ => &[8, 4 << 10, 64 << 10, 1 << 20],
        }
    }

    /// Whether it says anything about messages of that size.
    pub(crate) fn suits(self, size: usize) -> bool {
        match self {
            Self::Latency => true,
            // A datagram of the peer holds no more.
            Self::DatagramLatency => size <= 4096,
            Self::Bandwidth
            | Self::PutLatency
            | Self::DeliveredPutLatency
            | Self::GetLatency
            | Self::MappedPutLatency
            | Self::MappedGetLatency
            | Self::PutBandwidth => size != 0,
            Self::BlockingBandwidth | Self::BothWays | Self::TrustedGetLatency => size >= 4096,
            // The peers have one element of 64 bits.
            Self::FetchAddLatency | Self::MappedFetchAddLatency => size == 8,
            // The program has one double.
            Self::OffloadAllreduce(_) => size == 8,
            Self::Rate | Self::ThreadRate(_) => (1..=64).contains(&size),
            // Whole doubles.
            Self::Alltoall(_) | Self::Allreduce(_) => size != 0 && size % 8 == 0,
        }
    }
}
