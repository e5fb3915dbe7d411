//! The calls of fabrics and domains: they open objects of all other kinds.

mod domain;
pub(crate) mod fabric;
