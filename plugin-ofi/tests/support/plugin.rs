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
