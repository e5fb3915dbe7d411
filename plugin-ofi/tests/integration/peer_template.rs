//! The template of a peer provider, `examples/peer/template.c`, over stock libfabric: under an
//! owner in C (`c_owner/template.c`), where both are compiled with sanitizers, and under this
//! provider.

use crate::{c_owner, child, client, support};
use std::time::Duration;

use c_owner::OwnerCompiler;
use client::Libfabric;
use ferro_fi::abi::fi_threading;
use support::counters::EndpointCounters;
use support::folder::Folder;
use support::plugin::FakeDevicePlugin;
use support::tool::Tool;
use support::{run, skip};

/// The name by which libfabric finds it.
const FILE: &str = "libtemplate-fi.so";

#[test]
fn the_template_of_a_peer_passes_messages_on() {
    let compilers = match OwnerCompiler::all() {
        Ok(compilers) => compilers,
        Err(reason) => return skip(&reason),
    };
    for compiler in compilers {
        let folder = compiler.provider(FILE, "../examples/peer/template.c");
        compiler.owner("template").run_all(|command| {
            command
                .env("FI_PROVIDER_PATH", &folder)
                .env("FI_PROVIDER", "template")
                .env("FERRO_TEST_PROVIDER", "template");
        });
    }
}

/// Endpoints over verbs exchange their messages through the template (setting `shm_provider`).
///
/// Covers: PEER-1, PEER-4, PEER-9
#[test]
fn the_template_carries_messages_of_this_provider() {
    if child::is_here() {
        let libfabric = Libfabric::load().unwrap();
        let info = libfabric.discover("", fi_threading::FI_THREAD_SAFE);
        return client::round(&info, 1);
    }
    let compilers = match OwnerCompiler::all() {
        Ok(compilers) => compilers,
        Err(reason) => return skip(&reason),
    };
    // That of this system.
    let folder = compilers[0].plain_provider(FILE, "../examples/peer/template.c");
    let (plugin, stats) = (FakeDevicePlugin::new(), Folder::new());
    let mut command = Tool::asked_for().run(&std::env::current_exe().unwrap());
    let test = "the_template_carries_messages_of_this_provider";
    child::again(&mut command, test, &[("FERRO_SHM_PROVIDER", "template")]);
    plugin.choose(&mut command);
    let chosen = command.get_envs();
    let path = chosen
        .filter(|(name, _)| *name == "FI_PROVIDER_PATH")
        .find_map(|(_, value)| value);
    let mut path = path.unwrap().to_owned();
    path.push(":");
    path.push(folder);
    command
        .env("FI_PROVIDER_PATH", path)
        .env("FERRO_STATS", stats.path());
    run::run(command, Duration::from_secs(120)).expect_success();
    let counters = EndpointCounters::read(stats.path());
    assert!(counters.sum("peer_sent") > 0, "{counters:?}");
    assert_eq!(
        counters.sum("peer_sent"),
        counters.sum("peer_received"),
        "{counters:?}"
    );
    assert_eq!(counters.sum("peer_refused_calls"), 0, "{counters:?}");
    assert_eq!(counters.sum("verbs_messages_sent"), 0, "{counters:?}");
}
