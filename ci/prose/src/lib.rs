//! The language of the tree: sentences in comments, messages, documents and commits that a newcomer
//! stumbles over.
//!
//! [`whole`] counts the findings of the whole tree, [`since`] lists those that a revision did not
//! have. The words are in `docs/glossary.md`, the rules in [`rules`]. A sentence that is right as
//! it is gets `prose: ok (REASON)` in its paragraph.

mod blocks;
mod c;
mod commits;
mod git;
mod hash;
mod markdown;
pub mod rules;
mod rust;
mod sentences;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use blocks::Prose;
pub use git::{Base, base, fork_point};
use rules::ProseRule;
use words::Words;

/// The widest line of a comment or a document, in columns.
pub const WIDTH: usize = 100;

/// The document with the list of words, from the root of the tree.
pub const GLOSSARY: &str = "docs/glossary.md";

/// The revision from which the rules hold, from the root of the tree.
pub const SINCE: &str = "ci/prose/since";

/// A failure of the check itself.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("git {command}: {why}")]
    Git { command: String, why: String },
    #[error(
        "{GLOSSARY}:{line}: a row of the list of words has a replacement and words in backticks"
    )]
    Row { line: usize },
    #[error("{GLOSSARY}: no rows below the heading \"{}\"", crate::words::HEADING)]
    NoWords,
    #[error("{SINCE}: {0} is not a revision of this history")]
    Since(String),
}

/// A sentence or a line that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, or `commit HASH`.
    pub place: String,
    /// Where the sentence begins, from 1.
    pub line: usize,
    /// The broken rule.
    pub rule: ProseRule,
    /// The sentence, and a hint where there is one.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            place,
            line,
            rule,
            text,
        } = self;
        write!(f, "{place}:{line}: {rule}: {text}")
    }
}

/// How many findings each rule has.
pub fn counts(findings: &[Finding]) -> BTreeMap<ProseRule, usize> {
    let mut counts = BTreeMap::new();
    for finding in findings {
        *counts.entry(finding.rule).or_default() += 1;
    }
    counts
}

/// The findings of all files that git tracks, as they are in the work tree.
///
/// # Errors
/// Git does not know the tree, or the list of words can not be read.
pub fn whole(root: &Path) -> Result<Vec<Finding>, Error> {
    let words = Words::read(root)?;
    let mut findings = Vec::new();
    for file in git::tracked(root)? {
        if let Some(text) = git::in_work_tree(root, &file) {
            findings.extend(of_file(&words, &file, &text));
        }
    }
    Ok(findings)
}

/// The findings that are newer than a base: in the work tree, and in the messages of the commits
/// between the base and `HEAD`.
///
/// A sentence that some changed file had at the base is an old one wherever it is now, so a file
/// that is moved or wrapped anew has no new finding.
///
/// # Errors
/// Git does not know the base, or the list of words can not be read.
pub fn since(root: &Path, base: &Base) -> Result<Vec<Finding>, Error> {
    let words = Words::read(root)?;
    let mut old: BTreeMap<(ProseRule, String), usize> = BTreeMap::new();
    let mut findings = Vec::new();
    if let Some(tree) = base.tree() {
        let changed = git::changed(root, tree)?;
        for file in changed.iter().filter(|it| has_prose(it)) {
            let text = git::at(root, tree, file)?.unwrap_or_default();
            for finding in of_file(&words, file, &text) {
                *old.entry((finding.rule, finding.text)).or_default() += 1;
            }
        }
        for file in changed {
            let text = git::in_work_tree(root, &file).unwrap_or_default();
            findings.extend(of_file(&words, &file, &text));
        }
    }
    findings.retain(|finding| {
        let left = old.get_mut(&(finding.rule, finding.text.clone()));
        match left {
            Some(left) if *left > 0 => {
                *left -= 1;
                false
            }
            _ => true,
        }
    });
    for commit in git::commits(root, base)? {
        findings.extend(commits::findings(&words, &commit));
    }
    Ok(findings)
}

/// Whether the check reads files of this name.
fn has_prose(file: &str) -> bool {
    let scripts = ["scripts/", "ci/", ".ci/"];
    let name = file.rsplit('/').next().unwrap_or(file);
    let plain = !name.contains('.') && scripts.iter().any(|it| file.starts_with(it));
    let extensions = ["rs", "md", "sh", "py", "c", "h", "toml", "yml"];
    let known = extensions
        .iter()
        .any(|it| name.ends_with(&format!(".{it}")));
    (known || plain) && !file.contains("bindings")
}

fn of_file(words: &Words, file: &str, text: &str) -> Vec<Finding> {
    if !has_prose(file) {
        return Vec::new();
    }
    let extension = file.rsplit('.').next().unwrap_or_default();
    let prose = match extension {
        "rs" => rust::prose(text),
        "md" => markdown::document(text),
        "c" | "h" => c::prose(text),
        _ => hash::prose(text),
    };
    of_prose(words, file, &prose)
}

fn of_prose(words: &Words, place: &str, prose: &Prose) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |line, rule, text| {
        findings.push(Finding {
            place: place.to_owned(),
            line,
            rule,
            text,
        });
    };
    for block in prose.blocks.iter().filter(|block| !block.is_marked()) {
        for sentence in sentences::of(block) {
            for (rule, hint) in rules::broken(&sentence, words) {
                let hint = hint.map_or_else(String::new, |hint| format!(" [{hint}]"));
                found(sentence.line, rule, format!("{}{hint}", sentence.text));
            }
        }
    }
    for (line, text) in &prose.wide {
        found(*line, ProseRule::Wide, text.trim().to_owned());
    }
    findings.sort_by_key(|finding| finding.line);
    findings
}
