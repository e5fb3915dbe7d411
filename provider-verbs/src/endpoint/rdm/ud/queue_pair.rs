//! The data queue pair: all lanes of the UD kind send through it.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrofabric_contracts::error::Result;
use ferrofabric_verbs_sys::ibv_wc_status;

use super::super::poster::Poster;
use crate::ah::Ah;
use crate::gather::entry;
use crate::lane::{UdRoute, datagram_wr_id};
use crate::origins::first_request;
use crate::pd::Pd;
use crate::post::{SendFlags, SendRequest, inline_sge};
use crate::qp::{QpConfig, UdFailure, UdInit, UdQp};

/// A posted request whose memory the device may still read.
struct PostedDatagram {
    /// Counts requests, modulo 2³².
    number: u32,
    /// The bounce buffer that it takes.
    slot: Option<u32>,
    _handle: Arc<Ah>,
}

/// The queue pair, and the requests posted to it.
pub(in super::super) struct DataQueuePair {
    // It goes first: the device uses the other fields.
    qp: Arc<UdQp>,
    init: UdInit,
    queue: VecDeque<PostedDatagram>,
    depth: usize,
    /// Datagrams up to this length travel in the work request, in bytes.
    inline_bytes: usize,
    next_number: u32,
    /// Requests posted since the last that was signalled.
    unsignaled: usize,
    /// How much of it has failed.
    failure: Option<UdFailure>,
}

impl DataQueuePair {
    /// Creates it. Up to `inline_bytes` bytes may travel in a work request.
    ///
    /// # Errors
    ///
    /// The device has no room, or does not support this.
    pub(in super::super) fn open(
        pd: &Arc<Pd>,
        config: &QpConfig,
        inline_bytes: u32,
        init: UdInit,
    ) -> Result<Self> {
        let qp = UdQp::create(pd, config)?;
        let depth = config.caps.send_depth as usize;
        // The prefix is an entry of its own.
        let inline_bytes = match config.caps.send_entries {
            0 | 1 => 0,
            _ => inline_bytes as usize,
        };
        qp.activate(&init)?;
        Ok(Self {
            qp: Arc::new(qp),
            init,
            queue: VecDeque::with_capacity(depth),
            depth,
            inline_bytes,
            next_number: first_request(),
            unsignaled: 0,
            failure: None,
        })
    }

    /// Its number, by which peers send to it and completions name it.
    pub(in super::super) fn number(&self) -> u32 {
        self.qp.number()
    }

    /// Sends a datagram of a prefix and a packet, whose memory is free at return. Returns `false`
    /// if there is no room now.
    pub(in super::super) fn send(
        &mut self,
        poster: &mut Poster,
        route: &UdRoute,
        prefix: &[u8],
        packet: &[u8],
    ) -> bool {
        if self.failure.is_some()
            || self.queue.len() >= self.depth
            || poster.outstanding >= poster.tuning.sends.total
        {
            return false;
        }
        let len = prefix.len() + packet.len();
        let fits_inline = len <= self.inline_bytes;
        let slot = match fits_inline {
            true => None,
            false => match poster.bounces.take() {
                None => return false,
                slot => slot,
            },
        };
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        // A request that takes a buffer is signaled. Now and then another one is, too, so that the
        // queue does not fill up.
        let mut flags = SendFlags::empty();
        self.unsignaled += 1;
        if slot.is_some() || self.unsignaled * 4 >= self.depth {
            self.unsignaled = 0;
            flags = SendFlags::SIGNALED;
        }
        let wr_id = datagram_wr_id(number);
        let (handle, qpn, qkey) = (&route.destination.handle, route.qpn, route.destination.qkey);
        let posted = match slot {
            None => {
                let mut request =
                    SendRequest::send(wr_id, [inline_sge(prefix), inline_sge(packet)])
                        .to(handle, qpn, qkey)
                        .flags(flags | SendFlags::INLINE);
                // SAFETY: inline data is copied before the call returns; the handle is kept until
                // the request is over.
                unsafe { request.post(&self.qp) }
            }
            Some(slot) => {
                let at = poster.bounces.address(slot);
                // SAFETY: the slot holds the longest datagram, and is ours until its request is
                // over.
                unsafe {
                    at.copy_from_nonoverlapping(prefix.as_ptr(), prefix.len());
                    at.add(prefix.len())
                        .copy_from_nonoverlapping(packet.as_ptr(), packet.len());
                }
                let sge = entry(at as u64, len, poster.bounces.lkey(slot));
                let mut request = SendRequest::send(wr_id, [sge])
                    .to(handle, qpn, qkey)
                    .flags(flags);
                // SAFETY: slot and handle are kept until the request is over.
                unsafe { request.post(&self.qp) }
            }
        };
        if let Err(error) = posted {
            tracing::debug!("datagram not posted to {}: {error}", self.qp);
            if let Some(slot) = slot {
                poster.bounces.give(slot);
            }
            self.check();
            return false;
        }
        poster.outstanding += 1;
        self.queue.push_back(PostedDatagram {
            number,
            slot,
            _handle: handle.clone(),
        });
        true
    }

