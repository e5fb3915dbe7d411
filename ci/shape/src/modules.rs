//! Reads the modules of each library and program: their declarations, imports and paths, and their
//! lines of code. Code that only tests compile is left out.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::rc::Rc;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::tree::Tree;
use crate::{Error, syntax};

/// The names in a path.
pub(crate) type Path = Vec<String>;

/// A line of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SourceLine {
    pub(crate) file: Rc<str>,
    pub(crate) line: usize,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// One name that a `use` brings in.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) path: Path,
    /// `None`: all that is there (`use path::*`).
    pub(crate) name: Option<String>,
    pub(crate) at: SourceLine,
}

/// A module of a program.
#[derive(Debug, Default)]
pub(crate) struct Module {
    pub(crate) name: String,
    pub(crate) parent: Option<usize>,
    pub(crate) children: BTreeMap<String, usize>,
    /// The names of its own items.
    pub(crate) declared: BTreeSet<String>,
    pub(crate) imports: Vec<Import>,
    /// Paths outside of `use`.
    pub(crate) paths: Vec<(Path, SourceLine)>,
}

/// A library or a program. The first module is its root.
#[derive(Debug)]
pub(crate) struct ProgramModules {
    pub(crate) package: String,
    pub(crate) modules: Vec<Module>,
}

impl ProgramModules {
    pub(crate) fn name(&self, module: usize) -> &str {
        &self.modules[module].name
    }

    /// The modules from the root to this one.
    pub(crate) fn ancestry(&self, module: usize) -> Vec<usize> {
        let parent = |&at: &usize| self.modules[at].parent;
        let mut ancestry: Vec<_> = std::iter::successors(Some(module), parent).collect();
        ancestry.reverse();
        ancestry
    }

    pub(crate) fn path(&self, module: usize) -> String {
        let ancestry = self.ancestry(module);
        let names: Vec<_> = ancestry.iter().map(|&it| self.name(it)).collect();
        names.join("::")
    }
}

/// The production code of a tree.
#[derive(Debug, Default)]
pub(crate) struct Code {
    pub(crate) programs: Vec<ProgramModules>,
    /// By package, without tests, blank lines, comments and generated files.
    pub(crate) lines: BTreeMap<String, usize>,
}

impl Code {
    pub(crate) fn read(tree: &Tree) -> Result<Self, Error> {
        let mut code = Self::default();
        for package in &tree.packages {
            let mut files = HashSet::new();
            for root in &package.roots {
                let mut modules = Vec::new();
                let mut waiting = vec![FileOf::root(root)];
                while let Some(next) = waiting.pop() {
                    let file = next.file.clone();
                    let mut reader = FileReader::new(tree, next, &mut modules);
                    reader.file()?;
                    waiting.append(&mut reader.files);
                    // A library and a program may share a file.
                    if !reader.is_generated && files.insert(file) {
                        *code.lines.entry(package.name.clone()).or_default() += reader.lines();
                    }
                }
                let package = package.name.clone();
                code.programs.push(ProgramModules { package, modules });
            }
        }
        Ok(code)
    }
}

/// A file to read, and the module that it is.
struct FileOf {
    file: String,
    /// Where the files of its modules lie.
    folder: String,
    name: String,
    parent: Option<usize>,
}

impl FileOf {
    fn root(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            folder: folder_of(file).to_owned(),
            name: "crate".to_owned(),
            parent: None,
        }
    }
}

/// Reads one file.
struct FileReader<'a> {
    tree: &'a Tree,
    modules: &'a mut Vec<Module>,
    /// The module that is being read.
    module: usize,
    this: FileOf,
    file: Rc<str>,
    text: &'a str,
    is_generated: bool,
    /// How many functions are around.
    functions: usize,
    /// Its lines that only tests compile.
    for_tests: BTreeSet<usize>,
    /// The files of its modules.
    files: Vec<FileOf>,
    error: Option<Error>,
}

impl<'a> FileReader<'a> {
    fn new(tree: &'a Tree, this: FileOf, modules: &'a mut Vec<Module>) -> Self {
        let text = tree.files.get(&this.file).map_or("", String::as_str);
        Self {
            tree,
            modules,
            module: 0,
            file: this.file.as_str().into(),
            this,
            text,
            is_generated: syntax::is_generated(text),
            functions: 0,
            for_tests: BTreeSet::new(),
            files: Vec::new(),
            error: None,
        }
    }

    fn file(&mut self) -> Result<(), Error> {
        let parsed = syn::parse_file(self.text).map_err(|source| Error::Syntax {
            file: self.this.file.clone(),
            source,
        })?;
        if syntax::is_for_tests(&parsed.attrs) {
            self.for_tests.extend(1..=self.text.lines().count());
            return Ok(());
        }
        let name = self.this.name.clone();
        self.module = self.add_module(name, self.this.parent);
        self.visit_file(&parsed);
        self.error.take().map_or(Ok(()), Err)
    }

