//! Layouts and numbers of the bindings against a C compiler's, for the libfabric that they are made
//! from and for an older one.
//!
//! `layout-2.6.txt` and `layout-2.1.txt` hold sizes, offsets and constants as gcc computed them
//! from libfabric's headers of those versions; with FERRO_LIBFABRIC_INCLUDE set to the folder of
//! either's `rdma/`, that file is computed anew first, so that it is checked itself. (The bindings
//! also assert libclang's numbers, at compile time.)
//!
//! The test reads the names to compare from the bindings, so none can be left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;

use ferro_fi::abi::{fi_domain_attr, fi_mr_attr};
use ferrofabric_bindings::{LIBFABRIC_HEADERS, layout};

/// bindgen's name for a field that has none.
const UNNAMED: &str = "__bindgen_anon_1";

const BINDINGS: &str = include_str!("../../src/abi/bindings.rs");
const C_2_6: &str = include_str!("../layout-2.6.txt");
const C_2_1: &str = include_str!("../layout-2.1.txt");

/// Names that libfabric 2.1 does not have, and the version that brought each. All fields of a
/// structure go by its name.
const NEWER: &[(&str, (u32, u32))] = &[
    ("FI_EFIREWALLADDR", (2, 2)),
    ("FI_FIREWALL_ADDR", (2, 2)),
    ("FI_GET_FD", (2, 2)),
    ("FI_OPT_EFA_HOMOGENEOUS_PEERS", (2, 2)),
    ("FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV", (2, 5)),
    ("FI_OPT_FIREWALL_ADDR", (2, 2)),
    ("FI_RESCAN", (2, 2)),
    ("FI_SOCKADDR_IP", (2, 3)),
    ("FI_TYPE_CQ_WAIT_COND", (2, 5)),
    ("FI_TYPE_WAIT_OBJ", (2, 5)),
    ("fi_domain_attr.max_cntr_value", (2, 5)),
    ("fi_domain_attr.max_err_cntr_value", (2, 5)),
    ("fi_mr_attr.device.rocr", (2, 5)),
];

/// Numbers that differ in libfabric 2.1, with the value there. No other field lies elsewhere, no
/// other structure has another size.
const DIFFERS_IN_2_1: &[(&str, i64)] = &[
    ("FI_ERRNO_MAX", 271),
    ("fi_domain_attr", 208),
    // It begins with two pointers there, "next" and "prev"; no field says which it is but
    // fi_version().
    ("fi_peer_rx_entry", 112),
    ("fi_peer_rx_entry.srx", 16),
    ("fi_peer_rx_entry.addr", 24),
    ("fi_peer_rx_entry.msg_size", 32),
    ("fi_peer_rx_entry.tag", 40),
    ("fi_peer_rx_entry.cq_data", 48),
    ("fi_peer_rx_entry.flags", 56),
    ("fi_peer_rx_entry.context", 64),
    ("fi_peer_rx_entry.count", 72),
    ("fi_peer_rx_entry.desc", 80),
    ("fi_peer_rx_entry.peer_context", 88),
    ("fi_peer_rx_entry.owner_context", 96),
    ("fi_peer_rx_entry.iov", 104),
];

/// Sizes (`fi_info`), offsets (`fi_info.caps`) and constants (`FI_MSG`), each under its C name.
type LayoutNumbers = BTreeMap<String, i64>;

#[test]
fn rust_agrees_with_the_c_compiler() {
    let c = numbers_of_c("2.6", C_2_6);
    let rust = numbers_of_rust();
    assert!(
        rust.len() > 1200,
        "the bindings were not understood: {}",
        rust.len()
    );
    let names: BTreeSet<_> = rust.keys().chain(c.keys()).collect();
    let differences: Vec<_> = names
        .into_iter()
        .filter(|&name| rust.get(name) != c.get(name))
        .map(|name| (name, rust.get(name), c.get(name)))
        .collect();
    assert!(differences.is_empty(), "(Rust, C): {differences:?}");
}

#[test]
fn an_older_libfabric_has_everything_at_the_same_place_but_what_is_listed() {
    let old = numbers_of_c("2.1", C_2_1);
    let rust = numbers_of_rust();
    for (name, number) in &rust {
        let expected = if is_newer(name, (2, 1)) {
            None
        } else {
            let differs = DIFFERS_IN_2_1.iter().find(|(known, _)| known == name);
            Some(differs.map_or(*number, |(_, there)| *there))
        };
        assert_eq!(old.get(name).copied(), expected, "{name}");
    }
    assert!(old.keys().all(|name| rust.contains_key(name)));
    for (name, there) in DIFFERS_IN_2_1 {
        assert_ne!(rust.get(*name), Some(there), "{name} does not differ");
    }
}

#[test]
fn no_ops_table_is_smaller_than_an_older_libfabrics() {
    let old = numbers_of_c("2.1", C_2_1);
    let rust = numbers_of_rust();
    let tables: Vec<_> = old
        .iter()
        .filter(|(name, _)| name.starts_with("fi_ops") && !name.contains('.'))
        .collect();
    assert!(tables.len() > 20, "{tables:?}");
    for (name, size) in tables {
        assert!(rust[name] >= *size, "{name}");
    }
}

/// Whether a libfabric of that version is too old to have it.
fn is_newer(name: &str, version: (u32, u32)) -> bool {
    since(name).is_some_and(|since| version < since)
}

fn since(name: &str) -> Option<(u32, u32)> {
    let structure = name.split('.').next().expect("one part at least");
    NEWER
        .iter()
        .find(|(known, _)| *known == name || *known == structure)
        .map(|(_, since)| *since)
}

