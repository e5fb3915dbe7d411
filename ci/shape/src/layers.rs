//! The layers of crates, and the dependencies that do not point down.

use crate::tree::Package;

/// From the lowest. A crate may depend on those of lower layers. `docs/architecture.md` draws them.
const LAYERS: [&[&str]; 7] = [
    &["ferrofabric-contracts"],
    &["ferrofabric-system"],
    &[
        "ferrofabric-av",
        "ferrofabric-collectives",
        "ferrofabric-matching",
        "ferrofabric-protocol",
    ],
    &["ferrofabric-runtime"],
    &["ferrofabric-shm", "ferrofabric-verbs-sys"],
    &["ferrofabric-verbs"],
    &["ferrofabric", "ferrofabric-ofi", "ferro"],
];

/// State machines without threads and locks: they depend on the lowest layer alone.
const PURE: [&str; 2] = ["ferrofabric-collectives", "ferrofabric-protocol"];

pub(crate) fn faults(packages: &[Package]) -> Vec<String> {
    let mut faults = Vec::new();
    for Package {
        name, dependencies, ..
    } in packages
    {
        let Some(layer) = layer(name) else {
            let list = "LAYERS in ci/shape/src/layers.rs";
            faults.push(format!("{name} has no layer: add it to {list}"));
            continue;
        };
        // How many layers, from the lowest, it may use.
        let open = if PURE.contains(&name.as_str()) {
            1
        } else {
            layer
        };
        for dependency in dependencies {
            if self::layer(dependency).is_some_and(|other| other >= open) {
                faults.push(format!("{name} may not depend on {dependency}"));
            }
        }
    }
    faults
}

fn layer(package: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&package))
}
