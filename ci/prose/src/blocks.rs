//! The prose of a file, whatever its language: paragraphs, each line with its number.

use crate::WIDTH;

/// A line and its number, from 1.
pub(crate) type NumberedLine = (usize, String);

/// The prose of a file.
#[derive(Debug, Default)]
pub(crate) struct Prose {
    /// Paragraphs of comments and documents, and messages.
    pub(crate) blocks: Vec<ProseBlock>,
    /// Lines that are wider than [`WIDTH`].
    pub(crate) wide: Vec<NumberedLine>,
}

impl Prose {
    /// Notes a line of prose that is too wide. Nothing wraps an address.
    pub(crate) fn measure(&mut self, number: usize, line: &str) {
        if line.chars().count() > WIDTH && !line.contains("://") {
            self.wide.push((number, line.to_owned()));
        }
    }
}

/// A paragraph.
#[derive(Debug, Default)]
pub(crate) struct ProseBlock {
    pub(crate) lines: Vec<NumberedLine>,
    /// Whether a mark outside of the text is about it.
    pub(crate) marked: bool,
}

impl ProseBlock {
    /// Whether it is marked as right as it is, with a reason.
    pub(crate) fn is_marked(&self) -> bool {
        let text: Vec<&str> = self.lines.iter().map(|(_, text)| text.as_str()).collect();
        self.marked || has_mark(&text.join(" "))
    }
}

/// Whether a text has the mark, with a reason.
pub(crate) fn has_mark(text: &str) -> bool {
    let reason = text.split_once("prose: ok (").map(|(_, rest)| rest);
    reason.is_some_and(|rest| rest.find(')').is_some_and(|end| end > 0))
}

/// Comment lines that follow each other, which become paragraphs as Markdown has them.
#[derive(Debug, Default)]
pub(crate) struct Comments {
    run: Vec<NumberedLine>,
    done: Vec<ProseBlock>,
}

impl Comments {
    /// Adds a comment line, or one line of a longer comment, without its marker.
    pub(crate) fn push(&mut self, number: usize, text: &str) {
        if self.run.last().is_some_and(|&(last, _)| last + 1 < number) {
            self.end_run();
        }
        self.run.push((number, text.to_owned()));
    }

    /// Ends the comment: the next line begins another one.
    pub(crate) fn end_run(&mut self) {
        let run = std::mem::take(&mut self.run);
        self.done.extend(crate::markdown::paragraphs(&run));
    }

    pub(crate) fn blocks(mut self) -> Vec<ProseBlock> {
        self.end_run();
        self.done
    }
}

/// The text of a comment: without `//`, `///`, `/*` or the `*` before each line of a long one.
pub(crate) fn comment_lines(comment: &str) -> impl Iterator<Item = &str> {
    let inner = match comment.strip_prefix("/*") {
        Some(long) => long.strip_suffix("*/").unwrap_or(long),
        None => comment.trim_start_matches('/'),
    };
    let inner = inner.strip_prefix('!').unwrap_or(inner);
    let long = comment.starts_with("/*");
    inner.lines().map(move |line| match long {
        true => {
            let line = line.trim_start();
            let line = line.strip_prefix('*').unwrap_or(line);
            line.strip_prefix(' ').unwrap_or(line)
        }
        false => line.strip_prefix(' ').unwrap_or(line),
    })
}
