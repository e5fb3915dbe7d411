//! Compares requirements with the tests that prove them. A test names its requirement in a comment,
//! `/// Covers: AV-11`; `docs/conformance.md` lists the tests of each requirement.

mod code;
pub mod document;
pub mod id;
pub mod place;
mod reasons;
pub mod scan;
mod scenarios;

use std::path::{Path, PathBuf};

use document::Document;

/// Where the table stands, from the root of the tree.
pub const DOCUMENT: &str = "docs/conformance.md";

/// A difference between the table and the tests, or a file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{0}")]
    Mark(#[from] scan::MarkError),
    #[error("{DOCUMENT}: {0}")]
    Document(#[from] document::DocumentError),
}

/// Reads the document of a tree, and what it should be by the tree's tests.
///
/// # Errors
/// A file that can not be read; a mark that is on no test or names no requirement; a requirement
/// without a test.
pub fn read(root: &Path) -> Result<(String, String), Error> {
    let path = root.join(DOCUMENT);
    let is = std::fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
    let marks = scan::tree(root)?;
    let should = Document::parse(&is)?.with_tests(&marks)?.to_string();
    Ok((is, should))
}
