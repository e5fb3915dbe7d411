//! Files of named tables that nobody has open: a killed last holder has left them, under names that
//! nobody may open again. Each opener of any named table removes those of its user
//! (`docs/adr/0046`).

use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::file_lock::{Lock, PRESENCE, try_lock};

/// Removes the files in a folder that nobody has open, of those whose names start with `prefix`.
pub(super) fn remove(folder: &Path, prefix: &str) {
    let Ok(all) = folder.read_dir() else {
        return;
    };
    for one in all.flatten() {
        if !one.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        let path = one.path();
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(nix::libc::O_CLOEXEC | nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK)
            .open(&path);
        let Ok(file) = opened else {
            continue;
        };
        if file.metadata().is_ok_and(|about| is_own(&about)) {
            remove_one(&path, &file);
        }
    }
}

/// Removes a file that nobody has open. A process that opens it meanwhile sees that it is not in
/// its place any more, and opens another one.
pub(super) fn remove_one(path: &Path, file: &File) {
    if let Ok(true) = try_lock(file, PRESENCE, Lock::Write) {
        if is_in_place(path, file) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether a file is this user's alone, and an ordinary one.
pub(super) fn is_own(about: &Metadata) -> bool {
    about.uid() == nix::unistd::geteuid().as_raw() && about.mode() & 0o777_7077 == 0o100_000
}

/// Whether the file is the one that others find by its name.
pub(super) fn is_in_place(path: &Path, file: &File) -> bool {
    match (std::fs::symlink_metadata(path), file.metadata()) {
        (Ok(found), Ok(own)) => (found.dev(), found.ino()) == (own.dev(), own.ino()),
        _ => false,
    }
}
