//! `ferro info` on devices: their limits and ports, and the reason why one carries no reliable
//! messages.

use crate::{nic, program};
use ferrofabric_fake_device::profile::DeviceProfile;
use nic::{check_text, on_nic, on_nic_with};
use program::{output, stderr, stdout};
use serde_json::{Value, json};

fn info(profile: &str, settings: &[(&str, &str)]) -> Value {
    let output = on_nic_with(profile, &["info", "--json"], settings);
    assert!(output.status.success(), "{profile}: {}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

#[test]
fn a_device_is_listed_with_its_limits() {
    for name in DeviceProfile::names() {
        let profile = DeviceProfile::named(name).unwrap();
        let json = info(name, &[]);
        let devices = json["devices"].as_array().unwrap();
        let names: Vec<_> = devices.iter().map(|device| &device["name"]).collect();
        assert_eq!(names, ["fake_roce0", "fake_ib0"], "{name}");
        let (device, limits) = (&devices[0], &devices[0]["limits"]);
        assert_eq!(device["vendor_id"], profile.vendor_id, "{name}");
        for (limit, value) in [
            ("entries", profile.entries),
            ("read_entries", profile.read_entries),
            ("queue_pairs", profile.queue_pairs),
            ("completions", profile.completions),
            ("reads_as_initiator", profile.reads_as_initiator),
            ("reads_as_target", profile.reads_as_target),
        ] {
            assert_eq!(limits[limit], value, "{name}: {limit}");
        }
        assert_eq!(limits["atomics"], profile.atomics, "{name}");
        assert_eq!(
            limits["on_demand_paging"], profile.on_demand_paging,
            "{name}"
        );
        let shared = limits["shared_receive_queues"] != 0;
        assert_eq!(shared, profile.shared_receives, "{name}");
        let inline = &device["inline"];
        assert_eq!(
            inline["rc_bytes"].is_u64(),
            profile.connections,
            "{name}: {inline}"
        );
        assert_eq!(
            inline["ud_bytes"].is_u64(),
            profile.datagrams,
            "{name}: {inline}"
        );
    }
    let few = info("inline-32", &[]);
    let inline = json!({"requested_bytes": 220, "rc_bytes": 32, "ud_bytes": 32});
    assert_eq!(few["devices"][0]["inline"], inline);
}

/// Covers: GI-14
#[test]
fn a_port_is_listed_with_its_addresses_and_partitions() {
    let json = info("mlx5-vf", &[]);
    let port = &json["devices"][1]["ports"][0];
    for (fact, value) in [
        ("state", json!("active")),
        ("physical_state", json!("link up")),
        ("link_layer", json!("InfiniBand")),
        ("bits_per_second", json!(56_000_000_000u64)),
        ("lanes", json!(4)),
        ("mtu_bytes", json!(4096)),
        ("lid", json!(0)),
        (
            "partition_keys",
            json!([{"index": 1, "key": 0x7fff}, {"index": 2, "key": 0x8001}]),
        ),
    ] {
        assert_eq!(port[fact], value, "{fact}");
    }
    let gid = &json["devices"][0]["ports"][0]["gids"][0];
    assert_eq!(
        *gid,
        json!({
            "index": 0,
            "gid": "::ffff:192.0.2.1",
            "type": "RoCE v2",
            "interface": null,
            "chosen": true,
            "why": "the best there is",
        })
    );
    let elsewhere = info("generous", &[("FERRO_GID_INDEX", "3")]);
    let port = &elsewhere["devices"][0]["ports"][0];
    let error = port["gid_error"].as_str().unwrap();
    assert!(error.contains("GID index 3"), "{error}");
}

#[test]
fn each_line_of_the_list_fits() {
    for profile in ["mlx5-vf", "efa", "rxe"] {
        let text = stdout(&on_nic(profile, &["info"]));
        check_text(
            profile,
            &text,
            &[
                "device fake_ib0",
                "port fake_roce0:1 state: active (link up) link: Ethernet, 100 Gb/s (4 x 25)",
                "GID: 0 ::ffff:192.0.2.1 (RoCE v2): chosen, the best there is",
            ],
        );
    }
}

#[test]
fn a_gid_of_another_network_namespace_is_passed_over() {
    let text = stdout(&on_nic("mlx5-roce", &["info"]));
    check_text(
        "mlx5-roce",
        &text,
        &[
            "GID: 3 ::ffff:192.0.2.1 (RoCE v2): its interface is in another network namespace",
            "GID: 7 ::ffff:192.0.2.2 (RoCE v2): chosen, the best there is",
        ],
    );
}

#[test]
fn explain_follows_the_setting_that_chooses_an_address() {
    let addresses = |settings: &[(&str, &str)]| {
        let output = on_nic_with("generous", &["info", "--explain", "--json"], settings);
        let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let ports = json["ports"].as_array().unwrap().clone();
        assert_eq!(ports.len(), 2, "{json}");
        ports[0].clone()
    };
    let best = addresses(&[]);
    assert_eq!(best["addresses"][0]["why"], "the best there is");
    let named = addresses(&[("FERRO_GID_INDEX", "0")]);
    assert_eq!(named["addresses"][0]["why"], "asked for", "{named}");
    let nowhere = addresses(&[("FERRO_GID_INDEX", "3")]);
    let error = nowhere["error"].as_str().unwrap();
    assert!(error.contains("GID index 3"), "{error}");
}

#[test]
fn with_verbs_off_no_device_is_listed() {
    let json = info("generous", &[("FERRO_VERBS", "off")]);
    assert_eq!(json["devices"], json!([]));
    // This machine may have devices.
    let here: Value = serde_json::from_str(&stdout(&output(&["info", "--json"]))).unwrap();
    assert!(here["devices"].is_array(), "{here}");
}

#[test]
fn explain_says_why_a_device_carries_no_reliable_messages() {
    for (profile, why) in [
        ("siw", "create UD queue pair"),
        ("mana", "create UD queue pair"),
        ("hns08", "create UD queue pair"),
        ("efa", "create RC queue pair"),
    ] {
        let output = on_nic(profile, &["info", "--explain", "--json"]);
        let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let missing = json["missing"].as_array().unwrap();
        let said = missing.iter().map(|why| why.as_str().unwrap());
        let reliable: Vec<&str> = said
            .filter(|text| text.contains("open reliable endpoints on port 1 of fake_roce0"))
            .collect();
        assert_eq!(reliable.len(), 1, "{profile}: {json}");
        assert!(reliable[0].contains(why), "{profile}: {}", reliable[0]);
        let fits = json["fits"].as_array().unwrap();
        let is_reliable = |fit: &Value| fit["domain"] == "fake_roce0:1" && fit["type"] == "rdm";
        assert!(!fits.iter().any(is_reliable), "{profile}: {json}");
    }
}
