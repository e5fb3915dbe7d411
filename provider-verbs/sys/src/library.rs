//! libibverbs and librdmacm as tables of function pointers.
//!
//! A library is opened once and stays for the life of the process: drivers start threads and keep
//! state that unloading would pull away. A failed load is not remembered, so that a later call may
//! succeed.

use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::bindings::fns;

/// Why a library could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The dynamic loader did not open it.
    #[error("cannot load {library}: {reason}; {mend}")]
    Open {
        /// File name asked for.
        library: &'static str,
        /// The error text of `dlopen`.
        reason: String,
        /// The advice for the user.
        mend: &'static str,
    },
    /// It was opened, and is not what its name says or is too old.
    #[error("{library} lacks the symbol {symbol}: {reason}; {mend}")]
    Symbol {
        /// File name asked for.
        library: &'static str,
        /// The first required symbol that is missing.
        symbol: &'static str,
        /// The error text of `dlsym`.
        reason: String,
        /// The advice for the user.
        mend: &'static str,
    },
}

/// Declares a library's table: required symbols are plain function pointers, optional ones are
/// `Option`s.
macro_rules! library {
    (
        $(#[$doc:meta])*
        $table:ident from $file:literal, $mend:literal;
        required { $($required:ident)* }
        optional { $($optional:ident since $since:literal)* }
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $table {
            $(
                #[doc = concat!("`", stringify!($required), "`.")]
                pub $required: fns::$required,
            )*
            $(
                #[doc = concat!("`", stringify!($optional), "`, in rdma-core since ", $since, ".")]
                pub $optional: Option<fns::$optional>,
            )*
        }

        impl $table {
            /// The file name that [`Self::load`] passes to the dynamic loader.
            pub const FILE: &'static str = $file;

            /// Loads the library on the first call, and hands out the same table ever after.
            ///
            /// # Errors
            ///
            /// When the library is not installed, cannot be opened, or lacks a required symbol.
            pub fn load() -> Result<&'static Self, LoadError> {
                static LOADED: OnceLock<$table> = OnceLock::new();
                match LOADED.get() {
                    Some(table) => Ok(table),
                    None => {
                        let table = Self::open($file)?;
                        Ok(LOADED.get_or_init(|| table))
                    }
                }
            }

            fn open(file: &'static str) -> Result<Self, LoadError> {
                let library = open(file, $mend)?;
                let table = Self {
                    $(
                        $required: {
                            let name = concat!(stringify!($required), "\0").as_bytes();
                            // SAFETY: the library defines this symbol with the signature of its
                            // public header, from which `fns` was generated; it stays loaded
                            // (forgotten below).
                            match unsafe { library.get::<fns::$required>(name) } {
                                Ok(symbol) => bare(&symbol),
                                Err(error) => {
                                    return Err(LoadError::Symbol {
                                        library: file,
                                        symbol: stringify!($required),
                                        reason: error.to_string(),
                                        mend: $mend,
                                    });
                                }
                            }
                        },
                    )*
                    $(
                        $optional: {
                            let name = concat!(stringify!($optional), "\0").as_bytes();
                            // SAFETY: as above.
                            unsafe { library.get::<fns::$optional>(name) }.ok().map(|symbol| bare(&symbol))
                        },
                    )*
                };
                std::mem::forget(library);
                Ok(table)
            }
        }
    };
}

