//! Layouts against a C compiler's. `layout.txt` holds sizes and offsets as gcc computed them from
//! the pinned headers; with FERRO_RDMA_CORE_INCLUDE set they are computed anew first, so that the
//! file itself is checked. (The generated bindings also assert libclang's numbers, at compile
//! time.)

use std::fmt::Write as _;
use std::path::Path;

use ferrofabric_bindings::layout;
use ferrofabric_verbs_sys::bindings::*;

/// Emits for each structure its size and the offsets of the named fields, as Rust has them and as a
/// C program would print them. A field is `c_name` or, where Rust must call it otherwise, `c_name
/// as rust_name`.
macro_rules! layouts {
    ($($kind:ident $name:ident { $($c_field:ident $(as $rust_field:ident)?),* $(,)? })*) => {
        fn rust_layouts() -> String {
            let mut text = String::new();
            $(
                writeln!(text, "{} {}", stringify!($name), size_of::<$name>()).expect("a string takes it");
                $(
                    writeln!(text, "{}.{} {}", stringify!($name), stringify!($c_field),
                        layouts!(@offset $name $c_field $($rust_field)?)).expect("a string takes it");
                )*
            )*
            text
        }

        fn c_program() -> String {
            let mut text = String::from(
                "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n#include <infiniband/ib.h>\nint main(void) {\n",
            );
            $(
                let (kind, name) = (stringify!($kind), stringify!($name));
                writeln!(text, "printf(\"{name} %zu\\n\", sizeof({kind} {name}));").expect("a string takes it");
                $(
                    let field = stringify!($c_field);
                    writeln!(text, "printf(\"{name}.{field} %zu\\n\", offsetof({kind} {name}, {field}));")
                        .expect("a string takes it");
                )*
            )*
            text + "return 0; }\n"
        }
    };
    (@offset $name:ident $c_field:ident) => { std::mem::offset_of!($name, $c_field) };
    (@offset $name:ident $c_field:ident $rust_field:ident) => { std::mem::offset_of!($name, $rust_field) };
}

layouts! {
    union ibv_gid { raw, global }
    struct ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
    struct ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
    struct ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
    struct ibv_context_ops { alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
    struct verbs_context { query_port, advise_mr, create_cq_ex, query_device_ex, create_qp_ex, get_srq_num, sz, context }
    struct ibv_device_attr { fw_ver, node_guid, max_mr_size, vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr,
        device_cap_flags, max_sge, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, atomic_cap, max_mw, max_ah, max_srq,
        max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt }
    struct ibv_device_attr_ex { orig_attr, comp_mask, odp_caps, device_cap_flags_ex, cq_mod_caps, max_dm_size,
        pci_atomic_caps, phys_port_cnt_ex }
    struct ibv_port_attr { state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, pkey_tbl_len, lid, sm_lid,
        lmc, sm_sl, subnet_timeout, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2,
        active_speed_ex }
    struct ibv_async_event { element, event_type }
    struct ibv_pd { context, handle }
    struct ibv_mr { context, pd, addr, length, handle, lkey, rkey }
    struct ibv_mw { context, pd, rkey, handle, type as type_ }
    struct ibv_mw_bind { wr_id, send_flags, bind_info }
    struct ibv_mw_bind_info { mr, addr, length, mw_access_flags }
    struct ibv_comp_channel { context, fd, refcnt }
    struct ibv_cq { context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed }
    struct ibv_cq_ex { context, cqe, comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode,
        read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl,
        read_dlid_path_bits }
    struct ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain }
    struct ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
        dlid_path_bits }
    struct ibv_srq { context, srq_context, pd, handle, events_completed }
    struct ibv_srq_init_attr { srq_context, attr }
    struct ibv_srq_attr { max_wr, max_sge, srq_limit }
    struct ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, events_completed }
    struct ibv_qp_ex { qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw, wr_local_inv,
        wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm, wr_send_inv, wr_set_ud_addr,
        wr_set_inline_data, wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort,
        wr_atomic_write, wr_flush }
    struct ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    struct ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
    struct ibv_qp_init_attr_ex { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, create_flags,
        source_qpn, send_ops_flags }
    struct ibv_qp_attr { qp_state, path_mtu, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr,
        pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, rate_limit }
    struct ibv_ah { context, pd, handle }
    struct ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
    struct ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
    struct ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
    struct ibv_sge { addr, length, lkey }
    struct ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr, qp_type }
    struct ibv_recv_wr { wr_id, next, sg_list, num_sge }
    struct rdma_event_channel { fd }
    struct ibv_sa_path_rec { dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible, numb_path,
        pkey, sl, mtu_selector, mtu, rate_selector, rate, packet_life_time_selector, packet_life_time, preference }
    struct sockaddr_ib { sib_family, sib_pkey, sib_flowinfo, sib_addr, sib_sid, sib_sid_mask, sib_scope_id }
    struct rdma_route { addr, path_rec, num_paths }
    struct rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event, pd, qp_type }
    struct rdma_cm_event { id, listen_id, event, status, param }
    struct rdma_conn_param { private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count,
        rnr_retry_count, srq, qp_num }
    struct rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
    struct rdma_addrinfo { ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr, ai_dst_addr,
        ai_route_len, ai_route, ai_connect_len, ai_connect, ai_next }
}

const COMMITTED: &str = include_str!("../layout.txt");

#[test]
fn rust_agrees_with_the_c_compiler() {
    if let Some(include) = std::env::var_os("FERRO_RDMA_CORE_INCLUDE") {
        let fresh = layout::run_c(&c_program(), &include);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/layout.txt");
        layout::assert_current(Path::new(path), COMMITTED, &fresh);
    }
    let rust = rust_layouts();
    let differences: Vec<_> = rust
        .lines()
        .zip(COMMITTED.lines())
        .filter(|(ours, c)| ours != c)
        .collect();
    assert!(differences.is_empty(), "(Rust, C): {differences:?}");
    assert_eq!(rust.lines().count(), COMMITTED.lines().count());
}
