//! Blocks: a heading, and below it facts with their labels, wrapped.

use std::fmt;

use textwrap::Options;

use super::WIDTH;

const INDENT: &str = "  ";

/// Something with facts about it.
pub(crate) struct Block {
    heading: String,
    facts: Vec<(&'static str, String)>,
}

impl Block {
    /// A block without facts.
    pub(crate) fn new(heading: impl Into<String>) -> Self {
        Self {
            heading: heading.into(),
            facts: Vec::new(),
        }
    }

    /// The same with one more fact; an empty label is no label.
    pub(crate) fn fact(mut self, label: &'static str, text: impl Into<String>) -> Self {
        self.facts.push((label, text.into()));
        self
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&wrapped(&self.heading, "", INDENT))?;
        let labels = self.facts.iter().map(|(label, _)| label.len());
        let column = labels.max().unwrap_or(0);
        for (label, text) in &self.facts {
            let first = match label.is_empty() {
                true => INDENT.to_owned(),
                false => format!("{INDENT}{label:column$} "),
            };
            let next = " ".repeat(first.len());
            f.write_str(&wrapped(text, &first, &next))?;
        }
        Ok(())
    }
}

/// A text in lines that fit, the first one after `first`, the others after `next`.
pub fn wrapped(text: &str, first: &str, next: &str) -> String {
    let options = Options::new(WIDTH)
        .initial_indent(first)
        .subsequent_indent(next);
    textwrap::fill(text, options) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_stand_below_the_heading_and_fit() {
        let long = "word ".repeat(30);
        let block = Block::new("shm")
            .fact("why:", "short")
            .fact("longer:", long.trim())
            .fact("", "free");
        let text = block.to_string();
        assert!(text.starts_with("shm\n  why:    short\n  longer: word word"));
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.contains("\n          word"), "{text}");
        assert!(text.ends_with("\n  free\n"), "{text}");
    }
}
