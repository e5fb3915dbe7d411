//! The tree as git has it: its files, their changes and the commits.

use std::path::Path;
use std::process::Command;

use crate::{Error, SINCE, has_prose};

/// The revision that new sentences and commits are newer than.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    /// A revision of the history.
    Revision(String),
    /// The clone is shallow and has no commit as old as the base: its oldest ones stand for it.
    /// The messages of these are checked too.
    Oldest {
        /// The first of the oldest commits; `None` where the clone has only one commit, with which
        /// nothing can be compared.
        tree: Option<String>,
    },
}

impl Base {
    /// The revision that the files are compared with.
    pub(crate) fn tree(&self) -> Option<&str> {
        match self {
            Self::Revision(revision) => Some(revision),
            Self::Oldest { tree } => tree.as_deref(),
        }
    }
}

/// A commit.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) hash: String,
    pub(crate) message: String,
}

/// The base for a tree: the revision in `ci/prose/since`, from which the rules hold. It needs no
/// remote, so a fresh clone has it.
///
/// # Errors
/// The file is not there, or the history does not have its revision.
pub fn base(root: &Path) -> Result<Base, Error> {
    let path = root.join(SINCE);
    let text = std::fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
    let mut lines = text.lines().map(str::trim);
    let since = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    let since = since.unwrap_or_default();
    let is_known = ["merge-base", "--is-ancestor", since, "HEAD"];
    if !since.is_empty() && git(root, &is_known).is_ok() {
        return Ok(Base::Revision(since.to_owned()));
    }
    if git(root, &["rev-parse", "--is-shallow-repository"])?.trim() != "true" {
        return Err(Error::Since(since.to_owned()));
    }
    let oldest = git(root, &["rev-list", "--max-parents=0", "HEAD"])?;
    let head = git(root, &["rev-parse", "HEAD"])?;
    let tree = oldest.lines().next_back().filter(|it| *it != head.trim());
    Ok(Base::Oldest {
        tree: tree.map(str::to_owned),
    })
}

/// The commit at which `HEAD` left the history of a revision.
///
/// # Errors
/// There is no such revision, or it shares no history with `HEAD`.
pub fn fork_point(root: &Path, revision: &str) -> Result<Base, Error> {
    let commit = git(root, &["merge-base", revision, "HEAD"])?;
    Ok(Base::Revision(commit.trim().to_owned()))
}

/// The files that git tracks.
pub(crate) fn tracked(root: &Path) -> Result<Vec<String>, Error> {
    let files = git(root, &["ls-files", "-z"])?;
    Ok(split(&files).filter(|it| has_prose(it)).collect())
}

/// The files that differ between a revision and the work tree.
pub(crate) fn changed(root: &Path, base: &str) -> Result<Vec<String>, Error> {
    let files = git(root, &["diff", "--no-renames", "--name-only", "-z", base])?;
    Ok(split(&files).filter(|it| has_prose(it)).collect())
}

/// The text of a file in the work tree, if it is there and is text.
pub(crate) fn in_work_tree(root: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(root.join(file)).ok()
}

/// The text of a file at a revision; `None` where it was not there.
pub(crate) fn at(root: &Path, revision: &str, file: &str) -> Result<Option<String>, Error> {
    let listed = git(root, &["ls-tree", "--name-only", revision, "--", file])?;
    if listed.is_empty() {
        return Ok(None);
    }
    git(root, &["show", &format!("{revision}:{file}")]).map(Some)
}

/// The commits since a base, without merges: git writes the messages of these.
pub(crate) fn commits(root: &Path, base: &Base) -> Result<Vec<Commit>, Error> {
    let range = match base {
        Base::Revision(revision) => format!("{revision}..HEAD"),
        Base::Oldest { .. } => "HEAD".to_owned(),
    };
    let log = git(
        root,
        &["log", "--no-merges", "-z", "--format=%h%n%B", &range],
    )?;
    let commits = split(&log).filter_map(|entry| {
        let (hash, message) = entry.split_once('\n')?;
        Some(Commit {
            hash: hash.trim().to_owned(),
            message: message.trim_end().to_owned(),
        })
    });
    Ok(commits.collect())
}

fn split(output: &str) -> impl Iterator<Item = String> {
    output
        .split('\0')
        .filter(|it| !it.trim().is_empty())
        .map(str::to_owned)
}

/// Runs git in the tree, whoever owns it: containers check it out as another user.
fn git(root: &Path, arguments: &[&str]) -> Result<String, Error> {
    let fault = |why: String| Error::Git {
        command: arguments.join(" "),
        why,
    };
    let mut command = Command::new("git");
    command.args(["-c", "safe.directory=*", "-c", "core.quotePath=off"]);
    let output = command.arg("-C").arg(root).args(arguments).output();
    let output = output.map_err(|error| fault(error.to_string()))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(fault(why.trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
