//! `ferro doctor`: its findings and exit codes, and the report on a device, on each kind of NIC
//! that there is a profile of.

use crate::{nic, program};
use std::path::PathBuf;

use ferrofabric_fake_device::profile::DeviceProfile;
use nic::{check_text, on_nic, on_nic_with};
use program::{ferro, output, stderr, stdout};
use serde_json::Value;

/// The facts of a profile that the doctor compares with. The time of a call is a measurement.
const MEASURED: &str = "control_call_us";

fn report(profile: &str, device: &str) -> Value {
    let output = on_nic(profile, &["doctor", "--device", device, "--report", "-"]);
    let text = stdout(&output);
    serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{profile}: {error}: {text}{}", stderr(&output));
    })
}

/// Each profile, and whether a fact of it can be tried out on this kind of NIC.
fn can_be_tried(profile: &DeviceProfile, fact: &str) -> bool {
    match fact {
        "about" | "sources" | MEASURED => false,
        // A RoCE port has none, and a report has no addresses.
        "lid" | "gids" => false,
        "announces_last_receive" => profile.connections && profile.shared_receives,
        "refuses_posts_in_error" => profile.connections,
        "datagram_failure_stops_sends" => profile.datagrams,
        // A message would have to break off in the middle.
        "held_receive" => false,
        // It would read memory that is none of the doctor's.
        "empty_write_reads_entry" => false,
        "shared_entries" => profile.shared_receives,
        _ => true,
    }
}

#[test]
fn the_report_has_the_facts_of_each_profile() {
    for name in DeviceProfile::names() {
        let profile = DeviceProfile::named(name).unwrap();
        let facts = serde_json::to_value(profile).unwrap();
        let report = report(name, "fake_roce0");
        for (fact, value) in facts.as_object().unwrap() {
            if can_be_tried(profile, fact) {
                assert_eq!(report[fact], *value, "{name}: {fact} of {report}");
            }
        }
        let measured = report[MEASURED].as_u64().unwrap();
        assert!(measured >= profile.control_call_us, "{name}: {measured}");
        sources_are_complete(&report);
    }
}

/// Each fact has a source, and each source a fact, as in the profiles of the tree.
fn sources_are_complete(report: &Value) {
    let mut facts: Vec<_> = report.as_object().unwrap().keys().collect();
    facts.retain(|fact| !["about", "sources"].contains(&fact.as_str()));
    let sources: Vec<_> = report["sources"].as_object().unwrap().keys().collect();
    assert_eq!(facts, sources, "{report}");
}

#[test]
fn the_fake_device_takes_a_report_as_a_profile() {
    for name in ["siw", "mlx5-vf", "bnxt", "worst-with-srq", "efa"] {
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-found.json"));
        let path = file.to_str().unwrap();
        let asked = ["doctor", "--device", "fake_ib0", "--report", path, "--json"];
        let output = on_nic(name, &asked);
        // The findings are printed beside it.
        let findings: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert!(findings["findings"].is_array(), "{findings}");
        let text = std::fs::read_to_string(&file).unwrap();
        let profile: DeviceProfile = serde_json::from_str(&text).unwrap();
        assert!(profile.about.contains("ferro doctor"), "{text}");
        let (mut first, mut again) = (
            serde_json::from_str(&text).unwrap(),
            report(path, "fake_ib0"),
        );
        for measured in [&mut first, &mut again] {
            let facts: &mut Value = measured;
            facts.as_object_mut().unwrap().remove(MEASURED);
        }
        assert_eq!(first, again, "{name}");
    }
}

#[test]
fn a_good_machine_has_no_error() {
    for profile in ["generous", "mlx5-roce", "rxe", "worst-with-srq"] {
        let output = on_nic(profile, &["doctor"]);
        let text = stdout(&output);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{profile}: {text}{}",
            stderr(&output)
        );
        check_text(
            profile,
            &text,
            &[
                "ok kernel: Linux ",
                "ok libibverbs: ",
                "ok fake_roce0:1: active, sends from index ",
                "ok fake_ib0: it carries reliable messages",
                "ok fake_ib0: a write of no bytes over a connection completes",
                "send 0 (",
                "ok fake_roce0: a datagram that the port sends to itself arrives",
                "ok shared memory: messages go between two processes",
            ],
        );
    }
}