    /// Bounce buffers of its posted requests.
    pub(in super::super) fn bounces(&self) -> usize {
        let slots = self.queue.iter().filter(|posted| posted.slot.is_some());
        slots.count()
    }

    /// Makes the device signal the next datagram, and with it all before it, whose handles are
    /// released then.
    pub(in super::super) fn signal_next(&mut self) {
        self.unsignaled = self.depth;
    }

    /// A request has completed, and so have all that were posted before it.
    pub(in super::super) fn sent(
        &mut self,
        poster: &mut Poster,
        number: u32,
        error: Option<ibv_wc_status>,
    ) {
        if let Some(status) = error {
            tracing::debug!("datagram {number} on {} failed: {}", self.qp, status.0);
            self.check();
        }
        while let Some(posted) = self.queue.front() {
            if number.wrapping_sub(posted.number) > u32::MAX / 2 {
                return;
            }
            Self::over(self.queue.pop_front(), poster);
        }
    }

    fn over(posted: Option<PostedDatagram>, poster: &mut Poster) {
        let Some(posted) = posted else { return };
        poster.outstanding -= 1;
        if let Some(slot) = posted.slot {
            poster.bounces.give(slot);
        }
    }

    /// How much of it is known to have failed: nothing is sent until [`revive`](Self::revive).
    pub(in super::super) fn failure(&self) -> Option<UdFailure> {
        self.failure
    }

    /// Queries the state of the queue pair.
    #[cold]
    pub(in super::super) fn check(&mut self) {
        self.failure = self.qp.failure().or(self.failure);
    }

    /// Stops reception of a queue pair that has failed: it may still receive, and a packet that
    /// arrives between the last poll and the reset would be lost, with its receive buffer.
    #[cold]
    pub(in super::super) fn stop(&mut self) {
        if let Err(error) = self.qp.to_error() {
            tracing::debug!("{error}");
        }
    }

    /// The queue pair itself.
    pub(in super::super) fn raw(&self) -> &Arc<UdQp> {
        &self.qp
    }

    /// Makes the queue pair, which went to error, work again under its number. All completions that
    /// it had were taken. Datagrams under way are lost, as on the wire. Returns `false` if it does
    /// not work yet; if only the send queue had failed, all of it counts as failed then.
    #[cold]
    pub(in super::super) fn revive(&mut self, poster: &mut Poster) -> bool {
        let revived = match self.failure {
            Some(UdFailure::Sends) => self.qp.resume_sends(),
            _ => self.qp.to_reset().and_then(|()| {
                while let Some(posted) = self.queue.pop_front() {
                    Self::over(Some(posted), poster);
                }
                self.unsignaled = 0;
                self.qp.activate(&self.init)
            }),
        };
        self.failure = match revived {
            Ok(()) => None,
            Err(error) => {
                tracing::warn!("{error}");
                Some(UdFailure::All)
            }
        };
        self.failure.is_none()
    }
}
