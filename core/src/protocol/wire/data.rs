//! Data packets: messages and what belongs to them, on a lane. The header is 24 bytes, 32 with CQ data.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{SessionId, WireError};

/// Size of the header without CQ data, in bytes.
pub const HEADER_BYTES: usize = size_of::<RawHeader>();

/// Size of the largest header, in bytes.
pub const MAX_HEADER_BYTES: usize = HEADER_BYTES + size_of::<u64>();

/// Segments that a rendezvous request can name.
pub const MAX_SEGMENTS: usize = 16;

mod parts;

pub use parts::MAX_FIRST_HEADER_BYTES;

/// Size of the largest packet that is not eager, in bytes.
pub const MAX_RTS_BYTES: usize =
    MAX_HEADER_BYTES + size_of::<RawRts>() + MAX_SEGMENTS * size_of::<RawSegment>();

/// Receive buffers must hold at least this, in bytes: every packet without payload fits.
pub const MIN_RECEIVE_BYTES: u32 = 512;

const _: () = assert!(HEADER_BYTES == 24 && MAX_RTS_BYTES <= MIN_RECEIVE_BYTES as usize);

/// What every data packet starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The session, as the receiver of the packet names it.
    pub session: SessionId,
    /// Eager, Rts, Fin: number of the packet in the session, from 0, modulo 2³². Credit: the number that the next of
    /// those will have. Ack: the number that the sender of the Ack expects next.
    pub sequence: u32,
    /// Credit returned so far in this session, in units, modulo 2¹⁶ ([`crate::protocol::credit`]).
    pub credit: u16,
}

/// What tells a message apart at the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope {
    /// The tag, `None` for an untagged message.
    pub tag: Option<u64>,
    /// CQ data of the sender, if it gave any.
    pub cq_data: Option<u64>,
}

/// A data packet, borrowed from the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// A whole message.
    Eager {
        /// What to match.
        envelope: Envelope,
        /// The message.
        payload: &'a [u8],
    },
    /// The start of a message that takes several packets.
    EagerFirst {
        /// What to match.
        envelope: Envelope,
        /// Length of the message in bytes.
        total_bytes: u32,
        /// Its first bytes, not none and not all.
        part: &'a [u8],
    },
    /// More of the message begun last.
    EagerPart {
        /// Where in the message it goes, in bytes; not 0.
        offset_bytes: u32,
        /// The bytes, not none.
        part: &'a [u8],
    },
    /// A message to be fetched by the receiver.
    Rts {
        /// What to match.
        envelope: Envelope,
        /// Where it is.
        request: Request<'a>,
    },
    /// The receiver is done with a message that it had to fetch.
    Fin {
        /// The sender's operation, as given in [`Request::op`].
        op: u64,
        /// How it went.
        status: FinStatus,
    },
    /// Nothing but the credit in the header. Not numbered.
    Credit,
    /// Nothing but the header: all below [`Header::sequence`] has arrived. Not numbered.
    Ack,
}

/// A rendezvous request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The sender's operation, to be named in the Fin.
    pub op: u64,
    /// Length of the message in bytes: the sum of the segments' lengths.
    pub total_bytes: u64,
    segments: &'a [RawSegment],
}

/// Remote memory that holds a part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Remote virtual address of its first byte.
    pub address: u64,
    /// Its length in bytes; not 0.
    pub length_bytes: u64,
    /// Remote key of the region that holds it.
    pub rkey: u32,
}

/// How a message ended at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum FinStatus {
    /// Taken. (Truncation is an error of the receiver alone.)
    Ok = 0,
    /// Discarded or cancelled by the receiver.
    Cancelled = 1,
    /// The receiver could not read the sender's memory.
    ReadFailed = 2,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    kind: u8,
    flags: u8,
    credit: U16,
    session: U32,
    sequence: U32,
    /// Bytes that follow the header and the CQ data.
    length_bytes: U32,
    tag: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawRts {
    op: U64,
    total_bytes: U64,
}

#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
struct RawSegment {
    address: U64,
    length_bytes: U64,
    rkey: U32,
    reserved: U32,
}

const EAGER: u8 = 1;
const RTS: u8 = 2;
const FIN: u8 = 3;
const CREDIT: u8 = 4;
const ACK: u8 = 5;

const TAGGED: u8 = 1 << 0;
const CQ_DATA: u8 = 1 << 1;