library! {
    /// libibverbs. The control-path inline functions of the C headers are methods (module
    /// [`crate::control_path`]).
    Verbs from "libibverbs.so.1",
        "install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or rdma-core (Fedora, RHEL, SUSE, Arch)";
    required {
        ibv_get_device_list ibv_free_device_list ibv_get_device_name ibv_open_device ibv_close_device
        ibv_get_async_event ibv_ack_async_event
        ibv_query_device ibv_query_port ibv_query_gid ibv_query_pkey
        ibv_alloc_pd ibv_dealloc_pd ibv_reg_mr ibv_dereg_mr
        ibv_create_comp_channel ibv_destroy_comp_channel
        ibv_create_cq ibv_resize_cq ibv_destroy_cq ibv_get_cq_event ibv_ack_cq_events
        ibv_create_srq ibv_modify_srq ibv_query_srq ibv_destroy_srq
        ibv_create_qp ibv_modify_qp ibv_query_qp ibv_destroy_qp
        ibv_create_ah ibv_destroy_ah ibv_init_ah_from_wc
        ibv_attach_mcast ibv_detach_mcast
        ibv_fork_init
        ibv_wc_status_str ibv_event_type_str ibv_port_state_str
    }
    optional {
        ibv_get_pkey_index since "20"
        ibv_qp_to_qp_ex since "24"
        ibv_reg_mr_iova2 since "28"
        _ibv_query_gid_ex since "32"
        _ibv_query_gid_table since "32"
        ibv_is_fork_initialized since "35"
        ibv_query_qp_data_in_order since "36"
    }
}

library! {
    /// librdmacm.
    Rdmacm from "librdmacm.so.1", "install librdmacm1 (Debian, Ubuntu) or librdmacm (Fedora, RHEL, SUSE) or rdma-core (Arch)";
    required {
        rdma_create_event_channel rdma_destroy_event_channel
        rdma_create_id rdma_destroy_id rdma_migrate_id rdma_set_option
        rdma_bind_addr rdma_resolve_addr rdma_resolve_route
        rdma_connect rdma_listen rdma_accept rdma_reject rdma_disconnect
        rdma_get_cm_event rdma_ack_cm_event rdma_event_str
        rdma_get_src_port rdma_get_dst_port
        rdma_getaddrinfo rdma_freeaddrinfo
    }
    optional {
        rdma_init_qp_attr since "23"
        rdma_establish since "23"
    }
}

fn open(file: &'static str, mend: &'static str) -> Result<Library, LoadError> {
    // SAFETY: initialisers of rdma-core's libraries only read the environment and set up tables.
    // RTLD_LOCAL: its symbols must not stand in for those of a program that links another copy.
    unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| LoadError::Open {
        library: file,
        reason: error.to_string(),
        mend,
    })
}

fn bare<F: Copy>(symbol: &Symbol<F>) -> F {
    **symbol
}

// The tables below are only loaded, not used.
#[cfg(test)]
#[allow(dead_code, unreachable_pub)]
mod tests {
    use super::*;

    library! {
        /// A library that no machine has.
        Absent from "libferrofabric-absent.so.9", "nothing to install";
        required { ibv_get_device_list }
        optional {}
    }

    library! {
        /// A library that every machine has, and that has no verbs.
        NotVerbs from "libc.so.6", "install the right one";
        required { ibv_get_device_list }
        optional { ibv_reg_mr_iova2 since "28" }
    }

    library! {
        /// Only optional symbols are missing.
        OldVerbs from "libc.so.6", "unused";
        required {}
        optional { ibv_reg_mr_iova2 since "28" }
    }

    #[test]
    fn a_missing_library_names_itself_the_reason_and_the_mend() {
        let error = Absent::load().expect_err("no machine has it");
        let LoadError::Open {
            library,
            reason,
            mend,
        } = &error
        else {
            panic!("{error:?}");
        };
        assert_eq!(*library, "libferrofabric-absent.so.9");
        assert!(reason.contains("No such file"), "{reason}");
        assert_eq!(*mend, "nothing to install");
        let text = error.to_string();
        assert!(
            text.contains("libferrofabric-absent.so.9") && text.contains("nothing to install"),
            "{text}"
        );
    }

    #[test]
    fn a_library_without_a_required_symbol_is_refused_by_name() {
        let error = NotVerbs::load().expect_err("libc has no verbs");
        assert!(
            matches!(
                &error,
                LoadError::Symbol {
                    symbol: "ibv_get_device_list",
                    library: "libc.so.6",
                    ..
                }
            ),
            "{error:?}"
        );
    }

    #[test]
    fn an_optional_symbol_may_be_missing() {
        let table = OldVerbs::load().expect("libc is there");
        assert!(table.ibv_reg_mr_iova2.is_none());
    }
}
