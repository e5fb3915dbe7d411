//! Two endpoints of this process, of domains of their own, as two processes would have them.

#![allow(
    unsafe_code,
    reason = "messages of no bytes need no buffers that somebody would have to keep"
)]

use std::sync::Arc;
use std::time::Duration;

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::Threading;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::Av;

use crate::bound::{BoundEndpoint, Wait, carrier_of};
use crate::failure::{Failure, Result};
use crate::providers::Path;
use crate::workload::matching::{Pair, Receive};

/// How long a message may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A sender and a receiver that know each other.
pub(crate) struct Endpoints {
    sender: BoundEndpoint,
    receiver: BoundEndpoint,
    to: FiAddr,
    from: FiAddr,
}

impl Endpoints {
    /// Opens them.
    ///
    /// # Errors
    ///
    /// When there is no domain of the path.
    pub(crate) fn open(path: Path, threading: Threading) -> Result<Self> {
        let sender = BoundEndpoint::open(path, threading)?;
        let receiver = BoundEndpoint::open(path, threading)?;
        let (to, _) = sender.insert(&receiver.address())?;
        let (from, _) = receiver.insert(&sender.address())?;
        let mut endpoints = Self {
            sender,
            receiver,
            to,
            from,
        };
        // The first message waits for a connection.
        let first = Receive {
            any_source: false,
            tag: 0,
            ignore: 0,
        };
        endpoints.post(first)?;
        endpoints.send(0)?;
        endpoints.reap(1)?;
        Ok(endpoints)
    }

    /// The transport of the messages.
    pub(crate) fn carrier(&self) -> &'static str {
        carrier_of(&*self.sender.domain)
    }

    /// Where the sender looks its peers up.
    pub(crate) fn sender_av(&self) -> &Arc<dyn Av> {
        &self.sender.av
    }
}

impl Pair for Endpoints {
    type Error = Failure;

    #[inline]
    fn post(&mut self, receive: Receive) -> Result<()> {
        let op = RecvOp {
            kind: MsgKind::Tagged,
            src: match receive.any_source {
                true => FiAddr::UNSPEC,
                false => self.from,
            },
            tag: receive.tag,
            ignore: receive.ignore,
            desc: MrDesc::NONE,
            context: receive.tag,
            flags: Flags::COMPLETION,
        };
        // SAFETY: the buffer has no bytes.
        unsafe { self.receiver.endpoint.recv(&op, &[IoBuf::EMPTY])? };
        Ok(())
    }

    #[inline]
    fn send(&mut self, tag: u64) -> Result<()> {
        let op = SendOp {
            kind: MsgKind::Tagged,
            dest: self.to,
            tag,
            data: 0,
            desc: MrDesc::NONE,
            context: 0,
            flags: Flags::INJECT,
        };
        loop {
            // SAFETY: the buffer has no bytes.
            match unsafe { self.sender.endpoint.send(&op, &[IoBuf::EMPTY]) } {
                Ok(()) => return Ok(()),
                Err(OpError::Again) => self.drive_sender()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    #[inline]
    fn reap(&mut self, receives: usize) -> Result<()> {
        let mut batch = [Completion::BLANK; 16];
        let (mut there, mut wait) = (0, Wait::default());
        while there < receives {
            let room = batch.len().min(receives - there);
            match self.receiver.cq.read(&mut batch[..room]) {
                Ok(n) => there += n,
                Err(OpError::Again) => {
                    self.drive_sender()?;
                    if wait.found_nothing(false) && wait.is_over(PATIENCE) {
                        return Err(Failure::new("a message did not come"));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Endpoints {
    /// Drives the sender, which may have deferred a part of a send.
    #[cold]
    fn drive_sender(&mut self) -> Result<()> {
        let mut one = [Completion::BLANK];
        match self.sender.cq.read(&mut one) {
            Ok(_) | Err(OpError::Again) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
