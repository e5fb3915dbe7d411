//! The messages of collective operations, with their buffers.

use std::collections::VecDeque;

use ferrofabric_collectives::Engine;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};

/// The bit of an endpoint's token that those of collectives' messages have.
pub(super) const OWN_TOKEN: u64 = 1 << 63;

/// The length of buffers that are used again, and the number of them that are kept.
const SPARE_BYTES: usize = 256;
const SPARES: usize = 64;

#[derive(Default)]
pub(super) struct Messages {
    spare: Vec<Buffer>,
    /// Sends for which there was no room, in their order.
    waiting: VecDeque<WaitingSend>,
}

struct WaitingSend {
    message: u64,
    buffer: Buffer,
    len: usize,
    op: SendOp,
}

impl Messages {
    /// Sends a copy of some bytes, now or when there is room.
    ///
    /// # Errors
    ///
    /// Those of [`OwningEndpoint::post_send`], except `EAGAIN`.
    pub(super) fn send(
        &mut self,
        inner: &mut OwningEndpoint,
        (message, dest, tag): (u64, FiAddr, u64),
        bytes: &[u8],
        is_probe: bool,
    ) -> Result<(), Errno> {
        let mut buffer = self.buffer(bytes.len())?;
        if let Some(place) = buffer.get_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
        }
        let flags = match is_probe {
            true => Flags::DELIVERY_COMPLETE,
            false => Flags::empty(),
        };
        let send = WaitingSend {
            message,
            buffer,
            len: bytes.len(),
            op: SendOp {
                kind: MsgKind::Tagged,
                dest,
                tag,
                data: 0,
                desc: MrDesc::NONE,
                context: 0,
                flags,
            },
        };
        // Messages to a peer stay in order.
        let is_behind = self.waiting.iter().any(|other| other.op.dest == dest);
        let refused = match is_behind {
            true => Some(send),
            false => send.post(inner)?,
        };
        self.waiting.extend(refused);
        Ok(())
    }

    /// Receives a message.
    ///
    /// # Errors
    ///
    /// Those of [`OwningEndpoint::post_recv`].
    pub(super) fn receive(
        &mut self,
        inner: &mut OwningEndpoint,
        (message, src): (u64, FiAddr),
        (tag, ignore): (u64, u64),
        len: usize,
    ) -> Result<(), Errno> {
        // A message without a use has no buffer.
        let buffer = match len {
            0 => Buffer::new(0).map_err(|error| error.errno())?,
            len => self.buffer(len)?,
        };
        let op = RecvOp {
            kind: MsgKind::Tagged,
            src,
            tag,
            ignore,
            desc: MrDesc::NONE,
            context: 0,
            flags: Flags::empty(),
        };
        let posted = inner.post_recv(buffer, OWN_TOKEN | message, op);
        posted.map_err(|(error, _)| error.errno())
    }

    /// Whether there was no room for a send.
    pub(super) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Posts the sends for which there was no room.
    pub(super) fn post_waiting(&mut self, inner: &mut OwningEndpoint, engine: &mut Engine) {
        let mut refused: VecDeque<WaitingSend> = VecDeque::new();
        for send in std::mem::take(&mut self.waiting) {
            let is_behind = refused.iter().any(|other| other.op.dest == send.op.dest);
            let message = send.message;
            match is_behind {
                true => refused.push_back(send),
                false => match send.post(inner) {
                    Ok(again) => refused.extend(again),
                    Err(errno) => engine.sent(message, Err(errno)),
                },
            }
        }
        self.waiting = refused;
    }

    /// A buffer with room for a number of bytes.
    fn buffer(&mut self, len: usize) -> Result<Buffer, Errno> {
        let spare = (len <= SPARE_BYTES).then(|| self.spare.pop()).flatten();
        spare.map_or_else(
            || Buffer::new(len.max(SPARE_BYTES)).map_err(|error| error.errno()),
            Ok,
        )
    }

    /// Keeps a buffer for the next message.
    pub(super) fn keep_spare(&mut self, buffer: Buffer) {
        if buffer.len() == SPARE_BYTES && self.spare.len() < SPARES {
            self.spare.push(buffer);
        }
    }
}

impl WaitingSend {
    /// Posts it. Returns it if there is no room.
    ///
    /// # Errors
    ///
    /// Those of [`OwningEndpoint::post_send`], except `EAGAIN`.
    fn post(self, inner: &mut OwningEndpoint) -> Result<Option<Self>, Errno> {
        let Self {
            message,
            buffer,
            len,
            op,
        } = self;
        match inner.post_send(buffer, len, OWN_TOKEN | message, op) {
            Ok(()) => Ok(None),
            Err((OpError::Again, buffer)) => Ok(Some(Self {
                message,
                buffer,
                len,
                op,
            })),
            Err((OpError::Failed(errno), _)) => Err(errno),
        }
    }
}
