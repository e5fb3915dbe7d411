//! The shape of the production code: no modules that import each other in a circle, no crate that
//! depends on one above it, and a table of the lines of each crate.
//!
//! Production code is the code of the libraries and programs of the workspace's members, without
//! code that only tests compile (`cfg(test)`, `cfg(loom)`, the feature `fuzzing`).

mod circles;
mod layers;
mod modules;
mod resolve;
mod syntax;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeMap;
use std::fmt;

use circles::ProgramCircles;
use modules::Code;

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

/// The shape of a tree. Each text may have several lines.
#[derive(Debug)]
pub struct Shape {
    /// Circles of sibling modules. None may be there.
    pub circles: Vec<String>,
    /// Dependencies of a crate on one that is not below it. None may be there.
    pub layers: Vec<String>,
    /// Parents and children that import each other.
    pub pairs: Vec<String>,
    /// The lines of each package, without tests, blank lines, comments and generated files.
    pub lines: BTreeMap<String, usize>,
}

impl Shape {
    /// Reads the modules of a tree.
    ///
    /// # Errors
    /// A file that is not there or is not Rust.
    pub fn of(tree: &Tree) -> Result<Self, Error> {
        let code = Code::read(tree)?;
        let (mut circles, mut pairs) = (Vec::new(), Vec::new());
        for program in &code.programs {
            let found = ProgramCircles::of(program);
            circles.extend(found.circles);
            pairs.extend(found.pairs);
        }
        Ok(Self {
            circles,
            layers: layers::faults(&tree.packages),
            pairs,
            lines: code.lines,
        })
    }
}

/// The table of lines, then the faults.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles = ["lines without tests and comments", "sum"];
        let names = self.lines.keys().map(String::as_str).chain(titles);
        let width = names.map(str::len).max().unwrap_or(0);
        let sum: usize = self.lines.values().sum();
        writeln!(f, "{}", titles[0])?;
        for (name, lines) in &self.lines {
            writeln!(f, "{name:width$} {lines:7}")?;
        }
        writeln!(f, "{:width$} {sum:7}", titles[1])?;
        section(f, "Circles of sibling modules", &self.circles)?;
        section(f, "Dependencies that do not point down", &self.layers)
    }
}

/// A heading with the texts below it, if there are any.
fn section(f: &mut fmt::Formatter<'_>, title: &str, texts: &[String]) -> fmt::Result {
    if texts.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{title} ({}):", texts.len())?;
    let mut lines = texts.iter().flat_map(|text| text.lines());
    lines.try_for_each(|line| writeln!(f, "  {line}"))
}
