//! The program as the scripts call it: the tables that end them, and its exit codes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ferro::report::WIDTH;

const PROGRAM: &str = env!("CARGO_BIN_EXE_ferro-compare");

fn output(program: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.output().unwrap()
}

/// Standard output, of which each line must fit.
fn fits(arguments: &[&str]) -> String {
    let output = output(Path::new(PROGRAM), arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!text.is_empty(), "{arguments:?}: {said}");
    for line in text.lines() {
        assert!(line.chars().count() <= WIDTH, "{arguments:?}: {line}");
    }
    text
}

/// A new folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_tables_of_the_scripts_fit() {
    let folder = Folder::new("tables");
    let row = |suite: &str, bench: &str, metric: &str, theirs: Option<f64>| {
        serde_json::json!({
            "suite": suite, "bench": bench, "path": "shm", "size": 1 << 20,
            "peer": "libfabric shm without CMA, this machine's (means)", "metric": metric,
            "better": "lower", "ours": 123456.0, "theirs": theirs, "ratio": theirs, "rounds": 7,
            "near": true, "ours_min": 1.0, "theirs_min": theirs,
            "skipped": theirs.is_none().then(|| "a reason of many words ".repeat(6)),
        })
    };
    let rows = serde_json::json!([
        row("shm", "tagged_latency", "latency_us", Some(2.0)),
        row("shm", "tagged_latency", "latency_us", None),
        row(
            "av",
            "av_symmetric_lookup_dependent",
            "ns_per_op",
            Some(1e6)
        ),
    ]);
    let rows = folder.file("rows.json", &rows.to_string());
    let text = fits(&["report", &rows]);
    assert!(
        text.contains("shm: latency µs") && text.contains("2.00"),
        "{text}"
    );
    assert!(text.contains("skipped: a reason"), "{text}");

    let result = serde_json::json!([{
        "size": 8, "path": "verbs", "domain": "a_device_with_a_very_long_name_0123456789:1",
        "median_us": 1.5, "megabytes_per_s": 12345.6, "verified": true,
    }]);
    let result = folder.file("result.json", &result.to_string());
    let text = fits(&["demo-table", &result]);
    assert!(
        text.contains("verified") && text.contains("12346"),
        "{text}"
    );
}

#[test]
fn wrong_usage_has_a_code_of_its_own() {
    for arguments in [
        &["nothing"][..],
        &["report"],
        &["shm", "--mpich", "/"],
        &["verbs", "--sizes", "x"],
        &["av", "--rounds", "0"],
    ] {
        let run = output(Path::new(PROGRAM), arguments);
        assert_eq!(run.status.code(), Some(2), "{arguments:?}");
        assert!(run.stdout.is_empty() && !run.stderr.is_empty());
    }
}

#[test]
fn a_missing_ferro_is_named() {
    let folder = Folder::new("alone");
    let alone = folder.0.join("ferro-compare");
    std::fs::copy(PROGRAM, &alone).unwrap();
    let run = output(&alone, &["av", "--rounds", "1"]);
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{said}");
    let missing = format!("{} is missing", folder.0.join("ferro").display());
    assert!(said.contains(&missing), "{said}");
}
