//! The small choices that domains and endpoints are described by, with libfabric's numbers.

pub use crate::addr::AddrFormat;
use crate::listed_enum;

listed_enum! {
    /// The kind of an endpoint (`fi_ep_attr::type`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub enum EpType: u32 {
        /// In hints: any.
        #[default]
        Unspec = 0,
        /// Connected.
        Msg = 1,
        /// Unreliable datagrams.
        Dgram = 2,
        /// Reliable, unconnected.
        Rdm = 3,
    }
}

listed_enum! {
    /// The party that moves operations on (fi_domain(3)).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub enum Progress: u32 {
        /// In hints: any.
        #[default]
        Unspec = 0,
        /// Nobody needs to call.
        Auto = 1,
        /// The application, by reading queues and counters.
        Manual = 2,
        /// As `Manual`, and the application serializes control calls with them too.
        ControlUnified = 3,
    }
}

listed_enum! {
    /// Whether queues and buffers are guarded against too much (fi_domain(3)).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub enum ResourceMgmt: u32 {
        /// In hints: any.
        #[default]
        Unspec = 0,
        /// The application sees to it that nothing overruns.
        Disabled = 1,
        /// The provider does.
        Enabled = 2,
    }
}

macro_rules! numbers {
    ($($kind:ident)+) => {$(
        impl $kind {
            /// libfabric's number for it.
            pub const fn number(self) -> u32 {
                self as u32
            }
        }
    )+};
}

numbers! { EpType Progress ResourceMgmt Threading }

/// The protocols of endpoints (`fi_ep_attr::protocol`): libfabric's numbers, and those of this
/// provider, marked so by the top bit.
pub mod protocol {
    /// Datagrams of UD queue pairs, with nothing of ours in them (`FI_PROTO_IB_UD`).
    pub const IB_UD: u32 = 3;
    const PROV_SPECIFIC: u32 = 1 << 31;
    /// Messages over shared memory (`docs/shared-memory.md`).
    pub const SHM: u32 = PROV_SPECIFIC | 0xfe01;
    /// Messages over RC queue pairs, to this node's endpoints over shared memory
    /// (`docs/wire-protocol.md`).
    pub const VERBS_RDM: u32 = PROV_SPECIFIC | 0xfe02;
}

/// How tags are made up (`fi_ep_attr::mem_tag_format`, fi_endpoint(3)).
pub mod tag_format {
    /// In hints: 64 bits, each of which may be ignored.
    pub const BITS: u64 = 0;
    /// A tag of 32 bits and a number for the kind of payload.
    pub const MPI: u64 = 1;
    /// A number for the kind of payload.
    pub const CCL: u64 = 2;
    /// Formats below are numbers, this one and those above are sets of bits.
    pub const MAX_FORMAT: u64 = 1 << 16;
    /// Every bit a field of its own: any mask will do.
    pub const GENERIC: u64 = 0xaaaa_aaaa_aaaa_aaaa;
}

/// In place of a number of contexts: the endpoint uses one that it shares with others
/// (`FI_SHARED_CONTEXT`).
pub const SHARED_CONTEXT: usize = usize::MAX;

listed_enum! {
    /// How the calls into one domain are serialized (`fi_domain_attr::threading`), with libfabric's
    /// numbers.
    ///
    /// `Domain` is served without a lock, everything else as `Safe`, which is stricter.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub enum Threading: u32 {
        /// In hints: the level that allows most, which is `Safe`.
        #[default]
        Unspec = 0,
        /// Any thread may call at any time.
        Safe = 1,
        /// One thread at a time uses an object.
        Fid = 2,
        /// All calls come from one thread, the first that calls; others get `FI_EBUSY`.
        Domain = 3,
        /// One thread at a time uses the objects that share a completion queue or counter.
        Completion = 4,
        /// One thread at a time uses an endpoint.
        Endpoint = 5,
    }
}
