//! An endpoint and the one peer that it talks to, for a single thread: messages go out and come in as whole buffers, and a
//! partner that is gone ends the wait for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_core::addr::NativeAddr;
use ferrofabric_core::av::AvAttr;
use ferrofabric_core::error::OpError;
use ferrofabric_core::fabric::Domain;
use ferrofabric_core::owning::{Buffer, Done, OwningEndpoint};
use ferrofabric_core::types::FiAddr;

use crate::failure::{Failure, Result};
use crate::partner::channel::{Channel, Message};
use crate::providers::Path;

/// Polls that find nothing before the clock is looked at.
const IDLE_POLLS: u32 = 1024;

/// How often a wait makes sure that the partner is still there.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// What a message is for: the tag that it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It is what is measured.
    Data = 1,
    /// It says that data has arrived.
    Ack = 2,
}

/// The token of sends; receives have their [`Purpose`], and above it their number.
const SENT: u64 = 0;
const PURPOSE_BITS: u32 = 2;

/// Something that is over.
#[derive(Debug)]
pub(crate) enum Event {
    /// A message has left; its buffer is free.
    Sent(Buffer),
    /// A message has come.
    Received(Received),
}

/// A message that has come.
#[derive(Debug)]
pub(crate) struct Received {
    /// What it is for.
    pub(crate) purpose: Purpose,
    /// The number that its receive was posted with. Messages match receives in order, but need not be complete in order.
    pub(crate) number: u64,
    /// Where it lies, from the start.
    pub(crate) buffer: Buffer,
    /// Its length in bytes.
    pub(crate) len: usize,
}

/// An endpoint that has no peer yet.
pub(crate) struct Opened {
    domain: Arc<dyn Domain>,
    endpoint: OwningEndpoint,
}

impl Opened {
    /// Opens an endpoint on the best domain of a path.
    ///
    /// # Errors
    ///
    /// When there is none; what can not be had.
    pub(crate) fn on(path: Path) -> Result<Self> {
        let domain = path.open()?;
        let endpoint = OwningEndpoint::open(domain.as_ref(), &AvAttr::default())?;
        Ok(Self { domain, endpoint })
    }

    /// Its address, as bytes.
    pub(crate) fn address(&self) -> Vec<u8> {
        self.endpoint.name().to_bytes().to_vec()
    }

    /// The name of its domain.
    pub(crate) fn domain_name(&self) -> &str {
        &self.domain.info().domain.name
    }

    /// The link to the peer of that address, whose owner is at the other end of the channel.
    ///
    /// # Errors
    ///
    /// When the address is none.
    pub(crate) fn link(
        self,
        mut channel: Channel,
        address: &[u8],
        block: bool,
        patience: Duration,
    ) -> Result<Link> {
        let inserted = self
            .endpoint
            .av()
            .insert(address)
            .and_then(|peer| Ok((peer, self.endpoint.av().lookup(peer)?)));
        let (peer, theirs) = match inserted {
            Ok(inserted) => inserted,
            Err(error) => {
                let why = format!("the address of the partner can not be used: {error}");
                let _ = channel.send(&Message::Failed { why: why.clone() });
                return Err(Failure::new(why));
            }
        };
        let info = self.domain.info();
        Ok(Link {
            carrier: carrier(&self.endpoint.name(), &theirs),
            inject_bytes: info.tx.inject_size,
            max_bytes: info.ep.max_msg_size,
            domain: self.domain,
            endpoint: self.endpoint,
            peer,
            channel,
            block,
            patience,
            events: VecDeque::new(),
            stalls: 0,
        })
    }
}

/// What carries messages between two addresses.
fn carrier(a: &NativeAddr, b: &NativeAddr) -> &'static str {
    match a.shm.is_some() && b.shm.is_some() && a.node == b.node {
        true => "shm",
        false => "verbs",
    }
}

