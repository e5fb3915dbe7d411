//! The plugin that cargo built, where stock libfabric finds it.

use std::ffi::OsString;
use std::process::Command;

use super::folder::Folder;

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
        // Where cargo puts what these tests are linked with, it puts the library itself.
        let built = std::env::current_exe()
            .unwrap()
            .with_file_name("libferro_fi.so");
        assert!(built.is_file(), "{} was not built", built.display());
        std::os::unix::fs::symlink(built, folder.path().join("libferro-fi.so")).unwrap();
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
