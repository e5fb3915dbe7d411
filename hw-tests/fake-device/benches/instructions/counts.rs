//! The counts in the tree, and the comparison with them.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::measured::SubjectCounts;
use crate::subjects::SUBJECTS;

/// A count may rise by this percentage: inlining that changes with code elsewhere moves a count by
/// up to 4 %. Small rises add up, for counts are compared with the file.
const BOUND_PERCENT: f64 = 5.0;

/// And so many instructions: of small counts, that is a larger part.
const BOUND: f64 = 20.0;

/// Exit code where the file has no counts of this compiler and C library.
const NOT_COMPARED: u8 = 78;

/// The file in the tree.
fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.json")
}

/// The conditions of the counts besides the code: the compiler and the C library.
fn made_with() -> String {
    // SAFETY: the C library returns a string that stays.
    let libc = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    format!(
        "{}, {}, glibc {}",
        env!("FERRO_COMPILER"),
        std::env::consts::ARCH,
        libc.to_str().unwrap(),
    )
}

fn kept(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).unwrap_or_else(|_| "{}".to_owned());
    serde_json::from_str(&text).unwrap()
}

/// Writes the table of this compiler and C library anew. The tables of other C libraries stay, and
/// where libfabric is missing, the counts through it.
pub(crate) fn write(dumps: &[SubjectCounts]) -> ExitCode {
    let here = made_with();
    let compiler = here.split(',').next();
    let mut tables = (kept(&file())["tables"].as_object().cloned()).unwrap_or_default();
    tables.retain(|made_with, _| made_with.split(',').next() == compiler);
    let table = tables.entry(here).or_insert_with(|| json!({}));
    let table = table.as_object_mut().unwrap();
    table.retain(|subject, _| SUBJECTS.contains(&subject.as_str()));
    for counted in dumps {
        table.insert(counted.subject.clone(), json!(counted.per_message()));
    }
    let text = serde_json::to_string_pretty(&json!({ "tables": tables })).unwrap() + "\n";
    std::fs::write(file(), &text).unwrap();
    print!("{text}");
    ExitCode::SUCCESS
}

/// Compares with the counts of a file: the one in the tree, or one of another commit.
pub(crate) fn compare(dumps: &[SubjectCounts], with: Option<&str>) -> ExitCode {
    let kept = kept(&with.map_or_else(file, PathBuf::from));
    let here = made_with();
    let table = kept["tables"][&here].as_object();
    println!(
        "{:<20} {:>10} {:>10} {:>8}",
        "instructions", "kept", "now", "change"
    );
    let (mut more, mut less) = (0, 0);
    for counted in dumps {
        let now = counted.per_message();
        let subject = &counted.subject;
        let kept = table.and_then(|table| table.get(subject)?.as_f64());
        let Some(kept) = kept else {
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
        println!("SKIP: {subject}: there is no libfabric 2 here (libfabric1, or ci/mpi)");
    }
    let write = "cargo bench -p ferrofabric-fake-device --bench instructions -- --write";
    if table.is_none() {
        println!("No counts are kept of {here}: not compared.");
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
