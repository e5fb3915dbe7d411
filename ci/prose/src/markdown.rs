//! The paragraphs of Markdown: a document, or the lines of a comment.

use crate::blocks::{NumberedLine, Prose, ProseBlock};

/// Reads a document. Code and tables may be wider than prose.
pub(crate) fn document(text: &str) -> Prose {
    let lines: Vec<NumberedLine> = (1..).zip(text.lines().map(str::to_owned)).collect();
    let blocks = paragraphs(&lines);
    let mut prose = Prose::default();
    let in_prose = blocks.iter().flat_map(|block| &block.lines);
    for (number, _) in in_prose {
        let line = lines[number - 1].1.as_str();
        if !line.trim_start().starts_with('|') {
            prose.measure(*number, line);
        }
    }
    prose.wide.dedup();
    prose.blocks = blocks;
    prose
}

/// The paragraphs of some lines. List items and the cells of tables are paragraphs of their own;
/// headings and code are none.
pub(crate) fn paragraphs(lines: &[NumberedLine]) -> Vec<ProseBlock> {
    let mut blocks: Vec<ProseBlock> = Vec::new();
    let (mut open, mut fenced) = (false, false);
    for (number, line) in lines {
        let text = line.trim();
        if text.starts_with("```") || text.starts_with("~~~") {
            (open, fenced) = (false, !fenced);
            continue;
        }
        let is_code = fenced || (!open && line.starts_with("    "));
        if is_code || text.is_empty() || text.starts_with('#') {
            open = false;
            continue;
        }
        if text.starts_with('|') {
            let cells = text.split('|').map(str::trim);
            for cell in cells.filter(|cell| !cell.is_empty()) {
                blocks.push(ProseBlock {
                    lines: vec![(*number, cell.to_owned())],
                    marked: crate::blocks::has_mark(text),
                });
            }
            open = false;
            continue;
        }
        let item = item(text);
        let text = item.unwrap_or(text).to_owned();
        match blocks.last_mut() {
            Some(block) if open && item.is_none() => block.lines.push((*number, text)),
            _ => blocks.push(ProseBlock {
                lines: vec![(*number, text)],
                marked: false,
            }),
        }
        open = true;
    }
    blocks
}

/// The text of a list item.
fn item(text: &str) -> Option<&str> {
    let bullet = ["- ", "* ", "+ "].iter();
    if let Some(rest) = bullet.filter_map(|it| text.strip_prefix(it)).next() {
        return Some(rest);
    }
    let rest = text.trim_start_matches(|it: char| it.is_ascii_digit());
    let numbered = rest.len() < text.len();
    numbered.then(|| rest.strip_prefix(". ")).flatten()
}
