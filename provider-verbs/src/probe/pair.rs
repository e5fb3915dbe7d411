//! Two queue pairs of one device that are connected to each other, and the trials of both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_verbs_sys::{ibv_event_type, ibv_wc, ibv_wc_status};

use super::memory::ProbeMemory;
use super::queues::{DEPTH, ProbeQueues, is_readable};
use crate::device::{DeviceContext, DeviceLimits, EventSubject};
use crate::mr::Access;
use crate::port::LocalPort;
use crate::post::{RecvRequest, SendFlags, SendRequest, inline_sge};
use crate::qp::{RcConnect, RcInit, RcQp, RcTimers};
use crate::srq::Srq;

/// The time that a request within a device may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time after which an event, or one more flushed request, does not come any more.
const SILENCE: Duration = Duration::from_secs(1);

/// A peer with no receive posted is retried for ever.
const FOR_EVER: u8 = 7;

/// The word that writes and atomics change.
const WORD: usize = 0;

/// The identifier of the request that is posted to a queue pair in error.
const LATE: u64 = u64::MAX;

/// Two queue pairs that are connected to each other.
pub(super) struct LoopbackPair<'q> {
    // They go before the memory that they use.
    first: RcQp,
    second: RcQp,
    memory: ProbeMemory,
    queues: &'q ProbeQueues,
    inline_bytes: u32,
}

/// The fate of the requests of a queue pair that was moved to the error state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushFindings {
    /// The requests in the order of their completions. Two sends and two receives were posted.
    pub order: Vec<FlushedRequest>,
    /// The fate of a send that was posted to the queue pair in error.
    pub late_send: LateSend,
}

/// A completion of a queue pair in error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushedRequest {
    /// A send; else a receive.
    pub is_send: bool,
    /// Its number in its queue, from 0.
    pub number: u64,
    /// The status, in words.
    pub status: String,
}

/// The fate of a send that is posted to a queue pair in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LateSend {
    /// The device refused it.
    Refused(OpError),
    /// It was flushed.
    Flushed,
    /// It never completed.
    Lost,
}

impl<'q> LoopbackPair<'q> {
    /// Makes and connects the two; their receives come from `srq` if there is one.
    ///
    /// # Errors
    ///
    /// A step fails: the device has no room, or cannot reach itself.
    pub(super) fn connect(
        queues: &'q ProbeQueues,
        port: &LocalPort,
        srq: Option<&Arc<Srq>>,
        inline_bytes: u32,
    ) -> Result<Self> {
        let limits = queues.pd().context().limits();
        let mut config = queues.of_depth(DEPTH, srq.cloned());
        config.caps.inline_bytes = inline_bytes;
        let [first, second] = [(); 2].map(|()| RcQp::create(queues.pd(), &config));
        let (first, second) = (first?, second?);
        let access = remote_rights(limits);
        for qp in [&first, &second] {
            qp.to_init(&RcInit {
                port: port.number,
                pkey_index: port.pkey_index,
                access,
            })?;
        }
        for (qp, peer) in [(&first, &second), (&second, &first)] {
            join(qp, peer, port, limits)?;
        }
        Ok(Self {
            first,
            second,
            memory: ProbeMemory::register(queues.pd(), access | Access::LOCAL_WRITE)?,
            queues,
            inline_bytes,
        })
    }

    /// Writes nothing, which only a living connection acknowledges.
    ///
    /// # Errors
    ///
    /// The write fails, or does not complete.
    pub(super) fn write_nothing(&self) -> Result<()> {
        let mut request = SendRequest::probe(0);
        // SAFETY: the request names no memory.
        let posted = unsafe { request.post(&self.first) };
        self.finish("write nothing over", posted)
    }

    /// Adds to a word of the other side by an atomic.
    ///
    /// # Errors
    ///
    /// The atomic fails, or the word has another value than it should.
    pub(super) fn add(&self) -> Result<()> {
        let (word, old) = (self.memory.word(WORD), self.memory.word(WORD + 1));
        word.set(40);
        let mut request =
            SendRequest::fetch_add(0, [old.entry()], word.remote(), 2).flags(SendFlags::SIGNALED);
        // SAFETY: both words are registered as long as the pair is there.
        let posted = unsafe { request.post(&self.first) };
        self.finish("add by an atomic over", posted)?;
        match (old.get(), word.get()) {
            (40, 42) => Ok(()),
            _ => Err(self.error(Errno::EIO, "find the sum of an atomic of")),
        }
    }

    /// Whether inline data travels in the request: then its memory need not be registered. `None`
    /// if a queue pair has no room for some.
    ///
    /// # Errors
    ///
    /// The write is refused, or does not complete.
    pub(super) fn takes_inline(&self) -> Result<Option<bool>> {
        let bytes = [0x5a; size_of::<u64>()];
        let bytes = &bytes[..bytes.len().min(self.inline_bytes as usize)];
        if bytes.is_empty() {
            return Ok(None);
        }
        let word = self.memory.word(WORD);
        word.set(0);
        let mut request = SendRequest::write(0, [inline_sge(bytes)], word.remote())
            .flags(SendFlags::SIGNALED | SendFlags::INLINE);
        // SAFETY: a device that copies does so now. One that does not finds memory without a
        // registration, which it may not read.
        unsafe { request.post(&self.first) }
            .map_err(|error| self.error(error.errno(), "write inline over"))?;
        let done = self.completion("write inline over")?;
        let is_copied = done.status == ibv_wc_status::IBV_WC_SUCCESS;
        Ok(Some(is_copied && word.get() != 0))
    }

