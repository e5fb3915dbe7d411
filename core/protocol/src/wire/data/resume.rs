//! The first packet of a lane that continues a session.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Header, MAX_NOTICE_BYTES, RESUME};
use crate::wire::WireError;

/// The session that the sender of a Resume continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resume {
    /// Name of the session; 0 for none.
    pub name: u64,
    /// The session that the receiver of this held when that one began.
    pub before: Predecessor,
}

/// The session that the other side held when ours began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Predecessor {
    /// Its name, as the other side's Resume gave it; 0 for none.
    pub name: u64,
    /// This side has surely never begun it, and taken nothing in it.
    pub never_begun: bool,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPredecessor {
    name: U64,
    never_begun: U32,
}

const _: () = assert!(size_of::<RawPredecessor>() <= MAX_NOTICE_BYTES - super::HEADER_BYTES);

impl Header {
    /// Writes a Resume; returns its length in bytes.
    pub fn write_resume(&self, resume: &Resume, out: &mut [u8; MAX_NOTICE_BYTES]) -> usize {
        let raw = RawPredecessor {
            name: resume.before.name.into(),
            never_begun: u32::from(resume.before.never_begun).into(),
        };
        self.write_notice(RESUME, resume.name, raw.as_bytes(), out)
    }
}

impl Resume {
    pub(super) fn parse(name: u64, body: &[u8]) -> Result<Self, WireError> {
        let raw = RawPredecessor::read_from_bytes(body).map_err(|_| WireError::Length)?;
        let never_begun = match raw.never_begun.get() {
            0 => false,
            1 => true,
            _ => return Err(WireError::Field),
        };
        let before = Predecessor {
            name: raw.name.get(),
            never_begun,
        };
        Ok(Resume { name, before })
    }
}
