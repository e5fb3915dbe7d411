//! The programs that ours is compared with: how each is started, and where in its output the figure
//! stands.

mod libfabric;
mod perftest;
mod ucx;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering};

use ferro::failure::{Failure, Result};
use ferro::providers;
use perftest::PerftestProgram;

use crate::bench::Bench;
use crate::ours::OurSample;
use crate::process::{ProgramRoot, run_pair};
use crate::spinner::Spinner;
use crate::{bare_ring, mpi, ours};

/// The statistic of a burst that a peer reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statistic {
    /// The median.
    Median,
    /// The mean.
    Mean,
}

/// One way to run a program.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// As rows name it.
    pub(crate) name: String,
    /// The statistic of its figure.
    pub(crate) statistic: Statistic,
    tool: Tool,
    host: ProgramRoot,
    variables: Vec<(&'static str, String)>,
    address: String,
    /// Somebody else keeps the server's core busy.
    spinner: bool,
}

#[derive(Clone, Debug)]
enum Tool {
    Perftest {
        device: String,
        test: PerftestProgram,
    },
    Libfabric {
        provider: &'static str,
    },
    Ucx,
    /// plugin-ofi/examples/threads_peer.rs.
    LibfabricThreads {
        file: PathBuf,
        threads: usize,
    },
    /// plugin-ofi/examples/rma_peer.rs.
    LibfabricRma {
        file: PathBuf,
    },
    UcxThreads {
        threads: usize,
    },
    Mpi(mpi::MpiRun),
    /// The limit: no program.
    BareRing,
    /// `ferro bench lat`: a round trip of ours.
    RoundTrip {
        path: providers::Path,
    },
}

/// A tool in its variants, of which the fastest counts.
pub(crate) struct Rival {
    /// Its name where none of the variants runs.
    pub(crate) name: &'static str,
    /// The variants; none where it is not installed.
    pub(crate) variants: Vec<Peer>,
    /// The program that would have to be installed.
    pub(crate) program: &'static str,
}

/// The rivals over a verbs device that has an IPv4 address.
pub(crate) fn over_verbs(bench: Bench, device: &str, address: &str) -> Vec<Rival> {
    let mut rivals = of_perftest(bench, device, address);
    // It measures latency only.
    if bench == Bench::Latency {
        let tool = Tool::Libfabric {
            provider: "verbs;ofi_rxm",
        };
        let peer = Peer {
            statistic: Statistic::Mean,
            // Its completion queue would be larger than Soft-RoCE allows.
            variables: vec![("FI_UNIVERSE_SIZE", "64".to_owned())],
            ..Peer::here(tool, address)
        };
        let name = "libfabric verbs;ofi_rxm (means)";
        rivals.push(Rival::of(name, libfabric::PROGRAM, vec![peer]));
    }
    let of_messages = matches!(bench, Bench::Latency | Bench::Bandwidth | Bench::Rate);
    if of_messages || bench.is_one_sided() {
        let peer = Peer {
            variables: vec![
                ("UCX_TLS", "rc_verbs,ud_verbs".to_owned()),
                ("UCX_NET_DEVICES", format!("{device}:1")),
                ("UCX_UD_VERBS_ETH_DGID_CHECK", "n".to_owned()),
            ],
            ..Peer::here(Tool::Ucx, address)
        };
        rivals.push(Rival::of("UCX rc_verbs", ucx::PROGRAM, vec![peer]));
    }
    rivals.extend(Rival::round_trip(bench, providers::Path::Verbs));
    rivals
}

