//! The shape of this tree.

#![allow(missing_docs)]

use std::path::Path;

use ferrofabric_shape::{Tree, check};

#[test]
fn the_package_at_the_root_is_checked() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tree = Tree::read(&root).unwrap_or_else(|e| panic!("{e}"));
    let names: Vec<_> = tree.packages.iter().map(|it| it.name.as_str()).collect();
    assert!(names.contains(&"ferrofabric"), "{names:?}");
}

#[test]
fn no_circles_and_nothing_too_large() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tree = Tree::read(&root).unwrap_or_else(|e| panic!("{e}"));
    let report = check(&tree, false).unwrap_or_else(|e| panic!("{e}"));
    let broken = report.faults.iter().filter(|it| !it.texts.is_empty());
    let broken: Vec<String> = broken.map(ToString::to_string).collect();
    assert!(broken.is_empty(), "{}", broken.concat());
}
