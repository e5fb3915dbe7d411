//! Sources of a stub library: a library with the names and versions of another one's symbols, and
//! nothing else, for `ci/machine/link-stubs`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The sources that a C compiler and a linker turn into a stub library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StubSources {
    /// A function for each symbol.
    pub(crate) code: String,
    /// The linker's version script.
    pub(crate) versions: String,
}

/// The sources of a stub for the library of which `nm` printed `symbols`.
///
/// # Errors
///
/// If the library has no symbol with a version.
pub(crate) fn sources(symbols: &str) -> Result<StubSources, String> {
    let mut by_version: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, version) in symbols.lines().filter_map(linked) {
        by_version.entry(version).or_default().push(name);
    }
    if by_version.is_empty() {
        return Err("nm printed no symbol with a version".to_owned());
    }
    let (mut code, mut versions) = (String::new(), String::new());
    for (version, names) in by_version {
        for name in &names {
            let _ = writeln!(code, "void {name}(void) {{}}");
        }
        let _ = writeln!(versions, "{version} {{ global: {}; }};", names.join("; "));
    }
    Ok(StubSources { code, versions })
}

/// Name and version of a symbol that a newly linked program can get. "name@@VERSION" is one,
/// "name@VERSION" serves old programs.
fn linked(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    let (_address, kind, symbol) = (words.next()?, words.next()?, words.next()?);
    // Code, weak symbols and data, each visible from outside.
    matches!(kind, "T" | "W" | "B" | "D" | "R")
        .then(|| symbol.split_once("@@"))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOLS: &str = "\
0000000000000000 A IBVERBS_1.0
000000000000e2f0 T ibv_open_device@IBVERBS_1.0
000000000000c750 T ibv_open_device@@IBVERBS_1.1
000000000000b480 T ibv_fork_init@@IBVERBS_1.1
000000000001a0c0 T _ibv_query_gid_ex@@IBVERBS_1.11
000000000001c000 D verbs_allow@@IBVERBS_1.11
0000000000011000 t inner@@IBVERBS_1.1
0000000000012000 T bare
";

    #[test]
    fn symbols_that_new_programs_link_are_in_the_stub() {
        let stub = sources(SYMBOLS).expect("symbols");
        assert_eq!(
            stub.code,
            "void ibv_open_device(void) {}\n\
             void ibv_fork_init(void) {}\n\
             void _ibv_query_gid_ex(void) {}\n\
             void verbs_allow(void) {}\n"
        );
        assert_eq!(
            stub.versions,
            "IBVERBS_1.1 { global: ibv_open_device; ibv_fork_init; };\n\
             IBVERBS_1.11 { global: _ibv_query_gid_ex; verbs_allow; };\n"
        );
    }

    #[test]
    fn a_library_without_versions_is_an_error() {
        for symbols in ["", "0000000000012000 T bare\n", "nm: no symbols\n"] {
            assert!(sources(symbols).is_err(), "{symbols}");
        }
    }
}
