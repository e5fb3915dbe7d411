//! Workloads that are repeated while they are measured. The programs that drive others include
//! these files as they are, so nothing in here depends on the rest of this program.

pub mod matching;
pub(crate) mod threads;
pub(crate) mod vectors;
