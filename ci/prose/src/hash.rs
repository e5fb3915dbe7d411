//! The comments of shell, Python, TOML and YAML: lines that begin with `#`.

use crate::blocks::{Comments, Prose};

/// Reads a file.
pub(crate) fn prose(code: &str) -> Prose {
    let mut prose = Prose::default();
    let mut comments = Comments::default();
    for (number, line) in (1..).zip(code.lines()) {
        let Some(comment) = line.trim_start().strip_prefix('#') else {
            continue;
        };
        if comment.starts_with('!') {
            continue;
        }
        comments.push(number, comment.strip_prefix(' ').unwrap_or(comment));
        prose.measure(number, line);
    }
    prose.blocks = comments.blocks();
    prose
}
