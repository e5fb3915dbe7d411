//! The packets of messages that wait at their senders: the envelope, the receiver's pull, and the
//! answer to it ([`crate::envelopes`]).

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::{
    DataEnvelope, DataPacket, ENVELOPE, HEADER_BYTES, Header, MAX_HEADER_BYTES, MAX_NOTICE_BYTES,
    MAX_RTS_BYTES, MemorySegment, PULL, PULLED, PULLED_RTS, RawHeader, RawRts, UNSENT, WRITES,
    WireError,
};

const _: () = assert!(MAX_HEADER_BYTES + size_of::<RawRts>() <= MAX_NOTICE_BYTES);

impl Header {
    /// Writes the envelope of a message of `total_bytes` that waits here; returns its length in
    /// bytes.
    pub fn write_envelope(
        &self,
        envelope: &DataEnvelope,
        op: u64,
        total_bytes: u64,
        out: &mut [u8; MAX_NOTICE_BYTES],
    ) -> usize {
        let body = RawRts {
            op: op.into(),
            total_bytes: total_bytes.into(),
        };
        let mut head = [0; MAX_HEADER_BYTES];
        let at = self.write(
            ENVELOPE,
            envelope.flags(),
            envelope.tag.unwrap_or(0),
            size_of::<RawRts>() as u32,
            envelope.cq_data,
            &mut head,
        );
        out[..at].copy_from_slice(&head[..at]);
        out[at..at + size_of::<RawRts>()].copy_from_slice(body.as_bytes());
        at + size_of::<RawRts>()
    }

    /// Writes a Pull of the peer's operation `op`; returns its length in bytes.
    pub fn write_pull(&self, op: u64, receive: u64, out: &mut [u8; MAX_NOTICE_BYTES]) -> usize {
        self.write_notice(PULL, op, &receive.to_le_bytes(), out)
    }

    /// Writes the header of a pulled message, which the caller puts right behind it. Returns the
    /// header's length in bytes.
    pub fn write_pulled(
        &self,
        receive: u64,
        payload_bytes: u32,
        out: &mut [u8; MAX_HEADER_BYTES],
    ) -> usize {
        self.write(PULLED, 0, receive, payload_bytes, None, out)
    }

    /// Writes a request for a pulled message that the receiver is to read; returns its length in
    /// bytes.
    ///
    /// # Errors
    /// As [`Header::write_rts`].
    pub fn write_pulled_rts(
        &self,
        receive: u64,
        op: u64,
        segments: &[MemorySegment],
        out: &mut [u8; MAX_RTS_BYTES],
    ) -> Result<usize, WireError> {
        self.write_segments((PULLED_RTS, 0, &named(receive)), op, segments, out)
    }

    /// Writes a request for a pulled message of `total_bytes` that the sender will write; returns
    /// its length in bytes.
    pub fn write_pulled_offer(
        &self,
        receive: u64,
        op: u64,
        total_bytes: u64,
        out: &mut [u8; MAX_RTS_BYTES],
    ) -> usize {
        let head = (PULLED_RTS, WRITES, &named(receive));
        self.write_request(head, op, total_bytes, &[], out)
    }

    /// Writes an Unsent for the peer's operation `receive`; returns its length in bytes.
    pub fn write_unsent(&self, receive: u64, out: &mut [u8; MAX_NOTICE_BYTES]) -> usize {
        self.write_notice(UNSENT, receive, &[], out)
    }
}

/// The tag field names the receiver's operation.
fn named(receive: u64) -> DataEnvelope {
    DataEnvelope {
        tag: Some(receive),
        ..DataEnvelope::default()
    }
}

/// Reads an envelope.
pub(super) fn parse_envelope<'a>(
    raw: &RawHeader,
    cq_data: Option<u64>,
    body: &'a [u8],
) -> Result<DataPacket<'a>, WireError> {
    let fixed = RawRts::ref_from_bytes(body).map_err(|_| WireError::Length)?;
    Ok(DataPacket::Envelope {
        envelope: raw.envelope(cq_data)?,
        op: fixed.op.get(),
        total_bytes: fixed.total_bytes.get(),
    })
}

/// Reads a pull.
pub(super) fn parse_pull<'a>(raw: &RawHeader, body: &'a [u8]) -> Result<DataPacket<'a>, WireError> {
    let receive = U64::ref_from_bytes(body).map_err(|_| WireError::Length)?;
    Ok(DataPacket::Pull {
        op: raw.tag.get(),
        receive: receive.get(),
    })
}

/// The packet of a short pulled message has no more before the message.
pub const PULLED_HEADER_BYTES: usize = HEADER_BYTES;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::SessionId;

    /// The layouts of docs/wire-protocol.md, byte by byte.
    #[test]
    fn layouts_are_as_documented() {
        let header = Header {
            session: SessionId(0x0403_0201),
            sequence: 0x0807_0605,
            credit: 0x1211,
        };
        let envelope = DataEnvelope {
            tag: Some(0x28),
            cq_data: Some(0x38),
            part: None,
        };
        let mut out = [0; MAX_NOTICE_BYTES];
        let length = header.write_envelope(&envelope, 0x48, 5, &mut out);
        let expected = [
            11, 3, 0x11, 0x12, 1, 2, 3, 4, 5, 6, 7, 8, 16, 0, 0, 0, 0x28, 0, 0, 0, 0, 0, 0, 0,
            0x38, 0, 0, 0, 0, 0, 0, 0, 0x48, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(out[..length], expected);
        let length = header.write_pull(0x48, 0x58, &mut out);
        let expected = [
            12, 0, 0x11, 0x12, 1, 2, 3, 4, 5, 6, 7, 8, 8, 0, 0, 0, 0x48, 0, 0, 0, 0, 0, 0, 0, 0x58,
            0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(out[..length], expected);
        let mut out = [0; MAX_HEADER_BYTES];
        let length = header.write_pulled(0x58, 2, &mut out);
        let expected = [
            13, 0, 0x11, 0x12, 1, 2, 3, 4, 5, 6, 7, 8, 2, 0, 0, 0, 0x58, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(
            (length, &out[..length]),
            (PULLED_HEADER_BYTES, &expected[..])
        );
    }
}
