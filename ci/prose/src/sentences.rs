//! Sentences of a paragraph, as words.

use crate::blocks::ProseBlock;

/// A sentence, or the part of one before a colon or a semicolon.
#[derive(Debug)]
pub(crate) struct Sentence {
    /// Where it begins.
    pub(crate) line: usize,
    /// Its text, on one line, with `X` for code.
    pub(crate) text: String,
    /// Its words in lower case, and its punctuation, each character on its own.
    pub(crate) tokens: Vec<String>,
    /// Whether it goes on where another one ended with a colon or a semicolon.
    pub(crate) continues: bool,
}

/// The sentences of a paragraph.
pub(crate) fn of(block: &ProseBlock) -> Vec<Sentence> {
    let characters = flat(block);
    let mut sentences = Vec::new();
    let mut rest = characters.as_slice();
    let mut continues = false;
    while !rest.is_empty() {
        let end = end_of_sentence(rest);
        let (sentence, after) = rest.split_at(end);
        let last = sentence.iter().rev().find(|(it, _)| !it.is_whitespace());
        let text: String = sentence.iter().map(|&(character, _)| character).collect();
        let text = text.trim();
        if let (Some(&(last, _)), false) = (last, text.is_empty()) {
            let begin = sentence.iter().find(|(it, _)| !it.is_whitespace());
            sentences.push(Sentence {
                line: begin.map_or(0, |&(_, line)| line),
                text: text.to_owned(),
                tokens: tokens(text),
                continues,
            });
            continues = matches!(last, ':' | ';');
        }
        rest = after;
    }
    sentences
}

/// The characters of a paragraph with their lines, code replaced and links reduced to their text.
fn flat(block: &ProseBlock) -> Vec<(char, usize)> {
    let joined = block.lines.iter().flat_map(|(number, text)| {
        let text = text.trim().chars().chain([' ']);
        text.map(move |character| (character, *number))
    });
    let joined: Vec<(char, usize)> = joined.collect();
    let mut flat = Vec::with_capacity(joined.len());
    let mut at = 0;
    while let Some(&(character, line)) = joined.get(at) {
        let find = |from: usize, wanted: char| {
            let rest = joined.get(from..).unwrap_or_default();
            rest.iter()
                .position(|&(it, _)| it == wanted)
                .map(|it| from + it)
        };
        let next = joined.get(at + 1).map(|&(it, _)| it);
        match (character, next) {
            ('`', _) => {
                flat.push(('X', line));
                let fence = joined[at..].iter().take_while(|it| it.0 == '`').count();
                let close = closing(&joined, at + fence, fence);
                at = close.map_or(joined.len(), |close| close + fence);
                continue;
            }
            // The target of a link.
            (']', Some('(')) => {
                flat.push((']', line));
                at = find(at, ')').map_or(joined.len(), |close| close + 1);
                continue;
            }
            // White space only once, so that a text does not depend on how it is wrapped.
            (' ', Some(' ')) => {}
            _ => flat.push((character, line)),
        }
        at += 1;
    }
    flat
}

/// Where as many backticks stand as those that opened code.
fn closing(characters: &[(char, usize)], from: usize, fence: usize) -> Option<usize> {
    let mut at = from;
    while at < characters.len() {
        let run = characters[at..].iter().take_while(|it| it.0 == '`').count();
        if run == fence {
            return Some(at);
        }
        at += run.max(1);
    }
    None
}

/// Where the next sentence begins.
fn end_of_sentence(characters: &[(char, usize)]) -> usize {
    let mut before = ' ';
    let mut word = String::new();
    for (at, &(character, _)) in characters.iter().enumerate() {
        let abbreviates = matches!(word.as_str(), "e.g." | "i.e." | "cf." | "vs." | "etc.");
        if character == ' ' && matches!(before, '.' | '!' | '?' | ':' | ';') && !abbreviates {
            return at + 1;
        }
        match character {
            ' ' => word.clear(),
            _ => word.push(character),
        }
        // A bracket or a quote belongs to the sentence that it closes.
        if !matches!(character, ')' | '"' | '*' | '_' | '”') {
            before = character;
        }
    }
    characters.len()
}

fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    for character in text.chars() {
        let belongs = character.is_alphanumeric() || matches!(character, '\'' | '’' | '_' | '-');
        if belongs {
            word.extend(character.to_lowercase());
            continue;
        }
        if !word.is_empty() {
            tokens.push(std::mem::take(&mut word));
        }
        if !character.is_whitespace() {
            tokens.push(character.to_string());
        }
    }
    if !word.is_empty() {
        tokens.push(word);
    }
    tokens
}
