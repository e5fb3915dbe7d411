//! The plugin that cargo built, where stock libfabric finds it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use super::folder::Folder;

/// The name by which libfabric finds it.
const FILE: &str = "libferro-fi.so";

/// Where cargo puts the test programs, it puts the library, too.
fn built() -> PathBuf {
    let path = std::env::current_exe()
        .unwrap()
        .with_file_name("libferro_fi.so");
    assert!(path.is_file(), "{} was not built", path.display());
    path
}

/// A folder for FI_PROVIDER_PATH, as long as it is held.
#[derive(Debug)]
pub struct Plugin(Folder);

impl Plugin {
    /// Makes it.
    pub fn new() -> Self {
        Self::within(Folder::new())
    }

    /// Makes it of an empty folder.
    pub fn within(folder: Folder) -> Self {
        std::os::unix::fs::symlink(built(), folder.path().join(FILE)).unwrap();
        Self(folder)
    }

    /// Makes it with a copy, for another user, who may not be able to read the tree.
    pub fn copied() -> Self {
        let folder = Folder::new();
        std::fs::copy(built(), folder.path().join(FILE)).unwrap();
        Self(folder)
    }

    /// Makes it with a copy that loads another library than libibverbs. Libraries of the program
    /// still get the real one: it has functions for drivers, and they do not load without those.
    ///
    /// # Panics
    ///
    /// When the name is not as long as the real one.
    pub fn with_verbs_library(name: &str) -> Self {
        const REAL: &str = "libibverbs.so.1";
        assert_eq!(
            name.len(),
            REAL.len(),
            "the copy has as much room as the plugin"
        );
        let mut bytes = std::fs::read(built()).unwrap();
        let places: Vec<_> = memchr::memmem::find_iter(&bytes, REAL).collect();
        assert!(!places.is_empty(), "the plugin names no {REAL}");
        for place in places {
            bytes[place..][..name.len()].copy_from_slice(name.as_bytes());
        }
        let folder = Folder::new();
        std::fs::write(folder.path().join(FILE), bytes).unwrap();
        Self(folder)
    }

    /// Lets a program use this project's provider, and no other.
    pub fn choose(&self, command: &mut Command) {
        command.envs(self.variables());
    }

    /// The environment of a program that does.
    pub fn variables(&self) -> [(&'static str, OsString); 2] {
        [
            ("FI_PROVIDER_PATH", self.0.path().as_os_str().to_owned()),
            ("FI_PROVIDER", "ferro".into()),
        ]
    }
}

/// The plugin with the fake device in place of libibverbs.
#[derive(Debug)]
pub struct FakeDevicePlugin {
    plugin: Plugin,
    library: Folder,
}

impl FakeDevicePlugin {
    /// Makes it.
    pub fn new() -> Self {
        const LIBRARY: &str = "libfakeibv.so.1";
        // Where cargo puts the test programs, it puts the library, too.
        let program = std::env::current_exe().unwrap();
        let device = program.with_file_name("libferrofabric_fake_device.so");
        assert!(device.is_file(), "{} was not built", device.display());
        let library = Folder::new();
        std::os::unix::fs::symlink(device, library.path().join(LIBRARY)).unwrap();
        Self {
            plugin: Plugin::with_verbs_library(LIBRARY),
            library,
        }
    }

    /// Lets a program use it, and no other provider.
    pub fn choose(&self, command: &mut Command) {
        self.plugin.choose(command);
        command.env("LD_LIBRARY_PATH", self.library.path());
    }
}
