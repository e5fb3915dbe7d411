//! Capability, operation and completion flags with libfabric's numbers (fi_getinfo(3),
//! fi_endpoint(3), fi_cq(3)), so that the C plugin passes them through untouched.

use bitflags::bitflags;

bitflags! {
    /// Capabilities of an endpoint, flags of an operation, flags of a completion: libfabric draws
    /// all from one set of 64 bits; a few high bits mean one thing as a capability and another as
    /// an operation flag.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Flags: u64 {
        /// Untagged messages.
        const MSG = 1 << 1;
        /// Remote memory access.
        const RMA = 1 << 2;
        /// Tagged messages.
        const TAGGED = 1 << 3;
        /// Atomic operations.
        const ATOMIC = 1 << 4;
        /// Multicast.
        const MULTICAST = 1 << 5;
        /// Collective operations.
        const COLLECTIVE = 1 << 6;
        /// Initiates reads.
        const READ = 1 << 8;
        /// Initiates writes.
        const WRITE = 1 << 9;
        /// Receives messages.
        const RECV = 1 << 10;
        /// Sends messages.
        const SEND = 1 << 11;
        /// Is the target of reads.
        const REMOTE_READ = 1 << 12;
        /// Is the target of writes.
        const REMOTE_WRITE = 1 << 13;
        /// A receive buffer takes several messages.
        const MULTI_RECV = 1 << 16;
        /// The message carries CQ data.
        const REMOTE_CQ_DATA = 1 << 17;
        /// More operations follow at once.
        const MORE = 1 << 18;
        /// Look for a message, do not receive it.
        const PEEK = 1 << 19;
        /// Operations may wait for a trigger.
        const TRIGGER = 1 << 20;
        /// The operation waits for the ones before it.
        const FENCE = 1 << 21;
        /// The operation reports its completion.
        const COMPLETION = 1 << 24;
        /// The buffer can be reused at return.
        const INJECT = 1 << 25;
        /// Complete when the buffer can be reused.
        const INJECT_COMPLETE = 1 << 26;
        /// Complete when the message has left for good.
        const TRANSMIT_COMPLETE = 1 << 27;
        /// Complete when the message has reached the peer's memory.
        const DELIVERY_COMPLETE = 1 << 28;
        /// Complete when the data would survive a loss of power.
        const COMMIT_COMPLETE = 1 << 30;
        /// Complete when the message has met its buffer.
        const MATCH_COMPLETE = 1 << 31;
        /// A shared-memory or other peer provider transfers for its owner.
        const PEER_TRANSFER = 1 << 36;
        /// Addresses are reported as the user's own IDs.
        const AV_USER_ID = 1 << 41;
        /// The object is opened for a peer provider.
        const PEER = 1 << 43;
        /// Accelerators start operations.
        const XPU = 1 << 44;
        /// Directed receives of tagged messages.
        const TAGGED_DIRECTED_RECV = 1 << 45;
        /// Multi-receive of tagged messages.
        const TAGGED_MULTI_RECV = 1 << 46;
        /// Device memory.
        const HMEM = 1 << 47;
        /// Receives name their source always. Before libfabric 2 the bit was `FI_VARIABLE_MSG`.
        const EXACT_DIRECTED_RECV = 1 << 48;
        /// Persistent memory.
        const RMA_PMEM = 1 << 49;
        /// A receive from a source that is not in the AV is an error that names it.
        const SOURCE_ERR = 1 << 50;
        /// Talks to peers of this node.
        const LOCAL_COMM = 1 << 51;
        /// Talks to peers of other nodes.
        const REMOTE_COMM = 1 << 52;
        /// AVs shared between processes.
        const SHARED_AV = 1 << 53;
        /// Counters count remote accesses.
        const RMA_EVENT = 1 << 56;
        /// Completions carry the source address.
        const SOURCE = 1 << 57;
        /// Receive contexts have addresses.
        const NAMED_RX_CTX = 1 << 58;
        /// Receives may name their source. As an operation flag the bit is [`Flags::CLAIM`].
        const DIRECTED_RECV = 1 << 59;
        /// Take a message that a peek has found. As a capability the bit is
        /// [`Flags::DIRECTED_RECV`].
        const CLAIM = 1 << 59;
        /// Drop the message.
        const DISCARD = 1 << 58;
        /// The address is the handle of an authorization key. As a capability the bit is
        /// [`Flags::SOURCE`].
        const AUTH_KEY = 1 << 57;
    }
}

/// The completion levels that only the receiver can report, or the target of a write.
pub const RECEIVER_LEVELS: Flags = Flags::DELIVERY_COMPLETE.union(Flags::MATCH_COMPLETE);

bitflags! {
    /// The rights of peers to memory. The bits are those of grants, boards and handles of regions
    /// (`docs/wire-protocol.md`, `docs/shared-memory.md`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Rights: u8 {
        /// Peers may read.
        const READ = 1 << 0;
        /// Peers may write.
        const WRITE = 1 << 1;
    }
}

