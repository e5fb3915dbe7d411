//! An owner of peer objects (fi_peer(3)) in C that calls this provider at the worst moments, over
//! stock libfabric. `c_owner/hostile_calls.c`, `c_owner/hostile_objects.c`,
//! `c_owner/hostile_imports.c` and `c_owner/hostile_transfers.c` have the scenarios.
//!
//! The programs are compiled with the address sanitizer and that of undefined behaviour. The
//! provider is not: memory that a program frees is out of reach, so a provider that reads it ends
//! the program.

use crate::{c_owner, support};
use std::process::Command;

use c_owner::OwnerCompiler;
use ferrofabric_shm::ShmProvider;
use support::plugin::{FakeDevicePlugin, Plugin};
use support::skip;

/// Covers: PEER-4, PEER-5, PEER-9, PEER-12
#[test]
fn an_owner_that_calls_at_the_worst_moments_does_no_harm() {
    run("hostile_calls");
}

/// Covers: PEER-1, PEER-4, PEER-9, PEER-12
#[test]
fn an_owner_with_wrong_objects_and_answers_does_no_harm() {
    run("hostile_objects");
}

/// Covers: PEER-1, PEER-2, PEER-3, PEER-6, PEER-7
#[test]
fn an_owner_of_other_objects_is_read_in_its_calls_alone() {
    run("hostile_imports");
}

/// Covers: PEER-1, PEER-2, PEER-6, PEER-7, PEER-11
#[test]
fn an_owner_of_transfers_does_no_harm() {
    run("hostile_transfers");
}

/// Over shared memory with each libfabric, and over the fake device.
fn run(program: &str) {
    let compilers = match OwnerCompiler::all() {
        Ok(compilers) => compilers,
        Err(reason) => return skip(&reason),
    };
    let (plugin, with_device) = (Plugin::new(), FakeDevicePlugin::new());
    let prepare = |command: &mut Command| {
        command
            .env("FERRO_TEST_PROVIDER", "ferro")
            // libfabric and the provider keep memory until the end.
            .env("ASAN_OPTIONS", "detect_leaks=0");
    };
    for compiler in &compilers {
        compiler.owner(program).run_all(|command| {
            prepare(command);
            plugin.choose(command);
            command.env("FERRO_TEST_DOMAIN", ShmProvider::DOMAIN);
        });
    }
    compilers[0].owner(program).run_all(|command| {
        prepare(command);
        with_device.choose(command);
        command.env("FERRO_SHM", "off");
    });
}
