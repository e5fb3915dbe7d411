//! The command line on a terminal: its lines fit, its help shows defaults, progress and results
//! come while it works, and wrong usage has an exit code of its own.

use crate::program;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::Stdio;

use nix::pty::openpty;
use program::{ferro, output, stderr, stdout};

/// Columns that every line fits.
const WIDTH: usize = 80;

/// Fails if a line of standard output is too long, or there is none.
fn fits(arguments: &[&str]) -> String {
    let output = output(arguments);
    let text = stdout(&output);
    assert!(!text.is_empty(), "{arguments:?}: {}", stderr(&output));
    for line in text.lines() {
        assert!(line.chars().count() <= WIDTH, "{arguments:?}: {line}");
    }
    text
}

const SUBCOMMANDS: [&[&str]; 12] = [
    &[],
    &["info"],
    &["doctor"],
    &["pingpong"],
    &["bench"],
    &["bench", "lat"],
    &["bench", "bw"],
    &["bench", "bibw"],
    &["bench", "rate"],
    &["bench", "match"],
    &["bench", "av"],
    &["partner"],
];

#[test]
fn each_help_fits_and_shows_each_default() {
    let mut seen = 0;
    for subcommand in SUBCOMMANDS {
        for flag in ["-h", "--help"] {
            let text = fits(&[subcommand, &[flag][..]].concat());
            let usage = text
                .lines()
                .find(|line| line.starts_with("Usage:"))
                .unwrap();
            for option in options_with_values(&text) {
                seen += 1;
                let is_required =
                    usage.contains(&format!("{} ", option.name)) || usage.ends_with(&option.name);
                assert!(
                    is_required || option.help.contains("[default: "),
                    "{subcommand:?} {flag}: no default of {}: {}",
                    option.name,
                    option.help
                );
            }
        }
    }
    assert!(seen > 100, "{seen} options");
}

struct OptionHelp {
    name: String,
    help: String,
}

/// The options and arguments that take a value, with the words of their help.
fn options_with_values(help: &str) -> Vec<OptionHelp> {
    let mut options: Vec<OptionHelp> = Vec::new();
    for line in help.lines() {
        let words = line.trim_start();
        let starts = line.len() - words.len() <= 6 && words.starts_with(['-', '[', '<']);
        if starts {
            options.push(OptionHelp {
                name: words.split(' ').find(|w| w.len() > 3).unwrap().to_owned(),
                help: String::new(),
            });
        } else if line.ends_with(':') && !line.starts_with(' ') {
            // The heading of another part.
            options.push(OptionHelp {
                name: String::new(),
                help: String::new(),
            });
        }
        if let Some(last) = options.last_mut() {
            last.help.extend([words, " "]);
        }
    }
    let takes_value = |o: &OptionHelp| o.name.starts_with(['[', '<']) || o.help.contains('<');
    options.retain(|o| !o.name.is_empty() && takes_value(o));
    options
}

#[test]
fn each_table_fits() {
    fits(&["info"]);
    fits(&["doctor"]);
    fits(&["info", "--explain"]);
    fits(&["info", "--explain", "--caps", "rma", "--type", "msg"]);
    let settings = fits(&["info", "--settings"]);
    assert!(settings.contains("FERRO_SHM (default: on)"), "{settings}");
    let common = ["--path", "shm", "--iters", "20", "--sizes", "8,1M"];
    fits(&[&["pingpong"][..], &common].concat());
    for bench in ["lat", "bw", "bibw", "rate"] {
        fits(&[&["bench", bench][..], &common].concat());
    }
    fits(&[&["bench", "rate", "--threads", "2"][..], &common].concat());
    fits(&[
        "bench", "match", "--rounds", "1", "--depths", "10,1000", "--side", "posted",
    ]);
    fits(&["bench", "av", "--rounds", "1", "--entries", "1000"]);
}

/// A folder of its own, removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn pictures(&self) -> Vec<String> {
        let files = std::fs::read_dir(&self.0).unwrap();
        let names = files.map(|f| f.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn progress_is_a_line_a_step_and_stays_out_of_json() {
    let arguments = [
        "bench", "bw", "--path", "shm", "--sizes", "8,64K", "--iters", "20", "--json",
    ];
    let run = output(&arguments);
    let rows: serde_json::Value = serde_json::from_str(&stdout(&run)).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 2);
    let text = stderr(&run);
    let lines: Vec<&str> = text.lines().filter(|l| l.contains(" of 2)")).collect();
    assert_eq!(
        lines,
        [
            "ferro: bandwidth of 8 (1 of 2)",
            "ferro: bandwidth of 64K (2 of 2)"
        ]
    );
}

#[test]
fn progress_on_a_terminal_is_a_bar() {
    let terminal = openpty(None, None).unwrap();
    let arguments = [
        "bench", "bw", "--path", "shm", "--sizes", "8,64K", "--iters", "20",
    ];
    let mut child = ferro(&arguments)
        .env("TERM", "xterm")
        .stdout(Stdio::piped())
        .stderr(Stdio::from(terminal.slave))
        .spawn()
        .unwrap();
    assert!(child.wait().unwrap().success());
    // A few hundred bytes stay in the terminal until they are read.
    let mut drawn = vec![0; 64 << 10];
    let n = File::from(terminal.master).read(&mut drawn).unwrap();
    let drawn = String::from_utf8_lossy(&drawn[..n]).into_owned();
    assert!(
        drawn.contains("0/2 bandwidth of 8") && drawn.contains("1/2"),
        "{drawn:?}"
    );
}

