//! Good and bad sentences, and the languages that they stand in.

use crate::commits;
use crate::git::Commit;
use crate::rules::ProseRule;
use crate::words::Words;
use crate::{Finding, of_file};

const EXAMPLES: &str = include_str!("examples.txt");

fn words() -> Words {
    Words::parse(include_str!("../../../docs/glossary.md")).expect("the list of words")
}

fn found(file: &str, text: &str) -> Vec<(usize, ProseRule)> {
    let findings = of_file(&words(), file, text);
    findings.iter().map(|it| (it.line, it.rule)).collect()
}

#[test]
fn examples_break_the_rules_that_they_name() {
    let lines = EXAMPLES.lines().filter(|line| line.contains(" | "));
    let mut count = 0;
    for line in lines.filter(|line| !line.starts_with('#')) {
        let (rule, sentence) = line.split_once(" | ").expect("a rule and a sentence");
        let broken: Vec<String> = of_file(&words(), "a.md", sentence)
            .iter()
            .map(|finding| finding.rule.to_string())
            .collect();
        let expected: &[&str] = if rule == "ok" { &[] } else { &[rule] };
        assert_eq!(broken, expected, "{sentence}");
        count += 1;
    }
    assert!(count > 30, "{count}");
}

#[test]
fn comments_documentation_and_messages_of_rust_are_read() {
    // prose: ok (examples)
    let code = "//! Who reads waits.\n\nfn a() {\n    // Who writes waits.\n    \
        b(\"Who holds it waits here.\");\n    /* Who\n     * polls waits. */\n}\n\n\
        /// It counts\n/// so many.\nstruct C; // What stays.\n";
    let relative = ProseRule::FreeRelative;
    let expected = [
        (1, relative),
        (4, relative),
        (5, relative),
        (6, relative),
        (10, ProseRule::NumberWithoutNoun),
        (12, relative),
    ];
    assert_eq!(found("a.rs", code), expected);
}

#[test]
fn strings_that_look_like_comments_are_no_comments() {
    let code = "const A: &str = \"// Who waits\"; const B: &str = r#\"\"// Who\"#; \
        const C: char = '\"'; // The end.\n";
    assert_eq!(found("a.rs", code), []);
    // prose: ok (examples)
    let lifetime =
        "fn a<'a>(b: &'a str) {} // Who waits.\nfn c() {} /* a /* nested */ one */ // Who.\n";
    let relative = ProseRule::FreeRelative;
    assert_eq!(found("a.rs", lifetime), [(1, relative), (2, relative)]);
}

#[test]
fn messages_go_on_behind_an_escaped_line_break() {
    // prose: ok (examples)
    let code = "const A: &str = \"The table is full: \\\n    who {name} waits\";\n// prose: ok (an example)\nconst B: &str = \"Who comes late waits long\";\n";
    assert_eq!(found("a.rs", code), [(2, ProseRule::FreeRelative)]);
}

#[test]
fn code_in_documents_is_not_read() {
    // prose: ok (an example)
    let document = "A `Who` is code.\n\n```\nWho waits.\n```\n\n    Who waits.\n\n# What counts\n\n- Who waits.\n";
    assert_eq!(found("a.md", document), [(11, ProseRule::FreeRelative)]);
}

#[test]
fn a_mark_needs_a_reason() {
    let marked = "Who waits. <!-- prose: ok (a title) -->";
    assert_eq!(found("a.md", marked), []);
    // prose: ok (an example)
    let unmarked = "Who waits. <!-- prose: ok () -->";
    assert_eq!(found("a.md", unmarked), [(1, ProseRule::FreeRelative)]);
}

#[test]
fn wide_lines_are_found_in_prose_alone() {
    let wide = "wide ".repeat(21);
    assert_eq!(found("a.md", &wide), [(1, ProseRule::Wide)]);
    assert_eq!(found("a.md", &format!("| {wide} |")), []);
    assert_eq!(found("a.md", &format!("    {wide}")), []);
    assert_eq!(found("a.md", &format!("{wide} https://example.org")), []);
    assert_eq!(
        found("a.rs", &format!("\n// {wide}\n")),
        [(2, ProseRule::Wide)]
    );
    assert_eq!(found("a.rs", &format!("const A: &str = \"{wide}\";")), []);
}

