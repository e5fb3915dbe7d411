//! Copies of messages out of shared memory, into receives and into memory of our own.

use ferrofabric_contracts::peer::{Matched, Owner, PeerSrx};

use crate::copy::{copy_bulk, copy_to_list};

/// Copies `len` bytes of a message, from `offset` of it on, into the receive that it has met, as
/// far as there is room.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes, the receive's buffers for writes.
#[inline]
pub(super) unsafe fn put<O: Owner>(
    owner: &mut O,
    matched: &Matched,
    offset: usize,
    from: *const u8,
    len: usize,
) {
    let to = matched.buf.part(offset, len);
    match matched.piece.is_of_list() {
        // SAFETY: the caller's promise; `part` is within the buffer.
        false => unsafe { copy_bulk(from, to.as_mut_ptr(), to.len) },
        // SAFETY: the caller's promise.
        true => unsafe { put_in_list(owner, matched, offset, from, to.len) },
    }
}

/// As [`put`], of a list of buffers.
///
/// # Safety
///
/// As there.
#[cold]
pub(super) unsafe fn put_in_list<O: Owner>(
    owner: &mut O,
    matched: &Matched,
    offset: usize,
    from: *const u8,
    len: usize,
) {
    let segments = owner.srx().segments(matched.piece);
    // SAFETY: the caller's promise.
    unsafe { copy_to_list(from, segments, offset, len) };
}

/// Appends bytes that another process may be writing to.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes.
pub(super) unsafe fn append(bytes: &mut Vec<u8>, from: *const u8, len: usize) {
    bytes.reserve(len);
    // SAFETY: there is room for `len` more, which the copy fills.
    unsafe {
        copy_bulk(from, bytes.as_mut_ptr().add(bytes.len()), len);
        bytes.set_len(bytes.len() + len);
    }
}
