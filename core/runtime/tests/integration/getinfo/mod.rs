//! Hints against candidates (fi_getinfo(3)).

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
