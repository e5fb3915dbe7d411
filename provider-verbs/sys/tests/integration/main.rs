//! The tests of the bindings and of the loader.

mod layout;
mod load;