impl Header {
    /// Writes the header of an eager message whose `payload_bytes` the caller puts, or gathers, right behind it.
    /// Returns the header's length in bytes: [`HEADER_BYTES`] or [`MAX_HEADER_BYTES`].
    #[inline]
    pub fn write_eager(
        &self,
        envelope: &Envelope,
        payload_bytes: u32,
        out: &mut [u8; MAX_HEADER_BYTES],
    ) -> usize {
        self.write(
            EAGER,
            envelope.flags(),
            envelope.tag.unwrap_or(0),
            payload_bytes,
            envelope.cq_data,
            out,
        )
    }

    /// Writes a rendezvous request; returns its length in bytes.
    ///
    /// # Errors
    /// [`WireError::Field`] for more than [`MAX_SEGMENTS`] segments, an empty one, one that wraps around the end of
    /// memory, or a total that overflows.
    pub fn write_rts(
        &self,
        envelope: &Envelope,
        op: u64,
        segments: &[Segment],
        out: &mut [u8; MAX_RTS_BYTES],
    ) -> Result<usize, WireError> {
        if segments.len() > MAX_SEGMENTS {
            return Err(WireError::Field);
        }
        let mut raw = [RawSegment::new_zeroed(); MAX_SEGMENTS];
        for (raw, segment) in raw.iter_mut().zip(segments) {
            raw.address = segment.address.into();
            raw.length_bytes = segment.length_bytes.into();
            raw.rkey = segment.rkey.into();
        }
        let raw = &raw[..segments.len()];
        let rts = RawRts {
            op: op.into(),
            total_bytes: total_bytes(raw).ok_or(WireError::Field)?.into(),
        };
        let body_bytes = size_of::<RawRts>() + size_of_val(raw);

        let mut head = [0; MAX_HEADER_BYTES];
        let tag = envelope.tag.unwrap_or(0);
        let at = self.write(
            RTS,
            envelope.flags(),
            tag,
            body_bytes as u32,
            envelope.cq_data,
            &mut head,
        );
        out[..at].copy_from_slice(&head[..at]);
        let (fixed, rest) = out[at..].split_at_mut(size_of::<RawRts>());
        fixed.copy_from_slice(rts.as_bytes());
        rest[..size_of_val(raw)].copy_from_slice(raw.as_bytes());
        Ok(at + body_bytes)
    }

    /// Writes a Fin for the peer's operation `op`; returns its length in bytes.
    pub fn write_fin(&self, op: u64, status: FinStatus, out: &mut [u8; MAX_HEADER_BYTES]) -> usize {
        let mut head = [0; MAX_HEADER_BYTES];
        let at = self.write(FIN, 0, op, size_of::<u32>() as u32, None, &mut head);
        head[at..at + size_of::<u32>()].copy_from_slice(&(status as u32).to_le_bytes());
        *out = head;
        at + size_of::<u32>()
    }

    /// Writes a Credit; returns its length in bytes.
    pub fn write_credit(&self, out: &mut [u8; MAX_HEADER_BYTES]) -> usize {
        self.write(CREDIT, 0, 0, 0, None, out)
    }

    /// Writes an Ack; returns its length in bytes.
    pub fn write_ack(&self, out: &mut [u8; MAX_HEADER_BYTES]) -> usize {
        self.write(ACK, 0, 0, 0, None, out)
    }