    fn lines(&self) -> usize {
        let lines = syntax::code_lines(self.text);
        lines.difference(&self.for_tests).count()
    }

    fn add_module(&mut self, name: String, parent: Option<usize>) -> usize {
        let module = self.modules.len();
        if let Some(parent) = parent {
            self.modules[parent].children.insert(name.clone(), module);
        }
        self.modules.push(Module {
            name,
            parent,
            ..Module::default()
        });
        module
    }

    fn at(&self, line: usize) -> SourceLine {
        let file = Rc::clone(&self.file);
        SourceLine { file, line }
    }

    fn declare(&mut self, name: &syn::Ident) {
        if self.functions == 0 {
            let name = syntax::name(name);
            self.modules[self.module].declared.insert(name);
        }
    }

    fn add_path(&mut self, path: Path, line: usize) {
        let at = self.at(line);
        self.modules[self.module].paths.push((path, at));
    }

    /// A module in braces, or the file of one.
    fn add_child(&mut self, item: &syn::ItemMod) {
        let name = syntax::name(&item.ident);
        let folder = format!("{}/{name}", self.this.folder);
        if let Some((_, items)) = &item.content {
            let child = self.add_module(name, Some(self.module));
            let around = std::mem::replace(&mut self.module, child);
            let folder = std::mem::replace(&mut self.this.folder, folder);
            items.iter().for_each(|item| self.visit_item(item));
            (self.module, self.this.folder) = (around, folder);
            return;
        }
        let stated = syntax::stated_path(&item.attrs);
        let candidates = match &stated {
            Some(path) => vec![syntax::joined(folder_of(&self.file), path)],
            None => vec![format!("{folder}.rs"), format!("{folder}/mod.rs")],
        };
        let mut candidates = candidates.into_iter();
        match candidates.find(|it| self.tree.files.contains_key(it)) {
            Some(file) => self.files.push(FileOf {
                folder: match stated {
                    Some(_) => folder_of(&file).to_owned(),
                    None => folder,
                },
                file,
                name,
                parent: Some(self.module),
            }),
            None => {
                self.error = Some(Error::NoFile {
                    file: self.this.file.clone(),
                    line: item.span().start().line,
                    name,
                });
            }
        }
    }

    /// Reads what is inside a function.
    fn inside(&mut self, read: impl FnOnce(&mut Self)) {
        self.functions += 1;
        read(self);
        self.functions -= 1;
    }

    /// Whether this is for tests: then its lines do not count.
    fn skips(&mut self, attributes: &[syn::Attribute], node: &impl Spanned) -> bool {
        let skips = syntax::is_for_tests(attributes);
        if skips {
            let span = node.span();
            self.for_tests.extend(span.start().line..=span.end().line);
        }
        skips
    }
}

impl<'ast> Visit<'ast> for FileReader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if self.skips(syntax::attributes(item), item) {
            return;
        }
        if let Some(name) = syntax::declared(item) {
            self.declare(name);
        }
        match item {
            syn::Item::Mod(item) => self.add_child(item),
            item => visit::visit_item(self, item),
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // A path that begins with `::` leads to another crate.
        if item.leading_colon.is_some() {
            return;
        }
        let mut leaves = Vec::new();
        syntax::leaves(&item.tree, &mut Vec::new(), &mut leaves);
        for (path, name, line) in leaves {
            let at = self.at(line);
            let imports = &mut self.modules[self.module].imports;
            imports.push(Import { path, name, at });
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.inside(|this| visit::visit_item_fn(this, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if self.skips(&item.attrs, item) {
            return;
        }
        self.inside(|this| visit::visit_impl_item_fn(this, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if self.skips(&item.attrs, item) {
            return;
        }
        self.inside(|this| visit::visit_trait_item_fn(this, item));
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !self.skips(&field.attrs, field) {
            visit::visit_field(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !self.skips(&local.attrs, local) {
            visit::visit_local(self, local);
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !self.skips(&arm.attrs, arm) {
            visit::visit_arm(self, arm);
        }
    }

    fn visit_expr(&mut self, expression: &'ast syn::Expr) {
        if !self.skips(syntax::expression_attributes(expression), expression) {
            visit::visit_expr(self, expression);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names = path.segments.iter().map(|it| syntax::name(&it.ident));
            self.add_path(names.collect(), path.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        for (path, line) in syntax::paths_in(call.tokens.clone()) {
            self.add_path(path, line);
        }
        visit::visit_macro(self, call);
    }
}

fn folder_of(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}
