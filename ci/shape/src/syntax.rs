//! Questions about single pieces of Rust's syntax: attributes, paths, `use` items, macros.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, Item, Meta, Token, UseTree};

use crate::modules::Path;

/// The name of an item, where it declares one for paths.
pub(crate) fn declared(item: &Item) -> Option<&syn::Ident> {
    Some(match item {
        Item::Const(it) => &it.ident,
        Item::Enum(it) => &it.ident,
        Item::Fn(it) => &it.sig.ident,
        Item::Macro(it) => it.ident.as_ref()?,
        Item::Static(it) => &it.ident,
        Item::Struct(it) => &it.ident,
        Item::Trait(it) => &it.ident,
        Item::TraitAlias(it) => &it.ident,
        Item::Type(it) => &it.ident,
        Item::Union(it) => &it.ident,
        _ => return None,
    })
}

macro_rules! attributes {
    ($node:expr, $kind:ident: $($variant:ident)*) => {
        match $node {
            $($kind::$variant(it) => &it.attrs,)*
            _ => &[],
        }
    };
}

pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    attributes!(item, Item: Const Enum ExternCrate Fn ForeignMod Impl Macro Mod Static Struct Trait
        TraitAlias Type Union Use)
}

/// Of those expressions that a `cfg` may stand on.
pub(crate) fn expression_attributes(expression: &Expr) -> &[Attribute] {
    attributes!(expression, Expr: Assign Block Call Field ForLoop If Lit Loop Macro Match MethodCall
        Path Return Struct Tuple Unsafe While)
}

pub(crate) fn name(name: &syn::Ident) -> String {
    name.unraw().to_string()
}

/// Whether what has these attributes is built for tests alone.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.parse_args::<Meta>();
        let never = |it: &Meta| value(it) == Some(false);
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg") && condition.as_ref().is_ok_and(never)
    })
}

/// The value of a condition outside of tests. `None`: it may be true or false.
fn value(condition: &Meta) -> Option<bool> {
    let list = match condition {
        Meta::Path(it) => return (it.is_ident("test") || it.is_ident("loom")).then_some(false),
        Meta::NameValue(it) => {
            return (string(&it.value).as_deref() == Some("fuzzing")).then_some(false);
        }
        Meta::List(it) => it,
    };
    let values = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    let values: Vec<_> = values.ok()?.iter().map(value).collect();
    // `all` is false where any is, `any` is true where any is.
    let decides = list.path.is_ident("any");
    if list.path.is_ident("not") {
        return values[0].map(|it| !it);
    }
    match values.contains(&Some(decides)) {
        true => Some(decides),
        false if values.contains(&None) => None,
        false => Some(!decides),
    }
}

/// The file that `#[path = "…"]` states.
pub(crate) fn stated_path(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|it| it.path().is_ident("path"))?;
    string(&attribute.meta.require_name_value().ok()?.value)
}

fn string(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(it),
            ..
        }) => Some(it.value()),
        _ => None,
    }
}

/// A path from a folder.
pub(crate) fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The items that a `use` imports: path, name (`None`: all) and line of each.
pub(crate) fn leaves(
    tree: &UseTree,
    before: &mut Path,
    found: &mut Vec<(Path, Option<String>, usize)>,
) {
    let line = |name: &syn::Ident| name.span().start().line;
    let with = |last: &syn::Ident| {
        let last = (last != "self").then(|| name(last));
        before.iter().cloned().chain(last).collect::<Path>()
    };
    match tree {
        UseTree::Path(it) => {
            before.push(name(&it.ident));
            leaves(&it.tree, before, found);
            before.pop();
        }
        UseTree::Group(it) => it.items.iter().for_each(|it| leaves(it, before, found)),
        UseTree::Glob(it) => {
            let line = it.star_token.spans[0].start().line;
            found.push((before.clone(), None, line));
        }
        UseTree::Name(it) => {
            let path = with(&it.ident);
            found.push((path.clone(), path.last().cloned(), line(&it.ident)));
        }
        UseTree::Rename(it) => {
            found.push((with(&it.ident), Some(name(&it.rename)), line(&it.ident)));
        }
    }
}

/// The paths of two names or more in a macro's tokens, and their lines.
pub(crate) fn paths_in(tokens: TokenStream) -> Vec<(Path, usize)> {
    let mut found = Vec::new();
    // The path that is being read, and the colons behind it.
    let (mut path, mut line, mut colons) = (Path::new(), 0, 0);
    let mut end = |path: &mut Path, line: usize| {
        let path = std::mem::take(path);
        if path.len() > 1 {
            found.push((path, line));
        }
    };
    let mut inner = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Ident(it) => {
                if colons != 2 {
                    end(&mut path, line);
                    line = it.span().start().line;
                }
                // Behind `::` without a name stands another crate's.
                if colons != 2 || !path.is_empty() {
                    path.push(name(&it));
                }
                colons = 0;
            }
            TokenTree::Punct(it) if it.as_char() == ':' => colons += 1,
            other => {
                let is_given = matches!(&other, TokenTree::Punct(it) if it.as_char() == '$');
                if is_given && colons == 2 && !path.is_empty() {
                    // An item that the macro's caller names.
                    path.push("$".to_owned());
                }
                end(&mut path, line);
                colons = 0;
                if let TokenTree::Group(it) = other {
                    inner.push(it.stream());
                }
            }
        }
    }
    end(&mut path, line);
    found.extend(inner.into_iter().flat_map(paths_in));
    found
}

/// Whether a comment above the code says that a program made the file.
pub(crate) fn is_generated(text: &str) -> bool {
    let lines = text.lines().map(str::trim);
    let mut head = lines.take_while(|line| line.is_empty() || line.starts_with("//"));
    head.any(|line| {
        let line = line.to_lowercase();
        ["generated by", "@generated", "do not edit"]
            .iter()
            .any(|it| line.contains(it))
    })
}

/// The lines that are neither blank nor a comment.
pub(crate) fn code_lines(text: &str) -> BTreeSet<usize> {
    let mut in_comment = false;
    let mut is_code = |line: &str| {
        let begins = line.starts_with("/*");
        let comment = in_comment || begins || line.starts_with("//");
        in_comment = (in_comment || begins) && !line.contains("*/");
        !comment && !line.is_empty()
    };
    let lines = text.lines().enumerate();
    let code = lines.filter(|(_, line)| is_code(line.trim()));
    code.map(|(at, _)| at + 1).collect()
}
