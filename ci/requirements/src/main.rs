//! `cargo run -p ferrofabric-requirements` says whether docs/conformance.md agrees with the tests;
//! `-- --write` makes it.

use std::path::Path;
use std::process::ExitCode;

use ferrofabric_requirements::{DOCUMENT, read};

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let write = arguments == ["--write"];
    if !write && !arguments.is_empty() {
        eprintln!("usage: ferrofabric-requirements [--write]");
        return ExitCode::from(2);
    }
    let result = read(&root).and_then(|(is, should)| match is == should {
        true => Ok(()),
        false if write => std::fs::write(root.join(DOCUMENT), should)
            .map_err(|error| format!("{DOCUMENT}: {error}")),
        false => Err(format!(
            "{DOCUMENT} does not list the tests as they are; \
             `cargo run -p ferrofabric-requirements -- --write` mends it"
        )),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
