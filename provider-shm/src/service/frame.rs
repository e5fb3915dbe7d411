//! The records that two service threads exchange (`docs/shared-memory.md`, "Handshake"), all of one
//! size.

use ferrofabric_contracts::addr::NATIVE_LEN;
use ferrofabric_contracts::flags::Rights;
use ferrofabric_contracts::listed_constants;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::cma::Cookie;

const MAGIC: u32 = 0x4d48_5346;
/// Incremented with every change of the segment's layout, the slots or the handshake.
const VERSION: u16 = 15;

/// Size of a record in bytes.
pub(crate) const FRAME_LEN: usize = size_of::<Frame>();

listed_constants! {
    /// The kinds of records.
    pub(crate) const KINDS: [u8];
    /// Initiator: its address, and the endpoint that it looks for.
    pub(crate) const HELLO = 1;
    /// Acceptor: its address, or the reason for its refusal.
    pub(crate) const WELCOME = 2;
    /// Initiator: the segment's descriptor.
    pub(crate) const MAP = 3;
    /// Acceptor: the segment is mapped.
    pub(crate) const READY = 4;
}

listed_constants! {
    /// The verdicts that an answer may have.
    pub(crate) const VERDICTS: [u8];
    /// The handshake goes on.
    pub(crate) const OK = 0;
    /// A link between the two is being made, or exists: try again if none results.
    pub(crate) const BUSY = 1;
    /// The acceptor is another endpoint, or can not make the link.
    pub(crate) const REFUSED = 2;
}

listed_constants! {
    /// The flags of records.
    pub(crate) const FLAGS: [u32];
    /// The sender has registered for membarrier(2).
    pub(crate) const REGISTERED = 1;
    /// Peers may read the regions on the sender's board, whose descriptor comes with this record.
    pub(crate) const SHOWS_READ = 2;
    /// Peers may write to those regions.
    pub(crate) const SHOWS_WRITE = 4;
}

/// A record.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Frame {
    magic: u32,
    version: u16,
    /// One of [`kinds`].
    pub(crate) kind: u8,
    /// Of an answer: one of [`verdicts`].
    pub(crate) verdict: u8,
    /// Drawn by the initiator, repeated in each record.
    pub(crate) nonce: u64,
    /// Incarnation of the endpoint that the initiator looks for.
    pub(crate) wanted: u64,
    /// Address of the sender's cookie in its memory, 0 if the sender offers no reads.
    pub(crate) cookie_addr: u64,
    /// The bytes at that address.
    pub(crate) cookie: Cookie,
    /// Some of [`FLAGS`]: `SHOWS_READ` and `SHOWS_WRITE` with `MAP` and `READY` alone.
    pub(crate) flags: u32,
    reserved: u32,
    /// Address of the sender.
    pub(crate) from: [u8; NATIVE_LEN],
}

impl Frame {
    /// The rights to the regions on the sender's board.
    pub(crate) fn board_rights(&self) -> Rights {
        let of = |flag, right| match self.flags & flag {
            0 => Rights::empty(),
            _ => right,
        };
        of(SHOWS_READ, Rights::READ) | of(SHOWS_WRITE, Rights::WRITE)
    }

    /// An empty record.
    pub(crate) fn new(kind: u8, nonce: u64, from: [u8; NATIVE_LEN]) -> Self {
        Self {
            magic: MAGIC,
            version: VERSION,
            kind,
            verdict: OK,
            nonce,
            wanted: 0,
            cookie_addr: 0,
            cookie: [0; 16],
            flags: 0,
            reserved: 0,
            from,
        }
    }

    /// Reads a record; `None` if it is not one of this version and of the expected kind.
    pub(crate) fn parse(bytes: &[u8], due: u8) -> Option<Self> {
        let frame = Self::read_from_bytes(bytes).ok()?;
        (frame.magic == MAGIC
            && frame.version == VERSION
            && frame.kind == due
            && VERDICTS.contains(&frame.verdict)
            && frame.reserved == 0)
            .then_some(frame)
    }
}

const _: () = assert!(FRAME_LEN == 120);
