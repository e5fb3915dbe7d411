//! The small values that every object passes around: fabric addresses, buffers, receive and send operations.

use crate::flags::Flags;

/// A peer's address as an address vector hands it out (`fi_addr_t`).
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FiAddr(pub u64);

impl FiAddr {
    /// Any source, where a receive names a source (`FI_ADDR_UNSPEC`).
    pub const UNSPEC: Self = Self(u64::MAX);
    /// No address: an insertion that failed, or a source that is not in the address vector
    /// (`FI_ADDR_NOTAVAIL`; libfabric gives both the same number).
    pub const NOTAVAIL: Self = Self(u64::MAX);

    /// Whether this is an address at all.
    #[inline]
    pub const fn is_some(self) -> bool {
        self.0 != u64::MAX
    }
}

impl std::fmt::Debug for FiAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_some() {
            write!(f, "fi_addr {:#x}", self.0)
        } else {
            f.write_str("fi_addr none")
        }
    }
}

/// A piece of memory of the application: an address and a length in bytes, not a reference, for a device or
/// another process may be writing to it.
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

/// Sum of the lengths of a scatter-gather list, in bytes; the largest number there is when it would be more.
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
}

impl MsgKind {
    /// What a completion of a receive of this kind carries in its flags.
    #[inline]
    pub const fn recv_flags(self) -> Flags {
        match self {
            Self::Msg => Flags::MSG.union(Flags::RECV),
            Self::Tagged => Flags::TAGGED.union(Flags::RECV),
        }
    }

    /// What a completion of a send of this kind carries in its flags.
    #[inline]
    pub const fn send_flags(self) -> Flags {
        match self {
            Self::Msg => Flags::MSG.union(Flags::SEND),
            Self::Tagged => Flags::TAGGED.union(Flags::SEND),
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
    /// Memory descriptor of the buffers ([`Mr::desc`](crate::fabric::Mr::desc)), 0 for none.
    pub desc: u64,
    /// The application's context, returned in the completion.
    pub context: u64,
    /// `COMPLETION`, `INJECT`, `REMOTE_CQ_DATA`, `MORE`, `FENCE` and the completion levels count here (fi_endpoint(3)). With
    /// `DELIVERY_COMPLETE` the send completes when the message stands in the receive's buffer, or was dropped by the receiver;
    /// with `FENCE` it starts when all earlier ones to the same peer are complete.
    pub flags: Flags,
}
