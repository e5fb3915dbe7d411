//! Hints against one candidate: pure, and says which field ruled a candidate out.

use std::fmt;

use super::{AddrFormat, EpType, Info, Progress};
use crate::flags::Flags;

/// The first field by which a candidate was ruled out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The field, as fi_getinfo(3) names it.
    pub field: &'static str,
    /// What was asked for.
    pub asked: String,
    /// What there is.
    pub offered: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} asked for is {}, offered is {}",
            self.field, self.asked, self.offered
        )
    }
}

/// Capabilities that are given only when asked for (fi_getinfo(3), "primary capabilities").
const PRIMARY: Flags = Flags::MSG
    .union(Flags::RMA)
    .union(Flags::TAGGED)
    .union(Flags::ATOMIC)
    .union(Flags::MULTICAST)
    .union(Flags::COLLECTIVE)
    .union(Flags::HMEM)
    .union(Flags::NAMED_RX_CTX)
    .union(Flags::DIRECTED_RECV)
    .union(Flags::SOURCE)
    .union(Flags::SOURCE_ERR);

/// Capabilities that refine others: all of them unless some are asked for.
const MODIFIERS: Flags = Flags::READ
    .union(Flags::WRITE)
    .union(Flags::RECV)
    .union(Flags::SEND)
    .union(Flags::REMOTE_READ)
    .union(Flags::REMOTE_WRITE);

/// The candidate as the hints want it, or the field in which it can not.
///
/// # Errors
///
/// The first field that rules it out.
pub fn filter(hints: &Info, candidate: &Info) -> Result<Info, Mismatch> {
    let mut info = candidate.clone();
    info.caps = caps(hints.caps, candidate.caps)?;

    let lacking = candidate.mode - hints.mode;
    if !lacking.is_empty() {
        return Err(mismatch("mode", &hints.mode, &candidate.mode));
    }
    if hints.addr_format != AddrFormat::UNSPEC && hints.addr_format != candidate.addr_format {
        return Err(mismatch(
            "addr_format",
            &hints.addr_format,
            &candidate.addr_format,
        ));
    }
    if hints.ep.ep_type != EpType::Unspec && hints.ep.ep_type != candidate.ep.ep_type {
        return Err(mismatch(
            "ep_attr.type",
            &hints.ep.ep_type,
            &candidate.ep.ep_type,
        ));
    }
    for (field, asked, offered) in [
        (
            "ep_attr.max_msg_size",
            hints.ep.max_msg_size,
            candidate.ep.max_msg_size,
        ),
        (
            "tx_attr.inject_size",
            hints.tx.inject_size,
            candidate.tx.inject_size,
        ),
        ("tx_attr.size", hints.tx.size, candidate.tx.size),
        (
            "tx_attr.iov_limit",
            hints.tx.iov_limit,
            candidate.tx.iov_limit,
        ),
        ("rx_attr.size", hints.rx.size, candidate.rx.size),
        (
            "rx_attr.iov_limit",
            hints.rx.iov_limit,
            candidate.rx.iov_limit,
        ),
        (
            "domain_attr.cq_data_size",
            hints.domain.cq_data_size,
            candidate.domain.cq_data_size,
        ),
    ] {
        if asked > offered {
            return Err(mismatch(field, &asked, &offered));
        }
    }
    for (field, asked, offered) in [
        (
            "tx_attr.msg_order",
            hints.tx.msg_order,
            candidate.tx.msg_order,
        ),
        (
            "rx_attr.msg_order",
            hints.rx.msg_order,
            candidate.rx.msg_order,
        ),
    ] {
        if !offered.contains(asked) {
            return Err(mismatch(field, &asked, &offered));
        }
    }
    for (field, asked, offered) in [
        (
            "domain_attr.name",
            &hints.domain.name,
            &candidate.domain.name,
        ),
        (
            "fabric_attr.name",
            &hints.fabric.name,
            &candidate.fabric.name,
        ),
        (
            "fabric_attr.prov_name",
            &hints.fabric.provider,
            &candidate.fabric.provider,
        ),
    ] {
        if !asked.is_empty() && asked != offered {
            return Err(mismatch(field, asked, offered));
        }
    }
    if hints.domain.data_progress == Progress::Auto
        && candidate.domain.data_progress != Progress::Auto
    {
        return Err(mismatch(
            "domain_attr.data_progress",
            &hints.domain.data_progress,
            &candidate.domain.data_progress,
        ));
    }
    info.domain.threading = hints.domain.threading;
    info.domain.mr_mode = candidate.domain.mr_mode & hints.domain.mr_mode;
    Ok(info)
}

