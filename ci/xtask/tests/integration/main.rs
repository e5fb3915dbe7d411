//! The tests of the scripts that people and continuous integration run.

mod help;
mod machines;
mod phases;