/// The programs of perftest that do what a bench does.
fn of_perftest(bench: Bench, device: &str, address: &str) -> Vec<Rival> {
    let rival = |name, test: PerftestProgram, spinner| {
        let tool = Tool::Perftest {
            device: device.to_owned(),
            test,
        };
        let peer = Peer {
            spinner,
            ..Peer::here(tool, address)
        };
        Rival::of(name, test.program(), vec![peer])
    };
    match bench {
        Bench::Latency => vec![rival(
            "perftest ib_send_lat RC",
            PerftestProgram::SendLat,
            false,
        )],
        Bench::DatagramLatency => {
            vec![rival(
                "perftest ib_send_lat UD",
                PerftestProgram::DatagramLat,
                false,
            )]
        }
        Bench::Bandwidth => vec![
            rival("perftest ib_send_bw RC", PerftestProgram::SendBw, false),
            // Our receiver polls; this one's side does nothing at all.
            rival(
                "perftest ib_write_bw RC beside a spinner",
                PerftestProgram::WriteBw,
                true,
            ),
        ],
        Bench::BlockingBandwidth => vec![rival(
            "perftest ib_write_bw RC",
            PerftestProgram::WriteBw,
            false,
        )],
        Bench::BothWays => vec![rival(
            "perftest ib_send_bw -b RC",
            PerftestProgram::SendBothWays,
            false,
        )],
        Bench::Rate => vec![rival(
            "perftest ib_send_bw RC",
            PerftestProgram::SendBw,
            false,
        )],
        Bench::PutLatency | Bench::DeliveredPutLatency => vec![rival(
            "perftest ib_write_lat RC",
            PerftestProgram::WriteLat,
            false,
        )],
        Bench::GetLatency | Bench::TrustedGetLatency => vec![rival(
            "perftest ib_read_lat RC",
            PerftestProgram::ReadLat,
            false,
        )],
        Bench::FetchAddLatency => vec![rival(
            "perftest ib_atomic_lat RC",
            PerftestProgram::FetchAddLat,
            false,
        )],
        Bench::PutBandwidth => vec![
            rival("perftest ib_write_bw RC", PerftestProgram::WriteBw, false),
            // With a target that computes beside it. Ours sleeps in both.
            rival(
                "perftest ib_write_bw RC beside a spinner",
                PerftestProgram::WriteBw,
                true,
            ),
        ],
        // None of its programs does so.
        _ => Vec::new(),
    }
}

/// Programs of ours that use libfabric, where they are compiled.
#[derive(Clone, Copy)]
pub(crate) struct FabricPrograms<'a> {
    /// By several threads.
    pub(crate) threads: Option<&'a Path>,
    /// By one-sided operations.
    pub(crate) one_sided: Option<&'a Path>,
}

/// The peers to compare with through shared memory.
pub(crate) fn over_shm(
    bench: Bench,
    hosts: &[(ProgramRoot, &str)],
    programs: FabricPrograms<'_>,
) -> Vec<Rival> {
    if let Bench::ThreadRate(threads) = bench {
        return of_threads(threads, hosts, programs.threads);
    }
    // Copying through the ring beats its default on some machines: both are shown.
    let (mut fabric, mut fabric_ring, mut ucx) = (Vec::new(), Vec::new(), Vec::new());
    for (host, place) in hosts {
        let peer = |name: String, tool, statistic, variables| Peer {
            name,
            statistic,
            host: host.clone(),
            variables,
            ..Peer::here(tool, "127.0.0.1")
        };
        for (rival, name, off) in [
            (&mut fabric, "libfabric shm", "0"),
            (&mut fabric_ring, "libfabric shm without CMA", "1"),
        ] {
            rival.push(peer(
                format!("{name}, {place} (means)"),
                Tool::Libfabric { provider: "shm" },
                Statistic::Mean,
                vec![("FI_SHM_DISABLE_CMA", off.to_owned())],
            ));
        }
        for lanes in ["posix", "posix,cma"] {
            ucx.push(peer(
                format!("UCX {lanes}, {place}"),
                Tool::Ucx,
                Statistic::Median,
                vec![("UCX_TLS", lanes.to_owned())],
            ));
        }
    }
    let mut rivals = vec![Rival::of("UCX posix", ucx::PROGRAM, ucx)];
    if bench == Bench::Latency {
        rivals.insert(0, Rival::of("libfabric shm", libfabric::PROGRAM, fabric));
        rivals.insert(
            1,
            Rival::of("libfabric shm without CMA", libfabric::PROGRAM, fabric_ring),
        );
    }
    // It has no memory that both sides map.
    if bench.is_one_sided() && !bench.is_mapped() {
        rivals.insert(0, of_one_sided(hosts, programs.one_sided));
    }
    rivals.extend(Rival::round_trip(bench, providers::Path::Shm));
    if bare_ring::knows(bench) {
        rivals.push(Rival::limit());
    }
    rivals
}

