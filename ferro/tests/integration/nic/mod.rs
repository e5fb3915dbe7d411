//! The program on the fake device, which stands in for libibverbs: each test chooses the kind of
//! NIC that it is.

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::program::ferro;

/// Columns of a line.
const WIDTH: usize = 80;

/// Runs with a profile, by its name or the file of one.
pub(crate) fn on_nic(profile: &str, arguments: &[&str]) -> Output {
    on_nic_with(profile, arguments, &[])
}

/// The same with settings.
pub(crate) fn on_nic_with(profile: &str, arguments: &[&str], settings: &[(&str, &str)]) -> Output {
    let mut command = ferro(arguments);
    command
        .env("LD_LIBRARY_PATH", library_folder())
        .env("FERRO_FAKE_PROFILE", profile)
        .envs(settings.iter().copied());
    command.output().unwrap()
}

/// Checks that each line of a text fits a terminal, and that the text has these parts, wherever
/// its lines end.
pub(crate) fn check_text(profile: &str, text: &str, parts: &[&str]) {
    for line in text.lines() {
        assert!(line.chars().count() <= WIDTH, "{profile}: {line}");
    }
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        assert!(words.contains(part), "{profile}: {part} is not in: {text}");
    }
}

/// A folder in which the loader finds the fake device by the name of libibverbs.
fn library_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let built = program.with_file_name("libferrofabric_fake_device.so");
    assert!(built.is_file(), "{} was not built", built.display());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake-device");
    std::fs::create_dir_all(&folder).unwrap();
    let link = folder.join("libibverbs.so.1");
    // Tests at the same time make the same link; only the last step is seen.
    let own = folder.join(format!(
        "{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    std::os::unix::fs::symlink(built, &own).unwrap();
    std::fs::rename(&own, &link).unwrap();
    folder
}
