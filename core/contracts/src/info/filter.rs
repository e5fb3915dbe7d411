//! Hints against one candidate, field by field: pure, and says which field ruled a candidate out.
//!
//! As fi_getinfo(3) has it, a value other than 0 must be met and 0 stands for anything, but for
//! modes, where 0 means that the application supports none. An offer taken as hints gives the same
//! offer again.

use super::mismatch::Shown;
use super::models::{EpType, Progress, ResourceMgmt, SHARED_CONTEXT, Threading, tag_format};
use super::{
    DomainAttr, EpAttr, FabricAttr, Info, Mismatch, RX_CAPS, RxAttr, TX_CAPS, TxAttr, caps, keys,
    linked, mr_mode, orders, reach, traffic_class,
};
use crate::flags::{Flags, Mode, Order};
use crate::size::Size;
use crate::types::AvType;

/// Operations that may be under way where the hints do not say, if there may be that many:
/// applications make their own queues that long.
const DEFAULT_SIZE: usize = 1024;

/// The candidate as the hints want it, or the field in which it can not.
///
/// # Errors
///
/// The first field that rules it out.
pub fn filter(hints: &Info, candidate: &Info) -> Result<Info, Mismatch> {
    let Info {
        caps: _,
        mode: _,
        addr_format: _,
        addr_formats: _,
        src_addr: _,
        dest_addr: _,
        tx: _,
        rx: _,
        ep: _,
        domain: _,
        fabric: _,
        nic: _,
    } = hints;
    let mut granted = caps::grant(hints.caps, candidate.caps)?;
    let mut registration = mr_mode::grant(hints, candidate.domain.mr_mode, granted);
    if registration.is_err() && hints.caps.is_empty() {
        granted = caps::without_targets(granted);
        registration = mr_mode::grant(hints, candidate.domain.mr_mode, granted);
    }
    let (mr_mode, mode) = registration?;
    supported("mode", hints.mode, candidate.mode)?;
    let addresses = reach::addresses(hints, candidate, granted)?;
    let domain = domain(&hints.domain, &candidate.domain, granted)?;
    linked::check_progress(hints, domain.data_progress)?;
    let offer = Info {
        caps: granted,
        mode: candidate.mode | mode,
        addr_format: addresses.format,
        addr_formats: candidate.addr_formats,
        src_addr: addresses.src,
        dest_addr: addresses.dest,
        tx: tx(hints, &candidate.tx, &domain, granted)?,
        rx: rx(hints, &candidate.rx, granted)?,
        ep: ep(&hints.ep, hints.tx.msg_order, candidate, granted)?,
        domain: DomainAttr { mr_mode, ..domain },
        fabric: fabric(&hints.fabric, &candidate.fabric)?,
        nic: candidate.nic.clone(),
    };
    Ok(linked::for_owner(offer, hints))
}

fn tx(
    hints: &Info,
    offered: &TxAttr,
    domain: &DomainAttr,
    caps: Flags,
) -> Result<TxAttr, Mismatch> {
    let TxAttr {
        caps: asked_caps,
        mode,
        op_flags,
        msg_order,
        comp_order,
        inject_size,
        size,
        iov_limit,
        rma_iov_limit,
        tclass,
    } = hints.tx;
    supported("tx_attr->mode", either(mode, hints.mode), offered.mode)?;
    within("tx_attr->op_flags", op_flags, offered.op_flags)?;
    within("tx_attr->msg_order", msg_order, offered.msg_order)?;
    within("tx_attr->comp_order", comp_order, offered.comp_order)?;
    at_most_bytes("tx_attr->inject_size", inject_size, offered.inject_size)?;
    at_most("tx_attr->iov_limit", iov_limit, offered.iov_limit)?;
    at_most(
        "tx_attr->rma_iov_limit",
        rma_iov_limit,
        offered.rma_iov_limit,
    )?;
    Ok(TxAttr {
        tclass: traffic_class::grant("tx_attr->tclass", tclass, domain.tclass)?,
        caps: caps::grant_side("tx_attr->caps", asked_caps, caps, TX_CAPS)?,
        op_flags,
        msg_order: orders::grant(msg_order, offered.msg_order),
        size: queue("tx_attr->size", size, offered.size)?,
        ..offered.clone()
    })
}

