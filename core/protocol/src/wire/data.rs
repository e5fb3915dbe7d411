//! Data packets on a lane: messages, and the packets that serve them. The header is 24 bytes, 32
//! with CQ data.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{SessionId, WireError};
use ferrofabric_contracts::types::RemoteKind;
use ferrofabric_contracts::{listed_constants, listed_enum};

/// Size of the header without CQ data, in bytes.
pub const HEADER_BYTES: usize = size_of::<RawHeader>();

/// Size of the largest header, in bytes.
pub const MAX_HEADER_BYTES: usize = HEADER_BYTES + size_of::<u64>();

/// Segments that a rendezvous request can name.
pub const MAX_SEGMENTS: usize = 16;

mod again;
mod envelope;
mod fragments;
mod pulled;
mod resume;

pub use again::{readdress, renew_credit};
pub use fragments::MAX_FIRST_HEADER_BYTES;
pub use pulled::PULLED_HEADER_BYTES;
pub use resume::{Predecessor, Resume};

/// Size of the largest packet that is not eager, in bytes.
pub const MAX_RTS_BYTES: usize = rts_bytes(MAX_SEGMENTS);

/// Bytes of a request to send a message of this number of pieces, at most.
pub const fn rts_bytes(segments: usize) -> usize {
    MAX_HEADER_BYTES + size_of::<RawRts>() + segments * size_of::<RawSegment>()
}

/// Longest message, in bytes. Lengths have 64 bits in packets; this is the length up to which both
/// ends are tested.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 30;

/// Receive buffers must hold at least this, in bytes: every packet without payload fits.
pub const MIN_RECEIVE_BYTES: u32 = 512;

const _: () = assert!(HEADER_BYTES == 24 && MAX_RTS_BYTES <= MIN_RECEIVE_BYTES as usize);
const _: () = assert!(MAX_HEADER_BYTES <= MAX_NOTICE_BYTES);

/// The common beginning of every data packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The session, as the receiver of the packet names it.
    pub session: SessionId,
    /// Of a numbered packet: its number in the session, from 0, modulo 2³². Credit: the number that
    /// the next of those will have. Ack, Resume: the number that its sender expects next.
    pub sequence: u32,
    /// Credit returned so far in this session, in units, modulo 2¹⁶ ([`crate::credit`]).
    pub credit: u16,
}

/// The matching fields of a message: its envelope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataEnvelope {
    /// The tag, `None` for an untagged message.
    pub tag: Option<u64>,
    /// CQ data of the sender, if it gave any.
    pub cq_data: Option<u64>,
    /// The part of a one-sided operation that the message is, if it is one: then it has a tag and
    /// CQ data.
    pub part: Option<RemoteKind>,
}

/// A data packet, borrowed from the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPacket<'a> {
    /// A whole message.
    Eager {
        /// The fields to match.
        envelope: DataEnvelope,
        /// The message.
        payload: &'a [u8],
    },
    /// The start of a message that takes several packets.
    EagerFirst {
        /// The fields to match.
        envelope: DataEnvelope,
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
        /// The fields to match.
        envelope: DataEnvelope,
        /// Where it is.
        request: RendezvousRequest<'a>,
    },
    /// The receiver is done with a message that was announced to it.
    Fin {
        /// The sender's operation, as given in [`RendezvousRequest::op`].
        op: u64,
        /// How it went.
        status: FinStatus,
    },
    /// The receiver's buffer for a message that its sender writes.
    Cts(Grant),
    /// The sender has written the message.
    Done {
        /// The receiver's operation, as given in [`Grant::receive`].
        receive: u64,
    },
    /// The envelope of a message that waits at its sender.
    Envelope {
        /// The fields to match.
        envelope: DataEnvelope,
        /// The sender's operation, to be named in the Pull, or in a Fin.
        op: u64,
        /// Length of the message in bytes.
        total_bytes: u64,
    },
    /// A receive has matched an envelope: its sender is to send the message.
    Pull {
        /// The sender's operation, as given in the Envelope.
        op: u64,
        /// The receiver's operation, to be named in the answer.
        receive: u64,
    },
    /// A pulled message.
    Pulled {
        /// The receiver's operation, as given in the Pull.
        receive: u64,
        /// The message.
        payload: &'a [u8],
    },
    /// A pulled message that goes by rendezvous.
    PulledRts {
        /// The receiver's operation, as given in the Pull.
        receive: u64,
        /// Where it is.
        request: RendezvousRequest<'a>,
    },
    /// A pulled message that its sender cannot send.
    Unsent {
        /// The receiver's operation, as given in the Pull.
        receive: u64,
    },
    /// The first packet of a lane that continues a session: all below [`Header::sequence`] has
    /// arrived. Not numbered.
    Resume(Resume),
    /// Nothing but the credit in the header. Not numbered.
    Credit,
    /// Nothing but the header: all below [`Header::sequence`] has arrived. Not numbered.
    Ack,
}

