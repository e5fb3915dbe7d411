//! Tests that have a process of their own, for a process has one libfabric.

use ferrofabric_conformance::this_program::name_beside_this_test;
use std::process::Command;

use crate::client::Libfabric;
use crate::support::plugin::{FakeDevicePlugin, Plugin};
use crate::support::tool::Tool;
use crate::support::{has_device, skip};

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
    let plugin = Plugin::new();
    let prepare = |command: &mut Command| {
        prepare(command);
        plugin.choose(command);
    };
    run_prepared(tool, test, variables, prepare);
}

/// Tests that run over verbs on a real device only, and why.
const NOT_ON_THE_FAKE_DEVICE: [(&str, &str); 6] = [
    ("av_named::a_vector_goes_with_its_last_opener", ITS_PROCESS),
    ("av_named::a_vector_outlives_its_maker", ITS_PROCESS),
    ("av_formats::each_format_is_printed_and_read_back", OFFERS),
    ("calls::each_flag_of_queues_and_address_vectors", OFFERS),
    ("completions::unknown_senders_are_named", OFFERS),
    ("calls::counts_at_their_limits", REFUSALS),
];
const ITS_PROCESS: &str = "no message leaves the process of a fake device";
const OFFERS: &str = "it finds no offer or no address there, for a reason not found yet";
const REFUSALS: &str = "a registration of 0 bytes fails there, for a reason not found yet";

/// As `run_under`, over verbs: on the device of this machine, or else on the fake device.
pub fn run_over_verbs(
    tool: Tool,
    test: &str,
    variables: &[(&str, &str)],
    prepare: impl FnOnce(&mut Command),
) {
    if has_device() {
        return run_under(tool, test, variables, prepare);
    }
    // With the fake device some tests make no progress for minutes under valgrind, for a reason not
    // found yet, and one that limits its memory fails under the sanitizer.
    if tool != Tool::Plain {
        return println!("not over verbs under a tool, since this machine has no device");
    }
    let full = name_beside_this_test(test);
    if let Some((_, why)) = NOT_ON_THE_FAKE_DEVICE
        .iter()
        .find(|(name, _)| *name == full)
    {
        return println!("not over verbs, since {why}");
    }
    let plugin = FakeDevicePlugin::new();
    let prepare = |command: &mut Command| {
        prepare(command);
        plugin.choose(command);
    };
    run_prepared(tool, test, variables, prepare);
}

fn run_prepared(
    tool: Tool,
    test: &str,
    variables: &[(&str, &str)],
    prepare: impl FnOnce(&mut Command),
) {
    let mut command = tool.run(&std::env::current_exe().unwrap());
    again(&mut command, test, variables);
    prepare(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(line) = text.lines().find(|line| line.starts_with("SKIP")) {
        println!("{line}");
    }
    assert!(
        output.status.success() && text.contains("1 passed"),
        "with {variables:?} ({}): {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Has a command of this program run a test once more, in a process with these variables.
pub fn again(command: &mut Command, test: &str, variables: &[(&str, &str)]) {
    command
        .args(["--exact", &name_beside_this_test(test), "--nocapture"])
        // With one, the harness writes the name before what the test writes, on the same line.
        .arg("--test-threads=2")
        .env(CHILD, "1")
        .envs(variables.iter().copied());
}
