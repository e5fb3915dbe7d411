//! Hints of any values, against candidates as the providers have them.

use ferrofabric_core::addr::{AddrFormat, AddrFormats, Address, GidKind, NativeAddr, VerbsAddr};
use ferrofabric_core::av::AvType;
use ferrofabric_core::flags::{Flags, Mode, MrMode, Order};
use ferrofabric_core::info::{
    EpType, Info, Progress, ResourceMgmt, Threading, dgram_messages, filter, protocol,
    rdm_messages, with_prefix,
};

use super::{addresses, seed};
use crate::input::Input;
use crate::{Target, saw};

/// Fields that are set one after the other: the number of a field, then its value.
pub(super) const HINTS: Target = Target {
    name: "hints",
    take,
    seeds,
    words: &["rxe0:1", "shm", "RoCE", "ferro"],
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
        info.fabric.name = if name == "shm" { "shm" } else { "RoCE" }.to_owned();
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
        "shm",
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

fn mode(input: &mut Input<'_>) -> Mode {
    Mode::from_bits_retain(input.number())
}

fn address(input: &mut Input<'_>) -> Option<Address> {
    let known = addresses::addresses();
    let (_, addr) = *known.get(usize::from(input.byte()))?;
    Some(addr)
}

fn set(hints: &mut Info, input: &mut Input<'_>) {
    match input.byte() {
        0 => hints.caps |= flags(input),
        1 => hints.mode = mode(input),
        2 => hints.addr_format = AddrFormat(input.byte().into()),
        3 => hints.src_addr = address(input),
        4 => hints.dest_addr = address(input),
        5 => hints.tx.caps |= flags(input),
        6 => hints.tx.mode = mode(input),
        7 => hints.tx.op_flags |= flags(input),
        8 => hints.tx.msg_order = Order::from_bits_retain(input.number()),
        9 => hints.tx.comp_order = Order::from_bits_retain(input.number()),
        10 => hints.tx.inject_size = count(input),
        11 => hints.tx.size = count(input),
        12 => hints.tx.iov_limit = count(input),
        13 => hints.tx.rma_iov_limit = count(input),
        14 => hints.tx.tclass = count(input) as u32,
        15 => hints.rx.caps |= flags(input),
        16 => hints.rx.mode = mode(input),
        17 => hints.rx.op_flags |= flags(input),
        18 => hints.rx.msg_order = Order::from_bits_retain(input.number()),
        19 => hints.rx.total_buffered_recv = count(input),
        20 => hints.rx.size = count(input),
        21 => hints.rx.iov_limit = count(input),
        22 => {
            hints.ep.ep_type = input.of(&[EpType::Unspec, EpType::Rdm, EpType::Dgram, EpType::Msg])
        }
        23 => hints.ep.protocol = count(input) as u32,
        24 => hints.ep.max_msg_size = count(input),
        25 => hints.ep.msg_prefix_size = count(input),
        26 => hints.ep.mem_tag_format = count(input) as u64,
        27 => hints.ep.tx_ctx_cnt = count(input),
        28 => hints.ep.rx_ctx_cnt = count(input),
        29 => hints.ep.auth_key_size = count(input),
        30 => hints.domain.name = input.text().into_owned(),
        31 => {
            hints.domain.threading = Threading::from_number(input.byte().into()).unwrap_or_default()
        }
        32 => {
            hints.domain.control_progress =
                Progress::from_number(input.byte().into()).unwrap_or_default();
        }
        33 => {
            hints.domain.data_progress =
                Progress::from_number(input.byte().into()).unwrap_or_default()
        }
        34 => {
            hints.domain.resource_mgmt =
                ResourceMgmt::from_number(input.byte().into()).unwrap_or_default();
        }
        35 => hints.domain.av_type = input.of(&[None, Some(AvType::Map), Some(AvType::Table)]),
        36 => hints.domain.mr_mode = MrMode::from_bits_retain(input.number() as u32),
        37 => hints.domain.caps |= flags(input),
        38 => hints.domain.mode = mode(input),
        39 => hints.domain.cq_data_size = count(input),
        40 => hints.domain.max_ep_srx_ctx = count(input),
        41 => hints.domain.ep_cnt = count(input),
        42 => hints.fabric.name = input.text().into_owned(),
        43 => hints.fabric.provider = input.text().into_owned(),
        44 => hints.fabric.provider_version = count(input) as u32,
        45 => hints.fabric.api_version = input.number() as u32,
        46 => hints.domain.max_cntr_value = input.number(),
        47 => hints.domain.tclass = count(input) as u32,
        _ => (),
    }
}

/// Each field with a small value.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = (0..48u8)
        .step_by(6)
        .map(|field| {
            seed(
                &format!("field_{field}"),
                (field..field + 6)
                    .flat_map(|field| [field, 1])
                    .collect::<Vec<_>>(),
            )
        })
        .collect();
    all.push(seed("messages", [0, 1, 0, 3, 0, 52, 22, 1, 24, 200]));
    all.push(seed("named", *b"\x1e\x06rxe0:1\x2a\x04RoCE\x2b\x05ferro"));
    all.push(seed("nothing", []));
    all
}
