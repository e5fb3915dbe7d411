//! The command line as users meet it: its lists, its refusals, and its errors when a partner does
//! not answer properly or dies.

use crate::program;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use program::{ferro, output, stderr, stdout};

/// The time after which a run counts as hanging, on a busy machine too.
const DEADLINE: Duration = Duration::from_secs(120);

/// Fails with `code`, says all of `words` on standard error, and nothing on standard output.
fn refuses(arguments: &[&str], code: i32, words: &[&str]) {
    let output = output(arguments);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert!(!text.contains("panicked"), "{text}");
    for word in words {
        assert!(
            text.contains(word),
            "{arguments:?}: {word} is not in: {text}"
        );
    }
}

#[test]
fn impossible_options_are_refused() {
    refuses(
        &["pingpong", "--sizes", "8,x"],
        2,
        &["\"x\" is no size", "--sizes"],
    );
    refuses(&["bench", "lat", "--sizes", "2G"], 2, &["2G is too large"]);
    refuses(&["bench", "lat", "--sizes", "64-8"], 2, &["64-8 is empty"]);
    refuses(
        &["bench", "bw", "--path", "tcp"],
        2,
        &["tcp", "auto, verbs, shm"],
    );
    refuses(&["bench", "rate", "--iters", "0"], 2, &["--iters", "0"]);
    refuses(&["bench", "rate", "--window", "100000"], 2, &["--window"]);
    refuses(&["bench", "lat", "--cores", "1"], 2, &["two core numbers"]);
    refuses(
        &["bench", "lat", "--listen", "--spawn"],
        2,
        &["cannot be used with"],
    );
    refuses(&["pingpong", "--cores", "0,1000000"], 2, &["pin to core"]);
}

#[test]
fn malformed_addresses_are_named() {
    refuses(
        &["pingpong", "nowhere"],
        2,
        &["\"nowhere\" is no address", "HOST:PORT"],
    );
    refuses(
        &["pingpong", "--listen", "127.0.0.1:70000"],
        2,
        &["\"127.0.0.1:70000\" is no address"],
    );
    refuses(
        &["pingpong", "--listen", "192.0.2.1:0"],
        1,
        &["listen at 192.0.2.1:0"],
    );
}

