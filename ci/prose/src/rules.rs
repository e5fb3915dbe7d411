//! The rules: each looks at the words of one sentence.

use std::fmt;

use crate::sentences::Sentence;
use crate::words::Words;

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProseRule {
    /// "Who sends waits": the subject is a clause instead of a noun. prose: ok (example)
    FreeRelative,
    /// "a list of what came": a clause where a noun names the thing. prose: ok (example)
    Relative,
    /// "The lane is told of it": a verb that takes a person. prose: ok (example)
    PeoplesVerb,
    /// "There are so many": a number without its noun. prose: ok (example)
    NumberWithoutNoun,
    /// A word that the glossary replaces.
    Replaced,
    /// A line over 100 columns.
    Wide,
    /// A commit's subject that is not `area: imperative` in at most 72 columns.
    Subject,
    /// A commit without a body that says why.
    Body,
}

impl fmt::Display for ProseRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FreeRelative => "free relative as subject",
            Self::Relative => "free relative without a noun",
            Self::PeoplesVerb => "a person's verb for a thing",
            Self::NumberWithoutNoun => "number without its noun",
            Self::Replaced => "word that the glossary replaces",
            Self::Wide => "longer than 100 columns",
            Self::Subject => "subject of a commit",
            Self::Body => "body of a commit",
        })
    }
}

/// The rules that a sentence breaks, some with a hint.
pub(crate) fn broken(sentence: &Sentence, words: &Words) -> Vec<(ProseRule, Option<String>)> {
    let tokens: Vec<&str> = sentence.tokens.iter().map(String::as_str).collect();
    let mut broken = Vec::new();
    if is_free_relative(sentence, &tokens) {
        broken.push((ProseRule::FreeRelative, None));
    }
    if has_relative(&tokens) {
        broken.push((ProseRule::Relative, None));
    }
    if let Some(verb) = peoples_verb(&tokens) {
        broken.push((ProseRule::PeoplesVerb, Some(verb)));
    }
    if lacks_noun(&tokens) {
        broken.push((ProseRule::NumberWithoutNoun, None));
    }
    if let Some(better) = words.better(&sentence.tokens) {
        broken.push((ProseRule::Replaced, Some(format!("write: {better}"))));
    }
    broken
}

/// "Who sends waits." Questions are in order. prose: ok (example)
fn is_free_relative(sentence: &Sentence, tokens: &[&str]) -> bool {
    let begin = tokens.iter().position(|it| is_word(it));
    let Some(first) = begin.map(|at| tokens[at]) else {
        return false;
    };
    let relatives = ["who", "whom", "whoever", "what", "whatever", "whichever"];
    let begins = relatives.contains(&first);
    // In a message or a cell, a small letter begins a fragment, as "what it is for".
    let capital = sentence.text.chars().find(|it| it.is_alphabetic());
    let is_start = sentence.continues || capital.is_some_and(char::is_uppercase);
    begins && is_start && !tokens.contains(&"?")
}

/// "a list of what came": the words before such a clause that make it a noun. prose: ok (example)
fn has_relative(tokens: &[&str]) -> bool {
    let before = [
        "to", "by", "of", "from", "for", "with", "and", "or", "than", "as", "is", "are", "was",
    ];
    let relatives = ["who", "whoever", "what", "whatever"];
    let found = tokens.windows(2).enumerate().any(|(at, pair)| {
        let after = tokens.get(at + 2).copied().unwrap_or_default();
        before.contains(&pair[0])
            && relatives.contains(&pair[1])
            && !matches!(after, "extent" | "it" | "?" | "")
    });
    found && !tokens.contains(&"?")
}

/// A verb of a person whose subject or object is a thing.
fn peoples_verb(tokens: &[&str]) -> Option<String> {
    let people = [
        "user",
        "users",
        "reader",
        "readers",
        "operator",
        "maintainer",
        "maintainers",
        "administrator",
        "person",
        "people",
        "you",
        "we",
    ];
    let of_person = ["tells", "hears", "asks", "promises", "minds"];
    let passive = ["told", "asked", "heard", "promised"];
    let helpers = [
        "is", "are", "was", "were", "be", "been", "being", "not", "never", "had", "has", "have",
        "who", "that",
    ];
    let bare = ["tell", "hear", "ask", "promise"];
    let before_bare = [
        "to", "must", "can", "may", "will", "would", "should", "not", "never", "cannot", "could",
        "they", "that", "who",
    ];
    for (at, &word) in tokens.iter().enumerate() {
        let before = at.checked_sub(1).map_or("", |at| tokens[at]);
        let rest = &tokens[at + 1..];
        // "to tell one from another" takes no person. prose: ok (example)
        let distinguishes = rest.contains(&"apart") || rest.contains(&"from");
        let is_tell = matches!(word, "tell" | "tells" | "told");
        if is_tell && distinguishes {
            continue;
        }
        let found = (of_person.contains(&word) && !people.contains(&before))
            || (passive.contains(&word) && helpers.contains(&before))
            || (bare.contains(&word) && before_bare.contains(&before))
            || (word == "known" && rest.first() == Some(&"of"))
            || (word == "knows" && rest.first() == Some(&"of") && !people.contains(&before));
        if found {
            return Some(word.to_owned());
        }
    }
    None
}

/// "so many" without the things that are counted. prose: ok (example)
fn lacks_noun(tokens: &[&str]) -> bool {
    tokens.windows(2).enumerate().any(|(at, pair)| {
        let after = tokens.get(at + 2).copied().unwrap_or_default();
        let is_noun = is_word(after) && (after.ends_with('s') || after == "people");
        let verbs = ["is", "was", "has", "does", "as"];
        pair == ["so", "many"] && (!is_noun || verbs.contains(&after))
    })
}

fn is_word(token: &str) -> bool {
    token.chars().next().is_some_and(char::is_alphanumeric)
}
