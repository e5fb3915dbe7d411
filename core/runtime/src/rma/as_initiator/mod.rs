//! The operations of an endpoint on its peers' memory: those that the transport carries out, the
//! order in which reads complete, and the atomic operations in mapped memory.

pub(crate) mod mapped_atomics;
pub(crate) mod read_order;
pub(crate) mod shortcuts;
