//! Datagrams that a queue pair sends to itself: one that arrives, and one that fails at its sender.

use std::time::Duration;

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_verbs_sys::{ibv_qp_state, ibv_wc, ibv_wc_status};

use super::memory::ProbeMemory;
use super::queues::{DEPTH, ProbeQueues};
use crate::ah::Ah;
use crate::mr::Access;
use crate::port::LocalPort;
use crate::post::{RecvRequest, SendFlags, SendRequest};
use crate::qp::{UdInit, UdQp};

/// The time that a datagram within a device may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Any key will do: the queue pair goes at once.
const QKEY: u32 = 0x0fe7_70fe;

/// A UD queue pair, the way to itself, and memory.
struct LoopbackDatagrams<'q> {
    queues: &'q ProbeQueues,
    // The queue pair goes before what its requests name.
    qp: UdQp,
    handle: Ah,
    memory: ProbeMemory,
}

impl<'q> LoopbackDatagrams<'q> {
    fn open(queues: &'q ProbeQueues, port: &LocalPort) -> Result<Self> {
        let memory = ProbeMemory::register(queues.pd(), Access::LOCAL_WRITE)?;
        let path = port.path_to(&port.address(0, QKEY)).ok_or_else(|| {
            let own = format!("port {} by itself", port.number);
            Error::new(Errno::EHOSTUNREACH, "reach", own)
        })?;
        let handle = Ah::create(queues.pd(), &path)?;
        let qp = UdQp::create(queues.pd(), &queues.of_depth(DEPTH, None))?;
        qp.activate(&UdInit {
            port: port.number,
            pkey_index: port.pkey_index,
            qkey: QKEY,
            psn: 0,
        })?;
        Ok(Self {
            queues,
            qp,
            handle,
            memory,
        })
    }

    /// Posts a datagram of one word, which lies behind the first `behind` bytes of the memory.
    fn send(&self, behind: usize, with_key: impl FnOnce(u32) -> u32) -> Result<()> {
        let mut entry = self.memory.word(behind.div_ceil(size_of::<u64>())).entry();
        entry.lkey = with_key(entry.lkey);
        let mut send = SendRequest::send(1, [entry])
            .to(&self.handle, self.qp.number(), QKEY)
            .flags(SendFlags::SIGNALED);
        // SAFETY: memory and handle are there until the request is over.
        let posted = unsafe { send.post(&self.qp) };
        posted.map_err(|error| self.failed(error.errno(), "post a datagram to"))
    }

    fn next(&self) -> Result<ibv_wc> {
        let done = self.queues.next(PATIENCE)?;
        done.ok_or_else(|| self.failed(Errno::ETIMEDOUT, "get a datagram of"))
    }

    fn failed(&self, errno: Errno, doing: &'static str) -> Error {
        Error::new(errno, doing, self.qp.to_string())
    }
}

/// Sends a datagram and receives it.
///
/// # Errors
///
/// The datagram does not arrive, or a step fails.
pub(super) fn loopback(queues: &ProbeQueues, port: &LocalPort) -> Result<()> {
    let pair = LoopbackDatagrams::open(queues, port)?;
    let received = UdQp::HEADER_BYTES + size_of::<u64>();
    let mut receive = RecvRequest::new(0, [pair.memory.start(received)]);
    // SAFETY: the queue pair goes before the memory.
    let posted = unsafe { receive.post(&pair.qp) };
    posted.map_err(|error| pair.failed(error.errno(), "post a receive of"))?;
    pair.send(received, |key| key)?;
    // Of the send and of the receive, in any order.
    for _ in 0..2 {
        let done = pair.next()?;
        if done.status != ibv_wc_status::IBV_WC_SUCCESS {
            let status = queues.pd().context().status_text(done.status);
            return Err(pair.failed(Errno::EIO, "get a datagram of").mend(status));
        }
    }
    Ok(())
}

/// Whether a datagram that fails at its sender, because its memory has no such key, stops the send
/// queue alone (state SQE, IBTA 1.5 §10.3.1), and not the whole queue pair.
///
/// # Errors
///
/// The queue pair cannot be made, or the datagram does not fail.
pub(super) fn failure_stops_sends(queues: &ProbeQueues, port: &LocalPort) -> Result<bool> {
    let pair = LoopbackDatagrams::open(queues, port)?;
    // Keys of a device are far apart from each other's complement.
    pair.send(0, |key| !key)?;
    let done = pair.next()?;
    match (done.status, pair.qp.state()?) {
        (ibv_wc_status::IBV_WC_SUCCESS, _) => {
            let why = "a datagram leaves from memory that is not registered";
            Err(pair.failed(Errno::EIO, "break").mend(why))
        }
        (_, state) => Ok(state == ibv_qp_state::IBV_QPS_SQE),
    }
}
