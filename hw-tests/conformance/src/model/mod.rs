//! Random programs, run on a fabric and judged by a sequential model.
//!
//! How they are drawn and made smaller: [`search`](crate::search).

pub mod between;
pub mod history;
pub mod nodes;
pub mod oracle;
pub mod program;
pub mod run;
pub(crate) mod runner;

use crate::fabric::Fabric;
use crate::search::ProgramSearch;
use history::ReceiverHistory;
use oracle::OracleVerdict;
use program::{Changes, RankProgram};

/// Runs one program.
///
/// # Errors
///
/// The violation, if there is one.
pub fn check(fabric: &Fabric, program: &RankProgram) -> Result<bool, String> {
    judge_all(&run::run(fabric, program)?)
}

/// Whether all could be judged.
fn judge_all(receivers: &[ReceiverHistory]) -> Result<bool, String> {
    let mut decided = true;
    for (node, receiver) in receivers.iter().enumerate() {
        match oracle::judge(receiver) {
            OracleVerdict::Allowed => {}
            OracleVerdict::Undecided => decided = false,
            OracleVerdict::Forbidden(why) => {
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
    search(fabric, cases, Changes::Few);
}

/// As `random_programs`, with addresses that are inserted and removed between any two messages, and
/// in the middle of long ones, at either side. Each message comes once, to the peer that it was
/// sent to, under an address that its receiver has for the sender, or its send ends in an error. A
/// removed address is refused until it is given to another peer.
///
/// # Panics
///
/// With the smallest program that fails, if one does.
pub fn random_removals(fabric: &Fabric, cases: u32) {
    search(fabric, cases, Changes::Many);
}

fn search(fabric: &Fabric, cases: u32, changes: Changes) {
    let search = ProgramSearch {
        name: fabric.name,
        regressions: "regressions",
        cases,
    };
    let programs = program::programs(fabric, changes);
    search.run(&programs, |program| check(fabric, program));
}
