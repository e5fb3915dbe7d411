//! The phases of a run. Both sides of each pattern stand in one file.

pub(crate) mod echo;
pub(crate) mod exchange;
mod side;
pub(crate) mod stream;

use crate::failure::Result;
use crate::link::Link;
use crate::message::{Pattern, Phase};

/// The answering side's part of a phase.
///
/// # Errors
///
/// When the phase is impossible, a message is damaged, or the partner is gone.
pub(crate) fn answer(link: &mut Link, phase: &Phase) -> Result<()> {
    phase.check(link.max_bytes())?;
    match phase.pattern {
        Pattern::Echo => echo::answer(link, phase),
        Pattern::Stream => stream::answer(link, phase),
        Pattern::Exchange => exchange::answer(link, phase),
    }
}
