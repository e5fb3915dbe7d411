//! The private data of the connection manager's service ID resolution: the request names a service,
//! the reply carries the native address of the endpoint that listens there.
//!
//! The connection manager fills private data up with zeros; the parser ignores the bytes beyond
//! ours.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{VERSION, WireError};
use ferrofabric_contracts::addr::{NATIVE_LEN, NativeAddr};
use ferrofabric_contracts::listed_enum;

/// Size of a question in bytes.
pub const QUESTION_BYTES: usize = size_of::<RawQuestion>();

/// Size of an answer in bytes.
pub const ANSWER_BYTES: usize = QUESTION_BYTES + NATIVE_LEN;

/// Private data that a request has room for, in bytes: the standard's 216 (IBTA 1.5 §12.11.1.1), of
/// which rdma_cm takes 36.
pub const REQUEST_ROOM: usize = 180;

/// Private data that a reply has room for, in bytes (IBTA 1.5 §12.11.1.2).
pub const REPLY_ROOM: usize = 136;

const _: () = assert!(QUESTION_BYTES <= REQUEST_ROOM && ANSWER_BYTES <= REPLY_ROOM);

const MAGIC: [u8; 4] = *b"FFn\x01";

listed_enum! {
    /// The kind of the endpoint that listens, or is looked for. One kind can not talk to the other.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ServiceKind: u8 {
        /// Reliable messages.
        Rdm = 1,
        /// Datagrams.
        Dgram = 2,
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawQuestion {
    magic: [u8; 4],
    version: u8,
    service: u8,
    reserved: U16,
}

impl ServiceKind {
    /// The question for an endpoint of this kind.
    #[must_use]
    pub fn question(self) -> [u8; QUESTION_BYTES] {
        let raw = RawQuestion {
            magic: MAGIC,
            version: VERSION,
            service: self as u8,
            reserved: 0.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// Reads the requested service.
    ///
    /// # Errors
    ///
    /// [`WireError`]: it is not a question of ours.
    pub fn parse_question(private_data: &[u8]) -> Result<Self, WireError> {
        let (raw, _) = RawQuestion::ref_from_prefix(private_data).map_err(|_| WireError::Length)?;
        if raw.magic != MAGIC {
            return Err(WireError::Magic);
        }
        if raw.version != VERSION {
            return Err(WireError::Version(raw.version));
        }
        if raw.reserved.get() != 0 {
            return Err(WireError::Field);
        }
        Self::from_number(raw.service).ok_or(WireError::Kind(raw.service))
    }

    /// The answer of an endpoint of this kind.
    #[must_use]
    pub fn answer(self, name: &NativeAddr) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..QUESTION_BYTES].copy_from_slice(&self.question());
        bytes[QUESTION_BYTES..].copy_from_slice(&name.to_bytes());
        bytes
    }

    /// Reads the address of the endpoint that answered a request for this service.
    ///
    /// # Errors
    ///
    /// [`WireError`]: it is no answer of ours, or not to this question.
    pub fn parse_answer(self, private_data: &[u8]) -> Result<NativeAddr, WireError> {
        let service = Self::parse_question(private_data)?;
        if service != self {
            return Err(WireError::Kind(service as u8));
        }
        let name = private_data
            .get(QUESTION_BYTES..ANSWER_BYTES)
            .ok_or(WireError::Length)?;
        NativeAddr::from_bytes(name).map_err(|_| WireError::Field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAME: NativeAddr = NativeAddr {
        incarnation: 1,
        node: 2,
        shm: Some(3),
        verbs: None,
    };

    #[test]
    fn questions_and_answers_are_read_behind_padding() {
        for &service in ServiceKind::ALL {
            let mut request = [0; REQUEST_ROOM];
            request[..QUESTION_BYTES].copy_from_slice(&service.question());
            assert_eq!(ServiceKind::parse_question(&request), Ok(service));
            let mut reply = [0; REPLY_ROOM];
            reply[..ANSWER_BYTES].copy_from_slice(&service.answer(&NAME));
            assert_eq!(service.parse_answer(&reply), Ok(NAME));
        }
        assert_eq!(
            ServiceKind::Rdm.question(),
            [0x46, 0x46, 0x6e, 0x01, VERSION, 1, 0, 0]
        );
    }

    #[test]
    fn invalid_private_data_gives_its_fault() {
        let good = ServiceKind::Dgram.answer(&NAME);
        let with = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            ServiceKind::Dgram.parse_answer(&bytes)
        };
        assert_eq!(with(0, 0), Err(WireError::Magic));
        assert_eq!(with(4, 1), Err(WireError::Version(1)));
        assert_eq!(with(5, 1), Err(WireError::Kind(1)));
        assert_eq!(with(5, 3), Err(WireError::Kind(3)));
        assert_eq!(with(6, 1), Err(WireError::Field));
        assert_eq!(with(8, 0), Err(WireError::Field));
        for len in 0..ANSWER_BYTES {
            let short = ServiceKind::Dgram.parse_answer(&good[..len]);
            assert_eq!(short, Err(WireError::Length), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn hostile_private_data_never_panics(
            service in prop::sample::select(ServiceKind::ALL),
            mut bytes in prop::collection::vec(any::<u8>(), 0..=255),
            sound in 0..=ANSWER_BYTES,
        ) {
            // As much of it as it says is a sound answer.
            let sound = sound.min(bytes.len());
            bytes[..sound].copy_from_slice(&service.answer(&NAME)[..sound]);
            let question = ServiceKind::parse_question(&bytes);
            prop_assert!(sound < QUESTION_BYTES || question == Ok(service));
            for &looked_for in ServiceKind::ALL {
                if looked_for.parse_answer(&bytes).is_ok() {
                    prop_assert_eq!(question, Ok(looked_for));
                }
            }
        }
    }
}
