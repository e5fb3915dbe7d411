//! Names of more than one type or trait, and the list of those that are meant to be alike.

use std::collections::{BTreeMap, BTreeSet};

use crate::modules::SourceLine;
use crate::tree::{GLOSSARY, table_rows};

const HEADING: &str = "## Names that stand more than once";

/// The places that declare each name.
#[derive(Debug, Default)]
pub(crate) struct TypeNames(BTreeMap<String, BTreeSet<SourceLine>>);

impl Extend<(String, SourceLine)> for TypeNames {
    fn extend<I: IntoIterator<Item = (String, SourceLine)>>(&mut self, declared: I) {
        for (name, at) in declared {
            self.0.entry(name).or_default().insert(at);
        }
    }
}

/// Names of two types that are not in the list, and listed names of one type or none.
pub(crate) fn faults(types: &TypeNames, glossary: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut listed = BTreeSet::new();
    for row in table_rows(glossary, HEADING) {
        match name_of(row) {
            Some(name) if listed.insert(name) => {}
            Some(name) => faults.push(format!("{GLOSSARY}: `{name}` has two rows")),
            None => faults.push(format!(
                "{GLOSSARY}: `{row}` is not `name | types and reason`"
            )),
        }
    }
    let shared = || types.0.iter().filter(|(_, places)| places.len() > 1);
    for (name, places) in shared().filter(|(name, _)| !listed.contains(name.as_str())) {
        let places: Vec<_> = places.iter().map(ToString::to_string).collect();
        faults.push(format!("{name}: {}", places.join(", ")));
    }
    let unneeded = listed
        .iter()
        .filter(|listed| shared().all(|(name, _)| name != *listed));
    faults.extend(
        unneeded.map(|name| {
            format!("{GLOSSARY}: `{name}` is not the name of two types: remove its row")
        }),
    );
    faults
}

/// The name of a row that has a reason.
fn name_of(row: &str) -> Option<&str> {
    let mut cells = row.trim().trim_matches('|').splitn(2, '|').map(str::trim);
    let name = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
    let reason = cells.next()?;
    (!name.is_empty() && !reason.is_empty()).then_some(name)
}
