//! The shared-memory provider of Ferrofabric: alone, or as a peer of another provider.
