//! The verbs provider of Ferrofabric: RDM and DGRAM endpoints over InfiniBand, RoCE and Soft-RoCE.

#[cfg_attr(not(feature = "raw-verbs"), allow(dead_code, unreachable_pub))]
mod ah;
mod cm;
mod connect;
#[cfg_attr(not(feature = "raw-verbs"), allow(dead_code, unreachable_pub))]
mod cq;
pub mod device;
mod domain;
mod endpoint;
#[cfg(feature = "fault-injection")]
pub mod fault;
mod gather;
mod lane;
#[cfg_attr(not(feature = "raw-verbs"), allow(dead_code, unreachable_pub))]
mod mr;
pub mod near;
mod order;
#[cfg(not(feature = "counter-origins"))]
mod origins;
#[cfg(feature = "counter-origins")]
pub mod origins;
#[cfg_attr(not(feature = "raw-verbs"), allow(dead_code, unreachable_pub))]
mod pd;
mod port;
#[cfg_attr(not(feature = "raw-verbs"), allow(dead_code, unreachable_pub))]
mod post;
pub mod probe;
mod provider;
#[cfg_attr(not(feature = "raw-verbs"), allow(dead_code, unreachable_pub))]
mod qp;
mod registration;
mod rejected;
mod session;
mod slots;
#[cfg_attr(not(feature = "raw-verbs"), allow(dead_code, unreachable_pub))]
mod srq;
mod tuning;
mod workers;

pub use provider::{NAME, VerbsProvider, VerbsProviderWith};

/// The objects of verbs underneath, and the posting of work requests: for tests of devices. Memory
/// windows, invalidation, atomics and extended queue pairs are here though no endpoint uses them
/// yet.
#[cfg(feature = "raw-verbs")]
pub mod raw {
    /// As the module of this name.
    pub mod ah {
        pub use crate::ah::*;
    }
    /// As the module of this name.
    pub mod cq {
        pub use crate::cq::*;
    }
    /// As the module of this name.
    pub mod mr {
        pub use crate::mr::*;
    }
    /// As the module of this name.
    pub mod pd {
        pub use crate::pd::*;
    }
    /// As the module of this name.
    pub mod post {
        pub use crate::post::*;
    }
    /// As the module of this name.
    pub mod qp {
        pub use crate::qp::*;
    }
    /// As the module of this name.
    pub mod srq {
        pub use crate::srq::*;
    }
}
