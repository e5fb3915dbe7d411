use super::*;

/// Of groups with one column of tests.
const TEXT: &str = "\
# Title

Not built yet: PEER-3.

| ID | behaviour | tests |
|---|---|---|
| PEER-1 | one | |
| PEER-2 | two | stale |
| PEER-3 | three | |
";

/// Of groups with a column for each place.
const PLACES: &str = "\
# Title

- No test over shared memory: AV-2: it has no device,
  nor anything like one.

| ID | behaviour | shared memory | plugin | Soft-RoCE | elsewhere |
|---|---|---|---|---|---|
| AV-1 | one | stale | | | |
| AV-2 | two | | | | |
";

const SHM: &str = "provider-shm/tests/a.rs";
const PLUGIN: &str = "plugin-ofi/tests/a.rs";
const DEVICE: &str = "hw-tests/tests/a.rs";

/// Tests that leave no column of `PLACES` empty without a reason.
const ENOUGH: [(&str, &str, &str); 5] = [
    ("AV-1", SHM, "x"),
    ("AV-1", PLUGIN, "y"),
    ("AV-1", DEVICE, "z"),
    ("AV-2", PLUGIN, "y"),
    ("AV-2", DEVICE, "z"),
];

fn marks(of: &[(&str, &str, &str)]) -> Marks {
    let mut marks = Marks::new();
    for (id, file, test) in of {
        let id = id.parse().expect("a name");
        let test = Test {
            file: (*file).to_owned(),
            name: (*test).to_owned(),
            places: BTreeSet::from([TestPlace::of(file)]),
            ignored: false,
        };
        marks.entry(id).or_default().insert(test);
    }
    marks
}

fn written_with(text: &str, marks: &Marks) -> Result<String, String> {
    let document = Document::parse(text).and_then(|it| it.with_tests(marks));
    document.map(|it| it.to_string()).map_err(|e| e.to_string())
}

fn written(text: &str, of: &[(&str, &str, &str)]) -> Result<String, String> {
    written_with(text, &marks(of))
}

#[test]
fn tests_are_listed_by_file() {
    let of = [
        ("PEER-1", "a.rs", "x"),
        ("PEER-2", "a.rs", "x"),
        ("PEER-2", "a.rs", "y"),
        ("PEER-2", "b.rs", "z"),
    ];
    let expected = "\
# Title

Not built yet: PEER-3.

| ID | behaviour | tests |
|---|---|---|
| PEER-1 | one | [a.rs](../a.rs): `x` |
| PEER-2 | two | [a.rs](../a.rs): `x`, `y`; [b.rs](../b.rs): `z` |
| PEER-3 | three | none yet |
";
    assert_eq!(written(TEXT, &of).as_deref(), Ok(expected));
    assert_eq!(written(expected, &of).as_deref(), Ok(expected));
}

#[test]
fn what_does_not_agree_is_named() {
    let both = [("PEER-1", "a.rs", "x"), ("PEER-2", "a.rs", "x")];
    for (of, part) in [
        (&both[..1], "Covers: PEER-2"),
        (
            &[both[0], both[1], ("PEER-3", "a.rs", "x")],
            "PEER-3 is called not built",
        ),
        (
            &[both[0], both[1], ("PEER-4", "a.rs", "x")],
            "PEER-4, which has no row",
        ),
    ] {
        let refused = written(TEXT, of).expect_err(part);
        assert!(refused.contains(part), "{refused}");
    }
    for (from, to, part) in [
        ("PEER-2 |", "PEER-1 |", "PEER-1 has two rows"),
        ("PEER-2 |", "PEERX |", "PEERX"),
        ("| two", "two", "line 8"),
        ("| stale", "| stale | more", "line 8"),
        ("| tests", "| proofs", "line 5: the columns"),
        ("| ID", "| Name", "line 5"),
        ("yet: PEER-3", "yet: PEER-3, PEER-9", "PEER-9"),
    ] {
        let refused = written(&TEXT.replace(from, to), &both).expect_err(part);
        assert!(refused.contains(part), "{from}: {refused}");
    }
}

