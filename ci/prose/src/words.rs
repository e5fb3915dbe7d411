//! The list of words that the project does not use: the last table of the glossary.

use std::path::Path;

use crate::{Error, GLOSSARY};

/// The heading above the list.
pub(crate) const HEADING: &str = "## Words that we do not use";

/// Words and phrases, each with its replacement.
#[derive(Debug, Default)]
pub(crate) struct Words(Vec<(Vec<String>, String)>);

impl Words {
    pub(crate) fn read(root: &Path) -> Result<Self, Error> {
        let path = root.join(GLOSSARY);
        let text = std::fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
        Self::parse(&text)
    }

    /// Reads the rows `| REPLACEMENT | `WORD OR PHRASE`, … | words that only a reader finds |`.
    pub(crate) fn parse(document: &str) -> Result<Self, Error> {
        let mut words = Vec::new();
        let below = (1..)
            .zip(document.lines())
            .skip_while(|(_, text)| *text != HEADING)
            .skip(1)
            .take_while(|(_, text)| !text.starts_with('#'));
        let rows = below.filter(|(_, text)| text.starts_with('|'));
        // The first two are the names of the columns and the rule below them.
        for (line, row) in rows.skip(2) {
            let mut cells = row.trim_matches('|').split('|').map(str::trim);
            let (Some(better), Some(phrases)) = (cells.next(), cells.next()) else {
                return Err(Error::Row { line });
            };
            if better.is_empty() {
                return Err(Error::Row { line });
            }
            for phrase in phrases
                .split(',')
                .map(str::trim)
                .filter(|it| !it.is_empty())
            {
                let phrase = phrase.strip_prefix('`').and_then(|it| it.strip_suffix('`'));
                let phrase: Vec<String> = phrase
                    .unwrap_or_default()
                    .split_whitespace()
                    .map(str::to_lowercase)
                    .collect();
                if phrase.is_empty() {
                    return Err(Error::Row { line });
                }
                words.push((phrase, better.to_owned()));
            }
        }
        match words.is_empty() {
            true => Err(Error::NoWords),
            false => Ok(Self(words)),
        }
    }

    /// The replacement of the first such word or phrase.
    pub(crate) fn better(&self, tokens: &[String]) -> Option<&str> {
        (0..tokens.len()).find_map(|at| {
            let found = self.0.iter().find(|it| begins_with(&tokens[at..], &it.0));
            found.map(|(_, better)| better.as_str())
        })
    }
}

/// Whether the tokens begin with the phrase, its first word in any regular form.
fn begins_with(tokens: &[String], phrase: &[String]) -> bool {
    let (Some(token), Some(word)) = (tokens.first(), phrase.first()) else {
        return false;
    };
    is_form(token, word) && tokens[1..].starts_with(&phrase[1..])
}

/// Whether a token is the word, its plural, its genitive or another form of the verb.
fn is_form(token: &str, word: &str) -> bool {
    let stem = word.strip_suffix('e').unwrap_or(word);
    let ending = |stem, endings: &[&str]| {
        let rest = token.strip_prefix(stem);
        rest.is_some_and(|rest| endings.contains(&rest))
    };
    ending(word, &["", "s", "'s", "’s", "es"]) || ending(stem, &["ed", "ing"])
}
