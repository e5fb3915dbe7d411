//! Writes `provider-verbs/sys/src/bindings.rs` anew from rdma-core's headers.
//!
//!     FERRO_RDMA_CORE_INCLUDE=/path/to/usr/include \
//!         cargo run -p ferrofabric-bindings --features regenerate --bin regenerate-bindings
//!
//! The committed file comes from Debian 13's libibverbs-dev and librdmacm-dev 56.1-1. Run
//! `cargo test -p ferrofabric-verbs-sys` afterwards with the same variable set: its
//! `tests/integration/layout.rs` then checks every layout against the C compiler too.

use std::error::Error;

use ferrofabric_bindings::generate::Headers;

/// Types that we use; what they contain by value follows.
const TYPES: &[&str] = &[
    // device, ports, GIDs, events
    "ibv_device",
    "ibv_context",
    "verbs_context",
    "ibv_device_attr",
    "ibv_device_attr_ex",
    "ibv_device_cap_flags",
    "ibv_odp_general_caps",
    "ibv_odp_transport_cap_bits",
    "ibv_port_attr",
    "ibv_port_cap_flags",
    "ibv_gid",
    "ibv_gid_entry",
    "ibv_gid_type",
    "ibv_async_event",
    "ibv_fork_status",
    // memory
    "ibv_pd",
    "ibv_mr",
    "ibv_access_flags",
    "ibv_mw",
    "ibv_mw_bind",
    // completion
    "ibv_comp_channel",
    "ibv_cq",
    "ibv_cq_ex",
    "ibv_cq_init_attr_ex",
    "ibv_cq_init_attr_mask",
    "ibv_create_cq_attr_flags",
    "ibv_create_cq_wc_flags",
    "ibv_wc",
    "ibv_wc_flags",
    // queue pairs and their requests
    "ibv_qp",
    "ibv_qp_ex",
    "ibv_qp_init_attr",
    "ibv_qp_init_attr_ex",
    "ibv_qp_init_attr_mask",
    "ibv_qp_create_flags",
    "ibv_qp_create_send_ops_flags",
    "ibv_qp_attr",
    "ibv_qp_attr_mask",
    "ibv_send_wr",
    "ibv_send_flags",
    "ibv_placement_type",
    "ibv_selectivity_level",
    "ibv_recv_wr",
    "ibv_sge",
    "ibv_data_buf",
    "ibv_srq",
    "ibv_srq_init_attr",
    "ibv_srq_attr_mask",
    "ibv_ah",
    "ibv_ah_attr",
    "ibv_grh",
    "ibv_rate",
    // rdma_cm
    "rdma_event_channel",
    "rdma_cm_id",
    "rdma_cm_event",
    "rdma_cm_event_type",
    "rdma_port_space",
    "rdma_conn_param",
    "rdma_ud_param",
    "rdma_addrinfo",
    "ibv_sa_path_rec",
    "sockaddr_ib",
];

/// Constants outside named enums.
const CONSTANTS: &[&str] = &[
    "IBV_LINK_LAYER_.*",
    "IBV_WC_STANDARD_FLAGS",
    "IBV_SYSFS_.*_MAX",
    "RDMA_UDP_QKEY",
    "RDMA_OPTION_.*",
    "RAI_.*",
    "RDMA_MAX_.*",
];

/// Functions that the libraries export under their own name.
const FUNCTIONS: &[&str] = &[
    "ibv_get_device_list",
    "ibv_free_device_list",
    "ibv_get_device_name",
    "ibv_open_device",
    "ibv_close_device",
    "ibv_get_async_event",
    "ibv_ack_async_event",
    "ibv_query_device",
    "ibv_query_port",
    "ibv_query_gid",
    "_ibv_query_gid_ex",
    "_ibv_query_gid_table",
    "ibv_query_pkey",
    "ibv_get_pkey_index",
    "ibv_alloc_pd",
    "ibv_dealloc_pd",
    "ibv_reg_mr",
    "ibv_reg_mr_iova2",
    "ibv_dereg_mr",
    "ibv_create_comp_channel",
    "ibv_destroy_comp_channel",
    "ibv_create_cq",
    "ibv_resize_cq",
    "ibv_destroy_cq",
    "ibv_get_cq_event",
    "ibv_ack_cq_events",
    "ibv_create_srq",
    "ibv_modify_srq",
    "ibv_query_srq",
    "ibv_destroy_srq",
    "ibv_create_qp",
    "ibv_qp_to_qp_ex",
    "ibv_modify_qp",
    "ibv_query_qp",
    "ibv_query_qp_data_in_order",
    "ibv_destroy_qp",
    "ibv_create_ah",
    "ibv_init_ah_from_wc",
    "ibv_destroy_ah",
    "ibv_attach_mcast",
    "ibv_detach_mcast",
    "ibv_fork_init",
    "ibv_is_fork_initialized",
    "ibv_wc_status_str",
    "ibv_event_type_str",
    "ibv_port_state_str",
    "rdma_create_event_channel",
    "rdma_destroy_event_channel",
    "rdma_create_id",
    "rdma_destroy_id",
    "rdma_bind_addr",
    "rdma_resolve_addr",
    "rdma_resolve_route",
    "rdma_connect",
    "rdma_establish",
    "rdma_listen",
    "rdma_accept",
    "rdma_reject",
    "rdma_disconnect",
    "rdma_get_cm_event",
    "rdma_ack_cm_event",
    "rdma_get_src_port",
    "rdma_get_dst_port",
    "rdma_event_str",
    "rdma_set_option",
    "rdma_migrate_id",
    "rdma_getaddrinfo",
    "rdma_freeaddrinfo",
    "rdma_init_qp_attr",
];

