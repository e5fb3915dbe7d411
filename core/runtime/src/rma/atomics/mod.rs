//! The instructions of atomic operations (`docs/adr/0064`), by which initiators and targets carry
//! them out.

mod elements;
mod engine;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use elements::Element;
pub use engine::combine;
pub(crate) use engine::{combine_on, execute};
pub(crate) use words::AtomicWord;
