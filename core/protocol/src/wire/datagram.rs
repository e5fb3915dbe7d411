//! Datagrams of the UD lane: a prefix of 24 bytes, then a data packet as on any lane.
//!
//! The prefix says whom the datagram is for, what has arrived, and how much credit is returned, so
//! every datagram is an acknowledgement; an Ack packet is one that has nothing else to say.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::WireError;
use super::data::{DataPacket, Header};
use ferrofabric_contracts::listed_constants;

/// Size of the prefix in bytes.
pub const PREFIX_BYTES: usize = size_of::<RawPrefix>();

/// Packets that an acknowledgement can speak of, the one expected next included: also the most that
/// a sender may have unconfirmed on the wire.
pub const SPAN: u32 = u64::BITS;

const _: () = assert!(PREFIX_BYTES == 24);

/// The acknowledgement in a datagram: the packets that have arrived at its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// All packets below this number.
    pub expected: u32,
    /// And, for each bit *i* that is set, the packet `expected + 1 + i`. The highest bit is never
    /// set: packets of one [`SPAN`] only are kept.
    pub held: u64,
}

impl Ack {
    /// The number after the highest one that it claims.
    #[must_use]
    pub fn end(&self) -> u32 {
        let span = match self.held {
            0 => 0,
            held => 1 + u64::BITS - held.leading_zeros(),
        };
        self.expected.wrapping_add(span)
    }
}

/// The prefix of a data packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramPrefix {
    /// The sender waits for an acknowledgement: do not delay it.
    pub ack_at_once: bool,
    /// Both ends know it from the handshake, and no other session has it: so what was meant for
    /// another session of that name, of a process before, is caught.
    pub cookie: u32,
    /// The acknowledgement.
    pub ack: Ack,
    /// Units of credit returned so far in this session, modulo 2³². The field of the data header is
    /// its low half at the time that the packet was first sent, and is not looked at.
    pub credit: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPrefix {
    kind: u8,
    flags: u8,
    reserved: U16,
    cookie: U32,
    held: U64,
    expected: U32,
    credit: U32,
}

/// Not the first byte of a control packet.
const DATAGRAM: u8 = 0xd1;

listed_constants! {
    /// The flags of the prefix: its second byte.
    pub const FLAGS: [u8];
    const ACK_AT_ONCE = 1 << 0;
}

impl DatagramPrefix {
    /// Writes it.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PREFIX_BYTES] {
        let raw = RawPrefix {
            kind: DATAGRAM,
            flags: if self.ack_at_once { ACK_AT_ONCE } else { 0 },
            reserved: 0.into(),
            cookie: self.cookie.into(),
            held: self.ack.held.into(),
            expected: self.ack.expected.into(),
            credit: self.credit.into(),
        };
        let mut out = [0; PREFIX_BYTES];
        out.copy_from_slice(raw.as_bytes());
        out
    }
}

