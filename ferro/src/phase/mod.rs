//! The phases of a run. Both sides of each pattern stand in one file.

pub(crate) mod atomics;
pub(crate) mod echo;
pub(crate) mod exchange;
pub(crate) mod one_sided;
mod side;
pub(crate) mod stream;

use ferrofabric_contracts::types::RmaKind;

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
        Pattern::Put(_) => one_sided::answer(link, phase, RmaKind::Write),
        Pattern::Get => one_sided::answer(link, phase, RmaKind::Read),
        Pattern::PolledPut(_) => one_sided::answer_polled(link, phase),
        Pattern::Atomic(_) => atomics::answer(link, phase),
    }
}
