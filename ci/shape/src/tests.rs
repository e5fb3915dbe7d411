//! The check of small trees.

use super::*;

/// The shape of one library, whose first file is `p/src/lib.rs`. Paths are given from `p/src`.
fn shape(files: &[(&str, &str)]) -> Result<Shape, Error> {
    let package = Package {
        name: "p".to_owned(),
        roots: vec!["p/src/lib.rs".to_owned()],
        dependencies: Vec::new(),
    };
    let files = files.iter();
    let files = files.map(|(file, text)| (format!("p/src/{file}"), (*text).to_owned()));
    Shape::of(&Tree {
        packages: vec![package],
        files: files.collect(),
    })
}

fn circles(files: &[(&str, &str)]) -> Vec<String> {
    shape(files).unwrap_or_else(|e| panic!("{e}")).circles
}

#[test]
fn siblings_that_import_each_other_are_a_circle() {
    let faults = circles(&[
        ("lib.rs", "mod a;\nmod b;\nmod c;"),
        ("a.rs", "//! A.\nuse super::b::{c::D, B};\npub struct A;"),
        ("b/mod.rs", "pub mod c;\npub struct B;"),
        ("b/c.rs", "use crate::a::A as E;\npub struct D;"),
        ("c.rs", "use crate::{a::A, b::B};"),
    ]);
    let circle =
        "p crate: a -> b -> a\n  a -> b  p/src/a.rs:2 (B, D)\n  b -> a  p/src/b/c.rs:1 (A)\n";
    assert_eq!(faults, [circle]);
}

#[test]
fn a_re_export_leads_to_the_module_that_declares_the_item() {
    let faults = circles(&[
        (
            "lib.rs",
            "mod a; mod b; mod c; mod facade; pub use facade::*;",
        ),
        ("a.rs", "use crate::B; pub struct A;"),
        ("b.rs", "use crate::facade::New; pub enum B { One }"),
        ("c.rs", "use crate::a::*; use A as Other; pub struct C;"),
        (
            "facade.rs",
            "pub use crate::b::B; pub use crate::c::{C as New};",
        ),
    ]);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(
        faults[0].contains("p crate: a -> b -> c -> a\n"),
        "{faults:?}"
    );
}

#[test]
fn inline_paths_count_in_macros_too() {
    for (a, b) in [
        (
            "fn f() { super::b::f() }",
            "fn f() { print!(\"{}\", crate::a::F) }",
        ),
        (
            "use super::b; fn f() { b::f() }",
            "fn f(a: &impl super::a::T) {}",
        ),
        (
            "use super::*; fn f() { b::f::<u8>() }",
            "impl crate::a::T for u8 {}",
        ),
        (
            "fn f() { use crate::b::f; f() }",
            "struct F(Vec<crate::a::F>);",
        ),
        (
            "use crate::b::*;",
            "macro_rules! f { () => { $crate::a::g!() } }",
        ),
        (
            "use crate::b; macro_rules! g { ($f:ident) => { b::$f() } }",
            "use crate::a::A;",
        ),
    ] {
        let faults = circles(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", b)]);
        assert_eq!(faults.len(), 1, "{a} {b}: {faults:?}");
    }
    // Names of their own, of a module alone, and of other crates.
    for a in [
        "use super::b;",
        "use std::b::f;",
        "fn f(b: u8) { ::b::f(b, d.b) }",
    ] {
        let b = "use crate::a::A; fn f() {}";
        let faults = circles(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", b)]);
        assert!(faults.is_empty(), "{a}: {faults:?}");
    }
}

#[test]
fn what_only_tests_are_built_with_does_not_count() {
    let b = "use crate::a::A; pub fn f() {}";
    let with = |a: &str| {
        let tests = ("a/tests.rs", "use crate::b::f;");
        circles(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", b), tests])
    };
    for a in [
        "#[cfg(test)] use crate::b::f;",
        "#[cfg(all(test, not(loom)))] mod tests { use crate::b::f; }",
        "#[cfg(any(test, feature = \"fuzzing\"))] mod tests;",
        "struct A; impl A { #[cfg(test)] fn f() { crate::b::f() } }",
        "fn f() { #[cfg(test)] crate::b::f(); }",
        "fn f() { #[cfg(loom)] let g = crate::b::f(); }",
        "#[test] fn f() { crate::b::f() }",
        "#![cfg(test)] use crate::b::f;",
    ] {
        assert_eq!(with(a), [""; 0], "{a}");
    }
    for a in [
        "mod tests;",
        "#[cfg(not(test))] use crate::b::f;",
        "#[cfg(any(test, unix))] use crate::b::f;",
        "#[cfg(all(unix, not(loom)))] use crate::b::f;",
    ] {
        assert_eq!(with(a).len(), 1, "{a}");
    }
}

#[test]
fn a_parent_and_a_child_are_no_circle() {
    let shape = shape(&[
        ("lib.rs", "mod a; mod c;"),
        (
            "a.rs",
            "mod b { use super::A; pub struct B; } use b::B; struct A;",
        ),
        (
            "c.rs",
            "mod d { use super::E; } mod e { pub struct E; } use e::E;",
        ),
    ])
    .expect("Rust");
    assert_eq!(shape.circles, [""; 0]);
    let pair = "p crate::a <-> b: parent p/src/a.rs:1 (B); child p/src/a.rs:1 (A)\n";
    assert_eq!(shape.pairs, [pair]);
}

#[test]
fn a_crate_depends_on_those_below_it() {
    let faults = |name: &str, dependencies: &[&str]| {
        layers::faults(&[Package {
            name: name.to_owned(),
            roots: Vec::new(),
            dependencies: dependencies.iter().map(|&it| it.to_owned()).collect(),
        }])
    };
    let below = ["ferrofabric-contracts", "ferrofabric-system", "slab"];
    assert_eq!(faults("ferrofabric-av", &below), [""; 0]);
    for dependency in ["ferrofabric-matching", "ferrofabric-runtime"] {
        let fault = format!("ferrofabric-av may not depend on {dependency}");
        assert_eq!(faults("ferrofabric-av", &[below[0], dependency]), [fault]);
    }
    let fault = "ferrofabric-protocol may not depend on ferrofabric-system";
    assert_eq!(faults("ferrofabric-protocol", &below), [fault]);
    assert_eq!(faults("p", &below).len(), 1, "it has no layer");
}

#[test]
fn lines_of_code_are_those_of_production() {
    let text = "//! Head.\n\nuse std::fmt; // why\n/* a\n b */\n\
                #[cfg(test)]\nmod tests {\n    use x;\n}\n\
                fn f() {\n    g()\n}\nmod generated;";
    let shape = shape(&[
        ("lib.rs", text),
        ("generated.rs", "// @generated\nfn f() {}"),
        ("unused.rs", "not Rust"),
    ])
    .expect("Rust");
    assert_eq!(shape.lines, BTreeMap::from([("p".to_owned(), 5)]));
    assert!(shape.to_string().contains("\np "), "{shape}");
}

#[test]
fn a_module_without_its_file_is_told() {
    for text in ["\nmod a;", "\n)"] {
        let error = shape(&[("lib.rs", text)]).expect_err("no file, or no Rust");
        assert!(error.to_string().starts_with("p/src/lib.rs:2: "), "{error}");
    }
}