/// libfabric's one-sided operations through shared memory.
fn of_one_sided(hosts: &[(ProgramRoot, &str)], program: Option<&Path>) -> Rival {
    let mut variants = Vec::new();
    for (host, place) in hosts {
        let Some(file) = program.and_then(|file| host.find(file)) else {
            continue;
        };
        for (name, off) in [("libfabric shm", "0"), ("libfabric shm without CMA", "1")] {
            variants.push(Peer {
                name: format!("{name}, {place}"),
                host: host.clone(),
                variables: vec![("FI_SHM_DISABLE_CMA", off.to_owned())],
                ..Peer::here(Tool::LibfabricRma { file: file.clone() }, "127.0.0.1")
            });
        }
    }
    Rival {
        name: "libfabric shm",
        variants,
        program: "the program that drives it",
    }
}

/// The rivals with several threads through shared memory.
fn of_threads(
    threads: usize,
    hosts: &[(ProgramRoot, &str)],
    thread_peer: Option<&Path>,
) -> Vec<Rival> {
    let (mut fabric, mut ucx) = (Vec::new(), Vec::new());
    for (host, place) in hosts {
        let peer = |name: String, tool, variables| Peer {
            name,
            host: host.clone(),
            variables,
            ..Peer::here(tool, "127.0.0.1")
        };
        if let Some(file) = thread_peer.and_then(|file| host.find(file)) {
            fabric.push(peer(
                format!("libfabric shm, {place}"),
                Tool::LibfabricThreads { file, threads },
                Vec::new(),
            ));
        }
        if host.has(ucx::PROGRAM) {
            let variables = vec![("UCX_TLS", "posix".to_owned())];
            let name = format!("UCX posix, {place}");
            ucx.push(peer(name, Tool::UcxThreads { threads }, variables));
        }
    }
    let rival = |name, program, variants| Rival {
        name,
        variants,
        program,
    };
    vec![
        rival("libfabric shm", "the program that drives it", fabric),
        rival("UCX posix", ucx::PROGRAM, ucx),
    ]
}

impl Statistic {
    /// Our figure beside it.
    pub(crate) fn of(self, sample: &OurSample) -> f64 {
        match self {
            Self::Median => sample.median,
            Self::Mean => sample.mean,
        }
    }
}

impl Rival {
    /// The limit of a transport that copies through the ring of a pair.
    fn limit() -> Self {
        let name = "a bare ring (the limit)";
        Self {
            name,
            variants: vec![Peer {
                name: name.to_owned(),
                ..Peer::here(Tool::BareRing, "")
            }],
            program: "a second core",
        }
    }

    /// Our own round trip of as many bytes, for an operation that the target's processor carries
    /// out: its request and its reply go the same way.
    fn round_trip(bench: Bench, path: providers::Path) -> Option<Self> {
        let name = "our own round trip";
        let peer = Peer {
            name: name.to_owned(),
            ..Peer::here(Tool::RoundTrip { path }, "")
        };
        (bench == Bench::FetchAddLatency).then(|| Self {
            name,
            variants: vec![peer],
            program: "ferro",
        })
    }

    /// One that the program of ours runs as well.
    pub(crate) fn in_same_run(name: &'static str) -> Self {
        Self {
            name,
            variants: Vec::new(),
            program: "the program of both",
        }
    }

