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
pub(crate) struct StepProgress {
    /// Nothing where standard error is no terminal.
    bar: Option<ProgressBar>,
    steps: usize,
    begun: usize,
}

impl StepProgress {
    /// Nothing of so many steps is done yet.
    pub(crate) fn over(steps: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar =
                ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template(TEMPLATE);
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self {
            bar,
            steps,
            begun: 0,
        }
    }

    /// The next step begins.
    pub(crate) fn step(&mut self, what: impl Display) {
        self.begun += 1;
        match &self.bar {
            Some(bar) => {
                bar.set_position(self.begun as u64 - 1);
                bar.set_message(what.to_string());
                bar.force_draw();
            }
            None => eprintln!("ferro: {what} ({} of {})", self.begun, self.steps),
        }
    }

    /// A part of the step begins: shown by the bar alone.
    pub(crate) fn part(&self, what: impl Display) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_string());
            bar.force_draw();
        }
    }

    /// Prints something while no bar is in the way.
    pub(crate) fn aside<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// All is done.
    pub(crate) fn finish(&self) {
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