/// A rendezvous request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RendezvousRequest<'a> {
    /// The sender's operation, to be named in the Fin.
    pub op: u64,
    /// Length of the message in bytes: the sum of the segments' lengths, if there are any.
    pub total_bytes: u64,
    /// The sender waits for a [`Grant`] and writes the message; there are no segments.
    pub sender_writes: bool,
    segments: &'a [RawSegment],
}

/// Where a message is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The sender's operation, as given in [`RendezvousRequest::op`].
    pub op: u64,
    /// The receiver's operation, to be named in the Done.
    pub receive: u64,
    /// Remote virtual address of the buffer.
    pub address: u64,
    /// Bytes to write, not 0: the part of the message that fits the receiver's buffer.
    pub fit_bytes: u64,
    /// Remote key of the region that holds the buffer.
    pub rkey: u32,
}

/// Remote memory that holds a part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySegment {
    /// Remote virtual address of its first byte.
    pub address: u64,
    /// Its length in bytes; not 0.
    pub length_bytes: u64,
    /// Remote key of the region that holds it.
    pub rkey: u32,
}

listed_enum! {
    /// How a message ended at its receiver.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum FinStatus: u32 {
        /// Taken. (Truncation is an error of the receiver alone.)
        Ok = 0,
        /// Discarded or cancelled by the receiver.
        Cancelled = 1,
        /// The receiver could not read the sender's memory.
        ReadFailed = 2,
    }
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

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawGrant {
    receive: U64,
    address: U64,
    fit_bytes: U64,
    rkey: U32,
    reserved: U32,
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

listed_constants! {
    /// The kinds of packets: the first byte of each.
    pub const KINDS: [u8];
    const EAGER = 1;
    const RTS = 2;
    const FIN = 3;
    const CREDIT = 4;
    const ACK = 5;
    const CTS = 6;
    const DONE = 7;
    const RESUME = 8;
    const EAGER_FIRST = 9;
    const EAGER_PART = 10;
    const ENVELOPE = 11;
    const PULL = 12;
    const PULLED = 13;
    const PULLED_RTS = 14;
    const UNSENT = 15;
}

listed_constants! {
    /// The flags of packets: the second byte of each.
    pub const FLAGS: [u8];
    const TAGGED = 1 << 0;
    const CQ_DATA = 1 << 1;
    /// Of an Rts or PulledRts: its sender will write the message.
    const WRITES = 1 << 2;
    /// The number of a part of a one-sided operation; 0 for other messages.
    const PART = 15 << 3;
}

/// Size of the largest packet without payload or segments, in bytes.
pub const MAX_NOTICE_BYTES: usize = HEADER_BYTES + size_of::<RawGrant>();

impl Header {
    /// Writes the header of an eager message whose `payload_bytes` the caller puts, or gathers,
    /// right behind it. Returns the header's length in bytes: [`HEADER_BYTES`] or
    /// [`MAX_HEADER_BYTES`].
    #[inline]
    pub fn write_eager(
        &self,
        envelope: &DataEnvelope,
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

    /// Writes a request for a message that the receiver is to read; returns its length in bytes.
    ///
    /// # Errors
    /// [`WireError::Field`] for more than [`MAX_SEGMENTS`] segments, an empty one, one that wraps
    /// around the end of memory, or a total that overflows.
    pub fn write_rts(
        &self,
        envelope: &DataEnvelope,
        op: u64,
        segments: &[MemorySegment],
        out: &mut [u8; MAX_RTS_BYTES],
    ) -> Result<usize, WireError> {
        self.write_segments((RTS, envelope.flags(), envelope), op, segments, out)
    }

    /// Writes a request for a message of `total_bytes` that the sender will write; returns its
    /// length in bytes.
    pub fn write_offer(
        &self,
        envelope: &DataEnvelope,
        op: u64,
        total_bytes: u64,
        out: &mut [u8; MAX_RTS_BYTES],
    ) -> usize {
        let head = (RTS, envelope.flags() | WRITES, envelope);
        self.write_request(head, op, total_bytes, &[], out)
    }

    fn write_segments(
        &self,
        head: (u8, u8, &DataEnvelope),
        op: u64,
        segments: &[MemorySegment],
        out: &mut [u8; MAX_RTS_BYTES],
    ) -> Result<usize, WireError> {
        if segments.len() > MAX_SEGMENTS {
            return Err(WireError::Field);
        }
        let raw = raw_segments(segments);
        let raw = &raw[..segments.len()];
        let total = total_bytes(raw).ok_or(WireError::Field)?;
        Ok(self.write_request(head, op, total, raw.as_bytes(), out))
    }

    fn write_request(
        &self,
        (kind, flags, envelope): (u8, u8, &DataEnvelope),
        op: u64,
        total_bytes: u64,
        segments: &[u8],
        out: &mut [u8; MAX_RTS_BYTES],
    ) -> usize {
        let rts = RawRts {
            op: op.into(),
            total_bytes: total_bytes.into(),
        };
        let body_bytes = size_of::<RawRts>() + segments.len();
        let tag = envelope.tag.unwrap_or(0);
        let mut head = [0; MAX_HEADER_BYTES];
        let at = self.write(
            kind,
            flags,
            tag,
            body_bytes as u32,
            envelope.cq_data,
            &mut head,
        );
        out[..at].copy_from_slice(&head[..at]);
        let (fixed, rest) = out[at..].split_at_mut(size_of::<RawRts>());
        fixed.copy_from_slice(rts.as_bytes());
        rest[..segments.len()].copy_from_slice(segments);
        at + body_bytes
    }

    /// Writes a Cts; returns its length in bytes.
    pub fn write_cts(&self, grant: &Grant, out: &mut [u8; MAX_NOTICE_BYTES]) -> usize {
        let raw = RawGrant {
            receive: grant.receive.into(),
            address: grant.address.into(),
            fit_bytes: grant.fit_bytes.into(),
            rkey: grant.rkey.into(),
            reserved: 0.into(),
        };
        self.write_notice(CTS, grant.op, raw.as_bytes(), out)
    }

    /// Writes a Done for the peer's operation `receive`; returns its length in bytes.
    pub fn write_done(&self, receive: u64, out: &mut [u8; MAX_NOTICE_BYTES]) -> usize {
        self.write_notice(DONE, receive, &[], out)
    }

    /// Writes a Fin for the peer's operation `op`; returns its length in bytes.
    pub fn write_fin(&self, op: u64, status: FinStatus, out: &mut [u8; MAX_NOTICE_BYTES]) -> usize {
        self.write_notice(FIN, op, &(status as u32).to_le_bytes(), out)
    }

    /// Writes a Credit; returns its length in bytes.
    pub fn write_credit(&self, out: &mut [u8; MAX_NOTICE_BYTES]) -> usize {
        self.write_notice(CREDIT, 0, &[], out)
    }

    /// Writes an Ack; returns its length in bytes.
    pub fn write_ack(&self, out: &mut [u8; MAX_NOTICE_BYTES]) -> usize {
        self.write_notice(ACK, 0, &[], out)
    }

    /// A packet whose tag field names an operation, or nothing.
    fn write_notice(
        &self,
        kind: u8,
        names: u64,
        body: &[u8],
        out: &mut [u8; MAX_NOTICE_BYTES],
    ) -> usize {
        let mut head = [0; MAX_HEADER_BYTES];
        let at = self.write(kind, 0, names, body.len() as u32, None, &mut head);
        out[..at].copy_from_slice(&head[..at]);
        out[at..at + body.len()].copy_from_slice(body);
        at + body.len()
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

impl<'a> DataPacket<'a> {
    /// Reads the packet that fills `bytes`, as long as the completion says.
    ///
    /// # Errors
    /// [`WireError`] but for `Magic` and `Version`, which data packets do not carry.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<(Header, DataPacket<'a>), WireError> {
        let (raw, rest) = RawHeader::ref_from_prefix(bytes).map_err(|_| WireError::Length)?;
        let (cq_data, body) = raw.body(rest)?;
        let packet = match raw.kind {
            EAGER => DataPacket::Eager {
                envelope: raw.envelope(cq_data)?,
                payload: body,
            },
            EAGER_FIRST => fragments::parse_first(raw, cq_data, body)?,
            EAGER_PART => fragments::parse_fragment(raw, body)?,
            RTS => DataPacket::Rts {
                envelope: raw.envelope(cq_data)?,
                request: RendezvousRequest::parse(body, raw.flags & WRITES != 0)?,
            },
            FIN if raw.flags == 0 => DataPacket::Fin {
                op: raw.tag.get(),
                status: FinStatus::parse(body)?,
            },
            CTS if raw.flags == 0 => DataPacket::Cts(Grant::parse(raw.tag.get(), body)?),
            DONE if raw.names_only() => DataPacket::Done {
                receive: raw.tag.get(),
            },
            ENVELOPE => pulled::parse_envelope(raw, cq_data, body)?,
            PULL if raw.flags == 0 => pulled::parse_pull(raw, body)?,
            PULLED if raw.flags == 0 => DataPacket::Pulled {
                receive: raw.tag.get(),
                payload: body,
            },
            PULLED_RTS if raw.flags & !WRITES == 0 => DataPacket::PulledRts {
                receive: raw.tag.get(),
                request: RendezvousRequest::parse(body, raw.flags & WRITES != 0)?,
            },
            UNSENT if raw.names_only() => DataPacket::Unsent {
                receive: raw.tag.get(),
            },
            RESUME if raw.flags == 0 => DataPacket::Resume(Resume::parse(raw.tag.get(), body)?),
            CREDIT if raw.is_bare() => DataPacket::Credit,
            ACK if raw.is_bare() => DataPacket::Ack,
            FIN | CTS | DONE | RESUME | CREDIT | ACK | PULL | PULLED | PULLED_RTS | UNSENT => {
                return Err(WireError::Field);
            }
            other => return Err(WireError::Kind(other)),
        };
        Ok((raw.header(), packet))
    }

    /// As [`DataPacket::parse`], of a whole eager message, which most packets are; `None`: it is
    /// something else.
    #[inline]
    #[must_use]
    pub fn parse_eager(bytes: &'a [u8]) -> Option<(Header, DataEnvelope, &'a [u8])> {
        let (raw, rest) = RawHeader::ref_from_prefix(bytes).ok()?;
        if raw.kind != EAGER {
            return None;
        }
        let (cq_data, body) = raw.body(rest).ok()?;
        Some((raw.header(), raw.envelope(cq_data).ok()?, body))
    }

    /// Whether the packet takes a sequence number of its session.
    #[must_use]
    pub fn is_numbered(&self) -> bool {
        !matches!(
            self,
            DataPacket::Credit | DataPacket::Ack | DataPacket::Resume(_)
        )
    }
}

impl<'a> RendezvousRequest<'a> {
    fn parse(body: &'a [u8], sender_writes: bool) -> Result<Self, WireError> {
        let (fixed, rest) = RawRts::ref_from_prefix(body).map_err(|_| WireError::Length)?;
        let segments = <[RawSegment]>::ref_from_bytes(rest).map_err(|_| WireError::Length)?;
        let sound = match sender_writes {
            true => segments.is_empty(),
            false => total_bytes(segments) == Some(fixed.total_bytes.get()),
        };
        if !sound
            || segments.len() > MAX_SEGMENTS
            || segments.iter().any(|segment| segment.reserved.get() != 0)
        {
            return Err(WireError::Field);
        }
        Ok(RendezvousRequest {
            op: fixed.op.get(),
            total_bytes: fixed.total_bytes.get(),
            segments,
            sender_writes,
        })
    }

    /// The segments, in the order of the message; none for an empty message.
    pub fn segments(&self) -> impl ExactSizeIterator<Item = MemorySegment> + use<'a> {
        self.segments.iter().map(|raw| MemorySegment {
            address: raw.address.get(),
            length_bytes: raw.length_bytes.get(),
            rkey: raw.rkey.get(),
        })
    }
}

impl Grant {
    fn parse(op: u64, body: &[u8]) -> Result<Self, WireError> {
        let raw = RawGrant::read_from_bytes(body).map_err(|_| WireError::Length)?;
        let fit_bytes = raw.fit_bytes.get();
        let wraps = raw.address.get().checked_add(fit_bytes).is_none();
        if wraps || fit_bytes == 0 || raw.reserved.get() != 0 {
            return Err(WireError::Field);
        }
        Ok(Grant {
            op,
            receive: raw.receive.get(),
            address: raw.address.get(),
            fit_bytes,
            rkey: raw.rkey.get(),
        })
    }
}

impl RawHeader {
    #[inline]
    fn header(&self) -> Header {
        Header {
            session: SessionId(self.session.get()),
            sequence: self.sequence.get(),
            credit: self.credit.get(),
        }
    }

    /// The CQ data and the body, of the bytes behind the header.
    #[inline]
    fn body<'a>(&self, rest: &'a [u8]) -> Result<(Option<u64>, &'a [u8]), WireError> {
        let (cq_data, body) = if self.flags & CQ_DATA != 0 {
            let (cq_data, body) = U64::read_from_prefix(rest).map_err(|_| WireError::Length)?;
            (Some(cq_data.get()), body)
        } else {
            (None, rest)
        };
        match body.len() as u64 == u64::from(self.length_bytes.get()) {
            true => Ok((cq_data, body)),
            false => Err(WireError::Length),
        }
    }

    fn is_bare(&self) -> bool {
        self.names_only() && self.tag.get() == 0
    }

    fn names_only(&self) -> bool {
        self.flags == 0 && self.length_bytes.get() == 0
    }
}

impl FinStatus {
    fn parse(body: &[u8]) -> Result<Self, WireError> {
        let number = U32::read_from_bytes(body).map_err(|_| WireError::Length)?;
        Self::from_number(number.get()).ok_or(WireError::Field)
    }
}

/// The segments, at most [`MAX_SEGMENTS`], as a packet has them.
fn raw_segments(segments: &[MemorySegment]) -> [RawSegment; MAX_SEGMENTS] {
    let mut raw = [RawSegment::new_zeroed(); MAX_SEGMENTS];
    for (raw, segment) in raw.iter_mut().zip(segments) {
        raw.address = segment.address.into();
        raw.length_bytes = segment.length_bytes.into();
        raw.rkey = segment.rkey.into();
    }
    raw
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
