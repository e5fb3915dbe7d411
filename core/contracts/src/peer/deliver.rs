//! Copies of messages into receives.

use super::{Matched, Owner, PeerSrx};
use crate::buffers::scatter;

/// Copies `len` bytes of a message, from `offset` of it on, into the receive that it has met, as
/// far as there is room.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes. The completion of the receive was not reported yet: so
/// long its buffers may be written, and nobody else uses them.
#[inline]
pub unsafe fn deliver<O: Owner>(
    owner: &mut O,
    matched: &Matched,
    offset: usize,
    from: *const u8,
    len: usize,
) {
    let to = matched.buf.part(offset, len);
    match matched.piece.is_of_list() {
        // SAFETY: the caller's promise; the part lies in the buffer.
        false => unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from, to.len) },
        // SAFETY: the caller's promise.
        true => unsafe { scatter(from, to.len, owner.srx().segments(matched.piece), offset) },
    }
}
