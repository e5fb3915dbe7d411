//! `cargo run -p ferrofabric-prose` counts the sentences of the whole tree that break the rules;
//! `-- --new` prints those that are newer than the revision in `ci/prose/since`, `-- --base REV`
//! those that this branch adds to a revision. Both fail if there are any.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ferrofabric_prose::{Error, Finding, base, counts, fork_point, since, whole};

const USAGE: &str = "usage: ferrofabric-prose [--new | --base REV] [--most N] [PATH…]";

/// How many findings of the whole tree are printed unless `--most` says otherwise.
const MOST: usize = 40;

fn main() -> ExitCode {
    let Some(options) = ProseOptions::parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match options.findings() {
        Ok(findings) => options.print(&findings),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct ProseOptions {
    new: bool,
    base: Option<String>,
    most: Option<usize>,
    paths: Vec<String>,
}

impl ProseOptions {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Self> {
        let mut options = Self::default();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--new" => options.new = true,
                "--base" => options.base = Some(arguments.next()?),
                "--most" => options.most = Some(arguments.next()?.parse().ok()?),
                other if other.starts_with('-') => return None,
                path => options.paths.push(path.trim_end_matches('/').to_owned()),
            }
        }
        (!options.new || options.base.is_none()).then_some(options)
    }

    fn findings(&self) -> Result<Vec<Finding>, Error> {
        let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut findings = match (&self.base, self.new) {
            (Some(revision), _) => since(&root, &fork_point(&root, revision)?)?,
            (None, true) => since(&root, &base(&root)?)?,
            (None, false) => whole(&root)?,
        };
        let concerned = |place: &str| {
            let inside = |path: &String| Path::new(place).starts_with(path);
            self.paths.is_empty() || self.paths.iter().any(inside)
        };
        findings.retain(|finding| concerned(&finding.place));
        Ok(findings)
    }

    fn print(&self, findings: &[Finding]) -> ExitCode {
        let fails = self.new || self.base.is_some();
        let most = self.most.unwrap_or(if fails { usize::MAX } else { MOST });
        for finding in findings.iter().take(most) {
            println!("{finding}");
        }
        for (rule, count) in counts(findings) {
            println!("{count:6} {rule}");
        }
        println!("{:6} in all", findings.len());
        match fails && !findings.is_empty() {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        }
    }
}
