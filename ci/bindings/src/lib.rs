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
