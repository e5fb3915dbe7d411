//! A datagram that a queue pair sends to itself, received from a shared queue.

use std::time::Duration;

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_verbs_sys::ibv_wc_status;

use super::abilities::shared_queue;
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

/// Sends a datagram and receives it.
///
/// # Errors
///
/// The device does not receive datagrams by a shared queue, or a step fails.
pub(super) fn by_shared_queue(queues: &ProbeQueues, port: &LocalPort) -> Result<()> {
    let srq = shared_queue(queues, DEPTH)?;
    let memory = ProbeMemory::register(queues.pd(), Access::LOCAL_WRITE)?;
    let config = queues.of_depth(DEPTH, Some(srq.clone()));
    let path = port.path_to(&port.address(0, QKEY)).ok_or_else(|| {
        let own = format!("port {} by itself", port.number);
        Error::new(Errno::EHOSTUNREACH, "reach", own)
    })?;
    let handle = Ah::create(queues.pd(), &path)?;
    let qp = UdQp::create(queues.pd(), &config)?;
    qp.activate(&UdInit {
        port: port.number,
        pkey_index: port.pkey_index,
        qkey: QKEY,
        psn: 0,
    })?;
    let failed = |errno, doing| Error::new(errno, doing, qp.to_string());
    let received = UdQp::HEADER_BYTES + size_of::<u64>();
    let mut receive = RecvRequest::new(0, [memory.start(received)]);
    // SAFETY: the queue pair goes before the memory.
    let posted = unsafe { receive.post_shared(&srq) };
    posted.map_err(|error| failed(error.errno(), "post a shared receive of"))?;
    let word = memory.word(received.div_ceil(size_of::<u64>()));
    let mut send = SendRequest::send(1, [word.entry()])
        .to(&handle, qp.number(), QKEY)
        .flags(SendFlags::SIGNALED);
    // SAFETY: memory and handle are there until both requests are over.
    let posted = unsafe { send.post(&qp) };
    posted.map_err(|error| failed(error.errno(), "post a datagram to"))?;
    // Of the send and of the receive, in any order.
    for _ in 0..2 {
        let done = queues.next(PATIENCE)?;
        let done = done.ok_or_else(|| failed(Errno::ETIMEDOUT, "get a datagram of"))?;
        if done.status != ibv_wc_status::IBV_WC_SUCCESS {
            let status = queues.pd().context().status_text(done.status);
            return Err(failed(Errno::EIO, "get a datagram of").mend(status));
        }
    }
    Ok(())
}
