//! The list of words that the project does not use.

use std::path::Path;

use crate::{Error, WORDS};

/// Words and phrases, each with its replacement.
#[derive(Debug, Default)]
pub(crate) struct Words(Vec<(Vec<String>, String)>);

impl Words {
    pub(crate) fn read(root: &Path) -> Result<Self, Error> {
        let path = root.join(WORDS);
        let text = std::fs::read_to_string(&path).map_err(|source| Error::Io { path, source })?;
        Self::parse(&text)
    }

    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let mut words = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            if text.trim().is_empty() || text.starts_with('#') {
                continue;
            }
            let (phrases, better) = text.split_once('=').ok_or(Error::Words { line })?;
            for phrase in phrases.split(',') {
                let phrase: Vec<String> = phrase
                    .split_whitespace()
                    .map(|word| word.to_lowercase())
                    .collect();
                if phrase.is_empty() || better.trim().is_empty() {
                    return Err(Error::Words { line });
                }
                words.push((phrase, better.trim().to_owned()));
            }
        }
        Ok(Self(words))
    }

    /// The replacement of the first such word or phrase.
    pub(crate) fn better(&self, tokens: &[String]) -> Option<&str> {
        (0..tokens.len()).find_map(|at| {
            let found = self.0.iter().find(|it| tokens[at..].starts_with(&it.0));
            found.map(|(_, better)| better.as_str())
        })
    }
}
