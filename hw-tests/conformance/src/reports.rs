//! The statistics that endpoints write when they close (setting `stats`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ferrofabric_runtime::fabric::Domain;
use serde_json::{Value, json};

use crate::ends::{QueuedPair, any_tagged};

/// A folder for one test, not there yet, below one for all.
pub fn folder(below: &str, test: &str) -> PathBuf {
    let folder = Path::new(below).join(test);
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// The files of a folder, by name.
pub fn files(folder: &Path) -> BTreeMap<String, String> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return BTreeMap::new();
    };
    entries
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read_to_string(entry.path()).unwrap())
        })
        .collect()
}

/// The value of a counter.
pub fn counter(stats: &[(&'static str, u64)], name: &str) -> u64 {
    let found = stats.iter().find(|(n, _)| *n == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).1
}

/// Messages and their bytes are counted for the path that they take, and each endpoint that closes
/// leaves one file that says so.
pub fn each_endpoint_leaves_a_file(
    domain_a: &dyn Domain,
    domain_b: &dyn Domain,
    folder: &Path,
    path: &str,
) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let names = [
        format!("{path}_messages_sent"),
        format!("{path}_bytes_sent"),
        format!("{path}_messages_received"),
        format!("{path}_bytes_received"),
    ];
    let all = || {
        let stats = [&pair.a, &pair.b].map(|end| end.endpoint.stats().unwrap());
        stats.map(|stats| names.clone().map(|name| counter(&stats, &name)))
    };
    let before = all();
    const SIZES: [usize; 4] = [0, 24, 9000, 120_000];
    for len in SIZES {
        let recv = any_tagged(pair.b.context());
        pair.b.recv(&recv, &[pair.b.memory(len, 0)]).unwrap();
        let send = pair.tagged(1);
        pair.a.send(&pair.b, send, len, 1);
        pair.wait(&pair.b.rx, recv.context).unwrap();
        pair.wait(&pair.a.tx, send.context).unwrap();
    }
    let after = all();
    let [sender, receiver] = [0, 1].map(|end| [0, 1, 2, 3].map(|i| after[end][i] - before[end][i]));
    let bytes = SIZES.iter().sum::<usize>() as u64;
    assert_eq!(sender, [SIZES.len() as u64, bytes, 0, 0]);
    assert_eq!(receiver, [0, 0, SIZES.len() as u64, bytes]);

    assert!(files(folder).is_empty());
    let mut wanted = Vec::new();
    for (end, domain) in [(&pair.a, domain_a), (&pair.b, domain_b)] {
        let report = json!({
            "process": std::process::id(),
            "domain": domain.info().domain.name,
            "address": end.endpoint.name().to_string(),
        });
        wanted.push((report, end.endpoint.stats().unwrap()));
    }
    drop(pair);
    let left = files(folder);
    assert_eq!(left.len(), 2, "{left:?}");
    let process = std::process::id();
    for (name, text) in left {
        let number = name.strip_prefix(&format!("{process}-")).unwrap();
        let number: u64 = number.strip_suffix(".json").unwrap().parse().unwrap();
        let mut report: Value = serde_json::from_str(&text).unwrap();
        let endpoint = report.as_object_mut().unwrap().remove("endpoint");
        assert_eq!(endpoint, Some(number.into()));
        let counters = report.as_object_mut().unwrap().remove("counters").unwrap();
        let at = wanted.iter().position(|(wanted, _)| *wanted == report);
        let (_, before) =
            wanted.remove(at.unwrap_or_else(|| panic!("{text} is not of {wanted:#?}")));
        reports_all(&counters, &before, &names);
    }
}

/// A report has each counter that an endpoint had shortly before it closed. The close drives it, so
/// what it counts of the lane may have grown, but not what it counts of messages.
fn reports_all(report: &Value, before: &[(&'static str, u64)], of_messages: &[String]) {
    assert_eq!(report.as_object().unwrap().len(), before.len(), "{report}");
    for &(name, before) in before {
        let reported = report[name].as_u64().unwrap();
        let holds = match of_messages.iter().any(|of| of == name) {
            true => reported == before,
            false => reported >= before || name.ends_with("_now"),
        };
        assert!(holds, "{name} was {before}, and is {reported} in {report}");
    }
}
