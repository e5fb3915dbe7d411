//! Circles among the children of a module, where each child stands for all below it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use petgraph::algo::{astar, tarjan_scc};
use petgraph::graphmap::DiGraphMap;

use crate::modules::{ProgramModules, SourceLine};
use crate::resolve::{ImportEdge, edges};

/// The items that one module imports from another, and where.
type Imports = BTreeMap<(usize, usize), BTreeSet<(SourceLine, String)>>;

/// How many items of an import are named.
const NAMED: usize = 4;

/// The circles of a program's modules, a text for each.
pub(crate) struct ProgramCircles {
    pub(crate) circles: Vec<String>,
    pub(crate) pairs: Vec<String>,
}

impl ProgramCircles {
    pub(crate) fn of(program: &ProgramModules) -> Self {
        // By parent: its children's imports of each other.
        let mut siblings: BTreeMap<usize, Imports> = BTreeMap::new();
        // From a child to its parent, and from a parent to its child.
        let (mut up, mut down) = (Imports::new(), Imports::new());
        for ImportEdge { from, to, at, item } in edges(program) {
            let (source, target) = (program.ancestry(from), program.ancestry(to));
            let common = source.iter().zip(&target).take_while(|(a, b)| a == b);
            let common = common.count();
            let parent = source[common - 1];
            let imports = match (source.get(common), target.get(common)) {
                (Some(&a), Some(&b)) => siblings.entry(parent).or_default().entry((a, b)),
                (Some(&child), None) => up.entry((parent, child)),
                (None, Some(&child)) => down.entry((parent, child)),
                (None, None) => continue,
            };
            imports.or_default().insert((at, item));
        }
        let mut circles = Vec::new();
        for (&parent, imports) in &siblings {
            let found = circles_in(program, imports).into_iter();
            circles.extend(found.map(|circle| circle_text(program, parent, &circle, imports)));
        }
        let both = up.keys().filter(|pair| down.contains_key(pair));
        let pairs = both.map(|&pair| pair_text(program, pair, &up, &down));
        Self {
            circles,
            pairs: pairs.collect(),
        }
    }
}

/// The shortest circle through each edge that is in one: none is left where all of these are cut.
fn circles_in(program: &ProgramModules, imports: &Imports) -> Vec<Vec<usize>> {
    let graph: DiGraphMap<usize, ()> = imports.keys().copied().collect();
    let mut circles = BTreeSet::new();
    for tangle in tarjan_scc(&graph) {
        for &(from, to) in imports.keys() {
            if !tangle.contains(&from) || !tangle.contains(&to) {
                continue;
            }
            // The way back, which begins with `to` and ends with `from`.
            if let Some((_, mut circle)) = astar(&graph, to, |at| at == from, |_| 1, |_| 0) {
                let name = |&(_, module): &(usize, &usize)| program.name(*module);
                let first = circle.iter().enumerate().min_by_key(name);
                let first = first.map_or(0, |(at, _)| at);
                circle.rotate_left(first);
                circles.insert((circle.len(), circle));
            }
        }
    }
    circles.into_iter().map(|(_, circle)| circle).collect()
}

fn circle_text(
    program: &ProgramModules,
    parent: usize,
    circle: &[usize],
    imports: &Imports,
) -> String {
    let names: Vec<&str> = circle.iter().map(|&it| program.name(it)).collect();
    let mut text = format!(
        "{} {}: {} -> {}\n",
        program.package,
        program.path(parent),
        names.join(" -> "),
        names[0]
    );
    for (at, from) in circle.iter().enumerate() {
        let to = circle[(at + 1) % circle.len()];
        let (a, b) = (program.name(*from), program.name(to));
        let _ = writeln!(text, "  {a} -> {b}  {}", listed(imports, (*from, to)));
    }
    text
}

fn pair_text(
    program: &ProgramModules,
    pair: (usize, usize),
    up: &Imports,
    down: &Imports,
) -> String {
    let (parent, child) = pair;
    format!(
        "{} {} <-> {}: parent {}; child {}\n",
        program.package,
        program.path(parent),
        program.name(child),
        listed(down, pair),
        listed(up, pair)
    )
}

/// Where the first import stands, and the items of all.
fn listed(imports: &Imports, edge: (usize, usize)) -> String {
    let Some(imports) = imports.get(&edge) else {
        return String::new();
    };
    let at = imports.first().map(|(at, _)| at.to_string());
    let items: BTreeSet<&str> = imports.iter().map(|(_, item)| item.as_str()).collect();
    let named: Vec<&str> = items.iter().copied().take(NAMED).collect();
    let more = match items.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{} ({}{more})", at.unwrap_or_default(), named.join(", "))
}
