//! The shape of the production code: no modules that import each other in a circle, limits for the
//! sizes of files, structs and functions (`docs/architecture.md` lists the exceptions), and no name
//! of two types (`docs/glossary.md` lists the exceptions).
//!
//! Production code is the code of the libraries and programs of the workspace's members, without
//! code that only tests compile (`cfg(test)`, `cfg(loom)`, the feature `fuzzing`).

mod circles;
mod modules;
mod names;
mod resolve;
mod sizes;
mod syntax;
#[cfg(test)]
mod tests;
mod tree;

use std::fmt;

use circles::ProgramCircles;
use modules::Code;
use tree::{ARCHITECTURE, GLOSSARY};

pub use tree::{Files, Package, Tree};

/// The check could not read the tree.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("{path}: {source}")]
    Io {
        path: String,
        source: std::io::Error,
    },
    #[error("cargo metadata: {0}")]
    Metadata(String),
    #[error("{file}:{}: {source}", source.span().start().line)]
    Syntax { file: String, source: syn::Error },
    #[error("{file}:{line}: the file of the module `{name}` is not there")]
    NoFile {
        file: String,
        line: usize,
        name: String,
    },
}

/// The result of the check.
#[derive(Debug)]
pub struct ShapeReport {
    /// The breaches, by rule.
    pub faults: Vec<Section>,
    /// The largest things of each kind, also those within the limits.
    pub tables: Vec<Section>,
}

/// A heading, and a text for each thing below it.
#[derive(Debug)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// May have several lines each.
    pub texts: Vec<String>,
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.title)?;
        let mut lines = self.texts.iter().flat_map(|text| text.lines());
        lines.try_for_each(|line| writeln!(f, "  {line}"))
    }
}

/// Checks a tree. Where `strict` is set, a parent and a child that import each other are a fault
/// too.
///
/// # Errors
/// A file that is not there or is not Rust.
pub fn check(tree: &Tree, strict: bool) -> Result<ShapeReport, Error> {
    let code = Code::read(tree)?;
    let (mut circles, mut pairs) = (Vec::new(), Vec::new());
    for program in &code.programs {
        let shape = ProgramCircles::of(program);
        circles.extend(shape.circles);
        pairs.extend(shape.pairs);
    }
    let section = |title, texts: Vec<String>| Section {
        title: format!("{title} ({})", texts.len()),
        texts,
    };
    let mut tables = sizes::tables(&code);
    let mut faults = vec![
        section("Circles of sibling modules", circles),
        section(
            "Over the limits of size",
            sizes::faults(&code, tree.document(ARCHITECTURE)),
        ),
        section(
            "Names of more than one type",
            names::faults(&code.types, tree.document(GLOSSARY)),
        ),
    ];
    let pairs = section("Parents and children that import each other", pairs);
    match strict {
        true => faults.push(pairs),
        false => tables.push(pairs),
    }
    Ok(ShapeReport { faults, tables })
}