#[test]
fn a_result_is_printed_while_the_next_one_is_measured() {
    // The second size goes on until this test ends it.
    let arguments = [
        "bench", "bw", "--path", "shm", "--sizes", "8,1M", "--iters", "1000000",
    ];
    let mut child = ferro(&arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("MB/s"));
    let row = lines.next().unwrap().unwrap();
    assert!(row.trim_start().starts_with("8 "), "{row}");
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn benches_draw_their_results() {
    let common = ["--path", "shm", "--sizes", "8,4K", "--iters", "20"];
    let vectors = ["bench", "av", "--rounds", "1", "--entries", "100,1000"];
    let matching = [
        "bench", "match", "--rounds", "1", "--depths", "10,100", "--kind", "exact",
    ];
    for (name, arguments, pictures) in [
        (
            "lat",
            [&["bench", "lat"][..], &common].concat(),
            &["latency.svg"][..],
        ),
        (
            "bw",
            [&["bench", "bw"][..], &common].concat(),
            &["bandwidth.svg"],
        ),
        (
            "rate",
            [&["bench", "rate"][..], &common].concat(),
            &["rate.svg"],
        ),
        ("av", vectors.to_vec(), &["av.svg"]),
        (
            "match",
            matching.to_vec(),
            &["match-posted.svg", "match-unexpected.svg"],
        ),
    ] {
        let folder = Folder::new(&format!("plot-{name}"));
        let plot = ["--plot", folder.0.to_str().unwrap()];
        let run = output(&[&arguments[..], &plot].concat());
        assert!(run.status.success(), "{name}: {}", stderr(&run));
        assert_eq!(folder.pictures(), pictures, "{name}");
        let picture = std::fs::read_to_string(folder.0.join(pictures[0])).unwrap();
        assert!(
            picture.contains("<svg") && picture.contains("<circle"),
            "{name}"
        );
    }
}

#[test]
fn a_listener_without_a_partner_ends_after_its_patience() {
    let run = output(&["bench", "lat", "--listen", "127.0.0.1:0", "--patience", "1"]);
    let text = stderr(&run);
    assert_eq!(run.status.code(), Some(1), "{text}");
    assert!(text.contains("no partner came to 127.0.0.1:"), "{text}");
    assert!(text.contains("--patience"), "{text}");
}

#[test]
fn wrong_usage_has_a_code_of_its_own() {
    for arguments in [
        &["nothing"][..],
        &["bench"],
        &["bench", "av", "--entries", "0"],
        &["bench", "av", "--count", "x"],
        &["bench", "av", "--beside", "--symmetric"],
        &["bench", "match", "--depths", "7"],
        &["bench", "match", "--rounds", "0"],
        &["bench", "lat", "--window", "4"],
        &["bench", "lat", "--listen", "127.0.0.1:0", "--sizes", "8"],
        &["bench", "bw", "--listen", "127.0.0.1:0", "--window", "8"],
        &["bench", "bw", "127.0.0.1:1", "--cores", "0,1"],
        &[
            "bench", "bw", "--path", "shm", "--sizes", "1M", "--window", "4000",
        ],
        &["bench", "rate", "--threads", "2", "--window", "8"],
        &["pingpong", "host"],
        &["pingpong", ":1"],
        &["pingpong", "--cores", "0,100000"],
        &["pingpong", "--patience", "0"],
        &["info", "--settings", "--explain"],
        &["info", "--explain", "--max-message", "much"],
        &["info", "--explain", "--source"],
        &["info", "--explain", "--node", "ferro://x"],
    ] {
        let run = output(arguments);
        let text = stderr(&run);
        assert_eq!(run.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(run.stdout.is_empty() && !text.is_empty(), "{arguments:?}");
    }
}

#[test]
fn an_unknown_variable_is_named_once() {
    let run = ferro(&["pingpong", "--path", "shm", "--sizes", "8", "--iters", "5"])
        .env("FERRO_SPINN", "off")
        .env("FERRO_TEST_ANYTHING", "1")
        .env("FERRO_SEED", "1")
        .env("FERRO_SHM", "on")
        .output()
        .unwrap();
    let text = stderr(&run);
    assert!(run.status.success(), "{text}");
    let warnings: Vec<&str> = text.lines().filter(|l| l.contains("warning")).collect();
    assert_eq!(warnings.len(), 1, "{text}");
    assert!(
        warnings[0].contains("FERRO_SPINN") && warnings[0].ends_with("FERRO_SPIN"),
        "{text}"
    );
}

#[test]
fn a_path_without_a_device_blames_no_setting() {
    let devices = std::fs::read_dir("/sys/class/infiniband");
    if devices.is_ok_and(|mut all| all.next().is_some()) {
        println!("SKIP: this machine has a device");
        return;
    }
    let run = output(&["pingpong", "--path", "verbs"]);
    let text = stderr(&run);
    assert_eq!(run.status.code(), Some(1), "{text}");
    assert!(!text.contains("setting"), "{text}");
    assert!(
        text.contains("ibverbs") || text.contains("device"),
        "{text}"
    );
}

#[test]
fn a_size_reads_the_same_in_and_out() {
    let asked = ["info", "--explain", "--max-message"];
    let text = fits(&[&asked[..], &["2048G"]].concat());
    assert!(text.contains("asked:   2048G"), "{text}");
    let run = output(&[
        "pingpong", "--path", "shm", "--sizes", "65536", "--iters", "5",
    ]);
    assert!(stdout(&run).contains("\n  64K "), "{}", stdout(&run));
    let info = fits(&["info"]);
    assert!(info.contains("injected up to 4K"), "{info}");
}
