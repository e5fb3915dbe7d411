//! The comments of C code.

use crate::blocks::{Comments, Prose, comment_lines};

/// Reads a file.
pub(crate) fn prose(code: &str) -> Prose {
    let mut prose = Prose::default();
    let mut comments = Comments::default();
    let (mut at, mut number) = (0, 1);
    while at < code.len() {
        let rest = &code[at..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else {
            let length = match rest.chars().next() {
                Some(quote @ ('"' | '\'')) => literal(rest, quote),
                first => first.map_or(1, char::len_utf8),
            };
            number += rest[..length].matches('\n').count();
            at += length;
            continue;
        };
        if rest.starts_with("/*") {
            comments.end_run();
        }
        let start = code[..at].rfind('\n').map_or(0, |end| end + 1);
        let whole = code[start..].lines();
        let count = rest[..length].lines().count();
        for (offset, line) in whole.take(count).enumerate() {
            prose.measure(number + offset, line);
        }
        for (offset, line) in comment_lines(&rest[..length]).enumerate() {
            comments.push(number + offset, line);
        }
        number += rest[..length].matches('\n').count();
        at += length;
    }
    prose.blocks = comments.blocks();
    prose
}

/// The length of a string or character literal that begins a text.
fn literal(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            // Not closed on its line: an apostrophe of the preprocessor's text.
            '\n' => return at,
            _ if character == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}
