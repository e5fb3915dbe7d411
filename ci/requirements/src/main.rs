//! `cargo run -p ferrofabric-requirements` says whether docs/conformance.md agrees with the tests;
//! `-- --write` makes it.

use std::path::Path;
use std::process::ExitCode;

use ferrofabric_requirements::{DOCUMENT, read};

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let write = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => false,
        ["--write"] => true,
        _ => {
            eprintln!("usage: ferrofabric-requirements [--write]");
            return ExitCode::from(2);
        }
    };
    match read(&root) {
        Ok((is, should)) if is == should => ExitCode::SUCCESS,
        Ok((_, should)) if write => match std::fs::write(root.join(DOCUMENT), should) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("{DOCUMENT}: {error}")),
        },
        Ok(_) => fail(&format!(
            "{DOCUMENT} does not list the tests as they are; `cargo run -p ferrofabric-requirements -- --write` mends it"
        )),
        Err(error) => fail(&error.to_string()),
    }
}

fn fail(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}
