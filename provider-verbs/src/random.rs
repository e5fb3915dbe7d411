//! Numbers that nobody can guess.

use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

/// A number that nobody can guess. A child goes on with its parent's keys, so the process is hashed
/// as well.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one((std::process::id(), Instant::now()))
}
