//! Authorization keys in hints and offers (fi_domain(3), fi_endpoint(3)): one of the domain's for
//! all its endpoints, one of an endpoint's own, or those of the address vector that an endpoint is
//! bound to.

use super::orders::ONE_SIDED_ORDERS;
use super::{DomainAttr, EpAttr, Info, Mismatch, RxAttr, TxAttr, caps};
use crate::addr::{AddrFormats, AuthKey, MAX_EP_AUTH_KEYS};
use crate::flags::Flags;

/// [`DomainAttr::auth_key_size`] of a domain whose endpoints have the keys of their address vectors
/// (`FI_AV_AUTH_KEY`).
pub const AV_AUTH_KEY: usize = usize::MAX;

/// The offer of the same domain with the keys of address vectors: receives may name a key, also
/// those of datagrams. No receives are another provider's (`FI_PEER`). There are no one-sided
/// operations: nothing would keep the peers of one key out of the memory that is registered for
/// another.
#[must_use]
pub fn with_address_vector_keys(info: Info) -> Info {
    Info {
        caps: (caps::without_remote_access(info.caps) | Flags::DIRECTED_RECV) - Flags::PEER,
        // The others say nothing of keys.
        addr_formats: info.addr_formats & (AddrFormats::NATIVE | AddrFormats::STR),
        tx: TxAttr {
            caps: caps::without_remote_access(info.tx.caps),
            rma_iov_limit: 0,
            msg_order: info.tx.msg_order - ONE_SIDED_ORDERS,
            ..info.tx
        },
        rx: RxAttr {
            caps: caps::without_remote_access(info.rx.caps) | Flags::DIRECTED_RECV,
            msg_order: info.rx.msg_order - ONE_SIDED_ORDERS,
            ..info.rx
        },
        ep: EpAttr {
            auth_key_size: 0,
            max_order_raw_size: 0,
            max_order_war_size: 0,
            max_order_waw_size: 0,
            ..info.ep
        },
        domain: DomainAttr {
            caps: (info.domain.caps | Flags::DIRECTED_RECV) - Flags::PEER,
            auth_key_size: AV_AUTH_KEY,
            max_ep_auth_key: MAX_EP_AUTH_KEYS,
            ..info.domain
        },
        ..info
    }
}

/// Size and key of a domain.
///
/// # Errors
///
/// The field that can not be met.
pub(super) fn of_domain(
    hints: &DomainAttr,
    offered: &DomainAttr,
) -> Result<(usize, Option<AuthKey>), Mismatch> {
    let asked = hints.auth_key_size;
    let served = match offered.auth_key_size {
        AV_AUTH_KEY => asked == AV_AUTH_KEY,
        offered => asked == 0 || asked == offered,
    };
    if !served {
        return Err(Mismatch {
            field: "domain_attr->auth_key_size",
            asked: shown(asked),
            offered: shown(offered.auth_key_size),
            mend: mend(offered.auth_key_size),
        });
    }
    if asked == AV_AUTH_KEY && hints.auth_key.is_some() {
        return Err(Mismatch {
            field: "domain_attr->auth_key",
            asked: "a key".to_owned(),
            offered: "the keys of address vectors".to_owned(),
            mend: "leave it NULL, and insert the key: fi_av_insert_auth_key".to_owned(),
        });
    }
    Ok((asked, hints.auth_key))
}

/// Size and key of an endpoint.
///
/// # Errors
///
/// As [`of_domain`].
pub(super) fn of_endpoint(
    hints: &EpAttr,
    offered: &EpAttr,
) -> Result<(usize, Option<AuthKey>), Mismatch> {
    let asked = hints.auth_key_size;
    match asked == 0 || asked == offered.auth_key_size {
        true => Ok((asked, hints.auth_key)),
        false => Err(Mismatch {
            field: "ep_attr->auth_key_size",
            asked: shown(asked),
            offered: shown(offered.auth_key_size),
            mend: mend(offered.auth_key_size),
        }),
    }
}

fn shown(size: usize) -> String {
    match size {
        AV_AUTH_KEY => "FI_AV_AUTH_KEY".to_owned(),
        size => size.to_string(),
    }
}

fn mend(offered: usize) -> String {
    match offered {
        0 => "leave it 0: there are no authorization keys here".to_owned(),
        AV_AUTH_KEY => "ask for FI_AV_AUTH_KEY: keys are those of address vectors".to_owned(),
        size => format!("ask for {size}, or for 0 to do without a key"),
    }
}