fn caps(asked: Flags, offered: Flags) -> Result<Flags, Mismatch> {
    if asked.is_empty() {
        return Ok(offered);
    }
    // What refines a capability asks for it, too.
    let needs = [
        (
            Flags::READ | Flags::WRITE | Flags::REMOTE_READ | Flags::REMOTE_WRITE,
            Flags::RMA | Flags::ATOMIC,
        ),
        (Flags::MULTICAST, Flags::MSG),
        (Flags::SOURCE_ERR, Flags::SOURCE),
        (Flags::RMA_PMEM, Flags::RMA),
    ];
    for (refining, primary) in needs {
        if asked.intersects(refining) && !asked.intersects(primary) {
            return Err(mismatch("caps", &asked, &(asked | primary)));
        }
    }
    if !offered.contains(asked) {
        return Err(mismatch("caps", &(asked - offered), &offered));
    }
    let mut caps = asked | (offered - PRIMARY - MODIFIERS);
    if !asked.intersects(MODIFIERS) {
        caps |= offered & MODIFIERS;
    }
    if asked.intersects(Flags::LOCAL_COMM | Flags::REMOTE_COMM) {
        let reach = Flags::LOCAL_COMM | Flags::REMOTE_COMM;
        caps = (caps - reach) | (asked & reach);
    }
    Ok(caps)
}

fn mismatch<T: fmt::Debug>(field: &'static str, asked: &T, offered: &T) -> Mismatch {
    Mismatch {
        field,
        asked: format!("{asked:?}"),
        offered: format!("{offered:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::{DomainAttr, EpAttr, TxAttr};

    fn candidate() -> Info {
        Info {
            caps: Flags::MSG
                | Flags::TAGGED
                | Flags::SEND
                | Flags::RECV
                | Flags::DIRECTED_RECV
                | Flags::SOURCE
                | Flags::MULTI_RECV
                | Flags::LOCAL_COMM
                | Flags::REMOTE_COMM,
            ep: EpAttr {
                ep_type: EpType::Rdm,
                max_msg_size: 1 << 30,
                ..EpAttr::default()
            },
            tx: TxAttr {
                inject_size: 256,
                ..TxAttr::default()
            },
            domain: DomainAttr {
                name: "rxe0/1".to_owned(),
                ..DomainAttr::default()
            },
            ..Info::default()
        }
    }

    /// Covers: GI-2
    #[test]
    fn empty_hints_take_everything() {
        assert_eq!(filter(&Info::default(), &candidate()), Ok(candidate()));
    }

    /// Covers: GI-3
    #[test]
    fn primary_capabilities_come_only_when_asked_for() {
        let hints = Info {
            caps: Flags::TAGGED,
            ..Info::default()
        };
        let caps = filter(&hints, &candidate()).unwrap().caps;
        assert!(caps.contains(Flags::TAGGED | Flags::SEND | Flags::RECV | Flags::MULTI_RECV));
        assert!(!caps.intersects(Flags::MSG | Flags::SOURCE | Flags::DIRECTED_RECV));
        let hints = Info {
            caps: Flags::TAGGED | Flags::SEND,
            ..Info::default()
        };
        assert!(
            !filter(&hints, &candidate())
                .unwrap()
                .caps
                .contains(Flags::RECV)
        );
    }

    /// Covers: GI-2, GI-3
    #[test]
    fn the_first_field_that_rules_a_candidate_out_is_named() {
        let cases = [
            (
                Info {
                    caps: Flags::RMA,
                    ..Info::default()
                },
                "caps",
            ),
            (
                Info {
                    caps: Flags::MSG | Flags::READ,
                    ..Info::default()
                },
                "caps",
            ),
            (
                Info {
                    ep: EpAttr {
                        ep_type: EpType::Dgram,
                        ..EpAttr::default()
                    },
                    ..Info::default()
                },
                "ep_attr.type",
            ),
            (
                Info {
                    ep: EpAttr {
                        max_msg_size: usize::MAX,
                        ..EpAttr::default()
                    },
                    ..Info::default()
                },
                "ep_attr.max_msg_size",
            ),
            (
                Info {
                    tx: TxAttr {
                        inject_size: 257,
                        ..TxAttr::default()
                    },
                    ..Info::default()
                },
                "tx_attr.inject_size",
            ),
            (
                Info {
                    domain: DomainAttr {
                        name: "other".to_owned(),
                        ..DomainAttr::default()
                    },
                    ..Info::default()
                },
                "domain_attr.name",
            ),
        ];
        for (hints, field) in cases {
            let why = filter(&hints, &candidate()).unwrap_err();
            assert_eq!(why.field, field, "{why}");
        }
    }
}
