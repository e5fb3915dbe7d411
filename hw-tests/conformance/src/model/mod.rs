//! Random programs, run on a fabric and judged by a sequential model.
//!
//! How they are drawn and made smaller: [`search`](crate::search).

pub mod history;
pub mod oracle;
pub mod program;
pub mod run;

use std::hash::{BuildHasher, RandomState};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::fabric::Fabric;
use crate::search::Search;
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
    let search = Search {
        name: fabric.name,
        regressions: "regressions",
        cases,
    };
    search.run(&program::programs(fabric), |program| check(fabric, program));
}