fn rx(hints: &Info, offered: &RxAttr, caps: Flags) -> Result<RxAttr, Mismatch> {
    let RxAttr {
        caps: asked_caps,
        mode,
        op_flags,
        msg_order,
        comp_order,
        total_buffered_recv,
        size,
        iov_limit,
    } = hints.rx;
    supported("rx_attr->mode", either(mode, hints.mode), offered.mode)?;
    within("rx_attr->op_flags", op_flags, offered.op_flags)?;
    within("rx_attr->msg_order", msg_order, offered.msg_order)?;
    within("rx_attr->comp_order", comp_order, offered.comp_order)?;
    at_most(
        "rx_attr->total_buffered_recv",
        total_buffered_recv,
        offered.total_buffered_recv,
    )?;
    at_most("rx_attr->iov_limit", iov_limit, offered.iov_limit)?;
    Ok(RxAttr {
        caps: caps::grant_side("rx_attr->caps", asked_caps, caps, RX_CAPS)?,
        op_flags,
        msg_order: orders::grant(msg_order, offered.msg_order),
        size: queue("rx_attr->size", size, offered.size)?,
        ..offered.clone()
    })
}

fn ep(hints: &EpAttr, order: Order, candidate: &Info, caps: Flags) -> Result<EpAttr, Mismatch> {
    let EpAttr {
        ep_type,
        protocol,
        protocol_version,
        max_msg_size,
        msg_prefix_size,
        max_order_raw_size: _,
        max_order_war_size: _,
        max_order_waw_size: _,
        mem_tag_format,
        tx_ctx_cnt,
        rx_ctx_cnt,
        auth_key_size: _,
        auth_key: _,
    } = *hints;
    let (offered, domain) = (&candidate.ep, &candidate.domain);
    same("ep_attr->type", ep_type, offered.ep_type, EpType::Unspec)?;
    same("ep_attr->protocol", protocol, offered.protocol, 0)?;
    at_most(
        "ep_attr->protocol_version",
        protocol_version,
        offered.protocol_version,
    )?;
    at_most_bytes("ep_attr->max_msg_size", max_msg_size, offered.max_msg_size)?;
    at_most_bytes(
        "ep_attr->msg_prefix_size",
        msg_prefix_size,
        offered.msg_prefix_size,
    )?;
    let [max_order_raw_size, max_order_war_size, max_order_waw_size] =
        order_sizes(hints, order, offered, caps)?;
    let (auth_key_size, auth_key) = keys::of_endpoint(hints, offered)?;
    Ok(EpAttr {
        max_order_raw_size,
        max_order_war_size,
        max_order_waw_size,
        auth_key_size,
        auth_key,
        mem_tag_format: tags(mem_tag_format, offered.mem_tag_format, caps)?,
        tx_ctx_cnt: contexts(
            "ep_attr->tx_ctx_cnt",
            (tx_ctx_cnt, offered.tx_ctx_cnt),
            domain.max_ep_tx_ctx,
            domain.max_ep_stx_ctx,
        )?,
        rx_ctx_cnt: contexts(
            "ep_attr->rx_ctx_cnt",
            (rx_ctx_cnt, offered.rx_ctx_cnt),
            domain.max_ep_rx_ctx,
            domain.max_ep_srx_ctx,
        )?,
        ..offered.clone()
    })
}

