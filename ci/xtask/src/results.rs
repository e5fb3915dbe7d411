//! The results of tests that cargo-nextest ran, from its files in the format of JUnit.

use std::fs;
use std::path::Path;

use roxmltree::{Document, Node};

use crate::count::may_skip;

/// A test that ran.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TestResult {
    /// Its program and its name there.
    pub(crate) name: String,
    /// How it failed, if it did.
    pub(crate) failure: Option<String>,
    /// What it wrote, standard output first.
    pub(crate) output: String,
}

impl TestResult {
    /// Why the machine could not run it, as it says itself: a line that starts with SKIP. Of
    /// several reasons the first that is none where the device is there.
    pub(crate) fn skip(&self) -> Option<&str> {
        let reasons = self.output.lines().map(after_the_name);
        let mut reasons = reasons.filter(|line| line.starts_with("SKIP"));
        let first = reasons.clone().next();
        reasons.find(|reason| !may_skip(reason)).or(first)
    }
}

/// On one processor the harness writes "test NAME ... " first, and the test goes on in that line.
fn after_the_name(line: &str) -> &str {
    let begun = line.strip_prefix("test ");
    begun
        .and_then(|line| line.split_once(" ... "))
        .map_or(line, |(_, rest)| rest)
}

/// All results in a folder: one file for each run of cargo-nextest. None where the folder is not
/// there.
///
/// # Errors
///
/// If a file is not in the format.
pub(crate) fn of_folder(folder: &Path) -> Result<Vec<TestResult>, String> {
    let Ok(entries) = folder.read_dir() else {
        return Ok(Vec::new());
    };
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let said = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let text = fs::read_to_string(&file).map_err(|error| said(&error))?;
        all.extend(of_junit(&text).map_err(|error| said(&error))?);
    }
    Ok(all)
}

fn of_junit(text: &str) -> Result<Vec<TestResult>, roxmltree::Error> {
    let document = Document::parse(text)?;
    let cases = document.descendants();
    Ok(cases
        .filter(|node| node.has_tag_name("testcase"))
        .map(result)
        .collect())
}

fn result(case: Node<'_, '_>) -> TestResult {
    let attribute = |name| case.attribute(name).unwrap_or_default();
    let text_of = |tag: &str| {
        let node = case.children().find(|node| node.has_tag_name(tag));
        node.and_then(|node| node.text()).unwrap_or_default()
    };
    let failure = case
        .children()
        .find(|node| node.has_tag_name("failure") || node.has_tag_name("error"));
    let failure = failure.map(|node| {
        let words = [node.attribute("type"), node.attribute("message")];
        words.into_iter().flatten().collect::<Vec<_>>().join(": ")
    });
    TestResult {
        name: format!("{} {}", attribute("classname"), attribute("name")),
        failure,
        output: text_of("system-out").to_owned() + text_of("system-err"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JUNIT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="0">
    <testsuite name="one::integration" tests="3" failures="1">
        <testcase name="a::good" classname="one::integration" time="0.1">
            <system-out>running 1 test
</system-out>
        </testcase>
        <testcase name="a::cannot_run" classname="one::integration" time="0.1">
            <system-out>running 1 test
SKIP: no device
</system-out>
        </testcase>
        <testcase name="a::bad" classname="one::integration" time="0.1">
            <failure message="it is bad" type="test failure with exit code 101">it is bad</failure>
            <system-out>running 1 test
</system-out>
            <system-err>it is &lt;bad&gt;
</system-err>
        </testcase>
    </testsuite>
</testsuites>
"#;

    #[test]
    fn results_are_read_from_junit() {
        let results = of_junit(JUNIT).expect("it is in the format");
        let [good, skipped, bad] = &results[..] else {
            panic!("{results:?}");
        };
        assert_eq!(good.name, "one::integration a::good");
        assert_eq!((good.failure.as_deref(), good.skip()), (None, None));
        assert_eq!(skipped.skip(), Some("SKIP: no device"));
        let failure = "test failure with exit code 101: it is bad";
        assert_eq!(bad.failure.as_deref(), Some(failure));
        assert_eq!(bad.output, "running 1 test\nit is <bad>\n");
    }

    #[test]
    fn a_skip_is_found_behind_the_name_and_among_others() {
        let skip = |output: &str| {
            let output = output.to_owned();
            let result = TestResult {
                output,
                ..TestResult::default()
            };
            result.skip().map(str::to_owned)
        };
        let one_processor = "test a::b ... SKIP: no device\nok\n";
        assert_eq!(skip(one_processor).as_deref(), Some("SKIP: no device"));
        let two = "SKIP: no call [C]\nSKIP: no device\n";
        assert_eq!(skip(two).as_deref(), Some("SKIP: no device"));
        assert_eq!(
            skip("SKIP: no call [C]\n").as_deref(),
            Some("SKIP: no call [C]")
        );
        assert_eq!(skip("test a::b ... ok\nno SKIP\n"), None);
    }

    #[test]
    fn half_a_file_is_an_error() {
        assert!(of_junit(&JUNIT[..JUNIT.len() / 2]).is_err());
    }
}
