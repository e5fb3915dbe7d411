//! The processes of a run of `ci/fuzz`, and how many of them found nothing.

use std::fmt;

use clap::Args;

/// The options of a run.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct FuzzRun {
    /// Random inputs of each target
    #[arg(long)]
    inputs: u64,
    /// The seed of the first process of each target; the others have the numbers after it
    #[arg(long)]
    seed: u64,
    /// How many processes run at a time
    #[arg(long)]
    processors: u64,
}

/// The target whose inputs take long.
const LONGEST: &str = "shm_segment";

/// One process of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FuzzProcess {
    target: String,
    seed: u64,
    inputs: u64,
}

impl fmt::Display for FuzzProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.target, self.seed, self.inputs)
    }
}

impl FuzzRun {
    /// The processes of all targets, in the order of their start.
    ///
    /// # Errors
    ///
    /// If there is no target.
    pub(crate) fn processes(self, targets: &str) -> Result<Vec<FuzzProcess>, String> {
        let mut targets: Vec<_> = targets.lines().collect();
        if targets.is_empty() {
            return Err("no targets".to_owned());
        }
        // The longest goes first, so that no processor is left alone with it.
        targets.sort_by_key(|target| (*target != LONGEST, *target));
        Ok(targets.iter().flat_map(|target| self.of(target)).collect())
    }

    /// The processes of a target, which share its inputs.
    fn of(self, target: &str) -> impl Iterator<Item = FuzzProcess> {
        let processes = if target == LONGEST {
            2 * self.processors
        } else {
            1
        };
        (0..processes).map(move |number| FuzzProcess {
            target: target.to_owned(),
            seed: self.seed + number,
            inputs: self.inputs / processes + u64::from(number < self.inputs % processes),
        })
    }
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FuzzResult {
    passed: usize,
    failed: usize,
}

impl FuzzResult {
    /// Of the list of processes and the exit codes of those that ended, one a line each.
    pub(crate) fn of(processes: &str, codes: &str) -> Self {
        let passed = codes.lines().filter(|code| *code == "0").count();
        FuzzResult {
            passed,
            // One without an exit code was ended with the shell that started it.
            failed: processes.lines().count().saturating_sub(passed),
        }
    }

    pub(crate) fn is_ok(self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

/// As a test program says it.
impl fmt::Display for FuzzResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.is_ok() { "ok" } else { "FAILED" };
        let FuzzResult { passed, failed } = self;
        write!(
            f,
            "test result: {word}. {passed} passed; {failed} failed; 0 ignored"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(inputs: u64, targets: &str) -> Vec<String> {
        let run = FuzzRun {
            inputs,
            seed: 7,
            processors: 2,
        };
        let processes = run.processes(targets).expect("targets");
        processes.iter().map(FuzzProcess::to_string).collect()
    }

    #[test]
    fn the_longest_target_goes_first_and_in_several_processes() {
        assert_eq!(
            lines(1002, "wire\nshm_segment\nudp\n"),
            [
                "shm_segment 7 251",
                "shm_segment 8 251",
                "shm_segment 9 250",
                "shm_segment 10 250",
                "udp 7 1002",
                "wire 7 1002"
            ]
        );
    }

    #[test]
    fn a_run_without_targets_is_an_error() {
        let run = FuzzRun {
            inputs: 1,
            seed: 1,
            processors: 1,
        };
        assert!(run.processes("").is_err());
    }

    #[test]
    fn a_run_is_ok_if_every_process_is() {
        let result = FuzzResult::of("a 1 2\nb 1 2\n", "0\n0\n");
        assert!(result.is_ok());
        assert_eq!(
            result.to_string(),
            "test result: ok. 2 passed; 0 failed; 0 ignored"
        );
    }

    #[test]
    fn a_process_that_failed_or_never_ended_fails_the_run() {
        for codes in ["1\n0\n", "0\n134\n", "0\n"] {
            let result = FuzzResult::of("a 1 2\nb 1 2\n", codes);
            assert!(!result.is_ok(), "{codes}");
            assert_eq!(
                result.to_string(),
                "test result: FAILED. 1 passed; 1 failed; 0 ignored"
            );
        }
        assert!(!FuzzResult::of("", "").is_ok());
    }
}
