//! New sentences and commits, in histories of a few commits.

#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Command;

use ferrofabric_prose::rules::ProseRule;
use ferrofabric_prose::{Base, GLOSSARY, SINCE, base, since};

/// A repository in a folder of its own.
struct Repository(PathBuf);

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Repository {
    fn folder(name: &str) -> PathBuf {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    fn new(name: &str) -> Self {
        let folder = Self::folder(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let made = Self(folder);
        made.git(&["init", "--quiet"]);
        made.write(GLOSSARY, include_str!("../../../docs/glossary.md"));
        made
    }

    fn git(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("git");
        for setting in ["user.name=Tests", "user.email=tests@example.org"] {
            command.args(["-c", setting]);
        }
        let output = command.arg("-C").arg(&self.0).args(arguments).output();
        let output = output.expect("git");
        assert!(output.status.success(), "git {arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        let folder = path.parent().expect("a folder");
        std::fs::create_dir_all(folder).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }

    fn commit(&self, message: &str) -> String {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--allow-empty", "--message", message]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// The places and rules of the findings that are newer than the tree's base.
    fn new_findings(&self) -> Vec<(String, ProseRule)> {
        let base = base(&self.0).unwrap_or_else(|e| panic!("{e}"));
        let findings = since(&self.0, &base).unwrap_or_else(|e| panic!("{e}"));
        let place = |it: &str| it.split(' ').next().unwrap_or_default().to_owned();
        let findings = findings.iter();
        findings.map(|it| (place(&it.place), it.rule)).collect()
    }
}

const GOOD: &str = "docs: say more of the peer\n\nThe document did not name the peer's states.";
// prose: ok (an example)
const OLD: &str = "A peer waits. Who asks it twice gets two answers.\n";

#[test]
fn only_new_sentences_are_found() {
    let tree = Repository::new("new-sentences");
    tree.write("a.md", OLD);
    let first = tree.commit("old");
    tree.write(SINCE, &format!("# A comment.\n{first}\n"));
    tree.commit(GOOD);
    assert_eq!(tree.new_findings(), []);

    // Wrapped anew, and in another file.
    tree.git(&["mv", "a.md", "b.md"]);
    tree.write("b.md", &OLD.replace("Who asks ", "Who asks\n"));
    tree.commit(GOOD);
    assert_eq!(tree.new_findings(), []);

    // Once more the same sentence is one more.
    tree.write("c.md", OLD);
    let twice = [
        ("c.md".to_owned(), ProseRule::FreeRelative),
        ("c.md".to_owned(), ProseRule::PeoplesVerb),
    ];
    tree.git(&["add", "c.md"]);
    assert_eq!(tree.new_findings(), twice);
}

#[test]
fn commits_are_read_from_the_base_on() {
    let tree = Repository::new("commits");
    let first = tree.commit("old");
    tree.write(SINCE, &first);
    tree.commit(GOOD);
    assert_eq!(tree.new_findings(), []);
    tree.commit("Changed it");
    let found = [
        ("commit".to_owned(), ProseRule::Subject),
        ("commit".to_owned(), ProseRule::Body),
    ];
    assert_eq!(tree.new_findings(), found);
    tree.write(SINCE, &tree.git(&["rev-parse", "HEAD"]));
    tree.commit(GOOD);
    assert_eq!(tree.new_findings(), []);
}

#[test]
fn a_shallow_clone_compares_with_its_oldest_commit() {
    let tree = Repository::new("deep");
    tree.write("a.md", OLD);
    let first = tree.commit("old");
    tree.write(SINCE, &first);
    tree.commit(GOOD);
    tree.write("b.md", OLD);
    tree.commit(GOOD);
    let clone = |depth: &str| {
        let name = format!("shallow-{depth}");
        let url = format!("file://{}", tree.0.display());
        let folder = Repository::folder(&name);
        let folder_name = folder.to_string_lossy().into_owned();
        tree.git(&["clone", "--quiet", "--depth", depth, &url, &folder_name]);
        Repository(folder)
    };
    let two = clone("2");
    assert!(matches!(base(&two.0), Ok(Base::Oldest { tree: Some(_) })));
    assert_eq!(two.new_findings().len(), 2, "{:?}", two.new_findings());
    let one = clone("1");
    assert!(matches!(base(&one.0), Ok(Base::Oldest { tree: None })));
    assert_eq!(one.new_findings(), []);
}

#[test]
fn a_base_that_is_not_in_the_history_is_an_error() {
    let tree = Repository::new("unknown-base");
    tree.write(SINCE, &"0".repeat(40));
    tree.commit(GOOD);
    assert!(base(&tree.0).is_err());
}
