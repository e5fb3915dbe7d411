//! `cargo run -p ferrofabric-shape` prints the modules that import each other in a circle, the
//! files, structures and functions that are too large, and the names of more than one type;
//! `-- --list` also prints the largest of each.

use std::path::Path;
use std::process::ExitCode;

use ferrofabric_shape::{Section, Tree, check};

fn main() -> ExitCode {
    let (mut list, mut strict) = (false, false);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--list" => list = true,
            "--strict" => strict = true,
            _ => {
                eprintln!("usage: ferrofabric-shape [--list] [--strict]");
                return ExitCode::from(2);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let report = match Tree::read(&root).and_then(|tree| check(&tree, strict)) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if list {
        report
            .tables
            .iter()
            .for_each(|section| println!("{section}"));
    }
    let broken = |section: &&Section| list || !section.texts.is_empty();
    let faults = report.faults.iter().filter(broken);
    faults.for_each(|section| println!("{section}"));
    match report.faults.iter().all(|it| it.texts.is_empty()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