impl Rights {
    /// The rights among libfabric's flags: `REMOTE_READ`, `REMOTE_WRITE`.
    #[must_use]
    pub const fn of(flags: Flags) -> Self {
        let read = match flags.contains(Flags::REMOTE_READ) {
            true => Self::READ,
            false => Self::empty(),
        };
        match flags.contains(Flags::REMOTE_WRITE) {
            true => read.union(Self::WRITE),
            false => read,
        }
    }

    /// libfabric's flags for these rights.
    #[must_use]
    pub const fn flags(self) -> Flags {
        let read = match self.contains(Self::READ) {
            true => Flags::REMOTE_READ,
            false => Flags::empty(),
        };
        match self.contains(Self::WRITE) {
            true => read.union(Flags::REMOTE_WRITE),
            false => read,
        }
    }
}

bitflags! {
    /// Duties of an application towards a provider, or that a provider takes over
    /// (`fi_info::mode`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Mode: u64 {
        /// The context points to memory that the provider uses during the operation.
        const CONTEXT = 1 << 59;
        /// Buffers have room for a header in front.
        const MSG_PREFIX = 1 << 58;
        /// Lists of buffers stay as they are until the operation is over.
        const ASYNC_IOV = 1 << 57;
        /// Receives with CQ data take a buffer.
        const RX_CQ_DATA = 1 << 56;
        /// Local buffers must be registered; the old form of [`MrMode::LOCAL`].
        const LOCAL_MR = 1 << 55;
        /// Completions may come without the flags that say what completed.
        const NOTIFY_FLAGS_ONLY = 1 << 54;
        /// Completion queues and counters are shared only among endpoints of equal capabilities.
        const RESTRICTED_COMP = 1 << 53;
        /// As `CONTEXT`, twice the size.
        const CONTEXT2 = 1 << 52;
        /// Messages are received in buffers of the provider.
        const BUFFERED_RECV = 1 << 51;
    }
}

bitflags! {
    /// Duties of the application in memory registration (`fi_domain_attr::mr_mode`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct MrMode: u32 {
        /// Alone: `VIRT_ADDR`, `ALLOCATED` and `PROV_KEY`, as before libfabric 1.5.
        const BASIC = 1 << 0;
        /// Alone: none of them, as before libfabric 1.5.
        const SCALABLE = 1 << 1;
        /// Local buffers must be registered.
        const LOCAL = 1 << 2;
        /// Raw keys.
        const RAW = 1 << 3;
        /// Remote addresses are virtual addresses.
        const VIRT_ADDR = 1 << 4;
        /// Memory must be allocated when registered.
        const ALLOCATED = 1 << 5;
        /// The provider chooses the key.
        const PROV_KEY = 1 << 6;
        /// The application reports changes to its page tables.
        const MMU_NOTIFY = 1 << 7;
        /// Regions are enabled after a counter is bound to them.
        const RMA_EVENT = 1 << 8;
        /// Regions are bound to endpoints.
        const ENDPOINT = 1 << 9;
        /// Device memory must be registered.
        const HMEM = 1 << 10;
        /// Buffers of collective operations must be registered.
        const COLLECTIVE = 1 << 11;
    }
}

bitflags! {
    /// The operations that keep their order (`fi_tx_attr::msg_order`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Order: u64 {
        /// Read after read.
        const RAR = 1 << 0;
        /// Read after write.
        const RAW = 1 << 1;
        /// Read after send.
        const RAS = 1 << 2;
        /// Write after read.
        const WAR = 1 << 3;
        /// Write after write.
        const WAW = 1 << 4;
        /// Write after send.
        const WAS = 1 << 5;
        /// Send after read.
        const SAR = 1 << 6;
        /// Send after write.
        const SAW = 1 << 7;
        /// Send after send.
        const SAS = 1 << 8;
        /// The bytes of one message in order (`comp_order` alone).
        const DATA = 1 << 16;
        /// As `RAR`, for RMA alone.
        const RMA_RAR = 1 << 32;
        /// As `RAW`, for RMA alone.
        const RMA_RAW = 1 << 33;
        /// As `WAR`, for RMA alone.
        const RMA_WAR = 1 << 34;
        /// As `WAW`, for RMA alone.
        const RMA_WAW = 1 << 35;
        /// As `RAR`, for atomics alone.
        const ATOMIC_RAR = 1 << 36;
        /// As `RAW`, for atomics alone.
        const ATOMIC_RAW = 1 << 37;
        /// As `WAR`, for atomics alone.
        const ATOMIC_WAR = 1 << 38;
        /// As `WAW`, for atomics alone.
        const ATOMIC_WAW = 1 << 39;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_two_of_the_flags() {
        for rights in (0..4).map(Rights::from_bits_retain) {
            assert_eq!(
                Rights::of(rights.flags() | Flags::READ | Flags::WRITE),
                rights
            );
        }
        assert_eq!(Rights::of(Flags::REMOTE_READ), Rights::READ);
        assert_eq!(Rights::all().bits(), 3);
    }
}
