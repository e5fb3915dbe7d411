//! The help of the scripts that people call: it is there, and fits a terminal.

use std::path::PathBuf;
use std::process::Command;

#[test]
fn the_help_of_each_script_fits_80_columns() {
    let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let scripts = std::fs::read_dir(format!("{tree}/scripts")).expect("scripts");
    let mut scripts: Vec<PathBuf> = scripts.map(|entry| entry.expect("script").path()).collect();
    scripts.push(format!("{tree}/ci/clean-room").into());
    assert!(scripts.len() > 1);
    for script in scripts {
        let name = script.display();
        let output = Command::new(&script).arg("--help").output().expect("runs");
        let help = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{name}: {}", output.status);
        assert!(help.starts_with("usage: "), "{name}: {help}");
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
    }
}
