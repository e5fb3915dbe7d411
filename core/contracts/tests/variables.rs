//! Every variable of the tree that starts like a setting is a setting or is listed as another one,
//! so that no script or test gets a warning for a variable of its own.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::path::Path;

use ferrofabric_contracts::config::variables::unknown;

/// Names that are read while the tree is built, that stand for others in documentation, or that
/// show a typing error in a test.
const NO_VARIABLES: [&str; 3] = ["FERRO_COMPILER", "FERRO_NAME", "FERRO_SPINN"];

const FOLDERS: [&str; 7] = [
    "scripts",
    "ci",
    "hw-tests",
    "plugin-ofi",
    "provider-shm",
    "provider-verbs",
    "ferro",
];

fn names_of(text: &str, into: &mut BTreeSet<String>) {
    let is_part = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let words = text.split(|c: char| !is_part(c));
    into.extend(words.filter(|w| w.starts_with("FERRO_")).map(str::to_owned));
}

fn walk(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_ours = !name.starts_with('.') && name != "target";
        if is_ours && path.is_dir() && !path.is_symlink() {
            walk(&path, into);
        } else if is_ours && path.is_file() {
            if let Ok(text) = std::fs::read_to_string(&path) {
                names_of(&text, into);
            }
        }
    }
}

#[test]
fn every_variable_of_the_tree_is_known() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut names = BTreeSet::new();
    for folder in FOLDERS {
        walk(&tree.join(folder), &mut names);
    }
    for expected in ["FERRO_SHM", "FERRO_MACHINE"] {
        assert!(names.contains(expected), "{names:?}");
    }
    for name in NO_VARIABLES {
        names.remove(name);
    }
    // The start of a name that a program completes.
    names.retain(|name| !name.ends_with('_'));
    let unknown: Vec<String> = unknown(names).into_iter().map(|u| u.name).collect();
    assert_eq!(unknown, [""; 0]);
}
