//! Stock libfabric with this project's plugin, over the fake device alone.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the files that are shared with the plugin's own tests offer more than is used here"
)]

#[path = "../../../../../plugin-ofi/tests/integration/support/plugin.rs"]
mod built;
#[path = "../../../../../plugin-ofi/tests/integration/support/folder.rs"]
mod folder;

use std::ffi::OsString;

use ferrofabric_fake_device::control::FakeDevice;

use crate::client::Libfabric;

/// Takes the fake device and loads libfabric, which finds the plugin and no other provider. `None`,
/// with the reason on the console, where libfabric is not installed.
///
/// This sets the environment: a program calls it once, before it starts threads. libfabric stays
/// loaded, because its threads may outlive a test.
pub fn load(settings: &[(&str, &str)]) -> Option<(FakeDevice, &'static Libfabric)> {
    let plugin = built::Plugin::new();
    let mut variables: Vec<(&str, OsString)> = plugin.variables().into();
    variables.push(("FERRO_SHM", "off".into()));
    variables.extend(settings.iter().map(|&(name, value)| (name, value.into())));
    for (name, value) in variables {
        // SAFETY: no other thread looks at the environment yet.
        unsafe { std::env::set_var(name, value) };
    }
    // The device starts a thread. The plugin takes the libibverbs that is loaded already.
    let device = FakeDevice::take();
    let Some(libfabric) = Libfabric::load() else {
        println!("SKIP: there is no libfabric 2 here (libfabric1, or ci/mpi)");
        return None;
    };
    // The first query loads the plugin; its folder is removed after that.
    let offers = libfabric.ask(libfabric.version, None, None, 0, None);
    assert!(offers.is_ok(), "the plugin offers nothing");
    drop(offers);
    Some((device, Box::leak(Box::new(libfabric))))
}
