//! The small values that every object passes around: fabric addresses, buffers, receive and send
//! operations.

use crate::flags::{Flags, Rights};
use crate::listed_enum;

/// A peer's address as an address vector hands it out (`fi_addr_t`).
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FiAddr(pub u64);

impl FiAddr {
    /// No such entry: an insertion that failed, or a source that is not in the address vector
    /// (`FI_ADDR_NOTAVAIL`). Named address vectors hold this number in their files.
    pub const NOTAVAIL: Self = Self(u64::MAX);
    /// No address is given: a receive that names this takes messages of any source
    /// (`FI_ADDR_UNSPEC`). libfabric has one number for this and [`FiAddr::NOTAVAIL`]; the C
    /// boundary translates.
    pub const UNSPEC: Self = Self(u64::MAX - 1);

    /// Whether this is an address: neither [`FiAddr::NOTAVAIL`] nor [`FiAddr::UNSPEC`].
    #[inline]
    pub const fn is_some(self) -> bool {
        self.0 < Self::UNSPEC.0
    }

    /// The address of receive context `index` of the endpoint that this is the address of, where
    /// the `bits` highest bits number the context (`fi_rx_addr`, fi_av(3)). With 0 bits, and of
    /// a value that is no address, it is the same; an index that the bits do not hold gives
    /// [`FiAddr::NOTAVAIL`].
    ///
    /// Our endpoints have one receive context: a send to another than 0 fails with `EADDRNOTAVAIL`.
    pub fn rx_addr(self, index: u32, bits: u32) -> Self {
        if bits == 0 || !self.is_some() {
            return self;
        }
        let free = u64::BITS.saturating_sub(bits);
        match u64::from(index).checked_shl(free) {
            Some(high) if high >> free == u64::from(index) => Self(self.0 | high),
            _ => Self::NOTAVAIL,
        }
    }
}

impl std::fmt::Debug for FiAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::NOTAVAIL => f.write_str("fi_addr not available"),
            Self::UNSPEC => f.write_str("fi_addr unspecified"),
            Self(number) => write!(f, "fi_addr {number:#x}"),
        }
    }
}

/// A piece of memory of the application: an address and a length in bytes, not a reference, for a
/// device or another process may be writing to it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoBuf {
    /// First byte.
    pub addr: usize,
    /// Length in bytes.
    pub len: usize,
}

impl IoBuf {
    /// An empty buffer.
    pub const EMPTY: Self = Self { addr: 0, len: 0 };

    /// The buffer of `len` bytes at `ptr`.
    #[inline]
    pub fn new(ptr: *const u8, len: usize) -> Self {
        Self {
            addr: ptr as usize,
            len,
        }
    }

    /// The first byte, to write through.
    #[inline]
    pub fn as_mut_ptr(self) -> *mut u8 {
        self.addr as *mut u8
    }

    /// The first byte, to read through.
    #[inline]
    pub fn as_ptr(self) -> *const u8 {
        self.addr as *const u8
    }

    /// The part from `offset` on, at most `len` bytes; empty when `offset` is beyond the end.
    #[inline]
    pub fn part(self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len);
        Self {
            addr: self.addr + offset,
            len: len.min(self.len - offset),
        }
    }
}

/// The memory descriptor of registered buffers (`fi_mr_desc`): a domain's name for a region. An
/// operation may bring any number. A number that the domain does not know counts as none.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MrDesc(u64);

impl MrDesc {
    /// No descriptor: the buffers are registered, if they have to be, by the operation.
    pub const NONE: Self = Self(0);

    /// The descriptor with this number; 0 is [`MrDesc::NONE`].
    #[inline]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Its number, 0 for none.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// Whether this is [`MrDesc::NONE`].
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// Sum of the lengths of a scatter-gather list, in bytes; the largest number there is when it would
/// be more.
#[inline]
pub fn total_len(iov: &[IoBuf]) -> usize {
    match iov {
        [one] => one.len,
        many => many.iter().fold(0, |sum, b| sum.saturating_add(b.len)),
    }
}

/// Tagged and untagged messages match apart from each other (fi_msg(3), fi_tagged(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MsgKind {
    /// `fi_send` and `fi_recv`.
    Msg,
    /// `fi_tsend` and `fi_trecv`.
    Tagged,
    /// A part of a one-sided operation: no receive matches it. Its [`SendOp`] has [`Flags::RMA`].
    Remote(RemoteKind),
}