    /// MPI over something else.
    pub(crate) fn of_mpi(rival: &mpi::MpiRival) -> Self {
        let peer = Peer {
            name: rival.name.to_owned(),
            ..Peer::here(Tool::Mpi(rival.run.clone()), "")
        };
        Self {
            name: rival.name,
            variants: rival
                .run
                .is_installed()
                .then_some(peer)
                .into_iter()
                .collect(),
            program: "its mpiexec",
        }
    }

    fn of(name: &'static str, program: &'static str, variants: Vec<Peer>) -> Self {
        let mut variants: Vec<Peer> = variants
            .into_iter()
            .filter(|p| p.host.has(program))
            .collect();
        if let [only] = variants.as_mut_slice() {
            if only.name.is_empty() || only.name == program {
                only.name = name.to_owned();
            }
        }
        Self {
            name,
            variants,
            program,
        }
    }
}

impl Peer {
    /// A tool of this machine, as it is. Its rival names it.
    fn here(tool: Tool, address: &str) -> Self {
        Self {
            name: String::new(),
            statistic: Statistic::Median,
            tool,
            host: ProgramRoot::Here,
            variables: Vec::new(),
            address: address.to_owned(),
            spinner: false,
        }
    }

    /// Measures once, in the unit of the bench.
    ///
    /// # Errors
    ///
    /// When it fails, or prints what can not be understood.
    pub(crate) fn measure(
        &self,
        bench: Bench,
        size: usize,
        messages: u64,
        on: (usize, usize),
    ) -> Result<f64> {
        let port = next_port();
        let (mut server, mut client) = match &self.tool {
            Tool::Mpi(run) => return Ok(run.measure(bench, size, messages, on)?.median),
            Tool::BareRing => return bare_ring::measure(bench, size, messages, on),
            Tool::RoundTrip { path } => {
                let half = ours::measure(*path, Bench::Latency, size, messages, on)?;
                return Ok(2.0 * half.median);
            }
            Tool::Perftest { device, test } => {
                perftest::programs(*test, device, &self.address, size, messages, port)
            }
            Tool::Libfabric { provider } => {
                libfabric::programs(provider, &self.address, size, messages, port)
            }
            Tool::Ucx => ucx::programs(bench, &self.address, size, messages, port),
            Tool::LibfabricThreads { file, threads } => {
                libfabric::of_threads(file, *threads, &self.address, size, messages, port)
            }
            Tool::LibfabricRma { file } => {
                libfabric::of_one_sided(file, bench, &self.address, size, messages, port)
            }
            Tool::UcxThreads { threads } => {
                ucx::of_threads(*threads, &self.address, size, messages, port)
            }
        };
        server.variables.clone_from(&self.variables);
        client.variables.clone_from(&self.variables);
        let _spinner = match self.spinner {
            true => Some(Spinner::on(on.0)?),
            false => None,
        };
        let printed = run_pair(&self.host, &server, &client, port, on)?;
        let figure = match self.tool {
            Tool::Perftest { .. } => perftest::figure(bench, &printed),
            Tool::Libfabric { .. } => libfabric::figure(&printed),
            Tool::Ucx => ucx::figure(bench, &printed),
            Tool::LibfabricThreads { .. } => libfabric::rate_of_threads(&printed),
            Tool::LibfabricRma { .. } => libfabric::one_sided_figure(bench, &printed),
            Tool::UcxThreads { .. } => ucx::rate_of_threads(&printed),
            Tool::Mpi(_) | Tool::BareRing | Tool::RoundTrip { .. } => None,
        };
        figure.filter(|v| v.is_finite() && *v > 0.0).ok_or_else(|| {
            Failure::new(format!(
                "the output of {} has no figure where it should",
                client.name
            ))
        })
    }
}

/// A port that no earlier run has used: the last one's may still be held.
fn next_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    23_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 6000
}
