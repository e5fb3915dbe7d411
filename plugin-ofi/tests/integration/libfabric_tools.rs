//! libfabric's own programs, fi_info(1) and fi_pingpong(1), with this project's provider.

use crate::support;
use std::process::Command;
use std::time::Duration;

use ferrofabric_shm::ShmProvider;
use support::counters::EndpointCounters;
use support::folder::Folder;
use support::plugin::Plugin;
use support::{has_device, has_program, pingpong, run, skip};

const PATIENCE: Duration = Duration::from_secs(120);

/// Messages of each size.
const ITERATIONS: u64 = 4;

/// The oldest libfabric that the plugin works with.
const OLDEST: (u32, u32) = (2, 0);

#[test]
fn fi_info_lists_the_provider() {
    if !libfabric_is_here() {
        return;
    }
    let said = fi_info(&["-p", "ferro"]).expect_success();
    assert!(said.contains("provider: ferro"), "{said}");
    assert!(said.contains("type: FI_EP_RDM"), "{said}");
    assert!(!said.contains("rxm") && !said.contains("rxd"), "{said}");
    let domains: Vec<_> = said.lines().filter(|l| l.contains("domain:")).collect();
    assert!(!domains.is_empty(), "{said}");
    if has_device() {
        assert!(
            domains.iter().any(|d| !d.contains(ShmProvider::DOMAIN)),
            "a verbs domain is missing: {said}"
        );
    }
}

#[test]
fn fi_info_finds_it_by_what_it_can() {
    if !libfabric_is_here() {
        return;
    }
    let capabilities = "FI_MSG|FI_TAGGED|FI_DIRECTED_RECV|FI_MULTI_RECV|FI_SOURCE";
    let wanted = ["-p", "ferro", "-t", "FI_EP_RDM", "-c", capabilities, "-v"];
    let said = fi_info(&wanted).expect_success();
    for capability in capabilities.split('|') {
        assert!(said.contains(capability), "{said}");
    }
    let impossible = fi_info(&["-p", "ferro", "-c", "FI_MULTICAST"]);
    assert!(!impossible.success, "{impossible:?}");
    assert!(impossible.output.contains("-61"), "{impossible:?}");
}

#[test]
fn fi_info_lists_its_settings() {
    if !libfabric_is_here() {
        return;
    }
    let said = fi_info(&["-g", "ferro"]).expect_success();
    for setting in ferrofabric_contracts::config::SETTINGS {
        let name = format!("FI_FERRO_{}", setting.name.to_uppercase());
        assert!(said.contains(&name), "{name} is not in {said}");
    }
}

#[test]
fn fi_info_lists_datagrams_on_devices_alone() {
    if !libfabric_is_here() {
        return;
    }
    let wanted = ["-p", "ferro", "-t", "FI_EP_DGRAM", "-v"];
    if !has_device() {
        let none = fi_info(&wanted);
        assert!(!none.success && none.output.contains("-61"), "{none:?}");
        return skip("this machine has no RDMA device");
    }
    let said = fi_info(&wanted).expect_success();
    for part in [
        "type: FI_EP_DGRAM",
        "protocol: FI_PROTO_IB_UD",
        "msg_prefix_size: 0",
        "msg_prefix_size: 40",
        "FI_MSG_PREFIX",
        "cq_data_size: 4",
    ] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    assert!(!said.contains("rxd") && !said.contains("shm"), "{said}");
    // Without a type of endpoint in the hints, reliable endpoints come first.
    let any = fi_info(&["-p", "ferro"]).expect_success();
    let types: Vec<_> = any.lines().filter(|l| l.contains("type:")).collect();
    assert!(types[0].contains("FI_EP_RDM"), "{any}");
    assert!(types.iter().any(|t| t.contains("FI_EP_DGRAM")), "{any}");
    // libfabric's own reliable messages over datagrams would be offered beside ours, were every
    // provider let in.
    let plugin = Plugin::new();
    let mut command = Command::new("fi_info");
    plugin.choose(&mut command);
    command.env_remove("FI_PROVIDER").args(["-p", "ferro"]);
    let everybody = run::run(command, PATIENCE).expect_success();
    assert!(everybody.contains("FI_EP_DGRAM"), "{everybody}");
    assert!(!everybody.contains("rxd"), "{everybody}");
}

