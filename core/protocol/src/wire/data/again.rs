//! Fields that change when a packet that was written earlier is sent again on another lane.

use std::ops::Range;

use crate::wire::SessionId;

/// Where the session lies in a packet.
const SESSION: Range<usize> = 4..8;

/// Where the header holds the credit.
const CREDIT_FIELD: Range<usize> = 2..4;

/// Puts the name of another session into a packet that was written for one that went before.
///
/// # Panics
/// When `packet` is shorter than a header.
pub fn readdress(packet: &mut [u8], session: SessionId) {
    packet[SESSION].copy_from_slice(&session.0.to_le_bytes());
}

/// Puts the credit of now into a packet that was written earlier: old values of the field differ
/// from new ones over a part of its circle only, and a packet that waits for its next lane may grow
/// older than that.
///
/// # Panics
/// When `packet` is shorter than a header.
pub fn renew_credit(packet: &mut [u8], credit: u16) {
    packet[CREDIT_FIELD].copy_from_slice(&credit.to_le_bytes());
}
