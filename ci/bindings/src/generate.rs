//! Bindings from C headers, as all our bindings are made: without comments and inline functions,
//! enums as newtypes, functions as types of function pointers. The libraries are found at run time,
//! and the loader's tables take their signatures from those types.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use bindgen::callbacks::{DeriveTrait, ImplementsTrait, ParseCallbacks};
use bindgen::{Builder, EnumVariation};
use quote::quote;

/// What bindgen calls enums without a name, before a number.
pub const UNNAMED_ENUM: &str = "_bindgen_ty_";

/// A library's headers, and what its bindings take from them. Names are regular expressions.
pub struct Headers<'a> {
    /// The library's name, for the first line of the bindings.
    pub library: &'a str,
    /// The program that writes the bindings.
    pub program: &'a str,
    /// The environment variable that names the folder of the headers.
    pub include: &'a str,
    /// Types that we use; what they contain by value follows.
    pub types: &'a [&'a str],
    /// Constants outside named enums.
    pub constants: &'a [&'a str],
    /// Functions that the library exports under their own name.
    pub functions: &'a [&'a str],
    /// Types that the libc crate has.
    pub from_libc: &'static [&'static str],
    /// Types that only the insides of the others would need.
    pub unused: &'a [&'a str],
}

impl Headers<'_> {
    /// Makes bindings of `includes`, a C text that includes the headers. `adjust` adds what this
    /// library's bindings need beyond the lists.
    pub fn bindings(
        &self,
        includes: &str,
        adjust: impl FnOnce(Builder) -> Builder,
    ) -> Result<syn::File, Box<dyn Error>> {
        let folder = env::var_os(self.include)
            .map(PathBuf::from)
            .ok_or_else(|| format!("set {} to the folder of the headers", self.include))?;
        let mut builder = Builder::default()
            .header_contents(&format!("{}.h", self.library), includes)
            .clang_arg(format!("-I{}", folder.display()))
            .generate_comments(false)
            .generate_inline_functions(false)
            .use_core()
            .merge_extern_blocks(true)
            .layout_tests(true)
            .derive_default(true)
            .derive_debug(true)
            .default_enum_style(EnumVariation::NewType {
                is_bitfield: false,
                is_global: false,
            })
            .constified_enum(format!("{UNNAMED_ENUM}.*"))
            .parse_callbacks(Box::new(PlainData(self.from_libc)))
            .rust_target(bindgen::RustTarget::stable(85, 0).map_err(|e| format!("{e:?}"))?)
            .rust_edition(bindgen::RustEdition::Edition2024)
            .formatter(bindgen::Formatter::None);
        for name in self.types {
            builder = builder.allowlist_type(name);
        }
        for name in self.constants {
            builder = builder.allowlist_var(name);
        }
        for name in self.functions {
            builder = builder.allowlist_function(name);
        }
        for name in self.from_libc.iter().chain(self.unused) {
            builder = builder.blocklist_type(name);
        }
        builder = adjust(builder).raw_line(format!("use libc::{{{}}};", self.from_libc.join(", ")));
        let mut file = syn::parse_file(&builder.generate()?.to_string())?;
        functions_to_types(&mut file)?;
        Ok(file)
    }

    /// Writes the bindings to `path`, which begins at the root of the project's tree.
    pub fn write(&self, file: &syn::File, path: &str) -> Result<(), Box<dyn Error>> {
        let target = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(path);
        let text = format!(
            "// Made by `{}` from {}'s headers. Do not edit.\n\n{}",
            self.program,
            self.library,
            prettyplease::unparse(file)
        );
        fs::write(&target, text)?;
        println!("wrote {path}");
        Ok(())
    }
}

/// Types of the libc crate, which are plain data.
#[derive(Debug)]
struct PlainData(&'static [&'static str]);

impl ParseCallbacks for PlainData {
    fn blocklisted_type_implements_trait(
        &self,
        name: &str,
        wanted: DeriveTrait,
    ) -> Option<ImplementsTrait> {
        let known = self.0.contains(&name.trim_start_matches("struct "))
            && matches!(wanted, DeriveTrait::Copy | DeriveTrait::Debug);
        known.then_some(ImplementsTrait::Yes)
    }
}

/// Turns every `extern` function into a type of function pointer, all in `mod fns`.
fn functions_to_types(file: &mut syn::File) -> Result<(), syn::Error> {
    let mut types = Vec::new();
    file.items.retain(|item| {
        let syn::Item::ForeignMod(block) = item else {
            return true;
        };
        for function in &block.items {
            if let syn::ForeignItem::Fn(function) = function {
                let signature = &function.sig;
                let (name, inputs, variadic, output) = (
                    &signature.ident,
                    &signature.inputs,
                    &signature.variadic,
                    &signature.output,
                );
                types.push(
                    quote! { pub type #name = unsafe extern "C" fn(#inputs #variadic) #output; },
                );
            }
        }
        false
    });
    let functions = quote! { pub mod fns { use super::*; #(#types)* } };
    file.items.push(syn::parse2(functions)?);
    Ok(())
}
