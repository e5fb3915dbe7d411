//! The check of small trees.

use super::*;

/// A tree of one library, whose first file is `p/src/lib.rs`. Paths are given from `p/src`, those
/// that begin with `/` from the root.
fn tree(files: &[(&str, &str)]) -> Tree {
    let path = |file: &str| match file.strip_prefix('/') {
        Some(file) => file.to_owned(),
        None => format!("p/src/{file}"),
    };
    let package = Package {
        name: "p".to_owned(),
        roots: vec![path("lib.rs")],
    };
    let files = files.iter();
    Tree {
        packages: vec![package],
        files: files
            .map(|&(file, text)| (path(file), text.to_owned()))
            .collect(),
    }
}

fn found(files: &[(&str, &str)]) -> Vec<String> {
    let report = check(&tree(files), false).unwrap_or_else(|e| panic!("{e}"));
    report.faults.into_iter().flat_map(|it| it.texts).collect()
}

fn table(files: &[(&str, &str)], title: &str) -> Vec<String> {
    let report = check(&tree(files), false).unwrap_or_else(|e| panic!("{e}"));
    let mut tables = report.tables.into_iter();
    let table = tables.find(|it| it.title.starts_with(title));
    table.expect("a table of this title").texts
}

#[test]
fn siblings_that_import_each_other_are_a_circle() {
    let faults = found(&[
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
    let faults = found(&[
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
        let faults = found(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", b)]);
        assert_eq!(faults.len(), 1, "{a} {b}: {faults:?}");
    }
    // Names of their own, of a module alone, and of other crates.
    for a in [
        "use super::b;",
        "use std::b::f;",
        "fn f(b: u8) { ::b::f(b, d.b) }",
    ] {
        let b = "use crate::a::A; fn f() {}";
        let faults = found(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", b)]);
        assert!(faults.is_empty(), "{a}: {faults:?}");
    }
}

#[test]
fn what_only_tests_are_built_with_does_not_count() {
    let b = "use crate::a::A; pub fn f() {}";
    let with = |a: &str| {
        let tests = ("a/tests.rs", "use crate::b::f;");
        found(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), ("b.rs", b), tests])
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
fn a_parent_and_a_child_are_a_fault_only_where_asked_for() {
    let files = [
        ("lib.rs", "mod a; mod c;"),
        (
            "a.rs",
            "mod b { use super::A; pub struct B; } use b::B; struct A;",
        ),
        (
            "c.rs",
            "mod d { use super::E; } mod e { pub struct E; } use e::E;",
        ),
    ];
    assert_eq!(found(&files), [""; 0]);
    let pair = "p crate::a <-> b: parent p/src/a.rs:1 (B); child p/src/a.rs:1 (A)\n";
    assert_eq!(table(&files, "Parents and children"), [pair]);
    let strict = check(&tree(&files), true).expect("Rust");
    assert!(
        strict.faults.iter().any(|it| it.texts == [pair]),
        "{strict:?}"
    );
}

#[test]
fn functions_have_limits() {
    let body = |lines: usize| format!("{{{}}}", "\n".repeat(lines - 1));
    let (long, longest) = (body(81), body(80));
    let text = format!(
        "struct S; impl S {{ #[inline]\nfn long(&self) {long}\nfn longest() {longest}\n\
         fn wide(&self, a: A, b: A, c: A, d: A, e: A, f: A, g: A) {{}}\n\
         fn widest(&self, a: A, b: A, c: A, d: A, e: A, f: A) {{}} }}\n\
         extern \"C\" fn called(a: A, b: A, c: A, d: A, e: A, f: A, g: A) {{}}\n\
         #[cfg(test)] mod tests {{ fn f() {long} }}"
    );
    let expected = [
        "p/src/lib.rs S::long: 81 lines (line 2), and 80 are allowed",
        "p/src/lib.rs S::wide: 7 parameters (line 163), and 6 are allowed",
    ];
    assert_eq!(found(&[("lib.rs", &text)]), expected);
}

#[test]
fn structs_have_limits_unless_their_layout_is_given() {
    let fields = |count: usize| {
        let fields: Vec<_> = (0..count).map(|it| format!("f{it}: u8")).collect();
        format!("{{ {} }}", fields.join(", "))
    };
    let (most, more) = (fields(15), fields(16));
    let text = format!(
        "struct Most {most}\nstruct More {more}\n#[repr(C, packed)] struct C {more}\n\
         #[derive(Debug, zerocopy::FromBytes)] struct Bytes {more}\nenum E {{ Variant {more} }}\n\
         #[derive(Debug)] struct Many({});",
        "u8, ".repeat(17)
    );
    let expected = [
        "p/src/lib.rs More: 16 fields (line 2), and 15 are allowed",
        "p/src/lib.rs Many: 17 fields (line 6), and 15 are allowed",
    ];
    assert_eq!(found(&[("lib.rs", &text)]), expected);
}

#[test]
fn files_have_a_limit_unless_they_are_generated() {
    let long = format!(
        "struct S;\n{}#[cfg(test)]\nmod tests {{\n}}\n",
        "\n".repeat(597)
    );
    let generated = format!("// Generated by a program.\n{long}");
    let files = |text| found(&[("lib.rs", "mod a;"), ("a.rs", text)]);
    let expected = "p/src/a.rs: 601 lines (line 1), and 600 are allowed";
    assert_eq!(files(&long), [expected]);
    assert_eq!(files(&long[10..]), [""; 0]);
    assert_eq!(files(&generated), [""; 0]);
}

#[test]
fn exceptions_are_needed_and_few() {
    let long = "\n".repeat(650);
    let with = |rows: &str| {
        let head = "## Exceptions to the limits of size\n\n| what | size | reason |\n|---|---|---|";
        let document = format!("# A\n\n{head}\n{rows}\n## B\n\n| a | b |\n|---|---|\n| c | d |\n");
        found(&[("lib.rs", &long), ("/docs/architecture.md", &document)])
    };
    let needed = "| `p/src/lib.rs` | 650 lines | It is one table. |\n";
    assert_eq!(with(needed), [""; 0]);
    for (rows, part) in [
        ("", "p/src/lib.rs: 650 lines"),
        ("| `p/src/lib.rs` | 640 lines | why |\n", "640 are allowed"),
        ("| `p/src/lib.rs` | 650 lines | |\n", "is not `what"),
        (
            "| `p/src/lib.rs f` | 90 lines | why |\n",
            "needs no exception",
        ),
        (
            "| `p/src/lib.rs` | 20 fields | why |\n",
            "needs no exception",
        ),
    ] {
        let faults = with(rows);
        assert!(
            faults.iter().any(|it| it.contains(part)),
            "{rows}: {faults:?}"
        );
    }
    let row = |it: usize| format!("| `f{it}` | 700 lines | why |\n");
    let eleven: String = (0..11).map(row).collect();
    assert!(with(&eleven).iter().any(|it| it.contains("11 exceptions")));
    assert!(
        !with(&eleven.replace("f0", "f1"))
            .iter()
            .any(|it| it.contains("exceptions, and"))
    );
}

#[test]
fn a_type_has_a_name_of_its_own_unless_the_glossary_lists_it() {
    let files = [
        ("lib.rs", "mod a; mod b;\npub struct A;\nstruct C;"),
        (
            "a.rs",
            "pub(crate) trait B {}\nmod c { enum A {} }\nfn f() { struct C; }\n\
             impl D for E { type F = u8; }\n#[cfg(test)] struct G;",
        ),
        (
            "b.rs",
            "listed! {\n/// Text.\npub struct B: u64 {} }\ntype F = u8; struct G;\n\
             macro_rules! m { ($n:ident) => { struct $n; } }",
        ),
    ];
    let expected = [
        "A: p/src/a.rs:2, p/src/lib.rs:2",
        "B: p/src/a.rs:1, p/src/b.rs:3",
        "C: p/src/a.rs:3, p/src/lib.rs:3",
    ];
    assert_eq!(found(&files), expected);

    let with = |rows: &str| {
        let head = "## Names that stand more than once\n\nText.\n\n| name | why |\n|---|---|";
        let document = format!("# A\n\n{head}\n{rows}\n## B\n\n| a | b |\n|---|---|\n| c | d |\n");
        let glossary = ("/docs/glossary.md", document.as_str());
        found(&[&files[..], &[glossary]].concat())
    };
    let all = "| `A` | why |\n| `B` | why |\n| `C` | why |\n";
    assert_eq!(with(all), [""; 0]);
    for (rows, fault) in [
        ("| `A` | why |\n| `B` | why |\n", expected[2]),
        (
            &format!("{all}| `F` | why |\n"),
            "`F` is not the name of two types",
        ),
        (
            &format!("{all}| `G` | why |\n"),
            "`G` is not the name of two types",
        ),
        (
            &format!("{all}| `H` | why |\n"),
            "`H` is not the name of two types",
        ),
        (&format!("{all}| `A` | why |\n"), "`A` has two rows"),
        (&format!("{all}| `D` | |\n"), "is not `name"),
        (&format!("{all}| D | why |\n"), "is not `name"),
    ] {
        let faults = with(rows);
        assert!(
            faults.len() == 1 && faults[0].contains(fault),
            "{rows}: {faults:?}"
        );
    }
}

#[test]
fn lines_of_code_are_those_of_production() {
    let text = "//! Head.\n\nuse std::fmt; // why\n/* a\n b */\n\
                #[cfg(test)]\nmod tests {\n    use x;\n}\n\
                fn f() {\n    g()\n}\n";
    let files = [("lib.rs", text), ("unused.rs", "not Rust")];
    assert_eq!(table(&files, "Crates"), ["p: 4"]);
}

#[test]
fn a_module_without_its_file_is_told() {
    let error = check(&tree(&[("lib.rs", "\nmod a;")]), false).expect_err("no file");
    assert!(error.to_string().starts_with("p/src/lib.rs:2: "), "{error}");
    let error = check(&tree(&[("lib.rs", "\n)")]), false).expect_err("no Rust");
    assert!(error.to_string().starts_with("p/src/lib.rs:2: "), "{error}");
}
