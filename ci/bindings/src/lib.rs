//! The bindings to the C libraries that are loaded at run time: what writes them, and what checks
//! their layouts.
//!
//! With the feature `regenerate` each program in `src/bin` writes the bindings of one library from
//! its headers. A program has its own lists of what its bindings take; how they are made is in
//! `generate`. The written file is committed, so no ordinary build needs libclang. Tests compare
//! the layouts in it with a C compiler's, by way of [`layout`].

#[cfg(feature = "regenerate")]
pub mod generate;
pub mod layout;

/// libfabric's headers, below `rdma/`: the bindings are made from all of them, and the layouts are
/// compared in all of them.
pub const LIBFABRIC_HEADERS: &[&str] = &[
    "fabric.h",
    "fi_atomic.h",
    "fi_cm.h",
    "fi_collective.h",
    "fi_domain.h",
    "fi_endpoint.h",
    "fi_eq.h",
    "fi_errno.h",
    "fi_ext.h",
    "fi_rma.h",
    "fi_tagged.h",
    "fi_trigger.h",
    "providers/fi_log.h",
    "providers/fi_peer.h",
    "providers/fi_prov.h",
];
