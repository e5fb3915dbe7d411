//! Random programs, run on a fabric and judged by a sequential model.
//!
//! A program that fails is made as small as it can be and printed as text. Put into a file of `regressions/` (`NAME.txt`), it is run
//! first from then on; `FERRO_CONFORMANCE_REPLAY=FILE` runs one and no others. `FERRO_CONFORMANCE_CASES` says how many
//! programs are drawn.

pub mod history;
pub mod oracle;
pub mod program;
pub mod run;

use std::hash::{BuildHasher, RandomState};
use std::path::Path;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use crate::fabric::Fabric;
use history::Receiver;
use oracle::Verdict;
use program::Program;

/// Runs random programs of which half of the ranks are in another process, which calls this too, with its own number: 0
/// or 1. What fails is printed, and not made smaller.
///
/// # Panics
///
/// With a program that fails.
pub fn random_programs_between(
    fabric: &Fabric,
    process: usize,
    other: &mut dyn run::Other,
    cases: u32,
) {
    let seed = RandomState::new().hash_one(process).to_string();
    let theirs = other.exchange(&seed);
    let seed: u64 = if process == 0 { seed } else { theirs }.parse().unwrap();
    let bytes: Vec<u8> = (0..4).flat_map(|n| (seed ^ n).to_le_bytes()).collect();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = program::programs(fabric);
    for case in 0..cases {
        let mut program = strategy.new_tree(&mut runner).unwrap().current();
        // Who closes would have to tell the other process, and wait for it.
        program
            .steps
            .retain(|step| !matches!(step, program::Step::Reopen { .. }));
        let outcome = run::run_between(fabric, &program, process, other)
            .and_then(|receivers| judge_all(&receivers));
        if let Err(why) = outcome {
            panic!(
                "{}: program {case}: {why}\nprogram:\n{}",
                fabric.name,
                program.to_text()
            );
        }
    }
    println!("{}: {cases} programs between two processes", fabric.name);
}

/// Runs one program.
///
/// # Errors
///
/// What happened that must not.
pub fn check(fabric: &Fabric, program: &Program) -> Result<bool, String> {
    judge_all(&run::run(fabric, program)?)
}

/// Whether all could be judged.
fn judge_all(receivers: &[Receiver]) -> Result<bool, String> {
    let mut decided = true;
    for (node, receiver) in receivers.iter().enumerate() {
        match oracle::judge(receiver) {
            Verdict::Allowed => {}
            Verdict::Undecided => decided = false,
            Verdict::Forbidden(why) => {
                let mut text = format!("no order of arrivals explains what node {node} saw: {why}");
                for (at, event) in receiver.events.iter().enumerate() {
                    text += &format!("\n  {at:3} {event:?}");
                }
                for (at, receive) in receiver.receives.iter().enumerate() {
                    text += &format!("\n  receive {at}: {receive:?}");
                }
                for message in &receiver.messages {
                    text += &format!("\n  {message:?}");
                }
                return Err(text);
            }
        }
    }
    Ok(decided)
}

/// Runs the programs that have failed before, then `cases` random ones.
///
/// # Panics
///
/// With the smallest program that fails, if one does.
pub fn random_programs(fabric: &Fabric, cases: u32) {
    if let Ok(file) = std::env::var("FERRO_CONFORMANCE_REPLAY") {
        return replay(fabric, Path::new(&file));
    }
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    let mut files: Vec<_> = std::fs::read_dir(&kept)
        .unwrap_or_else(|why| panic!("{}: {why}", kept.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "txt"))
        .collect();
    files.sort();
    for file in &files {
        replay(fabric, file);
    }
    let cases = std::env::var("FERRO_CONFORMANCE_CASES").map_or(cases, |n| n.parse().unwrap());
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2000,
        max_shrink_time: 180_000,
        ..Config::default()
    };
    let undecided = std::cell::Cell::new(0);
    let outcome = TestRunner::new(config).run(&program::programs(fabric), |program| {
        match check(fabric, &program) {
            Ok(decided) => {
                undecided.set(undecided.get() + u32::from(!decided));
                Ok(())
            }
            Err(why) => Err(TestCaseError::fail(format!(
                "{why}\nprogram:\n{}",
                program.to_text()
            ))),
        }
    });
    match outcome {
        Ok(()) => println!(
            "{}: {cases} programs, {} of them too ambiguous to judge",
            fabric.name,
            undecided.get()
        ),
        Err(proptest::test_runner::TestError::Fail(why, _)) => {
            panic!("{}: {}", fabric.name, why.message())
        }
        Err(aborted) => panic!("{}: {aborted}", fabric.name),
    }
    assert!(undecided.get() * 20 <= cases, "too many are not judged");
}

/// Runs the program of a file.
fn replay(fabric: &Fabric, file: &Path) {
    let text = std::fs::read_to_string(file).unwrap();
    let outcome = Program::from_text(&text).and_then(|program| check(fabric, &program));
    if let Err(why) = outcome {
        panic!("{}: {}: {why}", fabric.name, file.display());
    }
}