/// Types seen only behind pointers that we never follow.
const OPAQUE: &[&str] = &[
    "_compat_ibv_port_attr",
    "ibv_alloc_dm_attr",
    "ibv_counter_attach_attr",
    "ibv_counters",
    "ibv_counters_init_attr",
    "ibv_dm",
    "ibv_flow",
    "ibv_flow_action",
    "ibv_flow_action_esp_attr",
    "ibv_flow_attr",
    "ibv_modify_cq_attr",
    "ibv_ops_wr",
    "ibv_parent_domain_init_attr",
    "ibv_qp_open_attr",
    "ibv_qp_rate_limit_attr",
    "ibv_rwq_ind_table",
    "ibv_rwq_ind_table_init_attr",
    "ibv_srq_init_attr_ex",
    "ibv_td",
    "ibv_td_init_attr",
    "ibv_values_ex",
    "ibv_wc_tm_info",
    "ibv_wq",
    "ibv_wq_init_attr",
    "ibv_wq_attr",
    "ibv_xrcd",
    "ibv_xrcd_init_attr",
    "verbs_ex_private",
];

/// Types that the libc crate has.
const FROM_LIBC: &[&str] = &[
    "pthread_cond_t",
    "pthread_mutex_t",
    "sockaddr",
    "sockaddr_in",
    "sockaddr_in6",
    "sockaddr_storage",
    "socklen_t",
];

/// What only the insides of the types above would need.
const UNUSED: &[&str] = &[
    "__atomic_wide_counter.*",
    "__pthread_.*",
    "__socklen_t",
    "__syscall_slong_t",
    "__time_t",
    "ib_uverbs_flow_action_.*",
    "ibv_(counter_description|flow_attr_type|moderate_cq|srq_type|tm_cap|wq_state|wq_type)",
    "ibv_ops_wr_.*",
    "in6?_addr.*",
    "in_(addr|port)_t",
    "sa_family_t",
    "timespec",
];

/// Enums whose values are or'ed.
const BIT_ENUMS: &[&str] = &[
    "ibv_access_flags",
    "ibv_cq_init_attr_mask",
    "ibv_create_cq_attr_flags",
    "ibv_create_cq_wc_flags",
    "ibv_device_cap_flags",
    "ibv_odp_general_caps",
    "ibv_odp_transport_cap_bits",
    "ibv_placement_type",
    "ibv_port_cap_flags",
    "ibv_qp_attr_mask",
    "ibv_qp_create_flags",
    "ibv_qp_create_send_ops_flags",
    "ibv_qp_init_attr_mask",
    "ibv_send_flags",
    "ibv_srq_attr_mask",
    "ibv_wc_flags",
];

fn main() -> Result<(), Box<dyn Error>> {
    let headers = Headers {
        library: "rdma-core",
        program: "regenerate-bindings",
        include: "FERRO_RDMA_CORE_INCLUDE",
        types: TYPES,
        constants: CONSTANTS,
        functions: FUNCTIONS,
        from_libc: FROM_LIBC,
        unused: UNUSED,
    };
    let includes =
        "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#include <infiniband/ib.h>\n";
    let file = headers.bindings(includes, |mut builder| {
        for name in BIT_ENUMS {
            builder = builder.bitfield_enum(name);
        }
        for name in OPAQUE {
            builder = builder.blocklist_type(name).raw_line(format!(
                "#[repr(C)] #[derive(Debug)] pub struct {name} {{ _private: [u8; 0] }}"
            ));
        }
        builder
    })?;
    headers.write(&file, "provider-verbs/sys/src/bindings.rs")
}
