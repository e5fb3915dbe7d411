//! The owner's side of a counter.

/// What a peer counts on (`fi_ops_cntr_owner`).
pub trait PeerCntr {
    /// One more operation succeeded, which moved so many bytes of the application's.
    fn inc(&mut self, bytes: usize);
    /// One more operation failed.
    fn inc_error(&mut self);
}
