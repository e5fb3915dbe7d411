//! The steps that each measurement takes with each size.

use std::time::Duration;

use ferrofabric_contracts::types::RmaKind;

use crate::cli::RunOptions;
use crate::failure::Result;
use crate::link::Link;
use crate::message::{Pattern, Phase};
use crate::phase::{atomics, echo, exchange, one_sided, stream};

/// How long one size takes where the user does not say how many messages.
pub(super) const TIME_PER_SIZE: Duration = Duration::from_millis(500);

/// Messages whose content is checked, for each size.
const VERIFIED_MESSAGES: u64 = 16;

/// Sends messages whose content is checked.
pub(super) fn verify(link: &mut Link, phase: &Phase, options: &RunOptions) -> Result<()> {
    if !options.verifies() {
        return Ok(());
    }
    let checked = Phase {
        messages: VERIFIED_MESSAGES.max(2 * phase.window),
        verify: true,
        ..*phase
    };
    match phase.pattern {
        Pattern::Echo => echo::ask(link, &checked, 1, &mut |_, _| {}),
        Pattern::Stream => stream::ask(link, &checked).map(drop),
        Pattern::Exchange => exchange::ask(link, &checked).map(drop),
        Pattern::Put(_) => one_sided::ask(link, &checked, RmaKind::Write, u64::MAX, &mut |_, _| {}),
        Pattern::Get => one_sided::ask(link, &checked, RmaKind::Read, u64::MAX, &mut |_, _| {}),
        Pattern::Atomic(kind) => atomics::ask(link, &checked, kind, u64::MAX, &mut |_, _| {}),
        // Its writes are those of `Put`.
        Pattern::PolledPut(_) => Ok(()),
    }
}

/// How many messages, one of which takes so long, fill the time of a size.
pub(super) fn messages_for(one: Duration) -> u64 {
    let one_ns = one.as_nanos().max(1);
    ((TIME_PER_SIZE.as_nanos() / one_ns) as u64).clamp(20, 10_000_000)
}
