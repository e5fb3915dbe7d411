//! Compares requirements with the tests that prove them. A test names its requirement in a comment,
//! `/// Covers: AV-11`; `docs/conformance.md` lists the tests of each requirement.

mod document;
mod marks;
mod place;
mod scenarios;

use std::path::Path;

/// The document with the table, from the root of the tree.
pub const DOCUMENT: &str = "docs/conformance.md";

/// A source file.
struct SourceFile {
    /// Its path, from the root of the tree.
    file: String,
    text: String,
}

/// Reads the document of a tree, and what it should be by the tree's tests.
///
/// # Errors
/// The faults, a line for each: a file that can not be read; a mark that is on no test or names no
/// requirement; a requirement without a test.
pub fn read(root: &Path) -> Result<(String, String), String> {
    let path = root.join(DOCUMENT);
    let is = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut sources = Vec::new();
    add_sources(root, root, &mut sources)?;
    let mut faults = Vec::new();
    let marks = marks::of(&sources, &mut faults);
    let should = document::with_tests(&is, &marks, &mut faults);
    match faults.is_empty() {
        true => Ok((is, should)),
        false => Err(faults.join("\n")),
    }
}

/// Reads the sources below a folder.
fn add_sources(root: &Path, folder: &Path, sources: &mut Vec<SourceFile>) -> Result<(), String> {
    let fault = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    for entry in std::fs::read_dir(folder).map_err(|e| fault(folder, e))? {
        let path = entry.map_err(|e| fault(folder, e))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            // Hidden folders and build results are not part of the tree.
            if !name.starts_with('.') && name != "target" {
                add_sources(root, &path, sources)?;
            }
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).map_err(|e| fault(&path, e))?;
            let file = path.strip_prefix(root).unwrap_or(&path);
            let file = file.to_string_lossy().into_owned();
            sources.push(SourceFile { file, text });
        }
    }
    Ok(())
}