/// The bytes up to which reads after writes, writes after reads, and writes after writes keep their
/// order.
fn order_sizes(
    hints: &EpAttr,
    order: Order,
    offered: &EpAttr,
    caps: Flags,
) -> Result<[usize; 3], Mismatch> {
    let sizes = [
        (
            "ep_attr->max_order_raw_size",
            Order::RAW | Order::RMA_RAW,
            hints.max_order_raw_size,
            offered.max_order_raw_size,
        ),
        (
            "ep_attr->max_order_war_size",
            Order::WAR | Order::RMA_WAR,
            hints.max_order_war_size,
            offered.max_order_war_size,
        ),
        (
            "ep_attr->max_order_waw_size",
            Order::WAW | Order::RMA_WAW,
            hints.max_order_waw_size,
            offered.max_order_waw_size,
        ),
    ];
    let mut granted = [0; 3];
    for (granted, (field, of_any_length, asked, offered)) in granted.iter_mut().zip(sizes) {
        if caps::has_remote_access(caps) {
            at_most_bytes(field, asked, offered)?;
        }
        *granted = match order.intersects(of_any_length) {
            true => offered,
            false => orders::size_without_request(asked, offered),
        };
    }
    Ok(granted)
}

fn domain(hints: &DomainAttr, offered: &DomainAttr, caps: Flags) -> Result<DomainAttr, Mismatch> {
    let DomainAttr {
        ref name,
        threading,
        control_progress,
        data_progress,
        resource_mgmt,
        av_type,
        mr_mode: _,
        caps: asked_caps,
        mode,
        auth_key_size: _,
        auth_key: _,
        tclass,
        // In `domain_counts`.
        mr_key_size: _,
        cq_data_size: _,
        cq_cnt: _,
        ep_cnt: _,
        tx_ctx_cnt: _,
        rx_ctx_cnt: _,
        max_ep_tx_ctx: _,
        max_ep_rx_ctx: _,
        max_ep_stx_ctx: _,
        max_ep_srx_ctx: _,
        cntr_cnt: _,
        mr_iov_limit: _,
        max_err_data: _,
        mr_cnt: _,
        max_ep_auth_key: _,
        max_group_id,
        max_cntr_value,
        max_err_cntr_value,
    } = *hints;
    named("domain_attr->name", name, &offered.name)?;
    if resource_mgmt == ResourceMgmt::Enabled && offered.resource_mgmt != resource_mgmt {
        return Err(Mismatch::new(
            "domain_attr->resource_mgmt",
            &resource_mgmt,
            &offered.resource_mgmt,
            "guard the resources in the application, and ask for none of it",
        ));
    }
    supported("domain_attr->mode", mode, offered.mode)?;
    domain_counts(hints, offered)?;
    let (auth_key_size, auth_key) = keys::of_domain(hints, offered)?;
    at_most(
        "domain_attr->max_group_id",
        max_group_id,
        offered.max_group_id,
    )?;
    at_most(
        "domain_attr->max_cntr_value",
        max_cntr_value,
        offered.max_cntr_value,
    )?;
    at_most(
        "domain_attr->max_err_cntr_value",
        max_err_cntr_value,
        offered.max_err_cntr_value,
    )?;
    Ok(DomainAttr {
        threading: locking(threading, offered.threading),
        control_progress: progress(
            "domain_attr->control_progress",
            control_progress,
            offered.control_progress,
        )?,
        data_progress: driving(data_progress, offered.data_progress)?,
        av_type: Some(address_vectors(av_type, offered.av_type)?),
        caps: caps::grant_domain(asked_caps, offered.caps, caps)?,
        tclass: traffic_class::grant("domain_attr->tclass", tclass, offered.tclass)?,
        auth_key_size,
        auth_key,
        ..offered.clone()
    })
}