listed_enum! {
    /// The messages that carry one-sided operations (`docs/adr/0061`), with their numbers on the
    /// wire.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum RemoteKind: u8 {
        /// Bytes for a region. The tag is the region's key, the CQ data the place in the region.
        Write = 1,
        /// As `Write`, of an operation with CQ data: a `Notice` follows once the bytes are there.
        NoticedWrite = 2,
        /// A request for bytes of a region: the number of the read and its length, eight bytes
        /// each. Tag and CQ data are those of `Write`.
        Read = 3,
        /// The bytes that were read. The tag is the number of the request; the CQ data is 0, or the
        /// number of the error for which there are no bytes.
        Reply = 4,
        /// CQ data for the target of a write, whose length is the tag.
        Notice = 5,
        /// A request for a grant of a region, for operations that a device carries out
        /// (`docs/adr/0063`). The tag is the region's key, the CQ data the number of the query.
        Query = 6,
        /// The answer to a query, whose number is the tag. The CQ data is the number of the grant,
        /// whose fields are the message; 0, and no message, where there is none.
        Grant = 7,
        /// A grant is not valid any more. The tag is its number.
        Revoke = 8,
        /// No operation uses a grant any more, or will. The tag is its number.
        Revoked = 9,
        /// A request for an atomic operation (`docs/adr/0064`), whose answer is a `Reply`. Tag and
        /// CQ data are those of `Write`.
        Atomic = 10,
        /// As `NoticedWrite`, of a write that a device may have carried out (`docs/adr/0084`): the
        /// tag is the number of the grant by which it was begun.
        WriteAgain = 11,
        /// As `Read`, of a read that a device may have carried out. The tag is that of
        /// `WriteAgain`.
        ReadAgain = 12,
    }
}

/// Requests for reads and atomic operations that an endpoint has under way at most, all peers
/// together. So no target has more of them from one peer.
pub const MAX_REQUESTS: usize = 1024;

impl MsgKind {
    /// Whether a message of this kind waits for no fence of the sender's: the peer may await it
    /// before it does what the fence waits for. These keep their order among themselves.
    pub const fn passes_fences(self) -> bool {
        use RemoteKind::{Grant, Query, Reply, Revoke, Revoked};
        matches!(self, Self::Remote(Reply | Query | Grant | Revoke | Revoked))
    }

    /// Whether this is the answer to a request.
    #[inline]
    pub const fn is_reply(self) -> bool {
        matches!(self, Self::Remote(RemoteKind::Reply))
    }

    /// Whether this has bytes for a region.
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::Remote(RemoteKind::Write | RemoteKind::NoticedWrite | RemoteKind::WriteAgain)
        )
    }

    /// Whether this is a part of a one-sided operation.
    #[inline]
    pub const fn is_part(self) -> bool {
        matches!(self, Self::Remote(_))
    }

    /// Whether the application takes a message of this kind for sent once it is injected: its own
    /// messages and the bytes of its writes. Requests and answers are injected by their endpoint.
    pub const fn is_taken_for_sent(self, flags: Flags) -> bool {
        use RemoteKind::{Notice, NoticedWrite, Write, WriteAgain};
        let is_its_own = matches!(
            self,
            Self::Msg | Self::Tagged | Self::Remote(Write | NoticedWrite | WriteAgain | Notice)
        );
        is_its_own && flags.contains(Flags::INJECT)
    }

    /// Whether a message of this kind is a request that its target answers by a
    /// [`Reply`](RemoteKind::Reply).
    #[inline]
    pub const fn is_request(self) -> bool {
        use RemoteKind::{Atomic, Read, ReadAgain};
        matches!(self, Self::Remote(Read | ReadAgain | Atomic))
    }

    /// Whether the owner may refuse a message of this kind by an answer that it has ready when the
    /// message is there ([`take_refusals`](crate::peer::PeerSrx::take_refusals)).
    #[inline]
    pub const fn is_answered(self) -> bool {
        self.is_request() || matches!(self, Self::Remote(RemoteKind::Query))
    }

    /// Whether its peer can do without it: the answer to a query, without which the peer has no
    /// grant either.
    pub const fn is_dispensable(self) -> bool {
        matches!(self, Self::Remote(RemoteKind::Grant))
    }

    /// Whether the owner has memory of its own for a message of this kind, and frees it as soon as
    /// the message is there.
    #[inline]
    pub const fn is_kept_briefly(self) -> bool {
        self.is_request() || matches!(self, Self::Remote(RemoteKind::Grant))
    }

    /// The flags in the completion of a receive of this kind. Parts have no completion.
    #[inline]
    pub const fn recv_flags(self) -> Flags {
        match self {
            Self::Tagged => Flags::TAGGED.union(Flags::RECV),
            Self::Msg | Self::Remote(_) => Flags::MSG.union(Flags::RECV),
        }
    }

    /// The flags in the completion of a send of this kind. Parts have no completion.
    #[inline]
    pub const fn send_flags(self) -> Flags {
        match self {
            Self::Tagged => Flags::TAGGED.union(Flags::SEND),
            Self::Msg | Self::Remote(_) => Flags::MSG.union(Flags::SEND),
        }
    }
}

