//! Eager messages in several packets, for lanes whose packets are smaller than the message.
//!
//! The first packet has the envelope, the message's length and its first bytes; each other one has
//! the offset of its bytes. The packets of a message are numbered in a row, with no other message
//! between them, so the receiver joins them without a table ([`crate::fragmentation`]).

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::{
    DataEnvelope, DataPacket, EAGER_FIRST, EAGER_PART, Header, MAX_HEADER_BYTES, RawHeader,
    WireError,
};

/// Maximum size of the headers before the bytes of a first packet.
pub const MAX_FIRST_HEADER_BYTES: usize = MAX_HEADER_BYTES + size_of::<U32>();

impl Header {
    /// Writes what precedes the first `part_bytes` of a message of `total_bytes`, which the caller
    /// puts right behind it. Returns its length in bytes. `part_bytes` is not 0 and less than
    /// `total_bytes`: a message in one packet has [`Header::write_eager`].
    #[inline]
    pub fn write_first(
        &self,
        envelope: &DataEnvelope,
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

    /// Writes the header of `part_bytes`, not 0, that go to `offset_bytes`, not 0, of the message
    /// begun last. Returns its length in bytes.
    #[inline]
    pub fn write_fragment(
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
) -> Result<DataPacket<'a>, WireError> {
    let (total, part) = U32::ref_from_prefix(body).map_err(|_| WireError::Length)?;
    let total_bytes = total.get();
    if part.is_empty() || part.len() as u64 >= u64::from(total_bytes) {
        return Err(WireError::Field);
    }
    Ok(DataPacket::EagerFirst {
        envelope: raw.envelope(cq_data)?,
        total_bytes,
        part,
    })
}

/// Reads a further packet of a message.
pub(super) fn parse_fragment<'a>(
    raw: &RawHeader,
    body: &'a [u8],
) -> Result<DataPacket<'a>, WireError> {
    let offset_bytes = u32::try_from(raw.tag.get()).map_err(|_| WireError::Field)?;
    if raw.flags != 0 || offset_bytes == 0 || body.is_empty() {
        return Err(WireError::Field);
    }
    Ok(DataPacket::EagerPart {
        offset_bytes,
        part: body,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::SessionId;
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            session: SessionId(0x0403_0201),
            sequence: 0x0807_0605,
            credit: 0x1211,
        }
    }

    fn first(envelope: &DataEnvelope, total_bytes: u32, part: &[u8]) -> Vec<u8> {
        let mut out = [0; MAX_FIRST_HEADER_BYTES];
        let length = header().write_first(envelope, total_bytes, part.len() as u32, &mut out);
        [&out[..length], part].concat()
    }

    fn further(offset_bytes: u32, part: &[u8]) -> Vec<u8> {
        let mut out = [0; MAX_HEADER_BYTES];
        let length = header().write_fragment(offset_bytes, part.len() as u32, &mut out);
        [&out[..length], part].concat()
    }

    /// The layouts of docs/wire-protocol.md, byte by byte.
    #[test]
    fn layouts_are_as_documented() {
        let envelope = DataEnvelope {
            tag: Some(0x28),
            cq_data: Some(0x38),
            part: None,
        };
        let expected = [
            9, 3, 0x11, 0x12, 1, 2, 3, 4, 5, 6, 7, 8, 6, 0, 0, 0, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x38,
            0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, b'h', b'i',
        ];
        assert_eq!(first(&envelope, 5, b"hi"), expected);
        let expected = [
            10, 0, 0x11, 0x12, 1, 2, 3, 4, 5, 6, 7, 8, 3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, b'y',
            b'o', b'u',
        ];
        assert_eq!(further(2, b"you"), expected);
    }

    #[test]
    fn impossible_fragments_are_refused() {
        let none = DataEnvelope::default();
        let mut whole = first(&none, 3, b"ab");
        whole[24] = 2; // the part is all of the message
        assert_eq!(DataPacket::parse(&whole), Err(WireError::Field));
        let mut empty = first(&none, 3, b"ab");
        empty.truncate(28);
        empty[12] = 4;
        assert_eq!(DataPacket::parse(&empty), Err(WireError::Field));
        empty.truncate(26);
        empty[12] = 2;
        assert_eq!(DataPacket::parse(&empty), Err(WireError::Length));
        for (at, value) in [(16, 0), (20, 1), (1, 1)] {
            let mut bytes = further(7, b"ab");
            bytes[at] = value;
            assert_eq!(
                DataPacket::parse(&bytes),
                Err(WireError::Field),
                "byte {at}"
            );
        }
    }

    proptest! {
        #[test]
        fn written_values_are_read_back(
            (tag, cq_data) in any::<(Option<u64>, Option<u64>)>(),
            rest in 1..u32::MAX / 2,
            part in proptest::collection::vec(any::<u8>(), 1..40),
        ) {
            let envelope = DataEnvelope { tag, cq_data, part: None };
            let total_bytes = part.len() as u32 + rest;
            let packet = DataPacket::EagerFirst { envelope, total_bytes, part: &part };
            let bytes = first(&envelope, total_bytes, &part);
            prop_assert_eq!(DataPacket::parse(&bytes), Ok((header(), packet)));
            let packet = DataPacket::EagerPart { offset_bytes: rest, part: &part };
            let bytes = further(rest, &part);
            prop_assert_eq!(DataPacket::parse(&bytes), Ok((header(), packet)));
        }

        /// A sound packet with any byte of its header changed is refused, or is printed back to the
        /// same bytes.
        #[test]
        fn damage_is_judged(kind in prop::sample::select(&[EAGER_FIRST, EAGER_PART]), at in 1..32usize, value in any::<u8>()) {
            let mut bytes = match kind {
                EAGER_FIRST => first(&DataEnvelope { tag: Some(1), cq_data: None, part: None }, 9, b"abcdefg"),
                _ => further(3, b"abcdefgh"),
            };
            bytes[at] = value;
            if let Ok((read, packet)) = DataPacket::parse(&bytes) {
                prop_assert!(packet.is_numbered());
                let mut out = [0; MAX_FIRST_HEADER_BYTES];
                let mut head = [0; MAX_HEADER_BYTES];
                let printed = match packet {
                    DataPacket::EagerFirst { envelope, total_bytes, part } => {
                        let length = read.write_first(&envelope, total_bytes, part.len() as u32, &mut out);
                        [&out[..length], part].concat()
                    }
                    DataPacket::EagerPart { offset_bytes, part } => {
                        let length = read.write_fragment(offset_bytes, part.len() as u32, &mut head);
                        [&head[..length], part].concat()
                    }
                    other => panic!("{other:?}"),
                };
                prop_assert_eq!(printed, bytes);
            }
        }
    }
}
