//! Tests that have a process of their own, for a process has one libfabric.

use ferrofabric_conformance::this_program::name_beside_this_test;
use std::process::Command;

use crate::client::Libfabric;
use crate::support::plugin::Plugin;
use crate::support::skip;
use crate::support::tool::Tool;

/// Set in the process that a test is for.
pub const CHILD: &str = "FERRO_TEST_CHILD";

/// Whether this is the process that a test is for.
pub fn is_here() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs a test in a process of its own, which has stock libfabric and the plugin.
pub fn alone(test: &str, body: impl FnOnce(&Libfabric)) {
    if !is_here() {
        return run(test, &[]);
    }
    match Libfabric::load() {
        Some(libfabric) => body(&libfabric),
        None => skip("there is no libfabric 2 here (libfabric1, or ci/mpi)"),
    }
}

/// Runs a test once more, in a process with these variables.
pub fn run(test: &str, variables: &[(&str, &str)]) {
    run_under(Tool::asked_for(), test, variables, |_| {});
}

/// Runs a test once more, under a tool, in a process with these variables and the changes of
/// `prepare`.
pub fn run_under(
    tool: Tool,
    test: &str,
    variables: &[(&str, &str)],
    prepare: impl FnOnce(&mut Command),
) {
    let mut command = tool.run(&std::env::current_exe().unwrap());
    prepare(&mut command);
    again(&mut command, test, variables);
    let plugin = Plugin::new();
    plugin.choose(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(line) = text.lines().find(|line| line.starts_with("SKIP")) {
        println!("{line}");
    }
    assert!(
        output.status.success(),
        "with {variables:?} ({}): {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Has a command of this program run a test once more, in a process with these variables.
pub fn again(command: &mut Command, test: &str, variables: &[(&str, &str)]) {
    command
        .args(["--exact", &name_beside_this_test(test), "--nocapture"])
        .env(CHILD, "1")
        .envs(variables.iter().copied());
}
