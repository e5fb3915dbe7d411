//! Capabilities (fi_getinfo(3)): which there are, and which of them come with which.

use super::Mismatch;
use super::mismatch::Shown;
use crate::flags::Flags;

/// Capabilities that apply to sends (fi_endpoint(3), `fi_tx_attr::caps`).
pub const TX_CAPS: Flags = Flags::MSG
    .union(Flags::RMA)
    .union(Flags::TAGGED)
    .union(Flags::ATOMIC)
    .union(Flags::MULTICAST)
    .union(Flags::COLLECTIVE)
    .union(Flags::READ)
    .union(Flags::WRITE)
    .union(Flags::SEND)
    .union(Flags::TRIGGER)
    .union(Flags::FENCE)
    .union(Flags::XPU)
    .union(Flags::HMEM)
    .union(Flags::RMA_PMEM)
    .union(Flags::NAMED_RX_CTX);

/// Capabilities that apply to receives (fi_endpoint(3), `fi_rx_attr::caps`).
pub const RX_CAPS: Flags = Flags::MSG
    .union(Flags::RMA)
    .union(Flags::TAGGED)
    .union(Flags::ATOMIC)
    .union(Flags::COLLECTIVE)
    .union(Flags::RECV)
    .union(Flags::REMOTE_READ)
    .union(Flags::REMOTE_WRITE)
    .union(Flags::MULTI_RECV)
    .union(Flags::TRIGGER)
    .union(Flags::XPU)
    .union(Flags::TAGGED_DIRECTED_RECV)
    .union(Flags::TAGGED_MULTI_RECV)
    .union(Flags::HMEM)
    .union(Flags::EXACT_DIRECTED_RECV)
    .union(Flags::RMA_PMEM)
    .union(Flags::SOURCE_ERR)
    .union(Flags::RMA_EVENT)
    .union(Flags::SOURCE)
    .union(Flags::DIRECTED_RECV);

/// Every capability there is.
pub const ALL_CAPS: Flags = TX_CAPS
    .union(RX_CAPS)
    .union(Flags::AV_USER_ID)
    .union(Flags::PEER)
    .union(Flags::LOCAL_COMM)
    .union(Flags::REMOTE_COMM)
    .union(Flags::SHARED_AV);

/// One-sided reads, writes and atomic operations, by both sides, and counters at the target
/// (fi_rma(3), fi_atomic(3)).
pub(super) const ONE_SIDED: Flags = REMOTE.union(REMOTE_MODIFIERS).union(Flags::RMA_EVENT);

/// Secondary capabilities that cost nothing here: offered even if the hints do not name them.
const FREE: Flags = REACH
    .union(Flags::MULTI_RECV)
    .union(Flags::TAGGED_MULTI_RECV)
    .union(Flags::SOURCE)
    .union(Flags::SHARED_AV);

/// Capabilities for hints that name them, not for hints that name none: with `SOURCE_ERR` other
/// things complete than without, and `PEER` is for owners alone.
const BY_NAME: Flags = Flags::SOURCE_ERR.union(Flags::PEER);

/// Primary capabilities of domains: for hints that name them.
const DOMAIN_PRIMARY: Flags = Flags::DIRECTED_RECV
    .union(Flags::AV_USER_ID)
    .union(Flags::PEER)
    .union(Flags::XPU);

const REACH: Flags = Flags::LOCAL_COMM.union(Flags::REMOTE_COMM);
const MESSAGES: Flags = Flags::MSG.union(Flags::TAGGED);
const MESSAGE_MODIFIERS: Flags = Flags::SEND.union(Flags::RECV);
const REMOTE: Flags = Flags::RMA.union(Flags::ATOMIC);
const TARGET: Flags = Flags::REMOTE_READ.union(Flags::REMOTE_WRITE);
const REMOTE_MODIFIERS: Flags = Flags::READ.union(Flags::WRITE).union(TARGET);