/// A domain grants no more of an object than it offers.
fn domain_counts(hints: &DomainAttr, offered: &DomainAttr) -> Result<(), Mismatch> {
    let count = |field, of: fn(&DomainAttr) -> usize| at_most(field, of(hints), of(offered));
    count("domain_attr->mr_key_size", |it| it.mr_key_size)?;
    count("domain_attr->cq_data_size", |it| it.cq_data_size)?;
    count("domain_attr->cq_cnt", |it| it.cq_cnt)?;
    count("domain_attr->ep_cnt", |it| it.ep_cnt)?;
    count("domain_attr->tx_ctx_cnt", |it| it.tx_ctx_cnt)?;
    count("domain_attr->rx_ctx_cnt", |it| it.rx_ctx_cnt)?;
    count("domain_attr->max_ep_tx_ctx", |it| it.max_ep_tx_ctx)?;
    count("domain_attr->max_ep_rx_ctx", |it| it.max_ep_rx_ctx)?;
    count("domain_attr->max_ep_stx_ctx", |it| it.max_ep_stx_ctx)?;
    count("domain_attr->max_ep_srx_ctx", |it| it.max_ep_srx_ctx)?;
    count("domain_attr->cntr_cnt", |it| it.cntr_cnt)?;
    count("domain_attr->mr_iov_limit", |it| it.mr_iov_limit)?;
    count("domain_attr->max_err_data", |it| it.max_err_data)?;
    count("domain_attr->mr_cnt", |it| it.mr_cnt)?;
    count("domain_attr->max_ep_auth_key", |it| it.max_ep_auth_key)?;
    Ok(())
}

/// No level of threading needs more than `Safe`, which all domains keep.
fn locking(asked: Threading, offered: Threading) -> Threading {
    match (asked, offered) {
        (Threading::Unspec, Threading::Unspec) => Threading::Safe,
        (Threading::Unspec, offered) => offered,
        (asked, _) => asked,
    }
}

fn driving(asked: Progress, offered: Progress) -> Result<Progress, Mismatch> {
    match (asked, offered) {
        // A thread does what the application does not.
        (Progress::Auto, Progress::Manual) => Ok(Progress::Auto),
        (asked, offered) => progress("domain_attr->data_progress", asked, offered),
    }
}

fn fabric(hints: &FabricAttr, offered: &FabricAttr) -> Result<FabricAttr, Mismatch> {
    let FabricAttr {
        name,
        provider,
        provider_version,
        api_version,
    } = hints;
    named("fabric_attr->name", name, &offered.name)?;
    named("fabric_attr->prov_name", provider, &offered.provider)?;
    at_most(
        "fabric_attr->prov_version",
        *provider_version,
        offered.provider_version,
    )?;
    Ok(FabricAttr {
        api_version: *api_version,
        ..offered.clone()
    })
}

/// Modes that the application must support.
fn supported(field: &'static str, supports: Mode, needed: Mode) -> Result<(), Mismatch> {
    match supports.contains(needed) {
        true => Ok(()),
        false => Err(Mismatch::new(
            field,
            &supports,
            &needed,
            format!(
                "set {} in the hints, and do what the mode asks for",
                (needed - supports).shown()
            ),
        )),
    }
}

fn either(own: Mode, general: Mode) -> Mode {
    match own.is_empty() {
        true => general,
        false => own,
    }
}

/// Sets of which all must be there.
fn within<T: bitflags::Flags + Shown + Copy>(
    field: &'static str,
    asked: T,
    offered: T,
) -> Result<(), Mismatch> {
    match offered.contains(asked) {
        true => Ok(()),
        false => {
            let lacking = asked.difference(offered);
            let mend = format!("do without {}", lacking.shown());
            Err(Mismatch::new(field, &lacking, &offered, mend))
        }
    }
}

/// Numbers of which there must be enough.
fn at_most<T: PartialOrd + Shown>(
    field: &'static str,
    asked: T,
    offered: T,
) -> Result<(), Mismatch> {
    match asked <= offered {
        true => Ok(()),
        false => {
            let mend = format!("ask for at most {}", offered.shown());
            Err(Mismatch::new(field, &asked, &offered, mend))
        }
    }
}

