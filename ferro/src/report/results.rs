//! Results of a measurement that takes a while: each is printed as soon as it is there, or all of
//! them as one array of JSON in the end. Progress goes to standard error meanwhile.

use serde::Serialize;

use super::table::Tabled;
use super::{print_json, print_text};
use crate::failure::Result;
use crate::progress::StepProgress;

/// The results of one run.
pub(crate) struct Results<R> {
    as_json: bool,
    rows: Vec<R>,
    progress: StepProgress,
}

impl<R: Serialize + Tabled> Results<R> {
    /// No result yet, of so many steps.
    pub(crate) fn new(as_json: bool, steps: usize) -> Self {
        Self {
            as_json,
            rows: Vec::new(),
            progress: StepProgress::over("ferro", steps),
        }
    }

    /// The progress of the run.
    pub(crate) fn progress(&mut self) -> &mut StepProgress {
        &mut self.progress
    }

    /// Adds a result.
    ///
    /// # Errors
    ///
    /// When standard output is closed.
    pub(crate) fn add(&mut self, row: R) -> Result<()> {
        if !self.as_json {
            let header = match self.rows.is_empty() {
                true => R::header(),
                false => String::new(),
            };
            let lines = header + &row.line();
            self.progress.aside(|| print_text(&lines))?;
        }
        self.rows.push(row);
        Ok(())
    }

    /// Ends the output: with the array of JSON, or with a line about the whole run. Returns the
    /// results.
    ///
    /// # Errors
    ///
    /// When standard output is closed.
    pub(crate) fn finish(self, about: &str) -> Result<Vec<R>> {
        self.progress.finish();
        match (self.as_json, about) {
            (true, _) => print_json(&self.rows)?,
            (false, "") => {}
            (false, about) => print_text(&super::wrapped(about, "", ""))?,
        }
        Ok(self.rows)
    }
}
