//! The sentences of this tree.

#![allow(missing_docs)]

use std::path::Path;

use ferrofabric_prose::{Base, SINCE, base, counts, since, whole};

#[test]
fn new_sentences_and_commits_keep_the_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !root.join(".git").exists() {
        println!("SKIP: the tree has no history");
        return;
    }
    let all = whole(&root).unwrap_or_else(|e| panic!("{e}"));
    for (rule, count) in counts(&all) {
        println!("{count:6} {rule}");
    }
    let base = base(&root).unwrap_or_else(|e| panic!("{e}"));
    println!("compared with {base:?}, by {SINCE}");
    if base == (Base::Oldest { tree: None }) {
        println!("a clone of one commit: only its message is checked");
    }
    let new = since(&root, &base).unwrap_or_else(|e| panic!("{e}"));
    let lines: Vec<String> = new.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}