/// Sizes and offsets as the compile-time assertions of the bindings have them, constants as they
/// are written there.
fn numbers_of_rust() -> LayoutNumbers {
    let text: String = BINDINGS.split_whitespace().collect();
    let mut numbers = LayoutNumbers::new();
    for part in text.split("size_of::<").skip(1) {
        let (name, rest) = part.split_once(">()-").expect("a name and a size");
        if !name.contains("__bindgen") {
            numbers.insert(name.to_owned(), leading_number(rest));
        }
    }
    // Of fields without a name the bindings assert none.
    let mut offsets = BTreeMap::from([
        (
            ("fi_domain_attr", UNNAMED),
            offset_of!(fi_domain_attr, __bindgen_anon_1) as i64,
        ),
        (
            ("fi_mr_attr", UNNAMED),
            offset_of!(fi_mr_attr, __bindgen_anon_1) as i64,
        ),
    ]);
    for part in text.split("offset_of!(").skip(1) {
        let (place, rest) = part.split_once(")-").expect("a place and an offset");
        let (structure, field) = place
            .trim_end_matches(',')
            .split_once(',')
            .expect("a structure and a field");
        offsets.insert((structure, field), leading_number(rest));
    }
    for (&(structure, field), &offset) in &offsets {
        if field == UNNAMED {
            continue;
        }
        let (structure, path, start) = place_in_c(&text, &offsets, structure);
        numbers.insert(
            format!("{structure}.{path}{}", name_in_c(field)),
            start + offset,
        );
    }
    for part in text.split("pubconstFI_").skip(1) {
        let (name, rest) = part.split_once(':').expect("a name and a type");
        let (_, value) = rest.split_once('=').expect("a type and a value");
        let (value, _) = value.split_once(';').expect("it ends");
        // Versions differ between headers, and strings have no number.
        if !name.ends_with("_VERSION") && !value.starts_with("c\"") {
            numbers.insert(format!("FI_{name}"), constant(value));
        }
    }
    numbers
}

/// Of a type without a name in C: the structure that has it, the path to it there, and its offset.
fn place_in_c<'a>(
    text: &str,
    offsets: &BTreeMap<(&'a str, &'a str), i64>,
    unnamed: &'a str,
) -> (&'a str, String, i64) {
    let Some((outer, _)) = unnamed.rsplit_once("__bindgen_ty_") else {
        return (unnamed, String::new(), 0);
    };
    let (before, _) = text
        .split_once(&format!(":{unnamed},"))
        .expect("a field has the type");
    let at = before.rfind("pub").expect("fields are public");
    let field = &before[at + "pub".len()..];
    let (structure, mut path, start) = place_in_c(text, offsets, outer);
    if field != UNNAMED {
        path = path + name_in_c(field) + ".";
    }
    (structure, path, start + offsets[&(outer, field)])
}

/// bindgen adds an underscore to a name that is a keyword of Rust.
fn name_in_c(field: &str) -> &str {
    field.strip_suffix('_').unwrap_or(field)
}

fn constant(value: &str) -> i64 {
    if value.ends_with("::MAX") {
        return -1;
    }
    // Of an enum: `fi_av_type(1)`.
    let digits = match value.split_once('(') {
        Some((_, inner)) => inner.trim_end_matches(')'),
        None => value,
    };
    let number: i128 = digits.parse().expect("a number");
    number as i64
}

fn leading_number(text: &str) -> i64 {
    let end = text.find(|c: char| !c.is_ascii_digit()).expect("it ends");
    text[..end].parse().expect("a number")
}

/// The committed numbers of a version; computed anew if FERRO_LIBFABRIC_INCLUDE has the headers of
/// that very version.
fn numbers_of_c(version: &str, committed: &str) -> LayoutNumbers {
    if let Some(include) = std::env::var_os("FERRO_LIBFABRIC_INCLUDE") {
        let output = layout::run_c(&c_program(), &include);
        let (found, fresh) = output.split_once('\n').expect("a line for the version");
        if found == version {
            let path = format!("{}/tests/layout-{version}.txt", env!("CARGO_MANIFEST_DIR"));
            layout::assert_current(Path::new(&path), committed, fresh);
        }
    }
    committed
        .lines()
        .map(|line| {
            let (name, number) = line.split_once(' ').expect("a name and a number");
            (name.to_owned(), number.parse().expect("a number"))
        })
        .collect()
}

/// A program that prints the version of the headers, and each name of the bindings that they have.
fn c_program() -> String {
    let mut text = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    for header in LIBFABRIC_HEADERS {
        writeln!(text, "#include <rdma/{header}>").expect("a string takes it");
    }
    text += "int main(void) {\nprintf(\"%d.%d\\n\", FI_MAJOR_VERSION, FI_MINOR_VERSION);\n";
    for name in numbers_of_rust().keys() {
        let value = match name.split_once('.') {
            Some((structure, field)) => format!("offsetof(struct {structure}, {field})"),
            None if name.starts_with("FI_") => name.clone(),
            None => format!("sizeof(struct {name})"),
        };
        let print = format!("printf(\"{name} %lld\\n\", (long long)({value}));");
        match since(name) {
            Some((major, minor)) => writeln!(
                text,
                "#if FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION) >= FI_VERSION({major}, {minor})\n{print}\n#endif"
            ),
            None => writeln!(text, "{print}"),
        }
        .expect("a string takes it");
    }
    text + "return 0; }\n"
}
