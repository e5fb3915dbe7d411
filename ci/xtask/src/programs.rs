//! Lists of test programs: those that cargo built, those of a phase, and those that are missing.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, ValueEnum};
use serde::Deserialize;

/// A test program, and the folder of its package, in which it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestProgram {
    folder: PathBuf,
    path: PathBuf,
}

impl fmt::Display for TestProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.folder.display(), self.path.display())
    }
}

impl TestProgram {
    /// The test's name: that of the file, without the hash that cargo adds.
    fn name(&self) -> &str {
        let name = self.path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        name.rsplit_once('-').map_or(name, |(name, _)| name)
    }
}

/// A message of cargo about something that it built.
#[derive(Deserialize)]
struct CargoMessage {
    manifest_path: Option<PathBuf>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// The test programs in cargo's messages, one a line.
///
/// # Errors
///
/// If a line is no message, or there is no test program.
pub(crate) fn built(messages: &str) -> Result<Vec<TestProgram>, String> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: CargoMessage =
            serde_json::from_str(line).map_err(|e| format!("{e}: {line}"))?;
        if let CargoMessage {
            manifest_path: Some(manifest),
            profile: Some(Profile { test: true }),
            executable: Some(path),
        } = message
        {
            let folder = manifest.parent().unwrap_or(Path::new("/")).to_owned();
            programs.push(TestProgram { folder, path });
        }
    }
    match programs.is_empty() {
        true => Err("no test program was built".to_owned()),
        false => Ok(programs),
    }
}

/// A list, as it was printed.
///
/// # Errors
///
/// If a line is not "FOLDER PROGRAM".
pub(crate) fn read(list: &str) -> Result<Vec<TestProgram>, String> {
    let program = |line: &str| {
        let (folder, path) = line.split_once(' ')?;
        let (folder, path) = (folder.into(), path.into());
        Some(TestProgram { folder, path })
    };
    list.lines()
        .map(|line| program(line).ok_or_else(|| format!("no program: {line}")))
        .collect()
}

/// Where a program of `hw-tests` or of the plugin runs, which its name says: `lossy_….rs` and
/// `nodes_….rs`; all others are plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgramKind {
    /// In one machine.
    Plain,
    /// In one machine whose network loses packets.
    Lossy,
    /// In two machines.
    Nodes,
}

/// Some programs of a list.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Selection {
    /// Of the packages in these folders
    #[arg(long = "package")]
    packages: Vec<PathBuf>,
    /// Not of the packages in these folders
    #[arg(long = "except-package")]
    except_packages: Vec<PathBuf>,
    /// Of these names
    #[arg(long = "test")]
    tests: Vec<String>,
    /// Not of these names
    #[arg(long = "except-test")]
    except_tests: Vec<String>,
    /// Of this kind
    #[arg(long, value_enum)]
    kind: Option<ProgramKind>,
}

impl Selection {
    pub(crate) fn fits(&self, program: &TestProgram) -> bool {
        let name = program.name();
        let kind = match name {
            _ if name.starts_with("lossy") => ProgramKind::Lossy,
            _ if name.starts_with("nodes") => ProgramKind::Nodes,
            _ => ProgramKind::Plain,
        };
        let named = |names: &[String]| names.iter().any(|it| it == name);
        (self.packages.is_empty() || self.packages.contains(&program.folder))
            && !self.except_packages.contains(&program.folder)
            && (self.tests.is_empty() || named(&self.tests))
            && !named(&self.except_tests)
            && self.kind.is_none_or(|wanted| wanted == kind)
    }
}

/// The folders of the workspace's packages, from cargo's metadata.
///
/// # Errors
///
/// If cargo does not give any.
pub(crate) fn members(tree: &Path) -> Result<Vec<PathBuf>, String> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<CargoPackage>,
    }
    #[derive(Deserialize)]
    struct CargoPackage {
        manifest_path: PathBuf,
    }
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .arg("--manifest-path")
        .arg(tree.join("Cargo.toml"))
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let folder = |package: CargoPackage| Some(package.manifest_path.parent()?.to_owned());
    Ok(metadata.packages.into_iter().filter_map(folder).collect())
}

/// The programs that a list lacks: each package has a program, and each file in the package's
/// tests/, and each folder there with a main.rs, has one of its own.
///
/// # Errors
///
/// If the list or a folder can not be read.
pub(crate) fn missing(members: &[PathBuf], list: &str) -> Result<Vec<String>, String> {
    let list = read(list)?;
    if list.is_empty() {
        return Ok(vec!["no test program was built".to_owned()]);
    }
    let has: BTreeSet<_> = list
        .iter()
        .map(|program| (program.folder.as_path(), program.name()))
        .collect();
    let mut missing = Vec::new();
    for package in members {
        if !list.iter().any(|program| program.folder == *package) {
            missing.push(format!(
                "no test program of {} was built",
                package.display()
            ));
        }
        for file in test_files(package)? {
            let main = file.ends_with("main.rs");
            let named = if main { file.parent() } else { Some(&*file) };
            let name = named.and_then(Path::file_stem).and_then(|it| it.to_str());
            if !has.contains(&(package.as_path(), name.unwrap_or_default())) {
                missing.push(format!("{} was not built", file.display()));
            }
        }
    }
    Ok(missing)
}

