//! Writes `plugin-ofi/src/abi/bindings.rs` anew from libfabric's headers.
//!
//!     FERRO_LIBFABRIC_INCLUDE=/path/to/include \
//!         cargo run -p ferrofabric-bindings --features regenerate \
//!         --bin regenerate-libfabric-bindings
//!
//! The committed file comes from libfabric 2.6.0, the newest released one, for the ops tables to
//! have their newest sizes. Run `cargo test -p ferrofabric-ofi` afterwards: its `tests/integration/layout.rs`
//! checks the layouts against a C compiler and an older libfabric.

use std::error::Error;

use bindgen::callbacks::{IntKind, ItemInfo, ParseCallbacks};
use ferrofabric_bindings::LIBFABRIC_HEADERS;
use ferrofabric_bindings::generate::{Headers, UNNAMED_ENUM};

/// Types: all of libfabric's own.
const TYPES: &[&str] = &["fi_.*", "fid", "fid_.*"];

/// Constants that bindgen sees in macros.
const CONSTANTS: &[&str] = &["FI_.*"];

/// Constants whose macros have a cast or a pragma, which bindgen does not follow, and their types in
/// C.
const HIDDEN_CONSTANTS: &[(&str, &str)] = &[
    ("FI_MR_UNSPEC", "int"),
    ("FI_MR_BASIC", "int"),
    ("FI_MR_SCALABLE", "int"),
    ("FI_ORDER_NONE", "uint64_t"),
    ("FI_ORDER_STRICT", "uint64_t"),
    ("FI_ORDER_DATA", "uint64_t"),
    ("FI_LOCAL_MR", "uint64_t"),
    ("FI_REG_MR", "uint64_t"),
    ("FI_MPI_IGNORE_TAG", "uint64_t"),
    ("FI_MPI_IGNORE_PAYLOAD", "uint64_t"),
];

/// Constants whose value libclang's evaluation does not return: all bits set. The layout test
/// compares them with C's.
const ALL_ONES: &[(&str, &str)] = &[
    ("FI_ADDR_UNSPEC", "fi_addr_t"),
    ("FI_ADDR_NOTAVAIL", "fi_addr_t"),
    ("FI_KEY_NOTAVAIL", "u64"),
];

/// What the wrapper header puts before the name of such a constant.
const HIDDEN_PREFIX: &str = "ferro_value_of_";

/// Functions that libfabric exports to applications and providers.
const FUNCTIONS: &[&str] = &[
    "fi_version",
    "fi_getinfo",
    "fi_dupinfo",
    "fi_freeinfo",
    "fi_fabric",
    "fi_open",
    "fi_param_define",
    "fi_param_get",
    "fi_log_enabled",
    "fi_log_ready",
    "fi_log",
    "fi_strerror",
    "fi_tostr_r",
];

/// Types that the libc crate has.
const FROM_LIBC: &[&str] = &["iovec", "pthread_cond_t", "pthread_mutex_t"];

/// What only the insides of the types above would need.
const UNUSED: &[&str] = &["__atomic_wide_counter.*", "__pthread_.*"];

fn main() -> Result<(), Box<dyn Error>> {
    let headers = Headers {
        library: "libfabric",
        program: "regenerate-libfabric-bindings",
        include: "FERRO_LIBFABRIC_INCLUDE",
        types: TYPES,
        constants: CONSTANTS,
        functions: FUNCTIONS,
        from_libc: FROM_LIBC,
        unused: UNUSED,
    };
    let mut file = headers.bindings(&includes(), |mut builder| {
        builder = builder
            .clang_arg("-Wno-#pragma-messages")
            .generate_cstr(true)
            .parse_callbacks(Box::new(Numbers))
            .allowlist_var(format!("{HIDDEN_PREFIX}.*"));
        for (name, kind) in ALL_ONES {
            builder = builder.raw_line(format!("pub const {name}: {kind} = {kind}::MAX;"));
        }
        builder
    })?;
    give_types_to_unnamed_enums(&mut file);
    headers.write(&file, "plugin-ofi/src/abi/bindings.rs")
}

fn includes() -> String {
    let mut text = String::new();
    for name in LIBFABRIC_HEADERS {
        text += &format!("#include <rdma/{name}>\n");
    }
    for (name, kind) in HIDDEN_CONSTANTS {
        text += &format!("static const {kind} {HIDDEN_PREFIX}{name} = {name};\n");
    }
    text
}

/// Gives the constants of macros the types of what takes them.
#[derive(Debug)]
struct Numbers;

impl ParseCallbacks for Numbers {
    fn int_macro(&self, name: &str, value: i64) -> Option<IntKind> {
        let mr_mode = name.starts_with("FI_MR_") && value < 1 << 32;
        let errno = name.starts_with("FI_E") && value < 1 << 16;
        Some(match name {
            "FI_SHARED_CONTEXT" | "FI_AV_AUTH_KEY" => IntKind::Custom {
                name: "usize",
                is_signed: false,
            },
            "FI_MAJOR_VERSION" | "FI_MINOR_VERSION" | "FI_REVISION_VERSION" => IntKind::U32,
            "FI_SUCCESS" | "FI_COLLECTIVE_OFFSET" => IntKind::Int,
            _ if name.starts_with("FI_PROV_SPECIFIC_") => IntKind::Int,
            _ if mr_mode || errno => IntKind::Int,
            _ => IntKind::U64,
        })
    }

    fn item_name(&self, item: ItemInfo<'_>) -> Option<String> {
        item.name.strip_prefix(HIDDEN_PREFIX).map(str::to_owned)
    }
}

/// Gives the constants of unnamed enums the types of what takes them.
fn give_types_to_unnamed_enums(file: &mut syn::File) {
    file.items.retain_mut(|item| match item {
        syn::Item::Const(constant) if is_unnamed_enum(&constant.ty) => {
            *constant.ty = type_of_user(&constant.ident.to_string());
            true
        }
        syn::Item::Type(alias) => !alias.ident.to_string().starts_with(UNNAMED_ENUM),
        _ => true,
    });
}

fn is_unnamed_enum(kind: &syn::Type) -> bool {
    let syn::Type::Path(path) = kind else {
        return false;
    };
    path.path
        .get_ident()
        .is_some_and(|name| name.to_string().starts_with(UNNAMED_ENUM))
}

/// The type of the field or parameter that takes a constant of an unnamed enum.
fn type_of_user(name: &str) -> syn::Type {
    const EVENTS: &[&str] = &[
        "FI_NOTIFY",
        "FI_CONNREQ",
        "FI_CONNECTED",
        "FI_SHUTDOWN",
        "FI_MR_COMPLETE",
        "FI_AV_COMPLETE",
        "FI_JOIN_COMPLETE",
    ];
    const UNSIGNED: &[&str] = &[
        "FI_FORMAT_",
        "FI_SOCKADDR",
        "FI_ADDR_",
        "FI_PROTO_",
        "FI_TC_",
    ];
    if name.starts_with("FI_CLASS_") {
        syn::parse_quote!(usize)
    } else if EVENTS.contains(&name) || UNSIGNED.iter().any(|start| name.starts_with(start)) {
        syn::parse_quote!(u32)
    } else {
        syn::parse_quote!(::core::ffi::c_int)
    }
}
