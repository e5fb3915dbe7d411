//! Where a test shows what it proves: over shared memory, through the plugin, on Soft-RoCE, or
//! without any of them. The tables of address vectors and of discovery have a column for each.

use std::fmt;

/// A column of a table by places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TestPlace {
    /// The tests of the shared-memory provider, over real segments.
    SharedMemory,
    /// The tests of the plugin, which ask stock libfabric through its C interface.
    Plugin,
    /// The tests on a verbs device, which run in the Soft-RoCE machine.
    SoftRoce,
    /// All other tests: units, models, the fake device, fuzzing, the command line.
    Elsewhere,
}

impl TestPlace {
    /// All of them, in the order of the columns.
    pub const ALL: [Self; 4] = [
        Self::SharedMemory,
        Self::Plugin,
        Self::SoftRoce,
        Self::Elsewhere,
    ];

    /// The place of a file's tests.
    pub fn of(file: &str) -> Self {
        let found = Self::ALL.into_iter().find(|place| {
            let folder = place.folder();
            folder.is_some_and(|folder| file.starts_with(folder))
        });
        found.unwrap_or(Self::Elsewhere)
    }

    /// The folder of its tests. Unit tests in a crate's `src` meet neither a peer nor libfabric, so
    /// they are elsewhere.
    pub fn folder(self) -> Option<&'static str> {
        match self {
            Self::SharedMemory => Some("provider-shm/tests/"),
            Self::Plugin => Some("plugin-ofi/tests/"),
            Self::SoftRoce => Some("hw-tests/tests/"),
            Self::Elsewhere => None,
        }
    }

    /// How the document says that a test is missing here. `None`: none has to be here.
    pub fn lacks(self) -> Option<&'static str> {
        match self {
            Self::SharedMemory => Some("No test over shared memory: "),
            Self::Plugin => Some("No test through the plugin: "),
            Self::SoftRoce => Some("No test on Soft-RoCE: "),
            Self::Elsewhere => None,
        }
    }
}

/// The title of its column.
impl fmt::Display for TestPlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::SharedMemory => "shared memory",
            Self::Plugin => "plugin",
            Self::SoftRoce => "Soft-RoCE",
            Self::Elsewhere => "elsewhere",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_where_the_file_lies() {
        for (file, place) in [
            ("provider-shm/tests/getinfo.rs", TestPlace::SharedMemory),
            ("plugin-ofi/tests/getinfo.rs", TestPlace::Plugin),
            ("hw-tests/tests/getinfo.rs", TestPlace::SoftRoce),
            ("hw-tests/fake-device/tests/a.rs", TestPlace::Elsewhere),
            ("plugin-ofi/src/nic.rs", TestPlace::Elsewhere),
            ("core/runtime/tests/getinfo/offers.rs", TestPlace::Elsewhere),
        ] {
            assert_eq!(TestPlace::of(file), place, "{file}");
        }
    }
}