/// An endpoint and its peer.
pub(crate) struct Link {
    // The endpoint goes before its domain.
    endpoint: OwningEndpoint,
    domain: Arc<dyn Domain>,
    peer: FiAddr,
    channel: Channel,
    block: bool,
    patience: Duration,
    inject_bytes: usize,
    max_bytes: usize,
    carrier: &'static str,
    /// What was over while a send waited for room.
    events: VecDeque<Event>,
    /// Times that a send had to wait for room.
    stalls: u32,
}

impl Link {
    /// The way to talk to the partner beside the messages.
    pub(crate) fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// What carries the messages: `verbs` or `shm`.
    pub(crate) fn carrier(&self) -> &'static str {
        self.carrier
    }

    /// The name of the domain.
    pub(crate) fn domain_name(&self) -> &str {
        &self.domain.info().domain.name
    }

    /// What carries the messages, in words.
    pub(crate) fn route(&self) -> String {
        match (self.carrier, self.domain_name()) {
            ("shm", "shm") => "shared memory".to_owned(),
            ("shm", name) => format!("shared memory, paired with {name}"),
            (_, name) => format!("verbs device {name}"),
        }
    }

    /// Whether waits sleep.
    pub(crate) fn blocks(&self) -> bool {
        self.block
    }

    /// The longest message in bytes.
    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// A buffer for messages, registered where a device moves it.
    ///
    /// # Errors
    ///
    /// When it can not be registered.
    pub(crate) fn buffer(&self, len: usize) -> Result<Buffer> {
        let mut buffer = Buffer::new(len)?;
        // There is no registration of nothing.
        if self.carrier == "verbs" && len != 0 {
            buffer.register(self.domain.as_ref())?;
        }
        Ok(buffer)
    }

    /// Whether the sends from now on are followed by another at once, so that a device may be told of all together.
    #[inline]
    pub(crate) fn set_more(&mut self, more: bool) {
        self.endpoint.set_more(more);
    }

    /// Sends the first `len` bytes of a buffer. It comes back at once where the message was short enough to be copied, else
    /// as an [`Event::Sent`].
    ///
    /// # Errors
    ///
    /// When the message can not be sent, or the partner is gone.
    #[inline]
    pub(crate) fn send(
        &mut self,
        buffer: Buffer,
        len: usize,
        purpose: Purpose,
    ) -> Result<Option<Buffer>> {
        let tag = purpose as u64;
        if len <= self.inject_bytes {
            loop {
                match self.endpoint.tinject(&buffer[..len], self.peer, tag) {
                    Ok(()) => return Ok(Some(buffer)),
                    Err(OpError::Again) => self.make_room()?,
                    Err(error) => return Err(cannot("send", len, error)),
                }
            }
        }
        let mut buffer = buffer;
        loop {
            match self.endpoint.tsend(buffer, len, self.peer, tag, SENT) {
                Ok(()) => return Ok(None),
                Err((OpError::Again, back)) => buffer = back,
                Err((error, _)) => return Err(cannot("send", len, error)),
            }
            self.make_room()?;
        }
    }

    /// Posts a buffer to receive into, as receive number so-and-so.
    ///
    /// # Errors
    ///
    /// When it can not be posted.
    #[inline]
    pub(crate) fn post(&mut self, buffer: Buffer, purpose: Purpose, number: u64) -> Result<()> {
        let mut buffer = buffer;
        let tag = purpose as u64;
        let token = number << PURPOSE_BITS | tag;
        loop {
            let len = buffer.len();
            match self.endpoint.trecv(buffer, self.peer, tag, 0, token) {
                Ok(()) => return Ok(()),
                Err((OpError::Again, back)) => buffer = back,
                Err((error, _)) => return Err(cannot("receive", len, error)),
            }
            self.make_room()?;
        }
    }

    /// Waits for what is over next.
    ///
    /// # Errors
    ///
    /// When an operation failed, the partner is gone, or nothing came for too long.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Event> {
        if let Some(event) = self.events.pop_front() {
            return Ok(event);
        }
        self.wait()
    }

    #[inline]
    fn wait(&mut self) -> Result<Event> {
        let mut wait = Wait::default();
        loop {
            let done = match self.block {
                false => self.endpoint.poll(),
                true => self.endpoint.wait(Some(CHECK_EVERY)),
            };
            match done {
                Ok(Some(done)) => return event(done),
                Ok(None) | Err(OpError::Again) => {}
                Err(error) => return Err(error.into()),
            }
            wait.idle += 1;
            if self.block || wait.idle >= IDLE_POLLS {
                wait.idle = 0;
                self.look_after(&mut wait)?;
            }
        }
    }

    /// Waits a step for room to send; events meanwhile are kept for [`Link::next`].
    #[cold]
    fn make_room(&mut self) -> Result<()> {
        let mut wait = Wait::default();
        for _ in 0..IDLE_POLLS {
            match self.endpoint.poll() {
                Ok(Some(done)) => self.events.push_back(event(done)?),
                // Room may be there without a completion that says so: an inject has none.
                Ok(None) | Err(OpError::Again) => return self.look_after_rarely(),
                Err(error) => return Err(error.into()),
            }
        }
        self.look_after(&mut wait)
    }

    /// The partner is looked after once in many calls.
    fn look_after_rarely(&mut self) -> Result<()> {
        self.stalls = self.stalls.wrapping_add(1);
        match self.stalls % IDLE_POLLS {
            0 => self.channel.check(),
            _ => Ok(()),
        }
    }

    #[cold]
    fn look_after(&mut self, wait: &mut Wait) -> Result<()> {
        let now = Instant::now();
        let since = *wait.since.get_or_insert(now);
        if wait.checked.is_none_or(|at| now - at >= CHECK_EVERY) {
            wait.checked = Some(now);
            self.channel.check()?;
        }
        match now - since > self.patience {
            true => Err(Failure::new(format!(
                "no message for {} s, though the partner is there (--patience waits longer)",
                self.patience.as_secs()
            ))),
            false => Ok(()),
        }
    }

    /// Waits for a message on the channel; the endpoint is driven meanwhile, for the partner may still need it.
    ///
    /// # Errors
    ///
    /// When the partner fails or is gone, or an operation that was still under way fails.
    pub(crate) fn message(&mut self) -> Result<Message> {
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(message) = self.channel.try_receive()? {
                return Ok(message);
            }
            match self.endpoint.poll() {
                Ok(Some(done)) => self.events.push_back(event(done)?),
                Ok(None) | Err(OpError::Again) => self.channel.sleep(1)?,
                Err(error) => return Err(error.into()),
            }
            if Instant::now() > deadline {
                return Err(Failure::new("the partner says nothing"));
            }
        }
    }
}

#[derive(Default)]
struct Wait {
    idle: u32,
    since: Option<Instant>,
    checked: Option<Instant>,
}

#[inline]
fn event(done: Done) -> Result<Event> {
    let completion = match done.outcome {
        Ok(completion) => completion,
        Err(failed) => {
            let what = if done.token == SENT {
                "send"
            } else {
                "receive"
            };
            let (errno, why) = (failed.errno, failed.why);
            let own = match failed.prov_errno {
                0 => String::new(),
                n => format!(", the device's number for it {n}"),
            };
            return Err(Failure::new(format!(
                "a {what} failed: {errno}: {why}{own}"
            )));
        }
    };
    Ok(match done.token {
        SENT => Event::Sent(done.buffer),
        token => Event::Received(Received {
            purpose: match token & ((1 << PURPOSE_BITS) - 1) == Purpose::Ack as u64 {
                true => Purpose::Ack,
                false => Purpose::Data,
            },
            number: token >> PURPOSE_BITS,
            buffer: done.buffer,
            len: completion.len,
        }),
    })
}

#[cold]
fn cannot(doing: &str, len: usize, error: OpError) -> Failure {
    Failure::new(format!("{doing} a message of {len} bytes: {error}"))
}
