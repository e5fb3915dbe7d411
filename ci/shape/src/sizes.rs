//! The limits of size, the exceptions to them, and the tables of the largest.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

use crate::Section;
use crate::modules::{Code, SourceLine};
use crate::tree::{ARCHITECTURE, table_rows};

const HEADING: &str = "## Exceptions to the limits of size";
const MOST_EXCEPTIONS: usize = 10;

/// The kinds of items that have a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SizeKind {
    File,
    Struct,
    Function,
    Parameters,
}

impl SizeKind {
    const ALL: [Self; 4] = [Self::File, Self::Struct, Self::Function, Self::Parameters];

    fn limit(self) -> usize {
        match self {
            Self::File => 600,
            Self::Struct => 15,
            Self::Function => 80,
            Self::Parameters => 6,
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::File | Self::Function => "lines",
            Self::Struct => "fields",
            Self::Parameters => "parameters",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::File => "Longest files, in lines with tests",
            Self::Struct => "Largest structs, in fields",
            Self::Function => "Longest functions, in lines",
            Self::Parameters => "Most parameters, without the receiver",
        }
    }
}

/// The size of a file, a struct or a function.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Measure {
    pub(crate) kind: SizeKind,
    pub(crate) size: usize,
    /// The file, and behind a blank the name of the measured item, if it is not the file itself.
    pub(crate) what: String,
    pub(crate) at: SourceLine,
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind, size, what, ..
        } = self;
        write!(f, "{what}: {size} {} (line {})", kind.unit(), self.at.line)
    }
}

/// The ten largest of each kind, and the lines of each package.
pub(crate) fn tables(code: &Code) -> Vec<Section> {
    let mut tables = Vec::from(SizeKind::ALL.map(|kind| largest(code, kind)));
    let lines = code.lines.iter();
    tables.push(Section {
        title: "Crates, in lines without tests, blank lines, comments and generated files"
            .to_owned(),
        texts: lines
            .map(|(package, lines)| format!("{package}: {lines}"))
            .collect(),
    });
    tables
}

fn largest(code: &Code, kind: SizeKind) -> Section {
    let mut measures: Vec<_> = code.measures.iter().filter(|it| it.kind == kind).collect();
    measures.sort_by_key(|it| (Reverse(it.size), &it.what));
    let over = measures.iter().filter(|it| it.size > kind.limit()).count();
    let all = format!("{over} of {} over the limit", measures.len());
    let ten = measures.iter().take(10).map(ToString::to_string);
    Section {
        title: format!("{} (limit {})", kind.title(), kind.limit()),
        texts: ten.chain([all]).collect(),
    }
}

/// Items over their limit without an exception, and exceptions that do not hold.
pub(crate) fn faults(code: &Code, architecture: &str) -> Vec<String> {
    let mut faults = Vec::new();
    // The size of each exception, by its item and unit.
    let mut exceptions = BTreeMap::new();
    for row in table_rows(architecture, HEADING) {
        match exception(row) {
            Some((key, size)) => drop(exceptions.insert(key, size)),
            None => faults.push(format!(
                "{ARCHITECTURE}: `{row}` is not `what | number and unit | reason`"
            )),
        }
    }
    if exceptions.len() > MOST_EXCEPTIONS {
        let count = exceptions.len();
        let why = format!("{count} exceptions, and {MOST_EXCEPTIONS} are the most there may be");
        faults.push(format!("{ARCHITECTURE}: {why}"));
    }
    let mut needed = Vec::new();
    for measure in &code.measures {
        let Measure {
            kind, size, what, ..
        } = measure;
        if *size <= kind.limit() {
            continue;
        }
        let key = (what.clone(), kind.unit().to_owned());
        let allowed = exceptions.get(&key).copied();
        if allowed.is_none_or(|most| *size > most) {
            let limit = allowed.unwrap_or(kind.limit());
            faults.push(format!("{measure}, and {limit} are allowed"));
        }
        needed.push(key);
    }
    let unneeded = exceptions.keys().filter(|it| !needed.contains(it));
    faults.extend(unneeded.map(|(what, unit)| {
        format!("{ARCHITECTURE}: `{what}` needs no exception for its {unit}: remove it")
    }));
    faults
}

/// The item of a row, with its unit and its size.
fn exception(row: &str) -> Option<((String, String), usize)> {
    let row = row.trim().trim_matches('|').replace('`', "");
    let mut cells = row.splitn(3, '|').map(str::trim);
    let what = cells.next()?.to_owned();
    let (size, unit) = cells.next()?.split_once(' ')?;
    let reason = cells.next()?;
    let is_unit = SizeKind::ALL.iter().any(|kind| kind.unit() == unit);
    let size = size.parse().ok()?;
    (is_unit && !reason.is_empty()).then(|| ((what, unit.to_owned()), size))
}
