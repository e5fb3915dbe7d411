//! The code of a source file, for the search for tests that run a scenario: a name in a comment, in
//! a string or in a test with `#[ignore]` runs nothing.

/// The text with a blank in place of each comment and of each literal string or character.
pub(crate) fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let in_word = code.ends_with(in_word);
        // Most characters begin nothing.
        let may_begin = matches!(next, '/' | '"' | '\'' | 'r' | 'b' | 'c');
        match may_begin.then(|| no_code(rest, in_word)).flatten() {
            Some(len) => {
                code.push(' ');
                // A list of scenarios is read by lines.
                code.extend(rest[..len].chars().filter(|&c| c == '\n'));
                rest = &rest[len..];
            }
            None => {
                code.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
    }
    code
}

/// The [`code`] without the functions that have the attribute `#[ignore]`.
pub(crate) fn without_ignored(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some((before, behind)) = rest.split_once("#[ignore") {
        kept.push_str(before);
        // In the list of a macro the attribute stands on no function.
        let of_function = behind
            .find('{')
            .filter(|&body| behind[..body].contains("fn "));
        rest = &behind[of_function.map_or(0, |body| body + block(&behind[body..], "{", "}"))..];
    }
    kept + rest
}

/// Whether a word goes on with this character.
pub(crate) fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of the comment or of the literal that the text begins with. `None`: it begins with
/// neither.
fn no_code(text: &str, in_word: bool) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    if text.starts_with("/*") {
        return Some(block(text, "/*", "*/"));
    }
    let raw = ["r", "br", "cr"]
        .iter()
        .find_map(|it| text.strip_prefix(it));
    if let Some(raw) = raw.filter(|_| !in_word) {
        let quote = raw.trim_start_matches('#');
        if let Some(inside) = quote.strip_prefix('"') {
            let end = format!("\"{}", "#".repeat(raw.len() - quote.len()));
            let behind = inside.split_once(&end).map_or("", |(_, behind)| behind);
            return Some(text.len() - behind.len());
        }
    }
    if let Some(inside) = text.strip_prefix('"') {
        return Some(1 + quoted(inside, '"'));
    }
    let inside = text.strip_prefix('\'')?;
    let mut chars = inside.chars();
    // Else the name of a lifetime.
    let is_literal = chars.next()? == '\\' || chars.next()? == '\'';
    is_literal.then(|| 1 + quoted(inside, '\''))
}

/// The length of a block that the text begins with, and that has others within.
fn block(text: &str, opens: &str, closes: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while let Some(next) = text[at..].chars().next() {
        if text[at..].starts_with(opens) {
            depth += 1;
            at += opens.len();
        } else if text[at..].starts_with(closes) {
            depth -= 1;
            at += closes.len();
            if depth == 0 {
                break;
            }
        } else {
            at += next.len_utf8();
        }
    }
    at
}

/// The length of the inside of a literal with the quote behind it.
fn quoted(inside: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        if !escaped && c == quote {
            return at + c.len_utf8();
        }
        escaped = !escaped && c == '\\';
    }
    inside.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_no_code() {
        for (text, left) in [
            ("a // b\nc", "a  \nc"),
            ("/// a\n//! b", " \n "),
            ("a /* b /* c */ d */ e", "a   e"),
            ("a /* b\nc */ d", "a  \n d"),
            (r#"a("b // \" c", d)"#, "a( , d)"),
            (r###"a(r#"b " c"#, br"\", r#d)"###, "a( ,  , r#d)"),
            (r"a('\'', '{', 'ä', b'\\') // c", "a( ,  ,  , b )  "),
            ("fn a<'b, 'c>(d: &'b str) {}", "fn a<'b, 'c>(d: &'b str) {}"),
            ("color\"a\"", "color "),
            ("\"no end", " "),
            ("/* no end", " "),
        ] {
            assert_eq!(code(text), left, "{text}");
        }
    }

    #[test]
    fn a_test_that_is_ignored_goes_with_its_body() {
        let text = "#[test]\nfn a() { b() }\n#[test]\n#[ignore = \"}\"]\n#[serial]\n\
                    fn c() {\n    if d { e() }\n}\nfn f() {}";
        let left = without_ignored(&code(text));
        assert_eq!(left, "#[test]\nfn a() { b() }\n#[test]\n\nfn f() {}");
        let listed = "jobs! { #[ignore = \"\"] a: 1; } mod b { c(); }";
        assert!(without_ignored(&code(listed)).contains("c();"));
    }
}
