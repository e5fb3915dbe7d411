//! The prose of Rust code: comments, documentation, and string literals that read as sentences.
//!
//! proc-macro2 splits the code into tokens. Documentation comes as tokens of its own; comments are
//! found between tokens, where there is nothing but them and white space. So no string literal is
//! taken for a comment, nor the other way round.

use std::ops::Range;
use std::str::FromStr;

use proc_macro2::{TokenStream, TokenTree};

use crate::blocks::{Comments, Prose, ProseBlock, comment_lines, has_mark};

/// The fewest words of a message.
const FEWEST_WORDS: usize = 5;

/// Reads a file. Code that is not Rust has no prose: the compiler complains about it.
pub(crate) fn prose(code: &str) -> Prose {
    let Ok(tokens) = TokenStream::from_str(code) else {
        return Prose::default();
    };
    let mut leaves = Vec::new();
    collect(tokens, &mut leaves);
    // A documentation comment is several tokens, each of which spans the comment.
    leaves.sort_by_key(|range| (range.start, range.end));
    leaves.dedup();
    let lines = LineNumbers::of(code);
    let mut read = RustReader {
        code,
        lines,
        comments: Comments::default(),
        strings: Vec::new(),
        prose: Prose::default(),
        marked_lines: Vec::new(),
    };
    let mut end = 0;
    for leaf in leaves {
        read.between(end..leaf.start);
        read.token(leaf.clone());
        end = leaf.end.max(end);
    }
    read.between(end..code.len());
    read.finish()
}

/// The places of all tokens.
fn collect(tokens: TokenStream, leaves: &mut Vec<Range<usize>>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                leaves.push(group.span_open().byte_range());
                leaves.push(group.span_close().byte_range());
                collect(group.stream(), leaves);
            }
            other => leaves.push(other.span().byte_range()),
        }
    }
}

/// From the place of a byte to the number of its line.
struct LineNumbers(Vec<usize>);

impl LineNumbers {
    fn of(code: &str) -> Self {
        Self(code.match_indices('\n').map(|(at, _)| at).collect())
    }

    fn at(&self, byte: usize) -> usize {
        self.0.partition_point(|&end| end < byte) + 1
    }
}

struct RustReader<'a> {
    code: &'a str,
    lines: LineNumbers,
    comments: Comments,
    strings: Vec<ProseBlock>,
    prose: Prose,
    /// Lines of comments with a mark, which also is about a message on that line or the next.
    marked_lines: Vec<usize>,
}

impl RustReader<'_> {
    /// Reads the comments between two tokens.
    fn between(&mut self, gap: Range<usize>) {
        let mut at = gap.start;
        while at < gap.end {
            let rest = &self.code[at..gap.end];
            let length = if rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                long_comment(rest)
            } else {
                at += rest.chars().next().map_or(1, char::len_utf8);
                continue;
            };
            self.comment(at..at + length);
            at += length;
        }
    }

    fn comment(&mut self, place: Range<usize>) {
        let first = self.lines.at(place.start);
        let text = &self.code[place.clone()];
        // Behind code on the same line: no part of the comment above.
        let before = &self.code[..place.start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let behind_code = !before[line_start..].trim().is_empty();
        if behind_code || text.starts_with("/*") {
            self.comments.end_run();
        }
        for (offset, line) in comment_lines(text).enumerate() {
            self.comments.push(first + offset, line);
            if has_mark(line) {
                self.marked_lines.push(first + offset);
            }
        }
        let whole = self.code[line_start..].lines();
        let count = text.lines().count();
        for (offset, line) in whole.take(count).enumerate() {
            self.prose.measure(first + offset, line);
        }
    }

    fn token(&mut self, place: Range<usize>) {
        let text = &self.code[place.clone()];
        if text.starts_with("//") || text.starts_with("/*") {
            self.comment(place);
        } else if let Some(message) = string(text) {
            let first = self.lines.at(place.start);
            let lines = message.lines().enumerate();
            let lines: Vec<_> = lines
                .map(|(offset, line)| (first + offset, without_escapes(line)))
                .collect();
            let words: usize = lines
                .iter()
                .map(|(_, it)| it.split_whitespace().count())
                .sum();
            if words >= FEWEST_WORDS {
                self.strings.push(ProseBlock {
                    lines,
                    marked: false,
                });
            }
        }
    }

    fn finish(mut self) -> Prose {
        for block in &mut self.strings {
            let first = block.lines.first().map_or(0, |&(number, _)| number);
            let about = [first, first - 1];
            block.marked = about.iter().any(|line| self.marked_lines.contains(line));
        }
        self.prose.blocks = self.comments.blocks();
        self.prose.blocks.append(&mut self.strings);
        self.prose
    }
}

/// The length of a comment that begins a text; comments of this kind nest.
fn long_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The text between the quotes of a string literal, of any kind.
fn string(token: &str) -> Option<&str> {
    let kinds = ["br", "cr", "b", "c", "r", ""];
    let rest = kinds.iter().find_map(|kind| {
        let rest = token.strip_prefix(kind)?;
        (rest.starts_with('"') || (kind.ends_with('r') && rest.starts_with('#'))).then_some(rest)
    })?;
    let quoted = rest.trim_matches('#');
    quoted.strip_prefix('"')?.strip_suffix('"')
}

/// A line of a string literal as it is printed, with `{…}` as code.
fn without_escapes(line: &str) -> String {
    let mut text = String::new();
    let mut characters = line.chars().peekable();
    let mut depth = 0;
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('n' | 't' | 'r') => text.push(' '),
                Some(quote @ ('"' | '\'')) => text.push(quote),
                _ => {}
            },
            '{' => {
                depth += 1;
                text.push('`');
            }
            '}' if depth > 0 => {
                depth -= 1;
                text.push('`');
            }
            other => text.push(other),
        }
    }
    text
}