    #[inline]
    fn write(
        &self,
        kind: u8,
        flags: u8,
        tag: u64,
        length_bytes: u32,
        cq_data: Option<u64>,
        out: &mut [u8; MAX_HEADER_BYTES],
    ) -> usize {
        let raw = RawHeader {
            kind,
            flags,
            credit: self.credit.into(),
            session: self.session.0.into(),
            sequence: self.sequence.into(),
            length_bytes: length_bytes.into(),
            tag: tag.into(),
        };
        out[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
        let Some(cq_data) = cq_data else {
            return HEADER_BYTES;
        };
        out[HEADER_BYTES..].copy_from_slice(&cq_data.to_le_bytes());
        MAX_HEADER_BYTES
    }
}

impl<'a> Packet<'a> {
    /// Reads the packet that fills `bytes`, as long as the completion says.
    ///
    /// # Errors
    /// [`WireError`] but for `Magic` and `Version`, which data packets do not carry.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<(Header, Packet<'a>), WireError> {
        let (raw, rest) = RawHeader::ref_from_prefix(bytes).map_err(|_| WireError::Length)?;
        let header = Header {
            session: SessionId(raw.session.get()),
            sequence: raw.sequence.get(),
            credit: raw.credit.get(),
        };
        let (cq_data, body) = if raw.flags & CQ_DATA != 0 {
            let (cq_data, body) = U64::read_from_prefix(rest).map_err(|_| WireError::Length)?;
            (Some(cq_data.get()), body)
        } else {
            (None, rest)
        };
        if body.len() as u64 != u64::from(raw.length_bytes.get()) {
            return Err(WireError::Length);
        }
        let packet = match raw.kind {
            EAGER => Packet::Eager {
                envelope: raw.envelope(cq_data)?,
                payload: body,
            },
            parts::EAGER_FIRST => parts::parse_first(raw, cq_data, body)?,
            parts::EAGER_PART => parts::parse_part(raw, body)?,
            RTS => Packet::Rts {
                envelope: raw.envelope(cq_data)?,
                request: Request::parse(body)?,
            },
            FIN if raw.flags == 0 => Packet::Fin {
                op: raw.tag.get(),
                status: FinStatus::parse(body)?,
            },
            CREDIT if raw.is_bare() => Packet::Credit,
            ACK if raw.is_bare() => Packet::Ack,
            FIN | CREDIT | ACK => return Err(WireError::Field),
            other => return Err(WireError::Kind(other)),
        };
        Ok((header, packet))
    }

    /// Whether the packet takes a sequence number of its session.
    #[must_use]
    pub fn is_numbered(&self) -> bool {
        !matches!(self, Packet::Credit | Packet::Ack)
    }
}

impl<'a> Request<'a> {
    fn parse(body: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, rest) = RawRts::ref_from_prefix(body).map_err(|_| WireError::Length)?;
        let segments = <[RawSegment]>::ref_from_bytes(rest).map_err(|_| WireError::Length)?;
        if segments.len() > MAX_SEGMENTS
            || segments.iter().any(|segment| segment.reserved.get() != 0)
            || total_bytes(segments) != Some(fixed.total_bytes.get())
        {
            return Err(WireError::Field);
        }
        Ok(Request {
            op: fixed.op.get(),
            total_bytes: fixed.total_bytes.get(),
            segments,
        })
    }

    /// The segments, in the order of the message; none for an empty message.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = Segment> + use<'a> {
        self.segments.iter().map(|raw| Segment {
            address: raw.address.get(),
            length_bytes: raw.length_bytes.get(),
            rkey: raw.rkey.get(),
        })
    }
}

impl Envelope {
    fn flags(&self) -> u8 {
        let tagged = if self.tag.is_some() { TAGGED } else { 0 };
        let cq_data = if self.cq_data.is_some() { CQ_DATA } else { 0 };
        tagged | cq_data
    }
}

impl RawHeader {
    #[inline]
    fn envelope(&self, cq_data: Option<u64>) -> Result<Envelope, WireError> {
        let tagged = self.flags & TAGGED != 0;
        if self.flags & !(TAGGED | CQ_DATA) != 0 || !tagged && self.tag.get() != 0 {
            return Err(WireError::Field);
        }
        Ok(Envelope {
            tag: tagged.then(|| self.tag.get()),
            cq_data,
        })
    }

    fn is_bare(&self) -> bool {
        self.flags == 0 && self.tag.get() == 0 && self.length_bytes.get() == 0
    }
}

impl FinStatus {
    fn parse(body: &[u8]) -> Result<Self, WireError> {
        match U32::read_from_bytes(body)
            .map_err(|_| WireError::Length)?
            .get()
        {
            0 => Ok(FinStatus::Ok),
            1 => Ok(FinStatus::Cancelled),
            2 => Ok(FinStatus::ReadFailed),
            _ => Err(WireError::Field),
        }
    }
}

/// The sum of the lengths, if no segment is empty or wraps around and the sum fits.
fn total_bytes(segments: &[RawSegment]) -> Option<u64> {
    segments.iter().try_fold(0u64, |sum, segment| {
        let length = segment.length_bytes.get();
        segment
            .address
            .get()
            .checked_add(length)
            .filter(|_| length != 0)?;
        sum.checked_add(length)
    })
}

#[cfg(test)]
mod tests;