#[test]
fn a_bad_setting_is_named() {
    let output = ferro(&["info"]).env("FERRO_SHM", "maybe").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("FERRO_SHM=maybe"),
        "{}",
        stderr(&output)
    );
    let output = ferro(&["pingpong", "--path", "shm"])
        .env("FERRO_SHM", "off")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("the setting shm is off"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn info_lists_shared_memory_and_says_what_is_missing() {
    let text = output(&["info"]);
    assert!(text.status.success(), "{}", stderr(&text));
    assert!(
        stdout(&text)
            .split("\nmissing")
            .any(|l| l.contains("ferro-shm rdm\n") && l.contains(" tagged ")),
        "{}",
        stdout(&text)
    );

    let json = output(&["info", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&stdout(&json)).unwrap();
    let domains = value["domains"].as_array().unwrap();
    assert!(
        domains
            .iter()
            .any(|d| d["domain"] == "ferro-shm" && d["device"].is_null())
    );
    let verbs = domains.iter().any(|d| !d["device"].is_null());
    if verbs {
        let offers = domains.iter().filter(|d| d["type"] == "dgram");
        let mut prefixes: Vec<_> = offers.filter_map(|d| d["prefix_bytes"].as_u64()).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        assert_eq!(prefixes, [0, 40], "{value}");
        assert!(stdout(&text).contains(" dgram+40\n"), "{}", stdout(&text));
        assert_eq!(domains[0]["type"], "rdm", "{value}");
    }
    // The library, or a device.
    let missing = value["missing"].as_array().unwrap();
    let is_said = |why: &str| why.contains("libibverbs") || why.contains("RDMA device");
    assert!(
        verbs || missing.iter().any(|why| is_said(why.as_str().unwrap())),
        "{value}"
    );
}

/// Covers: GI-2
#[test]
fn info_explains_what_is_ruled_out_and_what_would_mend_it() {
    let asked = [
        "info",
        "--explain",
        "--caps",
        "tagged,collective",
        "--type",
        "rdm",
    ];
    let refused = output(&asked);
    let text = stdout(&refused);
    assert_eq!(refused.status.code(), Some(1), "{text}");
    for word in [
        "ferro-shm rdm does not fit: caps",
        "FI_COLLECTIVE",
        "mend:    do without FI_COLLECTIVE",
    ] {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
    let json = output(&[&asked[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&stdout(&json)).unwrap();
    let all = json["ruled_out"].as_array().unwrap();
    let shm = all.iter().find(|one| one["domain"] == "ferro-shm").unwrap();
    assert_eq!(
        (&shm["field"], &shm["mend"]),
        (&"caps".into(), &"do without FI_COLLECTIVE".into())
    );

    let fits = output(&[
        "info",
        "--explain",
        "--caps",
        "tagged,local_comm",
        "--format",
        "str",
    ]);
    let text = stdout(&fits);
    assert!(fits.status.success(), "{text}");
    assert!(
        text.contains("FI_ADDR_STR") && text.contains("ferro://"),
        "{text}"
    );
    let there = output(&["info", "--explain", "--node", "ferro://?inc=1&node=2&shm=3"]);
    let text = stdout(&there);
    assert!(
        text.contains("ferro-shm rdm does not fit: dest_addr"),
        "{text}"
    );
    refuses(&["info", "--node", "x"], 2, &["--explain"]);
    refuses(
        &["info", "--explain", "--caps", "speed"],
        2,
        &["speed is no capability"],
    );
    refuses(
        &["info", "--explain", "--source"],
        2,
        &["required", "--node", "--service"],
    );
}

#[test]
fn info_with_everything_off_fails() {
    let output = ferro(&["info"])
        .env("FERRO_SHM", "off")
        .env("FERRO_VERBS", "off")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = stdout(&output);
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(
        words.join(" ").contains("switched off by setting shm"),
        "{text}"
    );
}

#[test]
fn the_settings_are_a_table() {
    let text = stdout(&output(&["info", "--settings"]));
    assert!(
        text.lines()
            .any(|l| l.starts_with("FERRO_SHM_CMA") && l.contains("auto")),
        "{text}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&output(&["info", "--settings", "--json"]))).unwrap();
    assert!(
        json.as_array()
            .unwrap()
            .iter()
            .any(|s| s["variable"] == "FERRO_SPIN" && s["default"] == "20us")
    );
}

/// The ways of one-sided operations are printed, each rule with its way and its cost.
#[test]
fn the_ways_of_one_sided_operations_are_a_table() {
    let text = stdout(&output(&["info", "--one-sided"]));
    let is_row = |line: &str, [route, rest @ ..]: [&str; 3]| {
        line.trim_start().starts_with(route) && rest.iter().all(|word| line.contains(word))
    };
    for words in [
        ["link", "mapped", "instructions"],
        ["link", "kernel", "system call"],
        ["lane", "device", "round trip"],
        ["any", "message", "two processes"],
    ] {
        assert!(text.lines().any(|line| is_row(line, words)), "{text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&output(&["info", "--one-sided", "--json"]))).unwrap();
    let rules = json["rules"].as_array().unwrap();
    let granted = rules.iter().find(|rule| rule["rule"] == "Granted").unwrap();
    assert_eq!(
        (&granted["way"], &granted["route"]),
        (&"device".into(), &"lane".into())
    );
}

#[test]
fn pingpong_verifies_every_size() {
    for block in [&[][..], &["--block"]] {
        let arguments = [
            &[
                "pingpong",
                "--spawn",
                "--path",
                "shm",
                "--sizes",
                "0,1,64,4K,5000,64K,1M",
                "--iters",
                "20",
                "--json",
            ],
            block,
        ];
        let output = output(&arguments.concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        let rows = json.as_array().unwrap();
        let sizes: Vec<u64> = rows.iter().map(|r| r["size"].as_u64().unwrap()).collect();
        assert_eq!(sizes, [0, 1, 64, 4096, 5000, 65536, 1 << 20]);
        for row in rows {
            assert_eq!(
                (&row["path"], &row["verified"]),
                (&"shm".into(), &true.into())
            );
            assert_eq!(row["round_trips"], 20);
        }
    }
}

#[test]
fn benchmarks_give_figures_that_agree_with_themselves() {
    let common = [
        "--path", "shm", "--sizes", "8,64K", "--iters", "200", "--json",
    ];
    for (what, figure) in [
        ("lat", "median_us"),
        ("bw", "megabytes_per_s"),
        ("bibw", "megabytes_per_s"),
        ("rate", "messages_per_s"),
    ] {
        let output = output(&[&["bench", what][..], &common].concat());
        assert!(output.status.success(), "{what}: {}", stderr(&output));
        let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(json.as_array().unwrap().len(), 2);
        for row in json.as_array().unwrap() {
            let number = |name: &str| row[name].as_f64().unwrap();
            assert!(number(figure) > 0.0, "{row}");
            assert_eq!(row["verified"], true);
            if what == "lat" {
                assert!(
                    number("min_us") <= number("median_us")
                        && number("median_us") <= number("p99_us"),
                    "{row}"
                );
            } else {
                let bytes = number("messages_per_s") * number("size");
                assert!(
                    (number("megabytes_per_s") * 1e6 / bytes - 1.0).abs() < 1e-6,
                    "{row}"
                );
            }
        }
    }
}

#[test]
fn one_sided_operations_are_measured_and_checked() {
    for waits in [&[][..], &["--block"], &["--delivered"], &["--mapped"]] {
        for what in ["put", "get"] {
            if what == "get" && waits == ["--delivered"] {
                continue;
            }
            let ask = [
                "bench",
                what,
                "--path",
                "shm",
                "--sizes",
                "0,1,8,64K",
                "--iters",
                "100",
                "--json",
            ];
            let output = output(&[&ask[..], waits].concat());
            assert!(output.status.success(), "{what}: {}", stderr(&output));
            let rows: Vec<serde_json::Value> = serde_json::from_str(&stdout(&output)).unwrap();
            let sizes: Vec<_> = rows.iter().map(|row| row["size"].as_u64()).collect();
            assert_eq!(sizes, [Some(0), Some(1), Some(8), Some(64 << 10)]);
            for row in rows {
                let number = |name: &str| row[name].as_f64().unwrap();
                let bench = match waits {
                    ["--delivered"] => "put_delivered",
                    ["--mapped"] if what == "put" => "put_mapped",
                    ["--mapped"] => "get_mapped",
                    _ => what,
                };
                assert_eq!(
                    (&row["bench"], &row["path"], &row["verified"]),
                    (&bench.into(), &"shm".into(), &true.into())
                );
                assert_eq!(number("operations"), 100.0);
                assert!(0.0 < number("min_us") && number("min_us") <= number("median_us"));
                assert!(number("median_us") <= number("p99_us"), "{row}");
                let bytes = number("operations_per_s") * number("size");
                assert!(
                    (number("megabytes_per_s") * 1e6 - bytes).abs() <= 1e-6 * bytes,
                    "{row}"
                );
                let is_polled = what == "put" && waits != ["--block"] && number("size") != 0.0;
                assert_eq!(
                    row["polled_us"].as_f64().is_some_and(|us| us > 0.0),
                    is_polled
                );
            }
        }
    }
}

#[test]
fn atomic_operations_are_measured_and_their_sum_is_checked() {
    let common = ["bench", "atomic", "--path", "shm", "--iters", "100"];
    for (more, operation) in [
        (&[][..], "fetch-add"),
        (&["--block"], "fetch-add"),
        (&["--operation", "add"], "add"),
        (&["--operation", "compare-swap"], "compare-swap"),
        (&["--mapped"], "fetch-add"),
        (&["--mapped", "--operation", "compare-swap"], "compare-swap"),
    ] {
        let bench = match more.contains(&"--mapped") {
            true => "atomic_mapped",
            false => "atomic",
        };
        let output = output(&[&common[..], &["--sizes", "4,8,12,4K", "--json"], more].concat());
        assert!(output.status.success(), "{more:?}: {}", stderr(&output));
        let rows: Vec<serde_json::Value> = serde_json::from_str(&stdout(&output)).unwrap();
        let sizes: Vec<_> = rows.iter().map(|row| row["size"].as_u64()).collect();
        assert_eq!(sizes, [Some(4), Some(8), Some(12), Some(4096)]);
        for row in rows {
            let number = |name: &str| row[name].as_f64().unwrap();
            assert_eq!(
                (&row["bench"], &row["operation"], &row["path"]),
                (&bench.into(), &operation.into(), &"shm".into())
            );
            assert_eq!(
                (number("operations"), &row["verified"]),
                (100.0, &true.into())
            );
            assert!(0.0 < number("min_us") && number("min_us") <= number("median_us"));
            assert!(number("median_us") <= number("p99_us"), "{row}");
            assert!(number("operations_per_s") > 0.0, "{row}");
        }
    }
    let table = output(&common);
    let (text, words) = (stdout(&table), ["OPERATION", "fetch-add", "data verified"]);
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    for size in ["0", "7", "8K"] {
        refuses(
            &[&common[..], &["--sizes", size]].concat(),
            2,
            &["whole elements", size],
        );
    }
    refuses(
        &["bench", "atomic", "--operation", "max"],
        2,
        &["max", "fetch-add"],
    );
    refuses(
        &["bench", "atomic", "--listen", "--operation", "add"],
        2,
        &["cannot be used with", "--operation"],
    );
}

/// The target of these operations makes no call, or one in so many microseconds.
#[test]
fn atomic_operations_on_a_target_outside_of_the_library_are_measured() {
    let common = [
        "bench", "atomic", "--path", "shm", "--iters", "50", "--json",
    ];
    for (more, outside_us) in [
        (&["--outside"][..], Some(0)),
        (&["--outside", "--block", "--sizes", "8,4K"], Some(0)),
        (&["--outside=200", "--block"], Some(200)),
        (&[], None),
    ] {
        let output = output(&[&common[..], more].concat());
        assert!(output.status.success(), "{more:?}: {}", stderr(&output));
        let rows: Vec<serde_json::Value> = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(rows.len(), if more.contains(&"--sizes") { 2 } else { 1 });
        for row in rows {
            assert_eq!(row["outside_us"].as_u64(), outside_us, "{row}");
            let operations = (row["operations"].as_u64(), &row["verified"]);
            assert_eq!(operations, (Some(50), &true.into()), "{row}");
        }
    }
    for (wrong, why) in [
        (&["--outside=2000000"][..], "2000000"),
        (&["--listen", "--outside"], "cannot be used with"),
    ] {
        refuses(&[&["bench", "atomic"], wrong].concat(), 2, &[why]);
    }
}

#[test]
fn regions_have_their_cost() {
    refuses(&["bench", "mr", "--iters", "0"], 2, &["--iters"]);
    let ask = ["bench", "mr", "--sizes", "1,4K", "--iters", "20", "--json"];
    let output = output(&ask);
    assert!(output.status.success(), "{}", stderr(&output));
    let rows: Vec<serde_json::Value> = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!((&row["path"], &row["regions"]), (&"shm".into(), &20.into()));
        for figure in ["first_register_us", "register_us", "close_us"] {
            assert!(row[figure].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

#[test]
fn several_threads_have_their_rates_added() {
    for waits in [&[][..], &["--block"]] {
        let ask = [
            "bench",
            "rate",
            "--threads",
            "3",
            "--path",
            "shm",
            "--sizes",
            "1,64,8K",
            "--iters",
            "500",
            "--json",
        ];
        let output = output(&[&ask[..], waits].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let rows: Vec<serde_json::Value> = serde_json::from_str(&stdout(&output)).unwrap();
        let sizes: Vec<_> = rows.iter().map(|row| row["size"].as_u64()).collect();
        assert_eq!(sizes, [Some(1), Some(64), Some(8192)]);
        for row in rows {
            let number = |name: &str| row[name].as_f64().unwrap();
            assert_eq!(
                (number("threads"), number("messages"), &row["path"]),
                (3.0, 500.0, &"shm".into())
            );
            assert!(number("messages_per_s") > 0.0, "{row}");
            let bytes = number("messages_per_s") * number("size");
            assert!(
                (number("megabytes_per_s") * 1e6 / bytes - 1.0).abs() < 1e-6,
                "{row}"
            );
            assert_eq!(row["verified"], true);
        }
    }
    refuses(&["bench", "rate", "--threads", "0"], 2, &["--threads"]);
    refuses(&["bench", "lat", "--threads", "2"], 2, &["--threads"]);
}

#[test]
fn address_vectors_are_measured_at_each_size() {
    let run = output(&[
        "bench",
        "av",
        "--json",
        "--entries",
        "100,3000",
        "--rounds",
        "1",
    ]);
    assert!(run.status.success(), "{}", stderr(&run));
    let results: Vec<serde_json::Value> = serde_json::from_str(&stdout(&run)).unwrap();
    let ops = |entries: u64| -> Vec<&str> {
        let of = results.iter().filter(|r| r["entries"] == entries);
        of.map(|r| r["op"].as_str().unwrap()).collect()
    };
    let all = [
        "insert",
        "lookup",
        "lookup_dependent",
        "remove",
        "forward_batched",
        "forward_independent",
        "forward_dependent",
        "reverse_batched",
        "reverse_independent",
        "reverse_dependent",
        "pointer_chase",
    ];
    assert_eq!((ops(100), ops(3000)), (all.to_vec(), all.to_vec()));
    for (i, r) in results.iter().enumerate() {
        let (ns, bytes) = (r["ns_per_op"].as_f64(), r["bytes_per_entry"].as_f64());
        assert!(ns.unwrap() > 0.0 && bytes.unwrap() > 64.0, "{r}");
        // Of look-ups in the table alone.
        assert_eq!(r["chase_ratio"].is_number(), i % all.len() >= 4, "{r}");
    }
}

#[test]
fn matching_is_measured_at_each_depth_in_turn() {
    let output = output(&[
        "bench", "match", "--json", "--kind", "masked", "--depths", "10,1000", "--rounds", "1",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let rows: Vec<serde_json::Value> = serde_json::from_str(&stdout(&output)).unwrap();
    let named: Vec<String> = rows
        .iter()
        .map(|row| {
            format!(
                "{} {} {} {}",
                row["side"], row["kind"], row["order"], row["depth"]
            )
        })
        .collect();
    let expected: Vec<String> = ["posted", "unexpected"]
        .iter()
        .flat_map(|side| ["order", "random"].map(|order| (side, order)))
        .flat_map(|(side, order)| [10, 1000].map(|depth| (side, order, depth)))
        .map(|(side, order, depth)| format!("\"{side}\" \"masked\" \"{order}\" {depth}"))
        .collect();
    assert_eq!(named, expected);
    for row in &rows {
        let figure = |name: &str| row[name].as_f64().unwrap();
        assert_eq!(row["path"], "shm");
        assert!(
            figure("min_ns") > 0.0 && figure("min_ns") <= figure("ns_per_op"),
            "{row}"
        );
        assert!(figure("entries") >= 8.0 && figure("ratio") > 0.0, "{row}");
    }
    refuses(
        &["bench", "match", "--side", "left"],
        2,
        &["\"left\" is none of: posted, unexpected", "--side"],
    );
}

#[test]
fn a_message_that_no_domain_takes_is_refused() {
    let arguments = [
        "bench", "bw", "--path", "shm", "--sizes", "1G", "--window", "64",
    ];
    refuses(&arguments, 2, &["64 messages of 1G", "memory"]);
}

/// A process that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Its exit code and error output; fails the test when it hangs.
    fn end(&mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + DEADLINE;
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it hangs");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut text = String::new();
        if let Some(err) = &mut self.0.stderr {
            err.read_to_string(&mut text).unwrap();
        }
        (self.0.wait().unwrap().code(), text)
    }
}

/// A listener, the rest of its error output, and where it listens.
fn listener() -> (Running, BufReader<std::process::ChildStderr>, String) {
    let mut child = Running(
        ferro(&["pingpong", "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut lines = BufReader::new(child.0.stderr.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    let address = line
        .trim()
        .strip_prefix("ferro: listening at ")
        .unwrap()
        .to_owned();
    (child, lines, address)
}

#[test]
fn two_processes_meet_over_tcp_though_strangers_came_first() {
    let (mut child, mut lines, address) = listener();
    let mut line = String::new();
    for (said, complaint) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "not a ferro partner"),
        (b"ferrob\0\x63", "version 99"),
        (b"", "gone"),
    ] {
        let mut stranger = TcpStream::connect(&address).unwrap();
        stranger.write_all(said).unwrap();
        if said.is_empty() {
            drop(stranger);
        }
        line.clear();
        lines.read_line(&mut line).unwrap();
        assert!(
            line.contains(complaint) && line.contains("still listening"),
            "{line}"
        );
    }
    let arguments = [
        "pingpong",
        address.as_str(),
        "--path",
        "shm",
        "--sizes",
        "8,64K",
        "--iters",
        "10",
    ];
    let output = output(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("over shared memory"),
        "{}",
        stdout(&output)
    );
    let (code, _) = child.end();
    line.clear();
    lines.read_to_string(&mut line).unwrap();
    assert_eq!(code, Some(0), "{line}");
    assert!(line.contains("over shared memory"), "{line}");
}

#[test]
fn a_hostile_partner_ends_the_listener_with_an_error() {
    let hello = |address: &str, path: &str| {
        format!(
            r#"{{"hello":{{"path":"{path}","block":false,"patience_s":1,"address":"{address}"}}}}"#
        )
    };
    let zeros = "00".repeat(64);
    for (message, complaint) in [
        (hello("zz", "shm"), "not hexadecimal"),
        (hello("00", "shm"), "can not be used"),
        (hello(&zeros, "shm"), "can not be used"),
        (hello(&zeros, "carrier pigeon"), "no message"),
        (r#"{"ready":7}"#.to_owned(), "no message"),
        (r#""bye""#.to_owned(), "out of turn"),
    ] {
        let (mut child, mut lines, address) = listener();
        let mut partner = TcpStream::connect(&address).unwrap();
        partner.write_all(b"ferrob\0\x01").unwrap();
        partner
            .write_all(&(message.len() as u32).to_le_bytes())
            .unwrap();
        partner.write_all(message.as_bytes()).unwrap();
        let (code, _) = child.end();
        let mut text = String::new();
        lines.read_to_string(&mut text).unwrap();
        assert_eq!(code, Some(1), "{message}: {text}");
        assert!(
            text.contains(complaint) && !text.contains("panicked"),
            "{message}: {text}"
        );
    }
}

#[test]
fn connecting_to_garbage_is_an_error() {
    let garbage = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = garbage.local_addr().unwrap().to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = garbage.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    refuses(
        &["pingpong", &address, "--path", "shm"],
        1,
        &["not a ferro partner", "SSH-2.0"],
    );
    server.join().unwrap();
    refuses(&["pingpong", &address], 1, &["connect to", &address]);
}

#[test]
fn a_partner_that_is_killed_is_noticed() {
    for block in [&[][..], &["--block"]] {
        let arguments = [
            &[
                "bench",
                "lat",
                "--path",
                "shm",
                "--sizes",
                "8",
                "--iters",
                "1000000000000",
            ],
            block,
        ]
        .concat();
        let mut parent = Running(
            ferro(&arguments)
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap(),
        );
        let partner = child_of(parent.0.id());
        // It has run for a while when it has taken some processor time.
        wait_until(|| cpu_ticks(partner) > 20);
        assert!(
            Command::new("kill")
                .args(["-KILL", &partner.to_string()])
                .status()
                .unwrap()
                .success()
        );
        let (code, text) = parent.end();
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.starts_with("ferro: ") && !text.contains("panicked"),
            "{text}"
        );
    }
}

#[test]
fn a_partner_does_not_outlive_the_process_that_started_it() {
    let arguments = [
        "bench",
        "lat",
        "--path",
        "shm",
        "--sizes",
        "8",
        "--iters",
        "1000000000000",
    ];
    let mut parent = Running(
        ferro(&arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let partner = child_of(parent.0.id());
    wait_until(|| cpu_ticks(partner) > 20);
    parent.0.kill().unwrap();
    parent.0.wait().unwrap();
    wait_until(|| {
        !std::path::Path::new(&format!("/proc/{partner}/stat")).exists() || is_zombie(partner)
    });
}

fn child_of(pid: u32) -> u32 {
    let mut child = None;
    wait_until(|| {
        let listed =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        child = listed
            .split_ascii_whitespace()
            .next()
            .and_then(|c| c.parse().ok());
        child.is_some()
    });
    child.unwrap()
}

/// Fields of /proc/PID/stat after the command's name: state is the first, user and system time the
/// 12th and 13th.
fn stat(pid: u32) -> Vec<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
    rest.split_ascii_whitespace().map(str::to_owned).collect()
}

fn is_zombie(pid: u32) -> bool {
    stat(pid).first().is_some_and(|state| state == "Z")
}

fn cpu_ticks(pid: u32) -> u64 {
    let fields = stat(pid);
    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|f| f.parse::<u64>().ok())
            .unwrap_or(0)
    };
    ticks(11) + ticks(12)
}

fn wait_until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < deadline, "it does not come to that");
        std::thread::sleep(Duration::from_millis(5));
    }
}
