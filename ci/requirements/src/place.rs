//! Where a test shows what it proves. The tables of address vectors and of discovery have a column
//! for each place.

/// A column of a table by places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TestPlace {
    /// The tests of the shared-memory provider, over real segments.
    SharedMemory,
    /// The tests of the plugin, which ask stock libfabric through its C interface.
    Plugin,
    /// The tests on a verbs device, which run in the Soft-RoCE machine.
    SoftRoce,
    /// All other tests: units, models, the fake device, fuzzing, the command line.
    Elsewhere,
}

use TestPlace::{Elsewhere, Plugin, SharedMemory, SoftRoce};

impl TestPlace {
    /// All of them, in the order of the columns.
    pub(crate) const ALL: [Self; 4] = [SharedMemory, Plugin, SoftRoce, Elsewhere];

    /// The place of a file's tests. Unit tests in a crate's `src` meet neither a peer nor
    /// libfabric.
    pub(crate) fn of(file: &str) -> Self {
        let found = Self::ALL.iter().find(|it| file.starts_with(it.folder()));
        *found.unwrap_or(&Elsewhere)
    }

    /// The folder of its tests, which the labels of files leave out.
    pub(crate) fn folder(self) -> &'static str {
        [
            "provider-shm/tests/",
            "plugin-ofi/tests/",
            "hw-tests/tests/",
            "",
        ][self as usize]
    }

    /// The title of its column.
    pub(crate) fn title(self) -> &'static str {
        ["shared memory", "plugin", "Soft-RoCE", "elsewhere"][self as usize]
    }

    /// How a line of the document begins that says why tests are missing here. `None`: none has to
    /// be here.
    pub(crate) fn reason(self) -> Option<&'static str> {
        match self {
            SharedMemory => Some("- No test over shared memory: "),
            Plugin => Some("- No test through the plugin: "),
            SoftRoce => Some("- No test on Soft-RoCE: "),
            Elsewhere => None,
        }
    }
}
