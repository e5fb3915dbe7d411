//! Hints against candidates (fi_getinfo(3)).

#![allow(clippy::unwrap_used, reason = "a test")]

mod addresses;
mod again;
mod applications;
mod candidates;
mod capabilities;
mod clients;
mod datagrams;
mod fields;
mod keys;
mod offers;
mod queries;
mod registration;
mod traffic_classes;
