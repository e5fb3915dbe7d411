//! The rules by which a device grants inline data.

use std::cell::Cell;

use ferrofabric_contracts::error::{Errno, Result};

use super::queues::ProbeQueues;
use crate::device::find_inline_limit;
use crate::qp::{RcQp, UdQp};

/// A request that is beyond the inline limit of every device that is known.
const BEYOND_ALL: u32 = 4096;

/// Requests whose grants show the rule of a device: around multiples of 16 and of 64 bytes, and
/// around powers of two.
const REQUESTS: [u32; 8] = [0, 1, 20, 40, 70, 130, 200, 300];

/// The answers of a device to requests for inline data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineFindings {
    /// The longest grant, in bytes.
    pub most: u32,
    /// Requests and their grants, in bytes, from the smallest on.
    pub grants: Vec<(u32, u32)>,
    /// The answer to a request for more than the longest grant.
    pub beyond: BeyondInline,
}

/// The answer of a device to a request for more inline data than it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeyondInline {
    /// It makes no queue pair; some drivers give no errno.
    Refused(Option<Errno>),
    /// It makes a queue pair that has less.
    GrantsLess,
    /// It has granted all that was requested.
    Unlimited,
}

/// The kind of the queue pairs that a probe makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TriedKind {
    Rc,
    Ud,
}

impl TriedKind {
    /// Makes a queue pair with a number of inline bytes, and drops it again. Returns its grant, or
    /// the errno of a refusal.
    pub(super) fn try_inline(
        self,
        queues: &ProbeQueues,
        bytes: u32,
    ) -> std::result::Result<u32, i32> {
        let mut config = queues.smallest(None);
        config.caps.inline_bytes = bytes;
        match self {
            Self::Rc => RcQp::try_inline(queues.pd(), &config),
            Self::Ud => UdQp::try_inline(queues.pd(), &config),
        }
    }

    /// As [`try_inline`](Self::try_inline), with an error in words.
    pub(super) fn inline_of(self, queues: &ProbeQueues, bytes: u32) -> Result<u32> {
        let mut config = queues.smallest(None);
        config.caps.inline_bytes = bytes;
        match self {
            Self::Rc => Ok(RcQp::create(queues.pd(), &config)?.caps().inline_bytes),
            Self::Ud => Ok(UdQp::create(queues.pd(), &config)?.caps().inline_bytes),
        }
    }
}

/// Finds the rules of a kind of queue pairs.
///
/// # Errors
///
/// The device makes none of the kind.
pub(super) fn find(queues: &ProbeQueues, kind: TriedKind) -> Result<InlineFindings> {
    let beyond = match kind.try_inline(queues, BEYOND_ALL) {
        Ok(granted) if granted < BEYOND_ALL => BeyondInline::GrantsLess,
        Ok(_) => BeyondInline::Unlimited,
        Err(0) => BeyondInline::Refused(None),
        Err(errno) => BeyondInline::Refused(Some(Errno(errno.abs()))),
    };
    // The longest grant may be longer than the request for it.
    let longest = Cell::new(0);
    find_inline_limit(BEYOND_ALL, 1, |bytes| {
        let granted = kind.inline_of(queues, bytes)?;
        longest.set(longest.get().max(granted));
        Ok(granted)
    })?;
    let most = longest.get();
    let requests = REQUESTS.into_iter().filter(|bytes| *bytes <= most);
    let grants = requests
        .map(|bytes| Ok((bytes, kind.inline_of(queues, bytes)?)))
        .collect::<Result<_>>()?;
    Ok(InlineFindings {
        most,
        grants,
        beyond,
    })
}
