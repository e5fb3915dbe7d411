//! The queues on which a device is tried out.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_verbs_sys::ibv_wc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::cq::{CompChannel, Cq, CqConfig};
use crate::device::DeviceContext;
use crate::pd::Pd;
use crate::qp::{QpCaps, QpConfig};
use crate::srq::Srq;

/// Requests that a queue pair of a probe takes, and completions of all of them.
pub(super) const DEPTH: u32 = 4;
const COMPLETIONS: u32 = 8 * DEPTH;

/// A protection domain and a completion queue.
pub(super) struct ProbeQueues {
    pd: Arc<Pd>,
    cq: Arc<Cq>,
}

impl ProbeQueues {
    /// Queues for objects that are made and dropped again.
    pub(super) fn create(context: &Arc<DeviceContext>) -> Result<Self> {
        Self::with(context, 2, None)
    }

    /// Queues for requests, which can be waited for.
    pub(super) fn for_requests(context: &Arc<DeviceContext>) -> Result<Self> {
        let channel = CompChannel::create(context)?;
        Self::with(context, COMPLETIONS, Some(channel))
    }

    fn with(
        context: &Arc<DeviceContext>,
        depth: u32,
        channel: Option<Arc<CompChannel>>,
    ) -> Result<Self> {
        let config = CqConfig {
            depth,
            channel,
            ..CqConfig::default()
        };
        Ok(Self {
            pd: Pd::allocate(context)?,
            cq: Cq::create(context, &config)?,
        })
    }

    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The configuration of a queue pair of one request.
    pub(super) fn smallest(&self, srq: Option<Arc<Srq>>) -> QpConfig {
        self.of_depth(1, srq)
    }

    /// The configuration of a queue pair of some requests with one entry each. It has receives of
    /// its own, unless they come from a shared queue.
    pub(super) fn of_depth(&self, depth: u32, srq: Option<Arc<Srq>>) -> QpConfig {
        let has_receives = srq.is_none();
        QpConfig {
            send_cq: self.cq.clone(),
            recv_cq: self.cq.clone(),
            srq,
            caps: QpCaps {
                send_depth: depth,
                recv_depth: if has_receives { depth } else { 0 },
                send_entries: 1,
                recv_entries: u32::from(has_receives),
                inline_bytes: 0,
            },
            signal_all: false,
            extended: None,
        }
    }

    /// The next completion, or none within the time.
    ///
    /// # Errors
    ///
    /// When the queue has failed.
    pub(super) fn next(&self, within: Duration) -> Result<Option<ibv_wc>> {
        let until = Instant::now() + within;
        loop {
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            let Some(channel) = self.cq.channel() else {
                return Ok(None);
            };
            self.cq.arm(false).map_err(|error| self.failed(error))?;
            // A completion before the queue was armed makes no event.
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            if !is_readable(&**channel, until)? {
                return Ok(None);
            }
            channel.take_event()?;
        }
    }

    fn poll(&self) -> Result<Option<ibv_wc>> {
        let mut room = [MaybeUninit::uninit()];
        let taken = self.cq.poll(&mut room);
        Ok(taken.map_err(|error| self.failed(error))?.first().copied())
    }

    fn failed(&self, error: OpError) -> Error {
        let queue = format!("completion queue of {}", self.pd.context().name());
        Error::new(error.errno(), "poll", queue)
    }
}

/// Waits until a descriptor is readable, or that moment has come.
pub(super) fn is_readable(of: &impl AsFd, until: Instant) -> Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // Rounded up, so that the last turn does not spin.
        let left = PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(of.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, left) {
            Ok(0) if Instant::now() < until => {}
            Ok(ready) => return Ok(ready > 0),
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => {
                let wait = "completions of a probe";
                return Err(Error::new(Errno(errno as i32), "wait for", wait));
            }
        }
    }
}