/// One send operation, without its buffers.
#[derive(Clone, Copy, Debug)]
pub struct SendOp {
    /// Tagged or not.
    pub kind: MsgKind,
    /// The peer.
    pub dest: FiAddr,
    /// Tag; 0 for untagged messages.
    pub tag: u64,
    /// Remote CQ data, sent when `flags` has [`Flags::REMOTE_CQ_DATA`].
    pub data: u64,
    /// Memory descriptor of the buffers (`Mr::desc`).
    pub desc: MrDesc,
    /// The application's context, returned in the completion.
    pub context: u64,
    /// `COMPLETION`, `INJECT`, `REMOTE_CQ_DATA`, `MORE`, `FENCE` and the completion levels count
    /// here (fi_endpoint(3)). With `DELIVERY_COMPLETE` the send completes when the message stands
    /// in the receive's buffer, or was dropped by the receiver; with `FENCE` it starts when all
    /// earlier ones to the same peer are complete. With `COMPLETION`, `RMA` and `COLLECTIVE` it is
    /// a message of a collective operation: its completion has `COLLECTIVE`, and no counter counts
    /// it.
    pub flags: Flags,
}

/// The kinds of one-sided operations on a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RmaKind {
    /// `fi_read`.
    Read,
    /// `fi_write`.
    Write,
}

impl RmaKind {
    /// The flags in the completion of an operation of this kind.
    #[inline]
    pub const fn completion_flags(self) -> Flags {
        match self {
            Self::Read => Flags::RMA.union(Flags::READ),
            Self::Write => Flags::RMA.union(Flags::WRITE),
        }
    }

    /// The right at the target that an operation of this kind needs.
    #[inline]
    pub const fn right(self) -> Rights {
        match self {
            Self::Read => Rights::READ,
            Self::Write => Rights::WRITE,
        }
    }
}

/// A one-sided operation, without its buffers (fi_rma(3)).
#[derive(Clone, Copy, Debug)]
pub struct RmaOp {
    /// Read or write.
    pub kind: RmaKind,
    /// The peer.
    pub dest: FiAddr,
    /// The key of the region.
    pub key: u64,
    /// The place in the region: bytes from its start, or an address, as the target has chosen.
    pub place: u64,
    /// CQ data for the peer, sent when `flags` has [`Flags::REMOTE_CQ_DATA`]; of writes alone.
    pub data: u64,
    /// Memory descriptor of the local buffers.
    pub desc: MrDesc,
    /// The application's context, returned in the completion.
    pub context: u64,
    /// `COMPLETION`, `INJECT`, `REMOTE_CQ_DATA`, `MORE` and `FENCE` count here, and
    /// `DELIVERY_COMPLETE`: without it, a write may complete before its bytes are visible to the
    /// target's processor, as long as no later message of this endpoint can be seen before them.
    pub flags: Flags,
}

/// The memory at a peer that one operation reads or writes, as the peer has granted it to devices
/// (`docs/adr/0063`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedMemory {
    /// The lane that the grant is for: a number of the transport's own.
    pub lane: u64,
    /// Address of the first byte, as the peer's device has it.
    pub address: u64,
    /// The key at the peer's device.
    pub rkey: u32,
    /// The rights of the device to the memory.
    pub rights: Rights,
    /// The owner's number of the operation.
    pub number: u64,
}

