//! The memory that peers reach: the regions of a domain, and the order in which an endpoint carries
//! the atomic operations of its peers out.

pub(crate) mod atomic_arrivals;
pub(crate) mod regions;