#[test]
fn comments_of_scripts_and_c_are_read() {
    let relative = ProseRule::FreeRelative;
    let script = "#!/bin/sh\n# Who waits.\necho '# Who'\n";
    assert_eq!(found("scripts/a", script), [(2, relative)]);
    assert_eq!(found("a/b", script), []);
    // prose: ok (an example)
    let c = "char *a = \"// Who\"; /* Who\n * waits. */\n// Who waits.\n";
    assert_eq!(found("a.c", c), [(1, relative), (3, relative)]);
}

fn broken(message: &str) -> Vec<ProseRule> {
    let commit = Commit {
        hash: "0".to_owned(),
        message: message.to_owned(),
    };
    let findings: Vec<Finding> = commits::findings(&words(), &commit);
    findings.iter().map(|finding| finding.rule).collect()
}

#[test]
fn commits_have_an_area_an_imperative_and_a_reason() {
    let body = "\n\nThe peer repeats a request whose answer was lost.";
    let good = |subject: &str| assert_eq!(broken(&format!("{subject}{body}")), [], "{subject}");
    good("verbs: answer repeated requests");
    good("core/av, runtime: address entries by slot");
    let subject =
        |it: &str| assert_eq!(broken(&format!("{it}{body}")), [ProseRule::Subject], "{it}");
    subject("Answer repeated requests");
    subject("verbs: answered repeated requests");
    subject("verbs: answering repeated requests");
    subject("verbs: answers repeated requests");
    subject("verbs: Answer repeated requests");
    subject("verbs: answer repeated requests.");
    subject("verbs: the answer to repeated requests");
    subject(&format!("verbs: answer {}", "x".repeat(60)));
    assert_eq!(broken("verbs: answer requests"), [ProseRule::Body]);
    assert_eq!(
        broken("verbs: answer requests\n\nSigned-off-by: Some One"),
        [ProseRule::Body]
    );
    assert_eq!(
        broken("verbs: answer requests\n\nWho repeats one has lost the answer."),
        [ProseRule::FreeRelative]
    );
}

#[test]
fn the_list_of_words_has_a_form() {
    let list = |rows: &str| {
        Words::parse(&format!(
            "| other | `table` |\n\n## Words that we do not use\n\n\
            | for | not | not in this sense |\n|---|---|---|\n{rows}\n## Sentences\n"
        ))
    };
    assert!(list("| d | `a`, `b c` | |\n| e | | `f` |\n").is_ok());
    assert!(list("| | `a` | |\n").is_err());
    assert!(list("| d | a | |\n").is_err());
    assert!(list("| d |\n").is_err());
    assert!(list("").is_err());
    assert!(Words::parse("| d | `a` | |\n").is_err());
}

#[test]
fn a_word_of_the_list_is_found_in_its_regular_forms() {
    let better = |text: &str| {
        let tokens: Vec<String> = text.split(' ').map(str::to_owned).collect();
        words().better(&tokens).map(str::to_owned)
    };
    let wakes = ["rouse", "rouses", "roused", "rousing"];
    let unknown = ["stranger", "strangers", "stranger's"];
    let drains = ["hush", "hushes", "hushed", "hushing"];
    let rests = ["lays to rest", "laying to rest", "laid to rest"];
    for (forms, expected) in [
        (&wakes[..], "wake, doorbell"),
        (&unknown, "unknown source"),
        (&drains, "drain the wake-up"),
        (&rests, "park"),
    ] {
        for form in forms {
            assert_eq!(better(form).as_deref(), Some(expected), "{form}");
        }
    }
    for other in ["strange", "later", "connection", "lays", "lay to"] {
        assert_eq!(better(other), None, "{other}");
    }
}
