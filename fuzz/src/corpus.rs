//! The inputs that each run starts from, a file each: `fuzz/corpus/TARGET/NAME`.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::FuzzTarget;

/// The folder of a target's inputs.
pub fn folder(target: &FuzzTarget) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target.name)
}

/// The inputs by name, in the order of names; none where there is no folder.
pub(crate) fn read(target: &FuzzTarget) -> io::Result<Vec<(String, Vec<u8>)>> {
    let folder = folder(target);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        all.push((name.to_string_lossy().into_owned(), fs::read(&path)?));
    }
    all.sort();
    Ok(all)
}

/// Puts an input in.
pub(crate) fn write(target: &FuzzTarget, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    let folder = folder(target);
    fs::create_dir_all(&folder)?;
    let path = folder.join(name);
    fs::write(&path, bytes)?;
    Ok(path)
}
