//! MPI: the same program by the same MPI, over our plugin and over what else that MPI can use.

use std::path::{Path as FilePath, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use ferro::failure::{Failure, Result};
use ferro::providers::Path;
use serde::Deserialize;

use crate::bench::{Bench, name_of};
use crate::cli::MpiOptions;
use crate::ours::OurSample;
use crate::process::{ProgramRoot, run_one};

/// Ours and the rivals of one MPI.
pub(crate) struct Runs {
    pub(crate) ours: MpiRun,
    pub(crate) rivals: Vec<MpiRival>,
}

/// The same MPI over something else.
pub(crate) struct MpiRival {
    pub(crate) name: &'static str,
    pub(crate) run: MpiRun,
}

/// How ranks are started.
#[derive(Clone, Debug)]
pub(crate) struct MpiRun {
    mpiexec: PathBuf,
    options: Vec<String>,
    variables: Vec<(&'static str, String)>,
    program: PathBuf,
    /// The transport that our own counters must show; others have no such counters.
    carrier: Option<Path>,
}

/// Open MPI over a verbs device.
pub(crate) fn open_mpi(options: &MpiOptions, device: &str) -> Runs {
    let run = |parameters: &[(&str, &str)], variables: &[(&'static str, &str)]| {
        let mut run = MpiRun {
            mpiexec: PathBuf::from("mpiexec"),
            // The ranks keep to their cores by themselves.
            options: ["--bind-to", "none", "--oversubscribe"]
                .map(str::to_owned)
                .to_vec(),
            variables: vec![
                ("OMPI_ALLOW_RUN_AS_ROOT", "1".to_owned()),
                ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1".to_owned()),
                // Alone on its core, who waits need not let others run.
                ("OMPI_MCA_mpi_yield_when_idle", "0".to_owned()),
            ],
            program: options.program.clone(),
            carrier: None,
        };
        for (name, value) in parameters {
            run.options
                .extend(["--mca", name, value].map(str::to_owned));
        }
        run.add(variables);
        run
    };
    let over_libfabric = |provider: &'static str| {
        [
            ("pml", "cm"),
            ("mtl", "ofi"),
            ("mtl_ofi_provider_include", provider),
            ("btl", "self"),
        ]
    };
    let mut ours = run(&over_libfabric("ferro"), &[("FERRO_SHM", "off")]);
    ours.is_ours(&options.plugin, Path::Verbs);
    let rivals = vec![
        MpiRival {
            name: "Open MPI over verbs;ofi_rxm",
            // Its completion queue would be larger than Soft-RoCE allows.
            run: run(
                &over_libfabric("verbs;ofi_rxm"),
                &[("FI_PROVIDER", "verbs;ofi_rxm"), ("FI_UNIVERSE_SIZE", "64")],
            ),
        },
        MpiRival {
            name: "Open MPI over UCX rc_verbs",
            run: run(
                &[
                    ("pml", "ucx"),
                    ("pml_ucx_tls", "any"),
                    ("pml_ucx_devices", "any"),
                    ("btl", "self"),
                ],
                &[
                    ("UCX_TLS", "rc_verbs,ud_verbs,self"),
                    ("UCX_NET_DEVICES", &format!("{device}:1")),
                    ("UCX_UD_VERBS_ETH_DGID_CHECK", "n"),
                ],
            ),
        },
    ];
    Runs { ours, rivals }
}

/// MPICH between two ranks through shared memory.
pub(crate) fn mpich(plugin: &FilePath, program: &FilePath, folder: &FilePath) -> Runs {
    over_mpich(plugin, program, folder, &[UCX, AS_IT_COMES])
}

/// The same, and over libfabric's own shared memory, for collectives of several ranks.
pub(crate) fn mpich_collectives(plugin: &FilePath, program: &FilePath, folder: &FilePath) -> Runs {
    over_mpich(plugin, program, folder, &COLLECTIVE_RIVALS)
}

const LIBFABRIC: &str = "MPICH over libfabric shm";
const UCX: &str = "MPICH over UCX";
const AS_IT_COMES: &str = "MPICH as it comes";

/// With whom collectives are compared.
pub(crate) const COLLECTIVE_RIVALS: [&str; 3] = [LIBFABRIC, UCX, AS_IT_COMES];

fn over_mpich(
    plugin: &FilePath,
    program: &FilePath,
    folder: &FilePath,
    rivals: &[&'static str],
) -> Runs {
    let run = |variables: &[(&'static str, &str)]| {
        let mut run = MpiRun {
            mpiexec: folder.join("bin/mpiexec"),
            options: Vec::new(),
            variables: Vec::new(),
            program: program.to_owned(),
            carrier: None,
        };
        run.add(variables);
        run
    };
    let mut ours = run(&[
        ("MPICH_CH4_NETMOD", "ofi"),
        // It would pass libfabric by between local ranks.
        ("MPIR_CVAR_NOLOCAL", "1"),
        ("MPIR_CVAR_CH4_OFI_ENABLE_RMA", "0"),
    ]);
    ours.is_ours(plugin, Path::Shm);
    let rival = |name: &'static str| {
        let variables: &[(&'static str, &str)] = match name {
            LIBFABRIC => &[
                ("MPICH_CH4_NETMOD", "ofi"),
                ("MPIR_CVAR_NOLOCAL", "1"),
                ("FI_PROVIDER", "shm"),
            ],
            UCX => &[("MPICH_CH4_NETMOD", "ucx"), ("MPIR_CVAR_NOLOCAL", "1")],
            _ => &[],
        };
        MpiRival {
            name,
            run: run(variables),
        }
    };
    Runs {
        ours,
        rivals: rivals.iter().copied().map(rival).collect(),
    }
}

/// The MPI with whose allreduce that of libfabric is compared, over the same plugin.
pub(crate) const OWN_ALLREDUCE: &str = "MPI_Allreduce over the same";

/// The rounds of a program that runs both sides by turns.
const TURNS: usize = 7;

/// The fields that plugin-ofi/mpi/bench.c and allreduce.c print.
#[derive(Deserialize)]
struct MpiMeasured {
    median_us: Option<f64>,
    theirs_median_us: Option<f64>,
    mean_us: Option<f64>,
    megabytes_per_s: Option<f64>,
    messages: u64,
}

impl MpiRun {
    /// A shell in place of MPI and its program.
    #[cfg(test)]
    pub(crate) fn of_shell(script: &str) -> Self {
        Self {
            mpiexec: PathBuf::from("sh"),
            options: vec!["-c".to_owned(), script.to_owned()],
            variables: Vec::new(),
            program: PathBuf::from("/nowhere"),
            carrier: None,
        }
    }

    /// MPICH with plugin-ofi/mpi/allreduce.c, compiled, as this run has it.
    pub(crate) fn with_program(&self, program: &FilePath) -> Self {
        Self {
            program: program.to_owned(),
            ..self.clone()
        }
    }

    fn add(&mut self, variables: &[(&'static str, &str)]) {
        let owned = variables.iter().map(|(n, v)| (*n, (*v).to_owned()));
        self.variables.extend(owned);
    }

    fn is_ours(&mut self, plugin: &FilePath, carrier: Path) {
        let folder = plugin.to_string_lossy();
        self.add(&[("FI_PROVIDER", "ferro"), ("FI_PROVIDER_PATH", &folder)]);
        self.carrier = Some(carrier);
    }

    /// Whether its launcher and its program are there.
    pub(crate) fn is_installed(&self) -> bool {
        ProgramRoot::Here.has(&self.mpiexec.to_string_lossy()) && self.program.is_file()
    }

    /// Measures once.
    ///
    /// # Errors
    ///
    /// When the run fails, or something else carried our messages.
    pub(crate) fn measure(
        &self,
        bench: Bench,
        size: usize,
        messages: u64,
        on: (usize, usize),
    ) -> Result<OurSample> {
        let (what, ranks) = match bench {
            Bench::Latency => ("lat", 2),
            Bench::Bandwidth => ("bw", 2),
            Bench::Alltoall(ranks) => ("alltoall", ranks),
            Bench::Allreduce(ranks) => ("allreduce", ranks),
            other => {
                let name = other.name();
                return Err(Failure::new(format!("{name} is not measured over MPI")));
            }
        };
        let numbers = [size as u64, messages, on.0 as u64, on.1 as u64];
        let arguments = [what.to_owned()];
        let arguments = arguments.into_iter().chain(numbers.map(|n| n.to_string()));
        let measured = self.run(ranks, arguments, on)?;
        let median = measured.median_us.or(measured.megabytes_per_s);
        let median = median.ok_or_else(no_figure)?;
        Ok(OurSample {
            median,
            mean: measured.mean_us.unwrap_or(median),
        })
    }

    /// Measures both sides once, by a program that runs them by turns: ours, and the median of the
    /// other side.
    ///
    /// # Errors
    ///
    /// As of [`measure`](Self::measure).
    pub(crate) fn measure_both(
        &self,
        bench: Bench,
        calls: u64,
        on: (usize, usize),
    ) -> Result<(OurSample, f64)> {
        let Bench::OffloadAllreduce(ranks) = bench else {
            let name = bench.name();
            return Err(Failure::new(format!(
                "{name} has no program for both sides"
            )));
        };
        let numbers = [calls, TURNS as u64, on.0 as u64, on.1 as u64];
        let measured = self.run(ranks, numbers.map(|n| n.to_string()), on)?;
        let median = measured.median_us.ok_or_else(no_figure)?;
        let theirs = measured.theirs_median_us.ok_or_else(no_figure)?;
        let sample = OurSample {
            median,
            mean: median,
        };
        Ok((sample, theirs))
    }

    /// Runs the program once. Checks that the expected transport carried its messages.
    fn run(
        &self,
        ranks: usize,
        arguments: impl IntoIterator<Item = String>,
        on: (usize, usize),
    ) -> Result<MpiMeasured> {
        let mut command = Command::new(&self.mpiexec);
        command
            .args(&self.options)
            .args(["-n", &ranks.to_string()])
            .arg(&self.program)
            .args(arguments);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let counters = self.carrier.map(|_| CounterFolder::new()).transpose()?;
        if let Some(counters) = &counters {
            command.env("FERRO_STATS", &counters.0);
        }
        let printed = run_one("mpiexec", command, &[on.0, on.1])?;
        let measured: MpiMeasured = serde_json::from_str(&printed)
            .map_err(|e| Failure::io("read the output of the MPI program", e))?;
        if let (Some(counters), Some(carrier)) = (&counters, self.carrier) {
            counters.check(carrier, measured.messages)?;
        }
        Ok(measured)
    }
}

fn no_figure() -> Failure {
    Failure::new("the MPI program printed no figure")
}

/// The folder into which our endpoints write what they have done (setting `stats`). Gone when
/// dropped.
struct CounterFolder(PathBuf);

/// The fields of such a file that count here.
#[derive(Deserialize)]
struct DoneCounters {
    counters: std::collections::HashMap<String, u64>,
}

impl CounterFolder {
    fn new() -> Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("ferro-bench-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder)
            .map_err(|e| Failure::io(format!("make {}", folder.display()), e))?;
        Ok(Self(folder))
    }

    /// That a path carried at least so many messages, and the other none.
    fn check(&self, carrier: Path, messages: u64) -> Result<()> {
        let failed = |e: &dyn std::fmt::Display| {
            Failure::io(format!("read the counters in {}", self.0.display()), e)
        };
        let (mut carried, mut elsewhere) = (0, 0);
        for file in std::fs::read_dir(&self.0).map_err(|e| failed(&e))? {
            let path = file.map_err(|e| failed(&e))?.path();
            let text = std::fs::read_to_string(path).map_err(|e| failed(&e))?;
            let done: DoneCounters = serde_json::from_str(&text).map_err(|e| failed(&e))?;
            for path in [Path::Verbs, Path::Shm] {
                let name = format!("{}_messages_sent", name_of(path));
                let sent = done.counters.get(&name).copied().unwrap_or(0);
                *(if path == carrier {
                    &mut carried
                } else {
                    &mut elsewhere
                }) += sent;
            }
        }
        if carried < messages || elsewhere > 0 {
            return Err(Failure::new(format!(
                "of {messages} messages {} carried {carried}, and {elsewhere} went another way",
                name_of(carrier)
            )));
        }
        Ok(())
    }
}

impl Drop for CounterFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_say_who_carried_the_messages() {
        let counters = CounterFolder::new().unwrap();
        for (name, sent) in [("1-0", (60, 0)), ("2-0", (50, 0))] {
            let text = format!(
                r#"{{"process": 1, "counters": {{"shm_messages_sent": {}, "verbs_messages_sent": {}, "x": 1}}}}"#,
                sent.0, sent.1
            );
            std::fs::write(counters.0.join(name), text).unwrap();
        }
        assert!(counters.check(Path::Shm, 110).is_ok());
        let few = counters.check(Path::Shm, 111).unwrap_err().to_string();
        assert!(few.contains("shm carried 110"), "{few}");
        assert!(counters.check(Path::Verbs, 1).is_err());
        std::fs::write(
            counters.0.join("3-0"),
            r#"{"counters": {"verbs_messages_sent": 1}}"#,
        )
        .unwrap();
        assert!(counters.check(Path::Shm, 110).is_err());
        let folder = counters.0.clone();
        drop(counters);
        assert!(!folder.exists());
    }

    #[test]
    fn what_does_not_come_from_us_is_not_measured() {
        let run = MpiRun::of_shell(r#"echo '{"median_us": 2.5, "messages": 7}'"#);
        assert!(!run.is_installed());
        let core = ferro::cores::pair().unwrap();
        let measure = |run: MpiRun| {
            std::thread::spawn(move || run.measure(Bench::Latency, 8, 7, core))
                .join()
                .unwrap()
        };
        assert_eq!(measure(run.clone()).unwrap().median, 2.5);
        let ours = MpiRun {
            carrier: Some(Path::Shm),
            ..run
        };
        assert!(measure(ours).is_err());
    }
}
