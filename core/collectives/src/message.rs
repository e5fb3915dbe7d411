//! Messages of collective operations, with their memory.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;

/// Memory of messages.
pub trait MessageMemory: Sized {
    /// New memory with this number of bytes.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there is none.
    fn allocate(len: usize) -> Result<Self, Errno>;

    /// The bytes.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl MessageMemory for Box<[u8]> {
    fn allocate(len: usize) -> Result<Self, Errno> {
        Ok(vec![0; len].into())
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// A tagged message that an endpoint sends or receives.
#[derive(Debug)]
pub struct Message<M> {
    /// Its number.
    pub number: u64,
    /// It is sent. Otherwise it is received.
    pub sends: bool,
    /// The receiver, or the sender: `FI_ADDR_UNSPEC` for any.
    pub peer: FiAddr,
    /// The tag.
    pub tag: u64,
    /// Bits of the tag that a receive does not compare.
    pub ignore: u64,
    /// It ends when it is received (`FI_DELIVERY_COMPLETE`).
    pub is_probe: bool,
    /// The bytes that are sent, or the most that are received: the first ones of the memory.
    pub len: usize,
    /// The memory.
    pub memory: M,
}