/// The same for numbers of bytes.
fn at_most_bytes(field: &'static str, asked: usize, offered: usize) -> Result<(), Mismatch> {
    at_most(field, Size(asked as u64), Size(offered as u64))
}

fn same<T: PartialEq + Shown>(
    field: &'static str,
    asked: T,
    offered: T,
    any: T,
) -> Result<(), Mismatch> {
    match asked == any || asked == offered {
        true => Ok(()),
        false => {
            let mend = format!("ask for {}, or with 0 for any", offered.shown());
            Err(Mismatch::new(field, &asked, &offered, mend))
        }
    }
}

fn named(field: &'static str, asked: &str, offered: &str) -> Result<(), Mismatch> {
    match asked.is_empty() || asked == offered {
        true => Ok(()),
        false => {
            let mend = format!("name {}, or none for any", offered.shown());
            Err(Mismatch::new(field, asked, offered, mend))
        }
    }
}

/// The length of a queue: as asked, for a shorter one takes less memory.
fn queue(field: &'static str, asked: usize, offered: usize) -> Result<usize, Mismatch> {
    at_most(field, asked, offered)?;
    Ok(match asked {
        0 => offered.min(DEFAULT_SIZE),
        asked => asked,
    })
}

/// The number of contexts of an endpoint that may have `most`, or share one if `sharing` endpoints
/// may.
fn contexts(
    field: &'static str,
    (asked, offered): (usize, usize),
    most: usize,
    sharing: usize,
) -> Result<usize, Mismatch> {
    match asked {
        0 => Ok(offered),
        SHARED_CONTEXT if sharing != 0 => Ok(asked),
        SHARED_CONTEXT => Err(Mismatch {
            field,
            asked: "FI_SHARED_CONTEXT".to_owned(),
            offered: format!("{most} of its own"),
            mend: "give each endpoint a context of its own".to_owned(),
        }),
        asked => at_most(field, asked, most).map(|()| asked),
    }
}

/// How tags are made up. Every bit of ours is a field of its own, so that any format with as many
/// bits is served.
fn tags(asked: u64, offered: u64, caps: Flags) -> Result<u64, Mismatch> {
    if !caps.contains(Flags::TAGGED) {
        return Ok(offered);
    }
    if asked.leading_zeros() < offered.leading_zeros() {
        let mend = format!(
            "use the lower {} bits of tags",
            u64::BITS - offered.leading_zeros()
        );
        return Err(Mismatch::new(
            "ep_attr->mem_tag_format",
            &asked,
            &offered,
            mend,
        ));
    }
    Ok(match asked {
        tag_format::MPI | tag_format::CCL => asked,
        _ => offered,
    })
}

/// The progress model: an application that would drive progress itself is content with less than
/// automatic.
fn progress(field: &'static str, asked: Progress, offered: Progress) -> Result<Progress, Mismatch> {
    let served = match asked {
        Progress::Unspec => return Ok(offered),
        Progress::Auto => offered == Progress::Auto,
        Progress::Manual => offered != Progress::ControlUnified,
        Progress::ControlUnified => true,
    };
    match served {
        true => Ok(asked),
        false => {
            let mend = format!("ask for {}, or with 0 for any", offered.shown());
            Err(Mismatch::new(field, &asked, &offered, mend))
        }
    }
}

/// The type of address vectors: as asked, tables for those who do not say.
fn address_vectors(asked: Option<AvType>, offered: Option<AvType>) -> Result<AvType, Mismatch> {
    match (asked, offered) {
        (Some(asked), Some(offered)) if asked != offered => Err(Mismatch::new(
            "domain_attr->av_type",
            &asked,
            &offered,
            format!("use one of type {}", offered.shown()),
        )),
        (asked, offered) => Ok(asked.or(offered).unwrap_or(AvType::Table)),
    }
}
