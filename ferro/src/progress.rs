//! Progress on standard error: a bar on a terminal, else one plain line for each step.
//!
//! The bar is drawn between measurements alone. A thread that draws it in between would take time
//! from the cores that are measured.

use std::fmt::Display;
use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The bar with its text, in fewer than 80 columns.
const TEMPLATE: &str = "[{bar:24}] {pos}/{len} {wide_msg}";

/// The progress of a command.
pub struct StepProgress {
    /// Nothing where standard error is no terminal.
    bar: Option<ProgressBar>,
    /// The first word of each line.
    program: &'static str,
    steps: usize,
    begun: usize,
}

impl StepProgress {
    /// The progress of a program that has done none of its `steps` yet.
    pub fn over(program: &'static str, steps: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar =
                ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template(TEMPLATE);
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self {
            bar,
            program,
            steps,
            begun: 0,
        }
    }

    /// The next step begins.
    pub fn step(&mut self, what: impl Display) {
        self.begun += 1;
        match &self.bar {
            Some(bar) => {
                bar.set_position(self.begun as u64 - 1);
                bar.set_message(what.to_string());
                bar.force_draw();
            }
            None => eprintln!(
                "{}: {what} ({} of {})",
                self.program, self.begun, self.steps
            ),
        }
    }

    /// A part of the step begins: shown by the bar alone.
    pub fn part(&self, what: impl Display) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_string());
            bar.force_draw();
        }
    }

    /// Prints something while no bar is in the way.
    pub fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// All is done.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for StepProgress {
    fn drop(&mut self) {
        self.finish();
    }
}
