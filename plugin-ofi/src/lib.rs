//! Ferrofabric as a provider plugin: the C ABI that libfabric loads as `libferro-fi.so`, and nothing else.

pub mod abi;
