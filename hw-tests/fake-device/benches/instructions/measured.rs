//! Runs the subjects in valgrind and reads what it wrote.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::subjects::ONLY;
use crate::{INNER, MESSAGES};

/// The counts of one subject.
pub(crate) struct SubjectCounts {
    /// Transport and operation.
    pub(crate) subject: String,
    /// Instructions of all messages together, without those of the fake device.
    pub(crate) total: u64,
    /// The same by function, callees not included.
    pub(crate) by_function: BTreeMap<String, u64>,
    /// The same by source line (`file:line`), with inlined code at its own line; without the C
    /// library.
    pub(crate) by_line: BTreeMap<String, u64>,
}

impl SubjectCounts {
    /// Instructions of one message, with two decimals.
    pub(crate) fn per_message(&self) -> f64 {
        (self.total as f64 / MESSAGES as f64 * 100.0).round() / 100.0
    }
}

/// Why nothing was counted.
pub(crate) enum CountingFailure {
    NoValgrind,
    Other(String),
}

/// The shared object whose instructions do not count.
const DEVICE: &str = "libferrofabric_fake_device.so";

const LIBC: &str = "/libc.so";

/// The C library chooses how to copy by the processor. It takes its plainest way, so counts are those
/// of any processor.
const COPIES_OF_ANY_PROCESSOR: &str =
    "glibc.cpu.hwcaps=-AVX2,-AVX512F,-AVX512VL,-ERMS,-FSRM,-AVX_Fast_Unaligned_Load";

/// Counts one subject, or all.
pub(crate) fn measure(only: Option<&str>) -> Result<Vec<SubjectCounts>, CountingFailure> {
    let folder = ProfileFolder::new()?;
    let program = std::env::current_exe().map_err(|e| CountingFailure::Other(e.to_string()))?;
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args([
            "--tool=callgrind",
            "--collect-atstart=no",
            "--toggle-collect=*count_this*",
            "--dump-after=*write_counts*",
            "--compress-strings=no",
            "--compress-pos=no",
            "--fair-sched=yes",
        ])
        .arg(format!(
            "--callgrind-out-file={}",
            folder.0.join("out").display()
        ))
        .arg(&program)
        .env(INNER, "1")
        .env("FI_PROVIDER_PATH", plugin_in(&folder.0, &program)?)
        .env("FI_PROVIDER", "ferro")
        .env("GLIBC_TUNABLES", COPIES_OF_ANY_PROCESSOR);
    if let Some(made) = mpi() {
        valgrind.env("FERRO_MPI", made);
    }
    match only {
        Some(subject) => valgrind.env(ONLY, subject),
        None => valgrind.env_remove(ONLY),
    };
    let output = match valgrind.output() {
        Ok(output) => output,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(CountingFailure::NoValgrind);
        }
        Err(e) => return Err(CountingFailure::Other(format!("valgrind: {e}"))),
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() || said.is_empty() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(CountingFailure::Other(format!(
            "nothing was counted: {said}{why}"
        )));
    }
    said.lines()
        .enumerate()
        .map(|(at, subject)| {
            let path = folder.0.join(format!("out.{}", at + 1));
            let text = std::fs::read_to_string(&path)
                .map_err(|e| CountingFailure::Other(format!("{}: {e}", path.display())))?;
            Ok(parse(subject, &text))
        })
        .collect()
}

/// A folder with the plugin that cargo built for this program.
fn plugin_in(folder: &Path, program: &Path) -> Result<PathBuf, CountingFailure> {
    let (built, providers) = (
        program.with_file_name("libferro_fi.so"),
        folder.join("providers"),
    );
    std::fs::create_dir(&providers)
        .and_then(|()| std::os::unix::fs::symlink(&built, providers.join("libferro-fi.so")))
        .map_err(|e| CountingFailure::Other(format!("{}: {e}", providers.display())))?;
    Ok(providers)
}

/// The folder with MPICH, which brings a libfabric of its own.
fn mpi() -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci/mpi");
    let found = Command::new(script).arg("--find").output().ok()?;
    let folder = String::from_utf8(found.stdout).ok()?;
    found.status.success().then(|| folder.trim().to_owned())
}

/// Reads a profile (callgrind's manual, "Callgrind Format Specification"): the own cost of each
/// function, and the cost of its calls. Calls into the device are left out with all functions below
/// them; the device never calls back.
fn parse(subject: &str, text: &str) -> SubjectCounts {
    let mut counted = SubjectCounts {
        subject: subject.to_owned(),
        total: 0,
        by_function: BTreeMap::new(),
        by_line: BTreeMap::new(),
    };
    // The cost of other functions on behalf of the device.
    let mut for_device: BTreeMap<String, u64> = BTreeMap::new();
    let (mut object, mut function, mut file) = ("", "", "");
    let (mut called_object, mut called) = ("", "");
    let mut is_call = false;
    for line in text.lines() {
        if let Some((key, value)) = line.split_once('=').filter(|(key, _)| key.len() <= 5) {
            match key {
                "ob" => (object, called_object) = (value, value),
                "fl" | "fi" | "fe" => file = value,
                "fn" => function = value,
                "cob" => called_object = value,
                "cfn" => called = value,
                "calls" => is_call = true,
                _ => {}
            }
            continue;
        }
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let (Some(Ok(at)), Some(Ok(cost))) = (numbers.next(), numbers.next()) else {
            continue;
        };
        let of_device = object.ends_with(DEVICE);
        if is_call {
            if of_device && !called_object.ends_with(DEVICE) {
                *for_device.entry(group(called_object, called)).or_default() += cost;
            }
            (is_call, called_object) = (false, object);
        } else if !of_device {
            if !object.contains(LIBC) {
                let place = format!("{}:{at}", short(file));
                *counted.by_line.entry(place).or_default() += cost;
            }
            *counted
                .by_function
                .entry(group(object, function))
                .or_default() += cost;
            counted.total += cost;
        }
    }
    for (function, cost) in for_device {
        counted.total -= cost;
        let own = counted.by_function.entry(function).or_default();
        *own = own.saturating_sub(cost);
    }
    counted
}

/// The functions of the C library as one: the profile does not say which caller of one of them
/// caused which cost. Functions without calls stand for themselves.
fn group(object: &str, function: &str) -> String {
    match object.contains(LIBC) && !function.contains("mem") {
        true => "C library: allocator, system calls".to_owned(),
        false => function.to_owned(),
    }
}

/// The end of a path.
fn short(path: &str) -> &str {
    let from = path.rmatch_indices('/').nth(2).map_or(0, |(at, _)| at + 1);
    &path[from..]
}

/// A folder that goes when it is dropped.
struct ProfileFolder(PathBuf);

impl ProfileFolder {
    fn new() -> Result<Self, CountingFailure> {
        let path = std::env::temp_dir().join(format!("ferro-counts-{}", std::process::id()));
        let made = std::fs::create_dir_all::<&Path>(&path);
        made.map_err(|e| CountingFailure::Other(format!("{}: {e}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for ProfileFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
