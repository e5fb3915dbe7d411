//! Traffic classes (`tclass` of `fi_tx_attr` and `fi_domain_attr`, fi_endpoint(3)), with
//! libfabric's numbers: a label, or a differentiated services code point (DSCP, RFC 2474).

use super::Mismatch;

/// In hints: the domain's class.
pub const UNSPEC: u32 = 0;
/// No class of its own: the default of networks.
pub const BEST_EFFORT: u32 = LABEL;
/// Barriers, collective operations: latency matters most.
pub const LOW_LATENCY: u32 = LABEL + 1;
/// The highest priority but for network control.
pub const DEDICATED_ACCESS: u32 = LABEL + 2;
/// Large transfers.
pub const BULK_DATA: u32 = LABEL + 3;
/// The class that yields to all others.
pub const SCAVENGER: u32 = LABEL + 4;
/// Management of the network itself.
pub const NETWORK_CTRL: u32 = LABEL + 5;

/// Marks a class that is a DSCP (`FI_TC_DSCP`).
const DSCP: u32 = 0x100;
/// Marks a class that is a label (`FI_TC_LABEL`).
const LABEL: u32 = 0x200;
/// A DSCP has 6 bits.
const DSCP_BITS: u32 = 0x3f;

/// The class of a DSCP (`fi_tc_dscp_set`). One of more than 6 bits gives a number that is no class.
pub const fn of_dscp(dscp: u8) -> u32 {
    DSCP | dscp as u32
}

/// The DSCP of a class; `None` for a label, and for a number that is no class.
pub const fn dscp(class: u32) -> Option<u8> {
    match class & !DSCP_BITS {
        DSCP => Some((class & DSCP_BITS) as u8),
        _ => None,
    }
}

/// Whether a number is a class. [`UNSPEC`] is none.
pub(crate) const fn is_class(number: u32) -> bool {
    matches!(number, BEST_EFFORT..=NETWORK_CTRL) || dscp(number).is_some()
}

/// The class that the hints name, or without one the default.
///
/// # Errors
///
/// A number that is no class.
pub fn grant(field: &'static str, asked: u32, default: u32) -> Result<u32, Mismatch> {
    match asked {
        UNSPEC => Ok(default),
        class if is_class(class) => Ok(class),
        number => Err(Mismatch {
            field,
            asked: format!("{number:#x}"),
            offered: format!(
                "a label ({BEST_EFFORT:#x} to {NETWORK_CTRL:#x}) or a DSCP ({:#x} to {:#x})",
                of_dscp(0),
                of_dscp(DSCP_BITS as u8),
            ),
            mend: "ask for a label of fi_endpoint(3), for fi_tc_dscp_set of 0 to 63, or with 0 \
                   for the default"
                .to_owned(),
        }),
    }
}
