//! The document of this tree.

#![allow(missing_docs)]

use std::path::Path;

use ferrofabric_requirements::{DOCUMENT, read};

#[test]
fn every_requirement_names_its_tests() {
    let (is, should) = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .unwrap_or_else(|e| panic!("{e}"));
    let mut rows = is.lines().zip(should.lines());
    let stale = rows.find(|(is, should)| is != should);
    let stale = stale.and_then(|(row, _)| row.split('|').nth(1));
    assert!(
        is == should,
        "{DOCUMENT} does not list the tests as they are, first in row {stale:?}; \
         `cargo run -p ferrofabric-requirements -- --write` mends it"
    );
}