#[test]
fn fi_pingpong_untagged() {
    ping_pongs("msg", ToolCarrier::Default);
}

#[test]
fn fi_pingpong_tagged() {
    ping_pongs("tagged", ToolCarrier::Default);
}

#[test]
fn fi_pingpong_untagged_verbs() {
    ping_pongs("msg", ToolCarrier::Verbs);
}

#[test]
fn fi_pingpong_tagged_verbs() {
    ping_pongs("tagged", ToolCarrier::Verbs);
}

#[test]
fn fi_pingpong_datagrams() {
    ping_pongs("msg", ToolCarrier::Datagrams);
}

/// The transport of messages between two processes of one machine.
#[derive(Clone, Copy, PartialEq)]
enum ToolCarrier {
    Default,
    Verbs,
    Datagrams,
}

fn ping_pongs(mode: &str, carrier: ToolCarrier) {
    if !libfabric_is_here() {
        return;
    }
    if carrier != ToolCarrier::Default && !has_device() {
        return skip("this machine has no RDMA device");
    }
    let (plugin, stats) = (Plugin::new(), Folder::new());
    let program = || {
        let mut command = Command::new("fi_pingpong");
        plugin.choose(&mut command);
        command.env("FERRO_STATS", stats.path());
        if carrier == ToolCarrier::Verbs {
            command.env("FERRO_SHM", "off");
        }
        let endpoint = match carrier {
            ToolCarrier::Datagrams => "dgram",
            _ => "rdm",
        };
        command.args(["-p", "ferro", "-e", endpoint, "-m", mode, "-S", "all", "-c"]);
        command.args(["-I", &ITERATIONS.to_string()]);
        command
    };
    let said = pingpong::pingpong(program, PATIENCE);
    // A header and a line for each size.
    let sizes = said.lines().count() as u64 - 1;
    assert!(sizes >= 10, "{said}");
    let counters = EndpointCounters::read(stats.path());
    assert_eq!(counters.endpoints(), 2, "{counters:?}");
    let paths = ["shm", "verbs", "dgram"];
    let of = |path: &str| counters.sum(&format!("{path}_messages_sent"));
    let expected = match carrier {
        ToolCarrier::Default => "shm",
        ToolCarrier::Verbs => "verbs",
        ToolCarrier::Datagrams => "dgram",
    };
    for path in paths {
        match path == expected {
            true => assert!(of(path) >= 2 * ITERATIONS * sizes, "{counters:?}"),
            false => assert_eq!(of(path), 0, "{counters:?}"),
        }
    }
}

fn fi_info(arguments: &[&str]) -> run::Finished {
    let plugin = Plugin::new();
    let mut command = Command::new("fi_info");
    plugin.choose(&mut command);
    command.args(arguments);
    run::run(command, PATIENCE)
}

/// Whether there is a libfabric that the plugin is made for; a skip where there is not.
fn libfabric_is_here() -> bool {
    if !has_program("fi_info") || !has_program("fi_pingpong") {
        skip("libfabric's programs are not installed here (libfabric-bin)");
        return false;
    }
    let mut command = Command::new("fi_info");
    command.arg("--version");
    let said = run::run(command, PATIENCE).expect_success();
    let version = said.lines().find_map(|l| l.strip_prefix("libfabric: "));
    let version = version.unwrap_or_else(|| panic!("no version: {said}"));
    let numbers: Vec<u32> = version.split('.').filter_map(|n| n.parse().ok()).collect();
    if (numbers[0], numbers[1]) < OLDEST {
        skip(&format!("libfabric is {version} here, older than 2.0"));
        return false;
    }
    true
}
