//! The counts in the tree, and the comparison with them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use crate::measured::Counted;
use crate::subjects::SUBJECTS;

/// So much more, in percent, is let pass: what the compiler inlines where moves a count by up to 4 when code elsewhere
/// changes. Small rises add up, for they are compared with the file.
const BOUND_PERCENT: f64 = 5.0;

/// And so many instructions: of small counts, that is a larger part.
const BOUND: f64 = 20.0;

/// Exit code where the counts of the file were taken with another compiler or processor.
const NOT_COMPARED: u8 = 78;

/// The file in the tree.
fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.json")
}

/// What the counts depend on besides the code: the compiler, and the processor, for which the C library chooses how to copy.
fn made_with() -> String {
    let facts = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let fact = |name: &str| {
        let line = facts
            .lines()
            .find(|line| line.split(':').next().is_some_and(|n| n.trim() == name));
        line.and_then(|line| line.split(':').nth(1))
            .map_or("?", str::trim)
    };
    format!(
        "{}, {}, {} family {} model {}",
        env!("FERRO_COMPILER"),
        std::env::consts::ARCH,
        fact("vendor_id"),
        fact("cpu family"),
        fact("model"),
    )
}

fn kept(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).unwrap_or_else(|_| "{}".to_owned());
    serde_json::from_str(&text).unwrap()
}

/// Writes the file anew. Where libfabric is missing, the counts through it stay, if the others were
/// taken with the same compiler and processor.
pub(crate) fn write(dumps: &[Counted]) -> ExitCode {
    let kept = kept(&file());
    let mut counts = Map::new();
    if kept["made_with"].as_str() == Some(&made_with()) {
        counts.extend(
            kept["instructions"]
                .as_object()
                .cloned()
                .unwrap_or_default(),
        );
        counts.retain(|subject, _| SUBJECTS.contains(&subject.as_str()));
    }
    for counted in dumps {
        counts.insert(counted.subject.clone(), json!(counted.per_message()));
    }
    let text = json!({ "made_with": made_with(), "instructions": counts });
    let text = serde_json::to_string_pretty(&text).unwrap() + "\n";
    std::fs::write(file(), &text).unwrap();
    print!("{text}");
    ExitCode::SUCCESS
}

/// Compares with the counts of a file: the one in the tree, or one of another commit.
pub(crate) fn compare(dumps: &[Counted], with: Option<&str>) -> ExitCode {
    let kept = kept(&with.map_or_else(file, PathBuf::from));
    let taken_with = kept["made_with"].as_str().unwrap_or("nothing");
    let here = made_with();
    println!(
        "{:<20} {:>10} {:>10} {:>8}",
        "instructions", "kept", "now", "change"
    );
    let (mut more, mut less) = (0, 0);
    for counted in dumps {
        let now = counted.per_message();
        let subject = &counted.subject;
        let Some(kept) = kept["instructions"][subject].as_f64() else {
            println!("{subject:<20} {:>10} {now:>10.2} {:>8}", "-", "new");
            less += 1;
            continue;
        };
        let change = (now / kept - 1.0) * 100.0;
        let mark = match () {
            () if change > BOUND_PERCENT && now - kept > BOUND => {
                more += 1;
                "  <- more"
            }
            () if change < -BOUND_PERCENT && kept - now > BOUND => {
                less += 1;
                "  <- less"
            }
            () => "",
        };
        println!("{subject:<20} {kept:>10.2} {now:>10.2} {change:>+7.2}%{mark}");
    }
    let missing = SUBJECTS
        .into_iter()
        .filter(|subject| dumps.iter().all(|counted| counted.subject != *subject));
    for subject in missing {
        assert!(subject.starts_with("ofi"), "{subject} was not counted");
        println!("SKIP: {subject}: there is no libfabric 2 here (libfabric1, or ci/mpich)");
    }
    let write = "cargo bench -p ferrofabric-fake-device --bench instructions -- --write";
    if taken_with != here {
        println!("The kept counts were taken with {taken_with}, these with {here}: not compared.");
        return ExitCode::from(NOT_COMPARED);
    }
    if more > 0 {
        println!(
            "{more} counts have risen by more than {BOUND_PERCENT} % and {BOUND} instructions. Where they go: -- --profile NAME. If it has to be: {write}"
        );
        return ExitCode::FAILURE;
    }
    if less > 0 {
        println!("{less} counts are new, or have fallen. Keep them: {write}");
    }
    ExitCode::SUCCESS
}
