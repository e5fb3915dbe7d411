//! The messages of commits: `area: imperative change` in at most 72 columns, then why.

use crate::git::Commit;
use crate::rules::ProseRule;
use crate::words::Words;
use crate::{Finding, markdown, of_prose};

/// The widest subject, in columns.
const SUBJECT_WIDTH: usize = 72;

/// The fewest words that can say why.
const FEWEST_WORDS: usize = 6;

/// The faults of a commit's message.
pub(crate) fn findings(words: &Words, commit: &Commit) -> Vec<Finding> {
    let place = format!("commit {}", commit.hash);
    let mut lines = commit.message.lines();
    let subject = lines.next().unwrap_or_default();
    let mut found: Vec<Finding> = Vec::new();
    let mut add = |rule, line, text: String| {
        found.push(Finding {
            place: place.clone(),
            line,
            rule,
            text,
        });
    };
    if let Some(why) = subject_fault(subject) {
        add(ProseRule::Subject, 1, format!("{subject} [{why}]"));
    }
    let body: Vec<&str> = lines.collect();
    let said: usize = body
        .iter()
        .filter(|line| !is_trailer(line))
        .map(|line| line.split_whitespace().count())
        .sum();
    if said < FEWEST_WORDS {
        add(ProseRule::Body, 1, format!("{subject} [no body says why]"));
    } else if !body[0].trim().is_empty() {
        let text = format!("{subject} [no empty line below]");
        add(ProseRule::Body, 2, text);
    }
    let prose = markdown::document(&commit.message);
    found.extend(of_prose(words, &place, &prose));
    found
}

/// The fault of a subject, if it has one.
fn subject_fault(subject: &str) -> Option<&'static str> {
    if subject.chars().count() > SUBJECT_WIDTH {
        return Some("longer than 72 columns");
    }
    let Some((area, change)) = subject.split_once(": ") else {
        return Some("not `area: change`");
    };
    let is_area =
        |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || "-_/., ".contains(it);
    if area.is_empty() || !area.chars().all(is_area) {
        return Some("the area is in small letters");
    }
    if change.ends_with('.') {
        return Some("no full stop at its end");
    }
    let first = change.split_whitespace().next().unwrap_or_default();
    if !first.starts_with(|it: char| it.is_ascii_lowercase()) {
        return Some("the change begins with a verb in small letters");
    }
    (!is_imperative(first)).then_some("the verb is an imperative")
}

/// Whether a word may be an imperative: it has no ending of another form.
fn is_imperative(word: &str) -> bool {
    let imperatives = [
        "bring", "ring", "string", "ping", "swing", "embed", "feed", "need", "shed", "seed",
        "speed", "exceed", "proceed", "succeed", "bias", "focus", "alias",
    ];
    let articles = ["a", "an", "the", "no", "new", "some", "all", "more"];
    let third_person = word.ends_with('s') && !word.ends_with("ss");
    let other_form = word.ends_with("ing") || word.ends_with("ed") || third_person;
    imperatives.contains(&word) || (!other_form && !articles.contains(&word))
}

/// `Signed-off-by: …` and its like.
fn is_trailer(line: &str) -> bool {
    let key = line.split_once(": ").map(|(key, _)| key);
    key.is_some_and(|key| !key.contains(' ') && key.contains('-'))
}
