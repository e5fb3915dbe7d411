//! Offers for an owner that links this provider with others by the objects of fi_peer(3)
//! (`FI_PEER`).

use super::{DomainAttr, EpAttr, Info, Mismatch, Progress};
use crate::flags::Flags;

/// Checks that objects of an owner are driven as they need it: the owner drives this provider.
///
/// # Errors
///
/// The hints request such objects, and progress is automatic.
pub(super) fn check_progress(hints: &Info, progress: Progress) -> Result<(), Mismatch> {
    let asked = hints.caps | hints.domain.caps;
    match progress {
        Progress::Auto if asked.contains(Flags::PEER) => Err(Mismatch {
            field: "domain_attr->data_progress",
            asked: "automatic progress with FI_PEER".to_owned(),
            offered: "manual progress".to_owned(),
            mend: "ask for FI_PROGRESS_MANUAL: the owner of the objects drives this provider"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}

/// The offer to an owner. libfabric's `lnx` passes it to its application as its own, and refuses it
/// there if it has more than `lnx` itself has: keys of endpoints, or a newer version of a protocol.
/// So it has the keys that the hints request, and a version only if they name one.
pub(super) fn for_owner(info: Info, hints: &Info) -> Info {
    if !hints.caps.contains(Flags::PEER) {
        return info;
    }
    Info {
        ep: EpAttr {
            protocol_version: match hints.ep.protocol_version {
                0 => 0,
                _ => info.ep.protocol_version,
            },
            ..info.ep
        },
        domain: DomainAttr {
            max_ep_auth_key: hints.domain.max_ep_auth_key,
            ..info.domain
        },
        ..info
    }
}
