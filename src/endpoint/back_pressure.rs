//! Posts that wait until there is capacity for them.
//!
//! An operation that is refused with `EAGAIN` is posted again whenever the domain has moved. Its
//! completions, and those of other operations, stay in the completion queue meanwhile. The messages
//! of collective operations do not: a peer that waits for one of them receives nothing else, so
//! they move on here, and completions that come out of the queue with them are kept.

use std::time::{Duration, Instant};

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::owning::OwningEndpoint;

use super::{RdmEndpoint, deadline, until};

/// The time after which a waiting post lets collective operations move on.
const COLLECTIVES_SLICE: Duration = Duration::from_millis(1);

/// The time after which a wait is reported in the log.
const REPORT_AFTER: Duration = Duration::from_secs(10);

/// What a post does when there is no capacity for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// It waits.
    Waits,
    /// It is refused.
    Tries,
}

impl RdmEndpoint {
    /// Posts an operation with its `parcel`, which comes back if the operation is refused.
    #[inline]
    pub(super) fn post<P>(
        &mut self,
        peer: FiAddr,
        patience: Patience,
        parcel: P,
        mut post: impl FnMut(&mut OwningEndpoint, P) -> Result<(), (OpError, P)>,
    ) -> Result<(), (OpError, P)> {
        match post(&mut self.inner, parcel) {
            Err((OpError::Again, parcel)) if patience == Patience::Waits => {
                self.post_with_capacity(peer, parcel, post)
            }
            posted => posted,
        }
    }

    #[cold]
    fn post_with_capacity<P>(
        &mut self,
        peer: FiAddr,
        parcel: P,
        mut post: impl FnMut(&mut OwningEndpoint, P) -> Result<(), (OpError, P)>,
    ) -> Result<(), (OpError, P)> {
        let mut report_at = deadline(REPORT_AFTER);
        let deadline = self.send_timeout.and_then(deadline);
        let mut refused = Some((OpError::Again, parcel));
        loop {
            let slice = (self.collectives.is_some()).then_some(COLLECTIVES_SLICE);
            let ends = [deadline, report_at].into_iter().flatten().map(until);
            let waited = self
                .inner
                .wait_for_capacity(ends.chain(slice).min(), |inner| {
                    let Some((_, parcel)) = refused.take() else {
                        return true;
                    };
                    refused = post(inner, parcel).err();
                    !matches!(refused, Some((OpError::Again, _)))
                });
            let moved_on = match waited {
                Ok(true) => break,
                Ok(false) if slice.is_some() => self.collect().map(drop),
                Ok(false) => Ok(()),
                Err(error) => {
                    refused = refused.map(|(_, parcel)| (error, parcel));
                    break;
                }
            };
            if let Err(error) = moved_on {
                refused = refused.map(|(_, parcel)| (OpError::from(error.errno()), parcel));
                break;
            }
            if deadline.is_some_and(|at| Instant::now() >= at) {
                break;
            }
            if report_at.is_some_and(|at| Instant::now() >= at) {
                report_at = None;
                tracing::warn!(
                    "an operation waits for capacity at {peer:?} for {REPORT_AFTER:?}: the peer \
                     takes nothing. If this thread is to receive there, it waits for itself: call \
                     `try_send` and its like"
                );
            }
        }
        refused.map_or(Ok(()), Err)
    }
}
