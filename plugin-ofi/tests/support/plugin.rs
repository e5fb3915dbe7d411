//! The plugin that cargo built, where stock libfabric finds it.

use std::ffi::OsString;
use std::process::Command;
use std::sync::OnceLock;

use super::folder::Folder;

/// Lets a program use this project's provider, and no other.
pub fn choose(command: &mut Command) {
    for (name, value) in variables() {
        command.env(name, value);
    }
}

/// The environment of a program that uses it.
pub fn variables() -> [(&'static str, OsString); 2] {
    // Kept to the end of the process, which does not drop it: it holds a link and nothing else.
    static FOLDER: OnceLock<Folder> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = Folder::new();
        // Where cargo puts what these tests are linked with, it puts the library itself.
        let built = std::env::current_exe()
            .unwrap()
            .with_file_name("libferro_fi.so");
        assert!(built.is_file(), "{} was not built", built.display());
        std::os::unix::fs::symlink(built, folder.path().join("libferro-fi.so")).unwrap();
        folder
    });
    [
        ("FI_PROVIDER_PATH", folder.path().as_os_str().to_owned()),
        ("FI_PROVIDER", "ferro".into()),
    ]
}
