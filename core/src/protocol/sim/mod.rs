//! A simulated network with a virtual clock, and what is tested on it.
