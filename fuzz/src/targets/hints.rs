//! Hints of any values, against candidates as the providers have them.

use ferrofabric_contracts::addr::{
    AddrFormat, AddrFormats, Address, AuthKey, GidKind, NativeAddr, VerbsAddr,
};
use ferrofabric_contracts::flags::{Flags, Mode, MrMode, Order};
use ferrofabric_contracts::info::{
    DomainAttr, EpAttr, EpType, FabricAttr, Info, Progress, ResourceMgmt, RxAttr, Threading,
    TxAttr, dgram_messages, filter, protocol, rdm_messages, with_prefix,
};
use ferrofabric_contracts::types::AvType;
use ferrofabric_shm::ShmProvider;

use super::{addresses, seed};
use crate::input::Input;
use crate::{FuzzTarget, saw};

/// Fields that are set one after the other: the number of a field, then its value.
pub(super) const HINTS: FuzzTarget = FuzzTarget {
    name: "hints",
    take,
    seeds,
    words: &["rxe0:1", ShmProvider::DOMAIN, "RoCE", "ferro"],
};

/// As a machine with one port has them.
pub(super) fn candidates() -> Vec<Info> {
    let own = |shm, verbs: bool| {
        let verbs = verbs.then_some(VerbsAddr {
            gid: std::net::Ipv4Addr::new(10, 1, 0, 1)
                .to_ipv6_mapped()
                .octets(),
            gid_kind: GidKind::RoceV2,
            qpn: 0,
            qkey: 0,
            lid: 0,
            pkey: 0xffff,
            sl: 0,
            port: 1,
            mtu_bytes: 1024,
        });
        Some(Address::Native(NativeAddr {
            incarnation: 0,
            node: 0x11,
            shm,
            verbs,
        }))
    };
    let at = |mut info: Info, name: &str, caps: Flags, src_addr| {
        info.caps |= caps;
        info.domain.caps = caps;
        info.domain.name = name.to_owned();
        info.fabric.name = match name {
            ShmProvider::DOMAIN => ShmProvider::DOMAIN,
            _ => "RoCE",
        }
        .to_owned();
        info.fabric.provider = "ferro".to_owned();
        info.addr_formats = AddrFormats::all();
        info.src_addr = src_addr;
        info.ep.max_msg_size = 1 << 20;
        info.tx.size = 256;
        info.rx.size = 256;
        info.tx.iov_limit = 4;
        info.rx.iov_limit = 4;
        info
    };
    let reach = Flags::LOCAL_COMM | Flags::REMOTE_COMM;
    let mut rdm = at(rdm_messages(), "rxe0:1", reach, own(Some(0), true));
    rdm.ep.protocol = protocol::VERBS_RDM;
    let mut dgram = at(dgram_messages(), "rxe0:1", reach, own(None, true));
    dgram.ep.protocol = protocol::IB_UD;
    let shm = at(
        rdm_messages(),
        ShmProvider::DOMAIN,
        Flags::LOCAL_COMM,
        own(Some(0), false),
    );
    vec![rdm, with_prefix(dgram.clone(), 40), dgram, shm]
}

fn take(bytes: &[u8]) -> u64 {
    let hints = hints(&mut Input::new(bytes));
    let mut fields = Vec::new();
    for candidate in candidates() {
        match filter(&hints, &candidate) {
            Ok(offer) => {
                let again = filter(&offer, &candidate);
                assert!(again.as_ref() == Ok(&offer), "{again:?}\nfor {offer:?}");
                assert!(candidate.caps.contains(offer.caps));
                for addr in [offer.src_addr, offer.dest_addr].into_iter().flatten() {
                    assert!(addr.has_format(offer.addr_format), "{addr}");
                }
                fields.push("");
            }
            Err(why) => {
                assert!(!why.to_string().is_empty() && !why.mend.is_empty());
                fields.push(why.field);
            }
        }
    }
    saw(fields)
}

pub(super) fn hints(input: &mut Input<'_>) -> Info {
    let mut hints = Info::null_hints();
    while !input.is_over() {
        set(&mut hints, input);
    }
    hints
}

