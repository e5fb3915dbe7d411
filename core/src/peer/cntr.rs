//! The owner's side of a counter.

/// What a peer counts on (`fi_ops_cntr_owner`).
pub trait PeerCntr {
    /// One more operation succeeded.
    fn inc(&mut self);
    /// One more operation failed.
    fn inc_error(&mut self);
}