/// The findings of a severity.
fn findings(profile: &str, severity: &str, code: i32) -> Vec<String> {
    let output = on_nic(profile, &["doctor", "--json", "--device", "fake_roce0"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(code), "{profile}: {text}");
    let json: Value = serde_json::from_str(&text).unwrap();
    let all = json["findings"].as_array().unwrap().iter();
    let mut such = Vec::new();
    for finding in all {
        let has_remedy = finding["remedy"]
            .as_str()
            .is_some_and(|remedy| !remedy.is_empty());
        assert_eq!(has_remedy, finding["severity"] != "ok", "{finding}");
        if finding["severity"] == severity {
            such.push(finding["found"].as_str().unwrap().to_owned());
        }
    }
    if severity == "error" {
        assert_eq!(json["errors"], such.len());
    }
    such
}

#[test]
fn a_device_that_carries_no_reliable_messages_is_an_error() {
    for (profile, why) in [
        ("siw", "UD queue pair"),
        ("mana", "UD queue pair"),
        ("hns08", "UD queue pair"),
        ("efa", "RC queue pair"),
    ] {
        let errors = findings(profile, "error", 1);
        let said = errors
            .iter()
            .filter(|found| found.contains("reliable messages"));
        let said: Vec<_> = said.collect();
        assert_eq!(said.len(), 1, "{profile}: {errors:?}");
        assert!(said[0].contains(why), "{profile}: {errors:?}");
    }
    let warnings = findings("mana", "warning", 1);
    let ignored = |found: &String| found.contains("inline data is not copied");
    assert!(warnings.iter().any(ignored), "{warnings:?}");
}

/// The file of a profile with the lowest limits, and with that number of queue pairs.
fn with_queue_pairs(count: u32) -> String {
    let mut profile = serde_json::to_value(DeviceProfile::named("worst").unwrap()).unwrap();
    profile["queue_pairs"] = count.into();
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("few-queue-pairs.json");
    std::fs::write(&file, profile.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn habits_without_harm_are_notes_and_others_are_warnings() {
    let notes = findings("worst-with-srq", "note", 0);
    for part in ["LAST_WQE_REACHED", "no atomics", "inline data of 0 bytes"] {
        assert!(
            notes.iter().any(|found| found.contains(part)),
            "{part}: {notes:?}"
        );
    }
    let good = findings("mlx5-vf", "ok", 0);
    let partition = |found: &String| found.contains("P_Key 0x8001, in slot 2");
    assert!(good.iter().any(partition), "{good:?}");
    let few = findings(&with_queue_pairs(2), "warning", 0);
    let made = |found: &String| found.contains("only 2 queue pairs");
    assert!(few.iter().any(made), "{few:?}");
}

#[test]
fn a_machine_without_devices_is_examined_without_them() {
    let without = ferro(&["doctor", "--json"])
        .env("FERRO_VERBS", "off")
        .output()
        .unwrap();
    assert_eq!(without.status.code(), Some(0), "{}", stderr(&without));
    let json: Value = serde_json::from_str(&stdout(&without)).unwrap();
    let has = |about: &str, severity: &str| {
        let all = json["findings"].as_array().unwrap();
        let is_it = |one: &&Value| one["about"] == about && one["severity"] == severity;
        all.iter().filter(is_it).count()
    };
    assert_eq!(
        (has("devices", "note"), has("shared memory", "ok")),
        (1, 1),
        "{json}"
    );
    // The library, as it is here.
    let here: Value = serde_json::from_str(&stdout(&output(&["doctor", "--json"]))).unwrap();
    let all = here["findings"].as_array().unwrap();
    assert!(all.iter().any(|one| one["about"] == "libibverbs"), "{here}");
}

#[test]
fn wrong_usage_has_an_exit_code_of_its_own() {
    for (arguments, code, words) in [
        (
            &["doctor", "--device", "mlx9_0"][..],
            2,
            "fake_roce0, fake_ib0",
        ),
        (&["doctor", "--report", "-"], 2, "--device"),
        (
            &["doctor", "--device", "fake_ib0", "--report", "-", "--json"],
            2,
            "standard output has the report",
        ),
        (&["doctor", "--loud"], 2, "--loud"),
    ] {
        let output = on_nic("generous", arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
    let unknown = on_nic_with("generous", &["doctor"], &[("FERRO_DEVICE", "mlx9_0")]);
    assert_eq!(unknown.status.code(), Some(1), "{}", stderr(&unknown));
    let none = [("FERRO_VERBS", "off")];
    let nothing = on_nic_with("generous", &["doctor", "--report", "-"], &none);
    assert_eq!(nothing.status.code(), Some(1), "{}", stderr(&nothing));
    assert!(stderr(&nothing).contains("no device to report on"));
}

#[test]
fn cross_memory_attach_that_is_off_is_named() {
    let off = [("FERRO_SHM_CMA", "off")];
    let output = on_nic_with("generous", &["doctor", "--device", "fake_ib0"], &off);
    let text = stdout(&output);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let part = "note cross-memory attach: large messages are copied twice";
    assert!(words.contains(part), "{text}");
}
