//! Receives into a list of buffers (fi_recvv(3)).
//!
//! Transports fill one piece of memory. A message for a list goes into memory of ours while it is under way, taken when
//! it has met the receive, and from there into the list when it is complete.

use slab::Slab;

use crate::flags::Flags;
use crate::peer::Piece;
use crate::types::{IoBuf, total_len};

struct List {
    segments: Box<[IoBuf]>,
    memory: Vec<u8>,
    /// The receive's `COMPLETION`.
    wish: Flags,
}

/// The lists that messages are on their way to.
#[derive(Default)]
pub(super) struct Lists(Slab<List>);

impl Lists {
    /// Memory for a message of `len` bytes, or for what of it the list has room for.
    pub(super) fn lend(
        &mut self,
        segments: Box<[IoBuf]>,
        flags: Flags,
        len: u64,
    ) -> (IoBuf, Piece) {
        let room = total_len(&segments);
        let at = self.0.insert(List {
            memory: vec![0; usize::try_from(len).map_or(room, |len| len.min(room))],
            segments,
            wish: flags & Flags::COMPLETION,
        });
        let memory = &mut self.0[at].memory;
        let buf = IoBuf::new(memory.as_mut_ptr(), memory.len());
        (buf, Piece::of_list(at))
    }

    /// Fills the list of that number with what came. Returns the receive's `COMPLETION`.
    ///
    /// # Safety
    ///
    /// The buffers of the list are valid for writes.
    pub(super) unsafe fn fill(&mut self, number: usize) -> Flags {
        let Some(list) = self.0.try_remove(number) else {
            return Flags::empty();
        };
        let mut rest = &list.memory[..];
        for segment in &list.segments {
            let (now, later) = rest.split_at(segment.len.min(rest.len()));
            // SAFETY: the caller's promise; no more than the segment has room for.
            unsafe {
                segment
                    .as_mut_ptr()
                    .copy_from_nonoverlapping(now.as_ptr(), now.len());
            }
            rest = later;
        }
        list.wish
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The list holds what the memory held, piece after piece, and nothing beyond it.
        #[test]
        fn a_list_is_filled_in_order(
            lens in prop::collection::vec(0usize..20, 2..5),
            len in 0usize..90,
        ) {
            let mut memory: Vec<Vec<u8>> = lens.iter().map(|len| vec![0xff; *len]).collect();
            let segments: Box<[IoBuf]> = memory
                .iter_mut()
                .map(|m| IoBuf::new(m.as_mut_ptr(), m.len()))
                .collect();
            let room = lens.iter().sum::<usize>();
            let mut lists = Lists::default();
            let (buf, piece) = lists.lend(segments, Flags::COMPLETION, len as u64);
            prop_assert_eq!(Piece::NONE.list(), None);
            prop_assert_eq!(buf.len, len.min(room));
            let message: Vec<u8> = (0..buf.len as u8).collect();
            // SAFETY: the memory has as many bytes.
            unsafe {
                buf.as_mut_ptr()
                    .copy_from_nonoverlapping(message.as_ptr(), message.len());
            }
            // SAFETY: the segments are `memory`.
            let wish = unsafe { lists.fill(piece.list().unwrap()) };
            prop_assert_eq!(wish, Flags::COMPLETION);
            let mut wanted = message;
            wanted.resize(room, 0xff);
            prop_assert_eq!(memory.concat(), wanted);
            prop_assert!(lists.0.is_empty());
        }
    }
}
