//! Finds the module that declares the item of a path, by syntax alone.

use crate::modules::{Module, Path, ProgramModules, SourceLine};

/// The module or item of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathTarget<'a> {
    Module(usize),
    /// An item that this module declares, and its name.
    Item(usize, &'a str),
}

/// Module `from` imports an item that module `to` declares.
#[derive(Debug)]
pub(crate) struct ImportEdge {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) at: SourceLine,
    pub(crate) item: String,
}

/// The imports and inline paths of a program that lead from one of its modules to another.
pub(crate) fn edges(program: &ProgramModules) -> Vec<ImportEdge> {
    let modules = &program.modules;
    let mut edges = Vec::new();
    for (from, module) in modules.iter().enumerate() {
        let mut add = |to: usize, item: &str, at: &SourceLine| {
            if to != from {
                edges.push(ImportEdge {
                    from,
                    to,
                    at: at.clone(),
                    item: item.to_owned(),
                });
            }
        };
        for import in &module.imports {
            match resolve(modules, from, &import.path, &mut Vec::new()) {
                Some(PathTarget::Item(to, item)) => add(to, item, &import.at),
                // The name of a module alone uses nothing in it.
                Some(PathTarget::Module(to)) if import.name.is_none() => add(to, "*", &import.at),
                _ => {}
            }
        }
        for (path, at) in &module.paths {
            if let Some((to, item)) = used(modules, from, path) {
                add(to, item, at);
            }
        }
    }
    edges
}

/// The module whose item an inline path uses. `None`: no module's, or that of an item which an
/// import already counts for.
fn used<'a>(modules: &'a [Module], from: usize, path: &'a Path) -> Option<(usize, &'a str)> {
    let module = &modules[from];
    let first = path.first()?;
    let mut imports = module.imports.iter();
    if let Some(import) = imports.find(|it| it.name.as_ref() == Some(first)) {
        let imported = resolve(modules, from, &import.path, &mut Vec::new());
        if path.len() == 1 || !matches!(imported, Some(PathTarget::Module(_))) {
            return None;
        }
    }
    match resolve(modules, from, path, &mut Vec::new())? {
        PathTarget::Item(to, item) => Some((to, item)),
        PathTarget::Module(_) => None,
    }
}

/// `seen` holds the names that are being looked up: re-exports may go in a circle.
fn resolve<'a>(
    modules: &'a [Module],
    from: usize,
    path: &'a Path,
    seen: &mut Vec<(usize, &'a str)>,
) -> Option<PathTarget<'a>> {
    let mut found = None;
    for part in path {
        let at = match found {
            None => from,
            Some(PathTarget::Module(at)) => at,
            // A variant or an associated item.
            Some(PathTarget::Item(..)) => return found,
        };
        found = match part.as_str() {
            "crate" => Some(PathTarget::Module(0)),
            "self" => Some(PathTarget::Module(at)),
            "super" => Some(PathTarget::Module(modules[at].parent?)),
            name => match lookup(modules, at, name, seen) {
                // An item that a macro declares, or the re-export of another crate's item.
                None if found.is_some() => Some(PathTarget::Item(at, name)),
                other => other,
            },
        };
        found?;
    }
    found
}

fn lookup<'a>(
    modules: &'a [Module],
    at: usize,
    name: &'a str,
    seen: &mut Vec<(usize, &'a str)>,
) -> Option<PathTarget<'a>> {
    let module = &modules[at];
    if let Some(&child) = module.children.get(name) {
        return Some(PathTarget::Module(child));
    }
    if module.declared.contains(name) {
        return Some(PathTarget::Item(at, name));
    }
    if seen.contains(&(at, name)) {
        return None;
    }
    seen.push((at, name));
    let mut named = module.imports.iter();
    let found = named
        .find(|it| it.name.as_deref() == Some(name))
        .and_then(|import| resolve(modules, at, &import.path, seen));
    let mut globs = module.imports.iter().filter(|it| it.name.is_none());
    let found = found.or_else(|| {
        globs.find_map(|glob| match resolve(modules, at, &glob.path, seen)? {
            PathTarget::Module(to) => lookup(modules, to, name, seen),
            PathTarget::Item(..) => None,
        })
    });
    seen.pop();
    found
}
