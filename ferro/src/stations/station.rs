//! The endpoint of one of several threads, of a domain of its own, and its peer. The domain belongs
//! to that thread alone.

#![allow(
    unsafe_code,
    reason = "operations use memory that the station keeps until they are over"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::Threading;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::{Domain, Mr};
use memmap2::MmapMut;

use crate::bound::{BoundEndpoint, Wait};
use crate::failure::{Failure, Result};
use crate::message::{Stations, too_long};
use crate::pattern::{self, Direction};
use crate::providers::Path;
use crate::sizes;
use crate::workload::threads::Party;

/// How long a station that sleeps does so before it looks whether the other side is gone.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// The two buffers share no cache line.
const APART: usize = 128;

const TAG: u64 = 1;

/// The properties that all stations of a side share.
#[derive(Clone)]
pub(super) struct Common {
    path: Path,
    /// Bytes of a message.
    size: usize,
    /// The direction of this side's messages.
    side: Direction,
    /// Sleep in place of polling.
    block: bool,
    /// How long to wait for a message.
    patience: Duration,
    /// Set when the other side is gone.
    pub(super) gone: Arc<AtomicBool>,
}

impl Common {
    /// The properties for a request, of this side or the other one.
    pub(super) fn of(asked: &Stations, side: Direction) -> Self {
        Self {
            path: asked.path,
            size: asked.size,
            side,
            block: asked.block,
            patience: Duration::from_secs(asked.patience_s.clamp(1, 86_400)),
            gone: Arc::default(),
        }
    }
}

/// An endpoint and two buffers.
pub(super) struct Station {
    // The endpoint goes before the memory that its operations use, and the domain last.
    bound: BoundEndpoint,
    registered: Option<Arc<dyn Mr>>,
    mapped: MmapMut,
    domain: Arc<dyn Domain>,
    peer: FiAddr,
    common: Common,
    /// Whether contents are made and checked.
    verify: bool,
    sent: u64,
    received: u64,
}

impl Station {
    /// Opens an endpoint that has no peer yet.
    ///
    /// # Errors
    ///
    /// When the path has no domain here, or messages of that size are too long for it.
    pub(super) fn open(common: &Common) -> Result<Self> {
        let bound = BoundEndpoint::open(common.path, Threading::Domain)?;
        let domain = bound.domain.clone();
        let size = common.size;
        let most = domain.info().ep.max_msg_size;
        if size > most {
            return Err(too_long(size, most));
        }
        let mut mapped = MmapMut::map_anon(2 * apart(size))
            .map_err(|e| Failure::io(format!("make buffers of {}", sizes::print(size)), e))?;
        // Memory that nobody has written to is all one page.
        mapped.fill(1);
        Ok(Self {
            bound,
            registered: None,
            mapped,
            domain,
            peer: FiAddr::UNSPEC,
            common: common.clone(),
            verify: false,
            sent: 0,
            received: 0,
        })
    }

    /// Its address, as bytes.
    pub(super) fn address(&self) -> Vec<u8> {
        self.bound.address()
    }

