//! The application's duties in memory registration (fi_mr(3), "memory registration mode").

use super::mismatch::Shown;
use super::{Info, Mismatch, caps};
use crate::flags::{Flags, Mode, MrMode};

const FIELD: &str = "domain_attr->mr_mode";

/// The modes that [`MrMode::BASIC`] stands for.
const BASIC: MrMode = MrMode::VIRT_ADDR
    .union(MrMode::ALLOCATED)
    .union(MrMode::PROV_KEY);

/// Before this version of the interface there were `BASIC` and `SCALABLE` alone, and 0 was either.
const BITS_SINCE: u32 = (1 << 16) | 5;

/// The duties that remain with the application for an endpoint with the capabilities `caps`, and
/// the modes that are added.
pub(super) fn grant(
    hints: &Info,
    required: MrMode,
    caps: Flags,
) -> Result<(MrMode, Mode), Mismatch> {
    let needed = needed(required, caps);
    let asked = hints.domain.mr_mode;
    let old = MrMode::BASIC | MrMode::SCALABLE;
    let version = hints.fabric.api_version;
    // Addresses and keys matter to targets alone.
    let basic = needed.contains(MrMode::VIRT_ADDR | MrMode::PROV_KEY)
        || required.contains(MrMode::BASIC)
        || !caps::is_target(caps);
    let granted = if version != 0 && version < BITS_SINCE {
        legacy(asked & old, hints.mode, needed, basic)
    } else if asked.intersects(old) {
        legacy(asked, hints.mode, needed, basic)
    } else {
        asked.contains(needed).then_some((needed, Mode::empty()))
    };
    granted.ok_or_else(|| {
        let mend = match version != 0 && version < BITS_SINCE {
            true => "set FI_MR_BASIC, or FI_LOCAL_MR where local buffers are to be registered"
                .to_owned(),
            false => format!("set {}, and register memory so", needed.shown()),
        };
        Mismatch::new(FIELD, &asked, &needed, mend)
    })
}

/// The old modes: one of the two names, and local registration apart. `serves_basic` says whether
/// memory can have virtual addresses and keys of the provider's.
fn legacy(
    asked: MrMode,
    modes: Mode,
    needed: MrMode,
    serves_basic: bool,
) -> Option<(MrMode, Mode)> {
    let (local, needed) = (needed & MrMode::LOCAL, needed - MrMode::LOCAL);
    let mode = match local.is_empty() {
        true => Mode::empty(),
        false => Mode::LOCAL_MR & modes,
    };
    if !local.is_empty() && mode.is_empty() {
        return None;
    }
    let basic = BASIC.contains(needed) && serves_basic;
    let scalable = needed.is_empty();
    let granted = if asked == MrMode::SCALABLE {
        scalable.then_some(asked)
    } else if asked == MrMode::BASIC {
        basic.then_some(asked)
    } else if !asked.is_empty() {
        None
    } else if scalable {
        Some(MrMode::SCALABLE)
    } else {
        basic.then_some(MrMode::BASIC)
    };
    granted.map(|granted| (granted, mode))
}

/// The part of `required` that matters to an endpoint with the capabilities `caps`; nothing for
/// messages from memory that need not be registered.
fn needed(required: MrMode, caps: Flags) -> MrMode {
    let mut needed = required - MrMode::BASIC - MrMode::SCALABLE;
    if !caps.contains(Flags::HMEM) {
        needed -= MrMode::HMEM;
    }
    if !caps.contains(Flags::COLLECTIVE) {
        needed -= MrMode::COLLECTIVE;
    }
    if !caps.contains(Flags::RMA_EVENT) {
        needed -= MrMode::RMA_EVENT;
    }
    if caps::is_target(caps) {
        return needed;
    }
    match needed.intersects(MrMode::LOCAL | MrMode::HMEM | MrMode::COLLECTIVE) {
        true => needed - MrMode::RAW - MrMode::VIRT_ADDR - MrMode::PROV_KEY,
        false => MrMode::empty(),
    }
}
