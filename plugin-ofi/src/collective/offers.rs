//! Offers with collective operations (`FI_COLLECTIVE`): those of the runtime's domains, to hints
//! that name the capability, where the host has what it needs.

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{AV_AUTH_KEY, EpType, Info, Progress, tag_format};

use super::RESERVED_TAG;
use super::offload::Offload;

/// Takes the capability out of hints, or of the description of a domain or an endpoint: the runtime
/// does not have it. Returns whether it was there. An endpoint with nothing else has messages.
pub(crate) fn take(info: &mut Info) -> bool {
    let is_there = info.caps.contains(Flags::COLLECTIVE);
    for caps in [
        &mut info.caps,
        &mut info.tx.caps,
        &mut info.rx.caps,
        &mut info.domain.caps,
    ] {
        *caps -= Flags::COLLECTIVE;
    }
    if is_there {
        if info.caps.is_empty() {
            info.caps = Flags::MSG;
        }
        if info.domain.data_progress == Progress::Unspec {
            info.domain.data_progress = Progress::Manual;
        }
    }
    is_there
}

/// Checks that a domain can have the capability.
///
/// # Errors
///
/// `ENODATA`: the host has no `off_coll`, or nothing that drives it. `EINVAL`: the domain has
/// automatic progress, which nobody's calls would make here.
pub(crate) fn check(info: &Info) -> Result<(), Error> {
    let refused = |errno, mend| Err(Error::new(errno, "offer", "collective operations").mend(mend));
    if Offload::of_host().is_none() {
        return refused(Errno::ENODATA, "use a libfabric with off_coll and shm");
    }
    match info.domain.data_progress {
        Progress::Auto => refused(Errno::EINVAL, "ask for FI_PROGRESS_MANUAL"),
        _ => Ok(()),
    }
}

/// The offers that can have the capability, with it. `hints` are without it.
pub(crate) fn with_collectives(offers: Vec<Info>, hints: &Info) -> Vec<Info> {
    let asks_for_all_tags = hints.ep.mem_tag_format & RESERVED_TAG != 0;
    if asks_for_all_tags && hints.caps.contains(Flags::TAGGED) {
        return Vec::new();
    }
    let can = |info: &Info| {
        let is_reliable = info.ep.ep_type == EpType::Rdm;
        is_reliable && info.domain.auth_key_size != AV_AUTH_KEY && check(info).is_ok()
    };
    let mut offers: Vec<_> = offers.into_iter().filter(can).collect();
    for info in &mut offers {
        for caps in [&mut info.caps, &mut info.tx.caps, &mut info.rx.caps] {
            *caps |= Flags::COLLECTIVE;
        }
        if info.ep.mem_tag_format == tag_format::GENERIC {
            info.ep.mem_tag_format >>= 1;
        }
    }
    offers
}
