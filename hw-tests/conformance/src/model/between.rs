//! Random programs of which half of the ranks are in another process: two processes run them, a
//! third one says which.
//!
//! A process that has seen a program fail may be in any state, or dead: after a failure, each
//! program that may be smaller gets two fresh ones.

use std::cell::{Cell, RefCell};
use std::process::Child;

use proptest::strategy::Strategy;

use super::judge_all;
use super::program::{self, Changes, MessageStep, RankProgram};
use super::run::{self, LineStream, OtherProcess, Stream};
use crate::fabric::Fabric;
use crate::search::{ProgramSearch, smallest_that_fails};

/// Begins a line by which a worker process reports.
const SAYS: &str = "say ";
const IS_DONE: &str = "done ";

/// A process that runs its part of programs, as [`serve`] does. Killed when dropped, if it is a
/// child.
pub struct WorkerProcess {
    lines: LineStream<Box<dyn Stream>>,
    child: Option<Child>,
}

impl WorkerProcess {
    /// The one at the other end of a stream. The reading end has a timeout: a process that says
    /// nothing hangs.
    pub fn new(
        to: impl Stream + 'static,
        from: impl Stream + 'static,
        child: Option<Child>,
    ) -> Self {
        Self {
            lines: LineStream::new(Box::new(to), Box::new(from)),
            child,
        }
    }

    fn put(&mut self, line: &str) -> Result<(), String> {
        let put = self.lines.put(line);
        put.map_err(|why| format!("a process takes nothing: {why}"))
    }

    fn get(&mut self) -> Result<String, String> {
        match self.lines.get() {
            Ok(Some(line)) => Ok(line),
            Ok(None) => Err("a process is gone".into()),
            Err(why) => Err(format!("a process says nothing: {why}")),
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The processes with the even ranks and with the odd ones.
pub type Couple = [WorkerProcess; 2];

/// Runs a program in both.
fn run_in(couple: &mut Couple, program: &RankProgram) -> Result<(), String> {
    let text = serde_json::to_string(&program.to_text()).map_err(|why| why.to_string())?;
    for worker in couple.iter_mut() {
        worker.put(&text)?;
    }
    loop {
        let [a, b] = couple;
        let (ours, theirs) = (a.get()?, b.get()?);
        match (ours.strip_prefix(SAYS), theirs.strip_prefix(SAYS)) {
            (Some(ours), Some(theirs)) => {
                a.put(theirs)?;
                b.put(ours)?;
            }
            (None, None) => {
                for said in [ours, theirs] {
                    let outcome = said.strip_prefix(IS_DONE).unwrap_or_default();
                    let why: Option<String> = serde_json::from_str(outcome)
                        .map_err(|why| format!("a process says {said}: {why}"))?;
                    if let Some(why) = why {
                        return Err(why);
                    }
                }
                return Ok(());
            }
            _ => return Err("one process is done, the other is not".into()),
        }
    }
}

/// Runs random programs in processes that `start` starts: first two for all, after a failure two
/// for each.
///
/// # Panics
///
/// With the smallest program that fails, if one does.
pub fn random_programs_between(fabric: &Fabric, cases: u32, start: impl FnMut() -> Couple) {
    let search = ProgramSearch {
        name: fabric.name,
        regressions: "regressions",
        cases,
    };
    let check = checker(start);
    search.run(&programs(fabric), |program| check(program).map(|()| true));
}

/// Searches among random programs for one that fails, and makes it small: returns the failure and
/// the program's text.
pub fn smallest_between(
    fabric: &Fabric,
    cases: u32,
    start: impl FnMut() -> Couple,
) -> Option<String> {
    smallest_that_fails(cases, &programs(fabric), checker(start))
}

fn checker(start: impl FnMut() -> Couple) -> impl Fn(&RankProgram) -> Result<(), String> {
    let (start, couple, failed) = (RefCell::new(start), RefCell::new(None), Cell::new(false));
    move |program| {
        if program.steps.iter().any(is_alone) {
            return Ok(());
        }
        let mut couple = couple.borrow_mut();
        if failed.get() {
            // The last must be gone before the next come.
            *couple = None;
        }
        let both = couple.get_or_insert_with(|| (start.borrow_mut())());
        let outcome = run_in(both, program);
        failed.set(failed.get() || outcome.is_err());
        outcome
    }
}

fn programs(fabric: &Fabric) -> impl Strategy<Value = RankProgram> + use<> {
    program::programs(fabric, Changes::Few).prop_map(|mut program| {
        program.steps.retain(|step| !is_alone(step));
        program
    })
}

/// A process that closes an endpoint or a region, or opens one, would have to inform the other
/// process, and wait for it.
fn is_alone(step: &MessageStep) -> bool {
    matches!(
        step,
        MessageStep::Reopen { .. } | MessageStep::Region { .. } | MessageStep::CloseRegion { .. }
    )
}

/// The way to the process that says which programs to run, and through it to the other that runs
/// them.
struct Leader<S>(LineStream<S>);

impl<S: Stream> OtherProcess for Leader<S> {
    fn exchange(&mut self, ours: &str) -> String {
        self.0.put(&format!("{SAYS}{ours}")).unwrap();
        let theirs = self.0.get().unwrap();
        theirs.expect("the leader is gone")
    }
}

/// Runs the ranks whose number modulo 2 is `process` of each program that the leader sends, until
/// there are no more.
///
/// # Panics
///
/// When the leader is gone in the middle of a program.
pub fn serve<S: Stream>(fabric: &Fabric, process: usize, leader: LineStream<S>) {
    let mut leader = Leader(leader);
    while let Ok(Some(text)) = leader.0.get() {
        let text: String = serde_json::from_str(&text).unwrap();
        let program = RankProgram::from_text(&text).unwrap();
        let outcome = run::run_between(fabric, &program, process, &mut leader)
            .and_then(|receivers| judge_all(&receivers));
        let why = serde_json::to_string(&outcome.err()).unwrap();
        leader.0.put(&format!("{IS_DONE}{why}")).unwrap();
    }
}