/// The bit in the source of a receive that names a key. No address and no handle has that bit. The
/// sources of requests have the next one, too ([`requester`](crate::requester)).
const KEY_SOURCE: u64 = 1 << 63;
const KEY_SOURCE_MASK: u64 = 0b11 << 62;

/// The source by which receives are matched that name the key with this number.
pub fn key_source(number: u32) -> FiAddr {
    FiAddr(KEY_SOURCE | u64::from(number))
}

/// Whether a source is that of a key.
#[inline]
pub fn is_key_source(src: FiAddr) -> bool {
    src.0 & KEY_SOURCE_MASK == KEY_SOURCE
}

/// The number of the key that a source names.
pub fn key_number(src: FiAddr) -> Option<u32> {
    is_key_source(src).then_some(src.0 as u32)
}

listed_enum! {
    /// How `FiAddr` values are made, with libfabric's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub enum AvType: u32 {
        /// Opaque values with a generation inside (`FI_AV_MAP`).
        #[default]
        Map = 1,
        /// Indices from 0 (`FI_AV_TABLE`).
        Table = 2,
    }
}

/// A receive operation, without its buffers.
#[derive(Clone, Copy, Debug)]
pub struct RecvOp {
    /// Tagged or not.
    pub kind: MsgKind,
    /// The only sender to receive from, or [`FiAddr::UNSPEC`]. A receive from
    /// [`FiAddr::NOTAVAIL`] fails with `EADDRNOTAVAIL`.
    pub src: FiAddr,
    /// Tag wanted; no matter for untagged receives.
    pub tag: u64,
    /// Bits of the tag that do not count.
    pub ignore: u64,
    /// Memory descriptor of the buffer.
    pub desc: MrDesc,
    /// The application's context, returned in the completion.
    pub context: u64,
    /// `COMPLETION`, `MULTI_RECV`, `PEEK`, `CLAIM`, `DISCARD` and `AUTH_KEY` count here, the last
    /// three as operation flags. With `AUTH_KEY` the source is the handle of an authorization key
    /// of the endpoint's. With `COLLECTIVE` and no `COMPLETION` it is for a message of a collective
    /// operation: its completion has `COLLECTIVE`, and no counter counts it.
    pub flags: Flags,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: AV-3
    #[test]
    fn a_receive_context_takes_the_highest_bits() {
        let addr = FiAddr(0x0001_0000_0005);
        assert_eq!(addr.rx_addr(3, 0), addr);
        assert_eq!(addr.rx_addr(0, 4), addr);
        assert_eq!(addr.rx_addr(3, 4), FiAddr((3 << 60) | addr.0));
        assert_eq!(addr.rx_addr(1, 1), FiAddr((1 << 63) | addr.0));
        assert_eq!(addr.rx_addr(16, 4), FiAddr::NOTAVAIL);
        assert_eq!(FiAddr::NOTAVAIL.rx_addr(3, 4), FiAddr::NOTAVAIL);
        assert_eq!(FiAddr::UNSPEC.rx_addr(3, 4), FiAddr::UNSPEC);
    }

    #[test]
    fn an_unspecified_address_is_not_an_unavailable_one() {
        assert_ne!(FiAddr::UNSPEC, FiAddr::NOTAVAIL);
        for none in [FiAddr::UNSPEC, FiAddr::NOTAVAIL] {
            assert!(!none.is_some());
        }
        assert!(FiAddr(FiAddr::UNSPEC.0 - 1).is_some());
    }

    #[test]
    fn sources_of_keys_are_neither_addresses_nor_unspecified() {
        assert!(is_key_source(key_source(0)));
        assert!(!is_key_source(FiAddr::UNSPEC));
        assert!(!is_key_source(FiAddr::NOTAVAIL));
        assert!(key_source(u32::MAX).is_some());
        assert!(!is_key_source(FiAddr(0xff_ffff_ffff_ffff)));
        assert_ne!(key_source(1), key_source(2));
        assert_eq!(key_number(key_source(7)), Some(7));
        assert_eq!(key_number(FiAddr(7)), None);
    }
}
