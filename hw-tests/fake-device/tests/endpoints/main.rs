//! Endpoints of the verbs provider over the fake device.

#![allow(missing_docs, clippy::unwrap_used)]

mod breakage;
mod calls;
mod closing;
mod control_verbs;
mod counters;
mod datagrams;
mod device_events;
mod dgram;
mod endings;
mod faults;
mod floods;
mod flushes;
mod forgeries;
mod forks;
mod fragments;
mod limits;
mod messages;
mod nic;
mod party;
mod probes;
mod quotas;
mod receives;
mod removals;
mod revivals;
mod rights;
mod runs;
mod scarcity;
mod shared;
mod shares;
mod storms;
mod traffic;
mod traffic_classes;
mod unknown_sources;
mod zoo;
