//! The command line of Ferrofabric.

fn main() {}
