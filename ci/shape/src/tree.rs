//! The input of the check: the packages of the workspace and the text of their files.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::Error;

/// Folders whose packages are for tests.
const FOR_TESTS: [&str; 3] = ["hw-tests/", "fuzz/", "ci/"];

/// The text of each file, by its path from the root of the tree.
pub type Files = BTreeMap<String, String>;

/// A member of the workspace.
#[derive(Debug)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// The first file of its library and of each of its programs, from the root of the tree.
    pub roots: Vec<String>,
    /// The packages that its libraries and programs depend on.
    pub dependencies: Vec<String>,
}

/// The sources of a workspace.
#[derive(Debug, Default)]
pub struct Tree {
    /// Its members.
    pub packages: Vec<Package>,
    /// Its files.
    pub files: Files,
}

impl Tree {
    /// Reads the workspace in this folder.
    ///
    /// # Errors
    /// Cargo does not know the workspace, or a file can not be read.
    pub fn read(root: &Path) -> Result<Self, Error> {
        let root = &root.canonicalize().map_err(|e| io(root, e))?;
        let packages = packages(root)?;
        let mut files = Files::new();
        read_folder(root, root, &mut files)?;
        Ok(Self { packages, files })
    }
}

/// The workspace's members with production code.
fn packages(root: &Path) -> Result<Vec<Package>, Error> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--no-deps", "--offline", "--format-version=1"]);
    let output = command.current_dir(root).output();
    let output = output.map_err(|e| io(Path::new("cargo"), e))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::Metadata(why));
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|e| Error::Metadata(e.to_string()))?;
    let members = metadata["packages"].as_array().into_iter().flatten();
    let packages = members.map(|member| {
        let targets = member["targets"].as_array().into_iter().flatten();
        let roots = targets.filter_map(|target| production_root(root, target));
        let dependencies = member["dependencies"].as_array().into_iter().flatten();
        // Those of tests and of build scripts have a kind.
        let dependencies = dependencies.filter(|it| it["kind"].is_null());
        Package {
            name: name(member),
            roots: roots.collect(),
            dependencies: dependencies.map(name).collect(),
        }
    });
    Ok(packages.filter(|it| !it.roots.is_empty()).collect())
}

fn name(package: &Value) -> String {
    package["name"].as_str().unwrap_or_default().to_owned()
}

/// The first file of a library or a program, unless it is for tests.
fn production_root(root: &Path, target: &Value) -> Option<String> {
    let kinds = target["kind"].as_array()?;
    let is_production = |kind: &Value| {
        let kind = kind.as_str().unwrap_or_default();
        kind.ends_with("lib") || kind == "bin" || kind == "proc-macro"
    };
    let path = Path::new(target["src_path"].as_str()?);
    let path = path.strip_prefix(root).ok()?.to_str()?;
    let for_tests = FOR_TESTS.iter().any(|folder| path.starts_with(folder));
    let is_source = path.split('/').any(|folder| folder == "src");
    let counts = kinds.iter().any(is_production) && is_source && !for_tests;
    counts.then(|| path.to_owned())
}

fn read_folder(root: &Path, folder: &Path, files: &mut Files) -> Result<(), Error> {
    for entry in std::fs::read_dir(folder).map_err(|e| io(folder, e))? {
        let path = entry.map_err(|e| io(folder, e))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            // Hidden folders and build results are not part of the tree.
            if !name.starts_with('.') && name != "target" {
                read_folder(root, &path, files)?;
            }
        } else if name.ends_with(".rs") {
            let text = std::fs::read_to_string(&path).map_err(|e| io(&path, e))?;
            let name = path.strip_prefix(root).unwrap_or(&path);
            files.insert(name.to_string_lossy().into_owned(), text);
        }
    }
    Ok(())
}

fn io(path: &Path, source: std::io::Error) -> Error {
    Error::Io {
        path: path.display().to_string(),
        source,
    }
}
