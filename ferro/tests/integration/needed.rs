//! No program of ours needs the RDMA libraries: they are looked for while it runs, and where they
//! cannot be had, shared memory is there all the same.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use goblin::elf::Elf;

const RDMA: [&str; 3] = ["libibverbs", "librdmacm", "libmlx"];

fn needed(file: &Path) -> Vec<String> {
    let bytes = std::fs::read(file).unwrap();
    let elf = Elf::parse(&bytes).unwrap();
    elf.libraries.iter().map(|l| (*l).to_owned()).collect()
}

/// The programs and libraries that this build has made.
fn shipped() -> Vec<PathBuf> {
    let ferro = PathBuf::from(env!("CARGO_BIN_EXE_ferro"));
    let folder = std::fs::read_dir(ferro.parent().unwrap()).unwrap();
    let mut files: Vec<PathBuf> = folder
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "so"))
        .collect();
    files.push(ferro);
    files
}

#[test]
fn nothing_shipped_needs_an_rdma_library() {
    for file in shipped() {
        let needed = needed(&file);
        // Every program needs the C library: the list was read.
        assert!(
            needed.iter().any(|l| l.starts_with("libc.so")),
            "{needed:?}"
        );
        for library in &needed {
            assert!(
                !RDMA.iter().any(|rdma| library.starts_with(rdma)),
                "{} needs {library}",
                file.display()
            );
        }
    }
}

/// A folder of its own, removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The output of `ferro` with the library in `folder`.
fn ferro(folder: &Folder, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferro"));
    command
        .args(arguments)
        .env("LD_LIBRARY_PATH", &folder.0)
        .env_remove("LD_PRELOAD");
    for setting in ["SHM", "VERBS", "DEVICE", "PORT", "GID_INDEX"] {
        command
            .env_remove(format!("FERRO_{setting}"))
            .env_remove(format!("FI_FERRO_{setting}"));
    }
    command.output().unwrap()
}

/// Shared memory is listed and works; of verbs it is said why it is missing, in these words.
fn only_shared_memory(folder: &Folder, words: &[&str]) {
    let output = ferro(folder, &["info", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{said}");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let domains = json["domains"].as_array().unwrap();
    assert_eq!(domains.len(), 1, "{json}");
    assert_eq!(domains[0]["domain"], "ferro-shm");
    let missing = json["missing"].as_array().unwrap();
    assert_eq!(missing.len(), 1, "{json}");
    let why = missing[0].as_str().unwrap();
    for word in words {
        assert!(why.contains(word), "{word} is not in: {why}");
    }

    let output = ferro(
        folder,
        &["pingpong", "--spawn", "--sizes", "8", "--iters", "10"],
    );
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_library_that_is_garbage_is_named() {
    let folder = Folder::new("garbage");
    std::fs::write(folder.0.join("libibverbs.so.1"), [b'x'; 4096]).unwrap();
    only_shared_memory(
        &folder,
        &["libibverbs.so.1", "invalid ELF header", "install"],
    );
}

#[test]
fn a_library_of_another_kind_is_named_with_what_it_lacks() {
    let folder = Folder::new("another");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(5))
        .find(|path| path.contains("/libc.so"))
        .expect("the C library is loaded");
    std::os::unix::fs::symlink(libc, folder.0.join("libibverbs.so.1")).unwrap();
    only_shared_memory(&folder, &["libibverbs.so.1", "which lacks ibv_"]);
}

#[test]
fn where_none_is_installed_that_is_said() {
    let folder = Folder::new("none");
    let search = Command::new("ldconfig").arg("-p").output();
    let installed = search
        .map(|o| String::from_utf8_lossy(&o.stdout).contains("libibverbs.so.1"))
        .unwrap_or(true);
    if installed {
        println!("SKIP: libibverbs is installed here, or it is not known");
        return;
    }
    only_shared_memory(&folder, &["libibverbs.so.1", "No such file", "install"]);
}
