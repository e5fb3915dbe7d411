//! Object model, matching, completion, discovery and protocol state machines of Ferrofabric: no device, no C, no I/O.
