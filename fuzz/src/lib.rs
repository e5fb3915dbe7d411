//! Random input for every parser that takes what others wrote: strings, addresses, hints, packets,
//! records of the shared-memory handshake, segments.
//!
//! A [target](FuzzTarget) is a function of bytes that panics when an invariant does not hold. It
//! returns a hash of its observations (the kind of packet, the field that was refused). The fuzzer
//! keeps an input with a new hash and mutates it further, as other fuzzers do with an input that
//! covers new code (`docs/adr/0031-fuzzing-on-stable-rust.md`).
//!
//! ```text
//! cargo run -p ferrofabric-fuzz -- --inputs 1000000
//! ```
//!
//! An input that breaks a target is written to `fuzz/corpus/TARGET/`, from where each later run
//! starts. An input that breaks its target only after those before it is not written there: a run
//! with the same seed and corpus repeats all of them in their order, and also those before an input
//! at which the address sanitizer has ended the process.

mod corpus;
mod input;
mod mutate;
mod run;
pub mod targets;

pub use corpus::folder;
pub use run::{RunOptions, RunReport, run};

/// Something that takes bytes.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// Its name, and that of its corpus' folder.
    pub name: &'static str,
    /// Takes an input. Panics when it finds a defect, else returns a hash of what it saw. A target
    /// that keeps something from one input to the next begins anew after a panic.
    pub take: fn(&[u8]) -> u64,
    /// Inputs to begin with, each with a name: one of each kind that is understood.
    pub seeds: fn() -> Vec<(String, Vec<u8>)>,
    /// Words that make sense in its input.
    pub words: &'static [&'static str],
}

/// A seed that is another one in each run.
pub fn drawn_seed() -> u64 {
    fastrand::Rng::new().u64(..)
}

/// Whether this program notices numbers that overflow. Without that, it finds less than it should.
pub fn checks_overflow() -> bool {
    use std::hint::black_box;
    use std::panic::{catch_unwind, set_hook, take_hook};
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let largest = black_box(u8::MAX);
    let noticed = catch_unwind(|| black_box(largest + black_box(1))).is_err();
    set_hook(hook);
    noticed
}

/// The hash of an observation, by its `Debug` text.
fn saw(what: impl std::fmt::Debug) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    format!("{what:?}").hash(&mut hasher);
    hasher.finish()
}
