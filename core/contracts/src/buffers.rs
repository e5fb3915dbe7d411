//! Lists of buffers: one walk over them, and the copies out of and into them. Buffers are
//! addresses, never references: a device or another process may be writing to the memory.

use crate::flags::Flags;
use crate::types::{IoBuf, total_len};

/// The parts of a list's buffers that bytes of a message go to or come from, from `offset` of the
/// message on, `len` of them: each with its place among these bytes.
#[inline]
pub fn parts(list: &[IoBuf], offset: usize, len: usize) -> impl Iterator<Item = (IoBuf, usize)> {
    let (mut skip, mut done) = (offset, 0);
    list.iter().filter_map(move |buf| {
        let part = buf.part(skip, len - done);
        skip -= skip.min(buf.len);
        let at = done;
        done += part.len;
        (part.len != 0).then_some((part, at))
    })
}

/// Copies `len` bytes out of the buffers of a list, from `offset` of them all on, or as many as
/// there are.
///
/// # Safety
///
/// The buffers are valid for reads, `to` for writes of the copied bytes; they do not overlap.
#[inline]
pub unsafe fn gather(list: &[IoBuf], offset: usize, len: usize, to: *mut u8) {
    if let [one] = list {
        let part = one.part(offset, len);
        // SAFETY: the caller's promise; the part lies in the buffer.
        unsafe { to.copy_from_nonoverlapping(part.as_ptr(), part.len) };
        return;
    }
    // SAFETY: as above.
    unsafe { gather_list(list, offset, len, to) };
}

/// [`gather`] for lists that have several buffers, apart from the code that is inlined into sends.
///
/// # Safety
///
/// As for [`gather`].
#[cold]
#[inline(never)]
unsafe fn gather_list(list: &[IoBuf], offset: usize, len: usize, to: *mut u8) {
    for (part, at) in parts(list, offset, len) {
        // SAFETY: as above; all parts together have at most `len` bytes.
        unsafe { to.add(at).copy_from_nonoverlapping(part.as_ptr(), part.len) };
    }
}

/// Copies `len` bytes into the buffers of a list, from `offset` of them all on, as far as there is
/// room.
///
/// # Safety
///
/// `from` is valid for reads of the copied bytes, the buffers for writes; they do not overlap.
#[cold]
#[inline(never)]
pub unsafe fn scatter(from: *const u8, len: usize, list: &[IoBuf], offset: usize) {
    for (part, at) in parts(list, offset, len) {
        // SAFETY: the caller's promise; all parts together have at most `len` bytes.
        unsafe { (part.as_mut_ptr()).copy_from_nonoverlapping(from.add(at), part.len) };
    }
}

/// A copy of all that a list holds.
///
/// # Safety
///
/// The buffers are valid for reads.
pub unsafe fn copy_of(list: &[IoBuf]) -> Box<[u8]> {
    let mut copy = vec![0u8; total_len(list)].into_boxed_slice();
    // SAFETY: the caller's promise; `copy` has as many bytes as the list.
    unsafe { gather(list, 0, copy.len(), copy.as_mut_ptr()) };
    copy
}

/// The buffers of a send that waits: the application's, or a copy where the application may have
/// them back (`INJECT`).
#[derive(Debug)]
pub struct SendBuffers(Kept);

#[derive(Debug)]
enum Kept {
    /// One buffer of the application.
    One([IoBuf; 1]),
    /// Several.
    Many(Box<[IoBuf]>),
    /// A copy, and the buffer that it is.
    Copy([IoBuf; 1], Box<[u8]>),
}

impl SendBuffers {
    /// Keeps the buffers of a send with these flags.
    ///
    /// # Safety
    ///
    /// The buffers are valid for reads: with `INJECT` now, else until the operation completes.
    pub unsafe fn new(flags: Flags, list: &[IoBuf]) -> Self {
        Self(if flags.contains(Flags::INJECT) {
            // SAFETY: the caller's promise.
            let copy = unsafe { copy_of(list) };
            Kept::Copy([IoBuf::new(copy.as_ptr(), copy.len())], copy)
        } else if let [one] = list {
            Kept::One([*one])
        } else {
            Kept::Many(list.into())
        })
    }

    /// The list. It may be read as long as `self` lives and the send waits.
    #[inline]
    pub fn list(&self) -> &[IoBuf] {
        match &self.0 {
            Kept::One(one) | Kept::Copy(one, _) => one,
            Kept::Many(many) => many,
        }
    }

    /// The bytes, where they are a copy.
    pub fn copy(&self) -> Option<&[u8]> {
        match &self.0 {
            Kept::Copy(_, bytes) => Some(bytes),
            Kept::One(_) | Kept::Many(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// For any list of buffers and any range of the message: gathering copies that range of the
        /// message out, and scattering writes it there and nowhere else.
        #[test]
        fn parts_are_parts_of_the_whole(
            mut memory in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..6),
            (offset, len) in (0..120usize, 0..120usize),
        ) {
            let mut whole = memory.concat();
            let list: Vec<_> =
                memory.iter_mut().map(|b| IoBuf::new(b.as_mut_ptr(), b.len())).collect();
            let fit = len.min(whole.len().saturating_sub(offset));
            let from = offset.min(whole.len());
            let mut got = vec![0; len];
            // SAFETY: the buffers are `memory`; there is room for `len` bytes.
            unsafe { gather(&list, offset, len, got.as_mut_ptr()) };
            prop_assert_eq!(&got[..fit], &whole[from..from + fit]);
            prop_assert!(got[fit..].iter().all(|b| *b == 0));
            // SAFETY: the buffers stay until the end.
            let kept = [Flags::INJECT, Flags::empty()].map(|f| unsafe { SendBuffers::new(f, &list) });
            prop_assert_eq!(kept[0].copy(), Some(&whole[..]));
            prop_assert_eq!((kept[1].copy(), kept[1].list()), (None, &list[..]));

            let message: Vec<u8> = (0..len as u8).collect();
            // SAFETY: as above.
            unsafe { scatter(message.as_ptr(), len, &list, offset) };
            whole[from..from + fit].copy_from_slice(&message[..fit]);
            prop_assert_eq!(memory.concat(), whole);
        }
    }
}
