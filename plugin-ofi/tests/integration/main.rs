//! The tests of the plugin with stock libfabric, MPI and hostile applications.

#![allow(
    missing_docs,
    unreachable_pub,
    reason = "a program of tests has no users"
)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[macro_use]
mod client;
#[macro_use]
mod support;

mod address_vectors;
mod atomics;
mod auth_keys;
mod av_calls;
mod av_formats;
mod av_named;
mod av_sets;
mod av_traffic;
mod beside_shm;
mod binding;
mod boundary;
mod by_c;
mod c_owner;
mod calls;
mod cancellation;
mod child;
mod collective_processes;
mod collective_waits;
mod collectives;
mod completions;
mod conformance_by_c;
mod devices;
mod endpoints;
mod event_queues;
mod getinfo;
mod host;
mod host_providers;
mod hostile_c;
mod intel_mpi;
mod layout;
mod libfabric_tools;
mod lifecycle;
mod linked;
mod linked_calls;
mod lossy_collectives;
mod messages;
mod mpi4py;
mod mpich;
mod nodes_by_c;
mod nodes_collectives;
mod nodes_mpi;
mod one_sided;
mod one_sided_regions;
mod open_mpi;
mod open_mpi_windows;
mod owner;
mod peer_domains;
mod peer_events;
mod peer_fids;
mod peer_imports;
mod peer_receives;
mod peer_sets;
mod peer_template;
mod peer_transfers;
mod peer_vectors;
mod ranks;
mod refused_abilities;
mod registration;
mod rma;
mod scenarios;
mod shipped;
mod signals;
mod sockets;
mod tables;
mod traffic_classes;
mod transfer_owner;
mod two;
mod vector;
mod without_verbs;
