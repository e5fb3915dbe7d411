//! Two endpoints of this process, of domains of their own, as two processes would have them.

#![allow(
    unsafe_code,
    reason = "messages of no bytes need no buffers that somebody would have to keep"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::Threading;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::{Av, Cq, CqAttr, Domain, Endpoint, EndpointConfig};

use crate::failure::{Failure, Result};
use crate::providers::Path;
use crate::workload::matching::{Pair, Receive};

/// How long a message may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Polls that find nothing before the clock is looked at.
const IDLE_POLLS: u32 = 1024;

struct Party {
    // The endpoint goes before what it is bound to.
    endpoint: Arc<dyn Endpoint>,
    cq: Arc<dyn Cq>,
    av: Arc<dyn Av>,
    domain: Arc<dyn Domain>,
}

impl Party {
    fn open(path: Path, threading: Threading) -> Result<Self> {
        let domain = path.open_for(threading)?;
        let av = domain.open_av(&AvAttr::default())?;
        let cq = domain.open_cq(&CqAttr::default())?;
        let endpoint = domain.open_endpoint(EndpointConfig::new(&av, &cq))?;
        Ok(Self {
            endpoint,
            cq,
            av,
            domain,
        })
    }
}

/// A sender and a receiver that know each other.
pub(crate) struct Endpoints {
    sender: Party,
    receiver: Party,
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
        let (sender, receiver) = (Party::open(path, threading)?, Party::open(path, threading)?);
        let to = sender.av.insert(&receiver.endpoint.name().to_bytes())?;
        let from = receiver.av.insert(&sender.endpoint.name().to_bytes())?;
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

    /// What carries the messages.
    pub(crate) fn carrier(&self) -> &'static str {
        carrier(&*self.sender.domain)
    }

    /// Where the sender looks its peers up.
    pub(crate) fn sender_av(&self) -> &Arc<dyn Av> {
        &self.sender.av
    }
}

/// What carries a domain's messages.
pub(in crate::bench) fn carrier(domain: &dyn Domain) -> &'static str {
    match domain.info().domain.name.as_str() {
        "shm" => "shm",
        _ => "verbs",
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
        let (mut there, mut idle, mut since) = (0, 0, None);
        while there < receives {
            let room = batch.len().min(receives - there);
            match self.receiver.cq.read(&mut batch[..room]) {
                Ok(n) => there += n,
                Err(OpError::Again) => {
                    idle += 1;
                    self.drive_sender()?;
                    if idle % IDLE_POLLS == 0
                        && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE
                    {
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
    /// What the sender could not do at once may go on.
    #[cold]
    fn drive_sender(&mut self) -> Result<()> {
        let mut one = [Completion::BLANK];
        match self.sender.cq.read(&mut one) {
            Ok(_) | Err(OpError::Again) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