/// The capabilities of an endpoint, of `offered`. Without any in `asked`: all except those that
/// hints have to name; else those in `asked`, those that cost nothing, and all directions where
/// none is named.
pub(super) fn grant(asked: Flags, offered: Flags) -> Result<Flags, Mismatch> {
    if asked.is_empty() {
        return Ok(offered - BY_NAME);
    }
    let needs = [
        (REMOTE_MODIFIERS, REMOTE),
        (Flags::MULTICAST, Flags::MSG),
        (Flags::SOURCE_ERR, Flags::SOURCE),
        (Flags::RMA_PMEM, Flags::RMA),
    ];
    for (refining, refined) in needs {
        if asked.intersects(refining) && !asked.intersects(refined) {
            return Err(without(asked & refining, refined));
        }
    }
    if !offered.contains(asked) {
        let lacking = asked - offered;
        let mend = format!("do without {}", lacking.shown());
        return Err(Mismatch::new("caps", &lacking, &offered, mend));
    }
    let reach = asked & REACH;
    if reach == Flags::LOCAL_COMM && offered.contains(Flags::REMOTE_COMM) {
        // Hints for this node alone get the domain that reaches no other node.
        return Err(Mismatch {
            field: "caps",
            asked: format!("{} alone", reach.shown()),
            offered: (offered & REACH).shown(),
            mend: "ask for FI_REMOTE_COMM too, or for neither".to_owned(),
        });
    }
    let mut caps = with_directions(asked | (offered & FREE), offered);
    if !reach.is_empty() {
        caps = (caps - REACH) | reach;
    }
    if caps.contains(Flags::RMA_EVENT) && !caps.intersects(TARGET) {
        return Err(without(Flags::RMA_EVENT, TARGET));
    }
    Ok(caps)
}

/// The capabilities of an endpoint that is no target: for applications that take all there is, and
/// cannot register memory as targets must.
pub(super) fn without_targets(caps: Flags) -> Flags {
    let caps = caps - TARGET - Flags::RMA_EVENT;
    match caps.intersects(REMOTE_MODIFIERS) {
        true => caps,
        false => caps - REMOTE - Flags::RMA_PMEM,
    }
}

/// The capabilities of an endpoint that has messages alone.
pub(super) fn without_remote_access(caps: Flags) -> Flags {
    caps - REMOTE - REMOTE_MODIFIERS - Flags::RMA_EVENT - Flags::RMA_PMEM
}

/// Whether peers may access the endpoint's memory.
pub(super) fn is_target(caps: Flags) -> bool {
    caps.intersects(TARGET)
}

/// Whether there is more than messages.
pub(super) fn has_remote_access(caps: Flags) -> bool {
    caps.intersects(REMOTE)
}

/// The capabilities of one side of an endpoint with the capabilities `caps`, for those in `asked`.
/// Bits that do not apply to a side are ignored there, as applications set one value everywhere.
pub(super) fn grant_side(
    field: &'static str,
    asked: Flags,
    caps: Flags,
    applicable: Flags,
) -> Result<Flags, Mismatch> {
    if !caps.contains(asked) {
        let mend = format!("ask for {} in caps, too", (asked - caps).shown());
        let lacking = asked - caps;
        return Err(Mismatch::new(field, &lacking, &(caps & applicable), mend));
    }
    let asked = asked & applicable;
    let caps = caps & applicable;
    Ok(match asked.is_empty() {
        true => caps,
        false => with_directions(asked | (caps & FREE), caps),
    })
}

/// The capabilities of a domain, for endpoints with the capabilities `caps`.
pub(super) fn grant_domain(asked: Flags, offered: Flags, caps: Flags) -> Result<Flags, Mismatch> {
    if !offered.contains(asked) {
        let lacking = asked - offered;
        let mend = format!("do without {}", lacking.shown());
        return Err(Mismatch::new("domain_attr->caps", &lacking, &offered, mend));
    }
    let wanted = if asked.is_empty() { caps } else { asked };
    Ok(offered & ((wanted & DOMAIN_PRIMARY) | FREE))
}

fn with_directions(mut caps: Flags, offered: Flags) -> Flags {
    for (capabilities, modifiers) in [(MESSAGES, MESSAGE_MODIFIERS), (REMOTE, REMOTE_MODIFIERS)] {
        if caps.intersects(capabilities) && !caps.intersects(modifiers) {
            caps |= offered & modifiers;
        }
    }
    caps
}

fn without(refining: Flags, refined: Flags) -> Mismatch {
    Mismatch {
        field: "caps",
        asked: refining.shown(),
        offered: format!("nothing of it without {}", refined.shown()),
        mend: format!("ask for {}, too", refined.shown()),
    }
}