/// Reads a datagram, as long as the completion says, less the 40 bytes of the global routing
/// header.
///
/// # Errors
/// [`WireError`] as of [`DataPacket::parse`]; `Magic` if it does not begin as a datagram of the UD
/// lane.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<(DatagramPrefix, Header, DataPacket<'_>), WireError> {
    let (raw, rest) = RawPrefix::ref_from_prefix(bytes).map_err(|_| WireError::Length)?;
    if raw.kind != DATAGRAM {
        return Err(WireError::Magic);
    }
    let ack = Ack {
        expected: raw.expected.get(),
        held: raw.held.get(),
    };
    if raw.flags & !ACK_AT_ONCE != 0 || raw.reserved.get() != 0 || ack.held >> (SPAN - 1) != 0 {
        return Err(WireError::Field);
    }
    let (header, packet) = DataPacket::parse(rest)?;
    if packet == DataPacket::Ack && header.sequence != ack.expected {
        return Err(WireError::Field);
    }
    let prefix = DatagramPrefix {
        ack_at_once: raw.flags & ACK_AT_ONCE != 0,
        cookie: raw.cookie.get(),
        ack,
        credit: raw.credit.get(),
    };
    Ok((prefix, header, packet))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::SessionId;
    use crate::wire::data::{DataEnvelope, MAX_HEADER_BYTES, MAX_NOTICE_BYTES};
    use proptest::prelude::*;

    fn eager(prefix: &DatagramPrefix, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            session: SessionId(1),
            sequence: 2,
            credit: 3,
        };
        let mut head = [0; MAX_HEADER_BYTES];
        let length = header.write_eager(&DataEnvelope::default(), payload.len() as u32, &mut head);
        [&prefix.to_bytes(), &head[..length], payload].concat()
    }

    /// The layout of docs/wire-protocol.md, byte by byte.
    #[test]
    fn layout_is_as_documented() {
        let prefix = DatagramPrefix {
            ack_at_once: true,
            cookie: 0x0403_0201,
            ack: Ack {
                expected: 0x2423_2221,
                held: 0x1817_1615_1413_1211,
            },
            credit: 0x3433_3231,
        };
        let expected = [
            0xd1, 1, 0, 0, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22,
            0x23, 0x24, 0x31, 0x32, 0x33, 0x34,
        ];
        assert_eq!(prefix.to_bytes(), expected);
        assert_eq!(eager(&prefix, &[0; 8]).len(), 56);
    }

    #[test]
    fn an_ack_has_one_encoding() {
        let header = Header {
            session: SessionId(1),
            sequence: 7,
            credit: 0,
        };
        let mut out = [0; MAX_NOTICE_BYTES];
        let length = header.write_ack(&mut out);
        let of = |expected| {
            let prefix = DatagramPrefix {
                ack: Ack { expected, held: 0 },
                ..DatagramPrefix::default()
            };
            parse(&[&prefix.to_bytes(), &out[..length]].concat()).map(|(prefix, ..)| prefix)
        };
        assert!(of(7).is_ok());
        assert_eq!(of(8), Err(WireError::Field));
    }

    #[test]
    fn the_end_of_an_ack_is_behind_its_highest_number() {
        let end = |held| {
            Ack {
                expected: u32::MAX,
                held,
            }
            .end()
        };
        assert_eq!((end(0), end(1), end(0b101)), (u32::MAX, 1, 3));
        assert_eq!(end(u64::MAX >> 1), 63);
    }

    proptest! {
        #[test]
        fn written_values_are_read_back(
            ack_at_once in any::<bool>(),
            (cookie, expected, credit) in any::<(u32, u32, u32)>(),
            held in 0..1u64 << 63,
            payload in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let prefix = DatagramPrefix { ack_at_once, cookie, ack: Ack { expected, held }, credit };
            let bytes = eager(&prefix, &payload);
            let (read, header, packet) = parse(&bytes).unwrap();
            prop_assert_eq!(read, prefix);
            prop_assert_eq!(header.sequence, 2);
            prop_assert_eq!(packet, DataPacket::Eager { envelope: DataEnvelope::default(), payload: &payload });
        }

        /// Any bytes, and a valid datagram with any byte changed, are refused or give a value that
        /// prints to the same bytes.
        #[test]
        fn any_bytes_are_judged(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            (at, value) in (0..PREFIX_BYTES, any::<u8>()),
        ) {
            if let Ok((prefix, ..)) = parse(&bytes) {
                prop_assert_eq!(prefix.to_bytes(), &bytes[..PREFIX_BYTES]);
            }
            for flags in 0..=u8::MAX {
                let mut flagged = eager(&DatagramPrefix::default(), b"x");
                flagged[1] = flags;
                let known = FLAGS.iter().fold(0, |all, flag| all | flag);
                prop_assert_eq!(parse(&flagged).is_ok(), flags & !known == 0);
            }
            let mut damaged = eager(&DatagramPrefix::default(), b"x");
            damaged[at] = value;
            match parse(&damaged) {
                Ok((prefix, ..)) => prop_assert_eq!(prefix.to_bytes(), &damaged[..PREFIX_BYTES]),
                Err(_) => prop_assert!(at < 4 || at == 15),
            }
        }
    }
}