#[test]
fn each_place_has_a_column() {
    let mut of = marks(&ENOUGH);
    // A scenario that runs in two places and on the fake device, and a unit test.
    let id: RequirementId = "AV-1".parse().expect("an ID");
    let scenario = Test {
        file: "hw-tests/conformance/src/c.rs".to_owned(),
        name: "s".to_owned(),
        places: BTreeSet::from([
            TestPlace::SharedMemory,
            TestPlace::SoftRoce,
            TestPlace::Elsewhere,
        ]),
        ignored: false,
    };
    let unit = Test {
        file: "core/src/u.rs".to_owned(),
        name: "u".to_owned(),
        places: BTreeSet::from([TestPlace::Elsewhere]),
        ignored: false,
    };
    of.entry(id).or_default().extend([scenario, unit]);
    let scenario = "[conformance/c](../hw-tests/conformance/src/c.rs): `s`";
    let plugin = "[a](../plugin-ofi/tests/a.rs): `y`";
    let device = "[a](../hw-tests/tests/a.rs): `z`";
    let shm = format!("{scenario}<br>[a](../provider-shm/tests/a.rs): `x`");
    let unit = "[core/src/u](../core/src/u.rs): `u`";
    let expected = PLACES
        .replace(
            "| one | stale | | | |",
            &format!("| one | {shm} | {plugin} | {scenario}<br>{device} | {unit} |"),
        )
        .replace(
            "| two | | | | |",
            &format!("| two | none: the reason is above | {plugin} | {device} |  |"),
        );
    assert_eq!(written_with(PLACES, &of).as_ref(), Ok(&expected));
    assert_eq!(written_with(&expected, &of).as_ref(), Ok(&expected));
}

#[test]
fn an_empty_column_needs_a_reason() {
    for (lacking, place) in [(0, "shared memory"), (1, "plugin"), (2, "Soft-RoCE")] {
        let mut of = ENOUGH.to_vec();
        let (id, ..) = of.remove(lacking);
        // A test elsewhere does not fill the column.
        of.push((id, "core/src/u.rs", "u"));
        let refused = written(PLACES, &of).expect_err(place);
        let part = format!("without a reason: AV-1 ({place})");
        assert!(refused.ends_with(&part), "{refused}");
    }
    let without = PLACES.replace("- No test over shared memory", "- Over shared memory");
    let refused = written(&without, &ENOUGH).expect_err("the reason is gone");
    assert!(refused.ends_with("AV-2 (shared memory)"), "{refused}");
    // All of them are named at once.
    let refused = written(PLACES, &ENOUGH[2..]).expect_err("two columns are empty");
    assert!(
        refused.ends_with("AV-1 (shared memory), AV-1 (plugin)"),
        "{refused}"
    );
}

#[test]
fn a_reason_is_for_an_empty_column() {
    let mut of = ENOUGH.to_vec();
    of.push(("AV-2", SHM, "x"));
    let refused = written(PLACES, &of).expect_err("the column is not empty");
    assert!(refused.contains("AV-2 has a test in the column `shared memory`"));
    let more = PLACES.replace("memory: AV-2:", "memory: AV-2, AV-9:");
    let refused = written(&more, &ENOUGH).expect_err("there is no such row");
    assert!(refused.contains("AV-9"), "{refused}");
}

#[test]
fn address_vectors_and_discovery_have_columns_by_place() {
    for group in ["AV", "GI"] {
        let text = TEXT.replace("PEER-1", &format!("{group}-1"));
        let id = format!("{group}-1");
        let of = [(id.as_str(), SHM, "x"), ("PEER-2", "a.rs", "x")];
        let refused = written(&text, &of).expect_err(group);
        assert!(refused.contains("one column"), "{refused}");
    }
}

#[test]
fn a_test_that_is_ignored_fills_no_column() {
    let ignored = |file: &str| Test {
        file: file.to_owned(),
        name: "soak".to_owned(),
        places: BTreeSet::from([TestPlace::of(file)]),
        ignored: true,
    };
    let id: RequirementId = "AV-1".parse().expect("an ID");
    let mut of = marks(&ENOUGH[1..]);
    of.entry(id.clone()).or_default().insert(ignored(SHM));
    let refused = written_with(PLACES, &of).expect_err("the column is empty");
    assert!(refused.ends_with("AV-1 (shared memory)"), "{refused}");
    // It stands beside one that fills the column.
    let mut of = marks(&ENOUGH);
    of.entry(id.clone()).or_default().insert(ignored(SHM));
    let both = "| one | [a](../provider-shm/tests/a.rs): `soak`, `x` |";
    let written = written_with(PLACES, &of);
    assert!(
        written.as_ref().is_ok_and(|text| text.contains(both)),
        "{written:?}"
    );
    // Nor does it prove a row alone.
    for (id, text, others) in [
        ("PEER-1", TEXT, &[("PEER-2", "a.rs", "x")][..]),
        ("AV-1", PLACES, &ENOUGH),
    ] {
        let mut of = marks(others);
        let only = BTreeSet::from([ignored("a.rs")]);
        of.insert(id.parse().expect("an ID"), only);
        let refused = written_with(text, &of).expect_err(id);
        assert!(refused.contains(&format!("Covers: {id}")), "{refused}");
    }
}