    /// Moves one side to the error state with sends and receives under way, and collects their
    /// completions.
    ///
    /// # Errors
    ///
    /// A request cannot be posted, or the state cannot be changed.
    pub(super) fn flush(&self) -> Result<FlushFindings> {
        for number in 0..2 {
            let entry = self.memory.word(number as usize).entry();
            let mut receive = RecvRequest::new(receive_id(number), [entry]);
            // SAFETY: the memory is registered as long as the pair is there.
            let posted = unsafe { receive.post(&self.first) };
            posted.map_err(|error| self.error(error.errno(), "post a receive to"))?;
        }
        // The other side has no receives, so that these wait.
        for number in 0..2 {
            self.post_send(number)
                .map_err(|error| self.error(error.errno(), "post a send to"))?;
        }
        self.first.to_error()?;
        let mut order = Vec::new();
        while order.len() < 4 {
            let Some(done) = self.queues.next(SILENCE)? else {
                break;
            };
            order.push(self.flushed(&done));
        }
        Ok(FlushFindings {
            order,
            late_send: self.send_late()?,
        })
    }

    fn send_late(&self) -> Result<LateSend> {
        if let Err(error) = self.post_send(LATE) {
            return Ok(LateSend::Refused(error));
        }
        while let Some(done) = self.queues.next(SILENCE)? {
            if done.wr_id == LATE {
                return Ok(LateSend::Flushed);
            }
        }
        Ok(LateSend::Lost)
    }

    /// Moves one side to the error state. Returns whether the device reports within a second that
    /// the queue pair has taken its last shared receive.
    ///
    /// # Errors
    ///
    /// The state cannot be changed, or events cannot be read.
    pub(super) fn announces_last_receive(&self) -> Result<bool> {
        let context = self.queues.pd().context();
        self.first.to_error()?;
        let until = Instant::now() + SILENCE;
        while is_readable(&**context, until)? {
            let is_last = context.take_event(|event| {
                event.kind == ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED
                    && event.subject == EventSubject::QueuePair(self.first.number())
            })?;
            if is_last == Some(true) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn post_send(&self, number: u64) -> std::result::Result<(), OpError> {
        let mut request =
            SendRequest::send(number, [self.memory.word(WORD).entry()]).flags(SendFlags::SIGNALED);
        // SAFETY: the memory is registered as long as the pair is there.
        unsafe { request.post(&self.first) }
    }

    fn flushed(&self, done: &ibv_wc) -> FlushedRequest {
        let is_send = done.wr_id < receive_id(0);
        let number = done.wr_id - if is_send { 0 } else { receive_id(0) };
        let context: &DeviceContext = self.queues.pd().context();
        FlushedRequest {
            is_send,
            number,
            status: context.status_text(done.status).to_owned(),
        }
    }

    /// Waits for the one request that was posted, which has to succeed.
    fn finish(&self, doing: &'static str, posted: std::result::Result<(), OpError>) -> Result<()> {
        posted.map_err(|error| self.error(error.errno(), doing))?;
        let done = self.completion(doing)?;
        match done.status {
            ibv_wc_status::IBV_WC_SUCCESS => Ok(()),
            failed => {
                let status = self.queues.pd().context().status_text(failed);
                Err(self.error(Errno::EIO, doing).mend(status))
            }
        }
    }

    fn completion(&self, doing: &'static str) -> Result<ibv_wc> {
        let done = self.queues.next(PATIENCE)?;
        done.ok_or_else(|| self.error(Errno::ETIMEDOUT, doing))
    }

    fn error(&self, errno: Errno, doing: &'static str) -> Error {
        let pair = format!("{} and {}", self.first, self.second.number());
        Error::new(errno, doing, pair)
    }
}

fn receive_id(number: u64) -> u64 {
    (1 << 32) + number
}

/// The rights of peers that lanes have, and atomics where the device has some.
fn remote_rights(limits: &DeviceLimits) -> Access {
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    match limits.atomics {
        true => rights | Access::REMOTE_ATOMIC,
        false => rights,
    }
}

fn join(qp: &RcQp, peer: &RcQp, port: &LocalPort, limits: &DeviceLimits) -> Result<()> {
    let unreachable = || {
        Error::new(
            Errno::EHOSTUNREACH,
            "connect",
            format!("{qp} to its own port"),
        )
    };
    let path = port.path_to(&port.address(peer.number(), 0));
    let reads = limits.reads_as_initiator.min(limits.reads_as_target);
    qp.to_rtr(&RcConnect {
        path: path.ok_or_else(unreachable)?,
        mtu: port.mtu,
        remote_qp: peer.number(),
        remote_psn: 0,
        reads_as_target: reads,
        receiver_not_ready_code: 12,
    })?;
    qp.to_rts(&RcTimers {
        psn: 0,
        timeout_exponent: 16,
        retries: 6,
        receiver_not_ready_retries: FOR_EVER,
        reads_as_initiator: reads,
    })
}
