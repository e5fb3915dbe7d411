//! What is done over and over while it is measured. The programs that drive others do the same:
//! they take these files as they are, so that nothing in here depends on the rest of this one.

pub(crate) mod matching;
pub(crate) mod threads;
pub(crate) mod vectors;
