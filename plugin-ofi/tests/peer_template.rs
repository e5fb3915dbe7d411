//! The template of a peer provider, `examples/peer/template.c`, under an owner in C
//! (`c_owner/template.c`), over stock libfabric. Both are compiled with sanitizers.

#![allow(missing_docs, clippy::unwrap_used)]

mod c_owner;
#[macro_use]
mod client;
mod support;

use c_owner::OwnerCompiler;
use support::skip;

/// The name by which libfabric finds it.
const FILE: &str = "libtemplate-fi.so";

#[test]
fn the_template_of_a_peer_passes_messages_on() {
    let compilers = match OwnerCompiler::all() {
        Ok(compilers) => compilers,
        Err(reason) => return skip(&reason),
    };
    for compiler in compilers {
        let folder = compiler.provider(FILE, "../examples/peer/template.c");
        compiler.owner("template").run_all(|command| {
            command
                .env("FI_PROVIDER_PATH", &folder)
                .env("FI_PROVIDER", "template")
                .env("FERRO_TEST_PROVIDER", "template");
        });
    }
}
