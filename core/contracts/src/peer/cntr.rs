//! The owner's side of a counter, for peers that count completions and errors on it.

/// The owner's counter, as its peers count (`fi_ops_cntr_owner`).
pub trait PeerCntr {
    /// One more operation succeeded, which moved so many bytes of the application's.
    fn inc(&mut self, bytes: usize);
    /// One more operation failed.
    fn inc_error(&mut self);
}