/// The files of a package that each make a program: tests/NAME.rs and tests/NAME/main.rs.
fn test_files(package: &Path) -> Result<Vec<PathBuf>, String> {
    let tests = package.join("tests");
    if !tests.is_dir() {
        return Ok(Vec::new());
    }
    let said = |error: std::io::Error| format!("{}: {error}", tests.display());
    let mut files = Vec::new();
    for entry in tests.read_dir().map_err(said)? {
        let path = entry.map_err(said)?.path();
        let main = path.join("main.rs");
        if path.extension().is_some_and(|it| it == "rs") {
            files.push(path);
        } else if main.is_file() {
            files.push(main);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_the_messages_of_cargo() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/tree/one/Cargo.toml","target":{"name":"one"},"profile":{"opt_level":"1","test":true},"executable":"/tree/target/deps/one-12ab"}
{"reason":"compiler-artifact","manifest_path":"/tree/one/Cargo.toml","profile":{"test":true},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/tree/two/Cargo.toml","profile":{"test":false},"executable":"/tree/target/two"}
{"reason":"build-script-executed","package_id":"two"}
{"reason":"build-finished","success":true}
"#;
        let programs = built(messages).expect("programs");
        let [program] = &programs[..] else {
            panic!("{programs:?}");
        };
        assert_eq!(program.to_string(), "/tree/one /tree/target/deps/one-12ab");
        assert_eq!(program.name(), "one");
        assert_eq!(read(&program.to_string()), Ok(programs.clone()));
        assert!(built("").is_err());
        assert!(built("{\"reason\":").is_err());
    }

    #[test]
    fn a_selection_takes_what_fits_all_options() {
        let list = "/t/hw-tests /d/rdm-1\n/t/hw-tests /d/lossy_rdm-1\n/t/plugin-ofi /d/nodes_mpi-1
/t/plugin-ofi /d/layout-1\n";
        let list = read(list).expect("a list");
        let taken = |selection: Selection| {
            let names = list.iter().filter(|program| selection.fits(program));
            names.map(TestProgram::name).collect::<Vec<_>>()
        };
        let all = Selection::default();
        assert_eq!(taken(all.clone()).len(), 4);
        assert_eq!(
            taken(Selection {
                packages: vec!["/t/hw-tests".into()],
                kind: Some(ProgramKind::Plain),
                ..all.clone()
            }),
            ["rdm"]
        );
        assert_eq!(
            taken(Selection {
                except_packages: vec!["/t/hw-tests".into()],
                except_tests: vec!["layout".to_owned()],
                ..all.clone()
            }),
            ["nodes_mpi"]
        );
        assert_eq!(
            taken(Selection {
                tests: vec!["lossy_rdm".to_owned(), "layout".to_owned()],
                ..all
            }),
            ["lossy_rdm", "layout"]
        );
    }

    /// Two packages, each with a program in tests/.
    #[test]
    fn a_list_without_a_program_is_not_complete() {
        let tree = std::env::temp_dir().join(format!("ferro-lists-{}", std::process::id()));
        let [one, two] = ["one", "two"].map(|name| tree.join(name));
        for folder in [one.join("tests"), two.join("tests/second")] {
            std::fs::create_dir_all(folder).expect("a folder");
        }
        for file in [one.join("tests/first.rs"), two.join("tests/second/main.rs")] {
            std::fs::write(file, "").expect("a file");
        }
        let members = [one, two];
        let lacks = |programs: &[(usize, &str)]| {
            let line = |(at, name): &(usize, &str)| {
                let folder = members[*at].display();
                format!("{folder} /target/deps/{name}-12ab\n")
            };
            let list: String = programs.iter().map(line).collect();
            let missing = missing(&members, &list).expect("a list");
            let shorter = |what: &String| what.replace(&format!("{}/", tree.display()), "");
            missing.iter().map(shorter).collect::<Vec<_>>()
        };
        assert!(lacks(&[(0, "one"), (0, "first"), (1, "second")]).is_empty());
        assert_eq!(
            lacks(&[(0, "one"), (0, "first")]),
            [
                "no test program of two was built",
                "two/tests/second/main.rs was not built"
            ]
        );
        assert_eq!(
            lacks(&[(0, "one"), (1, "second")]),
            ["one/tests/first.rs was not built"]
        );
        assert_eq!(
            lacks(&[(0, "first"), (1, "two")]),
            ["two/tests/second/main.rs was not built"]
        );
        assert_eq!(lacks(&[]), ["no test program was built"]);
        std::fs::remove_dir_all(&tree).expect("it is there");
    }
}
