//! Address formats. The native one is what `fi_getname` returns and what address vectors store.

mod native;
mod native_text;

pub use native::{AddrError, GidKind, NATIVE_LEN, NativeAddr, VerbsAddr};
