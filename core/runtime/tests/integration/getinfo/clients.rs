//! The hints of well-known applications for fi_getinfo(3), from their sources of 2024 to 2026.

#![allow(dead_code, reason = "each test uses a part")]

use ferrofabric_contracts::flags::{Flags, Mode, MrMode, Order};
use ferrofabric_contracts::info::{
    DomainAttr, EpAttr, EpType, FabricAttr, Info, Progress, ResourceMgmt, RxAttr, Threading, TxAttr,
};
use ferrofabric_contracts::types::AvType;

/// Open MPI's `mtl/ofi` (`mtl_ofi_component.c`), in each of its variants: threads or not, and with
/// the registration mode that is left from its first call, which requests device memory.
pub(crate) fn open_mpi() -> Vec<Info> {
    let mut all = Vec::new();
    for threading in [Threading::Safe, Threading::Domain] {
        for av_type in [AvType::Map, AvType::Table] {
            for mr_mode in [MrMode::empty(), MrMode::ALLOCATED] {
                all.push(Info {
                    caps: Flags::MSG
                        | Flags::TAGGED
                        | Flags::LOCAL_COMM
                        | Flags::REMOTE_COMM
                        | Flags::DIRECTED_RECV,
                    mode: Mode::CONTEXT | Mode::CONTEXT2,
                    tx: TxAttr {
                        msg_order: Order::SAS,
                        op_flags: Flags::COMPLETION,
                        ..TxAttr::default()
                    },
                    rx: RxAttr {
                        msg_order: Order::SAS,
                        op_flags: Flags::COMPLETION,
                        ..RxAttr::default()
                    },
                    ep: EpAttr {
                        ep_type: EpType::Rdm,
                        ..EpAttr::default()
                    },
                    domain: DomainAttr {
                        threading,
                        resource_mgmt: ResourceMgmt::Enabled,
                        av_type: Some(av_type),
                        mr_mode,
                        cq_data_size: 4,
                        ..DomainAttr::default()
                    },
                    ..Info::default()
                });
            }
        }
    }
    all
}

/// Open MPI's `btl/ofi` for one-sided operations (`btl_ofi_component.c`).
pub(crate) fn open_mpi_one_sided() -> Info {
    Info {
        caps: Flags::RMA | Flags::ATOMIC | Flags::MSG,
        mode: Mode::CONTEXT | Mode::CONTEXT2,
        tx: TxAttr {
            op_flags: Flags::DELIVERY_COMPLETE,
            iov_limit: 1,
            ..TxAttr::default()
        },
        rx: RxAttr {
            iov_limit: 1,
            ..RxAttr::default()
        },
        ep: EpAttr {
            ep_type: EpType::Rdm,
            ..EpAttr::default()
        },
        domain: DomainAttr {
            mr_mode: MrMode::ALLOCATED | MrMode::PROV_KEY | MrMode::VIRT_ADDR | MrMode::ENDPOINT,
            ..DomainAttr::default()
        },
        ..Info::default()
    }
}

/// MPICH's `ch4:ofi` (`init_settings.c`), in each of its variants without atomics: it takes the
/// other capabilities from an offer that it got with NULL hints. Where it uses one-sided
/// operations, sends complete on delivery.
pub(crate) fn mpich(first: &Info) -> Vec<Info> {
    // Protocol and tag with CQ data, protocol and source without.
    let tag_formats = [(0x18 << 51) | 0x7fff_ffff, (0x18 << 58) | (0x7f_ffff << 19)];
    let mr_modes = [
        MrMode::ENDPOINT,
        MrMode::ENDPOINT | MrMode::VIRT_ADDR | MrMode::ALLOCATED | MrMode::PROV_KEY,
        MrMode::empty(),
    ];
    let mut all = Vec::new();
    for mem_tag_format in tag_formats {
        for mr_mode in mr_modes {
            for (domain_mode, level) in [
                (Mode::empty(), Flags::empty()),
                (Mode::RESTRICTED_COMP, Flags::empty()),
                (Mode::RESTRICTED_COMP, Flags::DELIVERY_COMPLETE),
            ] {
                all.push(Info {
                    caps: first.caps - Flags::ATOMIC,
                    mode: Mode::CONTEXT | Mode::ASYNC_IOV | Mode::RX_CQ_DATA | Mode::CONTEXT2,
                    tx: TxAttr {
                        op_flags: Flags::COMPLETION | level,
                        msg_order: Order::SAS,
                        ..TxAttr::default()
                    },
                    rx: RxAttr {
                        op_flags: Flags::COMPLETION,
                        msg_order: Order::SAS,
                        ..RxAttr::default()
                    },
                    ep: EpAttr {
                        ep_type: EpType::Rdm,
                        mem_tag_format,
                        ..EpAttr::default()
                    },
                    domain: DomainAttr {
                        threading: Threading::Domain,
                        control_progress: Progress::Manual,
                        data_progress: Progress::Manual,
                        resource_mgmt: ResourceMgmt::Enabled,
                        av_type: Some(AvType::Table),
                        mr_mode,
                        mode: domain_mode,
                        cq_data_size: 4,
                        ..DomainAttr::default()
                    },
                    fabric: FabricAttr {
                        provider: first.fabric.provider.clone(),
                        api_version: (2 << 16) | 5,
                        ..FabricAttr::default()
                    },
                    ..Info::default()
                });
            }
        }
    }
    all
}

/// The fields of an offer that MPICH and Open MPI check, and whose value makes them abort or take
/// another offer.
pub(crate) fn check_granted(hints: &Info, offer: &Info) {
    assert!(offer.caps.contains(hints.caps), "{offer:?}");
    assert_eq!(offer.domain.threading, hints.domain.threading);
    assert_eq!(offer.domain.av_type, hints.domain.av_type);
    assert_eq!(offer.domain.data_progress, Progress::Manual);
    assert!(offer.domain.cq_data_size >= hints.domain.cq_data_size);
    assert_eq!(offer.domain.mr_mode, MrMode::empty());
    assert_eq!(offer.mode, Mode::empty());
    assert_eq!(offer.tx.op_flags, hints.tx.op_flags);
    assert_eq!(offer.rx.op_flags, hints.rx.op_flags);
    assert!(offer.tx.msg_order.contains(Order::SAS) && offer.rx.msg_order.contains(Order::SAS));
    assert!(offer.caps.contains(Flags::MSG | Flags::MULTI_RECV));
    assert_eq!(offer.ep.mem_tag_format.leading_zeros(), 0);
}