/// Small more often than not.
fn count(input: &mut Input<'_>) -> usize {
    match input.byte() {
        255 => input.number() as usize,
        small => small.into(),
    }
}

fn flags(input: &mut Input<'_>) -> Flags {
    match input.byte() {
        255 => Flags::from_bits_retain(input.number()),
        bit => Flags::from_bits_retain(1 << (bit % 64)),
    }
}

fn mode_of(input: &mut Input<'_>) -> Mode {
    Mode::from_bits_retain(input.number())
}

fn order(input: &mut Input<'_>) -> Order {
    Order::from_bits_retain(input.number())
}

/// One that is known, more often than not.
fn format(input: &mut Input<'_>) -> AddrFormat {
    match input.byte() {
        number @ 128.. => AddrFormat(number.into()),
        number => AddrFormat::KNOWN[usize::from(number) % AddrFormat::KNOWN.len()],
    }
}

fn key(input: &mut Input<'_>) -> Option<AuthKey> {
    AuthKey::new(input.number() as u16, input.number() as u32).ok()
}

fn address(input: &mut Input<'_>) -> Option<Address> {
    let known = addresses::addresses();
    let (_, addr) = *known.get(usize::from(input.byte()))?;
    Some(addr)
}

/// Sets one field, whichever the next byte says. The structures are taken apart field by field, so
/// that this does not compile with a field that is left out.
fn set(hints: &mut Info, input: &mut Input<'_>) {
    let which = input.byte();
    let Info {
        caps,
        mode,
        addr_format,
        addr_formats: _,
        src_addr,
        dest_addr,
        tx,
        rx,
        ep,
        domain,
        fabric,
        nic: _,
    } = hints;
    match which {
        0 => *caps |= flags(input),
        1 => *mode = mode_of(input),
        2 => *addr_format = format(input),
        3 => *src_addr = address(input),
        4 => *dest_addr = address(input),
        5..=15 => set_tx(tx, which - 5, input),
        16..=25 => set_rx(rx, which - 16, input),
        26..=39 => set_ep(ep, which - 26, input),
        40..=73 => set_domain(domain, which - 40, input),
        74..=77 => set_fabric(fabric, which - 74, input),
        _ => (),
    }
}

/// Numbers of fields.
const FIELDS: u8 = 78;

fn set_tx(tx: &mut TxAttr, which: u8, input: &mut Input<'_>) {
    let TxAttr {
        caps,
        mode,
        op_flags,
        msg_order,
        comp_order,
        inject_size,
        size,
        iov_limit,
        rma_iov_limit,
        tclass,
    } = tx;
    match which {
        0 => *caps |= flags(input),
        1 => *mode = mode_of(input),
        2 => *op_flags |= flags(input),
        3 => *msg_order = order(input),
        4 => *comp_order = order(input),
        5 => *inject_size = count(input),
        6 => *size = count(input),
        7 => *iov_limit = count(input),
        8 => *rma_iov_limit = count(input),
        _ => *tclass = count(input) as u32,
    }
}

fn set_rx(rx: &mut RxAttr, which: u8, input: &mut Input<'_>) {
    let RxAttr {
        caps,
        mode,
        op_flags,
        msg_order,
        comp_order,
        total_buffered_recv,
        size,
        iov_limit,
    } = rx;
    match which {
        0 => *caps |= flags(input),
        1 => *mode = mode_of(input),
        2 => *op_flags |= flags(input),
        3 => *msg_order = order(input),
        4 => *comp_order = order(input),
        5 => *total_buffered_recv = count(input),
        6 => *size = count(input),
        _ => *iov_limit = count(input),
    }
}

