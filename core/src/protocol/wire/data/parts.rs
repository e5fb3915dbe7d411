//! Eager messages in several packets, for lanes whose packets are smaller than the message.
//!
//! The first packet has the envelope, the message's length and its first bytes; each other one has where its bytes go.
//! The packets of a message are numbered in a row, with no other message between them, so that the receiver puts them
//! together without a table ([`crate::protocol::parts`]).

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::{
    EAGER_FIRST, EAGER_PART, Envelope, Header, MAX_HEADER_BYTES, Packet, RawHeader, WireError,
};

/// Size of what precedes the bytes of a first packet, at most.
pub const MAX_FIRST_HEADER_BYTES: usize = MAX_HEADER_BYTES + size_of::<U32>();

impl Header {
    /// Writes what precedes the first `part_bytes` of a message of `total_bytes`, which the caller puts right behind it.
    /// Returns its length in bytes. `part_bytes` is not 0 and less than `total_bytes`: a message in one packet has
    /// [`Header::write_eager`].
    #[inline]
    pub fn write_first(
        &self,
        envelope: &Envelope,
        total_bytes: u32,
        part_bytes: u32,
        out: &mut [u8; MAX_FIRST_HEADER_BYTES],
    ) -> usize {
        debug_assert!(part_bytes != 0 && part_bytes < total_bytes);
        let mut head = [0; MAX_HEADER_BYTES];
        let at = self.write(
            EAGER_FIRST,
            envelope.flags(),
            envelope.tag.unwrap_or(0),
            size_of::<U32>() as u32 + part_bytes,
            envelope.cq_data,
            &mut head,
        );
        out[..at].copy_from_slice(&head[..at]);
        out[at..at + size_of::<U32>()].copy_from_slice(&total_bytes.to_le_bytes());
        at + size_of::<U32>()
    }

    /// Writes the header of `part_bytes`, not 0, that go to `offset_bytes`, not 0, of the message begun last. Returns
    /// its length in bytes.
    #[inline]
    pub fn write_part(
        &self,
        offset_bytes: u32,
        part_bytes: u32,
        out: &mut [u8; MAX_HEADER_BYTES],
    ) -> usize {
        debug_assert!(part_bytes != 0 && offset_bytes != 0);
        self.write(EAGER_PART, 0, offset_bytes.into(), part_bytes, None, out)
    }
}

/// Reads the body of a first packet.
pub(super) fn parse_first<'a>(
    raw: &RawHeader,
    cq_data: Option<u64>,
    body: &'a [u8],
) -> Result<Packet<'a>, WireError> {
    let (total, part) = U32::ref_from_prefix(body).map_err(|_| WireError::Length)?;
    let total_bytes = total.get();
    if part.is_empty() || part.len() as u64 >= u64::from(total_bytes) {
        return Err(WireError::Field);
    }
    Ok(Packet::EagerFirst {
        envelope: raw.envelope(cq_data)?,
        total_bytes,
        part,
    })
}

/// Reads a further packet of a message.
pub(super) fn parse_part<'a>(raw: &RawHeader, body: &'a [u8]) -> Result<Packet<'a>, WireError> {
    let offset_bytes = u32::try_from(raw.tag.get()).map_err(|_| WireError::Field)?;
    if raw.flags != 0 || offset_bytes == 0 || body.is_empty() {
        return Err(WireError::Field);
    }
    Ok(Packet::EagerPart {
        offset_bytes,
        part: body,
    })
}