    /// Names its peer. Returns the transport between the two.
    ///
    /// # Errors
    ///
    /// When the address is none, or the buffers can not be registered.
    pub(super) fn meet(&mut self, address: &[u8]) -> Result<&'static str> {
        let (peer, carrier) = self.bound.insert(address)?;
        self.peer = peer;
        if carrier == "verbs" {
            let whole = IoBuf::new(self.mapped.as_ptr(), self.mapped.len());
            let access = Flags::SEND | Flags::RECV;
            // SAFETY: the registration goes before the memory, which nobody touches while an
            // operation is under way.
            self.registered = Some(unsafe { self.domain.register(whole, access)? });
        }
        Ok(carrier)
    }

    /// The name of its domain.
    pub(super) fn domain_name(&self) -> &str {
        self.bound.domain_name()
    }

    /// Whether contents are made and checked from now on. Both sides have to say the same.
    pub(super) fn set_verify(&mut self, verify: bool) {
        self.verify = verify;
    }

    fn desc(&self) -> MrDesc {
        self.registered
            .as_ref()
            .map_or(MrDesc::NONE, |mr| mr.desc())
    }

    /// One more poll has found nothing.
    #[cold]
    fn look_after(&self, wait: &mut Wait) -> Result<()> {
        if self.common.gone.load(Ordering::Relaxed) {
            return Err(Failure::new("the other side is gone"));
        }
        match wait.is_over(self.common.patience) {
            true => Err(Failure::new(format!(
                "a thread got no message for {} s",
                self.common.patience.as_secs()
            ))),
            false => Ok(()),
        }
    }

    /// Reads a completion if there is one.
    #[inline]
    fn poll(&self, wait: &mut Wait, may_sleep: bool) -> Result<Option<Completion>> {
        let mut read = [Completion::BLANK; 1];
        let sleeps = may_sleep && self.common.block;
        let found = match sleeps {
            false => self.bound.cq.read(&mut read),
            true => self.bound.cq.sread(&mut read, Some(CHECK_EVERY)),
        };
        match found {
            Ok(1..) => Ok(Some(read[0])),
            Ok(0) | Err(OpError::Again) => {
                if wait.found_nothing(sleeps) {
                    self.look_after(wait)?;
                }
                Ok(None)
            }
            Err(error) => Err(self.bound.failure(error, |_| "send or receive")),
        }
    }

    /// Posts an operation, and waits for its completion.
    #[inline]
    fn complete(&self, post: impl Fn() -> std::result::Result<(), OpError>) -> Result<Completion> {
        let mut wait = Wait::default();
        loop {
            match post() {
                Ok(()) => break,
                Err(OpError::Again) => {
                    // Reading drives the endpoint. Nothing else of this thread's is under way that
                    // could complete.
                    if self.poll(&mut wait, false)?.is_some() {
                        return Err(Failure::new("an operation completed that was not posted"));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        let mut wait = Wait::default();
        loop {
            if let Some(completion) = self.poll(&mut wait, true)? {
                return Ok(completion);
            }
        }
    }
}

impl Party for Station {
    type Error = Failure;

    #[inline]
    fn send(&mut self) -> Result<()> {
        let size = self.common.size;
        if self.verify {
            pattern::fill(&mut self.mapped[..size], self.sent, self.common.side);
        }
        self.sent += 1;
        let op = SendOp {
            kind: MsgKind::Tagged,
            dest: self.peer,
            tag: TAG,
            data: 0,
            desc: self.desc(),
            context: 0,
            flags: Flags::COMPLETION,
        };
        let message = [IoBuf::new(self.mapped.as_ptr(), size)];
        // SAFETY: the memory stays, and is not touched before the operation is over, for which this
        // waits.
        self.complete(|| unsafe { self.bound.endpoint.send(&op, &message) })?;
        Ok(())
    }

    #[inline]
    fn receive(&mut self) -> Result<()> {
        let (size, at) = (self.common.size, apart(self.common.size));
        let op = RecvOp {
            kind: MsgKind::Tagged,
            src: self.peer,
            tag: TAG,
            ignore: 0,
            desc: self.desc(),
            context: 0,
            flags: Flags::COMPLETION,
        };
        let buffer = [IoBuf::new(self.mapped[at..].as_mut_ptr(), size)];
        // SAFETY: as in `send`.
        let came = self.complete(|| unsafe { self.bound.endpoint.recv(&op, &buffer) })?;
        let number = self.received;
        self.received += 1;
        if came.len != size {
            let came = came.len;
            return Err(Failure::new(format!(
                "damaged data: message {number} of {size} bytes: {came} bytes came"
            )));
        }
        if self.verify {
            let theirs = match self.common.side {
                Direction::There => Direction::Back,
                Direction::Back => Direction::There,
            };
            pattern::check(&self.mapped[at..at + size], number, theirs).map_err(|damage| {
                Failure::new(format!("damaged data: message {number}: {damage}"))
            })?;
        }
        Ok(())
    }

    fn thread_ended() -> Failure {
        Failure::new("a thread ended that should not have")
    }
}

fn apart(size: usize) -> usize {
    size.max(1).next_multiple_of(APART)
}