fn set_ep(ep: &mut EpAttr, which: u8, input: &mut Input<'_>) {
    let EpAttr {
        ep_type,
        protocol,
        protocol_version,
        max_msg_size,
        msg_prefix_size,
        max_order_raw_size,
        max_order_war_size,
        max_order_waw_size,
        mem_tag_format,
        tx_ctx_cnt,
        rx_ctx_cnt,
        auth_key_size,
        auth_key,
    } = ep;
    match which {
        0 => *ep_type = input.of(EpType::ALL),
        1 => *protocol = count(input) as u32,
        2 => *protocol_version = count(input) as u32,
        3 => *max_msg_size = count(input),
        4 => *msg_prefix_size = count(input),
        5 => *max_order_raw_size = count(input),
        6 => *max_order_war_size = count(input),
        7 => *max_order_waw_size = count(input),
        8 => *mem_tag_format = count(input) as u64,
        9 => *tx_ctx_cnt = count(input),
        10 => *rx_ctx_cnt = count(input),
        11 => *auth_key_size = count(input),
        _ => *auth_key = key(input),
    }
}

fn set_domain(domain: &mut DomainAttr, which: u8, input: &mut Input<'_>) {
    let DomainAttr {
        name,
        threading,
        control_progress,
        data_progress,
        resource_mgmt,
        av_type,
        mr_mode,
        mr_key_size,
        cq_data_size,
        cq_cnt,
        ep_cnt,
        tx_ctx_cnt,
        rx_ctx_cnt,
        max_ep_tx_ctx,
        max_ep_rx_ctx,
        max_ep_stx_ctx,
        max_ep_srx_ctx,
        cntr_cnt,
        mr_iov_limit,
        caps,
        mode,
        auth_key_size,
        auth_key,
        max_err_data,
        mr_cnt,
        tclass,
        max_ep_auth_key,
        max_group_id,
        max_cntr_value,
        max_err_cntr_value,
    } = domain;
    match which {
        0 => *name = input.text().into_owned(),
        1 => *threading = input.of(Threading::ALL),
        2 => *control_progress = input.of(Progress::ALL),
        3 => *data_progress = input.of(Progress::ALL),
        4 => *resource_mgmt = input.of(ResourceMgmt::ALL),
        5 => {
            let number = usize::from(input.byte()) % (AvType::ALL.len() + 1);
            *av_type = AvType::ALL.get(number).copied();
        }
        6 => *mr_mode = MrMode::from_bits_retain(input.number() as u32),
        7 => *mr_key_size = count(input),
        8 => *cq_data_size = count(input),
        9 => *cq_cnt = count(input),
        10 => *ep_cnt = count(input),
        11 => *tx_ctx_cnt = count(input),
        12 => *rx_ctx_cnt = count(input),
        13 => *max_ep_tx_ctx = count(input),
        14 => *max_ep_rx_ctx = count(input),
        15 => *max_ep_stx_ctx = count(input),
        16 => *max_ep_srx_ctx = count(input),
        17 => *cntr_cnt = count(input),
        18 => *mr_iov_limit = count(input),
        19 => *caps |= flags(input),
        20 => *mode = mode_of(input),
        21 => *auth_key_size = count(input),
        22 => *auth_key = key(input),
        23 => *max_err_data = count(input),
        24 => *mr_cnt = count(input),
        25 => *tclass = count(input) as u32,
        26 => *max_ep_auth_key = count(input),
        27 => *max_group_id = count(input) as u32,
        28 => *max_cntr_value = input.number(),
        _ => *max_err_cntr_value = input.number(),
    }
}

fn set_fabric(fabric: &mut FabricAttr, which: u8, input: &mut Input<'_>) {
    let FabricAttr {
        name,
        provider,
        provider_version,
        api_version,
    } = fabric;
    match which {
        0 => *name = input.text().into_owned(),
        1 => *provider = input.text().into_owned(),
        2 => *provider_version = count(input) as u32,
        _ => *api_version = input.number() as u32,
    }
}

/// Each field with a small value.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = (0..FIELDS)
        .step_by(6)
        .map(|first| {
            let fields = first..(first + 6).min(FIELDS);
            let bytes: Vec<u8> = fields.flat_map(|field| [field, 1]).collect();
            seed(&format!("fields_from_{first}"), bytes)
        })
        .collect();
    all.push(seed(
        "messages_of_each_type",
        [0, 1, 0, 3, 0, 52, 26, 1, 29, 200],
    ));
    all.push(seed("names", *b"\x28\x06rxe0:1\x4a\x04RoCE\x4b\x05ferro"));
    all.push(seed("nothing", []));
    all
}
